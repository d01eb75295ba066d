"""Several maps side by side."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from dpltm.features import Choice, parse
from dpltm.features.feature_map import FeatureMap, make_feature_map
from dpltm.features.normalisation import NORM
from dpltm.tickets.feature_files import read_map, write_map
from refusals import refused

SHAPE = (12, 10)
X = np.random.default_rng(0).integers(0, 256, (9, *SHAPE)).astype(np.uint8)


def made(text: str, bounds: tuple[float, float] = (0.0, 255.0)) -> FeatureMap:
    return make_feature_map(text, SHAPE, bounds)


@pytest.mark.parametrize(
    "texts", [("drawings:30", "scatter:1,4"), ("scatter:2,3", "unit:2", "fourier:16,1"), ("unit:1", "conv:5")]
)
def test_each_part_has_the_same_share_of_the_norm(texts):
    alone = [made(text)(X) for text in texts]
    together = made("+".join(texts))(X)
    stops = np.cumsum([0, *(part.shape[1] for part in alone)])
    assert together.shape == (9, stops[-1])
    for (start, stop), part in zip(pairwise(stops), alone, strict=True):
        torch.testing.assert_close(together[:, start:stop] * len(texts) ** 0.5, part, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(together.norm(dim=1), torch.full((9,), NORM))


def test_each_part_gets_the_values_that_it_takes():
    signed = X.astype(np.float32) / 127.5 - 1
    texts = ("drawings:30", "fourier:16,1")
    alone = [made(text, (-1.0, 1.0))(signed) for text in texts]
    together = made("+".join(texts), (-1.0, 1.0))(signed)
    torch.testing.assert_close(together * 2**0.5, torch.cat(alone, 1), rtol=1e-4, atol=1e-5)


def test_what_the_option_says():
    found = parse("scatter+drawings:7")
    assert isinstance(found, Choice)
    assert (found.text, found.takes, found.channels) == ("scatter:2,8+drawings:7", "image", False)
    assert parse("unit+wavelets").takes == "signal"
    assert parse("unit+fourier").takes == "any"
    assert parse("fourier:64,1e+2").text == "fourier:64,100"
    assert made("scatter+unit").id != made("unit+scatter").id


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("drawings+drawings:7", "`features`: drawings:400+drawings:7: drawings is there twice"),
        (
            "scatter+wavelets",
            "`features`: scatter:2,8+wavelets:5,2: takes image and signal in one; join maps of the same records",
        ),
        ("drawings+none", "`features`: 'drawings+none': only maps that need no data can be joined"),
        ("drawings+network:r", "`features`: 'drawings+network:r': only maps that need no data can be joined"),
    ],
)
def test_what_cannot_be_joined(text, message):
    assert refused(parse, text) == message


@pytest.mark.parametrize("text", ["drawings+", "+", "+drawings", "drawings+paintings"])
def test_what_is_no_map(text):
    assert "is not none, scatter" in refused(parse, text)


def test_artifacts_keep_it(tmp_path):
    found = made("drawings:7+scatter:1,3")
    body = write_map(tmp_path, found)
    assert read_map(tmp_path, tmp_path / "config.json", body) == found
    assert body["encoder"] == found.base.digest
    body["encoder"] = "ab" * 32
    message = refused(read_map, tmp_path, tmp_path / "config.json", body)
    assert "was made with another encoder than this version of dpltm has (SHA-256 abababababab, here " in message
