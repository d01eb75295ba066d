"""For PyTorch users: a training loop of their own, made private in three lines.

    private = PrivateLoop(model, loss, x, y, batch_size=400, steps=3000, epsilon=1.0, delta=1e-5)
    for step in private:
        step.backward()        # in place of: for batch in loader ... loss.backward()
        optimizer.step()
    print(private.report().certified.epsilon)

One object draws the samples, bounds and sums the gradients, adds the noise and enters what pays for it, all from
the same rate, bound and number of steps: they cannot disagree.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, cast

import numpy as np
from torch import Tensor, nn
from torch.utils.data import Dataset

from dpltm.audit.canaries import check_canaries, plant
from dpltm.errors import BudgetError, InputError
from dpltm.gradients import Loss
from dpltm.networks.masks import Mask
from dpltm.privacy.account import Account, Planned, check_private, check_unprotected
from dpltm.privacy.calibration import calibrate_noise
from dpltm.privacy.entry import NO_LINEAGE, RECORD, Entry, Lineage, Part
from dpltm.privacy.figures import figure
from dpltm.privacy.guards import remember
from dpltm.privacy.ledger import Book, Ledger, of_process
from dpltm.privacy.mechanisms import NoisySgd, Unprotected
from dpltm.privacy.release import Secret, pay
from dpltm.privacy.statement import PrivacyReport, statement
from dpltm.randomness.noise import FastSource
from dpltm.randomness.sampling import Records
from dpltm.records.dataset import Rows
from dpltm.records.items import gives_items, read_items
from dpltm.training.descent import NoisyGradients
from dpltm.training.loop_settings import LoopSettings, agree, check_type
from dpltm.training.movement import FIRST_STEPS, Movement, unmoved_note
from dpltm.training.ranks import Ranks, in_turn
from dpltm.training.sensitivity import nominal_sensitivity, nominal_source, sensitivity

if TYPE_CHECKING:
    from dpltm.audit.findings import Findings

START_NOTE = (
    "starting weights were taken as data-free: nothing says what they come from; pass lineage=run.lineage, or declare"
    " provenance"
)
COUNTED_NOTE = "the number of records was counted and is treated as public; say records=... to keep it private"


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


@dataclass(frozen=True)
class _LoopRelease:
    """The steps of a loop. See :class:`dpltm.privacy.release.Release`; the loop hands them out one by one."""

    entry: Entry
    lineage: Lineage
    account: Account

    def check(self) -> None:
        """Refuse records that were declared public or apart, and to end the guarantees of an account that has some."""
        check_private(self.account, self.entry.part)
        check_unprotected(self.account, (self.entry,), allowed=False)

    def draw(self, secret: Secret, at: object) -> Iterator[None]:
        """Yield nothing: samples and noise come from the sources of the loop."""
        del secret, at
        return iter(())


class PrivateLoop:
    """A private training loop over ``(x, y)``, iterated once: every step gives one noisy gradient.

    Args:
        model: as PyTorch has it; see ``RecordGradients`` for what it may hold. Its pruned weights are zeroed.
        loss: from outputs and labels to one value a record (``reduction="none"``).
        x: features ``(n, ...)``, a tensor, an array or a ``numpy.memmap``, of any dtype; private. Or a dataset of PyTorch
            with random access, which is read once (``dpltm.records.items``).
        y: labels ``(n, ...)``; private. None beside a dataset.
        ledger: that pays when the loop begins; by default the one of this process.
        lineage: of mask and weights, where these depend on records: that of the tickets they are from. A mask without one
            must be declared: ``provenance`` ``data-free`` or ``public``, or ``private``, which certifies nothing.
        settings: fields of ``LoopOptions`` (``dpltm.options.train``) and of :class:`LoopSettings`; ``batch_size``,
            ``steps``, ``delta``, and ``epsilon`` or ``noise_multiplier`` are needed.

    Raises:
        InputError: anything that cannot be trained privately as it stands, before budget is spent or a record is read for
            anything but its shape; later only where the model or the loss fails on a record.
        BudgetError: epsilon is not above what the ledger already holds.

    In a program that ``torchrun`` started and that has joined its process group, every rank makes the same loop: of the same
    model, records and settings, or all are refused. The ranks share the work of each step, and get the same gradient. Rank 0
    alone draws, adds noise, and pays, in its ledger.

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
        lineage: Lineage | None = None,
        provenance: str | None = None,
        **settings: Any,
    ) -> None:
        self.ledger = of_process() if ledger is None else ledger
        for name, value in (("model", model), ("loss", loss), ("ledger", self.ledger)):
            check_type(name, value)
        given = LoopSettings.of(settings)
        self.lineage = NO_LINEAGE if lineage is None else lineage
        self._exposed = check_declared_mask(given.mask, lineage, provenance)
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
            claim := nominal_sensitivity(given.filter, live, given.adjacency, microbatch=given.microbatch),
            "" if claim is None else nominal_source(given.filter, given.microbatch),
            adjacency=given.adjacency,
            bits="fast" if isinstance(given.noise, FastSource) else "secure",
        )
        self._part = part_of(self.ledger, x) if self._first else Part("arrays")
        self._words = f"a loop, {self._gradients.config.filtered}, {live:,} live weights"
        self.entry = self._settled(mechanism, given)
        self._gradients.noise_std = self.mechanism.noise_std
        check_canaries(given.audit, live, self.mechanism.noise_multiplier)
        if self._first:
            plant(self._gradients, given.audit, given.adjacency, given.sampling)
        self.delta, self._budget = given.delta, given.epsilon
        self._notes = [
            *([COUNTED_NOTE] if given.records is None else []),
            *([START_NOTE] if lineage is None and provenance is None else []),
        ]
        self._begun, self._due = False, 0
        self._process, self._lock = os.getpid(), threading.RLock()
        self._watched = model, whole
        self._movement: Movement | None = None

    @property
    def _first(self) -> bool:
        return self._ranks is None or self._ranks.first

    @property
    def mechanism(self) -> NoisySgd:
        """Its noisy steps."""
        (steps,) = self.entry.of(NoisySgd)
        return cast(NoisySgd, steps)

    def _draft(self, mechanism: NoisySgd) -> Entry:
        exposed = (Unprotected(),) if self._exposed else ()
        return Entry("release", self._part, (mechanism, *exposed), self._words, unit=RECORD)

    def _settled(self, mechanism: NoisySgd, given: LoopSettings) -> Entry:
        """The draft with its noise, by the ledger of rank 0."""

        def settle() -> Entry:
            if not self._first:
                return self._draft(mechanism)
            account, made = self.ledger.account(self.lineage), mechanism
            if given.epsilon is not None:
                made = calibrate_noise(given.epsilon, given.delta, made, Planned(account))
            drafts = (self._draft(made),)
            (account + drafts).epsilon(given.delta)  # refuses what the accountant cannot take
            account.check_budget(drafts)
            return drafts[0]

        if self._ranks is None:
            return settle()
        multiplier = self._ranks.tell(self._ranks.together(settle).of(NoisySgd)[0].noise_multiplier)
        return self._draft(replace(mechanism, noise_multiplier=multiplier))

    def __len__(self) -> int:
        return self.mechanism.steps

    def __iter__(self) -> Iterator[Step]:
        """Pay, then yield the steps, one after the other.

        Raises:
            InputError: the loop has run, and another costs another release; or it is another process's.
            BudgetError: the ledger has come to hold more since, and both exceed the budget.
        """
        with self._lock:
            if self._begun:
                raise InputError("PrivateLoop: it has run, and paid for that; make another one to train on")
            check_process(self._process)
            if self._ranks is None:
                self._enter()
            else:
                self._ranks.together(self._enter if self._first else lambda: None)
            self._begun = True
        return self._steps()

    def _enter(self) -> None:
        self.entry = pay(
            lambda book, _: _LoopRelease(self.entry, self.lineage, self._check_still_fits(book)), self.ledger
        ).entry

    def _check_still_fits(self, book: Book) -> Account:
        """Raises BudgetError where the ledger has come to hold more than when the noise was calibrated, and too much."""
        account, drafts = book.account(self.lineage), (self.entry,)
        if self._budget is not None and (total := (account + drafts).epsilon(self.delta)) > self._budget:
            raise BudgetError(
                f"epsilon: with what the ledger holds by now this comes to {figure(total)}, above the budget of"
                f" {self._budget:g}; make the loop anew"
            )
        return account

    def _steps(self) -> Iterator[Step]:
        for number in range(1, self.mechanism.steps + 1):
            self._due = number
            yield Step(self, number)
            self._due = 0

    def _take(self, number: int) -> None:
        """The gradient of a step, once: it is the loop that knows whether a step had it, whoever copies the step."""
        with self._lock:  # threads take their steps one after the other
            check_process(self._process)
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
        return examine(observations, self.mechanism, self.delta, confidence)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Raises InputError: a copy, also of what holds the loop, would run on the one release that was paid for."""
        raise InputError("`PrivateLoop`: it cannot be copied, since it runs once; make another one")

    @property
    def account(self) -> Account:
        """Everything that counts with the loop; before it runs, with what is planned."""
        known = self.ledger.account(self.lineage)
        drafts = () if self._begun and self._first else (self.entry,)
        return known + drafts

    def report(self) -> PrivacyReport:
        """Return certified and nominal epsilon of everything that counts with the loop; before it runs, of the plan.

        On other ranks than 0, whose ledgers hold nothing of this loop, that of the loop beside what they hold.
        """
        return statement(self.account, self.delta, adjacency=self.mechanism.adjacency, notes=self._notes)


def part_of(ledger: Ledger, x: Tensor | np.ndarray) -> Part:
    """Return the part that arrays are, known again by their rows; whatever else the ledger holds may be of the same.

    Args:
        ledger: that pays.
        x: ``(n, ...)``.
    """
    values = x.detach().cpu().float().numpy() if isinstance(x, Tensor) else x
    rows = Rows(values.reshape(len(values), -1), np.zeros(len(values), dtype=np.int64))
    part = Part("arrays", ledger.snapshot(rows.digest))
    remember(part, rows.marks)
    return part


def check_declared_mask(mask: Mask | None, lineage: Lineage | None, provenance: str | None) -> bool:
    """Return whether a mask was made from private records with no mechanism, as its maker declares.

    Args:
        mask: that was handed in; None for none.
        lineage: that came with it.
        provenance: that was declared in its place.

    Raises:
        InputError: neither was given.
    """
    if provenance not in (None, "data-free", "public", "private"):
        raise InputError("provenance", provenance, "data-free, public or private")
    if mask is not None and lineage is None and provenance is None:
        raise InputError(
            "`mask`: it does not say what it was made from; pass `lineage` (tickets.lineage), or declare `provenance`"
            " data-free, public or private"
        )
    return provenance == "private"


def check_process(process: int) -> None:
    """Raise InputError in another process than the one that a loop, or a source, was made in."""
    if process != os.getpid():
        raise InputError(
            "PrivateLoop: it was made in another process, where it may run as well, and two would share one payment; make it"
            " in this one"
        )
