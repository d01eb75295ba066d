"""Files of synthetic records, which every command reads as a dataset (docs/formats.md)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dpltm.errors import ArtifactError
from dpltm.records.files import LINEAGE, lineage_array
from dpltm.tickets.files import new_file
from dpltm.verbs.synthesize import SyntheticRecords


def check_name(path: Path) -> None:
    """Raises ArtifactError unless a file of that name is read as an archive of arrays."""
    if path.suffix.lower() != ".npz":
        raise ArtifactError(f"`out`: {path} is no .npz; name it {path.stem or 'synthetic'}.npz")


def write_synthetic(path: Path, made: SyntheticRecords) -> None:
    """Writes synthetic records, with what they come from.

    Args:
        path: the ``.npz`` file; there must be none.
        made: the records.

    Raises:
        ArtifactError: ``path`` is no ``.npz``, exists or cannot be written.
    """
    check_name(path)
    dataset = made.dataset
    arrays = {
        "x_train": made.x,
        "y_train": made.y,
        LINEAGE: lineage_array(made.lineage),
        "bounds": np.array(dataset.bounds, dtype=np.float64),
        "classes": np.array(dataset.classes),
    }
    with new_file(path) as staging, staging.open("wb") as stream:
        np.savez(stream, **arrays)  # type: ignore[arg-type]
