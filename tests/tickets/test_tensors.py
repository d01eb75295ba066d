"""Files of tensors: sizes to the byte before anything is read, what a header may say, and exactly the tensors asked for."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from dpltm.tickets.files import read_header
from dpltm.tickets.tensors import read_masks, read_tensors, write_tensors
from refusals import told

SHAPES = {"a": (2, 3), "b": (5,)}
VALUES = {name: np.arange(np.prod(shape), dtype=np.float32).reshape(shape) for name, shape in SHAPES.items()}
BODY = 4 * (6 + 5)
ROOM = 512 * 3
"""For the header: 512 bytes for each of two tensors, and as many for the file."""


def described(**places):
    """The header of a file of VALUES, some of them at other places than they are."""
    places = {"a": [0, 24], "b": [24, 44], **places}
    return {name: {"dtype": "F32", "shape": SHAPES[name], "data_offsets": places[name]} for name in SHAPES}


def file_of(path, header, size=None, stated=None):
    """A file of VALUES with some header: of ``size`` bytes in all, since one may end in blanks."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (0 if size is None else size - 8 - len(text) - BODY)
    length = (len(text) if stated is None else stated).to_bytes(8, "little")
    path.write_bytes(length + text + b"".join(value.tobytes() for value in VALUES.values()))
    assert size in (None, path.stat().st_size)
    return path


def same(found):
    return found.keys() == VALUES.keys() and all(np.array_equal(value, VALUES[name]) for name, value in found.items())


def test_round_trip(tmp_path):
    for metadata in (None, {"format": "pt"}):
        path = tmp_path / f"{metadata is None}.safetensors"
        write_tensors(path, VALUES, metadata)
        assert same(read_tensors(path, SHAPES, "float32"))
        assert path.stat().st_mode & 0o777 == 0o644


def test_a_file_may_be_as_large_as_its_tensors_and_their_header(tmp_path):
    most = BODY + ROOM
    assert same(read_tensors(file_of(tmp_path / "a", described(), most), SHAPES, "float32"))
    path = file_of(tmp_path / "b", described(), most + 1)
    said = f"{path}: {most + 1} bytes, where {BODY} to {most} are expected; damaged, or not what it claims"
    assert told(read_tensors, path, SHAPES, "float32") == said


MALFORMED = [
    *((header, None) for header in (b"", b"{", b"[]", b"null", b"5", b"\xff\xfe", b"[" * 100_000)),
    *((described(), size) for size in (3, 2000, 2**31, 2**63, 2**64 - 1)),
]
METADATA = [None, [], "text", {"a": 1}, {"a": "x", "b": ["y"]}]
PLACES = [{"b": [20, 40]}, {"b": [28, 44]}, {"a": [24, 0]}, {"b": [24, 2**64]}, {"a": [-24, 0]}, {"b": [0, 20]}]


@pytest.mark.parametrize(("header", "stated"), [*MALFORMED, *(({"__metadata__": part}, None) for part in METADATA)])
def test_a_header_that_is_none(tmp_path, header, stated):
    """Longer than what there is, no JSON, no object, or with metadata that is no text."""
    path = file_of(tmp_path / "a", header, stated=stated)
    assert told(read_header, path, BODY + 2000) == f"{path}: not a valid safetensors file"


@pytest.mark.parametrize("header", [b"", *(described(**place) for place in PLACES)])
def test_tensors_that_cannot_be_read(tmp_path, header):
    """A header that is none, and tensors that do not lie one behind the other; the number of bytes is right."""
    assert same(read_tensors(file_of(tmp_path / "b", described()), SHAPES, "float32"))
    path = file_of(tmp_path / "a", header)
    assert told(read_tensors, path, SHAPES, "float32") == f"{path}: not a valid safetensors file"


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"a": VALUES["a"].T}, "'a': found ((3, 2), 'float32'), expected ((2, 3), 'float32')"),
        ({"b": VALUES["b"].view("i4")}, "'b': found ((5,), 'int32'), expected ((5,), 'float32')"),
        ({"b": None, "B": VALUES["b"]}, "'B': found ((5,), 'float32'), expected none"),
        ({"b": None, "c": VALUES["b"]}, "'b': found none, expected ((5,), 'float32')"),
    ],
)
def test_other_tensors_than_those_asked_for(tmp_path, changes, wrong):
    tensors = {name: np.ascontiguousarray(value) for name, value in {**VALUES, **changes}.items() if value is not None}
    save_file(tensors, tmp_path / "a")
    assert told(read_tensors, tmp_path / "a", SHAPES, "float32") == f"{tmp_path / 'a'}: tensor {wrong}"


def test_a_mask_has_one_form(tmp_path):
    """Padding bits are zero: ten bits in two bytes, six of them padding."""
    path, shapes = tmp_path / "m", {"b": (10,)}
    write_tensors(path, {"1/b": np.array([255, 192], dtype=np.uint8)})
    assert read_masks(path, ["1"], shapes)["1"].live == 10
    write_tensors(path, {"1/b": np.array([255, 193], dtype=np.uint8)})
    assert told(read_masks, path, ["1"], shapes) == f"{path}: mask '1/b': padding bits are set"
