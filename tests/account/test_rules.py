"""Rules of the account that figures of random histories do not show (``test_world`` has a table of all)."""

import contextlib
import datetime
from dataclasses import replace
from functools import partial

import pytest

from dpltm.errors import InputError
from dpltm.privacy.account import Account, check_declared, check_private, check_unprotected
from dpltm.privacy.entry import HASHES, UNKNOWN_RECORDS, Entry, Part
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


@pytest.mark.parametrize("kind", ["public", "excluded"])
def test_a_declaration_holds_for_its_snapshot_under_any_name(kind: str) -> None:
    """Rule 7: the same file is not private and public in one ledger, in either order; another file is declared anew."""
    whole, copied, other = Part("table", "1" * 64), Part("copy", "1" * 64), Part("copy", "2" * 64)
    declared, paid = Account((Entry(kind, whole),)), Account((Entry("release", whole, (NOISE,)),))  # type: ignore[arg-type]
    for account, check in ((declared, check_private), (paid, partial(check_declared, kind=kind))):
        with pytest.raises(InputError, match=r"^`dataset`: "):
            check(account, part=copied)
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
