"""Options by keyword: what Python may hand in for each type, and how a slip is told."""

from __future__ import annotations

import numpy as np
import pytest

from dpltm.errors import InputError
from dpltm.options import arguments
from dpltm.options.data import FeatureOptions
from dpltm.options.generate import GenerateOptions
from dpltm.options.select import SelectOptions
from refusals import refused


def generation(**given) -> GenerateOptions:
    return arguments(GenerateOptions, given)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"rounds": np.int64(3)}, {"rounds": 3}),
        ({"lr": 1}, {"lr": 1.0}),
        ({"lr": np.float32(0.5)}, {"lr": 0.5}),
        ({"prune": [0.3, 0.2]}, {"prune": "0.3,0.2"}),
        ({"prune": (0.3,)}, {"prune": "0.3"}),
        ({"prune": 0.25}, {"prune": "0.25"}),
        ({"reveal": True}, {"reveal": True}),
        ({"reveal": np.True_}, {"reveal": True}),
        ({"iterations": None}, {}),
    ],
)
def test_values_of_python(given, expected):
    taken = generation(**given)
    assert taken == GenerateOptions(**expected)
    assert {name: type(getattr(taken, name)) for name in expected} == {n: type(v) for n, v in expected.items()}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"epz1": 0.1}, "`epz1`: no such option; did you mean `eps1`?"),
        ({"bound": (0, 1)}, "`bound`: no such option; did you mean `bounds`?"),
        ({"eps1": "0.1"}, "`eps1`: '0.1' is not a number"),
        ({"eps1": True}, "`eps1`: True is not a number"),
        ({"reveal": 1}, "`reveal`: 1 is not true or false"),
        ({"score": "products"}, "`score`: 'products' is not one of product, additive; did you mean product?"),
    ],
)
def test_refused(given, message):
    assert refused(arguments, SelectOptions, given, ("bounds",)) == message


def test_where_nothing_is_near_all_are_named():
    with pytest.raises(InputError, match=r"^`zzz`: no such option; there are `features`$"):
        arguments(FeatureOptions, {"zzz": 1})


def test_a_whole_number_is_not_cut_down_to_one():
    with pytest.raises(InputError, match=r"^`rounds`: 2\.5 is not a whole number$"):
        generation(rounds=2.5)
