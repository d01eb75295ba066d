"""Processes that die the moment before they change something on disk: at each such moment, one after the other."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.chmod")
"""What the interpreter reports of changes (``sys.addaudithook``), beside files that are opened to be written."""

DIED = 9


def dies_at(number: int, work: Callable[[], object], folder: Path) -> bool:
    """Does some work in a process of its own, which ends before its nth change of what lies in a folder.

    Args:
        number: which change, from 1 on.
        work: what the process does.
        folder: what lies elsewhere does not count.

    Returns:
        Whether it died; False where it had come to its end before.
    """
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        assert code in (0, DIED), code
        return code == DIED
    left, here = number, os.path.realpath(folder)

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal left
        opens = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        changed = arguments[0] if opens or event in CHANGES else None
        if isinstance(changed, (str, os.PathLike)) and os.path.realpath(changed).startswith(here):
            left -= 1
            if left == 0:
                os._exit(DIED)

    try:
        sys.addaudithook(watch)
        work()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)
