"""The winner beside a set: what is drawn is read back, and no changed field passes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dpltm.errors import ArtifactError
from dpltm.privacy.event_json import to_json
from dpltm.privacy.events import (
    BudgetEvent,
    DatasetRef,
    Event,
    GaussianEvent,
    NonPrivateEvent,
    ProvenanceEvent,
    SelectionEvent,
)
from dpltm.privacy.lineage import draws_behind
from dpltm.privacy.mechanisms import GaussianRelease, Selection, Unprotected
from dpltm.tickets.ticket_set import load_ticket_set
from dpltm.tickets.winner import Winner, last_winner, load_winner, save_winner
from entries import having

PRIVATE = DatasetRef("digits", "ab" * 16, "01234567", 719, 1438, "places")
STALE = "the digest does not match; damaged or changed; restore it, or remove it if no winner of this set is in use"


@pytest.fixture
def drawn(tmp_path, save, monkeypatch):
    """A set named s in the working folder, round 2 of which won."""
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "s")
    tickets = load_ticket_set((tmp_path / "s").relative_to(tmp_path))
    save_winner(tickets, 2, "exponential", [event_for(tickets)])
    return tickets


def event_for(tickets):
    return SelectionEvent(
        PRIVATE,
        Selection(0.5, 0.5, adaptive=False),
        "product",
        "exact",
        0.05,
        3,
        tickets.id,
        time="2026-01-02T03:04:05Z",
    )


def read(tickets):
    return json.loads((tickets.path / "selection.json").read_text())


def write(tickets, body):
    (tickets.path / "selection.json").write_text(json.dumps(body))


def refused(tickets):
    with pytest.raises(ArtifactError) as caught:
        load_winner(tickets)
    message = str(caught.value)
    assert message.startswith("s/selection.json: ")
    assert "\n" not in message
    return message.removeprefix("s/selection.json: ")


def test_round_trip(drawn, raw):
    assert load_winner(drawn) == Winner(2, (event_for(drawn),))
    body = read(drawn)
    assert set(body) == {"format", "schema", "ticket_set", "round", "how", "events", "earlier", "time", "digest"}
    assert (body["format"], body["schema"], body["ticket_set"]) == ("dpltm-selection", 3, drawn.id)
    assert (body["round"], body["how"]) == (2, "exponential")
    assert body["digest"] == raw.digest(body)


def test_nothing_drawn_yet(drawn):
    (drawn.path / "selection.json").unlink()
    with pytest.raises(ArtifactError) as caught:
        load_winner(drawn)
    assert str(caught.value) == "s: no winner was drawn yet; run dpltm select s, or name a round as s@ROUND"


@pytest.mark.parametrize(
    "change",
    [
        {"round": 1},
        {"round": 2.0},
        {"how": "permute-and-flip"},
        {"time": "2026-01-02T03:04:06Z"},
        {"events": []},
        {"ticket_set": "0" * 64},
        {"more": 1},
        {"digest": "0" * 64},
        {"digest": None},
        {"digest": ["0" * 64]},
    ],
    ids=repr,
)
def test_any_changed_field_is_refused(drawn, change):
    write(drawn, {**read(drawn), **change})
    assert refused(drawn) == STALE


@pytest.mark.parametrize("key", ["ticket_set", "round", "how", "events", "earlier", "time", "digest"])
def test_any_missing_field_is_refused(drawn, key):
    write(drawn, {name: value for name, value in read(drawn).items() if name != key})
    assert refused(drawn) == STALE


def test_a_draw_made_cheaper_is_refused(drawn):
    body = read(drawn)
    body["events"][0]["certified_epsilon"] = body["events"][0]["eps1"] = 0.01
    write(drawn, body)
    assert refused(drawn) == STALE


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ticket_set": "0" * 64}, "does not belong to this ticket set; run dpltm select s again"),
        ({"round": True}, "does not belong to this ticket set; run dpltm select s again"),
        ({"round": "2"}, "does not belong to this ticket set; run dpltm select s again"),
        ({"round": 4}, "s@4: no such round; it has rounds 0 to 3"),
        ({"round": -1}, "s@-1: no such round; it has rounds 0 to 3"),
        ({"events": None}, "does not belong to this ticket set; run dpltm select s again"),
        ({"events": [5]}, "an event must be a JSON object"),
        ({"schema": 4}, "schema 4 is newer than this version of dpltm reads (3); upgrade dpltm"),
        ({"format": "dpltm-run"}, "not a document of format 'dpltm-selection'"),
    ],
    ids=repr,
)
def test_with_the_digest_made_right(drawn, raw, change, message):
    body = {**read(drawn), **change}
    write(drawn, {**body, "digest": raw.digest(body)})
    assert refused(drawn) == message


def test_schema_1_is_still_read(drawn):
    """It had neither a digest nor any other field than these."""
    body = read(drawn)
    old = {key: body[key] for key in ("format", "ticket_set", "round", "how", "events", "time")}
    write(drawn, {**old, "schema": 1})
    assert load_winner(drawn) == Winner(2, (event_for(drawn),))


@pytest.mark.parametrize("digest", [..., None, "", "0" * 64], ids=repr)
def test_schema_2_does_not_pass_for_schema_1(drawn, digest):
    """Schema 1 had no digest: one that stays behind when the schema is edited shows the edit."""
    body = {**read(drawn), "schema": 1, "round": 1}
    write(drawn, body if digest is ... else {**body, "digest": digest})
    assert refused(drawn) == STALE


def test_schema_1_with_a_digest_that_fits_is_read(drawn, raw):
    body = {**read(drawn), "schema": 1}
    write(drawn, {**body, "digest": raw.digest(body)})
    assert load_winner(drawn) == Winner(2, (event_for(drawn),))


# --- what making something of a round depends on ---


def another(tickets, second: int) -> SelectionEvent:
    return replace(having(event_for(tickets), adaptive=True), time=f"2026-01-02T03:04:{second:02}Z")


def test_the_round_that_won_was_released_by_the_draw(drawn):
    assert draws_behind(drawn, last_winner(drawn), 2) == (event_for(drawn),)


@pytest.mark.parametrize("number", [0, 1, 3])
def test_other_rounds_were_not_released_by_the_draw(drawn, number):
    assert draws_behind(drawn, last_winner(drawn), number) == ()


def test_the_dense_round_may_win(drawn):
    (drawn.path / "selection.json").unlink()
    save_winner(drawn, 0, "exponential", [event_for(drawn)])
    assert draws_behind(drawn, last_winner(drawn), 0) == (event_for(drawn),)


def test_all_rounds_depend_on_the_draw(drawn):
    assert draws_behind(drawn, last_winner(drawn), None) == (event_for(drawn),)


@pytest.mark.parametrize("number", [None, 0, 2])
def test_nothing_drawn_is_nothing_behind(drawn, number):
    (drawn.path / "selection.json").unlink()
    assert draws_behind(drawn, last_winner(drawn), number) == ()


@pytest.mark.parametrize("number", [None, 0, 1, 2])
def test_a_rule_on_public_records_is_nothing_behind(drawn, number):
    (drawn.path / "selection.json").unlink()
    save_winner(drawn, 2, "smallest-within")
    assert draws_behind(drawn, last_winner(drawn), number) == ()


@pytest.mark.parametrize("number", [None, 1, 2])
def test_a_damaged_record_is_not_passed_over(drawn, number):
    """What the draw cost is unknown then, so nothing may be said of it."""
    write(drawn, {**read(drawn), "round": 1})
    with pytest.raises(ArtifactError) as caught:
        draws_behind(drawn, last_winner(drawn), number)
    assert str(caught.value) == f"s/selection.json: {STALE}"


def test_every_draw_counts_for_every_round_that_ever_won(drawn):
    """The later draw was seen when the earlier winner was taken all the same, and the other way round."""
    first, second = event_for(drawn), another(drawn, 6)
    save_winner(drawn, 1, "permute-and-flip", [second])
    assert load_winner(drawn) == Winner(1, (second,), ((2, (first,)),))
    for number in (None, 1, 2):
        assert sorted(draws_behind(drawn, last_winner(drawn), number), key=lambda event: event.time) == [first, second]
    for number in (0, 3):
        assert draws_behind(drawn, last_winner(drawn), number) == ()
    third = another(drawn, 7)
    save_winner(drawn, 3, "exponential", [third])
    assert load_winner(drawn) == Winner(3, (third,), ((2, (first,)), (1, (second,))))
    for number in (None, 1, 2, 3):
        assert set(draws_behind(drawn, last_winner(drawn), number)) == {first, second, third}
    assert draws_behind(drawn, last_winner(drawn), 0) == ()


def test_a_rule_on_public_records_forgets_no_draw(drawn):
    save_winner(drawn, 3, "smallest-within")
    assert load_winner(drawn) == Winner(3, (), ((2, (event_for(drawn),)),))
    for number in (None, 2, 3):
        assert draws_behind(drawn, last_winner(drawn), number) == (event_for(drawn),)
    save_winner(drawn, 1, "exponential", [another(drawn, 6)])
    assert load_winner(drawn).earlier == ((2, (event_for(drawn),)),)  # what entered nothing is not remembered


def test_draws_of_the_set_come_first_and_count_once_for_every_round(drawn, save):
    own = another(drawn, 1)
    save("m", draws=[own])
    tickets = load_ticket_set(Path("m"))
    assert tickets.draws == (own,)
    for number in (None, 0, 1, 2, 3):
        assert draws_behind(tickets, last_winner(tickets), number) == (own,)
    save_winner(tickets, 2, "exponential", [own, event_for(tickets)])
    for number in (None, 2):
        assert draws_behind(tickets, last_winner(tickets), number) == (own, event_for(tickets))
    for number in (0, 1, 3):
        assert draws_behind(tickets, last_winner(tickets), number) == (own,)


def test_equal_draws_of_one_record_are_as_many_draws(drawn, save):
    """Each row of the record is one draw. The set's own may be among them, and are not counted again."""
    save_winner(drawn, 2, "exponential", [event_for(drawn)])
    for number in (None, 2):
        assert draws_behind(drawn, last_winner(drawn), number) == (event_for(drawn),) * 2
    own = another(drawn, 1)
    save("m", draws=[own, own])
    tickets = load_ticket_set(Path("m"))
    save_winner(tickets, 2, "exponential", [own])
    assert draws_behind(tickets, last_winner(tickets), 2) == (own, own)


# --- what a draw may have entered ---


def strangers(tickets) -> list[Event]:
    return [
        BudgetEvent(PRIVATE, 1e9, 0.5, time="2026-01-02T03:04:05Z"),
        GaussianEvent(PRIVATE, GaussianRelease(5.0), "moments", time="2026-01-02T03:04:05Z"),
        ProvenanceEvent(PRIVATE, "public", tickets.id, time="2026-01-02T03:04:05Z"),
    ]


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("place", ["events", "earlier"])
def test_an_event_that_no_draw_enters_is_refused(drawn, raw, number, place):
    """A budget set by somebody else's selection.json would end up in the ledger of whoever trains the winner."""
    event = strangers(drawn)[number]
    body, rows = read(drawn), [to_json(event_for(drawn)), to_json(event)]
    body |= {"events": rows} if place == "events" else {"earlier": [{"round": 1, "events": rows}]}
    write(drawn, {**body, "digest": raw.digest(body)})
    assert refused(drawn) == f"{type(event).__name__} is not what the draw of a winner enters"
    with pytest.raises(ArtifactError):
        draws_behind(drawn, last_winner(drawn), 2)


def test_an_unprotected_release_is_what_a_draw_enters(drawn):
    revealed = NonPrivateEvent(PRIVATE, Unprotected(), "scores", time="2026-01-02T03:04:06Z")
    save_winner(drawn, 1, "exponential", [event_for(drawn), revealed])
    assert load_winner(drawn).events == (event_for(drawn), revealed)


@pytest.mark.parametrize(
    ("earlier", "message"),
    [
        ({}, "does not belong to this ticket set; run dpltm select s again"),
        (None, "does not belong to this ticket set; run dpltm select s again"),
        ([5], "does not belong to this ticket set; run dpltm select s again"),
        ([{}], "does not belong to this ticket set; run dpltm select s again"),
        ([{"round": True, "events": []}], "does not belong to this ticket set; run dpltm select s again"),
        ([{"round": 1, "events": None}], "does not belong to this ticket set; run dpltm select s again"),
        ([{"round": 1, "events": [5]}], "an event must be a JSON object"),
        ([{"round": 4, "events": []}], "s@4: no such round; it has rounds 0 to 3"),
    ],
    ids=repr,
)
def test_earlier_draws_that_are_none(drawn, raw, earlier, message):
    body = {**read(drawn), "earlier": earlier}
    write(drawn, {**body, "digest": raw.digest(body)})
    assert refused(drawn) == message


@pytest.fixture
def save(save):
    """The fixture with a path as text."""
    return lambda path, *arguments, **changes: save(Path(path), *arguments, **changes)


def test_an_event_that_cannot_be_written_leaves_the_record_as_it_was(drawn):
    before = (drawn.path / "selection.json").read_bytes()
    event = replace(event_for(drawn), time="\x1b[2J")
    with pytest.raises(ArtifactError, match="event field time: "):
        save_winner(drawn, 1, "exponential", [event_for(drawn), event])
    assert (drawn.path / "selection.json").read_bytes() == before
    assert load_winner(drawn).round == 2


def test_the_last_draw_counts(drawn):
    save_winner(drawn, 3, "permute-and-flip")
    assert load_winner(drawn) == Winner(3, (), ((2, (event_for(drawn),)),))


@pytest.mark.parametrize("kind", ["link", "folder", "pipe"])
def test_a_record_that_is_no_file(drawn, kind):
    import os

    path = drawn.path / "selection.json"
    path.rename("elsewhere.json")
    if kind == "link":
        path.symlink_to(drawn.path.parent.absolute() / "elsewhere.json")
        assert refused(drawn) == "is a link, which is not followed"
        return
    if kind == "folder":
        path.mkdir()
    else:
        os.mkfifo(path)
    with pytest.raises(ArtifactError) as caught:
        load_winner(drawn)
    assert str(caught.value).startswith("s")
