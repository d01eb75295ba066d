"""For PyTorch users: a training loop of their own, made private in three lines.

    private = PrivateLoop(model, loss, x, y, batch_size=400, steps=3000, epsilon=1.0, delta=1e-5)
    for step in private:
        step.backward()        # in place of: for batch in loader ... loss.backward()
        optimizer.step()
    print(private.report().certified.epsilon)

One object draws the samples, bounds and sums the gradients, adds the noise and enters the event that pays for it, all from
the same rate, bound and number of steps: they cannot disagree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np
from torch import Tensor, nn

from dpltm.errors import BudgetError, InputError
from dpltm.filters import Clip, Filter
from dpltm.gradients import Loss
from dpltm.masks import Mask
from dpltm.noise import RandomSource, SecureSource
from dpltm.privacy.calibration import calibrate_noise
from dpltm.privacy.events import UNKNOWN_RECORDS, DatasetRef, TrainingEvent
from dpltm.privacy.ledger import Ledger, check_budgets
from dpltm.privacy.mechanisms import Adjacency, NoisySgd
from dpltm.privacy.parts import OnRecord, total_epsilon
from dpltm.privacy.report import PrivacyReport, report
from dpltm.sampling import Records
from dpltm.training import NoisyGradients, TrainingConfig, nominal_sensitivity, sensitivity


class Step:
    """One step of a ``PrivateLoop``, good for one gradient while it is the current one.

    Attributes:
        number: from 1.
    """

    def __init__(self, loop: PrivateLoop, number: int) -> None:
        self.number = number
        self._loop: PrivateLoop | None = loop

    def backward(self) -> None:
        """Draws a sample and leaves its noisy mean gradient in every parameter's ``grad``, replacing what was there.

        Raises:
            InputError: the step has had its gradient, or is over.
        """
        if self._loop is None:
            raise InputError(f"step {self.number}: its one gradient was taken, or the loop has moved on; call it once")
        loop, self._loop = self._loop, None
        loop._gradients.backward()

    def _end(self) -> None:
        self._loop = None


class PrivateLoop:
    """A private training loop over ``(x, y)``, iterated once: every step gives one noisy gradient.

    Args:
        model: as PyTorch has it; see ``RecordGradients`` for what it may hold. Its pruned weights are zeroed.
        loss: from outputs and labels to one value a record (``reduction="none"``).
        x: features ``(n, ...)``, a tensor, an array or a ``numpy.memmap``, of any dtype; private.
        y: labels ``(n, ...)``; private.
        batch_size: expected records a step; each enters with probability ``batch_size / records``.
        steps: number of gradients, T, at most.
        delta: of the guarantee; below 1 / records.
        noise_multiplier: noise standard deviation over the sensitivity; or
        epsilon: whole budget: what the ledger holds for these records is part of it, and the noise is calibrated to the
            rest.
        filter: what every record's gradient goes through.
        mask: live coordinates; None for all. One that was made from the records is not covered.
        records: public number of records, where ``len(x)`` is not.
        ledger: where the event is entered when the loop begins; None for one of its own.
        dataset: which records these are, so that a shared ledger can tell them from others.
        adjacency: neighbouring relation.
        prepare: makes rows of ``x`` as stored into what the model takes, each row alone.
        physical_batch: most records in the network at once; None takes what fits some memory.
        compile, precision: see ``TrainingConfig``.
        sampling, noise: random bits; anything but the default is for tests.

    Raises:
        InputError: anything that cannot be trained privately as it stands, before budget is spent or a record is read
            for anything but its shape; later only where the model or the loss fails on a record.
        BudgetError: epsilon is not above what the ledger already holds.

    Guarantees:
        What the loop puts into ``grad`` is (epsilon, delta)-DP as ``report`` states, for one record under ``adjacency``, and
        so is everything computed from it. Anything else that a program computes from x and y is its own affair.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        x: Tensor | np.ndarray,
        y: Tensor | np.ndarray,
        *,
        batch_size: float,
        steps: int,
        delta: float,
        noise_multiplier: float | None = None,
        epsilon: float | None = None,
        filter: Filter = Clip(1.0),  # noqa: B008  (a frozen value)
        mask: Mask | None = None,
        records: int | None = None,
        ledger: Ledger | None = None,
        dataset: DatasetRef = UNKNOWN_RECORDS,
        adjacency: Adjacency = "add-remove",
        prepare: Callable[[Tensor], Tensor] | None = None,
        physical_batch: int | None = None,
        compile: bool = False,
        precision: Literal["float32", "bfloat16"] = "float32",
        sampling: RandomSource | None = None,
        noise: RandomSource | None = None,
    ) -> None:
        count = len(x) if records is None else records
        if (noise_multiplier is None) == (epsilon is None):
            raise InputError("noise_multiplier, epsilon: give one of them")
        if adjacency not in ("add-remove", "replace-one"):
            raise InputError(f"adjacency: unknown {adjacency!r}; known: add-remove, replace-one")
        if not 0 < batch_size <= count:
            raise InputError(f"batch_size: {batch_size} is not between 0 and the {count} records")
        most = max(count, len(x))
        if not 0 < delta < 1 / most:
            raise InputError(f"delta: {delta} is not between 0 and 1/{most}: it must be below one over the records")
        if noise_multiplier is not None and not (noise_multiplier >= 0 and math.isfinite(noise_multiplier)):
            raise InputError(f"noise_multiplier: {noise_multiplier} is not a finite number from 0 up")
        if epsilon is not None and not (epsilon > 0 and math.isfinite(epsilon)):
            raise InputError(f"epsilon: {epsilon} is not a positive number")
        like = next(model.parameters(), None)
        if like is None:
            raise InputError("model: has no parameters")
        source = Records(x, y, dtype=like.dtype, device=like.device, prepare=prepare)
        rate = batch_size / count
        config = TrainingConfig(
            filter, rate, steps, batch_size, 0.0, 1.0, "sgd", physical_batch, compile, precision
        )  # the optimizer is the caller's
        whole = Mask.dense(model) if mask is None else mask
        draw = {"sampling": sampling or SecureSource(), "noise": noise or SecureSource()}
        self._gradients = NoisyGradients(model, whole, loss, source, config, **draw)
        live = self._gradients.gradients.live
        if live == 0:
            raise InputError("mask: prunes every parameter that is not frozen, so there is nothing to train")
        mechanism = NoisySgd(
            rate,
            steps,
            noise_multiplier or 0.0,
            sensitivity(filter, live, adjacency),
            nominal_sensitivity(filter, adjacency),
            adjacency=adjacency,
        )
        self.ledger = Ledger() if ledger is None else ledger
        before = self.ledger.touching(dataset)
        if epsilon is not None:
            mechanism = calibrate_noise(epsilon, delta, mechanism, OnRecord(dataset, before))
        event = TrainingEvent(dataset, mechanism, str(filter), live)
        total_epsilon((*before, event), delta, unit=mechanism.unit)  # refuses what the accountant cannot take
        check_budgets(self.ledger.events, (event,))
        self._gradients.noise_std = mechanism.noise_std
        self._budget = epsilon
        self.event, self.delta, self._counted, self._begun = event, delta, records is None, False

    def __len__(self) -> int:
        return self.event.mechanism.steps

    def __iter__(self) -> Iterator[Step]:
        """Enters the event, then yields the steps, one after the other.

        Raises:
            InputError: the loop has run; another costs another event.
            BudgetError: the ledger has come to hold more since, and both exceed the budget.
        """
        before = self.ledger.touching(self.event.dataset)
        if self._begun:
            raise InputError("PrivateLoop: it has run, and paid for that; make another one to train on")
        if self._budget is not None:  # the ledger may hold more than when the noise was calibrated
            total = total_epsilon((*before, self.event), self.delta, unit=self.event.mechanism.unit)
            if total > self._budget:
                raise BudgetError(
                    f"epsilon: with what the ledger holds by now this comes to {total:.4g}, above the budget of"
                    f" {self._budget:g}; make the loop anew"
                )
        self.ledger.append(self.event)
        self._begun = True
        return self._steps()

    def _steps(self) -> Iterator[Step]:
        for number in range(1, self.event.mechanism.steps + 1):
            step = Step(self, number)
            yield step
            step._end()

    def report(self) -> PrivacyReport:
        """Certified and nominal epsilon of everything in the ledger on these records; of the plan, before the loop runs."""
        events = self.ledger.touching(self.event.dataset)
        notes = ["the number of records was counted and is treated as public; say records=... to keep it private"]
        return report(
            events if self._begun else (*events, self.event),
            self.delta,
            self.event.mechanism.adjacency,
            notes if self._counted else [],
            unit=self.event.mechanism.unit,
        )
