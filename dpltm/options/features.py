"""What stands in front of the network."""

from __future__ import annotations

from dataclasses import dataclass

from dpltm.features.registry import metavar
from dpltm.options import option


@dataclass(frozen=True, kw_only=True)
class MapOptions:
    """Features: the map in front of the network, and the public records that it takes something from."""

    features: str | None = option(
        None,
        "In front of the network, at no cost: drawings, photographs, scatter or conv for images, wavelets for signals, unit"
        " (K neighbours averaged) or fourier (random features of a Gaussian kernel) for any records, several of these"
        " joined by +, or network:RUN.",
        metavar=metavar(),
        shown="none; a ticket set remembers its own",
    )
    public: str | None = option(
        None,
        "Dataset declared public, known by name or a file of bytes: its channel means and deviations normalise scatter"
        " and conv features, and `components` come from it.",
        metavar="NAME|FILE",
        shown="normalisation within each record",
    )


@dataclass(frozen=True, kw_only=True)
class FeatureOptions(MapOptions):
    """Features: all that stands in front of the network."""

    components: int | None = option(
        None, "Project features onto so many principal components of those of `public`, partly whitened.", metavar="K"
    )


@dataclass(frozen=True, kw_only=True)
class MakeRequest:
    """Makes what is bundled for features again: from a formula and a seed, and no data. On one core
    drawings take under an hour, photographs a minute.

    The bundled one is seed 0 with the steps that are usual. Where torch rounds in the same way, its digest is the same.

    Examples:
        dpltm features make drawings --out drawings.safetensors
        dpltm features make photographs
    """

    what: str | None = option(
        None,
        "Which: drawings or photographs.",
        choices=("drawings", "photographs"),
        metavar="WHAT",
        argument=True,
        required=True,
    )
    seed: int = option(0, "Public; decides all images and starting weights.", metavar="S")
    steps: int | None = option(
        None,
        "Of training; for photographs, rounds of k-means.",
        metavar="T",
        shown="those of the bundled file: 2000 for drawings, 8 for photographs",
    )
    out: str | None = option(None, "File to write.", metavar="FILE", shown="WHAT.safetensors")
