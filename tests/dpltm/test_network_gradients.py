"""Networks by name against one record at a time by plain autograd, under every filter, and a mask on every weight."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from dpltm.filters import FILTERS, Filter, make_filter
from dpltm.generation import GenerationConfig, without_data
from dpltm.gradients import RecordGradients
from dpltm.masks import Mask
from dpltm.models import ModelSpec, build
from dpltm.training import cross_entropy

NETWORKS = [
    ("embed:9", 7, 3),
    ("embed-pad:9", 7, 3),
    ("embed-tanh:9:4,5,3", 7, 3),
    ("embed:9:4", 7, 2),
    ("lstm:5x3", 15, 3),
    ("gru:5x3:4", 15, 3),
    ("lstm:9:4,3", 7, 2),
    ("gru:9:4,3", 7, 2),
    ("latent:7x8x1:3,4,5", 56, 3),
    ("latent-tanh:10x11x2:2,3,3,2,4", 220, 3),
]
RECORDS = 6


def records(spec: ModelSpec) -> tuple[Tensor, Tensor]:
    """Padded in front, repeating words, one all padding and one of values outside the table; or quantities."""
    generator = torch.Generator().manual_seed(1)
    y = torch.arange(RECORDS) % spec.classes
    if not spec.tables:
        return torch.randn(RECORDS, spec.features, generator=generator, dtype=torch.float64), y
    x = torch.randint(1, spec.tables[0], (RECORDS, spec.features), generator=generator).double()
    for record in range(RECORDS):
        x[record, : 2 * record % spec.features] = 0
    x[4] = 0
    x[5, :3] = torch.tensor([-1.0, spec.tables[0], torch.nan])
    return x, y


def pruned(spec: ModelSpec) -> tuple[nn.Module, Mask]:
    """The network with no weight or bias at zero but those of its mask, which has two thirds of each parameter."""
    model, generator, mask = build(spec, 2).double(), torch.Generator().manual_seed(3), {}
    for name, value in model.named_parameters():
        value.data = 0.7 * torch.randn(value.shape, generator=generator, dtype=torch.float64)
        mask[name] = torch.rand(value.shape, generator=generator) < 2 / 3
        mask[name].view(-1)[0] = True
    found = Mask(mask)
    found.apply(model)
    return model, found


def layers_of(model: nn.Module) -> list[list[str]]:
    """Parameters module by module, as per-layer clipping takes them."""
    groups: dict[str, list[str]] = {}
    for name, _ in model.named_parameters():
        groups.setdefault(name.rpartition(".")[0], []).append(name)
    return list(groups.values())


def filtered(gradients: list[Tensor], filter: Filter, rounding: float) -> Tensor:
    """What a record contributes: its gradient, layer by layer, through the filter; layers in a row."""
    whole = torch.cat(gradients)
    if filter.kind == "layer-wise":
        factors = filter.factor(torch.stack([part.norm() for part in gradients])[:, None])[:, 0]
        return torch.cat([part * factor for part, factor in zip(gradients, factors, strict=True)]) * rounding
    if filter.kind == "radial":
        return whole * filter.factor(whole.norm()[None]) * rounding
    if filter.before is not None:
        whole = whole * filter.before.factor(whole.norm()[None]) * rounding
    whole = filter.map(whole)
    return whole if filter.after is None else whole * filter.after.factor(whole.norm()[None]) * rounding


@pytest.mark.parametrize(("text", "features", "classes"), NETWORKS)
def test_filtered_sums(text, features, classes):
    spec = ModelSpec(text, features, classes)
    (x, y), (model, mask) = records(spec), pruned(spec)
    gradients = RecordGradients(model, mask, cross_entropy)
    names = [name for name, _ in model.named_parameters()]
    each = []
    for record in range(len(x)):
        loss = cross_entropy(model(x[record : record + 1]), y[record : record + 1]).sum()
        named = dict(zip(names, torch.autograd.grad(loss, list(model.parameters())), strict=True))
        each.append([torch.cat([named[name][mask[name]] for name in layer]) for layer in layers_of(model)])
    for kind in FILTERS:
        values = {"clip_norm": 0.3, "tanh_range": 0.1}
        known = [parameter.name for parameter in FILTERS[kind].parameters]
        filter = make_filter(kind, **{name: value for name, value in values.items() if name in known})
        found = gradients.filtered_sum(x, y, filter)
        expected = torch.stack([filtered(parts, filter, gradients.rounding) for parts in each]).sum(0)
        assert found.skipped == 0
        assert len(expected) == mask.live
        assert float(expected.norm()) > 0
        torch.testing.assert_close(
            found.values, expected, rtol=1e-9, atol=1e-10, msg=lambda text, kind=kind: kind + text
        )
    assert gradients._plan is not None
    assert not gradients._plan.whole, "taken by torch.func, not by rules"


@pytest.mark.parametrize(("text", "features", "classes"), NETWORKS)
def test_tickets_prune_tables_and_recurrent_weights(text, features, classes):
    spec = ModelSpec(text, features, classes)
    made = without_data(spec, GenerationConfig(rounds=2, prune=(0.3,), criterion="init-magnitude"))
    last = made.tickets[-1].mask
    for name, shape in spec.shapes().items():
        assert bool(last[name].all()) == (len(shape) == 1), name
