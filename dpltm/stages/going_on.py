"""How interrupted work finds what it paid for, and makes sure that it is the same work."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dpltm.errors import InputError
from dpltm.privacy.event_json import to_json
from dpltm.privacy.events import DatasetRef, Event
from dpltm.privacy.old_ledger import Ledger
from dpltm.records import Dataset
from dpltm.training.checkpoint import AGAIN, Checkpoint, Checkpoints, check_same


def planned_on(checkpoints: Checkpoints, ledger: Ledger) -> Ledger:
    """The ledger that work is planned on: as it was before an interrupted attempt that is gone on with entered its events.

    A checkpoint that was not paid for yet drew nothing: it is forgotten.

    Args:
        checkpoints: of the work; their state has ``events``, and the ``step`` reached.
        ledger: as it is now.

    Raises:
        InputError: noise was drawn, and the ledger does not hold what pays for that.
    """
    if checkpoints.held is None or not checkpoints.held.state["events"]:
        return ledger
    held, written = checkpoints.held.state, [to_json(event) for event in ledger.events]
    wanted = held["events"]
    for start in range(len(written) - len(wanted) + 1):
        if written[start : start + len(wanted)] == wanted:
            return Ledger(ledger.events[:start], registry=ledger.registry)
    if held["step"]:
        raise InputError(
            "`ledger`: it does not hold what the checkpoint goes on with; put back the ledger that it was entered in, or"
            f" {AGAIN}"
        )
    checkpoints.forget()
    return ledger


def entered_for(
    planned: tuple[Event, ...], held: Checkpoint, before: tuple[Event, ...], ledger: Ledger
) -> tuple[Event, ...]:
    """The events of the ledger that stand for those of a plan that was made anew.

    Args:
        planned: what the plan would enter.
        held: the checkpoint of the work that was planned so before.
        before: what the ledger held then.
        ledger: as it is now.

    Raises:
        InputError: they are others.
    """
    entered = ledger.events[len(before) :][: len(held.state["events"])]
    same = len(planned) == len(entered) and all(
        type(new) is type(old) and replace(new, time=old.time, dataset=old.dataset) == old
        for new, old in zip(planned, entered, strict=True)
    )
    if not same:
        raise InputError(
            "checkpoint: this version of dpltm plans other noise, or other events, than the one that began; go on with that"
            f" one, or {AGAIN} (what was spent stays spent)"
        )
    return entered


def check_same_work(held: Checkpoint, dataset: Dataset, facts: Mapping[str, Any]) -> None:
    """Raises InputError unless a checkpoint, whose state has them as ``of``, is of the same facts; records are not shown.

    Args:
        held: the checkpoint.
        dataset: at hand.
        facts: with ``records`` (see ``records_of``).
    """
    had, now = dict(held.state.get("of", {})), dict(facts)
    if had.pop("records", None) != now.pop("records"):
        raise InputError(
            f"`dataset`: an interrupted attempt was begun on other records than those of {dataset.name} at hand; give"
            f" those, choose another `out`, or {AGAIN} (what was spent stays spent)"
        )
    check_same(had, now)


def records_of(ref: DatasetRef | None, dataset: Dataset, key: bytes) -> list[Any] | None:
    """What records are known by from one reference to the next, and what they hold; None for none.

    The noise of what goes on is that of the interrupted attempt. Were a label another one, two results would share it, and
    their difference would tell the label.

    Args:
        ref: of the records that the work is on.
        dataset: them.
        key: secret; without it the digest confirms no guess of a record.
    """
    if ref is None:
        return None
    content = hmac.new(key, dataset.train.digest.encode(), hashlib.sha256).hexdigest()
    return [ref.group, ref.cut, ref.start, ref.stop, content]
