"""``dpltm report``: a run, a ticket set or a sweep as one page, or as a card."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpltm.errors import ArtifactError, DpltmError, InputError, as_flags, first_line
from dpltm.networks.masks import Mask
from dpltm.options.report import ReportRequest
from dpltm.privacy.account import Account
from dpltm.privacy.accountants import certified_by
from dpltm.privacy.entry import RECORD
from dpltm.privacy.figures import figure
from dpltm.progress import Progress
from dpltm.pruning.ticket_set import TicketSet
from dpltm.records.catalogue import catalogue
from dpltm.reports import fields
from dpltm.reports.fields import Field
from dpltm.reports.statement import Subject, Terms, curves_of, statement
from dpltm.reports.subjects import (
    number,
    run_subject,
    section,
    set_subject,
    terms_of_run,
    text,
)
from dpltm.reports.words import in_plain_words
from dpltm.tickets import report_charts as charts
from dpltm.tickets.curve_files import check_plot
from dpltm.tickets.files import check_free, check_writable, new_file
from dpltm.tickets.model_card import card_text, for_page, signed
from dpltm.tickets.pictures import MAX_LAYERS, Picture, densities, first_layer, layer
from dpltm.tickets.report_page import Page, Section, Table
from dpltm.tickets.run import FoundRun, find_run, is_run
from dpltm.tickets.store import find_set, split_round
from dpltm.tickets.svg import Chart
from dpltm.tickets.sweep_report import find_sweep, is_sweep
from dpltm.tickets.workbench.opening import free_name
from dpltm.verbs.audit import audit


@dataclass(frozen=True)
class Reported:
    """What a report is made of.

    Attributes:
        statement: signed.
        account: of the statement.
        terms: of its guarantee.
        sections: beside those that every report has.
        problems: what is missing or wrong.
        state: ``finished``, ``unfinished`` or ``damaged``.
    """

    statement: dict[str, Any]
    account: Account
    terms: Terms
    sections: Sequence[Section] = ()
    problems: Sequence[str] = ()
    state: str = "finished"


def report(request: ReportRequest, progress: Progress) -> dict[str, Any]:
    """The JSON answer of ``dpltm report``; the files that were asked for are written.

    Raises:
        InputError: there is nothing to report on.
        ArtifactError: a file is there already, or cannot be written.
    """
    target = Path(request.target or "")
    out = Path(request.out) if request.out else free_name(_stem(target), ".card.md" if request.card else ".html")
    for name, path in (("out", out), *([("plot", Path(request.plot))] if request.plot else [])):
        check_free(path, name)
        check_writable(path)
    if request.plot:
        check_plot(Path(request.plot))
        if Path(request.plot) == out:
            raise InputError("`out`, `plot`: name two different files")
    progress.say(f"reading {target}")
    made = reported(request.target or "", progress)
    if request.card and made.state != "finished":
        raise InputError(
            f"`card`: {target} is {made.state}: {made.problems[0]}; leave `card` out for a page that says what is missing"
        )
    page = None if request.card else page_of(made)
    drawn = _charts(made) if request.plot else []
    if request.plot and not drawn:
        raise InputError(f"`plot`: {target} has no curve to draw")
    with new_file(out) as staging:
        staging.write_text(card_text(made.statement) if page is None else page.html(), encoding="utf-8")
    if request.plot:
        charts.write_charts(Path(request.plot), drawn, f"{made.statement['kind']} {made.statement['name']}")
    said = made.statement
    return as_flags(
        {
            "report": str(out),
            "of": str(target),
            "kind": said["kind"],
            "state": made.state,
            "problems": list(made.problems),
            "bytes": out.stat().st_size,
            "plot": request.plot,
            "privacy": {key: said[key] for key in ("certified", "nominal", "notes")},
        }
    )


def _stem(target: Path) -> str:
    return target.resolve().name or "dpltm"


def reported(target: str, progress: Progress) -> Reported:
    """What is to be said of whatever lies in a folder.

    Raises:
        InputError: neither a run, nor a set, nor a sweep.
    """
    path = Path(target)
    if is_sweep(path):
        return _of_sweep(path)
    if is_run(path):
        return _of_run(find_run(path), progress)
    if not (path / "tickets.json").exists() and not target.startswith("bundled:"):
        raise InputError(
            f"{target}: neither a run, a ticket set nor a sweep; name what dpltm train, generate or run made"
        )
    return _of_set(find_set(split_round(target)[0]))


def _charts(made: Reported) -> list[Chart]:
    curves = curves_of(made.account)
    drawn = [chart for part in made.sections for chart in part.charts]
    return [*drawn, *([] if curves is None else [charts.trade_off(curves)])]


# a run


def _of_run(found: FoundRun, progress: Progress) -> Reported:
    config, result, problems = found.config or {}, found.result or {}, list(found.problems)
    terms = terms_of_run(config)
    if found.state == "unfinished":
        notes = ("the run has not ended; what it costs is spent already",)
        subject = Subject("run", found.path.name, notes=notes, state="unfinished")
        body = statement(subject, found.account, terms)
        return Reported(signed(body), found.account, terms, (), problems, found.state)
    parameters = None if found.run is None else found.run.spec.parameters
    subject = run_subject(
        found.path.resolve().name, config, result, found.entry, parameters=parameters, versions=found.environment,
    )  # fmt: skip
    attacked = _audit(found, progress)
    subject = replace(subject, outcome={**subject.outcome, **attacked})
    body = statement(subject, found.account, terms)
    problems += _unlike_result(body, result)
    state = "damaged" if problems else found.state
    sections = list(_run_sections(found, body["settings"].get("provenance"), bool(attacked)))
    return Reported(signed({**body, "state": state}), found.account, terms, sections, problems, state)


def _unlike_result(body: dict[str, Any], result: Any) -> list[str]:
    """Where a run's own result says a smaller epsilon than its lineage gives; what its ledger holds beside may add to it."""
    stated = section(section(result, "privacy"), "certified").get("epsilon")
    again = float(body["certified"]["epsilon"])
    value = math.inf if stated == "inf" else number(stated)
    if value is None or value >= again * (1 - 1e-3):
        return []
    return [
        f"result.json says certified epsilon {figure(value)}, but its lineage gives {figure(again)}: one of them was changed"
    ]


def _audit(found: FoundRun, progress: Progress) -> dict[str, Any]:
    """What made-up records found, where the training had some."""
    if found.run is None or found.run.observations is None:
        return {}
    progress.say("looking for the canaries")
    try:
        findings = audit(found.run)
    except DpltmError:
        return {}
    return {
        "audit_lower_bound": findings.lower_bound, "audit_canaries": findings.canaries,
        "audit_confidence": findings.confidence,
    }  # fmt: skip


def _run_sections(found: FoundRun, provenance: str | None, audited: bool) -> Iterator[Section]:
    """What a run shows beside its statement.

    Args:
        found: the run.
        provenance: of its ticket set, as far as its ledger and configuration know it.
        audited: whether made-up records attacked it.
    """
    config = found.config or {}
    yield Section("What gradients go through", charts=charts.filter_shape(section(config, "options")))
    if found.metrics:
        yield Section("Over the steps", charts=charts.over_steps(found.metrics, found.measure))
    tickets = _tickets_of(found)
    if tickets is not None:
        yield _ticket_section(tickets, config.get("round"))
        provenance = "private" if "private" in (provenance, tickets.provenance) else tickets.provenance
    if found.run is not None and config.get("ticket_set_id") is None:
        yield _mask_section(found.run.mask, _image_of(found), "data-free")  # the whole network
    elif found.run is not None:
        yield _mask_section(found.run.mask, _image_of(found), provenance)
    if not audited:
        yield Section(
            "Audit", words=["This training was not attacked. dpltm train --audit 1000 lets made-up records try."]
        )


def _tickets_of(found: FoundRun) -> TicketSet | None:
    """The set that a run started from, where it lies beside it or comes with dpltm."""
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


def _image_of(found: FoundRun) -> tuple[int, ...] | None:
    """The shape of an image, where the records of a run are known to be some."""
    config = found.config or {}
    name = text(section(config, "part").get("name"))
    if config.get("feature_map") is not None or name is None:
        return None
    described = catalogue().get(name)
    return described.shape if described is not None and described.kind == "image" else None


# a set, a sweep


def _of_set(tickets: TicketSet) -> Reported:
    delta = number(tickets.config.get("delta"))
    terms = Terms(delta if delta is not None and 0 < delta < 1 else 1e-5)
    paid = tickets.lineage.paid
    account = Account.of((), tickets.lineage, unit=paid[0].unit if paid else RECORD)
    subject = set_subject(tickets)
    body = statement(subject, account, terms)
    source = catalogue().get(str(subject.settings["dataset"]))
    image = source.shape if source is not None and source.kind == "image" and tickets.feature_map is None else None
    last = tickets.body.tickets[-1]
    sections = [
        _ticket_section(tickets, None),
        _mask_section(last.mask, image, tickets.provenance, f" of round {last.round}"),
    ]
    return Reported(signed(body), account, terms, sections)


def _of_sweep(path: Path) -> Reported:
    found = find_sweep(path)
    body = statement(replace(found.subject, state=found.state), found.account, found.terms)
    rows = Section(
        "The rows",
        tables=[Table("All rows of the recipe", *found.rows)],
        charts=charts.against_epsilon(found.points, found.measure),
    )
    return Reported(signed(body), found.account, found.terms, [rows], found.problems, found.state)


def _ticket_section(tickets: TicketSet, chosen: object) -> Section:
    missing = "withheld" if tickets.provenance == "private" else "not measured"
    rows = [
        (
            f"{one.round} (this one)" if one.round == chosen else str(one.round),
            fields.percent(one.mask.density),
            f"{one.mask.live:,}",
            missing if one.accuracy is None else fields.percent(one.accuracy),
        )
        for one in tickets.body.tickets
    ]
    table = Table("Tickets by round; 0 is the whole network", ("round", "density", "live", "accuracy"), rows)
    return Section("The tickets", tables=[table], charts=charts.against_density(tickets))


def _mask_section(mask: Mask, image: tuple[int, ...] | None, provenance: str | None, what: str = "") -> Section:
    """Densities, and pictures of the weights' masks; neither where records may be behind them without a mechanism."""
    if provenance in (None, "private"):
        whence = (
            "were made from private records with no mechanism, and may reveal them" if provenance == "private" else
            "come from tickets of which no provenance is on record, and may reveal private records"
        )  # fmt: skip
        return Section("Masks", words=[f"Pictures and densities of layers are left out: these masks {whence}."])
    values = {name: value.numpy() for name, value in mask.items()}
    rows = [(name, shape, f"{live:,}", fields.percent(share)) for name, shape, live, share in densities(values)]
    table = Table(f"Live coordinates{what}", ("parameter", "shape", "live", "density"), rows)
    weights = {name: value for name, value in values.items() if value.ndim >= 2}
    first = next(iter(weights.values()), None)
    seen: list[Picture | None] = [None if first is None else first_layer(first, image)]
    drawn = [one for one in seen if one is not None]
    drawn += [layer(name, value) for name, value in list(weights.items())[:MAX_LAYERS]]
    return Section("Masks", tables=[table], pictures=drawn)


# the page


def page_of(made: Reported) -> Page:
    """The page of a report."""
    body = made.statement
    try:
        return _page(made)
    except (KeyError, TypeError, ValueError) as error:
        raise ArtifactError(
            f"{body['name']}: its files hold values that cannot be shown: {first_line(error)}"
        ) from None


def _page(made: Reported) -> Page:
    body = made.statement
    what = {"run": "a private training", "tickets": "a set of lottery tickets", "sweep": "a sweep"}[body["kind"]]
    curves = curves_of(made.account)
    odds = fields.odds_rows(body)
    head = ("false alarms", "records found, at most", "a yes is right, at most (prior 50 %)", "the same (prior 10 %)")
    sections = [
        Section("In plain words", words=in_plain_words(body)),
        Section(
            "What an attacker can do", words=fields.meaning(body),
            tables=[Table("The best attacker", head, odds)] if odds and made.account.paid else (),
            charts=[charts.trade_off(curves)] if curves is not None else (),
        ),
        Section("The guarantee", fields=list(fields.guarantee_fields(body))),
        Section("How it was made private", fields=list(fields.mechanism_fields(body))),
        _ledger_section(made),
        *made.sections,
        Section("The records", fields=list(fields.record_fields(body))),
        Section("The network", fields=list(fields.network_fields(body))),
        Section("What came of it", fields=list(fields.outcome_fields(body))),
        Section("Made with", fields=[Field(name, number) for name, number in body["versions"].items()]),
        Section("Notes", notes=body["notes"]),
    ]  # fmt: skip
    shown = [part for part in sections if not part.empty]
    title = f"{body['name']}: {what}"
    return Page(title, fields.headline(body), _boxes(body), shown, for_page(body), made.problems)


def _boxes(body: dict[str, Any]) -> list[Field]:
    """The figures at the top."""
    certified, nominal, said, got = body["certified"], body["nominal"], body["settings"], body["outcome"]
    boxes = [Field("certified epsilon", figure(certified["epsilon"]), f"proven, at delta {certified['delta']:g}")]
    if nominal is not None:
        boxes.append(
            Field("nominal epsilon", figure(nominal["epsilon"]), f"claimed by {nominal['source']}, not proven")
        )
    if got.get("accuracy") is not None:
        bar = (
            f"95 %: {fields.percent(got['low'])} to {fields.percent(got['high'])}"
            if got.get("low") is not None
            else ""
        )
        boxes.append(Field("accuracy", fields.percent(got["accuracy"]), bar))
    if said.get("density") is not None:
        boxes.append(Field("density", fields.percent(said["density"]), f"{said['live']:,} live coordinates"))
    if body["odds"] is not None and certified["epsilon"] != 0:
        right = body["odds"]["right"][0]
        boxes.append(
            Field("an attacker is right", fields.percent_up(right["at_most"]), "at most, of cases at even odds")
        )
    return boxes


def _ledger_section(made: Reported) -> Section:
    """What was entered, line by line."""
    rows = fields.ledger_rows(made.statement)
    if not rows:
        return Section("The entries, line by line", words=["No entry on private records."])
    method, unit = certified_by(made.terms.accountant), made.account.unit
    costs = [
        figure(Account((entry,), unit=unit).epsilon(made.terms.delta, method)) if entry.paid else ""
        for entry in made.account.entries
    ]
    table = [(*row, cost) for row, cost in zip(rows, costs, strict=True)]
    head = ("entry", "records", "what was done", "epsilon alone")
    return Section(
        "The entries, line by line",
        tables=[Table("Entries behind this, in their order", head, table, stacked=True)],
    )
