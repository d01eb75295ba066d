"""``dpltm synthesize``: synthetic records into a file that every command reads as a dataset."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from dpltm.errors import InputError, as_flags
from dpltm.options.synthesize import SynthesizeRequest
from dpltm.stages import synthesize as stage
from dpltm.stages.progress import Progress
from dpltm.tickets.files import check_free, check_writable
from dpltm.tickets.ledger_file import open_ledger
from dpltm.tickets.room import SMALL, check_room
from dpltm.tickets.synthetic_files import check_name, write_synthetic
from dpltm.tickets.workbench.opening import free_name, services
from dpltm.tickets.workbench.records import open_dataset


def synthesize(request: SynthesizeRequest, progress: Progress) -> dict[str, Any]:
    """Enters the release, draws the records and writes them; returns the answer of ``dpltm synthesize``.

    Args:
        request: what was asked for.
        progress: who watches.

    Raises:
        DpltmError: bad input, before any budget is spent.
    """
    dataset = open_dataset(request)
    out = Path(request.out) if request.out else free_name(f"{dataset.name}-synthetic", ".npz")
    check_name(out)
    check_free(out)
    check_writable(out)
    path = Path(request.ledger or f"{out}.ledger.jsonl")
    if path.absolute() == out.absolute():
        raise InputError("`ledger`: the records go there; name another file")
    ledger, given = open_ledger(path, remember=not request.dry_run), services(progress)
    plan = stage.plan(dataset, request, ledger, given)
    if request.dry_run:
        return as_flags({"dry_run": True, **_facts(plan, out, path), "privacy": stage.planned_report(plan).to_json()})
    check_room(out, request.records_out * (4 * dataset.features + 8) + SMALL, path)
    made = stage.synthesize(plan, given)
    write_synthetic(out, made)  # before it is scored: what was paid for is not lost with that
    made = stage.scored(plan, made, given)
    progress.say(f"wrote {out}")
    score = None if made.score is None else asdict(made.score)
    return as_flags({**_facts(plan, out, path), "score": score, "privacy": made.privacy.to_json()})


def _facts(plan: stage.SynthesisPlan, out: Path, ledger: Path) -> dict[str, Any]:
    """What answers say of a synthesis beside what it cost."""
    dataset, options = plan.dataset, plan.options
    return {
        "synthetic": str(out),
        "source": dataset.name,
        "records": options.records_out,
        "shape": list(dataset.row_shape),
        "classes": dataset.classes,
        "bounds": list(dataset.bounds),
        "noise_multiplier": plan.event.mechanism.noise_multiplier,
        "sensitivity": plan.event.mechanism.sensitivity,
        "ledger": str(ledger),
    }
