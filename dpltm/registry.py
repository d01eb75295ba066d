"""Registries: what can be chosen by name, each name with everything that is said of it.

Choices, help, refusals and defaults are read off the entries, which are frozen descriptors. A new one is one object in a
module of its own, and one line in its registry. No registry imports torch: what needs it is named by ``Deferred``.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar

from dpltm.errors import InputError, did_you_mean
from dpltm.gone import instead


class Descriptor(Protocol):
    """Properties of every entry: its name, one sentence of help, and the paper that it is from."""

    @property
    def name(self) -> str: ...
    @property
    def help(self) -> str: ...
    @property
    def source(self) -> str: ...


Entry = TypeVar("Entry", bound=Descriptor)


class Registry(dict[str, Entry]):
    """Descriptors by name, in the order in which they were registered; ``field`` is the argument that chooses among them."""

    def __init__(self, field: str, entries: Iterable[Entry] = ()) -> None:
        super().__init__()
        self.field = field
        for entry in entries:
            self.register(entry)

    def register(self, entry: Entry) -> None:
        """Add an entry; InputError if the name is taken."""
        if entry.name in self:
            raise InputError(f"`{self.field}`: there is one named {entry.name!r} already; take another name")
        self[entry.name] = entry

    def find(self, name: str, among: Collection[str] | None = None) -> Entry:
        """The entry of that name, ``among`` names that may be chosen here, or all; InputError if there is none."""
        entries = self if among is None else among
        if not isinstance(name, str) or name not in entries:
            hint = did_you_mean(name, entries)
            raise InputError(f"`{self.field}`: unknown {self.field} {name!r:.80}; known: {', '.join(entries)}{hint}")
        return self[name]

    def names(self, having: Callable[[Entry], bool]) -> Names[Entry]:
        """The names of some of the entries, kept up to date."""
        return Names(self, having)


class Names(Collection[str], Generic[Entry]):
    """Names of those entries of a registry that have a property; entries that are registered later count as well."""

    def __init__(self, registry: Registry[Entry], having: Callable[[Entry], bool]) -> None:
        self._registry, self._having = registry, having

    def __iter__(self) -> Iterator[str]:
        return (name for name, entry in self._registry.items() if self._having(entry))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return any(name == other for other in self)


@dataclass(frozen=True)
class Parameter:
    """A choice that a descriptor leaves to its user, of the type of its ``default``; ``metavar`` is None for a switch."""

    name: str
    default: float | bool
    help: str
    metavar: str | None = None
    low: float = float("-inf")
    high: float = float("inf")

    @property
    def whole(self) -> bool:
        """True if its values are whole numbers; else decimals."""
        return type(self.default) is int

    def check(self, value: float) -> None:
        """Raise InputError unless the value lies within the range."""
        if not self.low <= value <= self.high:
            raise InputError(f"`{self.name}`: {value} is not a number between {self.low:g} and {self.high:g}")


def check_parameters(registry: Registry[Any], chosen: Any, names: Iterable[str]) -> None:
    """Raise InputError for parameters that a descriptor does not take; the message says which of the registry do.

    Args:
        registry, chosen, names: all descriptors, the one that was chosen, and the parameters.
    """

    def takes(descriptor: Any) -> list[str]:
        return [parameter.name for parameter in descriptor.parameters]

    own = takes(chosen)
    for name in [name for name in names if name not in own]:
        takers = [entry.name for entry in registry.values() if name in takes(entry)]
        hint = did_you_mean(name, own, "`")
        if takers:
            raise InputError(f"`{name}`: only for `{registry.field}` {listed(takers)}, not {chosen.name}{hint}")
        hint = hint or f"; it takes {', '.join(f'`{parameter}`' for parameter in own)}"
        raise InputError(f"`{name}`: {chosen.name} has no such parameter{hint}")


def changed(parameters: Iterable[Parameter], options: object) -> dict[str, Any]:
    """Parameters of which options hold another value than the default."""
    values = {parameter: getattr(options, parameter.name) for parameter in parameters}
    return {parameter.name: value for parameter, value in values.items() if value != parameter.default}


def listed(names: Iterable[str], joint: str = "or") -> str:
    """``a``, ``a or b``, ``a, b or c``."""
    *most, last = names
    return f"{', '.join(most)} {joint} {last}" if most else last


@dataclass(frozen=True)
class Deferred:
    """A function ``module:name`` that is imported when it is called, so that a descriptor costs no heavy import."""

    place: str

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return self.resolve()(*args, **keywords)

    def resolve(self) -> Callable[..., Any]:
        module, _, name = self.place.partition(":")
        function: Callable[..., Any] = getattr(importlib.import_module(module), name)
        return function


def lazily(
    package: str, names: Mapping[str, str] = MappingProxyType({})
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package that imports its modules, and ``names`` of others, when asked."""

    def attribute(name: str) -> Any:
        if name in names:
            return getattr(importlib.import_module(names[name]), name)
        place = f"{package}.{name}"
        if name[0] != "_" and importlib.util.find_spec(place) is not None:
            return importlib.import_module(place)
        gone = instead(place)
        raise AttributeError(f"module {package!r} has no attribute {name!r}" if gone is None else f"{place}{gone}")

    def shown() -> list[str]:
        module = sys.modules[package]
        inside = {entry.name for entry in pkgutil.iter_modules(module.__path__) if entry.name[0] != "_"}
        return sorted({*vars(module), *names, *inside})

    return attribute, shown
