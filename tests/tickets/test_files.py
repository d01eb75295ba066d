"""Writing whole or not at all; reading with one clear line for what is not right."""

from __future__ import annotations

import json
import os
import signal
import socket
import tracemalloc
from pathlib import Path

import pytest

from dpltm.errors import ArtifactError
from dpltm.tickets.files import check_free, digest_of, new_file, new_folder, read_bytes, read_json, write_json


def everything(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


# --- new_folder and new_file ---


def test_appears_at_the_end(tmp_path):
    with new_folder(tmp_path / "a") as folder:
        (folder / "x").write_text("hello")
        assert not (tmp_path / "a").exists()
        assert folder.parent == tmp_path
        assert folder.name.startswith(".a.")
    assert everything(tmp_path) == ["a", "a/x"]
    assert (tmp_path / "a/x").read_text() == "hello"
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o755


def test_makes_parents(tmp_path):
    with new_folder(tmp_path / "a/b/c"):
        pass
    assert everything(tmp_path) == ["a", "a/b", "a/b/c"]


def write_into(target):
    with new_folder(target) as folder:
        (folder / "x").write_text("hello")


def write_file(target):
    with new_file(target) as staging:
        staging.write_text("hello")


def told(call, *arguments):
    """The line that a call is refused with."""
    with pytest.raises(ArtifactError) as caught:
        call(*arguments)
    return str(caught.value)


TAKEN = "`out`: {} exists already; choose another name or remove it first"


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
    assert told(attempt, target) == TAKEN.format(target)
    assert everything(tmp_path) == before
    assert "file" not in kind or target.read_text() == "mine"


def test_target_that_appears_meanwhile(tmp_path):
    """Somebody else was quicker: theirs stays, and ours goes."""

    def late():
        with new_folder(tmp_path / "a") as folder:
            (folder / "x").write_text("ours")
            (tmp_path / "a").mkdir()
            (tmp_path / "a/x").write_text("theirs")

    assert told(late) == TAKEN.format(tmp_path / "a")
    assert everything(tmp_path) == ["a", "a/x"]
    assert (tmp_path / "a/x").read_text() == "theirs"


def test_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    for attempt in (write_into, write_file):
        place = tmp_path / "file"
        assert told(attempt, place / "a") == f"`out`: cannot write to {place}: File exists; choose another place"
        assert everything(tmp_path) == ["file"]


def test_a_file_appears_at_the_end(tmp_path):
    with new_file(tmp_path / "b/a.txt") as staging:
        staging.write_text("hello")
        assert not (tmp_path / "b/a.txt").exists()
        assert staging.parent == tmp_path / "b"
        assert staging.name.startswith(".a.txt.")
    assert everything(tmp_path) == ["b", "b/a.txt"]
    assert (tmp_path / "b/a.txt").read_text() == "hello"
    assert (tmp_path / "b/a.txt").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("make", [new_folder, new_file])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_folders_made_for_a_failed_write_go_again(tmp_path, make, error):
    """Those that were there before stay, and so do those that somebody has put something into meanwhile."""
    (tmp_path / "there").mkdir()

    def interrupted(target, meanwhile=None):
        with make(target) as staging:
            if make is new_folder:
                (staging / "deep").mkdir()
                (staging / "deep/x").write_text("half of it")
            else:
                staging.write_text("half of it")
            assert target.parent.is_dir()
            if meanwhile is not None:
                meanwhile.write_text("theirs")
            raise error

    for name in ("a", "there/b/c/a"):
        with pytest.raises(error):
            interrupted(tmp_path / name)
        assert everything(tmp_path) == ["there"]
    with pytest.raises(error):
        interrupted(tmp_path / "there/b/c/a", tmp_path / "there/b/theirs")
    assert everything(tmp_path) == ["there", "there/b", "there/b/theirs"]


@pytest.mark.parametrize("make", [new_folder, new_file])
def test_folders_made_where_another_was_quicker_go_again(tmp_path, make, monkeypatch):
    """Named relative to the working folder."""
    monkeypatch.chdir(tmp_path)

    def late(target):
        with make(target):
            target.mkdir()

    with pytest.raises(ArtifactError, match="exists already"):
        late(Path("b/a"))
    assert everything(tmp_path) == ["b", "b/a"]  # theirs


@pytest.mark.parametrize("make", [new_folder, new_file])
def test_no_folders_are_left_where_nothing_could_be_made(tmp_path, make):
    """A name so long that nothing beside it can have its name and more."""

    def attempt(target):
        with make(target):
            pass

    with pytest.raises(ArtifactError, match="cannot write to"):
        attempt(tmp_path / "b/c" / ("a" * 250))
    assert everything(tmp_path) == []


# --- JSON ---


def test_json_round_trip(tmp_path):
    body = {"format": "f", "schema": 1, "text": "ü\n", "numbers": [1, 0.1, None, True]}
    write_json(tmp_path / "a.json", body)
    assert read_json(tmp_path / "a.json", "f", 1) == body
    assert (tmp_path / "a.json").stat().st_mode & 0o777 == 0o644
    write_json(tmp_path / "a.json", {**body, "schema": 2}, mode=0o600)
    assert read_json(tmp_path / "a.json", "f", 2)["schema"] == 2
    assert (tmp_path / "a.json").stat().st_mode & 0o777 == 0o600
    assert everything(tmp_path) == ["a.json"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), {1, 2}])
def test_what_json_cannot_hold_leaves_the_old_file(tmp_path, value):
    write_json(tmp_path / "a.json", {"old": 1})
    with pytest.raises((ValueError, TypeError)):
        write_json(tmp_path / "a.json", {"new": value})
    assert json.loads((tmp_path / "a.json").read_text()) == {"old": 1}
    assert everything(tmp_path) == ["a.json"]


def test_json_that_cannot_be_written(tmp_path):
    path = tmp_path / "none/a.json"
    assert told(write_json, path, {}) == f"{path}: cannot be written: No such file or directory"
    (tmp_path / "a.json").mkdir()
    told(write_json, tmp_path / "a.json", {})
    assert everything(tmp_path) == ["a.json"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"format": "f"}', "schema None is not a positive whole number"),
        ('{"format": "f", "schema": 1.0}', "schema 1.0 is not a positive whole number"),
        ('{"format": "f", "schema": -1}', "schema -1 is not a positive whole number"),
        ('{"format": "f", "schema": 3}', "schema 3 is newer than this version of dpltm reads (2); upgrade dpltm"),
        ('{"format": "g", "schema": 1}', "not a document of format 'f'"),
        ('["format", "f"]', "not a document of format 'f'"),
        ('{"format": "f", "schema": 1, "x": Infinity}', "not valid JSON"),
        ('{"format": "f", "schema": 1,}', "not valid JSON"),
        ('{"format": "f", "schema": 1, "format": "f"}', "not valid JSON"),
        ('{"format": "f", "schema": 1, "x": {"a": 1, "b": 2, "a": 3}}', "not valid JSON"),
        ('{"format": "f", "schema": 1, "x": [[{"a": 1, "\\u0061": 1}]]}', "not valid JSON"),
    ],
)
def test_documents_that_are_refused(tmp_path, text, message):
    path = tmp_path / "a.json"
    path.write_text(text)
    assert told(read_json, path, "f", 2) == f"{path}: {message}"


def test_documents_that_cannot_be_read(tmp_path):
    for path, reason in ((tmp_path / "no", os.strerror(2)), (tmp_path, os.strerror(21))):
        assert told(read_json, path, "f", 1) == f"{path}: cannot be read: {reason}"


def test_a_key_may_stand_in_several_objects(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{"format": "f", "schema": 1, "x": {"x": 1, "y": [{"x": 2}, {"x": 2}]}}')
    assert read_json(path, "f", 1)["x"] == {"x": 1, "y": [{"x": 2}, {"x": 2}]}


def test_digest_by_hand():
    """Sorted keys, no blanks, everything but the digest: the SHA-256 of a text that stands here."""
    from hashlib import sha256

    text = b'{"a":[1,0.5,null,true],"b":{"x":"\\u00fc","y":-0.0}}'
    body = {"b": {"y": -0.0, "x": "\u00fc"}, "digest": "whatever", "a": [1, 0.5, None, True]}
    assert digest_of(body) == digest_of({**body, "digest": 5}) == sha256(text).hexdigest()


# --- what is no file, or too large ---


@pytest.fixture
def soon():
    """Ends a test that hangs."""

    def late(*_):
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(10)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def refused(path, *arguments):
    message = told(read_bytes, path, *arguments)
    assert message.startswith(f"{path}: ")
    return message.removeprefix(f"{path}: ")


@pytest.mark.parametrize("size", [0, 3, 4, 5, 6])
def test_sizes(tmp_path, size):
    path = tmp_path / "a"
    path.write_bytes(b"x" * size)
    if 4 <= size <= 5:
        assert read_bytes(path, 5, 4) == b"x" * size
    else:
        assert refused(path, 5, 4) == f"{size} bytes, where 4 to 5 are expected; damaged, or not what it claims"


def test_links_are_not_followed(tmp_path):
    (tmp_path / "a").write_bytes(b"hello")
    (tmp_path / "folder").mkdir()
    for name, target in (("b", "a"), ("c", "nowhere"), ("d", "folder"), ("e", "e"), ("f", "/dev/zero")):
        (tmp_path / name).symlink_to(target)
        assert refused(tmp_path / name, 10) == "is a link, which is not followed"
    (tmp_path / "g").hardlink_to(tmp_path / "a")
    assert read_bytes(tmp_path / "g", 10) == b"hello"


@pytest.mark.usefixtures("soon")
def test_pipes_devices_sockets_and_folders(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert refused(tmp_path / "pipe", 10) == "is not a plain file"
    writer = os.open(tmp_path / "pipe", os.O_RDWR | os.O_NONBLOCK)
    os.write(writer, b"hello")
    assert refused(tmp_path / "pipe", 10) == "is not a plain file"
    os.close(writer)
    for device in ("/dev/zero", "/dev/null", "/dev/urandom"):
        assert refused(device, 10) == "is not a plain file"
    assert refused(tmp_path, 10) == "cannot be read: Is a directory"
    assert refused(tmp_path / "pipe/a", 10) == "cannot be read: Not a directory"
    with socket.socket(socket.AF_UNIX) as listening:
        before = os.getcwd()
        os.chdir(tmp_path)  # names of sockets are short
        try:
            listening.bind("s")
        finally:
            os.chdir(before)
        assert refused(tmp_path / "s", 10).startswith("cannot be read: ")


def test_no_descriptor_is_left_open(tmp_path):
    (tmp_path / "a").write_bytes(b"hello")
    os.mkfifo(tmp_path / "pipe")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        read_bytes(tmp_path / "a", 10)
        refused(tmp_path / "a", 4)
        refused(tmp_path / "pipe", 4)
        refused(tmp_path, 4)
    assert len(os.listdir("/proc/self/fd")) == before


def memory_of(call):
    """Most bytes that Python held meanwhile."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_nothing_is_read_of_what_is_too_large(tmp_path):
    path = tmp_path / "a.json"
    for size in (2**21 + 1, 2**38):
        with path.open("wb") as stream:
            stream.truncate(size)

        why = f"{size} bytes, where 0 to 2097152 are expected; damaged, or not what it claims"

        def attempt(why=why):
            assert told(read_json, path, "f", 1) == f"{path}: {why}"

        assert memory_of(attempt) < 2**20


BOMBS = {
    "deep": b"[" * 2**20 + b"]" * 2**20,
    "deep objects": b'{"a":' * 2**18,
    "wide": b"[" + b"[]," * 600_000 + b"[]]",
    "objects": b"[" + b"{}," * 600_000 + b"{}]",
    "one long number": b'{"format": "f", "schema": ' + b"1" * 2_000_000 + b"}",
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs(tmp_path, name):
    """As large as a document may be: one line in answer, and memory of some tens of times the file."""
    path = tmp_path / "a.json"
    path.write_bytes(BOMBS[name][: 2**21])

    def attempt():
        assert told(read_json, path, "f", 1).startswith(f"{path}: not ")

    assert memory_of(attempt) < 2**28
