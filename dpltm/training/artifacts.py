"""Ticket sets, winners, starting points and runs, and what they depend on: values. ``dpltm.tickets`` keeps them on disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from torch import nn

from dpltm.errors import ArtifactError, InputError
from dpltm.features.feature_map import FeatureMap
from dpltm.features.inputs import features_of, take_over_map, with_feature_map
from dpltm.networks import ModelSpec, Network, build, check_takes, model_spec
from dpltm.networks.masks import Mask
from dpltm.networks.own import OwnModel
from dpltm.networks.state import content_id, pack, put
from dpltm.privacy.entry import NO_LINEAGE, Entry, Lineage, lineage_of
from dpltm.privacy.mechanisms import NoisySgd, PrivateSearch, Unprotected
from dpltm.pruning.generation import Ticket, Tickets, dense_mask
from dpltm.records.schema import Schema, parse_schema

if TYPE_CHECKING:
    from dpltm.networks.skill import Skill, TargetSkill
    from dpltm.options.train import TrainOptions
    from dpltm.privacy.ledger import Ledger
    from dpltm.privacy.statement import PrivacyReport
    from dpltm.records.dataset import Dataset
    from dpltm.training.canaries import Observations

ProvenanceKind = Literal["data-free", "public", "dp", "private"]
"""Source of masks, theta0 and predictors: nothing; public records; a DP release; private records with no mechanism."""

PROVENANCES: tuple[ProvenanceKind, ...] = get_args(ProvenanceKind)


@dataclass(frozen=True)
class Parent:
    """The set that another was made from: its ``id`` and ``name``, the ``round`` taken (None for all), and ``how``."""

    id: str
    name: str
    round: int | None
    how: str


class Draws:
    """The lineage of all draws from some tickets, one for all sets in memory that share them."""

    def __init__(self) -> None:
        self.lineage = Lineage()

    def __deepcopy__(self, memo: object) -> Draws:
        return self


@dataclass(frozen=True, kw_only=True, repr=False)
class TicketSet:
    """A ticket set and what it says about itself.

    Of provenance ``private`` its tickets hold accuracies on private records, and predictors that were trained on them. Its
    text (``repr``) tells neither.

    Attributes:
        body: spec, theta0 and tickets.
        criterion, provenance: how weights were chosen, and what masks, theta0 and predictors were made from.
        made_from: lineage of everything that they depend on; ``parent`` is the set that they were made from.
        feature_map: what stands in front of the network.
        config: settings of generation, transfer or compaction.
        label: what messages call it: its ``name``, or where it was read from.
        on_mark: writes a lineage into its folder ``path``; both are None for a set in memory.
        privacy: the report on the records that it was made from; None of a set that was read.
        draws: from it, and from every set in memory that shares its tickets: copies, transfers, compactions.
    """

    body: Tickets
    name: str
    criterion: str
    provenance: ProvenanceKind
    made_from: Lineage
    config: Mapping[str, Any]
    parent: Parent | None = None
    feature_map: FeatureMap | None = None
    label: str = field(default="", compare=False)
    path: Path | None = field(default=None, compare=False)
    on_mark: Callable[[Lineage], None] | None = field(default=None, compare=False)
    privacy: PrivacyReport | None = field(default=None, compare=False)
    draws: Draws = field(default_factory=Draws, compare=False)

    def __post_init__(self) -> None:
        if not self.label:
            object.__setattr__(self, "label", self.name)

    def __repr__(self) -> str:
        return (
            f"TicketSet({self.label!r}: {len(self.body.tickets)} tickets of {self.body.spec.text} by {self.criterion},"
            f" provenance {self.provenance}, id {self.id[:12]})"
        )

    @property
    def lineage(self) -> Lineage:
        """Of everything that its tickets depend on, and of the draws from them so far."""
        return self.made_from | self.draws.lineage

    def mark(self, lineage: Lineage) -> None:
        """Add a draw to its lineage, in memory and in its folder: whoever takes a round later may have seen the winner."""
        if self.on_mark is not None:
            self.on_mark(lineage)
        self.draws.lineage |= lineage

    @cached_property
    def id(self) -> str:
        """Content id (hex) over theta0 and masks."""
        theta0 = {name: value.numpy() for name, value in self.body.theta0.items()}
        return set_id(theta0, {str(ticket.round): ticket.mask for ticket in self.body.tickets})

    def ticket(self, number: int) -> Ticket:
        """Return the ticket of round ``number``. Raises ArtifactError if there is none."""
        last = len(self.body.tickets) - 1
        if not 0 <= number <= last:
            raise ArtifactError(f"{self.label}@{number}: no such round; it has rounds 0 to {last}")
        return self.body.tickets[number]

    def takes(self, dataset: Dataset) -> Dataset:
        """Return the records behind the map that the set remembers; InputError if that or the network does not take them."""
        dataset = dataset.in_order(columns_in(self.config), self.label)
        dataset = take_over_map(dataset, self.feature_map, None, self.label)
        check_takes(self.body.spec, dataset, self.label, ", or carry it over (dpltm tickets transfer, dpltm.transfer)")
        return dataset

    @property
    def is_scored(self) -> bool:
        """Tell whether its tickets have predictors, which a selection scores."""
        return all(ticket.predictor is not None for ticket in self.body.tickets)


def check_provenance(provenance: Any, lineage: Lineage) -> None:
    """Raise ArtifactError for what is no provenance, or one that the lineage beside it does not bear out."""
    if provenance not in PROVENANCES:
        raise ArtifactError(f"provenance {provenance!r:.40} is none of {', '.join(PROVENANCES)}")
    releases = [entry for entry in lineage.entries if entry.kind == "release"]
    borne_out = {
        "data-free": True,
        "public": any(entry.kind == "public" for entry in lineage.entries),
        "dp": any(not entry.of(Unprotected) for entry in releases),
        "private": any(entry.of(Unprotected) for entry in releases),
    }
    if not borne_out[provenance]:
        raise ArtifactError(f"provenance {provenance}: its lineage holds no entry that this could come from")


def with_start(provenance: ProvenanceKind, network: Network) -> ProvenanceKind:
    """Return the provenance of tickets whose starting weights may come from a release."""
    if provenance in ("private", "dp") or not network.lineage.paid:
        return provenance
    return "private" if any(entry.of(Unprotected) for entry in network.lineage.paid) else "dp"


@dataclass(frozen=True)
class Winner:
    """The ``round`` that won, drawn or chosen on public data, of ``tickets``.

    Attributes:
        lineage: of the set, and of the draw.
        facts: how it was drawn, as answers have it: ``mechanism``, ``eps1``, ``score``, ``sensitivity``.
        privacy: the report on the private records; None of a winner that was read.
        revealed: ``round``, ``density``, ``accuracy``, ``score`` and ``probability`` of all candidates on private records,
            where that was asked for, and entered without protection.
    """

    round: int
    lineage: Lineage
    tickets: TicketSet = field(compare=False)
    facts: Mapping[str, Any] = field(default_factory=dict, compare=False)
    privacy: PrivacyReport | None = field(default=None, compare=False)
    revealed: tuple[dict[str, float], ...] = field(default=(), compare=False)

    def __repr__(self) -> str:
        spent = "" if self.privacy is None else f", {self.privacy.certified}"
        return f"Winner(round {self.round} of {self.tickets.label!r}{spent})"

    @property
    def ticket(self) -> Ticket:
        """The ticket that won."""
        return self.tickets.ticket(self.round)


def set_of(tickets: TicketSet | Winner) -> TicketSet:
    """Return the set that is given, or that a winner was drawn from."""
    return tickets.tickets if isinstance(tickets, Winner) else tickets


def set_id(theta0: Mapping[str, np.ndarray], masks: Mapping[str, Mask]) -> str:
    """Content id (hex) of a ticket set: over starting weights, and masks by round."""
    tensors = {f"theta0/{name}": value for name, value in theta0.items()}
    tensors |= {
        f"masks/{number}/{name}": pack(value) for number, mask in masks.items() for name, value in mask.items()
    }
    return content_id(tensors)


def columns_in(config: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the names of features in settings of a run or a set; None where there are none, or no list of texts."""
    columns = config.get("columns")
    fit = isinstance(columns, list) and all(isinstance(name, str) for name in columns)
    return tuple(columns) if fit and columns else None


@dataclass(frozen=True)
class Run:
    """A trained network, and everything that says how it came about; of a run that was read, less is known.

    Attributes:
        config: its settings, as ``config.json`` holds them.
        model: the network, on the CPU; pruned weights are zero.
        network: of the user's own, which ``config`` names; None of a kind by name.
        mask, feature_map: which weights are live, and what stands in front.
        metrics: what was noted on the way, a line for each point.
        ledger, privacy: that paid, and the report on the records that were trained on.
        lineage: of everything that it depends on, its own training among it.
        seconds, observations: how long its training took, and what an audit of it saw.
        skill: how good it is on the test split; None where accuracy was measured on the records themselves, or it diverged.
        label: what messages call it.
        path: its folder; None for a run in memory.
    """

    config: Mapping[str, Any]
    model: nn.Module
    mask: Mask
    network: Network | None = field(default=None, compare=False, kw_only=True)
    feature_map: FeatureMap | None = None
    metrics: tuple[Mapping[str, Any], ...] = ()
    privacy: PrivacyReport | None = field(default=None, compare=False)
    ledger: Ledger | None = field(default=None, compare=False, repr=False)
    lineage: Lineage = field(default=NO_LINEAGE, compare=False, repr=False)
    seconds: float = field(default=0.0, compare=False)
    observations: Observations | None = field(default=None, compare=False, repr=False)
    skill: Skill | TargetSkill | None = field(default=None, compare=False, repr=False)
    label: str = field(default="the run", compare=False)
    path: Path | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        spent = "" if self.privacy is None else f", {self.privacy.certified}"
        return f"Run({self.label!r}: {self.spec.text}, {self.mask.live:,} weights{spent})"

    @property
    def bounds(self) -> tuple[float, float]:
        """Public bounds that inputs are scaled by."""
        low, high = self.config["bounds"]
        return float(low), float(high)

    @property
    def target(self) -> tuple[float, float] | None:
        """Public range of the targets that it predicts; None of classes."""
        return None if (ends := self.config.get("target")) is None else (float(ends[0]), float(ends[1]))

    @property
    def columns(self) -> tuple[str, ...] | None:
        """Names of the features of the table that it was trained on, in their order; None where they had none."""
        return columns_in(self.config)

    @cached_property
    def schema(self) -> Schema | None:
        """Schema of the table that it was trained on; None where it had none."""
        text = self.config.get("table_schema")
        return parse_schema(text, f"{self.label}: its schema") if isinstance(text, str) and text else None

    @property
    def spec(self) -> Network:
        """The network."""
        if self.network is not None:
            return self.network
        return ModelSpec(self.config["model"], self.config["features"], self.config["classes"])

    @property
    def entry(self) -> Entry | None:
        """The entry that paid for its training, or search, if any. Raises ArtifactError where its lineage lacks that."""
        if self.config.get("entry") is None:
            return None
        facts = self.config.get("resolved")
        names = ("noise_multiplier", "sampling_rate", "steps", "sensitivity")
        stated = [facts.get(name) for name in names] if isinstance(facts, Mapping) else []
        for entry in (entry for entry in self.lineage.entries if entry.id == self.config["entry"]):
            searched = (training for search in entry.of(PrivateSearch) for training in search.trainings)
            trainings = (*entry.of(NoisySgd), *searched)
            if stated in ([getattr(training, name) for name in names] for training in trainings):
                return entry
        raise ArtifactError(f"{self.label}: its lineage holds no training with its settings; they do not fit")


DEFAULT_NETWORK = "mlp:300,100"


def default_network(dataset: Dataset) -> str:
    """Return what is trained where nobody names a network: behind features, which tell classes apart, one layer."""
    return DEFAULT_NETWORK if dataset.feature_map is None else "mlp"


@dataclass(frozen=True)
class StartingPoint:
    """Starting point of one training, for its ``model`` is trained in place: ``spec`` and ``mask``; the ``round`` of the
    ``tickets`` that it comes from, None for a dense network; and its ``lineage``, with the draws that its set was marked by.
    """

    spec: Network
    model: nn.Module
    mask: Mask
    tickets: TicketSet | None = None
    round: int | None = None
    lineage: Lineage = NO_LINEAGE

    @property
    def unprotected(self) -> bool:
        """Tell whether it depends on records with no mechanism, so that no epsilon can be certified for those."""
        return any(entry.of(Unprotected) for entry in self.lineage.entries)


def from_round(tickets: TicketSet, round: int, winner: Winner | None = None) -> StartingPoint:
    """Return one ticket of a set.

    Args:
        round: of the ticket; 0 is the whole network with the set's starting weights.
        winner: that was drawn from the set: whatever is taken after a draw carries it.
    """
    ticket = tickets.ticket(round)
    tickets.body.spec.check_code(tickets.label)
    model = build(tickets.body.spec)
    put(model, tickets.body.theta0)
    return StartingPoint(tickets.body.spec, model, ticket.mask, tickets, round, lineage_of(tickets, winner))


def fresh(spec: Network, seed: int) -> StartingPoint:
    """Return a dense network with weights drawn from ``seed`` alone, or as it was handed in."""
    return StartingPoint(spec, build(spec, seed), dense_mask(spec), lineage=spec.lineage)


def in_front(ticket: Winner | TicketSet | OwnModel | str | None, dataset: Dataset, features: str | None) -> Dataset:
    """Return the records behind what stands in front of a network.

    Args:
        ticket: that is trained, or the network.
        features: as they are named; a set remembers its own, and naming some is refused.
    """
    if isinstance(ticket, Winner | TicketSet):
        return take_over_map(dataset, None, features, set_of(ticket).label)
    usual = features if isinstance(ticket, OwnModel) else features_of(dataset, features, ticket)
    return with_feature_map(dataset, usual)


def starting_point(
    ticket: Winner | TicketSet | OwnModel | str | None,
    dataset: Dataset,
    options: TrainOptions,
    *,
    round: int | None = None,
    dense: bool = False,
) -> tuple[StartingPoint, Dataset]:
    """Return the starting point of a ticket, or of the whole network that is named, and the records behind its features.

    Args:
        ticket: None for the usual network.
        round: of a set, the ticket to take; of a winner, another than the one that won.
        dense: take the whole network of a set, with its starting weights.
    """
    dataset = in_front(ticket, dataset, options.features)
    if not isinstance(ticket, Winner | TicketSet):
        if round is not None:
            model = ticket.text if isinstance(ticket, OwnModel) else ticket or "this"
            raise InputError(f"`round`: {model} is a network, which has none; leave `round` out")
        return fresh(model_spec(ticket or default_network(dataset), dataset), options.seed), dataset
    winner = ticket if isinstance(ticket, Winner) else None
    if dense and round is not None:
        raise InputError("`round`, `dense`: the whole network is no ticket; give one of them")
    number = 0 if dense else round
    if number is None and winner is not None:
        number = winner.round
    if number is None:
        raise InputError("`round` is missing: say which ticket of the set, or train the winner that select returned")
    return from_round(set_of(ticket), number, winner), dataset
