"""What was said of records when a run was trained on them, so that nobody has to say it again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from dpltm.options.evaluate import EvaluateRequest
from dpltm.records.files import TABLES, kind_of
from dpltm.records.schema import Schema, parse_schema
from dpltm.training.artifacts import Run


def said_in_training(run: Run) -> dict[str, str | None]:
    """What was said of the table that a run was trained on: its columns of labels and of persons, and bounds."""
    options = run.config.get("options")
    said = options if isinstance(options, dict) else {}
    names = ("label", "unit_column", "bounds")
    return {name: said[name] if isinstance(said.get(name), str) else None for name in names}


def schema_of(run: Run) -> Schema | None:
    """The schema of the table that a run was trained on, if it had one."""
    text = run.config.get("table_schema")
    return parse_schema(text, f"{run.label}: its schema") if isinstance(text, str) else None


def as_in_training(run: Run, request: EvaluateRequest) -> EvaluateRequest:
    """The request, with what was said of the records in training where nothing is said now."""
    said = said_in_training(run)
    if kind_of(Path(request.dataset or "")) not in TABLES:
        said = {"bounds": said["bounds"]} if Path(request.dataset or "").suffix else {}  # of names nothing was said
    unsaid: dict[str, Any] = {name: value for name, value in said.items() if getattr(request, name) is None}
    return replace(request, **unsaid)
