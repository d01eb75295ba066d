"""``dpltm predict``: a run in a folder, on records in a file, into a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dpltm.data import load_records
from dpltm.errors import InputError, as_flags
from dpltm.options.predict import PredictRequest
from dpltm.stages import predict as stage
from dpltm.stages.progress import Progress
from dpltm.tickets.files import check_free, check_writable, new_file
from dpltm.tickets.run import load_run
from dpltm.tickets.workbench.as_in_training import said_in_training, schema_of


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
    x = load_records(source, request.label, stage.text_layout(run), spare, schema_of(run))
    predictions = stage.predict(run, x, source=source, progress=progress)
    _write(out, predictions)
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


def _write(out: Path, predictions: stage.Predictions) -> None:
    """The predictions, whole or not at all. Nine digits give back every float32 exactly."""
    label, probabilities = predictions.labels, predictions.probabilities
    with new_file(out) as staging, staging.open("wb") as stream:
        if out.suffix.lower() == ".npz":
            np.savez(stream, label=label, probabilities=probabilities)
            return
        classes = probabilities.shape[1]
        names = ",".join(["label", *(f"p{number}" for number in range(classes))])
        rows = np.column_stack([label, probabilities.astype(np.float64)])
        form = ",".join(["%d", *["%.9g"] * classes])
        np.savetxt(stream, rows, fmt=form, header=names, comments="", encoding="utf-8")
