"""Records in the open: what the package reads for a release or a declaration, tests read for nothing."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpltm.records import Arrays, Dataset, Rows, Split, load


def arrays_of(split: Split) -> Arrays:
    """Return the features and labels of a split."""
    found: list[Arrays] = []
    split.check(found.append)
    return found[0]


def load_from(folder: Path, name: str, **options: Any) -> Dataset:
    """Return a dataset of that name, with a folder as the data home."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPLTM_DATA", str(folder))
        return load(name, **options)


def units_of(records: Dataset | Rows) -> np.ndarray:
    """Return whose each record is."""
    rows = records.rows if isinstance(records, Dataset) else records
    assert rows._units is not None
    return rows._units
