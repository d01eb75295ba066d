"""Notes on the public facts that a guarantee rests on, and on whom it protects."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpltm.records.dataset import Dataset
from dpltm.records.input_parts import shown

SEVERAL_ROWS = (
    "the guarantee is for one record (row): a person with k rows has up to k times the epsilon, at a larger delta; give one"
    " row a person where people are to be protected, or train with `unit_column`, the column that says whose a row is"
)
"""Said of every guarantee for single records of a file of the user's own (group privacy)."""


NO_TEST = (
    "accuracy is not measured, since there is no test split: name a file with one by `test`, or let `test` 0.2 hold a fifth"
    " of the records out by a public hash; nothing is promised for those"
)
"""Said of a training on a file of the user's own that has none."""


def test_notes(dataset: Dataset) -> list[str]:
    """Return the facts that accuracy on the test split rests on; nothing where there is none."""
    if dataset.test is None:
        return []
    what = "accuracy" if dataset.target is None else "error"
    if not dataset.hold_out:
        return [f"{what} is measured on the test split, which is declared separate from the private records"]
    whom = "persons" if dataset.rows.units_name else "records"
    held_out = f"{whom} that a public hash holds out, {dataset.hold_out:g} of the file"
    return [f"{what} is measured on {held_out}: nothing is promised for those"]


def outside_notes(dataset: Dataset, x: np.ndarray) -> list[str]:
    """Return a note on columns whose bounds leave out most values of test records, ``(n, features)`` as stored.

    Nobody is told that of protected records, since it would be a release; the two are alike, as a rule.
    """
    names = [column.name for column in dataset.schema.feature_columns] or dataset.columns or ()
    low, high = dataset.bounds
    wide = [name for name, values in zip(names, x.T, strict=False) if ((values < low) | (values > high)).mean() > 0.5]
    note = (
        f"most values of {shown(wide)} in the test split are outside of their bounds, and count as the nearest of these, in"
        " training too: are the bounds right?"
    )
    return [note] if wide else []


def bounds_notes(dataset: Dataset | None, fix: str = "declare them with `bounds` LO,HI") -> list[str]:
    """Return a note on records of bytes whose bounds nobody gave, without a look at their values."""
    if dataset is None or dataset.bounds_origin != "assumed":
        return []
    return [assumed_bounds(dataset.name, dataset.bounds, fix)]


def assumed_bounds(records: str, bounds: tuple[float, float], fix: str) -> str:
    """Return the note on bounds of some records that nobody gave, and how to give them."""
    return (
        f"nobody gave the bounds of {records}, so {bounds[0]:g} to {bounds[1]:g} is assumed, all that a byte can hold; if"
        f" their values have another range, {fix}"
    )


def left_out_note(names: Sequence[str]) -> str:
    """Return what is said of columns that are row numbers by their names."""
    quoted = ", ".join(f'"{name}"' for name in names)
    return f"columns left out, since they are row numbers by their names: {quoted}; rename what is a feature"


def shares_notes(shares: object) -> list[str]:
    """Return a note on shares of classes that somebody stated; nothing for None."""
    note = "shares of classes (`class_shares`) were taken as public: no private record may have been counted for them"
    return [] if shares is None else [note]


def public_input_notes(dataset: Dataset) -> list[str]:
    """Sentences about public inputs that were assumed, or only counted on the private data (privacy-model.md 1.4)."""
    notes = bounds_notes(dataset)
    if dataset.left_out:
        notes.append(left_out_note(dataset.left_out))
    if dataset.records_origin == "counted":
        whom = "persons" if dataset.of_persons else f"{dataset.unit}s"
        notes.append(
            f"the number of {whom} ({dataset.records}) was counted and is treated as public; declare a figure"
            " with `records` to keep it private"
        )
    if dataset.classes_origin == "counted":
        notes.append(
            f"the number of classes ({dataset.classes}) was read off the labels and is treated as public (`classes`)"
        )
    if dataset.tables:
        ranked = f"the vocabulary of {dataset.name} was ranked on its own training reviews and is treated as public"
        unknown = (
            f"which word is at which position is taken as public: no record of {dataset.name} may have decided it"
        )
        notes.append(ranked if dataset.catalogued else unknown)
    return notes


def unit_notes(dataset: Dataset) -> list[str]:
    """Whom a guarantee for single records does not protect; nothing for known datasets, whose records are what they are."""
    if dataset.of_persons:
        return [persons_note(dataset.unit, dataset.train.slots)]
    return [] if dataset.catalogued or dataset.names_units else [SEVERAL_ROWS]


def persons_note(unit: str, slots: int | None) -> str:
    """Return what a person is, where one is the unit, and which records count."""
    return (
        f"a person is all records that share a value of {unit!r}; at most {slots} of each count, those of the lowest public"
        " hashes where there are more"
    )


def feature_notes(dataset: Dataset) -> list[str]:
    """Return the note that says what the columns were found by, where that cost something."""
    if not dataset.lineage.paid:
        return []
    return ["bounds and categories of the schema were found under DP, and what that cost counts"]
