"""Options from Python's keyword arguments."""

from __future__ import annotations

import contextlib
import numbers
from collections.abc import Iterable, Mapping
from dataclasses import Field, fields
from typing import Any, TypeVar

import numpy as np

from dpltm.errors import InputError, did_you_mean, shown_value, whole_number
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
                raise InputError(f"`{name}`: no such option{_nearest(name, [*known, *others])}")
            if value is not None:
                self._values[name] = _typed(known[name], value)
                check_choice(known[name], self._values[name])

    def take(self, cls: type[T]) -> T:
        """The options of one class."""
        own = {item.name for item in fields(cls)}  # type: ignore[arg-type]
        return cls(**{name: value for name, value in self._values.items() if name in own})


def _nearest(name: str, known: list[str]) -> str:
    return did_you_mean(name, known, "`") or f"; there are {', '.join(f'`{each}`' for each in sorted(known))}"


def _typed(item: Field[Any], value: Any) -> Any:
    """A value of Python as the field's type; a sequence of numbers stands for a text with commas, a number for a text."""
    wanted = value_type(item)
    if wanted is str and isinstance(value, (list, tuple)):
        return ",".join(str(part) for part in value)
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if number and wanted is int and isinstance(value, numbers.Integral):
        return whole_number(item.name, value)
    with contextlib.suppress(OverflowError, ValueError):  # a whole number beyond all others
        if number and wanted is float:
            return float(value)
        if number and wanted is str:
            return str(value)
    if wanted is bool and isinstance(value, np.bool_):
        return bool(value)
    if type(value) is not wanted:
        shown, kind = shown_value(value), f"of type {type(value).__name__}"
        raise InputError(
            f"`{item.name}`: {shown if shown.endswith(kind) else f'{shown} is {kind}'}, not {wanted.__name__}"
        )
    return value
