"""What stands in front of the network."""

from __future__ import annotations

from dataclasses import dataclass

from dpltm.features.registry import metavar
from dpltm.options import option


@dataclass(frozen=True, kw_only=True)
class FeatureOptions:
    """What stands in front of the network."""

    features: str | None = option(
        None,
        "In front of the network, at no cost: scatter or conv for images, wavelets for signals, unit (K neighbours averaged)"
        " or fourier (random features of a Gaussian kernel) for any records, or network:RUN.",
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
    components: int | None = option(
        None, "Project features onto so many principal components of those of `public`, partly whitened.", metavar="K"
    )
