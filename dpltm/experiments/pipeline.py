"""The three stages under one budget and one ledger: what they share is decided, and what can be refused is, beforehand."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpltm.errors import BudgetError, CalibrationError, InputError
from dpltm.experiments.ready import Load
from dpltm.experiments.recipe import Section, data_options, reads_no_records
from dpltm.options.data import DataOptions
from dpltm.options.generate import GenerateRequest
from dpltm.options.run import RunRequest
from dpltm.options.sections import resolve, table
from dpltm.options.select import SelectRequest
from dpltm.options.train import TrainRequest
from dpltm.privacy.events import Event, ProvenanceEvent
from dpltm.privacy.old_ledger import Ledger
from dpltm.privacy.report import report
from dpltm.privacy.statement import PrivacyReport
from dpltm.pruning.generation import scheduled_densities
from dpltm.records import Dataset
from dpltm.records.registry import RecordRegistry
from dpltm.stages import generate, select
from dpltm.stages.checks import check_delta, check_epsilon
from dpltm.stages.front import FeatureSources, take_over_map, with_feature_map
from dpltm.stages.generate import GenerationPlan
from dpltm.stages.generate_settings import check_options as check_generation
from dpltm.stages.progress import SILENT
from dpltm.stages.services import Services
from dpltm.stages.starting_point import fresh
from dpltm.stages.train_checks import check_request
from dpltm.stages.train_plan import TrainingPlan
from dpltm.stages.train_plan import plan as plan_training

REQUESTS: dict[str, type] = {"generate": GenerateRequest, "select": SelectRequest, "train": TrainRequest}


@dataclass(frozen=True)
class Pipeline:
    """What each of the three stages is asked for."""

    generate: GenerateRequest
    select: SelectRequest
    train: TrainRequest


def read_pipeline(document: Section, path: Path, options: RunRequest) -> Pipeline:
    """The three stages from a parsed TOML document, with what they share filled in.

    Args:
        document: the tables of the file.
        path: of the file, for messages.
        options: what the run decides for all stages: budget, delta, seed and folder.

    Raises:
        InputError: an unknown table or key, or a key that the run decides.
    """
    unknown = set(document) - {*REQUESTS, "run"}
    if unknown:
        raise InputError(
            f"`config` {path}: unknown table or key {min(unknown)!r}; known: [run], [generate], [select], [train]"
        )
    public = reads_no_records(table(path, document, "select"))
    decided = _decided(options, public)
    records = data_options(table(path, document, "train"))
    requests: dict[str, Any] = {}
    for name, cls in REQUESTS.items():
        section = table(path, document, name)
        clash = sorted(key for key in section if decided[name].get(key.replace("-", "_")) is not None)
        if clash:
            otherwise = "" if "run" in document else f", or take dpltm {name} `config` {path}"
            raise InputError(f"`config` {path}: [{name}] {clash[0]}: decided by [run] here; set it there{otherwise}")
        if name == "select" and not public:
            section = {**records, **section}
        requests[name] = resolve(cls, decided[name], section, str(path))
    return Pipeline(**requests)


def _decided(options: RunRequest, public: bool) -> dict[str, dict[str, Any]]:
    """What the run itself decides of each stage; ``public``: whether the draw reads no records, and enters nothing."""
    out = Path(options.out or "")
    tickets, ledger = str(out / "tickets"), str(out / "ledger.jsonl")
    shared = {"delta": options.delta, "dry_run": False}
    eps1 = None if public else round(options.epsilon * (1 - options.split), 12)
    return {
        "generate": {"out": tickets, "ledger": ledger, "seed": options.seed, **shared},
        "select": {"set": tickets, **({} if public else {"ledger": ledger}), "eps1": eps1, **shared},
        "train": {"ticket": tickets, "ledger": ledger, "epsilon": options.epsilon, "out": str(out / "run"), **shared},
    }


@dataclass(frozen=True)
class Means:
    """What a plan is made with.

    Attributes:
        load: reads records.
        sources: what may stand in front of a network.
        ledger: holds nothing, and nothing that is planned is entered in it; it knows of budgets, and tells records apart.
        services: of the stages.
    """

    load: Load
    sources: FeatureSources
    ledger: Ledger
    services: Services

    @property
    def registry(self) -> RecordRegistry:
        """Tells records apart."""
        return self.ledger.registry


def plan(options: RunRequest, pipeline: Pipeline, means: Means) -> PrivacyReport:
    """Everything that can be refused before hours of generation, is: options, data, overlap, shapes, calibration.

    Args:
        options: budget, delta and split of the run.
        pipeline: the requests of the three stages.
        means: what reads records, makes features and tells records apart.

    Returns:
        What the run would spend on the records of [train].

    Raises:
        DpltmError: bad input, or too small a budget.
    """
    check_epsilon("epsilon", options.epsilon)
    if not 0 < options.split < 1:
        raise InputError(f"`split`: {options.split:g} is not between 0 and 1; 0.9 leaves a tenth for the selection")
    if pipeline.train.dense:
        raise InputError("[train] dense: a run trains the winner; use dpltm train `dense` for the whole network")
    made = _plan_generation(pipeline.generate, means)
    before = _plan_draw(options, pipeline, made, means)
    private = _records(options, pipeline.train, "train", made, means)
    if made.provenance != "public":
        origin = means.registry.look_at(made.dataset)
        said = ProvenanceEvent(origin, made.provenance, "planned")
        before = [*(() if made.event is None else (made.event,)), said, *before]
    training = _plan_training(options, pipeline.train, made, private, Ledger(before, registry=means.registry))
    means.ledger.check_budgets((*before, *training.lineage, training.event))
    records = means.registry.look_at(private)
    touching = (event for event in before if event.dataset.may_overlap(records))
    planned = (*touching, *training.lineage, training.event)
    return report(planned, options.delta, "add-remove", accountant=pipeline.train.accountant, held=planned)


def _plan_generation(request: GenerateRequest, means: Means) -> GenerationPlan:
    check_generation(request)
    source = with_feature_map(means.load(request), request, means.sources, SILENT)
    made = generate.plan(source, request, Ledger(registry=means.registry), means.services)
    if made.provenance == "data-free":
        raise InputError(
            "[generate] provenance: data-free tickets have no predictors to select by; say public or private, or train one"
            " by its round with dpltm train SET@ROUND"
        )
    if request.no_predictors:
        raise InputError("[generate] no-predictors: the selection needs them; leave it out")
    return made


def _plan_draw(options: RunRequest, pipeline: Pipeline, made: GenerationPlan, means: Means) -> list[Event]:
    """The event of the draw; none where it goes by public accuracies."""
    if pipeline.select.rule != "mechanism":
        if made.provenance != "public":
            raise InputError(
                f"[select] rule: smallest-within needs public accuracies, and [generate] has provenance {made.provenance}"
            )
        return []
    scored = _records(options, pipeline.select, "select", made, means)
    records = means.registry.look_at(scored)
    shared = means.registry.look_at(made.dataset).may_overlap(records)
    densities = scheduled_densities(made.spec, made.config)[1:]
    draw = select.settle(pipeline.select, scored.records, densities, made.provenance == "dp" or not shared)
    return [select.make_event(draw, records, "planned", () if made.event is None else (made.event,))]


def _plan_training(
    options: RunRequest, request: TrainRequest, made: GenerationPlan, private: Dataset, ledger: Ledger
) -> TrainingPlan:
    """The training of the winner, as far as that does not depend on which it is: as of the whole network."""
    check_request(request)
    take_over_map(private, made.dataset.feature_map, request, "[generate]")  # which decides, so [train] may not
    try:
        return plan_training(fresh(made.spec, 0), private, request, ledger, Services())
    except (BudgetError, CalibrationError) as error:
        if made.event is not None and isinstance(error, BudgetError):
            raise  # the tickets may have taken the budget: it says what did
        raise InputError(
            f"`epsilon`, `split`: {options.split:g} of {options.epsilon:g} is too little for the training; raise `epsilon`,"
            " or `split` (0.9 leaves a tenth for the selection)"
        ) from None


def _records(options: RunRequest, request: DataOptions, stage: str, made: GenerationPlan, means: Means) -> Dataset:
    """The private records of one stage, behind the map that the tickets are made with.

    Raises:
        InputError: they do not suit the tickets, or are the public ones.
    """
    source = made.dataset
    private = take_over_map(means.load(request), source.feature_map, None, "[generate]")
    check_delta(options.delta, private)
    if (source.features, source.classes) != (private.features, private.classes):
        raise InputError(
            f"[generate] and [{stage}]: {source.name} has {source.features} features and {source.classes} classes,"
            f" {private.name} has {private.features} and {private.classes}; tickets need the same"
        )
    origin, records = means.registry.look_at(source), means.registry.look_at(private)
    if made.provenance == "public" and origin.may_overlap(records):
        raise InputError(
            f"[generate] and [{stage}]: {origin} is declared public and shares records with {records}, which is private;"
            " give them different `subset` or `dataset`"
        )
    return private
