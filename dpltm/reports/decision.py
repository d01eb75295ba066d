"""What whoever decides about a release looks at first: whom it protects, what it is worth, and whether criteria are met.

A function of the statement alone, as all wording is. Criteria are few, and named; what is not known here counts as open,
never as met.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dpltm.privacy.describe import figure, percent
from dpltm.privacy.entry import RECORD

MET, MISSED, OPEN = "yes", "no", "not known"
"""Answers to a criterion."""


@dataclass(frozen=True)
class Criterion:
    """One question, its answer, and what the answer rests on."""

    question: str
    met: str
    why: str


def verdict(body: Mapping[str, Any]) -> str:
    """Return what the criteria come to, in one sentence; empty for anything but a run that has ended."""
    if body["kind"] != "run" or body["state"] != "finished":
        return ""
    by = {met: [one for one in criteria(body) if one.met == met] for met in (MET, MISSED, OPEN)}
    if by[MISSED]:
        return f"By its criteria this should not go out: {'; '.join(one.why for one in by[MISSED])}."
    if by[OPEN]:
        return f"By its criteria this is not decided yet: {'; '.join(one.why for one in by[OPEN])}."
    return "By its criteria this may go out: all of them are met."


def criteria(body: Mapping[str, Any]) -> Iterator[Criterion]:
    """Yield the criteria."""
    certified, said, got = body["certified"], body["settings"], body["outcome"]
    epsilon, delta = certified["epsilon"], certified["delta"]
    limit, spent = got.get("limit"), got.get("together")
    question = "The budget is kept"
    if epsilon == "inf" or spent == "inf":
        yield Criterion(question, MISSED, "something was released with no protection, so no budget can be kept")
    elif limit is not None and spent is not None:
        kept = spent <= limit and delta <= got["limit_delta"]
        why = f"everything on these people comes to {figure(spent)}, and the budget in their ledger is {limit:g}"
        yield Criterion(question, MET if kept else MISSED, why)
    elif said.get("budget") is not None:
        why = f"this comes to {figure(epsilon)}, and {said['budget']:g} was asked for"
        yield Criterion(question, MET if epsilon <= said["budget"] else MISSED, why)
    else:
        yield Criterion(question, OPEN, "no budget is on record (dpltm privacy budget sets one)")
    people = said.get("public_records")
    question = "Delta is below one over the number of " + ("records" if certified["unit"] == RECORD else "persons")
    if people is None:
        yield Criterion(question, OPEN, "their number is not on record here")
    else:
        yield Criterion(
            question,
            MET if delta * people < 1 else MISSED,
            f"delta is {delta:g}, one over their number {1 / people:.2g}",
        )
    question = "All else on the same people is counted"
    if got.get("others") is None:
        yield Criterion(question, OPEN, "the ledger that paid is not at hand (dpltm report --ledger names it)")
    else:
        count = f"{got['others'] or 'no'} other release{'' if got['others'] < 2 else 's'}"
        yield Criterion(question, MET, f"their ledger holds {count}; all together: epsilon {figure(spent)}")
    question = "It is better than what takes no skill"
    if got.get("verdict") is not None:
        yield Criterion(question, MISSED, _small(got["verdict"]))
    elif got.get("auc") is not None:
        yield Criterion(question, MET, ", ".join(skill_in_words(got)))
    else:
        why = "nothing here says how well guessing would do on records that are not protected"
        yield Criterion(question, OPEN, why)


def _small(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def skill_in_words(got: Mapping[str, Any]) -> list[str]:
    """Return how good a network is beside what takes no skill; nothing where no AUC was measured."""
    if got.get("auc") is None:
        return []
    always = f'always saying "{got["majority"]}" has {percent(got["majority_accuracy"])}'
    return [
        f"AUC {got['auc']:.3f} (95 %: {got['auc_low']:.3f} to {got['auc_high']:.3f}; guessing has 0.5)",
        f"accuracy {percent(got['accuracy'])} ({always})",
    ]
