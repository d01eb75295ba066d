"""``dpltm synthesize``: synthetic records into a file that every command reads as a dataset."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console as RichConsole

from dpltm.cli.console import answering
from dpltm.cli.show import show_pairs, show_privacy
from dpltm.errors import InputError
from dpltm.options.synthesize import SynthesizeRequest
from dpltm.privacy.describe import percent
from dpltm.privacy.mechanisms import GaussianRelease
from dpltm.progress import Progress
from dpltm.tickets.files import check_free, check_writable
from dpltm.tickets.ledger_file import ledger_of, ledger_path
from dpltm.tickets.store import check_name, write_synthetic
from dpltm.tickets.workbench.opening import free_name, services
from dpltm.tickets.workbench.records import open_dataset
from dpltm.verbs.synthesize import Synthesis, settle


def synthesize(request: SynthesizeRequest, progress: Progress) -> dict[str, Any]:
    """Enter the release, draw the records and write them."""
    dataset = open_dataset(request)
    out = Path(request.out) if request.out else free_name(f"{dataset.name}-synthetic", ".npz")
    check_name(out)
    check_free(out)
    check_writable(out)
    path = ledger_path(request.dataset, request.ledger)
    if path.absolute() == out.absolute():
        raise InputError("`ledger`: the records go there; name another file")
    ledger = ledger_of(request.dataset, request.ledger, request.population, dataset.noun)
    asked = settle(dataset, request, ledger, services(progress))
    if request.dry_run:
        mechanism, privacy = asked.priced()
        return {"dry_run": True, **_facts(asked, mechanism, out, path), "privacy": privacy.to_json()}
    made = asked.made()
    write_synthetic(out, made)  # before it is scored: what was paid for is not lost with that
    made = asked.scored(made)
    progress.say(f"wrote {out}")
    score = None if made.score is None else asdict(made.score)
    return {**_facts(asked, made.mechanism, out, path), "score": score, "privacy": made.privacy.to_json()}


def _facts(asked: Synthesis, mechanism: GaussianRelease, out: Path, ledger: Path) -> dict[str, Any]:
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


def show_synthesis(rich: RichConsole, body: dict[str, Any]) -> None:
    """Show the file and its facts, the score, and what is certified."""
    title = "would synthesize" if body.get("dry_run") else "synthesized"
    show_pairs(rich, title, {name: value for name, value in body.items() if name not in ("dry_run", "score")})
    if body.get("score") is not None:
        score = body["score"]
        rich.print(
            f"trained on synthetic, tested on real: {percent(score['accuracy'])} of {score['records']:,} test records,"
            f" {score['model']}"
        )
    show_privacy(rich, body["privacy"])


synthesize_command = answering(synthesize, show_synthesis)
