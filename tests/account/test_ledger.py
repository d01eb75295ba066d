"""Ledgers: what is entered stays, as it will be read; budgets refuse before it; and no value knows more than its ledger."""

import copy
import pickle
import sys
import threading
import time
from dataclasses import replace

import pytest

from dpltm.errors import ArtifactError, BudgetError, InputError
from dpltm.privacy.entry import Entry, Head, Lineage, Part
from dpltm.privacy.ledger import Book, Ledger, Moved, of_process
from dpltm.privacy.mechanisms import GaussianRelease, Guarantee, RandomizedResponse, Unprotected
from world import Shelf

NOISE = GaussianRelease(4.0)
DRAFT = Entry("release", mechanisms=(NOISE,), words="a mean")


@pytest.fixture
def shelf():
    return Shelf(Book.new("people"))


def enter(ledger, draft=DRAFT, id="1" * 64):
    return ledger.enter(draft, id, ledger.book.head)


def test_entries_get_id_home_population_and_place(shelf):
    ledger = Ledger(store=shelf)
    first = enter(ledger)
    (second,) = ledger.declare(Entry("apart", population="others"))
    assert first == replace(DRAFT, id="1" * 64, home=shelf.book.home, population="people", sequence=1)
    assert (second.sequence, second.population, len(second.id)) == (2, "others", 64)
    assert ledger.entries == (first, second)
    assert ledger.lineage(first) == Lineage((first,), (shelf.book.head,))
    assert shelf.book.head == Head(shelf.book.home, 2, shelf.book.digests[-1])


@pytest.mark.parametrize(
    "draft",
    [
        replace(DRAFT, words="of two\nlines"),
        replace(DRAFT, words="\ud800"),
        replace(DRAFT, kind="gift"),
        replace(DRAFT, part=Part("table\x00")),
        replace(DRAFT, mechanisms=[NOISE]),
        replace(DRAFT, mechanisms=(RandomizedResponse(epsilon=1.0, categories=2.5),)),
        replace(DRAFT, day=20261126),
    ],
)
def test_what_could_not_be_read_again_is_never_entered(shelf, draft):
    before = shelf.book
    for way in (lambda: enter(Ledger(store=shelf), draft), lambda: Ledger(store=shelf).declare(DRAFT, draft)):
        with pytest.raises((ArtifactError, TypeError)):
            way()
    assert shelf.book is before


def test_a_release_is_entered_on_what_it_was_planned_on(shelf):
    ledger, head = Ledger(store=shelf), shelf.book.head
    enter(ledger)
    with pytest.raises(Moved):
        ledger.enter(DRAFT, "2" * 64, head)
    with pytest.raises(ArtifactError, match="again"):
        enter(ledger)
    assert len(ledger.entries) == 1


@pytest.mark.parametrize(
    ("draft", "field"), [(replace(DRAFT, unit="patient"), "unit"), (replace(DRAFT, population="others"), "population")]
)
def test_people_of_another_unit_or_population_are_refused(shelf, draft, field):
    with pytest.raises(InputError) as refused:
        enter(Ledger(store=shelf), draft)
    assert refused.value.option == field
    nameless = Ledger()
    with pytest.raises(InputError):
        nameless.declare(draft)
    assert nameless.entries == shelf.book.entries == ()
    enter(Ledger(store=shelf), replace(DRAFT, population="people"))
    Ledger(store=shelf).declare(Entry("public", population="others", unit="patient"))  # protects nobody


def test_a_value_that_knows_more_of_its_ledger_is_refused_with_both_heads(shelf):
    ledger = Ledger(store=shelf)
    one, two = (enter(ledger, id=digit * 64) for digit in "12")
    knows = [ledger.lineage(two), Lineage((two,)), Lineage((), (shelf.book.head,))]
    full = shelf.book
    for book in (full, full.adding([DRAFT], ["3" * 64])):  # which has grown since
        assert all(book.account(lineage).entries == book.entries for lineage in knows)
    short = replace(full, entries=(one,), digests=full.digests[:2])
    shelf.past.append(short)
    for lineage in knows:
        with pytest.raises(ArtifactError) as refused:
            Ledger(store=shelf).account(lineage)
        if lineage.heads:
            assert full.digests[-1][:12] in str(refused.value)
            assert short.digests[-1][:12] in str(refused.value)


def test_snapshots_are_known_by_content_and_to_the_owner_alone(shelf):
    ledger = Ledger(store=shelf)
    assert ledger.snapshot(b"content") == Ledger(store=shelf).snapshot(b"content")
    assert len({ledger.snapshot(b"content"), ledger.snapshot(b"other"), Ledger("people").snapshot(b"content")}) == 3
    assert shelf.book.key.hex() not in repr(shelf.book)
    assert repr(shelf.book.key) not in repr(shelf.book)


def test_a_ledger_is_one():
    ledger = Ledger()
    assert copy.copy(ledger) is copy.deepcopy([ledger])[0] is ledger
    with pytest.raises(InputError, match="pickled"):
        pickle.dumps(ledger)
    entered = ledger.declare(DRAFT)
    lineage = ledger.lineage(*entered)
    assert pickle.loads(pickle.dumps(lineage)) == lineage


def test_threads_that_begin_at_once_share_the_ledger_of_the_process(monkeypatch):
    """Without a lock several are made: an account in parts, and a process in which every later call fails."""
    module = sys.modules["dpltm.privacy.ledger"]
    monkeypatch.setattr(module, "_of_process", [])
    begin = threading.Barrier(100)

    class Slow(Ledger):  # the other threads run between the look and the entry
        def __init__(self, *args, **named):
            time.sleep(0.001)
            super().__init__(*args, **named)

    monkeypatch.setattr(module, "Ledger", Slow)
    ledgers = []

    def begins():
        begin.wait()
        ledgers.append(of_process())

    threads = [threading.Thread(target=begins) for _ in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ledgers) == 100
    assert {id(ledger) for ledger in ledgers} == {id(of_process())}


def test_budgets_refuse_before_anything_is_entered():
    ledger = Ledger()
    ledger.declare(Entry("budget", mechanisms=(Guarantee(1.0, 1e-5),)))
    enter(ledger)
    with pytest.raises(BudgetError):
        enter(ledger, id="2" * 64)
    with pytest.raises(BudgetError):
        ledger.declare(DRAFT)
    ledger.declare(Entry("budget", mechanisms=(Guarantee(2.0, 1e-5),)))  # the last one rules
    enter(ledger, id="2" * 64)
    with pytest.raises(BudgetError):
        enter(ledger, Entry("release", mechanisms=(Unprotected(),)), "3" * 64)
    assert [entry.kind for entry in ledger.entries] == ["budget", "release", "budget", "release"]


def test_a_copy_that_went_on_elsewhere_is_refused(shelf):
    ledger = Ledger(store=shelf)
    enter(ledger)
    at_one = shelf.book
    head = at_one.adding([DRAFT], ["2" * 64]).head
    shelf.past.append(at_one.adding([DRAFT, DRAFT], ["3" * 64, "4" * 64]))
    with pytest.raises(ArtifactError, match=r"holds 3 entries .* knows 2"):
        ledger.account(Lineage((), (head,)))
    assert ledger.account(Lineage((), (at_one.head, Head("elsewhere", 9, "x")))).entries == shelf.book.entries


def test_an_edited_entry_is_refused_wherever_it_meets_the_true_one(shelf):
    ledger = Ledger(store=shelf)
    edited = replace(enter(ledger), mechanisms=(GaussianRelease(400.0),))
    with pytest.raises(ArtifactError, match="edited"):
        ledger.account(Lineage((edited,)))
