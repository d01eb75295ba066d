"""``dpltm audit``: a claim on disk is attacked; exit code 1 where a bound exceeds the certified one. ``dpltm latent``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console as RichConsole

from dpltm.audit import Attacked, audit
from dpltm.cli.console import answering
from dpltm.cli.show import Cell, show_notes, show_pairs, show_privacy, show_table
from dpltm.errors import ArtifactError, InputError
from dpltm.options.audit import AuditRequest
from dpltm.privacy.describe import figure, guarantee, percent
from dpltm.progress import Progress
from dpltm.randomness.noise import SecureSource
from dpltm.registry import Deferred
from dpltm.tickets.feature_files import services
from dpltm.tickets.ledger_file import ledger_of
from dpltm.tickets.run import load_run
from dpltm.tickets.store import find_set
from dpltm.tickets.workbench.latent import load_scheme
from dpltm.tickets.workbench.records import open_dataset
from dpltm.verbs.audit import audit_tickets, demo, local_bound

MESSAGES = "likelihood ratios of messages of two records"


def attack(request: AuditRequest, progress: Progress) -> dict[str, Any]:
    """Return the JSON answer."""
    target = request.target or ""
    if target == "demo":
        body = _demo(request, progress)
    elif (Path(target) / "config.json").is_file():
        body = _run(request, target, progress)
    elif (Path(target) / "scheme.json").is_file():
        body = _scheme(request, target)
    else:
        body = _tickets(request, target, progress)
    return {"audited": target, **body, "confidence": request.confidence}


def _without_records(request: AuditRequest, why: str) -> None:
    if request.dataset is not None:
        raise InputError(f"`dataset`: {why}; leave `dataset` out")


def _demo(request: AuditRequest, progress: Progress) -> dict[str, Any]:
    _without_records(request, "the demo is on the embedded digits")
    claims = demo(open_dataset(replace(request, dataset="digits")), services(progress), request.confidence)
    rows = [{"audited": claim.what, **claim.to_json()} for claim in claims]
    return {"rows": rows, "violates": list(dict.fromkeys(name for claim in claims for name in claim.violates))}


def _run(request: AuditRequest, target: str, progress: Progress) -> dict[str, Any]:
    _without_records(request, "a run was attacked while it was trained")
    progress.say("looking for the canaries")
    return audit(load_run(Path(target)), confidence=request.confidence, delta=request.delta).to_json()


def _scheme(request: AuditRequest, target: str) -> dict[str, Any]:
    _without_records(request, "the records that a scheme is attacked with are made up")
    answer = load_scheme(Path(target)).answer
    bound = local_bound(answer, request.messages, request.confidence, SecureSource())
    facts = {"delta": 0.0, "method": MESSAGES, "canaries": None, "messages": request.messages}
    return Attacked(target, answer.certified, answer.nominal, bound, facts).to_json()


def _tickets(request: AuditRequest, target: str, progress: Progress) -> dict[str, Any]:
    try:
        tickets = find_set(target)
    except ArtifactError:
        if (Path(target) / "tickets.json").exists():
            raise
        raise InputError(
            f"{target}: neither a run, a ticket set nor a scheme; name what dpltm train, generate or latent scheme made"
        ) from None
    dataset = open_dataset(request)
    ledger = ledger_of(request.dataset, request, dataset.noun)
    return audit_tickets(
        tickets, dataset, ledger, services(progress), confidence=request.confidence, unprotected=request.unprotected
    ).to_json()


def show_findings(rich: RichConsole, body: dict[str, Any]) -> None:
    """Show claims and bounds: of the demo a row each, else with what they rest on."""
    if "rows" in body:
        columns: dict[str, Cell] = {
            "attacked": "audited",
            "nominal": lambda row: "-" if row["nominal"] is None else figure(row["nominal"]),
            "certified": lambda row: figure(row["certified"]),
            "at least": lambda row: figure(row["lower_bound"], 3, down=True),
            "refuted": lambda row: ", ".join(row["violates"]) or "nothing",
        }
        show_table(rich, body["rows"], columns)
        return
    claims = {name: figure(body[name]) for name in ("certified", "nominal") if body[name] is not None}
    fallen = {name: f"{claim}: refuted" if name in body["violates"] else claim for name, claim in claims.items()}
    rest = {name: value for name, value in body.items() if name not in ("audited", "method", "guesses", "violates")}
    bounds = {f"bound, {name}": value for name, value in body.get("bounds", {}).items()}
    show_pairs(rich, f"epsilon of {body['audited']}: {body['method']}", {**rest, **fallen, **bounds})


audit_command = answering(attack, show_findings, lambda body: "certified" in body["violates"])


SCHEME_FACTS = (
    "records", "features", "values", "bits", "candidates", "classes", "protocol", "epsilon", "alpha", "label_epsilon",
    "record_bytes",
)  # fmt: skip
CLAIM_FACTS = ("protocol", "bits", "epsilon", "alpha", "copies", "label_epsilon", "p", "q")


def show_claim(rich: RichConsole, body: dict[str, Any]) -> None:
    """Show the certified figure of a protocol, before the claim."""
    show_pairs(rich, "local privacy of a record", {name: body[name] for name in CLAIM_FACTS})
    certified = {"epsilon": body["certified"], "delta": 0, "adjacency": "replace-one", "unit": "record"}
    rich.print(guarantee(certified, 7), style="bold")
    rich.print(f"nominal epsilon = {figure(body['nominal'])} (claimed by: {body['protocol']})")
    show_notes(rich, body)


def _show_local(rich: RichConsole, title: str, facts: dict[str, Any], body: dict[str, Any]) -> None:
    show_pairs(rich, title, facts)
    certified, nominal = figure(body["certified"], 7), figure(body["nominal"])
    rich.print(f"certified local epsilon of a record = {certified} (replace-one, delta = 0)", style="bold")
    rich.print(f"nominal local epsilon of a record = {nominal} (claimed by: {body['protocol']})")
    if "privacy" in body:
        show_privacy(rich, body["privacy"])
    else:
        show_notes(rich, body)


def show_scheme(rich: RichConsole, body: dict[str, Any]) -> None:
    """Show a scheme, or the messages that were sent by one, or would be."""
    title = "would encode" if body.get("dry_run") else f"wrote {body.get('messages', body.get('scheme'))}"
    _show_local(rich, title, {key: body.get(key) for key in SCHEME_FACTS}, body)


def show_learned(rich: RichConsole, body: dict[str, Any]) -> None:
    """Show the network and how well it does."""
    facts = {key: body[key] for key in ("records", "model", "width")} | {"seconds": round(body["seconds"])}
    scores = {"accuracy": body["accuracy"], "on randomised records": body["randomised"]}
    shown = {name: percent(score) for name, score in scores.items() if score is not None}
    _show_local(rich, f"wrote {body['run']}", facts | shown, body)


epsilon_command = answering(Deferred("dpltm.tickets.workbench.latent:claim"), show_claim)
scheme_command = answering(Deferred("dpltm.tickets.workbench.latent:agree"), show_scheme)
encode_command = answering(Deferred("dpltm.tickets.workbench.latent:send"), show_scheme)
train_command = answering(Deferred("dpltm.tickets.workbench.latent:receive"), show_learned)
