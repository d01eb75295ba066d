"""Scores of persons: what one more with any records moves a sum by, and that empty slots and orders move it by nothing."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score
from torch import Tensor, nn

from dpltm.networks.evaluation import STEP, PricedScore, count_correct, scored_rows, total_score
from dpltm.networks.state import evaluating
from dpltm.records.units import ABSENT

SLOTS = 4
HOSTILE = st.one_of(st.floats(allow_nan=True, allow_infinity=True), st.floats(-0.5, 1.5))
PERSONS = st.lists(st.lists(HOSTILE, min_size=1, max_size=SLOTS), min_size=1, max_size=8)


def first_output(outputs: Tensor, labels: Tensor) -> Tensor:
    del labels
    return outputs[:, 0]


def persons(values: list[list[float]]) -> tuple[Tensor, Tensor]:
    """The records that there are, whose score is their one value; and labels in slots."""
    y = torch.full((len(values), SLOTS), ABSENT)
    for row, mine in enumerate(values):
        y[row, : len(mine)] = 0
    return torch.tensor([value for mine in values for value in mine], dtype=torch.float64)[:, None], y


def by_hand(values: list[list[float]]) -> float:
    """The definition, a person at a time, in whole numbers of 2^-20."""
    total = 0
    for mine in values:
        clamped = [0.0 if math.isnan(value) else min(max(value, 0.0), 1.0) for value in mine]
        total += sum(round(STEP * value) for value in clamped) // len(mine)
    return total / STEP


@given(PERSONS, st.lists(HOSTILE, min_size=1, max_size=SLOTS), st.integers(0, 8), st.integers(1, 5))
def test_one_person_more_moves_a_score_by_one_at_most(
    values: list[list[float]], more: list[float], at: int, chunk: int
) -> None:
    with_one = [*values[:at], more, *values[at:]]
    one, other = (total_score(nn.Identity(), *persons(each), chunk, first_output) for each in (values, with_one))
    assert (one, other) == (by_hand(values), by_hand(with_one))
    assert 0 <= other - one <= 1
    one, other = (count_correct(nn.Identity(), *persons(each), chunk, first_output) for each in (values, with_one))
    assert other - one in (0, 1)


@settings(max_examples=25)
@given(st.integers(0, 2**32), st.integers(1, 7))
def test_the_right_answers_of_a_person_are_averaged(seed: int, chunk: int) -> None:
    draw = np.random.default_rng(seed)
    y = np.where(draw.random((6, SLOTS)) < 0.5, ABSENT, draw.integers(0, 3, (6, SLOTS)))
    y[:, 0] = 0
    x = torch.from_numpy(draw.normal(size=(int((y != ABSENT).sum()), 3)))
    answers, at = x.argmax(1).tolist(), 0
    expected = 0.0
    for row in y.tolist():
        mine = [label for label in row if label != ABSENT]
        right = [answers[at + place] == label for place, label in enumerate(mine)]
        expected += math.floor(STEP * sum(right) / len(mine)) / STEP
        at += len(mine)
    assert total_score(nn.Identity(), x, torch.from_numpy(y), chunk) == expected


OUTPUTS = st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), min_size=3, max_size=3)
RECORDS = st.lists(st.tuples(OUTPUTS, st.integers(0, 2)), min_size=2, max_size=12)
SHARES = st.lists(st.floats(1e-6, 1.0), min_size=3, max_size=3)


@given(RECORDS, SHARES, st.integers(0, 11))
def test_one_record_more_moves_a_metric_by_one_at_most(
    records: list[tuple[list[float], int]], shares: list[float], at: int
) -> None:
    """Or another in its place, whatever the network gives for it: in the unit that noise is added in."""
    score = PricedScore(3, tuple(one / sum(shares) for one in shares))

    def total(some: list[tuple[list[float], int]]) -> float:
        x, y = torch.tensor([outputs for outputs, _ in some]), torch.tensor([label for _, label in some])
        return total_score(nn.Identity(), x, y, 4, score)

    at %= len(records)
    without = [*records[:at], *records[at + 1 :]]
    assert 0 <= total(records) - total(without) <= 1
    assert abs(total([*without, records[at]]) - total([*without, ([0.0, 0.0, 9.0], 2)])) <= 1


def test_by_the_true_shares_it_is_balanced_accuracy() -> None:
    draw = np.random.default_rng(1)
    x, y = draw.normal(size=(200, 3)), np.repeat([0, 1, 2], [150, 40, 10])
    score = PricedScore(3, (0.75, 0.2, 0.05))
    found = score.metric(total_score(nn.Identity(), torch.from_numpy(x), torch.from_numpy(y), score=score), 200)
    assert found == pytest.approx(balanced_accuracy_score(y, x.argmax(1)), abs=1e-6)


def test_rows_that_are_scored_at_once_follow_from_the_network_and_the_shape_of_a_record():
    """So many that what its layers give fits 64 MiB, from 32 to 1,024, whatever the records hold, and how many there are."""
    # 3 times 2^20 numbers a record, with what it gives as a whole
    wide = nn.Sequential(nn.Linear(6, 2**20), nn.Tanh())
    middle = nn.Sequential(nn.Linear(6, 2**15 - 2), nn.Linear(2**15 - 2, 1))  # 2^15 numbers, of 4 bytes
    for x in (torch.zeros(1, 6), torch.full((9, 6), math.nan)):
        assert [scored_rows(model, x) for model in (nn.Linear(6, 3), middle, wide)] == [1024, 512, 32]


def test_scores_of_padded_texts_come_from_no_kernel_that_goes_by_the_padding_of_others():
    """In evaluation mode, torch packs what is not padded of all records into one tensor, unless it is told not to."""
    torch.manual_seed(0)
    layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
    x, there = torch.randn(4, 6, 8), torch.arange(6) >= torch.tensor([[6], [4], [3], [2]])
    shorter = there.clone()
    shorter[0, 2:] = True
    before = torch.backends.mha.get_fastpath_enabled()
    with torch.no_grad(), evaluating(layers):
        assert not torch.backends.mha.get_fastpath_enabled()
        one, other = (layers(x, src_key_padding_mask=mask) for mask in (there, shorter))
    assert torch.backends.mha.get_fastpath_enabled() == before
    assert torch.equal(one[1:], other[1:])
    assert one.shape == other.shape == x.shape


class BesideOthers(nn.Module):
    """What it gives for a record goes by how many others there are, and by the largest value."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.sizes.append(len(x))
        return x * (x.amax() if len(x) > 1 else 1)


def test_records_are_scored_one_by_one_where_others_would_move_their_bits():
    model, x = BesideOthers(), torch.tensor([[0.6, 0.4], [-0.2, -0.1], [0.0, 0.1]])
    assert total_score(model, x, torch.tensor([0, 1, 1])) == 3
    assert model.sizes[-3:] == [1, 1, 1]
    plain = nn.Identity()
    sizes: list[int] = []
    plain.register_forward_hook(lambda _module, inputs, _output: sizes.append(len(inputs[0])))
    assert total_score(plain, x, torch.tensor([0, 1, 1])) == 3
    assert sizes[-1] == 1024


class Tamed(nn.Module):
    """As a library does it that goes by the largest value of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x if bool(x.abs().max() <= 1000) else x.clamp(-10, 10))


def test_a_record_that_makes_a_network_go_another_way_counts_for_itself_alone():
    """``vmap`` cannot follow it, so its records are scored one by one."""
    torch.manual_seed(0)
    model = Tamed()
    x = 900 * torch.rand(200, 8) * (torch.rand(200, 8) < 0.3)
    x[0] = 2000
    y = model.layer(x).argmax(1)
    assert total_score(model, x, y) - total_score(model, x[1:], y[1:]) in (0.0, 1.0)
