"""``dpltm report``: a run as one page of HTML that needs no network, or as a card."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from dpltm.audit import audit
from dpltm.errors import DpltmError, InputError
from dpltm.gone import instead
from dpltm.options.evaluate import ReportRequest
from dpltm.privacy.account import Account
from dpltm.privacy.accountants import certified_by
from dpltm.privacy.describe import figure
from dpltm.privacy.statement import json_figure
from dpltm.progress import Progress
from dpltm.reports.statement import Subject, curves_of, run_subject, skill_in, statement
from dpltm.reports.wording import render_statement, verdict
from dpltm.tickets import charts
from dpltm.tickets.files import check_free, check_writable, free_name, new_file
from dpltm.tickets.ledger_file import BESIDE, ledger_path, open_ledger
from dpltm.tickets.model_card import card_text, signed
from dpltm.tickets.run import FoundRun, find_run


def report(request: ReportRequest, progress: Progress) -> dict[str, Any]:
    """Return the JSON answer of ``dpltm report``; the page, or the card, is written."""
    target = Path(request.target or "")
    name = target.resolve().name
    out = Path(request.out) if request.out else free_name(name or "dpltm", ".card.md" if request.card else ".html")
    check_free(out)
    check_writable(out)
    progress.say(f"reading {target}")
    form = "SWEEP" if (target / "members").is_dir() else "SET" if (target / "tickets.json").exists() else "RUN"
    if (reason := instead(f"report {form}")) is not None:
        raise InputError(f"{target}: a report of it{reason}")
    run = find_run(target)
    if request.card and run.state != "finished":
        raise InputError(
            f"`card`: {target} is {run.state}: {run.problems[0]}; leave `card` out for a page that says what is missing"
        )
    subject = run_subject(
        run.path.resolve().name, run.config, run.result, parameters=run.parameters, versions=run.environment,
        weights=run.weights,
    )  # fmt: skip
    settings = {**subject.settings, "purpose": request.purpose, "contact": request.contact}
    outcome = {**subject.outcome, **_audit(run, progress), **_all_together(run, subject, request.ledger)}
    body = signed(statement(replace(subject, settings=settings, outcome=outcome, state=run.state), run.account))
    content = card_text(body) if request.card else _page(run, body)
    with new_file(out) as staging:
        staging.write_text(content, encoding="utf-8")
    return {
        "report": str(out),
        "of": str(target),
        "kind": body["kind"],
        "state": run.state,
        "problems": list(run.problems),
        "verdict": body["outcome"].get("verdict"),
        "decision": verdict(body) or None,
        "bytes": out.stat().st_size,
        "privacy": {key: body[key] for key in ("certified", "nominal", "notes")},
    }


def _page(run: FoundRun, body: dict[str, Any]) -> str:
    """Return the page; its template escapes all values but charts, which are escaped where they are made."""
    account, metrics, curves = run.account, run.metrics or {}, curves_of(run.account)
    delta, method = body["certified"]["delta"], certified_by(body["accountant"])
    costs = [
        figure(Account((entry,), unit=account.unit).epsilon(delta, method)) if entry.paid else ""
        for entry in account.entries
    ]
    return render_statement(
        "page.html.jinja", body, skill=skill_in(run.result), costs=costs, problems=run.problems, statement=body,
        attacker=[] if curves is None else [charts.trade_off(curves)],
        over_steps=charts.accuracy_over_steps({"": [metrics]}) if len(metrics) > 1 else [],
    )  # fmt: skip


def _all_together(run: FoundRun, subject: Subject, ledger: str | None) -> dict[str, Any]:
    """Return what all on the same people comes to, by the ledger that paid; empty where that is not at hand."""
    mine = {entry.id for entry in run.lineage.paid}
    usual = dict.fromkeys((BESIDE, *(ledger_path(entry.part.name).name for entry in run.lineage.paid)))
    at_hand = [folder / name for folder in (Path(), run.path.parent) for name in usual]  # perhaps somebody else's
    paths = [Path(ledger)] if ledger is not None else [path for path in at_hand if not path.is_symlink()]
    books = (open_ledger(path).book for path in paths if path.exists())
    book = next((candidate for candidate in books if mine & {entry.id for entry in candidate.entries}), None)
    if book is None:
        if ledger is not None:
            raise InputError(f"`ledger`: {ledger} paid for nothing of {run.path}; name the ledger that did")
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
        findings = audit(run.run).to_json()
    except DpltmError:
        return {}
    return {f"audit_{name}": findings[name] for name in ("lower_bound", "canaries", "confidence")}
