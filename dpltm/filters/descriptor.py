"""Descriptor of a filter before one is made: its name, its parameters, and what goes with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

from dpltm.registry import Parameter

if TYPE_CHECKING:
    from torch import Tensor

MIN_PARAMETER = 1e-6
"""Least parameter: below it float32 rounding of products escapes outward rounding; above its inverse as well."""

RANGE = (MIN_PARAMETER, 1 / MIN_PARAMETER)
CLIP_NORM = Parameter("clip_norm", 1.0, "Largest norm C of a filtered gradient; R of clip-then-tanh.", "C", *RANGE)
TANH_SCALE = Parameter("tanh_scale", 1.0, "Vertical range c of tanh and sigmoid.", "c", *RANGE)
TANH_RANGE = Parameter("tanh_range", 1.0, "Horizontal range k of tanh, radial-tanh and sigmoid.", "k", *RANGE)
NO_PRE_CLIP = Parameter("no_pre_clip", False, "tanh as printed in its paper, with no clipping before it.")


class _Bounded(Protocol):
    """Base of all filters: the engine follows ``kind``."""

    @property
    def nominal_bound(self) -> float | None:
        """Bound that its source claims, where that is something else."""

    def certified_bound(self, live: int) -> float:
        """Largest L2 norm of the filtered gradient of one record with ``live`` coordinates, as computed in float32."""


class RadialFilter(_Bounded, Protocol):
    """Rescales the whole gradient by a function of its norm."""

    kind: ClassVar[Literal["radial"]]

    def factor(self, norm: Tensor) -> Tensor:
        """Factor of a gradient of each norm, ``(batch,)`` to ``(batch,)``."""


class LayerWiseFilter(_Bounded, Protocol):
    """Rescales the part of the gradient in each layer by a function of its norm."""

    kind: ClassVar[Literal["layer-wise"]]

    def factor(self, norms: Tensor) -> Tensor:
        """Factor of each layer's part, ``(layers, batch)`` to ``(layers, batch)``."""


class ElementWiseFilter(_Bounded, Protocol):
    """Maps each live coordinate, with a radial filter ``before``, or ``after`` it."""

    kind: ClassVar[Literal["element-wise"]]

    @property
    def before(self) -> RadialFilter | None: ...

    @property
    def after(self) -> RadialFilter | None: ...

    def map(self, values: Tensor) -> Tensor:
        """The map, any shape; ``values`` may be overwritten."""


Filter = RadialFilter | LayerWiseFilter | ElementWiseFilter


@dataclass(frozen=True)
class FilterDescriptor:
    """A filter that can be chosen by ``name``; ``make`` takes its ``parameters``, with ranges and defaults, by name."""

    name: str
    help: str
    source: str
    parameters: tuple[Parameter, ...]
    make: Callable[..., Filter]
