"""What statements are about: public settings and outcomes of runs and ticket sets, from what their folders hold.

The folder may be somebody else's, or damaged: whatever is not of the type it should have counts as missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dpltm.errors import InputError
from dpltm.options.train import PER_UNIT
from dpltm.privacy.event_json import ref_from_text
from dpltm.privacy.events import UNKNOWN_RECORDS, Event, NonPrivateEvent, ProvenanceEvent
from dpltm.privacy.mechanisms import Adjacency, Unprotected
from dpltm.privacy.own_event import other_event
from dpltm.reports.fields import PROVENANCE
from dpltm.reports.intervals import interval
from dpltm.reports.statement import Subject, Terms
from dpltm.reports.trainings import matching, rows_of

if TYPE_CHECKING:
    from dpltm.pruning.ticket_set import TicketSet

WIDE_SUMS, CHUNKED_SUMS = "float64", "float64, or float32 in chunks of at most 100 records"
"""How sums over a batch may have been taken."""

_WIDE = ("float64", "sparse-float64")
"""Kernels of linear layers that take every sum in float64."""

_FACTS = ("steps", "sampling_rate", "noise_multiplier", "noise_std", "sensitivity", "live", "density", "round", "lr")
_WORDS = ("filter", "optimizer", "schedule", "average", "augment")


def text(value: object) -> str | None:
    """A printable text, no longer than artifacts have them; None for anything else."""
    return value if isinstance(value, str) and len(value) <= 1000 and value.isprintable() else None


def number(value: object) -> float | None:
    """A finite number; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if abs(value) < 1e300 else None  # false for NaN


def count(value: object) -> int | None:
    """A whole number from 0 up; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63 else None


def section(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """An object in another one; empty where it is none."""
    value = body.get(name)
    return value if isinstance(value, Mapping) else {}


def terms_of_run(config: Mapping[str, Any]) -> Terms:
    """What a run states its guarantee at."""
    options = section(config, "options")
    delta = number(options.get("delta"))
    adjacency: Adjacency = "replace-one" if options.get("adjacency") == "replace-one" else "add-remove"
    unit = config.get("unit")
    return Terms(
        delta if delta is not None and 0 < delta < 1 else 1e-5,
        options["accountant"] if text(options.get("accountant")) in ("pld", "rdp", "ma", "clt") else "pld",
        adjacency,
        unit if unit in ("record", "user") else "record",
    )


def run_subject(
    name: str,
    config: Mapping[str, Any],
    result: Mapping[str, Any],
    events: Sequence[Event],
    *,
    held: Sequence[Event] = (),
    parameters: int | None = None,
    versions: Mapping[str, Any] | None = None,
) -> Subject:
    """A run, from its ``config.json``, ``result.json`` and ledger.

    Args:
        name: of its folder.
        config, result: what these files hold; empty where they are missing.
        events: of its ledger, on the records that it was trained on.
        held: all events of its ledger.
        parameters: of its network, if that could be read.
        versions: what ``environment.json`` holds.
    """
    options, facts = section(config, "options"), section(config, "resolved")
    rate, batch = number(facts.get("sampling_rate")), number(config.get("expected_batch"))
    groups = count(facts.get("groups"))
    bounds = config.get("bounds")
    low, high = map(number, bounds) if isinstance(bounds, list) and len(bounds) == 2 else (None, None)
    settings: dict[str, Any] = {
        "dataset": text(section(config, "records").get("name")),
        "records": records_of(config, events),
        "model": text(config.get("model")),
        "features": count(config.get("features")),
        "classes": count(config.get("classes")),
        "parameters": parameters,
        "feature_map": text(section(config, "feature_map").get("text")),
        "low": low,
        "high": high,
        "bounds_origin": text(config.get("bounds_origin")),
        "expected_batch": batch,
        "groups": groups,
        "divisor": number(config.get("divisor", batch if groups is None else groups)),  # not in older runs
        "per_unit": (count(options.get("per_unit")) or PER_UNIT) if config.get("unit") == "user" else None,
        "public_records": None if not rate or batch is None else round(batch / rate),
        **{key: number(facts.get(key)) for key in _FACTS},
        **{key: text(facts.get(key)) for key in _WORDS},
        "precision": text(options.get("precision")),
        "budget": number(options.get("epsilon")),
        "tuned_on": _searched_on(options.get("tuned_on")),
        "sums": _sums(options, facts, text(config.get("model"))) if facts else None,
        "tries": number(facts.get("mean_tries")),
        "tried": count(facts.get("settings")),
        **(matching(facts, events) or {}),
        **_of_tickets(config, (*held, *events)),
    }
    return Subject("run", name, settings, outcome_of(config, result), _notes(result), _texts(versions or {}))


def of_unknown_cost(what: str) -> Event:
    """Stands for releases of which no event can be read: nothing is certified then, rather than nothing spent.

    Args:
        what: why, in a few words.
    """
    return NonPrivateEvent(UNKNOWN_RECORDS, Unprotected(), what, time="")


def holds_training(config: Mapping[str, Any], events: Sequence[Event]) -> bool:
    """Whether the training that a run tells of is among the events of its ledger."""
    facts = section(config, "resolved")
    return bool(facts) and matching(facts, events) is not None and other_event(config, events) is None


def records_of(config: Mapping[str, Any], events: Sequence[Event]) -> str | None:
    """The records that were trained on, as people name them."""
    name = text(section(config, "records").get("name"))
    refs = [event.dataset for event in events if rows_of(event)]
    return str(refs[-1]) if refs else name


def outcome_of(config: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
    """What came of a run: accuracy with its interval, and on what it was measured."""
    private = section(config, "options").get("eval_private") is not None
    accuracy, records = number(result.get("accuracy")), count(config.get("test_records"))
    shown: dict[str, Any] = {"steps_taken": count(result.get("steps_taken")), "accuracy": accuracy}
    if accuracy is not None:
        shown["accuracy_of"] = (
            "Of the training records, with noise that is paid for." if private else "Of the test split."
        )
    if accuracy is not None and records is not None and not private:
        shown |= {"test_records": records, **(interval(accuracy, records) or {})}
    if (rmse := number(result.get("rmse"))) is not None:
        shown["rmse"] = rmse
    return shown


def set_subject(tickets: TicketSet) -> Subject:
    """A ticket set."""
    config = tickets.config
    spec = tickets.body.spec
    settings: dict[str, Any] = {
        "dataset": None if tickets.source is None else tickets.source.name,
        "records": None if tickets.source is None else str(tickets.source),
        "model": spec.text,
        "features": spec.features,
        "classes": spec.classes,
        "parameters": spec.parameters,
        "criterion": tickets.criterion,
        "rounds": len(tickets.body.tickets) - 1,
        "feature_map": None if tickets.feature_map is None else tickets.feature_map.text,
        "provenance": tickets.provenance,
        "ticket_set": tickets.id,
        **{key: number(config.get(key)) for key in ("iterations", "batch_size", "lr", "rewind")},
    }
    return Subject("tickets", tickets.path.name if tickets.path else tickets.name, settings)


def events_of_set(tickets: TicketSet) -> tuple[Event, ...]:
    """What a set says of the records that it was made from: what that spent, or that there was no mechanism."""
    if tickets.source is None:
        return ()
    said = ProvenanceEvent(tickets.source, tickets.provenance, tickets.id, time="")
    return (*((said,) if tickets.provenance == "private" else ()), *tickets.events)


def _of_tickets(config: Mapping[str, Any], events: Sequence[Event]) -> dict[str, Any]:
    """The ticket set that a run started from, and where its masks come from; None where that is not on record.

    An event that calls them private outweighs what the configuration says.
    """
    ticket_set = text(config.get("ticket_set_id"))
    if ticket_set is None:
        return {}
    kinds = [
        event.provenance for event in events if isinstance(event, ProvenanceEvent) and event.ticket_set == ticket_set
    ]
    written = config.get("provenance")
    if written in PROVENANCE:
        kinds.append(written)
    kind = "private" if "private" in kinds else next(iter(kinds), None)
    return {"ticket_set": ticket_set, "provenance": kind}


def _searched_on(value: object) -> str | None:
    if not isinstance(value, str) or (written := text(value.partition("\n")[0])) is None:
        return None
    try:
        return ref_from_text("tuned_on", written).name
    except InputError:
        return None


def _sums(options: Mapping[str, Any], facts: Mapping[str, Any], model: str | None) -> str:
    """How sums over a batch were taken (privacy-model.md sections 4.4 and 4.6)."""
    wide = options.get("filter") in ("tanh", "tanh-clip", "sigmoid") or options.get("device") == "cuda"
    kernels = list(section(facts, "kernels").values())
    linear = bool(kernels) and model is not None and model.split(":")[0] == "mlp"  # it has linear layers alone
    wide = wide or facts.get("groups") is not None or (linear and all(one in _WIDE for one in kernels))
    return WIDE_SUMS if wide else CHUNKED_SUMS


def _notes(result: Mapping[str, Any]) -> tuple[str, ...]:
    notes = section(result, "privacy").get("notes")
    return tuple(note for note in notes if text(note) is not None) if isinstance(notes, list) else ()


def _texts(body: Mapping[str, Any]) -> dict[str, str]:
    return {name: value for name, value in body.items() if text(name) is not None and text(value) is not None}
