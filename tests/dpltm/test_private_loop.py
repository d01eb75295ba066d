"""A loop of the user's own: what it trains, what it pays, when it pays, and everything that it refuses."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

from dpltm.errors import BudgetError, InputError
from dpltm.evaluation import accuracy
from dpltm.filters import Clip, Filter, Sigmoid, Tanh
from dpltm.masks import Mask
from dpltm.noise import FastSource, SecureSource
from dpltm.privacy.describe import describe
from dpltm.privacy.events import UNKNOWN_RECORDS, BudgetEvent, DatasetRef, Event, GaussianEvent, TrainingEvent
from dpltm.privacy.ledger import Ledger
from dpltm.privacy.mechanisms import GaussianRelease, NoisySgd
from dpltm.privacy.parts import total_epsilon
from dpltm.privacy.report import SEARCH_NOTE
from dpltm.private_loop import PrivateLoop
from dpltm.sampling import Records
from dpltm.training import TrainingConfig, cross_entropy, train

COUNTED = "the number of records was counted and is treated as public; say records=... to keep it private"
MINE = DatasetRef("mine", "aa", "key", 0, 40, "places")


def toy_data(records: int = 40, features: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(records, features, generator=generator), torch.randint(0, 3, (records,), generator=generator)


def toy_model(seed: int = 0) -> nn.Sequential:
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in model.parameters():
            value.copy_(torch.randn(value.shape, generator=generator) / 2)
    return model


def random_mask(model: nn.Module, density: float = 0.5) -> Mask:
    generator = torch.Generator().manual_seed(4)
    return Mask({name: torch.rand(p.shape, generator=generator) < density for name, p in model.named_parameters()})


def make(model: nn.Module | None = None, loss: Any = cross_entropy, data: Any = None, **changes: Any) -> PrivateLoop:
    """A loop over toy data with seeded sources; ``changes`` are its settings."""
    x, y = data or toy_data()
    settings: dict[str, Any] = {"batch_size": 10, "steps": 3, "delta": 1e-3, "noise_multiplier": 1.0}
    settings |= {"sampling": FastSource(0), "noise": FastSource(1), **changes}
    return PrivateLoop(toy_model() if model is None else model, loss, x, y, **settings)


def flat(model: nn.Module) -> Tensor:
    return torch.cat([value.detach().flatten() for value in model.parameters()])


def flat_gradient(model: nn.Module) -> Tensor:
    parts = [value.grad for value in model.parameters() if value.grad is not None]
    return torch.cat([part.flatten() for part in parts]).clone()


def gradients(loop: PrivateLoop, model: nn.Module) -> list[Tensor]:
    """The gradient of every step; the network stays as it is."""
    found = []
    for step in loop:
        step.backward()
        found.append(flat_gradient(model))
    return found


def refused(call: Callable[[], object], kind: type[InputError | BudgetError] = InputError) -> str:
    """The message of a refusal."""
    with pytest.raises(kind) as error:
        call()
    return str(error.value)


TAKEN = "step {}: its one gradient was taken, or the loop has moved on; call it once"


def flat_mask(mask: Mask) -> Tensor:
    return torch.cat([mask[name].flatten() for name in mask])


def other_release(noise_multiplier: float = 4.0, dataset: DatasetRef = UNKNOWN_RECORDS) -> GaussianEvent:
    return GaussianEvent(dataset, GaussianRelease(noise_multiplier), "a mean")


# Training


def test_three_lines_train_on_real_records():
    digits = load_digits()
    x, y = digits.data.astype(np.float32) / 16, digits.target
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    private = PrivateLoop(model, cross_entropy, x[:1400], y[:1400], batch_size=200, steps=150, epsilon=8.0, delta=1e-5)
    for step in private:
        step.backward()
        optimizer.step()
    assert accuracy(model, torch.from_numpy(x[1400:]), torch.from_numpy(y[1400:])) > 0.7
    assert 7.99 < private.report().certified.epsilon <= 8


@pytest.mark.parametrize("filter", [Clip(0.5), Tanh(1.0, 0.5, Clip(1.0))], ids=str)
@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_it_gives_the_bits_that_train_gives(filter, adjacency):
    x, y = toy_data()
    mine, other = toy_model(), toy_model()
    mask = random_mask(mine)
    loop = make(mine, steps=6, filter=filter, mask=mask, noise_multiplier=0.7, adjacency=adjacency)
    optimizer = torch.optim.SGD(mine.parameters(), lr=0.3, momentum=0.9)
    for step in loop:
        step.backward()
        optimizer.step()
    std = 0.7 * filter.certified_bound(mask.live) * (2 if adjacency == "replace-one" else 1)
    config = TrainingConfig(filter, 10 / 40, 6, 10, std, 0.3, "momentum")
    train(other, mask, Records(x, y), config, sampling=FastSource(0), noise=FastSource(1))
    assert torch.equal(flat(mine), flat(other))
    assert not torch.equal(flat(mine), flat(toy_model()))


def test_its_length_is_its_steps_and_they_are_numbered_from_one_and_one_passed_over_gives_no_gradient():
    model = toy_model()
    loop = make(model, steps=5)
    assert len(loop) == 5
    steps = list(loop)
    assert [step.number for step in steps] == [1, 2, 3, 4, 5]
    for step in steps:
        assert refused(step.backward) == TAKEN.format(step.number)
    assert all(value.grad is None for value in model.parameters())


def test_weights_of_other_precision_and_records_as_stored():
    """Bytes in, a network of float64: ``prepare`` makes one of the other, and what it gives is used as it is."""
    model = nn.Linear(5, 3).double()
    seen: list[torch.dtype] = []

    def prepare(rows: Tensor) -> Tensor:
        seen.append(rows.dtype)
        return rows.double() / 255

    x = np.random.default_rng(0).integers(0, 256, (40, 5), dtype=np.uint8)
    loop = make(model, data=(x, toy_data()[1].numpy()), prepare=prepare, noise_multiplier=1e-3)
    found = gradients(loop, model)
    assert set(seen) == {torch.uint8}
    assert found[0].dtype == torch.float64
    plain = nn.Linear(5, 3).double()
    plain.load_state_dict(model.state_dict())
    same = gradients(make(plain, data=(x / 255, toy_data()[1]), noise_multiplier=1e-3), plain)
    torch.testing.assert_close(found, same, rtol=1e-5, atol=1e-7)


def test_physical_batches_and_precision_are_those_of_the_engine():
    model, seen = toy_model(), []
    loop = make(model, batch_size=40, steps=1, physical_batch=15, precision="bfloat16")
    model.register_forward_hook(lambda *call: seen.append((len(call[2]), call[2].dtype)))
    gradients(loop, model)
    assert seen == [(14, torch.bfloat16), (14, torch.bfloat16), (12, torch.bfloat16)], "three, of even sizes"


def test_labels_may_be_numbers():
    """For a loss of differences they come in the network's precision, and are not made whole."""
    model, x = nn.Linear(5, 1, bias=False), torch.ones(40, 5)
    nn.init.zeros_(model.weight)
    loop = make(
        model,
        lambda out, y: (out[:, 0] - y).square() / 2,
        (x, np.full(40, 0.25)),
        batch_size=40,
        steps=1,
        filter=Clip(100.0),
        noise_multiplier=0.0,
    )
    torch.testing.assert_close(gradients(loop, model)[0], torch.full((5,), -0.25), rtol=1e-4, atol=0)


# What is paid, and when


def test_the_event_is_on_record_before_the_first_gradient():
    written: list[Event] = []
    ledger, calls = Ledger(persist=written.append), []
    model = toy_model()
    model.register_forward_pre_hook(lambda *_: calls.append(len(ledger.events)))
    loop = make(model, ledger=ledger, batch_size=40, delta=1e-3)
    planned = loop.report()
    assert (ledger.events, written) == ((), [])
    assert set(calls) == {0}, "made-up records are tried before anything is paid"
    calls.clear()
    steps = iter(loop)
    assert ledger.events == (loop.event,), "entered when the loop begins, not at its first gradient"
    assert (written, calls) == ([loop.event], [])
    for step in steps:
        step.backward()
    assert calls == [1, 1, 1], "one event, whatever the number of steps"
    assert ledger.events == (loop.event,)
    assert loop.report() == planned


def test_the_event_says_what_is_done():
    model = toy_model()
    mask = random_mask(model)
    loop = make(model, mask=mask, records=50, steps=7, filter=Clip(0.5), noise_multiplier=2.5, dataset=MINE)
    event = loop.event
    assert isinstance(event, TrainingEvent)
    assert (event.mechanism.sampling_rate, event.mechanism.steps, event.mechanism.noise_multiplier) == (0.2, 7, 2.5)
    assert (event.mechanism.sensitivity, event.mechanism.nominal_sensitivity, event.filter) == (
        0.5,
        None,
        "clip(C=0.5)",
    )
    assert (event.live, event.dataset, event.mechanism.adjacency) == (mask.live, MINE, "add-remove")


SECRET = 8675309.0
FAILED = (
    "training: the model or the loss failed on the records of a step; is every label a class, and every token in the"
    " vocabulary? What was spent is on record"
)


def tell_tale(rows: Tensor) -> Tensor:
    """Says the record that it cannot take."""
    for row in rows:
        if SECRET in row.tolist():
            raise ValueError(f"cannot take {row.tolist()}")
    return rows


def test_no_traceback_holds_what_a_model_says_of_a_record_and_its_event_stays():
    (x, y), model, ledger = toy_data(), toy_model(), Ledger()
    x[17, 2] = SECRET
    loop = make(model, data=(x, y), ledger=ledger, steps=5, batch_size=40)
    steps = iter(loop)
    next(steps).backward()
    step = next(steps)
    model.register_forward_pre_hook(lambda _, inputs: (tell_tale(inputs[0]), None)[1])
    with pytest.raises(InputError) as error:
        step.backward()
    assert str(error.value) == FAILED
    assert "8675309" not in "".join(traceback.format_exception(error.value))
    assert (error.value.__cause__, error.value.__context__) == (None, None), "what follows them shows it as well"
    assert ledger.events == (loop.event,)
    with pytest.raises(InputError, match="step 2: its one gradient was taken"):
        step.backward()


def test_no_traceback_holds_what_prepare_says_of_the_first_record():
    x, y = toy_data()
    x[0] = SECRET
    with pytest.raises(InputError) as error:
        make(data=(x, y), prepare=tell_tale)
    assert str(error.value) == (
        "training: the first record cannot be made ready for the model; does prepare take every row of x? Nothing was spent"
    )
    assert "8675309" not in "".join(traceback.format_exception(error.value))
    assert (error.value.__cause__, error.value.__context__) == (None, None)


@pytest.mark.parametrize("records", [None, 50])
def test_the_report_is_the_accountants_on_that_event(records):
    loop = make(records=records, noise_multiplier=1.3, steps=20)
    report = loop.report()
    rate = 10 / (records or 40)
    event = TrainingEvent(UNKNOWN_RECORDS, NoisySgd(rate, 20, 1.3), "clip(C=1)", 75)
    assert report.certified.epsilon == total_epsilon([event], 1e-3)
    assert (report.certified.delta, report.certified.adjacency, report.nominal) == (1e-3, "add-remove", None)
    assert report.notes == ((SEARCH_NOTE,) if records else (COUNTED, SEARCH_NOTE))


def test_replace_one_doubles_the_sensitivity_and_is_accounted_as_such():
    one, two = make(), make(adjacency="replace-one")
    assert (one.event.mechanism.sensitivity, two.event.mechanism.sensitivity) == (1.0, 2.0)
    assert two.report().certified.adjacency == "replace-one"
    assert two.report().certified.epsilon == total_epsilon([two.event], 1e-3)
    model = nn.Linear(300, 30, bias=False)
    data = torch.zeros(40, 300), torch.zeros(40, dtype=torch.long)
    noise = gradients(make(model, data=data, adjacency="replace-one", steps=1, noise_multiplier=0.5), model)[0]
    assert float(noise.std()) == pytest.approx(0.5 * 2.0 / 10, rel=0.04)  # four standard errors of 9,000 values


@pytest.mark.parametrize(
    ("filter", "nominal"),
    [
        (Tanh(2.0, 1.0), 1.0),
        (Sigmoid(2.0, 1.0), 1.0),
        (Tanh(2.0, 1.0, Clip(1.0)), None),
        (Tanh(2.0, 1.0, after=Clip(1.0)), None),
        (Clip(1.0), None),
    ],
    ids=str,
)
@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_the_papers_figure_is_shown_beside_where_there_is_one(filter, nominal, adjacency):
    loop = make(filter=filter, noise_multiplier=20.0, adjacency=adjacency)
    double = 2 if adjacency == "replace-one" else 1
    assert loop.event.mechanism.nominal_sensitivity == (None if nominal is None else nominal * double)
    assert loop.event.mechanism.sensitivity == filter.certified_bound(75) * double
    report = loop.report()
    if nominal is None:
        assert report.nominal is None
    else:
        assert report.nominal is not None
        assert report.nominal.source == "tanh paper's sensitivity"
        assert report.nominal.epsilon < report.certified.epsilon / 2


# Budgets


@pytest.mark.parametrize(("budget", "rate"), [(0.5, 0.25), (3.0, 0.25), (1.0, 1.0)])
def test_noise_is_calibrated_to_the_budget(budget, rate):
    loop = make(noise_multiplier=None, epsilon=budget, batch_size=40 * rate, steps=10)
    assert budget * 0.998 < loop.report().certified.epsilon <= budget
    assert loop.report().certified.epsilon == total_epsilon([loop.event], 1e-3)


def test_calibrated_noise_is_the_noise_that_is_added():
    model = nn.Linear(300, 30, bias=False)
    data = torch.zeros(40, 300), torch.zeros(40, dtype=torch.long)
    loop = make(model, data=data, noise_multiplier=None, epsilon=1.0, filter=Clip(0.5), steps=1)
    std = loop.event.mechanism.noise_multiplier * 0.5 / 10
    assert loop.event.mechanism.noise_multiplier > 0.5
    assert float(gradients(loop, model)[0].std()) == pytest.approx(std, rel=0.04)


def test_what_the_ledger_holds_is_part_of_the_budget():
    ledger = Ledger([other_release()])
    spent = total_epsilon(ledger.events, 1e-3)
    assert 0.3 < spent < 0.9
    loop = make(noise_multiplier=None, epsilon=1.0, ledger=ledger)
    assert 0.998 < loop.report().certified.epsilon <= 1
    assert (
        loop.event.mechanism.noise_multiplier
        > 1.1 * make(noise_multiplier=None, epsilon=1.0).event.mechanism.noise_multiplier
    )
    for _ in loop:
        pass
    assert loop.report().certified.epsilon == total_epsilon(ledger.events, 1e-3)
    assert len(ledger.events) == 2
    with pytest.raises(BudgetError) as error:
        make(noise_multiplier=None, epsilon=1.0 - 2e-3, ledger=ledger)
    assert str(error.value).startswith("budget: on these records epsilon ")
    assert len(ledger.events) == 2


def test_a_spent_budget_trains_no_noise():
    """Calibration stops a little short of its budget, and some noise would fit what is left."""
    ledger = Ledger()
    for _ in make(noise_multiplier=None, epsilon=1.0, ledger=ledger):
        pass
    with pytest.raises(BudgetError) as error:
        make(noise_multiplier=None, epsilon=1.0, ledger=ledger)
    (spent,) = ledger.events
    assert f"goes to {describe(spent)} ({spent.time[:10]}), which leaves less than 2 % of 1, nothing" in str(
        error.value
    )
    assert ledger.events == (spent,)
    assert (
        make(noise_multiplier=None, epsilon=2.0, ledger=ledger).event.mechanism.noise_multiplier
        < 3 * spent.mechanism.noise_multiplier
    )


def test_other_records_in_the_ledger_do_not_count():
    elsewhere = DatasetRef("other", "bb", "key", 0, 40, "places")
    ledger = Ledger([other_release(dataset=elsewhere)])
    apart = make(noise_multiplier=None, epsilon=1.0, ledger=ledger, dataset=MINE)
    alone = make(noise_multiplier=None, epsilon=1.0, dataset=MINE)
    assert apart.event.mechanism.noise_multiplier == alone.event.mechanism.noise_multiplier
    unknown = make(noise_multiplier=None, epsilon=1.0, ledger=ledger)  # records of which nothing is said may be those
    assert unknown.event.mechanism.noise_multiplier > alone.event.mechanism.noise_multiplier


@pytest.mark.parametrize("limit", [0.2, 100.0])
def test_a_budget_set_on_the_records_is_enforced_before_anything_is_drawn(limit):
    class Untouched:
        def random_bytes(self, count: int) -> bytes:
            raise AssertionError(f"{count} random bytes were drawn")

    ledger = Ledger([BudgetEvent(UNKNOWN_RECORDS, limit, 1e-3, time="2026-01-02T00:00:00Z")])
    if limit == 100:
        assert len(make(ledger=ledger)) == 3
        return
    cost = make().report().certified.epsilon
    with pytest.raises(BudgetError) as error:
        make(ledger=ledger, sampling=Untouched(), noise=Untouched())
    assert str(error.value) == (
        f"budget: this would bring records to epsilon {cost:.4g} at delta 0.001, above the budget of {limit:g} set on"
        " 2026-01-02; spend less, or set another (dpltm privacy budget)"
    )
    assert len(ledger.events) == 1


def test_a_budget_set_after_construction_stops_the_loop_as_well():
    ledger = Ledger()
    loop = make(ledger=ledger)
    ledger.append(BudgetEvent(UNKNOWN_RECORDS, 0.1, 1e-3))
    with pytest.raises(BudgetError):
        iter(loop)
    assert len(ledger.events) == 1


def test_one_ledger_has_one_relation():
    ledger = Ledger([other_release()])
    with pytest.raises(InputError) as error:
        make(ledger=ledger, adjacency="replace-one")
    assert str(error.value) == (
        "adjacency: the ledger holds events under add-remove and under replace-one, which have no common guarantee; use one"
        " relation throughout, or separate ledgers"
    )
    assert len(ledger.events) == 1


# One gradient a step


def test_a_step_gives_one_gradient():
    model = toy_model()
    for step in make(model, steps=2):
        step.backward()
        before = flat_gradient(model)
        assert refused(step.backward) == TAKEN.format(step.number)
        assert torch.equal(flat_gradient(model), before)


def test_a_loop_runs_once():
    loop = make(steps=3)
    for step in loop:
        step.backward()
        break
    assert refused(lambda: iter(loop)) == "PrivateLoop: it has run, and paid for that; make another one to train on"
    assert loop.ledger.events == (loop.event,)


# The user's own optimizer

USERS = {
    "sgd": lambda values: torch.optim.SGD(values, lr=0.5, weight_decay=0.1),
    "nesterov": lambda values: torch.optim.SGD(values, lr=0.5, momentum=0.9, nesterov=True, weight_decay=0.1),
    "adam": lambda values: torch.optim.Adam(values, lr=0.1, weight_decay=0.1),
    "adamw": lambda values: torch.optim.AdamW(values, lr=0.1, weight_decay=0.1),
    "adagrad": lambda values: torch.optim.Adagrad(values, lr=0.1),
    "rmsprop": lambda values: torch.optim.RMSprop(values, lr=0.1, momentum=0.5),
}


@pytest.mark.parametrize("optimizer", USERS)
def test_pruned_weights_stay_exactly_zero_and_live_ones_move(optimizer):
    model = toy_model()
    mask = random_mask(model)
    live = flat_mask(mask)
    assert flat(model)[~live].count_nonzero() > 10
    start = flat(model)
    loop = make(model, mask=mask, steps=8)
    assert torch.equal(flat(model), start), "the network is left alone until the loop begins"
    steps = USERS[optimizer](model.parameters())
    for step in loop:
        step.backward()
        assert flat_gradient(model)[~live].count_nonzero() == 0
        steps.step()
        for value in model.parameters():
            value.grad.add_(1.0)  # does not stay
    assert flat(model)[~live].count_nonzero() == 0
    assert (flat(model)[live] != start[live]).all()


CLEARING: dict[str, Callable[[nn.Module], object]] = {
    "nothing": lambda _: None,
    "to none": lambda model: model.zero_grad(set_to_none=True),
    "to zero": lambda model: model.zero_grad(set_to_none=False),
    "fresh tensors": lambda model: [setattr(p, "grad", torch.full_like(p, 7.0)) for p in model.parameters()],
}


@pytest.mark.parametrize("clearing", CLEARING)
def test_the_gradient_is_replaced_whatever_was_there(clearing):
    model, other = toy_model(), toy_model()
    mask = random_mask(model)
    expected = gradients(make(other, mask=mask, steps=3), other)
    assert len({tuple(gradient.tolist()) for gradient in expected}) == 3
    for step, wanted in zip(make(model, mask=mask, steps=3), expected, strict=True):
        CLEARING[clearing](model)
        step.backward()
        assert torch.equal(flat_gradient(model), wanted)


def test_frozen_parameters_get_no_gradient_and_do_not_change():
    model = toy_model()
    model[0].weight.requires_grad_(False)
    model[2].bias.requires_grad_(False)
    kept = model[0].weight.detach().clone(), model[2].bias.detach().clone()
    loop = make(model, steps=4)
    assert loop.event.live == 75 - 40 - 3
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
    for step in loop:
        step.backward()
        optimizer.step()
        assert model[0].weight.grad is None
        assert model[2].bias.grad is None
        assert model[0].bias.grad is not None
        assert (model[0].bias.grad != 0).all()
        assert (model[2].weight.grad != 0).all()
    assert torch.equal(model[0].weight, kept[0])
    assert torch.equal(model[2].bias, kept[1])


# Mean, sample, noise


def one_weight() -> nn.Linear:
    """A network whose every record has gradient 1, with ``first_output``: the sum counts records."""
    return nn.Linear(1, 1, bias=False)


def first_output(outputs: Tensor, labels: Tensor) -> Tensor:
    del labels
    return outputs[:, 0]


def counts(records: int, rate: float, steps: int, public: int | None = None, seed: int = 0) -> np.ndarray:
    """Number of records in each step, from gradients: one record more is a sum of 1 more."""
    model = one_weight()
    batch = rate * (public or records)
    loop = make(
        model, first_output, (torch.ones(records, 1), torch.zeros(records)), batch_size=batch, steps=steps,
        delta=1e-4, filter=Clip(2.0), noise_multiplier=1e-3, records=public,
        sampling=FastSource(seed), noise=FastSource(seed + 1),
    )  # fmt: skip
    sums = torch.stack(gradients(loop, model))[:, 0].double().numpy() * batch
    assert np.abs(sums - sums.round()).max() < 0.05
    return sums.round()


def test_the_number_of_records_in_a_step_is_binomial():
    """Mean and variance over 1,500 steps, within four standard errors, and the whole law."""
    records, rate, steps = 60, 0.2, 1500
    found = counts(records, rate, steps)
    mean, variance = records * rate, records * rate * (1 - rate)
    assert abs(found.mean() - mean) < 4 * math.sqrt(variance / steps)
    assert abs(found.var(ddof=1) - variance) < 4 * variance * math.sqrt(2 / steps)
    cells = np.clip(found, 6, 18)
    law = stats.binom(records, rate)
    chances = [law.cdf(6), *law.pmf(range(7, 18)), law.sf(17)]
    observed = np.bincount(cells.astype(int) - 6, minlength=13)
    assert stats.chisquare(observed, np.array(chances) * steps).pvalue > 1e-3
    assert abs(np.corrcoef(found[1:], found[:-1])[0, 1]) < 4 / math.sqrt(steps)


def test_other_seeds_give_other_samples():
    assert [counts(60, 0.2, 8, seed=seed).tolist() for seed in (0, 0)] == [counts(60, 0.2, 8).tolist()] * 2
    assert counts(60, 0.2, 8, seed=3).tolist() != counts(60, 0.2, 8).tolist()


def test_the_sampling_rate_comes_from_the_public_number_of_records():
    """Half as many records as are declared: half as many take part as are expected."""
    found = counts(50, 0.5, 400, public=100)
    assert abs(found.mean() - 25) < 4 * math.sqrt(50 * 0.25 / 400)


def test_a_rate_of_one_takes_every_record():
    assert counts(60, 1.0, 3).tolist() == [60, 60, 60]


@pytest.mark.parametrize(("batch", "scale"), [(40.0, 1.0), (8.0, 5.0)])
def test_the_expected_batch_divides(batch, scale):
    """Every gradient is 1, so the mean of those that were drawn is 1; what comes out is their number over the expected."""
    model = one_weight()
    ones = torch.ones(40, 1), torch.zeros(40)
    settings = {"steps": 30, "filter": Clip(2.0), "noise_multiplier": 0.0}
    found = torch.stack(gradients(make(model, first_output, ones, batch_size=batch, **settings), model))[:, 0]
    drawn = found * 40 / scale
    torch.testing.assert_close(drawn, drawn.round(), rtol=1e-4, atol=1e-6)
    if batch == 40:
        torch.testing.assert_close(found, torch.ones(30), rtol=1e-4, atol=0)
    else:
        assert len(set(drawn.round().tolist())) > 3, "samples of one size would not tell the divisors apart"


@pytest.mark.parametrize("filter", [Clip(0.25), Tanh(1.0, 0.5, Clip(1.0)), Tanh(1.0, 0.5)], ids=str)
@pytest.mark.parametrize("rate", [0.25, 1.0])
def test_noise_has_the_stated_deviation_on_live_coordinates_and_is_zero_elsewhere(filter: Filter, rate: float):
    """On records of zeros a layer without bias has no gradient: noise is all there is."""
    model = nn.Linear(200, 60, bias=False)
    data = torch.zeros(40, 200), torch.zeros(40, dtype=torch.long)
    mask = random_mask(model)
    live = flat_mask(mask)
    loop = make(model, data=data, mask=mask, filter=filter, batch_size=40 * rate, steps=2, noise_multiplier=1.5)
    found = torch.stack(gradients(loop, model)).double()
    assert found[:, ~live].count_nonzero() == 0
    std = 1.5 * filter.certified_bound(mask.live) / (40 * rate)
    assert loop.event.mechanism.sensitivity == filter.certified_bound(mask.live)
    noise = found[:, live].numpy()
    assert noise.size > 11_000
    statistic = float((noise**2).sum() / std**2)
    assert stats.chi2(noise.size).cdf(statistic) > 1e-4
    assert stats.chi2(noise.size).sf(statistic) > 1e-4
    assert abs(np.corrcoef(noise)[0, 1]) < 4 / math.sqrt(noise.shape[1])
    assert stats.kstest(noise.flatten() / std, "norm").pvalue > 1e-3


@pytest.mark.parametrize("source", ["sampling", "noise"])
def test_bits_come_from_the_cryptographic_source_unless_another_is_given(monkeypatch, source):
    drawn: list[int] = []
    inner = SecureSource.random_bytes

    def note(self: SecureSource, count: int) -> bytes:
        drawn.append(count)
        return inner(self, count)

    monkeypatch.setattr(SecureSource, "random_bytes", note)
    models = toy_model(), toy_model()
    first, second = (gradients(make(model, **{source: None}), model) for model in models)
    assert drawn == ([4 * 40] if source == "sampling" else [8 * 38] * 2) * 6
    assert not any(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    drawn.clear()
    gradients(make(model := toy_model()), model)
    assert drawn == []


def test_no_records_at_all_look_like_some():
    model, x = toy_model(), torch.zeros(0, 5)
    found = gradients(make(model, data=(x, torch.zeros(0, dtype=torch.long)), records=40), model)
    assert len(found) == 3
    assert all((gradient != 0).all() for gradient in found)


# Bad input

NARROW = Mask({"weight": torch.ones(5, 3, dtype=torch.bool), "bias": torch.ones(3, dtype=torch.bool)})
DELTA = "is not between 0 and 1/40: it must be below one over the records"
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "averaged loss": (
        {"loss": functional.cross_entropy},
        "loss: shape (), expected one value for each of 11 records; use reduction='none'",
    ),
    "loss of others": (
        {"loss": lambda out, y: cross_entropy(out, y) - cross_entropy(out, y).mean()},
        "model or loss: what one record gives depends on others (seen at the loss): no bound would hold; leave out whatever"
        " averages or compares over records, in the model and in the loss, divides by the length of the batch, or takes"
        " another dimension than 0 (batch_first) for the record",
    ),
    "batch normalisation": (
        {"model": nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3))},
        "model: 1 is a batch normalisation: it mixes records, and no bound would hold; use nn.GroupNorm or nn.LayerNorm",
    ),
    "mask of another network": (
        {"model": nn.Linear(5, 3), "mask": NARROW},
        "mask weight: shape (5, 3) in the mask, (3, 5) in the network; they must match",
    ),
    "mask that leaves nothing": (
        {"mask": Mask({name: torch.zeros(p.shape, dtype=torch.bool) for name, p in toy_model().named_parameters()})},
        "mask: prunes every parameter that is not frozen, so there is nothing to train",
    ),
    "batch above the records": ({"batch_size": 41}, "`batch_size`: 41 is not between 0 and the 40 records"),
    "batch above those declared": (
        {"batch_size": 21, "records": 20},
        "`batch_size`: 21 is not between 0 and the 20 records",
    ),
    "no batch": ({"batch_size": 0}, "`batch_size`: 0 is not between 0 and the 40 records"),
    "negative batch": ({"batch_size": -3.5}, "`batch_size`: -3.5 is not between 0 and the 40 records"),
    "batch that is none": ({"batch_size": math.nan}, "`batch_size`: nan is not between 0 and the 40 records"),
    "no delta": ({"delta": 0.0}, f"`delta`: 0.0 {DELTA}"),
    "delta of one record": ({"delta": 1 / 40}, f"`delta`: 0.025 {DELTA}"),
    "delta of one": ({"delta": 1.0}, f"`delta`: 1.0 {DELTA}"),
    "negative delta": ({"delta": -1e-5}, f"`delta`: -1e-05 {DELTA}"),
    "delta that is none": ({"delta": math.nan}, f"`delta`: nan {DELTA}"),
    "noise and epsilon": ({"epsilon": 1.0}, "`noise_multiplier`, `epsilon`: give one of them"),
    "neither": ({"noise_multiplier": None}, "`noise_multiplier`, `epsilon`: give one of them"),
    **{
        f"epsilon {value}": (
            {"noise_multiplier": None, "epsilon": value},
            f"`epsilon`: {value} is not a positive number",
        )
        for value in (0.0, -1.0, math.nan, math.inf)
    },
    **{
        f"noise {value}": (
            {"noise_multiplier": value},
            f"`noise_multiplier`: {value} is not a finite number from 0 up",
        )
        for value in (-1.0, math.nan, math.inf)
    },
    "labels missing": (
        {"data": (torch.zeros(40, 5), torch.zeros(39, dtype=torch.long))},
        "x, y: 40 records and 39 labels; give one label a record",
    ),
    "unknown relation": (
        {"adjacency": "substitution"},
        "`adjacency`: unknown 'substitution'; known: add-remove, replace-one",
    ),
    "no steps": ({"steps": 0}, "`steps`: 0 is not a positive whole number"),
    "nothing at once": ({"physical_batch": 0}, "`physical_batch`: 0 is not a positive whole number"),
    "loss of nothing": (
        {"loss": lambda out, _: torch.zeros(len(out))},
        "loss: does not depend on any parameter of the model",
    ),
    "no parameters": ({"model": nn.Flatten()}, "model: has no parameters"),
    "all frozen": (
        {"model": nn.Linear(5, 3).requires_grad_(False)},
        "model: every parameter is frozen (requires_grad=False), so there is nothing to train",
    ),
    "another width": (
        {"model": nn.Linear(6, 3)},
        "model or loss: fails on 11 made-up records of shape (5,): mat1 and mat2 shapes cannot be multiplied (11x5 and 6x3)",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_refused_costs_nothing(case):
    changes, message = BAD[case]
    ledger = Ledger()
    with pytest.raises(InputError) as error:
        make(ledger=ledger, **changes)
    assert str(error.value) == message
    assert ledger.events == ()


def test_two_loops_on_one_ledger_share_the_budget():
    """The second was calibrated before the first had run."""
    ledger = Ledger()
    first, second = (make(noise_multiplier=None, epsilon=1.0, ledger=ledger) for _ in range(2))
    for step in first:
        step.backward()
    with pytest.raises(BudgetError) as error:
        iter(second)
    assert str(error.value).startswith("epsilon: with what the ledger holds by now this comes to 1.")
    assert ledger.events == (first.event,)


def test_without_noise_nothing_is_certified():
    report = make(noise_multiplier=0.0).report()
    assert report.certified.epsilon == math.inf
    assert "training at noise multiplier 0: nothing is certified" in report.notes
