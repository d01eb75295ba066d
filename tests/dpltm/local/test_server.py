"""Messages as a network reads them: any rows of any files."""

import itertools

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpltm.local.scheme import BitStrings, FixedPoint
from dpltm.local.server import Messages, network_inputs
from dpltm.randomness.noise import FastSource

ANSWER = BitStrings(5, 3, FixedPoint(1, 1), "rappor", 40.0, None, 3.0)


def sent(count: int, seed: int = 0) -> np.ndarray:
    draw = np.random.default_rng(seed)
    scores, labels = draw.standard_normal((count, 5)), draw.integers(0, 3, count)
    return ANSWER.randomise(scores, labels, FastSource(seed))


def parts(sizes: list[int]) -> list[np.ndarray]:
    rows = sent(sum(sizes))
    return [rows[end - size : end] for size, end in zip(sizes, itertools.accumulate(sizes), strict=True)]


@given(st.lists(st.integers(0, 7), min_size=1, max_size=6).filter(any), st.slices(35), st.data())
def test_rows_of_several_files_in_any_order(sizes, part, data):
    files = parts(sizes)
    found, whole = Messages(files, ANSWER), np.concatenate(files)
    index = data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=20))
    got = found[torch.tensor(index, dtype=torch.int64)]
    assert got.shape == (len(index), ANSWER.inputs)
    for row, place in zip(got, index, strict=True):
        assert torch.equal(row, network_inputs(ANSWER, whole[place][None])[0])
    assert torch.equal(found[part], network_inputs(ANSWER, whole[part]))
    assert found.labels.dtype == torch.int64
    assert found.labels.tolist() == [int(row[-2]) + 256 * int(row[-1]) for row in whole]
    assert len(found) == len(whole)


def test_public_records_are_read_as_such():
    draw = np.random.default_rng(0)
    rows = ANSWER.without_coins(draw.standard_normal((6, 5)), draw.integers(0, 3, 6))
    plain, noisy = (Messages([rows], ANSWER, randomised=randomised)[:] for randomised in (False, True))
    assert torch.equal(plain, network_inputs(ANSWER, rows, randomised=False))
    assert torch.equal(noisy, Messages([rows], ANSWER)[:])
    assert bool((plain.abs() >= noisy.abs()).all()), "a bit that is certain says more"
    assert bool((plain.abs() > noisy.abs() + 0.01).any())
