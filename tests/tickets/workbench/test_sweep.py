"""Sweeps: finished trials are left alone, failed ones do not stop the others, and any number of processes share the work."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from joblib import Parallel, delayed

import stub_trials
from dpltm.errors import ArtifactError, DpltmError, InputError
from dpltm.tickets.workbench.recipes import Recipe, Task, levels
from dpltm.tickets.workbench.sweep import PARTS, dask_workers, local_workers, members, opened
from recipes import read_recipe
from refusals import refused, told
from stub_trials import BREAKS, DIES, FAILS, HEAD, SETS, arm, calls, made

FINE = arm("one") + arm("two", lr=1.0) + arm("three", lr=2.0)


def finished(recipe: Recipe, root: Path) -> set[str]:
    return {trial.arm.name for trial in recipe.trials if trial.task.place in members(recipe, root)}


def failed(recipe: Recipe, failures: dict[str, str]) -> dict[str, str]:
    return {trial.arm.name: failures[trial.task.place] for trial in recipe.trials if trial.task.place in failures}


def test_what_is_finished_is_left_alone(tmp_path: Path) -> None:
    recipe, root = read_recipe(HEAD + FINE), tmp_path / "s"
    made(recipe, root)
    assert calls(root) == [trial.task.place for trial in recipe.trials]
    made(recipe, root)
    assert len(calls(root)) == 6
    more = read_recipe(HEAD + FINE, seeds=3)
    made(more, root)
    assert calls(root)[6:] == [trial.task.place for trial in more.trials if trial.seed == 2]


def test_what_trials_share_is_made_once_and_first(tmp_path: Path) -> None:
    recipe = read_recipe(HEAD + SETS + arm("x", tickets="b", round=1) + arm("y", tickets="a", round=1) + arm("z"))
    made(recipe, tmp_path / "s")
    order = calls(tmp_path / "s")
    assert len(order) == len(set(order)) == sum(map(len, levels(trial.task for trial in recipe.trials))) == 10

    def check(task: Task) -> None:
        for need in task.needs.values():
            assert order.index(need.place) < order.index(task.place)
            check(need)

    for trial in recipe.trials:
        check(trial.task)


def test_a_trial_that_fails_is_noted_and_tried_again_next_time(tmp_path: Path) -> None:
    recipe = read_recipe(HEAD + FINE + arm("refused", lr=FAILS) + arm("broken", lr=BREAKS))
    failures = made(recipe, tmp_path / "s")
    assert finished(recipe, tmp_path / "s") == {"one", "two", "three"}
    assert failed(recipe, failures) == {
        "refused": "--lr: is not what it must be",
        "broken": "internal error: ValueError; set DPLTM_DEBUG=1 and run it again",  # and nothing of what it said
    }
    made(recipe, tmp_path / "s")
    assert len(calls(tmp_path / "s")) == 10 + 4


def test_a_set_that_fails_is_the_failure_of_its_trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(options: Any, progress: object, **_: object) -> dict[str, Any]:
        del options, progress
        raise InputError("`rounds`: are too many")

    monkeypatch.setitem(stub_trials.STAGES, "generate", refuse)
    recipe = read_recipe(HEAD + SETS + arm("x", tickets="b", round=1) + arm("z"), seeds=1)
    failures = made(recipe, tmp_path / "s")
    assert finished(recipe, tmp_path / "s") == {"z"}
    assert "--rounds: are too many" in failed(recipe, failures)["x"]


@pytest.mark.long
def test_a_process_that_dies_ends_the_sweep_and_joblib_is_left_as_it_was(tmp_path: Path) -> None:
    """What is finished stays, so that the same command goes on."""
    text = HEAD + SETS + arm("x", tickets="b", round=1) + arm("one")
    with local_workers(2):
        made(read_recipe(text, seeds=1), tmp_path / "s")
    dies = read_recipe(text + arm("dies", lr=DIES), seeds=1)
    with pytest.raises(DpltmError, match="a process died"), local_workers(2):
        made(dies, tmp_path / "s")
    assert finished(dies, tmp_path / "s") == {"x", "one"}
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
def test_workers_of_a_cluster_make_trials_and_one_that_dies_takes_one_along(tmp_path: Path, scheduler: str) -> None:
    recipe = read_recipe(HEAD + SETS + FINE + arm("x", tickets="b", round=1) + arm("dies", lr=DIES), seeds=1)
    with dask_workers(scheduler):
        failures = made(recipe, tmp_path / "s")
    assert failed(recipe, failures) == {"dies": "its process died, of too little memory perhaps"}
    assert finished(recipe, tmp_path / "s") == {"one", "two", "three", "x"}


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "nowhere"])
def test_no_scheduler_there(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed", reason="Dask is not installed: pip install 'dpltm[dask]'")
    monkeypatch.setattr("dpltm.tickets.workbench.sweep.CONNECT_SECONDS", 0.1)
    with pytest.raises(InputError, match=f"`scheduler`: {address}: no Dask scheduler answers"), dask_workers(address):
        pass


# --- a folder that somebody else filled: links are refused, and damage is named ---


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with opened(tmp_path / "s", "T"):
        return tmp_path / "s"


def test_one_process_at_a_time_has_a_sweep(root: Path) -> None:
    with opened(root, "T"):
        message = told(opened(root, "T").__enter__)
    assert message == f"`out`: another process is at work on {root}; wait for it, or choose another name"
    with opened(root, "T"):
        pass


@pytest.mark.parametrize("name", [*PARTS, "members/x", "dpltm.ledger.jsonl", "recipe.json"])
def test_a_link_is_refused_as_the_folder_is_opened(root: Path, tmp_path: Path, name: str) -> None:
    """Whether a member is the recipe's or nobody's: what is written or removed there would be elsewhere."""
    other, path = tmp_path / "other", root / name
    other.mkdir()
    if path.exists():
        path.rename(other / "kept")
    path.symlink_to(other / "kept" if (other / "kept").exists() else other)
    before = sorted(other.rglob("*"))
    message = told(opened(root, "T").__enter__)
    assert message == f"{path}: is a link, which is not followed; remove it, or choose another `out`"
    assert sorted(other.rglob("*")) == before


@pytest.mark.parametrize(
    ("name", "change"),
    [
        *(
            ("result.json", {"privacy": value})
            for value in (None, [], {"certified": {}}, {"certified": {"epsilon": "nan"}})
        ),
        ("result.json", {"weights": "f" * 64}),
        ("config.json", {"part": 3}),
        ("lineage.json", {"lineage": 3}),
    ],
)
def test_a_member_that_is_damaged(tmp_path: Path, name: str, change: dict[str, Any]) -> None:
    recipe, root = read_recipe(HEAD + arm("one"), seeds=1), tmp_path / "s"
    made(recipe, root)
    member = root / recipe.trials[0].task.place
    (member / name).write_text(json.dumps({**json.loads((member / name).read_text()), **change}))
    assert told(members, recipe, root) == f"{member}: damaged, or not of this trial; remove it, and it is run again"


def test_a_folder_that_was_being_made(tmp_path: Path) -> None:
    """A process died before it said what its folder is for."""
    (tmp_path / "s").mkdir()
    for expected in (False, True):
        with opened(tmp_path / "s", "T") as begun:
            assert begun == expected
    (tmp_path / "other/members/mine").mkdir(parents=True)
    assert "exists already" in refused(opened(tmp_path / "other", "T").__enter__, kind=ArtifactError)
