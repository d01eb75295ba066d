"""Pages of the documents as a reader types them: steps in order, each with what the page says that it prints.

A block in ``python`` is one step. A block without a language holds commands, a line each, or what the command before it
prints. In such a block a line ``...`` stands for any lines.
"""

import difflib
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from dpltm.cli.main import run
from outputs import Normal, fixed_randomness, same

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/*.md"), ROOT / "CONTRIBUTING.md"])
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SETTING = re.compile(r"[A-Z_]+=\S+")
"""Of the environment, in front of a command."""
PROGRAMS = frozenset({"dpltm", "python", "make", "pip", "git", "torchrun"})
ANY = "..."


@dataclass
class Step:
    """What a reader types at once.

    Attributes:
        page, line: where it stands.
        text: the command on one line without its comment, or the code.
        words: of a command; none of code.
        shown: lines that the page says it prints; None where it says nothing.
    """

    page: str
    line: int
    text: str
    words: list[str] = field(default_factory=list)
    shown: list[str] | None = None

    @property
    def command(self) -> list[str]:
        """The words without what is set in the environment."""
        return [word for word in self.words if not SETTING.fullmatch(word)]

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {shlex.join(self.words) if self.words else 'python'}"


def blocks(page: Path, language: str) -> list[str]:
    """The bodies of the page's blocks in a language."""
    return [body for kind, body in BLOCK.findall(page.read_text(encoding="utf-8")) if kind == language]


def steps(page: Path) -> list[Step]:
    """All steps of a page in order."""
    text, found = page.read_text(encoding="utf-8"), list[Step]()
    for block in BLOCK.finditer(text):
        first = text.count("\n", 0, block.start()) + 2
        if block[1] == "python":
            found.append(Step(page.name, first, block[2]))
        elif block[1] == "":
            _read_commands(page.name, first, block[2], found)
    return found


def _read_commands(page: str, first: int, body: str, found: list[Step]) -> None:
    """Adds the commands of a block, and to the last one what it prints."""
    joined = re.sub(r"\\\n *", "", body)
    for number, line in enumerate(joined.splitlines()):
        words = _words(line)
        if words is not None:
            found.append(Step(page, first + number, shlex.join(words), words))
        elif line.strip():
            assert found, f"{page}:{first}: output of no command"
            found[-1].shown = [*(found[-1].shown or []), line.rstrip()]


def _words(line: str) -> list[str] | None:
    """The words of a line that is a command; None for what a command prints."""
    try:
        words = shlex.split(line.removeprefix("$ "), comments=True)
    except ValueError:
        return None
    program = next((word for word in words if not SETTING.fullmatch(word)), None)
    return words if program in PROGRAMS else None


class Reader:
    """Types the steps of a page in the working folder, with coins that are the same every time."""

    def __init__(self, folder: Path, capture: pytest.CaptureFixture[str]) -> None:
        self._folder, self._capture, self._normal = folder, capture, Normal(folder)

    def type(self, step: Step, given: Mapping[str, Any]) -> str:
        """Runs a step, which must end well and print what the page shows; ``given`` are names that code does not define.

        Returns what it printed.
        """
        before = self._files()
        self._capture.readouterr()
        torch.default_generator.manual_seed(0)
        with fixed_randomness(step.text):
            code = self._run(step) if step.words else self._execute(step, given)
        out, err = self._capture.readouterr()
        assert code == 0, f"{step}\n{out}{err}"
        assert step.words or self._files() == before, f"{step}: wrote a file"
        if step.shown is not None:
            found, expected = self._normal(out), self._normal("\n".join(step.shown))
            assert shows(expected, found), "\n".join([str(step), *difflib.unified_diff(expected, found, n=0)])
        return out

    def _files(self) -> set[Path]:
        return set(self._folder.rglob("*"))

    @staticmethod
    def _run(step: Step) -> int:
        match step.words:
            case ["dpltm", *arguments]:
                return run(arguments)
            case ["python", program, *arguments] if not (ROOT / program).exists():  # a step before made it
                return subprocess.run([sys.executable, program, *arguments], check=False, env=os.environ).returncode
            case ["python", program, *arguments]:
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(sys, "argv", [program, *arguments])
                    runpy.run_path(str(ROOT / program), run_name="__main__")
                return 0
            case ["make", *arguments]:  # that there is such a target; what it does, the suite does
                return subprocess.run(["make", "-n", *arguments], cwd=ROOT, check=False).returncode
        pytest.fail(f"{step}: cannot be run; say why in NOT_RUN")

    @staticmethod
    def _execute(step: Step, given: Mapping[str, Any]) -> int:
        exec(compile(step.text, f"{step.page}:{step.line}", "exec"), {"__name__": step.page, **given})
        return 0


def shows(expected: list[str], found: list[str]) -> bool:
    """Whether ``found`` is what is shown, where a line ``...`` stands for any lines, or none."""
    if not expected:
        return not found
    if expected[0].strip() == ANY:
        return any(shows(expected[1:], found[place:]) for place in range(len(found) + 1))
    return bool(found) and same(expected[0], found[0]) and shows(expected[1:], found[1:])
