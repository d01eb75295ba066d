"""The errors that dpltm raises on purpose, one small tree.

Every message is one line and names the culprit (an argument, a file, a record), its value, what was expected and what to
do about it. Arguments stand in backticks under their Python names, such as ```batch_size```; the command line shows its
flags in their place (:func:`in_flags`), and functions of the public face names of their own (:func:`naming`).
"""

from __future__ import annotations

import contextlib
import difflib
import numbers
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

_MARK = re.compile(r"`([a-z][a-z0-9_]*)`")
_ABSENT = object()


class DpltmError(Exception):
    """Root of the tree. ``exit_code`` is what the command line returns for it."""

    exit_code = 1


class InputError(DpltmError, ValueError):
    """Bad usage or bad input: an argument, a file or a record is not what it must be. A ``ValueError``, as Python has it.

    Written as ``InputError(option, value, expected, fix)``, or as one whole sentence: ``InputError("`epochs`, `steps`: give
    one of them")``, whose ``option`` is the argument that it begins with, or None.
    """

    exit_code = 2

    def __init__(self, option: str, value: Any = _ABSENT, expected: str = "", fix: str = "") -> None:
        self.value, self.expected, self.fix = value, expected, fix
        if value is _ABSENT:
            self.value = None
            match = _MARK.match(option)
            self.option = match[1] if match else None
            super().__init__(option)
            return
        self.option = option
        shown = f"{value:g}" if isinstance(value, float) else shown_value(value)
        super().__init__(f"`{option}`: {shown} is not {expected}" + (f"; {fix}" if fix else ""))


class CodeError(InputError):
    """Code of the user's own raised; what it raised is the cause, with its traceback."""


class DataError(InputError):
    """A dataset cannot be found, read or used as it is."""


class ArtifactError(InputError):
    """A ticket set, run or ledger on disk is not what it claims to be."""


class CalibrationError(InputError):
    """No noise level reaches the asked epsilon."""


class BudgetError(DpltmError):
    """The privacy budget does not allow what was asked."""


class RankError(DpltmError):
    """Another process of the same training has ended, or cannot be reached."""


class Interrupted(BaseException):
    """Ctrl-C, or SIGTERM, where work can go on later; the message says how. No error, so nothing takes it for one."""


def named(text: str, name: Callable[[str], str]) -> str:
    """``text`` with ``name(argument)`` in the place of every argument that stands in backticks."""
    return _MARK.sub(lambda match: name(match[1]), text)


_RENAMED = {"lam": "lambda"}  # a word of Python


def in_flags(text: str) -> str:
    """A message of the library in the words of the command line: flags in the place of arguments."""
    return named(text, lambda name: "--" + _RENAMED.get(name, name).replace("_", "-"))


_IN_PYTHON = {"dataset": "x", "subset": "x", "input": "x", "unit_column": "units"}
"""What functions of the public face call records, and whose each is."""


@contextlib.contextmanager
def naming(**names: str) -> Iterator[None]:
    """A block whose refusals name arguments as a function of the public face does: by ``names``, and records as ``x``."""
    try:
        yield
    except DpltmError as error:
        error.args = (named(str(error), lambda name: f"`{names.get(name, _IN_PYTHON.get(name, name))}`"),)
        raise


def as_flags(value: Any, *, notes: bool = False) -> Any:
    """The answer of a command, or another ``value``, with flags in the place of arguments in all ``notes`` that it holds."""
    if isinstance(value, Mapping):
        return {key: as_flags(part, notes=key == "notes") for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_flags(part, notes=notes) for part in value]
    return in_flags(value) if notes and isinstance(value, str) else value


def shown_value(value: object) -> str:
    """A text or a number as a message of one line shows it; of anything else, which may be the records, its type alone."""
    if value is None or isinstance(value, (str, numbers.Real)):
        with contextlib.suppress(ValueError):  # a number of more digits than Python writes
            return " ".join(repr(value)[:80].split())
    return f"a value of type {type(value).__name__}"


def whole_number(name: str, value: object) -> int:
    """The ``value`` of the argument ``name`` as a whole number. Raises InputError if it is none that 64 bits hold."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or abs(int(value)) >= 2**63:
        raise InputError(name, value, "a whole number of 64 bits")
    return int(value)


def one_line(message: str) -> str:
    """A message in one line; what a terminal would take for a command, such as part of a file's name, is written out."""
    return "".join(
        character if character.isprintable() else ascii(character)[1:-1] for character in " ".join(message.split())
    )


def did_you_mean(name: object, names: Iterable[str], mark: str = "") -> str:
    """The end of a message about a name that there is none of; nothing where none is near.

    Args:
        name, names: the name, and those that there are; the nearest of them stands between two ``mark``.
    """
    near = difflib.get_close_matches(name, list(names), n=1) if isinstance(name, str) else []
    return f"; did you mean {mark}{near[0]}{mark}?" if near else ""


def first_line(error: Exception) -> str:
    """First line of another library's error, short enough for a message of one line."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
