"""A run and the event that paid for it: a digest that anybody can compute again, and what is said of another one."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import pytest

from dpltm.privacy.event_json import event_id, from_json, to_json
from dpltm.privacy.events import UNKNOWN_RECORDS, Event, SearchEvent, TrainingEvent
from dpltm.privacy.mechanisms import NoisySgd, PrivateSearch
from dpltm.privacy.own_event import names, other_event

TRAINING = TrainingEvent(
    UNKNOWN_RECORDS, NoisySgd(0.01, 100, 1.5), filter="clip", live=10, time="2026-01-01T00:00:00Z"
)
SISTER = replace(TRAINING, time="2026-01-01T00:01:00Z")
SEARCH = SearchEvent(UNKNOWN_RECORDS, PrivateSearch((NoisySgd(0.01, 100, 1.5),), 10.0, 0.5), filter="clip", live=10)


@pytest.mark.parametrize("event", [TRAINING, SISTER, SEARCH], ids=["training", "sister", "search"])
def test_the_id_is_that_of_the_text_in_a_ledger_and_survives_it(event: Event) -> None:
    text = json.dumps(to_json(event), sort_keys=True, separators=(",", ":"))
    assert event_id(event) == hashlib.sha256(text.encode()).hexdigest()
    assert event_id(from_json(json.loads(text))) == event_id(event)


def test_a_sister_run_has_another_event() -> None:
    assert TRAINING.mechanism == SISTER.mechanism
    config = {"event": event_id(TRAINING)}
    assert other_event(config, (SISTER, TRAINING)) is None
    assert (names(config, TRAINING), names(config, SISTER)) == (True, False)
    own, other, search = (event_id(event)[:12] for event in (TRAINING, SISTER, SEARCH))
    said = f", and the event of the run is {own}: it is the ledger of another run"
    assert other_event(config, (SISTER,)) == f"holds {other}{said}"
    assert other_event(config, (SISTER, SEARCH, SISTER)) == f"holds {other}, {search} and 1 more{said}"


def test_what_names_no_event_is_not_compared() -> None:
    """A run of an older version; and a ledger without any training is refused for that."""
    assert other_event({}, (SISTER,)) is None
    assert names({}, SISTER)
    assert other_event({"event": event_id(TRAINING)}, ()) is None


@pytest.mark.parametrize("value", [None, 3, "", "\x1b[31m" * 20, ["a"], event_id(TRAINING).upper()])
def test_a_damaged_name_fits_nothing_and_is_not_shown(value: object) -> None:
    said = other_event({"event": value}, (TRAINING,))
    assert said is not None
    assert said.endswith("and the event of the run is damaged: it is the ledger of another run")
