"""Which kernel a layer gets: measured once, remembered, overridden; and the plain one where nothing can be measured."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dpltm.filters import Clip
from dpltm.gradients import RecordGradients, choose, linear_layer
from dpltm.gradients.kernels import FLOAT64, KERNELS
from dpltm.gradients.kernels.choice import CHOICES, kernel_for
from dpltm.gradients.kernels.operands import Operands
from dpltm.networks.masks import Mask
from dpltm.options import train as options
from gradient_cases import dot
from refusals import refused


def operands(inputs: int = 6, outputs: int = 4, live: int = 3, dtype: torch.dtype = torch.float32) -> Operands:
    mask = torch.zeros(outputs * inputs, dtype=torch.bool)
    mask[:live] = True
    return Operands(nn.Linear(inputs, outputs).to(dtype), mask.view(outputs, inputs))


@pytest.fixture(autouse=True)
def _nothing_chosen(_products: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "_chosen", {})
    monkeypatch.setattr(linear_layer, "kernel_for", kernel_for)  # in spite of the products fixture


def clock(monkeypatch: pytest.MonkeyPatch, *seconds: float) -> list[float]:
    """Batches take so long, in turn of the kernels, again and again."""
    now, calls = [0.0], []

    def read() -> float:
        if len(calls) % 2:
            now[0] += seconds[len(calls) // 2 % len(seconds)]
        calls.append(now[0])
        return now[0]

    monkeypatch.setattr(choose.time, "perf_counter", read)
    return calls


@pytest.mark.parametrize("place", range(len(KERNELS)))
def test_the_quickest_is_taken_and_remembered(monkeypatch, place):
    name, layer = list(KERNELS)[place], operands()
    calls = clock(monkeypatch, *(1.0 if other == name else 2.0 for other in KERNELS))
    assert kernel_for(layer, True) == name
    measured = len(calls)
    assert measured == 2 * len(KERNELS) * choose.TURNS
    assert kernel_for(operands(), True) == name
    assert len(calls) == measured, "what was chosen for a shape is remembered"
    kernel_for(operands(), False)
    assert len(calls) > measured, "but a later layer is another question"
    assert not len(layer.input), "made-up rows are gone"


def test_one_slow_run_decides_nothing(monkeypatch):
    clock(monkeypatch, *[9.0, 2.0, 2.0, 2.0, 2.0] + [1.0, 2.0, 2.0, 2.0, 2.0] * 2)
    assert kernel_for(operands(), True) == next(iter(KERNELS))


def test_a_kernel_that_fails_here_is_left_out(monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("not on this machine")

    monkeypatch.setattr(torch, "embedding_bag", fail)
    calls = clock(monkeypatch, 3.0, 2.0)
    assert kernel_for(operands(), True) == "dense"
    assert len(calls) == 4 * choose.TURNS
    monkeypatch.setattr(torch, "mm", fail)
    monkeypatch.setattr(torch.linalg, "vector_norm", fail)
    assert kernel_for(operands(live=2), False) == FLOAT64


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize(
    "what", [{"live": 0}, {"dtype": torch.float64}, {"inputs": 0, "live": 0}, {"outputs": 0, "live": 0}]
)
def test_where_nothing_is_to_choose_it_is_the_plain_one(monkeypatch, what):
    layer = operands(**what)
    calls = clock(monkeypatch, 1.0)
    for asked in CHOICES:
        assert kernel_for(layer, True, asked) == FLOAT64
    assert calls == []


@pytest.mark.parametrize("asked", KERNELS)
def test_a_name_overrides_and_the_engine_says_what_it_took(monkeypatch, asked):
    calls = clock(monkeypatch, 1.0)
    model = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 2))
    gradients = RecordGradients(model, Mask.dense(model), dot, kernels=asked)
    assert gradients.kernels == {}
    gradients.filtered_sum(torch.ones(4, 3), torch.ones(4, 2), Clip(1.0))
    assert gradients.kernels == {"0.weight": asked, "2.weight": asked}
    assert calls == []


def test_the_options_offer_every_kernel():
    assert options.KERNELS == CHOICES


def test_bad_name():
    model = nn.Linear(2, 2)
    assert refused(RecordGradients, model, Mask.dense(model), dot, kernels="quick") == (
        "`kernels`: unknown kernel 'quick'; known: auto, float64, dense, mixed, sparse, sparse-float64"
    )


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_layers_of_no_size_and_batches_of_another_length():
    model = nn.Sequential(nn.Linear(3, 0), nn.Linear(0, 2))
    gradients = RecordGradients(model, Mask.dense(model), dot)
    for records in (4, 0, 1, 130):
        x, y = torch.ones(records, 3), torch.ones(records, 2)
        found = gradients.filtered_sum(x, y, Clip(1.0), chunks=[slice(0, records)] if records < 100 else [])
        assert found.values.shape == (2,)
    assert set(gradients.kernels.values()) == {FLOAT64}
