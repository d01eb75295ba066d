"""Whose records a reference stands for: random ids outside, and what they stand for where it is known.

An exact digest of private records is a function of them: published before and after a deletion, it tells whether the record
was there. So whatever is written about a dataset carries a random id (``DatasetRef``). A registry knows what its ids stand
for, as long as it lives: this one in memory, ``dpltm.tickets.identity`` in the user's configuration folder.

- An id stands for a *content*: a keyed fingerprint of all training rows, whatever their order.
- Of a content it keeps keyed hashes of the rows (``records.rows``), by which they are recognised in other files. Without
  them, or where there are too many, it may overlap everything.
- Of two contents it knows whether they have rows, or persons, in common: ``same``, or by ``coincidence``; and whether the
  one says of rows of the other that they are somebody else's: ``regrouped``.

Records declared public are named by a fingerprint under a key that everybody has, so that anybody can see whether they are
the same. Only what is public all through has one: not a part of a file whose rest is private.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Literal, NoReturn

import numpy as np

from dpltm.errors import InputError
from dpltm.privacy.events import UNKNOWN, DatasetRef, Event, ProvenanceEvent
from dpltm.records.dataset import Dataset, key_id
from dpltm.records.mapped import pieces
from dpltm.records.rows import Rows, count_shared, share_rows

PUBLIC_KEY = bytes(32)
"""Everybody's: under it records that were declared public are named."""

MAX_ROWS = 2**22
"""Hashes that are kept of one dataset. Of a larger one nobody can tell whom it shares rows with: it may overlap all."""

MEETING = threading.RLock()
"""Held while a dataset is compared with all that were met, and joins them: of two that come at once, one sees the other."""

Kind = Literal["same", "coincidence", "regrouped"]
Share = tuple[str, Kind]
"""Another content that has rows in common with one, and why."""


@dataclass(frozen=True)
class Met:
    """What was met in this process: what ids stand for, rows and shares of contents, draws, and datasets by public ids."""

    ids: dict[str, str] = field(default_factory=dict)
    rows: dict[str, np.ndarray] = field(default_factory=dict)
    shares: dict[str, list[Share]] = field(default_factory=dict)
    draws: dict[str, list[tuple[int, tuple[Event, ...]]]] = field(default_factory=dict)
    public: dict[str, Dataset] = field(default_factory=dict)


class RecordRegistry:
    """Tells records apart, and recognises them, as long as it lives.

    Two ledgers that are to know each other's records share a registry. A reference of another registry stands for records
    that may be any: they overlap everything. So does one that another process sent: a copy of a registry is the registry
    itself, and none is pickled, since two with one key would not know what the other has met.
    """

    def __init__(self) -> None:
        self._key, self._met = secrets.token_bytes(32), Met()

    def __copy__(self) -> RecordRegistry:
        return self

    def __deepcopy__(self, memo: object) -> RecordRegistry:
        return self

    def __reduce__(self) -> NoReturn:
        raise InputError(
            "`registry`: cannot be pickled, since two of them would not know whose records the other has met; make another"
            " there, or open a ledger file (dpltm.tickets.ledger_file.open_ledger), which processes may share"
        )

    @property
    def key(self) -> bytes:
        """The 32 secret bytes that all hashes here are taken under."""
        return self._key

    def reference(self, dataset: Dataset, *, public: bool = False) -> DatasetRef:
        """What is written down about a dataset: a name, a random id, a part; with what they stand for, in memory.

        Args:
            dataset: the records.
            public: whether they are declared public.

        Raises:
            ArtifactError: a registry on disk cannot be read or written.
        """
        key = self.key
        hashes = dataset.rows.keyed_hashes
        if len(dataset.rows) <= MAX_ROWS:  # or they would take more memory than all else
            hashes = cache(hashes)  # large data take a second; what was met before takes none
        content = self._content(dataset.rows, hashes, key)
        self._remember(content, hashes if len(dataset.rows) <= MAX_ROWS else _too_many, dataset.rows)
        published = self._content(dataset.rows, hashes, PUBLIC_KEY)
        self._note(published, content)  # whoever names these records publicly is understood here
        part = dataset.part
        if public and dataset.whole:  # of a part, the fingerprint would tell of the rest
            ref = DatasetRef(dataset.name, published, key_id(PUBLIC_KEY), part.start, part.stop, part.cut)
        else:
            ref = DatasetRef(dataset.name, secrets.token_hex(16), key_id(key), part.start, part.stop, part.cut)
            self._note(ref.id, content)
        if public:
            self._met.public[ref.id] = dataset
        return self.resolve(ref)

    def declared_public(self, ref: DatasetRef) -> Dataset | None:
        """The dataset that became ``ref`` when it was declared public here, in this process; None where it did not."""
        return self._met.public.get(ref.id)

    def look_at(self, dataset: Dataset) -> DatasetRef:
        """The same for a look at the records, after which nothing is written about them: no id is kept on disk."""
        return self.reference(dataset)

    def resolve(self, ref: DatasetRef, public: bool = True) -> DatasetRef:
        """The reference with what is known here of what it stands for.

        Args:
            ref: as it was read.
            public: whether it only says that records were declared public. A public name that nobody here has met then
                stands for other records than those known here; as what a release was made from, it may be any.
        """
        ours, everybodys = key_id(self.key), key_id(PUBLIC_KEY)
        content = self._content_of(ref)
        if content is None:
            unmet = f"{ours}:public {ref.id}" if public and ref.key_id == everybodys else UNKNOWN
            return replace(ref, content=unmet, shares=frozenset(), same=frozenset(), regrouped=frozenset())
        if not self._is_comparable(content):  # known to be the same as itself, and not to be apart from anything
            content = f"{content}:{content}"
            return replace(ref, content=content, shares=frozenset(), same=frozenset(), regrouped=frozenset())
        shares = tuple(self._shares(content))
        return replace(
            ref,
            content=f"{ours}:{content}",
            shares=frozenset(f"{ours}:{other}" for other, _ in shares),
            same=frozenset(f"{ours}:{other}" for other, kind in shares if kind == "same"),
            regrouped=frozenset(f"{ours}:{other}" for other, kind in shares if kind == "regrouped"),
        )

    def resolve_event(self, event: Event) -> Event:
        """The event with what is known here of its records."""
        public = isinstance(event, ProvenanceEvent) and event.provenance == "public"
        return replace(event, dataset=self.resolve(event.dataset, public))

    def rows_of(self, ref: DatasetRef) -> np.ndarray | None:
        """Keyed hashes of the rows that a reference stands for, sorted; None where they are not known here."""
        content = self._content_of(ref)
        rows = None if content is None else self._rows(content)
        return None if rows is None or not len(rows) else rows

    def remember_draw(self, ticket_set: str, won: int, events: tuple[Event, ...]) -> None:
        """Keeps, in memory, that a round of a ticket set won, and what its draw entered in whatever ledger.

        Args:
            ticket_set: content id of the set.
            won: the round.
            events: of the draw.
        """
        draws = self._met.draws.setdefault(ticket_set, [])
        if (won, events) not in draws:
            draws.append((won, events))

    def draws_behind(self, ticket_set: str, number: int | None = None) -> tuple[tuple[Event, ...], ...]:
        """What each draw entered that is known here: of all, or none where round ``number`` is given and never won."""
        draws = self._met.draws.get(ticket_set, [])
        if number is not None and number not in (won for won, _ in draws):
            return ()
        return tuple(events for _, events in draws)

    def _content_of(self, ref: DatasetRef) -> str | None:
        """What a reference stands for; None where that is not known here."""
        return self._ids().get(ref.id) if ref.key_id in (key_id(self.key), key_id(PUBLIC_KEY)) else None

    def _content(self, rows: Rows, keyed_hashes: Callable[[bytes], np.ndarray], key: bytes) -> str:
        """The keyed fingerprint of all rows, whatever their order: 32 hexadecimal digits.

        It takes a second or two of large data, so it is looked up by the digest of the very file where that was met before.
        """
        asked = hmac.new(self.key, b"rows" + key + rows.digest.encode(), hashlib.sha256).hexdigest()[:32]
        content = self._ids().get(asked)
        if content is None:
            told = hashlib.blake2b(digest_size=16, key=key)
            for some in pieces(keyed_hashes(key)):
                told.update(some.astype("<u8").tobytes())
            content = told.hexdigest()
            self._note(asked, content)
        return content

    def _remember(self, content: str, keyed_hashes: Callable[[bytes], np.ndarray], rows: Rows) -> None:
        """Keeps the rows of a content that is met for the first time, and which others it has rows in common with."""
        if content in self._met.rows:
            return
        hashes = few_enough(keyed_hashes(self.key))
        with MEETING:
            if content not in self._met.rows:
                self._met.shares[content] = self._compare(content, hashes, rows)
                self._met.rows[content] = hashes

    def _compare(self, content: str, hashes: np.ndarray, rows: Rows) -> list[Share]:
        """Others met in this process that have rows in common with a content; these are told so too."""
        shares: list[Share] = []
        for other, theirs in self._met.rows.items():
            for kind in kinds_of(hashes, theirs, rows, self.key) if other != content else ():
                shares.append((other, kind))
                self._met.shares[other].append((content, kind))
        return shares

    def _note(self, number: str, content: str) -> None:
        """Keeps what an id stands for."""
        self._met.ids[number] = content

    def _ids(self) -> Mapping[str, str]:
        """What ids stand for."""
        return self._met.ids

    def _rows(self, content: str) -> np.ndarray:
        """Hashes of the rows of a content; none where they are not at hand."""
        return self._met.rows.get(content, np.empty(0, dtype=np.uint64))

    def _shares(self, content: str) -> Iterable[Share]:
        """What has rows in common with a content."""
        return self._met.shares.get(content, ())

    def _is_comparable(self, content: str) -> bool:
        """Whether what a content shares is known, and its rows are at hand to be compared."""
        return len(self._rows(content)) > 0


def _too_many(key: bytes) -> np.ndarray:
    """What is kept of the rows of a dataset that has more of them than ``MAX_ROWS``."""
    del key
    return np.empty(0, dtype=np.uint64)


def few_enough(hashes: np.ndarray) -> np.ndarray:
    """The hashes, or none where there are too many to be kept."""
    return hashes if len(hashes) <= MAX_ROWS else hashes[:0]


def kinship(one: np.ndarray, other: np.ndarray) -> Literal["same", "coincidence"] | None:
    """Why two arrays of hashes have some in common; None where they have not."""
    if not share_rows(one, other):
        return None
    return "same" if count_shared(one, other) or count_shared(other, one) else "coincidence"


def kinds_of(one: np.ndarray, other: np.ndarray, rows: Rows, key: bytes) -> list[Kind]:
    """What two datasets have to do with each other; nothing where they have nothing in common.

    Args:
        one, other: hashes of both.
        rows: of the one.
        key: that the hashes were taken under.
    """
    kind = kinship(one, other)
    if kind is None:
        return []
    return [kind, "regrouped"] if rows.regroups(key, other) else [kind]


SESSION = RecordRegistry()
"""The registry of whoever hands in none: of one process, in memory."""


def registry_of(ref: DatasetRef, registry: RecordRegistry) -> RecordRegistry:
    """The registry that knows the rows behind a reference, of those at hand: ``registry``, else the one in memory.

    What was made in memory and saved is read with the user's registry, which does not know the references of this process.
    """
    return SESSION if registry.rows_of(ref) is None and SESSION.rows_of(ref) is not None else registry
