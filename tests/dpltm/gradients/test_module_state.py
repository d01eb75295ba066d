"""A model that is changed between steps is tried again, or refused: what was checked is what trains."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from dpltm.filters import Clip
from dpltm.gradients import RecordGradients
from dpltm.networks.masks import Mask
from dpltm.training.descent import cross_entropy
from refusals import refused

X, Y = torch.linspace(-1, 1, 24).view(6, 4), torch.arange(6) % 3


def engine() -> tuple[nn.Sequential, RecordGradients]:
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    gradients = RecordGradients(model, Mask.dense(model), cross_entropy)
    gradients.filtered_sum(X, Y, Clip(1.0))
    return model, gradients


def mixing(value: torch.Tensor) -> torch.Tensor:
    return value - value.mean(0)


def exchange(model: nn.Sequential) -> None:
    model[1] = nn.BatchNorm1d(5, affine=False, track_running_stats=False)


def grow(model: nn.Sequential) -> None:
    model[1] = nn.LayerNorm(5)


def hook(model: nn.Sequential) -> None:
    model[1].register_forward_hook(lambda _module, _inputs, output: mixing(output))


def hook_before(model: nn.Sequential) -> None:
    model[2].register_forward_pre_hook(lambda _, inputs: (mixing(inputs[0]),))


def patch(model: nn.Sequential) -> None:
    model[1].forward = mixing  # type: ignore[method-assign]


@pytest.mark.one_of(2)
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (exchange, "batch normalisation"),
        (grow, "its parameters are not those that it had at first"),
        *((change, "what one record gives depends on others") for change in (hook, hook_before, patch)),
    ],
)
def test_a_changed_model_is_tried_again(change: Callable[[nn.Sequential], None], said: str) -> None:
    model, gradients = engine()
    change(model)
    assert said in refused(gradients.filtered_sum, X, Y, Clip(1.0))


def test_a_harmless_change_goes_on() -> None:
    model, gradients = engine()
    model[1] = nn.Tanh()
    expected = RecordGradients(model, Mask.dense(model), cross_entropy).filtered_sum(X, Y, Clip(1.0)).values
    assert torch.equal(gradients.filtered_sum(X, Y, Clip(1.0)).values, expected)


class Switched(nn.Module):
    """Mixes records as soon as one of its settings says so."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.plan, self.loss_scale = nn.Linear(4, 3), {"mix": False}, SimpleNamespace(mix=False)
        self.register_buffer("mix", torch.zeros(()))
        self.then = torch.relu

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.then(x)
        mixes = self.plan["mix"] or self.loss_scale.mix or bool(self.mix > 0)
        return self.layer(mixing(x) if mixes else x)


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.plan.update(mix=True),
        lambda model: setattr(model.loss_scale, "mix", True),
        lambda model: model.mix.fill_(1.0),
        lambda model: setattr(model, "then", mixing),
    ],
    ids=["mapping", "namespace", "buffer", "function"],
)
def test_a_setting_that_is_switched_is_tried_again(change: Callable[[nn.Module], None]) -> None:
    model = Switched()
    gradients = RecordGradients(model, Mask.dense(model), cross_entropy)
    gradients.filtered_sum(X, Y, Clip(1.0))
    change(model)
    assert "what one record gives depends on others" in refused(gradients.filtered_sum, X, Y, Clip(1.0))


def test_what_a_program_notes_at_every_step_is_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of losses, a copy of the weights: trying the model anew each time would take long."""
    model = Switched()
    gradients = RecordGradients(model, Mask.dense(model), cross_entropy)
    gradients.filtered_sum(X, Y, Clip(1.0))
    monkeypatch.setattr("dpltm.gradients.engine.make_plan", None)
    model.noted, model.copy = [1.0], torch.ones(9)  # type: ignore[assignment]
    gradients.filtered_sum(X, Y, Clip(1.0))
