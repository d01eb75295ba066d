"""Every kind of layer against the naive loop: one record at a time, plain autograd, the filter written out anew.

Each example asks for every kind of filter, and says whether rules or ``torch.func`` on the whole model should have done it:
a rule that is wrong may only show as the second where the first is expected.
"""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.module import register_module_forward_hook
from torch.utils.checkpoint import checkpoint

from dpltm.filters import Clip, make_filter
from dpltm.gradients import RecordGradients, explicit_layer, linear_layer, rules
from dpltm.gradients.explicit_layer import EmbeddingLayer
from dpltm.gradients.linear_layer import LinearLayer
from dpltm.networks import ModelSpec, build
from dpltm.networks.masks import Mask
from gradient_cases import (
    Applied,
    always,
    filters_for,
    naive_gradients,
    naive_sum,
    numbers,
    own_layers,
    prepared,
    squared_error,
    tied,
)

seeds, records = st.integers(0, 2**32), st.sampled_from([1, 2, 3, 4, 7])
EXAMPLES = settings.default.max_examples  # of the profile: fifty, or a thousand
once = pytest.mark.parametrize("_products", ["dense"], indirect=True)  # where examples choose, or nothing hangs on it


def tokens_of(seed: int, size: int, *shape: int) -> Tensor:
    return torch.randint(0, size, shape, generator=torch.Generator().manual_seed(seed))


def check(
    model: nn.Module,
    x: Tensor,
    seed: int,
    whole: bool = False,
    layers: list[list[str]] | None = None,
    sparse: bool | None = None,
    mask: Mask | None = None,
    mapped: bool = True,
) -> RecordGradients:
    """Asserts that every filtered sum is the naive one; ``layers`` are those of PerLayerClip if not the modules.

    ``sparse`` chooses the products, instead of the fixture; records that cannot be ``mapped`` over pass one by one.
    """
    mask, y = prepared(model, seed) if mask is None else mask, numbers(seed + 1, len(x))
    gradients = RecordGradients(model, mask, squared_error)
    with pytest.MonkeyPatch.context() as patch:
        if sparse is not None:
            patch.setattr(linear_layer, "kernel_for", always("sparse" if sparse else "dense"))
        gradients.check(x, y)
    assert (gradients._plan.by_torch_func, gradients._plan.unmapped == "") == (whole, mapped)
    if not mapped:
        gradients.pass_rows = 1
    expected = naive_gradients(model, mask, squared_error, x, y)
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


def check_both(make: Callable[[], nn.Module], x: Tensor, seed: int, layers: list[list[str]] | None = None) -> None:
    """With dense products, and with sparse ones too where a layer takes products."""
    gradients = check(make(), x, seed, layers=layers, sparse=False)
    if any(isinstance(layer, LinearLayer) for layer in gradients._plan.layers):
        check(make(), x, seed, layers=layers, sparse=True)


# Modules with rules of their own


@settings(max_examples=EXAMPLES * 3 // 10)
@given(
    records,
    st.lists(st.integers(1, 4), max_size=2),
    st.sampled_from([1, 2, 3, 4, rules.NARROW]),
    st.booleans(),
    st.booleans(),
    seeds,
)
def test_linear_on_any_number_of_positions(batch, positions, width, first_bias, second_bias, seed):
    model = nn.Sequential(nn.Linear(width, 4, bias=first_bias), nn.Tanh(), nn.Linear(4, 2, bias=second_bias))
    check(model, numbers(seed, batch, *positions, width), seed)


@st.composite
def convolutions(draw: st.DrawFn, dimensions: int) -> tuple[nn.Module, tuple[int, ...]]:
    """A convolution and the shape of an input that it can take."""

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(dimensions))

    kernel, dilation, groups = each(1, 3), each(1, 2), draw(st.sampled_from([1, 1, 2, 3]))
    spans = [(size - 1) * step + 1 for size, step in zip(kernel, dilation, strict=True)]
    size = tuple(low + draw(st.integers(0, 3)) for low in spans)
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
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")
@pytest.mark.parametrize("dimensions", [1, 2])
@settings(max_examples=EXAMPLES // 3)
@given(data=st.data(), batch=records, seed=seeds)
def test_convolutions(dimensions, data, batch, seed):
    conv, shape = data.draw(convolutions(dimensions))
    check(nn.Sequential(conv, nn.Tanh()), numbers(seed, batch, *shape), seed)


@once
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")
@settings(max_examples=EXAMPLES // 3)
@given(data=st.data(), batch=records, seed=seeds)
def test_convolutions_as_one_with_a_group_for_each_record(data, batch, seed):
    conv, shape = data.draw(convolutions(2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rules, "in_groups", lambda _: True)
        check(nn.Sequential(conv, nn.Tanh()), numbers(seed, batch, *shape), seed)


@once
@pytest.mark.parametrize("conv", [{"stride": 2}, {"groups": 8}, {"padding": 1, "bias": False}], ids=str)
@pytest.mark.parametrize("live", [0.3, 1.0])
def test_convolutions_by_groups_in_float32(conv, live):
    """By the kernel that is chosen there; what a record gives does not hang on the values of the others."""
    model = nn.Sequential(nn.Conv2d(8, 8, 3, **conv), nn.Tanh())
    mask, x, y = prepared(model, 4, [live]), numbers(5, 6, 8, 7, 7).float(), numbers(6, 6).float()
    naive = torch.cat(list(naive_gradients(model, mask, squared_error, x.double(), y.double()).values()), 1)
    model.float()
    assert rules.in_groups(model[0])
    gradients, filter = RecordGradients(model, mask, squared_error), Clip(1e6)
    found = gradients.filtered_sum(x, y, filter).values / gradients.rounding
    torch.testing.assert_close(found, naive.sum(0), rtol=1e-4, atol=1e-4)
    present = torch.arange(6) == 2
    alone = gradients.filtered_sum(x, y, filter, present).values
    torch.testing.assert_close(alone / gradients.rounding, naive[2], rtol=1e-4, atol=1e-4)
    others = torch.where(present[:, None, None, None], x, 9 * x.roll(1, 0))
    assert torch.equal(gradients.filtered_sum(others, y, filter, present).values, alone)


def looked_up(size: int, padding: int | None) -> nn.Module:
    return nn.Sequential(nn.Embedding(size, 3, padding_idx=padding), nn.Linear(3, 2))


def two_texts(size: int, padding: int | None) -> nn.Module:
    """One table for two texts of a record, as for a question and its answer."""
    return Applied(
        lambda self, x: self.mix(self.table(x[:, :2]).mean(1) * self.table(x[:, 2:]).sum(1)),
        table=nn.Embedding(size, 3, padding_idx=padding),
        mix=nn.Linear(3, 2),
    )


@once
@pytest.mark.parametrize(("make", "positions"), [(looked_up, None), (two_texts, [6])], ids=["once", "twice"])
@settings(max_examples=EXAMPLES // 3)
@given(
    batch=records,
    drawn=st.lists(st.integers(1, 4), max_size=2),
    size=st.integers(2, 6),
    padding=st.sampled_from([None, 0, 1, -1]),
    sparse=st.booleans(),
    seed=seeds,
)
def test_embedding(make, positions, batch, drawn, size, padding, sparse, seed):
    """Few tokens, so that records repeat theirs; one token, a row or a table of tokens a record."""
    tokens = tokens_of(seed, size, batch, *(drawn if positions is None else positions))
    gradients = check(make(size, padding), tokens, seed, sparse=sparse)
    assert isinstance(gradients._plan.layers[0], EmbeddingLayer) == (make is looked_up)


def placed(put: Callable[[Tensor, Tensor], Tensor]) -> nn.Module:
    """Tokens, and positions that are looked up once for all records."""
    return Applied(
        lambda self, x: self.norm(put(self.tokens(x), self.positions(torch.arange(x.shape[1])[None]))).sin(),
        tokens=nn.Embedding(6, 2),
        positions=nn.Embedding(5, 2),
        norm=nn.LayerNorm(2),
    )


@once
@pytest.mark.parametrize("batch", [1, 2, 7])
def test_positions_that_are_looked_up_once_for_all_records(batch):
    tokens = tokens_of(1, 6, batch, 4)
    gradients = check(placed(lambda tokens, places: tokens * (1 + places)), tokens, 3)
    assert gradients._plan.probe.spread
    check(placed(lambda tokens, places: tokens * places + 0.1 * places[:, :1]), tokens, 5)


@once
def test_what_is_averaged_over_all_rows_is_not_given_a_row_for_each_record():
    """It would be the mean over records then, and so would be what each of them gives it back."""
    model = placed(lambda tokens, places: tokens * (1 + places.mean(0)))
    gradients = check(model, tokens_of(1, 6, 4, 4), 3, whole=True)
    assert not gradients._plan.probe.spread


@once
def test_a_whole_model_sees_records_and_labels_as_they_are():
    """In float64, where a pass of the batch would have them so; float32 would leave nothing of this difference."""

    class Bare(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return functional.linear(x, self[0].weight, self[0].bias)

    model = Bare(nn.Linear(1, 1))
    nn.init.zeros_(model[0].weight)
    nn.init.ones_(model[0].bias)
    x, y = torch.ones(3, 1), torch.full((3, 1), 1 + 2.0**-40, dtype=torch.float64)
    gradients = RecordGradients(model, Mask.dense(model), lambda output, y: (output - y).square().sum(1))
    values = gradients.filtered_sum(x, y, make_filter("normalize")).values
    assert gradients._plan.by_torch_func
    assert float(values.norm()) == pytest.approx(3.0, rel=1e-4)


@once
@pytest.mark.parametrize("size", [1e-28, 1e-22, 1.0, 1e17])
@pytest.mark.parametrize(
    "table", [lambda: nn.Embedding(4, 3), lambda: nn.Sequential(nn.Embedding(4, 3), nn.Linear(3, 3))]
)
def test_gradients_whose_squares_float32_cannot_hold(table, size):
    model = table()
    tokens, y = torch.tensor([[1, 2, 1]]), torch.full((1,), size)
    gradients = RecordGradients(model, Mask.dense(model), lambda output, y: output.flatten(1).sum(1) * y)
    norm = float(gradients.filtered_sum(tokens, y, Clip(1.0)).values.norm())
    assert norm == pytest.approx(min(1.0, size * norm_of(model, tokens)), rel=1e-4)
    norm = float(gradients.filtered_sum(tokens, y, make_filter("normalize")).values.norm())
    assert 0.999 < norm <= 1.0


def norm_of(model: nn.Module, tokens: Tensor) -> float:
    """Of the gradient of the sum of outputs."""
    parts = torch.autograd.grad(model(tokens).sum(), list(model.parameters()))
    return float(torch.cat([part.flatten().double() for part in parts]).norm())


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


@pytest.mark.one_of(2)
@once
@pytest.mark.parametrize("kind", ["layer", "rms", "group"])
@settings(max_examples=EXAMPLES * 3 // 10)
@given(data=st.data(), batch=records, sparse=st.booleans(), seed=seeds)
def test_normalisations(kind, data, batch, sparse, seed):
    module, shape = data.draw(norms(kind))
    model = nn.Sequential(nn.Linear(shape[-1], shape[-1]), module, nn.Tanh())
    check(model, numbers(seed, batch, *shape), seed, sparse=sparse)


SEQUENCES = {"lstm": nn.LSTM, "gru": nn.GRU, "tanh": nn.RNN, "relu": nn.RNN}
CELLS = {"lstm": nn.LSTMCell, "gru": nn.GRUCell, "tanh": nn.RNNCell, "relu": nn.RNNCell}


def of_kind(modules: dict[str, type[nn.Module]], kind: str, **options: object) -> nn.Module:
    return modules[kind](2, 3, **options, **({"nonlinearity": kind} if kind in ("tanh", "relu") else {}))


class Recurrent(nn.Module):
    """A recurrent module whose sequence, last states or both make the output; it starts from zero or from the record."""

    def __init__(self, module: nn.Module, use: str, start: str) -> None:
        super().__init__()
        self.module, self.use, self.start = module, use, start
        self.ways = module.num_layers * (2 if module.bidirectional else 1)
        self.states = 2 if isinstance(module, nn.LSTM) else 1
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


@pytest.mark.one_of(2)
@once
@pytest.mark.parametrize("kind", list(SEQUENCES))
@settings(max_examples=EXAMPLES // 4)
@given(
    layers=st.integers(1, 2),
    flags=st.fixed_dictionaries(dict.fromkeys(("bidirectional", "batch_first", "bias"), st.booleans())),
    use=st.sampled_from(["sequence", "last", "both"]),
    start=st.sampled_from(["zero", "zero", "position", "keyword"]),
    batch=records,
    length=st.sampled_from([1, 2, 4]),  # 3 is PROBE, and refused with time first: reported
    sparse=st.booleans(),
    seed=seeds,
)
def test_recurrent_modules(kind, layers, flags, use, start, batch, length, sparse, seed):
    model = Recurrent(of_kind(SEQUENCES, kind, num_layers=layers, **flags), use, start)
    check(model, numbers(seed, batch, length, 2), seed, sparse=sparse)


@pytest.mark.one_of(2)
@once
@pytest.mark.parametrize("kind", list(SEQUENCES))
def test_recurrent_modules_of_many_units(kind):
    """As many as there must be for products the other way round."""
    module = SEQUENCES[kind](rules.NARROW + 1, rules.NARROW, 2, bidirectional=True)
    check(
        Applied(lambda self, x: self.module(x.transpose(0, 1))[0].sin().sum(0), module=module), numbers(1, 5, 6, 17), 2
    )


@pytest.mark.one_of(2)
@once
@pytest.mark.parametrize("kind", list(SEQUENCES))
def test_recurrent_modules_whose_sequence_is_detached(kind):
    """By a hook on all modules: only the last states are left to go back from."""

    def detach(module: nn.Module, _inputs: object, output: Any) -> Any:
        return (output[0].detach(), output[1]) if isinstance(module, nn.RNNBase) else None

    with register_module_forward_hook(detach):
        check(
            Recurrent(of_kind(SEQUENCES, kind, batch_first=True), "both", "keyword"),
            numbers(1, 4, 3, 2),
            2,
            mapped=False,
        )


HOOKS: dict[str, Callable[[Any], Any]] = {
    "scaled": lambda output: (output[0] * 2, output[1]),
    "shifted": lambda output: (output[0] + 0.3, output[1]),
    "turned": lambda output: (output[0].flip(1), output[1]),
    "part": lambda output: (output[0][:, -1:],),
}


@pytest.mark.one_of(3)
@once
@pytest.mark.parametrize("name", HOOKS)
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_hooks_may_change_what_a_recurrent_module_gives(kind, name):
    module = kind(2, 3, batch_first=True)
    module.register_forward_hook(lambda _module, _inputs, output: HOOKS[name](output))
    check(Applied(lambda self, x: self.module(x)[0].sin().flatten(1), module=module), numbers(1, 4, 3, 2), 2)


@once
def test_hooks_of_a_module_without_a_rule_are_not_called_again():
    module = handwritten()
    module.register_forward_hook(lambda _module, _inputs, output: 2 * output)
    module.register_forward_pre_hook(lambda _module, inputs: (inputs[0].sin(),))
    check(
        Applied(lambda self, x: self.module(x), module=module),
        numbers(1, 4, 3),
        2,
        layers=[["module.weight", "module.inner.weight", "module.inner.bias"]],
    )


class Loop(nn.Module):
    """A cell called once for each time step; the output depends on every state, and on the memory at the end."""

    def __init__(self, kind: str, bias: bool, start: bool) -> None:
        super().__init__()
        self.cell = of_kind(CELLS, kind, bias=bias)
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


@pytest.mark.one_of(2)
@once
@pytest.mark.parametrize("kind", list(CELLS))
@settings(max_examples=EXAMPLES // 5)
@given(st.booleans(), st.booleans(), records, st.integers(1, 4), st.booleans(), seeds)
def test_cells_in_a_loop(kind, bias, start, batch, length, sparse, seed):
    check(Loop(kind, bias, start), numbers(seed, batch, length, 2), seed, sparse=sparse)


CAUSAL, SOME = torch.ones(4, 4).triu(1).bool(), torch.tensor([[False, False, True, False]])
ATTENTIONS: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "of itself": lambda attend, x: attend(x, x, x)[0],
    "without weights": lambda attend, x: attend(x, x, x, need_weights=False)[0],
    "pooling": lambda attend, x: attend(x.mean(1, keepdim=True), x, x)[0],
    "of three": lambda attend, x: attend(query=x[:, 1:], key=x.sin(), value=x * 2, need_weights=False)[0],
    "its weights": lambda attend, x: torch.cat(attend(x, x.cos(), x), 2),
    "weights of heads": lambda attend, x: attend(x, x, x, average_attn_weights=False)[1].sum(1),
    "weights alone": lambda attend, x: attend(x, x, x.detach())[1],
    "causal": lambda attend, x: attend(x, x, x, attn_mask=CAUSAL, is_causal=True, need_weights=False)[0],
    "causal, with weights": lambda attend, x: attend(x, x, x, attn_mask=CAUSAL, is_causal=True)[0],
    "padded": lambda attend, x: attend(x, x, x, key_padding_mask=SOME.expand(len(x), 4))[0],
    "padded, causal": lambda attend, x: attend(x, x, x, SOME.expand(len(x), 4), False, CAUSAL, True, True)[0],
    "by numbers": lambda attend, x: attend(x, x, x, attn_mask=CAUSAL * x.new_tensor(-2), key_padding_mask=x[:, :, 0])[
        0
    ],
    "a mask a head": lambda attend, x: attend(
        x, x, x, attn_mask=(x @ x.mT).repeat_interleave(2, 0), need_weights=False
    )[0],
}


@pytest.mark.one_of(5)
@once
@pytest.mark.parametrize("kind", list(ATTENTIONS))
@pytest.mark.parametrize("bias", [True, False])
def test_attention_by_parts(kind, bias, monkeypatch):
    monkeypatch.setattr(rules, "by_torch_func", None)  # which need not be called
    attend = ATTENTIONS[kind]
    for seed, batch in enumerate((1, 4, 7)):
        attention = nn.MultiheadAttention(4, 2, bias=bias, batch_first=True).double()
        out = nn.Linear(attend(attention, numbers(0, 1, 4, 4)).numel(), 3)
        attention.out_proj.requires_grad_(batch > 1)
        model = Applied(
            lambda self, x: self.out(attend(self.attention, x).flatten(1).tanh()), attention=attention, out=out
        )
        own = [f"attention.{name}" for name, value in attention.named_parameters() if value.requires_grad]
        check(model, numbers(seed, batch, 4, 4), seed, layers=[own, ["out.weight", "out.bias"]])


@once
@pytest.mark.parametrize(
    "other",
    [{"kdim": 3, "vdim": 3}, {"add_bias_kv": True}, {"add_zero_attn": True}],
    ids=lambda other: next(iter(other)),
)
def test_other_attention_goes_through_torch_func(other):
    attention = nn.MultiheadAttention(4, 2, batch_first=True, **other)
    width = attention.kdim
    model = Applied(
        lambda self, x: self.attention(x, x[..., :width], x[..., :width])[0].flatten(1), attention=attention
    )
    check(model, numbers(1, 5, 3, 4), 1, layers=[[name for name, _ in model.named_parameters()]])


# Modules that go through torch.func

ATTENTION = ("in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias")
ATTENDED = [[f"attention.{name}" for name in ATTENTION], ["out.weight", "out.bias"]]


def attention() -> nn.Module:
    return Applied(
        lambda self, x: self.out(self.attention(x, x[:, :2], x[:, :2])[0]).flatten(1),
        attention=nn.MultiheadAttention(4, 2, batch_first=True),
        out=nn.Linear(4, 2),
    )


def handwritten() -> nn.Module:
    """A parameter of its own beside a module: torch.func takes both together."""

    def forward(self: Applied, x: Tensor, shift: float = 0.0) -> Tensor:
        return self.inner((x @ self.weight).tanh()) + x @ self.weight + shift

    return Applied(forward, weight=nn.Parameter(torch.zeros(3, 2)), inner=nn.Linear(2, 2))


def uses_handwritten() -> nn.Module:
    return Applied(
        lambda self, x: self.custom(self.before(x), shift=1.0) * self.custom(x=x).sin(),
        before=nn.Linear(3, 3),
        custom=handwritten(),
    )


class Scaled(nn.Linear):
    """A subclass may compute something else: the rule of its parent must not be taken."""

    def forward(self, x: Tensor) -> Tensor:
        return 3 * super().forward(x) * self.weight.sum()


class Gate(nn.Module):
    """A parameter of no dimension, as a temperature or the gate of ReZero."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.3))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale * torch.tanh(x)


def again(module: nn.Module) -> nn.Module:
    """One module called several times, on two rows a record at first and on one later."""
    return Applied(
        lambda self, x: self.end(self.module(self.module(x).tanh() + self.module(x.sin())).tanh()),
        module=module,
        end=nn.Linear(4, 2),
    )


def assorted() -> nn.Sequential:
    """Layers 0 to 6: convolution, normalisation, -, Linear on rows, recurrence, -, Linear on a vector."""
    return nn.Sequential(
        nn.Conv1d(2, 2, 2),
        nn.GroupNorm(1, 2),
        nn.Tanh(),
        nn.Linear(3, 2),
        nn.GRU(2, 2, batch_first=True),
        Applied(lambda _, output: output[0]),
        nn.Flatten(),
        nn.Linear(4, 2),
    )


def spare() -> nn.Module:
    """Layers that are never called, that are called for nothing, and one output of which is used."""

    def forward(self: Applied, x: Tensor) -> Tensor:
        hidden = self.first(x)
        self.for_nothing(hidden), self.idle(x[:, None]), self.idle_rows(x[:, None])
        return self.last(self.cell(hidden)[1])

    parts = {"never": nn.Linear(2, 2), "first": nn.Linear(3, 3), "idle": nn.Conv1d(1, 1, 2), "cell": nn.LSTMCell(3, 3)}
    parts |= {"last": nn.Linear(3, 2), "for_nothing": nn.Linear(3, 3), "idle_rows": nn.LSTM(3, 2, batch_first=True)}
    return Applied(forward, **parts)


def residual() -> nn.Module:
    """In-place operations on the outputs of modules with rules, as common networks have them."""

    def forward(self: Applied, x: Tensor) -> Tensor:
        out = self.second(self.relu(self.norm(self.first(x))))
        out += x
        out = self.out(self.relu(out).flatten(1))
        out *= 2
        return out.sin_()

    return Applied(
        forward,
        **{"first": nn.Conv2d(2, 2, 3, padding=1), "norm": nn.GroupNorm(1, 2), "out": nn.Linear(8, 3)},
        **{"second": nn.Conv2d(2, 2, 3, padding=1, bias=False), "relu": nn.ReLU(inplace=True)},
    )


def frozen_table() -> nn.Module:
    table = nn.Embedding(5, 2).requires_grad_(False)
    return nn.Sequential(table, nn.Flatten(), nn.Linear(6, 2))


def shuffled() -> nn.Module:
    """Parameters come in another order than layers: the last bias belongs to the first layer, which shares its weight."""

    def forward(self: Applied, x: Tensor) -> Tensor:
        hidden = self.first(x)
        return self.late(hidden).sin() * self.again(hidden)

    model = Applied(forward, late=nn.Linear(2, 3), first=nn.Linear(3, 2), again=nn.Linear(2, 3))
    model.again.weight = model.late.weight
    return model


def kernels() -> nn.Module:
    """The gradient at the first comes through the second; the mask prunes whole kernels."""
    second = [nn.Conv2d(4, 2, 2, groups=2), nn.Flatten(), nn.Linear(2, 3)]
    return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), *second)


def checkpointed_norm() -> nn.Module:
    """Recomputed in the backward pass."""
    layers = {"first": nn.Conv2d(2, 4, 3, padding=1), "norm": nn.GroupNorm(2, 4), "out": nn.Linear(4, 3)}
    return Applied(
        lambda self, x: self.out(checkpoint(self.norm, self.first(x), use_reentrant=False).relu().mean((2, 3))),
        **layers,
    )


def channels_last() -> nn.Module:
    """What follows views channels as the last dimension, as the memory of such images allows."""

    def forward(self: Applied, x: Tensor) -> Tensor:
        x = self.norm(self.first(x).contiguous(memory_format=torch.channels_last))
        return self.out(x.permute(0, 2, 3, 1).view(len(x), -1, 4).mean(1))

    return Applied(forward, first=nn.Conv2d(2, 4, 3, padding=1), norm=nn.GroupNorm(2, 4), out=nn.Linear(4, 3))


def scaled_norm() -> nn.Module:
    """Without a shift."""
    norm = nn.GroupNorm(2, 4)
    norm.bias = None
    return nn.Sequential(nn.Linear(3, 4), norm, nn.Tanh())


HANDWRITTEN = ["weight", "inner.weight", "inner.bias"]
WITHOUT_RULE = {
    "attention": (attention, (4, 4), ATTENDED),
    "transposed": (lambda: nn.Sequential(nn.ConvTranspose2d(2, 2, 2), nn.Tanh()), (2, 3, 3), None),
    "prelu": (lambda: nn.Sequential(nn.Linear(3, 2), nn.PReLU()), (3,), None),
    "handwritten": (handwritten, (3,), [HANDWRITTEN]),
    "keywords": (
        uses_handwritten, (3,), [["before.weight", "before.bias"], [f"custom.{name}" for name in HANDWRITTEN]]
    ),
    "subclass": (lambda: nn.Sequential(Scaled(3, 3), nn.Linear(3, 2)), (3,), None),
}  # fmt: skip
TIED = [["table.weight"], ["middle.weight", "middle.bias"]]
NETWORKS = {
    **WITHOUT_RULE,
    "tied": (lambda: tied(padding_idx=1), 3, TIED),
    "tied with a bias": (lambda: tied(True, padding_idx=1), 3, [["table.weight", "out.bias"], TIED[1]]),
    "convolutions in a row": (kernels, (2, 4, 4), None),
    "group norm of one value a channel": (lambda: nn.Sequential(nn.Linear(3, 4), nn.GroupNorm(2, 4)), (3,), None),
    "group norm under a checkpoint": (checkpointed_norm, (2, 4, 4), None),
    "group norm of channels last": (channels_last, (2, 4, 4), None),
    "group norm without a shift": (scaled_norm, (3,), None),
    "three times: Linear": (lambda: again(nn.Linear(4, 4)), (4,), None),
    "three times: Linear on rows": (lambda: again(nn.Linear(4, 4)), (2, 4), None),
    "three times: Conv1d": (lambda: again(nn.Conv1d(2, 2, 3, padding=1)), (2, 4), None),
    "three times: GroupNorm": (lambda: again(nn.GroupNorm(1, 2)), (2, 4), None),
    "three times: torch.func": (lambda: again(Scaled(4, 4)), (4,), None),
    "shuffled": (shuffled, (3,), [["late.weight", "late.bias", "again.bias"], ["first.weight", "first.bias"]]),
    "frozen table": (frozen_table, 3, None),
    "unused": (spare, (3,), None),
    "one number": (lambda: nn.Sequential(nn.Linear(3, 4), Gate(), nn.Linear(4, 2)), (3,), None),
    "one number alone": (Gate, (3,), None),
    "residual in place": (residual, (2, 2, 2), None),
    "overwritten table": (
        lambda: nn.Sequential(nn.Embedding(5, 3, padding_idx=2), nn.ReLU(inplace=True), nn.Linear(3, 2)),
        3,
        None,
    ),
}
"""Each with the shape of a record, or its number of tokens, and its layers if not the modules."""


@pytest.mark.one_of(14)
@once
@pytest.mark.filterwarnings("ignore:There is a performance drop because we have not yet implemented the batching rule")
@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name, batch):
    make, shape, layers = NETWORKS[name]
    x = tokens_of(7, 5, batch, shape) if isinstance(shape, int) else numbers(7, batch, *shape)
    check_both(make, x, 15, layers)


BY_NAME = {
    **{"embed:9": 7, "embed-pad:9": 7, "embed-tanh:9:4,5,3": 7, "lstm:5x3": 15, "gru:9:4,3": 7},
    **{"latent:7x8x1:3,4,5": 56, "latent-tanh:10x11x2:2,3,3,2,4": 220},
}
"""Our own networks, with their numbers of features."""


@pytest.mark.one_of(3)
@once
@pytest.mark.parametrize("text", BY_NAME)
def test_networks_by_name(text):
    """On words that are padded in front, repeated, all padding, or outside the table; or on quantities."""
    spec, words = ModelSpec(text, BY_NAME[text], 3), tokens_of(1, 9, 6, BY_NAME[text]).double()
    for record in range(6):
        words[record, : 2 * record % spec.features] = 0
    words[4] = 0
    words[5, :3] = torch.tensor([-1.0, 9.0, torch.nan])
    check_both(lambda: build(spec, 2), words if spec.tables else numbers(1, 6, spec.features), 3)


# Dimension 0 is time, positions are looked up once for the whole batch, a weight is used without its module.
WHOLE = {
    "time first": lambda: Applied(lambda self, x: self.layer(x.transpose(0, 1)).sin().sum(0), layer=nn.Linear(2, 3)),
    "positions": lambda: Applied(
        lambda self, x: self.tokens(x) * (1 + self.positions(torch.arange(x.shape[1]))),
        tokens=nn.Embedding(6, 2),
        positions=nn.Embedding(5, 2),
    ),
    "borrowed": lambda: Applied(
        lambda self, x: functional.linear(self.table(x).tanh().mean(1), self.table.weight), table=nn.Embedding(6, 3)
    ),
}


@once
@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("name", WHOLE)
def test_models_that_torch_func_takes_as_a_whole(name, batch):
    x = numbers(3, batch, 4, 2) if name == "time first" else torch.arange(4 * batch).reshape(batch, 4) % 5
    check(WHOLE[name](), x, 11, whole=True)


@pytest.mark.one_of(2)
@once
@pytest.mark.parametrize(
    ("frozen", "count"),
    [(["0.bias", "3.weight"], 8), (["1.weight", "4.bias_hh_l0", "4.weight_ih_l0"], 20), (["7.weight", "7.bias"], 10)],
    ids=str,
)
def test_frozen_parameters_have_no_coordinates(frozen, count):
    """Whatever the mask says of them; one whose parameters are all frozen is no layer to PerLayerClip either."""
    model = assorted()
    total = RecordGradients(model, Mask.dense(model), squared_error).live
    for name in frozen:
        model.get_parameter(name).requires_grad_(False)
    check(model, numbers(6, 4, 2, 4), 14)
    assert RecordGradients(model, Mask.dense(model), squared_error).live == total - count


@once
@pytest.mark.parametrize("frozen", ["weight", "inner.weight"])
def test_frozen_parameters_under_torch_func(frozen):
    model = handwritten()
    model.get_parameter(frozen).requires_grad_(False)
    check(model, numbers(6, 4, 3), 14, layers=[[name for name in HANDWRITTEN if name != frozen]])


@once
@pytest.mark.parametrize("chunk", [1, 40])
def test_pieces_change_nothing(monkeypatch, chunk):
    """Neither how many images are unfolded at a time, nor how many records are mapped or filtered at a time."""
    monkeypatch.setattr(explicit_layer, "CHUNK", chunk)
    monkeypatch.setattr(linear_layer, "CHUNK", chunk)
    monkeypatch.setattr(rules, "PATCHES", chunk)
    check(assorted(), numbers(6, 7, 2, 4), 14)
    model = nn.Sequential(nn.Conv2d(2, 3, 2), nn.Tanh(), nn.Conv2d(3, 2, 1)).double()
    check(model, numbers(0, 5, 2, 3, 3), 0, mask=Mask.dense(model))


PADDED = {
    "vector": (lambda: nn.Sequential(nn.Linear(4, 3), nn.ReLU(inplace=True), nn.Linear(3, 2)), (4,)),
    "assorted": (assorted, (2, 4)),
    "table": (lambda: nn.Sequential(nn.Embedding(5, 2, padding_idx=0), nn.Flatten(), nn.Linear(8, 2)), 4),
    "tied": (lambda: tied(bias=True, padding_idx=1), 4),
    "cell": (lambda: Loop("lstm", bias=True, start=True), (4, 2)),
    "custom": (uses_handwritten, (3,)),
    "whole": (WHOLE["time first"], (4, 2)),
    "whole table": (WHOLE["borrowed"], 4),
}


def everything(x: Tensor, y: Tensor, gradients: RecordGradients, present: Tensor | None, skipped: int = 0) -> Tensor:
    """The sums under every filter, one below the other."""
    results = [gradients.filtered_sum(x, y, filter, present) for filter in filters_for(3.0)]
    assert [result.skipped for result in results] == [skipped] * len(results)
    return torch.stack([result.values for result in results])


@pytest.mark.one_of(5)
@once
@pytest.mark.parametrize("case", PADDED)
def test_how_many_records_a_pass_takes_changes_nothing(case):
    make, shape = PADDED[case]
    model = make()
    x, y = tokens_of(3, 5, 7, shape) if isinstance(shape, int) else numbers(3, 7, *shape), numbers(4, 7)
    gradients = RecordGradients(model, prepared(model, 2), squared_error)
    expected = everything(x, y, gradients, None)
    for rows in (1, 32, 64):
        gradients.pass_rows = rows
        torch.testing.assert_close(everything(x, y, gradients, None), expected, rtol=1e-12, atol=1e-12)
    y[2] = math.nan
    assert everything(x, y, gradients, None, skipped=1).isfinite().all()
