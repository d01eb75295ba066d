"""Options as dataclass fields: each says what it is for, what it may be, and how it is shown.

The options of a stage are one frozen dataclass. Python passes them as arguments; the command line makes flags of the same
fields. Help texts name other options in backticks, as errors do (``dpltm.errors``).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import field
from typing import Any


def option(
    default: Any,
    help: str,
    *,
    flag: str | None = None,
    short: str | None = None,
    choices: Collection[str] = (),
    metavar: str | None = None,
    argument: bool = False,
    required: bool = False,
    shown: str | None = None,
) -> Any:
    """A dataclass field that is an option of a stage, and a flag (or positional argument) of its command.

    Args:
        default: value if nobody gives one.
        help: one sentence.
        flag: of the command line, if it is not the field's name.
        short: a second flag of one letter.
        choices: the texts that are allowed; those of a registry are read when they are needed.
        metavar: what help shows as the value.
        argument: whether it is positional.
        required: whether the command cannot do without it.
        shown: what help shows as the default, if not the default itself.
    """
    extra = {
        "help": help,
        "flag": flag,
        "short": short,
        "choices": choices,
        "metavar": metavar or "|".join(choices) or None,
        "argument": argument,
        "required": required,
        "shown": shown,
    }
    return field(default=default, metadata=extra)
