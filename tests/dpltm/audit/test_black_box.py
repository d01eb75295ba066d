"""Black-box attacks, ``benchmarks/audit_black_box.py``: trainings whose privacy is known exactly, and refusals."""

import math
import re
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
from scipy.stats import binom, norm

from dpltm import PrivateLoop
from dpltm.audit import bounds
from dpltm.audit.bounds import TradeOff
from dpltm.errors import InputError
from dpltm.privacy import gdp
from dpltm.privacy.accountant import profile
from dpltm.privacy.ledger import Ledger
from dpltm.privacy.mechanisms import NoisySgd
from dpltm.randomness import noise
from programs import ROOT, program

audit_black_box = program("benchmarks/audit_black_box.py")
examine_membership, repeat = audit_black_box.examine_membership, audit_black_box.repeat
LEAST, Trials, mislabelled = audit_black_box.LEAST, audit_black_box.Trials, audit_black_box.mislabelled

X, Y = np.zeros((5, 1)), np.zeros(5, dtype=int)
TARGET = np.ones(1), 1
GAUSSIAN = NoisySgd(1.0, 1, 0.5)
"""A Gaussian mechanism with mu 2."""


def noisy_sum(x, y, seed, scale=0.5, shape=lambda total: total):
    """A model whose logits tell the noisy sum of its records."""
    del y
    total = shape(x.sum() + scale * np.random.default_rng(seed).standard_normal())
    return lambda records: np.stack([np.zeros(len(records)), np.full(len(records), total)], axis=1)


def trials(count, mu, seed):
    draw = np.random.default_rng(seed)
    return Trials(draw.standard_normal(count) + mu, draw.standard_normal(count))


def test_a_gaussian_training_is_attacked_nearly_as_well_as_anything_could():
    found = examine_membership(repeat(noisy_sum, X, Y, TARGET, trials=1500), math.inf, 1e-5, mechanism=GAUSSIAN)
    epsilon = gdp.epsilon(1e-5, 2.0)
    assert 0.75 * epsilon < found.by_trade_off <= epsilon
    assert 0 < found.by_counting <= epsilon
    assert found.lower_bound == found.by_trade_off
    assert not found.violates


def test_half_of_the_noise_is_noticed():
    attacked = repeat(partial(noisy_sum, scale=0.25), X, Y, TARGET, trials=300)
    claimed = gdp.epsilon(1e-5, 2.0)
    found = examine_membership(attacked, claimed, 1e-5, mechanism=GAUSSIAN)
    assert found.violates
    assert found.to_json()["violates"] == ["claimed"]
    by_counting = examine_membership(attacked, 2.0, 1e-5)
    assert (by_counting.by_trade_off, by_counting.violates) == (None, True)


@pytest.mark.parametrize("way", [1, -1])
def test_a_target_that_makes_a_model_more_sure_or_less(way):
    attacked = repeat(partial(noisy_sum, scale=0.1, shape=lambda total: way * total), X, Y, TARGET, trials=200)
    assert examine_membership(attacked, math.inf, 1e-5).lower_bound > 2


def test_answers_that_stand_out_on_both_sides():
    """No threshold tells wide answers from narrow ones of the same mean; the likelihood ratio does."""
    draw = np.random.default_rng(3)
    found = examine_membership(Trials(10 * draw.standard_normal(600), draw.standard_normal(600)), math.inf, 1e-5)
    assert found.lower_bound > 2.5


@pytest.mark.parametrize("audits", [10, pytest.param(100, marks=pytest.mark.long)])
def test_a_true_epsilon_is_exceeded_no_oftener_than_it_may(monkeypatch, audits):
    """Audits at 95 %, each with its own score and threshold, of a training that is exactly as private as it says.

    Whether a bound by trade-off functions exceeds the true epsilon is whether that is refuted, which is quicker asked.
    """
    monkeypatch.setattr(bounds, "family_bound", lambda refuted, _, start: math.inf if refuted(start) else 0.0)
    epsilon = gdp.epsilon(1e-5, 2.0)
    above = [examine_membership(trials(200, 2.0, seed), epsilon, 1e-5, mechanism=GAUSSIAN) for seed in range(audits)]
    assert sum(found.violates for found in above) <= binom.ppf(0.999, audits, 0.05)


def test_misses_of_a_curve_are_those_of_the_gaussian():
    one = profile((GAUSSIAN,))
    curve = TradeOff.of(one.epsilon, one.delta)
    for alarms in (0.001, 0.02, 0.3):
        exact = norm.cdf(norm.ppf(1 - alarms) - 2)
        assert exact - 0.01 < audit_black_box.misses_of(curve, alarms) <= exact + 1e-6


def test_points_of_the_roc():
    found = examine_membership(trials(4000, 2.0, 0), math.inf, 1e-5)
    assert [len(found.points), len(examine_membership(trials(100, 2.0, 0), math.inf, 1e-5).points)] == [4, 2]
    for point, share in zip(found.points, (0.001, 0.01, 0.1, 0.5), strict=True):
        value, low, high = point.hits
        assert low <= value <= high
        assert low - 0.05 <= norm.sf(norm.isf(share) - 2) <= high + 0.05
        assert point.false_alarms[1] <= share <= point.false_alarms[2]


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_what_a_training_is_given(relation):
    seen = []

    def train(x, y, seed):
        seen.append((x.ravel().tolist(), y.tolist(), seed))
        return noisy_sum(x, y, seed)

    repeat(train, X, Y, TARGET, trials=LEAST, relation=relation)
    assert sorted(seen[:2]) == sorted(seen[2:4]), "the first trial is repeated, on the same arrays with the same seeds"
    del seen[2:4]
    kept = 5 if relation == "add-remove" else 4
    assert {(tuple(x), tuple(y)) for x, y, _ in seen} == {
        ((0,) * kept + (1,), (0,) * kept + (1,)),
        ((0,) * 5, (0,) * 5),
    }
    assert len({seed for _, _, seed in seen}) == len(seen) == 2 * LEAST


def test_a_training_cannot_write_to_its_records():
    def train(x, y, seed):
        x += 1
        return noisy_sum(x, y, seed)

    with pytest.raises(ValueError, match="read-only"):
        repeat(train, X, Y, TARGET, trials=LEAST)
    assert X.flags.writeable


def test_a_model_that_gives_no_numbers_is_a_score_like_any():
    def train(x, y, seed):
        del y
        return lambda _: np.full((1, 2), np.nan) if x.sum() else np.random.default_rng(seed).normal(size=(1, 2))

    assert examine_membership(repeat(train, X, Y, TARGET, trials=100), 1.0, 1e-5).violates


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"y": Y[:3]}, "5 and 3 rows"),
        ({"x": X[:0], "y": Y[:0]}, "0 and 0 rows"),
        ({"target": (np.ones(2), 1)}, r"of shape \(2,\), and records are \(1,\)"),
        ({"target": (np.ones(1), 2)}, "the target's label is 2"),
        ({"trials": LEAST - 1}, "39 trainings prove nothing"),
        ({"train": lambda x, y, _: noisy_sum(x, y, 7)}, "draws its noise from elsewhere"),
        (
            {"train": lambda *_: 3},
            "^`train`: gave back a value of type int; give back a function from records to logits$",
        ),
        ({"train": lambda *_: lambda _: np.zeros(3)}, r"of shape \(3,\) for one record"),
    ],
)
def test_refusals(change, said):
    given = {"train": noisy_sum, "x": X, "y": Y, "target": TARGET, "trials": LEAST, **change}
    with pytest.raises(InputError, match=said):
        repeat(given.pop("train"), given.pop("x"), given.pop("y"), given.pop("target"), **given)


TWO_ANSWERS = (
    "`train`: gave two answers for the same arrays and seed, so it keeps something between calls or draws from elsewhere;"
    " draw all of it from the seed, or pass `deterministic=False` if it differs by rounding alone"
)


def counting(calls: list[int], scale: float = 1.0):
    """A training that looks at no record, and whose answer is how often it was called, with noise from the seed."""

    def train(x, y, seed):
        del x
        calls.append(len(calls))
        total = scale * len(calls) + np.random.default_rng(seed).normal()
        return noisy_sum(np.zeros(1), y, seed, 0.0, lambda _: total)

    return train


def unseeded(x, y, seed):
    del seed
    return noisy_sum(x, y, None)


@pytest.mark.parametrize("training", [counting([]), unseeded])
def test_a_training_that_is_no_function_of_its_seed_is_refused_after_the_first_trial(training):
    calls = []

    def train(x, y, seed):
        calls.append(seed)
        return training(x, y, seed)

    with pytest.raises(InputError) as refusal:
        repeat(train, X, Y, TARGET, trials=LEAST)
    assert str(refusal.value) == TWO_ANSWERS
    assert sorted(calls) == sorted(2 * calls[:2])


def test_a_training_that_is_only_nearly_deterministic_can_be_let_through():
    repeat(counting([], 1e-9), X, Y, TARGET, trials=LEAST, deterministic=False)


def test_calls_that_alternate_do_not_look_like_a_leak():
    """Every other call answers otherwise. In a fixed order of sides that would tell them apart with certainty."""
    calls = []

    def train(x, y, seed):
        del x
        calls.append(seed)
        total = 10.0 * (len(calls) % 2) + np.random.default_rng(seed).normal()
        return noisy_sum(np.zeros(1), y, seed, 0.0, lambda _: total)

    answers = repeat(train, X, Y, TARGET, trials=200, deterministic=False)
    assert examine_membership(answers, 0.5, 1e-5).lower_bound < 0.5
    swapped = np.count_nonzero(answers.inside > 5)
    assert 60 < swapped < 140, "a fair coin"


def test_a_target_with_a_wrong_label():
    record, label = mislabelled(np.eye(3), np.array([0, 1, 2]), 3, 2)
    assert (record.tolist(), label) == ([0, 0, 1], 0)


@pytest.mark.long
def test_a_private_loop_is_attacked_by_its_last_weights():
    """Least squares of one weight for each class, all records in every step: the target's gradient is the clipped one."""
    torch = pytest.importorskip("torch")
    mechanism = []

    def train(x, y, seed):
        model = torch.nn.Linear(1, 2, bias=False)
        torch.nn.init.zeros_(model.weight)
        bits = {name: noise.FastSource(2 * seed + at) for at, name in enumerate(("sampling", "noise"))}
        loss = torch.nn.CrossEntropyLoss(reduction="none")
        given = {"batch_size": 6, "records": 6, "steps": 2, "epsilon": 20.0, "delta": 1e-5, "ledger": Ledger()}
        loop = PrivateLoop(model, loss, x, y, **given, **bits)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for step in loop:
            step.backward()
            optimizer.step()
        mechanism[:] = [loop.mechanism]
        return lambda records: model(torch.as_tensor(records, dtype=torch.float32)).detach().numpy()

    attacked = repeat(train, X, Y, (np.full(1, 50.0), 1), trials=100)
    found = examine_membership(attacked, 20.0, 1e-5, mechanism=mechanism[0])
    assert 8 < found.lower_bound <= 20


@pytest.mark.long
def test_a_bug_in_another_library_is_noticed():
    """Few trainings of Opacus: what it says stands, and falls where a third of the noise is added."""
    command = [sys.executable, str(ROOT / "benchmarks/audit_opacus.py"), "--trials", "80"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = re.findall(r"says (\S+), attack shows at least (\S+): (.+)", done.stdout)
    assert [verdict for _, _, verdict in found] == ["not refuted", "REFUTED"]
    assert all((float(bound) > float(claim)) == (verdict == "REFUTED") for claim, bound, verdict in found)
