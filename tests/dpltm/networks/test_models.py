"""Networks by name: shapes, initialisation, what they compute, and bad names."""

import itertools
import math

import pytest
import torch
from torch.nn import functional

from dpltm.networks import ModelSpec, build, resized, resolve
from refusals import refused


def filled(spec: ModelSpec, seed: int = 3) -> torch.nn.Sequential:
    """The network with weights and biases of any sign, in float64."""
    model, generator = build(spec).double(), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model


CNN = {"conv1": (16, 1, 8, 8), "conv2": (32, 16, 4, 4), "fc1": (32, 512), "fc2": (2, 32)}
LATENT_3 = {"conv1": (32, 3, 3, 3), "conv2": (32, 32, 3, 3), "conv3": (64, 32, 3, 3), "conv4": (64, 64, 3, 3)}
SHAPES = {
    ("mlp", 4): {"fc1": (2, 4)},
    ("mlp:300,100", 784): {"fc1": (300, 784), "fc2": (100, 300), "fc3": (2, 100)},
    ("mlp:project64,300", 784): {"project": (64, 784), "fc1": (300, 64), "fc2": (2, 300)},
    ("cnn:28x28x1", 784): CNN,
    ("cnn:28x28x1:16,32,32", 784): CNN,
    ("cnn:28x28x1:7,20,15", 784): {"conv1": (7, 1, 8, 8), "conv2": (20, 7, 4, 4), "fc1": (15, 320), "fc2": (2, 15)},
    ("embed-pad:10000", 256): {"table": (10000, 16), "fc1": (16, 16), "fc2": (2, 16)},
    ("embed:10000", 256): {"table.rows": (9999, 16), "fc1": (16, 16), "fc2": (2, 16)},
    ("embed:50:8,5,4", 7): {"table.rows": (49, 8), "fc1": (5, 8), "fc2": (4, 5), "fc3": (2, 4)},
    ("embed:50:8", 7): {"table.rows": (49, 8), "fc1": (2, 8)},
    ("latent:28x28x1", 784): {"conv1": (32, 1, 3, 3), "conv2": (64, 32, 3, 3), "fc1": (128, 9216), "fc2": (2, 128)},
    ("latent:32x32x3", 3072): {**LATENT_3, "fc1": (512, 2304), "fc2": (2, 512)},
}


@pytest.mark.parametrize(("text", "features"), SHAPES)
def test_shapes_by_hand(text, features):
    expected = {}
    for name, shape in SHAPES[text, features].items():
        expected[f"{name}.weight"] = shape
        if "table" not in name:
            expected[f"{name}.bias"] = shape[:1]
    assert list(ModelSpec(text, features, 2).shapes().items()) == list(expected.items())


def test_as_many_parameters_as_where_they_come_from():
    """Bu, Dong, Long and Su's networks for MNIST and for reviews; keras's examples for MNIST and CIFAR-10."""
    assert ModelSpec("cnn:28x28x1", 784, 10).parameters == 26_010
    assert ModelSpec("embed-pad:10000", 256, 2).parameters == 160_306
    assert ModelSpec("latent:28x28x1", 784, 10).parameters == 1_199_882
    assert ModelSpec("latent:32x32x3", 3072, 10).parameters == 1_250_858


@pytest.mark.parametrize(
    ("text", "features"),
    [
        *(("mlp", 4), ("mlp:3,1,9,2", 9), ("mlp:project6,5", 4), ("mlp:project6", 4), ("mlp-tanh:project8,30", 64)),
        *(("cnn:14x14x1", 196), ("cnn:16x30x2:1,6,3", 960), ("cnn-tanh:28x28x1:3,4,5", 784)),
        *(("embed:50", 7), ("embed-tanh:50:8,5,4", 7), ("embed-pad:50:8,5,4", 7), ("embed-pad-tanh:50", 7)),
        *(("lstm:5x3", 15), ("lstm:5x3:7", 15), ("lstm:50", 7)),
        *(("gru:50:8,5", 7), ("gru:1x1:1", 1), ("rnn:5x3:7", 15)),
        *(("latent:6x9x1", 54), ("latent:10x13x3:3,4,5", 390), ("latent-tanh:10x13x1:3,4,5,6,7", 130)),
    ],
)
def test_a_network_has_the_shapes_of_its_name_and_the_name_of_its_shapes(text, features):
    spec = ModelSpec(text, features, 3)
    model = build(spec, 0)
    assert list(spec.shapes().items()) == [(name, tuple(p.shape)) for name, p in model.named_parameters()]
    assert model(torch.rand(2, features)).shape == (2, 3)
    assert resized(spec, spec.name.widths).shapes() == resized(spec, ()).shapes() == spec.shapes()


@pytest.mark.parametrize(("text", "features"), [("mlp:200,50", 300), ("cnn:28x28x3", 2352)])
def test_glorot_normal_weights_and_zero_biases(text, features):
    for name, parameter in build(ModelSpec(text, features, 10), 3).named_parameters():
        if name.endswith("bias"):
            assert parameter.count_nonzero() == 0
            continue
        field = parameter[0][0].numel()
        count, std = parameter.numel(), math.sqrt(2 / (field * (parameter.shape[0] + parameter.shape[1])))
        # four standard errors of the standard deviation and of the mean of that many normal values
        assert abs(parameter.std().item() - std) < 4 * std / math.sqrt(2 * count)
        assert abs(parameter.mean().item()) < 4 * std / math.sqrt(count)
        if count > 1000:  # a uniform distribution of the same standard deviation would end at 1.73
            assert parameter.abs().max().item() > 2.5 * std


def test_the_seed_decides_everything():
    spec = ModelSpec("mlp:8", 5, 3)
    first, again, other = (list(build(spec, seed).parameters()) for seed in (4, 4, 5))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first, other, strict=True) if a.ndim == 2)
    assert not torch.equal(first[0].flatten()[:15], first[2].flatten()[:15]), "layers share their draws"
    assert not any(bool(p.any()) for p in build(ModelSpec("mlp", 5, 3), 7).parameters()), "a single one is zero"


@pytest.mark.parametrize(
    "text", ["mlp:6,5", "mlp:project6,5", "mlp:project6", "mlp-tanh:6,5", "mlp-tanh:project6,5", "mlp"]
)
def test_linear_layers_with_an_activation_between_and_none_behind_a_projection_or_the_end(text):
    model = filled(ModelSpec(text, 4, 3))
    value = torch.randn(20, 4, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    expected, parameters = value, dict(model.named_parameters())
    names = [name.removesuffix(".weight") for name in parameters if name.endswith("weight")]
    for name in names:
        expected = expected @ parameters[f"{name}.weight"].T + parameters[f"{name}.bias"]
        assert (expected < 0).any(), "outputs of both signs are needed to tell whether a ReLU follows"
        if name not in ("project", names[-1]):
            expected = expected.tanh() if "tanh" in text else expected.clamp_min(0)
    torch.testing.assert_close(model(value), expected)


@pytest.mark.parametrize(("kind", "activation"), [("cnn", torch.relu), ("cnn-tanh", torch.tanh)])
def test_it_computes_two_convolutions_with_maxima_on_images_that_come_channels_last(kind, activation):
    """Three channels, not square, against one convolution at a time on records that were put in order by hand."""
    height, width, channels = 21, 30, 3
    model = filled(ModelSpec(f"{kind}:21x30x3", height * width * channels, 7))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter /= parameter[0].numel() ** 0.5
    x = torch.randn(5, height * width * channels, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    values = {name: parameter.detach() for name, parameter in model.named_parameters()}
    image = torch.empty(5, channels, height, width, dtype=torch.float64)
    for row, column, channel in itertools.product(range(height), range(width), range(channels)):
        image[:, channel, row, column] = x[:, (row * width + column) * channels + channel]
    image = functional.pad(image, (3, 3, 3, 3))
    for name in ("conv1", "conv2"):
        image = activation(functional.conv2d(image, values[f"{name}.weight"], values[f"{name}.bias"], stride=2))
        image = torch.maximum(image[..., :-1, :], image[..., 1:, :])
        image = torch.maximum(image[..., :-1], image[..., 1:])
    units = activation(image.reshape(5, -1) @ values["fc1.weight"].T + values["fc1.bias"])
    expected = units @ values["fc2.weight"].T + values["fc2.bias"]
    assert (expected < 0).any(), "outputs of both signs are needed to tell that no ReLU follows"
    torch.testing.assert_close(model(x), expected)


@pytest.mark.parametrize("kind", ["embed", "embed-pad"])
def test_embed_averages_over_all_positions_padding_included(kind):
    """The vector of padding is zero, or one of its own."""
    model = filled(ModelSpec(f"{kind}:9:4,3", 6, 2))
    x = torch.tensor([[0.0, 0, 0, 1, 8, 8], [0, 0, 0, 0, 0, 0], [3, 2, -1, 9, 1e9, torch.nan]])
    first, second = model.fc1, model.fc2
    if kind == "embed":
        table = torch.cat([torch.zeros(1, 4, dtype=torch.float64), model.table.rows.weight])
    else:
        table = model.table.weight
    for record, positions in zip(x, ([0, 0, 0, 1, 8, 8], [0] * 6, [3, 2, 0, 0, 0, 0]), strict=True):
        mean = sum(table[position] for position in positions) / 6
        units = (first.weight @ mean + first.bias).clamp_min(0)
        torch.testing.assert_close(model(record[None].double())[0], second.weight @ units + second.bias)


@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn"])
def test_recurrent_networks_give_the_state_after_the_last_step(kind):
    """Of vectors as they come, and of the words' vectors; cells that torch has for a single step are the oracle."""
    for text, features in ((f"{kind}:5x3:4", 15), (f"{kind}:9:3,4", 5)):
        model = filled(ModelSpec(text, features, 2))
        cell = {"lstm": torch.nn.LSTMCell, "gru": torch.nn.GRUCell, "rnn": torch.nn.RNNCell}[kind](3, 4).double()
        cell.load_state_dict({name.removesuffix("_l0"): value for name, value in model.recurrent.state_dict().items()})
        if ":9" in text:
            x = torch.tensor([[0.0, 0, 1, 8, 2], [0, 0, 0, 0, 4]], dtype=torch.float64)
            steps = model.table.weight[x.long()]
        else:
            x = torch.randn(2, 15, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
            steps = torch.stack([torch.stack([record[3 * step : 3 * step + 3] for step in range(5)]) for record in x])
        state = None
        for step in range(5):
            state = cell(steps[:, step], state)
        last = state[0] if isinstance(state, tuple) else state
        torch.testing.assert_close(model(x), last @ model.fc1.weight.T + model.fc1.bias)


def test_latent_networks_by_hand():
    """One block without padding; two of which the first layer of each is padded. Pixels as stored, channels last."""
    for text, features, size in (
        ("latent:7x8x1:3,4,5", 56, (7, 8, 1)),
        ("latent:12x10x2:2,3,4,3,5", 240, (12, 10, 2)),
    ):
        model = filled(ModelSpec(text, features, 2))
        x = torch.randn(3, features, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        value = x.view(3, *size).permute(0, 3, 1, 2)
        convolutions = [layer for layer in model if isinstance(layer, torch.nn.Conv2d)]
        for number, layer in enumerate(convolutions):
            padding = 1 if len(convolutions) == 4 and number % 2 == 0 else 0
            value = functional.conv2d(value, layer.weight, layer.bias, padding=padding).clamp_min(0)
            if number % 2:
                height, width = value.shape[2] // 2 * 2, value.shape[3] // 2 * 2
                value = value[:, :, :height, :width].unfold(2, 2, 2).unfold(3, 2, 2).amax((4, 5))
        units = (value.flatten(1) @ model.fc1.weight.T + model.fc1.bias).clamp_min(0)
        torch.testing.assert_close(model(x), units @ model.fc2.weight.T + model.fc2.bias)


def test_which_networks_take_which_tables():
    assert ModelSpec("embed:50", 7, 2).tables == ModelSpec("gru:50", 7, 2).tables == (50,)
    assert ModelSpec("gru:7x1", 7, 2).tables == ModelSpec("latent:28x28x1", 784, 2).tables == ()
    assert ModelSpec("lstm:128x9", 1152, 6).record_shape == (128, 9)
    assert ModelSpec("embed:50", 7, 2).record_shape == (7,)


@pytest.mark.parametrize(
    ("text", "shape", "tables", "full"),
    [
        ("cnn", (28, 28), (), "cnn:28x28x1"),
        ("cnn:20x32x3", (1920,), (), "cnn:20x32x3"),
        ("embed-pad-tanh", (256,), (50,), "embed-pad-tanh:50"),
        ("gru", (32, 32, 3), (), "gru:32x96"),
    ],
)
def test_the_data_say_what_a_name_leaves_open(text, shape, tables, full):
    assert resolve(text, shape, tables) == full


FLATTENED = "flattened, say the size: {}"
WORDS = "words in one table, give their number (`words`)"


@pytest.mark.parametrize(
    ("text", "shape", "tables", "records", "kind", "example"),
    [
        *(("cnn", shape, (), f"of shape {shape}", "images", "28x28x1") for shape in ((), (784,), (2, 28, 28, 3))),
        ("lstm", (123,), (), "of shape (123,)", "sequences", "128x9"),
        ("gru", (2,), (5, 6), "with tables of 5 and 6 positions", "sequences", "128x9"),
        ("embed", (28, 28), (), "of shape (28, 28)", "texts", None),
    ],
)
def test_data_that_a_name_does_not_fit(text, shape, tables, records, kind, example):
    ways = [
        *([] if example is None else [FLATTENED.format(f"{text}:{example}")]),
        *([] if kind == "images" else [WORDS]),
    ]
    said = f"`model` {text}: records {records} are no {kind}; if they are {', or '.join(ways)}"
    assert refused(resolve, text, shape, tables) == said


MANY = ",".join("1" * 101)
KNOWN = (
    "unknown network {!r}; known: mlp[-tanh]:W,W,..., cnn[-tanh], latent[-tanh], embed[-pad][-tanh], lstm, gru, rnn"
)
LIMITS = ", with widths up to 4,096 and sizes up to {:,}"
WIDTHS = "{!r:.80}: write mlp:[projectOUTPUTS,]WIDTH,WIDTH,..., as in mlp:300,100, with widths up to 100,000"
FILTERS = "{!r}: write cnn:HEIGHTxWIDTHxCHANNELS[:FILTERS,FILTERS,UNITS], as in cnn:28x28x1:16,32,32" + LIMITS.format(
    9_999
)
LATENT = (
    "{!r}: write latent:HEIGHTxWIDTHxCHANNELS[:FILTERS,...,UNITS], three widths or five, as in latent:28x28x1:32,64,128"
    + LIMITS.format(9_999)
)
TABLE = "{!r:.80}: write embed:WORDS[:VECTOR,UNITS,...], as in embed:10000:16,16" + LIMITS.format(99_999_999)
SEQUENCES = (
    "{!r}: write gru:STEPSxVALUES[:UNITS], as in gru:128x9:32, or gru:WORDS[:VECTOR,UNITS], as in gru:10000:16,32"
    + LIMITS.format(99_999_999)
)
BOUNDED = "{!r}: activations of KIND are bounded as they are; leave -tanh out"
NAMES = [
    *((text, KNOWN) for text in ("", "CNN", "-tanh")),
    ("mlp3", f"{KNOWN}; did you mean mlp?"),
    ("lenet:300,100", f"{KNOWN}; did you mean latent?"),
    ("mlp-tanh-tanh:3", KNOWN),
    *((f"mlp:{rest}", WIDTHS) for rest in ("0", "-3", "3,", "3,,4", "x", "3.5", "100001", "3-tanh", MANY)),
    *((f"mlp:project{rest}", WIDTHS) for rest in ("", "0,3", "064,3", " 64,3", "64,", "64,3\n")),
    *((f"mlp:{rest}", WIDTHS) for rest in ("300,project64", "projectproject6")),
    *((f"cnn{rest}", FILTERS) for rest in ("", ":", ":28x28x1x1", ":28X28x1", ":028x28x1", ":28x28x0", ":10000x28x1")),
    *(
        (f"cnn:28x28x1:{rest}", FILTERS)
        for rest in ("", "7,20,15,3", "0,20,15", "7,4097,15", "7,020,15", "\u0667,20,15")
    ),
    *((f"embed{rest}", TABLE) for rest in ("", ":0", ":50:", ":50:0", ":50:4097", ":50x8", ":50:8\n", f":50:{MANY}")),
    *((f"gru{rest}", SEQUENCES) for rest in ("", ":5x", ":5x3x1", ":5x3:0", ":5x3:8,5", ":50:8", ":5x3:4097")),
    *((f"latent:28x28x1:{rest}", LATENT) for rest in ("", "3,4", "3,4,5,6", "3,4,0", "3,4,4097", "3,4,5\n")),
    *((f"{kind}-tanh:128x9", BOUNDED.replace("KIND", kind)) for kind in ("lstm", "rnn")),
]


@pytest.mark.parametrize(("text", "message"), NAMES)
def test_names_of_no_network(text, message):
    assert refused(ModelSpec, text, 784, 10) == "`model`: " + message.format(text)


@pytest.mark.parametrize(
    ("text", "features", "message"),
    [
        ("cnn:28x28x1", 783, "such images have 784 features, not 783"),
        ("lstm:128x9", 1151, "such sequences have 1152 features, not 1151"),
        *((f"cnn:{size}", 364, "images must be at least 14 x 14") for size in ("13x28x1", "28x13x1")),
        *((f"latent:{size}", 30, "images must be at least 6 x 6") for size in ("5x6x1", "6x5x1")),
        *((f"latent:{size}", 270, "images must be at least 10 x 10") for size in ("9x10x3", "10x9x3")),
        ("latent:10x9x1:1,1,1,1,1", 90, "images must be at least 10 x 10"),
    ],
)
def test_other_records_than_a_network_takes(text, features, message):
    assert refused(ModelSpec, text, features, 10) == f"`model`: {text}: {message}"


@pytest.mark.parametrize(
    ("name", "size", "most"),
    [("features", 0, 10**6), ("features", 1_000_001, 10**6), ("classes", True, 10**5), ("classes", 100_001, 10**5)],
)
def test_bad_sizes(name, size, most):
    message = f"model mlp:3: {name} {size!r} is not between 1 and {most}"
    assert refused(ModelSpec, "mlp:3", **{"features": 784, "classes": 3, name: size}) == message


def test_networks_too_large_for_memory_are_refused():
    """And names that are too long before they are read."""
    said = refused(ModelSpec, "mlp:" + "1," * 5_000_000, 4, 3)
    assert said == "`model`: 'mlp:1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1 is not a name of at most 1,000 characters"
    said = "`model`: mlp:100000 has 10,000,300,002 weights; take at most 500,000,000"
    assert refused(ModelSpec, "mlp:100000", 100_000, 2) == said
