"""How good a network is on labelled records, beside what takes no skill: always saying the most frequent class, or the mean.

All of it comes from outputs and labels of records that are not protected. Intervals cover 95 % and speak of this one network
on other records of the same kind: independent ones, or of independent persons (``owners``), whose records may be as alike as
these are. (scikit-learn's metrics would take a second to import.)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import ROUND_FLOOR, Decimal
from itertools import starmap
from typing import Any

import numpy as np

from dpltm.privacy.describe import percent
from dpltm.records.dataset import LEVELS
from dpltm.records.subgroups import Subgroups

QUANTILE = 1.959963984540054
"""Standard normal quantile at (1 + 0.95) / 2."""

BINS = 10
"""Of about as many records each: of equal width, nearly all of a rare outcome would be in the first."""

FEW = 10
"""Records outside the most frequent class; with fewer, DeLong's interval is too narrow."""

RECALLS = (0.5, 0.8, 0.9, 0.95)
"""Shares of the second of two classes that operating points are to find."""

DIGITS = 3
"""Of thresholds, rounded down: what is typed finds no fewer."""

SMALLEST = 10
"""Records of a subgroup whose figures are told, at least: those of fewer would tell of persons."""

MOST_SHOWN = 100
"""Classes of a confusion matrix, at most."""

Owners = np.ndarray | None
"""Whose each record is, ``(n,)`` numbers from 0; None of records that are independent."""


@dataclass(frozen=True)
class Estimate:
    """A figure and the ends of its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class ChanceRatio(Estimate):
    """Mean chance of a class over its share of the records; the interval follows Wilson's of the share."""

    name: str


@dataclass(frozen=True)
class ClassSkill:
    """One class, and the recall and precision of the network for it; None of nothing."""

    name: str
    records: int
    recall: float | None
    precision: float | None


@dataclass(frozen=True)
class Bin:
    """Records of one bin, their mean chance, and for what share of them it came true; None without records."""

    records: int
    chance: float | None
    share: float | None


@dataclass(frozen=True)
class TargetBin:
    """Records of one bin, and the means of their predictions and of their targets; None without records."""

    records: int
    predicted: float | None
    target: float | None


@dataclass(frozen=True)
class OperatingPoint:
    """A threshold on the chance of the second of two classes: ``named`` records at or above it are taken for that class,
    with recall (sensitivity), precision (positive predictive value) and specificity."""

    threshold: float
    named: int
    recall: float
    precision: float
    specificity: float


@dataclass(frozen=True)
class GroupSkill:
    """How good a network is on a subgroup of the records; as of :class:`Skill`, and None below ``SMALLEST`` records."""

    name: str
    records: int
    accuracy: Estimate | None = None
    majority_accuracy: float | None = None
    auc: Estimate | None = None


@dataclass(frozen=True)
class Skill:
    """How good a network is on some records.

    Attributes:
        accuracy: share that it gets right; the interval is Wilson's (1927).
        majority: most frequent class *of these records*.
        difference: accuracy less that, on the same records; the interval is that of Agresti and Min (2005) for pairs.
        balanced_accuracy: mean recall of the classes that have records; the interval is normal.
        auc: area under the ROC curve, one class against the rest, in the mean over classes that have records; None of one
            class. The interval is DeLong's (1988); where that has no width, or few records, Wilson's over those outside the
            most frequent class: the variance is at most A (1 - A) / min(m, n) (Birnbaum and Klose 1957).
        calibration_error: mean distance of chance and share, weighted by the records of a bin (expected calibration error).
        bins: of two classes by the chance of the second; of more by the chance of the one that the network says.
        points: of two classes that have records, the highest thresholds that find ``RECALLS`` of the second.
        confusion: records by class (rows) and by what the network says; None for more than ``MOST_SHOWN`` classes.
        chance_over_share: of two classes that of the second, None without its records; of more the one farthest from 1.
            None, as the next two, in answers of versions before 0.3.
        log_loss, shares_log_loss: mean of -ln of the chance of a record's class; and that of always saying the shares.
        groups: subgroups by one column, where that was asked for.
    """

    records: int
    accuracy: Estimate
    majority: str
    majority_accuracy: float
    difference: Estimate
    balanced_accuracy: Estimate
    auc: Estimate | None
    classes: tuple[ClassSkill, ...]
    calibration_error: float
    bins: tuple[Bin, ...]
    points: tuple[OperatingPoint, ...]
    confusion: tuple[tuple[int, ...], ...] | None
    metric: str = "accuracy"
    chance_over_share: ChanceRatio | None = None
    log_loss: float | None = None
    shares_log_loss: float | None = None
    groups: tuple[GroupSkill, ...] = ()

    @property
    def estimate(self) -> Estimate | None:
        """What it is judged by; None of an AUC where all records are of one class."""
        return {"balanced-accuracy": self.balanced_accuracy, "auc": self.auc}.get(self.metric, self.accuracy)

    @property
    def verdict(self) -> str | None:
        """One sentence for a network that is no better, by its metric, than what takes no skill; None for others."""
        if self.auc is None:
            return (
                f'All {self.records:,} test records are of one class ("{self.majority}"), so nothing tells whether the model'
                " has any skill: no AUC"
            )
        auc = f"{self.auc.value:.3f} (95 %: {self.auc.low:.3f} to {self.auc.high:.3f})"
        if self.metric == "auc":
            return None if self.auc.low > 0.5 else f"Ranks test records no better than chance: AUC {auc}"
        if self.metric == "balanced-accuracy":
            guess, recall = 1 / sum(of_class.records > 0 for of_class in self.classes), self.balanced_accuracy
            ends = f"{percent(recall.value)} (95 %: {percent(recall.low)} to {percent(recall.high)})"
            verdict = f"No better than guessing, which has {percent(guess)} balanced accuracy: {ends}"
            return None if recall.low > guess else verdict
        if self.difference.low > 0:
            return None
        always = f'always saying "{self.majority}" ({percent(self.majority_accuracy)} of test records)'
        ranks = f"; judge by the AUC, {auc}: it is better than guessing"
        if self.auc.low <= 0.5:
            ranks = f", and the AUC, {auc}, is no better than guessing"
        return f"Accuracy {percent(self.accuracy.value)} is no better than {always}{ranks}"

    def to_json(self) -> dict[str, Any]:
        """Return it as answers, ``result.json`` and scripts have it (docs/formats.md)."""
        body = asdict(self)
        groups = body.pop("groups")
        return {**body, "verdict": self.verdict, **({"groups": groups} if groups else {})}


def skill_of(
    outputs: np.ndarray,
    labels: np.ndarray,
    names: Sequence[str] = (),
    metric: str = "accuracy",
    groups: Subgroups | None = None,
    owners: Owners = None,
) -> Skill | None:
    """Return how good a network is by its ``outputs (n, K)`` before the softmax, for ``labels (n,)`` of classes with
    ``names``; None where they are not finite, or do not tell classes. ``groups`` of the records are judged as well."""
    tells = outputs.ndim == 2 and outputs.shape[1] >= 2 and labels.ndim == 1 and labels.max() < outputs.shape[1]
    if not tells or not np.isfinite(outputs).all():
        return None
    outputs, classes, count = outputs.astype(np.float64), outputs.shape[1], len(labels)
    class_names = list(names) if len(names) == classes else [str(label) for label in range(classes)]
    predicted_class = outputs.argmax(1)
    matrix = np.bincount(labels * classes + predicted_class, minlength=classes**2).reshape(classes, classes)
    right = matrix.diagonal()
    of_class = matrix.sum(1)
    of_predicted = matrix.sum(0)
    accuracy = float(right.sum() / count)
    most = int(of_class.argmax())
    present = of_class > 0
    logs = outputs - outputs.max(1, keepdims=True)
    logs -= np.log(np.exp(logs).sum(1, keepdims=True))
    two = classes == 2
    gained, lost = int(right.sum() - right[most]), int(of_class[most] - right[most])
    is_right = (predicted_class == labels).astype(np.float64)
    change = is_right - (labels == most)
    recalls = (is_right - right[labels] / of_class[labels]) / of_class[labels]
    shares = of_class[present] / count
    stated = (np.exp(logs[:, 1]), labels == 1) if two else (np.exp(logs.max(1)), predicted_class == labels)
    bins = tuple(starmap(Bin, _bins(*stated)))
    apart = [abs((tenth.chance or 0) - (tenth.share or 0)) * tenth.records for tenth in bins]
    ranked = {int(label): logs[:, label] for label in present.nonzero()[0]}
    if two:  # differences of outputs, which order records where chances are 1 in floating point already
        ranked = {1: outputs[:, 1] - outputs[:, 0]}
    return Skill(
        records=count,
        accuracy=Estimate(accuracy, *wilson(accuracy, count / _alike(is_right - accuracy, owners))),
        majority=class_names[most],
        majority_accuracy=float(of_class[most] / count),
        difference=_paired(gained, lost, count, _alike(change - change.mean(), owners)),
        balanced_accuracy=_mean_recall(right[present], of_class[present], _alike(recalls, owners)),
        auc=_auc(ranked, labels, count - int(of_class[most]), owners) if present.sum() > 1 else None,
        classes=tuple(
            ClassSkill(name, int(all_of), _ratio(correct, all_of), _ratio(correct, predicted))
            for name, correct, all_of, predicted in zip(class_names, right, of_class, of_predicted, strict=True)
        ),
        calibration_error=math.fsum(apart) / count,
        bins=bins,
        points=_points(np.exp(logs[:, 1]), labels == 1) if two and present.all() else (),
        confusion=tuple(tuple(map(int, row)) for row in matrix) if classes <= MOST_SHOWN else None,
        metric=metric,
        chance_over_share=_chance_over_share(np.exp(logs), labels, of_class, class_names, owners),
        log_loss=float(-logs[np.arange(count), labels].mean()),
        shares_log_loss=float(-(shares * np.log(shares)).sum()),
        groups=() if groups is None else tuple(_by_group(outputs, labels, groups, owners)),
    )


def _alike(influence: np.ndarray, owners: Owners) -> float:
    """How many times its variance is that of independent records, at least 1: their ``influence`` on a figure is added up by
    owner (Liang and Zeger 1986); where none has any, as if an owner's records were all the same."""
    if owners is None:
        return 1.0
    influence = influence if influence.any() else np.ones(len(owners))
    return max(1.0, float((np.bincount(owners, influence) ** 2).sum() / (influence**2).sum()))


def _chance_over_share(
    chances: np.ndarray, labels: np.ndarray, records: np.ndarray, names: Sequence[str], owners: Owners
) -> ChanceRatio | None:
    """Of the chances of each record, ``(n, K)``, and records of each class."""
    count, present, means = len(labels), records.nonzero()[0], chances.mean(0)
    with np.errstate(divide="ignore"):  # a chance of 0 is farthest
        distances = np.abs(np.log(means[present] * count / records[present]))
    at = 1 if len(records) == 2 else int(present[distances.argmax()])
    if not records[at]:
        return None
    chance = float(means[at])
    ratio = chance * count / int(records[at])
    low, high = wilson(records[at] / count, count / _alike(chances[:, at] - ratio * (labels == at), owners))
    return ChanceRatio(ratio, chance / high, chance / low, names[at])


def _by_group(outputs: np.ndarray, labels: np.ndarray, groups: Subgroups, owners: Owners) -> Iterator[GroupSkill]:
    for code, name in enumerate(groups.names):
        own = groups.codes == code
        of_group = skill_of(outputs[own], labels[own], owners=None if owners is None else owners[own])
        if of_group is None or own.sum() < SMALLEST:
            yield GroupSkill(name, int(own.sum()))
        else:
            yield GroupSkill(name, of_group.records, of_group.accuracy, of_group.majority_accuracy, of_group.auc)


def _ratio(part: int, total: int) -> float | None:
    return float(part / total) if total else None


def _within(value: float, half: float) -> Estimate:
    return Estimate(value, max(0.0, value - half), min(1.0, value + half))


def wilson(share: float, records: float) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share of some records."""
    square = QUANTILE**2 / records
    middle = (share + square / 2) / (1 + square)
    half = math.sqrt(square * (share * (1 - share) + square / 4)) / (1 + square)
    return max(0.0, middle - half), min(1.0, middle + half)


def _paired(gained: int, lost: int, count: int, alike: float) -> Estimate:
    """Agresti and Min: half a record is added to each of the four cells of the table, so that no interval has width 0."""
    all_of, change = count + 2, gained - lost
    half = QUANTILE * math.sqrt(alike * (gained + lost + 1 - change**2 / all_of)) / all_of
    return Estimate(change / count, change / all_of - half, change / all_of + half)


def _mean_recall(hits: np.ndarray, of_class: np.ndarray, alike: float) -> Estimate:
    shrunk = (hits + 1) / (of_class + 2)  # or a recall of 0 or 1 would be certain
    half = QUANTILE * math.sqrt(alike * float((shrunk * (1 - shrunk) / of_class).sum())) / len(hits)
    return _within(float((hits / of_class).mean()), half)


def _auc(ranked: Mapping[int, np.ndarray], labels: np.ndarray, outside: int, owners: Owners) -> Estimate:
    """Mean area over classes; DeLong's placements of a record, summed over classes, are its influence on that mean."""
    areas = []
    influence = np.zeros(len(labels))
    for label, scores in ranked.items():
        own = labels == label
        above = _placements(scores[own], scores[~own])
        below = 1 - _placements(scores[~own], scores[own])
        area = float(above.mean())
        areas.append(area)
        for rows, placed in ((own, above), (~own, below)):
            influence[rows] += (placed - area) / math.sqrt(len(placed) * max(len(placed) - 1, 1))
    alike = _alike(influence, owners)
    mean, spread = math.fsum(areas) / len(areas), math.sqrt(alike * float((influence**2).sum())) / len(areas)
    if spread == 0 or outside < FEW * alike:
        return Estimate(mean, *wilson(mean, outside / alike))
    return _within(mean, QUANTILE * spread)


def _placements(scores: np.ndarray, other_scores: np.ndarray) -> np.ndarray:
    """The share of others that each score is above, ties by half."""
    other_scores = np.sort(other_scores)
    below, not_above = (np.searchsorted(other_scores, scores, side) for side in ("left", "right"))
    return (below + not_above) / (2 * len(other_scores))


def _points(chances: np.ndarray, own: np.ndarray) -> tuple[OperatingPoint, ...]:
    highest, points = np.sort(chances[own])[::-1], []
    for wanted in RECALLS:
        exact = Decimal(repr(float(highest[math.ceil(wanted * len(highest)) - 1])))
        threshold = float(exact.quantize(Decimal(1).scaleb(exact.adjusted() + 1 - DIGITS), rounding=ROUND_FLOOR))
        flagged = chances >= threshold
        count, hits = int(flagged.sum()), int((flagged & own).sum())
        specificity = float((~flagged & ~own).sum() / (~own).sum())
        points.append(OperatingPoint(threshold, count, hits / len(highest), hits / count, specificity))
    return tuple(points)


def _bins(predictions: np.ndarray, true: np.ndarray) -> Iterator[tuple[int, float | None, float | None]]:
    """The records between tenths of what a network says, and the means of that and of what is true."""
    place = np.searchsorted(np.quantile(predictions, np.arange(1, BINS) / BINS), predictions)
    counts, *sums = (np.bincount(place, weights, BINS) for weights in (None, predictions, true))
    for n, first, second in zip(counts, *sums, strict=True):
        yield (int(n), float(first / n), float(second / n)) if n else (0, None, None)


OUTSIDE = 0.1
"""Share of test targets at the ends of their range, or beyond, from which a note says so."""


@dataclass(frozen=True)
class TargetSkill:
    """How good a network is at predicting targets that are numbers, in their unit.

    Attributes:
        r2: None where all targets are one number. The interval is normal, by linearisation.
        mean_rmse: ``rmse`` of always saying the mean *of these records*.
        outside: share of the targets at the ends of their public range, as which those beyond count.
        bins: by the prediction; none in answers of versions before 0.3.
    """

    records: int
    r2: Estimate | None
    rmse: float
    mae: float
    mean_rmse: float
    outside: float
    metric: str = "r2"
    bins: tuple[TargetBin, ...] = ()

    @property
    def value(self) -> float | None:
        """What it is judged by."""
        return {"rmse": self.rmse, "mae": self.mae}.get(self.metric, None if self.r2 is None else self.r2.value)

    @property
    def verdict(self) -> str | None:
        """One sentence for a network that is no better than always saying the mean; None for others."""
        if self.r2 is None:
            return f"All {self.records:,} test targets are one number, so nothing tells if the model has any skill"
        if self.r2.low > 0:
            return None
        return f"No better than always saying the mean of the test targets: {self}"

    def __str__(self) -> str:
        ends = "none" if self.r2 is None else "{value:.3f} (95 %: {low:.3f} to {high:.3f})".format(**asdict(self.r2))
        return f"R2 {ends}; root mean squared error {self.rmse:.4g} (always the mean: {self.mean_rmse:.4g})"

    @property
    def notes(self) -> tuple[str, ...]:
        """A note where many targets are outside of the range that was declared."""
        note = (
            f"{percent(self.outside)} of the test targets are at the ends of their public range or beyond, and count as"
            " these ends, in training too: is the range (`target_bounds`, or bounds in the schema) right?"
        )
        return (note,) if self.outside > OUTSIDE else ()

    def to_json(self) -> dict[str, Any]:
        """Return it as answers, ``result.json`` and scripts have it (docs/formats.md)."""
        return {**asdict(self), "verdict": self.verdict}


def predicted(outputs: np.ndarray, target: tuple[float, float]) -> np.ndarray:
    """Return the target that two outputs stand for, ``(n,)`` float64, in its unit: both ends, by their chances."""
    low, high = target
    outputs = outputs.astype(np.float64)
    return np.asarray(low + (high - low) * np.exp(-np.logaddexp(0.0, outputs[:, 0] - outputs[:, 1])))


def target_skill_of(
    outputs: np.ndarray, labels: np.ndarray, target: tuple[float, float], metric: str = "r2", owners: Owners = None
) -> TargetSkill | None:
    """Return how good outputs ``(n, 2)`` are for ``labels``, levels of a range from 0 to ``LEVELS``; None if not finite."""
    if not np.isfinite(outputs).all():
        return None
    low, high = target
    targets = low + (high - low) * (labels / LEVELS)
    predictions = predicted(outputs, target)
    apart = targets - targets.mean()
    errors = predictions - targets
    squared, variance = float((errors**2).mean()), float((apart**2).mean())
    r2 = None
    if variance > 0:
        value = 1 - squared / variance
        influence = (apart**2 * (1 - value) - errors**2) / variance
        half = QUANTILE * float(influence.std()) * math.sqrt(_alike(influence, owners) / len(labels))
        r2 = Estimate(value, value - half, min(1.0, value + half))
    return TargetSkill(
        len(labels), r2, math.sqrt(squared), float(np.abs(errors).mean()), math.sqrt(variance),
        float(((labels == 0) | (labels == LEVELS)).mean()), metric,
        tuple(starmap(TargetBin, _bins(predictions, targets))),
    )  # fmt: skip
