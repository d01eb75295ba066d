"""Descent: noise where it belongs, exact zeros, public divisors, sums in any order, and the same bits where it goes on."""

import functools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor, nn
from torch.nn import functional

from descents import STEPS, keyed_descent, states_of, weights
from dpltm.filters import Clip, Filter, PerLayerClip, Tanh
from dpltm.networks import ModelSpec, build
from dpltm.networks.masks import Mask
from dpltm.randomness.gaussian_mechanism import grid_step
from dpltm.randomness.noise import FastSource
from dpltm.randomness.sampling import ROUNDING, poisson_sample
from dpltm.records.batches import Records
from dpltm.training.descent import OPTIMIZERS, ExactSum, NoisyGradients, train
from dpltm.training.plan import NoisySteps
from gradient_cases import flat, noisy, some_mask, steps_of, toy_data
from interruptions import run_until
from refusals import refused

SPEC = ModelSpec("mlp:8,6", 5, 3)
UNCLIPPED = Clip(1e6)


def config(**changes) -> NoisySteps:
    """Plain SGD on everything: nothing clipped, no noise, every record in every step."""
    plain = {"sampling_rate": 1.0, "steps": 1, "expected_batch": 10.0, "noise_std": 0.0, "lr": 0.5}
    return steps_of(**{"filter": UNCLIPPED, **plain, **changes})


def flat_mask(model: nn.Module, mask: Mask) -> Tensor:
    return torch.cat([mask[name].flatten() for name, _ in model.named_parameters()])


def run(model: nn.Module, mask: Mask, data: tuple[Tensor, Tensor], settings: NoisySteps, seed: int = 0) -> Tensor:
    """Trains in place with seeded sources; returns the change of all parameters from their masked start."""
    mask.apply(model)
    before = flat(model)
    train(model, mask, Records(*data), settings, sampling=FastSource(seed), noise=FastSource(seed + 1000))
    return flat(model) - before


def summed_gradient(model: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(functional.cross_entropy(model(x), y, reduction="sum"), list(model.parameters())))


@functools.cache
def empty_steps(steps: int) -> tuple[Tensor, Tensor]:
    """Steps of which no record is part: what SGD adds to the parameters is noise alone. And where it may be."""
    model = build(ModelSpec("mlp:100,100", 100, 10), 0)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)  # so that no rounding hides in the difference
    mask = some_mask(model)
    settings = config(sampling_rate=1e-9, steps=steps, noise_std=3.0, expected_batch=7.0, lr=1.0)
    assert len(poisson_sample(FastSource(0), 40, 1e-9)) == 0
    return run(model, mask, toy_data(features=100), settings), flat_mask(model, mask)


def test_an_empty_batch_still_adds_noise_of_the_right_size_on_live_coordinates_and_none_elsewhere():
    """Independent ones; bounds are four standard errors."""
    change, live = empty_steps(1)
    assert change[~live].count_nonzero() == 0
    noise = change[live].double().numpy()
    assert len(noise) > 12_000
    assert np.count_nonzero(noise) > 0.999 * len(noise)
    steps = noise * 7.0 / grid_step(3.0)
    assert abs(steps - np.rint(steps)).max() < 0.01  # of a step: rounding to float32 is what remains
    std = 3.0 / 7.0
    assert abs(noise.std() - std) < 4 * std / math.sqrt(2 * len(noise))
    assert abs(noise.mean()) < 4 * std / math.sqrt(len(noise))
    assert stats.kstest(noise / std, "norm").pvalue > 1e-3
    assert len(np.unique(np.stack([noise[1:], noise[:-1]]), axis=1).T) > 0.99 * len(noise)
    for shift in (1, 2, len(noise) // 2):  # Box and Muller make pairs that are one half apart
        for power in (1, 2):
            correlation = np.corrcoef(noise[shift:] ** power, noise[:-shift] ** power)[0, 1]
            assert abs(correlation) < (3 + power) / math.sqrt(len(noise) - shift)


def test_noise_is_fresh_in_every_step():
    """Variances of independent steps add up; the same noise four times would quadruple the deviation instead."""
    (once, live), (four, _) = empty_steps(1), empty_steps(4)
    assert float(four[live].std() / once[live].std()) == pytest.approx(2.0, abs=0.05)
    assert abs(float(torch.corrcoef(torch.stack([once[live], four[live]]))[0, 1]) - 0.5) < 0.04


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_pruned_weights_stay_exactly_zero_and_live_ones_move(optimizer):
    model, start = build(SPEC, 0), build(SPEC, 0)
    mask = some_mask(model)
    with torch.no_grad():  # whatever the network holds at pruned places, NaN included, is gone
        for name, parameter in model.named_parameters():
            parameter[~mask[name]] = math.nan
    live = flat_mask(model, mask)
    filter = Tanh(1.0, 1.0, Clip(1.0))
    run(
        model, mask, toy_data(), config(filter=filter, steps=12, noise_std=0.5, sampling_rate=0.5, optimizer=optimizer)
    )
    assert flat(model)[~live].count_nonzero() == 0
    assert flat(model).isfinite().all()
    mask.apply(start)
    assert ((flat(model) - flat(start))[live] != 0).all()


@pytest.mark.parametrize(
    ("rate", "batch", "steps"),
    [(1.0, 10.0, 1), (0.5, 20.0, 1), (0.1, 4.0, 3)],
)
def test_steps_are_those_on_fresh_samples_over_the_expected_batch(rate, batch, steps):
    """Never over the realised one, which is private."""
    x, y = toy_data()
    source, model, other = FastSource(5), build(SPEC, 0), build(SPEC, 0)
    mask, sizes = some_mask(model), []
    mask.apply(model)
    for _ in range(steps):
        index = torch.from_numpy(poisson_sample(source, 40, rate))
        sizes.append(len(index))
        gradients = summed_gradient(model, x[index], y[index])
        with torch.no_grad():
            for (name, value), gradient in zip(model.named_parameters(), gradients, strict=True):
                value -= 0.5 * gradient * ROUNDING * mask[name] / batch
    assert batch not in sizes, "the realised size would do as well"
    changed = {"sampling_rate": rate, "expected_batch": batch, "steps": steps}
    run(other, mask, (x, y), config(**changed), seed=5)
    torch.testing.assert_close(flat(other), flat(model), rtol=1e-4, atol=1e-5)


def one_step(model: nn.Module, data: tuple[Tensor, Tensor], mask: Mask | None = None, **changes) -> NoisyGradients:
    """What makes one step's gradient from all records, with no noise and no divisor unless ``changes`` say so."""
    return noisy(model, *data, config(**{"expected_batch": 1.0, **changes}), mask=mask, dtype=data[0].dtype)


def rows_seen(model: nn.Module) -> list[int]:
    """Grows with every pass by its number of records."""
    seen: list[int] = []
    model.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    return seen


@pytest.fixture
def exact_sum(monkeypatch) -> Callable[[NoisyGradients], Tensor]:
    """Takes a step and gives its sum, in float64, before it is rounded to the precision of gradients."""
    sums: list[Tensor] = []
    monkeypatch.setattr("dpltm.training.descent.noisy_mean", lambda total, *_: (sums.append(total.clone()), total)[1])
    return lambda engine: (engine.backward(), sums[-1])[1]


FILTERS = [Clip(0.5), PerLayerClip(0.5), Tanh(1.0, 0.2, Clip(1.0)), Tanh(1.0, 0.2, after=Clip(1.0)), Tanh(1.0, 0.2)]


def dropping() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Dropout(0.5), build(ModelSpec("mlp:6", 6, 3), 0)).double()


CNN = ModelSpec("cnn:14x15x1", 210, 3)


@pytest.mark.one_of(4)
@pytest.mark.parametrize(
    ("make", "features", "changes"),
    [
        *((lambda: build(SPEC, 0), 5, {"filter": filter}) for filter in FILTERS),
        *((lambda: build(CNN, 0), 210, {"filter": filter}) for filter in FILTERS[1:3]),
        (dropping, 5, {"filter": FILTERS[0]}),
        (dropping, 5, {"filter": FILTERS[-1]}),
        (dropping, 5, {"microbatch": 4, "expected_batch": 40.0}),
        (dropping, 5, {"expected_batch": 200.0}),  # in chunks by coins of their own
    ],
)
def test_sums_and_draws_do_not_depend_on_the_physical_batch(exact_sum, make, features, changes):
    """In float64, where rounding hides nothing: 1, 3, and more than there are at once against all of them."""
    x, y = toy_data(features=features)
    whole = None
    for rows in (1, 3, 40, 1000, None) if features == 5 else (40, 3):
        torch.manual_seed(0)
        model = make().double()
        seen = rows_seen(model)
        engine = one_step(model, (x.double(), y), some_mask(model), physical_batch=rows, **changes)
        seen.clear()
        total = exact_sum(engine)
        assert set(seen) == {engine.gradients.pass_rows}
        assert seen[0] <= (rows or 1000)
        whole = total if whole is None else whole
        assert float(whole.abs().max()) > 0.1
        torch.testing.assert_close(total, whole, rtol=1e-12, atol=1e-12)


@pytest.mark.one_of(2)
@pytest.mark.parametrize("changes", [{}, {"physical_batch": 7}, {"filter": Tanh(1.0, 0.02, Clip(1.0))}], ids=str)
def test_the_last_record_moves_a_step_with_dropout_by_its_bound(exact_sum, changes):
    """The places, coins and keys of the others stay, so no coupling is needed to see it."""
    x, y = toy_data()
    torch.manual_seed(0)
    model = dropping()
    engine = one_step(model, (x.double(), y), **changes)
    found = [exact_sum(one_step(model, (x.double()[:count], y[:count]), **changes)) for count in (40, 39)]
    assert 0.5 < float((found[0] - found[1]).norm()) <= engine.plan.filter.certified_bound(engine.gradients.live)
    assert float((exact_sum(engine) - found[0]).norm()) == 0, "the same keys"
    assert float((exact_sum(engine) - found[0]).norm()) > 1, "those of another step"


@pytest.mark.one_of(3)
@pytest.mark.parametrize("filter", [Clip(0.5), Tanh(1.0, 0.2, Clip(1.0))], ids=str)
@pytest.mark.parametrize("value", [math.nan, 1e300])
def test_a_record_that_is_not_finite_spoils_no_piece(exact_sum, filter: Filter, value: float):
    """It stands among others, then alone, in a piece; whatever it holds, the sum is that of the other records."""
    x, y = toy_data()
    fine = torch.arange(40) != 12
    spoiled = x.double()
    spoiled[12, 3] = value
    model = build(SPEC, 0).double()
    others = exact_sum(one_step(model, (x.double()[fine], y[fine]), filter=filter))
    for rows in (5, 1, 40):
        found = exact_sum(one_step(model, (spoiled, y), filter=filter, physical_batch=rows))
        torch.testing.assert_close(found, others, rtol=1e-12, atol=1e-12)
    assert (exact_sum(one_step(model, (x.double(), y), filter=filter)) - others).abs().max() > 1e-3


def test_bfloat16_trains_and_is_not_float32():
    """Gradients are those of float32 up to the eight bits of the passes; weights and gradients stay float32."""
    changes = []
    for precision in ("float32", "bfloat16"):
        model = build(SPEC, 0)
        settings = config(filter=Clip(1.0), steps=20, expected_batch=40.0, precision=precision)
        changes.append(run(model, Mask.dense(model), toy_data(), settings))
        assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    plain, short = changes
    assert not torch.equal(plain, short)
    assert float((plain - short).norm()) < 0.05 * float(plain.norm())
    assert not torch.is_autocast_enabled("cpu")


def test_seeded_sources_give_the_same_bits_whatever_the_global_random_state():
    settings = config(filter=Tanh(1.0, 1.0, Clip(1.0)), steps=5, sampling_rate=0.3, noise_std=1.0)
    mask, found = some_mask(build(SPEC, 0)), []
    for number, seed in enumerate((1, 1, 2)):
        torch.manual_seed(number)
        found.append(run(build(SPEC, 0), mask, toy_data(), settings, seed))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_no_records_at_all_is_legal():
    """Under add/remove the neighbour of one record is none; it must look the same from outside."""
    model = build(SPEC, 0)
    change = run(model, Mask.dense(model), toy_data(records=0), config(noise_std=1.0, sampling_rate=0.5, steps=2))
    assert (change != 0).all()
    assert all(parameter.grad is None for parameter in model.parameters()), "no gradient is left behind"


BOUND = st.sampled_from([1.0, 0.3, 1e-5, 40.0])


@given(seed=st.integers(0, 2**32), count=st.integers(1, 30), bound=BOUND, spread=st.integers(0, 40))
def test_no_order_changes_a_bit_and_the_sum_is_exact(seed: int, count: int, bound: float, spread: int):
    """Terms of all sizes up to a hundred bounds; some of them cancel."""
    draw = np.random.default_rng(seed)
    size = 100 * bound * 2.0 ** -draw.integers(0, spread + 1, (count, 5))
    terms = draw.uniform(-1, 1, (count, 5)) * size
    terms[count // 2 :, 0] = -terms[: count - count // 2, 0]
    totals = []
    for order in (np.arange(count), draw.permutation(count)):
        parts = [ExactSum(5, bound, torch.device("cpu")) for _ in range(3)]
        for place, term in enumerate(order):
            parts[place % 3].add(torch.from_numpy(terms[term].copy()))
        both = (parts[2].parts + parts[0].parts) + parts[1].parts
        totals.append(both[0] + both[1])
    assert torch.equal(*totals)
    for place, found in enumerate(totals[0].tolist()):
        exact = sum((Fraction(value) for value in terms[:, place].tolist()), Fraction())
        left_out = count * 2 * Fraction(bound) * Fraction(2) ** -62
        assert abs(Fraction(found) - exact) <= left_out + abs(exact) * Fraction(2) ** -52


AVERAGES = [{"optimizer": kind, "average": average} for kind in OPTIMIZERS for average in ("none", "ema", "poly")]
OTHERS: list[dict[str, Any]] = [
    {"strategy": (1.0, 0.6, 0.4), "optimizer": "momentum", "average": "poly"},
    {"share": 0.5},
]


@pytest.mark.one_of(4)
@pytest.mark.parametrize(
    "settings", [*OTHERS[:1], *AVERAGES[:3], *OTHERS[1:2], *AVERAGES[3:6], *OTHERS[2:], *AVERAGES[6:]], ids=str
)
def test_a_training_goes_on_to_the_same_bits(settings):
    """With what its network drops, and the noise that is correlated with later steps."""
    whole = keyed_descent(schedule="cosine", **settings)
    whole.run()
    for stop in (0, 1, 4, STEPS):
        first = keyed_descent(schedule="cosine", **settings)
        run_until(first, stop)
        state = {name: value.clone() for name, value in first.state().items()}
        states = states_of(first)
        first.run()  # what the dead process went on with is nobody's
        second = keyed_descent(states, schedule="cosine", **settings)
        second.resume(stop, state)
        second.run()
        assert torch.equal(weights(second), weights(whole)), stop


def test_a_step_that_is_computed_again_has_the_same_noisy_gradient():
    """So there is no second noise that could be averaged with the first."""
    first = keyed_descent()
    again = keyed_descent(states_of(first))
    first.gradients.backward()
    again.gradients.backward()
    for one, other in zip(first.gradients.parameters, again.gradients.parameters, strict=True):
        assert torch.equal(one.grad, other.grad)
    first.gradients.backward()
    assert not torch.equal(first.gradients.parameters[0].grad, again.gradients.parameters[0].grad)


def test_state_of_another_network_is_refused():
    made = keyed_descent(optimizer="momentum", average="ema")
    made.gradients.backward()
    state = made.state()
    state["weights/0"] = torch.zeros(1, 2)
    assert refused(made.resume, 1, state) == "checkpoint: weights/0 has shape (1, 2), not (6, 5)"
