"""dpltm latent scheme and encode: what is agreed on, what is entered before, and what leaves the machine."""

from __future__ import annotations

import json
import os
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest

from dpltm.cli.main import run
from dpltm.features.feature_map import make_feature_map
from dpltm.local.scheme import Scheme
from dpltm.noise import SecureSource

UNIT = ("--public", "pub.npz", "--features", "unit", "--protocol", "rappor")
SETTING = ("--protocol", "rappor", "--epsilon", "128", "--label-epsilon", "4")


@pytest.fixture(scope="module")
def halves(tmp_path_factory, _own_config_home) -> Path:
    """``pub.npz``, with a test split, and ``pri.npz``, other digits; schemes: ``s``, and ``open`` with public labels."""
    from sklearn.datasets import load_digits

    folder, digits = tmp_path_factory.mktemp("halves"), load_digits()
    x, y = digits.images.astype(np.uint8), digits.target
    np.savez(folder / "pub.npz", x_train=x[:700], y_train=y[:700], x_test=x[700:900], y_test=y[700:900])
    np.savez(folder / "pri.npz", x_train=x[900:], y_train=y[900:])
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert run(["latent", "scheme", *UNIT, *SETTING, "--out", "s", "--quiet"]) == 0
        assert (
            run(
                [
                    "latent",
                    "scheme",
                    *UNIT,
                    "--epsilon",
                    "128",
                    "--label-epsilon",
                    "public",
                    "--format",
                    "0,1",
                    "--out",
                    "open",
                    "--quiet",
                ]
            )
            == 0
        )
    return folder


@pytest.fixture
def cwd(tmp_path, halves, monkeypatch) -> Path:
    """The working folder, with all of these in it."""
    folder = tmp_path / "work"
    shutil.copytree(halves, folder)
    monkeypatch.chdir(folder)
    return folder


ENCODE = ("latent", "encode", "s", "--dataset", "pri.npz")


def private() -> tuple[np.ndarray, np.ndarray]:
    stored = np.load("pri.npz")
    return stored["x_train"], stored["y_train"]


def read(path: str) -> tuple[dict, np.ndarray]:
    """Header and records, by the letter of the format."""
    data = Path(path).read_bytes()
    (length,) = struct.unpack("<Q", data[8:16])
    header = json.loads(data[16 : 16 + length])
    return header, np.frombuffer(data[16 + length :], np.uint8).reshape(header["records"], header["record_bytes"])


def certified(body: dict) -> float:
    return body["privacy"]["certified"]["epsilon"]


# --- the scheme ---


def test_what_is_agreed_on(cli):
    body = cli("latent", "scheme", *UNIT, *SETTING, "--format", "1,2", "--out", "t", "--json").json
    assert (body["scheme"], body["features"], body["values"], body["bits"]) == ("t", "unit:1", 64, 256)
    assert (body["classes"], body["record_bytes"], body["notes"]) == (10, 34, [])
    assert (body["protocol"], body["epsilon"], body["alpha"], body["label_epsilon"]) == ("rappor", 128.0, None, 4.0)
    assert body["nominal"] == 132
    assert body["certified"] == pytest.approx(132)
    assert json.loads(Path("t/scheme.json").read_text())["id"] == body["id"]
    again = cli("latent", "scheme", *UNIT, *SETTING, "--format", "1,2", "--out", "u", "--json").json
    assert again["id"] == body["id"]


def test_a_scheme_from_public_images(cli):
    """Two windows of 4 pixels down and two across, 1 + 2 * 2 + 2^2 channels; statistics of channels are public ones."""
    body = cli(
        "latent", "scheme", "--public", "pub.npz", "--features", "scatter:2,2", *SETTING, "--out", "t", "--json"
    ).json
    assert body["values"] == 9 * 2 * 2
    found = json.loads(Path("t/scheme.json").read_text())["feature_map"]
    assert found["statistics"]
    assert (found["source"]["name"], found["source"]["cut"]) == ("pub", "whole")


LABELS = ("--label-epsilon", "1")

BAD_SCHEMES = {
    "--label-epsilon: 'x' is neither a number nor public": ("--label-epsilon", "x"),
    "--protocol: 'x' is not one of ": ("--protocol", "x"),
    "--format: -1,2 is not two numbers of bits, from 0 to 15 together, such as 4,5": ("--format=-1,2",),
    "--classes 1: must be 2 or more": ("--classes", "1"),
    "pub.npz: y_train has label ": ("--classes", "5"),
    "--out: s exists already; choose another name or remove it first": ("--out", "s"),
    "--dataset nothing: no such dataset": ("--public", "nothing"),
}


def test_schemes_that_cannot_be(refused):
    for message, change in BAD_SCHEMES.items():
        assert refused("latent", "scheme", *UNIT, *LABELS, "--epsilon", "9", "--out", "t", *change).startswith(message)
    given = {"--public": "pub.npz", "--epsilon": "9", "--out": "t", "--label-epsilon": "1"}
    for flag in given:
        rest = [part for pair in given.items() if pair[0] != flag for part in pair]
        assert refused("latent", "scheme", "--features", "unit", "--protocol", "rappor", *rest).startswith(
            f"{flag} is missing: "
        )


# --- what leaves the machine ---


def test_what_is_sent_and_what_is_said(cli, events):
    body = cli(*ENCODE, "--out", "m", "--json").json
    scheme = json.loads(Path("s/scheme.json").read_text())
    assert (body["messages"], body["records"], body["id"]) == ("m", 897, scheme["id"])
    assert "dry_run" not in body
    assert certified(body) == pytest.approx(132)
    assert {key: body["privacy"]["certified"][key] for key in ("adjacency", "unit", "delta")} == {
        **{"adjacency": "replace-one", "unit": "record", "delta": 1e-5},
    }
    (event,) = events("m.ledger.jsonl")
    assert (event["kind"], event["adjacency"], event["unit"], event["delta"]) == (
        "guarantee",
        "replace-one",
        "record",
        0,
    )
    assert event["epsilon"] == pytest.approx(132)
    assert (event["dataset"]["name"], event["dataset"]["cut"]) == ("pri", "whole")
    header, rows = read("m")
    assert set(header) == {"format", "schema", "scheme", "records", "record_bytes"}, (
        "nothing else is known of the records"
    )
    assert (header["scheme"], header["records"], header["record_bytes"]) == (scheme["id"], 897, 10)
    assert rows.shape == (897, 10)


def test_how_many_values_saturated_is_told_to_nobody(cli):
    """It is a function of the records that no epsilon covers: whatever they are, all that is said is the same."""
    plain = make_feature_map("unit:1", (8, 8), (0.0, 255.0))
    public, mine = plain(np.load("pub.npz")["x_train"]).numpy(), plain(private()[0]).numpy()
    beyond = (np.abs(mine - public.mean(0)) >= np.maximum(public.std(0), 1e-3 * public.std(0).max())).sum(1)
    assert beyond.max() > beyond.min()
    for name, which in (("few", beyond.argmin()), ("many", beyond.argmax())):
        x, y = (np.concatenate([part[[which]].repeat(50, 0), part[:50]]) for part in private())
        Path(name).mkdir()
        np.savez(f"{name}/d.npz", x_train=x, y_train=y)
    few, many = (
        cli(
            "latent", "encode", "open", "--dataset", f"{name}/d.npz", "--classes", "10", "--out", f"{name}/m", "--json"
        ).json
        for name in ("few", "many")
    )
    assert {**few, "messages": "m"} == {**many, "messages": "m"}
    assert few["saturated"] is None
    assert (
        "how many values saturated is told to nobody: it depends on the records, and no epsilon covers it"
        in (few["privacy"]["notes"])
    )
    files = [Path(name) / part for name in ("few", "many") for part in ("m", "m.ledger.jsonl")]
    assert not any(b"saturated" in path.read_bytes() for path in files)
    assert files[0].stat().st_size == files[2].stat().st_size
    assert read("few/m")[0] == read("many/m")[0]
    shown = cli("latent", "encode", "open", "--dataset", "few/d.npz", "--classes", "10", "--out", "again").out
    assert "│ saturated" not in shown


@pytest.fixture
def digits(cli) -> tuple[str, ...]:
    """Encodes the digits, whose published file fixes who stands where, by a scheme from images of nothing."""
    draw = np.random.default_rng(0)
    x, y = draw.integers(0, 255, (200, 8, 8)).astype(np.uint8), np.arange(200) % 10
    np.savez("noise.npz", x_train=x, y_train=y)
    assert cli("latent", "scheme", *UNIT, *SETTING, "--public", "noise.npz", "--out", "t", "--quiet").code == 0
    return ("latent", "encode", "t", "--dataset", "digits", "--bounds", "0,255")


def test_a_part_of_the_records(cli, events, digits):
    body = cli(*digits, "--subset", "0:100", "--out", "m", "--json").json
    assert body["records"] == len(read("m")[1]) == 100
    (event,) = events("m.ledger.jsonl")
    assert [event["dataset"][key] for key in ("cut", "start", "stop")] == ["places", 0, 100]


def test_parts_that_would_tell_of_owners_are_refused(refused, digits):
    """Of a file of the owner's nothing fixes the places, and who is in a part by hashes tells what they hold."""
    assert refused(*ENCODE, "--subset", "0:100", "--out", "m").startswith(
        "--subset 0:100: places count only where a published file fixes who stands at which, and nothing fixes them in pri: "
    )
    for command in (ENCODE, digits):
        assert refused(*command, "--subset", "0.0:0.5", "--out", "m").startswith(
            "--subset: a fraction picks owners by a hash of what they hold, "
        )


# --- the ledger ---


def test_the_ledger_is_written_before_the_first_coin(cli, events, monkeypatch):
    seen = []

    class Watched(SecureSource):
        def random_bytes(self, count):
            seen.append((len(events("m.ledger.jsonl")), Path("m").exists(), [p.name for p in Path().glob(".m.*")]))
            return super().random_bytes(count)

    monkeypatch.setattr("dpltm.stages.latent_owner.SecureSource", Watched)
    assert cli(*ENCODE, "--out", "m", "--quiet").code == 0
    assert seen, "coins come from the system's generator"
    assert {(entered, there) for entered, there, _ in seen} == {(1, False)}


@pytest.mark.parametrize(
    ("error", "code"),
    [(OSError(28, "No space left on device"), 2), (KeyboardInterrupt(), 130), (RuntimeError("x"), 1)],
)
def test_what_was_entered_stays_if_encoding_fails(cli, tree, events, monkeypatch, error, code):
    whole = Scheme.messages

    def failing(self, *arguments):
        yield next(whole(self, *arguments))
        raise error

    before = tree()
    with monkeypatch.context() as patch:
        patch.setattr(Scheme, "messages", failing)
        done = cli(*ENCODE, "--out", "m", "--quiet")
    assert (done.code, done.out, done.err.count("\n")) == (code, "", 1)
    assert [event["kind"] for event in events("m.ledger.jsonl")] == ["guarantee"]
    after = tree()
    assert after.pop("m.ledger.jsonl")
    assert after == before, "no message, and nothing half-written"
    body = cli(*ENCODE, "--out", "m", "--ledger", "m.ledger.jsonl", "--json").json
    assert certified(body) == pytest.approx(264), "the first attempt counts"


def test_encoding_again_adds_up(cli, events):
    one = cli(*ENCODE, "--out", "m", "--ledger", "all.jsonl", "--json").json
    two = cli(*ENCODE, "--out", "n", "--ledger", "all.jsonl", "--json").json
    assert (certified(one), certified(two)) == (pytest.approx(132), pytest.approx(264))
    assert (two["certified"], two["nominal"]) == (pytest.approx(132), 132), "of a message"
    assert len(events("all.jsonl")) == 2
    assert not list(Path().glob("*.ledger.jsonl"))
    assert Path("m").read_bytes() != Path("n").read_bytes()
    told = cli("privacy", "ledger", "all.jsonl", "--json").json
    assert certified(told) == pytest.approx(264)


def test_the_ledger_beside_the_file_counts_as_well(cli, events):
    """The messages were deleted, which takes nothing back of what was released."""
    cli(*ENCODE, "--out", "m", "--quiet")
    Path("m").unlink()
    dry = cli(*ENCODE, "--out", "m", "--dry-run", "--json").json
    body = cli(*ENCODE, "--out", "m", "--json").json
    assert len(events("m.ledger.jsonl")) == 2
    assert (certified(dry), certified(body)) == (pytest.approx(264), pytest.approx(264))


def test_a_budget_beside_the_file_holds_too(cli, refused):
    cli("privacy", "budget", "m.ledger.jsonl", "--dataset", "pri.npz", "--epsilon", "100", "--quiet")
    assert refused(*ENCODE, "--out", "m", code=1).startswith("budget: this would bring pri to epsilon 132")


@pytest.mark.parametrize("named", [(), ("--ledger", "all.jsonl")])
def test_a_dry_run_writes_nothing(cli, tree, monkeypatch, tmp_path, named):
    """Not even the user's key."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    before = tree()
    body = cli(*ENCODE, "--out", "m", *named, "--dry-run", "--json").json
    assert tree() == before
    assert not (tmp_path / "home").exists()
    assert (body["dry_run"], body["saturated"], body["records"]) == (True, None, 897)
    assert certified(body) == pytest.approx(132)
    shown = cli(*ENCODE, "--out", "m", *named, "--dry-run")
    assert "would encode" in shown.out
    assert shown.out.index("certified local epsilon") < shown.out.index("nominal local epsilon")
    assert tree() == before


def test_no_declared_number_hides_how_many_messages_there_are(cli):
    """Nothing said may suggest it: header and size of the file give the true number away."""
    counted = cli(*ENCODE, "--out", "m", "--json").json
    assert not any("to keep it private" in note for note in counted["privacy"]["notes"])
    cli(*ENCODE, "--records", "500", "--out", "n", "--quiet")
    assert read("n")[0]["records"] == 897


# --- bad input ---


def bad_records() -> None:
    x, y = private()
    np.savez("wide.npz", x_train=np.zeros((50, 8, 9), np.uint8), y_train=y[:50])
    np.savez("float.npz", x_train=x.astype("f8"), y_train=y)
    nan = x.astype("f8")
    nan[3, 2, 1] = np.nan
    np.savez("nan.npz", x_train=nan, y_train=y)
    np.savez("few.npz", x_train=x[y < 5], y_train=y[y < 5])


BAD = {
    "s/none: not a scheme (no scheme.json in it); make one with ": (
        "latent",
        "encode",
        "s/none",
        "--dataset",
        "pri.npz",
    ),
    "pri.npz: not a scheme (no scheme.json in it); make one with ": (
        "latent",
        "encode",
        "pri.npz",
        "--dataset",
        "pri.npz",
    ),
    "--dataset is missing: ": ("latent", "encode", "s"),
    "SCHEME is missing: ": ("latent", "encode", "--dataset", "pri.npz"),
    "--dataset: shape of wide are (8, 9), and the scheme was made for (8, 8)": (*ENCODE[:3], "--dataset", "wide.npz"),
    "--bounds: bounds of pri are (0.0, 16.0), and the scheme was made for (0.0, 255.0)": (*ENCODE, "--bounds", "0,16"),
    "--bounds: bounds of digits are (0.0, 16.0), and the scheme was made for (0.0, 255.0)": (
        *ENCODE[:3],
        "--dataset",
        "digits",
    ),
    "--classes: classes of pri are 11, and the scheme was made for 10": (*ENCODE, "--classes", "11"),
    "float.npz: x_train is float64, which has no public range; pass --bounds LO,HI": (
        *ENCODE[:3],
        "--dataset",
        "float.npz",
    ),
    "nan.npz: x_train ": (*ENCODE[:3], "--dataset", "nan.npz", "--bounds", "0,255"),
    "--dataset nothing: no such dataset": (*ENCODE[:3], "--dataset", "nothing"),
    "--delta: 0.1 is not between 0 and 1/n": (*ENCODE, "--delta", "0.1"),
    "--delta: 0 is not between 0 and 1/n": (*ENCODE, "--delta", "0"),
    "s: cannot be read: Is a directory": (*ENCODE, "--ledger", "s"),
}


def test_bad_input_to_encode(refused):
    bad_records()
    for message, arguments in BAD.items():
        assert refused(*arguments, "--out", "m").startswith(message)
    assert refused(*ENCODE).startswith("--out is missing: ")
    Path("taken").write_text("")
    assert refused(*ENCODE, "--out", "taken") == "--out: taken exists already; choose another name or remove it first"
    assert refused(*ENCODE, "--out", "pri.npz/m").startswith("pri.npz/m: cannot be written: ")


def test_an_owner_may_have_one_record(cli):
    """And need not know how many classes others have."""
    x, y = private()
    np.savez("one.npz", x_train=x[y == 3][:1], y_train=y[y == 3][:1])
    body = cli("latent", "encode", "s", "--dataset", "one.npz", "--out", "m", "--json").json
    assert body["records"] == 1
    assert body["privacy"]["certified"]["sampling"] == "none"
    assert body["privacy"]["nominal"]["epsilon"] == 132


def test_a_scheme_that_was_changed_spends_nothing(refused):
    path = Path("s/scheme.json")
    body = json.loads(path.read_text())
    path.write_text(json.dumps({**body, "answer": {**body["answer"], "epsilon": 1.0}}))
    assert refused(*ENCODE, "--out", "m") == "s/scheme.json: the id does not match; it is damaged or was changed"
    path.write_text(json.dumps(body))
    os.rename("s/statistics.safetensors", "statistics")
    assert refused(*ENCODE, "--out", "m") == "s/statistics.safetensors: cannot be read: No such file or directory"


def test_a_ledger_in_the_place_of_the_messages(refused):
    refused(*ENCODE, "--out", "m", "--ledger", "m")
