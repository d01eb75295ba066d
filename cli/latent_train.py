"""``dpltm latent train``: the server's side, which sees randomised records and nothing else."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpltm.cli.common import DataOptions, load_dataset, parse_numbers
from dpltm.cli.console import Console
from dpltm.cli.generate import by_round
from dpltm.cli.latent_encode import check_fits, notes_of, show_figures
from dpltm.cli.options import Call, option, recorded
from dpltm.errors import InputError
from dpltm.models import ModelSpec, build, for_inputs, kind_name, network_metavar

COMPARED, LONG = 100, 64
"""Messages that tell two files apart, where these have as many bytes: coins of so many are never the same."""

if TYPE_CHECKING:
    import numpy as np
    from rich.console import Console as RichConsole

    from dpltm.data import Split
    from dpltm.generation import GenerationConfig, Inputs, Ticket
    from dpltm.local.bit_strings import BitStrings
    from dpltm.local.codebook import Codebook
    from dpltm.local.scheme import Scheme


@dataclass(frozen=True)
class TrainOptions:
    """Train a network on messages of dpltm latent encode.

    Whatever happens here costs nothing more, pruning (--rounds) included. With --test, records that are public, accuracy is
    measured on them as they are and, of bits, randomised as the private ones were. Messages of a codebook make a network on
    features, which dpltm predict and evaluate take; there --epochs, --batch-size, --lr and --dropout do nothing.
    """

    scheme: str | None = option(
        None, "Folder made by dpltm latent scheme.", metavar="SCHEME", argument=True, required=True
    )
    messages: str | None = option(
        None, "Files made by dpltm latent encode, or folders of such *.msg.", metavar="FILE|DIR,...", required=True
    )
    test: str | None = option(None, "Dataset whose test split is public, to measure accuracy on.", metavar="NAME|FILE")
    model: str | None = option(
        None,
        "Network behind bits; a codebook makes a linear one.",
        metavar=network_metavar("vectors"),
        shown="mlp:128",
    )
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
    from dpltm.local.codebook import Codebook
    from dpltm.tickets.files import check_free, check_writable
    from dpltm.tickets.published import published
    from dpltm.tickets.scheme_files import load_scheme, open_messages, save_learned

    out = Path(options.out or "")
    check_free(out)
    check_writable(out)
    scheme = load_scheme(Path(options.scheme or ""))
    answer = scheme.answer
    files = [open_messages(path, scheme) for path in _paths(options.messages or "")]
    known = [bytes(rows[:COMPARED]) for rows in files if rows.size >= LONG]
    if len(set(known)) != len(known):
        raise InputError("--messages: two files hold the same messages; every message counts once")
    records = sum(map(len, files))
    config = _config(options, records, isinstance(answer, Codebook))
    test = None if options.test is None else _test(options.test, scheme)
    began = time.perf_counter()
    if isinstance(answer, Codebook):
        spec, tickets = _nearest_mean(answer, files, config, options)
    else:
        spec, tickets = _network(answer, files, config, options, console)
    seconds = time.perf_counter() - began
    if not all(bool(value.isfinite().all()) for ticket in tickets for value in (ticket.predictor or {}).values()):
        raise InputError(f"--lr: training diverged at {options.lr:g}; take a smaller one")
    parts = {} if test is None else _public_inputs(scheme, test, console)
    rows = [_row(ticket, spec, parts) for ticket in tickets]
    body: dict[str, Any] = {
        "run": str(out),
        "records": records,
        "model": spec.text,
        "inputs": spec.features,
        "protocol": answer.protocol,
        "nominal": answer.nominal,
        "certified": answer.certified,
        "seconds": seconds,
        "accuracy": rows[-1]["accuracy"],
        "tickets": rows,
        "notes": [*notes_of(scheme), *_notes(scheme)],
    }
    save_learned(out, scheme, spec, tickets[-1], {**recorded(options), **published(body)})
    console.say(f"wrote {out}")
    return body


def _paths(text: str) -> list[Path]:
    """The files that are named, and those that end in .msg in folders that are named; each once."""
    found: list[Path] = []
    for name in text.split(","):
        path = Path(name)
        inside = sorted(path.glob("*.msg")) if path.is_dir() else [path]
        if not name or not inside:
            raise InputError(f"--messages: {name!r:.80} is no file, and no folder with files that end in .msg")
        found += inside
    if len({path.resolve() for path in found}) != len(found):
        raise InputError("--messages: a file is named twice; every message counts once")
    return found


def check_options(options: TrainOptions) -> None:
    """Raises InputError for options that are out of range or contradict each other, whatever the messages."""
    _config(options, max(1, options.batch_size), codebook=False)


def _config(options: TrainOptions, records: int, codebook: bool) -> GenerationConfig:
    """The training, with everything refused that cannot be meant."""
    from dpltm.generation import GenerationConfig

    if not codebook and not 1 <= options.batch_size <= records:
        raise InputError(f"--batch-size: {options.batch_size} is not from 1 to {records}, the messages at hand")
    if not 0 < options.epochs <= 10_000:
        raise InputError(f"--epochs: {options.epochs:g} is not a positive number up to 10,000")
    if not 0 <= options.dropout < 1:
        raise InputError(f"--dropout: {options.dropout:g} is not at least 0 and below 1")
    if options.rounds < 0:
        raise InputError(f"--rounds: {options.rounds} is not a whole number from 0 on")
    if options.prune is not None and not options.rounds:
        raise InputError("--prune: nothing is pruned in no rounds; say --rounds N, or leave it out")
    return GenerationConfig(
        max(1, options.rounds),
        None if options.prune is None else parse_numbers("--prune", options.prune),
        max(1, round(options.epochs * records / options.batch_size)),
        options.batch_size,
        options.lr,
        options.seed,
        options.threads,
    )


def _notes(scheme: Scheme) -> list[str]:
    """What the figures do not say."""
    from dpltm.local.codebook import Codebook

    notes = ["the figures are those of one message; of a record that is in several they add up, in its owner's ledger"]
    if isinstance(scheme.answer, Codebook) and scheme.answer.labels == "signed":
        notes.append("classes are taken to be equally frequent: messages of this epsilon do not tell")
    return notes


def _test(name: str, scheme: Scheme) -> Split:
    """Public test records."""
    dataset = load_dataset(DataOptions(dataset=name))
    check_fits(scheme, dataset)
    if dataset.test is None:
        raise InputError(f"--test: {name} has no test split; name a dataset that has one")
    return dataset.test


def _nearest_mean(
    answer: Codebook, files: list[np.ndarray], config: GenerationConfig, options: TrainOptions
) -> tuple[ModelSpec, tuple[Ticket, ...]]:
    """A linear network on features: all that a codebook's messages tell is in the means of classes."""
    from dpltm.generation import Ticket, prune_once
    from dpltm.local.server import nearest_mean
    from dpltm.masks import Mask

    if options.model is not None:
        raise InputError(
            "--model: messages of a codebook tell the means of classes, hence a linear network; leave it out"
        )
    spec, weights = ModelSpec("mlp", answer.values, answer.classes), nearest_mean(answer, files)
    if options.rounds:
        return spec, prune_once(spec, weights, weights, config).tickets
    return spec, (Ticket(0, Mask.dense(build(spec)), None, weights),)


def _network(
    answer: BitStrings, files: list[np.ndarray], config: GenerationConfig, options: TrainOptions, console: Console
) -> tuple[ModelSpec, tuple[Ticket, ...]]:
    """A network on bits: the dense one alone, or it and its tickets."""
    from dpltm.generation import generate, train_dense
    from dpltm.local.server import Messages

    model_name = options.model or "mlp:128"
    if kind_name(model_name) not in for_inputs("vectors"):
        raise InputError(f"--model: {model_name} does not take bits; take mlp:WIDTH,WIDTH,..., such as mlp:128")
    spec, received = ModelSpec(model_name, answer.inputs, answer.classes), Messages(files, answer)
    labels = received.labels
    if options.rounds:
        with console.progress(f"{config.rounds + 1} networks", config.steps) as step:
            found = generate(spec, received, labels, config, None, by_round(config, step), options.dropout)
        return spec, found.tickets
    with console.progress("training on messages", config.iterations) as step:
        dense = train_dense(spec, received, labels, config, lambda done, _: step(done), options.dropout)
    return spec, (dense,)


def _public_inputs(scheme: Scheme, test: Split, console: Console) -> dict[str, Inputs]:
    """What the network gets of public test records: as they are, and, of bits, randomised as the private ones were."""
    import numpy as np
    import torch

    from dpltm.local.bit_strings import LABEL_BYTES
    from dpltm.local.codebook import Codebook
    from dpltm.local.scheme import ROWS
    from dpltm.local.server import Messages
    from dpltm.noise import FastSource

    answer, plain, sent = scheme.answer, [], []
    parts: dict[str, Inputs] = {"labels": torch.tensor(test.y)}
    with console.progress("features of the test records", len(test)) as step:
        for start in range(0, len(test), ROWS):
            x, y = test.x[start : start + ROWS], test.y[start : start + ROWS]
            if isinstance(answer, Codebook):
                plain.append(scheme.scores(x))
            else:
                scores = scheme.scores(x)
                plain.append(answer.without_coins(scores, y))
                sent.append(answer.randomise(scores, y, FastSource())[0])
            step(min(start + ROWS, len(test)))
    if isinstance(answer, Codebook):
        return {**parts, "accuracy": torch.from_numpy(np.concatenate(plain))}
    randomised = np.concatenate(sent)
    randomised[:, -LABEL_BYTES:] = 0  # accuracy is against the labels as they are
    return {
        **parts,
        "accuracy": Messages([np.concatenate(plain)], answer, randomised=False),
        "randomised": Messages([randomised], answer),
    }


def _row(ticket: Ticket, spec: ModelSpec, parts: dict[str, Inputs]) -> dict[str, Any]:
    """A line of the table."""
    from dpltm.generation import accuracy

    row: dict[str, Any] = {"round": ticket.round, "density": ticket.mask.density, "accuracy": None, "randomised": None}
    model = build(spec)
    model.load_state_dict(ticket.predictor or {})
    for name, part in parts.items():
        if name != "labels":
            # bits are many: a few hundred records of them take a quarter of a gigabyte
            row[name] = accuracy(model, part, parts["labels"], chunk=512)  # type: ignore[arg-type]
    return row


def _show(rich: RichConsole, body: dict[str, Any]) -> None:
    from rich.table import Table

    from dpltm.cli.show import show_notes, show_pairs

    facts = {key: body[key] for key in ("records", "model", "inputs")}
    show_pairs(rich, f"wrote {body['run']}", {**facts, "seconds": round(body["seconds"])})
    table = Table("round", "density", "accuracy", "on randomised records")
    for row in body["tickets"]:
        scores = ("-" if row[key] is None else f"{row[key]:.2%}" for key in ("accuracy", "randomised"))
        table.add_row(str(row["round"]), f"{row['density']:.2%}", *scores)
    rich.print(table)
    show_figures(rich, body)
    show_notes(rich, body)
