"""Ticket sets made from others, and from pruned models: their lineage goes along."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from dpltm.errors import ArtifactError, InputError
from dpltm.features.feature_map import FeatureMap, make_feature_map
from dpltm.networks import ModelSpec
from dpltm.networks.own import own_model
from dpltm.networks.own_network import OwnNetwork, for_records
from dpltm.options.tickets import ImportOptions, TransferOptions
from dpltm.privacy.entry import Lineage
from dpltm.privacy.ledger import Ledger
from dpltm.privacy.mechanisms import Unprotected
from dpltm.pruning.generation import GenerationConfig, without_data
from dpltm.records import Dataset, from_arrays
from dpltm.training.artifacts import Draws, Parent, ProvenanceKind, TicketSet
from dpltm.verbs.transfer import StatedFront, TransferredSet, front_of_import, imported_set, transfer
from refusals import refused
from set_entries import DRAWN, LINEAGES, MOMENTS

BODY = without_data(ModelSpec("mlp:8", 36, 3), GenerationConfig(rounds=2, prune=(0.3,), criterion="random"))
RELEASED = LINEAGES["dp"]
SET = TicketSet(body=BODY, name="mine", criterion="random", provenance="dp", made_from=RELEASED, config={"a": 1})


def images(count: int = 30, shape: tuple[int, ...] = (6, 6), classes: int = 3, **facts: Any) -> Dataset:
    draw = np.random.default_rng(0)
    labels = np.arange(count) % classes
    return from_arrays(draw.integers(0, 256, (count, *shape), dtype=np.uint8), labels, **facts)


def moved(tickets: TicketSet = SET, round: int | None = None, **options: Any) -> TransferredSet:
    return transfer(tickets, images(shape=(5, 5)), TransferOptions(**options), round=round)


# --- transfer ---


def test_what_the_tickets_depend_on_goes_along() -> None:
    made = moved()
    after = made.tickets
    assert (after.provenance, after.lineage) == ("dp", RELEASED)
    assert after.parent == Parent(SET.id, "mine", None, "transfer (ticket)")
    assert after.config == {"transfer": {"mode": "ticket", "fresh": "sparse", "seed": 0}}
    assert (after.body.spec.features, len(after.body.tickets)) == (25, 3)
    assert (after.label, after.path, after.name, after.on_mark) == ("mine", None, "mine", None)
    assert [row.layer for row in made.layers] == ["fc1", "fc2"]


@pytest.mark.parametrize(("number", "rounds"), [(2, 2), (0, 1), (None, 3)])
def test_whatever_is_taken_the_draws_go_along(number: int | None, rounds: int) -> None:
    """Whoever takes another round than the one that won may do so because of that."""
    drawn_from = replace(SET, draws=Draws())
    drawn_from.mark(Lineage((DRAWN,)))
    made = moved(drawn_from, number).tickets
    assert made.lineage.entries == (*RELEASED.entries, DRAWN)
    assert (made.parent.round, len(made.body.tickets)) == (number, rounds)  # type: ignore[union-attr]
    assert SET.lineage == RELEASED


def test_what_cannot_be_transferred() -> None:
    with pytest.raises(ArtifactError, match="mine@7: no such round; it has rounds 0 to 2"):
        moved(round=7)
    with pytest.raises(InputError, match=r"`seed`: .* is not a whole number from 0 to 4,611"):
        TransferOptions(seed=2**62)


# --- import ---


@dataclass
class Stated:
    """What a file says of itself."""

    front: StatedFront | None = None
    id: str = "ef" * 32
    name: str = "theirs"
    provenance: ProvenanceKind = "dp"
    lineage: Lineage = RELEASED


class Front:
    """Of a map that has tensors, or that has none."""

    text = "unit:1"

    def __init__(self, has_tensors: bool) -> None:
        self.has_tensors = has_tensors

    def restored(self) -> FeatureMap | None:
        return None if self.has_tensors else make_feature_map("unit", (6, 6), (0.0, 255.0))


def test_a_file_speaks_for_itself() -> None:
    ledger = Ledger()
    made = imported_set(BODY, images(), Stated(), ImportOptions(), ledger, file="a/t.safetensors")
    assert (made.provenance, made.lineage, ledger.entries) == ("dp", RELEASED, ())
    assert made.parent == Parent("ef" * 32, "theirs", None, "export and import")
    assert (made.name, made.criterion, made.config) == ("t", "imported", {"imported": "t.safetensors"})
    with pytest.raises(InputError, match="`provenance`: t says dp of itself; leave `provenance` out"):
        imported_set(BODY, images(), Stated(), ImportOptions(provenance="public"), ledger, file="t")


def test_of_others_it_is_said_and_entered() -> None:
    for provenance, kinds in (("public", ["public"]), ("private", ["release"]), ("data-free", [])):
        ledger, options = Ledger(), ImportOptions(provenance=provenance, name="n")
        made = imported_set(BODY, images(), None, options, ledger, file="t")
        assert (made.provenance, made.name, made.parent) == (provenance, "n", None)
        assert made.lineage.entries == ledger.entries
        assert [entry.kind for entry in ledger.entries] == kinds
        assert all(entry.part == ledger.part(images()) for entry in ledger.entries)
        assert [bool(entry.of(Unprotected)) for entry in ledger.entries] == [kind == "release" for kind in kinds]
    message = refused(imported_set, BODY, images(), None, ImportOptions(), Ledger(), file="t")
    assert message.startswith("`provenance` is missing: t does not say what its masks and weights depend on")


def test_what_stands_in_front_of_an_imported_network() -> None:
    def front(origin: Stated | None, features: str | None = None) -> tuple[Dataset, list[str]]:
        return front_of_import(images(), origin, features, file="t")

    dataset, notes = front(Stated())
    assert (dataset.feature_map, notes) == (None, [])
    assert front(None)[1][0].startswith("t does not say what stands in front of its network;")
    for origin, features in (
        (None, "unit"),
        (Stated(Front(has_tensors=False)), None),
        (Stated(Front(has_tensors=False)), "unit"),
    ):
        dataset, notes = front(origin, features)
        assert (dataset.feature_map is None, notes) == (False, [])
    tensors = "t: its network stands behind unit:1 features with tensors of their own, which the file does not hold; "
    other = "is not what the network in t stands behind, unit:1; leave it out"
    for origin, features, message in (
        (Stated(), "unit", "`features`: the network in t takes records as they are; leave it out"),
        (Stated(Front(True)), None, tensors),
        (Stated(Front(True)), "unit", tensors),
        (Stated(Front(False)), "scatter:1,2", f"`features`: scatter:1,2 {other}"),
        (Stated(Front(False)), "none", f"`features`: none {other}"),
    ):
        assert refused(front, origin, features).startswith(message)


# --- weights handed in ---


class Layers(torch.nn.Module):
    """Two layers, whose last is for other classes than that of the tickets."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(36, 4), torch.nn.Linear(4, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x.flatten(1)).relu())


def other_layers() -> Layers:
    return Layers(2)


def own_tickets(model: Any = Layers, **said: Any) -> TicketSet:
    spec = for_records(own_model(model, **said), images())
    made = without_data(spec, GenerationConfig(rounds=1, prune=(0.3,), criterion="random"))
    return replace(SET, body=made, provenance="data-free", made_from=Lineage())


TRAINED = Lineage((replace(MOMENTS, id="7" * 64),))


@pytest.mark.parametrize("mode", ["ticket", "mask-only", "shuffled-mask", "random"])
@pytest.mark.parametrize(
    "handed_in", [{"code": other_layers()}, {"code": other_layers, "start": other_layers().state_dict()}]
)
def test_weights_handed_in_are_declared(mode: str, handed_in: dict[str, Any]) -> None:
    tickets, records, options = own_tickets(), images(classes=2), TransferOptions(mode=mode)
    code, start = handed_in["code"], {name: value for name, value in handed_in.items() if name != "code"}
    message = refused(transfer, tickets, records, options, model=own_model(code, **start))
    assert message.startswith("`start_provenance` is missing: say what the weights")
    made = transfer(tickets, records, options, model=own_model(code, start_provenance="public", **start))
    assert [note for note in made.notes if "were declared public; that was not checked" in note]
    assert made.tickets.provenance == "data-free"
    behind = transfer(tickets, records, options, model=own_model(code, start_lineage=TRAINED, **start)).tickets
    assert (behind.provenance, behind.lineage.entries) == ("dp", TRAINED.entries)


def test_what_was_declared_of_the_tickets_stays_declared() -> None:
    """A class that is drawn takes the place of an instance whose weights were declared public: those are kept."""
    tickets = own_tickets(Layers(), start_provenance="public")
    made = transfer(tickets, images(classes=2), TransferOptions(), model=own_model(other_layers))
    spec = made.tickets.body.spec
    assert isinstance(spec, OwnNetwork)
    assert spec.start_provenance == "public"
    assert [note for note in made.notes if "were declared public" in note]
