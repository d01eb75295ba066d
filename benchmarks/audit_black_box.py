"""Membership attack that sees nothing but models, on anybody's training; and on private digits, how near it comes.

A training is repeated with one record, the *target*, and without it. Each model is asked about the target alone. Any test on
the answers is a test between two neighbouring datasets, so its errors bound epsilon from below, whatever the framework, the
model, or the reason that the training is private (Jagielski, Ullman, Oprea 2020; Nasr et al. 2021). Two scores are tried:
how sure the model is of the target's label, on the logit scale (Yeom et al. 2018; Carlini et al. 2022, section 5), and the
likelihood ratio of that under normal distributions, which the first half of the models shadow. That half decides on a score
and a threshold; the other half is counted. ``audit_opacus.py`` attacks a training of another library.

As a program: every training is of 200 digits, all of them in each step, by ``PrivateLoop`` with fast noise from its seed, at
a certified epsilon of 10; a record under a wrong label is in or out. ``worst start`` begins at weights that know the other
records, where the target has a long gradient and the others have short ones (Annamalai, De Cristofaro 2024); ``random
start`` at weights that know nothing; ``a third of the noise`` is the first with a planted bug. Prints JSON.

    python benchmarks/audit_black_box.py [--trials 500] [--seeds 3] [--rows "worst start"] [--plot FILE]
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import logsumexp, ndtri
from sklearn.datasets import load_digits
from torch import nn

from dpltm import PrivateLoop
from dpltm.audit import TradeOff, check_confidence, clopper_pearson, noise_bound, pair_bound
from dpltm.errors import InputError
from dpltm.privacy.ledger import Ledger
from dpltm.privacy.mechanisms import Adjacency, NoisySgd
from dpltm.privacy.statement import json_figure
from dpltm.privacy.trade_off import curves
from dpltm.randomness.noise import FastSource
from dpltm.tickets.charts import Chart, Series

Model = Callable[[np.ndarray], np.ndarray]
"""From features ``(n, ...)`` to logits or log-probabilities ``(n, classes)``."""

Training = Callable[[np.ndarray, np.ndarray, int], Model]
"""From features ``(n, ...)``, labels ``(n,)`` and a seed, which all of its randomness comes from, to a model."""

LEVELS = (0.001, 0.01, 0.1, 0.5)
"""False alarms at which hits are told."""

STRICT = 0.9999
"""Confidence of the errors that a threshold is chosen by: with less, it is one that was lucky on few models."""

LEAST = 40
"""Trainings with the target, and without: fewer prove nothing."""


@dataclass(frozen=True, eq=False)
class Trials:
    """Log-odds of the target's label by each model, ``(trials,)``, inside: trained with the target, or outside:
    without."""

    inside: np.ndarray
    outside: np.ndarray


@dataclass(frozen=True)
class Point:
    """A test of the ROC, on the models that are counted: shares, each with its 95 % interval.

    ``false_alarms`` are models without the target taken for one with it, ``hits`` models with it that are recognised.
    """

    false_alarms: tuple[float, float, float]
    hits: tuple[float, float, float]


@dataclass(frozen=True)
class Membership:
    """Result of the attack.

    Attributes:
        epsilon, delta: that were claimed.
        by_counting: lower bound by (epsilon, delta) and both kinds of errors.
        by_trade_off: that over trainings which differ by their noise; None where the training was not described.
        points: of the ROC, at the false alarms of ``LEVELS`` that so many trials can tell.
        confidence: that both bounds hold with, together.
    """

    epsilon: float
    delta: float
    by_counting: float
    by_trade_off: float | None
    points: tuple[Point, ...]
    trials: int
    confidence: float

    @property
    def lower_bound(self) -> float:
        """The better of the bounds."""
        return max(self.by_counting, self.by_trade_off or 0.0)

    @property
    def violates(self) -> bool:
        """True if the claim is refuted."""
        return self.lower_bound > self.epsilon

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object that audits print."""
        return {
            "lower_bound": self.lower_bound,
            "claimed": json_figure(self.epsilon),
            "delta": self.delta,
            "trials": self.trials,
            "confidence": self.confidence,
            "bounds": {"counting": self.by_counting, "trade_off": self.by_trade_off},
            "roc": [{"false_alarms": point.false_alarms, "hits": point.hits} for point in self.points],
            "violates": ["claimed"] if self.violates else [],
        }


def mislabelled(x: np.ndarray, y: np.ndarray, classes: int, which: int = 0) -> tuple[np.ndarray, int]:
    """A target: a record of the data, under the label that follows its own.

    Args:
        x: features, ``(n, ...)``.
        y: labels, ``(n,)``, from 0 to ``classes`` - 1.
        classes: at least 2.
        which: place of the record.
    """
    return np.asarray(x)[which], (int(y[which]) + 1) % classes


def repeat(
    train: Training,
    x: np.ndarray,
    y: np.ndarray,
    target: tuple[np.ndarray, int],
    *,
    trials: int = 500,
    seed: int = 0,
    relation: Adjacency = "add-remove",
    deterministic: bool = True,
) -> Trials:
    """Train ``2 * trials`` times, half of them with the target, one after the other, in an order drawn by coins.

    After the first trial it trains twice more, with arrays and seeds of that trial. What is left over from one training to
    the next is no leak of the target; the order by coins keeps it from looking like one.

    Args:
        train: what is attacked. The arrays that it is given cannot be written to.
        x: features of the other records, ``(n, ...)``: whatever is worst for the target, not private.
        y: their labels, ``(n,)``.
        target: features ``(...)`` and label of the record that is looked for; see :func:`mislabelled`.
        trials: on either side, at least ``LEAST``.
        seed: the trainings have seeds of their own that follow from it.
        relation: add-remove adds the target to the others; replace-one puts it in the place of the last one.
        deterministic: whether the same arrays and seed must give the same answer, to the last bit. False is for a training
            that differs by rounding alone, as on a GPU; that its trials are independent is taken on trust then.

    Raises:
        InputError: shapes that do not fit, too few trials, a training that gives back no function, or one that does not
            draw from its seed alone.
    """
    x, y = np.asarray(x), np.asarray(y)
    _check(x, y, target, trials)
    kept = len(x) if relation == "add-remove" else len(x) - 1
    with_target = np.concatenate([x[:kept], target[0][None]]), np.concatenate([y[:kept], [target[1]]]).astype(y.dtype)
    sides = with_target, (x.view(), y.view())
    for part in itertools.chain(*sides):
        part.flags.writeable = False
    found = np.empty((2, trials))
    numbers = np.random.SeedSequence(seed)
    seeds = numbers.generate_state(2 * trials, dtype=np.uint32).reshape(trials, 2)
    first = np.random.default_rng(numbers.spawn(1)[0]).integers(2, size=trials)
    for trial in range(trials):
        for side in (first[trial], 1 - first[trial]):
            found[side, trial] = _answer(train, sides[side], target, seeds[trial, side])
        if trial == 0 and deterministic:
            again = [_answer(train, sides[side], target, seeds[0, side]) for side in (0, 1)]
            _check_repeated(found[:, 0], np.array(again))
        if trial == 1 and (found[:, 0] == found[:, 1]).all():
            raise InputError(
                "`train`: gave the same answers for two seeds, so it draws its noise from elsewhere, or has none; draw all"
                " of it from the seed"
            )
    return Trials(found[0], found[1])


def examine_membership(
    trials: Trials, epsilon: float, delta: float, confidence: float = 0.95, mechanism: NoisySgd | None = None
) -> Membership:
    """Return what the trials say of a claim.

    Args:
        trials: of :func:`repeat`.
        epsilon: that is claimed; ``inf`` for none.
        confidence: that the bounds hold with, in [0.5, 1).
        mechanism: of the training, if it adds Gaussian noise to sums of gradients. Then it is compared with all trainings
            like it that have other noise, which says more from few trials.

    Guarantees:
        For an (epsilon, delta)-DP training, of which the mechanism is true if it is given, the bounds exceed epsilon with
        probability at most 1 - ``confidence``, if trainings are independent.
    """
    check_confidence(confidence)
    each = 1 - (1 - confidence) / 2
    inside, outside = _scores(trials)
    level = _best_level(inside[::2], outside[::2])[1]
    alarms, misses = _errors(inside[1::2], outside[1::2], level, each)

    def refuted(curve: TradeOff) -> bool:
        return misses < misses_of(curve, alarms)

    return Membership(
        epsilon,
        delta,
        pair_bound(inside, outside, delta, each),
        None if mechanism is None else noise_bound(mechanism, delta, refuted),
        tuple(_points(inside, outside)),
        len(inside),
        confidence,
    )


def misses_of(curve: TradeOff, alarms: float) -> float:
    """f(alpha): the least share of misses of a test with this share of false alarms."""
    slopes, values = curve.lines()
    return float((slopes * (1 - alarms) + values).max())


def _check(x: np.ndarray, y: np.ndarray, target: tuple[np.ndarray, int], trials: int) -> None:
    if len(x) != len(y) or len(x) == 0:
        raise InputError(f"`x`, `y`: {len(x)} and {len(y)} rows; give as many labels as records, and one at least")
    if np.shape(target[0]) != x.shape[1:]:
        raise InputError(f"`target`: of shape {np.shape(target[0])}, and records are {x.shape[1:]}")
    if trials < LEAST:
        raise InputError(f"`trials`: {trials} trainings prove nothing; take at least {LEAST}, better 500")


def _answer(
    train: Training, records: tuple[np.ndarray, np.ndarray], target: tuple[np.ndarray, int], seed: np.uint32
) -> float:
    """Log-odds of the target's label by a model of these records."""
    model = train(*records, int(seed))
    if not callable(model):
        raise InputError(
            f"`train`: gave back a value of type {type(model).__name__}; give back a function from records to logits"
        )
    return _sureness(model(target[0][None]), target[1])


def _check_repeated(once: np.ndarray, again: np.ndarray) -> None:
    """Refuse a training that is no function of arrays and seed: its trials could depend on each other."""
    if (once != again).any():
        raise InputError(
            "`train`: gave two answers for the same arrays and seed, so it keeps something between calls or draws from"
            " elsewhere; draw all of it from the seed, or pass `deterministic=False` if it differs by rounding alone"
        )


def _sureness(logits: np.ndarray, label: int) -> float:
    """Log-odds of the label: from minus to plus 1e6, also where a model gives no numbers."""
    logits = np.asarray(logits, dtype=np.float64)
    if logits.ndim != 2 or len(logits) != 1 or not 0 <= label < logits.shape[1] or logits.shape[1] < 2:
        raise InputError(
            f"`train`: its model gave an array of shape {logits.shape} for one record; it should give a row of logits, one"
            f" for each class, and the target's label is {label}"
        )
    others = np.delete(logits[0], label)
    with np.errstate(invalid="ignore"):
        odds = logits[0, label] - logsumexp(others)
    return float(np.clip(np.nan_to_num(odds, nan=-1e6), -1e6, 1e6))


def _scores(trials: Trials) -> tuple[np.ndarray, np.ndarray]:
    """The one of both kinds of scores that tells the deciding half apart best."""
    shapes = [(half.mean(), max(half.std(), 1e-9)) for half in (trials.inside[::2], trials.outside[::2])]

    def ratio(values: np.ndarray) -> np.ndarray:
        (mean, spread), (other, others) = shapes
        return np.asarray(
            ((values - other) / others) ** 2 / 2 - ((values - mean) / spread) ** 2 / 2 + np.log(others / spread)
        )

    plain = trials.inside, trials.outside
    kinds = (plain, (-plain[0], -plain[1]), (ratio(plain[0]), ratio(plain[1])))
    return max(kinds, key=lambda kind: _best_level(kind[0][::2], kind[1][::2])[0])


def _best_level(inside: np.ndarray, outside: np.ndarray) -> tuple[float, float]:
    """The largest mu that a threshold on the score shows, and that threshold."""
    levels = np.unique(np.quantile(np.concatenate([inside, outside]), np.linspace(0, 1, 101)))
    levels = np.concatenate([(levels[1:] + levels[:-1]) / 2, levels])
    return max((_mu(*_errors(inside, outside, level, STRICT)), float(level)) for level in levels)


def _mu(alarms: float, misses: float) -> float:
    return float(ndtri(1 - alarms) - ndtri(misses))


def _errors(inside: np.ndarray, outside: np.ndarray, level: float, confidence: float) -> tuple[float, float]:
    """Upper bounds on false alarms and misses of "the target is in where its score is above the level", together."""
    each = 1 - (1 - confidence) / 2
    alarms = clopper_pearson(int((outside > level).sum()), len(outside), each)
    return alarms, clopper_pearson(int((inside <= level).sum()), len(inside), each)


def _points(inside: np.ndarray, outside: np.ndarray) -> Iterable[Point]:
    """Hits at few false alarms: thresholds of the deciding half, on the half that is counted."""
    for share in LEVELS:
        if share * len(outside[::2]) >= 1:
            level = np.quantile(outside[::2], 1 - share)
            yield Point(_interval(outside[1::2] > level), _interval(inside[1::2] > level))


def _interval(held: np.ndarray) -> tuple[float, float, float]:
    count, whole = int(held.sum()), len(held)
    low = 1 - clopper_pearson(whole - count, whole, 0.975)
    return count / whole, low, clopper_pearson(count, whole, 0.975)


# --- private digits ---------------------------------------------------------------------------------------------------

RECORDS, STEPS, EPSILON, DELTA, LR = 200, 5, 10.0, 1e-5, 0.2
ROWS = {"worst start": (500, 1.0), "random start": (0, 1.0), "a third of the noise": (500, 1 / 3)}
"""Steps of training before, on the records but for the target; and the share of the noise that is added."""


class Attacked:
    """A training of digits, as often as one likes.

    Args:
        x, y: records that the start may know.
        warm: steps on them.
        share: of the noise that is added.
    """

    def __init__(self, x: np.ndarray, y: np.ndarray, warm: int, share: float) -> None:
        self.share = share
        torch.manual_seed(0)
        self.start = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
        optimizer = torch.optim.Adam(self.start.parameters(), 0.01)
        for _ in range(warm):
            optimizer.zero_grad()
            nn.functional.cross_entropy(self.start(torch.tensor(x)), torch.tensor(y)).backward()
            optimizer.step()

    def __call__(self, x: np.ndarray, y: np.ndarray, seed: int) -> Model:
        """Weights after some private steps, as a function of records."""
        model = copy.deepcopy(self.start)
        loop = PrivateLoop(
            model, nn.CrossEntropyLoss(reduction="none"), x, y,
            batch_size=RECORDS, records=RECORDS, steps=STEPS, epsilon=EPSILON, delta=DELTA,
            sampling=FastSource(2 * seed), noise=FastSource(2 * seed + 1), ledger=Ledger(),
        )  # fmt: skip
        (self.mechanism,) = loop.entry.of(NoisySgd)
        lessened = replace(self.mechanism, noise_multiplier=self.mechanism.noise_multiplier * self.share)  # the bug
        loop.gradients.plan = replace(loop.gradients.plan, mechanism=lessened)
        optimizer = torch.optim.SGD(model.parameters(), LR)
        for step in loop:
            step.backward()
            optimizer.step()
        return lambda records: model(torch.tensor(records)).detach().numpy()


def attack(row: str, trials: int, seed: int) -> tuple[Membership, NoisySgd]:
    """What is found in one row.

    Args:
        row: of ``ROWS``.
        trials: on either side.
        seed: of the trainings.
    """
    digits = load_digits()
    x, y = (digits.data[:RECORDS] / 16).astype(np.float32), digits.target[:RECORDS]
    training = Attacked(x[1:], y[1:], *ROWS[row])
    answers = repeat(training, x[1:], y[1:], mislabelled(x, y, 10), trials=trials, seed=seed)
    return examine_membership(answers, EPSILON, DELTA, mechanism=training.mechanism), training.mechanism


def roc(found: Membership, mechanism: NoisySgd) -> Chart:
    """Return the tests of an attack, with intervals, beside the certified trade-off curve and the nominal one."""
    claims = [("certified: no attack is above", "-", mechanism)]
    if mechanism.nominal_sensitivity not in (None, mechanism.sensitivity):
        believed = replace(mechanism, sensitivity=mechanism.nominal_sensitivity, nominal_sensitivity=None)
        claims.append(("nominal: claimed, not proven", "--", believed))
    series = []
    for label, style, claim in claims:
        curve = curves((claim,))
        series.append(
            Series(label, list(zip(curve.false_alarms.tolist(), (1 - curve.misses).tolist(), strict=True)), style)
        )
    points = [(point.false_alarms[0], point.hits[0]) for point in found.points]
    series.append(Series("attack, with 95 % intervals", points, "o", [point.hits[1:] for point in found.points]))
    series.append(Series("nothing learnt", [(share, share) for share in np.geomspace(1e-4, 1).tolist()], ":"))
    return Chart("", "false alarms", "hits", series, {"xscale": "log", "xlim": (5e-4, 1), "ylim": (0, 1.02)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", default=",".join(ROWS), help="some of them, with commas between")
    parser.add_argument("--plot", help="of the first row and seed: the ROC beside the certified trade-off curve")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = {}
    for row in given.rows.split(","):
        found[row] = [attack(row, given.trials, seed) for seed in range(given.seeds)]
        bounds = [f"{one.lower_bound:.2f}" for one, _ in found[row]]
        print(f"{row}: certified {EPSILON:g}, at least {', '.join(bounds)}", file=sys.stderr)
    if given.plot is not None:
        from dpltm.tickets.charts import write_charts

        write_charts(Path(given.plot), [roc(*next(iter(found.values()))[0])], "digits, last weights after 5 steps")
    print(json.dumps({row: [one.to_json() for one, _ in each] for row, each in found.items()}, indent=1))


if __name__ == "__main__":
    main()
