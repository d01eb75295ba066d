"""Ticket sets made from others, and from pruned models: their lineage goes along."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from dpltm.errors import ArtifactError, InputError
from dpltm.networks import ModelSpec
from dpltm.networks.own import own_model
from dpltm.networks.own_network import for_records
from dpltm.options.tickets import TransferOptions
from dpltm.privacy.entry import Lineage
from dpltm.pruning.generation import GenerationConfig, without_data
from dpltm.records import Dataset, from_arrays
from dpltm.training.artifacts import Draws, Parent, TicketSet
from dpltm.verbs.transfer import TransferredSet, transfer
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
    with pytest.raises(InputError, match=r"has no projection to drop"):
        transfer(
            own_tickets(), images(classes=2), TransferOptions(mode="drop-projection"), model=own_model(other_layers)
        )


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
    assert spec.start_provenance == "public"
    assert [note for note in made.notes if "were declared public" in note]
