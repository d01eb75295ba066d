"""The dictionary comes from a seed and nothing else."""

from __future__ import annotations

import pytest
import torch

from dpltm.features.photographs import learning
from dpltm.features.photographs.feature_map import PATCH, WINDOWS, units_of
from dpltm.features.photographs.learning import SIZE, dictionary, patches
from made_features import check_made


@pytest.fixture(autouse=True)
def _few_patches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "PATCHES", 2000)


def test_the_seed_decides_every_bit_and_nothing_is_read(monkeypatch):
    first, notes = check_made("dpltm.features.photographs", {"SAMPLE": 80, "PATCHES": 2000}, monkeypatch, "filters")
    assert first["filters"].shape == (SIZE, 3, PATCH, PATCH)
    assert first["directions"].shape == (80, 2 * SIZE * WINDOWS**2), "as many as images, where those are fewer"
    shares = [int(note.removesuffix("% alike")) for note in notes]
    assert shares == sorted(shares), "k-means never gets worse"


def test_patches_have_no_mean_and_one_contrast():
    images = torch.rand(5, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    taken = patches(images, torch.Generator().manual_seed(1))
    torch.testing.assert_close(taken.mean(1), torch.zeros(2000), rtol=0, atol=1e-5)
    assert (taken.square().mean(1) < 1).all()
    assert (taken.square().mean(1) > 0.8).all()  # the variance of uniform noise, 1/12, over itself and 0.01


def test_units_are_those_of_the_definition():
    """Patch by patch, in the words of the module: contrast, comparison, threshold, means of four quarters, both ways."""
    generator = torch.Generator().manual_seed(2)
    image, filters = torch.rand(3, 8, 8, generator=generator), torch.randn(4, 3, PATCH, PATCH, generator=generator)
    filters, offset = filters - filters.mean((1, 2, 3), keepdim=True), torch.randn(4, generator=generator)
    total = torch.zeros(8, 2, 2)
    for seen in (image, image.flip(2)):
        units = torch.zeros(8, 3, 3)
        for row in range(3):
            for column in range(3):
                patch = seen[:, row : row + PATCH, column : column + PATCH]
                patch = (patch - patch.mean()) / (patch.var(correction=0) + 0.01).sqrt()
                like = (filters * patch).sum((1, 2, 3)) - offset
                least = 0.4 * like.square().mean().sqrt()
                units[:, row, column] = torch.cat([like - least, -like - least]).clamp_min(0)
        for row in range(2):
            for column in range(2):
                total[:, row, column] += units[:, row : row + 2, column : column + 2].mean((1, 2)) / 2
    torch.testing.assert_close(units_of(image[None], filters, offset)[0], total.flatten(), rtol=1e-4, atol=1e-4)


def test_filters_compare_whitened_patches():
    generator = torch.Generator().manual_seed(3)
    taken = patches(torch.rand(40, 3, 32, 32, generator=generator), generator)
    filters, offset = dictionary(taken, 2, generator)
    torch.testing.assert_close(filters.sum((1, 2, 3)), torch.zeros(SIZE), rtol=0, atol=1e-3)
    torch.testing.assert_close(taken.mean(0) @ filters.flatten(1).T, offset, rtol=0, atol=1e-3)
