"""The private search: one entry pays for a secret number of tries, and nothing but the best of them is told."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from dpltm.errors import BudgetError
from dpltm.features.inputs import Services, tensors
from dpltm.networks import build
from dpltm.networks.masks import Mask
from dpltm.options.train import TrainOptions
from dpltm.options.tune import PrivateTuneOptions
from dpltm.privacy.accountant import epsilon
from dpltm.privacy.ledger import Ledger
from dpltm.privacy.mechanisms import GaussianRelease, NoisySgd, PrivateSearch
from dpltm.randomness.gaussian_mechanism import gaussian_mechanism
from dpltm.randomness.noise import KeyedSource
from dpltm.records.batches import Records
from dpltm.training.artifacts import Run
from dpltm.training.descent import train
from dpltm.training.start import from_round
from dpltm.verbs import search as verb
from dpltm.verbs.train import train_start
from opened import arrays_of
from refusals import refused
from stage_cases import SPEC, kinds, records, ticket_set

QUICK = {"epsilon": 2.0, "delta": 1e-4, "epochs": "1", "batch_size": "50", "lr": "0.5,1", "accountant": "rdp"}
"""Four steps at a sampling rate of a quarter; priced by the quick accountant where the price is not what is tested."""


def plan(target: Any = "mlp:8", dataset: Any = None, ledger: Ledger | None = None, **options: Any):
    ledger = Ledger() if ledger is None else ledger
    target = ticket_set() if target == "tickets" else target
    dataset = records(0) if dataset is None else dataset
    settled = verb.settle(target, dataset, PrivateTuneOptions(**{**QUICK, **options}), ledger, Services())
    return verb.plan(settled, ledger.book)


def search(target: Any = "mlp:8", dataset: Any = None, ledger: Ledger | None = None, **options: Any) -> Run:
    target = ticket_set() if target == "tickets" else target
    dataset = records(0) if dataset is None else dataset
    return verb.search(target, dataset, PrivateTuneOptions(**{**QUICK, **options}), ledger or Ledger())


def train_before(ledger: Ledger, noise_multiplier: float, steps: int) -> None:
    options = TrainOptions(noise_multiplier=noise_multiplier, steps=steps)
    train_start(from_round(ticket_set(), 2), records(0), options, ledger)


def refusal(*given: Any, **options: Any) -> str:
    return refused(plan, *given, **options)


@pytest.fixture
def keys(monkeypatch):
    """Has the next search get its key from a seed."""

    def seed(number):
        monkeypatch.setattr("dpltm.privacy.release.secrets.token_bytes", lambda count: key_of(number)[:count])

    return seed


def key_of(seed: int) -> bytes:
    return (seed * 1000).to_bytes(32, "little")


def draws_of(seed: int) -> KeyedSource:
    """What decides all tries of a search whose key is known."""
    return KeyedSource(hmac.new(key_of(seed), b"tries", hashlib.sha256).digest())


def seed_with(count: int, gamma: float) -> int:
    """The first seed of which a search makes so many tries."""
    for seed in range(1000):
        if verb.tries(gamma, *verb.secret_draws(draws_of(seed), 2)) == count:
            return seed
    raise AssertionError(count)


# --- the price ---


def test_the_budget_pays_for_the_search_and_what_came_before():
    """Noise is scaled until what the ledger holds comes to the budget; each setting keeps its share of it."""
    ledger = Ledger()
    train_before(ledger, noise_multiplier=9.0, steps=3)
    made = plan(ledger=ledger, epochs="1,3", lr="1", epsilon=3.0, accountant="pld")
    mechanisms = [*ledger.entries[0].mechanisms, made.mechanism]
    assert 3 * (1 - 1e-3) <= epsilon(mechanisms, 1e-4) <= 3
    assert {(each.sampling_rate, each.steps) for each in made.mechanism.trainings} == {
        (0.25, 4), (0.25, 12),
    }  # fmt: skip
    found = [epsilon([each], 1e-4) for each in made.mechanism.trainings]
    assert max(found) < 1.1 * min(found), "no setting costs much more than another"
    assert all(one.mechanism == each for one, each in zip(made.trainings, made.mechanism.trainings, strict=True))


@pytest.mark.long
def test_one_try_costs_less_than_the_search_and_the_search_less_than_its_tries():
    mechanism = plan(lr="1", tries=10.0, accountant="pld").mechanism
    one = [mechanism.trainings[0], GaussianRelease(mechanism.score_noise)]
    assert epsilon(one, 1e-4) < 2 < epsilon(one * 10, 1e-4)


def test_more_tries_need_more_noise():
    noise = [plan(tries=tries, lr="1").mechanism.trainings[0].noise_multiplier for tries in (1.1, 3.0, 10.0, 100.0)]
    assert noise == sorted(noise)
    assert noise[0] < 0.8 * noise[-1]


def test_the_score_is_a_small_part_of_the_price():
    made = plan(lr="1", epsilon=1.0)
    assert made.mechanism.score_noise == 20
    alone = NoisySgd(0.25, 4, made.mechanism.trainings[0].noise_multiplier)
    assert epsilon([alone, GaussianRelease(20.0)], 1e-4) < 1.08 * epsilon([alone], 1e-4)


# --- what is done ---


def replayed(made: verb.Search, seed: int) -> list[tuple[float, int, dict[str, torch.Tensor]]]:
    """All tries of a search whose key is known, without it: score, setting and weights of each."""
    source, found = draws_of(seed), []
    x, y = tensors(arrays_of(made.dataset.train), made.dataset)
    for _ in range(verb.tries(made.mechanism.gamma, *verb.secret_draws(source, 2))):
        number = int(verb.secret_draws(source, 2)[0] * len(made.settings))
        sampling, noise, scoring = (KeyedSource(bytes(source.random_bytes(32))) for _ in range(3))
        model = build(SPEC, 0)
        train(model, Mask.dense(model), Records(x, y), made.trainings[number].config, sampling=sampling, noise=noise)
        right = float((model(x).argmax(1) == y).sum())
        score = gaussian_mechanism(np.array([right]), made.mechanism.score_noise, scoring)[0]
        found.append((score, number, {name: value.detach() for name, value in model.named_parameters()}))
    return found


@pytest.mark.one_of(2)
@pytest.mark.parametrize("count", [1, 2, 7])
def test_the_best_of_all_tries_wins(keys, count):
    """As many tries as the formula says for this key, each at the setting that it draws, and the highest noisy score."""
    made = plan(epsilon=20.0, tries=4.0)
    seed = seed_with(count, made.mechanism.gamma)
    tries = replayed(plan(epsilon=20.0, tries=4.0), seed)
    score, number, weights = max(tries, key=lambda one: one[0])
    keys(seed)
    run = search(epsilon=20.0, tries=4.0)
    assert len(tries) == count
    assert run.config["resolved"]["lr"] == made.settings[number].lr
    assert run.config["resolved"]["score"] == pytest.approx(min(max(score / 200, 0), 1))
    for name, value in run.model.named_parameters():
        torch.testing.assert_close(value.detach(), weights[name], rtol=1e-5, atol=1e-6)


def test_one_entry_before_the_first_draw_and_no_word_of_how_many_tries(keys):
    """But for what the winner is, runs of one and of seven tries say the same."""
    told = []
    for count in (1, 7):
        ledger = Ledger()
        keys(seed_with(count, plan(ledger=ledger, lr="1").mechanism.gamma))
        run = search(ledger=ledger, lr="1")
        assert kinds(ledger) == ["PrivateSearch"]
        resolved = {name: value for name, value in run.config["resolved"].items() if name not in ("score", "kernels")}
        told.append((resolved, run.config["options"], run.metrics, run.privacy.to_json(), len(run.lineage.entries)))
    assert told[0] == told[1]


def test_tickets_of_several_rounds_are_settings_too():
    run = search("tickets", lr="1", rounds="1,2", tries=3.0)
    assert run.config["round"] in (1, 2)
    assert run.mask.live == ticket_set().ticket(run.config["round"]).mask.live
    assert run.entry.of(PrivateSearch)
    assert 2 * (1 - 1e-3) <= run.privacy.certified.epsilon <= 2


def test_the_score_is_measured_on_the_test_split_only_to_be_shown(keys):
    keys(5)
    one = search(dataset=records(0, test=40))
    keys(5)
    other = search(dataset=records(0))
    assert one.metrics[0]["accuracy"] is not None
    assert other.metrics[0]["accuracy"] is None
    told = "accuracy is measured on the test split, which is declared separate from the private records"
    assert [told in run.privacy.notes for run in (one, other)] == [True, False]
    assert one.config["resolved"]["score"] == other.config["resolved"]["score"]


def test_a_search_goes_on_with_its_own_settings_alone():
    """What its entry says is compared with what is asked for now, and not with itself."""
    ledger = Ledger()
    entry = search(ledger=ledger).entry

    def planned_again(**options):
        asked = PrivateTuneOptions(**{**QUICK, **options})
        made = verb.plan(verb.settle("mlp:8", records(0), asked, ledger, Services()), ledger.book, entry).entry
        return replace(made, id=entry.id, home=entry.home, sequence=1, day=entry.day)

    assert planned_again() == entry
    for other in ({"lr": "0.5"}, {"epochs": "2"}, {"tries": 3.0}, {"clip_norm": "0.5"}):
        assert planned_again(**other) != entry


# --- refusals ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tries": 1.0}, "`tries`: 1 in the mean is not between 1.1 and 1,000"),
        ({"tries": float("nan")}, "`tries`: nan in the mean is not between 1.1 and 1,000"),
        ({"repeats": 2}, "`repeats`: with `private`, a try is one training; leave it out"),
        (
            {"for_records": 9},
            "`for_records`: with `private`, the records of `dataset` are the private ones; leave it out",
        ),
        ({"batch_size": "50,201"}, "`batch_size`: 201 is more than the 200 private records"),
        ({"delta": 0.01}, "`delta`: 0.01 is not below 1/n for 200 records; take a smaller one"),
        (
            {"lr": ",".join(["1"] * 201)},
            "`trials`: 201 settings, and a private search draws from at most 200; name fewer",
        ),
        ({"rounds": "1"}, "`rounds`: only for a ticket set; name SET, or leave it out"),
    ],
)
def test_options(options, message):
    assert refusal(**options) == message


def test_a_budget_that_is_spent_is_refused_before_anything_is_entered():
    ledger = Ledger()
    train_before(ledger, noise_multiplier=1.0, steps=30)
    message = refused(plan, ledger=ledger, kind=BudgetError)
    assert message.startswith("budget: on these records epsilon ")
    assert kinds(ledger) == ["NoisySgd"]
