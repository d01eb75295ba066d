"""What a plan refuses, in which words; what it accepts is right; probing leaves no trace; a changed model is tried again."""

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as every_module
from torch.nn.utils import parametrizations, prune, weight_norm
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

from dpltm.filters import Clip
from dpltm.gradients import RecordGradients, engine
from dpltm.gradients.explicit_layer import ExplicitLayer
from dpltm.gradients.layer import Workspace
from dpltm.gradients.probe import structure
from dpltm.networks.masks import Mask
from gradient_cases import MIXED, Applied, Product, checked, cross_entropy, refusal, right, squared_error
from refusals import refused

once = pytest.mark.parametrize("_products", ["dense"], indirect=True)
"""Once, not with sparse products too: what is refused has no plan, and in other plans no layer takes products."""


def scaled(how: Callable[[Tensor, Tensor], Tensor], width: int = 6) -> nn.Module:
    """A module with a parameter and no rule."""
    return Applied(lambda self, x: how(x, self.scale), scale=nn.Parameter(torch.ones(width)))


def between(middle: Callable[[Tensor], Tensor]) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 4), Applied(lambda _, x: middle(x)), nn.Linear(4, 3))


def inside(module: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 4), nn.Sequential(nn.ReLU(), module))


def reparametrised(apply: Callable[[nn.Module], Any]) -> nn.Module:
    layer = nn.Linear(4, 3)
    apply(layer)
    return inside(layer)


BATCH_NORM = "1.1 is a batch normalisation, which mixes records; put nn.GroupNorm in its place, or call eval() on it"
HALF = "is of {}; use float32 for all parameters, or float64 for all"
FROZEN = "every parameter is frozen (requires_grad=False), so there is nothing to train"
HOOK = "weight has a hook on its gradient, unseen by records' own; remove it, or give a mask"
COMPILED = "is compiled, which hides its layers; give the module itself"
REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "BatchNorm1d": (lambda: inside(nn.BatchNorm1d(4)), BATCH_NORM),
    "SyncBatchNorm": (lambda: inside(nn.SyncBatchNorm(4)), BATCH_NORM),
    "InstanceNorm1d": (
        lambda: inside(nn.InstanceNorm1d(4, track_running_stats=True)),
        "1.1 keeps statistics of records outside the ledger; use track_running_stats=False",
    ),
    "frequency": (
        lambda: nn.Embedding(7, 2, scale_grad_by_freq=True),
        "Embedding scales gradients by frequency in the batch, which mixes records; leave it out",
    ),
    "bfloat16": (lambda: inside(nn.LayerNorm(4).to(torch.bfloat16)), f"0.weight {HALF.format('torch.float32')}"),
    "two dtypes": (lambda: inside(nn.Linear(4, 3).double()), f"0.weight {HALF.format('torch.float32')}"),
    "frozen": (lambda: nn.Linear(6, 2).requires_grad_(False), FROZEN),
    "no parameter": (nn.ReLU, FROZEN),
    "hook on a weight": (lambda: hooked(nn.Linear(6, 2), "register_hook"), HOOK),
    "hook behind a gradient": (lambda: hooked(nn.Linear(6, 2), "register_post_accumulate_grad_hook"), HOOK),
    "without gradients": (
        torch.inference_mode()(lambda: nn.Linear(6, 2)),
        "weight was made under torch.inference_mode; make the model outside of it",
    ),
    "expanded rows": (
        lambda: expanded((1, 6), (3, 6)), "scale has coordinates that share memory (expand); use clone()"
    ),
    "compiled": (lambda: torch.compile(nn.Linear(6, 3)), f"OptimizedModule {COMPILED}"),
    "a part scripted": (lambda: nn.Sequential(torch.jit.script(nn.Linear(6, 3)), nn.ReLU()), f"0 {COMPILED}"),
    "lazy": (
        lambda: nn.Sequential(nn.LazyLinear(3)), "0.weight is lazy and has no shape yet; run made-up records through it"
    ),
}  # fmt: skip


def hooked(model: nn.Module, register: str) -> nn.Module:
    getattr(model.weight, register)(lambda _: None)
    return model


def expanded(shape: tuple[int, ...], size: tuple[int, ...]) -> nn.Module:
    return Applied(lambda self, x: x * self.scale, scale=nn.Parameter(torch.ones(shape).expand(size)))


@once
@pytest.mark.filterwarnings("ignore:.*is deprecated in favor of:FutureWarning", "ignore:.*torch.jit")
@pytest.mark.parametrize("name", REFUSED)
def test_networks_refused_for_what_they_are(name):
    build, message = REFUSED[name]
    model = build()
    assert (
        refused(RecordGradients, model, Mask({}) if name == "lazy" else Mask.dense(model), squared_error)
        == f"model: {message}"
    )


@once
@pytest.mark.filterwarnings("ignore:.*is deprecated in favor of:FutureWarning")
@pytest.mark.parametrize(
    ("build", "x", "name"),
    [
        (lambda: reparametrised(lambda layer: prune.l1_unstructured(layer, "weight", 0.5)), torch.zeros(4, 6), "1.1.weight"),
        (lambda: reparametrised(weight_norm), torch.zeros(4, 6), "1.1.weight"),
        (lambda: nn.Embedding(7, 2, max_norm=0.1), torch.zeros(4, 3, dtype=torch.long), "weight"),
    ],
    ids=["pruned by a hook", "weight norm", "max_norm"],
)  # fmt: skip
def test_weights_that_a_pass_makes_anew_are_a_state(build, x, name):
    said = f"model: {name} changes with the records it sees; use a module without state"
    assert refusal(build(), x=x) == said


@once
@pytest.mark.parametrize(
    "function", [lambda x: (x - 5).log(), lambda x: x + (0 * x).sqrt()], ids=["of NaN", "at zero"]
)
def test_gradients_that_are_not_finite_are_refused_for_that(function):
    assert refusal(inside(Applied(lambda _, x: function(x.sigmoid())))) == (
        "model or loss: the gradient of 0.weight is not finite on made-up records of numbers from 0 to 1; keep logs, roots"
        " and quotients away from 0"
    )


@once
def test_a_mask_of_another_shape_is_refused():
    message = refusal(nn.Conv1d(3, 2, 3), mask=Mask.dense(nn.Conv1d(3, 2, 2)))
    assert message == "mask weight: shape (2, 3, 2) in the mask, (2, 3, 3) in the network"


# Losses, randomness, failures, and what torch.func cannot take.

REMEDY = (
    "use reduction='none' and the mean of a record's losses (flatten(1).mean(1)), give outputs and labels one shape, and let"
    " dimension 0 be the record (squeeze(1) in place of squeeze())"
)


@once
@pytest.mark.parametrize(
    ("loss", "shape"),
    [
        (lambda out, y: squared_error(out, y).mean(), "()"),
        (lambda out, y: squared_error(out, y)[:, None], "(11, 1)"),
        (lambda out, y: (out[:, :1] - y).square(), "(11, 11)"),
        (lambda out, y: squared_error(out, y)[:4], "(4,)"),  # which happens to fit the batch
    ],
    ids=["mean", "column", "pairs", "as many as the batch"],
)
def test_a_loss_that_is_not_one_value_a_record_is_refused(loss, shape):
    expected = "of outputs (11, 2) and labels (11,), expected one value for each of 11 records"
    assert refusal(nn.Linear(6, 2), loss) == f"loss: shape {shape} {expected}; {REMEDY}"


@once
def test_a_model_that_drops_the_dimension_of_records_is_told_so():
    """With one record alone, squeeze() takes it away as well."""
    model = Applied(lambda self, x: self.layer(x[:, None]).squeeze(), layer=nn.Linear(6, 3))
    said = "loss: shape () of outputs (3,) and labels (1,), expected one value for each of 1 records"
    assert refusal(model, cross_entropy, y=torch.zeros(4, dtype=torch.long)) == f"{said}; {REMEDY}"


@once
def test_a_loss_that_does_not_depend_on_the_parameters_is_refused():
    for loss in (lambda out, y: squared_error(out.detach(), y), lambda _, y: y * 1.0):
        assert refusal(nn.Linear(6, 2), loss) == "loss: does not depend on any parameter of the model"
    x, y = torch.ones(5, 3), torch.ones(5)
    gradients = checked(nn.Linear(3, 2), lambda out, _: torch.zeros(len(out)).requires_grad_(), x, y, mapped=False)
    assert gradients.filtered_sum(x, y, Clip(1.0)).values.tolist() == [0.0] * 8  # which is what it asks for


@once
def test_what_torch_func_cannot_take_is_refused():
    message = refusal(scaled(Product.apply))
    assert message.startswith("model: torch.func cannot take a Applied one record at a time (")
    assert message.endswith("); use modules with a rule of their own")


def first_of(layer: nn.Module) -> nn.Module:
    return Applied(lambda self, x: self.layer(x)[0], layer=layer)


@once
@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_recurrent_modules_without_a_rule_are_refused():
    def packed(self: Applied, x: Tensor) -> Tensor:
        sequence = pack_padded_sequence(x, torch.full((len(x),), x.shape[1]), batch_first=True)
        return pad_packed_sequence(self.layer(sequence)[0], batch_first=True)[0]

    for model in (
        Applied(packed, layer=nn.GRU(3, 2, batch_first=True)),
        first_of(nn.LSTM(3, 2, proj_size=1, batch_first=True)),
    ):
        said = refusal(model, x=torch.zeros(5, 4, 3))
        assert said.endswith(
            "has proj_size, or saw other than one row, or one sequence of one length, a record; leave"
            " proj_size and packing out, and let dimension 0 of what the model is given be the record"
        )


# What is to be accepted, and right.


def encoder(**options: Any) -> nn.Module:
    return nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, **options)


def causal(self: Applied, x: Tensor) -> Tensor:
    mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
    return self.layer(x, src_mask=mask, is_causal=True)


def learned_positions() -> nn.Module:
    def forward(self: Applied, x: Tensor) -> Tensor:
        return self.head((x + self.places(torch.arange(x.shape[1]))).tanh())

    return Applied(forward, places=nn.Embedding(9, 2), head=nn.Linear(2, 3))


def doubled() -> nn.Module:
    layer = nn.Linear(3, 2)
    layer.register_forward_hook(lambda _module, _inputs, output: 2 * output)
    return layer


def time_first(kind: type[nn.Module]) -> nn.Module:
    return Applied(lambda self, x: self.layer(x.transpose(0, 1))[0].transpose(0, 1), layer=kind(2, 2))


ACCEPTED: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "instance norm": (lambda: nn.Sequential(nn.InstanceNorm1d(4, affine=True), nn.ReLU(), nn.Conv1d(4, 2, 1)), (4, 6)),
    "over features": (lambda: between(lambda x: (x - x.mean(1, keepdim=True)).softmax(1)), (6,)),
    "flatten": (lambda: nn.Sequential(nn.Conv2d(1, 2, 2), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(18, 2)), (1, 4, 4)),
    "positions as rows": (lambda: Applied(lambda s, x: s.l(x.flatten(0, 1)).view(len(x), -1), l=nn.Linear(3, 2)), (4, 3)),
    "time first": (lambda: Applied(lambda s, x: s.l(x.transpose(0, 1))[0][-1], l=nn.GRU(3, 2)), (4, 3)),
    "orthogonal": (lambda: nn.Sequential(parametrizations.orthogonal(nn.Linear(3, 3)), nn.Linear(3, 2)), (3,)),
    "hook": (doubled, (3,)),
    "custom function without parameters": (
        lambda: nn.Sequential(nn.Linear(3, 3), Applied(lambda _, x: Product.apply(x, x.new_ones(3))), nn.Linear(3, 2)), (3,)
    ),
    "custom layer of two names": (
        lambda: Applied(lambda s, x: s.b(s.a(x).tanh()) * s.g, a=(a := nn.Linear(3, 3)), b=a, g=nn.Parameter(torch.ones(3))),
        (3,),
    ),
    "positions": (learned_positions, (5, 2)),
    "causal": (lambda: Applied(causal, layer=encoder(dropout=0.0)), (5, 4)),
    **{
        f"{kind.__name__} of {time} steps": (lambda kind=kind: time_first(kind), (time, 2))
        for kind in (nn.GRU, nn.LSTM, nn.RNN)
        for time in (2, 3, 11)
    },
}  # fmt: skip


@pytest.mark.one_of(6)
@once
@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", ACCEPTED)
def test_what_keeps_records_apart_is_accepted_and_right(name):
    build, shape = ACCEPTED[name]
    plan = right(build(), torch.randn(5, *shape))._plan
    if "steps" in name or name.startswith("custom"):
        assert not plan.by_torch_func


@once
@pytest.mark.filterwarnings("error")
def test_complex_numbers_keep_both_parts():
    spectrum = scaled(lambda x, scale: torch.fft.rfft(x) * scale, 4)
    model = nn.Sequential(spectrum, Applied(lambda _, x: torch.fft.irfft(x)))
    assert not right(model, torch.randn(5, 6), cross_entropy, torch.arange(5))._plan.by_torch_func


def without_gradient(self: Applied, x: Tensor) -> Tensor:
    with torch.no_grad():
        features = self.first(x)
    return self.out(features.flatten(1))


def by_keyword(self: Applied, x: Tensor) -> Tensor:
    return self.out(input=self.first(input=x).flatten(1))


def checkpointed(self: Applied, x: Tensor) -> Tensor:
    return self.out(checkpoint(lambda value: self.first(value).tanh(), x, use_reentrant=False).flatten(1))


@pytest.mark.one_of(4)
@pytest.mark.parametrize("forward", [without_gradient, by_keyword, checkpointed], ids=lambda value: value.__name__)
@pytest.mark.parametrize("first", [nn.Conv1d(1, 1, 1), nn.Linear(4, 4), nn.LayerNorm(4), nn.PReLU()], ids=repr)
def test_any_way_to_call_a_module_is_right(forward, first):
    mapped = forward is not checkpointed or not isinstance(
        first, nn.LayerNorm
    )  # which is computed once more, too late
    model = Applied(forward, first=copy.deepcopy(first), out=nn.Linear(4, 3))
    gradients = right(model, torch.randn(5, 1, 4), mapped=mapped)
    assert not gradients._plan.by_torch_func


def test_tokens_and_classes_are_accepted_and_right():
    tokens = torch.randint(0, 6, (5, 4))
    right(nn.Embedding(7, 3, sparse=True), tokens)
    right(nn.Sequential(nn.Embedding(1, 2), nn.Flatten(), nn.Linear(6, 3)), torch.zeros(4, 3, dtype=torch.long))
    single = torch.zeros(5, dtype=torch.long)
    right(nn.Linear(6, 1), torch.randn(5, 6), lambda o, y: cross_entropy(o, y) + o[:, 0] ** 2, single)


def test_a_forward_of_ones_own_on_a_layer_is_neither_ignored_nor_removed():
    layer = nn.Linear(6, 3)
    layer.forward = lambda x: 2 * nn.functional.linear(x, layer.weight, layer.bias)
    right(nn.Sequential(layer, nn.Tanh()), torch.randn(5, 6))
    assert "forward" in vars(layer)


@once
def test_one_record_and_no_record_are_enough_to_check():
    for records in (0, 1):
        gradients = checked(nn.Linear(3, 2), squared_error, torch.ones(records, 3), torch.ones(records))
        assert gradients.filtered_sum(torch.ones(5, 3), torch.ones(5), Clip(1.0)).values.count_nonzero() == 8


def test_parameters_that_are_zero_or_absurd_are_accepted():
    """A network of zeros would hide every mistake, and one of infinities would have no gradient to compare."""
    for value in (0.0, math.nan):
        model = nn.Sequential(nn.Conv1d(2, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(15, 2))
        for weight in model.parameters():
            weight.data.fill_(value)
        assert not checked(model, squared_error, torch.ones(5, 2, 6), torch.ones(5))._plan.by_torch_func


def traces(model: nn.Module) -> list[object]:
    """Everything about a network that probing might change, comparable; and the random state."""
    tensors = {**model.state_dict(keep_vars=True)}
    for prefix, module in model.named_modules():
        tensors |= {f"{prefix}:{key}": value for key, value in vars(module).items() if isinstance(value, Tensor)}
    values = [(name, id(value), value.detach().numpy().tobytes()) for name, value in tensors.items()]
    parameters = [(p.requires_grad, p.data_ptr(), p._backward_hooks, p.grad, repr(p.grad)) for p in model.parameters()]
    told = [
        "training",
        "p",
        "dropout",
        *(f"_{way}{when}_hooks" for way in ("forward", "backward") for when in ("", "_pre")),
    ]
    modules = [repr([getattr(module, name, None) for name in told]) for module in model.modules()]
    return [values, [repr(part) for part in parameters], modules, torch.get_rng_state().tolist()]


def counts(self: Applied, x: Tensor) -> Tensor:
    self.seen += x.detach().sum(0)
    return self.layer(x)


PROBED = {
    "rules": (lambda: nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.0), nn.GroupNorm(2, 4), nn.Linear(4, 2)), True),
    "torch.func": (lambda: nn.Sequential(nn.Linear(6, 3), scaled(torch.mul, 3), nn.Dropout(0.0)), True),
    "whole": (lambda: Applied(lambda s, x: s.l(x) + s.l.weight.sum(), l=nn.Linear(6, 2)), True),
    "encoder": (lambda: nn.Sequential(nn.Linear(6, 8), nn.Unflatten(1, (2, 4)), encoder(dropout=0.0)), True),
    "drops": (lambda: nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.5), scaled(torch.mul, 4)), True),
    "mixed": (lambda: nn.Sequential(nn.Dropout(0.0), between(lambda x: x - x.mean(0))), False),
    "random": (lambda: scaled(lambda x, scale: x * scale * torch.rand(6)), False),
    "state": (lambda: Applied(counts, layer=nn.Linear(6, 3), seen=nn.Buffer(torch.zeros(6))), False),
}


@pytest.mark.one_of(2)
@once
@pytest.mark.parametrize("name", PROBED)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_probing_leaves_no_trace_even_where_it_refuses(name, training):
    build, good = PROBED[name]
    model = build().train(training)
    for child in list(model.children())[-1:]:
        child.train(not training)
    model.register_buffer("constant", torch.tensor([math.nan, -0.0]))
    model.attribute = torch.tensor([math.nan, -0.0])
    for number, weight in enumerate(model.parameters()):
        weight.data.view(-1)[0] = (-0.0, math.nan, 1e-45, -math.inf, 3e38, 0.0)[number % 6]
        weight.grad = torch.full_like(weight, 7.0)
    model.register_forward_hook(lambda *_: None)
    torch.rand(3)
    before = traces(model)
    x, y = torch.full((4, 6), math.nan, requires_grad=True), torch.full((4,), math.nan)
    with torch.no_grad():
        if good:
            checked(model, squared_error, x, y)
        else:
            refusal(model, squared_error, x, y)
        assert not torch.is_grad_enabled()
    assert traces(model) == before
    assert x.grad is None
    assert bool(x.isnan().all())


@once
@pytest.mark.parametrize("value", [0.0, math.nan, 1e30])
def test_the_plan_does_not_depend_on_values(value):
    """What model and loss see while it is made is the same, bit for bit, whatever the records hold."""
    seen: list[bytes] = []

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        seen.extend(values.detach().numpy().tobytes() for values in (outputs, labels))
        return squared_error(outputs, labels)

    def forward(self: Applied, x: Tensor) -> Tensor:
        seen.append(x.numpy().tobytes())
        return self.second(self.first(x))

    plans = []
    for fill in (0.5, value):
        torch.manual_seed(0)
        model = Applied(forward, first=nn.Linear(3, 4), second=nn.Linear(4, 2))
        seen.clear()
        plan = checked(model, loss, torch.full((9, 3), fill), torch.full((9,), fill), mapped=False)._plan
        plans.append(
            (
                [type(layer) for layer in plan.layers],
                plan.probe.copy,
                plan.by_torch_func,
                plan.kept,
                plan.passing,
                tuple(seen),
            )
        )
    assert len(plans[0][-1]) > 3
    assert plans[0] == plans[1]


def test_the_plan_is_made_once_and_before_any_record_is_touched():
    """A refusal at the first batch is the same refusal, and a second batch asks nothing more."""
    model, x, y = between(lambda x: x - x.mean(0)), torch.ones(5, 6), torch.ones(5)
    gradients = RecordGradients(model, Mask.dense(model), squared_error)
    for _ in range(2):
        assert refused(lambda: gradients.filtered_sum(x, y, Clip(1.0))) == MIXED.format("the loss")
    gradients = checked(nn.Linear(6, 2), squared_error, x, y)
    plan = gradients._plan
    gradients.filtered_sum(x, y, Clip(1.0))
    assert gradients._plan is plan


def test_a_trial_writes_out_one_layer_at_a_time_and_keeps_none_of_it(monkeypatch):
    """Of a large network, all gradients of all made-up records would be more than a training ever holds."""
    held: list[int] = []
    rows = Workspace.rows

    def noting(self: Workspace, *given: Any) -> Tensor:
        held.append(len([layer for layer in layers if layer._values]))
        return rows(self, *given)

    layers: list[ExplicitLayer] = []
    begin = ExplicitLayer.begin
    monkeypatch.setattr(ExplicitLayer, "begin", lambda self, count: (layers.append(self), begin(self, count))[1])
    monkeypatch.setattr(Workspace, "rows", noting)
    model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 5), nn.Linear(5, 2))
    checked(model, squared_error, torch.ones(9, 3, 6), torch.ones(9))
    assert len(set(map(id, layers))) == 3
    assert set(held) == {0}, "a layer begins while another holds its gradients"
    assert not any(layer._space._buffers for layer in layers)


X, Y = torch.linspace(-1, 1, 24).view(6, 4), torch.arange(6) % 3
MIXES = "what one record gives depends on the rest of the batch"


def mixing(value: Tensor) -> Tensor:
    return value - value.mean(0)


class Switched(nn.Sequential):
    """Mixes records as soon as one of its settings says so; a module in it does in one mode."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
        self.then = torch.relu
        self[1].register_forward_hook(lambda module, _, output: output if module.training else mixing(output))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.then(x))


ANOTHER = "its parameters, or which are trained (requires_grad), changed; begin anew with it"
CHANGES: dict[str, tuple[Callable[[Any], object], str]] = {
    "another module": (
        lambda model: setattr(model, "1", nn.BatchNorm1d(5, affine=False, track_running_stats=False)), "batch normalisation"
    ),
    "more parameters": (lambda model: setattr(model, "1", nn.LayerNorm(5)), ANOTHER),
    "hook": (lambda model: model[1].register_forward_hook(lambda _module, _inputs, output: mixing(output)), MIXES),
    "hook before": (lambda model: model[2].register_forward_pre_hook(lambda _, inputs: (mixing(inputs[0]),)), MIXES),
    "forward": (lambda model: setattr(model[1], "forward", mixing), MIXES),
    "mode of a part": (lambda model: model[1].eval(), MIXES),
    "function": (lambda model: setattr(model, "then", mixing), MIXES),
    "frozen": (lambda model: model[0].requires_grad_(False), ANOTHER),
    "unfrozen": (lambda model: model[2].requires_grad_(True), ANOTHER),
    "another parameter": (lambda model: setattr(model[0], "weight", nn.Parameter(torch.ones(5, 4))), ANOTHER),
    "hook on a weight": (lambda model: hooked(model[0], "register_hook"), "0.weight has a hook"),
}  # fmt: skip


def switched() -> tuple[Switched, RecordGradients]:
    model = Switched()
    model[2].requires_grad_(False)
    gradients = RecordGradients(model, Mask.dense(model), cross_entropy)
    gradients.filtered_sum(X, Y, Clip(1.0))
    return model, gradients


@once
@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_model_is_tried_again_and_stays_refused(name):
    model, gradients = switched()
    change, said = CHANGES[name]
    change(model)
    for _ in range(2):
        assert said in refused(gradients.filtered_sum, X, Y, Clip(1.0))


class Mixing(nn.ReLU):
    """Looks at other records."""

    def forward(self, x: Tensor) -> Tensor:
        return mixing(x)


EVERYWHERE: dict[str, Callable[[Any, pytest.MonkeyPatch], object]] = {
    "function of a class": lambda _, patch: patch.setattr(nn.ReLU, "forward", Mixing.forward),
    "another class": lambda model, _: setattr(model[1], "__class__", Mixing),
    "hook on all modules": lambda _, patch: patch.setitem(
        every_module._global_forward_hooks,
        0,
        lambda module, _, output: mixing(output) if type(module) is nn.ReLU else None,
    ),
}


@once
def test_a_hook_on_all_backward_passes_is_looked_at_as_well(monkeypatch):
    """PyTorch keeps a truth value beside them, which stays."""
    monkeypatch.setattr(every_module, "_global_is_full_backward_hook", None)
    model = nn.Tanh()
    before = structure(model, cross_entropy)
    with every_module.register_module_full_backward_hook(lambda *_: None):
        assert structure(model, cross_entropy) != before


@once
@pytest.mark.parametrize("name", EVERYWHERE)
def test_a_change_of_a_class_or_of_all_modules_is_tried_again(name, monkeypatch):
    model, gradients = switched()
    EVERYWHERE[name](model, monkeypatch)
    assert MIXES in refused(gradients.filtered_sum, X, Y, Clip(1.0))


@once
def test_a_harmless_change_goes_on() -> None:
    model, gradients = switched()
    model[1] = nn.Tanh()
    expected = RecordGradients(model, Mask.dense(model), cross_entropy).filtered_sum(X, Y, Clip(1.0)).values
    assert torch.equal(gradients.filtered_sum(X, Y, Clip(1.0)).values, expected)


@once
def test_what_a_program_notes_at_every_step_is_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of losses, a copy of the weights: trying the model anew each time would take long."""
    model, gradients = switched()
    monkeypatch.setattr("dpltm.gradients.engine.make_plan", None)
    model.noted, model.copy = [1.0], torch.ones(9)  # type: ignore[assignment]
    gradients.filtered_sum(X, Y, Clip(1.0))


@pytest.mark.parametrize("threads", [1, 2, 8])
@pytest.mark.parametrize("widths", [(), (1, 10, 784), (3,), (64, 8192), (2050,), (40_001,)], ids=str)
def test_no_thread_has_a_remainder_in_any_tensor(widths, threads, monkeypatch):
    """Threads share what has more numbers than torch's grain evenly; a remainder begins behind the last whole 32."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    for expected in (20, 64, 128, 400, 3000):
        for vectors in (32, 64):
            shapes = engine.shapes_of(expected, 10_000, 2.0, widths, smaller=4, vectors=vectors)
            for count in [rows * width for rows in shapes for width in widths or range(1, 9)]:
                share = math.ceil(count / min(threads, math.ceil(count / 32_768)))
                assert share % vectors == count % vectors == 0


@pytest.mark.parametrize(("fixed", "expected"), [(0.5, 256), (0.5, 300), (4.0, 1000), (40.0, 4096)])
def test_a_tenth_is_filled_up_at_most(expected, fixed):
    """From 256 records on where a pass costs little by itself; else filling some more up costs less than another pass."""
    for most, widths in ((16, (8192,)), (64, (8192, 10)), (10_000, (784, 10)), (10_000, ())):
        for smaller in (0, 4):
            shapes = engine.shapes_of(expected, most, fixed, widths, smaller=smaller)
            assert len(shapes) <= smaller + 1
            assert list(shapes) == sorted(set(shapes))
            drawn = np.random.default_rng(0).poisson(expected, 20_000)
            rest = (drawn - 1) % shapes[-1] + 1
            filled = drawn - rest + np.array(shapes)[np.searchsorted(shapes, rest)]
            assert float(filled.mean()) <= 1.1 * expected


@pytest.mark.parametrize("most", [1, 3, 7, 15, 16, 40])
def test_a_pass_never_has_more_rows_than_fit(most):
    for widths in ((), (10,), (7,)):
        assert 1 <= engine.shapes_of(64, most, 2.0, widths, smaller=4)[-1] <= most


def test_rows_that_lie_side_by_side_have_no_remainder_either():
    """As sparse products have them: 336 rows would do for the widths alone."""
    model = nn.Linear(64, 32)
    mask = Mask({"weight": torch.arange(2048).view(32, 64) % 20 == 0, "bias": torch.ones(32, dtype=torch.bool)})
    mask.apply(model)
    gradients = RecordGradients(model, mask, cross_entropy)
    gradients.check(torch.zeros(2, 64), torch.zeros(2, dtype=torch.long))
    gradients.settle(300.0, any_width=False)
    assert gradients.pass_rows % (32 if "sparse" in gradients.kernels.values() else 16) == 0
