"""The records that requests name. They are opened without torch."""

from __future__ import annotations

from dpltm.errors import InputError
from dpltm.options import parse_pair
from dpltm.options.data import DataOptions
from dpltm.options.train import PER_UNIT
from dpltm.records import Dataset, DatasetCache, at_unit, load
from dpltm.records.schema import Schema
from dpltm.training.launcher import launched


def read_first(request: DataOptions) -> DatasetCache | None:
    """A table with a schema, read and checked: whatever does not fit is said before anything heavy is imported.

    Args:
        request: names it.

    Returns:
        What was read; None of other records, and where several processes share the work, each of which reads by itself.
    """
    if request.schema is None or request.dataset is None or launched() is not None:
        return None
    cache = DatasetCache()
    open_dataset(request, dataset_cache=cache)
    return cache


def open_dataset(
    request: DataOptions,
    for_training: bool = True,
    *,
    dataset_cache: DatasetCache | None = None,
    schema: Schema | None = None,
) -> Dataset:
    """The dataset that a request names; one record will do where nothing is learned from them.

    Args:
        request: names it.
        for_training: whether there must be something to learn.
        dataset_cache: holds what was read before.
        schema: of the table, where the request names none.

    Raises:
        DpltmError: with one line about whatever is wrong.
    """
    if request.dataset is None:
        raise InputError("`dataset` is missing: name the records to use (dpltm datasets ls lists what is at hand)")
    dataset = load(
        request.dataset,
        label=request.label,
        bounds=None if request.bounds is None else parse_pair("bounds", request.bounds),
        classes=request.classes,
        records=request.records,
        subset=request.subset,
        test=request.test,
        words=request.words,
        length=request.length,
        users=request.users,
        items=request.items,
        units=getattr(request, "unit_column", None),
        schema=schema if request.schema is None else request.schema,
        rows_coincide=request.rows_coincide,
        for_training=for_training,
        dataset_cache=dataset_cache,
    )
    if not hasattr(request, "unit"):  # nobody's records are learned from
        return dataset
    return at_unit(dataset, getattr(request, "unit", "record"), getattr(request, "per_unit", None), PER_UNIT)
