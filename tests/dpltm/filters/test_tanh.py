"""The tanh filter: golden values, and its bounds against a search for the worst gradient."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpltm.filters import Clip, Tanh
from dpltm.filters.tanh import LOWER, ROUNDING, SHRINKING, UPPER, fraction

positive = st.floats(1e-3, 1e3)


def filtered_norm(live: int, value: float, scale: float, range_: float) -> float:
    """Norm of c tanh(g / k) for a gradient of equal coordinates, written out anew."""
    return scale * math.tanh(value / range_) * math.sqrt(live)


def test_map_golden():
    """tanh is tanh, and not tanh(x / 2) as equation 4 is printed (docs/privacy-model.md section 4.2)."""
    values = torch.tensor([[-1e30, -1.0, 0.0], [0.25, 1.0, 1e30]], dtype=torch.float64)
    expected = [[-2.0, -2 * 0.9640275800758169, 0.0], [2 * 0.46211715726000975, 2 * 0.9640275800758169, 2.0]]
    torch.testing.assert_close(Tanh(2.0, 0.5, None).map(values), torch.tensor(expected, dtype=torch.float64))


def test_the_fraction_that_is_compiled_is_tanh_as_exactly_as_the_bound_says():
    """Everywhere in float32, from its least numbers to infinity; and never beyond 1, where the bound has no room."""
    values = torch.cat(
        [torch.linspace(0, 12, 3_000_001), torch.logspace(-45, 38, 300_001), torch.tensor([torch.inf, 3e38, 1e-45])]
    )
    exact = values.double().tanh()
    found = fraction(values)
    off = ((found.double() - exact) / exact)[values > 1e-37]  # below, float32 has fewer digits
    assert -SHRINKING - 2.1e-6 < float(off.min()) < -SHRINKING
    assert float(off.max()) < 2.1e-6 - SHRINKING < 2.5e-7 < ROUNDING - 1 - 3 * 2.0**-24
    assert bool((found <= values).all())
    assert torch.equal(fraction(-values), -found)
    assert 1 - 4e-6 < float(found.max()) <= 1.0
    assert fraction(torch.tensor([torch.nan])).isnan().all()
    assert len(UPPER) == len(LOWER) == 6
    assert all(coefficient > 0 for coefficient in (*UPPER, *LOWER))


@pytest.mark.parametrize(
    ("filter", "live", "bound"),
    [
        (Tanh(1.0, 1.0, None), 26010, 161.27616066858735),  # sqrt(26010)
        (Tanh(0.5, 3.0, None), 16, 2.0),
        (Tanh(2.0, 0.5, Clip(1.0)), 4, 4 * 0.7615941559557649),  # c sqrt(n) = 4, R / (k sqrt(n)) = 1
        (Tanh(1.0, 1.0, Clip(1.0)), 1, 0.7615941559557649),
        (Tanh(1.0, 1.0, None, Clip(9.0)), 16, 4.0),
    ],
)
def test_bound_golden_and_rounded_outward(filter, live, bound):
    assert bound < filter.certified_bound(live) < bound * (1 + 3e-6)
    assert filter.certified_bound(0) == 0.0
    assert Tanh(1.0, 1.0, None, Clip(0.5)).certified_bound(live) == 0.5


@given(positive, positive, positive, st.integers(1, 40))
def test_equal_coordinates_attain_the_bounds(scale, range_, clip_norm, live):
    """After clipping those of a gradient of norm R; as printed, those that saturate."""
    for before, value in ((Clip(clip_norm), clip_norm / math.sqrt(live)), (None, 40 * range_)):
        bound = Tanh(scale, range_, before).certified_bound(live)
        assert bound * (1 - 1e-5) <= filtered_norm(live, value, scale, range_) <= bound


@pytest.mark.parametrize(("range_", "clip_norm"), [(1.0, 0.1), (1.0, 3.0), (0.1, 1.0), (0.05, 5.0)])
def test_gradient_ascent_finds_nothing_above_the_bound(range_, clip_norm):
    """Looks for the worst gradient on the sphere of radius R without being told that it has equal coordinates."""
    live, rng = 12, np.random.default_rng(7)
    point = rng.normal(size=(20, live))
    for step in range(400):
        point *= clip_norm / np.linalg.norm(point, axis=1, keepdims=True)
        mapped = np.tanh(point / range_)
        uphill = mapped * (1 - mapped**2)  # half the gradient of the squared norm, times k
        length = np.linalg.norm(uphill, axis=1, keepdims=True)
        point += clip_norm * 0.3 * 0.98**step * uphill / np.maximum(length, 1e-300)
    norms = np.linalg.norm(mapped, axis=1)
    bound = Tanh(1.0, range_, Clip(clip_norm)).certified_bound(live)
    assert norms.max() <= bound
    assert norms.max() >= bound * 0.999, "the search was too weak to say anything"
