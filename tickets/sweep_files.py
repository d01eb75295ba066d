"""A sweep on disk: a folder of trials, each with its result, that any number of processes may fill at the same time.

    recipe.json                         what the folder is for
    members/LABEL/                      a trial: result.json once it is finished; run/, ledger.jsonl
    tickets/NAME/, tune/NAME.toml       what trials share
    locks/, started/, failed/           who works on what; what trials share that was begun; what failed, and why
    times/                              how long trials took: for their maker alone
    results.json, results.md, figure.png

Who works on something holds the lock of its name, which the system takes back from a process that dies. A result is written
whole, last; what has one is finished, and never done again.

The folder may be somebody else's: links in it are not followed, and what is not as it was written is named.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import math
import os
import re
import stat
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dpltm.errors import ArtifactError
from dpltm.tickets import journal
from dpltm.tickets.checkpoint_files import checkpoint_path
from dpltm.tickets.files import is_being_written, read_json, replaced, write_json
from dpltm.tickets.ledger_file import open_ledger, rename_ledger
from dpltm.tickets.room import check_room

FORMAT, SCHEMA = "dpltm-sweep", 1
RESULT_FORMAT, RESULT_SCHEMA = "dpltm-sweep-result", 1
ROOM = 2**21
"""Bytes that the folder takes at least; each of its trials asks for its own before it begins."""

ASIDE = "ledger-attempt-{}.jsonl"
"""What the ledger of an attempt that did not go on is called."""

PARTS = ("members", "tickets", "tune", "locks", "started", "failed", "times")


def _being_made(root: Path) -> bool:
    """Whether a folder holds nothing but what another process makes first, a moment ago or before it died."""
    if not root.is_dir() or root.is_symlink():
        return False
    paths = list(root.iterdir())
    known = all(path.name in PARTS or path.name.startswith(".recipe.json.") for path in paths)
    return bool(paths) and known and not any(path.is_dir() and any(path.iterdir()) for path in paths)


class SweepFolder:
    """The folder of one recipe.

    Args:
        root: it; made if it is not there.
        title: of the recipe.
        session: names this attempt: what failed in an earlier one is tried again.

    Raises:
        ArtifactError: something else is there, a link in place of a part of it, or it cannot be written.
    """

    def __init__(self, root: Path, title: str, session: str) -> None:
        self.root, self.session = root, session
        if (root.exists() or root.is_symlink()) and not (root / "recipe.json").is_file() and not _being_made(root):
            raise ArtifactError(f"`out`: {root} exists already and is not of a recipe; choose another name")
        for part in ("recipe.json", *PARTS):
            _refuse_link(root / part)
        if not (root / "recipe.json").exists():
            check_room(root / "recipe.json", ROOM)
            journal.begin(root)  # it is a new one, and so are its ledgers
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
        """Whether this process has ``name`` to itself within the block.

        Args:
            name: of a trial, or of what trials share.
            wait: until whoever has it now is done with it.

        Raises:
            ArtifactError: something else has the place of the lock.
        """
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
        """The folder of a trial.

        Raises:
            ArtifactError: a link has its place.
        """
        path = self.root / "members" / label
        _refuse_link(path)
        return path

    def result(self, label: str) -> dict[str, Any] | None:
        """What a finished trial came to; None while it is not.

        Raises:
            ArtifactError: what is there is damaged, or of another trial.
        """
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
        """Says that a trial is finished, and what it came to."""
        write_json(self.trial(label) / "result.json", {"format": RESULT_FORMAT, "schema": RESULT_SCHEMA, **body})

    def begin(self, label: str, *, again: bool = False, goes_on: bool = False) -> bool:
        """Makes room for a trial, under its lock; False if a process of this session died over it.

        The ledger of an earlier attempt is put aside, and what was spent stays on record; but where its training can go on,
        it goes on with it.

        Args:
            label: of the trial.
            again: begin it even so: it may have been another trial that took the process along.
            goes_on: whether a stage of that attempt has ended, and is not made again.

        Raises:
            ArtifactError: there is a link in it, and what is written there would go elsewhere; or a ledger of an earlier
                attempt is gone, or holds less than when it was last used.
        """
        folder = self.trial(label)
        folder.mkdir(exist_ok=True)
        there = sorted(folder.iterdir())
        for path in there:
            _refuse_link(path)
        if not again and self.has_begun(label):
            return False
        if not there:
            journal.begin(folder)  # its ledger begins anew; what others held stays on record
        self.check_ledgers(label)
        ledger = folder / "ledger.jsonl"
        if ledger.exists() and not goes_on and not checkpoint_path(folder / "run").exists():
            names = (folder / ASIDE.format(number) for number in itertools.count(1))
            rename_ledger(ledger, next(name for name in names if not os.path.lexists(name)))
        self._mark(folder / "started.json", "")
        return True

    def begin_shared(self, name: str, *, again: bool = False) -> bool:
        """Note that this session makes what trials share, under its lock; False if a process of it died over that.

        Args:
            name: of a set or a search.
            again: make it even so: something else may have taken the process along.
        """
        if not again and self.has_begun(name):
            return False
        self._mark(self.root / "started" / f"{name}.json", "")
        return True

    def check_ledgers(self, label: str) -> None:
        """Opens all ledgers of a trial, under its lock: what is missing in them is noticed.

        Raises:
            ArtifactError: one is damaged, gone, or holds less than when it was last used.
        """
        for path in self.trial(label).glob(ASIDE.format("*")):  # who died over one has not had its new name remembered
            rename_ledger(path, path)
        for path in self.ledgers(label):
            open_ledger(path, links=False)

    def has_begun(self, name: str) -> bool:
        """Whether a trial, or what trials share, was begun in this session."""
        started = (self.trial(name) / "started.json", self.root / "started" / f"{name}.json")
        return any(
            path.exists() and read_json(path, RESULT_FORMAT, RESULT_SCHEMA).get("session") == self.session
            for path in started
        )

    def took(self, label: str, seconds: float, threads: int) -> None:
        """Notes how long a trial took, apart from it: that grows with its private number of records.

        Args:
            label: of the trial.
            seconds: of work.
            threads: that worked.
        """
        body = {"format": RESULT_FORMAT, "schema": RESULT_SCHEMA, "work_seconds": seconds, "threads": threads}
        write_json(self.root / "times" / f"{label}.json", body, mode=0o600)

    def work(self, label: str) -> float | None:
        """Seconds of one thread that a trial took; None where that is not known here."""
        path = self.root / "times" / f"{label}.json"
        if not path.exists():
            return None
        try:
            body = read_json(path, RESULT_FORMAT, RESULT_SCHEMA)
        except ArtifactError:
            return None
        seconds, threads = number(body.get("work_seconds")), number(body.get("threads"))
        if seconds is None or threads is None or math.isinf(seconds * threads):
            return None
        return seconds * threads

    def fail(self, name: str, why: str) -> None:
        """Says that ``name``, a trial or what trials share, failed in this session."""
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
        """All ledgers of a trial, those of failed attempts and those that are gone included."""
        return _ledgers_of(self.trial(label))

    def all_ledgers(self) -> list[Path]:
        """Those of all trials, and of the ticket sets, finished or not."""
        return ledgers_in(self.root)

    def write_text(self, name: str, text: str) -> Path:
        """Writes a file of the whole sweep, in place of an earlier one."""
        path = self.root / name
        with replaced(path) as staging:
            staging.write_text(text, encoding="utf-8")
        return path


def ledgers_in(root: Path) -> list[Path]:
    """The ledgers of all trials of the sweep in a folder, and of its ticket sets, finished or not.

    Raises:
        ArtifactError: a link has the place of a trial.
    """
    trials = sorted((root / "members").iterdir())
    for trial in trials:
        _refuse_link(trial)
    sets = root / "tickets"
    own = [path for trial in trials for path in _ledgers_of(trial)]
    finished = [path for path in sets.glob("*/ledger.jsonl") if not is_being_written(path.parent)]
    return own + sorted([*finished, *sets.glob("*.ledger.jsonl")])


def _ledgers_of(trial: Path) -> list[Path]:
    """Those in the folder of a trial, and those that were used there and are gone: whoever opens these is told."""
    if not trial.is_dir():
        return []
    there, folders = set(trial.glob("ledger*.jsonl")), journal.names_of(trial)
    used = {Path(name) for name in journal.look().names if os.path.dirname(name) in folders}
    return sorted(there | {trial / path.name for path in used if path.match("ledger*.jsonl")})


def number(value: object) -> float | None:
    """A number as ``json_figure`` writes it, from 0 on or the text ``inf``; None for anything else."""
    if value == "inf":
        return float("inf")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= sys.float_info.max:
        return None
    return float(value)


def _fault(body: Mapping[str, Any], label: str) -> str | None:
    """What is wrong with the result of a trial, if anything is."""
    arm, seed, digest = (body.get(key) for key in ("arm", "seed", "digest"))
    if not (isinstance(arm, str) and isinstance(digest, str) and re.fullmatch("[0-9a-f]{64}", digest)):
        return "damaged: 'arm' or 'digest' is missing, or is no text"
    if isinstance(seed, bool) or not isinstance(seed, int):
        return "damaged: 'seed' is missing, or is no whole number"
    ending = f"-s{seed}-{digest[:8]}"
    if not label.endswith(ending) or not _reads_like(label.removesuffix(ending), arm):
        return f"of another member: arm {arm!r:.80}, seed {seed}"
    value: object = body
    for key in ("train", "privacy", "certified", "epsilon"):
        value = value.get(key) if isinstance(value, dict) else None
    return "damaged: it has no train.privacy.certified.epsilon" if number(value) is None else None


def _reads_like(name: str, arm: str) -> bool:
    """Whether ``name`` can be the folder's name of an arm: its letters and digits, as many as have room."""
    short, full = (re.sub("[^a-z0-9]", "", text.lower()) for text in (name, arm))
    return full.startswith(short) if full else short == "arm"


def _refuse_link(path: Path) -> None:
    """Raises ArtifactError for a link: what is written or removed there would be elsewhere."""
    if path.is_symlink():
        raise ArtifactError(f"{path}: is a link, which is not followed; remove it, or choose another `out`")


def _open_lock(path: Path) -> int:
    """A descriptor of a lock, made if it is not there.

    Raises:
        ArtifactError: it is no plain file, or cannot be opened.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        why = (
            "is a link, which is not followed" if error.errno == errno.ELOOP else f"cannot be opened: {error.strerror}"
        )
        raise ArtifactError(f"{path}: {why}; remove it, or choose another `out`") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ArtifactError(f"{path}: is not a plain file; remove it, or choose another `out`")
    return descriptor
