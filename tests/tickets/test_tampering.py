"""Whatever is done to a set's files, loading it either refuses in one clear line or returns what was saved."""

from __future__ import annotations

import json
import shutil
import struct

import numpy as np
import pytest

from dpltm.errors import ArtifactError
from dpltm.tickets.ticket_set import load_ticket_set

TENSOR_FILES = ("theta0.safetensors", "masks.safetensors", "predictors.safetensors")


@pytest.fixture(scope="module")
def original(tmp_path_factory, tickets):
    """A saved set; tests work on copies."""
    from dpltm.generation import GenerationConfig
    from dpltm.privacy.events import DatasetRef
    from dpltm.tickets.ticket_set import save_ticket_set

    folder = tmp_path_factory.mktemp("original") / "s"
    source = DatasetRef("digits", "ab" * 16, "01234567", 0, 719)
    save_ticket_set(
        folder,
        tickets,
        name="n",
        criterion="magnitude",
        provenance="public",
        source=source,
        config=GenerationConfig(),
    )
    return folder


@pytest.fixture
def folder(tmp_path, original, monkeypatch):
    """A copy named s in the working folder."""
    shutil.copytree(original, tmp_path / "s")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "s"


@pytest.fixture
def edit(folder):
    """Changes keys of tickets.json."""

    def call(**changes):
        path = folder / "tickets.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return call


@pytest.fixture
def rows(folder):
    """The rows of tickets.json."""
    return json.loads((folder / "tickets.json").read_text())["tickets"]


def refused(folder):
    with pytest.raises(ArtifactError) as caught:
        load_ticket_set(folder.relative_to(folder.parent))
    message = str(caught.value)
    assert "\n" not in message
    return message


def attempt(folder):
    """The set and no message, or no set and a message."""
    try:
        return load_ticket_set(folder), ""
    except ArtifactError as error:
        return None, str(error)


def test_the_copy_loads(folder):
    assert len(load_ticket_set(folder).body.tickets) == 4


# --- files ---


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "theta0.safetensors",
            "s/tickets.json: the id does not match theta0 and masks; the set is damaged or was changed",
        ),
        (
            "predictors.safetensors",
            "s/tickets.json: predictors_id does not match; predictors.safetensors is damaged or was changed",
        ),
    ],
)
@pytest.mark.parametrize("place", [0.0, 0.5, 0.999])
def test_flipped_value(folder, name, message, place):
    path = folder / name
    data = bytearray(path.read_bytes())
    (size,) = struct.unpack("<Q", data[:8])
    body = 8 + size
    data[body + int(place * (len(data) - body))] ^= 0x10
    path.write_bytes(data)
    assert refused(folder) == message


def test_flipped_mask_bit(folder, raw):
    """Another number of live values, so that the predictors do not fit either: the file that is read first is named."""
    masks = raw.read(folder / "masks.safetensors")
    masks["1/fc1.weight"][0] ^= 0x80
    raw.write(folder / "masks.safetensors", masks)
    message = refused(folder)
    assert message.startswith(
        "s/predictors.safetensors: tensor '1/fc1.weight': found ((358,), 'float32'), expected ((3"
    )


@pytest.mark.parametrize("name", [*TENSOR_FILES, "tickets.json"])
def test_any_flipped_byte(folder, original, name):
    """A hundred bytes spread over the file: refused, or what is loaded is what was saved."""
    path, saved = folder / name, load_ticket_set(original)
    data = path.read_bytes()
    refusals = 0
    for place in sorted({*range(0, min(len(data), 40)), *range(0, len(data), max(1, len(data) // 60))}):
        for flip in (0x01, 0x80):
            path.write_bytes(data[:place] + bytes([data[place] ^ flip]) + data[place + 1 :])
            loaded, message = attempt(folder)
            refusals += loaded is None
            assert "\n" not in message
            if loaded is not None:  # only the texts that describe, and are covered by no hash, may differ
                assert name == "tickets.json"
                assert loaded.id == saved.id
                assert all(
                    back.mask.same_as(ticket.mask) and back.predictor.keys() == ticket.predictor.keys()
                    for back, ticket in zip(loaded.body.tickets, saved.body.tickets, strict=True)
                )
    assert refusals > 60


@pytest.mark.parametrize("keep", [0, 5, 8, 200, -1])
@pytest.mark.parametrize("name", TENSOR_FILES)
def test_truncated(folder, name, keep):
    path = folder / name
    path.write_bytes(path.read_bytes()[:keep])
    assert refused(folder) == f"s/{name}: not a valid safetensors file"


def test_truncated_document(folder):
    path = folder / "tickets.json"
    path.write_bytes(path.read_bytes()[:-3])
    assert refused(folder) == "s/tickets.json: not valid JSON"


@pytest.mark.parametrize("name", TENSOR_FILES)
def test_missing_file(folder, name):
    (folder / name).unlink()
    assert refused(folder) == f"s/{name}: cannot be read: No such file or directory"
    (folder / name).mkdir()
    assert refused(folder) == f"s/{name}: cannot be read: Is a directory"


def test_missing_document_and_folder(folder):
    (folder / "tickets.json").unlink()
    assert refused(folder) == "s: not a ticket set (no tickets.json in it); name a folder made by dpltm generate"
    shutil.rmtree(folder)
    assert refused(folder) == "s: no ticket set there; make one with dpltm generate --out s"


def test_appended_bytes(folder):
    path = folder / "theta0.safetensors"
    path.write_bytes(path.read_bytes() + b"more")
    assert refused(folder) == "s/theta0.safetensors: not a valid safetensors file"
    path.write_bytes(path.read_bytes() + bytes(2**20))
    assert refused(folder) == (
        "s/theta0.safetensors: larger than its tensors can be (2440 bytes); the file is not what it claims"
    )


@pytest.mark.parametrize("size", [2**63, 2**64 - 1, 2**40, 0, 1])
@pytest.mark.parametrize("name", TENSOR_FILES)
def test_header_length(folder, name, size):
    path = folder / name
    path.write_bytes(struct.pack("<Q", size) + path.read_bytes()[8:])
    assert refused(folder) == f"s/{name}: not a valid safetensors file"


@pytest.mark.parametrize("header", [b"[]", b"null", b"{" * 5000, b'{"a":1}', b"\xff" * 8, b'{"a":{"dtype":"F32"}}'])
def test_header_that_is_none(folder, header):
    (folder / "theta0.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    assert refused(folder) == "s/theta0.safetensors: not a valid safetensors file"


def test_overlapping_tensors(folder):
    header = json.dumps(
        {
            "fc1.bias": {"dtype": "F32", "shape": [8], "data_offsets": [0, 32]},
            "fc2.bias": {"dtype": "F32", "shape": [10], "data_offsets": [0, 40]},
        }
    ).encode()
    (folder / "theta0.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(40))
    assert refused(folder) == "s/theta0.safetensors: not a valid safetensors file"


# --- tensors ---


def test_renamed_tensor(folder, raw):
    tensors = raw.read(folder / "theta0.safetensors")
    raw.write(folder / "theta0.safetensors", {name.replace("fc1.b", "fc1.B"): v for name, v in tensors.items()})
    assert refused(folder) == ("s/theta0.safetensors: tensor 'fc1.Bias': found ((8,), 'float32'), expected none")


def test_missing_and_added_tensor(folder, raw):
    masks = raw.read(folder / "masks.safetensors")
    raw.write(folder / "masks.safetensors", {name: v for name, v in masks.items() if name != "2/fc1.weight"})
    assert refused(folder) == "s/masks.safetensors: tensor '2/fc1.weight': found none, expected ((64,), 'uint8')"
    raw.write(folder / "masks.safetensors", {**masks, "4/fc1.weight": masks["3/fc1.weight"]})
    assert refused(folder) == "s/masks.safetensors: tensor '4/fc1.weight': found ((64,), 'uint8'), expected none"


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda value: value.T, "((64, 8), 'float32')"),
        (lambda value: value.reshape(-1), "((512,), 'float32')"),
        (lambda value: value.astype("<f8"), "((8, 64), 'float64')"),
        (lambda value: value.view("<i4"), "((8, 64), 'int32')"),
        (lambda value: value[:7], "((7, 64), 'float32')"),
    ],
    ids=["transposed", "flat", "double", "integers", "shorter"],
)
def test_wrong_shape_or_dtype(folder, raw, change, found):
    tensors = raw.read(folder / "theta0.safetensors")
    raw.write(folder / "theta0.safetensors", {**tensors, "fc1.weight": change(tensors["fc1.weight"])})
    assert (
        refused(folder) == f"s/theta0.safetensors: tensor 'fc1.weight': found {found}, expected ((8, 64), 'float32')"
    )


def test_padding_bits(folder, raw):
    masks = raw.read(folder / "masks.safetensors")
    masks["0/fc2.bias"][1] |= 1
    raw.write(folder / "masks.safetensors", masks)
    assert refused(folder) == "s/masks.safetensors: mask '0/fc2.bias': padding bits are set"


def test_masks_that_are_not_nested_with_the_id_made_right(folder, raw, edit):
    """A weight that round 1 dropped comes back in round 2, and another one goes, so that every count is as before."""
    masks = raw.read(folder / "masks.safetensors")
    one, two = (np.unpackbits(masks[f"{number}/fc1.weight"]) for number in (1, 2))
    dropped, kept = int(np.flatnonzero(one == 0)[0]), int(np.flatnonzero(two)[0])
    two[dropped], two[kept] = 1, 0
    masks["2/fc1.weight"] = np.packbits(two)
    raw.write(folder / "masks.safetensors", masks)
    assert refused(folder) == (
        "s/tickets.json: the id does not match theta0 and masks; the set is damaged or was changed"
    )
    edit(id=raw.set_id(folder))
    assert refused(folder) == "s/tickets.json: the mask of round 2 is not nested in that of round 1"


# --- the document ---


def test_rows(folder, edit, rows):
    for key, value in (("live", 609), ("live", True), ("density", 0.5), ("density", "1.0")):
        edit(tickets=[{**rows[0], key: value}, *rows[1:]])
        assert refused(folder) == "s/tickets.json: tickets[0]: live or density disagrees with its mask"
    for value in (-0.1, 1.1, "0.5", True, [0.5]):
        edit(tickets=[rows[0], {**rows[1], "accuracy": value}, *rows[2:]])
        assert refused(folder) == f"s/tickets.json: tickets[1]: accuracy {value!r} is not between 0 and 1"
    for row in ({}, 5, {**rows[2], "round": 3}, {**rows[2], "more": 1}, {**rows[2], "round": "2"}):
        edit(tickets=[*rows[:2], row, rows[3]])
        assert refused(folder) == "s/tickets.json: tickets[2]: expected round 2 with density, live and accuracy"
    for value in ([], {}, None, "tickets"):
        edit(tickets=value)
        assert refused(folder) == "s/tickets.json: tickets is not a list of 1 to 10000 rounds"
    edit(tickets=rows[:3])
    assert refused(folder) == "s/masks.safetensors: tensor '3/fc1.bias': found ((1,), 'uint8'), expected none"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": 2}, "schema 2 is newer than this version of dpltm reads (1); upgrade dpltm"),
        ({"schema": 0}, "schema 0 is not a positive whole number"),
        ({"schema": "1"}, "schema '1' is not a positive whole number"),
        ({"schema": True}, "schema True is not a positive whole number"),
        ({"format": "dpltm-run"}, "not a document of format 'dpltm-ticket-set'"),
        ({"id": "0" * 64}, "the id does not match theta0 and masks; the set is damaged or was changed"),
        ({"id": 5}, "id is not a text"),
        (
            {"predictors_id": "0" * 64},
            "predictors_id does not match; predictors.safetensors is damaged or was changed",
        ),
        ({"more": 1}, "unknown or missing key 'more'"),
        ({"name": None}, "name is not a text"),
        ({"model": 5}, "model is not a text"),
        ({"model": "vgg"}, "--model: unknown network 'vgg'; known: mlp:WIDTH,WIDTH,... (such as mlp:300,100), cnn"),
        ({"features": "64"}, "model mlp:8: features '64' is not between 1 and 100000"),
        ({"features": 64.0}, "model mlp:8: features 64.0 is not between 1 and 100000"),
        ({"classes": 0}, "model mlp:8: classes 0 is not between 1 and 100000"),
        ({"config": []}, "config is not an object"),
        ({"provenance": "dp"}, "provenance 'dp' is unknown to this version; known: public, private"),
        ({"provenance": ["public"]}, "provenance ['public'] is unknown to this version; known: public, private"),
        ({"source": None}, "source is not a reference to records"),
        ({"source": {"name": "digits"}}, "source is not a reference to records"),
    ],
)
def test_keys(folder, edit, changes, message):
    edit(**changes)
    assert refused(folder) == f"s/tickets.json: {message}"


def test_missing_key(folder):
    path = folder / "tickets.json"
    document = json.loads(path.read_text())
    del document["criterion"]
    path.write_text(json.dumps(document))
    assert refused(folder) == "s/tickets.json: unknown or missing key 'criterion'"


def test_another_network(folder, edit):
    edit(model="mlp:9")
    assert (
        refused(folder) == "s/masks.safetensors: tensor '0/fc1.bias': found ((1,), 'uint8'), expected ((2,), 'uint8')"
    )


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"hello",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"\xff\xfe\x00",
        b'{"schema": NaN}',
        b'{"schema": ' + b"9" * 5000 + b"}",
    ],
    ids=["empty", "text", "deep list", "deep object", "bytes", "nan", "long number"],
)
def test_not_json(folder, text):
    (folder / "tickets.json").write_bytes(text)
    assert refused(folder) == "s/tickets.json: not valid JSON"


@pytest.mark.parametrize("text", [b"[]", b"5", b"null", b"{}"])
def test_json_of_something_else(folder, text):
    (folder / "tickets.json").write_bytes(text)
    assert refused(folder) == "s/tickets.json: not a document of format 'dpltm-ticket-set'"


def test_endless_document(folder):
    with (folder / "tickets.json").open("r+b") as stream:
        stream.truncate(2**24 + 1)
    assert refused(folder) == "s/tickets.json: larger than 16777216 bytes; not a document of dpltm"


def test_an_accuracy_edited_within_bounds(folder, edit, rows):
    edit(tickets=[*rows[:3], {**rows[3], "accuracy": 0.99}])
    refused(folder)
