"""``dpltm generate``: phase 1, writes a ticket set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpltm.cli.common import (
    NETWORKS,
    check_delta,
    check_epsilon,
    check_never_private,
    check_test_apart,
    free_name,
    load_dataset,
    model_spec,
    not_held,
    parse_numbers,
    public_input_notes,
    tensors,
    unit_notes,
)
from dpltm.cli.console import Console
from dpltm.cli.features import FeatureOptions, feature_events, feature_notes, with_features
from dpltm.cli.options import Call, option
from dpltm.errors import InputError
from dpltm.privacy.mechanisms import Unprotected

if TYPE_CHECKING:
    from rich.console import Console as RichConsole

    from dpltm.data import Dataset
    from dpltm.generation import GenerationConfig, Tickets
    from dpltm.models import ModelSpec
    from dpltm.privacy.events import DatasetRef, Event, ProvenanceEvent, ProvenanceKind
    from dpltm.privacy.ledger import Ledger
    from dpltm.tickets.ticket_set import TicketSet

DP_WAYS = ("dp-train", "dp-synthetic")
"""Criteria that read private records through a mechanism."""


@dataclass(frozen=True)
class GenerateOptions(FeatureOptions):
    """Phase 1: make lottery tickets by iterative pruning and write them as a ticket set.

    Ordinary training on the records of --dataset, round after round (train, prune, rewind), unless --criterion says
    otherwise: random, init-magnitude and synflow look at no data; dp-train and dp-synthetic look at private records through
    a mechanism that spends --epsilon. Say what else the tickets depend on with --provenance: public if these records are
    public; private if they are not, in which case nothing can be certified for them afterwards.
    """

    dataset: str | None = option(
        "digits", "Name (see dpltm datasets ls) or path of a .npz, .csv or .parquet file.", metavar="NAME|FILE"
    )
    provenance: str | None = option(
        None,
        "What the tickets depend on; required where --criterion does not say it.",
        choices=("public", "private", "data-free", "dp"),
        metavar="public|private|data-free|dp",
    )
    model: str = option("mlp:300,100", "Network.", metavar=NETWORKS)
    rounds: int = option(15, "Pruning rounds.", metavar="N")
    prune: str | None = option(
        None,
        "Fraction of live weights dropped per round, per layer; the last repeats.",
        metavar="R,R,...",
        shown="0.3, output layer 0.2",
    )
    criterion: str = option(
        "magnitude",
        "How weights are chosen; structured drops whole units, inputs whole inputs of the first layer.",
        choices=("magnitude", "inputs", "random", "init-magnitude", "synflow", "structured", *DP_WAYS),
        metavar="magnitude|inputs|random|init-magnitude|synflow|structured|dp-train|dp-synthetic",
    )
    scope: str | None = option(
        None,
        "Whether each layer loses its own fraction, or the network as many weights in all.",
        choices=("layer", "global"),
        shown="layer; global for synflow",
    )
    rewind: int = option(0, "Tickets start from the weights after this training step.", metavar="STEP")
    iterations: int | None = option(
        None, "Minibatch steps per round; of dp-train, in all.", metavar="N", shown="5000; dp-train: 15 epochs"
    )
    batch_size: int | None = option(
        None,
        "Records per step; of dp-train, expected.",
        metavar="N",
        shown="400; dp-train: 1600, at most records/4",
    )
    lr: float | None = option(None, "Step size.", metavar="X", shown="0.1; dp-train: 1")
    epsilon: float | None = option(
        None, "Budget of dp-train and dp-synthetic: the ledger's certified epsilon afterwards.", metavar="E"
    )
    delta: float = option(1e-5, "Delta of the printed guarantee.", metavar="D")
    no_predictors: bool = option(False, "Leave out the trained networks that select scores: a third of the size.")
    reveal: bool = option(False, "Show accuracies even where they are private; entered in the ledger as non-private.")
    seed: int = option(0, "Decides starting weights and batches; never the noise.", metavar="N")
    threads: int | None = option(
        None, "CPU threads; the same seed and threads give the same bits.", metavar="N", shown="torch's choice"
    )
    name: str | None = option(None, "Label of the set.", metavar="TEXT", shown="the dataset's name")
    out: str | None = option(None, "Folder to write.", metavar="DIR", shown="NAME.tickets")
    ledger: str | None = option(None, "Ledger file.", metavar="FILE", shown="DIR/ledger.jsonl")
    dry_run: bool = option(False, "Check everything and print what would be done.")


@dataclass(frozen=True)
class Plan:
    """A generation as settled before it starts.

    Attributes:
        dataset: the records; of data-free tickets, what decides the network's shape.
        spec: the network.
        config: the schedule and training.
        provenance: what the tickets will depend on.
        source: the records they are made from; None for none.
        event: what a DP way spends; None otherwise.
    """

    dataset: Dataset
    spec: ModelSpec
    config: GenerationConfig
    provenance: ProvenanceKind
    source: DatasetRef | None
    event: Event | None


def command(options: GenerateOptions, call: Call) -> None:
    """Runs ``dpltm generate`` and prints its answer."""
    console = Console(call.json, call.quiet)
    body = run(options, console)
    console.result(body, lambda rich: _show(rich, body))


def run(options: GenerateOptions, console: Console) -> dict[str, Any]:
    """Makes and writes the ticket set; returns the JSON answer.

    Raises:
        DpltmError: bad input, before any training and before budget is spent.
    """
    from dpltm.privacy.ledger import check_budgets
    from dpltm.tickets.files import check_free, check_writable
    from dpltm.tickets.ledger_file import copy_events, open_ledger
    from dpltm.tickets.ticket_set import check_text, private_path, save_ticket_set

    before, own = (open_ledger(Path(options.ledger)).events if options.ledger else ()), None
    if not options.ledger and options.criterion in DP_WAYS and options.out:
        own = Path(f"{options.out}.ledger.jsonl")
        before = open_ledger(own).events  # of a run that was interrupted: what it spent is spent
        if before:
            console.say(f"going on with {own}, which holds what an interrupted run spent")
    plan = make_plan(options, before, console)
    check_text("--name", options.name or "")
    check_text("--dataset: its name", plan.dataset.name)
    out = Path(options.out) if options.out else free_name(options.name or plan.dataset.name, ".tickets")
    check_free(out)
    if plan.provenance == "private":
        check_free(private_path(out))
    planned = _planned(plan)
    check_never_private(before, planned)
    check_test_apart(plan.dataset, (*before, *planned))
    check_budgets(before, planned)  # what the ledger would refuse is refused before the work, not after it
    if options.dry_run:
        return _dry_run(options, plan, (*before, *planned), out)
    check_writable(out)
    if options.ledger:
        check_writable(Path(options.ledger))
    if own is None and plan.event is not None and not options.ledger:
        own = free_name(str(out), ".ledger.jsonl")
    ledger = open_ledger(own or Path(options.ledger or out / "ledger.jsonl"))
    if plan.event is not None:  # what the network in front cost comes before what is released through it
        for event in not_held(_feature_events(plan.dataset, plan.source, plan.provenance), ledger.events):
            ledger.append(event)
    tickets = make_tickets(plan, options, ledger, console)
    if options.no_predictors:
        tickets = tickets.without_predictors()
    saved = save_ticket_set(
        out,
        tickets,
        name=options.name or plan.dataset.name,
        criterion=options.criterion,
        provenance=plan.provenance,
        source=plan.source,
        config=_settings(plan, options),
        events=() if plan.event is None else (plan.event,),
        feature_map=plan.dataset.feature_map,
    )
    if own is not None:  # in sight from the start: whatever ended the work, what was spent stayed on record
        copy_events(saved.ledger_path, ledger.events)
        own.unlink()
        ledger = open_ledger(saved.ledger_path)
    console.say(f"wrote {out}")
    return _answer(saved, plan, options, ledger)


def make_plan(options: GenerateOptions, before: tuple[Event, ...], console: Console) -> Plan:
    """Everything that is settled, and refused, before training."""
    from dpltm.tickets.ticket_set import check_size

    provenance = check_options(options)
    dataset = with_features(load_dataset(options), options, console)
    if provenance in ("private", "dp"):
        check_delta(options.delta, dataset)
    spec = model_spec(options.model, dataset)
    config = _config(options, spec, dataset, provenance)
    check_size("--rounds", spec, config.rounds + 1)
    source = None if provenance == "data-free" else _reference(dataset, provenance, options)
    event = None
    if source is not None and options.criterion in DP_WAYS:
        from dpltm.cli.generate_dp import plan_event

        known = (*before, *not_held(_feature_events(dataset, source, provenance), before))
        event = plan_event(options, config, dataset, source, spec, known, console)
    return Plan(dataset, spec, config, provenance, source, event)


def _reference(dataset: Dataset, provenance: ProvenanceKind, options: GenerateOptions) -> DatasetRef:
    from dpltm.tickets.identity import reference

    return reference(dataset, public=provenance == "public", make_key=not options.dry_run)


def check_options(options: GenerateOptions) -> ProvenanceKind:
    """What the tickets will depend on; options that are out of range, or contradict each other, are refused."""
    from dpltm.generation import check_without_data

    provenance = _provenance(options)
    if options.epsilon is not None and options.criterion not in DP_WAYS:
        raise InputError(f"--epsilon: only for --criterion {' and '.join(DP_WAYS)}; {options.criterion} spends none")
    if options.epsilon is None and options.criterion in DP_WAYS:
        raise InputError(f"--epsilon is missing: what {options.criterion} may spend on these records, such as 0.1")
    check_epsilon("--epsilon", options.epsilon)
    if options.reveal and provenance != "private":
        raise InputError(f"--reveal: only for private tickets; those of provenance {provenance} withhold nothing")
    unused = {"--iterations": options.iterations, "--batch-size": options.batch_size, "--lr": options.lr}
    given = [flag for flag, value in unused.items() if value is not None]
    if provenance == "data-free" and given:
        raise InputError(
            f"{given[0]}: nothing is trained for data-free tickets; leave it out, or say --provenance public"
        )
    if provenance not in ("private", "dp") and not 0 < options.delta < 1:  # of these, the number of records has a say
        raise InputError(f"--delta: {options.delta:g} is not between 0 and 1")
    config = _draft(options, None)
    if provenance == "data-free":
        check_without_data(config)
    return provenance


def check_schedule(options: GenerateOptions, spec: ModelSpec) -> None:
    """Raises InputError for rounds or rates that this network cannot be pruned by."""
    from dpltm.generation import make_schedule

    make_schedule(spec, _draft(options, None))


def _provenance(options: GenerateOptions) -> ProvenanceKind:
    """What the tickets will depend on: as the user says, as far as the criterion leaves it open."""
    from dpltm.pruning import DATA_FREE

    said = options.provenance
    if options.criterion in DP_WAYS:
        if said not in (None, "dp"):
            raise InputError(f"--provenance: {options.criterion} makes tickets under DP; say dp, or leave it out")
        return "dp"
    if said == "dp":
        raise InputError(
            f"--provenance: {options.criterion} spends nothing and is not DP; dp is for --criterion {' and '.join(DP_WAYS)}"
        )
    if said is None and options.criterion in DATA_FREE:
        return "data-free"
    if said is None:
        raise InputError(
            "--provenance is missing: say public if these records are public, or private if they are not (then nothing can"
            " be certified for them)"
        )
    if said == "data-free" and options.criterion not in DATA_FREE:
        raise InputError(
            f"--provenance: {options.criterion} looks at weights trained on the records, so it is not data-free; take"
            f" --criterion {', '.join(DATA_FREE)}"
        )
    return said  # type: ignore[return-value]


def _config(
    options: GenerateOptions, spec: ModelSpec, dataset: Dataset, provenance: ProvenanceKind
) -> GenerationConfig:
    """The settings of generation, with every default filled in."""
    import torch

    from dpltm.generation import make_schedule, pruning_rates

    config = _draft(options, dataset.records)
    batch = config.batch_size
    make_schedule(spec, config)
    # Without a mechanism batches are of exactly so many records, and there may be fewer than the public number.
    most = dataset.records if provenance == "dp" else min(dataset.records, len(dataset.train))
    if provenance in ("public", "private", "dp") and options.criterion != "dp-synthetic" and batch > most:
        many = f"the {most} records of" if most == dataset.records else "there are records in"
        raise InputError(f"--batch-size: {batch} is more than {many} {dataset.name}")
    threads = config.threads or torch.get_num_threads()
    return replace(config, prune=tuple(pruning_rates(spec, config).values()), threads=threads)


def _draft(options: GenerateOptions, records: int | None) -> GenerationConfig:
    """The settings, with every default that goes by the number of records; by any number where that is not known."""
    from dpltm.generation import GenerationConfig

    batch, iterations = options.batch_size or 400, options.iterations or 5000
    if options.criterion == "dp-train":
        if records is None:  # no rewind is too late yet
            iterations = options.iterations or max(iterations, options.rewind + 1)
        else:
            batch = options.batch_size or min(1600, max(1, records // 4))
            iterations = options.iterations or max(1, round(15 * records / batch))
    for flag, value in (("--batch-size", options.batch_size), ("--iterations", options.iterations)):
        if value is not None and value < 1:
            raise InputError(f"{flag}: {value} is not a positive whole number")
    return GenerationConfig(
        options.rounds,
        None if options.prune is None else parse_numbers("--prune", options.prune),
        iterations,
        batch,
        options.lr if options.lr is not None else (1.0 if options.criterion == "dp-train" else 0.1),
        options.seed,
        options.threads,
        "magnitude" if options.criterion in DP_WAYS else options.criterion,  # type: ignore[arg-type]
        options.scope or ("global" if options.criterion == "synflow" else "layer"),  # type: ignore[arg-type]
        options.rewind,
    )


def make_tickets(plan: Plan, options: GenerateOptions, ledger: Ledger, console: Console) -> Tickets:
    """The tickets, with whatever a DP way spends entered in the ledger before it is spent."""
    from dpltm.generation import generate, without_data

    if plan.provenance == "data-free":
        return without_data(plan.spec, plan.config)
    if plan.event is not None:
        from dpltm.cli.generate_dp import make_tickets as make_dp_tickets

        return make_dp_tickets(plan, options.criterion, ledger, console)
    x, y = tensors(plan.dataset.train, plan.dataset, console=console)
    evaluation = (x, y) if plan.dataset.test is None else tensors(plan.dataset.test, plan.dataset, console=console)
    with console.progress(f"generating {plan.config.rounds} tickets", plan.config.steps) as step:
        return generate(plan.spec, x, y, plan.config, evaluation, by_round(plan.config, step))


def by_round(config: GenerationConfig, step: Callable[[int, str], None]) -> Callable[[int, int], None]:
    """Progress that names the round."""
    later = config.iterations - config.rewind

    def report(done: int, total: int) -> None:
        del total
        step(done, f"round {max(0, (done - 1 - config.rewind) // later)}")

    return report


def _planned(plan: Plan) -> tuple[Event, ...]:
    """What the generation would enter."""
    events = () if plan.event is None else (plan.event,)
    events = (*_feature_events(plan.dataset, plan.source, plan.provenance), *events)
    return events if plan.source is None else (*events, _event(plan.source, plan.provenance, "planned"))


def _feature_events(dataset: Dataset, source: DatasetRef | None, provenance: ProvenanceKind) -> tuple[Event, ...]:
    """What the map in front of the network says of itself, and what it cost."""
    from dpltm.tickets.identity import reference

    private = provenance in ("private", "dp")
    return feature_events(dataset, source or reference(dataset, make_key=False), private)


def _settings(plan: Plan, options: GenerateOptions) -> dict[str, Any]:
    """What the set writes down about how it was made."""
    settings = asdict(plan.config)
    if plan.provenance == "data-free":
        settings = {key: settings[key] for key in ("rounds", "prune", "criterion", "scope", "seed")}
    if options.criterion in DP_WAYS:
        settings |= {"criterion": options.criterion, "epsilon": options.epsilon, "delta": options.delta}
    return settings


def _answer(saved: TicketSet, plan: Plan, options: GenerateOptions, ledger: Ledger) -> dict[str, Any]:
    """Enters the provenance in the ledger and puts the answer together."""
    from dpltm.privacy.events import NonPrivateEvent
    from dpltm.privacy.report import report
    from dpltm.tickets.ticket_set import ticket_rows

    private = saved.provenance == "private"
    notes = _input_notes(plan, options)
    for event in not_held(_feature_events(plan.dataset, plan.source, plan.provenance), ledger.events):
        ledger.append(event)
    if saved.source is not None:
        ledger.append(_event(saved.source, saved.provenance, saved.id))
    if private and options.reveal:
        assert saved.source is not None
        what = "accuracies of the tickets' predictors"
        ledger.append(NonPrivateEvent(saved.source, Unprotected(), what))
    if private and not options.reveal:
        notes.append(
            f"accuracies are private and withheld; they are kept in {saved.path.name}.private.json (--reveal shows them)"
        )
    notes += _origin_notes(saved)
    if saved.source is not None:
        notes += feature_notes(plan.dataset, saved.source, options.delta)
    if saved.provenance == "dp" and plan.dataset.test is not None:
        notes.append("accuracy is measured on the test split, which is declared separate from the private records")
    touching = () if saved.source is None else ledger.touching(saved.source)
    return {
        "ticket_set": str(saved.path),
        "id": saved.id,
        "provenance": saved.provenance,
        "tickets": ticket_rows(saved.body, measured=not private or options.reveal),
        "privacy": report(touching, options.delta, "add-remove", notes, held=ledger.events).to_json(),
    }


def _input_notes(plan: Plan, options: GenerateOptions) -> list[str]:
    """About public inputs, and whom the guarantee is for, if there is one."""
    guaranteed = plan.provenance in ("private", "dp")
    return [*public_input_notes(plan.dataset), *(unit_notes(options, plan.dataset) if guaranteed else ())]


def _origin_notes(saved: TicketSet) -> list[str]:
    """What follows from where the tickets come from; of private ones the report itself tells."""
    match saved.provenance:
        case "data-free":
            return [
                "no record was looked at, so the tickets cost nothing; they have no predictors: train one by its round"
            ]
        case "public":
            return [
                f"{saved.source} was declared public: no guarantee is claimed for it, and the tickets cost nothing elsewhere"
            ]
        case "dp":
            return ["the tickets are post-processing of what was spent; training one on these records adds to it"]
        case "private":
            return []


def _event(source: DatasetRef, provenance: ProvenanceKind, set_id: str) -> ProvenanceEvent:
    """The event that tells a ledger where a ticket set comes from."""
    from dpltm.privacy.events import ProvenanceEvent

    return ProvenanceEvent(source, provenance, set_id)


def _dry_run(options: GenerateOptions, plan: Plan, events: tuple[Event, ...], out: Path) -> dict[str, Any]:
    from dpltm.privacy.report import report

    touching = [event for event in events if plan.source is not None and event.dataset.may_overlap(plan.source)]
    return {
        "dry_run": True,
        "ticket_set": str(out),
        "provenance": plan.provenance,
        "criterion": options.criterion,
        "dataset": plan.dataset.name,
        "records": plan.dataset.records,
        "model": plan.spec.text,
        "steps": _steps(options, plan),
        "privacy": report(touching, options.delta, "add-remove", _input_notes(plan, options), held=events).to_json(),
    }


def _steps(options: GenerateOptions, plan: Plan) -> int:
    """Training steps in all."""
    if options.criterion == "dp-train":
        return plan.config.iterations
    return 0 if plan.provenance == "data-free" else plan.config.steps


def _show(rich: RichConsole, body: dict[str, Any]) -> None:
    from dpltm.cli.show import show_notes, show_pairs, show_privacy, show_tickets

    if body.get("dry_run"):
        show_pairs(rich, "would generate", body)
    else:
        show_tickets(rich, body)
    if body["provenance"] in ("private", "dp"):
        show_privacy(rich, body["privacy"])
    else:
        show_notes(rich, body["privacy"])
