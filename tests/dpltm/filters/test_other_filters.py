"""Radial tanh, automatic clipping and the negative controls: golden values by hand, and parameters out of range."""

from __future__ import annotations

import math

import pytest
import torch

from dpltm.filters import Automatic, DpsrCg, RadialTanh, Sigmoid, Tanh
from refusals import refused


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_radial_tanh_golden() -> None:
    """A gradient of norm x comes out with norm C tanh(x / k)."""
    norm = column(1e-6, 0.25, 0.5, 1.0, 1e9)
    lengths = (RadialTanh(2.0, 0.5).factor(norm) * norm).tolist()
    assert lengths == pytest.approx([2 * math.tanh(x / 0.5) for x in (1e-6, 0.25, 0.5, 1.0, 1e9)], rel=1e-12)
    assert RadialTanh(2.0, 0.5).factor(column(0.0)).item() == 4.0  # C / k, the slope at zero


def test_automatic_golden() -> None:
    norm = column(0.0, 0.01, 3.0)
    assert Automatic(2.0).factor(norm).tolist() == pytest.approx([200.0, 100.0, 2 / 3.01], rel=1e-12)
    assert (Automatic(2.0, 0.0).factor(column(0.5, 3.0)) * column(0.5, 3.0)).tolist() == pytest.approx([2.0, 2.0])


def test_sigmoid_golden() -> None:
    """c / (1 + e^(-g / k)): half of c at zero, so that the sum tells how many records there were."""
    values = column(-1e9, -0.5, 0.0, 0.5, 1e9)
    halfway = 3 / (1 + math.exp(-0.5 / 0.4))
    assert Sigmoid(3.0, 0.4).map(values).tolist() == pytest.approx([0.0, 3 - halfway, 1.5, halfway, 3.0], abs=1e-12)
    assert Sigmoid(3.0, 0.4).certified_bound(100) == pytest.approx(30.0, rel=1e-5)
    assert Sigmoid(3.0, 0.4).certified_bound(100) >= 30.0


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("make", "parameter"),
    [
        (lambda value: Tanh(value, 1.0, None), "tanh_scale"),
        (lambda value: Tanh(1.0, value, None), "tanh_range"),
        (lambda value: RadialTanh(value, 1.0), "clip_norm"),
        (lambda value: RadialTanh(1.0, value), "tanh_range"),
        (Automatic, "clip_norm"),
        (DpsrCg, "clip_norm"),
        (lambda value: Sigmoid(value, 1.0), "tanh_scale"),
        (lambda value: Sigmoid(1.0, value), "tanh_range"),
    ],
)
def test_bad_parameters(make: object, parameter: str, value: float) -> None:
    assert callable(make)
    assert refused(make, value) == f"`{parameter}`: {value} is not a number between 1e-06 and 1e+06"


def test_dpsr_cg_golden() -> None:
    """By hand, as its code has it: C / 8 of what is short, and norm 8 of what is long, whatever C; it claims C."""
    norm = column(0.0, 4.0, 8.0, 8.0 * (1 + 1e-9), 16.0, 1e300)
    lengths = (DpsrCg(2.0).factor(norm) * norm).tolist()
    assert lengths == pytest.approx([0.0, 1.0, 2.0, 8.0, 8.0, 8.0], rel=1e-12)
    assert (DpsrCg(2.0).certified_bound(100), DpsrCg(2.0).nominal_bound) == (8.0, 2.0)
    assert (DpsrCg(20.0).certified_bound(100), str(DpsrCg(20.0))) == (20.0, "dpsr-cg(C=20)")
