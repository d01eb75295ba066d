"""Trainings whose clip norm follows a quantile: sums and counts of the naive loop, noise that grows along, resuming."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import dpltm
from descents import keyed_descent
from dpltm.errors import ArtifactError
from dpltm.filters import Clip
from dpltm.gradients import RecordGradients
from dpltm.networks import ModelSpec, build
from dpltm.networks.masks import Mask
from dpltm.privacy.checkpoint import reading
from dpltm.privacy.mechanisms import NoisySgd
from dpltm.training.plan import NoisySteps, sensitivity
from gradient_cases import naive_gradients, noisy, some_mask, toy_data
from refusals import refused

SPEC = ModelSpec("mlp:6", 5, 3)
FILTER = Clip(9.0, clip_quantile=0.3)
LOSS = nn.CrossEntropyLoss(reduction="none")


def naive(model, mask, x, y, filter):
    """Sum over records, one at a time, of filtered gradients on live coordinates, and of counts."""
    rows = torch.cat(list(naive_gradients(model, mask, LOSS, x, y).values()), 1)
    rows = rows[rows.isfinite().all(1)]
    norms = rows.norm(dim=1)
    return (rows * filter.factor(norms)[:, None]).sum(0), filter.counted(norms).sum()


@pytest.mark.parametrize("density", [0.3, 1.0])
@pytest.mark.parametrize("chunked", [False, True])
def test_sum_and_count_are_those_of_the_naive_loop(density, chunked):
    (x, y), model = toy_data(), build(SPEC, 0)
    x = x.clone()
    x[3, 0] = math.nan  # skipped: it adds nothing to either
    mask = some_mask(model) if density < 1 else Mask.dense(model)
    mask.apply(model)
    filter = Clip(1.2, clip_quantile=0.5)
    gradients = RecordGradients(model, mask, LOSS)
    found = gradients.filtered_sum(x, y, filter, chunks=[slice(0, len(x))] if chunked else None)
    total, count = naive(model, mask, x, y, filter)
    assert (len(found.values), found.skipped) == (gradients.live + 1, 1)
    torch.testing.assert_close(
        found.values, torch.cat([total, count[None]]), rtol=1e-2 if chunked else 1e-4, atol=1e-5
    )
    assert 0.05 < abs(float(count)) < 0.49 * len(x) * math.sqrt(0.02) * 2.4  # some above the norm, and some below


def test_rows_that_are_not_there_are_not_counted():
    (x, y), model = toy_data(), build(SPEC, 0)
    gradients, filter = RecordGradients(model, Mask.dense(model), LOSS), Clip(1e3, clip_quantile=0.5)
    most = math.sqrt(0.02) * 1e3
    for present in (torch.arange(len(x)) < 4, (torch.arange(len(x)) < 4) * 0.3):
        count = float(gradients.filtered_sum(x, y, filter, weights=present).values[-1])
        assert math.isclose(count, 4 * most, rel_tol=1e-4)


def test_noise_grows_with_the_norm_and_gradients_are_divided_by_it():
    """Of no records a step leaves noise alone: its deviation is that of the first step times the growth of the norm."""
    model = nn.Linear(300, 300, bias=False)
    x, y = torch.zeros(0, 300), torch.zeros(0, dtype=torch.long)
    filter = Clip(2.0, clip_quantile=0.5)
    config = NoisySteps(filter, NoisySgd(0.5, 9, 3 * sensitivity(filter, 90_000, "add-remove")), 10.0, 1.0)
    steps = noisy(model, x, y, config, loss=LOSS)
    steps.gradients.check(torch.zeros(1, 300), torch.zeros(1, dtype=torch.long))
    for norm in (2.0, 50.0, 0.01):
        steps.resume(0, {"clip_norm": torch.tensor(norm, dtype=torch.float64)})
        steps.backward()
        grad = model.weight.grad
        assert math.isclose(float(grad.std()), 3 * math.sqrt(1.02) / 10.0, rel_tol=0.01)  # in units of the norm
        assert steps.filter.clip_norm != norm


def test_without_noise_the_norm_moves_as_the_filter_says_and_the_gradient_is_the_clipped_mean():
    (x, y), model = toy_data(), build(SPEC, 0)
    filter = Clip(0.1, clip_quantile=0.5)
    config = NoisySteps(filter, NoisySgd(1.0, 3, 0.0), float(len(x)), 0.1)
    mask = Mask.dense(model)
    steps = noisy(model, x, y, config)
    for _ in range(3):
        total, count = naive(model, mask, x, y, filter)
        steps.backward()
        given = torch.cat([value.grad.flatten() for value in model.parameters()]).double()
        torch.testing.assert_close(given, total / len(x) / filter.clip_norm, rtol=1e-2, atol=1e-5)
        filter = filter.after(float(count) / len(x))
        assert math.isclose(steps.filter.clip_norm, filter.clip_norm, rel_tol=1e-3)
        filter = steps.filter


def test_states_without_the_norm_are_damaged():
    """Where it came to, a training and a loop may not guess."""
    first = keyed_descent(filter=Clip(0.1, clip_quantile=0.5))
    state = first.state()
    del state["clip_norm"]
    with pytest.raises(ArtifactError, match=r"^checkpoint: damaged"), reading():
        first.resume(1, state)
    ledger = dpltm.Ledger()
    one = loop(ledger=ledger, save_every=2)
    next(iter(one)).backward()
    state = one.state_dict()
    del state["gradients"]["clip_norm"]
    with pytest.raises(ArtifactError, match=r"^checkpoint: damaged"):
        loop(ledger=ledger, save_every=2).load_state_dict(state)


def loop(**changes):
    draw = np.random.default_rng(0)
    x, y = draw.random((60, 5), dtype=np.float32), np.arange(60) % 3
    given = {"batch_size": 20, "steps": 6, "delta": 1e-3, "noise_multiplier": 1.0, "filter": FILTER}
    ledger = changes.pop("ledger", None) or dpltm.Ledger()
    return dpltm.PrivateLoop(build(SPEC, 0), LOSS, x, y, ledger=ledger, **given | changes)


def test_a_loop_follows_the_quantile_and_its_state_says_where_it_is():
    ledger = dpltm.Ledger()
    first = loop(ledger=ledger, save_every=2)
    steps = iter(first)
    for _ in range(2):
        next(steps).backward()
    norm = float(first.state_dict()["gradients"]["clip_norm"])
    assert 0 < norm < 9.0
    second = loop(ledger=ledger, save_every=2)
    second.load_state_dict(first.state_dict())
    assert second.gradients.filter == Clip(norm, clip_quantile=0.3)


def test_what_it_does_not_go_with_is_refused():
    said = "`clip_quantile`: an audit knows canaries of one norm; leave it out, or `audit`"
    assert refused(loop, audit=6) == said
    x, y = np.random.default_rng(0).random((60, 5)), np.arange(60) % 3
    given = {"bounds": (0, 1), "classes": 3, "epsilon": 1.0, "clip_quantile": 0.5, "delta": 1e-3}
    given["ledger"] = dpltm.Ledger()
    assert refused(dpltm.train, "mlp", x, y, audit=6, **given) == said
    said = refused(dpltm.train, "mlp", x, y, features="unit", head="least-squares", **given)
    assert said.startswith("`clip_quantile`: has no use with `head` least-squares")
    assert given["ledger"].entries == ()


def test_a_run_says_where_its_norm_went():
    x, y = np.random.default_rng(0).random((60, 5)), np.arange(60) % 3
    given = {"bounds": (0, 1), "classes": 3, "epsilon": 100.0, "delta": 1e-3, "steps": 20}
    run = dpltm.train("mlp:6", x, y, clip_norm=50.0, clip_quantile=0.5, ledger=dpltm.Ledger(), **given)
    norms = [line["clip_norm"] for line in run.metrics]
    # by noise that no seed decides, its logarithm is 0.2 with a deviation of 0.3 (at epsilon 1 of 1: 25 was exceeded)
    assert norms[-1] < 25.0
    assert run.config["resolved"]["filter"] == "clip(C=50, quantile=0.5)"
    assert any("the clip norm begins at 50" in note for note in run.privacy.notes)
    plain = dpltm.train("mlp:6", x, y, ledger=dpltm.Ledger(), **given)
    assert "clip_norm" not in plain.metrics[-1]
    assert run.privacy.certified.epsilon == plain.privacy.certified.epsilon
