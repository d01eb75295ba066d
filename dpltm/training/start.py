"""Starting points of a training: a ticket, or a whole network."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from dpltm.errors import InputError
from dpltm.networks import Network, build, model_spec
from dpltm.networks.masks import Mask, network_id
from dpltm.networks.own import OwnModel
from dpltm.networks.state import put
from dpltm.privacy.entry import NO_LINEAGE, Lineage, lineage_of
from dpltm.pruning.generation import dense_mask
from dpltm.records import Dataset
from dpltm.training.artifacts import TicketSet, Winner

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


def starting_point(
    ticket: Winner | TicketSet | OwnModel | str,
    dataset: Dataset,
    *,
    round: int | None = None,
    dense: bool = False,
    seed: int = 0,
) -> StartingPoint:
    """Return the starting point of ``ticket``, or of the whole network that it names.

    Args:
        round: of a set, the ticket to take; of a winner, another than the one that won.
        dense: take the whole network of a set, with its starting weights.

    Raises:
        InputError: ``round`` and ``dense`` do not suit the ticket, or there is no such network.
        ArtifactError: there is no such round.
    """
    if isinstance(ticket, (str, OwnModel)):
        if round is not None:
            named = ticket if isinstance(ticket, str) else ticket.text
            raise InputError(f"`round`: {named} is a network, which has none; leave `round` out")
        return fresh(model_spec(ticket, dataset), seed)
    if dense and round is not None:
        raise InputError("`round`, `dense`: the whole network is no ticket; give one of them")
    winner = ticket if isinstance(ticket, Winner) else None
    tickets = winner.tickets if winner is not None else ticket
    if not isinstance(tickets, TicketSet):
        raise InputError("`ticket`: a winner without its ticket set; take the one that select returned")
    if dense:
        return from_round(tickets, 0, winner)
    if round is None and winner is None:
        raise InputError("`round` is missing: say which ticket of the set, or train the winner that select returned")
    return from_round(tickets, winner.round if round is None and winner is not None else round or 0, winner)
