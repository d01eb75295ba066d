"""What owners agree on and what they enter, on arrays: no file, no command line."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from dpltm.errors import BudgetError, InputError
from dpltm.local.scheme import Scheme
from dpltm.networks import ModelSpec, build
from dpltm.options.latent import EncodeOptions, SchemeOptions
from dpltm.privacy.events import BudgetEvent, GaussianEvent, GuaranteeEvent, ProvenanceEvent, TrainingEvent
from dpltm.privacy.mechanisms import GaussianRelease, Guarantee, NoisySgd
from dpltm.privacy.old_ledger import Ledger
from dpltm.randomness.noise import SecureSource
from dpltm.records import Dataset, from_arrays
from dpltm.records.registry import RecordRegistry
from dpltm.stages.front import FeatureSources, TrainedNetwork
from dpltm.stages.latent_owner import encode, plan_encoding
from dpltm.stages.latent_scheme import check_scheme_options, make_scheme
from refusals import refused, refused_after_it_ran

X, Y = load_digits().images.astype(np.uint8), load_digits().target
BITS = SchemeOptions(features="unit", protocol="rappor", epsilon=128.0, label_epsilon="4")


def digits(start: int, stop: int, name: str = "mine", **facts: Any) -> Dataset:
    return from_arrays(X[start:stop], Y[start:stop], name=name, **facts)


PUBLIC, PRIVATE = digits(0, 700, "theirs"), digits(900, 1797)


@pytest.fixture
def registry() -> RecordRegistry:
    return RecordRegistry()


@pytest.fixture
def ledger(registry: RecordRegistry) -> Ledger:
    return Ledger(registry=registry)


def agreed(registry: RecordRegistry, **changes: Any) -> Scheme:
    sources = FeatureSources(registry=registry, public=lambda _: PUBLIC)
    return make_scheme(PUBLIC, replace(BITS, **changes), sources)


@pytest.fixture
def scheme(registry: RecordRegistry) -> Scheme:
    return agreed(registry)


def z_scores() -> np.ndarray:
    """Of the private records by the statistics of the public ones, all in float64, by hand."""

    def features(x: np.ndarray) -> np.ndarray:
        flat = x.reshape(len(x), -1) / 127.5 - 1
        flat = flat - flat.mean(1, keepdims=True)
        return 8 * flat / np.linalg.norm(flat, axis=1, keepdims=True)

    public, mine = features(PUBLIC.train.x), features(PRIVATE.train.x)
    deviation = public.std(0)
    return (mine - public.mean(0)) / np.maximum(deviation, 1e-3 * deviation.max())


# --- the scheme ---

REFUSED: dict[str, dict[str, Any]] = {
    "`label_epsilon`: 'x' is neither a number nor public": {"label_epsilon": "x"},
    "`label_epsilon`: nan is not a positive number": {"label_epsilon": "nan"},
    "`label_epsilon`: 0 is not a positive number": {"label_epsilon": "0"},
    "`label_epsilon` is missing: ": {"label_epsilon": None},
    "`alpha`: of bits; a codebook has one epsilon for the whole record": {
        "protocol": "codebook",
        "alpha": 7.0,
        "label_epsilon": None,
    },
    "`label_epsilon`: of bits; a codebook has one epsilon": {"protocol": "codebook"},
    "`format`: 'nonsense' is not a list of numbers separated by commas": {"format": "nonsense"},
    **{
        f"`format`: '{text}' is not of the form WHOLE,FRACTION, such as 4,5": {"format": text}
        for text in ("3", "0.5,1", "nan,1", "1e400,1")
    },
    **{
        f"`format`: {text} is not two numbers of bits, from 0 to 15 together, such as 4,5": {"format": text}
        for text in ("-1,2", "9,9")
    },
    "`alpha`: rappor has none; leave it out": {"alpha": 7.0},
    "`features`: none leaves values as they are, whose scale differs; take unit": {"features": "none"},
}


@pytest.mark.parametrize("message", REFUSED)
def test_schemes_that_cannot_be(message: str) -> None:
    assert refused(check_scheme_options, replace(BITS, **REFUSED[message])).startswith(message)


def test_a_scheme_is_of_public_records_alone(registry: RecordRegistry) -> None:
    made = agreed(registry, format="1,2")
    assert (made.answer.values, made.answer.inputs, made.answer.record_bytes) == (64, 256, 34)
    assert made.answer.nominal == 132
    assert made.answer.certified == pytest.approx(132)
    assert made.public is not None
    assert registry.resolve(made.public).surely_overlaps(registry.reference(PUBLIC))
    assert made.id == agreed(registry, format="1,2").id
    with pytest.raises(InputError, match="`components`: 99 is not from 1 to 64"):
        agreed(registry, components=99)


@pytest.mark.parametrize(
    ("changes", "text", "values"),
    [
        ({"epsilon": 0.5}, "drawings:24", 24),
        ({"epsilon": 1.0}, "drawings:64", 64),
        ({"epsilon": 2.0}, "drawings:192", 192),
        ({"epsilon": 8.0}, "drawings:256", 256),
        ({"epsilon": 0.5, "features": "drawings:100"}, "drawings:100", 100),
        ({"epsilon": 0.5, "components": 30}, "drawings:400", 30),
        ({"protocol": "rappor", "epsilon": 4000.0, "label_epsilon": "4"}, "drawings:400", 400),
    ],
)
def test_drawings_have_as_many_directions_as_the_budget_bears(
    registry: RecordRegistry, changes: dict[str, Any], text: str, values: int
) -> None:
    """The numbers that docs/results.md gives figures of; what somebody asked for stays."""
    codebook = {"features": "drawings", "protocol": "codebook", "label_epsilon": None}
    made = agreed(registry, **{**codebook, **changes})
    assert (made.feature_map.text, made.answer.values) == (text, values)


# --- what is entered ---


def certified(plan: Any) -> float:
    return plan.privacy.certified.epsilon


def sent(plan: Any) -> np.ndarray:
    return np.concatenate(list(encode(plan)))


def test_a_release_is_entered_and_counted(scheme: Scheme, ledger: Ledger) -> None:
    """A plan is for one: the same event twice would count as one, where two ledgers are put together."""
    plan = plan_encoding(scheme, PRIVATE, EncodeOptions(), ledger)
    assert ledger.events == (), "a plan spends nothing"
    rows = sent(plan)
    assert rows.shape == (897, 10)
    (event,) = ledger.events
    assert isinstance(event, GuaranteeEvent)
    assert event.mechanism == Guarantee(scheme.answer.certified, adjacency="replace-one")
    assert scheme.answer.certified == pytest.approx(132)
    assert certified(plan) == pytest.approx(132)
    assert (plan.privacy.certified.adjacency, plan.privacy.certified.sampling) == ("replace-one", "none")
    assert plan.privacy.nominal.epsilon == 132  # type: ignore[union-attr]
    refused_after_it_ran(encode, plan)
    assert ledger.events == (event,)
    again = plan_encoding(scheme, PRIVATE, EncodeOptions(), ledger)
    assert certified(again) == pytest.approx(264)
    assert not np.array_equal(sent(again), rows), "coins of its own"
    assert len(ledger.events) == 2


def test_other_records_are_counted_apart(scheme: Scheme, ledger: Ledger) -> None:
    sent(plan_encoding(scheme, digits(900, 1300), EncodeOptions(), ledger))
    apart = plan_encoding(scheme, digits(1300, 1797, "others"), EncodeOptions(), ledger)
    assert certified(apart) == pytest.approx(132)
    across = plan_encoding(scheme, digits(1200, 1400, "across"), EncodeOptions(), ledger)
    assert certified(across) == pytest.approx(264), "100 records were sent twice"


def test_the_event_is_on_record_before_the_first_coin(
    scheme: Scheme, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered: list[int] = []

    class Watched(SecureSource):
        def random_bytes(self, count: int) -> bytes:
            entered.append(len(ledger.events))
            return super().random_bytes(count)

    monkeypatch.setattr("dpltm.stages.latent_owner.SecureSource", Watched)
    sent(plan_encoding(scheme, PRIVATE, EncodeOptions(), ledger))
    assert set(entered) == {1}, "coins come from the system's generator"


def test_bits_and_labels_are_randomised_as_much_as_was_agreed_on(registry: RecordRegistry, ledger: Ledger) -> None:
    """Shares of 57,408 signs and 897 labels, each within six deviations; the coins are the system's."""
    scheme = agreed(registry, epsilon=64.0, label_epsilon="0.5")
    rows = sent(plan_encoding(scheme, PRIVATE, EncodeOptions(), ledger))
    scores = z_scores()
    sure = np.abs(scores) > 1e-3  # rounding cannot turn these round
    kept = (np.unpackbits(rows[:, :8], axis=1) == (scores < 0))[sure]
    chance = math.e / (1 + math.e)
    assert abs(kept.mean() - chance) < 6 * math.sqrt(chance * (1 - chance) / kept.size)
    labels = rows[:, 8].astype(int) + 256 * rows[:, 9].astype(int)
    assert labels.max() < 10
    truth = math.exp(0.5) / (math.exp(0.5) + 9)
    assert abs((labels == PRIVATE.train.y).mean() - truth) < 6 * math.sqrt(truth * (1 - truth) / 897)


def test_labels_declared_public_are_said_to_be(registry: RecordRegistry, ledger: Ledger) -> None:
    scheme = agreed(registry, label_epsilon="public", format="0,1")
    plan = plan_encoding(scheme, PRIVATE, EncodeOptions(), ledger)
    assert "labels are sent as they are: declared public, and not counted" in plan.privacy.notes
    assert certified(plan) == pytest.approx(128)
    assert sent(plan)[:, -2].tolist() == PRIVATE.train.y.tolist()
    assert "labels are declared public and sent as they are" in ledger.events[0].what  # type: ignore[attr-defined]


# --- what is refused, with nothing entered ---


@pytest.mark.parametrize("epsilon", [0.96, 4.0])
def test_a_budget_of_that_epsilon_has_room_for_one_message(
    registry: RecordRegistry, ledger: Ledger, epsilon: float
) -> None:
    scheme = agreed(registry, protocol="codebook", epsilon=epsilon, label_epsilon=None)
    ledger.append(BudgetEvent(registry.reference(PRIVATE), epsilon, 1e-5))
    encode(plan_encoding(scheme, PRIVATE, EncodeOptions(), ledger))
    message = f"this would bring mine to epsilon {2 * epsilon:g} at delta 1e-05, above the budget of {epsilon:g}"
    with pytest.raises(BudgetError, match=message):
        plan_encoding(scheme, PRIVATE, EncodeOptions(), ledger)
    assert len(ledger.events) == 2


def test_records_declared_public_for_a_scheme_cannot_be_private(scheme: Scheme, ledger: Ledger) -> None:
    for dataset in (digits(0, 700, "all"), digits(650, 700, "tail")):
        assert refused(plan_encoding, scheme, dataset, EncodeOptions(), ledger, label="t") == (
            f"`dataset`: theirs was declared public for t, and {dataset.name} shares records with it; take others"
        )
    plan_encoding(scheme, PRIVATE, EncodeOptions(), ledger)


@pytest.mark.parametrize("behind", ["training", "synthetic records"])
def test_records_that_a_network_in_front_was_made_of_are_refused(
    registry: RecordRegistry, ledger: Ledger, behind: str
) -> None:
    """By its training, or by the release that its synthetic records come from."""
    ref, others = registry.reference(PRIVATE), registry.reference(digits(700, 800, "others"))
    moments = GaussianEvent(ref, GaussianRelease(3.0), "moments")
    records, more = (ref, ()) if behind == "training" else (others, (moments,))
    spent = TrainingEvent(records, NoisySgd(0.5, 2, 2.0), "clip(C=1)", 9)
    spec = ModelSpec("mlp:5", 64, 10)
    parameters = {name: value.detach() for name, value in build(spec, 0).named_parameters()}
    network = TrainedNetwork(
        name="r", spec=spec, parameters=parameters, bounds=(0.0, 255.0), feature_map=None, ticket_set=None,
        records=records, events=(*more, spent),
    )  # fmt: skip
    sources = FeatureSources(registry=registry, network=lambda _: network)
    scheme = make_scheme(PUBLIC, replace(BITS, features="network:r"), sources)
    assert refused(plan_encoding, scheme, PRIVATE, EncodeOptions(), ledger, label="t") == (
        "`dataset`: the network in front of t was trained on mine, or on what was made of them, and mine shares records"
        " with it; take others"
    )
    plan_encoding(scheme, digits(800, 900, "nobody's"), EncodeOptions(), ledger)


def test_what_the_ledger_holds_already(scheme: Scheme, registry: RecordRegistry) -> None:
    """Records down as public; releases under another relation, with which there is no common guarantee."""
    public, ref = registry.reference(PRIVATE, public=True), registry.reference(PRIVATE)
    for event, message in (
        (
            ProvenanceEvent(public, "public", "ab" * 32),
            "`dataset`: the ledger has mine down as public, and mine shares records with it; the same",
        ),
        (TrainingEvent(ref, NoisySgd(0.5, 2, 2.0), "clip(C=1)", 9), "adjacency: "),
    ):
        ledger = Ledger([event], registry=registry)
        assert refused(plan_encoding, scheme, PRIVATE, EncodeOptions(), ledger).startswith(message)
        assert len(ledger.events) == 1


def test_records_that_are_not_what_was_agreed_on(scheme: Scheme, ledger: Ledger) -> None:
    for facts, message in (
        (
            {"bounds": (0.0, 16.0)},
            "`bounds`: mine has bounds (0.0, 16.0), and the scheme was made for (0.0, 255.0); take records like those",
        ),
        ({"classes": 11}, "`classes`: mine has classes 11, and the scheme was made for 10; take records like those"),
    ):
        assert refused(plan_encoding, scheme, digits(900, 1797, **facts), EncodeOptions(), ledger) == message


def test_a_delta_that_promises_nothing(scheme: Scheme, ledger: Ledger) -> None:
    assert refused(plan_encoding, scheme, PRIVATE, EncodeOptions(delta=0.1), ledger).startswith("`delta`: ")
