"""Whatever is done to a set's files, loading it either refuses in one clear line or returns what was saved."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import struct
from dataclasses import asdict

import numpy as np
import pytest

from dpltm.errors import ArtifactError
from dpltm.generation import GenerationConfig
from dpltm.privacy.events import DatasetRef
from dpltm.tickets.ticket_set import load_ticket_set
from sets import store_set

TEXT = "not a printable text of at most 200 characters"
DIGEST = "s/tickets.json: the digest does not match; the description is damaged or was changed"
CHANGED = "s/tickets.json: the id does not match theta0 and masks; the set is damaged or was changed"
TENSOR_FILES = ("theta0.safetensors", "masks.safetensors", "predictors.safetensors")


@pytest.fixture(scope="module")
def original(tmp_path_factory, tickets):
    """A saved set; tests work on copies."""
    folder = tmp_path_factory.mktemp("original") / "s"
    settings = {"name": "n", "criterion": "magnitude", "provenance": "public", "config": asdict(GenerationConfig())}
    store_set(folder, tickets, source=DatasetRef("digits", "ab" * 16, "01234567", 0, 719, "places"), **settings)
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
        ("theta0.safetensors", CHANGED),
        (
            "predictors.safetensors",
            "s/predictors.safetensors: does not match predictors_id in tickets.json; damaged or changed",
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


def test_flipped_mask_bit(folder, raw, edit):
    """The id tells; once it is made right, the predictors have another number of live values."""
    masks = raw.read(folder / "masks.safetensors")
    before = int(np.unpackbits(masks["1/fc1.weight"]).sum())
    masks["1/fc1.weight"][0] ^= 0x80
    after = int(np.unpackbits(masks["1/fc1.weight"]).sum())
    raw.write(folder / "masks.safetensors", masks)
    assert refused(folder) == CHANGED
    edit(id=raw.set_id(folder))
    assert refused(folder) == (
        f"s/predictors.safetensors: tensor '1/fc1.weight': found (({before},), 'float32'), expected (({after},),"
        " 'float32')"
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


def sizes(message):
    """Found, least and most, out of what a file of the wrong size is told."""
    found = re.fullmatch(
        r"s/[a-z0-9]+\.[a-z]+: (\d+) bytes, where (\d+) to (\d+) are expected; damaged, or not what it claims", message
    )
    assert found, message
    return tuple(int(text) for text in found.groups())


@pytest.mark.parametrize("keep", [0, 5, 8, 200])
@pytest.mark.parametrize("name", TENSOR_FILES)
def test_truncated_below_what_its_values_take(folder, raw, name, keep):
    path = folder / name
    data, values = path.read_bytes(), sum(value.nbytes for value in raw.read(path).values())
    path.write_bytes(data[:keep])
    found, least, most = sizes(refused(folder))
    assert (found, least) == (keep, values)
    assert most >= len(data)
    path.write_bytes(data[: values - 1])
    assert sizes(refused(folder)) == (values - 1, values, most)


@pytest.mark.parametrize("name", TENSOR_FILES)
def test_truncated(folder, raw, name):
    """Large enough to be read, so the header is what tells."""
    path = folder / name
    data, values = path.read_bytes(), sum(value.nbytes for value in raw.read(path).values())
    for keep in (values, len(data) // 2 + values // 2, len(data) - 1):
        path.write_bytes(data[:keep])
        assert refused(folder) == f"s/{name}: not a valid safetensors file"


@pytest.mark.parametrize("name", TENSOR_FILES)
def test_room_for_a_header(folder, name):
    """Blanks behind a header are part of the format: as many as fit are read, one more is not."""
    path = folder / name
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])

    def padded(total):
        room = total - len(data)
        path.write_bytes(struct.pack("<Q", size + room) + data[8 : 8 + size] + b" " * room + data[8 + size :])

    padded(2**20)
    _, _, most = sizes(refused(folder))
    padded(most)
    assert len(load_ticket_set(folder).body.tickets) == 4
    padded(most + 1)
    assert sizes(refused(folder))[0] == most + 1


@pytest.mark.parametrize("name", TENSOR_FILES)
def test_missing_file(folder, name):
    (folder / name).unlink()
    assert refused(folder) == f"s/{name}: cannot be read: No such file or directory"
    (folder / name).mkdir()
    assert refused(folder) == f"s/{name}: cannot be read: Is a directory"


@pytest.mark.parametrize("name", [*TENSOR_FILES, "tickets.json"])
def test_links_are_not_followed_even_to_the_same_content(folder, original, name):
    (folder / name).unlink()
    (folder / name).symlink_to(original / name)
    assert refused(folder) == f"s/{name}: is a link, which is not followed"


NO_SET = "s: not a ticket set (no tickets.json in it); name a folder made by dpltm generate"


@pytest.mark.parametrize("kind", ["dangling link", "pipe"])
@pytest.mark.parametrize("name", [*TENSOR_FILES, "tickets.json"])
def test_dangling_links_and_pipes(folder, name, kind):
    def late(*_):
        raise AssertionError("it hangs")

    (folder / name).unlink()
    (folder / name).symlink_to("nowhere") if kind == "dangling link" else os.mkfifo(folder / name)
    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(10)
    try:
        message = refused(folder)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    why = "is a link, which is not followed" if kind == "dangling link" else "is not a plain file"
    assert message == (NO_SET if name == "tickets.json" else f"s/{name}: {why}")


def test_the_folder_itself_may_be_a_link(folder):
    """Where a set lies is the user's business."""
    (folder.parent / "link").symlink_to("s")
    assert len(load_ticket_set(folder.parent / "link").body.tickets) == 4


def test_missing_document_and_folder(folder):
    (folder / "tickets.json").unlink()
    assert refused(folder) == NO_SET
    shutil.rmtree(folder)
    assert refused(folder) == "s: no ticket set there; make one with dpltm generate --out s"


def test_appended_bytes(folder):
    path = folder / "theta0.safetensors"
    path.write_bytes(path.read_bytes() + b"more")
    assert refused(folder) == "s/theta0.safetensors: not a valid safetensors file"
    path.write_bytes(path.read_bytes() + bytes(2**20))
    found, least, most = sizes(refused(folder))
    assert (found, least) == (path.stat().st_size, 2440)  # 610 float32 values
    assert most < 2**14


@pytest.mark.parametrize("size", [2**63, 2**64 - 1, 2**40, 0, 1])
@pytest.mark.parametrize("name", TENSOR_FILES)
def test_header_length(folder, name, size):
    path = folder / name
    path.write_bytes(struct.pack("<Q", size) + path.read_bytes()[8:])
    assert refused(folder) == f"s/{name}: not a valid safetensors file"


@pytest.mark.parametrize("header", [b"[]", b"null", b"{" * 2000, b'{"a":1}', b"\xff" * 8, b'{"a":{"dtype":"F32"}}'])
def test_header_that_is_none(folder, header):
    """Behind it as many values as there should be, so that the size is right."""
    (folder / "theta0.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(2440))
    assert refused(folder) == "s/theta0.safetensors: not a valid safetensors file"


@pytest.mark.parametrize(
    "places",
    [
        {"fc2.bias": [2048, 2088]},
        {"fc2.weight": [2048, 2368]},
        {"fc1.weight": [8, 2056]},
        {"fc1.bias": [2080, 2048]},
        {"fc2.bias": [2400, 2**63]},
        {"fc2.bias": [2400, 2**64]},
        {"fc2.bias": [-40, 0]},
    ],
    ids=["one in another", "two cross", "a gap", "backwards", "far away", "too far", "before"],
)
def test_tensors_that_do_not_lie_one_behind_the_other(folder, places):
    """The names, shapes and types are right, and so is the number of bytes."""
    fine = {"fc1.weight": [0, 2048], "fc1.bias": [2048, 2080], "fc2.weight": [2080, 2400], "fc2.bias": [2400, 2440]}
    shapes = {"fc1.weight": [8, 64], "fc1.bias": [8], "fc2.weight": [10, 8], "fc2.bias": [10]}

    def put(offsets):
        header = json.dumps(
            {name: {"dtype": "F32", "shape": shapes[name], "data_offsets": offsets[name]} for name in shapes}
        ).encode()
        (folder / "theta0.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(2440))

    put(fine)  # by itself the header is right: only the values are others
    assert refused(folder) == CHANGED
    put({**fine, **places})
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
    assert refused(folder) == CHANGED
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
        ({"schema": 4}, "schema 4 is newer than this version of dpltm reads (3); upgrade dpltm"),
        ({"schema": 1}, "unknown or missing key 'card'"),
        ({"schema": 0}, "schema 0 is not a positive whole number"),
        ({"format": "dpltm-run"}, "not a document of format 'dpltm-ticket-set'"),
        ({"id": "0" * 64}, "the id does not match theta0 and masks; the set is damaged or was changed"),
        ({"id": 5}, f"id: {TEXT}"),
        ({"more": 1}, "unknown or missing key 'more'"),
        ({"name": None}, f"name: {TEXT}"),
        ({"model": 5}, "model 5 is not a text"),
        (
            {"model": "vgg"},
            "`model`: unknown network 'vgg'; known: mlp:WIDTH,WIDTH,... (such as mlp:300,100), mlp-tanh:..., cnn, latent,"
            " embed, embed-pad, lstm, gru, ncf",
        ),
        ({"features": "64"}, "model mlp:8: features '64' is not between 1 and 100000"),
        ({"features": 64.0}, "model mlp:8: features 64.0 is not between 1 and 100000"),
        ({"classes": 0}, "model mlp:8: classes 0 is not between 1 and 100000"),
        ({"config": []}, "config is not an object"),
        ({"provenance": "secret"}, "provenance 'secret' is none of data-free, public, dp, private"),
        ({"provenance": ["public"]}, "provenance ['public'] is none of data-free, public, dp, private"),
        ({"source": {"name": "digits"}}, "source: reference to records: unknown or missing field 'cut'"),
    ],
)
def test_keys(folder, edit, changes, message):
    edit(**changes)
    assert refused(folder) == f"s/tickets.json: {message}"


@pytest.mark.parametrize("key", ["criterion", "events", "parent", "card", "digest"])
def test_missing_key(folder, key):
    path = folder / "tickets.json"
    document = json.loads(path.read_text())
    del document[key]
    path.write_text(json.dumps(document))
    assert refused(folder) == f"s/tickets.json: unknown or missing key {key!r}"


@pytest.mark.parametrize("stated", ["0" * 64, "", 0, False, [], {}])
def test_another_id_of_the_predictors(folder, edit, stated):
    edit(predictors_id=stated)
    assert (
        refused(folder) == "s/predictors.safetensors: does not match predictors_id in tickets.json; damaged or changed"
    )


def test_predictors_that_the_description_does_not_know_of(folder, edit):
    edit(predictors_id=None)
    message = "s/predictors.safetensors: there, though tickets.json knows of no predictors; remove it"
    assert refused(folder) == message
    (folder / "predictors.safetensors").unlink()
    (folder / "predictors.safetensors").symlink_to("nowhere")
    assert refused(folder) == message


def test_another_network(folder, edit):
    edit(model="mlp:9")
    assert (
        refused(folder) == "s/masks.safetensors: tensor '0/fc1.bias': found ((1,), 'uint8'), expected ((2,), 'uint8')"
    )


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"hello",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"\xff\xfe\x00",
        b'{"schema": NaN}',
        b'{"schema": ' + b"9" * 5000 + b"}",
    ],
    ids=["empty", "cut short", "text", "deep list", "deep object", "bytes", "nan", "long number"],
)
def test_not_json(folder, text):
    (folder / "tickets.json").write_bytes(text)
    assert refused(folder) == "s/tickets.json: not valid JSON"


@pytest.mark.parametrize("key", ["id", "provenance", "config", "digest"])
def test_a_key_twice(folder, key):
    """Readers differ in which of two they take, so neither is taken, whatever it says."""
    path = folder / "tickets.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document)[:-1] + f", {json.dumps(key)}: {json.dumps(document[key])}}}")
    assert refused(folder) == "s/tickets.json: not valid JSON"


@pytest.mark.parametrize("depth", [100, 700, 900, 940, 980])
@pytest.mark.parametrize("key", ["config", "name", "features", "source", "events", "parent", "tickets", "digest"])
def test_deep_values(folder, key, depth):
    """Nested nearly as deep as Python reads: whatever looks at the value afterwards must not fall over it."""
    path = folder / "tickets.json"
    document = {**json.loads(path.read_text()), key: "@"}
    path.write_text(json.dumps(document).replace('"@"', "[" * depth + "]" * depth))
    refused(folder)
    path.write_text(json.dumps(document).replace('"@"', '{"a":' * depth + "1" + "}" * depth))
    refused(folder)


@pytest.mark.parametrize("text", [b"[]", b"5", b"null", b"{}"])
def test_json_of_something_else(folder, text):
    (folder / "tickets.json").write_bytes(text)
    assert refused(folder) == "s/tickets.json: not a document of format 'dpltm-ticket-set'"


def test_endless_document(folder):
    with (folder / "tickets.json").open("r+b") as stream:
        stream.truncate(2**24 + 1)
    assert sizes(refused(folder)) == (2**24 + 1, 0, 2**21)


def test_an_accuracy_edited_within_bounds(folder, edit, rows):
    edit(tickets=[*rows[:3], {**rows[3], "accuracy": 0.99}])
    assert refused(folder) == DIGEST
