"""Trainings that end and go on elsewhere: the same bits as of one that did not."""

from typing import Any

import pytest
import torch

from descents import STEPS, keyed_descent, states_of, weights
from dpltm.training.descent import OPTIMIZERS
from interruptions import run_until
from refusals import refused

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
