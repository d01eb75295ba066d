"""The executable world: persons, files that hold them, and random histories of releases, told twice.

Once as dpltm tells them, by entries, lineages and accounts. And once as they happened: which release read which row, and
which releases a value was really made from. For everybody who could be a neighbour, all that truly touched them goes through
the accountant, as one adaptive composition. What an account says of a value may never be less, and in plain cases not more.

Nothing here asks ``dpltm`` who was touched, what is apart, what came first, or what two steps are.
"""

from __future__ import annotations

import json
import math
import pickle
import random
import threading
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import pairwise

from dpltm.errors import BudgetError, InputError
from dpltm.privacy import accountant, renyi
from dpltm.privacy.account import Account
from dpltm.privacy.accountants import Accountant
from dpltm.privacy.entry import END, HASHES, Entry, Id, Lineage, Part, lineage_from_text, lineage_of, to_json
from dpltm.privacy.ledger import Book, Ledger, first_digest
from dpltm.privacy.mechanisms import (
    GaussianRelease,
    Guarantee,
    LaplaceRelease,
    Mechanism,
    NoisySgd,
    PrivateSearch,
    RandomizedResponse,
    Selection,
    Unprotected,
)
from dpltm.privacy.privacy_loss import BoundedRangeLoss

DELTA = 1e-5
ROUNDING = 1e-9

# --- people and files -----------------------------------------------------------------------------------------------

GROUPS = {"north": frozenset(range(6)), "south": frozenset(range(4, 9)), "islands": frozenset(range(9, 12))}
"""Who is in which population. North and south share people; nobody of the islands is anywhere else."""

EVERYONE = frozenset(range(12))
QUARTER = HASHES // 4


@dataclass(frozen=True)
class Record:
    """A record, which is the same one in whatever file it is."""

    number: int
    person: int
    values: tuple[int, int]


def hashed(what: object) -> int:
    """Return a public hash, as a fraction of ``HASHES``."""
    return zlib.crc32(repr(what).encode()) * HASHES >> 32


@dataclass(frozen=True, eq=False)
class File:
    """A file as it is at one time: names of its two columns, and rows."""

    columns: tuple[str, str]
    rows: tuple[Record, ...]

    @cached_property
    def people(self) -> frozenset[int]:
        """Whose records it holds."""
        return frozenset(row.person for row in self.rows)

    @cached_property
    def places(self) -> dict[int, int]:
        """Where the record of a number is."""
        return {row.number: place for place, row in enumerate(self.rows)}

    @cached_property
    def digest(self) -> bytes:
        """What its content is known by."""
        return repr((self.columns, [(row.person, row.values) for row in self.rows])).encode()

    def reads(self, part: Part, place: int, record: Record) -> bool:
        """Return whether a release on a part of it reads this record, if it stands at that place."""
        match part.cut:
            case "whole":
                return True
            case "record":
                pairs = zip(self.columns, record.values, strict=True)
                at = _hash(tuple(sorted(pair for pair in pairs if pair[0] in part.columns)))
            case "person":
                at = _hash(record.person if part.columns == ("patient",) else -1 - record.values[0] % 5)
            case "place":
                at = place
        return part.start <= at < part.stop


_hash = cache(hashed)

NEWCOMERS = tuple(Record(-k, 100 + k, (k * 7, k * 13)) for k in range(1, 7))
"""Who may come in somebody's place, under replace-one."""


@dataclass(frozen=True)
class Change:
    """What neighbours differ in: these records leave, and under replace-one the newcomer stands where each of them stood."""

    leaving: tuple[Record, ...]
    coming: Record | None = None

    def touches(self, release: Happened) -> bool:
        """Return whether the release reads other rows on the one neighbour than on the other."""
        places = release.file.places
        for record in self.leaving:
            place = places.get(record.number)
            if place is not None and any(
                release.file.reads(release.part, place, each) for each in (record, self.coming) if each is not None
            ):
                return True
        return False


@dataclass(frozen=True, eq=False)
class Happened:
    """A release as it happened."""

    id: Id
    time: int
    file: File
    part: Part
    unit: str
    mechanisms: tuple[Mechanism, ...]
    home: Id


# --- what it costs --------------------------------------------------------------------------------------------------

ORDER = 8.0


@cache
def _divergence(loss: object) -> float:
    """At one order; of a draw whose candidates answers may have chosen more than of one that came first, as of pure DP."""
    return (
        renyi.randomized_response(loss.epsilon, 2, ORDER) if isinstance(loss, BoundedRangeLoss) else loss.renyi(ORDER)
    )  # type: ignore[attr-defined]


def _by_one_order(composition: object, delta: float, resolution: object) -> float:
    del resolution
    remaining = delta - composition.delta  # type: ignore[attr-defined]
    if remaining <= 0:
        return math.inf
    total = sum(count * _divergence(loss) for loss, count in composition.losses.items())  # type: ignore[attr-defined]
    total += renyi.bounded_range(composition.draw, ORDER) if composition.draw else 0.0  # type: ignore[attr-defined]
    return max(0.0, renyi.modern_epsilon(total, ORDER, remaining))


QUICK = Accountant("one order", True, "Renyi divergences at one order, quick", "tests", _by_one_order)
"""An upper bound that grows with every release, and by less for a draw that came first; in microseconds."""


def over_two_steps(mechanism: Mechanism) -> Mechanism:
    """Return what a release for add/remove says of a record that leaves while another comes (privacy-model.md 1.6)."""
    match mechanism:
        case Unprotected() | Mechanism(adjacency="replace-one"):
            return mechanism
        case NoisySgd():
            noise = mechanism.noise_multiplier / 2
            return NoisySgd(mechanism.sampling_rate, mechanism.steps, noise, adjacency="replace-one")
        case GaussianRelease():
            return GaussianRelease(mechanism.noise_multiplier / 2, adjacency="replace-one")
        case LaplaceRelease():
            return LaplaceRelease(mechanism.scale / 2, mechanism.sensitivity, adjacency="replace-one")
        case Selection():
            double = 2 * mechanism.certified_epsilon
            return Selection(double, double, mechanism.draw, mechanism.adaptive, adjacency="replace-one")
        case Guarantee():
            failing = (1 + math.exp(mechanism.epsilon)) * mechanism.delta
            return Guarantee(2 * mechanism.epsilon, failing, adjacency="replace-one")
        case PrivateSearch():
            tries = tuple(map(over_two_steps, mechanism.trainings))
            return PrivateSearch(tries, mechanism.score_noise / 2, mechanism.gamma, adjacency="replace-one")  # type: ignore[arg-type]
    raise AssertionError(mechanism)


SGD = NoisySgd(0.01, 100, 1.0)
MECHANISMS: tuple[tuple[Mechanism, ...], ...] = (
    (SGD,),
    (NoisySgd(1.0, 3, 6.0),),
    (GaussianRelease(4.0),),
    (GaussianRelease(4.0), SGD),
    (LaplaceRelease(2.0),),
    (Selection(0.5, 0.5),),
    (Selection(0.5, 0.7, "permute-and-flip"),),
    (Selection(0.5, 0.5), GaussianRelease(4.0)),
    (Guarantee(0.3, 1e-7),),
    (Guarantee(0.4),),
    (PrivateSearch((SGD,), 20.0, 0.1),),
)
REPLACING: tuple[tuple[Mechanism, ...], ...] = (
    (NoisySgd(0.01, 100, 2.0, adjacency="replace-one"),),
    (GaussianRelease(6.0, adjacency="replace-one"),),
    (RandomizedResponse(epsilon=0.5, categories=4),),
    (LaplaceRelease(3.0, adjacency="replace-one"),),
)


# --- histories ------------------------------------------------------------------------------------------------------


class Shelf:
    """A store in memory that keeps every state that it had."""

    def __init__(self, book: Book) -> None:
        self.past, self._lock = [book], threading.Lock()

    @property
    def book(self) -> Book:
        return self.past[-1]

    def read(self) -> Book:
        return self.book

    def locked(self) -> threading.Lock:
        return self._lock

    def add(self, before: Book, after: Book) -> None:
        assert self._lock.locked()
        assert before.digests == self.book.digests
        self.past.append(after)


@dataclass
class Owner:
    """A ledger, and whose account it truly is."""

    ledger: Ledger
    shelf: Shelf
    people: frozenset[int]
    name: str | None
    unit: str
    budget: float = math.inf
    apart: set[str] = field(default_factory=set)

    @property
    def home(self) -> Id:
        return self.shelf.read().home


@dataclass(frozen=True, eq=False)
class Value:
    """Something that was made: what it says it depends on, and what it truly does."""

    lineage: Lineage
    truly: frozenset[Id] = frozenset()


class History:
    """One random history.

    Args:
        seed: of everything in it.

    Attributes:
        findings: what was wrong: ``below``, ``unequal``, ``lost``, ``let pass``, ``over budget``, ``falls``, ``order``.
        counts: of comparisons, of those that came out equal, and of those that must.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.findings: list[str] = []
        self.counts: Counter[str] = Counter()
        self.happened: dict[Id, Happened] = {}
        self.values: list[Value] = []
        rng = self.rng
        self.unit = rng.choice(["record", "patient"])
        self.mechanisms = rng.choice([MECHANISMS] * 3 + [MECHANISMS + REPLACING, REPLACING])
        self.simple = rng.random() < 0.25  # few places where a figure may be too high
        every = ["whole", "record", "person", "place"]
        self.cuts = rng.choice([every, ["record"], ["person"], ["place"], ["whole", "record"]])
        self.unknown = 0.0 if self.simple else rng.choice([0.0, 0.1, 0.9])  # share of files without a known snapshot
        self.records = [
            Record(number, person, (rng.randrange(50), rng.randrange(50)))
            for number, person in enumerate(person for person in EVERYONE for _ in range(rng.choice([1, 2, 3])))
        ]
        groups = ["north"] if self.simple else list(GROUPS)
        self.files = [self._file(GROUPS[name]) for name in groups]
        self.owners = [self._owner(name, GROUPS[name], rng.random() < 0.6) for name in groups]
        if not self.simple and rng.random() < 0.5:
            self.owners.append(self._owner("everyone", EVERYONE, False))
        if not self.simple and rng.random() < 0.2:
            self.owners.append(self._owner("north", GROUPS["north"], True, unit="household"))

    def _file(self, people: frozenset[int]) -> File:
        rows = [record for record in self.records if record.person in people]
        self.rng.shuffle(rows)
        return File(("age", "zip"), tuple(rows))

    def _owner(self, name: str, people: frozenset[int], named: bool, unit: str = "") -> Owner:
        home, called, unit = f"{self.rng.getrandbits(256):064x}", name if named else None, unit or self.unit
        shelf = Shelf(Book(home, called, unit, home.encode(), (), (first_digest(home, called),)))
        return Owner(Ledger(unit=unit, store=shelf), shelf, people, called, unit)

    def run(self, steps: int = 14) -> History:
        """Let everything happen, and compare at the end; return itself."""
        often = [*[self.release] * 6, self.sweep, self.twice, self.unite, *[self.travel] * 2, *[self.edit] * 2]
        seldom = [*[self.separate] * 2, *[self.limit] * 2, self.message, self.declare, self.tamper, self.shorten]
        for _ in range(steps):
            self.rng.choice(often if self.simple else often + seldom)()
        union = Value(lineage_of(*self.values), frozenset().union(*(value.truly for value in self.values)))
        for owner in self.owners:
            self.compare(owner, Value(Lineage()))
            for value in {*self.rng.sample(self.values, min(2, len(self.values))), union}:
                self.compare(owner, value)
        return self

    # --- what may happen --------------------------------------------------------------------------------------------

    def _inputs(self) -> list[Value]:
        return self.rng.sample(self.values, min(len(self.values), self.rng.choice([0, 0, 1, 2])))

    def _plan(self, owner: Owner) -> tuple[File, Entry] | None:
        rng = self.rng
        files = [file for file in self.files if file.people <= owner.people]
        if not files:
            return None
        file, snapshot = rng.choice(files), None
        if rng.random() >= self.unknown:
            snapshot = owner.ledger.snapshot(file.digest)
        cut = rng.choice(self.cuts)
        ends = sorted(rng.sample(range(5), 2))
        start, stop, columns = 0, END, ()
        if cut in ("record", "person"):
            start, stop = (QUARTER * end for end in ends)
        elif cut == "place":
            start, stop = len(file.rows) * ends[0] // 4, max(1, len(file.rows) * ends[1] // 4)
        if cut == "person":  # or by whom they see, which separates none of them
            columns = (rng.choice(["patient", "doctor"]),)
        if cut == "record":
            columns = tuple(sorted(rng.choice([file.columns, file.columns[:1]])))
        mechanisms = rng.choice(self.mechanisms)
        if not self.simple and rng.random() < 0.03:
            mechanisms = (Unprotected(),)
        first = not any(entry.paid for entry in owner.ledger.entries)
        mechanisms = tuple(  # a draft may say that its draw comes first; nobody may believe it for ever
            replace(each, adaptive=not first) if isinstance(each, Selection) else each for each in mechanisms
        )
        part = Part("a file", snapshot, columns, cut, start, stop)  # type: ignore[arg-type]
        return file, Entry("release", part, mechanisms, unit=owner.unit, day="2026-01-01")

    def _pay(self, owner: Owner, file: File, draft: Entry, inputs: Iterable[Value]) -> Id | None:
        """Enter a release; None where it is refused."""
        behind, truly = lineage_of(*inputs), frozenset().union(*(value.truly for value in inputs))
        id = f"{self.rng.getrandbits(256):064x}"
        try:
            owner.ledger.account(behind).check_budget((draft,))
            entry = owner.ledger.enter(draft, id, owner.ledger.book.head)
        except BudgetError:
            self.counts["over budget"] += 1
            if owner.ledger.account(behind).__add__([draft]).epsilon(DELTA, QUICK.name) <= owner.budget:
                self.findings.append("refused within the budget")
            return None
        except InputError:
            units = {self.happened[each].unit for each in truly} | {owner.unit}
            if len(units) == 1:
                raise
            self.counts["units refused"] += 1
            return None
        time = len(self.happened)
        self.happened[id] = Happened(id, time, file, draft.part, draft.unit, draft.mechanisms, entry.home)
        if owner.budget < math.inf and self.truth(owner, truly | {id}) > owner.budget * (1 + ROUNDING):
            self.findings.append("over budget")
        return id

    def _value(self, owner: Owner, ids: Iterable[Id], inputs: Iterable[Value]) -> None:
        ids = set(ids)
        known = [entry for entry in owner.ledger.entries if entry.id in ids or not entry.paid]  # declarations go along
        own = owner.ledger.lineage(*known)
        truly = frozenset(ids).union(*(value.truly for value in inputs))
        self.values.append(Value(lineage_of(*inputs) | own, truly))

    def release(self, trials: int = 1, kept: int = 1) -> None:
        """Release something, from records and from values: once, or in several trials with one plan."""
        owner, inputs = self.rng.choice(self.owners), self._inputs()
        plan = self._plan(owner)
        if plan is None:
            return
        paid = [id for id in (self._pay(owner, *plan, inputs) for _ in range(trials)) if id is not None]
        if paid:
            self._value(owner, self.rng.sample(paid, min(kept, len(paid))), inputs)

    def sweep(self) -> None:
        """Make several trials, and go on with one of them."""
        self.release(trials=3)

    def twice(self) -> None:
        """Pay one plan twice, and keep both."""
        self.release(trials=2, kept=2)

    def unite(self) -> None:
        """Make a value of values."""
        inputs = self._inputs()
        self.values.append(Value(lineage_of(*inputs), frozenset().union(*(value.truly for value in inputs))))

    def travel(self) -> None:
        """Take a value through a file, another process, or meet it again after it was interrupted."""
        if self.values:
            value = self.rng.choice(self.values)
            match self.rng.randrange(3):
                case 0:
                    lineage = lineage_from_text(json.dumps(to_json(value.lineage)))
                case 1:
                    lineage = pickle.loads(pickle.dumps(value.lineage))
                case _:
                    lineage = value.lineage | Lineage() | value.lineage
            self.values.append(Value(lineage, value.truly))

    def edit(self) -> None:
        """Edit a file: a record more, a column renamed, or rows moved."""
        rng = self.rng
        file = rng.choice(self.files)
        match rng.randrange(3):
            case 0:
                record = Record(
                    len(self.records), rng.choice(sorted(file.people)), (rng.randrange(50), rng.randrange(50))
                )
                self.records.append(record)
                place = rng.randrange(len(file.rows) + 1)
                file = replace(file, rows=(*file.rows[:place], record, *file.rows[place:]))
            case 1:
                file = replace(file, columns=(rng.choice(["years", "born", "age"]), "zip"))
            case _:
                file = replace(file, rows=tuple(rng.sample(file.rows, len(file.rows))))
        self.files.append(file)

    def separate(self) -> None:
        """Declare a population apart that truly is."""
        owner = self.rng.choice(self.owners)
        for name, people in GROUPS.items():
            if not people & owner.people and name not in owner.apart:
                owner.ledger.declare(Entry("apart", population=name, day="2026-01-01"))
                owner.apart.add(name)

    def limit(self) -> None:
        """Set a budget, or one after the other: of its own ledger, and the last one rules."""
        owner = self.rng.choice(self.owners)
        for _ in range(self.rng.choice([1, 2])):
            owner.budget = self.rng.choice([2.0, 3.0, 4.0, 6.0])
            owner.ledger.declare(Entry("budget", mechanisms=(Guarantee(owner.budget, DELTA),), day="2026-01-01"))

    def message(self) -> None:
        """Let one person send a message, from a ledger of their own."""
        person = self.rng.choice(sorted(EVERYONE))
        name = f"only {person}"
        owner = next((each for each in self.owners if each.people == {person}), None)
        if owner is None:
            owner = self._owner(name, frozenset([person]), self.rng.random() < 0.5)
            self.owners.append(owner)
        file = File(("age", "zip"), tuple(record for record in self.records if record.person == person)[:1])
        draft = Entry("local", mechanisms=self.rng.choice(self.mechanisms), unit=owner.unit, day="2026-01-01")
        id = self._pay(owner, file, draft, ())
        if id is not None:
            self._value(owner, [id], ())

    def declare(self) -> None:
        """Declare records of another file public, or not the population's; or release some of other people, by mistake."""
        owner = self.rng.choice(self.owners)
        owner.ledger.declare(Entry(self.rng.choice(["public", "excluded"]), day="2026-01-01"))
        mistaken = Entry("release", mechanisms=(SGD,), population="strangers", unit=owner.unit)
        head = owner.ledger.book.head
        self._must_refuse("a release of other people", lambda: owner.ledger.enter(mistaken, "0" * 64, head))

    def tamper(self) -> None:
        """Meet an artifact whose lineage was edited: it must be refused beside the true one."""
        found = [value for value in self.values if value.lineage.entries]
        if found:
            true = self.rng.choice(found).lineage
            entry = self.rng.choice(true.entries)
            edits = [{"sequence": 99}, {"population": "islands"}]
            edits += [{"mechanisms": (GaussianRelease(100.0),)}] if entry.paid else []
            edited = replace(entry, **self.rng.choice(edits))
            if edited != entry:
                others = tuple(edited if each is entry else each for each in true.entries)
                pair = [true, Lineage(others, true.heads)]
                self.rng.shuffle(pair)
                self._must_refuse("an edited entry", lambda: pair[0] | pair[1])

    def shorten(self) -> None:
        """Meet a value beside an older copy of its ledger, which may have gone on: it must be refused."""
        owner = self.rng.choice(self.owners)
        for value in self.rng.sample(self.values, len(self.values)):
            head = next((head for head in value.lineage.heads if head.ledger == owner.home), None)
            older = [book for book in owner.shelf.past if head is not None and len(book.entries) < head.count]
            if older:
                book = self.rng.choice([older[-1], self.rng.choice(older)])
                while self.rng.random() < 0.7:
                    draft = Entry("release", mechanisms=(SGD,), unit=owner.unit)
                    book = book.adding([draft], [f"{self.rng.getrandbits(256):064x}"])
                self._must_refuse(
                    "a ledger that is not the one", lambda book=book, value=value: book.account(value.lineage)
                )
                return

    def _must_refuse(self, what: str, act: object) -> None:
        try:
            act()  # type: ignore[operator]
        except (InputError, BudgetError):
            self.counts["refused"] += 1
        else:
            self.findings.append(f"let pass: {what}")

    # --- what is true, and what is said -----------------------------------------------------------------------------

    def changes(self, owner: Owner, relation: str) -> Iterator[Change]:
        """Yield whatever neighbours may differ in: a record, or all records of a person."""
        people = owner.people
        if owner.unit == "record":
            groups = [(record,) for record in self.records if record.person in people]
        else:
            groups = [tuple(record for record in self.records if record.person == person) for person in sorted(people)]
        for leaving in groups:
            for coming in NEWCOMERS if relation == "replace-one" else (None,):
                yield Change(leaving, coming)

    def scope(self, owner: Owner, truly: Iterable[Id]) -> list[Happened]:
        """Return what counts for a value beside a ledger: all that it paid, and all that the value was made from."""
        ids = {id for id, release in self.happened.items() if release.home == owner.home} | set(truly)
        return sorted((self.happened[id] for id in ids), key=lambda release: release.time)

    def relation(self, owner: Owner, releases: Iterable[Happened]) -> str:
        """Return how neighbours must differ, for what touched these people to have a figure."""
        stated = {
            mechanism.adjacency
            for release in releases
            if release.file.people & owner.people
            for mechanism in release.mechanisms
            if not isinstance(mechanism, Unprotected)
        }
        return "replace-one" if "replace-one" in stated else "add-remove"

    def truth(self, owner: Owner, truly: Iterable[Id], *, filtered: bool = False) -> float:
        """Return what everything comes to that touched one of the people of a ledger, the worst case."""
        releases = self.scope(owner, truly)
        relation = self.relation(owner, releases)
        sets = {
            tuple(release for release in releases if change.touches(release))
            for change in self.changes(owner, relation)
        }
        return max((self.price(owner, touched, relation, filtered) for touched in sets), default=0.0)

    def price(self, owner: Owner, touched: tuple[Happened, ...], relation: str, filtered: bool) -> float:
        """Return what these releases come to together, in the order in which they happened."""
        if any(release.unit != owner.unit for release in touched):
            return math.inf  # it says nothing of whom this ledger protects
        found: list[Mechanism] = []
        for place, release in enumerate(touched):
            first = place == 0 and len(release.mechanisms) == 1
            for mechanism in release.mechanisms:
                if isinstance(mechanism, Selection):
                    mechanism = replace(mechanism, adaptive=not first)
                found.append(over_two_steps(mechanism) if relation == "replace-one" else mechanism)
        return accountant.filter_epsilon(found, DELTA) if filtered else accountant.epsilon(found, DELTA, QUICK.name)

    def compare(self, owner: Owner, value: Value) -> None:
        """Compare what an account says of a value with what is true."""
        truth = self.truth(owner, value.truly)
        releases = self.scope(owner, value.truly)
        try:
            account = owner.ledger.account(value.lineage)
        except InputError:
            if {release.unit for release in releases} <= {owner.unit}:
                raise
            self.counts["units refused"] += 1
            return
        said = account.epsilon(DELTA, QUICK.name)
        self.counts["compared"] += 1
        if said < truth * (1 - ROUNDING):
            self.findings.append(f"below: {said} for {truth}")
        equal = math.isclose(said, truth, rel_tol=ROUNDING)
        self.counts["equal"] += equal
        if self.plain(owner, releases):
            self.counts["plain"] += 1
            if not equal:
                self.findings.append(f"unequal: {said} for {truth}")
        aside = [entry for group in account.aside.values() for entry in group]
        if Counter(entry.id for entry in (*account.paid, *aside)) != Counter(release.id for release in releases):
            self.findings.append("lost, or counted twice")
        filtered = account.filter_epsilon(DELTA) if self.rng.random() < 0.2 else None
        if filtered is not None and filtered < self.truth(owner, value.truly, filtered=True) * (1 - ROUNDING):
            self.findings.append("below, with a filter")
        self._grows(owner, account, value, said, filtered)

    def _grows(self, owner: Owner, account: Account, value: Value, said: float, filtered: float | None) -> None:
        """Check that no entry lowers a figure, and that no order of unions changes it."""
        plan = self._plan(owner)
        more = account if plan is None else account.__add__([plan[1]])
        if more.epsilon(DELTA, QUICK.name) < said * (1 - ROUNDING):
            self.findings.append("falls with one entry more")
        if filtered is not None and more.filter_epsilon(DELTA) < filtered * (1 - ROUNDING):
            self.findings.append("falls with one entry more, with a filter")
        if value.lineage and owner.ledger.account().epsilon(DELTA, QUICK.name) > said * (1 + ROUNDING):
            self.findings.append("falls with a value more")
        shuffled = Lineage()
        for entry in self.rng.sample(value.lineage.entries, len(value.lineage.entries)):
            shuffled = Lineage((entry,)) | shuffled
        again = owner.ledger.account(shuffled).epsilon(DELTA, QUICK.name)
        if not math.isclose(again, said, rel_tol=ROUNDING):
            self.findings.append("order of unions matters")

    def plain(self, owner: Owner, releases: list[Happened]) -> bool:
        """Return whether nothing forces an account to say more than is true."""
        near = [release for release in releases if release.file.people & owner.people]
        names = {each.home: each.name for each in self.owners}
        if any(names[release.home] not in owner.apart for release in releases if release not in near):
            return False  # a stranger who may be anybody
        if any(release.unit != owner.unit for release in releases):
            return False
        homes = {release.home for release in near}
        if len(homes) > 1 and any(isinstance(each, Selection) for release in near for each in release.mechanisms):
            return False  # nothing says which came first
        if any(release.part.cut != "whole" for release in near):
            return self._plain_cut(owner, near, homes)
        shared = owner.people.intersection(*(release.file.people for release in near))
        if owner.unit == "record":  # one record must be in all files
            numbers = [set(release.file.places) for release in near]
            return bool(shared) and (not near or bool(set.intersection(*numbers)))
        return bool(shared)

    def _plain_cut(self, owner: Owner, near: list[Happened], homes: set[Id]) -> bool:
        """Of one file, one cut that separates whom it protects, and somebody in every range."""
        cuts = {(release.part.cut, release.part.columns) for release in near if release.part.cut != "whole"}
        files = {release.file for release in near}
        known = all(release.part.snapshot for release in near)
        if len(cuts) > 1 or len(files) > 1 or len(homes) > 1 or not known:
            return False
        ((cut, columns),) = cuts
        if owner.unit != "record" and columns != (owner.unit,):
            return False
        if cut != "place" and self.relation(owner, near) != "add-remove":
            return False
        (file,) = files
        edges = sorted(
            {edge for release in near if release.part.cut == cut for edge in (release.part.start, release.part.stop)}
        )
        ranges = [Part("", None, columns, cut, start, stop) for start, stop in pairwise(edges)]
        rows = [(place, row) for place, row in enumerate(file.rows) if row.person in owner.people]
        return all(any(file.reads(one, *row) for row in rows) for one in ranges)
