"""No option of a training is accepted and ignored; and two mechanisms go together, or are refused by name."""

import csv
import functools
import itertools
import json
import re
import shutil
import tempfile
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpltm.cli.main import run
from dpltm.networks.masks import network_id
from dpltm.options.data import DataOptions
from dpltm.options.train import TrainRequest
from dpltm.training.release import TrainingPlan
from dpltm.verbs import train as verb
from outputs import fixed_randomness

DENSE = "--dense"
BEHIND = "--features unit:1"


@dataclass(frozen=True)
class Case:
    """One option: what is typed beside it, and without and with another value; ``epsilon`` stands in for the noise."""

    other: str
    beside: str = DENSE
    first: str = ""
    noise: str = "--noise-multiplier 2"


CASES = {
    "dataset": Case("--dataset other.npz"),
    "subset": Case("--subset 0.0:0.5"),
    "label": Case("--label y"),
    "schema": Case("--schema schema.toml"),
    "bounds": Case("--bounds 0,2"),
    "classes": Case("--classes 3"),
    "target_bounds": Case("--target-bounds 0,2", DENSE, "--target-bounds 0,1"),
    "records": Case("--records 60"),
    "test": Case("--test held-out.npz"),
    "rows_coincide": Case("--rows-coincide", f"{DENSE} --dataset held-out.npz --test again.npz"),
    "words": Case("--words 50"),
    "unit_column": Case("--unit-column whose"),
    "per_unit": Case("--per-unit 1", f"{DENSE} --unit-column whose"),
    "class_shares": Case("--class-shares 0.3,0.7", f"{DENSE} --class-weight balanced", "--class-shares 0.5,0.5"),
    "features": Case(BEHIND),
    "population": Case("--population others"),
    "ticket": Case("set@1", "", DENSE),
    "dense": Case(DENSE, "set@1"),
    "model": Case("--model mlp:5"),
    "start": Case("--start weights.safetensors"),
    "start_provenance": Case("--start-provenance public"),
    "freeze": Case("--freeze a"),
    "filter": Case("--filter tanh"),
    "clip_norm": Case("--clip-norm 2"),
    "tanh_scale": Case("--tanh-scale 2", f"{DENSE} --filter tanh"),
    "tanh_range": Case("--tanh-range 2", f"{DENSE} --filter tanh"),
    "no_pre_clip": Case("--no-pre-clip", f"{DENSE} --filter tanh"),
    "microbatch": Case("--microbatch 2"),
    "class_weight": Case("--class-weight 1,0.5"),
    "epsilon": Case("--epsilon 1", first="--epsilon 2", noise=""),
    "noise_multiplier": Case("--noise-multiplier 2", first="--noise-multiplier 3", noise=""),
    "delta": Case("--delta 1e-6"),
    "epochs": Case("--epochs 1", first="--steps 2"),
    "steps": Case("--steps 3"),
    "batch_size": Case("--batch-size 10"),
    "sampling": Case("--sampling allocation:2"),
    "lr": Case("--lr 0.5"),
    "optimizer": Case("--optimizer adam --lr 1"),
    "schedule": Case("--schedule linear"),
    "average": Case("--average ema"),
    "accountant": Case("--accountant rdp"),
    "budget_stop": Case("--budget-stop", f"{DENSE} --epsilon 0.9"),
    "eval_private": Case("--eval-private 1"),
    "metric": Case("--metric balanced-accuracy"),
    "by": Case("--by column"),
    "centre": Case("--centre 0.1", f"{DENSE} {BEHIND}", noise="--epsilon 1"),
    "adjacency": Case("--adjacency replace-one"),
    "noise": Case("--noise fast"),
    "device": Case("--device cuda"),
    "compile": Case("--compile", f"{DENSE} --filter tanh"),
    "seed": Case("--seed 1"),
    "audit": Case("--audit 10"),
    "head": Case("--head least-squares", f"{DENSE} {BEHIND}"),
    "out": Case("--out elsewhere"),
    "ledger": Case("--ledger other.jsonl"),
    "dry_run": Case("--dry-run"),
    "resume": Case("--resume"),
}
SETTINGS = ("optimizer", "schedule", "average", "physical_batch", "precision", "compile", "microbatch")
"""Settings of steps, which the engine reads from the options of a plan."""

ELSEWHERE = {"fresh": Path(__file__).parent / "test_resume.py"}
"""Options that show after an interruption alone, and whose tests have one."""


AFFECTS = dict.fromkeys(CASES, "plan")
AFFECTS |= dict.fromkeys(("population", "unit", "per_unit", "class_shares", "features"), "records")
AFFECTS |= dict.fromkeys((item.name for item in fields(DataOptions)), "records")
AFFECTS |= dict.fromkeys(("epsilon", "noise_multiplier", "delta", "accountant", "eval_private"), "mechanism")
AFFECTS |= dict.fromkeys(("adjacency", "noise"), "mechanism")
AFFECTS |= dict.fromkeys(("metric", "by"), "display") | dict.fromkeys(("out", "ledger", "dry_run", "resume"), "files")
"""Where another value of an option shows."""


def test_every_option_of_a_training_is_tried():
    assert set(CASES) | set(ELSEWHERE) == {item.name for item in fields(TrainRequest) if not item.metadata["hidden"]}
    assert all(f"--{name}" in path.read_text(encoding="utf-8") for name, path in ELSEWHERE.items())


@functools.cache
def material() -> tempfile.TemporaryDirectory[str]:
    """A folder with records, others, a held-out file and a ticket set."""
    folder = tempfile.TemporaryDirectory()
    generator = np.random.default_rng(0)
    for name, count in (("data", 80), ("other", 90), ("held-out", 40)):
        x, y = generator.random((count, 4, 4)), np.arange(count) % 2
        test = {} if name == "held-out" else {"x_test": x[: count // 2] ** 2, "y_test": y[: count // 2]}
        splits = {"x_train": x, "y_train": y, "whose_train": np.arange(count) // 2, **test}
        np.savez(Path(folder.name) / f"{name}.npz", **splits)
    (Path(folder.name) / "schema.toml").write_text("", encoding="utf-8")
    known = np.load(Path(folder.name) / "held-out.npz")
    x, y = np.concatenate([generator.random((40, 4, 4)), known["x_train"][:1]]), np.arange(41) % 2
    np.savez(Path(folder.name) / "again.npz", x_train=x, y_train=y)
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder.name)
        records = "generate --dataset data.npz --bounds 0,1 --classes 2 --quiet"
        assert run(f"{records} --model mlp:4 --criterion random --rounds 1 --out set".split()) == 0
    return folder


def observed(
    folder: Path, case: Case, typed: str, patch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Any:
    """Run a training in a folder of its own; return what it shows, by kind, or what it is refused for."""
    shutil.copytree(material().name, folder)
    plan, trainings = verb.plan, list[TrainingPlan]()

    def recorded(*arguments: Any, **options: Any) -> TrainingPlan:
        trainings.append(plan(*arguments, **options))
        return trainings[-1]

    command = ["train", *f"{case.beside} {case.noise} {typed}".split(), "--json"]
    command += [] if "least-squares" in command or "--epochs" in command or "--steps" in command else ["--steps", "2"]
    command += [] if "least-squares" in command or "--batch-size" in command else ["--batch-size", "20"]
    command += [] if "--model" in command or "set@1" in command or BEHIND in case.beside else ["--model", "mlp:4"]
    command += [] if "--bounds" in command else ["--bounds", "0,1"]
    command += [] if {"--classes", "--target-bounds"} & set(command) else ["--classes", "2"]
    command += [] if "--dataset" in command else ["--dataset", "data.npz"]
    with patch.context() as patched, fixed_randomness("one training"):
        patched.chdir(folder)
        patched.setenv("XDG_CONFIG_HOME", str(folder / "home"))
        for module in ("dpltm.verbs.train",):
            patched.setattr(f"{module}.plan", recorded)
        capfd.readouterr()
        code = run(command)
    out, error = capfd.readouterr()
    if code:
        assert code == 2, error
        return {"refusal": error}
    training, answer = trainings[-1], json.loads(out)
    answer.pop("seconds", None)
    metrics = [path.read_text(encoding="utf-8") for path in folder.rglob("metrics.jsonl")]
    dataset, start = training.dataset, training.start
    return {
        "plan": (
            training.filtered, training.mechanism, training.lr, training.expected_batch, training.class_weight,
            {name: getattr(training.options, name) for name in SETTINGS}, start.spec.identity,
            network_id(start.model, start.mask),
            training.before_steps, metrics,
        ),
        "mechanism": (training.entry.mechanisms, answer["privacy"]),
        "records": (
            training.entry.part, training.entry.unit, training.facts["records"], training.facts["features"],
            dataset.bounds, dataset.classes, dataset.records, training.class_weight,
            training.ledger.population,
        ),
        "files": sorted(str(path.relative_to(folder)) for path in folder.rglob("*")),
        "display": answer,
    }  # fmt: skip


@pytest.mark.one_of(4)
@pytest.mark.parametrize("name", CASES)
def test_another_value_shows_where_it_should_or_is_refused(name, tmp_path, monkeypatch, capfd):
    if name == "device" and torch.cuda.is_available():
        pytest.skip("a GPU computes the same training: tests/cli/test_cuda.py")
    case = CASES[name]
    first = observed(tmp_path / "first", case, case.first, monkeypatch, capfd)
    other = observed(tmp_path / "other", case, case.other, monkeypatch, capfd)
    if "refusal" in other:
        flag = "--" + name.replace("_", "-")
        assert flag in other["refusal"], other
        assert "refusal" not in first, first
    elif "refusal" in first:
        assert name in ("rows_coincide", "budget_stop")  # which allow what is refused without them
    else:
        assert first[AFFECTS[name]] != other[AFFECTS[name]]


def test_equal_options_show_the_same(tmp_path, monkeypatch, capfd):
    case = Case("")
    assert observed(tmp_path / "a", case, "", monkeypatch, capfd) == observed(
        tmp_path / "b", case, "", monkeypatch, capfd
    )


# --- each pair of the table in privacy-model.md 4.9 ---

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "privacy-model"

MECHANISMS = {"`--sampling allocation`": "--sampling allocation:2", "`--noise banded`": "--noise banded:2"}
BESIDE = {
    "persons": "--unit-column who --per-unit 3",
    "tickets": "",
    "`--microbatch`": "--microbatch 3",
    "`--class-weight`": "--class-weight 1,2",
    "`--adjacency replace-one`": "--adjacency replace-one",
    "`--eval-private`": "--eval-private 0.5",
    "`--centre`": "--features unit --centre 0.1",
    "`--budget-stop`": "--noise-multiplier 2 --budget-stop",
    "`--audit`": "--audit 6",
    "`--head least-squares`": "--features unit --head least-squares",
    "`--filter tanh`": "--filter tanh",
    **MECHANISMS,
}


def refusals() -> dict[str, set[str]]:
    """The table of the document: what each mechanism refuses. All other pairs work."""
    part = DOCUMENT.with_suffix(".md").read_text().split("### 4.9 ")[1].split("\n## ")[0]
    return {row: set(names.split(", ")) for row, names in re.findall(r"^\| (`--.+?`) \| (.+) \|$", part, re.MULTILINE)}


@pytest.fixture
def tables(cwd: Path) -> None:
    """``d`` and its test records ``t``; and the same with a column that says whose each is, ``dw`` and ``tw``."""
    draw = np.random.default_rng(0)
    for name, count in (("d", 120), ("t", 40)):
        values = draw.random((count, 3)).round(4).tolist()
        for whose in ("", "w"):
            with (cwd / f"{name}{whose}.csv").open("w", newline="") as file:
                rows = csv.writer(file)
                rows.writerow(["a", "b", "c", *(["who"] if whose else []), "y"])
                for i, row in enumerate(values):
                    rows.writerow([*row, *([f"{name}{i // 2}"] if whose else []), i % 2])


def test_the_table_names_what_is_tried_here() -> None:
    table = refusals()
    assert set(table) == set(MECHANISMS)
    assert set().union(*table.values()) <= set(BESIDE)
    for mechanism, names in table.items():
        assert {other for other in table if mechanism in table[other]} == names & set(MECHANISMS)


@pytest.mark.one_of(16)
@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize(
    ("beside", "mechanism"),
    [pair for pair in itertools.product(BESIDE, MECHANISMS) if len({name.split()[0] for name in pair}) > 1],
)
def test_a_pair_works_or_is_refused_by_name(cli: Any, refused: Any, beside: str, mechanism: str) -> None:
    asked, whose, start = f"{MECHANISMS[mechanism]} {BESIDE[beside]}", "w" if beside == "persons" else "", "--dense"
    data = f"--dataset d{whose}.csv --label y --bounds 0,1 --classes 2"
    if beside == "tickets":
        make = f"generate {data} --provenance data-free --criterion random --model mlp:4 --features none --rounds 2"
        assert cli(f"{make} --out set --quiet").code == 0
        start = "set@1"
    else:
        asked += "" if "unit" in BESIDE[beside].split() else " --model mlp:4 --features none"
    head, allocated = "least-squares" in asked, "allocation" in asked
    asked += ("" if head or allocated else " --steps 6") + ("" if head else " --batch-size 20")
    command = f"train {start} {data} --records {60 if whose else 120} --test t{whose}.csv {asked} --epsilon 3"
    command += " --delta 1e-3 --out r --json"
    if beside not in refusals()[mechanism]:
        done = cli(command)
        assert done.code == 0, done.err
        assert 0 < done.json["privacy"]["certified"]["epsilon"] <= 3
    else:
        told = refused(command)
        assert any(name in told for name in re.findall(r"--[a-z-]+", asked)), told
