"""Maps that a program made from a seed, in front of a network: any image in, by a rule that looks at this image alone."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from importlib import resources

import make_drawings
import make_photographs
import numpy as np
import pytest
import torch
from make_photographs import SIZE

from dpltm.errors import DataError
from dpltm.features import (
    DRAWINGS_DIGEST,
    DRAWINGS_FILE,
    MAPS,
    PHOTOGRAPHS_DIGEST,
    PHOTOGRAPHS_FILE,
    drawings,
    photographs,
)
from dpltm.features.drawings import UNITS, Drawings
from dpltm.features.feature_map import make_feature_map
from dpltm.features.photographs import PATCH, WAVES, Photographs
from made_features import check_made, damage
from refusals import refused

BOTH = pytest.mark.parametrize("name", ["drawings", "photographs"])


def images(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)


@BOTH
@pytest.mark.parametrize("shape", [(7, 28), (28, 5, 3), (28, 28, 2), (28, 28, 4), (784,), (2, 3, 4, 5)])
def test_what_is_no_such_image(name, shape):
    message = refused(lambda: make_feature_map(name, shape, (0.0, 1.0)).features)
    assert message.startswith(f"`features`: {name} takes images")


@pytest.mark.one_of(5)
@BOTH
@pytest.mark.parametrize("shape", [(8, 8), (8, 13, 3), (28, 28, 1), (32, 32, 3), (64, 64, 3), (64, 48)])
def test_any_size_is_taken(name, shape):
    x = np.concatenate([images(2, *shape), np.zeros((1, *shape), np.uint8)])
    features = make_feature_map(f"{name}:20", shape, (0.0, 255.0))(x)
    assert features.shape == (3, 20)
    assert features.isfinite().all()


@BOTH
def test_values_that_may_be_negative_are_as_bright(name):
    x = images(5, 32, 32, 3).astype(np.float32)
    plain, signed = (make_feature_map(name, (32, 32, 3), bounds) for bounds in ((0.0, 255.0), (-1.0, 1.0)))
    torch.testing.assert_close(signed(x / 127.5 - 1), plain(x), rtol=0, atol=1e-3)


@pytest.mark.parametrize("kind", [Drawings, Photographs])
def test_fewer_directions_are_the_first_of_them(kind):
    x = torch.from_numpy(images(4, 32, 32, 3) / 255).float()
    many, few = (kind(count, (32, 32, 3))(x) for count in (400, 30))
    torch.testing.assert_close(few, many[:, :30])


def test_the_file_is_part_of_the_id():
    found = make_feature_map("drawings", (28, 28), (0.0, 255.0))
    kind = replace(MAPS["drawings"], digest="0" * 64)
    assert replace(found, base=kind.choice()).id != found.id


@pytest.mark.parametrize(
    ("file", "digest", "most"), [(DRAWINGS_FILE, DRAWINGS_DIGEST, 2), (PHOTOGRAPHS_FILE, PHOTOGRAPHS_DIGEST, 3)]
)
def test_what_is_bundled_is_what_the_digest_says(file, digest, most):
    body = resources.files("dpltm.features").joinpath(file).read_bytes()
    assert hashlib.sha256(body).hexdigest() == digest
    assert len(body) <= most * 2**20


@pytest.mark.parametrize("what", ["changed", "gone"])
@pytest.mark.parametrize(("made", "file"), [(drawings, DRAWINGS_FILE), (photographs, PHOTOGRAPHS_FILE)])
def test_a_damaged_file_is_refused(made, file, what, tmp_path, monkeypatch):
    damage(file, what, tmp_path, monkeypatch)
    made._bundled.cache_clear()
    with pytest.raises(
        DataError, match=f"{file}, which comes with dpltm, is not what was bundled; install dpltm again"
    ):
        make_feature_map(file.partition(".")[0], (32, 32, 3), (0.0, 255.0))  # before anything is computed, or spent


# They come from a seed and nothing else


@pytest.mark.long
def test_the_seed_decides_every_bit_of_drawings_and_nothing_is_read(monkeypatch):
    first, notes = check_made(make_drawings, {"SAMPLE": 80, "KINDS": 4}, monkeypatch, "layers.0.weight")
    assert first["directions"].shape == (80, UNITS), "as many as drawings, where those are fewer than DIRECTIONS"
    assert all(note.endswith("% recognised") for note in notes)


@pytest.mark.long
def test_the_seed_decides_every_bit_of_photographs_and_nothing_is_read(monkeypatch):
    first, notes = check_made(make_photographs, {"SAMPLE": 80, "PATCHES": 2000}, monkeypatch, "filters")
    assert first["filters"].shape == (SIZE, 3, PATCH, PATCH)
    assert first["directions"].shape == (2, 80 * len(WAVES), SIZE), "as many as averages, where those are fewer"
    shares = [int(note.removesuffix("% alike")) for note in notes]
    assert shares == sorted(shares), "k-means never gets worse"
