"""``dpltm latent train``: the server's side, which sees randomised records and nothing else."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpltm.cli.common import DataOptions, load_dataset, parse_numbers
from dpltm.cli.console import Console
from dpltm.cli.generate import by_round
from dpltm.cli.latent_encode import _show_figures, check_fits
from dpltm.cli.options import Call, option
from dpltm.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console as RichConsole

    from dpltm.generation import GenerationConfig, Inputs, Ticket
    from dpltm.local.scheme import Scheme
    from dpltm.local.server import Messages


@dataclass(frozen=True)
class TrainOptions:
    """Train a network on messages of dpltm latent encode.

    Whatever happens here costs nothing more: pruning (--rounds) included. With --test, public records that were never
    private, accuracy is measured on them as they are, and randomised as the private ones were.
    """

    scheme: str | None = option(
        None, "Folder made by dpltm latent scheme.", metavar="SCHEME", argument=True, required=True
    )
    messages: str | None = option(None, "Files made by dpltm latent encode.", metavar="FILE,FILE,...", required=True)
    test: str | None = option(None, "Dataset whose test split is public, to measure accuracy on.", metavar="NAME|FILE")
    model: str = option("mlp:128", "Network behind the bits.", metavar="mlp[-tanh]:W,W,...")
    dropout: float = option(0.0, "Share of the last layer's inputs that each step leaves out.", metavar="X")
    epochs: float = option(5.0, "Passes over the messages, in each round.", metavar="N")
    batch_size: int = option(64, "Messages per step.", metavar="N")
    lr: float = option(0.5, "Step size.", metavar="X")
    rounds: int = option(0, "Pruning rounds: train, drop the smallest weights, rewind.", metavar="N")
    prune: str | None = option(
        None,
        "Fraction of live weights dropped per round, per layer; the last repeats.",
        metavar="R,R,...",
        shown="0.3, output layer 0.2",
    )
    seed: int = option(0, "Decides starting weights and batches.", metavar="N")
    threads: int | None = option(None, "CPU threads.", metavar="N", shown="torch's choice")
    out: str | None = option(None, "Folder to write.", metavar="DIR", required=True)


def train_command(options: TrainOptions, call: Call) -> None:
    """Runs ``dpltm latent train`` and prints its answer."""
    console = Console(call.json, call.quiet)
    body = run(options, console)
    console.result(body, lambda rich: _show(rich, body))


def run(options: TrainOptions, console: Console) -> dict[str, Any]:
    """Trains, and writes the network; returns the JSON answer."""
    from dpltm.generation import GenerationConfig, make_schedule
    from dpltm.local.server import Messages
    from dpltm.models import ModelSpec
    from dpltm.tickets.files import check_free, check_writable
    from dpltm.tickets.scheme_files import load_scheme, open_messages, save_learned

    out = Path(options.out or "")
    check_free(out)
    check_writable(out)
    scheme = load_scheme(Path(options.scheme or ""))
    answer = scheme.answer
    received = Messages([open_messages(Path(name), scheme) for name in (options.messages or "").split(",")], answer)
    if not 1 <= options.batch_size <= len(received):
        raise InputError(f"--batch-size: {options.batch_size} is not from 1 to {len(received)}, the messages at hand")
    if not 0 < options.epochs <= 10_000:
        raise InputError(f"--epochs: {options.epochs:g} is not a positive number up to 10,000")
    if not 0 <= options.dropout < 1:
        raise InputError(f"--dropout: {options.dropout:g} is not at least 0 and below 1")
    if options.rounds < 0:
        raise InputError(f"--rounds: {options.rounds} is not a whole number from 0 on")
    if options.model.partition(":")[0] not in ("mlp", "mlp-tanh"):
        raise InputError(f"--model: {options.model} does not take bits; take mlp:WIDTH,WIDTH,..., such as mlp:128")
    spec = ModelSpec(options.model, answer.inputs, answer.classes)
    config = GenerationConfig(
        max(1, options.rounds), None if options.prune is None else parse_numbers("--prune", options.prune),
        max(1, round(options.epochs * len(received) / options.batch_size)), options.batch_size, options.lr, options.seed,
        options.threads,
    )  # fmt: skip
    if options.rounds:
        make_schedule(spec, config)
    test = None if options.test is None else _test(options.test, scheme, console)
    began = time.perf_counter()
    tickets = _learn(spec, received, config, options, console)
    seconds = time.perf_counter() - began
    rows = [_row(ticket, spec, test) for ticket in tickets]
    body: dict[str, Any] = {
        "run": str(out),
        "records": len(received),
        "model": options.model,
        "inputs": answer.inputs,
        "protocol": answer.protocol,
        "nominal": answer.nominal,
        "certified": answer.certified,
        "seconds": seconds,
        "accuracy": rows[-1]["accuracy"],
        "tickets": rows,
    }
    assert tickets[-1].predictor is not None
    save_learned(out, scheme, spec, tickets[-1].mask, tickets[-1].predictor, {**asdict(options), **body})
    console.say(f"wrote {out}")
    return body


def _test(name: str, scheme: Scheme, console: Console) -> tuple[Messages, Messages]:
    """Public test records, as they are and randomised."""
    import numpy as np

    from dpltm.local.server import Messages
    from dpltm.noise import FastSource

    dataset = load_dataset(DataOptions(dataset=name))
    check_fits(scheme, dataset)
    if dataset.test is None:
        raise InputError(f"--test: {name} has no test split")
    x, y = dataset.test.x, dataset.test.y
    with console.progress(f"encoding the test records of {name}", len(x)) as step:
        plain = np.concatenate([rows for rows, _ in scheme.messages(x, y, None, step)])
    with console.progress("randomising them", len(x)) as step:
        rows = np.concatenate([rows for rows, _ in scheme.messages(x, y, FastSource(), step)])
    labels = plain[:, -2:]
    rows[:, -2:] = labels  # the labels that predictions are compared with stay as they are
    return Messages([plain], scheme.answer, randomised=False), Messages([rows], scheme.answer)


def _learn(
    spec: Any, received: Messages, config: GenerationConfig, options: TrainOptions, console: Console
) -> tuple[Ticket, ...]:
    """The dense network alone, or it and its tickets."""
    import torch

    from dpltm.generation import Ticket, batches_of, dropping, generate, threads, train_plain, weights_of
    from dpltm.masks import Mask
    from dpltm.models import build

    labels = received.labels
    inputs: Inputs = received
    if options.rounds:
        with console.progress(f"{config.rounds + 1} networks", config.steps) as step:
            found = generate(spec, inputs, labels, config, None, by_round(config, step), options.dropout)
        return found.tickets
    model = build(spec, config.seed)
    batches = batches_of(len(received), config.batch_size, torch.Generator().manual_seed(config.seed + 2**32))
    left_out = torch.Generator().manual_seed(config.seed + 2**33)
    with (
        threads(config.threads),
        dropping(model, options.dropout, left_out),
        console.progress("training on messages", config.iterations) as step,
    ):
        train_plain(model, Mask.dense(model), inputs, labels, batches, config.iterations, config.lr, step)
    return (Ticket(0, Mask.dense(model), None, weights_of(model)),)


def _row(ticket: Ticket, spec: Any, test: tuple[Messages, Messages] | None) -> dict[str, Any]:
    from dpltm.generation import accuracy
    from dpltm.models import build

    row: dict[str, Any] = {"round": ticket.round, "density": ticket.mask.density, "accuracy": None, "randomised": None}
    if test is not None:
        model = build(spec)
        model.load_state_dict(ticket.predictor or {})
        row["accuracy"], row["randomised"] = (accuracy(model, part, part.labels) for part in test)
    return row


def _show(rich: RichConsole, body: dict[str, Any]) -> None:
    from rich.table import Table

    from dpltm.cli.show import show_pairs

    shown = ("records", "model", "inputs", "seconds")
    show_pairs(rich, f"wrote {body['run']}", {key: body[key] for key in shown})
    table = Table("round", "density", "accuracy", "on randomised records")
    for row in body["tickets"]:
        scores = ("-" if row[key] is None else f"{row[key]:.2%}" for key in ("accuracy", "randomised"))
        table.add_row(str(row["round"]), f"{row['density']:.2%}", *scores)
    rich.print(table)
    _show_figures(rich, body)
