"""What a training owes to where its ticket, its settings, what stands in front of its network and its data come from."""

from __future__ import annotations

from dpltm.errors import InputError
from dpltm.options.train import TrainOptions
from dpltm.privacy.behind import check_not_read_off, found_behind
from dpltm.privacy.event_json import searched_from_text
from dpltm.privacy.events import SETTINGS, DatasetRef, Event, NonPrivateEvent, ProvenanceEvent, SelectionEvent
from dpltm.privacy.lineage import draws_to_enter, measured_on, origin_events, provenance_notes, to_enter
from dpltm.privacy.old_ledger import Ledger, merge
from dpltm.records import Dataset
from dpltm.records.notes import public_input_notes, rating_notes, unit_notes
from dpltm.stages.checks import check_same_network
from dpltm.stages.front import feature_events, feature_notes
from dpltm.stages.starting_point import StartingPoint


def lineage_of(
    options: TrainOptions, start: StartingPoint, dataset: Dataset, records: DatasetRef, ledger: Ledger
) -> tuple[tuple[Event, ...], list[str]]:
    """What a training enters beside its own release, and what a reader should know of it.

    It is what the ticket's origin means for these records; a fresh network comes from no data.

    The draw of a winner is an input of the run, so it counts even where another ledger, or none any more, holds it. Where
    the whole network of a set is trained, the mask keeps everything, but theta0 is the set's, so its provenance counts all
    the same.

    Args:
        options: of the training, with what its settings were searched on.
        start: the ticket, or a fresh network.
        dataset: that is trained on, with what stands in front of the network.
        records: what the training is entered on.
        ledger: what it holds is not entered again.

    Raises:
        InputError: records declared public for any of these would now be private.
    """
    before, registry = ledger.events, ledger.registry
    notes = [*public_input_notes(dataset), *unit_notes(dataset), *rating_notes(dataset)]
    features = merge((feature_events(dataset, records, registry), _tuned_on(options, records, ledger)))
    if options.eval_private is None:
        features = (*features, *measured_on(dataset, registry))
    notes += feature_notes(dataset, records, options.delta, registry)
    if start.tickets is None:
        return to_enter(features, before), notes
    check_same_network(start.tickets, dataset)
    events = to_enter(merge((features, origin_events(start.tickets, dataset, records, registry))), before)
    draws = merge((start.tickets.draws, start.drawn))
    check_not_read_off(draws, records, registry)
    for ref in dict.fromkeys(event.dataset for event in draws if isinstance(event, (SelectionEvent, NonPrivateEvent))):
        if not ref.may_overlap(records):
            notes.append(f"the winner was drawn on other records, {ref}, and depends on them")
    events = (*events, *draws_to_enter(draws, (*before, *events)))
    return events, [*notes, *provenance_notes(start.tickets, dataset, registry)]


def _tuned_on(options: TrainOptions, records: DatasetRef, ledger: Ledger) -> tuple[Event, ...]:
    """That settings were searched on records declared public, which are not these; and what those were made by.

    Raises:
        InputError: they are these, or some of them; or the text is not what ``dpltm tune`` writes.
    """
    if options.tuned_on is None:
        return ()
    registry = ledger.registry
    said, behind = searched_from_text("tuned_on", options.tuned_on)
    source, behind = registry.resolve(said), tuple(registry.resolve_event(event) for event in behind)
    check_not_read_off(behind, records, registry)
    if source.surely_overlaps(records):
        raise InputError(
            f"`tuned_on`: settings were searched on {source}, declared public, and {records} shares records with it; the"
            " same records cannot be private here: take other settings, or another `subset` or `dataset`"
        )
    return (*behind, ProvenanceEvent(source, "public", f"{SETTINGS}of dpltm tune"))


def sources_of(start: StartingPoint, dataset: Dataset, tuned_on: str | None = None) -> tuple[DatasetRef, ...]:
    """The records that the ticket, its draws, what stands in front of its network, its data and its settings came from.

    Args:
        start: the ticket, or a fresh network.
        dataset: that is trained on.
        tuned_on: what settings were searched on, as ``dpltm tune`` writes it.
    """
    tickets, feature_map, made = start.tickets, dataset.feature_map, dataset.synthetic
    behind = [] if tickets is None else [tickets.source, *(event.dataset for event in (*tickets.draws, *start.drawn))]
    behind += [] if feature_map is None or feature_map.network is None else [feature_map.source]
    behind += [] if feature_map is None else [event.dataset for event in feature_map.events]
    behind += [event.dataset for event in (*dataset.found, *(() if tickets is None else found_behind(tickets)))]
    behind += [] if tuned_on is None else [event.dataset for event in searched_from_text("tuned_on", tuned_on)[1]]
    return tuple(ref for ref in (*behind, None if made is None else made.source) if ref is not None)
