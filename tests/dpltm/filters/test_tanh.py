"""The tanh filter: golden values, and its bounds against a search for the worst gradient."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpltm.errors import InputError
from dpltm.filters import Clip, Tanh

positive = st.floats(1e-3, 1e3)
sizes = st.integers(1, 40)


def filtered_norm(gradient: torch.Tensor, scale: float, range_: float) -> torch.Tensor:
    """Norm of c tanh(g / k) along the last axis, written out anew."""
    return (scale * torch.tanh(gradient / range_)).square().sum(-1).sqrt()


def test_map_golden():
    values = torch.tensor([[-1e30, -1.0, 0.0], [0.25, 1.0, 1e30]], dtype=torch.float64)
    expected = [[-2.0, -2 * 0.9640275800758169, 0.0], [2 * 0.46211715726000975, 2 * 0.9640275800758169, 2.0]]
    torch.testing.assert_close(Tanh(2.0, 0.5, None).map(values), torch.tensor(expected, dtype=torch.float64))


def test_it_is_tanh_and_not_the_printed_equation_4():
    """(1 - e^-x) / (1 + e^-x) is tanh(x / 2); docs/privacy-model.md section 4.2."""
    printed = (1 - math.exp(-1)) / (1 + math.exp(-1))
    mapped = Tanh(1.0, 1.0, None).map(torch.tensor([1.0])).item()
    assert mapped == pytest.approx(0.7615941559557649, abs=1e-6)
    assert mapped != pytest.approx(printed, abs=0.2)
    assert printed == pytest.approx(math.tanh(0.5))


@pytest.mark.parametrize(
    ("filter", "live", "bound"),
    [
        (Tanh(1.0, 1.0, None), 26010, 161.27616066858735),  # sqrt(26010)
        (Tanh(0.5, 3.0, None), 16, 2.0),
        (Tanh(2.0, 0.5, Clip(1.0)), 4, 4 * 0.7615941559557649),  # c sqrt(n) = 4, R / (k sqrt(n)) = 1
        (Tanh(1.0, 1.0, Clip(1.0)), 1, 0.7615941559557649),
    ],
)
def test_bound_golden_and_rounded_outward(filter, live, bound):
    assert bound < filter.certified_bound(live) < bound * (1 + 3e-6)


@given(positive, positive, positive, sizes)
def test_bounds_are_ordered(scale, range_, clip_norm, live):
    clipped, printed = Tanh(scale, range_, Clip(clip_norm)), Tanh(scale, range_, None)
    assert clipped.certified_bound(live) <= printed.certified_bound(live)
    assert clipped.certified_bound(live) <= scale * clip_norm / range_ * (1 + 2e-6)
    assert clipped.certified_bound(live) <= clipped.certified_bound(live + 1) * (1 + 1e-12)


@given(positive, positive, positive, sizes)
def test_equal_coordinates_attain_the_bound_after_clipping(scale, range_, clip_norm, live):
    worst = torch.full((live,), clip_norm / math.sqrt(live), dtype=torch.float64)
    attained = filtered_norm(worst, scale, range_).item()
    bound = Tanh(scale, range_, Clip(clip_norm)).certified_bound(live)
    assert attained <= bound
    assert attained >= bound * (1 - 1e-5)


@given(positive, positive, sizes)
def test_saturated_coordinates_attain_the_bound_as_printed(scale, range_, live):
    bound = Tanh(scale, range_, None).certified_bound(live)
    attained = filtered_norm(torch.full((live,), 40 * range_, dtype=torch.float64), scale, range_).item()
    assert bound * (1 - 1e-5) <= attained <= bound


@settings(max_examples=40)
@given(positive, positive, positive, sizes, st.integers(0, 2**32))
def test_no_random_gradient_exceeds_the_bounds(scale, range_, clip_norm, live, seed):
    generator = torch.Generator().manual_seed(seed)
    spread = torch.randn(500, live, generator=generator, dtype=torch.float64)
    spread *= torch.exp(3 * torch.randn(500, live, generator=generator, dtype=torch.float64))
    norm = torch.linalg.vector_norm(spread, dim=1, keepdim=True)
    length = clip_norm * torch.rand(500, 1, generator=generator, dtype=torch.float64) ** 0.1
    after_clip = spread / norm * length
    clipped = Tanh(scale, range_, Clip(clip_norm))
    assert filtered_norm(after_clip, scale, range_).max() <= clipped.certified_bound(live)
    assert filtered_norm(spread * 100, scale, range_).max() <= Tanh(scale, range_, None).certified_bound(live)


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


def test_one_large_coordinate_is_not_the_worst_case():
    """The bound cannot be c tanh(R / k), the value for a gradient along one axis."""
    assert Tanh(1.0, 0.1, Clip(1.0)).certified_bound(100) > 7.6 > 1.01 * math.tanh(10)


def test_names_itself_and_what_the_paper_claims():
    assert str(Tanh(1.0, 0.5, Clip(2.0))) == "clip(C=2) then tanh(c=1, k=0.5)"
    assert str(Tanh(3.0, 1.0, None)) == "tanh(c=3, k=1)"
    assert Tanh(3.0, 1.0, None).nominal_bound == 1.0
    assert Tanh(3.0, 1.0, None).kind == "element-wise"
    with pytest.raises(dataclasses.FrozenInstanceError):
        Tanh(1.0, 1.0, None).scale = 2.0


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, -math.inf])
def test_bad_parameters(value):
    for arguments, option in (((value, 1.0), "`tanh_scale`"), ((1.0, value), "`tanh_range`")):
        with pytest.raises(InputError) as error:
            Tanh(*arguments, None)
        assert str(error.value) == f"{option}: {value} is not a number between 1e-06 and 1e+06"


def test_bound_without_live_coordinates_is_zero():
    assert Tanh(1.0, 1.0, Clip(1.0)).certified_bound(0) == 0.0
