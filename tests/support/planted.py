"""Bugs, to be planted one at a time: what a careless change would do to a mechanism, and what should catch it."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import torch

import adversary_cases as cases
from adversary import Case
from dpltm import data, models, sampling, selection, synthetic, training
from dpltm.features import centre
from dpltm.filters import Clip, Tanh
from dpltm.local.channels import Channel
from dpltm.noise import FastSource
from dpltm.privacy.events import UNKNOWN_RECORDS, Event, TrainingEvent
from dpltm.privacy.ledger import Ledger
from dpltm.stages import train as train_stage
from dpltm.tickets.workbench import tune
from entries import having
from neighbours import LABELLED, LOUD

TRAINING = Case("train", ((*cases.TRAIN, *cases.SMALL, *cases.NOISE),), odd=(LOUD,))


@dataclass(frozen=True)
class Bug:
    """A bug.

    Attributes:
        name: what is wrong.
        kind: of the mismatch that tells it.
        plant: puts it in for the length of a block.
        case: where it shows.
    """

    name: str
    kind: str
    plant: Callable[[], AbstractContextManager[Any]]
    case: Case = TRAINING


def _wrapped(owner: Any, name: str, wrapper: Callable[..., Any]) -> AbstractContextManager[Any]:
    """``wrapper(original, *arguments)`` in place of a function or method."""
    original = vars(owner)[name]

    @functools.wraps(original)
    def called(*arguments: Any, **named: Any) -> Any:
        return wrapper(original, *arguments, **named)

    stack = contextlib.ExitStack()
    for place in _bound_in(original, owner, name):
        stack.enter_context(mock.patch.object(place, name, called))
    return stack


def _bound_in(original: Any, owner: Any, name: str) -> list[Any]:
    """Where a function is known by its name: of a module, also in those that import it."""
    modules = [module for known, module in sys.modules.items() if known.split(".")[0] == "dpltm"]
    others = [module for module in modules if module is not owner and vars(module).get(name) is original]
    return [owner, *(others if isinstance(owner, ModuleType) else ())]


def _no_clipping() -> AbstractContextManager[Any]:
    return mock.patch.object(Clip, "factor", lambda _, norm: torch.ones_like(norm))


def _half_the_noise() -> AbstractContextManager[Any]:
    return _wrapped(training, "gaussian", lambda original, source, count: original(source, count) / 2)


def _one_draw_twice() -> AbstractContextManager[Any]:
    drawn: list[np.ndarray] = []

    def gaussian(original: Any, source: Any, count: int) -> np.ndarray:
        drawn.append(drawn.pop() if len(drawn) % 2 else original(source, count))
        return drawn[-1]

    return _wrapped(training, "gaussian", gaussian)


@contextlib.contextmanager
def _event_after_use() -> Iterator[None]:
    held: list[tuple[Ledger, Event]] = []
    trained: list[bool] = []

    def append(original: Any, ledger: Ledger, event: Event) -> None:
        if isinstance(event, TrainingEvent) and not trained:
            held.append((ledger, event))
        else:
            original(ledger, event)

    def descend(original: Any, *arguments: Any) -> None:
        original(*arguments)
        trained.append(True)
        for ledger, event in held:
            ledger.append(event)
        held.clear()
        trained.clear()

    with _wrapped(Ledger, "append", append), _wrapped(train_stage, "descend", descend):
        yield


def _event_on_other_records() -> AbstractContextManager[Any]:
    return _wrapped(
        Ledger, "append", lambda original, ledger, event: original(ledger, replace(event, dataset=UNKNOWN_RECORDS))
    )


@contextlib.contextmanager
def _realised_batch() -> Iterator[None]:
    sizes: list[int] = []

    def sample(original: Any, *arguments: Any) -> np.ndarray:
        found: np.ndarray = original(*arguments)
        sizes.append(len(found))
        return found

    def mean(original: Any, total: Any, noise_std: float, _: float, source: Any) -> Any:
        return original(total, noise_std, max(sizes[-1], 1), source)

    with _wrapped(training, "poisson_sample", sample), _wrapped(training, "noisy_mean", mean):
        yield


def _tanh_with_bound_one() -> AbstractContextManager[Any]:
    return mock.patch.object(Tanh, "certified_bound", return_value=1.0)


def _shuffled_batches() -> AbstractContextManager[Any]:
    order: list[int] = []

    def sample(_: Any, source: Any, records: int, rate: float) -> np.ndarray:
        if not order:
            keys = np.frombuffer(source.random_bytes(4 * records), dtype=np.uint32)
            order.extend(np.argsort(keys).tolist())
        batch = [order.pop() for _ in range(min(len(order), round(rate * records)))]
        return np.sort(np.array(batch))

    return _wrapped(training, "poisson_sample", sample)


def _twice_the_rate() -> AbstractContextManager[Any]:
    return _wrapped(
        training, "poisson_sample", lambda original, source, n, rate: original(source, n, min(2 * rate, 1))
    )


def _scaled_by_the_records() -> AbstractContextManager[Any]:
    """Features are scaled by the largest of the records at hand."""

    def take(original: Any, records: Any, index: np.ndarray) -> Any:
        x, y = original(records, index)
        return x * float(np.abs(records._x).mean()) / 100, y

    return _wrapped(sampling.Records, "take", take)


def _true_number_in_the_answer() -> AbstractContextManager[Any]:
    def facts(original: Any, plan: Any) -> Any:
        return {**original(plan), "records": len(plan.dataset.train)}

    return _wrapped(train_stage, "facts", facts)


def _other_epsilon() -> AbstractContextManager[Any]:
    return _wrapped(
        train_stage, "two_sided_geometric", lambda original, source, epsilon: original(source, 10 * epsilon)
    )


def _plain_accuracy() -> AbstractContextManager[Any]:
    return _wrapped(train_stage, "two_sided_geometric", lambda *_: 0)


def _sharper_draw() -> AbstractContextManager[Any]:
    exponent = vars(selection.SelectionPlan)["exponent"].fget
    return mock.patch.object(selection.SelectionPlan, "exponent", property(lambda plan: 2 * exponent(plan)))


def _best_ticket() -> AbstractContextManager[Any]:
    return _wrapped(selection, "draw_exponential", lambda *given: int(np.argmax(given[2])))


def _half_a_sensitivity() -> AbstractContextManager[Any]:
    sensitivity = vars(selection.SelectionPlan)["sensitivity"].fget
    return mock.patch.object(selection.SelectionPlan, "sensitivity", property(lambda plan: sensitivity(plan) / 2))


def _centre_unclipped() -> AbstractContextManager[Any]:
    def mean(original: Any, batches: Any, *arguments: Any) -> Any:
        return original((rows * 10 for rows in batches), *arguments)

    with_bound = mock.patch.object(centre, "_WITHIN", 1e9)
    stack = contextlib.ExitStack()
    stack.enter_context(with_bound)
    stack.enter_context(_wrapped(train_stage, "release_mean", mean))
    return stack


def _moments_of_whole_records() -> AbstractContextManager[Any]:
    """Directions are taken for records of norm 2."""
    return _wrapped(synthetic, "_whole_directions", lambda original, x: 2 * original(x))


def _bolder_bits() -> AbstractContextManager[Any]:
    def send(original: Any, channel: Channel, packed: np.ndarray, source: Any) -> np.ndarray:
        bolder = tuple(replace(bit, one=min(bit.one + 2**60, 2**64 - 1)) for bit in channel.pattern)
        return original(replace(channel, pattern=bolder), packed, source)

    return _wrapped(Channel, "send", send)


def _shared_coins() -> AbstractContextManager[Any]:
    def send(original: Any, channel: Channel, packed: np.ndarray, source: Any) -> np.ndarray:
        rows = [original(channel, row[None], FastSource(5)) for row in packed]
        source.random_bytes(8)
        return np.concatenate(rows)

    return _wrapped(Channel, "send", send)


def _event_in_memory() -> AbstractContextManager[Any]:
    return _wrapped(Ledger, "append", lambda _, ledger, event: ledger._events.append(event))


def _events(change: Callable[[TrainingEvent], Event | None]) -> AbstractContextManager[Any]:
    """Ledgers take in something else in place of a training."""

    def append(original: Any, ledger: Ledger, event: Event) -> None:
        changed = change(event) if isinstance(event, TrainingEvent) else event
        if changed is not None:
            original(ledger, changed)

    return _wrapped(Ledger, "append", append)


def _no_event() -> AbstractContextManager[Any]:
    return _events(lambda _: None)


def _other_relation() -> AbstractContextManager[Any]:
    return _events(lambda event: having(event, adjacency="replace-one"))


def _event_tells() -> AbstractContextManager[Any]:
    """The event holds the true number of records."""
    return _events(lambda event: replace(event, filter=f"{event.filter}, {_records_here()} records"))


def _records_here() -> int:
    with np.load("d.npz") as stored:
        return len(stored["y_train"])


def _more_steps_for_more_records() -> AbstractContextManager[Any]:
    def descend(original: Any, gradients: Any, *progress: Any) -> None:
        if len(gradients._records) % 2:
            gradients.backward()
        original(gradients, *progress)

    return _wrapped(train_stage, "descend", descend)


def _fewer_steps() -> AbstractContextManager[Any]:
    def descend(original: Any, gradients: Any, progress: Any) -> None:
        original(gradients, lambda done: progress(done) or done == gradients.config.steps - 1)

    return _wrapped(train_stage, "descend", descend)


def _random_seed() -> AbstractContextManager[Any]:
    def build(original: Any, *arguments: Any) -> Any:
        torch.rand(1)
        return original(*arguments)

    return _wrapped(models, "_make", build)


def _search_on_the_records() -> AbstractContextManager[Any]:
    def search(original: Any, *arguments: Any) -> Any:
        data.load("d.npz", classes=3)
        return original(*arguments)

    return _wrapped(tune, "tune", search)


EVALUATED = Case("eval", ((*cases.TRAIN, *cases.SMALL, *cases.NOISE, "--eval-private", "1"),), odd=(LOUD,))
DRAWN = Case("select", (("select", "pub", *cases.TABLE, "--eps1", "2", "--json"),), odd=LABELLED, before=(cases.SET,))
CENTRED = Case("centre", ((*cases.TRAIN, "--features", "unit", "--centre", "0.2", "--epsilon", "3"),), odd=(LOUD,))
MADE_UP = next(case for case in cases.ticket_cases() if case.name == "generate dp-synthetic")
MESSAGES = next(case for case in cases.latent_cases() if case.name == "latent encode rappor 4")
SEARCH = next(case for case in cases.sweep_cases() if case.name == "tune")
SHARED = Case("train --ledger", ((*TRAINING.commands[0], "--ledger", "all.jsonl"),), odd=(LOUD,))
PRINTED = Case(
    "tanh", ((*cases.TRAIN, *cases.NOISE, "--filter", "tanh", *cases.FILTERS["tanh as printed"]),), odd=(LOUD,)
)

BUGS = (
    Bug("no clipping", "sensitivity", _no_clipping),
    Bug("noise of half the scale", "scale", _half_the_noise),
    Bug("one noise draw used twice", "reuse", _one_draw_twice),
    Bug("event after use", "late", _event_after_use),
    Bug("event on other records", "records", _event_on_other_records),
    Bug("realised batch as divisor", "divisor", _realised_batch),
    Bug("element-wise tanh with bound 1", "sensitivity", _tanh_with_bound_one, PRINTED),
    Bug("shuffled batches instead of Poisson", "coins", _shuffled_batches),
    Bug("twice the sampling rate", "coins", _twice_the_rate),
    Bug("features scaled by the records at hand", "sensitivity", _scaled_by_the_records),
    Bug("true number of records in the answer", "output", _true_number_in_the_answer),
    Bug("evaluation at another epsilon", "scale", _other_epsilon, EVALUATED),
    Bug("evaluation without noise", "mechanism", _plain_accuracy, EVALUATED),
    Bug("winner drawn at twice the epsilon", "scale", _sharper_draw, DRAWN),
    Bug("best ticket taken", "mechanism", _best_ticket, DRAWN),
    Bug("half the sensitivity of a score", "sensitivity", _half_a_sensitivity, DRAWN),
    Bug("centre of records that are not clipped", "sensitivity", _centre_unclipped, CENTRED),
    Bug("moments of records of norm 2", "sensitivity", _moments_of_whole_records, MADE_UP),
    Bug("bits sent with other odds", "mechanism", _bolder_bits, MESSAGES),
    Bug("no event", "unpaid", _no_event, SHARED),
    Bug("event for another relation", "relation", _other_relation),
    Bug("true number of records in the event", "event", _event_tells),
    Bug("one step more where records are odd in number", "replay", _more_steps_for_more_records),
    Bug("fewer steps than are charged", "count", _fewer_steps),
    Bug("a draw from the process's own generator", "stray", _random_seed),
    Bug("search on the private records", "read", _search_on_the_records, SEARCH),
    Bug("all records on the same coins", "reuse", _shared_coins, MESSAGES),
    Bug("event that is not on disk when it is used", "late", _event_in_memory, SHARED),
)
"""The first eight are those that a review asked for; the others reach every other kind of mismatch, and every mechanism."""
