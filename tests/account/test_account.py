"""Accounts: golden figures, filters, and what random histories do not show (``test_world`` has a table of the rules)."""

import contextlib
import copy
import datetime
import math
import pickle
import sys
import threading
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq

from dpltm.errors import ArtifactError, BudgetError, InputError
from dpltm.privacy import accountant
from dpltm.privacy.account import MAX_PIECES, Account, as_replace_one, check_declared, check_private, check_unprotected
from dpltm.privacy.accountant import epsilon
from dpltm.privacy.entry import HASHES, UNKNOWN_RECORDS, Entry, Head, Lineage, Part
from dpltm.privacy.ledger import Book, Ledger, Moved, of_process
from dpltm.privacy.mechanisms import (
    AllocatedSgd,
    GaussianRelease,
    Guarantee,
    LaplaceRelease,
    NoisySgd,
    RandomizedResponse,
    Selection,
    Unprotected,
    over_two_steps,
)
from dpltm.privacy.statement import SETTLED_NOTE, entry_notes, statement
from exact import gaussian_delta
from refusals import refused
from world import Shelf

DELTA = 1e-5
HERE, THERE = "a" * 64, "b" * 64
# --- ledgers: what is entered stays as it will be read, and budgets refuse before it ---

NOISE = GaussianRelease(4.0)
SGD = NoisySgd(256 / 60000, 3515, 1.1)
REPLACING = GaussianRelease(4.0, adjacency="replace-one")


def part(start, stop, cut="record", snapshot="one"):
    return Part("table", snapshot, (), cut, start, stop)


def released(number, *mechanisms, home=HERE, on=None, kind="release", **more):
    return Entry(kind, on or Part(), mechanisms, id=f"{number}", home=home, sequence=number, **more)


def account(*entries, lineage=(), **more):
    return Account.of(entries, Lineage(tuple(lineage)), **({"home": HERE} | more))


def noise_for(target, delta=DELTA):
    return brentq(lambda noise: gaussian_delta(target, 1 / noise) - delta, 0.1, 100)


# --- parts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("parts", "truth"), [(1, 2.15), (2, 3.18), (10, 8.17)])
def test_ranges_of_a_file_that_fixes_no_places_add_up_over_two_steps(parts, truth):
    """docs/privacy-model.md 1.5: whatever follows a record moves, so each part sees one leave and another come."""
    moved = over_two_steps(GaussianRelease(noise_for(1.0)))
    ranges = [released(number + 1, moved, on=Part(f"rows {number}")) for number in range(parts)]
    assert account(*ranges).epsilon(DELTA) == pytest.approx(truth, abs=0.01)


def ids(pieces):
    return {frozenset(entry.id for entry in piece) for piece in pieces}


def test_pieces_are_what_one_person_can_be_in():
    entries = [
        released(1, NOISE, on=part(0, 10)),
        released(2, NOISE, on=part(10, 20)),
        released(3, NOISE, on=part(5, 15)),
        released(4, NOISE, on=part(0, 10, "place")),
        released(5, NOISE, on=part(10, 20, "place")),
        released(6, NOISE),
    ]
    assert ids(account(*entries[:3]).pieces) == {frozenset("13"), frozenset("23")}
    assert ids(account(*entries).pieces) == {frozenset(f"{hash}3{place}6") for hash in "12" for place in "45"}
    assert ids(account(*entries[:2], unit="record").pieces) == {frozenset("1"), frozenset("2")}
    replacing = released(7, REPLACING, on=part(20, 30))
    assert ids(account(*entries[:2], replacing).pieces) == {frozenset("127")}
    assert ids(account(*entries[3:5], replacing).pieces) == {frozenset("47"), frozenset("57")}
    assert ids(account().pieces) == {frozenset()}


@pytest.mark.parametrize("many", [15, 16, 17, 300])
def test_too_many_combinations_are_priced_as_whole(many):
    cells = [(k, cut) for cut in ("record", "place") for k in range(many)]
    entries = [released(place, NOISE, on=part(k, k + 1, cut)) for place, (k, cut) in enumerate(cells, start=1)]
    found = account(*entries)
    size = max(map(len, found.pieces))
    assert len(found.pieces) <= MAX_PIECES
    assert size == (2 if many * many <= MAX_PIECES else 1 + many if many <= MAX_PIECES else 2 * many)
    assert {entry.id for piece in found.pieces for entry in piece} == {entry.id for entry in entries}


# --- relations ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mechanism", "twice"),
    [
        (SGD, NoisySgd(SGD.sampling_rate, SGD.steps, 0.55, 2.0, adjacency="replace-one")),
        (AllocatedSgd(0.25, 8, 1.0, participations=2), NoisySgd(1.0, 2, 0.5, 2.0, adjacency="replace-one")),
        (Guarantee(1.0, 0.3), Unprotected(adjacency="replace-one")),
    ],
)
def test_under_mixed_relations_a_record_is_two_steps_away(mechanism, twice):
    """Of other mechanisms the world knows it (``over_two_steps`` in ``world.py``)."""
    assert as_replace_one(mechanism) == twice
    mixed = account(released(1, mechanism), released(2, REPLACING))
    assert mixed.adjacency == "replace-one"
    assert mixed.epsilon(DELTA, "rdp") == epsilon([twice, REPLACING], DELTA, "rdp")


SIZES = st.floats(5e-324, 1.7e308)


@given(
    st.one_of(
        st.builds(GaussianRelease, SIZES, SIZES),
        st.builds(LaplaceRelease, SIZES, SIZES),
        st.builds(Guarantee, SIZES, st.floats(0, 1, exclude_max=True)),
        st.builds(Selection, SIZES, st.just(math.inf)),
        st.builds(
            NoisySgd,
            st.sampled_from([1e-15, 0.01, 1]),
            st.integers(1, 10**9),
            st.sampled_from([0, 1e-3, 1.0, 1e300]),
            SIZES,
        ),
    )
)
def test_two_steps_of_whatever_a_ledger_can_hold_have_a_price_and_never_a_lower_one(mechanism):
    single = account(released(1, mechanism)).epsilon(DELTA, "rdp")
    both = account(released(1, mechanism), released(2, GaussianRelease(1e6, adjacency="replace-one"))).epsilon(
        DELTA, "rdp"
    )
    assert both >= single * (1 - 1e-6)


# --- order ----------------------------------------------------------------------------------------------------------


def test_a_filter_covers_mechanisms_that_answers_chose():
    """docs/privacy-model.md 5.9: the answer of randomised response picks a Gaussian or a (0, 1e-5) mechanism.

    Let p and q be the chances of the answers, 1 and 0. On the pair where p belongs to the answer that picks the Gaussian,
    delta(x) = p G(x - 0.25) + q (1e-5 + (1 - 1e-5) (1 - e^(x + 0.25))+), with the Gaussian's own profile G.
    """
    response = RandomizedResponse(epsilon=0.25, categories=2)
    p = math.exp(0.25) / (1 + math.exp(0.25))

    def on_the_way(noise, x):  # of both, where the Gaussian is always taken
        return p * gaussian_delta(x - 0.25, 1 / noise) + (1 - p) * gaussian_delta(x + 0.25, 1 / noise)

    noise = brentq(lambda noise: on_the_way(noise, 1.5) - DELTA, 1, 10)
    way = account(released(1, response), released(2, GaussianRelease(noise, adjacency="replace-one")))
    other = account(released(1, response), released(2, Guarantee(1e-9, DELTA / 2, adjacency="replace-one")))
    assert way.epsilon(DELTA) == pytest.approx(1.5, abs=1e-3)
    assert other.epsilon(DELTA) < 1.5
    together = brentq(lambda x: p * gaussian_delta(x - 0.25, 1 / noise) + (1 - p) * DELTA - DELTA, 0.3, 5)
    assert together == pytest.approx(1.548, abs=5e-4)
    assert max(way.filter_epsilon(DELTA), other.filter_epsilon(DELTA)) > together


def test_the_filter_is_of_use_at_little_noise_and_at_much():
    """Within twice the figure of settled mechanisms, from epsilon 0.1 to 30; one order alone came to 8 times of it."""
    for noise in (0.6, 1.0, 4.0, 20.0):
        training = NoisySgd(0.02, 1000, noise)
        settled = epsilon([training], DELTA)
        assert settled <= account(released(1, training)).filter_epsilon(DELTA) <= 2 * settled, noise


@pytest.mark.parametrize("first", [1.0, 3.0, 0.2, 40.0])
def test_the_filter_has_a_few_orders_for_everything(first):
    """Divergences at each add up, and their parts of delta come to half of it; no other order is looked for."""
    best = math.inf
    for times, part in ((1, 1 / 4), (1 / 12, 1 / 16), (1 / 4, 1 / 16), (4, 1 / 16), (16, 1 / 16)):
        order = 1 + times * math.log(1 / DELTA)
        sums = order / (2 * first**2) + order / (2 * 5.0**2)
        best = min(best, sums + math.log1p(-1 / order) - math.log(part * DELTA * order) / (order - 1))
    found = account(released(1, GaussianRelease(first)), released(2, GaussianRelease(5.0))).filter_epsilon(DELTA)
    assert found == pytest.approx(best, rel=1e-9)
    assert found >= epsilon([GaussianRelease(first), GaussianRelease(5.0)], DELTA)


@pytest.mark.parametrize(
    ("mechanisms", "figure"),
    [
        ((), 0.0),
        ((Unprotected(),), math.inf),
        ((Guarantee(600.0),), 600.0),
        ((NOISE, Guarantee(0.1, 0.6e-5)), math.inf),
    ],
)
def test_edges_of_the_filter(mechanisms, figure):
    assert accountant.filter_epsilon(mechanisms, DELTA) == figure


def test_a_filter_takes_the_worst_piece_and_checks_delta():
    small, large = released(1, NOISE, on=part(0, 10)), released(2, GaussianRelease(1.0), on=part(10, 20))
    assert account(small, large).filter_epsilon(DELTA) == account(large).filter_epsilon(DELTA)
    assert "delta" in refused(account(small).filter_epsilon, 0.0)


# --- messages of owners ---------------------------------------------------------------------------------------------

SENT, MORE = (Guarantee(size, adjacency="replace-one") for size in (0.5, 0.75))


def sent(number, *mechanisms, home):
    return replace(released(number, *mechanisms, home=home), kind="local")


def test_messages_add_up_for_their_owner_and_count_one_owner_elsewhere():
    hers, his = (sent(1, SENT, home=HERE), sent(2, SENT, home=HERE)), sent(3, MORE, home=THERE)
    assert account(*hers).epsilon(DELTA) == pytest.approx(1.0, rel=1e-4)
    assert account(lineage=[*hers, his], home="c" * 64).epsilon(DELTA) == pytest.approx(1.0, rel=1e-4)
    assert account(lineage=[hers[0], his], home="c" * 64).epsilon(DELTA) == pytest.approx(0.75, rel=1e-4)
    assert account(*hers, lineage=[his]).epsilon(DELTA) == pytest.approx(1.75, rel=1e-4), "the ledger is of others"
    both = account(released(4, SENT, home="c" * 64), lineage=[hers[0], his], home="c" * 64)
    assert both.epsilon(DELTA) == pytest.approx(1.25, rel=1e-4)


def test_any_number_of_owners_is_priced_at_once():
    """A piece for each sum that an owner may have come to, and not for each owner."""
    many = [sent(number, SENT if number % 2 else MORE, home=f"{number:064x}") for number in range(1, 5001)]
    found = account(lineage=many)
    assert len(found.pieces) == 2
    assert found.epsilon(DELTA) == pytest.approx(0.75, rel=1e-4)
    strange = [sent(number, Guarantee(1 / number), home=f"{number:064x}") for number in range(1, MAX_PIECES + 2)]
    assert len(account(lineage=strange).pieces) == 1, "taken together, which never costs less"


# --- properties -----------------------------------------------------------------------------------------------------


def test_many_cuts_stay_monotone():
    """Also where there are too many combinations to price each: once a cut is taken as whole it stays so."""
    rng = np.random.default_rng(0)
    entries, last = [], 0.0
    for number in range(1, 120):
        start, cut = int(rng.integers(40)), str(rng.choice(["record", "place"]))
        snapshot = str(rng.choice(["one", "two"]))
        entries.append(released(number, NOISE, on=part(start, start + 1, cut, snapshot)))
        found = account(*entries).epsilon(DELTA, "ma")
        assert found >= last * (1 - 1e-9)
        last = found


# --- rules that figures of random histories do not show (test_world has a table of all) ---


HALF = HASHES // 2


def ranged(start: int, stop: int, cut: str = "record", snapshot: str = "5" * 64) -> Part:
    return Part("table", snapshot, ("age",), cut, start, stop)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["public", "excluded"])
@pytest.mark.parametrize("first", ["release", "declaration"])
def test_under_replace_one_no_part_by_hash_is_protected_beside_one_that_is_not(kind: str, first: str) -> None:
    """Rule 8: a record may leave one ranged by hash for another; places are fixed."""

    def both(cut: str, noise: GaussianRelease) -> None:
        stop = HALF if cut == "record" else 10
        drafts = [Entry("release", ranged(0, stop, cut), (noise,)), Entry(kind, ranged(stop, 2 * stop, cut))]  # type: ignore[arg-type]
        ledger = Ledger()
        for draft in drafts if first == "release" else reversed(drafts):
            ledger.declare(draft)

    both("record", NOISE)
    both("place", REPLACING)
    assert refused(both, "record", REPLACING).startswith("`dataset`: ")


@pytest.mark.parametrize("kind", ["public", "excluded"])
def test_a_declaration_holds_for_its_snapshot_under_any_name(kind: str) -> None:
    """Rule 7: the same file is not private and public in one ledger, in either order; another file is declared anew."""
    whole, copied, other = Part("table", "1" * 64), Part("copy", "1" * 64), Part("copy", "2" * 64)
    declared, paid = Account((Entry(kind, whole),)), Account((Entry("release", whole, (NOISE,)),))  # type: ignore[arg-type]
    for account, check in ((declared, check_private), (paid, partial(check_declared, kind=kind))):
        assert refused(check, account, part=copied).startswith("`dataset`: ")
        check(account, part=other)


@pytest.mark.parametrize("named", [True, False])
def test_a_dataset_by_name_is_public_or_private_also_once_it_was_edited(named: bool) -> None:
    """Rule 7: arrays of which nobody said a name have none."""
    before = Part("table" if named else UNKNOWN_RECORDS.name, "1" * 64)
    edited = replace(before, snapshot="2" * 64)
    for account, check in (
        (Account((Entry("public", before),)), check_private),
        (Account((Entry("release", before, (NOISE,)),)), partial(check_declared, kind="public")),
    ):
        with pytest.raises(InputError, match=r"^`dataset`: ") if named else contextlib.nullcontext():
            check(account, part=edited)


def test_an_account_that_has_a_figure_is_not_ended_unasked() -> None:
    """Rule 6."""
    look, held = Entry("release", mechanisms=(Unprotected(),)), Account((Entry("release", mechanisms=(NOISE,)),))
    assert refused(check_unprotected, held, (look,), False).startswith("`unprotected`: ")
    check_unprotected(held, (look,), True)
    check_unprotected(held, held.entries, False)
    for empty in (Account(), Account((look,))):
        check_unprotected(empty, (look,), False)


def test_entries_carry_the_day_and_no_finer_time() -> None:
    """Rule 11."""

    def day() -> str:
        return datetime.datetime.now(datetime.UTC).date().isoformat()

    before, (entry,) = day(), Ledger().declare(Entry("release", mechanisms=(NOISE,)))
    assert entry.day in (before, day())


def test_a_figure_of_several_releases_is_said_to_hold_for_settled_ones() -> None:
    """Rule 10; and rule 2: people of another name are shown beside, outside of the figure."""
    ledger = Ledger("P")
    for count in (1, 2):
        ledger.declare(Entry("release", mechanisms=(NOISE,)))
        assert (SETTLED_NOTE in statement(ledger.account(), 1e-5).notes) == (count > 1)
    other = Ledger("Q")
    behind = other.lineage(*other.declare(Entry("release", mechanisms=(NOISE,))))
    ledger.declare(Entry("apart", population="Q"))
    said = statement(ledger.account(behind), 1e-5)
    assert said.certified == statement(ledger.account(), 1e-5).certified
    assert any(
        note.startswith("at least epsilon ") and " for Q, declared to have nobody" in note for note in said.notes
    )


def test_messages_of_other_owners_are_said_to_be_counted_one_each() -> None:
    """Rule 15."""
    owner, other = Ledger(), Ledger()
    sent = owner.declare(Entry("local", mechanisms=(Guarantee(0.5),), words="a message"))
    noted = [any("messages under local DP" in note for note in entry_notes(each.account(owner.lineage(*sent)))) for each
             in (owner, other)]  # fmt: skip
    assert noted == [False, True]


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (Entry("release", mechanisms=(Unprotected(),)), "released without protection from "),
        (Entry("release", mechanisms=(replace(NOISE, bits="fast"),)), "noise of 1 release (`noise` fast)"),
        (Entry("release", mechanisms=(NoisySgd(1.0, 1, 0.0),)), ""),
        (Entry("release", ranged(0, 9, "place"), (NOISE,)), "parts of table are cut by its places"),
    ],
    ids=["unprotected", "fast", "no noise", "places"],
)
def test_what_an_entry_calls_for_is_said(entry: Entry, said: str) -> None:
    """Rule 6, and what else no figure tells."""
    assert any(note.startswith(said) for note in entry_notes(Account((entry,))))
    assert entry_notes(Account((Entry("release", mechanisms=(NOISE,)),))) == []


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
    assert "again" in refused(enter, ledger, kind=ArtifactError)
    assert len(ledger.entries) == 1


@pytest.mark.parametrize(
    ("draft", "field"), [(replace(DRAFT, unit="patient"), "unit"), (replace(DRAFT, population="others"), "population")]
)
def test_people_of_another_unit_or_population_are_refused(shelf, draft, field):
    with pytest.raises(InputError) as caught:
        enter(Ledger(store=shelf), draft)
    assert caught.value.option == field
    nameless = Ledger()
    refused(nameless.declare, draft)
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
        told = refused(Ledger(store=shelf).account, lineage, kind=ArtifactError)
        if lineage.heads:
            assert full.digests[-1][:12] in told
            assert short.digests[-1][:12] in told


def test_snapshots_are_known_by_content_and_to_the_owner_alone(shelf):
    ledger = Ledger(store=shelf)
    assert ledger.snapshot(b"content") == Ledger(store=shelf).snapshot(b"content")
    assert len({ledger.snapshot(b"content"), ledger.snapshot(b"other"), Ledger("people").snapshot(b"content")}) == 3
    assert shelf.book.key.hex() not in repr(shelf.book)
    assert repr(shelf.book.key) not in repr(shelf.book)


def test_a_ledger_is_one():
    ledger = Ledger()
    assert copy.copy(ledger) is copy.deepcopy([ledger])[0] is ledger
    assert "pickled" in refused(pickle.dumps, ledger)
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
    refused(enter, ledger, id="2" * 64, kind=BudgetError)
    refused(ledger.declare, DRAFT, kind=BudgetError)
    ledger.declare(Entry("budget", mechanisms=(Guarantee(2.0, 1e-5),)))  # the last one rules
    enter(ledger, id="2" * 64)
    refused(enter, ledger, Entry("release", mechanisms=(Unprotected(),)), "3" * 64, kind=BudgetError)
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
    assert "edited" in refused(ledger.account, Lineage((edited,)), kind=ArtifactError)
