"""The journal: what it remembers of ledgers, what crashes leave, and what becomes of a ledger that lost something."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from dpltm.errors import BudgetError
from dpltm.privacy import budgets
from dpltm.privacy.events import BudgetEvent, DatasetRef, GuaranteeEvent, ProvenanceEvent
from dpltm.privacy.mechanisms import Guarantee
from dpltm.records import load
from dpltm.tickets import journal
from dpltm.tickets.journal import journal_path
from dpltm.tickets.ledger_file import enrol, open_ledger, remove_ledger, restore, write_events
from refusals import refused, told

ONE, OTHER = load("digits", subset="0.0:0.5"), load("digits", subset="0.5:1.0")
"""Records that have nobody in common."""


def spend(path, epsilon, dataset=ONE):
    """Enters a release in the ledger at ``path``, as a program of its own would."""
    ledger = open_ledger(path)
    event = GuaranteeEvent(ledger.registry.reference(dataset), Guarantee(epsilon), "a count")
    ledger.append(event)
    return event


def set_budget(path, epsilon, dataset=ONE):
    ledger = open_ledger(path)
    ledger.append(BudgetEvent(ledger.registry.reference(dataset), epsilon, 1e-12))


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def path():
    """A ledger of three events."""
    for _ in range(3):
        spend("l.jsonl", 0.25)
    return Path("l.jsonl")


def lines():
    return journal_path().read_text().splitlines()


# --- what is written ---


def test_it_is_by_the_letter_of_the_document(path):
    """A header, a name, and every event with the digest that the ledger has."""
    header, name, *entries = (json.loads(line) for line in lines())
    assert header == {"format": "dpltm-journal", "schema": 1}
    assert name == {"ledger": 1, "name": str(path.absolute())}
    held = [json.loads(line) for line in path.read_text().splitlines()[1:]]
    assert entries == [{"ledger": 1, "digest": each["digest"], "event": each["event"]} for each in held]
    assert journal_path().stat().st_mode & 0o077 == 0


def test_it_is_only_added_to(path):
    before = journal_path().read_bytes()
    write_events(Path("copy.jsonl"), open_ledger(path).events)
    enrol(Path("copy.jsonl"))
    path.unlink()
    restore(path)
    remove_ledger(path)
    assert journal_path().read_bytes().startswith(before)


def test_a_dry_run_writes_nothing(path):
    before = journal_path().read_bytes()
    ledger = open_ledger(path, remember=False)
    ledger.check_budgets((GuaranteeEvent(ledger.registry.reference(ONE), Guarantee(9.0), "a count"),))
    assert journal_path().read_bytes() == before


# --- crashes ---


@pytest.mark.parametrize("rolled_back", [False, True])
def test_a_crash_between_the_two_writes_blocks_nothing(path, rolled_back):
    """The event is in the ledger and not in the journal, and paid for nothing yet: with it or without it, it goes on."""
    ledger_before, journal_before = path.read_bytes(), journal_path().read_bytes()
    spend(path, 0.25)
    journal_path().write_bytes(journal_before)
    if rolled_back:
        path.write_bytes(ledger_before)
    spend(path, 0.25)
    assert len(open_ledger(path).events) == (4 if rolled_back else 5)
    assert [entry["event"] for entry in map(json.loads, lines()) if "event" in entry] == [
        json.loads(line)["event"] for line in path.read_text().splitlines()[1:]
    ]
    path.write_bytes(ledger_before)
    assert "holds 3 events" in told(open_ledger, path)


def test_a_torn_line_of_the_journal_was_never_acted_on(path):
    whole = journal_path().read_bytes()
    journal_path().write_bytes(whole + b'{"ledger": 1, "dig')
    assert len(open_ledger(path).events) == 3
    spend(path, 0.25)
    assert journal_path().read_bytes().startswith(whole + b'{"ledger": 1, "digest": "')
    assert len(journal.look().order) == 4


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"epsilon":0.25', '"epsilon":0.01'),
        ('"ledger": 1, "name"', '"ledger": "1", "name"'),
        ('{"ledger": 1, "d', "{"),
    ],
)
def test_a_damaged_journal_is_refused(path, old, new):
    """Whatever it would say of any ledger cannot be relied on; the line is named, and the way out."""
    text = journal_path().read_text()
    assert old in text
    number = 1 + text[: text.index(old)].count("\n")
    journal_path().write_text(text.replace(old, new, 1))
    message = told(open_ledger, path)
    assert message.startswith(f"{journal_path()}: what ledgers held cannot be read (line {number} is damaged)")
    journal_path().rename("away")
    spend(path, 0.25)  # known again as it is used
    path.write_bytes(b"")
    assert "held 4 events" in told(open_ledger, path)


@pytest.mark.parametrize("kind", ["folder", "pipe", "link"])
def test_a_journal_that_is_no_file_is_refused_and_nothing_is_spent(path, kind):
    journal_path().unlink()
    match kind:
        case "folder":
            journal_path().mkdir()
        case "pipe":
            os.mkfifo(journal_path())
        case "link":
            Path("target").touch()
            journal_path().symlink_to(Path("target").absolute())
    before = path.read_bytes()
    try:
        assert str(journal_path()) in told(spend, path, 0.25)
        assert path.read_bytes() == before
    finally:
        journal_path().rmdir() if kind == "folder" else journal_path().unlink()


# --- ledgers that moved, were copied, or came from elsewhere ---


def test_a_ledger_that_was_moved_goes_on_and_leaves_its_place_free(path):
    path.rename("m.jsonl")
    spend("m.jsonl", 0.25)
    spend(path, 0.25)
    assert [len(open_ledger(each).events) for each in (path, "m.jsonl")] == [1, 4]


def test_a_copy_goes_on_by_itself_and_both_count(path):
    """What both hold is one release; what each got since adds up."""
    set_budget(path, 1.3)
    shutil.copy(path, "copy.jsonl")
    spend(path, 0.25)
    assert "epsilon 1.5 at delta" in refused(spend, "copy.jsonl", 0.5, kind=BudgetError)
    spend("copy.jsonl", 0.25)
    assert "epsilon 1.5 at delta" in refused(spend, path, 0.25, kind=BudgetError)


def test_a_ledger_from_another_machine_is_declared_once():
    elsewhere = DatasetRef("digits", "ab" * 16, "01234567")
    made = Path("made.jsonl")
    write_events(made, [GuaranteeEvent(elsewhere, Guarantee(0.5), "a count") for _ in range(2)])
    assert told(spend, made, 0.25).endswith(
        "entered elsewhere, and nothing is known of them here; declare it once with dpltm privacy adopt made.jsonl, and they"
        " count here too"
    )
    assert len(open_ledger(made).events) == 2  # it may be read
    assert enrol(made) == 2
    spend(made, 0.25)
    set_budget("l.jsonl", 1.5)  # whoever is in it may be anybody here
    assert "epsilon 1.75 at delta" in refused(spend, "l.jsonl", 0.5, kind=BudgetError)


def test_statements_that_cost_nothing_need_no_declaration():
    """Such as the ledger of a public ticket set that somebody sent."""
    elsewhere = DatasetRef("digits", "ab" * 16, "01234567")
    write_events(Path("made.jsonl"), [ProvenanceEvent(elsewhere, "public", "12" * 32)])
    spend("made.jsonl", 0.25)
    assert len(open_ledger("made.jsonl").events) == 2


def test_what_dpltm_takes_away_stays_on_record(path):
    set_budget("other.jsonl", 1.0)
    remove_ledger(path)
    assert open_ledger(path).events == ()
    assert "epsilon 1.25 at delta" in refused(spend, path, 0.5, kind=BudgetError)
    spend(path, 0.25)


def test_a_folder_that_dpltm_makes_anew_begins_new_ledgers():
    spend("set/ledger.jsonl", 0.25)
    spend("settings/ledger.jsonl", 0.25)
    shutil.rmtree("set")
    journal.begin(Path("set"))
    spend("set/ledger.jsonl", 0.25)
    Path("settings/ledger.jsonl").unlink()
    assert "held 1 event" in told(open_ledger, "settings/ledger.jsonl")  # another folder, whose name begins alike


# --- restoring ---


def test_what_a_ledger_holds_beside_stays(path):
    """Of an older copy that went on elsewhere: nothing is lost, and nothing counts twice."""
    older = "".join(line + "\n" for line in path.read_text().splitlines()[:2])
    Path("copy.jsonl").write_text(older)
    beside = spend("copy.jsonl", 0.5)
    events = open_ledger(path).events
    Path("copy.jsonl").replace(path)
    assert "holds 2 events" in told(open_ledger, path)
    assert restore(path) == (4, 2)
    assert open_ledger(path).events == (events[0], beside, *events[1:])
    assert restore(path) == (4, 0)


def test_a_damaged_file_is_kept_beside(path):
    text = path.read_text()
    for number in (1, 2):
        path.write_text(text.replace('"epsilon": 0.25', '"epsilon": 0.01', 1))
        told(open_ledger, path)
        assert restore(path) == (3, 3)
        assert [json.loads(line) for line in path.read_text().splitlines()] == list(map(json.loads, text.splitlines()))
        assert '"epsilon": 0.01' in Path("l.jsonl.damaged" + ("" if number == 1 else "-2")).read_text()


def test_a_link_to_another_known_ledger_is_given_what_both_held_once(path):
    shutil.copy(path, "fork.jsonl")
    spend("fork.jsonl", 0.25)
    Path("link").symlink_to(path)
    spend("link", 0.25)
    Path("link").unlink()
    Path("link").symlink_to("fork.jsonl")
    told(open_ledger, "link")
    assert restore(Path("link")) == (5, 1)
    assert len(open_ledger("fork.jsonl").events) == 5


def test_nothing_to_put_back():
    assert told(restore, Path("l.jsonl")) == (
        "l.jsonl: no ledger of that name is on record here, so there is nothing to put back"
    )


# --- budgets over ledgers ---


def test_a_budget_holds_for_the_records_in_every_ledger():
    set_budget("a.jsonl", 1.0)
    spend("b.jsonl", 0.5)
    message = refused(spend, "c.jsonl", 0.5001, kind=BudgetError)
    assert "to epsilon 1.001 at delta 1e-12, above the budget of 1 set on" in message  # 1.0001, rounded up
    assert not Path("c.jsonl").exists()
    spend("c.jsonl", 5.0, OTHER)  # on records with nobody in common
    spend("c.jsonl", 0.5)
    for each in ("a.jsonl", "b.jsonl", "c.jsonl", "d.jsonl"):
        refused(spend, each, 1e-4, kind=BudgetError)


def test_the_budget_that_was_set_last_counts_whichever_ledger_has_it():
    set_budget("b.jsonl", 1.0)
    set_budget("a.jsonl", 0.5)
    assert "above the budget of 0.5 " in refused(spend, "b.jsonl", 0.75, kind=BudgetError)
    set_budget("b.jsonl", 2.0)
    spend("a.jsonl", 0.75)


def test_a_budget_of_a_ledger_that_comes_late_replaces_no_later_one():
    """Such as one from before the journal, or put back with its whole folder."""
    for path, epsilon, time in (
        ("old.jsonl", 9.0, "2025-01-01T00:00:00.1Z"),
        ("new.jsonl", 1.0, "2026-01-01T00:00:00.1Z"),
    ):
        journal_path().unlink(missing_ok=True)
        ledger = open_ledger(path)
        ledger.append(BudgetEvent(ledger.registry.reference(ONE), epsilon, 1e-12, time=time))
    refused(spend, "old.jsonl", 2.0, kind=BudgetError)
    spend("old.jsonl", 0.5)
    assert "above the budget of 1 set on 2026-01-01" in refused(spend, "c.jsonl", 0.75, kind=BudgetError)
    ledger = open_ledger("new.jsonl")
    early = BudgetEvent(ledger.registry.reference(ONE), 5.0, 1e-12, time="2025-06-01T00:00:00.1Z")
    assert "set after 2025-06-01T00:00" in refused(ledger.append, early, kind=BudgetError)


def test_releases_for_both_relations_are_summed_up_under_replace_one():
    """A release for add/remove counts twice there: no ledger of its own would help, since budgets look at all."""
    set_budget("b.jsonl", 1.0)
    ledger = open_ledger("latent.jsonl")
    told_apart = Guarantee(0.3, adjacency="replace-one")
    ledger.append(GuaranteeEvent(ledger.registry.reference(load("digits")), told_apart, "messages"))
    spend("a.jsonl", 0.35)  # 0.3 + 2 * 0.35 is 1
    assert "to epsilon 1.02" in refused(spend, "a.jsonl", 0.01, kind=BudgetError)
    other = Guarantee(0.01, adjacency="replace-one", unit="user")
    event = GuaranteeEvent(ledger.registry.reference(load("digits")), other, "no common guarantee")
    assert "no finite guarantee" in refused(open_ledger("u.jsonl").append, event, kind=BudgetError)


def test_a_folder_without_locks_is_refused_by_name(monkeypatch, path):
    before = path.read_bytes()

    def unlocked(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unlocked)
    assert told(spend, path, 0.25).startswith(
        f"{journal_path()}: what ledgers hold cannot be kept (No locks available)"
    )
    assert path.read_bytes() == before


def test_a_forked_process_does_not_keep_the_lock():
    """One that lives on, such as a worker of a loader, has the file open that its parent has locked."""
    with journal.locked():
        child = os.fork()
        if child == 0:
            signal.pause()
    try:
        other = os.open(journal_path(), os.O_RDONLY)
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(other)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_budgets_are_priced_before_others_have_to_wait(monkeypatch):
    """Under the lock only what somebody entered meanwhile is priced again."""
    set_budget("b.jsonl", 1.0)
    waiting, priced = [], []

    @contextlib.contextmanager
    def locked():
        with own() as kept:
            waiting.append(kept)
            yield kept
            waiting.clear()

    def total(*arguments):
        priced.append(bool(waiting))
        return price(*arguments)

    own, price = journal.locked, budgets.spent_of
    monkeypatch.setattr(journal, "locked", locked)
    monkeypatch.setattr(budgets, "spent_of", total)
    spend("a.jsonl", 0.25)
    assert priced == [False]
    late = open_ledger("c.jsonl")
    event = GuaranteeEvent(late.registry.reference(ONE), Guarantee(0.75), "a count")
    late.check_budgets((event,))
    spend("a.jsonl", 0.25)
    refused(late.append, event, kind=BudgetError)
