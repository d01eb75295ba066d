"""dpltm latent scheme, encode and train on files: what is entered before, what leaves the machine, what is learned.

What is refused of options, records and messages is tested in ``tests/dpltm/verbs/test_latent_*.py`` and, of files, in
``tests/tickets/test_scheme_files.py``.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from sklearn.datasets import load_digits

from dpltm.cli.main import run
from dpltm.features.feature_map import make_feature_map
from dpltm.local.scheme import Scheme
from dpltm.privacy.ledger import Ledger
from dpltm.randomness.keyed_source import KeyedSource
from dpltm.tickets.run import load_run
from dpltm.verbs import latent

SCHEME = ("latent", "scheme", "--public", "pub.npz", "--features", "unit", "--protocol", "rappor", "--epsilon", "192")
LABELS = ("--label-epsilon", "5")
ENCODE = ("latent", "encode", "s", "--dataset", "b.npz", "--out", "m")
TRAIN = ("latent", "train", "s", "--messages", "box,s.b", "--out", "r")
LEDGER = "dpltm.ledger.jsonl"
QUICK = (*TRAIN, "--model", "mlp:8", "--epochs", "1")


@pytest.fixture(scope="module")
def made(tmp_path_factory, _own_config_home) -> Path:
    """In the place of the usual sets: ``pub.npz`` with a test split, ``a.npz`` and ``b.npz`` of two owners, disjoint digits.

    Of the schemes, ``s`` randomises labels and ``open`` declares them public. Messages of ``s`` are ``box/s.a.msg`` and
    ``s.b``. All of it is in the ledger of the folder: the declaration, and both messages.
    """
    from sklearn.datasets import load_digits

    folder, digits = tmp_path_factory.mktemp("latent"), load_digits()
    x, y = digits.images.astype(np.uint8), digits.target
    np.savez(folder / "pub.npz", x_train=x[:400], y_train=y[:400], x_test=x[400:700], y_test=y[400:700])
    np.savez(folder / "a.npz", x_train=x[700:1300], y_train=y[700:1300])
    np.savez(folder / "b.npz", x_train=x[1300:], y_train=y[1300:])
    (folder / "box").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, label in (("s", "5"), ("open", "public")):
            assert run([*SCHEME, "--label-epsilon", label, "--out", name, "--quiet"]) == 0
        for owner, out in (("a", "box/s.a.msg"), ("b", "s.b")):
            assert run(["latent", "encode", "s", "--dataset", f"{owner}.npz", "--out", out, "--quiet"]) == 0
    return folder


def private() -> tuple[np.ndarray, np.ndarray]:
    stored = np.load("b.npz")
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


def test_a_scheme_from_public_images(cli):
    """Two windows of 4 pixels down and two across, 1 + 2 * 2 + 2^2 channels; statistics of channels are public ones."""
    body = cli(*SCHEME, *LABELS, "--features", "scatter:2,2", "--out", "t", "--json").json
    assert body["values"] == 9 * 2 * 2
    stored = json.loads(Path("t/scheme.json").read_text())
    assert stored["id"] == body["id"]
    assert stored["feature_map"]["statistics"]
    (declared,) = stored["lineage"]["entries"]
    assert declared["kind"] == "public"
    assert [declared["part"][key] for key in ("name", "cut")] == ["pub", "whole"]


def test_schemes_that_cannot_be(refused):
    for options, message in (
        (("--protocol", "x"), "--protocol: 'x' is not one of "),
        (("--out", "s"), "--out: s exists already; choose another name or remove it first"),
        (("--public", "nothing"), "--dataset nothing: no such dataset"),
    ):
        assert refused(*SCHEME, *LABELS, "--out", "t", *options).startswith(message)
    given = {"--public": "pub.npz", "--epsilon": "9", "--out": "t", "--label-epsilon": "1"}
    for flag in given:
        rest = [part for pair in given.items() if pair[0] != flag for part in pair]
        said = refused("latent", "scheme", "--features", "unit", "--protocol", "rappor", *rest)
        assert said.startswith(f"{flag} is missing: ")


# --- what leaves the machine ---


def test_what_is_sent_and_what_is_entered(cli, entries):
    before = entries(LEDGER)
    body = cli(*ENCODE, "--json").json
    assert (body["messages"], body["records"]) == ("m", 497)
    assert "dry_run" not in body
    assert certified(body) == pytest.approx(3 * 197), "with those of the fixture"
    assert [body["privacy"]["certified"][key] for key in ("adjacency", "unit", "delta")] == [
        *("replace-one", "record", 1e-5)
    ]
    (entry,) = entries(LEDGER)[len(before) :]
    (mechanism,) = entry["mechanisms"]
    assert [mechanism[key] for key in ("mechanism", "adjacency", "delta")] == ["guarantee", "replace-one", 0]
    assert mechanism["epsilon"] == pytest.approx(197)
    assert (entry["kind"], entry["unit"], entry["part"]["name"], entry["part"]["cut"]) == (
        *("local", "record", "b", "whole"),
    )
    header, rows = read("m")
    assert set(header) == {"format", "schema", "scheme", "records", "record_bytes", "lineage", "digest"}
    scheme, sent = header["lineage"]["entries"]
    assert (scheme["kind"], sent) == ("public", entry)
    assert (header["scheme"], body["id"]) == (json.loads(Path("s/scheme.json").read_text())["id"],) * 2
    assert rows.shape == (497, 10)


def test_nothing_is_said_that_depends_on_the_records(cli):
    """Such as how many values saturated: no epsilon covers that, so all that is said is the same, whatever they are."""
    plain = make_feature_map("unit:1", (8, 8), (0.0, 255.0))
    public, mine = plain(np.load("pub.npz")["x_train"]).numpy(), plain(private()[0]).numpy()
    beyond = (np.abs(mine - public.mean(0)) >= np.maximum(public.std(0), 1e-3 * public.std(0).max())).sum(1)
    assert beyond.max() > beyond.min()
    said = []
    for name, which in (("few", beyond.argmin()), ("many", beyond.argmax())):
        x, y = (np.concatenate([part[[which]].repeat(50, 0), part[:50]]) for part in private())
        Path(name).mkdir()
        np.savez(f"{name}/d.npz", x_train=x, y_train=y)
        options = ("--dataset", f"{name}/d.npz", "--classes", "10", "--out", f"{name}/m", "--json")
        said.append({**cli("latent", "encode", "open", *options).json, "messages": "m"})
    assert said[0] == said[1]
    assert len({Path(name, "m").stat().st_size for name in ("few", "many")}) == 1


def test_parts_that_would_tell_of_owners_are_refused(cli, refused, entries):
    """A published file fixes who stands where. Of a file of the owner's nothing does, and a hash tells what they hold."""
    draw = np.random.default_rng(0)
    x, y = draw.integers(0, 255, (200, 8, 8)).astype(np.uint8), np.arange(200) % 10
    np.savez("noise.npz", x_train=x, y_train=y)
    assert cli(*SCHEME, *LABELS, "--public", "noise.npz", "--out", "t", "--quiet").code == 0
    digits = ("latent", "encode", "t", "--dataset", "digits", "--bounds", "0,255", "--out", "m")
    for command in (ENCODE, digits):
        assert refused(*command, "--subset", "0.0:0.5").startswith(
            "--subset: a fraction picks owners by a hash of what they hold, "
        )
    assert refused(*ENCODE, "--subset", "0:100").startswith(
        "--subset 0:100: places count only where a published file fixes who stands at which, and nothing fixes them in b: "
    )
    assert cli(*digits, "--subset", "0:100", "--json").json["records"] == len(read("m")[1]) == 100
    (entry,) = entries("digits.ledger.jsonl")
    assert [entry["part"][key] for key in ("cut", "start", "stop")] == ["place", 0, 100]


def test_no_declared_number_hides_how_many_messages_there_are(cli):
    """Nothing said may suggest it: header and size of the file give the true number away."""
    said = cli(*ENCODE, "--records", "400", "--json").json
    assert not any("to keep it private" in note for note in said["privacy"]["notes"])
    assert read("m")[0]["records"] == 497


def test_an_owner_may_have_one_record(cli):
    """And need not know how many classes others have."""
    x, y = private()
    np.savez("one.npz", x_train=x[y == 3][:1], y_train=y[y == 3][:1])
    body = cli("latent", "encode", "s", "--dataset", "one.npz", "--out", "m", "--ledger", "hers.jsonl", "--json").json
    assert (body["records"], body["privacy"]["certified"]["sampling"]) == (1, "none")
    assert (body["nominal"], certified(body)) == (197, pytest.approx(197))


# --- the ledger ---


def test_the_ledger_is_on_disk_before_the_first_coin(cli, entries, monkeypatch):
    seen = []

    class Watched(KeyedSource):
        def random_bytes(self, count):
            seen.append((len(entries("hers.jsonl")), Path("m").exists()))
            return super().random_bytes(count)

    monkeypatch.setattr(latent, "KeyedSource", Watched)
    assert cli(*ENCODE, "--ledger", "hers.jsonl", "--quiet").code == 0
    assert set(seen) == {(1, False)}


@pytest.mark.parametrize(("error", "code"), [(OSError(28, "No space left on device"), 2), (KeyboardInterrupt(), 130)])
def test_what_was_entered_stays_if_encoding_fails(cli, tree, entries, monkeypatch, error, code):
    whole = Scheme.messages

    def failing(self, *arguments):
        yield next(whole(self, *arguments))
        raise error

    before = tree()
    with monkeypatch.context() as patch:
        patch.setattr(Scheme, "messages", failing)
        done = cli(*ENCODE, "--ledger", "hers.jsonl", "--quiet")
    assert (done.code, done.out, done.err.count("\n")) == (code, "", 1)
    assert [entry["kind"] for entry in entries("hers.jsonl")] == ["local"]
    after = tree()
    assert set(after) - set(before) <= {"hers.jsonl", "hers.key"}, "no message, and nothing half-written"
    again = cli(*ENCODE, "--ledger", "hers.jsonl", "--json").json
    assert certified(again) == pytest.approx(394), "the first attempt counts"


def test_encoding_again_adds_up(cli, entries):
    """Deleting messages takes nothing back of what was released."""
    named = ("--ledger", "hers.jsonl")
    one = cli(*ENCODE, *named, "--json").json
    sent = Path("m").read_bytes()
    Path("m").unlink()
    dry, two = cli(*ENCODE, *named, "--dry-run", "--json").json, cli(*ENCODE, *named, "--json").json
    assert Path("m").read_bytes() != sent
    assert len(entries("hers.jsonl")) == 2
    assert [certified(body) for body in (one, dry, two)] == pytest.approx([197, 394, 394])
    assert (two["certified"], two["nominal"]) == (pytest.approx(197), 197), "of a message"


def test_a_budget_holds(cli, refused):
    cli("privacy", "budget", LEDGER, "--epsilon", "500", "--quiet")
    assert refused(*ENCODE, code=1).startswith("budget: this would bring the population to epsilon 591")


@pytest.mark.parametrize("named", [(), ("--ledger", "hers.jsonl")])
def test_a_dry_run_writes_nothing(cli, tree, named):
    before = tree()
    body = cli(*ENCODE, *named, "--dry-run", "--json").json
    assert tree() == before
    assert (body["dry_run"], body["records"]) == (True, 497)
    assert certified(body) == pytest.approx(197 if named else 591)


def test_encode_refuses_before_anything_is_spent(refused):
    Path("taken").write_text("")
    for options, message in (
        (("--delta", "0"), "--delta: 0 is not between 0 and 1/n"),
        (("--ledger", "s"), "s: "),
        (("--ledger", "m"), "--ledger: the messages go there; name another file"),
        (("--out", "taken"), "--out: taken exists already; choose another name or remove it first"),
        (("--out", "b.npz/m"), "b.npz/m: cannot be written: "),
    ):
        assert refused(*ENCODE, *options).startswith(message)
    for missing, rest in (("SCHEME", ENCODE[3:]), ("--dataset", ("s", *ENCODE[5:])), ("--out", ENCODE[2:5])):
        assert refused("latent", "encode", *rest).startswith(f"{missing} is missing: ")
    scheme = Path("s/scheme.json").read_text()
    Path("s/scheme.json").write_text(scheme.replace('"epsilon": 192.0', '"epsilon": 1.0'))
    assert refused(*ENCODE) == "s/scheme.json: the digest does not match; it is damaged or was changed"


# --- what a server learns ---


def test_digits_are_told_apart(cli):
    """Ten classes: chance is a tenth. The model that is written gets as many right as is said."""
    options = ("--test", "pub.npz", "--model", "mlp:32", "--epochs", "15", "--rounds", "2", "--json")
    body = cli(*TRAIN, *options).json
    assert (body["records"], body["inputs"], body["nominal"]) == (1097, 64, 197.0)
    assert body["certified"] == pytest.approx(197)
    assert body["accuracy"] > 0.6  # messages are drawn anew each time: six draws gave 77 to 82 %
    assert 0.5 < body["tickets"][-1]["randomised"] <= 1
    assert [row["round"] for row in body["tickets"]] == [0, 1, 2]
    assert body["accuracy"] == body["tickets"][-1]["accuracy"]
    weights, public = load_file("r/model.safetensors"), np.load("pub.npz")
    plain = make_feature_map("unit:1", (8, 8), (0.0, 255.0))
    negative = (plain(public["x_test"]) - plain(public["x_train"]).mean(0)).numpy() < 0
    # randomised inputs have norm 8, one is sqrt(64) times smaller; one that is certain is (p - q)^-1 times that
    p = np.exp(3) / (1 + np.exp(3))
    x = np.where(negative, -1.0, 1.0) * 8 / np.sqrt(64) / (2 * p - 1)
    hidden = np.maximum(x @ weights["fc1.weight"].T + weights["fc1.bias"], 0)
    outputs = hidden @ weights["fc2.weight"].T + weights["fc2.bias"]
    assert np.mean(outputs.argmax(1) == public["y_test"]) == pytest.approx(body["accuracy"], abs=0.011)


def test_training_spends_nothing_and_says_what_it_is_of(cli, tree):
    before = tree()
    body = cli(*QUICK, "--test", "pub.npz", "--out", "deep/r", "--json").json
    after = tree()
    assert {path: data for path, data in after.items() if path in before} == before, "ledgers and messages"
    assert set(after) - set(before) == {"deep", "deep/r"} | {
        f"deep/r/{name}"
        for name in ("environment.json", "lineage.json", "mask.safetensors", "model.safetensors", "result.json")
    }
    found = json.loads(Path("deep/r/result.json").read_text())
    assert (found["format"], found["schema"]) == ("dpltm-latent-run", 2)
    assert (found["messages"], found["epochs"], found["dropout"]) == ("box,s.b", 1.0, 0.0)
    assert found["scheme"] == json.loads(Path("s/scheme.json").read_text())["id"]
    assert body["run"] == "deep/r"
    assert (found["run"], "seconds" in found) == ("r", False)
    for key in set(body) - {"run", "seconds"}:
        assert found[key] == body[key]


def test_a_run_carries_the_messages_that_it_was_made_from(cli):
    """Both owners have one ledger here; a run from a codebook is one like any other."""
    scheme = ("latent", "scheme", "--public", "pub.npz", "--features", "unit", "--epsilon", "4", "--out", "c")
    assert cli(*scheme, "--quiet").code == 0
    for owner in ("a", "b"):
        sent = cli(
            "latent", "encode", "c", "--dataset", f"{owner}.npz", "--ledger", f"{owner}.jsonl", "--out", f"{owner}.c"
        )
        assert sent.code == 0
    assert cli("latent", "train", "c", "--messages", "a.c,b.c", "--out", "r", "--quiet").code == 0
    lineage = load_run(Path("r")).lineage
    assert [(entry.kind, entry.part.name) for entry in lineage.entries] == [
        *(("public", "pub"), ("local", "a"), ("local", "b")),
    ]
    assert Ledger().account(lineage).epsilon(1e-5) == pytest.approx(4), "of one message"


def test_test_records_of_a_file_are_in_the_range_that_was_agreed_on(cli, cwd):
    """There is no option to say so again."""
    digits = load_digits()
    for name, part in (("theirs", slice(0, 300)), ("mine", slice(1000, 1400)), ("test", slice(400, 600))):
        x, y = digits.images[part].astype(np.uint8), digits.target[part]
        np.savez(cwd / f"{name}.npz", x_train=x[60:], y_train=y[60:], x_test=x[:60], y_test=y[:60])
    known = ("--bounds", "0,16", "--classes", "10")
    bits = ("--protocol", "rappor", "--features", "unit", "--epsilon", "400", "--label-epsilon", "20")
    assert cli("latent", "scheme", "--public", "theirs.npz", *known, *bits, "--out", "sixteen").code == 0
    assert cli("latent", "encode", "sixteen", "--dataset", "mine.npz", *known, "--out", "mine.msg").code == 0
    body = cli(
        "latent",
        "train",
        "sixteen",
        "--messages",
        "mine.msg",
        "--test",
        "test.npz",
        "--epochs",
        "1",
        "--out",
        "b",
        "--json",
    ).json
    assert body["accuracy"] is not None


def test_train_refuses(refused):
    for options, message in (
        (("--test", "none.npz"), "--dataset none.npz: no such file"),
        (
            ("--test", "digits"),
            "--bounds: digits has bounds (0.0, 16.0), and the scheme was made for (0.0, 255.0); take records like those",
        ),
        (("--messages", "s.b,none"), "none: cannot be read: No such file or directory"),
        (("--messages", "s"), "--messages: 's' is no file, and no folder with files that end in .msg"),
        (("--messages", "s.b,"), "--messages: '' is no file"),
        (("--messages", "s.b,box/../s.b"), "--messages: a file is named twice; every message counts once"),
        (("--out", "open"), "--out: open exists already; choose another name or remove it first"),
    ):
        assert refused(*QUICK, *options).startswith(message)
    for missing, rest in (("SCHEME", TRAIN[3:]), ("--messages", ("s", *TRAIN[5:])), ("--out", TRAIN[2:5])):
        assert refused("latent", "train", *rest).startswith(f"{missing} is missing: ")
