"""What a set says of where it comes from: its lineage, a parent, no records at all; and that older forms are refused.

Documents are edited with their digest made right, so that what is refused is the disagreement and not the edit.
"""

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from dpltm.privacy.entry import Lineage, to_json
from dpltm.tickets.ticket_set import check_text, load_ticket_set
from dpltm.training.artifacts import PROVENANCES, Parent
from refusals import told
from set_entries import DRAWN, LINEAGES, MADE, MOMENTS, SAID, TRAINED
from sets import store_set

PARENT = Parent("cd" * 32, "its parent", 2, "transfer to other records")
TEXT = "not a printable text of at most 200 characters"
MISSING = "does not hold the entries that the set was written with"


@pytest.fixture
def cwd(tmp_path, tickets, monkeypatch):
    """A working folder with ``dp``: a set from DP releases and a parent."""
    dp = {"criterion": "dp-train", "provenance": "dp", "parent": PARENT}
    store_set(tmp_path / "work/dp", tickets, name="n", config={"a": [1, 2.5]}, **dp)
    monkeypatch.chdir(tmp_path / "work")
    return Path()


@pytest.fixture
def edit(cwd, raw):
    """Changes keys of tickets.json, or of another file, with the digest made right."""
    return lambda name, file="tickets.json", /, **changes: raw.edit(cwd / name / file, **changes)


def refused(name, file="tickets.json"):
    """The message that a set is refused with, less the file it begins with."""
    message = told(load_ticket_set, Path(name))
    assert message.startswith(f"{name}/{file}: ")
    return message.removeprefix(f"{name}/{file}: ")


@pytest.mark.parametrize("provenance", PROVENANCES)
def test_a_provenance_that_its_lineage_does_not_bear_out(tmp_path, save, edit, provenance):
    """Neither written nor read; a set of no records may carry anything, such as the draw behind its density."""
    message = f"provenance {provenance}: its lineage holds no entry that this could come from"
    for name, entries in {"nothing": (), "public": (SAID,), "dp": (TRAINED,), "private": (MADE,)}.items():
        said = {"provenance": provenance, "made_from": Lineage(entries)}
        if provenance in ("data-free", name):
            assert load_ticket_set(save(tmp_path / name, **said).path).lineage.entries == entries
        else:
            assert told(save, tmp_path / name, **said) == message
            assert not (tmp_path / name).exists()
    edit("dp", provenance=provenance)
    if provenance in ("public", "private"):
        assert refused("dp") == message


def test_an_entry_of_the_set_is_not_dropped_or_changed(cwd, edit):
    """A draw that was marked later may be there or not: the ledger and the winner know of it."""
    full = to_json(LINEAGES["dp"])
    edit("dp", "lineage.json", lineage=to_json(LINEAGES["dp"] | Lineage((DRAWN,))))
    assert load_ticket_set(cwd / "dp").lineage.entries == (TRAINED, MOMENTS, DRAWN)
    for entries in ([], full["entries"][:1], [full["entries"][0], {**full["entries"][1], "words": "other"}]):
        edit("dp", "lineage.json", lineage={"entries": entries, "heads": []})
        assert refused("dp", "lineage.json") == MISSING
    edit("dp", "lineage.json", lineage=full)
    for stated in (None, [], {TRAINED.id: "0" * 64}, {"0" * 64: "0" * 64}):
        edit("dp", lineage=stated)
        assert refused("dp", "lineage.json") == MISSING


@pytest.mark.parametrize(
    ("signed", "change", "message"),
    [
        (False, {"of": "0" * 64}, "the digest does not match; it is damaged or was changed"),
        (True, {"of": "0" * 64}, "belongs to another artifact; its weights, its masks or this file were exchanged"),
        (True, {"lineage": 5}, "lineage: unknown or missing field 'all of it'"),
        (True, {"lineage": {"entries": [{}], "heads": []}}, "lineage: entries: unknown or missing field 'day'"),
    ],
)
def test_a_lineage_that_is_none(cwd, raw, signed, change, message):
    raw.edit(cwd / "dp/lineage.json", signed=signed, **change)
    assert refused("dp", "lineage.json") == message
    (cwd / "dp/lineage.json").unlink()
    assert refused("dp", "lineage.json") == "cannot be read: No such file or directory"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"provenance": ["dp"]}, "provenance ['dp'] is none of data-free, public, dp, private"),
        ({"parent": {**asdict(PARENT), "round": -1}}, "parent: round -1 is not a round"),
        *(({"card": stated}, "card is not a SHA-256") for stated in (None, "", "ab" * 32 + "\n")),
    ],
)
def test_disagreements(edit, changes, message):
    edit("dp", **changes)
    assert refused("dp") == message


def test_texts(tmp_path, save):
    """What is shown on a terminal has no control characters, and no end of lines."""
    for text in ("\x1b[2J", "line\nbreak", "\x00", "\u202e", "\x7f", "a\tb", "\ud800", "a" * 201, None, 5):
        assert told(check_text, "where", text) == f"where: {TEXT}"
    for text in ("a" * 200, "", "Größe 数字 ½", "[bold]x[/bold]"):
        check_text("where", text)
    for where, key in (("`name`", "name"), ("criterion", "criterion")):
        assert told(save, tmp_path / "a", **{key: "line\nbreak"}) == f"{where}: {TEXT}"
    parent = replace(PARENT, name="\x1b[2J")
    assert told(save, tmp_path / "a", parent=parent) == f"parent: name: {TEXT}"
    assert list(tmp_path.iterdir()) == []
