"""What the tests of interrupts stand on: a program that they start hears signals, whoever started the tests, and how."""

from __future__ import annotations

import subprocess
import sys

from child_processes import PATIENCE, interruptible

DEAF = """
import signal, subprocess, sys
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
sys.exit(subprocess.run(sys.argv[1:]).returncode)
"""
"""A parent as nohup makes it, and worse."""

ASK = """
import signal
heard = [signal.getsignal(number) is not signal.SIG_IGN for number in (signal.SIGINT, signal.SIGTERM)]
print(heard, len(signal.pthread_sigmask(signal.SIG_BLOCK, set())))
"""


def test_signals_reach_what_a_deaf_parent_starts() -> None:
    def answer(command: list[str]) -> str:
        deaf = [sys.executable, "-c", DEAF, *command]
        return subprocess.run(deaf, capture_output=True, text=True, check=True, timeout=PATIENCE).stdout

    ask = [sys.executable, "-c", ASK]
    assert answer(ask) == "[False, False] 2\n"
    assert answer(interruptible(ask)) == "[True, True] 0\n"
