"""Feature maps in front of a network: made as options ask for them, or taken over from an artifact."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np
import torch

from dpltm.errors import InputError
from dpltm.features import MAPS, Choice, NetworkRun, Takes, names_with_channels, parse
from dpltm.features.feature_map import ROWS, FeatureMap, channel_statistics, principal_components
from dpltm.features.transforms import resized
from dpltm.privacy.entry import Entry, Lineage
from dpltm.privacy.ledger import Ledger
from dpltm.progress import SILENT, Progress
from dpltm.records import Dataset, Public, catalogue, load
from dpltm.records.notes import bounds_notes

PUBLIC_RECORDS = 7000
"""Public records that statistics and components are taken from, at most: evenly spaced ones."""


class Asked(Protocol):
    """Options that say what stands in front of the network (``dpltm.options.data.FeatureOptions``)."""

    @property
    def features(self) -> str | None: ...
    @property
    def public(self) -> str | None: ...
    @property
    def components(self) -> int | None: ...


class Trained(Protocol):
    """A run whose network can stand in front of another."""

    def in_front_of(self, dataset: Dataset) -> FeatureMap: ...


def _no_runs(name: str) -> Trained:
    raise InputError(f"`features`: network:{name}: no runs are at hand; pass where they come from")


FEW_COLUMNS, NARROWEST, WIDEST = 32, 0.5, 8.0
"""GAMMA of ``fourier`` where nobody says it: the square of ``FEW_COLUMNS`` over the number of columns, within these. Few
columns hold interactions that a narrow kernel finds; of many the kernel is better nearly linear. Found on public tables
alone, by ``benchmarks/table_defaults.py`` (docs/results.md)."""

PUBLIC = partial(load, rows_coincide=True)
"""A dataset by name, of which nothing is private."""


@dataclass(frozen=True, kw_only=True)
class FeatureSources:
    """Sources of what options name: ``public`` gives a dataset by name, ``network`` a run."""

    public: Callable[[str], Dataset] = PUBLIC
    network: Callable[[str], Trained] = _no_runs


def features_of(dataset: Dataset, features: str | None, network: str | None) -> str | None:
    """Return what stands in front of a network: of a table where nobody names more than one layer, ``fourier``.

    Args:
        features, network: as they are named; None for not.
    """
    table = dataset.is_table and not dataset.tables and network in (None, "mlp")
    return "fourier" if features is None and table else features


def completed(text: str, columns: int) -> str:
    """Return the name of maps with the GAMMA of ``fourier`` that nobody gave, by the public number of columns."""
    kind = MAPS["fourier"]
    gamma = float(f"{min(max((FEW_COLUMNS / columns) ** 2, NARROWEST), WIDEST):.2g}")
    usual = kind.text((kind.parameters[0].default, gamma))
    return "+".join(usual if part == kind.name else part for part in text.split("+"))


def with_feature_map(
    dataset: Dataset, options: Asked, sources: FeatureSources, progress: Progress = SILENT
) -> Dataset:
    """Return the dataset with the map that options ask for, if any.

    Public records that the map was fitted to are not declared so yet: see :func:`declarations`.
    """
    text = None if options.features is None else completed(options.features, math.prod(dataset.row_shape))
    choice = chosen_map(options, text)
    if choice is None:
        return dataset
    check_quantities(dataset, "`features`")
    if isinstance(choice, NetworkRun):
        return replace(dataset, feature_map=sources.network(choice.name).in_front_of(dataset))
    check_kind(dataset, choice.takes, "features")
    feature_map = FeatureMap(choice, dataset.row_shape, dataset.bounds)
    if options.public is not None:
        public = sources.public(options.public)
        public = replace(
            public, rows=replace(public.rows, coincide=False)
        )  # whose test split may be anybody's, not these
        fitted_to = public, f"statistics of {choice.text} features"
        feature_map = fit_to_public(feature_map, dataset, public, options.components, progress)
        feature_map = replace(feature_map, lineage=public.lineage, fitted_to=fitted_to)
        dataset = replace(dataset, public_notes=tuple(bounds_notes(public, "rescale them to that")))
    return replace(dataset, feature_map=feature_map)


def declarations(dataset: Dataset, ledger: Ledger, *, tested: bool) -> tuple[Entry, ...]:
    """Return drafts of declarations before records are used; ``tested`` if the test split is measured exactly."""
    fitted_to = None if dataset.feature_map is None else dataset.feature_map.fitted_to
    public = () if fitted_to is None else ledger.public(*fitted_to)
    return public + (ledger.apart(dataset) if tested else ())


def as_declared(dataset: Dataset, public: Lineage) -> Dataset:
    """Return the records behind their map, with the lineage of the records that it was fitted to, once on record."""
    feature_map = dataset.feature_map
    if feature_map is None or feature_map.fitted_to is None or not public:
        return dataset
    known = replace(feature_map, lineage=feature_map.lineage | public, fitted_to=None)
    return replace(dataset, feature_map=known)


def chosen_map(options: Asked, text: str | None = None) -> Choice | NetworkRun | None:
    """Return the map that options name, as ``text`` if it is given; None for records as they are."""
    choice = parse(text or options.features or "none")
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
    """Return the map with statistics of channels, and principal components, of ``public`` records; reads no private one."""
    check_quantities(public, "`public`", "name another dataset")
    check_kind(public, feature_map.takes, "public")
    shape = public.train.shape
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
    ours = feature_map.shape
    colours = [each[2:] or (1,) for each in (ours, shape)]
    return feature_map.takes == "image" and len(shape) in (2, 3) and colours[0] == colours[1]


def _evenly_spaced(
    public: Dataset, count: int, shape: tuple[int, ...], step: Callable[[int], None]
) -> Iterator[np.ndarray]:
    """So many records, from first to last, resized where they are images of another shape."""
    index = np.linspace(0, len(public.train) - 1, count).astype(int)
    records = public.train.open(Public("statistics and components of features")).x  # see `declarations`
    for start in range(0, count, ROWS):
        x = records[index[start : start + ROWS]]
        yield x if x.shape[1:] == shape else resized(x, shape)
        step(min(start + ROWS, count))


def take_over_map(dataset: Dataset, feature_map: FeatureMap | None, options: Asked | None, where: str) -> Dataset:
    """Return the dataset with the map that a ticket set or run remembers; InputError where options name one as well."""
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
    """Raise InputError for records whose values are positions in tables, which no arithmetic makes sense of, or of parts."""
    if dataset.parts:
        raise InputError(f"{taker}: takes records of one array, and those of {dataset.name} have several; {fix}")
    if dataset.tables:
        raise InputError(f"{taker}: takes quantities, and records of {dataset.name} hold positions in tables; {fix}")


def check_kind(dataset: Dataset, takes: Takes, field: str) -> None:
    """Raise InputError for records that are known to be something else than what is taken."""
    known = catalogue().get(dataset.name)
    if known is None or known.shape != dataset.row_shape or takes in ("any", known.kind):
        return
    suited = next((kind.name for kind in MAPS.values() if kind.takes == known.kind), "unit")
    raise InputError(
        f"`{field}`: {dataset.name} holds {known.kind}s of shape {known.shape}, not {takes}s; take `features` {suited}"
    )
