"""Wording of a statement: pages and cards are templates over it alone, so a card can be written again, and compared.

``statement.jinja`` and ``criteria.jinja`` have all sentences, ``page.html.jinja`` and ``card.md.jinja`` say how they look.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined, TemplateError

from dpltm.errors import ArtifactError, first_line
from dpltm.privacy.accountants import ACCOUNTANTS
from dpltm.privacy.describe import describe, figure, guarantee, percent, percent_up
from dpltm.privacy.entry import TRAININGS, entry_from_json
from dpltm.reports.statement import PROVENANCE, precision

MET, MISSED, OPEN = "yes", "no", "not known"
"""Answers to a criterion; what is not known here never counts as met."""


class Criterion(NamedTuple):
    """One question of whoever decides about a release, its answer, and what the answer rests on."""

    question: str
    met: str
    why: str


class _Values(dict[str, Any]):
    """Settings or outcomes; what is not among them is None."""

    def __missing__(self, key: str) -> None:
        return None


def as_markdown(text: object) -> str:
    """Return a text that Markdown shows as it is: no markup of its own, no link, on one line."""
    escaped = html.escape(" ".join(str(text).split()), quote=False)
    return re.sub(r"([\\`*_\[\]|#~!])", r"\\\1", escaped)


def one_line(text: object) -> object:
    """Return a text, escaped or not, without breaks of lines; anything else as it is."""
    return type(text)(" ".join(text.split())) if isinstance(text, str) else text


@cache
def _environment(escaped: bool) -> Environment:
    environment = Environment(
        loader=PackageLoader("dpltm.reports", "."), undefined=StrictUndefined, extensions=["jinja2.ext.do"],
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, autoescape=escaped,
    )  # fmt: skip
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False}
    environment.filters.update(
        figure=figure, percent=percent, percent_up=percent_up, f=format, describe=describe, precision=precision,
        share=lambda value: "-" if value is None else percent(value), markdown=as_markdown, one_line=one_line,
        blocks=lambda text: re.sub(r"\n{3,}", "\n\n", text.strip()),
    )  # fmt: skip
    return environment


def render(form: str, values: Mapping[str, Any]) -> str:
    """Return a form with its values: all are escaped in one of HTML; one of Markdown says which."""
    return _environment(".html." in form).get_template(form).render(values)


def render_statement(form: str, body: Mapping[str, Any], **shown: Any) -> str:
    """Return the page or the card of a statement; ArtifactError where it holds values that cannot be shown.

    Args:
        form: name of the template.
        body: the statement.
        shown: what the form shows beside it; of a page what ``evidence.jinja`` names.
    """
    try:
        return render(form, {**_names(body), **shown})
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError, TemplateError) as error:
        raise ArtifactError(f"{body['name']!s:.100}: holds values that cannot be shown: {first_line(error)}") from None


def _names(body: Mapping[str, Any]) -> dict[str, Any]:
    """Values of templates: all of a statement, settings as ``s``, outcome as ``o``, and what follows from them."""
    settings, outcome, certified = _Values(body["settings"]), _Values(body["outcome"]), body["certified"]
    mechanisms = [mechanism for entry in body["entries"] for mechanism in entry["mechanisms"]]
    own = ("sampling_rate", "steps", "noise_multiplier")  # trainings of others, such as in front of it, may differ
    steps = {
        mechanism["mechanism"]: mechanism for mechanism in mechanisms
        if mechanism["mechanism"] in TRAININGS and all(mechanism[name] == settings[name] for name in own)
    }  # fmt: skip
    sentences = _sentences(body)
    return {
        **body, "s": settings, "o": outcome, "unit": certified["unit"], "provenances": PROVENANCE,
        "criteria": criteria(body), "verdict": verdict(body), "trainings": TRAININGS, "own_steps": steps,
        "method": ACCOUNTANTS[certified["accountant"]].help if certified["accountant"] in ACCOUNTANTS else "",
        **{name: _told(getattr(sentences, name)()) for name in ("auc", "fit", "right")},
        "mechanisms": {mechanism["mechanism"] for mechanism in mechanisms},
        "recorded": [entry_from_json(entry) for entry in body["entries"]], "costs": (), "attacker": (),
    }  # fmt: skip


# --- the decision -----------------------------------------------------------------------------------------------------


RIGHT_CHANCES = (0.8, 1.25)
"""Range that the mean chance of a class over its share is to be in."""

Answer = tuple[bool | None, str]
"""Whether a criterion is met, None where that is not known, and the case that it is in, of ``criteria.jinja``."""


def criteria(body: Mapping[str, Any]) -> list[Criterion]:
    """Return what is asked of a run that has ended, with the answers; nothing of one that has not."""
    if body["state"] != "finished":
        return []
    settings, outcome, certified = _Values(body["settings"]), _Values(body["outcome"]), body["certified"]
    records, others = settings["public_records"], outcome["others"]
    cases: dict[str, Answer] = {
        "budget": _budget(settings, outcome, certified),
        "delta": (None, "no number") if records is None else (certified["delta"] * records < 1, "delta"),
        "others": (None, "no ledger") if others is None else (True, "others"),
        "skill": _skill(outcome),
        **({} if outcome["chance_over_share"] is None else {"chances": _chances(outcome)}),
    }
    sentences, answers = _sentences(body), {True: MET, False: MISSED, None: OPEN}
    return [
        Criterion(_told(sentences.question(name)), answers[met], _told(sentences.why(case)))
        for name, (met, case) in cases.items()
    ]


def verdict(body: Mapping[str, Any]) -> str:
    """Return what the criteria come to, in one sentence; empty for a run that has not ended."""
    questions = criteria(body)
    for answer, decision in ((MISSED, "should not go out"), (OPEN, "is not decided yet")):
        if reasons := [criterion.why for criterion in questions if criterion.met == answer]:
            return f"By its criteria this {decision}: {'; '.join(reasons)}."
    return "By its criteria this may go out: all of them are met." if questions else ""


def _sentences(body: Mapping[str, Any]) -> Any:
    values = {**body, "s": _Values(body["settings"]), "o": _Values(body["outcome"]), "right_chances": RIGHT_CHANCES}
    return _environment(False).get_template("criteria.jinja").make_module(values)


def _told(sentence: str) -> str:
    return " ".join(sentence.split())


def _budget(settings: _Values, outcome: _Values, certified: Mapping[str, Any]) -> Answer:
    epsilon, together, limit, budget = certified["epsilon"], outcome["together"], outcome["limit"], settings["budget"]
    if "inf" in (epsilon, together):
        return False, "unprotected"
    if limit is not None and together is not None:
        return together <= limit and certified["delta"] <= outcome["limit_delta"], "budget of the ledger"
    return (None, "no budget") if budget is None else (epsilon <= budget, "budget asked for")


def _skill(outcome: _Values) -> Answer:
    if outcome["verdict"] is not None:
        return False, "worse"
    if outcome["auc"] is not None:
        return True, "ranked"
    fitted = outcome["r2"] is not None and outcome["mean_rmse"] is not None
    return (True, "fitted") if fitted else (None, "no guessing")


def _chances(outcome: _Values) -> Answer:
    least, most = RIGHT_CHANCES
    if least <= outcome["chance_over_share"] <= most:
        return True, "right chances"
    unsure = outcome["chance_low"] <= most and outcome["chance_high"] >= least
    return (None, "few test records") if unsure else (False, "wrong chances")


# --- the table of a recipe --------------------------------------------------------------------------------------------


COLUMNS = ("arm", "paper", "accuracy, %", "sd", "less control", "seeds", "certified epsilon", "nominal", "live")
"""Names of the columns of a sweep."""


def markdown(body: Mapping[str, Any]) -> str:
    """Return the table for a document, with what it needs to be read alone."""
    return render("results.md.jinja", {
        **body, "columns": COLUMNS, "rows": [cells(row, body) for row in body["arms"]],
        "notes": [*body["notes"], *body["privacy"]["notes"]], "together": guarantee(body["privacy"]["certified"]),
    })  # fmt: skip


def cells(row: Mapping[str, Any], body: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a row, one text a column."""
    privacy, difference = row["privacy"], row["difference"]
    certified = nominal = change = "-"
    if privacy is not None:
        certified = figure(privacy["certified"]["epsilon"])
        certified += f" ({terms(privacy)})" if len(all_terms(body["arms"])) > 1 else ""
        nominal = "-" if privacy["nominal"] is None else figure(privacy["nominal"]["epsilon"])
    if difference is None:
        change = ""
    elif difference["mean"] is not None:
        pairs = "" if difference["count"] == row["count"] else f" ({difference['count']} pairs)"
        change = f"{'+' if difference['mean'] >= 0 else ''}{_with_interval(difference)}{pairs}"
    accuracy = _with_interval(row)
    if row.get("training") is not None:  # accuracy on the messages that a network learned from
        accuracy += f"; in training {_percent(row['training'])}"
    count = f"{row['count']}/{len(body['seeds'])}" + (" HOLE" if row["missing"] else "")
    paper = "-" if row["paper"] is None else f"{row['paper']:g}"
    live = "-" if row["live"] is None else " to ".join(dict.fromkeys(f"{count:,}" for count in row["live"]))
    return row["name"], paper, accuracy, _percent(row["sd"]), change, count, certified, nominal, live


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f}"


def _with_interval(row: Mapping[str, Any]) -> str:
    return _percent(row["mean"]) + ("" if row["interval"] is None else f" ± {_percent(row['interval'])}")


def terms(privacy: Mapping[str, Any]) -> str:
    """Return what a certified epsilon is to be read with (docs/privacy-model.md section 1.1)."""
    return "delta {delta:g}, {adjacency}, unit {unit}".format(**privacy["certified"])


def all_terms(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the terms of the rows, each once."""
    return list(dict.fromkeys(terms(row["privacy"]) for row in rows if row["privacy"] is not None))
