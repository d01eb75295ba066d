"""What owners agree on and what they enter, on arrays: no file, no command line."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from dpltm.errors import BudgetError, InputError
from dpltm.features.feature_map import make_feature_map
from dpltm.local.latent import EncodeRequest, SchemeOptions
from dpltm.local.scheme import Scheme
from dpltm.privacy.entry import Entry
from dpltm.privacy.ledger import Ledger
from dpltm.privacy.mechanisms import Guarantee, NoisySgd, over_two_steps
from dpltm.privacy.release import Paid, pay, price
from dpltm.privacy.statement import statement
from dpltm.randomness.noise import KeyedSource
from dpltm.records import Dataset, from_arrays
from dpltm.tickets.workbench import latent
from dpltm.tickets.workbench.latent import (
    answer_of,
    encoding,
    encoding_notes,
    make_scheme,
    messages_of_one,
)
from opened import arrays_of
from refusals import refused

X, Y = load_digits().images.astype(np.uint8), load_digits().target
BITS = SchemeOptions(public="digits", features="unit", protocol="rappor", epsilon=128.0, label_epsilon="4")


def digits(start: int, stop: int, name: str = "mine", **facts: Any) -> Dataset:
    return from_arrays(X[start:stop], Y[start:stop], name=name, **facts)


SEND = EncodeRequest(scheme="s", dataset="d", out="m")

PUBLIC, PRIVATE = digits(0, 700, "theirs"), digits(900, 1797)


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


def agreed(ledger: Ledger | None = None, **changes: Any) -> Scheme:
    ledger = Ledger() if ledger is None else ledger
    return make_scheme(PUBLIC, replace(BITS, **changes), ledger)


@pytest.fixture(scope="module")
def scheme() -> Scheme:
    return agreed()


def z_scores() -> np.ndarray:
    """Of the private records by the statistics of the public ones, all in float64, by hand."""

    def features(x: np.ndarray) -> np.ndarray:
        flat = x.reshape(len(x), -1) / 127.5 - 1
        flat = flat - flat.mean(1, keepdims=True)
        return 8 * flat / np.linalg.norm(flat, axis=1, keepdims=True)

    public, mine = features(arrays_of(PUBLIC.train).x), features(arrays_of(PRIVATE.train).x)
    deviation = public.std(0)
    return (mine - public.mean(0)) / np.maximum(deviation, 1e-3 * deviation.max())


# --- the scheme ---

REFUSED: dict[str, dict[str, Any]] = {
    "`label_epsilon`: 'x' is neither a number nor public": {"label_epsilon": "x"},
    "`label_epsilon`: nan is not a positive number": {"label_epsilon": "nan"},
    "`label_epsilon` is missing: ": {"label_epsilon": None},
    "`alpha`: of bits; a codebook has one epsilon for the whole record": {
        "protocol": "codebook",
        "alpha": 7.0,
        "label_epsilon": None,
    },
    "`label_epsilon`: of bits; a codebook has one epsilon": {"protocol": "codebook"},
    "`format`: 'nonsense' is not a list of numbers separated by commas": {"format": "nonsense"},
    "`format`: '1e400,1' is not of the form WHOLE,FRACTION, such as 4,5": {"format": "1e400,1"},
    "`format`: 9,9 is not two numbers of bits, from 0 to 15 together, such as 4,5": {"format": "9,9"},
    "`features`: none leaves values as they are, whose scale differs; take unit": {"features": "none"},
}


@pytest.mark.parametrize("message", REFUSED)
def test_schemes_that_cannot_be(message: str) -> None:
    assert refused(answer_of, replace(BITS, **REFUSED[message])).startswith(message)


def test_a_scheme_is_of_public_records_alone(ledger: Ledger) -> None:
    made = agreed(ledger, format="1,2")
    assert (made.answer.values, made.answer.channel.bits, made.answer.record_bytes) == (64, 256, 34)
    assert made.answer.nominal == 132
    assert made.answer.certified == pytest.approx(132)
    (entry,) = ledger.entries
    assert (entry.kind, entry.part, made.lineage.entries) == ("public", ledger.part(PUBLIC), (entry,))
    assert made.id == agreed(ledger, format="1,2").id
    assert ledger.entries == (entry,), "declared once"


def test_records_that_a_release_protects_cannot_be_public(ledger: Ledger) -> None:
    ledger.declare(Entry("release", ledger.part(PUBLIC), (NoisySgd(0.5, 2, 2.0),), "a training"))
    with pytest.raises(InputError, match="`dataset`: theirs is protected by a release on record"):
        agreed(ledger)
    assert len(ledger.entries) == 1


# --- what is entered ---


def paid(scheme: Scheme, ledger: Ledger, dataset: Dataset = PRIVATE, **options: Any) -> Paid[Iterator[np.ndarray]]:
    plan = encoding(scheme, dataset, replace(SEND, **options), ledger)
    return pay(lambda *_: plan, ledger)


def rows_of(release: Paid[Iterator[np.ndarray]]) -> np.ndarray:
    (blocks,) = release.values
    return np.concatenate(list(blocks))


def sent(scheme: Scheme, ledger: Ledger) -> np.ndarray:
    return rows_of(paid(scheme, ledger))


def test_a_release_is_entered_and_counted(scheme: Scheme, ledger: Ledger) -> None:
    plan = encoding(scheme, PRIVATE, SEND, ledger)
    assert price(plan, ledger.book).epsilon(1e-5) == pytest.approx(132)
    assert ledger.entries == (), "a plan spends nothing"
    first = paid(scheme, ledger)
    assert (first.entry.kind, first.entry.unit, first.entry.part) == ("local", "record", ledger.part(PRIVATE))
    assert first.entry.mechanisms == (Guarantee(scheme.answer.certified, adjacency="replace-one"),)
    assert ledger.entries == (first.entry,)
    assert first.lineage.entries == (*scheme.lineage.entries, first.entry)
    certified = statement(first.account, 1e-5).certified
    assert certified.epsilon == pytest.approx(132)
    assert (certified.adjacency, certified.sampling, certified.unit) == ("replace-one", "none", "record")
    rows = rows_of(first)
    assert rows.shape == (897, 10)
    again = paid(scheme, ledger)
    assert again.account.epsilon(1e-5) == pytest.approx(264)
    assert not np.array_equal(rows_of(again), rows), "coins of its own"
    assert len(ledger.entries) == 2


def test_the_entry_is_on_record_before_the_first_coin(
    scheme: Scheme, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Coins follow from the secret of the release alone."""
    entered: list[int] = []

    class Watched(KeyedSource):
        def random_bytes(self, count: int) -> bytes:
            entered.append(len(ledger.entries))
            return super().random_bytes(count)

    monkeypatch.setattr(latent, "KeyedSource", Watched)
    sent(scheme, ledger)
    assert set(entered) == {1}


def test_bits_and_labels_are_randomised_as_much_as_was_agreed_on(ledger: Ledger) -> None:
    """Shares of 57,408 signs and 897 labels, each within six deviations; the coins are fresh."""
    scheme = agreed(epsilon=64.0, label_epsilon="0.5")
    rows = sent(scheme, ledger)
    scores = z_scores()
    sure = np.abs(scores) > 1e-3  # rounding cannot turn these round
    kept = (np.unpackbits(rows[:, :8], axis=1) == (scores < 0))[sure]
    chance = math.e / (1 + math.e)
    assert abs(kept.mean() - chance) < 6 * math.sqrt(chance * (1 - chance) / kept.size)
    labels = rows[:, 8].astype(int) + 256 * rows[:, 9].astype(int)
    assert labels.max() < 10
    truth = math.exp(0.5) / (math.exp(0.5) + 9)
    assert abs((labels == arrays_of(PRIVATE.train).y).mean() - truth) < 6 * math.sqrt(truth * (1 - truth) / 897)


def test_labels_declared_public_are_said_to_be(ledger: Ledger) -> None:
    scheme = agreed(label_epsilon="public", format="0,1")
    account = price(encoding(scheme, PRIVATE, SEND, ledger), ledger.book)
    assert "labels are sent as they are: declared public, and not counted" in encoding_notes(scheme, PRIVATE)
    assert account.epsilon(1e-5) == pytest.approx(128)
    assert sent(scheme, ledger)[:, -2].tolist() == arrays_of(PRIVATE.train).y.tolist()
    assert ledger.entries[0].words == "one message of each record by rappor, labels declared public"


def test_statistics_of_channels_are_those_of_the_public_records() -> None:
    """Of all 700 public images, which are declared."""
    ledger, plain = Ledger(), make_feature_map("scatter:1,2", (8, 8), PUBLIC.bounds)
    scheme = agreed(ledger, features="scatter:1,2")
    (said,) = ledger.entries
    assert (said.kind, said.part) == ("public", ledger.part(PUBLIC))
    assert scheme.feature_map.lineage == scheme.lineage == ledger.lineage(said)
    channels = plain.transformed(arrays_of(PUBLIC.train).x).double().numpy()
    np.testing.assert_allclose(scheme.feature_map.statistics.mean, channels.mean((0, 2, 3)), atol=1e-6)
    np.testing.assert_allclose(scheme.feature_map.statistics.deviation, channels.std((0, 2, 3)), rtol=1e-3)


def test_a_release_behind_the_public_records_counts_as_two_steps(ledger: Ledger) -> None:
    """A training is stated for add-remove, and messages for replace-one; whether it was by this ledger or another."""
    training = NoisySgd(0.5, 2, 2.0)
    (entry,) = ledger.declare(Entry("release", ledger.part(PRIVATE), (training,), "a training"))
    scheme = agreed(ledger)
    scheme = replace(scheme, lineage=scheme.lineage | ledger.lineage(entry))
    both = (over_two_steps(training), Guarantee(scheme.answer.certified, adjacency="replace-one"))
    from dpltm.privacy.accountant import epsilon

    for other in (ledger, Ledger()):
        account = paid(scheme, other).account
        assert account.adjacency == "replace-one"
        assert account.epsilon(1e-5) == pytest.approx(epsilon(both, 1e-5), rel=1e-9)


# --- what is refused, with nothing entered ---


@pytest.mark.parametrize("epsilon", [0.96, 4.0])
def test_a_budget_of_that_epsilon_has_room_for_one_message(ledger: Ledger, epsilon: float) -> None:
    scheme = agreed(protocol="codebook", epsilon=epsilon, label_epsilon=None)
    ledger.declare(Entry("budget", mechanisms=(Guarantee(epsilon, 1e-5),)))
    paid(scheme, ledger)
    with pytest.raises(BudgetError, match=f"epsilon {2 * epsilon:g} at delta 1e-05, above the budget of {epsilon:g}"):
        paid(scheme, ledger)
    assert len(ledger.entries) == 2


def test_augmented_images_are_messages_more_and_add_up(scheme: Scheme, ledger: Ledger) -> None:
    """Of each image itself first, then of others that are made of it: one guarantee each, in one entry."""
    few, budget = digits(900, 1000), Guarantee(3.5 * 132, 1e-5, adjacency="replace-one")
    ledger.declare(Entry("budget", ledger.part(few), (budget,)))
    first = paid(scheme, ledger, few, augment=2)
    assert first.entry.mechanisms == 3 * (Guarantee(scheme.answer.certified, adjacency="replace-one"),)
    assert first.account.epsilon(1e-5) == pytest.approx(3 * 132)
    assert messages_of_one(first.lineage) == 3
    rows = rows_of(first)
    assert rows.shape == (300, 10)
    flipped = np.unpackbits(rows[:100, :8] ^ scheme.answer.form.encode(scheme.scores(arrays_of(few.train).x)))
    varied = np.unpackbits(rows[100:200, :8] ^ rows[:100, :8])
    assert varied.mean() > 2 * flipped.mean(), "another image, not only other coins"
    with pytest.raises(BudgetError, match="above the budget"):
        paid(scheme, ledger, few, augment=0)
    vectors = from_arrays(X[900:].reshape(-1, 64), Y[900:], name="vectors")
    flat = make_scheme(from_arrays(X[:700].reshape(-1, 64), Y[:700], name="flat"), BITS, Ledger())
    message = "`augment`: moves images, and a record here is of shape (64,); leave it out"
    assert refused(encoding, flat, vectors, replace(SEND, augment=1), ledger) == message
    assert len(ledger.entries) == 2, "nothing more is entered"


def test_records_that_are_not_what_was_agreed_on(scheme: Scheme, ledger: Ledger) -> None:
    for facts, message in (
        (
            {"bounds": (0.0, 16.0)},
            "`bounds`: mine has bounds (0.0, 16.0), and the scheme was made for (0.0, 255.0); take records like those",
        ),
        ({"classes": 11}, "`classes`: mine has classes 11, and the scheme was made for 10; take records like those"),
    ):
        assert refused(encoding, scheme, digits(900, 1797, **facts), SEND, ledger) == message
