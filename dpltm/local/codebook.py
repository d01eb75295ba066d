"""One index a record: a public codebook of random directions, and a set of those that are near (certified, and it learns).

Owner and server draw the same random directions from a public number. An owner ranks them by how well they point along
her record, signed or selected by its label, and reports one: of the k best with a fixed chance, else one of the others.
That is epsilon-locally private, label included, whatever decides which are near (subset selection: docs/privacy-model.md
6.3).

Directions come in opposite pairs, so that those of a codebook add up to nothing. With ``one-hot`` labels a candidate is a
direction and a class. With ``signed`` ones it is a direction with a random sign for every class, which is better at small
budgets.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np

from dpltm.errors import InputError
from dpltm.local.channels import MAX_CATEGORIES, Response, check_sizes
from dpltm.randomness.noise import FastSource, RandomSource, gaussian

Labels = Literal["one-hot", "signed"]

PAIRS = 128
"""N, pairs of opposite directions; for ten classes more of them gain under three parts in a hundred up to epsilon 8."""

TOGETHER = 16
"""Records that share a codebook, which is public and says nothing of them; many more would make their errors alike."""

ALONE_FROM = 6.0
"""Epsilon from which every record has a codebook of its own: coins blur less there, so that shared directions would show."""

MESSAGE = np.dtype([("codebook", "<u4"), ("index", "<u2")])
"""Of one record: the number of the codebook, and the candidate."""

MAX_CLASSES = MAX_CATEGORIES // (2 * PAIRS)


@dataclass(frozen=True)
class Codebook:
    """Codebook of ``near`` (k) likelier candidates, that turns a record of z-scores and its label into one index."""

    values: int
    classes: int
    epsilon: float
    labels: Labels
    near: int

    protocol: ClassVar[str] = "codebook"
    record_bytes: ClassVar[int] = MESSAGE.itemsize
    labels_are_public: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_sizes(self.values, self.classes, MAX_CLASSES)
        self.response  # noqa: B018 - refuses an epsilon out of range
        if not 1 <= self.near <= PAIRS:
            raise InputError(f"Expected {self.near} near candidates from 1 to {PAIRS}")

    @property
    def candidates(self) -> int:
        """M."""
        return 2 * PAIRS * (self.classes if self.labels == "one-hot" else 1)

    @property
    def facts(self) -> dict[str, float | None]:
        return {"candidates": self.candidates}

    @cached_property
    def response(self) -> Response:
        """How one of the candidates is reported."""
        return Response(self.candidates, self.epsilon, self.near)

    @property
    def certified(self) -> float:
        """Local epsilon of a record, label included."""
        return self.response.certified

    @property
    def nominal(self) -> float:
        """Epsilon that is claimed; coins are rounded to where they tell less, so that it holds."""
        return self.epsilon

    @property
    def records_per_codebook(self) -> int:
        return TOGETHER if self.epsilon < ALONE_FROM else 1

    def randomise(self, scores: np.ndarray, labels: np.ndarray, source: RandomSource) -> np.ndarray:
        """Return records as they are sent.

        Args:
            scores: ``(n, d)``; only their direction counts.
            labels: ``(n,)`` int64, below ``classes``.
            source: coins; secret.

        Returns:
            ``(n, 6)`` uint8: ``MESSAGE``.

        Guarantees:
            Each row is ``certified``-locally private (``Response.send``): exactly k candidates are near whatever the record
            is.
        """
        messages = np.empty(len(scores), MESSAGE)
        for start in range(0, len(scores), self.records_per_codebook):
            block = slice(start, start + self.records_per_codebook)
            number = int.from_bytes(source.random_bytes(4), "little")
            near = self.near_candidates(scores[block], labels[block], number)
            messages["codebook"][block] = number
            messages["index"][block] = self.response.send(near, source)
        return messages.view(np.uint8).reshape(-1, self.record_bytes)

    def near_candidates(self, scores: np.ndarray, labels: np.ndarray, number: int) -> np.ndarray:
        """Return the k candidates of codebook ``number`` nearest to each record, ``(n, k)``, nearest first: private.

        Of equally near ones the first.
        """
        directions, signs = codewords(number, self.values, self.classes)
        along = scores.astype(np.float64) @ directions.T.astype(np.float64)
        if self.labels == "signed":
            along *= signs[:, labels].T
        best = np.argsort(np.concatenate([-along, along], axis=1), axis=1, kind="stable")[:, : self.near]
        return best if self.labels == "signed" else best + 2 * PAIRS * labels[:, None]

    def check(self, rows: np.ndarray) -> None:
        """Raise InputError if messages, ``(n, 6)``, hold an index that no candidate has."""
        largest = reports(rows)[1].max(initial=0)
        if largest >= self.candidates:
            raise InputError(f"an index is {largest}, and there are {self.candidates} candidates")


def codewords(number: int, values: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a public codebook, float32: a normal direction of each pair ``(N, d)``, its signs for classes ``(N, K)``."""
    source = FastSource(number)
    directions = gaussian(source, PAIRS * values).astype("f4").reshape(PAIRS, values)
    bits = np.frombuffer(source.random_bytes(PAIRS * classes), dtype=np.uint8).reshape(PAIRS, classes)
    return directions, np.where(bits & 1, 1.0, -1.0).astype("f4")


def reports(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the codebook and the index of each message ``(n, 6)``, ``(n,)`` int64 both."""
    messages = np.ascontiguousarray(rows).view(MESSAGE)[:, 0]
    return messages["codebook"].astype(np.int64), messages["index"].astype(np.int64)
