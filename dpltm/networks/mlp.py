"""``mlp:300,100``: Linear layers with ReLU between them.

``mlp:project64,300,100`` has a Linear layer ``project`` of 64 outputs in front, with no activation behind it: what is behind
does not depend on the width of the records, and moves to other ones with a new layer in front (DPLTM, section 4.5).
"""

from __future__ import annotations

import re

from dpltm.errors import InputError
from dpltm.networks.kind import MAX_WIDTH, LayerSpec, NetworkKind, Shapes, stack

PROJECTION = "project"
"""Name of the layer in front whose weights belong to the records' width, and to no ticket."""


def widths(text: str) -> tuple[int | None, tuple[int, ...]]:
    """Outputs of the projection in front, None where there is none, and widths of the hidden layers."""
    parts = text.partition(":")[2].split(",") if ":" in text else []
    front = [part.removeprefix(PROJECTION) for part in parts[:1] if part.startswith(PROJECTION)]
    sizes = [int(part) if re.fullmatch("[1-9][0-9]{0,8}", part) else 0 for part in (*front, *parts[len(front) :])]
    if any(not 1 <= size <= MAX_WIDTH for size in sizes) or len(sizes) - len(front) > 100:
        raise InputError(
            f"`model`: {text!r:.80}: widths must be whole numbers from 1 to {MAX_WIDTH}, as in mlp:300,100"
            + (f"; only the first may be a projection, as in mlp:{PROJECTION}64,300,100" if PROJECTION in text else "")
        )
    return (sizes[0] if front else None), tuple(sizes[len(front) :])


class Mlp(NetworkKind):
    """The network ``mlp`` of the module's docstring."""

    def check(self, text: str, features: int) -> None:
        del features
        widths(text)

    def layers(self, text: str, features: int, classes: int) -> tuple[LayerSpec, ...]:
        front, hidden = widths(text)
        names = tuple(f"fc{number}" for number in range(1, len(hidden) + 2))
        if front is None:
            return stack((features, *hidden, classes), names)
        return stack((features, front, *hidden, classes), (PROJECTION, *names))

    def renamed(self, text: str, shapes: Shapes) -> str:
        front, hidden = widths(text)
        parts = [] if front is None else [f"{PROJECTION}{shapes[f'{PROJECTION}.weight'][0]}"]
        parts += [str(shapes[f"fc{number}.weight"][0]) for number in range(1, len(hidden) + 1)]
        return ":".join(("mlp", ",".join(parts))) if parts else "mlp"


MLP = Mlp(
    "mlp",
    "Fully connected layers with ReLU between them.",
    "as in the lottery-ticket experiments of Frankle and Carbin 2019",
    "mlp[-tanh]:W,W,...",
    ("vectors",),
    usage="mlp:WIDTH,WIDTH,... (such as mlp:300,100), mlp-tanh:...",
)
