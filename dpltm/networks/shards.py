"""Parameters of which every rank holds a part, as ``torch.distributed.fsdp.fully_shard`` makes them (DTensor)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from dpltm.errors import InputError

_WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel")


def sharded(value: Tensor) -> bool:
    """Tell whether this rank holds a part of a tensor alone. By name: the class takes half a second to import."""
    return type(value).__name__ == "DTensor"


def local(value: Tensor) -> Tensor:
    """Return what this rank holds of a tensor, in the same memory, detached: all of it, unless it is sharded."""
    part: Any = value.detach()
    return part.to_local() if sharded(part) else part


def reshard(model: nn.Module) -> list[Any]:
    """Drop what passes have gathered of other ranks' shards; return the modules that ``fully_shard`` was called on."""
    found: list[Any] = [
        each for each in model.modules() if "FSDPModule" in (kind.__name__ for kind in type(each).__mro__)
    ]
    for module in found:
        module.reshard()
    return found


def check_whole_or_frozen(model: nn.Module) -> None:
    """Raise InputError for a network that ``torch.distributed`` has wrapped, or cut up otherwise than in frozen shards."""
    for name, module in model.named_modules():
        if type(module).__name__ in _WRAPPERS:
            raise InputError(
                f"model: {name + ' ' if name else ''}is wrapped in {type(module).__name__}; give the module itself, since"
                " ranks share the work (to share what is frozen, use fully_shard)"
            )
    by_fsdp = {id(value) for module in reshard(model) for value in module.parameters()}
    for name, value in model.named_parameters():
        placements = value.placements if sharded(value) else ()  # type: ignore[attr-defined]
        if sharded(value) and (id(value) not in by_fsdp or sum(place.is_shard() for place in placements) > 1):
            raise InputError(
                f"model parameter {name}: is split by tensor parallelism, so no rank has whole layers; leave it whole, or"
                " freeze it and shard it by fully_shard"
            )
        if sharded(value) and value.requires_grad:
            raise InputError(
                f"model parameter {name}: is sharded and trained; freeze it (requires_grad=False), or leave it whole on"
                " every rank (ignored_params)"
            )
