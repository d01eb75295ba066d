"""Units of a network (neurons, channels of a convolution), and which coordinates live and die with each.

torch-pruning's dependency graph says what goes with a unit. It is used on a network whose weights are their own positions,
so that what is left of it, once units are removed, still says where every weight came from.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from dpltm.errors import InputError, first_line
from dpltm.networks.state import layer_at

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d)
"""Layers that make and use units."""

_BY_CHANNEL = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)
"""Normalisation of each channel by itself."""

NORMS = (*_BY_CHANNEL, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.LocalResponseNorm)


@dataclass(frozen=True)
class Coordinates:
    """Flat coordinates of one parameter, before any removal, and the unit of each; both ``(coordinates,)`` int64."""

    units: Tensor
    positions: Tensor


@dataclass(frozen=True)
class Use:
    """Inputs of a layer and the unit that feeds each, ``(n,)`` int64; one feeds many behind a flattened convolution."""

    layer: str
    inputs: Tensor
    units: Tensor


@dataclass(frozen=True)
class UnitGroup:
    """The units of one layer, at least two, with all that goes with them.

    Behind a GroupNorm a unit is a whole group of channels: the statistics of the others are what they were without it.

    Attributes:
        incoming: per parameter of that layer, weight and bias, the unit that each of its coordinates belongs to.
        outgoing: per weight of the layers that use them, its coordinates at the inputs that the units feed.
        uses: the same as layers and inputs.
        remove: takes units out of the network of ``positions``, for good; the dependency graph must be traced again.
    """

    layer: str
    count: int
    incoming: Mapping[str, Coordinates]
    outgoing: Mapping[str, Coordinates]
    uses: tuple[Use, ...]
    remove: Callable[[list[int]], None]


def positions(model: nn.Module) -> nn.Module:
    """A copy on the CPU whose weights are their own flat positions, exact in float64."""
    numbered = copy.deepcopy(model).double().cpu()
    with torch.no_grad():
        for value in numbered.parameters():
            value.copy_(torch.arange(value.numel(), dtype=torch.float64).view(value.shape))
            value.requires_grad_(True)
    return numbered


def unit_groups(places: nn.Module, example: Tensor) -> Iterator[UnitGroup]:
    """Every layer of at least two units that nothing but Linear layers and convolutions takes in, through normalisation of
    channels or of groups of them, of a network of ``positions``.

    Left out are units that cannot be removed by themselves: outputs of the network, units that are added to those of
    another layer or go into their own, those that are normalised together with others, and those next to a grouped
    convolution or to another kind of layer with parameters. Raises InputError where the network cannot be traced.
    """
    import torch_pruning as tp

    graph = _trace(places, example)
    names = {id(module): name for name, module in places.named_modules()}
    for name, module in places.named_modules():
        if not isinstance(module, _LAYERS) or module not in graph.module2node:  # attention uses its own by itself
            continue
        if getattr(module, "groups", 1) != 1 or len(module.weight) == 1:
            continue
        out = tp.prune_linear_out_channels if isinstance(module, nn.Linear) else tp.prune_conv_out_channels
        count = len(module.weight)
        group = graph.get_pruning_group(module, out, idxs=list(range(count)))
        numbers, uses = _numbers(group, count), _uses(group, names, module)
        if not uses or numbers is None or int(numbers.max()) == 0:
            continue
        incoming = {key: replace(one, units=numbers[one.units]) for key, one in _incoming(places, name).items()}
        uses = tuple(replace(use, units=numbers[use.units]) for use in uses)
        remove = _remover(graph, module, out, numbers)
        yield UnitGroup(name, int(numbers.max()) + 1, incoming, _outgoing(places, uses), uses, remove)


def _numbers(group: Any, count: int) -> Tensor | None:
    """``(count,)``: the unit that each output of a layer belongs to, from 0; None where a normalisation joins them with
    those of another layer, or all channels at each place."""
    # parts that go together, and the outputs that each has
    joined, outputs = [torch.arange(count)], [torch.arange(count)]
    for item in group.items[1:]:
        norm = item.dep.target.module
        if not isinstance(norm, NORMS) or isinstance(norm, _BY_CHANNEL):
            continue
        if not isinstance(norm, nn.GroupNorm):
            return None
        each = norm.num_channels // norm.num_groups
        parts = torch.tensor(item.idxs) // each
        if bool((parts.bincount()[parts] != each).any()):
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


def _remover(graph: Any, module: nn.Module, out: Any, numbers: Tensor) -> Callable[[list[int]], None]:
    def remove(units: list[int]) -> None:
        outputs = torch.isin(numbers, torch.tensor(units)).nonzero().squeeze(1).tolist()
        graph.get_pruning_group(module, out, idxs=outputs).prune()

    return remove


def _trace(places: nn.Module, example: Tensor) -> Any:
    import torch_pruning

    inputs = torch.zeros(1, *example.shape[1:], dtype=torch.float64 if example.is_floating_point() else example.dtype)
    try:
        with torch.enable_grad(), warnings.catch_warnings():  # it follows the graph of autograd
            warnings.simplefilter("ignore", UserWarning)  # about parameters of no layer, whose units are left out
            return torch_pruning.DependencyGraph().build_dependency(places, example_inputs=inputs)
    except Exception as error:  # whatever the model's own code raises
        raise InputError(f"model: cannot be traced to find its units: {first_line(error)}") from error


def _uses(group: Any, names: Mapping[int, str], maker: nn.Module) -> tuple[Use, ...]:
    """Uses of the units of a group of torch-pruning's; none if something else goes with them."""
    import torch_pruning as tp

    uses = []
    for item in group.items[1:]:
        target = item.dep.target.module
        if isinstance(target, _LAYERS):
            takes_in = item.dep.handler in (tp.prune_linear_in_channels, tp.prune_conv_in_channels)
            if not takes_in or target is maker or getattr(target, "groups", 1) != 1:
                return ()
            uses.append(Use(names[id(target)], torch.tensor(item.idxs), torch.tensor(item.root_idxs)))
        elif not isinstance(target, nn.Module) or (
            any(True for _ in target.parameters()) and not isinstance(target, NORMS)
        ):
            return ()
    return tuple(uses)


def _parameter(places: nn.Module, layer: str, kind: str) -> tuple[str, Tensor] | None:
    """Name and positions of a layer's weight or bias; tied parameters have the first of their names."""
    value = getattr(layer_at(places, layer), kind)
    if value is None:
        return None
    return next(name for name, known in places.named_parameters() if known is value), value.detach().long()


def _incoming(places: nn.Module, layer: str) -> dict[str, Coordinates]:
    coordinates = {}
    for kind in ("weight", "bias"):
        if (parameter := _parameter(places, layer, kind)) is not None:
            name, value = parameter
            rows = value.flatten(1) if value.ndim > 1 else value[:, None]
            units = torch.arange(len(rows))[:, None].expand_as(rows)
            coordinates[name] = Coordinates(units.flatten(), rows.flatten())
    return coordinates


def _outgoing(places: nn.Module, uses: tuple[Use, ...]) -> dict[str, Coordinates]:
    parts: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for use in uses:
        parameter = _parameter(places, use.layer, "weight")
        assert parameter is not None  # every one of _LAYERS has a weight
        name, value = parameter
        columns = value.transpose(0, 1).flatten(1)[use.inputs]
        units = use.units[:, None].expand_as(columns)
        parts.setdefault(name, []).append((units.flatten(), columns.flatten()))
    return {
        name: Coordinates(torch.cat([units for units, _ in pairs]), torch.cat([places for _, places in pairs]))
        for name, pairs in parts.items()
    }
