"""Changes: the same outputs, start weights that stay, and what cannot be had."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import dpltm
from dpltm.networks import changes_of
from refusals import refused


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.conv = nn.Embedding(5, 4), nn.Conv1d(4, 3, 3, padding=1)
        self.norm, self.head = nn.LayerNorm(3), nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.conv(self.table(x).mT).relu().mean(2)))


def test_it_computes_the_same_and_its_gradients_are_those_of_the_weights():
    model, x = Net(), torch.arange(20).view(4, 5) % 5
    changed = changes_of(model)
    assert torch.equal(changed(x), model(x))
    for each in (model, changed):
        each(x).square().sum().backward()
    for name, value in model.named_parameters():
        layer, _, last = name.rpartition(".")
        mine = changed.get_parameter(name if layer == "norm" else f"{layer}.change.{last}")
        assert torch.allclose(mine.grad, value.grad, atol=1e-6)
    assert {name for name, value in changed.named_parameters() if not value.requires_grad} == {
        f"{layer}.start.{last}" for layer in ("table", "conv", "head") for last in ("weight", "bias")
    } - {"table.start.bias"}
    assert type(changes_of(nn.Linear(2, 2)).start) is nn.Linear


def test_a_ticket_of_a_change_leaves_the_other_weights_as_they_were():
    pretrained = nn.Sequential(nn.Flatten(), nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    x, y = np.random.default_rng(0).integers(0, 256, (90, 6), dtype=np.uint8), np.arange(90) % 3
    facts = {"bounds": (0, 255), "classes": 3, "ledger": dpltm.Ledger()}
    own = {"start_provenance": "public", "prunable": ["1.change.weight"]}
    few = {"criterion": "dp-train", "rounds": 1, "prune": "0.9", "iterations": 2, "batch_size": 30}
    model = changes_of(pretrained, ["1"])
    tickets = dpltm.generate(x, y, model=model, epsilon=1, delta=1e-3, **own, **few, **facts)
    run = dpltm.train(tickets, x, y, round=1, epsilon=2, delta=1e-3, steps=2, **facts)
    layer, live = run.model.get_submodule("1"), tickets.body.tickets[1].mask["1.change.weight"]
    assert int(live.sum()) == 5
    assert torch.equal(layer.start.weight, pretrained[1].weight)
    assert not bool(layer.change.weight[~live].any())
    assert bool(layer.change.weight[live].any()), "noise on a grid may be nothing in one place, hardly in five"
    assert not torch.equal(run.model.get_submodule("3").weight, pretrained[3].weight), "the head is trained whole"


@pytest.mark.parametrize(
    ("tie", "message"),
    [
        (False, "`layers`: no linear layer has a name like 'heat'; did you mean head?"),
        (True, "`layers`: table.weight and head.weight are one parameter; leave head out"),
    ],
)
def test_what_is_refused(tie, message):
    model = Net()
    if tie:
        model.head = nn.Linear(4, 5)
        model.head.weight = model.table.weight
    assert refused(changes_of, model, "*" if tie else ["head", "heat"]) == message
