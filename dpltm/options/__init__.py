"""Options: dataclass fields that are keyword arguments in Python, flags at the terminal and keys of a configuration file.

The options of a verb are one frozen dataclass; where a command needs more, such as the files that it reads and writes, its
class is a subclass. Whoever makes one has each value checked by its declaration: type, choices, range. Help texts name other
options in backticks, as errors do (``dpltm.errors``).
"""

from __future__ import annotations

import contextlib
import inspect
import math
import numbers
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import PurePath
from typing import Any, TypeVar, dataclass_transform

from dpltm.errors import InputError, did_you_mean, shown_value, whole_number
from dpltm.gone import instead
from dpltm.privacy.checks import MAX_EPSILON, MAX_NOISE, MAX_STEPS, MIN_DELTA

_TYPES: dict[str, tuple[type, str]] = {
    "str": (str, "a text"), "int": (int, "a whole number"), "float": (float, "a number"), "bool": (bool, "true or false"),
    "tuple[str, ...]": (tuple, "a list of texts"),
}  # fmt: skip
"""Types by annotation, and what messages call them; a tuple of texts is several values of one positional argument."""

_PATHS = {"FILE", "DIR", "PATH", "SET", "SCHEME", "RUN"}  # words of a metavar of what is, or may be, a path

METRICS = ("accuracy", "balanced-accuracy", "auc")  # by which networks are judged on records that are not protected
TARGET_METRICS = ("r2", "rmse", "mae")  # the same of targets that are numbers


@dataclass(frozen=True)
class Range:
    """Numbers that an option takes, from ``low`` to ``high``; ``above`` and ``below`` leave out that end."""

    low: float = 0
    high: float = math.inf
    above: bool = False
    below: bool = False

    def __contains__(self, value: float) -> bool:
        return (self.low < value if self.above else self.low <= value) and (
            value < self.high if self.below or self.high == math.inf else value <= self.high
        )

    def describe(self, kind: str) -> str:
        """Return ``a positive number up to 10,000``, for ``a number``."""
        high = f"{self.high:,}" if isinstance(self.high, int) else f"{self.high:g}"
        top = "" if self.high == math.inf else f"below {high}" if self.below else high
        if self.above or (self.low == 1 and kind == "a whole number"):
            up = "" if not top else f" {top}" if self.below else f" up to {top}"
            return f"a positive {kind.removeprefix('a ')}{up}"
        return f"{kind} from {self.low:g}" + (f" to {top}" if top else "")


POSITIVE, COUNT, FROM_ZERO = Range(above=True), Range(1, MAX_STEPS), Range()
STEP_SIZE = Range(high=1e30, above=True)  # single precision ends at 3e38; some optimizers divide by a tenth or less
EPSILON, DELTA, NOISE = Range(high=MAX_EPSILON, above=True), Range(MIN_DELTA, 1, below=True), Range(high=MAX_NOISE)
PART, SEED = Range(high=1, below=True), Range(high=2**62 - 1)


def option(
    default: Any,
    help: str,
    metavar: str | None = None,
    *,
    section: str | None = None,
    short: str | None = None,
    choices: Collection[str] = (),
    within: Range | None = None,
    argument: bool = False,
    hidden: bool = False,
    shown: str | None = None,
) -> Any:
    """A dataclass field that is an option of a verb, and a flag (or positional argument) of its command.

    Args:
        section: the heading in help over this option and those that follow it in its class.
        choices: the texts that are allowed; those of a registry are read when they are needed.
        within: the numbers that are allowed.
        hidden: whether only files and Python have it, and the command has no flag.
        shown: what help shows as the default, if not the default itself.
    """
    metadata = {
        "help": help, "metavar": metavar or "|".join(choices) or None, "section": section, "short": short, "shown": shown,
        "choices": choices, "within": within, "argument": argument, "hidden": hidden,
    }  # fmt: skip
    return field(default=default, metadata=metadata)


@dataclass_transform(kw_only_default=True, frozen_default=True)
@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a verb, frozen dataclasses all. Each value is checked, and is then of its declared type.

    Raises:
        InputError: a value of the wrong type, out of range or not among the choices; or none for an option that is needed.
    """

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)

    def __post_init__(self) -> None:
        for item in fields(self):
            if item.metadata:  # subclasses have other fields beside their options
                object.__setattr__(self, item.name, checked(item, getattr(self, item.name)))


def checked(item: Field[Any], value: Any) -> Any:
    """Return the value of an option as its type.

    A sequence stands for a text with commas, a number for a text, and a number of numpy's for one of Python's.

    Raises:
        InputError: see :class:`Options`.
    """
    if value is None:
        if is_needed(item):
            raise InputError(f"{name_of(item)} is missing: {item.metadata['help']}")
        return None
    wanted, kind = type_of(item)
    value = _converted(item.name, value, wanted)
    if type(value) is not wanted or value == "":
        fix = "; give one, or leave it out" if value == "" else ""
        raise InputError(f"{name_of(item)}: {shown_value(value)} is not {kind}{fix}")
    within, choices = item.metadata["within"], item.metadata["choices"]
    if within is not None and value not in within:
        raise InputError(item.name, value, within.describe(kind))
    if (reason := instead(f"--{item.name.replace('_', '-')} {str(value).partition(':')[0]}")) is not None:
        raise InputError(f"{name_of(item)} {value}{reason}")
    if choices and value not in choices:
        hint = did_you_mean(value, choices)
        raise InputError(f"{name_of(item)}: {value!r} is not one of {', '.join(choices)}{hint}")
    return value


def _converted(name: str, value: Any, wanted: type) -> Any:
    """A value as the wanted type, where it stands for one of that type; else as it is."""
    if isinstance(value, (list, tuple)) and wanted in (tuple, str):
        return tuple(map(str, value)) if wanted is tuple else ",".join(map(str, value))
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return value
    if wanted is int and isinstance(value, numbers.Integral):
        return whole_number(name, value)
    with contextlib.suppress(OverflowError, ValueError):  # a whole number beyond all others
        return wanted(value) if wanted in (float, str) else value
    return value


Chosen = TypeVar("Chosen", bound=Options)


def arguments(cls: type[Chosen], keywords: Mapping[str, Any], beside: Iterable[str] = ()) -> Chosen:
    """Return options from Python's keyword arguments; None stands for the default.

    Raises:
        InputError: see :class:`Options`; or an unknown name, with the nearest that there is (also ``beside``, names that the
            caller takes itself).
    """
    _check_names(cls, keywords, beside)
    return cls(**{name: value for name, value in keywords.items() if value is not None})


def resolve(
    cls: type[Chosen], decided: Mapping[str, Any], section: Mapping[str, Any], source: str | None = None
) -> Chosen:
    """Return options from the command line (None: not given), then a section of the file ``source``, then defaults.

    Raises:
        InputError: see :class:`Options`; or an unknown key of the section.
    """
    items = {item.name: item for item in fields(cls)}
    values = {key.replace("-", "_"): value for key, value in section.items()}
    try:
        _check_names(cls, values)
        values = {name: checked(items[name], value) for name, value in values.items()}
    except InputError as error:
        raise InputError(str(error) if source is None else f"`config` {source}: {error}") from None
    return cls(**{**values, **{name: value for name, value in decided.items() if value is not None and value != []}})


def _check_names(cls: type, names: Iterable[str], beside: Iterable[str] = ()) -> None:
    options = {item.name for item in fields(cls)}
    command = re.sub("(Options|Request|Settings)$", "", cls.__name__).lower()
    group = cls.__module__.rpartition(".")[2]  # commands of a group have their options in a module of its name
    for name in names:
        if name not in options:
            flag = f"--{name.replace('_', '-')}"
            if (reason := instead(f"{group} {command} {flag}", f"{command} {flag}", flag)) is not None:
                raise InputError(f"`{name}`{reason}")
            known = sorted({*options, *beside})
            near = did_you_mean(name, known, "`") or f"; there are {', '.join(f'`{name}`' for name in known)}"
            raise InputError(f"`{name}`: no such option{near}")


def table(path: object, body: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the table ``[name]`` of a TOML document; empty if it has none, InputError if that name is no table."""
    section = body.get(name, {})
    if not isinstance(section, dict):
        raise InputError(f"`config` {path}: {name} must be a table, as in [{name}]")
    return section


def parse_numbers(name: str, text: str) -> tuple[float, ...]:
    """Return numbers separated by commas, of the argument ``name``."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"`{name}`: {text!r} is not a list of numbers separated by commas") from None


def parse_pair(name: str, text: str) -> tuple[float, float]:
    """Return two numbers from ``LO,HI``."""
    values = parse_numbers(name, text)
    if len(values) != 2:
        raise InputError(f"`{name}`: {text!r} is not of the form LO,HI, such as 0,255")
    return values[0], values[1]


def type_of(item: Field[Any]) -> tuple[type, str]:
    """Return the type of an option's value, whether or not it may be missing, and what messages call it."""
    return _TYPES[str(item.type).removesuffix(" | None")]


def is_needed(item: Field[Any]) -> bool:
    """Tell whether an option has no value of its own, not even None."""
    return item.default is None and not str(item.type).endswith(" | None")


def name_of(item: Field[Any]) -> str:
    """Return the name of a field in messages: in backticks; the placeholder of a positional argument."""
    return str(item.metadata["metavar"]) if item.metadata["argument"] else f"`{item.name}`"


def section_of(cls: type, name: str) -> str | None:
    """Return the heading over a field in help: that of the most general class with such a field; None for none."""
    owner: Any = next(base for base in reversed(cls.__mro__) if name in inspect.get_annotations(base))
    names = [*inspect.get_annotations(owner)]
    sections = [owner.__dataclass_fields__[before].metadata["section"] for before in names[: names.index(name) + 1]]
    return next(filter(None, reversed(sections)), None)


def last_part(path: str) -> str:
    """Return the last part of a path, which says which file it was and not where; the text itself where that is nothing."""
    return PurePath(path).name or path


def recorded(options: Options) -> dict[str, Any]:
    """Return options as an artifact keeps them: all, paths by their last part, since folders tell whose they are."""
    values = {}
    for item in fields(options):
        value = getattr(options, item.name)
        metavar = item.metadata["metavar"] or ""
        if isinstance(value, str) and _PATHS & set(re.findall("[A-Z]+", metavar)):
            parts = value.split(",") if metavar.endswith(",...") else [value]
            value = ",".join(last_part(part) for part in parts)
        values[item.name] = value
    return values
