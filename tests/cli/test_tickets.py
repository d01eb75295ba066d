"""``dpltm tickets ...`` on small sets of the digits: what is refused, and what every copy carries."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from dp_accounting import dp_event
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant
from safetensors.torch import load_file, save_file

from dpltm.networks.masks import Mask
from dpltm.privacy.entry import Lineage
from dpltm.privacy.mechanisms import GaussianRelease, NoisySgd
from dpltm.pruning.generation import Tickets
from dpltm.pruning.ticket_set import TicketSet
from dpltm.tickets.ledger_file import open_ledger
from dpltm.tickets.ticket_set import load_ticket_set
from set_entries import MOMENTS
from sets import store_set

PUBLIC = ("--dataset", "digits", "--subset", "0.0:0.5")
PRIVATE = ("--dataset", "digits", "--subset", "0.5:1.0")
TRAIN = ("--steps", "3", "--noise-multiplier", "2", "--json")
QUERY_NOISE = 5.0


def body_with_dead_units() -> Tickets:
    """The tickets of ``pub``, with three hidden units of the last one left without use, to be compacted away."""
    body = load_ticket_set(Path("pub")).body
    *first, last = body.tickets
    mask = dict(last.mask.items())
    mask["fc2.weight"][:, [1, 4, 6]] = False
    changed = Mask(mask)
    assert last.predictor is not None
    predictor = {key: value * changed[key] for key, value in last.predictor.items()}
    return replace(body, tickets=(*first, replace(last, mask=changed, predictor=predictor)))


def write_set(path: str, provenance: str, **more: object) -> TicketSet:
    facts = {"criterion": "magnitude", "provenance": provenance, "config": {"a": 1}, **more}
    return store_set(Path(path), body_with_dead_units(), name=path, **facts)


def dp_set(path: str = "dp") -> TicketSet:
    """A set that was made by one noisy query of some records."""
    query = replace(MOMENTS, mechanisms=(GaussianRelease(QUERY_NOISE),))
    return write_set(path, "dp", lineage=Lineage((query,)))


def certified(body: dict) -> float | str:
    return body["privacy"]["certified"]["epsilon"]


def oracle(*, queries: int, ledger: str) -> object:
    """What dp-accounting's own accountant makes of the queries, and of the trainings that a ledger holds."""
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    if queries:
        accountant.compose(dp_event.GaussianDpEvent(QUERY_NOISE), queries)
    for entry in open_ledger(ledger).entries:
        for sgd in entry.of(NoisySgd):
            step = dp_event.PoissonSampledDpEvent(sgd.sampling_rate, dp_event.GaussianDpEvent(sgd.noise_multiplier))
            accountant.compose(dp_event.SelfComposedDpEvent(step, sgd.steps))
    return pytest.approx(accountant.get_epsilon(1e-5), rel=3e-3)


# --- what is refused ---


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("export pub@1 --out new", "SET@ROUND: set takes the whole set; leave @ROUND out"),
        ("export pub --to onnx --out t.onnx", "SET@ROUND: onnx takes one round; write SET@ROUND"),
        (
            "export pub --predictor --out new",
            "--predictor: for one ticket; a set keeps its predictors unless --no-predictors",
        ),
        (
            "export pub@1 --to torch-prune --no-predictors --out t.safetensors",
            "--no-predictors: only --to set; torch-prune has starting weights unless --predictor",
        ),
        (
            "export slim@1 --to state-dict --predictor --out t.safetensors",
            "--predictor: slim has none; leave it out for the starting weights",
        ),
        ("export pub --out pri", "--out: pri exists already; choose another name or remove it first"),
        ("export pub", "--out is missing: Folder or file to write."),
        (
            "compact pub@0 --out new",
            "nothing to compact: every unit has a live weight behind it; a sparser round, or --criterion structured, leaves"
            " more without use",
        ),
        ("compact pub@1 --out pri", "--out: pri exists already; choose another name or remove it first"),
        (
            "import t.safetensors --model mlp:8 --dataset digits --provenance dp --out in",
            "--provenance: 'dp' is not one of public, private, data-free",
        ),
        (
            "import t.safetensors --model mlp:8 --dataset digits --out pub",
            "--out: pub exists already; choose another name or remove it first",
        ),
    ],
)
def test_refused(cli, refused, arguments, message):
    if "slim" in arguments:
        assert cli("tickets", "export", "pub", "--no-predictors", "--out", "slim").code == 0
        assert not Path("slim/predictors.safetensors").exists()
    assert cli("tickets", "export", "pub@2", "--to", "torch-prune", "--out", "t.safetensors").code == 0
    assert refused("tickets", *arguments.split()) == message


def test_a_private_set_is_handed_on_with_a_word_and_without_predictors(cli, cwd, refused):
    message = (
        "pri: made from private records with no mechanism: its masks may reveal them, and no epsilon bounds how much; if"
        " you mean to hand them on all the same, without predictors, add --yes"
    )
    assert refused("tickets", "export", "pri", "--no-predictors", "--out", "new", code=1) == message
    for form in ("state-dict", "torch-prune", "onnx"):
        given = ("tickets", "export", "pri@1", "--to", form, "--out", "t.safetensors")
        assert refused(*given, code=1) == message
        for yes in ((), ("--yes",)):
            assert refused(*given, "--predictor", *yes, code=1) == (
                "--predictor: the predictors of pri were trained on private records with no mechanism, and are never handed"
                " on; leave it out for the starting weights"
            )
    assert cli("tickets", "export", "pri", "--yes", "--out", "new", "--quiet").code == 0
    assert not load_ticket_set(cwd / "new").is_scored
    assert not (cwd / "new.private.json").exists()
    trained = [value.numpy().tobytes()[:16] for value in load_file(cwd / "pri/predictors.safetensors").values()]
    measured = json.loads((cwd / "pri.private.json").read_text())["accuracy"].values()
    for path in (cwd / "new").iterdir():
        assert not any(value in path.read_bytes() for value in trained)
        assert not any(repr(value).encode() in path.read_bytes() for value in measured)


# --- what a set from a DP release, or from private records, carries ---


COPIES = {
    "exported": ("made@2", "export SET --yes --no-predictors --out made"),
    "random": ("made@2", "transfer SET RECORDS --mode random --out made"),
    "one round": ("made@1", "transfer SET@2 RECORDS --mode mask-only --out made"),
    "compacted": ("made@1", "compact SET@2 --out made"),
    "imported": (
        *("made@1", "export SET@2 --to torch-prune --yes --out t.safetensors"),
        "import t.safetensors RECORDS --model mlp:8 --out made",
    ),
    "chain": (
        *("made@1", "transfer SET RECORDS --mode mask-only --out one", "compact one@2 --out two"),
        "export two --yes --out made",
    ),
}


def copied(cli: Callable, name: str, copy: str) -> str:
    """The ticket in a copy of a set, or in a copy of a copy."""
    ticket, *commands = COPIES[copy]
    for command in commands:
        given = command.replace("SET", name).replace("RECORDS", " ".join(PRIVATE))
        assert cli("tickets", *given.split()).code == 0
    return ticket


@pytest.mark.parametrize("provenance", ["dp", "private", "public"])
@pytest.mark.parametrize("copy", COPIES)
def test_every_copy_carries_what_its_set_depends_on(cli, copy, provenance):
    saved = dp_set() if provenance == "dp" else write_set("secret", provenance)
    found = load_ticket_set(Path(copied(cli, saved.name, copy).partition("@")[0]))
    assert (found.provenance, found.lineage) == (saved.provenance, saved.lineage)
    assert (found.parent is None) == (copy == "exported")
    assert provenance != "private" or all(ticket.accuracy is None for ticket in found.body.tickets)
    shown = cli("tickets", "show", "made", "--json").json
    assert [entry["id"] for entry in shown["lineage"]["entries"]] == [entry.id for entry in saved.lineage.entries]


def test_copies_pay_for_the_query_once(cli):
    dp_set()
    names = ("dp@2", copied(cli, "dp", "chain"), "dp@2")
    for number, name in enumerate(names):
        body = cli("train", name, *PRIVATE, *TRAIN, "--ledger", "l.jsonl", "--out", f"r{number}").json
        assert certified(body) == oracle(queries=1, ledger="l.jsonl")
    assert len(open_ledger("l.jsonl").entries) == 3


def test_no_copy_of_a_private_set_is_ever_certified(cli):
    write_set("secret", "private")
    name = copied(cli, "secret", "chain")
    assert certified(cli("train", name, *PRIVATE, *TRAIN, "--ledger", "l.jsonl", "--out", "r").json) == "inf"
    dense = ("train", "--dense", "--model", "mlp:8", *PRIVATE, *TRAIN, "--ledger", "l.jsonl", "--dry-run")
    assert certified(cli(*dense).json) != "inf", "the ledger holds no release without protection"


@pytest.mark.parametrize(("provenance", "more"), [("dp", ()), ("dp", ("--predictor",)), ("private", ())])
def test_export_and_import_launder_nothing(cli, refused, provenance, more):
    """Whatever records the file is imported for."""
    private = provenance == "private"
    saved = write_set("made", "private") if private else dp_set("made")
    out = ("--to", "torch-prune", "--yes", "--out", "t.safetensors", *more)
    assert cli("tickets", "export", "made@2", *out).code == 0
    options = ("tickets", "import", "t.safetensors", *PUBLIC, "--model", "mlp:8", "--out", "in")
    for said in ("public", "data-free"):
        assert refused(*options, "--provenance", said) == (
            f"--provenance: t.safetensors says {provenance} of itself; leave --provenance out"
        )
    body = cli(*options, "--json").json
    assert (body["provenance"], body["parent"]["id"]) == (provenance, saved.id)
    trained = cli("train", "in@1", *PRIVATE, *TRAIN, "--ledger", "l.jsonl", "--out", "r").json
    assert certified(trained) == ("inf" if private else oracle(queries=1, ledger="l.jsonl"))


def test_what_a_file_does_not_say_is_declared_in_an_account(cli):
    """As a declaration, or as a release without protection, of the records that it is said to be made from."""
    assert cli("tickets", "export", "pub@2", "--to", "torch-prune", "--out", "t.safetensors").code == 0
    save_file(load_file("t.safetensors"), "bare.safetensors")
    for provenance, kinds in (("public", ["public"]), ("private", ["release"]), ("data-free", [])):
        own = f"{provenance}.jsonl"
        options = ("tickets", "import", "bare.safetensors", *PUBLIC, "--model", "mlp:8", "--provenance", provenance)
        assert cli(*options, "--ledger", own, "--out", provenance, "--quiet").code == 0
        assert [entry.kind for entry in open_ledger(own).entries] == kinds
        assert load_ticket_set(Path(provenance)).lineage.entries == open_ledger(own).entries
