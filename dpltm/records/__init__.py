"""Datasets: known names and files, checked, with public bounds, a public size and an identity.

``load`` is the way in; what it returns is a ``Dataset``. ``load_records`` reads records without labels. ``prepare`` makes
records into what a network gets: features in the unit range, by public bounds.
"""

from dpltm.records.catalogue import Description, cache_home, catalogue, data_home
from dpltm.records.dataset import Dataset
from dpltm.records.files import Layout
from dpltm.records.load import from_arrays, load, load_records
from dpltm.records.scaling import affine, count_outside, prepare, scale
from dpltm.records.split import Arrays, Public, RecordSet, Rows, Split
from dpltm.records.units import at_unit

__all__ = [
    "Arrays", "Dataset", "Description", "Layout", "Public", "RecordSet", "Rows", "Split", "affine",
    "at_unit", "cache_home", "catalogue", "count_outside", "data_home", "from_arrays", "load",
    "load_records", "prepare", "scale",
]  # fmt: skip
