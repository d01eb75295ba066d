"""Batches made so that last bits decide: leaving any record out moves a sum by its bound at most, and no bit of another."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import pytest
import torch
from torch import Tensor, nn

from dpltm.gradients import engine
from leaving_out import FILTERS, VICTIMS, Attacked, Victim, attacked, hostile_pairs

pytestmark = pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")  # RMSNorm in bfloat16


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def bits(attack: Attacked, monkeypatch: pytest.MonkeyPatch, seed: int, left_out: int | None) -> dict[bytes, bytes]:
    """Of every record in a step, by what its first layer saw: all that its passes left, and its norms."""
    found: dict[bytes, bytes] = {}
    measured = engine._measured

    def watched(layers, rows, each):
        norms, bad = measured(layers, rows, each)
        left = [value.flatten(1).double() for layer in layers for value in layer.left(rows)]
        for row in torch.cat([*left, norms.T, bad[:, None].double()], 1):
            found[row.numpy().tobytes()] = b""
        return norms, bad

    monkeypatch.setattr(engine, "_measured", watched)
    attack.sums.take(attack.sample(seed, left_out))
    monkeypatch.setattr(engine, "_measured", measured)
    return found


@pytest.mark.one_of(8)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", VICTIMS)
def test_leaving_a_record_out_changes_no_bit_of_any_other(name, precision, monkeypatch):
    attack = attacked(name, FILTERS["normalize"], 131, precision=precision)
    whole = bits(attack, monkeypatch, 0, None)
    for left_out in (0, 64, 130):
        assert len(whole) - 1 <= len(set(whole) & set(bits(attack, monkeypatch, 0, left_out))) <= len(whole)


@pytest.mark.one_of(120)
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("like", ["many", "alike", "extreme"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("filter", FILTERS)
@pytest.mark.parametrize("name", VICTIMS)
def test_leaving_a_record_out_moves_a_sum_by_its_bound_at_most(name, filter, precision, like):
    attack = attacked(name, FILTERS[filter], 257, 1, like, precision=precision)
    moved = [attack.moved(seed, 37 * seed % 257) for seed in range(3)]
    assert max(moved) <= 1
    assert max(moved) > 0 or like == "extreme"


class Uneven(nn.Linear):
    """A layer on a machine that rounds float32 otherwise at every fifth row."""

    def forward(self, x: Tensor) -> Tensor:
        found = super().forward(x)
        return (
            found
            if found.dtype == torch.float64
            else found * (1 + 2.0**-20 * (torch.arange(len(x)) % 5 == 0))[:, None]
        )


@pytest.mark.parametrize("filter", ["clip", "normalize", "tanh"])
def test_on_a_machine_where_place_matters_records_pass_one_by_one(filter, monkeypatch):
    """Without the rehearsal, the attack would succeed there."""
    monkeypatch.setitem(VICTIMS, "uneven", Victim(lambda: nn.Sequential(Uneven(10, 7), nn.Linear(7, 3)), (10,)))
    with pytest.warns(UserWarning, match=r"records pass one by one"):
        attack = attacked("uneven", FILTERS[filter], 61, 1, "alike")
    assert 0 < max(attack.moved(seed, 37 * seed % 61) for seed in range(4)) <= 1
    attack.gradients.pass_rows = 64
    monkeypatch.setattr(attack.gradients, "rehearse", lambda _: None)
    assert max(attack.moved(seed, 37 * seed % 61) for seed in range(4)) > 2


@pytest.mark.long
def test_ten_thousand_hostile_pairs():
    worst = max(
        attack.moved(seed, left_out) for attack, seed, left_out in islice(hostile_pairs(0, list(VICTIMS)), 10_000)
    )
    assert 0.9 < worst <= 1
