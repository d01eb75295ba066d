"""What a whole experiment costs: every ledger counts, and records that cannot be told apart count as one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpltm.experiments.account import total_privacy
from dpltm.experiments.recipe import Recipe
from dpltm.privacy.events import DatasetRef, Event, GuaranteeEvent, ProvenanceEvent, TrainingEvent
from dpltm.privacy.mechanisms import Guarantee, NoisySgd
from dpltm.privacy.report import report
from dpltm.records import from_arrays
from dpltm.records.registry import RecordRegistry

RECIPE = Recipe(Path("r.toml"), "Mine", "", (), 1, "accuracy", {}, (), None, False)

REGISTRY = RecordRegistry()


def on(key: str = "k", start: int = 0, number: str = "f") -> DatasetRef:
    return REGISTRY.resolve(DatasetRef("mine", number, key, start, start + 100, "places"))


def known(count: int) -> list[DatasetRef]:
    """References to the records of so many datasets with no row in common, all known here."""
    rng = np.random.default_rng(0)
    return [
        REGISTRY.reference(from_arrays(rng.normal(size=(40, 6)), np.arange(40) % 2, bounds=(-5, 5)))
        for _ in range(count)
    ]


def training(records: DatasetRef, seed: int) -> Event:
    return TrainingEvent(records, NoisySgd(0.1, 50, 1.0), "clip(C=1)", 10, time=f"time {seed}")


def told(records: DatasetRef, provenance: Any) -> Event:
    return ProvenanceEvent(records, provenance, "settings of dpltm tune", time="time")


def cost(*ledgers: Event | tuple[Event, ...]) -> dict[str, Any]:
    """What ledgers cost, of one event each or of several."""
    return total_privacy(RECIPE, [events if isinstance(events, tuple) else (events,) for events in ledgers])


def epsilon(body: dict[str, Any]) -> float:
    return float(body["certified"]["epsilon"])


def test_records_under_another_key_may_be_the_same() -> None:
    """Then all of it composes, as it does on one dataset; so do ids that nobody here knows. Only known ones are others."""
    one_id = [training(on(), seed) for seed in range(4)]
    two_keys = [training(on(f"k{seed % 2}", number=f"f{seed % 2}"), seed) for seed in range(4)]
    two_ids = [training(on(number=f"f{seed % 2}"), seed) for seed in range(4)]
    together = epsilon(cost(*one_id))
    assert together == report(one_id, 1e-5, "add-remove").certified.epsilon
    assert epsilon(cost(*two_keys)) == epsilon(cost(*two_ids)) == together
    half = report(one_id[:2], 1e-5, "add-remove").certified.epsilon
    refs = known(2)
    assert epsilon(cost(*(training(refs[seed % 2], seed) for seed in range(4)))) == half < together
    ours_and_theirs = [training(on() if seed % 2 else refs[0], seed) for seed in range(4)]
    assert epsilon(cost(*ours_and_theirs)) == together


def test_a_release_in_two_ledgers_is_one_and_ten_equal_ones_of_one_run_are_ten() -> None:
    """So older ledgers hold them. A copy of the file adds nothing to them, and all together is never less than a trial."""
    look = GuaranteeEvent(on(), Guarantee(0.4), "a count of right answers", time="time")
    assert epsilon(cost(look)) == epsilon(cost(look, look)) == pytest.approx(0.4, abs=1e-4)
    events = (*[look] * 10, training(on(), 0))
    alone = report(events, 1e-5, "add-remove").certified.epsilon
    assert alone > 4
    assert epsilon(cost(events)) == epsilon(cost(events, events, events[:4])) == alone


def test_a_private_set_of_which_nothing_came_is_there_all_the_same() -> None:
    body = cost(told(on(), "private"), training(on(), 0))
    assert epsilon(body) == float("inf")
    assert body["finite"]["ledgers"] == 1


@pytest.mark.parametrize(("start", "certified"), [(99, False), (100, True)])
def test_records_that_are_public_in_one_ledger_and_private_in_another(start: int, certified: bool) -> None:
    """A model behind the one depends on them with no protection at all."""
    body = cost(training(on(), 0), told(on(start=start), "public"))
    assert (epsilon(body) < float("inf")) == certified
    assert any("declares public" in note for note in body["notes"]) != certified
    assert body["finite"] is None
    assert not any("ledgers certify nothing" in note for note in body["notes"]), "each by itself does"


def test_where_what_is_left_certifies_nothing_either() -> None:
    body = cost(told(on(), "private"), training(on(), 0), told(on(), "public"))
    assert body["finite"] is None
    assert "1 of 3 ledgers certify nothing, nor do the others together" in body["notes"]
