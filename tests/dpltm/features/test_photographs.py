"""The dictionary of painted scenes in front of a network: any image in, by a rule that looks at this image alone."""

from __future__ import annotations

import hashlib
from importlib import resources

import numpy as np
import pytest
import torch

from dpltm.errors import DataError
from dpltm.features.feature_map import make_feature_map
from dpltm.features.photographs.feature_map import Photographs, _bundled, as_photographs
from dpltm.features.photographs.learning import draw_views
from dpltm.features.registry import PHOTOGRAPHS_DIGEST, PHOTOGRAPHS_FILE
from made_features import damage
from refusals import refused


def images(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)


def test_grey_is_three_equal_colours():
    x = torch.rand(2, 32, 32)
    assert torch.equal(as_photographs(x), as_photographs(x[..., None].expand(-1, -1, -1, 3)))


def test_an_image_of_the_size_is_taken_as_it_is():
    x = torch.rand(2, 32, 32, 3)
    assert torch.equal(as_photographs(x), x.permute(0, 3, 1, 2))


@pytest.mark.parametrize("shape", [(8, 8), (8, 13, 3), (28, 28, 1), (32, 32, 3), (64, 64, 3), (64, 48)])
def test_any_size_is_taken(shape):
    features = make_feature_map("photographs:20", shape, (0.0, 255.0))(
        np.concatenate([images(2, *shape), np.zeros((1, *shape), np.uint8)])
    )
    assert features.shape == (3, 20)
    assert features.isfinite().all()


def test_the_mirror_image_says_the_same():
    x = images(3, 32, 32, 3)
    found = make_feature_map("photographs", (32, 32, 3), (0.0, 255.0))
    torch.testing.assert_close(found(x), found(x[:, :, ::-1].copy()), rtol=0, atol=1e-4)


@pytest.mark.parametrize("shape", [(7, 28), (28, 5, 3), (28, 28, 2), (28, 28, 4), (784,), (2, 3, 4, 5)])
def test_what_is_no_such_image(shape):
    assert refused(lambda: make_feature_map("photographs", shape, (0.0, 1.0)).features).startswith(
        "`features`: photographs takes images"
    )


def test_two_colours_are_refused_in_words():
    assert refused(lambda: make_feature_map("photographs", (28, 28, 2), (0.0, 1.0)).features) == (
        "`features`: photographs takes images of 8 by 8 pixels or more, in grey or in three colours, and these are 28 by 28"
        " in 2; take unit"
    )


def test_values_that_may_be_negative_are_as_bright():
    x = images(5, 32, 32, 3).astype(np.float32)
    plain, signed = (make_feature_map("photographs", (32, 32, 3), bounds) for bounds in ((0.0, 255.0), (-1.0, 1.0)))
    torch.testing.assert_close(signed(x / 127.5 - 1), plain(x), rtol=0, atol=1e-3)


def test_fewer_directions_are_the_first_of_them():
    x = torch.from_numpy(images(4, 32, 32, 3) / 255).float()
    many, few = (Photographs(count, (32, 32, 3))(x) for count in (400, 30))
    torch.testing.assert_close(few, many[:, :30])


def test_what_is_bundled_is_what_the_digest_says():
    body = resources.files("dpltm.features").joinpath(PHOTOGRAPHS_FILE).read_bytes()
    assert hashlib.sha256(body).hexdigest() == PHOTOGRAPHS_DIGEST
    assert len(body) <= 4 * 2**20


def test_it_tells_apart_scenes_that_it_has_not_seen():
    """One view of each of 100 new scenes and things is known; of another view, the nearest known one says which it is."""
    views = draw_views(100, 2, torch.Generator().manual_seed(123456))
    known, other = (255 * views).round().byte().permute(0, 2, 3, 1).numpy().reshape(2, 100, 32, 32, 3)
    right = {}
    for name in ("photographs", "unit"):
        found = make_feature_map(name, (32, 32, 3), (0.0, 255.0))
        right[name] = int(((found(other) @ found(known).T).argmax(1) == torch.arange(100)).sum())
    assert right["photographs"] > 1.4 * right["unit"]
    assert right["photographs"] > 20


@pytest.mark.parametrize("what", ["changed", "gone"])
def test_a_damaged_dictionary_is_refused(what, tmp_path, monkeypatch):
    damage(PHOTOGRAPHS_FILE, what, tmp_path, monkeypatch)
    _bundled.cache_clear()
    with pytest.raises(DataError, match=r"photographs\.safetensors, which comes with dpltm, is not what was bundled"):
        make_feature_map("photographs", (32, 32, 3), (0.0, 255.0))
