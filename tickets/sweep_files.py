"""A sweep on disk: a folder of members, each with its result, that any number of processes may fill together.

    recipe.json                         what the folder is for
    members/LABEL/                      result.json once it is finished; run/, ledger.jsonl
    tickets/NAME/, tune/NAME.toml       what members share
    locks/, failed/                     who works on what; what failed, and why
    results.json, results.md, figure.png

Who works on something holds the lock of its name, which the system takes back from a process that dies. A result is written
whole, last; what has one is finished, and never done again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dpltm.errors import ArtifactError
from dpltm.tickets.files import read_json, write_json

FORMAT, SCHEMA = "dpltm-sweep", 1
RESULT_FORMAT, RESULT_SCHEMA = "dpltm-sweep-result", 1


class SweepFolder:
    """The folder of one recipe.

    Args:
        root: it; made if it is not there.
        title: of the recipe.
        session: names this attempt: what failed in an earlier one is tried again.

    Raises:
        ArtifactError: something else is there, or it cannot be written.
    """

    def __init__(self, root: Path, title: str, session: str) -> None:
        self.root, self.session = root, session
        if (root.exists() or root.is_symlink()) and not (root / "recipe.json").is_file():
            raise ArtifactError(f"--out: {root} exists already and is not of a recipe; choose another name")
        try:
            for part in ("members", "tickets", "tune", "locks", "failed"):
                (root / part).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ArtifactError(f"--out: cannot write to {root}: {error.strerror}; choose another place") from None
        head = {"format": FORMAT, "schema": SCHEMA, "title": title}
        if not (root / "recipe.json").exists():
            write_json(root / "recipe.json", head)
        elif (found := read_json(root / "recipe.json", FORMAT, SCHEMA).get("title")) != title:
            raise ArtifactError(f"--out: {root} is of another recipe, {found!r}; choose another name")

    @contextlib.contextmanager
    def lock(self, name: str) -> Iterator[bool]:
        """Whether this process has ``name`` to itself within the block; it does not wait for it."""
        path = self.root / "locks" / f"{name}.lock"
        with path.open("w") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True

    def member(self, label: str) -> Path:
        """The folder of a member."""
        return self.root / "members" / label

    def result(self, label: str) -> dict[str, Any] | None:
        """What a finished member came to; None while it is not."""
        path = self.member(label) / "result.json"
        return read_json(path, RESULT_FORMAT, RESULT_SCHEMA) if path.exists() else None

    def finish(self, label: str, body: Mapping[str, Any]) -> None:
        """Says that a member is finished, and what it came to."""
        write_json(self.member(label) / "result.json", {"format": RESULT_FORMAT, "schema": RESULT_SCHEMA, **body})

    def begin(self, label: str) -> bool:
        """Makes room for a member, under its lock; False if a process of this session died over it.

        What an earlier attempt left is removed, but for its ledger: what was spent stays on record.
        """
        folder = self.member(label)
        folder.mkdir(exist_ok=True)
        started = folder / "started.json"
        if started.exists() and read_json(started, RESULT_FORMAT, RESULT_SCHEMA).get("session") == self.session:
            return False
        ledger = folder / "ledger.jsonl"
        if ledger.exists():
            number = 1 + sum(1 for _ in folder.glob("ledger-attempt-*.jsonl"))
            ledger.rename(folder / f"ledger-attempt-{number}.jsonl")
        self._mark(started, "")
        return True

    def fail(self, name: str, why: str) -> None:
        """Says that ``name``, a member or what members share, failed in this session."""
        self._mark(self.root / "failed" / f"{name}.json", why)

    def failure(self, name: str) -> str | None:
        """Why ``name`` failed in this session, if it did."""
        path = self.root / "failed" / f"{name}.json"
        if not path.exists():
            return None
        body = read_json(path, RESULT_FORMAT, RESULT_SCHEMA)
        return str(body.get("why")) if body.get("session") == self.session else None

    def _mark(self, path: Path, why: str) -> None:
        body = {
            "format": RESULT_FORMAT,
            "schema": RESULT_SCHEMA,
            "session": self.session,
            "why": why,
            "pid": os.getpid(),
        }
        write_json(path, body)

    def ledgers(self, label: str) -> list[Path]:
        """All ledgers of a member, those of attempts that came to nothing included."""
        return sorted(self.member(label).glob("ledger*.jsonl"))

    def write_text(self, name: str, text: str) -> Path:
        """Writes a file of the whole sweep, in place of an earlier one."""
        path = self.root / name
        staging = path.with_name(f".{name}.{os.getpid()}")
        try:
            staging.write_text(text, encoding="utf-8")
            os.replace(staging, path)
        except OSError as error:
            staging.unlink(missing_ok=True)
            raise ArtifactError(f"{path}: cannot be written: {error.strerror}") from None
        return path
