"""Structured pruning: whole units (neurons, channels) are dropped, the least important first.

Importance is the group magnitude of Fang et al. (2023, "DepGraph"), as in torch-pruning: a unit is judged by its incoming
and outgoing weights together. Behind a GroupNorm a unit is a whole group of channels, so that others are scaled as before.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from dpltm.criteria import PruningRound, Schedule
from dpltm.errors import InputError, first_line
from dpltm.networks import Network, build
from dpltm.networks.kind import PROJECTION
from dpltm.networks.masks import Mask


def prune_units(model: nn.Module, mask: Mask, live: int, example: Tensor) -> Mask:
    """The next mask of iterative pruning by units, with ``live`` weights beside biases and those of a layer ``project``.

    The importance of a unit is the L2 norm of its live weights, incoming and outgoing, over the mean of those norms in its
    layer. NaN counts as larger than everything; neither NaN nor infinity is part of a mean. Equal ones go in the order of
    layers, then of units. Before them go weights that lead to no output, and the unit that the round before removed in part.

    Guarantees:
        The mask is nested in ``mask``, with its biases; exactly ``live`` weights are live in it; at most one unit more
        than in ``mask`` is removed in part, by its smallest weights (equal ones in the order of their position); every
        layer keeps a unit that is used, and no weight is left without a live coordinate.
    """
    mask.check_fits(model)
    state = _Live(Units(model, example, mask.prunable), mask)
    if live >= state.total:
        return mask
    sizes = state.units.flat({name: value.detach().cpu().double().abs() for name, value in model.named_parameters()})
    nothing = torch.tensor([], dtype=torch.long)
    if not state.without(nothing, sizes, 0).works():
        raise InputError("mask: no live weights lead from the inputs to the outputs; prune less before")
    state = state.without(nothing, sizes, live)
    for unit in _order(state, sizes):
        weights = state.units.weights[unit]
        if state.total > live and state.without(weights, sizes, 0).works():
            state = state.without(weights, sizes, live)
    if state.total > live:
        raise InputError(
            f"`prune`: {live} live weights cannot be reached by removing units: with one left in every layer, {state.total}"
            " stay; prune less"
        )
    return state.mask(mask)


def by_units(step: PruningRound) -> Mask:
    """The next mask of ``structured``: units have weights in several layers, so these are counted in sum."""
    return prune_units(step.model, step.mask, sum(step.live.values()), step.example)


def check_network(spec: Network, schedule: Schedule) -> None:
    """Raise InputError if a round asks for fewer weights than one unit a layer, and what belongs to none, have."""
    fewest = Units(build(spec), torch.zeros(1, spec.features), spec.prunable).fewest_live()
    for number, live in enumerate(schedule):
        if sum(live.values()) < fewest:
            raise InputError(
                f"`rounds`: round {number} of {len(schedule) - 1} would leave {sum(live.values())} weights, but one unit in"
                f" every layer, and what belongs to none, has {fewest}; ask for fewer, or take `criterion` magnitude"
            )


class Units:
    """The prunable weights of a network as one long vector, and its units, numbered through all layers.

    ``maker`` and ``feeder`` ``(size,)`` are the unit whose incoming, and whose outgoing, weight each is, or -1; ``weights``
    has the places of every unit's weights, in order; ``layers`` ``(units,)`` numbers the layer of each.
    """

    def __init__(self, model: nn.Module, example: Tensor, prunable: Collection[str]) -> None:
        if len(list(model.parameters())) < len(list(model.named_parameters(remove_duplicate=False))):
            raise InputError("model: some of its parameters are one; units of tied layers cannot be removed")
        self.shapes = {
            name: value.shape for name, value in model.named_parameters() if name in prunable and _prunable(name)
        }
        *starts, self.size = accumulate((shape.numel() for shape in self.shapes.values()), initial=0)
        start_of = dict(zip(self.shapes, starts, strict=True))
        self.maker, self.feeder = (torch.full((self.size,), -1) for _ in range(2))
        layers: list[int] = []
        try:
            groups = [
                (incoming, outgoing)
                for incoming, outgoing in unit_groups(model, example)
                if _prunable(incoming.name) and self.shapes.keys() & {part.name for part in (incoming, *outgoing)}
            ]
        except Exception as error:  # of the model's own code, or torch-pruning's, on what it does not know
            raise InputError(f"model: cannot be traced to find its units: {first_line(error)}") from error
        for number, (incoming, outgoing) in enumerate(groups):
            for owner, side in ((self.maker, [incoming]), (self.feeder, outgoing)):
                for part in side:
                    if part.name in start_of:
                        owner[start_of[part.name] + part.positions] = len(layers) + part.units[:, None]
            layers += [number] * (int(incoming.units.max()) + 1)
        self.layers = torch.tensor(layers, dtype=torch.long)
        owners = torch.cat([self.maker, self.feeder])
        keys = (owners * self.size + torch.arange(self.size).repeat(2))[owners >= 0].sort().values
        self.weights = (keys % self.size).split(torch.bincount(keys // self.size, minlength=len(layers)).tolist())

    def fewest_live(self) -> int:
        """Fewest weights that can stay when every layer keeps one unit; ``prune_units`` reaches all numbers from it on."""
        alive = torch.ones(self.size, dtype=torch.bool)
        layers = self.layers.tolist()
        for weights, layer, before in zip(self.weights, layers, [None, *layers], strict=False):
            if layer == before:
                alive[weights] = False
        return int(alive.sum())

    def flat(self, values: dict[str, Tensor]) -> Tensor:
        empty = torch.empty(0, dtype=next(iter(values.values())).dtype)
        return torch.cat([empty, *(values[name].flatten() for name in self.shapes)])

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        split = vector.split([shape.numel() for shape in self.shapes.values()])
        return {name: part.view(self.shapes[name]) for name, part in zip(self.shapes, split, strict=True)}


class _Live:
    """Live weights while units are removed: ``alive`` ``(size,)``; counts ``incoming`` and ``outgoing`` ``(units,)``."""

    def __init__(self, units: Units, mask: Mask) -> None:
        self.units = units
        self.alive = units.flat({name: value.cpu() for name, value in mask.items()})
        self.total = int(self.alive.sum())
        self.incoming = self.per_unit(units.maker[self.alive])
        self.outgoing = self.per_unit(units.feeder[self.alive])

    def per_unit(self, owners: Tensor) -> Tensor:
        return torch.bincount(owners[owners >= 0], minlength=len(self.units.weights))

    def mask(self, like: Mask) -> Mask:
        """Return the mask, with what it does not cover as it is in ``like``."""
        named = self.units.named(self.alive).items()
        return like.replaced({name: value.to(like[name].device) for name, value in named})

    def without(self, weights: Tensor, sizes: Tensor, live: int) -> _Live:
        """Remove weights, then all that lead to no output any more, until ``live`` are left; each lot smallest first."""
        remaining = copy.copy(self)
        remaining.alive = self.alive.clone()
        while True:
            gone = weights[remaining.alive[weights]]
            gone = gone[sizes[gone].argsort(stable=True)][: remaining.total - live]
            remaining.alive[gone] = False
            remaining.total -= len(gone)
            remaining.incoming = remaining.incoming - self.per_unit(self.units.maker[gone])
            remaining.outgoing = remaining.outgoing - self.per_unit(self.units.feeder[gone])
            useless = ((remaining.outgoing == 0) & (remaining.incoming > 0)).nonzero().squeeze(1).tolist()
            if remaining.total == live or not useless:
                return remaining
            weights = torch.cat([remaining.units.weights[unit] for unit in useless]).unique()

    def works(self) -> bool:
        """True if every weight has a live coordinate; its unit is used, once what leads to no output is gone."""
        return all(bool(value.any()) for value in self.units.named(self.alive).values())


def _prunable(name: str) -> bool:
    return not name.startswith(f"{PROJECTION}.")


def _order(state: _Live, sizes: Tensor) -> list[int]:
    """Units that are left, in the order in which they go."""
    units = state.units
    if not units.weights:
        return []
    left = state.incoming + state.outgoing > 0
    squares = torch.where(state.alive, sizes.square(), 0.0)
    norms = torch.stack([squares[weights].sum() for weights in units.weights]).sqrt()
    for layer in range(int(units.layers.max()) + 1):
        here = units.layers == layer
        counted = here & norms.isfinite() & left
        mean = float(norms[counted].mean()) if bool(counted.any()) else 0.0
        norms[here] /= mean or 1.0
    order = norms.argsort(stable=True)
    order = order[left[order]]
    # first the unit that was removed in part, on which all weights lie that died though no unit that they touch is removed:
    # at most one, unless all lie between two; then either could have been, and the mask is the same
    there = torch.cat([left, torch.tensor([True])])  # the last for -1, which is nobody
    maker, feeder = units.maker, units.feeder
    single = ~state.alive & there[maker] & there[feeder] & ((maker >= 0) | (feeder >= 0))
    touching = state.per_unit(maker[single]) + state.per_unit(feeder[single])
    part = ((touching > 0) & (touching == int(single.sum())))[order]
    return [*order[part].tolist(), *order[~part].tolist()]


_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d)  # layers that make and use units
_BY_CHANNEL = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)
NORMS = (*_BY_CHANNEL, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.LocalResponseNorm)


@dataclass(frozen=True)
class Coordinates:
    """Flat ``positions`` in one parameter, before any removal: a row for each of ``units``, which is ``(rows,)`` int64."""

    name: str
    units: Tensor
    positions: Tensor


def unit_groups(model: nn.Module, example: Tensor) -> Iterator[tuple[Coordinates, list[Coordinates]]]:
    """The weight of every layer of at least two units that nothing but Linear layers and convolutions takes in, through
    normalisation of channels or of groups of them, and the weights of the layers that use these units, by torch-pruning's
    dependency graph. Raises whatever ends the trace of a network.

    Left out are units that cannot be removed by themselves: outputs of the network, units that are added to those of
    another layer or go into their own, those that are normalised together with others, and those next to a grouped
    convolution or to another kind of layer with parameters.
    """
    import torch_pruning as tp

    model = copy.deepcopy(model).double().cpu().requires_grad_(True)
    inputs = torch.zeros(1, *example.shape[1:], dtype=torch.float64 if example.is_floating_point() else example.dtype)
    with torch.enable_grad(), warnings.catch_warnings():  # it follows the graph of autograd
        warnings.simplefilter("ignore", UserWarning)  # about parameters of no layer, whose units are left out
        graph = tp.DependencyGraph().build_dependency(model, example_inputs=inputs)
    names = {id(module): name for name, module in model.named_modules()}
    for name, module in model.named_modules():
        if not isinstance(module, _LAYERS) or module not in graph.module2node:  # attention uses its own by itself
            continue
        if getattr(module, "groups", 1) != 1 or len(module.weight) == 1:
            continue
        out = tp.prune_linear_out_channels if isinstance(module, nn.Linear) else tp.prune_conv_out_channels
        count = len(module.weight)
        group = graph.get_pruning_group(module, out, idxs=list(range(count)))
        numbers = _numbers(group, count)
        if numbers is None or int(numbers.max()) == 0:
            continue
        if outgoing := _uses(group, names, module, numbers):
            rows = torch.arange(module.weight.numel()).view(count, -1)
            yield Coordinates(f"{name}.weight", numbers, rows), outgoing


def _numbers(group: Any, count: int) -> Tensor | None:
    """``(count,)``: the unit of each output of a layer, from 0; None where a normalisation joins all, or other layers'."""
    # parts that go together, and the outputs that each has
    joined, outputs = [torch.arange(count)], [torch.arange(count)]
    for item in group.items[1:]:
        norm = item.dep.target.module
        if not isinstance(norm, NORMS) or isinstance(norm, _BY_CHANNEL):
            continue
        if not isinstance(norm, nn.GroupNorm):
            return None
        per_group = norm.num_channels // norm.num_groups
        parts = torch.tensor(item.idxs) // per_group
        if bool((parts.bincount()[parts] != per_group).any()):
            return None
        joined.append(parts + 1 + joined[-1].max())
        outputs.append(torch.tensor(item.root_idxs))
    part, output = torch.cat(joined), torch.cat(outputs)
    numbers = torch.arange(count)
    while True:  # until all that goes together has the least number among it
        least = torch.full((int(part.max()) + 1,), count).scatter_reduce(0, part, numbers[output], "amin")
        lower = numbers.scatter_reduce(0, output, least[part], "amin")
        if torch.equal(lower, numbers):
            return numbers.unique(return_inverse=True)[1]
        numbers = lower


def _uses(group: Any, names: Mapping[int, str], maker: nn.Module, numbers: Tensor) -> list[Coordinates]:
    """Uses of the units of a group of torch-pruning's; none if something else goes with them."""
    import torch_pruning as tp

    uses = []
    for item in group.items[1:]:
        target = item.dep.target.module
        if isinstance(target, _LAYERS):
            takes_in = item.dep.handler in (tp.prune_linear_in_channels, tp.prune_conv_in_channels)
            if not takes_in or target is maker or getattr(target, "groups", 1) != 1:
                return []
            columns = torch.arange(target.weight.numel()).view(target.weight.shape).transpose(0, 1).flatten(1)
            uses.append(Coordinates(f"{names[id(target)]}.weight", numbers[item.root_idxs], columns[item.idxs]))
        elif not isinstance(target, nn.Module) or (
            any(True for _ in target.parameters()) and not isinstance(target, NORMS)
        ):
            return []
    return uses
