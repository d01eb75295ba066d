"""Masks as pictures: what is read back from the PNG is what was drawn."""

from __future__ import annotations

import base64
import io

import matplotlib.image
import numpy as np
import pytest

from dpltm.tickets.pictures import SIDE, Picture, densities, first_layer, layer

DARK = np.array([8, 48, 107]) / 255


def pixels(picture: Picture) -> np.ndarray:
    head, data = picture.data.split(",", 1)
    assert head == "data:image/png;base64"
    read = matplotlib.image.imread(io.BytesIO(base64.b64decode(data)), format="png")[..., :3]
    assert read.shape[:2] == (picture.height, picture.width)
    return read


def test_a_small_mask_is_shown_point_by_point() -> None:
    mask = np.random.default_rng(0).random((7, 11)) < 0.4
    read = pixels(layer("fc1.weight", mask))
    assert np.allclose(read, np.where(mask[..., None], DARK, 1.0), atol=1 / 255)


def test_a_large_one_is_averaged() -> None:
    mask = np.zeros((3 * SIDE, 2 * SIDE + 1), bool)
    mask[: 3 * SIDE // 2] = True
    read = pixels(layer("w", mask))
    assert read.shape[:2] == (SIDE, SIDE)
    assert np.allclose(read[: SIDE // 2], DARK, atol=1 / 255)
    assert np.allclose(read[SIDE // 2 :], 1.0)


def test_the_first_layer_of_images_is_an_image() -> None:
    mask = np.zeros((4, 6), bool)
    mask[:2, 1], mask[0, 5] = True, True  # two units look at pixel (0, 1), one at (1, 2)
    found = first_layer(mask, (2, 3))
    assert found is not None
    assert found.title.endswith("darkest 50 %")
    read = pixels(found)
    assert np.allclose(read[0, 1], DARK, atol=1 / 255)
    assert np.allclose(read[1, 2], (1 + DARK) / 2, atol=1 / 255)
    assert np.allclose(read[0, 0], 1.0)


def test_kernels_stand_side_by_side() -> None:
    mask = np.ones((5, 2, 3, 3), bool)
    mask[4] = False
    found = first_layer(mask, None)
    assert found is not None
    read = pixels(found)
    assert read.shape[:2] == (2 * 4 - 1, 3 * 4 - 1)
    assert np.allclose(read[:3, :3], DARK, atol=1 / 255)
    assert np.allclose(read[4:7, 4:7], 1.0)
    assert np.allclose(read[:, 3], 190 / 255, atol=1 / 255)


@pytest.mark.parametrize("shape", [None, (2, 2), (4, 4)])
def test_no_image_where_inputs_are_no_pixels(shape: tuple[int, ...] | None) -> None:
    assert first_layer(np.ones((4, 6), bool), shape) is None


def test_densities() -> None:
    masks = {"w": np.array([[True, False], [False, False]]), "b": np.array([True, True])}
    assert densities(masks) == [("w", "2x2", 1, 0.25), ("b", "2", 2, 1.0)]
