"""Ticket sets of pruned models: what a file says of itself, and what is declared."""

from typing import Any

import numpy as np
import pytest
import torch

from dpltm.errors import InputError
from dpltm.features.feature_map import make_feature_map
from dpltm.networks import ModelSpec
from dpltm.options.tickets import ImportOptions
from dpltm.privacy.ledger import Ledger
from dpltm.privacy.mechanisms import Unprotected
from dpltm.pruning.generation import GenerationConfig, without_data
from dpltm.records import Dataset, from_arrays
from dpltm.tickets.export import Origin
from dpltm.tickets.feature_files import map_json
from dpltm.tickets.workbench.stages import front_of_import, imported_set
from dpltm.training.artifacts import Parent
from refusals import refused
from set_entries import LINEAGES

BODY = without_data(ModelSpec("mlp:8", 36, 3), GenerationConfig(rounds=2, prune=(0.3,), criterion="random"))
RELEASED = LINEAGES["dp"]


def images() -> Dataset:
    x = np.random.default_rng(0).integers(0, 256, (30, 6, 6), dtype=np.uint8)
    return from_arrays(x, np.arange(30) % 3)


def stated(front: Any = None) -> Origin:
    return Origin("ef" * 32, "theirs", "dp", RELEASED, front)


UNIT = make_feature_map("unit", (6, 6), (0.0, 255.0))
PLAIN, WITH_TENSORS = map_json(UNIT), map_json(UNIT.centred_at(torch.zeros(36)))


def test_a_file_speaks_for_itself() -> None:
    ledger = Ledger()
    made = imported_set(BODY, images(), stated(), ImportOptions(), ledger, file="a/t.safetensors")
    assert (made.provenance, made.lineage, ledger.entries) == ("dp", RELEASED, ())
    assert made.parent == Parent("ef" * 32, "theirs", None, "export and import")
    assert (made.name, made.criterion, made.config) == ("t", "imported", {"imported": "t.safetensors"})
    with pytest.raises(InputError, match="`provenance`: t says dp of itself; leave `provenance` out"):
        imported_set(BODY, images(), stated(), ImportOptions(provenance="public"), ledger, file="t")


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
    def front(origin: Origin | None, features: str | None = None) -> tuple[Dataset, list[str]]:
        return front_of_import(images(), origin, features, file="t")

    dataset, notes = front(stated())
    assert (dataset.feature_map, notes) == (None, [])
    assert front(None)[1][0].startswith("t does not say what stands in front of its network;")
    for origin, features in ((None, "unit"), (stated(PLAIN), None), (stated(PLAIN), "unit")):
        dataset, notes = front(origin, features)
        assert (dataset.feature_map is None, notes) == (False, [])
    tensors = "t: its network stands behind unit:1 features with tensors of their own, which the file does not hold; "
    other = "is not what the network in t stands behind, unit:1; leave it out"
    for origin, features, message in (
        (stated(), "unit", "`features`: the network in t takes records as they are; leave it out"),
        (stated(WITH_TENSORS), None, tensors),
        (stated(WITH_TENSORS), "unit", tensors),
        (stated(PLAIN), "scatter:1,2", f"`features`: scatter:1,2 {other}"),
        (stated(PLAIN), "none", f"`features`: none {other}"),
    ):
        assert refused(front, origin, features).startswith(message)
