"""The three stages as a program: the mechanisms alone, with a ledger in memory.

    python examples/three_stages.py

One half of scikit-learn's digits is public and yields the tickets; the other half is private. The command line does the
same with artifacts on disk (``dpltm demo``).
"""

import numpy as np
import torch

from dpltm.data import load, scale
from dpltm.filters import make_filter
from dpltm.generation import GenerationConfig, accuracy, count_correct, generate
from dpltm.models import ModelSpec, build
from dpltm.noise import SecureSource
from dpltm.privacy.calibration import calibrate_noise
from dpltm.privacy.events import SelectionEvent, TrainingEvent
from dpltm.privacy.ledger import Ledger
from dpltm.privacy.mechanisms import NoisySgd, Selection
from dpltm.privacy.parts import OnRecord
from dpltm.privacy.report import report
from dpltm.sampling import Records
from dpltm.selection import SelectionPlan, draw
from dpltm.training import TrainingConfig, sensitivity, train

EPSILON, EPS1, DELTA = 3.0, 0.3, 1e-5


def tensors(split, dataset):
    return torch.from_numpy(scale(split.x, dataset.bounds)), torch.from_numpy(split.y)


def main() -> None:
    torch.set_num_threads(1)
    public, private = load("digits", subset="0.0:0.5"), load("digits", subset="0.5:1.0")
    spec = ModelSpec("mlp:100", private.features, private.classes)

    # 1. Tickets from the public half: ordinary training, no cost to the private half.
    config = GenerationConfig(rounds=5, iterations=300, batch_size=64)
    tickets = generate(spec, *tensors(public.train, public), config)

    # 2. One draw on the private half. The event is entered before the winner is known.
    ledger = Ledger()
    records = private.reference()
    candidates = tickets.tickets[1:]
    plan = SelectionPlan(EPS1, tuple(ticket.mask.density for ticket in candidates), private.records, score="additive")
    ledger.append(
        SelectionEvent(
            records,
            Selection(plan.eps1, plan.certified_epsilon, plan.mechanism, adaptive=False),
            plan.score,
            plan.rule,
            plan.sensitivity,
            len(candidates),
            "example",
        )
    )
    model, (x, y) = build(spec), tensors(private.train, private)
    correct = []
    for ticket in candidates:
        model.load_state_dict(ticket.predictor)
        correct.append(count_correct(model, x, y))
    winner = candidates[draw(plan, np.array(correct), SecureSource())]

    # 3. DP training of the winner, with noise that spends what the budget has left.
    filter = make_filter("tanh")
    batch, steps = private.records / 4, 60
    bound = sensitivity(filter, winner.mask.live, "add-remove")
    sgd = NoisySgd(batch / private.records, steps, 1.0, bound)
    sgd = calibrate_noise(EPSILON, DELTA, sgd, OnRecord(records, ledger.events))
    ledger.append(TrainingEvent(records, sgd, str(filter), winner.mask.live))
    model.load_state_dict(tickets.theta0)
    settings = TrainingConfig(filter, sgd.sampling_rate, steps, batch, sgd.noise_std, lr=1.0)
    train(model, winner.mask, Records(x, y), settings, sampling=SecureSource(), noise=SecureSource())

    certified = report(ledger.events, DELTA, "add-remove").certified
    print(f"winner: round {winner.round}, density {winner.mask.density:.1%}, {winner.mask.live} live coordinates")
    print(f"test accuracy {accuracy(model, *tensors(private.test, private)):.1%}")
    print(f"certified epsilon {certified.epsilon:.3f} at delta {certified.delta:g}, {certified.adjacency} one record")


if __name__ == "__main__":
    main()
