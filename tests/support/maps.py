"""Feature maps by the text of their option, as tests name them."""

from dpltm.features import parse
from dpltm.features.feature_map import FeatureMap, map_of


def make_feature_map(text: str, shape: tuple[int, ...], bounds: tuple[float, float]) -> FeatureMap:
    choice = parse(text)
    assert choice is not None
    return map_of(choice, shape, bounds)
