"""``dpltm evaluate``: use the model of a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dpltm.cli.common import DataOptions, check_tables, check_test_apart, load_dataset, tensors
from dpltm.cli.console import Console
from dpltm.cli.features import carried
from dpltm.cli.options import Call, option
from dpltm.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console as RichConsole

    from dpltm.data import Dataset
    from dpltm.tickets.run import Run


@dataclass(frozen=True)
class EvaluateOptions(DataOptions):
    """Accuracy of a run's model on the test split of a dataset.

    The test split is declared separate from the private records: nothing is spent, and nothing is promised for it.
    """

    run: str | None = option(None, "Folder of the run.", metavar="RUN", argument=True, required=True)


def command(options: EvaluateOptions, call: Call) -> None:
    """Runs ``dpltm evaluate`` and prints its answer."""
    from dpltm.data import by_user
    from dpltm.evaluation import root_mean_squared_error
    from dpltm.generation import accuracy
    from dpltm.privacy.report import json_figure
    from dpltm.tickets.run import load_run

    run = load_run(Path(options.run or ""))
    dataset = carried(load_dataset(options), run.feature_map, None, str(run.path))
    if run.config.get("unit") == "user":
        dataset = by_user(dataset, 1)  # whose test split has no rating of a user who was trained on
    if dataset.test is None:
        raise InputError(f"--dataset: {dataset.name} has no test split; name a file with one by --test")
    if dataset.features != run.config["features"]:
        raise InputError(
            f"{run.path}: its network takes {run.config['features']} features, but {dataset.name} has {dataset.features};"
            " use records of the same shape"
        )
    if dataset.classes != run.config["classes"]:
        raise InputError(
            f"{run.path}: its network has {run.config['classes']} classes, but {dataset.name} has {dataset.classes}; use"
            " records with the same classes"
        )
    check_tables(run.spec, dataset, f"{run.path}: its network", "use records like those that it was trained on")
    notes = check_held_out(dataset, run)
    if dataset.bounds != run.bounds:
        raise InputError(
            f"--bounds: {dataset.name} has {dataset.bounds}, the run was trained with {run.bounds}; use the same"
        )
    console = Console(call.json, call.quiet)
    test = tensors(dataset.test, dataset, console=console)
    body: dict[str, object] = {
        "run": str(run.path),
        "dataset": dataset.name,
        "records": len(dataset.test),
        "accuracy": accuracy(run.model, *test),
        **({"rmse": json_figure(root_mean_squared_error(run.model, *test))} if dataset.rated else {}),
        "notes": notes,
    }
    console.result(body, lambda rich: _show(rich, body))


def check_held_out(dataset: Dataset, run: Run) -> list[str]:
    """Sentences about whether the test split is apart from what a run was trained on.

    Raises:
        InputError: training records are in it; accuracy there is private.
    """
    from dpltm.data import count_shared
    from dpltm.errors import ArtifactError
    from dpltm.tickets.identity import load_key, read_ref, reference, rows_of
    from dpltm.tickets.ledger_file import open_ledger

    rows = dataset.test_rows
    try:
        records = read_ref(run.config.get("records"))
    except ArtifactError:
        return []  # a run on messages: no record was ever seen
    trained, notes = rows_of(records), []
    vouched = dataset.published and reference(dataset, make_key=False).content == records.content
    if trained is None:
        notes = [
            "whether these records were trained on cannot be checked here: the run was made elsewhere, or before 0.2"
        ]
    elif rows is not None and not vouched:  # a publication says that its splits are separate
        hashes = rows.value_hashes(load_key())
        if records.cut == rows.cut:
            places = rows.public_hashes()
            hashes = hashes[(places >= records.start) & (places < records.stop)]
        shared = count_shared(trained, hashes) if len(hashes) else 0
        if shared:
            raise InputError(
                f"--dataset: {shared} of the {len(rows)} test records of {dataset.name} are among those that {run.path} was"
                " trained on, so its accuracy there is private; use records that were held out"
            )
    others = open_ledger(run.path / "ledger.jsonl").events
    check_test_apart(dataset, (event for event in others if event.dataset.group != records.group))
    return notes


def _show(rich: RichConsole, body: dict[str, object]) -> None:
    from dpltm.cli.show import show_notes, show_pairs

    show_pairs(rich, "evaluated", {key: value for key, value in body.items() if key != "notes"})
    show_notes(rich, body)
