"""``dpltm predict``: what the model of a run makes of records without labels."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpltm.cli.console import Console
from dpltm.cli.options import Call, option
from dpltm.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from rich.console import Console as RichConsole
    from torch import Tensor

    from dpltm.cli.console import Step
    from dpltm.data import Layout
    from dpltm.run import Run

ROWS = 512
"""Records in the network at once."""


@dataclass(frozen=True)
class PredictOptions:
    """Class and class probabilities that a run's model gives to records without labels.

    For other records than those that it was trained on, predictions are post-processing of the run and cost nothing. What is
    written depends on the records of --input, and is as sensitive as they are.
    """

    run: str | None = option(None, "Folder of the run.", metavar="RUN", argument=True, required=True)
    input: str | None = option(
        None,
        "Records as in training: a .npz with x (or x_test), or a .csv or .parquet of its features, in its order.",
        metavar="FILE",
        required=True,
    )
    label: str | None = option(None, "Column of a .csv or .parquet file that is no feature.", metavar="COLUMN")
    out: str | None = option(
        None,
        "File to write: a .csv of label,p0,p1,... or a .npz with label and probabilities.",
        short="-o",
        metavar="FILE",
        required=True,
    )


def command(options: PredictOptions, call: Call) -> None:
    """Runs ``dpltm predict`` and prints its answer."""
    from dpltm.data import count_outside, load_records
    from dpltm.tickets.files import check_free, check_writable
    from dpltm.tickets.run import load_run

    console, out = Console(call.json, call.quiet), Path(options.out or "")
    _check_suffix(out)
    check_free(out)
    check_writable(out)
    run = load_run(Path(options.run or ""))
    x = _as_trained(load_records(options.input or "", options.label, _layout(run)), run, options.input or "")
    bounds = _bounds(run)
    body: dict[str, Any] = {
        "run": str(run.path),
        "input": options.input,
        "records": len(x),
        "output": str(out),
        "saturated": count_outside(x, bounds),
    }
    if body["saturated"] and run.spec.tables:
        console.say(
            f"{body['saturated']} values of {options.input} are no positions in the run's tables; they are taken as 0"
        )
    elif body["saturated"]:
        low, high = bounds
        console.say(f"{body['saturated']} values of {options.input} saturate: the run's bounds are {low:g},{high:g}")
    with console.progress(f"predicting {options.input}", len(x)) as step:
        probabilities = _probabilities(x, run, step)
    _write(out, probabilities)
    console.result(body, lambda rich: _show(rich, body))


def _check_suffix(out: Path) -> None:
    if out.suffix.lower() not in (".csv", ".npz"):
        raise InputError(f"--out: {out} is neither .csv nor .npz; name it {out.stem}.csv or {out.stem}.npz")


def _bounds(run: Run) -> tuple[float, float]:
    """By which the records were scaled in training: in front of the network, or of the map before it."""
    return run.bounds if run.feature_map is None else run.feature_map.bounds


def _layout(run: Run) -> Layout | None:
    """What texts become, as in training; None for a network that takes none."""
    from dpltm.data import Layout

    tables = run.spec.tables
    return Layout(*tables, run.spec.features) if len(tables) == 1 else None


def _as_trained(x: np.ndarray, run: Run, source: str) -> np.ndarray:
    """The records in the shape that the run takes; flattened ones, as tables hold them, are put into it.

    Raises:
        InputError: they are of another shape.
    """
    shape = _shape(run)
    given = x.shape[1:]
    if math.prod(given) == math.prod(shape) and (len(given) == 1 or len(shape) == 1 or _plain(given) == _plain(shape)):
        return x.reshape(len(x), *shape)
    raise InputError(
        f"--input: {source} has records of shape {given}, but {run.path} takes {shape}; use records of the same shape, or"
        f" their {math.prod(shape)} values in a row"
    )


def _shape(run: Run) -> tuple[int, ...]:
    """Of one record: as the feature map or the network knows it, else the number of its values."""
    return run.spec.record_shape if run.feature_map is None else run.feature_map.shape


def _plain(shape: tuple[int, ...]) -> tuple[int, ...]:
    """An image of one channel may say so or not."""
    return shape[:-1] if len(shape) == 3 and shape[-1] == 1 else shape


def _probabilities(x: np.ndarray, run: Run, step: Step) -> np.ndarray:
    """Softmax of what the network says, ``(n, classes)`` float32.

    Raises:
        InputError: the network is one that training drove out of the numbers.
    """
    import numpy as np
    import torch

    parts = []
    with torch.no_grad():
        for inputs in _inputs(x, run):
            found = torch.softmax(run.model(inputs), 1)
            if not bool(found.isfinite().all()):
                raise InputError(
                    f"{run.path}: its network gives no finite numbers, since training diverged; train it with a smaller --lr"
                )
            parts.append(found.numpy())
            step(min(len(parts) * ROWS, len(x)))
    return np.concatenate(parts)


def _inputs(x: np.ndarray, run: Run) -> Iterator[Tensor]:
    """What the network gets: records scaled by public bounds, or what the feature map makes of them; a chunk at a time."""
    import torch

    from dpltm.data import prepare

    tables = run.spec.tables
    for start in range(0, len(x), ROWS):
        rows = x[start : start + ROWS]
        found = run.feature_map
        yield torch.from_numpy(prepare(rows, run.bounds, tables)) if found is None else found(rows)


def _write(out: Path, probabilities: np.ndarray) -> None:
    """The predictions, whole or not at all. Nine digits give back every float32 exactly."""
    import numpy as np

    from dpltm.tickets.files import new_file

    label = probabilities.argmax(1)
    with new_file(out) as staging, staging.open("wb") as stream:
        if out.suffix.lower() == ".npz":
            np.savez(stream, label=label.astype(np.int64), probabilities=probabilities)
            return
        classes = probabilities.shape[1]
        names = ",".join(["label", *(f"p{number}" for number in range(classes))])
        rows = np.column_stack([label, probabilities.astype(np.float64)])
        form = ",".join(["%d", *["%.9g"] * classes])
        np.savetxt(stream, rows, fmt=form, header=names, comments="", encoding="utf-8")


def _show(rich: RichConsole, body: dict[str, Any]) -> None:
    from dpltm.cli.show import show_pairs

    show_pairs(rich, "predicted", body)
