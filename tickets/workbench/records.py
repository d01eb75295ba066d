"""The records that requests name. They are opened without torch."""

from __future__ import annotations

from typing import Any

from dpltm.errors import InputError
from dpltm.options import parse_pair
from dpltm.options.data import DataOptions
from dpltm.records.dataset import Dataset
from dpltm.records.load import load
from dpltm.records.schema import Schema


def open_dataset(
    request: DataOptions, for_training: bool = True, *, schema: Schema | None = None, length: int | None = None
) -> Dataset:
    """Return the dataset that a request names; ``for_training`` asks for more than one record, ``length`` is of texts."""
    if request.dataset is None:
        raise InputError("`dataset` is missing: name the records to use (dpltm datasets ls lists what is at hand)")
    as_named = ("label", "classes", "records", "subset", "test", "words", "rows_coincide")
    facts: dict[str, Any] = {name: getattr(request, name) for name in as_named}
    for name in ("bounds", "target_bounds"):
        text = getattr(request, name)
        facts[name] = None if text is None else parse_pair(name, text)
    return load(
        request.dataset,
        **facts,
        length=length,
        units=request.unit_column,
        schema=schema if request.schema is None else request.schema,
        for_training=for_training,
    )
