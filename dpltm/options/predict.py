"""What predictions are made for."""

from __future__ import annotations

from dataclasses import dataclass

from dpltm.options import option


@dataclass(frozen=True, kw_only=True)
class PredictRequest:
    """Class and class probabilities that a run's model gives to records without labels.

    For other records than those that it was trained on, predictions are post-processing of the run and cost nothing. What is
    written depends on the records of `input`, and is as sensitive as they are.

    Examples:
        dpltm predict digits.run --input new.npz -o predicted.csv
        # a table that has its labels still
        dpltm predict mine.run --input new.csv --label y -o predicted.csv
    """

    run: str | None = option(None, "Folder of the run.", metavar="RUN", argument=True, required=True)
    input: str | None = option(
        None,
        "Records as in training: a .npz with x (or x_test), or a table of its features, in its order.",
        metavar="FILE",
        required=True,
    )
    label: str | None = option(None, "Column of a table that is no feature.", metavar="COLUMN")
    out: str | None = option(
        None,
        "File to write: a .csv of label,p0,p1,... (with a schema: of its classes) or a .npz with label and probabilities.",
        short="-o",
        metavar="FILE",
        required=True,
    )
