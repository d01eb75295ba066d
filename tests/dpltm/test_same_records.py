"""One dataset is the same to a ledger whoever is said to be protected in it, in any order of columns, in any process."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import dpltm
from dpltm import estimators
from dpltm.estimators import TicketClassifier
from refusals import refused

DRAW = np.random.default_rng(3)
X = DRAW.integers(0, 256, (240, 6), dtype=np.uint8)
Y = np.arange(240) % 2
WHOSE = np.repeat(np.arange(60), 4)
FEW = {"epsilon": 3.0, "delta": 1e-4, "steps": 3, "batch_size": 40, "bounds": (0, 255)}


def train(ledger: dpltm.Ledger, **more: object) -> object:
    return dpltm.train("mlp:4", X, Y, ledger=ledger, **{**FEW, **more})


@pytest.mark.one_of(2)
@pytest.mark.parametrize("other", [DRAW.permutation(WHOSE), np.arange(240), WHOSE + 1000])
def test_other_persons_in_the_same_records_have_no_figure(other: np.ndarray) -> None:
    """A person of one grouping may be several of the other, so no sum of prices holds for either."""
    ledger = dpltm.Ledger(unit="user")
    train(ledger, units=WHOSE)
    said = refused(train, ledger, units=other, epsilon=None, noise_multiplier=9.0)
    assert "protects other persons than" in said
    train(ledger, units=WHOSE, epsilon=None, noise_multiplier=9.0)
    assert len(ledger.entries) == 2


def test_whose_records_are_does_not_make_them_others() -> None:
    ledger = dpltm.Ledger(unit="user")
    run = train(ledger, units=WHOSE)
    assert "is protected by a release on record" in refused(dpltm.evaluate, run, X, Y, ledger=ledger)
    public = dpltm.Ledger(unit="user")
    tiny = {"model": "mlp:4", "rounds": 1, "iterations": 2, "batch_size": 40, "bounds": (0, 255)}
    dpltm.generate(X, Y, **tiny, provenance="public", name="q", ledger=public)
    assert "was declared public" in refused(train, public, units=WHOSE, name="z")


def settings(**more: object) -> dict[str, object]:
    return {"epsilon": 5.0, "epochs": 1, "model": "mlp", "n_records": 240, "ledger": dpltm.Ledger(), **more}


def test_rows_are_known_in_any_order_of_the_columns_of_a_schema(tmp_path: Path) -> None:
    columns = [
        f'[column.{name}]\nkind = "number"\nbounds = [0, {most}]\n' for name, most in (("age", 99), ("size", 9))
    ]
    (tmp_path / "s.toml").write_text("".join(columns))
    frame = pd.DataFrame({"age": DRAW.integers(0, 100, 240), "size": DRAW.integers(0, 10, 240)})
    estimator = TicketClassifier(schema=str(tmp_path / "s.toml"), **settings()).fit(frame, Y)
    for columns in (["age", "size"], ["size", "age"]):
        assert "some of these records are protected" in refused(estimator.score, frame[columns][:200], Y[:200])


def test_a_fit_that_goes_on_is_known_to_the_scores_of_clones(monkeypatch: pytest.MonkeyPatch) -> None:
    first = TicketClassifier(bounds=(0, 255), **settings()).fit(X[:120], Y[:120])
    second, said, real = first.__sklearn_clone__(), [], estimators.train_start

    def while_it_trains(*given: object, **options: object) -> object:
        said.append(refused(first.score, X[200:], Y[200:]))
        return real(*given, **options)

    monkeypatch.setattr(estimators, "train_start", while_it_trains)
    second.fit(X[100:], Y[100:])
    assert "some of these records are protected" in said[0]
