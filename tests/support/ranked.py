"""Several ranks as ``torchrun`` starts them, but forked from a process that has imported everything: a start costs nothing.

As a program: reads one request a line, as JSON, and answers with what every rank came to.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from child_processes import PATIENCE, interruptible

HANGS = 300
"""Seconds after which a rank that waits for another is killed."""


@dataclass(frozen=True)
class Ended:
    """A rank that has ended: its exit code, what its work returned, type and message of what it raised, what it printed."""

    code: int
    value: Any
    error: list[str] | None
    out: str
    err: str


class Ranked:
    """The process that forks, for the length of a block."""

    def __enter__(self) -> Ranked:
        command = interruptible([sys.executable, __file__])
        # it imports what lies beside it, under benchmarks/mutants.py too
        around = {**os.environ, "PYTHONSAFEPATH": ""}
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=around)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=PATIENCE)

    def run(self, size: int, work: str, *arguments: Any, folder: Path | None = None) -> list[Ended]:
        """Runs ``module:function`` of ``tests/support`` on so many ranks, with arguments that pass as JSON."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        environment = {name: value for name, value in os.environ.items() if name.startswith(("XDG", "DPLTM"))}
        request = [size, work, arguments, str(folder or Path.cwd()), environment]
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return [Ended(**found) for found in json.loads(self._process.stdout.readline())]


def _serve() -> None:
    importlib.import_module("rank_work").warm()
    for line in sys.stdin:
        size, work, arguments, folder, environment = json.loads(line)
        with tempfile.TemporaryDirectory() as told:
            port = _free_port()
            children = [_child(rank, size, port, work, arguments, folder, environment, told) for rank in range(size)]
            codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
            found = [_found(Path(told), rank, code) for rank, code in enumerate(codes)]
        print(json.dumps(found), flush=True)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _child(
    rank: int,
    size: int,
    port: int,
    work: str,
    arguments: list[Any],
    folder: str,
    environment: dict[str, str],
    told: str,
) -> int:
    if (child := os.fork()) != 0:
        return child
    signal.alarm(HANGS)
    for descriptor, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{told}/{rank}.{name}", os.O_WRONLY | os.O_CREAT), descriptor)
    os.environ.update(environment, RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), TORCHELASTIC_RUN_ID="test")
    os.chdir(folder)
    module, _, function = work.partition(":")
    value, error = None, None
    try:
        value = getattr(importlib.import_module(module), function)(*arguments)
    except BaseException as raised:
        error = [type(raised).__name__, str(raised)]
        traceback.print_exc()
    Path(told, f"{rank}.json").write_text(json.dumps([value, error]))
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
    os._exit(0)


def _found(told: Path, rank: int, code: int) -> dict[str, Any]:
    path = told / f"{rank}.json"
    value, error = json.loads(path.read_text()) if path.exists() else (None, None)
    out, err = ((told / f"{rank}.{name}").read_text() for name in ("out", "err"))
    return {"code": code, "value": value, "error": error, "out": out, "err": err}


if __name__ == "__main__":
    _serve()
