"""``PrivateLoop``: private training in a loop of the user's own."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from dpltm.errors import BudgetError, InputError, whole_number
from dpltm.filters import Clip, Filter
from dpltm.gradients import Loss
from dpltm.networks.layers import check_layers
from dpltm.networks.masks import Mask
from dpltm.networks.own import own_model
from dpltm.networks.own_network import AGREE, OwnNetwork, computed, network_trained
from dpltm.networks.state import check_names, content_id, evaluating, weights_of
from dpltm.options import arguments
from dpltm.options.train import LoopOptions, TrainOptions
from dpltm.privacy.account import Planned, check_unprotected
from dpltm.privacy.calibration import Odometer, calibrate_noise
from dpltm.privacy.checkpoint import Checkpoint, Checkpoints, reading
from dpltm.privacy.checks import PER_UNIT, check_delta_of
from dpltm.privacy.describe import figure
from dpltm.privacy.entry import NO_LINEAGE, RECORD, Entry, Lineage, Part
from dpltm.privacy.ledger import Book, Ledger, facts_digest, of_process
from dpltm.privacy.mechanisms import NoisySgd, Unprotected
from dpltm.privacy.release import Once, Paid, hand_out, handed_out, pay
from dpltm.privacy.statement import PrivacyReport, json_figure, statement
from dpltm.pruning.generation import dense_mask
from dpltm.randomness.noise import RandomSource, SecureSource
from dpltm.records.batches import Records
from dpltm.records.dataset import RawSplit
from dpltm.records.load import as_array, check_no_loader
from dpltm.records.notes import persons_note, shares_notes
from dpltm.records.scaling import affine, prepare, unscale
from dpltm.records.split import LabelForm, Rows
from dpltm.records.units import MAX_SLOTS, checked_units, places_of_persons
from dpltm.training.artifacts import Run
from dpltm.training.canaries import check_canaries
from dpltm.training.descent import NoisyGradients, plant
from dpltm.training.plan import NoisySteps, class_weights, noisy_steps
from dpltm.training.ranks import Ranks, environment

if TYPE_CHECKING:
    from dpltm.audit import Findings


class LoopSettings(LoopOptions):
    """Settings of a loop, all but ``units`` public: those of ``LoopOptions``, and values that are no options of a command.

    Attributes:
        units: whose each record is, ``(n,)`` whole numbers or texts: then all of a person's are protected together. The
            filter gets the mean gradient of a person's records, of which ``per_unit`` count; a step samples persons.
        unit: noun of whom those are, by default ``user``.
        mask: live coordinates; None for all.
        on_step: called after each step, once the caller's code for it has run, with its number and the certified epsilon
            so far, with what counted as it began: an upper bound, of rank 0 alone.
        sampling, noise: random bits; anything but the default is for tests, and is said to be ``fast``.
    """

    units: np.ndarray | None = field(default=None, repr=False)
    unit: str | None = None
    filter: Filter = Clip(1.0)
    mask: Mask | None = None
    on_step: Callable[[int, float], object] | None = None
    sampling: RandomSource = field(default_factory=SecureSource)
    noise: RandomSource = field(default_factory=SecureSource)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in (name for name in _OBJECTS if getattr(self, name) is not None):
            check_type(name, getattr(self, name))
        if (self.noise_multiplier is None) == (self.epsilon is None):
            raise InputError("`noise_multiplier`, `epsilon`: give one of them")
        if self.units is None:
            unsuited = {"per_unit": self.per_unit, "unit": self.unit}
            why = "is for persons; add `units`, or leave it out"
        else:
            unsuited = {"compile": self.compile or None, "microbatch": self.microbatch}
            why = "does not go with `units`; leave one of them out"
            slots = PER_UNIT if self.per_unit is None else self.per_unit
            if not 1 <= slots <= MAX_SLOTS:
                raise InputError("per_unit", slots, f"a whole number from 1 to {MAX_SLOTS:,}")
            object.__setattr__(self, "per_unit", slots)
        for name in (name for name, value in unsuited.items() if value is not None):
            raise InputError(f"`{name}`: {why}")

    @property
    def noun(self) -> str:
        """Noun of whom the loop protects."""
        return RECORD if self.units is None else self.unit or "user"

    @property
    def options(self) -> dict[str, Any]:
        """Those of ``LoopOptions``, by name."""
        return {item.name: getattr(self, item.name) for item in fields(LoopOptions)}

    @property
    def facts(self) -> dict[str, Any]:
        """What another rank, or a loop that goes on, has in common with this one; as JSON, and public."""
        sources = [type(source).__name__ for source in (self.sampling, self.noise)]
        return {**self.options, "filter": str(self.filter), "noise": sources}

    def plan(self, count: int) -> NoisySteps:
        """Return the steps on so many records or persons, a public number; their noise is not known yet."""
        if not 0 < self.batch_size <= count:
            several = "records" if self.units is None else "persons"
            raise InputError(f"`batch_size`: {self.batch_size:g} is not between 0 and the {count} {several}")
        of_training = {
            name: value for name, value in self.options.items() if name in TrainOptions.__dataclass_fields__
        }
        secure = {type(self.sampling), type(self.noise)} == {SecureSource}
        return NoisySteps(
            self.filter,
            NoisySgd(self.batch_size / count, self.steps, 0.0),
            self.batch_size,
            class_weight=class_weights(self.class_weight, self.class_shares, None),
            options=TrainOptions(**of_training, noise="secure" if secure else "fast"),
        )


_KINDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "model": (lambda value: isinstance(value, nn.Module), "a torch.nn.Module"),
    "loss": (callable, "a function of outputs and labels"),
    "ledger": (lambda value: value is None or isinstance(value, Ledger), "a dpltm.Ledger"),
    "units": (lambda value: np.ndim(value) == 1, "one whole number or text a record"),
    "unit": (lambda value: isinstance(value, str), "a noun, such as patient"),
    "filter": (lambda value: hasattr(type(value), "certified_bound"), "a filter of dpltm.filters.make_filter"),
    "mask": (lambda value: isinstance(value, Mask), "a dpltm.networks.masks.Mask"),
    "on_step": (callable, "a function of step and epsilon"),
    "sampling": (lambda value: hasattr(value, "random_bytes"), "a source of random bytes"),
    "noise": (lambda value: hasattr(value, "random_bytes"), "a source of random bytes"),
}

_OBJECTS = tuple(name for name in _KINDS if name not in ("model", "loss", "ledger"))
"""Settings that are no options of a command."""


def check_type(name: str, value: object) -> None:
    """Raise InputError for a value of another type; records may be in it, so it is not said."""
    fits, wanted = _KINDS[name]
    if not fits(value):
        raise InputError(f"`{name}`: of type {type(value).__name__}, not {wanted}")


def _check_classes(y: Tensor | np.ndarray, classes: int) -> None:
    labels = torch.as_tensor(y)
    are_classes = labels.ndim == 1 and not labels.dtype.is_floating_point and labels.dtype != torch.bool
    if not are_classes or not bool(((labels >= 0) & (labels < classes)).all()):
        raise InputError(
            f"`class_weight`: has {classes} numbers, so `y` must be whole numbers from 0 to {classes - 1}"
        )


COUNTED = "the number of {} was counted and is treated as public; say records=... to keep it private"

START_NOTE = (
    "starting weights were taken as data-free: nothing says what they come from; pass lineage=run.lineage, or declare"
    " provenance"
)


class Step:
    """One step of a ``PrivateLoop``, ``number`` from 1, good for one gradient while it is the current one."""

    def __init__(self, loop: PrivateLoop, number: int) -> None:
        self.number, self._loop = number, loop

    def backward(self) -> None:
        """Draw a sample and leave its noisy mean gradient in every parameter's ``grad``, replacing what was there.

        Raises:
            InputError: the step, or a copy of it, has had its gradient, or is over.
        """
        self._loop._take(self.number)


def _rows_of(name: str, values: object) -> Tensor | np.ndarray:
    """Return a tensor as it is, where it is, and anything else as an array."""
    rows = values if isinstance(values, Tensor) else as_array(values, name)
    if isinstance(rows, Tensor):
        is_plain = rows.layout == torch.strided and not rows.is_complex()
    else:
        is_plain = rows.dtype.kind in "biuf"
    if rows.ndim == 0 or not is_plain:
        raise InputError(
            f"`{name}`: of type {type(values).__name__}, not a dense tensor or an array of real numbers, a row a record;"
            " pad rows of several lengths to one public length"
        )
    return rows


def _mask_id(mask: Mask) -> str:
    return content_id({name: value.cpu().numpy() for name, value in mask.items()})


@dataclass(frozen=True)
class _State:
    """How far a loop has come: all of it that changes."""

    entry: Entry  # a draft until the loop begins, then as it is on record
    lineage: Lineage = NO_LINEAGE  # of its gradients, with its own entry; nothing until it begins
    begun: bool = False
    due: int = 0  # number of the step whose gradient may be taken now; 0 for none
    taken: int = 0  # gradients so far, with those of the loop that it goes on with
    loaded: str = ""  # id of the weights that a loaded state was saved with
    ended: str = ""  # id of the weights as it ended


class PrivateLoop:
    """A private training loop over ``(x, y)``, iterated once: every step gives one noisy gradient.

    Args:
        model: as PyTorch has it; see ``RecordGradients`` for what it may hold. Its pruned weights are zeroed.
        loss: from outputs and labels to one value a record (``reduction="none"``).
        x: features ``(n, ...)``, a tensor or an array, of any dtype; private.
        y: labels ``(n, ...)``; private.
        ledger: that pays when the loop begins; by default the one of this process.
        lineage: of mask and weights: that of the tickets they are from. A mask without one must be declared:
        provenance: ``data-free`` or ``public``, or ``private``, which certifies nothing.
        settings: fields of ``LoopOptions`` (``dpltm.options.train``) and of :class:`LoopSettings`; ``batch_size``,
            ``steps``, ``delta``, and ``epsilon`` or ``noise_multiplier`` are needed.

    Raises:
        InputError: anything that cannot be trained privately as it stands, before budget is spent; later only where the
            model or the loss fails on a record.
        BudgetError: epsilon is not above what the ledger already holds.

    In a program that ``torchrun`` started and that has joined its process group, every rank makes the same loop, or all are
    refused, and gets the same gradient. Rank 0 alone draws, adds noise, and pays, in its ledger.

    Guarantees:
        What the loop puts into ``grad`` is (epsilon, delta)-DP as ``report`` states, for one record, or one person where
        ``units`` names them, under ``adjacency``, and so is everything computed from it. Anything else that a program
        computes from x and y is its own affair.

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
        lineage: Lineage | None = None,
        provenance: str | None = None,
        **settings: Any,
    ) -> None:
        for name, value in (("model", model), ("loss", loss), ("ledger", ledger)):
            check_type(name, value)
        check_names(model, "model:")
        check_layers(model)
        self.settings = terms = arguments(LoopSettings, settings)
        self.ledger = of_process(terms.noun) if ledger is None else ledger
        self.lineage = NO_LINEAGE if lineage is None else lineage
        exposed = _exposed(terms.mask, lineage, provenance)
        check_no_loader(x)
        self.records = x, y = _rows_of("x", x), _rows_of("y", y)
        rows, persons = _by_person(terms, x, y)
        at_hand = len(x) if persons is None else len(persons)
        count = terms.records or at_hand
        plan = terms.plan(count)
        check_delta_of(terms.delta, count, at_hand)
        like = next(model.parameters(), None)
        if like is None:
            raise InputError("model: has no parameters")
        records = Records(x, y, dtype=like.dtype, device=like.device, persons=persons)
        if plan.class_weight is not None:
            _check_classes(y, len(plan.class_weight))
        self.model, self.provenance = model, provenance
        mask = Mask.dense(model) if terms.mask is None else terms.mask
        joined = Ranks.of_program()
        self._ranks = ranks = joined or Ranks()
        if joined is not None:
            private = {"`x`, `y`": rows.digest.hex(), "`units`": str(rows.owners_digest)}
            private |= {"`mask`": _mask_id(mask), "model": self._weights_id()}
            joined.agree({f"`{name}`": repr(fact) for name, fact in terms.facts.items()} | environment(), private)
            if terms.save_every is not None:
                raise InputError("`save_every`: a loop of several ranks goes on nowhere else; leave it out")
        make = partial(NoisyGradients, model, mask, loss, records, plan, ranks=joined)
        self.gradients = ranks.together(partial(make, sampling=terms.sampling, noise=terms.noise))
        ranks.agree(self.gradients.kernels)
        if (live := self.gradients.gradients.live) == 0:
            raise InputError("mask: prunes every parameter that is not frozen, so there is nothing to train")
        shapes = [f"{name} {list(value.shape)} {value.requires_grad}" for name, value in model.named_parameters()]
        entries = [entry.id for entry in self.lineage.entries]
        beside = {"mask": _mask_id(mask), "model": shapes, "lineage": entries}
        self._facts = {} if terms.save_every is None else terms.facts | beside  # what a loop that goes on has, too
        part = Part("arrays", self.ledger.snapshot(rows.digest))
        part = self.ledger.owned(part, rows.units_name, rows.owners_digest)
        steps = noisy_steps(terms.filter, live, terms.batch_size / count, terms.steps, plan.options)
        words = f"a loop, {plan.filtered}, {live:,} live weights"
        facts = facts_digest(self._facts) if self._facts else ""
        draft = Entry("release", part, (steps, *exposed), words, facts, unit=terms.noun)
        multiplier = ranks.tell(ranks.together(partial(self._multiplier, draft) if ranks.first else float))
        self.gradients.plan = replace(plan, mechanism=replace(steps, noise_multiplier=multiplier))
        self._state = _State(replace(draft, mechanisms=(self.mechanism, *exposed)))
        check_canaries(terms.audit, live, multiplier)
        if ranks.first:
            plant(self.gradients, terms.sampling)
        counted = "records" if persons is None else "persons"
        self._notes = [
            *([] if terms.records is not None else [COUNTED.format(counted)]),
            *([] if persons is None else [persons_note(terms.noun, terms.per_unit)]),
            *shares_notes(terms.class_shares),
            *([START_NOTE] if lineage is None and provenance is None else []),
        ]
        self._process = os.getpid()
        self._lock = threading.RLock()

    @property
    def entry(self) -> Entry:
        """What pays for it: a draft until it begins, then as it is on record."""
        return self._state.entry

    @property
    def mechanism(self) -> NoisySgd:
        """Its noisy steps."""
        return self.gradients.plan.mechanism

    def _multiplier(self, draft: Entry) -> float:
        """Return the noise multiplier: as stated, as what the ledger leaves room for, or of this very loop begun before."""
        terms = self.settings
        account = self.ledger.account(self.lineage)
        (steps,) = draft.of(NoisySgd)
        steps = replace(steps, noise_multiplier=terms.noise_multiplier or 0.0)
        try:
            if terms.epsilon is not None:
                steps = calibrate_noise(terms.epsilon, terms.delta, steps, Planned(account))
            drafts = (replace(draft, mechanisms=(steps, *draft.mechanisms[1:])),)
            (account + drafts).epsilon(terms.delta)  # refuses what the accountant cannot take
            account.check_budget(drafts)
        except BudgetError:
            wanted = (draft.facts, draft.part)
            begun = [entry for entry in account.paid if draft.facts and (entry.facts, entry.part) == wanted]
            if not begun:
                raise
            (steps,) = begun[-1].of(NoisySgd)  # for a state that is loaded; without one it is refused as it begins
        return steps.noise_multiplier

    def __len__(self) -> int:
        return self.mechanism.steps

    def __iter__(self) -> Iterator[Step]:
        """Pay, then yield the steps, one after the other.

        Raises:
            InputError: the loop has run, and another costs another release; or it is another process's.
            BudgetError: the ledger has come to hold more since, and both exceed the budget.
        """
        with self._lock:
            if self._state.begun:
                raise InputError("PrivateLoop: it has run, and paid for that; make another one to train on")
            self._check_process()
            if not self._state.loaded:
                enter = partial(pay, self._plan, self.ledger)
                paid = self._ranks.together(enter if self._ranks.first else lambda: None)
                if paid is not None:
                    self._take_over(paid)
            elif self._state.loaded != self._weights_id():
                raise InputError("model: its weights are not those that the state was saved with; load these as well")
            self._move(begun=True)
        return self._steps()

    def _move(self, **changes: Any) -> None:
        with self._lock:
            self._state = replace(self._state, **changes)

    def _plan(self, book: Book, entered: Entry | None) -> Once[None]:
        """Return what pays for the steps, with the noise on record where they are paid for; it draws nothing itself."""
        account = book.account(self.lineage)
        budget = self.settings.epsilon
        drafts = (self.entry,)
        if entered is not None:
            drafts = (replace(self.entry, mechanisms=(*entered.of(NoisySgd), *self.entry.mechanisms[1:])),)
        elif budget is not None and (total := (account + drafts).epsilon(self.settings.delta)) > budget:
            raise BudgetError(
                f"epsilon: with what the ledger holds by now this comes to {figure(total)}, above the budget of"
                f" {budget:g}; make the loop anew"
            )
        check_unprotected(account, drafts, allowed=False)
        return Once(drafts[0], self.lineage, lambda _: None)

    def _take_over(self, paid: Paid[None]) -> None:
        (steps,) = paid.entry.of(NoisySgd)
        self.gradients.plan = replace(self.gradients.plan, mechanism=steps)
        self._move(entry=paid.entry, lineage=paid.lineage)

    def _steps(self) -> Iterator[Step]:
        on_step = self.settings.on_step if self._ranks.first else None
        account = self.ledger.account(self.lineage).without(self.entry)
        beside = Planned(account, self.entry.part, self.entry.mechanisms[1:])
        odometer = None if on_step is None else Odometer(beside, self.mechanism, self.settings.delta)
        for number in self._numbers():
            self._move(due=number)
            yield Step(self, number)
            self._move(due=0)
            if on_step is not None and odometer is not None:
                on_step(number, odometer.after(number))
        self._move(ended=self._weights_id())

    def _numbers(self) -> Iterator[int]:
        """Yield numbers of steps to draw: all, or block after block, as long as the ledger has any."""
        every, last = self.settings.save_every, self.mechanism.steps
        if every is None:
            yield from range(1, last + 1)
            return
        words = f"up to {every} steps of a loop"
        while (done := hand_out(self.ledger, self.entry, math.ceil(last / every), words)) is not None:
            yield from range(done * every + 1, min((done + 1) * every, last) + 1)

    def _check_process(self) -> None:
        if self._process != os.getpid():
            raise InputError(
                "PrivateLoop: it was made in another process, where it may run as well, and two would share one payment;"
                " make it in this one"
            )

    def _take(self, number: int) -> None:
        """Take the gradient of a step, once: it is the loop that knows whether a step had it, whoever copies the step."""
        with self._lock:  # threads take their steps one after the other
            self._check_process()
            if number != self._state.due:
                raise InputError(f"step {number}: its one gradient was taken, or the loop has moved on; call it once")
            self._move(due=0)
            self.gradients.backward()
            self._move(taken=self._state.taken + 1)

    def state_dict(self) -> dict[str, Any]:
        """Return what a loop made alike, in any process that has the ledger, needs to go on; save model and optimizer too.

        The ledger hands out the paid steps in blocks of ``save_every``, each once: save at the end of one. There is no key.

        Raises:
            InputError: the loop has no ``save_every``, or has not begun.
        """
        if self.settings.save_every is None or not self._state.begun:
            raise InputError("`state_dict`: only a loop that has `save_every` and has begun has one")
        return {
            "of": dict(self._facts),
            "id": self.entry.id,
            "step": self._state.taken,
            "weights": self._weights_id(),
            "gradients": {name: value.clone() for name, value in self.gradients.state().items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the steps that another loop paid for and nobody was handed. Load model and optimizer before iterating.

        Args:
            state: of a loop with the same model, records and settings, which this ledger has paid for.

        Raises:
            InputError: it is of another loop, or its ledger is not this one. Nothing is spent, here or otherwise.
        """
        if self._state.begun or self.settings.save_every is None:
            raise InputError("`state_dict`: goes into a loop that has `save_every` and has not begun")
        with self._lock:
            with reading():
                begun = Checkpoint("a state", {"of": dict(state["of"]), "id": state["id"]})
                step, weights, tensors = int(state["step"]), str(state["weights"]), state["gradients"]
            paid = pay(self._plan, self.ledger, Checkpoints(begun), self._facts)
            with reading():
                self.gradients.resume(step, tensors)
            self._move(taken=step, loaded=weights)
            self._take_over(paid)

    def audit(self, confidence: float = 0.95) -> Findings:
        """Lower bounds on the epsilon of this loop, from its canaries.

        Args:
            confidence: that they hold with, in [0.5, 1).

        Raises:
            InputError: the loop had no canaries, or too few, or has not run.
        """
        from dpltm.audit import examine  # it takes half a second to import, which a training has no use for

        observations = self.gradients.observations
        if observations is None or not self._state.begun:
            raise InputError(
                "`audit`: no canaries were in the steps of this loop; make one with audit=1000, and audit it on rank 0 after"
                " its last step"
            )
        return examine(observations, self.mechanism, self.settings.delta, confidence)

    def finish(
        self,
        *,
        bounds: tuple[float, float] = (0.0, 1.0),
        words: int | None = None,
        inputs: Callable[[Tensor], Any] | None = None,
    ) -> Run:
        """Return the run that the loop was, once it has ended: with a copy of the model, and what it depends on.

        Its figure is that of the whole plan, whatever was left out of it.

        Args:
            bounds: public range of ``x`` as it is stored, by which a run scales records.
            words: where ``x`` holds positions of words, their public number, in the place of ``bounds``.
            inputs: from scaled records, ``(batch, ...)`` float32 (of words: int64), to the arguments of the model, where it
                takes others. Whoever loads the run names it again.

        Raises:
            InputError: the loop has not ended, or its model was changed since; the model is none that a run holds, or gives
                something else for made-up records than behind ``bounds`` and ``inputs``.
        """
        state = self._state
        if not self._ranks.first or state.ended != self._weights_id():
            raise InputError(
                f"`finish`: the loop has not ended here ({state.taken} of {len(self)} gradients were taken), or the weights"
                " of `model` were changed since, which is in no ledger; iterate to its end on rank 0, and finish it then"
            )
        terms, (x, y), plan = self.settings, self.records, self.gradients.plan
        dtype = (x[:0] if isinstance(x, Tensor) else torch.from_numpy(x[:0].copy())).dtype
        tables: tuple[int, ...] = ()
        if words is not None:
            tables, bounds = (whole_number("words", words),), (0.0, float(words) - 1)
        elif dtype in (torch.int32, torch.int64):
            raise InputError(
                "`words` is missing: the records are whole numbers, positions of words; say how many there are"
            )
        affine(bounds)
        declared = self.provenance if self.provenance in ("data-free", "public") else None
        own = own_model(self.model, inputs=inputs, start_provenance=declared)
        pruned = None if terms.mask is None else terms.mask.prunable
        network, built = network_trained(own, tuple(x.shape[1:]), tables, _label_form(y), pruned, lineage=self.lineage)
        _check_computes_the_same(network, built, self, dtype, bounds)
        live = {name: value.cpu() for name, value in (terms.mask or {}).items() if name not in network.frozen}
        mask = dense_mask(network).replaced(live)
        if any(bool(value[~mask[name]].any()) for name, value in built.named_parameters()):
            raise InputError(
                "`model`: a pruned weight is not zero; an optimizer with the loop's gradients alone leaves it so"
            )
        clips: list[Any] = [terms.filter, *(getattr(terms.filter, place, None) for place in ("before", "after"))]
        clip_norm = next((clip.clip_norm for clip in clips if hasattr(clip, "clip_norm")), None)
        options = {**terms.options, "accountant": "pld", "filter": str(terms.filter), "clip_norm": clip_norm}
        resolved = {**plan.step_facts(mask), "kernels": dict(self.gradients.gradients.kernels)}
        report = self.report()
        return Run(
            plan.run_config(network, self.entry, bounds, terms.units is not None, options=options, resolved=resolved),
            built,
            mask,
            metrics=({"step": state.taken, "epsilon": json_figure(report.certified.epsilon), "accuracy": None},),
            privacy=report,
            ledger=self.ledger,
            lineage=state.lineage | self.ledger.lineage(self.entry, *handed_out(self.ledger.book, self.entry)),
            observations=self.gradients.observations,
            network=network,
        )

    def _weights_id(self) -> str:
        values = weights_of(self.model)
        return content_id({name: value.cpu().reshape(-1).view(torch.uint8).numpy() for name, value in values.items()})

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Raise InputError: a copy would run on the one release that was paid for."""
        raise InputError("`PrivateLoop`: it cannot be copied, since it runs once; make another one")

    def report(self) -> PrivacyReport:
        """Return certified and nominal epsilon of all that counts with the loop, run or not, in this rank's ledger."""
        terms, steps = self.settings, self.gradients
        notes = [*self._notes, *steps.plan.step_notes(terms.noun, [steps.gradients])]
        drafts = () if self._state.begun and self._ranks.first else (self.entry,)
        return statement(
            self.ledger.account(self.lineage) + drafts, terms.delta, adjacency=self.mechanism.adjacency, notes=notes
        )


def _by_person(
    terms: LoopSettings, x: Tensor | np.ndarray, y: Tensor | np.ndarray
) -> tuple[Rows, list[np.ndarray] | None]:
    """Return records as a ledger knows them, and the places of those of each person that count."""
    values, labels = (part.detach().cpu().float().numpy() if isinstance(part, Tensor) else part for part in (x, y))
    rows = Rows(values, labels)
    if terms.units is None:
        return rows, None
    raw = RawSplit(values, None, "records", units=as_array(terms.units, "units"), units_name=terms.noun)
    rows = rows.owned(checked_units(raw), terms.noun)
    persons = places_of_persons(rows, terms.per_unit or PER_UNIT)
    if len(persons) < 2:
        raise InputError("`units`: all records are one person's, so nothing can be learned of many")
    return rows, persons


def _exposed(mask: Mask | None, lineage: Lineage | None, provenance: str | None) -> tuple[Unprotected, ...]:
    """Return what is entered of a mask that its maker declares to be made from private records with no mechanism."""
    if provenance not in (None, "data-free", "public", "private"):
        raise InputError("provenance", provenance, "data-free, public or private")
    if mask is not None and lineage is None and provenance is None:
        raise InputError(
            "`mask`: it does not say what it was made from; pass `lineage` (tickets.lineage), or declare `provenance`"
            " data-free, public or private"
        )
    return (Unprotected(),) if provenance == "private" else ()


def _label_form(y: Tensor | np.ndarray) -> LabelForm | None:
    """Return the form of labels that are no class numbers, of more than one dimension or quantities; None of others."""
    quantities = y.is_floating_point() if isinstance(y, Tensor) else y.dtype.kind == "f"
    form = LabelForm("float32" if quantities else "int64", tuple(y.shape[1:]))
    return form if quantities or y.ndim > 1 else None


@torch.no_grad()
def _check_computes_the_same(
    network: OwnNetwork, built: nn.Module, loop: PrivateLoop, dtype: torch.dtype, bounds: tuple[float, float]
) -> None:
    """Raise InputError unless a run gives, for made-up records, what the model of the loop gives for them."""
    model = loop.model
    like = next(model.parameters())
    made_up = network.made_up().numpy()
    stored = torch.from_numpy(made_up if network.tables else unscale(made_up, bounds)).unflatten(
        1, network.record_shape
    )
    stored = stored.to(dtype) if dtype.is_floating_point else stored.round().to(dtype)
    records = Records(stored, np.zeros(len(stored)), dtype=like.dtype, device=like.device)
    with evaluating(model), evaluating(built):
        wanted = computed(model, records.take(np.arange(len(stored)))[0], network.text).cpu()
        numbers = built(torch.from_numpy(prepare(stored.float().numpy(), bounds, network.tables)))
    largest = max(float(wanted.abs().max()), 1e-30)
    if wanted.shape != numbers.shape or not torch.allclose(
        numbers, wanted, rtol=0, atol=AGREE * largest, equal_nan=True
    ):
        raise InputError(
            f"`bounds`, `inputs`: a run scales records by `bounds` ({bounds[0]:g}, {bounds[1]:g}), and for made-up ones its"
            " network then gives something else than the model of the loop; give the public range of `x`, and `inputs`,"
            " from scaled records to what the model takes"
        )
