"""Runs commands with their random sources replaced, and writes down what privacy rests on.

A command reads private records in two places only: in the *query* that a mechanism adds noise to (or randomises, or draws a
winner by), and in the number of coins that a sampler tosses. A ``Recorder`` sits at both. It serves every random byte
itself, notes each query with the noise that met it, each sample with its coins, and each entry that a ledger took in, all in
one order. A second recorder that is given the first *replays*: records that both datasets share get the coins that they had,
and each mechanism answers what it answered the first time. Whatever still differs between two such runs on neighbouring
datasets went past the mechanisms. (The idea: Cebere et al. 2026, "Privacy in Theory, Bugs in Practice".)

Nothing here judges; ``adversary`` does.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import pkgutil
import random
import secrets
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import torch

import dpltm
import dpltm.cli
import dpltm.records
import dpltm.tickets
from dpltm.features import normalisation
from dpltm.local import channels, codebook, scheme
from dpltm.networks import evaluation
from dpltm.privacy import selection
from dpltm.privacy.entry import Entry, Part
from dpltm.privacy.ledger import Ledger
from dpltm.privacy.mechanisms import AllocatedSgd, NoisySgd
from dpltm.randomness import noise, second_moments
from dpltm.randomness.gaussian_mechanism import SEED, grid_step
from dpltm.randomness.noise import FastSource, KeyedSource, SecureSource
from dpltm.records import Dataset
from dpltm.records.batches import Records
from dpltm.tickets.ledger_file import FileStore
from dpltm.training import descent as training
from dpltm.training.descent import NoisyGradients
from dpltm.verbs import schema as private_columns

# A module that is first imported while a recorder is at work binds the recorder's functions by name, and keeps them. In an
# editable install dpltm.cli and dpltm.tickets lie outside the folder of dpltm, where a walk of dpltm alone misses them.
for _package in (dpltm, dpltm.cli, dpltm.tickets):
    for _module in pkgutil.walk_packages(_package.__path__, f"{_package.__name__}."):
        importlib.import_module(_module.name)

EXTRA = -1
"""What the record is called that only one of two neighbours has."""

NOBODYS = Part("public")
"""What a query is of where the private records were never read."""

COIN = 2**32
"""Coins are whole numbers below this."""


@dataclass(frozen=True)
class Entered:
    """An entry, from when it is on record; ``kept``: on disk, where the ledger is a file."""

    entry: Entry
    kept: bool


def part_of(dataset: Dataset) -> Part:
    """Which records these are, by name and cut."""
    return replace(dataset.part, name=dataset.name)


@dataclass
class Sample:
    """The records that enter one step.

    Attributes:
        ids: of the records at hand, ``(n,)``: their place in the first of two neighbours, or ``EXTRA``.
        coins: that they were given, ``(n,)``; None if no coins were asked for.
        asked: bytes that were asked for, one number a time.
        used: places of the records that went through the network.
        words: of 64 bits that each record was given, ``(n,)``: an allocation; and
        allocated: who is in the step by it.
        hashes: of the records at hand, ``(n,)``, from their values alone as docs/data.md has it, where they are no features.
    """

    ids: np.ndarray
    coins: np.ndarray | None = None
    words: list[np.ndarray] = field(default_factory=list)
    allocated: np.ndarray | None = None
    asked: list[int] = field(default_factory=list)
    used: list[np.ndarray] = field(default_factory=list)
    hashes: np.ndarray = field(default_factory=lambda: np.zeros(1, dtype=int))


@dataclass
class Release:
    """One answer of a mechanism.

    Attributes:
        mechanism: ``training``, ``score``, ``gaussian``, ``geometric``, ``exponential``, ``permute-and-flip``, ``response``
            or ``bits``.
        group: releases that answer one query in parts share it.
        records: that the query is of, and ``size`` how many of them there are in public.
        query: what the mechanism got, before any noise.
        answer: what it gave.
        values: the same as numbers on the scale of the query.
        noise: standard normal draws that the bytes served for it stand for, ``(k,)``; None where they stand for none.
        std: what it was told to multiply them by, one number or one each.
        facts: whatever else the mechanism was told.
        means: the mechanism itself, where it can be tried again.
    """

    mechanism: str
    group: int
    records: Part
    size: int
    query: np.ndarray
    answer: Any
    values: np.ndarray | None = None
    noise: np.ndarray | None = None
    std: np.ndarray | float = 0.0
    facts: dict[str, Any] = field(default_factory=dict)
    means: Any = None


@dataclass
class _Frame:
    """What is going on: whose bytes these are."""

    name: str
    sample: Sample | None = None
    silent: bool = False
    served: list[bytes] = field(default_factory=list)


class Recorder:
    """Records, within its ``with`` block, whatever this process does; or replays another recorder.

    Args:
        first: what is replayed; None to record.
        private: the name under which the private records are loaded.
        place: place of the record that is replaced, under replace-one.
        reference: which records these are, for a program that loads them itself; and
        size: their public number.

    Raises:
        RuntimeError: at the end of the block, if a module of the package was first imported within it.

    Attributes:
        log: everything, in order.
        reference: the private records.
        strays: random bytes that were asked for outside every known mechanism.
        loaded: names of all datasets that were read.
        faults: what kept the replay from following the first run.
    """

    def __init__(
        self,
        first: Recorder | None = None,
        *,
        private: str = "d",
        place: int = EXTRA,
        reference: Part | None = None,
        size: int = 0,
    ) -> None:
        self.log: list[Entered | Sample | Release] = []
        self.strays: list[str] = []
        self.loaded: list[str] = []
        self.faults: list[str] = []
        self._first, self._private, self.place = first, private, place
        self.reference, self._size = reference, size
        self._frames: list[_Frame] = []
        self._trained: list[tuple[np.ndarray, np.ndarray]] = []
        self._ids: dict[int, np.ndarray] = {}
        self._hashes: dict[int, np.ndarray] = {}
        self._counted, self._groups, self._turns = 0, 0, Counter[str]()
        self._plan: Any = None
        self._replaced = contextlib.ExitStack()
        self._before: list[Any] = []
        self._imported: set[str] = set()

    @property
    def releases(self) -> list[Release]:
        """Answers of mechanisms, in order."""
        return [entry for entry in self.log if isinstance(entry, Release)]

    @property
    def samples(self) -> list[Sample]:
        """Samples, in order."""
        return [entry for entry in self.log if isinstance(entry, Sample)]

    @property
    def entries(self) -> list[Entry]:
        """Entries that a ledger took in meanwhile, in order."""
        return [entered.entry for entered in self.log if isinstance(entered, Entered)]

    def __enter__(self) -> Recorder:
        self._imported = set(_modules())
        self._patch_sources()
        self._patch_data()
        self._patch_training()
        self._patch_queries()
        self._patch_local()
        self._before = _generators()
        return self

    def __exit__(self, *_: object) -> None:
        if _generators() != self._before:
            self.strays.append("a generator of the process itself has moved on")
        self._replaced.close()
        if late := sorted(_modules().keys() - self._imported):
            raise RuntimeError(
                f"{', '.join(late)}: first imported within a recorder, whose functions may stay there; import before"
            )

    # --- how functions are replaced ---------------------------------------------------------------------------------

    def _set(self, owner: Any, name: str, value: Any) -> None:
        self._replaced.enter_context(mock.patch.object(owner, name, value))

    def _around(self, owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
        for place, bound, called in wrapped(owner, name, wrapper):
            self._set(place, bound, called)

    @contextlib.contextmanager
    def _frame(self, name: str, sample: Sample | None = None, silent: bool = False) -> Iterator[_Frame]:
        self._frames.append(_Frame(name, sample, silent))
        try:
            yield self._frames[-1]
        finally:
            self._frames.pop()

    # --- bytes ------------------------------------------------------------------------------------------------------

    def _patch_sources(self) -> None:
        def serve(_original: Any, _source: Any, count: int) -> bytes:
            return self._serve(count)

        def fast(original: Any, source: Any, seed: int | None = None) -> None:
            original(source, seed)
            source.public = seed is not None  # such a stream is a public function of its seed

        def serve_fast(original: Any, source: Any, count: int) -> bytes:
            return original(source, count) if source.public else self._serve(count)

        self._around(SecureSource, "random_bytes", serve)
        self._around(KeyedSource, "random_bytes", serve)
        self._around(FastSource, "__init__", fast)
        self._around(FastSource, "random_bytes", serve_fast)
        # as it is bound, so that a planted one is seen as well
        for module in (training, second_moments, normalisation):
            self._set(module, "gaussian_mechanism", self._gaussian(module.gaussian_mechanism))
        # ids and keys of ledgers and releases: the same for neighbours, so that what else differs shows
        self._set(secrets, "token_bytes", lambda count=32: self._turn(f"{self._private} secret", count))
        self._set(secrets, "token_hex", lambda count=32: self._turn(f"{self._private} secret", count).hex())
        self._set(time, "perf_counter", lambda: 0.0)  # how long something took is written down here and there
        self._set(time, "time_ns", lambda: 0)

    def _gaussian(self, original: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
        def noisy(values: np.ndarray, noise_std: float, source: Any, *divisor: float) -> np.ndarray:
            silent = self._frames and self._frames[-1].silent
            return values.copy() if silent else original(values, noise_std, source, *divisor)

        return noisy

    def _serve(self, count: int) -> bytes:
        """Bytes for whoever asks: coins by record, anything else by its turn."""
        if not self._frames:
            self.strays.append(f"{count} bytes outside every mechanism")
            return self._turn("stray", count)
        frame = self._frames[-1]
        if frame.sample is not None:
            return self._coins(frame.sample, count)
        found = _hashed(f"{frame.name} {len(self.log)} {len(frame.served)}", count)
        if frame.name == "geometric":  # one of both draws far out, by turns, so that its scale shows
            words = np.frombuffer(found, dtype=np.uint64).copy()
            words[len(self.releases) % 2 :: 2] >>= np.uint64(20)
            found = words.tobytes()
        frame.served.append(found)
        return found

    def _turn(self, name: str, count: int) -> bytes:
        """Bytes that no mechanism asks for, by their turn alone: the same in every run."""
        self._turns[name] += 1
        return _hashed(f"{name} {self._turns[name]}", count)

    def _coins(self, sample: Sample, count: int) -> bytes:
        if count == 8 * len(sample.ids):
            words = b"".join(_hashed(f"word {each} {len(self.samples)} {len(sample.words)}", 8) for each in sample.ids)
            sample.words.append(np.frombuffer(words, dtype=np.uint64))
            return words
        sample.asked.append(count)
        if sample.allocated is not None or (len(sample.asked) == 2 and sample.coins is not None):
            inside = sample.allocated  # the group that each sampled record is in
            if sample.coins is not None:
                inside = sample.ids[sample.coins < self._threshold()]
            if count == 4 * len(inside):
                return b"".join(_hashed(f"group {record} {len(self.samples)}", 4) for record in inside)
        if count != 4 * len(sample.ids) or len(sample.asked) > 1:
            return self._turn("not a coin a record", count)
        step, edge = len(self.samples), self._threshold()
        sample.coins = np.array([self._coin(int(each), step, edge) for each in sample.ids], dtype=np.uint32)
        return sample.coins.tobytes()

    def _coin(self, record: int, step: int, edge: int) -> int:
        """A record's coin at a step: a hash; for a few just where the sampling rate decides; the neighbours' own is in, or
        out at every third step."""
        if record == self.place:
            return COIN - 1 if step % 3 == 0 else 0
        if record in (0, 1):
            return min(max(edge - (record + step) % 2, 0), COIN - 1)
        return int.from_bytes(_hashed(f"coin {record} {step}", 4), "little")

    def _threshold(self) -> int:
        """Coins below this are in, by the last training that is on record."""
        stated = [mechanism for entry in self.entries for mechanism in entry.mechanisms]
        rates = [one.sampling_rate for one in stated if isinstance(one, NoisySgd)]
        return int(rates[-1] * COIN) if rates else COIN // 2

    # --- which records ----------------------------------------------------------------------------------------------

    def _patch_data(self) -> None:
        def told(original: Any, *arguments: Any, **named: Any) -> Dataset:
            found: Dataset = original(*arguments, **named)
            self.loaded.append(found.name)
            if found.name == self._private:
                self.reference, self._size = part_of(found), found.records
            return found

        self._around(dpltm.records, "load", told)
        self._around(dpltm.records, "from_arrays", told)
        self._around(dpltm.records, "at_unit", told)

        def drafted(original: Any, *arguments: Any, **named: Any) -> Any:
            found = original(*arguments, **named)
            self.loaded.append(found.dataset.name)
            self.reference, self._size = part_of(found.dataset), found.dataset.records
            return found

        self._around(private_columns, "load_unfinished", drafted)
        self._around(Ledger, "enter", self._enter)
        self._around(Ledger, "declare", self._enter)

    def _enter(self, original: Any, ledger: Ledger, *given: Any, **named: Any) -> Any:
        before = len(ledger.entries)
        found = original(ledger, *given, **named)
        for entry in ledger.entries[before:]:
            self.log.append(Entered(entry, not isinstance(ledger._store, FileStore) or _written(entry)))
        return found

    def _where(self) -> Part:
        return self.reference or NOBODYS

    def _align(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Ids of records, by comparing them with those of the first run."""
        turn = len(self._trained)
        self._trained.append((x, y))
        if self._first is None:
            return np.arange(len(x))
        if turn >= len(self._first._trained):
            self.faults.append("training: there was none in the first run")
            return np.arange(len(x))
        old_x, old_y = self._first._trained[turn]
        found = _matched(old_x, old_y, x, y)
        if found is None:
            self.faults.append(f"training: {len(old_x)} and {len(x)} records are no neighbours")
            return np.arange(len(x))
        return found

    # --- training ---------------------------------------------------------------------------------------------------

    def _patch_training(self) -> None:
        def made(original: Any, gradients: NoisyGradients, *arguments: Any, **named: Any) -> None:
            original(gradients, *arguments, **named)
            records = gradients._records
            x, y = _plain(records._x), _plain(records._y)
            if records.persons is not None:
                x, y = _side_by_side(x, records.persons), _side_by_side(y, records.persons)
            self._ids[id(gradients)] = self._align(x, y)
            bodies = [row.astype("<f4").tobytes() for row in x]
            words = [int.from_bytes(hashlib.blake2b(body, digest_size=8).digest(), "little") for body in bodies]
            self._hashes[id(gradients)] = np.array(words, dtype=np.uint64) % 10**9

        def stepped(original: Any, gradients: NoisyGradients) -> None:
            sample = Sample(self._ids[id(gradients)], hashes=self._hashes[id(gradients)])
            self.log.append(sample)
            with self._frame("sampling", sample):
                original(gradients)

        def sampled(original: Any, gradients: NoisyGradients, records: int) -> np.ndarray:
            found: np.ndarray = original(gradients, records)
            if isinstance(gradients.plan.mechanism, AllocatedSgd) and self._frames[-1].sample is not None:
                self._frames[-1].sample.allocated = self._frames[-1].sample.ids[found]
            return found

        def batches(original: Any, records: Records, index: np.ndarray, *arguments: Any, **named: Any) -> Any:
            if self._frames and self._frames[-1].sample is not None:
                owner = np.arange(records.rows)
                for person, theirs in enumerate(records.persons or ()):
                    owner[theirs] = person
                taken = owner[index]
                self._frames[-1].sample.used.append(taken if records.persons is None else np.unique(taken))
            return original(records, index, *arguments, **named)

        def noisy(original: Any, total: Any, noise_std: float, divisor: float, *others: Any) -> Any:
            with self._frame("training") as frame:
                found = original(total, noise_std, divisor, *others)
            values = _plain(found.double()) * divisor
            return self._released("training", frame, total, found, values, noise_std, divisor=divisor)

        self._around(NoisyGradients, "__init__", made)
        self._around(NoisyGradients, "backward", stepped)
        self._around(NoisyGradients, "_sampled", sampled)
        self._around(Records, "batches", batches)
        self._around(Records, "groups", batches)
        self._around(training, "noisy_mean", noisy)

    # --- queries ----------------------------------------------------------------------------------------------------

    def _patch_queries(self) -> None:
        def sums(original: Any, batches: Any, width: int, bound: float, noise_std: float, source: Any) -> Any:
            rows = list(batches)
            with self._frame("sums", silent=True):
                plain = original(rows, width, bound, noise_std, source)
            with self._frame("sums") as frame:
                found = original(rows, width, bound, noise_std, source)
            return self._released("gaussian", frame, plain, found, _plain(found), noise_std, grid=grid_step(noise_std))

        def moments(original: Any, *arguments: Any, **named: Any) -> Any:
            self._groups += 1
            return original(*arguments, **named)

        def noisy(original: Any, whole: Any, std: Any, source: Any) -> Any:
            with self._frame("moments") as frame:
                found = original(whole, std, source)
            query = whole.double() / 4.0**second_moments.BITS
            return self._released("gaussian", frame, query, found, found.numpy(), std, grid=grid_step(std), part=True)

        plainly = private_columns.gaussian_mechanism

        def histograms(counts: np.ndarray, std: float, source: Any) -> Any:
            with self._frame("histograms") as frame:
                found = plainly(counts, std, source)
            return self._released("gaussian", frame, counts, found, found, std, grid=grid_step(std))

        self._set(private_columns, "gaussian_mechanism", histograms)

        def counted(original: Any, *arguments: Any, **named: Any) -> int:
            self._counted = original(*arguments, **named)
            return self._counted

        def geometric(original: Any, source: Any, epsilon: float) -> int:
            with self._frame("geometric") as frame:
                drawn = original(source, epsilon)
            count, facts = self._counted, {"bytes": b"".join(frame.served), "own": drawn}
            return self._released("geometric", frame, np.array([count]), count + drawn, None, 0.0, **facts) - count

        def planned(original: Any, plan: Any, *arguments: Any) -> int:
            self._plan = plan
            return original(plan, *arguments)

        def draw(name: str) -> Callable[..., Any]:
            def drawn(original: Any, source: Any, scores: np.ndarray, exponent: float) -> int:
                with self._frame(name) as frame:
                    winner = original(source, scores, exponent)
                facts = {"exponent": exponent, "bytes": b"".join(frame.served), "own": winner}
                stated = {"plan": self._plan, "sensitivity": self._plan.sensitivity}
                return self._released(name, frame, scores, winner, None, 0.0, **facts, **stated)

            return drawn

        self._around(normalisation, "noisy_sum", sums)
        self._around(second_moments, "release_second_moments", moments)
        self._around(second_moments, "noisy_whole", noisy)
        self._around(evaluation, "count_correct", counted)
        self._around(noise, "two_sided_geometric", geometric)
        self._around(selection, "draw", planned)
        self._around(selection, "draw_exponential", draw("exponential"))
        self._around(selection, "draw_permute_and_flip", draw("permute-and-flip"))

    # --- records that are randomised one by one ---------------------------------------------------------------------

    def _patch_local(self) -> None:
        def whole(original: Any, *arguments: Any, **named: Any) -> Any:
            self._groups += 1
            with self._frame("messages"):
                return original(*arguments, **named)

        def sent(name: str) -> Callable[..., Any]:
            def send(original: Any, means: Any, query: np.ndarray, source: Any) -> np.ndarray:
                if self._frames and self._frames[-1].silent:
                    return original(means, query, source)
                with self._frame(name) as frame:
                    found = original(means, query, source)
                retry = functools.partial(self._tried, original, means)
                return self._released(name, frame, query, found, None, 0.0, part=True, means=(means, retry))

            return send

        self._around(scheme.BitStrings, "randomise", whole)
        self._around(codebook.Codebook, "randomise", whole)
        self._around(channels.Response, "send", sent("response"))
        self._around(channels.Channel, "send", sent("bits"))

    def _tried(self, original: Any, means: Any, query: np.ndarray, source: Any) -> np.ndarray:
        """A mechanism once more, on bytes of the caller's choice."""
        with self._frame("trial", silent=True):
            return original(means, query, source)

    def _released(
        self,
        mechanism: str,
        frame: _Frame,
        query: Any,
        answer: Any,
        values: np.ndarray | None,
        std: np.ndarray | float,
        part: bool = False,
        means: Any = None,
        **facts: Any,
    ) -> Any:
        """Notes an answer; gives that of the first run in a replay."""
        if not part:
            self._groups += 1
        turn = len(self.releases)
        release = Release(
            mechanism, self._groups, self._where(), self._size, _plain(query).copy(), answer,
            None if values is None else values.reshape(-1).copy(),
            _normal(frame.served), std, facts, means,
        )  # fmt: skip
        self.log.append(release)
        if self._first is None:
            return answer
        earlier = self._first.releases
        if turn >= len(earlier) or earlier[turn].mechanism != mechanism or not _alike(earlier[turn].answer, answer):
            self.faults.append(f"release {turn}: {mechanism} answers what the first run did not ask")
            return answer
        release.answer = earlier[turn].answer
        return _copied(release.answer)


def _written(entry: Entry) -> bool:
    """Whether a file below the working folder holds the entry."""
    return any(entry.id in path.read_text() for path in Path().rglob("*.jsonl"))


def _hashed(text: str, count: int) -> bytes:
    return hashlib.shake_256(text.encode()).digest(count)


def uniform(data: bytes) -> np.ndarray:
    """What bytes stand for where a uniform number is wanted."""
    return ((np.frombuffer(data, dtype=np.uint64) >> np.uint64(12)).astype(float) + 0.5) / 2.0**52


def _normal(served: list[bytes]) -> np.ndarray | None:
    """What bytes stand for where normal draws are wanted: radii, then angles (Box and Muller), of one block."""
    if len(served) != 1 or len(served[0]) % 16 or len(served[0]) <= SEED:
        return None
    drawn = uniform(served[0][SEED:]).reshape(2, -1)
    radius, angle = np.sqrt(-2 * np.log(drawn[0])), 2 * np.pi * drawn[1]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])


def _modules() -> dict[str, ModuleType]:
    """Modules of the package that are imported by now."""
    return {name: module for name, module in sys.modules.items() if name.split(".")[0] == "dpltm"}


def _index() -> dict[int, list[tuple[ModuleType, str, Any]]]:
    """Where each function and class is bound, by its id, and itself, so that no other one takes its id."""
    found = defaultdict[int, list[tuple[ModuleType, str, Any]]](list)
    for module in _modules().values():
        for bound, value in vars(module).items():
            if callable(value):
                found[id(value)].append((module, bound, value))
    return found


INDEX = _index()
"""All modules are imported by now; what stands there may have been replaced since, by a planted bug."""


def wrapped(owner: Any, name: str, wrapper: Callable[..., Any]) -> list[tuple[Any, str, Callable[..., Any]]]:
    """``wrapper(original, *arguments)`` for a function, wherever the package has bound it by name, or for a method.

    Returns owner, name and what is to be there. A function that was planted is in no index, and is looked for.
    """
    original = vars(owner)[name]

    @functools.wraps(original)
    def called(*arguments: Any, **named: Any) -> Any:
        return wrapper(original, *arguments, **named)

    if isinstance(owner, type):
        return [(owner, name, called)]
    places = INDEX.get(id(original)) or _index().get(id(original), [])
    return [(module, bound, called) for module, bound, _ in places if vars(module).get(bound) is original]


def _generators() -> list[Any]:
    """Where the process's own generators stand, which nothing private may be drawn from."""
    _, words, *place = np.random.get_state()
    return [torch.get_rng_state().numpy().tobytes(), random.getstate(), np.asarray(words).tobytes(), place]


def _plain(values: Any) -> np.ndarray:
    return values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)


def _copied(answer: Any) -> Any:
    return answer.clone() if isinstance(answer, torch.Tensor) else answer.copy() if hasattr(answer, "copy") else answer


def _alike(one: Any, other: Any) -> bool:
    return type(one) is type(other) and getattr(one, "shape", None) == getattr(other, "shape", None)


def _side_by_side(values: np.ndarray, persons: Sequence[np.ndarray], most: int = 8) -> np.ndarray:
    """The rows of each person as one row, filled up with zeros."""
    rest = [(0, 0)] * (values.ndim - 1)
    return np.stack([np.pad(values[each], [(0, most - len(each)), *rest]) for each in persons])


def _matched(old_x: np.ndarray, old_y: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray | None:
    """Ids of records that are those of the old ones but for one more, or one changed; None where more differ."""

    def same(one: slice, other: slice) -> np.ndarray:
        left, right = old_x[one].reshape(len(old_x[one]), -1), x[other].reshape(len(x[other]), -1)
        labels = (old_y[one] == y[other]).reshape(len(old_y[one]), -1).all(1)
        # features of a record may differ in the last bit where they were taken with other records
        close: np.ndarray = np.isclose(left.astype(float), right.astype(float), rtol=1e-4, atol=1e-5).all(1)
        return close & labels

    count = len(old_x)
    if old_x.shape[1:] != x.shape[1:] or len(x) not in (count, count + 1):
        return None
    front = same(slice(0, count), slice(0, count))
    if len(x) == count:
        return np.arange(count) if (~front).sum() <= 1 else None
    place = count if front.all() else int(np.argmin(front))
    if not same(slice(place, count), slice(place + 1, count + 1)).all():
        return None
    return np.insert(np.arange(count), place, EXTRA)
