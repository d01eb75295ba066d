"""``dpltm synthesize``: synthetic records into a file that every command reads as a dataset."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from dpltm.errors import InputError, as_flags
from dpltm.options.synthesize import SynthesizeRequest
from dpltm.privacy.mechanisms import GaussianRelease
from dpltm.progress import Progress
from dpltm.tickets.files import check_free, check_writable
from dpltm.tickets.ledger_file import ledger_of, ledger_path
from dpltm.tickets.store import check_name, write_synthetic
from dpltm.tickets.workbench.opening import free_name, services
from dpltm.tickets.workbench.records import open_dataset
from dpltm.verbs.synthesize import Synthesis, settle


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
    path = ledger_path(request.dataset, request.ledger)
    if path.absolute() == out.absolute():
        raise InputError("`ledger`: the records go there; name another file")
    ledger = ledger_of(request.dataset, request.ledger, request.population)
    asked = settle(dataset, request, ledger, services(progress))
    if request.dry_run:
        release, privacy = asked.priced()
        return as_flags({"dry_run": True, **_facts(asked, release.mechanism, out, path), "privacy": privacy.to_json()})
    made = asked.made()
    write_synthetic(out, made)  # before it is scored: what was paid for is not lost with that
    made = asked.scored(made)
    progress.say(f"wrote {out}")
    score = None if made.score is None else asdict(made.score)
    return as_flags({**_facts(asked, made.mechanism, out, path), "score": score, "privacy": made.privacy.to_json()})


def _facts(asked: Synthesis, mechanism: GaussianRelease, out: Path, ledger: Path) -> dict[str, Any]:
    """What answers say of a synthesis beside what it cost."""
    dataset, options = asked.dataset, asked.options
    return {
        "synthetic": str(out),
        "source": dataset.name,
        "records": options.records_out,
        "shape": list(dataset.row_shape),
        "classes": dataset.classes,
        "bounds": list(dataset.bounds),
        "noise_multiplier": mechanism.noise_multiplier,
        "sensitivity": mechanism.sensitivity,
        "ledger": str(ledger),
    }
