"""Services of stages, with features from the cache, and names of their results."""

from __future__ import annotations

from pathlib import Path

from dpltm.features.inputs import Services
from dpltm.progress import Progress
from dpltm.tickets.feature_files import FeatureCache


def services(progress: Progress) -> Services:
    """Services of a stage: features from the user's cache."""
    return Services(progress, FeatureCache())


def free_name(stem: str, suffix: str) -> Path:
    """``STEMSUFFIX``, or ``STEM-2SUFFIX`` and so on: the first that does not exist yet."""
    path, number = Path(stem + suffix), 1
    while path.exists():
        number += 1
        path = Path(f"{stem}-{number}{suffix}")
    return path
