"""The filters by their names on the command line."""

import pytest

from dpltm.errors import InputError
from dpltm.filters import NAMES, Automatic, Clip, PerLayerClip, RadialTanh, Sigmoid, Tanh, make_filter


def test_every_name_is_known():
    assert {name: str(make_filter(name)) for name in NAMES} == {
        "clip": "clip(C=1)",
        "per-layer": "per-layer(C=1)",
        "tanh": "clip(C=1) then tanh(c=1, k=1)",
        "tanh-clip": "tanh(c=1, k=1) then clip(C=1)",
        "radial-tanh": "radial-tanh(C=1, k=1)",
        "auto": "auto(C=1, gamma=0.01)",
        "normalize": "normalize(C=1)",
        "sigmoid": "sigmoid(c=1, k=1)",
    }


def test_options_arrive_where_they_belong():
    assert make_filter("clip", clip_norm=2.0, tanh_scale=3.0, tanh_range=4.0) == Clip(2.0)
    given = {"clip_norm": 2.0, "tanh_scale": 3.0, "tanh_range": 4.0}
    assert make_filter("tanh", **given) == Tanh(3.0, 4.0, Clip(2.0))
    assert make_filter("tanh-clip", **given) == Tanh(3.0, 4.0, None, Clip(2.0))
    assert make_filter("radial-tanh", **given) == RadialTanh(2.0, 4.0)
    assert make_filter("per-layer", **given) == PerLayerClip(2.0)
    assert make_filter("auto", **given) == Automatic(2.0, 0.01)
    assert make_filter("normalize", **given) == Automatic(2.0, 0.0)
    assert make_filter("sigmoid", **given) == Sigmoid(3.0, 4.0)


def test_tanh_clips_first_unless_told_otherwise():
    assert make_filter("tanh") == Tanh(1.0, 1.0, Clip(1.0))
    assert make_filter("tanh", pre_clip=False) == Tanh(1.0, 1.0, None)


def test_unknown():
    with pytest.raises(InputError) as error:
        make_filter("Clip")
    assert (
        str(error.value)
        == "`filter`: unknown filter 'Clip'; known: clip, per-layer, tanh, tanh-clip, radial-tanh, auto, normalize, sigmoid"
    )
