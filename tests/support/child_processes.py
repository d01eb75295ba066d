"""How tests start programs: with the signals of a program in a terminal, and with patience."""

import sys
from collections.abc import Sequence

PATIENCE = 1200.0
"""Seconds to wait for a program. They end a test that hangs; the slowest processor needs a small part of them."""

_START = """
import os, signal, sys
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
os.execv(sys.argv[1], sys.argv[1:])
"""


def interruptible(command: Sequence[str]) -> list[str]:
    """The command line that runs ``command`` so that SIGINT and SIGTERM reach it.

    A program ignores the signals that its parent ignores (``nohup``, ``&`` in a script), and Python then raises no
    KeyboardInterrupt. A program in between rather than ``preexec_fn``, which may deadlock where there are threads;
    it gives up its place, so that the process keeps its number.

    Args:
        command: the path of a program, and its arguments.
    """
    return [sys.executable, "-I", "-S", "-c", _START, *command]
