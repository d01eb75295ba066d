"""Settings of a run, from its files: figures are those of its configuration, whatever words stand beside them."""

from __future__ import annotations

from typing import Any

import pytest

from dpltm.filters import FILTERS, make_filter
from dpltm.reports.subjects import run_subject

NORM = 0.25


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("more", [{}, {"no_pre_clip": True}, {"clip_quantile": 0.5}])
def test_the_clip_norm_is_that_of_the_filter(name: str, more: dict[str, Any]) -> None:
    """Of the filter that the options make, its part in front or behind included; None where nothing clips."""
    parameters = {parameter.name for parameter in FILTERS[name].parameters}
    more = {option: value for option, value in more.items() if option in parameters}
    norm = {"clip_norm": NORM} if "clip_norm" in parameters and "no_pre_clip" not in more else {}
    made: Any = make_filter(name, **norm, **more)
    parts = (made, getattr(made, "before", None), getattr(made, "after", None))
    expected = next((part.clip_norm for part in parts if hasattr(part, "clip_norm")), None)
    options = {"filter": name, "clip_norm": NORM, "clip_quantile": 0.0, "no_pre_clip": False, **more}
    facts = {"filter": "words that say clip(C=9)"}
    settings = run_subject("r", {"options": options, "resolved": facts}, {}).settings
    assert (settings["filter_name"], settings["clip_norm"]) == (name, expected)
    assert settings["clip_quantile"] == (more.get("clip_quantile") if norm else None)
