"""Events: frozen records of what touched a dataset, kept apart from what it costs.

An event states the mechanism, its parameters, the neighbouring relation, the unit, the delta-free facts that an
accountant needs, and which records it touched. Events never change meaning once written: a ledger on disk must cost
the same tomorrow. docs/privacy-model.md sections 1 to 4.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Literal

from dpltm.errors import ArtifactError

Adjacency = Literal["add-remove", "replace-one"]
ProvenanceKind = Literal["data-free", "public", "dp", "private"]
Unit = Literal["record", "user"]
"""What one neighbour differs in: one record, or all records of one user. See ``dpltm.privacy.units``."""


def now() -> str:
    """The present time, UTC, ISO 8601 to the minute, and twelve random digits in place of fractions of a second.

    Events that several artifacts carry are known to be one release by being equal, so no two releases may share a time. From
    one event to the next a training may have run, and how long it took grows with the private number of records: that is
    why it is the minute and not the second.
    """
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:00.") + f"{secrets.randbelow(10**12):012d}Z"


FEATURES = "features "
"""What the ``ticket_set`` of a provenance event starts with if it tells where a feature map comes from."""

SETTINGS = "settings "
"""The same where it tells what settings were searched on."""

OPEN_END = 2**63 - 1
"""End of a range of places that goes to the end of the file."""

HASHES = 10**9
"""Public hashes of records go from 0 to this; ``subset=0.5:1.0`` is the range from half of it on."""

MOST_STEPS, MOST_CATEGORIES = 10**9, 10**9
"""Beyond these a number is an accident, and more than accountants compose."""

Cut = Literal["whole", "values", "columns", "places", "positions"]
"""How a part of a dataset is cut out of it, which decides what a neighbour changes (privacy-model.md 1.5).

- ``whole``: it is not.
- ``values``, ``columns``: by a public hash of each record's values in order, or of its values by column name. A record more
  or less changes the part that its hash falls into, and no other.
- ``places``: by places that a published file fixes. The neighbour is that file with one place *empty*; nobody moves.
- ``positions``: by position in a file that fixes nothing, as ledgers before 0.2 have it. A record more or less moves all
  that follow it, so *every* such range may lose one record and gain another.
"""

HASHED: tuple[Cut, ...] = ("values", "columns")
"""Cuts by a public hash of each record."""

UNKNOWN = ""
"""Content of records that cannot be told from any others here."""


@dataclass(frozen=True)
class DatasetRef:
    """Which records an event touched.

    What is written down is a name, a random id and a part. The id says nothing of the records. What it stands for is known
    in the configuration folder of whoever made it (``tickets/identity.py``): ``content`` and ``shares`` are filled in from
    there when a reference is read, are never written, and have no say in whether two references are equal.

    Attributes:
        name: the name the user knows the dataset by.
        id: random, another one each time; of records declared public, a fingerprint that anybody can compute.
        key_id: short public identifier of the folder that knows what the id stands for.
        start, stop: half-open range: of ``HASHES``, of places, or of positions, as ``cut`` says.
        cut: how the part is cut out.
        content: keyed identity of the full training split; ``UNKNOWN`` where it cannot be known. By default the id itself.
        shares: contents of other datasets in which some of these rows were found.
        same: those of them in which they were found more often than coincidence explains.
    """

    name: str
    id: str
    key_id: str
    start: int = 0
    stop: int = OPEN_END
    cut: Cut = "whole"
    content: str | None = field(default=None, compare=False, repr=False)
    shares: frozenset[str] = field(default=frozenset(), compare=False, repr=False)
    same: frozenset[str] = field(default=frozenset(), compare=False, repr=False)

    def __post_init__(self) -> None:
        end = HASHES if self.cut in HASHED else OPEN_END
        if not 0 <= self.start < self.stop <= end:
            raise ArtifactError(f"dataset reference {self.name}: records {self.start}:{self.stop} are not a range")
        if self.cut == "whole" and (self.start, self.stop) != (0, OPEN_END):
            raise ArtifactError(
                f"dataset reference {self.name}: the whole of it has no range {self.start}:{self.stop}"
            )
        if self.content is None:
            object.__setattr__(self, "content", f"{self.key_id}:{self.id}")

    def may_overlap(self, other: DatasetRef) -> bool:
        """Whether some record may be in both. Where that cannot be told, it may."""
        if self._is_same(other):
            return self._crosses(other)
        return not self._is_known_beside(other) or self._in_common(other, self.shares, other.shares)

    def surely_overlaps(self, other: DatasetRef) -> bool:
        """Whether the two are known to share records: parts that cross of one dataset, or of two with common people.

        Equal rows may be a coincidence where rows are short. They count for what things cost, but not here.
        """
        if self._is_same(other):
            return self._crosses(other)
        hashed = self.cut == other.cut and self.cut in HASHED
        known = self._is_known_beside(other) and self._in_common(other, self.same, other.same)
        return known and (not hashed or self._crosses(other))

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


@dataclass(frozen=True)
class Event:
    """What every event names.

    Attributes:
        dataset: the records that were touched.
        time: when, UTC.
        adjacency: the neighbouring relation that the parameters are stated for.
        unit: what one neighbour differs in.

    Raises:
        ArtifactError: a release under replace-one from a part cut out by hashes. A record replaced by one of another hash
            changes two parts, so such a release is entered on the whole dataset (see :meth:`DatasetRef.widened`).
    """

    dataset: DatasetRef
    time: str
    adjacency: Adjacency
    unit: Unit

    def __post_init__(self) -> None:
        if self.adjacency == "replace-one" and self.dataset != self.dataset.widened:
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
        ticket_set: content id of the ticket set; for a feature map, ``FEATURES`` and its name; for
            settings, ``SETTINGS`` and what chose them.
    """

    provenance: ProvenanceKind
    ticket_set: str


@dataclass(frozen=True)
class SelectionEvent(Event):
    """A winner drawn from a ticket set on private scores (docs/privacy-model.md section 3).

    Attributes:
        mechanism: ``exponential`` or ``permute-and-flip``.
        score: ``product`` or ``additive``.
        eps1: the epsilon the draw was calibrated to, with ``sensitivity``.
        sensitivity_rule: ``exact`` or ``paper``.
        sensitivity: Delta as used in the draw.
        certified_epsilon: the epsilon that is proven: eps1 scaled by true over used sensitivity, at least eps1 x 1
            when the used one is an over-estimate; infinite when no finite bound holds.
        candidates: number of tickets drawn from.
        ticket_set: content id of the ticket set.
        adaptive: whether releases from these records were on record before the draw, so that its candidates may depend
            on them. Only one that comes before everything else composes as a single two-outcome pair (privacy-model.md
            5.4; Dong, Durfee, Rogers 2019 on the cost of adaptivity).
    """

    mechanism: Literal["exponential", "permute-and-flip"]
    score: Literal["product", "additive"]
    eps1: float
    sensitivity_rule: Literal["exact", "paper"]
    sensitivity: float
    certified_epsilon: float
    candidates: int
    ticket_set: str
    adaptive: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive("eps1", self.eps1)
        _positive("sensitivity", self.sensitivity)
        _positive("certified_epsilon", self.certified_epsilon, infinite=True)
        if self.certified_epsilon < self.eps1:
            raise ArtifactError(f"Expected certified_epsilon={self.certified_epsilon} >= eps1={self.eps1}")


@dataclass(frozen=True)
class TrainingEvent(Event):
    """``steps`` Poisson-subsampled Gaussian releases of a filtered gradient sum (privacy-model.md 4.1).

    Attributes:
        sampling_rate: probability q with which each record enters a step.
        steps: number of noisy sums released, T.
        noise_multiplier: noise standard deviation over ``sensitivity``; 0 means no noise.
        sensitivity: certified L2 bound of the change one neighbour makes to the sum (already doubled for replace-one).
        nominal_sensitivity: the bound a source paper claims instead, or None where it claims none of its own.
        filter: the gradient filter, as text.
        live: number of live coordinates.
    """

    sampling_rate: float
    steps: int
    noise_multiplier: float
    sensitivity: float
    nominal_sensitivity: float | None
    filter: str
    live: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.sampling_rate <= 1:
            raise ArtifactError(f"Expected 0 < sampling_rate={self.sampling_rate} <= 1")
        if isinstance(self.steps, bool) or not isinstance(self.steps, int) or not 1 <= self.steps <= MOST_STEPS:
            raise ArtifactError(f"Expected steps={self.steps!r:.40} to be a whole number from 1 to {MOST_STEPS:,}")
        if not (math.isfinite(self.noise_multiplier) and self.noise_multiplier >= 0):
            raise ArtifactError(f"Expected finite noise_multiplier={self.noise_multiplier} >= 0")
        _positive("sensitivity", self.sensitivity)
        if self.nominal_sensitivity is not None:
            _positive("nominal_sensitivity", self.nominal_sensitivity)

    @property
    def nominal_noise_multiplier(self) -> float:
        """Noise standard deviation over the claimed bound; the certified multiplier where there is no such claim."""
        if self.nominal_sensitivity is None:
            return self.noise_multiplier
        return self.noise_multiplier * self.sensitivity / self.nominal_sensitivity


@dataclass(frozen=True)
class LaplaceEvent(Event):
    """A statistic released with Laplace noise on each coordinate.

    Attributes:
        what: what was released, in a few words.
        sensitivity: L1 bound of the change one neighbour makes, under ``adjacency``.
        scale: scale b of the noise.
    """

    what: str
    sensitivity: float
    scale: float

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive("sensitivity", self.sensitivity)
        _positive("scale", self.scale)


@dataclass(frozen=True)
class GaussianEvent(Event):
    """A statistic released with Gaussian noise on each coordinate.

    Attributes:
        what: what was released, in a few words.
        sensitivity: L2 bound of the change one neighbour makes, under ``adjacency``.
        noise_multiplier: standard deviation of the noise over ``sensitivity``.
    """

    what: str
    sensitivity: float
    noise_multiplier: float

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive("sensitivity", self.sensitivity)
        _positive("noise_multiplier", self.noise_multiplier)


@dataclass(frozen=True)
class RandomizedResponseEvent(Event):
    """Every record's value in one of k categories, released through k-ary randomised response.

    A record's presence shows, so the relation must be replace-one.

    Attributes:
        what: what was released, in a few words.
        epsilon: log of how much likelier the true category is than any other.
        categories: k, at least 2.
    """

    what: str
    epsilon: float
    categories: int

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive("epsilon", self.epsilon)
        if not 2 <= self.categories <= MOST_CATEGORIES:
            raise ArtifactError(f"Expected categories={self.categories!r:.40} from 2 to {MOST_CATEGORIES:,}")
        if self.adjacency != "replace-one":
            raise ArtifactError("randomised response shows who is there: Expected adjacency replace-one")


@dataclass(frozen=True)
class GuaranteeEvent(Event):
    """A release of which only its (epsilon, delta) guarantee is known; delta 0 is pure DP.

    Attributes:
        what: what was released, in a few words.
        epsilon: of the guarantee.
        delta: of the guarantee, in [0, 1).
    """

    what: str
    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive("epsilon", self.epsilon)
        if not 0 <= self.delta < 1:
            raise ArtifactError(f"Expected 0 <= delta={self.delta} < 1")


@dataclass(frozen=True)
class NonPrivateEvent(Event):
    """Something was released from the records with no mechanism, at the user's explicit word.

    Attributes:
        what: what was released, in a few words.
    """

    what: str


@dataclass(frozen=True)
class BudgetEvent(Event):
    """A limit set on the records; it costs nothing. The last one for the same records counts.

    Attributes:
        epsilon: largest certified epsilon that everything on record may come to.
        delta: at which it is read.
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive("epsilon", self.epsilon)
        if not 0 < self.delta < 1:
            raise ArtifactError(f"Expected 0 < delta={self.delta} < 1")


def _positive(name: str, value: float, *, infinite: bool = False) -> None:
    if not (value > 0 and (infinite or math.isfinite(value))):
        raise ArtifactError(f"Expected {name}={value} > 0")
