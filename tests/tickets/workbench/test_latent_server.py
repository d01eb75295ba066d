"""What a server learns from messages, on arrays; and claims beside what holds (privacy-model.md 6)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from dpltm.errors import InputError
from dpltm.local.latent import EpsilonRequest, SchemeOptions, TrainRequest
from dpltm.local.scheme import Scheme
from dpltm.networks import ModelSpec, build
from dpltm.privacy.entry import Entry, Lineage, Part
from dpltm.privacy.ledger import Ledger
from dpltm.privacy.mechanisms import Guarantee
from dpltm.pruning.generation import Batches
from dpltm.randomness.noise import FastSource
from dpltm.records import Dataset, from_arrays
from dpltm.tickets.workbench import latent
from dpltm.tickets.workbench.latent import Learned, learn, make_scheme, messages_of_one
from dpltm.tickets.workbench.latent import claim as local_claim
from refusals import refused

X, Y = load_digits().images.astype(np.uint8), load_digits().target
PUBLIC = from_arrays(X[:400], Y[:400], test=(X[400:700], Y[400:700]), name="pub")
QUICK = TrainRequest(scheme="s", messages="m", out="r", model="mlp:8", epochs=1.0, threads=1)


def agreed(**changes: Any) -> Scheme:
    options = SchemeOptions(public="digits", features="unit", protocol="rappor", epsilon=192.0, label_epsilon="5")
    return make_scheme(PUBLIC, replace(options, **changes), Ledger())


@pytest.fixture(scope="module")
def scheme() -> Scheme:
    return agreed()


def messages(scheme: Scheme, start: int, stop: int) -> np.ndarray:
    return np.concatenate(list(scheme.messages(X[start:stop], Y[start:stop], FastSource(start))))


@pytest.fixture(scope="module")
def files(scheme: Scheme) -> list[np.ndarray]:
    """Of two owners: 1,097 messages."""
    return [messages(scheme, 700, 1300), messages(scheme, 1300, 1797)]


def learned(scheme: Scheme, files: list[np.ndarray], test: Dataset | None = None, **changes: Any) -> Learned:
    return learn(scheme, files, replace(QUICK, **changes), test)


def test_next_to_nothing_is_learned_where_next_to_nothing_was_sent() -> None:
    """Epsilon 0.1 for 64 bits and 0.1 for the label; chance is 0.1, and six deviations of 300 draws are 0.1."""
    weak = agreed(epsilon=0.1, label_epsilon="0.1")
    found = learned(weak, [messages(weak, 700, 1797)], PUBLIC, model="mlp:32", epochs=5.0, lr=0.1)
    assert (found.facts["randomised"] or 1.0) < 0.2 + 0.1
    assert (found.facts["accuracy"] or 1.0) < 0.4


def test_epochs_count_messages(scheme: Scheme, files: list[np.ndarray], monkeypatch: pytest.MonkeyPatch) -> None:
    """1,097 messages, 100 a step: ten epochs are 110 steps, and a thousandth of one is a step nevertheless.

    Accuracy is measured after ten epochs at most.
    """
    steps: list[int] = []
    monkeypatch.setattr(latent, "train_plain", lambda *arguments: steps.append(arguments[4]))
    for epochs, taken, noted in ((9.0, 99, 10), (0.001, 1, 1), (10.0, 110, 6)):
        steps.clear()
        metrics = learned(scheme, files, PUBLIC, batch_size=100, epochs=epochs).metrics
        assert (sum(steps), len(metrics), metrics[-1]["step"]) == (taken, noted, taken)


def test_a_network_on_bits_sees_every_bit_as_it_arrived(
    scheme: Scheme, files: list[np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    """LATENT, III-A9; not what a bit stands for in the mean."""
    seen, whole = [], latent.train_plain

    def watched(model: Any, mask: Any, records: Any, *rest: Any) -> None:
        seen.append(records[0][:])
        whole(model, mask, records, *rest)

    monkeypatch.setattr(latent, "train_plain", watched)
    found = learned(scheme, files, PUBLIC, inputs="bits")
    bits = np.unpackbits(np.concatenate(files)[:, :-2], axis=1)
    np.testing.assert_array_equal(seen[0].numpy(), bits.astype("f4"))
    assert found.facts["randomised"] == found.metrics[-1]["accuracy"], "the last one"


@pytest.mark.parametrize("optimizer", ["sgd", "adadelta", "adam"])
@pytest.mark.parametrize("inputs", ["means", "bits"])
def test_every_optimizer_learns_by_its_own_step_size(
    scheme: Scheme, files: list[np.ndarray], optimizer: str, inputs: str
) -> None:
    """Signs of 64 pixels, of which few are flipped; chance is a tenth. More in training, where coins are known by heart."""
    changes: dict[str, Any] = {"optimizer": optimizer, "inputs": inputs, "model": "mlp:32"}
    facts = learned(scheme, files, PUBLIC, **changes, epochs=30.0).facts
    assert facts["randomised"] > 0.3
    assert facts["training"] > 0.3


def test_public_test_records_keep_their_labels(
    scheme: Scheme, files: list[np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Labels of messages are randomised; those that predictions are compared with are not."""
    seen, whole = [], latent.accuracy

    def watched(model: Any, x: Any, y: Any, chunk: int) -> float:
        seen.append((x[0:300], y))
        return whole(model, x, y, chunk)

    monkeypatch.setattr(latent, "accuracy", watched)
    learned(scheme, files, PUBLIC)
    (noisy, same), _, (plain, labels) = seen  # after the epoch; of the messages themselves; and as they are
    assert labels.tolist() == same.tolist() == Y[400:700].tolist()
    assert not torch.equal(plain.sign(), noisy.sign()), "bits are randomised"
    p = math.exp(3) / (1 + math.exp(3))  # an input that is certain is (p - q)^-1 times one that is randomised
    torch.testing.assert_close(noisy.abs(), torch.ones(300, 64), rtol=1e-5, atol=0)
    torch.testing.assert_close(plain.abs(), torch.full((300, 64), 1 / (2 * p - 1)), rtol=1e-5, atol=0)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_training_is_that_of_an_independent_loop(scheme: Scheme, files: list[np.ndarray], optimizer: str) -> None:
    """Of bits, with inputs of the last layer left out, over epochs after each of which accuracy is measured."""
    options = {"inputs": "bits", "optimizer": optimizer, "dropout": 0.4, "epochs": 3.0, "lr": 0.05, "batch_size": 100}
    found = learned(scheme, files, PUBLIC, **options)
    rows, model = np.concatenate(files), build(ModelSpec("mlp:8", 64, 10), 0)
    x, y = torch.from_numpy(np.unpackbits(rows[:, :-2], axis=1)).float(), torch.from_numpy(scheme.answer.labels(rows))
    batches, (first, last) = Batches(1097, 100, torch.Generator().manual_seed(2**32)), (model.fc1, model.fc2)
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
    code = agreed(protocol="codebook", epsilon=8.0, label_epsilon=None)
    found = learned(code, [messages(code, 700, 1797)], PUBLIC, model=None)
    assert found.spec.text == "mlp"
    assert (found.facts["accuracy"] or 0.0) > 0.6
    assert found.facts["randomised"] is None
    with pytest.raises(InputError, match="hence a linear network; leave it out"):
        learn(code, [messages(code, 700, 800)], QUICK)
    for inputs in ("bits", "means"):
        message = refused(learn, code, [messages(code, 700, 800)], replace(QUICK, model=None, inputs=inputs))
        assert message == "`inputs`: of bits; messages of a codebook are no bits, so leave it out"


REFUSED: dict[str, dict[str, Any]] = {
    "`batch_size`: 1098 is not from 1 to 1097, the messages at hand": {"batch_size": 1098},
    "`lr`: the training diverged": {"lr": 1e30},
}


@pytest.mark.parametrize("message", REFUSED)
def test_options_that_cannot_be(scheme: Scheme, files: list[np.ndarray], message: str) -> None:
    assert refused(learned, scheme, files, **REFUSED[message]).startswith(message)


def test_every_message_counts_once_and_test_records_are_of_the_same_kind(scheme: Scheme, files: list) -> None:
    assert refused(learn, scheme, [files[0], files[0]], QUICK).startswith("`messages`: two files hold the same")
    few = from_arrays(X[:400], Y[:400] % 5, test=(X[400:700], Y[400:700] % 5), name="few")
    for test, message in (
        (few, "`classes`: few has classes 5, and the scheme was made for 10; take records like those"),
        (from_arrays(X, Y, name="none"), "`test`: none has no test split; name a dataset that has one"),
    ):
        assert refused(learn, scheme, files, QUICK, test) == message


def sent(ledger: Ledger, *parts: Part) -> Lineage:
    message = (Guarantee(2.0, adjacency="replace-one"),)
    return ledger.lineage(*ledger.declare(*(Entry("local", part, message) for part in parts)))


def test_messages_of_one_record_are_counted_by_its_ledger() -> None:
    first, second, wider = (Part("mine", "a" * 64, (), "place", *ends) for ends in ((0, 10), (10, 20), (5, 20)))
    assert messages_of_one(Lineage()) == 1
    assert messages_of_one(sent(Ledger(), first, second)) == 1
    assert messages_of_one(sent(Ledger(), first, second, wider)) == 2
    assert messages_of_one(sent(Ledger(), first, first) | sent(Ledger(), first, second, wider, wider)) == 3


# --- claims ---


def claim(**options: Any) -> dict[str, Any]:
    return local_claim(EpsilonRequest(**options))


@pytest.mark.parametrize(
    ("options", "certified"),
    [({"protocol": "uer", "alpha": 7.0}, 262983.6), ({"protocol": "moue-hs", "alpha": 7.0}, 0.4375)],
)
def test_the_figures_of_the_paper_and_what_they_are_worth(options: dict[str, Any], certified: float) -> None:
    found = claim(**options, bits=92160, epsilon=0.5)
    assert (found["nominal"], found["certified"]) == (0.5, pytest.approx(certified, rel=1e-6))


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
