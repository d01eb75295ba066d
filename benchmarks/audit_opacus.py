"""Auditing somebody else: is what Opacus says of a training true, and would a bug be noticed?

    python benchmarks/audit_opacus.py [--trials 150]

The training is Opacus's own; dpltm repeats it with one record and without, and looks at the weights' answers alone. Then
a bug is planted: a third of the noise is added, and the accountant hears nothing of it. Needs `pip install opacus`.
"""

from __future__ import annotations

import argparse
import copy
import warnings

import numpy as np
import torch
from audit_black_box import Model, examine_membership, mislabelled, repeat
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpltm.privacy.mechanisms import NoisySgd

RECORDS, STEPS, NOISE, DELTA = 200, 5, 1.2, 1e-5


def opacus_training(start: nn.Module, x: np.ndarray, y: np.ndarray, seed: int, bug: bool) -> tuple[Model, float]:
    """A model after a few steps on all records, and the epsilon that Opacus says it has."""
    from opacus import PrivacyEngine

    generator, model = torch.Generator().manual_seed(seed), copy.deepcopy(start)
    engine, loss = PrivacyEngine(accountant="prv"), nn.CrossEntropyLoss()
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), 0.2),
        data_loader=DataLoader(TensorDataset(torch.tensor(x), torch.tensor(y)), batch_size=len(x)),
        noise_multiplier=NOISE,
        max_grad_norm=1.0,
        poisson_sampling=False,
        noise_generator=generator,
    )
    optimizer.expected_batch_size = RECORDS  # a public number, whether or not the target is there
    if bug:
        add_noise = optimizer.add_noise

        def add_a_third() -> None:
            optimizer.noise_multiplier = NOISE / 3
            add_noise()
            optimizer.noise_multiplier = NOISE  # what the accountant is told

        optimizer.add_noise = add_a_third
    for _ in range(STEPS):
        for records, labels in loader:
            optimizer.zero_grad()
            loss(model(records), labels).backward()
            optimizer.step()
    return lambda records: model(torch.tensor(records)).detach().numpy(), engine.get_epsilon(DELTA)


def main(trials: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    digits = load_digits()
    x, y = (digits.data[:RECORDS] / 16).astype(np.float32), digits.target[:RECORDS]
    start = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    known = torch.optim.Adam(start.parameters(), 0.01)
    for _ in range(500):  # a bad start: the other records have nothing left to teach, so the target stands out
        known.zero_grad()
        nn.functional.cross_entropy(start(torch.tensor(x[1:])), torch.tensor(y[1:])).backward()
        known.step()
    for bug in (False, True):
        claimed = []

        def train(x: np.ndarray, y: np.ndarray, seed: int, bug: bool = bug, claimed: list[float] = claimed) -> Model:
            model, epsilon = opacus_training(start, x, y, seed, bug)
            claimed.append(epsilon)
            return model

        answers = repeat(train, x[1:], y[1:], mislabelled(x, y, 10), trials=trials)
        found = examine_membership(answers, max(claimed), DELTA, mechanism=NoisySgd(1.0, STEPS, NOISE))
        verdict = "REFUTED" if found.violates else "not refuted"
        name = "a third of the noise" if bug else "as it is"
        print(f"Opacus {name}: says {found.epsilon:.2f}, attack shows at least {found.lower_bound:.2f}: {verdict}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=150)
    main(parser.parse_args().trials)
