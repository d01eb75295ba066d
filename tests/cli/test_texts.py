"""Texts, sequences and the networks for them, from one command to the next; and what makes no sense for them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from child_processes import PATIENCE
from dpltm.cli.main import run
from dpltm.networks import ModelSpec, build
from dpltm.records import Layout, load_records
from dpltm.tickets.run import load_run
from dpltm.tickets.ticket_set import load_ticket_set

WORDS = ("--words", "30", "--length", "12", "--classes", "2")
TEXTS, OTHER = ("--dataset", "texts.npz", *WORDS), ("--dataset", "other.npz", *WORDS)
ROUNDS = ("--rounds", "2", "--prune", "0.3", "--quiet")
LITTLE = ("--iterations", "5", "--batch-size", "30", "--provenance", "public")
NOISE = ("--noise-multiplier", "1", "--delta", "1e-3", "--batch-size", "50", "--steps", "2")
TAKEN_AS_PUBLIC = "which word is at which position is taken as public: no record of other may have decided it"


def ragged(count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Texts of 3 to 19 words out of 40: no two are equal."""
    generator = np.random.default_rng(seed)
    offsets = np.cumsum([0, *generator.integers(3, 20, count)])
    return generator.integers(0, 40, offsets[-1]).astype(np.uint32), offsets, generator.integers(0, 2, count)


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
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, model in (("embed", "embed:30:4,3"), ("gru", "gru:30:3,4")):
            assert run(["generate", *TEXTS, *ROUNDS, *LITTLE, "--model", model, "--out", name]) == 0
    return folder


@pytest.fixture
def texts(cwd: Path, text_sets: Path) -> Path:
    """The working folder, with all of that in it."""
    shutil.copytree(text_sets, cwd, dirs_exist_ok=True)
    return cwd


@pytest.mark.parametrize("name", ["embed", "gru"])
@pytest.mark.usefixtures("texts")
def test_select_train_use(cli, name):
    drawn = cli("select", name, *OTHER, "--eps1", "0.5", "--delta", "1e-3", "--json").json
    assert TAKEN_AS_PUBLIC in drawn["privacy"]["notes"]
    trained = cli("train", name, *OTHER, *NOISE, "--test", "texts.npz", "--out", "run", "--json").json
    assert TAKEN_AS_PUBLIC in trained["privacy"]["notes"]
    assert trained["privacy"]["certified"]["epsilon"] > 0.5
    found = cli("evaluate", "run", *TEXTS, "--json").json
    assert (found["records"], found["accuracy"]) == (60, trained["accuracy"])
    np.savez("x.npz", x=load_records("in.npz", layout=Layout(30, 12)))  # taken as in training
    for given in ("in", "x"):
        options = ("--input", f"{given}.npz", "-o", f"{given}.csv", "--json")
        assert cli("predict", "run", *options).json["saturated"] == 0
    assert Path("in.csv").read_bytes() == Path("x.csv").read_bytes()


@pytest.mark.usefixtures("texts")
def test_what_a_table_is_dropped_by(cli):
    """Whole words, that is rows: but for one each round, they live or they are gone."""
    given = (*TEXTS, *ROUNDS, *LITTLE, "--criterion", "inputs", "--model", "embed:30:4,3", "--out", "set")
    assert cli("generate", *given).code == 0
    left = load_ticket_set(Path("set")).body.tickets[-1].mask["table.rows.weight"].sum(1)
    assert int(((left > 0) & (left < 4)).sum()) <= 1
    assert int((left == 0).sum()) > 5


@pytest.mark.parametrize(
    ("name", "stay"),
    [("embed", {"fc1", "fc2"}), ("gru", {"recurrent.weight_ih_l0", "recurrent.weight_hh_l0", "fc1"})],
)
@pytest.mark.usefixtures("texts")
def test_copies_of_a_set(cli, name, stay):
    """Another table has other words; what is behind it stays. Of a recurrent layer biases stay with all of its weights."""
    wider = ("--dataset", "texts.npz", "--words", "40", "--length", "15", "--classes", "2")
    answer = cli("tickets", "transfer", name, *wider, "--out", "wider", "--json").json
    assert answer["model"].split(":")[1] == "40"
    assert {row["layer"] for row in answer["layers"] if row["weights"] == "kept"} == stay
    out = ("--to", "torch-prune", "--out", "t.safetensors", "--quiet")
    assert cli("tickets", "export", f"{name}@2", *out).code == 0
    shown = cli("tickets", "show", name, "--json").json
    given = ("--model", shown["model"], *TEXTS, "--out", "again", "--json")
    again = cli("tickets", "import", "t.safetensors", *given).json
    assert again["tickets"][1]["live"] == shown["tickets"][2]["live"]
    for copy in ("wider", "again"):
        assert cli("tickets", "verify", copy).code == 0


@pytest.mark.usefixtures("texts")
def test_onnx(cli):
    onnx = pytest.importorskip("onnx.reference")
    pytest.importorskip("onnxscript")
    assert cli("tickets", "export", "embed@0", "--to", "onnx", "--out", "e.onnx", "--quiet").code == 0
    x = torch.randint(-1, 32, (3, 12), generator=torch.Generator().manual_seed(0)).float()
    found = onnx.ReferenceEvaluator("e.onnx").run(None, {"records": x.numpy()})[0]
    expected = build(ModelSpec("embed:30:4,3", 12, 2), 0)(x).detach().numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_compact(cli, texts):
    given = (*TEXTS, "--rounds", "9", "--prune", "0.1,0.5,0.5", "--quiet")
    assert cli("generate", *given, "--criterion", "random", "--model", "embed:30:4,8", "--out", "thin").code == 0
    assert cli("train", "thin@3", *OTHER, *NOISE, "--out", "run", "--quiet").code == 0
    answer = cli("tickets", "compact", "run", "--out", "small", "--json").json
    assert answer["parameters"]["after"] < answer["parameters"]["before"]
    program = "exec(open('small/model.py').read().replace('__file__', repr('small/model.py')))\n"
    program += "x = torch.arange(36.0).view(3, 12) - 3\nprint(model(x).flatten().tolist())"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    expected = load_run(texts / "run").model(torch.arange(36.0).view(3, 12) - 3).flatten().tolist()
    assert eval(done.stdout) == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.long
def test_what_is_said_of_imdb(cli, data_home, monkeypatch):
    if not (data_home / "imdb.npz").is_file():
        pytest.skip("imdb.npz is not in the data home")
    monkeypatch.setenv("DPLTM_DATA", str(data_home))
    given = ("--dataset", "imdb", "--subset", "12400:12600", "--words", "50", "--length", "8", *NOISE)
    answer = cli("train", "--dense", "--model", "embed", *given, "--dry-run", "--json").json
    note = "the vocabulary of imdb was ranked on its own training reviews and is treated as public"
    assert note in answer["privacy"]["notes"]


REFUSED = {
    "quantities": (
        ("train", "--dense", "--model", "mlp:3", *OTHER, *NOISE),
        "--model: mlp:3 takes quantities, but records of other hold positions in tables of 30; take embed or embed-pad or"
        " lstm or gru",
    ),
    "no texts": (
        ("train", "--dense", "--model", "embed", "--dataset", "digits", *NOISE),
        "--model embed: takes texts, whose words are positions in one table; if these are such, say their number by"
        " --words",
    ),
    "features": (
        ("train", "--dense", "--model", "embed", *OTHER, *NOISE, "--features", "unit"),
        "--features: takes quantities, and records of other hold positions in tables; leave it out",
    ),
    "augment": (
        ("train", "--dense", "--model", "embed", *OTHER, *NOISE, "--augment", "flip"),
        "--augment: flip takes images, (height, width) or (height, width, colours), and a record here is of shape (12,);"
        " take --augment none",
    ),
    "synthetic": (
        ("generate", *TEXTS, *ROUNDS, "--model", "embed", "--criterion", "dp-synthetic", "--epsilon", "1"),
        "--criterion dp-synthetic: takes quantities, and records of texts hold positions in tables; take dp-train",
    ),
    "flow through gates": (
        ("generate", *TEXTS, *ROUNDS, "--model", "gru", "--criterion", "synflow"),
        "--criterion: synflow follows a flow through layers that are linear for it, and the gates of gru:30 are not; take"
        " init-magnitude or random",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.usefixtures("texts")
def test_refused(refused, case):
    command, message = REFUSED[case]
    assert refused(*command) == message


@pytest.mark.usefixtures("texts")
def test_refused_where_quantities_and_texts_meet(cli, refused):
    assert refused("tickets", "compact", "gru@2", "--out", "small") == (
        "nothing to compact: units of the recurrent layer of gru:30:3,4 cannot be removed"
    )
    narrow = (*OTHER[:2], "--words", "29", "--length", "12", "--classes", "2")
    assert refused("train", "embed@1", *narrow, *NOISE) == (
        "embed: its network takes positions in tables of 30, but records of other hold positions in tables of 29; use"
        " records like its own"
    )
    dense = ("train", "--dense", *NOISE, "--quiet")
    assert cli(*dense, "--model", "embed", *OTHER, "--out", "run").code == 0
    np.savez("flat.npz", x_train=np.tile(np.eye(12), (20, 1)), y_train=np.arange(240) % 2)
    flat = ("--dataset", "flat.npz", "--bounds", "0,1")
    assert refused(*dense, "--features", "network:run", *flat).startswith(
        "--features: the network embed:30 looks words up; take one"
    )
    behind = ("generate", *flat, "--model", "mlp:3", "--features", "unit", *ROUNDS, "--criterion", "random")
    assert refused(*behind, "--components", "2", "--public", "texts.npz", "--out", "set") == (
        "--public: takes quantities, and records of texts hold positions in tables; name another dataset"
    )
    assert cli(*behind, "--out", "set").code == 0
    assert refused("train", "set@1", *OTHER, *NOISE) == (
        "--dataset: takes quantities, and records of other hold positions in tables; use records like those that the"
        " features were made for"
    )
    assert cli(*dense, "--model", "mlp:3", *flat, "--out", "mlp").code == 0
    assert refused("predict", "mlp", "--input", "in.npz", "-o", "p.csv") == (
        "in.npz: holds texts (values), where records of quantities belong; give those, as x"
    )


# Networks for other records


def test_images_row_by_row(cli):
    given = ("--dataset", "digits", "--subset", "0.5:1.0", *NOISE)
    assert cli("train", "--dense", "--model", "lstm", *given, "--out", "run", "--json").json["steps"] == 2
    np.savez("x.npz", x=np.zeros((3, 8, 8), np.uint8))
    assert cli("predict", "run", "--input", "x.npz", "-o", "p.csv", "--json").json["records"] == 3
    np.savez("bad.npz", x=np.zeros((3, 4, 16), np.uint8))
    assert cli("predict", "run", "--input", "bad.npz", "-o", "q.csv").code == 2


def test_the_networks_of_latent(cli):
    """By units, made small, and trained under an element-wise filter."""
    given = ("--dataset", "digits", "--subset", "0.0:0.5", "--iterations", "3", "--batch-size", "32", "--quiet")
    given = (*given, "--provenance", "public", "--criterion", "structured", "--rounds", "2", "--prune", "0.4")
    assert cli("generate", *given, "--model", "latent:8x8x1:4,6,5", "--out", "latent").code == 0
    small = cli("tickets", "compact", "latent@2", "--out", "small", "--json").json
    assert small["model"]["after"].startswith("latent:8x8x1:")
    assert small["parameters"]["after"] < small["parameters"]["before"]
    train = ("--dataset", "digits", "--subset", "0.5:1.0", *NOISE, "--filter", "tanh")
    assert cli("train", "small@1", *train, "--out", "run", "--json").json["steps"] == 2
