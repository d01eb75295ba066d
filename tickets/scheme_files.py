"""Local privacy on disk: schemes, messages, and what was learned from them (docs/formats.md)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpltm.errors import ArtifactError, DpltmError
from dpltm.local.bit_strings import BitStrings, FixedPoint
from dpltm.local.codebook import Codebook
from dpltm.local.scheme import Scheme
from dpltm.networks import ModelSpec, build
from dpltm.privacy.entry import Lineage, lineage_from_json, to_json
from dpltm.privacy.ledger import canonical
from dpltm.pruning.generation import Ticket
from dpltm.tickets.feature_files import read_map, write_map
from dpltm.tickets.files import (
    MAX_LINEAGE,
    check_schema,
    digest_of,
    new_file,
    new_folder,
    parse_json,
    read_json,
    write_json,
    write_lineage,
)
from dpltm.tickets.run import environment, weights_of, write_network, write_run
from dpltm.tickets.tensors import read_tensors, write_tensors

SCHEME, SCHEME_SCHEMA = "dpltm-scheme", 2

STATISTICS = "statistics.safetensors"

MESSAGES, MESSAGES_SCHEMA, MAGIC = "dpltm-messages", 2, b"DPLTMMSG"
"""Format and schema of a file of messages, and its first eight bytes."""

LEARNED, LEARNED_SCHEMA = "dpltm-latent-run", 2
"""Of the result of a training on messages."""

MAPPED_FROM = 1 << 20
"""Files of messages of more bytes are mapped; owners may be many, and send one message each."""

_SCHEME_KEYS = {"format", "schema", "id", "nominal", "certified", "answer", "feature_map", "lineage", "digest"}
_HEADER_KEYS = {"format", "schema", "scheme", "records", "record_bytes", "lineage", "digest"}


def save_scheme(target: Path, scheme: Scheme) -> None:
    """Write the folder of a scheme.

    Raises:
        ArtifactError: ``target`` exists or cannot be written.
    """
    with new_folder(target) as folder:
        write_tensors(folder / STATISTICS, {"mean": scheme.mean, "deviation": scheme.deviation})
        kind = "bit-strings" if isinstance(scheme.answer, BitStrings) else "codebook"
        body = {
            "format": SCHEME,
            "schema": SCHEME_SCHEMA,
            "id": scheme.id,
            "nominal": scheme.answer.nominal,
            "certified": scheme.answer.certified,
            "answer": {"kind": kind, **asdict(scheme.answer)},
            "feature_map": write_map(folder, scheme.feature_map),
            "lineage": to_json(scheme.lineage),
        }
        write_json(folder / "scheme.json", {**body, "digest": digest_of(body)})


def load_scheme(path: Path) -> Scheme:
    """Return the scheme in ``path``, checked against its id.

    Raises:
        ArtifactError: none, another format, or one that was changed.
    """
    where = path / "scheme.json"
    if not where.is_file():
        raise ArtifactError(
            f"{path}: not a scheme (no scheme.json in it); make one with dpltm latent scheme --out {path}"
        )
    body = read_json(where, SCHEME, SCHEME_SCHEMA, MAX_LINEAGE)
    if set(body) != _SCHEME_KEYS:
        raise ArtifactError(f"{where}: its keys are not those of a scheme")
    if body["digest"] != digest_of(body):
        raise ArtifactError(f"{where}: the digest does not match; it is damaged or was changed")
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
    """Messages of one file.

    Attributes:
        rows: ``(n, record_bytes)`` uint8, mapped where they are many.
        lineage: of the scheme, of the records, and their release.
    """

    rows: np.ndarray
    lineage: Lineage


def write_messages(target: Path, scheme: Scheme, records: int, blocks: Iterable[np.ndarray], lineage: Lineage) -> None:
    """Write a file of messages, which travel from owners to the server, some at a time.

    Args:
        target: the file; it must not exist.
        scheme: that they are of.
        records: how many there are.
        blocks: ``(n, record_bytes)`` uint8 each.
        lineage: of the messages.

    Raises:
        ArtifactError: ``target`` exists or cannot be written.
    """
    header: dict[str, Any] = {
        "format": MESSAGES,
        "schema": MESSAGES_SCHEMA,
        "scheme": scheme.id,
        "records": records,
        "record_bytes": scheme.answer.record_bytes,
        "lineage": to_json(lineage),
    }
    text = canonical({**header, "digest": digest_of(header)}).encode()
    with new_file(target) as staging:
        with staging.open("wb") as stream:
            stream.write(MAGIC + len(text).to_bytes(8, "little") + text)
            for block in blocks:
                stream.write(np.ascontiguousarray(block).data)
        assert staging.stat().st_size == 16 + len(text) + records * scheme.answer.record_bytes


def read_messages(path: Path, scheme: Scheme) -> Received:
    """Return messages that :func:`write_messages` wrote.

    Raises:
        ArtifactError: cut short, not such a file, or of another scheme.
    """
    try:
        if not (path.is_file() or path.is_dir() or not path.exists()):  # a pipe would be waited for
            raise ArtifactError(f"{path}: is not a plain file")
        with path.open("rb") as stream:
            start = stream.read(16)
            length = int.from_bytes(start[8:], "little")
            if start[:8] != MAGIC or len(start) < 16 or length > MAX_LINEAGE:
                raise ArtifactError(f"{path}: not a file of messages; make one with dpltm latent encode")
            text = stream.read(length)
        size = path.stat().st_size
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read: {error.strerror}") from None
    header: Any = parse_json(path, text)
    check_schema(path, header, MESSAGES, MESSAGES_SCHEMA)
    if set(header) != _HEADER_KEYS or header["digest"] != digest_of(header):
        raise ArtifactError(f"{path}: its header is damaged")
    if header["scheme"] != scheme.id:
        raise ArtifactError(
            f"{path}: encoded by another scheme ({str(header['scheme'])[:8]}) than this one ({scheme.id[:8]}); owners and"
            " server have to use the same"
        )
    count, width = header["records"], scheme.answer.record_bytes
    if type(count) is not int or count < 1 or header["record_bytes"] != width or size != 16 + length + count * width:
        raise ArtifactError(f"{path}: {size} bytes are not what its header says; cut short, or damaged")
    rows: np.ndarray = (
        np.memmap(path, np.uint8, "r", 16 + length, (count, width))
        if size > MAPPED_FROM
        else np.fromfile(path, np.uint8, count * width, offset=16 + length).reshape(count, width)  # keeps no file open
    )
    rows.flags.writeable = False
    try:
        scheme.answer.check(rows)
        return Received(rows, lineage_from_json(header["lineage"]))
    except DpltmError as error:
        raise ArtifactError(f"{path}: {error}; it is damaged") from None


def save_learned(
    target: Path, scheme: Scheme, spec: ModelSpec, ticket: Ticket, result: Mapping[str, Any], lineage: Lineage
) -> None:
    """Write a network that was trained on messages.

    From a codebook it is a run like any other, whose network takes features. From bits it is one on messages: its folder
    has no ``config.json``.

    Args:
        target: folder to write.
        scheme: that the messages were made by.
        spec: the network.
        ticket: with its trained parameters and its mask.
        result: what ``result.json`` holds beside the scheme.
        lineage: of the scheme and the messages.

    Raises:
        ArtifactError: ``target`` exists or cannot be written.
    """
    model = build(spec)
    model.load_state_dict(dict(ticket.predictor or {}))
    with new_folder(target) as folder:
        stated = {"format": LEARNED, "schema": LEARNED_SCHEMA, "scheme": scheme.id}
        write_json(folder / "result.json", {**result, **stated})
        if isinstance(scheme.answer, Codebook):
            settings = {"model": spec.text, "features": spec.features, "classes": spec.classes}
            config = {**settings, "bounds": list(scheme.feature_map.bounds), "scheme": scheme.id}
            write_run(folder, config, model, ticket.mask, (), scheme.feature_map)
        else:
            write_json(folder / "environment.json", environment())
            write_network(folder, model, ticket.mask)
        write_lineage(folder, lineage, weights_of(model, ticket.mask))
