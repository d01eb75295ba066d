"""What a plan refuses, in which words; what it does not wrongly refuse; and that probing a network leaves no trace."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from dpltm.errors import InputError
from dpltm.filters import Clip
from dpltm.gradients import RecordGradients
from dpltm.masks import Mask
from gradient_cases import Applied

Loss = Callable[[Tensor, Tensor], Tensor]


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Networks, hence where mixing is seen first, are the same every time."""
    torch.manual_seed(0)


def total(outputs: Tensor, labels: Tensor) -> Tensor:
    """A loss that takes outputs of any shape."""
    return (outputs.flatten(1).sum(1) - labels) ** 2


def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, labels, reduction="none")


def between(middle: Callable[[Tensor], Tensor]) -> nn.Module:
    """A network of two layers with something without parameters in between."""
    return nn.Sequential(nn.Linear(3, 4), Applied(lambda _, x: middle(x)), nn.Linear(4, 3))


def check(model: nn.Module, loss: Loss, x: Tensor, y: Tensor) -> RecordGradients:
    gradients = RecordGradients(model, Mask.dense(model), loss)
    gradients.check(x, y)
    return gradients


def refusal(model: nn.Module, loss: Loss = total, x: Tensor | None = None, y: Tensor | None = None) -> str:
    """The message of the refusal of one."""
    x = torch.randn(5, 3) if x is None else x
    with pytest.raises(InputError) as error:
        check(model, loss, x, torch.zeros(len(x)) if y is None else y)
    return str(error.value)


LOOK_UP = torch.zeros(5, 4, dtype=torch.long)

# Modules refused for what they are.


@pytest.mark.parametrize(
    "module",
    [
        nn.BatchNorm1d(4),
        nn.BatchNorm1d(4, affine=False, track_running_stats=False),
        nn.BatchNorm2d(4),
        nn.SyncBatchNorm(4),
    ],
    ids=repr,
)
def test_batch_normalisation_is_refused_wherever_it_is(module):
    model = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.ReLU(), module))
    for mode in (True, False):
        with pytest.raises(InputError) as error:
            RecordGradients(model.train(mode), Mask.dense(model), total)
        assert str(error.value) == (
            "model: 1.1 is a batch normalisation: it mixes records, and no bound would hold; use nn.GroupNorm or"
            " nn.LayerNorm"
        )


@pytest.mark.parametrize("module", [nn.InstanceNorm1d, nn.InstanceNorm2d], ids=lambda kind: kind.__name__)
def test_running_statistics_are_refused(module):
    model = nn.Sequential(nn.Linear(3, 4), module(4, track_running_stats=True))
    with pytest.raises(InputError) as error:
        RecordGradients(model, Mask.dense(model), total)
    assert str(error.value) == (
        "model: 1 keeps running statistics of the records outside the ledger; use track_running_stats=False"
    )


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag], ids=lambda kind: kind.__name__)
def test_embeddings_that_look_at_the_batch_are_refused(kind):
    for options, message in (
        (
            {"scale_grad_by_freq": True},
            "scales gradients by frequency in the batch, which mixes records; leave it out",
        ),
        ({"max_norm": 1.0}, "has max_norm, which changes weights by the records outside the ledger; leave it out"),
    ):
        model = kind(7, 2, **options)
        with pytest.raises(InputError) as error:
            RecordGradients(model, Mask.dense(model), total)
        assert str(error.value) == f"model: {kind.__name__} {message}"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_parameters_of_half_precision_are_refused(dtype):
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4).to(dtype))
    with pytest.raises(InputError) as error:
        RecordGradients(model, Mask.dense(model), total)
    assert str(error.value) == (
        f"model parameter 1.weight: dtype {dtype}; the bound is proven for float32 and float64 only"
    )


def test_nothing_to_train_is_refused():
    assert refusal(nn.Linear(3, 2).requires_grad_(False)) == (
        "model: every parameter is frozen (requires_grad=False), so there is nothing to train"
    )
    assert refusal(nn.ReLU()) == "model: every parameter is frozen (requires_grad=False), so there is nothing to train"


def test_a_mask_of_another_shape_is_refused():
    model, other = nn.Conv1d(3, 2, 3), nn.Conv1d(3, 2, 2)
    with pytest.raises(InputError) as error:
        RecordGradients(model, Mask.dense(other), total)
    assert str(error.value) == "mask weight: shape (2, 3, 2) in the mask, (2, 3, 3) in the network; they must match"
    with pytest.raises(InputError) as error:
        RecordGradients(model, Mask({"weight": Mask.dense(model)["weight"]}), total)
    assert str(error.value) == "mask bias: shape None in the mask, (2,) in the network; they must match"


# Losses.


@pytest.mark.parametrize(
    ("loss", "shape"),
    [
        (lambda out, y: total(out, y).mean(), "()"),
        (lambda out, y: total(out, y).sum(), "()"),
        (lambda out, _: out, "(11, 2)"),
        (lambda out, y: total(out, y)[:, None], "(11, 1)"),
        (lambda out, y: total(out, y)[1:], "(10,)"),
    ],
    ids=["mean", "sum", "outputs", "column", "one less"],
)
def test_a_loss_that_is_not_one_value_a_record_is_refused(loss, shape):
    assert refusal(nn.Linear(3, 2), loss) == (
        f"loss: shape {shape}, expected one value for each of 11 records; use reduction='none'"
    )


@pytest.mark.parametrize(
    "loss",
    [
        lambda out, y: total(out.detach(), y),
        lambda _, y: y * 1.0,
        lambda out, _: torch.zeros(len(out)).requires_grad_(),
    ],
    ids=["detached", "labels", "leaf"],
)
def test_a_loss_that_does_not_depend_on_the_parameters_is_refused(loss):
    if loss(torch.ones(2, 2), torch.ones(2)).requires_grad:  # zero gradients are what it asks for
        gradients = check(nn.Linear(3, 2), loss, torch.ones(5, 3), torch.ones(5))
        assert gradients.filtered_sum(torch.ones(5, 3), torch.ones(5), Clip(1.0)).values.tolist() == [0.0] * 8
    else:
        assert refusal(nn.Linear(3, 2), loss) == "loss: does not depend on any parameter of the model"


# Records that are mixed.

MIXED = (
    "model or loss: what one record gives depends on others (seen at {}): no bound would hold; leave out whatever averages"
    " or compares over records, in the model and in the loss, divides by the length of the batch, or takes another dimension"
    " than 0 (batch_first) for the record"
)


MIXTURES: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda x: x - x.mean(0),
    "std": lambda x: x / x.std(0),
    "norm": lambda x: x / x.norm(),
    "softmax": lambda x: x.softmax(0),
    "attention": lambda x: (x @ x.T).softmax(1) @ x,
    "roll": lambda x: x.roll(1, 0),
    "flip": lambda x: x.flip(0),
    "cumsum": lambda x: x.cumsum(0),
    "max": lambda x: x + x.max(0).values,
    "sort": lambda x: x.sort(0).values,
    "batch_norm": lambda x: functional.batch_norm(x, None, None, training=True),
    "reshape": lambda x: x.reshape(4, -1).T,
    "first": lambda x: x - x[:1],
    "last": lambda x: x - x[-1:],
}


@pytest.mark.parametrize("name", MIXTURES)
def test_mixing_by_hand_between_layers_is_refused(name):
    place = "a Linear" if name == "last" else "the loss"  # the first record moves the last one's gradient alone
    assert refusal(between(MIXTURES[name])) == MIXED.format(place)


@pytest.mark.parametrize(
    "loss",
    [
        lambda out, y: total(out, y) / total(out, y).mean(),
        lambda out, y: total(out, y).mean().expand(len(y)),
        lambda out, y: total(out, y).softmax(0),
        lambda out, _: functional.cross_entropy(out @ out.T, torch.arange(len(out)), reduction="none"),
        lambda out, _: (out[:, None] - out).square().sum((1, 2)),
        lambda out, _: (out - out.roll(1, 0)).square().sum(1),
    ],
    ids=["over mean", "averaged", "softmax", "contrastive", "distances", "neighbour"],
)
def test_losses_that_compare_records_are_refused(loss):
    assert refusal(nn.Linear(3, 2), loss) == MIXED.format("the loss")


@pytest.mark.parametrize(
    ("layer", "x"),
    [
        (nn.Conv1d(3, 2, 2), torch.zeros(5, 3, 6)),
        (nn.Conv2d(1, 2, 2), torch.zeros(5, 1, 4, 4)),
        (nn.Embedding(7, 2), LOOK_UP),
        (nn.LayerNorm(4), torch.zeros(5, 6, 4)),
        (nn.GroupNorm(2, 4), torch.zeros(5, 4, 6)),
        (nn.RMSNorm(4), torch.zeros(5, 4)),
        (nn.Bilinear(3, 3, 2), torch.zeros(5, 3)),
        (nn.PReLU(), torch.zeros(5, 4)),
        (nn.Linear(4, 2), torch.zeros(5, 6, 4)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else None,
)
def test_mixing_is_seen_behind_every_kind_of_layer(layer, x):
    for value in layer.parameters():
        nn.init.normal_(value)

    def forward(self: Applied, x: Tensor) -> Tensor:
        out = self.layer(x, x) if isinstance(layer, nn.Bilinear) else self.layer(x)
        return out - out.square().mean(0)

    assert refusal(Applied(forward, layer=layer), x=x) == MIXED.format("the loss")


def test_mixing_behind_recurrent_layers_is_refused():
    for kind in (nn.LSTM, nn.GRU, nn.RNN):
        model = Applied(
            lambda self, x: self.layer(x)[0] - self.layer(x)[0].mean(0), layer=kind(3, 2, batch_first=True)
        )
        assert refusal(model, x=torch.zeros(5, 4, 3)) == MIXED.format("the loss")


def test_attention_over_the_batch_is_refused():
    """Without batch_first, records take the place of positions."""
    model = Applied(lambda self, x: self.layer(x, x, x)[0], layer=nn.MultiheadAttention(4, 2))
    assert refusal(model, x=torch.zeros(5, 6, 4)) == MIXED.format("the loss")
    for dropout in (0.0, 0.1):
        encoder = nn.TransformerEncoderLayer(4, 2, 8, dropout=dropout)
        assert refusal(encoder, x=torch.zeros(5, 6, 4)) == MIXED.format("the loss")


class Centred(nn.Module):
    """A module with a parameter that mixes records inside."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean(0)) * self.scale


DO_NOT_ADD_UP = (
    "model: per-record gradients do not add up to the gradient of the batch, even one record at a time; is something in it"
    " random other than nn.Dropout?"
)


def test_mixing_inside_a_module_with_parameters_is_refused():
    for model in (nn.Sequential(nn.Linear(3, 3), Centred()), nn.Sequential(Centred(), nn.Linear(3, 3)), Centred()):
        assert refusal(model) == MIXED.format("the loss")


# State, failures, and what torch.func cannot take.


class Counting(nn.Module):
    """Updates a buffer in place with what it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += x.detach().sum(0)
        return x


def test_a_buffer_that_changes_with_the_records_is_refused():
    assert refusal(nn.Sequential(Counting(), nn.Linear(3, 2))) == (
        "model: 0.seen changes with the records it sees, outside the ledger; use a module without state"
    )


def test_randomness_other_than_dropout_is_refused():
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.scale * torch.rand(3)

    assert refusal(Noisy()) == DO_NOT_ADD_UP


@pytest.mark.parametrize(
    ("model", "loss", "y", "reason"),
    [
        (nn.Linear(4, 2), total, None, "mat1 and mat2 shapes cannot be multiplied (11x3 and 4x2)"),
        (
            Applied(lambda self, _: self.nothing, layer=nn.Linear(3, 2)),
            total,
            None,
            "'Applied' object has no attribute",
        ),
        (nn.Linear(3, 2), cross_entropy, torch.zeros(5, 7), "Expected floating point type for target"),
        (nn.Linear(3, 2), lambda _out, _y: {}["absent"], None, "'absent'"),
    ],
    ids=["shape", "attribute", "labels", "loss"],
)
def test_networks_that_fail_on_made_up_records_are_refused(model, loss, y, reason):
    y = y if y is None or y.ndim > 1 else y.long()
    message = refusal(model, loss, y=y)
    if reason.startswith("Expected floating"):
        reason = message.split(": ", 2)[2]  # torch's own words
    assert message.startswith(f"model or loss: fails on 11 made-up records of shape (3,): {reason}")


class Square(torch.autograd.Function):
    """Works in plain PyTorch, and without setup_context not in torch.func."""

    @staticmethod
    def forward(context, x: Tensor, weight: Tensor) -> Tensor:
        context.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(context, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = context.saved_tensors
        return gradient * weight, (gradient * x).sum(0)


def scaled(how: Callable[[Tensor, Tensor], Tensor]) -> nn.Module:
    """A module with a parameter and no rule."""
    return Applied(lambda self, x: how(x, self.scale), scale=nn.Parameter(torch.ones(3)))


@pytest.mark.parametrize(
    "model",
    [
        scaled(Square.apply),
        scaled(lambda x, scale: x * scale if repr(x.sum().item()) else x),
        scaled(lambda x, scale: scale * torch.from_numpy(x.detach().numpy())),
    ],
    ids=["autograd function", "item", "numpy"],
)
def test_what_torch_func_cannot_take_is_refused(model):
    message = refusal(model)
    assert message.startswith("model: torch.func cannot take a Applied one record at a time (")
    assert message.endswith("); use modules with a rule of their own")


def test_a_custom_function_without_parameters_is_none_of_its_business():
    model = nn.Sequential(nn.Linear(3, 3), Applied(lambda _, x: Square.apply(x, torch.ones(3))), nn.Linear(3, 2))
    assert not check(model, total, torch.ones(5, 3), torch.ones(5))._plan.whole


@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_recurrent_modules_without_a_rule_are_refused():
    def packed(self: Applied, x: Tensor) -> Tensor:
        sequence = pack_padded_sequence(x, torch.full((len(x),), x.shape[1]), batch_first=True)
        return pad_packed_sequence(self.layer(sequence)[0], batch_first=True)[0]

    model = Applied(packed, layer=nn.GRU(3, 2, batch_first=True))
    assert refusal(model, x=torch.zeros(5, 4, 3)) == "model: a GRU saw other than a batch of sequences of one length"
    model = Applied(lambda self, x: self.layer(x)[0], layer=nn.LSTM(3, 2, proj_size=1, batch_first=True))
    assert refusal(model, x=torch.zeros(5, 4, 3)) == (
        "model: LSTM with proj_size has no per-record rule; use proj_size=0"
    )


# What is not to be refused.


def accepted(model: nn.Module, x: Tensor, loss: Loss = total) -> RecordGradients:
    """Checked, and of the right sum on five records: one record at a time by plain autograd."""
    generator = torch.Generator().manual_seed(0)
    y = torch.rand(len(x), generator=generator)
    gradients = check(model, loss, x, y)
    found = gradients.filtered_sum(x, y, Clip(1e6))
    expected = torch.zeros(gradients.live, dtype=torch.float64)
    for record, label in zip(x, y, strict=True):
        value = loss(model(record[None]), label[None]).sum()
        parts = torch.autograd.grad(value, [p for p in model.parameters() if p.requires_grad], allow_unused=True)
        free = [p for p in model.parameters() if p.requires_grad]
        flat = [torch.zeros_like(p) if part is None else part for p, part in zip(free, parts, strict=True)]
        expected += torch.cat([part.flatten().double() for part in flat])
    assert found.skipped == 0
    assert float(expected.abs().max()) > 0
    torch.testing.assert_close(found.values, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))
    return gradients


def tied() -> nn.Module:
    model = Applied(lambda self, x: self.out(self.table(x)), table=nn.Embedding(7, 3), out=nn.Linear(3, 7, bias=False))
    model.out.weight = model.table.weight
    return model


def doubled() -> nn.Module:
    layer = nn.Linear(3, 2)
    layer.register_forward_hook(lambda _module, _inputs, output: 2 * output)
    return layer


ACCEPTED = {
    "instance norm": (lambda: nn.Sequential(nn.InstanceNorm1d(4, affine=True), nn.ReLU(), nn.Conv1d(4, 2, 1)), (4, 6)),
    "over features": (lambda: between(lambda x: (x - x.mean(1, keepdim=True)).softmax(1)), (3,)),
    "flatten": (lambda: nn.Sequential(nn.Conv2d(1, 2, 2), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(18, 2)), (1, 4, 4)),
    "positions as rows": (lambda: Applied(lambda s, x: s.l(x.flatten(0, 1)).view(len(x), -1), l=nn.Linear(3, 2)), (4, 3)),
    "time first": (lambda: Applied(lambda s, x: s.l(x.transpose(0, 1))[0][-1], l=nn.GRU(3, 2)), (4, 3)),
    "time first linear": (lambda: Applied(lambda s, x: s.l(x.transpose(0, 1)).sum(0), l=nn.Linear(3, 2)), (4, 3)),
    "constants": (
        lambda: Applied(lambda s, x: s.a(x) @ s.b(s.t).T, a=nn.Linear(3, 2), b=nn.Linear(4, 2), t=torch.ones(5, 4)), (3,)
    ),
    "bare parameter": (lambda: scaled(lambda x, scale: (x * scale).cumsum(1)), (3,)),
    "bilinear": (lambda: Applied(lambda s, x: s.l(x, x.exp()), l=nn.Bilinear(3, 3, 2)), (3,)),
    "attention": (lambda: Applied(lambda s, x: s.l(x, x, x)[0], l=nn.MultiheadAttention(4, 2, batch_first=True)), (6, 4)),
    "spectral": (lambda: nn.Sequential(parametrizations.orthogonal(nn.Linear(3, 3)), nn.Linear(3, 2)), (3,)),
    "hook": (doubled, (3,)),
    "unused": (lambda: Applied(lambda s, x: s.a(x), a=nn.Linear(3, 2), b=nn.Linear(9, 9)), (3,)),
    "eval dropout between layers": (
        lambda: Applied(lambda s, x: s.l(x)[0], l=nn.LSTM(3, 2, 2, dropout=0.5, batch_first=True)).eval(), (4, 3)
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", ACCEPTED)
def test_what_keeps_records_apart_is_accepted(name):
    torch.manual_seed(0)
    build, shape = ACCEPTED[name]
    accepted(build(), torch.randn(5, *shape))


def test_tokens_are_accepted():
    torch.manual_seed(0)
    x = torch.randint(0, 7, (5, 4))
    accepted(nn.Embedding(7, 2, padding_idx=0), x)
    accepted(tied(), x)


def test_frozen_parts_are_accepted():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4).requires_grad_(False), nn.ReLU(), nn.Linear(4, 2))
    assert accepted(model, torch.randn(5, 3)).live == 10
    model[2].weight.requires_grad_(False)
    assert accepted(model, torch.randn(5, 3)).live == 2


def test_one_record_and_no_record_are_enough_to_check():
    for records in (0, 1):
        gradients = check(nn.Linear(3, 2), total, torch.ones(records, 3), torch.ones(records))
        assert gradients.filtered_sum(torch.ones(5, 3), torch.ones(5), Clip(1.0)).values.count_nonzero() == 8


def test_parameters_that_are_zero_or_absurd_are_accepted():
    """A network of zeros would hide every mistake, and one of infinities would have no gradient to compare."""
    for value in (0.0, 1e30, -1e30, math.inf, math.nan):
        model = nn.Sequential(nn.Conv1d(2, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(15, 2))
        with torch.no_grad():
            for weight in model.parameters():
                weight.fill_(value)
        gradients = check(model, total, torch.ones(5, 2, 6), torch.ones(5))
        assert not gradients._plan.whole


def test_dropout_is_accepted_and_differs_between_records():
    """Both by the rules and, between two of them, where a module goes through torch.func."""
    for last in (nn.Linear(64, 1, bias=False), nn.Sequential(scaled_row(64))):
        model = nn.Sequential(nn.Linear(3, 64), nn.Dropout(0.5), last)
        gradients = check(model, lambda out, _: out.flatten(1).sum(1), torch.ones(5, 3), torch.zeros(5))
        torch.manual_seed(3)
        alike = torch.ones(8, 3)
        dropped = []
        for record in range(8):
            torch.manual_seed(3)
            present = torch.arange(8) == record
            values = gradients.filtered_sum(alike, torch.zeros(8), Clip(1e6), present).values
            dropped.append(tuple((values[-64:] == 0).tolist()))
        assert len(set(dropped)) == 8
        assert all(10 < sum(mask) < 54 for mask in dropped)


def scaled_row(width: int) -> nn.Module:
    return Applied(lambda self, x: x * self.scale, scale=nn.Parameter(torch.ones(width)))


def test_dropout_is_drawn_anew_every_time():
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(64, 1))
    gradients = check(model, total, torch.ones(1, 64), torch.ones(1))
    found = [gradients.filtered_sum(torch.ones(1, 64), torch.ones(1), Clip(1.0)).values for _ in range(2)]
    assert not torch.equal(found[0] == 0, found[1] == 0)


# Probing leaves no trace.


def traces(model: nn.Module) -> list[object]:
    """Everything about a network that probing might change, comparable."""
    values = [(name, value.detach().clone().numpy().tobytes()) for name, value in model.state_dict().items()]
    grads = [None if p.grad is None else (id(p.grad), p.grad.tolist()) for p in model.parameters()]
    flags = [
        (module.training, len(module._forward_hooks), len(module._forward_pre_hooks)) for module in model.modules()
    ]
    backward = [(len(module._backward_hooks), len(module._backward_pre_hooks)) for module in model.modules()]
    wanted = [(p.requires_grad, id(p), p.data_ptr(), p._backward_hooks) for p in model.parameters()]
    return [values, grads, flags, backward, wanted, torch.get_rng_state().tolist(), torch.is_grad_enabled()]


def fails(_: Tensor) -> Tensor:
    raise ValueError("no")


PROBED = {
    "rules": (lambda: nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.GroupNorm(2, 4), nn.Linear(4, 2)), True),
    "torch.func": (lambda: nn.Sequential(nn.Linear(3, 3), scaled_row(3), nn.Dropout(0.5)), True),
    "whole": (lambda: Applied(lambda s, x: s.l(x) + s.l.weight.sum(), l=nn.Linear(3, 2)), True),
    "mixed": (lambda: between(lambda x: x - x.mean(0)), False),
    "mixed inside": (Centred, False),
    "failing": (lambda: between(fails), False),
    "random": (lambda: scaled(lambda x, scale: x * scale * torch.rand(3)), False),
    "not torch.func": (lambda: scaled(Square.apply), False),
}


@pytest.mark.parametrize("name", PROBED)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_probing_leaves_no_trace_even_where_it_refuses(name, training):
    build, good = PROBED[name]
    model = build().train(training)
    children = list(model.children())
    if children:
        children[-1].train(not training)
    model.register_buffer("constant", torch.tensor([math.nan, 1.0]))
    for number, weight in enumerate(model.parameters()):
        weight.data.view(-1)[0] = (-0.0, math.nan, 1e-45, -math.inf, 3e38, 0.0)[number % 6]
        weight.grad = torch.full_like(weight, 7.0)
    model.register_forward_hook(lambda *_: None)
    torch.manual_seed(11)
    torch.rand(3)
    before = traces(model)
    mask = Mask.dense(model)
    gradients = RecordGradients(model, mask, total)
    x, y = torch.full((4, 3), math.nan, requires_grad=True), torch.full((4,), math.nan)
    with torch.no_grad():
        if good:
            gradients.check(x, y)
        else:
            with pytest.raises(InputError):
                gradients.check(x, y)
        assert not torch.is_grad_enabled()
    assert traces(model) == before
    assert x.grad is None
    assert bool(x.isnan().all())


@pytest.mark.parametrize("value", [0.0, math.nan, math.inf, 1e30, 1e-45])
def test_the_plan_does_not_depend_on_values(value):
    """What model and loss see while it is made is the same, bit for bit, whatever the records hold."""
    seen: list[bytes] = []

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        seen.extend(values.detach().numpy().tobytes() for values in (outputs, labels))
        return total(outputs, labels)

    def forward(self: Applied, x: Tensor) -> Tensor:
        seen.append(x.numpy().tobytes())
        return self.second(self.first(x))

    plans = []
    for fill in (0.5, value):
        torch.manual_seed(0)
        model = Applied(forward, first=nn.Linear(3, 4), second=nn.Linear(4, 2))
        seen.clear()
        plan = check(model, loss, torch.full((9, 3), fill), torch.full((9,), fill))._plan
        plans.append(([type(layer) for layer, _ in plan.layers], plan.copy, plan.whole, plan.floats, tuple(seen)))
    assert len(plans[0][-1]) > 3
    assert plans[0] == plans[1]


def test_tokens_are_not_read_either():
    """Tokens beyond the table would fail, were they looked up."""
    x = torch.full((5, 4), 10**12)
    gradients = check(nn.Embedding(7, 2), total, x, torch.zeros(5))
    assert gradients.filtered_sum(x % 7, torch.zeros(5), Clip(1.0)).values.count_nonzero() > 0


def test_the_plan_is_made_once_and_before_any_record_is_touched():
    """A refusal at the first batch is the same refusal, and a second batch asks nothing more."""
    model = between(lambda x: x - x.mean(0))
    gradients = RecordGradients(model, Mask.dense(model), total)
    for _ in range(2):
        with pytest.raises(InputError) as error:
            gradients.filtered_sum(torch.ones(5, 3), torch.ones(5), Clip(1.0))
        assert str(error.value) == MIXED.format("the loss")
    good = nn.Linear(3, 2)
    gradients = check(good, total, torch.ones(5, 3), torch.ones(5))
    plan = gradients._plan
    gradients.filtered_sum(torch.ones(5, 3), torch.ones(5), Clip(1.0))
    assert gradients._plan is plan


def test_a_copy_of_a_checked_network_needs_a_check_of_its_own():
    """Rules hold on to the modules that they watched."""
    model = nn.Sequential(nn.Linear(3, 2))
    other = copy.deepcopy(model)
    for one in (model, other):
        accepted(one, torch.randn(5, 3))
