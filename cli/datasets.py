"""``dpltm datasets``: what data is at hand, public facts about some, and schemas of tables."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console as RichConsole

from dpltm.cli.console import answering
from dpltm.cli.show import show_answer
from dpltm.errors import InputError, did_you_mean
from dpltm.options import parse_pair
from dpltm.options.datasets import FetchRequest, InfoRequest, LsRequest, SchemaRequest
from dpltm.privacy.entry import NO_LINEAGE, RECORD
from dpltm.progress import Progress
from dpltm.records.catalogue import catalogue, data_home
from dpltm.records.files import TABLES, file_digest, reading
from dpltm.records.input_parts import shown
from dpltm.records.load import download, load
from dpltm.records.notes import bounds_notes, left_out_note
from dpltm.records.schema import Column, Schema, read_schema, schema_text
from dpltm.records.tables import DRAFTED, READ_OFF, check_spelling, draft, public_records, read_off
from dpltm.tickets.files import check_free, check_writable, new_file
from dpltm.tickets.ledger_file import ledger_of, ledger_path
from dpltm.tickets.workbench.records import open_dataset
from dpltm.verbs.schema import find_schema, load_unfinished


def list_datasets(request: LsRequest, progress: Progress) -> dict[str, Any]:
    """Return the datasets that are known by name, and files of the user's own in the data home."""
    del request, progress
    home, known = data_home(), catalogue()
    files = {path.stem for path in home.glob("*.npz")}
    own = "a file of yours; needs --bounds unless its values are bytes, 0 to 255"
    texts: dict[str, tuple[str, str]] = {name: (entry.kind, entry.summary) for name, entry in known.items()}
    texts |= dict.fromkeys(sorted(files - known.keys()), ("", own))
    rows = []
    for name, (kind, summary) in texts.items():
        available = "yes" if name in {"digits", *files} else "download" if known[name].openml else "no"
        rows.append({"name": name, "kind": kind, "summary": summary, "available": available})
    return {"home": str(home), "datasets": rows}


def fetch(request: FetchRequest, progress: Progress) -> dict[str, Any]:
    """Return where a known dataset lies, downloaded if it is not at hand."""
    name = request.dataset
    home = data_home()
    if name not in catalogue():
        near = did_you_mean(name, catalogue()) or "; dpltm datasets ls lists them"
        raise InputError(f"NAME {name!r:.80}: no dataset known by name{near}")
    file = home / f"{name}.npz"
    fetched = bool(catalogue()[name].openml) and not file.is_file()
    if fetched:
        check_writable(file)
        train, test = download(catalogue()[name], home)
        assert train.y is not None
        assert test.y is not None
        progress.say(f"{name}: writing {file}")
        with new_file(file) as staging, staging.open("wb") as stream:  # numpy would add a suffix to a name
            np.savez_compressed(stream, x_train=train.x, y_train=train.y, x_test=test.x, y_test=test.y)
    lies = {"file": str(file), "sha256": file_digest(file)} if file.is_file() else {"file": None, "sha256": None}
    return {"name": name, "records": load(name).records, "fetched": fetched, **lies}


def dataset_info(request: InfoRequest, progress: Progress) -> dict[str, Any]:
    """Return the public facts about a dataset."""
    del progress
    dataset = open_dataset(request)
    bounds: dict[str, Any] = {"bounds": list(dataset.bounds), "bounds_origin": dataset.bounds_origin}
    return {
        "name": dataset.name, "records": dataset.records, "records_origin": dataset.records_origin,
        "test_records": None if dataset.test is None else len(dataset.test),
        "shape": "x".join(str(size) for size in dataset.train.shape), "features": dataset.features,
        "classes": dataset.classes, "classes_origin": dataset.classes_origin,
        **({"classes": None, "classes_origin": None, "target": list(dataset.target)} if dataset.target else {}),
        **(dict.fromkeys(bounds) if dataset.tables else bounds), "tables": list(dataset.tables) or None,
        "notes": [*bounds_notes(dataset), *([left_out_note(dataset.left_out)] if dataset.left_out else [])],
    }  # fmt: skip


def schema(request: SchemaRequest, progress: Progress) -> dict[str, Any]:
    """Return the schema of a table, drafted or finished."""
    path = Path(request.file)
    out = None if request.out is None else Path(request.out)
    if out is not None:
        check_free(out)
        check_writable(out)
    _check_asked(request)
    partial = None if request.schema is None else read_schema(Path(request.schema), part=True)
    described = [] if partial is None else [column.name for column in partial.columns]
    finds = request.private is not None or request.from_public
    with reading(path, "") as kind:
        if kind not in TABLES:
            raise InputError(f"{path}: is no table; give a file that ends in {', '.join(TABLES)}")
        classes = [] if request.classes is None else request.classes.split(",")
        target = None if request.target_bounds is None else parse_pair("target_bounds", request.target_bounds)
        drafted = draft(path, partial, request.label, request.unit_column, classes, target)
        by_name = set(_ignored(drafted.columns)) - {request.unit_column, *described}
        notes = [left_out_note(sorted(by_name))] if by_name else []  # nobody but its name says that it is none
    if finds:
        if drafted.labels is None:
            columns = shown([column.name for column in drafted.columns])
            raise InputError(f"`label` is missing: the column to learn; {path} has {columns}")
        check_spelling(path, drafted)
    if request.private is not None:
        return _find(request, path, drafted, progress, notes)
    lineage, words = NO_LINEAGE, DRAFTED
    if request.from_public:
        records = public_records(path, drafted)
        wanted = {column.name for column in drafted.wanted}
        drafted, words = read_off(path, drafted, described), READ_OFF
        ignored = [name for name in _ignored(drafted.columns) if name in wanted]
        notes += [IDENTIFIERS.format(shown(ignored))] if ignored else []
        ledger = ledger_of(request.file, request, request.unit_column or RECORD)
        read = "kinds, bounds and categories of columns, for a schema"
        lineage = records.lineage | ledger.declare_once(*ledger.public(records, read))
    text = schema_text(drafted, drafted.columns, lineage, words.format(name=path.name))
    _write(out, text)
    return {"file": str(path), "schema": text.rstrip("\n"), "out": request.out, "notes": notes}


def _ignored(columns: Iterable[Column]) -> list[str]:
    return [column.name for column in columns if column.kind == "ignored"]


def _check_asked(request: SchemaRequest) -> None:
    """Refuse options that say nothing beside others."""
    for name, instead in (("classes", "target_bounds"), ("private", "from_public")):
        if getattr(request, name) and getattr(request, instead):
            raise InputError(f"`{name}`, `{instead}`: both say what only one of them can; leave one out")
    with_private = ("records", "subset", "test", "dry_run", *(() if request.from_public else ("ledger", "population")))
    for needed, names in (("label", ("classes", "target_bounds")), ("private", with_private)):
        for name in names:
            if getattr(request, needed) is None and getattr(request, name):
                raise InputError(f"`{name}`: goes with `{needed}`; add that, or leave it out")
    if request.private is not None and request.out is None and not request.dry_run:
        raise InputError(
            "`out` is missing: what is found is written once, and finding it again costs again; name a file"
        )


def _write(out: Path | None, text: str) -> None:
    if out is not None:
        with new_file(out) as staging:
            staging.write_text(text, encoding="utf-8")


FEW_OUTSIDE = 0.1  # share of values outside of the bounds from which on a note tells of it
OUTSIDE = (
    "over a tenth of the values of {names} may lie outside of the bounds, and count as the nearest of them: raise `private`,"
    " or write public bounds into a `schema`"
)
IDENTIFIERS = (
    "columns ignored, since they look like identifiers: {}; where one is a feature, say its kind in a `schema`"
)
UNUSABLE = (
    "nothing can be trained by this schema, for no {0} stand out of the noise: raise `private`, or write public ones into a"
    " `schema`"
)


def _find(request: SchemaRequest, path: Path, drafted: Schema, progress: Progress, notes: list[str]) -> dict[str, Any]:
    """The schema with its unknown parts found, and what that cost; refused before anything is spent."""
    table = load_unfinished(path, drafted, request.unit_column, request.subset, request.records, request.test)
    ledger = ledger_of(request.file, request, table.dataset.unit)
    result = find_schema(table, request, ledger, progress, dry_run=request.dry_run)
    wanted = [column.name for column in drafted.wanted]
    facts = {
        "file": str(path), "columns": wanted, "noise_multiplier": result.mechanism.noise_multiplier,
        "noise_std": result.mechanism.noise_std, "rarest": result.rarest, "privacy": result.privacy.to_json(),
    }  # fmt: skip
    if request.dry_run:
        return {"dry_run": True, **facts}
    _write(Path(str(request.out)), result.text)
    classes = Schema(result.columns).class_names
    features = sum(column.features for column in result.columns if column.kind != "label")
    wide = [name for name, share in result.outside.items() if share > FEW_OUTSIDE]
    notes += [OUTSIDE.format(names=shown(wide))] if wide else []
    needed = {"bounds and values": features, "classes of the label": classes or drafted.target}
    notes += [UNUSABLE.format(what) for what, there in needed.items() if not there]
    return {
        **facts,
        "ignored": [name for name in _ignored(result.columns) if name in wanted],
        "classes": None if drafted.target else list(classes),
        "features": features,
        "outside": {name: round(share, 4) for name, share in result.outside.items()},
        "notes": notes,
        "schema": result.text.rstrip("\n"),
        "out": request.out,
        "ledger": str(ledger_path(request.file, request.ledger)),
    }


def show_schema(rich: RichConsole, body: dict[str, Any]) -> None:
    """Show a draft, or where it was written and what finding it cost."""
    if body["out"] is None:
        rich.print(body["schema"], soft_wrap=True)
    else:
        facts = {name: value for name, value in body.items() if name != "schema"}
        show_answer("wrote {out}", rich, facts)


schema_command = answering(schema, show_schema, lambda body: body.get("features") == 0 or body.get("classes") == [])
ls_command = answering(list_datasets, partial(show_answer, "datasets"))
fetch_command = answering(fetch, partial(show_answer, "{name}"))
info_command = answering(dataset_info, partial(show_answer, "{name}"))
