"""Sweeps: finished trials are left alone, failed ones do not stop the others, and any number of processes share the work."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from joblib import Parallel, delayed

import stub_trials
from dpltm.errors import InputError
from dpltm.experiments.recipe import Recipe, Trial, tasks
from dpltm.tickets.sweep_files import SweepFolder
from dpltm.tickets.workbench.sweep import TrialRunner, Workers, dask_workers, sweep
from recipes import read_recipe
from stub_trials import BREAKS, DIES, FAILS, HEAD, SETS, arm, calls, made

FINE = arm("one") + arm("two", lr=1.0) + arm("three", lr=2.0)


def finished(recipe: Recipe, folder: SweepFolder) -> set[str]:
    return {trial.arm.name for trial in recipe.trials if folder.result(trial.name) is not None}


def failures(recipe: Recipe, folder: SweepFolder) -> dict[str, str | None]:
    return {trial.arm.name: folder.failure(trial.name) for trial in recipe.trials if folder.result(trial.name) is None}


def test_what_is_finished_is_left_alone(tmp_path: Path) -> None:
    recipe = read_recipe(HEAD + FINE)
    folder = made(recipe, tmp_path / "s")
    assert calls(folder.root) == [trial.name for trial in recipe.trials]
    made(recipe, tmp_path / "s")
    assert len(calls(folder.root)) == 6
    more = read_recipe(HEAD + FINE, seeds=3)
    made(more, tmp_path / "s")
    assert calls(folder.root)[6:] == [trial.name for trial in more.trials if trial.seed == 2]


def test_what_trials_share_is_made_once_and_first(tmp_path: Path) -> None:
    recipe = read_recipe(HEAD + SETS + arm("x", tickets="b", round=1) + arm("y", tickets="a", round=1) + arm("z"))
    order = calls(made(recipe, tmp_path / "s").root)
    assert len(order) == len(set(order)) == len(tasks(recipe.trials)) == 10

    def place(name: str | None, trial: Trial) -> int:
        return next(place for place, made in enumerate(order) if made.startswith(f"{name}-s{trial.seed}"))

    for trial in recipe.trials:
        if trial.arm.tickets is not None:
            assert place(trial.arm.tickets, trial) < order.index(trial.name)
        if trial.arm.tickets == "b":
            assert place("a", trial) < place("b", trial)


def test_says_what_it_is_at_before_anything_is_finished(tmp_path: Path) -> None:
    told: list[tuple[int, str]] = []

    class Watcher:
        def say(self, text: str) -> None:
            del text

        @contextlib.contextmanager
        def progress(self, title: str, total: int) -> Iterator[Callable[..., None]]:
            assert (title, total) == (recipe.title, 4)
            yield lambda done, note="": told.append((done, note))

    recipe = read_recipe(HEAD + FINE + arm("refused", lr=FAILS), seeds=1)
    folder = SweepFolder(tmp_path / "s", recipe.title, "session")
    sweep(recipe, TrialRunner(folder, stages=stub_trials.STAGES), Workers(1, "session"), Watcher())
    labels = [trial.name for trial in recipe.trials]
    assert told[0] == (0, f"at {labels[0]}")
    assert told[1] == (1, f"at {labels[1]}")
    assert told[-1] == (3, "1 failed")


def test_a_trial_that_fails_is_noted_and_tried_again_next_time(tmp_path: Path) -> None:
    recipe = read_recipe(HEAD + FINE + arm("refused", lr=FAILS) + arm("broken", lr=BREAKS))
    folder = made(recipe, tmp_path / "s")
    assert finished(recipe, folder) == {"one", "two", "three"}
    assert failures(recipe, folder) == {
        "refused": "--lr: is not what it must be",
        "broken": "internal error: ValueError; set DPLTM_DEBUG=1 and run it again",  # and nothing of what it said
    }
    made(recipe, tmp_path / "s")
    assert len(calls(folder.root)) == 10 + 4


def test_a_set_that_fails_is_the_failure_of_its_trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(options: Any, progress: object, **_: object) -> dict[str, Any]:
        del options, progress
        raise InputError("`rounds`: are too many")

    monkeypatch.setitem(stub_trials.STAGES, "generate", refuse)
    recipe = read_recipe(HEAD + SETS + arm("x", tickets="b", round=1) + arm("z"), seeds=1)
    folder = made(recipe, tmp_path / "s")
    assert finished(recipe, folder) == {"z"}
    assert "--rounds: are too many" in str(failures(recipe, folder)["x"])


def test_a_sweep_waits_for_what_another_process_makes(tmp_path: Path) -> None:
    """It makes everything else meanwhile; and what the other one has left after all."""
    recipe = read_recipe(HEAD + FINE, seeds=1)
    folder, first = SweepFolder(tmp_path / "s", recipe.title, "other"), recipe.trials[0]
    held = folder.lock(first.name)
    seen: list[int] = []

    class Watching(Workers):
        def run(self, attempt: Callable[..., None], ordered: Any) -> Iterator[None]:
            seen.append(len(calls(folder.root)))
            if len(seen) == 2:
                held.__exit__(None, None, None)
            return super().run(attempt, ordered)

    assert held.__enter__()
    made(recipe, tmp_path / "s", Watching(1, "s"))
    assert seen == [0, 2]
    assert calls(folder.root)[-1] == first.name


@pytest.mark.long
def test_a_process_that_dies_takes_one_trial_along_and_joblib_is_left_as_it_was(tmp_path: Path) -> None:
    """Other processes are ended then; what they were at is made again."""
    recipe = read_recipe(HEAD + SETS + arm("x", tickets="b", round=1) + arm("one") + arm("dies", lr=DIES), seeds=1)
    folder = made(recipe, tmp_path / "s", Workers(2, "s"))
    assert finished(recipe, folder) == {"x", "one"}
    assert failures(recipe, folder) == {"dies": "its process died; of too little memory, perhaps: take fewer --jobs"}
    names = [name.split("-s0-")[0] for name in calls(folder.root)]
    assert names.index("a") < names.index("b") < names.index("x"), "what others need is made first"
    assert names.count("dies") == 2  # once more, alone: it may have been another's fault
    # as scikit-learn's n_jobs does, but with a time of its own, so that nobody takes over these processes: joblib ends one
    # that has grown since its first call, which is small here, with a warning, and that is an error in tests
    parallel = Parallel(n_jobs=2, idle_worker_timeout=5)
    assert parallel(delayed(abs)(number) for number in (-1, -2)) == [1, 2]


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    distributed = pytest.importorskip("distributed", reason="Dask is not installed: pip install 'dpltm[dask]'")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=2, processes=True, dashboard_address=None, silence_logs=50
    ) as cluster:
        yield cluster.scheduler_address


@pytest.mark.long
def test_two_sweeps_in_one_folder_share_its_trials(tmp_path: Path, scheduler: str) -> None:
    """The two workers of the cluster are two processes, each with a sweep of its own."""
    recipe = read_recipe(HEAD + SETS + FINE + arm("x", tickets="b", round=1), seeds=6)
    with dask_workers(scheduler, "s") as cluster:
        cluster.client.wait_for_workers(2)
        workers = list(cluster.client.scheduler_info()["workers"])
        given = (made, recipe, tmp_path / "s")
        for future in [cluster.client.submit(*given, workers=[one], pure=False) for one in workers]:
            future.result()
    order = calls(tmp_path / "s")
    assert sorted(order) == sorted(set(order))
    assert len(order) == 24 + 12
    assert finished(recipe, SweepFolder(tmp_path / "s", recipe.title, "later")) == {"one", "two", "three", "x"}


@pytest.mark.long
def test_a_worker_that_dies_takes_one_trial_along(tmp_path: Path, scheduler: str) -> None:
    recipe = read_recipe(HEAD + FINE + arm("dies", lr=DIES), seeds=1)
    with dask_workers(scheduler, "s") as cluster:
        folder = made(recipe, tmp_path / "s", cluster)
    assert "its process died" in str(failures(recipe, folder)["dies"])
    assert calls(folder.root).count(recipe.trials[-1].name) == 1  # Dask asks again; it is not begun again
    with dask_workers(scheduler, "s") as cluster:
        folder = made(read_recipe(HEAD + FINE, seeds=1), tmp_path / "s", cluster)
    assert finished(recipe, folder) == {"one", "two", "three"}


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "nowhere"])
def test_no_scheduler_there(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed", reason="Dask is not installed: pip install 'dpltm[dask]'")
    monkeypatch.setattr("dpltm.tickets.workbench.sweep.CONNECT_SECONDS", 0.1)
    with (
        pytest.raises(InputError, match=f"`scheduler`: {address}: no Dask scheduler answers"),
        dask_workers(address, "s"),
    ):
        pass
