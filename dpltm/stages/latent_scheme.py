"""What owners and server of LATENT agree on, before any record is randomised: made of public records alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from dpltm.errors import InputError
from dpltm.features import Choice, parse
from dpltm.local.bit_strings import BitStrings
from dpltm.local.channels import channel
from dpltm.local.class_means import best_codebook
from dpltm.local.encoding import FixedPoint
from dpltm.local.protocols import PROTOCOLS
from dpltm.local.scheme import ROWS, Scheme, no_statistics, public_statistics
from dpltm.options.features import FeatureOptions
from dpltm.options.latent import SchemeOptions
from dpltm.options.parsing import parse_numbers
from dpltm.records import Dataset
from dpltm.stages.checks import check_epsilon
from dpltm.stages.front import FeatureSources, with_feature_map
from dpltm.stages.progress import SILENT, Progress
from dpltm.stages.synthetic_data import check_made_of_records

MAX_STATISTICS_RECORDS = 7000
"""Public records that statistics of features are taken from, at most: the first ones."""

DIRECTIONS = ((0.75, 24), (1.5, 64), (3.0, 192), (math.inf, 256))
"""Directions of drawings for a codebook of less than this epsilon: best for 60,000 messages, by kmnist-7k alone."""


def check_scheme_options(options: SchemeOptions) -> FixedPoint | None:
    """How a value is written in bits; None for a codebook, which has none.

    Raises:
        InputError: options that are out of range, or contradict each other.
    """
    check_epsilon("epsilon", options.epsilon)
    form = _fixed_point(options)
    if parse(options.features) is None:
        raise InputError("`features`: none leaves values as they are, whose scale differs; take unit")
    if form is not None:
        channel(options.protocol, form.length, options.epsilon or 0.0, options.alpha)
        _label_epsilon(options)
    return form


def _fixed_point(options: SchemeOptions) -> FixedPoint | None:
    protocol = PROTOCOLS[options.protocol]
    if not protocol.of_bits:
        given = ("alpha", "format", "label_epsilon")
        protocol.check_options(name for name in given if getattr(options, name) is not None)
        return None
    bits = parse_numbers("format", options.format or "0,0")
    if len(bits) != 2 or not all(part.is_integer() for part in bits):
        raise InputError(f"`format`: {options.format!r} is not of the form WHOLE,FRACTION, such as 4,5")
    return FixedPoint(int(bits[0]), int(bits[1]))


def _label_epsilon(options: SchemeOptions) -> float | None:
    """Of the response that sends a label; None where labels are declared public."""
    if options.label_epsilon is None:
        raise InputError(
            "`label_epsilon` is missing: what the response that sends the label may spend, such as 1; or public, if labels"
            " are no secret"
        )
    if options.label_epsilon == "public":
        return None
    try:
        value = float(options.label_epsilon)
    except ValueError:
        raise InputError(f"`label_epsilon`: {options.label_epsilon!r:.40} is neither a number nor public") from None
    check_epsilon("label_epsilon", value)
    return value


def make_scheme(
    public: Dataset, options: SchemeOptions, sources: FeatureSources, progress: Progress = SILENT
) -> Scheme:
    """What owners and server agree on.

    Args:
        public: records declared public, of the shape, range and classes of the private ones.
        options: features, protocol and budget. For a codebook, ``drawings`` without a number has as many directions as suit
            the budget.
        sources: where a network in front comes from, and the public records once more, for statistics of the map.
        progress: told how far it is.

    Raises:
        InputError: options that are out of range or contradict each other, or records that the features cannot take.
    """
    form = check_scheme_options(options)
    check_made_of_records(public, "`public`")
    reference = sources.registry.reference(public, public=True)
    choice = parse(options.features)
    by_statistics = (isinstance(choice, Choice) and choice.channels) or options.components is not None
    epsilon = options.epsilon or 0.0
    features = options.features
    if form is None and features == "drawings" and options.components is None:
        features = f"drawings:{_directions(epsilon)}"
    settings = FeatureOptions(
        features=features, public=public.name if by_statistics else None, components=options.components
    )
    feature_map = with_feature_map(public, settings, sources, progress).feature_map
    assert feature_map is not None  # ``none`` was refused
    if form is None:
        codebook = best_codebook(feature_map.features, public.classes, epsilon)
        return Scheme(feature_map, *no_statistics(feature_map), codebook, reference)
    bits = BitStrings(
        feature_map.features, public.classes, form, options.protocol, epsilon, options.alpha,
        _label_epsilon(options),
    )  # fmt: skip
    rows = public.train.x[:MAX_STATISTICS_RECORDS]
    with progress.progress(f"statistics of features of {public.name}", len(rows)) as step:
        return Scheme(feature_map, *public_statistics(feature_map, _batches(rows, step)), bits, reference)


def _directions(epsilon: float) -> int:
    """Directions of drawings that suit a codebook of this budget: fewer where estimates are noisier."""
    return next(count for below, count in DIRECTIONS if epsilon < below)


def _batches(x: np.ndarray, step: Callable[[int], None]) -> Iterator[np.ndarray]:
    for start in range(0, len(x), ROWS):
        yield x[start : start + ROWS]
        step(min(start + ROWS, len(x)))
