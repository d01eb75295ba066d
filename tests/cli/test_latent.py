"""dpltm latent scheme, encode and train on files: what is entered before, what leaves the machine, what is learned.

What is refused of options, records and messages is tested in ``tests/tickets/workbench/test_latent_arrays.py``, and of files
in ``tests/tickets/workbench/test_scheme_files.py``.
"""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from sklearn.datasets import load_digits

from commands import certified, made_by
from dpltm.local.scheme import Scheme
from maps import make_feature_map

SCHEME = "latent scheme --public pub.npz --features unit --protocol rappor --epsilon 192 --label-epsilon"
ENCODE = "latent encode s --dataset b.npz --out m"
TRAIN = "latent train s --messages box,s.b --out r"
LEDGER = "dpltm.ledger.jsonl"


@pytest.fixture(scope="module")
def made(tmp_path_factory, _own_config_home) -> Path:
    """In the place of the usual sets: ``pub.npz`` with a test split, ``a.npz`` and ``b.npz`` of two owners, disjoint digits.

    Of the schemes, ``s`` randomises labels and ``open`` declares them public. Messages of ``s`` are ``box/s.a.msg`` and
    ``s.b``. All of it is in the ledger of the folder: the declaration, and both messages.
    """
    folder, digits = tmp_path_factory.mktemp("latent"), load_digits()
    x, y = digits.images.astype(np.uint8), digits.target
    np.savez(folder / "pub.npz", x_train=x[:400], y_train=y[:400], x_test=x[400:700], y_test=y[400:700])
    np.savez(folder / "a.npz", x_train=x[700:1300], y_train=y[700:1300])
    np.savez(folder / "b.npz", x_train=x[1300:], y_train=y[1300:])
    (folder / "box").mkdir()
    schemes = (f"{SCHEME} 5 --out s", f"{SCHEME} public --out open")
    sent = (f"latent encode s --dataset {owner}" for owner in ("a.npz --out box/s.a.msg", "b.npz --out s.b"))
    return made_by(folder, *schemes, *sent)


def private() -> tuple[np.ndarray, np.ndarray]:
    stored = np.load("b.npz")
    return stored["x_train"], stored["y_train"]


def test_what_is_sent_and_what_is_entered(cli, entries):
    """No declared number hides how many messages there are: the size of the file gives it away."""
    before = entries(LEDGER)
    body = cli(f"{ENCODE} --records 400 --json").json
    assert (body["messages"], body["records"], "dry_run" in body) == ("m", 497, False)
    assert not any("to keep it private" in note for note in body["privacy"]["notes"])
    assert certified(body) == pytest.approx(3 * 197), "with those of the fixture"
    figure = body["privacy"]["certified"]
    assert [figure[key] for key in ("adjacency", "unit", "delta")] == ["replace-one", "record", 1e-5]
    (entry,) = entries(LEDGER)[len(before) :]
    assert (entry["kind"], entry["part"]["name"], entry["part"]["cut"]) == ("local", "b", "whole")
    assert entry["mechanisms"][0]["epsilon"] == pytest.approx(197)
    assert body["id"] == json.loads(Path("s/scheme.json").read_text())["id"]


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
        body = cli(f"latent encode open --dataset {name}/d.npz --classes 10 --out {name}/m --json").json
        said.append({**body, "messages": "m", "size": Path(name, "m").stat().st_size})
    assert said[0] == said[1]


@pytest.mark.parametrize(("error", "code"), [(OSError(28, "No space left on device"), 2), (KeyboardInterrupt(), 130)])
def test_what_was_entered_stays_if_encoding_fails(cli, tree, entries, monkeypatch, error, code):
    whole = Scheme.messages

    def failing(self, *arguments):
        yield next(whole(self, *arguments))
        raise error

    before = tree()
    with monkeypatch.context() as patch:
        patch.setattr(Scheme, "messages", failing)
        done = cli(f"{ENCODE} --ledger hers.jsonl --quiet")
    assert (done.code, done.out, done.err.count("\n")) == (code, "", 1)
    assert [entry["kind"] for entry in entries("hers.jsonl")] == ["local"]
    assert set(tree()) - set(before) <= {"hers.jsonl", "hers.key"}, "no message, and nothing half-written"
    again = cli(f"{ENCODE} --ledger hers.jsonl --json").json
    assert certified(again) == pytest.approx(394), "the first attempt counts"


def test_digits_are_told_apart(cli, entries):
    """Ten classes: chance is a tenth. The model that is written gets as many right as is said.

    Both owners have one ledger here, so a record may be in both files.
    """
    before = entries(LEDGER)
    body = cli(f"{TRAIN} --test pub.npz --model mlp:32 --epochs 15 --json").json
    assert entries(LEDGER) == before, "nothing is spent"
    assert (body["records"], body["width"], body["nominal"]) == (1097, 64, 2 * 197.0)
    assert body["certified"] == pytest.approx(2 * 197)
    assert re.search("width +│ 64", cli("latent train s --messages s.b --epochs 1 --out shown").out)
    assert body["accuracy"] > 0.6
    assert 0.5 < body["randomised"] <= 1
    weights, public = load_file("r/model.safetensors"), np.load("pub.npz")
    plain = make_feature_map("unit:1", (8, 8), (0.0, 255.0))
    negative = (plain(public["x_test"]) - plain(public["x_train"]).mean(0)).numpy() < 0
    # randomised inputs have norm 8, one is sqrt(64) times smaller; one that is certain is (p - q)^-1 times that
    p = np.exp(3) / (1 + np.exp(3))
    x = np.where(negative, -1.0, 1.0) * 8 / np.sqrt(64) / (2 * p - 1)
    hidden = np.maximum(x @ weights["fc1.weight"].T + weights["fc1.bias"], 0)
    outputs = hidden @ weights["fc2.weight"].T + weights["fc2.bias"]
    assert np.mean(outputs.argmax(1) == public["y_test"]) == pytest.approx(body["accuracy"], abs=0.011)


def test_records_that_sent_messages_are_not_public_by_the_option_of_the_command(refused):
    said = refused("latent scheme --public b.npz --bounds 0,16 --features unit --epsilon 4 --out new")
    assert said.startswith("--public: b is protected by a release on record")
