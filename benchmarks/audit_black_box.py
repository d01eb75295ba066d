"""How near does an attack on released weights alone come to what is certified? On digits, at certified epsilon 10.

Every training is of 200 digits, all of them in each step, by ``PrivateLoop`` with fast noise from its seed; a record under a
wrong label is in or out. ``worst start`` begins at weights that know the other records (Annamalai, De Cristofaro 2024);
``random start`` at weights that know nothing; ``a third of the noise`` is the first with a planted bug. Prints JSON.

    python benchmarks/audit_black_box.py [--trials 500] [--seeds 3] [--rows "worst start"] [--plot FILE]
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from dpltm import PrivateLoop
from dpltm.audit.black_box import Membership, Model, examine_membership, mislabelled, repeat
from dpltm.privacy.ledger import Ledger
from dpltm.privacy.mechanisms import NoisySgd
from dpltm.privacy.trade_off import curves
from dpltm.randomness.noise import FastSource
from dpltm.tickets.charts import Chart, Series

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
        loop.gradients.noise_std *= self.share  # the bug
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
