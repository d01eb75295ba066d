"""Compiled element-wise filters against the same filters as they stand."""

import shutil

import numpy as np
import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

import dpltm
from dpltm.filters import Clip, Sigmoid, Tanh
from dpltm.gradients import RecordGradients, linear_layer
from dpltm.networks.masks import Mask
from gradient_cases import cross_entropy, noisy, steps_of

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit.script_method"),  # torch's own, when it loads its compiler
    pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler to compile with"),
]


def network(seed: int = 0) -> tuple[nn.Module, Mask]:
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(30, 20), nn.ReLU(), nn.Linear(20, 5))
    for value in model.parameters():
        value.data.copy_(torch.randn(value.shape, generator=generator))
    mask = Mask({name: torch.rand(value.shape, generator=generator) < 0.4 for name, value in model.named_parameters()})
    mask.apply(model)
    return model, mask


@pytest.mark.long
@pytest.mark.parametrize("filter", [Tanh(2.0, 0.5, Clip(1.0)), Sigmoid(1.0, 2.0)], ids=str)
def test_equals_what_is_not_compiled(monkeypatch, filter):
    monkeypatch.setattr(linear_layer, "WORTH_COMPILING", 1)
    torch.compiler.reset()
    counters.clear()
    model, mask = network()
    x, y = torch.randn(33, 30), torch.arange(33) % 5
    plain = RecordGradients(model, mask, cross_entropy)
    compiled = RecordGradients(model, mask, cross_entropy, compile=True)
    expected = plain.filtered_sum(x, y, filter).values
    torch.testing.assert_close(compiled.filtered_sum(x, y, filter).values, expected, rtol=1e-5, atol=1e-5)
    assert all(layer._compile for layer in compiled._plan.layers)
    assert counters["stats"]["unique_graphs"] > 0, "compiled, and not left to eager torch"
    present = torch.arange(33) < 20
    x[20:] = torch.nan
    some, alone = compiled.filtered_sum(x, y, filter, present), plain.filtered_sum(x[:20], y[:20], filter)
    torch.testing.assert_close(some.values, alone.values, rtol=1e-5, atol=1e-5)
    assert some.skipped == 0


def test_without_a_compiler_nothing_is_compiled(monkeypatch):
    """Neither by the engine nor by a training, which then fills up no batch; and the report says so."""
    model, mask = network()
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(torch, "compile", None)
    x, y = torch.rand(21, 30), torch.arange(21) % 5
    filter = Tanh(1.0, 0.1, Clip(0.5))
    values = RecordGradients(model, mask, cross_entropy, compile=True).filtered_sum(x, y, filter).values
    assert torch.equal(values, RecordGradients(model, mask, cross_entropy).filtered_sum(x, y, filter).values)
    noisy(model, x, y, steps_of(filter, 1.0, 1, 21.0, 0.0, 1.0, compile=True), mask=mask).backward()
    options = {"filter": "tanh", "compile": True, "noise_multiplier": 1.0, "steps": 2, "batch_size": 50}
    x, y = torch.rand(99, 4).numpy(), np.arange(99) % 2
    run = dpltm.train("mlp:5", x, y, bounds=(0, 1), classes=2, records=99, **options)
    assert any("no C++ compiler is at hand" in note for note in run.privacy.notes)
