"""Compaction: the compact network computes what the masked one does, and every unit that is left is of use."""

import copy

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dpltm.filters import Clip
from dpltm.gradients import RecordGradients
from dpltm.networks import ModelSpec, build
from dpltm.networks.compaction import compact
from dpltm.networks.masks import Mask
from dpltm.networks.state import weights_of
from dpltm.training.descent import cross_entropy


def random_mask(model: nn.Module, density: float, seed: int, biases: float = 2.0) -> Mask:
    generator = torch.Generator().manual_seed(seed)
    densities = {name: density if value.ndim > 1 else biases for name, value in model.named_parameters()}
    return Mask(
        {name: torch.rand(p.shape, generator=generator) < densities[name] for name, p in model.named_parameters()}
    )


def without(model: nn.Module, *places: tuple[str, object]) -> Mask:
    """Everything is live but these places of these parameters."""
    keep = dict(Mask.dense(model))
    for name, place in places:
        keep[name][place] = False
    return Mask(keep)


SPECS = {
    "mlp": ModelSpec("mlp:9,7", 6, 3),
    "mlp-tanh": ModelSpec("mlp-tanh:9,7,5", 6, 3),
    "project": ModelSpec("mlp:project5,4", 6, 3),
    "cnn": ModelSpec("cnn:14x15x2", 420, 3),
    "small cnn": ModelSpec("cnn-tanh:16x14x1:4,5,6", 224, 3),
    "latent, grey": ModelSpec("latent:8x9x1:4,5,6", 72, 3),
    "latent": ModelSpec("latent:10x11x2:3,4,4,3,5", 220, 3),
    "embed": ModelSpec("embed:9:4,5,3", 6, 3),
}
specs = st.sampled_from(list(SPECS)).map(SPECS.__getitem__)
EXAMPLES = settings.default.max_examples  # of the profile: fifty, or a thousand


def records(spec: ModelSpec, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if spec.tables:
        return torch.randint(9, (5, spec.features), generator=generator).double()
    x = torch.randn(5, spec.features, generator=generator, dtype=torch.float64)
    return x * torch.tensor([0.01, 1.0, 3.0, 1.0, 0.0], dtype=torch.float64)[:, None]


def trained_like(spec: ModelSpec, seed: int) -> nn.Module:
    """A network with weights and biases of the order of those of trained ones, biases of both signs."""
    model, generator = build(spec), torch.Generator().manual_seed(seed)
    for value in model.parameters():
        spread = value[0].numel() ** -0.5 if value.ndim > 1 else 0.3
        value.data.copy_(torch.randn(value.shape, generator=generator) * spread)
    return model


@settings(max_examples=EXAMPLES // 4, deadline=None)
@given(specs, st.sampled_from([0.0, 0.05, 0.1, 0.3, 1.0]), st.integers(0, 10**6), st.booleans())
def test_outputs_and_gradients_are_those_of_the_masked_network(spec, density, seed, some_biases):
    model, x = trained_like(spec, seed), records(spec, seed)
    mask = random_mask(model, density, seed, 0.5 if some_biases else 2.0)
    found = compact(spec, weights_of(model), mask)
    mask.apply(model)
    model, smaller = model.double(), copy.deepcopy(found.model).double()
    torch.testing.assert_close(smaller(x), model(x), rtol=1e-9, atol=1e-9)
    if spec.tables:
        x = x.float()
    y = torch.arange(len(x)) % 3
    sums = []
    for network, live in ((model, mask), (smaller, found.mask)):
        gradients = RecordGradients(network, live, cross_entropy)
        values = gradients.filtered_sum(x, y, Clip(0.1)).values / gradients.rounding  # which follows the widest layer
        dense = {}
        for name, _ in network.named_parameters():
            part, values = values[: int(live[name].sum())], values[int(live[name].sum()) :]
            dense[name] = torch.zeros(live[name].shape, dtype=torch.float64).masked_scatter_(live[name], part)
        sums.append(dense)
    full, less = sums
    for name, places in found.places.items():
        torch.testing.assert_close(less[name].flatten(), full[name].flatten()[places], rtol=1e-6, atol=1e-9)
        gone = torch.ones(full[name].numel(), dtype=torch.bool)
        gone[places] = False
        assert full[name].flatten()[gone].abs().max() < 1e-12 if bool(gone.any()) else True


def test_by_hand():
    """Unit 1 feeds nobody; what it took from unit 0 of the layer before was that unit's only use."""
    spec = ModelSpec("mlp:2,3", 2, 1)
    mask = without(build(spec), ("fc3.weight", (0, 1)), ("fc2.weight", ([0, 2], 0)))
    found = compact(spec, weights_of(build(spec, 0)), mask)
    assert found.spec == ModelSpec("mlp:1,2", 2, 1)
    assert found.places["fc1.weight"].tolist() == [2, 3]
    assert found.places["fc2.weight"].tolist() == [1, 5]
    assert found.places["fc3.weight"].tolist() == [0, 2]
    assert found.mask.live == 2 + 1 + 2 + 2 + 2 + 1
