"""What stands in front of a network: made as options ask for it, taken over from an artifact, and entered in the ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from dpltm.errors import InputError
from dpltm.features import MAPS, Choice, NetworkRun, Takes, names_with_channels, parse
from dpltm.features.feature_map import ROWS, FeatureMap, channel_statistics, principal_components
from dpltm.features.image import resized
from dpltm.features.network import FrozenNetwork
from dpltm.networks import ModelSpec
from dpltm.options.features import FeatureOptions
from dpltm.privacy.behind import check_not_read_off, is_behind
from dpltm.privacy.budgets import is_paid
from dpltm.privacy.events import (
    SETTINGS,
    SYNTHETIC,
    DatasetRef,
    Event,
    ProvenanceEvent,
    SearchEvent,
    TrainingEvent,
)
from dpltm.privacy.figures import figure
from dpltm.privacy.old_ledger import merge
from dpltm.privacy.parts import total_epsilon, touching
from dpltm.records import Augmentation, Dataset, Split, catalogue, copies_of, load
from dpltm.records.notes import bounds_notes
from dpltm.records.registry import RecordRegistry
from dpltm.stages.progress import SILENT, Progress
from dpltm.stages.services import Services
from dpltm.stages.synthetic_data import check_made_of_records, synthetic_events, synthetic_notes

SCHEMA_NOTE = "bounds and categories of the schema were found under DP; the ledger holds what that cost"

PUBLIC_RECORDS = 7000
"""Public records that statistics and components are taken from, at most: evenly spaced ones."""


@dataclass(frozen=True, kw_only=True)
class TrainedNetwork:
    """A run whose network is to stand in front of another.

    Attributes:
        name: of the run, for messages.
        spec, parameters: its network.
        bounds: public range of the values that it was trained on.
        feature_map: what stands in front of it itself.
        ticket_set: id of the ticket set that it was trained from; None for a dense run of its own.
        records: that it was trained on; None where the run does not say.
        events: of its ledger.
    """

    name: str
    spec: ModelSpec
    parameters: Mapping[str, Tensor]
    bounds: tuple[float, float]
    feature_map: FeatureMap | None
    ticket_set: str | None
    records: DatasetRef | None
    events: tuple[Event, ...]


def _no_runs(name: str) -> TrainedNetwork:
    raise InputError(f"`features`: network:{name}: no runs are at hand; pass where they come from")


@dataclass(frozen=True, kw_only=True)
class FeatureSources:
    """Where what options name comes from.

    Attributes:
        registry: for the reference to public records.
        public: a dataset by name.
        network: a run by name.
    """

    registry: RecordRegistry
    public: Callable[[str], Dataset] = load
    network: Callable[[str], TrainedNetwork] = _no_runs


def with_feature_map(
    dataset: Dataset, options: FeatureOptions, sources: FeatureSources, progress: Progress = SILENT
) -> Dataset:
    """The dataset with the map that options ask for, if any.

    Args:
        dataset: the records.
        options: of features.
        sources: where public records and networks come from.
        progress: told how far it is.

    Raises:
        InputError: options that contradict each other; records, or public records, that the map cannot take.
    """
    choice = chosen_map(options)
    if choice is None:
        return dataset
    check_quantities(dataset, "`features`")
    if isinstance(choice, NetworkRun):
        return replace(dataset, feature_map=network_in_front(dataset, sources.network(choice.name)))
    check_kind(dataset, choice.takes, "features")
    feature_map = FeatureMap(choice, dataset.row_shape, dataset.bounds)
    if options.public is not None:
        public = sources.public(options.public)
        check_made_of_records(public, "`public`")
        feature_map = fit_to_public(feature_map, dataset, public, options.components, progress)
        feature_map = replace(feature_map, source=sources.registry.reference(public, public=True))
        dataset = replace(dataset, public_notes=tuple(bounds_notes(public, "rescale them to that")))
    return replace(dataset, feature_map=feature_map)


def chosen_map(options: FeatureOptions) -> Choice | NetworkRun | None:
    """What options ask for; None for records as they are.

    Raises:
        InputError: it is no map, or options contradict each other.
    """
    choice = parse("none" if options.features is None else options.features)
    if options.components is not None and options.public is None:
        raise InputError("`components`: of public features; name their dataset with `public`")
    by_statistics = isinstance(choice, Choice) and choice.channels
    by_components = isinstance(choice, Choice) and bool(options.components)
    if options.public is not None and not (by_statistics or by_components):
        if isinstance(choice, Choice):
            raise InputError(
                f"`public`: {choice.text} features take no statistics of public records, only principal components; give"
                " `components`, or leave `public` out"
            )
        raise InputError(
            f"`public`: its statistics normalise {' and '.join(names_with_channels())} features, its principal components"
            " (`components`) any but those of a network; add `features`, or leave it out"
        )
    return choice


def fit_to_public(
    feature_map: FeatureMap, dataset: Dataset, public: Dataset, components: int | None, progress: Progress
) -> FeatureMap:
    """The map with statistics of the channels of public images, and principal components of public features.

    Args:
        feature_map: made without data, for records of ``dataset``.
        dataset: the private records, of which none is read.
        public: records declared public.
        components: how many; None for no projection.
        progress: told how far it is.

    Raises:
        InputError: public records of another kind or shape.
    """
    check_quantities(public, "`public`", "name another dataset")
    check_kind(public, feature_map.takes, "public")
    shape = public.train.x.shape[1:]
    theirs = replace(feature_map, shape=shape, bounds=public.bounds)
    if components is not None and theirs.features != feature_map.features and _resizable(feature_map, shape):
        theirs = replace(theirs, shape=feature_map.shape)
    if feature_map.base.channels and theirs.feature_shape[-1] != feature_map.feature_shape[-1]:
        raise InputError(
            f"`public`: images of {public.name} are of shape {theirs.shape}, those of {dataset.name} of shape"
            f" {feature_map.shape}; statistics need as many colours, so name another dataset or leave `public` out"
        )
    strange = feature_map.base.by_place and theirs.shape != feature_map.shape
    if components is not None and (strange or theirs.features != feature_map.features):
        raise InputError(
            f"`components`: records of {public.name} are of shape {theirs.shape}, those of {dataset.name} of shape"
            f" {feature_map.shape}; principal components need the same"
        )
    count = min(PUBLIC_RECORDS, len(public.train))
    if feature_map.base.channels:
        with progress.progress(f"statistics of {public.name}", count) as step:
            theirs = replace(
                theirs, statistics=channel_statistics(theirs, _evenly_spaced(public, count, theirs.shape, step))
            )
    if components is not None:
        with progress.progress(f"features of {public.name}", count) as step:
            rows = torch.cat([theirs(x) for x in _evenly_spaced(public, count, theirs.shape, step)])
        progress.say(f"taking {components} principal components")
        theirs = replace(theirs, projection=principal_components(rows, components))
    return replace(feature_map, statistics=theirs.statistics, projection=theirs.projection)


def _resizable(feature_map: FeatureMap, shape: tuple[int, ...]) -> bool:
    """Whether public images of this shape can be made as large as those that the map takes."""
    ours = feature_map.shape
    colours = [each[2:] or (1,) for each in (ours, shape)]
    return feature_map.takes == "image" and len(shape) in (2, 3) and colours[0] == colours[1]


def _evenly_spaced(
    public: Dataset, count: int, shape: tuple[int, ...], step: Callable[[int], None]
) -> Iterator[np.ndarray]:
    """So many records, from first to last, resized where they are images of another shape."""
    index = np.linspace(0, len(public.train) - 1, count).astype(int)
    for start in range(0, count, ROWS):
        x = public.train.x[index[start : start + ROWS]]
        yield x if x.shape[1:] == shape else resized(x, shape)
        step(min(start + ROWS, count))


def network_in_front(dataset: Dataset, trained: TrainedNetwork) -> FeatureMap:
    """The network of a run without its last layer, with what its training spent.

    Raises:
        InputError: what the network depends on is not all known, or it cannot take these records.
    """
    name = trained.name
    if trained.feature_map is not None:
        raise InputError(
            f"`features`: {name} stands behind {trained.feature_map.text} features itself; take a run on records as they are"
        )
    if trained.ticket_set is not None:
        raise InputError(
            f"`features`: {name} was trained from a ticket set, and a run does not keep what its masks and starting weights"
            " depend on; take one of dpltm train `dense` without SET"
        )
    if not trained.spec.text.partition(":")[2]:
        raise InputError(f"`features`: the network of {name} is one layer, with nothing in front of it to take")
    source = trained.records
    if source is None:
        raise InputError(f"`features`: {name}: its config.json does not say what it was trained on")
    behind = tuple(event for event in trained.events if is_behind(event))
    if not any(
        isinstance(event, (TrainingEvent, SearchEvent)) and event.dataset.may_overlap(source) for event in behind
    ):
        raise InputError(
            f"`features`: {name}: its ledger holds no training; it is incomplete, so nothing can be certified"
        )
    shape = dataset.row_shape
    network = FrozenNetwork(trained.spec, trained.parameters)
    feature_map = FeatureMap(network, shape, trained.bounds, source=source, events=behind)
    return feature_map.for_records(shape, dataset.bounds)


def take_over_map(
    dataset: Dataset, feature_map: FeatureMap | None, options: FeatureOptions | None, where: str
) -> Dataset:
    """The dataset with the map that a ticket set or run remembers.

    Args:
        dataset: the records.
        feature_map: the remembered one; None for records as they are.
        options: of features, which decide nothing here; None where there are none.
        where: it is remembered, for the message.

    Raises:
        InputError: options ask for a map as well, or the map cannot take these records.
    """
    if options is not None:
        for name in ("features", "public", "components"):
            if getattr(options, name) is not None:
                raise InputError(
                    f"`{name}`: {where} remembers what stands in front of its network; leave `{name}` out"
                )
    if feature_map is None:
        return dataset
    check_quantities(dataset, "`dataset`", "use records like those that the features were made for")
    check_kind(dataset, feature_map.takes, "dataset")
    return replace(dataset, feature_map=feature_map.for_records(dataset.row_shape, dataset.bounds))


def check_quantities(dataset: Dataset, taker: str, fix: str = "leave it out") -> None:
    """Raises InputError for records whose values are positions in tables, which no arithmetic makes sense of.

    Args:
        dataset: the records.
        taker: the argument that takes quantities, as the message has it: "`features`".
        fix: what to do about it.
    """
    if dataset.tables:
        raise InputError(f"{taker}: takes quantities, and records of {dataset.name} hold positions in tables; {fix}")


def check_kind(dataset: Dataset, takes: Takes, field: str, instead: str | None = None) -> None:
    """Raises InputError for records that are known to be something else than what is taken.

    Args:
        dataset: the records.
        takes: what a record has to be.
        field: argument that the message starts with.
        instead: value of it to take; by default a map that takes such records is named.
    """
    known = catalogue().get(dataset.name)
    if known is None or known.shape != dataset.row_shape or takes in ("any", known.kind):
        return
    suited = next((kind.name for kind in MAPS.values() if kind.takes == known.kind), "unit")
    fix = f"`{field}` {instead}" if instead else f"`features` {suited}"
    raise InputError(f"`{field}`: {dataset.name} holds {known.kind}s of shape {known.shape}, not {takes}s; take {fix}")


def feature_events(
    dataset: Dataset, records: DatasetRef, registry: RecordRegistry, private: bool = True
) -> tuple[Event, ...]:
    """What stands in front of the network says of itself in a ledger, and what it cost, on whatever records.

    That is its map; what the schema of a table was found by under DP; and the release that synthetic records come from.

    Args:
        dataset: with its map, or with what its records come from.
        records: that go through it.
        registry: tells which records those are that it was made from.
        private: whether they may be private, or are declared public themselves.

    Raises:
        InputError: records declared public for its statistics would now be treated as private.
    """
    found = tuple(registry.resolve_event(event) for event in dataset.found)
    network = () if dataset.feature_map is None else dataset.feature_map.events
    if private:
        check_not_read_off((*found, *network), records, registry)
    behind = merge((found, synthetic_events(dataset, registry), network))
    if dataset.feature_map is None:
        return behind
    feature_map = dataset.feature_map.uncentred
    source = feature_map.source
    if source is None and not private:
        return behind
    if source is None:
        return (*behind, ProvenanceEvent(records, "data-free", feature_map.label))
    if feature_map.network is not None:
        return (*behind, ProvenanceEvent(source, "dp", feature_map.label))
    if private and registry.resolve(source).surely_overlaps(records):
        raise InputError(
            f"`public`: {source} was declared public, and {records} shares records with it; the same records cannot"
            " be private here: take another `public`, `subset` or `dataset`"
        )
    return (*behind, ProvenanceEvent(source, "public", feature_map.label))


def is_origin_event(event: Event, dataset: Dataset) -> bool:
    """Whether an event says where settings, the map or synthetic records come from, or what these cost, on any records."""
    if isinstance(event, ProvenanceEvent) and event.ticket_set.startswith(SETTINGS):
        return True
    if dataset.synthetic is not None:
        names_them = isinstance(event, ProvenanceEvent) and event.ticket_set == f"{SYNTHETIC}{dataset.synthetic.id}"
        if names_them or event == dataset.synthetic.event:
            return True
    feature_map = dataset.feature_map
    if feature_map is None:
        return False
    names_it = isinstance(event, ProvenanceEvent) and event.ticket_set == feature_map.uncentred.label
    return names_it or event in feature_map.events


def feature_notes(dataset: Dataset, records: DatasetRef, delta: float, registry: RecordRegistry) -> list[str]:
    """What a reader should know about where the map, and synthetic records, come from.

    Args:
        dataset: with its map, if any.
        records: what a release from them is entered on.
        delta: that the epsilon of a trained network is read at.
        registry: tells records apart.

    Returns:
        Sentences; none where there is nothing to say.
    """
    feature_map = dataset.feature_map
    said = [*([SCHEMA_NOTE] if any(map(is_paid, dataset.found)) else []), *synthetic_notes(dataset, delta)]
    if feature_map is None or feature_map.source is None:
        return said
    source = feature_map.source
    others = {event.dataset.group: event.dataset for event in feature_map.events if is_paid(event)}
    for other in others.values():
        if not other.may_overlap(records):
            spent = total_epsilon(touching(feature_map.events, other), delta)
            said.append(
                f"the network in front was trained on other records, {other}, or on what was made of them, and what is"
                f" handed on holds it: certified for those records is epsilon {figure(spent)}"
            )
    if feature_map.network is None and not registry.resolve(source, public=False).content:
        return [
            *said,
            f"features are normalised by {source}, which is not known here, so whether it shares records with"
            f" {dataset.name} cannot be told; it is taken as public, as declared",
        ]
    return said


def network_inputs(
    split: Split, dataset: Dataset, services: Services | None = None, augment: Augmentation = "none"
) -> np.ndarray:
    """The records of a split as stored, or their features, which are not centred yet; or those of copies.

    Args:
        split: of ``dataset``.
        dataset: with its map.
        services: where features come from, and who watches.
        augment: copies of each record.
    """
    if dataset.feature_map is None:
        return split.x if augment == "none" else copies_of(split.x, augment)
    services = services or Services()
    return services.features.features(dataset, split, dataset.feature_map.uncentred, augment, services.progress)
