"""The three stages under one budget and one ledger, from one file: what can be refused is, before the first begins."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dpltm.errors import BudgetError, CalibrationError, InputError, as_flags
from dpltm.features.inputs import take_over_map
from dpltm.networks import names_code
from dpltm.networks.evaluation import PricedError, check_no_target
from dpltm.options import resolve, table
from dpltm.options.data import DataOptions
from dpltm.options.generate import GenerateRequest
from dpltm.options.network import beside
from dpltm.options.run import DemoRequest, RunRequest
from dpltm.options.select import SelectRequest, drawn_from, reads_no_records
from dpltm.options.train import TrainRequest
from dpltm.privacy.account import check_private
from dpltm.privacy.checkpoint import begun_again_by, check_same
from dpltm.privacy.entry import Entry
from dpltm.privacy.ledger import Book, Ledger
from dpltm.privacy.statement import PrivacyReport
from dpltm.progress import SILENT, Progress
from dpltm.pruning.generation import scheduled_densities
from dpltm.records.dataset import Dataset
from dpltm.records.settle import check_delta
from dpltm.tickets.checkpoint_files import remove_ended
from dpltm.tickets.feature_files import services
from dpltm.tickets.files import check_free, only_being_written, read_json, read_toml, write_json
from dpltm.tickets.ledger_file import BESIDE, ledger_of
from dpltm.tickets.workbench.code import own_of
from dpltm.tickets.workbench.records import open_dataset
from dpltm.tickets.workbench.stages import check_request, generate, select, train
from dpltm.training.artifacts import fresh
from dpltm.training.canaries import check_canaries
from dpltm.training.plan import private_score
from dpltm.verbs import generate as generation
from dpltm.verbs import select as selection
from dpltm.verbs import train as training

REQUESTS: dict[str, type] = {"generate": GenerateRequest, "select": SelectRequest, "train": TrainRequest}

FORMAT, SCHEMA, UNFINISHED = "dpltm-unfinished", 2, "unfinished.json"
"""Format of the file with a run's request and the answers of stages that ended, in its folder until all of them have."""

RESULTS = {"generate": "tickets/tickets.json", "select": "tickets/winner.json", "train": "run/config.json"}
"""File in the folder of a run that is there as soon as a stage has ended."""

DEMO: Mapping[str, Any] = {
    "generate": {"dataset": "digits", "subset": "0.0:0.5", "provenance": "public", "rounds": 10, "iterations": 250,
                 "batch-size": 64, "threads": 1, "name": "digits"},
    "select": {"score": "additive"},
    "train": {"dataset": "digits", "subset": "0.5:1.0", "filter": "tanh"},
}  # fmt: skip
"""The three stages of ``dpltm demo``."""


Pipeline = Mapping[str, Any]
"""Options of each of the three stages, by its name."""


def demo(options: DemoRequest, out: Path, progress: Progress) -> dict[str, Any]:
    """Run the three stages on the digits inside scikit-learn; return the answer of ``dpltm run``."""
    torch.set_num_threads(1)  # networks this small gain nothing from more, and lose much on a machine that is busy
    progress.say("digits: half of the records are the public source of tickets, the other half are the private data")
    asked = RunRequest(
        epsilon=options.epsilon, delta=options.delta, seed=options.seed, out=str(out), ledger=str(out / BESIDE)
    )
    with begun_again_by(f"move {out} away to begin again"):
        return _run(asked, _read_pipeline(DEMO, out, asked), progress)


def run_file(path: Path, options: RunRequest, progress: Progress) -> dict[str, Any]:
    """Run the three stages of a TOML file, all checked before the first starts; return answers and the guarantee of all."""
    with begun_again_by(f"move {options.out} away to begin again"):
        return _run(options, _read_pipeline(read_toml(path), path, options), progress)


def _read_pipeline(document: Mapping[str, Any], path: Path, options: RunRequest) -> Pipeline:
    """The three stages of a parsed TOML document, with what they share filled in; unknown and decided keys are refused."""
    unknown = set(document) - {*REQUESTS, "run"}
    if unknown:
        raise InputError(
            f"`config` {path}: unknown table or key {min(unknown)!r}; known: [run], [generate], [select], [train]"
        )
    public = reads_no_records(table(path, document, "select"))  # then the draw enters nothing
    out = Path(options.out or "")
    tickets, account = str(out / "tickets"), {"ledger": options.ledger, "population": options.population}
    eps1 = None if public else round(options.epsilon * (1 - options.split), 12)
    decided: dict[str, dict[str, Any]] = {
        "generate": {"out": tickets, "seed": options.seed, **account},
        "select": {"set": tickets, "eps1": eps1, **({} if public else account)},
        "train": {"ticket": tickets, "epsilon": options.epsilon, "out": str(out / "run"), **account},
    }
    stages: dict[str, Any] = {}
    for name, cls in REQUESTS.items():
        if name != "generate" and names_code(stages["generate"].model):
            decided[name]["model"] = stages["generate"].model  # which no ticket set holds
        section, given = (
            beside(table(path, document, name), path),
            {**decided[name], "delta": options.delta, "dry_run": False},
        )
        clash = sorted(key for key in section if given.get(key.replace("-", "_")) is not None)
        if clash:
            otherwise = "" if "run" in document else f", or take dpltm {name} `config` {path}"
            raise InputError(f"`config` {path}: [{name}] {clash[0]}: decided by [run] here; set it there{otherwise}")
        if name == "select" and not public:
            section = {**drawn_from(table(path, document, "train")), **section}
        stages[name] = resolve(cls, given, section, str(path))
    return stages


def _run(options: RunRequest, pipeline: Pipeline, progress: Progress) -> dict[str, Any]:
    """Run the stages that an interrupted attempt did not end; what can be refused is, before the first begins."""
    parts = {"run": replace(options, dry_run=False), **pipeline}
    asked = {f"[{part}] {name}": one for part, each in parts.items() for name, one in asdict(each).items()}
    unfinished = Path(options.out or "") / UNFINISHED
    answers = _answers(unfinished, asked)
    if answers is None or options.dry_run:
        privacy = _plan(options, pipeline, open_dataset)
    if options.dry_run:
        body = {
            "dry_run": True,
            "out": options.out,
            "tickets_from": pipeline["generate"].dataset,
            "private_records": pipeline["train"].dataset,
            "rounds": pipeline["generate"].rounds,
            "eps1": pipeline["select"].eps1,
            "privacy": privacy.to_json(),
        }
        return as_flags(body)
    ended = answers or {}
    unfinished.parent.mkdir(parents=True, exist_ok=True)

    def keep(name: str | None = None, answer: dict[str, Any] | None = None) -> None:
        """Write down the answers, with that of a stage whose result comes to its place next."""
        known = ended if name is None else {**ended, name: answer}
        write_json(unfinished, {"format": FORMAT, "schema": SCHEMA, "of": asked, "answers": known}, mode=0o600)

    stages: dict[str, Callable[..., dict[str, Any]]] = {"generate": generate, "select": select, "train": train}
    keep()
    for name, stage in stages.items():
        if name not in ended:
            ended[name] = stage(pipeline[name], progress, ending=partial(keep, name))
    for name in ("generate", "train"):
        remove_ended(Path(pipeline[name].out))
    unfinished.unlink()
    return {"out": options.out, **ended, "privacy": ended["train"]["privacy"]}


def _answers(unfinished: Path, asked: dict[str, Any]) -> dict[str, Any] | None:
    if not unfinished.exists():
        if not only_being_written(unfinished):
            check_free(unfinished.parent)
        return None
    body = read_json(unfinished, FORMAT, SCHEMA)
    check_same(body.get("of", {}), asked)
    answers: dict[str, Any] = body.get("answers", {})
    return {
        name: answers[name]
        for name, made in RESULTS.items()
        if name in answers and (unfinished.parent / made).exists()
    }


# --- what would be spent --------------------------------------------------------------------------------------------


def _plan(options: RunRequest, pipeline: Pipeline, load: Callable[[DataOptions], Dataset]) -> PrivacyReport:
    """Price everything in the ledger with the plan; refuse all that can be refused before hours of generation."""
    making, drawing, learning = pipeline["generate"], pipeline["select"], pipeline["train"]
    if learning.dense:
        raise InputError("[train] dense: a run trains the winner; use dpltm train `dense` for the whole network")
    check_request(learning)
    provenance, drawn = generation.check_options(making), drawing.rule == "mechanism"
    if not drawn and provenance != "public":
        raise InputError(
            f"[select] rule: smallest-within needs public accuracies, and [generate] has provenance {provenance}"
        )
    private = load(learning)
    ledger = ledger_of(learning.dataset, learning, private.noun)
    model = own_of(making.model, making)
    made = generation.plan(load(making), making, ledger, services(SILENT), model=model)
    if made.provenance == "data-free":
        raise InputError(
            "[generate] provenance: data-free tickets have no predictors to select by; say public or private, or train one"
            " by its round with dpltm train SET@ROUND"
        )
    if making.no_predictors:
        raise InputError("[generate] no-predictors: the selection needs them; leave it out")
    book = _with(ledger.book, *made.entries)
    if drawn:
        book = _with(book, _planned_draw(options, drawing, load(drawing), made, ledger, book))
    private = _behind_map(options, private, "train", made)
    take_over_map(
        private, made.dataset.feature_map, learning.features, "[generate]"
    )  # which decides, so [train] may not
    try:  # as of the whole network: what is trained does not depend on which ticket wins
        start = fresh(made.spec, 0)
        planned = training.plan(training.settle(start, private, learning, ledger, services(SILENT)), book)
        check_private(planned.account, planned.entry.part)
    except (BudgetError, CalibrationError) as error:
        if isinstance(error, BudgetError) and (made.provenance == "dp" or ledger.account().paid):
            raise  # it says what took the budget
        raise InputError(
            f"`epsilon`, `split`: {options.split:g} of {options.epsilon:g} is too little for the training; raise `epsilon`,"
            " or `split` (0.9 leaves a tenth for the selection)"
        ) from None
    book.account().check_budget((planned.entry,))
    mask, sparsest = planned.start.mask, scheduled_densities(made.spec, made.config)[-1]
    pruned = round((1 - sparsest) * sum(mask[name].numel() for name in mask.prunable))
    fewest = mask.live - pruned  # or the training of a sparse winner would refuse its audit
    check_canaries(learning.audit, fewest, planned.mechanism.noise_multiplier)
    planned.rehearse()
    return training.stated(planned)


def _with(book: Book, *drafts: Entry) -> Book:
    book.account().check_budget(drafts)
    return book.adding(drafts, [secrets.token_hex(32) for _ in drafts])


def _planned_draw(
    options: RunRequest,
    request: SelectRequest,
    scored: Dataset,
    made: generation.Generation,
    ledger: Ledger,
    book: Book,
) -> Entry:
    scored = _behind_map(options, scored, "select", made)
    part = ledger.part(scored)
    try:
        check_private(book.account(), part)
    except InputError as error:
        raise InputError(f"[generate] and [select]: {error}") from None
    densities = scheduled_densities(made.spec, made.config)[1:]
    fixed = made.provenance != "private" or not ledger.part(made.dataset).overlaps(part)
    metric = private_score(request.judged_by, request.class_shares, scored, made.spec.score)
    assert not isinstance(metric, PricedError)
    settled = selection.settle(request, scored.records, densities, fixed, metric)
    return selection.draft(request, settled, part, scored.unit)


def _behind_map(options: RunRequest, private: Dataset, stage: str, made: generation.Generation) -> Dataset:
    source = made.dataset
    check_no_target(private, f"[{stage}] of a ticket")
    private = take_over_map(private, source.feature_map, None, "[generate]")
    check_delta(options.delta, private)
    if (source.features, source.classes) != (private.features, private.classes):
        raise InputError(
            f"[generate] and [{stage}]: {source.name} has {source.features} features and {source.classes} classes,"
            f" {private.name} has {private.features} and {private.classes}; tickets need the same"
        )
    return private
