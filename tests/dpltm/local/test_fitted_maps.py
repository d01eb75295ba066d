"""Maps that a scheme fits to its public records: statistics of channels and principal components."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpltm.features.feature_map import make_feature_map
from dpltm.local.scheme import channel_statistics, principal_components
from refusals import refused


def test_statistics_are_means_and_deviations_over_records_and_pixels():
    found = make_feature_map("scatter:2,4", (9, 8, 2), (0.0, 255.0))
    x = np.random.default_rng(0).integers(0, 256, (40, 9, 8, 2), dtype=np.uint8)
    values = found.transformed(x).double().numpy()
    statistics = channel_statistics(found, x)
    np.testing.assert_allclose(statistics.mean, values.mean((0, 2, 3)), atol=1e-6)
    np.testing.assert_allclose(statistics.deviation, values.std((0, 2, 3)), rtol=1e-3, atol=1e-6)


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
