"""No artifact holds where its maker's files lie, nor how long a training on private records took."""

import itertools
import json
import re
import shutil
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dpltm.cli.main import run
from dpltm.local import latent
from dpltm.options import _PATHS
from dpltm.options.train import TrainRequest
from dpltm.options.tune import TuneRequest
from dpltm.tickets.workbench import latent as latent_verb
from dpltm.training import release as training_release
from recipes import SETS

USER = "annalena-k"
"""A folder's name that tells whose files these are."""

TOOK = 98765.4321
"""Seconds that every training takes, by the clock of these tests."""

TIMES = ("98765", "296296", "1646.", "4938.", "823.0", "2469.", "493827", "8230.", "4115.")
"""How that is written, and several of it: in seconds, minutes, of two cores."""

BOUNDED = "--bounds 0,16 --classes 10"
LITTLE = f"--steps 2 --batch-size 30 {BOUNDED}"
TINY = "--model mlp:8 --rounds 1 --prune 0.3 --iterations 3 --batch-size 30"
RECIPE = """
[recipe]
title = "Small"
source = "nobody"
seeds = 1
[train]
dataset = "{home}/pri.npz"
test = "{home}/test.npz"
bounds = "0,16"
classes = 10
model = "mlp:4"
batch-size = 30
steps = 2
epsilon = 2.0
{sets}
[[arm]]
name = "dense"
[[arm]]
name = "drawn"
tickets = "a"
select = {{ eps1 = 0.5, score = "additive" }}
[[arm]]
name = "tuned"
tickets = "a"
tune = {{ dataset = "digits", for-records = 400, lr = "1", epochs = "0.2", batch-size = "60" }}
[[arm]]
name = "broken"
train = {{ audit = 100000 }}
"""


def home_in(folder: Path, made: Path) -> Path:
    """A folder of one user, with records in it."""
    home = folder / USER
    home.mkdir()
    rng = np.random.default_rng(5)
    x, y = rng.integers(0, 17, (500, 8, 8), dtype=np.uint8), np.arange(500) % 10
    np.savez(home / "pri.npz", x_train=x[:400], y_train=y[:400])
    np.savez(home / "test.npz", x_train=x[400:], y_train=y[400:])
    np.savez(home / "other.npz", x_train=255 - x[:400], y_train=y[:400])
    shutil.copytree(made / "pub", home / "pub")
    return home


def stop_the_clock(patch: pytest.MonkeyPatch) -> None:
    """Every reading is ``TOOK`` after the one before."""
    ticks = (number * TOOK for number in itertools.count())
    for module in (training_release, latent_verb):
        patch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))


@pytest.fixture(scope="module")
def artifacts(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of every kind, each asked for by absolute paths."""
    home = home_in(tmp_path_factory.mktemp("artifacts"), made)
    out = home / "made"
    out.mkdir()
    files = f"--test {home}/test.npz --ledger {out}/l.jsonl --out {out}/one.run"
    own, data = (f"--dataset {home}/pri.npz {known}" for known in (LITTLE, BOUNDED))
    dense = "train --dense --epsilon 2"
    commands = f"""
        train {home}/pub@1 {own} --epsilon 2 {files}
        {dense} --model mlp:8 {own} --out {out}/dense.run
        {dense} {own} --model mlp --features unit --centre 0.1 --out {out}/centred.run
        select {home}/pub {data} --eps1 0.3 --ledger {out}/l.jsonl
        generate {data} {TINY} --provenance private --out {out}/private.tickets
        generate {data} {TINY} --criterion dp-train --epsilon 1 --out {out}/dp.tickets
        tickets export {home}/pub --out {out}/copy.tickets
        tickets export {home}/pub@1 --out {out}/t.safetensors
        tickets import {out}/t.safetensors {data} --model mlp:8 --out {out}/in.tickets
        tickets transfer {home}/pub {data} --mode random --out {out}/moved.tickets
        latent scheme --public {home}/other.npz {BOUNDED} --features unit --epsilon 4 --out {out}/s.scheme
        latent encode {out}/s.scheme {data} --out {out}/o.msg
        latent train {out}/s.scheme --messages {out}/o.msg --out {out}/latent.run"""
    (home / "r.toml").write_text(RECIPE.format(home=home, sets=SETS), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home.parent)
        stop_the_clock(patch)
        for number, command in enumerate(commands.strip().splitlines()):
            entering = command.split()[0] in ("train", "generate") or " encode " in command or " scheme " in command
            command += f" --ledger {out}/{number}.jsonl" if entering and "--ledger" not in command else ""
            assert run([*command.split(), "--quiet"]) == 0, command
        assert run(f"run --config {home}/r.toml --jobs 1 --out {out}/r.sweep --quiet".split()) == 1
    return out


@pytest.mark.long
def test_no_artifact_tells_whose_machine_it_was_or_how_long_it_took(artifacts: Path) -> None:
    found = [path for path in sorted(artifacts.rglob("*")) if path.is_file()]
    kinds = ("config.json", "result.json", "tickets.json", "results.json", "results.md", "scheme.json", "o.msg")
    assert len(found) > 80
    assert {path.name for path in found} >= set(kinds)
    assert any(path.suffix == ".toml" for path in found)
    for path in found:
        data = path.read_bytes()
        for place in (str(artifacts.parent), USER, str(Path(torch.__file__).parent.parent), str(Path.home())):
            assert place.encode() not in data, path
        for digits in TIMES:  # not within a fraction, where chance may put any digits
            assert not re.search(rb"(?<![\d.])" + re.escape(digits).encode(), data), path
        if path.suffix == ".json":
            assert not re.search(rb'"[a-z_]*(seconds|minutes)"', data), path
        assert b"stack_trace" not in data, path


def test_what_is_stored_still_says_which_files_they_were(artifacts: Path) -> None:
    def stored(name: str) -> dict[str, Any]:
        return json.loads((artifacts / name).read_text())

    options, result = stored("one.run/config.json")["options"], stored("one.run/result.json")
    files = {"dataset": "pri.npz", "test": "test.npz", "ledger": "l.jsonl", "out": "one.run", "ticket": "pub@1"}
    assert {key: options[key] for key in files} == files
    assert (result["run"], result["ticket_set"]) == ("one.run", "pub")
    learned, body = stored("latent.run/result.json"), stored("r.sweep/results.json")
    assert (learned["messages"], learned["run"]) == ("o.msg", "latent.run")
    assert (body["config"], body["out"]) == ("r.toml", "r.sweep")
    assert body["arms"][-1]["missing"] == [{"seed": 0, "why": "it failed; the same command says why"}]


@pytest.mark.parametrize(
    "cls", [TrainRequest, latent.TrainRequest, TuneRequest, latent.SchemeRequest, latent.EncodeRequest]
)
def test_every_option_that_takes_a_file_is_known_to_be_one(cls: type) -> None:
    """Whoever adds one says so in its metavar, which is what ``recorded`` goes by."""
    known = {"dataset", "test", "ticket", "out", "ledger", "plot", "public", "scheme", "schema", "messages", "set"}
    known |= {"start", *(["model"] if cls in (TrainRequest, TuneRequest) else [])}  # else a kind alone
    paths = {item.name for item in fields(cls) if _PATHS & set(re.findall("[A-Z]+", item.metadata["metavar"] or ""))}
    assert paths == known & {item.name for item in fields(cls)}
