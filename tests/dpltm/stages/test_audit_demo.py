"""The demo of audits, on less of everything: its rows, and what they refute."""

from dataclasses import replace

from dpltm.records import load
from dpltm.stages import audit_demo as stage
from dpltm.stages.services import Services


def test_rows_with_their_claims(monkeypatch):
    monkeypatch.setattr(stage, "SHORT", {"batch_size": 16.0, "steps": 40, "lr": 0.3})
    monkeypatch.setattr(stage, "UER", replace(stage.UER, values=20))
    short = {name: {**options, "audit": 60} for name, options in stage.TRAININGS.items()}
    monkeypatch.setattr(stage, "TRAININGS", short)
    rows = stage.demo(load("digits"), Services())
    assert [row.what for row in rows] == [*stage.TRAININGS, "LATENT's UER, one record"]
    for row in rows:
        assert row.lower_bound <= row.certified
        assert (row.nominal is not None) == (row.what in ("tanh as printed", "LATENT's UER, one record"))
    assert rows[-1].violates == ["nominal"]


def test_claims_that_a_bound_exceeds():
    for row, fallen in (
        (stage.Attacked("a", None, 2.0, 1.0), []),
        (stage.Attacked("a", 0.5, 2.0, 1.0), ["nominal"]),
        (stage.Attacked("a", None, 2.0, 3.0), ["certified"]),
    ):
        assert row.violates == fallen
