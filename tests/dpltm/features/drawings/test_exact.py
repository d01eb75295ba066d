"""The encoder without torch: what torch computes up to rounding, and the same bits however it is computed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from dpltm.features.drawings import exact, feature_map
from dpltm.features.drawings.exact import PIXEL_BITS, Architecture, ExactEncoder, whole_drawings
from dpltm.features.drawings.feature_map import architecture, as_drawings, encoder_tensors, exact_encoder
from dpltm.features.drawings.strokes import SIDE, draw, draw_kinds
from dpltm.features.registry import DRAWINGS_DIGEST, DRAWINGS_FILE

BUNDLED = (DRAWINGS_FILE, DRAWINGS_DIGEST, 400)


def drawings(count: int, seed: int = 0) -> np.ndarray:
    """Drawings that nobody has seen, in units of 2^-PIXEL_BITS."""
    generator = torch.Generator().manual_seed(seed)
    return np.rint(draw(draw_kinds(count, generator), generator)[:, 0].double().numpy() * 2.0**PIXEL_BITS)


def hostile() -> np.ndarray:
    """Nothing, everything, the same everywhere, one pixel, hardly anything, noise, half of it."""
    images = np.zeros((8, SIDE, SIDE))
    images[1], images[2] = 1.0, 0.3
    images[3, 5, 7] = 1.0
    images[4, 14, 14] = 2.0**-PIXEL_BITS
    images[5] = np.random.default_rng(0).random((SIDE, SIDE))
    images[6, :14] = 1.0
    images[7, ::2, ::2] = 1.0
    return np.rint(images * 2.0**PIXEL_BITS)


def by_torch(layers: nn.Sequential, tensors: dict[str, np.ndarray], pooled: int, images: np.ndarray) -> np.ndarray:
    """The same network as torch has it, in float64."""
    wide = {name: torch.from_numpy(value).double() for name, value in tensors.items()}
    mean, directions = wide.pop("mean"), wide.pop("directions")
    layers = layers.double()
    layers.load_state_dict({name.removeprefix("layers."): value for name, value in wide.items()})
    with torch.no_grad():
        units = layers(torch.from_numpy(images)[:, None] / 2.0**PIXEL_BITS)
    return ((functional.adaptive_avg_pool2d(units, pooled).flatten(1) - mean) @ directions.T).numpy()


def least_cosine(one: np.ndarray, other: np.ndarray) -> float:
    sizes = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return float(((one * other).sum(1) / sizes).min())


@pytest.mark.parametrize("images", [drawings(40), hostile()], ids=["drawings", "hostile"])
def test_units_are_those_of_torch(images):
    tensors = encoder_tensors(*BUNDLED)
    expected = by_torch(feature_map.Encoder().layers, tensors, architecture().pooled, images)
    assert least_cosine(exact_encoder(*BUNDLED)(images), expected) > 0.9999


def test_any_other_encoder_of_such_layers_is_taken_as_it_is(monkeypatch):
    """Another width, depth, kernel, stride, number of groups and of windows; nothing is said of it twice."""

    class Other(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(
                nn.Conv2d(1, 6, 3, padding=1), nn.GroupNorm(2, 6, eps=1e-3), nn.ReLU(), nn.AvgPool2d(2),
                nn.Conv2d(6, 10, 5, stride=3, padding=2), nn.GroupNorm(5, 10), nn.ReLU(),
                nn.Conv2d(10, 8, 1), nn.GroupNorm(1, 8), nn.ReLU(), nn.AvgPool2d(3, 1, 1),
            )  # fmt: skip

    monkeypatch.setattr(feature_map, "Encoder", Other)
    monkeypatch.setattr(feature_map, "POOLED", 4)
    generator = torch.Generator().manual_seed(0)
    tensors = {
        f"layers.{name}": (0.4 * torch.randn(value.shape, generator=generator) + (value.ndim == 1)).half().numpy()
        for name, value in Other().layers.state_dict().items()
    }
    tensors["mean"] = torch.rand(8 * 16, generator=generator).half().numpy()
    tensors["directions"] = torch.randn(30, 8 * 16, generator=generator).half().numpy()
    images = np.concatenate([drawings(10), hostile()])
    found = ExactEncoder(architecture(), tensors)(images)
    assert least_cosine(found, by_torch(Other().layers, tensors, 4, images)) > 0.9999


def test_the_same_alone_and_among_others(monkeypatch):
    encoder, images = exact_encoder(*BUNDLED), np.concatenate([hostile(), drawings(20)])
    found = encoder(images)
    order = np.random.default_rng(0).permutation(len(images))
    np.testing.assert_array_equal(encoder(images[order]), found[order])
    monkeypatch.setattr(exact, "ROWS", 5)
    np.testing.assert_array_equal(encoder(images), found)
    np.testing.assert_array_equal(encoder(images[13:14]), found[13:14])
    assert encoder(images[:0]).shape == (0, 400)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1.0, 2.0**-PIXEL_BITS, 0.05]))
def test_no_sum_is_rounded(seed, share):
    """Each is of whole numbers below 2^53 in size, partial sums too: so whole numbers of 64 bits give the same."""
    generator = np.random.default_rng(seed)
    values = np.rint(2.0**PIXEL_BITS * share * generator.random((3, SIDE, SIDE)))[..., None]
    for block in exact_encoder(*BUNDLED)._blocks:
        if isinstance(block, exact._Average):
            assert values.max() * block._layer.kernel**2 < 2.0**53
            values = block(values)
            assert (values == np.rint(values)).all()
            continue
        patches, weight = block._patches(values), block._weight
        assert (np.abs(patches) @ np.abs(weight) + np.abs(block._bias)).max() * block._members < 2.0**53
        rows = patches @ weight + block._bias
        whole = patches.astype(np.int64) @ weight.astype(np.int64) + block._bias.astype(np.int64)
        np.testing.assert_array_equal(rows, whole)
        values = block(values)
        assert (values == np.rint(values)).all()
        assert values.max() <= block.largest * 2.0**exact.UNIT_BITS
        assert block._members * 4.0**block._square_bits <= 2.0**53


def test_units_do_not_depend_on_the_order_of_channels():
    """The second layer's channels in another order within their groups, and the third's weights with them."""
    tensors, made = encoder_tensors(*BUNDLED), architecture()
    each = len(tensors["layers.5.weight"]) // made.layers[5].groups
    order = (np.arange(len(tensors["layers.5.weight"])).reshape(-1, each)[:, ::-1]).reshape(-1)
    changed = {
        f"layers.{place}.{name}": tensors[f"layers.{place}.{name}"][order]
        for place in (4, 5)
        for name in ("weight", "bias")
    }
    changed["layers.7.weight"] = tensors["layers.7.weight"][:, order]
    images = drawings(6)
    found = ExactEncoder(made, {**tensors, **changed})(images)
    np.testing.assert_array_equal(found, exact_encoder(*BUNDLED)(images))


@pytest.mark.parametrize(
    "layer",
    [
        nn.Linear(2, 2),
        nn.Conv2d(1, 1, 3, stride=(1, 2)),
        nn.Conv2d(2, 2, 3, groups=2),
        nn.AvgPool2d(2, count_include_pad=False),
    ],
)
def test_a_layer_of_another_kind_is_refused(layer):
    with pytest.raises(TypeError, match=r"dpltm\.features\.drawings\.exact cannot compute "):
        feature_map._described(layer)


def test_layers_in_another_order_are_refused():
    made = architecture()
    wrong: Architecture = replace(made, layers=made.layers[1:])
    with pytest.raises(ValueError, match="Expected convolutions, each normalised and cut at zero"):
        ExactEncoder(wrong, encoder_tensors(*BUNDLED))


# --- images ---

SHAPES = [(28, 28), (8, 8), (8, 13), (14, 14), (32, 32, 3), (64, 48), (100, 90, 1), (9, 30, 3)]


@pytest.mark.parametrize("shape", SHAPES)
def test_images_become_the_drawings_that_torch_makes(shape):
    """Dark and bright ones; up to the grids of pixels and shares."""
    x = np.random.default_rng(0).random((6, *shape)).astype(np.float32)
    x[:3] *= 0.4
    expected = as_drawings(torch.from_numpy(x))[:, 0].numpy()
    found = whole_drawings(x, SIDE)
    np.testing.assert_allclose(found / 2.0**PIXEL_BITS, expected, atol=2e-4)
    assert (found == np.rint(found)).all()
    assert found.min() >= 0
    assert found.max() <= 2.0**PIXEL_BITS


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_the_same_everywhere_stays_so(shape):
    """Shares of pixels, and of colours, add up to one exactly; bright ones are turned round."""
    for value, kept in ((0.25, 0.25), (0.75, 0.25), (1.0, 0.0)):
        made = whole_drawings(np.full((1, *shape), value, np.float32), SIDE)
        high, wide = (round(SIDE * side / max(shape[:2])) for side in shape[:2])
        top, left = (SIDE - high) // 2, (SIDE - wide) // 2
        assert set(np.unique(made[0, top : top + high, left : left + wide])) == {kept * 2.0**PIXEL_BITS}
        assert made.sum() == high * wide * kept * 2.0**PIXEL_BITS
