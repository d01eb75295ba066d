"""``dpltm report``: a run as one page of HTML that needs no network, or as a card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from dpltm.audit import audit
from dpltm.errors import ArtifactError, DpltmError, InputError, first_line
from dpltm.gone import instead
from dpltm.options.evaluate import ReportRequest
from dpltm.privacy.account import Account
from dpltm.privacy.accountants import certified_by
from dpltm.privacy.describe import figure
from dpltm.privacy.statement import json_figure
from dpltm.progress import Progress
from dpltm.reports.statement import Subject, curves_of, statement
from dpltm.reports.subjects import run_subject, skill_in, terms_of_run
from dpltm.reports.wording import render_statement, verdict
from dpltm.tickets import charts
from dpltm.tickets.files import (
    check_free,
    check_writable,
    free_name,
    new_file,
)
from dpltm.tickets.ledger_file import BESIDE, ledger_path, open_ledger
from dpltm.tickets.model_card import card_text, for_page, signed
from dpltm.tickets.run import FoundRun, find_run, is_run
from dpltm.tickets.sweep_files import is_sweep

NO_EVIDENCE: dict[str, Any] = {"skill": None, "over_steps": (), "unattacked": False}
"""What ``evidence.jinja`` shows on a page beside the statement."""


@dataclass(frozen=True)
class Reported:
    """Parts of a report; ``evidence`` as :data:`NO_EVIDENCE`."""

    subject: Subject
    account: Account
    evidence: Mapping[str, Any]
    problems: Sequence[str] = ()


def report(request: ReportRequest, progress: Progress) -> dict[str, Any]:
    """Return the JSON answer of ``dpltm report``; the page, or the card, is written."""
    target = Path(request.target or "")
    suffix = ".card.md" if request.card else ".html"
    out = Path(request.out) if request.out else free_name(target.resolve().name or "dpltm", suffix)
    check_free(out)
    check_writable(out)
    progress.say(f"reading {target}")
    if not is_run(target):
        form = "SWEEP" if is_sweep(target) else "SET" if (target / "tickets.json").exists() else "PATH"
        reason = instead(f"report {form}")
        raise InputError(
            f"{target}: a report of it{reason}" if reason else f"{target}: no run; name what dpltm train made"
        )
    reported = _of_run(find_run(target), request, progress)
    state = reported.subject.state
    if request.card and state != "finished":
        raise InputError(
            f"`card`: {target} is {state}: {reported.problems[0]}; leave `card` out for a page that says what is missing"
        )
    body = signed(statement(reported.subject, reported.account))
    curves = curves_of(reported.account)
    attacker = [] if curves is None else [charts.trade_off(curves)]
    content = card_text(body) if request.card else _page(reported, body, attacker)
    with new_file(out) as staging:
        staging.write_text(content, encoding="utf-8")
    return {
        "report": str(out),
        "of": str(target),
        "kind": body["kind"],
        "state": state,
        "problems": list(reported.problems),
        "verdict": body["outcome"].get("verdict"),
        "decision": verdict(body) or None,
        "bytes": out.stat().st_size,
        "privacy": {key: body[key] for key in ("certified", "nominal", "notes")},
    }


# --- a run ------------------------------------------------------------------------------------------------------------


def _of_run(run: FoundRun, request: ReportRequest, progress: Progress) -> Reported:
    config, result, problems = run.config, run.result, list(run.problems)
    account, name = run.account, run.path.resolve().name
    if run.state == "unfinished":
        notes = ("the run has not ended; what it costs is spent already",)
        subject = Subject(name, notes=notes, state="unfinished", **terms_of_run(config))
        return Reported(subject, account, NO_EVIDENCE, problems)
    subject = run_subject(
        name, config, result, parameters=run.parameters, versions=run.environment, weights=run.weights
    )
    subject = replace(subject, settings={**subject.settings, "purpose": request.purpose, "contact": request.contact})
    attacked = _audit(run, progress)
    if (wrong := run.understated) is not None:
        problems.append(wrong)
    attacked |= _all_together(run, subject, request.ledger)
    evidence = {
        "skill": skill_in(result),
        "over_steps": _over_steps(run.metrics or {}),
        "unattacked": "audit_canaries" not in attacked,
    }
    state = "damaged" if problems else run.state
    return Reported(
        replace(subject, outcome={**subject.outcome, **attacked}, state=state), account, evidence, problems
    )


def _over_steps(metrics: charts.Metrics) -> list[charts.Chart]:
    return (
        [*charts.accuracy_over_steps({"": [metrics]}), *charts.epsilon_over_steps(metrics)] if len(metrics) > 1 else []
    )


def _all_together(run: FoundRun, subject: Subject, ledger: str | None) -> dict[str, Any]:
    """Return what all on the same people comes to, by the ledger that paid; empty where that is not at hand.

    Raises:
        InputError: the ledger that was named paid for nothing of this run.
    """
    if ledger is not None and not Path(ledger).exists():
        raise InputError(f"`ledger`: {ledger}: there is no such file; name the one that paid for {run.path}")
    mine = {entry.id for entry in run.lineage.paid}
    usual = dict.fromkeys((BESIDE, *(ledger_path(entry.part.name).name for entry in run.lineage.paid)))
    at_hand = [Path(ledger)] if ledger else [folder / name for folder in (Path(), run.path.parent) for name in usual]
    books = (open_ledger(path, links=ledger is not None).book for path in at_hand if path.exists())
    book = next((candidate for candidate in books if mine & {entry.id for entry in candidate.entries}), None)
    if book is None and ledger is not None:
        raise InputError(f"`ledger`: {ledger} paid for nothing of {run.path}; name the ledger that did")
    if book is None:
        return {}
    account = book.account(run.lineage)
    limit = account.budget
    return {
        "others": sum(entry.paid and entry.id not in mine for entry in account.entries),
        "together": json_figure(account.epsilon(subject.delta, certified_by(subject.accountant))),
        **({} if limit is None else {"limit": limit.epsilon, "limit_delta": limit.delta}),
    }


def _audit(run: FoundRun, progress: Progress) -> dict[str, Any]:
    if run.run is None or run.run.observations is None:
        return {}
    progress.say("looking for the canaries")
    try:
        findings = audit(run.run)
    except DpltmError:
        return {}
    return {f"audit_{name}": getattr(findings, name) for name in ("lower_bound", "canaries", "confidence")}


# --- the page ---------------------------------------------------------------------------------------------------------


def _page(reported: Reported, body: dict[str, Any], attacker: Sequence[charts.Chart]) -> str:
    """Return the page; its template escapes all values but charts and the statement, escaped where they are made."""
    method = certified_by(reported.subject.accountant)
    unit = reported.account.unit
    costs = [
        figure(Account((entry,), unit=unit).epsilon(reported.subject.delta, method)) if entry.paid else ""
        for entry in reported.account.entries
    ]
    try:
        return render_statement(
            "page.html.jinja", body, **reported.evidence, costs=costs, attacker=attacker,
            problems=reported.problems, statement=for_page(body),
        )  # fmt: skip
    except (LookupError, TypeError, ValueError, TemplateError) as error:
        raise ArtifactError(
            f"{body['name']}: its files hold values that cannot be shown: {first_line(error)}"
        ) from None
