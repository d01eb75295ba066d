"""What a whole sweep costs: every ledger in its folder counts, and what cannot be told apart counts together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpltm.cli.recipe import Recipe
from dpltm.cli.recipe_account import together
from dpltm.data import load
from dpltm.privacy.events import DatasetRef, Event, GuaranteeEvent, ProvenanceEvent, TrainingEvent
from dpltm.privacy.mechanisms import Guarantee, NoisySgd
from dpltm.privacy.report import report
from dpltm.tickets.identity import reference
from dpltm.tickets.ledger_file import open_ledger
from dpltm.tickets.sweep_files import SweepFolder

RECIPE = Recipe(Path("r.toml"), "Mine", "", (), 1, "accuracy", {}, (), None, False)

Cost = Callable[[dict[str, Any]], dict[str, Any]]


def on(key: str = "k", start: int = 0, number: str = "f") -> DatasetRef:
    return DatasetRef("mine", number, key, start, start + 100, "places")


def known(folder: Path, count: int) -> list[DatasetRef]:
    """References to the records of so many files with no row in common, known in the configuration folder."""
    rng = np.random.default_rng(0)
    for number in range(count):
        np.savez(folder / f"{number}.npz", x_train=rng.normal(size=(40, 6)), y_train=np.arange(40) % 2)
    return [reference(load(str(folder / f"{number}.npz"), bounds=(-5, 5))) for number in range(count)]


def training(records: DatasetRef, seed: int) -> Event:
    return TrainingEvent(records, NoisySgd(0.1, 50, 1.0), "clip(C=1)", 10, time=f"time {seed}")


def told(records: DatasetRef, provenance: Any) -> Event:
    return ProvenanceEvent(records, provenance, "settings of dpltm tune", time="time")


def members(*events: Event) -> dict[str, Event]:
    return {f"members/m{number}/ledger.jsonl": event for number, event in enumerate(events)}


@pytest.fixture
def cost(tmp_path: Path) -> Cost:
    """What a folder costs with these ledgers in it, of one event each or of several."""

    def found(ledgers: dict[str, Event | tuple[Event, ...]]) -> dict[str, Any]:
        folder = SweepFolder(tmp_path / f"{len(list(tmp_path.iterdir()))}.sweep", "Mine", "session")
        for name, events in ledgers.items():
            path = folder.root / name
            path.parent.mkdir(exist_ok=True)
            for event in events if isinstance(events, tuple) else (events,):
                open_ledger(path).append(event)
        return together(RECIPE, folder)

    return found


def epsilon(body: dict[str, Any]) -> float:
    return float(body["certified"]["epsilon"])


def test_records_under_another_key_may_be_the_same(cost: Cost, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Then all of it composes, as it does on one dataset; so do ids that nobody here knows. Only known ones are others."""
    one_id = [training(on(), seed) for seed in range(4)]
    two_keys = [training(on(f"k{seed % 2}", number=f"f{seed % 2}"), seed) for seed in range(4)]
    two_ids = [training(on(number=f"f{seed % 2}"), seed) for seed in range(4)]
    together = epsilon(cost(members(*one_id)))
    assert together == report(one_id, 1e-5, "add-remove").certified.epsilon
    assert epsilon(cost(members(*two_keys))) == epsilon(cost(members(*two_ids))) == together
    half = report(one_id[:2], 1e-5, "add-remove").certified.epsilon
    refs = known(tmp_path_factory.mktemp("files"), 2)
    assert epsilon(cost(members(*(training(refs[seed % 2], seed) for seed in range(4))))) == half < together
    ours_and_theirs = [training(on() if seed % 2 else refs[0], seed) for seed in range(4)]
    assert epsilon(cost(members(*ours_and_theirs))) == together


@pytest.mark.parametrize("place", ["tickets/dp-s0/ledger.jsonl", "tickets/dp-s0.ledger.jsonl"])
def test_what_ticket_sets_cost_counts_whether_a_member_came_of_it_or_not(cost: Cost, place: str) -> None:
    event = GuaranteeEvent(on(), Guarantee(0.5), "tickets under DP", time="time")
    assert epsilon(cost({place: event})) == pytest.approx(0.5, abs=1e-4)
    both = cost({place: event, **members(event)})
    assert epsilon(both) == epsilon(cost({place: event})), "the same release in two ledgers is one"


def test_ten_equal_evaluations_of_one_run_are_ten_releases(cost: Cost) -> None:
    """So older ledgers hold them. A copy of the file adds nothing to them, and all together is never less than a member."""
    look = GuaranteeEvent(on(), Guarantee(0.4), "a count of right answers", time="time")
    events = (*[look] * 10, training(on(), 0))
    alone = report(events, 1e-5, "add-remove").certified.epsilon
    assert alone > 4
    assert epsilon(cost({"members/m0/ledger.jsonl": events})) == alone
    copied = {
        "members/m0/ledger.jsonl": events,
        "tickets/a/ledger.jsonl": events,
        "tickets/b.ledger.jsonl": events[:4],
    }
    assert epsilon(cost(copied)) == alone


def test_a_private_set_of_which_nothing_came_is_there_all_the_same(cost: Cost) -> None:
    body = cost({"tickets/private/ledger.jsonl": told(on(), "private"), **members(training(on(), 0))})
    assert epsilon(body) == float("inf")
    assert body["finite"]["ledgers"] == 1


@pytest.mark.parametrize(("start", "certified"), [(0, False), (99, False), (100, True)])
def test_records_that_are_public_in_one_ledger_and_private_in_another(cost: Cost, start: int, certified: bool) -> None:
    """A model behind the one depends on them with no protection at all."""
    body = cost(members(training(on(), 0), told(on(start=start), "public")))
    assert (epsilon(body) < float("inf")) == certified
    assert any("declares public" in note for note in body["notes"]) != certified
    assert body["finite"] is None
    assert not any("ledgers certify nothing" in note for note in body["notes"]), "each by itself does"


def test_where_what_is_left_certifies_nothing_either(cost: Cost) -> None:
    body = cost(members(told(on(), "private"), training(on(), 0), told(on(), "public")))
    assert body["finite"] is None
    assert "1 of 3 ledgers certify nothing, nor do the others together" in body["notes"]
