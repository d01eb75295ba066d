"""The settings that a search tries, and what of its options is refused before anything is read."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass, replace

from dpltm.errors import InputError
from dpltm.filters import make_filter
from dpltm.networks import ModelSpec
from dpltm.options.features import FeatureOptions, MapOptions
from dpltm.options.parsing import parse_numbers
from dpltm.options.tune import PrivateTuneOptions, TuneOptions, TuneRequest
from dpltm.pruning.ticket_set import TicketSet
from dpltm.records import Dataset
from dpltm.stages.checks import check_count, check_delta_alone, check_epsilon, default_batch, model_spec

MAX_TRIALS = 10_000
"""Most settings that a search tries."""

MIN_TRIES, MAX_TRIES = 1.1, 1000
"""Tries of a private search, in the mean."""

PAID = ("tries", "ledger", "dry_run")
"""Options of a private search alone."""


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
    named_rounds(request, of_set=request.set is not None)
    if request.private:
        if request.out is not None and request.out.endswith(".toml"):
            raise InputError(
                f"`out`: {request.out}: with `private`, it is the folder of a run; name it such as NAME.run"
            )
        check_private(request)
    elif given := [name for name in PAID if getattr(request, name) != getattr(TuneRequest, name)]:
        named, them = ", ".join(f"`{name}`" for name in given), "it" if len(given) == 1 else "them"
        raise InputError(f"{named}: of a search on private records; add `private`, or leave {them} out")
    else:
        check_for_records(request)
        settings(request)


def check_for_records(options: TuneOptions) -> None:
    """Raises InputError where a public search is not told how many private records its settings are for."""
    if options.for_records is None:
        raise InputError("`for_records` is missing: the public number of private records that the settings are for")


def check_private(options: PrivateTuneOptions) -> None:
    """Raises InputError for what a search on the private records has no use for, or cannot do."""
    if options.for_records is not None:
        raise InputError("`for_records`: with `private`, the records of `dataset` are the private ones; leave it out")
    if options.repeats != 1:
        raise InputError("`repeats`: with `private`, a try is one training; leave it out")
    if not MIN_TRIES <= options.tries <= MAX_TRIES:
        raise InputError(f"`tries`: {options.tries:g} in the mean is not between {MIN_TRIES:g} and {MAX_TRIES:,}")
    settings(options)


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
        given = getattr(options, name)
        lists[name] = [default_batch(options.for_records or 1)] if given is None else parse_numbers(name, given)
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
    if options.for_records is not None and largest > options.for_records:
        raise InputError(f"`batch_size`: {largest:g} is more than the {options.for_records} private records")
    combinations = itertools.product(*lists.values())
    return [
        Setting(None, lr, clip_norm, epochs, size, count)
        for lr, clip_norm, epochs, size in combinations
        for count in counts
    ]


def to_try(options: TuneOptions, tickets: TicketSet | None) -> list[Setting]:
    """The settings of a search, with the rounds of the set; ``trials`` of them where that was asked for.

    Raises:
        InputError: they are too many, or as :func:`settings`.
        ArtifactError: there is no such round.
    """
    alike = settings(options)
    tried = [replace(setting, round=number) for number in _rounds(options, tickets) for setting in alike]
    if options.trials is not None:
        tried = random.Random(options.seed).sample(tried, min(options.trials, len(tried)))
    if len(tried) > MAX_TRIALS:
        raise InputError(f"`trials`: {len(tried):,} combinations; try at most {MAX_TRIALS:,} of them")
    return tried


def _rounds(options: TuneOptions, tickets: TicketSet | None) -> list[int | None]:
    named = named_rounds(options, of_set=tickets is not None)
    if tickets is None:
        return [None]
    if named is None:
        return [ticket.round for ticket in tickets.body.tickets if ticket.round] or [0]
    return [tickets.ticket(number).round for number in named]


def front_of(target: TicketSet | str, dataset: Dataset, count: int | None) -> tuple[Dataset, ModelSpec]:
    """The records behind the first ``count`` components of their features, and the network that takes them.

    Args:
        target: the tickets, or the name of a network.
        dataset: the records.
        count: None for all that there are.
    """
    if count is not None:
        found = dataset.feature_map
        if found is None or found.projection is None or not isinstance(target, str):
            raise InputError("`components`: only where features of `public` are projected in front of a whole network")
        dataset = replace(dataset, feature_map=found.projected_on(count))
    return dataset, model_spec(target, dataset) if isinstance(target, str) else target.body.spec


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
