"""Schemes and messages on disk: what comes back, what is in them, and how damage is told in one line."""

import json
import math
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dpltm.features.normalisation import ChannelStatistics
from dpltm.local.codebook import Codebook
from dpltm.local.scheme import BitStrings, FixedPoint, Scheme
from dpltm.networks import ModelSpec, build
from dpltm.privacy.entry import Entry, Lineage, to_json
from dpltm.privacy.mechanisms import Guarantee
from dpltm.randomness.noise import FastSource
from dpltm.tickets.files import digest_of
from dpltm.tickets.run import load_run
from dpltm.tickets.workbench.latent import (
    Learned,
    load_scheme,
    read_messages,
    save_learned,
    save_scheme,
    write_messages,
)
from maps import make_feature_map
from refusals import told
from set_entries import SAID, SOURCE, TRAINED, entered

ANSWER = BitStrings(6, 4, FixedPoint(1, 2), "rappor", 9.0, None, 2.0)
MEAN, DEVIATION = np.linspace(-1, 1, 6, dtype="f4"), np.linspace(0.5, 3, 6, dtype="f4")
SCHEME = Scheme(make_feature_map("unit:1", (2, 3), (0.0, 255.0)), MEAN, DEVIATION, ANSWER, Lineage((SAID,)))
SENT = SCHEME.lineage | Lineage((entered(Entry("local", SOURCE, (Guarantee(11.0, adjacency="replace-one"),)), 6),))
"""Of the messages."""
S, M = Path("s"), Path("m")


def of_images() -> Scheme:
    """Behind scattering with statistics, by another protocol, with public labels."""
    draw = torch.Generator().manual_seed(0)
    images = make_feature_map("scatter:1,2", (4, 5), (-1.0, 1.0))
    mean, deviation = torch.rand(2, images.feature_shape[-1], generator=draw)
    images = replace(images, lineage=Lineage((SAID,)), statistics=ChannelStatistics(mean, deviation))
    answer = replace(ANSWER, values=images.features, protocol="uer", alpha=7.5, label_epsilon=None)
    deviation = torch.rand(images.features, generator=draw) + 0.1
    centre = torch.randn(images.features, generator=draw)
    return Scheme(images, centre.numpy(), deviation.numpy(), answer, Lineage((SAID, TRAINED)))


DAMAGED = "the digest does not match; it is damaged or was changed"
LENGTH = "{size} bytes are not what its header says; cut short, or damaged"
X = np.random.default_rng(0).uniform(-1, 1, (9, 2, 3))
ROWS = np.concatenate(list(SCHEME.messages(X, np.arange(9) % 4, FastSource(0))))


@pytest.fixture
def there(tmp_path, monkeypatch) -> Path:
    """The working folder, with a scheme ``s`` and a file ``m`` of nine messages in it."""
    monkeypatch.chdir(tmp_path)
    save_scheme(S, SCHEME)
    write_messages(M, SCHEME, 9, [ROWS[:4], ROWS[4:4], ROWS[4:]], SENT)
    return tmp_path


@pytest.mark.parametrize("scheme", [SCHEME, of_images()], ids=["plain", "statistics"])
def test_a_scheme_comes_back(tmp_path, scheme):
    save_scheme(tmp_path / "s", scheme)
    found = load_scheme(tmp_path / "s")
    assert (found.id, found.answer) == (scheme.id, scheme.answer)
    np.testing.assert_array_equal(found.mean, scheme.mean)
    np.testing.assert_array_equal(found.deviation, scheme.deviation)
    assert (found.feature_map.id, found.feature_map.lineage) == (scheme.feature_map.id, scheme.feature_map.lineage)
    assert found.lineage == scheme.lineage
    x = np.random.default_rng(0).uniform(-1, 1, (5, *scheme.feature_map.shape))
    assert np.array_equal(found.scores(x), scheme.scores(x))
    coins = [next(each.messages(x, np.arange(5) % 4, FastSource(1))) for each in (scheme, found)]
    assert np.array_equal(*coins)


@pytest.mark.usefixtures("there")
def test_what_a_scheme_says(raw):
    """Only what was agreed on: no record had a part in it, and no other file lies beside it."""
    assert sorted(path.name for path in S.iterdir()) == ["scheme.json", "statistics.safetensors"]
    body = json.loads((S / "scheme.json").read_text())
    assert set(body) == {
        *("format", "schema", "id", "nominal", "certified", "answer", "feature_map", "lineage", "digest")
    }
    assert (body["format"], body["schema"], body["id"]) == ("dpltm-scheme", 2, SCHEME.id)
    assert body["lineage"] == to_json(SCHEME.lineage)
    assert (body["nominal"], body["certified"]) == (11.0, pytest.approx(11.0))
    assert body["answer"] == {
        **{"kind": "bit-strings", "values": 6, "classes": 4, "form": {"whole": 1, "fraction": 2}},
        **{"protocol": "rappor", "epsilon": 9.0, "alpha": None, "label_epsilon": 2.0},
    }
    stored = raw.read(S / "statistics.safetensors")
    assert stored.keys() == {"mean", "deviation"}
    np.testing.assert_array_equal(stored["mean"], SCHEME.mean)
    np.testing.assert_array_equal(stored["deviation"], SCHEME.deviation)


ALTERED = {
    "id": [..., "0" * 64],
    "answer": [..., None, "bit-strings"],
    "answer.values": [..., 5, 6.0, 10**12],
    "answer.classes": [..., 5, 0],
    "answer.form": [..., [1, 2]],
    "answer.form.whole": [2, -1],
    "answer.protocol": [..., "ue", "os", ["ue"]],
    "answer.epsilon": [..., 0.9, -9.0, "9", 10**400],
    "answer.alpha": [..., 7.0],
    "answer.label_epsilon": [..., None, 1.0],
    "answer.kind": [..., "nonsense"],
    "answer.more": [1],
    "feature_map": [..., None, 7],
    "feature_map.text": ["unit:2"],
    "feature_map.bounds": [[0.0, 16.0]],
    "nominal": [0.1],  # who reads the file for what it certifies must not be told less
    "certified": [0.1, "much"],
    "lineage": [..., None, [], {"entries": [1], "heads": []}],
    "digest": [...],
    "more": [1],
}
"""Keys of the description, and values of each that are refused; ``...`` for none."""


@pytest.mark.usefixtures("there")
@pytest.mark.parametrize("key", ALTERED)
def test_a_scheme_that_was_changed(key):
    text = (S / "scheme.json").read_text()
    for value in ALTERED[key]:
        body = inner = json.loads(text)
        *outer, last = key.split(".")
        for name in outer:
            inner = inner[name]
        inner[last] = value
        if value is ...:
            del inner[last]
        if "digest" in body:  # whoever edits can do that as well
            body["digest"] = digest_of(body)
        (S / "scheme.json").write_text(json.dumps(body))
        assert told(load_scheme, S).startswith("s/scheme.json: ")


def test_the_lineage_of_a_scheme_holds_that_of_its_features(tmp_path):
    """Nobody may drop what a network in front cost."""
    scheme = of_images()
    save_scheme(tmp_path / "s", replace(scheme, lineage=Lineage((TRAINED,))))
    assert told(load_scheme, tmp_path / "s").endswith("its lineage lacks what its features were made from")


@pytest.mark.usefixtures("there")
def test_statistics_that_were_changed(raw):
    path = S / "statistics.safetensors"
    stored = raw.read(path)
    for name in stored:
        for value in (stored[name][3] + 1e-3, math.nan, math.inf):
            other = {key: values.copy() for key, values in stored.items()}
            other[name][3] = value
            raw.write(path, other)
            assert told(load_scheme, S).startswith("s/scheme.json: ")


@pytest.mark.usefixtures("there")
def test_messages_come_back():
    rows, lineage = read_messages(M, SCHEME)
    assert np.array_equal(rows, ROWS)
    assert (rows.dtype, rows.flags.writeable, lineage) == (np.uint8, False, SENT)


def header_and_rows(data: bytes) -> tuple[dict, bytes]:
    """By the letter of the format: eight bytes of magic, eight of length, a JSON object, and the records."""
    assert data[:8] == b"DPLTMMSG"
    (length,) = struct.unpack("<Q", data[8:16])
    return json.loads(data[16 : 16 + length]), data[16 + length :]


def file_of(header: dict | bytes, rows: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return b"DPLTMMSG" + struct.pack("<Q", len(text)) + text + rows


@pytest.mark.usefixtures("there")
def test_what_a_file_of_messages_holds_byte_by_byte():
    header, rows = header_and_rows(M.read_bytes())
    width = 3 + 2  # 6 values of 4 bits, and a label
    stated = {"format": "dpltm-messages", "schema": 2, "scheme": SCHEME.id, "records": 9, "record_bytes": width}
    stated["lineage"] = to_json(SENT)
    assert (header, rows) == ({**stated, "digest": digest_of(stated)}, ROWS.tobytes())


@pytest.mark.usefixtures("there")
def test_messages_that_do_not_fit():
    """Of another length than they say, with labels of no class, of another scheme or other features, of as many bytes."""
    data = M.read_bytes()
    for other in (data[:-1], data[:-45], data + b"\0", data + data[-5:]):
        M.write_bytes(other)
        assert told(read_messages, M, SCHEME) == "m: " + LENGTH.format(size=len(other))
    M.write_bytes(data[:-2] + b"\xff\xff")
    assert told(read_messages, M, SCHEME).endswith("; it is damaged")
    features = make_feature_map("fourier:6", (2, 3), (0.0, 255.0))
    for other in (replace(SCHEME, answer=replace(ANSWER, epsilon=1.0)), replace(SCHEME, feature_map=features)):
        assert told(read_messages, M, other) == (
            f"m: encoded by another scheme ({SCHEME.id[:8]}) than this one ({other.id[:8]}); owners and server have to use"
            " the same"
        )


@pytest.mark.usefixtures("there")
def test_files_that_are_none():
    headers = [b"DPLTMMSG" + struct.pack("<Q", length) + b" " * 100 for length in (2**31, 2**64 - 1)]
    for data in (b"", b"DPLTMMSG", b"DPLTMMSG\1\0\0", b"PK\3\4" + b"\0" * 60, *headers):
        M.write_bytes(data)
        assert told(read_messages, M, SCHEME) == "m: not a file of messages; make one with dpltm latent encode"


@pytest.mark.usefixtures("there")
@pytest.mark.parametrize(
    ("header", "message"),
    [
        *(({"records": value}, LENGTH) for value in (True, 9.0, 8, 10**30)),
        ({"record_bytes": "5"}, LENGTH),
        ({"saturated": 1}, "unknown or missing key 'saturated'"),
        ({"digest": "0" * 64}, DAMAGED),
        ({"lineage": {"entries": [], "heads": [1]}}, "lineage: heads: "),
        ({"format": "dpltm-scheme"}, "not a document of format 'dpltm-messages'"),
        ({"scheme": [1, 2]}, "encoded by another scheme"),
        (b"[" * 60_000, "not valid JSON"),
    ],
    ids=lambda part: str(part)[:20],
)
def test_headers_that_were_changed(header, message):
    before, rows = header_and_rows(M.read_bytes())
    if isinstance(header, dict):
        changed = {**before, **header}
        header = changed if "digest" in header else {**changed, "digest": digest_of(changed)}
    data = file_of(header, rows)
    M.write_bytes(data)
    assert told(read_messages, M, SCHEME).startswith("m: " + message.format(size=len(data)))


def test_a_network_from_a_codebook_is_a_run(tmp_path):
    """With the lineage of the messages, as any run has its own."""
    scheme = replace(SCHEME, answer=Codebook(6, 4, 2.0, "signed", 30))
    spec = ModelSpec("mlp", 6, 4)
    save_learned(tmp_path / "r", scheme, Learned(spec, build(spec, 3), {}, []), {}, SENT)
    run = load_run(tmp_path / "r")
    assert (run.lineage, run.entry, run.bounds) == (SENT, None, (0.0, 255.0))
    assert run.feature_map == scheme.feature_map
