"""The JSON that scripts read: at least these keys (more are welcome, none may go), and their types."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from commands import PRIVATE, PUBLIC, TINY, certified

TICKETS = [(0, 1.0, 610), (1, 0.6993243243243243, 432), (2, 0.48986486486486486, 308)]
MADE = {"ticket_set", "id", "provenance", "metric", "tickets", "privacy"}


def check_privacy(body, *, adjacency="add-remove", delta=1e-5, sampling="none"):
    assert set(body) == {"certified", "nominal", "notes"}
    certified, nominal = body["certified"], body["nominal"]
    assert certified["epsilon"] == "inf" or (type(certified["epsilon"]) is float and certified["epsilon"] >= 0)
    assert certified == {
        **{"epsilon": certified["epsilon"], "delta": delta, "accountant": "pld", "adjacency": adjacency},
        **{"unit": "record", "sampling": sampling},
    }
    if nominal is not None:
        assert set(nominal) == {"epsilon", "delta", "source"}
        assert (type(nominal["epsilon"]), nominal["delta"], type(nominal["source"])) == (float, delta, str)
    assert all(type(note) is str and "\n" not in note for note in body["notes"])
    assert len(set(body["notes"])) == len(body["notes"])


def test_generate(cli):
    body = cli(f"generate {PUBLIC} {TINY} --provenance public --out new --json").json
    assert set(body) == MADE
    assert (body["ticket_set"], body["provenance"], len(body["id"])) == ("new", "public", 64)
    assert int(body["id"], 16) >= 0
    assert [(row["round"], row["density"], row["live"]) for row in body["tickets"]] == TICKETS
    assert all(set(row) == {"round", "density", "live", "accuracy"} for row in body["tickets"])
    assert all(type(row["accuracy"]) is float and 0 <= row["accuracy"] <= 1 for row in body["tickets"])
    check_privacy(body["privacy"])
    assert (certified(body), body["privacy"]["nominal"]) == (0, None)
    stored = json.loads(Path("new/tickets.json").read_text())
    assert (stored["id"], stored["tickets"]) == (body["id"], body["tickets"])


def test_select(cli):
    body = cli(f"select pub {PRIVATE} --eps1 0.1 --json").json
    assert set(body) == {"ticket_set", "winner", "eps1", "mechanism", "score", "sensitivity", "privacy"}
    assert body["ticket_set"] == "pub"
    assert body["winner"] in [{"round": r, "density": d} for r, d, _ in TICKETS[1:]]
    assert (body["eps1"], body["mechanism"], body["score"]) == (0.1, "exponential", "product")
    # docs/privacy-model.md section 3.2: max |1 - nu C| / n0, here nu 50 and C of round 1
    assert body["sensitivity"] == {"rule": "exact", "value": pytest.approx((50 * 414 / 592 - 1) / 719, rel=1e-12)}
    check_privacy(body["privacy"])
    # bounded range alone: delta(x) = (1 - e^((x - e) / 2))^2 / (1 - e^-e), solved for x at delta 1e-5
    assert certified(body) == pytest.approx(0.1 + 2 * math.log1p(-math.sqrt(1e-5 * -math.expm1(-0.1))), rel=1e-9)
    assert body["privacy"]["nominal"] == {"epsilon": 0.1, "delta": 1e-5, "source": "DPLTM Theorem 3"}


def test_train_and_evaluate(cli):
    body = cli(f"train pub@2 {PRIVATE} --steps 3 --batch-size 100 --epsilon 1 --json --out r").json
    assert set(body) == {
        *("run", "steps", "sampling_rate", "noise_multiplier", "filter", "sensitivity", "live", "density", "seconds"),
        *("accuracy", "privacy", "ticket_set", "round", "noise_std", "optimizer", "lr", "schedule", "average"),
        *("steps_taken", "features", "centre", "kernels", "groups", "skill"),
    }
    assert [body[key] for key in ("features", "centre")] == [None, None]
    assert (body["run"], body["ticket_set"], body["round"]) == ("r", "pub", 2)
    assert (body["steps"], body["sampling_rate"]) == (3, 100 / 719)
    assert (body["live"], body["density"]) == (308, 0.48986486486486486)
    assert (body["filter"], body["sensitivity"]) == ("clip(C=1)", 1.0)
    assert body["noise_std"] == body["noise_multiplier"] * body["sensitivity"]
    assert (body["optimizer"], body["lr"], type(body["seconds"])) == ("sgd", 1.0, float)
    check_privacy(body["privacy"], sampling="poisson")
    assert 0.998 < certified(body) <= 1
    assert body["privacy"]["nominal"] is None
    stored = json.loads(Path("r/result.json").read_text())
    assert len(stored.pop("weights")) == 64  # what its figures are of
    assert stored == {key: value for key, value in body.items() if key != "seconds"}
    assert cli("evaluate r --dataset digits --json").json == {
        **{"run": "r", "dataset": "digits", "records": 359, "accuracy": body["accuracy"], "notes": []},
        "skill": body["skill"],
    }


def test_train_without_noise_is_the_text_inf(cli):
    body = cli(f"train pub@2 {PRIVATE} --steps 2 --noise-multiplier 0 --out r --json").json
    check_privacy(body["privacy"], sampling="poisson")
    assert body["privacy"]["certified"]["epsilon"] == "inf"
    metrics = [json.loads(line) for line in Path("r/metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line["epsilon"]) for line in metrics] == [(1, "inf"), (2, "inf")]


def test_adjacency_and_delta_are_those_asked_for(cli, by_places):
    """Records are told apart by places that the published file fixes: replacing one leaves it where it is."""
    options = "--adjacency replace-one --delta 1e-6 --json"
    check_privacy(
        cli(f"select pub {by_places} --eps1 0.1 {options}").json["privacy"], adjacency="replace-one", delta=1e-6
    )
    nominal = "--filter tanh --noise nominal --noise-multiplier 1.5"
    body = cli(f"train pub@1 {by_places} --steps 2 {nominal} --out r {options}").json
    check_privacy(body["privacy"], adjacency="replace-one", delta=1e-6, sampling="poisson")
    assert body["noise_std"] == pytest.approx(3.0), "nominal noise is doubled"
    after = cli(f"select pub {by_places} --eps1 0.1 --json").json
    assert after["privacy"]["certified"]["adjacency"] == "replace-one", "all is stated for the stronger relation"


def test_datasets(cli, monkeypatch, tmp_path):
    (tmp_path / "mine.npz").write_bytes(b"")
    monkeypatch.setenv("DPLTM_DATA", str(tmp_path))
    body = cli("datasets ls --json").json
    assert set(body) == {"home", "datasets"}
    assert body["home"] == str(tmp_path)
    assert all(set(row) == {"name", "kind", "summary", "available"} for row in body["datasets"])
    available = {row["name"]: row["available"] for row in body["datasets"]}
    assert (available["digits"], available["mnist"], available["a9a"]) == ("yes", "download", "no")
    assert (available["mine"], available["imdb"], "adult" in available) == ("yes", "no", False)
    assert cli("datasets info digits --subset 0.5:1.0 --quiet --json").json == {
        **{"name": "digits", "records": 719, "records_origin": "described", "test_records": 359, "shape": "8x8"},
        **{"features": 64, "classes": 10, "classes_origin": "described", "bounds": [0.0, 16.0], "tables": None},
        **{"bounds_origin": "described", "notes": []},
    }
