"""``dpltm latent``: schemes, messages and what was learned from them, in folders and files."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpltm.errors import InputError, as_flags
from dpltm.local.scheme import Scheme
from dpltm.options import recorded
from dpltm.options.data import DataOptions
from dpltm.options.latent import EncodeRequest, SchemeRequest, TrainRequest
from dpltm.privacy.entry import lineage_of
from dpltm.privacy.release import pay, price
from dpltm.progress import Progress
from dpltm.records import DatasetCache, catalogue
from dpltm.records.notes import bounds_notes
from dpltm.tickets.files import check_free, check_writable, published
from dpltm.tickets.ledger_file import ledger_of, ledger_path
from dpltm.tickets.scheme_files import load_scheme, read_messages, save_learned, save_scheme, write_messages
from dpltm.tickets.workbench.records import open_dataset
from dpltm.verbs import latent as verb


def agree(request: SchemeRequest, progress: Progress, *, dataset_cache: DatasetCache | None = None) -> dict[str, Any]:
    """Make a scheme and write it; return the answer of ``dpltm latent scheme``."""
    out = Path(request.out or "")
    check_free(out)
    verb.check_scheme_options(request)
    named = DataOptions(dataset=request.public, classes=request.classes, bounds=request.bounds)
    public = open_dataset(named, dataset_cache=dataset_cache)
    ledger = ledger_of(request.public, request.ledger, request.population, public.unit)
    scheme = verb.make_scheme(public, request, ledger, progress)
    save_scheme(out, scheme)
    progress.say(f"wrote {out}")
    notes = [*bounds_notes(public), *verb.scheme_notes(scheme)]
    return as_flags({"scheme": request.out, **scheme_facts(scheme), "notes": notes})


def send(
    request: EncodeRequest, progress: Progress, *, dataset_cache: DatasetCache | None = None, own: bool = False
) -> dict[str, Any]:
    """Enter the release, randomise the records, and write the messages; return the answer of ``dpltm latent encode``."""
    out = Path(request.out or "")
    check_free(out)
    check_writable(out)
    if ledger_path(request.dataset, request.ledger).absolute() == out.absolute():
        raise InputError("`ledger`: the messages go there; name another file")
    scheme = load_scheme(Path(request.scheme or ""))
    if request.classes is None and catalogue().get(request.dataset or "") is None:
        request = replace(request, classes=scheme.answer.classes)  # owners need not know which classes others have
    dataset = open_dataset(request, for_training=False, dataset_cache=dataset_cache)
    ledger = ledger_of(request.dataset, request.ledger, request.population, dataset.unit)
    plan = verb.encoding(scheme, dataset, request, ledger, progress)
    if request.dry_run:
        account = price(plan, ledger.book)
    else:
        paid = pay(lambda *_: plan, ledger)
        account = ledger.book.own_account(paid.lineage) if own else paid.account
        write_messages(out, scheme, len(dataset.train), paid.values, paid.lineage)
        progress.say(f"wrote {out}")
    return as_flags(
        {
            **({"dry_run": True} if request.dry_run else {}),
            "messages": str(out),
            "records": len(dataset.train),
            **scheme_facts(scheme),
            "privacy": verb.encoding_report(plan, account, request.delta).to_json(),
        }
    )


def receive(request: TrainRequest, progress: Progress, *, dataset_cache: DatasetCache | None = None) -> dict[str, Any]:
    """Train a network on messages, and write it; return the answer of ``dpltm latent train``."""
    out = Path(request.out or "")
    check_free(out)
    check_writable(out)
    scheme = load_scheme(Path(request.scheme or ""))
    received = [read_messages(path, scheme) for path in _message_files(request.messages or "")]
    lineage = lineage_of(scheme, *received)
    most = verb.messages_of_one(lineage)
    test = None if request.test is None else open_dataset(_held_out(request.test, scheme), dataset_cache=dataset_cache)
    learned = verb.learn(scheme, [messages.rows for messages in received], request, test, progress, most)
    body = as_flags(
        {
            "run": str(out),
            "records": learned.records,
            "model": learned.spec.text,
            "inputs": learned.spec.features,
            "protocol": scheme.answer.protocol,
            "nominal": most * scheme.answer.nominal,
            "certified": most * scheme.answer.certified,
            "seconds": learned.seconds,
            "accuracy": learned.accuracy,
            "randomised": learned.randomised,
            "notes": list(learned.notes),
        }
    )
    save_learned(out, scheme, learned.spec, learned.weights, {**recorded(request), **published(body)}, lineage)
    progress.say(f"wrote {out}")
    return body


def scheme_facts(scheme: Scheme) -> dict[str, Any]:
    """Return what answers say of a scheme."""
    answer = scheme.answer
    return {
        "id": scheme.id,
        "features": scheme.feature_map.text,
        "values": answer.values,
        "classes": answer.classes,
        "protocol": answer.protocol,
        "epsilon": answer.epsilon,
        **answer.facts,
        "record_bytes": answer.record_bytes,
        "nominal": answer.nominal,
        "certified": answer.certified,
    }


def _held_out(name: str, scheme: Scheme) -> DataOptions:
    """Test records by name: those of a file are in the range, and of the classes, that were agreed on."""
    if name in catalogue():
        return DataOptions(dataset=name)
    low, high = scheme.feature_map.bounds
    return DataOptions(dataset=name, bounds=f"{low!r},{high!r}", classes=scheme.answer.classes)


def _message_files(text: str) -> list[Path]:
    """Return the files that are named, and those that end in .msg in folders that are named; each once."""
    files: list[Path] = []
    for name in text.split(","):
        path = Path(name)
        inside = sorted(path.glob("*.msg")) if path.is_dir() else [path]
        if not name or not inside:
            raise InputError(f"`messages`: {name!r:.80} is no file, and no folder with files that end in .msg")
        files += inside
    if len({os.path.realpath(path) for path in files}) != len(files):
        raise InputError("`messages`: a file is named twice; every message counts once")
    return files
