"""Sets, winners and runs: from memory to a folder and back, a listing of sets, and one round of a set."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from dpltm.errors import ArtifactError, InputError, first_line, naming
from dpltm.gone import instead
from dpltm.networks import build
from dpltm.networks.own import OwnModel, check_no_code, own_model
from dpltm.networks.own_network import OwnNetwork
from dpltm.networks.state import put, weights_of
from dpltm.tickets import ticket_set
from dpltm.tickets.files import as_path, attempt, new_folder
from dpltm.tickets.run import load_run, save_run
from dpltm.training.artifacts import Run, TicketSet, Winner, set_of

Artifact = TypeVar("Artifact", TicketSet, Winner, Run)


class Listed(NamedTuple):
    """One line of a listing: a set, or why it is none."""

    name: str
    tickets: TicketSet | None
    problem: str | None
    size: int


def split_round(text: str) -> tuple[str, int | None]:
    """Split ``SET@10`` into SET and round 10; a folder that has an @ in its name is that folder."""
    name, at, number = text.rpartition("@")
    if not at or os.path.isdir(text):
        return text, None
    if not (number.isdecimal() and len(number) <= 9):
        raise InputError(f"SET@ROUND: {number[:40]!r} is not a round; write a whole number after @, such as {name}@10")
    return name, int(number)


def find_set(name: str) -> TicketSet:
    """Return the set in a folder; ArtifactError where there is none, or it is damaged."""
    form = f"{name.partition(':')[0]}:NAME"
    if (reason := instead(form)) is not None and not os.path.isdir(name):
        raise ArtifactError(f"{form}{reason}")
    return ticket_set.load_ticket_set(Path(name))


def listing(folder: Path) -> Iterator[Listed]:
    """Yield the ticket sets in ``folder``, with what is wrong where one is damaged."""
    try:
        paths = [path for path in sorted(folder.iterdir()) if not path.name.startswith(".")]  # perhaps half-written
        folders = [(str(path), path) for path in paths if os.path.lexists(path / "tickets.json")]
    except OSError as error:
        raise ArtifactError(f"{folder}: cannot be read: {error.strerror}; name a folder of ticket sets") from None
    for name, path in folders:
        shown = name if name.isprintable() else repr(name)
        try:
            size = sum(file.lstat().st_size for file in path.iterdir())
            yield Listed(shown, ticket_set.load_ticket_set(path), None, size)
        except (ArtifactError, OSError) as error:
            yield Listed(shown, None, first_line(error), 0)


def problems(path: Path) -> list[str]:
    """Return everything that is wrong with a set, its card and what lies with it."""
    if not path.is_dir() or not (path / "tickets.json").exists():
        raise ArtifactError(f"{path}: no ticket set there; name a folder that holds one")
    messages: list[str] = []
    tickets = attempt(lambda: ticket_set.load_ticket_set(path), messages)
    if attempt(lambda: ticket_set.card_is_as_written(path), messages) is False:
        messages.append(f"{path / 'README.md'}: not the card that was written with the set; edited or damaged")
    if tickets is not None:
        attempt(lambda: ticket_set.last_winner(tickets), messages)
    return messages


def save(value: Artifact, path: str | Path) -> Artifact:
    """Write a ticket set, a winner with its set, or a run to a folder, whole or not at all; return it as it lies there.

    The lineage goes with each. A ledger in memory does not: whoever goes on in another process keeps one in a file
    (``dpltm.tickets.open_ledger``) from the start. Accuracies of a ``private`` set stay in memory.

    Args:
        path: of a folder that does not exist yet; of a winner, also that of the set that it was drawn from.

    Raises:
        ArtifactError: ``path`` exists, or cannot be written.
    """
    path = as_path(path)
    if not isinstance(value, (TicketSet, Winner, Run)):
        raise InputError("value", value, "a ticket set, a winner or a run", "give what a stage returns")
    with naming(out="path", dataset="value"):
        if isinstance(value, Run):
            labelled = replace(value, path=path, label=str(path))  # type: ignore[call-arg]
            with new_folder(path) as folder:
                save_run(folder, labelled)
            return labelled
        if isinstance(value, TicketSet):
            return ticket_set.save_ticket_set(path, value)
        tickets = set_of(value)
        if tickets.path == path:
            ticket_set.save_winner(path, value)
            return value
        return replace(value, tickets=ticket_set.save_ticket_set(path, tickets, value))


def load(path: str | Path, model: Any = None, **functions: Any) -> TicketSet | Winner | Run:
    """Return what lies in a folder: a run, a ticket set, or the winner that was drawn from it last.

    Draws from a set that was loaded are marked in its folder.

    Args:
        model: of a network of your own, the module, its class or factory, which no artifact holds. Without it all can be
            looked at, and nothing trained or evaluated.
        functions: ``loss``, ``score`` and ``inputs``, where the network was made with them.

    Raises:
        ArtifactError: nothing that dpltm wrote, or damaged.
        InputError: ``model`` is another network: other parameters, or other outputs for made-up records.
    """
    folder = as_path(path)
    if model is None and functions:
        raise InputError(f"`{min(functions)}`: only with `model`; give both")
    if isinstance(model, str):
        check_no_code(model)
    own = None if model is None else own_model(model, **functions)
    try:
        with naming():
            if (folder / "config.json").is_file():
                return with_code(load_run(folder), own)
            tickets = with_code(find_set(str(path)), own)
            return ticket_set.last_winner(tickets) or tickets
    except OSError as error:
        raise ArtifactError(f"`path`: {error.strerror}; name another folder") from None


def with_code(artifact: Artifact, model: OwnModel | None) -> Artifact:
    """Return a set or a run with the code of its network, if any is named; InputError for another network, or no own one."""
    if model is None:
        return artifact
    value: Any = artifact
    of_set = isinstance(value, TicketSet)
    network, weights = (value.body.spec, value.body.theta0) if of_set else (value.spec, weights_of(value.model))
    if not isinstance(network, OwnNetwork):
        raise InputError(f"`model`: {value.label} is of the kind {network.text}, which dpltm knows; leave it out")
    network = network.with_code(model, weights)
    if of_set:
        return replace(artifact, body=replace(value.body, spec=network))  # type: ignore[call-arg]
    built = build(network)
    put(built, weights)
    return replace(artifact, network=network, model=built)  # type: ignore[call-arg]
