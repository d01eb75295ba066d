"""``dpltm run``: the three stages from one configuration file, under one budget and one ledger; or a recipe of many runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpltm.cli import train, train_plan
from dpltm.cli.common import DataOptions, check_delta, check_epsilon, load_dataset
from dpltm.cli.console import Console
from dpltm.cli.options import Call, option
from dpltm.errors import BudgetError, CalibrationError, InputError
from dpltm.experiments.recipe import data_options, is_recipe
from dpltm.options.generate import GenerateRequest
from dpltm.options.sections import resolve, table
from dpltm.options.select import SelectRequest
from dpltm.tickets.files import read_toml

if TYPE_CHECKING:
    from rich.console import Console as RichConsole

    from dpltm.data import Dataset
    from dpltm.privacy.events import DatasetRef, Event

STAGES: dict[str, type] = {
    "generate": GenerateRequest,
    "select": SelectRequest,
    "train": train.TrainOptions,
}


@dataclass(frozen=True)
class RunOptions:
    """All three stages from one TOML file, under one budget that is split between selection and training.

    The file has a table for each command, with the names of its options as keys: run, generate, select, train. Datasets
    go into generate (what the tickets are made from) and train (the private records, which select scores as well unless
    it says otherwise).

    A file with a table named recipe is an experiment of several arms and seeds (examples/papers). Its members run in --jobs
    processes; what is finished is not run again, so an interrupted sweep goes on with the same command.
    """

    epsilon: float = option(1.0, "Whole budget on the private records.", metavar="E")
    delta: float = option(1e-5, "Delta of the guarantee.", metavar="D")
    split: float = option(0.9, "Part of the budget for training; the rest draws the winner.", metavar="F")
    seed: int | None = option(None, "Seed of generation.", metavar="N", shown="0")
    out: str | None = option(
        None, "Folder to write: tickets/, run/ and ledger.jsonl.", metavar="DIR", shown="dpltm-run, or NAME.sweep"
    )
    seeds: int | None = option(
        None, "Of a recipe: runs of each arm, with seeds 0 to N - 1.", metavar="N", shown="its own"
    )
    quick: bool = option(False, "Of a recipe: its quick version, which shows that it works and no more.")
    jobs: int | None = option(None, "Of a recipe: processes.", metavar="N", shown="one a processor")
    scheduler: str | None = option(
        None, "Of a recipe: Dask scheduler whose workers make the trials; your own.", metavar="ADDRESS"
    )
    dry_run: bool = option(False, "Check everything and print what would be done.")


@dataclass(frozen=True)
class Stages:
    """The resolved options of the three stages."""

    generate: GenerateRequest
    select: SelectRequest
    train: train.TrainOptions


def command(options: RunOptions, call: Call) -> None:
    """Runs ``dpltm run`` and prints its answer."""
    if call.config is None:
        raise InputError(
            "--config is missing: name a TOML file with [generate], [select] and [train]; see examples/digits.toml"
        )
    console, path = Console(call.json, call.quiet), Path(call.config)
    if is_recipe(read_toml(path)):
        from dpltm.cli.recipe import run_recipe

        run_recipe(path, options, console)
        return
    of_recipes = ("--seeds", options.seeds), ("--quick", options.quick), ("--jobs", options.jobs)
    for flag, given in (*of_recipes, ("--scheduler", options.scheduler)):
        if given:
            raise InputError(f"{flag}: of a recipe, and {path} is none (it has no table [recipe]); leave it out")
    options = replace(options, out=options.out or "dpltm-run")
    body = run(options, read_stages(path, options), console)
    console.result(body, lambda rich: _show(rich, body))


def read_stages(path: Path, options: RunOptions) -> Stages:
    """The options of each stage from the file, with what the run itself decides filled in.

    Raises:
        InputError: an unknown table or key, or a key that the run decides.
    """
    body = read_toml(path)
    unknown = set(body) - {*STAGES, "run"}
    if unknown:
        raise InputError(
            f"--config {path}: unknown table or key {min(unknown)!r}; known: [run], [generate], [select], [train]"
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
            otherwise = "" if "run" in body else f", or take dpltm {name} --config {path}"
            raise InputError(f"--config {path}: [{name}] {clash[0]}: decided by [run] here; set it there{otherwise}")
        if name == "select" and not public_rule:
            section = {**records, **section}
        stages[name] = resolve(cls, decided[name], section, str(path))
    return Stages(**stages)


def run(options: RunOptions, stages: Stages, console: Console) -> dict[str, Any]:
    """Runs the three stages; returns their answers and the guarantee of all together.

    Raises:
        DpltmError: bad input anywhere in the file, before the first stage starts.
    """
    from dpltm.tickets.files import check_free
    from dpltm.tickets.workbench.generate import generate
    from dpltm.tickets.workbench.select import select

    check_free(Path(options.out or ""))
    planned = _preflight(options, stages)
    if options.dry_run:
        return _dry_run(options, stages, planned)
    made = generate(stages.generate, console)
    drawn = select(stages.select, console)
    trained = train.run(stages.train, console)
    return {"out": options.out, "generate": made, "select": drawn, "train": trained, "privacy": trained["privacy"]}


def _preflight(options: RunOptions, stages: Stages) -> tuple[Event, ...]:
    """Everything that can be refused before hours of generation, is: options, data, overlap, shapes, calibration.

    Returns:
        The events that the run would enter for the records of [train].
    """
    from dpltm.generation import scheduled_densities
    from dpltm.privacy.events import ProvenanceEvent, now
    from dpltm.privacy.ledger import Ledger
    from dpltm.stages import generate, select
    from dpltm.stages.front import take_over_map
    from dpltm.stages.generate_settings import check_options as check_generation
    from dpltm.tickets.identity import UserRegistry, reference
    from dpltm.tickets.workbench.opening import open_dataset, open_features, services

    check_epsilon("--epsilon", options.epsilon)
    if not 0 < options.split < 1:
        raise InputError(f"--split: {options.split:g} is not between 0 and 1; 0.9 leaves a tenth for the selection")
    if stages.train.dense:
        raise InputError("[train] dense: a run trains the winner; use dpltm train --dense for the whole network")
    quiet, registry = Console(quiet=True), UserRegistry()
    check_generation(stages.generate)
    source = open_features(open_dataset(stages.generate), stages.generate, registry, quiet)
    made = generate.plan(source, stages.generate, Ledger(registry=registry), services(quiet))
    if made.provenance == "data-free":
        raise InputError(
            "[generate] provenance: data-free tickets have no predictors to select by; say public or private, or train one"
            " by its round with dpltm train SET@ROUND"
        )
    if stages.generate.no_predictors:
        raise InputError("[generate] no-predictors: the selection needs them; leave it out")
    public, source, spec = made.provenance == "public", made.dataset, made.spec
    origin = reference(source, make_key=False)
    before: list[Event] = []
    if stages.select.rule == "mechanism":
        scored = _check_records(source, origin, _behind(stages.select, source), "select", options.delta, public)
        shared = origin.may_overlap(reference(scored, make_key=False))
        densities = scheduled_densities(spec, made.config)[1:]
        plan = select.settle(stages.select, scored.records, densities, made.provenance == "dp" or not shared)
        spent = () if made.event is None else (made.event,)
        before.append(select.make_event(plan, reference(scored, make_key=False), "planned", spent))
    elif not public:
        raise InputError(
            f"[select] rule: smallest-within needs public accuracies, and [generate] has provenance {made.provenance}"
        )
    private = _check_records(source, origin, _behind(stages.train, source), "train", options.delta, public)
    records = reference(private, make_key=False)
    if not public:
        before.insert(0, ProvenanceEvent(origin, now(), "add-remove", "record", made.provenance, "planned"))
        if made.event is not None:
            before.insert(0, made.event)
    train_plan.check_options(stages.train)
    take_over_map(private, source.feature_map, stages.train, "[generate]")  # which decides, so [train] may not
    plain = replace(stages.train, ticket=None, dense=True, dry_run=True)
    start = replace(train_plan.fresh_start(spec, 0), dataset=private)
    try:
        training = train_plan.make_plan(plain, start, tuple(before), Console(quiet=True))
    except (BudgetError, CalibrationError) as error:
        if made.event is not None and isinstance(error, BudgetError):
            raise  # the tickets may have taken the budget: it says what did
        raise InputError(
            f"--epsilon, --split: {options.split:g} of {options.epsilon:g} is too little for the training; raise --epsilon,"
            " or --split (0.9 leaves a tenth for the selection)"
        ) from None
    touching = (event for event in before if event.dataset.may_overlap(records))
    return (*touching, *training.lineage, training.event)


def _behind(options: DataOptions, source: Dataset) -> Dataset:
    """The private records of one stage, behind the map that the tickets are made with."""
    from dpltm.stages.front import take_over_map

    return take_over_map(load_dataset(options), source.feature_map, None, "[generate]")


def _check_records(
    source: Dataset, origin: DatasetRef, private: Dataset, stage: str, delta: float, public: bool
) -> Dataset:
    """The private records of one stage, if they suit the tickets and are not the public ones."""
    from dpltm.tickets.identity import reference

    check_delta(delta, private)
    if (source.features, source.classes) != (private.features, private.classes):
        raise InputError(
            f"[generate] and [{stage}]: {source.name} has {source.features} features and {source.classes} classes,"
            f" {private.name} has {private.features} and {private.classes}; tickets need the same"
        )
    records = reference(private, make_key=False)
    if public and origin.may_overlap(records):
        raise InputError(
            f"[generate] and [{stage}]: {origin} is declared public and shares records with {records}, which is private;"
            " give them different --subset or --dataset"
        )
    return private


def _dry_run(options: RunOptions, stages: Stages, planned: tuple[Event, ...]) -> dict[str, Any]:
    from dpltm.privacy.ledger import report

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


def _show(rich: RichConsole, body: dict[str, Any]) -> None:
    from dpltm.cli.show import show_pairs, show_privacy, show_stages

    if body.get("dry_run"):
        show_pairs(rich, "would run", body)
        show_privacy(rich, body["privacy"])
        return
    show_stages(rich, body)
    show_privacy(rich, body["privacy"])
