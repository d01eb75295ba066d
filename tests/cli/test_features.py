"""Features in front of a network, from the options to the ledger: what they are, what they cost, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from dpltm.cli.main import run as dpltm
from dpltm.data import key_id, load
from dpltm.data.registry import PUBLIC_KEY
from dpltm.features.feature_map import make_feature_map
from dpltm.privacy.event_json import from_json, ref_from_json
from dpltm.privacy.events import TrainingEvent
from dpltm.privacy.figures import figure
from dpltm.privacy.parts import total_epsilon
from refs import reference

A, B = (("--dataset", "digits", "--subset", part) for part in ("0.0:0.5", "0.5:1.0"))
LINEAR = ("--model", "mlp", "--rounds", "2", "--prune", "0.3", "--iterations", "30", "--batch-size", "32")
SCATTERED = 81 * 2 * 2
"""Features of an image of 8 x 8: 1 + 2 * 8 + 8^2 channels in two windows of 4 pixels down and two across."""


@pytest.fixture(scope="module")
def sets(tmp_path_factory, _own_config_home) -> Path:
    """``sc``, linear tickets on scatter features of public records; ``net``, a run on A; ``same``, one on B."""
    folder = tmp_path_factory.mktemp("sets")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        quick = ("--steps", "8", "--noise-multiplier", "2", "--quiet")
        public = ("--provenance", "public", "--quiet")
        assert dpltm(["generate", *A, *LINEAR, *public, "--features", "scatter", "--out", "sc"]) == 0
        for name, part in (("net", A), ("same", B)):
            assert dpltm(["train", "--dense", "--model", "mlp:12", *part, *quick, "--out", name]) == 0
    return folder


@pytest.fixture
def work(cwd, sets) -> Path:
    """The working folder, with all of these in it as well."""
    for path in sets.iterdir():
        shutil.copytree(path, cwd / path.name)
    return cwd


@pytest.fixture
def turned_away(work, refused):
    """``refused``; besides, no feature was kept and no budget spent."""

    def call(*arguments, code: int = 2) -> str:
        cache = Path(os.environ["XDG_CACHE_HOME"])
        before = sorted(cache.rglob("*"))
        message = refused(*arguments, code=code)
        assert sorted(cache.rglob("*")) == before
        assert not list(work.glob("*.jsonl"))
        return message

    return call


def trainings(events: list[dict]) -> list[TrainingEvent]:
    found = [from_json(event) for event in events]
    return [event for event in found if isinstance(event, TrainingEvent)]


def certified(body: dict) -> float:
    return body["privacy"]["certified"]["epsilon"]


# From beginning to end


@pytest.mark.usefixtures("work")
def test_a_set_remembers_what_stands_in_front_of_it(cli, events):
    document = json.loads(Path("sc/tickets.json").read_text())
    assert document["features"] == SCATTERED
    assert (document["feature_map"]["text"], document["feature_map"]["shape"]) == ("scatter:2,8", [8, 8])
    assert not Path("sc/features.safetensors").exists()
    assert [event["ticket_set"] for event in events("sc/ledger.jsonl")] == [document["id"]]  # public: nothing to say
    assert cli("tickets", "verify", "sc", "--json").json["ok"]
    dry = cli("train", "sc@1", *B, "--epsilon", "3", "--epochs", "2", "--dry-run", "--json").json
    body = cli("train", "sc@1", *B, "--epsilon", "3", "--epochs", "2", "--out", "r", "--json").json
    assert body["features"] == dry["features"] == "scatter:2,8"
    assert body["accuracy"] > 0.6, "a linear network on features of a few hundred digits"
    said, told, trained = events("r/ledger.jsonl")
    assert (said["provenance"], said["ticket_set"]) == ("public", document["id"])
    label = f"features scatter:2,8 {document['feature_map']['id'][:8]}"
    assert (told["kind"], told["provenance"], told["ticket_set"]) == ("provenance", "data-free", label)
    assert certified(body) == certified(dry) == total_epsilon([from_json(trained)], 1e-5)
    assert 2.5 < certified(body) <= 3
    answer = cli("evaluate", "r", "--dataset", "digits", "--json").json
    assert answer["accuracy"] == body["accuracy"]
    digits, weights = load("digits"), load_file("r/model.safetensors")
    values = make_feature_map("scatter:2,8", (8, 8), (0.0, 16.0))(digits.test.x).numpy()
    outputs = values @ weights["fc1.weight"].T + weights["fc1.bias"]
    assert np.mean(outputs.argmax(1) == digits.test.y) == pytest.approx(body["accuracy"], abs=0.006)


@pytest.mark.usefixtures("work")
def test_a_winner_is_drawn_and_trained_on_features(cli, events):
    drawn = cli("select", "sc", *B, "--eps1", "0.1", "--score", "additive", "--json").json
    assert drawn["winner"]["round"] in (1, 2)
    body = cli("train", "sc", *B, "--epsilon", "2", "--epochs", "1", "--out", "r", "--json").json
    kinds = [event["kind"] for event in events("sc/ledger.jsonl")]
    assert kinds == ["provenance", "provenance", "selection", "training"]
    assert 1 < certified(body) <= 2
    again = cli("train", "sc@1", *B, "--epsilon", "4", "--epochs", "1", "--out", "r2", "--json").json
    assert certified(again) > certified(body)
    assert [event["kind"] for event in events("sc/ledger.jsonl")] == [*kinds, "training"]  # said once is enough


@pytest.mark.usefixtures("work")
def test_a_dense_network_behind_features(cli, events):
    options = ("--dense", "--model", "mlp", *B, "--features", "scatter:1,4", "--epsilon", "3", "--epochs", "1")
    body = cli("train", *options, "--out", "r", "--json").json
    config = json.loads(Path("r/config.json").read_text())
    assert (config["features"], config["feature_map"]["text"]) == ((1 + 4) * 4 * 4, "scatter:1,4")
    assert body["features"] == "scatter:1,4"
    assert [event["kind"] for event in events("r/ledger.jsonl")] == ["provenance", "training"]
    assert cli("evaluate", "r", "--dataset", "digits", "--json").json["accuracy"] == body["accuracy"]


@pytest.mark.usefixtures("work")
def test_tickets_made_from_private_features_are_no_better(cli, events):
    cli("generate", *B, *LINEAR, "--provenance", "private", "--features", "scatter", "--out", "p", "--quiet")
    assert [event["provenance"] for event in events("p/ledger.jsonl")] == ["data-free", "private"]
    body = cli("train", "p@1", *B, "--noise-multiplier", "2", "--steps", "2", "--dry-run", "--json").json
    assert certified(body) == "inf"


@pytest.mark.usefixtures("work")
@pytest.mark.parametrize("criterion", ["dp-train", "dp-synthetic"])
def test_tickets_made_under_dp_from_features(cli, events, criterion):
    options = ("--model", "mlp", "--rounds", "1", "--prune", "0.3", "--iterations", "4", "--batch-size", "32")
    cli("generate", *B, *options, "--criterion", criterion, "--epsilon", "1", "--features", "scatter:2,2", "--out", "d",
        "--quiet")  # fmt: skip
    entered = events("d/ledger.jsonl")
    assert sorted(event["kind"] for event in entered) == sorted(
        ["provenance", "provenance", "training" if criterion == "dp-train" else "gaussian"]
    )
    body = cli("train", "d@1", *B, "--epsilon", "3", "--steps", "4", "--out", "r", "--json").json
    assert 2 < certified(body) <= 3
    costs = [from_json(event) for event in events("r/ledger.jsonl") if event["kind"] in ("training", "gaussian")]
    assert len(costs) == 2
    assert certified(body) == total_epsilon(costs, 1e-5) > total_epsilon(costs[:1], 1e-5) > 0.8


@pytest.mark.usefixtures("work")
def test_sets_made_from_a_set_keep_its_map(cli):
    found = json.loads(Path("sc/tickets.json").read_text())["feature_map"]
    cli("tickets", "export", "sc", "--out", "copy", "--quiet")
    cli("tickets", "transfer", "sc", "--dataset", "digits", "--out", "moved", "--quiet")
    for name in ("copy", "moved"):
        assert json.loads(Path(name, "tickets.json").read_text())["feature_map"] == found
        assert cli("tickets", "verify", name, "--json").json["ok"]
    assert cli("train", "copy@1", *B, "--epsilon", "3", "--steps", "2", "--dry-run", "--json").json["features"]


# Networks in front


@pytest.mark.usefixtures("work")
def test_a_network_trained_on_other_records_costs_nothing_on_these(cli, events):
    options = ("--dense", "--model", "mlp", *B, "--features", "network:net", "--noise-multiplier", "2", "--steps", "8")
    body = cli("train", *options, "--out", "r", "--json").json
    config = json.loads(Path("r/config.json").read_text())
    assert (config["features"], body["features"]) == (12, "network")
    theirs, own = trainings(events("r/ledger.jsonl"))
    assert [theirs] == trainings(events("net/ledger.jsonl"))
    assert certified(body) == total_epsilon([own], 1e-5)
    # what is handed on holds that network, so the reader is told what is certified for its records
    said = [note for note in body["privacy"]["notes"] if "trained on other records" in note]
    assert len(said) == 1
    assert said[0].endswith(f"certified for those records is epsilon {figure(total_epsilon([theirs], 1e-5))}")
    assert cli("evaluate", "r", "--dataset", "digits", "--json").json["accuracy"] == body["accuracy"]
    told = [event for event in events("r/ledger.jsonl") if event["kind"] == "provenance"]
    assert [(event["provenance"], event["dataset"]["start"]) for event in told] == [("dp", 0)]
    # whoever trains on the records of that network, with this one in front, pays for both
    kept = [from_json(event) for event in config["feature_map"]["events"]]
    assert kept == trainings(events("net/ledger.jsonl"))


@pytest.mark.usefixtures("work")
@pytest.mark.parametrize("given", ["noise", "budget"])
def test_a_network_trained_on_these_records_is_counted(cli, events, given):
    options = ("--dense", "--model", "mlp", *B, "--features", "network:same", "--steps", "8")
    amount = {"noise": ("--noise-multiplier", "2"), "budget": ("--epsilon", "5")}[given]
    dry = cli("train", *options, *amount, "--dry-run", "--json").json
    body = cli("train", *options, *amount, "--out", "r", "--json").json
    first, second = trainings(events("r/ledger.jsonl"))
    assert [first] == trainings(events("same/ledger.jsonl"))
    assert certified(body) == certified(dry) == total_epsilon([first, second], 1e-5)
    assert certified(body) > max(total_epsilon([one], 1e-5) for one in (first, second))
    if given == "budget":
        assert 4.5 < certified(body) <= 5


@pytest.mark.usefixtures("work")
def test_a_network_that_used_the_budget_up_leaves_none(turned_away):
    message = turned_away(
        "train", "--dense", "--model", "mlp", *B, "--features", "network:same", "--steps", "8", "--epsilon", "0.5",
        "--out", "r", code=1,
    )  # fmt: skip
    assert message.startswith("budget: ")


@pytest.mark.usefixtures("work")
def test_its_events_count_wherever_a_set_behind_it_goes(cli, events):
    """Public tickets behind a network that was trained on what the set is then used on."""
    options = (*LINEAR, "--provenance", "public", "--features", "network:same")
    cli("generate", *A, *options, "--out", "behind", "--quiet")
    assert cli("tickets", "verify", "behind", "--json").json["ok"]
    refused = cli("tickets", "export", "behind", "--out", "copy", "--quiet")
    assert (refused.code, "holds a network trained on" in refused.err) == (1, True)
    cli("tickets", "export", "behind", "--out", "copy", "--yes", "--quiet")
    theirs = trainings(events("same/ledger.jsonl"))
    for name in ("behind", "copy"):
        cli("select", name, *B, "--eps1", "0.1", "--quiet")
        body = cli("train", name, *B, "--noise-multiplier", "2", "--steps", "4", "--out", f"{name}.run", "--json").json
        entered = events(f"{name}.run/ledger.jsonl")
        assert [event["kind"] for event in entered if event["kind"] != "provenance"] == [
            "training",
            "selection",
            "training",
        ]
        told = [event["provenance"] for event in entered if event["kind"] == "provenance"]
        assert told == (
            ["dp", "public"] if name == "behind" else ["dp"]
        )  # of the ledger beside the set, where there is one
        assert theirs[0] in trainings(entered)
        costs = [from_json(event) for event in entered if event["kind"] != "provenance"]
        assert certified(body) == total_epsilon(costs, 1e-5) > total_epsilon(trainings(entered), 1e-5)
        assert next(event for event in costs if not isinstance(event, TrainingEvent)).mechanism.adaptive


@pytest.mark.usefixtures("work")
def test_a_ledger_that_holds_its_events_already_does_not_get_them_twice(cli, events):
    options = (
        "--dense",
        "--model",
        "mlp",
        *B,
        "--features",
        "network:same",
        "--noise-multiplier",
        "2",
        "--steps",
        "4",
    )
    for name in ("r1", "r2"):
        cli("train", *options, "--ledger", "l.jsonl", "--out", name, "--quiet")
    kinds = [event["kind"] for event in events("l.jsonl")]
    assert kinds == ["training", "provenance", "training", "training"]


@pytest.mark.usefixtures("work")
def test_a_network_from_tickets_made_of_these_records_certifies_nothing(cli):
    """``pri`` was made from B with no mechanism; its ticket is trained on A, and that network stands in front on B."""
    cli("train", "pri@1", *A, "--epsilon", "3", "--steps", "4", "--out", "through", "--quiet")
    assert (
        certified(cli("train", "pri@1", *B, "--noise-multiplier", "2", "--steps", "4", "--dry-run", "--json").json)
        == "inf"
    )
    done = cli(
        "train", "--dense", "--model", "mlp", *B, "--features", "network:through", "--noise-multiplier", "2", "--steps", "4",
        "--out", "r", "--json",
    )  # fmt: skip
    assert done.code != 0 or certified(done.json) == "inf"


@pytest.mark.usefixtures("work")
def test_a_budget_is_not_raised_by_that_of_a_network(cli):
    """The run's ledger has a budget of its own, which is no release, and says nothing about another ledger."""
    cli("privacy", "budget", "wide.jsonl", *B, "--epsilon", "50", "--quiet")
    whole = ("train", "--dense", "--model", "mlp:8", *B, "--epsilon", "1", "--steps", "4", "--out", "n", "--quiet")
    assert cli(*whole, "--ledger", "wide.jsonl").code == 0
    cli("privacy", "budget", "narrow.jsonl", *B, "--epsilon", "2", "--quiet")
    done = cli(
        "train", "--dense", "--model", "mlp", *B, "--features", "network:n", "--epsilon", "6", "--steps", "4",
        "--ledger", "narrow.jsonl", "--out", "r", "--quiet",
    )  # fmt: skip
    assert done.code == 1
    assert "above the budget of 2" in done.err


@pytest.mark.usefixtures("work")
def test_a_network_from_a_ledger_with_a_draw_goes_into_one_with_other_releases(cli, events):
    """The draw was the first of its ledger; a dense network does not depend on it, so it stays there."""
    cli("train", "pub@1", *B, "--epsilon", "1", "--steps", "4", "--ledger", "l.jsonl", "--out", "n1", "--quiet")
    cli("select", "pub", *B, "--eps1", "0.1", "--ledger", "drawn.jsonl", "--quiet")
    whole = ("train", "--dense", "--model", "mlp:8", *B, "--epsilon", "1", "--steps", "4", "--out", "n", "--quiet")
    assert cli(*whole, "--ledger", "drawn.jsonl").code == 0
    done = cli(
        "train", "--dense", "--model", "mlp", *B, "--features", "network:n", "--epsilon", "5", "--steps", "4",
        "--ledger", "l.jsonl", "--out", "r", "--quiet",
    )  # fmt: skip
    assert done.code == 0, done.err
    kinds = [event["kind"] for event in events("l.jsonl")]
    assert kinds.count("training") == 3
    assert "selection" not in kinds


# Public statistics


def write(path: str, x: np.ndarray, y: np.ndarray) -> None:
    np.savez(path, x_train=x[:-40], y_train=y[:-40], x_test=x[-40:], y_test=y[-40:])


@pytest.fixture
def pictures(work) -> Path:
    """``public.npz`` and ``private.npz``, grey images of 9 x 9; ``colours.npz`` with three channels."""
    draw = np.random.default_rng(0)
    for name, shape in (("public", (9, 9)), ("private", (9, 9)), ("colours", (9, 9, 3))):
        y = draw.integers(0, 3, 300)
        x = draw.integers(0, 90, (300, *shape)) + 55 * y.reshape(-1, *[1] * len(shape))
        write(f"{name}.npz", x.astype(np.uint8), y)
    return work


OWN = ("--dataset", "private.npz", "--bounds", "0,255", "--classes", "3")
LITTLE = ("--dense", "--model", "mlp", "--epsilon", "3", "--steps", "3", "--delta", "1e-4")


@pytest.mark.usefixtures("pictures")
def test_statistics_are_entered_as_public(cli, events):
    body = cli(
        "train", *LITTLE, *OWN, "--features", "scatter:1,3", "--public", "public.npz", "--out", "r", "--json"
    ).json
    told, trained = events("r/ledger.jsonl")
    assert (told["kind"], told["provenance"], told["dataset"]["name"]) == ("provenance", "public", "public")
    public = reference(load("public.npz", classes=3), public=True)
    assert ref_from_json(told["dataset"]) == public
    assert (public.key_id, public.cut) == (key_id(PUBLIC_KEY), "whole")  # anybody can tell whose statistics they are
    assert (trained["kind"], trained["dataset"]["name"]) == ("training", "private")
    assert certified(body) == total_epsilon([from_json(trained)], 1e-4)
    config = json.loads(Path("r/config.json").read_text())["feature_map"]
    assert config["source"] == told["dataset"]
    plain = make_feature_map("scatter:1,3", (9, 9), (0.0, 255.0))
    values = plain.transformed(np.load("public.npz")["x_train"]).double().numpy()
    stored = load_file("r/features.safetensors")
    np.testing.assert_allclose(stored["mean"], values.mean((0, 2, 3)), atol=1e-5)
    np.testing.assert_allclose(stored["deviation"], values.std((0, 2, 3)), rtol=1e-3, atol=1e-5)


@pytest.mark.usefixtures("pictures")
def test_a_set_remembers_statistics_and_who_trains_it_enters_them(cli, events):
    options = (*LINEAR, "--classes", "3", "--bounds", "0,255", "--provenance", "public", "--features", "scatter:1,3")
    cli("generate", "--dataset", "public.npz", *options, "--public", "public.npz", "--out", "s", "--quiet")
    assert Path("s/features.safetensors").exists()
    body = cli("train", "s@1", *OWN, "--epsilon", "3", "--steps", "3", "--delta", "1e-4", "--out", "r", "--json").json
    features, tickets, trained = events("r/ledger.jsonl")
    document = json.loads(Path("s/tickets.json").read_text())
    assert (tickets["provenance"], tickets["ticket_set"]) == ("public", document["id"])
    assert (features["provenance"], features["ticket_set"].startswith("features scatter:1,3 ")) == ("public", True)
    assert trained["kind"] == "training"
    assert 2 < certified(body) <= 3
    os.remove("s/features.safetensors")
    done = cli("train", "s@1", *OWN, "--epsilon", "3", "--steps", "3", "--delta", "1e-4", "--out", "r2")
    assert (done.code, done.err) == (2, "error: s/features.safetensors: cannot be read: No such file or directory\n")


def same_records(there: str, here: str) -> str:
    return (
        f"--public: {there} was declared public, and {here} shares records with it; the same records cannot be private"
        " here: take another --public, --subset or --dataset"
    )


@pytest.mark.usefixtures("work")
def test_the_same_records_are_not_public_and_private(turned_away, cli):
    options = ("--dense", "--model", "mlp", "--features", "scatter", "--public", "digits", "--steps", "3")
    message = turned_away("train", *options, *B, "--epsilon", "1", "--out", "r")
    assert message == same_records("digits", "digits[0.5:1.0]")
    for way in (("--provenance", "private"), ("--criterion", "dp-train", "--epsilon", "1")):
        message = turned_away(
            "generate", *B, *LINEAR, *way, "--features", "scatter", "--public", "digits", "--out", "s"
        )
        assert message == same_records("digits", "digits[0.5:1.0]")
    made = ("--criterion", "random", "--model", "mlp", "--rounds", "1", "--features", "scatter", "--public", "digits")
    cli("generate", "--dataset", "digits", *made, "--out", "free", "--quiet")
    message = turned_away("train", "free@1", *B, "--epsilon", "1", "--out", "r")
    assert message == same_records("digits", "digits[0.5:1.0]")


@pytest.mark.usefixtures("pictures")
def test_records_public_in_a_ledger_stay_so(cli, turned_away):
    cli("train", *LITTLE, *OWN, "--features", "scatter:1,3", "--public", "public.npz", "--out", "r", "--quiet")
    other = ("--dataset", "public.npz", "--bounds", "0,255", "--classes", "3", "--ledger", "r/ledger.jsonl")
    message = turned_away("train", *LITTLE, *other, "--out", "r2")
    assert message == (
        "--dataset: the ledger has public down as public, and public shares records with it; the same"
        " records cannot be private here: take another --subset or --dataset"
    )


# Real images


def test_digits_by_features_that_characters_normalise(cli, events, data_home, work):  # noqa: ARG001
    """Public tickets on features of Kuzushiji characters; one is trained, and measured, on some of MNIST."""
    shutil.copy(data_home / "kmnist-7k.npz", "kmnist.npz")
    with np.load(data_home / "mnist.npz") as mnist:
        train, test = slice(0, 800), slice(0, 200)
        np.savez(
            "mnist-part.npz", x_train=mnist["x_train"][train], y_train=mnist["y_train"][train],
            x_test=mnist["x_test"][test], y_test=mnist["y_test"][test],
        )  # fmt: skip
    with np.load("kmnist.npz") as kmnist:
        np.savez("kmnist.npz", **{key: kmnist[key][:300] for key in ("x_train", "y_train", "x_test", "y_test")})
    described = ("--bounds", "0,255", "--classes", "10")
    made = ("--dataset", "kmnist.npz", *described, "--provenance", "public", *LINEAR)
    cli("generate", *made, "--features", "scatter", "--public", "kmnist.npz", "--out", "k", "--quiet")
    mnist = ("--dataset", "mnist-part.npz", *described)
    body = cli("train", "k@1", *mnist, "--epsilon", "3", "--epochs", "10", "--out", "r", "--json").json
    assert body["accuracy"] > 0.6
    assert cli("evaluate", "r", *mnist, "--json").json["accuracy"] == body["accuracy"]
    told = [event for event in events("r/ledger.jsonl") if event["kind"] == "provenance"]
    assert [(event["provenance"], event["dataset"]["name"]) for event in told] == [("public", "kmnist")] * 2
    assert [event["ticket_set"].startswith("features scatter:") for event in told] == [
        True,
        False,
    ]  # statistics, tickets
    assert 2.5 < certified(body) <= 3


# What is refused

DENSE = ("train", "--dense", "--model", "mlp", *B, "--epsilon", "1", "--steps", "2", "--out", "r")


@pytest.mark.parametrize("text", ["scattering", "scatter:2,8,9", "network:"])
def test_options_that_are_none(turned_away, text):
    assert turned_away(*DENSE, "--features", text) == (
        f"--features: {text!r} is not none, scatter, scatter:J,L, conv, conv:SEED, wavelets, wavelets:J,Q, unit, unit:K"
        " or network:RUN"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--features", "scatter:9"),
            "--features: scatter:9,8: J must be 1 to 8 and L 1 to 64; the usual is scatter:2,8",
        ),
        (
            ("--features", "scatter:3"),
            "--features: images of 8 x 8 pixels are too small for J = 3, which averages over windows of 8; take scatter:2",
        ),
        (
            ("--features", "network:nowhere"),
            "nowhere: not a run (no config.json in it); name a folder made by dpltm train --out nowhere",
        ),
        (
            ("--features", "network:pub"),
            "pub: not a run (no config.json in it); name a folder made by dpltm train --out pub",
        ),
    ],
)
def test_features_that_are_none(turned_away, options, message):
    assert turned_away(*DENSE, *options) == message


@pytest.mark.parametrize("features", [(), ("--features", "none"), ("--features", "network:net")])
def test_public_records_without_scatter(turned_away, features):
    assert turned_away(*DENSE, *features, "--public", "digits") == (
        "--public: its statistics normalise scatter and conv features, its principal components (--components) any but"
        " those of a network; add --features, or leave it out"
    )


@pytest.mark.usefixtures("work")
@pytest.mark.parametrize("name", ["sc", "pub"])
@pytest.mark.parametrize(
    ("flag", "value"), [("--features", "scatter"), ("--features", "none"), ("--public", "digits")]
)
def test_a_set_decides_its_features(turned_away, name, flag, value):
    message = turned_away("train", f"{name}@1", *B, flag, value, "--epsilon", "1", "--steps", "2", "--out", "r")
    assert message == f"{flag}: {name} remembers what stands in front of its network; leave {flag} out"


@pytest.mark.usefixtures("pictures")
def test_public_images_of_other_colours(turned_away):
    message = turned_away("train", *LITTLE, *OWN, "--features", "scatter:1,3", "--public", "colours.npz", "--out", "r")
    assert message == (
        "--public: images of colours are of shape (9, 9, 3), those of private of shape (9, 9); statistics need as many"
        " colours, so name another dataset or leave --public out"
    )


@pytest.mark.usefixtures("pictures")
def test_records_of_other_colours_than_a_set_knows(cli, turned_away):
    options = (*LINEAR, "--classes", "3", "--bounds", "0,255", "--provenance", "public", "--features", "scatter:1,3")
    cli("generate", "--dataset", "public.npz", *options, "--public", "public.npz", "--out", "s", "--quiet")
    message = turned_away(
        "train", "s@1", "--dataset", "colours.npz", "--bounds", "0,255", "--classes", "3", "--epsilon", "1",
        "--delta", "1e-4", "--steps", "2", "--out", "r",
    )  # fmt: skip
    assert message == (
        "--features: statistics are of 4 channels, but records of shape (9, 9, 3) have 12; take records with as many"
        " colours"
    )


@pytest.mark.usefixtures("work")
def test_records_of_another_size_than_a_set_takes(turned_away):
    """13 pixels are three windows of 4; a pixel more than 8 changes nothing."""
    draw = np.random.default_rng(0)
    write("large.npz", draw.integers(0, 256, (300, 13, 13)).astype(np.uint8), draw.integers(0, 10, 300))
    message = turned_away(
        "train", "sc@1", "--dataset", "large.npz", "--bounds", "0,255", "--classes", "10", "--epsilon", "1",
        "--delta", "1e-4", "--steps", "2", "--out", "r",
    )  # fmt: skip
    assert message == (
        "sc: its network takes 324 features, but large has 729; use records of the same shape, or carry it over with dpltm"
        " tickets transfer"
    )


@pytest.mark.usefixtures("work")
def test_networks_that_cannot_stand_in_front(cli, turned_away):
    quick = ("--steps", "2", "--noise-multiplier", "2", "--quiet")
    cli("train", "--dense", "--model", "mlp", *A, *quick, "--out", "flat")
    assert turned_away(*DENSE, "--features", "network:flat") == (
        "--features: the network of flat is one layer, with nothing in front of it to take"
    )
    cli("train", "sc@1", *A[:3], "0.5:0.7", *quick, "--out", "behind")
    assert turned_away(*DENSE, "--features", "network:behind") == (
        "--features: behind stands behind scatter:2,8 features itself; take a run on records as they are"
    )
    config = json.loads(Path("net/config.json").read_text())
    for bad in (None, {}, "digits", {"name": "digits"}):
        Path("net/config.json").write_text(json.dumps({**config, "records": bad}))
        assert turned_away(*DENSE, "--features", "network:net") == (
            "--features: net: its config.json does not say what it was trained on"
        )
    Path("net/config.json").write_text(json.dumps(config))
    header = Path("net/ledger.jsonl").read_text().splitlines()[0]
    Path("net/ledger.jsonl").write_text(header + "\n")
    assert turned_away(*DENSE, "--features", "network:net") == (
        "--features: net: its ledger holds no training; it is incomplete, so nothing can be certified"
    )


@pytest.mark.usefixtures("pictures")
def test_a_network_for_records_of_another_shape(turned_away):
    message = turned_away("train", *LITTLE, *OWN, "--features", "network:net", "--out", "r")
    assert message == (
        "--features: the network takes 64 features, but the records have 81; take one that was trained on records of the"
        " same shape"
    )


@pytest.mark.usefixtures("work")
def test_a_table_is_no_image(turned_away):
    draw = np.random.default_rng(0)
    write("table.npz", draw.random((300, 6)), draw.integers(0, 2, 300))
    message = turned_away(
        "train",
        *LITTLE,
        "--dataset",
        "table.npz",
        "--bounds",
        "0,1",
        "--classes",
        "2",
        "--features",
        "scatter",
        "--out",
        "r",
    )
    assert message == (
        "--features: scatter takes images, (height, width) or (height, width, colours), and a record here is of shape"
        " (6,); take unit"
    )


def test_records_known_to_be_no_images(turned_away, data_home):  # noqa: ARG001 - there are some
    message = turned_away(*DENSE[:4], "--dataset", "a9a", "--features", "scatter", *DENSE[8:])
    assert message == "--features: a9a holds vectors of shape (123,), not images; take --features unit"


@pytest.mark.usefixtures("work")
def test_a_cache_that_cannot_be_written_spends_nothing(turned_away, monkeypatch, tmp_path):
    (tmp_path / "no-folder").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "no-folder"))
    message = (
        f"{tmp_path}/no-folder/dpltm/features: features cannot be kept there: Not a directory; make room, or point"
        " XDG_CACHE_HOME elsewhere"
    )
    assert turned_away("train", "sc@1", *B, "--epsilon", "1", "--steps", "2", "--out", "r") == message
    assert turned_away("select", "sc", *B, "--eps1", "0.1") == message
    assert turned_away(*DENSE, "--features", "scatter") == message


@pytest.mark.usefixtures("work")
def test_a_run_behind_features_is_not_compacted(cli, turned_away):
    cli("train", "sc@2", *B, "--epsilon", "3", "--steps", "2", "--out", "r", "--quiet")
    Path("r").rename("behind")
    message = turned_away("tickets", "compact", "behind", "--out", "small")
    assert message == (
        "behind: its network stands behind scatter:2,8 features, which a folder without dpltm cannot compute; compact"
        " SET@ROUND instead, and train that"
    )
