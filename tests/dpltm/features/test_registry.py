"""Kinds of feature maps: what options say of them, and a new one as one object."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import Tensor

from dpltm.features import MAPS, MapKind, NetworkRun, metavar, names_taking, parse
from dpltm.features.feature_map import make_feature_map
from dpltm.registry import Parameter
from refusals import refused


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("none", None),
        ("scatter", MAPS["scatter"].choice(2, 8)),
        ("scatter:3", MAPS["scatter"].choice(3, 8)),
        ("scatter:1,5", MAPS["scatter"].choice(1, 5)),
        ("network:a.run", NetworkRun("a.run")),
        ("network:C:/a:b", NetworkRun("C:/a:b")),
    ],
)
def test_what_the_option_takes(text: str, expected: object):
    assert parse(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", "None", "Scatter", "scatter2", "scatter:x", "scatter:2,8,1", "scatter:2,", "scatter:,8", "scatter:-1"),
        *("scatter:2.0", "scatter: 2", "scatter:1e2", "scatter:2222", "scatter:²", "network", "network:", "none:1"),
        "x" * 200,
    ],
)
def test_what_it_does_not_take(text: str):
    assert refused(parse, text) == (
        f"`features`: {text!r:.80} is not none, scatter, scatter:J,L, conv, conv:SEED, wavelets, wavelets:J,Q, unit, unit:K"
        " or network:RUN"
    )


@pytest.mark.parametrize("kind", MAPS.values(), ids=list(MAPS))
def test_what_a_kind_says_of_itself(kind: MapKind):
    assert kind.help.endswith(".")
    assert kind.source
    usual = kind.choice()
    assert parse(kind.name) == parse(usual.text) == usual
    for place, parameter in enumerate(kind.parameters):
        values = [int(other.default) for other in kind.parameters]
        for value in (parameter.low, parameter.high):
            values[place] = value
            assert kind.choice(*values).values == tuple(values)
        for value in (parameter.low - 1, parameter.high + 1):
            values[place] = value
            message = refused(kind.choice, *values)
            assert message.startswith(f"`features`: {kind.name}:{','.join(map(str, values))}: ")
            assert f"{parameter.low} to {parameter.high}" in message
            assert message.endswith(f"; the usual is {usual.text}")


def test_reading_the_registry_imports_no_torch():
    script = "import sys; from dpltm.features import MAPS, metavar; metavar(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


# A new kind


class Stripes:
    """Means of every so many rows of an image."""

    channel_groups: int | None = None

    def __init__(self, rows: int, shape: tuple[int, ...]) -> None:
        self.rows, self.feature_shape = rows, (shape[0] // rows * shape[1],)

    def __call__(self, x: Tensor) -> Tensor:
        return x.unflatten(1, (-1, self.rows)).mean(2).flatten(1)


def test_a_new_kind_is_one_object(request):
    rows = Parameter("rows", 2, "Rows that are averaged.", "R", 1, 4)
    stripes = MapKind("stripes", (rows,), "image", "Means of R rows.", "here", "R must be {R}", Stripes)
    MAPS.register(stripes)
    request.addfinalizer(lambda: MAPS.unregister("stripes"))
    feature_map = make_feature_map("stripes", (4, 3), (0.0, 1.0))
    assert (feature_map.text, feature_map.feature_shape) == ("stripes:2", (6,))
    x = np.random.default_rng(0).random((5, 4, 3))
    means = torch.from_numpy(x.reshape(5, 2, 2, 3).mean(2).reshape(5, 6)).float()
    torch.testing.assert_close(feature_map(x), 8 * means / means.norm(dim=1, keepdim=True))
    assert metavar().endswith("|unit[:K]|stripes[:R]|network:RUN")
    assert "unit:K, stripes, stripes:R or network:RUN" in refused(parse, "stripes:x")
    assert refused(parse, "stripes:5") == "`features`: stripes:5: R must be 1 to 4; the usual is stripes:2"
    assert names_taking("image") == ("scatter", "conv", "stripes")
    assert refused(MAPS.register, stripes) == "`features`: there is one named 'stripes' already; take another name"
