"""The records of a table of whose schema something is still to be found: in place of features, codes of cells."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpltm.errors import DataError
from dpltm.records.at_unit import at_unit
from dpltm.records.dataset import Dataset
from dpltm.records.files import TABLES, reading
from dpltm.records.hold_out import parse_fraction
from dpltm.records.schema import Schema
from dpltm.records.schema_tables import Coder, read_by_schema
from dpltm.records.settle import declared_facts, settle, take_part


@dataclass(frozen=True)
class Unfinished:
    """A table and what is known of it.

    Attributes:
        dataset: its records, one a person where persons are protected; what identifies them is the same under any schema.
        codes: of the columns of which something is to be found, ``(n, columns)`` float64; private.
        schema: with those columns.
    """

    dataset: Dataset
    codes: np.ndarray
    schema: Schema


def load_unfinished(
    path: Path,
    schema: Schema,
    coder: Coder,
    *,
    units: str | None = None,
    subset: str | None = None,
    records: int | None = None,
    test: str | None = None,
) -> Unfinished:
    """Reads a table, checked by what its schema says already.

    Args:
        path: a ``.csv``, ``.parquet`` or ``.arrow`` file.
        schema: a draft.
        coder: of columns of which something is to be found.
        units: the column that says whose each record is: of each person one row counts, that of the lowest public hash.
        subset, records: as :func:`dpltm.records.load`.
        test: the part that is held out of the training as well, such as 0.2.

    Raises:
        DataError: nothing is to be found, or the file does not fit what the schema says already.
    """
    with reading(path, "") as kind:
        if kind not in TABLES:
            raise DataError(f"{path}: is no table; give a file that ends in {', '.join(TABLES)}")
        if not schema.wanted:
            raise DataError(
                '`private`: nothing in this schema is private; write bounds = "private" or values = "private"'
            )
        hold_out = parse_fraction(test)
        if test is not None and hold_out is None:
            raise DataError(
                f"`test` {test}: is the fraction that the training holds out, such as 0.2; leave a file out"
            )
        records = declared_facts(None, None, records)[2]
        raw = read_by_schema(path, schema, units, coder=coder)
    facts = (0.0, 1.0), len(schema.label.values)
    whole = settle(path.stem, raw, None, None, facts, (), hold_out=hold_out)
    dataset = at_unit(take_part(whole, subset, records, False), "record", None if units is None else 1, 1)
    x = dataset.train.x.reshape(len(dataset.train), -1)
    return Unfinished(dataset, x[:, _places(schema)], schema)


def _places(schema: Schema) -> list[int]:
    """Where the codes of wanted columns stand among the features: counted, since columns may be named as features are."""
    places, at = list[int](), 0
    for column in schema.columns:
        places += [at] if column.wanted else []
        at += len(column.features)
    return places
