"""Golden values of the privacy model that no module's own tests hold: mu of the table in section 5.5, bounds of filters.

The rest are where their modules are tested: epsilons in ``test_accountant.py``, draws in ``test_selection.py``, parts in
``test_account.py``, local protocols in ``test_channels.py``, reference bounds of audits in ``test_f_dp.py``.
"""

from __future__ import annotations

import math

import pytest

from dpltm.filters import FILTERS, make_filter
from dpltm.privacy import gdp

C, SCALE, RANGE, LIVE = 2.0, 0.5, 0.25, 400
ROUNDING = 5e-6
"""Share that bounds of filters are rounded outward by, at most."""


@pytest.mark.parametrize(
    ("sigma", "steps", "mu", "paper", "epsilon"),
    [
        (1.3, 3516, 0.2273, 0.23, 0.835),
        (1.1, 14062, 0.5736, 0.57, 2.324),
        (0.7, 10547, 1.1339, 1.13, 5.066),
        (0.6, 14531, 1.9975, 2.00, 9.982),
        (0.55, 15938, 2.7608, 2.76, 14.984),
        (0.5, 23438, 4.7822, 4.78, 31.117),
    ],
)
def test_mu_of_the_central_limit(sigma: float, steps: int, mu: float, paper: float, epsilon: float) -> None:
    """GDP Table 1, at q = 256/60000 and delta 1e-5: mu, as the paper rounds it, and the epsilon that it stands for."""
    found = gdp.clt_mu(sigma, 256 / 60000, steps)
    assert found == pytest.approx(mu, abs=5e-5)
    assert round(found, 2) == paper
    assert gdp.epsilon(1e-5, found) == pytest.approx(epsilon, abs=5e-4)


BOUNDS = {
    "clip": ({"clip_norm": C}, C),
    "per-layer": ({"clip_norm": C}, C),  # sqrt(sum C_l^2) of layers that share C
    "tanh, as printed": ({"tanh_scale": SCALE, "tanh_range": RANGE, "no_pre_clip": True}, SCALE * math.sqrt(LIVE)),
    "tanh": (
        {"clip_norm": C, "tanh_scale": SCALE, "tanh_range": RANGE},
        SCALE * math.sqrt(LIVE) * math.tanh(C / (RANGE * math.sqrt(LIVE))),
    ),
    "tanh-clip": ({"clip_norm": C, "tanh_scale": SCALE, "tanh_range": RANGE}, C),
    "radial-tanh": ({"clip_norm": C, "tanh_range": RANGE}, C),
    "auto": ({"clip_norm": C}, C),
    "normalize": ({"clip_norm": C}, C),
    "sigmoid": ({"tanh_scale": SCALE, "tanh_range": RANGE}, SCALE * math.sqrt(LIVE)),
    "dpsr-cg": ({"clip_norm": C}, max(C, 8.0)),
}
"""Parameters of each filter, and the bound of a record's gradient on ``LIVE`` coordinates (section 4.2)."""


@pytest.mark.parametrize("name", BOUNDS)
def test_bounds_of_filters(name: str) -> None:
    parameters, bound = BOUNDS[name]
    found = make_filter(name.partition(",")[0], **parameters).certified_bound(LIVE)
    assert bound <= found <= bound * (1 + ROUNDING)


def test_every_filter_has_a_golden_bound() -> None:
    assert {name.partition(",")[0] for name in BOUNDS} == set(FILTERS)
