"""Local privacy on disk: schemes, messages, and what was learned from them (docs/formats.md)."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from dpltm.errors import ArtifactError, DpltmError
from dpltm.local.codebook import Codebook
from dpltm.local.scheme import BitStrings, FixedPoint, Scheme
from dpltm.networks import ModelSpec, build
from dpltm.networks.masks import Mask, network_id
from dpltm.privacy.entry import Lineage, lineage_from_json, to_json
from dpltm.privacy.ledger import canonical
from dpltm.tickets import files
from dpltm.tickets.feature_files import read_map, write_map
from dpltm.tickets.run import environment, write_network, write_run
from dpltm.tickets.tensors import read_tensors, write_tensors

_SCHEME = files.Document(
    "dpltm-scheme", 2, frozenset({"id", "nominal", "certified", "answer", "feature_map", "lineage"})
)
_MESSAGES = files.Document("dpltm-messages", 2, frozenset({"scheme", "records", "record_bytes", "lineage"}))

STATISTICS = "statistics.safetensors"

MAGIC = b"DPLTMMSG"  # first eight bytes of a file of messages


def save_scheme(target: Path, scheme: Scheme) -> None:
    """Write the folder of a scheme."""
    with files.new_folder(target) as folder:
        write_tensors(folder / STATISTICS, {"mean": scheme.mean, "deviation": scheme.deviation})
        kind = "bit-strings" if isinstance(scheme.answer, BitStrings) else "codebook"
        body = {
            "id": scheme.id,
            "nominal": scheme.answer.nominal,
            "certified": scheme.answer.certified,
            "answer": {"kind": kind, **asdict(scheme.answer)},
            "feature_map": write_map(folder, scheme.feature_map),
            "lineage": to_json(scheme.lineage),
        }
        files.write_json(folder / "scheme.json", _SCHEME.sealed(body))


def load_scheme(path: Path) -> Scheme:
    """Return the scheme in ``path``, checked against its id."""
    where = path / "scheme.json"
    if not where.is_file():
        raise ArtifactError(
            f"{path}: not a scheme (no scheme.json in it); make one with dpltm latent scheme --out {path}"
        )
    body = _SCHEME.read(where, files.MAX_LINEAGE)
    feature_map = read_map(path, where, body["feature_map"])
    if feature_map is None:
        raise ArtifactError(f"{where}: feature_map is missing")
    values = read_tensors(path / STATISTICS, dict.fromkeys(("mean", "deviation"), (feature_map.features,)), "float32")
    try:
        answer, lineage = _answer(body["answer"]), lineage_from_json(body["lineage"])
        scheme = Scheme(feature_map, values["mean"], values["deviation"], answer, lineage)
        said, held = (body["nominal"], body["certified"]), (answer.nominal, answer.certified)
        same = all(math.isclose(one, other, rel_tol=1e-9) for one, other in zip(said, held, strict=True))
    except ArtifactError as error:
        raise ArtifactError(f"{where}: {error}") from None
    except (DpltmError, KeyError, TypeError, ValueError, AttributeError, OverflowError, ArithmeticError):
        raise ArtifactError(f"{where}: answer is not the description of what is sent") from None
    if scheme.id != body["id"]:
        raise ArtifactError(f"{where}: the id does not match; it is damaged or was changed")
    if not same:
        raise ArtifactError(f"{where}: nominal or certified is not what the answer comes to; it was changed")
    if lineage != lineage | feature_map.lineage:
        raise ArtifactError(f"{where}: its lineage lacks what its features were made from")
    return scheme


def _answer(body: Mapping[str, Any]) -> BitStrings | Codebook:
    rest = {key: value for key, value in body.items() if key != "kind"}
    match body["kind"]:
        case "bit-strings":
            return BitStrings(**{**rest, "form": FixedPoint(**rest["form"])})
        case "codebook":
            return Codebook(**rest)
    raise ValueError("kind")


@dataclass(frozen=True)
class Received:
    """Messages of one file."""

    rows: np.ndarray
    lineage: Lineage


def write_messages(target: Path, scheme: Scheme, records: int, blocks: Iterable[np.ndarray], lineage: Lineage) -> None:
    """Write a file of messages, which travel from owners to the server, some at a time."""
    header = {
        "scheme": scheme.id,
        "records": records,
        "record_bytes": scheme.answer.record_bytes,
        "lineage": to_json(lineage),
    }
    text = canonical(_MESSAGES.sealed(header)).encode()
    with files.new_file(target) as staging:
        with staging.open("wb") as stream:
            stream.write(MAGIC + len(text).to_bytes(8, "little") + text)
            for block in blocks:
                stream.write(np.ascontiguousarray(block).data)
        assert staging.stat().st_size == 16 + len(text) + records * scheme.answer.record_bytes


def read_messages(path: Path, scheme: Scheme) -> Received:
    """Return messages that :func:`write_messages` wrote."""
    start = files.read_bytes(path, sys.maxsize, links=True, first=16)
    length = int.from_bytes(start[8:], "little")
    if start[:8] != MAGIC or len(start) < 16 or length > files.MAX_LINEAGE:
        raise ArtifactError(f"{path}: not a file of messages; make one with dpltm latent encode")
    data = files.read_bytes(path, sys.maxsize, links=True)
    header = _MESSAGES.checked(path, files.parse_json(path, data[16 : 16 + length]))
    if header["scheme"] != scheme.id:
        raise ArtifactError(
            f"{path}: encoded by another scheme ({str(header['scheme'])[:8]}) than this one ({scheme.id[:8]}); owners and"
            " server have to use the same"
        )
    count, width = header["records"], scheme.answer.record_bytes
    fits = type(count) is int and count > 0 and len(data) == 16 + length + count * width
    if header["record_bytes"] != width or not fits:
        raise ArtifactError(f"{path}: {len(data)} bytes are not what its header says; cut short, or damaged")
    rows = np.frombuffer(data, np.uint8, offset=16 + length).reshape(count, width)
    try:
        scheme.answer.check(rows)
        return Received(rows, lineage_from_json(header["lineage"]))
    except DpltmError as error:
        raise ArtifactError(f"{path}: {error}; it is damaged") from None


def save_learned(
    target: Path,
    scheme: Scheme,
    spec: ModelSpec,
    weights: Mapping[str, Tensor],
    result: Mapping[str, Any],
    lineage: Lineage,
) -> None:
    """Write a network that was trained on messages.

    From a codebook it is a run like any other, whose network takes features. From bits it is one on messages: its folder
    has no ``config.json``.
    """
    model = build(spec)
    model.load_state_dict(dict(weights))
    mask = Mask.dense(model)
    with files.new_folder(target) as folder:
        stated = {"format": "dpltm-latent-run", "schema": 2, "scheme": scheme.id}
        files.write_json(folder / "result.json", {**result, **stated})
        if isinstance(scheme.answer, Codebook):
            settings = {"model": spec.text, "features": spec.features, "classes": spec.classes}
            config = {**settings, "bounds": list(scheme.feature_map.bounds), "scheme": scheme.id}
            write_run(folder, config, model, mask, (), scheme.feature_map)
        else:
            files.write_json(folder / "environment.json", environment())
            write_network(folder, model, mask)
        files.write_lineage(folder, lineage, network_id(model, mask))
