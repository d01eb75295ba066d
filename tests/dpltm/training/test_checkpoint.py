"""Trainings that end and go on elsewhere: the same bits as of one that did not."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from dpltm.errors import InputError
from dpltm.filters import Clip
from dpltm.networks import ModelSpec, build
from dpltm.options.train import TrainOptions
from dpltm.privacy.checkpoint import check_same
from dpltm.privacy.mechanisms import NoisySgd
from dpltm.randomness.noise import KeyedSource, source_of
from dpltm.records.batches import Records
from dpltm.training.descent import OPTIMIZERS, Descent, NoisyGradients, cross_entropy
from dpltm.training.plan import NoisySteps
from gradient_cases import some_mask, toy_data
from interruptions import run_until
from refusals import refused

SPEC, STEPS = ModelSpec("mlp:6", 5, 3), 7


def descent(optimizer, average, sources, steps=STEPS, share=0.0):
    (x, y), model = toy_data(), build(SPEC, 0)
    model = nn.Sequential(nn.Dropout(share), model) if share else model
    config = NoisySteps(
        Clip(1.0),
        NoisySgd(0.5, steps, 0.7),
        20.0,
        0.1,
        options=TrainOptions(optimizer=optimizer, schedule="cosine", average=average),
    )
    names = dict(zip(("sampling", "noise"), sources, strict=True))
    return Descent(NoisyGradients(model, some_mask(model), cross_entropy, Records(x, y), config, **names))


def sources():
    return KeyedSource(bytes(32)), KeyedSource(bytes([1] * 32))


def weights(of):
    return torch.cat([value.detach().flatten() for value in of.gradients.parameters])


@pytest.mark.one_of(10)
@pytest.mark.parametrize(
    ("optimizer", "average", "share"),
    [*((*kind, 0.0) for kind in itertools.product(OPTIMIZERS, ("none", "ema", "poly"))), ("sgd", "none", 0.5)],
)
def test_a_training_goes_on_to_the_same_bits(optimizer, average, share):
    """With what its network drops, too."""
    whole = descent(optimizer, average, sources(), share=share)
    whole.run()
    for stop in (0, 1, 4, STEPS):
        drawn = sources()
        first = descent(optimizer, average, drawn, share=share)
        run_until(first, stop)
        state = {name: value.clone() for name, value in first.state().items()}
        states = [source.state for source in drawn]
        first.run()  # what the dead process went on with is nobody's
        second = descent(optimizer, average, [source_of(each) for each in states], share=share)
        second.resume(stop, state)
        second.run()
        assert torch.equal(weights(second), weights(whole)), stop


def test_a_step_that_is_computed_again_has_the_same_noisy_gradient():
    """So there is no second noise that could be averaged with the first."""
    drawn = sources()
    first = descent("sgd", "none", drawn)
    states = [source.state for source in drawn]
    first.gradients.backward()
    again = descent("sgd", "none", [source_of(each) for each in states])
    again.gradients.backward()
    for one, other in zip(first.gradients.parameters, again.gradients.parameters, strict=True):
        assert torch.equal(one.grad, other.grad)
    first.gradients.backward()
    assert not torch.equal(first.gradients.parameters[0].grad, again.gradients.parameters[0].grad)


def test_state_of_another_network_is_refused():
    made = descent("momentum", "ema", sources())
    made.gradients.backward()
    state = made.state()
    state["weights/0"] = torch.zeros(1, 2)
    assert refused(made.resume, 1, state) == "checkpoint: weights/0 has shape (1, 2), not (6, 5)"


def test_every_difference_is_named():
    had = {"lr": 0.1, "steps": 3, "model": None}
    check_same(had, dict(had))
    with pytest.raises(InputError) as caught:
        check_same(had, {"lr": 0.2, "steps": 3, "model": "mlp", "delta": 1e-5})
    said = "`lr` was 0.1 and is 0.2, `model` was not given and is 'mlp', `delta` was not given and is 1e-05;"
    assert said in str(caught.value)
