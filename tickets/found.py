"""What there is of a run: all of it, or what a training that goes on, was interrupted or went wrong has left."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from dpltm.errors import DpltmError, InputError, first_line
from dpltm.privacy.account import Account
from dpltm.privacy.entry import NO_LINEAGE, RECORD, Entry, Lineage, Part
from dpltm.privacy.mechanisms import Unprotected
from dpltm.privacy.statement import statement
from dpltm.reports.comparison import Candidate
from dpltm.reports.subjects import terms_of_run
from dpltm.tickets.checkpoint_files import progress_of
from dpltm.tickets.files import MAX_JSON, parse_json, read_bytes, read_json
from dpltm.tickets.run import FORMAT, SCHEMA, load_run
from dpltm.tickets.sweep_plot import read_metrics
from dpltm.training.run import Run

T = TypeVar("T")

LOCAL = (
    "made under local privacy: its guarantee is that of its scheme; see dpltm latent epsilon and dpltm audit SCHEME"
)
"""Said of runs of ``dpltm latent train``, whose ledgers are with the owners of the records."""

UNKNOWN = "a training whose entry is not known here"
"""Of a run whose lineage cannot be read: nothing is certified then, rather than nothing spent."""

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
        lineage: everything that it depends on, its training among it; empty where that is not known.
        entry: that paid for it; None if that is not known.
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
    lineage: Lineage = NO_LINEAGE
    entry: Entry | None = None

    @property
    def part(self) -> Part | None:
        """The records that it was trained on; None if that is not known."""
        return None if self.entry is None else self.entry.part

    @property
    def account(self) -> Account:
        """What it comes to by itself, without its ledger; with no guarantee where its training is not known."""
        paid = self.lineage.paid
        account = Account.of((), self.lineage, unit=paid[0].unit if paid else RECORD)
        if self.entry is not None or (self.config and self.config.get("entry") is None and self.state == "finished"):
            return account
        unknown = (Entry("release", mechanisms=(Unprotected(),), words=UNKNOWN, unit=account.unit),)
        return account + unknown


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
    measure = "rmse" if "rmse" in result else "accuracy"
    metrics = read_metrics(path / "metrics.jsonl", measure)
    if metrics is None:
        problems.append(f"{path / 'metrics.jsonl'}: is missing or damaged")
    entry = None if run is None else attempt(lambda: run.entry)
    state: State = "damaged" if problems else "finished"
    lineage = NO_LINEAGE if run is None else run.lineage
    return FoundRun(path, state, tuple(problems), config, result, environment, run, metrics, measure, lineage, entry)


def _going(path: Path, going: str) -> FoundRun:
    """A run that is not there yet."""
    said = (
        "is still going: another process is at work on it" if going == "at work" else
        "was interrupted, and has no result; the same command goes on with it"
    )  # fmt: skip
    paid = "its entry stands in the ledger that its command named, which is not known here"
    return FoundRun(path, "unfinished", (f"{path} {said}", paid))


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
    return Candidate(
        label, found.state, found.problems, config, found.result or {},
        None if found.run is None else found.run.spec.parameters, found.part, found.lineage, privacy_of(found),
    )  # fmt: skip


def privacy_of(found: FoundRun) -> Mapping[str, Any] | None:
    """What a run comes to by itself, at its own terms, as JSON; None where no rule says what that is."""
    terms = terms_of_run(found.config or {})
    try:
        return statement(found.account, terms.delta, terms.accountant, terms.adjacency).to_json()
    except DpltmError:
        return None
