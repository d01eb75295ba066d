"""``dpltm datasets schema`` with ``private``: a release from a table in a file, and the finished schema that comes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dpltm.errors import InputError, as_flags
from dpltm.options.datasets import SchemaRequest
from dpltm.records.private_columns import Coder
from dpltm.records.schema import MAX_BYTES, read_schema
from dpltm.records.unfinished import load_unfinished
from dpltm.stages import schema as stage
from dpltm.stages.progress import Progress
from dpltm.tickets.files import new_file
from dpltm.tickets.ledger_file import open_ledger
from dpltm.tickets.room import check_room

NO_FEATURES = (
    "nothing stands out of the noise in any column, and the draft has no other features, so nothing can be trained by this"
    " schema: raise `epsilon`, write public bounds and values, or ask for fewer columns"
)
"""Said of a schema that was paid for in vain."""


def find(request: SchemaRequest, path: Path, out: Path | None, progress: Progress) -> dict[str, Any]:
    """The answer of the command: the release is in the ledger before it is made.

    Args:
        request: what it was asked for.
        path: of the table.
        out: what is written, known to be free; None in a dry run.
        progress: who watches.

    Raises:
        DpltmError: bad input or too small a budget, before anything is spent.
    """
    drafted = Path(request.private or "")
    for name in ("label", "no_header", "from_public"):
        if getattr(request, name):
            raise InputError(f"`{name}`: is for a first draft; leave it out, since {drafted} says it")
    if out is None and not request.dry_run:
        raise InputError(
            "`out` is missing: what is found is written once, and finding it again costs again; name a file"
        )
    coder, schema = Coder(), read_schema(drafted, "`private`")
    table = load_unfinished(
        path,
        schema,
        coder,
        units=request.unit_column,
        subset=request.subset,
        records=request.records,
        test=request.test,
    )
    own = Path(request.ledger or f"{out or drafted}.ledger.jsonl")
    ledger = open_ledger(own, links=request.ledger is not None, remember=not request.dry_run)
    plan = stage.plan(table, coder.names, request, ledger, progress)
    facts = {
        "file": str(path),
        "columns": [column.name for column in plan.query.columns],
        "noise_multiplier": plan.gaussian.mechanism.noise_multiplier,
        "noise_std": plan.gaussian.mechanism.noise_std,
    }
    if request.dry_run or out is None:
        return as_flags({"dry_run": True, **facts, "privacy": stage.planned_report(plan).to_json()})
    check_room(out, MAX_BYTES, own)
    found = stage.find(plan)
    with new_file(out) as staging:
        staging.write_text(found.text, encoding="utf-8")
    made: dict[str, Any] = {"ignored": list(found.ignored), "features": found.features}
    if not found.features:
        made["notes"] = [NO_FEATURES]
    made |= {"schema": found.text.rstrip("\n"), "out": str(out), "ledger": str(own)}
    return as_flags({**facts, **made, "privacy": found.privacy.to_json()})
