"""Whole commands in this process: as they are typed, in one text or in several words."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dpltm.cli.main import run
from outputs import fixed_randomness

PUBLIC, PRIVATE = "--dataset digits --subset 0.0:0.5", "--dataset digits --subset 0.5:1.0"
TINY = "--model mlp:8 --rounds 2 --prune 0.3 --iterations 5 --batch-size 32"
LEDGER = "digits.ledger.jsonl"
"""Of the digits, where no other is named."""


@dataclass(frozen=True)
class Done:
    """What a command left behind on the terminal."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """Standard output, which must be one JSON object on one line and nothing else."""
        assert self.code == 0, self.err
        assert self.err == ""
        assert self.out.count("\n") == 1
        assert self.out.endswith("\n")
        body = json.loads(self.out, parse_constant=lambda text: pytest.fail(f"{text} is not JSON"))
        assert isinstance(body, dict)
        return body


def words(*given: object) -> list[str]:
    """A command line: the first text is several words, and so is any other that begins with a flag."""
    texts = list(map(str, given))
    return [
        word
        for place, text in enumerate(texts)
        for word in (text.split() if " " in text and (place == 0 or text.startswith("--")) else [text])
    ]


def made_by(folder: Path, *commands: str) -> Path:
    """A folder in which commands ran that must end well."""
    with pytest.MonkeyPatch.context() as patch, fixed_randomness("\n".join(commands)):
        patch.chdir(folder)
        for command in commands:
            assert run(words(command, "--quiet")) == 0, command
    return folder


def certified(body: dict[str, Any]) -> float:
    """The epsilon that an answer certifies, which is infinite where it is the text ``inf``."""
    return float(body["privacy"]["certified"]["epsilon"])
