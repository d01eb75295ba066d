"""What several tests of gradients build on: networks put together by hand, and values and filters to attack them with."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from torch import nn

from dpltm.filters import Automatic, Clip, PerLayerClip, RadialTanh, Sigmoid, Tanh


class Applied(nn.Module):
    """Modules, parameters and other attributes by name, and how they are put together."""

    def __init__(self, forward: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self._put_together = forward
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs: Any) -> Any:
        return self._put_together(self, *inputs)


def powers(low: float, high: float) -> st.SearchStrategy[float]:
    """Both signs, even in the exponent."""
    exponent = st.floats(math.log10(low), math.log10(high))
    return st.builds(lambda sign, power: sign * 10**power, st.sampled_from([-1.0, 1.0]), exponent)


steps_around_powers_of_two = [
    sign * 2.0**power * step for sign in (1, -1) for power in (-60, 20, 60) for step in (1, 1 + 2**-23, 1 - 2**-24)
]
"""Where the engine changes its precision, and where it gives a record up."""

parameter = powers(1e-6, 1e6).map(abs).map(lambda value: min(max(value, 1e-6), 1e6))
filters = st.one_of(
    st.builds(Clip, parameter),
    st.builds(PerLayerClip, parameter),
    st.builds(RadialTanh, parameter, parameter),
    st.builds(Automatic, parameter, st.sampled_from([0.0, 0.01])),
    st.builds(Tanh, parameter, parameter, st.builds(Clip, parameter)),
    st.builds(Tanh, parameter, parameter, st.none()),
    st.builds(Tanh, parameter, parameter, st.none(), st.builds(Clip, parameter)),
    st.builds(Sigmoid, parameter, parameter),
)
