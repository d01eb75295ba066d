"""The certified bound under attack in every kind of layer: one record's contribution, and what leaving it out moves."""

from __future__ import annotations

import functools
import math
from collections.abc import Container, Iterable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dpltm.filters import Automatic, Clip, PerLayerClip, Tanh
from dpltm.gradients import RecordGradients
from dpltm.networks.masks import Mask
from gradient_cases import Applied, dot, filters, norm, random_mask, tied
from gradient_networks import EVERY_FILTER, KINDS, Kind, Network, attacks, network, recurrent, scaled, unrolled

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


# Records without a usable gradient.

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


# Add/remove: what leaving one record out moves.


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


# Half precision between parameters of float32.

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
