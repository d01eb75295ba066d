"""The scheme inside the file that an owner of records runs, read without torch.

It lies in the archive beside this module: ``agreed/scheme.json``, and ``agreed/tensors.npz`` with the statistics of features
and, for drawings, the tensors of the encoder.
"""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from dpltm.errors import ArtifactError
from dpltm.features.drawings.exact import Architecture, ExactEncoder, Layer
from dpltm.features.exact import ExactMap
from dpltm.features.registry import MapChoice, parse
from dpltm.local.scheme import Scheme
from dpltm.tickets.scheme_json import scheme_from_json, scheme_json

FOLDER, SCHEME, TENSORS = "agreed", "scheme.json", "tensors.npz"

STATISTICS = ("mean", "deviation")

ENCODER = "encoder."
"""Before the names of the encoder's tensors."""


def owner_files(scheme: Scheme, feature_map: ExactMap, encoder: dict[str, np.ndarray] | None) -> dict[str, bytes]:
    """A scheme as :func:`owner_scheme` reads it.

    Args:
        scheme: that was agreed on.
        feature_map: of it, in exact arithmetic.
        encoder: the tensors of the encoder of ``feature_map``; None where it has none.
    """
    made = None if feature_map.encoder is None else asdict(feature_map.encoder.architecture)
    settings = {
        "text": feature_map.text,
        "shape": feature_map.shape,
        "bounds": feature_map.bounds,
        "architecture": made,
    }
    tensors = {ENCODER + name: value for name, value in (encoder or {}).items()}
    tensors |= {name: getattr(scheme, name) for name in STATISTICS}
    members = {f"{name}.npy": _npy(value) for name, value in tensors.items()}
    return {SCHEME: json.dumps(scheme_json(scheme, settings)).encode(), TENSORS: archive(members, zipfile.ZIP_STORED)}


def archive(members: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip archive that is the same whenever it is made, from the same members by name."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        for name, value in sorted(members.items()):
            file.writestr(zipfile.ZipInfo(name), value, compression, 9)
    return packed.getvalue()


def _npy(value: np.ndarray) -> bytes:
    packed = io.BytesIO()
    np.lib.format.write_array(packed, np.ascontiguousarray(value), allow_pickle=False)
    return packed.getvalue()


def owner_scheme() -> Scheme:
    """The scheme of the archive that this runs in.

    Raises:
        ArtifactError: there is none, or it is damaged.
    """
    folder = resources.files(__package__).joinpath(FOLDER)
    where = Path(str(folder)) / SCHEME
    try:
        body: Any = json.loads(folder.joinpath(SCHEME).read_bytes())
        with np.load(io.BytesIO(folder.joinpath(TENSORS).read_bytes()), allow_pickle=False) as stored:
            tensors = dict(stored)
        feature_map = _map(body["feature_map"], tensors)
    except OSError:
        raise ArtifactError(f"{where}: no scheme; make the file again with dpltm latent owner") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ArtifactError(f"{where}: damaged; make the file again with dpltm latent owner") from None
    return scheme_from_json(where, body, feature_map, tensors)


def _map(said: dict[str, Any], tensors: dict[str, np.ndarray]) -> ExactMap:
    choice = parse(said["text"])
    if not isinstance(choice, MapChoice):
        raise ValueError("text")
    encoder = None
    if (made := said["architecture"]) is not None:
        layers = tuple(Layer(**layer) for layer in made["layers"])
        named = {name.removeprefix(ENCODER): value for name, value in tensors.items() if name.startswith(ENCODER)}
        encoder = ExactEncoder(Architecture(layers, made["side"], made["pooled"]), named)
    low, high = said["bounds"]
    return ExactMap(choice, tuple(said["shape"]), (low, high), encoder)
