"""``dpltm compare --baselines``: what is missing is trained and paid for once, and what it costs is said before."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant

from dpltm.errors import InputError
from dpltm.privacy.entry import Entry, lineage_from_json
from dpltm.privacy.mechanisms import GaussianRelease, NoisySgd, Selection
from dpltm.tickets import checkpoint_files
from dpltm.tickets.ledger_file import open_ledger
from dpltm.tickets.run import find_run
from dpltm.tickets.workbench.sweep import STAGES
from dpltm.training.descent import NoisyGradients

PRIVATE = ("--dataset", "digits", "--subset", "0.5:1.0")
STEPS = ("--steps", "3", "--batch-size", "100", "--epsilon", "1")
BASELINES = ("--baselines", "--jobs", "1")
LABELS = ["r", "dense (baseline)", "random mask (baseline)"]


@pytest.fixture
def ticket(cli: Any) -> Any:
    """A run ``r`` of the ticket of round 2, which nobody drew."""
    assert cli("train", "pub@2", *PRIVATE, *STEPS, "--out", "r", "--quiet").code == 0
    return cli


@pytest.fixture
def drawn(cli: Any) -> Any:
    """A run ``r`` of a ticket that was drawn on the records that it was trained on."""
    assert cli("select", "pub", *PRIVATE, "--eps1", "0.1", "--quiet").code == 0
    assert cli("train", "pub", *PRIVATE, *STEPS, "--out", "r", "--quiet").code == 0
    return cli


LEDGER = Path("digits.ledger.jsonl")


def lineages(root: str = "baselines.sweep") -> dict[str, tuple[Entry, ...]]:
    """What stands behind every trial of a sweep and costs something, by its kind."""
    found = {}
    for path in sorted(Path(root, "members").glob("*/result.json")):
        kind = path.parent.name.rpartition("-s0-")[0].rpartition("-")[0]
        found[kind] = lineage_from_json(json.loads(path.read_text())["lineage"]).paid
    return found


def of_trainings(*trainings: dict[str, Any]) -> float:
    """Certified epsilon of trainings together, by another program: dp-accounting's own composition."""
    accountant = PLDAccountant()
    for row in trainings:
        step = dp_event.GaussianDpEvent(row["noise_multiplier"])
        rate = 100 / 719  # of the half of digits that are trained on, by the public hash
        accountant.compose(dp_event.PoissonSampledDpEvent(rate, step), row["steps"])
    return float(accountant.get_epsilon(1e-5))


def test_a_dense_network_and_a_random_mask(ticket: Any, tree: Callable[[], Any]) -> None:
    """From what it would cost to the table, and once more, when nothing is left to pay for."""
    before = tree()
    dry = ticket("compare", "r", *BASELINES, "--dry-run", "--json").json
    assert tree() == before
    assert dry["dry_run"] is True
    assert [one["state"] for one in dry["baselines"]["trainings"]] == ["planned", "planned"]
    assert [(row["run"], row["accuracy"] is None) for row in dry["rows"]] == [
        (label, label != "r") for label in LABELS
    ]
    trained = dry["rows"][1:]
    assert dry["baselines"]["to_train"] == 2
    assert dry["baselines"]["cost"]["epsilon"] == pytest.approx(of_trainings(*trained), rel=1e-3)
    assert dry["together"]["epsilon"] == pytest.approx(of_trainings(*dry["rows"]), rel=1e-3)
    assert dry["privacy"]["certified"]["epsilon"] == pytest.approx(
        dry["together"]["epsilon"]
    )  # the ledger has r as well

    files = ("--csv", "c.csv", "--md", "c.md", "--plot", "c.png")
    body = ticket("compare", "r", *BASELINES, *files, "--json").json
    run, dense, random = body["rows"]
    assert [row["run"] for row in body["rows"]] == LABELS
    assert all(row["compared"] and row["low"] < row["accuracy"] < row["high"] for row in body["rows"])
    assert (dense["density"], dense["trained"]) == (1, "dense")
    assert (random["density"], random["live"]) == (run["density"], run["live"])
    same = ("network", "steps", "filter", "records", "test_records", "noise_multiplier", "delta", "certified")
    assert len({tuple(row[key] for key in same) for row in body["rows"]}) == 1
    assert body["baselines"]["cost"] == dry["baselines"]["cost"]
    assert body["privacy"]["certified"] == dry["privacy"]["certified"]
    assert body["together"] == dry["together"]
    assert len(Path("c.csv").read_text().splitlines()) == 4
    assert "| random mask (baseline) |" in Path("c.md").read_text()
    assert Path("c.png").read_bytes().startswith(b"\x89PNG")

    entered = lineages()
    assert [[type(one) for one in entry.mechanisms] for entry in (*entered["dense"], *entered["random"])] == [
        [NoisySgd], [NoisySgd]
    ]  # fmt: skip
    assert len([entry for entry in open_ledger(LEDGER).entries if entry.of(NoisySgd)]) == 3
    masks = [find_run(Path(path)).run.mask for path in ("r", body["baselines"]["trainings"][1]["run"])]  # type: ignore[union-attr]
    assert not masks[0].same_as(masks[1])
    assert masks[0].live == masks[1].live

    before = tree()
    again = ticket("compare", "r", *BASELINES, "--json").json
    after = tree()
    assert {path for path in before if before[path] != after[path]} == set()
    assert again["rows"] == body["rows"]
    assert (again["baselines"]["to_train"], again["baselines"]["cost"]["epsilon"]) == (0, 0)
    assert again["privacy"] == body["privacy"]
    shown = ticket("compare", "r", *BASELINES).out
    assert "baselines: nothing is left to pay for in baselines.sweep" in shown
    both = ticket("compare", "r", "baselines.sweep", *BASELINES, "--json").json  # rows stand there once
    assert [row["accuracy"] for row in both["rows"]] == [row["accuracy"] for row in body["rows"]]
    assert both["together"] == body["together"]


def test_the_draw_behind_a_density_counts(drawn: Any) -> None:
    """A random mask as dense as the ticket that won tells of the draw; the whole network does not."""
    body = drawn("compare", "r", *BASELINES, "--json").json
    entered = lineages()
    draw = next(entry for entry in open_ledger(LEDGER).entries if entry.of(Selection))
    assert [entry for entry in entered["random"] if entry.of(Selection)] == [draw]
    assert not any(entry.of(Selection) for entry in entered["dense"])
    noise = {row["run"]: row["noise_multiplier"] for row in body["rows"]}
    assert noise["random mask (baseline)"] == noise["r"] > noise["dense (baseline)"]  # the draw is part of the budget
    # one draw, though two runs depend on it: less than as many trainings with as little noise and two draws
    assert body["together"]["epsilon"] < of_trainings(*(row for row in body["rows"])) + 0.2
    assert body["privacy"]["certified"]["epsilon"] == body["together"]["epsilon"]


def test_a_training_without_noise_is_made_only_by_its_name(ticket: Any) -> None:
    body = ticket("compare", "r", *BASELINES, "--kinds", "non-private", "--json").json
    assert [(row["run"], row["certified"], row["noise_multiplier"]) for row in body["rows"][1:]] == [
        ("dense without noise (baseline)", "inf", 0)
    ]
    assert body["together"]["epsilon"] == body["privacy"]["certified"]["epsilon"] == "inf"
    assert body["baselines"]["cost"]["epsilon"] == "inf"
    assert any("nothing is certified" in note for note in body["notes"])
    [entry] = lineages()["non-private"]
    [steps] = entry.of(NoisySgd)
    assert steps.noise_multiplier == 0
    body = ticket("compare", "r", *BASELINES, "--out", "usual", "--json").json
    assert all(row["noise_multiplier"] > 0 for row in body["rows"])
    # what is in the table does not pass for all that these records had to give: the ledger has it
    assert body["together"]["epsilon"] < 3
    assert body["privacy"]["certified"]["epsilon"] == "inf"
    assert body["privacy"]["finite"]["epsilon"] == pytest.approx(body["together"]["epsilon"])
    # nor is it taken for a run that others are trained like
    said = ticket("compare", "r", "baselines.sweep", *BASELINES, "--out", "usual", "--json").json
    assert said["baselines"]["to_train"] == 0
    assert any(note.endswith("has no baselines: it was trained without noise") for note in said["notes"])


def test_a_budget_refuses_all_of_them_before_the_first(ticket: Any, refused: Any, tree: Callable[[], Any]) -> None:
    """Each alone would fit into the budget, beside the run; both do not."""
    cost = ticket("compare", "r", *BASELINES, "--dry-run", "--json").json["together"]["epsilon"]
    budget = ("privacy", "budget", LEDGER)
    assert ticket(*budget, "--epsilon", str(cost - 0.05), "--quiet").code == 0
    said = refused("compare", "r", *BASELINES, code=1)
    assert said.startswith("budget: this would bring the population to epsilon ")
    assert not Path("baselines.sweep").exists()
    assert ticket("compare", "r", *BASELINES, "--kinds", "dense", "--quiet").code == 0
    before = tree()
    assert refused("compare", "r", *BASELINES, "--kinds", "non-private", code=1).startswith("budget: ")
    assert tree() == before
    assert ticket(*budget, "--epsilon", str(cost + 0.05), "--quiet").code == 0
    assert ticket("compare", "r", *BASELINES, "--quiet").code == 0


def test_runs_share_baselines_where_they_share_settings(ticket: Any) -> None:
    """A dense run is a baseline itself; another budget is another training."""
    assert ticket("train", "pub@1", *PRIVATE, *STEPS, "--ledger", "l.jsonl", "--out", "one", "--quiet").code == 0
    other = (*STEPS[:-1], "2", "--ledger", "m.jsonl")
    assert ticket("train", "--dense", "--model", "mlp:8", *PRIVATE, *other, "--out", "d", "--quiet").code == 0
    body = ticket("compare", "r", "one", "d", *BASELINES, "--dry-run", "--json").json
    made = [(one["kind"], one["beside"]) for one in body["baselines"]["trainings"]]
    assert made == [("dense", ["r", "one"]), ("random", ["r"]), ("random", ["one"])]
    assert [row["run"] for row in body["rows"][3:]] == [
        "dense (baseline)",
        "random mask (baseline of r)",
        "random mask (baseline of one)",
    ]
    names = {one["run"] for one in body["baselines"]["trainings"]}
    body = ticket("compare", "one", "d", "r", *BASELINES, "--dry-run", "--json").json  # names do not go by their order
    assert {one["run"] for one in body["baselines"]["trainings"]} == names
    body = ticket("compare", "d", *BASELINES, "--json").json
    assert (body["baselines"]["trainings"], body["together"]) == ([], None)
    assert not Path("baselines.sweep").exists()


def test_features_are_those_of_the_run(cli: Any) -> None:
    """A ticket set remembers them, and options of its runs do not say them."""
    made = ("--dataset", "digits", "--subset", "0.0:0.5", "--model", "mlp:8", "--features", "unit")
    made = (*made, "--rounds", "1", "--iterations", "3", "--batch-size", "32", "--provenance", "public")
    assert cli("generate", *made, "--out", "f", "--quiet").code == 0
    assert cli("train", "f@1", *PRIVATE, *STEPS, "--centre", "0.1", "--out", "r", "--quiet").code == 0
    body = cli("compare", "r", *BASELINES, "--json").json
    maps = [
        find_run(Path(one)).run.feature_map for one in ("r", *(each["run"] for each in body["baselines"]["trainings"]))
    ]  # type: ignore[union-attr]
    assert len({one.uncentred.id for one in maps if one is not None}) == 1
    assert len({one.id for one in maps if one is not None}) == 3  # each has a centre of its own, which it pays for
    kinds = [[type(one) for one in entry.mechanisms] for entries in lineages().values() for entry in entries]
    assert kinds == [[GaussianRelease, NoisySgd], [GaussianRelease, NoisySgd]]


def prune_units(cli: Any) -> None:
    """A set of private records, ``units``, whose one round left half of the units."""
    settings = ("--model", "mlp:16", "--rounds", "1", "--prune", "0.5", "--iterations", "3", "--batch-size", "32")
    made = ("--criterion", "structured", "--provenance", "private", "--ledger", "u.jsonl", "--out", "units", "--quiet")
    assert cli("generate", *PRIVATE, *settings, *made).code == 0


def test_masks_of_private_records(cli: Any, refused: Any) -> None:
    """Their density is fixed by the schedule: so a random mask costs no more. Without the set nobody can tell."""
    assert cli("train", "pri@2", *PRIVATE, *STEPS, "--out", "r", "--quiet").code == 0
    body = cli("compare", "r", *BASELINES, "--dry-run", "--json").json
    assert [row["certified"] == "inf" for row in body["rows"]] == [True, False, False]
    prune_units(cli)
    assert cli("tickets", "compact", "units@1", "--out", "small", "--quiet").code == 0
    assert cli("train", "small@0", *PRIVATE, *STEPS, "--ledger", "s.jsonl", "--out", "s", "--quiet").code == 0
    said = refused("compare", "s", *BASELINES)
    assert said.startswith("RUN: s: has no baselines: its ticket may come from private records")
    shutil.rmtree("pri")
    assert "pri, as dpltm generate made it" in refused("compare", "r", *BASELINES)


def test_a_compacted_run_has_none(cli: Any, refused: Any) -> None:
    """Its network is as small as its ticket left it, which nobody enters in the ledger of a dense one."""
    prune_units(cli)
    assert cli("train", "units@1", *PRIVATE, *STEPS, "--out", "r", "--quiet").code == 0
    assert cli("tickets", "compact", "r", "--out", "small", "--quiet").code == 0
    for kinds in ("dense", "random", "non-private"):
        assert refused("compare", "small", *BASELINES, "--kinds", kinds) == (
            "RUN: small: has no baselines: it was compacted, so the size of its network tells of its ticket;"
            " name the run that it was made from"
        )


def test_what_cannot_have_baselines(ticket: Any, refused: Any) -> None:
    assert refused("compare", "r", *BASELINES, "--kinds", "dense,sparse") == (
        "--kinds: 'sparse' is not one of dense, random and non-private; name some of them, with commas"
    )
    assert (
        refused("compare", "r", *BASELINES, "--kinds", "dense,dense") == "--kinds: one is named twice; name each once"
    )
    assert refused("compare", "r", "r", "--out", "x") == (
        "--out: only with --baselines, which trains something; add it, or leave this out"
    )
    assert refused("compare", "r", "--baselines", "--jobs", "0") == "--jobs: 0 is not from 1 to 1024"
    assert refused("compare", "r", *BASELINES, "--out", "pub") == (
        "--out: pub exists already and is not of a recipe; choose another name"
    )
    for name in ("old", "odd", "array", "damaged"):
        shutil.copytree("r", name)
    for name, change in (
        ("old", lambda config: config.pop("options")),
        ("odd", lambda config: config["options"].update(tries=3)),
        ("array", lambda config: config["options"].update(dataset=None)),
    ):
        path = Path(name, "config.json")
        config = json.loads(path.read_text())
        change(config)
        path.write_text(json.dumps(config))
    Path("damaged/mask.safetensors").unlink()
    start = "RUN: {}: has no baselines: "
    assert refused("compare", "old", *BASELINES) == (
        start.format("old") + "it holds no options of dpltm train; it was trained in Python, or by an older version"
    )
    assert refused("compare", "odd", *BASELINES).startswith(
        start.format("odd") + "its options are not those of dpltm train: unknown key 'tries'"
    )
    assert refused("compare", "array", *BASELINES) == (
        start.format("array") + "it names no dataset; its records were given in Python"
    )
    assert refused("compare", "damaged", *BASELINES).startswith(start.format("damaged") + "damaged/mask.safetensors")
    # beside one that can, the others are rows, with the reason
    done = ticket("compare", "damaged", "r", *BASELINES, "--kinds", "dense", "--json")
    body = json.loads(done.out)
    assert (done.code, [row["state"] for row in body["rows"]]) == (1, ["damaged", "finished", "finished"])
    assert any(note.startswith("damaged: has no baselines: ") for note in body["notes"])


def test_records_that_are_gone_or_others(cli: Any, refused: Any, cwd: Path) -> None:
    """Nothing is spent on other records than those that the run was trained on."""
    rng = np.random.default_rng(0)
    x, y = rng.random((300, 4)).round(3), rng.integers(0, 2, 300)
    lines = [f"{','.join(map(str, row))},{label}" for row, label in zip(x, y, strict=True)]
    train, test = ["a,b,c,d,y", *lines[:250]], ["a,b,c,d,y", *lines[250:]]
    (cwd / "t.csv").write_text("\n".join(train) + "\n")
    (cwd / "e.csv").write_text("\n".join(test) + "\n")
    said = (
        "--dataset",
        "t.csv",
        "--label",
        "y",
        "--bounds",
        "0,1",
        "--classes",
        "2",
        "--test",
        "e.csv",
        "--model",
        "mlp:4",
    )
    asked = (*said, "--steps", "3", "--batch-size", "50", "--epsilon", "1", "--delta", "1e-3", "--quiet")
    mask = ("--rounds", "1", "--prune", "0.5", "--criterion", "random", "--out", "mask", "--quiet")
    assert cli("generate", *(each for each in said), *mask).code == 0
    assert (
        cli("train", "mask@1", *(part for part in asked if part not in ("--model", "mlp:4")), "--out", "r").code == 0
    )
    assert cli("compare", "r", *BASELINES, "--dry-run", "--quiet").code == 0
    (cwd / "t.csv").write_text("\n".join(train[:-1]) + "\n")
    assert refused("compare", "r", *BASELINES).startswith(
        "RUN: r: no baseline dense: its records, or what is measured on them, are not what RUN was trained on: other data:"
    )
    (cwd / "t.csv").write_text("\n".join(train) + "\n")
    (cwd / "e.csv").write_text("\n".join(test[:-1]) + "\n")
    assert "other test records: 49, not 50" in refused("compare", "r", *BASELINES)
    (cwd / "t.csv").unlink()
    assert refused("compare", "r", *BASELINES) == (
        "RUN: r: no baseline dense: --dataset t.csv: no such file; a run keeps no folders: start the command where its files"
        " lie"
    )


def test_one_that_fails_leaves_its_reason(ticket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise InputError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setitem(STAGES, "train", fails)  # type: ignore[arg-type]
        done = ticket("compare", "r", *BASELINES, "--json")
    body = json.loads(done.out)
    assert done.code == 1
    assert [(one["state"], one["why"]) for one in body["baselines"]["trainings"]] == 2 * [
        ("failed", "the disk is full")
    ]
    assert "random mask (baseline): not compared: the disk is full" in body["notes"]
    body = ticket("compare", "r", *BASELINES, "--json").json
    assert [row["state"] for row in body["rows"]] == ["finished"] * 3


def test_an_interrupted_one_goes_on_and_is_paid_once(ticket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    monkeypatch.setattr(checkpoint_files, "EVERY", 0.0)
    monkeypatch.setattr(checkpoint_files, "SHARE", 1e9)
    cost = ticket("compare", "r", *BASELINES, "--dry-run", "--json").json["together"]["epsilon"]
    assert ticket("privacy", "budget", LEDGER, "--epsilon", str(cost + 0.01), "--quiet").code == 0
    inner, steps = NoisyGradients.backward, iter((False, True))

    def backward(self: NoisyGradients) -> None:
        if next(steps):
            raise Killed
        inner(self)

    with monkeypatch.context() as patch:
        patch.setattr(NoisyGradients, "backward", backward)
        with pytest.raises(Killed):
            ticket("compare", "r", *BASELINES)
    dry = ticket("compare", "r", *BASELINES, "--dry-run", "--json").json
    assert [one["state"] for one in dry["baselines"]["trainings"]] == ["unfinished", "planned"]
    assert dry["baselines"]["to_train"] == 1
    body = ticket("compare", "r", *BASELINES, "--json").json
    assert [row["state"] for row in body["rows"]] == ["finished"] * 3
    assert body["together"]["epsilon"] == pytest.approx(cost, rel=1e-6)
    assert len([entry for entry in open_ledger(LEDGER).entries if entry.of(NoisySgd)]) == 3


def test_help_says_what_it_costs_and_how_it_ends(cli: Any) -> None:
    shown = " ".join(cli("compare", "--help").out.split())
    for text in ("The exit code is 1 if a run is damaged", "--kinds", "That spends privacy", "Examples"):
        assert text in shown
