"""Bad input ends with exit code 2 and one line that names the culprit and the fix, and leaves every byte as it was.

``refused`` compares the whole working folder before and after: no ledger grew, nothing is half-written. What each option and
file is refused for is tested where it is checked.
"""

from __future__ import annotations

import numpy as np
import pytest

PRIVATE = ("--dataset", "digits", "--subset", "0.5:1.0")
TINY = ("--model", "mlp:8", "--rounds", "2", "--prune", "0.3", "--iterations", "5", "--batch-size", "32")
COMMANDS = {
    "generate": ("generate", *TINY, "--provenance", "public", "--out", "new"),
    "select": ("select", "pub", "--eps1", "0.1"),
    "train": ("train", "pub@1", "--steps", "3", "--epsilon", "1", "--out", "new"),
    "dense": ("train", "--dense", "--steps", "3", "--epsilon", "1", "--out", "new"),
}
ON_SETS = [(*COMMANDS[name], *PRIVATE) for name in ("select", "train")]


@pytest.mark.parametrize("command", COMMANDS)
def test_records_that_cannot_be_used(cwd, refused, command):
    x = np.zeros((40, 64), np.float32)
    x[7, 3] = np.nan
    np.savez(cwd / "bad.npz", x_train=x, y_train=np.arange(40) % 10)
    assert refused(*COMMANDS[command], "--dataset", "bad.npz", "--bounds", "0,255") == (
        "bad.npz: x_train has nan at record 7, feature 3 (counted from 0); features must be finite; replace the value or"
        " drop the record"
    )
    assert refused(*COMMANDS[command], "--dataset", "no.npz") == "--dataset no.npz: no such file; correct the path"


@pytest.mark.parametrize(
    ("command", "options", "message"),
    [
        ("generate", ("--bounds", "5"), "--bounds: '5' is not of the form LO,HI, such as 0,255"),
        ("dense", ("--bounds", "1,2,3"), "--bounds: '1,2,3' is not of the form LO,HI, such as 0,255"),
        ("select", ("--mechanism", "argmax"), "--mechanism: 'argmax' is not one of exponential, permute-and-flip"),
        ("select", ("--rule", "best"), "--rule: 'best' is not one of mechanism, smallest-within"),
        ("select", ("--sensitivity", "none"), "--sensitivity: 'none' is not one of exact, paper"),
        ("select", ("--score", "additive", "--lambda", "inf"), "--lambda: inf is not a number >= 0"),
        ("select", ("--eps1", "nan"), "--eps1: nan is not a positive number; 0.1 is DPLTM's"),
        ("train", ("--out", ""), "--out: is empty; give a value, or leave it out"),
        ("dense", ("--epsilon", "abc"), "--epsilon: what was given is no number; give one"),
        ("dense", ("--steps", "1e9"), "--steps: what was given is no whole number; give one"),
        ("train", ("--out", "pub"), "--out: pub exists already; choose another name or remove it first"),
        *(
            ("train", ("--delta", delta), f"--delta: {float(delta):g} is not between 0 and 1/n = 0.00139 for 719 records;"
             " take one well below it")
            for delta in ("0", "nan", repr(1 / 719))
        ),
    ],
)  # fmt: skip
def test_options(refused, command, options, message):
    assert refused(*COMMANDS[command], *PRIVATE, *options) == message


def test_what_is_no_ticket_set(cwd, refused):
    (cwd / "empty").mkdir()
    (cwd / "file").write_text("hello")
    for name, message in (
        ("empty", "empty: not a ticket set (no tickets.json in it); name a folder made by dpltm generate"),
        ("file", "file: no ticket set there; make one with dpltm generate --out file"),
    ):
        assert refused("select", name, *PRIVATE, "--eps1", "0.1") == message
        assert refused("train", f"{name}@1", *PRIVATE, "--epsilon", "1") == message
    assert refused("datasets", "info") == "NAME|FILE is missing: Name or path."


@pytest.mark.parametrize("command", ON_SETS)
def test_a_damaged_ticket_set(cwd, refused, command):
    path = cwd / "pub/theta0.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert refused(*command) == (
        "pub/tickets.json: the id does not match theta0 and masks; the set is damaged or was changed"
    )


@pytest.mark.parametrize("command", ON_SETS)
def test_an_edited_ledger(cwd, refused, command):
    path = cwd / "digits.ledger.jsonl"
    changed = path.read_text().replace('"stop":500000000', '"stop":499999999')
    assert changed != path.read_text()
    path.write_text(changed)
    assert refused(*command) == (
        "digits.ledger.jsonl: line 2: this line, or one before it, was changed after the fact"
    )


@pytest.mark.parametrize("command", ON_SETS)
def test_a_ledger_that_cannot_be_written(refused, command):
    assert refused(*command, "--ledger", "/proc/none/ledger.jsonl") == (
        "/proc/none/ledger.jsonl: the ledger cannot be written: No such file or directory; nothing was spent; make room, or"
        " name another --ledger"
    )


def test_a_draw_under_another_relation_than_the_ledger_has(cli, by_places):
    """Both are then stated for the stronger one."""
    cli("train", "pub@2", *by_places, "--steps", "1", "--noise-multiplier", "9", "--quiet")
    body = cli(*COMMANDS["select"], *by_places, "--adjacency", "replace-one", "--json").json
    assert body["privacy"]["certified"]["adjacency"] == "replace-one"


def test_many_mistakes_at_once_are_one_line_about_one_of_them(cwd, refused):
    (cwd / "bad.npz").write_text("")
    refused("train", "nowhere@x", "--dataset", "bad.npz", "--epsilon", "-1", "--delta", "7", "--out", "pub")
