"""The records that requests name. They are opened without torch."""

from __future__ import annotations

from dpltm.data import Dataset, DatasetCache, by_user, load
from dpltm.errors import InputError
from dpltm.options.data import DataOptions
from dpltm.options.parsing import parse_pair
from dpltm.options.train import PER_USER


def open_dataset(
    request: DataOptions, for_training: bool = True, *, dataset_cache: DatasetCache | None = None
) -> Dataset:
    """The dataset that a request names; one record will do where nothing is learned from them.

    Args:
        request: names it.
        for_training: whether there must be something to learn.
        dataset_cache: holds what was read before.

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
        for_training=for_training,
        dataset_cache=dataset_cache,
    )
    if getattr(request, "unit", "record") == "record":
        return dataset
    slots = getattr(request, "per_user", None)
    return by_user(dataset, PER_USER if slots is None else slots)
