"""``dpltm tickets transfer`` and ``dpltm tickets compact``: ticket sets made from ticket sets."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpltm.cli.common import DataOptions, check_tables, load_dataset, public_input_notes
from dpltm.cli.console import Console
from dpltm.cli.options import Call, option
from dpltm.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console as RichConsole


@dataclass(frozen=True)
class TransferOptions(DataOptions):
    """Makes tickets for other records: another input width, image size, number of channels or of classes.

    Layers of the same shape are kept, the others made new. Only the shape of --dataset is looked at. The other modes are
    controls: masks with new weights, weights under masks shuffled within each layer, and both at random.
    """

    set: str | None = option(
        None, "Ticket set, or one of its rounds.", metavar="SET[@ROUND]", argument=True, required=True
    )
    mode: str = option("ticket", "What is taken over.", choices=("ticket", "mask-only", "shuffled-mask", "random"))
    fresh: str = option(
        "sparse",
        "Layers made new: as sparse as those they replace, at random, or dense.",
        choices=("sparse", "dense"),
    )
    seed: int = option(0, "Decides what is drawn anew.", metavar="N")
    name: str | None = option(None, "Label of the new set.", metavar="TEXT", shown="that of SET")
    out: str | None = option(None, "Folder to write.", metavar="DIR", required=True)


@dataclass(frozen=True)
class CompactOptions:
    """Removes for good what a mask leaves without use: a smaller network that computes the same.

    SET@ROUND becomes a set for the smaller network, to train; RUN a run of it, to use, with constants folded into biases,
    and a model.py that loads it without dpltm.
    """

    artifact: str | None = option(None, "A ticket or a run.", metavar="SET@ROUND|RUN", argument=True, required=True)
    out: str | None = option(None, "Folder to write.", metavar="DIR", required=True)


def transfer_command(options: TransferOptions, call: Call) -> None:
    """Runs ``dpltm tickets transfer`` and prints its answer."""
    answer = transferred(options)
    Console(call.json, call.quiet).result(answer, lambda rich: _show_transfer(rich, answer))


def check_options(options: TransferOptions) -> None:
    """Raises InputError for an option out of range."""
    if not 0 <= options.seed < 2**62:
        raise InputError(f"--seed: {options.seed} is not between 0 and 2^62 - 1")


def transferred(options: TransferOptions) -> dict[str, Any]:
    """Writes the new set; returns the JSON answer.

    Raises:
        DpltmError: bad input, before anything is written.
    """
    from dpltm.stages.front import take_over_map
    from dpltm.ticket_set import Parent
    from dpltm.ticket_transfer import one_round, retarget, transfer
    from dpltm.tickets.files import check_free
    from dpltm.tickets.store import find_set, split_round
    from dpltm.tickets.ticket_set import save_ticket_set, ticket_rows
    from dpltm.tickets.winner import draws_behind

    out = Path(options.out or "")
    check_free(out)
    name, number = split_round(options.set or "")
    check_options(options)
    tickets = find_set(name)
    dataset, body = take_over_map(load_dataset(options), tickets.feature_map, None, tickets.label), tickets.body
    if number is not None:
        tickets.ticket(number)
        body = one_round(body, number)
    target = retarget(body.spec, dataset.input_shape, dataset.features, dataset.classes, dataset.input_tables)
    check_tables(target, dataset, f"{name}: its network")
    made = transfer(body, target, options.mode, options.fresh, options.seed)  # type: ignore[arg-type]
    new = replace(
        tickets,
        body=made.tickets,
        config={"transfer": {"mode": options.mode, "fresh": options.fresh, "seed": options.seed}},
        draws=draws_behind(tickets, number),
        parent=Parent(tickets.id, tickets.name, number, f"transfer ({options.mode})"),
        name=options.name or tickets.name,
        feature_map=dataset.feature_map or tickets.feature_map,
    )
    saved = save_ticket_set(out, new)
    notes = public_input_notes(dataset)
    if tickets.provenance in ("dp", "private"):
        notes.append(
            f"the tickets depend on {tickets.source}, where their cost is entered; whether {dataset.name} holds the same"
            " people in a form that is not recognised (scaled, rounded, other columns) is yours to know"
        )
    return {
        "ticket_set": str(out),
        "id": saved.id,
        "model": target.text,
        "mode": options.mode,
        "provenance": saved.provenance,
        "layers": [asdict(layer) for layer in made.layers],
        "tickets": ticket_rows(saved.body),
        "notes": notes,
    }


def compact_command(options: CompactOptions, call: Call) -> None:
    """Runs ``dpltm tickets compact`` and prints its answer."""
    from dpltm.tickets.compact import compact_run, compact_set
    from dpltm.tickets.files import check_free
    from dpltm.tickets.run import load_run
    from dpltm.tickets.store import find_set, split_round

    out, text = Path(options.out or ""), options.artifact or ""
    check_free(out)
    if (Path(text) / "config.json").exists():
        shrunk = compact_run(load_run(Path(text)), out)
    else:
        name, number = split_round(text)
        tickets = find_set(name)
        if number is None:
            raise InputError(f"SET@ROUND: a compact network is that of one ticket; write {name}@ROUND")
        shrunk = compact_set(tickets, number, out)
    answer = {
        "written": str(out),
        "model": {"before": shrunk.before.text, "after": shrunk.after.text},
        "parameters": {"before": shrunk.parameters[0], "after": shrunk.parameters[1]},
        "live": {"before": shrunk.live[0], "after": shrunk.live[1]},
    }
    Console(call.json, call.quiet).result(answer, lambda rich: _show_compact(rich, answer))


def _show_transfer(rich: RichConsole, body: dict[str, Any]) -> None:
    from rich.table import Table

    from dpltm.cli.show import show_notes, show_tickets

    table = Table(
        "layer",
        "from",
        "to",
        "mask",
        "weights",
        "density",
        title=f"{body['model']}, {body['mode']}",
        title_justify="left",
    )
    for row in body["layers"]:
        before, after = ("x".join(str(size) for size in row[key]) or "-" for key in ("before", "after"))
        table.add_row(row["layer"], before, after, row["mask"], row["weights"], f"{row['density']:.2%}")
    rich.print(table)
    show_tickets(rich, body)
    show_notes(rich, body)


def _show_compact(rich: RichConsole, body: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table("", "before", "after", title=f"wrote {body['written']}", title_justify="left")
    table.add_row("network", body["model"]["before"], body["model"]["after"])
    for key in ("parameters", "live"):
        table.add_row(key, *(f"{body[key][side]:,}" for side in ("before", "after")))
    rich.print(table)
