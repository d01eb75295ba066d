"""The command to type after a stage, with the names of this one."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from dpltm.errors import in_flags
from dpltm.options.data import DataOptions
from dpltm.options.generate import GenerateRequest
from dpltm.options.latent import EncodeRequest, SchemeRequest
from dpltm.options.latent import TrainRequest as LatentTrainRequest
from dpltm.options.run import DemoRequest, RunRequest
from dpltm.options.select import SelectRequest
from dpltm.options.synthesize import SynthesizeRequest
from dpltm.options.tickets import PullRequest, PushRequest
from dpltm.options.train import TrainRequest
from dpltm.options.tune import TuneRequest

PRIVATE = "--dataset PRIVATE"
"""Private records that are not known yet; capitals are to be filled in."""


def after(request: Any, body: dict[str, Any]) -> list[str]:
    """Return commands that go on from the JSON answer of another, the likeliest first; none after a dry run."""
    if body.get("dry_run"):
        return []
    match request:
        case GenerateRequest():
            made_here = body["provenance"] in ("private", "dp")
            last = body["tickets"][-1]["round"]
            data = (_records(request) if made_here else PRIVATE) + _ledger(request)
            return _after_tickets(body["ticket_set"], last, data)
        case SelectRequest():
            data = _records(request) if request.dataset is not None else PRIVATE
            return [f"dpltm train {_quoted(body['ticket_set'])} {data}{_ledger(request)} --epsilon E"]
        case TrainRequest():
            unmeasured = body["accuracy"] is None and request.test is None
            data = _records(request) + (" --test FILE" if unmeasured else "")
            return _after_training(body["run"], data, audited=request.audit is not None)
        case TuneRequest(out=str(out)):
            return [f"dpltm train {PRIVATE} --config {_quoted(out)} --epsilon {request.epsilon:g}"]
        case RunRequest(out=str(out)) | DemoRequest(out=str(out)) if "train" in body:
            data = "--dataset digits" if isinstance(request, DemoRequest) else "--dataset NAME"
            return [*_after_training(f"{out}/run", data), f"dpltm privacy ledger {_quoted(out)}/ledger.jsonl"]
        case SynthesizeRequest():
            made = _quoted(body["synthetic"])
            return [
                f"dpltm generate --dataset {made} --provenance public --out TICKETS",
                f"dpltm privacy ledger {_quoted(body['ledger'])}",
            ]
        case PushRequest():
            out = "" if body["pushed"].startswith("hf://") else " --out DIR"
            return [f"dpltm tickets pull {_quoted(body['pushed'])} --digest {body['digest']}{out}"]
        case PullRequest():
            uses = _after_tickets(body["ticket_set"], body["tickets"][-1]["round"], PRIVATE)
            return uses if body["predictors"] else uses[1:]
        case SchemeRequest(out=str(out)):
            return [f"dpltm latent encode {_quoted(out)} {PRIVATE} --out MESSAGES"]
        case EncodeRequest(out=str(out)):
            return [f"dpltm latent train {_quoted(request.scheme or '')} --messages {_quoted(out)} --out RUN"]
        case LatentTrainRequest(out=str(out)):
            return [f"dpltm predict {_quoted(out)} --input FILE -o predicted.csv"]
    return []


def _after_tickets(tickets: str, last: int, data: str) -> list[str]:
    return [
        f"dpltm select {_quoted(tickets)} {data} --score additive --eps1 0.1",
        f"dpltm train {_quoted(f'{tickets}@{last}')} {data} --epsilon E",
    ]


def _after_training(run: str, data: str, *, audited: bool = False) -> list[str]:
    attack = [f"dpltm audit {_quoted(run)}"] if audited else []
    uses = [f"dpltm evaluate {_quoted(run)} {data}", f"dpltm predict {_quoted(run)} --input FILE -o predicted.csv"]
    return [*attack, *uses]


def _records(request: Any) -> str:
    return _flags(request, (item.name for item in fields(DataOptions)))


def _ledger(request: Any) -> str:
    given = _flags(request, ("ledger",))
    return f" {given}" if given else ""


def _flags(request: Any, names: Iterable[str]) -> str:
    given = ((name, getattr(request, name, None)) for name in names)
    return " ".join(f"{in_flags(f'`{name}`')} {_quoted(value)}" for name, value in given if value not in (None, False))


def _quoted(value: object) -> str:
    return shlex.quote(str(value))
