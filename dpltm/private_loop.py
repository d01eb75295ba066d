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

import difflib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, Literal

import numpy as np
from torch import Tensor, nn

from dpltm.errors import BudgetError, InputError
from dpltm.filters import Clip, Filter
from dpltm.gradients import Loss
from dpltm.masks import Mask
from dpltm.noise import RandomSource, SecureSource
from dpltm.privacy.calibration import calibrate_noise
from dpltm.privacy.events import UNKNOWN_RECORDS, DatasetRef, TrainingEvent
from dpltm.privacy.ledger import Ledger, check_budgets, touching
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


@dataclass(frozen=True, kw_only=True)
class LoopSettings:
    """What a loop is to be, all of it public.

    Attributes:
        batch_size: expected records a step; each enters with probability ``batch_size / records``.
        steps: number of gradients, T, at most.
        delta: of the guarantee; below 1 / records.
        noise_multiplier: noise standard deviation over the sensitivity; or
        epsilon: whole budget: what the ledger holds for these records is part of it, and the noise is calibrated to the
            rest.
        filter: what every record's gradient goes through.
        mask: live coordinates; None for all. One that was made from the records is not covered.
        records: public number of records, where ``len(x)`` is not.
        adjacency: neighbouring relation.
        prepare: makes rows of ``x`` as stored into what the model takes, each row alone.
        physical_batch: most records in the network at once; None takes what fits some memory.
        compile, precision: see ``TrainingConfig``.
        sampling, noise: random bits; anything but the default is for tests.
    """

    batch_size: float
    steps: int
    delta: float
    noise_multiplier: float | None = None
    epsilon: float | None = None
    filter: Filter = Clip(1.0)  # noqa: RUF009  (a frozen value)
    mask: Mask | None = None
    records: int | None = None
    adjacency: Adjacency = "add-remove"
    prepare: Callable[[Tensor], Tensor] | None = None
    physical_batch: int | None = None
    compile: bool = False
    precision: Literal["float32", "bfloat16"] = "float32"
    sampling: RandomSource | None = None
    noise: RandomSource | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> LoopSettings:
        """Settings by name.

        Raises:
            InputError: a name that there is none of, with the nearest that there is, or one that is needed is missing.
        """
        known = {item.name: item for item in fields(cls)}
        for name in given:
            if name not in known:
                near = difflib.get_close_matches(name, list(known), n=1)
                raise InputError(f"`{name}`: no such setting" + (f"; did you mean `{near[0]}`?" if near else ""))
        for name, item in known.items():
            if name not in given and item.default is MISSING:
                raise InputError(f"`{name}` is missing: a loop needs it")
        return cls(**given)

    def check(self, n_records: int, count: int) -> None:
        """Raises InputError for what is out of range.

        Args:
            n_records: records that there are.
            count: their public number.
        """
        if (self.noise_multiplier is None) == (self.epsilon is None):
            raise InputError("`noise_multiplier`, `epsilon`: give one of them")
        if self.adjacency not in ("add-remove", "replace-one"):
            raise InputError(f"`adjacency`: unknown {self.adjacency!r}; known: add-remove, replace-one")
        if not 0 < self.batch_size <= count:
            raise InputError(f"`batch_size`: {self.batch_size} is not between 0 and the {count} records")
        most = max(count, n_records)
        if not 0 < self.delta < 1 / most:
            raise InputError(
                f"`delta`: {self.delta} is not between 0 and 1/{most}: it must be below one over the records"
            )
        noise = self.noise_multiplier
        if noise is not None and not (noise >= 0 and math.isfinite(noise)):
            raise InputError(f"`noise_multiplier`: {noise} is not a finite number from 0 up")
        if self.epsilon is not None and not (self.epsilon > 0 and math.isfinite(self.epsilon)):
            raise InputError(f"`epsilon`: {self.epsilon} is not a positive number")


class PrivateLoop:
    """A private training loop over ``(x, y)``, iterated once: every step gives one noisy gradient.

    Args:
        model: as PyTorch has it; see ``RecordGradients`` for what it may hold. Its pruned weights are zeroed.
        loss: from outputs and labels to one value a record (``reduction="none"``).
        x: features ``(n, ...)``, a tensor, an array or a ``numpy.memmap``, of any dtype; private.
        y: labels ``(n, ...)``; private.
        ledger: where the event is entered when the loop begins; None for one of its own.
        dataset: which records these are, so that a shared ledger can tell them from others.
        settings: fields of :class:`LoopSettings`; ``batch_size``, ``steps``, ``delta``, and ``epsilon`` or
            ``noise_multiplier`` are needed.

    Raises:
        InputError: anything that cannot be trained privately as it stands, before budget is spent or a record is read
            for anything but its shape; later only where the model or the loss fails on a record.
        BudgetError: epsilon is not above what the ledger already holds.

    Guarantees:
        What the loop puts into ``grad`` is (epsilon, delta)-DP as ``report`` states, for one record under ``adjacency``, and
        so is everything computed from it. Anything else that a program computes from x and y is its own affair.

    Example:
        >>> import torch
        >>> x, y = torch.rand(200, 4, generator=torch.Generator().manual_seed(0)), torch.arange(200) % 3
        >>> model, loss = nn.Linear(4, 3), nn.CrossEntropyLoss(reduction="none")
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        >>> private = PrivateLoop(model, loss, x, y, batch_size=50, steps=20, epsilon=2.0, delta=1e-4)
        >>> for step in private:
        ...     step.backward()
        ...     optimizer.step()
        >>> round(private.report().certified.epsilon, 2)
        2.0
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        x: Tensor | np.ndarray,
        y: Tensor | np.ndarray,
        *,
        ledger: Ledger | None = None,
        dataset: DatasetRef = UNKNOWN_RECORDS,
        **settings: Any,
    ) -> None:
        given = LoopSettings.of(settings)
        count = len(x) if given.records is None else given.records
        given.check(len(x), count)
        like = next(model.parameters(), None)
        if like is None:
            raise InputError("model: has no parameters")
        source = Records(x, y, dtype=like.dtype, device=like.device, prepare=given.prepare)
        rate = given.batch_size / count
        config = TrainingConfig(
            given.filter,
            rate,
            given.steps,
            given.batch_size,
            0.0,
            1.0,
            "sgd",
            given.physical_batch,
            given.compile,
            given.precision,
        )  # the optimizer is the caller's
        whole = Mask.dense(model) if given.mask is None else given.mask
        draw = {"sampling": given.sampling or SecureSource(), "noise": given.noise or SecureSource()}
        self._gradients = NoisyGradients(model, whole, loss, source, config, **draw)
        live = self._gradients.gradients.live
        if live == 0:
            raise InputError("mask: prunes every parameter that is not frozen, so there is nothing to train")
        mechanism = NoisySgd(
            rate,
            given.steps,
            given.noise_multiplier or 0.0,
            sensitivity(given.filter, live, given.adjacency),
            nominal_sensitivity(given.filter, given.adjacency),
            adjacency=given.adjacency,
        )
        self.ledger = Ledger() if ledger is None else ledger
        before = self.ledger.touching(dataset)
        if given.epsilon is not None:
            mechanism = calibrate_noise(given.epsilon, given.delta, mechanism, OnRecord(dataset, before))
        event = TrainingEvent(dataset, mechanism, str(given.filter), live)
        total_epsilon((*before, event), given.delta, unit=mechanism.unit)  # refuses what the accountant cannot take
        check_budgets(self.ledger.events, (event,))
        self._gradients.noise_std = mechanism.noise_std
        self._budget = given.epsilon
        self.event, self.delta, self._counted, self._begun = event, given.delta, given.records is None, False

    def __len__(self) -> int:
        return self.event.mechanism.steps

    def __iter__(self) -> Iterator[Step]:
        """Enters the event, then yields the steps, one after the other.

        Raises:
            InputError: the loop has run; another costs another event. Or another thread enters something meanwhile.
            BudgetError: the ledger has come to hold more since, and both exceed the budget.
        """
        before = self.ledger.events
        if self._begun:
            raise InputError("PrivateLoop: it has run, and paid for that; make another one to train on")
        if self._budget is not None:  # the ledger may hold more than when the noise was calibrated
            events = touching((*before, self.event), self.event.dataset)
            total = total_epsilon(events, self.delta, unit=self.event.mechanism.unit)
            if total > self._budget:
                raise BudgetError(
                    f"epsilon: with what the ledger holds by now this comes to {total:.4g}, above the budget of"
                    f" {self._budget:g}; make the loop anew"
                )
        self.ledger.enter((self.event,), before)
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
