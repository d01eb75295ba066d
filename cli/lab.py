"""``dpltm audit``: a claim on disk is attacked; exit code 1 where a bound exceeds the certified one. ``dpltm latent``."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console as RichConsole

from dpltm.audit import audit
from dpltm.cli.console import answering
from dpltm.cli.show import show_answer, show_notes, show_pairs, show_privacy
from dpltm.errors import ArtifactError, InputError
from dpltm.options.audit import AuditRequest
from dpltm.privacy.describe import figure, guarantee
from dpltm.progress import Progress
from dpltm.randomness.noise import SecureSource
from dpltm.registry import Deferred
from dpltm.tickets.feature_files import services
from dpltm.tickets.ledger_file import ledger_of
from dpltm.tickets.run import load_run
from dpltm.tickets.store import find_set
from dpltm.tickets.workbench.latent import load_scheme
from dpltm.tickets.workbench.records import open_dataset
from dpltm.verbs.audit import audit_scheme, audit_tickets, demo


def attack(request: AuditRequest, progress: Progress) -> dict[str, Any]:
    """Return the JSON answer."""
    target = request.target
    files = {"config.json": _run, "scheme.json": _scheme}
    by_file = (work for file, work in files.items() if (Path(target) / file).is_file())
    work = _demo if target == "demo" else next(by_file, _tickets)
    if work is not _tickets and request.dataset is not None:
        raise InputError("`dataset`: only an audit of tickets reads records; leave `dataset` out")
    return {"audited": target, **work(request, target, progress), "confidence": request.confidence}


def _demo(request: AuditRequest, _: str, progress: Progress) -> dict[str, Any]:
    claims = demo(open_dataset(replace(request, dataset="digits")), services(progress), request.confidence)
    rows = [{"audited": claim.what, **claim.to_json()} for claim in claims]
    return {"rows": rows, "violates": list(dict.fromkeys(name for claim in claims for name in claim.violates))}


def _run(request: AuditRequest, target: str, progress: Progress) -> dict[str, Any]:
    progress.say("looking for the canaries")
    return audit(load_run(Path(target)), confidence=request.confidence, delta=request.delta).to_json()


def _scheme(request: AuditRequest, target: str, _: Progress) -> dict[str, Any]:
    answer = load_scheme(Path(target)).answer
    return audit_scheme(target, answer, request.messages, request.confidence, SecureSource()).to_json()


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


audit_command = answering(
    attack, partial(show_answer, "epsilon of {audited}"), lambda body: "certified" in body["violates"]
)


APART = {"id", "certified", "nominal", "notes", "privacy"}  # parts of an answer that are no facts in its table


def show_local(rich: RichConsole, body: dict[str, Any]) -> None:
    """Show the facts of a claim, a scheme, messages or what was learned from them; what is certified, and the claim."""
    facts = {"claimed epsilon" if name == "epsilon" else name: body[name] for name in body if name not in APART}
    show_pairs(rich, "local privacy", facts)
    certified = {"epsilon": body["certified"], "delta": 0, "adjacency": "replace-one", "unit": "record"}
    rich.print(guarantee(certified, 7), style="bold")
    rich.print(f"nominal epsilon = {figure(body['nominal'])} (claimed by: {body['protocol']})")
    if "privacy" in body:
        show_privacy(rich, body["privacy"])
    show_notes(rich, body)


epsilon_command = answering(Deferred("dpltm.tickets.workbench.latent:claim"), show_local)
scheme_command = answering(Deferred("dpltm.tickets.workbench.latent:agree"), show_local)
encode_command = answering(Deferred("dpltm.tickets.workbench.latent:send"), show_local)
train_command = answering(Deferred("dpltm.tickets.workbench.latent:receive"), show_local)
