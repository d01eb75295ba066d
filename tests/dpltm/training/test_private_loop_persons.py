"""Loops that protect persons: sums against ``train`` and the naive loop, one person more by brute force, and refusals."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import dpltm
from dpltm.filters import Automatic, Clip, Tanh
from dpltm.networks.masks import Mask
from dpltm.privacy.ledger import Ledger
from dpltm.randomness.noise import FastSource
from dpltm.tickets import load, save
from dpltm.verbs.private_loop import PrivateLoop
from gradient_cases import Picture, dot, naive_gradients, naive_sum
from refusals import refused

DRAW = np.random.default_rng(3)
X, Y = DRAW.random((60, 3, 6, 6), dtype=np.float32), np.arange(60) % 3
WHOSE = np.concatenate([np.zeros(9, dtype=np.int64), DRAW.integers(1, 12, 51)])
LOSS = nn.CrossEntropyLoss(reduction="none")


def looped(
    model: nn.Module, x: Any = X, y: Any = Y, units: Any = WHOSE, loss: Any = LOSS, **changes: Any
) -> PrivateLoop:
    settings = {"batch_size": 12, "steps": 1, "delta": 1e-3, "noise_multiplier": 1.0, "unit": "patient"}
    settings |= {"ledger": Ledger(unit="patient"), "sampling": FastSource(0), "noise": FastSource(1), **changes}
    return PrivateLoop(model, loss, x, y, units=units, **settings)


def mean_gradient(loop: PrivateLoop, model: nn.Module) -> Tensor:
    """The gradient of the first step of a loop."""
    next(iter(loop)).backward()
    return torch.cat([value.grad.double().flatten() for value in model.parameters() if value.grad is not None])


@pytest.mark.one_of(2)
@pytest.mark.parametrize("filter", [Clip(0.2), Automatic(0.5), Tanh(1.0, 0.001)], ids=str)
@pytest.mark.parametrize("weights", [None, (1.0, 0.5, 0.25)])
def test_a_persons_mean_gradient_is_filtered(filter: Any, weights: Any) -> None:
    """Without noise, and with everybody in the step: the naive loop over records, averaged by person, and filtered."""
    model = Picture().eval()
    shares = {} if weights is None else {"class_weight": ",".join(map(str, weights))}
    units = np.array([f" {one:03d}" for one in WHOSE])  # texts that say the same
    found = mean_gradient(looped(model, units=units, noise_multiplier=0.0, filter=filter, **shares), model)
    mask = Mask.dense(model)
    rows = naive_gradients(model, mask, LOSS, torch.from_numpy(X), torch.from_numpy(Y))
    persons = [np.flatnonzero(one == WHOSE) for one in np.unique(WHOSE)]
    means = {name: torch.stack([values[each].mean(0) for each in persons]) for name, values in rows.items()}
    expected = torch.zeros(mask.live, dtype=torch.float64)
    for place, each in enumerate(persons):
        weight = 1.0 if weights is None else float(np.mean(np.array(weights)[Y[each]]))
        one = {name: values[place : place + 1] for name, values in means.items()}
        expected += weight * naive_sum(one, filter, 1.0, [])
    torch.testing.assert_close(found, expected / 12, rtol=2e-5, atol=1e-7)


def test_a_step_is_that_of_train() -> None:
    """Also where somebody has more records than count; up to 0.12 %, by which sums in chunks are scaled, unlike these."""
    x, same = X.reshape(60, -1)[:, :8], {"batch_size": 12, "per_unit": 3, "noise_multiplier": 1e-9}

    def trained(lr: float) -> Any:
        facts = {"units": WHOSE, "unit": "patient", "bounds": (0, 1), "classes": 3, "ledger": Ledger(unit="patient")}
        return dpltm.train("mlp-tanh:4", x, Y, steps=1, lr=lr, delta=1e-3, noise="fast", **facts, **same)

    start, moved = trained(1e-30), trained(1.0)
    pairs = zip(start.model.parameters(), moved.model.parameters(), strict=True)
    wanted = torch.cat([(before - after).detach().double().flatten() for before, after in pairs])
    loop = looped(start.model, x, **same)
    torch.testing.assert_close(mean_gradient(loop, start.model), wanted, rtol=1.3e-3, atol=1e-6)
    facts = moved.config["resolved"]
    assert loop.mechanism.sampling_rate == facts["sampling_rate"] == 1.0
    assert loop.mechanism.sensitivity == facts["sensitivity"] == 1.0


@given(
    filter=st.sampled_from([Clip(0.3), Automatic(0.3), Tanh(0.1, 0.01)]),
    extra=st.integers(1, 7),
    seed=st.integers(0, 2**32),
    scale=st.sampled_from([0.0, 1e-30, 1.0, 1e6, 1e17, 1e30, math.inf, math.nan]),
    per_unit=st.sampled_from([1, 3, 64]),
)
def test_one_person_moves_the_sum_by_at_most_the_bound(filter, extra, seed, scale, per_unit):
    """Whatever the person's records hold, and wherever they stand among those of others."""
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(12, 3, generator=generator), torch.randn(12, 2, generator=generator)
    whose = np.arange(12) % 4
    more, label = scale * torch.randn(extra, 3, generator=generator), torch.randn(extra, 2, generator=generator)
    order = torch.randperm(12 + extra, generator=generator)
    neighbour = torch.cat([x, more])[order], torch.cat([y, label])[order]
    theirs = np.concatenate([whose, np.full(extra, 2**20)])[order.numpy()]

    def total(x: Tensor, y: Tensor, whose: np.ndarray) -> Tensor:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 2))
        settings = {"records": 4, "batch_size": 4, "noise_multiplier": 0.0, "filter": filter, "per_unit": per_unit}
        loop = PrivateLoop(model, dot, x, y, units=whose, steps=1, delta=1e-3, ledger=Ledger(unit="user"), **settings)
        return 4 * mean_gradient(loop, model)

    bound = filter.certified_bound(8)
    moved = float((total(*neighbour, theirs) - total(x, y, whose)).norm())
    assert moved <= bound * (1 + 1e-6)
    if scale == 1.0 and isinstance(filter, Tanh):
        assert moved > 0  # the person is there


def test_a_person_enters_a_step_by_one_coin() -> None:
    """All that somebody has is there, or nothing: gradients along records of one person are never apart."""
    whose, x = np.arange(40) // 2, np.zeros((40, 40), dtype=np.float32)
    x[np.arange(40), np.arange(40)] = 1.0
    y = np.zeros((40, 1), dtype=np.float32)
    model = nn.Linear(40, 1, bias=False)
    loop = looped(model, x, y, whose, loss=lambda out, _: out.sum(1), batch_size=10, steps=10, noise_multiplier=0.0)
    seen = []
    for step in loop:
        step.backward()
        seen.append(model.weight.grad[0].clone())
    there = (torch.stack(seen) > 0).view(10, 20, 2)
    assert torch.equal(there[..., 0], there[..., 1])
    assert 0.35 < there.float().mean() < 0.65


def test_entry_report_and_run_know_the_unit(tmp_path) -> None:
    model = Picture().train()
    loop = looped(model, steps=3, audit=6, per_unit=2, noise_multiplier=None, epsilon=2.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in loop:
        step.backward()
        optimizer.step()
    assert loop.entry.unit == loop.report().certified.unit == loop.ledger.unit == "patient"
    assert loop.mechanism.sampling_rate == 1.0  # of 12 persons
    notes = " ".join(loop.report().notes)
    assert "share a value of 'patient'; at most 2 of each count" in notes
    assert "the number of persons was counted" in notes
    assert loop.audit().facts["canaries"] == 6
    save(loop.finish(), tmp_path / "own.run")
    again = load(tmp_path / "own.run", model=Picture)
    assert (again.config["of_persons"], again.config["options"]["per_unit"]) == (True, 2)
    assert [entry.unit for entry in again.lineage.paid] == ["patient"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"units": None}, "`unit`: is for persons; add `units`"),
        ({"units": None, "unit": None, "per_unit": 3}, "`per_unit`: is for persons; add `units`"),
        ({"units": np.zeros(60)}, "`units`: all records are one person's"),
        ({"units": WHOSE[:, None]}, "`units`: of type ndarray, not one whole number or text a record"),
        ({"unit": "record"}, "records: 'record': a record is no person"),
        ({"unit": 3}, "`unit`: of type int, not a noun, such as patient"),
        ({"per_unit": 0}, "`per_unit`: 0 is not a whole number from 1 to 4,096"),
        ({"microbatch": 2}, "`microbatch`: does not go with `units`; leave one"),
        ({"batch_size": 13}, "`batch_size`: 13 is not between 0 and the 12 persons"),
        (
            {"ledger": Ledger()},
            "`unit`: a release from arrays (a loop, clip(C=1), 135 live weights) protects one patient, and this account",
        ),
    ],
)
def test_what_is_refused_costs_nothing(changes: dict[str, Any], message: str) -> None:
    made = []

    def program() -> None:
        made.append(looped(Picture(), **changes))
        list(made[0])

    assert refused(program).startswith(message)
    assert not made or not made[0].ledger.entries
