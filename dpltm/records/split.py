"""The records of a split, closed: whoever reads them says what was paid for it, or who said that nobody has to pay.

Three ways lead in. ``map`` makes other records of them, one by one, and those stay closed. ``check`` lets a function look,
which may refuse and gives nothing away. ``open`` hands the arrays out: for the secret of a release that was paid for, for a
declaration on record, or where the records are nobody's.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dpltm.errors import InputError
from dpltm.privacy.entry import Entry
from dpltm.privacy.release import Secret
from dpltm.records.mapped import pieces

ROWS = 512
"""Records that are mapped at a time."""


class Arrays(NamedTuple):
    """Records in the open.

    Attributes:
        x: features, ``(n, ...)``, any real dtype, all finite; of users ``(n, slots, ...)``.
        y: labels, ``(n,)`` int64, in ``0..classes-1``; of users ``(n, slots)``, ``ABSENT`` in empty slots; where they are no
            class numbers ``(n, ...)``, int64 or float32.
    """

    x: np.ndarray
    y: np.ndarray


@dataclass(frozen=True)
class Public:
    """The word of a caller that records are public, where no ledger is at hand to hold it, or not yet.

    Attributes:
        words: what is read off them.
    """

    words: str


Opener = Secret | Entry | Public | None
"""What opens records; None opens those that are nobody's."""


@dataclass(frozen=True)
class LabelForm:
    """Public facts about labels: the dtype (``int64`` or ``float32``), and the shape of one."""

    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype} labels of shape {self.shape}"


class Split:
    """Records of one split, with their labels, closed.

    Of ``Records`` in the design this is the part that holds arrays: ``Dataset`` has the part, the facts and the lineage, and
    Python keeps nobody from attributes that begin with an underscore. So it keeps no reader out; it makes whoever opens
    records say by what, and a test knows every place that does.

    Args:
        x, y: as :class:`Arrays` has them.
        nobodys: whether they are nobody's of any population: held out by the publication that they are from.
        valued: whether labels are no class numbers: then several in a row are those of one record, and not of a person.

    Attributes:
        shape, dtype: of one record's features, public: of users ``(slots, ...)``.
        labels: public facts about labels.
        slots: records of a user, with empty slots; None where every record stands alone.
        nobodys, valued: as given.

    ``len`` counts them, which is private under add/remove: sampling rates and scores go by ``Dataset.records``.
    """

    __slots__ = ("_closed", "_digest", "dtype", "labels", "nobodys", "shape", "slots", "valued")

    def __init__(self, x: np.ndarray, y: np.ndarray, *, nobodys: bool = False, valued: bool = False) -> None:
        self._closed, self._digest, self.nobodys, self.valued = Arrays(x, y), "", nobodys, valued
        self.shape: tuple[int, ...] = x.shape[1:]
        self.dtype: np.dtype = x.dtype
        self.labels = LabelForm(y.dtype.name, y.shape[1:])
        self.slots: int | None = y.shape[1] if y.ndim == 2 and not valued else None

    def __len__(self) -> int:
        return len(self._closed.y)

    def __repr__(self) -> str:
        return f"<Split of records of shape {self.shape}, {self.dtype}>"

    def map(
        self,
        rows: Callable[[np.ndarray, np.ndarray], np.ndarray],
        keep: Callable[[Iterator[np.ndarray]], np.ndarray],
        step: Callable[[int], None] | None = None,
    ) -> Split:
        """Return the same records, closed as before, with what a function makes of their features.

        Args:
            rows: of features and labels of some records, ``(k, ...)``, what stands in the place of the features. It must
                treat every record by itself, and any number of them.
            keep: gives the array that what comes of them lies in, piece by piece (``mapped.filled`` is one).
            step: told how many records are done.
        """

        def made() -> Iterator[np.ndarray]:
            (x, y), done = self._closed, 0
            for some in pieces(x, ROWS):
                yield rows(some, y[done : done + len(some)])
                done += len(some)
                if step is not None:
                    step(done)

        return self.with_features(keep(made()))

    def with_features(self, x: np.ndarray) -> Split:
        """Return the same records with features that were made of them before, ``(n, ...)``."""
        return Split(x, self._closed.y, nobodys=self.nobodys, valued=self.valued)

    def as_nobodys(self) -> Split:
        """Return the same, known to be nobody's."""
        return self if self.nobodys else Split(*self._closed, nobodys=True, valued=self.valued)

    def made_up(self) -> Arrays:
        """Return one record like these, all zeros: what a function makes of its shape and dtype tells of nobody."""
        return Arrays(*(np.zeros((1, *values.shape[1:]), values.dtype) for values in self._closed))

    def check(self, look: Callable[[Arrays], object]) -> None:
        """Let a function look at the records, which refuses or does not; what it returns is dropped."""
        look(self._closed)

    def digest(self, key: bytes) -> str:
        """Return a digest of features and labels in their order, HMAC-SHA-256 (hex): without the key it tells nothing."""
        if not self._digest:
            content = hashlib.sha256()
            for values in self._closed:
                content.update(f"{values.dtype.name} {values.shape}\n".encode())
                for piece in pieces(values):
                    content.update(np.ascontiguousarray(piece, dtype=values.dtype.newbyteorder("<")).tobytes())
            self._digest = content.hexdigest()
        return hmac.new(key, self._digest.encode(), hashlib.sha256).hexdigest()

    def open(self, by: Opener) -> Arrays:
        """Return the arrays; none is copied.

        Args:
            by: the secret of a release that was paid for; an entry on record by which they are read as they are
                (``Ledger.declared``); the word of a caller; or None for records that are nobody's.

        Raises:
            InputError: nothing is on record by which they are read.
        """
        if isinstance(by, Entry):
            opened = bool(by.home) and by.exposes
        else:
            opened = self.nobodys if by is None else isinstance(by, (Secret, Public))
        if not opened:
            raise InputError(
                "records: nothing on record opens them; pay for what is read of them, or declare it in their ledger"
            )
        return self._closed
