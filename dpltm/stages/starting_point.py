"""What a training starts from: a ticket, or a whole network."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from dpltm.errors import InputError
from dpltm.networks import ModelSpec, build
from dpltm.networks.masks import Mask
from dpltm.privacy.events import Event
from dpltm.privacy.lineage import draws_from
from dpltm.pruning.ticket_set import TicketSet, Winner
from dpltm.records import Dataset
from dpltm.records.registry import RecordRegistry
from dpltm.stages.checks import model_spec

DEFAULT_NETWORK = "mlp:300,100"


def default_network(dataset: Dataset) -> str:
    """What is trained where nobody names a network: behind features, which tell classes apart, one layer."""
    return DEFAULT_NETWORK if dataset.feature_map is None else "mlp"


@dataclass(frozen=True)
class StartingPoint:
    """What a training starts from. The model is trained in place, so each is for one training.

    Attributes:
        spec: the network.
        model: holding its starting weights.
        mask: live coordinates.
        tickets, round: where it comes from; None for a dense network of no set.
        drawn: what the draw of this very round entered, if it was drawn.
    """

    spec: ModelSpec
    model: nn.Sequential
    mask: Mask
    tickets: TicketSet | None = None
    round: int | None = None
    drawn: tuple[Event, ...] = ()


def from_round(tickets: TicketSet, round: int, drawn: tuple[Event, ...] = ()) -> StartingPoint:
    """One ticket of a set.

    Args:
        tickets: the set.
        round: of the ticket; 0 is the whole network with the set's starting weights.
        drawn: the draws that taking this round depends on.
    """
    ticket = tickets.ticket(round)
    model = build(tickets.body.spec)
    model.load_state_dict(tickets.body.theta0)
    return StartingPoint(tickets.body.spec, model, ticket.mask, tickets, round, drawn)


def from_winner(winner: Winner, round: int | None = None, registry: RecordRegistry | None = None) -> StartingPoint:
    """The ticket that won, or another round of the same set: draws that the choice depends on come with it.

    Args:
        winner: with its set.
        round: another round than the one that won; it may have won a draw that the winner does not know of.
        registry: that remembers draws, as in :func:`starting_point`.

    Raises:
        InputError: the winner does not hold its set.
    """
    if winner.tickets is None:
        raise InputError("`ticket`: a winner without its ticket set; take the one that select returned")
    chosen = winner.round if round is None else round
    return from_round(winner.tickets, chosen, draws_from(winner.tickets, winner, chosen, registry))


def fresh(spec: ModelSpec, seed: int) -> StartingPoint:
    """A dense network with weights drawn from ``seed`` alone."""
    model = build(spec, seed)
    return StartingPoint(spec, model, Mask.dense(model))


def starting_point(
    ticket: Winner | TicketSet | str,
    dataset: Dataset,
    *,
    round: int | None = None,
    dense: bool = False,
    seed: int = 0,
    registry: RecordRegistry | None = None,
) -> StartingPoint:
    """What a training of ``ticket`` starts from.

    Args:
        ticket: a winner, a ticket set, or the name of a network, such as ``mlp:300,100``, which is trained whole.
        dataset: that is trained on; a network is made for its shape.
        round: of a set, the ticket to take; of a winner, another than the one that won.
        dense: take the whole network of a set, with its starting weights.
        seed: of the starting weights, where a network is named.
        registry: of the ledger that the training is entered in, which remembers draws; None for that of the set's ledger.

    Raises:
        InputError: ``round`` and ``dense`` do not suit the ticket, or there is no such network.
        ArtifactError: there is no such round.
    """
    if isinstance(ticket, str):
        if round is not None:
            raise InputError(f"`round`: {ticket} is a network, which has none; leave `round` out")
        return fresh(model_spec(ticket, dataset), seed)
    if dense and round is not None:
        raise InputError("`round`, `dense`: the whole network is no ticket; give one of them")
    if isinstance(ticket, Winner) and not dense:
        return from_winner(ticket, round, registry)
    tickets = ticket.tickets if isinstance(ticket, Winner) else ticket
    if tickets is None:
        raise InputError("`ticket`: a winner without its ticket set; take the one that select returned")
    if dense:
        return from_round(tickets, 0)
    if round is None:
        raise InputError("`round` is missing: say which ticket of the set, or train the winner that select returned")
    return from_round(tickets, round, draws_from(tickets, None, round, registry))
