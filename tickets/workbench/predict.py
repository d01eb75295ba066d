"""``dpltm predict``: a run in a folder, on records in a file, into a file."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from dpltm.errors import InputError, as_flags
from dpltm.options.evaluate import PredictRequest
from dpltm.progress import Progress
from dpltm.records import load_records
from dpltm.tickets.files import check_free, check_writable, new_file
from dpltm.tickets.run import load_run
from dpltm.tickets.workbench.as_in_training import said_in_training, schema_of
from dpltm.verbs import predict as stage


def predict(request: PredictRequest, progress: Progress) -> dict[str, Any]:
    """Writes the predictions of a run's network."""
    out, source = Path(request.out or ""), request.input or ""
    if out.suffix.lower() not in (".csv", ".npz"):
        raise InputError(f"`out`: {out} is neither .csv nor .npz; name it {out.stem}.csv or {out.stem}.npz")
    check_free(out)
    check_writable(out)
    run = load_run(Path(request.run or ""))
    said = said_in_training(run)
    spare = [name for name in (said["unit_column"], said["label"] if request.label is None else None) if name]
    schema = schema_of(run)
    x = load_records(source, request.label, stage.text_layout(run), spare, schema)
    predictions = stage.predict(run, x, source=source, progress=progress)
    _write(out, predictions, None if schema is None else [spellings[0] for spellings in schema.label.values])
    return as_flags(
        {
            "run": run.label,
            "input": request.input,
            "records": len(x),
            "output": str(out),
            "saturated": predictions.saturated,
            "notes": list(predictions.notes),
        }
    )


def _write(out: Path, predictions: stage.Predictions, names: list[str] | None) -> None:
    """The predictions, whole or not at all. Nine digits give back every float32 exactly.

    Args:
        out: the file.
        predictions: of each record.
        names: of the classes, where a schema has them.
    """
    label, probabilities = predictions.labels, predictions.probabilities
    with new_file(out) as staging, staging.open("wb") as stream:
        if out.suffix.lower() == ".npz":
            named = {} if names is None else {"classes": np.array(names)}
            np.savez(stream, label=label, probabilities=probabilities, **named)  # type: ignore[arg-type]
            return
        if names is not None:
            _write_named(stream, predictions, names)
            return
        classes = probabilities.shape[1]
        header = ",".join(["label", *(f"p{number}" for number in range(classes))])
        rows = np.column_stack([label, probabilities.astype(np.float64)])
        form = ",".join(["%d", *["%.9g"] * classes])
        np.savetxt(stream, rows, fmt=form, header=header, comments="", encoding="utf-8")


def _write_named(stream: BinaryIO, predictions: stage.Predictions, names: list[str]) -> None:
    """The same with the name of each record's class, and of the class of each column."""
    text = io.TextIOWrapper(stream, encoding="utf-8", newline="")
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["label", *(f"p {name}" for name in names)])
    for label, probabilities in zip(predictions.labels, predictions.probabilities, strict=True):
        rows.writerow([names[label], *(f"{chance:.9g}" for chance in probabilities)])
    text.flush()
    text.detach()
