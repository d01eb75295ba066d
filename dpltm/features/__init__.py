"""Maps in front of a network that act on one record at a time: scattering, which needs no data, or a frozen network."""

from dpltm.features.feature_map import NORM, FeatureMap, parse, scatter, statistics

__all__ = ["NORM", "FeatureMap", "parse", "scatter", "statistics"]
