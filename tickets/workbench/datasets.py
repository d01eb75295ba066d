"""``dpltm datasets``: what data is at hand, and the public facts about some."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dpltm.errors import InputError, as_flags
from dpltm.options.datasets import InfoRequest, ListRequest, SchemaRequest
from dpltm.privacy.behind import READ_OFF
from dpltm.privacy.events import Event, ProvenanceEvent
from dpltm.records import Description, catalogue, data_home
from dpltm.records.files import TABLES, reading
from dpltm.records.notes import bounds_notes
from dpltm.records.rating_sets import at_hand
from dpltm.records.schema_draft import draft, public_records
from dpltm.registry import Deferred
from dpltm.stages.progress import Progress
from dpltm.tickets.files import check_free, check_writable, new_file
from dpltm.tickets.identity import UserRegistry
from dpltm.tickets.workbench.records import open_dataset

_FIND = Deferred("dpltm.tickets.workbench.find_schema:find")
"""What drafts need none of."""


def list_datasets(request: ListRequest, progress: Progress) -> dict[str, Any]:
    """The datasets that are known by name, and files of the user's own in the data home."""
    del request, progress
    home, known = data_home(), catalogue()
    files = {path.stem for path in home.glob("*.npz")} if home.is_dir() else set()
    rows = [
        {"name": name, "kind": one.kind, "summary": one.summary, "available": _available(one, home, files)}
        for name, one in known.items()
        if one.refusal is None
    ]
    own = "a file of yours; needs --bounds unless its values are bytes, 0 to 255"
    rows += [{"name": name, "kind": "", "summary": own, "available": "yes"} for name in sorted(files - set(known))]
    return {"home": str(home), "datasets": rows}


def _available(known: Description, home: Path, files: set[str]) -> str:
    if known.kind == "ratings":
        return "yes" if at_hand(known, home) else "no"
    if known.name == "digits" or known.name in files:
        return "yes"
    return "download" if known.openml else "no"


def dataset_info(request: InfoRequest, progress: Progress) -> dict[str, Any]:
    """The public facts about a dataset."""
    del progress
    dataset = open_dataset(request)
    body = {
        "name": dataset.name,
        "records": dataset.records,
        "records_origin": dataset.records_origin,
        "test_records": None if dataset.test is None else len(dataset.test),
        "shape": "x".join(str(size) for size in dataset.train.x.shape[1:]),
        "features": dataset.features,
        "classes": dataset.classes,
        "classes_origin": dataset.classes_origin,
        "bounds": None if dataset.tables else list(dataset.bounds),
        "bounds_origin": None if dataset.tables else dataset.bounds_origin,
        "tables": list(dataset.tables) or None,
        "notes": bounds_notes(dataset),
    }
    return as_flags(body)


def schema(request: SchemaRequest, progress: Progress) -> dict[str, Any]:
    """A draft of the schema of a table; or, of a draft, the finished schema, with what finding it cost."""
    path = Path(request.file or "")
    out = None if request.out is None else Path(request.out)
    if out is not None:
        check_free(out)
        check_writable(out)
    if request.private is not None:
        found: dict[str, Any] = _FIND(request, path, out, progress)
        return found
    for name in ("epsilon", "unit_column", "records", "subset", "test", "ledger", "dry_run"):
        if getattr(request, name) not in (None, False):
            raise InputError(f"`{name}`: goes with `private`, the draft whose private parts are to be found; add it")
    with reading(path, "") as kind:
        if kind not in TABLES:
            raise InputError(f"{path}: is no table; give a file that ends in {', '.join(TABLES)}")
        header, events = not request.no_header, list[Event]()
        if request.from_public:
            records = UserRegistry().reference(public_records(path, request.label, header), public=True)
            events.append(ProvenanceEvent(records, "public", READ_OFF))
        text = draft(path, request.label, header, request.from_public, events)
    if out is not None:
        with new_file(out) as staging:
            staging.write_text(text, encoding="utf-8")
    return {"file": str(path), "schema": text.rstrip("\n"), "out": None if out is None else str(out)}
