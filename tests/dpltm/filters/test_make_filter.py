"""The filters by their names on the command line."""

import pytest

from dpltm.errors import InputError
from dpltm.filters import NAMES, Clip, Tanh, make_filter


def test_every_name_is_known():
    assert [type(make_filter(name)) for name in NAMES] == [Clip, Tanh]


def test_options_arrive_where_they_belong():
    assert make_filter("clip", clip_norm=2.0, tanh_scale=3.0, tanh_range=4.0) == Clip(2.0)
    assert make_filter("tanh", clip_norm=2.0, tanh_scale=3.0, tanh_range=4.0) == Tanh(3.0, 4.0, Clip(2.0))


def test_tanh_clips_first_unless_told_otherwise():
    assert make_filter("tanh") == Tanh(1.0, 1.0, Clip(1.0))
    assert make_filter("tanh", pre_clip=False) == Tanh(1.0, 1.0, None)


def test_unknown():
    with pytest.raises(InputError) as error:
        make_filter("Clip")
    assert str(error.value) == "--filter: unknown filter 'Clip'; known: clip, tanh"
