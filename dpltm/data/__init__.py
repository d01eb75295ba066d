"""Datasets: known names and files, checked, with public bounds, a public size and an identity.

``load`` is the way in; what it returns is a ``Dataset``. ``scale`` maps features into the unit range by public bounds.
"""

from dpltm.data.catalogue import Description, catalogue
from dpltm.data.dataset import Dataset, Origin, Split
from dpltm.data.load import cache_home, data_home, load
from dpltm.data.scaling import affine, scale, unit_range

__all__ = [
    "Dataset",
    "Description",
    "Origin",
    "Split",
    "affine",
    "cache_home",
    "catalogue",
    "data_home",
    "load",
    "scale",
    "unit_range",
]
