"""The certified bound under attack, in float32, chunks and every kind of layer: what a record gives, and leaving it out."""

import functools
import math
from collections.abc import Container, Iterable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dpltm.filters import Automatic, Clip, Filter, PerLayerClip, RadialTanh, Tanh
from dpltm.gradients import RecordGradients
from dpltm.gradients.engine import NARROW
from dpltm.gradients.linear_layer import LinearLayer
from dpltm.networks.masks import Mask
from dpltm.randomness import sampling
from dpltm.randomness.sampling import LIMIT, ROUNDING, scale_of
from dpltm.training.descent import NoisyGradients
from gradient_cases import Applied, cross_entropy, dot, filters, noisy, norm, random_mask, steps_of, tied
from gradient_networks import EVERY_FILTER, KINDS, Kind, Network, attacks, network, recurrent, scaled, unrolled
from refusals import refused


@functools.cache
def single_layer(inputs: int, outputs: int, bias: bool = True) -> tuple[RecordGradients, int]:
    """Made once, since the plan rests on shapes alone and nothing changes the weights."""
    model = nn.Sequential(nn.Linear(inputs, outputs, bias=bias))
    nn.init.zeros_(model[0].weight)
    mask = Mask.dense(model)
    return RecordGradients(model, mask, dot), mask.live


@pytest.fixture(scope="module", autouse=True)
def _own_plans(_products: None) -> None:
    """Plans hold what the products fixture chose, so they are made anew where it changes."""
    single_layer.cache_clear()


@pytest.mark.one_of(4)
@pytest.mark.parametrize("shape", [(1, 4096), (4096, 1), (1000, 100)])
@pytest.mark.parametrize("size", [2.0**-54, 1 / 3, 2.0**19.9, 2.0**20.1, 2.0**54])
def test_many_equal_coordinates(shape, size):
    """Equal coordinates are the worst case of clip-then-tanh, and sums of equal squares round all in one direction.

    Activations and output gradients are as far apart as float32 allows: one is ``size``, the other its inverse.
    """
    gradients, live = single_layer(*shape, bias=False)
    x, y = torch.full((1, shape[0]), size), torch.full((1, shape[1]), 1 / size)
    root = math.sqrt(live)  # the norm of the gradient; every coordinate is 1
    for clip_norm in (1e-6, 1.0, root * (1 - 1e-6), root, root * (1 + 1e-6), 1e6):
        contribution = norm(gradients.filtered_sum(x, y, Clip(clip_norm)).values)
        assert contribution <= clip_norm
        assert contribution >= min(clip_norm, root) * (1 - 2e-3)
    for scale, range_, clip_norm in ((1.0, 1.0, 1.0), (3.0, 1e-3, 1.0), (0.1, 10.0, 1e4), (1e-6, 1e6, 1e-6)):
        filter = Tanh(scale, range_, Clip(clip_norm))
        contribution = norm(gradients.filtered_sum(x, y, filter).values)
        assert contribution <= filter.certified_bound(live)
        if clip_norm <= root:
            assert contribution >= filter.certified_bound(live) * (1 - 2e-3)
    printed = Tanh(2.0, 0.01, None)
    contribution = norm(gradients.filtered_sum(x, y, printed).values)
    assert printed.certified_bound(live) * (1 - 1e-5) <= contribution <= printed.certified_bound(live)


@pytest.mark.one_of(3)
@pytest.mark.parametrize("count", [1000, 30000])
@pytest.mark.parametrize("as_inputs", [True, False])
@pytest.mark.parametrize("first", [1.0, 2.0**19])
def test_squares_that_float32_loses_are_covered(count, as_inputs, first):
    """One large coordinate, then many whose squares lie below half a unit in the last place of the running sum."""
    many = torch.full((1, count), first * 2.0**-12.6)
    many[0, 0] = first
    one = torch.ones(1, 1)
    shape = (count, 1) if as_inputs else (1, count)
    gradients, live = single_layer(*shape, bias=False)
    x, y = (many, one) if as_inputs else (one, many)
    assert norm(gradients.filtered_sum(x, y, Clip(0.5)).values) <= 0.5
    filter = Tanh(1.0, 1.0, Clip(1e-3))
    assert norm(gradients.filtered_sum(x, y, filter).values) <= filter.certified_bound(live)


@pytest.mark.one_of(2)
@pytest.mark.parametrize("size", [1e-25, 1.0, 2.0**58])
def test_norms_of_gradients_that_are_written_out(size):
    """Their squares under- or overflow float32, or are lost beside that of the first."""
    model = nn.Conv1d(1, 1, 30000, bias=False)
    nn.init.zeros_(model.weight)
    x = torch.full((1, 1, 30000), size * 2.0**-12.6)
    x[0, 0, 0] = size
    gradients = RecordGradients(model, Mask.dense(model), dot)
    result = gradients.filtered_sum(x, torch.ones(1, 1), Automatic(1.0, 0.0))
    assert result.skipped == 0
    assert 1 - 1e-4 <= norm(result.values) <= 1


@pytest.mark.one_of(5)
@pytest.mark.parametrize("density", [0.3, 2.0])
@pytest.mark.parametrize("least", [NARROW * 0.99, NARROW * 1.01, 1e-8])
@pytest.mark.parametrize("x_size", [2.0**19.9, 1.0, 2.0**-10, 2.0**-29])
def test_small_norms_of_which_squares_underflow(x_size, least, density):
    """Norms at the edge of what float32 computes, of factors as far apart as may be: a filter that normalises shows it."""
    inputs, outputs = 40, 30
    model = nn.Sequential(nn.Linear(inputs, outputs, bias=False))
    mask = random_mask(model, density, torch.Generator().manual_seed(0))
    gradients = RecordGradients(model, mask, dot)
    generator = torch.Generator().manual_seed(1)
    x = x_size / math.sqrt(inputs) * torch.rand(3, inputs, generator=generator)
    y = 2.0 ** torch.linspace(0.0, -40.0, outputs) * torch.rand(3, outputs, generator=generator)
    live = mask["0.weight"].double()
    for row in range(3):
        y[row] *= least / norm(torch.outer(y[row].double(), x[row].double()) * live)
        found = norm(gradients.filtered_sum(x[row : row + 1], y[row : row + 1], Automatic(1.0, 0.0)).values)
        assert 1 - 1e-4 <= found <= 1


def test_a_record_within_reach_is_not_skipped_and_one_beyond_is():
    """The largest usable record: its products reach 2^120, its norm must not overflow."""
    gradients, _ = single_layer(4, 4, bias=False)
    x = torch.full((1, 4), 2.0**59)  # of norm 2^60
    result = gradients.filtered_sum(x, x, Clip(1.0))
    assert result.skipped == 0
    torch.testing.assert_close(result.values.double(), torch.full((16,), 0.25).double(), rtol=2e-5, atol=0.0)
    for feature, label in ((3e38, 1.0), (2.0**61, 2.0**-61), (2.0**-61, -(2.0**61))):
        result = gradients.filtered_sum(torch.full((1, 4), feature), torch.full((1, 4), label), Clip(1.0))
        assert (result.skipped, result.values.any().item()) == (1, False)


def moved_by_the_first(gradients: RecordGradients, x: Tensor, y: Tensor, filter: Filter) -> float:
    """What the sum of a batch changes by when its first record is left out, as released: before any noise."""
    everything = gradients.filtered_sum(x, y, filter).values.double()
    return norm(everything - gradients.filtered_sum(x[1:], y[1:], filter).values.double())


def test_rounding_of_the_sum_does_not_add_up():
    """Repeated rounding (Casacuberta et al. 2022): one record lifts the sum over 512, where float32 is half as fine.

    Thousands of tiny contributions that counted before are then rounded away, all in one sense.
    """
    gradients, live = single_layer(1, 1, bias=False)
    moved = []
    for large in range(514, 522):
        x = torch.cat([torch.ones(1), torch.full((large,), 0.99), torch.full((4000,), -512 * 2.0**-24)])[:, None]
        moved.append(moved_by_the_first(gradients, x, torch.ones_like(x), Clip(1.0)))
    assert max(moved) <= Clip(1.0).certified_bound(live)


def test_one_record_does_not_change_what_the_others_contribute():
    """All records are alike, so what float32 adds to the norm of one is added to all; a wide one takes it away."""
    gradients, live = single_layer(300, 100, bias=False)
    moved = []
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        record = 0.1 + 0.9 * torch.rand(1, 300, generator=generator)
        label = 0.1 + 0.9 * torch.rand(1, 100, generator=generator)
        for sign in (1, -1):
            x = torch.cat([sign * 2.0**22 * record, record.expand(800, 300)])
            moved.append(moved_by_the_first(gradients, x, label.repeat(801, 1), Clip(1.0)))
    assert max(moved) <= Clip(1.0).certified_bound(live)


ONE_ROW = ("mlp", "convolutions", "rms norm", "padded embedding")
"""The networks in which a Linear layer sees one row a record; sparse products would make no difference to the others."""


def with_products(names: Iterable[str], one_row: Container[str]) -> pytest.MarkDecorator:
    """Every network with dense products, and with sparse ones too where it has products."""
    cases = [(products, name) for name in names for products in ("dense", "sparse")[: 1 + (name in one_row)]]
    return pytest.mark.parametrize(("_products", "name"), cases, indirect=["_products"])


every_kind = with_products(KINDS, ONE_ROW)
once = pytest.mark.parametrize("_products", ["dense"], indirect=True)
EXAMPLES = settings.default.max_examples  # of the profile: fifty, or a thousand


@pytest.mark.one_of(12)
@every_kind
@settings(max_examples=EXAMPLES // 4)
@given(attack=attacks, filter=filters, dtype=st.sampled_from([torch.float32, torch.float64]), sparse=st.booleans())
def test_no_record_contributes_more_than_the_bound(name, attack, filter, dtype, sparse):
    """Weights, record and label are all the attacker's."""
    victim = network(name, dtype, sparse)
    result = victim.gradients.filtered_sum(*victim.attacked(attack), filter)
    assert norm(result.values) <= filter.certified_bound(victim.gradients.live)  # false for NaN as well
    assert result.skipped in (0, 1)
    if result.skipped:
        assert result.values.count_nonzero() == 0


@pytest.mark.one_of(6)
@every_kind
def test_every_kind_reaches_what_the_filter_allows(name):
    """Where gradients are large, what bounds the norm reaches it, nearly: nothing here holds for want of a gradient."""
    victim = network(name)
    victim.fill(1)
    x, y = victim.batch(1, 2)
    for filter in EVERY_FILTER:
        contribution = norm(victim.gradients.filtered_sum(x, 1e9 * y, filter).values)
        share = contribution / filter.certified_bound(victim.gradients.live)
        if filter.kind == "radial" or (isinstance(filter, Tanh) and filter.after):
            assert 1 - 1e-4 <= share <= 1
        else:
            assert 0.3 <= share <= 1


# Terms that are large and sum to nearly nothing: the sum is rounding, and computed twice it would be two numbers.

CANCELLING = {
    "sequence": Kind(lambda: nn.Linear(16, 16), (64, 16)),
    "conv2d": Kind(lambda: nn.Conv2d(4, 16, 3), (4, 10, 10)),
    "layer norm": Kind(lambda: nn.LayerNorm(16), (64, 16)),
    "embedding": Kind(lambda: nn.Embedding(2, 64), (512,), 2),
    "tied embedding": Kind(tied, (512,), 5),
    "rnn": Kind(lambda: recurrent(nn.RNN(4, 16, batch_first=True)), (64, 4)),
    "cell": Kind(lambda: unrolled(nn.GRUCell(4, 16)), (16, 4)),
    "torch.func": Kind(lambda: scaled(16), (64, 16)),
    "twice": Kind(
        lambda: Applied(
            lambda self, x: torch.stack([self.layer(x), self.layer(x * (1 + 2**-23))], 1), layer=nn.Linear(64, 16)
        ),
        (64,),
    ),
}


@functools.cache
def cancelling_network(name: str) -> tuple[nn.Module, RecordGradients]:
    """Made once, as ``network``; no Linear layer in it sees one row a record."""
    model = CANCELLING[name].build()
    return model, RecordGradients(model, Mask.dense(model), dot)


def cancelling(name: str, seed: int, size: float) -> tuple[RecordGradients, Tensor, Tensor]:
    """One record with the same features at every position, and output gradients that sum to rounding over positions."""
    kind, generator = CANCELLING[name], torch.Generator().manual_seed(seed)
    model, gradients = cancelling_network(name)
    for weight in model.parameters():
        weight.data.copy_(torch.randn(weight.shape, generator=generator))
    if kind.tokens:
        x = torch.zeros((1, *kind.shape), dtype=torch.long)
    else:
        x = torch.randn(1, *kind.shape, generator=generator)
        x = x[:, :1].expand_as(x) if name in ("sequence", "layer norm", "torch.func") else x
        x = x[..., :1, :1].expand_as(x) if name == "conv2d" else x
        x = x if name in ("rnn", "cell") else size * x  # or they saturate
    outputs = model(x)
    y = size * torch.randn(outputs.shape, generator=generator)
    if y.ndim > 2:  # (batch, positions, features), or (batch, channels, *positions)
        over = tuple(range(2, y.ndim)) if name == "conv2d" else (1,)
        y = y - y.mean(over, keepdim=True)
    return gradients, x, y.flatten(1)


@pytest.mark.one_of(8)
@once
@pytest.mark.parametrize("name", CANCELLING)
@pytest.mark.parametrize("size", [1.0, 1e7])
def test_what_cancels_over_positions_is_bounded_all_the_same(name, size):
    for seed in range(2):
        gradients, x, y = cancelling(name, seed, size)
        for filter in (*EVERY_FILTER, Clip(1e-6), Automatic(1e6, 0.0), PerLayerClip(1e-6)):
            result = gradients.filtered_sum(x, y, filter)
            assert result.skipped == 0
            assert norm(result.values) <= filter.certified_bound(gradients.live)
        assert norm(gradients.filtered_sum(x, y, Automatic(1.0, 0.0)).values) >= 1 - 1e-4


BAD = {"nan feature": (math.nan, 1.0), "nan label": (1.0, math.nan), "beyond reach": (1.0, -(2.0**126))}


def poisoned(victim: Network, poison: str) -> tuple[Tensor, Tensor, Tensor]:
    """Records of which the first, two in the middle and the last are bad, everywhere."""
    victim.fill(3)
    x, y = victim.batch(13, 4)
    good = torch.ones(13, dtype=torch.bool)
    good[[0, 5, 6, 12]] = False
    feature, label = BAD[poison]
    if not victim.kind.tokens:
        x[~good] = feature
    y[~good] = label
    return x, y, good


@pytest.mark.one_of(8)
@every_kind
def test_a_record_without_a_usable_gradient_changes_only_the_counter(name):
    """Counted once however many layers see it, whatever is wrong with it, to the bit; nor is one that is not present.

    Without it the batch has another length, and the rest agrees to 1e-6.
    """
    victim = network(name)
    for filter in EVERY_FILTER:
        sums = []
        for poison in BAD:
            if victim.kind.tokens and poison == "nan feature":
                continue
            x, y, good = poisoned(victim, poison)
            result = victim.gradients.filtered_sum(x, y, filter)
            assert result.skipped == 4
            sums.append(result.values)
        absent = victim.gradients.filtered_sum(x, y, filter, good)
        assert absent.skipped == 0
        sums.append(absent.values)
        assert all(torch.equal(sums[0], other) for other in sums[1:])
        without = victim.gradients.filtered_sum(x[good], y[good], filter)
        assert without.skipped == 0
        assert norm(without.values) > 0.1
        torch.testing.assert_close(sums[0], without.values, rtol=1e-6, atol=1e-6 * norm(without.values))
        alone = victim.gradients.filtered_sum(x[~good], y[~good], filter)
        assert alone.skipped == 4
        assert alone.values.tolist() == [0.0] * victim.gradients.live


@pytest.mark.one_of(8)
@every_kind
@settings(max_examples=EXAMPLES // 6)
@given(st.integers(0, 2**32), st.sampled_from(EVERY_FILTER), st.sampled_from([1e-20, 1.0, 1e6, 1e12, 1e25, math.nan]))
def test_leaving_one_record_out_moves_the_sum_by_at_most_the_bound(name, seed, filter, size):
    """Exactly where its row stays, not present; as far as rounding where the batch is shorter. One record is of ``size``."""
    victim = network(name)
    victim.fill(seed % 1000)
    x, y = victim.batch(7, seed)
    y[3] *= size
    if not victim.kind.tokens:
        x[3] *= size
    bound = filter.certified_bound(victim.gradients.live)
    everything = victim.gradients.filtered_sum(x, y, filter).values
    for left_out in (0, 3, 6):
        rest = torch.arange(7) != left_out
        marked = victim.gradients.filtered_sum(x, y, filter, rest).values
        assert norm(everything - marked) <= bound * (1 + 1e-12)
        shorter = victim.gradients.filtered_sum(x[rest], y[rest], filter).values
        assert norm(everything - shorter) <= bound * (1 + 1e-3)  # other kernels, other last bits


@pytest.mark.one_of(2)
@once
@pytest.mark.parametrize("name", CANCELLING)
@pytest.mark.parametrize("filter", [Clip(1e-6), Automatic(1.0, 0.0), PerLayerClip(1.0), Tanh(1.0, 1e-6)], ids=str)
def test_leaving_one_of_many_alike_out_moves_no_more_where_all_are_rounding(name, filter):
    """A record that is wide, or bad, and then gone, must leave every bit of what the others contribute."""
    gradients, x, y = cancelling(name, 0, 10.0)
    x, y = x.repeat(40, *[1] * (x.ndim - 1)), y.repeat(40, 1)
    rest = torch.arange(40) != 0
    without = gradients.filtered_sum(x, y, filter, rest).values
    for size in (1.0, -1.0, 2.0**25, 1e12, math.inf, math.nan):
        y[0] = size * y[1]
        everything = gradients.filtered_sum(x, y, filter).values
        assert norm(everything - without) <= filter.certified_bound(gradients.live) * (1 + 1e-9)


HALVES = {
    "linear": Kind(lambda: nn.Sequential(nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 3)), (40,)),
    "convolution": Kind(lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.GroupNorm(2, 4)), (3, 6, 6)),
    "sequence": Kind(lambda: nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4), nn.Linear(4, 3)), (30, 5)),
}


@pytest.mark.one_of(4)
@with_products(HALVES, ("linear",))
@pytest.mark.parametrize("inputs", [torch.float32, torch.float16], ids=["autocast", "inputs"])
def test_half_precision_does_not_loosen_the_bound(name, inputs):
    """Under autocast, and where a network casts inputs of half precision: norms must not be taken in it."""
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        model = Applied(lambda self, x: self.rest(x.float()), rest=HALVES[name].build())
        mask = random_mask(model, 0.7, generator)
        x = torch.randn(1, *HALVES[name].shape, generator=generator)
        wanted = torch.randn(model(x).flatten(1).shape, generator=generator) ** 3
        gradients = RecordGradients(model, mask, lambda outputs, labels: dot(outputs.float(), labels))
        for filter in (*EVERY_FILTER, Clip(1e-3)):
            with torch.autocast("cpu", torch.bfloat16, enabled=inputs == torch.float32):
                result = gradients.filtered_sum(x.to(inputs), 10 * wanted, filter)
            assert result.skipped == 0
            assert 0 < norm(result.values) <= filter.certified_bound(gradients.live)


RADIAL = (Clip(1.0), PerLayerClip(1.0), RadialTanh(1.0, 0.5), Automatic(1.0, 0.0), Clip(1e-6), Clip(1e6))


def linear(inputs: int, outputs: int, density: float = 2.0) -> RecordGradients:
    model = nn.Sequential(nn.Linear(inputs, outputs))
    return RecordGradients(model, random_mask(model, density, torch.Generator().manual_seed(0)), dot)


def in_two(gradients: RecordGradients, x: Tensor, y: Tensor, first: int, filter: Filter) -> Tensor:
    """The sum of a batch whose first records are one chunk, and the others one."""
    return gradients.filtered_sum(x, y, filter, chunks=[slice(0, first), slice(first, len(x))]).values


def moved(gradients: RecordGradients, x: Tensor, y: Tensor, first: int, record: int, filter: Filter) -> float:
    """What the sum changes by when a record of the first chunk is left out."""
    keep = torch.arange(len(x)) != record
    return norm(in_two(gradients, x, y, first, filter) - in_two(gradients, x[keep], y[keep], first - 1, filter))


@given(
    st.sampled_from(RADIAL),
    st.integers(0, 2**32),
    st.sampled_from([1e-30, 1e-18, 1e-6, 1.0, 1e6, 1e17]),
    st.sampled_from([1e-30, 1e-6, 1.0, 1e17]),
    st.sampled_from([(1, 1), (3, 17), (40, 5)]),
)
def test_one_record_moves_a_sum_by_at_most_its_bound(filter, seed, x_size, y_size, shape):
    generator = torch.Generator().manual_seed(seed)
    gradients = linear(*shape, density=0.6 if seed % 2 else 2.0)
    size = LIMIT + 30
    x = x_size * torch.randn(size, shape[0], generator=generator).expand(size, -1)
    y = y_size * torch.randn(size, shape[1], generator=generator)
    if seed % 3 == 0:  # all alike: partial sums grow as far as they can
        x, y = x[:1].expand_as(x), y[:1].expand_as(y)
    record = seed % LIMIT
    assert moved(gradients, x, y, LIMIT, record, filter) <= filter.certified_bound(gradients.live)
    with_nan = x.clone()
    with_nan[record] = math.nan
    bound = filter.certified_bound(gradients.live)
    assert moved(gradients, with_nan, y, LIMIT, record, filter) <= (1 / ROUNDING - 1) * bound, "nothing but rounding"


def test_the_margin_covers_what_rounding_does():
    """Sums of equal numbers, whose roundings all go one way: a record moves them by more than what it contributes."""
    gradients, most = linear(1, 1), 0.0
    for value in torch.linspace(0.5, 1.0, 301).tolist():
        x = torch.full((LIMIT, 1), value)
        x[0] = 1e6
        most = max(most, moved(gradients, x, torch.ones(LIMIT, 1), LIMIT, 0, Clip(1.0)))
    assert gradients.rounding * ROUNDING * (1 + 1e-6) < most <= 1.0


@pytest.mark.parametrize("bound", [5e-324, 1e-300, 0.3, 1.0, 1.0 + 2.0**-52, 3.0, 1e300])
def test_a_scale_is_a_power_of_two_next_above(bound):
    scale = scale_of(bound)
    assert math.frexp(scale)[0] == 0.5
    assert bound <= scale
    assert scale / 2 < bound
    assert scale_of(math.inf) == scale_of(0.0) == 1.0


def test_sums_are_those_in_float64_times_the_margin():
    generator = torch.Generator().manual_seed(1)
    gradients = linear(30, 20, 0.6)
    x, y = torch.randn(90, 30, generator=generator), torch.randn(90, 20, generator=generator)
    for filter in RADIAL:
        exact = gradients.filtered_sum(x, y, filter).values
        pieces = [slice(2, 40), slice(40, 41), slice(60, 88)]  # some rows are in none
        for given_chunks in (pieces, []):
            found = gradients.filtered_sum(x, y, filter, chunks=given_chunks).values
            torch.testing.assert_close(found / ROUNDING, exact, rtol=1e-4, atol=1e-6 * float(exact.abs().max()))
        assert torch.equal(found, gradients.filtered_sum(x, y, filter, chunks=()).values)


@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (7, 3), (16, 16), (300, 33)])
@pytest.mark.parametrize("name", ["dense", "sparse"])
def test_a_chunk_has_the_same_bits_wherever_it_lies(name, inputs, outputs):
    generator = torch.Generator().manual_seed(2)
    module = nn.Linear(inputs, outputs)
    live = torch.rand(outputs, inputs, generator=generator) < 0.5
    live[0, 0] = True
    x, y = torch.randn(90, inputs, generator=generator), torch.randn(90, outputs, generator=generator)
    factor, found = torch.rand(90, generator=generator, dtype=torch.float64), []
    for before in (0, 1, 2, 5, 16, 33):
        layer = LinearLayer("", module, {"weight": live, "bias": torch.ones(outputs, dtype=torch.bool)})
        layer.kernel = name
        layer.input, layer.gradient = torch.cat([x[:before], x]), torch.cat([y[:before], y])
        weights = torch.cat([torch.zeros(before, dtype=torch.float64), factor])
        whole = slice(before, before + len(x))
        total = torch.zeros(sum(layer.sizes), dtype=torch.float64)
        layer.add_weighted_sum(total, weights, [slice(0, before), whole][before == 0 :])
        found.append(total)
    assert all(torch.equal(each, found[0]) for each in found[1:])


@pytest.mark.parametrize("features", [0.0, 1.0])
def test_another_chunk_that_came_out_large_changes_nothing_for_a_record(features):
    """Weights and biases of many like records, whose roundings all go one way: only the chunk with the extra record may
    change, whether it is summed in float32 or not."""
    size, others = LIMIT, 2000
    gradients = linear(2, 2)
    generator = torch.Generator().manual_seed(7)
    y = torch.rand(1, 2, generator=generator).expand(size * (others + 1) + 1, -1)
    x, sums = torch.full((len(y), 2), features), []
    for last in (size, size + 1):
        count = size * others + last
        small = [slice(start, start + size) for start in range(0, size * others, size)]
        whole = [*small, slice(size * others, count)] if last <= LIMIT else small
        sums.append(gradients.filtered_sum(x[:count], y[:count], Clip(0.1), chunks=whole).values)
    assert norm(sums[1] - sums[0]) <= 0.1


def test_no_product_overflows_however_small_the_inputs():
    """A filter that normalises would scale output gradients beyond float32."""
    gradients = linear(2, 2)
    for x_size in (1e-38, 1e-42):
        x, y = torch.full((4, 2), x_size), torch.full((4, 2), 1e-7)
        mask_of_weight = gradients.filtered_sum(x, y, Automatic(1e6, 0.0), chunks=[slice(0, 4)]).values
        assert mask_of_weight.isfinite().all()
        assert norm(mask_of_weight) <= 4e6


def step_of(
    model: nn.Module, x: Tensor, y: Tensor, filter: Filter, batch: float, loss: Any = dot, **options: Any
) -> NoisyGradients:
    """A step without noise that takes all records."""
    engine = noisy(model, x, y, steps_of(filter, 1.0, 1, batch, 0.0, 1.0, **options), loss=loss)
    engine.backward()
    return engine


@pytest.mark.one_of(10)
@pytest.mark.parametrize("rows", [None, 1, 32])
@pytest.mark.parametrize("batch", [60.0, 100.0, 400.0])
def test_a_step_on_neighbouring_datasets(rows, batch):
    """All are sampled, and the neighbour's extra record is the last, so the others' coins are what they were."""
    generator = torch.Generator().manual_seed(3)
    for count in (LIMIT - 1, LIMIT, LIMIT + 1, 390):
        model = nn.Sequential(nn.Linear(9, 6), nn.ReLU(), nn.Linear(6, 3))
        x = 1e3 * torch.randn(count + 1, 9, generator=generator)
        y = 1e3 * torch.randn(count + 1, 3, generator=generator)
        sums = []
        for there in (count, count + 1):
            step_of(model, x[:there], y[:there], Clip(1.0), batch, physical_batch=rows)
            sums.append(torch.cat([value.grad.flatten() for value in model.parameters()]).double() * batch)
        assert 0.5 < norm(sums[1] - sums[0]) <= 1 + 1e-6 * math.sqrt(count)  # gradients are float32 by now


def test_a_chunk_that_came_out_large_is_summed_in_float64(monkeypatch):
    """And scaled like any other: the scale may not depend on who was sampled."""
    seen = []
    original = sampling.others
    monkeypatch.setattr("dpltm.gradients.linear_layer.others", lambda *a: seen.append(original(*a)) or seen[-1])
    x = torch.eye(LIMIT + 1)
    for count in (LIMIT, LIMIT + 1):
        model = nn.Sequential(nn.Linear(LIMIT + 1, 1, bias=False))
        engine = step_of(model, x[:count], torch.full((count, 1), 5.0), Clip(1.0), 60.0)
        assert seen[-1] == ([] if count == LIMIT else [slice(0, LIMIT + 1)])
        expected = torch.full((count,), engine.gradients.rounding * ROUNDING / 60)
        torch.testing.assert_close(model[0].weight.grad[0, :count], expected, rtol=1e-6, atol=0.0)


TINY = {
    "norm": lambda: (nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 3)), 1.0),
    "conv": lambda: (nn.Sequential(nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(12, 3)), 1.0),
    "linear": lambda: (nn.Sequential(nn.Linear(8, 3, bias=False)), 1e-20),
}


@pytest.mark.one_of(2)
@pytest.mark.parametrize("name", TINY)
def test_who_is_in_a_chunk_that_came_out_large_contributes_as_before(name):
    """Gradients so small that a filter which normalises takes them to the edge of float32: one more record in the chunk,
    and all of them are summed in float64."""
    torch.manual_seed(0)
    (model, size), y = TINY[name](), torch.zeros(LIMIT + 1, dtype=torch.long)
    if model[-1].bias is not None:
        # sure of the label: the loss has next to no gradient
        model[-1].bias.data.copy_(torch.tensor([50.0, 0.0, 0.0]))
    x, sums = size * torch.rand(LIMIT + 1, 8), []
    x = x[:, None] if name == "conv" else x
    for count in (LIMIT, LIMIT + 1):
        step_of(model, x[:count], y[:count], Automatic(1.0, 0.0), 60.0, loss=cross_entropy)
        sums.append(60 * torch.cat([value.grad.flatten() for value in model.parameters()]).double())
    assert norm(sums[1] - sums[0]) <= 1 + 1e-5


class Slipped:
    """A filter that leaves some gradients longer than it says, or makes nothing of a number of them."""

    nominal_bound = None

    def __init__(self, kind: str, factor: float) -> None:
        self.kind, self._factor = kind, factor

    def certified_bound(self, _: int) -> float:
        return 2.0

    def factor(self, norms: Tensor) -> Tensor:
        return torch.full_like(norms, self._factor)


@pytest.mark.parametrize("factor", [1.0, -1.0, 1e30, math.inf, math.nan])
@pytest.mark.parametrize("kind", ["radial", "layer-wise", "behind a map"])
def test_no_factor_takes_a_gradient_past_its_bound(kind, factor):
    """A trial looks at some norms alone."""
    own: Any = Slipped(kind, factor)
    if kind == "behind a map":
        own = SimpleNamespace(
            kind="element-wise", before=None, after=own, map=lambda x: x, certified_bound=lambda _: 2.0
        )
    sums = linear(3, 2).filtered_sum(torch.tensor([[1.0, 2.0, 3.0]]), torch.ones(1, 2), own).values
    assert norm(sums) <= 2.0 * (1 + 1e-6)
    assert bool(sums.any()) == math.isfinite(factor)


class EachLayerAlone:
    """A filter that divides by the norm of every layer."""

    kind, nominal_bound = "layer-wise", None

    def certified_bound(self, _: int) -> float:
        return math.sqrt(2)

    def factor(self, norms: Tensor) -> Tensor:
        return torch.where(norms > 0, 1 / norms, 0.0)


def test_the_norm_of_a_small_layer_beside_a_large_one_is_exact():
    """Nearly all of its squares are lost in float32, and one is not."""
    model = nn.Sequential(nn.Linear(1, 4096, bias=False), nn.Linear(4096, 1, bias=False))
    model[0].weight.data.fill_(1.0)
    model[1].weight.data.fill_(2.6e-23)
    model[1].weight.data[0, 0] = 3.8e-23
    gradients = RecordGradients(model, Mask.dense(model), dot)
    assert norm(gradients.filtered_sum(torch.ones(1, 1), torch.ones(1, 1), EachLayerAlone()).values) <= math.sqrt(2)


@pytest.mark.parametrize(
    "rows", [[slice(0, 101)], [slice(0, 6), slice(3, 10)], [slice(5, 9), slice(0, 5)], [slice(90, 200)]]
)
def test_chunks_that_are_none(rows):
    x = torch.ones(120, 3)
    said = "`chunks`: rows "
    assert refused(linear(3, 2).filtered_sum, x, torch.ones(120, 2), Clip(1.0), chunks=rows).startswith(said)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_a_record_that_is_not_finite_beside_a_layer_of_no_size():
    model = nn.ModuleList([nn.Linear(3, 2), nn.Linear(3, 0)])

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = model

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([part(x) for part in self.parts], 1)

    both = Both()
    x = torch.tensor([[1.0, 2.0, 3.0], [math.nan, 0.0, 0.0], [1e30, 0.0, 0.0]])
    result = RecordGradients(both, Mask.dense(both), dot).filtered_sum(x, torch.ones(3, 2), Clip(1.0))
    assert result.skipped == 2
    assert 0.9 < norm(result.values) <= 1
