"""A recipe, run: its members shared among processes, those that are finished left alone.

Every process goes through the members and takes what nobody works on (``tickets.sweep_files`` has the locks), so it does not
matter how many there are, or who started them: ``--jobs`` here, ``torchrun``, or a second terminal.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dpltm.cli.console import Console
from dpltm.cli.member import Busy, Maker
from dpltm.cli.options import in_flags
from dpltm.cli.recipe import Member, Recipe
from dpltm.errors import DpltmError, InputError

if TYPE_CHECKING:
    from dpltm.tickets.sweep_files import SweepFolder

SESSION, CHILD = "DPLTM_SWEEP", "DPLTM_SWEEP_CHILD"
"""Environment of the processes that a sweep starts: its session, and that they are its own."""

PAUSE = 0.3
"""Seconds between two looks at what others do."""

MOST_JOBS = 1024


def world() -> tuple[int, int]:
    """Which process this is, and of how many: as torchrun says it, or the sweep that started it."""
    try:
        rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    except ValueError:
        return 0, 1
    return (rank, size) if 0 <= rank < size else (0, 1)


def session() -> str:
    """A name for this attempt, the same in all processes that were started together, and in no others.

    torchrun may have the same number every time it is started (1, in a container), and restarts its processes itself.
    """
    if os.environ.get(SESSION):
        return os.environ[SESSION]
    if world()[1] == 1:
        return f"{os.getpid()}-{time.time_ns()}"
    said = [os.environ.get(key, "") for key in ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_PORT")]
    return "-".join(["torchrun", str(os.getppid()), _start_of(os.getppid()), *said])


def _start_of(pid: int) -> str:
    """When a process started, in the system's own count; nothing where the system does not say."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return text.rpartition(")")[2].split()[19]  # field 22; the second is its name, in brackets
    except (OSError, IndexError):
        return ""


def sweep(recipe: Recipe, folder: SweepFolder, jobs: int | None, console: Console) -> None:
    """Makes every member that is not finished: here, or shared among processes.

    Members that fail are noted in the folder; the others go on.
    """
    from dpltm.tickets.sweep_files import DIED

    rank, size = world()
    wanted = [member for member in recipe.members if folder.result(member.label) is None]
    if os.environ.get(CHILD):
        work(recipe, folder, rank, size, lambda: None)
        return
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    count = min(jobs or processors, max(1, len(wanted)))
    left = {member.label for member in wanted}
    with console.progress(recipe.title, len(recipe.members)) as step:

        def look() -> None:
            left.difference_update([label for label in left if folder.result(label) is not None])
            failed = sum(folder.failure(label) is not None for label in left)
            step(len(recipe.members) - len(left), f"{failed} failed" if failed else "")

        look()
        if size > 1 or count == 1:
            work(recipe, folder, rank, size, look)
        elif wanted:
            with _workers(recipe, folder, count, max(1, processors // count)) as running:
                while any(worker.poll() is None for worker in running):
                    look()
                    time.sleep(PAUSE)
        look()
    for label in left:
        if folder.failure(label) is None:
            folder.fail(label, DIED)


@contextlib.contextmanager
def _workers(recipe: Recipe, folder: SweepFolder, count: int, threads: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """So many processes that work on the same sweep; whatever ends the block ends them.

    They are a process group each, so that Ctrl-C reaches this process alone, which ends them, wherever they are.
    """
    command = [sys.executable, "-m", "dpltm.cli.main", "run", "--config", str(recipe.path), "--out", str(folder.root)]
    command += ["--seeds", str(recipe.seeds), "--quiet", *(["--quick"] if recipe.quick else [])]
    running = []
    try:
        for rank in range(count):
            own = {SESSION: folder.session, CHILD: "1", "RANK": str(rank), "WORLD_SIZE": str(count)}
            environment = {"OMP_NUM_THREADS": str(threads), **os.environ, **own}
            running.append(subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, process_group=0))
        yield running
    finally:
        for worker in running:
            if worker.poll() is None:
                worker.terminate()
        for worker in running:
            try:
                worker.wait(10)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()


def work(recipe: Recipe, folder: SweepFolder, rank: int, size: int, look: Callable[[], None]) -> None:
    """Makes members until all are finished or have failed, whoever makes them."""
    from dpltm.data import kept

    maker = Maker(folder, Console(quiet=True))
    members = list(recipe.members)
    at = rank * len(members) // size
    left = members[at:] + members[:at]  # each process begins elsewhere
    with kept():
        while left:
            before = len(left)
            left = [member for member in left if not _settled(member, maker, folder)]
            look()
            if len(left) == before:
                time.sleep(PAUSE)


def _settled(member: Member, maker: Maker, folder: SweepFolder) -> bool:
    """Whether a member is finished or has failed; makes it if nobody else does."""

    def known() -> bool:
        return folder.result(member.label) is not None or folder.failure(member.label) is not None

    if known():
        return True
    with folder.lock(member.label) as mine:
        if not mine:
            return False
        if known():
            return True
        try:
            maker.run(member)
        except Busy:
            return False
        except DpltmError as error:
            folder.fail(member.label, in_flags(str(error)))
        except Exception as error:  # one member's fault is not the others'
            if os.environ.get("DPLTM_DEBUG"):
                raise
            # what it says may tell of a record
            folder.fail(member.label, f"internal error: {type(error).__name__}; set DPLTM_DEBUG=1 and run it again")
    return True


def check_jobs(jobs: int | None) -> None:
    """Raises InputError for a number of processes that cannot be meant."""
    if jobs is not None and not 1 <= jobs <= MOST_JOBS:
        raise InputError(f"--jobs: {jobs} is not from 1 to {MOST_JOBS}")
