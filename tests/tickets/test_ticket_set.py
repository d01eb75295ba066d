"""Ticket sets: what is saved comes back, and the files say what docs/formats.md says, read without the package."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from dpltm.errors import ArtifactError
from dpltm.generation import GenerationConfig, without_data
from dpltm.models import ModelSpec
from dpltm.privacy.events import DatasetRef
from dpltm.tickets.ticket_set import load_ticket_set
from sets import store_set


def same_tensors(one, other):
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one
    )


def test_round_trip(tmp_path, tickets, save):
    saved, loaded = save(tmp_path / "s"), load_ticket_set(tmp_path / "s")
    for field in ("path", "id", "name", "criterion", "provenance", "source", "events", "parent"):
        assert getattr(loaded, field) == getattr(saved, field)
    assert loaded.config == json.loads(json.dumps(saved.config))
    assert loaded.body.spec == tickets.spec
    assert same_tensors(loaded.body.theta0, tickets.theta0)
    assert [ticket.round for ticket in loaded.body.tickets] == [0, 1, 2, 3]
    for back, ticket in zip(loaded.body.tickets, tickets.tickets, strict=True):
        assert back.accuracy == ticket.accuracy
        assert back.mask.same_as(ticket.mask)
        assert same_tensors(back.predictor, ticket.predictor)


def test_document(tmp_path, tickets, save, raw):
    save(tmp_path / "s")
    document = json.loads((tmp_path / "s/tickets.json").read_text())
    assert set(document) == {
        *("format", "schema", "id", "predictors_id", "name", "created", "dpltm", "model", "features", "classes"),
        *("criterion", "provenance", "source", "events", "draws", "parent", "config", "card", "tickets", "digest"),
        "feature_map",
    }
    assert (document["format"], document["schema"], document["name"]) == ("dpltm-ticket-set", 3, "a name")
    assert (document["events"], document["draws"], document["parent"]) == ([], [], None)
    assert document["feature_map"] is None
    assert document["card"] == hashlib.sha256((tmp_path / "s/README.md").read_bytes()).hexdigest()
    assert document["digest"] == raw.digest(document)
    assert (document["model"], document["features"], document["classes"]) == ("mlp:8", 64, 10)
    assert (document["criterion"], document["provenance"]) == ("magnitude", "public")
    assert document["source"] == {
        "name": "digits",
        "id": "ab" * 16,
        "key_id": "01234567",
        "start": 0,
        "stop": 719,
        "cut": "places",
    }
    assert document["config"]["prune"] == [0.3, 0.4]
    for row, ticket in zip(document["tickets"], tickets.tickets, strict=True):
        weights = [value for value in ticket.mask.values() if value.ndim == 2]
        assert row == {
            "round": ticket.round,
            "density": sum(int(value.sum()) for value in weights) / 592,
            "live": sum(int(value.sum()) for value in ticket.mask.values()),
            "accuracy": ticket.accuracy,
        }


def test_folder(tmp_path, save):
    save(tmp_path / "s")
    assert sorted(path.name for path in (tmp_path / "s").iterdir()) == [
        "README.md",
        "masks.safetensors",
        "predictors.safetensors",
        "theta0.safetensors",
        "tickets.json",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["s"]
    assert all(path.stat().st_mode & 0o777 == 0o644 for path in (tmp_path / "s").iterdir())
    assert (tmp_path / "s").stat().st_mode & 0o777 == 0o755


def test_tensors_on_disk(tmp_path, tickets, save, raw):
    save(tmp_path / "s")
    theta0, masks, predictors = (
        raw.read(tmp_path / "s" / f"{name}.safetensors") for name in ("theta0", "masks", "predictors")
    )
    assert theta0.keys() == tickets.theta0.keys()
    assert len(masks) == len(predictors) == 4 * 4
    for name, value in tickets.theta0.items():
        assert theta0[name].dtype == np.float32
        assert np.array_equal(theta0[name], value.numpy())
        for ticket in tickets.tickets:
            packed, mask = masks[f"{ticket.round}/{name}"], ticket.mask[name].numpy()
            assert packed.shape == (-(-mask.size // 8),)
            assert np.array_equal(raw.unpack(packed, mask.shape), mask)
            live = predictors[f"{ticket.round}/{name}"]
            assert np.array_equal(live, ticket.predictor[name].numpy()[mask])


def test_padding_bits_are_zero(tmp_path, save, raw):
    """fc2.bias has ten values in two bytes; all ten live, six bits of padding."""
    save(tmp_path / "s")
    assert raw.read(tmp_path / "s/masks.safetensors")["3/fc2.bias"].tolist() == [0b11111111, 0b11000000]


def test_ids_by_the_document(tmp_path, save, raw):
    saved = save(tmp_path / "s")
    document = json.loads((tmp_path / "s/tickets.json").read_text())
    assert document["id"] == saved.id == raw.set_id(tmp_path / "s")
    assert document["predictors_id"] == raw.content_id(raw.read(tmp_path / "s/predictors.safetensors"))


def test_id_depends_on_content_only(tmp_path, save, raw, make_tickets):
    one = save(tmp_path / "a")
    two = save(tmp_path / "deeper/b", make_tickets(5), name="other", provenance="private")
    other = save(tmp_path / "c", make_tickets(6))
    assert one.id == two.id != other.id
    for name in ("theta0", "masks", "predictors"):  # the same tensors, written in another order
        path = tmp_path / f"a/{name}.safetensors"
        tensors = raw.read(path)
        before = path.read_bytes()
        raw.write(path, dict(reversed(tensors.items())))
        assert path.read_bytes() != before
    shutil.move(tmp_path / "a", tmp_path / "moved")
    assert load_ticket_set(tmp_path / "moved").id == one.id


SCRIPT = """
import json, sys
from pathlib import Path
import torch
from dpltm.data import load, scale
from dpltm.models import build
from dpltm.tickets.ticket_set import load_ticket_set

torch.set_num_threads(1)
tickets, digits = load_ticket_set(Path(sys.argv[1])).body, load("digits")
x = torch.from_numpy(scale(digits.test.x, digits.bounds))
model, found = build(tickets.spec), []
for ticket in tickets.tickets:
    model.load_state_dict(ticket.predictor)
    found.append((model(x).argmax(1).numpy() == digits.test.y).mean())
print(json.dumps([float(value) for value in found]))
"""


def test_predictors_reproduce_their_accuracy_in_a_fresh_process(tmp_path, tickets, save):
    save(tmp_path / "s")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "s")], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    assert found == [ticket.accuracy for ticket in tickets.tickets]
    assert max(found) > 0.15  # they did learn something: chance is a tenth, and 0.15 is three deviations more


def test_private_accuracies_are_kept_beside_the_set(tmp_path, tickets, save):
    save(tmp_path / "s", provenance="private")
    loaded = load_ticket_set(tmp_path / "s")
    assert [ticket.accuracy for ticket in loaded.body.tickets] == [None] * 4
    side = tmp_path / "s.private.json"
    assert side.stat().st_mode & 0o777 == 0o600
    assert json.loads(side.read_text()) == {
        "format": "dpltm-private",
        "schema": 1,
        "id": loaded.id,
        "accuracy": {str(ticket.round): ticket.accuracy for ticket in tickets.tickets},
    }
    text = b"".join(path.read_bytes() for path in (tmp_path / "s").iterdir())
    for ticket in tickets.tickets:
        assert repr(ticket.accuracy).encode() not in text
        assert f"{ticket.accuracy:.4f}".encode() not in text


@pytest.mark.parametrize("provenance", ["public", "private"])
def test_card(tmp_path, tickets, save, provenance):
    saved = save(tmp_path / "s", provenance=provenance)
    card = (tmp_path / "s/README.md").read_text()
    assert card.startswith("# Lottery tickets: a name\n")
    assert saved.id in card
    assert f"provenance: **{provenance}**" in card
    assert ("withheld" in card) == (provenance == "private")
    assert (f"{tickets.tickets[3].accuracy:.4f}" in card) == (provenance == "public")


def test_saving_over_something_is_refused(tmp_path, save):
    save(tmp_path / "s")
    before = {path: path.read_bytes() for path in (tmp_path / "s").iterdir()}
    with pytest.raises(ArtifactError) as caught:
        save(tmp_path / "s", provenance="private")
    assert str(caught.value) == f"`out`: {tmp_path / 's'} exists already; choose another name or remove it first"
    assert {path: path.read_bytes() for path in (tmp_path / "s").iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_round(tmp_path, save):
    saved = save(tmp_path / "s")
    assert saved.ticket(3).round == 3
    for number in (-1, 4):
        with pytest.raises(ArtifactError) as caught:
            saved.ticket(number)
        assert str(caught.value) == f"{tmp_path / 's'}@{number}: no such round; it has rounds 0 to 3"


def test_fifteen_rounds_of_the_papers_network_take_little_room(tmp_path):
    """784-300-100-10 and 16 masks without predictors: at most 1.7 MB (theta0 alone is 1.07)."""
    spec = ModelSpec("mlp:300,100", 784, 10)
    config = GenerationConfig(criterion="init-magnitude")
    made = without_data(spec, config)
    rounds = [replace(ticket, accuracy=0.5) for ticket in made.tickets]
    source = DatasetRef("mnist", "ab" * 16, "01234567", 0, 60000, "places")
    store_set(
        tmp_path / "s",
        replace(made, tickets=tuple(rounds)),
        name="mnist",
        criterion="magnitude",
        provenance="public",
        source=source,
        config=asdict(config),
    )
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "s").iterdir()}
    assert "predictors.safetensors" not in sizes
    assert sum(sizes.values()) <= 1.7e6
    assert sizes["masks.safetensors"] < 16 * (266_610 / 8 + 600)
    loaded = load_ticket_set(tmp_path / "s")
    assert loaded.ticket(15).mask.same_as(rounds[15].mask)
    assert loaded.config == json.loads(json.dumps(asdict(config)))
