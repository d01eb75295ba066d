"""Where trials run: in processes of this machine (joblib's loky), or on a Dask cluster. Each is an independent call.

Both hand calls to their processes by pickle, which runs what it is sent: connect to a scheduler that is your own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import dataclass
from typing import Any, Protocol

from joblib.externals.loky import cpu_count, get_reusable_executor  # what joblib.Parallel runs on, without its levels

from dpltm.errors import InputError, first_line
from dpltm.experiments.recipe import Trial
from dpltm.experiments.shared import Task, name_of, needs_of

MAX_JOBS = 1024

CONNECT_SECONDS = 10
"""Time for a scheduler to answer."""

THREADS = (
    *(f"{library}_NUM_THREADS" for library in ("OMP", "OPENBLAS", "MKL", "BLIS", "NUMBA", "NUMEXPR")),
    "VECLIB_MAXIMUM_THREADS",
)
"""What libraries of numbers read when they are loaded."""

IDLE_SECONDS = 300
"""Time after which a process with nothing to do ends, as does one whose parent was killed."""

Attempt = Callable[[Task], None]


class Engine(Protocol):
    """Runs calls that need nothing of each other, but for an order."""

    def run(self, attempt: Attempt, ordered: Mapping[str, Task]) -> Iterator[None]:
        """Calls ``attempt`` for every task, each after what it needs; yields when one has come back.

        Raises:
            BrokenExecutor: a process died over one of them; the others may not have come back.
        """
        ...


@dataclass(frozen=True)
class Processes:
    """Processes of this machine; this process alone where there is one job.

    Attributes:
        jobs: how many.
        session: names the sweep, so that the processes of an earlier one, with its datasets, are not taken over.
    """

    jobs: int
    session: str

    def run(self, attempt: Attempt, ordered: Mapping[str, Task]) -> Iterator[None]:
        """See :class:`Engine`. A free process takes the first task that can be made, those that others need first."""
        if self.jobs == 1:
            for task in ordered.values():
                attempt(task)
                yield
            return
        left = dict(sorted(ordered.items(), key=lambda item: isinstance(item[1], Trial)))
        needs = {name: {name_of(need) for need in needs_of(task)} & ordered.keys() for name, task in left.items()}
        running, done, back = dict[Any, str](), set[str](), list[Any]()
        with warnings.catch_warnings(), _quiet_when_interrupted(), self._pool() as pool:
            # loky warns of processes that it replaces
            warnings.filterwarnings("ignore", category=UserWarning, module="joblib")
            while left or running or back:
                able = [name for name in left if needs[name] <= done][: self.jobs - len(running)]
                running |= {pool.submit(attempt, left.pop(name)): name for name in able}
                for future in back:
                    future.result()
                    yield
                back = list(wait(running, return_when=FIRST_COMPLETED).done)
                done |= {running.pop(future) for future in back}

    @contextlib.contextmanager
    def _pool(self) -> Iterator[Any]:
        """They share the processors, unless the environment says otherwise, and stay for what this session runs next.

        Where the block is left by an error they are killed, here: loky needs psutil or pgrep for that, and hangs without.
        """
        threads = str(max(1, cpu_count() // self.jobs))
        limits = {name: os.environ.get(name, threads) for name in THREADS}
        try:
            pool = get_reusable_executor(
                self.jobs, timeout=IDLE_SECONDS, initializer=_leave_interrupts, initargs=(self.session,), env=limits
            )
        except (OSError, NotImplementedError) as error:
            raise InputError(
                f"`jobs`: no processes can be started here ({first_line(error)}); take `jobs` 1"
            ) from None
        try:
            yield pool
        except BaseException:
            for process in list(pool._processes.values()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
            pool.shutdown(kill_workers=True)
            raise


@contextlib.contextmanager
def _quiet_when_interrupted() -> Iterator[None]:
    """Drops what the pool's own threads raise where Ctrl-C takes their processes away; other threads are heard."""
    before = threading.excepthook

    def hook(failure: threading.ExceptHookArgs) -> None:
        if not type(failure.thread).__module__.startswith("joblib."):
            before(failure)

    threading.excepthook, interrupted = hook, False
    try:
        yield
    except KeyboardInterrupt:
        interrupted = True  # they may still be at it: the hook stays
        raise
    finally:
        if not interrupted:
            threading.excepthook = before


def _leave_interrupts(session: str) -> None:
    """Ctrl-C reaches every process of a terminal; the one that started the others ends them."""
    del session
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@dataclass(frozen=True)
class DaskCluster:
    """The workers of a Dask scheduler.

    A task whose worker dies goes to another one, as Dask has it; a trial that was begun is not begun again.

    Attributes:
        address: of the scheduler.
        client: connected to it.
    """

    address: str
    client: Any

    def run(self, attempt: Attempt, ordered: Mapping[str, Task]) -> Iterator[None]:
        """See :class:`Engine`.

        Raises:
            InputError: its workers cannot run what they are sent.
        """
        distributed = _distributed()
        futures: dict[str, Any] = {}
        for name, task in ordered.items():
            needs = [futures[name_of(need)] for need in needs_of(task) if name_of(need) in futures]
            key = f"{name}-{uuid.uuid4().hex}"
            futures[name] = self.client.submit(_after, attempt, task, needs, key=key, pure=False)
        for future in distributed.as_completed(futures.values(), loop=self.client.loop):
            error = future.exception() if future.status == "error" else None
            if error is not None and not isinstance(error, distributed.KilledWorker):
                raise InputError(
                    f"`scheduler`: {self.address}: a worker cannot run what it is sent ({type(error).__name__}:"
                    f" {first_line(error)}); start it with this version of dpltm, where this folder is"
                )
            yield


@contextlib.contextmanager
def dask_cluster(address: str) -> Iterator[DaskCluster]:
    """The workers of a Dask scheduler, for as long as the block lasts.

    Raises:
        InputError: Dask is not installed, or no scheduler answers.
    """
    client, why = None, ""
    try:
        client = _distributed().Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:
        why = first_line(error)
    if client is None:  # not within the except clause: its error would keep half a client alive
        raise InputError(f"`scheduler`: {address}: no Dask scheduler answers ({why}); start one with dask scheduler")
    with client:
        yield DaskCluster(address, client)


def _after(attempt: Attempt, task: Task, needs: list[None]) -> None:
    """Dask calls this when what ``needs`` stand for has been made."""
    del needs
    attempt(task)


def _distributed() -> Any:
    """Dask, which is an optional part."""
    try:
        import distributed
    except ImportError:
        raise InputError("`scheduler`: needs Dask, which is not installed; pip install 'dpltm[dask]'") from None
    return distributed


def check_jobs(jobs: int | None) -> None:
    """Raises InputError for a number of processes that cannot be meant."""
    if jobs is not None and not 1 <= jobs <= MAX_JOBS:
        raise InputError(f"`jobs`: {jobs} is not from 1 to {MAX_JOBS}")
