"""Whether a loop moves the weights that it pays for: an optimizer that has other ones is noticed after the first steps."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dpltm.errors import InputError
from dpltm.networks.masks import Mask
from dpltm.verbs.private_loop import FIRST_STEPS, PrivateLoop

STUCK = (
    "model: after 10 steps no weight has moved, so nothing is trained though it is paid for; give the optimizer the"
    " parameters of the very model that the loop has ({}), and call its step"
)
NAMES = "0.weight, 0.bias, 2.weight and 1 more"


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))


def loop_over(model: nn.Module, steps: int = 15, **settings: Any) -> PrivateLoop:
    x, y = torch.rand(60, 4, generator=torch.Generator().manual_seed(1)), torch.arange(60) % 2
    given = {"batch_size": 10, "steps": steps, "noise_multiplier": 1.0, "delta": 1e-3, "records": 60, **settings}
    return PrivateLoop(model, nn.CrossEntropyLoss(reduction="none"), x, y, **given)


def run(loop: PrivateLoop, parameters: Iterable[Tensor], every: int = 1, lr: float = 0.1) -> int:
    """Trains those parameters; returns how many steps were taken."""
    optimizer, taken = torch.optim.SGD(list(parameters), lr=lr), 0
    for step in loop:
        step.backward()
        taken += 1
        if taken % every == 0:
            optimizer.step()
    return taken


def notes(loop: PrivateLoop) -> list[str]:
    return [note for note in loop.report().notes if "not moved" in note]


def test_an_optimizer_of_other_parameters_is_noticed() -> None:
    """As after wrapping, copying or replacing a layer: nothing fails, and nothing is trained."""
    model = network()
    loop = loop_over(model)
    with pytest.raises(InputError) as caught:
        run(loop, copy.deepcopy(model).parameters())
    assert str(caught.value) == STUCK.format(NAMES)
    assert len(loop.ledger.book.entries) == 1  # what was entered stays


def test_a_step_size_of_zero_is_noticed() -> None:
    model = network()
    with pytest.raises(InputError, match=r"^model: after 10 steps no weight has moved"):
        run(loop_over(model), model.parameters(), lr=0.0)


@pytest.mark.parametrize("every", [1, 5, FIRST_STEPS])
def test_weights_that_move_are_left_alone(every: int) -> None:
    model = network()
    loop = loop_over(model)
    assert run(loop, model.parameters(), every) == 15
    assert notes(loop) == []


def test_some_that_stay_are_named_in_the_report() -> None:
    model = network()
    loop = loop_over(model)
    assert run(loop, model[2].parameters()) == 15
    assert notes(loop) == [
        "2 of 4 parameters had not moved after the first steps (0.weight, 0.bias): the optimizer may not have them; freeze"
        " them (requires_grad False) before the loop is made, and there is less noise for the others"
    ]


def test_what_cannot_move_is_not_missed() -> None:
    """A frozen layer, and one whose weights are all pruned: they become zero once, which is no training."""
    model = network()
    model[0].bias.requires_grad_(False)
    mask = Mask(
        {name: torch.full_like(value, "0.weight" not in name, dtype=bool) for name, value in model.named_parameters()}
    )
    loop = loop_over(model, mask=mask, provenance="data-free")
    run(loop, [value for value in model.parameters() if value.requires_grad])
    assert notes(loop) == []
    assert not bool(model[0].weight.any())
    again = network()
    again[0].requires_grad_(False)
    stuck = loop_over(again, mask=None)
    with pytest.raises(InputError) as caught:
        run(stuck, copy.deepcopy(again).parameters())
    assert str(caught.value) == STUCK.format("2.weight, 2.bias")


def test_a_short_loop_is_not_judged() -> None:
    model = network()
    loop = loop_over(model, steps=FIRST_STEPS)
    assert run(loop, copy.deepcopy(model).parameters()) == FIRST_STEPS
    assert notes(loop) == []
