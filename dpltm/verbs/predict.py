"""Predictions of a run's network for records without labels: post-processing of the run, for records that it never saw."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from dpltm.errors import InputError
from dpltm.networks.own_network import network_notes
from dpltm.networks.state import evaluating
from dpltm.progress import SILENT, Progress
from dpltm.records import Layout, count_outside, prepare
from dpltm.records.notes import run_bounds_notes
from dpltm.training.artifacts import Run

ROWS = 512
"""Records in the network at once."""


@dataclass(frozen=True, eq=False)
class Predictions:
    """Predictions, as sensitive as the records that they are for.

    Attributes:
        outputs: of the network, ``(n, classes)`` float32; where labels are no class numbers ``(n, ...)``.
        saturated: values of the records that lie outside the run's bounds, or are no positions in its tables.
        tells: whether outputs are those of classes.
    """

    outputs: np.ndarray
    saturated: int
    notes: tuple[str, ...] = ()
    tells: bool = True

    @cached_property
    def probabilities(self) -> np.ndarray:
        """Class probabilities, ``(n, classes)`` float32, the softmax of ``outputs``; InputError without classes."""
        if not self.tells:
            raise InputError(
                "the run was trained on labels that are no class numbers, so it gives no classes and no probabilities; in"
                " Python, take dpltm.predict(run, x).outputs"
            )
        return torch.softmax(torch.from_numpy(self.outputs), 1).numpy()

    @property
    def labels(self) -> np.ndarray:
        """The most likely class of each record, ``(n,)`` int64; InputError without classes."""
        return self.probabilities.argmax(1).astype(np.int64)


def text_layout(run: Run) -> Layout | None:
    """Return the layout that texts get, as in training; None for a network that takes none."""
    tables = run.spec.tables
    return Layout(*tables, run.spec.features) if len(tables) == 1 else None


def predict(run: Run, x: np.ndarray, *, source: str = "x", progress: Progress = SILENT) -> Predictions:
    """Return what the network says of each record.

    Args:
        x: records as in training, ``(n, ...)``; or flattened, as tables hold them.
    """
    run.spec.check_code(run.label)
    shape, bounds = run.spec.record_shape, run.bounds
    if run.feature_map is not None:
        shape, bounds = run.feature_map.shape, run.feature_map.bounds
    rows = _as_trained(x, shape, run, source)
    saturated = count_outside(rows, bounds, run.spec.parts)
    if saturated and run.spec.tables:
        progress.say(f"{saturated} values of {source} are no positions in the run's tables; they are taken as 0")
    elif saturated:
        ends = "are in its schema" if run.schema is not None else f"are {bounds[0]:g},{bounds[1]:g}"
        progress.say(f"{saturated} values of {source} saturate: the run's bounds {ends}")
    outputs = _outputs(rows, run, source, progress)
    return Predictions(
        outputs, saturated, (*run_bounds_notes(run), *network_notes(run.spec)), tells=run.spec.labels is None
    )


def _as_trained(x: np.ndarray, shape: tuple[int, ...], run: Run, source: str) -> np.ndarray:
    """Return the records in the shape that the run takes; flattened ones are put into it."""
    given = x.shape[1:]
    flat = len(given) == 1 or len(shape) == 1
    if math.prod(given) == math.prod(shape) and (flat or _without_channel(given) == _without_channel(shape)):
        return x.reshape(len(x), *shape)
    raise InputError(
        f"`input`: {source} has records of shape {given}, but {run.label} takes {shape}; use records of the same shape, or"
        f" their {math.prod(shape)} values in a row"
    )


def _without_channel(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of an image; one of a single channel may say so or not."""
    return shape[:-1] if len(shape) == 3 and shape[-1] == 1 else shape


def _outputs(x: np.ndarray, run: Run, source: str, progress: Progress) -> np.ndarray:
    """Return the network's outputs for records scaled by public bounds, or for their features."""
    parts = []
    with progress.progress(f"predicting {source}", len(x)) as step, torch.no_grad(), evaluating(run.model):
        for start in range(0, len(x), ROWS):
            rows = x[start : start + ROWS]
            if run.feature_map is None:
                inputs = torch.from_numpy(prepare(rows, run.bounds, run.spec.tables, run.spec.parts))
            else:
                inputs = run.feature_map(rows)
            outputs = run.model(inputs)
            if not bool(outputs.isfinite().all()):
                raise InputError(
                    f"{run.label}: its network gives no finite numbers, since training diverged; train it with a smaller"
                    " `lr`"
                )
            parts.append(outputs.numpy())
            step(start + len(rows))
    return np.concatenate(parts)
