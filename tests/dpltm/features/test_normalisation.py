"""Normalisation of features: by public statistics, within a record, to a fixed norm; against loops in float64."""

import math
from itertools import pairwise
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import dpltm
from dpltm.features import MAPS, Choice, MapKind, Transform, metavar, normalisation, parse
from dpltm.features.feature_map import FeatureMap
from dpltm.features.normalisation import (
    NORM,
    SENSITIVITY,
    ChannelStatistics,
    fixed_norm,
    group_normalised,
    noisy_sum,
)
from dpltm.randomness.noise import FastSource
from dpltm.registry import Parameter
from dpltm.tickets.feature_files import read_map, write_map
from maps import make_feature_map
from refusals import refused


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_a_channel_that_hardly_varies_is_not_blown_up():
    """By ten thousand times what the channel that varies most is, and no more; where none varies, all stays finite."""
    values, mean = torch.ones(1, 3, 1, 1), torch.zeros(3)
    found = ChannelStatistics(mean, torch.tensor([2.0, 1e-9, 0.0]))(values).flatten()
    torch.testing.assert_close(found, torch.tensor([0.5, 5000.0, 5000.0]))
    assert ChannelStatistics(mean, torch.zeros(3))(values).isfinite().all()


@pytest.mark.parametrize(
    ("channels", "groups", "size"), [(6, 3, 2), (6, 6, 1), (10, 4, 5), (7, 3, 7), (81, 27, 3), (5, 27, 1)]
)
def test_groups_of_channels_within_a_record(channels: int, groups: int, size: int):
    """Where the number does not divide, the next smaller one that does: of 10 channels, 4 groups become 2 of 5."""
    values = random(2, channels, 3, 2) * 3 + 1
    found = group_normalised(values, groups)
    for record in range(2):
        for start in range(0, channels, size):
            block = values[record, start : start + size].double().numpy()
            expected = (block - block.mean()) / block.std()
            np.testing.assert_allclose(found[record, start : start + size].numpy(), expected, atol=1e-5)


def test_a_group_of_equal_values_is_zero_and_no_record_touches_another():
    values = random(3, 4, 2, 2)
    values[1] = 0.7
    found = group_normalised(values, 2)
    assert found[1].abs().max() < 1e-2
    assert found.isfinite().all()
    other = values.clone()
    other[1:] = 1e4 * random(2, 4, 2, 2, seed=5)
    assert torch.equal(group_normalised(other, 2)[0], found[0])


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=8))
def test_every_row_has_the_norm(row: list[float]):
    values = torch.tensor([row, [1.0] * len(row)])
    found = fixed_norm(values)
    assert found.isfinite().all()
    size = math.sqrt(sum(value**2 for value in row))
    if size > 1e-6:
        assert float(found[0].double().norm()) == pytest.approx(NORM, rel=1e-4)
        scaled = torch.tensor([value * NORM / size for value in row])
        torch.testing.assert_close(found[0], scaled, rtol=1e-4, atol=1e-6)
    assert float(found[1].norm()) == pytest.approx(NORM, rel=1e-6)
    assert torch.equal(fixed_norm(torch.zeros(2, 3)), torch.zeros(2, 3))


HOSTILE = [0.0, 1.0, -1.0, 1e-30, 1e30, 65504.0, math.inf, -math.inf, math.nan]


def total(rows: torch.Tensor) -> np.ndarray:
    """The sum alone: no noise."""
    return noisy_sum(iter([rows]), rows.shape[1], SENSITIVITY, 0.0, FastSource(0)).numpy()


@given(
    st.lists(st.lists(st.sampled_from(HOSTILE), min_size=3, max_size=3), min_size=1, max_size=6),
    st.lists(st.sampled_from(HOSTILE), min_size=3, max_size=3),
)
def test_one_record_moves_the_sum_by_no_more_than_its_sensitivity(others, one):
    with_it = torch.tensor([*others, one])
    without = torch.tensor(others)
    moved = np.linalg.norm(total(with_it) - total(without))
    assert moved <= SENSITIVITY
    assert np.isfinite(total(with_it)).all()


@pytest.mark.parametrize("order", ["first", "last"])
def test_the_sum_rounds_nothing_however_many_records_there_are(order):
    """One record more moves it by what that record alone does, to the last bit; rounded sums would differ by far more."""
    rows = torch.rand(20_001, 60, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 0.5
    one, others = (rows[:1], rows[1:]) if order == "first" else (rows[-1:], rows[:-1])

    def summed(*parts):
        """The sum before noise, as float64."""
        with mock.patch.object(normalisation, "gaussian_mechanism", lambda total, *_: sums.append(total) or total):
            sums: list[np.ndarray] = []
            noisy_sum(iter(parts), 60, SENSITIVITY, 0.0, FastSource(0))
        return sums[0]

    with_it = summed(*(torch.cat([one, others]) if order == "first" else torch.cat([others, one])).split(1000))
    moved = with_it - summed(*others.split(999))
    assert np.array_equal(moved, summed(one))
    assert np.linalg.norm(moved) <= SENSITIVITY


def test_rows_of_the_usual_norm_count_in_full():
    rows = torch.randn(50, 20, generator=torch.Generator().manual_seed(0))
    rows *= NORM / rows.norm(dim=1, keepdim=True)
    found = noisy_sum(iter(rows.split(7)), 20, NORM, 0.0, FastSource(0))
    torch.testing.assert_close(found.float(), rows.sum(0), rtol=1e-5, atol=1e-5)


def test_noise_is_as_large_as_stated():
    found = noisy_sum(iter([]), 20_000, 1.0, 12.0, FastSource(3)) / 12
    assert abs(float(found.std()) - 1) < 0.02  # its own deviation is 1 / sqrt(40,000) = 0.005
    assert abs(float(found.mean())) < 0.04


def test_features_are_centred_there_and_of_the_same_norm():
    plain = make_feature_map("unit:1", (6,), (0.0, 1.0))
    x = np.random.default_rng(0).random((9, 6))
    features = plain(x)
    middle = features.mean(0)
    found = plain.centred_at(middle)
    assert (found.uncentred.id, found.id) == (plain.id, found.id)
    assert found.id != plain.id
    by_hand = features - middle
    torch.testing.assert_close(found(x), NORM * by_hand / by_hand.norm(dim=1, keepdim=True))
    torch.testing.assert_close(found.centred(features), found(x))
    torch.testing.assert_close(found(x[3:4]), found(x)[3:4])


# --- kinds of feature maps: what options say of them, and a new one as one object ---


def test_what_the_option_takes():
    assert parse("none") is None
    assert parse("scatter:1,5") == Choice(((MAPS["scatter"], (1, 5)),))
    assert parse("fourier:512") == Choice(((MAPS["fourier"], (512, 2.0)),))


@pytest.mark.parametrize(
    "text",
    [
        *("", "None", "Scatter", "scatter2", "scatter:x", "scatter:2,8,1", "scatter:2,", "scatter:,8", "scatter:2.0"),
        *("scatter:²", "network:a.run", "fourier:512.0", "fourier:512,.", "drawings+", "x" * 200),
    ],
)
def test_what_it_does_not_take(text: str):
    near = {"None": "none", "Scatter": "scatter", "scatter2": "scatter", "drawings+": "drawings"}.get(text)
    hint = f"; did you mean {near}?" if near else ""
    assert refused(parse, text) == (
        f"`features`: {text!r:.80} is not none|scatter[:J,L]|conv[:SEED]|drawings[:K]|photographs[:K]|wavelets[:J,Q]"
        f"|splines[:K]|unit[:K]|fourier[:D,GAMMA]{hint}"
    )


@pytest.mark.parametrize("text", ["0.50", ".5", "5e-1", "0.5", "00.5", "50E-2"])
def test_a_decimal_is_written_in_one_way(text: str):
    choice = parse(f"fourier:1024,{text}")
    assert choice == Choice(((MAPS["fourier"], (1024, 0.5)),))
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
    usual = parse(kind.name)
    assert usual is not None
    assert parse(usual.text) == usual
    for place, parameter in enumerate(kind.parameters):
        values = [other.default for other in kind.parameters]
        for value in (parameter.low, parameter.high):
            values[place] = value
            assert Choice(((kind, tuple(values)),)).text.startswith(kind.name)
        for value in (parameter.low - 1, parameter.high + 1):
            values[place] = value
            message = refused(Choice, ((kind, tuple(values)),))
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
    stripes = MapKind("stripes", (rows,), "Means of R rows.", "here", Stripes)
    MAPS.register(stripes)
    request.addfinalizer(lambda: MAPS.pop("stripes"))
    feature_map = make_feature_map("stripes", (4, 3), (0.0, 1.0))
    assert (feature_map.text, feature_map.feature_shape) == ("stripes:2", (6,))
    x = np.random.default_rng(0).random((5, 4, 3))
    means = torch.from_numpy(x.reshape(5, 2, 2, 3).mean(2).reshape(5, 6)).float()
    torch.testing.assert_close(feature_map(x), 8 * means / means.norm(dim=1, keepdim=True))
    assert metavar().endswith("|unit[:K]|fourier[:D,GAMMA]|stripes[:R]")
    assert "|fourier[:D,GAMMA]|stripes[:R]" in refused(parse, "stripes:x")
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
    MAPS.register(MapKind("running", (), "Records less a mean of others.", "here", Running))
    request.addfinalizer(lambda: MAPS.pop("running"))
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
        ("splines+unit", "splines:6+unit:1: name each kind once, and splines alone"),
        ("drawings+drawings:7", "drawings:400+drawings:7: name each kind once, and splines alone"),
        ("drawings+none", f"'none' is not {metavar()}; did you mean none?"),
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
