"""Training the encoder to tell drawings apart, and directions of its units along which they differ: from drawings alone.

Every step sees kinds that are new, some drawings of each, and learns which belong together (supervised contrastive loss,
Khosla et al. 2020). Nothing is read: what comes out is a function of the seed, and of how torch rounds on this machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from dpltm.features.drawings.feature_map import UNITS, Encoder
from dpltm.features.drawings.strokes import draw, draw_kinds
from dpltm.features.normalisation import principal_axes

STEPS = 2000
"""Of training. Three times as many tell drawings apart better, and serve images of other kinds worse."""

KINDS, EACH = 96, 3
"""New kinds in a step, and drawings of each."""

TEMPERATURE, RATE, DECAY, WARMUP = 0.2, 2e-3, 1e-4, 100
"""Of the loss; of AdamW, whose rate rises for so many steps and then falls along a cosine."""

HEAD = 256
"""Numbers that the loss compares: a linear map of the units, left behind after training."""

THREADS = 1
"""On whatever machine: the order of sums, and with it the last bits, depends on it."""

SAMPLE = 20_000
"""Drawings that directions are taken from, about, each of a kind of its own."""

DIRECTIONS, WHITENING = 400, 0.4
"""Principal components that are kept, and the power of their variance that they are divided by."""


def make(seed: int, steps: int = STEPS, step: Callable[[int, str], None] | None = None) -> dict[str, np.ndarray]:
    """The tensors of the bundled file, float16: the encoder's, ``mean`` and ``directions`` of its units.

    Args:
        seed: public.
        steps: of training.
        step: told of the steps done, with a note.
    """
    with one_thread():
        encoder = learn(seed, steps, step)
        narrow = {name: value.detach().half() for name, value in encoder.state_dict().items()}
        encoder.load_state_dict({name: value.float() for name, value in narrow.items()})
        narrow["mean"], narrow["directions"] = (
            part.half() for part in directions(units_of_drawings(encoder, seed + 1))
        )
    return {name: value.contiguous().numpy() for name, value in narrow.items()}


@contextmanager
def one_thread() -> Iterator[None]:
    """What is within computes with ``THREADS``; as many as before afterwards."""
    threads = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def learn(seed: int, steps: int = STEPS, step: Callable[[int, str], None] | None = None) -> Encoder:
    """An encoder trained on drawings.

    Args:
        seed: public; decides weights and drawings.
        steps: of training.
        step: told of the steps done, and of how many drawings have one of their kind as nearest neighbour.
    """
    generator = Generator().manual_seed(seed)
    encoder, head = Encoder(), nn.Linear(UNITS, HEAD)
    for module in (*encoder.modules(), head):
        _initialise(module, generator)
    encoder.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.AdamW([*encoder.parameters(), *head.parameters()], lr=RATE, weight_decay=DECAY)
    kind = torch.arange(KINDS).repeat(EACH)
    for done in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, (done + 1) / WARMUP) * (1 + math.cos(math.pi * done / steps)) / 2
        images = draw(draw_kinds(KINDS, generator)[kind], generator)
        with torch.autocast("cpu", torch.bfloat16):
            units = encoder(images.contiguous(memory_format=torch.channels_last))
        near = functional.normalize(head(units.float()), dim=1)
        likeness = (near @ near.T / TEMPERATURE).fill_diagonal_(-math.inf)
        others = ~torch.eye(len(kind), dtype=torch.bool)
        same = (kind[:, None] == kind) & others
        loss = -torch.log_softmax(likeness, 1)[same].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step is not None:
            found = float((kind[likeness.argmax(1)] == kind).float().mean())
            step(done + 1, f"{found:.0%} recognised")
    return encoder


def directions(units: Tensor, count: int = DIRECTIONS, whitening: float = WHITENING) -> tuple[Tensor, Tensor]:
    """Mean, and the first principal components, each over its variance to a power.

    Args:
        units: ``(n, width)`` float32, of made-up images.
        count: of components.
        whitening: the power.
    """
    mean, variances, vectors = principal_axes(units, count)
    scaled = vectors / variances.clamp_min(1e-9 * float(variances[0])) ** whitening
    return mean.float(), scaled.T.contiguous().float()


def units_of_drawings(encoder: Encoder, seed: int) -> Tensor:
    """Units of drawings that the encoder has not seen, ``(SAMPLE, UNITS)``."""
    generator = Generator().manual_seed(seed)
    with torch.no_grad():
        return torch.cat([encoder(draw(draw_kinds(KINDS, generator, 0.0), generator)) for _ in range(SAMPLE // KINDS)])


def _initialise(module: nn.Module, generator: Generator) -> None:
    """Uniform weights of variance 2 / inputs (He et al. 2015), zero biases."""
    if isinstance(module, (nn.Conv2d, nn.Linear)):
        nn.init.kaiming_uniform_(module.weight, nonlinearity="relu", generator=generator)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
