"""Sweeps: finished trials are left alone, failed ones do not stop the others, and any number of processes share the work."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from joblib import Parallel, delayed

import stub_trials
from dpltm.errors import ArtifactError, DpltmError, InputError
from dpltm.tickets.sweep_files import PARTS, RESULT, SweepFolder
from dpltm.tickets.workbench.recipes import Recipe, Trial, levels
from dpltm.tickets.workbench.sweep import dask_workers, local_workers
from recipes import read_recipe
from refusals import refused, told
from stub_trials import BREAKS, DIES, FAILS, HEAD, SETS, arm, calls, made

FINE = arm("one") + arm("two", lr=1.0) + arm("three", lr=2.0)


def finished(recipe: Recipe, folder: SweepFolder) -> set[str]:
    return {trial.arm.name for trial in recipe.trials if folder.result(trial.name) is not None}


def failed(recipe: Recipe, failures: dict[str, str]) -> dict[str, str]:
    return {trial.arm.name: failures[trial.name] for trial in recipe.trials if trial.name in failures}


def test_what_is_finished_is_left_alone(tmp_path: Path) -> None:
    recipe = read_recipe(HEAD + FINE)
    folder, _ = made(recipe, tmp_path / "s")
    assert calls(folder.root) == [trial.name for trial in recipe.trials]
    made(recipe, tmp_path / "s")
    assert len(calls(folder.root)) == 6
    more = read_recipe(HEAD + FINE, seeds=3)
    made(more, tmp_path / "s")
    assert calls(folder.root)[6:] == [trial.name for trial in more.trials if trial.seed == 2]


def test_what_trials_share_is_made_once_and_first(tmp_path: Path) -> None:
    recipe = read_recipe(HEAD + SETS + arm("x", tickets="b", round=1) + arm("y", tickets="a", round=1) + arm("z"))
    order = calls(made(recipe, tmp_path / "s")[0].root)
    assert len(order) == len(set(order)) == sum(map(len, levels(recipe.trials))) == 10

    def place(name: str | None, trial: Trial) -> int:
        return next(place for place, made in enumerate(order) if made.startswith(f"{name}-s{trial.seed}"))

    for trial in recipe.trials:
        if trial.arm.tickets is not None:
            assert place(trial.arm.tickets, trial) < order.index(trial.name)
        if trial.arm.tickets == "b":
            assert place("a", trial) < place("b", trial)


def test_a_trial_that_fails_is_noted_and_tried_again_next_time(tmp_path: Path) -> None:
    recipe = read_recipe(HEAD + FINE + arm("refused", lr=FAILS) + arm("broken", lr=BREAKS))
    folder, failures = made(recipe, tmp_path / "s")
    assert finished(recipe, folder) == {"one", "two", "three"}
    assert failed(recipe, failures) == {
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
    folder, failures = made(recipe, tmp_path / "s")
    assert finished(recipe, folder) == {"z"}
    assert "--rounds: are too many" in failed(recipe, failures)["x"]


@pytest.mark.long
def test_a_process_that_dies_ends_the_sweep_and_joblib_is_left_as_it_was(tmp_path: Path) -> None:
    """What is finished stays, so that the same command goes on."""
    text = HEAD + SETS + arm("x", tickets="b", round=1) + arm("one")
    with local_workers(2):
        folder, _ = made(read_recipe(text, seeds=1), tmp_path / "s")
    dies = read_recipe(text + arm("dies", lr=DIES), seeds=1)
    with pytest.raises(DpltmError, match="a process died"), local_workers(2):
        made(dies, tmp_path / "s")
    assert finished(dies, folder) == {"x", "one"}
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
        folder, failures = made(recipe, tmp_path / "s")
    assert failed(recipe, failures) == {"dies": "its process died, of too little memory perhaps"}
    assert finished(recipe, folder) == {"one", "two", "three", "x"}


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "nowhere"])
def test_no_scheduler_there(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed", reason="Dask is not installed: pip install 'dpltm[dask]'")
    monkeypatch.setattr("dpltm.tickets.workbench.sweep.CONNECT_SECONDS", 0.1)
    with pytest.raises(InputError, match=f"`scheduler`: {address}: no Dask scheduler answers"), dask_workers(address):
        pass


# --- a folder that somebody else filled: links are refused, and damage is named ---

LABEL = "an-arm-s3-01234567"
BODY: dict[str, Any] = {
    "arm": "An arm!",
    "seed": 3,
    "digest": "01234567" + "89abcdef" * 7,
    "lineage": {},
    "train": {"accuracy": 0.5, "privacy": {"certified": {"epsilon": 1.0}}},
}


@pytest.fixture
def folder(tmp_path: Path) -> SweepFolder:
    return SweepFolder(tmp_path / "s", "T")


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A folder that is none of the sweep's business, with a file in it."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "kept").write_text("kept")
    return tmp_path / "other"


def test_one_process_at_a_time_has_a_sweep(folder: SweepFolder) -> None:
    with folder.alone():
        message = told(lambda: SweepFolder(folder.root, "T").alone().__enter__())
    assert message == f"`out`: another process is at work on {folder.root}; wait for it, or choose another name"
    with folder.alone():
        pass


@pytest.mark.parametrize(
    "name", [*PARTS, f"members/{LABEL}", f"members/{LABEL}/run", "dpltm.ledger.jsonl", "recipe.json"]
)
def test_a_link_is_refused_as_the_folder_is_opened(folder: SweepFolder, other: Path, name: str) -> None:
    """Whether a member is the recipe's or nobody's: all cost is read from every one of them."""
    path = folder.root / name
    path.parent.mkdir(exist_ok=True)
    if path.exists():
        path.rename(other / "kept-instead")
    path.symlink_to(other / "kept-instead" if (other / "kept-instead").exists() else other)
    before = sorted(other.rglob("*"))
    message = told(SweepFolder, folder.root, "T")
    assert message == f"{path}: is a link, which is not followed; remove it, or choose another `out`"
    assert sorted(other.rglob("*")) == before


def put(folder: SweepFolder, **changes: Any) -> Path:
    path = folder.trial(LABEL) / "result.json"
    path.parent.mkdir()
    form, schema = RESULT
    path.write_text(json.dumps({"format": form, "schema": schema, **BODY, **changes}))
    return path


def certified(epsilon: object) -> dict[str, Any]:
    return {"privacy": {"certified": {"epsilon": epsilon}}}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("train", value) for value in (None, [], {}, {"privacy": {}})),
        *(("train", certified(value)) for value in (None, "nan", -1)),
        *(("seed", value) for value in (4, True)),
        *(("digest", value) for value in ("f" * 64, None)),
        *(("text", text) for text in ("", "[]", '{"format": "dpltm-sweep-result", "schema": 2}')),
    ],
)
def test_a_result_that_is_damaged(folder: SweepFolder, key: str, value: Any) -> None:
    path = put(folder, **({} if key == "text" else {key: value}))
    if key == "text":
        path.write_text(value)
    message = told(folder.result, LABEL)
    assert message.startswith(f"{path}: ")
    assert message.endswith("; remove it, and the member is run again")


def test_a_folder_that_was_being_made(tmp_path: Path) -> None:
    """A process died before it said what its folder is for."""
    (tmp_path / "s").mkdir()
    assert SweepFolder(tmp_path / "s", "T").root == tmp_path / "s"
    (tmp_path / "other/members/mine").mkdir(parents=True)
    assert "not of a recipe" in refused(SweepFolder, tmp_path / "other", "T", kind=ArtifactError)
