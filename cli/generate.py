"""``dpltm generate``: phase 1, writes a ticket set."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpltm.cli.common import (
    DataOptions,
    check_delta,
    free_name,
    load_dataset,
    model_spec,
    parse_numbers,
    public_input_notes,
    tensors,
)
from dpltm.cli.console import Console
from dpltm.cli.options import Call, option
from dpltm.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console as RichConsole

    from dpltm.data import Dataset
    from dpltm.generation import GenerationConfig
    from dpltm.models import ModelSpec
    from dpltm.privacy.events import DatasetRef, ProvenanceEvent
    from dpltm.tickets.ticket_set import TicketSet


@dataclass(frozen=True)
class GenerateOptions(DataOptions):
    """Phase 1: make lottery tickets by iterative pruning (train, prune, rewind) and write them as a ticket set.

    This training is ordinary, not private. Say what the masks are made from with --provenance: public if these
    records are public; private if they are not, in which case nothing can be certified for them afterwards.
    """

    dataset: str | None = option(
        "digits", "Name (see dpltm datasets ls) or path of a .npz, .csv or .parquet file.", metavar="NAME|FILE"
    )
    provenance: str | None = option(
        None, "What the masks are made from; required.", choices=("public", "private"), metavar="public|private"
    )
    model: str = option("mlp:300,100", "Network.", metavar="mlp:W,W,...|cnn")
    rounds: int = option(15, "Pruning rounds.", metavar="N")
    prune: str | None = option(
        None,
        "Fraction of live weights dropped per round, per layer; the last repeats.",
        metavar="R,R,...",
        shown="0.3, output layer 0.2",
    )
    iterations: int = option(5000, "Minibatch steps per round.", metavar="N")
    batch_size: int = option(400, "Records per step.", metavar="N")
    lr: float = option(0.1, "Step size.", metavar="X")
    criterion: str = option("magnitude", "How weights are chosen.", choices=("magnitude",))
    reveal: bool = option(False, "Show accuracies even where they are private; entered in the ledger as non-private.")
    seed: int = option(0, "Decides starting weights and batches.", metavar="N")
    threads: int | None = option(
        None, "CPU threads; the same seed and threads give the same bits.", metavar="N", shown="torch's choice"
    )
    name: str | None = option(None, "Label of the set.", metavar="TEXT", shown="the dataset's name")
    out: str | None = option(None, "Folder to write.", metavar="DIR", shown="NAME.tickets")
    ledger: str | None = option(None, "Ledger file.", metavar="FILE", shown="DIR/ledger.jsonl")
    delta: float = option(1e-5, "Delta of the printed guarantee.", metavar="D")
    dry_run: bool = option(False, "Check everything and print what would be done.")


def command(options: GenerateOptions, call: Call) -> None:
    """Runs ``dpltm generate`` and prints its answer."""
    console = Console(call.json, call.quiet)
    body = run(options, console)
    console.result(body, lambda rich: _show(rich, body))


def run(options: GenerateOptions, console: Console) -> dict[str, Any]:
    """Makes and writes the ticket set; returns the JSON answer.

    Raises:
        DpltmError: bad input, before any training.
    """
    from dpltm.generation import generate
    from dpltm.privacy.ledger import check_budgets
    from dpltm.tickets.files import check_free, check_writable
    from dpltm.tickets.identity import reference
    from dpltm.tickets.ledger_file import open_ledger
    from dpltm.tickets.ticket_set import private_path, save_ticket_set

    dataset, spec, config = plan(options)
    out = Path(options.out) if options.out else free_name(options.name or dataset.name, ".tickets")
    check_free(out)
    if options.provenance == "private":
        check_free(private_path(out))
    source = reference(dataset, make_key=not options.dry_run)
    if options.ledger:  # what the ledger would refuse is refused before the work, not after it
        check_budgets(open_ledger(Path(options.ledger)).events, [_event(source, options.provenance, "planned")])
    if options.dry_run:
        return _dry_run(options, dataset, source, spec, config, out)
    check_writable(out)
    if options.ledger:
        check_writable(Path(options.ledger))

    x, y = tensors(dataset.train, dataset)
    evaluation = (x, y) if dataset.test is None else tensors(dataset.test, dataset)
    total = (config.rounds + 1) * config.iterations
    with console.progress(f"generating {config.rounds} tickets", total) as step:
        tickets = generate(
            spec, x, y, config, evaluation, lambda done, _: step(done, f"round {(done - 1) // config.iterations}")
        )
    saved = save_ticket_set(
        out,
        tickets,
        name=options.name or dataset.name,
        criterion=options.criterion,
        provenance=options.provenance,  # type: ignore[arg-type]
        source=source,
        config=config,
    )
    console.say(f"wrote {out}")
    return _answer(saved, dataset, options)


def plan(options: GenerateOptions) -> tuple[Dataset, ModelSpec, GenerationConfig]:
    """Everything that is settled, and refused, before training."""
    import torch

    from dpltm.generation import GenerationConfig, check_schedule

    if options.provenance is None:
        raise InputError(
            "--provenance is missing: say public if these records are public, or private if they are not (then nothing can"
            " be certified for them)"
        )
    config = GenerationConfig(
        options.rounds,
        None if options.prune is None else parse_numbers("--prune", options.prune),
        options.iterations,
        options.batch_size,
        options.lr,
        options.seed,
        options.threads,
    )
    dataset = load_dataset(options)
    if options.provenance == "private":
        check_delta(options.delta, dataset)
    elif not 0 < options.delta < 1:
        raise InputError(f"--delta: {options.delta:g} is not between 0 and 1")
    spec = model_spec(options.model, dataset)
    rates = check_schedule(spec, config)
    if config.batch_size > len(dataset.train):
        raise InputError(
            f"--batch-size: {config.batch_size} is more than the {len(dataset.train)} records of {dataset.name}"
        )
    threads = config.threads or torch.get_num_threads()
    return dataset, spec, replace(config, prune=tuple(rates.values()), threads=threads)


def _answer(saved: TicketSet, dataset: Dataset, options: GenerateOptions) -> dict[str, Any]:
    """Enters the provenance in the ledger and puts the answer together."""
    from dpltm.privacy.events import NonPrivateEvent, now
    from dpltm.privacy.ledger import report
    from dpltm.tickets.ledger_file import open_ledger

    ledger = open_ledger(Path(options.ledger) if options.ledger else saved.ledger_path)
    ledger.append(_event(saved.source, saved.provenance, saved.id))
    private = saved.provenance == "private"
    if private and options.reveal:
        what = "accuracies of the tickets' predictors"
        ledger.append(NonPrivateEvent(saved.source, now(), "add-remove", "record", what))
    notes = public_input_notes(dataset)
    if private and not options.reveal:
        notes.append(
            f"accuracies are private and withheld; they are kept in {saved.path.name}.private.json (--reveal shows them)"
        )
    if not private:
        notes.append(
            f"{saved.source} was declared public: no guarantee is claimed for it, and the tickets cost nothing elsewhere"
        )
    privacy = report(ledger.touching(saved.source), options.delta, "add-remove", notes)
    show = not private or options.reveal
    return {
        "ticket_set": str(saved.path),
        "id": saved.id,
        "provenance": saved.provenance,
        "tickets": [
            {
                "round": ticket.round,
                "density": ticket.mask.density,
                "live": ticket.mask.live,
                "accuracy": ticket.accuracy if show else None,
            }
            for ticket in saved.body.tickets
        ],
        "privacy": privacy.to_json(),
    }


def _event(source: DatasetRef, provenance: str | None, set_id: str) -> ProvenanceEvent:
    """The event that tells a ledger where a ticket set comes from."""
    from dpltm.privacy.events import ProvenanceEvent, now

    return ProvenanceEvent(source, now(), "add-remove", "record", provenance, set_id)  # type: ignore[arg-type]


def _dry_run(
    options: GenerateOptions,
    dataset: Dataset,
    source: DatasetRef,
    spec: ModelSpec,
    config: GenerationConfig,
    out: Path,
) -> dict[str, Any]:
    from dpltm.privacy.ledger import report

    planned = _event(source, options.provenance, "planned")
    return {
        "dry_run": True,
        "ticket_set": str(out),
        "provenance": options.provenance,
        "dataset": dataset.name,
        "records": dataset.records,
        "model": spec.text,
        "steps": (config.rounds + 1) * config.iterations,
        "privacy": report((planned,), options.delta, "add-remove").to_json(),
    }


def _show(rich: RichConsole, body: dict[str, Any]) -> None:
    from dpltm.cli.show import show_notes, show_pairs, show_privacy, show_tickets

    if body.get("dry_run"):
        show_pairs(rich, "would generate", body)
    else:
        show_tickets(rich, body)
    if body["provenance"] == "private":
        show_privacy(rich, body["privacy"])
    else:
        show_notes(rich, body["privacy"])
