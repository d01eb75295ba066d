"""Mechanisms: frozen values that hold what accounting needs to know of a release, and nothing else.

The ledger's entry that holds a mechanism (``entry``) says on which records it ran, and when; the accountants
(``accountant``) say what it costs. Parameters never change meaning: what a ledger on disk costs today it must cost tomorrow.

**Two steps.** Where a record is replaced, a release that is stated for add/remove is two steps between neighbours away: the
record leaves, and another one comes. A sampled Gaussian step gives s + B g + noise on the one dataset and s + B g' + noise
on the other, with what others contribute, s, the same coin B, and |g|, |g'| <= C: the pair of the replace-one relation
(``SampledGaussianLoss``) at the sensitivity 2 C dominates it. Whatever else is (epsilon, delta)-DP is, by two steps, (2
epsilon, (1 + e^epsilon) delta)-DP; a range of losses and a sensitivity double; rho-zCDP is 4 rho-zCDP (Bun, Steinke 2016,
Proposition 1.9). Pairs that dominate compose adaptively (Zhu, Dong, Wang 2022, Theorem 10), whatever they came from.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, get_args

from dpltm.errors import InputError

Adjacency = Literal["add-remove", "replace-one"]
"""Relation between neighbours: one has a record (or user) more, or one is replaced by another."""

Sampling = Literal["poisson", "truncated-poisson", "cyclic-poisson", "allocation", "none"]
"""Ways in which records enter steps: by a coin a step, by one of which so many are taken at most, or by one a step of their
part; in so many steps that were drawn before; or in every one."""

Bits = Literal["secure", "fast"]
"""Bits that noise is made of: of a cryptographic generator, or of one that is statistically sound only."""

MAX_SETTINGS, MIN_GAMMA = 10**4, 1e-9  # of a search; the least gamma is 50 million tries in the mean
Ranges = Mapping[str, tuple[float, float]]
MAX_FLOAT = sys.float_info.max
POSITIVE, BELOW_1 = (math.ulp(0.0), MAX_FLOAT), math.nextafter(1.0, 0.0)  # finite numbers above 0; largest below 1
_ENDS = {POSITIVE[0]: "above 0", MAX_FLOAT: "and finite", BELOW_1: "and below 1"}


@dataclass(frozen=True)
class Mechanism:
    """Base of mechanisms; InputError for a parameter out of range.

    Attributes:
        adjacency: relation that the parameters hold for. Whether a neighbour has a record more or a person, its entry says.
        bits: what its random numbers are made of.
    """

    adjacency: Adjacency = field(default="add-remove", kw_only=True)
    bits: Bits = field(default="secure", kw_only=True)

    relations: ClassVar[tuple[str, ...]] = get_args(Adjacency)
    ranges: ClassVar[Ranges] = {}
    """Least and largest value of parameters; of whole numbers both are ints. What is beyond is an accident, and more than
    accountants compose."""

    def __init_subclass__(cls) -> None:
        # the case of a base would price what derives from it: only trainings have cases by exact type
        if not all(base is Mechanism or base is NoisySgd for base in cls.__bases__):
            raise TypeError(f"{cls.__name__}: derive mechanisms from Mechanism or NoisySgd: others are priced by type")

    def __post_init__(self) -> None:
        for name, choices in (("adjacency", self.relations), ("bits", get_args(Bits))):
            if getattr(self, name) not in choices:
                raise InputError(f"Expected {name}={getattr(self, name)!r:.40} to be {' or '.join(choices)}")
        for name, (low, high) in self.ranges.items():
            value, whole = getattr(self, name), type(low) is int
            in_range = value is getattr(type(self), name, self) or (  # a default may be None
                (type(value) is int or not whole) and low <= value <= high
            )
            if not in_range:
                number, begin = "a whole number" if whole else "a number", _ENDS.get(low, f"from {low:.3g}")
                end = _ENDS.get(high, f"to {high:.3g}")
                raise InputError(f"Expected {name}={value!r:.40} to be {number} {begin} {end}")


@dataclass(frozen=True)
class NoisySgd(Mechanism):
    """``steps`` Poisson-subsampled Gaussian releases of a sum of bounded per-record gradients: NoisySGD, NoisyAdam.

    What an optimizer makes of the noisy sums is post-processing. One step at rate 1 is the plain Gaussian mechanism.

    Attributes:
        sampling_rate: probability q with which each record enters a step.
        steps: number of noisy sums released, T.
        noise_multiplier: noise standard deviation over ``sensitivity``; 0 means no noise.
        sensitivity: certified L2 bound of the change one neighbour makes to the sum (already doubled for replace-one).
        nominal_sensitivity: the bound that the paper ``claimed_by`` claims instead; None where it claims none of its own.
    """

    sampling_rate: float
    steps: int
    noise_multiplier: float
    sensitivity: float = 1.0
    nominal_sensitivity: float | None = None
    claimed_by: str = ""
    ranges: ClassVar[Ranges] = {
        "sampling_rate": (1e-15, 1.0),  # the square of a lower one is nothing to a computer
        "steps": (1, 10**9),
        "noise_multiplier": (0.0, MAX_FLOAT),
        "sensitivity": POSITIVE,
        "nominal_sensitivity": POSITIVE,
    }

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise that is added to the sum."""
        return self.noise_multiplier * self.sensitivity

    @property
    def compositions(self) -> int:
        """Steps that one record can enter: it costs as many sampled Gaussian releases."""
        return self.steps


@dataclass(frozen=True)
class BandedSgd(NoisySgd):
    """The same with noise that is correlated over steps (BandMF; ``randomness.banded_noise`` has the proof of its price).

    ``strategy`` holds the coefficients of the strategy matrix from its diagonal down, one for each part; the first is 1.
    ``sampling_rate`` is that of a record whose part has its turn; ``sensitivity`` is what one participation changes in all
    the steps that it shows in: the filter's bound times the norm of ``strategy``. The noise is that of a step before the
    answers to earlier ones are taken off.
    """

    strategy: tuple[float, ...] = (1.0,)
    relations = ("add-remove",)  # a replaced record may change its part

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.strategy and self.strategy[0] == 1 and all(map(math.isfinite, self.strategy))):
            raise InputError(f"Expected strategy={self.strategy!r:.40} to be finite and to begin with 1")

    @property
    def compositions(self) -> int:
        return math.ceil(self.steps / len(self.strategy))


@dataclass(frozen=True)
class AllocatedSgd(NoisySgd):
    """A training whose records take part in K = ``participations`` of its T steps each, drawn before the first.

    Every K of the steps are equally likely, for each record by itself, and secret; the sampling rate is K / T. It is one
    release, and no composition of its steps: a part of it costs what the whole does.
    """

    participations: int = field(kw_only=True)

    def __post_init__(self) -> None:
        if self.adjacency != "add-remove":
            raise InputError("`sampling`: allocation is proven for `adjacency` add-remove alone; take it, or poisson")
        if not (type(self.participations) is int and 1 <= self.participations <= self.steps):
            raise InputError(
                f"`sampling`: allocation:{self.participations!r:.40} is not from 1 to the {self.steps:,} `steps`"
            )
        super().__post_init__()
        if self.sampling_rate != self.participations / self.steps:
            raise InputError(f"Expected sampling_rate={self.sampling_rate} to be participations over steps")


@dataclass(frozen=True)
class TruncatedSgd(NoisySgd):
    """A training whose steps take ``truncated_batch_size`` records at most of those whose coins fell, drawn at random; of
    old ledgers. ``most_records``, a public bound on the number of records, the added one included, decides the price."""

    truncated_batch_size: int = field(kw_only=True)
    most_records: int = field(kw_only=True)
    ranges: ClassVar[Ranges] = {**NoisySgd.ranges, "truncated_batch_size": (1, 10**12), "most_records": (1, 10**12)}


@dataclass(frozen=True)
class Selection(Mechanism):
    """One of several candidates drawn by private scores.

    Attributes:
        eps1: the epsilon the draw was calibrated to.
        certified_epsilon: the epsilon that is proven: eps1 scaled by true over used sensitivity, and at least eps1;
            infinite where no finite bound holds.
        draw: the exponential mechanism composes better, since its losses have a bounded range.
        adaptive: whether the candidates may depend on earlier releases from these records. Only a draw that comes before
            everything else composes as a single two-outcome pair (Dong, Durfee, Rogers 2019 on the cost of adaptivity).
    """

    eps1: float
    certified_epsilon: float
    draw: Literal["exponential", "permute-and-flip"] = "exponential"
    adaptive: bool = True
    ranges: ClassVar[Ranges] = {"eps1": POSITIVE}

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.certified_epsilon >= self.eps1:  # true for NaN
            raise InputError(f"Expected certified_epsilon={self.certified_epsilon} >= eps1={self.eps1}")


@dataclass(frozen=True)
class GaussianRelease(Mechanism):
    """A statistic with Gaussian noise on each coordinate, of deviation ``noise_multiplier`` times L2 ``sensitivity``."""

    noise_multiplier: float
    sensitivity: float = 1.0
    ranges: ClassVar[Ranges] = {"sensitivity": POSITIVE, "noise_multiplier": POSITIVE}

    @property
    def noise_std(self) -> float:
        return self.noise_multiplier * self.sensitivity


@dataclass(frozen=True)
class LaplaceRelease(Mechanism):
    """A statistic with Laplace noise of scale b on each coordinate, for the L1 ``sensitivity``."""

    scale: float
    sensitivity: float = 1.0
    ranges: ClassVar[Ranges] = {"sensitivity": POSITIVE, "scale": POSITIVE}


@dataclass(frozen=True)
class RandomizedResponse(Mechanism):
    """Every record's value in one of k ``categories``, each replaced at random: the true one is e^``epsilon`` as likely as
    any other. A record's presence shows, so the relation is replace-one."""

    adjacency: Adjacency = field(default="replace-one", kw_only=True)
    epsilon: float
    categories: int
    relations = ("replace-one",)
    ranges: ClassVar[Ranges] = {"epsilon": POSITIVE, "categories": (2, 10**9)}


@dataclass(frozen=True)
class Guarantee(Mechanism):
    """Anything of which only its (epsilon, delta) guarantee is known; delta is in [0, 1), and 0 is pure DP."""

    epsilon: float
    delta: float = 0.0
    ranges: ClassVar[Ranges] = {"epsilon": POSITIVE, "delta": (0.0, BELOW_1)}


@dataclass(frozen=True)
class DiscreteGaussianRelease(Mechanism):
    """A whole number, which a neighbour moves by at most ``sensitivity``, with noise k of probability proportional to
    e^(-k^2 / (2 ``deviation``^2)) (Canonne, Kamath, Steinke 2020); of old ledgers."""

    deviation: float
    sensitivity: int = 1
    # values of noise are summed one by one
    ranges: ClassVar[Ranges] = {"deviation": (POSITIVE[0], 1e5), "sensitivity": (1, 2 * 10**9)}


@dataclass(frozen=True)
class Zcdp(Mechanism):
    """Anything ``rho``-zCDP: Renyi divergences of at most rho times every order (Bun, Steinke 2016); of old ledgers."""

    rho: float
    ranges: ClassVar[Ranges] = {"rho": POSITIVE}


@dataclass(frozen=True)
class PrivateSearch(Mechanism):
    """The best of a secret number of tries, each at one of ``trainings``, equally likely, and scored by a count with noise
    of deviation ``score_noise``, of which a neighbour changes at most 1; of old ledgers.

    ``gamma`` is that of the logarithmic distribution of the number of tries (``private_search``).
    """

    trainings: tuple[NoisySgd, ...]
    score_noise: float
    gamma: float
    ranges: ClassVar[Ranges] = {"score_noise": POSITIVE, "gamma": (MIN_GAMMA, BELOW_1)}

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= len(self.trainings) <= MAX_SETTINGS:
            raise InputError(f"Expected from 1 to {MAX_SETTINGS} trainings, not {len(self.trainings)}")
        for training in self.trainings:
            claimed, truncated = training.nominal_sensitivity is not None, isinstance(training, TruncatedSgd)
            if training.adjacency != self.adjacency or claimed or truncated:
                raise InputError("trainings: a search takes those of one relation, without claims and truncation")


@dataclass(frozen=True)
class Unprotected(Mechanism):
    """No mechanism at all: records, or something computed from them, were released as they are."""


def sampling_of(mechanisms: Iterable[Mechanism]) -> Sampling:
    """The first way that the cost of some of ``mechanisms`` rests on; ``none`` where none samples its records."""
    tried = (training for mechanism in mechanisms for training in getattr(mechanism, "trainings", (mechanism,)))
    trainings = [training for training in tried if isinstance(training, NoisySgd)]  # nothing else samples
    for training in trainings:
        if type(training) not in _SAMPLINGS:
            raise InputError(f"`sampling`: unknown of the mechanism {type(training).__name__}")
    sampled = {type(training) for training in trainings if training.sampling_rate < 1}
    return next((way for kind, way in _SAMPLINGS.items() if kind in sampled), "none")


_SAMPLINGS: dict[type[Mechanism], Sampling] = {
    NoisySgd: "poisson",
    TruncatedSgd: "truncated-poisson",
    BandedSgd: "cyclic-poisson",
    AllocatedSgd: "allocation",
}


def mean_tries(gamma: float) -> float:
    """Expected number of tries of a search: P(K = k) = (1 - gamma)^k / (k ln(1 / gamma)), k from 1."""
    return (1 / gamma - 1) / -math.log(gamma)


def over_two_steps(mechanism: Mechanism) -> Mechanism:
    """Return a mechanism for somebody two steps between its neighbours away; InputError where there is no rule."""
    match mechanism:
        case AllocatedSgd(participations=times) | BandedSgd(compositions=times):
            # allocated: those who come and go may be in the same steps, which are then known: convexity of the divergence
            # in both; banded: they leave one part and enter another, and their blocks overlap. So nothing is sampled
            noise, bound = mechanism.noise_multiplier / 2, _twice(mechanism.sensitivity)
            return NoisySgd(1.0, times, noise, bound, adjacency="replace-one", bits=mechanism.bits)
        case NoisySgd() | GaussianRelease() if type(mechanism) in (NoisySgd, TruncatedSgd, GaussianRelease):
            noise, bound = _half(mechanism.noise_multiplier), _twice(mechanism.sensitivity)
            return replace(mechanism, adjacency="replace-one", noise_multiplier=noise, sensitivity=bound)
        case PrivateSearch():
            trainings = tuple(map(over_two_steps, mechanism.trainings))
            noise = _half(mechanism.score_noise)
            return replace(mechanism, adjacency="replace-one", trainings=trainings, score_noise=noise)  # type: ignore[arg-type]
        case Selection():
            return replace(mechanism, certified_epsilon=2 * mechanism.certified_epsilon)
        case LaplaceRelease() | DiscreteGaussianRelease():
            return replace(mechanism, sensitivity=_twice(mechanism.sensitivity))  # type: ignore[arg-type]  # int stays
        case Zcdp():
            return replace(mechanism, rho=_twice(_twice(mechanism.rho)))
        case Guarantee():
            growth = math.exp(mechanism.epsilon) if mechanism.epsilon < 700 else math.inf  # e^x leaves float64
            failing = mechanism.delta and (1 + growth) * mechanism.delta
            if failing >= 1:
                return Unprotected(adjacency=mechanism.adjacency)
            return replace(mechanism, epsilon=_twice(mechanism.epsilon), delta=failing)
        case Unprotected():
            return mechanism
    raise InputError(f"the accountant does not know what {type(mechanism).__name__} says over two steps")


def _twice(value: float) -> float:
    """Double without leaving the finite numbers: a value that large costs the most there is either way."""
    return min(2 * value, MAX_FLOAT)


def _half(value: float) -> float:
    """Halve without becoming 0: a value that small costs the most there is either way."""
    return value / 2 or value
