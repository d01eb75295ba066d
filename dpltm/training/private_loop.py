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

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from torch import Tensor, nn
from torch.utils.data import Dataset

from dpltm.audit.canaries import check_canaries
from dpltm.audit.plant import plant
from dpltm.errors import BudgetError, InputError
from dpltm.gradients import Loss
from dpltm.networks.masks import Mask
from dpltm.privacy.calibration import calibrate_noise
from dpltm.privacy.events import UNKNOWN_RECORDS, DatasetRef, NoiseBits, ProvenanceEvent, TrainingEvent
from dpltm.privacy.figures import figure
from dpltm.privacy.lineage import check_not_public, check_rows_not_public
from dpltm.privacy.mechanisms import NoisySgd
from dpltm.privacy.old_ledger import Ledger
from dpltm.privacy.parts import OnRecord, total_epsilon, touching
from dpltm.privacy.report import report
from dpltm.privacy.statement import PrivacyReport
from dpltm.randomness.noise import FastSource
from dpltm.randomness.sampling import Records
from dpltm.records.items import gives_items, read_items
from dpltm.records.rows import Rows
from dpltm.training.descent import NoisyGradients
from dpltm.training.loop_settings import LoopSettings, agree, check_type
from dpltm.training.movement import FIRST_STEPS, Movement, unmoved_note
from dpltm.training.ranks import Ranks, in_turn
from dpltm.training.sensitivity import nominal_sensitivity, sensitivity

if TYPE_CHECKING:
    from dpltm.audit.findings import Findings

COUNTED_NOTE = "the number of records was counted and is treated as public; say records=... to keep it private"
MASK_NOTE = (
    "the mask is taken as it is: what it depends on counts here only as far as this ledger holds it, and one made from"
    " private records with no mechanism has no guarantee"
)


class Step:
    """One step of a ``PrivateLoop``, good for one gradient while it is the current one.

    Attributes:
        number: from 1.
    """

    def __init__(self, loop: PrivateLoop, number: int) -> None:
        self.number, self._loop = number, loop

    def backward(self) -> None:
        """Draws a sample and leaves its noisy mean gradient in every parameter's ``grad``, replacing what was there.

        Raises:
            InputError: the step, or a copy of it, has had its gradient, or is over.
        """
        self._loop._take(self.number)


def _check_private(ledger: Ledger, dataset: DatasetRef, x: Tensor | np.ndarray, y: Tensor | np.ndarray) -> None:
    """Raises InputError for records that the ledger has down as public, by their reference or by what they hold."""
    if not any(isinstance(event, ProvenanceEvent) and event.provenance == "public" for event in ledger.events):
        return  # and the records are left alone
    check_not_public(ledger.events, dataset, ledger.registry)
    features, labels = (
        values.detach().cpu().float().numpy() if isinstance(values, Tensor) else values for values in (x, y)
    )
    check_rows_not_public(ledger.events, Rows(features, labels), ledger.registry)


def _rows_of(name: str, values: object) -> Tensor | np.ndarray:
    """Features or labels as a tensor or an array of one row a record."""
    array: Tensor | np.ndarray = np.empty(())
    with contextlib.suppress(ValueError):  # of rows that differ in length
        array = values if isinstance(values, (Tensor, np.ndarray)) else np.asarray(values)
    if array.ndim == 0 or not (isinstance(array, Tensor) or array.dtype.kind in "biuf"):
        raise InputError(
            f"`{name}`: of type {type(values).__name__}, not a tensor or an array of numbers, a row a record"
        )
    return array


class PrivateLoop:
    """A private training loop over ``(x, y)``, iterated once: every step gives one noisy gradient.

    Args:
        model: as PyTorch has it; see ``RecordGradients`` for what it may hold. Its pruned weights are zeroed.
        loss: from outputs and labels to one value a record (``reduction="none"``).
        x: features ``(n, ...)``, a tensor, an array or a ``numpy.memmap``, of any dtype; private. Or a dataset of PyTorch
            with random access, which is read once (``dpltm.records.items``).
        y: labels ``(n, ...)``; private. None beside a dataset.
        ledger: where the event is entered when the loop begins; None for one of its own.
        dataset: which records these are, so that a shared ledger can tell them from others, as
            ``ledger.registry.reference(dpltm.records.from_arrays(x, y, ...))`` gives it; by default they may be any.
        settings: fields of ``LoopOptions`` (``dpltm.options.loop``) and of :class:`LoopSettings`; ``batch_size``,
            ``steps``, ``delta``, and ``epsilon`` or ``noise_multiplier`` are needed.

    Raises:
        InputError: anything that cannot be trained privately as it stands, before budget is spent or a record is read for
            anything but its shape and whether the ledger has it down as public; later only where the model or the loss
            fails on a record.
        BudgetError: epsilon is not above what the ledger already holds.

    In a program that ``torchrun`` started and that has joined its process group, every rank makes the same loop: of the same
    model, records and settings, or all are refused. The ranks share the work of each step, and get the same gradient. Rank 0
    alone draws, adds noise, and enters the event, in its ledger.

    After the first ten steps the loop looks at whether the weights move. If none does, it stops: then the optimizer has
    other parameters than the model (``dpltm.training.movement``). If some do not, the report says so.

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
        x: Tensor | np.ndarray | Dataset,
        y: Tensor | np.ndarray | None = None,
        *,
        ledger: Ledger | None = None,
        dataset: DatasetRef = UNKNOWN_RECORDS,
        **settings: Any,
    ) -> None:
        self.ledger = Ledger() if ledger is None else ledger
        for name, value in (("model", model), ("loss", loss), ("ledger", self.ledger), ("dataset", dataset)):
            check_type(name, value)
        given = LoopSettings.of(settings)
        if gives_items(x):
            x, y = read_items(x, y)
        x, y = _rows_of("x", x), _rows_of("y", y)
        count = len(x) if given.records is None else given.records
        given.check(count, len(x))
        like = next(model.parameters(), None)
        if like is None:
            raise InputError("model: has no parameters")
        if isinstance(model, nn.parallel.DistributedDataParallel) or type(like).__name__ == "DTensor":
            raise InputError(
                "model: it is wrapped or cut up by torch.distributed; give the whole model, and the loop shares its work"
            )
        source = Records(x, y, dtype=like.dtype, device=like.device, prepare=given.prepare)
        _check_private(self.ledger, dataset, x, y)
        rate = given.batch_size / count
        whole = Mask.dense(model) if given.mask is None else given.mask
        self._ranks = ranks = Ranks.of_program()
        if ranks is not None:
            agree(ranks, model, whole, given, x, y)
        make = partial(NoisyGradients, model, whole, loss, source, given.config(rate), ranks=ranks)
        self._gradients = in_turn(ranks, partial(make, sampling=given.sampling, noise=given.noise))
        live = self._gradients.gradients.live
        if live == 0:
            raise InputError("mask: prunes every parameter that is not frozen, so there is nothing to train")
        mechanism = NoisySgd(
            rate,
            given.steps,
            given.noise_multiplier or 0.0,
            sensitivity(given.filter, live, given.adjacency, given.microbatch),
            nominal_sensitivity(given.filter, live, given.adjacency, microbatch=given.microbatch),
            adjacency=given.adjacency,
        )
        bits: NoiseBits = "fast" if isinstance(given.noise, FastSource) else "secure"
        event = TrainingEvent(dataset, mechanism, self._gradients.config.filtered, live, bits)
        self.event = event = self._settled(event, given)
        self._gradients.noise_std = event.mechanism.noise_std
        check_canaries(given.audit, live, event.mechanism.noise_multiplier)
        if self._first:
            plant(self._gradients, given.audit, given.adjacency, given.sampling)
        self.delta, self._budget = given.delta, given.epsilon
        self._notes = [
            *([COUNTED_NOTE] if given.records is None else []),
            *([MASK_NOTE] if given.mask is not None else []),
        ]
        self._begun, self._due = False, 0
        self._watched = model, whole
        self._movement: Movement | None = None

    @property
    def _first(self) -> bool:
        return self._ranks is None or self._ranks.first

    def _settled(self, event: TrainingEvent, given: LoopSettings) -> TrainingEvent:
        """The event with its noise, by the ledger of rank 0."""

        def settle() -> TrainingEvent:
            if not self._first:
                return event
            mechanism, before = event.mechanism, self.ledger.touching(event.dataset)
            if given.epsilon is not None:
                mechanism = calibrate_noise(given.epsilon, given.delta, mechanism, OnRecord(event.dataset, before))
            made = replace(event, mechanism=mechanism)
            total_epsilon((*before, made), given.delta, unit=mechanism.unit)  # refuses what the accountant cannot take
            self.ledger.check_budgets((made,))
            return made

        if self._ranks is None:
            return settle()
        multiplier = self._ranks.tell(self._ranks.together(settle).mechanism.noise_multiplier)
        return replace(event, mechanism=replace(event.mechanism, noise_multiplier=multiplier))

    def __len__(self) -> int:
        return self.event.mechanism.steps

    def __iter__(self) -> Iterator[Step]:
        """Enters the event, then yields the steps, one after the other.

        Raises:
            InputError: the loop has run, and another costs another event; the records were declared public since; or another
                thread enters something meanwhile.
            BudgetError: the ledger has come to hold more since, and both exceed the budget.
        """
        if self._begun:
            raise InputError("PrivateLoop: it has run, and paid for that; make another one to train on")
        if self._ranks is None:
            self._enter()
        else:
            self._ranks.together(self._enter if self._first else lambda: None)
        self._begun = True
        return self._steps()

    def _enter(self) -> None:
        before = self.ledger.events
        check_not_public(before, self.event.dataset, self.ledger.registry)
        if self._budget is not None:  # the ledger may hold more than when the noise was calibrated
            events = touching((*before, self.event), self.event.dataset)
            total = total_epsilon(events, self.delta, unit=self.event.mechanism.unit)
            if total > self._budget:
                raise BudgetError(
                    f"epsilon: with what the ledger holds by now this comes to {figure(total)}, above the budget of"
                    f" {self._budget:g}; make the loop anew"
                )
        self.ledger.enter((self.event,), before)

    def _steps(self) -> Iterator[Step]:
        for number in range(1, self.event.mechanism.steps + 1):
            self._due = number
            yield Step(self, number)
            self._due = 0

    def _take(self, number: int) -> None:
        """The gradient of a step, once: it is the loop that knows whether a step had it, whoever copies the step."""
        if number != self._due:
            raise InputError(f"step {number}: its one gradient was taken, or the loop has moved on; call it once")
        if number == FIRST_STEPS + 1:
            self._look()
        self._due = 0
        self._gradients.backward()
        if number == 1:  # pruned weights are zero from here on
            self._movement = Movement(*self._watched)

    def _look(self) -> None:
        """Looks, once, at whether the weights move; later a copy of them would only take room.

        Raises:
            InputError: none does, so far.
        """
        watched, self._movement = self._movement, None
        if watched is not None and (still := watched.check(FIRST_STEPS)):
            self._notes.append(unmoved_note(still, watched.count))

    def audit(self, confidence: float = 0.95) -> Findings:
        """Lower bounds on the epsilon of this loop, from its canaries.

        Args:
            confidence: that they hold with, in [0.5, 1).

        Raises:
            InputError: the loop had no canaries, or too few, or has not run.
        """
        from dpltm.audit.findings import examine  # it takes half a second to import, which a training has no use for

        if not self._first:
            raise InputError("`audit`: rank 0 has the canaries of this loop; audit it there")
        observations = self._gradients.canaries.observations
        if observations is None:
            raise InputError("`audit`: this loop has no canaries to look for; make another one with audit=1000")
        if not self._begun:
            raise InputError("`audit`: the loop has not run yet; audit it after its last step")
        return examine(observations, self.event, self.delta, confidence)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Raises InputError: a copy, also of what holds the loop, would run on the one event that was paid for."""
        raise InputError("`PrivateLoop`: it cannot be copied, since it runs once; make another one")

    def report(self) -> PrivacyReport:
        """Certified and nominal epsilon of everything in the ledger on these records; of the plan, before the loop runs.

        On other ranks than 0, whose ledgers hold nothing of this loop, that of the loop beside what they hold.
        """
        events = self.ledger.touching(self.event.dataset)
        return report(
            events if self._begun and self._first else (*events, self.event),
            self.delta,
            self.event.mechanism.adjacency,
            self._notes,
            unit=self.event.mechanism.unit,
        )
