"""Maps in front of a network that act on one record at a time: fixed wavelets, which need no data, or a frozen network."""

from dpltm.features.feature_map import (
    CENTRE,
    IMAGES,
    PROJECTION,
    STATISTICS,
    FeatureMap,
    Pool,
    WithoutData,
    parse,
    principal_components,
    statistics,
    without_data,
)
from dpltm.features.normalisation import NORM
from dpltm.features.scattering import Scale
from dpltm.features.wavelets import Bands

__all__ = [
    "CENTRE",
    "IMAGES",
    "NORM",
    "PROJECTION",
    "STATISTICS",
    "Bands",
    "FeatureMap",
    "Pool",
    "Scale",
    "WithoutData",
    "parse",
    "principal_components",
    "statistics",
    "without_data",
]
