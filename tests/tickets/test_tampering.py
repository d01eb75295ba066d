"""Whatever is done to a set's files, loading it either refuses in one clear line or returns what was saved."""

import json
import os
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from dpltm.privacy.entry import Lineage, to_json
from dpltm.tickets import tensors, ticket_set
from dpltm.tickets.ticket_set import check_text, load_ticket_set
from dpltm.training.artifacts import PROVENANCES, Parent
from refusals import told
from set_entries import DRAWN, LINEAGES, MADE, MOMENTS, SAID, TRAINED
from sets import store_set

PARENT = Parent("cd" * 32, "its parent", 2, "transfer to other records")
TEXT = "not a printable text of at most 200 characters"
CHANGED = "s/tickets.json: the id does not match theta0 and masks; the set is damaged or was changed"
TENSOR_FILES = ("theta0.safetensors", "masks.safetensors", "predictors.safetensors")


@pytest.fixture(scope="module")
def original(tmp_path_factory, tickets):
    """A saved set; tests work on copies."""
    folder = tmp_path_factory.mktemp("original") / "s"
    said = {"name": "n", "criterion": "dp-train", "provenance": "dp", "config": {"rounds": 3}, "parent": PARENT}
    store_set(folder, tickets, **said)
    return folder


@pytest.fixture
def folder(tmp_path, original, monkeypatch):
    """A copy named s in the working folder."""
    shutil.copytree(original, tmp_path / "s")
    monkeypatch.chdir(tmp_path)
    return Path("s")


@pytest.fixture
def edit(folder, raw):
    """Changes keys of tickets.json, with the digest made right, unless ``signed`` is false: so it is not what tells."""
    return lambda **changes: raw.edit(folder / "tickets.json", **changes)


@pytest.fixture
def rows(folder):
    return json.loads((folder / "tickets.json").read_text())["tickets"]


def refused():
    return told(load_ticket_set, Path("s"))


def test_flipped_mask_bit(folder, raw, edit):
    """The id tells; once it is made right, the predictors have another number of live values."""
    masks = raw.read(folder / "masks.safetensors")
    before = int(np.unpackbits(masks["1/fc1.weight"]).sum())
    masks["1/fc1.weight"][0] ^= 0x80
    after = int(np.unpackbits(masks["1/fc1.weight"]).sum())
    raw.write(folder / "masks.safetensors", masks)
    assert refused() == CHANGED
    edit(id=raw.set_id(folder))
    found = f"found (({before},), 'float32'), expected (({after},), 'float32')"
    assert refused() == f"s/predictors.safetensors: tensor '1/fc1.weight': {found}"


def test_masks_that_are_not_nested_with_the_id_made_right(folder, raw, edit):
    """A weight that round 1 dropped comes back in round 2, and another one goes, so that every count is as before."""
    masks = raw.read(folder / "masks.safetensors")
    one, two = (np.unpackbits(masks[f"{number}/fc1.weight"]) for number in (1, 2))
    two[np.flatnonzero(one == 0)[0]], two[np.flatnonzero(two)[0]] = 1, 0
    masks["2/fc1.weight"] = np.packbits(two)
    raw.write(folder / "masks.safetensors", masks)
    assert refused() == CHANGED
    edit(id=raw.set_id(folder))
    assert refused() == "s/tickets.json: the mask of round 2 is not nested in that of round 1"


@pytest.mark.parametrize(("name", "value"), [("fc1.weight", np.nan), ("fc2.bias", -np.inf)])
def test_starting_weights_that_are_not_finite(folder, raw, edit, tickets, save, name, value):
    theta0 = {key: tensor.clone() for key, tensor in tickets.theta0.items()}
    theta0[name].view(-1)[1] = value
    message = told(save, Path("a"), replace(tickets, theta0=theta0))
    assert message == f"`lr`: {name}: a starting weight is not finite"
    assert not Path("a").exists()
    stored = raw.read(folder / "theta0.safetensors")
    stored[name].reshape(-1)[1] = value
    raw.write(folder / "theta0.safetensors", stored)
    edit(id=raw.set_id(folder))
    assert refused() == f"s/theta0.safetensors: {name}: a starting weight is not finite"


def test_rows(edit, rows):
    for key, value in (("live", 609), ("live", True), ("density", 0.5), ("density", "1.0")):
        edit(tickets=[{**rows[0], key: value}, *rows[1:]])
        wrong = "its round, live or density disagrees with its place and its mask"
        assert refused() == f"s/tickets.json: tickets[0]: {wrong}"
    for value in (-0.1, 1.1):
        edit(tickets=[rows[0], {**rows[1], "accuracy": value}, *rows[2:]])
        assert refused() == f"s/tickets.json: tickets[1]: accuracy {value!r} is not between 0 and 1"
    for row in ({}, 5, {**rows[2], "round": 3}, {**rows[2], "more": 1}, {**rows[2], "accuracy": True}):
        edit(tickets=[*rows[:2], row, rows[3]])
        assert refused().startswith("s/tickets.json: tickets[2]: ")
    for value in ([], {}, None, "tickets"):
        edit(tickets=value)
        assert refused() == "s/tickets.json: tickets is not a list of 1 to 10000 rounds"
    edit(tickets=rows[:3])
    assert refused() == "s/masks.safetensors: tensor '3/fc1.bias': found ((1,), 'uint8'), expected none"
    edit(tickets=[*rows[:3], {**rows[3], "accuracy": 0.99}], signed=False)
    assert refused() == "s/tickets.json: the digest does not match; it is damaged or was changed"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"id": "0" * 64}, CHANGED.partition(": ")[2]),
        ({"more": 1}, "unknown or missing key 'more'"),
        ({"lineage": ...}, "unknown or missing key 'lineage'"),
        ({"digest": ..., "signed": False}, "unknown or missing key 'digest'"),
        ({"classes": 0}, "model mlp:8: classes 0 is not between 1 and 100000"),
        ({"config": []}, "config is not an object"),
        ({"provenance": ["dp"]}, "provenance ['dp'] is none of data-free, public, dp, private"),
        ({"parent": {**asdict(PARENT), "round": -1}}, "parent: round -1 is not a round"),
        *(({"card": stated}, "card is not a SHA-256") for stated in (None, "", "ab" * 32 + "\n")),
    ],
)
def test_keys(edit, changes, message):
    edit(**changes)
    assert refused() == f"s/tickets.json: {message}"


def test_another_id_of_the_predictors(edit):
    for stated in ("0" * 64, "", 0, False, [], {}):
        edit(predictors_id=stated)
        assert (
            refused() == "s/predictors.safetensors: does not match predictors_id in tickets.json; damaged or changed"
        )
    edit(predictors_id=None)
    message = "s/predictors.safetensors: there, though tickets.json knows of no predictors; remove it"
    assert refused() == message


@pytest.mark.parametrize(("model", "features", "rounds"), [("mlp:9000,9000", 64, 4), ("mlp:300,100", 784, 1100)])
def test_a_set_of_more_coordinates_than_are_read(folder, edit, rows, monkeypatch, model, features, rounds):
    """A sparse file of the right size would take all memory there is; the description alone says so."""
    edit(model=model, features=features, tickets=[{**rows[0], "round": number} for number in range(rounds)])
    for name in TENSOR_FILES:
        os.truncate(folder / name, 2**40)
    for reader in ("read_masks", "read_tensors", "read_weights"):
        monkeypatch.setattr(tensors, reader, None)
    assert refused() == (
        f"s/tickets.json: {rounds} masks of {model} have more coordinates than the 268,435,456 of the largest set"
    )


def test_the_largest_set_is_read_and_a_larger_one_is_not_written(folder, save, monkeypatch):
    size, larger = 4 * 610, "4 masks of mlp:8 have more coordinates than the 2,439 of the largest set"
    monkeypatch.setattr(ticket_set, "MAX_SET", size)
    assert len(load_ticket_set(folder).body.tickets) == 4
    monkeypatch.setattr(ticket_set, "MAX_SET", size - 1)
    assert refused() == f"s/tickets.json: {larger}"
    assert told(save, Path("a")) == f"`rounds`: {larger}"
    assert not Path("a").exists()


# --- what a set says of where it comes from: its lineage, a parent, no records at all ---


@pytest.mark.parametrize("provenance", PROVENANCES)
def test_a_provenance_that_its_lineage_does_not_bear_out(tmp_path, save, edit, provenance):
    """Neither written nor read; a set of no records may carry anything, such as the draw behind its density."""
    message = f"provenance {provenance}: its lineage holds no entry that this could come from"
    for name, entries in {"nothing": (), "public": (SAID,), "dp": (TRAINED,), "private": (MADE,)}.items():
        said = {"provenance": provenance, "made_from": Lineage(entries)}
        if provenance in ("data-free", name):
            assert load_ticket_set(save(tmp_path / name, **said).path).lineage.entries == entries
        else:
            assert told(save, tmp_path / name, **said) == message
            assert not (tmp_path / name).exists()
    edit(provenance=provenance)
    if provenance in ("public", "private"):
        assert refused() == f"s/tickets.json: {message}"


def test_an_entry_of_the_set_is_not_dropped_or_changed(folder, edit, raw):
    """A draw that was marked later may be there or not: the ledger and the winner know of it."""
    full, path = to_json(LINEAGES["dp"]), folder / "lineage.json"
    missing = "s/lineage.json: does not hold the entries that the set was written with"
    raw.edit(path, lineage=to_json(LINEAGES["dp"] | Lineage((DRAWN,))))
    assert load_ticket_set(folder).lineage.entries == (TRAINED, MOMENTS, DRAWN)
    for entries in ([], full["entries"][:1], [full["entries"][0], {**full["entries"][1], "words": "other"}]):
        raw.edit(path, lineage={"entries": entries, "heads": []})
        assert refused() == missing
    raw.edit(path, lineage=full)
    for stated in (None, [], {TRAINED.id: "0" * 64}, {"0" * 64: "0" * 64}):
        edit(lineage=stated)
        assert refused() == missing


@pytest.mark.parametrize(
    ("signed", "change", "message"),
    [
        (False, {"of": "0" * 64}, "the digest does not match; it is damaged or was changed"),
        (True, {"of": "0" * 64}, "belongs to another artifact; its weights, its masks or this file were exchanged"),
        (True, {"lineage": 5}, "lineage: unknown or missing field 'all of it'"),
        (True, {"lineage": {"entries": [{}], "heads": []}}, "lineage: entries: unknown or missing field 'day'"),
    ],
)
def test_a_lineage_that_is_none(folder, raw, signed, change, message):
    raw.edit(folder / "lineage.json", signed=signed, **change)
    assert refused() == f"s/lineage.json: {message}"
    (folder / "lineage.json").unlink()
    assert refused() == "s/lineage.json: cannot be read: No such file or directory"


def test_texts(tmp_path, save):
    """What is shown on a terminal has no control characters, and no end of lines."""
    for text in ("\x1b[2J", "line\nbreak", "\x00", "\u202e", "\x7f", "a\tb", "\ud800", "a" * 201, None, 5):
        assert told(check_text, "where", text) == f"where: {TEXT}"
    for text in ("a" * 200, "", "Größe 数字 ½", "[bold]x[/bold]"):
        check_text("where", text)
    for where, key in (("`name`", "name"), ("criterion", "criterion")):
        assert told(save, tmp_path / "a", **{key: "line\nbreak"}) == f"{where}: {TEXT}"
    parent = replace(PARENT, name="\x1b[2J")
    assert told(save, tmp_path / "a", parent=parent) == f"parent: name: {TEXT}"
    assert list(tmp_path.iterdir()) == []
