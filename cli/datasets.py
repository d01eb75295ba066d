"""``dpltm datasets ls`` and ``dpltm datasets info``: what data is at hand."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpltm.cli.common import DataOptions, load_dataset
from dpltm.cli.console import Console
from dpltm.cli.options import Call, option

if TYPE_CHECKING:
    from rich.console import Console as RichConsole

    from dpltm.data import Description


@dataclass(frozen=True)
class ListOptions:
    """The datasets that are known by name, and whether their file is at hand."""


@dataclass(frozen=True)
class InfoOptions(DataOptions):
    """The public facts about a dataset, checked by loading it. Nothing is computed from its private values."""

    dataset: str | None = option(None, "Name or path.", metavar="NAME|FILE", argument=True, required=True)


def list_command(options: ListOptions, call: Call) -> None:
    """Runs ``dpltm datasets ls`` and prints its answer."""
    from dpltm.data import catalogue, data_home

    del options
    home = data_home()
    files = {path.stem for path in home.glob("*.npz")} if home.is_dir() else set()
    rows = [
        {
            "name": name,
            "kind": known.kind,
            "summary": known.summary,
            "available": _available(known, home, files),
        }
        for name, known in catalogue().items()
        if known.refusal is None
    ]
    listed = {row["name"] for row in rows}
    refused = {name for name, known in catalogue().items() if known.refusal is not None}
    rows += [
        {
            "name": name,
            "kind": "",
            "summary": "a file of yours; needs --bounds unless it holds bytes",
            "available": "yes",
        }
        for name in sorted(files - listed - refused)
    ]
    body = {"home": str(home), "datasets": rows}
    Console(call.json, call.quiet).result(body, lambda rich: _show_list(rich, body))


def info_command(options: InfoOptions, call: Call) -> None:
    """Runs ``dpltm datasets info`` and prints its answer."""
    dataset = load_dataset(options)
    body = {
        "name": dataset.name,
        "records": dataset.records,
        "records_origin": dataset.records_origin,
        "test_records": None if dataset.test is None else len(dataset.test),
        "shape": "x".join(str(size) for size in dataset.train.x.shape[1:]),
        "features": dataset.features,
        "classes": dataset.classes,
        "classes_origin": dataset.classes_origin,
        "bounds": None if dataset.tables else list(dataset.bounds),
        "tables": list(dataset.tables) or None,
    }
    Console(call.json, call.quiet).result(body, lambda rich: _show_info(rich, body))


def _available(known: Description, home: Path, files: set[str]) -> str:
    from dpltm.data.rating_sets import at_hand

    if known.kind == "ratings":
        return "yes" if at_hand(known, home) else "no"
    if known.name == "digits" or known.name in files:
        return "yes"
    return "download" if known.openml else "no"


def _show_list(rich: RichConsole, body: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table("name", "kind", "at hand", "what", title=f"data home: {body['home']}", title_justify="left")
    for row in body["datasets"]:
        table.add_row(row["name"], row["kind"], row["available"], row["summary"])
    rich.print(table)


def _show_info(rich: RichConsole, body: dict[str, Any]) -> None:
    from dpltm.cli.show import show_pairs

    show_pairs(rich, body["name"], body)
