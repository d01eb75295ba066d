"""Scattering: as a peer computes it, and which images are too small."""

from __future__ import annotations

import types
import warnings

import pytest
import torch
from torch import Tensor

from dpltm.features.transforms import Scattering
from refusals import refused


def images(count: int, height: int, width: int, seed: int = 0) -> Tensor:
    return torch.rand(count, height, width, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def peer() -> types.ModuleType:
    """kymatio 0.3.0. Its three-dimensional part imports a function that scipy has removed since.

    It takes pi for 3.1415 in the norms of filters, which moves everything by some 0.006 %.
    """
    pytest.importorskip("kymatio")
    import scipy.special

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setattr(scipy.special, "sph_harm", None, raising=False)
        import kymatio.torch
    return kymatio.torch


@pytest.mark.parametrize(
    ("scales", "angles", "height", "width"),
    [(1, 8, 8, 8), (2, 8, 28, 28), (2, 1, 11, 11), (3, 3, 9, 17), (4, 4, 40, 17)],
)
def test_the_same_as_kymatio(peer, scales: int, angles: int, height: int, width: int):
    found = Scattering(scales, angles, (height, width))
    x = images(3, height, width)
    x[2] = (x[2] > 0.5).float() * 2 - 1
    expected = peer.Scattering2D(scales, (height, width), L=angles)(x)
    assert expected[2, 1:].abs().max() > 0.05
    assert found(x).shape == expected.shape == (3, found.feature_shape[2], *found.feature_shape[:2])
    torch.testing.assert_close(found(x), expected, rtol=0, atol=1e-4)


def test_golden():
    """Also where the peer is not installed, and closer than it takes pi."""
    found = Scattering(2, 2, (9, 11))((torch.arange(99.0).view(1, 9, 11) / 99) ** 2)[0, :, 1, 0]
    first = [0.35881528, 0.03595266, 0.00346632, 0.07329474, 0.00745493]
    second = [0.00575403, 0.00038712, 0.00037928, 0.00053350]
    torch.testing.assert_close(found, torch.tensor([*first, *second]), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(
    ("scales", "height", "width", "message"),
    [
        (2, 4, 9, "of 4 x 9 pixels are too small for J = 2, which averages over windows of 4; take scatter:1"),
        (8, 40, 256, "of 40 x 256 pixels are too small for J = 8, which averages over windows of 256; take scatter:5"),
        (1, 2, 9, "of 2 x 9 pixels are too small to scatter; take `features` none"),
    ],
)
def test_images_that_are_too_small(scales: int, height: int, width: int, message: str):
    assert refused(Scattering, scales, 4, (height, width)) == f"`features`: images {message}"
    if "take scatter:" in message:  # what it says to take can be taken
        assert Scattering(int(message[-1]), 1, (height, width)).feature_shape[0] >= 1
