"""What interrupted work finds in a ledger: its own events, or a reason not to go on."""

from __future__ import annotations

import pytest

from dpltm.errors import InputError
from dpltm.privacy.event_json import to_json
from dpltm.privacy.events import UNKNOWN_RECORDS, Event, GuaranteeEvent
from dpltm.privacy.mechanisms import Guarantee
from dpltm.privacy.old_ledger import Ledger
from dpltm.records.registry import RecordRegistry
from dpltm.stages.going_on import planned_on
from dpltm.training.checkpoint import Checkpoint


class Held:
    """Checkpoints that hold one of work that entered these events, after so many steps."""

    def __init__(self, events: tuple[Event, ...], step: int) -> None:
        self.held = Checkpoint("somewhere", {"events": [to_json(event) for event in events], "step": step})

    def forget(self) -> None:
        self.held = None


def events(count: int) -> tuple[Event, ...]:
    return tuple(GuaranteeEvent(UNKNOWN_RECORDS, Guarantee(0.5), "a count") for _ in range(count))


@pytest.mark.parametrize("step", [0, 3])
def test_the_ledger_as_it_was_before(step):
    """Whatever was entered since: that counts in the report, and not in the noise."""
    all_of_them = events(6)
    ledger = Ledger(all_of_them, registry=RecordRegistry())
    assert planned_on(Held(all_of_them[2:4], step), ledger).events == all_of_them[:2]


def test_noise_that_nothing_pays_for_is_not_gone_on_with():
    own, others = events(2), events(2)
    for entered in ((), own[:1], own[::-1], others, (own[0], others[0], own[1])):
        with pytest.raises(InputError, match="`ledger`: it does not hold what the checkpoint goes on with"):
            planned_on(Held(own, 1), Ledger(entered, registry=RecordRegistry()))


def test_what_was_not_paid_for_drew_nothing_and_is_forgotten():
    ledger, kept = Ledger(events(1), registry=RecordRegistry()), Held(events(2), 0)
    assert planned_on(kept, ledger) is ledger
    assert kept.held is None
