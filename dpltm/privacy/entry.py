"""Entries: what a ledger holds of every release and declaration, and the lineage that values carry of them.

An entry is written before the value that it pays for is drawn, and never changes. Its id is the SHA-256 of the release's
secret key, so two releases are never one, and one release that is met on two ways is one. What is made of values carries the
union of their lineages.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import json
import math
import reprlib
import sys
import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from functools import cache
from typing import Any, Literal, NoReturn, TypeVar, get_args, get_origin

from dpltm.errors import ArtifactError, InputError
from dpltm.privacy import mechanisms as kinds

M = TypeVar("M")
Id = str  # 64 hexadecimal digits
RECORD = "record"  # the unit that most ledgers protect; any other noun, such as ``patient``, has several records
HASHES = 10**9  # public hashes of records and persons go from 0 to this
END = 2**63 - 1  # end of a range of places that goes to the end of the file

Cut = Literal["whole", "record", "person", "place"]
"""How a part is cut out of a dataset, which decides what a neighbour changes (privacy-model.md 1.5): not at all; by a public
hash of each record, or of whose it is; by places that a published file fixes, of which a neighbour leaves one *empty*."""

Kind = Literal["release", "local", "public", "excluded", "budget", "apart", "drawn"]
"""Kinds of entries:

- ``release``: something was computed from the records and given out; its mechanisms are what it costs.
- ``local``: a message of one owner, made under local DP. It adds up in the owner's ledger alone.
- ``public``: the records of the part are declared public. Costs nothing; they cannot be private later.
- ``excluded``: the same of records that are declared not to be the population's, such as a test split.
- ``budget``: everything together may come to no more than its one mechanism, a ``Guarantee``, says.
- ``apart``: ``population`` is declared to have nobody in common with the population of this ledger.
- ``drawn``: a block of the steps of a release, whose id and number are in ``facts``, was handed out to be drawn. Costs
  nothing: the release has paid for all of them (``release.hand_out``).
"""

_DECLARATIONS = ("public", "excluded", "apart", "drawn")  # which cost nothing, and hold no mechanism


@dataclass(frozen=True)
class Part:
    """Public declaration of the records of a population that a release touched; ArtifactError for what is no range.

    Attributes:
        name: what the user calls the dataset; says nothing.
        snapshot: id of a dataset as it is now. Without one the part may overlap everything.
        columns: names that hashes of records are taken by, sorted; none where records have no names of columns. Where
            something says whose each record is, the noun of those, and an id of who has which.
        start, stop: half-open range, of ``HASHES`` or of places.
    """

    name: str = "records"
    snapshot: Id | None = None
    columns: tuple[str, ...] = ()
    cut: Cut = "whole"
    start: int = 0
    stop: int = END

    def __post_init__(self) -> None:
        end = HASHES if self.cut in ("record", "person") else END
        if not 0 <= self.start < self.stop <= end or (self.cut == "whole" and (self.start, self.stop) != (0, END)):
            raise ArtifactError(f"part of {self.name}: {self.start}:{self.stop} is not a range of a {self.cut} cut")

    def can_be_apart(self, unit: str, adjacency: kinds.Adjacency) -> bool:
        """Return whether ranges of this cut separate anybody, where ``unit`` is protected under ``adjacency``.

        Guarantees:
            True only where a neighbour changes at most one of several disjoint ranges. A record that is replaced by one of
            another hash leaves one range and enters another; a person may have records of any hash, at any place.
        """
        if self.snapshot is None or self.cut not in ("place", "record", "person"):
            return False
        if self.cut == "place":
            return unit == RECORD
        return adjacency == "add-remove" and (unit == RECORD or (self.cut == "person" and self.columns[:1] == (unit,)))

    def apart(self, other: Part, unit: str, adjacency: kinds.Adjacency) -> bool:
        """Return whether no neighbour changes both parts: disjoint ranges of one public cut of one snapshot.

        Arguments as :func:`can_be_apart`.
        """
        one_cut = self.cut_key == other.cut_key and self.can_be_apart(unit, adjacency)
        return one_cut and not (self.start < other.stop and other.start < self.stop)

    def regroups(self, other: Part) -> bool:
        """Return whether the two say of one snapshot that other persons have its records: no figure holds for both."""
        if self.snapshot is None or self.snapshot != other.snapshot or "record" in (self.cut, other.cut):
            return False
        return len(self.columns) == len(other.columns) == 2 and self.columns[1] != other.columns[1]

    def overlaps(self, other: Part) -> bool:
        """Return whether the two surely share places or hashes of one snapshot: this may refuse, and never counts."""
        if self.snapshot is None or self.snapshot != other.snapshot:
            return False
        crossing = self.start < other.stop and other.start < self.stop
        return crossing or self.cut_key != other.cut_key or self.cut == "whole"

    @property
    def cut_key(self) -> tuple[object, ...]:
        """Key that ranges must share to be compared."""
        return self.snapshot, self.cut, self.columns

    def __str__(self) -> str:
        if self.cut == "whole":
            return self.name
        if self.cut == "place":
            return f"{self.name}[{self.start}:{'' if self.stop == END else self.stop}]"
        return f"{self.name}[{self.start / HASHES}:{self.stop / HASHES}]"


UNKNOWN_RECORDS = Part()  # of which nothing is known: they overlap everything


def today() -> str:
    """Return the present day, UTC: no finer, since how long a private computation took tells of its records."""
    return datetime.now(UTC).strftime("%Y-%m-%d")


@dataclass(frozen=True)
class Entry:
    """One release or declaration on record; a draft has no ``id``, ``home`` and ``sequence``.

    Attributes:
        part: the records that it touched or speaks of.
        mechanisms: what an accountant needs; one release may hold several, such as a centre, moments and steps.
        words: what was released, in a few words, for people.
        facts: digest of settings, start, mask and inputs, by which interrupted work is known; empty where none is.
        population: the people that the records are of, by name; None where nobody named them.
        unit: the noun of whom it protects.
        day: when, UTC.
        id: SHA-256 of the release's secret key; of a declaration, of random bytes.
        home: the ledger that paid.
        sequence: the place in that ledger, from 1.
    """

    kind: Kind
    part: Part = UNKNOWN_RECORDS
    mechanisms: tuple[kinds.Mechanism, ...] = ()
    words: str = ""
    facts: str = ""
    population: str | None = None
    unit: str = RECORD
    day: str = field(default_factory=today)
    id: Id = ""
    home: Id = ""
    sequence: int = 0

    def __post_init__(self) -> None:
        limits = [limit for limit in self.of(kinds.Guarantee) if limit.delta]
        if self.kind == "budget" and not len(limits) == len(self.mechanisms) == 1:
            raise ArtifactError("entry: a budget is one guarantee, with a delta above 0")
        if self.kind == "apart" and self.population is None:
            raise ArtifactError("entry: Expected the name of the population that is apart")
        if self.kind in _DECLARATIONS and self.mechanisms:
            raise ArtifactError(f"entry: {self.kind} costs nothing, so Expected no mechanisms")
        if self.paid and not self.mechanisms:
            raise ArtifactError("entry: a release without a mechanism must never pass as free")

    @property
    def paid(self) -> bool:
        """True if it costs something: whatever is neither a declaration nor a budget."""
        return self.kind != "budget" and self.kind not in _DECLARATIONS

    @property
    def exposes(self) -> bool:
        """True if the records of its part are read as they are: declared public or excluded, or released unprotected."""
        return self.kind in ("public", "excluded") or (self.paid and bool(self.of(kinds.Unprotected)))

    def of(self, kind: type[M]) -> tuple[M, ...]:
        """Its mechanisms of one type."""
        return tuple(mechanism for mechanism in self.mechanisms if isinstance(mechanism, kind))


@dataclass(frozen=True)
class Head:
    """Length of a ledger at one moment, refused if it is shorter later; the digest of the chain up to its last entry."""

    ledger: Id
    count: int
    digest: str

    def __str__(self) -> str:
        return f"{self.count} entr{'y' if self.count == 1 else 'ies'} (head {self.digest[:12]})"


@dataclass(frozen=True)
class Lineage:
    """Everything that a value depends on: entries by id, and the heads of the ledgers that paid.

    The union of two is associative, commutative up to order, and idempotent.
    """

    entries: tuple[Entry, ...] = ()
    heads: tuple[Head, ...] = ()

    def __post_init__(self) -> None:
        if any(not (entry.id and entry.home) for entry in self.entries):
            raise ArtifactError("lineage: an entry that no ledger paid")
        if len({entry.id for entry in self.entries}) < len(self.entries):
            raise ArtifactError("lineage: the same id twice")
        if len({head.ledger for head in self.heads}) < len(self.heads):
            raise ArtifactError("lineage: two heads of one ledger")

    def __or__(self, other: Lineage) -> Lineage:
        return lineage_of(self, other) if other.entries or other.heads else self

    def __bool__(self) -> bool:
        return bool(self.entries)

    @property
    def paid(self) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if entry.paid)


NO_LINEAGE = Lineage()  # of a value that depends on no records that anybody has to be told of


def release_id(key: bytes) -> Id:
    """Return the public id of a release with a secret key of 256 bits: it tells nothing of the key."""
    return hashlib.sha256(b"dpltm release" + key).hexdigest()


@dataclass(frozen=True)
class Secret:
    """The key of a release that was paid for, with its ``entry`` on record: everything random follows from its 256 bits.

    Whoever has them can take the noise away. ``key`` is None where work goes on from the states of its sources, which tell
    nothing of what was drawn before. The entry is that of the key, and some ledger holds it. A secret stays in its process.
    """

    entry: Entry
    key: bytes | None = field(repr=False)
    _handed_out: set[str] = field(default_factory=set, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not (self.entry.paid and self.entry.home):
            raise InputError("secret: nothing was paid for it; a release draws by dpltm.privacy.release.pay alone")
        if self.key is not None and release_id(self.key) != self.entry.id:
            raise InputError("secret: the key of another release than the entry is of")

    def child(self, name: str) -> bytes:
        """Return 32 bytes for one purpose of the release, independent of those for any other.

        Each ``name``, such as ``noise``, may be asked for once: two values of one noise differ by what they should hide.
        """
        if self.key is None:
            raise InputError("secret: values were drawn, and its key is gone; go on from the states in the checkpoint")
        if name in self._handed_out:
            raise InputError(f"secret: its bits for {name} were given out before")
        self._handed_out.add(name)
        return hmac.new(self.key, name.encode(), hashlib.sha256).digest()

    def __reduce__(self) -> NoReturn:
        raise InputError("secret: is never pickled or copied; another process goes on from a checkpoint")


def union(*groups: Iterable[Entry]) -> tuple[Entry, ...]:
    """Return the entries of all groups, each id once; ArtifactError for two contents, or steps handed out twice."""
    by_id: dict[Id, Entry] = {}
    blocks: dict[str, Id] = {}
    for group in groups:
        for entry in group:
            if by_id.setdefault(entry.id, entry) != entry:
                raise ArtifactError(f"entry {entry.id[:12]}: known with other contents; one of the two was edited")
            if entry.kind == "drawn" and blocks.setdefault(entry.facts, entry.id) != entry.id:
                raise ArtifactError(
                    f"ledger {entry.home[:12]}: it was copied, and both copies handed out the same steps, which are paid for"
                    " once; what they hold no longer adds up"
                )
    return tuple(by_id.values())


def lineage_of(*values: object) -> Lineage:
    """Return the union of the lineages of values that carry one; None carries none.

    ArtifactError if an id has two contents, or a ledger was copied and went on in both places.
    """
    lineages: list[Lineage] = [
        value if isinstance(value, Lineage) else value.lineage  # type: ignore[attr-defined]
        for value in values
        if value is not None
    ]
    heads: dict[Id, Head] = {}
    for head in (head for lineage in lineages for head in lineage.heads):
        newest = heads.setdefault(head.ledger, head)
        if newest.count == head.count and newest != head:
            raise ArtifactError(
                f"lineage: ledger {head.ledger[:12]} has two heads at {head.count} entries, {newest.digest[:12]} and"
                f" {head.digest[:12]}: it was copied, and both copies went on; what they hold no longer adds up"
            )
        if newest.count < head.count:
            heads[head.ledger] = head
    entries = union(*(lineage.entries for lineage in lineages))
    return Lineage(entries, tuple(sorted(heads.values(), key=lambda head: head.ledger)))


# --- JSON: strict, since an entry that is misread would misstate what was spent -------------------------------------

MECHANISMS: dict[str, type[kinds.Mechanism]] = {
    "sgd": kinds.NoisySgd,
    "allocated-sgd": kinds.AllocatedSgd,
    "banded-sgd": kinds.BandedSgd,
    "truncated-sgd": kinds.TruncatedSgd,
    "selection": kinds.Selection,
    "search": kinds.PrivateSearch,
    "gaussian": kinds.GaussianRelease,
    "laplace": kinds.LaplaceRelease,
    "discrete-gaussian": kinds.DiscreteGaussianRelease,
    "zcdp": kinds.Zcdp,
    "randomized-response": kinds.RandomizedResponse,
    "guarantee": kinds.Guarantee,
    "unprotected": kinds.Unprotected,
}
TRAININGS = frozenset(name for name, kind in MECHANISMS.items() if issubclass(kind, kinds.NoisySgd))
_NAMES = {kind: name for name, kind in MECHANISMS.items()}


def to_json(value: Any) -> Any:
    """Return a dataclass, such as an entry, a lineage or a part, as a JSON object; infinity is the text ``inf``."""
    name = {}
    if isinstance(value, kinds.Mechanism):
        if type(value) not in _NAMES:
            raise InputError(f"mechanism: no ledger can hold a {type(value).__name__}; state it as a Guarantee")
        name = {"mechanism": _NAMES[type(value)]}
    if dataclasses.is_dataclass(value):
        return {**name, **{item.name: to_json(getattr(value, item.name)) for item in fields(value)}}
    if isinstance(value, tuple):
        return [to_json(item) for item in value]
    return "inf" if value == math.inf else value


def entry_from_json(body: object, where: str = "entry") -> Entry:
    """Return the entry that :func:`to_json` wrote; else ArtifactError, which begins with ``where``."""
    return value_from_json(Entry, body, where)


def lineage_from_json(body: object, where: str = "lineage") -> Lineage:
    """Return the lineage that :func:`to_json` wrote. Raises as :func:`entry_from_json`."""
    return value_from_json(Lineage, body, where)


def lineage_from_text(text: str) -> Lineage:
    """Return the lineage in a JSON text. Raises as :func:`entry_from_json`."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        raise ArtifactError("lineage: not valid JSON") from None
    return lineage_from_json(body)


_hints = cache(typing.get_type_hints)


def value_from_json(kind: Any, body: Any, where: str) -> Any:
    """Return a value from JSON; of a dataclass every field must be there, and no other. Raises as :func:`entry_from_json`.

    Args:
        kind: its type.
        body: what JSON holds.
        where: begins the message of what is refused.
    """
    origin, choices = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and issubclass(kind, kinds.Mechanism):
        name = body.get("mechanism") if isinstance(body, dict) else None
        mechanism = MECHANISMS.get(name) if isinstance(name, str) else None
        if mechanism is None or not issubclass(mechanism, kind):
            raise ArtifactError(f"{where}: a mechanism that this version does not know")
        return _object(mechanism, {key: item for key, item in body.items() if key != "mechanism"}, where)
    if origin is None and dataclasses.is_dataclass(kind):
        return _object(kind, body, where)
    if origin is tuple:
        if not isinstance(body, list):
            raise ArtifactError(f"{where}: Expected a list")
        return tuple(value_from_json(choices[0], item, where) for item in body)
    if origin is types.UnionType:  # with None, which comes last
        return None if body is None else value_from_json(choices[0], body, where)
    if kind is float:
        if body == "inf":
            return math.inf
        number = isinstance(body, (int, float)) and not isinstance(body, bool)
        good = number and abs(body) <= sys.float_info.max  # false for NaN
        body = float(body) if good else body
    elif origin is Literal:
        good = isinstance(body, str) and body in choices
    elif kind is str:
        good = isinstance(body, str) and len(body) <= MAX_TEXT and body.isprintable()
    else:
        good = type(body) is kind
    if not good:
        raise ArtifactError(f"{where}: bad value {reprlib.repr(body)}")  # which goes no deeper than a few lists
    return body


MAX_TEXT = 10_000  # characters that a text of an entry may have


def _object(kind: Any, body: object, where: str) -> Any:
    names = {item.name for item in fields(kind)}
    if not isinstance(body, dict) or set(body) != names:
        wrong = sorted(set(body) ^ names)[0] if isinstance(body, dict) else "all of it"
        raise ArtifactError(f"{where}: unknown or missing field {wrong!r:.40}")
    values = {name: value_from_json(_hints(kind)[name], value, f"{where}: {name}") for name, value in body.items()}
    try:
        return kind(**values)
    except InputError as error:
        raise ArtifactError(f"{where}: {error}") from None
