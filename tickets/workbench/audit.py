"""``dpltm audit``: a claim on disk is attacked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from dpltm.audit.one_run import check_confidence
from dpltm.errors import ArtifactError, InputError, as_flags
from dpltm.options.audit import AuditRequest
from dpltm.privacy.statement import json_figure
from dpltm.randomness.noise import SecureSource
from dpltm.registry import Deferred
from dpltm.stages.progress import Progress
from dpltm.tickets.accounts import ledger_of
from dpltm.tickets.audit_plot import write_audit_plot
from dpltm.tickets.curve_files import new_picture
from dpltm.tickets.run import load_run
from dpltm.tickets.store import find_set
from dpltm.tickets.workbench.opening import services
from dpltm.tickets.workbench.records import open_dataset

_of_run = Deferred("dpltm.verbs.audit:audit")
_of_demo = Deferred("dpltm.verbs.audit:demo")
_of_tickets = Deferred("dpltm.verbs.audit:audit_tickets")
_of_messages = Deferred("dpltm.audit.local:local_bound")
_scheme = Deferred("dpltm.tickets.scheme_files:load_scheme")

MESSAGES = "likelihood ratios of messages of two records"
MASKS = "made-up records with a feature that no record has, found by masks alone"


def audit(request: AuditRequest, progress: Progress) -> dict[str, Any]:
    """The JSON answer of ``dpltm audit``; the plot is written if one was asked for."""
    check_confidence(request.confidence)
    picture = new_picture(request.plot)
    body = _demo(request, progress) if request.target == "demo" else _audit(request, progress)
    if picture is not None:
        write_audit_plot(picture, body.get("rows", [body]))
    return as_flags({**body, "plot": request.plot})


def _audit(request: AuditRequest, progress: Progress) -> dict[str, Any]:
    """What is in a folder."""
    target = request.target or ""
    if (Path(target) / "config.json").is_file():
        return _audit_run(request, target, progress)
    if (Path(target) / "scheme.json").is_file():
        return _audit_scheme(request, target)
    try:
        tickets = find_set(target)
    except ArtifactError:
        if (Path(target) / "tickets.json").exists():
            raise
        raise InputError(
            f"{target}: neither a run, a ticket set nor a scheme; name what dpltm train, generate or latent scheme made"
        ) from None
    return _audit_set(request, tickets, progress)


def _demo(request: AuditRequest, progress: Progress) -> dict[str, Any]:
    """Claims on the digits, a row each."""
    if request.dataset is not None:
        raise InputError("`dataset`: the demo is on the embedded digits; leave `dataset` out")
    dataset = open_dataset(replace(request, dataset="digits"))
    found = _of_demo(dataset, services(progress), request.confidence)
    rows = [
        {
            "audited": one.what,
            "nominal": None if one.nominal is None else json_figure(one.nominal),
            "certified": json_figure(one.certified),
            "lower_bound": one.lower_bound,
            "violates": one.violates,
        }
        for one in found
    ]
    fallen = dict.fromkeys(name for one in found for name in one.violates)
    return {"audited": "demo", "confidence": request.confidence, "rows": rows, "violates": list(fallen)}


def _audit_run(request: AuditRequest, target: str, progress: Progress) -> dict[str, Any]:
    if request.dataset is not None:
        raise InputError("`dataset`: a run was attacked while it was trained; leave `dataset` out")
    progress.say("looking for the canaries")
    found = _of_run(load_run(Path(target)), confidence=request.confidence, delta=request.delta)
    return {"audited": target, **found.to_json()}


def _audit_scheme(request: AuditRequest, target: str) -> dict[str, Any]:
    if request.dataset is not None:
        raise InputError("`dataset`: the records that a scheme is attacked with are made up; leave `dataset` out")
    answer = _scheme(Path(target)).answer
    bound = _of_messages(answer, request.messages, request.confidence, SecureSource())
    claims = {"certified": answer.certified, "nominal": answer.nominal}
    return {
        "audited": target,
        "lower_bound": bound,
        **claims,
        "delta": 0.0,
        "method": MESSAGES,
        "canaries": None,
        "messages": request.messages,
        "confidence": request.confidence,
        "violates": [name for name, epsilon in claims.items() if bound > epsilon],
    }


def _audit_set(request: AuditRequest, tickets: Any, progress: Progress) -> dict[str, Any]:
    dataset = open_dataset(request)
    ledger = ledger_of(request.dataset, request.ledger, request.population, dataset.unit)
    found = _of_tickets(tickets, dataset, ledger, services(progress), confidence=request.confidence)
    claims, masks = found.claims, found.masks
    assert claims.nominal is not None
    return {
        "audited": request.target,
        "lower_bound": masks.lower_bound,
        "certified": json_figure(claims.certified.epsilon),
        "nominal": json_figure(claims.nominal.epsilon),
        "delta": 0.0,
        "method": MASKS,
        "canaries": masks.canaries,
        "confidence": masks.confidence,
        "correct": masks.correct,
        "supermask": found.supermask,
        "shuffled_mask": found.shuffled,
        "violates": found.violates,
    }
