"""Feature maps in ticket sets and runs: what is saved comes back, and whatever was done to it is refused in one line."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dpltm.features.feature_map import FeatureMap, FrozenNetwork, make_feature_map
from dpltm.features.normalisation import ChannelStatistics, Projection
from dpltm.networks import ModelSpec, build
from dpltm.networks.masks import Mask
from dpltm.privacy.entry import Lineage, to_json
from dpltm.pruning.generation import GenerationConfig, weights_of, without_data
from dpltm.tickets import run as runs
from dpltm.tickets.feature_files import NAME, read_map, write_map
from dpltm.tickets.files import write_lineage
from dpltm.tickets.run import load_run, write_run
from dpltm.tickets.ticket_set import load_ticket_set
from hostile_values import MAPS
from refusals import told
from set_entries import LINEAGES
from sets import store_set

NETWORK = ModelSpec("mlp:7", 80, 4)


def maps() -> dict[str, FeatureMap]:
    draw = torch.Generator().manual_seed(0)
    plain = make_feature_map("scatter:2,3", (8, 10), (0.0, 255.0))
    mean, deviation = torch.rand(2, plain.feature_shape[-1], generator=draw)
    statistics = replace(plain, lineage=LINEAGES["public"], statistics=ChannelStatistics(mean, deviation))
    projection = Projection(torch.rand(plain.features, generator=draw), torch.rand(5, plain.features, generator=draw))
    projected = replace(statistics, projection=projection)
    front = FrozenNetwork(NETWORK, weights_of(build(NETWORK, 1)))
    return {
        "plain": plain,
        "colours": make_feature_map("scatter:1,2", (8, 10, 3), (-1.0, 1.0)),
        "statistics": statistics,
        "projected": projected,
        "centred": projected.centred_at(torch.rand(5, generator=draw)),
        "network": FeatureMap(front, (8, 10), (0.0, 255.0), lineage=LINEAGES["dp"]),
    }


KINDS = maps()
WHERE = Path("x/tickets.json")
NO_MAP = f"{WHERE}: feature_map is not the description of a feature map"
NO_MATCH = f"{WHERE}: feature_map: the id does not match; it is damaged or was changed"


@pytest.fixture
def there(tmp_path, monkeypatch):
    """A folder ``x`` in the working folder."""
    monkeypatch.chdir(tmp_path)
    Path("x").mkdir()
    return Path("x")


def refused(body) -> str:
    return told(read_map, Path("x"), WHERE, body)


@pytest.mark.parametrize("kind", KINDS)
def test_round_trip(there, raw, kind):
    made = KINDS[kind]
    body = json.loads(json.dumps(write_map(there, made)))
    assert sorted(path.name for path in there.iterdir()) == ([NAME] if made.tensors else [])
    found = read_map(there, WHERE, body)
    for part in ("id", "text", "shape", "bounds", "lineage", "network", "features"):
        assert getattr(found, part) == getattr(made, part)
    x = np.random.default_rng(0).random((3, *made.shape))
    assert torch.equal(found(x), made(x))
    if made.tensors:
        stored = raw.read(there / NAME)
        assert stored.keys() == made.tensors.keys()
        assert all(np.array_equal(stored[name], made.tensors[name].numpy()) for name in stored)


def saved_set(folder, made, features):
    config = GenerationConfig(rounds=1, prune=(0.3,), criterion="random")
    said = {"name": "n", "criterion": "random", "provenance": "data-free", "config": {}}
    return store_set(folder, without_data(ModelSpec("mlp:6", features, 3), config), feature_map=made, **said)


def saved_run(folder, made, features):
    model, settings = build(ModelSpec("mlp:6", features, 3), 0), {"classes": 3, "bounds": [0.0, 1.0]}
    folder.mkdir()
    mask = Mask.dense(model)
    write_run(folder, {"model": "mlp:6", "features": features, **settings}, model, mask, [], made)
    write_lineage(folder, made.lineage, runs.weights_of(model, mask))


@pytest.mark.parametrize("kind", ["plain", "centred", "network"])
def test_sets_and_runs_have_it(there, raw, kind):
    made = KINDS[kind]
    saved = saved_set(there / "s", made, made.features)
    saved_run(there / "r", made, made.features)
    loaded = load_ticket_set(there / "s").feature_map
    assert loaded.id == saved.feature_map.id == made.id == load_run(there / "r").feature_map.id
    assert loaded.lineage == made.lineage
    shown = f"`{made.text}` features of records of shape {'x'.join(map(str, made.shape))}"
    assert shown in (there / "s/README.md").read_text()
    raw.edit(there / "r/config.json", signed=False, feature_map=...)  # as runs of before had it
    if made.tensors:
        unknown = "there, though config.json knows of no such features; remove it"
        assert told(load_run, there / "r") == f"x/r/{NAME}: {unknown}"
    else:
        assert load_run(there / "r").feature_map is None


def test_a_network_of_another_width_than_its_features(there):
    made = KINDS["plain"]
    told_of = f"gives {made.features} features, the network takes {made.features - 1}"
    saved_set(there / "s", made, made.features - 1)
    assert told(load_ticket_set, there / "s") == f"x/s/tickets.json: feature_map: {told_of}"
    saved_run(there / "r", made, made.features - 1)
    assert told(load_run, there / "r") == f"x/r/config.json: feature_map {told_of}"


@pytest.mark.parametrize("kind", ["statistics", "centred", "network"])
def test_other_tensors(there, raw, kind):
    body = write_map(there, KINDS[kind])
    stored = raw.read(there / NAME)
    for name in stored:
        other = {key: value.copy() for key, value in stored.items()}
        for value, message in ((other[name].flat[-1] + 1e-3, NO_MATCH), (np.nan, NO_MAP), (-np.inf, NO_MAP)):
            other[name].flat[-1] = value
            raw.write(there / NAME, other)
            assert refused(body) == message
        raw.write(there / NAME, {**stored, name: stored[name][..., None]})
        assert refused(body).startswith(f"x/{NAME}: tensor '{name}': found ((")
    raw.write(there / NAME, {**stored, "more": np.zeros(1, dtype=np.float32)})
    assert refused(body) == f"x/{NAME}: tensor 'more': found ((1,), 'float32'), expected none"
    raw.write(there / NAME, stored)
    assert read_map(there, WHERE, body).id == KINDS[kind].id


def test_nothing_larger_than_what_belongs_there_is_read(there):
    """A description of huge tensors is refused by the file's size; a huge file by what belongs there."""
    body, path = write_map(there, KINDS["network"]), there / NAME
    wide = {"model": "mlp:90000", "features": 80, "classes": 4}
    assert refused({**body, "network": wide}).startswith(f"x/{NAME}: ")
    os.truncate(path, 2**40)
    assert refused(body).startswith(f"x/{NAME}: ")
    path.unlink()
    path.symlink_to("/etc/passwd")
    assert refused(body) == f"x/{NAME}: is a link, which is not followed"


def test_a_file_of_tensors_that_a_map_does_not_have(there):
    body = write_map(there, KINDS["plain"])
    (there / NAME).symlink_to("nowhere")
    for stated in (None, body):
        assert refused(stated) == f"x/{NAME}: there, though tickets.json knows of no such features; remove it"


GOOD = to_json(LINEAGES["public"])
HOSTILE = {**MAPS, "lineage": [*MAPS["lineage"], {**GOOD, "more": 1}]}


@pytest.mark.parametrize("key", HOSTILE)
@pytest.mark.parametrize("kind", ["plain", "statistics", "network"])
def test_hostile_values(there, kind, key):
    """Another map than the id says, or none at all; a refusal names the file."""
    body = write_map(there, KINDS[kind])
    assert refused({name: value for name, value in body.items() if name != key}) == NO_MAP
    for value in HOSTILE[key]:
        if body[key] == value and type(body[key]) is type(value):
            continue
        message = refused({**body, key: value})
        told_of = (f"{WHERE}: feature_map: ", f"x/{NAME}: ") if key == "lineage" else f"x/{NAME}: "
        assert message in (NO_MAP, NO_MATCH) or message.startswith(told_of), value


APART = {
    "plain": {"lineage": GOOD, "statistics": True},
    "statistics": {"lineage": to_json(Lineage()), "statistics": False},
    "projected": {"components": 4},
    "centred": {"centred": False, "components": None},
    "network": {"lineage": to_json(Lineage()), "network": None, "components": 5, "text": "scatter:2,3"},
}
"""Parts that do not go together with the others."""


@pytest.mark.parametrize("kind", APART)
def test_parts_that_do_not_go_together(there, kind):
    body = write_map(there, KINDS[kind])
    for key, value in APART[kind].items():
        message = refused({**body, key: value})
        assert message == NO_MAP or message.startswith((f"x/{NAME}: ", f"{WHERE}: feature_map: "))
    for other in ({**body, "events": []}, {**body, "more": 1}, [], {}, "", 7, False, "scatter:2,8"):
        assert refused(other) == NO_MAP
