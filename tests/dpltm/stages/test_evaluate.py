"""Accuracy on records that were held out, on arrays; records that a release was made from are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import dpltm
from dpltm.errors import InputError
from dpltm.features.feature_map import make_feature_map
from dpltm.networks import ModelSpec, build
from dpltm.networks.masks import Mask
from dpltm.privacy.event_json import ref_to_json
from dpltm.privacy.events import ProvenanceEvent, TrainingEvent
from dpltm.privacy.mechanisms import NoisySgd
from dpltm.privacy.old_ledger import Ledger
from dpltm.records import Dataset, from_arrays
from dpltm.records.registry import RecordRegistry
from dpltm.verbs.evaluate import evaluate
from dpltm.training.run import Run
from refusals import refused

X, Y = load_digits().images.astype(np.uint8), load_digits().target
UNKNOWN = (
    "whether these records were trained on cannot be checked here, where nobody knows the records of the run;"
    " its accuracy on those is private"
)


def digits(start: int, stop: int, test: tuple[int, int] | None, name: str = "mine", **facts: Any) -> Dataset:
    held_out = None if test is None else (X[slice(*test)], Y[slice(*test)])
    return from_arrays(X[start:stop], Y[start:stop], **{"test": held_out, "name": name, "bounds": (0, 255), **facts})


TRAINED = digits(0, 600, (600, 700))


def event(ref: Any, multiplier: float = 3.0) -> TrainingEvent:
    return TrainingEvent(ref, NoisySgd(0.5, 10, multiplier), "clip(C=1)", 9)


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(registry=RecordRegistry())


@pytest.fixture
def run(ledger: Ledger) -> Run:
    """A network that was trained on ``TRAINED``, or so its ledger says."""
    spec = ModelSpec("mlp:8", 64, 10)
    model = build(spec, 0)
    records = ledger.registry.reference(TRAINED)
    ledger.append(event(records))
    config = {"model": "mlp:8", "features": 64, "classes": 10, "bounds": [0.0, 255.0], "records": ref_to_json(records)}
    return Run(config, model, Mask.dense(model), ledger=ledger)


def by_hand(run: Run, x: np.ndarray, y: np.ndarray) -> float:
    inputs = torch.from_numpy(x.reshape(len(x), -1).astype("f4") / 255)
    with torch.no_grad():
        return float((run.model(inputs).argmax(1).numpy() == y).mean())


def test_accuracy_is_that_of_the_network_on_a_dataset_or_arrays(run: Run) -> None:
    done = evaluate(run, TRAINED)
    assert (done.dataset, done.records, done.rmse, done.notes) == ("mine", 100, None, ())
    assert done.accuracy == by_hand(run, X[600:700], Y[600:700])
    done = dpltm.evaluate(run, X[700:900], Y[700:900])
    assert (done.records, done.notes) == (200, ())
    assert done.accuracy == by_hand(run, X[700:900], Y[700:900])
    assert dpltm.evaluate(run, TRAINED).records == 100
    assert refused(dpltm.evaluate, run, X[700:900]).startswith("`y` is missing")


def test_bounds_that_nobody_gave(run: Run) -> None:
    """Of arrays they are those of the run."""
    assert evaluate(run, digits(0, 600, (600, 700), bounds=None)).notes == (
        "nobody gave the bounds of mine, so 0 to 255 is assumed, all that a byte can hold; if their values have another"
        " range, declare them with `bounds` LO,HI",
    )
    trained = replace(run, config={**run.config, "bounds_origin": "assumed"})
    theirs = (
        "nobody gave the bounds of the records that the run was trained on, so 0 to 255 is assumed, all that a byte can"
        " hold; if their values have another range, train with `bounds` LO,HI",
    )
    assert dpltm.evaluate(trained, X[700:900], Y[700:900]).notes == theirs
    assert dpltm.predict(trained, X[700:900]).notes == theirs
    assert dpltm.predict(run, X[700:900]).notes == ()


@pytest.mark.parametrize("start", [0, 590])
def test_records_that_were_trained_on_are_refused(run: Run, start: int) -> None:
    count = min(100, 600 - start)
    for field, name, call in (
        ("dataset", "other", lambda: evaluate(run, digits(700, 900, (start, start + 100), "other"))),
        ("x", "the records", lambda: dpltm.evaluate(run, X[start : start + 100], Y[start : start + 100])),
    ):
        message = f"`{field}`: {count} of the 100 test records of {name} are among those that the run was trained"
        with pytest.raises(InputError, match=message):
            call()


@pytest.mark.parametrize("stop", [1010, 1200])
def test_so_are_records_of_any_other_release_in_its_ledger(run: Run, ledger: Ledger, stop: int) -> None:
    """A draw, or a network in front, may have been made from them; also where they are all that it was made from."""
    ledger.append(event(ledger.registry.reference(digits(1000, 1200, None, "drawn on"))))
    count = stop - 1000
    with pytest.raises(InputError, match=f"{count} of the {count} test records of .* are records of drawn on"):
        evaluate(run, digits(700, 900, (1000, stop), "other"))


def test_what_costs_nothing_may_be_tested_on(run: Run, ledger: Ledger) -> None:
    public = ledger.registry.reference(digits(1000, 1200, None, "public"), public=True)
    ledger.append(ProvenanceEvent(public, "public", "ab" * 32))
    assert evaluate(run, digits(700, 900, (1000, 1100), "other")).records == 100


def test_a_run_from_elsewhere_cannot_be_checked_and_one_on_messages_saw_no_record(run: Run) -> None:
    """Its references are those of a registry that nobody has here."""
    done = evaluate(replace(run, ledger=None), TRAINED, Ledger(registry=RecordRegistry()))
    assert done.notes == (UNKNOWN,)
    config = {key: value for key, value in run.config.items() if key != "records"}
    assert evaluate(replace(run, config=config), digits(700, 900, (0, 100), "other")).notes == ()


def test_records_that_the_network_does_not_take(run: Run) -> None:
    few = from_arrays(X[:400], Y[:400] % 5, test=(X[600:700], Y[600:700] % 5), name="few")
    assert refused(evaluate, run, few) == (
        "the run: its network has 10 classes, but few has 5; use records with the same classes"
    )
    words = refused(evaluate, run, replace(TRAINED, tables=(300,)))
    assert "takes quantities, but records of mine hold positions in tables of 300" in words


def test_what_stands_in_front_makes_the_features(run: Run) -> None:
    front = make_feature_map("unit", (8, 8), (0.0, 255.0))
    behind = replace(run, feature_map=front)
    with torch.no_grad():
        expected = float((run.model(front(X[600:700])).argmax(1).numpy() == Y[600:700]).mean())
    assert evaluate(behind, TRAINED).accuracy == pytest.approx(
        expected, abs=0.011
    )  # features are kept in half precision
