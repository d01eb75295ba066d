"""What trying a network out finds: records that are mixed in any way, and state; what it accepts gets the right sum."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import prune, spectral_norm, weight_norm
from torch.utils.checkpoint import checkpoint

from dpltm.errors import InputError
from dpltm.filters import Clip
from dpltm.gradients import RecordGradients
from dpltm.gradients.probe import LENGTHS, MadeUp
from dpltm.masks import Mask
from gradient_cases import Applied

Loss = Callable[[Tensor, Tensor], Tensor]

REMEDY = (
    "no bound would hold; leave out whatever averages or compares over records, in the model and in the loss, divides by the"
    " length of the batch, or takes another dimension than 0 (batch_first) for the record"
)
OTHERS = "model or loss: what one record gives depends on others (seen at {}): " + REMEDY
LENGTH = "model or loss: what one record gives depends on how many there are (seen at {}): " + REMEDY
STATE = "model: {} changes with the records it sees, outside the ledger; use a module without state"
ANOTHER = "model: gives another answer to the same records; does it keep a state, or draw from elsewhere than torch?"


def squared(outputs: Tensor, labels: Tensor) -> Tensor:
    """A loss for outputs of any shape."""
    return (outputs.flatten(1) - labels[:, None]).square().sum(1) / 2


def entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, labels, reduction="none")


def of(function: Callable[[Tensor], Tensor]) -> nn.Module:
    """A module without parameters."""
    return Applied(lambda _, x: function(x))


def before(function: Callable[[Tensor], Tensor]) -> nn.Module:
    return nn.Sequential(of(function), nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def between(function: Callable[[Tensor], Tensor]) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), of(function), nn.ReLU(), nn.Linear(8, 3))


def behind(function: Callable[[Tensor], Tensor]) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3), of(function))


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


once = pytest.mark.parametrize("_products", ["dense"], indirect=True)
"""Once, not with sparse products too: what is refused has no plan, and in other plans no layer takes products."""

X, CLASSES = torch.zeros(4, 6), torch.tensor([0, 1, 2, 2])


def checked(model: nn.Module, loss: Loss = entropy, x: Tensor = X, y: Tensor = CLASSES) -> RecordGradients:
    gradients = RecordGradients(model, Mask.dense(model), loss)
    gradients.check(x, y)
    return gradients


def refusal(model: nn.Module, loss: Loss = entropy, x: Tensor = X, y: Tensor | None = None) -> str:
    """The message of the refusal of one."""
    y = (CLASSES if loss is not squared else torch.zeros(len(x), dtype=torch.float64)) if y is None else y
    with pytest.raises(InputError) as error:
        checked(model, loss, x, y)
    return str(error.value)


def naive(model: nn.Module, loss: Loss, x: Tensor, y: Tensor) -> Tensor:
    """The sum of gradients, one record at a time."""
    parameters = [value for value in model.parameters() if value.requires_grad]
    total = torch.zeros(sum(value.numel() for value in parameters), dtype=torch.float64)
    for record in range(len(x)):
        value = loss(model(x[record : record + 1]), y[record : record + 1]).sum()
        found = torch.autograd.grad(value, parameters, allow_unused=True)
        total += torch.cat(
            [
                torch.zeros_like(p).flatten() if g is None else g.to_dense().flatten()
                for p, g in zip(parameters, found, strict=True)
            ]
        )
    return total


def right(model: nn.Module, x: Tensor, loss: Loss = squared, y: Tensor | None = None) -> RecordGradients:
    """Accepted, and of the right sum in float64."""
    torch.manual_seed(1)
    model = model.double()
    x = x.double() if x.is_floating_point() else x
    y = torch.randn(len(x), dtype=torch.float64) if y is None else y
    gradients = checked(model, loss, x, y)
    expected = naive(model, loss, x, y)
    assert float(expected.abs().max()) > 1e-3
    result = gradients.filtered_sum(x, y, Clip(1e6))
    assert result.skipped == 0
    torch.testing.assert_close(result.values / gradients.rounding, expected, rtol=1e-8, atol=1e-8)
    return gradients


# Records that are mixed.


def odd(x: Tensor) -> Tensor:
    """Every second record minus the one before."""
    out = x.clone()
    out[1::2] = x[1::2] - x[::2][: len(x[1::2])]
    return out


def in_chunks(x: Tensor) -> Tensor:
    return torch.cat([part - part.mean(0) if len(part) > 3 else part for part in x.split(4)])


MODELS: dict[str, Callable[[], nn.Module]] = {
    "input mean": lambda: before(lambda x: x - x.mean(0)),
    "input standardised": lambda: before(lambda x: (x - x.mean(0)) / (x.std(0) + 1e-5)),
    "input over maximum": lambda: before(lambda x: x / x.abs().max()),
    "input roll": lambda: before(lambda x: x.roll(1, 0)),
    "input scaled if large": lambda: before(lambda x: x / 255 if x.max() > 5 else x),
    "input batch_norm": lambda: before(lambda x: functional.batch_norm(x, None, None, training=True)),
    "input pairs": lambda: before(odd),
    "mean": lambda: between(lambda x: x - x.mean(0)),
    "softmax": lambda: between(lambda x: x.softmax(0)),
    "roll": lambda: between(lambda x: x.roll(1, 0)),
    "attention": lambda: between(lambda x: (x @ x.T).softmax(1) @ x),
    "pairs": lambda: between(odd),
    "detached std": lambda: between(lambda x: x / x.detach().std(0)),
    "detached mean": lambda: between(lambda x: x - x.detach().mean(0)),
    "detached attention": lambda: between(lambda x: (x @ x.T).detach().softmax(1) * len(x) @ x),
    "above mean": lambda: between(lambda x: x * (x > x.mean(0))),
    "rank": lambda: between(lambda x: x * (x.argsort(0).argsort(0) < len(x) // 2)),
    "sorted": lambda: between(lambda x: x.sort(0).values),
    "more than three": lambda: between(lambda x: x - x.mean(0) if len(x) > 3 else x),
    "chunks of four": lambda: between(in_chunks),
    "outputs over detached std": lambda: behind(lambda x: x / x.detach().std()),
    "mixup": lambda: between(lambda x: x.lerp(x[torch.randperm(len(x))], 0.3)),
    "item": lambda: between(lambda x: x * (1 if x.sum().item() > 0 else 2)),
    "backward": lambda: between(lambda x: _hooked(x, lambda gradient: gradient / gradient.norm())),
}


def _hooked(x: Tensor, hook: Callable[[Tensor], Tensor]) -> Tensor:
    out = x * 1
    out.register_hook(hook)
    return out


@once
@pytest.mark.parametrize("name", MODELS)
def test_models_that_mix_records_are_refused(name):
    place = "a Linear" if name == "backward" else "the loss"
    assert refusal(MODELS[name]()) == OTHERS.format(place)


LOSSES: dict[str, Loss] = {
    "over mean": lambda o, y: entropy(o, y) / entropy(o, y).mean(),
    "over detached mean": lambda o, y: entropy(o, y) / entropy(o, y).detach().mean(),
    "mean for everybody": lambda o, y: entropy(o, y).mean().expand(len(y)),
    "over class count": lambda o, y: entropy(o, y) / torch.bincount(y, minlength=3)[y],
    "class weights": lambda o, y: entropy(o, y) * len(y) / torch.bincount(y, minlength=3)[y],
    "above mean": lambda o, y: entropy(o, y) * (entropy(o, y) >= entropy(o, y).mean()).detach(),
    "largest": lambda o, y: (
        entropy(o, y) * (entropy(o, y) >= entropy(o, y).detach().topk(max(1, len(y) // 4)).values[-1])
    ),
    "contrastive": lambda o, _: entropy(o @ o.T, torch.arange(len(o))),
    "contrastive detached keys": lambda o, _: entropy(o @ o.detach().T, torch.arange(len(o))),
    "over maximum": lambda o, y: (entropy(o, y) / entropy(o, y).max().detach()) ** 2,
    "labels minus mean": lambda o, y: (o[:, 0] - (y.double() - y.double().mean())) ** 2,
    "other labels": lambda o, y: 0.5 * entropy(o, y) + 0.5 * entropy(o, y.roll(1, 0)),
}


@once
@pytest.mark.parametrize("name", LOSSES)
def test_losses_that_mix_records_are_refused(name):
    assert refusal(plain(), LOSSES[name]) == OTHERS.format("the loss")


def test_labels_that_are_no_classes_are_replaced_too():
    assert refusal(plain(), lambda o, y: squared(o, y - y.mean()), y=torch.zeros(4)) == OTHERS.format("the loss")


WAYS: dict[str, Callable[[Tensor], Tensor]] = {
    "huge": lambda x: x / 255 if bool((x.abs() > 5).any()) else x,
    "zeros": lambda x: x / 2 if bool((x == 0).all(1).any()) else x,
    "not a number": lambda x: x.nan_to_num() * 2 if bool(x.isnan().any()) else x,
}


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("what", ["records", "labels"])
def test_what_mixes_only_where_a_record_is_odd_is_refused(name, what):
    """Each of these is seen by one kind of replacement alone."""
    if what == "records":
        message = refusal(before(WAYS[name]), squared)
    else:
        message = refusal(plain(), lambda o, y: squared(o, WAYS[name](y[:, None])[:, 0]), y=torch.zeros(4))
    assert message == OTHERS.format("the loss")


@pytest.mark.parametrize("record", [0, 1, 10])
def test_what_mixes_only_where_a_record_is_ordinary_is_refused(record):
    """A value between 0 and 1 that no other replacement and no other record takes."""
    x, y = MadeUp(X, torch.zeros(4), torch.float32).batch()
    wanted, label = 1 - x[record, 0], 1 - y[record]
    assert refusal(before(lambda x: x / 2 if bool((x == wanted).any()) else x), squared) == OTHERS.format("the loss")

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        return squared(outputs, labels / 2 if bool((labels == label).any()) else labels)

    assert refusal(plain(), loss, y=torch.zeros(4)) == OTHERS.format("the loss")


@pytest.mark.parametrize("record", [0, 1, -1])
def test_a_record_that_all_others_see_is_refused_wherever_it_is(record):
    model = between(lambda x: x - x[record].detach())
    assert refusal(model, x=X) == OTHERS.format("the loss")


def test_classes_are_replaced_for_every_record():
    for record in (0, 1, -1):
        assert refusal(plain(), lambda o, y, record=record: entropy(o, y) * (1 + y[record])) == OTHERS.format(
            "the loss"
        )


@once
@pytest.mark.parametrize("length", LENGTHS)
def test_each_length_is_tried(length):
    model = between(lambda x: x * (2 if len(x) == length else 1))
    assert refusal(model) == LENGTH.format("the loss")


def test_a_record_whose_terms_cancel_is_not_taken_for_one_that_depends_on_the_length():
    """What is left of it differs by far more than two parts in a thousand between kernels; to the others it is nothing."""

    def loss(o: Tensor, y: Tensor) -> Tensor:
        return entropy(o, y) * torch.cat([torch.tensor([1e-7 if len(y) == 1 else 2e-7]), torch.ones(len(y) - 1)])

    checked(plain(), loss, X, CLASSES)


def test_what_depends_on_the_length_is_refused():
    assert refusal(between(lambda x: x - x.mean(0) if len(x) > 16 else x)) == LENGTH.format("the loss")
    assert refusal(between(lambda x: x - x.mean(0) if len(x) > 32 else x)) == LENGTH.format("the loss")
    assert refusal(plain(), lambda o, y: entropy(o, y) / len(y)) == LENGTH.format("the loss")
    weighed = between(lambda x: _hooked(x, lambda gradient: gradient / len(gradient)))
    assert refusal(weighed) == LENGTH.format("a Linear")


def test_a_layer_called_once_more_in_a_long_batch_is_refused():
    def forward(self: Applied, x: Tensor) -> Tensor:
        out = self.layer(x)
        return out + 0 * self.layer(x) if len(x) > 20 else out

    assert refusal(Applied(forward, layer=nn.Linear(6, 3))) == LENGTH.format("the layers that are called")


def test_what_depends_on_the_length_is_refused_despite_dropout():
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    assert refusal(model, lambda o, y: entropy(o, y) / len(y)) == LENGTH.format("the loss")


def test_a_length_that_fails_is_refused():
    model = nn.Sequential(nn.Linear(6, 8), of(lambda x: x.squeeze().softmax(1)), nn.Linear(8, 3))
    reason = "Dimension out of range (expected to be in range of [-1, 0], but got 1)"
    assert refusal(model) == f"model or loss: fails on 1 made-up records: {reason}"


class Training(nn.Module):
    """Mixes records in one of the two modes."""

    def __init__(self, mode: bool) -> None:
        super().__init__()
        self.mode = mode

    def forward(self, x: Tensor) -> Tensor:
        return x - x.detach().mean(0) if self.training == self.mode else x


@pytest.mark.parametrize("mode", [True, False])
def test_a_mode_that_mixes_records_is_refused_once_it_is_switched_on(mode):
    model = nn.Sequential(nn.Linear(6, 8), Training(mode), nn.Linear(8, 3)).train(not mode)
    gradients = checked(model)
    plan = gradients._plan
    assert gradients.filtered_sum(torch.rand(4, 6), CLASSES, Clip(1.0)).values.count_nonzero() > 0
    assert gradients._plan is plan
    model[1].train(mode)  # it alone
    for _ in range(2):  # and stays refused
        with pytest.raises(InputError) as error:
            gradients.filtered_sum(torch.rand(4, 6), CLASSES, Clip(1.0))
        assert str(error.value) == OTHERS.format("the loss")


def test_sorting_records_and_back_is_refused():
    """Every record's output is its own, but what layers see in a row is another's."""

    def forward(self: Applied, x: Tensor) -> Tensor:
        order = (x != 0).sum(1).argsort(descending=True, stable=True)
        inner = torch.relu(self.inner(self.table(x[order]).mean(1)))
        return self.out(inner[order.argsort()])

    model = Applied(
        forward, table=nn.Embedding(9, 4, padding_idx=0), inner=nn.Linear(4, 8), out=nn.Linear(8, 2)
    ).double()
    message = refusal(model, x=torch.zeros(4, 6, dtype=torch.long))
    assert message == OTHERS.format("a Embedding")


def test_sorting_is_seen_where_losses_and_gradients_are_alike():
    """Only what layers see tells, in whichever dimension the records are."""

    def by_table(self: Applied, x: Tensor) -> Tensor:
        order = x.sum(1).argsort(stable=True)
        return self.layer(x[order])[order.argsort()]

    def by_time(self: Applied, x: Tensor) -> Tensor:
        order = x.sum((1, 2)).argsort(stable=True)
        return self.layer(x[order].transpose(0, 1))[0].transpose(0, 1)[order.argsort()]

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        return outputs.flatten(1).sum(1) + 0 * labels

    table = Applied(by_table, layer=nn.Embedding(9, 4))
    assert refusal(table, loss, torch.zeros(4, 6, dtype=torch.long)) == OTHERS.format("a Embedding")
    assert refusal(Applied(by_time, layer=nn.RNN(3, 2)), loss, torch.zeros(4, 5, 3)) == OTHERS.format("a RNN")


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM], ids=lambda kind: kind.__name__)
def test_mixing_behind_a_time_first_module_is_refused(kind):
    def forward(self: Applied, x: Tensor) -> Tensor:
        out = self.layer(x.transpose(0, 1))[0]
        return self.head((out - out.mean(1, keepdim=True))[-1])

    model = Applied(forward, layer=kind(3, 4), head=nn.Linear(4, 2))
    assert refusal(model, squared, torch.zeros(4, 5, 3)) == OTHERS.format("the loss")


@once
@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("time", [2, 3, 4, 5, 8, 11, 16, 32])
def test_a_forgotten_batch_first_is_refused(kind, time):
    """Whatever the number of steps, also where it is one that made-up records come in."""
    model = Applied(lambda self, x: self.layer(x)[0], layer=kind(3, 2))
    assert refusal(model, squared, torch.zeros(4, time, 3)) == OTHERS.format("the loss")


# State.


def bits(model: nn.Module) -> list[object]:
    """Every tensor of a network and which one it is, and the random state."""
    tensors = {**model.state_dict(keep_vars=True)}
    tensors |= {
        f"{name}:{key}": value
        for name, module in model.named_modules()
        for key, value in vars(module).items()
        if isinstance(value, Tensor)
    }
    modes = [module.training for module in model.modules()]
    values = [(name, id(value), value.detach().numpy().tobytes()) for name, value in tensors.items()]
    return [values, modes, torch.get_rng_state().numpy().tobytes()]


def reassigned(self: Applied, x: Tensor) -> Tensor:
    self.mu = 0.9 * self.mu + 0.1 * x.detach().mean(0)
    return self.layer(x - self.mu)


def in_place(self: Applied, x: Tensor) -> Tensor:
    self.mu.mul_(0.9).add_(0.1 * x.detach().mean(0))
    return self.layer(x)


def counted(self: Applied, x: Tensor) -> Tensor:
    self.mu = self.mu + 1.0
    return self.layer(x)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", ["buffer reassigned", "buffer in place", "attribute", "number"])
def test_a_state_is_refused_and_put_back(name, training):
    old = torch.tensor([math.nan, -0.0, 1e-45, 3e38, -math.inf, 1.0])
    forward = in_place if name == "buffer in place" else counted if name == "number" else reassigned
    inner = Applied(forward, layer=nn.Linear(6, 3))
    if name.startswith("buffer"):
        inner.register_buffer("mu", old)
    else:
        inner.mu = 1.0 if name == "number" else old
    model = nn.Sequential(inner, nn.Dropout(0.5)).train(training)
    for number, weight in enumerate(model.parameters()):
        weight.data.view(-1)[0] = (-0.0, math.nan)[number]
    inner.layer.eval()
    was, kept = bits(model), inner.mu
    assert refusal(model) == STATE.format("0.mu")
    assert bits(model) == was
    assert inner.mu is kept


def test_a_state_at_the_top_goes_by_its_own_name():
    model = Applied(reassigned, layer=nn.Linear(6, 3), mu=torch.zeros(6))
    assert refusal(model) == STATE.format("mu")


def test_a_refusal_half_way_leaves_no_trace():
    """Refused for mixing, after weights have been moved and dropout has drawn."""
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), of(lambda x: x - x.mean(0)), nn.Linear(8, 3))
    model.register_buffer("constant", torch.tensor([math.nan, -0.0]))
    model.kept = torch.tensor([math.nan, -0.0])
    model[0].weight.data[0, :3] = torch.tensor([math.nan, -0.0, math.inf])
    model[3].eval()
    was = bits(model)
    assert refusal(model) == OTHERS.format("the loss")
    assert bits(model) == was
    assert model[1].p == 0.5


@once
def test_what_is_accepted_is_left_as_it_was():
    model = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.25, batch_first=True)
    was = bits(model)
    checked(model, squared, torch.zeros(4, 3, 4), torch.zeros(4))
    assert bits(model) == was
    assert [part.p for part in model.modules() if isinstance(part, nn.Dropout)] == [0.25] * 3
    assert model.self_attn.dropout == 0.25


def test_a_memory_that_the_output_depends_on_is_refused():
    """Neither a buffer nor a tensor; and one outside the model, seen by what it does."""

    def forward(self: Applied, x: Tensor) -> Tensor:
        self.memory.append(x.detach().mean(0))
        return self.layer(x - self.memory[0] * len(self.memory))

    assert refusal(Applied(forward, layer=nn.Linear(6, 3), memory=[])) == STATE.format("memory")
    calls: list[int] = []

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        calls.append(0)
        return entropy(outputs, labels) * len(calls)

    assert refusal(plain(), loss) == ANOTHER


# What is to be accepted, and right.


def without_gradient(self: Applied, x: Tensor) -> Tensor:
    with torch.no_grad():
        features = self.first(x)
    return self.out(features.flatten(1))


def by_keyword(self: Applied, x: Tensor) -> Tensor:
    return self.out(input=self.first(input=x).flatten(1))


def checkpointed(self: Applied, x: Tensor) -> Tensor:
    return self.out(checkpoint(lambda value: self.first(value).tanh(), x, use_reentrant=False).flatten(1))


def causal(self: Applied, x: Tensor) -> Tensor:
    mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
    return self.layer(x, src_mask=mask, is_causal=True)


def encoder(**options: Any) -> nn.Module:
    return nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, **options)


def normalised(norm: nn.Module) -> nn.Module:
    """A bias in front of a norm of its own channel: its gradient is zero, and comes out as rounding."""
    return nn.Sequential(nn.Conv1d(2, 4, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))


def learned_positions(length: int | None) -> nn.Module:
    def forward(self: Applied, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1])
        return self.head((x + self.places(places if length is None else places[None])).tanh())

    return Applied(forward, places=nn.Embedding(9, 2), head=nn.Linear(2, 3))


def time_first(kind: type[nn.Module]) -> nn.Module:
    return Applied(lambda self, x: self.layer(x.transpose(0, 1))[0].transpose(0, 1), layer=kind(2, 2))


FIRST = {
    "conv": (lambda: nn.Conv1d(1, 1, 1), (1, 4)),
    "linear": (lambda: nn.Linear(4, 4), (4,)),
    "norm": (lambda: nn.LayerNorm(4), (4,)),
    "prelu": (lambda: nn.PReLU(), (4,)),
}


@pytest.mark.parametrize("forward", [without_gradient, by_keyword, checkpointed], ids=lambda value: value.__name__)
@pytest.mark.parametrize("name", FIRST)
def test_any_way_to_call_a_module_is_right(forward, name):
    build, shape = FIRST[name]
    gradients = right(Applied(forward, first=build(), out=nn.Linear(4, 3)), torch.randn(5, *shape))
    assert not gradients._plan.whole


@once
@pytest.mark.parametrize("time", [2, 3, 4, 5, 8, 11])
def test_time_first_is_right_for_any_number_of_steps(time):
    for kind in (nn.GRU, nn.LSTM, nn.RNN):
        assert not right(time_first(kind), torch.randn(5, time, 2))._plan.whole


@once
@pytest.mark.parametrize("time", [2, 3, 5])
@pytest.mark.parametrize("row", [None, 1], ids=["positions", "a row of positions"])
def test_learned_positions_are_right(time, row):
    right(learned_positions(row), torch.randn(5, time, 2))


@once
@pytest.mark.parametrize("time", [3, 5])
def test_a_causal_encoder_is_right(time):
    right(Applied(causal, layer=encoder(dropout=0.0)), torch.randn(5, time, 4))


def test_a_sparse_embedding_is_right():
    right(nn.Embedding(7, 3, sparse=True), torch.randint(0, 7, (4, 3)))


@pytest.mark.parametrize(
    "norm",
    [lambda: nn.GroupNorm(4, 4), lambda: nn.InstanceNorm1d(4), lambda: nn.InstanceNorm1d(4, affine=True)],
    ids=["group", "instance", "affine"],
)
def test_a_bias_without_effect_is_right(norm):
    model, x = normalised(norm()), torch.randn(5, 2, 6)
    checked(model, squared, x, torch.zeros(5))  # in float32, where the rounding is large
    right(model, x)


@pytest.mark.parametrize("kind", [ValueError, IndexError, RuntimeError, AssertionError])
def test_a_network_that_raises_at_odd_records_is_right(kind):
    """What is no number, or no token, may be an error."""

    def forward(self: Applied, x: Tensor) -> Tensor:
        if not bool(x.isfinite().all()) or float(x.abs().max()) > 100:
            raise kind("out of range")
        return self.layer(x)

    right(Applied(forward, layer=nn.Linear(6, 3)), torch.randn(5, 6))


# Dropout.

DROPPING = {
    "encoder": (lambda: encoder(), (3, 4)),
    "attention": (
        lambda: Applied(
            lambda self, x: self.layer(x, x, x)[0], layer=nn.MultiheadAttention(4, 2, dropout=0.5, batch_first=True)
        ),
        (6, 4),
    ),
    "LSTM": (
        lambda: Applied(lambda self, x: self.layer(x)[0], layer=nn.LSTM(4, 3, 2, dropout=0.5, batch_first=True)),
        (6, 4),
    ),
    "inside a module": (
        lambda: Applied(
            lambda self, x: self.drop(x * self.scale), scale=nn.Parameter(torch.ones(64)), drop=nn.Dropout(0.5)
        ),
        (64,),
    ),
}


@once
@pytest.mark.parametrize("name", DROPPING)
def test_dropout_inside_a_module_is_drawn_for_each_record_and_right_without(name):
    build, shape = DROPPING[name]
    model, y = build(), torch.ones(4)
    x = torch.randn(1, *shape).repeat(4, *(1 for _ in shape))
    gradients = checked(model, squared, x, y)
    assert gradients._plan.whole
    found = []
    for record in range(4):
        torch.manual_seed(3)
        found.append(gradients.filtered_sum(x, y, Clip(1e6), torch.arange(4) == record).values)
    assert all(bool(values.isfinite().all()) for values in found)
    assert all(float((found[record] - found[0]).abs().max()) > 1e-3 for record in (1, 2, 3))
    torch.manual_seed(4)
    assert not torch.equal(gradients.filtered_sum(x, y, Clip(1e6), torch.arange(4) == 0).values, found[0])
    model.eval()
    expected = naive(model, squared, x, y)
    values = gradients.filtered_sum(x, y, Clip(1e6)).values / gradients.rounding  # planned anew
    torch.testing.assert_close(values, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))
    right(model, torch.randn(4, *shape))


@once
@pytest.mark.parametrize("kind", [nn.GRU, nn.RNN], ids=lambda kind: kind.__name__)
def test_dropout_between_the_layers_of_a_recurrent_module_is_refused(kind):
    model = Applied(lambda self, x: self.layer(x)[0], layer=kind(4, 3, 2, dropout=0.5, batch_first=True))
    x = torch.randn(4, 6, 4)
    assert refusal(model, squared, x, torch.zeros(4)) == (
        "model: a recurrent module with dropout between its layers cannot be unrolled again as it was; stack one-layer"
        " modules with nn.Dropout in between"
    )
    right(model.eval(), x)


# Parameters that are not what they seem.


@pytest.mark.filterwarnings("ignore:.*is deprecated in favor of:FutureWarning")
@pytest.mark.parametrize(
    ("apply", "kind"),
    [
        (lambda layer: prune.l1_unstructured(layer, "weight", 0.5), "L1Unstructured"),
        (lambda layer: prune.random_structured(layer, "weight", 0.5, dim=0), "RandomStructured"),
        (lambda layer: prune.identity(layer, "bias"), "Identity"),
        (weight_norm, "WeightNorm"),
        (spectral_norm, "SpectralNorm"),
    ],
    ids=["l1", "structured", "identity", "weight_norm", "spectral_norm"],
)
def test_reparametrised_modules_are_refused(apply, kind):
    model = nn.Sequential(nn.Linear(6, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 3)))
    apply(model[1][1])
    with pytest.raises(InputError) as error:
        RecordGradients(model, Mask.dense(model), entropy)
    assert str(error.value) == (
        f"model: 1.1 is reparametrised by {kind}; make that permanent (prune.remove, or remove_weight_norm) and give its"
        " zeros as a mask"
    )


def test_pruning_made_permanent_is_right():
    model = nn.Linear(6, 3)
    prune.l1_unstructured(model, "weight", 0.5)
    right(prune.remove(model, "weight"), torch.randn(5, 6))


def test_parameters_of_several_dtypes_are_refused():
    model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3).double())
    with pytest.raises(InputError) as error:
        RecordGradients(model, Mask.dense(model), entropy)
    assert str(error.value) == "model: parameters of several dtypes; use one, float32 or float64"


def test_expanded_parameters_are_refused():
    for shape, size in (((1,), (3,)), ((3, 1), (3, 4)), ((1, 4), (3, 4))):
        model = Applied(lambda self, x: x * self.scale, scale=nn.Parameter(torch.ones(shape).expand(size)))
        with pytest.raises(InputError) as error:
            RecordGradients(model, Mask.dense(model), entropy)
        assert str(error.value) == "model parameter scale: its coordinates share memory (expand); use clone()"
    single = nn.Sequential(nn.Linear(6, 3), Applied(lambda s, x: x * s.w, w=nn.Parameter(torch.ones(()).expand(1))))
    right(single, torch.randn(5, 6))  # one coordinate shares its memory with none


# Made-up records.


def test_a_single_token_or_class_is_right():
    table = nn.Sequential(nn.Embedding(1, 2), nn.Flatten(), nn.Linear(6, 3))
    right(table, torch.zeros(4, 3, dtype=torch.long))
    labels = torch.zeros(5, dtype=torch.long)
    right(nn.Linear(6, 1), torch.randn(5, 6), lambda o, y: entropy(o, y) + o[:, 0] ** 2, labels)


def test_mixing_is_seen_where_there_is_a_single_class():
    model = nn.Sequential(of(lambda x: x - x.mean(0)), nn.Linear(6, 1))
    message = refusal(model, lambda o, y: entropy(o, y) + o[:, 0] ** 2, y=torch.zeros(4, dtype=torch.long))
    assert message == OTHERS.format("the loss")


@pytest.mark.parametrize("where", ["outputs", "time"])
def test_there_are_as_many_made_up_records_as_no_other_dimension(where):
    seen: list[int] = []

    def forward(self: Applied, x: Tensor) -> Tensor:
        seen.append(len(x))
        return self.layer(x) if where == "outputs" else self.layer(x.transpose(0, 1)).sum(0)

    model = Applied(forward, layer=nn.Linear(6, 11 if where == "outputs" else 3))
    checked(model, squared, torch.zeros(4, 6) if where == "outputs" else torch.zeros(4, 11, 6), torch.zeros(4))
    assert 13 in seen
    assert seen.count(11) <= 2, "only to see that it would not do"


def test_the_size_of_the_batch_itself_is_no_size():
    gradients = RecordGradients(nn.Linear(6, 3), Mask.dense(nn.Linear(6, 3)), lambda o, y: squared(o, y)[:2])
    with pytest.raises(InputError) as error:
        gradients.check(torch.zeros(11, 6), torch.zeros(11))
    assert str(error.value) == "loss: shape (2,), expected one value for each of 11 records; use reduction='none'"


def test_tokens_and_classes_are_replaced():
    """Records of whole numbers that are mixed only by what they hold."""

    def forward(self: Applied, x: Tensor) -> Tensor:
        return self.table(x).sum(1) * (1 + x.double().mean())

    model = Applied(forward, table=nn.Embedding(7, 3)).double()
    assert refusal(model, x=torch.zeros(4, 5, dtype=torch.long)) == OTHERS.format("the loss")


# Found by attack, after the rest.


def test_mixing_that_a_draw_decides_is_refused():
    model = between(lambda x: x - x.mean(0) if float(torch.rand(())) < 0.5 else x)
    assert refusal(model, x=X) == OTHERS.format("the loss")


def test_what_draws_is_tried_at_several_lengths_without_drawing():
    """Dropout as a function cannot be switched off but by eval mode; a loss over the length of the batch is seen there."""
    model = Applied(
        lambda self, x: self.layer(functional.dropout(x, 0.5, training=self.training)), layer=nn.Linear(6, 3)
    )
    assert refusal(model, lambda o, y: squared(o, y) / len(y)) == LENGTH.format("the loss")


def test_mixing_among_records_in_the_middle_is_refused():
    model = between(lambda x: torch.cat([x[:3], x[3:8] - x[3:8].mean(0), x[8:]]) if len(x) > 8 else x)
    assert refusal(model, x=X) == OTHERS.format("the loss")


@pytest.mark.parametrize("kind", ["in place", "late"])
def test_a_tensor_attribute_that_changes_is_refused_and_put_back(kind):
    def forward(self: Applied, x: Tensor) -> Tensor:
        if kind == "in place":
            self.mu += x.detach().mean(0)
        elif self.mu is None:
            self.mu = x.detach().mean(0)
        return self.layer(x - self.mu)

    model = Applied(forward, layer=nn.Linear(6, 3))
    model.mu = torch.zeros(6) if kind == "in place" else None
    assert refusal(model) == STATE.format("mu")
    assert model.mu is None if kind == "late" else torch.equal(model.mu, torch.zeros(6))


def test_a_loss_that_is_a_module_with_state_is_refused():
    class Running(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(()))

        def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
            losses = squared(outputs, labels)
            self.mean += losses.detach().mean()
            return losses

    loss = Running()
    assert refusal(plain(), loss) == STATE.format("the loss: mean")
    assert loss.mean == 0


def test_an_equal_number_set_again_is_no_state():
    def forward(self: Applied, x: Tensor) -> Tensor:
        self.scale = x.shape[1] ** -0.5
        return self.layer(x) * self.scale

    model = Applied(forward, layer=nn.Linear(6, 3))
    model.scale = 6**-0.5
    right(model, torch.randn(5, 6))


def test_a_model_that_will_not_take_odd_values_is_accepted():
    class Odd(Exception):
        pass

    def forward(self: Applied, x: Tensor) -> Tensor:
        if not bool((x.abs() < 100).all()):
            raise Odd
        return self.layer(x)

    right(Applied(forward, layer=nn.Linear(6, 3)), torch.randn(5, 6))


def test_a_forward_of_ones_own_on_a_layer_is_neither_ignored_nor_removed():
    layer = nn.Linear(6, 3)
    layer.forward = lambda x: 2 * nn.functional.linear(x, layer.weight, layer.bias)
    right(nn.Sequential(layer, nn.Tanh()), torch.randn(5, 6))
    assert "forward" in vars(layer)


@once
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method")
def test_a_compiled_model_is_refused():
    compiled = torch.compile(plain())
    with pytest.raises(InputError) as error:
        RecordGradients(compiled, Mask.dense(compiled), squared)
    assert str(error.value) == (
        "model: is compiled by torch.compile, which hides its layers; give the model itself (model._orig_mod), and"
        " compile=True for element-wise filters"
    )


def test_mixing_by_the_largest_whole_number_is_refused():
    model = nn.Sequential(of(lambda x: x.float() / x.max()), nn.Linear(6, 3))
    assert refusal(model, x=torch.zeros(4, 6, dtype=torch.long)) == OTHERS.format("the loss")
    labels = torch.zeros(4, dtype=torch.long)
    assert refusal(plain(), lambda o, y: entropy(o, y) / y.max().clamp_min(1), y=labels) == OTHERS.format("the loss")


def test_state_under_a_private_name_is_seen_and_put_back():
    def forward(self: Applied, x: Tensor) -> Tensor:
        if self._max is None:
            self._max = float(x.abs().max())
        return self.layer(x / self._max)

    model = Applied(forward, layer=nn.Linear(6, 3))
    model._max = None
    assert refusal(model) == STATE.format("_max")
    assert model._max is None


def test_a_count_of_records_is_state():
    def forward(self: Applied, x: Tensor) -> Tensor:
        self.seen += len(x)
        return self.layer(x)

    model = Applied(forward, layer=nn.Linear(6, 3))
    model.seen = 0
    assert refusal(model) == STATE.format("seen")
    assert model.seen == 0


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_scripted_and_lazy_models_are_refused():
    lazy = nn.Sequential(nn.LazyLinear(3))
    with pytest.raises(InputError) as error:
        RecordGradients(lazy, Mask({}), squared)
    assert str(error.value) == (
        "model: has lazy layers without a shape; run one batch of made-up records through it first"
    )
    scripted = torch.jit.script(plain())
    with pytest.raises(InputError) as error:
        RecordGradients(scripted, Mask.dense(scripted), squared)
    assert str(error.value) == "model: is compiled by torch.jit, which hides its layers; give the model itself"
