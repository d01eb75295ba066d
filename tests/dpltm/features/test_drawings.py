"""The encoder of drawings in front of a network: any image in, by a rule that looks at this image alone."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from importlib import resources

import numpy as np
import pytest
import torch

from dpltm.errors import DataError
from dpltm.features import MAPS
from dpltm.features.drawings.feature_map import Drawings, _bundled, as_drawings
from dpltm.features.drawings.strokes import draw, draw_kinds
from dpltm.features.feature_map import make_feature_map
from dpltm.features.registry import DRAWINGS_DIGEST, DRAWINGS_FILE
from made_features import damage
from refusals import refused


def drawing() -> torch.Tensor:
    """A bright ring on black, 28 by 28."""
    rows, columns = torch.meshgrid(torch.arange(28.0), torch.arange(28.0), indexing="ij")
    distance = ((rows - 13.5) ** 2 + (columns - 13.5) ** 2).sqrt()
    return torch.exp(-((distance - 8) ** 2) / 8)


def test_a_drawing_is_taken_as_it_is():
    image = drawing()
    assert torch.equal(as_drawings(image[None])[0, 0], image)
    assert torch.equal(as_drawings(image[None, :, :, None])[0, 0], image)


def test_dark_on_light_is_turned_round_image_by_image():
    image = drawing()
    both = as_drawings(torch.stack([image, 1 - image]))
    torch.testing.assert_close(both[0], both[1])


def test_colours_become_grey():
    image = drawing()
    coloured = torch.stack([image, torch.zeros(28, 28), image], dim=-1)
    torch.testing.assert_close(as_drawings(coloured[None])[0, 0], image * (0.299 + 0.114))


@pytest.mark.parametrize("shape", [(8, 8), (8, 13), (14, 14), (32, 32, 3), (64, 48), (100, 90, 1)])
def test_any_size_is_taken(shape):
    made = as_drawings(torch.rand(3, *shape))
    assert made.shape == (3, 1, 28, 28)
    assert made.min() >= 0
    assert made.max() <= 1
    features = make_feature_map("drawings:20", shape, (0.0, 255.0))(np.zeros((2, *shape), np.uint8))
    assert features.shape == (2, 20)
    assert features.isfinite().all()


def test_a_larger_picture_of_the_same_is_nearly_the_same():
    image = drawing()
    large = torch.nn.functional.interpolate(image[None, None], (56, 56), mode="bilinear")[0]
    assert float((as_drawings(large)[0, 0] - image).abs().max()) < 0.1


def test_a_tall_image_keeps_its_proportions():
    tall = torch.zeros(1, 28, 14)
    tall[0, :, 4:10] = 1.0
    made = as_drawings(tall)[0, 0]
    assert made[:, :11].sum() == made[:, 17:].sum() == 0
    assert made[:, 11:17].mean() == 1


@pytest.mark.parametrize("shape", [(7, 28), (28, 5, 3), (28, 28, 2), (28, 28, 4), (784,), (2, 3, 4, 5)])
def test_what_is_no_such_image(shape):
    assert refused(lambda: make_feature_map("drawings", shape, (0.0, 1.0)).features).startswith(
        "`features`: drawings takes images"
    )


def test_values_that_may_be_negative_are_as_bright():
    x = np.random.default_rng(0).integers(0, 256, (5, 28, 28)).astype(np.float32)
    plain, signed = (make_feature_map("drawings", (28, 28), bounds) for bounds in ((0.0, 255.0), (-1.0, 1.0)))
    torch.testing.assert_close(signed(x / 127.5 - 1), plain(x), rtol=0, atol=1e-3)


def test_fewer_directions_are_the_first_of_them():
    x = np.random.default_rng(0).integers(0, 256, (4, 28, 28)).astype(np.uint8)
    many, few = (Drawings(count, (28, 28))(torch.from_numpy(x / 255).float()) for count in (400, 30))
    torch.testing.assert_close(few, many[:, :30])


def test_the_encoder_is_part_of_the_id():
    found = make_feature_map("drawings", (28, 28), (0.0, 255.0))
    kind = replace(MAPS["drawings"], digest="0" * 64)
    assert replace(found, base=kind.choice()).id != found.id


def test_what_is_bundled_is_what_the_digest_says():
    body = resources.files("dpltm.features").joinpath(DRAWINGS_FILE).read_bytes()
    assert hashlib.sha256(body).hexdigest() == DRAWINGS_DIGEST
    assert len(body) <= 2 * 2**20


def test_it_tells_apart_drawings_that_it_has_not_seen():
    """One drawing of each of 200 new kinds is known, some kinds hardly different; of another drawing of each, the nearest
    known one says the kind. Half a percent would be right by chance."""
    generator = torch.Generator().manual_seed(123456)
    kinds = draw_kinds(200, generator)
    known, other = ((255 * draw(kinds, generator)[:, 0]).round().byte().numpy() for _ in range(2))
    right = {}
    for name in ("drawings", "scatter", "unit"):
        found = make_feature_map(name, (28, 28), (0.0, 255.0))
        first, second = found(known), found(other)
        right[name] = int(((second @ first.T).argmax(1) == torch.arange(200)).sum())
    assert right["drawings"] > 80
    assert right["drawings"] > 1.4 * max(right["scatter"], right["unit"])


@pytest.mark.parametrize("what", ["changed", "gone"])
def test_a_damaged_encoder_is_refused(what, tmp_path, monkeypatch):
    damage(DRAWINGS_FILE, what, tmp_path, monkeypatch)
    _bundled.cache_clear()
    with pytest.raises(DataError, match="is not what was bundled; install dpltm again"):
        make_feature_map("drawings", (28, 28), (0.0, 255.0))  # before anything is computed, or spent
