"""One set of defaults for tables: the same at the terminal, in Python and in the estimators."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

import dpltm

SHORT = {"delta": 1e-3, "epsilon": 2.0, "batch_size": 100, "epochs": 2, "noise": "fast"}
TRAIN = "train --dense --dataset t.csv --label y --bounds 0,1 --classes 2 --records 400 --delta 1e-3 --epsilon 2"
TRAIN += " --batch-size 100 --epochs 2 --noise fast"


@pytest.fixture
def frame(cwd: Path) -> pandas.DataFrame:
    draw = np.random.default_rng(0)
    made = pandas.DataFrame(draw.random((400, 16)).round(6), columns=list("abcdefghijklmnop"))
    made["y"] = (made["a"] > 0.5).astype(int)
    made.to_csv(cwd / "t.csv", index=False)
    return made


def said(config: Any) -> tuple[Any, ...]:
    options = config["options"]
    return config["model"], options["schedule"], options.get("centre"), options["optimizer"]


def test_three_faces_train_alike(cli: Any, frame: pandas.DataFrame) -> None:
    body = cli(f"{TRAIN} --out r --json").json
    assert body["features"] == "fourier:1024,4"
    config = json.loads(Path("r/config.json").read_text())
    assert said(config) == ("mlp", "linear", 0.05, "sgd")
    facts = {"bounds": (0, 1), "ledger": dpltm.Ledger(), **SHORT}
    x, y = frame.drop(columns="y"), frame["y"]
    run = dpltm.train("mlp", x, y, classes=2, records=400, **facts)
    made = dpltm.TicketClassifier(classes=2, n_records=400, **facts).fit(x, y)
    for one in (run, made.run_):
        assert one.feature_map.text == "fourier:1024,4"
        assert said(one.config) == said(config)
        assert one.lineage.paid[-1].mechanisms[-1].noise_multiplier == pytest.approx(body["noise_multiplier"])
    assert run.config["options"].get("features") == config["options"].get("features")  # as they were given


@pytest.mark.one_of(2)
@pytest.mark.parametrize(
    ("more", "features", "told"),
    [
        ("--model mlp:4", None, ("mlp:4", "constant", None, "sgd")),
        ("--features none", None, ("mlp:300,100", "constant", None, "sgd")),
        ("--features unit --centre 0 --schedule constant", "unit:1", ("mlp", "constant", None, "sgd")),
        ("--features unit", "unit:1", ("mlp", "linear", 0.05, "sgd")),
        ("--optimizer adam", "fourier:1024,4", ("mlp", "constant", None, "adam")),
    ],
)
def test_defaults_give_way_to_what_is_named(
    cli: Any, frame: pandas.DataFrame, more: str, features: str | None, told: tuple[Any, ...]
) -> None:
    del frame
    assert cli(f"{TRAIN} {more} --out r --json").json["features"] == features
    assert said(json.loads(Path("r/config.json").read_text())) == told
