"""The known datasets and the facts about them that are public, by publications that describe each (privacy-model.md 1.4)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

Kind = Literal["vector", "image", "signal", "tokens"]


@dataclass(frozen=True)
class Description:
    """Public facts about one known dataset.

    Attributes:
        bounds: ``(low, high)`` of every feature; values outside saturate.
        records: number of training records.
        openml, openml_name: id of its table on OpenML, 0 where there is none, and the name that it must carry.
        openml_test: how many trailing rows of the OpenML table are the test split.
        first_label: the number that the OpenML table gives to class 0.
    """

    name: str
    summary: str
    kind: Kind
    shape: tuple[int, ...]
    bounds: tuple[float, float]
    classes: int
    records: int
    openml: int = 0
    openml_name: str = ""
    openml_test: int = 0
    first_label: int = 0


_UNIT = (-1.0, 1.0)
_GREY = "image", (28, 28), (0.0, 255.0), 10
_COLOURED = "image", (32, 32, 3), (0.0, 255.0), 10
_ROWS: tuple[tuple[Any, ...], ...] = (
    ("digits", "handwritten digits 8x8, part of scikit-learn", "image", (8, 8), (0.0, 16.0), 10, 1438),
    ("mnist", "MNIST handwritten digits 28x28", *_GREY, 60000, 554, "mnist_784", 10000),
    ("kmnist", "Kuzushiji-MNIST cursive characters 28x28", *_GREY, 60000, 41982, "Kuzushiji-MNIST", 10000),
    ("kmnist-7k", "the first 7,011 training images of KMNIST", *_GREY, 7011),
    ("fashion-mnist", "Fashion-MNIST articles of clothing 28x28", *_GREY, 60000, 40996, "Fashion-MNIST", 10000),
    ("cifar10", "CIFAR-10 colour photographs 32x32", *_COLOURED, 50000, 40927, "CIFAR_10", 10000),
    ("cifar10-12k", "a part of CIFAR-10: 10,000 + 2,000", *_COLOURED, 10000),
    ("cifar10-45k", "its training images, 45,000 + 5,000", *_COLOURED, 45000),
    ("har", "smartphone activity recognition, 561 features", "vector", (561,), _UNIT, 6, 7352, 1478, "har", 2947, 1),
    # The phone's accelerometer is specified for +-2 g; the few faster turns of the gyroscope (rad/s) saturate.
    ("har-signals", "its raw signals, a part: 128 steps of 9", "signal", (128, 9), (-2.0, 2.0), 6, 2400),
    ("har-raw", "its raw signals, complete: 128 steps of 9", "signal", (128, 9), (-2.0, 2.0), 6, 7352),
    ("isolet", "ISOLET spoken letters, 617 features", "vector", (617,), _UNIT, 26, 6238, 300, "isolet", 1559, 1),
    ("a9a", "Adult income, 123 binary features", "vector", (123,), (0.0, 1.0), 2, 32561),
    # The shape and bounds are those of the usual --length and --words.
    ("imdb", "film reviews, positive or not, as words", "tokens", (256,), (0.0, 9999.0), 2, 25000),
)
"""Fields of each description, in their order."""

_CATALOGUE: Mapping[str, Description] = MappingProxyType({row[0]: Description(*row) for row in _ROWS})


def catalogue() -> Mapping[str, Description]:
    """Return the known datasets by name, read-only."""
    return _CATALOGUE


def data_home() -> Path:
    """Return the folder of dataset files: environment variable ``DPLTM_DATA``, else ``dpltm`` in the user cache folder."""
    declared = os.environ.get("DPLTM_DATA")
    return Path(declared).expanduser() if declared else cache_home()


def cache_home() -> Path:
    """Return the folder for what can be had again: ``dpltm`` in the user cache folder."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "dpltm"
