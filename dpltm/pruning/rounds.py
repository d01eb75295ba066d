"""The rounds of DPLTM's Algorithm 1, phase 1: train, prune, rewind; between two steps they may end, and go on elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from dpltm.errors import ArtifactError, InputError
from dpltm.networks import ModelSpec, build
from dpltm.networks.content import pack
from dpltm.networks.masks import Mask
from dpltm.pruning import CRITERIA, PruningRound, Schedule
from dpltm.training.checkpoint import AGAIN, Checkpoint
from dpltm.training.evaluation import accuracy
from dpltm.training.plain import Batches, Inputs, dropping, train_plain

if TYPE_CHECKING:
    from dpltm.pruning.generation import GenerationConfig


@dataclass(frozen=True)
class Ticket:
    """One candidate: a mask, and the network that was trained under it.

    Attributes:
        round: 0 is the dense network, r the mask after r prunings.
        mask: live coordinates.
        accuracy: fraction right of ``predictor`` on the evaluation records it was measured on; None if not measured. Those
            may be private, so a ticket's text (``repr``) leaves it out.
        predictor: parameters at the end of the round's training, pruned ones zero; it is what selection scores. None if
            nothing was trained.
    """

    round: int
    mask: Mask
    accuracy: float | None = field(repr=False)
    predictor: dict[str, Tensor] | None = field(repr=False)


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """A copy of every parameter."""
    return {name: value.detach().clone() for name, value in model.named_parameters()}


class Rounds:
    """Train, prune, rewind, round after round.

    Args:
        spec: the network.
        x: scaled features, ``(n, features)`` float32.
        y: labels, ``(n,)`` int64.
        config: the settings.
        schedule: live weights after each round.
        evaluation: records that accuracies are measured on; None for no accuracies.
        dropout: share of the last layer's inputs that each training step leaves out.

    Attributes:
        theta0: what tickets start from.
        tickets: of the rounds that are done.
    """

    def __init__(
        self,
        spec: ModelSpec,
        x: Inputs,
        y: Tensor,
        config: GenerationConfig,
        schedule: Schedule,
        evaluation: tuple[Inputs, Tensor] | None,
        dropout: float,
    ) -> None:
        self._x, self._y, self._config, self._schedule, self._evaluation = x, y, config, schedule, evaluation
        self._model, self._dropout = build(spec, config.seed), dropout
        self._initial = self.theta0 = weights_of(self._model)
        self._batches = Batches(len(x), config.batch_size, torch.Generator().manual_seed(config.seed + 2**32))
        self._left_out = torch.Generator().manual_seed(config.seed + 2**33)
        self._mask, self.tickets = Mask.dense(self._model), list[Ticket]()
        self._passed = 0  # steps of the training that goes on: of a round, or of the one to rewind to
        self._rewound = not config.rewind

    def run(
        self, progress: Callable[[int, int], None] | None = None, between: Callable[[], object] | None = None
    ) -> None:
        """All rounds that are left.

        Args:
            progress: called with steps done and steps in all.
            between: called after that; here ``checkpoint`` may be asked for.

        Raises:
            InputError: training diverged before the step to rewind to.
        """
        config = self._config
        if not self._rewound:
            self._train(config.rewind, progress, between)
            self._rewind_to_here()
        while True:
            self._train(config.iterations - config.rewind, progress, between)
            score = None if self._evaluation is None else accuracy(self._model, *self._evaluation)
            self.tickets.append(Ticket(len(self.tickets), self._mask, score, weights_of(self._model)))
            if len(self.tickets) == len(self._schedule):
                return
            self._prune()

    def checkpoint(self) -> Checkpoint:
        """Where they are."""
        epoch, taken = self._batches.state()
        masks = {f"masks/{ticket.round}": ticket.mask for ticket in self.tickets} | {"mask": self._mask}
        weights = {f"predictors/{ticket.round}": ticket.predictor or {} for ticket in self.tickets}
        weights |= {"theta0": self.theta0, "model": dict(self._model.named_parameters())}
        return Checkpoint(
            f"round {len(self.tickets)}, step {self._passed}",
            {
                "scores": [ticket.accuracy for ticket in self.tickets],
                "passed": self._passed,
                "rewound": self._rewound,
                "taken": taken,
            },
            {
                "epoch": epoch.numpy(),
                "left_out": self._left_out.get_state().numpy(),
                **{f"{part}/{name}": pack(value) for part, mask in masks.items() for name, value in mask.items()},
                **{
                    f"{part}/{name}": value.detach().numpy()
                    for part, values in weights.items()
                    for name, value in values.items()
                },
            },
        )

    def resume(self, held: Checkpoint) -> None:
        """Goes on from a checkpoint of the same rounds.

        Raises:
            ArtifactError: it is damaged.
        """
        try:
            state, tensors = held.state, held.tensors
            self.theta0 = self._weights(tensors, "theta0")
            self._model.load_state_dict(self._weights(tensors, "model"))
            self._mask = self._unpacked(tensors, "mask")
            self.tickets = [
                Ticket(number, self._unpacked(tensors, f"masks/{number}"), score, self._weights(tensors, part))
                for number, score in enumerate(state["scores"])
                for part in [f"predictors/{number}"]
            ]
            self._passed, self._rewound = int(state["passed"]), bool(state["rewound"])
            self._batches.resume(torch.from_numpy(tensors["epoch"].copy()), int(state["taken"]))
            self._left_out.set_state(torch.from_numpy(tensors["left_out"].copy()))
        except (KeyError, IndexError, TypeError, ValueError, RuntimeError):
            raise ArtifactError(f"checkpoint: damaged, or of another version; {AGAIN}") from None

    def _weights(self, tensors: Mapping[str, np.ndarray], part: str) -> dict[str, Tensor]:
        return {name: torch.from_numpy(tensors[f"{part}/{name}"].copy()) for name in self._initial}

    def _unpacked(self, tensors: Mapping[str, np.ndarray], part: str) -> Mask:
        bits = {
            name: np.unpackbits(tensors[f"{part}/{name}"], count=value.numel()).astype(bool)
            for name, value in self._initial.items()
        }
        return Mask({name: torch.from_numpy(values).view_as(self._initial[name]) for name, values in bits.items()})

    def _train(
        self, steps: int, progress: Callable[[int, int], None] | None, between: Callable[[], object] | None
    ) -> None:
        config, already = self._config, self._passed
        done = len(self.tickets) * (config.iterations - config.rewind) + (config.rewind if self._rewound else 0)

        def report(number: int) -> None:
            self._passed = already + number
            if progress is not None:
                progress(done + self._passed, config.steps)
            if between is not None:
                between()

        with dropping(self._model, self._dropout, self._left_out):
            train_plain(self._model, self._mask, self._x, self._y, self._batches, steps - already, config.lr, report)
        self._passed = 0

    def _rewind_to_here(self) -> None:
        self.theta0, self._rewound = weights_of(self._model), True
        if not all(bool(value.isfinite().all()) for value in self.theta0.values()):
            raise InputError(
                f"`lr`: training diverged within the {self._config.rewind} steps of `rewind`; take a smaller one"
            )

    def _prune(self) -> None:
        """The next mask, over theta0."""
        number, config = len(self.tickets), self._config
        live, prune = self._schedule[number], CRITERIA[config.criterion].next_mask
        given = PruningRound(
            self._model, self._initial, self._mask, live, config.scope, self._x[:1], config.seed, config.groups
        )
        self._mask = prune(given)
        self._model.load_state_dict(self.theta0)
        self._mask.apply(self._model)
