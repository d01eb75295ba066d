"""Messages as a network reads them: any rows of any files, and training on them."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpltm.generation import GenerationConfig, generate
from dpltm.local.bit_strings import BitStrings
from dpltm.local.encoding import FixedPoint
from dpltm.local.server import Messages
from dpltm.models import ModelSpec
from dpltm.noise import FastSource

ANSWER = BitStrings(5, 3, FixedPoint(1, 1), "rappor", 40.0, None, 3.0)


def sent(count: int, seed: int = 0) -> np.ndarray:
    draw = np.random.default_rng(seed)
    scores, labels = draw.standard_normal((count, 5)), draw.integers(0, 3, count)
    return ANSWER.randomise(scores, labels, FastSource(seed))[0]


def parts(sizes: list[int]) -> list[np.ndarray]:
    rows = sent(sum(sizes))
    return [rows[end - size : end] for size, end in zip(sizes, itertools.accumulate(sizes), strict=True)]


@given(st.lists(st.integers(0, 7), min_size=1, max_size=6).filter(any), st.data())
def test_rows_of_several_files_in_any_order(sizes, data):
    files = parts(sizes)
    found, every = Messages(files, ANSWER), [row for file in files for row in file]
    assert len(found) == len(every)
    index = data.draw(st.lists(st.integers(0, len(every) - 1), max_size=20))
    got = found[torch.tensor(index, dtype=torch.int64)]
    assert got.shape == (len(index), ANSWER.inputs)
    for row, place in zip(got, index, strict=True):
        assert torch.equal(row, ANSWER.read(every[place][None])[0])


@given(
    st.lists(st.integers(0, 7), min_size=1, max_size=5).filter(any),
    st.slices(35),
)
def test_slices(sizes, part):
    found = Messages(parts(sizes), ANSWER)
    assert torch.equal(found[part], ANSWER.read(np.concatenate(parts(sizes))[part]))


def test_labels_are_those_that_arrived_file_by_file():
    files = parts([4, 0, 3])
    labels = Messages(files, ANSWER).labels
    assert labels.dtype == torch.int64
    assert labels.tolist() == [int(row[-2]) + 256 * int(row[-1]) for file in files for row in file]


def test_public_records_are_read_as_such():
    draw = np.random.default_rng(0)
    rows = ANSWER.without_coins(draw.standard_normal((6, 5)), draw.integers(0, 3, 6))
    plain, noisy = Messages([rows], ANSWER, randomised=False), Messages([rows], ANSWER)
    assert torch.equal(plain[:], ANSWER.read(rows, randomised=False))
    assert torch.equal(noisy[:], ANSWER.read(rows, randomised=True))
    assert bool((plain[:].abs() >= noisy[:].abs()).all()), "a bit that is certain says more"
    assert bool((plain[:].abs() > noisy[:].abs() + 0.01).any())


def test_files_are_read_where_they_lie(tmp_path):
    rows = sent(30)
    (tmp_path / "rows").write_bytes(rows.tobytes())
    mapped = np.memmap(tmp_path / "rows", np.uint8, "r", 0, rows.shape)
    index = torch.tensor([29, 0, 7, 7])
    assert torch.equal(Messages([mapped], ANSWER)[index], Messages([rows], ANSWER)[index])
    assert torch.equal(Messages([mapped], ANSWER).labels, Messages([rows], ANSWER).labels)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_tickets_are_those_of_the_same_inputs_in_memory(dropout):
    files = parts([20, 1, 19])
    received = Messages(files, ANSWER)
    spec = ModelSpec("mlp:6", ANSWER.inputs, 3)
    config = GenerationConfig(rounds=2, prune=(0.3,), iterations=10, batch_size=8, lr=0.1, seed=3)
    one = generate(spec, received, received.labels, config, dropout=dropout)
    other = generate(spec, ANSWER.read(np.concatenate(files)), received.labels, config, dropout=dropout)
    for left, right in zip(one.tickets, other.tickets, strict=True):
        assert left.mask.same_as(right.mask)
        assert all(torch.equal(left.predictor[name], right.predictor[name]) for name in right.predictor)
