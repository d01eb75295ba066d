"""Ledger entries as tests vary them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from dpltm.privacy.events import ReleaseEvent

E = TypeVar("E", bound=ReleaseEvent)


def having(event: E, **parameters: Any) -> E:
    """The entry with other parameters of its mechanism."""
    return replace(event, mechanism=replace(event.mechanism, **parameters))
