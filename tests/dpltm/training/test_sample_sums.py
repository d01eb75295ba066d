"""Sums that do not depend on the order, against exact arithmetic."""

from __future__ import annotations

import functools
import operator
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpltm.filters import Clip
from dpltm.gradients import RecordGradients
from dpltm.networks import ModelSpec, build
from dpltm.options.train import TrainOptions
from dpltm.privacy.mechanisms import NoisySgd
from dpltm.pruning.generation import dense_mask
from dpltm.records.batches import Records
from dpltm.records.units import ABSENT
from dpltm.training.descent import ExactSum, SampleSums, user_cross_entropy
from dpltm.training.plan import NoisySteps

BOUND = st.sampled_from([1.0, 0.3, 1e-5, 40.0])


@given(seed=st.integers(0, 2**32), count=st.integers(1, 30), bound=BOUND, spread=st.integers(0, 40))
def test_no_order_changes_a_bit_and_the_sum_is_exact(seed: int, count: int, bound: float, spread: int):
    """Terms of all sizes up to a hundred bounds; some of them cancel."""
    draw = np.random.default_rng(seed)
    size = 100 * bound * 2.0 ** -draw.integers(0, spread + 1, (count, 5))
    terms = draw.uniform(-1, 1, (count, 5)) * size
    terms[count // 2 :, 0] = -terms[: count - count // 2, 0]
    totals = []
    for order in (np.arange(count), draw.permutation(count)):
        parts = [ExactSum(5, bound, torch.device("cpu")) for _ in range(3)]
        for place, term in enumerate(order):
            parts[place % 3].add(torch.from_numpy(terms[term].copy()))
        both = (parts[2].parts + parts[0].parts) + parts[1].parts
        totals.append(both[0] + both[1])
    assert torch.equal(*totals)
    for place, found in enumerate(totals[0].tolist()):
        exact = sum((Fraction(value) for value in terms[:, place].tolist()), Fraction())
        left_out = count * 2 * Fraction(bound) * Fraction(2) ** -62
        assert abs(Fraction(found) - exact) <= left_out + abs(exact) * Fraction(2) ** -52


def test_plain_float64_depends_on_the_order():
    """So the property above says something."""
    terms = [1.0, 1e-16, 1e-16, -1.0]
    assert functools.reduce(operator.add, terms) != functools.reduce(operator.add, reversed(terms))  # sum compensates
    found = []
    for order in (terms, terms[::-1]):
        exact = ExactSum(1, 1.0, torch.device("cpu"))
        for term in order:
            exact.add(torch.tensor([term], dtype=torch.float64))
        found.append((exact.parts[0] + exact.parts[1]).item())
    assert found[0] == found[1] > 1.9e-16


def test_slots_that_every_person_of_a_batch_leaves_empty_are_skipped_and_add_nothing(monkeypatch: pytest.MonkeyPatch):
    """Batches of four: the network sees as many slots as the longest of them fills, and the sums are those of all slots."""
    draw, slots = np.random.default_rng(0), 16
    y = np.full((12, slots), ABSENT)
    for row, many in enumerate([1, 2, 1, 2, 3, 1, 1, 1, 5, 1, 2, 16]):
        y[row, :many] = draw.integers(0, 3, many)
    x = np.where((y != ABSENT)[..., None], draw.normal(size=(12, slots, 4)), 0.0).astype(np.float32)
    model = build(ModelSpec("mlp:5", 4, 3), 0)
    config = NoisySteps(Clip(0.5), NoisySgd(0.5, 1, 0.0), 12.0, 1.0, options=TrainOptions(physical_batch=4))
    totals, seen = [], []
    whole = RecordGradients.filtered_sum

    def watched(gradients: RecordGradients, given: torch.Tensor, *others: object) -> object:
        seen.append(given.shape[1])
        return whole(gradients, given, *others)

    monkeypatch.setattr(RecordGradients, "filtered_sum", watched)
    for slotted in (True, False):
        gradients = RecordGradients(model, dense_mask(ModelSpec("mlp:5", 4, 3)), user_cross_entropy)
        records = Records(x, y, slotted=slotted)
        gradients.check(*records.take(np.zeros(1, dtype=np.int64)))
        sums = SampleSums(gradients, records, config, torch.device("cpu"))
        totals.append(sums.take((np.arange(12), [12], None)).clone())
    assert seen == [2, 3, 16, 16, 16, 16]
    narrow = replace(config, options=replace(config.options, precision="bfloat16"))
    SampleSums(gradients, Records(x, y, slotted=True), narrow, torch.device("cpu")).take((np.arange(12), [12], None))
    assert seen[6:] == [16, 16, 16]
    torch.testing.assert_close(*totals, rtol=1e-6, atol=1e-7)
    assert totals[0].count_nonzero() > 10
