"""Of a file of one's own, a guarantee for single records says that a person may have several."""

from __future__ import annotations

import numpy as np
import pytest

NOTE = (
    "the guarantee is for one record (row): a person with k rows has up to k times the epsilon, at a larger delta; give one"
    " row a person where people are to be protected"
)
OWN = ("--dataset", "visits.npz", "--bounds", "0,16", "--records", "300", "--classes", "10")
SHORT = ("--steps", "2", "--batch-size", "30")
TINY = ("--model", "mlp:8", "--rounds", "1", "--prune", "0.3", "--iterations", "3", "--batch-size", "30")


@pytest.fixture(autouse=True)
def _visits(cwd):
    rng = np.random.default_rng(3)
    x, y = rng.integers(0, 17, (340, 8, 8), dtype=np.uint8), np.arange(340) % 10
    np.savez(cwd / "visits.npz", x_train=x[:300], y_train=y[:300], x_test=x[300:], y_test=y[300:])


def notes(done) -> list[str]:
    return done.json["privacy"]["notes"]


@pytest.mark.parametrize(
    "command",
    [
        ("train", "pub@1", *OWN, *SHORT, "--epsilon", "1", "--out", "r"),
        ("train", "pub@1", *OWN, *SHORT, "--epsilon", "1", "--dry-run"),
        ("train", "--dense", *OWN, *SHORT, "--epsilon", "1", "--out", "r"),
        ("select", "pub", *OWN, "--eps1", "0.5"),
        ("select", "pub", *OWN, "--eps1", "0.5", "--dry-run"),
        ("generate", *OWN, *TINY, "--provenance", "private", "--out", "s"),
        ("generate", *OWN, *TINY, "--criterion", "dp-train", "--epsilon", "1", "--out", "s"),
        ("generate", *OWN, *TINY, "--criterion", "dp-train", "--epsilon", "1", "--dry-run"),
    ],
)
def test_it_is_said_once_wherever_something_is_guaranteed(cli, command):
    assert notes(cli(*command, "--json")).count(NOTE) == 1


def test_it_is_said_of_messages_too(cli):
    scheme = ("--public", "digits", "--features", "unit", "--epsilon", "4", "--out", "s.scheme")
    assert cli("latent", "scheme", *scheme).code == 0
    sent = cli("latent", "encode", "s.scheme", *OWN, "--out", "m", "--json")
    assert notes(sent).count(NOTE) == 1


def test_it_is_not_said_where_nothing_is_guaranteed(cli):
    made = cli("generate", *OWN, *TINY, "--provenance", "public", "--out", "s", "--json")
    assert NOTE not in notes(made)
    moved = cli("tickets", "transfer", "pub", *OWN, "--out", "t", "--json").json
    assert NOTE not in moved["notes"]


def test_it_is_not_said_of_a_known_dataset(cli):
    private = ("--dataset", "digits", "--subset", "0.5:1.0")
    assert NOTE not in notes(cli("train", "pub@1", *private, *SHORT, "--epsilon", "1", "--out", "r", "--json"))


def test_a_file_with_the_name_of_a_known_dataset_is_a_file_all_the_same(cli, cwd):
    rng = np.random.default_rng(3)
    np.savez(cwd / "mnist.npz", x_train=rng.integers(0, 17, (300, 8, 8), dtype=np.uint8), y_train=np.arange(300) % 10)
    own = ("--dataset", "mnist.npz", *OWN[2:])
    assert notes(cli("train", "pub@1", *own, *SHORT, "--epsilon", "1", "--out", "r", "--json")).count(NOTE) == 1


def test_of_ratings_it_is_said_in_their_words(cli):
    ratings = ("--dataset", "movielens-small", "--model", "ncf", *SHORT, "--noise-multiplier", "1")
    said = notes(cli("train", "--dense", *ratings, "--out", "r", "--json"))
    assert NOTE not in said
    assert sum("one rating, not for one person" in note for note in said) == 1
    users = notes(cli("train", "--dense", *ratings, "--unit", "user", "--out", "u", "--json"))
    assert not [note for note in users if "one row" in note or "one rating, not" in note]
