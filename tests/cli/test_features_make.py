"""``dpltm features make``: the bundled encoder, made again."""

from __future__ import annotations

import hashlib
import json

import pytest
from safetensors import safe_open

from dpltm.drawings import learning
from dpltm.drawings.encoder import UNITS
from dpltm.photographs import learning as photographs

MAKE = ("features", "make", "drawings")


@pytest.fixture(autouse=True)
def _few_drawings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "SAMPLE", 480)
    monkeypatch.setattr(learning, "KINDS", 24)
    monkeypatch.setattr(photographs, "SAMPLE", 480)
    monkeypatch.setattr(photographs, "PATCHES", 2000)


def test_what_is_written_and_said(cli, cwd):
    answers = [
        cli(*MAKE, "--steps", "2", "--seed", seed, "--out", out, "--json").json for seed, out in ("5a", "5b", "6c")
    ]
    bodies = [(cwd / name).read_bytes() for name in "abc"]
    assert bodies[0] == bodies[1] != bodies[2]
    assert answers[0] == {
        "file": "a",
        "bytes": len(bodies[0]),
        "digest": hashlib.sha256(bodies[0]).hexdigest(),
        "bundled": False,
        "command": "dpltm features make drawings --seed 5 --steps 2",
        "provenance": "data-free",
        "torch": answers[0]["torch"],
        "numpy": answers[0]["numpy"],
    }
    with safe_open(cwd / "a", "np") as file:
        made = json.loads(file.metadata()["made"])
        assert made["command"] == answers[0]["command"]
        assert file.get_tensor("directions").shape[1] == UNITS
    assert cli(*MAKE, "--steps", "2", "--out", "d").out.endswith(
        "not the bundled file: other settings, other versions, or other rounding\n"
    )


def test_photographs_are_made_in_as_many_rounds_as_the_bundled_ones(cli, cwd):
    first, again = (cli("features", "make", "photographs", "--out", out, "--json").json for out in "ab")
    assert first["command"] == "dpltm features make photographs --seed 0 --steps 8"
    assert first["digest"] == again["digest"] == hashlib.sha256((cwd / "a").read_bytes()).hexdigest()
    assert not first["bundled"]  # it saw fewer scenes
    cli("features", "make", "photographs", "--steps", "1")
    with safe_open(cwd / "photographs.safetensors", "np") as file:
        assert set(file.keys()) == {"filters", "offset", "mean", "directions"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("features", "make"), "WHAT"),
        (("features", "make", "paintings"), "WHAT: 'paintings' is not one of drawings, photographs"),
        ((*MAKE, "--seed", "-1"), "--seed: -1 is not from 0 to 2147483647"),
        ((*MAKE, "--steps", "0"), "--steps: 0 is not from 1 to 1,000,000"),
        ((*MAKE, "--out", "there"), "--out: there exists already; choose another name or remove it first"),
    ],
)
def test_bad_input(refused, cwd, options, message):
    (cwd / "there").write_text("mine")
    before = sorted(cwd.iterdir())
    assert message in refused(*options)
    assert sorted(cwd.iterdir()) == before
