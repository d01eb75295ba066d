"""The owners' side of LATENT: what is agreed on before any record is randomised, and the release of the messages.

A scheme is made of public records alone. Each message is locally private under replace-one, whatever the record; encoding
the same records again is another release, so the ledger holds one entry for each time (privacy-model.md 6).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from dpltm.data import Dataset
from dpltm.data.notes import bounds_notes, unit_notes
from dpltm.data.registry import RecordRegistry
from dpltm.errors import InputError
from dpltm.features import Choice, parse
from dpltm.local.bit_strings import BitStrings
from dpltm.local.channels import channel
from dpltm.local.codebook import best_codebook
from dpltm.local.encoding import FixedPoint
from dpltm.local.protocols import PROTOCOLS
from dpltm.local.scheme import ROWS, Scheme, no_statistics, public_statistics
from dpltm.noise import SecureSource
from dpltm.options.features import FeatureOptions
from dpltm.options.latent import EncodeOptions, SchemeOptions
from dpltm.options.parsing import parse_numbers
from dpltm.privacy.events import HASHED, DatasetRef, Event, GuaranteeEvent, TrainingEvent
from dpltm.privacy.ledger import Ledger
from dpltm.privacy.lineage import check_not_public, to_enter
from dpltm.privacy.mechanisms import Guarantee
from dpltm.privacy.parts import as_replace_one
from dpltm.privacy.report import Nominal, PrivacyReport, report
from dpltm.stages.checks import LedgerState, check_delta, check_epsilon
from dpltm.stages.front import FeatureSources, with_feature_map
from dpltm.stages.progress import SILENT, Progress

MAX_STATISTICS_RECORDS = 7000
"""Public records that statistics of features are taken from, at most: the first ones."""


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
        options: features, protocol and budget.
        sources: where a network in front comes from, and the public records once more, for statistics of the map.
        progress: told how far it is.

    Raises:
        InputError: options that are out of range or contradict each other, or records that the features cannot take.
    """
    form = check_scheme_options(options)
    reference = sources.registry.reference(public, public=True)
    choice = parse(options.features)
    by_statistics = (isinstance(choice, Choice) and choice.channels) or options.components is not None
    settings = FeatureOptions(
        features=options.features, public=public.name if by_statistics else None, components=options.components
    )
    feature_map = with_feature_map(public, settings, sources, progress).feature_map
    assert feature_map is not None  # ``none`` was refused
    epsilon = options.epsilon or 0.0
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


def _batches(x: np.ndarray, step: Callable[[int], None]) -> Iterator[np.ndarray]:
    for start in range(0, len(x), ROWS):
        yield x[start : start + ROWS]
        step(min(start + ROWS, len(x)))


def scheme_notes(scheme: Scheme) -> list[str]:
    """What a reader should know of any message of the scheme."""
    if scheme.labels_are_public:
        return ["labels are sent as they are: declared public, and not counted"]
    return []


def check_fits(scheme: Scheme, dataset: Dataset) -> None:
    """Raises InputError unless records of the dataset are of the shape, range and classes that were agreed on."""
    feature_map = scheme.feature_map
    bounds = tuple(float(bound) for bound in dataset.bounds)
    for what, field, theirs, agreed in (
        ("shape", "dataset", dataset.train.x.shape[1:], feature_map.shape),
        ("bounds", "bounds", bounds, feature_map.bounds),
        ("classes", "classes", dataset.classes, scheme.answer.classes),
    ):
        if theirs != agreed:
            raise InputError(f"`{field}`: {what} of {dataset.name} are {theirs}, and the scheme was made for {agreed}")


@dataclass(frozen=True)
class EncodingPlan:
    """A release that may be made: all that can be refused was not, and nothing is spent.

    Attributes:
        scheme: how records are randomised.
        dataset: the records.
        entered: what the ledger lacks, the release itself last.
        privacy: of these records, once all that is entered.
        ledger: that it is entered in.
        before: the ledger as it was when the plan was made.
    """

    scheme: Scheme
    dataset: Dataset
    entered: tuple[Event, ...]
    privacy: PrivacyReport
    ledger: Ledger
    before: LedgerState


def plan_encoding(
    scheme: Scheme, dataset: Dataset, options: EncodeOptions, ledger: Ledger, *, label: str = "the scheme"
) -> EncodingPlan:
    """What encoding all records of ``dataset`` once would enter.

    Args:
        scheme: that was agreed on.
        dataset: the private records; one will do.
        options: of the report.
        ledger: what was spent on them before.
        label: what messages call the scheme.

    Raises:
        InputError: records that are not what was agreed on, were declared public, or are those that the scheme was made
            from; or a part of them whose choice would tell of the owners.
        BudgetError: a budget does not allow it.
    """
    check_delta(options.delta, dataset)
    check_fits(scheme, dataset)
    if dataset.part.cut in HASHED:
        raise InputError(
            "`subset`: a fraction picks owners by a hash of what they hold, so whoever sends a message would tell something"
            " by sending one; encode all records, or those at places of a named dataset"
        )
    records = ledger.registry.reference(dataset)
    _check_private(scheme, label, records, ledger.registry)
    front = _front_events(scheme, records)
    release = _release(scheme, records)
    state, before = LedgerState(ledger), ledger.events
    check_not_public(before, records, ledger.registry)
    entered = (*to_enter(front, before), release)
    ledger.check_budgets(entered)
    notes = [*scheme_notes(scheme), *_encoding_notes(scheme, dataset, counts_front=bool(front))]
    privacy = _report(scheme, records, (*before, *entered), options.delta, notes)  # refuses what has no figure
    return EncodingPlan(scheme, dataset, entered, privacy, ledger, state)


def encode(plan: EncodingPlan, progress: Progress = SILENT) -> Iterator[np.ndarray]:
    """Enters the release, then gives the messages.

    Args:
        plan: of these records; its ledger holds the release when this returns, before any coin is tossed.
        progress: told how many records are encoded.

    Returns:
        Some messages at a time, ``(n, record_bytes)`` uint8, in the order of the records.

    Raises:
        InputError: the ledger has grown since the plan was made.

    Guarantees:
        Each message is ``scheme.answer.certified``-locally private, on coins of the system's generator.
    """
    plan.before.check(plan.ledger)
    plan.ledger.enter(plan.entered, plan.before.events)
    return _messages(plan, progress)


def _messages(plan: EncodingPlan, progress: Progress) -> Iterator[np.ndarray]:
    train = plan.dataset.train
    with progress.progress(f"encoding the records of {plan.dataset.name}", len(train)) as step:
        # how many values saturated depends on the records, and no epsilon covers it: it is dropped here
        for rows, _saturated in plan.scheme.messages(train.x, train.y, SecureSource(), step):
            yield rows


def _release(scheme: Scheme, records: DatasetRef) -> GuaranteeEvent:
    clear = ", whose labels are declared public and sent as they are" if scheme.labels_are_public else ""
    what = f"one message of each record{clear}, by {scheme.answer.protocol} of scheme {scheme.id[:8]}"
    return GuaranteeEvent(records, Guarantee(scheme.answer.certified, adjacency="replace-one"), what)


def _check_private(scheme: Scheme, label: str, records: DatasetRef, registry: RecordRegistry) -> None:
    """Raises InputError for records that the scheme was made from, which were declared public or have paid already."""
    source, network = scheme.feature_map.source, scheme.feature_map.network is not None
    for public in (scheme.public, None if network else source):
        if public is not None and registry.resolve(public).surely_overlaps(records):
            raise InputError(
                f"`dataset`: {public} was declared public for {label}, and {records} shares records with it; take others"
            )
    if network and source is not None and registry.resolve(source).surely_overlaps(records):
        raise InputError(
            f"`dataset`: the network in front of {label} was trained on {source}, and {records} shares records with it;"
            " take others"
        )


def _front_events(scheme: Scheme, records: DatasetRef) -> tuple[Event, ...]:
    """What the network in front cost records that may be these, as a message's own relation has it."""
    return tuple(as_replace_one(event) for event in scheme.feature_map.events if event.dataset.may_overlap(records))


def _encoding_notes(scheme: Scheme, dataset: Dataset, *, counts_front: bool) -> list[str]:
    notes = [
        *bounds_notes(dataset),
        "the number of messages shows how many records there are",
        *unit_notes(dataset),
    ]
    if isinstance(scheme.answer, BitStrings):
        notes.append(
            "how many values saturated is told to nobody: it depends on the records, and no epsilon covers it"
        )
    if counts_front:
        notes.append(
            f"the network in front was trained on {scheme.feature_map.source}, elsewhere: whether these records are among"
            " them cannot be told here, so what that cost is counted, at twice its sensitivity (replace-one)"
        )
    return notes


def _report(
    scheme: Scheme, records: DatasetRef, held: tuple[Event, ...], delta: float, notes: list[str]
) -> PrivacyReport:
    """Both figures for the records, when the ledger holds all of ``held``, the release last."""
    touching = [event for event in held if event.dataset.may_overlap(records)]
    privacy = report(touching, delta, "replace-one", notes, held=held)
    if not any(isinstance(event, TrainingEvent) for event in touching):
        privacy = replace(privacy, certified=replace(privacy.certified, sampling="none"))
    if len(touching) == 1 and isinstance(scheme.answer, BitStrings):
        source = f"{scheme.answer.protocol}, as LATENT and its sources define it"
        privacy = replace(privacy, nominal=Nominal(scheme.answer.nominal, 0.0, source))
    return privacy
