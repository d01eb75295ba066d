"""Checkpoints on disk: ``.NAME.checkpoint`` beside the result that work is to become, for its owner alone.

    checkpoint.safetensors      the last checkpoint, replaced whole (docs/formats.md)

The folder is locked as long as somebody works, and gone when the result is there. ``privacy.checkpoint`` says what it may
reach, and whom.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from dpltm.errors import ArtifactError, InputError, Interrupted
from dpltm.networks.state import content_id
from dpltm.privacy.checkpoint import AGAIN, Checkpoint, Checkpoints, check_same
from dpltm.progress import Progress
from dpltm.tickets import files

FORMAT, SCHEMA, FILE = "dpltm-checkpoint", 1, "checkpoint.safetensors"

EVERY = 5.0  # seconds between checkpoints, for which whoever waits for figures has to wait as well
SHARE = 0.02  # of the time, at most, that writing them takes
UNBOUND = ("out", "plot", "fresh", "resume", "dry_run")  # options that do not say what the work is


def checkpoint_path(target: Path) -> Path:
    """Return the place of checkpoints of what is to become ``target``."""
    return target.parent / f".{target.name}.checkpoint"


def is_begun(target: Path) -> bool:
    """Tell whether there are checkpoints of what is to become ``target``."""
    folder = checkpoint_path(target)
    return os.path.isdir(folder) and not os.path.islink(folder)  # of a name that is too long, Path.is_dir raises


def remove_ended(target: Path) -> None:
    """Remove the checkpoints of a result that is there, where a process died before it did that itself."""
    folder = checkpoint_path(target)
    if is_begun(target) and (descriptor := files.lock(folder)) is not None:
        _wipe(folder / FILE)
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


class CheckpointFolder(Checkpoints):
    """The checkpoints of one result, for the length of a block. See :class:`dpltm.privacy.checkpoint.Checkpoints`.

    Within the block, Ctrl-C and SIGTERM wait for the next ``offer``, which keeps a checkpoint and ends the work. A second
    one ends it at once.

    Args:
        request: options of the command. Work goes on with the same only.

    Attributes:
        interrupted: whether an earlier attempt did not come to its end here, with a checkpoint or without.

    Raises:
        ArtifactError: on entry, ``target`` exists, a checkpoint is damaged, or another process is at work on it.
        InputError: on entry, a checkpoint was begun with other options, or there is none and there must be.
    """

    def __init__(self, target: Path, request: Any, progress: Progress) -> None:
        self._target = target
        self._folder = checkpoint_path(target)
        self._progress = progress
        self._file = self._folder / FILE
        options = asdict(request)
        self._fresh, self._resumes, self._dry = (options.get(name, False) for name in ("fresh", "resume", "dry_run"))
        command = f"{type(request).__module__}.{type(request).__name__}"
        self._of = {"command": command} | {name: options[name] for name in options if name not in UNBOUND}
        self._lock: int | None = None
        self._last: Checkpoint | None = None
        self._next, self._asked = 0.0, False
        self._handlers: dict[int, Any] = {}
        self._new_parents: list[Path] = []
        super().__init__()
        self.interrupted = False

    def __enter__(self) -> CheckpointFolder:
        if self._resumes and self._fresh:
            raise InputError("`resume`, `fresh`: one goes on, the other begins again; give one of them")
        if is_begun(self._target):
            self._acquire()
            self.interrupted = True
            try:
                self._open()
            except BaseException:
                self._release()
                raise
            return self
        files.check_free(self._target)
        if self._resumes:
            raise InputError(
                f"`resume`: {self._target} was not begun, so there is nothing to go on from; leave it out"
            )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        self._leave_signals()
        if self._lock is not None and not self._file.exists():
            shutil.rmtree(self._folder, ignore_errors=True)
            files.remove_empty(self._new_parents)
        self._release()
        if kind is KeyboardInterrupt and self._last is not None:
            raise self._interrupted() from None

    def keep(self, checkpoint: Checkpoint) -> None:
        """See :meth:`Checkpoints.keep`."""
        if self._lock is None:
            self._begin()
        self._take_signals()
        began = time.monotonic()
        self._write(checkpoint)
        self._last = checkpoint
        now = time.monotonic()
        self._next = now + max(EVERY, (now - began) / SHARE)

    def offer(self, make: Callable[[], Checkpoint]) -> bool:
        """See :meth:`Checkpoints.offer`. Where the disk is full, the last checkpoint stays, and nothing is told."""
        self._take_signals()
        if not self._asked and time.monotonic() < self._next:
            return False
        saved = True
        try:
            self.keep(make())
        except ArtifactError as error:
            self._next, saved = time.monotonic() + EVERY, False
            self._progress.say(f"no checkpoint could be written, and the last one stays: {error}")
        if self._asked:
            raise self._interrupted()
        return saved

    def forget(self) -> None:
        """See :meth:`Checkpoints.forget`; a dry run leaves it where it is."""
        self.latest = self._last = None
        if not self._dry:
            _wipe(self._file)
            self._file.unlink(missing_ok=True)

    # the folder

    def _begin(self) -> None:
        self._new_parents = [parent for parent in self._folder.parents if not parent.exists()]  # deepest first
        try:
            self._folder.mkdir(0o700, parents=True)
        except FileExistsError:  # another process came first: it holds the lock, or did
            raise files.taken(self._target) from None
        except OSError as error:
            raise ArtifactError(f"`out`: {files.unwritable(self._folder, error)}") from None
        self._acquire()

    def _open(self) -> None:
        """Read what an interrupted attempt left, or remove it."""
        self._folder.chmod(0o700)
        for path in self._folder.iterdir():
            if path != self._file:
                path.unlink()
        try:
            files.check_free(self._target)
        except ArtifactError:  # that attempt had come to its end
            self.forget()
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        if self._fresh:
            self.forget()
        elif os.path.lexists(self._file):
            self.latest = self._last = self._read()

    def _acquire(self) -> None:
        self._lock = files.lock(self._folder)
        if self._lock is None:
            raise files.taken(self._target)

    def _release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # the file

    def _write(self, checkpoint: Checkpoint) -> None:
        tensors = {name: np.ascontiguousarray(value) for name, value in checkpoint.tensors.items()}
        body = json.dumps({"place": checkpoint.place, "of": self._of, "state": checkpoint.state}, allow_nan=False)
        head = {"format": FORMAT, "schema": str(SCHEMA), "body": body, "digest": _digest(body, tensors)}
        before = os.open(self._file, os.O_WRONLY) if self._file.exists() else None
        try:
            with files.replaced(self._file, 0o600) as staging:
                staging.write_bytes(save_tensors(tensors, head))
            files.sync(self._folder)
            if before is not None:  # its keys tell more than those of the new one
                _overwrite(before)
        finally:
            if before is not None:
                os.close(before)

    def _read(self) -> Checkpoint:
        data = files.read_bytes(self._file, max(8, self._file.lstat().st_size), 8)
        try:
            head = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
            files.check_schema(self._file, {**head, "schema": int(head["schema"])}, FORMAT, SCHEMA)
            tensors = load_tensors(data)
            if head["digest"] != _digest(head["body"], tensors):
                raise ValueError("digest")
            body = json.loads(head["body"])
            checkpoint = Checkpoint(str(body["place"]), dict(body["state"]), tensors)
            of = dict(body["of"])
        except ArtifactError:
            raise
        except (SafetensorError, ValueError, KeyError, TypeError, OverflowError, MemoryError, RecursionError):
            raise ArtifactError(f"{self._file}: damaged; {AGAIN} (what was spent stays spent)") from None
        check_same(of, self._of)
        return checkpoint

    # signals

    def _take_signals(self) -> None:
        """Make Ctrl-C and SIGTERM wait for the next offer; those that are ignored, or kill, stay so."""
        if self._handlers or threading.current_thread() is not threading.main_thread():
            return
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        self._handlers = {number: handler for number, handler in before.items() if callable(handler)}
        for number in self._handlers:
            signal.signal(number, self._asked_to_stop)

    def _leave_signals(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}

    def _asked_to_stop(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        if self._asked:
            self._leave_signals()
            raise KeyboardInterrupt
        self._asked = True

    def _interrupted(self) -> Interrupted:
        assert self._last is not None
        return Interrupted(
            f"interrupted; the same command goes on from {self._last.place}, kept in {self._folder} (for its owner alone);"
            " what the ledger entered stays entered"
        )


def _digest(body: str, tensors: Mapping[str, np.ndarray]) -> str:
    return hashlib.sha256((content_id(tensors) + body).encode()).hexdigest()


def _overwrite(descriptor: int) -> None:
    """Overwrite a checkpoint's head, where its keys are, on disk."""
    size = min(os.fstat(descriptor).st_size, 2**20)
    with contextlib.suppress(OSError):
        os.pwrite(descriptor, bytes(size), 0)
        os.fsync(descriptor)


def _wipe(path: Path) -> None:
    if path.is_file() and not path.is_symlink():
        descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW)
        _overwrite(descriptor)
        os.close(descriptor)
