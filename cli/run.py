"""``dpltm run``: the three stages from one configuration file, under one budget and one ledger."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpltm.cli import generate, select, train
from dpltm.cli.common import DataOptions, check_delta, load_dataset
from dpltm.cli.console import Console
from dpltm.cli.options import Call, option, read_toml, resolve, table
from dpltm.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console as RichConsole

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
    """

    epsilon: float = option(1.0, "Whole budget on the private records.", metavar="E")
    delta: float = option(1e-5, "Delta of the guarantee.", metavar="D")
    split: float = option(0.9, "Part of the budget for training; the rest draws the winner.", metavar="F")
    seed: int | None = option(None, "Seed of generation.", metavar="N", shown="0")
    out: str = option("dpltm-run", "Folder to write: tickets/, run/ and ledger.jsonl.", metavar="DIR")
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
    console = Console(call.json, call.quiet)
    body = run(options, read_stages(Path(call.config), options), console)
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
    out = Path(options.out)
    public_rule = table(path, body, "select").get("rule") == "smallest-within"
    eps1 = None if public_rule else options.epsilon * (1 - options.split)
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
    for values in decided.values():
        values |= {"delta": options.delta, "dry_run": False}
    records = {
        key: value for key, value in table(path, body, "train").items() if key in DataOptions.__dataclass_fields__
    }
    stages: dict[str, Any] = {}
    for name, cls in STAGES.items():
        section = table(path, body, name)
        clash = sorted(key for key in section if decided[name].get(key.replace("-", "_")) is not None)
        if clash:
            raise InputError(f"--config {path}: [{name}] {clash[0]}: decided by [run] here; set it there")
        if name == "select":
            section = {**records, **section}
        stages[name] = resolve(cls, decided[name], section, str(path))
    return Stages(**stages)


def run(options: RunOptions, stages: Stages, console: Console) -> dict[str, Any]:
    """Runs the three stages; returns their answers and the guarantee of all together.

    Raises:
        DpltmError: bad input anywhere in the file, before the first stage starts.
    """
    from dpltm.tickets.files import check_free

    check_free(Path(options.out))
    _preflight(options, stages)
    if options.dry_run:
        return _dry_run(options, stages)
    made = generate.run(stages.generate, console)
    drawn = select.run(stages.select, console)
    trained = train.run(stages.train, console)
    return {"out": options.out, "generate": made, "select": drawn, "train": trained, "privacy": trained["privacy"]}


def _preflight(options: RunOptions, stages: Stages) -> None:
    """Everything that can be refused before hours of generation, is: options, data, overlap, shapes, calibration."""
    from dpltm.tickets.identity import reference

    if not (options.epsilon > 0 and math.isfinite(options.epsilon)):
        raise InputError(f"--epsilon: {options.epsilon:g} is not a positive number")
    if not 0 < options.split < 1:
        raise InputError(f"--split: {options.split:g} is not between 0 and 1; 0.9 leaves a tenth for the selection")
    if stages.train.dense:
        raise InputError("[train] dense: a run trains the winner; use dpltm train --dense for the whole network")
    source, spec, config = generate.plan(stages.generate)
    private = load_dataset(stages.train)
    check_delta(options.delta, private)
    if (source.features, source.classes) != (private.features, private.classes):
        raise InputError(
            f"[generate] and [train]: {source.name} has {source.features} features and {source.classes} classes,"
            f" {private.name} has {private.features} and {private.classes}; tickets need the same"
        )
    shared = reference(source).may_overlap(reference(private))
    if shared and stages.generate.provenance == "public":
        raise InputError(
            f"[generate] and [train]: {reference(source)} is declared public and shares records with {reference(private)},"
            " which is private; give them different --subset or --dataset"
        )
    rounds = tuple(0.5 for _ in range(config.rounds))
    if stages.select.rule == "mechanism":
        select.make_plan(stages.select, load_dataset(stages.select), rounds, not shared)
    train.check_exclusive(stages.train)
    train.make_plan(
        replace(stages.train, ticket=None, dense=True), train.fresh_start(spec, 0), (), Console(quiet=True)
    )


def _dry_run(options: RunOptions, stages: Stages) -> dict[str, Any]:
    return {
        "dry_run": True,
        "out": options.out,
        "tickets_from": stages.generate.dataset,
        "private_records": stages.train.dataset,
        "rounds": stages.generate.rounds,
        "eps1": stages.select.eps1,
        "epsilon": options.epsilon,
        "delta": options.delta,
    }


def _show(rich: RichConsole, body: dict[str, Any]) -> None:
    from dpltm.cli.show import show_pairs, show_privacy, show_stages

    if body.get("dry_run"):
        show_pairs(rich, "would run", body)
        return
    show_stages(rich, body)
    show_privacy(rich, body["privacy"])
