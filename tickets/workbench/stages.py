"""The stages on files: what ``dpltm generate``, ``select``, ``train``, ``tune`` and ``tickets transfer`` open and write.

``own``: whether the epsilon asked for is that of the result's own lineage alone, as in a sweep.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path, PurePath
from typing import Any, cast

from dpltm.errors import InputError, RankError, as_flags
from dpltm.features.inputs import take_over_map, with_feature_map
from dpltm.networks.own import OwnModel
from dpltm.options import recorded
from dpltm.options.generate import GenerateRequest
from dpltm.options.network import GIVEN, check_set_decides, names_file
from dpltm.options.select import SelectRequest
from dpltm.options.tickets import ImportOptions, TransferRequest
from dpltm.options.train import LEAST_SQUARES, TrainRequest
from dpltm.options.tune import TuneRequest
from dpltm.privacy.account import check_private, check_unprotected
from dpltm.privacy.entry import RECORD, Entry, lineage_of
from dpltm.privacy.ledger import Ledger
from dpltm.privacy.mechanisms import Unprotected
from dpltm.privacy.release import price
from dpltm.privacy.statement import json_figure
from dpltm.progress import SILENT, Progress
from dpltm.pruning.generation import Tickets
from dpltm.records.dataset import Dataset
from dpltm.records.files import stem_of
from dpltm.records.units import check_per_unit
from dpltm.tickets import ticket_set
from dpltm.tickets.checkpoint_files import CheckpointFolder
from dpltm.tickets.export import Origin
from dpltm.tickets.feature_files import described, restored, services
from dpltm.tickets.files import check_free, check_writable, free_name, new_file, new_folder
from dpltm.tickets.ledger_file import ledger_of
from dpltm.tickets.run import answer, save_run
from dpltm.tickets.store import find_set, split_round
from dpltm.tickets.workbench.code import code_named, opened_set, own_of
from dpltm.tickets.workbench.records import open_dataset
from dpltm.training.artifacts import Parent, ProvenanceKind, StartingPoint, TicketSet, Winner, starting_point
from dpltm.training.launcher import Place, check_alone, launched
from dpltm.training.ranks import Ranks, environment
from dpltm.training.release import TrainingPlan, follow
from dpltm.verbs import generate as generation
from dpltm.verbs import select as selection
from dpltm.verbs import train as training
from dpltm.verbs.transfer import transfer as transferred
from dpltm.verbs.tune import SearchResult
from dpltm.verbs.tune import check_request as check_tuning
from dpltm.verbs.tune import tune as search

# --- generate ---------------------------------------------------------------------------------------------------------


def generate(request: GenerateRequest, progress: Progress, *, own: bool = False) -> dict[str, Any]:
    """Make and write the ticket set; return the answer of ``dpltm generate``."""
    provenance = generation.check_options(request)
    unit = request.unit_column if provenance in ("dp", "private") else None
    unit = RECORD if provenance == "dp" and unit is None else unit
    model = own_of(request.model, request)
    ledger = ledger_of(request.dataset, request, unit)
    dataset = open_dataset(request)
    out = Path(request.out) if request.out else free_name(request.name or dataset.name, ".tickets")
    with CheckpointFolder(out, request, progress) as checkpoints:
        if going_on := checkpoints.latest is not None:
            progress.say(f"going on from {checkpoints.latest.place}")
        plan = generation.plan(dataset, request, ledger, services(progress), model=model, going_on=going_on, own=own)
        # or the set could not be written, or read again
        ticket_set.check_size("`rounds`", plan.spec, request.rounds + 1)
        ticket_set.check_text("`name`", request.name or "")
        ticket_set.check_text("`dataset`: its name", dataset.name)
        if request.dry_run:
            return as_flags({"dry_run": True, "ticket_set": str(out), **plan.priced()})
        tickets = generation.generate(plan, checkpoints=checkpoints)
        assert tickets.privacy is not None  # the verb made it
        shown = tickets.provenance != "private" or request.reveal
        body = as_flags({
            "ticket_set": str(out),
            "id": tickets.id,
            "provenance": tickets.provenance,
            "metric": tickets.config.get("metric", "accuracy"),
            "tickets": ticket_set.ticket_rows(tickets.body, measured=shown),
            "privacy": tickets.privacy.to_json(),
        })  # fmt: skip
        ticket_set.save_ticket_set(out, tickets)
        checkpoints.forget()
    progress.say(f"wrote {out}")
    return body


# --- select -----------------------------------------------------------------------------------------------------------


def select(request: SelectRequest, progress: Progress) -> dict[str, Any]:
    """Draw a winner from a set in a folder, which is marked with it, and remember it there; return the answer."""
    tickets = opened_set(request.set, request.model)
    selection.check_options(request, tickets)
    dry = {"dry_run": True} if request.dry_run else {}
    if request.rule == "smallest-within":
        winner = selection.select_public(tickets, request)
    else:
        ticket_set.last_winner(tickets)  # a damaged record of earlier draws is refused before another is paid for
        dataset = open_dataset(request)
        ledger = ledger_of(request.dataset, request, dataset.noun)
        draw = selection.plan(tickets, dataset, request, ledger, services(progress))
        if request.dry_run:
            return as_flags({**dry, "ticket_set": request.set, **draw.facts, "privacy": draw.priced().to_json()})
        check_writable(ticket_set.folder_of(tickets) / ticket_set.WINNER)
        winner = selection.select(draw)
    assert winner.privacy is not None  # the verb made it
    body = as_flags({
        **dry,
        "ticket_set": tickets.label,
        "winner": {"round": winner.round, "density": winner.ticket.mask.density},
        **winner.facts,
        "privacy": winner.privacy.to_json(),
        **({"revealed": winner.revealed} if winner.revealed else {}),
    })  # fmt: skip
    if not request.dry_run:
        ticket_set.save_winner(ticket_set.folder_of(tickets), winner)
    return body


# --- train ------------------------------------------------------------------------------------------------------------


def train(request: TrainRequest, progress: Progress, *, own: bool = False) -> Any:
    """Train by this process, or by all that ``torchrun`` started, and write the run; return the answer, or None."""
    check_request(request)
    ranks = None
    place = launched()
    if place is not None:
        if request.head == LEAST_SQUARES:
            check_alone("`head` least-squares")
        request = replace(request, head=request.head or "dp-sgd")  # which ranks can share
        ranks = None if request.dry_run else _joined(place, request)
        if place.rank != 0:
            if ranks is not None:
                follow(ranks, partial(_settled, request))
            return None
    start, dataset = open_start(request)
    ledger = ledger_of(request.dataset, request, dataset.noun)
    of_set = "" if start.tickets is None else Path(start.tickets.label).name.removesuffix(".tickets")
    stem = of_set or stem_of(Path(request.dataset or ""))
    which = "dense" if request.dense else f"round{start.round}"
    out = Path(request.out) if request.out else free_name(f"{stem}-{which}", ".run")
    if request.dry_run:
        settled = training.settle(start, dataset, request, ledger, services(progress))
        plan = training.plan(settled, ledger.book, own=own)
        price(plan, ledger.book)
        plan.rehearse()
        return as_flags({"dry_run": True, **plan.resolved, "privacy": training.stated(plan).to_json()})
    with CheckpointFolder(out, request, progress) as checkpoints:
        state = None if checkpoints.latest is None else checkpoints.latest.state
        entered = state is not None and state.get("id") in {entry.id for entry in ledger.book.entries}
        if request.resume and (state is None or ("key" in state and not entered)):
            raise InputError(
                f"`resume`: what was begun at {out} kept no checkpoint; leave `resume` out to begin again"
            )
        arguments = start, dataset, request, ledger, services(progress)
        try:
            run = training.train_start(*arguments, checkpoints=checkpoints, ranks=ranks, own=own)
        except RankError as error:
            raise RankError(f"{error}; the same command goes on") from None
        run = replace(run, label=str(out))
        body = as_flags(answer(run))
        with new_folder(out) as folder:
            save_run(folder, run)
        checkpoints.forget()
    progress.say(f"wrote {out}")
    return body


def check_request(request: TrainRequest) -> None:
    """Raise InputError for a request that says too little, or contradicts itself, about what is trained."""
    training.check_options(request)
    if request.unit_column is None:
        check_per_unit(request.per_unit)
    if request.ticket is not None:
        check_set_decides(request, request.model)
    elif not request.dense:
        raise InputError(
            "SET is missing: name a ticket set (SET or SET@ROUND), or train the whole network with `dense`"
        )


def open_start(request: TrainRequest) -> tuple[StartingPoint, Dataset]:
    """Return the start of the training, and the records behind its feature map."""
    ticket: TicketSet | Winner | OwnModel | str | None = None
    number = None
    if request.ticket is not None:
        name, number = split_round(request.ticket)
        ticket = tickets = opened_set(name, request.model)
        if request.dense:
            number = None
        elif number is None:
            ticket = ticket_set.load_winner(tickets)
        else:
            tickets.ticket(number)  # or it would be refused after records are read
    dataset = open_dataset(request)
    if ticket is None:
        # or one that cannot pay would be refused after features are made
        ledger_of(request.dataset, request, dataset.noun)
        ticket = own_of(request.model, request) or request.model
    return starting_point(ticket, dataset, request, round=number, dense=request.dense)


def _settled(request: TrainRequest) -> TrainingPlan:
    start, dataset = open_start(request)
    return training.settle(start, dataset, request, Ledger(unit=dataset.noun), services(SILENT))


def _joined(place: Place, request: TrainRequest) -> Ranks:
    """Return the ranks, if asked for the same. Interrupts are left to rank 0, since it keeps the checkpoint."""
    ranks = Ranks.join(place, request.device)
    if not ranks.first:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
    options = {f"`{name}`": repr(value) for name, value in asdict(request).items()}
    ranks.agree(options | environment())
    return ranks


# --- tune -------------------------------------------------------------------------------------------------------------


def tune(request: TuneRequest, progress: Progress, *, portable: bool = False) -> dict[str, Any]:
    """Try every setting, write the best as a configuration file, and return the answer of ``dpltm tune``.

    ``portable``: without the folders of files, for a folder that is handed on.
    """
    check_tuning(request)
    out = None if request.out is None else Path(request.out)
    if out is not None:
        if out.suffix != ".toml":
            raise InputError(f"`out`: {request.out} is a configuration file; name it {out.stem}.toml")
        check_free(out)
        check_writable(out)
    tickets = None if request.set is None else opened_set(request.set, request.model)
    dataset = open_dataset(request)
    ledger = ledger_of(request.dataset, request, dataset.noun)
    target = tickets or own_of(request.model, request) or request.model
    result = search(target, dataset, request, ledger, services(progress))
    if out is not None:
        lines = _configuration(recorded(request) if portable else asdict(request), result)
        with new_file(out) as staging:
            staging.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    trials = [
        asdict(trial) | {"score": json_figure(trial.score), "scores": [*map(json_figure, trial.scores)]}
        for trial in result.trials
    ]
    return as_flags({
        "dataset": dataset.name,
        "ticket_set": None if tickets is None else tickets.label,
        "for_records": request.for_records,
        "epsilon": request.epsilon,
        "metric": request.judged_by,
        "best": trials[0],
        "trials": trials,
        "config": request.out,
        "privacy": result.privacy.to_json(),
    })  # fmt: skip


def _configuration(request: dict[str, Any], result: SearchResult) -> Iterator[str]:
    """Yield the lines of a file by which ``dpltm train`` takes the best setting."""
    metric = request["metric"] or "accuracy"
    scored = f"{metric} {result.best.score:.4f}"
    yield f"# best of dpltm tune, {scored} on public records: dpltm train --dataset NAME --config FILE"
    yield "[train]"
    model = request["model"]
    if names_file(model):  # from the file's own folder
        model = os.path.relpath(model, Path(request["out"]).parent)
    start = {"ticket": f"{request['set']}@{result.best.round}", "model": model}
    if request["set"] is None:
        start = {"dense": True, "model": model, **{name: request.get(name) for name in ("features", *GIVEN)}}
    for key, value in {**start, **result.settings}.items():
        if value is not None:
            yield f"{key.replace('_', '-')} = {json.dumps(value, ensure_ascii=False)}"  # TOML writes all of these alike


# --- ticket sets from others, and from pruned models ------------------------------------------------------------------


def transfer(request: TransferRequest, _: Progress) -> dict[str, Any]:
    """Write tickets for other records; return the answer of ``dpltm tickets transfer``."""
    out = Path(request.out or "")
    check_free(out)
    name, number = split_round(request.set or "")
    tickets = find_set(name)
    model = None if request.model is None else code_named(request.model, start_provenance=request.start_provenance)
    dataset = open_dataset(request)
    carried, layers, notes = transferred(tickets, dataset, request, round=number, model=model)
    saved = ticket_set.save_ticket_set(out, carried)
    return as_flags({
        "ticket_set": str(out),
        "id": saved.id,
        "model": saved.body.spec.text,
        "mode": request.mode,
        "provenance": saved.provenance,
        "layers": layers,
        "tickets": ticket_set.ticket_rows(saved.body),
        "notes": notes,
    })  # fmt: skip


def front_of_import(
    dataset: Dataset, origin: Origin | None, features: str | None, *, file: str
) -> tuple[Dataset, list[str]]:
    """Return the records with the map that the file says its network stands behind, or that options name."""
    if origin is None and features is not None:
        return with_feature_map(dataset, features), []
    if origin is None:
        return dataset, [
            f"{file} does not say what stands in front of its network; records as they are is what is taken: if it is"
            " features, name them with `features`, since what they were made from counts as well"
        ]
    feature_map = None
    if origin.feature_map is not None:
        plain = described(origin.feature_map)
        feature_map = restored(plain, origin.feature_map["id"])
        if feature_map is None:
            raise InputError(
                f"{file}: its network stands behind {plain.text} features with tensors of their own, which the file does"
                " not hold; take a copy of the whole set (dpltm tickets export SET)"
            )
    return take_over_map(dataset, feature_map, features, file), []


def imported_set(
    body: Tickets, dataset: Dataset, origin: Origin | None, options: ImportOptions, ledger: Ledger, *, file: str
) -> TicketSet:
    """Return the set of a pruned model for some records; what its file does not say of masks and weights is declared."""
    provenance, drafts = options.provenance, list[Entry]()
    if origin is not None:
        if provenance not in (None, origin.provenance):
            raise InputError(f"`provenance`: {file} says {origin.provenance} of itself; leave `provenance` out")
        provenance = origin.provenance
    elif provenance is None:
        raise InputError(f"`provenance` is missing: {file} does not say what its masks and weights depend on")
    elif provenance != "data-free":
        words = "masks and weights made elsewhere"
        part = ledger.part(dataset)
        drafts = [*ledger.public(dataset, words)]
        if provenance == "private":
            check_private(ledger.account(), part)
            exact = Entry("release", part, (Unprotected(),), f"{words}, with no mechanism", unit=ledger.unit)
            check_unprotected(ledger.account(), (exact,), options.unprotected)
            drafts = [exact]
    declared = ledger.declare_once(*drafts)
    return TicketSet(
        body=body,
        name=options.name or PurePath(file).stem,
        criterion="imported",
        provenance=cast(ProvenanceKind, provenance),
        made_from=lineage_of(dataset, dataset.feature_map, origin, declared),
        config={"imported": PurePath(file).name}
        | ({"table_schema": dataset.schema.text} if dataset.schema.text else {}),
        parent=None if origin is None else Parent(origin.id, origin.name, None, "export and import"),
        feature_map=dataset.feature_map,
    )
