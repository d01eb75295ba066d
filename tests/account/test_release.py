"""The door, on noisy sums of a few numbers: never two noises under one id, never a value without its entry."""

import concurrent.futures
import copy
import hashlib
import itertools
import json
import os
import pickle
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from deaths import End, ends_at, forked, in_child, in_children
from dpltm.errors import ArtifactError, BudgetError, InputError
from dpltm.privacy.account import QUICK_FIRST, Account
from dpltm.privacy.checkpoint import NOT_KEPT, Checkpoint, Checkpoints
from dpltm.privacy.entry import Entry, Id, Lineage, Part, Secret, release_id
from dpltm.privacy.ledger import Book, Ledger, Moved
from dpltm.privacy.mechanisms import GaussianRelease, Guarantee
from dpltm.privacy.release import Paid, pay, price
from dpltm.tickets.files import sync
from dpltm.tickets.ledger_file import open_ledger
from refusals import refused

STEPS = 3
NOTHING = Lineage()


class Kept(Checkpoints):
    """A checkpoint in one file, replaced whole."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def latest(self) -> Checkpoint | None:  # type: ignore[override]
        return Checkpoint("", json.loads(self._path.read_text())) if self._path.exists() else None

    def keep(self, checkpoint: Checkpoint) -> None:
        put(self._path, dict(checkpoint.state))

    def forget(self) -> None:
        self._path.unlink(missing_ok=True)


def put(path: Path, body: object) -> None:
    """Writes a file whole and on disk."""
    staging = path.with_name(f"{path.name}.partial")
    descriptor = os.open(staging, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.write(descriptor, json.dumps(body).encode())
    os.fsync(descriptor)
    os.close(descriptor)
    os.replace(staging, path)
    sync(path.parent)


@dataclass(frozen=True)
class Sums:
    """Noisy sums of numbers, one after the other; the key of each is replaced before it is given out."""

    numbers: tuple[float, ...]
    entry: Entry
    keeper: Checkpoints = NOT_KEPT
    lineage: Lineage = NOTHING
    beside: tuple[Entry, ...] = ()
    tried: Callable[[], object] = bool

    def rehearse(self) -> None:
        self.tried()

    def draw(self, secret: Secret, at: Checkpoint | None) -> Iterator[float]:
        state = {"noise": secret.child("noise").hex(), "drawn": []} if at is None else dict(at.state)
        multiplier = secret.entry.mechanisms[0].noise_multiplier
        while len(state["drawn"]) < STEPS:
            value = sum(self.numbers) + random.Random(state["noise"]).gauss(0, multiplier)
            yield value
            following = hashlib.sha256(bytes.fromhex(state["noise"])).hexdigest()
            state = {"of": {}, "id": secret.entry.id, "noise": following, "drawn": [*state["drawn"], value]}
            self.keeper.keep(Checkpoint("", state))


def planned(numbers=(1.0, 2.0), keeper=None, snapshot="5" * 64, facts="a", lineage=NOTHING, multiplier=5.0, more=1.0):
    """A plan that calibrates: the more there is in the ledger, the more noise."""
    keeper = NOT_KEPT if keeper is None else keeper

    def plan(book: Book, known: Entry | None) -> Sums:
        if not numbers:
            raise InputError("numbers", len(numbers), "one or more")
        calibrated = (GaussianRelease(multiplier + more * len(book.entries)),)
        mechanisms = calibrated if known is None else known.mechanisms
        part = Part("numbers", snapshot=snapshot)
        return Sums(numbers, Entry("release", part, mechanisms, "sums", facts), keeper, lineage)

    return plan


TESTED = Entry("excluded", Part("tested", snapshot="7" * 64), words="a test split")


def with_a_test_split(tried=bool, test=TESTED, **options):
    plan = planned(**options)
    return lambda book, known: replace(plan(book, known), beside=(test,), tried=tried)


def as_it_is(release: Sums, book: Book, known: Entry | None) -> Sums:
    """A plan that looks at nothing."""
    del book, known
    return release


def ids(ledger: Ledger) -> list[Id]:
    return [entry.id for entry in ledger.entries]


# --- the secret ---


def entered(key: bytes, **changes: Any) -> Entry:
    mechanisms = (GaussianRelease(5.0),)
    return replace(Entry("release", mechanisms=mechanisms, id=release_id(key), home="7" * 64, sequence=1), **changes)


KEY = bytes(range(32))


@pytest.mark.parametrize(
    "changes", [{"home": ""}, {"kind": "public", "mechanisms": ()}, {"id": release_id(bytes(32))}, {"id": ""}]
)
def test_a_secret_is_the_key_of_an_entry_on_record(changes):
    assert Secret(entered(KEY), KEY).entry.id == release_id(KEY)
    refused(Secret, entered(KEY, **changes), KEY)


def test_children_of_a_secret_are_independent_and_each_is_given_once():
    secret, again = Secret(entered(KEY), KEY), Secret(entered(KEY), KEY)
    names = ("noise", "coins", "noise 2")
    children = [secret.child(name) for name in names]
    assert len({*children, KEY, bytes.fromhex(release_id(KEY))}) == 5
    assert [again.child(name) for name in names] == children
    refused(secret.child, "noise")
    refused(Secret(entered(KEY), None).child, "noise")


def test_no_secret_leaves_its_process_or_is_shown():
    secret = Secret(entered(KEY), KEY)
    for way in (pickle.dumps, copy.copy, copy.deepcopy):
        refused(way, secret)
    shown = repr(secret) + repr(Checkpoint("", {"key": KEY.hex()}))
    assert KEY.hex() not in shown
    assert repr(KEY) not in shown


# --- paying ---


def test_a_release_is_entered_before_its_first_value_and_carries_what_it_is_made_of():
    other = Ledger("Q")
    (before,) = other.declare(Entry("release", mechanisms=(GaussianRelease(9.0),)))
    ledger = Ledger("P")
    behind = other.lineage(before)
    paid = pay(planned(lineage=behind), ledger)
    assert ledger.entries == (paid.entry,)
    assert paid.entry.mechanisms == (GaussianRelease(5.0),)
    assert paid.lineage.entries == (before, paid.entry)
    assert set(paid.lineage.heads) == {*behind.heads, ledger.book.head}
    assert set(paid.account.paid) == {before, paid.entry}
    values = list(paid.values)
    assert len(set(values)) == STEPS
    assert all(abs(value - 3.0) < 5.0 * 6 for value in values), "six standard deviations"


def test_a_price_shows_what_paying_would_come_to_and_spends_nothing():
    ledger = Ledger()
    shown = price(planned()(ledger.book, None), ledger.book).epsilon(1e-5)
    assert ledger.entries == ()
    assert shown == pay(planned(), ledger).account.epsilon(1e-5)


def test_a_plan_that_is_paid_twice_is_two_releases():
    """As it is, as a copy, and where one release value is handed out twice."""
    ledger = Ledger()
    release = planned()(ledger.book, None)
    twins = [pay(partial(as_it_is, each), ledger) for each in (release, release, copy.deepcopy(release))]
    assert len({paid.entry.id for paid in twins}) == 3
    assert len(ledger.account().paid) == 3
    drawn = [value for paid in twins for value in paid.values]
    assert len(set(drawn)) == 3 * STEPS


def test_what_is_refused_spends_nothing_and_leaves_no_key(tmp_path):
    ledger, keeper = open_ledger(tmp_path / "l.jsonl"), Kept(tmp_path / "k")
    refused(pay, planned(numbers=(), keeper=keeper), ledger, keeper)
    assert list(tmp_path.iterdir()) == []
    ledger.declare(Entry("budget", mechanisms=(Guarantee(1.0, 1e-5),)))
    refused(pay, planned(multiplier=1.0, keeper=keeper), ledger, keeper, kind=BudgetError)
    release = planned()(ledger.book, None)
    patient = replace(release, entry=replace(release.entry, unit="patient"))
    assert "`unit`" in refused(pay, partial(as_it_is, patient), ledger, keeper)
    stranger = replace(release, entry=replace(release.entry, population="Q"))
    with pytest.raises(InputError, match="`population`"):  # which the ledger says, when the key is kept already
        pay(partial(as_it_is, stranger), open_ledger(tmp_path / "m.jsonl", population="P"), keeper)
    assert len(ledger.entries) == 1
    assert keeper.latest is None


# --- several at once ---


def test_a_release_is_planned_again_where_another_one_came_first(tmp_path):
    """The other enters through a ledger of its own, as another process would."""
    path, books = tmp_path / "l.jsonl", []

    def plan(book: Book, known: Entry | None) -> Sums:
        books.append(len(book.entries))
        if len(books) < 3:
            pay(planned(), open_ledger(path))
        return planned()(book, known)

    paid = pay(plan, open_ledger(path))
    assert books == [0, 1, 2]
    assert paid.entry.sequence == 3
    assert paid.entry.mechanisms == (GaussianRelease(7.0),), "calibrated to what the ledger holds"


def test_somebody_who_is_never_let_in_is_told_so(monkeypatch, tmp_path):
    def enter(*_: object) -> None:
        raise Moved

    keeper = Kept(tmp_path / "k")
    monkeypatch.setattr(Ledger, "enter", enter)
    assert "all the time" in refused(pay, planned(), Ledger(), keeper)
    assert keeper.latest is None


def spend(path: Path, told: Path, count: int) -> None:
    """Pays until a budget says no, and tells what was drawn."""
    for _ in range(count):
        try:
            paid = pay(planned(more=0.0), open_ledger(path))
        except BudgetError:
            continue
        tell(told, paid)


def tell(told: Path, paid: Paid[float], begin: int = 0) -> None:
    with told.open("ab", buffering=0) as stream:  # not a call that ends_at counts
        for step, value in enumerate(paid.values, start=begin):
            stream.write(f"{paid.entry.id} {step} {value!r}\n".encode())


def told_in(told: Path) -> dict[tuple[Id, int], set[str]]:
    """Everything that was told, by id and step."""
    values: dict[tuple[Id, int], set[str]] = {}
    for line in told.read_text().splitlines() if told.exists() else ():
        id, step, value = line.split()
        values.setdefault((id, int(step)), set()).add(value)
    return values


def entries_in(path: Path) -> list[Id]:
    """Ids of releases in a ledger file, read without the package."""
    lines = path.read_text().splitlines()[1:] if path.exists() else []
    entries = [json.loads(line)["entry"] for line in lines]
    return [entry["id"] for entry in entries if entry["kind"] == "release"]


def test_processes_at_once_keep_to_the_budget_and_draw_what_they_entered(tmp_path):
    path, told = tmp_path / "l.jsonl", tmp_path / "told"
    alike = [Entry("release", mechanisms=(GaussianRelease(5.0),))] * 6
    five, six = (min((Account() + alike[:count]).epsilon(1e-5, each) for each in QUICK_FIRST) for count in (5, 6))
    open_ledger(path).declare(Entry("budget", mechanisms=(Guarantee((five + six) / 2, 1e-5),)))
    assert in_children(*[partial(spend, path, told, 3)] * 3) == [0, 0, 0]
    held = open_ledger(path)
    assert len(held.account().paid) == 5
    assert {id for id, _ in told_in(told)} == {entry.id for entry in held.account().paid}
    assert all(len(values) == 1 for values in told_in(told).values())
    assert len(set().union(*told_in(told).values())) == STEPS * 5


@pytest.mark.parametrize("kept", ["memory", "one file", "a file each"])
def test_threads_enter_one_after_the_other(tmp_path, kept):
    shared = Ledger() if kept == "memory" else open_ledger(tmp_path / "l.jsonl")

    def work(_: int) -> list[float]:
        ledger = open_ledger(tmp_path / "l.jsonl") if kept == "a file each" else shared
        return [value for _ in range(2) for value in pay(planned(), ledger).values]

    with ThreadPoolExecutor(4) as pool:
        drawn = list(itertools.chain(*pool.map(work, range(4))))
    held = shared if kept == "memory" else open_ledger(tmp_path / "l.jsonl")
    assert [entry.sequence for entry in held.entries] == list(range(1, 9))
    assert len(set(ids(held))) == 8
    assert len(set(drawn)) == len(drawn) == 8 * STEPS
    assert [entry.mechanisms[0].noise_multiplier for entry in held.entries] == [5.0 + place for place in range(8)]


def test_threads_share_the_values_of_one_release():
    """The second asks while the first one's value is being drawn."""
    asked, go = threading.Event(), threading.Event()

    class Slow(Sums):
        def draw(self, secret: Secret, at: Any) -> Iterator[float]:
            for value in super().draw(secret, at):
                asked.set()
                assert go.wait(60)
                yield value

    values = pay(partial(as_it_is, Slow((1.0,), planned()(Ledger().book, None).entry)), Ledger()).values
    with ThreadPoolExecutor(2) as pool:
        both = pool.submit(next, values), pool.submit(next, values)
        assert asked.wait(60)
        concurrent.futures.wait(both, 0.1, "FIRST_COMPLETED")
        go.set()
        drawn = [each.result() for each in both]
    assert len({*drawn, *values}) == STEPS


# --- what is read beside the records ---


def test_what_is_read_beside_is_declared_before_the_release_and_once(tmp_path):
    ledger, tried = open_ledger(tmp_path / "l.jsonl"), []
    for _ in range(2):
        tried.clear()
        paid = pay(with_a_test_split(partial(tried.append, None)), ledger)
        assert len(tried) == 1, "trying takes long"
    first, second, third = ledger.entries
    assert [first.kind, first.part] == ["excluded", TESTED.part]
    assert [second.kind, third] == ["release", paid.entry]
    assert (second.mechanisms, third.mechanisms) == ((GaussianRelease(6.0),), (GaussianRelease(7.0),)), "planned again"


def test_a_refusal_on_trying_declares_nothing(tmp_path):
    def refuse() -> None:
        raise InputError("model", "Mixes", "a network that keeps records apart")

    ledger = open_ledger(tmp_path / "l.jsonl")
    refused(pay, with_a_test_split(refuse), ledger)
    assert ledger.entries == ()


@pytest.mark.parametrize("kind", ["public", "excluded"])
def test_a_declaration_by_another_process_meanwhile_stands_against_the_release(tmp_path, kind):
    """The records were declared public, or apart, while the release was tried out."""
    ledger, other = (open_ledger(tmp_path / "l.jsonl") for _ in range(2))
    ours = planned()(Ledger().book, None).entry.part
    against = partial(other.declare, Entry(kind, ours))  # type: ignore[arg-type]
    keeper = Kept(tmp_path / "k")
    refused(pay, with_a_test_split(against), ledger, keeper)
    assert not any(entry.paid for entry in ledger.entries)
    assert keeper.latest is None


def test_work_that_goes_on_declares_another_test_split(tmp_path, begun):
    ledger, keeper = open_ledger(tmp_path / "l.jsonl"), Kept(tmp_path / "k")
    paid = pay(with_a_test_split(keeper=keeper), ledger, keeper)
    assert paid.entry == begun.entry
    assert [entry.kind for entry in ledger.entries] == ["release", "excluded"]


def test_work_does_not_go_on_with_its_own_records_as_a_test_split(tmp_path, begun):
    ledger, keeper = open_ledger(tmp_path / "l.jsonl"), Kept(tmp_path / "k")
    refused(pay, with_a_test_split(test=replace(TESTED, part=begun.entry.part)), ledger, keeper)
    assert ids(ledger) == [begun.entry.id]


# --- forks, copies ---


def test_a_forked_process_draws_nothing_that_its_parent_paid_for(tmp_path):
    path = tmp_path / "l.jsonl"
    ledger = open_ledger(path)
    paid = pay(planned(), ledger)
    first = next(paid.values)

    def child() -> None:
        refused(next, paid.values)
        own = pay(planned(), ledger)
        assert own.entry.id != paid.entry.id
        assert first not in list(own.values)

    assert in_child(child) == 0
    assert len(list(paid.values)) == STEPS - 1
    assert len(ledger.entries) == 2, "the parent sees what its child entered"
    memory = Ledger()
    held = pay(planned(), memory)

    def other() -> None:
        refused(pay, planned(), memory)

    assert in_child(other) == 0
    assert ids(memory) == [held.entry.id]


def test_a_process_that_is_forked_while_another_thread_enters_is_not_stuck(tmp_path):
    """And does not give back the lock of its parent."""
    path = tmp_path / "l.jsonl"
    ledger, inside, go = open_ledger(path), threading.Event(), threading.Event()

    def hold() -> None:
        with ledger.adding():
            inside.set()
            go.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait()
    child = forked(lambda: pay(planned(), ledger))
    assert os.waitpid(child, os.WNOHANG) == (0, 0), "it waits"
    go.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
    assert len(ledger.entries) == 1


def test_values_are_never_pickled_or_copied():
    paid = pay(planned(), Ledger())
    for way in (pickle.dumps, copy.copy, copy.deepcopy):
        refused(way, paid.values)
    refused(pickle.dumps, paid)


@pytest.mark.parametrize("drawn", range(STEPS))
def test_a_copied_checkpoint_leads_to_the_same_bits(tmp_path, drawn):
    ledger, keeper = open_ledger(tmp_path / "l.jsonl"), Kept(tmp_path / "k")
    paid = pay(planned(keeper=keeper), ledger, keeper)
    whole = list(itertools.islice(paid.values, drawn))
    shutil.copy(tmp_path / "k", tmp_path / "copy")
    whole += paid.values
    state = Kept(tmp_path / "copy").latest.state
    first = len(state.get("drawn", ()))
    assert ("key" not in state) == (first > 0), "keys forget"
    for name in ("one", "two"):
        mine = Kept(Path(shutil.copy(tmp_path / "copy", tmp_path / name)))
        resumed = pay(planned(keeper=mine), open_ledger(tmp_path / "l.jsonl"), mine)
        assert resumed.entry == paid.entry
        assert list(resumed.values) == whole[first:]
    assert ids(ledger) == [paid.entry.id], "found by its id, and paid once"


# --- going on ---


@pytest.fixture
def begun(tmp_path):
    """A release of which one value was drawn; what its checkpoint was before that lies in ``early``."""
    ledger, keeper = open_ledger(tmp_path / "l.jsonl"), Kept(tmp_path / "k")
    paid = pay(planned(keeper=keeper), ledger, keeper)
    shutil.copy(tmp_path / "k", tmp_path / "early")
    next(paid.values), next(paid.values)
    return paid


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize(
    "changes", [{"facts": "b"}, {"snapshot": "6" * 64}, {"snapshot": None}, {"facts": ""}], ids=str
)
def test_other_settings_or_records_do_not_go_on(tmp_path, begun, early, changes):
    """The same noise on other records would tell the difference."""
    keeper = Kept(tmp_path / ("early" if early else "k"))
    assert "other settings or records" in refused(pay, planned(**changes), open_ledger(tmp_path / "l.jsonl"), keeper)
    assert keeper.latest is not None
    assert entries_in(tmp_path / "l.jsonl") == [begun.entry.id]


def test_a_plan_that_does_not_read_its_mechanisms_from_the_entry_does_not_go_on(tmp_path, begun):
    ledger = open_ledger(tmp_path / "l.jsonl")
    anew = planned()(ledger.book, None)
    assert anew.entry.mechanisms != begun.entry.mechanisms
    refused(pay, partial(as_it_is, anew), ledger, Kept(tmp_path / "k"))


def test_facts_that_differ_are_named(tmp_path):
    """Of work that the entry cannot tell from other work."""
    ledger, keeper = open_ledger(tmp_path / "l.jsonl"), Kept(tmp_path / "k")
    entry = pay(planned(keeper=keeper), ledger, keeper, {"lr": 1.0, "seed": 0}).entry
    with pytest.raises(InputError, match=r"begun otherwise: `lr` was 1\.0 and is 2\.0; repeat"):
        pay(planned(keeper=keeper), ledger, keeper, {"lr": 2.0, "seed": 0})
    assert pay(planned(keeper=keeper), ledger, keeper, {"lr": 1.0, "seed": 0}).entry == entry
    assert ids(ledger) == [entry.id]


def test_records_without_a_snapshot_do_not_go_on(tmp_path):
    ledger, keeper = open_ledger(tmp_path / "l.jsonl"), Kept(tmp_path / "k")
    pay(planned(snapshot=None), ledger, keeper)
    assert "other settings or records" in refused(pay, planned(snapshot=None), ledger, keeper)


def test_what_the_dataset_is_called_says_nothing(tmp_path, begun):
    plan = planned()

    def renamed(book: Book, known: Entry | None) -> Sums:
        found = plan(book, known)
        entry = replace(
            found.entry, part=replace(found.entry.part, name="../numbers"), day="2001-01-01", words="other"
        )
        return replace(found, entry=entry)

    assert pay(renamed, open_ledger(tmp_path / "l.jsonl"), Kept(tmp_path / "k")).entry == begun.entry


def test_a_checkpoint_whose_ledger_is_another(tmp_path, begun):
    """Where something was drawn it is refused; before, it is a new release of the other ledger."""
    other = open_ledger(tmp_path / "other.jsonl")
    assert "does not hold the release" in refused(pay, planned(), other, Kept(tmp_path / "k"))
    assert other.entries == ()
    paid = pay(planned(), other, Kept(tmp_path / "early"))
    assert ids(other) == [paid.entry.id] != [begun.entry.id]


def test_an_interruption_right_after_the_entry_keeps_its_key(tmp_path, monkeypatch):
    """Ctrl-C between the entry and the first value: the entry is found again."""
    ledger, keeper = open_ledger(tmp_path / "l.jsonl"), Kept(tmp_path / "k")
    inner = Ledger.enter

    def enter(*arguments: Any) -> None:
        inner(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "enter", enter)
        with pytest.raises(KeyboardInterrupt):
            pay(planned(keeper=keeper), ledger, keeper)
    paid = pay(planned(keeper=keeper), ledger, keeper)
    assert ids(ledger) == [paid.entry.id]
    assert len(list(paid.values)) == STEPS


# --- deaths ---


def command(home: Path, told: Path) -> Callable[[], None]:
    """What a verb does: nothing where its result is there; else it pays, or goes on, and writes the result."""

    def work() -> None:
        os.environ["XDG_CONFIG_HOME"] = str(home / "config")
        keeper, result = Kept(home / "checkpoint"), home / "result"
        if result.exists():
            keeper.forget()
            return
        ledger = open_ledger(home / "l.jsonl")
        paid = pay(with_a_test_split(keeper=keeper), ledger, keeper)
        begun = keeper.latest
        assert begun is not None
        tell(told, paid, len(begun.state.get("drawn", ())))
        final = keeper.latest
        assert final is not None
        put(result, {"id": paid.entry.id, "drawn": final.state["drawn"]})
        keeper.forget()

    return work


def check_nothing_lost(home: Path, told: Path) -> None:
    """What holds whenever a process dies."""
    values, held = told_in(told), entries_in(home / "l.jsonl")
    assert all(len(each) == 1 for each in values.values()), "two noises under one id"
    assert {id for id, _ in values} <= set(held), "a value without its entry"
    assert len(held) <= 1, "one release, paid once"


def finish(home: Path, told: Path) -> None:
    """The same command again, to its end."""
    assert in_child(command(home, told)) == 0
    check_nothing_lost(home, told)
    body = json.loads((home / "result").read_text())
    assert [body["id"]] == entries_in(home / "l.jsonl")
    assert {(body["id"], step): {repr(value)} for step, value in enumerate(body["drawn"])} == told_in(told)
    left = {path.name for path in home.iterdir() if not path.name.endswith(".partial")}
    assert left == {"l.jsonl", "l.key", "result", "config"}


def remove_torn_beginning(path: Path) -> None:
    """Does what the refusal says, where the very first write of a ledger was cut short: it paid for nothing."""
    if not path.exists() or len(path.read_bytes().split(b"\n")) > 2 or not path.read_bytes():
        return

    def torn() -> None:
        assert "incomplete" in refused(open_ledger, path, kind=ArtifactError)

    assert in_child(torn) == 0
    path.unlink()


def deaths(tmp_path: Path, end: End) -> Iterator[tuple[Path, Path]]:
    """A folder for each moment at which the command can die, as it is then, and what was told."""
    for number in itertools.count(1):
        home, told = tmp_path / str(number) / "home", tmp_path / str(number) / "told"
        home.mkdir(parents=True)
        if not ends_at(number, command(home, told), home, end):
            assert number > 40, "so many calls write or sync something, at least"
            return
        if end == "torn":
            remove_torn_beginning(home / "l.jsonl")
        else:
            check_nothing_lost(home, told)
        yield home, told
        shutil.rmtree(home.parent)


@pytest.mark.long
@pytest.mark.one_of(3)
@pytest.mark.parametrize("end", ["kill", "torn", "power"])
def test_a_process_that_dies_at_any_write_or_sync_loses_nothing(tmp_path, end):
    for home, told in deaths(tmp_path, end):
        finish(home, told)


@pytest.mark.long
@pytest.mark.parametrize("end", ["kill", "torn", "power"])
def test_a_process_that_dies_twice_loses_nothing(tmp_path, end):
    for home, told in deaths(tmp_path, end):
        saved = shutil.copytree(home.parent, tmp_path / "saved")
        for number in itertools.count(1):
            shutil.rmtree(home.parent)
            shutil.copytree(saved, home.parent)
            ended = ends_at(number, command(home, told), home, end)
            if end == "torn":
                remove_torn_beginning(home / "l.jsonl")
            finish(home, told)
            if not ended:
                break
        shutil.rmtree(saved)
