"""What is gone is refused by its name, in one line that says what to do instead; every row of the table is tried."""

from __future__ import annotations

import re
from typing import Any

import pytest

from dpltm.errors import InputError, in_flags
from dpltm.options import arguments, resolve
from dpltm.options.gone import GONE
from dpltm.options.train import TrainOptions, TrainRequest

COMMANDS = {
    "tickets push": "tickets push pub shared",
    "tickets pull": "tickets pull shared",
    "export --to": "export r --to plain --out new",
    "--components": "train --dense --components 5",
    "--features network": "train --dense --features network:a.run --epsilon 1 --out new",
    "--public": "generate --features scatter --public mnist --out new",
    "features": "features make drawings",
}
"""A line that asks for each thing that is gone."""


def test_every_row_is_tried() -> None:
    assert set(COMMANDS) == set(GONE)


@pytest.mark.parametrize("name", GONE)
def test_what_is_gone_is_refused_by_its_name(name: str, refused: Any) -> None:
    option = re.search("--.+", name)
    asked = f"dpltm {name}" if option is None else "--features network:a.run" if "network" in name else option[0]
    assert refused(COMMANDS[name]) == f"{asked} is gone since 0.3: {in_flags(GONE[name])}"


def test_in_python_and_in_files() -> None:
    for options in ({"features": "network:a.run"}, {"components": 3}, {"public": "mnist"}):
        (name,) = options
        with pytest.raises(InputError, match=rf"^`{name}`.* is gone since 0\.3: "):
            arguments(TrainOptions, options)
        with pytest.raises(InputError, match=rf"{name}`?.* is gone since 0\.3: "):
            resolve(TrainRequest, {}, options, "a.toml")
