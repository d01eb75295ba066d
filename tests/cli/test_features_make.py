"""``dpltm features make``: the bundled encoder, made again."""

from __future__ import annotations

import hashlib
import json

import pytest
from safetensors import safe_open

from dpltm.features import drawings, photographs
from dpltm.features.drawings import UNITS

MAKE = ("features", "make", "drawings")


@pytest.fixture(autouse=True)
def _few_drawings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawings, "SAMPLE", 80)
    monkeypatch.setattr(drawings, "KINDS", 8)
    monkeypatch.setattr(photographs, "SAMPLE", 80)
    monkeypatch.setattr(photographs, "PATCHES", 2000)


def test_what_is_written_and_said(cli, cwd):
    answer = cli(*MAKE, "--steps", "1", "--seed", "5", "--out", "a", "--json").json
    body = (cwd / "a").read_bytes()
    assert answer == {
        "file": "a",
        "bytes": len(body),
        "digest": hashlib.sha256(body).hexdigest(),
        "bundled": False,
        "command": "dpltm features make drawings --seed 5 --steps 1",
        "provenance": "data-free",
        "torch": answer["torch"],
        "numpy": answer["numpy"],
    }
    with safe_open(cwd / "a", "np") as file:
        made = json.loads(file.metadata()["made"])
        assert made["command"] == answer["command"]
        assert file.get_tensor("directions").shape[1] == UNITS
    assert cli(*MAKE, "--steps", "1", "--seed", "6", "--out", "b").out.endswith(
        "not the bundled file: other settings, other versions, or other rounding\n"
    )
    assert (cwd / "b").read_bytes() != body


def test_photographs_are_made_in_as_many_rounds_as_the_bundled_ones(cli, cwd):
    first = cli("features", "make", "photographs", "--out", "a", "--json").json
    assert first["command"] == "dpltm features make photographs --seed 0 --steps 8"
    assert first["digest"] == hashlib.sha256((cwd / "a").read_bytes()).hexdigest()
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
