"""``dpltm latent``: schemes, messages and what was learned from them, in folders and files."""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dpltm.errors import InputError, as_flags
from dpltm.local.scheme import Scheme
from dpltm.options.data import DataOptions
from dpltm.options.latent import EncodeRequest, EpsilonOptions, OwnerRequest, SchemeRequest, TrainRequest
from dpltm.records import DatasetCache, catalogue
from dpltm.records.notes import bounds_notes
from dpltm.stages.latent_claim import local_claim
from dpltm.stages.latent_owner import scheme_notes
from dpltm.stages.latent_scheme import check_scheme_options, make_scheme
from dpltm.stages.latent_server import Learned, LearningPlan, learn, plan_learning
from dpltm.stages.progress import Progress
from dpltm.tickets.checkpoint_files import CheckpointFolder
from dpltm.tickets.files import check_free, check_writable
from dpltm.tickets.identity import UserRegistry
from dpltm.tickets.message_files import open_messages
from dpltm.tickets.owner_file import write_owner
from dpltm.tickets.published import published, recorded
from dpltm.tickets.scheme_files import load_scheme, save_learned, save_scheme
from dpltm.tickets.workbench.encode import encode_records, scheme_facts
from dpltm.tickets.workbench.opening import feature_sources
from dpltm.tickets.workbench.records import open_dataset


def claim(request: EpsilonOptions, progress: Progress) -> dict[str, Any]:
    """What a protocol claims and certifies, which needs no file."""
    del progress
    made = local_claim(request)
    return as_flags(
        {
            "protocol": request.protocol,
            "bits": request.bits,
            "epsilon": made.epsilon,
            "alpha": made.alpha,
            "one_hot": request.one_hot,
            "copies": request.copies,
            "label_epsilon": request.label_epsilon,
            "p": [bit.chances[0] for bit in made.channel.pattern],
            "q": [bit.chances[1] for bit in made.channel.pattern],
            "nominal": made.nominal,
            "certified": made.certified,
            "notes": list(made.notes),
        }
    )


def agree(request: SchemeRequest, progress: Progress, *, dataset_cache: DatasetCache | None = None) -> dict[str, Any]:
    """Makes a scheme and writes it.

    Args:
        request: what ``dpltm latent scheme`` was asked for.
        progress: who watches.
        dataset_cache: datasets that were read already; None to read them anew.

    Returns:
        The answer of ``dpltm latent scheme``.

    Raises:
        DpltmError: bad input, before anything is written.
    """
    out = Path(request.out or "")
    check_free(out)
    check_scheme_options(request)
    named = DataOptions(dataset=request.public, classes=request.classes, bounds=request.bounds)
    sources = feature_sources(UserRegistry())
    # statistics of the map are of the public records as they are known, whatever is said of them here
    plain = DataOptions(dataset=request.public)
    sources = replace(sources, public=lambda _: open_dataset(plain, dataset_cache=dataset_cache))
    public = open_dataset(named, dataset_cache=dataset_cache)
    scheme = make_scheme(public, request, sources, progress)
    save_scheme(out, scheme)
    progress.say(f"wrote {request.out}")
    return as_flags(
        {"scheme": request.out, **scheme_facts(scheme), "notes": [*bounds_notes(public), *scheme_notes(scheme)]}
    )


def send(request: EncodeRequest, progress: Progress, *, dataset_cache: DatasetCache | None = None) -> dict[str, Any]:
    """Enters the release, randomises the records, and writes the messages.

    Args:
        request: what ``dpltm latent encode`` was asked for.
        progress: who watches.
        dataset_cache: datasets that were read already; None to read them anew.

    Returns:
        The answer of ``dpltm latent encode``.

    Raises:
        DpltmError: bad input, before any budget is spent.
    """
    return encode_records(request, lambda: load_scheme(Path(request.scheme or "")), progress, dataset_cache)


def write_for_owners(request: OwnerRequest, progress: Progress) -> dict[str, Any]:
    """Writes the file by which owners encode.

    Raises:
        DpltmError: bad input, before anything is written.
    """
    out = Path(request.out or "")
    check_free(out)
    scheme = load_scheme(Path(request.scheme or ""))
    write_owner(out, scheme, request.scheme or "")
    progress.say(f"wrote {out}")
    return as_flags({"owner": str(out), **scheme_facts(scheme)})


def receive(request: TrainRequest, progress: Progress, *, dataset_cache: DatasetCache | None = None) -> dict[str, Any]:
    """Trains a network on messages, and writes it.

    Args:
        request: what ``dpltm latent train`` was asked for.
        progress: who watches.
        dataset_cache: datasets that were read already; None to read them anew.

    Returns:
        The answer of ``dpltm latent train``.

    Raises:
        DpltmError: bad input, before any training.
    """
    out = Path(request.out or "")
    check_free(out)
    check_writable(out)
    scheme = load_scheme(Path(request.scheme or ""))
    files = [open_messages(path, scheme) for path in _message_files(request.messages or "")]
    test = None if request.test is None else open_dataset(_held_out(request.test, scheme), dataset_cache=dataset_cache)
    plan = plan_learning(scheme, files, request, test, test_label=request.test or "")
    with CheckpointFolder(out, request, progress) as checkpoints:
        checkpoints.begin(5 * plan.spec.parameters + 2**20)
        learned = learn(plan, progress, checkpoints)
        checkpoints.give_room()
        body = _learned(request, plan, learned)
        save_learned(out, scheme, learned.spec, learned.tickets[-1], {**recorded(request), **published(body)})
        checkpoints.forget()
    progress.say(f"wrote {out}")
    return body


def _learned(request: TrainRequest, plan: LearningPlan, learned: Learned) -> dict[str, Any]:
    """The answer of ``dpltm latent train``."""
    scheme = plan.scheme
    scores = [asdict(row) for row in learned.scores]
    return as_flags(
        {
            "run": str(Path(request.out or "")),
            "records": plan.records,
            "model": learned.spec.text,
            "inputs": learned.spec.features,
            "protocol": scheme.answer.protocol,
            "nominal": scheme.answer.nominal,
            "certified": scheme.answer.certified,
            "seconds": learned.seconds,
            "accuracy": scores[-1]["accuracy"],
            "tickets": scores,
            "notes": list(learned.notes),
        }
    )


def _held_out(name: str, scheme: Scheme) -> DataOptions:
    """Test records by name: those of a file are in the range, and of the classes, that were agreed on."""
    if name in catalogue():
        return DataOptions(dataset=name)
    low, high = scheme.feature_map.bounds
    return DataOptions(dataset=name, bounds=f"{low!r},{high!r}", classes=scheme.answer.classes)


def _message_files(text: str) -> list[Path]:
    """The files that are named, and those that end in .msg in folders that are named; each once."""
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
