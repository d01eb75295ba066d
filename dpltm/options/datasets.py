"""What is asked of the data at hand."""

from __future__ import annotations

from dataclasses import dataclass

from dpltm.options import option
from dpltm.options.data import DataOptions


@dataclass(frozen=True, kw_only=True)
class ListRequest:
    """The datasets that are known by name, and whether their file is at hand."""


@dataclass(frozen=True, kw_only=True)
class InfoRequest(DataOptions):
    """The public facts about a dataset, checked by loading it. Nothing is computed from its private values."""

    dataset: str | None = option(None, "Name or path.", metavar="NAME|FILE", argument=True, required=True)
