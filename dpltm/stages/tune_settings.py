"""The settings that a search tries, and what of its options is refused before anything is read."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from dpltm.errors import InputError
from dpltm.filters import make_filter
from dpltm.options.features import FeatureOptions, MapOptions
from dpltm.options.parsing import parse_numbers
from dpltm.options.tune import TuneOptions, TuneRequest
from dpltm.stages.checks import check_count, check_delta_alone, check_epsilon

MAX_TRIALS = 10_000
"""Most settings that a search tries."""


@dataclass(frozen=True)
class Setting:
    """One combination. ``round`` is None without a ticket set."""

    round: int | None
    lr: float
    clip_norm: float
    epochs: float
    batch_size: float
    components: int | None = None


def check_request(request: TuneRequest) -> None:
    """Raises InputError for options that are out of range or contradict each other, whatever the tickets."""
    if request.set is not None and request.model is not None:
        raise InputError("`model`: the ticket set decides the network; leave `model` out")
    settings(request)
    named_rounds(request, of_set=request.set is not None)


def settings(options: TuneOptions) -> list[Setting]:
    """Every combination, of no round yet; everything about the options that can be refused is."""
    check_epsilon("epsilon", options.epsilon)
    check_delta_alone(options.delta)
    if options.for_records is not None and options.for_records < 1:
        raise InputError(f"`for_records`: {options.for_records} is not a positive whole number")
    check_count("repeats", options.repeats)
    check_count("trials", options.trials)
    if not options.delta < 1 / (options.for_records or 1):
        raise InputError(
            f"`delta`: {options.delta:g} is not below 1/n for {options.for_records} records; take a smaller one"
        )
    if not 0 <= options.seed < 2**62:
        raise InputError(f"`seed`: {options.seed} is not between 0 and 2^62 - 1")
    lists = {}
    for name in ("lr", "clip_norm", "epochs", "batch_size"):
        lists[name] = parse_numbers(name, getattr(options, name))
        for value in lists[name]:
            if not 0 < value < math.inf:
                raise InputError(f"`{name}`: {value:g} is not a positive number")
    counts: list[int | None] = [*_components(options)] or [None]
    for value in lists["clip_norm"]:
        make_filter("clip", clip_norm=value)
    if math.prod(map(len, [*lists.values(), counts])) > MAX_TRIALS:
        raise InputError(
            f"`lr`, `clip_norm`, `epochs`, `batch_size`, `components`: more than {MAX_TRIALS:,} combinations; name fewer"
        )
    largest = max(lists["batch_size"])
    if largest > (options.for_records or 0):
        raise InputError(f"`batch_size`: {largest:g} is more than the {options.for_records} records of `for_records`")
    combinations = itertools.product(*lists.values())
    return [
        Setting(None, lr, clip_norm, epochs, size, count)
        for lr, clip_norm, epochs, size in combinations
        for count in counts
    ]


def _components(options: TuneOptions) -> list[int]:
    """Numbers of principal components to try; none where features are not projected."""
    if options.components is None:
        return []
    values = parse_numbers("components", options.components)
    for value in values:
        if not (value.is_integer() and value >= 1):
            raise InputError(f"`components`: {value:g} is not a positive whole number")
    return [int(value) for value in values]


def widest_front(front: MapOptions, options: TuneOptions) -> FeatureOptions:
    """What stands in front of the network, with the most components that are tried: they hold all fewer ones.

    Raises:
        InputError: `components` is no list of positive whole numbers.
    """
    return FeatureOptions(
        features=front.features, public=front.public, components=max(_components(options), default=None)
    )


def named_rounds(options: TuneOptions, of_set: bool) -> list[int] | None:
    """The rounds that were asked for; None where that is for the set to say."""
    if options.rounds is None:
        return None
    if not of_set:
        raise InputError("`rounds`: only for a ticket set; name SET, or leave it out")
    numbers = options.rounds.split(",")
    if not all(number.isdecimal() and len(number) < 5 for number in numbers):
        raise InputError(f"`rounds`: {options.rounds!r} is not a list of rounds, such as 0,3,6")
    return [int(number) for number in numbers]
