"""The winner beside a set: what is drawn is read back, and no changed field passes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dpltm.errors import ArtifactError
from dpltm.privacy.event_json import to_json
from dpltm.privacy.lineage import draws_behind
from dpltm.tickets.ticket_set import load_ticket_set
from dpltm.tickets.winner import Winner, last_winner, load_winner, save_winner
from entries import having
from refusals import told
from set_events import BUDGET, DRAWN, SAID, SHOWN

STALE = "the digest does not match; damaged or changed; restore it, or remove it if no winner of this set is in use"
OTHER = "does not belong to this ticket set; run dpltm select s again"


@pytest.fixture
def drawn(tmp_path, save, monkeypatch):
    """A set named s in the working folder, round 2 of which won."""
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "s")
    tickets = load_ticket_set(Path("s"))
    save_winner(tickets, 2, "exponential", [event_for(tickets)])
    return tickets


def event_for(tickets):
    return replace(having(DRAWN, adaptive=False), ticket_set=tickets.id)


def another(tickets, second):
    return replace(having(event_for(tickets), adaptive=True), time=f"2026-01-02T03:04:{second:02}Z")


def behind(tickets, number):
    return draws_behind(tickets, last_winner(tickets), number)


@pytest.fixture
def edit(drawn, raw):
    """Changes keys of selection.json, and makes its digest right if it is ``signed``."""
    return lambda **changes: raw.edit(drawn.path / "selection.json", **changes)


def refused(tickets):
    message = told(load_winner, tickets)
    assert message.startswith("s/selection.json: ")
    return message.removeprefix("s/selection.json: ")


def test_round_trip(drawn, raw):
    assert load_winner(drawn) == Winner(2, (event_for(drawn),))
    body = json.loads((drawn.path / "selection.json").read_text())
    assert set(body) == {"format", "schema", "ticket_set", "round", "how", "events", "earlier", "time", "digest"}
    assert (body["format"], body["schema"], body["ticket_set"]) == ("dpltm-selection", 3, drawn.id)
    assert (body["round"], body["how"]) == (2, "exponential")
    assert body["digest"] == raw.digest(body)


def test_nothing_drawn_yet(drawn):
    (drawn.path / "selection.json").unlink()
    assert told(load_winner, drawn) == "s: no winner was drawn yet; run dpltm select s, or name a round as s@ROUND"
    assert [behind(drawn, number) for number in (None, 0, 2)] == [(), (), ()]


STATED = ("ticket_set", "round", "how", "events", "earlier", "time", "digest")
CHANGED = [{"round": 1}, {"round": 2.0}, *({key: "0" * 64} for key in ("how", "time", "ticket_set", "more", "digest"))]


@pytest.mark.parametrize(
    "change", [*CHANGED, *({key: ...} for key in STATED), {"digest": None}, {"events": []}, {"schema": 1, "round": 1}]
)
def test_any_changed_or_missing_field_is_refused(drawn, edit, change):
    """Schema 1 had no digest: one that stays behind when the schema is edited shows the edit."""
    edit(signed=False, **change)
    assert refused(drawn) == STALE
    for number in (None, 1, 2):  # what the draw cost is unknown, so nothing may be said of it
        assert told(behind, drawn, number) == f"s/selection.json: {STALE}"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ticket_set": "0" * 64}, OTHER),
        *(({"round": value}, OTHER) for value in (True, "2")),
        *(({"round": value}, f"s@{value}: no such round; it has rounds 0 to 3") for value in (4, -1)),
        ({"events": None}, OTHER),
        ({"events": [5]}, "an event must be a JSON object"),
        ({"schema": 4}, "schema 4 is newer than this version of dpltm reads (3); upgrade dpltm"),
        ({"format": "dpltm-run"}, "not a document of format 'dpltm-selection'"),
        *(({"earlier": value}, OTHER) for value in (None, [5], [{}], [{"round": True, "events": []}])),
        ({"earlier": [{"round": 1, "events": None}]}, OTHER),
        ({"earlier": [{"round": 4, "events": []}]}, "s@4: no such round; it has rounds 0 to 3"),
    ],
)
def test_with_the_digest_made_right(drawn, edit, change, message):
    edit(**change)
    assert refused(drawn) == message


def test_schema_1_is_still_read(drawn, edit):
    """It had neither a digest nor earlier draws; a digest that fits does no harm."""
    edit(schema=1)
    assert load_winner(drawn) == Winner(2, (event_for(drawn),))
    edit(signed=False, digest=..., earlier=...)
    assert load_winner(drawn) == Winner(2, (event_for(drawn),))


def test_a_rule_on_public_records_is_nothing_behind_and_forgets_no_draw(drawn):
    first = event_for(drawn)
    assert [behind(drawn, number) for number in (None, 0, 1, 2, 3)] == [(first,), (), (), (first,), ()]
    save_winner(drawn, 3, "smallest-within")
    assert load_winner(drawn) == Winner(3, (), ((2, (first,)),))
    assert [behind(drawn, number) for number in (None, 1, 2, 3)] == [(first,), (), (first,), (first,)]
    save_winner(drawn, 1, "exponential", [another(drawn, 6)])
    assert load_winner(drawn).earlier == ((2, (first,)),)  # what entered nothing is not remembered
    (drawn.path / "selection.json").unlink()
    save_winner(drawn, 2, "smallest-within")
    assert [behind(drawn, number) for number in (None, 0, 2)] == [(), (), ()]


def test_every_draw_counts_for_every_round_that_ever_won(drawn):
    """The later draw was seen when the earlier winner was taken all the same, and the other way round."""
    first, second, third = event_for(drawn), another(drawn, 6), another(drawn, 7)
    save_winner(drawn, 1, "permute-and-flip", [second])
    assert load_winner(drawn) == Winner(1, (second,), ((2, (first,)),))
    for number in (None, 1, 2):
        assert sorted(behind(drawn, number), key=lambda event: event.time) == [first, second]
    assert behind(drawn, 0) == behind(drawn, 3) == ()
    save_winner(drawn, 3, "exponential", [third])
    assert load_winner(drawn) == Winner(3, (third,), ((2, (first,)), (1, (second,))))
    for number in (None, 1, 2, 3):
        assert set(behind(drawn, number)) == {first, second, third}
    assert behind(drawn, 0) == ()


def test_draws_of_the_set_come_first_and_count_once_for_every_round(drawn, save):
    own, first = another(drawn, 1), event_for(drawn)
    save(Path("m"), draws=[own])
    tickets = load_ticket_set(Path("m"))
    assert [behind(tickets, number) for number in (None, 0, 3)] == [(own,)] * 3
    save_winner(tickets, 2, "exponential", [own, first])
    expected = [(own, first), (own,), (own,), (own, first), (own,)]
    assert [behind(tickets, number) for number in (None, 0, 1, 2, 3)] == expected


def test_equal_draws_of_one_record_are_as_many_draws(drawn, save):
    """Each row of the record is one draw. The set's own may be among them, and are not counted again."""
    save_winner(drawn, 2, "exponential", [event_for(drawn)])
    for number in (None, 2):
        assert behind(drawn, number) == (event_for(drawn),) * 2
    own = another(drawn, 1)
    save(Path("m"), draws=[own, own])
    tickets = load_ticket_set(Path("m"))
    save_winner(tickets, 2, "exponential", [own])
    assert behind(tickets, 2) == (own, own)


@pytest.mark.parametrize("event", [BUDGET, SAID], ids=lambda event: type(event).__name__)
def test_an_event_that_no_draw_enters_is_refused(drawn, edit, event):
    """A budget set by somebody else's selection.json would end up in the ledger of whoever trains the winner."""
    rows, before = [to_json(event_for(drawn)), to_json(event)], (drawn.path / "selection.json").read_bytes()
    for change in ({"events": rows}, {"earlier": [{"round": 1, "events": rows}]}):
        (drawn.path / "selection.json").write_bytes(before)
        edit(**change)
        assert refused(drawn) == f"{type(event).__name__} is not what the draw of a winner enters"
        with pytest.raises(ArtifactError):
            behind(drawn, 2)


def test_an_event_that_cannot_be_written_leaves_the_record_as_it_was(drawn):
    save_winner(drawn, 1, "exponential", [event_for(drawn), SHOWN])
    assert load_winner(drawn).events == (event_for(drawn), SHOWN)  # an unprotected release is what a draw enters
    before = (drawn.path / "selection.json").read_bytes()
    event = replace(event_for(drawn), time="\x1b[2J")
    with pytest.raises(ArtifactError, match="event field time: "):
        save_winner(drawn, 1, "exponential", [event_for(drawn), event])
    assert (drawn.path / "selection.json").read_bytes() == before


def test_a_record_that_is_a_link(drawn):
    path = drawn.path / "selection.json"
    path.rename("elsewhere.json")
    path.symlink_to(Path("elsewhere.json").absolute())
    assert refused(drawn) == "is a link, which is not followed"
