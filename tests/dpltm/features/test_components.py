"""Principal components of public features, against numpy's singular values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from dpltm.features.feature_map import make_feature_map, principal_components
from dpltm.features.normalisation import NORM, principal_axes
from refusals import refused
from set_entries import LINEAGES


@pytest.mark.parametrize("records", [60, 12], ids=["more records than features", "fewer"])
def test_components_and_variances(records):
    x = np.random.default_rng(0).normal(size=(records, 20)) * np.linspace(3, 0.5, 20)
    found = principal_components(torch.from_numpy(x).float(), 5)
    np.testing.assert_allclose(found.offset, x.mean(0), atol=1e-5)
    _, singular, rows = np.linalg.svd(x - x.mean(0), full_matrices=False)
    variances = singular**2 / records
    for k in range(5):
        expected = rows[k] / variances[k] ** 0.25
        component = found.components[k].numpy()
        np.testing.assert_allclose(component * np.sign(component @ expected), expected, atol=1e-4)


def test_the_same_public_records_give_the_same_signs():
    x = torch.randn(40, 10, generator=torch.Generator().manual_seed(1))
    one, other = principal_components(x, 4).components, principal_components(x.flip(0), 4).components
    torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    assert bool((one.gather(1, one.abs().argmax(1, keepdim=True)) > 0).all())


@pytest.mark.parametrize(("count", "most"), [(0, 10), (11, 10), (8, 7)])
def test_as_many_as_there_are(count, most):
    x = torch.randn(most + 1 if most == 7 else 40, 10)
    assert refused(principal_components, x, count).startswith(f"`components`: {count} is not from 1 to {most}, ")


def test_axes_without_spread_are_numbers_all_the_same():
    units = torch.zeros(50, 1152)
    units[:, :5] = torch.randn(50, 5, generator=torch.Generator().manual_seed(0))
    assert all(part.half().isfinite().all() for part in vars(principal_axes(units, 400, 0.4, 1e-9)).values())


def test_projected_features():
    plain = make_feature_map("unit:1", (9,), (0.0, 1.0))
    rng = np.random.default_rng(2)
    public, x = rng.random((50, 9)), rng.random((6, 9))
    projection = principal_components(plain(public), 3)
    found = replace(plain, lineage=LINEAGES["public"], projection=projection)
    assert (found.features, found.plain_shape) == (3, (9,))
    by_hand = (plain(x) - projection.offset) @ projection.components.T
    torch.testing.assert_close(found(x), NORM * by_hand / by_hand.norm(dim=1, keepdim=True))
    torch.testing.assert_close(found(x[2:3]), found(x)[2:3])
    assert len({plain.id, found.id, replace(found, projection=principal_components(plain(public), 2)).id}) == 3
    assert refused(found.for_records, (10,), (0.0, 1.0)).startswith(
        "`features`: components are of 9 features, but records of shape (10,) have 10"
    )
