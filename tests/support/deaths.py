"""Processes that die the moment before they change something on disk: at each such moment, one after the other."""

import gc
import os
import shutil
import stat
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.chmod")
"""What the interpreter reports of changes (``sys.addaudithook``), beside files that are opened to be written."""

CALLS = ("open", "write", "fsync", "replace", "rename", "unlink", "ftruncate", "mkdir")
"""What code that writes with care calls: functions of ``os``."""

DIED = 9

End = Literal["kill", "torn", "power"]
"""How a process ends:

- ``kill``: what it wrote is there.
- ``torn``: the same, and half of what it was about to write.
- ``power``: the machine loses power, and the disk has nothing but what it was asked to put there (``Disk``).
"""


def dies_at(number: int, work: Callable[[], object], folder: Path) -> bool:
    """Does some work in a process of its own, which ends before its nth change of what lies in a folder, from 1 on.

    Returns whether it died; False where it had come to its end before.
    """
    left, here = number, os.path.realpath(folder)

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal left
        opens = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        changed = arguments[0] if opens or event in CHANGES else None
        if isinstance(changed, (str, os.PathLike)) and os.path.realpath(changed).startswith(here):
            left -= 1
            if left == 0:
                os._exit(DIED)

    def watched() -> None:
        sys.addaudithook(watch)
        work()

    return in_child(watched) == DIED


def ends_at(number: int, work: Callable[[], object], folder: Path, end: End) -> bool:
    """The same, but in the middle of its nth call of ``CALLS``; where the power goes, what is in the folder is lost."""
    disk = Disk(folder)

    def ended(name: str, inner: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        if end == "torn" and name == "write":
            inner(arguments[0], arguments[1][: len(arguments[1]) // 2])
        if end == "power":
            disk.lose_power()
        os._exit(DIED)

    def watched() -> None:
        for name, call in counted(number, ended, disk.sync).items():
            setattr(os, name, call)
        work()

    return in_child(watched) == DIED


def counted(
    number: int,
    act: Callable[[str, Callable[..., Any], tuple[Any, ...]], object],
    synced: Callable[[Any], object] = lambda _: None,
) -> dict[str, Callable[..., Any]]:
    """Functions of ``os`` in place of ``CALLS``: at the nth call that changes or syncs something, ``act`` comes first."""
    left = number

    def patched(name: str, inner: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal left
            if name != "open" or arguments[1] & (os.O_WRONLY | os.O_RDWR):
                left -= 1
                if left == 0:
                    act(name, inner, arguments)
            result = inner(*arguments, **named)
            if name == "fsync":
                synced(arguments[0])
            return result

        return call

    return {name: patched(name, getattr(os, name)) for name in CALLS}


def in_child(work: Callable[[], object]) -> int:
    """Does some work in a process of its own; returns its exit code, which is 0, or ``DIED``."""
    return in_children(work)[0]


def in_children(*works: Callable[[], object]) -> list[int]:
    """Does each work in a process of its own, all at once; returns their exit codes, each of which is 0, or ``DIED``."""
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in [forked(work) for work in works]]
    assert set(codes) <= {0, DIED}, codes
    return codes


def forked(work: Callable[[], object]) -> int:
    """Begins some work in a process of its own; returns the process's number."""
    if child := os.fork():
        return child
    gc.freeze()  # nothing that the parent holds is looked at again, which would copy all of it
    try:
        work()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


class Disk:
    """What of a folder survives a power cut: contents as of each file's last sync, names as of their folder's.

    A stricter disk than any. What is there at the beginning is on it.

    Args:
        folder: what is in it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._contents = {path.stat().st_ino: path.read_bytes() for path in self._files()}
        self._names = {path: path.stat().st_ino for path in self._files()}

    def _files(self) -> Iterator[Path]:
        return (path for path in self._folder.rglob("*") if path.is_file())

    def sync(self, descriptor: int) -> None:
        """What was synced: a file, or the names in a folder."""
        status = os.fstat(descriptor)
        if not stat.S_ISDIR(status.st_mode):
            for path in self._files():
                if _same(path, status):
                    self._contents[status.st_ino] = path.read_bytes()
            return
        for folder in (self._folder, *self._folder.rglob("*")):
            if _same(folder, status):
                self._names = {path: inode for path, inode in self._names.items() if path.parent != folder}
                self._names |= {path: path.stat().st_ino for path in self._files() if path.parent == folder}

    def lose_power(self) -> None:
        """Leaves what survives; folders do."""
        kept = {path: self._contents.get(inode, b"") for path, inode in self._names.items()}
        modes = {path.stat().st_ino: path.stat().st_mode for path in self._files()}
        folders = [path for path in self._folder.rglob("*") if path.is_dir()]
        names = dict(self._names)
        shutil.rmtree(self._folder)
        for folder in (self._folder, *folders):
            folder.mkdir(exist_ok=True)
        for path, data in kept.items():
            path.write_bytes(data)
            path.chmod(stat.S_IMODE(modes.get(names[path], 0o600)))


def _same(path: Path, status: os.stat_result) -> bool:
    return os.path.samestat(path.stat(), status)
