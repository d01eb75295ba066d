"""``dpltm report``: a run, a ticket set or a sweep as one page of HTML that needs no network, or as a card."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from dpltm.audit.findings import audit
from dpltm.errors import ArtifactError, DpltmError, InputError, as_flags, first_line
from dpltm.networks.masks import Mask
from dpltm.options.evaluate import ReportRequest
from dpltm.privacy.account import Account
from dpltm.privacy.accountants import certified_by
from dpltm.privacy.describe import figure
from dpltm.privacy.entry import lineage_from_json, lineage_of
from dpltm.privacy.statement import json_figure
from dpltm.progress import Progress
from dpltm.reports.statement import Subject, curves_of, statement
from dpltm.reports.subjects import number, run_subject, section, set_subject, skill_in, terms_of_run, text
from dpltm.reports.wording import (
    ATTACKER,
    RECORDS,
    Section,
    Table,
    boxes,
    cells,
    columns,
    headline,
    sections,
    skill_tables,
    tables,
    verdict,
)
from dpltm.tickets import charts
from dpltm.tickets.files import (
    MAX_JSON,
    check_free,
    check_writable,
    free_name,
    new_file,
    parse_json,
    read_bytes,
    read_json,
)
from dpltm.tickets.ledger_file import BESIDE, ledger_path, open_ledger
from dpltm.tickets.model_card import KINDS, card_text, for_page, signed, template
from dpltm.tickets.run import FoundRun, find_run, is_run
from dpltm.tickets.store import find_set, split_round
from dpltm.tickets.sweep_files import FORMAT, RESULT_FORMAT, RESULT_SCHEMA, SCHEMA, is_sweep
from dpltm.training.artifacts import TicketSet


@dataclass(frozen=True)
class Reported:
    """Parts of a report."""

    subject: Subject
    account: Account
    sections: Sequence[Section] = ()
    problems: Sequence[str] = ()


def report(request: ReportRequest, progress: Progress) -> dict[str, Any]:
    """Return the JSON answer of ``dpltm report``; the files that were asked for are written."""
    target = Path(request.target or "")
    suffix = ".card.md" if request.card else ".html"
    out = Path(request.out) if request.out else free_name(target.resolve().name or "dpltm", suffix)
    check_free(out)
    check_writable(out)
    picture = charts.new_picture(request.plot)
    if picture == out:
        raise InputError("`out`, `plot`: name two different files")
    progress.say(f"reading {target}")
    made = _reported(request, progress)
    state = made.subject.state
    if request.card and state != "finished":
        raise InputError(
            f"`card`: {target} is {state}: {made.problems[0]}; leave `card` out for a page that says what is missing"
        )
    said = signed(statement(made.subject, made.account))
    curves = curves_of(made.account)
    attacker = [] if curves is None else [charts.trade_off(curves)]
    drawn = [*(chart for part in made.sections for chart in part.charts), *attacker]
    if picture is not None and not drawn:
        raise InputError(f"`plot`: {target} has no curve to draw")
    content = card_text(said) if request.card else _page(made, said, attacker)
    with new_file(out) as staging:
        staging.write_text(content, encoding="utf-8")
    if picture is not None:
        charts.write_charts(picture, drawn, f"{said['kind']} {said['name']}")
    return as_flags(
        {
            "report": str(out),
            "of": str(target),
            "kind": said["kind"],
            "state": state,
            "problems": list(made.problems),
            "verdict": said["outcome"].get("verdict"),
            "decision": verdict(said) or None,
            "bytes": out.stat().st_size,
            "plot": request.plot,
            "privacy": {key: said[key] for key in ("certified", "nominal", "notes")},
        }
    )


def _reported(request: ReportRequest, progress: Progress) -> Reported:
    target = request.target or ""
    path = Path(target)
    if is_run(path):
        return _of_run(find_run(path), request, progress)
    for name in ("ledger", "purpose", "contact"):
        if getattr(request, name) is not None:
            raise InputError(f"`{name}`: is of the report of a run, and {target} is none; leave it out")
    if is_sweep(path):
        return _of_sweep(path)
    if not (path / "tickets.json").exists() and not target.startswith("bundled:"):
        raise InputError(
            f"{target}: neither a run, a ticket set nor a sweep; name what dpltm train, generate or run made"
        )
    return _of_set(find_set(split_round(target)[0]))


# --- a run ------------------------------------------------------------------------------------------------------------


def _of_run(found: FoundRun, request: ReportRequest, progress: Progress) -> Reported:
    config, result, problems = found.config or {}, found.result or {}, list(found.problems)
    account, name = found.account, found.path.resolve().name
    if found.state == "unfinished":
        notes = ("the run has not ended; what it costs is spent already",)
        subject = Subject("run", name, notes=notes, state="unfinished", **terms_of_run(config))
        return Reported(subject, account, (), problems)
    subject = run_subject(
        name, config, result, parameters=found.parameters, versions=found.environment, weights=found.weights
    )
    subject = replace(subject, settings={**subject.settings, "purpose": request.purpose, "contact": request.contact})
    attacked = _audit(found, progress)
    if (wrong := found.understated) is not None:
        problems.append(wrong)
    attacked |= _all_together(found, subject, request.ledger)
    parts = list(_run_sections(found, subject.settings.get("provenance"), "audit_canaries" in attacked))
    state = "damaged" if problems else found.state
    return Reported(replace(subject, outcome={**subject.outcome, **attacked}, state=state), account, parts, problems)


def _all_together(found: FoundRun, subject: Subject, named: str | None) -> dict[str, Any]:
    """Return what all on the same people comes to, by the ledger that paid; empty where that is not at hand.

    Raises:
        InputError: the ledger that was named paid for nothing of this run.
    """
    if named is not None and not Path(named).exists():
        raise InputError(f"`ledger`: {named}: there is no such file; name the one that paid for {found.path}")
    mine = {entry.id for entry in found.lineage.paid}
    usual = dict.fromkeys((BESIDE, *(ledger_path(entry.part.name).name for entry in found.lineage.paid)))
    at_hand = [Path(named)] if named else [folder / name for folder in (Path(), found.path.parent) for name in usual]
    books = (open_ledger(path, links=named is not None).book for path in at_hand if path.exists())
    book = next((one for one in books if mine & {entry.id for entry in one.entries}), None)
    if book is None and named is not None:
        raise InputError(f"`ledger`: {named} paid for nothing of {found.path}; name the ledger that did")
    if book is None:
        return {}
    account = book.account(found.lineage)
    limit = account.budget
    return {
        "others": sum(entry.paid and entry.id not in mine for entry in account.entries),
        "together": json_figure(account.epsilon(subject.delta, certified_by(subject.accountant))),
        **({} if limit is None else {"limit": limit.epsilon, "limit_delta": limit.delta}),
    }


def _audit(found: FoundRun, progress: Progress) -> dict[str, Any]:
    if found.run is None or found.run.observations is None:
        return {}
    progress.say("looking for the canaries")
    try:
        findings = audit(found.run)
    except DpltmError:
        return {}
    return {f"audit_{name}": getattr(findings, name) for name in ("lower_bound", "canaries", "confidence")}


def _run_sections(found: FoundRun, provenance: str | None, audited: bool) -> Iterator[Section]:
    """Yield sections beside the statement; ``provenance`` as far as its lineage and configuration know it."""
    config = found.config or {}
    skill = skill_in(found.result or {})
    if skill is not None:
        yield Section("How good it is", tables=skill_tables(skill))
    if found.metrics and len(found.metrics) > 1:
        yield Section("Over the steps", charts=charts.over_steps(found.metrics, found.measure))
    tickets = _tickets_of(found)
    if tickets is not None:
        yield _ticket_section(tickets, config.get("round"))
        provenance = "private" if "private" in (provenance, tickets.provenance) else tickets.provenance
    if config.get("ticket_set_id") is None:
        provenance = "data-free"  # the whole network
    if found.run is not None:
        yield _mask_section(found.run.mask, provenance)
    if not audited:
        yield Section("Audit", ["This training was not attacked. dpltm train --audit 1000 lets made-up records try."])


def _tickets_of(found: FoundRun) -> TicketSet | None:
    config = found.config or {}
    named, wanted = text(section(config, "options").get("ticket")), text(config.get("ticket_set_id"))
    if named is None or wanted is None:
        return None
    try:
        name = split_round(named)[0]
        tickets = find_set(name if name.startswith("bundled:") else str(found.path.parent / Path(name).name))
    except DpltmError:
        return None
    return tickets if tickets.id == wanted else None


# --- a set ------------------------------------------------------------------------------------------------------------


def _of_set(tickets: TicketSet) -> Reported:
    delta, last = number(tickets.config.get("delta")), tickets.body.tickets[-1]
    shown = [
        _ticket_section(tickets, None), _mask_section(last.mask, tickets.provenance, f" of round {last.round}")
    ]  # fmt: skip
    subject = replace(set_subject(tickets), delta=delta if delta is not None and 0 < delta < 1 else 1e-5)
    return Reported(subject, Account.alone(tickets.lineage), shown)


def _ticket_section(tickets: TicketSet, chosen: object) -> Section:
    rows = tables("tickets", tickets=tickets, chosen=chosen)
    return Section("The tickets", tables=rows, charts=charts.against_density(tickets))


def _mask_section(mask: Mask, provenance: str | None, what: str = "") -> Section:
    """Return the densities of layers; none where records may be behind them without a mechanism."""
    if provenance in (None, "private"):
        whence = (
            "were made from private records with no mechanism, and may reveal them" if provenance == "private" else
            "come from tickets of which no provenance is on record, and may reveal private records"
        )  # fmt: skip
        return Section("Masks", [f"Densities of layers are left out: these masks {whence}."])
    return Section("Masks", tables=tables("masks", mask=mask, of=what))


# --- a sweep ----------------------------------------------------------------------------------------------------------


def _of_sweep(path: Path) -> Reported:
    """Return the report of a sweep: its table, and its total cost; nothing is written there.

    Raises ArtifactError for a damaged ledger: nobody could say what all of it cost.
    """
    title = text(read_json(path / "recipe.json", FORMAT, SCHEMA).get("title")) or path.name
    trained, problems = list[Mapping[str, Any]](), list[str]()
    folders = sorted((path / "members").iterdir())
    for folder in folders:
        try:
            trained.append(read_json(folder / "result.json", RESULT_FORMAT, RESULT_SCHEMA))
        except ArtifactError as error:
            there = (folder / "result.json").exists()
            problems.append(first_line(error) if there else f"{folder.name}: is not finished")
    certified = [section(section(section(one, "train"), "privacy"), "certified") for one in trained]
    deltas = [delta for one in certified if (delta := number(one.get("delta"))) is not None and 0 < delta < 1]
    replaced = any(one.get("adjacency") == "replace-one" for one in certified)
    parts, state = list[Section](), "unfinished"
    try:
        body: Any = parse_json(path / "results.json", read_bytes(path / "results.json", MAX_JSON))
        table = Table("All rows of the recipe", columns(body), [cells(row, body) for row in body["arms"]])
        drawn = charts.against_epsilon([_point(row) for row in body["arms"]], str(body["measure"]))
        parts.append(Section("The rows", tables=[table], charts=drawn))
        state = "finished" if body["finished"] == body["members"] else "unfinished"
    except (DpltmError, KeyError, TypeError, ValueError, AttributeError):
        problems.append(f"{path / 'results.json'}: is missing or damaged; the command of the sweep writes it again")
    lineage = lineage_of(*(lineage_from_json(one["lineage"]) for one in trained if "lineage" in one))
    if (path / BESIDE).exists():
        account = open_ledger(path / BESIDE, links=False).account(lineage)
    else:
        problems.append(f"{path / BESIDE}: is not there: what failed attempts cost is in the ledger that was named")
        account = Account.alone(lineage)
    settings = {
        "title": title, "arms": len({str(one.get("arm")) for one in trained}), "finished": len(trained),
        "members": len(folders),
    }  # fmt: skip
    state = "damaged" if problems and state == "finished" else state
    subject = Subject(
        "sweep", path.resolve().name, settings, state=state, delta=min(deltas, default=1e-5),
        adjacency="replace-one" if replaced else "add-remove",
    )  # fmt: skip
    return Reported(subject, account, parts, problems)


def _point(row: Mapping[str, Any]) -> dict[str, Any]:
    mean, half, privacy = row["mean"], row["interval"], row["privacy"]
    low, high = (None, None) if mean is None or half is None else (mean - half, mean + half)
    epsilon = None if privacy is None else privacy["certified"]["epsilon"]
    return {"label": str(row["name"]), "value": mean, "epsilon": epsilon, "low": low, "high": high}


# --- the page ---------------------------------------------------------------------------------------------------------


def _page(made: Reported, body: dict[str, Any], attacker: Sequence[charts.Chart]) -> str:
    """Return the page; its template escapes all values but charts and the statement, escaped where they are made."""
    method, unit = certified_by(made.subject.accountant), made.account.unit
    costs = [
        figure(Account((entry,), unit=unit).epsilon(made.subject.delta, method)) if entry.paid else ""
        for entry in made.account.entries
    ]
    try:
        shown = sections(body, costs)
        place = next(at for at, part in enumerate(shown) if part.title == ATTACKER)
        shown[place] = replace(shown[place], charts=attacker)
        after = next((at for at, part in enumerate(shown) if part.title == RECORDS), len(shown) - 1)
        shown[after:after] = [part for part in made.sections if part]
        return template("report.html").render(
            title=f"{body['name']}: {KINDS[body['kind']]}", headline=headline(body), figures=boxes(body), sections=shown,
            problems=made.problems, statement=for_page(body),
        )  # fmt: skip
    except (LookupError, TypeError, ValueError, TemplateError) as error:
        raise ArtifactError(
            f"{body['name']}: its files hold values that cannot be shown: {first_line(error)}"
        ) from None
