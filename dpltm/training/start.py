"""Starting points of a training: a ticket, or a whole network."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from dpltm.errors import InputError
from dpltm.features.setup import features_of, take_over_map, with_feature_map
from dpltm.networks import Network, build, model_spec
from dpltm.networks.masks import Mask, network_id
from dpltm.networks.own import OwnModel
from dpltm.networks.state import put
from dpltm.privacy.entry import NO_LINEAGE, Lineage, lineage_of
from dpltm.pruning.generation import dense_mask
from dpltm.records import Dataset
from dpltm.training.artifacts import TicketSet, Winner, set_of

DEFAULT_NETWORK = "mlp:300,100"


def default_network(dataset: Dataset) -> str:
    """Return what is trained where nobody names a network: behind features, which tell classes apart, one layer."""
    return DEFAULT_NETWORK if dataset.feature_map is None else "mlp"


@dataclass(frozen=True)
class StartingPoint:
    """Starting point of a training. The model is trained in place, so each is for one training.

    Attributes:
        tickets, round: where it comes from; None for a dense network of no set.
        lineage: of the ticket, with the draws that its set was marked by.
    """

    spec: Network
    model: nn.Module
    mask: Mask
    tickets: TicketSet | None = None
    round: int | None = None
    lineage: Lineage = NO_LINEAGE


def from_round(tickets: TicketSet, round: int, winner: Winner | None = None) -> StartingPoint:
    """Return one ticket of a set.

    Args:
        round: of the ticket; 0 is the whole network with the set's starting weights.
        winner: that was drawn from the set, if it is known: whatever is taken after a draw carries it.
    """
    ticket = tickets.ticket(round)
    tickets.body.spec.check_code(tickets.label)
    model = build(tickets.body.spec)
    put(model, tickets.body.theta0)
    return StartingPoint(tickets.body.spec, model, ticket.mask, tickets, round, lineage_of(tickets, winner))


def weights_id(start: StartingPoint) -> str:
    """Return a digest of weights and mask as they are now."""
    return network_id(start.model, start.mask)


def fresh(spec: Network, seed: int) -> StartingPoint:
    """Return a dense network with weights drawn from ``seed`` alone, or as it was handed in."""
    return StartingPoint(spec, build(spec, seed), dense_mask(spec), lineage=spec.lineage)


def in_front(ticket: Winner | TicketSet | OwnModel | str | None, dataset: Dataset, features: str | None) -> Dataset:
    """Return the records behind what is asked for in front of a network; a set remembers its own, and asking is refused."""
    if isinstance(ticket, Winner | TicketSet):
        return take_over_map(dataset, None, features, set_of(ticket, "ticket").label)
    if dataset.feature_map is not None:
        return take_over_map(dataset, None, features, dataset.name)
    return with_feature_map(dataset, features)


def starting_point(
    ticket: Winner | TicketSet | OwnModel | str | None,
    dataset: Dataset,
    *,
    features: str | None = None,
    round: int | None = None,
    dense: bool = False,
    seed: int = 0,
) -> tuple[StartingPoint, Dataset]:
    """Return the starting point of a ticket, or of the whole network that is named, and the records behind its features.

    Args:
        ticket: None for the usual network.
        features: as they are named, in front of a network.
        round: of a set, the ticket to take; of a winner, another than the one that won.
        dense: take the whole network of a set, with its starting weights.

    Raises:
        InputError: ``round`` and ``dense`` do not suit the ticket, or there is no such network.
        ArtifactError: there is no such round.
    """
    if not isinstance(ticket, Winner | TicketSet):
        if round is not None:
            named = ticket.text if isinstance(ticket, OwnModel) else ticket
            raise InputError(f"`round`: {named} is a network, which has none; leave `round` out")
        if not isinstance(ticket, OwnModel) and dataset.feature_map is None:
            features = features_of(dataset, features, ticket)
        dataset = in_front(ticket, dataset, features)
        return fresh(model_spec(ticket or default_network(dataset), dataset), seed), dataset
    dataset = in_front(ticket, dataset, features)
    if dense and round is not None:
        raise InputError("`round`, `dense`: the whole network is no ticket; give one of them")
    winner, tickets = ticket if isinstance(ticket, Winner) else None, set_of(ticket, "ticket")
    if dense:
        return from_round(tickets, 0, winner), dataset
    if round is None and winner is None:
        raise InputError("`round` is missing: say which ticket of the set, or train the winner that select returned")
    number = winner.round if round is None and winner is not None else round or 0
    return from_round(tickets, number, winner), dataset
