"""Every kind of layer against the naive loop: one record at a time, plain autograd, the filter written out anew.

Each example asks for every kind of filter, and says whether rules or ``torch.func`` on the whole model should have done it:
a rule that is wrong may only show as the second where the first is expected.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from dpltm.filters import Automatic, Clip, Filter, PerLayerClip, RadialTanh, Sigmoid, Tanh
from dpltm.gradients import RecordGradients, explicit_layer, linear_layer, rules
from dpltm.gradients.embedding_layer import EmbeddingLayer
from dpltm.gradients.linear_layer import LinearLayer
from dpltm.masks import Mask

no_batching_rule = pytest.mark.filterwarnings(  # vmap falls back on a loop for attention, and says that it is slow
    "ignore:There is a performance drop because we have not yet implemented the batching rule:UserWarning"
)
uneven_padding = pytest.mark.filterwarnings(  # padding='same' with an even kernel copies its input, and says so
    "ignore:Using padding='same' with even kernel lengths:UserWarning"
)
seeds = st.integers(0, 2**32)
EXAMPLES = settings.default.max_examples  # of the profile: fifty, or a thousand
once = pytest.mark.parametrize("_products", ["dense"], indirect=True)  # where examples choose, or nothing hangs on it


def squared_error(outputs: Tensor, labels: Tensor) -> Tensor:
    """A loss for outputs of any shape, whose gradient differs from coordinate to coordinate and from record to record."""
    return (outputs.flatten(1) - labels[:, None]).square().sum(1) / 2


def naive_gradients(model: nn.Module, mask: Mask, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """By parameter that is not frozen, in their order: gradients at live coordinates, ``(records, live)``."""
    named = {name: value for name, value in model.named_parameters() if value.requires_grad}
    rows: dict[str, list[Tensor]] = {name: [] for name in named}
    for i in range(len(x)):
        loss = squared_error(model(x[i : i + 1]), y[i : i + 1]).sum()
        found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
        for (name, value), gradient in zip(named.items(), found, strict=True):
            rows[name].append((torch.zeros_like(value) if gradient is None else gradient)[mask[name]])
    return {name: torch.stack(parts) for name, parts in rows.items()}


def naive_sum(gradients: dict[str, Tensor], filter: Filter, rounding: float, layers: list[list[str]]) -> Tensor:
    """The table of privacy-model.md 4.2 over the rows of ``gradients``; ``layers`` are the parameters of each layer."""

    def clipped(values: Tensor, to: float) -> Tensor:
        norm = values.norm(dim=1, keepdim=True)
        return torch.where(norm > to, values * to / norm, values) * rounding

    whole = torch.cat(list(gradients.values()), 1)
    norm = whole.norm(dim=1, keepdim=True).clamp_min(1e-300)
    match filter:
        case Clip():
            filtered = clipped(whole, filter.clip_norm)
        case RadialTanh():
            filtered = whole * filter.clip_norm * (norm / filter.range).tanh() / norm * rounding
        case Automatic():
            filtered = whole * filter.clip_norm / (norm + filter.gamma) * rounding
        case Sigmoid():
            filtered = filter.scale / (1 + (-whole / filter.range).exp())
        case PerLayerClip():
            parts = {}
            for names in layers:
                together = torch.cat([gradients[name] for name in names], 1)
                sizes = [gradients[name].shape[1] for name in names]
                part = clipped(together, filter.clip_norm / math.sqrt(len(layers)))
                parts.update(zip(names, part.split(sizes, 1), strict=True))
            filtered = torch.cat([parts[name] for name in gradients], 1)
        case Tanh():
            before = whole if filter.before is None else clipped(whole, filter.before.clip_norm)
            filtered = filter.scale * (before / filter.range).tanh()
            if filter.after is not None:
                filtered = clipped(filtered, filter.after.clip_norm)
    return filtered.sum(0)


def filters_for(norm: float) -> list[Filter]:
    """Every kind of filter, on the scale of gradients of this norm: some records are clipped and some are not."""
    size = min(max(norm, 1e-3), 1e3)
    return [
        Clip(size),
        RadialTanh(size, 1.5 * size),
        Automatic(size),
        Tanh(2.0, size / 3, Clip(size)),
        Tanh(0.7, size / 3),
        Tanh(1.0, size / 2, None, Clip(0.5)),
        Sigmoid(1.5, size / 3),
        PerLayerClip(size),
    ]


def own_layers(model: nn.Module) -> list[list[str]]:
    """The trainable parameters of each module that has any of its own."""
    groups = [
        [
            f"{prefix}.{name}".lstrip(".")
            for name, value in module.named_parameters(recurse=False)
            if value.requires_grad
        ]
        for prefix, module in model.named_modules()
    ]
    return [group for group in groups if group]


def prepared(model: nn.Module, seed: int) -> Mask:
    """Draws weights, in float64, and a mask, each parameter with a density of its own, and applies it."""
    generator = torch.Generator().manual_seed(seed)
    model.double()
    tensors = {}
    for name, value in model.named_parameters():
        value.data.copy_(0.7 * torch.randn(value.shape, generator=generator, dtype=torch.float64))
        density = [0.0, 0.3, 0.7, 0.7, 1.0, 1.0][int(torch.randint(6, (), generator=generator))]
        tensors[name] = torch.rand(value.shape, generator=generator) < density
    mask = Mask(tensors)
    mask.apply(model)
    return mask


def numbers(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def check(
    model: nn.Module,
    x: Tensor,
    seed: int,
    whole: bool = False,
    layers: list[list[str]] | None = None,
    sparse: bool | None = None,
) -> RecordGradients:
    """Asserts that every filtered sum is the naive one; ``layers`` are those of PerLayerClip if not the modules.

    ``sparse`` chooses the products, instead of the fixture.
    """
    mask, y = prepared(model, seed), numbers(seed + 1, len(x))
    gradients = RecordGradients(model, mask, squared_error)
    with pytest.MonkeyPatch.context() as patch:
        if sparse is not None:
            patch.setattr(linear_layer, "SPARSE_SIZE", 0 if sparse else 10**12)
        gradients.check(x, y)
    assert gradients._plan is not None
    assert gradients._plan.whole == whole, (
        "taken by torch.func as a whole" if gradients._plan.whole else "taken by rules"
    )
    expected = naive_gradients(model, mask, x, y)
    norms = torch.cat(list(expected.values()), 1).norm(dim=1)
    layers = [list(expected)] if whole else own_layers(model) if layers is None else layers
    for filter in filters_for(float(norms.median())):
        result = gradients.filtered_sum(x, y, filter)
        assert result.skipped == 0
        wanted = naive_sum(expected, filter, gradients.rounding, layers)
        assert result.values.shape == wanted.shape == (gradients.live,)
        torch.testing.assert_close(
            result.values, wanted, rtol=1e-10, atol=1e-10, msg=lambda text, filter=filter: f"{filter}: {text}"
        )
    return gradients


records = st.sampled_from([1, 2, 3, 4, 7])


# Modules with rules of their own


@settings(max_examples=EXAMPLES * 3 // 10)
@given(records, st.lists(st.integers(1, 4), max_size=2), st.integers(1, 4), st.booleans(), st.booleans(), seeds)
def test_linear_on_any_number_of_positions(batch, positions, width, first_bias, second_bias, seed):
    model = nn.Sequential(nn.Linear(width, 4, bias=first_bias), nn.Tanh(), nn.Linear(4, 2, bias=second_bias))
    check(model, numbers(seed, batch, *positions, width), seed)


@st.composite
def convolutions(draw: st.DrawFn, dimensions: int) -> tuple[nn.Module, tuple[int, ...]]:
    """A convolution and the shape of an input that it can take."""

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(dimensions))

    kernel, dilation, groups = each(1, 3), each(1, 2), draw(st.sampled_from([1, 1, 2, 3]))
    reach = [(size - 1) * step + 1 for size, step in zip(kernel, dilation, strict=True)]
    size = tuple(low + draw(st.integers(0, 3)) for low in reach)
    kind = draw(st.sampled_from(["int", "each", "same", "valid"]))
    padding: str | int | tuple[int, ...] = kind
    if kind == "int":
        padding = min(draw(st.integers(0, 2)), *(number - 1 for number in size), 9)
    elif kind == "each":
        padding = tuple(min(draw(st.integers(0, 2)), number - 1) for number in size)
    conv = (nn.Conv1d, nn.Conv2d)[dimensions - 1](
        groups * draw(st.integers(1, 2)),
        groups * draw(st.integers(1, 2)),
        kernel,
        stride=1 if kind == "same" else each(1, 3),
        padding=padding,
        dilation=dilation,
        groups=groups,
        bias=draw(st.booleans()),
        padding_mode=draw(st.sampled_from(["zeros", "zeros", "reflect", "circular", "replicate"])),
    )
    return conv, (conv.in_channels, *size)


@once
@uneven_padding
@pytest.mark.parametrize("dimensions", [1, 2])
@settings(max_examples=EXAMPLES // 2)
@given(data=st.data(), batch=records, seed=seeds)
def test_convolutions(dimensions, data, batch, seed):
    conv, shape = data.draw(convolutions(dimensions))
    check(nn.Sequential(conv, nn.Tanh()), numbers(seed, batch, *shape), seed)


def test_convolutions_in_a_row():
    """The gradient at the first comes through the second; the mask prunes whole kernels."""
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 2, 2, groups=2),
        nn.Flatten(),
        nn.Linear(2, 3),
    )
    check(model, numbers(1, 5, 2, 4, 4), 5)


@once
@settings(max_examples=EXAMPLES // 2)
@given(
    records,
    st.lists(st.integers(1, 4), max_size=2),
    st.integers(2, 6),
    st.sampled_from([None, 0, 1, -1]),
    st.booleans(),
    seeds,
)
def test_embedding(batch, positions, size, padding, sparse, seed):
    """Few tokens, so that records repeat theirs; one token, a row or a table of tokens a record."""
    model = nn.Sequential(nn.Embedding(size, 3, padding_idx=padding), nn.Linear(3, 2))
    tokens = torch.randint(0, size, (batch, *positions), generator=torch.Generator().manual_seed(seed))
    gradients = check(model, tokens, seed, sparse=sparse)
    assert gradients._plan is not None
    assert isinstance(gradients._plan.layers[0][0], EmbeddingLayer)


class Raised(Tanh):
    """Sends zero elsewhere, as Sigmoid does, but may be clipped after."""

    def map(self, values: Tensor) -> Tensor:
        return super().map(values) + 0.5


def test_a_map_that_moves_zero_counts_tokens_that_a_record_does_not_hold():
    model = nn.Sequential(nn.Embedding(5, 2), nn.Flatten())
    mask, x, y = prepared(model, 2), torch.tensor([[0, 1, 1], [2, 0, 2]]), numbers(2, 2)
    gradients = RecordGradients(model, mask, squared_error)
    mapped = torch.cat(list(naive_gradients(model, mask, x, y).values()), 1).tanh() + 0.5
    assert mapped.shape[1] > 4
    expected = (mapped * 0.1 / mapped.norm(dim=1, keepdim=True) * gradients.rounding).sum(0)
    filter = Raised(1.0, 1.0, None, Clip(0.1))
    padded = gradients.filtered_sum(torch.cat([x, x]), torch.cat([y, y]), filter, torch.arange(4) < 2)
    for result in (gradients.filtered_sum(x, y, filter), padded):
        torch.testing.assert_close(result.values, expected, rtol=1e-10, atol=1e-10)


class TwoTexts(nn.Module):
    """One table for two texts of a record, as for a question and its answer."""

    def __init__(self, padding: int | None) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 3, padding_idx=padding)
        self.mix = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(self.table(x[:, :2]).mean(1) * self.table(x[:, 2:]).sum(1))


@once
@settings(max_examples=EXAMPLES // 2)
@given(records, st.sampled_from([None, 0, 2]), st.booleans(), seeds)
def test_embedding_called_twice(batch, padding, sparse, seed):
    tokens = torch.randint(0, 5, (batch, 6), generator=torch.Generator().manual_seed(seed))
    check(TwoTexts(padding), tokens, seed, sparse=sparse)


@st.composite
def norms(draw: st.DrawFn, kind: str) -> tuple[nn.Module, tuple[int, ...]]:
    """A normalisation, and the shape of an input that it can take."""
    positions = draw(st.lists(st.integers(1, 3), max_size=2))
    affine, eps = draw(st.sampled_from([True, True, False])), draw(st.sampled_from([1e-5, 0.1, 1.0]))
    if kind == "group":
        groups = draw(st.integers(1, 3))
        channels = groups * draw(st.integers(1, 2))
        return nn.GroupNorm(groups, channels, affine=affine, eps=eps), (channels, *positions, 3)
    size = draw(st.lists(st.integers(2, 3), min_size=1, max_size=2))
    if kind == "layer":
        return nn.LayerNorm(size, elementwise_affine=affine, bias=draw(st.booleans()), eps=eps), (*positions, *size)
    return nn.RMSNorm(size, elementwise_affine=affine, eps=draw(st.sampled_from([None, eps]))), (*positions, *size)


@once
@pytest.mark.parametrize("kind", ["layer", "rms", "group"])
@settings(max_examples=EXAMPLES * 2 // 5)
@given(data=st.data(), batch=records, sparse=st.booleans(), seed=seeds)
def test_normalisations(kind, data, batch, sparse, seed):
    module, shape = data.draw(norms(kind))
    model = nn.Sequential(nn.Linear(shape[-1], shape[-1]), module, nn.Tanh())
    check(model, numbers(seed, batch, *shape), seed, sparse=sparse)


def test_group_norm_of_one_value_a_channel():
    check(nn.Sequential(nn.Linear(3, 4), nn.GroupNorm(2, 4)), numbers(1, 5, 3), 5)


SEQUENCES = {"lstm": nn.LSTM, "gru": nn.GRU, "tanh": nn.RNN, "relu": nn.RNN}


class Recurrent(nn.Module):
    """A recurrent module whose sequence, last states or both make the output; it starts from zero or from the record."""

    def __init__(
        self, kind: str, layers: int, bidirectional: bool, batch_first: bool, bias: bool, use: str, start: str
    ):
        super().__init__()
        more = {"nonlinearity": kind} if kind in ("tanh", "relu") else {}
        self.module = SEQUENCES[kind](
            2, 3, num_layers=layers, bidirectional=bidirectional, batch_first=batch_first, bias=bias, **more
        )
        self.use, self.start = use, start
        self.ways = layers * (2 if bidirectional else 1)
        self.states = 2 if kind == "lstm" else 1
        if start != "zero":
            self.first = nn.Linear(2, self.states * self.ways * 3)

    def forward(self, x: Tensor) -> Tensor:
        sequence = x if self.module.batch_first else x.transpose(0, 1)
        if self.start == "zero":
            out, last = self.module(sequence)
        else:
            begin = self.first(x[:, 0]).tanh().unflatten(1, (self.states, self.ways, 3)).permute(1, 2, 0, 3)
            state = tuple(part.contiguous() for part in begin) if self.states == 2 else begin[0].contiguous()
            out, last = self.module(sequence, hx=state) if self.start == "keyword" else self.module(sequence, state)
        out = out if self.module.batch_first else out.transpose(0, 1)
        last = torch.stack(last).sin().sum(0) if isinstance(last, tuple) else last  # depends on each of them otherwise
        parts = {"sequence": [out], "last": [last.transpose(0, 1)], "both": [out, last.transpose(0, 1)]}[self.use]
        return torch.cat([part.flatten(1) for part in parts], 1)


@once
@pytest.mark.parametrize("kind", list(SEQUENCES))
@settings(max_examples=EXAMPLES * 3 // 10)
@given(
    layers=st.integers(1, 2),
    flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    use=st.sampled_from(["sequence", "last", "both"]),
    start=st.sampled_from(["zero", "zero", "position", "keyword"]),
    batch=records,
    length=st.sampled_from([1, 2, 4]),  # 3 is PROBE, and refused with time first: reported
    sparse=st.booleans(),
    seed=seeds,
)
def test_recurrent_modules(kind, layers, flags, use, start, batch, length, sparse, seed):
    check(Recurrent(kind, layers, *flags, use, start), numbers(seed, batch, length, 2), seed, sparse=sparse)


CELLS = {"lstm": nn.LSTMCell, "gru": nn.GRUCell, "tanh": nn.RNNCell, "relu": nn.RNNCell}


class Loop(nn.Module):
    """A cell called once for each time step; the output depends on every state, and on the memory at the end."""

    def __init__(self, kind: str, bias: bool, start: bool) -> None:
        super().__init__()
        more = {"nonlinearity": kind} if kind in ("tanh", "relu") else {}
        self.cell = CELLS[kind](2, 3, bias=bias, **more)
        self.first = nn.Linear(2, 3) if start else None

    def forward(self, x: Tensor) -> Tensor:
        state = None
        if self.first is not None:
            begin = self.first(x[:, 0])
            state = (begin, begin.tanh()) if isinstance(self.cell, nn.LSTMCell) else begin
        outputs = []
        for step in x.unbind(1):
            state = self.cell(step) if state is None else self.cell(step, state)
            outputs.append(state[0] if isinstance(state, tuple) else state)
        return torch.cat([*outputs, state[1]] if isinstance(state, tuple) else outputs, 1)


@once
@pytest.mark.parametrize("kind", list(CELLS))
@settings(max_examples=EXAMPLES * 3 // 10)
@given(st.booleans(), st.booleans(), records, st.integers(1, 4), st.booleans(), seeds)
def test_cells_in_a_loop(kind, bias, start, batch, length, sparse, seed):
    check(Loop(kind, bias, start), numbers(seed, batch, length, 2), seed, sparse=sparse)


# Modules that go through torch.func


ATTENTION = ("in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias")
ENCODER = ("linear1", "linear2", "norm1", "norm2")


class Attention(nn.Module):
    def __init__(self, weights: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.out = nn.Linear(4, 2)
        self.weights = weights

    def forward(self, x: Tensor) -> Tensor:
        mixed, weights = self.attention(x, x[:, :2], x[:, :2], need_weights=self.weights)
        return self.out(mixed).flatten(1) + (weights.sin().flatten(1).sum(1, keepdim=True) if self.weights else 0)


class Products(nn.Module):
    """Bilinear sees two tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.pair = nn.Linear(3, 2), nn.Bilinear(2, 3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.pair(self.left(x), x)


class Handwritten(nn.Module):
    """A parameter of its own beside a module: torch.func takes both together."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3, 2))
        self.inner = nn.Linear(2, 2)

    def forward(self, x: Tensor, shift: float = 0.0) -> Tensor:
        return self.inner((x @ self.weight).tanh()) + x @ self.weight + shift


class UsesHandwritten(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.custom = nn.Linear(3, 3), Handwritten()

    def forward(self, x: Tensor) -> Tensor:
        return self.custom(self.before(x), shift=1.0) * self.custom(x=x).sin()


class Scaled(nn.Linear):
    """A subclass may compute something else: the rule of its parent must not be taken."""

    def forward(self, x: Tensor) -> Tensor:
        return 3 * super().forward(x) * self.weight.sum()


@once
@no_batching_rule
@pytest.mark.parametrize(("batch", "seed"), [(1, 0), (3, 1), (5, 2)])
@pytest.mark.parametrize(
    ("make", "shape", "layers"),
    [
        (
            lambda: Attention(weights=False),
            (4, 4),
            [[f"attention.{name}" for name in ATTENTION], ["out.weight", "out.bias"]],
        ),
        (
            lambda: Attention(weights=True),
            (4, 4),
            [[f"attention.{name}" for name in ATTENTION], ["out.weight", "out.bias"]],
        ),
        (lambda: nn.Sequential(nn.ConvTranspose2d(2, 2, 2), nn.Tanh()), (2, 3, 3), None),
        (lambda: nn.Sequential(nn.Conv3d(1, 2, 2), nn.Tanh()), (1, 2, 2, 3), None),
        (lambda: nn.Sequential(nn.Linear(3, 2), nn.PReLU()), (3,), None),
        (Products, (3,), None),
        (Handwritten, (3,), [["weight", "inner.weight", "inner.bias"]]),
        (
            UsesHandwritten,
            (3,),
            [["before.weight", "before.bias"], ["custom.weight", "custom.inner.weight", "custom.inner.bias"]],
        ),
        (lambda: nn.Sequential(Scaled(3, 3), nn.Linear(3, 2)), (3,), None),
        (
            lambda: nn.Sequential(nn.Linear(2, 4), nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True)),
            (4, 2),
            [
                ["0.weight", "0.bias"],
                [f"1.self_attn.{name}" for name in ATTENTION],
                *([f"1.{module}.{name}" for name in ("weight", "bias")] for module in ENCODER),
            ],
        ),
    ],
    ids=[
        *("attention", "weights", "transposed", "conv3d", "prelu"),
        *("bilinear", "handwritten", "keywords", "subclass", "transformer"),
    ],
)
def test_modules_without_a_rule(make, shape, layers, batch, seed):
    gradients = check(make(), numbers(seed, batch, *shape), seed, layers=layers, sparse=False)
    if any(isinstance(layer, LinearLayer) for layer, _ in gradients._plan.layers):
        check(make(), numbers(seed, batch, *shape), seed, layers=layers, sparse=True)


class TimeFirst(nn.Module):
    """Dimension 0 of what the Linear layer sees is time, so that only the whole model has one row a record."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.transpose(0, 1)).sin().sum(0)


class Positions(nn.Module):
    """Learned positions are looked up once for the whole batch."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(6, 2), nn.Embedding(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.tokens(x) * (1 + self.positions(torch.arange(x.shape[1])))


class Borrows(nn.Module):
    """A functional call on the weight of a module, as tied output layers are often written."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(self.table(x).tanh().mean(1), self.table.weight)


@once
@pytest.mark.parametrize("batch", [1, 3, 4])
@pytest.mark.parametrize("make", [TimeFirst, Positions, Borrows])
def test_models_that_torch_func_takes_as_a_whole(make, batch):
    x = numbers(3, batch, 4, 2) if make is TimeFirst else torch.arange(4 * batch).reshape(batch, 4) % 5
    check(make(), x, 11, whole=True)


# Networks


class Tied(nn.Module):
    """Input and output share a table; the output layer may have a bias of its own."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(6, 3, padding_idx=1)
        self.middle = nn.Linear(3, 3)
        self.out = nn.Linear(3, 6, bias=bias)
        self.out.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.middle(self.table(x)).tanh())


@once
@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_tied_tables(batch, bias, seed):
    tied = ["table.weight", "out.bias"] if bias else ["table.weight"]
    tokens = torch.arange(3 * batch).reshape(batch, 3) % 6
    check(Tied(bias), tokens, seed, layers=[tied, ["middle.weight", "middle.bias"]])


class Again(nn.Module):
    """One module called several times, on two rows a record at first and on one later."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module, self.end = module, nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self.module(self.module(x).tanh() + self.module(x.sin())).tanh())


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: nn.Linear(4, 4), (4,)),
        (lambda: nn.Linear(4, 4), (2, 4)),
        (lambda: nn.Conv1d(2, 2, 3, padding=1), (2, 4)),
        (lambda: nn.LayerNorm(4), (2, 4)),
        (lambda: nn.GroupNorm(1, 2), (2, 4)),
        (lambda: nn.GRUCell(4, 4), (4,)),
        (lambda: Scaled(4, 4), (4,)),
    ],
)
def test_a_module_called_three_times(make, shape):
    check(Again(make()), numbers(5, 4, *shape), 12)


def test_one_module_under_two_names():
    shared = nn.Linear(3, 3)
    check(nn.Sequential(shared, nn.Tanh(), nn.Sequential(shared, nn.Linear(3, 2))), numbers(5, 4, 3), 8)


class Pick(nn.Module):
    def forward(self, output: tuple[Tensor, Tensor]) -> Tensor:
        return output[0]


def assorted() -> nn.Sequential:
    """Layers 0 to 6: convolution, normalisation, -, Linear on rows, recurrence, -, Linear on a vector."""
    return nn.Sequential(
        nn.Conv1d(2, 2, 2),
        nn.GroupNorm(1, 2),
        nn.Tanh(),
        nn.Linear(3, 2),
        nn.GRU(2, 2, batch_first=True),
        Pick(),
        nn.Flatten(),
        nn.Linear(4, 2),
    )


FREEZES = [
    ["0.weight"],
    ["0.bias", "3.weight"],
    ["0.weight", "0.bias"],
    ["1.weight", "3.bias"],
    ["4.bias_hh_l0", "4.weight_ih_l0"],
    ["7.weight"],
    ["7.bias"],
    ["7.weight", "7.bias"],
    ["0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias", "7.bias"],
]


@pytest.mark.parametrize("frozen", FREEZES, ids=" ".join)
def test_frozen_parameters_have_no_coordinates(frozen):
    """Whatever the mask says of them; one whose parameters are all frozen is no layer to PerLayerClip either."""
    model = assorted()
    parameters = dict(model.named_parameters())
    for name in frozen:
        parameters[name].requires_grad_(False)
    gradients = check(model, numbers(6, 4, 2, 4), 14)
    mask = Mask.dense(model)
    gradients = RecordGradients(model, mask, squared_error)
    assert gradients.live == sum(value.numel() for name, value in parameters.items() if name not in frozen)


@pytest.mark.parametrize("frozen", ["weight", "inner.weight"])
def test_frozen_parameters_under_torch_func(frozen):
    model = Handwritten()
    dict(model.named_parameters())[frozen].requires_grad_(False)
    rest = [name for name in ("weight", "inner.weight", "inner.bias") if name != frozen]
    check(model, numbers(6, 4, 3), 14, layers=[rest])


def test_a_frozen_table():
    model = nn.Sequential(nn.Embedding(5, 2), nn.Flatten(), nn.Linear(6, 2))
    model[0].weight.requires_grad_(False)
    check(model, torch.arange(12).reshape(4, 3) % 5, 3)


class Spare(nn.Module):
    """Layers that are never called, that are called for nothing, and one output of which is used."""

    def __init__(self) -> None:
        super().__init__()
        self.never, self.first = nn.Linear(2, 2), nn.Linear(3, 3)
        self.idle, self.table = nn.Conv1d(1, 1, 2), nn.Embedding(3, 2)
        self.cell, self.last = nn.LSTMCell(3, 3), nn.Linear(3, 2)
        self.for_nothing, self.idle_rows = nn.Linear(3, 3), nn.LSTM(3, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        self.for_nothing(hidden), self.idle(x[:, None]), self.idle_rows(x[:, None])
        return self.last(self.cell(hidden)[1])


@pytest.mark.parametrize("batch", [1, 3, 5])
def test_unused_parameters_have_gradient_zero(batch):
    check(Spare(), numbers(7, batch, 3), 15)


class Residual(nn.Module):
    """In-place operations on the outputs of modules with rules, as common networks have them."""

    def __init__(self, inplace: bool) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(2, 2, 3, padding=1), nn.GroupNorm(1, 2)
        self.second, self.out = nn.Conv2d(2, 2, 3, padding=1, bias=False), nn.Linear(8, 3)
        self.relu = nn.ReLU(inplace=inplace)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.relu(self.norm(self.first(x)))
        out = self.second(hidden)
        out += x
        out = self.out(self.relu(out).flatten(1))
        out *= 2
        return out.sin_()


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("inplace", [False, True])
def test_residual_networks_with_in_place_operations(batch, inplace):
    check(Residual(inplace), numbers(8, batch, 2, 2, 2), 16)


class OverwritesStates(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.module = nn.LSTM(2, 3, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        out, (hidden, memory) = self.module(x)
        out.tanh_()
        hidden += 1
        return torch.cat([out.flatten(1), hidden[0], memory[0]], 1)


@pytest.mark.parametrize("make", [lambda: nn.Embedding(5, 3), lambda: nn.Embedding(5, 3, padding_idx=2)])
def test_a_table_whose_output_is_overwritten(make):
    check(nn.Sequential(make(), nn.ReLU(inplace=True), nn.Linear(3, 2)), torch.arange(12).reshape(4, 3) % 5, 17)


def test_states_that_are_overwritten():
    check(OverwritesStates(), numbers(9, 4, 4, 2), 18)


class Shuffled(nn.Module):
    """Parameters come in another order than layers: shared ones where they were first, own ones before modules'."""

    def __init__(self) -> None:
        super().__init__()
        self.late = nn.Linear(2, 3)
        self.first = nn.Linear(3, 2)
        self.middle = nn.Sequential(nn.LayerNorm(2), nn.Linear(2, 2))
        self.again = nn.Linear(2, 3)
        self.again.weight = self.late.weight
        self.end = nn.Linear(3, 1)
        self.end.bias = self.middle[1].weight_bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.middle(self.first(x))
        return self.end(self.late(hidden).sin() * self.again(hidden))


@pytest.mark.parametrize("seed", range(4))
def test_values_come_in_the_order_of_the_parameters(seed):
    model = Shuffled()
    names = [name for name, _ in model.named_parameters()]
    gradients = check(
        model,
        numbers(seed, 5, 3),
        seed,
        layers=[
            ["late.weight", "late.bias", "again.bias"],
            ["first.weight", "first.bias"],
            ["middle.0.weight", "middle.0.bias"],
            ["middle.1.weight", "middle.1.bias", "middle.1.weight_bias", "end.weight"],
        ],
    )
    assert gradients._plan is not None
    assert [name for layer, _ in gradients._plan.layers for name in layer.names] != names, "tests no reordering"


def test_live_counts_live_coordinates_of_each_parameter_once():
    model = Tied(bias=True)
    model.middle.weight.requires_grad_(False)
    tensors = {name: torch.ones_like(value, dtype=torch.bool) for name, value in model.named_parameters()}
    tensors["table.weight"][2:] = False
    assert RecordGradients(model, Mask(tensors), squared_error).live == 2 * 3 + 3 + 6


def test_kinds_of_layer():
    """One Linear layer on one row a record, and one table used once, are never written out in full."""
    model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 2), nn.Flatten(), nn.Linear(6, 4), nn.LayerNorm(4)).double()
    gradients = RecordGradients(model, Mask.dense(model), squared_error)
    gradients.check(torch.zeros(2, 3, dtype=torch.long), torch.zeros(2))
    assert gradients._plan is not None
    assert [type(layer) for layer, _ in gradients._plan.layers] == [
        EmbeddingLayer,
        explicit_layer.ExplicitLayer,
        LinearLayer,
        explicit_layer.ExplicitLayer,
    ]


@pytest.mark.parametrize("chunk", [1, 40, 10**9])
@pytest.mark.parametrize("seed", [0, 1])
def test_pieces_change_nothing(monkeypatch, chunk, seed):
    """Neither how many images are unfolded at a time, nor how many records are mapped at a time."""
    monkeypatch.setattr(explicit_layer, "CHUNK", chunk)
    monkeypatch.setattr(rules, "PATCHES", chunk)
    check(assorted(), numbers(6, 7, 2, 4), seed + 14)
    model = nn.Sequential(nn.Conv2d(2, 3, 2), nn.Tanh(), nn.Conv2d(3, 2, 1)).double()
    mask, x, y = Mask.dense(model), numbers(seed, 5, 2, 3, 3), numbers(seed + 1, 5)
    gradients = RecordGradients(model, mask, squared_error)
    expected = naive_gradients(model, mask, x, y)
    assert all(bool((values != 0).any(1).all()) for values in expected.values()), "a record has nothing to lose"
    for filter in filters_for(1.0):
        wanted = naive_sum(expected, filter, gradients.rounding, own_layers(model))
        torch.testing.assert_close(gradients.filtered_sum(x, y, filter).values, wanted, rtol=1e-10, atol=1e-10)


# Rows that only fill the batch


def everything(x: Tensor, y: Tensor, gradients: RecordGradients, present: Tensor | None) -> Iterable[Tensor]:
    for filter in filters_for(3.0):
        result = gradients.filtered_sum(x, y, filter, present)
        assert result.skipped == 0, filter
        yield result.values


PADDED = {
    "vector": (lambda: nn.Sequential(nn.Linear(4, 3), nn.ReLU(inplace=True), nn.Linear(3, 2)), (4,), False),
    "assorted": (assorted, (2, 4), False),
    "table": (lambda: nn.Sequential(nn.Embedding(5, 2, padding_idx=0), nn.Flatten(), nn.Linear(8, 2)), (4,), True),
    "tied": (lambda: Tied(bias=True), (4,), True),
    "cell": (lambda: Loop("lstm", bias=True, start=True), (4, 2), False),
    "custom": (UsesHandwritten, (3,), False),
    "whole": (TimeFirst, (4, 2), False),
    "whole table": (Borrows, (4,), True),
}


def padded(case: str) -> tuple[RecordGradients, Tensor, Tensor]:
    """A network of ``PADDED``, and seven records for it."""
    make, shape, tokens = PADDED[case]
    model = make()
    generator = torch.Generator().manual_seed(3)
    x = torch.randint(0, 5, (7, *shape), generator=generator) if tokens else numbers(3, 7, *shape)
    return RecordGradients(model, prepared(model, 2), squared_error), x, numbers(4, 7)


@pytest.mark.parametrize("case", list(PADDED))
def test_rows_that_are_not_present_count_for_nothing(case):
    """Neither do gradients that are not finite, which are not counted as skipped."""
    gradients, x, y = padded(case)
    assert gradients.live
    present = torch.tensor([True, False, True, True, False, False, True])
    without = list(everything(x[present], y[present], gradients, None))
    for filler in (0.0, 5.0, 1e9, 1e300, math.inf, math.nan):
        y[~present] = filler
        if x.is_floating_point():
            x[~present] = filler
        for found, expected in zip(everything(x, y, gradients, present), without, strict=True):
            torch.testing.assert_close(
                found, expected, rtol=1e-12, atol=1e-12, msg=lambda text, filler=filler: f"{filler}: {text}"
            )
    for found, expected in zip(
        everything(x[present], y[present], gradients, torch.ones(4, dtype=torch.bool)), without, strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("case", list(PADDED))
def test_a_record_that_is_not_finite_is_skipped_and_counted_among_padding(case):
    """Rows 1 and 4 are padding and not finite, row 2 is a record and not finite: only that is counted."""
    gradients, x, y = padded(case)
    good = torch.tensor([True, False, False, True, False, False, True])
    without = list(everything(x[good], y[good], gradients, None))
    y[[1, 2, 4]] = math.nan
    present = good | (torch.arange(7) == 2)
    for filter, expected in zip(filters_for(3.0), without, strict=True):
        result = gradients.filtered_sum(x, y, filter, present)
        assert result.skipped == 1
        torch.testing.assert_close(result.values, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("case", list(PADDED))
def test_a_batch_of_padding_alone_is_zero(case):
    gradients, x, y = padded(case)
    for fill in (1.0, math.nan):
        y[:] = fill
        for values in everything(x, y, gradients, torch.zeros(7, dtype=torch.bool)):
            assert values.tolist() == [0.0] * gradients.live
