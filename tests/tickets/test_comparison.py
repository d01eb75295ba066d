"""Comparisons: which runs stand beside each other, and why others do not."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import binomtest

from dpltm.errors import InputError
from dpltm.privacy.account import Account
from dpltm.privacy.entry import Entry, Lineage, Part
from dpltm.privacy.mechanisms import NoisySgd
from dpltm.tickets.run import FoundRun
from dpltm.tickets.workbench.compare import compare, texts, unlike

PART = Part("d", "1" * 64, (), "record", 0, 5 * 10**8)
RESOLVED = {"density": 0.5, "round": 2, "live": 7}
CONFIG: dict[str, Any] = {"model": "mlp:4", "classes": 10, "test_records": 100, "resolved": RESOLVED}


def run(
    label: str, part: Part = PART, *, steps: int = 5, accuracy: float = 0.9, unit: str = "record", **config: Any
) -> FoundRun:
    given = {"id": label.encode().hex().zfill(64), "home": "f" * 64, "sequence": 1}
    entry = Entry("release", part, (NoisySgd(0.1, steps, 2.0),), "a training", unit=unit, **given)  # type: ignore[arg-type]
    result, lineage = {"accuracy": accuracy}, Lineage((entry,))
    return FoundRun(Path(label), "finished", (), label, CONFIG | config, result, lineage=lineage, entry=entry)


def test_runs_on_the_same_records() -> None:
    one, two = run("one"), run("two", steps=9, accuracy=0.8, resolved={"density": 1.0})
    body = compare([one, two])
    assert [row["compared"] for row in body["rows"]] == [True, True]
    assert [row["trained"] for row in body["rows"]] == ["ticket, round 2", "dense"]
    expected = binomtest(90, 100).proportion_ci(0.95, method="wilson")
    assert [body["rows"][0][key] for key in ("low", "high")] == pytest.approx([expected.low, expected.high])
    together = Account.of((), one.lineage | two.lineage).epsilon(1e-5)
    assert body["together"] == {"runs": 2, "epsilon": together, "delta": 1e-5}
    assert together > max(row["certified"] for row in body["rows"])


OTHERS = {
    "other data: e[0.0:0.5], not d[0.0:0.5]": run("x", replace(PART, name="e", snapshot="2" * 64)),
    "another part of the data: d[0.5:1.0], not d[0.0:0.5]": run("x", replace(PART, start=5 * 10**8, stop=10**9)),
    "other test records: 90, not 100": run("x", test_records=90),
    "other classes: 3, not 10": run("x", classes=3),
    "accuracy on training records, with noise, beside that on the test split": run("x", options={"eval_private": 0.1}),
}


@pytest.mark.parametrize(("why", "other"), OTHERS.items(), ids=list(OTHERS))
def test_others_are_shown_with_the_reason(why: str, other: FoundRun) -> None:
    assert unlike(run("one"), other) == why
    body = compare([run("one"), run("two"), other])
    assert [row["compared"] for row in body["rows"]] == [True, True, False]
    assert body["notes"][0] == f"x: not compared: {why}"
    assert body["together"]["runs"] == 2
    with pytest.raises(InputError) as refused:
        compare([run("one"), other])
    assert str(refused.value) == f"RUN: nothing can be compared: x: {why}; name runs on the same records"


def test_where_records_cannot_be_told_apart_names_count() -> None:
    """A snapshot has another id in every ledger."""
    there = replace(PART, snapshot="2" * 64)
    assert unlike(run("one"), run("two", there)) is None
    assert unlike(run("one"), run("two", replace(there, name="e"))) == "other data: e[0.0:0.5], not d[0.0:0.5]"
    said = "records are taken for the same by their name: their ledgers cannot tell whether they are"
    assert said in compare([run("one"), run("two", there)])["notes"]
    assert said not in compare([run("one"), run("two")])["notes"]


def test_runs_that_go_on_or_are_broken_are_rows() -> None:
    going = FoundRun(Path("going"), "unfinished", ("going is still going: another process is at work on it",), "going")
    broken = FoundRun(Path("broken"), "damaged", ("broken/config.json: not valid JSON",), "broken")
    body = compare([run("one"), going, broken])
    states = [("finished", True), ("unfinished", False), ("damaged", False)]
    assert [(row["state"], row["compared"]) for row in body["rows"]] == states
    assert body["notes"][:2] == [
        "going: not compared: going is still going: another process is at work on it",
        "broken: not compared: broken/config.json: not valid JSON",
    ]
    assert body["together"] is None
    with pytest.raises(InputError, match=r"^RUN: nothing can be compared: broken/config.json: not valid JSON$"):
        compare([broken, broken])


def test_another_relation_or_unit_is_named_in_its_row() -> None:
    body = compare([run("one"), run("two"), run("three", unit="user")])
    assert [row["other_terms"] for row in body["rows"]] == [None, None, "add-remove, unit user"]
    assert "three: its epsilons are for add-remove, unit user" in body["notes"]
    assert [any(" (add-remove, unit user)" in cell for cell in row) for row in texts(body)] == [False, False, True]
