"""What there is of a run: all of it, or what a training that goes on, was interrupted or went wrong has left."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from dpltm.errors import DpltmError, InputError, first_line
from dpltm.privacy.events import DatasetRef, Event
from dpltm.privacy.own_event import other_event
from dpltm.privacy.parts import touching
from dpltm.privacy.report import report
from dpltm.reports.comparison import Candidate
from dpltm.reports.subjects import holds_training, of_unknown_cost, terms_of_run
from dpltm.tickets.checkpoint_files import progress_of
from dpltm.tickets.files import MAX_JSON, parse_json, read_bytes, read_json
from dpltm.tickets.identity import read_ref
from dpltm.tickets.ledger_file import open_ledger
from dpltm.tickets.run import FORMAT, SCHEMA, load_run
from dpltm.tickets.sweep_plot import read_metrics
from dpltm.training.run import Run

T = TypeVar("T")

LOCAL = (
    "made under local privacy: its guarantee is that of its scheme; see dpltm latent epsilon and dpltm audit SCHEME"
)
"""Said of runs of ``dpltm latent train``, whose ledgers are with the owners of the records."""

State = Literal["finished", "unfinished", "damaged"]


@dataclass(frozen=True)
class FoundRun:
    """A run, as far as it is there.

    Attributes:
        path: its folder.
        state: whether it ended, is still to end, or something in it is damaged or missing.
        problems: what is missing or wrong, a sentence each.
        config, result, environment: what its files hold; empty where they cannot be read.
        run: its network and mask; None where they cannot be read.
        metrics: by step, accuracy (or RMSE) and certified epsilon so far.
        measure: of the metrics.
        records: that it was trained on; None if that is not known.
        events: of its ledger that touched these records.
        held: all events of its ledger.
    """

    path: Path
    state: State
    problems: tuple[str, ...] = ()
    config: Mapping[str, Any] | None = None
    result: Mapping[str, Any] | None = None
    environment: Mapping[str, Any] | None = None
    run: Run | None = None
    metrics: Mapping[int, tuple[float, float]] | None = None
    measure: str = "accuracy"
    records: DatasetRef | None = None
    events: tuple[Event, ...] = ()
    held: tuple[Event, ...] = ()


def run_folder(path: Path) -> Path:
    """The run in a folder of ``dpltm run``; else the folder itself."""
    inner = path / "run"
    if (path / "config.json").exists():
        return path
    return inner if (inner / "config.json").exists() or progress_of(inner) is not None else path


def is_run(path: Path) -> bool:
    """Whether a folder is, or was to become, a run."""
    path = run_folder(path)
    return (path / "config.json").exists() or (path / "model.safetensors").exists() or progress_of(path) is not None


def find_run(path: Path) -> FoundRun:
    """The run in a folder, or what there is of it.

    Raises:
        InputError: there is nothing of a run.
    """
    path = run_folder(path)
    if not is_run(path):
        raise InputError(f"{path}: no run there; name a folder made by dpltm train or dpltm run")
    going = progress_of(path)
    if going is not None and not (path / "config.json").exists():
        return _going(path, going)
    problems: list[str] = []

    def attempt(what: Callable[[], T]) -> T | None:
        try:
            return what()
        except (DpltmError, OSError, ValueError) as error:
            if (said := first_line(error)) not in problems:
                problems.append(said)
            return None

    config = attempt(lambda: read_json(path / "config.json", FORMAT, SCHEMA)) or {}
    if "scheme" in config:
        raise InputError(f"{path}: {LOCAL}")
    run = attempt(lambda: load_run(path)) if config else None
    result = attempt(lambda: read_object(path / "result.json")) or {}
    environment = attempt(lambda: read_object(path / "environment.json")) or {}
    held = attempt(lambda: open_ledger(path / "ledger.jsonl", links=False, remember=False).events) or ()
    records = attempt(lambda: read_ref(config.get("records"))) if config else None
    measure = "rmse" if "rmse" in result else "accuracy"
    metrics = read_metrics(path / "metrics.jsonl", measure)
    if metrics is None:
        problems.append(f"{path / 'metrics.jsonl'}: is missing or damaged")
    events = held if records is None else touching(held, records)
    if not holds_training(config, events):
        differs = other_event(config, events) or "holds no training with the settings of the run"
        problems.append(f"{path / 'ledger.jsonl'}: {differs}: its cost is not known")
        events = (*events, of_unknown_cost("a training of which no event can be read"))
    state: State = "damaged" if problems else "finished"
    return FoundRun(
        path, state, tuple(problems), config, result, environment, run, metrics, measure, records, events, held
    )


def _going(path: Path, going: str) -> FoundRun:
    """A run that is not there yet: what its own ledger holds is paid for."""
    said = (
        "is still going: another process is at work on it" if going == "at work" else
        "was interrupted, and has no result; the same command goes on with it"
    )  # fmt: skip
    problems: list[str] = [f"{path} {said}"]
    held: tuple[Event, ...] = ()
    own = Path(f"{path}.ledger.jsonl")
    if own.exists():
        try:
            held = open_ledger(own, links=False, remember=False).events
        except DpltmError as error:
            problems.append(first_line(error))
    else:
        problems.append("its events stand in the ledger that its command named, which is not known here")
    if not held:
        held = (of_unknown_cost("a training whose ledger is not known here"),)
    return FoundRun(path, "unfinished", tuple(problems), events=held, held=held)


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file that states no format.

    Raises:
        ArtifactError: missing, too large, or no object.
    """
    body = parse_json(path, read_bytes(path, MAX_JSON))
    if not isinstance(body, dict):
        raise InputError(f"{path}: not a JSON object")
    return body


def candidate_of(found: FoundRun, label: str) -> Candidate:
    """A run as it is compared with others.

    Args:
        found: the run.
        label: what the table calls it.
    """
    config = found.config or {}
    known = found.events or (config and found.state == "finished")
    return Candidate(
        label, found.state, found.problems, config, found.result or {},
        None if found.run is None else found.run.spec.parameters, found.records, found.events,
        privacy_of(found.events, config) if known else None,
    )  # fmt: skip


def privacy_of(events: Sequence[Event], config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What events come to, at the terms of a run, as JSON; None where no rule says what they cost together."""
    terms = terms_of_run(config)
    try:
        return report(
            events, terms.delta, terms.adjacency, (), terms.accountant, terms.unit if config else None
        ).to_json()
    except DpltmError:
        return None
