"""A sweep on disk: a folder of trials, each with its result, that any number of processes may fill at the same time.

    recipe.json                         what the folder is for
    dpltm.ledger.jsonl                  what all of it cost, unless another ledger was named
    members/LABEL/                      a trial: result.json once it is finished; run/
    tickets/NAME/, tune/NAME.toml       what trials share
    locks/, attempts/                   who works on what; what was begun, and why it failed
    results.json, results.md, figure.png

Who works on something holds the lock of its name, which the system takes back from a process that dies. A result is written
whole, last; what has one is finished, and never done again.

The folder may be somebody else's: links in it are not followed, and what is not as it was written is named.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dpltm.errors import ArtifactError
from dpltm.tickets.charts import figure_in
from dpltm.tickets.files import read_json, replaced, write_json
from dpltm.tickets.ledger_file import BESIDE

FORMAT, SCHEMA = "dpltm-sweep", 2
RESULT_FORMAT, RESULT_SCHEMA = "dpltm-sweep-result", 2

PARTS = ("members", "tickets", "tune", "locks", "attempts")


def _being_made(root: Path) -> bool:
    """Tell whether a folder holds nothing but what another process makes first, a moment ago or before it died."""
    if not root.is_dir() or root.is_symlink():
        return False
    paths = list(root.iterdir())
    known = all(path.name in PARTS or path.name.startswith(".recipe.json.") for path in paths)
    return bool(paths) and known and not any(path.is_dir() and any(path.iterdir()) for path in paths)


class SweepFolder:
    """The folder of one recipe."""

    def __init__(self, root: Path, title: str, session: str) -> None:
        self.root, self.session = root, session
        if (root.exists() or root.is_symlink()) and not (root / "recipe.json").is_file() and not _being_made(root):
            raise ArtifactError(f"`out`: {root} exists already and is not of a recipe; choose another name")
        for part in ("recipe.json", BESIDE, *PARTS):
            _refuse_link(root / part)
        try:
            for part in PARTS:
                (root / part).mkdir(parents=True, exist_ok=True)
            locks, trials = (sorted((root / part).iterdir()) for part in ("locks", "members"))
        except OSError as error:
            raise ArtifactError(f"`out`: cannot write to {root}: {error.strerror}; choose another place") from None
        head = {"format": FORMAT, "schema": SCHEMA, "title": title}
        if not (root / "recipe.json").exists():
            write_json(root / "recipe.json", head)
        elif (other := read_json(root / "recipe.json", FORMAT, SCHEMA).get("title")) != title:
            raise ArtifactError(f"`out`: {root} is of another recipe, {other!r}; choose another name")
        for path in trials:  # now, rather than in the middle of the work
            _refuse_link(path)
        for path in locks:
            os.close(_open_lock(path))

    @contextlib.contextmanager
    def lock(self, name: str, *, wait: bool = False) -> Iterator[bool]:
        """Yield whether this process has ``name``, of a trial or of what trials share, to itself within the block."""
        descriptor = _open_lock(self.root / "locks" / f"{name}.lock")
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
                return
            yield True
        finally:
            os.close(descriptor)

    def trial(self, label: str) -> Path:
        """Return the folder of a trial; ArtifactError for a link in its place."""
        path = self.root / "members" / label
        _refuse_link(path)
        return path

    def result(self, label: str) -> dict[str, Any] | None:
        """Return the result of a trial; None while it is not finished, ArtifactError for a damaged one."""
        path = self.trial(label) / "result.json"
        if not path.exists():
            return None
        again = "remove it, and the member is run again"
        try:
            body = read_json(path, RESULT_FORMAT, RESULT_SCHEMA)
        except ArtifactError as error:
            raise ArtifactError(f"{error}; {again}") from None
        fault = _fault(body, label)
        if fault is not None:
            raise ArtifactError(f"{path}: {fault}; {again}")
        return body

    def finish(self, label: str, body: Mapping[str, Any]) -> None:
        """Say that a trial is finished, and what it came to."""
        write_json(self.trial(label) / "result.json", {"format": RESULT_FORMAT, "schema": RESULT_SCHEMA, **body})

    def begin(self, name: str, *, again: bool = False) -> bool:
        """Note that this session makes something, under its lock; False if a process of it died over that."""
        if not again and self.has_begun(name):
            return False
        self.fail(name, None)
        return True

    def has_begun(self, name: str) -> bool:
        """Return whether a trial, or what trials share, was begun in this session."""
        return self._attempt(name).get("session") == self.session

    def fail(self, name: str, why: str | None) -> None:
        """Say that a trial, or what trials share, failed in this session; None that it was begun."""
        head = {"format": RESULT_FORMAT, "schema": RESULT_SCHEMA}
        write_json(self.root / "attempts" / f"{name}.json", {**head, "session": self.session, "why": why})

    def failure(self, name: str) -> str | None:
        """Return why a trial, or what trials share, failed in this session, if it did."""
        return None if not self.has_begun(name) else self._attempt(name).get("why")

    def _attempt(self, name: str) -> dict[str, Any]:
        path = self.root / "attempts" / f"{name}.json"
        return read_json(path, RESULT_FORMAT, RESULT_SCHEMA) if path.exists() else {}

    def make(self, label: str) -> Path:
        """Return the folder of a trial, made if it is not there; ArtifactError for a link in it."""
        folder = self.trial(label)
        folder.mkdir(exist_ok=True)
        for path in folder.iterdir():
            _refuse_link(path)
        return folder

    def write_text(self, name: str, text: str) -> None:
        """Write a file of the whole sweep, in place of an earlier one."""
        with replaced(self.root / name) as staging:
            staging.write_text(text, encoding="utf-8")


def is_sweep(path: Path) -> bool:
    """Return whether a folder is of a recipe."""
    return (path / "recipe.json").is_file() and (path / "members").is_dir()


def _fault(body: Mapping[str, Any], label: str) -> str | None:
    seed, digest = body.get("seed"), body.get("digest")
    if not (isinstance(body.get("arm"), str) and isinstance(digest, str) and re.fullmatch("[0-9a-f]{64}", digest)):
        return "damaged: 'arm' or 'digest' is missing, or is no text"
    if type(seed) is not int or not label.endswith(f"-s{seed}-{digest[:8]}"):
        return "of another member"
    try:
        known = figure_in(body["train"]["privacy"]["certified"]["epsilon"]) is not None
    except (KeyError, TypeError):
        known = False
    return None if known else "damaged: it has no train.privacy.certified.epsilon"


def _refuse_link(path: Path) -> None:
    """Raise ArtifactError for a link: what is written or removed there would be elsewhere."""
    if path.is_symlink():
        raise ArtifactError(f"{path}: is a link, which is not followed; remove it, or choose another `out`")


def _open_lock(path: Path) -> int:
    """Return a descriptor of a lock, made if it is not there; ArtifactError if it is no plain file."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        link = error.errno == errno.ELOOP
        why = "is a link, which is not followed" if link else f"cannot be opened: {error.strerror}"
        raise ArtifactError(f"{path}: {why}; remove it, or choose another `out`") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ArtifactError(f"{path}: is not a plain file; remove it, or choose another `out`")
    return descriptor
