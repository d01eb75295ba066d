"""``dpltm tune``: hyperparameters on a public dataset, under the budget and the noise of the private run."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpltm.cli.common import (
    MOST_STEPS,
    NETWORKS,
    check_delta_alone,
    check_epsilon,
    check_same_network,
    load_dataset,
    model_spec,
    parse_numbers,
    source_relation,
    steps_of,
    tensors,
)
from dpltm.cli.console import Console
from dpltm.cli.features import FeatureOptions, carried, with_features
from dpltm.cli.options import Call, option, recorded
from dpltm.errors import InputError
from dpltm.privacy.accountants import CERTIFIED
from dpltm.privacy.mechanisms import NoisySgd

if TYPE_CHECKING:
    from rich.console import Console as RichConsole
    from torch import Tensor, nn

    from dpltm.data import Dataset
    from dpltm.masks import Mask
    from dpltm.models import ModelSpec
    from dpltm.privacy.events import DatasetRef
    from dpltm.tickets.ticket_set import TicketSet

MOST_TRIALS = 10_000
"""Most settings that a search tries."""

HELD_OUT = 5
"""Where the public dataset has no test split, a fifth of its records, drawn by --seed, is held out to score on."""


@dataclass(frozen=True)
class TuneOptions(FeatureOptions):
    """Searches the settings of a private training on a public dataset, under the same budget and noise.

    Every combination of the lists below, or --trials of them drawn at random, is trained on --dataset, which is thereby
    declared public, with the noise that the private run of --for-records records will have. No private record is read, so
    the search costs nothing. The best is written as a configuration file for dpltm train --config.
    """

    set: str | None = option(
        None, "Ticket set to tune for; without it, the whole network.", metavar="SET", argument=True
    )
    rounds: str | None = option(None, "Rounds of SET to try.", metavar="R,R,...", shown="all but the dense one")
    model: str | None = option(None, "Network where there is no SET.", metavar=NETWORKS, shown="mlp:300,100")
    for_records: int | None = option(
        None, "Public number of private records that the settings are for.", metavar="N", required=True
    )
    epsilon: float | None = option(None, "Budget of the private training.", metavar="E", required=True)
    delta: float = option(1e-5, "Delta of its guarantee.", metavar="D")
    lr: str = option("0.5,1,2,4", "Step sizes to try.", metavar="X,X,...")
    clip_norm: str = option("1", "Clip norms to try.", metavar="C,C,...")
    epochs: str = option("15", "Passes over the private records to try.", metavar="N,N,...")
    batch_size: str = option("1600", "Expected batch sizes to try.", metavar="N,N,...")
    optimizer: str = option("sgd", "Optimizer.", choices=("sgd", "momentum", "adam", "adagrad"))
    schedule: str = option("constant", "Step size over the run.", choices=("constant", "linear", "cosine"))
    average: str = option("none", "Average of the weights.", choices=("none", "ema", "poly"))
    accountant: str = option("pld", "Accountant that noise is calibrated by.", choices=CERTIFIED.keys())
    trials: int | None = option(None, "Combinations to try, drawn at random.", metavar="N", shown="all")
    repeats: int = option(1, "Trainings of each; their mean decides.", metavar="N")
    seed: int = option(0, "Decides starting weights and which combinations are drawn.", metavar="N")
    out: str | None = option(None, "Configuration file to write.", metavar="FILE.toml")


@dataclass(frozen=True)
class Setting:
    """One combination. ``round`` is None without a ticket set."""

    round: int | None
    lr: float
    clip_norm: float
    epochs: float
    batch_size: float


@dataclass(frozen=True)
class Start:
    """What every trial has in common."""

    spec: ModelSpec
    tickets: TicketSet | None
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def command(options: TuneOptions, call: Call) -> None:
    """Runs ``dpltm tune`` and prints its answer."""
    console = Console(call.json, call.quiet)
    body = run(options, console)
    console.result(body, lambda rich: _show(rich, body))


def run(options: TuneOptions, console: Console, *, portable: bool = False) -> dict[str, Any]:
    """Tries every setting and writes the best; returns the JSON answer.

    Args:
        options: what to try.
        console: where progress goes.
        portable: write the names of files alone, not where they lie: for a folder that is handed on, where nobody takes the
            file for ``--config``.

    Raises:
        DpltmError: bad input, before the first training.
    """
    from dpltm.tickets.files import check_free, check_writable
    from dpltm.tickets.identity import reference

    settings = _settings(options)
    if options.out is not None:
        if Path(options.out).suffix != ".toml":
            raise InputError(f"--out: {options.out} is a configuration file; name it {Path(options.out).stem}.toml")
        check_free(Path(options.out))
        check_writable(Path(options.out))
    dataset, tickets = _dataset(options, console)
    rounds = _rounds(options, tickets)
    tried = [replace(setting, round=number) for number in rounds for setting in settings]
    if options.trials is not None:
        tried = random.Random(options.seed).sample(tried, min(options.trials, len(tried)))
    if len(tried) > MOST_TRIALS:
        raise InputError(f"--trials: {len(tried):,} combinations; try at most {MOST_TRIALS:,} of them")
    spec = model_spec(options.model or "mlp:300,100", dataset) if tickets is None else tickets.body.spec
    planned = {setting: _mechanism(options, setting) for setting in tried}
    start = _start(dataset, tickets, spec, options.seed, console)
    rows: list[dict[str, Any]] = []
    with console.progress(f"tuning on {dataset.name}", len(tried) * options.repeats) as step:
        for setting in tried:
            scores = []
            for repeat in range(options.repeats):
                scores.append(_trial(options, setting, planned[setting], start, options.seed + repeat))
                step(len(rows) * options.repeats + repeat + 1)
            rows.append(_row(setting, planned[setting], start, scores))
    rows.sort(key=lambda row: -row["accuracy"])
    if options.out is not None:
        named = replace(options, **recorded(options)) if portable else options
        _write(Path(options.out), named, rows[0], reference(dataset, public=True))
    return _answer(options, dataset, tickets, rows)


def _settings(options: TuneOptions) -> list[Setting]:
    """Every combination, of no round yet; everything about the options that can be refused is."""
    from dpltm.filters import make_filter

    check_epsilon("--epsilon", options.epsilon)
    check_delta_alone(options.delta)
    for flag, number in (
        ("--for-records", options.for_records),
        ("--repeats", options.repeats),
        ("--trials", options.trials),
    ):
        if number is not None and number < 1:
            raise InputError(f"{flag}: {number} is not a positive whole number")
    if not options.delta < 1 / (options.for_records or 1):
        raise InputError(
            f"--delta: {options.delta:g} is not below 1/n for {options.for_records} records; take a smaller one"
        )
    if not 0 <= options.seed < 2**62:
        raise InputError(f"--seed: {options.seed} is not between 0 and 2^62 - 1")
    if options.set is not None and options.model is not None:
        raise InputError("--model: the ticket set decides the network; leave --model out")
    lists = {}
    for flag, text in (("--lr", options.lr), ("--clip-norm", options.clip_norm), ("--epochs", options.epochs),
                       ("--batch-size", options.batch_size)):  # fmt: skip
        lists[flag] = parse_numbers(flag, text)
        for value in lists[flag]:
            if not 0 < value < math.inf:
                raise InputError(f"{flag}: {value:g} is not a positive number")
    for value in lists["--clip-norm"]:
        make_filter("clip", clip_norm=value)
    if math.prod(map(len, lists.values())) > MOST_TRIALS:
        raise InputError(
            f"--lr, --clip-norm, --epochs, --batch-size: more than {MOST_TRIALS:,} combinations; name fewer"
        )
    largest = max(lists["--batch-size"])
    if largest > (options.for_records or 0):
        raise InputError(f"--batch-size: {largest:g} is more than the {options.for_records} records of --for-records")
    return [Setting(None, *values) for values in itertools.product(*lists.values())]


def _dataset(options: TuneOptions, console: Console) -> tuple[Dataset, TicketSet | None]:
    """The public records, with what stands in front of the network."""
    from dpltm.tickets.store import find_set

    dataset = load_dataset(options)
    if options.set is None:
        return with_features(dataset, options, console), None
    tickets = find_set(options.set)
    dataset = carried(dataset, tickets.feature_map, options, tickets.label)
    check_same_network(tickets, dataset)
    _check_public(tickets, dataset)
    return dataset, tickets


def _check_public(tickets: TicketSet, dataset: Dataset) -> None:
    """Raises InputError if these records are known to be private: the search would declare them public."""
    from dpltm.privacy.events import ProvenanceEvent
    from dpltm.tickets.identity import reference
    from dpltm.tickets.ledger_file import open_ledger

    records = reference(dataset, make_key=False)
    spent = open_ledger(tickets.ledger_path).touching(records) if tickets.ledger_path.exists() else ()
    private = [event for event in spent if not (isinstance(event, ProvenanceEvent) and event.provenance == "public")]
    made = tickets.provenance in ("private", "dp") and source_relation(tickets, dataset) == "same"
    if made or private:
        raise InputError(
            f"--dataset: {records} is private to {tickets.label} (its ledger or its provenance says so), and a search"
            " declares its records public; take others"
        )


def check_options(options: TuneOptions) -> None:
    """Raises InputError for options that are out of range or contradict each other, whatever the tickets."""
    _settings(options)
    _named_rounds(options)


def _named_rounds(options: TuneOptions) -> list[int] | None:
    """The rounds that were asked for; None where that is for the set to say."""
    if options.rounds is None:
        return None
    if options.set is None:
        raise InputError("--rounds: only for a ticket set; name SET, or leave it out")
    numbers = options.rounds.split(",")
    if not all(number.isdecimal() and len(number) < 5 for number in numbers):
        raise InputError(f"--rounds: {options.rounds!r} is not a list of rounds, such as 0,3,6")
    return [int(number) for number in numbers]


def _rounds(options: TuneOptions, tickets: TicketSet | None) -> list[int | None]:
    named = _named_rounds(options)
    if tickets is None:
        return [None]
    if named is None:
        return [ticket.round for ticket in tickets.body.tickets if ticket.round] or [0]
    return [tickets.ticket(number).round for number in named]


def _start(dataset: Dataset, tickets: TicketSet | None, spec: ModelSpec, seed: int, console: Console) -> Start:
    import torch

    train = tensors(dataset.train, dataset, console=console)
    if dataset.test is not None:
        return Start(spec, tickets, train, tensors(dataset.test, dataset, console=console))
    count = len(train[1]) // HELD_OUT
    if not count:
        raise InputError(
            f"--dataset: {dataset.name} has no test split and {len(train[1])} records, too few to hold some out; name a"
            " --test file"
        )
    out = torch.zeros(len(train[1]), dtype=torch.bool)
    out[torch.randperm(len(out), generator=torch.Generator().manual_seed(seed))[:count]] = True
    return Start(spec, tickets, (train[0][~out], train[1][~out]), (train[0][out], train[1][out]))


def _mechanism(options: TuneOptions, setting: Setting) -> NoisySgd:
    """The private training as it would be, with its noise calibrated."""
    from dpltm.privacy.calibration import calibrate_noise

    rate = setting.batch_size / (options.for_records or 1)
    steps = steps_of(setting.epochs, rate)
    if steps > MOST_STEPS:
        raise InputError(f"--epochs: {setting.epochs:g} are {steps:,} steps, more than {MOST_STEPS:,}; ask for fewer")
    draft = NoisySgd(rate, steps, noise_multiplier=1.0)
    return calibrate_noise(options.epsilon or 0.0, options.delta, draft, (), options.accountant)


def _trial(options: TuneOptions, setting: Setting, mechanism: NoisySgd, start: Start, seed: int) -> float:
    """Accuracy of one training on the public records, each step as noisy as the private one.

    The sum over a batch is divided by its expected size; where the public records are fewer than that, all of them take
    part and the noise shrinks along, so that the mean gradient is as noisy all the same.
    """
    from dpltm.filters import make_filter
    from dpltm.generation import accuracy
    from dpltm.noise import FastSource
    from dpltm.sampling import Records
    from dpltm.training import TrainingConfig, train

    count = len(start.train[1])
    batch = min(setting.batch_size, float(count))
    filter = make_filter("clip", clip_norm=setting.clip_norm)
    model, mask = _network(start, setting, seed)
    config = TrainingConfig(
        filter,
        batch / count,
        mechanism.steps,
        batch,
        mechanism.noise_multiplier * filter.certified_bound(mask.live) * batch / setting.batch_size,
        setting.lr,
        options.optimizer,  # type: ignore[arg-type]
        schedule=options.schedule,  # type: ignore[arg-type]
        average=options.average,  # type: ignore[arg-type]
    )
    train(model, mask, Records(*start.train), config, sampling=FastSource(), noise=FastSource())
    return accuracy(model, *start.test)


def _network(start: Start, setting: Setting, seed: int) -> tuple[nn.Sequential, Mask]:
    from dpltm.masks import Mask
    from dpltm.models import build

    if start.tickets is None or setting.round is None:
        model = build(start.spec, seed)
        return model, Mask.dense(model)
    model = build(start.spec)
    model.load_state_dict(start.tickets.body.theta0)
    return model, start.tickets.ticket(setting.round).mask


def _row(setting: Setting, mechanism: NoisySgd, start: Start, scores: list[float]) -> dict[str, Any]:
    density = (
        1.0 if start.tickets is None or setting.round is None else start.tickets.ticket(setting.round).mask.density
    )
    return {
        "round": setting.round,
        "density": density,
        "lr": setting.lr,
        "clip_norm": setting.clip_norm,
        "epochs": setting.epochs,
        "batch_size": setting.batch_size,
        "steps": mechanism.steps,
        "noise_multiplier": mechanism.noise_multiplier,
        "accuracy": sum(scores) / len(scores),
        "accuracies": scores,
    }


def _write(path: Path, options: TuneOptions, best: dict[str, Any], records: DatasetRef) -> None:
    """The best setting as a configuration file of ``dpltm train``."""
    from dpltm.tickets.files import new_file

    with new_file(path) as staging:
        staging.write_text("".join(f"{line}\n" for line in _lines(options, best, records)), encoding="utf-8")


def _lines(options: TuneOptions, best: dict[str, Any], records: DatasetRef) -> Iterator[str]:
    import json

    from dpltm.tickets.identity import ref_to_words

    yield f"# best of dpltm tune, {best['accuracy']:.4f} right on public records: dpltm train --dataset NAME --config FILE"
    yield "[train]"
    start: dict[str, Any] = {"ticket": f"{options.set}@{best['round']}"}
    if options.set is None:
        given = {key: getattr(options, key) for key in ("model", "features", "public", "components")}
        start = {"dense": True, **given}
    kept = {key.replace("_", "-"): best[key] for key in ("lr", "clip_norm", "epochs", "batch_size")}
    fixed = {
        key: getattr(options, key) for key in ("epsilon", "delta", "optimizer", "schedule", "average", "accountant")
    }
    source = ref_to_words(records)
    for key, value in {**start, **kept, **fixed, "tuned-on": source}.items():
        if value is not None:
            yield f"{key} = {json.dumps(value, ensure_ascii=False)}"  # TOML writes all of these alike


def _answer(
    options: TuneOptions, dataset: Dataset, tickets: TicketSet | None, rows: list[dict[str, Any]]
) -> dict[str, Any]:
    from dpltm.privacy.report import report

    notes = [
        f"searched on {dataset.name}, declared public: no private record was read, so the search costs nothing; its scores"
        " say which setting is best, not how good it will be elsewhere"
    ]
    if tickets is not None and tickets.source is not None and tickets.source.name == dataset.name:
        notes.append(f"the tickets were made from {tickets.source.name} as well, which flatters them here")
    return {
        "dataset": dataset.name,
        "ticket_set": None if tickets is None else tickets.label,
        "for_records": options.for_records,
        "epsilon": options.epsilon,
        "best": rows[0],
        "trials": rows,
        "config": options.out,
        "privacy": report((), options.delta, "add-remove", notes).to_json(),
    }


def _show(rich: RichConsole, body: dict[str, Any]) -> None:
    from rich.table import Table

    from dpltm.cli.show import show_notes

    columns = ("round", "density", "lr", "clip_norm", "epochs", "batch_size", "noise_multiplier", "accuracy")
    table = Table(
        *(column.replace("_", " ") for column in columns),
        title=f"best settings on {body['dataset']}",
        title_justify="left",
    )
    for row in body["trials"][:SHOWN]:
        table.add_row(*(_text(row[column]) for column in columns))
    rich.print(table)
    if len(body["trials"]) > SHOWN:
        rich.print(f"{len(body['trials']) - SHOWN} more with --json")
    if body["config"]:
        rich.print(f"wrote {body['config']}")
    show_notes(rich, body["privacy"])


SHOWN = 10
"""Settings in the table."""


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
