"""Whether a ledger is that of a run: the run names the event that paid for it.

Settings alone do not tell: a sister run with the same ones has another event, with its own time and noise. Taken for one,
two releases would count once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from dpltm.privacy.event_json import event_id
from dpltm.privacy.events import Event, SearchEvent, TrainingEvent

SHOWN = 12
"""Characters of an id in a message."""


def names(config: Mapping[str, Any], event: Event) -> bool:
    """Whether an event is the one that a run names; any may be, where an older version wrote the run and it names none.

    Args:
        config: settings of the run.
        event: of its ledger.
    """
    return "event" not in config or config["event"] == event_id(event)


def other_event(config: Mapping[str, Any], events: Iterable[Event]) -> str | None:
    """What differs where a ledger holds trainings or searches, but not the one that the run names; None where nothing does.

    Args:
        config: settings of the run.
        events: of its ledger.
    """
    held = [event for event in events if isinstance(event, (TrainingEvent, SearchEvent))]
    if not held or any(names(config, event) for event in held):
        return None
    own, others = str(config["event"]), [event_id(event)[:SHOWN] for event in held]
    named = own[:SHOWN] if re.fullmatch("[0-9a-f]{64}", own) else "damaged"
    more = f" and {len(others) - 2} more" if len(others) > 2 else ""
    return f"holds {', '.join(others[:2])}{more}, and the event of the run is {named}: it is the ledger of another run"
