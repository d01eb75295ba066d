"""dpltm latent train: what a server learns from messages, that it costs nothing more, and what it refuses."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from dpltm.cli.main import run
from dpltm.features.feature_map import make_feature_map

SETTINGS = {
    "s": ("--protocol", "rappor", "--epsilon", "192", "--label-epsilon", "5"),
    "weak": ("--protocol", "rappor", "--epsilon", "0.1", "--label-epsilon", "0.1"),
    "open": ("--protocol", "rappor", "--epsilon", "192", "--label-epsilon", "public"),
}


@pytest.fixture(scope="module")
def learned(tmp_path_factory, _own_config_home) -> Path:
    """Disjoint digits: ``pub.npz`` with a test split, ``a.npz`` and ``b.npz`` of two owners; schemes and messages."""
    from sklearn.datasets import load_digits

    folder, digits = tmp_path_factory.mktemp("learned"), load_digits()
    x, y = digits.images.astype(np.uint8), digits.target
    np.savez(folder / "pub.npz", x_train=x[:400], y_train=y[:400], x_test=x[400:700], y_test=y[400:700])
    np.savez(folder / "a.npz", x_train=x[700:1300], y_train=y[700:1300])
    np.savez(folder / "b.npz", x_train=x[1300:], y_train=y[1300:])
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, setting in SETTINGS.items():
            scheme = (
                "latent",
                "scheme",
                "--public",
                "pub.npz",
                "--features",
                "unit",
                *setting,
                "--out",
                name,
                "--quiet",
            )
            assert run([*scheme]) == 0
            for owner in ("a", "b"):
                out = f"{name}.{owner}"
                assert run(["latent", "encode", name, "--dataset", f"{owner}.npz", "--out", out, "--quiet"]) == 0
    return folder


@pytest.fixture
def cwd(tmp_path, learned, monkeypatch) -> Path:
    """The working folder, with all of these in it."""
    folder = tmp_path / "work"
    shutil.copytree(learned, folder)
    monkeypatch.chdir(folder)
    return folder


TRAIN = ("latent", "train", "s", "--messages", "s.a,s.b")
QUICK = (*TRAIN, "--model", "mlp:8", "--epochs", "1")


# --- what is learned ---


@pytest.mark.parametrize("rounds", [0, 2])
def test_digits_are_told_apart(cli, rounds):
    """Ten classes: chance is a tenth. The model that is written gets as many right as is said."""
    body = cli(
        *TRAIN, "--test", "pub.npz", "--model", "mlp:32", "--epochs", "15", "--rounds", rounds, "--out", "r", "--json"
    )
    body = body.json
    assert (body["records"], body["inputs"], body["nominal"]) == (1097, 64, 197.0)
    assert body["certified"] == pytest.approx(197)
    assert body["accuracy"] > 0.6  # messages are drawn anew each time: six draws gave 77 to 82 %
    assert 0.5 < body["tickets"][-1]["randomised"] <= 1
    assert [row["round"] for row in body["tickets"]] == list(range(rounds + 1))
    assert body["accuracy"] == body["tickets"][-1]["accuracy"]
    weights, public = load_file("r/model.safetensors"), np.load("pub.npz")
    plain = make_feature_map("unit:1", (8, 8), (0.0, 255.0))
    negative = (plain(public["x_test"]) - plain(public["x_train"]).mean(0)).numpy() < 0
    inputs = np.where(negative, -1.0, 1.0)  # of a sign alone, every input weighs the same
    right = outputs(weights, inputs * size_of_an_input()).argmax(1) == public["y_test"]
    assert np.mean(right) == pytest.approx(body["accuracy"], abs=0.011)


def size_of_an_input() -> float:
    """Randomised inputs have norm 8, one is sqrt(64) times smaller; one that is certain is (p - q)^-1 times that."""
    p = np.exp(3) / (1 + np.exp(3))
    return 8 / np.sqrt(64) / (2 * p - 1)


def outputs(weights: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    hidden = np.maximum(x @ weights["fc1.weight"].T + weights["fc1.bias"], 0)
    return hidden @ weights["fc2.weight"].T + weights["fc2.bias"]


def test_training_leaves_ledgers_and_messages_alone(cli, tree):
    before = tree()
    assert cli(*QUICK, "--rounds", "1", "--out", "r", "--quiet").code == 0
    after = tree()
    new = {path: data for path, data in after.items() if path not in before}
    assert {path: data for path, data in after.items() if path in before} == before
    assert set(new) == {"r", *(f"r/{path.name}" for path in Path("r").iterdir())}
    assert not any("ledger" in path for path in new)


def test_what_is_on_record(cli):
    body = cli(*QUICK, "--test", "pub.npz", "--out", "deep/r", "--json").json
    assert sorted(path.name for path in Path("deep/r").iterdir()) == [
        *("environment.json", "mask.safetensors", "model.safetensors", "result.json"),
    ]
    found = json.loads(Path("deep/r/result.json").read_text())
    assert (found["format"], found["schema"]) == ("dpltm-latent-run", 1)
    assert (found["messages"], found["epochs"], found["dropout"]) == ("s.a,s.b", 1.0, 0.0)
    assert body["run"] == "deep/r"
    assert (found["run"], "seconds" in found) == ("r", False)
    for key in set(body) - {"run", "seconds"}:
        assert found[key] == body[key]


def test_a_run_says_which_scheme_it_is_of(cli):
    cli(*QUICK, "--out", "r", "--quiet")
    scheme = json.loads(Path("s/scheme.json").read_text())
    assert json.loads(Path("r/result.json").read_text())["scheme"] == scheme["id"]


def test_people_see_what_holds(cli):
    done = cli(*QUICK, "--test", "pub.npz", "--rounds", "1", "--out", "r")
    assert done.code == 0
    assert done.out.index("certified local epsilon of a record = 197") < done.out.index("nominal local epsilon")
    assert "on randomised records" in done.out
    assert "100.00%" in done.out


# --- bad input ---


BAD = {
    "--batch-size: 1098 is not from 1 to 1097, the messages at hand": ("--batch-size", "1098"),
    "--dataset none.npz: no such file": ("--test", "none.npz"),
    "--test: a.npz has no test split": ("--test", "a.npz"),
    "--bounds: bounds of digits are (0.0, 16.0), and the scheme was made for (0.0, 255.0)": ("--test", "digits"),
    "none: cannot be read: No such file or directory": ("--messages", "s.a,none"),
    "--messages: 's' is no file, and no folder with files that end in .msg": ("--messages", "s"),
    "--messages: '' is no file": ("--messages", "s.a,"),
    "--messages: a file is named twice; every message counts once": ("--messages", "s.a,s.a"),
    "pub.npz: not a file of messages; make one with dpltm latent encode": ("--messages", "s.a,pub.npz"),
    "open.b: encoded by another scheme (": ("--messages", "s.a,open.b"),
    "--out: s.a exists already; choose another name or remove it first": ("--out", "s.a"),
    "--out: weak exists already; choose another name or remove it first": ("--out", "weak"),
}


def test_bad_options(refused):
    for message, change in BAD.items():
        assert refused(*QUICK, "--out", "r", *change).startswith(message)


def test_options_that_are_missing(refused):
    assert refused("latent", "train", "--messages", "s.a", "--out", "r").startswith("SCHEME is missing: ")
    assert refused("latent", "train", "s", "--out", "r").startswith("--messages is missing: ")
    assert refused("latent", "train", "s", "--messages", "s.a").startswith("--out is missing: ")
    for name in ("none", "s.a"):
        assert refused("latent", "train", name, "--messages", "s.a", "--out", "r") == (
            f"{name}: not a scheme (no scheme.json in it); make one with dpltm latent scheme --out {name}"
        )


def test_test_records_of_another_kind(refused):
    public = np.load("pub.npz")
    few = public["y_train"] < 5, public["y_test"] < 5
    np.savez(
        "few.npz",
        x_train=public["x_train"][few[0]],
        y_train=public["y_train"][few[0]],
        x_test=public["x_test"][few[1]],
        y_test=public["y_test"][few[1]],
    )
    wide = {"x_train": np.zeros((50, 9, 8), np.uint8), "x_test": np.ones((5, 9, 8), np.uint8)}
    np.savez("wide.npz", **wide, y_train=public["y_train"][:50], y_test=public["y_test"][:5])
    assert refused(*QUICK, "--test", "few.npz", "--out", "r") == (
        "--classes: classes of few are 5, and the scheme was made for 10"
    )
    assert refused(*QUICK, "--test", "wide.npz", "--out", "r") == (
        "--dataset: shape of wide are (9, 8), and the scheme was made for (8, 8)"
    )


def altered(**change) -> None:
    """The header of ``s.b`` with other values."""
    data = Path("s.b").read_bytes()
    (length,) = struct.unpack("<Q", data[8:16])
    text = json.dumps({**json.loads(data[16 : 16 + length]), **change}).encode()
    Path("s.b").write_bytes(data[:8] + struct.pack("<Q", len(text)) + text + data[16 + length :])


def test_messages_that_were_damaged(refused):
    whole = Path("s.b").read_bytes()
    start = whole.index(b"}") + 1
    size = len(whole)
    Path("s.b").write_bytes(whole[:-1])
    assert refused(*QUICK, "--out", "r") == f"s.b: {size - 1} bytes, where {size} are expected; cut short, or damaged"
    Path("s.b").write_bytes(whole[: start - 9])
    assert refused(*QUICK, "--out", "r") == "s.b: its header is damaged"
    Path("s.b").write_bytes(whole[:20] + b"\xff" + whole[21:])
    assert refused(*QUICK, "--out", "r") == "s.b: its header is damaged"
    for change, message in {
        ("schema", 2): "s.b: schema 2 is newer than this version of dpltm reads (1); upgrade dpltm",
        ("format", "x"): "s.b: not a document of format 'dpltm-messages'",
        ("records", 0): "s.b: its header is damaged",
        ("records", "many\nlines"): "s.b: its header is damaged",
        ("scheme", "two\nlines"): "s.b: encoded by another scheme (two",
    }.items():
        Path("s.b").write_bytes(whole)
        altered(**dict([change]))
        assert refused(*QUICK, "--out", "r").startswith(message)


def test_labels_of_no_class(refused):
    whole = Path("s.b").read_bytes()
    Path("s.b").write_bytes(whole[:-2] + b"\xff\xff")
    assert refused(*QUICK, "--out", "r").startswith("s.b: ")
