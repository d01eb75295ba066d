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
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpltm.cli.common import PER_USER, DataOptions, model_spec
from dpltm.cli.console import Console
from dpltm.cli.generate import GenerateOptions, check_schedule
from dpltm.cli.member import Busy, Maker
from dpltm.cli.options import resolve, section_problems
from dpltm.cli.recipe import (
    Arm,
    Member,
    Recipe,
    Section,
    chain,
    data_of,
    dataset_of,
    problems_error,
    provenance,
    train_options,
)
from dpltm.cli.train import TrainOptions
from dpltm.errors import DpltmError, InputError

if TYPE_CHECKING:
    from dpltm.data import Dataset
    from dpltm.models import ModelSpec
    from dpltm.privacy.events import DatasetRef
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


def check_ready(recipe: Recipe, known: Sequence[str] = ()) -> dict[str, DatasetRef]:
    """Reads every dataset, and sees whether networks fit them, before anything starts.

    Args:
        recipe: what is to be run.
        known: what is known to be wrong with it, to be said along.

    Returns:
        What each arm trains on, by its name.

    Raises:
        InputError: all that is missing, in one message.
    """
    from dpltm.cli.train_plan import check_records
    from dpltm.data import by_user
    from dpltm.tickets.identity import reference

    problems = list(known)
    records: dict[str, DatasetRef] = {}
    loaded: dict[str, Dataset | None] = {}
    gone: set[str] = set()

    def read(section: Section, where: str) -> Dataset | None:
        name, source = repr(sorted(data_of(section).items())), str(section.get("dataset"))
        if name not in loaded:
            loaded[name] = None
            if section_problems(DataOptions, data_of(section)) or source in gone:  # noted before
                return None
            try:
                loaded[name] = dataset_of(section, recipe.path)
            except DpltmError as error:
                problems.append(f"{where} {error}")
                if not str(error).startswith("--"):  # it is not the options: nothing of that name can be had
                    gone.add(source)
        return loaded[name]

    def trained(arm: Arm, dataset: Dataset, where: str) -> None:
        plain = {key: arm.train[key] for key in arm.train if not section_problems(TrainOptions, {key: arm.train[key]})}
        try:
            options = train_options({**plain, "dense": True}, str(recipe.path))
            if options.unit == "user":
                dataset = by_user(dataset, options.per_user or PER_USER)
            check_records(options, dataset)
        except DpltmError as error:
            problems.append(f"{where} {error}")
        records[arm.name] = reference(dataset, make_key=False)
        if dataset.test is None:
            problems.append(f"{where} --dataset: {dataset.name} has no test records, by which its row is measured")
        if recipe.measure == "rmse" and not dataset.rated:
            problems.append(f"{where} --dataset: {dataset.name} holds no ratings, so it has no rmse, [recipe] measure")

    def disjoint(section: Section, arm: Arm, what: str) -> None:
        source, ours = read(section, what), records.get(arm.name)
        if source is not None and ours is not None and (shared := reference(source, make_key=False)).may_overlap(ours):
            problems.append(
                f"{what} --dataset: {shared} is declared public and shares records with {ours}, which [[arm]] {arm.name!r}"
                " trains on; give them different --subset or --dataset"
            )

    def fits(
        section: Section, dataset: Dataset | None, where: str, check: Callable[[ModelSpec], None] | None = None
    ) -> None:
        model = section.get("model", "mlp:300,100")
        if dataset is None or section.get("features") not in (None, "none") or not isinstance(model, str):
            return
        try:
            spec = model_spec(model, dataset)
            if check is not None:
                check(spec)
        except DpltmError as error:
            problems.append(f"{where} {error}")

    for name, section in recipe.tickets.items():
        where = f"[tickets.{name}]"
        dataset = read({"dataset": "digits", **section} if "from" not in section else section, where)
        if "from" not in section and not section_problems(GenerateOptions, section):
            options = resolve(GenerateOptions, {}, section, str(recipe.path))
            fits(section, dataset, where, partial(check_schedule, options))
        _check_public(section, read, where)
    for arm in recipe.arms:
        where = f"[[arm]] {arm.name!r}"
        if arm.latent is not None:
            read(arm.latent["encode"], f"{where} latent.encode")
            continue
        dataset = read(arm.train, f"{where} train")
        if dataset is not None:
            trained(arm, dataset, f"{where} train")
        if arm.tickets is None:
            fits(arm.train, dataset, f"{where} train")
            _check_public(arm.train, read, f"{where} train")
        elif provenance(recipe.tickets, arm.tickets) == "public":
            root = {"dataset": "digits", **chain(recipe.tickets, arm.tickets)[-1]}
            disjoint(root, arm, f"[tickets.{arm.tickets}]")
        if arm.tune is not None:
            disjoint(arm.tune, arm, f"{where} tune")
    if problems:
        raise problems_error(recipe.path, problems)
    return records


def check_same_records(recipe: Recipe, folder: SweepFolder, records: Mapping[str, DatasetRef]) -> None:
    """Raises InputError where a finished member was trained on other records than those at hand: rows would mix them."""
    for member in recipe.members:
        had = (folder.result(member.label) or {}).get("records")
        now = records.get(member.arm.name)
        if had and now and had["key_id"] == now.key_id and had["fingerprint"] != now.fingerprint:
            raise InputError(
                f"--out: {folder.member(member.label)} was trained on other records than those of {now.name} at hand; take"
                " another --out, or remove its result.json (not its ledger), to have it run again"
            )


def _check_public(section: Section, read: Callable[[Section, str], Any], where: str) -> None:
    if section.get("public") is not None:
        read({"dataset": section["public"]}, f"{where} public:")


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
    maker = Maker(folder, Console(quiet=True))
    members = list(recipe.members)
    at = rank * len(members) // size
    left = members[at:] + members[:at]  # each process begins elsewhere
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
            folder.fail(member.label, str(error))
        except Exception as error:  # one member's fault is not the others'
            if os.environ.get("DPLTM_DEBUG"):
                raise
            folder.fail(member.label, f"internal error: {type(error).__name__}: {error}")
    return True


def check_jobs(jobs: int | None) -> None:
    """Raises InputError for a number of processes that cannot be meant."""
    if jobs is not None and not 1 <= jobs <= MOST_JOBS:
        raise InputError(f"--jobs: {jobs} is not from 1 to {MOST_JOBS}")
