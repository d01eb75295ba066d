"""What several commands share: reading the dataset, public inputs, checks that come before any budget is spent."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dpltm.errors import InputError
from dpltm.models import ModelSpec, for_tables, network_metavar, resolve
from dpltm.options.data import DataOptions as DataOptions
from dpltm.privacy.figures import figure as figure

if TYPE_CHECKING:
    from torch import Tensor

    from dpltm.cli.console import Console
    from dpltm.data import Augmentation, Dataset, Split
    from dpltm.privacy.events import DatasetRef, Event, ProvenanceEvent
    from dpltm.sampling import Records
    from dpltm.ticket_set import TicketSet


LARGEST_EPSILON, LARGEST_NOISE, MOST_STEPS = 1e4, 1e6, 10**8
"""Beyond these a setting is taken for a slip of the finger."""

LEAST_DELTA = 1e-15
"""Below this the tails that the accountant truncates (e^-50) would begin to show."""


PER_USER = 64
"""Ratings of a user that count at unit ``user``, if nothing is said."""

SEVERAL_ROWS = (
    "the guarantee is for one record (row): a person with k rows has up to k times the epsilon, at a larger delta; give one"
    " row a person where people are to be protected"
)
"""Said of every guarantee for single records of a file of the user's own (group privacy)."""

NETWORKS = network_metavar()
"""Names of networks, for ``--help``."""


def load_dataset(options: DataOptions, for_training: bool = True) -> Dataset:
    """The dataset that the options name; one record will do where nothing is learned from them.

    Raises:
        DpltmError: with one line about whatever is wrong.
    """
    from dpltm.data import by_user, load

    if options.dataset is None:
        raise InputError("--dataset is missing: name the records to use (dpltm datasets ls lists what is at hand)")
    found = load(
        options.dataset,
        label=options.label,
        bounds=None if options.bounds is None else parse_pair("--bounds", options.bounds),
        classes=options.classes,
        records=options.records,
        subset=options.subset,
        test=options.test,
        words=options.words,
        length=options.length,
        users=options.users,
        items=options.items,
        for_training=for_training,
    )
    if getattr(options, "unit", "record") == "record":
        return found
    slots = getattr(options, "per_user", None)
    return by_user(found, PER_USER if slots is None else slots)


def parse_pair(flag: str, text: str) -> tuple[float, float]:
    """Two numbers from ``LO,HI``."""
    values = parse_numbers(flag, text)
    if len(values) != 2:
        raise InputError(f"{flag}: {text!r} is not of the form LO,HI, such as 0,255")
    return values[0], values[1]


def parse_numbers(flag: str, text: str) -> tuple[float, ...]:
    """Numbers separated by commas."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"{flag}: {text!r} is not a list of numbers separated by commas") from None


def model_spec(text: str, dataset: Dataset) -> ModelSpec:
    """The network of that name for these records."""
    tables = dataset.input_tables
    found = ModelSpec(resolve(text, dataset.input_shape, tables), dataset.features, dataset.classes)
    check_tables(found, dataset, f"--model: {text}", f"take {' or '.join(for_tables(tables))}")
    return found


def check_tables(spec: ModelSpec, dataset: Dataset, network: str, remedy: str = "use records like its own") -> None:
    """Raises InputError unless the network looks up what these records hold.

    Args:
        spec: the network.
        dataset: the records.
        network: what the message calls it.
        remedy: what to do about it.
    """
    if spec.tables != dataset.input_tables:
        takes, hold = _words_of(spec.tables), _words_of(dataset.input_tables)
        raise InputError(f"{network} takes {takes}, but records of {dataset.name} hold {hold}; {remedy}")


def _words_of(tables: tuple[int, ...]) -> str:
    return f"positions in tables of {' and '.join(f'{size:,}' for size in tables)}" if tables else "quantities"


def tensors(
    split: Split, dataset: Dataset, device: str = "cpu", console: Console | None = None
) -> tuple[Tensor, Tensor]:
    """What the network gets, ``(n, features)`` float32, and labels: records scaled by public bounds, or their features."""
    import torch

    from dpltm.cli.features import inputs
    from dpltm.data import prepare

    x = inputs(split, dataset, console)
    if dataset.feature_map is None:
        ready = torch.from_numpy(prepare(x, dataset.bounds, dataset.tables))
    else:
        ready = dataset.feature_map.centred(torch.from_numpy(x.astype("f4")))
    return ready.to(device), torch.tensor(split.y, device=device)


def records(
    split: Split, dataset: Dataset, device: str, console: Console | None = None, augment: Augmentation = "none"
) -> Records:
    """The same a batch at a time, made ready as it is read.

    ``(n, copies, features)`` if records are augmented, and ``(n, ratings, features)`` if they are users.
    """
    import torch

    from dpltm import data
    from dpltm.cli.features import inputs
    from dpltm.sampling import Records

    x, found = inputs(split, dataset, console, augment), dataset.feature_map
    copies = () if augment == "none" and dataset.unit == "record" else (x.shape[1],)

    def prepare(rows: Tensor) -> Tensor:
        each = rows.flatten(0, 1) if copies else rows
        if found is None:
            ready = torch.from_numpy(data.prepare(each.numpy(), dataset.bounds, dataset.tables))
        else:
            ready = found.centred(each.float())
        return ready.view(len(rows), *copies, -1)

    return Records(x, split.y, device=device, prepare=prepare)


def public_input_notes(dataset: Dataset) -> list[str]:
    """Sentences about public inputs that were only counted on the private data (privacy-model.md 1.4)."""
    notes = []
    if dataset.records_origin == "counted":
        notes.append(
            f"the number of {dataset.unit}s ({dataset.records}) was counted and is treated as public; declare a figure"
            " with --records to keep it private"
        )
    if dataset.classes_origin == "counted":
        notes.append(
            f"the number of classes ({dataset.classes}) was read off the labels and is treated as public (--classes)"
        )
    if len(dataset.tables) == 1 and dataset.tables_origin == "counted":
        notes.append(
            f"the vocabulary of {dataset.name} was ranked on its own training reviews and is treated as public"
        )
    elif len(dataset.tables) == 1:
        notes.append(
            f"which word is at which position is taken as public: no record of {dataset.name} may have decided it"
        )
    if len(dataset.tables) == 2 and dataset.tables_origin == "counted":
        users, items = dataset.tables
        notes.append(
            f"the largest ids of users ({users}) and items ({items}) were read off the ratings and are treated as public;"
            " declare them with --users and --items"
        )
    return notes


def unit_notes(options: DataOptions, dataset: Dataset) -> list[str]:
    """Whom a guarantee for single records does not protect; nothing for known datasets, whose records are what they are."""
    from dpltm.data import catalogue

    if dataset.unit == "user":
        return []
    if dataset.rated:
        return [
            "the guarantee is for one rating, not for one person, who may have given many; --unit user protects all of them"
        ]
    return [] if options.dataset in catalogue() else [SEVERAL_ROWS]


def check_same_network(tickets: TicketSet, dataset: Dataset) -> None:
    """Raises InputError unless the ticket's network takes these records."""
    spec, path = tickets.body.spec, tickets.label
    if spec.features != dataset.features:
        raise InputError(
            f"{path}: its network takes {spec.features} features, but {dataset.name} has {dataset.features}; use records of"
            " the same shape, or carry it over with dpltm tickets transfer"
        )
    if spec.classes != dataset.classes:
        raise InputError(
            f"{path}: its network has {spec.classes} classes, but {dataset.name} has {dataset.classes}; use records with the"
            " same classes, or carry it over with dpltm tickets transfer"
        )
    check_tables(spec, dataset, f"{path}: its network")


def check_epsilon(flag: str, value: float | None) -> None:
    """Raises InputError unless ``value``, if given, is a positive number that may be meant."""
    if value is not None and not 0 < value <= LARGEST_EPSILON:
        raise InputError(f"{flag}: {value:g} is not a positive number up to {LARGEST_EPSILON:g}")


def steps_of(epochs: float, sampling_rate: float) -> int:
    """Steps that pass over the records ``epochs`` times in expectation, at least one."""
    return max(1, round(min(epochs / sampling_rate, 2.0 * MOST_STEPS)))


def check_delta_alone(delta: float) -> None:
    """Raises InputError unless ``delta`` may be asked for where no dataset says how many records there are."""
    if not LEAST_DELTA <= delta < 1:
        raise InputError(f"--delta: {delta:g} is not between {LEAST_DELTA:g} and 1")


def check_delta(delta: float, dataset: Dataset) -> None:
    """Raises InputError unless 0 < delta < 1/n: at 1/n, publishing a random record would pass.

    A declared number of records below the true one does not loosen the bound. A described one is used as it is: the true one
    differs from it in ratings alone, by little, and is private.
    """
    described = dataset.records_origin == "described"
    records = dataset.records if described else max(dataset.records, len(dataset.train))
    if 0 < delta < LEAST_DELTA:
        raise InputError(
            f"--delta: {delta:g} is below {LEAST_DELTA:g}, which the accountant does not resolve; take a larger one"
        )
    if not 0 < delta < 1 / dataset.records:
        raise InputError(
            f"--delta: {delta:g} is not between 0 and 1/n = {1 / dataset.records:.3g} for {dataset.records} {dataset.unit}s;"
            " take one well below it"
        )
    if not delta < 1 / records:  # whose number is private: what is refused may be kept in a log
        raise InputError(
            f"--delta: {delta:g} is not between 0 and 1/n, since there are more {dataset.unit}s than the {dataset.records}"
            " declared; take one well below it"
        )


def source_relation(
    tickets: TicketSet, dataset: Dataset, records: DatasetRef | None = None
) -> Literal["same", "other", "unknown"]:
    """Whether the tickets come from records that ``dataset`` shares; ``other`` if they come from none."""
    from dpltm.tickets.identity import reference, resolve

    if tickets.source is None:
        return "other"
    records = reference(dataset, make_key=False) if records is None else records
    source = resolve(tickets.source, tickets.provenance == "public")  # now that these records are known
    if source.surely_overlaps(records):
        return "same"
    return "unknown" if source.may_overlap(records) else "other"


def origin_events(tickets: TicketSet, dataset: Dataset, reference: DatasetRef) -> tuple[Event, ...]:
    """What using these tickets calls for, on whatever records they came from (docs/privacy-model.md section 2).

    Nothing where they came from public records or from none; the DP releases that they were made by; or that there was no
    mechanism. That is entered on *their* records, be they those that are used now or not: a mask that goes out tells of the
    records that it was made from.

    Raises:
        InputError: records declared public for the tickets would now be treated as private.
    """
    from dpltm.privacy.events import ProvenanceEvent

    relation = source_relation(tickets, dataset, reference)
    if tickets.provenance == "public":
        if relation == "same":
            why = "the same records cannot be private here: take"
            if dataset.part.cut != reference.cut:  # entered on the whole
                why = "under replace-one a record may leave one part by hash for another: take places for both, or"
            raise InputError(
                f"{tickets.label}: its tickets were made from {tickets.source}, declared public, and {reference} shares"
                f" records with it; {why} another --subset or --dataset, or generate with --provenance private"
            )
        return ()
    if tickets.source is None:
        return ()
    said = ProvenanceEvent(tickets.source, tickets.provenance, tickets.id)
    return (*tickets.events, said)


def records_of(dataset: Dataset, adjacency: str, make_key: bool) -> DatasetRef:
    """The records that a release under that relation is entered on (see ``relation_notes``)."""
    from dpltm.tickets.identity import reference

    ref = reference(dataset, make_key=make_key)
    return ref if adjacency == "add-remove" else ref.widened


def relation_notes(dataset: Dataset, adjacency: str) -> list[str]:
    """Where a release under replace-one from a part by hash is entered, and why."""
    from dpltm.privacy.events import HASHED

    if adjacency == "add-remove" or dataset.part.cut not in HASHED:
        return []
    return [
        f"under replace-one a record may leave this part of {dataset.name} and enter another, so the release is entered on"
        " the whole of it; parts by places stay apart"
    ]


def check_test_apart(dataset: Dataset, events: Iterable[Event]) -> None:
    """Raises InputError if the test split holds records that a release was made from: accuracy there would be another one.

    What is trained on is looked through when it is loaded. This looks through all else that a ledger protects.

    Args:
        dataset: with its test split.
        events: of the ledger, and of what the network depends on.
    """
    from dpltm.data import count_shared
    from dpltm.privacy.ledger import is_paid
    from dpltm.tickets.identity import load_key, reference, rows_of

    if dataset.test_rows is None:
        return
    others = {event.dataset.group: event.dataset for event in events if is_paid(event)}
    others.pop(reference(dataset, make_key=False).group, None)
    for ref in others.values():
        trained = rows_of(ref)
        shared = 0 if trained is None else count_shared(trained, dataset.test_rows.value_hashes(load_key()))
        if shared:
            raise InputError(
                f"--dataset, --test: {shared} of the {len(dataset.test_rows)} test records of {dataset.name} are records of"
                f" {ref.name}, which the ledger protects, so accuracy there would show them; take them out"
            )


def not_held(events: Iterable[Event], before: tuple[Event, ...]) -> tuple[Event, ...]:
    """Those of ``events`` that a ledger holding ``before`` does not know yet.

    A release is entered as often as it was made. Where tickets come from is said once, whenever that was.
    """
    from dpltm.privacy.events import ProvenanceEvent
    from dpltm.privacy.ledger import missing

    return tuple(
        event
        for event in missing(events, before)
        if not (isinstance(event, ProvenanceEvent) and holds_provenance(before, event))
    )


def check_not_public(events: tuple[Event, ...], records: DatasetRef) -> None:
    """Raises InputError if the ledger has these records, or some of them, down as public."""
    from dpltm.privacy.events import ProvenanceEvent
    from dpltm.tickets.identity import resolved

    for event in events:
        if (
            isinstance(event, ProvenanceEvent)
            and event.provenance == "public"
            and resolved(event).dataset.surely_overlaps(records)  # they may have been met since the ledger was read
        ):
            raise InputError(
                f"--dataset: the ledger has {event.dataset} down as public, and {records} shares records with it; the same"
                " records cannot be private here: take another --subset or --dataset"
            )


def check_never_private(before: Iterable[Event], planned: Iterable[Event]) -> None:
    """Raises InputError if records that a ledger has releases from would now be entered as public."""
    from dpltm.privacy.events import BudgetEvent, ProvenanceEvent

    said = [event for event in planned if isinstance(event, ProvenanceEvent) and event.provenance == "public"]
    for event in before:
        release = not isinstance(event, (BudgetEvent, ProvenanceEvent))
        if release or (isinstance(event, ProvenanceEvent) and event.provenance in ("private", "dp")):
            for public in said:
                if event.dataset.surely_overlaps(public.dataset):
                    raise InputError(
                        f"--dataset, --public: the ledger holds what was spent on {event.dataset}, so they are private, and"
                        f" {public.dataset} would be declared public; take other records, or another --ledger"
                    )


def holds_provenance(events: tuple[Event, ...], event: ProvenanceEvent) -> bool:
    """Whether a ledger with ``events`` knows already where these tickets come from."""
    from dpltm.privacy.events import ProvenanceEvent

    return any(
        isinstance(old, ProvenanceEvent)
        and (old.ticket_set, old.provenance) == (event.ticket_set, event.provenance)
        and old.dataset.may_overlap(event.dataset)
        for old in events
    )


def draws_to_enter(draws: Iterable[Event], before: tuple[Event, ...]) -> tuple[Event, ...]:
    """Draws behind a ticket that a ledger holding ``before`` does not know yet, as it should enter them.

    They are entered on the records that they were made on, whatever is being trained on. One that enters a ledger with
    earlier releases may depend on them, wherever it was made.
    """
    from dpltm.privacy.ledger import as_adaptive, missing, touching
    from dpltm.privacy.parts import stated_relations

    entered: list[Event] = []
    for event in missing(draws, before):
        known = (*before, *entered)
        earlier = stated_relations(touching(known, event.dataset))
        entered.append(as_adaptive(event) if earlier else event)
    return tuple(entered)


def provenance_notes(tickets: TicketSet, dataset: Dataset) -> list[str]:
    """What a reader should know about where the tickets come from."""
    relation = source_relation(tickets, dataset)
    if tickets.provenance == "dp" and relation == "other":
        return [f"the tickets were made under differential privacy from {tickets.source}, other records than these"]
    if tickets.provenance == "private" and relation == "other":
        return [
            f"the tickets were made from {tickets.source} with no mechanism: nothing is certified for those records"
        ]
    if relation == "unknown":
        return [
            f"whether the tickets come from records of {dataset.name} cannot be told here ({tickets.source}: made elsewhere,"
            f" or with rows in common by coincidence); their provenance, {tickets.provenance}, is taken as declared"
        ]
    return []


def free_name(stem: str, suffix: str) -> Path:
    """``STEMSUFFIX``, or ``STEM-2SUFFIX`` and so on: the first that does not exist yet."""
    path, number = Path(stem + suffix), 1
    while path.exists():
        number += 1
        path = Path(f"{stem}-{number}{suffix}")
    return path
