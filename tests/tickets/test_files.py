"""Writing whole or not at all; reading with one clear line for what is not right."""

import os
import signal
import socket
import tracemalloc
from pathlib import Path

import pytest

from dpltm.tickets.files import check_free, new_file, new_folder, read_bytes, read_json, write_json
from refusals import told


def everything(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def write_into(target):
    with new_folder(target) as folder:
        (folder / "x").write_text("hello")


def write_file(target):
    with new_file(target) as staging:
        staging.write_text("hello")


def test_a_folder_or_file_appears_at_the_end(tmp_path):
    for make, mode in ((new_folder, 0o755), (new_file, 0o644)):
        target = tmp_path / make.__name__ / "a.b"
        with make(target) as staging:
            (staging / "x" if make is new_folder else staging).write_text("hello")
            assert not target.exists()
            assert staging.parent == target.parent
            assert staging.name.startswith(".a.b.")
        assert target.stat().st_mode & 0o777 == mode
    assert everything(tmp_path) == ["new_file", "new_file/a.b", "new_folder", "new_folder/a.b", "new_folder/a.b/x"]
    assert (tmp_path / "new_folder/a.b/x").read_text() == (tmp_path / "new_file/a.b").read_text() == "hello"


@pytest.mark.parametrize("kind", ["folder", "file", "link to a folder", "link to a file", "dangling link"])
@pytest.mark.parametrize("attempt", [write_into, write_file, check_free])
def test_nothing_is_written_over(tmp_path, kind, attempt):
    target = tmp_path / "a"
    taken = target if kind in ("folder", "file") else tmp_path / "elsewhere"
    if "folder" in kind:
        taken.mkdir()
    elif "file" in kind:
        taken.write_text("mine")
    if taken != target:
        target.symlink_to(taken)
    before = everything(tmp_path)
    assert told(attempt, target) == f"`out`: {target} exists already; choose another name or remove it first"
    assert everything(tmp_path) == before
    assert "file" not in kind or target.read_text() == "mine"


@pytest.mark.parametrize("make", [new_folder, new_file])
def test_target_that_appears_meanwhile(tmp_path, make, monkeypatch):
    """Somebody else was quicker: theirs stays, and ours goes. Named relative to the working folder."""
    monkeypatch.chdir(tmp_path)

    def late():
        with make(Path("b/a")):
            Path("b/a").mkdir()
            Path("b/a/x").write_text("theirs")

    assert told(late) == "`out`: b/a exists already; choose another name or remove it first"
    assert everything(tmp_path) == ["b", "b/a", "b/a/x"]


@pytest.mark.parametrize("make", [new_folder, new_file])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_failed_write_leaves_nothing(tmp_path, make, error):
    def interrupted():
        with make(tmp_path / "b/c/a") as staging:
            (staging / "x" if make is new_folder else staging).write_text("half of it")
            raise error

    with pytest.raises(error):
        interrupted()
    assert everything(tmp_path) == []


def test_json_round_trip(tmp_path):
    """A key may stand in several objects, but not twice in one; what cannot be written leaves the file as it was."""
    body = {"format": "f", "schema": 1, "text": "ü\n", "x": {"x": 1, "y": [{"x": 2}, {"x": None}]}}
    path = tmp_path / "a.json"
    for mode, schema in ((0o644, 2), (0o600, 2)):
        write_json(path, {**body, "schema": schema}, mode=mode)
        assert read_json(path, "f", 2) == {**body, "schema": schema}
        assert path.stat().st_mode & 0o777 == mode
    for value in (float("nan"), float("inf"), object(), {1, 2}):
        with pytest.raises((ValueError, TypeError)):
            write_json(path, {"new": value})
    assert read_json(path, "f", 2)["schema"] == 2
    none = tmp_path / "none/a.json"
    said = f"{none}: cannot be written: No such file or directory; make room, or choose another place"
    assert told(write_json, none, {}) == said
    assert everything(tmp_path) == ["a.json"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *((text, "not a document of format 'f'") for text in ('{"format": "f"}', '{"format": "f", "schema": true}')),
        ('{"format": "f", "schema": 1}', "schema 1 was written by dpltm before 0.3; make it again"),
        ('{"format": "f", "schema": 3}', "schema 3 is newer than this version of dpltm reads (2); upgrade dpltm"),
        *((text, "not a document of format 'f'") for text in ('{"format": "g", "schema": 1}', '["format", "f"]', "5")),
        *((text, "not valid JSON") for text in ("", "{", "hello", '{"schema": ' + "9" * 5000 + "}")),
        ('{"format": "f", "schema": 1, "x": Infinity}', "not valid JSON"),
        ('{"format": "f", "schema": 1, "x": {"a": 1, "b": 2, "a": 3}}', "not valid JSON"),
        ('{"format": "f", "schema": 1, "x": [[{"a": 1, "\\u0061": 1}]]}', "not valid JSON"),
    ],
)
def test_documents_that_are_refused(tmp_path, text, message):
    """Of a key that stands twice readers differ in which they take, so neither is taken."""
    path = tmp_path / "a.json"
    path.write_text(text)
    assert told(read_json, path, "f", 2) == f"{path}: {message}"


def refused(path, *arguments):
    message = told(read_bytes, path, *arguments)
    assert message.startswith(f"{path}: ")
    return message.removeprefix(f"{path}: ")


def test_links_are_not_followed(tmp_path):
    (tmp_path / "a").write_bytes(b"hello")
    for name, target in (("b", "a"), ("c", "nowhere"), ("d", "."), ("e", "e"), ("f", "/dev/zero")):
        (tmp_path / name).symlink_to(target)
        assert refused(tmp_path / name, 10) == "is a link, which is not followed"
    (tmp_path / "g").hardlink_to(tmp_path / "a")
    assert read_bytes(tmp_path / "g", 10) == b"hello"


@pytest.fixture
def soon():
    """Ends a test that hangs."""
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it hangs"))
    signal.alarm(10)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("soon")
def test_pipes_devices_sockets_and_folders(tmp_path, monkeypatch):
    """Nothing of them is read, waited for, or left open."""
    monkeypatch.chdir(tmp_path)  # names of sockets are short
    os.mkfifo("pipe")
    before = len(os.listdir("/proc/self/fd"))
    assert refused(Path("pipe"), 10) == "is not a plain file"
    writer = os.open("pipe", os.O_RDWR | os.O_NONBLOCK)
    os.write(writer, b"hello")
    assert refused(Path("pipe"), 10) == "is not a plain file"
    os.close(writer)
    for device in ("/dev/zero", "/dev/null"):
        assert refused(device, 10) == "is not a plain file"
    for path, why in (
        *((tmp_path, "Is a directory"), (Path("pipe/a"), "Not a directory")),
        (Path("none"), "No such file or directory"),
    ):
        assert refused(path, 10) == f"cannot be read: {why}"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("s")
        assert refused(Path("s"), 10).startswith("cannot be read: ")
    Path("a").write_bytes(b"hello")
    refused(Path("a"), 4)
    assert len(os.listdir("/proc/self/fd")) == before


def refused_within(size, path):
    """The refusal of a document, while which Python held less than ``size`` bytes."""
    tracemalloc.start()
    try:
        message = told(read_json, path, "f", 1)
        assert tracemalloc.get_traced_memory()[1] < size
        return message
    finally:
        tracemalloc.stop()


def test_bombs(tmp_path):
    """What is too large is not read; what is as large as a document may be takes some tens of times the file."""
    path = tmp_path / "a.json"
    path.touch()
    for size in (2**21 + 1, 2**38):
        os.truncate(path, size)
        why = f"{size} bytes, where 0 to 2097152 are expected; damaged, or not what it claims"
        assert refused_within(2**20, path) == f"{path}: {why}"
    long = b'{"format": "f", "schema": ' + b"1" * 2_000_000 + b"}"
    for data in (b"[" * 2**20 + b"]" * 2**20, b'{"a":' * 2**18, long):
        path.write_bytes(data)
        assert refused_within(2**28, path).startswith(f"{path}: not ")
