"""The three stages from one file: what they share is decided, and what can be refused is, before the first starts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpltm.data import Dataset, kept
from dpltm.errors import BudgetError, CalibrationError, InputError
from dpltm.experiments.recipe import data_options
from dpltm.generation import scheduled_densities
from dpltm.options.data import DataOptions
from dpltm.options.generate import GenerateRequest
from dpltm.options.run import RunRequest
from dpltm.options.sections import resolve, table
from dpltm.options.select import SelectRequest
from dpltm.options.train import TrainRequest
from dpltm.privacy.events import DatasetRef, Event, ProvenanceEvent, now
from dpltm.privacy.ledger import Ledger, report
from dpltm.stages import generate as generating
from dpltm.stages import select as selecting
from dpltm.stages.checks import check_delta, check_epsilon
from dpltm.stages.front import take_over_map
from dpltm.stages.generate_settings import check_options as check_generation
from dpltm.stages.progress import SILENT, Progress
from dpltm.stages.services import Services
from dpltm.stages.starting_point import fresh
from dpltm.stages.train_checks import check_request
from dpltm.stages.train_plan import plan as plan_training
from dpltm.tickets.files import check_free, read_toml
from dpltm.tickets.identity import UserRegistry
from dpltm.tickets.workbench.generate import generate
from dpltm.tickets.workbench.opening import open_dataset, open_features, services
from dpltm.tickets.workbench.select import select
from dpltm.tickets.workbench.train import train

STAGES: dict[str, type] = {
    "generate": GenerateRequest,
    "select": SelectRequest,
    "train": TrainRequest,
}


@dataclass(frozen=True)
class Stages:
    """The resolved options of the three stages."""

    generate: GenerateRequest
    select: SelectRequest
    train: TrainRequest


def run_file(path: Path, options: RunRequest, progress: Progress) -> dict[str, Any]:
    """Runs the three stages that a file describes; returns their answers and the guarantee of all together.

    Raises:
        DpltmError: bad input anywhere in the file, before the first stage starts.
    """
    stages = read_stages(path, options)
    with kept():
        return run(options, stages, progress)


def read_stages(path: Path, options: RunRequest) -> Stages:
    """The options of each stage from the file, with what the run itself decides filled in.

    Raises:
        InputError: an unknown table or key, or a key that the run decides.
    """
    body = read_toml(path)
    unknown = set(body) - {*STAGES, "run"}
    if unknown:
        raise InputError(
            f"`config` {path}: unknown table or key {min(unknown)!r}; known: [run], [generate], [select], [train]"
        )
    out = Path(options.out or "")
    public_rule = table(path, body, "select").get("rule") == "smallest-within"
    eps1 = None if public_rule else round(options.epsilon * (1 - options.split), 12)
    decided: dict[str, dict[str, Any]] = {
        "generate": {"out": str(out / "tickets"), "ledger": str(out / "ledger.jsonl"), "seed": options.seed},
        "select": {"set": str(out / "tickets"), "ledger": str(out / "ledger.jsonl"), "eps1": eps1},
        "train": {
            "ticket": str(out / "tickets"),
            "ledger": str(out / "ledger.jsonl"),
            "epsilon": options.epsilon,
            "out": str(out / "run"),
        },
    }
    if public_rule:  # it reads no records and enters nothing
        del decided["select"]["ledger"]
    for values in decided.values():
        values |= {"delta": options.delta, "dry_run": False}
    records = data_options(table(path, body, "train"))
    stages: dict[str, Any] = {}
    for name, cls in STAGES.items():
        section = table(path, body, name)
        clash = sorted(key for key in section if decided[name].get(key.replace("-", "_")) is not None)
        if clash:
            otherwise = "" if "run" in body else f", or take dpltm {name} `config` {path}"
            raise InputError(f"`config` {path}: [{name}] {clash[0]}: decided by [run] here; set it there{otherwise}")
        if name == "select" and not public_rule:
            section = {**records, **section}
        stages[name] = resolve(cls, decided[name], section, str(path))
    return Stages(**stages)


def run(options: RunRequest, stages: Stages, progress: Progress) -> dict[str, Any]:
    """Runs the three stages; returns their answers and the guarantee of all together.

    Raises:
        DpltmError: bad input anywhere in the file, before the first stage starts.
    """

    check_free(Path(options.out or ""))
    planned = _preflight(options, stages)
    if options.dry_run:
        return _dry_run(options, stages, planned)
    made = generate(stages.generate, progress)
    drawn = select(stages.select, progress)
    trained = train(stages.train, progress)
    return {"out": options.out, "generate": made, "select": drawn, "train": trained, "privacy": trained["privacy"]}


def _preflight(options: RunRequest, stages: Stages) -> tuple[Event, ...]:
    """Everything that can be refused before hours of generation, is: options, data, overlap, shapes, calibration.

    Returns:
        The events that the run would enter for the records of [train].
    """

    check_epsilon("epsilon", options.epsilon)
    if not 0 < options.split < 1:
        raise InputError(f"`split`: {options.split:g} is not between 0 and 1; 0.9 leaves a tenth for the selection")
    if stages.train.dense:
        raise InputError("[train] dense: a run trains the winner; use dpltm train `dense` for the whole network")
    registry, looks = UserRegistry(), UserRegistry(remember=False)
    check_generation(stages.generate)
    source = open_features(open_dataset(stages.generate), stages.generate, registry, SILENT)
    made = generating.plan(source, stages.generate, Ledger(registry=registry), services(SILENT))
    if made.provenance == "data-free":
        raise InputError(
            "[generate] provenance: data-free tickets have no predictors to select by; say public or private, or train one"
            " by its round with dpltm train SET@ROUND"
        )
    if stages.generate.no_predictors:
        raise InputError("[generate] no-predictors: the selection needs them; leave it out")
    public, source, spec = made.provenance == "public", made.dataset, made.spec
    origin = looks.reference(source)
    before: list[Event] = []
    if stages.select.rule == "mechanism":
        scored = _check_records(source, origin, _behind(stages.select, source), "select", options.delta, public)
        shared = origin.may_overlap(looks.reference(scored))
        densities = scheduled_densities(spec, made.config)[1:]
        plan = selecting.settle(stages.select, scored.records, densities, made.provenance == "dp" or not shared)
        spent = () if made.event is None else (made.event,)
        before.append(selecting.make_event(plan, looks.reference(scored), "planned", spent))
    elif not public:
        raise InputError(
            f"[select] rule: smallest-within needs public accuracies, and [generate] has provenance {made.provenance}"
        )
    private = _check_records(source, origin, _behind(stages.train, source), "train", options.delta, public)
    records = looks.reference(private)
    if not public:
        before.insert(0, ProvenanceEvent(origin, now(), "add-remove", "record", made.provenance, "planned"))
        if made.event is not None:
            before.insert(0, made.event)
    check_request(stages.train)
    take_over_map(private, source.feature_map, stages.train, "[generate]")  # which decides, so [train] may not
    ledger = Ledger(before, registry=looks)
    try:
        training = plan_training(fresh(spec, 0), private, stages.train, ledger, Services())
    except (BudgetError, CalibrationError) as error:
        if made.event is not None and isinstance(error, BudgetError):
            raise  # the tickets may have taken the budget: it says what did
        raise InputError(
            f"`epsilon`, `split`: {options.split:g} of {options.epsilon:g} is too little for the training; raise `epsilon`,"
            " or `split` (0.9 leaves a tenth for the selection)"
        ) from None
    touching = (event for event in before if event.dataset.may_overlap(records))
    return (*touching, *training.lineage, training.event)


def _behind(options: DataOptions, source: Dataset) -> Dataset:
    """The private records of one stage, behind the map that the tickets are made with."""

    return take_over_map(open_dataset(options), source.feature_map, None, "[generate]")


def _check_records(
    source: Dataset, origin: DatasetRef, private: Dataset, stage: str, delta: float, public: bool
) -> Dataset:
    """The private records of one stage, if they suit the tickets and are not the public ones."""

    check_delta(delta, private)
    if (source.features, source.classes) != (private.features, private.classes):
        raise InputError(
            f"[generate] and [{stage}]: {source.name} has {source.features} features and {source.classes} classes,"
            f" {private.name} has {private.features} and {private.classes}; tickets need the same"
        )
    records = UserRegistry(remember=False).reference(private)
    if public and origin.may_overlap(records):
        raise InputError(
            f"[generate] and [{stage}]: {origin} is declared public and shares records with {records}, which is private;"
            " give them different `subset` or `dataset`"
        )
    return private


def _dry_run(options: RunRequest, stages: Stages, planned: tuple[Event, ...]) -> dict[str, Any]:

    return {
        "dry_run": True,
        "out": options.out,
        "tickets_from": stages.generate.dataset,
        "private_records": stages.train.dataset,
        "rounds": stages.generate.rounds,
        "eps1": stages.select.eps1,
        "privacy": report(
            planned, options.delta, "add-remove", accountant=stages.train.accountant, held=planned
        ).to_json(),
    }
