"""Events, the ledger's entries: frozen records of what touched a dataset, kept apart from what it costs.

An event says which records were touched, when, in what words, and by which mechanism (``mechanisms``): that value holds all
that an accountant needs. Statements, of where tickets come from or of a budget, have no mechanism. Events never change
meaning once written: a ledger on disk must cost the same tomorrow. docs/privacy-model.md sections 1 to 4.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Literal

from dpltm.errors import ArtifactError, InputError
from dpltm.privacy.mechanisms import (
    GaussianRelease,
    Guarantee,
    LaplaceRelease,
    Mechanism,
    NoisySgd,
    PrivateSearch,
    RandomizedResponse,
    Selection,
    Unit,
    Unprotected,
    check_positive,
)

ProvenanceKind = Literal["data-free", "public", "dp", "private"]


def now() -> str:
    """The present time, UTC, ISO 8601 to the minute, and twelve random digits in place of fractions of a second.

    Events that several artifacts carry are known to be one release by being equal, so no two releases may share a time. From
    one event to the next a training may have run, and how long it took grows with the private number of records: that is
    why it is the minute and not the second.
    """
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:00.") + f"{secrets.randbelow(10**12):012d}Z"


FEATURES = "features "
"""What the ``ticket_set`` of a provenance event starts with if it tells where a feature map comes from."""

SETTINGS, SYNTHETIC, HELD_OUT, TEST_SPLIT = "settings ", "synthetic records ", "held-out ", "test split"
"""The same of what settings were searched on, of what synthetic records come from, and of what accuracy was measured on."""

OPEN_END = 2**63 - 1
"""End of a range of places that goes to the end of the file."""

HASHES = 10**9
"""Public hashes of records go from 0 to this; ``subset=0.5:1.0`` is the range from half of it on."""

Cut = Literal["whole", "values", "columns", "places", "positions"]
"""How a part of a dataset is cut out of it, which decides what a neighbour changes (privacy-model.md 1.5).

- ``whole``: it is not.
- ``values``, ``columns``: by a public hash of each record's values in order, or of its values by column name. A record more
  or less changes the part that its hash falls into, and no other.
- ``places``: by places that a published file fixes. The neighbour is that file with one place *empty*; nobody moves.
- ``positions``: by position in any other file, as ledgers before 0.2 have it: any such range may lose one and gain another.
"""

HASHED: tuple[Cut, ...] = ("values", "columns")
"""Cuts by a public hash of each record."""

NoiseBits = Literal["secure", "fast"]
"""What noise was made of: the bits of a cryptographic generator, or of one that is statistically sound only."""

UNKNOWN, _KNOWN_HERE = "", ("shares", "same", "regrouped")
"""Content of records that cannot be told from any others here; what else is known of them here alone."""


@dataclass(frozen=True)
class DatasetRef:
    """Which records an event touched.

    What is written down is a name, a random id and a part. What the id stands for is known in the configuration folder of
    whoever made it (``tickets/identity.py``): ``content`` and what follows it are filled in from there when a reference is
    read, are never written or pickled, and have no say in whether two references are equal.

    Attributes:
        name: the name the user knows the dataset by.
        id: random, another one each time; of records declared public, a fingerprint that anybody can compute.
        key_id: short public identifier of the folder that knows what the id stands for.
        start, stop: half-open range: of ``HASHES``, of places, or of positions, as ``cut`` says.
        cut: how the part is cut out.
        units: where users are protected, the column that says whose each record is; nothing of ratings.
        content: keyed identity of the full training split; ``UNKNOWN`` where it cannot be known. By default the id itself.
        shares: contents of other datasets in which some of these rows were found.
        same: those of them in which they were found more often than coincidence explains.
        regrouped: those of them that say of some of these rows that they are somebody else's.
    """

    name: str
    id: str
    key_id: str
    start: int = 0
    stop: int = OPEN_END
    cut: Cut = "whole"
    units: str = ""
    content: str | None = field(default=None, compare=False, repr=False)
    shares: frozenset[str] = field(default=frozenset(), compare=False, repr=False)
    same: frozenset[str] = field(default=frozenset(), compare=False, repr=False)
    regrouped: frozenset[str] = field(default=frozenset(), compare=False, repr=False)

    def __post_init__(self) -> None:
        end = HASHES if self.cut in HASHED else OPEN_END
        if not 0 <= self.start < self.stop <= end:
            raise ArtifactError(f"dataset reference {self.name}: records {self.start}:{self.stop} are not a range")
        if self.cut == "whole" and (self.start, self.stop) != (0, OPEN_END):
            raise ArtifactError(f"dataset reference {self.name}: the whole has no range {self.start}:{self.stop}")
        if self.content is None:
            object.__setattr__(self, "content", f"{self.key_id}:{self.id}")

    def __getstate__(self) -> dict[str, object]:
        # two processes with one key, such as forked ones, have not compared what each has met since
        return {**vars(self), "content": UNKNOWN, **dict.fromkeys(_KNOWN_HERE, frozenset())}

    def __copy__(self) -> DatasetRef:
        return self  # in this process it is known

    def __deepcopy__(self, memo: object) -> DatasetRef:
        return self

    def may_overlap(self, other: DatasetRef) -> bool:
        """Whether some record may be in both. Where that cannot be told, it may."""
        if self._is_same(other):
            return self._crosses(other)
        return not self._is_known_beside(other) or self._in_common(other, self.shares, other.shares)

    def surely_overlaps(self, other: DatasetRef) -> bool:
        """Whether some record must be taken to be in both: crossing parts of one dataset, or any of two with common people.

        Equal rows may be a coincidence where rows are short. They count for what things cost, but not here.
        """
        if self._is_same(other):
            return self._crosses(other)
        return self._is_known_beside(other) and self._in_common(other, self.same, other.same)

    @property
    def widened(self) -> DatasetRef:
        """The records that replacing one may touch: of a part cut out by hashes, the whole dataset."""
        return self.all if self.cut in HASHED else self

    @property
    def all(self) -> DatasetRef:
        """The whole dataset that this is, or is a part of."""
        return replace(self, cut="whole", start=0, stop=OPEN_END)

    @property
    def group(self) -> str:
        """What all references to the same content have in common, as far as it is known."""
        return self.content or f"{self.key_id}:{self.id}"

    def _is_same(self, other: DatasetRef) -> bool:
        """Whether both are known to be (parts of) the same dataset."""
        return (self.id, self.key_id) == (other.id, other.key_id) or bool(
            self.content and self.content == other.content
        )

    def _is_known_beside(self, other: DatasetRef) -> bool:
        """Whether what both hold is known, and under one key, so that it can be compared."""
        if not self.content or not other.content:
            return False
        return self.content.partition(":")[0] == other.content.partition(":")[0]

    def _in_common(self, other: DatasetRef, ours: frozenset[str], theirs: frozenset[str]) -> bool:
        """Whether rows of the one dataset were found in the other, in whatever parts.

        A row is recognised under other columns and in another order of them, and its public hash is then another: it may be
        in the first half here and in the second half there.
        """
        return other.content in ours or self.content in theirs

    def _crosses(self, other: DatasetRef) -> bool:
        """Whether the parts, of one dataset, may have a record in common."""
        if self.cut != other.cut or self.cut in ("whole", "positions"):
            return True
        return self.start < other.stop and other.start < self.stop

    def __str__(self) -> str:
        match self.cut:
            case "whole":
                return self.name
            case "values" | "columns":
                return f"{self.name}[{_fraction(self.start)}:{_fraction(self.stop)}]"
        return f"{self.name}[{self.start}:{'' if self.stop == OPEN_END else self.stop}]"


def _fraction(hashes: int) -> str:
    """``0.5`` for half of ``HASHES``, exactly."""
    whole, rest = divmod(hashes, HASHES)
    return f"{whole}.{rest:09d}".rstrip("0") + ("0" if not rest else "")


UNKNOWN_RECORDS = DatasetRef("records", "not known", "none")
"""Records of which nothing is known: in a ledger they add up with everything else."""


@dataclass(frozen=True)
class Event:
    """What every event names.

    Attributes:
        dataset: the records that were touched.
        time: when, UTC; see :func:`now`.
    """

    dataset: DatasetRef
    time: str = field(default_factory=lambda: now(), kw_only=True)  # by name, so that another clock may stand in


@dataclass(frozen=True)
class ReleaseEvent(Event):
    """Something was computed from the records by a mechanism, and released.

    Attributes:
        mechanism: which one, with all that an accountant needs.

    Raises:
        ArtifactError: a release under replace-one from a part cut out by hashes. A record replaced by one of another hash
            changes two parts, so such a release is entered on the whole dataset (see :meth:`DatasetRef.widened`).
    """

    mechanism: Mechanism

    def __post_init__(self) -> None:
        if self.mechanism.adjacency == "replace-one" and self.dataset != self.dataset.widened:
            raise ArtifactError(
                f"{self.dataset}: a record replaced by another may leave one such part and enter another, so Expected the"
                " whole dataset under replace-one"
            )


@dataclass(frozen=True)
class ProvenanceEvent(Event):
    """Where a ticket set's masks, or a map in front of the network, come from (privacy-model.md 2).

    Attributes:
        provenance: ``data-free`` and ``public`` cost nothing, ``dp`` is paid by its own events, ``private`` is
            non-private: masks made from the records with no mechanism.
        ticket_set: content id of the ticket set; ``FEATURES`` and the name of a feature map, ``SETTINGS`` and what chose
            settings, ``SYNTHETIC`` and the id of synthetic records, or ``HELD_OUT`` and the part of a file that was, or
            ``TEST_SPLIT``.
    """

    provenance: ProvenanceKind
    ticket_set: str


@dataclass(frozen=True)
class SelectionEvent(ReleaseEvent):
    """A winner drawn from a ticket set on private scores (docs/privacy-model.md section 3).

    Attributes:
        mechanism: the draw; ``adaptive`` unless no release from these records was on record before it.
        score: ``product`` or ``additive``.
        sensitivity_rule: ``exact`` or ``paper``.
        sensitivity: Delta as used in the draw.
        candidates: number of tickets drawn from.
        ticket_set: content id of the ticket set.
    """

    mechanism: Selection
    score: Literal["product", "additive"]
    sensitivity_rule: Literal["exact", "paper"]
    sensitivity: float
    candidates: int
    ticket_set: str

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("sensitivity", self.sensitivity)


@dataclass(frozen=True)
class TrainingEvent(ReleaseEvent):
    """A training on noisy sums of filtered gradients (privacy-model.md 4.1).

    Attributes:
        mechanism: its steps.
        filter: the gradient filter, as text.
        live: number of live coordinates.
        noise: what the noise was made of.
    """

    mechanism: NoisySgd
    filter: str
    live: int
    noise: NoiseBits = "secure"


@dataclass(frozen=True)
class SearchEvent(ReleaseEvent):
    """The best of a secret number of trainings at random settings (privacy-model.md 5.7).

    Attributes:
        mechanism: its tries, and how many there are.
        filter: the gradient filter, as text; of every try.
        live: number of live coordinates.
    """

    mechanism: PrivateSearch
    filter: str
    live: int


@dataclass(frozen=True)
class LaplaceEvent(ReleaseEvent):
    """A statistic released with Laplace noise.

    Attributes:
        mechanism: the noise, and the sensitivity it is for.
        what: what was released, in a few words.
    """

    mechanism: LaplaceRelease
    what: str


@dataclass(frozen=True)
class GaussianEvent(ReleaseEvent):
    """A statistic released with Gaussian noise.

    Attributes:
        mechanism: the noise, and the sensitivity it is for.
        what: what was released, in a few words.
        noise: what the noise was made of.
    """

    mechanism: GaussianRelease
    what: str
    noise: NoiseBits = "secure"


@dataclass(frozen=True)
class RandomizedResponseEvent(ReleaseEvent):
    """Every record's value released through randomised response.

    Attributes:
        mechanism: the categories, and how likely the true one is.
        what: what was released, in a few words.
    """

    mechanism: RandomizedResponse
    what: str


@dataclass(frozen=True)
class GuaranteeEvent(ReleaseEvent):
    """A release of which only its (epsilon, delta) guarantee is known.

    Attributes:
        mechanism: the guarantee.
        what: what was released, in a few words.
    """

    mechanism: Guarantee
    what: str


@dataclass(frozen=True)
class NonPrivateEvent(ReleaseEvent):
    """Something was released from the records with no mechanism, at the user's explicit word.

    Attributes:
        mechanism: none: ``Unprotected``.
        what: what was released, in a few words.
    """

    mechanism: Unprotected
    what: str


@dataclass(frozen=True)
class BudgetEvent(Event):
    """A limit set on the records; it costs nothing. The last one for the same records and unit counts.

    Attributes:
        epsilon: largest certified epsilon that everything on record may come to.
        delta: at which it is read.
        unit: whom it protects.
    """

    epsilon: float
    delta: float
    unit: Unit = "record"

    def __post_init__(self) -> None:
        check_positive("epsilon", self.epsilon)
        if not 0 < self.delta < 1:
            raise InputError(f"Expected 0 < delta={self.delta} < 1")


def is_release(event: Event) -> bool:
    """Whether an event is one of a mechanism, whose relation and unit a guarantee is stated for."""
    return isinstance(event, ReleaseEvent) and not isinstance(event, NonPrivateEvent)
