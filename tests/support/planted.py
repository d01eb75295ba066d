"""Bugs, to be planted one at a time: what a careless change would do to a mechanism, and what should catch it."""

import contextlib
import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np
import torch

import adversary_cases as cases
from adversary import Case
from dpltm import networks as models
from dpltm import records as data
from dpltm.features import normalisation
from dpltm.filters import Tanh
from dpltm.gradients import engine
from dpltm.local.channels import Channel
from dpltm.networks import evaluation
from dpltm.privacy import selection
from dpltm.privacy.entry import UNKNOWN_RECORDS, Entry
from dpltm.privacy.ledger import Book, Ledger
from dpltm.privacy.mechanisms import NoisySgd
from dpltm.randomness import banded_noise, second_moments
from dpltm.randomness.noise import FastSource
from dpltm.records import batches, units
from dpltm.records.units import ABSENT
from dpltm.tickets.ledger_file import FileStore
from dpltm.tickets.workbench import stages
from dpltm.training import descent as training
from dpltm.training import least_squares
from dpltm.training import plan as steps
from dpltm.training import release as training_release
from neighbours import LABELLED, LOUD
from recorder import wrapped

PLAIN = f"{cases.TRAIN} {cases.NOISE}"
TRAINING = Case("train", (f"{PLAIN} {cases.SMALL}",), odd=(LOUD,))


@dataclass(frozen=True)
class Bug:
    """What is wrong, the kind of mismatch that tells it, what plants it for the length of a block, and where it shows."""

    name: str
    kind: str
    plant: Callable[[], AbstractContextManager[Any]]
    case: Case = TRAINING


def _around(owner: Any, name: str, wrapper: Callable[..., Any]) -> AbstractContextManager[Any]:
    """``wrapper(original, *arguments)`` in place of a function, also in modules that import it, or of a method."""
    stack = contextlib.ExitStack()
    for place, bound, called in wrapped(owner, name, wrapper):
        stack.enter_context(mock.patch.object(place, bound, called))
    return stack


def _other(owner: Any, name: str, wrapper: Callable[..., Any]) -> Callable[[], AbstractContextManager[Any]]:
    """As :func:`_around`, to be entered later."""
    return lambda: _around(owner, name, wrapper)


def _answering_records() -> AbstractContextManager[Any]:
    """What was settled names the records at hand."""
    settled = vars(training_release.TrainingPlan)["resolved"].fget
    told = property(lambda made: {**settled(made), "records": len(made.dataset.train)})
    return mock.patch.object(training_release.TrainingPlan, "resolved", told)


def _scaled(owner: Any, name: str, factor: float) -> Callable[[], AbstractContextManager[Any]]:
    """So many times a property."""
    stated = vars(owner)[name].fget
    return lambda: mock.patch.object(owner, name, property(lambda of: factor * stated(of)))


def _entries(change: Callable[[Entry], Entry | None]) -> Callable[[], AbstractContextManager[Any]]:
    """Ledgers take in something else in place of a training; or nothing, and say that they did."""

    def enter(original: Any, ledger: Ledger, draft: Entry, id: str, planned_on: Any) -> Entry:
        changed = change(draft) if draft.of(NoisySgd) else draft
        if changed is None:
            return replace(draft, id=id, home="0" * 64, sequence=1)
        entry: Entry = original(ledger, changed, id, planned_on)
        return entry

    return _other(Ledger, "enter", enter)


@contextlib.contextmanager
def _untried(bug: AbstractContextManager[Any]) -> Iterator[None]:
    """A bug of a filter, where nobody tries filters out: the trial would refuse it before anything is spent."""
    with bug, mock.patch.object(steps, "check_filter_bound"):
        yield


def _half_the_scale(mechanism: str) -> Callable[[], AbstractContextManager[Any]]:
    return _other(training, mechanism, lambda original, values, std, *others: original(values, std / 2, *others))


def _one_draw_twice(mechanism: str = "gaussian_mechanism") -> AbstractContextManager[Any]:
    drawn: list[Any] = []

    def repeated(original: Any, values: Any, noise_std: float, source: Any, divisor: float = 1.0) -> Any:
        drawn.append(drawn.pop() if len(drawn) % 2 else original(0 * values, noise_std, source))
        return (values + drawn[-1]) / divisor

    return _around(training, mechanism, repeated)


@contextlib.contextmanager
def _entry_after_use() -> Iterator[None]:
    held: list[tuple[Any, Ledger, Entry, str]] = []

    def enter(original: Any, ledger: Ledger, draft: Entry, id: str, planned_on: Any) -> Entry:
        if not draft.of(NoisySgd):
            return original(ledger, draft, id, planned_on)  # type: ignore[no-any-return]
        held.append((original, ledger, draft, id))
        return replace(draft, id=id, home="0" * 64, sequence=1)

    def descend(original: Any, *arguments: Any, **named: Any) -> None:
        original(*arguments, **named)
        for _, ledger, draft, id in held:
            ledger.declare(replace(draft, words=f"{draft.words}, at last"))
            del id
        held.clear()

    with _around(Ledger, "enter", enter), _around(training.Descent, "run", descend):
        yield


@contextlib.contextmanager
def _never_written() -> Iterator[None]:
    held: dict[Any, Book] = {}

    def add(original: Any, store: Any, before: Book, after: Book, *_: Any) -> None:
        del original, before
        held[store._path] = after

    def read(original: Any, store: Any) -> Book:
        book: Book = held[store._path] if store._path in held else original(store)
        return book

    with _around(FileStore, "add", add), _around(FileStore, "read", read):
        yield


@contextlib.contextmanager
def _realised_batch() -> Iterator[None]:
    sizes: list[int] = []

    def sample(original: Any, *arguments: Any) -> np.ndarray:
        found: np.ndarray = original(*arguments)
        sizes.append(len(found))
        return found

    def mean(original: Any, total: Any, noise_std: float, _: float, *others: Any) -> Any:
        return original(total, noise_std, max(sizes[-1], 1), *others)

    with _around(training, "poisson_sample", sample), _around(training, "noisy_mean", mean):
        yield


def _shuffled_batches() -> AbstractContextManager[Any]:
    order: list[int] = []

    def sample(_: Any, source: Any, records: int, rate: float) -> np.ndarray:
        if not order:
            keys = np.frombuffer(source.random_bytes(4 * records), dtype=np.uint32)
            order.extend(np.argsort(keys).tolist())
        batch = [order.pop() for _ in range(min(len(order), round(rate * records)))]
        return np.sort(np.array(batch))

    return _around(training, "poisson_sample", sample)


def _one_step_more(original: Any, *given: Any) -> Iterator[np.ndarray]:
    """The first record is in a step that it was not drawn for."""
    free = True
    for theirs in original(*given):
        yield np.append(0, theirs) if free and 0 not in theirs else theirs
        free = free and 0 in theirs


def _anew_each_step(original: Any, gradients: Any, records: int) -> np.ndarray:
    gradients._allocated = None
    found: np.ndarray = original(gradients, records)
    return found


def _scaled_by_the_records(original: Any, records: Any, index: np.ndarray) -> Any:
    """Features are scaled by the largest of the records at hand."""
    x, y = original(records, index)
    return x * float(np.abs(records._x).mean()) / 100, y


@contextlib.contextmanager
def _centre_unclipped() -> Iterator[None]:
    def sums(original: Any, batches: Any, width: int, bound: float, *arguments: Any) -> Any:
        return original((rows * 10 for rows in batches), width, 16 * bound, *arguments)

    with _around(normalisation, "noisy_sum", sums):
        yield


def _bolder_bits(original: Any, channel: Channel, packed: np.ndarray, source: Any) -> np.ndarray:
    bolder = tuple(replace(bit, one=min(bit.one + 2**60, 2**64 - 1)) for bit in channel.pattern)
    return original(replace(channel, pattern=bolder), packed, source)


def _shared_coins(original: Any, channel: Channel, packed: np.ndarray, source: Any) -> np.ndarray:
    rows = [original(channel, row[None], FastSource(5)) for row in packed]
    source.random_bytes(8)
    return np.concatenate(rows)


def _of_mechanisms(**changes: Any) -> Callable[[Entry], Entry]:
    """Each mechanism of an entry is stated otherwise."""
    return lambda entry: replace(entry, mechanisms=tuple(replace(each, **changes) for each in entry.mechanisms))


def _records_here() -> int:
    with np.load("d.npz") as stored:
        return len(stored["y_train"])


def _more_steps_for_more_records(original: Any, descent: Any, *progress: Any) -> None:
    if len(descent.gradients._records) % 2:
        descent.gradients.backward()
    original(descent, *progress)


def _fewer_steps(original: Any, descent: Any, *progress: Any) -> None:
    planned = descent.gradients.plan
    shorter = copy.copy(planned.mechanism)
    object.__setattr__(shorter, "steps", shorter.steps - 1)  # whatever a mechanism says to that
    descent.gradients.plan = replace(planned, mechanism=shorter)
    original(descent, *progress)
    descent.gradients.plan = planned


def _in_every_part(original: Any, gradients: Any) -> Any:
    gradients._part_of[:4] = gradients.step % 2
    return original(gradients)


def _more_bands(entry: Entry) -> Entry:
    (made,) = entry.mechanisms
    return replace(entry, mechanisms=(replace(made, strategy=(*made.strategy, 0.0, 0.0)),))  # type: ignore[call-arg]


def _random_seed(original: Any, *arguments: Any) -> Any:
    torch.rand(1)
    return original(*arguments)


def _search_on_the_records(original: Any, *arguments: Any) -> Any:
    data.load("d.npz", classes=3)
    return original(*arguments)


CASES = {case.name: case for case in cases.all_cases()}
EVALUATED = replace(TRAINING, name="eval", commands=(f"{TRAINING.commands[0]} --eval-private 1",))
DRAWN = Case("select", (f"select pub {cases.TABLE} --eps1 2 --json",), odd=LABELLED, before=(cases.SET,))
CENTRED = Case("centre", (f"{cases.TRAIN} --features unit --centre 0.2 --epsilon 3",), odd=(LOUD,))
MESSAGES = CASES["latent encode rappor 4"]
OF_ERRORS = CASES["train --eval-private mae add-remove"]
COUNTED_PERSONS = CASES["train --eval-private people add-remove"]
BANDED = CASES["train --noise banded:2"]
OF_PERSONS = CASES["train --unit-column people 6 add-remove"]
SQUARES = CASES["train --head least-squares with second moments"]
ALLOCATED = CASES["train --sampling allocation --epsilon"]
SHARED = replace(TRAINING, name="train --ledger", commands=(f"{TRAINING.commands[0]} --ledger all.jsonl",))
PRINTED = Case("tanh", (f"{PLAIN} {cases.filtered('tanh as printed')}",), odd=(LOUD,))
GROUPED = Case("microbatch", (f"{PLAIN} {cases.SMALL} --steps 10 --microbatch 4 --lr 3",), odd=LABELLED)

# fmt: off
BUGS = (
    Bug("no clipping", "sensitivity",
        lambda: mock.patch.object(engine, "_factors", lambda _filter, norms, _bound: torch.ones_like(norms))),
    Bug("noise of half the scale", "scale", _half_the_scale("gaussian_mechanism")),
    Bug("one noise draw used twice", "reuse", _one_draw_twice),
    Bug("entry after use", "late", _entry_after_use),
    Bug("entry on other records", "records", _entries(lambda entry: replace(entry, part=UNKNOWN_RECORDS))),
    Bug("realised batch as divisor", "divisor", _realised_batch),
    Bug("element-wise tanh with bound 1", "sensitivity",
        lambda: _untried(mock.patch.object(Tanh, "certified_bound", return_value=1.0)), PRINTED),
    Bug("shuffled batches instead of Poisson", "coins", _shuffled_batches),
    Bug("twice the sampling rate", "coins",
        _other(training, "poisson_sample", lambda original, source, n, rate: original(source, n, min(2 * rate, 1)))),
    Bug("features scaled by the records at hand", "sensitivity",
        _other(batches.Records, "take", _scaled_by_the_records)),
    Bug("true number of records in the answer", "output", _answering_records),
    Bug("evaluation at another epsilon", "scale",
        _other(training_release, "two_sided_geometric", lambda original, source, epsilon: original(source, 10 * epsilon)),
        EVALUATED),
    Bug("evaluation without noise", "mechanism",
        _other(training_release, "two_sided_geometric", lambda *_: 0), EVALUATED),
    Bug("errors in the unit of the target", "sensitivity",
        _other(training_release, "count_correct", lambda original, *given, **more: 2 * original(*given, **more)),
        OF_ERRORS),
    Bug("every right answer of a person counted", "sensitivity",
        _other(evaluation, "total_score",
               lambda original, model, x, y, *more: original(model, x, y[y != ABSENT], *more)), COUNTED_PERSONS),
    Bug("winner drawn at twice the epsilon", "scale", _scaled(selection.SelectionPlan, "exponent", 2.0), DRAWN),
    Bug("best ticket taken", "mechanism",
        _other(selection, "draw_exponential", lambda *given: int(np.argmax(given[2]))), DRAWN),
    Bug("half the sensitivity of a score", "sensitivity", _scaled(selection.SelectionPlan, "sensitivity", 0.5), DRAWN),
    Bug("centre of records that are not clipped", "sensitivity", _centre_unclipped, CENTRED),
    Bug("every record of a person in the centre", "sensitivity",
        _other(least_squares, "_rows",
               lambda _, opened, compute, *_more: iter(
                   [compute(torch.from_numpy(np.array(opened.x, "f4")).flatten(0, 1), None)])),
        OF_PERSONS),
    Bug("records of persons chosen by how many there are", "replay",
        _other(units, "in_slots", lambda original, who, hashes, slots: original(who, hashes // len(who) % 7, slots)),
        OF_PERSONS),
    Bug("second moments of inputs of norm 2", "sensitivity",
        _other(second_moments, "whole_rows", lambda original, rows: 2 * original(rows)), SQUARES),
    Bug("second moments with half the noise", "sensitivity",
        _other(second_moments, "noisy_symmetric",
               lambda original, second, std, source: original(second, std / 2, source)), SQUARES),
    Bug("bits sent with other odds", "mechanism", _other(Channel, "send", _bolder_bits), MESSAGES),
    Bug("no entry", "unpaid", _entries(lambda _: None), SHARED),
    Bug("entry for another relation", "relation", _entries(_of_mechanisms(adjacency="replace-one"))),
    Bug("true number of records in the entry", "event",
        _entries(lambda entry: replace(entry, words=f"{entry.words}, {_records_here()} records"))),
    Bug("one step more where records are odd in number", "replay",
        _other(training.Descent, "run", _more_steps_for_more_records)),
    Bug("fewer steps than are charged", "count", _other(training.Descent, "run", _fewer_steps)),
    Bug("a draw from the process's own generator", "stray", _other(models, "_make", _random_seed)),
    Bug("search on the private records", "read", _other(stages, "tune", _search_on_the_records), CASES["tune"]),
    Bug("all records on the same coins", "reuse", _other(Channel, "send", _shared_coins), MESSAGES),
    Bug("entry that is not on disk when it is used", "late", _never_written, SHARED),
    Bug("one noise draw used twice in banded noise", "reuse", _one_draw_twice, BANDED),
    Bug("a record in two parts", "coins", _other(training.NoisyGradients, "_draw", _in_every_part), BANDED),
    Bug("fewer participations in the entry than there are", "coins", _entries(_more_bands), BANDED),
    Bug("parts by position", "coins",
        _other(batches.Records, "parts", lambda _, of, n: np.arange(len(of)) % n), BANDED),
    Bug("banded noise that is not taken off", "sensitivity",
        _other(banded_noise.BandedNoise, "query",
               lambda original, of, total, step: 2 * original(of, total, step) - total), BANDED),
    Bug("group of records counted as one", "sensitivity", lambda: mock.patch.object(steps, "FACTOR", 1.0), GROUPED),
    Bug("a record in one step more than drawn", "coins", _other(training, "allocate", _one_step_more), ALLOCATED),
    Bug("an allocation drawn anew each step", "coins",
        _other(training.NoisyGradients, "_sampled", _anew_each_step), ALLOCATED),
    Bug("an allocation entered as one of more steps", "coins",
        _entries(_of_mechanisms(steps=6, sampling_rate=2 / 6)), ALLOCATED),
)
# fmt: on
"""The first eight are those that a review asked for; the others reach every other kind of mismatch, and every mechanism."""

ON_DEVICE = replace(TRAINING, name="train on a GPU", commands=(f"{TRAINING.commands[0]} --device cuda",))
BUGS_ON_DEVICE = (
    Bug("noise of half the scale on a GPU", "scale", _half_the_scale("gaussian_mechanism_on_device"), ON_DEVICE),
    Bug(
        "one noise draw used twice on a GPU",
        "reuse",
        lambda: _one_draw_twice("gaussian_mechanism_on_device"),
        ON_DEVICE,
    ),
)
"""The same mistakes in what takes a mechanism's place on a GPU; to be planted where one is."""
