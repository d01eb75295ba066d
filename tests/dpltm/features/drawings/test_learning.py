"""The encoder comes from a seed and nothing else."""

from __future__ import annotations

import torch

from dpltm.features.drawings import learning
from dpltm.features.drawings.feature_map import UNITS
from dpltm.features.drawings.learning import WHITENING, directions
from dpltm.options.datasets import MakeRequest
from dpltm.tickets.workbench.features import BUNDLED
from made_features import check_made


def test_the_seed_decides_every_bit_and_nothing_is_read(monkeypatch):
    first, notes = check_made("dpltm.features.drawings", {"SAMPLE": 80, "KINDS": 4}, monkeypatch, "layers.0.weight")
    assert first["directions"].shape == (80, UNITS), "as many as drawings, where those are fewer than DIRECTIONS"
    assert all(note.endswith("% recognised") for note in notes)


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
