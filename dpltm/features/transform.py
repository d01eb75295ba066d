"""What a transform is to the maps that are made of it. Nothing here imports torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class Transform(Protocol):
    """What takes records of one shape to their features, each record by itself, before normalisation.

    Attributes:
        feature_shape: of the features of one record: (height, width, channels), or (their number,).
        channel_groups: of neighbouring channels, each of which may be normalised within a record; None for features that
            have no channels.
    """

    @property
    def feature_shape(self) -> tuple[int, ...]: ...

    @property
    def channel_groups(self) -> int | None: ...

    def __call__(self, x: Tensor) -> Tensor:
        """Records in the unit range, ``(n, *shape)``, to ``(n, channels, height, width)`` or ``(n, features)``."""
        ...
