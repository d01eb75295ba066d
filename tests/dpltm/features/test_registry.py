"""Kinds of feature maps: what options say of them, and a new one as one object."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

import dpltm
from dpltm.features import MAPS, MapKind, Transform, metavar, parse
from dpltm.features.feature_map import FeatureMap, make_feature_map
from dpltm.features.normalisation import NORM
from dpltm.registry import Parameter
from dpltm.tickets.feature_files import read_map, write_map
from refusals import refused


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("none", None),
        ("scatter", MAPS["scatter"].choice(2, 8)),
        ("scatter:1,5", MAPS["scatter"].choice(1, 5)),
        ("fourier:512", MAPS["fourier"].choice(512, 2.0)),
    ],
)
def test_what_the_option_takes(text: str, expected: object):
    assert parse(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", "None", "Scatter", "scatter2", "scatter:x", "scatter:2,8,1", "scatter:2,", "scatter:,8", "scatter:2.0"),
        *("scatter:2222222222", "scatter:²", "network:a.run", "none:1", "fourier:512.0", "fourier:512,1_0"),
        *("fourier:512,.", "drawings+", "x" * 200),
    ],
)
def test_what_it_does_not_take(text: str):
    near = {"None": "none", "Scatter": "scatter", "scatter2": "scatter", "drawings+": "drawings"}.get(text)
    hint = f"; did you mean {near}?" if near else ""
    assert refused(parse, text) == (
        f"`features`: {text!r:.80} is not none, scatter, scatter:J,L, conv, conv:SEED, drawings, drawings:K, photographs,"
        f" photographs:K, wavelets, wavelets:J,Q, splines, splines:K, unit, unit:K, fourier or fourier:D,GAMMA{hint}"
    )


@pytest.mark.parametrize("text", ["0.50", ".5", "5e-1", "0.5", "00.5", "50E-2"])
def test_a_decimal_is_written_in_one_way(text: str):
    choice = parse(f"fourier:1024,{text}")
    assert choice == MAPS["fourier"].choice(1024, 0.5)
    assert choice.text == "fourier:1024,0.5"


def test_maps_are_what_they_were_before_there_were_decimals():
    """Their ids are in artifacts."""
    for text, shape, bounds, canonical, expected in (
        ("scatter", (8, 8), (0.0, 16.0), "scatter:2,8", "22b402302e54d3a7"),
        ("scatter:1,5", (9, 8, 3), (0.0, 255.0), "scatter:1,5", "857b97ca4ed70920"),
        ("conv", (8, 8), (0.0, 16.0), "conv:0", "249c2149c3cdad09"),
        ("conv:7", (28, 28), (0.0, 255.0), "conv:7", "c8cc5f3a86556d71"),
        ("wavelets", (128, 9), (-2.0, 2.0), "wavelets:5,2", "cba19d450c3dca6f"),
        ("wavelets:3,1", (40, 3), (0.0, 1.0), "wavelets:3,1", "107423bd4088e5aa"),
        ("unit", (617,), (-1.0, 1.0), "unit:1", "12d37685b367584c"),
        ("unit:2", (16,), (0.0, 15.0), "unit:2", "dae55354760505e2"),
        ("fourier:1024,.50", (16,), (0.0, 15.0), "fourier:1024,0.5", "96498bf08067db22"),
    ):  # fmt: skip
        found = make_feature_map(text, shape, bounds)
        assert (found.text, found.id[:16]) == (canonical, expected)


@pytest.mark.parametrize("kind", MAPS.values(), ids=list(MAPS))
def test_what_a_kind_says_of_itself(kind: MapKind):
    assert kind.help.endswith(".")
    assert kind.source
    usual = kind.choice()
    assert parse(kind.name) == parse(usual.text) == usual
    for place, parameter in enumerate(kind.parameters):
        values = [other.default for other in kind.parameters]
        for value in (parameter.low, parameter.high):
            values[place] = value
            assert kind.choice(*values).parts == ((kind, tuple(values)),)
        for value in (parameter.low - 1, parameter.high + 1):
            values[place] = value
            message = refused(kind.choice, *values)
            written = ",".join(str(each).removesuffix(".0") for each in values)
            assert message.startswith(f"`features`: {kind.name}:{written}: ")
            assert f"{parameter.low:g} to {parameter.high:g}" in message
            assert message.endswith(f"; the usual is {usual.text}")


class Stripes(Transform):
    """Means of every so many rows of an image."""

    def __init__(self, rows: int, shape: tuple[int, ...]) -> None:
        self.rows, self.feature_shape = rows, (shape[0] // rows * shape[1],)

    def __call__(self, x: Tensor) -> Tensor:
        return x.unflatten(1, (-1, self.rows)).mean(2).flatten(1)


def test_a_new_kind_is_one_object(request):
    rows = Parameter("rows", 2, "Rows that are averaged.", "R", 1, 4)
    stripes = MapKind("stripes", (rows,), "image", "Means of R rows.", "here", Stripes)
    MAPS.register(stripes)
    request.addfinalizer(lambda: MAPS.unregister("stripes"))
    feature_map = make_feature_map("stripes", (4, 3), (0.0, 1.0))
    assert (feature_map.text, feature_map.feature_shape) == ("stripes:2", (6,))
    x = np.random.default_rng(0).random((5, 4, 3))
    means = torch.from_numpy(x.reshape(5, 2, 2, 3).mean(2).reshape(5, 6)).float()
    torch.testing.assert_close(feature_map(x), 8 * means / means.norm(dim=1, keepdim=True))
    assert metavar().endswith("|unit[:K]|fourier[:D,GAMMA]|stripes[:R]")
    assert "fourier:D,GAMMA, stripes or stripes:R" in refused(parse, "stripes:x")
    assert refused(parse, "stripes:5") == "`features`: stripes:5: R must be 1 to 4; the usual is stripes:2"
    assert refused(MAPS.register, stripes) == "`features`: there is one named 'stripes' already; take another name"


class Running(Transform):
    """Records less a mean of those before."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.feature_shape, self.mean = (math.prod(shape),), torch.zeros(())

    def __call__(self, x: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.nan_to_num().clamp(0, 1).mean()
        return x.flatten(1) - self.mean


def test_a_map_that_keeps_something_of_records_is_refused(request):
    """Before anything is paid: what it kept of one would be in all that come after."""
    MAPS.register(MapKind("running", (), "any", "Records less a mean of others.", "here", Running))
    request.addfinalizer(lambda: MAPS.unregister("running"))
    x, y = np.random.default_rng(0).random((20, 6)), np.arange(20) % 2
    settings = {"bounds": (0, 1), "records": 20, "features": "running", "head": "dp-sgd", "batch_size": 5, "steps": 2}
    ledger = dpltm.Ledger()
    message = refused(dpltm.train, "mlp", x, y, **settings, noise_multiplier=1.0, delta=1e-2, ledger=ledger)
    assert message == "`features`: running gives the same record another answer; let it keep no state"
    assert not ledger.entries


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


GAMMA = "D must be 2 to 4096 and GAMMA must be 0.001 to 1000; the usual is fourier:1024,2"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *((f"fourier:64,{gamma}", f"fourier:64,{gamma}: {GAMMA}") for gamma in ("nan", "0", "-1", "1000.1")),
        ("fourier:64,1e999", f"fourier:64,inf: {GAMMA}"),
        ("fourier:64,1e-4", f"fourier:64,0.0001: {GAMMA}"),
        ("splines:1", "splines:1: K must be 2 to 64; the usual is splines:6"),
        ("splines+unit", "splines:6+unit:1: splines stand alone; name them, or the others"),
        ("drawings+drawings:7", "drawings:400+drawings:7: drawings is there twice"),
        ("scatter+wavelets", "scatter:2,8+wavelets:5,2: takes image and signal in one; join maps of the same records"),
        ("drawings+none", "'drawings+none': none is no map to join"),
    ],
)
def test_choices_that_are_refused(text: str, message: str):
    assert refused(parse, text) == f"`features`: {message}"


def test_artifacts_keep_it(tmp_path):
    found = made("drawings:7+scatter:1,3")
    body = write_map(tmp_path, found)
    assert read_map(tmp_path, tmp_path / "config.json", body) == found
    assert body["encoder"] == found.base.digest
    body["encoder"] = "ab" * 32
    message = refused(read_map, tmp_path, tmp_path / "config.json", body)
    assert "was made with another encoder than this version of dpltm has (SHA-256 abababababab, here " in message
