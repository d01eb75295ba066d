"""Feature maps on disk, as ticket sets and runs keep them, and the cache of features."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import math
import os
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpltm.errors import ArtifactError, DpltmError
from dpltm.features import parse
from dpltm.features.feature_map import CENTRE, PAIRS, FeatureMap, SplineMap, map_of
from dpltm.features.inputs import FeatureStore, Keep, Services, feature_shape, features_of_rows
from dpltm.features.normalisation import ChannelStatistics
from dpltm.privacy.entry import Lineage, to_json, value_from_json
from dpltm.progress import Progress
from dpltm.records.catalogue import cache_home
from dpltm.records.split import Arrays, Split
from dpltm.tickets.files import staged_file
from dpltm.tickets.tensors import read_tensors, write_tensors

NAME = "features.safetensors"

_NONE = "feature_map is not the description of a feature map"
_MAX_SIDE = 10_000


@dataclass(frozen=True)
class SplineFacts:
    """Columns of a table that splines are made of, and the pairs of them that are kept."""

    numbers: tuple[int, ...]
    slots: int
    pairs: tuple[tuple[int, ...], ...] | None


@dataclass(frozen=True)
class MapFacts:
    """All of a map but its tensors; ``encoder`` is the digest of a bundled file, if it has one."""

    id: str
    text: str
    shape: tuple[int, ...]
    bounds: tuple[float, ...]
    statistics: bool
    components: None  # this and ``network`` are of dpltm 0.2
    centred: bool
    lineage: Lineage
    network: None
    encoder: str = ""
    splines: SplineFacts | None = None


def map_json(feature_map: FeatureMap | None) -> dict[str, Any] | None:
    """Return all of a map but its tensors, as JSON; None for no map."""
    if feature_map is None:
        return None
    splines = None
    if isinstance(feature_map, SplineMap):
        splines = SplineFacts(feature_map.numbers, feature_map.slots, feature_map.pairs)
    facts = MapFacts(
        feature_map.id, feature_map.text, feature_map.shape, feature_map.bounds, feature_map.statistics is not None,
        None, feature_map.centre is not None, feature_map.lineage, None, feature_map.base.digest, splines,
    )  # fmt: skip
    return {name: value for name, value in to_json(facts).items() if value or name not in ("encoder", "splines")}


def described(body: Any) -> FeatureMap:
    """Return the map of a description, its tensors with shapes and no values; ArtifactError if it is something else."""
    try:
        return _described(value_from_json(MapFacts, {"encoder": "", "splines": None, **body}, "feature_map"))
    except ArtifactError:
        raise
    except (DpltmError, TypeError, ValueError):
        raise ArtifactError(_NONE) from None


def _described(facts: MapFacts) -> FeatureMap:
    low, high = facts.bounds
    if not -math.inf < low < high < math.inf or not 1 <= len(facts.shape) <= 3:
        raise ValueError("bounds or shape")
    if not all(1 <= size <= _MAX_SIDE for size in facts.shape):
        raise ValueError("shape")
    base = parse(facts.text)
    if base is None or base.text != facts.text:  # an id is of one way to say it
        raise ValueError("text")
    if facts.encoder != base.digest:
        raise ArtifactError(
            f"feature_map: {facts.text!r:.80} was made with another encoder than this version of dpltm has (SHA-256"
            f" {facts.encoder[:12]}, here {base.digest[:12]}); install the version that made it"
        )
    if facts.statistics and not base.channels:
        raise ValueError("statistics")
    if bool(facts.lineage) != facts.statistics:
        raise ArtifactError("feature_map: its lineage does not say what it was made from")
    splines, empty = facts.splines, partial(torch.empty, device="meta")
    feature_map = map_of(base, facts.shape, (low, high), None if splines is None else splines.numbers)
    if isinstance(feature_map, SplineMap) != (splines is not None):
        raise ValueError("splines")
    width, parts = feature_map.features, dict[str, Any](lineage=facts.lineage)
    if isinstance(feature_map, SplineMap) and splines is not None:
        pairs = None if splines.pairs is None else tuple((first, second) for first, second in splines.pairs)
        places = [*splines.numbers, *(place for pair in pairs or () for place in pair)]
        if splines.numbers != tuple(sorted(set(splines.numbers))) or not len(pairs or ()) <= splines.slots <= PAIRS:
            raise ValueError("numbers or slots")
        if not all(0 <= place < feature_map.columns for place in places):
            raise ValueError("pairs")
        width, parts = feature_map.single, {**parts, "slots": splines.slots, "pairs": pairs}
        parts["moments"] = empty(2, feature_map.columns) if facts.centred else None
    if facts.statistics:
        channels = feature_map.feature_shape[-1]
        parts["statistics"] = ChannelStatistics(empty(channels), empty(channels))
    if facts.centred:
        parts["centre"] = empty(width)
    return replace(feature_map, **parts)


def restored(plain: FeatureMap, id: str, values: Mapping[str, Tensor] = {}) -> FeatureMap | None:
    """Return a map that was :func:`described`, with its tensors; None where they are none of it, by its id."""
    if values.keys() != plain.tensors.keys():
        return None
    statistics = plain.statistics and ChannelStatistics(values["mean"], values["deviation"])
    feature_map = replace(plain, statistics=statistics, centre=values.get(CENTRE))
    if isinstance(feature_map, SplineMap):
        feature_map = replace(feature_map, moments=values.get("moments"))
    return feature_map if feature_map.id == id else None


def write_map(folder: Path, feature_map: FeatureMap | None) -> dict[str, Any] | None:
    """Write the tensors of a map into ``folder``; return the rest, as JSON."""
    if feature_map is not None and feature_map.tensors:
        write_tensors(folder / NAME, {name: value.numpy() for name, value in feature_map.tensors.items()})
    return map_json(feature_map)


def read_map(folder: Path, where: Path, body: Any, features: int | None = None) -> FeatureMap | None:
    """Return the map that :func:`write_map` wrote, if any, checked against its id and the features that a network takes."""
    try:
        plain = None if body is None else described(body)
    except ArtifactError as error:
        raise ArtifactError(f"{where}: {error}") from None
    shapes = {} if plain is None else {name: tuple(value.shape) for name, value in plain.tensors.items()}
    if not shapes and os.path.lexists(folder / NAME):
        raise ArtifactError(f"{folder / NAME}: there, though {where.name} knows of no such features; remove it")
    if plain is None:
        return None
    values = read_tensors(folder / NAME, shapes, "float32") if shapes else {}
    if not all(np.isfinite(value).all() for value in values.values()):
        raise ArtifactError(f"{where}: {_NONE}")
    feature_map = restored(plain, body["id"], {name: torch.from_numpy(value) for name, value in values.items()})
    if feature_map is None:
        raise ArtifactError(f"{where}: feature_map: the id does not match; it is damaged or was changed")
    if features not in (None, feature_map.features):
        raise ArtifactError(
            f"{where}: feature_map: gives {feature_map.features} features, the network takes {features}"
        )
    return feature_map


# --- Features on disk: computed once for some records, and mapped into memory afterwards ---
#
# What lies there is private, as the records are: it is readable by its owner alone, under a name that only the key beside it
# can connect with them. Deleting the folder loses nothing but time.

TRIED = 8  # rows of a cache that are computed again, to see that it is what its name says


class FeatureCache(FeatureStore):
    """A store of features in the user's cache folder; where nothing can be written there, in memory like any other."""

    def kept(
        self, split: Split, feature_map: FeatureMap, dtype: str, progress: Progress, keep: Keep | None = None
    ) -> Split:
        """Return the split with features, mapped from the cache; computed first where they are not there."""
        path = cache_path(split, feature_map, dtype)
        stored = _kept(path, split, feature_map, dtype)
        if stored is not None:
            return stored
        if path.exists():
            progress.say(f"{path}: is damaged, or of another version; features are computed anew")
        try:
            keep = partial(_written, path, (len(split), *feature_shape(split, feature_map)), dtype)
            return super().kept(split, feature_map, dtype, progress, keep)
        except OSError as error:
            progress.say(
                f"{path.parent}: features cannot be kept there ({error.strerror}), and are kept in memory for this command;"
                " make room, or point XDG_CACHE_HOME elsewhere"
            )
            return super().kept(split, feature_map, dtype, progress)


def services(progress: Progress) -> Services:
    """Return the services of a stage: features from the user's cache."""
    return Services(progress, FeatureCache())


def cache_path(split: Split, feature_map: FeatureMap, dtype: str = "<f2") -> Path:
    """Return where they lie: a name by content, keyed, so that it confirms no guess of the records."""
    folder = cache_home() / "features"
    key = hmac.new(_key(folder / KEY), f"features {feature_map.id} {dtype}".encode(), hashlib.sha256).digest()
    return folder / f"{split.digest(key)[:40]}.npy"


def _key(path: Path) -> bytes:
    """Return the key of the cache, made where there is none; one of this process where it cannot be kept."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with contextlib.suppress(FileExistsError):
            path.touch(0o600, exist_ok=False)
            path.write_bytes(_PASSING)
        key = path.read_bytes()
        if len(key) == len(_PASSING):  # another process may be writing it
            return key
    return _PASSING


KEY, _PASSING = "key", secrets.token_bytes(32)
"""File of the key, and the key of this process, which becomes that of the cache where there is none."""


def _written(path: Path, shape: tuple[int, ...], dtype: str, features: Iterator[np.ndarray]) -> np.ndarray:
    with staged_file(path) as staging:  # readable by its owner alone
        with staging.open("wb") as stream:
            np.lib.format.write_array_header_1_0(stream, {"descr": dtype, "fortran_order": False, "shape": shape})
            for rows in features:
                stream.write(rows.tobytes())
        os.replace(staging, path)
    return np.lib.format.open_memmap(path, mode="r")


def _kept(path: Path, split: Split, feature_map: FeatureMap, dtype: str) -> Split | None:
    """Return the split with the features there; None where there are none, or not those that the name says."""
    if not path.is_file():  # a pipe would be waited for
        return None
    try:
        values = np.lib.format.open_memmap(path, mode="r")
    except (OSError, ValueError, EOFError, SyntaxError, TokenError):  # numpy reads the header as Python's literals
        return None
    if values.shape != (len(split), *feature_shape(split, feature_map)) or values.dtype != np.dtype(dtype):
        return None
    same = list[bool]()

    def compare(records: Arrays) -> None:
        tried = np.unique(np.linspace(0, len(split) - 1, TRIED).astype(int))
        expected = features_of_rows("<f4", feature_map, records.x[tried], records.y[tried])
        same.append(np.allclose(values[tried].reshape(expected.shape), expected, rtol=2e-3, atol=1e-4))

    split.check(compare)
    return split.with_features(values) if all(same) else None
