"""Transcripts: commands in a text file, with what each of them printed when it was recorded.

A transcript is read line by line::

    # a comment
    PUBLIC=--dataset digits --subset 0.0:0.5        a name for part of a command line, used as $PUBLIC
    $ dpltm generate $PUBLIC --out pub              a command
      round  density                                what it prints to standard output, indented by two spaces
    ! error: ...                                    what it prints to standard error
    [2]                                             its exit code, unless that is 0
    $ cat > r.toml                                  writes a file, or adds to it (>>): the lines that begin with "> "
    > [recipe]
    $ cat pub/lineage.json                          shows a file; of tensors, their names, types and shapes
    $ ls pub                                        lists the files in a folder

What differs between two machines, or between two times, is replaced before anything is compared: times, dates, seconds,
paths, the version, ids (by their order of appearance, so that the same id is the same everywhere), and numbers by a
tolerance (``close``).
"""

from __future__ import annotations

import contextlib
import csv
import difflib
import json
import os
import random
import re
import shlex
import ssl
import string
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

import dpltm
from programs import program

harness = program("tests/golden/harness.py")


@dataclass
class Step:
    """One command of a transcript.

    Attributes:
        command: the line behind "$ ", its names not yet replaced.
        given: lines of the file that it writes.
        printed: recorded lines, with their marks.
    """

    command: str
    given: list[str] = field(default_factory=list)
    printed: list[str] = field(default_factory=list)


@dataclass
class Transcript:
    """A transcript file, in order: comments, names and steps."""

    path: Path
    parts: list[str | Step]

    @classmethod
    def read(cls, path: Path) -> Transcript:
        parts: list[str | Step] = []
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("$ "):
                parts.append(Step(line[2:]))
            elif line.startswith("> "):
                _last(parts).given.append(line[2:])
            elif line.startswith(("  ", "! ", "[")):
                _last(parts).printed.append(line)
            else:
                parts.append(line)
        return cls(path, parts)

    def write(self) -> None:
        lines: list[str] = []
        for part in self.parts:
            if isinstance(part, Step):
                lines += [f"$ {part.command}", *(f"> {line}" for line in part.given), *part.printed]
            else:
                lines.append(part)
        self.path.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def steps(self) -> Iterator[tuple[Step, list[str]]]:
        """Every step with the words of its command, names replaced."""
        names: dict[str, str] = {}
        for part in self.parts:
            if isinstance(part, Step):
                yield part, shlex.split(string.Template(part.command).substitute(names))
            elif assigned := re.fullmatch(r"([A-Z]+)=(.*)", part):
                names[assigned[1]] = string.Template(assigned[2]).substitute(names)


def _last(parts: list[str | Step]) -> Step:
    assert parts
    step = parts[-1]
    assert isinstance(step, Step), f"no command before the output that follows {step!r}"
    return step


# --- randomness -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def fixed_randomness(key: str) -> Iterator[None]:
    """Random bytes become a function of ``key``, as in tests/golden, where the system's randomness enters.

    That is OpenSSL (noise, sampling, draws), ``os.urandom`` (fast noise) and what ``secrets`` reads (ids, keys of
    fingerprints). So it does not matter which module asks.
    """
    serve = harness.served(key)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "RAND_bytes", serve("noise"))
        patch.setattr(os, "urandom", serve("seed"))
        patch.setattr(random, "_urandom", serve("id"))
        yield


# --- what is printed ------------------------------------------------------------------------------------------------


class Normal:
    """Replaces what differs between machines and times; one for a transcript, so that ids are numbered throughout."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._ids = str(folder), dict[str, int]()

    def __call__(self, text: str) -> str:
        text = text.replace(self._folder, "<folder>")
        text = re.sub(r"\b\d{4}-\d\d-\d\d(T[\d:.]+Z| \d\d:\d\d UTC)", "<time>", text)
        text = re.sub(r"\b20\d\d-\d\d-\d\d\b", "<date>", text)
        text = re.sub(rf'(dpltm"?:? "?){re.escape(dpltm.__version__)}\b', r"\1<version>", text)
        text = re.sub(r'("(?:seconds|minutes)": )[\d.e+-]+', r"\1<duration>", text)
        text = re.sub(r"minutes of \d+ cores?", "minutes of <cores>", text)
        text = re.sub(r"(│ seconds +│ )\d+ *", r"\1<duration> ", text)
        text = re.sub(r'("bytes": )\d+', r"\1<bytes>", text)  # longer or shorter by the digits of an accuracy
        return re.sub(r"(?<![\w.])(?:[0-9a-f]{64}|[0-9a-f]{32}|[0-9a-f]{12}|[0-9a-f]{8})(?!\w|\.\d)", self._id, text)

    def _id(self, match: re.Match[str]) -> str:
        return f"<id {self._ids.setdefault(match[0][:8], len(self._ids) + 1)}>"


def laid_out(value: Any, indent: str = "") -> str:
    """JSON with one line for whatever holds no list, no object and no sentence; line breaks do not depend on numbers."""
    if not isinstance(value, dict | list) or not value or _flat(value):
        return json.dumps(value, ensure_ascii=False)
    inner = indent + " "
    if isinstance(value, list) and len(value) > LONG:
        value = [*value[:: len(value) // 4], f"and so on, {len(value)} in all"]
    if isinstance(value, dict):
        rows = [f"{inner}{json.dumps(key)}: {laid_out(each, inner)}" for key, each in value.items()]
        return "{\n" + ",\n".join(rows) + f"\n{indent}}}"
    return "[\n" + ",\n".join(inner + laid_out(each, inner) for each in value) + f"\n{indent}]"


LONG = 40
"""Of a list with more than so many entries, about five are shown, evenly spaced."""


def _flat(value: dict[str, Any] | list[Any]) -> bool:
    held = value.values() if isinstance(value, dict) else value
    if any(isinstance(each, dict | list) and each for each in held):
        return False
    return len(value) <= 8 and all(len(each) <= 40 for each in held if isinstance(each, str))


def printed(arguments: list[str], out: str) -> str:
    """Standard output as it is kept: JSON laid out, and help without the frames, whose widths are those of a terminal."""
    if "--json" in arguments and out.startswith("{"):
        assert out.count("\n") == 1, "more than one line of JSON"
        return laid_out(json.loads(out))
    if "--help" in arguments:
        return "\n".join(" ".join(line.split()) for line in re.sub(r"[│╭╮╰╯─]", " ", out).splitlines())
    return out


def shown(path: Path) -> str:
    """A file as ``$ cat`` shows it."""
    if path.suffix == ".json":
        return laid_out(json.loads(path.read_text(encoding="utf-8")))
    if path.suffix == ".safetensors":
        with safe_open(path, "np") as file:
            rows = {name: file.get_slice(name) for name in sorted(file.keys())}
            lines = [f"{name} {row.get_dtype()} {row.get_shape()}" for name, row in rows.items()]
            return "\n".join([*lines, f"metadata: {sorted(file.metadata() or {})}"])
    if path.suffix == ".npz":
        with np.load(path) as archive:
            return "\n".join(f"{name} {value.dtype} {list(value.shape)}" for name, value in archive.items())
    if path.suffix == ".csv":
        with path.open(encoding="utf-8", newline="") as stream:
            return "\n".join(
                " ".join(f"{name}={value}" for name, value in row.items()) for row in csv.DictReader(stream)
            )
    return path.read_text(encoding="utf-8")


def listed(folder: Path) -> str:
    """A folder as ``$ ls`` shows it."""
    return "\n".join(str(path.relative_to(folder)) for path in sorted(folder.rglob("*")) if path.is_file())


def marked(code: int, out: str, err: str) -> list[str]:
    """Lines as a transcript has them; blank ones are left out."""
    lines = ["  " + line.rstrip() for line in out.splitlines() if line.strip()]
    lines += ["! " + line.rstrip() for line in err.splitlines() if line.strip()]
    return [*lines, *([f"[{code}]"] if code else [])]


# --- comparing ------------------------------------------------------------------------------------------------------

NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?|\d+(?:\.\d+)?(?:e[+-]?\d+)?")


def close(name: str, one: str, other: str, percent: bool) -> bool:
    """Whether two numbers are the same but for the processor that computed them, as tests/golden has it.

    Args:
        name: what stands before them, or heads their column; it tells what they are.
        one, other: as they are written. Without a point they must be the same.
        percent: whether they are hundredths, of what was measured.
    """
    if not ("." in one and "." in other):
        return one == other
    first, second = (float(text.replace(",", "")) / (100 if percent else 1) for text in (one, other))
    words = re.findall(r"[a-z_]{2,}", name)[-3:]
    if percent or (words[-1:] and words[-1] in harness.MEASURED):
        return harness.same("accuracy", first, second, here=False)
    step = max(_last_place(one), _last_place(other))
    path = "noise" if any("noise" in word for word in words) else "figure"
    return abs(first - second) <= step or harness.same(path, first, second, here=False)


def _last_place(text: str) -> float:
    """What a step of the last digit is worth."""
    digits, _, power = text.partition("e")
    return float(10.0 ** (int(power or 0) - len(digits.partition(".")[2])))


def same(expected: list[str], found: list[str]) -> bool:
    """Whether lines are the same: their words exactly, their numbers as ``close`` has it.

    A number of another width moves what stands beside it, so blanks and rules of tables count only where no width differs.
    """
    one, other = "\n".join(expected), "\n".join(found)
    if one == other:
        return True
    left, right = list(NUMBER.finditer(one)), list(NUMBER.finditer(other))
    if len(left) != len(right):
        return False
    words, others = NUMBER.sub("0", one), NUMBER.sub("0", other)
    if any(len(a[0]) != len(b[0]) for a, b in zip(left, right, strict=True)):
        words, others = (re.sub(r"([━─═])\1*", r"\1", re.sub(r" +", " ", text)) for text in (words, others))
    return words == others and all(
        close(*_place(one, a), b[0], percent=_percent(one, a))
        for a, b in zip(left, right, strict=True)
        if a[0] != b[0]
    )


def _place(text: str, number: re.Match[str]) -> tuple[str, str]:
    """What tells what a number is, and the number."""
    before = _before(text, number)
    return _heading(text, number.start(), before) or before, number[0]


def _percent(text: str, number: re.Match[str]) -> bool:
    heading = _heading(text, number.start(), _before(text, number))
    return text[number.end() :].lstrip(" ").startswith("%") or "%" in heading


def _before(text: str, number: re.Match[str]) -> str:
    """The line that a number is in, up to it."""
    return text[text.rfind("\n", 0, number.start()) + 1 : number.start()]


def _heading(text: str, place: int, before: str) -> str:
    """What heads the column of a table that a place is in; nothing outside of tables and where columns have no heads.

    In a table that has accuracies in percent, whatever else is measured is in percent as well, and is said to be.
    """
    mark = before.strip()[:1]
    if mark not in ("│", "|"):
        return ""
    head = ""
    for line in reversed(text[:place].splitlines()[:-1]):
        if line.strip()[:1] == "┃" or (mark == "|" and line.strip()[:1] == "|"):
            head = line
        elif line.strip()[:1] not in ("│", "├", "┡"):
            break
    cells = re.split(r"[┃|]", head)
    column = len(re.split(r"[│|]", before)) - 1
    if column >= len(cells):
        return ""
    words = re.findall(r"[a-z_]{2,}", cells[column])
    measured = bool(words) and words[-1] in harness.MEASURED
    return cells[column] + (" %" if measured and "%" in head else "")


def difference(expected: list[str], found: list[str]) -> str:
    """The lines that differ, marked - as recorded and + as found."""
    if len(expected) != len(found):
        return "\n".join(difflib.unified_diff(expected, found, "recorded", "found", lineterm="", n=1))
    pairs = [(one, other) for one, other in zip(expected, found, strict=True) if not same([one], [other])]
    return "\n".join(f"-{one}\n+{other}" for one, other in pairs or zip(expected, found, strict=True))
