"""Ticket sets made from others, and from pruned models: what they depend on goes along."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import dpltm
from dpltm.errors import ArtifactError, InputError
from dpltm.features.feature_map import FeatureMap, make_feature_map
from dpltm.networks import ModelSpec
from dpltm.options.features import FeatureOptions
from dpltm.options.tickets import ImportOptions
from dpltm.options.transfer import TransferOptions
from dpltm.privacy.event_json import to_json
from dpltm.privacy.events import DatasetRef, Event, GaussianEvent, ProvenanceKind, SelectionEvent
from dpltm.privacy.mechanisms import GaussianRelease, Selection
from dpltm.privacy.old_ledger import Ledger
from dpltm.pruning.generation import GenerationConfig, without_data
from dpltm.pruning.ticket_set import Parent, TicketSet, Winner
from dpltm.records import Dataset, from_arrays
from dpltm.records.registry import RecordRegistry
from dpltm.records.synthetic_origin import SyntheticOrigin
from dpltm.stages.front import FeatureSources
from dpltm.stages.transfer import StatedFront, check_options, front_of_import, imported_set, plan_transfer, transfer
from refusals import refused

TIME = "2026-01-01T00:00:00Z"
RECORDS = DatasetRef("digits", "ab" * 16, "01234567")
BODY = without_data(ModelSpec("mlp:8", 36, 3), GenerationConfig(rounds=2, prune=(0.3,), criterion="random"))


def images(count: int = 30, shape: tuple[int, ...] = (6, 6), classes: int = 3, **facts: Any) -> Dataset:
    draw = np.random.default_rng(0)
    labels = np.arange(count) % classes
    return from_arrays(draw.integers(0, 256, (count, *shape), dtype=np.uint8), labels, **facts)


def draw(second: int, **changes: Any) -> SelectionEvent:
    event = SelectionEvent(
        RECORDS, Selection(0.1, 0.1), "additive", "exact", 0.01, 3, "cd" * 32, time=f"2026-01-01T00:00:{second:02}Z"
    )
    return replace(event, **changes)


QUERY = GaussianEvent(RECORDS, GaussianRelease(20.0), "moments", time=TIME)
SET = TicketSet(
    body=BODY, name="mine", criterion="random", provenance="dp", source=RECORDS, config={"a": 1}, events=(QUERY,),
    draws=(draw(1),), ledger=Ledger(),
)  # fmt: skip


def moved(dataset: Dataset | None = None, **options: Any) -> Any:
    between = {key: options.pop(key) for key in ("round", "winner") if key in options}
    tickets = options.pop("tickets", SET)
    return transfer(plan_transfer(tickets, dataset or images(shape=(5, 5)), TransferOptions(**options), **between))


# --- transfer ---


def test_what_the_tickets_depend_on_goes_along() -> None:
    made = moved()
    after = made.tickets
    assert (after.provenance, after.source, after.events, after.draws) == ("dp", RECORDS, (QUERY,), (draw(1),))
    assert after.parent == Parent(SET.id, "mine", None, "transfer (ticket)")
    assert after.config == {"transfer": {"mode": "ticket", "fresh": "sparse", "seed": 0}}
    assert (after.body.spec.features, len(after.body.tickets)) == (25, 3)
    assert (after.label, after.path, after.name) == ("mine", None, "mine")
    assert after.ledger is SET.ledger, "what is spent on either is added up"
    assert [row.layer for row in made.layers] == ["fc1", "fc2"]
    assert made.notes[-1].startswith("the tickets depend on digits, where their cost is entered")


def test_one_round_depends_on_the_draws_that_released_it() -> None:
    """The round that won was released; another was not, unless it ever won. All rounds hold the one that won."""
    winner = Winner(2, (draw(2),), ((1, (draw(3),)),))
    for number, behind in ((2, (draw(1), draw(3), draw(2))), (0, (draw(1),)), (None, (draw(1), draw(3), draw(2)))):
        made = moved(round=number, winner=winner).tickets
        assert made.draws == behind
        assert made.parent.round == number
        assert len(made.body.tickets) == {None: 3, 0: 1, 2: 2}[number]


def test_records_may_be_arrays_and_tickets_a_winner() -> None:
    data = images(shape=(5, 5))
    winner = Winner(2, (draw(2),), tickets=SET)
    made = dpltm.transfer(winner, data.train.x, data.train.y, mode="mask-only", seed=1, name="theirs")
    assert (made.name, made.parent.round, made.draws) == ("theirs", 2, (draw(1), draw(2)))  # type: ignore[union-attr]
    assert dpltm.transfer(SET, data).id == moved().tickets.id
    with pytest.raises(InputError, match="`tickets`: a winner without its set"):
        dpltm.transfer(replace(winner, tickets=None), data)


def test_what_cannot_be_transferred() -> None:
    with pytest.raises(ArtifactError, match="mine@7: no such round; it has rounds 0 to 2"):
        moved(round=7)
    with pytest.raises(InputError, match=r"`seed`: .* is not between 0 and 2\^62 - 1"):
        check_options(TransferOptions(seed=2**62))


# --- import ---


class Stated:
    """What a file says of itself."""

    id, name = "ef" * 32, "theirs"
    provenance: ProvenanceKind = "dp"
    source: DatasetRef | None = RECORDS
    events: tuple[Event, ...] = (QUERY,)
    draws: tuple[Event, ...] = (draw(1),)
    front: StatedFront | None = None
    complete = True
    found: tuple[Event, ...] | None = (QUERY,)


class Front:
    """Of a map that has tensors, or that has none."""

    text, network, source = "unit:1", None, RECORDS

    def __init__(self, has_tensors: bool) -> None:
        self.has_tensors = has_tensors

    def restored(self, named: FeatureMap | None) -> FeatureMap | None:
        if named is None:
            return None if self.has_tensors else make_feature_map("unit", (6, 6), (0.0, 255.0))
        return named if named.text == "unit:1" else None

    def __str__(self) -> str:
        return "unit:1, made from digits"


@pytest.fixture
def registry() -> RecordRegistry:
    return RecordRegistry()


def test_a_file_speaks_for_itself(registry: RecordRegistry) -> None:
    made = imported_set(BODY, images(), Stated(), ImportOptions(), registry, file="a/t.safetensors")
    assert (made.provenance, made.source, made.events, made.draws) == ("dp", RECORDS, (QUERY,), (draw(1),))
    assert made.parent == Parent(Stated.id, "theirs", None, "export and import")
    assert (made.name, made.criterion) == ("t", "imported")
    assert made.config == {"imported": "t.safetensors", "found": [to_json(QUERY)]}
    with pytest.raises(InputError, match="`provenance`: t says dp of itself; leave `provenance` out"):
        imported_set(BODY, images(), Stated(), ImportOptions(provenance="public"), registry, file="t")


def test_of_synthetic_records_the_release_goes_along(registry: RecordRegistry) -> None:
    """Whatever pruned on them: they are nobody's, and come from somebody's."""
    made = replace(images(), synthetic=SyntheticOrigin("a" * 64, QUERY, (0.0, 255.0), 3), found=(QUERY,))
    found = imported_set(BODY, made, None, ImportOptions(provenance="public"), registry, file="t")
    assert (found.provenance, found.source, found.events) == ("dp", RECORDS, (QUERY,))
    assert found.config["found"] == [to_json(QUERY)]
    free = imported_set(BODY, made, None, ImportOptions(provenance="data-free"), registry, file="t")
    assert (free.provenance, free.events) == ("data-free", ())
    said = refused(imported_set, BODY, made, None, ImportOptions(provenance="private"), registry, file="t")
    assert said.startswith("`provenance`: private is for records of people, and those of ")


@pytest.mark.parametrize("provenance", ["public", "private", "data-free"])
def test_of_others_it_is_said(registry: RecordRegistry, provenance: str) -> None:
    options = ImportOptions(provenance=provenance, name="n")
    made = imported_set(BODY, images(), None, options, registry, file="t")
    assert (made.provenance, made.name, made.events, made.parent) == (provenance, "n", (), None)
    if provenance == "data-free":
        assert made.source is None
    else:
        assert made.source.surely_overlaps(registry.reference(images()))  # type: ignore[union-attr]
    message = refused(imported_set, BODY, images(), None, ImportOptions(), registry, file="t")
    assert message.startswith("`provenance` is missing: t does not say what its masks and weights depend on")


def test_what_stands_in_front_of_an_imported_network(registry: RecordRegistry) -> None:
    sources = FeatureSources(registry=registry)

    def front(origin: Stated | None, features: str | None = None) -> tuple[Dataset, list[str]]:
        return front_of_import(images(), origin, FeatureOptions(features=features), sources, file="t")

    def of(stated: Front | None, complete: bool = True) -> Stated:
        origin = Stated()
        origin.front, origin.complete = stated, complete
        return origin

    dataset, notes = front(of(None))
    assert (dataset.feature_map, notes) == (None, [])
    for silent in (None, of(None, complete=False)):
        assert front(silent)[1][0].startswith("t does not say what stands in front of its network;")
    former = of(None)
    former.found = None
    assert front(former)[1][0].startswith(
        "t is of a former version, and does not say what bounds and categories of its"
    )
    stateless = of(Front(has_tensors=False))
    for origin, features in (
        (None, "unit"),
        (of(None, complete=False), "unit"),
        (stateless, None),
        (stateless, "unit"),
    ):
        dataset, notes = front(origin, features)
        assert (dataset.feature_map is None, notes) == (False, [])
    for origin, features, message in (
        (of(None), "unit", "`features`: the network in t takes records as they are; leave it out"),
        (of(Front(True)), None, "`features` is missing: the network in t stands behind unit:1 features, made from"),
        (of(Front(True)), "scatter:1,2", "`features`: scatter:1,2 is not what the network in t stands behind"),
    ):
        assert refused(front, origin, features).startswith(message)
