"""Files of tensors: sizes to the byte before anything is read, and what a header may say."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from dpltm.errors import ArtifactError
from dpltm.tickets.files import MAX_JSON
from dpltm.tickets.tensors import read_header, read_tensors, write_tensors

SHAPES = {"a": (2, 3), "b": (5,)}
VALUES = {name: np.arange(np.prod(shape), dtype=np.float32).reshape(shape) for name, shape in SHAPES.items()}
BODY = 4 * (6 + 5)
ROOM = 512 * 3
"""For the header: 512 bytes for each of two tensors, and as many for the file."""


def padded(path, size, metadata=None):
    """A valid file of exactly ``size`` bytes: a header may end in blanks."""
    header = {} if metadata is None else {"__metadata__": metadata}
    place = 0
    for name, value in VALUES.items():
        header[name] = {"dtype": "F32", "shape": list(value.shape), "data_offsets": [place, place + value.nbytes]}
        place += value.nbytes
    text = json.dumps(header).encode()
    text += b" " * (size - 8 - len(text) - BODY)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(value.tobytes() for value in VALUES.values()))
    assert path.stat().st_size == size
    return path


def refused(call, *arguments):
    with pytest.raises(ArtifactError) as caught:
        call(*arguments)
    message = str(caught.value)
    assert message.isprintable()
    return message


def same(found):
    return found.keys() == VALUES.keys() and all(np.array_equal(value, VALUES[name]) for name, value in found.items())


def test_round_trip(tmp_path):
    for metadata in (None, {"format": "pt"}):
        path = tmp_path / f"{metadata is None}.safetensors"
        write_tensors(path, VALUES, metadata)
        assert same(read_tensors(path, SHAPES, "float32"))
        assert path.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("metadata", [0, 1, 1000])
def test_a_file_may_be_as_large_as_its_tensors_their_header_and_the_metadata_asked_for(tmp_path, metadata):
    most = BODY + ROOM + metadata
    assert same(read_tensors(padded(tmp_path / "a", most), SHAPES, "float32", metadata))
    path = padded(tmp_path / "b", most + 1)
    assert refused(read_tensors, path, SHAPES, "float32", metadata) == (
        f"{path}: {most + 1} bytes, where {BODY} to {most} are expected; damaged, or not what it claims"
    )


def test_metadata_has_no_room_of_its_own_unless_asked_for(tmp_path):
    save_file(VALUES, tmp_path / "a", metadata={"notes": "x" * ROOM})
    assert "bytes, where" in refused(read_tensors, tmp_path / "a", SHAPES, "float32")
    assert same(read_tensors(tmp_path / "a", SHAPES, "float32", ROOM))


def test_no_tensors_at_all(tmp_path):
    write_tensors(tmp_path / "a", {})
    assert read_tensors(tmp_path / "a", {}, "float32") == {}
    path = tmp_path / "b"
    path.write_bytes(b" " * 513)
    assert refused(read_tensors, path, {}, "float32").startswith(f"{path}: 513 bytes, where 0 to 512 are expected")


def test_a_header_as_it_was_written(tmp_path):
    path = padded(tmp_path / "a", 700, {"key": "ü"})
    assert read_header(path, BODY) == {
        "__metadata__": {"key": "ü"},
        "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "b": {"dtype": "F32", "shape": [5], "data_offsets": [24, 44]},
    }
    write_tensors(tmp_path / "b", VALUES)
    assert set(read_header(tmp_path / "b", BODY)) == {"a", "b"}


@pytest.mark.parametrize("size", [0, 7])
def test_a_file_too_short_for_a_header(tmp_path, size):
    path = tmp_path / "a"
    path.write_bytes(b"\0" * size)
    assert refused(read_header, path, 100).startswith(f"{path}: {size} bytes, where 8 to {100 + MAX_JSON}")


def test_nothing_is_read_of_a_file_larger_than_its_tensors_and_a_header(tmp_path):
    path = tmp_path / "a"
    with path.open("wb") as stream:
        stream.truncate(BODY + MAX_JSON + 1)
    assert "bytes, where 8 to " in refused(read_header, path, BODY)


@pytest.mark.parametrize("size", [3, 93, 2**31, 2**63, 2**64 - 1])
def test_a_header_longer_than_what_there_is(tmp_path, size):
    path = tmp_path / "a"
    path.write_bytes(size.to_bytes(8, "little") + b"{}")
    assert refused(read_header, path, 100) == f"{path}: not a valid safetensors file"


@pytest.mark.parametrize(
    "metadata", [None, [], "text", {"a": 1}, {"a": None}, {"a": {}}, {"a": "x", "b": ["y"]}], ids=repr
)
def test_metadata_that_is_no_text(tmp_path, metadata):
    header = json.dumps({"__metadata__": metadata}).encode()
    path = tmp_path / "a"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    assert refused(read_header, path, 100) == f"{path}: not a valid safetensors file"


def test_links_are_not_followed(tmp_path):
    write_tensors(tmp_path / "a", VALUES)
    (tmp_path / "b").symlink_to(tmp_path / "a")
    for call in (lambda: read_header(tmp_path / "b", BODY), lambda: read_tensors(tmp_path / "b", SHAPES, "float32")):
        assert refused(call) == f"{tmp_path / 'b'}: is a link, which is not followed"
