"""Networks by name against one record at a time by plain autograd, under every filter, and a mask on every weight."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dpltm.gradients import RecordGradients
from dpltm.networks import ModelSpec, build
from dpltm.training.descent import cross_entropy
from gradient_cases import filters_for, naive_gradients, naive_sum, own_layers, prepared

NETWORKS = [
    ("embed:9", 7, 3),
    ("embed-pad:9", 7, 3),
    ("embed-tanh:9:4,5,3", 7, 3),
    ("lstm:5x3", 15, 3),
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


@pytest.mark.one_of(3)
@pytest.mark.parametrize(("text", "features", "classes"), NETWORKS)
def test_filtered_sums(text, features, classes):
    spec = ModelSpec(text, features, classes)
    (x, y), model = records(spec), build(spec, 2)
    mask = prepared(model, 3, (2 / 3,))
    assert all(bool(mask[name].any()) for name in mask)
    gradients = RecordGradients(model, mask, cross_entropy)
    expected = naive_gradients(model, mask, cross_entropy, x, y)
    norms = torch.cat(list(expected.values()), 1).norm(dim=1)
    for filter in filters_for(float(norms.median())):
        result = gradients.filtered_sum(x, y, filter)
        wanted = naive_sum(expected, filter, gradients.rounding, own_layers(model))
        assert result.skipped == 0
        assert len(wanted) == mask.live
        assert float(wanted.norm()) > 0
        torch.testing.assert_close(
            result.values, wanted, rtol=1e-9, atol=1e-10, msg=lambda text, filter=filter: f"{filter}: {text}"
        )
    assert not gradients._plan.whole, "taken by torch.func, not by rules"
