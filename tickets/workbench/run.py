"""The three stages of ``dpltm run`` and ``dpltm demo`` as a recipe of one arm: read, and priced before the first begins."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dpltm.errors import BudgetError, CalibrationError, InputError
from dpltm.features.inputs import take_over_map
from dpltm.networks import names_code
from dpltm.networks.evaluation import PricedError, check_no_target
from dpltm.options import resolve, table
from dpltm.options.data import DataOptions
from dpltm.options.generate import GenerateRequest
from dpltm.options.network import beside
from dpltm.options.run import RunRequest
from dpltm.options.select import SelectRequest, reads_no_records
from dpltm.options.train import TrainRequest
from dpltm.privacy.account import check_private
from dpltm.privacy.entry import Entry
from dpltm.privacy.ledger import Book
from dpltm.progress import SILENT
from dpltm.pruning.generation import scheduled_densities
from dpltm.records.dataset import Dataset
from dpltm.records.settle import check_delta
from dpltm.records.units import at_unit
from dpltm.tickets.feature_files import services
from dpltm.tickets.ledger_file import ledger_of
from dpltm.tickets.workbench.code import own_of
from dpltm.tickets.workbench.recipes import Arm, Head, Recipe, digest, override
from dpltm.tickets.workbench.stages import check_request
from dpltm.training.artifacts import fresh
from dpltm.training.canaries import check_canaries
from dpltm.training.plan import private_score
from dpltm.verbs import generate as generation
from dpltm.verbs import select as selection
from dpltm.verbs import train as training

STAGES = ("generate", "select", "train")

DEMO: Mapping[str, Any] = {
    "generate": {"dataset": "digits", "subset": "0.0:0.5", "provenance": "public", "rounds": 10, "iterations": 250,
                 "batch-size": 64, "threads": 1, "name": "digits"},
    "select": {"score": "additive"},
    "train": {"dataset": "digits", "subset": "0.5:1.0", "filter": "tanh"},
}  # fmt: skip
"""The three stages of ``dpltm demo``."""


def read_stages(document: Mapping[str, Any], path: Path, options: RunRequest) -> Recipe:
    """Return the three stages of a parsed TOML document as a recipe; unknown tables and decided keys are refused."""
    if unknown := set(document) - {*STAGES, "run"}:
        raise InputError(
            f"`config` {path}: unknown table or key {min(unknown)!r}; known: [run], [generate], [select], [train]"
        )
    tables = {name: override({}, beside(table(path, document, name), path)) for name in STAGES}
    public = reads_no_records(tables["select"])  # then the draw enters nothing
    eps1 = None if public else round(options.epsilon * (1 - options.split), 12)
    model = tables["generate"].get("model")
    code = {"model": model} if names_code(model) else {}  # which no ticket set holds
    decided: dict[str, dict[str, Any]] = {
        "generate": {"out": "", "seed": options.seed},
        "select": {"set": "", "eps1": eps1, **code},
        "train": {"ticket": "", "out": "", "epsilon": options.epsilon, **code},
    }
    for name, section in tables.items():
        common = {"delta": options.delta, "dry_run": "", **decided[name]}
        if not (name == "select" and public):
            common |= {"ledger": options.ledger, "population": options.population}
        clash = sorted(key for key in section if common.get(key.replace("-", "_")) is not None)
        if clash:
            otherwise = "" if "run" in document else f", or take dpltm {name} `config` {path}"
            raise InputError(f"`config` {path}: [{name}] {clash[0]}: decided by [run] here; set it there{otherwise}")
        added = {key: value for key, value in common.items() if key not in ("ledger", "population")}
        section.update((key, value) for key, value in added.items() if value not in (None, ""))
    head = Head(title=f"three stages {digest(tables)[:16]}", seeds=1)
    arm = Arm.model_construct(name="run", tickets="tickets", select=tables["select"], train=tables["train"])
    return Recipe(path, head, (arm,), {"tickets": tables["generate"]}, single=True)


def price_stages(recipe: Recipe, options: RunRequest, load: Callable[[DataOptions], Dataset]) -> dict[str, Any]:
    """Return what the three stages would spend, in the ledger; refuse all that can be refused before hours of generation."""
    (arm,) = recipe.arms
    source = str(recipe.path)
    account = {"ledger": options.ledger, "population": options.population}
    by_mechanism = not reads_no_records(arm.draw)
    making = resolve(GenerateRequest, account, recipe.tickets["tickets"], source)
    drawing = resolve(SelectRequest, {"set": "tickets", **(account if by_mechanism else {})}, arm.draw, source)
    learning = resolve(TrainRequest, {"ticket": "tickets", **account}, arm.train, source)
    if learning.dense:
        raise InputError("[train] dense: a run trains the winner; use dpltm train `dense` for the whole network")
    check_request(learning)
    provenance = generation.check_options(making)
    if not by_mechanism and provenance != "public":
        raise InputError(
            f"[select] rule: smallest-within needs public accuracies, and [generate] has provenance {provenance}"
        )
    private = load(learning)
    ledger = ledger_of(learning.dataset, learning, private.noun)
    generated = generation.plan(load(making), making, ledger, services(SILENT), model=own_of(making.model, making))
    if generated.provenance == "data-free":
        raise InputError(
            "[generate] provenance: the selection needs predictors, which data-free tickets have not; say public or private,"
            " or train a ticket by its round with dpltm train SET@ROUND"
        )
    densities = scheduled_densities(generated.spec, generated.config)

    def entered(book: Book, *drafts: Entry) -> Book:
        book.account().check_budget(drafts)
        return book.adding(drafts, [secrets.token_hex(32) for _ in drafts])

    book = entered(ledger.book, *generated.entries)
    if by_mechanism:
        scored = _behind_map(load(drawing), "select", generated, options, drawing.per_unit)
        part = ledger.part(scored)
        try:
            check_private(book.account(), part)
        except InputError as error:
            raise InputError(f"[generate] and [select]: {error}") from None
        fixed = generated.provenance != "private" or not ledger.part(generated.dataset).overlaps(part)
        metric = private_score(drawing.judged_by, drawing.class_shares, scored, generated.spec.score)
        assert not isinstance(metric, PricedError)
        settled = selection.settle(drawing, scored.records, densities[1:], fixed, metric)
        book = entered(book, selection.draft(drawing, settled, part, scored.unit))
    # so [train] may not name one
    take_over_map(private, generated.dataset.feature_map, learning.features, "[generate]")
    private = _behind_map(private, "train", generated, options, learning.per_unit)
    try:  # as of the whole network: what is trained does not depend on which ticket wins
        start = fresh(generated.spec, 0)
        planned = training.plan(training.settle(start, private, learning, ledger, services(SILENT)), book)
        check_private(planned.account, planned.entry.part)
    except (BudgetError, CalibrationError) as error:
        if isinstance(error, BudgetError) and (generated.provenance == "dp" or ledger.account().paid):
            raise  # it says what took the budget
        raise InputError(
            f"`epsilon`, `split`: {options.split:g} of {options.epsilon:g} is too little for the training; raise `epsilon`,"
            " or `split` (0.9 leaves a tenth for the selection)"
        ) from None
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


def _behind_map(
    dataset: Dataset, stage: str, generated: generation.Generation, options: RunRequest, per_unit: int | None
) -> Dataset:
    """Return records of a stage behind the map of the tickets, at the unit that is protected."""
    check_no_target(dataset, f"[{stage}] of a ticket")
    source, dataset = generated.dataset, take_over_map(dataset, generated.dataset.feature_map, None, "[generate]")
    if (source.features, source.classes) != (dataset.features, dataset.classes):
        raise InputError(
            f"[generate] and [{stage}]: {source.name} has {source.features} features and {source.classes} classes,"
            f" {dataset.name} has {dataset.features} and {dataset.classes}; tickets need the same"
        )
    dataset = at_unit(dataset, per_unit)
    check_delta(options.delta, dataset)
    return dataset
