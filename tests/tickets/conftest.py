"""A small ticket set, and readers and writers of its files that share no code with the package."""

import hashlib
import json
import struct
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dpltm.networks import ModelSpec
from dpltm.options.generate import GenerateOptions
from dpltm.pruning.generation import Tickets, generate
from dpltm.records import load, scale
from dpltm.training.artifacts import TicketSet
from opened import arrays_of
from set_entries import store_set

SPEC = ModelSpec("mlp:8", 64, 10)
CONFIG = GenerateOptions(rounds=3, prune=(0.3, 0.4), iterations=20, batch_size=32, lr=0.1, seed=5).for_records(1000)


@pytest.fixture(scope="session")
def tickets() -> Tickets:
    """Four tickets (rounds 0 to 3) of a network with 8 hidden units, from half of the digits."""
    digits = load("digits", subset="0.5")

    def tensors(split):
        records = arrays_of(split)
        return torch.from_numpy(scale(records.x, digits.bounds)), torch.from_numpy(records.y)

    return generate(SPEC, tensors(digits.train), CONFIG, tensors(digits.test))


@pytest.fixture
def save(tickets: Tickets) -> Callable[..., TicketSet]:
    """Writes the tickets to a folder."""

    def call(path: Path, body: Tickets = tickets, **changes: object) -> TicketSet:
        said = {"name": "a name", "criterion": "magnitude", "provenance": "public"}
        return store_set(path, body, **{**said, "config": asdict(CONFIG) | {"prune": (0.3, 0.4)}, **changes})  # type: ignore[arg-type]

    return call


# --- the formats, by the letter of docs/formats.md and of the safetensors specification ---

DTYPES = {"F32": "<f4", "F64": "<f8", "U8": "|u1", "I32": "<i4"}


def read_raw(path: Path) -> dict[str, np.ndarray]:
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    header.pop("__metadata__", None)
    return {
        name: np.frombuffer(body[slice(*entry["data_offsets"])], DTYPES[entry["dtype"]]).reshape(entry["shape"]).copy()
        for name, entry in header.items()
    }


def write_raw(path: Path, tensors: dict[str, np.ndarray]) -> None:
    header, body = {}, b""
    for name, value in tensors.items():
        part = np.ascontiguousarray(value).tobytes()
        dtype = next(key for key, text in DTYPES.items() if np.dtype(text) == value.dtype)
        header[name] = {"dtype": dtype, "shape": list(value.shape), "data_offsets": [len(body), len(body) + len(part)]}
        body += part
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def content_id(tensors: dict[str, np.ndarray]) -> str:
    """For each tensor in order of name: length and name, dimensions, number of bytes and bytes."""
    digest = hashlib.sha256()
    for name in sorted(tensors, key=lambda text: text.encode("utf-8")):
        value = tensors[name]
        encoded, data = name.encode("utf-8"), np.ascontiguousarray(value).tobytes()
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
        digest.update(value.ndim.to_bytes(8, "little"))
        for size in value.shape:
            digest.update(int(size).to_bytes(8, "little"))
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def set_id(folder: Path) -> str:
    theta0, masks = read_raw(folder / "theta0.safetensors"), read_raw(folder / "masks.safetensors")
    return content_id(
        {f"theta0/{name}": value for name, value in theta0.items()}
        | {f"masks/{name}": value for name, value in masks.items()}
    )


def digest(document: dict[str, object]) -> str:
    """All keys but ``digest`` as JSON with sorted keys and no blanks."""
    rest = {key: value for key, value in document.items() if key != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def unpack_bits(packed: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Row-major, most significant bit first, one bit at a time."""
    size = int(np.prod(shape))
    bits = [(int(packed[place // 8]) >> (7 - place % 8)) & 1 for place in range(size)]
    return np.array(bits, dtype=bool).reshape(shape)


def edit(path: Path, *, signed: bool = True, **changes: object) -> None:
    """Changes keys of a document; ``...`` drops one. ``signed`` makes its digest right, so that it is not what tells."""
    document = {**json.loads(path.read_text()), **changes}
    document = {key: value for key, value in document.items() if value is not ...}
    path.write_text(json.dumps({**document, "digest": digest(document)} if signed else document))


@pytest.fixture(scope="session")
def raw() -> SimpleNamespace:
    """Readers and writers of files, written from the documents alone."""
    ids = {"content_id": content_id, "set_id": set_id, "digest": digest}
    return SimpleNamespace(read=read_raw, write=write_raw, unpack=unpack_bits, edit=edit, **ids)
