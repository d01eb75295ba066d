"""What dies with each unit of a group, by parameter name."""

import torch
from torch import Tensor

from dpltm.pruning.structured import UnitGroup


def dying(group: UnitGroup) -> list[dict[str, Tensor]]:
    """For every unit the flat positions that die with it, each once."""
    found: list[dict[str, Tensor]] = [{} for _ in range(group.count)]
    for side in (group.incoming, group.outgoing):
        for name, coordinates in side.items():
            for unit, places in enumerate(found):
                own = coordinates.positions[coordinates.units == unit]
                places[name] = torch.cat([places.get(name, own[:0]), own]).unique()
    return found
