"""Rules of the account that figures of random histories do not show (``test_world`` has a table of all)."""

from __future__ import annotations

import datetime
from dataclasses import replace

import numpy as np
import pytest

from dpltm.errors import InputError
from dpltm.privacy import guards
from dpltm.privacy.account import Account, check_private, check_unprotected
from dpltm.privacy.entry import HASHES, Entry, Part
from dpltm.privacy.ledger import Ledger
from dpltm.privacy.mechanisms import GaussianRelease, Guarantee, NoisySgd, Unprotected
from dpltm.privacy.statement import SETTLED_NOTE, entry_notes, statement

HALF = HASHES // 2
NOISE = GaussianRelease(4.0)
REPLACING = GaussianRelease(4.0, adjacency="replace-one")


def part(start: int, stop: int, cut: str = "record", snapshot: str = "5" * 64) -> Part:
    return Part("table", snapshot, ("age",), cut, start, stop)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["public", "excluded"])
@pytest.mark.parametrize("first", ["release", "declaration"])
def test_under_replace_one_no_part_by_hash_is_protected_beside_one_that_is_not(kind: str, first: str) -> None:
    """Rule 8: a record may leave one part by hash for another; places are fixed."""

    def both(cut: str, noise: GaussianRelease) -> None:
        stop = HALF if cut == "record" else 10
        drafts = [Entry("release", part(0, stop, cut), (noise,)), Entry(kind, part(stop, 2 * stop, cut))]  # type: ignore[arg-type]
        ledger = Ledger()
        for draft in drafts if first == "release" else reversed(drafts):
            ledger.declare(draft)

    both("record", NOISE)
    both("place", REPLACING)
    with pytest.raises(InputError, match=r"^`dataset`: "):
        both("record", REPLACING)


@pytest.fixture
def met(monkeypatch: pytest.MonkeyPatch) -> dict[Part, guards.Marks]:
    """What this process met, for one test."""
    known: dict[Part, guards.Marks] = {}
    monkeypatch.setattr(guards, "_met", known)
    return known


def marks(rows: list[int], persons: list[int] | None = None) -> guards.Marks:
    def these(of: str, values: list[object]) -> np.ndarray:
        return guards.digests([repr(value).encode() for value in values], of)

    if persons is None:
        return guards.Marks(these("rows", list(rows)))
    pairs = list(zip(rows, persons, strict=True))
    return guards.Marks(
        these("rows", list(rows)), these("persons", list(persons)), these("whose", list(pairs)), "user"
    )


@pytest.mark.usefixtures("met")
def test_rows_are_known_again_in_another_snapshot() -> None:
    """Rule 7: a copy, a fold or an array is no way around a declaration; nor are persons grouped otherwise."""
    one, other, third = (Part(f"table {digit}", digit * 64) for digit in "123")
    declared, paid = Entry("public", one), Entry("release", one, (NOISE,))
    for kept, asked, shared in ((marks([1, 2]), marks([2, 3]), True), (marks([1, 2]), marks([3]), False)):
        guards.remember(one, kept)
        guards.remember(other, asked)
        assert guards.share(one, other) is guards.share(other, one) is shared
        if shared:
            with pytest.raises(InputError, match=r"^`dataset`: "):
                check_private(Account((declared,)), other)
        else:
            check_private(Account((declared,)), other)
    assert not guards.share(one, third), "which was never met"
    with pytest.raises(InputError, match=r"^`dataset`: "):
        check_private(Account((declared,)), replace(one, snapshot=third.snapshot))  # the same dataset, changed
    guards.remember(replace(other, snapshot=None), marks([1]))
    assert not guards.met(replace(other, snapshot=None)), "nothing says which records those are"
    guards.remember(one, marks([1, 2, 3], [7, 7, 8]))
    guards.remember(other, marks([1, 2, 3], [7, 7, 8]))
    check_private(Account((paid,)), other)
    guards.remember(other, marks([1, 2, 3], [7, 8, 8]))
    with pytest.raises(InputError, match=r"^`units`: "):
        check_private(Account((paid,)), other)


def test_an_account_that_has_a_figure_is_not_ended_unasked() -> None:
    """Rule 6."""
    look, held = Entry("release", mechanisms=(Unprotected(),)), Account((Entry("release", mechanisms=(NOISE,)),))
    with pytest.raises(InputError, match=r"^`unprotected`: "):
        check_unprotected(held, (look,), False)
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
        (Entry("release", part(0, 9, "place"), (NOISE,)), "parts of table are cut by its places"),
    ],
    ids=["unprotected", "fast", "no noise", "places"],
)
def test_what_an_entry_calls_for_is_said(entry: Entry, said: str) -> None:
    """Rule 6, and what else no figure tells."""
    assert any(note.startswith(said) for note in entry_notes(Account((entry,))))
    assert entry_notes(Account((Entry("release", mechanisms=(NOISE,)),))) == []
