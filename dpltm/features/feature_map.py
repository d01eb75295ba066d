"""What stands in front of a network: a map that takes every record by itself to a vector of a fixed norm.

It is applied to one record at a time, and made without the private records or by releases that are counted. So it costs
nothing beyond those, and what is proven for training on records holds for training on their features.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from dpltm.data.augmentation import MOST_CHANNELS
from dpltm.data.scaling import scale
from dpltm.errors import InputError
from dpltm.features import convolution
from dpltm.features.convolution import Convolution, Convolutions
from dpltm.features.normalisation import GROUPS, by_channel, by_group, of_norm
from dpltm.features.scattering import Scale, Scattering
from dpltm.features.wavelets import Bands, Wavelets
from dpltm.models import ModelSpec, build
from dpltm.privacy.events import FEATURES, DatasetRef, Event

VERSION = 1
"""Part of every id; raised when the same settings give other features, so that nothing stale is taken for them."""

ROWS = 32
"""Images at a time: what fits the caches of a processor."""

STATISTICS, PROJECTION, CENTRE = ("mean", "deviation"), ("offset", "components"), "centre"
"""Names of tensors: of channels of public images, of principal components, and of the point that features are centred at."""

WHITENING = 0.25
"""Principal components are divided by their variance to this power; at 1/2 all would vary alike, noise included."""


@dataclass(frozen=True)
class Pool:
    """Records as they are: neighbouring values averaged, ``width`` at a time, centred and of a fixed norm."""

    width: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.width <= 999:
            raise InputError(
                f"`features`: unit:{self.width}: averages 1 to 999 neighbouring values; the usual is unit:1"
            )


WithoutData = Scale | Convolution | Bands | Pool

IMAGES = (Scale, Convolution)
"""Maps of images, whose channels are normalised by statistics."""


@dataclass(frozen=True)
class FeatureMap:
    """A map of records to features.

    Attributes:
        text: ``scatter:J,L``, ``conv:SEED``, ``wavelets:J,Q``, ``unit:K`` or ``network``.
        shape: of a record as stored.
        bounds: public range of its values.
        source: records declared public that channel statistics were taken from, or those that the network was trained
            on; None where no data was looked at.
        events: what the network's training spent on ``source``; none otherwise.
        tensors: ``mean`` and ``deviation`` of channels, or the network's parameters; ``offset`` and ``components`` that
            features are projected by; and ``centre``, where they are centred at a noisy mean, which the ledger of the run
            has as a release of its own.
        network: the network, whose last layer is left out.
    """

    text: str
    shape: tuple[int, ...]
    bounds: tuple[float, float]
    source: DatasetRef | None = None
    events: tuple[Event, ...] = ()
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    network: ModelSpec | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "bounds", tuple(float(bound) for bound in self.bounds))  # an id is of 0.0, never of 0
        if (self.network is not None) != (self.text == "network"):
            raise InputError(f"`features`: {self.text!r:.40} and a network in front do not go together")
        if self.network is not None and self.network.tables:
            raise InputError(
                f"`features`: the network {self.network.text} looks words up; take one that was trained on quantities"
            )
        if self.network is not None and self.network.features != math.prod(self.shape):
            raise InputError(
                f"`features`: the network takes {self.network.features} features, but the records have"
                f" {math.prod(self.shape)}; take one that was trained on records of the same shape"
            )
        self.feature_shape  # noqa: B018 - refuses shapes that it cannot take

    @cached_property
    def id(self) -> str:
        """SHA-256 (hex) over all that decides the features."""
        digest = hashlib.sha256()
        network = None if self.network is None else [self.network.text, self.network.features, self.network.classes]
        digest.update(json.dumps([VERSION, self.text, list(self.shape), list(self.bounds), network]).encode())
        for name, value in sorted(self.tensors.items()):
            digest.update(name.encode() + value.numpy().astype("<f4").tobytes())
        return digest.hexdigest()

    @property
    def features(self) -> int:
        """Number of features."""
        return math.prod(self.feature_shape)

    @cached_property
    def feature_shape(self) -> tuple[int, ...]:
        """Of the features of one record: rows, columns and channels, or their number."""
        whole = self.plain_shape
        if PROJECTION[1] not in self.tensors:
            return whole
        if self.tensors[PROJECTION[1]].shape[1] != math.prod(whole):
            raise InputError(
                f"`features`: components are of {self.tensors[PROJECTION[1]].shape[1]} features, but records of shape"
                f" {self.shape} have {math.prod(whole)}; take public records of the same shape"
            )
        return (len(self.tensors[PROJECTION[1]]),)

    @cached_property
    def plain_shape(self) -> tuple[int, ...]:
        """The same before features are projected."""
        if self.network is not None:
            return (self._body[1],)
        match parse(self.text):
            case Scale():
                found = self._scattering
                return (found.height, found.width, found.channels * _channels(self.shape))
            case Convolution():
                return (self._convolutions.height, self._convolutions.width, convolution.SECOND)
            case Bands():
                return (self._wavelets.features,)
            case Pool(width):
                if width > math.prod(self.shape):
                    raise InputError(
                        f"`features`: unit:{width} averages more values than the {math.prod(self.shape)} of a record"
                    )
                return (-(-math.prod(self.shape) // width),)
        raise InputError(f"`features`: {self.text!r:.40} is no map")

    @property
    def label(self) -> str:
        """What ledgers call it."""
        return f"{FEATURES}{self.text} {self.id[:8]}"

    @property
    def uncentred(self) -> FeatureMap:
        """The same without its centre."""
        if CENTRE not in self.tensors:
            return self
        return replace(self, tensors={name: value for name, value in self.tensors.items() if name != CENTRE})

    def at(self, centre: Tensor) -> FeatureMap:
        """The same with its features centred there: ``(features,)``, in units of ``NORM``."""
        return replace(self, tensors={**self.tensors, CENTRE: centre})

    def carried(self, shape: tuple[int, ...], bounds: tuple[float, float]) -> FeatureMap:
        """The same for records of another shape or range; statistics of channels stay, and so do networks.

        Raises:
            InputError: such records it cannot take.
        """
        if (self.shape, self.bounds) == (shape, bounds):
            return self
        if self.network is not None and bounds != self.bounds:
            raise InputError(
                f"`features`: the network in front was trained on values from {self.bounds[0]:g} to {self.bounds[1]:g}, and"
                f" these go from {bounds[0]:g} to {bounds[1]:g}; rescale them, or say `bounds`"
            )
        found = replace(self, shape=shape, bounds=bounds)
        if "mean" in self.tensors and found.plain_shape[-1] != len(self.tensors["mean"]):
            raise InputError(
                f"`features`: statistics are of {len(self.tensors['mean'])} channels, but records of shape {shape} have"
                f" {found.plain_shape[-1]}; take records with as many colours"
            )
        if CENTRE in self.tensors and found.feature_shape != self.feature_shape:
            raise InputError(f"`features`: records of shape {shape} do not fit the centre of features; take others")
        return found

    def __call__(self, x: np.ndarray) -> Tensor:
        """Features of records as stored: ``(n, *shape)`` to ``(n, features)`` float32, each row of norm ``NORM``.

        Guarantees:
            Row i depends on record i alone.
        """
        parts = [self._mapped(x[start : start + ROWS]) for start in range(0, len(x), ROWS)]
        found = torch.cat(parts) if parts else torch.zeros(0, math.prod(self.plain_shape))
        if PROJECTION[1] in self.tensors:
            offset, components = (self.tensors[name] for name in PROJECTION)
            found = of_norm((found - offset) @ components.T)
        return self.centred(found)

    def centred(self, features: Tensor) -> Tensor:
        """Features of ``uncentred`` as features of this map, ``(n, features)``; again, row by row."""
        if CENTRE not in self.tensors:
            return features
        return of_norm(features - self.tensors[CENTRE].to(features.device))

    @torch.no_grad()
    def unscaled(self, x: np.ndarray) -> Tensor:
        """Channels of an image before normalisation: ``(n, channels, height, width)``."""
        images = torch.from_numpy(scale(x, self.bounds)).view(len(x), *self.shape[:2], _channels(self.shape))
        images = images.permute(0, 3, 1, 2)
        if isinstance(parse(self.text), Convolution):
            return self._convolutions(images)
        found = self._scattering(images.flatten(0, 1))
        return found.view(len(x), -1, *found.shape[2:])

    @torch.no_grad()
    def _mapped(self, x: np.ndarray) -> Tensor:
        if self.network is None and isinstance(kind := parse(self.text), IMAGES):
            values = self.unscaled(x)
            if "mean" in self.tensors:
                values = by_channel(values, self.tensors["mean"], self.tensors["deviation"])
            elif isinstance(kind, Convolution):
                values = by_group(values, convolution.GROUPS)
            else:
                values = by_group(values, GROUPS * _channels(self.shape))
            return of_norm(values.permute(0, 2, 3, 1).flatten(1))
        flat = torch.from_numpy(scale(x, self.bounds))
        if self.network is not None:
            return of_norm(self._body[0](flat).flatten(1))
        match parse(self.text):
            case Pool(width):
                if width > 1:
                    flat = functional.avg_pool1d(flat[:, None], width, ceil_mode=True)[:, 0]
                return of_norm(flat - flat.mean(1, keepdim=True))
            case _:
                return of_norm(self._wavelets(flat.view(len(x), *self.shape)))

    @cached_property
    def _scattering(self) -> Scattering:
        parsed = parse(self.text)
        assert isinstance(parsed, Scale)
        self._check_image("scatter")
        return Scattering(parsed, self.shape[0], self.shape[1])

    @cached_property
    def _convolutions(self) -> Convolutions:
        parsed = parse(self.text)
        assert isinstance(parsed, Convolution)
        self._check_image("conv")
        return Convolutions(parsed, self.shape[0], self.shape[1], _channels(self.shape))

    def _check_image(self, kind: str) -> None:
        if len(self.shape) not in (2, 3) or _channels(self.shape) > MOST_CHANNELS:
            raise InputError(
                f"`features`: {kind} takes images, (height, width) or (height, width, colours), and a record here is of"
                f" shape {self.shape}; take unit"
            )

    @cached_property
    def _wavelets(self) -> Wavelets:
        parsed = parse(self.text)
        assert isinstance(parsed, Bands)
        if len(self.shape) != 2:
            raise InputError(
                f"`features`: wavelets takes signals, (steps, channels), and a record here is of shape {self.shape}; take"
                " unit, or scatter for images"
            )
        return Wavelets(parsed, *self.shape)

    @cached_property
    def _body(self) -> tuple[Callable[[Tensor], Tensor], int]:
        """The network without its last layer, and how many numbers it gives."""
        assert self.network is not None
        model = build(self.network)
        model.load_state_dict({name: self.tensors[name] for name in self.network.shapes()})
        body = nn.Sequential(*list(model)[:-1])
        return body, body(torch.zeros(1, self.network.features)).numel()


def parse(text: str) -> WithoutData | str | None:
    """What ``features`` says: a map that needs no data, the RUN of ``network:RUN``, or nothing for ``none``.

    Raises:
        InputError: none of these.
    """
    kind, _, rest = text.partition(":")
    if text == "none":
        return None
    if kind == "network" and rest:
        return rest
    numbers = rest.split(",") if ":" in text else []
    if all(number.isascii() and number.isdecimal() and len(number) < 4 for number in numbers):
        if kind == "scatter" and len(numbers) <= 2:
            return Scale(*map(int, numbers))
        if kind == "conv" and len(numbers) <= 1:
            return Convolution(*map(int, numbers))
        if kind == "wavelets" and len(numbers) <= 2:
            return Bands(*map(int, numbers))
        if kind == "unit" and len(numbers) <= 1:
            return Pool(*map(int, numbers))
    raise InputError(
        f"`features`: {text!r:.80} is not none, scatter, scatter:J,L, conv, conv:SEED, wavelets, wavelets:J,Q, unit, unit:K"
        " or network:RUN"
    )


def without_data(found: WithoutData, shape: tuple[int, ...], bounds: tuple[float, float]) -> FeatureMap:
    """The map of that kind for records of this shape, which looks at no data; normalisation is within each record."""
    match found:
        case Scale(scales, angles):
            text = f"scatter:{scales},{angles}"
        case Convolution(seed):
            text = f"conv:{seed}"
        case Bands(octaves, each):
            text = f"wavelets:{octaves},{each}"
        case Pool(width):
            text = f"unit:{width}"
    return FeatureMap(text, tuple(shape), bounds)


def statistics(plain: FeatureMap, batches: Iterator[np.ndarray]) -> dict[str, Tensor]:
    """Mean and deviation of every channel over public records, which may be images of another size than the private ones.

    Args:
        plain: the map for records of the public shape.
        batches: those records, as stored.
    """
    count, total, squares = 0, torch.zeros(0), torch.zeros(0)
    for x in batches:
        values = plain.unscaled(x).double()
        count += values[:, 0].numel()
        total, squares = (
            part if not len(old) else old + part
            for old, part in ((total, values.sum((0, 2, 3))), (squares, values.square().sum((0, 2, 3))))
        )
    mean = total / count
    return {"mean": mean.float(), "deviation": (squares / count - mean.square()).clamp_min(0).sqrt().float()}


def principal_components(features: Tensor, count: int) -> dict[str, Tensor]:
    """Mean and first principal components of public features, each over its variance to the power ``WHITENING``.

    Args:
        features: ``(n, features)`` of public records.
        count: components, at most n - 1 and at most features.

    Raises:
        InputError: there are not as many.
    """
    most = min(len(features) - 1, features.shape[1])
    if not 1 <= count <= most:
        raise InputError(
            f"`components`: {count} is not from 1 to {most}, which {len(features)} public records of {features.shape[1]}"
            " features have"
        )
    wide = features.double()
    offset = wide.mean(0)
    wide = wide - offset
    if len(wide) >= wide.shape[1]:
        variances, vectors = torch.linalg.eigh(wide.T @ wide / len(wide))
    else:  # the same from the other side, where that is smaller
        variances, vectors = torch.linalg.eigh(wide @ wide.T / len(wide))
        vectors = wide.T @ vectors / (len(wide) * variances.clamp_min(1e-30)).sqrt()
    variances, vectors = variances.flip(0)[:count], vectors.flip(1)[:, :count]
    vectors = vectors * vectors.gather(0, vectors.abs().argmax(0, keepdim=True)).sign()  # of two signs, one
    components = (vectors / variances.clamp_min(1e-12 * float(variances[0])) ** WHITENING).T
    return {"offset": offset.float(), "components": components.contiguous().float()}


def _channels(shape: tuple[int, ...]) -> int:
    return 1 if len(shape) == 2 else shape[2]
