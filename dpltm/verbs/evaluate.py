"""How good a run's network is on records that were held out: nothing is spent, where they are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from dpltm.errors import InputError
from dpltm.features.inputs import Services, inputs, network_inputs, take_over_map
from dpltm.networks import check_takes
from dpltm.networks.evaluation import DIVERGED, accuracy, check_score, has_diverged, rows_alike
from dpltm.networks.own_network import network_notes
from dpltm.networks.skill import Skill, TargetSkill, predicted
from dpltm.networks.state import evaluating
from dpltm.options import METRICS, TARGET_METRICS
from dpltm.privacy.account import check_declared
from dpltm.privacy.entry import Part
from dpltm.privacy.ledger import Ledger, of_process
from dpltm.progress import SILENT, Progress
from dpltm.records.dataset import Dataset
from dpltm.records.files import Layout
from dpltm.records.notes import assumed_bounds, bounds_notes, outside_notes
from dpltm.records.scaling import count_outside, prepare
from dpltm.records.split import Split
from dpltm.records.subgroups import check_column
from dpltm.training.artifacts import Run
from dpltm.training.release import skill_on, stored_test

YOUR_WORD = (
    "that none of these records was trained on is your word, since rows are not compared across commands: accuracy on"
    " records that were is private"
)

ROWS = 512  # records in the network at once


@dataclass(frozen=True)
class Evaluation:
    """Accuracy of a network on some records.

    Attributes:
        accuracy: None where the target is a number.
        skill: None for a network that diverged, or has a score of its own.
    """

    dataset: str
    records: int
    accuracy: float | None
    notes: tuple[str, ...]
    skill: Skill | TargetSkill | None = None


def as_held_out(dataset: Dataset) -> Dataset:
    """Return a dataset whose test split these records are, and whose training split is one record that is nobody's."""
    nobody = Split(dataset.train.made_up(), part=dataset.part, nobodys=True, valued=dataset.train.valued)
    # those of a publication are known by its name: whoever trained on them may not measure on them
    part = Part(f"{dataset.name} (test)") if dataset.published_id() is None else dataset.part
    return replace(dataset, train=nobody, test=replace(dataset.train, part=part, file=None))


def evaluate(
    run: Run, dataset: Dataset, ledger: Ledger | None = None, services: Services | None = None, by: str | None = None
) -> Evaluation:
    """Return accuracy, and that of subgroups ``by`` a column, on the test split of ``dataset``, which is then on record."""
    ledger = ledger or run.ledger or of_process(run.config.get("unit", "record"))
    run.spec.check_code(run.label)
    check_score(run.spec, "evaluate")
    dataset = take_over_map(dataset.in_order(run.columns, run.label), run.feature_map, None, run.label)
    if dataset.test is None:
        raise InputError(
            f"`dataset`: {dataset.name} has no test split; name a file with one by `test`, or the part that"
            " the training held out, such as `test` 0.2; or new records alone by `input`"
        )
    check_takes(run.spec, dataset, run.label, like="those that it was trained on")
    if dataset.bounds != run.bounds:
        raise InputError(f"`bounds`: {dataset.name} has {dataset.bounds}, and the run {run.bounds}; use the same")
    if dataset.target != run.target:
        predicted = "classes" if run.target is None else "a number from {:g} to {:g}".format(*run.target)
        raise InputError(
            f"`dataset`: the label of {dataset.name} is {dataset.told_labels}, and {run.label} predicts {predicted}"
        )
    apart = ledger.apart(dataset)  # none of a publication, which says that its splits are apart
    for draft in apart:
        check_declared(ledger.account(run.lineage), draft.part, "measured without a price")
    undeclared = bool(run.lineage.paid) and any(ledger.book.entry_of(draft) is None for draft in apart)
    if by is not None:
        check_column(dataset, by)
    test = network_inputs(dataset.test, dataset, services)
    ledger.declare_once(*apart)
    x, y = inputs(test.open(ledger.declared_test(dataset)), dataset)
    judged: Skill | TargetSkill | None = None
    if run.spec.score is None:  # else it may tell no classes
        judged = skill_on(run.model, dataset, ledger, (x, y), _metric(run), by)
    right = judged.accuracy.value if isinstance(judged, Skill) else None
    if judged is None and run.target is None:
        right = accuracy(run.model, x, y, score=run.spec.score)
    notes = [
        *([YOUR_WORD] if undeclared else []),
        *([DIVERGED] if has_diverged(run.model, run.spec) else []),
        *(_run_bounds_notes(run) or bounds_notes(dataset)),
        *outside_notes(dataset, stored_test(dataset, ledger)),
        *network_notes(run.spec),
        *getattr(judged, "notes", ()),
    ]
    return Evaluation(dataset.name, len(dataset.test), right, tuple(notes), judged)


def _run_bounds_notes(run: Run) -> list[str]:
    """Return a note on bounds of a run that nobody gave."""
    if run.config.get("bounds_origin") != "assumed":
        return []
    return [assumed_bounds(f"the records that {run.label} was trained on", run.bounds, "train with `bounds` LO,HI")]


def _metric(run: Run) -> str:
    options = run.config.get("options")
    metrics = METRICS if run.target is None else TARGET_METRICS
    metric = options.get("metric") if isinstance(options, Mapping) else None
    return metric if metric in metrics else metrics[0]


@dataclass(frozen=True, eq=False)
class Predictions:
    """Predictions, as sensitive as the records that they are for.

    Attributes:
        outputs: of the network, ``(n, classes)`` float32; where labels are no class numbers ``(n, ...)``.
        saturated: values of the records that lie outside the run's bounds, or are no positions in its tables.
        tells: whether outputs are those of classes.
        target: public range of the number that is predicted; None of classes.
    """

    outputs: np.ndarray
    saturated: int
    notes: tuple[str, ...] = ()
    tells: bool = True
    target: tuple[float, float] | None = None

    @cached_property
    def probabilities(self) -> np.ndarray:
        """Class probabilities, ``(n, classes)`` float32, the softmax of ``outputs``; InputError without classes."""
        if self.target is not None or not self.tells:
            instead = "in Python `outputs`" if self.target is None else "`values`"
            raise InputError(f"the run gives no classes and no probabilities; take {instead}")
        return torch.softmax(torch.from_numpy(self.outputs), 1).numpy()

    @property
    def values(self) -> np.ndarray:
        """The number that is expected of each record, ``(n,)`` float64, in the unit of the target; InputError of classes."""
        if self.target is None:
            raise InputError("the run gives classes; take `labels` or `probabilities`")
        return predicted(self.outputs, self.target)

    @property
    def labels(self) -> np.ndarray:
        """The most likely class of each record, ``(n,)`` int64; InputError without classes."""
        return self.probabilities.argmax(1).astype(np.int64)


def text_layout(run: Run) -> Layout | None:
    """Return the layout that texts get, as in training; None for a network that takes none."""
    tables = run.spec.tables
    return Layout(*tables, run.spec.features) if len(tables) == 1 else None


def predict(
    run: Run, x: np.ndarray, *, source: str = "x", progress: Progress = SILENT, alike: bool = False
) -> Predictions:
    """Return what the network says of each record.

    Args:
        x: records as in training, ``(n, ...)``; or flattened, as tables hold them.
        alike: as sums that noise is added to need it (``networks.evaluation.outputs``): rows of zeros fill batches up.
    """
    run.spec.check_code(run.label)
    shape, bounds = run.spec.record_shape, run.bounds
    if run.feature_map is not None:
        shape, bounds = run.feature_map.shape, run.feature_map.bounds
    own_shape = x.shape[1:]
    longer, taken = ([length for length in lengths if length != 1] for lengths in (own_shape, shape))
    # flattened records, and images of one channel, are put into the shape that the run takes
    same = math.prod(own_shape) == math.prod(shape) and (1 in (len(own_shape), len(shape)) or longer == taken)
    if not same:
        raise InputError(
            f"`input`: {source} has records of shape {own_shape}, but {run.label} takes {shape}; use records of the same"
            f" shape, or their {math.prod(shape)} values in a row"
        )
    records = x.reshape(len(x), *shape)
    saturated = count_outside(records, bounds, run.spec.parts)
    if saturated:
        progress.say(
            f"{saturated} values of {source} lie outside the run's bounds, or tables; they saturate, or count as 0"
        )
    at_once = ROWS
    if alike:
        kind = torch.long if run.spec.tables else torch.float32
        at_once = rows_alike(run.model, torch.zeros(1, run.spec.features, dtype=kind), ROWS)
        records = np.concatenate([records, np.zeros((-len(x) % at_once, *shape), x.dtype)])
    outputs = []
    with progress.progress(f"predicting {source}", len(records)) as step, torch.no_grad(), evaluating(run.model):
        for start in range(0, len(records), at_once):
            rows = records[start : start + at_once]
            if run.feature_map is None:
                inputs = torch.from_numpy(prepare(rows, run.bounds, run.spec.tables, run.spec.parts))
            else:
                inputs = run.feature_map(rows)
            outputs.append(run.model(inputs))
            if not bool(outputs[-1].isfinite().all()):
                raise InputError(f"{run.label}: its network gives no finite numbers; train it with a smaller `lr`")
            step(start + len(rows))
    notes = (*_run_bounds_notes(run), *network_notes(run.spec))
    values = torch.cat(outputs)[: len(x)].numpy()
    return Predictions(values, saturated, notes, run.spec.labels is None, run.target)
