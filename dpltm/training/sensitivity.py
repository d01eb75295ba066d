"""How far one neighbour moves the filtered sum of a step: as certified, and as the source of a filter claims."""

from __future__ import annotations

from dpltm.filters import Filter
from dpltm.filters.dpsr_cg import DpsrCg
from dpltm.privacy.mechanisms import Adjacency, NoisySgd
from dpltm.training.descent import TrainingConfig
from dpltm.training.microbatches import FACTOR


def sensitivity(filter: Filter, live: int, adjacency: Adjacency, microbatch: int | None = None) -> float:
    """Return the certified L2 change that one neighbour makes to the filtered sum: the bound, doubled for replace-one.

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
    """Return what the filter's source claims in its place; None where it claims nothing of its own.

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


def nominal_source(filter: Filter, microbatch: int | None = None) -> str:
    """Return the sources of a claim. Arguments as :func:`nominal_sensitivity`."""
    own = "sensitivity in the code of DPSR-CG" if isinstance(filter, DpsrCg) else "tanh paper's sensitivity"
    if microbatch is None:
        return own
    return "; ".join(
        dict.fromkeys(["tanh paper's sensitivity for microbatches", *([own] if isinstance(filter, DpsrCg) else [])])
    )


def noise_ratio(config: TrainingConfig, mechanism: NoisySgd, live: int, nominal: bool) -> float:
    """Return the noise on the mean of a step, over that of the same training without groups.

    Args:
        config: of the training.
        mechanism: of it.
        live: coordinates that are trained.
        nominal: whether both have as much noise as the papers would add.
    """
    alone = sensitivity(config.filter, live, mechanism.adjacency)
    multiplier = mechanism.noise_multiplier
    if nominal:
        alone = nominal_sensitivity(config.filter, live, mechanism.adjacency, asked=True) or alone
        multiplier = mechanism.nominal_noise_multiplier
    return (config.noise_std / config.divisor) / (multiplier * alone / config.expected_batch)


def microbatch_note(
    config: TrainingConfig, mechanism: NoisySgd, live: int, nominal: bool, unit: str = "record"
) -> str:
    """Return what groups do to the sensitivity and to the noise, in one sentence.

    Args:
        config: of the training.
        mechanism: of it.
        live: coordinates that are trained.
        nominal: as in :func:`noise_ratio`.
        unit: whom it protects.
    """
    said = f"`microbatch`: a step filters the mean gradients of {config.groups} groups"
    said += f", and one {unit} moves one of them by twice the bound at most"
    if mechanism.noise_multiplier == 0:
        return said
    ratio = noise_ratio(config, mechanism, live, nominal)
    return f"{said}: the noise on their mean is {ratio:.3g} times that of single {unit}s"
