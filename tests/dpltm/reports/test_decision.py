"""What stands first on the page of a run: each criterion met, missed and open, and the sentence that follows."""

from typing import Any

import pytest

from dpltm.privacy.account import Account
from dpltm.privacy.entry import Entry, Part
from dpltm.privacy.mechanisms import NoisySgd, Unprotected
from dpltm.reports.statement import Subject, statement
from dpltm.reports.wording import MET, MISSED, OPEN, criteria, render_statement, verdict

SETTINGS = {"public_records": 1000, "budget": 10.0, "model": "mlp:2", "records": "d", "expected_batch": 100.0,
            "filter": "clip(C=1)", "clip_norm": 1.0, "live": 9}  # fmt: skip
SKILL = {
    "accuracy": 0.9, "test_records": 100, "majority": "no", "majority_accuracy": 0.8, "balanced_accuracy": 0.7,
    "auc": 0.8, "auc_low": 0.7, "auc_high": 0.9, "calibration_error": 0.1, "verdict": None,
    "chance_over_share": 0.9, "chance_of": "yes", "chance_low": 0.8, "chance_high": 1.1,
}  # fmt: skip
COUNTED = {"others": 2, "together": 1.5, "limit": 2.0, "limit_delta": 1e-5}
BUDGET, DELTA, ALL, BETTER, CHANCES = range(5)


def body(*, settings: Any = (), state: str = "finished", bare: bool = False, **outcome: Any):
    mechanism = Unprotected() if bare else NoisySgd(0.1, 20, 2.0)
    entry = Entry("release", Part("d", "1" * 64), (mechanism,), "a training", day="2026-02-03", unit="patient")
    got = {**SKILL, **COUNTED, **outcome}
    got = {name: value for name, value in got.items() if value != "gone"}
    subject = Subject("r", {**SETTINGS, **dict(settings)}, got, state=state)
    return statement(subject, Account((entry,), unit="patient"))


DECISION = "## For whoever decides\n"


def card(statement: dict[str, Any]) -> str:
    frame = dict.fromkeys(("statement", "privacy_key", "begin", "end", "fence"), "")
    return render_statement("card.md.jinja", statement, metadata={}, **frame)


def fields(statement: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    """What stands first, by field: its value, and what it means."""
    part = card(statement).partition(DECISION)[2].partition("\n## ")[0]
    rows = (line[2:-2].split(" | ") for line in part.splitlines() if line.startswith("| "))
    return {name: tuple(rest) for name, *rest in rows}


def test_all_are_met() -> None:
    assert [one.met for one in criteria(body())] == [MET] * 5
    assert verdict(body()) == "By its criteria this may go out: all of them are met."


@pytest.mark.parametrize(
    ("which", "met", "changed", "why"),
    [
        (
            BUDGET,
            MISSED,
            {"together": 2.5},
            "everything on these people comes to 2.5, and the budget in their ledger is 2",
        ),
        (BUDGET, MISSED, {"limit_delta": 1e-7}, "and the budget in their ledger is 2"),
        (BUDGET, MISSED, {"together": "inf"}, "released with no protection"),
        (BUDGET, MET, {"limit": "gone"}, "and 10 was asked for"),
        (BUDGET, MISSED, {"limit": "gone", "settings": {"budget": 0.01}}, "and 0.01 was asked for"),
        (BUDGET, OPEN, {"limit": "gone", "settings": {"budget": None}}, "no budget is on record"),
        (DELTA, MISSED, {"settings": {"expected_batch": 1e5}}, "one over their number 1e-06"),
        (DELTA, OPEN, {"settings": {"expected_batch": None}}, "not on record"),
        (ALL, OPEN, {"others": "gone", "together": "gone", "limit": "gone"}, "not at hand"),
        (BETTER, MISSED, {"verdict": "No better than chance"}, "no better than chance"),
        (BETTER, OPEN, {"auc": "gone"}, "nothing here says"),
        (CHANCES, MET, {"chance_over_share": 1.25}, "over its share is 1.25"),
        (CHANCES, MISSED, {"chance_over_share": 0.31, "chance_low": 0.2, "chance_high": 0.5}, "default --head"),
        (CHANCES, MISSED, {"chance_over_share": 1.4, "chance_low": 1.3, "chance_high": 1.5}, "not right"),
        (CHANCES, OPEN, {"chance_over_share": 0.7, "chance_low": 0.5, "chance_high": 0.9}, "too few test records"),
    ],
)
def test_one_is_not(which: int, met: str, changed: dict[str, Any], why: str) -> None:
    one = body(**changed)
    found = criteria(one)
    assert [each.met for each in found] == [met if at == which else MET for at in range(5)]
    assert why in found[which].why
    starts = {MISSED: "By its criteria this should not go out: ", OPEN: "By its criteria this is not decided yet: "}
    if met == MET:
        assert verdict(one).endswith("all of them are met.")
    else:
        assert verdict(one) == f"{starts[met]}{found[which].why}."


def test_what_is_missed_is_said_before_what_is_open() -> None:
    one = body(others="gone", together="gone", limit="gone", verdict="No better than chance")
    assert verdict(one) == "By its criteria this should not go out: no better than chance."


def test_without_protection() -> None:
    one = body(bare=True)
    assert criteria(one)[0].met == MISSED
    assert fields(one)["certified epsilon"][0] == "inf"


def test_whom_it_protects_and_what_it_reads() -> None:
    one = body(settings={"columns": "age, sex", "purpose": "triage", "per_unit": 64})
    shown = fields(one)
    assert shown["protects"] == (
        "each patient in d",
        "All records of one patient together; of a patient 64 records are used at most.",
    )
    assert shown["reads"][0] == "age, sex"
    assert shown["purpose"] == ("triage", "")
    assert shown["contact"] == ("-", "Not stated: dpltm report --contact TEXT says it.")
    assert shown["last paid release"][0] == "2026-02-03"
    assert shown["all on the same people"][0] == "1.5"
    assert shown["released"][0] == "a network (mlp:2), every noisy step, and this page"


def test_nothing_is_decided_on_a_run_that_has_not_ended() -> None:
    one = body(state="unfinished")
    assert DECISION not in card(one)
    assert verdict(one) == ""
