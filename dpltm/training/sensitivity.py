"""How far one neighbour moves the filtered sum of a step: as certified, and as the source of a filter claims."""

from __future__ import annotations

from dpltm.filters import Filter
from dpltm.privacy.mechanisms import Adjacency
from dpltm.training.microbatches import FACTOR


def sensitivity(filter: Filter, live: int, adjacency: Adjacency, microbatch: int | None = None) -> float:
    """Certified L2 change that one neighbour makes to the filtered sum: the bound, doubled for replace-one.

    Args:
        filter: what bounds each record's gradient.
        live: coordinates that are trained.
        adjacency: neighbouring relation.
        microbatch: of groups whose mean gradient is filtered, which doubles it as well.
    """
    bound = filter.certified_bound(live) * (1.0 if microbatch is None else FACTOR)
    return bound * (2.0 if adjacency == "replace-one" else 1.0)


def nominal_sensitivity(
    filter: Filter, live: int, adjacency: Adjacency, asked: bool = False, microbatch: int | None = None
) -> float | None:
    """What the filter's source claims in its place; None where it claims nothing of its own.

    Args:
        filter: of the training.
        live: coordinates that are trained.
        adjacency: the relation.
        asked: whether the claim is wanted for a filter that clips before, as its source does not.
        microbatch: of groups, which the papers account as if each were one record.
    """
    printed = filter.kind != "element-wise" or filter.before is None
    bound = filter.nominal_bound if printed or asked else None
    if bound is None and microbatch is not None:
        bound = filter.certified_bound(live)
    return None if bound is None else bound * (2.0 if adjacency == "replace-one" else 1.0)
