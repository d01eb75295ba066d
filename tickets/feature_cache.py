"""Features on disk: computed once for some records, in half precision, and mapped into memory afterwards.

What lies there is private, as the records are: it is readable by its owner alone, under a name that only the key beside
it can connect with them. Deleting the folder loses nothing but time.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from tokenize import TokenError

import numpy as np

from dpltm.errors import ArtifactError
from dpltm.features.feature_map import FeatureMap
from dpltm.features.inputs import (
    MemoryFeatures,
    as_copies,
    copies_in,
    feature_rows,
    features_of_copies,
    features_title,
)
from dpltm.progress import SILENT, Progress
from dpltm.records import Augmentation, Dataset, Split, cache_home
from dpltm.tickets.files import staged_file

TRIED = 8
"""Rows of a cache that are computed again, to see that it is what its name says."""


class FeatureCache:
    """The store of features (see :class:`dpltm.features.inputs.FeatureStore`) in the user's cache folder.

    Where nothing can be written there, features are kept in memory for as long as this lives.
    """

    def __init__(self) -> None:
        self._memory = MemoryFeatures()

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
            ArtifactError: the cache does not hold what was written.
        """
        path, copies = cache_path(split, feature_map, augment), copies_in(split, augment)
        values = _opened(path, split, feature_map, copies, augment)
        if values is None:
            if path.exists():
                progress.say(f"{path}: is damaged, or of another version; features are computed anew")
            try:
                with progress.progress(features_title(dataset, split), len(split)) as step:
                    _make(path, split, feature_map, copies, augment, step)
            except OSError as error:
                progress.say(
                    f"{path.parent}: features cannot be kept there ({error.strerror}), and are kept in memory for this"
                    " command; make room, or point XDG_CACHE_HOME elsewhere"
                )
                return self._memory.features(dataset, split, feature_map, augment, progress)
            values = _opened(path, split, feature_map, copies, augment)
        if values is None:
            raise ArtifactError(f"{path}: does not hold what was written; check the disk")
        return as_copies(values, split, augment, copies)


def cache_path(split: Split, feature_map: FeatureMap, augment: Augmentation = "none") -> Path:
    """Return where they lie: a name by content, keyed, so that it confirms no guess of the records.

    Args:
        split: of a dataset.
        feature_map: whose features they are.
        augment: copies of each record.
    """
    folder = cache_home() / "features"
    what = f"features {split.digest} {feature_map.id} {augment}"
    return folder / f"{hmac.new(_key(folder / KEY), what.encode(), hashlib.sha256).hexdigest()[:40]}.npy"


def _key(path: Path) -> bytes:
    """The key of the cache, made where there is none; one of this process where it cannot be kept."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not path.exists():
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(_PASSING)
        key = path.read_bytes()
        if len(key) == len(_PASSING):  # another process may be writing it
            return key
    return _PASSING


KEY, _PASSING = "key", secrets.token_bytes(32)
"""File of the key, and the key of this process, which becomes that of the cache where there is none."""


def _make(
    path: Path,
    split: Split,
    feature_map: FeatureMap,
    copies: int,
    augment: Augmentation,
    step: Callable[[int], None],
) -> None:
    """Writes the cache whole or not at all, a few rows at a time."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with staged_file(path) as staging:  # readable by its owner alone
        with staging.open("wb") as stream:
            header = {"descr": "<f2", "fortran_order": False, "shape": (len(split), copies * feature_map.features)}
            np.lib.format.write_array_header_1_0(stream, header)
            for rows in feature_rows(split, feature_map, augment, step):
                stream.write(rows.tobytes())
        os.replace(staging, path)


def _opened(
    path: Path, split: Split, feature_map: FeatureMap, copies: int, augment: Augmentation
) -> np.ndarray | None:
    """What lies there; None where nothing does, or not what its name says."""
    if not path.is_file():  # a pipe would be waited for
        return None
    try:
        values = np.lib.format.open_memmap(path, mode="r")
    except (OSError, ValueError, EOFError, SyntaxError, TokenError):  # numpy reads the header as Python's literals
        return None
    if values.shape != (len(split), copies * feature_map.features) or values.dtype != np.dtype("<f2"):
        return None
    tried = np.unique(np.linspace(0, len(split) - 1, TRIED).astype(int))
    expected = features_of_copies(split.x[tried], split.y[tried], feature_map, augment).numpy()
    return values if np.allclose(values[tried], expected, rtol=2e-3, atol=1e-4) else None
