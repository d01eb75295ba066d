"""Schemes and messages on disk: what comes back, what is in them, and how damage is told in one line."""

from __future__ import annotations

import json
import math
import os
import shutil
import struct
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dpltm.errors import ArtifactError
from dpltm.features.feature_map import make_feature_map
from dpltm.features.normalisation import ChannelStatistics
from dpltm.generation import Ticket
from dpltm.local.bit_strings import BitStrings
from dpltm.local.encoding import FixedPoint
from dpltm.local.scheme import Scheme
from dpltm.masks import Mask
from dpltm.models import ModelSpec, build
from dpltm.noise import FastSource, SecureSource
from dpltm.privacy.events import DatasetRef
from dpltm.tickets.scheme_files import load_scheme, open_messages, save_learned, save_scheme, write_messages

SOURCE = DatasetRef("other", "cd" * 16, "01234567", 3, 500, "places")
ANSWER = BitStrings(6, 4, FixedPoint(1, 2), "rappor", 9.0, None, 2.0)


def made(**changes) -> Scheme:
    mean, deviation = torch.linspace(-1, 1, 6), torch.linspace(0.5, 3, 6)
    plain = make_feature_map("unit:1", (2, 3), (0.0, 255.0))
    return Scheme(**{"feature_map": plain, "mean": mean, "deviation": deviation, "answer": ANSWER, **changes})


def schemes() -> dict[str, Scheme]:
    draw = torch.Generator().manual_seed(0)
    images = make_feature_map("scatter:1,2", (4, 5), (-1.0, 1.0))
    mean, deviation = torch.rand(2, images.feature_shape[-1], generator=draw)
    images = replace(images, source=SOURCE, statistics=ChannelStatistics(mean, deviation))
    wide = replace(ANSWER, values=images.features, protocol="uer", alpha=7.5, label_epsilon=None)
    return {
        "plain": made(),
        "public labels": made(answer=replace(ANSWER, label_epsilon=None)),
        "alpha": made(answer=replace(ANSWER, protocol="moue-hs", alpha=3.0, epsilon=0.1)),
        "statistics": Scheme(
            images, torch.randn(images.features, generator=draw), torch.rand(images.features) + 0.1, wide
        ),
    }


def some(scheme: Scheme, count: int, seed: int = 0) -> np.ndarray:
    """Messages of random records."""
    draw = np.random.default_rng(seed)
    x, y = draw.uniform(-1, 1, (count, *scheme.feature_map.shape)), draw.integers(0, 4, count)
    return np.concatenate([rows for rows, _ in scheme.messages(x, y, FastSource(seed))])


@pytest.fixture
def there(tmp_path, monkeypatch) -> Path:
    """The working folder, with a scheme ``s`` and a file ``m`` of nine messages in it."""
    monkeypatch.chdir(tmp_path)
    save_scheme(Path("s"), made())
    rows = some(made(), 9)
    write_messages(Path("m"), made(), 9, [rows[:4], rows[4:4], rows[4:]])
    return tmp_path


def told(call, *arguments) -> str:
    """The one line of what is refused."""
    with pytest.raises(ArtifactError) as caught:
        call(*arguments)
    message = str(caught.value)
    assert "\n" not in message
    assert message.isprintable()
    assert len(message) < 400
    return message


# --- schemes ---


@pytest.mark.parametrize("kind", schemes())
def test_a_scheme_comes_back(tmp_path, kind):
    scheme = schemes()[kind]
    save_scheme(tmp_path / "s", scheme)
    found = load_scheme(tmp_path / "s")
    assert found.id == scheme.id
    assert found.answer == scheme.answer
    assert torch.equal(found.mean, scheme.mean)
    assert torch.equal(found.deviation, scheme.deviation)
    assert found.feature_map.id == scheme.feature_map.id
    assert found.feature_map.source == scheme.feature_map.source
    x = np.random.default_rng(0).uniform(-1, 1, (5, *scheme.feature_map.shape))
    assert np.array_equal(found.scores(x), scheme.scores(x))
    coins = [next(each.messages(x, np.arange(5) % 4, FastSource(1)))[0] for each in (scheme, found)]
    assert np.array_equal(*coins)


def test_what_a_scheme_says(there, raw):
    """Only what was agreed on: no record had a part in it, and no other file lies beside it."""
    assert sorted(path.name for path in (there / "s").iterdir()) == ["scheme.json", "statistics.safetensors"]
    body = json.loads((there / "s/scheme.json").read_text())
    assert set(body) == {"format", "schema", "id", "nominal", "certified", "answer", "public", "feature_map"}
    assert (body["format"], body["schema"], body["id"]) == ("dpltm-scheme", 1, made().id)
    assert body["nominal"] == 11.0
    assert body["certified"] == pytest.approx(11.0)
    assert body["answer"] == {
        **{"kind": "bit-strings", "values": 6, "classes": 4, "form": {"whole": 1, "fraction": 2}},
        **{"protocol": "rappor", "epsilon": 9.0, "alpha": None, "label_epsilon": 2.0},
    }
    stored = raw.read(there / "s/statistics.safetensors")
    assert stored.keys() == {"mean", "deviation"}
    np.testing.assert_array_equal(stored["mean"], made().mean.numpy())
    np.testing.assert_array_equal(stored["deviation"], made().deviation.numpy())


def test_a_scheme_is_never_written_over(there):
    before = (there / "s/scheme.json").read_bytes()
    message = told(save_scheme, Path("s"), made(answer=replace(ANSWER, epsilon=1.0)))
    assert message == "`out`: s exists already; choose another name or remove it first"
    assert (there / "s/scheme.json").read_bytes() == before


ABSENT = object()
ALTERED = [
    (("id",), "0" * 64),
    (("id",), None),
    (("answer", "values"), 5),
    (("answer", "values"), 6.0),
    (("answer", "values"), "6"),
    (("answer", "values"), 10**12),
    (("answer", "classes"), 5),
    (("answer", "classes"), 0),
    (("answer", "form", "whole"), 2),
    (("answer", "form", "whole"), -1),
    (("answer", "form", "fraction"), 1),
    (("answer", "form", "fraction"), 1e9),
    (("answer", "form", "more"), 1),
    (("answer", "form"), [1, 2]),
    (("answer", "protocol"), "ue"),
    (("answer", "protocol"), "os"),
    (("answer", "protocol"), ["ue"]),
    (("answer", "epsilon"), 0.9),
    (("answer", "epsilon"), -9.0),
    (("answer", "epsilon"), "9"),
    (("answer", "epsilon"), 10**400),
    (("answer", "alpha"), 7.0),
    (("answer", "label_epsilon"), None),
    (("answer", "label_epsilon"), 1.0),
    (("answer", "kind"), "nonsense"),
    (("answer", "kind"), None),
    (("answer", "more"), 1),
    (("answer",), None),
    (("answer",), []),
    (("answer",), "bit-strings"),
    (("feature_map",), None),
    (("feature_map",), 7),
    (("feature_map", "id"), "0" * 64),
    (("feature_map", "text"), "unit:2"),
    (("feature_map", "shape"), [3, 2]),
    (("feature_map", "shape"), [1, 7]),
    (("feature_map", "bounds"), [0.0, 16.0]),
    (("feature_map", "bounds"), [1.0, 0.0]),
    (("format",), "dpltm-run"),
    (("schema",), 2),
    (("schema",), 0),
    (("schema",), True),
    # who reads the file for what it certifies must not be told less
    (("nominal",), 0.1),
    (("certified",), 0.1),
    (("certified",), "much"),
    (("more",), 1),
    *(((key,), ABSENT) for key in ("format", "schema", "id", "answer", "feature_map")),
    *((("answer", key), ABSENT) for key in (*asdict(ANSWER), "kind")),
    *(((), text) for text in ("", "{", "[]", "null", '{"format": 1, "format": 2}', '{"a": NaN}', "[" * 100_000)),
]


@pytest.mark.parametrize(
    ("keys", "value"), ALTERED, ids=lambda part: ".".join(part) if isinstance(part, tuple) else None
)
def test_a_scheme_that_was_changed(there, keys, value):
    path = there / "s/scheme.json"
    body = json.loads(path.read_text())
    inner = body
    for key in keys[:-1]:
        inner = inner[key]
    if value is ABSENT:
        del inner[keys[-1]]
    elif keys:
        inner[keys[-1]] = value
    path.write_text(json.dumps(body) if keys else value)
    assert told(load_scheme, Path("s")).startswith("s/scheme.json: ")


def test_a_folder_that_is_no_scheme(there):
    (there / "empty").mkdir()
    for name in ("empty", "nothing", "m"):
        assert told(load_scheme, Path(name)) == (
            f"{name}: not a scheme (no scheme.json in it); make one with dpltm latent scheme --out {name}"
        )


def test_statistics_that_were_changed(there, raw):
    path = there / "s/statistics.safetensors"
    stored = raw.read(path)
    for name in stored:
        other = {key: value.copy() for key, value in stored.items()}
        other[name][3] += np.float32(1e-3)
        raw.write(path, other)
        assert told(load_scheme, Path("s")) == "s/scheme.json: the id does not match; it is damaged or was changed"
        for bad in (math.nan, math.inf, -math.inf):
            other[name][3] = bad
            raw.write(path, other)
            assert told(load_scheme, Path("s")).startswith("s/")
    raw.write(path, {**stored, "mean": stored["deviation"], "deviation": stored["mean"]})
    assert told(load_scheme, Path("s")).startswith("s/"), "means that are no deviations"
    raw.write(path, stored)
    assert load_scheme(Path("s")).id == made().id


def test_statistics_that_are_none(there, raw):
    path = there / "s/statistics.safetensors"
    data, stored = path.read_bytes(), raw.read(path)
    start = "s/statistics.safetensors: "
    raw.write(path, {"mean": stored["mean"]})
    assert told(load_scheme, Path("s")).startswith(start)
    raw.write(path, {**stored, "more": np.zeros(1, dtype="f4")})
    assert told(load_scheme, Path("s")) == f"{start}tensor 'more': found ((1,), 'float32'), expected none"
    for other in (stored["mean"][:5], stored["mean"][None], np.append(stored["mean"], np.float32(0))):
        raw.write(path, {**stored, "mean": other})
        assert told(load_scheme, Path("s")).startswith(start)
    raw.write(path, {**stored, "mean": stored["mean"].astype("f8")})
    assert told(load_scheme, Path("s")).startswith(
        f"{start}tensor 'mean': found ((6,), 'float64'), expected ((6,), 'float32')"
    )
    for place in (0, 7, len(data) - 1):
        path.write_bytes(data[:place])
        assert told(load_scheme, Path("s")).startswith(start)
    path.write_bytes(data + b"\0" * 100_000)
    assert told(load_scheme, Path("s")).startswith(start)
    path.unlink()
    assert told(load_scheme, Path("s")) == f"{start}cannot be read: No such file or directory"
    path.symlink_to("/etc/passwd")
    assert told(load_scheme, Path("s")).startswith(start)


# --- messages ---


def test_messages_come_back(there):
    found = open_messages(Path("m"), made())
    assert np.array_equal(found, some(made(), 9))
    assert found.dtype == np.uint8
    with pytest.raises(ValueError, match="read-only"):
        found[0, 0] = 1
    del there


def header_and_rows(data: bytes) -> tuple[dict, bytes]:
    """By the letter of the format: eight bytes of magic, eight of length, a JSON object, and the records."""
    assert data[:8] == b"DPLTMMSG"
    (length,) = struct.unpack("<Q", data[8:16])
    return json.loads(data[16 : 16 + length]), data[16 + length :]


def file_of(header: object, rows: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return b"DPLTMMSG" + struct.pack("<Q", len(text)) + text + rows


def test_what_a_file_of_messages_holds_byte_by_byte(there):
    header, rows = header_and_rows((there / "m").read_bytes())
    width = 3 + 2  # 6 values of 4 bits, and a label
    assert header == {
        **{"format": "dpltm-messages", "schema": 1, "scheme": made().id},
        **{"records": 9, "record_bytes": width},
    }
    assert rows == some(made(), 9).tobytes()


def test_other_values_leave_a_file_of_the_same_size_and_header(there):
    """Whatever they are, saturated or not: the number of records and what was agreed on decide."""
    scheme, files = made(), []
    for number, x in enumerate((np.zeros((9, 2, 3)), np.random.default_rng(0).uniform(0, 255, (9, 2, 3)))):
        blocks = list(scheme.messages(x, np.full(9, number), SecureSource()))
        write_messages(there / f"f{number}", scheme, 9, [rows for rows, _ in blocks])
        files.append((there / f"f{number}").read_bytes())
    assert header_and_rows(files[0])[0] == header_and_rows(files[1])[0]
    assert len(files[0]) == len(files[1])


def test_messages_are_never_written_over(there):
    before = (there / "m").read_bytes()
    message = told(write_messages, Path("m"), made(), 0, [])
    assert message == "`out`: m exists already; choose another name or remove it first"
    assert (there / "m").read_bytes() == before


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt(), ValueError("x")])
def test_messages_that_fail_midway_leave_nothing(there, error):
    def blocks():
        yield some(made(), 4)
        assert any(path.name.startswith(".new.") for path in there.iterdir()), "written beside its place"
        raise error

    before = sorted(there.rglob("*"))
    with pytest.raises(type(error)):
        write_messages(there / "new", made(), 9, blocks())
    with pytest.raises(type(error)):
        write_messages(there / "deep/er/new", made(), 9, failing(error))
    assert sorted(there.rglob("*")) == before


def failing(error: BaseException):
    raise error
    yield


@pytest.mark.parametrize("place", [-1, -5, -45, -46, 17, 16])
def test_messages_that_were_cut_short(there, place):
    data = (there / "m").read_bytes()
    (there / "m").write_bytes(data[:place])
    assert told(open_messages, Path("m"), made()).startswith("m: ")


def test_messages_of_another_length_than_they_say(there):
    data = (there / "m").read_bytes()
    for other in (data[:-1], data + b"\0", data + data[-5:]):
        (there / "m").write_bytes(other)
        assert told(open_messages, Path("m"), made()) == (
            f"m: {len(other)} bytes, where {len(data)} are expected; cut short, or damaged"
        )


NO_FILES = [b"", b"DPLTM", b"DPLTMMSG", b"DPLTMMSG\1\0\0", b"PK\3\4" + b"\0" * 60, b"{}" * 40]
LONG_HEADERS = [b"DPLTMMSG" + struct.pack("<Q", length) + b" " * 100 for length in (2**16 + 1, 2**63, 2**64 - 1)]


@pytest.mark.parametrize("name", ["s", "nothing"])
@pytest.mark.usefixtures("there")
def test_what_cannot_be_read(name):
    why = {"s": "Is a directory", "nothing": "No such file or directory"}[name]
    assert told(open_messages, Path(name), made()) == f"{name}: cannot be read: {why}"


@pytest.mark.parametrize("data", [*NO_FILES, *LONG_HEADERS])
def test_files_that_are_none(there, data):
    (there / "m").write_bytes(data)
    assert told(open_messages, Path("m"), made()) == "m: not a file of messages; make one with dpltm latent encode"


HEADERS = [
    ({"records": 8}, "m: {size} bytes, where {less} are expected; cut short, or damaged"),
    ({"records": 0}, "m: its header is damaged"),
    ({"records": -9}, "m: its header is damaged"),
    ({"records": True}, "m: its header is damaged"),
    ({"records": 9.0}, "m: its header is damaged"),
    ({"records": "9"}, "m: its header is damaged"),
    ({"records": None}, "m: its header is damaged"),
    ({"records": 10**30}, None),
    ({"record_bytes": 6}, None),
    ({"record_bytes": "5"}, None),
    ({"more": 1}, "m: its header is damaged"),
    ({"saturated": 3}, "m: its header is damaged"),
    ({"format": "dpltm-scheme"}, "m: not a document of format 'dpltm-messages'"),
    ({"format": None}, "m: not a document of format 'dpltm-messages'"),
    ({"schema": 2}, "m: schema 2 is newer than this version of dpltm reads (1); upgrade dpltm"),
    ({"schema": 0}, "m: schema 0 is not a positive whole number"),
    ({"schema": "1"}, "m: schema '1' is not a positive whole number"),
    ({"scheme": None}, None),
    ({"scheme": [1, 2]}, None),
]


@pytest.mark.parametrize(("change", "message"), HEADERS, ids=lambda part: str(part)[:20])
def test_headers_that_were_changed(there, change, message):
    header, rows = header_and_rows((there / "m").read_bytes())
    data = file_of({**header, **change}, rows)
    (there / "m").write_bytes(data)
    found = told(open_messages, Path("m"), made())
    assert found.startswith("m: ")
    if message:
        assert found == message.format(size=len(data), less=len(data) - 5)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        *((text, "its header is damaged") for text in (b"", b"{", b"\xff\xfe", b"[" * 60_000, b'{"format": ')),
        *((text, "not a document of format 'dpltm-messages'") for text in (b"[]", b"null", b"7", b'"dpltm-messages"')),
    ],
)
def test_headers_that_are_no_object(there, text, why):
    (there / "m").write_bytes(file_of(text, b"\0" * 45))
    assert told(open_messages, Path("m"), made()) == f"m: {why}"


def test_messages_of_another_scheme(there):
    """Of as many bytes, so that nothing but the id tells."""
    other = made(answer=replace(ANSWER, epsilon=1.0))
    assert told(open_messages, there / "m", other) == (
        f"{there / 'm'}: encoded by another scheme ({made().id[:8]}) than this one ({other.id[:8]}); owners and server have"
        " to use the same"
    )


def test_messages_with_labels_of_no_class(there):
    data = bytearray((there / "m").read_bytes())
    data[-2:] = b"\xff\xff"
    (there / "m").write_bytes(data)
    assert told(open_messages, Path("m"), made()).startswith("m: ")


def test_a_pipe_is_no_file_of_messages(there):
    os.mkfifo(there / "pipe")
    # an end that is open lets the reader go on where it would otherwise hang
    handle = os.open(there / "pipe", os.O_RDWR | os.O_NONBLOCK)
    os.write(handle, (there / "m").read_bytes())
    try:
        message = told(open_messages, there / "pipe", made())
    finally:
        os.close(handle)
    assert message == f"{there / 'pipe'}: is not a plain file"


# --- what was learned ---


def saved(folder: Path) -> tuple[torch.nn.Module, Mask, Scheme]:
    scheme, spec = made(), ModelSpec("mlp:5", 24, 4)
    model = build(spec, 3)
    keep = {name: torch.rand(value.shape) < 0.5 for name, value in model.named_parameters() if value.ndim == 2}
    mask = Mask(
        {name: keep.get(name, torch.ones(value.shape, dtype=bool)) for name, value in model.named_parameters()}
    )
    mask.apply(model)
    weights = {name: value.detach() for name, value in model.named_parameters()}
    save_learned(folder, scheme, spec, Ticket(1, mask, None, weights), {"model": "mlp:5", "accuracy": 0.5})
    return model, mask, scheme


def test_a_network_comes_back(tmp_path, raw):
    model, mask, scheme = saved(tmp_path / "r")
    body = json.loads((tmp_path / "r/result.json").read_text())
    assert (body["format"], body["schema"], body["scheme"]) == ("dpltm-latent-run", 1, scheme.id)
    assert (body["model"], body["accuracy"]) == ("mlp:5", 0.5)
    weights, packed = raw.read(tmp_path / "r/model.safetensors"), raw.read(tmp_path / "r/mask.safetensors")
    assert weights.keys() == packed.keys() == dict(model.named_parameters()).keys()
    for name, value in model.named_parameters():
        np.testing.assert_array_equal(weights[name], value.detach().numpy())
        np.testing.assert_array_equal(raw.unpack(packed[name], value.shape), mask[name].numpy())
    assert not any(name.startswith(".") for name in os.listdir(tmp_path))


def test_a_network_is_never_written_over(tmp_path):
    (tmp_path / "r").mkdir()
    with pytest.raises(ArtifactError, match="exists already"):
        saved(tmp_path / "r")
    shutil.rmtree(tmp_path / "r")


def test_a_network_says_which_scheme_it_is_of(tmp_path):
    """The command writes its options as well, among them the scheme's path."""
    scheme, spec = made(), ModelSpec("mlp:5", 24, 4)
    model = build(spec, 3)
    weights = {name: value.detach() for name, value in model.named_parameters()}
    save_learned(tmp_path / "r", scheme, spec, Ticket(0, Mask.dense(model), None, weights), {"scheme": "somewhere/s"})
    assert json.loads((tmp_path / "r/result.json").read_text())["scheme"] == scheme.id


def test_answers_are_described_by_all_of_their_settings():
    """A field that a file does not hold would come back as something else."""
    assert set(asdict(ANSWER)) == {
        *("values", "classes", "form", "protocol", "epsilon", "alpha", "label_epsilon"),
    }
