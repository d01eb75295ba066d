"""Schemes of local privacy on disk, and the files of messages that travel from owners to the server (docs/formats.md)."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpltm.errors import ArtifactError, DpltmError
from dpltm.generation import Ticket
from dpltm.local.bit_strings import BitStrings
from dpltm.local.codebook import Codebook
from dpltm.local.encoding import FixedPoint
from dpltm.local.scheme import Scheme
from dpltm.models import ModelSpec, build
from dpltm.privacy.event_json import ref_to_json
from dpltm.tickets.feature_files import read_map, write_map
from dpltm.tickets.files import check_schema, new_file, new_folder, read_json, write_json
from dpltm.tickets.identity import read_ref
from dpltm.tickets.run import environment, write_network, write_run
from dpltm.tickets.tensors import read_tensors, write_tensors

FORMAT, SCHEMA, NAME = "dpltm-scheme", 1, "statistics.safetensors"

MESSAGES, MESSAGES_SCHEMA, MAGIC = "dpltm-messages", 1, b"DPLTMMSG"
"""Format and schema of a file of messages, and its first eight bytes."""

LEARNED = "dpltm-latent-run"
"""Format of a network that was trained on messages."""

_SCHEME_KEYS = {"format", "schema", "id", "nominal", "certified", "answer", "public", "feature_map"}

MAPPED_FROM = 1 << 20
"""Files of more bytes are mapped; owners may be many, and send one message each."""

_HEADER = 1 << 16
"""No header is longer, bytes."""

_KEYS = {"format", "schema", "scheme", "records", "record_bytes"}


def save_scheme(target: Path, scheme: Scheme) -> None:
    """Writes the folder of a scheme."""
    with new_folder(target) as folder:
        write_tensors(folder / NAME, {"mean": scheme.mean.numpy(), "deviation": scheme.deviation.numpy()})
        answer = asdict(scheme.answer)
        write_json(
            folder / "scheme.json",
            {
                "format": FORMAT,
                "schema": SCHEMA,
                "id": scheme.id,
                "nominal": scheme.answer.nominal,
                "certified": scheme.answer.certified,
                "answer": {"kind": _kind(scheme.answer), **answer},
                "public": None if scheme.public is None else ref_to_json(scheme.public),
                "feature_map": write_map(folder, scheme.feature_map),
            },
        )


def load_scheme(path: Path) -> Scheme:
    """The scheme in ``path``, checked against its id.

    Raises:
        ArtifactError: none, a newer one, or one that was changed.
    """
    where = path / "scheme.json"
    if not where.is_file():
        raise ArtifactError(
            f"{path}: not a scheme (no scheme.json in it); make one with dpltm latent scheme --out {path}"
        )
    body = read_json(where, FORMAT, SCHEMA)
    if set(body) != _SCHEME_KEYS:
        raise ArtifactError(f"{where}: its keys are not those of a scheme")
    feature_map = read_map(path, where, body["feature_map"])
    if feature_map is None:
        raise ArtifactError(f"{where}: feature_map is missing")
    values = read_tensors(path / NAME, dict.fromkeys(("mean", "deviation"), (feature_map.features,)), "float32")
    try:
        mean, deviation = (torch.from_numpy(values[name]) for name in ("mean", "deviation"))
        public = None if body["public"] is None else read_ref(body["public"])
        scheme = Scheme(feature_map, mean, deviation, _answer(body["answer"]), public)
        if scheme.id != body["id"]:
            raise ArtifactError(f"{where}: the id does not match; it is damaged or was changed")
        said, held = (body["nominal"], body["certified"]), (scheme.answer.nominal, scheme.answer.certified)
        if not all(math.isclose(one, other, rel_tol=1e-9) for one, other in zip(said, held, strict=True)):
            raise ArtifactError(f"{where}: nominal or certified is not what the answer comes to; it was changed")
    except ArtifactError:
        raise
    except (DpltmError, KeyError, TypeError, ValueError, AttributeError, OverflowError, ArithmeticError):
        raise ArtifactError(f"{where}: answer is not the description of what is sent") from None
    return scheme


def _kind(answer: BitStrings | Codebook) -> str:
    return "bit-strings" if isinstance(answer, BitStrings) else "codebook"


def _answer(body: Mapping[str, Any]) -> BitStrings | Codebook:
    rest = {key: value for key, value in body.items() if key != "kind"}
    match body["kind"]:
        case "bit-strings":
            return BitStrings(**{**rest, "form": FixedPoint(**rest["form"])})
        case "codebook":
            return Codebook(**rest)
    raise ValueError("kind")


def write_messages(target: Path, scheme: Scheme, records: int, blocks: Iterable[np.ndarray]) -> None:
    """Writes a file of messages, some at a time.

    Args:
        target: the file; it must not exist.
        scheme: that they are of.
        records: how many there are.
        blocks: ``(n, record_bytes)`` uint8 each.
    """
    header: dict[str, Any] = {
        "format": MESSAGES,
        "schema": MESSAGES_SCHEMA,
        "scheme": scheme.id,
        "records": records,
        "record_bytes": scheme.answer.record_bytes,
    }
    text = json.dumps(header).encode()
    with new_file(target) as staging:
        with staging.open("wb") as stream:
            stream.write(MAGIC + len(text).to_bytes(8, "little") + text)
            for block in blocks:
                stream.write(np.ascontiguousarray(block).data)
        assert staging.stat().st_size == 16 + len(text) + records * scheme.answer.record_bytes


def open_messages(path: Path, scheme: Scheme) -> np.ndarray:
    """Messages that :func:`write_messages` wrote, ``(n, record_bytes)`` uint8, mapped and not read.

    Raises:
        ArtifactError: cut short, not such a file, or of another scheme.
    """
    try:
        if not (path.is_file() or path.is_dir() or not path.exists()):  # a pipe would be waited for
            raise ArtifactError(f"{path}: is not a plain file")
        with path.open("rb") as stream:
            start = stream.read(16)
            length = int.from_bytes(start[8:], "little")
            if start[:8] != MAGIC or len(start) < 16 or length > _HEADER:
                raise ArtifactError(f"{path}: not a file of messages; make one with dpltm latent encode")
            text = stream.read(length)
        size = path.stat().st_size
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        raise ArtifactError(f"{path}: its header is damaged") from None
    check_schema(path, header, MESSAGES, MESSAGES_SCHEMA)
    count = header.get("records")
    if set(header) != _KEYS or type(count) is not int or count < 1:
        raise ArtifactError(f"{path}: its header is damaged")
    if header["scheme"] != scheme.id:
        raise ArtifactError(
            f"{path}: encoded by another scheme ({str(header['scheme'])[:8]}) than this one ({scheme.id[:8]}); owners and"
            " server have to use the same"
        )
    width = scheme.answer.record_bytes
    if header["record_bytes"] != width or size != 16 + length + count * width:
        raise ArtifactError(
            f"{path}: {size} bytes, where {16 + length + count * width} are expected; cut short, or damaged"
        )
    rows: np.ndarray = (
        np.memmap(path, np.uint8, "r", 16 + length, (count, width))
        if size > MAPPED_FROM
        else np.fromfile(path, np.uint8, count * width, offset=16 + length).reshape(count, width)  # keeps no file open
    )
    rows.flags.writeable = False
    try:
        scheme.answer.check(rows)
    except DpltmError as error:
        raise ArtifactError(f"{path}: {error}; it is damaged") from None
    return rows


def save_learned(target: Path, scheme: Scheme, spec: ModelSpec, ticket: Ticket, result: Mapping[str, Any]) -> None:
    """Writes a network that was trained on messages.

    From a codebook it is a run like any other, whose network takes features. From bits it is one on messages: its folder
    has no ``config.json``.

    Args:
        target: folder to write.
        scheme: that the messages were made by.
        spec: the network.
        ticket: with its trained parameters and its mask.
        result: what ``result.json`` holds beside the scheme.

    Raises:
        ArtifactError: ``target`` exists or cannot be written.
    """
    model = build(spec)
    model.load_state_dict(dict(ticket.predictor or {}))
    with new_folder(target) as folder:
        write_json(folder / "result.json", {**result, "format": LEARNED, "schema": 1, "scheme": scheme.id})
        if isinstance(scheme.answer, Codebook):
            settings = {"model": spec.text, "features": spec.features, "classes": spec.classes}
            config = {**settings, "bounds": list(scheme.feature_map.bounds), "scheme": scheme.id}
            write_run(folder, config, model, ticket.mask, (), scheme.feature_map)
        else:
            write_json(folder / "environment.json", environment())
            write_network(folder, model, ticket.mask)
