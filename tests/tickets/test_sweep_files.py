"""The folder of a sweep that somebody else filled: links are refused, and damage is named."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dpltm.errors import ArtifactError
from dpltm.tickets.sweep_files import PARTS, RESULT_FORMAT, RESULT_SCHEMA, SweepFolder
from refusals import told

LABEL = "an-arm-s3-01234567"
BODY: dict[str, Any] = {
    "arm": "An arm!",
    "seed": 3,
    "digest": "01234567" + "89abcdef" * 7,
    "train": {"accuracy": 0.5, "privacy": {"certified": {"epsilon": 1.0}}},
}


@pytest.fixture
def folder(tmp_path: Path) -> SweepFolder:
    return SweepFolder(tmp_path / "s", "T")


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A folder that is none of the sweep's business, with a file in it."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "kept").write_text("kept")
    return tmp_path / "other"


def link_refused(call: Callable[..., object], path: Path, *arguments: object) -> None:
    """Refused by the name of the link, with what helps."""
    message = told(call, *arguments)
    assert message == f"{path}: is a link, which is not followed; remove it, or choose another `out`"


def test_one_process_at_a_time_has_a_sweep(folder: SweepFolder) -> None:
    with folder.alone():
        message = told(lambda: SweepFolder(folder.root, "T").alone().__enter__())
    assert message == f"`out`: another process is at work on {folder.root}; wait for it, or choose another name"
    with folder.alone():
        pass


@pytest.mark.parametrize("name", [*PARTS, f"members/{LABEL}", "dpltm.ledger.jsonl", "recipe.json"])
def test_a_link_is_refused_as_the_folder_is_opened(folder: SweepFolder, other: Path, name: str) -> None:
    """Whether a member is the recipe's or nobody's: all cost is read from every one of them."""
    path = folder.root / name
    if path.exists():
        path.rename(other / "kept-instead")
    path.symlink_to(other / "kept-instead" if (other / "kept-instead").exists() else other)
    before = sorted(other.rglob("*"))
    link_refused(SweepFolder, path, folder.root, "T")
    assert sorted(other.rglob("*")) == before


def test_a_member_that_is_a_link(folder: SweepFolder, other: Path) -> None:
    path = folder.root / "members" / LABEL
    path.symlink_to(other)
    for ask in (folder.make, folder.result, folder.trial):
        link_refused(ask, path, LABEL)


@pytest.mark.parametrize("name", ["run", "tickets"])
def test_a_link_in_a_member(folder: SweepFolder, other: Path, name: str) -> None:
    folder.make(LABEL)
    (folder.trial(LABEL) / name).symlink_to(other / "new")
    link_refused(SweepFolder(folder.root, "T").make, folder.trial(LABEL) / name, LABEL)


def test_text_is_not_written_through_a_name_that_can_be_guessed(folder: SweepFolder, other: Path) -> None:
    for name in ("results.md", f".results.md.{os.getpid()}"):
        (folder.root / name).symlink_to(other / "kept")
    path = folder.root / "results.md"
    folder.write_text("results.md", "new")
    assert (other / "kept").read_text() == "kept"
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o644
    path.unlink()
    path.mkdir()
    before = sorted(folder.root.iterdir())
    assert told(folder.write_text, "results.md", "new").startswith(f"{path}: cannot be written")
    assert sorted(folder.root.iterdir()) == before


def put(folder: SweepFolder, **changes: Any) -> Path:
    path = folder.make(LABEL) / "result.json"
    path.write_text(json.dumps({"format": RESULT_FORMAT, "schema": RESULT_SCHEMA, **BODY, **changes}))
    return path


def certified(epsilon: object) -> dict[str, Any]:
    return {"privacy": {"certified": {"epsilon": epsilon}}}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("train", value) for value in (None, [], {}, {"privacy": {}})),
        *(("train", certified(value)) for value in (None, "nan", "1", True, -1)),
        *(("seed", value) for value in (4, "3", True)),
        *(("digest", value) for value in ("f" * 64, None, "01234567")),
        ("arm", None),
        *(("text", text) for text in ("", "[]", '{"format": "dpltm-sweep-result", "schema": 2}')),
    ],
)
def test_a_result_that_is_damaged(folder: SweepFolder, key: str, value: Any) -> None:
    path = put(folder, **({} if key == "text" else {key: value}))
    if key == "text":
        path.write_text(value)
    message = told(folder.result, LABEL)
    assert message.startswith(f"{path}: ")
    assert message.endswith("; remove it, and the member is run again")


def test_what_a_session_began_it_does_not_begin_again(folder: SweepFolder, other: Path) -> None:
    assert folder.begin("m", "one")
    assert not folder.begin("m", "one")  # the process that began it died
    assert folder.begin("m", "two")
    (folder.root / "attempts/n").symlink_to(other / "kept")
    assert folder.begin("n", "one")
    assert (other / "kept").read_text() == "kept"


def test_a_folder_that_was_being_made(tmp_path: Path) -> None:
    """A process died before it said what its folder is for."""
    (tmp_path / "s").mkdir()
    assert SweepFolder(tmp_path / "s", "T").root == tmp_path / "s"
    (tmp_path / "other/members/mine").mkdir(parents=True)
    with pytest.raises(ArtifactError, match="not of a recipe"):
        SweepFolder(tmp_path / "other", "T")
