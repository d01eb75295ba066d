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

import dpltm
from descents import STEPS, keyed_descent, states_of, weights
from dpltm.errors import DpltmError
from dpltm.filters import Clip, Filter, PerLayerClip, Tanh
from dpltm.gradients import RecordGradients
from dpltm.networks import ModelSpec, build
from dpltm.networks.masks import Mask
from dpltm.privacy.accountant import epsilon
from dpltm.privacy.calibration import calibrate_noise
from dpltm.privacy.ledger import Ledger
from dpltm.privacy.mechanisms import BandedSgd, NoisySgd
from dpltm.randomness.banded_noise import norm, optimal_strategy, squared_error
from dpltm.randomness.gaussian_mechanism import grid_step
from dpltm.randomness.noise import FastSource, source_of
from dpltm.randomness.sampling import ROUNDING, poisson_sample
from dpltm.records.batches import Records
from dpltm.training import descent as module
from dpltm.training.descent import SCHEDULES, ExactSum, NoisyGradients, train
from dpltm.training.optimizers import OPTIMIZERS
from dpltm.training.plan import NoisySteps
from dpltm.verbs.train import _with_bands
from gradient_cases import flat, noisy, rows_of, some_mask, steps_of, toy_data
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


@pytest.mark.parametrize(("rate", "batch", "steps"), [(1.0, 10.0, 1), (0.5, 20.0, 1), (0.1, 4.0, 3)])
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
    model.register_forward_pre_hook(lambda _, inputs: seen.append(rows_of(inputs[0])))
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


# --- optimizers against those of torch, bit by bit; averages and schedules written out ---

PEERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "momentum": lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=0.9),
    "adam": torch.optim.Adam,
    "adagrad": torch.optim.Adagrad,
}


def moved(step: Callable[[float, int], None], parameters: list[torch.Tensor]) -> list[torch.Tensor]:
    """The parameters after 30 steps of changing size; of one of them the gradient is always 0."""
    generator = torch.Generator().manual_seed(0)
    for count in range(30):
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        parameters[1].grad *= 0
        step(0.5 / (count + 1), count + 1)
    return parameters


def made() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=generator, requires_grad=True) for shape in ((300, 40), (3,), (7,))]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_bits_are_those_of_torch(name: str) -> None:
    start, ours, theirs = made(), made(), made()
    own, peer = OPTIMIZERS[name](ours), PEERS[name](theirs, lr=1.0)

    def by_peer(lr: float, number: int) -> None:
        del number
        for group in peer.param_groups:
            group["lr"] = lr
        peer.step()

    moved(own.step, ours)
    moved(by_peer, theirs)
    assert not torch.equal(ours[0], start[0])
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one, other)


def exponential(values: Tensor) -> Tensor:
    """De et al. 2022: old average times d plus new weights times 1 - d, with d = min(0.98, (1 + t) / (10 + t))."""
    found = values[0].double()
    for t in range(1, len(values)):
        decay = min(0.98, (1 + t) / (10 + t))
        found = decay * found + (1 - decay) * values[t].double()
    return found


def polynomial(values: Tensor) -> Tensor:
    """Shamir and Zhang 2013, section 4, as a sum: step t of T weighs 9 / (t + 8) times what later steps leave of it."""
    steps = range(1, len(values))
    shares = [9 / (t + 8) * math.prod(1 - 9 / (later + 8) for later in steps if later > t) for t in steps]
    assert sum(shares) == pytest.approx(1)
    return sum(
        (share * value.double() for share, value in zip(shares, values[1:], strict=True)), torch.zeros_like(values[0])
    )


FORMULAS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda values: values[-1].double(),
    "ema": exponential,
    "poly": polynomial,
}
"""Of parameters before the first step and after every one, ``(1 + steps, ...)``."""
every_average = pytest.mark.parametrize("kind", ["none", "ema", "poly"])


SMALL = ModelSpec("mlp:6", 5, 3)
MULTIPLIERS: dict[str, Callable[[int], float]] = {
    "constant": lambda _: 1.0,
    "linear": lambda step: (12 - step) / 12,
    "cosine": lambda step: math.cos(math.pi * step / 24) ** 2,
}
"""Of the step size at each of twelve steps."""


def by_hand(schedule: str = "constant", momentum: float = 0.0) -> Tensor:
    """Parameters before the first step and after each of twelve steps of full-batch descent, ``(13, parameters)``."""
    (x, y), model = toy_data(30), build(SMALL, 0)
    mask = some_mask(model)
    rounding = RecordGradients(model, mask, functional.cross_entropy).rounding * ROUNDING
    mask.apply(model)
    speed, found = [torch.zeros_like(p) for p in model.parameters()], [flat(model)]
    for step in range(12):
        gradients = torch.autograd.grad(functional.cross_entropy(model(x), y), list(model.parameters()))
        with torch.no_grad():
            for (name, p), g, v in zip(model.named_parameters(), gradients, speed, strict=True):
                v.mul_(momentum).add_(g * rounding * mask[name])
                p -= 0.5 * MULTIPLIERS[schedule](step) * v
        found.append(flat(model))
    return torch.stack(found)


def trained(progress=None, **changes) -> nn.Module:
    """Under a mask whose pruned weights the network holds something at before."""
    model, sources = build(SMALL, 0), {"sampling": FastSource(0), "noise": FastSource(1)}
    config = steps_of(Clip(1e6), 1.0, steps=12, expected_batch=30.0, noise_std=0.0, lr=0.5, **changes)
    watch = None if progress is None else lambda done: progress(done, model)
    train(model, some_mask(model), Records(*toy_data(30)), config, **sources, progress=watch)
    return model


@pytest.mark.parametrize(("optimizer", "momentum"), [("sgd", 0.0), ("momentum", 0.9)])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules_against_a_loop(schedule, optimizer, momentum):
    path = by_hand(schedule, momentum)
    torch.testing.assert_close(flat(trained(schedule=schedule, optimizer=optimizer)), path[-1], rtol=1e-4, atol=1e-5)
    assert (path[-1] - path[0]).abs().max() > 0.1


@every_average
def test_training_ends_with_the_average_and_shows_it_on_the_way(kind):
    """Looking on changes nothing; pruned weights are zero in each."""
    seen: list[Tensor] = []
    path = by_hand("linear")
    model = trained(lambda _, model: seen.append(flat(model)), schedule="linear", average=kind)
    assert len(seen) == 12
    for done, values in enumerate(seen, 1):
        torch.testing.assert_close(values, FORMULAS[kind](path[: done + 1]).float(), rtol=1e-4, atol=1e-5)
    assert torch.equal(flat(model), seen[-1])
    assert torch.equal(flat(model), flat(trained(schedule="linear", average=kind)))
    for name, keep in some_mask(model).items():
        assert model.get_parameter(name)[~keep].count_nonzero() == 0


# --- banded noise: who enters which step, what is released, and what it does not go with ---

STRATEGY, ROUNDS = (1.0, 0.6, 0.4), 8
X = np.random.default_rng(0).integers(0, 256, (120, 5), dtype=np.uint8)
Y = np.arange(120) % 3
SETTINGS = {"bounds": (0, 255), "classes": 3, "steps": 12, "batch_size": 15, "noise_multiplier": 1.0, "delta": 1e-4}


def descent(**more):
    return keyed_descent(
        **{"strategy": STRATEGY, "steps": ROUNDS, "expected_batch": 6.0, "optimizer": "momentum", **more}
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
    c = sum(a * np.eye(ROUNDS, k=-i) for i, a in enumerate(STRATEGY))
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


def test_bands_keep_the_relation_of_the_training_that_gets_them():
    plain = NoisySgd(0.1, 12, 1.0, adjacency="replace-one")
    assert "adjacency='replace-one' to be add-remove" in refused(_with_bands, plain, 4)


def test_the_best_number_of_bands_is_taken_for_a_budget():
    options = {**SETTINGS, "noise_multiplier": None, "epsilon": 4.0, "batch_size": 5, "steps": 100}
    ledger = Ledger()
    dpltm.train("mlp:4", X, Y, noise="banded", ledger=ledger, **options)
    (made,) = ledger.entries[-1].mechanisms
    found = {}
    for bands in (2, 4, 8, 16):
        strategy = optimal_strategy(bands, 100)
        plan = BandedSgd(bands * 5 / 120, 100, 1.0, strategy=strategy)
        noise = calibrate_noise(4.0, 1e-4, plan).noise_multiplier
        found[bands] = noise**2 * squared_error(strategy, 100)
    assert len(made.strategy) == min(found, key=lambda bands: found[bands])


BAD = {
    **{
        noise: ({}, f"{noise!r} is not secure, fast, nominal, or banded[:N] with N from 2")
        for noise in ("banded:1", "banded:x", "banded:", "bandet", "fast:2")
    },
    "banded:16": (
        {},
        "16 bands, and 8 is the most where 12 steps take 15 records each from one of as many parts of 120",
    ),
    "banded:65": ({"batch_size": 1, "steps": 100}, "65 bands, and 64 is the most"),
    "banded:2": ({"batch_size": 100}, "2 bands, and 1 is the most"),
    "banded:3": ({"adjacency": "replace-one"}, "`adjacency`: does not go with `noise` banded"),
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
