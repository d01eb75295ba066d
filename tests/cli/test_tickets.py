"""``dpltm tickets ...`` on small sets of the digits: whatever is made of a set carries what the set depends on, once."""

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands import PRIVATE, PUBLIC, certified
from dpltm.networks.masks import Mask
from dpltm.privacy.account import Account
from dpltm.privacy.entry import Entry, Lineage
from dpltm.privacy.mechanisms import GaussianRelease, NoisySgd, Selection, Unprotected
from dpltm.tickets.ledger_file import open_ledger
from dpltm.tickets.run import load_run
from dpltm.tickets.ticket_set import load_ticket_set, save_ticket_set
from dpltm.training.artifacts import TicketSet
from set_entries import LINEAGES, MOMENTS, by_dp_accounting

TRAIN = f"{PRIVATE} --steps 2 --noise-multiplier 100 --json"  # next to nothing beside a draw
EPS1, BOTH = 0.5, 0.95  # two bounded-range draws compose to less than their sum
QUERY = replace(MOMENTS, mechanisms=(GaussianRelease(5.0),))


def write_set(path: str, provenance: str) -> TicketSet:
    """The tickets of ``pub``, three hidden units of the last left without use; of ``dp``, behind one noisy query."""
    whole = load_ticket_set(Path("pub"))
    *first, last = whole.body.tickets
    mask = dict(last.mask.items())
    mask["fc2.weight"][:, [1, 4, 6]] = False
    predictor = {key: value * Mask(mask)[key] for key, value in last.predictor.items()}
    body = replace(whole.body, tickets=(*first, replace(last, mask=Mask(mask), predictor=predictor)))
    lineages = {**LINEAGES, "dp": Lineage((QUERY,)), "public": whole.made_from}
    facts = {"name": path, "provenance": provenance, "made_from": lineages[provenance]}
    return save_ticket_set(Path(path), replace(whole, body=body, **facts))


@pytest.fixture
def draw(cli, monkeypatch):
    """Draws a given winner of ``set``, a public one, into a ledger of its own."""
    write_set("set", "public")
    count = iter(range(100))

    def call(winner: int, *more: str) -> None:
        monkeypatch.setattr("dpltm.privacy.selection.draw", lambda *_: winner - 1)
        options = ("--eps1", EPS1, "--ledger", f"draw-{next(count)}.jsonl", *more, "--json")
        assert cli("select set", PRIVATE, *options).json["winner"]["round"] == winner

    return call


@pytest.fixture
def pays(cli):
    """Trains with a ledger of its own, which holds the training alone; returns what is certified."""
    count = iter(range(100))

    def call(ticket: str) -> float:
        number = next(count)
        body = cli(f"train {ticket} {TRAIN} --ledger pays-{number}.jsonl --out run-{number}").json
        assert len(open_ledger(f"pays-{number}.jsonl").entries) == 1
        return certified(body)

    return call


def draws(folder: str) -> list[Entry]:
    """Those that a set carries."""
    return [entry for entry in load_ticket_set(Path(folder)).lineage.entries if entry.of(Selection)]


def oracle(ledger: str) -> object:
    """What the query and the trainings that a ledger holds come to."""
    return pytest.approx(by_dp_accounting(QUERY, *open_ledger(ledger).entries), rel=3e-3)


# --- copies ---

COPIES = {
    "exported": ("made@2", "export SET --yes --out made"),
    "random": ("made@2", f"transfer SET {PRIVATE} --mode random --out made"),
    "one round": ("made@1", f"transfer SET@2 {PRIVATE} --mode mask-only --out made"),
    "compacted": ("made@1", "compact SET@2 --out made"),
    "imported": (
        *("made@1", "export SET@2 --yes --out t.safetensors"),
        f"import t.safetensors {PRIVATE} --model mlp:8 --out made",
    ),
    "chain": (
        *("made@1", f"transfer SET {PRIVATE} --mode mask-only --out one", "compact one@2 --out two"),
        "export two --yes --out made",
    ),
}


def copied(cli, name: str, copy: str) -> str:
    """The ticket in a copy of a set, or in a copy of a copy."""
    ticket, *commands = COPIES[copy]
    for command in commands:
        assert cli(f"tickets {command.replace('SET', name)}").code == 0
    return ticket


@pytest.mark.one_of(2)
@pytest.mark.parametrize("provenance", ["dp", "private", "public", "drawn"])
@pytest.mark.parametrize("copy", COPIES)
def test_every_copy_carries_what_its_set_depends_on(cli, request, copy, provenance):
    if provenance == "drawn":
        request.getfixturevalue("draw")(2)
        saved = load_ticket_set(Path("set"))
        assert len(draws("set")) == 1
    else:
        saved = write_set("secret", provenance)
    found = load_ticket_set(Path(copied(cli, saved.name, copy).partition("@")[0]))
    assert (found.provenance, found.lineage) == (saved.provenance, saved.lineage)
    assert (found.parent is None) == (copy == "exported")
    assert not Path("made/winner.json").exists()
    assert provenance != "private" or all(ticket.accuracy is None for ticket in found.body.tickets)
    shown = cli("tickets show made --json").json
    assert [entry["id"] for entry in shown["lineage"]["entries"]] == [entry.id for entry in saved.lineage.entries]
    assert cli("tickets verify made --json").json["ok"]


def test_no_copy_of_a_private_set_is_ever_certified(cli):
    write_set("secret", "private")
    name = copied(cli, "secret", "chain")
    assert certified(cli(f"train {name} {TRAIN} --ledger l.jsonl --out r").json) == float("inf")
    dense = cli(f"train --dense --model mlp:8 {TRAIN} --ledger l.jsonl --dry-run").json
    assert certified(dense) < 1, "the ledger holds no release without protection"


@pytest.mark.parametrize("provenance", ["dp", "private"])
def test_export_and_import_launder_nothing(cli, refused, provenance):
    """Whatever records the file is imported for."""
    saved = write_set("made", provenance)
    assert cli("tickets export made@2 --yes --out t.safetensors").code == 0
    take = f"tickets import t.safetensors {PUBLIC} --model mlp:8 --out in"
    for said in ("public", "data-free"):
        assert refused(f"{take} --provenance {said}").startswith(f"--provenance: t.safetensors says {provenance} ")
    body = cli(f"{take} --json").json
    assert (body["provenance"], body["parent"]["id"]) == (provenance, saved.id)
    trained = cli(f"train in@1 {TRAIN} --ledger l.jsonl --out r").json
    assert certified(trained) == (float("inf") if provenance == "private" else oracle("l.jsonl"))


# --- draws ---


def test_every_round_pays_for_the_draws_from_its_set(draw, pays):
    """Whoever takes another round than the one that won, or all weights, may do so because of that."""
    assert pays("set@1") < 0.1
    draw(2)
    assert pays("set") >= EPS1 - 0.01
    draw(1)
    for ticket in ("set@1", "set --dense"):
        assert pays(ticket) > BOTH


def test_a_draw_from_what_is_made_of_a_winner_counts_with_the_first(cli, draw):
    draw(2)
    assert cli(f"tickets transfer set {PRIVATE} --out made").code == 0  # of the same shape: predictors stay
    options = f"select made {PRIVATE} --eps1 0.2 --ledger l.jsonl --json"
    planned = certified(cli(f"{options} --dry-run").json)
    assert (Path("l.jsonl").exists(), len(draws("made"))) == (False, 1)
    assert planned == certified(cli(options).json) > EPS1 + 0.15
    assert [entry.of(Selection)[0].eps1 for entry in draws("made")] == [EPS1, 0.2]
    assert len(open_ledger("l.jsonl").entries) == len(draws("set")) == 1


def test_a_kill_before_the_winner_is_on_record_leaves_the_set_marked(cli, pays, monkeypatch):
    """Whoever saw the answer, or guessed it, pays."""

    def killed(*_):
        raise KeyboardInterrupt

    write_set("set", "public")
    with monkeypatch.context() as patch:
        patch.setattr("dpltm.tickets.ticket_set.save_winner", killed)
        assert cli(f"select set {PRIVATE} --eps1 {EPS1} --ledger l.jsonl").code == 130
    assert not Path("set/winner.json").exists()
    assert len(draws("set")) == 1
    assert pays("set@1") >= EPS1 - 0.01


@pytest.mark.parametrize("command", ["compact set@2 --out made", f"transfer set@2 {PRIVATE} --out made"])
def test_a_kill_right_after_the_set_appears_loses_no_draw(cli, draw, monkeypatch, command):
    """Nothing is written after the set itself that it would need."""
    draw(2)
    rename = os.rename

    def killed(one, other, *rest, **more):
        rename(one, other, *rest, **more)
        if Path(other).name == "made":
            shutil.copytree("made", "as it was")
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", killed)
        assert cli(f"tickets {command}").code == 130
    assert draws("as it was") == draws("set")


def test_an_unprotected_look_goes_along(cli, draw, pays):
    draw(2, "--reveal")
    assert pays(copied(cli, "set", "compacted")) == float("inf")
    assert [bool(entry.of(Unprotected)) for entry in load_ticket_set(Path("set")).lineage.paid] == [False, True]


def test_copies_pay_for_the_query_once(cli):
    write_set("dp", "dp")
    for number, name in enumerate(("dp@2", copied(cli, "dp", "chain"))):
        options = f"--steps 3 --noise-multiplier 2 --json --ledger l.jsonl --out r{number}"
        assert certified(cli(f"train {name} {PRIVATE} {options}").json) == oracle("l.jsonl")
    assert len(open_ledger("l.jsonl").entries) == 2


# --- chains: each begins with releases from one table, and ends with a training on it in a ledger of its own ---

DELTA = ("--delta", "1e-4")
SCHEMA = '[column.one]\nkind = "number"\n{0}\n[column.two]\nkind = "number"\n{0}\n'
LABEL = '[column.ill]\nkind = "label"\nclasses = ["0", "1"]\n'

A = ("--dataset", "a.csv", "--records", "300", *DELTA)
FOUND, KNOWN = ("--schema", "found.toml"), ("--schema", "public.toml")
FEW = ("--steps", "2", "--batch-size", "60", "--noise-multiplier", "5")
SET = ("--model", "mlp:4", "--rounds", "1", "--iterations", "2", "--batch-size", "20")
FIND = ("datasets", "schema", "a.csv", "--schema", "draft.toml", "--records", "300", "--private", "4", *DELTA,
        "--out", "found.toml", "--ledger", "found.jsonl")  # fmt: skip
UNDER_DP = ("generate", *A, *FOUND, "--criterion", "dp-train", "--epsilon", "9", *SET, "--out", "t")
MOVED = (
    ("tickets", "export", "t@1", "--out", "t.safetensors"),
    ("tickets", "import", "t.safetensors", "--dataset", "a.csv", *KNOWN, "--model", "mlp:4", "--out", "u"),
)

HISTOGRAMS, TRAINING, SELECTION = "histograms", "training", "selection"

CHAINS: dict[str, tuple[tuple[tuple[str, ...], ...], tuple[str, ...], Iterable[str]]] = {
    "tickets of a found schema, one moved": ((FIND, UNDER_DP, *MOVED), ("train", "u@1", *FEW), {HISTOGRAMS, TRAINING}),
    "tickets of a found schema, compacted": (
        (FIND, UNDER_DP, ("tickets", "compact", "t@1", "--out", "u")), ("train", "u@1", *FEW), {HISTOGRAMS, TRAINING},
    ),
    "tickets of a found schema, for the same table again": (
        (FIND, UNDER_DP, ("tickets", "transfer", "t@1", "--dataset", "a.csv", *KNOWN, "--out", "u")),
        ("train", "u@1", *FEW), {HISTOGRAMS, TRAINING},
    ),
    "tickets without data for a found schema": (
        (FIND, ("generate", "--dataset", "made0.npz", "--criterion", "random", *SET[:4], "--out", "t"),
         ("tickets", "transfer", "t@1", "--dataset", "a.csv", *FOUND, "--out", "u")),
        ("train", "u@1", *FEW), {HISTOGRAMS},
    ),
    "a winner drawn behind a found schema": (
        (FIND, ("generate", "--dataset", "b.csv", *KNOWN, "--provenance", "public", *SET, "--out", "t"),
         ("select", "t", *A, *FOUND, "--eps1", "0.1", "--score", "additive", "--ledger", "drawn.jsonl")),
        ("train", "t", *FEW), {HISTOGRAMS, SELECTION},
    ),
    "a winner drawn behind it twice": (
        (FIND, ("generate", "--dataset", "b.csv", *KNOWN, "--provenance", "public", *SET, "--out", "t"),
         *[("select", "t", *A, *FOUND, "--eps1", "0.1", "--score", "additive", "--ledger", "drawn.jsonl")] * 2),
        ("train", "t", *FEW), (HISTOGRAMS, SELECTION, SELECTION),
    ),
}  # fmt: skip


@pytest.fixture
def tables(cwd: Path) -> None:
    """Two tables, a draft and a public schema, and records that are nobody's."""
    draw = np.random.default_rng(0)
    for name in ("a", "b"):
        rows = [f"{one:.2f},{two:.2f},{int(one > two)}" for one, two in draw.uniform(0, 90, (300, 2))]
        (cwd / f"{name}.csv").write_text("\n".join(["one,two,ill", *rows]) + "\n")
    (cwd / "draft.toml").write_text(SCHEMA.format('bounds = "private"') + LABEL)
    (cwd / "public.toml").write_text(SCHEMA.format("bounds = [0, 90]\nmissing = true") + LABEL)
    np.savez(cwd / "made0.npz", x_train=np.zeros((40, 4), "u1"), y_train=np.arange(40) % 2)


def kind(entry: Entry) -> str:
    """What a release was."""
    if entry.of(Selection):
        return SELECTION
    return TRAINING if entry.of(NoisySgd) else HISTOGRAMS


@pytest.mark.one_of(3)
@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("name", CHAINS)
def test_what_a_training_is_made_of_counts(cli: Callable[..., Any], name: str) -> None:
    before, last, expected = CHAINS[name]
    for command in before:
        done = cli(*command, "--quiet")
        assert done.code == 0, (command, done.err)
    body = cli(*last, *A, *KNOWN, *DELTA, "--ledger", "last.jsonl", "--out", "last", "--json").json
    lineage = load_run(Path("last")).lineage
    assert Counter(map(kind, lineage.paid)) == Counter((*expected, TRAINING))
    assert body["privacy"]["certified"]["epsilon"] == Account.of((), lineage).epsilon(1e-4)
    assert [kind(entry) for entry in open_ledger("last.jsonl").entries] == [TRAINING], "nothing is entered twice"


@pytest.mark.usefixtures("tables")
def test_private_records_that_a_schema_is_read_off(cli: Callable[..., Any], refused: Callable[..., str]) -> None:
    train = ("train", "--dense", "--model", "mlp:4", *FEW, *A, *KNOWN, "--out", "r", "--ledger", "l.jsonl")
    assert cli(*train, "--quiet").code == 0
    draft = ("datasets", "schema", "a.csv", "--from-public", "--label", "ill", "--out", "read.toml")
    assert "a is protected by a release on record" in refused(*draft, "--ledger", "l.jsonl")


# --- the entry of a run ---

OWN = f"{PRIVATE} --delta 1e-4"
NOISY = f"train --dense {OWN} --steps 2 --noise-multiplier 30"


def test_what_does_not_fit_the_weights_is_refused(cli):
    """The lineage of a sister run, though settings are equal, and so figures would be; and another entry."""
    for out in "ab":
        assert cli(f"{NOISY} --model mlp:8 --audit 60 --out {out}").code == 0
    shutil.copytree("b", "c")
    shutil.copy("a/lineage.json", "c/lineage.json")
    done = cli("audit c")
    exchanged = "belongs to another artifact; its weights, its masks or this file were exchanged"
    assert (done.code, done.err) == (2, f"error: c/lineage.json: {exchanged}\n")
    config = json.loads(Path("a/config.json").read_text())
    Path("a/config.json").write_text(json.dumps({**config, "entry": "0" * 64}))
    for name, problem in (("c", "c/lineage.json: belongs to another"), ("a", "a: its lineage holds no training with")):
        done = cli(f"report {name} -o {name}.html --json")
        body = json.loads(done.out)
        assert (done.code, body["privacy"]["certified"]["epsilon"]) == (1, "inf")
        assert body["problems"][0].startswith(problem)
