"""Writing whole or not at all; reading with one clear line for what is not right."""

from __future__ import annotations

import json
import os

import pytest

from dpltm.errors import ArtifactError
from dpltm.tickets.files import check_free, new_folder, read_json, write_json


def everything(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


# --- new_folder ---


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


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_leaves_nothing_after_an_exception(tmp_path, error):
    def interrupted():
        with new_folder(tmp_path / "a") as folder:
            (folder / "x").write_text("hello")
            (folder / "sub").mkdir()
            raise error

    with pytest.raises(error):
        interrupted()
    assert everything(tmp_path) == []


def write_into(target):
    with new_folder(target) as folder:
        (folder / "x").write_text("hello")


@pytest.mark.parametrize("kind", ["folder", "file", "link", "dangling link"])
def test_existing_target(tmp_path, kind):
    target, elsewhere = tmp_path / "a", tmp_path / "elsewhere"
    if kind == "folder":
        target.mkdir()
    elif kind == "file":
        target.write_text("mine")
    else:
        if kind == "link":
            elsewhere.mkdir()
        target.symlink_to(elsewhere)
    before = everything(tmp_path)
    for attempt in (write_into, check_free):
        with pytest.raises(ArtifactError) as caught:
            attempt(target)
        assert str(caught.value) == f"--out: {target} exists already; choose another name or remove it first"
        assert everything(tmp_path) == before


def test_target_that_appears_meanwhile(tmp_path):
    """Somebody else was quicker: theirs stays, and ours goes."""

    def late():
        with new_folder(tmp_path / "a") as folder:
            (folder / "x").write_text("ours")
            (tmp_path / "a").mkdir()
            (tmp_path / "a/x").write_text("theirs")

    with pytest.raises(ArtifactError) as caught:
        late()
    assert str(caught.value) == f"--out: {tmp_path / 'a'} exists already; choose another name or remove it first"
    assert everything(tmp_path) == ["a", "a/x"]
    assert (tmp_path / "a/x").read_text() == "theirs"


def test_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactError) as caught:
        write_into(tmp_path / "file/a")
    assert str(caught.value) == f"--out: cannot write to {tmp_path / 'file'}: File exists; choose another place"
    assert everything(tmp_path) == ["file"]


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
    with pytest.raises(ArtifactError) as caught:
        write_json(tmp_path / "none/a.json", {})
    assert str(caught.value) == f"{tmp_path / 'none/a.json'}: cannot be written: No such file or directory"


def test_json_that_cannot_be_put_in_place_leaves_nothing(tmp_path):
    (tmp_path / "a.json").mkdir()
    with pytest.raises(ArtifactError):
        write_json(tmp_path / "a.json", {})
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
    ],
)
def test_documents_that_are_refused(tmp_path, text, message):
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(ArtifactError) as caught:
        read_json(path, "f", 2)
    assert str(caught.value) == f"{path}: {message}"


def test_documents_that_cannot_be_read(tmp_path):
    for path, reason in ((tmp_path / "no", os.strerror(2)), (tmp_path, os.strerror(21))):
        with pytest.raises(ArtifactError) as caught:
            read_json(path, "f", 1)
        assert str(caught.value) == f"{path}: cannot be read: {reason}"
