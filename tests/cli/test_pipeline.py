"""The three stages on the digits: what is spent, what is written down, what stays private."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant

from dpltm.data import load
from dpltm.privacy.parts import total_epsilon
from dpltm.tickets.ledger_file import open_ledger
from dpltm.tickets.ticket_set import load_ticket_set

PUBLIC = ("--dataset", "digits", "--subset", "0.0:0.5")
PRIVATE = ("--dataset", "digits", "--subset", "0.5:1.0")
TINY = ("--model", "mlp:8", "--rounds", "2", "--prune", "0.3", "--iterations", "5", "--batch-size", "32")
FEW = ("--steps", "3", "--json")
HALF = 500_000_000  # of the public hashes of records


def read_safetensors(path):
    """Tensors by the letter of the format: length, JSON header, bytes."""
    data = Path(path).read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    dtypes = {"F32": "<f4", "U8": "u1"}
    return {
        name: np.frombuffer(body[slice(*entry["data_offsets"])], dtypes[entry["dtype"]]).reshape(entry["shape"])
        for name, entry in header.items()
        if name != "__metadata__"
    }


def training_alone(event, delta=1e-5):
    """dp-accounting's own accountant on the training event: an oracle for the steps, without the selection."""
    accountant = PLDAccountant(value_discretization_interval=1e-4)
    step = dp_event.PoissonSampledDpEvent(event["sampling_rate"], dp_event.GaussianDpEvent(event["noise_multiplier"]))
    return accountant.compose(dp_event.SelfComposedDpEvent(step, event["steps"])).get_epsilon(delta)


def test_the_budget_covers_selection_and_training(cli, events):
    drawn = cli("select", "pub", *PRIVATE, "--eps1", "0.2", "--json").json
    trained = cli("train", "pub", *PRIVATE, *FEW, "--epsilon", "1", "--out", "r").json
    assert trained["round"] == drawn["winner"]["round"]
    certified = trained["privacy"]["certified"]["epsilon"]
    assert 0.998 < certified <= 1
    made, selection, training = events("pub/ledger.jsonl")
    assert training_alone(training) < 0.95  # a good part of the budget went to the selection,
    assert certified <= training_alone(training) + 0.2 + 1e-3  # and no more than the simple sum was charged
    assert certified >= training_alone(training)
    assert trained["privacy"]["nominal"] == {
        "epsilon": pytest.approx(0.2 + training_alone(training), rel=1e-3),
        "delta": 1e-5,
        "source": "DPLTM Theorem 3",
    }
    assert (made["kind"], made["provenance"], made["dataset"]["start"], made["dataset"]["stop"]) == (
        *("provenance", "public", 0, HALF),
    )
    assert {
        key: selection[key] for key in ("kind", "mechanism", "score", "eps1", "sensitivity_rule", "candidates")
    } == {
        "kind": "selection",
        "mechanism": "exponential",
        "score": "product",
        "eps1": 0.2,
        "sensitivity_rule": "exact",
        "candidates": 2,
    }
    assert selection["certified_epsilon"] == 0.2
    assert training["kind"] == "training"
    for key in ("steps", "sampling_rate", "noise_multiplier", "sensitivity", "filter", "live"):
        assert training[key] == trained[key]
    for event in (selection, training):
        assert (event["adjacency"], event["unit"]) == ("add-remove", "record")
        assert (event["dataset"]["name"], event["dataset"]["start"], event["dataset"]["stop"]) == (
            "digits",
            HALF,
            2 * HALF,
        )
    assert {event["ticket_set"] for event in (made, selection)} == {
        json.loads(Path("pub/tickets.json").read_text())["id"]
    }
    # the run carries the events on its own records, and on those of its ticket: anyone can recompute the figure from it
    assert events("r/ledger.jsonl") == [made, selection, training]
    assert total_epsilon(open_ledger(Path("r/ledger.jsonl")).events, 1e-5) == certified


def test_run_folder(cli):
    body = cli("train", "pub@2", *PRIVATE, *FEW, "--noise-multiplier", "2", "--out", "r").json
    assert sorted(path.name for path in Path("r").iterdir()) == [
        "config.json",
        "environment.json",
        "ledger.jsonl",
        "mask.safetensors",
        "metrics.jsonl",
        "model.safetensors",
        "result.json",
    ]
    model, packed = read_safetensors("r/model.safetensors"), read_safetensors("r/mask.safetensors")
    bits = {name: np.unpackbits(packed[name])[: model[name].size].reshape(model[name].shape) for name in model}
    ones = sum(int(value.sum()) for value in bits.values())
    assert body["live"] == ones == 308
    weights = [name for name in bits if name.endswith("weight")]
    assert body["density"] == sum(int(bits[name].sum()) for name in weights) / sum(bits[name].size for name in weights)
    for name, value in model.items():
        assert not value[bits[name] == 0].any()  # pruned weights are exactly zero
        assert value[bits[name] == 1].all()  # and every live one has had noise
    config = json.loads(Path("r/config.json").read_text())
    assert (config["format"], config["schema"], config["model"], config["round"]) == ("dpltm-run", 1, "mlp:8", 2)
    assert (config["options"]["noise_multiplier"], config["options"]["batch_size"]) == (2.0, None)
    assert config["expected_batch"] == 179  # the default as resolved: a quarter of the records
    metrics = [json.loads(line) for line in Path("r/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in metrics] == [1, 2, 3]
    spent = [line["epsilon"] for line in metrics]
    assert spent == sorted(spent)
    assert spent[-1] == body["privacy"]["certified"]["epsilon"]
    assert metrics[-1]["accuracy"] == body["accuracy"]


def test_accuracy_is_that_of_the_model_on_the_test_split(cli):
    body = cli("train", "pub@1", *PRIVATE, *FEW, "--noise-multiplier", "2", "--out", "r").json
    model, test = read_safetensors("r/model.safetensors"), load("digits").test
    hidden = np.maximum((test.x.reshape(359, 64) / 16) @ model["fc1.weight"].T + model["fc1.bias"], 0)
    right = (hidden @ model["fc2.weight"].T + model["fc2.bias"]).argmax(1) == test.y
    assert body["accuracy"] == right.mean()


def test_training_starts_from_theta0(cli):
    """With a step size of nothing much, what comes out is theta0 under the mask."""
    cli("train", "pub@2", *PRIVATE, *FEW, "--noise-multiplier", "1", "--lr", "1e-12", "--out", "r")
    tickets = load_ticket_set(Path("pub"))
    for name, value in read_safetensors("r/model.safetensors").items():
        expected = tickets.body.theta0[name] * tickets.ticket(2).mask[name]
        assert np.allclose(value, expected.numpy(), rtol=0, atol=1e-8)


def test_private_provenance_is_never_certified(cli, events):
    drawn = cli("select", "pri", *PRIVATE, "--eps1", "0.1", "--json").json
    assert drawn["sensitivity"] == {"rule": "paper", "value": 49.0}
    assert (drawn["privacy"]["certified"]["epsilon"], drawn["privacy"]["nominal"]["epsilon"]) == ("inf", 0.1)
    trained = cli("train", "pri", *PRIVATE, *FEW, "--epsilon", "1", "--out", "r").json
    assert trained["privacy"]["certified"]["epsilon"] == "inf"
    nominal = trained["privacy"]["nominal"]
    assert nominal["source"] == "DPLTM Theorem 3"
    assert 0.99 < nominal["epsilon"] <= 1  # eps1 + eps2, as the paper counts
    kinds = [event["kind"] for event in events("pri/ledger.jsonl")]
    assert kinds == ["provenance", "selection", "training"]
    assert events("pri/ledger.jsonl")[0]["provenance"] == "private"


def test_private_provenance_in_words(cli):
    done = cli("train", "pri@1", *PRIVATE, "--steps", "3", "--epsilon", "1", "--out", "r")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("certified epsilon"))
    assert lines[at] == (
        "certified epsilon = inf (delta = 1e-05, add-remove, unit record, poisson sampling, accountant pld)"
    )
    assert lines[at + 1].startswith("nominal epsilon = 0.999")
    assert lines[at + 1].endswith("(claimed by: DPLTM Theorem 3; not proven)")
    assert lines[at + 2].startswith("- the tickets were made from digits[0.5:1.0] with no mechanism")


def test_private_provenance_follows_the_set_into_another_ledger(cli, events):
    body = cli("train", "pri@1", *PRIVATE, *FEW, "--noise-multiplier", "5", "--ledger", "l.jsonl", "--out", "r").json
    assert body["privacy"]["certified"]["epsilon"] == "inf"
    assert [event["kind"] for event in events("l.jsonl")] == ["provenance", "training"]
    assert [event["kind"] for event in events("r/ledger.jsonl")] == ["provenance", "training"]
    again = cli("train", "pri@2", *PRIVATE, *FEW, "--noise-multiplier", "5", "--ledger", "l.jsonl", "--out", "r2").json
    assert again["privacy"]["certified"]["epsilon"] == "inf"
    assert [event["kind"] for event in events("l.jsonl")] == ["provenance", "training", "training"]


def test_private_accuracies_are_beside_the_set_only(cli, cwd):
    cli("generate", *PRIVATE, *TINY, "--provenance", "private", "--out", "new", "--quiet")
    side = cwd / "new.private.json"
    assert side.stat().st_mode & 0o777 == 0o600
    document = json.loads(side.read_text())
    assert document["id"] == json.loads((cwd / "new/tickets.json").read_text())["id"]
    tickets, test = load_ticket_set(cwd / "new"), load("digits").test
    x = test.x.reshape(359, 64) / 16
    for ticket in tickets.body.tickets:
        assert ticket.accuracy is None
        p = {name: value.numpy() for name, value in ticket.predictor.items()}
        output = np.maximum(x @ p["fc1.weight"].T + p["fc1.bias"], 0) @ p["fc2.weight"].T + p["fc2.bias"]
        assert document["accuracy"][str(ticket.round)] == (output.argmax(1) == test.y).mean()
    files = [path.read_bytes() for path in (cwd / "new").iterdir()]
    assert len(files) == 6
    for value in document["accuracy"].values():
        for text in (repr(value), f"{value:.4f}", f"{value:.2%}"):
            assert not any(text.encode() in content for content in files)


def test_private_accuracies_are_not_printed(cli):
    done = cli("generate", *PRIVATE, *TINY, "--provenance", "private", "--out", "new")
    assert done.out.count("withheld") == 4  # three rows and one note
    for value in json.loads(Path("new.private.json").read_text())["accuracy"].values():
        assert f"{value:.2%}" not in done.out


def test_reveal_in_generate_enters_an_event(cli, events):
    body = cli("generate", *PRIVATE, *TINY, "--provenance", "private", "--reveal", "--out", "new", "--json").json
    assert all(type(row["accuracy"]) is float for row in body["tickets"])
    assert all(ticket.accuracy is None for ticket in load_ticket_set(Path("new")).body.tickets)  # never in the folder
    assert Path("new.private.json").exists()
    made, revealed = events("new/ledger.jsonl")
    assert (made["kind"], made["provenance"]) == ("provenance", "private")
    assert (revealed["kind"], revealed["what"]) == ("non-private", "accuracies of the tickets' predictors")
    assert body["privacy"]["certified"]["epsilon"] == "inf"


def test_reveal_in_select_is_not_private(cli, events):
    body = cli("select", "pub", *PRIVATE, "--eps1", "0.1", "--reveal", "--json").json
    assert body["privacy"]["certified"]["epsilon"] == "inf"
    assert (
        "released without protection from digits[0.5:1.0]: scores and probabilities of the candidates"
        in body["privacy"]["notes"]
    )
    assert [event["kind"] for event in events("pub/ledger.jsonl")] == ["provenance", "selection", "non-private"]
    data = load("digits", subset="0.5:1.0").train
    x = data.x.reshape(len(data), 64) / 16
    tickets = load_ticket_set(Path("pub"))
    for row in body["revealed"]:
        p = {name: value.numpy() for name, value in tickets.ticket(row["round"]).predictor.items()}
        output = np.maximum(x @ p["fc1.weight"].T + p["fc1.bias"], 0) @ p["fc2.weight"].T + p["fc2.bias"]
        assert row["accuracy"] == (output.argmax(1) == data.y).mean()
        counted = row["accuracy"] * len(data) / 719  # the public number: how many hashes fall into the half is private
        assert row["score"] == pytest.approx(counted * (1 - 50 * row["density"]))
    first, second = body["revealed"]
    odds = math.exp(0.1 / (2 * body["sensitivity"]["value"]) * (first["score"] - second["score"]))
    assert first["probability"] / second["probability"] == pytest.approx(odds)
    assert first["probability"] + second["probability"] == pytest.approx(1)
    later = cli("train", "pub", *PRIVATE, *FEW, "--noise-multiplier", "5", "--out", "r").json
    assert later["privacy"]["certified"]["epsilon"] == "inf"  # the ledger does not forget


@pytest.mark.parametrize("mechanism", ["exponential", "permute-and-flip"])
def test_a_large_eps1_draws_the_best_ticket(cli, mechanism):
    options = ("--eps1", "500", "--score", "additive", "--lambda", "3", "--mechanism", mechanism, "--reveal", "--json")
    body = cli("select", "pub", *PRIVATE, *options).json
    assert body["mechanism"] == mechanism
    assert body["sensitivity"] == {"rule": "exact", "value": 1 / 719}
    best = max(body["revealed"], key=lambda row: row["score"])
    assert best["probability"] > 1 - 1e-9
    assert body["winner"]["round"] == best["round"]
    assert json.loads(Path("pub/selection.json").read_text())["round"] == best["round"]


def test_drawing_again_spends_again(cli):
    first = cli("select", "pub", *PRIVATE, "--eps1", "0.1", "--json").json
    second = cli("select", "pub", *PRIVATE, "--eps1", "0.1", "--json").json
    once, twice = (body["privacy"]["certified"]["epsilon"] for body in (first, second))
    assert 0.095 < once < 0.1  # a little under eps1, since the figure is read at delta 1e-5
    assert 1.8 * once < twice < 0.2
    assert second["privacy"]["nominal"]["epsilon"] == pytest.approx(0.2)
    assert "2 draws on these records are in the ledger; each spent its own eps1" in second["privacy"]["notes"]


@pytest.mark.parametrize(
    "command",
    [
        ("select", "pub", "--eps1", "0.1"),
        ("train", "pub@1", "--steps", "3", "--epsilon", "1"),
    ],
)
@pytest.mark.parametrize(
    ("subset", "shown"),
    [
        ("0.0:0.5", "digits[0.0:0.5]"),
        ("0.499999999:1.0", "digits[0.499999999:1.0]"),
        ("1428:1438", "digits[1428:1438]"),  # places cut across hashes
        ("1.0", "digits"),
    ],
)
def test_records_are_not_public_and_private_at_once(refused, command, subset, shown):
    assert refused(*command, "--dataset", "digits", "--subset", subset) == (
        f"pub: its tickets were made from digits[0.0:0.5], declared public, and {shown} shares records with it; the"
        " same records cannot be private here: take another --subset or --dataset, or generate with --provenance private"
    )


def test_a_spent_budget_is_refused(cli, refused):
    cli("train", "pub@1", *PRIVATE, *FEW, "--epsilon", "1", "--out", "r")
    message = refused("train", "pub@2", *PRIVATE, *FEW, "--epsilon", "0.5", "--out", "r2", code=1)
    assert message.startswith("budget: on these records epsilon 0.99")
    assert " goes to 3 steps of training, " in message
    assert message.endswith(
        ", so nothing is left of 0.5; set a larger --epsilon, a new budget for all of it together, or name another --ledger,"
        " which will be added up with this one"
    )


def test_a_selection_alone_can_spend_the_budget(cli, refused):
    cli("select", "pub", *PRIVATE, "--eps1", "0.5", "--quiet")
    message = refused("train", "pub", *PRIVATE, *FEW, "--epsilon", "0.25", code=1)
    assert message.startswith("budget: on these records epsilon 0.496 goes to a winner drawn from 2 tickets ")
    assert ", so nothing is left of 0.25; set a larger --epsilon," in message


def test_what_is_left_of_a_budget_can_be_spent(cli):
    cli("train", "pub@1", *PRIVATE, *FEW, "--epsilon", "1", "--out", "r")
    body = cli("train", "pub@2", *PRIVATE, *FEW, "--epsilon", "2", "--out", "r2").json
    assert 1.99 < body["privacy"]["certified"]["epsilon"] <= 2
    assert (
        "2 training runs on these records are in the ledger; epsilon covers all of them together"
        in body["privacy"]["notes"]
    )


def test_dense_keeps_its_own_ledger(cli, events, cwd):
    before = (cwd / "pub/ledger.jsonl").read_bytes()
    body = cli("train", "pub", "--dense", *PRIVATE, *FEW, "--epsilon", "1", "--out", "dense").json
    assert (body["live"], body["density"], body["round"]) == (610, 1.0, 0)
    assert (cwd / "pub/ledger.jsonl").read_bytes() == before
    assert [event["kind"] for event in events("dense/ledger.jsonl")] == ["training"]
    assert 0.998 < body["privacy"]["certified"]["epsilon"] <= 1


def test_dense_without_a_set(cli, events):
    body = cli("train", "--dense", "--model", "mlp:4", *PRIVATE, *FEW, "--epsilon", "1", "--out", "dense").json
    assert (body["live"], body["density"]) == (64 * 4 + 4 + 4 * 10 + 10, 1.0)
    assert (body["round"], body["ticket_set"]) == (None, None)
    assert len(events("dense/ledger.jsonl")) == 1


def test_a_shared_ledger_adds_up(cli, events):
    shared = ("--noise-multiplier", "2", "--ledger", "all.jsonl")
    first = cli("train", "pub@1", *PRIVATE, *FEW, *shared, "--out", "a").json
    second = cli("train", "--dense", "--model", "mlp:4", *PRIVATE, *FEW, *shared, "--out", "b").json
    other = cli("train", "pub@1", "--dataset", "digits", "--subset", "0.5:0.75", *FEW, *shared, "--out", "c").json
    figures = [body["privacy"]["certified"]["epsilon"] for body in (first, second, other)]
    assert figures[0] < figures[1]
    assert len(events("all.jsonl")) == 3
    assert len(events("b/ledger.jsonl")) == 2
    assert figures[1] == total_epsilon(open_ledger(Path("all.jsonl")).events[:2], 1e-5)
    assert figures[2] == total_epsilon(open_ledger(Path("all.jsonl")).events, 1e-5)


def test_other_records_do_not_add_up(cli):
    alone = cli("train", "pub@1", *PRIVATE, *FEW, "--noise-multiplier", "2", "--out", "a").json
    shared = ("--noise-multiplier", "2", "--ledger", "all.jsonl")
    cli("train", "--dense", *PUBLIC, *FEW, *shared, "--out", "b")
    apart = cli("train", "pub@1", *PRIVATE, *FEW, *shared, "--out", "c").json
    assert apart["privacy"]["certified"] == alone["privacy"]["certified"]


@pytest.mark.parametrize(
    "command",
    [
        ("generate", *PUBLIC, *TINY, "--provenance", "public"),
        ("generate", *PRIVATE, *TINY, "--provenance", "private", "--out", "new", "--ledger", "new.jsonl"),
        ("select", "pub", *PRIVATE, "--eps1", "0.1", "--reveal"),
        ("select", "pub", *PRIVATE, "--eps1", "0.1", "--ledger", "new.jsonl"),
        ("select", "pub", "--rule", "smallest-within", "--tolerance", "1", "--max-density", "1"),
        ("train", "pub@1", *PRIVATE, "--steps", "3", "--noise-multiplier", "3"),
        ("train", "pri@1", *PRIVATE, "--steps", "3", "--noise-multiplier", "3", "--out", "a/b/r"),
        ("train", "--dense", *PRIVATE, "--steps", "3", "--noise-multiplier", "3", "--ledger", "new.jsonl"),
    ],
    ids=lambda command: command[0],
)
def test_a_dry_run_writes_nothing(cli, tree, command):
    before = tree()
    done = cli(*command, "--dry-run")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("would ")
    assert tree() == before


@pytest.mark.parametrize(
    "command",
    [
        ("generate", *PRIVATE, *TINY, "--provenance", "private", "--out", "new"),
        ("select", "pub", *PRIVATE, "--eps1", "0.1"),
        ("train", "pub@1", *PRIVATE, "--steps", "3", "--noise-multiplier", "3", "--out", "r"),
        ("datasets", "ls"),
        ("datasets", "info", "digits"),
    ],
    ids=lambda command: command[0],
)
def test_quiet_prints_nothing(cli, command):
    done = cli(*command, "--quiet")
    assert (done.code, done.out, done.err) == (0, "", "")


def test_quiet_with_json_prints_the_json(cli):
    assert cli("datasets", "info", "digits", "--quiet", "--json").json["name"] == "digits"


# --- the same seed, the same bits ---


TENSORS = ("theta0.safetensors", "masks.safetensors", "predictors.safetensors")


def test_same_seed_same_bits(cli, cwd):
    for out in ("one", "again"):
        cli("generate", *PUBLIC, *TINY, "--provenance", "public", "--threads", "1", "--out", out, "--quiet")
    for name in TENSORS:
        assert (cwd / "again" / name).read_bytes() == (cwd / "one" / name).read_bytes()
    first, second = (json.loads((cwd / name / "tickets.json").read_text()) for name in ("one", "again"))
    at = {"created": "", "digest": ""}  # what depends on the time
    ids = [body["source"].pop("id") for body in (first, second)]
    assert len(set(ids)) == 2  # what a set says of its records is another number each time
    assert first | at == second | at


def test_other_seed_other_bits(cli, cwd):
    cli("generate", *PUBLIC, *TINY, "--provenance", "public", "--seed", "1", "--out", "other", "--quiet")
    for name in TENSORS:
        assert (cwd / "other" / name).read_bytes() != (cwd / "pub" / name).read_bytes()
    assert load_ticket_set(cwd / "other").id != load_ticket_set(cwd / "pub").id


def test_training_differs_each_time(cli, cwd):
    """Sampling and noise come from the system, never from --seed."""
    for name in ("a", "b"):
        options = ("--noise-multiplier", "3", "--seed", "5", "--ledger", f"{name}.jsonl", "--out", name)
        cli("train", "pub@1", *PRIVATE, "--steps", "3", *options, "--quiet")
    a, b = (read_safetensors(cwd / name / "model.safetensors")["fc1.bias"] for name in ("a", "b"))
    assert not (a == b).any()


def test_seed_decides_the_dense_start(cli, cwd):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        options = ("--noise-multiplier", "1", "--lr", "1e-12", "--seed", seed, "--out", name, "--quiet")
        cli("train", "--dense", "--model", "mlp:4", *PRIVATE, "--steps", "1", *options)
    a, b, c = (read_safetensors(cwd / name / "model.safetensors")["fc1.weight"] for name in "abc")
    assert np.allclose(a, b, rtol=0, atol=1e-8)
    assert not np.allclose(a, c, rtol=0, atol=1e-3)


# --- which ticket ---


def test_smallest_within(cli, refused, cwd, events):
    accuracies = [row["accuracy"] for row in json.loads((cwd / "pub/tickets.json").read_text())["tickets"]]
    rule = ("select", "pub", "--rule", "smallest-within")
    wide = cli(*rule, "--tolerance", "1", "--max-density", "1", "--json").json
    assert wide["winner"] == {"round": 2, "density": 0.48986486486486486}
    assert (wide["eps1"], wide["mechanism"], wide["score"], wide["sensitivity"]) == (
        0.0,
        "smallest-within",
        None,
        None,
    )
    assert wide["privacy"]["certified"]["epsilon"] == 0
    assert [event["kind"] for event in events("pub/ledger.jsonl")] == ["provenance"]
    trained = cli("train", "pub", *PRIVATE, *FEW, "--noise-multiplier", "3", "--out", "r").json
    assert trained["round"] == 2
    lost = max(accuracies[0] - max(accuracies[1:]), 0.0)
    if lost > 0:  # so it is with this seed: both tickets are worse than the dense network
        assert refused(*rule, "--tolerance", lost / 2, "--max-density", "1", code=1) == (
            f"--rule: no ticket of at most 100% density is within {lost / 2:g} of the dense accuracy {accuracies[0]:.4f};"
            " raise --tolerance or --max-density"
        )
    assert refused(*rule, "--tolerance", "1", code=1) == (
        f"--rule: no ticket of at most 10% density is within 1 of the dense accuracy {accuracies[0]:.4f}; raise --tolerance"
        " or --max-density"
    )


def test_smallest_within_takes_the_sparsest_that_is_good_enough(cli):
    """Longer training, so that accuracies spread; the rule is worked out here from the accuracies in the set."""
    options = ("--model", "mlp:8", "--rounds", "4", "--prune", "0.6", "--iterations", "30", "--batch-size", "32")
    made = cli("generate", *PUBLIC, *options, "--provenance", "public", "--out", "long", "--json").json
    dense, *rest = made["tickets"]
    tolerance = max(dense["accuracy"] - rest[1]["accuracy"], 0.0) + 1e-9
    good = [row for row in rest if row["accuracy"] >= dense["accuracy"] - tolerance and row["density"] <= 0.5]
    body = cli(
        *("select", "long", "--rule", "smallest-within", "--tolerance", tolerance, "--max-density", "0.5", "--json")
    ).json
    assert body["winner"]["round"] == max(row["round"] for row in good) >= 2


def test_a_named_round(cli):
    for number, live in ((0, 610), (1, 432), (2, 308)):
        options = ("--noise-multiplier", "3", "--dry-run", "--json")
        body = cli("train", f"pub@{number}", *PRIVATE, "--steps", "3", *options).json
        assert (body["round"], body["live"]) == (number, live)


def test_default_names_count_up(cli, cwd):
    for _ in range(2):
        cli("train", "pub@1", *PRIVATE, "--steps", "1", "--noise-multiplier", "9", "--quiet")
        cli("generate", *PUBLIC, *TINY, "--provenance", "public", "--quiet")
    made = {path.name for path in cwd.iterdir() if path.is_dir()} - {"pub", "pri"}
    assert made == {"pub-round1.run", "pub-round1-2.run", "digits.tickets", "digits-2.tickets"}
