"""Tickets for other tools and from them: what their own loaders make of our files, and what we make of theirs."""

import json
import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.utils import prune

from dpltm.errors import ArtifactError, InputError
from dpltm.networks import ModelSpec, build
from dpltm.networks.masks import Mask, network_id
from dpltm.options.generate import GenerateOptions
from dpltm.options.tickets import ImportOptions
from dpltm.privacy.describe import percent
from dpltm.privacy.entry import Lineage
from dpltm.privacy.ledger import Ledger
from dpltm.privacy.mechanisms import Unprotected
from dpltm.pruning.generation import Ticket, Tickets, weights_of, without_data
from dpltm.records import Dataset, from_arrays
from dpltm.tickets.export import (
    Origin,
    compact_run,
    compact_set,
    export_set,
    export_torch_prune,
    import_torch_prune,
    read_origin,
)
from dpltm.tickets.feature_files import map_json
from dpltm.tickets.files import new_folder, write_json, write_lineage
from dpltm.tickets.run import load_run, write_run
from dpltm.tickets.store import problems
from dpltm.tickets.ticket_set import load_ticket_set, save_winner
from dpltm.tickets.workbench.stages import front_of_import, imported_set
from dpltm.training.artifacts import Parent, Winner
from dpltm.verbs.evaluate import predict
from maps import make_feature_map
from refusals import refused, told
from set_entries import DRAWN, LINEAGES, store_set
from tensors import same_tensors

FRONT = map_json(make_feature_map("unit:1", (12,), (0.0, 1.0)))
ORIGIN = Origin("cd" * 32, "a name", "public", LINEAGES["public"])
ORIGINS = {
    **{name: replace(ORIGIN, provenance=name, lineage=lineage) for name, lineage in LINEAGES.items()},
    "drawn from, behind features": Origin(
        "cd" * 32, 'Größe "数字"', "public", LINEAGES["public"] | Lineage((DRAWN,)), FRONT
    ),
}
MLP, CNN = ModelSpec("mlp:8,6", 12, 3), ModelSpec("cnn:14x14x1:3,4,5", 196, 3)


@pytest.fixture(params=[MLP, CNN], ids=["mlp", "cnn"])
def spec(request):
    return request.param


def ticket_of(spec):
    """theta0, with biases that are no zeros, and a mask."""
    made = without_data(spec, GenerateOptions(rounds=2, prune=(0.4,), criterion="random", seed=3).for_records(1000))
    generator = torch.Generator().manual_seed(2)
    values = {name: torch.randn(value.shape, generator=generator) for name, value in made.theta0.items()}
    return values, made.tickets[2].mask


def masked(spec, values, mask):
    """The network by its own layers, its weights multiplied by the mask: what every form must compute."""
    model = build(spec)
    model.load_state_dict({name: torch.where(mask[name], value, 0.0) for name, value in values.items()})
    return model.eval()


def records(spec, count=7):
    return torch.randn(count, spec.features, generator=torch.Generator().manual_seed(8))


def content(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def weighted(model):
    """The modules that torch prunes: those with a weight."""
    return [module for module in model.modules() if isinstance(module, (nn.Linear, nn.Conv2d))]


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


# --- a set to hand on ---


@pytest.mark.parametrize("provenance", ["public", "private", "dp"])
def test_a_copy_holds_the_set_and_nothing_of_its_use(tmp_path, save, provenance):
    """Of a private set neither the networks nor an accuracy, in any file; of each its lineage, with the draws from it."""
    saved = save(tmp_path / "s", provenance=provenance)
    saved.mark(Lineage((DRAWN,)))
    save_winner(saved.path, Winner(2, saved.lineage, saved))
    measured = [ticket.accuracy for ticket in saved.body.tickets]
    before, known, saved = content(tmp_path), saved, load_ticket_set(saved.path)
    copied = export_set(known, tmp_path / "c/copy")  # of what is in memory, with the accuracies
    assert [path.name for path in (tmp_path / "c").iterdir()] == ["copy"]  # no side file, no ledger beside it
    files = {"README.md", "lineage.json", "masks.safetensors", "theta0.safetensors", "tickets.json"}
    predictors = set() if provenance == "private" else {"predictors.safetensors"}
    assert {path.name for path in copied.path.iterdir()} == files | predictors
    assert {name: data for name, data in content(tmp_path).items() if not name.startswith("c/")} == before
    found = load_ticket_set(copied.path)
    assert problems(copied.path) == []
    for name in ("id", "name", "criterion", "provenance", "lineage", "config", "parent"):
        assert getattr(found, name) == getattr(saved, name)
    for one, other in zip(saved.body.tickets, found.body.tickets, strict=True):
        assert same_tensors(one.mask, other.mask)
        if provenance == "private":  # made from private records with no mechanism
            assert (one.predictor is not None, other.predictor, other.accuracy) == (True, None, None)
        else:
            assert equal(one.predictor, other.predictor)
            assert other.accuracy == one.accuracy is not None
    if provenance == "private":
        stored = b"".join(content(tmp_path / "c").values())
        shown = [text for value in measured for text in (repr(value), f"{value:.4f}", f"{value:.2%}", percent(value))]
        assert not [text for text in shown if text.encode() in stored]


# --- torch.nn.utils.prune ---


def test_torch_prune_takes_its_form(tmp_path, spec):
    values, mask = ticket_of(spec)
    export_torch_prune(values, mask, tmp_path / "t.safetensors", ORIGIN)
    model = build(spec)
    for module in weighted(model):
        prune.identity(module, "weight")
    model.load_state_dict(load_file(tmp_path / "t.safetensors"), strict=True)
    assert torch.equal(model(records(spec)), masked(spec, values, mask)(records(spec)))
    for name, value in model.named_parameters():  # the weights under the mask are all there
        assert torch.equal(value, values[name.removesuffix("_orig")])
    back = import_torch_prune(tmp_path / "t.safetensors", spec)
    assert back.spec == spec
    rows = [(ticket.round, ticket.predictor, ticket.accuracy) for ticket in back.tickets]
    assert rows == [(0, None, None), (1, None, None)]
    assert back.tickets[0].mask.density == 1
    assert same_tensors(back.tickets[1].mask, mask)
    assert equal(back.theta0, values)


def pruned_by_torch(spec):
    model = build(spec, 4)
    for module in weighted(model):
        prune.l1_unstructured(module, "weight", 0.6)
    return model


def stored(path, state):
    save_file(dict(state), path)
    return path


def test_a_model_that_torch_pruned(tmp_path, spec):
    """L1: the smallest weights of each layer are gone. A layer that was not pruned has its plain name, and is dense."""
    model, before = build(spec, 4), weights_of(build(spec, 4))
    for module in weighted(model)[:-1]:
        prune.l1_unstructured(module, "weight", 0.6)
    path = stored(tmp_path / "t.safetensors", model.state_dict())
    tickets = import_torch_prune(path, spec)
    mask = tickets.tickets[1].mask
    assert equal(tickets.theta0, before)
    for name, value in before.items():
        if value.ndim < 2 or name == list(before)[-2]:
            assert bool(mask[name].all())
        else:
            least = value.abs().flatten().sort().values[round(0.6 * value.numel()) - 1]
            assert torch.equal(mask[name], value.abs() > least)
    assert torch.equal(masked(spec, tickets.theta0, mask)(records(spec)), model.eval()(records(spec)))


def put(name, value, under=None):
    """Writes a value into a tensor: at one place, or wherever the weight's mask is ``under``."""

    def spoil(state):
        place = 1 if under is None else (state["fc1.weight_mask"] == under).view(-1)
        state[name].view(-1)[place] = value

    return spoil


NO_MASK, NOT_FINITE = "holds values other than 0 and 1; it is no mask", "holds a weight that is not finite"
WHOLE = "fc2.weight is pruned whole; keep a weight, so that something comes through"
SPOILED = [
    *((put("fc2.weight_mask", value), f"fc2.weight_mask {NO_MASK}") for value in (0.5, -1.0, 1e-9, torch.nan)),
    (lambda state: state["fc2.weight_mask"].zero_(), WHOLE),
    (put("fc1.bias_mask", 0.0), "fc1.bias is pruned, but only weights can be: biases stay live"),
    (put("fc1.weight_orig", torch.nan, 1), f"fc1.weight {NOT_FINITE}"),
    (put("fc1.weight_orig", -torch.inf, 0), f"fc1.weight {NOT_FINITE}"),
    (put("fc2.bias", torch.inf), f"fc2.bias {NOT_FINITE}"),
]


@pytest.mark.parametrize(("spoil", "why"), SPOILED)
def test_what_is_no_ticket(tmp_path, spoil, why):
    """Training a ticket that is not finite would be NaN, and its budget spent; under the mask it is no better."""
    model = pruned_by_torch(MLP)
    prune.identity(model.fc1, "bias")  # a mask that prunes nothing, which is no reason to refuse it
    state = model.state_dict()  # of the same memory
    path = stored(tmp_path / "t.safetensors", state)
    tickets = import_torch_prune(path, MLP)
    assert torch.equal(tickets.theta0["fc1.bias"], model.fc1.bias_orig)
    assert bool(tickets.tickets[1].mask["fc1.bias"].all())
    spoil(state)
    stored(path, state)
    assert told(import_torch_prune, path, MLP, kind=InputError) == f"{path}: {why}"


@pytest.mark.parametrize("gone", [(), ("fc2",), ("fc1", "fc2")])
def test_zeros_that_pruning_left_behind_are_pruned(tmp_path, gone):
    """``prune.remove`` keeps the zeros of a layer, and no mask: they were taken for live weights."""
    model = pruned_by_torch(MLP)
    prune.l1_unstructured(model.fc2, "weight", 0.5)
    expected = {name: module.weight_mask == 1 for name, module in model.named_children() if prune.is_pruned(module)}
    for name in gone:
        prune.remove(getattr(model, name), "weight")
    mask = import_torch_prune(stored(tmp_path / "t.safetensors", model.state_dict()), MLP).tickets[1].mask
    assert all(torch.equal(mask[f"{name}.weight"], live) for name, live in expected.items())


def test_a_model_of_other_names_or_shapes(tmp_path):
    path = stored(tmp_path / "t.safetensors", build(MLP, 1).state_dict())
    assert told(import_torch_prune, path, MLP, kind=InputError).startswith(f"{path}: its masks prune nothing")
    path, state = tmp_path / "t.safetensors", pruned_by_torch(MLP).state_dict()
    for other in (ModelSpec("mlp:8,6", 13, 3), ModelSpec("mlp:8,6", 12, 4), ModelSpec("mlp:9,6", 12, 3)):
        told(import_torch_prune, stored(path, state), other)
    ones = torch.ones(8, 12)  # a mask alone, no mask, a weight by both names
    for key, value in (("weight_orig", None), ("weight_mask", None), ("weight", ones)):
        changed = {name: one for name, one in {**state, f"fc1.{key}": value}.items() if one is not None}
        assert "fc1.weight" in told(import_torch_prune, stored(path, changed), MLP)


# --- where an exported ticket comes from ---


def written(path, origin):
    export_torch_prune(*ticket_of(MLP), path, origin)
    return path


def test_a_file_says_where_it_comes_from(tmp_path):
    for number, origin in enumerate(ORIGINS.values()):
        assert read_origin(written(tmp_path / f"{number}.safetensors", origin)) == origin


BODY = ORIGINS["dp"].to_json()


@pytest.mark.parametrize(
    "stated",
    [
        *("", "[]", "[" * 100_000),
        *(
            json.dumps({name: value for name, value in BODY.items() if name != key})
            for key in ("lineage", "feature_map")
        ),
        *(json.dumps({**BODY, key: value}) for key, value in (("more", 1), ("lineage", []), ("name", "two\nlines"))),
        *(json.dumps({**BODY, "provenance": kind}) for kind in ("public", "private", "unknown", ["dp"])),
        *(json.dumps({**BODY, "feature_map": value}) for value in ({}, "unit:1", {**FRONT, "id": 5})),
    ],
    ids=lambda text: text[:60],
)
def test_an_origin_that_makes_no_sense(tmp_path, stated):
    """One line that names the file; never taken for a file that does not say."""
    path = tmp_path / "t.safetensors"
    save_file(pruned_by_torch(MLP).state_dict(), path, metadata={"dpltm_origin": stated})
    assert told(read_origin, path).startswith(f"{path}: ")


def test_metadata_of_others_beside_the_tensors(tmp_path):
    """Which say nothing of where it comes from; up to a megabyte, and no more."""
    path, state = tmp_path / "t.safetensors", pruned_by_torch(MLP).state_dict()
    for metadata in (None, {"format": "pt"}, {"notes": "x" * 60_000}):
        save_file(state, path, metadata=metadata)
        assert read_origin(path) is None
    save_file(state, path, metadata={"notes": "x" * 2**21})
    assert "bytes, where" in told(import_torch_prune, path, MLP)


def test_the_same_ticket_gives_the_same_bytes_for_everybody(tmp_path):
    """The header has one key of its own: of several the order would vary from process to process."""
    for number in range(5):
        written(tmp_path / f"{number}.safetensors", ORIGIN)
    assert len(set(content(tmp_path).values())) == 1
    data = (tmp_path / "0.safetensors").read_bytes()
    metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    assert metadata.keys() == {"dpltm_origin"}
    assert json.loads(metadata["dpltm_origin"]) == ORIGIN.to_json()


# --- compact sets and runs: a smaller network that computes the same, and says where it comes from ---


SPECS = {"mlp": ModelSpec("mlp:12,9", 10, 4), "cnn": ModelSpec("cnn:14x14x1:5,6,7", 196, 4)}

# Units without a live outgoing weight, by the parameter that takes them in; a channel of conv2 is one input of fc1 here.
DEAD = {
    "mlp": {"fc2.weight": [1, 5, 6, 11], "fc3.weight": [0, 8]},
    "cnn": {"conv2.weight": [0, 3], "fc1.weight": [5], "fc2.weight": [2, 4, 6]},
}
AFTER = {"mlp": "mlp:8,7", "cnn": "cnn:14x14x1:3,5,4"}


@pytest.fixture(params=list(SPECS))
def kind(request):
    return request.param


def values_of(spec, seed):
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) / 3 for name, shape in spec.shapes().items()}


def mask_of(kind):
    """Half of the weights, none behind the dead units, and some units that keep a live outgoing weight for certain."""
    generator = torch.Generator().manual_seed(6)
    mask = {}
    for name, shape in SPECS[kind].shapes().items():
        mask[name] = torch.ones(shape, dtype=torch.bool)
        if len(shape) > 1:
            mask[name] = torch.rand(shape, generator=generator) < 0.5
            mask[name][0] = True  # every unit is used by the first unit of the next layer
            mask[name][:, DEAD[kind].get(name, [])] = False
    return Mask(mask)


def all_live(spec):
    return Mask({name: torch.ones(shape, dtype=torch.bool) for name, shape in spec.shapes().items()})


def saved_set(path, kind, **changes):
    """Of three rounds, the last of them with dead units."""
    spec = SPECS[kind]
    masks = (all_live(spec), all_live(spec), mask_of(kind))
    rows = tuple(Ticket(number, mask, None, values_of(spec, 10 + number)) for number, mask in enumerate(masks))
    said = {"name": "big", "criterion": "magnitude", "provenance": "public", "config": {"a": 1}}
    return store_set(path, Tickets(spec, values_of(spec, 1), rows), **{**said, **changes})


def close(one, other):
    one, other = one.detach(), other.detach()
    return torch.allclose(one, other, rtol=0, atol=1e-6 * max(1.0, float(other.abs().max())))


def cut(kind, values):
    """Of every parameter, the rows and columns of units that stay: written down from DEAD alone."""
    weights = [name for name in SPECS[kind].shapes() if name.endswith(".weight")]
    found = {}
    for name, behind in zip(weights, [*weights[1:], ""], strict=True):
        bias = name.replace("weight", "bias")
        outputs, inputs = values[name].shape[:2]
        rows = [unit for unit in range(outputs) if unit not in DEAD[kind].get(behind, [])]
        columns = [unit for unit in range(inputs) if unit not in DEAD[kind].get(name, [])]
        found[name], found[bias] = values[name][rows][:, columns], values[bias][rows]
    return found


def test_a_compact_set_holds_the_weights_and_masks_of_the_units_that_stay(tmp_path, kind):
    """Of the pruned places as well: theta0 is the set's, masked or not. So it computes what the masked one does."""
    saved = saved_set(tmp_path / "s", kind)
    sizes = compact_set(saved, 2, tmp_path / "c")
    small = load_ticket_set(tmp_path / "c")
    assert problems(small.path) == []
    assert small.body.spec.text == AFTER[kind]
    assert [ticket.round for ticket in small.body.tickets] == [0, 1]
    assert small.body.tickets[0].mask.density == 1
    theta0, mask, ticket = cut(kind, saved.body.theta0), cut(kind, saved.ticket(2).mask), small.ticket(1)
    for name, value in small.body.theta0.items():
        assert torch.equal(value, theta0[name])
        assert torch.equal(ticket.mask[name], mask[name])
    assert bool((small.body.theta0["fc1.weight"][~ticket.mask["fc1.weight"]] != 0).all())
    x = records(saved.body.spec, 20)
    expected = masked(saved.body.spec, saved.body.theta0, saved.ticket(2).mask)(x)
    assert close(masked(small.body.spec, small.body.theta0, ticket.mask)(x), expected)
    specs = {"before": saved.body.spec, "after": small.body.spec}
    assert sizes["model"] == {name: spec.text for name, spec in specs.items()}
    assert sizes["live"] == {"before": saved.ticket(2).mask.live, "after": ticket.mask.live}
    assert sizes["parameters"] == {
        name: sum(value.numel() for value in build(spec).parameters()) for name, spec in specs.items()
    }


def saved_run(path, kind, mask, front=None):
    """A run of the masked network, with some ledger."""
    spec = SPECS[kind]
    config = {"model": spec.text, "features": spec.features, "classes": 4, "bounds": [0.0, 1.0], "records": {"a": 1}}
    metrics = [{"step": 1, "epsilon": 1.0, "accuracy": 0.5}]
    with new_folder(path) as folder:
        write_run(folder, config, masked(spec, values_of(spec, 1), mask), mask, metrics, front)
        write_json(folder / "result.json", {"accuracy": 0.5})
        model = masked(spec, values_of(spec, 1), mask)
        write_lineage(folder, LINEAGES["dp"], network_id(model, mask))
    return load_run(path)


@pytest.fixture
def run(tmp_path, kind):
    """With a unit without live inputs: its bias is a constant, which goes into the biases behind it."""
    mask = dict(mask_of(kind).items())
    mask["fc1.weight"][1 if kind == "cnn" else 2] = False
    return saved_run(tmp_path / "r", kind, Mask(mask))


def test_a_compact_run_gives_the_same_answers_and_says_what_it_is(tmp_path, run, kind):
    before = {path.name: path.read_bytes() for path in run.path.iterdir()}
    sizes = compact_run(run, tmp_path / "c")
    small, x = load_run(tmp_path / "c"), records(SPECS[kind], 50)
    assert close(small.model(x), run.model(x))
    assert {name: tuple(value.shape) for name, value in small.model.named_parameters()} == small.spec.shapes()
    assert sizes["model"]["after"] == small.spec.text == AFTER[kind]
    assert sum(int(value.sum()) for value in small.mask.values()) == sizes["live"]["after"] < sizes["live"]["before"]
    config = json.loads((tmp_path / "c/config.json").read_text())
    assert config == {**run.config, "model": small.spec.text, "compacted_from": SPECS[kind].text}
    for name in ("metrics.jsonl", "environment.json"):
        assert (tmp_path / "c" / name).read_bytes() == before[name]
    result = json.loads((tmp_path / "c/result.json").read_text())
    assert result.pop("weights") == network_id(small.model, small.mask)
    assert result == json.loads(before["result.json"])
    assert {path.name: path.read_bytes() for path in run.path.iterdir()} == before
    assert small.lineage == run.lineage == LINEAGES["dp"]


def test_what_stands_in_front_stays(tmp_path):
    """A run behind centred features, whose tensors go along."""
    features = SPECS["mlp"].features
    front = make_feature_map("unit", (features,), (0.0, 1.0)).centred_at(torch.arange(float(features)))
    run = saved_run(tmp_path / "r", "mlp", mask_of("mlp"), front)
    compact_run(run, tmp_path / "c")
    small, x = load_run(tmp_path / "c"), records(SPECS["mlp"], 20).numpy()
    assert small.feature_map.id == front.id
    assert np.abs(predict(small, x).outputs - predict(run, x).outputs).max() < 1e-5


@pytest.mark.parametrize("kind", ["mlp"])
@pytest.mark.parametrize("name", ["metrics.jsonl", "result.json", "environment.json"])
def test_nothing_is_copied_through_a_link(tmp_path, run, name):
    """A run of somebody else's may point anywhere; a copy of it would hand that on."""
    (tmp_path / "secret").write_text("secret")
    path = run.path / name
    for make in (lambda: path.symlink_to(tmp_path / "secret"), lambda: os.mkfifo(path), lambda: None):
        path.unlink()
        make()
        refused(compact_run, run, tmp_path / "c", kind=ArtifactError)
        assert sorted(one.name for one in tmp_path.iterdir()) == ["r", "secret"]
        path.unlink(missing_ok=True)
        path.touch()


# --- sets of pruned models: what a file says of itself, and what is declared ---

OF_CHANCE = GenerateOptions(rounds=2, prune=(0.3,), criterion="random", scope="layer")
RANDOM = without_data(ModelSpec("mlp:8", 36, 3), OF_CHANCE)
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
    made = imported_set(RANDOM, images(), stated(), ImportOptions(), ledger, file="a/t.safetensors")
    assert (made.provenance, made.lineage, ledger.entries) == ("dp", RELEASED, ())
    assert made.parent == Parent("ef" * 32, "theirs", None, "export and import")
    assert (made.name, made.criterion, made.config) == ("t", "imported", {"imported": "t.safetensors"})
    with pytest.raises(InputError, match="`provenance`: t says dp of itself; leave `provenance` out"):
        imported_set(RANDOM, images(), stated(), ImportOptions(provenance="public"), ledger, file="t")


def test_of_others_it_is_said_and_entered() -> None:
    for provenance, kinds in (("public", ["public"]), ("private", ["release"]), ("data-free", [])):
        ledger, options = Ledger(), ImportOptions(provenance=provenance, name="n")
        made = imported_set(RANDOM, images(), None, options, ledger, file="t")
        assert (made.provenance, made.name, made.parent) == (provenance, "n", None)
        assert made.lineage.entries == ledger.entries
        assert [entry.kind for entry in ledger.entries] == kinds
        assert all(entry.part == ledger.part(images()) for entry in ledger.entries)
        assert [bool(entry.of(Unprotected)) for entry in ledger.entries] == [kind == "release" for kind in kinds]
    message = refused(imported_set, RANDOM, images(), None, ImportOptions(), Ledger(), file="t")
    assert message.startswith("`provenance` is missing: t does not say what its masks and weights depend on")


def test_what_stands_in_front_of_an_imported_network() -> None:
    def front(origin: Origin | None, features: str | None = None) -> tuple[Dataset, list[str]]:
        return front_of_import(images(), origin, features, file="t")

    dataset, notes = front(stated())
    assert (dataset.feature_map, notes) == (None, [])
    assert front(None)[1][0].startswith("t does not say what stands in front of its network;")
    for origin, features in ((None, "unit"), (stated(PLAIN), None)):
        dataset, notes = front(origin, features)
        assert (dataset.feature_map is None, notes) == (False, [])
    tensors = "t: its network stands behind unit:1 features with tensors of their own, which the file does not hold; "
    remembers = "`features`: t remembers what stands in front of its network; leave `features` out"
    for origin, features, message in (
        (stated(), "unit", remembers),
        (stated(WITH_TENSORS), None, tensors),
        (stated(PLAIN), "unit", remembers),
    ):
        assert refused(front, origin, features).startswith(message)
