"""Kinds of feature maps, which need no data: what a record goes through, by itself, on its way to a network.

Options, their help and their refusals are read from here. Nothing here imports torch; a transform is imported when one is
made. A new kind is one :class:`MapKind`, and one call of ``MAPS.register``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from dpltm.errors import InputError, did_you_mean
from dpltm.registry import Deferred, Parameter, Registry

if TYPE_CHECKING:
    from torch import Tensor


# made by ``scripts/make_drawings.py`` and ``scripts/make_photographs.py``, which give these digests
DRAWINGS_FILE = "drawings.safetensors"
DRAWINGS_DIGEST = "d5c1280962839806a1eb38d58afc8ce4f5192109fa840f9ee1df20115933f00b"
PHOTOGRAPHS_FILE = "photographs.safetensors"
PHOTOGRAPHS_DIGEST = "5a3ff51693e43442d8cf54571877f0ba865d14113c3e9331a0d7456ae4079ae7"


class Transform(Protocol):
    """A map from records of one shape to their features, each record by itself, before normalisation.

    Attributes:
        feature_shape: of the features of one record: (height, width, channels), or (their number,).
        channel_groups: groups of neighbouring channels that are normalised; None for features that have no channels.
    """

    feature_shape: tuple[int, ...]
    channel_groups: int | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """Records in the unit range, ``(n, *shape)``, to ``(n, channels, height, width)`` or ``(n, features)``."""


@dataclass(frozen=True)
class MapKind:
    """A kind of map.

    Attributes:
        name: as ``features`` has it.
        parameters: numbers, in the order of the option; ``metavar`` stands for each in it.
        help: one sentence.
        source: where it is from.
        transform: makes the transform, of the parameters and the shape of a record; InputError for a shape that it refuses.
        takes_values: range of values that the transform takes; None for the unit range, signed if records may be.
        channels: whether features have channels, which are normalised.
        by_place: whether what a feature means depends on the shape of records even where their number does not.
        digest: SHA-256 (hex) of the bundled file that it computes with, part of the map's id; empty where it needs none.
        of_any_shape: whether it takes records of any shape, whose values need have no order.
        by_fourier: whether it is computed by Fourier transforms, which other tools than torch are not asked for.
    """

    name: str
    parameters: tuple[Parameter, ...]
    help: str
    source: str
    transform: Callable[..., Transform]
    takes_values: tuple[float, float] | None = None
    channels: bool = False
    by_place: bool = False
    digest: str = ""
    of_any_shape: bool = False
    by_fourier: bool = False

    @property
    def metavar(self) -> str:
        """How an option may name it, as in ``scatter[:J,L]``."""
        symbols = ",".join(parameter.metavar or parameter.name for parameter in self.parameters)
        return f"{self.name}[:{symbols}]" if symbols else self.name

    def text(self, values: tuple[float, ...]) -> str:
        """Each number in one way, whoever wrote it, as in ``scatter:2,8``."""
        written = (f"{value!r}".removesuffix(".0") for value in values)
        return ":".join(filter(None, (self.name, ",".join(written))))

    def check(self, values: tuple[float, ...]) -> None:
        """Raise InputError unless all parameters are in range."""
        if not all(item.low <= value <= item.high for item, value in zip(self.parameters, values, strict=True)):
            ranges = " and ".join(f"{item.metavar} must be {item.low:g} to {item.high:g}" for item in self.parameters)
            usual = self.text(tuple(parameter.default for parameter in self.parameters))
            raise InputError(f"`features`: {self.text(values)}: {ranges}; the usual is {usual}")


class _Moved(Transform):
    """A transform that takes the other of the two unit ranges than that of records, which is -1 to 1 if ``signed``."""

    def __init__(self, transform: Transform, signed: bool) -> None:
        self.feature_shape, self.channel_groups = transform.feature_shape, transform.channel_groups
        self._transform = transform
        self._multiplier, self._offset = (0.5, 0.5) if signed else (2.0, -1.0)

    def __call__(self, x: Tensor) -> Tensor:
        return self._transform(x * self._multiplier + self._offset)


@dataclass(frozen=True)
class Choice:
    """A map that is made without data: all that decides it but the shape and range of records.

    Several kinds side by side have an equal share of the squared norm each. The properties are those of :class:`MapKind`.
    """

    parts: tuple[tuple[MapKind, tuple[float, ...]], ...]

    def __post_init__(self) -> None:
        for kind, values in self.parts:
            kind.check(values)
        names = [kind.name for kind, _ in self.parts]
        if len(set(names)) < len(names) or ("splines" in names and len(names) > 1):
            raise InputError(f"`features`: {self.text}: name each kind once, and splines alone")

    @property
    def text(self) -> str:
        """As options, artifacts and ids have it, as in ``drawings:400+scatter:2,8``."""
        return "+".join(kind.text(values) for kind, values in self.parts)

    @property
    def of_any_shape(self) -> bool:
        return all(kind.of_any_shape for kind, _ in self.parts)

    @property
    def channels(self) -> bool:
        return len(self.parts) == 1 and self.parts[0][0].channels

    @property
    def digest(self) -> str:
        return "".join(kind.digest for kind, _ in self.parts)

    def on(self, shape: tuple[int, ...], signed: bool = False) -> Transform:
        """Return the transform for records of this shape, whose unit range has negative values if ``signed``."""
        transforms = []
        for kind, values in self.parts:
            transform = kind.transform(*values, shape)
            same_range = kind.takes_values in (None, (-1.0, 1.0) if signed else (0.0, 1.0))
            transforms.append(transform if same_range else _Moved(transform, signed))
        return transforms[0] if len(transforms) == 1 else Deferred("dpltm.features.transforms:Joined")(transforms)


def parse(text: str) -> Choice | None:
    """Return the choice that the option ``features`` names; None for ``none``."""
    if text == "none":
        return None
    parts = re.split(r"\+(?=[a-z])", text)  # a number may hold a + as well
    return Choice(tuple(map(_part, parts)))


def _part(text: str) -> tuple[MapKind, tuple[float, ...]]:
    name, colon, rest = text.partition(":")
    texts = rest.split(",") if colon else []
    try:
        kind = MAPS[name]
        pairs = zip(kind.parameters[: len(texts)], texts, strict=True)
        values = [int(number) if parameter.whole else float(number) for parameter, number in pairs]
    except (KeyError, ValueError):
        hint = "" if name in MAPS else did_you_mean(name, ("none", *MAPS))
        raise InputError(f"`features`: {text!r:.80} is not {metavar()}{hint}") from None
    return kind, (*values, *(parameter.default for parameter in kind.parameters[len(texts) :]))


def metavar() -> str:
    """Forms of the option ``features``, for a line of help."""
    return "|".join(("none", *(kind.metavar for kind in MAPS.values())))


MAPS = Registry("features", (
    MapKind(
        "scatter", (
            Parameter("scales", 2, "Averages are over windows of 2^J pixels.", "J", 1, 8),
            Parameter("angles", 8, "Wavelets a scale.", "L", 1, 64),  # more is a slip of the finger
        ),
        "Wavelet moduli over windows of 2^J pixels, L angles a scale.", "Bruna and Mallat 2013",
        Deferred("dpltm.features.transforms:Scattering"), channels=True, by_fourier=True,
    ),
    MapKind(
        "conv", (Parameter("seed", 0, "Decides the weights, which are public.", "SEED", 0, 999),),
        "LATENT's convolutional modules, untrained: weights drawn from SEED.",
        "Arachchige et al. (LATENT); Pinto et al. 2009",
        Deferred("dpltm.features.transforms:RandomConvolutions"), channels=True,
    ),
    MapKind(
        "drawings", (Parameter("directions", 400, "Directions in which drawings differ most.", "K", 1, 400),),
        "An encoder that learned from drawings made by a formula: the first K directions of its units.",
        "Kataoka et al. 2020; Tang et al. 2023",
        Deferred("dpltm.features.drawings:Drawings"), takes_values=(0.0, 1.0), digest=DRAWINGS_DIGEST,
    ),
    MapKind(
        "photographs", (Parameter("directions", 800, "Directions in which painted scenes differ most.", "K", 1, 6144),),
        "Shares of patches from painted scenes in an image: their first K directions. A program paints the scenes.",
        "Coates, Ng 2011; Lee, Mumford, Huang 2001",
        Deferred("dpltm.features.photographs:Photographs"), takes_values=(0.0, 1.0), digest=PHOTOGRAPHS_DIGEST,
    ),
    MapKind(
        "wavelets", (
            Parameter("octaves", 5, "The coarsest wavelet is 2^J times as long as the finest.", "J", 1, 12),
            Parameter("each", 2, "Wavelets an octave.", "Q", 1, 16),
        ),
        "Wavelet moduli over J octaves, Q an octave, averaged over time.", "Mallat 2012",
        Deferred("dpltm.features.transforms:Wavelets"), by_fourier=True,
    ),
    MapKind(
        "splines", (Parameter("knots", 6, "Hats that each number becomes.", "K", 2, 64),),
        "Piecewise linear functions of each number, with K knots over its bounds; categories as they are.",
        "de Boor 1978; Hastie and Tibshirani 1986",
        Deferred("dpltm.features.feature_map:Columns"), takes_values=(0.0, 1.0), by_place=True, of_any_shape=True,
    ),
    MapKind(
        "unit", (Parameter("width", 1, "Neighbouring values that are averaged.", "K", 1, 999),),
        "Records as they are, K neighbouring values averaged, centred and of a fixed norm.", "none",
        Deferred("dpltm.features.transforms:NeighbourAverage"), of_any_shape=True,
    ),
    MapKind(
        "fourier", (
            Parameter("count", 1024, "Features: a cosine and a sine for each of D / 2 directions.", "D", 2, 4096),
            Parameter("gamma", 2.0, "The kernel is exp(-GAMMA |u - v|^2).", "GAMMA", 1e-3, 1e3),
        ),
        "D random Fourier features of a Gaussian kernel between centred records on a sphere; by itself GAMMA follows the"
        " number of columns.",
        "Rahimi, Recht 2007",
        Deferred("dpltm.features.transforms:FourierFeatures"), takes_values=(-1.0, 1.0), by_place=True, of_any_shape=True,
    ),
))  # fmt: skip
