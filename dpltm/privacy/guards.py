"""Rows, and persons, that this process recognises: for refusals alone, and never for what counts.

Parts tell whether private records were declared public, or tested on for nothing, where both are of one snapshot. A copy, a
fold or an array has another snapshot; its rows are recognised by keyed digests. Those of private rows lie in the memory of
this process alone. Those of rows that were declared public or excluded, which nothing protects, are kept beside their ledger
as well, under its key: so another process recognises them.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from dpltm.privacy.entry import Part

MOST = 2**22
"""Most rows of which digests are kept; of more, snapshots alone tell."""

_KEY = secrets.token_bytes(32)
_met: dict[Part, Marks] = {}
_joined: set[frozenset[Part]] = set()


@dataclass(frozen=True, eq=False)
class Marks:
    """Digests by which records are recognised, sorted, each once: of ``rows`` without labels, of ``persons``, and of both.

    ``persons`` is None where nothing says whose the records are; ``unit`` is their noun.
    """

    rows: np.ndarray
    persons: np.ndarray | None = None
    whose: np.ndarray | None = None
    unit: str = ""

    def common(self, other: Marks) -> bool:
        """Return whether both surely have records, or persons, in common."""
        if self.persons is not None and other.persons is not None and self.unit == other.unit:
            return bool(np.intersect1d(self.persons, other.persons, assume_unique=True).size)
        return bool(np.intersect1d(self.rows, other.rows, assume_unique=True).size)


def digests(values: Iterable[bytes], of: object, key: bytes | None = None) -> np.ndarray:
    """Return 64-bit digests, sorted, each once, by a key of this process alone unless given. Values that are not
    ``of`` the same, such as names of columns, are not recognised."""
    key = hashlib.sha256((_KEY if key is None else key) + repr(of).encode()).digest()
    found = (int.from_bytes(hashlib.blake2b(value, key=key, digest_size=8).digest(), "little") for value in values)
    return np.unique(np.fromiter(found, dtype=np.uint64))


def remember(part: Part, marks: Marks | None) -> None:
    """Keep the digests of a part's records; forget them for None: rows of different people may be equal."""
    if marks is None:
        _met.pop(part, None)
        _joined.difference_update([pair for pair in _joined if part in pair])
    elif part.snapshot is not None:
        _met[part] = marks


def met(part: Part) -> bool:
    """Return whether this process knows the rows of a part."""
    return part in _met


def join(one: Part, other: Part) -> None:
    """Note that two parts have records in common, as digests tell that are kept beside a ledger."""
    _joined.add(frozenset((one, other)))


def share(one: Part, other: Part) -> bool:
    """Return whether two parts surely have records, or persons, in common, as far as that was seen."""
    ours, theirs = _met.get(one), _met.get(other)
    if ours is None or theirs is None:
        return frozenset((one, other)) in _joined
    return ours.common(theirs)


def covered(part: Part, others: Iterable[Part]) -> bool:
    """Return whether all records of a part are surely in the others, as far as that was seen."""
    ours, theirs = _met.get(part), [each.rows for other in others if (each := _met.get(other)) is not None]
    return ours is not None and bool(theirs) and bool(np.isin(ours.rows, np.concatenate(theirs)).all())


def regrouped(one: Part, other: Part) -> bool:
    """Return whether the same records are said to be other persons' in the other part: no figure would hold for both."""
    ours, theirs = _met.get(one), _met.get(other)
    if ours is None or theirs is None or ours.whose is None or theirs.whose is None:
        return False
    rows = np.intersect1d(ours.rows, theirs.rows, assume_unique=True).size
    return bool(np.intersect1d(ours.whose, theirs.whose, assume_unique=True).size < rows)
