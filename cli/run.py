"""``dpltm run``: the three stages from one configuration file, under one budget and one ledger; or a recipe of many runs."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpltm.cli import generate, select, train, train_plan
from dpltm.cli.common import DataOptions, check_delta, check_epsilon, load_dataset
from dpltm.cli.console import Console
from dpltm.cli.features import carried
from dpltm.cli.options import Call, option, read_toml, resolve, table
from dpltm.cli.recipe import data_of, is_recipe
from dpltm.errors import BudgetError, CalibrationError, InputError

if TYPE_CHECKING:
    from rich.console import Console as RichConsole

    from dpltm.data import Dataset
    from dpltm.privacy.events import DatasetRef, Event

STAGES: dict[str, type] = {
    "generate": generate.GenerateOptions,
    "select": select.SelectOptions,
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
    dry_run: bool = option(False, "Check everything and print what would be done.")


@dataclass(frozen=True)
class Stages:
    """The resolved options of the three stages."""

    generate: generate.GenerateOptions
    select: select.SelectOptions
    train: train.TrainOptions


def command(options: RunOptions, call: Call) -> None:
    """Runs ``dpltm run`` and prints its answer."""
    if call.config is None:
        raise InputError(
            "--config is missing: name a TOML file with [generate], [select] and [train]; see examples/digits.toml"
        )
    console, path = Console(call.json, call.quiet), Path(call.config)
    if is_recipe(read_toml(path)):
        run_recipe(path, options, console)
        return
    for flag, given in (("--seeds", options.seeds), ("--quick", options.quick), ("--jobs", options.jobs)):
        if given:
            raise InputError(f"{flag}: of a recipe, and {path} is none (it has no table [recipe]); leave it out")
    options = replace(options, out=options.out or "dpltm-run")

    from dpltm.data import kept  # only now: numpy is not needed to refuse

    with kept():
        body = run(options, read_stages(path, options), console)
    console.result(body, lambda rich: _show(rich, body))


def run_recipe(path: Path, options: RunOptions, console: Console) -> None:
    """Runs a recipe and prints its table.

    Raises:
        InputError: whatever is wrong with it, before anything starts.
        typer.Exit: the table has holes; with exit code 1.
    """
    import typer

    from dpltm.cli import recipe_table
    from dpltm.cli.recipe import recipe_and_problems
    from dpltm.cli.recipe_ready import check_ready, check_same_records
    from dpltm.cli.sweep import CHILD, check_jobs, session, sweep, world
    from dpltm.data import kept
    from dpltm.tickets.sweep_files import SweepFolder

    for flag, given, usual in (("--epsilon", options.epsilon, 1.0), ("--delta", options.delta, 1e-5),
                               ("--split", options.split, 0.9), ("--seed", options.seed, None)):  # fmt: skip
        if given != usual:
            raise InputError(f"{flag}: a recipe says it for each of its arms; leave {flag} out")
    check_jobs(options.jobs)
    recipe, problems = recipe_and_problems(path, options.seeds, options.quick)
    with kept():  # and no longer: members may be made by other processes
        records = {} if CHILD in os.environ else check_ready(recipe, problems)
    root = Path(options.out or f"{path.stem}{'-quick' if recipe.quick else ''}.sweep")
    if options.dry_run:
        body = recipe_table.plan(recipe, root, console)
        console.result(body, lambda rich: recipe_table.show_plan(rich, body))
        return
    folder = SweepFolder(root, recipe.title, session())
    check_same_records(recipe, folder, records)
    sweep(recipe, folder, options.jobs, console)
    if world()[0] or CHILD in os.environ:
        return
    body = recipe_table.finish(recipe, folder)
    console.result(body, lambda rich: recipe_table.show(rich, body))
    if any(row["missing"] for row in body["arms"]):
        raise typer.Exit(1)


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
    records = data_of(table(path, body, "train"))
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

    check_free(Path(options.out or ""))
    planned = _preflight(options, stages)
    if options.dry_run:
        return _dry_run(options, stages, planned)
    made = generate.run(stages.generate, console)
    drawn = select.run(stages.select, console)
    trained = train.run(stages.train, console)
    return {"out": options.out, "generate": made, "select": drawn, "train": trained, "privacy": trained["privacy"]}


def _preflight(options: RunOptions, stages: Stages) -> tuple[Event, ...]:
    """Everything that can be refused before hours of generation, is: options, data, overlap, shapes, calibration.

    Returns:
        The events that the run would enter for the records of [train].
    """
    from dpltm.generation import scheduled_densities
    from dpltm.privacy.events import ProvenanceEvent
    from dpltm.tickets.identity import reference

    check_epsilon("--epsilon", options.epsilon)
    if not 0 < options.split < 1:
        raise InputError(f"--split: {options.split:g} is not between 0 and 1; 0.9 leaves a tenth for the selection")
    if stages.train.dense:
        raise InputError("[train] dense: a run trains the winner; use dpltm train --dense for the whole network")
    made = generate.make_plan(stages.generate, (), Console(quiet=True))
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
        plan = select.make_plan(stages.select, scored.records, densities, made.provenance == "dp" or not shared)
        spent = () if made.event is None else (made.event,)
        before.append(select.make_event(plan, reference(scored, make_key=False), "planned", spent))
    elif not public:
        raise InputError(
            f"[select] rule: smallest-within needs public accuracies, and [generate] has provenance {made.provenance}"
        )
    private = _check_records(source, origin, _behind(stages.train, source), "train", options.delta, public)
    records = reference(private, make_key=False)
    if not public:
        before.insert(0, ProvenanceEvent(origin, made.provenance, "planned"))
        if made.event is not None:
            before.insert(0, made.event)
    train_plan.check_options(stages.train)
    carried(private, source.feature_map, stages.train, "[generate]")  # which decides, so [train] may not
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
    return carried(load_dataset(options), source.feature_map, None, "[generate]")


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
    from dpltm.privacy.report import report

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
