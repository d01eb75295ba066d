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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NoReturn

import numpy as np
from torch import Tensor, nn
from torch.utils.data import Dataset

from dpltm.data.items import gives_items, read_items
from dpltm.data.rows import Rows
from dpltm.errors import BudgetError, InputError
from dpltm.filters import Clip, Filter
from dpltm.gradients import Loss
from dpltm.masks import Mask
from dpltm.noise import FastSource, RandomSource, SecureSource
from dpltm.options.arguments import Arguments
from dpltm.options.loop import LoopOptions
from dpltm.options.sections import check_required
from dpltm.privacy.calibration import calibrate_noise
from dpltm.privacy.events import UNKNOWN_RECORDS, DatasetRef, NoiseBits, ProvenanceEvent, TrainingEvent
from dpltm.privacy.ledger import Ledger
from dpltm.privacy.lineage import check_not_public, check_rows_not_public
from dpltm.privacy.mechanisms import Adjacency, NoisySgd
from dpltm.privacy.parts import OnRecord, total_epsilon, touching
from dpltm.privacy.report import report
from dpltm.privacy.statement import PrivacyReport
from dpltm.sampling import Records
from dpltm.stages.checks import check_count, check_delta_of, check_epsilon, check_noise
from dpltm.training import NoisyGradients, TrainingConfig, nominal_sensitivity, sensitivity

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


@dataclass(frozen=True, kw_only=True)
class LoopSettings(LoopOptions):
    """What a loop is to be, all of it public: the fields of ``LoopOptions``, and values that are no options of a command.

    Attributes:
        filter: what every record's gradient goes through.
        mask: live coordinates; None for all. Nothing is entered for it, since a mask does not say what it was made from. If
            private records decided it, by a draw or by a mechanism, train on the ledger that holds their events; if they
            did so with no mechanism, there is no guarantee (privacy-model.md 2).
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
            _check_type(name, value)
        others = {name: value for name, value in given.items() if name not in _OBJECTS}
        options = Arguments(others, (LoopOptions,), _OBJECTS).take(LoopOptions)
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
        )


_OBJECTS = ("filter", "mask", "prepare", "sampling", "noise")
"""Settings that are no options of a command."""

_KINDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "model": (lambda value: isinstance(value, nn.Module), "a torch.nn.Module"),
    "loss": (callable, "a function of outputs and labels"),
    "ledger": (lambda value: isinstance(value, Ledger), "a dpltm.Ledger"),
    "dataset": (lambda value: isinstance(value, DatasetRef), "a DatasetRef; leave it out if these records have none"),
    "filter": (lambda value: hasattr(type(value), "certified_bound"), "a filter of dpltm.filters.make_filter"),
    "mask": (lambda value: isinstance(value, Mask), "a dpltm.masks.Mask"),
    "prepare": (callable, "a function of rows"),
    "sampling": (lambda value: hasattr(value, "random_bytes"), "a source of random bytes"),
    "noise": (lambda value: hasattr(value, "random_bytes"), "a source of random bytes"),
}


def _check_type(name: str, value: object) -> None:
    """Raises InputError for a value of another type; records may be in it, so it is not said."""
    fits, wanted = _KINDS[name]
    if not fits(value):
        raise InputError(f"`{name}`: of type {type(value).__name__}, not {wanted}")


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
            with random access, which is read once (``dpltm.data.items``).
        y: labels ``(n, ...)``; private. None beside a dataset.
        ledger: where the event is entered when the loop begins; None for one of its own.
        dataset: which records these are, so that a shared ledger can tell them from others, as
            ``ledger.registry.reference(dpltm.data.from_arrays(x, y, ...))`` gives it; by default they may be any.
        settings: fields of ``LoopOptions`` (``dpltm.options.loop``) and of :class:`LoopSettings`; ``batch_size``,
            ``steps``, ``delta``, and ``epsilon`` or ``noise_multiplier`` are needed.

    Raises:
        InputError: anything that cannot be trained privately as it stands, before budget is spent or a record is read for
            anything but its shape and whether the ledger has it down as public; later only where the model or the loss
            fails on a record.
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
        x: Tensor | np.ndarray | Dataset,
        y: Tensor | np.ndarray | None = None,
        *,
        ledger: Ledger | None = None,
        dataset: DatasetRef = UNKNOWN_RECORDS,
        **settings: Any,
    ) -> None:
        self.ledger = Ledger() if ledger is None else ledger
        for name, value in (("model", model), ("loss", loss), ("ledger", self.ledger), ("dataset", dataset)):
            _check_type(name, value)
        given = LoopSettings.of(settings)
        if gives_items(x):
            x, y = read_items(x, y)
        x, y = _rows_of("x", x), _rows_of("y", y)
        count = len(x) if given.records is None else given.records
        given.check(count, len(x))
        like = next(model.parameters(), None)
        if like is None:
            raise InputError("model: has no parameters")
        source = Records(x, y, dtype=like.dtype, device=like.device, prepare=given.prepare)
        _check_private(self.ledger, dataset, x, y)
        rate = given.batch_size / count
        whole = Mask.dense(model) if given.mask is None else given.mask
        draw = {"sampling": given.sampling, "noise": given.noise}
        self._gradients = NoisyGradients(model, whole, loss, source, given.config(rate), **draw)
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
        before = self.ledger.touching(dataset)
        if given.epsilon is not None:
            mechanism = calibrate_noise(given.epsilon, given.delta, mechanism, OnRecord(dataset, before))
        bits: NoiseBits = "fast" if isinstance(given.noise, FastSource) else "secure"
        event = TrainingEvent(dataset, mechanism, str(given.filter), live, bits)
        total_epsilon((*before, event), given.delta, unit=mechanism.unit)  # refuses what the accountant cannot take
        self.ledger.check_budgets((event,))
        self._gradients.noise_std = mechanism.noise_std
        self.event, self.delta, self._budget = event, given.delta, given.epsilon
        self._notes = [
            *([COUNTED_NOTE] if given.records is None else []),
            *([MASK_NOTE] if given.mask is not None else []),
        ]
        self._begun, self._due = False, 0

    def __len__(self) -> int:
        return self.event.mechanism.steps

    def __iter__(self) -> Iterator[Step]:
        """Enters the event, then yields the steps, one after the other.

        Raises:
            InputError: the loop has run, and another costs another event; the records were declared public since; or another
                thread enters something meanwhile.
            BudgetError: the ledger has come to hold more since, and both exceed the budget.
        """
        before = self.ledger.events
        if self._begun:
            raise InputError("PrivateLoop: it has run, and paid for that; make another one to train on")
        check_not_public(self.ledger.events, self.event.dataset, self.ledger.registry)
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
            self._due = number
            yield Step(self, number)
            self._due = 0

    def _take(self, number: int) -> None:
        """The gradient of a step, once: it is the loop that knows whether a step had it, whoever copies the step."""
        if number != self._due:
            raise InputError(f"step {number}: its one gradient was taken, or the loop has moved on; call it once")
        self._due = 0
        self._gradients.backward()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Raises InputError: a copy, also of what holds the loop, would run on the one event that was paid for."""
        raise InputError("`PrivateLoop`: it cannot be copied, since it runs once; make another one")

    def report(self) -> PrivacyReport:
        """Certified and nominal epsilon of everything in the ledger on these records; of the plan, before the loop runs."""
        events = self.ledger.touching(self.event.dataset)
        return report(
            events if self._begun else (*events, self.event),
            self.delta,
            self.event.mechanism.adjacency,
            self._notes,
            unit=self.event.mechanism.unit,
        )
