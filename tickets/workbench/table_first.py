"""The stages on files, after a look at the table: what does not fit its schema is said before torch is imported."""

from __future__ import annotations

from typing import Any

from dpltm.options.generate import GenerateRequest
from dpltm.options.select import SelectRequest
from dpltm.options.train import TrainRequest
from dpltm.progress import Progress
from dpltm.registry import Deferred
from dpltm.tickets.workbench.records import read_first

_GENERATE = Deferred("dpltm.tickets.workbench.generate:generate")
_SELECT = Deferred("dpltm.tickets.workbench.select:select")
_TRAIN = Deferred("dpltm.tickets.workbench.ranks:train")


def generate(request: GenerateRequest, progress: Progress) -> dict[str, Any]:
    """The answer of ``dpltm generate``."""
    body: dict[str, Any] = _GENERATE(request, progress, dataset_cache=read_first(request))
    return body


def select(request: SelectRequest, progress: Progress) -> dict[str, Any]:
    """The answer of ``dpltm select``."""
    body: dict[str, Any] = _SELECT(request, progress, dataset_cache=read_first(request))
    return body


def train(request: TrainRequest, progress: Progress) -> dict[str, Any] | None:
    """The answer of ``dpltm train``; None where another process gives it."""
    body: dict[str, Any] | None = _TRAIN(request, progress, dataset_cache=read_first(request))
    return body
