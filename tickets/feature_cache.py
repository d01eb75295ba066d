"""Features on disk: computed once for some records, in half precision, and mapped into memory afterwards.

What lies there is private, as the records are: it is readable by its owner alone, under a name that only the owner's key can
connect with them. Deleting the folder loses nothing but time.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from tokenize import TokenError

import numpy as np

from dpltm.data import Augmentation, Dataset, Split, cache_home, copies_of
from dpltm.errors import ArtifactError
from dpltm.features.feature_map import FeatureMap
from dpltm.stages.progress import SILENT, Progress
from dpltm.stages.services import feature_rows, features_of_copies, features_title
from dpltm.tickets.identity import load_key

TRIED = 8
"""Rows of a cache that are computed again, to see that it is what its name says."""


class FeatureCache:
    """The store of features (see :class:`dpltm.stages.services.FeatureStore`) in the user's cache folder."""

    def features(
        self,
        dataset: Dataset,
        split: Split,
        feature_map: FeatureMap,
        augment: Augmentation = "none",
        progress: Progress = SILENT,
    ) -> np.ndarray:
        """Features of all records of a split, mapped from the cache; made first where they are not.

        Args:
            dataset: it belongs to.
            split: ``dataset.train`` or ``dataset.test``.
            feature_map: without a centre.
            augment: copies of each record (see ``copies_of``).
            progress: told of them as they are made, if they are.

        Raises:
            ArtifactError: the cache cannot be written.
        """
        path, copies = cache_path(dataset, split, feature_map, augment), copies_of(split.x[:1], augment).shape[1]
        values = _opened(path, split, feature_map, copies, augment)
        if values is None:
            if path.exists():
                progress.say(f"{path}: is damaged, or of another version; features are computed anew")
            with progress.progress(features_title(dataset, split), len(split)) as step:
                _make(path, split, feature_map, copies, augment, step)
            values = _opened(path, split, feature_map, copies, augment)
        if values is None:
            raise ArtifactError(f"{path}: does not hold what was written; check the disk")
        return values if augment == "none" else values.reshape(len(split), copies, feature_map.features)


def cache_path(dataset: Dataset, split: Split, feature_map: FeatureMap, augment: Augmentation = "none") -> Path:
    """Where they lie: a name by content, keyed, so that it confirms no guess of the records.

    Args:
        dataset: with the identity of its records.
        split: of ``dataset``.
        feature_map: whose features they are.
        augment: copies of each record.
    """
    held_out = split is dataset.test
    rows = dataset.test_rows if held_out else dataset.rows
    assert rows is not None  # of a split that is there
    part = "test" if held_out else f"{dataset.part.cut} {dataset.part.start}:{dataset.part.stop}"
    what = f"features {rows.digest} {part} {feature_map.id} {augment}"
    name = hmac.new(load_key(), what.encode(), hashlib.sha256).hexdigest()[:40]
    return cache_home() / "features" / f"{name}.npy"


def _make(
    path: Path,
    split: Split,
    feature_map: FeatureMap,
    copies: int,
    augment: Augmentation,
    step: Callable[[int], None],
) -> None:
    """Writes the cache whole or not at all, a few rows at a time."""
    staging = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, staging = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # readable by its owner alone
        with os.fdopen(handle, "wb") as stream:
            header = {"descr": "<f2", "fortran_order": False, "shape": (len(split), copies * feature_map.features)}
            np.lib.format.write_array_header_1_0(stream, header)
            for rows in feature_rows(split, feature_map, augment, step):
                stream.write(rows.tobytes())
        os.replace(staging, path)
    except OSError as error:
        raise ArtifactError(
            f"{path.parent}: features cannot be kept there: {error.strerror}; make room, or point XDG_CACHE_HOME elsewhere"
        ) from None
    finally:
        if staging is not None:
            Path(staging).unlink(missing_ok=True)


def _opened(
    path: Path, split: Split, feature_map: FeatureMap, copies: int, augment: Augmentation
) -> np.ndarray | None:
    """What lies there; None where nothing does, or not what its name says."""
    try:
        values = np.lib.format.open_memmap(path, mode="r")
    except (OSError, ValueError, EOFError, SyntaxError, TokenError):  # numpy reads the header as Python's literals
        return None
    if values.shape != (len(split), copies * feature_map.features) or values.dtype != np.dtype("<f2"):
        return None
    tried = np.unique(np.linspace(0, len(split) - 1, TRIED).astype(int))
    expected = features_of_copies(split.x[tried], feature_map, augment).numpy()
    return values if np.allclose(values[tried], expected, rtol=2e-3, atol=1e-4) else None
