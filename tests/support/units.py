"""What dies with each unit of a group, by parameter name."""

import torch
from torch import Tensor

from dpltm.pruning.structured import UnitGroup


def dying(group: UnitGroup) -> list[dict[str, Tensor]]:
    """For every unit the flat positions that die with it, each once."""
    found: list[dict[str, Tensor]] = [{} for _ in range(group.count)]
    for part in (group.incoming, *group.outgoing):
        for unit, places in enumerate(found):
            own = part.positions[part.units == unit]
            places[part.name] = torch.cat([places.get(part.name, own[:0]), own]).unique()
    return found
