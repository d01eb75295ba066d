"""A dictionary of patches of painted scenes, and directions along which scenes differ in it: from a seed alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Generator, Tensor
from torch.nn import functional

from dpltm.features.drawings.learning import directions, one_thread
from dpltm.features.photographs.dictionary import CONTRAST, PATCH, units_of
from dpltm.features.photographs.leaves import SIDE
from dpltm.features.photographs.scenes import draw_views

ROUNDS = 8
"""Of k-means."""

SCENES = 80
"""Scenes and things that are painted at a time."""

SAMPLE = 6_000
"""Images that patches and directions are taken from, about, each of a scene of its own."""

PATCHES = 60_000
"""Patches that are taken from them."""

SIZE = 256
"""Patches of the dictionary."""

EVEN = 0.1
"""Added to variances before whitening, as a share of their mean."""

DIRECTIONS, WHITENING = 400, 0.25
"""Principal components that are kept, and the power of their variance that they are divided by."""

BATCH = 50
"""Images at a time."""


def make(seed: int, rounds: int = ROUNDS, step: Callable[[int, str], None] | None = None) -> dict[str, np.ndarray]:
    """The tensors of the bundled file, float16: ``filters`` and ``offset`` of patches, ``mean`` and ``directions`` of units.

    Args:
        seed: public.
        rounds: of k-means.
        step: told of the rounds done, with a note.
    """
    with one_thread():
        generator = Generator().manual_seed(seed)
        images = torch.cat([draw_views(SCENES, 1, generator) for _ in range(max(1, SAMPLE // SCENES))])
        filters, offset = (part.half() for part in dictionary(patches(images, generator), rounds, generator, step))
        units = torch.cat([units_of(some, filters.float(), offset.float()) for some in images.split(BATCH)])
        mean, found = (part.half() for part in directions(units, DIRECTIONS, WHITENING))
    tensors = {"filters": filters, "offset": offset, "mean": mean, "directions": found}
    return {name: value.contiguous().numpy() for name, value in tensors.items()}


def patches(images: Tensor, generator: Generator) -> Tensor:
    """Patches from anywhere, each less its mean and over its deviation: ``(PATCHES, 3 * PATCH**2)``."""
    which = torch.randint(len(images), (PATCHES,), generator=generator)
    top, left = torch.randint(SIDE - PATCH + 1, (2, PATCHES), generator=generator)
    reach = torch.arange(PATCH)
    rows, columns = (top[:, None] + reach)[:, :, None], (left[:, None] + reach)[:, None, :]
    taken = images.permute(0, 2, 3, 1)[which[:, None, None], rows, columns].permute(0, 3, 1, 2).flatten(1)
    taken = taken - taken.mean(1, keepdim=True)
    return taken / (taken.square().mean(1, keepdim=True) + CONTRAST).sqrt()


def dictionary(
    taken: Tensor, rounds: int, generator: Generator, step: Callable[[int, str], None] | None = None
) -> tuple[Tensor, Tensor]:
    """Filters and offset of a dictionary: directions of whitened patches, by k-means on the sphere.

    Args:
        taken: ``(n, 3 * PATCH**2)`` patches.
        rounds: of k-means.
        generator: says which patches it starts from.
        step: see :func:`make`.
    """
    mean = taken.mean(0)
    values, vectors = torch.linalg.eigh(((taken - mean).T @ (taken - mean) / len(taken)).double())
    whitening = (vectors / (values + EVEN * values.mean()).sqrt() @ vectors.T).float()
    white = functional.normalize((taken - mean) @ whitening, dim=1)
    middles = white[torch.randperm(len(white), generator=generator)[:SIZE]]
    for done in range(rounds):
        likeness, nearest = (white @ middles.T).max(1)
        sums = torch.zeros_like(middles).index_add_(0, nearest, white)
        middles = torch.where(sums.norm(dim=1, keepdim=True) > 0, functional.normalize(sums, dim=1), middles)
        if step is not None:
            step(done + 1, f"{float(likeness.mean()):.0%} alike")
    filters = middles @ whitening
    offset = filters @ mean
    filters = filters - filters.mean(1, keepdim=True)  # a patch has its own mean taken off: folded in here
    return filters.view(SIZE, 3, PATCH, PATCH), offset
