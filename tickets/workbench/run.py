"""The three stages of ``dpltm run`` and ``dpltm demo`` as a recipe of one arm: read, and priced before the first begins."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dpltm.errors import InputError
from dpltm.features.inputs import take_over_map
from dpltm.networks import check_takes, names_code
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
from dpltm.tickets.workbench.recipes import Arm, Head, Recipe, at, check_options, digest
from dpltm.training.artifacts import fresh
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

DECIDED = ("seed", "eps1", "epsilon", "delta")
"""Keys of [run] in the place of those of the stages."""


def read_stages(document: Mapping[str, Any], path: Path, options: RunRequest) -> Recipe:
    """Return the three stages of a parsed TOML document as a recipe; unknown tables and decided keys are refused."""
    sections = {
        name: {key.replace("_", "-"): value for key, value in beside(table(path, document, name), path).items()}
        for name in ("generate", "select", "train")
    }
    public = reads_no_records(sections["select"])  # then the draw enters nothing
    model = sections["generate"].get("model")
    code = {"model": model} if names_code(model) else {}  # which no ticket set holds
    decided: dict[str, dict[str, Any]] = {
        "generate": {"seed": options.seed or 0},
        "select": {"eps1": None if public else round(options.epsilon * (1 - options.split), 12), **code},
        "train": {"epsilon": options.epsilon, **code},
    }
    with at(f"`config` {path}:"):
        if unknown := document.keys() - {"run", *sections}:
            raise InputError(f"unknown table or key {min(unknown)!r}; known: [run], [generate], [select], [train]")
        for name, section in sections.items():
            start = {"ticket": "SET"} if name == "train" else {}
            check_options(name, section, DECIDED, **decided[name], **start, delta=options.delta)
            section |= {
                **{key: value for key, value in decided[name].items() if value is not None},
                "delta": options.delta,
            }
    head = Head(title=f"three stages {digest(sections)[:16]}", seeds=1)
    arm = Arm(name="run", tickets="tickets", select=sections["select"], train=sections["train"])
    recipe = Recipe(path, head, (arm,), {"tickets": sections["generate"]}, single=True)
    if public and (provenance := recipe.provenance("tickets")) != "public":
        raise InputError(
            f"[select] rule: smallest-within needs public accuracies, and [generate] has provenance {provenance}"
        )
    return recipe


def price_stages(recipe: Recipe, options: RunRequest, load: Callable[[DataOptions], Dataset]) -> dict[str, Any]:
    """Return what the three stages would spend, in the ledger; refuse all that can be refused before hours of generation."""
    (arm,) = recipe.arms
    account = {"ledger": options.ledger, "population": options.population}
    by_mechanism = not reads_no_records(arm.draw)
    making = resolve(GenerateRequest, account, recipe.tickets["tickets"])
    drawing = resolve(SelectRequest, {"set": "tickets"}, arm.draw)
    learning = resolve(TrainRequest, {"ticket": "tickets", **account}, arm.train)
    private = load(learning)
    ledger = ledger_of(learning.dataset, learning, private.noun)
    generated = generation.plan(load(making), making, ledger, services(SILENT), model=own_of(making.model, making))
    densities = scheduled_densities(generated.spec, generated.config)
    book = _entered(ledger.book, *generated.entries)
    if by_mechanism:
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
