"""Options of making the features that come with dpltm."""

from __future__ import annotations

from dataclasses import dataclass

from dpltm.options import option


@dataclass(frozen=True, kw_only=True)
class MakeRequest:
    """Makes what is bundled for features again: from a formula and a seed, and no data. On one core
    drawings take under an hour, photographs a minute or two.

    The bundled one is seed 0 with the steps that are usual. Where torch rounds in the same way, its digest is the same.

    Examples:
        dpltm features make drawings --out drawings.safetensors
        dpltm features make photographs
    """

    what: str | None = option(
        None,
        "Which: drawings or photographs.",
        "WHAT",
        choices=("drawings", "photographs"),
        argument=True,
        required=True,
    )
    seed: int = option(0, "Public; decides all images and starting weights.", "S")
    steps: int | None = option(
        None,
        "Of training; for photographs, rounds of k-means.",
        "T",
        shown="those of the bundled file: 2000 for drawings, 8 for photographs",
    )
    out: str | None = option(None, "File to write.", "FILE", shown="WHAT.safetensors")
