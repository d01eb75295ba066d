"""What an audit of a training saw, on disk: ``audit.safetensors`` in the folder of a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dpltm.audit.canaries import Observations
from dpltm.errors import ArtifactError
from dpltm.tickets.tensors import read_tensors, write_tensors

FILE = "audit.safetensors"

BYTES = 3 * 8
"""Of a canary."""


def write_observations(folder: Path, seen: Observations | None) -> None:
    """Writes them into the folder of a run; None writes nothing."""
    if seen is not None:
        values = {"scores": seen.scores, "included": seen.included, "norms": seen.norms}
        write_tensors(folder / FILE, {name: value.astype(np.float64) for name, value in values.items()})


def read_observations(folder: Path, count: object) -> Observations | None:
    """Those in the folder of a run.

    Args:
        folder: of the run.
        count: of canaries, as the settings of the run have it.

    Returns:
        None where the training was not audited, or the run was made smaller since.

    Raises:
        ArtifactError: a damaged file, or one of other canaries.
    """
    if count is None or not (folder / FILE).exists():
        return None
    if isinstance(count, bool) or not isinstance(count, int) or not 0 < count < 2**31:
        raise ArtifactError(f"{folder / 'config.json'}: audit is not a number of canaries")
    values = read_tensors(folder / FILE, dict.fromkeys(("scores", "included", "norms"), (count,)), "float64")
    included = values["included"]
    try:
        if not np.isin(included, (0, 1)).all():
            raise ValueError("coins")
        return Observations(values["scores"], included == 1, values["norms"])
    except ValueError:
        raise ArtifactError(f"{folder / FILE}: scores, coins or norms that no audit leaves") from None
