"""What stands in front of a network: chosen by options, remembered by ticket sets and runs, entered in the ledger."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dpltm.cli.common import DataOptions, figure
from dpltm.cli.options import option
from dpltm.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    from dpltm.cli.console import Console
    from dpltm.data import Augmentation, Dataset, Split
    from dpltm.features import FeatureMap, WithoutData
    from dpltm.privacy.events import DatasetRef, Event

PUBLIC_RECORDS = 7000
"""Public records that statistics and components are taken from, at most: evenly spaced ones."""


@dataclass(frozen=True)
class FeatureOptions(DataOptions):
    """The same, and what stands in front of the network."""

    features: str | None = option(
        None,
        "In front of the network, at no cost: scatter or conv for images, wavelets for signals, unit for any records (K"
        " neighbours averaged), or network:RUN.",
        metavar="none|scatter[:J,L]|conv[:SEED]|wavelets[:J,Q]|unit[:K]|network:RUN",
        shown="none; a ticket set remembers its own",
    )
    public: str | None = option(
        None,
        "Dataset declared public, known by name or a file of bytes: its channel means and deviations normalise scatter"
        " and conv features, and --components come from it.",
        metavar="NAME|FILE",
        shown="normalisation within each record",
    )
    components: int | None = option(
        None, "Project features onto so many principal components of those of --public, partly whitened.", metavar="K"
    )


def with_features(dataset: Dataset, options: FeatureOptions, console: Console) -> Dataset:
    """The dataset with the map that the options ask for, if any.

    Raises:
        InputError: records, or public records, that it cannot take.
    """
    from dpltm.features import IMAGES, parse, without_data

    wanted = parse("none" if options.features is None else options.features)
    if options.components is not None and options.public is None:
        raise InputError("--components: of public features; name their dataset with --public")
    plain = wanted is None or isinstance(wanted, str)
    if options.public is not None and (plain or not (isinstance(wanted, IMAGES) or options.components)):
        raise InputError(
            "--public: its statistics normalise scatter and conv features, its principal components (--components) any but"
            " those of a network; add --features, or leave it out"
        )
    if wanted is None:
        return dataset
    check_quantities(dataset, "--features")
    if isinstance(wanted, str):
        return replace(dataset, feature_map=_network(dataset, wanted))
    check_kind(dataset, wanted, "--features")
    found = without_data(wanted, dataset.train.x.shape[1:], dataset.bounds)
    if options.public is not None:
        found = _from_public(found, dataset, wanted, options, console)
    return replace(dataset, feature_map=found)


def carried(dataset: Dataset, found: FeatureMap | None, options: FeatureOptions | None, where: str) -> Dataset:
    """The dataset with the map that a ticket set or run remembers.

    Raises:
        InputError: the options ask for one as well, or the map cannot take these records.
    """
    for flag in ("--features", "--public", "--components"):
        if getattr(options, flag[2:], None) is not None:
            raise InputError(f"{flag}: {where} remembers what stands in front of its network; leave {flag} out")
    return dataset if found is None else replace(dataset, feature_map=_taken(dataset, found))


def _taken(dataset: Dataset, found: FeatureMap) -> FeatureMap:
    from dpltm.features import parse

    check_quantities(dataset, "--dataset", "use records like those that the features were made for")
    if found.network is None:
        check_kind(dataset, parse(found.text), "--dataset")
    return found.carried(dataset.train.x.shape[1:], dataset.bounds)


def _from_public(
    found: FeatureMap, dataset: Dataset, wanted: WithoutData, options: FeatureOptions, console: Console
) -> FeatureMap:
    """The map with statistics of the channels of public images, and principal components of public features."""
    import torch

    from dpltm.data import load
    from dpltm.features import IMAGES, principal_components, statistics, without_data
    from dpltm.tickets.identity import reference

    public = load(options.public or "")
    check_quantities(public, "--public", "name another dataset")
    check_kind(public, wanted, "--public")
    theirs = without_data(wanted, public.train.x.shape[1:], public.bounds)
    if theirs.feature_shape[-1] != found.feature_shape[-1]:
        raise InputError(
            f"--public: images of {public.name} are of shape {theirs.shape}, those of {dataset.name} of shape"
            f" {found.shape}; statistics need as many colours, so name another dataset or leave --public out"
        )
    if options.components is not None and theirs.features != found.features:
        raise InputError(
            f"--components: records of {public.name} are of shape {theirs.shape}, those of {dataset.name} of shape"
            f" {found.shape}; principal components need the same"
        )
    count, tensors = min(PUBLIC_RECORDS, len(public.train)), {}
    if isinstance(wanted, IMAGES):
        with console.progress(f"statistics of {public.name}", count) as step:
            tensors = statistics(theirs, _some(public, count, step))
    if options.components is not None:
        theirs = replace(theirs, tensors=tensors)
        with console.progress(f"features of {public.name}", count) as step:
            rows = torch.cat([theirs(x) for x in _some(public, count, step)])
        console.say(f"taking {options.components} principal components")
        tensors |= principal_components(rows, options.components)
    make_key = not getattr(options, "dry_run", False)
    return replace(found, source=reference(public, public=True, make_key=make_key), tensors=tensors)


def _some(public: Dataset, count: int, step) -> Iterator[np.ndarray]:  # type: ignore[no-untyped-def]
    import numpy as np

    from dpltm.features.feature_map import ROWS

    index = np.linspace(0, len(public.train) - 1, count).astype(int)
    for start in range(0, count, ROWS):
        yield public.train.x[index[start : start + ROWS]]
        step(min(start + ROWS, count))


def _network(dataset: Dataset, name: str) -> FeatureMap:
    """The network of a run without its last layer, with what its training spent."""
    from dpltm.errors import ArtifactError
    from dpltm.features import FeatureMap
    from dpltm.models import ModelSpec
    from dpltm.privacy.events import GuaranteeEvent, TrainingEvent
    from dpltm.tickets.identity import read_ref
    from dpltm.tickets.ledger_file import open_ledger
    from dpltm.tickets.run import load_run

    run = load_run(Path(name))
    if run.feature_map is not None:
        raise InputError(
            f"--features: {name} stands behind {run.feature_map.text} features itself; take a run on records as they are"
        )
    if run.config.get("ticket_set_id") is not None:
        raise InputError(
            f"--features: {name} was trained from a ticket set, and a run does not keep what its masks and starting weights"
            " depend on; take one of dpltm train --dense without SET"
        )
    if not run.config["model"].partition(":")[2]:
        raise InputError(f"--features: the network of {name} is one layer, with nothing in front of it to take")
    spec = ModelSpec(run.config["model"], run.config["features"], run.config["classes"])
    try:
        source = read_ref(run.config["records"])
    except (KeyError, ArtifactError):
        raise InputError(f"--features: {name}: its config.json does not say what it was trained on") from None
    events = open_ledger(run.path / "ledger.jsonl").events
    # a dense run depends on the training, and on evaluations that may have ended it, and on no draw or ticket
    trained = (event for event in events if isinstance(event, (TrainingEvent, GuaranteeEvent)))
    spent = tuple(event for event in trained if event.dataset.may_overlap(source))
    if not any(isinstance(event, TrainingEvent) for event in spent):
        raise InputError(
            f"--features: {name}: its ledger holds no training; it is incomplete, so nothing can be certified"
        )
    parameters = {key: value.detach().clone() for key, value in run.model.named_parameters()}
    found = FeatureMap("network", dataset.train.x.shape[1:], run.bounds, source, spent, parameters, spec)
    return found.carried(dataset.train.x.shape[1:], dataset.bounds)


def check_quantities(dataset: Dataset, flag: str, instead: str = "leave it out") -> None:
    """Raises InputError for records whose values are positions in tables, which no arithmetic makes sense of."""
    if dataset.tables:
        raise InputError(
            f"{flag}: takes quantities, and records of {dataset.name} hold positions in tables; {instead}"
        )


def check_kind(dataset: Dataset, wanted: object, flag: str, instead: str | None = None) -> None:
    """Raises InputError for records that are known to be something else than what the map takes."""
    from dpltm.data import catalogue
    from dpltm.features import IMAGES, Bands

    takes = "image" if isinstance(wanted, IMAGES) else "signal" if isinstance(wanted, Bands) else None
    known = catalogue().get(dataset.name)
    if known is None or known.shape != dataset.train.x.shape[1:] or takes in (None, known.kind):
        return
    better = {"image": "scatter", "signal": "wavelets"}.get(known.kind, "unit")
    raise InputError(
        f"{flag}: {dataset.name} holds {known.kind}s of shape {known.shape}, not {takes}s; take"
        f" {flag if instead else '--features'} {instead or better}"
    )


def feature_events(dataset: Dataset, records: DatasetRef, private: bool = True) -> tuple[Event, ...]:
    """What the map in front of the network says of itself in a ledger, and what it cost, on whatever records.

    Args:
        dataset: with its map.
        records: that go through it.
        private: whether they may be private, or are declared public themselves.

    Raises:
        InputError: records declared public for its statistics would now be treated as private.
    """
    from dpltm.privacy.events import ProvenanceEvent
    from dpltm.tickets.identity import resolve

    found = dataset.feature_map
    if found is None:
        return ()
    found = found.uncentred
    if found.source is None and not private:
        return ()
    if found.source is None:
        return (ProvenanceEvent(records, "data-free", found.label),)
    if found.network is not None:
        return (*found.events, ProvenanceEvent(found.source, "dp", found.label))
    if private and resolve(found.source).surely_overlaps(records):
        raise InputError(
            f"--public: {found.source} was declared public, and {records} shares records with it; the same records cannot"
            " be private here: take another --public, --subset or --dataset"
        )
    return (ProvenanceEvent(found.source, "public", found.label),)


def tells_of(event: Event, found: FeatureMap | None) -> bool:
    """Whether an event says where settings or this map come from, or what the map cost, on whatever records."""
    from dpltm.privacy.events import SETTINGS, ProvenanceEvent

    if isinstance(event, ProvenanceEvent) and event.ticket_set.startswith(SETTINGS):
        return True
    if found is None:
        return False
    said = isinstance(event, ProvenanceEvent) and event.ticket_set == found.uncentred.label
    return said or event in found.events


def feature_notes(dataset: Dataset, records: DatasetRef, delta: float) -> list[str]:
    """What a reader should know about where the map comes from."""
    from dpltm.privacy.parts import total_epsilon
    from dpltm.tickets.identity import resolve

    found = dataset.feature_map
    if found is None or found.source is None:
        return []
    if found.network is not None and not found.source.may_overlap(records):
        return [
            f"the network in front was trained on other records, {found.source}, and what is handed on holds it: certified"
            f" for those records is epsilon {figure(total_epsilon(found.events, delta))}"
        ]
    if found.network is None and not resolve(found.source).content:
        return [
            f"features are normalised by {found.source}, which is not known here, so whether it shares records with"
            f" {dataset.name} cannot be told; it is taken as public, as declared"
        ]
    return []


def inputs(
    split: Split, dataset: Dataset, console: Console | None = None, augment: Augmentation = "none"
) -> np.ndarray:
    """The records of a split as stored, or their cached features, which are not centred yet; or those of copies."""
    if dataset.feature_map is None:
        from dpltm.data import copies_of

        return split.x if augment == "none" else copies_of(split.x, augment)
    found = dataset.feature_map.uncentred
    from dpltm.tickets.feature_cache import features_of, is_cached

    if console is None or is_cached(dataset, split, found, augment):
        return features_of(dataset, split, found, augment=augment)
    part = "test" if split is dataset.test else "training"
    with console.progress(f"features of the {part} records of {dataset.name}", len(split)) as step:
        return features_of(dataset, split, found, step, augment)
