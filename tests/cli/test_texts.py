"""Texts, sequences and the networks for them, from one command to the next; and what makes no sense for them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from child_processes import PATIENCE

WORDS = ("--words", "30", "--length", "12", "--classes", "2")
TEXTS, OTHER = ("--dataset", "texts.npz", *WORDS), ("--dataset", "other.npz", *WORDS)
ROUNDS = ("--rounds", "2", "--prune", "0.3", "--quiet")
NOISE = ("--noise-multiplier", "1", "--delta", "1e-3", "--batch-size", "50", "--steps", "2")
TAKEN_AS_PUBLIC = "which word is at which position is taken as public: no record of other may have decided it"


def ragged(count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Texts of up to 19 words out of 40, among which the first two tell the label."""
    generator = np.random.default_rng(seed)
    y = generator.integers(0, 2, count)
    texts = []
    for label in y:
        words = generator.integers(0, 40, generator.integers(0, 20))
        texts.append(np.where(generator.random(len(words)) < 0.3, 1 + label, words))
    offsets = np.cumsum([0, *map(len, texts)])
    return np.concatenate(texts).astype(np.uint32), offsets, y


@pytest.fixture
def texts(cwd):
    """The working folder with texts.npz, which has a test split, other.npz, and in.npz, records alone."""
    parts = {"train": ragged(150, 0), "test": ragged(60, 1)}
    names = ("values", "offsets", "y")
    held = {
        f"{name}_{part}": value for part, values in parts.items() for name, value in zip(names, values, strict=True)
    }
    np.savez(cwd / "texts.npz", **held)
    np.savez(cwd / "other.npz", **{f"{name}_train": value for name, value in zip(names, ragged(150, 2), strict=True)})
    np.savez(cwd / "in.npz", **dict(zip(names[:2], ragged(5, 3)[:2], strict=True)))
    return cwd


@pytest.fixture
def set_of(texts, cli):
    """A function that makes a public ticket set of a network, in a folder of its kind's name."""
    del texts

    def make(model: str) -> str:
        name = model.partition(":")[0]
        train = ("--iterations", "10", "--batch-size", "30", "--provenance", "public")
        assert cli("generate", *TEXTS, *ROUNDS, *train, "--model", model, "--out", name).code == 0
        return name

    return make


@pytest.mark.parametrize("model", ["embed:30:4,3", "lstm:30:3,4", "gru"])
def test_generate_select_train_use(set_of, cli, model):
    name = set_of(model)
    drawn = cli("select", name, *OTHER, "--eps1", "0.5", "--delta", "1e-3", "--json").json
    assert TAKEN_AS_PUBLIC in drawn["privacy"]["notes"]
    trained = cli("train", name, *OTHER, *NOISE, "--test", "texts.npz", "--out", "run", "--json").json
    assert TAKEN_AS_PUBLIC in trained["privacy"]["notes"]
    assert trained["privacy"]["certified"]["epsilon"] > 0.5
    found = cli("evaluate", "run", *TEXTS, "--json").json
    assert found["records"] == 60
    assert 0 <= found["accuracy"] <= 1
    assert cli("predict", "run", "--input", "in.npz", "-o", "p.csv", "--json").json["records"] == 5
    assert cli("tickets", "verify", name).code == 0
    assert "table" in cli("tickets", "show", f"{name}@2").out


def test_records_alone_are_taken_as_in_training(set_of, cli):
    from dpltm.data import Layout, load_records

    assert cli("train", set_of("embed"), "--dense", *OTHER, *NOISE, "--out", "run", "--quiet").code == 0
    np.savez("x.npz", x=load_records("in.npz", layout=Layout(30, 12)))
    answers = []
    for given, written in (("in.npz", "one.npz"), ("x.npz", "other-one.npz")):
        assert cli("predict", "run", "--input", given, "-o", written, "--json").json["saturated"] == 0
        with np.load(written) as archive:
            answers.append(archive["probabilities"])
    assert np.array_equal(*answers)
    np.savez("wide.npz", x=np.full((3, 12), 30))
    done = cli("predict", "run", "--input", "wide.npz", "-o", "wide.csv")
    assert done.code == 0
    assert "36" in done.out


@pytest.mark.parametrize("kind", ["clip", "per-layer", "tanh", "auto"])
def test_filters(set_of, cli, kind):
    name = set_of("gru:30:3,4")
    answer = cli("train", f"{name}@2", *OTHER, *NOISE, "--filter", kind, "--out", "run", "--json").json
    assert answer["filter"].startswith(("clip", "per-layer", "tanh", "automatic", "auto"))
    assert answer["live"] < 3 * 29 + 12 * 3 + 12 * 4 + 24 + 8 + 2 + 3


@pytest.mark.parametrize("criterion", ["random", "init-magnitude", "synflow", "inputs", "dp-train"])
@pytest.mark.usefixtures("texts")
def test_criteria(cli, criterion):
    more = {
        "inputs": ("--iterations", "5", "--batch-size", "30", "--provenance", "public"),
        "dp-train": ("--iterations", "2", "--batch-size", "30", "--epsilon", "9", "--delta", "1e-3"),
    }
    given = (*TEXTS, *ROUNDS, "--criterion", criterion, *more.get(criterion, ()))
    assert cli("generate", *given, "--model", "embed:30:4,3", "--out", "set").code == 0
    assert cli("tickets", "verify", "set").code == 0


@pytest.mark.usefixtures("texts")
def test_what_a_table_is_dropped_by(cli):
    """Whole words, that is rows: but for one each round, they live or they are gone."""
    from dpltm.tickets.ticket_set import load_ticket_set

    given = (
        *TEXTS,
        *ROUNDS,
        "--iterations",
        "5",
        "--batch-size",
        "30",
        "--provenance",
        "public",
        "--criterion",
        "inputs",
    )
    assert cli("generate", *given, "--model", "embed:30:4,3", "--out", "set").code == 0
    mask = load_ticket_set(Path("set")).body.tickets[-1].mask["table.rows.weight"]
    left = mask.sum(1)
    assert int(((left > 0) & (left < 4)).sum()) <= 1
    assert int((left == 0).sum()) > 5


def test_forms_of_a_ticket(set_of, cli):
    for name in (set_of("embed:30:4,3"), set_of("gru:30:3,4")):
        for form in ("state-dict", "torch-prune"):
            out = f"{name}-{form}.safetensors"
            assert cli("tickets", "export", f"{name}@2", "--to", form, "--out", out, "--quiet").code == 0
        model = cli("tickets", "show", name, "--json").json["model"]
        given = ("--model", model, *TEXTS, "--out", f"{name}-again", "--json")
        again = cli("tickets", "import", f"{name}-torch-prune.safetensors", *given).json
        assert again["tickets"][1]["live"] == cli("tickets", "show", name, "--json").json["tickets"][2]["live"]


def test_onnx(set_of, cli):
    onnx = pytest.importorskip("onnx.reference")
    pytest.importorskip("onnxscript")
    import torch

    from dpltm.models import ModelSpec, build

    name = set_of("embed:30:4,3")
    assert cli("tickets", "export", f"{name}@0", "--to", "onnx", "--out", "e.onnx", "--quiet").code == 0
    x = torch.randint(-1, 32, (3, 12), generator=torch.Generator().manual_seed(0)).float()
    found = onnx.ReferenceEvaluator("e.onnx").run(None, {"records": x.numpy()})[0]
    expected = build(ModelSpec("embed:30:4,3", 12, 2), 0)(x).detach().numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_carried_over(set_of, cli):
    """Another table has other words; what is behind it stays. Of a recurrent layer biases stay with all of its weights."""
    wider = ("--dataset", "texts.npz", "--words", "40", "--length", "15", "--classes", "2")
    for name, kept in ((set_of("embed:30:4,3"), {"fc1", "fc2"}), (set_of("gru:30:3,4"), None)):
        answer = cli("tickets", "transfer", name, *wider, "--out", f"{name}-wider", "--json").json
        assert answer["model"].split(":")[1] == "40"
        stay = {row["layer"] for row in answer["layers"] if row["weights"] == "kept"}
        assert stay == (kept or {"recurrent.weight_ih_l0", "recurrent.weight_hh_l0", "fc1"})
        assert cli("tickets", "verify", f"{name}-wider").code == 0


def test_compact(cli, texts):
    import torch

    from dpltm.tickets.run import load_run

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


@pytest.mark.usefixtures("texts")
def test_tune(cli):
    given = (
        "--for-records",
        "150",
        "--epsilon",
        "5",
        "--delta",
        "1e-3",
        "--lr",
        "1",
        "--epochs",
        "1",
        "--batch-size",
        "50",
    )
    assert cli("tune", *TEXTS, *given, "--model", "embed", "--json").json["best"]["steps"] == 3


@pytest.mark.usefixtures("texts")
def test_info(cli):
    body = cli("datasets", "info", "texts.npz", *WORDS, "--json").json
    assert (body["tables"], body["bounds"], body["shape"], body["records"]) == ([30], None, "12", 150)


def test_what_is_said_of_imdb(cli, data_home, monkeypatch):
    if not (data_home / "imdb.npz").is_file():
        pytest.skip("imdb.npz is not in the data home")
    monkeypatch.setenv("DPLTM_DATA", str(data_home))
    given = (
        "--dataset",
        "imdb",
        "--subset",
        "12400:12600",
        "--words",
        "50",
        "--length",
        "8",
        "--noise-multiplier",
        "1",
    )
    answer = cli("train", "--dense", "--model", "embed", *given, "--delta", "1e-3", "--dry-run", "--json").json
    assert (
        "the vocabulary of imdb was ranked on its own training reviews and is treated as public"
        in answer["privacy"]["notes"]
    )


REFUSED = {
    "quantities": (
        ("train", "--dense", "--model", "mlp:3", *OTHER, *NOISE),
        "--model: mlp:3 takes quantities, but records of other hold positions in tables of 30; take embed or embed-pad or"
        " lstm or gru",
    ),
    "the usual network": (
        ("train", "--dense", *OTHER, *NOISE),
        "--model: mlp:300,100 takes quantities, but records of other hold positions in tables of 30; take embed or embed-pad"
        " or lstm or gru",
    ),
    "another table": (
        ("train", "--dense", "--model", "embed:31", *OTHER, *NOISE),
        "--model: embed:31 takes positions in tables of 31, but records of other hold positions in tables of 30; take embed"
        " or embed-pad or lstm or gru",
    ),
    "positions": (
        ("train", "--dense", "--model", "embed:30", "--dataset", "digits", *NOISE),
        "--model: embed:30 takes positions in tables of 30, but records of digits hold quantities; take mlp or cnn or latent"
        " or lstm or gru",
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
    "components": (
        *(("train", "--dense", "--model", "embed", *OTHER, *NOISE, "--components", "3"),),
        "--components: of public features; name their dataset with --public",
    ),
    "augment": (
        ("train", "--dense", "--model", "embed", *OTHER, *NOISE, "--augment", "flip"),
        "--augment: flip takes images, (height, width) or (height, width, colours), and a record here is of shape (12,);"
        " take --augment none",
    ),
    "centre": (
        ("train", "--dense", "--model", "embed", *OTHER, *NOISE[2:], "--epsilon", "1", "--centre", "0.1"),
        "--centre: takes quantities, and records of other hold positions in tables; leave it out",
    ),
    "bounds": (
        ("train", "--dense", "--model", "embed", *OTHER, *NOISE, "--bounds", "0,1"),
        "--bounds: is for quantities, and these records hold positions in a table; drop --bounds",
    ),
    "synthetic": (
        ("generate", *TEXTS, *ROUNDS, "--model", "embed", "--criterion", "dp-synthetic", "--epsilon", "1"),
        "--criterion dp-synthetic: takes quantities, and records of texts hold positions in tables; take dp-train",
    ),
    "structured": (
        ("generate", *TEXTS, *ROUNDS, "--model", "embed", "--criterion", "structured", "--provenance", "public"),
        "--criterion: structured drops units of fully connected layers and of convolutions, and most weights of embed:30 are"
        " in other layers; take magnitude, or inputs",
    ),
    "flow through gates": (
        ("generate", *TEXTS, *ROUNDS, "--model", "gru", "--criterion", "synflow"),
        "--criterion: synflow follows a flow through layers that are linear for it, and the gates of gru:30 are not; take"
        " init-magnitude or random",
    ),
    "local": (
        ("latent", "scheme", "--public", "texts.npz", "--epsilon", "1", "--out", "scheme"),
        "--features: takes quantities, and records of texts hold positions in tables; leave it out",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.usefixtures("texts")
def test_refused(refused, case):
    command, message = REFUSED[case]
    assert refused(*command) == message


def test_refused_for_a_set_or_a_run(set_of, cli, refused):
    name = set_of("embed")
    assert refused("tickets", "transfer", name, "--dataset", "digits", "--out", "x") == (
        "--model embed: takes texts, whose words are positions in one table; if these are such, say their number by --words"
    )
    narrow = (*OTHER[:2], "--words", "29", "--length", "12", "--classes", "2")
    assert refused("train", f"{name}@1", *narrow, *NOISE) == (
        f"{name}: its network takes positions in tables of 30, but records of other hold positions in tables of 29; use"
        " records like its own"
    )
    dense = ("train", "--dense", "--model", "embed", *OTHER, *NOISE, "--quiet")
    assert cli(*dense, "--out", "run").code == 0
    assert refused("evaluate", "run", "--dataset", "texts.npz", *narrow[2:]) == (
        "run: its network takes positions in tables of 30, but records of texts hold positions in tables of 29; use records"
        " like those that it was trained on"
    )
    np.savez("flat.npz", x_train=np.eye(12), y_train=np.arange(12) % 2)
    flat = ("--dataset", "flat.npz", "--bounds", "0,1", "--noise-multiplier", "1", "--delta", "1e-3")
    assert refused("train", "--dense", "--features", "network:run", *flat).startswith(
        "--features: the network embed:30 looks words up; take one"
    )
    np.savez("quantities.npz", values=np.zeros(3, int), offsets=np.array([0, 3]))
    mlp = (
        "train",
        "--dense",
        "--model",
        "mlp:3",
        "--dataset",
        "digits",
        *NOISE,
        "--delta",
        "1e-4",
        "--quiet",
        "--out",
        "mlp",
    )
    assert cli(*mlp).code == 0
    assert refused("predict", "mlp", "--input", "quantities.npz", "-o", "p.csv") == (
        "quantities.npz: holds texts (values), where records of quantities belong; give those, as x"
    )


@pytest.mark.usefixtures("texts")
def test_features_of_quantities_are_not_taken_of_texts(cli, refused):
    """Of texts as public records, and of texts for a set with features in front."""
    np.savez("flat.npz", x_train=np.tile(np.eye(12), (20, 1)), y_train=np.arange(240) % 2)
    flat = ("--dataset", "flat.npz", "--bounds", "0,1", "--model", "mlp:3", "--features", "unit", *ROUNDS)
    taken = (*flat, "--criterion", "random")
    assert refused("generate", *taken, "--components", "2", "--public", "texts.npz", "--out", "set") == (
        "--public: takes quantities, and records of texts hold positions in tables; name another dataset"
    )
    assert cli("generate", *taken, "--out", "set").code == 0
    assert refused("train", "set@1", *OTHER, *NOISE) == (
        "--dataset: takes quantities, and records of other hold positions in tables; use records like those that the"
        " features were made for"
    )


def test_units_of_a_recurrent_layer_stay(set_of, refused):
    name = set_of("gru")
    assert refused("tickets", "compact", f"{name}@2", "--out", "small") == (
        "nothing to compact: units of the recurrent layer of gru:30 cannot be removed"
    )


# Networks for other records


@pytest.mark.parametrize("model", ["lstm", "gru:8x8:5"])
def test_images_row_by_row(cli, model):
    given = ("--dataset", "digits", "--subset", "0.5:1.0", *NOISE)
    body = cli("train", "--dense", "--model", model, *given, "--out", "run", "--json").json
    assert body["steps"] == 2
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
    assert cli("tickets", "export", "small@1", "--to", "state-dict", "--out", "s.safetensors", "--quiet").code == 0
