"""Feature maps in ticket sets and runs: what is saved comes back, and whatever was done to it is refused in one line."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dpltm.errors import ArtifactError
from dpltm.features.feature_map import FeatureMap, make_feature_map
from dpltm.features.network import FrozenNetwork
from dpltm.features.normalisation import ChannelStatistics, Projection
from dpltm.generation import GenerationConfig, without_data
from dpltm.masks import Mask
from dpltm.models import ModelSpec, build
from dpltm.privacy.event_json import ref_to_json
from dpltm.privacy.events import DatasetRef, GuaranteeEvent, TrainingEvent
from dpltm.privacy.mechanisms import Guarantee, NoisySgd
from dpltm.tickets.feature_files import NAME, read_map, write_map
from dpltm.tickets.run import load_run, write_run
from dpltm.tickets.ticket_set import load_ticket_set
from sets import store_set

SOURCE = DatasetRef("other", "cd" * 16, "01234567", 3, 500, "places")
TIME = "2026-01-02T03:04:05Z"
EVENTS = (
    GuaranteeEvent(SOURCE, Guarantee(0.1), "count of right answers", time=TIME),
    TrainingEvent(SOURCE, NoisySgd(0.25, 60, 3.5), "clip(C=1)", 610, time=TIME),
)
NETWORK = ModelSpec("mlp:7", 80, 4)


def maps() -> dict[str, FeatureMap]:
    plain = make_feature_map("scatter:2,3", (8, 10), (0.0, 255.0))
    count = plain.feature_shape[-1]
    values = torch.rand(2, count, generator=torch.Generator().manual_seed(0))
    statistics = replace(plain, source=SOURCE, statistics=ChannelStatistics(values[0], values[1]))
    projection = Projection(torch.rand(plain.features), torch.rand(5, plain.features))
    projected = replace(statistics, projection=projection)
    weights = {name: value.detach() for name, value in build(NETWORK, 1).named_parameters()}
    return {
        "plain": plain,
        "colours": make_feature_map("scatter:1,2", (8, 10, 3), (-1.0, 1.0)),
        "statistics": statistics,
        "projected": projected,
        "centred": projected.centred_at(torch.rand(5)),
        "network": FeatureMap(FrozenNetwork(NETWORK, weights), (8, 10), (0.0, 255.0), source=SOURCE, events=EVENTS),
    }


KINDS = ("plain", "colours", "statistics", "projected", "centred", "network")
WHERE = Path("x/tickets.json")


@pytest.fixture
def there(tmp_path, monkeypatch):
    """A folder ``x`` in the working folder."""
    monkeypatch.chdir(tmp_path)
    Path("x").mkdir()
    return Path("x")


def refused(body, folder=Path("x")) -> str:
    with pytest.raises(ArtifactError) as caught:
        read_map(folder, WHERE, body)
    message = str(caught.value)
    assert "\n" not in message
    assert message.isprintable()
    assert len(message) < 500
    return message


NO_MAP = f"{WHERE}: feature_map is not the description of a feature map"
NO_MATCH = f"{WHERE}: feature_map: the id does not match; it is damaged or was changed"


# --- what is saved comes back ---


@pytest.mark.parametrize("kind", KINDS)
def test_round_trip(there, kind):
    made = maps()[kind]
    body = json.loads(json.dumps(write_map(there, made)))
    assert sorted(path.name for path in there.iterdir()) == ([NAME] if made.tensors else [])
    found = read_map(there, WHERE, body)
    for part in ("id", "text", "shape", "bounds", "source", "events", "network", "features"):
        assert getattr(found, part) == getattr(made, part)
    assert found.tensors.keys() == made.tensors.keys()
    assert all(torch.equal(found.tensors[name], made.tensors[name]) for name in made.tensors)
    x = np.random.default_rng(0).random((3, *made.shape))
    assert torch.equal(found(x), made(x))


def test_none_at_all(there):
    assert write_map(there, None) is None
    assert list(there.iterdir()) == []
    assert read_map(there, WHERE, None) is None


def test_tensors_are_plain_safetensors(there, raw):
    made = maps()["statistics"]
    write_map(there, made)
    stored = raw.read(there / NAME)
    assert stored.keys() == {"mean", "deviation"}
    assert np.array_equal(stored["mean"], made.tensors["mean"].numpy())


@pytest.mark.parametrize("kind", KINDS)
def test_ticket_sets(there, kind):
    made = maps()[kind]
    body = without_data(
        ModelSpec("mlp:6", made.features, 3), GenerationConfig(rounds=1, prune=(0.3,), criterion="random")
    )
    saved = store_set(
        there / "s",
        body,
        name="n",
        criterion="random",
        provenance="data-free",
        source=None,
        config={},
        feature_map=made,
    )
    loaded = load_ticket_set(there / "s")
    assert loaded.feature_map.id == saved.feature_map.id == made.id
    assert (loaded.feature_map.source, loaded.feature_map.events) == (made.source, made.events)
    assert (
        f"`{made.text}` features of records of shape {'x'.join(map(str, made.shape))}"
        in (there / "s/README.md").read_text()
    )


@pytest.mark.parametrize("kind", KINDS)
def test_runs(there, kind):
    made = maps()[kind]
    model = build(ModelSpec("mlp:6", made.features, 3), 0)
    config = {"model": "mlp:6", "features": made.features, "classes": 3, "bounds": [0.0, 1.0]}
    (there / "r").mkdir()
    write_run(there / "r", config, model, Mask.dense(model), [], made)
    assert load_run(there / "r").feature_map.id == made.id
    document = json.loads((there / "r/config.json").read_text())
    (there / "r/config.json").write_text(json.dumps({**document, "feature_map": None}))
    if made.tensors:
        with pytest.raises(ArtifactError) as caught:
            load_run(there / "r")
        assert str(caught.value) == f"x/r/{NAME}: there, though config.json knows of no such features; remove it"
    else:
        assert load_run(there / "r").feature_map is None


def test_a_network_of_another_width_than_its_features(there):
    made = maps()["plain"]
    body = without_data(
        ModelSpec("mlp:6", made.features - 1, 3), GenerationConfig(rounds=1, prune=(0.3,), criterion="random")
    )
    store_set(
        there / "s",
        body,
        name="n",
        criterion="random",
        provenance="data-free",
        source=None,
        config={},
        feature_map=made,
    )
    with pytest.raises(ArtifactError) as caught:
        load_ticket_set(there / "s")
    words = f"feature_map: gives {made.features} features, the network takes {made.features - 1}"
    assert str(caught.value) == f"x/s/tickets.json: {words}"
    model = build(ModelSpec("mlp:6", made.features - 1, 3), 0)
    config = {"model": "mlp:6", "features": made.features - 1, "classes": 3, "bounds": [0.0, 1.0]}
    (there / "r").mkdir()
    write_run(there / "r", config, model, Mask.dense(model), [], made)
    with pytest.raises(ArtifactError) as caught:
        load_run(there / "r")
    assert str(caught.value) == f"x/r/config.json: {words.replace('feature_map:', 'feature_map')}"


def test_runs_of_before_have_no_map(there):
    model = build(ModelSpec("mlp:6", 5, 3), 0)
    write_run(there, {"model": "mlp:6", "features": 5, "classes": 3, "bounds": [0, 1]}, model, Mask.dense(model), [])
    document = json.loads((there / "config.json").read_text())
    assert document.pop("feature_map") is None
    (there / "config.json").write_text(json.dumps(document))
    assert load_run(there).feature_map is None


# --- what was changed ---

CHANGES = {
    "plain": [
        ("id", "0" * 64),
        ("text", "scatter:2,4"),
        ("shape", [10, 8]),
        ("shape", [8, 10, 1]),
        ("bounds", [0.0, 254.0]),
    ],
    "statistics": [("id", ""), ("id", None), ("shape", [80, 10]), ("bounds", [1.0, 255.0])],
    "network": [
        ("shape", [80]),
        ("bounds", [-1.0, 255.0]),
        ("id", 7),
    ],
}


@pytest.mark.parametrize(
    ("kind", "key", "value"), [(kind, *change) for kind, rows in CHANGES.items() for change in rows]
)
def test_another_map_than_the_id_says(there, kind, key, value):
    body = write_map(there, maps()[kind])
    assert refused({**body, key: value}) == NO_MATCH


@pytest.mark.parametrize("kind", ["statistics", "network"])
def test_other_tensors(there, raw, kind):
    made = maps()[kind]
    body = write_map(there, made)
    stored = raw.read(there / NAME)
    for name in stored:
        other = {key: value.copy() for key, value in stored.items()}
        other[name].reshape(-1)[-1] += 1e-3
        raw.write(there / NAME, other)
        assert refused(body) == NO_MATCH
        for bad in (np.nan, np.inf, -np.inf):
            other[name].reshape(-1)[-1] = bad
            raw.write(there / NAME, other)
            assert refused(body) == NO_MAP
    raw.write(there / NAME, stored)
    assert read_map(there, WHERE, body).id == made.id


@pytest.mark.parametrize("kind", ["statistics", "network"])
def test_damaged_files(there, raw, kind):
    body = write_map(there, maps()[kind])
    path = there / NAME
    data, stored = path.read_bytes(), raw.read(path)
    name = sorted(stored)[0]
    raw.write(path, {key: value for key, value in stored.items() if key != name})
    assert refused(body).startswith(f"x/{NAME}: ")
    raw.write(path, {**stored, "more": np.zeros(1, dtype=np.float32)})
    assert refused(body) == f"x/{NAME}: tensor 'more': found ((1,), 'float32'), expected none"
    raw.write(path, {**stored, name: stored[name][..., None]})
    assert refused(body).startswith(f"x/{NAME}: tensor '{name}': found ((")
    raw.write(path, {**stored, name: stored[name].astype(np.float64)})
    assert refused(body).startswith(f"x/{NAME}: tensor '{name}': found ((")
    for place in (0, 9, len(data) // 2):
        path.write_bytes(data[:place])
        assert refused(body).startswith(f"x/{NAME}: ")
    path.write_bytes(data + b"\0" * 100_000)
    assert refused(body).startswith(f"x/{NAME}: ")
    path.write_bytes(b"\xff" * len(data))
    assert refused(body) == f"x/{NAME}: not a valid safetensors file"
    path.unlink()
    assert refused(body) == f"x/{NAME}: cannot be read: No such file or directory"
    path.symlink_to("/etc/passwd")
    assert refused(body).startswith(f"x/{NAME}: ")
    path.unlink()
    path.mkdir()
    assert refused(body).startswith(f"x/{NAME}: ")


@pytest.mark.parametrize("kind", ["file", "folder", "dangling link"])
def test_a_file_of_a_map_that_there_is_not(there, kind):
    path = there / NAME
    {"file": path.touch, "folder": path.mkdir, "dangling link": lambda: path.symlink_to("nowhere")}[kind]()
    assert refused(None) == f"x/{NAME}: there, though tickets.json knows of no such features; remove it"


def test_a_file_of_tensors_that_a_map_does_not_have(there, raw):
    body = write_map(there, maps()["plain"])
    raw.write(there / NAME, {"mean": np.zeros(3, dtype=np.float32)})
    assert refused(body).startswith(f"x/{NAME}: ")


# --- hostile values ---

BAD = {
    "text": ["", None, 7, [], {}, "network", "scatter:99", "scatter:2,3,4", "x" * 10_000],
    "shape": [
        *(None, {}, "8x10", 80, [], [8, 10, 3, 1], [0, 10], [-8, 10], [8.0, 10.0], ["8", "10"], [True, 10], [2**70, 2]),
        *([10_001, 8], [[8], 10], [4, 10], [8, 10, 5]),
    ],
    "bounds": [
        *(None, {}, "", 7, [], [0], [0, 1, 2], [1, 0], [0, 0], ["a", "b"], [None, 1], [float("nan"), 1]),
        *([0, math.inf], [-math.inf, 0], [0, 10**400]),
    ],
    "source": [
        *({**ref_to_json(SOURCE), "cut": cut} for cut in (None, "", "hash", 7, ["places"])),
        *({}, [], "other", 7, {"name": "a"}, {**ref_to_json(SOURCE), "more": 1}),
        *({**ref_to_json(SOURCE), "start": "3"}, {**ref_to_json(SOURCE), "stop": None}),
    ],
    "events": [None, {}, "x", 7],
    "network": [
        *([], "mlp:7", 7, {}, {"model": "mlp:7"}, {"model": "mlp:7", "features": 80, "classes": 4, "more": 1}),
        *({"model": name, "features": 80, "classes": 4} for name in ("os", "", None, 7, "mlp:0", "mlp:99999,99999", "cnn")),
        *({"model": "mlp:7", "features": size, "classes": 4} for size in (0, -1, 2**63, "80", None, 79, True, 80.0)),
    ],
    "statistics": [None, 0, 1, "yes", []],
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "key"),
    # a network has no statistics, and that key decides nothing
    [
        (kind, key)
        for kind in ("plain", "statistics", "network")
        for key in BAD
        if (kind, key) != ("network", "statistics")
    ],
)
def test_hostile_values(there, kind, key):
    body = write_map(there, maps()[kind])
    for value in BAD[key]:
        if body[key] == value and type(body[key]) is type(value):
            continue
        message = refused({**body, key: value})
        told = (
            (f"x/{NAME}: ", f"{WHERE}: feature_map: reference to records: ") if key == "source" else (f"x/{NAME}: ",)
        )
        assert message in (NO_MAP, NO_MATCH) or message.startswith(told), value


@pytest.mark.parametrize("text", ["none", "network:x"])
def test_texts_of_another_kind(there, text):
    body = write_map(there, maps()["plain"])
    with pytest.raises(ArtifactError):
        read_map(there, WHERE, {**body, "text": text})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("events", value) for value in ([7], [{}], [None], [{"kind": "os"}], [{"kind": "training"}])),
        *(
            ("source", {**ref_to_json(SOURCE), **change})
            for change in ({"start": 500}, {"stop": -1}, {"cut": "whole"}, {"cut": "values", "stop": 2**40})
        ),
    ],
)
def test_a_refusal_names_the_file(there, key, value):
    assert refused({**write_map(there, maps()["network"]), key: value}).startswith(f"{WHERE}: ")


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("plain", {"source": ref_to_json(SOURCE)}),
        ("plain", {"statistics": True}),
        ("statistics", {"source": None}),
        ("statistics", {"statistics": False}),
        ("network", {"source": None}),
        ("network", {"network": None}),
        ("network", {"text": "scatter:2,3"}),
    ],
)
def test_parts_that_do_not_go_together(there, kind, changes):
    body = write_map(there, maps()[kind])
    message = refused({**body, **changes})
    assert message == NO_MAP or message.startswith(f"x/{NAME}: ")


def test_events_without_a_network(there):
    body, spent = (write_map(there, maps()[kind]) for kind in ("plain", "network"))
    shutil.rmtree(there)
    there.mkdir()
    assert refused({**body, "events": spent["events"]}) == NO_MAP


def test_keys(there):
    body = write_map(there, maps()["plain"])
    for key in body:
        assert refused({name: value for name, value in body.items() if name != key}) == NO_MAP
    assert refused({**body, "more": 1}) == NO_MAP


@pytest.mark.usefixtures("there")
@pytest.mark.parametrize("body", [[], {}, "", 7, True, False, "scatter:2,8", [1], 1.5], ids=repr)
def test_no_description_at_all(body):
    assert refused(body) == NO_MAP


def test_nothing_larger_than_what_belongs_there_is_read(there):
    """A description of huge tensors is refused by the file's size; a huge file by what belongs there."""
    body = write_map(there, maps()["network"])
    wide = {"model": "mlp:90000", "features": 80, "classes": 4}
    assert refused({**body, "network": wide}).startswith(f"x/{NAME}: ")
    with (there / NAME).open("r+b") as stream:
        stream.truncate(2**40)
    assert refused(body).startswith(f"x/{NAME}: ")
