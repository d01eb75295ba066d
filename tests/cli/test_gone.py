"""What is gone is refused by its name, in one line that says what to do instead; every row of the table is tried."""

from __future__ import annotations

from typing import Any

import pytest

from dpltm.options.gone import GONE

COMMANDS = {
    "tickets push": "tickets push pub shared",
    "tickets pull": "tickets pull shared",
    "export --to": "export r --to plain --out new",
    "features": "features make drawings",
}
"""A line that asks for each thing that is gone."""


def test_every_row_is_tried() -> None:
    assert set(COMMANDS) == set(GONE)


@pytest.mark.parametrize("name", GONE)
def test_what_is_gone_is_refused_by_its_name(name: str, refused: Any) -> None:
    what = name.partition(" --")[2] and f"--{name.partition(' --')[2]}"
    assert refused(COMMANDS[name]) == f"{what or f'dpltm {name}'} is gone since 0.3: {GONE[name]}"
