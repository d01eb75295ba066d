"""Plays the adversary: commands on neighbouring datasets, and whether what they claim is what they did.

``examine`` runs a case on two neighbours under a ``recorder`` and returns every mismatch, of the kinds in ``KINDS``. Each of
them is reached by a bug in ``planted``.
"""

import contextlib
import functools
import io
import math
import os
import re
import tempfile
import zipfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

import neighbours
from dpltm.cli import main
from dpltm.filters import Filter
from dpltm.gradients.probe import Probe
from dpltm.options.train import TrainRequest
from dpltm.privacy import pld
from dpltm.privacy.accountants import Resolution
from dpltm.privacy.entry import Entry, Part
from dpltm.privacy.mechanisms import (
    AllocatedSgd,
    BandedSgd,
    GaussianRelease,
    Guarantee,
    Mechanism,
    NoisySgd,
    Selection,
)
from dpltm.privacy.selection import exponential_probabilities, permute_and_flip_probabilities
from dpltm.training import plan
from local_channels import same_coins, told_by_bits, told_by_response
from neighbours import LOUD, TWIN
from probed import check_apart
from recorder import COIN, EXTRA, NOBODYS, Entered, Recorder, Release, Sample, uniform

KINDS = {
    "output": "something released differs, though every mechanism answered the same",
    "event": "what was entered depends on the records",
    "replay": "the second run asked other questions than the first, or its records are no neighbours",
    "sensitivity": "one record moved a query by more than its event says",
    "scale": "the noise, or the odds of a draw, are not those of the event",
    "mechanism": "an answer is not what the mechanism makes of its query and its draws",
    "divisor": "a sum was divided by something else than the public expected batch",
    "coins": "who is in a step is not one coin a record, below the event's rate",
    "reuse": "noise, or a coin, was used twice",
    "stray": "randomness was drawn outside every known mechanism",
    "unpaid": "no event pays for an answer",
    "late": "the event came after the answer, or was not on disk by then",
    "records": "the event is on other records",
    "relation": "the event states another neighbouring relation, or another unit",
    "count": "more is charged than was released, or something was released where nothing may be",
    "read": "the private records were read where they need not be",
}

ON_GRID = 5e-4
"""What a grid leaves of an answer: steps are at most 2^-10 standard deviations, and round by 2.9e-4 on average."""

ROUNDING = 1e-12
"""Part of the sensitivity that float64 sums of so few records may be off by: no bit of another record moves."""


@dataclass(frozen=True)
class Charge:
    """One mechanism of an entry, by its place in it."""

    entry: Entry
    place: int

    @property
    def mechanism(self) -> Any:
        return self.entry.mechanisms[self.place]

    def is_of(self, kind: type[Mechanism]) -> bool:
        return isinstance(self.mechanism, kind)

    @property
    def answers(self) -> int:
        """How many answers are paid for, at most."""
        return self.mechanism.steps if self.is_of(NoisySgd) else 1

    @property
    def bands(self) -> int:
        """Number of parts, of which each step samples one."""
        return len(self.mechanism.strategy) if self.is_of(BandedSgd) else 1

    @property
    def microbatch(self) -> int | None:
        """Records of a group, about, as the entry says it; None where each is filtered by itself."""
        told = re.search(r" of groups of about (\d+) records", self.entry.words)
        return None if told is None else int(told[1])

    def is_on(self, records: Part) -> bool:
        """Whether these records are paid for, all of them."""
        one, other = ((part.name, part.cut, part.start, part.stop) for part in (self.entry.part, records))
        return one == other

    def fits(self, release: Release) -> bool:
        """Whether the noise of an answer is the one that is paid for; off the diagonal of second moments, over sqrt 2."""
        std = float(np.max(release.std))
        return any(math.isclose(std * factor, self.mechanism.noise_std, rel_tol=1e-9) for factor in (1, math.sqrt(2)))


COARSE = Resolution(0.3, 1e3, 2e4, 1e5)
"""How finely losses are composed here, where no epsilon is compared with the truth: an upper bound as ever."""


_compose: Callable[..., pld.Profile | None] = pld._compose.__wrapped__


@functools.lru_cache(maxsize=64)
def _composed(counts: Any, draw: float, _: Resolution, *tilts: Any) -> pld.Profile | None:
    """A composition; plans are public, so that neighbours ask for the same ones."""
    return _compose(counts, draw, COARSE, *tilts)


@functools.cache
def _tried(check: Callable[[Filter], None], filter: Filter) -> None:
    """Tries each filter once: what it is tried on is made up, so that all neighbours would see the same."""
    check(filter)


@dataclass(frozen=True)
class Case:
    """Commands, and the datasets that they run on.

    Attributes:
        name: for people.
        commands: run one after the other, all recorded.
        kind: of records.
        adjacency: how the neighbours differ.
        unit: what one neighbour differs in.
        odd: the records in question, each makes a neighbour.
        before: commands on public records (``pub.npz``) alone, whose results are there when the case begins; and
        files: texts that are there as well, by name.
        spends: whether anything may be released from the private records; and
        reads: whether they may be read at all.
        program: what is run in place of commands; it returns what it releases, and
        reference: what it calls its records.
    """

    name: str
    commands: tuple[str, ...] = ()
    kind: neighbours.Kind = "table"
    adjacency: neighbours.Adjacency = "add-remove"
    unit: str = "record"
    odd: tuple[str, ...] = (LOUD, TWIN)
    before: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    spends: bool = True
    reads: bool = True
    program: Callable[[], dict[str, bytes]] | None = None
    reference: Part | None = None


class Mismatch(NamedTuple):
    """Something that is not as it is claimed."""

    kind: str
    text: str


@dataclass
class Findings:
    """What came of a case; ``closest`` is by mechanism the largest change of a query over what its event allows."""

    mismatches: list[Mismatch] = field(default_factory=list)
    commands: int = 0
    queries: int = 0
    compared: int = 0
    closest: dict[str, float] = field(default_factory=dict)

    @property
    def kinds(self) -> set[str]:
        """Of the mismatches."""
        return {kind for kind, _ in self.mismatches}

    def add(self, kind: str, text: str) -> None:
        self.mismatches.append(Mismatch(kind, text))


@dataclass(frozen=True)
class Run:
    """One run: what was recorded, and what was released, by name."""

    recorder: Recorder
    released: dict[str, bytes]


def examine(case: Case) -> Findings:
    """Runs a case on its neighbours and compares."""
    found = Findings()
    with tempfile.TemporaryDirectory() as folder:
        first = _perform(case, None, None, Path(folder) / "0")
        found.commands += max(1, len(case.commands))
        payers = _audit(first.recorder, case, found)
        for number, which in enumerate(case.odd, start=1):
            other = _perform(case, which, first.recorder, Path(folder) / str(number))
            found.commands += max(1, len(case.commands))
            _audit(other.recorder, case, found)
            _compare(first, other, payers, found)
    private = [release for release in first.recorder.releases if release.records != NOBODYS]
    found.queries += len(private)
    paid = [entry for entry in first.recorder.entries if entry.paid]
    if bool(private) != case.spends or (paid and not case.spends):
        found.add("count", f"{len(private)} queries were recorded, and {len(paid)} entries that cost something")
    if not case.reads and first.recorder.reference is not None:
        found.add("read", "the private records were read")
    return found


# --- running -------------------------------------------------------------------------------------------------------


def _perform(case: Case, which: str | None, first: Recorder | None, folder: Path) -> Run:
    folder.mkdir()
    place = EXTRA if case.adjacency == "add-remove" else neighbours.place(case.kind)
    with contextlib.chdir(folder), _environment(folder.with_name(f"{folder.name} config")):
        if case.before or case.files:
            neighbours.write_public(folder, case.kind)
            with Recorder(private="pub"):  # at the same times, for every neighbour
                for command in case.before:
                    _call(command)
        for name, text in case.files.items():
            Path(name).write_text(text)
        neighbours.write(folder, case.kind, case.adjacency, which)
        size = neighbours.RECORDS
        with Recorder(first, place=place, reference=case.reference, size=size) as recorder:
            released = {} if case.program is None else case.program()
            for number, command in enumerate(case.commands):
                released[f"answer {number}"] = _call(command)
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.name != neighbours.NAMES[case.kind]:
                released |= _contents(path, str(path.relative_to(folder)))
    return Run(recorder, {name: _same_for_all(body) for name, body in released.items()})


def _contents(path: Path, name: str) -> dict[str, bytes]:
    """What a file holds; of an archive its members, since its checksums are taken over random ids as well."""
    if path.suffix != ".npz":
        return {name: path.read_bytes()}
    with zipfile.ZipFile(path) as archive:
        return {f"{name}: {member}": archive.read(member) for member in archive.namelist()}


def _call(command: str) -> bytes:
    """Runs one command; returns what it printed."""
    out, err, words, more = io.StringIO(), io.StringIO(), command.split(), dict[str, Any]()
    for flag, kind in (("--physical-batch", int), ("--precision", str)):  # which are no flags
        if flag in words:
            place = words.index(flag)
            more[flag.removeprefix("--").replace("-", "_")] = kind(words[place + 1])
            words = words[:place] + words[place + 2 :]
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.dict(TrainRequest.__init__.__kwdefaults__, more),
    ):
        code = main.run(words)
    assert code == 0, f"dpltm {command}: {err.getvalue()}"
    return (out.getvalue() + err.getvalue()).encode()


@contextlib.contextmanager
def _environment(home: Path) -> Iterator[None]:
    """Exceptions show, whatever they are; hundreds of commands take no longer than they must; nobody remembers others."""
    with (
        mock.patch.dict(os.environ, {"DPLTM_DEBUG": "1", "XDG_CONFIG_HOME": str(home)}),
        mock.patch.object(os, "fsync", return_value=None),  # nobody cuts the power here
        mock.patch.object(pld, "_compose", _composed),
        mock.patch.object(Probe, "check_apart", check_apart),
        mock.patch.object(plan, "check_filter_bound", functools.partial(_tried, plan.check_filter_bound)),
    ):
        yield


def _same_for_all(body: bytes) -> bytes:
    """A file without what may differ: the id of a process, and digests by the owner's key."""
    body = re.sub(rb'"session": "[0-9]+-[0-9a-f]{16}"', b'"session": "RANDOM"', body)
    return re.sub(rb"[0-9a-f]{64}", b"DIGEST", body)


# --- one run by itself ---------------------------------------------------------------------------------------------


def _audit(recorder: Recorder, case: Case, found: Findings) -> list[Charge | None]:
    """Checks everything that one run shows; returns the event that pays for each release."""
    for text in recorder.strays:
        found.add("stray", text)
    for text in recorder.faults:
        found.add("replay", text)
    for entry in recorder.log:
        if isinstance(entry, Entered) and not entry.kept:
            found.add("late", f"{entry.entry.words}: entered, and not on disk")
    payers = _payers(recorder, case, found)
    pairs = list(zip(recorder.releases, payers, strict=True))
    for release, event in pairs:
        if event is None:
            continue
        stated = event.mechanism.adjacency, event.entry.unit
        if stated != (case.adjacency, case.unit):
            found.add("relation", f"{release.mechanism}: the entry is for {stated}")
        MECHANISMS[release.mechanism][1](release, event, found)
    _check_samples(recorder, payers, found)
    _check_reuse(recorder, found)
    return payers


def _check_reuse(recorder: Recorder, found: Findings) -> None:
    """What answers have more than queries never points the same way, or the other way, twice."""
    seen: list[np.ndarray] = []
    for release in recorder.releases:
        if release.values is None or (release.mechanism != "training" and "grid" in release.facts):
            continue  # rounded to a grid, which may leave little of it
        added = release.values - release.query.reshape(-1).astype(float)
        added /= max(float(np.linalg.norm(added)), 1e-300)
        if len(added) > 4 and any(len(old) == len(added) and abs(float(old @ added)) > 0.999 for old in seen):
            found.add("reuse", f"{release.mechanism}: the noise of an earlier answer")
        seen.append(added)


def _payers(recorder: Recorder, case: Case, found: Findings) -> list[Charge | None]:
    """The event that pays for each release: the last before it, of its kind and records, that is not used up."""
    known: dict[Charge, int] = {}
    used = Counter[Charge]()
    groups: dict[int, Charge | None] = {}
    payers: list[Charge | None] = []
    if not case.spends:
        return [None] * len(recorder.releases)
    for place, entry in enumerate(recorder.log):
        if isinstance(entry, Entered):
            charges = [Charge(entry.entry, number) for number in range(len(entry.entry.mechanisms))]
            known |= {charge: charge.answers for charge in charges}
        if not isinstance(entry, Release):
            continue
        if entry.group not in groups:
            groups[entry.group] = _payer(entry, known, used, recorder.log[place:], found)
        payers.append(groups[entry.group])
    for charge, many in known.items():
        ours = any(charge.is_of(kind) for kind, _ in MECHANISMS.values()) and charge.is_on(
            recorder.reference or NOBODYS
        )
        if ours and used[charge] != many:
            found.add("count", f"{charge.entry.words}: {many} releases are charged, {used[charge]} were made")
    return payers


def _payer(
    release: Release, known: dict[Charge, int], used: Counter[Charge], after: list[Any], found: Findings
) -> Charge | None:
    kind, _ = MECHANISMS[release.mechanism]
    able = [charge for charge, many in known.items() if charge.is_of(kind) and used[charge] < many]
    ours = [charge for charge in reversed(able) if charge.is_on(release.records)]
    # several in one entry are told apart by their noise; where none fits, the last is what was meant
    stated = [charge for charge in ours if charge.is_of(GaussianRelease) and charge.fits(release)]
    for charge in (stated or ours)[:1]:
        used[charge] += 1
        return charge
    later = [each.entry for each in after if isinstance(each, Entered) and each.entry.of(kind)]
    if able:
        found.add(
            "records", f"{release.mechanism}: the entry is of {able[-1].entry.part}, the query of {release.records}"
        )
    elif later:
        found.add("late", f"{release.mechanism}: answered before its entry was on record")
    else:
        found.add("unpaid", f"{release.mechanism}: no entry is on record for this answer")
    return None


def _check_samples(recorder: Recorder, payers: list[Charge | None], found: Findings) -> None:
    """Each step takes the records whose own coin is below the event's rate, and no others."""
    paid = iter(payers)
    waiting: list[Sample] = []
    allocated = defaultdict[Charge, list[Sample]](list)
    steps = Counter[Charge]()
    for entry in recorder.log:
        if isinstance(entry, Sample):
            waiting.append(entry)
        if isinstance(entry, Release):
            event = next(paid)
            if entry.mechanism == "training" and event is not None:
                if event.is_of(AllocatedSgd):
                    allocated[event] += waiting
                    waiting.clear()
                for sample in waiting:
                    turn = sample.hashes % event.bands == steps[event] % event.bands
                    _check_coins(sample, event.mechanism.sampling_rate, event.microbatch is not None, turn, found)
                    steps[event] += 1
                waiting.clear()
    if waiting and all(event is not None for event in payers):
        found.add("replay", f"{len(waiting)} samples met no noise")
    for event, samples in allocated.items():
        _check_allocation(samples, event.mechanism, found)


def _check_allocation(samples: list[Sample], stated: AllocatedSgd, found: Findings) -> None:
    """Each record is in the steps that its own words say, one a step, and in no others."""
    left = [stated.participations] * len(samples[0].ids)
    for step, sample in enumerate(samples):
        if len(sample.words) != 1:
            found.add("coins", f"step {step} of an allocation was drawn from {len(sample.words)} words a record")
            return
        used = sorted(np.concatenate(sample.used).tolist()) if sample.used else []
        words = enumerate(sample.words[0].tolist())
        inside = [record for record, word in words if word % (stated.steps - step) < left[record]]
        if used != inside:
            found.add("coins", f"step {step} took records {used}, and the words say {inside}")
        for record in inside:
            left[record] -= 1


def _check_coins(sample: Sample, rate: float, grouped: bool, turn: np.ndarray, found: Findings) -> None:
    """Compare who was taken with the coins of those whose ``turn`` it is, ``(n,)`` bool."""
    used = np.concatenate(sample.used) if sample.used else np.zeros(0, dtype=int)
    asked = [4 * len(sample.ids), 4 * len(used)] if grouped else [4 * len(sample.ids)]
    if rate < 1 and (sample.asked != asked or sample.coins is None):
        found.add("coins", f"{sample.asked} bytes were asked for, and there are {len(sample.ids)} records")
        return
    inside = np.flatnonzero(turn if sample.coins is None else turn & (sample.coins < int(rate * COIN)))
    if sorted(used.tolist()) != inside.tolist():
        found.add("coins", f"records {used.tolist()} were taken, and the coins say {inside.tolist()}")


def _check_gaussian(release: Release, event: Charge, found: Findings) -> None:
    """The answer is the query plus the noise that was served, times the event's standard deviation."""
    assert release.values is not None
    stated = event.mechanism
    if release.noise is None or len(release.noise) - len(release.values) not in (0, 1):
        found.add("mechanism", f"{release.mechanism}: {len(release.values)} values met no noise of their own")
        return
    query, noise = release.query.reshape(-1).astype(float), release.noise[: len(release.values)] * release.std
    if "grid" in release.facts:
        if (np.abs(release.values - query - noise) > release.facts["grid"]).any():
            found.add("scale", f"{release.mechanism}: the noise is not what was asked for")
        return
    share, times, rest = _fit(release.values, query, noise)
    if rest > ON_GRID:
        found.add("mechanism", f"{release.mechanism}: the answer is not its query plus the noise")
        return
    if abs(share - 1) > 1e-3:
        found.add("divisor", f"{release.mechanism}: divided by {1 / share:.4g} times the public number")
    times /= share
    expected = release.size * (stated.sampling_rate if isinstance(stated, NoisySgd) else 1.0) / event.bands
    expected = expected if event.microbatch is None else math.ceil(expected / event.microbatch)
    if not math.isclose(release.facts["divisor"], expected, rel_tol=1e-12):
        found.add("divisor", f"{release.mechanism}: divides by {release.facts['divisor']}, not {expected}")
    std, claimed = times * float(np.max(release.std)), stated.noise_std
    if not math.isclose(std, claimed, rel_tol=1e-3):
        found.add("scale", f"{release.mechanism}: noise of {std:.6g}, and the event says {claimed:.6g}")
        release.std = release.std * times  # elsewhere it is off by the rounding to the grid alone


def _fit(values: np.ndarray, query: np.ndarray, noise: np.ndarray) -> tuple[float, float, float]:
    """values = share query + times noise; and what is left of values, over the noise.

    By least squares, unless a share of one leaves no more than the grid does: of a small query the grid moves the share.
    """
    size = float(np.linalg.norm(noise))

    def rest(share: float, times: float) -> float:
        return float(np.linalg.norm(values - share * query - times * noise)) / size

    times = float((values - query) @ noise) / size**2
    if rest(1.0, times) <= ON_GRID or np.linalg.norm(query) < 1e-2 * size:
        return 1.0, times, rest(1.0, times)
    share, times = (float(one) for one in np.linalg.lstsq(np.stack([query, noise], 1), values, rcond=None)[0])
    return share, times, rest(share, times)


def _check_geometric(release: Release, event: Charge, found: Findings) -> None:
    """The noise is the difference of two geometric draws at the event's epsilon."""
    points = uniform(release.facts["bytes"])
    if len(points) != 2:
        found.add("mechanism", "geometric: the noise was not drawn")
        return
    first, second = (math.floor(math.log(point) / -event.mechanism.epsilon) for point in points)
    if first - second != release.facts["own"]:
        text = f"geometric: noise {release.facts['own']}, and at epsilon {event.mechanism.epsilon:g} it is {first - second}"
        found.add("scale", text)


def _check_draw(release: Release, event: Charge, found: Findings) -> None:
    """The winner is what the mechanism makes of the scores, the event's epsilon and the bits that were served."""
    plan = release.facts["plan"]
    monotone = plan.score == "additive" and event.mechanism.adjacency == "add-remove"
    exponent = event.mechanism.eps1 / (release.facts["sensitivity"] * (1 if monotone else 2))
    if event.mechanism.draw != release.mechanism:
        found.add("mechanism", f"drawn by {release.mechanism}, and the event says {event.mechanism.draw}")
    if not math.isclose(release.facts["exponent"], exponent, rel_tol=1e-12):
        found.add(
            "scale", f"{release.mechanism}: exponent {release.facts['exponent']:g}, and the event's is {exponent:g}"
        )
    points, scores = uniform(release.facts["bytes"]), release.query
    if len(points) != (1 if release.mechanism == "exponential" else 2 * len(scores)):
        found.add("mechanism", f"{release.mechanism}: the winner was not drawn")
        return
    weights = np.exp(release.facts["exponent"] * (scores - scores.max()))
    if release.mechanism == "exponential":
        winner = int(np.searchsorted(np.cumsum(weights / weights.sum()), points[0]))
    else:
        order, coins = np.argsort(points[: len(scores)]), points[len(scores) :]
        winner = next(int(one) for one, coin in zip(order, coins, strict=True) if coin <= weights[one])
    if winner != release.facts["own"]:
        found.add("mechanism", f"{release.mechanism}: winner {release.facts['own']}, and these bits draw {winner}")


def _check_local(release: Release, event: Charge, found: Findings) -> None:
    """Messages are parts of one release, which ``_compare`` adds up; one run by itself shows whether coins are shared."""
    assert event.is_of(Guarantee)
    if same_coins(release.means[1], release.query):
        found.add("reuse", f"{release.mechanism}: all records met the same coins")


MECHANISMS: dict[str, tuple[type[Mechanism], Callable[[Release, Charge, Findings], None]]] = {
    "training": (NoisySgd, _check_gaussian),
    "gaussian": (GaussianRelease, _check_gaussian),
    "geometric": (Guarantee, _check_geometric),
    "exponential": (Selection, _check_draw),
    "permute-and-flip": (Selection, _check_draw),
    "response": (Guarantee, _check_local),
    "bits": (Guarantee, _check_local),
}
"""What pays for an answer, and what holds of it."""


# --- two runs ------------------------------------------------------------------------------------------------------


def _compare(first: Run, other: Run, payers: list[Charge | None], found: Findings) -> None:
    for name in sorted({*first.released, *other.released}):
        if first.released.get(name) != other.released.get(name):
            found.add("output", f"{name}: {_where(first.released.get(name), other.released.get(name))}")
    if _facts(first.recorder) != _facts(other.recorder):
        found.add("event", "the ledger's entries depend on the records")
    one, two = first.recorder, other.recorder
    if [type(entry) for entry in one.log] != [type(entry) for entry in two.log]:
        found.add("replay", f"{len(one.log)} and {len(two.log)} entries, or in another order")
        return
    samples = [
        next((old for old in reversed(two.log[:place]) if isinstance(old, Sample)), None)
        for place, entry in enumerate(two.log)
        if isinstance(entry, Release)
    ]
    parts: dict[int, float] = {}
    blocks: dict[Charge, tuple[int, float]] = {}
    for left, right, event, sample in zip(one.releases, two.releases, payers, samples, strict=True):
        if event is None or left.query.shape != right.query.shape:
            if event is not None:
                found.add("replay", f"{left.mechanism}: queries of {left.query.shape} and {right.query.shape}")
            continue
        found.compared += 1
        share = _share(left, right, event, sample, first.recorder.place, found)
        if event.is_of(BandedSgd) and sample is not None:  # what a participation does to the steps after it, in one
            since, before = (
                (0, 0.0) if _inside(sample, first.recorder.place) else blocks.get(event, (event.bands, 0.0))
            )
            share = math.hypot(share, before if since < event.bands else 0.0)
            blocks[event] = since + 1, share
            if since >= event.bands and share > ROUNDING:
                found.add(
                    "sensitivity", f"a sum moved by {share:.3g} of the sensitivity long after the record was in a step"
                )
        if left.mechanism in ("response", "bits"):
            share = parts[left.group] = parts.get(left.group, 0.0) + share
        elif left.mechanism == "gaussian":  # parts of one query: squares add up
            share = parts[left.group] = math.hypot(parts.get(left.group, 0.0), share)
        found.closest[left.mechanism] = max(found.closest.get(left.mechanism, 0.0), share)
        if share > 1 + ROUNDING:
            found.add(
                "sensitivity",
                f"{left.mechanism}: one {event.entry.unit} is worth {share:.4g} times what its entry says",
            )


def _share(left: Release, right: Release, event: Charge, sample: Sample | None, place: int, found: Findings) -> float:
    """What one record does to a query, over what its event allows."""
    change = np.abs(right.query.astype(float) - left.query.astype(float))
    if event.is_of(NoisySgd):
        share = float(np.linalg.norm(change)) / event.mechanism.sensitivity
        if sample is not None and not event.is_of(BandedSgd) and not _inside(sample, place) and share > ROUNDING:
            found.add("sensitivity", f"a sum moved by {share:.3g} of the sensitivity at a step without the record")
        return share
    if event.is_of(GaussianRelease):
        return float(np.linalg.norm(change / left.std)) * event.mechanism.noise_multiplier
    if event.is_of(Selection):
        stated = left.facts["sensitivity"]
        if change.max() > stated * (1 + 1e-12):
            found.add("sensitivity", f"a score moves by {change.max():g}, and it is drawn as if by {stated:g}")
        return _told_by_draw(left, right) / event.mechanism.certified_epsilon
    assert event.is_of(Guarantee)
    if left.mechanism == "geometric":
        return float(change.max())  # noise of scale 1 / epsilon: for a count that moves by one
    rows = change.reshape(len(change), -1).any(1)
    if not rows.any():
        return 0.0
    if rows.sum() > 1:
        found.add("output", f"{left.mechanism}: {int(rows.sum())} messages depend on one record")
    return _told_by_messages(left, found) / event.mechanism.epsilon


def _inside(sample: Sample, place: int) -> bool:
    at = np.flatnonzero(sample.ids == place)
    used = np.concatenate(sample.used) if sample.used else np.zeros(0, dtype=int)
    return bool(np.isin(at, used).any())


def _told_by_draw(left: Release, right: Release) -> float:
    """Largest log ratio of a winner's chances."""
    exact = exponential_probabilities if left.mechanism == "exponential" else permute_and_flip_probabilities
    one, two = (exact(release.query, release.facts["exponent"]) for release in (left, right))
    return float(np.abs(np.log(one / two)).max())


def _told_by_messages(release: Release, found: Findings) -> float:
    """Largest log ratio of the chances of a message, of the mechanism as it answers, for any two records."""
    measure = {"bits": told_by_bits, "response": told_by_response}[release.mechanism]
    value, problem = measure(*release.means, release.query)
    if problem:
        found.add("mechanism", f"{release.mechanism}: {problem}")
    return value


def _facts(recorder: Recorder) -> list[dict[str, Any]]:
    """Entries, but for ids, and digests by the owner's key."""
    keyed = {"id": "", "home": "", "facts": ""}
    return [{**asdict(entry), **keyed, "part": str(entry.part)} for entry in recorder.entries]


def _where(one: bytes | None, other: bytes | None) -> str:
    if one is None or other is None:
        return "only one of both has it"
    place = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return f"from byte {place} on: {one[max(place - 40, 0) : place + 40]!r} and {other[max(place - 40, 0) : place + 40]!r}"
