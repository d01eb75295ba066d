"""What stands in front of a network: made as options ask for it, or taken over from an artifact."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from dpltm.errors import DataError, InputError
from dpltm.features import MAPS, Choice, NetworkRun, Takes, names_with_channels, parse
from dpltm.features.feature_map import ROWS, FeatureMap, FrozenNetwork, channel_statistics, principal_components
from dpltm.features.image import resized
from dpltm.options.features import FeatureOptions
from dpltm.privacy.account import Account, check_declared
from dpltm.privacy.entry import Entry, Lineage
from dpltm.privacy.figures import figure
from dpltm.privacy.ledger import Ledger
from dpltm.pruning.criteria import Groups
from dpltm.records import Augmentation, Dataset, Split, catalogue, copies_of, load
from dpltm.records.notes import bounds_notes
from dpltm.records.schema import Column, Schema, parse_schema
from dpltm.stages.progress import SILENT, Progress
from dpltm.stages.services import Services
from dpltm.training.run import Run

if TYPE_CHECKING:
    from dpltm.features.feature_map import FeatureMap
    from dpltm.networks.masks import Mask
    from dpltm.records import Dataset


PUBLIC_RECORDS = 7000
"""Public records that statistics and components are taken from, at most: evenly spaced ones."""


def _no_runs(name: str) -> Run:
    raise InputError(f"`features`: network:{name}: no runs are at hand; pass where they come from")


PUBLIC = partial(load, rows_coincide=True)
"""A dataset by name, of which nothing is private."""


@dataclass(frozen=True, kw_only=True)
class FeatureSources:
    """Where what options name comes from.

    Attributes:
        ledger: in which records are declared public; None where nothing is entered, as in a dry run.
        public: a dataset by name.
        network: a run by name.
    """

    ledger: Ledger | None = None
    public: Callable[[str], Dataset] = PUBLIC
    network: Callable[[str], Run] = _no_runs


def declare_public(ledger: Ledger, dataset: Dataset, words: str) -> Lineage:
    """Return the lineage of what is read off records that are declared public, once in a ledger.

    Args:
        ledger: that the declaration is entered in.
        dataset: the records; of synthetic ones, nobody's, nothing is declared.
        words: what is read off them.

    Raises:
        InputError: a release on record protects some of them.
    """
    if dataset.synthetic:
        return dataset.lineage
    part = ledger.part(dataset)
    known = ledger.declared("public", part)
    if known is None:
        check_declared(ledger.account(), part, "public")
        (known,) = ledger.declare(Entry("public", part, words=words, unit=ledger.unit))
    return dataset.lineage | ledger.lineage(known)


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
        InputError: options that contradict each other; records, or public records, that the map cannot take, or that a
            release on record protects.
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
        public = replace(
            public, rows=replace(public.rows, coincide=False)
        )  # whose test split may be anybody's, not these
        lineage = public.lineage
        if sources.ledger is not None:
            lineage = declare_public(sources.ledger, public, f"statistics of {choice.text} features")
        feature_map = fit_to_public(feature_map, dataset, public, options.components, progress)
        feature_map = replace(feature_map, lineage=lineage)
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


def network_in_front(dataset: Dataset, run: Run) -> FeatureMap:
    """Return the network of a run without its last layer, with the lineage of the run.

    Raises:
        InputError: what the network depends on is not known, or it cannot take these records.
    """
    name = run.label
    if run.feature_map is not None:
        raise InputError(
            f"`features`: {name} stands behind {run.feature_map.text} features itself; take a run on records as they are"
        )
    if not run.spec.text.partition(":")[2]:
        raise InputError(f"`features`: the network of {name} is one layer, with nothing in front of it to take")
    if not run.lineage:
        raise InputError(f"`features`: {name}: its lineage holds no training, so nothing can be certified")
    parameters = {key: value.detach().clone() for key, value in run.model.named_parameters()}
    feature_map = FeatureMap(FrozenNetwork(run.spec, parameters), dataset.row_shape, run.bounds, lineage=run.lineage)
    return feature_map.for_records(dataset.row_shape, dataset.bounds)


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


def feature_notes(dataset: Dataset, delta: float) -> list[str]:
    """Return what a reader should know about where columns, and synthetic records, come from.

    Args:
        dataset: the records.
        delta: that the epsilon of synthetic records is read at.
    """
    paid = dataset.lineage.paid
    if not paid:
        return []
    if not dataset.synthetic:
        return ["bounds and categories of the schema were found under DP, and what that cost counts"]
    spent = Account(paid, unit=paid[0].unit).epsilon(delta)
    return [
        f"records of {dataset.name} are synthetic: post-processing of a release from {paid[-1].part}, certified as epsilon"
        f" {figure(spent)} with all that it is made of; it counts once, however often they are used"
    ]


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


UNIFORM = 1 / 12
"""Variance of a number that is uniform between its bounds; that a cell is empty is taken to vary as much."""


def input_groups(dataset: Dataset) -> Groups:
    """The inputs that each column became, by their variances if everything that the schema allows is equally likely.

    None where records have no schema, or a map stands in front, which mixes columns.
    """
    schema = _schema(dataset.schema)
    if schema is None or dataset.feature_map is not None:
        return ()
    return tuple((_variance(column),) * len(column.features) for column in schema.columns if column.features)


def _variance(column: Column) -> float:
    """Of each of its features; of one category in m, 1/m (1 - 1/m)."""
    if column.kind in ("number", "date"):
        return UNIFORM
    chance = 1 / (len(column.features) + column.other)
    return chance * (1 - chance)


def columns_read(text: object, mask: Mask, feature_map: FeatureMap | None) -> list[str] | None:
    """Columns that a network has a live weight for; None where that is not known.

    Args:
        text: of the schema.
        mask: of the network.
        feature_map: in front of it, which reads all columns.

    Guarantees:
        What the network answers depends on no other column: the weights of their features are zero.
    """
    schema = _schema(text)
    first = next((value for value in mask.values() if value.ndim >= 2), None)
    if schema is None or feature_map is not None or first is None or first.shape[1:] != (len(schema.features),):
        return None
    alive, names = first.any(0), []
    for column in schema.columns:
        if bool(alive[: len(column.features)].any()):
            names.append(column.name)
        alive = alive[len(column.features) :]
    return names


def _schema(text: object) -> Schema | None:
    """The schema; None where there is none, or none that can be read: then nothing is said of columns."""
    if not isinstance(text, str) or not text:
        return None
    try:
        return parse_schema(text, "schema")
    except DataError:
        return None
