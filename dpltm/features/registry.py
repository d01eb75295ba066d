"""Kinds of feature maps that need no data: their names, parameters and ranges, and the records that they take.

What options offer, and what a wrong one is told, is read from here. Nothing here imports torch; a transform is imported when
one is made. A new kind is one :class:`MapKind`, and one call of ``MAPS.register``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from dpltm.errors import InputError
from dpltm.registry import Deferred, Parameter, Registry

if TYPE_CHECKING:
    from torch import Tensor

Takes = Literal["image", "signal", "any"]
"""What a record has to be: (height, width) or (height, width, colours); (steps, channels); or anything of quantities."""


class Transform(Protocol):
    """What takes records of one shape to their features, each record by itself, before normalisation.

    Attributes:
        feature_shape: of the features of one record: (height, width, channels), or (their number,).
        channel_groups: of neighbouring channels, each of which may be normalised within a record; None for features that
            have no channels.
    """

    @property
    def feature_shape(self) -> tuple[int, ...]: ...

    @property
    def channel_groups(self) -> int | None: ...

    def __call__(self, x: Tensor) -> Tensor:
        """Records in the unit range, ``(n, *shape)``, to ``(n, channels, height, width)`` or ``(n, features)``."""
        ...


@dataclass(frozen=True)
class MapKind:
    """A kind of map.

    Attributes:
        name: as ``features`` has it.
        parameters: numbers, in the order of the option; ``metavar`` stands for each in it.
        takes: what a record has to be.
        help: one sentence.
        source: where it is from.
        ranges: what parameters out of range are told, with the range of each at its ``{METAVAR}``.
        transform: makes the transform, of the parameters in order and the shape of a record; raises InputError for a shape
            that it cannot take.
        symmetric: whether it takes values from -1 to 1, whatever the unit range is.
    """

    name: str
    parameters: tuple[Parameter, ...]
    takes: Takes
    help: str
    source: str
    ranges: str
    transform: Callable[..., Transform]
    symmetric: bool = False

    def choice(self, *values: float) -> MapChoice:
        """This kind with these parameters, and defaults for those that are left out."""
        return MapChoice(self, values + tuple(parameter.default for parameter in self.parameters[len(values) :]))

    @property
    def forms(self) -> tuple[str, ...]:
        """How an option may say it, as in ``scatter`` and ``scatter:J,L``."""
        symbols = ",".join(parameter.metavar or parameter.name for parameter in self.parameters)
        return (self.name, f"{self.name}:{symbols}") if symbols else (self.name,)

    @property
    def metavar(self) -> str:
        """The same in short, as in ``scatter[:J,L]``."""
        name, *longer = self.forms
        return name + "".join(f"[{form.removeprefix(name)}]" for form in longer)


@dataclass(frozen=True)
class MapChoice:
    """A kind of map with its parameters: all that decides it but the shape and range of records.

    Raises:
        InputError: a parameter is out of range.
    """

    kind: MapKind
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        parameters = self.kind.parameters
        if len(self.values) != len(parameters):
            raise InputError(f"`features`: {self.kind.name} has {len(parameters)} parameters, not {len(self.values)}")
        if all(
            parameter.low <= value <= parameter.high for parameter, value in zip(parameters, self.values, strict=True)
        ):
            return
        ranges = {str(one.metavar): f"{one.low:g} to {one.high:g}" for one in parameters}
        raise InputError(
            f"`features`: {self.text}: {self.kind.ranges.format(**ranges)}; the usual is {self.kind.choice().text}"
        )

    @property
    def text(self) -> str:
        """As options, artifacts and ids have it, as in ``scatter:2,8``; each number in one way, whoever wrote it."""
        given = (f"{value!r}".removesuffix(".0") for value in self.values)
        return ":".join(filter(None, (self.kind.name, ",".join(given))))

    @property
    def takes(self) -> Takes:
        """What a record has to be."""
        return self.kind.takes

    def on(self, shape: tuple[int, ...]) -> Transform:
        """The transform for records of this shape.

        Raises:
            InputError: it cannot take them.
        """
        return self.kind.transform(*self.values, shape)


@dataclass(frozen=True)
class NetworkRun:
    """The network of a run without its last layer, as ``network:RUN`` asks for it.

    Attributes:
        name: of the run.
    """

    name: str

    @property
    def takes(self) -> Takes:
        """What a record has to be."""
        return "any"


def parse(text: str) -> MapChoice | NetworkRun | None:
    """What ``features`` says; None for ``none``.

    Raises:
        InputError: it is nothing of the kind, or a parameter is out of range.
    """
    name, _, rest = text.partition(":")
    if text == "none":
        return None
    if name == "network" and rest:
        return NetworkRun(rest)
    numbers = rest.split(",") if ":" in text else []
    kind = MAPS.get(name)
    if kind is not None and len(numbers) <= len(kind.parameters):
        values = [_number(*each) for each in zip(kind.parameters, numbers, strict=False)]
        known = [value for value in values if value is not None]
        if len(known) == len(values):
            return kind.choice(*known)
    forms = ", ".join(form for kind in MAPS.values() for form in kind.forms)
    raise InputError(f"`features`: {text!r:.80} is not none, {forms} or network:RUN")


_WHOLE = re.compile("[0-9]{1,9}")
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|[+-]?inf|nan", re.IGNORECASE)
"""What is no number that a parameter can have is one all the same: its range says why it is refused."""


def _number(parameter: Parameter, text: str) -> float | None:
    """The value of a parameter; None if that is no number of its kind."""
    if parameter.whole:
        return int(text) if _WHOLE.fullmatch(text) else None
    return float(text) if _DECIMAL.fullmatch(text) else None


def metavar() -> str:
    """What ``features`` may say, for a line of help."""
    return "|".join(("none", *(kind.metavar for kind in MAPS.values()), "network:RUN"))


def names_taking(takes: Takes) -> tuple[str, ...]:
    """Names of the kinds that take such records and no others."""
    return tuple(kind.name for kind in MAPS.values() if kind.takes == takes)


MAPS = Registry(
    "features",
    (
        MapKind(
            "scatter",
            (
                Parameter("scales", 2, "Averages are over windows of 2^J pixels.", "J", 1, 8),
                Parameter("angles", 8, "Wavelets a scale.", "L", 1, 64),  # more is a slip of the finger
            ),
            "image",
            "Wavelet moduli over windows of 2^J pixels, L angles a scale.",
            "Bruna and Mallat 2013",
            "J must be {J} and L {L}",
            Deferred("dpltm.features.scattering:Scattering"),
        ),
        MapKind(
            "conv",
            (Parameter("seed", 0, "Decides the weights, which are public.", "SEED", 0, 999),),
            "image",
            "Two layers of random convolutions, drawn from SEED.",
            "Arachchige et al. (LATENT); Pinto et al. 2009",
            "the seed must be {SEED}",
            Deferred("dpltm.features.convolution:RandomConvolutions"),
        ),
        MapKind(
            "wavelets",
            (
                Parameter("octaves", 5, "The coarsest wavelet is 2^J times as long as the finest.", "J", 1, 12),
                Parameter("each", 2, "Wavelets an octave.", "Q", 1, 16),
            ),
            "signal",
            "Wavelet moduli over J octaves, Q an octave, averaged over time.",
            "Mallat 2012",
            "J must be {J}, Q {Q}",
            Deferred("dpltm.features.wavelets:Wavelets"),
        ),
        MapKind(
            "unit",
            (Parameter("width", 1, "Neighbouring values that are averaged.", "K", 1, 999),),
            "any",
            "Records as they are, K neighbouring values averaged, centred and of a fixed norm.",
            "none: centring and scaling within a record",
            "averages {K} neighbouring values",
            Deferred("dpltm.features.neighbours:NeighbourAverage"),
        ),
        MapKind(
            "fourier",
            (
                Parameter("count", 1024, "Features: a cosine and a sine for each of D / 2 directions.", "D", 2, 4096),
                Parameter("gamma", 2.0, "The kernel is exp(-GAMMA |u - v|^2).", "GAMMA", 1e-3, 1e3),
            ),
            "any",
            "D random Fourier features of a Gaussian kernel between records, which are centred and put on a sphere first.",
            "Rahimi, Recht 2007",
            "D must be {D}, and GAMMA positive, {GAMMA}",
            Deferred("dpltm.features.fourier:FourierFeatures"),
            symmetric=True,
        ),
    ),
)
"""Kinds of maps by name."""
