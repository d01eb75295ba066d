"""What trying a network out finds: records that are mixed in any way, and state; and which networks it can follow."""

import contextlib
import gc
import importlib
import math
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional
from torch.nn.modules.module import register_module_forward_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from dpltm.filters import Clip
from dpltm.gradients import RecordGradients
from dpltm.gradients.layer import Recorder
from dpltm.gradients.mapped import at_once
from dpltm.networks.evaluation import count_correct
from dpltm.networks.masks import Mask
from dpltm.records.made_up import KEPT, CannotFollow, in_float64, sealed
from gradient_cases import MIXED, Applied, Picture, checked, cross_entropy, decides, refusal, squared_error, tied
from refusals import refused

pytestmark = pytest.mark.parametrize("_products", ["dense"], indirect=True)  # what is refused has no plan

OFF = "switch it off (p=0, dropout=0, or eval() of this module)"
SHARED = (
    "model: {} draws random numbers of shape {} at once, which are not of one record each; draw for every record, in"
    " dimension 0 (nn.Dropout, torch.rand_like of the batch), or " + OFF
)
NO_LAW = (
    "model: {} draws by aten::{}, which cannot be made each record's own; use nn.Dropout, torch.rand_like, torch.randn_like"
    " or torch.bernoulli, or " + OFF
)
BACKWARD = (
    "model: the loss, or a hook, draws in the backward pass; leave out hooks that draw, and checkpoints of what draws"
)
KERNEL = (
    "model: {} drops out between its layers, in one kernel that keeps the draws to itself; use modules of one layer with"
    " nn.Dropout between them, or " + OFF
)
STATE = "model: {} changes with the records it sees; use a module without state"
ANOTHER = "model: gives another answer to the same records; does it keep a state, or draw unseen?"
CLASSES = torch.tensor([0, 1, 2, 2])
TEXTS = torch.zeros(4, 6, dtype=torch.long)


def classes(model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy) -> str:
    """The refusal of a classifier of six numbers."""
    return refusal(model, loss, y=CLASSES)


def of(function: Callable[[Tensor], Tensor]) -> nn.Module:
    """A module without parameters."""
    return Applied(lambda _, x: function(x))


def before(function: Callable[[Tensor], Tensor]) -> nn.Module:
    return nn.Sequential(of(function), nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def between(function: Callable[[Tensor], Tensor]) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), of(function), nn.ReLU(), nn.Linear(8, 3))


def plain() -> nn.Module:
    return between(lambda x: x)


# Records that are mixed.


def odd(x: Tensor) -> Tensor:
    """Every second record minus the one before."""
    out = x.clone()
    out[1::2] = x[1::2] - x[::2][: len(x[1::2])]
    return out


def hooked(x: Tensor, hook: Callable[[Tensor], Tensor]) -> Tensor:
    out = x * 1
    out.register_hook(hook)
    return out


MODELS: dict[str, Callable[[], nn.Module]] = {
    "input mean": lambda: before(lambda x: x - x.mean(0)),
    "input scaled if large": lambda: before(lambda x: torch.where(x.max() > 5, x / 255, x)),
    "input pairs": lambda: before(odd),
    "mean": lambda: between(lambda x: x - x.mean(0)),
    "roll": lambda: between(lambda x: x.roll(1, 0)),
    "batch_norm": lambda: between(lambda x: functional.batch_norm(x, None, None, training=True)),
    "attention": lambda: between(lambda x: (x @ x.T).softmax(1) @ x),
    "pairs": lambda: between(odd),
    "detached mean": lambda: between(lambda x: x - x.detach().mean(0)),
    "above mean": lambda: between(lambda x: x * (x > x.mean(0))),
    "rank": lambda: between(lambda x: x * (x.argsort(0).argsort(0) < len(x) // 2)),
    "more than three": lambda: between(lambda x: x - x.mean(0) if len(x) > 3 else x),
    "in the middle": lambda: between(
        lambda x: torch.cat([x[:3], x[3:8] - x[3:8].mean(0), x[8:]]) if len(x) > 8 else x
    ),
    "first": lambda: between(lambda x: x - x[0].detach()),
    "last": lambda: between(lambda x: x - x[-1].detach()),
    "inside a module": lambda: Applied(
        lambda self, x: (x - x.mean(0)) * self.scale, scale=nn.Parameter(torch.ones(6))
    ),
    "backward": lambda: between(lambda x: hooked(x, lambda gradient: gradient / gradient.norm())),
    "last, backward": lambda: Applied(  # the first record moves the last one's gradient alone
        lambda self, x: self.out(self.first(x) - self.first(x)[-1:]), first=nn.Linear(6, 4), out=nn.Linear(4, 3)
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_that_mix_records_are_refused(name):
    said = "model or loss: fails on 32 made-up records, or on 1: Expected more than 1 value per channel when training"
    message = classes(MODELS[name]())
    assert message == MIXED.format("a Linear" if name == "backward" else "the loss") or (
        name == "batch_norm" and message.startswith(said)
    )


def entropies(o: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(o, y).detach()


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "over mean": lambda o, y: cross_entropy(o, y) / cross_entropy(o, y).mean(),
    "over detached mean": lambda o, y: cross_entropy(o, y) / entropies(o, y).mean(),
    "mean for everybody": lambda o, y: cross_entropy(o, y).mean().expand(len(y)),
    "distances": lambda o, _: (o[:, None] - o).square().sum((1, 2)),
    "over class count": lambda o, y: cross_entropy(o, y) / torch.bincount(y, minlength=3)[y],
    "above mean": lambda o, y: cross_entropy(o, y) * (entropies(o, y) >= entropies(o, y).mean()),
    "contrastive detached keys": lambda o, _: cross_entropy(o @ o.detach().T, torch.arange(len(o))),
    "first label": lambda o, y: cross_entropy(o, y) * (1 + y[0]),
    "last label": lambda o, y: cross_entropy(o, y) * (1 + y[-1]),
    "over the length": lambda o, y: cross_entropy(o, y) / len(y),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_that_mix_records_are_refused(name):
    assert classes(plain(), LOSSES[name]) == MIXED.format("the loss")


WAYS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda x: x - x.mean(0),
    "huge": lambda x: torch.where((x.abs() > 5).any(), x / 255, x),
    "zeros": lambda x: torch.where((x == 0).all(1).any(), x / 2, x),
    "not a number": lambda x: torch.where(x.isnan().any(), x.nan_to_num() * 2, x),
}


def labels_mixed(way: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda outputs, labels: squared_error(outputs, way(labels[:, None])[:, 0])


@pytest.mark.parametrize("name", WAYS)
def test_what_mixes_only_where_a_record_or_a_label_is_odd_is_refused(name):
    """Each of these but the first is seen by one kind of replacement alone."""
    assert refusal(before(WAYS[name])) == MIXED.format("the loss")
    assert refusal(plain(), labels_mixed(WAYS[name])) == MIXED.format("the loss")


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * (1 if x.sum().item() > 0 else 2),
        lambda x: x if x.abs().max() < 100 else x / 255,
        lambda x: x[:, : max(1, int(x.isnan().sum()))] @ torch.ones(1, 8, dtype=x.dtype),
        lambda x: x * len((x > 0).nonzero()),
        lambda x: x * len(x.detach().unique()),
    ],
    ids=["item", "if", "int", "nonzero", "unique"],
)
def test_decisions_by_values_of_the_batch_are_refused(function):
    """Whether or not a made-up record shows it."""
    assert decides(classes(between(function)))
    assert decides(classes(plain(), lambda o, y: cross_entropy(function(o), y)))


def test_attention_over_the_batch_is_refused():
    """Without batch_first, records take the place of positions."""
    model = Applied(lambda self, x: self.layer(x, x, x)[0], layer=nn.MultiheadAttention(4, 2))
    for module in (model, nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0)):
        where = "a MultiheadAttention" if module is model else "the loss"
        assert refusal(module, x=torch.zeros(5, 6, 4)) == MIXED.format(where)


kinds = pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM], ids=lambda kind: kind.__name__)


@kinds
@pytest.mark.parametrize("time", [2, 3, 11, 32])
def test_a_forgotten_batch_first_is_refused(kind, time):
    """Whatever the number of steps, also where it is one that made-up records come in."""
    model = Applied(lambda self, x: self.layer(x)[0], layer=kind(3, 2))
    assert refusal(model, x=torch.zeros(4, time, 3)) == MIXED.format("the loss")


def experts(self: Applied, x: Tensor) -> Tensor:
    """Each record's output is its own, from the expert that it is routed to."""
    chosen, out = self.gate(x).argmax(-1), torch.zeros(len(x), 3)
    for place, expert in enumerate((self.one, self.two)):
        out[chosen == place] = expert(x[chosen == place])
    return out


def test_layers_that_see_some_of_the_records_are_refused_for_that():
    layers = {"gate": nn.Linear(6, 2), "one": nn.Linear(6, 3), "two": nn.Linear(6, 3)}
    assert classes(Applied(experts, **layers)) == MIXED.format("a Linear")


def test_sorting_is_seen_where_losses_and_gradients_are_alike():
    """Every record's output is its own, but what layers see in a row is another's."""

    def by_time(self: Applied, x: Tensor) -> Tensor:
        order = x.sum((1, 2)).argsort(stable=True)
        return self.layer(x[order].transpose(0, 1))[0].transpose(0, 1)[order.argsort()]

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        return outputs.flatten(1).sum(1) + 0 * labels

    assert refusal(Applied(by_time, layer=nn.RNN(3, 2)), loss, torch.zeros(4, 5, 3)) == MIXED.format("a RNN")


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU])
def test_what_recurrent_modules_give_is_seen_where_nothing_uses_it(kind):
    """Their gates are made from it again: here by a hook on all modules, which come before those of one, that mixes records
    in a sequence of which no loss depends."""

    def mix(module: nn.Module, _inputs: object, output: Any) -> Any:
        return (output[0] + output[0].detach().mean(0), output[1]) if isinstance(module, kind) else None

    last = Applied(
        lambda self, x: (lambda state: state[0] if isinstance(state, tuple) else state)(self.layer(x)[1])[0],
        layer=kind(3, 2, batch_first=True),
    )
    with register_module_forward_hook(mix):
        assert refusal(last, x=torch.zeros(4, 5, 3)) == MIXED.format(f"a {kind.__name__}")


def nobody_there(x: Tensor, padding: float) -> Tensor:
    return x.isnan() if math.isnan(padding) else x == padding


@pytest.mark.one_of(3)
@pytest.mark.parametrize("front", [False, True], ids=["behind", "before"])
@pytest.mark.parametrize("along", [1, 2])
@pytest.mark.parametrize("padding", [0.0, 1.0, -1.0, -100.0, math.nan])
def test_signals_that_are_cut_to_the_longest_are_refused_whatever_their_padding(padding, along, front):
    """Time is dimension 1, or 2 behind channels."""

    def forward(self: Applied, x: Tensor) -> Tensor:
        most = longest((~nobody_there(x, padding)).any(3 - along))
        x = x.narrow(along, x.shape[along] - most if front else 0, most).nan_to_num()
        return self.layer(x if along == 1 else x.transpose(1, 2)).mean(1)

    shape = (4, 12, 3) if along == 1 else (4, 3, 12)
    assert decides(refusal(Applied(forward, layer=nn.Linear(3, 3)), cross_entropy, torch.rand(shape), CLASSES))


@pytest.mark.parametrize(
    ("border", "dtype"),
    [(1, torch.float32), (-1, torch.float32), (255, torch.uint8), (127, torch.int8)],
    ids=["white", "lower end", "bytes", "signed"],
)
@pytest.mark.parametrize("front", [False, True], ids=["behind", "before"])
def test_images_that_are_cut_to_the_largest_on_their_border_are_refused(border, dtype, front):
    """A border is the upper or the lower end of the range, on either side."""

    def forward(self: Applied, x: Tensor) -> Tensor:
        widest = longest((x != border).flatten(1, 2).any(1))
        return self.layer((x[..., -widest:] if front else x[..., :widest]).float().mean((2, 3)))

    images = torch.zeros(4, 3, 8, 8, dtype=dtype)
    assert decides(refusal(Applied(forward, layer=nn.Linear(3, 3)), cross_entropy, images, CLASSES))


def longest(there: Tensor) -> int:
    return max(1, int(there.sum(1).max()))


def over_longest(x: Tensor) -> Tensor:
    """Means over the time that the longest of the records has."""
    return x.sum(1) / (x != 0).any(2).sum(1).amax().clamp_min(1)


def behind_mask(self: Applied, x: Tensor) -> Tensor:
    """The mask is an input of a module that owns a parameter, and is looked at."""
    pool, out = self.layer
    return out(torch.cat([pool(x, torch.where((x == 0).all(2), -1e30, 0.0)), over_longest(x)], 1))


class Pool(nn.Module):
    """Attention with a query of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return (torch.softmax((x * self.query).sum(2) + mask, 1)[..., None] * x).sum(1)


def beside_huge(self: Applied, x: Tensor) -> Tensor:
    return self.layer(torch.cat([1e13 * x[..., 0].amax(1, keepdim=True), over_longest(x)], 1))


CUT: dict[str, tuple[Callable[..., Tensor], nn.Module, Tensor]] = {
    "bytes on white paper": (
        lambda s, x: s.layer(x[:, : longest((x != 255).any(2))].float().mean(1)),
        nn.Linear(3, 3), torch.zeros(4, 12, 3, dtype=torch.uint8),
    ),
    "films": (
        lambda s, x: s.layer(x[:, : longest((x != 0).flatten(2).any(2))].flatten(2)).mean(1),
        nn.Linear(6, 3), torch.rand(4, 12, 2, 3),
    ),
    "texts behind their padding": (
        lambda s, x: s.layer(x[:, -longest(x != 0) :]).mean(1), nn.Embedding(9, 3, padding_idx=0), torch.full((4, 12), 3)
    ),
    "texts before their padding": (
        lambda s, x: s.layer(x[:, : longest(x != 5)]).mean(1), nn.Embedding(9, 3, padding_idx=5), torch.full((4, 12), 3)
    ),
    "by the last token": (
        lambda s, x: s.layer(x[:, : longest(x != 8)]).mean(1), nn.Embedding(9, 3), torch.full((4, 12), 3)
    ),
    "by a token that nobody declares": (
        lambda s, x: s.layer(x[:, : longest(x != 1)]).mean(1), nn.Embedding(9, 3), torch.full((4, 12), 3)
    ),
    "behind a mask": (behind_mask, nn.ModuleList([Pool(), nn.Linear(4, 3)]), torch.rand(4, 12, 2)),
    "beside a huge column": (beside_huge, nn.Linear(3, 3), torch.rand(4, 12, 2)),
    "times the shortest": (lambda s, x: s.layer(x * (x != 0).sum(1).float().amin(0)), nn.Linear(8, 3), torch.rand(4, 8)),
    "times the longest": (lambda s, x: s.layer(x * (x != 0).sum(1).float().amax(0)), nn.Linear(8, 3), torch.rand(4, 8)),
}  # fmt: skip


@pytest.mark.parametrize("name", CUT)
def test_what_follows_from_the_length_of_one_record_is_refused(name):
    forward, layer, x = CUT[name]
    message = refusal(Applied(forward, layer=layer), cross_entropy, x, CLASSES)
    if "times" in name or forward is behind_mask:
        assert message == MIXED.format("the loss")
    else:
        assert message == MIXED.format("a Linear") if forward is beside_huge else decides(message)


def test_mixing_of_whole_numbers_is_refused():
    """By what they hold, by the largest of them, and where there is a single class."""
    model = Applied(lambda self, x: self.table(x).sum(1) * (1 + x.double().mean()), table=nn.Embedding(7, 3)).double()
    assert refusal(model, cross_entropy, TEXTS, CLASSES) == MIXED.format("the loss")
    model = nn.Sequential(of(lambda x: x.float() / x.max()), nn.Linear(6, 3))
    assert refusal(model, cross_entropy, TEXTS, CLASSES) == MIXED.format("the loss")
    model = nn.Sequential(of(lambda x: x - x.mean(0)), nn.Linear(6, 1))
    message = refusal(model, lambda o, y: cross_entropy(o, y) + o[:, 0] ** 2, y=torch.zeros(4, dtype=torch.long))
    assert message == MIXED.format("the loss")


@pytest.mark.parametrize("rows", [2, 9, 16, 31, 32])
def test_what_mixes_from_some_number_of_records_on_is_refused_up_to_the_shape(rows):
    assert classes(between(lambda x: x - x.mean(0) if len(x) >= rows else x)) == MIXED.format("the loss")
    assert classes(between(lambda x: x * (1 + 1e-7 * (len(x) >= rows)))) == MIXED.format("the loss")


class Positions(nn.Module):
    """Adds a code by dimension 0, as for sequences that come with time first."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("codes", torch.randn(50, 1, generator=torch.Generator().manual_seed(0)))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.codes[: len(x)]


def test_what_depends_on_the_place_in_the_batch_is_refused():
    """There, one record more would change what all that come after it give."""

    def every_second(o: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(o, y) * (1 + torch.arange(len(y)) % 2)

    assert classes(nn.Sequential(nn.Linear(6, 8), Positions(), nn.Linear(8, 3))) == MIXED.format("the loss")
    assert classes(plain(), every_second) == MIXED.format("the loss")


def kicked(x: Tensor) -> Tensor:
    return hooked(x, lambda gradient: gradient * torch.rand(len(gradient), 1))


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: between(lambda x: x * torch.rand(8)), SHARED.format("1 (Applied)", (8,))),
        (lambda: between(lambda x: x if float(torch.rand(())) < 0.5 else 2 * x), SHARED.format("1 (Applied)", ())),
        (lambda: Applied(lambda s, x: s.layer(x * torch.randn(6)), layer=nn.Linear(6, 3)),
         SHARED.format("its forward (Applied)", (6,))),
        (lambda: between(lambda x: x.lerp(x[torch.randperm(len(x))], 0.3)), NO_LAW.format("1 (Applied)", "randperm")),
        (lambda: nn.Sequential(nn.Linear(6, 8), nn.Sequential(of(lambda x: torch.normal(x, 1.0))), nn.Linear(8, 3)),
         NO_LAW.format("1.0 (Applied)", "normal.Tensor_float")),
        (lambda: nn.Sequential(nn.Linear(6, 3), nn.RReLU()), NO_LAW.format("1 (RReLU)", "rrelu_with_noise")),
        (lambda: between(kicked), BACKWARD),
        (lambda: between(lambda x: checkpoint(functional.dropout, x, use_reentrant=False)), BACKWARD),
    ],
    ids=["weights", "one coin", "inputs", "mixup", "normal", "rrelu", "gradients", "checkpoint"],
)  # fmt: skip
def test_draws_that_are_not_of_one_record_are_refused(build, said):
    """By the name of the module, and before budget is spent."""
    assert classes(build()) == said


SELDOM = 1e-9
"""A chance that no trial meets."""


@pytest.mark.parametrize(
    "draws",
    [lambda rows: np.random.random((rows, 1)), lambda rows: np.array([[random.random()] for _ in range(rows)])],
    ids=["numpy", "python"],
)
def test_draws_of_public_generators_are_refused_however_seldom_they_matter(draws):
    """They go by place: one record more, and others are left out than before."""
    model = between(lambda x: x * torch.from_numpy(draws(len(x)) > SELDOM))
    assert "draws numbers that are not a record's own, unseen by torch" in classes(model)


def test_a_generator_of_the_models_own_is_refused():
    """It goes by place even where it begins anew in every pass."""
    model = between(lambda x: x * (torch.rand(len(x), 1, generator=torch.Generator()) > SELDOM))
    assert classes(model) == NO_LAW.format("1 (Applied)", "rand.generator")


@pytest.mark.parametrize(
    ("own", "numbers"),
    [
        (np.random.default_rng(0), lambda own, rows: torch.from_numpy(own.random((rows, 1)))),
        (np.random.RandomState(0), lambda own, rows: torch.from_numpy(own.random_sample((rows, 1)))),
        (random.Random(0), lambda own, rows: torch.tensor([[own.random()] for _ in range(rows)])),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_generator_that_a_module_holds_is_a_state(own, numbers):
    model = Applied(lambda self, x: self.layer(x * (numbers(self.own, len(x)) > SELDOM)), layer=nn.Linear(6, 3))
    model.own = own
    assert classes(model) == STATE.format("own")


def test_draws_for_rows_that_do_not_stand_together_are_refused():
    """Two rows a record, all first ones before all second ones: the shape does not tell which record a draw is of."""

    def halves(x: Tensor) -> Tensor:
        return sum(functional.dropout(torch.cat([x[:, :4], x[:, 4:]]), 0.5).chunk(2)) @ torch.ones(4, 8)

    assert classes(between(halves)) == MIXED.format("the loss")


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_dropping_out_within_a_recurrent_kernel_is_refused(kind):
    stacked = Applied(lambda s, x: s.layer(x)[0][:, -1], layer=kind(4, 2, 2, dropout=0.5, batch_first=True))
    assert refusal(stacked, x=torch.zeros(5, 6, 4)) == KERNEL.format(f"layer ({kind.__name__})")
    checked(stacked.eval(), squared_error, torch.zeros(5, 6, 4), torch.zeros(5))


def test_a_network_that_draws_later_is_tried_again():
    """A share to drop that is set after the first step."""
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.0), nn.Linear(8, 3))
    gradients = checked(model, cross_entropy, torch.zeros(4, 6), CLASSES)
    gradients.filtered_sum(torch.zeros(4, 6), CLASSES, Clip(1.0))
    model[1].p = 0.5
    said = "`keys`: the network draws random numbers; give one key a record (sampling.record_keys)"
    assert refused(gradients.filtered_sum, torch.zeros(4, 6), CLASSES, Clip(1.0)) == said
    assert refused(gradients.filtered_sum, torch.zeros(4, 6), CLASSES, Clip(1.0), keys=torch.arange(3)) == said
    gradients.filtered_sum(torch.zeros(4, 6), CLASSES, Clip(1.0), keys=torch.arange(4))


def test_mixing_in_one_precision_alone_is_refused_or_not_done():
    """In passes, which are not in float64, records are not there to be mixed."""
    for dtype in (torch.float32, torch.float64):
        model = between(lambda h, dtype=dtype: h - h.mean(0) if h.dtype == dtype else h)
        if dtype == torch.float64:
            assert classes(model) == MIXED.format("the loss")


def single_class(scale: Callable[[Tensor], Tensor], narrow: bool) -> tuple[nn.Module, Callable[..., Tensor]]:
    """A linear network, and a loss that holds numbers of single precision if ``narrow``: then float64 cannot run."""
    weights = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float32)
    model = Applied(lambda self, x: self.out(torch.nn.functional.linear(scale(x), self.first)), out=nn.Linear(300, 3))
    model.first = nn.Parameter(torch.randn(300, 200, generator=torch.Generator().manual_seed(0)))
    weigh = functional.cross_entropy
    return model, lambda o, y: weigh(o, y, weight=weights if narrow else None, reduction="none")


@pytest.mark.parametrize("narrow", [False, True], ids=["float64 runs", "float64 fails"])
@pytest.mark.parametrize("share", [1.5e-3, 2e-4, 2e-8])
def test_a_slight_dependence_on_the_length_is_refused(narrow, share):
    """Far less than rounding in float32, where float64 runs."""
    torch.manual_seed(0)
    model, loss = single_class(lambda x: x * (1 + share * len(x)), narrow)
    before = [value.detach().clone() for value in model.parameters()]
    if narrow and share < 1e-4:
        checked(model, loss, torch.zeros(4, 200), CLASSES)
    else:
        assert refusal(model, loss, torch.zeros(4, 200), CLASSES).startswith(MIXED.split(" (seen")[0])
    assert all(map(torch.equal, before, model.parameters()))


def test_what_float64_cannot_run_is_accepted_where_it_differs_by_rounding_alone():
    torch.manual_seed(0)
    model, loss = single_class(lambda x: x, narrow=True)
    gradients = checked(model, loss, torch.zeros(4, 200), CLASSES)
    assert gradients.filtered_sum(torch.rand(4, 200), CLASSES, Clip(1.0)).values.norm() > 0


def test_a_float64_network_is_compared_as_float64_is():
    model = between(lambda x: x * (1 + 1e-8 * len(x))).double()
    said = refusal(model, x=torch.zeros(4, 6, dtype=torch.float64), y=CLASSES, loss=cross_entropy)
    assert said == MIXED.format("the loss")


@pytest.mark.parametrize("fails", [False, True])
def test_float64_leaves_everything_as_it_was(fails):
    """Shared weights, recurrent modules, buffers and a loss with weights, whatever happens in between."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.GRU(4, 4, batch_first=True), nn.Linear(4, 4))
    model[3].weight = model[0].weight
    model[0].bias.requires_grad_(False)
    loss = nn.CrossEntropyLoss(torch.ones(4))
    state = lambda: [  # noqa: E731
        (id(value), value.data_ptr(), value.dtype, value.requires_grad, value._version)
        for module in (model, loss)
        for value in (*module.parameters(), *module.buffers(), *model[2]._flat_weights)
    ]
    before = state()
    with contextlib.suppress(KeyError), in_float64([*model.modules(), loss]):
        assert {value.dtype for value in (*model.parameters(), *loss.buffers())} == {torch.float64}
        assert model[3].weight is model[0].weight
        assert not model[0].bias.requires_grad
        assert model[1].num_batches_tracked.dtype == torch.int64
        assert model[2](torch.zeros(2, 3, 4, dtype=torch.float64))[0].dtype == torch.float64
        if fails:
            raise KeyError
    assert state() == before


def test_a_layer_called_once_more_in_a_long_batch_is_refused():
    def forward(self: Applied, x: Tensor) -> Tensor:
        out = self.layer(x)
        return out + 0 * self.layer(x) if len(x) > 20 else out

    assert classes(Applied(forward, layer=nn.Linear(6, 3))) == MIXED.format("the layers that are called")


def test_a_network_that_fails_on_a_single_record_is_refused():
    model = nn.Sequential(nn.Linear(6, 8), of(lambda x: x.squeeze().softmax(1)), nn.Linear(8, 3))
    reason = "Dimension out of range (expected to be in range of [-1, 0], but got 1)"
    assert classes(model) == f"model or loss: fails on 32 made-up records, or on 1: {reason}"


# State.


def in_place(self: Applied, x: Tensor) -> Tensor:
    self.mu.mul_(0.9).add_(0.1 * x.detach().mean(0))
    return self.layer(x)


def reassigned(self: Applied, x: Tensor) -> Tensor:
    self.mu = 0.9 * self.mu + 0.1 * x.detach().mean(0)
    return self.layer(x - self.mu)


def late(self: Applied, x: Tensor) -> Tensor:
    self.mu = x.detach().mean(0) if self.mu is None else self.mu
    return self.layer(x - self.mu)


def remembered(self: Applied, x: Tensor) -> Tensor:
    self.mu.append(x.detach().mean(0))
    return self.layer(x - self.mu[0] * len(self.mu))


def behind_data(self: Applied, x: Tensor) -> Tensor:
    self.mu.data += x.detach().mean()
    return self.layer(x)


def where_zero(self: Applied, x: Tensor) -> Tensor:
    """As layers do that take their first batch for a start."""
    if not self.mu.any():
        self.mu.data.copy_(x.detach().mean())
    return self.layer(x)


def in_a_layer_of_a_list(self: Applied, x: Tensor) -> Tensor:
    with torch.no_grad():
        self.mu[0].bias.add_(x.mean())
    return self.layer(x)


def in_an_array(self: Applied, x: Tensor) -> Tensor:
    self.mu += float(x.detach().mean())
    return self.layer(x)


def in_an_object(self: Applied, x: Tensor) -> Tensor:
    self.mu.found["means"] = (float(x.detach().mean()),)
    return self.layer(x)


def replaced_in_a_list(self: Applied, x: Tensor) -> Tensor:
    self.mu[0] = float(x.detach().mean())
    return self.layer(x)


ODD_TENSOR = torch.tensor([math.nan, -0.0, 1e-45, 3e38, -math.inf, 1.0])
STATES: dict[str, tuple[Callable[..., Tensor], str, Any]] = {
    "buffer reassigned": (reassigned, "mu", nn.Buffer(ODD_TENSOR.clone())),
    "buffer in place": (in_place, "mu", nn.Buffer(ODD_TENSOR.clone())),
    "tensor reassigned": (reassigned, "mu", ODD_TENSOR.clone()),
    "late": (late, "mu", None),
    "memory": (remembered, "mu", []),
    "buffer behind data": (behind_data, "mu", nn.Buffer(torch.ones(2))),
    "weight in place": (in_place, "mu", nn.Parameter(ODD_TENSOR.clone(), requires_grad=False)),
    "weight behind data": (behind_data, "mu", nn.Parameter(torch.ones(2), requires_grad=False)),
    "weight of zero": (where_zero, "mu", nn.Parameter(torch.zeros(2))),
    "array": (in_an_array, "mu", np.ones(3)),
    "array of none": (in_an_array, "mu", np.ones(())),
    "list": (replaced_in_a_list, "mu", [1.0]),
}


def content(value: object) -> object:
    return value.detach().numpy().tobytes() if isinstance(value, Tensor) else repr(value)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", STATES)
def test_a_state_is_refused_and_put_back(name, training):
    forward, place, old = STATES[name]
    assert classes(Applied(forward, layer=nn.Linear(6, 3), **{place: old}).train(training)) == STATE.format(place)
    model = nn.Sequential(Applied(forward, layer=nn.Linear(6, 3), **{place: old}), nn.Tanh()).train(training)
    was = content(old)
    assert classes(model) == STATE.format(f"0.{place}")
    now = getattr(model[0], place)
    assert now is old
    assert content(now) == was


@pytest.mark.parametrize("how", ["in place", "reassigned"])
def test_a_pass_that_writes_into_weights_is_refused_where_no_trial_showed_it(how):
    """A weight that is no part of any sum would leave with the network, with the exact mean of a batch in it."""
    writes: list[str] = []

    def forward(self: Applied, x: Tensor) -> Tensor:
        if "in place" in writes:
            self.mu.copy_(x.detach().mean(0))
        if "reassigned" in writes:
            self.mu.data = x.detach().mean(0)
        return x

    model = nn.Sequential(Applied(forward, mu=nn.Parameter(torch.zeros(6), requires_grad=False)), nn.Linear(6, 3))
    x, y = torch.rand(4, 6), torch.tensor([0, 1, 2, 2])
    gradients = checked(model, cross_entropy, x, y)
    gradients.rehearse(Clip(1.0))
    writes.append(how)
    assert "records cannot be mapped over any more" in refused(gradients.filtered_sum, x, y, Clip(1.0))
    gradients._plan = replace(gradients._plan, unmapped="never")  # as of a network that never could
    gradients.pass_rows = 1
    wrote = "model: a pass wrote into weights or buffers, past the ledger; use a module without state"
    assert refused(gradients.filtered_sum, x, y, Clip(1.0)) == wrote
    assert refused(count_correct, model, x, y) == wrote  # of records that are scored as well


def test_a_state_in_an_object_of_the_user_is_refused():
    for forward, mu in ((in_an_object, SimpleNamespace(found={})), (in_a_layer_of_a_list, [nn.Linear(2, 2)])):
        assert classes(Applied(forward, layer=nn.Linear(6, 3), mu=mu)) == STATE.format("mu")


def test_an_object_that_holds_itself_and_keeps_nothing_is_accepted():
    held = SimpleNamespace(numbers=[1, {2: np.ones(2)}], table=torch.eye(2).to_sparse())
    held.itself = held
    checked(
        Applied(lambda self, x: self.layer(x), layer=nn.Linear(6, 3), mu=held),
        cross_entropy,
        torch.zeros(4, 6),
        CLASSES,
    )


def test_a_loss_with_a_state_is_refused():
    """A module's is put back; one outside is seen by what it does."""

    def averaged(self: Applied, outputs: Tensor, labels: Tensor) -> Tensor:
        losses = squared_error(outputs, labels)
        self.mean += losses.detach().mean()
        return losses

    loss = Applied(averaged, mean=nn.Buffer(torch.zeros(())))
    assert refusal(plain(), loss) == STATE.format("the loss: mean")
    assert loss.mean == 0
    calls: list[int] = []

    def counting(outputs: Tensor, labels: Tensor) -> Tensor:
        calls.append(0)
        return cross_entropy(outputs, labels) * len(calls)

    assert classes(plain(), counting) == ANOTHER


TAMING = """
def tame(x):
    return x if bool(x.abs().max() <= 1000) else x.clamp(-10, 10)
"""


def test_records_that_a_library_takes_by_the_largest_of_the_batch_do_not_pass_together(tmp_path, monkeypatch):
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "taming_library.py").write_text(TAMING)
    monkeypatch.syspath_prepend(str(tmp_path / "site-packages"))
    tame = importlib.import_module("taming_library").tame
    gradients = checked(before(tame), cross_entropy, torch.zeros(4, 6), CLASSES, mapped=False)
    gradients.pass_rows = 32
    assert "(taming_library.py, line 3, decides by values of the batch)" in gradients.rehearse(Clip(1.0))


def nearest_of_short(self: Applied, x: Tensor) -> Tensor:
    """Beside its own numbers, a padded record sees how near the nearest other one is."""
    apart = (x[:, None] - x[None]).nan_to_num().square().sum(2) + 1e9 * torch.eye(len(x), dtype=x.dtype)
    nearest = apart.amin(1)
    short = (x[:, 2:] == 0).all(1) & (nearest < 100)
    return self.layer(torch.cat([x, torch.where(short, nearest, 0.0)[:, None]], 1))


def test_records_of_a_trial_have_no_twins():
    """A twin would be the nearest, at no distance: as if there were no other."""
    model = Applied(nearest_of_short, layer=nn.Linear(7, 3))
    gradients = RecordGradients(model, Mask.dense(model), cross_entropy)
    gradients.check(torch.zeros(4, 6), CLASSES, apart=False)
    gradients.settle(200.0)
    assert gradients.pass_rows > 100
    assert refused(gradients.rehearse, Clip(1.0)) == MIXED.format("the loss")


def recorders() -> set[int]:
    return {id(value) for value in gc.get_objects() if isinstance(value, Recorder)}


def test_what_a_pass_left_is_free_when_it_is_over():
    """No cycle waits for Python's collector: a pass holds all that layers saw."""
    gc.disable()
    try:
        model = nn.Sequential(nn.Conv2d(1, 4, 1), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(16, 3))
        gradients = checked(model, cross_entropy, torch.zeros(4, 1, 2, 2), CLASSES)
        gc.collect()
        before = recorders()  # of other tests, held by errors that are waiting to be shown
        gradients.filtered_sum(torch.rand(4, 1, 2, 2), CLASSES, Clip(1.0))
        assert recorders() <= before
    finally:
        gc.enable()


LABELS = torch.tensor([0, 1, 2, 2])
NUMBERS, SERIES, IMAGES = torch.zeros(4, 6), torch.zeros(4, 8, 5), torch.zeros(4, 3, 16, 16)
WORDS = torch.zeros(4, 8, dtype=torch.long)


def head(body: nn.Module, width: int, **how: Any) -> nn.Module:
    """A body of sequences, and a linear head on the mean over time of what it gives, or the first part of that."""

    def forward(self: Applied, x: Tensor) -> Tensor:
        given = self.body(x, **{name: make(x) for name, make in how.items()})
        return self.out((given[0] if isinstance(given, tuple) else given).mean(1))

    return Applied(forward, body=body, out=nn.Linear(width, 3))


def encoder() -> nn.Module:
    layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 12, batch_first=True), 2)
    return nn.Sequential(nn.Embedding(9, 8), head(layers, 8))


def padded_encoder() -> nn.Module:
    def forward(self: Applied, x: Tensor) -> Tensor:
        return self.out(self.body(self.table(x), src_key_padding_mask=x == 0).mean(1))

    body = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 12, batch_first=True), 2)
    return Applied(forward, table=nn.Embedding(9, 8), body=body, out=nn.Linear(8, 3))


def pooled() -> nn.Module:
    """Attention pooling: one learned query over all steps."""

    def forward(self: Applied, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.out(self.attention(self.query.expand(len(x), -1, -1), x, x)[0][:, 0])

    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    parts = {"first": nn.Linear(5, 8), "attention": attention, "query": nn.Parameter(torch.randn(1, 1, 8))}
    return Applied(forward, **parts, out=nn.Linear(8, 3))


def cells(kind: type[nn.RNNCellBase]) -> nn.Module:
    def forward(self: Applied, x: Tensor) -> Tensor:
        state: Any = None
        for step in x.unbind(1):
            state = self.cell(step, state)
        return self.out(state[0] if isinstance(state, tuple) else state)

    return Applied(forward, cell=kind(5, 4), out=nn.Linear(4, 3))


def residual() -> nn.Module:
    def forward(self: Applied, x: Tensor) -> Tensor:
        x = self.norm(self.first(x)).relu()
        x = (x + self.norm(self.second(x))).relu()
        return self.out(functional.max_pool2d(x, 2).mean((2, 3)))

    convolutions = {"first": nn.Conv2d(3, 8, 3, padding=1), "second": nn.Conv2d(8, 8, 3, padding=1)}
    return Applied(forward, **convolutions, norm=nn.GroupNorm(2, 8), out=nn.Linear(8, 3))


def depthwise() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 1), nn.Conv2d(6, 6, 3, groups=6), nn.InstanceNorm2d(6, affine=True), nn.SiLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(24, 3),
    )  # fmt: skip


def frozen_norm() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4).eval(), nn.Flatten(), nn.Linear(784, 3))


def bag(self: Applied, x: Tensor) -> Tensor:
    return self.out(self.table(x))


def single_precision(self: Applied, x: Tensor) -> Tensor:
    return self.out(x.float().to(torch.float32).softmax(1))


FOLLOWED: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "perceptron with GroupNorm": (
        lambda: nn.Sequential(nn.Linear(6, 8), nn.GroupNorm(2, 8), nn.ReLU(), nn.Linear(8, 3)), NUMBERS
    ),
    "picture with dropout": (Picture, IMAGES),
    "residual": (residual, IMAGES),
    "depthwise": (depthwise, IMAGES),
    "frozen batch normalisation": (frozen_norm, IMAGES),
    "tied table": (lambda: Applied(lambda s, x: s.inner(x).mean(1)[:, :3], inner=tied()), WORDS % 6),
    "bag of words": (lambda: Applied(bag, table=nn.EmbeddingBag(9, 8), out=nn.Linear(8, 3)), WORDS),
    "encoder": (encoder, WORDS),
    "encoder with padding": (padded_encoder, WORDS),
    "attention pooling": (pooled, SERIES),
    "names single precision": (lambda: Applied(single_precision, out=nn.Linear(6, 3)), NUMBERS),
    **{kind.__name__: (partial(lambda kind: head(kind(5, 4, batch_first=True), 4), kind), SERIES)
       for kind in (nn.RNN, nn.GRU, nn.LSTM)},
    "two directions": (lambda: head(nn.LSTM(5, 4, 2, batch_first=True, bidirectional=True), 8), SERIES),
    "with a state": (lambda: head(nn.GRU(5, 4, batch_first=True), 4, hx=lambda x: x.new_ones(1, len(x), 4)), SERIES),
    **{kind.__name__: (partial(cells, kind), SERIES) for kind in (nn.RNNCell, nn.GRUCell, nn.LSTMCell)},
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*nested tensors")
@pytest.mark.parametrize("name", FOLLOWED)
def test_networks_that_are_mapped_over_records(name):
    build, x = FOLLOWED[name]
    torch.manual_seed(0)
    checked(build(), cross_entropy, x, LABELS)


def written(self: Applied, x: Tensor) -> Tensor:
    out = torch.zeros(len(x), 3)
    out += self.layer(x)
    return out


def masked(self: Applied, x: Tensor) -> Tensor:
    out = self.layer(x) * 1
    out[out < 0] = 0
    return out


def through_numpy(self: Applied, x: Tensor) -> Tensor:
    return self.layer(x + torch.from_numpy(x.detach().numpy() ** 2))


class Centred(torch.autograd.Function):
    """The same for a record alone; its rule for all of them is not."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        return gradient

    @staticmethod
    def vmap(_info: Any, in_dims: Any, x: Tensor) -> tuple[Tensor, int]:
        return x - x.mean(0), in_dims[0]


def test_a_rule_for_all_records_that_a_function_brings_along_is_not_used():
    model = Applied(lambda self, x: Centred.apply(self.layer(x)), layer=nn.Linear(6, 3))
    checked(model, cross_entropy, NUMBERS, LABELS, mapped=False)
    model = Applied(lambda self, x: Centred.apply(x @ self.weight), weight=nn.Parameter(torch.ones(6, 3)))
    assert "a rule for torch.func.vmap of its own)" in refusal(model, cross_entropy, NUMBERS, LABELS)


class Looks(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


class LooksInside(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


class Weight(nn.Parameter):
    """As a library has them."""


SEES_ALL: dict[str, tuple[Callable[..., Any], str]] = {
    "function mode": (Looks, "a Looks sees every operation"),
    "dispatch mode": (LooksInside, "a LooksInside sees every operation"),
    "saved tensors": (lambda: saved_tensors_hooks(lambda x: x, lambda x: x), "hooks of saved tensors see all records"),
}


@pytest.mark.parametrize("name", SEES_ALL)
def test_what_would_see_all_records_is_not_mapped_over(name):
    within, why = SEES_ALL[name]

    def forward(self: Applied, x: Tensor) -> Tensor:
        with within():
            return self.layer(x)

    gradients = checked(Applied(forward, layer=nn.Linear(6, 3)), cross_entropy, NUMBERS, LABELS, mapped=False)
    assert gradients._plan.unmapped == why
    if name != "saved tensors":
        with within():  # around a training
            checked(nn.Linear(6, 3), cross_entropy, NUMBERS, LABELS, mapped=False)
    model = nn.Linear(6, 3)
    model.weight = Weight(torch.ones(3, 6))
    checked(model, cross_entropy, NUMBERS, LABELS, mapped=False)


def test_a_hook_on_a_loss_is_shown_one_record():
    loss, seen = nn.CrossEntropyLoss(reduction="none"), []
    loss.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    gradients = checked(nn.Linear(6, 3), loss, NUMBERS, LABELS)
    seen.clear()
    gradients._plan.calls(NUMBERS, LABELS, None)
    assert seen == [1]
    assert at_once(loss) is None is not at_once(nn.CrossEntropyLoss(reduction="none"))


def test_threads_are_sealed_each_by_itself():
    """One that began while another was sealed stays so when that ends; and what is in no pass never is."""
    entered, ended = threading.Event(), threading.Event()

    def looks() -> None:
        for mode in (Looks(), LooksInside()):
            with mode:
                torch.ones(1).add(1)

    def another() -> None:
        with sealed():
            entered.set()
            ended.wait(60)
            for mode in (Looks(), LooksInside()):
                with pytest.raises(CannotFollow, match="sees every operation"):
                    mode.__enter__()

    with ThreadPoolExecutor(1) as pool:
        with sealed():
            told = pool.submit(another)
            entered.wait(60)
        looks()
        ended.set()
        told.result()
    looks()


@pytest.mark.parametrize("holder", [SimpleNamespace, nn.Module])
def test_tensors_that_outlive_the_map_are_refused(holder):
    """The next pass would take them for its own records', place by place."""
    kept = holder()

    def forward(self: Applied, x: Tensor) -> Tensor:
        if len(x) == 1:
            kept.last = x.detach()
        return self.layer(x)

    model = Applied(forward, layer=nn.Linear(6, 3), kept=kept)
    assert refusal(model, cross_entropy, NUMBERS, LABELS) == f"model or loss: {KEPT}"


ONE_BY_ONE: dict[str, Callable[..., Tensor]] = {"written": written, "masked": masked, "numpy": through_numpy}


@pytest.mark.parametrize("name", ONE_BY_ONE)
def test_networks_whose_records_pass_one_by_one(name):
    """They are refused where they mix: the same with the mean over the batch added."""
    forward = ONE_BY_ONE[name]
    checked(Applied(forward, layer=nn.Linear(6, 3)), cross_entropy, NUMBERS, LABELS, mapped=False)

    def mixing(self: Applied, x: Tensor) -> Tensor:
        out = forward(self, x)
        return out + 1e-3 * out.mean(0)

    said = refusal(Applied(mixing, layer=nn.Linear(6, 3)), cross_entropy, NUMBERS, LABELS)
    assert said.startswith("model or loss: what one record gives depends on the rest of the batch")


SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24, "num_labels": 3}
READERS = {"vocab_size": 50, "max_position_embeddings": 16}
GPT = {"vocab_size": 50, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}
DISTIL = {"vocab_size": 50, "max_position_embeddings": 16, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24}
STAGES = {"depths": [1, 1], "hidden_sizes": [8, 16], "num_stages": 2}

LIBRARY: dict[str, tuple[dict[str, Any], Tensor]] = {
    "BertForSequenceClassification": (SMALL | READERS, WORDS),
    "RobertaForSequenceClassification": (SMALL | READERS, WORDS),
    "DistilBertForSequenceClassification": (DISTIL | {"num_labels": 3}, WORDS),
    "GPT2ForSequenceClassification": (GPT | {"num_labels": 3, "pad_token_id": 0}, WORDS),
    "ViTForImageClassification": (SMALL | {"image_size": 16, "patch_size": 8}, IMAGES),
    "ConvNextForImageClassification": (STAGES | {"num_labels": 3}, torch.zeros(4, 3, 32, 32)),
}


@pytest.mark.one_of(3)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", LIBRARY)
def test_networks_of_a_library_are_mapped_over_where_their_mask_has_four_dimensions(name, attention):
    """Of a mask with two the library asks whether anything is masked."""
    transformers = pytest.importorskip("transformers")
    settings, x = LIBRARY[name]
    kind = getattr(transformers, name)
    torch.manual_seed(0)

    def forward(self: Applied, x: Tensor, four: bool = True) -> Tensor:
        mask = torch.where(x != 0, 0.0, -1e9)[:, None, None] if four else (x != 0).long()
        return self.body(x, **({} if x.is_floating_point() else {"attention_mask": mask})).logits

    if name.startswith("ConvNext"):
        attention = None
    body = kind(kind.config_class(**settings, attn_implementation=attention))
    checked(Applied(forward, body=body), cross_entropy, x, LABELS)
    if not x.is_floating_point() and attention == "sdpa":
        found = checked(Applied(partial(forward, four=False), body=body), cross_entropy, x, LABELS, mapped=False)
        assert found._plan.unmapped.endswith("decides by values of the batch")
