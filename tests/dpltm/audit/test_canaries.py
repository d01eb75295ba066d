"""Canaries in a training: what they add to a sum, what is seen of them, and that they disturb nothing else."""

import itertools
import math
import re
from unittest import mock

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import nn

from dpltm import PrivateLoop
from dpltm.errors import InputError
from dpltm.filters import FILTERS, Clip, make_filter
from dpltm.networks.masks import Mask
from dpltm.randomness.noise import FastSource
from dpltm.training import descent as training
from dpltm.training.canaries import Canaries
from refusals import refused

LAYERS = torch.tensor([0] * 70 + [1] * 30)


def canaries(filter, count=20, rate=0.5, replace_one=False, seed=0, layers=LAYERS):
    return Canaries(count, filter, layers, rate, replace_one, FastSource(seed))


def added(planted, which):
    """What one canary adds to a sum."""
    total, before = torch.zeros(len(LAYERS), dtype=torch.float64), planted.extra
    planted.split(np.array([5 + list(planted._records).index(which)]), 5)
    planted.add_to(total)
    assert planted.extra == before
    return total


@pytest.mark.parametrize("name", FILTERS)
def test_what_a_canary_adds_is_within_the_bound_and_its_own(name):
    filter = make_filter(name)
    planted = canaries(filter)
    mine = [added(planted, one) for one in planted._records]
    touched = torch.stack([one != 0 for one in mine]).sum(0)
    assert int(touched.max()) == 1  # no coordinate is that of two canaries
    for one, number in zip(mine, planted._records, strict=True):
        assert float(one.norm()) == pytest.approx(planted.observations.norms[number])
        assert 0 < float(one.norm()) <= filter.certified_bound(100) * (1 + 1e-6)


@pytest.mark.parametrize("name", ["clip", "per-layer", "radial-tanh", "auto", "normalize", "tanh-clip"])
def test_filters_that_bound_the_norm_are_attacked_at_their_bound(name):
    assert canaries(make_filter(name)).observations.norms == pytest.approx(np.ones(20), rel=1e-6)


def test_a_filter_without_a_bound_is_attacked_on_all_coordinates_that_there_are():
    norms = canaries(make_filter("tanh", no_pre_clip=True)).observations.norms
    assert norms == pytest.approx(np.full(20, math.sqrt(5)))


def test_a_sample_is_split_into_records_and_canaries_that_are_in():
    planted = canaries(Clip(1.0))
    assert planted.extra == planted.observations.included.sum()
    assert planted.split(np.array([0, 3, 4, 5, 6]), 5).tolist() == [0, 3, 4]
    total = torch.zeros(100, dtype=torch.float64)
    planted.add_to(total)
    expected = np.flatnonzero(planted.observations.included)[:2] * 5
    assert total.nonzero().flatten().tolist() == expected.tolist()


def test_under_replace_one_every_canary_is_in_with_one_sign_or_the_other():
    planted = canaries(Clip(2.0), replace_one=True)
    assert planted.extra == 20
    sums = [float(added(planted, one).sum()) for one in range(20)]
    assert sums == [2.0 if one else -2.0 for one in planted.observations.included]


@pytest.mark.parametrize(("rate", "replace_one"), [(0.3, False), (1.0, False), (0.3, True)])
def test_scores_are_log_likelihood_ratios(rate, replace_one):
    planted = canaries(Clip(2.0), rate=rate, replace_one=replace_one)
    generator, expected = np.random.default_rng(1), np.zeros(20)
    for _ in range(3):
        released = 1.5 * generator.standard_normal(100) + 1
        planted.observe(torch.from_numpy(released) / 4, 4.0, 1.5)
        at = released[::5]
        inside = (1 - rate) * norm.pdf(at, 0, 1.5) + rate * norm.pdf(at, 2, 1.5)
        other = (
            (1 - rate) * norm.pdf(at, 0, 1.5) + rate * norm.pdf(at, -2, 1.5) if replace_one else norm.pdf(at, 0, 1.5)
        )
        expected += np.log(inside / other)
    assert planted.observations.scores == pytest.approx(expected)


def test_coins_and_scores_go_on_in_another_process():
    first, second = canaries(Clip(1.0)), canaries(Clip(1.0), seed=1)
    first.observe(torch.arange(100.0), 1.0, 2.0)
    training.restore(second.state(), first.state())
    assert (second.observations.included == first.observations.included).all()
    for one in (first, second):
        one.observe(torch.arange(100.0), 1.0, 2.0)
    assert (second.observations.scores == first.observations.scores).all()
    assert "scores has shape" in refused(training.restore, canaries(Clip(1.0), count=19).state(), first.state())


def records(width=20):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(60, width, generator=generator), torch.randint(0, 5, (60,), generator=generator)


def looped(seed=0, model=None, width=20, **settings):
    """A loop that has run, on a network of 1,045 coordinates."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 40), nn.Tanh(), nn.Linear(40, 5)) if model is None else model
    given = {"batch_size": 30.0, "steps": 60, "noise_multiplier": 8.0, "delta": 1e-3, "records": 60, "audit": 500}
    sources = {"sampling": FastSource(seed), "noise": FastSource(seed + 100)}
    loop = PrivateLoop(
        model, nn.CrossEntropyLoss(reduction="none"), *records(width), **{**given, **sources, **settings}
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for step in loop:
        step.backward()
        optimizer.step()
    return loop


QUICK = {("clip", "add-remove"), ("clip", "replace-one"), ("tanh", "add-remove"), ("auto", "add-remove")}


@pytest.mark.one_of(2)
@pytest.mark.parametrize(
    ("name", "adjacency"),
    [
        pytest.param(*case, marks=() if case in QUICK else pytest.mark.long)
        for case in itertools.product(FILTERS, ("add-remove", "replace-one"))
    ],
)
def test_a_correct_loop_survives_its_audit(name, adjacency):
    found = looped(filter=make_filter(name), adjacency=adjacency).audit()
    assert "certified" not in found.violates
    assert found.facts["canaries"] == 500
    assert found.lower_bound <= found.certified.epsilon


@pytest.mark.long
def test_the_attack_is_a_good_one():
    """Nothing would survive one that sees nothing: at epsilon about 3.4, a bound of at least a fifth, each of three times.

    Delta is far below 1 / m: the counting bound pays for m delta, and is 0 where that is near the allowed error.
    """
    for seed in range(3):
        found = looped(seed=seed, noise_multiplier=5.0, delta=1e-5).audit()
        assert 3 < found.certified.epsilon < 4
        assert found.lower_bound > 0.7
        assert found.facts["bounds"]["f_dp"] > found.facts["bounds"]["one_run"] > 0.4


def test_canaries_are_the_only_thing_that_an_audit_adds_to_a_sum():
    model = nn.Linear(20, 5)
    mask = Mask({"weight": torch.arange(100).reshape(5, 20) % 2 == 0, "bias": torch.ones(5, dtype=torch.bool)})
    seen = []

    def noiseless(values, *_):
        seen.append(values.copy())
        return values.copy()

    settings = {"steps": 1, "batch_size": 60.0, "mask": mask, "provenance": "data-free", "model": model}
    with mock.patch.object(training, "gaussian_mechanism", noiseless):
        torch.nn.init.zeros_(model.weight)
        torch.nn.init.zeros_(model.bias)
        state = {name: value.clone() for name, value in model.state_dict().items()}
        loop = looped(audit=11, **settings)
        model.load_state_dict(state)
        looped(audit=None, **settings)
    included = loop.gradients.canaries.observations.included
    expected = np.zeros(55)
    expected[np.flatnonzero(included) * 5] = 1.0
    assert seen[0] - seen[1] == pytest.approx(expected, abs=1e-5)


REFUSED = [
    *(
        (
            {"audit": count},
            f"`audit`: {count:,} canaries: ask for 6 or more, since fewer prove nothing at 95 % confidence, and at most"
            " 1,045, since each needs a live coordinate",
        )
        for count in (5, 1046)
    ),
    ({"noise_multiplier": 0.0}, "`audit`: without noise there is no claim to attack; set `noise_multiplier` above 0"),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED)
def test_an_audit_that_cannot_be_is_refused_before_anything_is_spent(settings, message):
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        looped(**settings)


def test_findings_that_cannot_be_are_refused():
    model = nn.Linear(20, 5)
    settings = {"batch_size": 30.0, "steps": 2, "noise_multiplier": 8.0, "delta": 1e-3}
    loop = PrivateLoop(model, nn.CrossEntropyLoss(reduction="none"), *records(), audit=100, **settings)
    for unseen in (loop, looped(audit=None)):
        assert refused(unseen.audit).startswith("`audit`: no canaries were in the steps of this loop")
    with pytest.raises(InputError, match=re.escape("`confidence`: 0.99 needs at least 8 canaries, and the run has 6")):
        looped(audit=6).audit(0.99)
    with pytest.raises(InputError, match=re.escape("`confidence`: 1 is not at least 0.5 and below 1, such as 0.95")):
        looped(audit=6).audit(1.0)


@pytest.mark.long
def test_noise_of_a_third_of_the_scale_is_found():
    wide = {"model": nn.Linear(200, 25), "width": 200, "audit": 5000, "noise_multiplier": 18.0, "delta": 1e-5}
    assert looped(**wide).audit().violates == []
    whole = training.gaussian_mechanism
    with mock.patch.object(
        training, "gaussian_mechanism", lambda values, std, *others: whole(values, std / 3, *others)
    ):
        assert looped(**wide).audit().violates == ["certified"]
