"""``dpltm tickets ...`` on small sets of the digits: what is refused, and what stays on the bill of every copy."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant
from safetensors.torch import load_file

from dpltm.networks.masks import Mask
from dpltm.privacy.events import DatasetRef, GaussianEvent
from dpltm.privacy.mechanisms import GaussianRelease
from dpltm.pruning.generation import Tickets
from dpltm.pruning.ticket_set import TicketSet
from dpltm.records import load
from dpltm.tickets.ticket_set import load_ticket_set
from refs import reference
from sets import store_set

PUBLIC = ("--dataset", "digits", "--subset", "0.0:0.5")
PRIVATE = ("--dataset", "digits", "--subset", "0.5:1.0")
ALIKE = ("--dataset", "alike.npz", "--bounds", "0,16", "--classes", "10", "--records", "400")
TRAIN = ("--steps", "3", "--noise-multiplier", "2", "--json")
TIME = "2026-01-01T00:00:00Z"
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


def write_set(path: str, provenance: str, source: DatasetRef | None = None, **more: object) -> TicketSet:
    source = source or reference(load("digits", subset="0.5:1.0"))
    facts = {"criterion": "magnitude", "provenance": provenance, "source": source, "config": {"a": 1}, **more}
    return store_set(Path(path), facts.pop("body", None) or body_with_dead_units(), name=path, **facts)  # type: ignore[arg-type]


def dp_set(path: str = "dp", source: DatasetRef | None = None, time: str = TIME) -> TicketSet:
    """A set that was made by one noisy query of the records that it comes from."""
    source = source or reference(load("digits", subset="0.5:1.0"))
    spent = GaussianEvent(source, GaussianRelease(QUERY_NOISE), "moments", time=time)
    return write_set(path, "dp", source, events=[spent])


def certified(body: dict) -> float | str:
    return body["privacy"]["certified"]["epsilon"]


def oracle(*, queries: int, trainings: list[dict]) -> object:
    """What dp-accounting's own accountant makes of the queries and trainings that took place."""
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    if queries:
        accountant.compose(dp_event.GaussianDpEvent(QUERY_NOISE), queries)
    for body in trainings:
        step = dp_event.PoissonSampledDpEvent(
            body["sampling_rate"], dp_event.GaussianDpEvent(body["noise_multiplier"])
        )
        accountant.compose(dp_event.SelfComposedDpEvent(step, body["steps"]))
    return pytest.approx(accountant.get_epsilon(1e-5), rel=3e-3)


def kinds(found: list[dict]) -> list[str]:
    return [event["kind"] for event in found]


@pytest.fixture
def alike(cwd: Path) -> None:
    """Other records than the digits, of as many features in the same ten classes, in a file."""
    rng = np.random.default_rng(2)
    x, y = rng.integers(0, 17, (440, 8, 8), dtype=np.uint8), np.arange(440) % 10
    np.savez(cwd / "alike.npz", x_train=x[:400], y_train=y[:400], x_test=x[400:], y_test=y[400:])


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


# --- what a set from a DP release, or from private records, costs ---


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


@pytest.mark.parametrize("provenance", ["dp", "private"])
@pytest.mark.parametrize("copy", COPIES)
def test_every_copy_keeps_what_its_set_depends_on(cli, copy, provenance):
    saved = dp_set() if provenance == "dp" else write_set("secret", "private")
    found = load_ticket_set(Path(copied(cli, saved.name, copy).partition("@")[0]))
    assert (found.provenance, found.source, found.events) == (saved.provenance, saved.source, saved.events)
    assert (found.parent is None) == (copy == "exported")
    assert provenance == "dp" or all(ticket.accuracy is None for ticket in found.body.tickets)
    assert ("- spent: " in cli("tickets", "show", "made").out) == (provenance == "dp")


def test_copies_in_one_ledger_pay_for_the_query_once(cli, events):
    saved = dp_set()
    names = ("dp@2", copied(cli, "dp", "chain"), "dp@2")
    bodies = [
        cli("train", name, *PRIVATE, *TRAIN, "--ledger", "l.jsonl", "--out", f"r{number}").json
        for number, name in enumerate(names)
    ]
    query, said, *_ = found = events("l.jsonl")
    # the copy has an id of its own, so that it says where it comes from
    assert kinds(found) == ["gaussian", "provenance", "training", "provenance", "training", "training"]
    assert (query["noise_multiplier"], query["time"]) == (QUERY_NOISE, TIME)
    assert (said["provenance"], said["ticket_set"]) == ("dp", saved.id)
    assert events("r0/ledger.jsonl") == found[:3]
    for number in range(3):
        assert certified(bodies[number]) == oracle(queries=1, trainings=bodies[: number + 1])


@pytest.mark.parametrize(
    ("ticket", "data", "key", "queries"),
    [
        ("dp@2", ("--dataset", "digits", "--subset", "0.9:1.0"), "own", 1),
        ("dp@2", ("--dataset", "digits", "--subset", "0.0:1.0"), "own", 1),
        ("dp --dense", PRIVATE, "own", 1),
        ("dp@2", PUBLIC, "own", 0),
        ("dp@2", PUBLIC, "another", 1),  # nobody can tell whether these are other records
        ("known@2", ALIKE, "own", 0),
    ],
)
@pytest.mark.usefixtures("alike")
def test_records_that_may_be_behind_the_query_pay_for_it(cli, events, monkeypatch, ticket, data, key, queries):
    """It is entered in any case, on the records that it was made of."""
    dp_set()
    dp_set("known", reference(load("digits"), public=True))
    if key == "another":
        monkeypatch.setenv("DPLTM_KEY", str(Path("another.key").absolute()))
    body = cli("train", *ticket.split(), *data, *TRAIN, "--ledger", "l.jsonl", "--out", "r").json
    assert kinds(events("l.jsonl")) == ["gaussian", "provenance", "training"]
    assert certified(body) == oracle(queries=queries, trainings=[body])
    told = "the tickets were made under differential privacy from digits"
    assert any(note.startswith(told) for note in body["privacy"]["notes"]) == (queries == 0)


@pytest.mark.parametrize(("time", "queries"), [(TIME, 1), ("2026-01-01T00:00:01Z", 2)], ids=["the same", "another"])
def test_equal_queries_are_one_release_and_others_are_not(cli, events, time, queries):
    """Two sets of one noisy query, pruned in two ways; or of two, which their times alone tell apart."""
    source = reference(load("digits", subset="0.5:1.0"))
    dp_set("a", source)
    spent = GaussianEvent(source, GaussianRelease(QUERY_NOISE), "moments", time=time)
    write_set("b", "dp", source, events=[spent], body=load_ticket_set(Path("pub")).body)
    bodies = [
        cli("train", f"{name}@2", *PRIVATE, *TRAIN, "--ledger", "l.jsonl", "--out", f"{name}.run").json
        for name in ("a", "b")
    ]
    assert kinds(events("l.jsonl")).count("gaussian") == queries
    assert certified(bodies[-1]) == oracle(queries=queries, trainings=bodies)


def test_no_copy_of_a_private_set_is_ever_certified(cli):
    write_set("secret", "private")
    name = copied(cli, "secret", "chain")
    assert certified(cli("train", name, *PRIVATE, *TRAIN, "--out", "r").json) == "inf"
    elsewhere = cli("train", name, *PUBLIC, *TRAIN, "--ledger", "l.jsonl", "--out", "o").json
    assert certified(elsewhere) == oracle(queries=0, trainings=[elsewhere])
    assert any("nothing is certified for those records" in note for note in elsewhere["privacy"]["notes"])
    # it is on the bill of the records that it was made of
    dense = ("train", "--dense", "--model", "mlp:8", *PRIVATE, *TRAIN, "--ledger", "l.jsonl", "--dry-run")
    assert certified(cli(*dense).json) == "inf"


@pytest.mark.parametrize(("provenance", "more"), [("dp", ()), ("dp", ("--predictor",)), ("private", ())])
def test_export_and_import_launder_nothing(cli, events, refused, provenance, more):
    """The cost is on the bill of the records that the set was made of, whatever records the file is imported for."""
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
    trained = cli("train", "in@1", *PRIVATE, *TRAIN, "--out", "r").json
    again = cli("train", "made@2", *PRIVATE, *TRAIN, "--ledger", "in/ledger.jsonl", "--out", "s").json
    assert kinds(events("in/ledger.jsonl")).count("gaussian") == (0 if private else 1)
    assert certified(trained) == ("inf" if private else oracle(queries=1, trainings=[trained]))
    assert certified(again) == ("inf" if private else oracle(queries=1, trainings=[trained, again]))


@pytest.mark.parametrize(("command", "reveal"), [("transfer", ()), ("compact", ()), ("compact", ("--reveal",))])
def test_what_is_made_of_a_winner_pays_for_the_draw(cli, events, command, reveal):
    """Which round is compacted, or transferred alone, was released by a draw from private scores, at eps1."""
    body = body_with_dead_units()
    dense, _, last = body.tickets  # whichever of the two wins can be compacted
    body = replace(body, tickets=(dense, replace(last, round=1), last))
    write_set("set", "public", reference(load("digits", subset="0.0:0.5")), body=body)
    winner = cli("select", "set", *PRIVATE, "--eps1", "0.5", *reveal, "--json").json["winner"]["round"]
    kept = cli("train", f"set@{winner}", *PRIVATE, *TRAIN, "--ledger", "k.jsonl", "--out", "k").json
    records = PRIVATE if command == "transfer" else ()
    for number, name in ((winner, "made"), (3 - winner, "other")):
        assert cli("tickets", command, f"set@{number}", *records, "--out", name).code == 0
        assert not Path(name, "selection.json").exists()
    trained = cli("train", "made@1", *PRIVATE, *TRAIN, "--out", "r").json
    assert kinds(events("made/ledger.jsonl")) == kinds(events("k.jsonl"))
    assert certified(trained) == ("inf" if reveal else pytest.approx(certified(kept), rel=1e-3))
    # the other round was not released by the draw
    plain = cli("train", "other@1", *PRIVATE, *TRAIN, "--out", "o").json
    assert certified(plain) == oracle(queries=0, trainings=[plain])


@pytest.mark.parametrize("key", ["own", "another"])
@pytest.mark.usefixtures("alike")
def test_records_that_are_public_all_through_are_known_under_every_key(cli, refused, monkeypatch, tmp_path, key):
    write_set("shared", "public", reference(load("digits"), public=True))
    name = copied(cli, "shared", "compacted")
    if key == "another":
        monkeypatch.setenv("DPLTM_KEY", str(tmp_path / "another" / "key"))
        cli("train", "--dense", "--model", "mlp:8", *PRIVATE, *TRAIN, "--out", "d")  # which makes the key
    for subset in ("0.0:0.5", "0:100"):
        assert "declared public" in refused("train", name, "--dataset", "digits", "--subset", subset, *TRAIN)
    body = cli("train", name, *ALIKE, *TRAIN, "--out", "r").json
    assert certified(body) == oracle(queries=0, trainings=[body])


def test_a_public_part_is_known_to_its_owner_alone(cli, refused, monkeypatch, tmp_path):
    """A fingerprint of the file would tell of the rest of it, which is private: so elsewhere the declaration is taken."""
    write_set("shared", "public", reference(load("digits", subset="0.0:0.5"), public=True))
    assert "declared public" in refused("train", "shared@2", *PUBLIC, *TRAIN, "--out", "r")
    monkeypatch.setenv("DPLTM_KEY", str(tmp_path / "another" / "key"))
    body = cli("train", "shared@2", *PRIVATE, *TRAIN, "--out", "o").json
    assert certified(body) == oracle(queries=0, trainings=[body])
    assert any("cannot be told here" in note for note in body["privacy"]["notes"])
