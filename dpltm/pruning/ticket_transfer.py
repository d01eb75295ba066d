"""Transfer of tickets to other data (DPLTM section 4.5), where a network has another input width or class count.

Layers of the same shape are kept, mask and starting weights; the others are made new. Controls take over less: the mask
alone, the weights under a shuffled mask, or nothing but how many weights live.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from dpltm.errors import InputError
from dpltm.networks import ModelSpec, Network, build
from dpltm.networks.state import weights_of
from dpltm.pruning.generation import Ticket, Tickets

Mode = Literal["ticket", "mask-only", "shuffled-mask", "random"]
MODES: tuple[Mode, ...] = get_args(Mode)

Fresh = Literal["sparse", "dense"]


@dataclass(frozen=True)
class LayerReport:
    """Result of a transfer for one layer: shapes of its weight before and after, and its density in the last ticket.

    ``mask`` is ``kept``, ``repeated`` (over the channels of images), ``shuffled``, ``random``, or ``dense`` if it keeps all;
    ``weights`` are ``kept``, ``repeated`` or ``fresh``. The name of a layer with several weights is that of the weight.
    """

    layer: str
    before: tuple[int, ...]
    after: tuple[int, ...]
    mask: str
    weights: str
    density: float


@dataclass(frozen=True)
class Transferred:
    """Tickets for the other network, and layer by layer where they come from."""

    tickets: Tickets
    layers: tuple[LayerReport, ...]


def one_round(tickets: Tickets, number: int) -> Tickets:
    """A set of the dense network and the ticket of one round, which becomes round 1."""
    dense, chosen = tickets.tickets[0], tickets.tickets[number]
    return replace(tickets, tickets=(dense, replace(chosen, round=1)) if number else (dense,))


def transfer(
    tickets: Tickets, target: Network, mode: Mode = "ticket", fresh: Fresh = "sparse", seed: int = 0
) -> Transferred:
    """The same tickets for ``target``, with as many rounds, nested.

    Args:
        target: a network whose layers have the same names (``retarget`` gives one).
        mode: ``ticket`` takes over masks and weights; ``mask-only`` the masks, with weights drawn anew; ``shuffled-mask``
            the weights, under masks with as many live weights in each layer, elsewhere; ``random`` draws both anew, with as
            many live weights.
        fresh: layers made new live at random with the density of the layer that they replace (``sparse``), or all of them.

    Returns:
        Predictors only where nothing at all was changed, and never accuracies, which were measured on other records.

    Raises:
        InputError: not one layer can be kept.
    """
    _check_head(tickets.spec, target)
    before, after = tickets.spec.shapes(), target.shapes()
    weights = [name for name, shape in after.items() if len(shape) >= 2]  # frozen ones are kept, and live
    how = {name: _relation(before.get(name), after[name]) for name in weights}
    if set(how.values()) == {"fresh"}:
        raise InputError(
            f"{tickets.spec.text} on {tickets.spec.features} features and {tickets.spec.classes} classes has no layer in"
            f" common with {target.text} on {target.features} and {target.classes}: there is nothing to transfer"
        )
    if tickets.spec == target and mode == "ticket":
        rows = tuple(_report(name, tickets.tickets[-1], before[name], after[name], "kept", "kept") for name in weights)
        unmeasured = tuple(replace(ticket, accuracy=None) for ticket in tickets.tickets)
        return Transferred(replace(tickets, tickets=unmeasured), rows)
    drawn = weights_of(build(target, seed))
    generator = torch.Generator().manual_seed(seed + 2**34)
    order = {name: torch.rand(after[name], generator=generator, dtype=torch.float64) for name in weights}
    theta0 = _theta0(tickets.theta0, drawn, how, mode)
    rounds = []
    for ticket in tickets.tickets:
        mask = {name: torch.ones(shape, dtype=torch.bool) for name, shape in after.items()}
        for name in weights:
            mask[name] = _mask(ticket.mask.get(name), how[name], mode, fresh, order[name], before.get(name))
        rounds.append(Ticket(ticket.round, target.mask(mask), None, None))
    made = Tickets(target, theta0, tuple(rounds))
    return Transferred(made, tuple(_row(name, made, before, after, how[name], mode, fresh) for name in weights))


def _check_head(source: Network, target: Network) -> None:
    """Raise InputError for networks of the user's own that differ in more than the layer that gives the outputs."""
    if isinstance(source, ModelSpec) and isinstance(target, ModelSpec):
        return
    before, after = source.shapes(), target.shapes()
    other = [name for name in (*before, *after) if before.get(name) != after.get(name)]
    heads = {name.rpartition(".")[0] for name in other}
    if list(before) != list(after) or len(heads) > 1:
        raise InputError(
            f"`model`: {target.text} is more than {source.text} with another head ({', '.join(dict.fromkeys(other))});"
            " a network of your own is carried over to the same module with another last layer"
        )


def _relation(before: tuple[int, ...] | None, after: tuple[int, ...]) -> str:
    """Relation of two layers: all can be taken over, one channel for each of several, or nothing."""
    if before == after:
        return "kept"
    if before is None or len(before) != 4 or before[1] != 1:
        return "fresh"
    return "repeated" if (before[0], *before[2:]) == (after[0], *after[2:]) else "fresh"


def _theta0(
    old: Mapping[str, Tensor], drawn: Mapping[str, Tensor], how: Mapping[str, str], mode: Mode
) -> dict[str, Tensor]:
    """Starting weights: a layer's bias goes with its weight."""
    theta0 = dict(drawn)
    if mode in ("mask-only", "random"):
        return theta0
    for name, value in drawn.items():
        relation = (
            how.get(name)
            or _of_bias(name, how)
            or ("kept" if name in old and old[name].shape == value.shape else "fresh")
        )
        if relation == "repeated" and value.ndim == 4:
            theta0[name] = old[name].expand(value.shape).clone() / value.shape[1]  # grey images give the same
        elif relation != "fresh":
            theta0[name] = old[name].clone()
    return theta0


def _of_bias(name: str, how: Mapping[str, str]) -> str | None:
    """Relation of a bias: that of its layer's weight; of several weights, the least; None of a layer without."""
    layer = name.rpartition(".")[0]
    relations = {relation for weight, relation in how.items() if weight.rpartition(".")[0] == layer}
    if not relations:
        return None
    return "fresh" if "fresh" in relations else relations.pop()


def _mask(
    old: Tensor | None, relation: str, mode: Mode, fresh: Fresh, order: Tensor, shape: tuple[int, ...] | None
) -> Tensor:
    """The mask of one layer's weight; ``order`` is the same for every round, so that masks stay nested."""
    if old is None or shape is None or (relation == "fresh" and fresh == "dense"):
        return torch.ones(order.shape, dtype=torch.bool)
    if relation == "repeated":
        old = old.expand(order.shape).clone()
    if relation != "fresh" and mode in ("ticket", "mask-only"):
        return old
    density = float(old.double().mean())
    count = max(1, round(density * order.numel()))
    live = torch.zeros(order.numel(), dtype=torch.bool)
    live[order.flatten().argsort(stable=True)[:count]] = True
    return live.view(order.shape)


def _row(
    name: str,
    made: Tickets,
    before: Mapping[str, tuple[int, ...]],
    after: Mapping[str, tuple[int, ...]],
    relation: str,
    mode: Mode,
    fresh: Fresh,
) -> LayerReport:
    weights = "fresh" if mode in ("mask-only", "random") else relation
    if relation == "fresh":
        mask = "dense" if fresh == "dense" else "random"
    else:
        mask = {"shuffled-mask": "shuffled", "random": "random"}.get(mode, relation)
    return _report(name, made.tickets[-1], before.get(name, ()), after[name], mask, weights)


def _report(
    name: str, ticket: Ticket, before: tuple[int, ...], after: tuple[int, ...], mask: str, weights: str
) -> LayerReport:
    density = float(ticket.mask[name].double().mean())
    return LayerReport(
        name.removesuffix(".weight"), before, after, "dense" if density == 1 else mask, weights, density
    )


def retarget(
    spec: ModelSpec, shape: tuple[int, ...], features: int, classes: int, tables: tuple[int, ...] = ()
) -> ModelSpec:
    """The network of ``spec`` for records of another shape, classes or ``tables`` of positions; InputError if none."""
    name = spec.name
    sizes = name.kind.sizes_of(spec.text.partition(":")[0], shape, tables)
    return ModelSpec(spec.text if sizes == name.sizes else str(replace(name, sizes=sizes)), features, classes)
