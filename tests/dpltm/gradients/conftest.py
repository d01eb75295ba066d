"""Every test of gradients runs twice: with dense products throughout, and with sparse ones wherever there is a mask."""

from collections.abc import Iterator

import pytest

from dpltm.gradients import linear_layer
from gradient_cases import always


@pytest.fixture(scope="module", params=["dense", "sparse"], autouse=True)
def _products(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linear_layer, "kernel_for", always(request.param))
        yield
