"""The encoder comes from a seed and nothing else."""

from __future__ import annotations

import pytest
import torch

from dpltm.drawings import learning
from dpltm.drawings.encoder import UNITS
from dpltm.drawings.learning import DIRECTIONS, WHITENING, directions, make
from dpltm.options.features import MakeRequest
from dpltm.tickets.workbench.features import BUNDLED
from made_features import check_nothing_is_read, check_seed


@pytest.fixture(autouse=True)
def _few_drawings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "SAMPLE", 480)
    monkeypatch.setattr(learning, "KINDS", 8)


def test_the_seed_decides_every_bit():
    first, notes = check_seed(make, "layers.0.weight")
    assert first["directions"].shape == (DIRECTIONS, UNITS)
    assert all(note.endswith("% recognised") for _, note in notes)


def test_the_command_takes_the_usual_steps():
    assert MakeRequest(what="drawings").steps is None
    assert BUNDLED["drawings"].steps == learning.STEPS == 2000


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


def test_no_file_and_no_network_is_read():
    check_nothing_is_read("dpltm.drawings", "learning.SAMPLE, learning.KINDS = 480, 8")
