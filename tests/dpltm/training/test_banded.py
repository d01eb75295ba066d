"""Trainings with banded noise: who enters which step, what is released, going on, and what it does not go with."""

import numpy as np
import pytest
import torch

import dpltm
from descents import keyed_descent
from dpltm.errors import DpltmError
from dpltm.networks import ModelSpec, build
from dpltm.privacy.accountant import epsilon
from dpltm.privacy.calibration import calibrate_noise
from dpltm.privacy.ledger import Ledger
from dpltm.privacy.mechanisms import BandedSgd, NoisySgd
from dpltm.randomness.banded_noise import norm, optimal_strategy, squared_error
from dpltm.randomness.noise import source_of
from dpltm.training import descent as module
from dpltm.training.descent import NoisyGradients
from gradient_cases import some_mask, toy_data
from refusals import refused

STRATEGY, STEPS = (1.0, 0.6, 0.4), 8
X = np.random.default_rng(0).integers(0, 256, (120, 5), dtype=np.uint8)
Y = np.arange(120) % 3
SETTINGS = {"bounds": (0, 255), "classes": 3, "steps": 12, "batch_size": 15, "noise_multiplier": 1.0, "delta": 1e-4}


def descent(**more):
    return keyed_descent(
        **{"strategy": STRATEGY, "steps": STEPS, "expected_batch": 6.0, "optimizer": "momentum", **more}
    )


def test_each_record_enters_steps_of_its_own_alone(monkeypatch):
    """The coins of Poisson sampling are as before; of those that fell, the part whose turn it is."""
    taken, inner = [], NoisyGradients._draw

    def draw(gradients):
        sample = inner(gradients)
        taken.append(set(sample[0].tolist()))
        return sample

    monkeypatch.setattr(NoisyGradients, "_draw", draw)
    made = descent()
    made.run()
    parts = np.arange(len(toy_data()[0])) * 7 % 3
    for step, entered in enumerate(taken):
        assert entered <= set(np.flatnonzero(parts == step % 3).tolist())
    monkeypatch.setattr(NoisyGradients, "_draw", inner)
    whole = descent(strategy=())
    for step, entered in enumerate(taken):
        everyone = set(whole.gradients._draw()[0].tolist())
        assert entered == {record for record in everyone if parts[record] == step % 3}
    assert all(taken)


def test_answers_are_sums_and_noise_by_the_inverse_matrix(monkeypatch):
    """Dense oracle: what the optimizer gets, less the sums, is C^-1 Z, for the noise Z that was drawn."""
    sums, drawn, inner = [], [], module.noisy_mean

    def noisy(query, std, divisor, source):
        state = source.state
        drawn.append(inner(torch.zeros_like(query), std, 1.0, source_of(state)).double().numpy())
        return inner(query, std, divisor, source)

    def release(gradients, total):
        sums.append(total.numpy().copy())
        original(gradients, total)
        answers.append(torch.cat([each.grad.flatten() for each in gradients.parameters]).double().numpy())

    answers, original = [], NoisyGradients.release
    monkeypatch.setattr(module, "noisy_mean", noisy)
    monkeypatch.setattr(NoisyGradients, "release", release)
    made = descent(optimizer="sgd")
    made.run()
    live = some_mask(build(ModelSpec("mlp:6", 5, 3), 0))
    there = torch.cat([value.flatten() for value in live.values()]).numpy()
    c = sum(a * np.eye(STEPS, k=-i) for i, a in enumerate(STRATEGY))
    expected = np.array(sums) + np.linalg.solve(c, np.array(drawn))
    assert np.array(answers)[:, there] * 6.0 == pytest.approx(expected, abs=0.01)  # of a std of 0.7: the grid
    assert np.array(answers)[:, ~there] == pytest.approx(0, abs=0)


def test_the_entry_says_what_was_done():
    ledger = Ledger()
    run = dpltm.train("mlp:4", X, Y, noise="banded:4", ledger=ledger, **SETTINGS)
    (made,) = ledger.entries[-1].mechanisms
    strategy = optimal_strategy(4, 12)
    assert made == BandedSgd(0.5, 12, 1.0, norm(strategy), strategy=strategy)
    assert run.privacy.certified.epsilon == epsilon([NoisySgd(0.5, 3, 1.0)], 1e-4)
    assert "`noise` banded: correlated over 4 steps, of which a record may enter one" in run.privacy.notes


def test_the_best_number_of_bands_is_taken_for_a_budget():
    options = {**SETTINGS, "noise_multiplier": None, "epsilon": 4.0, "batch_size": 5, "steps": 100}
    ledger = Ledger()
    run = dpltm.train("mlp:4", X, Y, noise="banded", ledger=ledger, **options)
    (made,) = ledger.entries[-1].mechanisms
    found = {}
    for bands in (1, 2, 4, 8, 16):
        strategy = (1.0,) if bands == 1 else optimal_strategy(bands, 100)
        plan = BandedSgd(bands * 5 / 120, 100, 1.0, strategy=strategy)
        noise = calibrate_noise(4.0, 1e-4, plan).noise_multiplier
        found[bands] = (noise**2 * squared_error(strategy, 100)) ** 0.5
    alone = found.pop(1)
    assert len(made.strategy) == min(found, key=lambda bands: found[bands])
    said = next(note for note in run.privacy.notes if "banded" in note)
    assert f"is {found[len(made.strategy)] / alone:.2f} times that of independent noise" in said


BAD = {
    "banded:1": ({}, "banded:1 has no whole number of bands from 2, such as banded:8"),
    "bandet": ({}, "'bandet' is not one of secure, fast, nominal, banded; did you mean banded?"),
    "banded:16": (
        {},
        "16 bands, and 8 is the most where 12 steps take 15 records each from one of as many parts of 120",
    ),
    "banded:65": ({"batch_size": 1, "steps": 100}, "65 bands, and 64 is the most"),
    "banded:2": ({"batch_size": 100}, "2 bands, and 1 is the most"),
    "banded:3": ({"adjacency": "replace-one"}, "a replaced record may be in another part"),
    "banded:4": ({"microbatch": 3}, "`microbatch`: does not go with `noise` banded"),
    "banded:5": ({"audit": 10}, "`audit`: does not go with `noise` banded"),
    "banded:9": ({"sampling": "allocation:2"}, "`sampling`: does not go with `noise` banded"),
    "banded": ({}, "banded needs a budget to choose its bands by; name them, such as banded:8"),
    "banded:6": ({"units": np.arange(120) // 2, "unit": "person"}, "banded cuts single records into parts"),
    "banded:7": ({"x": 0 * X}, "a part of 7, one for each band, has no records; ask for fewer bands"),
}


@pytest.mark.parametrize("noise", BAD)
def test_what_cannot_be_is_refused_before_anything_is_spent(noise):
    given, said = BAD[noise]
    ledger = Ledger(unit=given.get("unit", "record"))
    options = {"x": X, "y": Y, **SETTINGS, **given}
    assert said in refused(dpltm.train, "mlp:4", noise=noise, ledger=ledger, kind=DpltmError, **options)
    assert not any(entry.paid for entry in ledger.entries)
