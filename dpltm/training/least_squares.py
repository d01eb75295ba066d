"""``head`` least-squares: one layer behind features, with nothing to tune (docs/privacy-model.md 4.7).

Three kinds of releases, each a Gaussian mechanism with a public share of the budget, and all entered before the first draw:
the mean of features; the second moments of inputs centred at it, where they can rise above their noise; and cross moments
of the inputs with clipped residuals, one for each of a few damped Newton steps on the cross-entropy. The first cross moments
are those of the labels, the class sums. The noise decides damping and step size, so no setting depends on the records.

The constants were chosen on kmnist-7k alone, with scattering and drawings, at epsilon 0.2 to 8, and then frozen; all but
``MOST_INPUTS``, raised when joined maps of Fashion-MNIST were found to want it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch

from dpltm.errors import InputError
from dpltm.features.inputs import check_quantities
from dpltm.features.normalisation import NORM
from dpltm.filters.descriptor import CLIP_NORM
from dpltm.options.train import TrainOptions
from dpltm.privacy.mechanisms import Bits, GaussianRelease, NoisySgd
from dpltm.randomness.noise import RandomSource
from dpltm.randomness.second_moments import MAX_NOISE, SENSITIVITY, edge, release_second_moments
from dpltm.records.dataset import Dataset
from dpltm.records.mapped import pieces
from dpltm.records.split import Arrays
from dpltm.records.units import ABSENT
from dpltm.training.artifacts import StartingPoint
from dpltm.training.optimizers import NewtonSteps
from dpltm.training.plan import NoisySteps

STEPS = 16
"""Newton steps. Eight lose half a point at most at epsilon 0.2 and 1."""

MEAN_SHARE, SECOND_SHARE = 0.05, 0.1
"""Of the budget: for the mean, and for the second moments. Noise multipliers are divided by their roots."""

REACH = 10.0
"""Limit of second moments: they are left out where noise alone has eigenvalues above this share of the records, for features
would have to be nearly one direction to rise above it.
"""

MOST_INPUTS = 5_000
"""And where there are more inputs than this, whose moments and eigenvectors would take many minutes."""

SPREAD = 0.18
"""Standard deviation, before damping, of the noise in each weight, that of all steps added up."""

ROWS = 1000
"""Records at a time."""

_SCALE = NORM**2 + 1
"""Squared norm of an input: features of norm 8, and the 1 that the bias multiplies."""

NEEDS_FEATURES = "needs features of a fixed norm; add `features` unit, or a map that suits the records"

NO_TICKET = "`head`: least-squares fits a whole layer, and no ticket; name `dense` without SET"

_SETTLED = (
    "filter", "clip_norm", "clip_quantile", "tanh_scale", "tanh_range", "no_pre_clip", "microbatch", "class_weight",
    "epochs", "steps", "batch_size", "sampling", "lr", "optimizer", "schedule", "average", "budget_stop", "centre",
    "compile", "audit", "precision",
)  # fmt: skip
"""Options that the head settles, or has no use for."""


def check_options(options: TrainOptions) -> None:
    """Raise InputError for options that do not go with the head."""
    for item in fields(TrainOptions):
        if item.name in _SETTLED and getattr(options, item.name) != item.default:
            raise InputError(
                f"`{item.name}`: has no use with `head` least-squares, which has nothing to tune; leave it out"
            )
    if options.noise == "nominal" or options.noise.startswith("banded"):
        raise InputError(f"`noise`: {options.noise} is not for `head` least-squares; take secure or fast")


def settled(options: TrainOptions, start: StartingPoint, dataset: Dataset) -> TrainOptions:
    """Return the options of the training that the head amounts to: all records in every step."""
    if start.tickets is not None:
        raise InputError(NO_TICKET)
    check_quantities(dataset, "`head` least-squares", "take `head` dp-sgd")
    if dataset.feature_map is None:
        raise InputError(f"`head`: least-squares {NEEDS_FEATURES}")
    if start.spec.text != "mlp":
        raise InputError(f"`head`: least-squares fits one layer, and no {start.spec.text}; leave `model` out")
    return replace(options, steps=STEPS, batch_size=float(dataset.records))


@dataclass(frozen=True)
class Before:
    """Releases before the steps of a training: mean and second moments of features; None where there is no such release."""

    mean: GaussianRelease | None = None
    second: GaussianRelease | None = None

    @property
    def mechanisms(self) -> tuple[GaussianRelease, ...]:
        """Mechanisms that there are, in the order in which they are drawn."""
        return tuple(each for each in (self.mean, self.second) if each is not None)


def releases(dataset: Dataset, draft: NoisySgd, whole: float, bits: Bits) -> Before:
    """Return the releases before the Newton steps; ``whole`` is the multiplier of one that would spend all the budget."""
    twice = 2.0 if draft.adjacency == "replace-one" else 1.0

    def release(share: float, sensitivity: float) -> GaussianRelease:
        return GaussianRelease(whole / math.sqrt(share), sensitivity * twice, adjacency=draft.adjacency, bits=bits)

    mean, second = release(MEAN_SHARE, NORM), release(SECOND_SHARE, SENSITIVITY)
    inputs, std = dataset.features + 1, second.noise_std
    # All of it is public: the rule looks at no record.
    measurable = std <= MAX_NOISE and REACH * edge(inputs, std) <= dataset.records
    return Before(mean, second if measurable and inputs <= MOST_INPUTS else None)


def for_steps(options: TrainOptions, made: Before) -> TrainOptions:
    """Return the options that settle the noise of the steps: a stated noise multiplier is that of the whole.

    Guarantees:
        Gaussian mechanisms of noise multipliers s_i cost what one of s does, with 1/s^2 the sum of all 1/s_i^2. Shares f
        and g of mean and second moments take f/s^2 and g/s^2, and T steps of multiplier s sqrt(T/(1 - f - g)) the rest.
    """
    if options.noise_multiplier is None:
        return options
    rest = 1 - MEAN_SHARE - (SECOND_SHARE if made.second is not None else 0.0)
    return replace(options, noise_multiplier=options.noise_multiplier * math.sqrt(STEPS / rest))


def step_size(plan: NoisySteps) -> float:
    """At which the noise of all steps adds up to ``SPREAD`` in each weight; with little noise, that of 2-Gaussian-DP."""
    root, noise_std = math.sqrt(plan.mechanism.steps), plan.mechanism.noise_std
    return SPREAD * plan.expected_batch / (max(noise_std, root * CLIP_NORM.default / 2) * root)


def shrunk(centre: torch.Tensor, noise_std: float, records: int) -> torch.Tensor:
    """Return a released mean, shrunk by its noise: post-processing (James and Stein 1961, positive part)."""
    noise, power = len(centre) * (noise_std / records) ** 2, float(centre.double().square().sum())
    return centre * max(0.0, 1 - noise / power) if power > 0 else centre


def second_moments(release: GaussianRelease, dataset: Dataset, opened: Arrays, noise: RandomSource) -> torch.Tensor:
    """Make the release, which is on record already, of features that are centred here."""
    return release_second_moments(_inputs(dataset, opened), dataset.features + 1, release.noise_std, noise)


def newton(
    start: StartingPoint, dataset: Dataset, release: GaussianRelease | None, second: torch.Tensor | None
) -> NewtonSteps:
    """Return the steps for released second moments, or for none."""
    noise_std = 0.0 if release is None else release.noise_std
    return NewtonSteps(list(start.model.parameters()), second, noise_std, _SCALE / dataset.records)


def head_facts(options: TrainOptions, second: GaussianRelease | None) -> dict[str, Any]:
    """Facts of the head."""
    told = None if second is None else {"noise_multiplier": second.noise_multiplier}
    return {"head": options.head, "optimizer": "newton", "second_moments": told}


def releases_note(second: GaussianRelease | None, dataset: Dataset) -> str:
    """Return the note on how the budget was shared; None for second moments that are left out."""
    parts = [f"{100 * MEAN_SHARE:g} % for the mean of features"]
    parts += [] if second is None else [f"{100 * SECOND_SHARE:g} % for their second moments"]
    left = ""
    if second is None and dataset.features >= MOST_INPUTS:
        left = f"; second moments are left out above {MOST_INPUTS - 1:,} features, and accuracy may suffer: take fewer"
    elif second is None:
        left = "; second moments would be less than their noise, so they are left out"
    return f"`head` least-squares spends {', '.join(parts)}, and the rest on {STEPS} Newton steps{left}"


def _inputs(dataset: Dataset, opened: Arrays) -> Iterator[torch.Tensor]:
    """Inputs of the layer, bias included, over their norm; of a person the mean over what they gave, no longer than that."""
    feature_map, done = dataset.feature_map, 0
    assert feature_map is not None
    for some in pieces(opened.x, ROWS):
        rows, labels = torch.from_numpy(np.array(some)).float(), torch.tensor(opened.y[done : done + len(some)])
        done += len(some)
        if labels.ndim > 1:
            there = (labels != ABSENT).float()[..., None]
            each = feature_map.centred(rows.flatten(0, 1)).view(rows.shape) * there
            rows = each.sum(1) / there.sum(1).clamp_min(1)
        else:
            rows = feature_map.centred(rows)
        yield torch.cat([rows, torch.ones(len(rows), 1)], dim=1) / math.sqrt(_SCALE)
