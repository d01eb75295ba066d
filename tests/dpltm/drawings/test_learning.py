"""The encoder comes from a seed and nothing else."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from dpltm.drawings import learning
from dpltm.drawings.encoder import UNITS
from dpltm.drawings.learning import DIRECTIONS, WHITENING, directions, make
from dpltm.options.features import MakeRequest
from dpltm.tickets.workbench.features import BUNDLED


@pytest.fixture(autouse=True)
def _few_drawings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "SAMPLE", 480)
    monkeypatch.setattr(learning, "KINDS", 24)


def test_the_seed_decides_every_bit():
    first, again, other = make(3, 4), make(3, 4), make(4, 4)
    assert first.keys() == other.keys()
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["layers.0.weight"], other["layers.0.weight"])
    assert {value.dtype for value in first.values()} == {np.dtype("float16")}
    assert all(np.isfinite(value).all() for value in first.values())
    assert first["directions"].shape == (DIRECTIONS, UNITS)


def test_the_command_takes_the_usual_steps():
    assert MakeRequest(what="drawings").steps is None
    assert BUNDLED["drawings"].steps == learning.STEPS == 2000


def test_threads_are_put_back_and_decide_nothing():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        found = make(3, 2)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert all(np.array_equal(value, found[name]) for name, value in make(3, 2).items())


def test_who_watches_is_told_of_every_step():
    notes = []
    make(0, 3, lambda done, note: notes.append((done, note)))
    assert [done for done, _ in notes] == [1, 2, 3]
    assert all(note.endswith("% recognised") for _, note in notes)


def test_directions_are_principal_components():
    units = torch.randn(3000, UNITS, generator=torch.Generator().manual_seed(0)) * torch.linspace(0.5, 2.0, UNITS)
    mean, found = directions(units)
    torch.testing.assert_close(mean, units.mean(0), rtol=0, atol=1e-5)
    values = (units - mean).double() @ found.double().T
    covariance = values.T @ values / len(units)
    spread = covariance.diagonal()
    assert float((covariance - spread.diag()).abs().max()) < 1e-4 * float(spread.max())
    lengths = found.double().norm(dim=1)  # variance to the power -WHITENING, so the spread is a power of these
    torch.testing.assert_close(spread, lengths ** (2 - 1 / WHITENING), rtol=1e-4, atol=0.0)


def test_directions_without_spread_are_numbers_all_the_same():
    units = torch.zeros(50, UNITS)
    units[:, :5] = torch.randn(50, 5, generator=torch.Generator().manual_seed(0))
    assert all(part.half().isfinite().all() for part in directions(units))


SEALED = """
import sys
from dpltm.drawings import learning
learning.SAMPLE, learning.KINDS = 480, 24
learning.make(9, 1)  # what is imported on the way
seen = []
sys.addaudithook(lambda event, args: seen.append(event) if event in ("open", "socket.connect", "subprocess.Popen") else None)
learning.make(0, 2)
print(seen)
"""


def test_no_file_and_no_network_is_read():
    done = subprocess.run([sys.executable, "-c", SEALED], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
