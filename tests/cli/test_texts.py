"""Texts, sequences and the networks for them, from one command to the next; and what makes no sense for them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch

from commands import PRIVATE, PUBLIC, certified, made_by
from dpltm.networks import ModelSpec, build
from dpltm.records import Layout, load_records
from dpltm.tickets.run import load_run

WORDS = "--words 30 --classes 2"
TEXTS, OTHER = f"--dataset texts.npz {WORDS}", f"--dataset other.npz {WORDS}"
ROUNDS = "--rounds 2 --prune 0.3"
LITTLE = "--iterations 5 --batch-size 30 --provenance public"
NOISE = "--noise-multiplier 1 --delta 1e-3 --batch-size 50 --steps 2"
TAKEN_AS_PUBLIC = "which word is at which position is taken as public: no record of other may have decided it"


def ragged(count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Texts of 3 to 19 words out of 40: no two are equal."""
    generator = np.random.default_rng(seed)
    offsets = np.cumsum([0, *generator.integers(3, 20, count)])
    return generator.integers(0, 40, offsets[-1]).astype(np.uint32), offsets, generator.integers(0, 2, count)


@pytest.fixture(scope="module", autouse=True)
def _short_texts() -> Iterator[None]:
    """Of each text the last 12 words, not 256."""
    with mock.patch.object(Layout.__init__, "__defaults__", (10_000, 12)):
        yield


@pytest.fixture(scope="module")
def text_sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with texts.npz, which has a test split, other.npz, in.npz, records alone, and public sets of texts.npz."""
    folder = tmp_path_factory.mktemp("texts")
    names, parts = ("values", "offsets", "y"), {"train": ragged(150, 0), "test": ragged(60, 1)}
    held = {
        f"{name}_{part}": value for part, values in parts.items() for name, value in zip(names, values, strict=True)
    }
    np.savez(folder / "texts.npz", **held)
    np.savez(folder / "other.npz", **{f"{name}_train": x for name, x in zip(names, ragged(150, 2), strict=True)})
    np.savez(folder / "in.npz", **dict(zip(names[:2], ragged(5, 3)[:2], strict=True)))
    made = f"generate {TEXTS} {ROUNDS} {LITTLE} --model"
    return made_by(folder, f"{made} embed:30:4,3 --out embed", f"{made} gru:30:3,4 --out gru")


@pytest.fixture
def texts(cwd: Path, text_sets: Path) -> Path:
    """The working folder, with all of that in it."""
    shutil.copytree(text_sets, cwd, dirs_exist_ok=True)
    return cwd


@pytest.mark.parametrize("name", ["embed", "gru"])
@pytest.mark.usefixtures("texts")
def test_select_train_use(cli, name):
    drawn = cli(f"select {name} {OTHER} --eps1 0.5 --delta 1e-3 --json").json
    assert TAKEN_AS_PUBLIC in drawn["privacy"]["notes"]
    trained = cli(f"train {name} {OTHER} {NOISE} --test texts.npz --out run --json").json
    assert TAKEN_AS_PUBLIC in trained["privacy"]["notes"]
    assert certified(trained) > 0.5
    found = cli(f"evaluate run {TEXTS} --json").json
    assert (found["records"], found["accuracy"]) == (60, trained["accuracy"])
    np.savez("x.npz", x=load_records("in.npz", layout=Layout(30, 12)))  # taken as in training
    for given in ("in", "x"):
        assert cli(f"predict run --input {given}.npz -o {given}.csv --json").json["saturated"] == 0
    assert Path("in.csv").read_bytes() == Path("x.csv").read_bytes()


@pytest.mark.parametrize(
    ("name", "stay"),
    [("embed", {"fc1", "fc2"}), ("gru", {"recurrent.weight_ih_l0", "recurrent.weight_hh_l0", "fc1"})],
)
@pytest.mark.usefixtures("texts")
def test_copies_of_a_set(cli, name, stay):
    """Another table has other words; what is behind it stays. Of a recurrent layer biases stay with all of its weights."""
    wider = "--dataset texts.npz --words 40 --classes 2"
    answer = cli(f"tickets transfer {name} {wider} --out wider --json").json
    assert answer["model"].split(":")[1] == "40"
    assert {row["layer"] for row in answer["layers"] if row["weights"] == "kept"} == stay
    assert cli(f"tickets export {name}@2 --to torch-prune --out t.safetensors").code == 0
    shown = cli(f"tickets show {name} --json").json
    again = cli(f"tickets import t.safetensors --model {shown['model']} {TEXTS} --out again --json").json
    assert again["tickets"][1]["live"] == shown["tickets"][2]["live"]
    for copy in ("wider", "again"):
        assert cli(f"tickets verify {copy}").code == 0


@pytest.mark.long  # importing onnx's script takes seconds; tests/tickets/test_export.py exports other networks
@pytest.mark.usefixtures("texts")
def test_onnx(cli):
    onnx = pytest.importorskip("onnx.reference")
    pytest.importorskip("onnxscript")
    assert cli("tickets export embed@0 --to onnx --out e.onnx").code == 0
    x = torch.randint(-1, 32, (3, 12), generator=torch.Generator().manual_seed(0)).float()
    found = onnx.ReferenceEvaluator("e.onnx").run(None, {"records": x.numpy()})[0]
    expected = build(ModelSpec("embed:30:4,3", 12, 2), 0)(x).detach().numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_compact(cli, texts):
    made = f"generate {TEXTS} --rounds 9 --prune 0.1,0.5,0.5 --criterion random --model embed:30:4,8 --out thin"
    assert cli(made).code == 0
    assert cli(f"train thin@3 {OTHER} {NOISE} --out run").code == 0
    answer = cli("tickets compact run --out small --json").json
    assert answer["parameters"]["after"] < answer["parameters"]["before"]
    x = torch.arange(36.0).view(3, 12) - 3
    found, expected = (load_run(texts / name).model(x) for name in ("small", "run"))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.long
def test_what_is_said_of_imdb(cli, data_home, monkeypatch):
    if not (data_home / "imdb.npz").is_file():
        pytest.skip("imdb.npz is not in the data home")
    monkeypatch.setenv("DPLTM_DATA", str(data_home))
    given = f"--dataset imdb --subset 12400:12600 --words 50 {NOISE}"
    answer = cli(f"train --dense --model embed {given} --dry-run --json").json
    note = "the vocabulary of imdb was ranked on its own training reviews and is treated as public"
    assert note in answer["privacy"]["notes"]


@pytest.mark.usefixtures("texts")
def test_refused_where_quantities_and_texts_meet(cli, refused):
    np.savez("flat.npz", x_train=np.tile(np.eye(12), (20, 1)), y_train=np.arange(240) % 2)
    flat = "--dataset flat.npz --bounds 0,1"
    narrow = OTHER.replace("30", "29")
    assert refused(f"train embed@1 {narrow} {NOISE}").startswith("embed: its network takes positions in tables of 30")
    assert cli(f"train --dense {NOISE} --model embed {OTHER} --out run").code == 0
    assert cli(f"generate {flat} --model mlp:3 --features unit {ROUNDS} --criterion random --out set").code == 0
    assert refused(f"train set@1 {OTHER} {NOISE}").startswith("--dataset: takes quantities")


# --- networks for other records ---


def test_the_networks_of_latent(cli):
    """By units, made small, and trained under an element-wise filter."""
    few = "--iterations 3 --batch-size 32 --provenance public --criterion structured --rounds 2 --prune 0.4"
    assert cli(f"generate {PUBLIC} {few} --model latent:8x8x1:4,6,5 --out latent").code == 0
    small = cli("tickets compact latent@2 --out small --json").json
    assert small["model"]["after"].startswith("latent:8x8x1:")
    assert small["parameters"]["after"] < small["parameters"]["before"]
    assert cli(f"train small@1 {PRIVATE} {NOISE} --filter tanh --out run --json").json["steps"] == 2


@pytest.mark.usefixtures("texts")
def test_a_run_of_texts_of_another_length_is_measured_at_its_own(cli):
    assert cli(f"train embed@1 {OTHER} {NOISE} --test texts.npz --out run").code == 0
    with mock.patch.object(Layout.__init__, "__defaults__", (10_000, 256)):
        answer = cli(f"evaluate run {TEXTS} --json")
    assert answer.code == 0
    assert answer.json["records"] == 60
