"""What a ``PrivateLoop`` is to be: its settings, their types, and what ranks of one loop must have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

import numpy as np
from torch import Tensor, nn

from dpltm.errors import InputError
from dpltm.filters import Clip, Filter
from dpltm.networks.content import content_id
from dpltm.networks.masks import Mask
from dpltm.options import arguments, check_required
from dpltm.options.train import LoopOptions
from dpltm.privacy.checks import check_count, check_delta_of, check_epsilon, check_noise
from dpltm.privacy.ledger import Ledger
from dpltm.privacy.mechanisms import Adjacency
from dpltm.randomness.noise import RandomSource, SecureSource
from dpltm.training.descent import TrainingConfig
from dpltm.training.ranks import Ranks, environment, rows_digest


@dataclass(frozen=True, kw_only=True)
class LoopSettings(LoopOptions):
    """What a loop is to be, all of it public: the fields of ``LoopOptions``, and values that are no options of a command.

    Attributes:
        filter: what every record's gradient goes through.
        mask: live coordinates; None for all. What it depends on is said by the loop's ``lineage`` or ``provenance``.
        prepare: makes rows of ``x`` as stored into what the model takes, each row alone.
        sampling, noise: random bits; anything but the default is for tests.
    """

    batch_size: float  # what is needed is there: see ``of``
    steps: int
    delta: float
    adjacency: Adjacency
    precision: Literal["float32", "bfloat16"]
    filter: Filter = Clip(1.0)  # noqa: RUF009  (a frozen value)
    mask: Mask | None = None
    prepare: Callable[[Tensor], Tensor] | None = None
    sampling: RandomSource = field(default_factory=SecureSource)
    noise: RandomSource = field(default_factory=SecureSource)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> LoopSettings:
        """Settings by name; None stands for the default.

        Raises:
            InputError: a name that there is none of, with the nearest that there is; one that is needed is missing; or a
                value of the wrong type, or out of range whatever the records.
        """
        objects = {name: given[name] for name in _OBJECTS if given.get(name) is not None}
        for name, value in objects.items():
            check_type(name, value)
        others = {name: value for name, value in given.items() if name not in _OBJECTS}
        options = arguments(LoopOptions, others, _OBJECTS)
        check_required(options)
        check_count("steps", options.steps)
        check_count("physical_batch", options.physical_batch)
        if options.records is not None and options.records < 1:
            raise InputError(f"`records`: {options.records} is not a positive whole number")
        if (options.noise_multiplier is None) == (options.epsilon is None):
            raise InputError("`noise_multiplier`, `epsilon`: give one of them")
        check_noise(options.noise_multiplier)
        check_epsilon("epsilon", options.epsilon)
        return cls(**asdict(options), **objects)

    def check(self, count: int, at_hand: int) -> None:
        """Raises InputError for what does not suit so many records.

        Args:
            count: their public number.
            at_hand: how many there are.
        """
        if not 0 < self.batch_size <= count:
            raise InputError(f"`batch_size`: {self.batch_size:g} is not between 0 and the {count} records")
        check_delta_of(self.delta, count, at_hand)

    def config(self, rate: float) -> TrainingConfig:
        """The training at a sampling rate, but for its noise; the optimizer is the caller's."""
        return TrainingConfig(
            filter=self.filter,
            sampling_rate=rate,
            steps=self.steps,
            expected_batch=self.batch_size,
            noise_std=0.0,
            lr=1.0,
            physical_batch=self.physical_batch,
            compile=self.compile,
            precision=self.precision,
            kernels=self.kernels,
            microbatch=self.microbatch,
        )


_OBJECTS = ("filter", "mask", "prepare", "sampling", "noise")
"""Settings that are no options of a command."""

_KINDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "model": (lambda value: isinstance(value, nn.Module), "a torch.nn.Module"),
    "loss": (callable, "a function of outputs and labels"),
    "ledger": (lambda value: isinstance(value, Ledger), "a dpltm.Ledger"),
    "filter": (lambda value: hasattr(type(value), "certified_bound"), "a filter of dpltm.filters.make_filter"),
    "mask": (lambda value: isinstance(value, Mask), "a dpltm.networks.masks.Mask"),
    "prepare": (callable, "a function of rows"),
    "sampling": (lambda value: hasattr(value, "random_bytes"), "a source of random bytes"),
    "noise": (lambda value: hasattr(value, "random_bytes"), "a source of random bytes"),
}


def check_type(name: str, value: object) -> None:
    """Raises InputError for a value of another type; records may be in it, so it is not said."""
    fits, wanted = _KINDS[name]
    if not fits(value):
        raise InputError(f"`{name}`: of type {type(value).__name__}, not {wanted}")


def agree(
    ranks: Ranks,
    model: nn.Module,
    mask: Mask,
    given: LoopSettings,
    x: Tensor | np.ndarray,
    y: Tensor | np.ndarray,
) -> None:
    """Raises InputError on all ranks unless they have the same model, mask, settings and records.

    Args:
        ranks: of the loop.
        model, mask: that it trains.
        given: its settings.
        x, y: its records.
    """
    options = {f"`{item.name}`": repr(getattr(given, item.name)) for item in fields(LoopOptions)}
    weights = {name: value.detach().cpu().numpy() for name, value in model.named_parameters()}
    private = {
        "`x`, `y`": rows_digest(x, y),
        "model": content_id(weights),
        "`mask`": content_id({name: value.cpu().numpy() for name, value in mask.items()}),
    }
    facts = {"`filter`": str(given.filter), "`noise`": type(given.noise).__name__}
    ranks.agree(options | facts | environment(), private)
