"""The filters by their names on the command line."""

import pytest

from dpltm.filters import FILTERS, Automatic, Clip, PerLayerClip, RadialTanh, Sigmoid, Tanh, make_filter
from refusals import refused


def test_every_name_is_known():
    assert {name: str(make_filter(name)) for name in FILTERS} == {
        "clip": "clip(C=1)",
        "per-layer": "per-layer(C=1)",
        "tanh": "clip(C=1) then tanh(c=1, k=1)",
        "tanh-clip": "tanh(c=1, k=1) then clip(C=1)",
        "radial-tanh": "radial-tanh(C=1, k=1)",
        "auto": "auto(C=1, gamma=0.01)",
        "normalize": "normalize(C=1)",
        "sigmoid": "sigmoid(c=1, k=1)",
        "dpsr-cg": "dpsr-cg(C=1)",
    }


def test_options_arrive_where_they_belong():
    norm, tanh = {"clip_norm": 2.0}, {"tanh_scale": 3.0, "tanh_range": 4.0}
    assert make_filter("clip", **norm) == Clip(2.0)
    assert make_filter("tanh", no_pre_clip=True) == Tanh(1.0, 1.0, None)
    assert make_filter("tanh", **norm, **tanh) == Tanh(3.0, 4.0, Clip(2.0))
    assert make_filter("tanh-clip", **norm, **tanh) == Tanh(3.0, 4.0, None, Clip(2.0))
    assert make_filter("radial-tanh", **norm, tanh_range=4.0) == RadialTanh(2.0, 4.0)
    assert make_filter("per-layer", **norm) == PerLayerClip(2.0)
    assert make_filter("auto", **norm) == Automatic(2.0, 0.01)
    assert make_filter("normalize", **norm) == Automatic(2.0, 0.0)
    assert make_filter("sigmoid", **tanh) == Sigmoid(3.0, 4.0)


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("clip", {"tanh_scale": 2.0}, "`tanh_scale`: only for `filter` tanh, tanh-clip or sigmoid, not clip"),
        ("clip", {"no_pre_clip": True}, "`no_pre_clip`: only for `filter` tanh, not clip"),
        ("radial-tanh", {"tanh_scale": 1.0},
         "`tanh_scale`: only for `filter` tanh, tanh-clip or sigmoid, not radial-tanh; did you mean `tanh_range`?"),
        ("tanh", {"tahn_range": 1.0}, "`tahn_range`: tanh has no such parameter; did you mean `tanh_range`?"),
        ("clip", {"momentum": 1.0}, "`momentum`: clip has no such parameter; it takes `clip_norm`, `clip_quantile`"),
    ],
)  # fmt: skip
def test_parameters_of_other_filters(name, given, message):
    assert refused(make_filter, name, **given) == message
