"""``dpltm synthesize`` on files: a dataset that every command reads, and that says what it comes from."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

FEW = ("--records-out", "60", "--model", "mlp:8", "--delta", "1e-4")
MAKE = ("synthesize", "--dataset", "digits", "--ledger", "l.jsonl", "--epsilon", "1", *FEW, "--out", "s.npz")


def test_a_dataset_with_its_epsilon(cli: Callable[..., Any], entries: Callable[[str], list[dict]]) -> None:
    answer = cli(*MAKE, "--json").json
    assert list(answer) == [
        "synthetic", "source", "records", "shape", "classes", "bounds", "noise_multiplier", "sensitivity", "ledger", "score",
        "privacy",
    ]  # fmt: skip
    assert (answer["shape"], answer["classes"], answer["bounds"]) == ([8, 8], 10, [0.0, 16.0])
    assert answer["score"].keys() == {"model", "accuracy", "records"}
    assert answer["score"]["records"] == 359
    assert 0.99 < answer["privacy"]["certified"]["epsilon"] <= 1
    (entry,) = entries("l.jsonl")
    (query,) = entry["mechanisms"]
    assert (entry["kind"], query["mechanism"], query["sensitivity"]) == ("release", "gaussian", 1.125)
    with np.load("s.npz", allow_pickle=False) as stored:
        assert sorted(stored.files) == ["bounds", "classes", "lineage", "x_train", "y_train"]
        assert stored["x_train"].shape == (60, 8, 8)
        assert json.loads(stored["lineage"].tobytes())["entries"] == [entry]


def test_every_command_reads_it(cli: Callable[..., Any], entries: Callable[[str], list[dict]]) -> None:
    assert cli(*MAKE, "--quiet").code == 0
    (spent,) = entries("l.jsonl")
    tiny = ("--model", "mlp:8", "--rounds", "2", "--iterations", "5", "--batch-size", "32", "--provenance", "public")
    made = cli("generate", "--dataset", "s.npz", *tiny, "--out", "t", "--delta", "1e-4", "--json").json
    assert made["provenance"] == "dp"
    assert 0.99 < made["privacy"]["certified"]["epsilon"] <= 1
    assert spent in json.loads(Path("t/lineage.json").read_text())["lineage"]["entries"]
    assert cli("tickets", "verify", "t", "--json").json == {"ticket_set": "t", "ok": True, "problems": []}
    trained = cli("train", "--dense", "--model", "mlp:8", "--dataset", "s.npz", "--noise-multiplier", "1", "--steps", "2",
                  "--batch-size", "10", "--out", "r", "--json").json  # fmt: skip
    assert any(
        "are synthetic: post-processing of a release from digits" in note for note in trained["privacy"]["notes"]
    )
    assert spent in json.loads(Path("r/lineage.json").read_text())["lineage"]["entries"]
    assert cli("datasets", "info", "s.npz", "--json").json["records"] == 60


def test_a_dry_run_writes_nothing(cli: Callable[..., Any], tree: Callable[[], object]) -> None:
    before = tree()
    answer = cli(*MAKE, "--dry-run", "--json").json
    assert answer["dry_run"] is True
    assert 0.99 < answer["privacy"]["certified"]["epsilon"] <= 1
    assert tree() == before


def test_what_is_refused(refused: Callable[..., str], cwd: Path) -> None:
    assert refused(*MAKE[:-1], "s.csv") == "--out: s.csv is no .npz; name it s.npz"
    assert refused(*MAKE[:4], "s.npz", *MAKE[5:]) == "--ledger: the records go there; name another file"
    assert refused(*MAKE[:5], *FEW) == "--epsilon is missing: what may be spent on these records, such as 1"
    (cwd / "s.npz").write_bytes(b"mine")
    assert refused(*MAKE) == "--out: s.npz exists already; choose another name or remove it first"


def test_people_see_the_score_and_the_figure(cli: Callable[..., Any]) -> None:
    done = cli(*MAKE)
    assert done.code == 0
    assert "trained on synthetic, tested on real: " in done.out
    assert "certified epsilon = 0.99" in done.out
