"""What a person is told about the noise of a training on microbatches."""

from __future__ import annotations

from dpltm.privacy.mechanisms import NoisySgd
from dpltm.training.descent import TrainingConfig
from dpltm.training.sensitivity import nominal_sensitivity, sensitivity


def noise_ratio(config: TrainingConfig, mechanism: NoisySgd, live: int, nominal: bool) -> float:
    """The noise on the mean of a step, over that of the same training without groups.

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


def microbatch_note(config: TrainingConfig, mechanism: NoisySgd, live: int, nominal: bool) -> str:
    """What groups do to the sensitivity and to the noise, in one sentence.

    Args:
        config: of the training.
        mechanism: of it.
        live: coordinates that are trained.
        nominal: as in :func:`noise_ratio`.
    """
    unit, said = mechanism.unit, f"`microbatch`: a step filters the mean gradients of {config.groups} groups"
    said += f", and one {unit} moves one of them by twice the bound at most"
    if mechanism.noise_multiplier == 0:
        return said
    ratio = noise_ratio(config, mechanism, live, nominal)
    return f"{said}: the noise on their mean is {ratio:.3g} times that of single {unit}s"
