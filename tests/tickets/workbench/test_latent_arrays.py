"""LATENT on arrays, without a file: what owners agree on and enter, and what a server learns from messages.

Claims stand beside what holds (privacy-model.md 6).
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from dpltm.errors import BudgetError
from dpltm.local.latent import EncodeRequest, EpsilonRequest, SchemeOptions, TrainRequest
from dpltm.local.scheme import Scheme
from dpltm.networks import ModelSpec, build
from dpltm.privacy.accountant import epsilon
from dpltm.privacy.entry import Entry, Lineage, Part
from dpltm.privacy.ledger import Ledger
from dpltm.privacy.mechanisms import Guarantee, NoisySgd, over_two_steps
from dpltm.privacy.release import Paid, pay, price
from dpltm.privacy.statement import statement
from dpltm.pruning.generation import shuffled_batches
from dpltm.randomness.noise import FastSource, KeyedSource
from dpltm.records import Dataset, from_arrays
from dpltm.tickets.workbench import latent
from dpltm.tickets.workbench.latent import Learned, encoding, learn, make_scheme, messages_of_one
from maps import make_feature_map
from opened import arrays_of
from refusals import refused

X, Y = load_digits().images.astype(np.uint8), load_digits().target
BITS = SchemeOptions(public="digits", features="unit", protocol="rappor", epsilon=128.0, label_epsilon="4")


def digits(start: int, stop: int, name: str = "mine", **facts: Any) -> Dataset:
    return from_arrays(X[start:stop], Y[start:stop], name=name, **facts)


SEND = EncodeRequest(scheme="s", dataset="d", out="m")

PUBLIC, PRIVATE = digits(0, 700, "theirs"), digits(900, 1797)
TESTED = from_arrays(X[:400], Y[:400], test=(X[400:700], Y[400:700]), name="pub")


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


def agreed(ledger: Ledger | None = None, public: Dataset = PUBLIC, **changes: Any) -> Scheme:
    return make_scheme(public, replace(BITS, **changes), Ledger() if ledger is None else ledger)


@pytest.fixture(scope="module")
def scheme() -> Scheme:
    return agreed()


# --- the scheme ---

REFUSED: dict[str, dict[str, Any]] = {
    "`label_epsilon`: 'x' is not what the response that sends the label may spend": {"label_epsilon": "x"},
    "`label_epsilon`: 'nan' is not": {"label_epsilon": "nan"},
    "`label_epsilon` is missing": {"label_epsilon": None},
    "`alpha`: of bits; a codebook": {"protocol": "codebook", "alpha": 7.0, "label_epsilon": None},
    "`label_epsilon`: of bits; a codebook": {"protocol": "codebook"},
    "`format`: 'nonsense' is not a list of numbers separated by commas": {"format": "nonsense"},
    "`format`: '1e400,1' is not of the form WHOLE,FRACTION, such as 4,5": {"format": "1e400,1"},
    "`format`: 9,9 is not two numbers of bits, from 0 to 15 together, such as 4,5": {"format": "9,9"},
    "`features`: none leaves values as they are, whose scale differs; take unit": {"features": "none"},
}


@pytest.mark.parametrize("message", REFUSED)
def test_schemes_that_cannot_be(message: str) -> None:
    assert refused(latent.answer_of, replace(BITS, **REFUSED[message])).startswith(message)


def test_a_scheme_is_of_public_records_alone(ledger: Ledger) -> None:
    made = agreed(ledger, format="1,2")
    assert (made.answer.values, made.answer.channel.bits, made.answer.record_bytes) == (64, 256, 34)
    assert made.answer.nominal == 132
    assert made.answer.certified == pytest.approx(132)
    (entry,) = ledger.entries
    assert (entry.kind, entry.part, made.lineage.entries) == ("public", ledger.part(PUBLIC), (entry,))
    assert made.id == agreed(ledger, format="1,2").id
    assert ledger.entries == (entry,), "declared once"


def test_statistics_of_channels_are_those_of_the_public_records(ledger: Ledger) -> None:
    scheme = agreed(ledger, features="scatter:1,2")
    (declared,) = ledger.entries
    assert (declared.kind, declared.part) == ("public", ledger.part(PUBLIC))
    assert scheme.feature_map.lineage == scheme.lineage == ledger.lineage(declared)
    plain = make_feature_map("scatter:1,2", (8, 8), PUBLIC.bounds)
    channels = plain.transformed(arrays_of(PUBLIC.train).x).double().numpy()
    np.testing.assert_allclose(scheme.feature_map.statistics.mean, channels.mean((0, 2, 3)), atol=1e-6)
    np.testing.assert_allclose(scheme.feature_map.statistics.deviation, channels.std((0, 2, 3)), rtol=1e-3)


def test_records_that_a_release_protects_cannot_be_public(ledger: Ledger) -> None:
    ledger.declare(Entry("release", ledger.part(PUBLIC), (NoisySgd(0.5, 2, 2.0),), "a training"))
    assert "`dataset`: theirs is protected by a release on record" in refused(agreed, ledger)
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


def test_the_entry_precedes_the_first_coin(scheme: Scheme, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Coins follow from the secret of the release alone."""
    entered: list[int] = []

    class Watched(KeyedSource):
        def random_bytes(self, count: int) -> bytes:
            entered.append(len(ledger.entries))
            return super().random_bytes(count)

    monkeypatch.setattr(latent, "KeyedSource", Watched)
    sent(scheme, ledger)
    assert set(entered) == {1}


def test_labels_declared_public_are_said_to_be(ledger: Ledger) -> None:
    scheme = agreed(label_epsilon="public", format="0,1")
    account = price(encoding(scheme, PRIVATE, SEND, ledger), ledger.book)
    assert "labels are sent as they are: declared public, and not counted" in scheme.notes
    assert account.epsilon(1e-5) == pytest.approx(128)
    assert sent(scheme, ledger)[:, -2].tolist() == arrays_of(PRIVATE.train).y.tolist()
    assert ledger.entries[0].words == "one message of each record by rappor, labels declared public"


def test_a_release_behind_the_public_records_counts_as_two_steps(ledger: Ledger) -> None:
    """A training is stated for add-remove, and messages for replace-one; whether it was by this ledger or another."""
    training = NoisySgd(0.5, 2, 2.0)
    (entry,) = ledger.declare(Entry("release", ledger.part(PRIVATE), (training,), "a training"))
    scheme = agreed(ledger)
    scheme = replace(scheme, lineage=scheme.lineage | ledger.lineage(entry))
    both = (over_two_steps(training), Guarantee(scheme.answer.certified, adjacency="replace-one"))
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
    assert "above the budget" in refused(paid, scheme, ledger, few, augment=0, kind=BudgetError)
    vectors = from_arrays(X[900:].reshape(-1, 64), Y[900:], name="vectors")
    flat = make_scheme(from_arrays(X[:700].reshape(-1, 64), Y[:700], name="flat"), BITS, Ledger())
    message = "`augment`: moves images, and a record here is of shape (64,); leave it out"
    assert refused(encoding, flat, vectors, replace(SEND, augment=1), ledger) == message
    assert len(ledger.entries) == 2, "nothing more is entered"


def test_records_that_are_not_what_was_agreed_on(scheme: Scheme, ledger: Ledger) -> None:
    for facts, message in (
        ({"bounds": (0.0, 16.0)}, "`bounds`: (0.0, 16.0) of mine is not the scheme's (0.0, 255.0)"),
        ({"classes": 11}, "`classes`: 11 of mine is not the scheme's 10; take records like those it is of"),
    ):
        assert refused(encoding, scheme, digits(900, 1797, **facts), SEND, ledger).startswith(message)


# --- what a server learns ---

QUICK = TrainRequest(scheme="s", messages="m", out="r", model="mlp:8", epochs=1.0, threads=1)


@pytest.fixture(scope="module")
def strong() -> Scheme:
    """Of bits of which few are flipped, made from records with a test split."""
    return strongly()


def strongly(**changes: Any) -> Scheme:
    return agreed(public=TESTED, **{"epsilon": 192.0, "label_epsilon": "5", **changes})


def messages(strong: Scheme, start: int, stop: int) -> np.ndarray:
    return np.concatenate(list(strong.messages(X[start:stop], Y[start:stop], FastSource(start))))


@pytest.fixture(scope="module")
def files(strong: Scheme) -> list[np.ndarray]:
    """Of two owners: 1,097 messages."""
    return [messages(strong, 700, 1300), messages(strong, 1300, 1797)]


def learned(strong: Scheme, files: list[np.ndarray], test: Dataset | None = None, **changes: Any) -> Learned:
    return learn(strong, files, replace(QUICK, **changes), test)


def test_next_to_nothing_is_learned_where_next_to_nothing_was_sent() -> None:
    """Epsilon 0.1 for 64 bits and 0.1 for the label; chance is 0.1, and six deviations of 300 draws are 0.1."""
    weak = strongly(epsilon=0.1, label_epsilon="0.1")
    found = learned(weak, [messages(weak, 700, 1797)], TESTED, model="mlp:32", epochs=5.0, lr=0.1)
    assert (found.facts["randomised"] or 1.0) < 0.2 + 0.1
    assert (found.facts["accuracy"] or 1.0) < 0.4


@pytest.mark.parametrize("optimizer", ["sgd", "adadelta", "adam"])
@pytest.mark.parametrize("inputs", ["means", "bits"])
def test_optimizers_have_their_own_steps(strong: Scheme, files: list[np.ndarray], optimizer: str, inputs: str) -> None:
    """Signs of 64 pixels, of which few are flipped; chance is a tenth. More in training, where coins are known by heart."""
    changes: dict[str, Any] = {"optimizer": optimizer, "inputs": inputs, "model": "mlp:32"}
    facts = learned(strong, files, TESTED, **changes, epochs=30.0).facts
    assert facts["randomised"] > 0.3
    assert facts["training"] > 0.3


def test_public_records_keep_labels(strong: Scheme, files: list[np.ndarray], monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels of messages are randomised; those that predictions are compared with are not."""
    seen, whole = [], latent.accuracy

    def watched(model: Any, x: Any, y: Any, chunk: int) -> float:
        seen.append((x[0:300], y))
        return whole(model, x, y, chunk)

    monkeypatch.setattr(latent, "accuracy", watched)
    learned(strong, files, TESTED)
    (noisy, same), _, (plain, labels) = seen  # after the epoch; of the messages themselves; and as they are
    assert labels.tolist() == same.tolist() == Y[400:700].tolist()
    assert not torch.equal(plain.sign(), noisy.sign()), "bits are randomised"
    p = math.exp(3) / (1 + math.exp(3))  # an input that is certain is (p - q)^-1 times one that is randomised
    torch.testing.assert_close(noisy.abs(), torch.ones(300, 64), rtol=1e-5, atol=0)
    torch.testing.assert_close(plain.abs(), torch.full((300, 64), 1 / (2 * p - 1)), rtol=1e-5, atol=0)


def test_epochs_count_messages(strong: Scheme, files: list[np.ndarray], monkeypatch: pytest.MonkeyPatch) -> None:
    """1,097 messages, 100 a step: ten epochs are 110 steps, and a thousandth of one is a step nevertheless.

    Accuracy is measured after ten epochs at most.
    """
    steps: list[int] = []
    monkeypatch.setattr(latent, "train_plain", lambda *arguments: steps.append(arguments[4]))
    for epochs, taken, noted in ((9.0, 99, 10), (0.001, 1, 1), (10.0, 110, 6)):
        steps.clear()
        metrics = learned(strong, files, TESTED, batch_size=100, epochs=epochs).metrics
        assert (sum(steps), len(metrics), metrics[-1]["step"]) == (taken, noted, taken)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_training_is_that_of_an_independent_loop(strong: Scheme, files: list[np.ndarray], optimizer: str) -> None:
    """Of bits as they arrived (LATENT, III-A9), with inputs of the last layer left out, over epochs after each of which
    accuracy is measured."""
    options = {"inputs": "bits", "optimizer": optimizer, "dropout": 0.4, "epochs": 3.0, "lr": 0.05, "batch_size": 100}
    found = learned(strong, files, TESTED, **options)
    assert found.facts["randomised"] == found.metrics[-1]["accuracy"], "the last one"
    rows, model = np.concatenate(files), build(ModelSpec("mlp:8", 64, 10), 0)
    x, y = torch.from_numpy(np.unpackbits(rows[:, :-2], axis=1)).float(), torch.from_numpy(strong.answer.labels(rows))
    batches, (first, last) = shuffled_batches(1097, 100, torch.Generator().manual_seed(2**32)), (model.fc1, model.fc2)
    steps = (torch.optim.SGD if optimizer == "sgd" else torch.optim.Adam)(model.parameters(), 0.05)
    torch.manual_seed(2**33)
    for _ in range(33):
        index = next(batches)
        steps.zero_grad()
        hidden = torch.nn.functional.dropout(first(x[index]).relu(), 0.4)
        torch.nn.functional.cross_entropy(last(hidden), y[index]).backward()
        steps.step()
    for mine, value in zip(found.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(mine, value, rtol=1e-4, atol=1e-5)


def test_a_codebook_makes_a_linear_network() -> None:
    code = strongly(protocol="codebook", epsilon=8.0, label_epsilon=None)
    found = learned(code, [messages(code, 700, 1797)], TESTED, model=None)
    assert found.spec.text == "mlp"
    assert (found.facts["accuracy"] or 0.0) > 0.6
    assert found.facts["randomised"] is None
    for name, options in (("model", QUICK), ("inputs", replace(QUICK, model=None, inputs="means"))):
        message = refused(learn, code, [messages(code, 700, 800)], options)
        assert message == f"`{name}`: of bits; a codebook sends one index, and makes a linear network; leave it out"


DIVERGED: dict[str, dict[str, Any]] = {
    "`batch_size`: 1098 is not from 1 to 1097, the messages at hand": {"batch_size": 1098},
    "`lr`: the training diverged": {"lr": 1e30},
}


@pytest.mark.parametrize("message", DIVERGED)
def test_options_that_cannot_be(strong: Scheme, files: list[np.ndarray], message: str) -> None:
    assert refused(learned, strong, files, **DIVERGED[message]).startswith(message)


def test_test_records_are_of_the_same_kind(strong: Scheme, files: list) -> None:
    few = from_arrays(X[:400], Y[:400] % 5, test=(X[400:700], Y[400:700] % 5), name="few")
    for test, message in (
        (few, "`classes`: 5 of few is not the scheme's 10; take records like those it is of"),
        (from_arrays(X, Y, name="none"), "`test`: none has no test split; name a dataset that has one"),
    ):
        assert refused(learn, strong, files, QUICK, test) == message


def sent_of(ledger: Ledger, *parts: Part) -> Lineage:
    message = (Guarantee(2.0, adjacency="replace-one"),)
    return ledger.lineage(*ledger.declare(*(Entry("local", part, message) for part in parts)))


def test_messages_of_one_record_are_counted_by_its_ledger() -> None:
    first, second, wider = (Part("mine", "a" * 64, (), "place", *ends) for ends in ((0, 10), (10, 20), (5, 20)))
    assert messages_of_one(Lineage()) == 1
    assert messages_of_one(sent_of(Ledger(), first, second)) == 1
    assert messages_of_one(sent_of(Ledger(), first, second, wider)) == 2
    assert messages_of_one(sent_of(Ledger(), first, first) | sent_of(Ledger(), first, second, wider, wider)) == 3


# --- claims ---


def claim(**options: Any) -> dict[str, Any]:
    return latent.claim(EpsilonRequest(**options))


def test_one_hot_strings_are_worth_what_is_claimed_for_them() -> None:
    of_any, one_hot = (claim(protocol="oue", bits=10, epsilon=2.0, one_hot=one) for one in (False, True))
    assert one_hot["certified"] == pytest.approx(2)
    assert of_any["certified"] == pytest.approx(10 * -math.log(2 / (1 + math.exp(2))), rel=1e-9)
    assert any("`one_hot`" in note for note in of_any["notes"])
    assert not any("`one_hot`" in note for note in one_hot["notes"])


def test_labels_and_copies_add_up() -> None:
    found = claim(protocol="rappor", bits=30, epsilon=1.0, label_epsilon=2.0, copies=3)
    assert found["certified"] == pytest.approx(3 * (1 + 2))  # as three encodings in one ledger
    assert found["nominal"] == 3
