"""Arms that vary: one table of an arm with lists of values becomes one arm for each place of the lists."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dpltm.experiments.recipe import LATENT_STAGES, MAX_ARMS, SHARED


def varied(where: str, body: dict[str, Any], problems: list[str]) -> list[dict[str, Any]]:
    """One table for each of the values that vary; the lists run side by side.

    Args:
        where: what messages call the arm.
        body: its table, with keys of the right types.
        problems: what is wrong is appended to it; no table comes of it then.
    """
    body = dict(body)
    vary = body.pop("vary", None)
    if vary is None:
        if isinstance(body.get("paper"), list):
            problems.append(f"{where} paper: a list needs vary")
        return [body]
    lists = {key: value if isinstance(value, list) else [value] for key, value in vary.items()}
    paper = body.pop("paper", None)
    papers = paper if isinstance(paper, list) else None
    sizes = {len(values) for values in lists.values()} | ({len(papers)} if papers is not None else set())
    if max(sizes, default=0) > MAX_ARMS:
        problems.append(f"{where} vary: more than {MAX_ARMS:,} values")
        return []
    if papers is not None and not all(type(part) in (int, float) for part in papers):
        problems.append(f"{where} paper: must be a list of numbers")
        return []
    if len(sizes) != 1 or 0 in sizes:
        problems.append(f"{where} vary: lists, and paper if it is one, must be of one length, at least 1")
        return []
    rows = [_row(where, body, lists, at, problems) for at in range(sizes.pop())]
    for at, row in enumerate(rows):
        if paper is not None:
            row["paper"] = paper if papers is None else papers[at]
    return rows


def _row(
    where: str, body: dict[str, Any], lists: Mapping[str, list[Any]], at: int, problems: list[str]
) -> dict[str, Any]:
    """A copy of an arm's table with the values of one place, named by the first of them."""
    row: dict[str, Any] = json.loads(json.dumps(body))
    for key, values in lists.items():
        table, _, name = key.rpartition(".")
        stage = table.removeprefix("latent.")
        if table in SHARED:
            row.setdefault(table, {})[name] = values[at]
        elif table != stage and stage in LATENT_STAGES and isinstance(row.get("latent"), dict):
            section = row["latent"].setdefault(stage, {})
            if isinstance(section, dict):  # else it was noted
                section[name] = values[at]
        else:
            problems.append(
                f"{where} vary: {key!r} is not of the form train.KEY, select.KEY, tune.KEY or, where the arm is one"
                " of latent, latent.scheme.KEY"
            )
    first, values = next(iter(lists.items()))
    row["group"] = body.get("name", "")
    row["varied"] = values[at]
    row["name"] = f"{row['group']}, {first.rpartition('.')[2]} {values[at]}"
    return row
