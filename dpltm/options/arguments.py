"""Options from Python's keyword arguments."""

from __future__ import annotations

import difflib
import numbers
from collections.abc import Iterable, Mapping
from dataclasses import Field, fields
from typing import Any, TypeVar

import numpy as np

from dpltm.errors import InputError
from dpltm.options.data import DataOptions
from dpltm.options.sections import check_choice, value_type

T = TypeVar("T")


class Arguments:
    """Keyword arguments that go to one or several classes of options.

    Args:
        given: values by name; None stands for the default.
        classes: of options; every name is a field of one of them.
        others: names that the caller has taken already, for whoever mistypes one.

    Raises:
        InputError: a name that there is none of, with the nearest that there is; a value of the wrong type, or a text that
            is not among the choices.
    """

    def __init__(self, given: Mapping[str, Any], classes: Iterable[type], others: Iterable[str] = ()) -> None:
        known = {item.name: item for cls in classes for item in fields(cls)}
        self._values = {}
        for name, value in given.items():
            if name not in known:
                raise InputError(f"`{name}`: no such option; {_nearest(name, [*known, *others])}")
            if value is not None:
                self._values[name] = _typed(known[name], value)
                check_choice(known[name], self._values[name])

    def take(self, cls: type[T]) -> T:
        """The options of one class."""
        own = {item.name for item in fields(cls)}  # type: ignore[arg-type]
        return cls(**{name: value for name, value in self._values.items() if name in own})


def public_facts(given: Mapping[str, Any]) -> dict[str, Any]:
    """Public facts about arrays: ``bounds`` a pair of numbers, ``classes`` and ``records`` whole ones, None if not given.

    Raises:
        InputError: a value of another type.
    """
    known = {item.name: item for item in fields(DataOptions)}
    counts = {name: given.get(name) for name in ("classes", "records")}
    typed = {name: None if value is None else _typed(known[name], value) for name, value in counts.items()}
    bounds = given.get("bounds")
    if bounds is not None:
        values = list(bounds) if isinstance(bounds, (tuple, list, np.ndarray)) else []
        if len(values) != 2 or not all(isinstance(value, numbers.Real) for value in values):
            raise InputError(f"`bounds`: {bounds!r:.80} is not a pair of numbers, such as (0, 255)")
        bounds = (float(values[0]), float(values[1]))
    return {"bounds": bounds, **typed}


def _nearest(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean `{near[0]}`?" if near else f"there are {', '.join(f'`{each}`' for each in sorted(known))}"


def _typed(item: Field[Any], value: Any) -> Any:
    """A value of Python as the field's type; a sequence of numbers stands for a text with commas, a number for a text."""
    wanted = value_type(item)
    if wanted is str and isinstance(value, (list, tuple)):
        return ",".join(str(part) for part in value)
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if number and wanted is int and isinstance(value, numbers.Integral):
        return int(value)
    if number and wanted is float:
        return float(value)
    if number and wanted is str:
        return str(value)
    if type(value) is not wanted:
        raise InputError(f"`{item.name}`: {value!r:.80} is of type {type(value).__name__}, not {wanted.__name__}")
    return value
