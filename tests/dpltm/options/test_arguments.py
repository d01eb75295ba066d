"""Options by keyword: what Python may hand in for each type, and how a slip is told."""

import math

import numpy as np
import pytest

from dpltm.local.latent import TrainRequest as LatentTraining
from dpltm.options import arguments, resolve
from dpltm.options.data import FeatureOptions
from dpltm.options.generate import GenerateOptions
from dpltm.options.run import RunRequest
from dpltm.options.select import SelectOptions
from dpltm.options.train import TrainOptions
from dpltm.options.tune import TuneOptions
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
        ({"iterations": None}, {}),
    ],
)
def test_values_of_python(given, expected):
    taken = generation(**given)
    assert taken == GenerateOptions(**expected)
    assert {name: type(getattr(taken, name)) for name in expected} == {n: type(v) for n, v in expected.items()}


@pytest.mark.parametrize(
    ("cls", "given", "message"),
    [
        (SelectOptions, {"epz1": 0.1}, "`epz1`: no such option; did you mean `eps1`?"),
        (SelectOptions, {"bound": (0, 1)}, "`bound`: no such option; did you mean `bounds`?"),
        (FeatureOptions, {"zzz": 1}, "`zzz`: no such option; there are `bounds`, `features`"),
        (SelectOptions, {"eps1": "0.1"}, "`eps1`: '0.1' is not a number"),
        (SelectOptions, {"eps1": True}, "`eps1`: True is not a number"),
        (SelectOptions, {"reveal": 1}, "`reveal`: 1 is not true or false"),
        (
            SelectOptions,
            {"score": "products"},
            "`score`: 'products' is not one of product, additive; did you mean product?",
        ),
        (GenerateOptions, {"rounds": 2.5}, "`rounds`: 2.5 is not a whole number"),
    ],
)
def test_refused(cls, given, message):
    assert refused(arguments, cls, given, ("bounds",)) == message


RECEIVED = {"scheme": "s", "messages": "m", "out": "r"}
OUT_OF_RANGE = [
    (GenerateOptions, {"epsilon": 0.0}, "a positive number up to 10000"),
    (GenerateOptions, {"epsilon": math.nan}, "a positive number up to 10000"),
    (GenerateOptions, {"batch_size": 10**12}, "a positive whole number up to 100,000,000"),
    (GenerateOptions, {"delta": 2.0}, "a number from 1e-15 to below 1"),
    (GenerateOptions, {"threads": 0}, "a positive whole number up to 1,024"),
    (SelectOptions, {"tolerance": 2.0}, "a number from 0 to 1"),
    (SelectOptions, {"max_density": 0.0}, "a positive number up to 1"),
    (TrainOptions, {"lr": math.inf}, "a positive number up to 1e+30"),
    (TrainOptions, {"seed": -1}, "a whole number from 0 to 4,611,686,018,427,387,903"),
    (TrainOptions, {"centre": 1.0}, "a number from 0 to below 1"),
    (TrainOptions, {"noise_multiplier": -1.0}, "a number from 0 to 1e+06"),
    (LatentTraining, {"dropout": 1.0, **RECEIVED}, "a number from 0 to below 1"),
    (RunRequest, {"split": 1.0}, "a positive number below 1"),
]


@pytest.mark.parametrize(("cls", "given", "expected"), OUT_OF_RANGE)
def test_the_range_of_an_option_holds_wherever_its_value_is_from(cls, given, expected):
    name, value = next(iter(given.items()))
    message = (
        f"`{name}`: {value:g} is not {expected}"
        if isinstance(value, float)
        else f"`{name}`: {value} is not {expected}"
    )
    assert refused(arguments, cls, given) == message
    assert refused(resolve, cls, given, {}) == message
    assert refused(resolve, cls, {}, {name.replace("_", "-"): value}) == message


def test_what_is_needed_is_missed_wherever_it_should_be_from():
    message = "`for_records` is missing: Public number of private records."
    assert refused(arguments, TuneOptions, {"epsilon": 1.0}) == message
    assert refused(resolve, TuneOptions, {}, {"epsilon": 1.0}) == message
