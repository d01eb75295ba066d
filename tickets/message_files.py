"""Files of messages, which travel from owners to the server (docs/formats.md); written without torch."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from dpltm.errors import ArtifactError, DpltmError
from dpltm.local.scheme import Scheme
from dpltm.tickets.files import check_schema, new_file

MESSAGES, MESSAGES_SCHEMA, MAGIC = "dpltm-messages", 1, b"DPLTMMSG"
"""Format and schema of a file of messages, and its first eight bytes."""

MAPPED_FROM = 1 << 20
"""Files of more bytes are mapped; owners may be many, and send one message each."""

_HEADER = 1 << 16
"""No header is longer, bytes."""

_KEYS = {"format", "schema", "scheme", "records", "record_bytes"}


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
