"""The three stages of ``dpltm run`` and ``dpltm demo``: read from one file, priced before the first begins, and run."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from dpltm.errors import InputError, as_flags
from dpltm.features.inputs import take_over_map
from dpltm.networks import check_takes, names_code
from dpltm.networks.evaluation import PricedError, check_no_target
from dpltm.options import recorded, table
from dpltm.options.data import DataOptions
from dpltm.options.network import beside
from dpltm.options.run import DemoRequest, RunRequest
from dpltm.options.select import reads_no_records
from dpltm.privacy.account import check_private
from dpltm.privacy.entry import Entry
from dpltm.privacy.ledger import Book
from dpltm.progress import SILENT, Progress
from dpltm.pruning.generation import scheduled_densities
from dpltm.records.dataset import Dataset
from dpltm.records.settle import check_delta
from dpltm.records.units import at_unit
from dpltm.tickets import files
from dpltm.tickets.checkpoint_files import remove_ended
from dpltm.tickets.feature_files import services
from dpltm.tickets.ledger_file import BESIDE, ledger_of
from dpltm.tickets.sweep_files import AGAIN, alone, open_sweep, remove
from dpltm.tickets.workbench.code import own_of
from dpltm.tickets.workbench.recipes import at, check_options, dashed, digest, draw_options
from dpltm.tickets.workbench.records import open_dataset
from dpltm.tickets.workbench.stages import generate, select, train
from dpltm.training.artifacts import fresh
from dpltm.training.canaries import check_canaries
from dpltm.training.plan import private_score
from dpltm.verbs import generate as generation
from dpltm.verbs import select as selection
from dpltm.verbs import train as training

DEMO: Mapping[str, Any] = {
    "generate": {"dataset": "digits", "subset": "0.0:0.5", "provenance": "public", "rounds": 10, "iterations": 250,
                 "batch-size": 64, "threads": 1, "name": "digits"},
    "select": {"score": "additive"},
    "train": {"dataset": "digits", "subset": "0.5:1.0", "filter": "tanh"},
}  # fmt: skip
"""The three stages of ``dpltm demo``."""

STAGES: Mapping[str, Callable[[Any, Progress], dict[str, Any]]] = {
    "generate": generate, "select": select, "train": train,
}  # fmt: skip
"""In their order, on files; the epsilon of each includes what the ledger holds already."""

DECIDED = ("seed", "eps1", "epsilon", "delta")
"""Keys of [run] in the place of those of the stages."""


def demo(options: DemoRequest, out: Path, progress: Progress) -> dict[str, Any]:
    """Run the three stages on the digits inside scikit-learn; return the answer of ``dpltm run``."""
    torch.set_num_threads(1)  # networks this small gain nothing from more, and lose much on a machine that is busy
    progress.say("digits: half of the records are the public source of tickets, the other half are the private data")
    run_options = RunRequest(
        epsilon=options.epsilon, delta=options.delta, seed=options.seed, out=str(out), ledger=str(out / BESIDE)
    )
    return run_stages(DEMO, out, run_options, progress)


def run_stages(document: Mapping[str, Any], path: Path, options: RunRequest, progress: Progress) -> dict[str, Any]:
    """Run the stages that an interrupted attempt did not end; what can be refused is, before the first begins."""
    root = Path(options.out or "dpltm-run")
    tickets, run = root / "tickets", root / "run"
    requests = read_stages(document, path, options, root)
    if options.dry_run or not (root / "recipe.json").exists():
        if not files.only_being_written(root / "recipe.json"):
            files.check_free(root)
        plan = price_stages(requests, options, open_dataset)
    if options.dry_run:
        return as_flags({"dry_run": True, "out": str(root), **plan})
    title = f"three stages {digest([recorded(request) for request in requests.values()])[:16]}"
    if open_sweep(root, title, parts=()):
        progress.say(f"{root}: {AGAIN}")
    with alone(root):
        if not (root / "generate.json").exists():  # or what is there is of an attempt that died, without an answer
            remove(tickets)
        answers = dict[str, Any]()
        for name, make in STAGES.items():
            kept = run / "result.json" if name == "train" else root / f"{name}.json"
            if kept.exists():
                answers[name] = files.parse_json(kept, files.read_bytes(kept, files.MAX_JSON))
            else:
                answers[name] = make(requests[name], progress)
            if not kept.exists():  # which may hold revealed scores
                files.write_json(kept, files.published(answers[name]), mode=0o600)
        remove_ended(tickets)
        remove_ended(run)
    places = {"ticket_set": str(tickets), "run": str(run)}
    answers = {
        name: {key: places.get(key, value) for key, value in answer.items()} for name, answer in answers.items()
    }
    return {"out": str(root), **answers, "privacy": answers["train"]["privacy"]}


def read_stages(document: Mapping[str, Any], path: Path, options: RunRequest, root: Path) -> dict[str, Any]:
    """Return the requests of the stages of a parsed TOML document; unknown tables and decided keys are refused."""
    making, drawing, learning = (dashed(beside(table(path, document, name), path)) for name in STAGES)
    tickets = str(root / "tickets")
    by_mechanism = not reads_no_records(drawing)  # else the draw enters nothing
    account = {"ledger": options.ledger, "population": options.population}
    model = making.get("model")
    code = {"model": model} if names_code(model) else {}  # which no ticket set holds
    common = {"delta": options.delta, **code}
    of_draw = {**account, "eps1": round(options.epsilon * (1 - options.split), 12)} if by_mechanism else {}
    run = {"out": str(root / "run"), "epsilon": options.epsilon}
    starts = {
        "generate": (making, {"seed": options.seed, "out": tickets, **common, **account}),
        "select": (draw_options(drawing, learning), {"set": tickets, **common, **of_draw}),
        "train": (learning, {"ticket": tickets, **run, **common, **account}),
    }
    with at(f"`config` {path}:"):
        if unknown := document.keys() - {"run", *STAGES}:
            raise InputError(f"unknown table or key {min(unknown)!r}; known: [run], [generate], [select], [train]")
        if "generate" not in document:
            raise InputError(
                f"no table [generate]; a file of one stage is for its command: dpltm train `config` {path}"
            )
        requests = {name: check_options(name, *start, DECIDED) for name, start in starts.items()}
        provenance = generation.check_options(requests["generate"])
        if not by_mechanism and provenance != "public":
            raise InputError(
                f"[select] rule: smallest-within needs public accuracies, and [generate] says {provenance}"
            )
    return requests


def price_stages(
    requests: Mapping[str, Any], options: RunRequest, load: Callable[[DataOptions], Dataset]
) -> dict[str, Any]:
    """Return what the three stages would spend, in the ledger; refuse all that can be refused before hours of generation."""
    making, drawing, learning = requests.values()
    private = load(learning)
    ledger = ledger_of(learning.dataset, learning, private.noun)
    generated = generation.plan(load(making), making, ledger, services(SILENT), model=own_of(making.model, making))
    if generated.provenance == "data-free":
        raise InputError(
            "[generate] provenance: the draw scores predictors, which data-free tickets have not; say public or private, or"
            " train a ticket by its round with dpltm train SET@ROUND"
        )
    densities = scheduled_densities(generated.spec, generated.config)
    book = _entered(ledger.book, *generated.entries)
    if drawing.rule == "mechanism":
        scored = at_unit(_behind_map(load(drawing), "select", generated), drawing.per_unit)
        check_delta(options.delta, scored)
        part = ledger.part(scored)
        with at("[generate] and [select]:"):
            check_private(book.account(), part)
        fixed = generated.provenance != "private" or not ledger.part(generated.dataset).overlaps(part)
        metric = private_score(drawing.judged_by, drawing.class_shares, scored, generated.spec.score)
        assert not isinstance(metric, PricedError)
        settled = selection.settle(drawing, scored.records, densities[1:], fixed, metric)
        book = _entered(book, selection.draft(drawing, settled, part, scored.unit))
    private = _behind_map(private, "train", generated, learning.features)
    # as of the whole network: what is trained does not depend on which ticket wins
    start = fresh(generated.spec, 0)
    planned = training.plan(training.settle(start, private, learning, ledger, services(SILENT)), book)
    check_private(planned.account, planned.entry.part)
    book.account().check_budget((planned.entry,))
    mask = planned.start.mask
    pruned = round((1 - densities[-1]) * sum(mask[name].numel() for name in mask.prunable))
    # or the training of a sparse winner would refuse its audit
    check_canaries(learning.audit, mask.live - pruned, planned.mechanism.noise_multiplier)
    planned.rehearse()
    return {
        "tickets_from": making.dataset,
        "private_records": learning.dataset,
        "rounds": making.rounds,
        "eps1": drawing.eps1,
        "privacy": training.stated(planned).to_json(),
    }


def _entered(book: Book, *drafts: Entry) -> Book:
    book.account().check_budget(drafts)
    return book.adding(drafts, [secrets.token_hex(32) for _ in drafts])


def _behind_map(
    dataset: Dataset, stage: str, generated: generation.Generation, features: str | None = None
) -> Dataset:
    """Return records of a stage behind the map of the tickets; refuse what these do not take, or a map of its own."""
    check_no_target(dataset, f"[{stage}] of a ticket")
    dataset = take_over_map(dataset, generated.dataset.feature_map, features, "[generate]")
    check_takes(generated.spec, dataset, f"[generate] and [{stage}]")
    return dataset
