"""Gradient energy against naive loops over records, with and without noise, and what it knows of the records under DP."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from dpltm.features.inputs import Services
from dpltm.networks import ModelSpec, build
from dpltm.options.generate import GenerateOptions
from dpltm.privacy.ledger import Ledger
from dpltm.pruning.energy import add_step, pooled
from dpltm.records import from_arrays
from dpltm.training.sample_sums import SampleSums
from dpltm.verbs.generate import generate, plan
from refusals import refused

RECORDS, STEPS, LR = 40, 3, 0.5
DRAW = np.random.default_rng(3)
X, Y = DRAW.integers(0, 256, (RECORDS, 6), dtype=np.uint8), np.arange(RECORDS) % 3
SETTINGS = {"model": "mlp:8", "rounds": 2, "prune": "0.3", "iterations": STEPS, "batch_size": RECORDS, "lr": LR}
UNDER_DP = {"criterion": "dp-energy", "epsilon": 1.0, "delta": 1e-3}  # with all records in every step
PUBLIC = {"criterion": "energy", "provenance": "public"}


def made(x=X, y=Y, **options):
    dataset = from_arrays(x, y, classes=3, records=RECORDS, name="mine")
    return generate(plan(dataset, GenerateOptions(**{**SETTINGS, **options}), Ledger(), Services()))


def naive(mask=None, clip=math.inf):
    """Squared mean gradients of all steps, summed, one record at a time, under a mask."""
    model = build(ModelSpec("mlp:8", 6, 3), 0)
    if mask is not None:
        mask.apply(model)
    named = dict(model.named_parameters())
    energy = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in named.items()}
    for _ in range(STEPS):
        total = {name: torch.zeros_like(value) for name, value in named.items()}
        for x, label in zip(torch.tensor(X).float() / 255, torch.tensor(Y), strict=True):
            loss = functional.cross_entropy(model(x[None]), label[None])
            gradient = dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))
            if mask is not None:
                gradient = {name: value * mask[name] for name, value in gradient.items()}
            norm = math.sqrt(sum(float(value.square().sum()) for value in gradient.values()))
            for name, value in gradient.items():
                total[name] += value * min(1.0, clip / norm)
        with torch.no_grad():
            for name, value in named.items():
                energy[name] += (total[name].double() / RECORDS).square()
                value -= LR * total[name] / RECORDS
    return energy


def are_the_largest(kept, energy, before, pool=0):
    """Whether nothing that went is above anything that stayed, in the network as a whole, but for rounding."""
    weights = ("fc1.weight", "fc2.weight")
    scores = {name: pooled(energy[name], pool) for name in weights}
    stayed = torch.cat([scores[name][kept[name]] for name in weights])
    gone = torch.cat([scores[name][before[name] & ~kept[name]] for name in weights])
    assert len(gone) > 0
    return float(gone.max()) <= float(stayed.min()) * (1 + 1e-4)


@pytest.mark.parametrize("pool", [0, 1, 3])
def test_of_public_records_every_round_goes_by_its_own_training(pool):
    dense, first, second = (ticket.mask for ticket in made(pool=pool, **PUBLIC).body.tickets)
    assert [mask.live for mask in (dense, first, second)] == [83, 62, 47]
    assert are_the_largest(first, naive(), dense, pool)
    assert are_the_largest(second, naive(first), first, pool)


def test_pools_go_whole_but_for_one():
    mask = made(pool=1, **PUBLIC).body.tickets[-1].mask
    parts = [int(row.sum()) for name in ("fc1.weight", "fc2.weight") for row in mask[name]]
    assert sum(part not in (0, 6, 8) for part in parts) <= 1


@pytest.mark.parametrize("pool", [0, 1])
def test_under_dp_it_is_that_of_clipped_gradients(pool, monkeypatch):
    """Where the noise is left out."""
    clipped = naive(clip=1.0)
    assert not torch.equal(clipped["fc1.weight"], naive()["fc1.weight"]), (
        "some gradients are longer than the clip norm"
    )
    monkeypatch.setattr(
        "dpltm.training.descent.gaussian_mechanism", lambda total, _std, _source, divisor: total / divisor
    )
    dense, *others = (ticket.mask for ticket in made(pool=pool, **UNDER_DP).body.tickets)
    for mask in others:  # all of one training
        assert are_the_largest(mask, clipped, dense, pool)


def test_the_energy_of_the_noise_is_taken_away():
    model, steps, std = build(ModelSpec("mlp:8", 6, 3), 0), 4000, 0.3
    energy = {"fc1.weight": torch.zeros(8, 6, dtype=torch.float64)}
    generator, signal = torch.Generator().manual_seed(0), 0.1
    for _ in range(steps):
        model.fc1.weight.grad = signal + std * torch.randn((8, 6), generator=generator)
        add_step(energy, model, std**2)
    error = energy["fc1.weight"] / steps - signal**2
    spread = math.sqrt((2 * std**4 + 4 * std**2 * signal**2) / steps)
    assert float(error.abs().max()) < 4.5 * spread
    assert float(error.mean().abs()) < 4.5 * spread / math.sqrt(48)


def test_under_dp_it_knows_the_noisy_sums_and_nothing_else(monkeypatch):
    """Of neighbours and of other records altogether, the same sums and noise make the same tickets."""
    generator = torch.Generator().manual_seed(1)
    sums = torch.randn((STEPS, 83), generator=generator, dtype=torch.float64)

    def made_of(x, y):
        given = iter(sums)
        monkeypatch.setattr(SampleSums, "take", lambda *_: next(given).clone())
        monkeypatch.setattr("dpltm.privacy.release.secrets.token_bytes", lambda count: b"k" * count)
        return made(x, y, **UNDER_DP).body

    first = made_of(X, Y)
    for x, y in ((X[1:], Y[1:]), (255 - X, (Y + 1) % 3)):
        other = made_of(x, y)
        for mine, theirs in zip(first.tickets, other.tickets, strict=True):
            assert mine.mask.same_as(theirs.mask)
            assert all(torch.equal(value, theirs.predictor[name]) for name, value in mine.predictor.items())


def test_pools_are_refused_where_no_gradient_is_looked_at():
    assert refused(made, criterion="magnitude", provenance="public", pool=2) == (
        "`pool`: only for `criterion` energy and dp-energy; magnitude takes no gradients"
    )
    assert refused(made, **PUBLIC, pool=-1) == "`pool`: -1 is not a number of rows, or 0"
