"""Compact sets and runs: a smaller network that computes the same, trains the same, and says where it comes from."""

import json
import os

import numpy as np
import pytest
import torch

from dpltm.errors import ArtifactError
from dpltm.features.feature_map import make_feature_map
from dpltm.networks import ModelSpec, build
from dpltm.networks.masks import Mask, network_id
from dpltm.pruning.generation import Ticket, Tickets
from dpltm.tickets.export import compact_run, compact_set
from dpltm.tickets.files import new_folder, write_json, write_lineage
from dpltm.tickets.run import load_run, write_run
from dpltm.tickets.store import problems
from dpltm.tickets.ticket_set import load_ticket_set
from dpltm.verbs.evaluate import predict
from set_entries import LINEAGES
from sets import store_set

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


def dense(spec):
    return Mask({name: torch.ones(shape, dtype=torch.bool) for name, shape in spec.shapes().items()})


def saved_set(path, kind, **changes):
    """Of three rounds, the last of them with dead units."""
    spec = SPECS[kind]
    masks = (dense(spec), dense(spec), mask_of(kind))
    rows = tuple(Ticket(number, mask, None, values_of(spec, 10 + number)) for number, mask in enumerate(masks))
    said = {"name": "big", "criterion": "magnitude", "provenance": "public", "config": {"a": 1}}
    return store_set(path, Tickets(spec, values_of(spec, 1), rows), **{**said, **changes})


def masked(spec, values, mask):
    model = build(spec)
    model.load_state_dict({name: torch.where(mask[name], value, 0.0) for name, value in values.items()})
    return model.eval()


def records(spec, count=20):
    return torch.randn(count, spec.features, generator=torch.Generator().manual_seed(8))


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
    x = records(saved.body.spec)
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
        with pytest.raises(ArtifactError):
            compact_run(run, tmp_path / "c")
        assert sorted(one.name for one in tmp_path.iterdir()) == ["r", "secret"]
        path.unlink(missing_ok=True)
        path.touch()
