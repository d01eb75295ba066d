"""``dpltm tickets ...`` on small sets of the digits: what it prints, what it writes, and what stays on the bill."""

from __future__ import annotations

import functools
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
import torch
from dp_accounting import dp_event
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant
from safetensors.torch import load_file, save_file

from dpltm.data import load
from dpltm.generation import Tickets
from dpltm.masks import Mask
from dpltm.models import build
from dpltm.privacy import events as event_module
from dpltm.privacy.events import DatasetRef, GaussianEvent
from dpltm.privacy.mechanisms import GaussianRelease
from dpltm.ticket_set import TicketSet
from dpltm.tickets.ticket_set import load_ticket_set
from refs import reference
from sets import store_set

PUBLIC = ("--dataset", "digits", "--subset", "0.0:0.5")
PRIVATE = ("--dataset", "digits", "--subset", "0.5:1.0")
TRAIN = ("--steps", "3", "--noise-multiplier", "2", "--json")
TIME = "2026-01-01T00:00:00Z"
QUERY_NOISE = 5.0
ROW = {"round", "density", "live", "accuracy"}


def body_with_dead_units(name: str = "pub") -> Tickets:
    """The tickets of a set, with three hidden units of the last one left without use, to be compacted away."""
    body = load_ticket_set(Path(name)).body
    *first, last = body.tickets
    mask = dict(last.mask.items())
    mask["fc2.weight"][:, [1, 4, 6]] = False
    changed = Mask(mask)
    assert last.predictor is not None
    predictor = {key: value * changed[key] for key, value in last.predictor.items()}
    return replace(body, tickets=(*first, replace(last, mask=changed, predictor=predictor)))


def write_set(path: str, provenance: str, source: object, body: Tickets | None = None, **more: object) -> TicketSet:
    return store_set(
        Path(path), body or body_with_dead_units(), name=path, criterion="magnitude", provenance=provenance,
        source=source, config={"a": 1}, **more,
    )  # type: ignore[arg-type]  # fmt: skip


def dp_set(path: str = "dp", subset: str = "0.5:1.0", time: str = TIME, source: DatasetRef | None = None) -> TicketSet:
    """A set that was made by one noisy query of those records."""
    source = source or reference(load("digits", subset=subset))
    spent = GaussianEvent(source, GaussianRelease(QUERY_NOISE), "moments", time=time)
    return write_set(path, "dp", source, events=[spent])


def description(folder: str) -> dict:
    return json.loads(Path(folder, "tickets.json").read_text())


def certified(body: dict) -> float | str:
    return body["privacy"]["certified"]["epsilon"]


def oracle(*, queries: int, trainings: list[dict], delta: float = 1e-5) -> float:
    """dp-accounting's own accountant on the queries and trainings that took place."""
    settings = (tuple(body[key] for key in ("sampling_rate", "noise_multiplier", "steps")) for body in trainings)
    return composed(queries, tuple(settings), delta)


@functools.cache
def composed(queries: int, trainings: tuple[tuple[float, float, int], ...], delta: float) -> float:
    """Worked out once: most tests train with the same settings."""
    accountant = PLDAccountant(value_discretization_interval=1e-4)
    if queries:
        accountant.compose(dp_event.GaussianDpEvent(QUERY_NOISE), queries)
    for rate, noise, steps in trainings:
        step = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise))
        accountant.compose(dp_event.SelfComposedDpEvent(step, steps))
    return accountant.get_epsilon(delta)


def kinds(found: list[dict]) -> list[str]:
    return [event["kind"] for event in found]


def records_of(ref: DatasetRef | None) -> tuple[object, ...]:
    """What two references to the same part of the same records have in common; their ids are random."""
    assert ref is not None
    return ref.name, ref.group, ref.cut, ref.start, ref.stop


@pytest.fixture
def others(cwd: Path) -> tuple[str, ...]:
    """Records of 30 features in the same ten classes, in a file."""
    rng = np.random.default_rng(1)
    np.savez(
        cwd / "others.npz",
        x_train=rng.integers(0, 17, (400, 30), dtype=np.uint8),
        y_train=np.arange(400) % 10,
        x_test=rng.integers(0, 17, (40, 30), dtype=np.uint8),
        y_test=np.arange(40) % 10,
    )
    return ("--dataset", "others.npz", "--bounds", "0,16", "--classes", "10", "--records", "400")


@pytest.fixture
def alike(cwd: Path) -> tuple[str, ...]:
    """Other records than the digits, of as many features in the same ten classes, in a file."""
    rng = np.random.default_rng(2)
    arrays = {
        f"{name}_{split}": values
        for split, count in (("train", 400), ("test", 40))
        for name, values in (("x", rng.integers(0, 17, (count, 8, 8), dtype=np.uint8)), ("y", np.arange(count) % 10))
    }
    np.savez(cwd / "alike.npz", **arrays)
    return ("--dataset", "alike.npz", "--bounds", "0,16", "--classes", "10", "--records", "400")


# --- ls ---


def test_ls(cli, cwd):
    (cwd / "broken").mkdir()
    (cwd / "broken" / "tickets.json").write_text("{")
    body = cli("tickets", "ls", "--json").json
    assert set(body) == {"folder", "tickets"}
    rows = {row["ticket_set"]: row for row in body["tickets"] if not row["ticket_set"].startswith("bundled:")}
    assert list(rows) == ["broken", "pri", "pub"]
    assert set(rows["broken"]) == {"ticket_set", "bytes", "problem"}
    assert rows["broken"]["problem"].startswith("broken/tickets.json: ")
    for name in ("pri", "pub"):
        document = json.loads((cwd / name / "tickets.json").read_text())
        assert rows[name] == {
            "ticket_set": name,
            "bytes": sum(path.stat().st_size for path in (cwd / name).iterdir()),
            "problem": None,
            **{key: document[key] for key in ("id", "model", "criterion", "provenance")},
            "rounds": 2,
            "density": document["tickets"][2]["density"],
        }


def test_ls_elsewhere(cli, cwd, refused):
    (cwd / "empty").mkdir()
    body = cli("tickets", "ls", "empty", "--json").json
    assert [row for row in body["tickets"] if not row["ticket_set"].startswith("bundled:")] == []
    assert [row["ticket_set"] for row in cli("tickets", "ls", cwd, "--json").json["tickets"]][:2] == [
        str(cwd / "pri"),
        str(cwd / "pub"),
    ]
    message = "none: cannot be read: No such file or directory; name a folder of ticket sets"
    assert refused("tickets", "ls", "none") == message


# --- show ---

FACTS = {
    *("ticket_set", "id", "name", "model", "features", "classes", "criterion", "provenance", "source", "events"),
    *("draws", "parent", "predictors", "feature_map", "config", "tickets"),
}


def test_show(cli, cwd):
    body = cli("tickets", "show", "pub", "--json").json
    assert set(body) == FACTS
    document = json.loads((cwd / "pub" / "tickets.json").read_text())
    for key in FACTS - {"ticket_set", "predictors", "tickets"}:
        assert body[key] == document[key]
    assert body["predictors"] is True
    assert [set(row) for row in body["tickets"]] == [ROW] * 3
    assert body["tickets"] == document["tickets"]


def test_show_layer_by_layer(cli):
    body = cli("tickets", "show", "pub@2", "--json").json
    assert set(body) == FACTS | {"layers"}
    mask = load_ticket_set(Path("pub")).ticket(2).mask
    assert [row["parameter"] for row in body["layers"]] == ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]
    for row in body["layers"]:
        value = mask[row["parameter"]].numpy()
        assert (row["shape"], row["live"]) == (list(value.shape), np.count_nonzero(value))
        assert row["density"] == pytest.approx(value.mean(), rel=1e-12)
    out = cli("tickets", "show", "pub@2").out
    assert "8x64" in out
    assert f"{body['layers'][0]['density']:.2%}" in out


def test_show_says_what_a_dp_set_spent_and_where_it_comes_from(cli, cwd):  # noqa: ARG001
    dp_set()
    assert cli("tickets", "transfer", "dp@2", *PRIVATE, "--mode", "random", "--out", "t").code == 0
    out, body = cli("tickets", "show", "t").out, cli("tickets", "show", "t", "--json").json
    (event,) = body["events"]
    assert (event["kind"], event["noise_multiplier"], event["what"]) == ("gaussian", QUERY_NOISE, "moments")
    assert "- spent: " in out
    assert body["parent"] == {
        "id": load_ticket_set(Path("dp")).id, "name": "dp", "round": 2, "how": "transfer (random)",
    }  # fmt: skip
    assert "by transfer (random)" in out


# --- verify ---


def test_verify(cli):
    assert cli("tickets", "verify", "pub", "--json").json == {"ticket_set": "pub", "ok": True, "problems": []}
    assert cli("tickets", "verify", "pub").out == "pub: all is well\n"


def test_verify_a_damaged_set(cli, cwd):
    path = cwd / "pub" / "masks.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    done = cli("tickets", "verify", "pub", "--json")
    assert (done.code, done.err) == (1, "")
    assert json.loads(done.out) == {
        "ticket_set": "pub",
        "ok": False,
        "problems": ["pub/tickets.json: the id does not match theta0 and masks; the set is damaged or was changed"],
    }
    told = cli("tickets", "verify", "pub")
    assert (told.code, told.out) == (1, "\n".join(json.loads(done.out)["problems"]) + "\n")
    assert cli("tickets", "verify", "pub", "--quiet").code == 1


def test_verify_what_is_no_set(refused):
    assert refused("tickets", "verify", "none") == "none: no ticket set there; name a folder made by dpltm generate"


@pytest.mark.parametrize("command", ["show", "transfer"])
def test_a_newer_schema(cwd, refused, command):
    path = cwd / "pub" / "tickets.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "schema": document["schema"] + 1}))
    more = {"show": (), "transfer": (*PRIVATE, "--out", "new")}
    message = refused("tickets", command, "pub", *more[command])
    assert message == "pub/tickets.json: schema 4 is newer than this version of dpltm reads (3); upgrade dpltm"


# --- export ---


DRAWN = (
    "a winner was drawn from this set, and which round that was is a release of its own that the copy does not know of: so"
    " train the winner from pub, where its cost is counted"
)


def test_export_a_set(cli, cwd):
    assert cli("tickets", "export", "pub", "--out", "plain", "--json").json["notes"] == []
    cli("select", "pub", *PRIVATE, "--eps1", "0.2", "--json")
    assert (cwd / "pub" / "ledger.jsonl").exists()
    body = cli("tickets", "export", "pub", "--out", "shared", "--json").json
    assert body == {
        "ticket_set": "pub", "id": load_ticket_set(Path("pub")).id, "round": None, "form": "set", "written": "shared",
        "notes": [DRAWN],
    }  # fmt: skip
    assert {path.name for path in (cwd / "pub").iterdir()} - {path.name for path in (cwd / "shared").iterdir()} == {
        "ledger.jsonl",
        "selection.json",
    }
    assert cli("tickets", "verify", "shared", "--json").json["ok"]
    assert load_ticket_set(Path("shared")).id == body["id"]
    out = cli("tickets", "export", "pub", "--no-predictors", "--out", "slim").out
    assert " ".join(out.split()) == f"wrote slim - {DRAWN}"
    assert not (cwd / "slim" / "predictors.safetensors").exists()


def test_export_a_private_set_needs_a_word(cli, cwd, refused):
    for more in (("--out", "new"), ("--out", "new", "--no-predictors")):
        message = refused("tickets", "export", "pri", *more, code=1)
        assert message == (
            "pri: made from private records with no mechanism: its masks may reveal them, and no epsilon bounds how much; if"
            " you mean to hand them on all the same, without predictors, add --yes"
        )
    for form in ("state-dict", "torch-prune", "onnx"):
        assert "add --yes" in refused("tickets", "export", "pri@1", "--to", form, "--out", "t.safetensors", code=1)
    body = cli("tickets", "export", "pri", "--yes", "--out", "new", "--json").json
    assert body["written"] == "new"
    assert body["notes"] == [
        "made from private records with no mechanism: its masks may reveal them, and no epsilon bounds how much; predictors"
        " and accuracies stay here"
    ]
    found = load_ticket_set(cwd / "new")
    assert not found.is_scored
    assert not (cwd / "new" / "predictors.safetensors").exists()
    trained = load_file(cwd / "pri" / "predictors.safetensors")
    for path in (cwd / "new").iterdir():
        for value in trained.values():
            assert value.numpy().tobytes()[:16] not in path.read_bytes()
    assert cli("tickets", "verify", "new", "--json").json["ok"]
    assert found.provenance == "private"
    assert [ticket.accuracy for ticket in found.body.tickets] == [None] * 3
    assert not (cwd / "new.private.json").exists()
    accuracies = json.loads((cwd / "pri.private.json").read_text())["accuracy"].values()
    assert len(accuracies) == 3
    for value in accuracies:
        for path in (cwd / "new").iterdir():
            assert repr(value).encode() not in path.read_bytes()


@pytest.mark.parametrize("form", ["state-dict", "torch-prune", "onnx"])
@pytest.mark.parametrize("yes", [(), ("--yes",)])
def test_no_network_trained_on_private_records_is_exported(refused, form, yes):
    given = ("tickets", "export", "pri@1", "--to", form, "--predictor", "--out", "t.safetensors", *yes)
    assert refused(*given, code=1) == (
        "--predictor: the predictors of pri were trained on private records with no mechanism, and are never handed on;"
        " leave it out for the starting weights"
    )


@pytest.mark.parametrize("form", ["set", "state-dict", "torch-prune", "onnx"])
def test_export_says_that_what_was_spent_goes_along(cli, cwd, form):  # noqa: ARG001
    dp_set()
    name, out = ("dp", "new") if form == "set" else ("dp@2", "t.onnx" if form == "onnx" else "t.safetensors")
    body = cli("tickets", "export", name, "--to", form, "--out", out, "--json").json
    assert body["notes"] == [
        "made under differential privacy from digits[0.5:1.0]: what that spent goes with the copy"
    ]


@pytest.mark.parametrize("predictor", [False, True])
def test_export_a_state_dict(cli, predictor):
    tickets = load_ticket_set(Path("pub"))
    more = ("--predictor",) if predictor else ()
    body = cli("tickets", "export", "pub@2", "--to", "state-dict", *more, "--out", "t.safetensors", "--json").json
    assert (body["round"], body["form"], body["written"]) == (2, "state-dict", "t.safetensors")
    model, mask = build(tickets.body.spec), tickets.ticket(2).mask
    model.load_state_dict(load_file("t.safetensors"), strict=True)
    values = tickets.ticket(2).predictor if predictor else tickets.body.theta0
    for name, value in model.named_parameters():
        assert torch.equal(value[mask[name]], values[name][mask[name]])
        assert not value[~mask[name]].any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("pub@1", "--out", "new"), "SET@ROUND: set takes the whole set; leave @ROUND out"),
        (
            ("pub", "--to", "state-dict", "--out", "t.safetensors"),
            "SET@ROUND: state-dict takes one round; write SET@ROUND",
        ),
        (("pub", "--to", "onnx", "--out", "t.onnx"), "SET@ROUND: onnx takes one round; write SET@ROUND"),
        (
            ("pub", "--predictor", "--out", "new"),
            "--predictor: for one ticket; a set keeps its predictors unless --no-predictors",
        ),
        (
            ("pub@1", "--to", "torch-prune", "--no-predictors", "--out", "t.safetensors"),
            "--no-predictors: only --to set; torch-prune has starting weights unless --predictor",
        ),
        (("pub@3", "--to", "state-dict", "--out", "t.safetensors"), "pub@3: no such round; it has rounds 0 to 2"),
        (
            ("pub@1e3", "--to", "state-dict", "--out", "t.safetensors"),
            "SET@ROUND: '1e3' is not a round; write a whole number after @, such as pub@10",
        ),
        (
            ("pub@1", "--to", "state-dict", "--out", "t.pt"),
            "--out: t.pt: tensors are written as safetensors; name it t.safetensors",
        ),
        (("pub", "--to", "pickle", "--out", "t"), "--to: 'pickle' is not one of set, state-dict, torch-prune, onnx"),
        (("pub", "--out", "pri"), "--out: pri exists already; choose another name or remove it first"),
        (
            ("pub@1", "--to", "state-dict", "--out", "pri.private.json"),
            "--out: pri.private.json exists already; choose another name or remove it first",
        ),
        (("none", "--out", "new"), "none: no ticket set there; make one with dpltm generate --out none"),
        (("pub",), "--out is missing: Folder or file to write."),
    ],
)
def test_what_export_refuses(refused, arguments, message):
    assert refused("tickets", "export", *arguments) == message


def test_a_set_without_predictors_has_none_to_export(cli, refused):
    cli("tickets", "export", "pub", "--no-predictors", "--out", "slim")
    message = refused("tickets", "export", "slim@1", "--to", "state-dict", "--predictor", "--out", "t.safetensors")
    assert message == "--predictor: slim has none; leave it out for the starting weights"


@pytest.mark.parametrize(
    "arguments",
    [
        ("export", "pub", "--out", "/proc/none/new"),
        ("export", "pub@1", "--to", "state-dict", "--out", "/proc/none/t.safetensors"),
        ("transfer", "pub", *PRIVATE, "--out", "/proc/none/new"),
        ("compact", "dead@2", "--out", "/proc/none/new"),
    ],
)
def test_a_place_that_nobody_can_write_to(cwd, refused, arguments):  # noqa: ARG001
    write_set("dead", "public", reference(load("digits", subset="0.0:0.5")))
    assert refused("tickets", *arguments).startswith("--out: cannot write to /proc/none: ")


@pytest.mark.parametrize("arguments", [("export", "pub"), ("transfer", "pub", *PRIVATE), ("compact", "dead@2")])
def test_no_permission_to_write(cwd, refused, arguments):
    if os.geteuid() == 0:
        pytest.skip("run as root, whom no permission stops")
    write_set("dead", "public", reference(load("digits", subset="0.0:0.5")))
    (cwd / "locked").mkdir(mode=0o555)
    assert refused("tickets", *arguments, "--out", "locked/new") == (
        "--out: cannot write to locked: Permission denied; choose another place"
    )


# --- import ---


def test_import_what_was_exported(cli):
    cli("tickets", "export", "pub@2", "--to", "torch-prune", "--out", "t.safetensors")
    made = ("--model", "mlp:8", "--out", "in", "--json")
    body = cli("tickets", "import", "t.safetensors", *PRIVATE, *made).json  # which records it is for, not from
    assert set(body) == FACTS | {"notes"}
    assert (body["criterion"], body["provenance"], body["predictors"]) == ("imported", "public", False)
    assert (body["name"], body["config"]) == ("t", {"imported": "t.safetensors"})
    one, other = load_ticket_set(Path("pub")), load_ticket_set(Path("in"))
    assert other.ticket(1).mask.same_as(one.ticket(2).mask)
    assert all(torch.equal(value, other.body.theta0[name]) for name, value in one.body.theta0.items())
    assert other.source == one.source
    assert body["parent"] == {"id": one.id, "name": one.name, "round": None, "how": "export and import"}
    assert cli("tickets", "verify", "in", "--json").json["ok"]
    # and it is used as any other: not on what it was made from, for nothing but the training elsewhere
    done = cli("train", "in@1", *PUBLIC, *TRAIN, "--out", "r")
    assert (done.code, done.out) == (2, "")
    trained = cli("train", "in@1", *PRIVATE, *TRAIN, "--out", "r").json
    assert certified(trained) == pytest.approx(oracle(queries=0, trainings=[trained]), rel=1e-3)


def of_others(name: str) -> None:
    """A file as another tool writes it: nothing in it says where it comes from."""
    save_file(load_file("t.safetensors"), name)


@pytest.mark.parametrize("provenance", ["public", "private", "data-free"])
def test_import_what_others_made(cli, provenance):
    cli("tickets", "export", "pub@2", "--to", "torch-prune", "--out", "t.safetensors")
    of_others("u.safetensors")
    made = ("--model", "mlp:8", "--provenance", provenance, "--name", "mine", "--out", "in", "--json")
    body = cli("tickets", "import", "u.safetensors", *PRIVATE, *made).json
    assert (body["provenance"], body["name"], body["parent"], body["events"]) == (provenance, "mine", None, [])
    source = load_ticket_set(Path("in")).source
    if provenance == "data-free":
        assert source is None
    else:
        assert records_of(source) == records_of(reference(load("digits", subset="0.5:1.0")))
    assert not Path("in.private.json").exists()  # nothing was measured


def test_import_a_file_that_says_it_saw_no_data(cli):
    assert (
        cli("generate", *PRIVATE, "--model", "mlp:8", "--rounds", "1", "--criterion", "random", "--out", "f").code == 0
    )
    cli("tickets", "export", "f@1", "--to", "torch-prune", "--out", "t.safetensors")
    body = cli("tickets", "import", "t.safetensors", *PUBLIC, "--model", "mlp:8", "--out", "in", "--json").json
    assert (body["provenance"], body["source"], body["events"]) == ("data-free", None, [])
    agreed = ("--provenance", "data-free", "--model", "mlp:8", "--out", "again", "--json")
    assert cli("tickets", "import", "t.safetensors", *PUBLIC, *agreed).json["id"] == body["id"]


def test_what_import_refuses(cli, refused):
    cli("tickets", "export", "pub@2", "--to", "torch-prune", "--out", "t.safetensors")
    state = load_file("t.safetensors")
    state["fc1.weight_mask"][0, 0] = 0.5
    save_file(state, "half.safetensors")
    mlp = ("--model", "mlp:8", "--out", "in")
    assert refused("tickets", "import", "half.safetensors", *PUBLIC, *mlp, "--provenance", "public") == (
        "half.safetensors: fc1.weight_mask holds values other than 0 and 1; it is no mask"
    )
    of_others("u.safetensors")
    assert refused("tickets", "import", "u.safetensors", *PUBLIC, *mlp) == (
        "--provenance is missing: u.safetensors does not say what its masks and weights depend on"
    )
    for said in ("private", "data-free"):
        assert refused("tickets", "import", "t.safetensors", *PUBLIC, *mlp, "--provenance", said) == (
            "--provenance: t.safetensors says public of itself; leave --provenance out"
        )
    for name in ("t.safetensors", "u.safetensors"):
        assert refused("tickets", "import", name, *PUBLIC, *mlp, "--provenance", "dp") == (
            "--provenance: 'dp' is not one of public, private, data-free"
        )
    save_file(load_file("t.safetensors"), "odd.safetensors", metadata={"dpltm_origin": "{}"})
    message = refused("tickets", "import", "odd.safetensors", *PUBLIC, *mlp, "--provenance", "public")
    assert message.startswith("odd.safetensors: ")
    assert refused("tickets", "import", "t.safetensors", *mlp, "--provenance", "public").startswith(
        "--dataset is missing"
    )
    wrong = ("--model", "mlp:9", "--out", "in", "--provenance", "public")
    assert refused("tickets", "import", "t.safetensors", *PUBLIC, *wrong).startswith("t.safetensors: ")
    assert refused(
        "tickets", "import", "t.safetensors", *PUBLIC, "--model", "mlp:8", "--provenance", "public", "--out", "pub"
    ) == "--out: pub exists already; choose another name or remove it first"  # fmt: skip


# --- transfer ---


def test_transfer(cli, others):
    body = cli("tickets", "transfer", "pub", *others, "--out", "t", "--json").json
    assert set(body) == {"ticket_set", "id", "model", "mode", "provenance", "layers", "tickets", "notes"}
    assert body["notes"] == []  # everything about the records was declared
    assert (body["ticket_set"], body["model"], body["mode"], body["provenance"]) == ("t", "mlp:8", "ticket", "public")
    assert [set(row) for row in body["tickets"]] == [ROW] * 3
    assert [row["accuracy"] for row in body["tickets"]] == [None] * 3
    before, after = load_ticket_set(Path("pub")), load_ticket_set(Path("t"))
    assert after.id == body["id"]
    (first, second) = body["layers"]
    assert set(first) == {"layer", "before", "after", "mask", "weights", "density"}
    assert (first["layer"], first["before"], first["after"], first["weights"]) == ("fc1", [8, 64], [8, 30], "fresh")
    assert (second["layer"], second["mask"], second["weights"]) == ("fc2", "kept", "kept")
    assert torch.equal(after.body.theta0["fc2.weight"], before.body.theta0["fc2.weight"])
    assert after.ticket(2).mask["fc2.weight"].equal(before.ticket(2).mask["fc2.weight"])
    assert (after.parent.id, after.parent.round, after.parent.how) == (before.id, None, "transfer (ticket)")
    assert (after.source, after.criterion) == (before.source, before.criterion)
    out = cli("tickets", "transfer", "pub@1", *others, "--mode", "mask-only", "--fresh", "dense", "--out", "u").out
    for word in ("mlp:8, mask-only", "8x64", "8x30", "fresh", "dense", "kept", "u (public)"):
        assert word in out
    assert len(load_ticket_set(Path("u")).body.tickets) == 2


def test_a_transferred_public_ticket_costs_the_training_alone(cli, others, events):
    cli("tickets", "transfer", "pub", *others, "--out", "t")
    trained = cli("train", "t@2", *others, *TRAIN, "--out", "r").json
    dense = cli("train", "--dense", "--model", "mlp:8", *others, *TRAIN, "--out", "d").json
    assert kinds(events("r/ledger.jsonl")) == kinds(events("t/ledger.jsonl")) == ["training"]
    assert certified(trained) == certified(dense) == pytest.approx(oracle(queries=0, trainings=[trained]), rel=1e-3)


def test_a_transferred_public_ticket_is_still_public(cli, refused):
    """Of its own records it is refused, as the set that it was made from."""
    cli("tickets", "transfer", "pub", *PRIVATE, "--mode", "mask-only", "--out", "t")
    for name in ("pub@1", "t@1"):
        assert "declared public" in refused("train", name, *PUBLIC, *TRAIN, "--out", "r")


# --- compact ---


def test_compact_a_ticket(cli, cwd):  # noqa: ARG001
    saved = write_set("dead", "public", reference(load("digits", subset="0.0:0.5")))
    body = cli("tickets", "compact", "dead@2", "--out", "small", "--json").json
    assert set(body) == {"written", "model", "parameters", "live"}
    assert (body["written"], body["model"]) == ("small", {"before": "mlp:8", "after": "mlp:5"})
    assert body["parameters"] == {"before": 64 * 8 + 8 + 8 * 10 + 10, "after": 64 * 5 + 5 + 5 * 10 + 10}
    gone = saved.ticket(2).mask["fc1.weight"][[1, 4, 6]].sum() + 3  # inputs and biases of the units that went
    assert body["live"] == {"before": saved.ticket(2).mask.live, "after": saved.ticket(2).mask.live - int(gone)}
    out = cli("tickets", "compact", "dead@2", "--out", "again").out
    for word in ("wrote again", "mlp:8", "mlp:5", "610", "385"):
        assert word in out
    assert cli("tickets", "verify", "small", "--json").json["ok"]
    trained = cli("train", "small@1", *PRIVATE, *TRAIN, "--out", "r").json
    assert trained["live"] == body["live"]["after"]
    assert certified(trained) == pytest.approx(oracle(queries=0, trainings=[trained]), rel=1e-3)


def test_compact_a_run(cli, cwd, events):
    write_set("dead", "public", reference(load("digits", subset="0.0:0.5")))
    cli("train", "dead@2", *PRIVATE, "--steps", "3", "--epsilon", "3", "--out", "r")
    body = cli("tickets", "compact", "r", "--out", "small", "--json").json
    assert body["model"] == {"before": "mlp:8", "after": "mlp:5"}
    before, after = (cli("evaluate", name, "--dataset", "digits", "--json").json for name in ("r", "small"))
    assert before["accuracy"] == after["accuracy"]
    assert events("small/ledger.jsonl") == events("r/ledger.jsonl")
    assert (cwd / "small" / "model.py").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("pub",), "SET@ROUND: a compact network is that of one ticket; write pub@ROUND"),
        (("pub@3",), "pub@3: no such round; it has rounds 0 to 2"),
        (
            ("pub@0",),
            "nothing to compact: every unit has a live weight behind it; a sparser round, or --criterion structured, leaves"
            " more without use",
        ),
        (("none@1",), "none: no ticket set there; make one with dpltm generate --out none"),
        (("pub@1", "--out", "pri"), "--out: pri exists already; choose another name or remove it first"),
    ],
)
def test_what_compact_refuses(refused, arguments, message):
    assert refused("tickets", "compact", *arguments, *(() if "--out" in arguments else ("--out", "new"))) == message


# --- what a set from a DP release costs ---


def same(cli: Callable, name: str) -> str:
    del cli
    return f"{name}@2"


def exported(cli: Callable, name: str) -> str:
    assert cli("tickets", "export", name, "--yes", "--out", "made").code == 0
    return "made@2"


def slim(cli: Callable, name: str) -> str:
    assert cli("tickets", "export", name, "--yes", "--no-predictors", "--out", "made").code == 0
    return "made@2"


def transferred(mode: str) -> Callable[[Callable, str], str]:
    def make(cli: Callable, name: str) -> str:
        assert cli("tickets", "transfer", name, *PRIVATE, "--mode", mode, "--out", "made").code == 0
        return "made@2"

    return make


def one_round(cli: Callable, name: str) -> str:
    assert cli("tickets", "transfer", f"{name}@2", *PRIVATE, "--mode", "mask-only", "--out", "made").code == 0
    return "made@1"


def compacted(cli: Callable, name: str) -> str:
    assert cli("tickets", "compact", f"{name}@2", "--out", "made").code == 0
    return "made@1"


def chain(cli: Callable, name: str) -> str:
    """Transferred, the copy compacted, and that one exported; the ones in between are gone."""
    assert cli("tickets", "transfer", name, *PRIVATE, "--mode", "mask-only", "--out", "one").code == 0
    assert cli("tickets", "compact", "one@2", "--out", "two").code == 0
    assert cli("tickets", "export", "two", "--yes", "--out", "made").code == 0
    for folder in ("one", "two"):
        shutil.rmtree(folder)
    return "made@1"


def imported(cli: Callable, name: str) -> str:
    """Through a file for other tools, and back."""
    out = ("--to", "torch-prune", "--yes", "--out", "t.safetensors")
    assert cli("tickets", "export", f"{name}@2", *out).code == 0
    assert cli("tickets", "import", "t.safetensors", *PRIVATE, "--model", "mlp:8", "--out", "made").code == 0
    return "made@1"


COPIES = {
    "itself": same,
    "imported": imported,
    "exported": exported,
    "without predictors": slim,
    "transferred": transferred("ticket"),
    "random": transferred("random"),
    "one round": one_round,
    "compacted": compacted,
    "chain": chain,
}


@pytest.mark.parametrize("provenance", ["dp", "private"])
@pytest.mark.parametrize("copy", COPIES)
def test_every_copy_keeps_what_its_set_depends_on(cli, cwd, copy, provenance):  # noqa: ARG001
    source = reference(load("digits", subset="0.5:1.0"))
    saved = dp_set("made-from", source=source) if provenance == "dp" else write_set("made-from", "private", source)
    folder = COPIES[copy](cli, "made-from").partition("@")[0]
    found = load_ticket_set(Path(folder))
    assert (found.provenance, found.source, found.events) == (saved.provenance, saved.source, saved.events)
    if provenance == "private":
        assert all(ticket.accuracy is None for ticket in found.body.tickets)
    if copy not in ("itself", "exported", "without predictors"):
        assert found.parent is not None


@pytest.mark.parametrize("copy", ["itself", "chain"])
def test_no_copy_of_a_dp_set_forgets_what_it_spent(cli, cwd, events, copy):  # noqa: ARG001
    """The query is in the ledger once, however often it is trained, and in the figure."""
    saved = dp_set()
    name = COPIES[copy](cli, "dp")
    folder = name.partition("@")[0]
    first = cli("train", name, *PRIVATE, *TRAIN, "--out", "r1").json
    query, said, training = events(f"{folder}/ledger.jsonl")
    assert (query["kind"], query["noise_multiplier"], query["time"]) == ("gaussian", QUERY_NOISE, TIME)
    assert (said["kind"], said["provenance"], said["ticket_set"]) == (
        *("provenance", "dp"), load_ticket_set(Path(folder)).id,
    )  # fmt: skip
    assert training["kind"] == "training"
    assert certified(first) == pytest.approx(oracle(queries=1, trainings=[first]), rel=1e-3)
    assert certified(first) > oracle(queries=0, trainings=[first]) * 1.01
    second = cli("train", name, *PRIVATE, *TRAIN, "--out", "r2").json
    assert kinds(events(f"{folder}/ledger.jsonl")) == ["gaussian", "provenance", "training", "training"]
    assert certified(second) == pytest.approx(oracle(queries=1, trainings=[first, second]), rel=1e-3)
    for run, count in (("r1", 3), ("r2", 4)):
        assert len(events(f"{run}/ledger.jsonl")) == count
    assert load_ticket_set(Path(folder)).events == saved.events


def test_the_query_is_part_of_the_budget(cli, cwd):  # noqa: ARG001
    dp_set()
    body = cli("train", "dp@2", *PRIVATE, "--steps", "3", "--epsilon", "1.5", "--json", "--out", "r").json
    planned = cli("train", "dp@2", *PRIVATE, "--steps", "3", "--noise-multiplier", "2", "--dry-run", "--json").json
    assert 1.49 < certified(body) <= 1.5
    assert oracle(queries=1, trainings=[body]) == pytest.approx(certified(body), rel=1e-3)
    assert certified(planned) > certified(body)


def test_a_budget_that_the_query_has_spent(cli, cwd, refused):  # noqa: ARG001
    dp_set()
    alone = oracle(queries=1, trainings=[])
    budget = f"{alone * 0.95:.3f}"
    refused("train", "dp@2", *PRIVATE, "--steps", "3", "--epsilon", budget, "--out", "r", code=1)


def test_copies_that_share_a_ledger_share_the_query(cli, cwd, events):  # noqa: ARG001
    dp_set()
    exported(cli, "dp")
    cli("tickets", "compact", "dp@2", "--out", "small")
    bodies = [
        cli("train", name, *PRIVATE, *TRAIN, "--ledger", "l.jsonl", "--out", f"r{number}").json
        for number, name in enumerate(("dp@2", "made@2", "small@1"))
    ]
    # the copy has the id of the set, the compact one its own
    assert kinds(events("l.jsonl")) == ["gaussian", "provenance", "training", "training", "provenance", "training"]
    assert certified(bodies[-1]) == pytest.approx(oracle(queries=1, trainings=bodies), rel=1e-3)


def test_every_ledger_gets_the_query(cli, cwd, events):  # noqa: ARG001
    dp_set()
    for ledger in ("a.jsonl", "b.jsonl"):
        cli("train", "dp@2", *PRIVATE, *TRAIN, "--ledger", ledger, "--out", ledger[0])
        assert kinds(events(ledger)) == ["gaussian", "provenance", "training"]


def test_the_dense_network_of_a_dp_set_pays_too(cli, cwd, events):  # noqa: ARG001
    dp_set()
    body = cli("train", "dp", "--dense", *PRIVATE, *TRAIN, "--out", "r").json
    assert kinds(events("r/ledger.jsonl")) == ["gaussian", "provenance", "training"]
    assert certified(body) == pytest.approx(oracle(queries=1, trainings=[body]), rel=1e-3)


def test_a_selection_pays_for_the_query_and_training_does_not_again(cli, cwd, events):  # noqa: ARG001
    dp_set()
    drawn = cli("select", "dp", *PRIVATE, "--eps1", "0.1", "--json").json
    assert certified(drawn) > oracle(queries=1, trainings=[]) - 1e-3
    cli("train", "dp", *PRIVATE, *TRAIN, "--out", "r")
    assert kinds(events("dp/ledger.jsonl")) == ["gaussian", "provenance", "selection", "training"]


@pytest.mark.parametrize("subset", ["0.25:0.75", "0.9:1.0", "0.0:1.0"])
def test_records_that_overlap_pay(cli, cwd, events, subset):  # noqa: ARG001
    dp_set(subset="0.5:1.0")
    data = ("--dataset", "digits", "--subset", subset)
    cli("train", "dp@2", *data, *TRAIN, "--out", "r")
    assert kinds(events("r/ledger.jsonl")) == ["gaussian", "provenance", "training"]


def test_other_records_pay_nothing_and_are_told(cli, cwd, events):  # noqa: ARG001
    """The query is entered all the same, on the records that it was made of; there it adds to what comes after it."""
    dp_set()
    body = cli("train", "dp@2", *PUBLIC, *TRAIN, "--out", "r").json
    query, said, training = events("dp/ledger.jsonl")
    assert kinds([query, said, training]) == ["gaussian", "provenance", "training"]
    halves = [[event["dataset"][key] for key in ("start", "stop")] for event in (query, said, training)]
    assert halves == [[500_000_000, 1_000_000_000]] * 2 + [[0, 500_000_000]]
    assert certified(body) == pytest.approx(oracle(queries=0, trainings=[body]), rel=1e-3)
    note = "the tickets were made under differential privacy from digits[0.5:1.0], other records than these"
    assert note in body["privacy"]["notes"]
    dense = cli(
        "train", "--dense", "--model", "mlp:8", *PRIVATE, *TRAIN, "--ledger", "dp/ledger.jsonl", "--out", "d"
    ).json
    assert certified(dense) == pytest.approx(oracle(queries=1, trainings=[dense]), rel=1e-3)


def test_under_another_key_nobody_can_tell_so_it_is_paid(cli, cwd, events, monkeypatch):
    dp_set()
    monkeypatch.setenv("DPLTM_KEY", str(cwd / "another.key"))
    for data in (PRIVATE, PUBLIC):
        body = cli("train", "dp@2", *data, *TRAIN, "--ledger", f"{data[-1]}.jsonl", "--out", f"r{data[-1]}").json
        assert kinds(events(f"{data[-1]}.jsonl")) == ["gaussian", "provenance", "training"]
        assert certified(body) == pytest.approx(oracle(queries=1, trainings=[body]), rel=1e-3)


def test_two_relations_do_not_add_up(cwd, refused):  # noqa: ARG001
    """The query is stated for add/remove: a training for replace-one has no common guarantee with it."""
    dp_set()
    message = refused("train", "dp@2", *PRIVATE, *TRAIN, "--adjacency", "replace-one", "--out", "r")
    assert message.startswith("adjacency: ")


def test_two_queries_are_two(cli, cwd, events):  # noqa: ARG001
    """Made at different times, so they can be told apart: nothing else tells them apart."""
    source = reference(load("digits", subset="0.5:1.0"))
    dp_set("a", time="2026-01-01T00:00:00Z", source=source)
    dp_set("b", time="2026-01-01T00:00:01Z", source=source)
    bodies = [
        cli("train", name, *PRIVATE, *TRAIN, "--ledger", "l.jsonl", "--out", name[0] + "r").json
        for name in ("a@2", "b@1")
    ]
    assert kinds(events("l.jsonl")).count("gaussian") == 2
    assert certified(bodies[-1]) == pytest.approx(oracle(queries=2, trainings=bodies), rel=1e-3)


class Frozen(datetime):
    """A clock that stands still."""

    @classmethod
    def now(cls, tz=None):
        return cls(2026, 1, 2, 3, 4, 5, tzinfo=tz)


def test_two_events_of_one_moment_are_two(cli, cwd, events, monkeypatch):  # noqa: ARG001
    monkeypatch.setattr(event_module, "datetime", Frozen)
    source = reference(load("digits", subset="0.5:1.0"))
    dp_set("a", time=event_module.now(), source=source)
    dp_set("b", time=event_module.now(), source=source)
    bodies = [
        cli("train", name, *PRIVATE, *TRAIN, "--ledger", "l.jsonl", "--out", name[0] + "r").json
        for name in ("a@2", "b@1")
    ]
    assert kinds(events("l.jsonl")).count("gaussian") == 2
    assert certified(bodies[-1]) == pytest.approx(oracle(queries=2, trainings=bodies), rel=1e-3)


def test_equal_events_are_one_release(cli, cwd, events):  # noqa: ARG001
    """Two sets that state the very same one: of one noisy query, pruned in two ways."""
    source, time = reference(load("digits", subset="0.5:1.0")), event_module.now()
    spent = GaussianEvent(source, GaussianRelease(QUERY_NOISE), "moments", time=time)
    write_set("a", "dp", source, events=[spent])
    write_set("b", "dp", source, load_ticket_set(Path("pub")).body, events=[spent])
    bodies = [
        cli("train", name, *PRIVATE, *TRAIN, "--ledger", "l.jsonl", "--out", name[0] + "r").json
        for name in ("a@2", "b@2")
    ]
    assert kinds(events("l.jsonl")).count("gaussian") == 1
    assert certified(bodies[-1]) == pytest.approx(oracle(queries=1, trainings=bodies), rel=1e-3)


def test_two_queries_within_one_second_are_two(cli, cwd, events, monkeypatch):  # noqa: ARG001
    """Two sets that `dpltm generate` starts on the same records in one tick of the clock (a parallel sweep over seeds)
    have equal events but for their time and the random id of the records, as the calibrated noise is the same; a ledger
    that both are trained into charges both."""
    monkeypatch.setattr(event_module, "datetime", Frozen)
    small = (
        "--model",
        "mlp:8",
        "--rounds",
        "1",
        "--iterations",
        "5",
        "--batch-size",
        "32",
        "--criterion",
        "dp-synthetic",
    )
    for seed in (1, 2):
        made = ("generate", *PRIVATE, *small, "--epsilon", "1", "--seed", seed, "--out", f"s{seed}")
        assert cli(*made).code == 0
    first, second = (load_ticket_set(Path(name)) for name in ("s1", "s2"))
    assert first.id != second.id  # two draws of noise, two different sets
    ((one,), (other,)) = first.events, second.events
    assert one.time != other.time
    assert replace(one, time=other.time, dataset=other.dataset) == other
    assert records_of(one.dataset) == records_of(other.dataset)
    assert one.time[:20] == other.time[:20] == "2026-01-02T03:04:00."
    for name in ("s1", "s2"):
        assert cli("train", f"{name}@1", *PRIVATE, *TRAIN, "--ledger", "l.jsonl", "--out", f"r{name}").code == 0
    assert kinds(events("l.jsonl")).count("gaussian") == 2


# --- private sets ---


@pytest.mark.parametrize("copy", ["itself", "chain"])
def test_no_copy_of_a_private_set_is_ever_certified(cli, cwd, copy):  # noqa: ARG001
    write_set("secret", "private", reference(load("digits", subset="0.5:1.0")))
    name = COPIES[copy](cli, "secret")
    folder = name.partition("@")[0]
    assert load_ticket_set(Path(folder)).provenance == "private"
    body = cli("train", name, *PRIVATE, *TRAIN, "--out", "r").json
    assert certified(body) == "inf"
    elsewhere = cli("train", name, *PUBLIC, *TRAIN, "--ledger", "l.jsonl", "--out", "o").json
    assert certified(elsewhere) == pytest.approx(oracle(queries=0, trainings=[elsewhere]), rel=1e-3)
    assert any("nothing is certified for those records" in note for note in elsewhere["privacy"]["notes"])
    # it is on the bill of the records that it was made of
    dense = ("train", "--dense", "--model", "mlp:8", *PRIVATE, *TRAIN, "--ledger", "l.jsonl", "--dry-run")
    assert certified(cli(*dense).json) == "inf"


def test_copies_of_a_private_set_hold_no_accuracies(cli, cwd):
    accuracies = json.loads((cwd / "pri.private.json").read_text())["accuracy"].values()
    cli("tickets", "transfer", "pri", *PRIVATE, "--out", "t")
    assert load_ticket_set(cwd / "t").is_scored  # nothing was changed, so predictors stay
    for path in (cwd / "t").iterdir():
        for value in accuracies:
            assert repr(value).encode() not in path.read_bytes()


# --- through a file for other tools ---


@pytest.mark.parametrize("seen", [PRIVATE, PUBLIC], ids=["same", "others"])
def test_export_and_import_do_not_launder_a_private_set(cli, cwd, refused, seen):  # noqa: ARG001
    """Whatever records it is imported for: on those that it was made from, nothing is certified."""
    saved = write_set("secret", "private", reference(load("digits", subset="0.5:1.0")))
    out = ("--to", "torch-prune", "--yes", "--out", "t.safetensors")
    assert cli("tickets", "export", "secret@2", *out).code == 0
    options = ("tickets", "import", "t.safetensors", *seen, "--model", "mlp:8", "--out", "in")
    for said in ("public", "data-free"):
        assert refused(*options, "--provenance", said) == (
            "--provenance: t.safetensors says private of itself; leave --provenance out"
        )
    body = cli(*options, "--json").json
    assert (body["provenance"], body["parent"]["id"]) == ("private", saved.id)
    assert load_ticket_set(Path("in")).source == saved.source
    for ticket in ("in@1", "in@0"):
        trained = cli("train", ticket, *PRIVATE, *TRAIN, "--out", f"r{ticket[-1]}").json
        assert certified(trained) == "inf"
    cli(*options[:-1], "agreed", "--provenance", "private")
    assert load_ticket_set(Path("agreed")).source == saved.source


@pytest.mark.parametrize(("more", "seen"), [((), PUBLIC), (("--predictor",), PRIVATE)], ids=["others", "same"])
def test_export_and_import_do_not_launder_a_dp_set(cli, cwd, events, refused, more, seen):  # noqa: ARG001
    """The query is on the bill of the records that it was made of, whatever records the file is imported for."""
    saved = dp_set()
    out = ("--to", "torch-prune", "--out", "t.safetensors")
    assert cli("tickets", "export", "dp@2", *out, *more).code == 0
    options = ("tickets", "import", "t.safetensors", *seen, "--model", "mlp:8", "--out", "in")
    for said in ("public", "private", "data-free"):
        assert refused(*options, "--provenance", said) == (
            "--provenance: t.safetensors says dp of itself; leave --provenance out"
        )
    body = cli(*options, "--json").json
    assert (body["provenance"], body["parent"]["id"]) == ("dp", saved.id)
    assert load_ticket_set(Path("in")).events == saved.events
    trained = cli("train", "in@1", *PRIVATE, *TRAIN, "--out", "r").json
    assert kinds(events("in/ledger.jsonl")) == ["gaussian", "provenance", "training"]
    assert certified(trained) == pytest.approx(oracle(queries=1, trainings=[trained]), rel=1e-3)
    # and it is the query of the set itself: a ledger of both counts it once
    again = cli("train", "dp@2", *PRIVATE, *TRAIN, "--ledger", "in/ledger.jsonl", "--out", "s").json
    assert kinds(events("in/ledger.jsonl")).count("gaussian") == 1
    assert certified(again) == pytest.approx(oracle(queries=1, trainings=[trained, again]), rel=1e-3)


# --- a draw from private scores ---


@pytest.mark.parametrize("command", ["transfer", "compact"])
def test_what_is_made_of_a_winner_pays_for_the_draw(cli, cwd, events, command):  # noqa: ARG001
    """Which round is compacted, or transferred alone, was released by a draw from private scores, at eps1: a training of
    what is made of it, on the very records that were scored, counts that draw as `train SET@WINNER` does."""
    body = body_with_dead_units()
    dense, _, last = body.tickets  # whichever of the two wins can be compacted
    body = replace(body, tickets=(dense, replace(last, round=1), last))
    write_set("set", "public", reference(load("digits", subset="0.0:0.5")), body)
    winner = cli("select", "set", *PRIVATE, "--eps1", "0.5", "--json").json["winner"]["round"]
    kept = cli("train", f"set@{winner}", *PRIVATE, *TRAIN, "--ledger", "k.jsonl", "--out", "k").json
    assert kinds(events("k.jsonl")) == ["selection", "training"]  # so it is without a copy, in a ledger of its own
    records = PRIVATE if command == "transfer" else ()
    cli("tickets", command, f"set@{winner}", *records, "--out", "made")
    trained = cli("train", "made@1", *PRIVATE, *TRAIN, "--out", "r").json
    assert kinds(events("made/ledger.jsonl")) == ["selection", "training"]
    assert certified(trained) == pytest.approx(certified(kept), rel=1e-3)
    assert not Path("made/selection.json").exists()
    # the other round was not released by the draw
    cli("tickets", command, f"set@{3 - winner}", *records, "--out", "other")
    assert (Path("other/selection.json").exists(), description("other")["draws"]) == (False, [])
    plain = cli("train", "other@1", *PRIVATE, *TRAIN, "--out", "o").json
    assert certified(plain) == pytest.approx(oracle(queries=0, trainings=[plain]), rel=1e-3)


def test_an_unprotected_draw_goes_along_too(cli, cwd, events):  # noqa: ARG001
    winner = cli("select", "pub", *PRIVATE, "--eps1", "0.5", "--reveal", "--json").json["winner"]["round"]
    cli("tickets", "transfer", f"pub@{winner}", *PRIVATE, "--out", "made")
    trained = cli("train", "made@1", *PRIVATE, *TRAIN, "--out", "r").json
    assert kinds(events("made/ledger.jsonl")) == ["selection", "non-private", "training"]
    assert certified(trained) == "inf"


def test_a_whole_set_transferred_pays_for_the_draw_in_every_round(cli, cwd, events):  # noqa: ARG001
    """Which round won is not remembered with it, but whoever takes it along knows: so every round pays."""
    winner = cli("select", "pub", *PRIVATE, "--eps1", "0.5", "--json").json["winner"]["round"]
    kept = cli("train", "pub", *PRIVATE, *TRAIN, "--ledger", "k.jsonl", "--out", "k").json
    cli("tickets", "transfer", "pub", *PRIVATE, "--mode", "mask-only", "--out", "made")
    assert not Path("made/selection.json").exists()
    assert cli("tickets", "verify", "made", "--json").json["ok"]
    assert cli("train", "made", *PRIVATE, *TRAIN, "--out", "r").err.startswith("error: made: no winner was drawn yet")
    for number in range(3):
        ledger = f"{number}.jsonl"
        trained = cli("train", f"made@{number}", *PRIVATE, *TRAIN, "--ledger", ledger, "--out", f"r{number}").json
        assert kinds(events(ledger)) == ["selection", "training"]
        if number == winner:
            assert certified(trained) == pytest.approx(certified(kept), rel=1e-3)
        else:
            assert certified(trained) > 1.1 * oracle(queries=0, trainings=[trained])


# --- sets named under the key that is no secret ---


@pytest.mark.parametrize(
    ("copy", "key"), [("itself", "mine"), ("itself", "another"), ("imported", "another"), ("compacted", "another")]
)
def test_a_public_source_under_the_public_key_is_known_to_everyone(
    cli, tmp_path, refused, monkeypatch, alike, key, copy
):
    """Records that are public all through."""
    write_set("shared", "public", reference(load("digits"), public=True))
    name = COPIES[copy](cli, "shared")
    if key == "another":
        monkeypatch.setenv("DPLTM_KEY", str(tmp_path / "another" / "key"))
        cli("train", "--dense", "--model", "mlp:8", *PRIVATE, *TRAIN, "--out", "d")  # which makes the key
    for subset in ("0.0:0.5", "0.25:0.75", "0:100", "0:1438"):
        message = refused("train", name, "--dataset", "digits", "--subset", subset, *TRAIN, "--out", "r")
        assert "declared public" in message
        assert "cannot be private here" in message
    body = cli("train", name, *alike, *TRAIN, "--out", "r").json
    assert certified(body) == pytest.approx(oracle(queries=0, trainings=[body]), rel=1e-3)
    assert not any("cannot be checked here" in note for note in body["privacy"]["notes"])


def test_a_public_part_is_known_to_its_owner_alone(cli, tmp_path, refused, monkeypatch):
    """A fingerprint of the file would tell of the rest of it, which is private: so elsewhere the declaration is taken."""
    source = reference(load("digits", subset="0.0:0.5"), public=True)
    assert source.id != reference(load("digits"), public=True).id
    write_set("shared", "public", source)
    assert "declared public" in refused("train", "shared@2", *PUBLIC, *TRAIN, "--out", "r")
    own = cli("train", "shared@2", *PRIVATE, *TRAIN, "--out", "r").json
    assert not any("cannot be told here" in note for note in own["privacy"]["notes"])
    monkeypatch.setenv("DPLTM_KEY", str(tmp_path / "another" / "key"))
    body = cli("train", "shared@2", *PRIVATE, *TRAIN, "--ledger", "l.jsonl", "--out", "o").json
    assert certified(body) == pytest.approx(oracle(queries=0, trainings=[body]), rel=1e-3)
    assert any(
        "cannot be told here" in note and "their provenance, public" in note for note in body["privacy"]["notes"]
    )


def test_selection_refuses_the_same_records_too(cwd, refused):  # noqa: ARG001
    write_set("shared", "public", reference(load("digits"), public=True))
    assert "declared public" in refused("select", "shared", *PUBLIC, "--eps1", "0.1")


def test_a_dp_set_under_the_public_key(cli, cwd, events, alike):  # noqa: ARG001
    dp_set(source=reference(load("digits"), public=True))
    body = cli("train", "dp@2", *PRIVATE, *TRAIN, "--ledger", "l.jsonl", "--out", "r").json
    assert certified(body) == pytest.approx(oracle(queries=1, trainings=[body]), rel=1e-3)
    elsewhere = cli("train", "dp@2", *alike, *TRAIN, "--ledger", "m.jsonl", "--out", "o").json
    assert kinds(events("m.jsonl")) == ["gaussian", "provenance", "training"]
    assert certified(elsewhere) == pytest.approx(oracle(queries=0, trainings=[elsewhere]), rel=1e-3)
