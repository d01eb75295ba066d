"""Compact sets and runs: a smaller network that computes the same, trains the same, and says where it comes from."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from child_processes import PATIENCE
from dpltm.data import load
from dpltm.errors import ArtifactError, InputError
from dpltm.evaluation import count_correct
from dpltm.filters import make_filter
from dpltm.generation import Ticket, Tickets
from dpltm.masks import Mask
from dpltm.models import ModelSpec, build
from dpltm.noise import FastSource
from dpltm.privacy.events import DatasetRef, GaussianEvent, SelectionEvent
from dpltm.privacy.mechanisms import GaussianRelease, Selection
from dpltm.sampling import Records
from dpltm.ticket_set import Parent
from dpltm.tickets.compact import compact_run, compact_set
from dpltm.tickets.files import new_folder, write_json
from dpltm.tickets.ledger_file import open_ledger
from dpltm.tickets.plain import plain_pytorch
from dpltm.tickets.run import load_run, write_run
from dpltm.tickets.store import problems
from dpltm.tickets.ticket_set import load_ticket_set, private_path
from dpltm.tickets.winner import save_winner
from dpltm.training import TrainingConfig, cross_entropy, train
from entries import having
from sets import store_set

TIME = "2026-01-01T00:00:00Z"
SOURCE = DatasetRef("records", "ab" * 32, "01234567", 0, 60, "places")
SPENT = GaussianEvent(SOURCE, GaussianRelease(20.0), "moments", time=TIME)
MLP, CNN = ModelSpec("mlp:12,9", 10, 4), ModelSpec("cnn:14x14x1:5,6,7", 196, 4)
SPECS = {"mlp": MLP, "cnn": CNN}

# Units without a live outgoing weight, by the parameter that takes them in; a channel of conv2 is one input of fc1 here.
DEAD = {
    "mlp": {"fc2.weight": [1, 5, 6, 11], "fc3.weight": [0, 8]},
    "cnn": {"conv2.weight": [0, 3], "fc1.weight": [5], "fc2.weight": [2, 4, 6]},
}
# 12 - 4 and 9 - 2; 5 - 2, 6 - 1 and 7 - 3
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


def tickets_of(kind):
    spec, mask = SPECS[kind], mask_of(kind)
    dense = Mask({name: torch.ones(shape, dtype=torch.bool) for name, shape in spec.shapes().items()})
    return Tickets(
        spec,
        values_of(spec, 1),
        tuple(
            Ticket(number, kept, None, values_of(spec, 10 + number))
            for number, kept in enumerate((dense, dense, mask))
        ),
    )


def saved_set(path, kind, **changes):
    settings = {"name": "big", "criterion": "magnitude", "provenance": "public", "source": SOURCE, "config": {"a": 1}}
    return store_set(path, tickets_of(kind), **{**settings, **changes})


def masked(spec, values, mask):
    model = build(spec)
    model.load_state_dict({name: torch.where(mask[name], value, 0.0) for name, value in values.items()})
    return model.eval()


def records(spec, count=20):
    return torch.randn(count, spec.features, generator=torch.Generator().manual_seed(8))


def close(one, other):
    one, other = one.detach(), other.detach()
    return torch.allclose(one, other, rtol=0, atol=1e-6 * max(1.0, float(other.abs().max())))


def survivors(kind):
    """Of every parameter, the index of rows and of columns that stay: written down from DEAD alone."""
    spec = SPECS[kind]
    names = [name for name in spec.shapes() if name.endswith(".weight")]
    found = {}
    for place, name in enumerate(names):
        outputs, inputs = spec.shapes()[name][:2]
        behind = DEAD[kind].get(names[place + 1], []) if place + 1 < len(names) else []
        rows = [unit for unit in range(outputs) if unit not in behind]
        columns = [unit for unit in range(inputs) if unit not in DEAD[kind].get(name, [])]
        found[name] = (rows, columns)
        found[name.replace("weight", "bias")] = (rows, None)
    return found


def cut(kind, values):
    found = {}
    for name, (rows, columns) in survivors(kind).items():
        found[name] = values[name][rows] if columns is None else values[name][rows][:, columns]
    return found


# --- sets ---


def test_a_compact_set_computes_what_the_masked_one_does(tmp_path, kind):
    saved = saved_set(tmp_path / "s", kind)
    shrunk = compact_set(saved, 2, tmp_path / "c")
    small = load_ticket_set(tmp_path / "c")
    assert problems(small.path) == []
    assert small.body.spec.text == AFTER[kind]
    assert [ticket.round for ticket in small.body.tickets] == [0, 1]
    assert small.body.tickets[0].mask.density == 1
    x, ticket = records(saved.body.spec), small.ticket(1)
    expected = masked(saved.body.spec, saved.body.theta0, saved.ticket(2).mask)(x)
    assert close(masked(small.body.spec, small.body.theta0, ticket.mask)(x), expected)
    assert (shrunk.before, shrunk.after) == (saved.body.spec, small.body.spec)
    assert shrunk.live == (saved.ticket(2).mask.live, ticket.mask.live)
    sizes = [sum(value.numel() for value in build(spec).parameters()) for spec in (shrunk.before, shrunk.after)]
    assert list(shrunk.parameters) == sizes
    assert sizes[1] < sizes[0]


def test_a_compact_set_holds_the_weights_and_masks_of_the_units_that_stay(tmp_path, kind):
    """Of the pruned places as well: theta0 is the set's, masked or not."""
    saved = saved_set(tmp_path / "s", kind)
    compact_set(saved, 2, tmp_path / "c")
    small = load_ticket_set(tmp_path / "c")
    theta0, mask = cut(kind, saved.body.theta0), cut(kind, saved.ticket(2).mask)
    for name, value in small.body.theta0.items():
        assert torch.equal(value, theta0[name])
        assert torch.equal(small.ticket(1).mask[name], mask[name])
    pruned = ~small.ticket(1).mask["fc1.weight"]
    assert bool(pruned.any())
    assert bool((small.body.theta0["fc1.weight"][pruned] != 0).all())


@pytest.mark.parametrize("provenance", ["public", "private", "dp", "data-free"])
def test_a_compact_set_comes_from_where_the_set_does(tmp_path, provenance):
    saved = saved_set(
        tmp_path / "s",
        "mlp",
        provenance=provenance,
        source=None if provenance == "data-free" else SOURCE,
        events=[SPENT] if provenance == "dp" else [],
    )
    compact_set(saved, 2, tmp_path / "c")
    small = load_ticket_set(tmp_path / "c")
    assert (small.provenance, small.source, small.events) == (provenance, saved.source, saved.events)
    assert small.parent == Parent(saved.id, "big", 2, "compaction")
    assert small.id != saved.id
    assert not small.is_scored


def test_a_side_file_that_is_there_is_not_replaced(tmp_path):
    """What would be lost are accuracies that nobody can measure again for free; a compact set has none of its own."""
    saved = saved_set(tmp_path / "s", "mlp", provenance="private")
    assert not private_path(tmp_path / "s").exists()  # nothing was measured
    private_path(tmp_path / "c").write_text("accuracies of another set, which was moved elsewhere")
    compact_set(saved, 2, tmp_path / "c")
    assert load_ticket_set(tmp_path / "c").provenance == "private"
    assert private_path(tmp_path / "c").read_text() == "accuracies of another set, which was moved elsewhere"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c", "c.private.json", "s"]


def test_a_set_with_accuracies_is_not_written_beside_those_of_another(tmp_path):
    body = tickets_of("mlp")
    body = replace(body, tickets=tuple(replace(ticket, accuracy=0.25) for ticket in body.tickets))
    more = {"name": "n", "criterion": "magnitude", "provenance": "private", "source": SOURCE, "config": {}}
    private_path(tmp_path / "c").write_text("accuracies of another set")
    with pytest.raises(ArtifactError) as caught:
        store_set(tmp_path / "c", body, **more)
    assert str(caught.value) == (
        f"`out`: {private_path(tmp_path / 'c')} exists already; choose another name or remove it first"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["c.private.json"]
    assert private_path(tmp_path / "c").read_text() == "accuracies of another set"
    store_set(tmp_path / "d", body, **more)
    side = json.loads(private_path(tmp_path / "d").read_text())
    assert side["accuracy"] == {"0": 0.25, "1": 0.25, "2": 0.25}
    store_set(tmp_path / "e", body, **{**more, "provenance": "public"})
    assert not private_path(tmp_path / "e").exists()


def test_a_compact_winner_remembers_its_draw(tmp_path):
    """Which round was compacted tells who won: the draw is in the description of it, and of no other round."""
    saved = saved_set(tmp_path / "s", "mlp")
    drawn = SelectionEvent(
        replace(SOURCE, start=60, stop=90), Selection(0.1, 0.1), "product", "exact", 0.5, 2, saved.id, time=TIME
    )
    save_winner(saved, 1, "exponential", [drawn])
    compact_set(saved, 2, tmp_path / "other")
    assert load_ticket_set(tmp_path / "other").draws == ()
    (saved.path / "selection.json").unlink()
    save_winner(saved, 2, "exponential", [drawn])
    compact_set(saved, 2, tmp_path / "winner")
    small = load_ticket_set(tmp_path / "winner")
    later = replace(
        having(drawn, adaptive=True), time=TIME.replace("2026", "2027")
    )  # which saw the former winner, round 1, too
    assert small.draws == (drawn,)
    for folder in ("other", "winner"):
        assert not (tmp_path / folder / "selection.json").exists()
        assert problems(tmp_path / folder) == []
    save_winner(saved, 1, "exponential", [later])
    compact_set(saved, 2, tmp_path / "again")  # whoever ever won, with every draw so far
    assert set(load_ticket_set(tmp_path / "again").draws) == {drawn, later}
    shutil.rmtree(saved.path)  # nothing of it is needed
    assert load_ticket_set(small.path).draws == (drawn,)


def trained(spec, values, mask, clip_norm):
    model = build(spec)
    model.load_state_dict(values)
    x = records(spec, 60)
    y = torch.randint(spec.classes, (60,), generator=torch.Generator().manual_seed(4))
    config = TrainingConfig(make_filter("clip", clip_norm=clip_norm), 0.5, 12, 30.0, 0.0, 0.5)
    train(model, mask, Records(x, y), config, sampling=FastSource(3), noise=FastSource(4), loss=cross_entropy)
    return {name: value.detach() for name, value in model.named_parameters()}


@pytest.mark.parametrize("clip_norm", [0.1, 1e6], ids=["all records clipped", "none"])
def test_a_compact_set_trains_to_the_same_weights(tmp_path, kind, clip_norm):
    """Per-record norms agree too, or clipping would tell: what was removed had no gradient."""
    saved = saved_set(tmp_path / "s", kind)
    compact_set(saved, 2, tmp_path / "c")
    small = load_ticket_set(tmp_path / "c")
    large = trained(saved.body.spec, saved.body.theta0, saved.ticket(2).mask, clip_norm)
    expected = cut(kind, large)
    moved = max(float((expected[name] - small.body.theta0[name]).abs().max()) for name in ("fc1.bias", "fc2.bias"))
    assert moved > 1e-3
    for name, value in trained(small.body.spec, small.body.theta0, small.ticket(1).mask, clip_norm).items():
        assert torch.allclose(value, expected[name], rtol=1e-4, atol=1e-5)


def test_nothing_to_compact(tmp_path):
    saved = saved_set(tmp_path / "s", "mlp")
    for number in (0, 1):
        with pytest.raises(InputError) as caught:
            compact_set(saved, number, tmp_path / "c")
        assert str(caught.value).startswith("nothing to compact: ")
        assert "\n" not in str(caught.value)
    with pytest.raises(ArtifactError, match="s@3: no such round; it has rounds 0 to 2"):
        compact_set(saved, 3, tmp_path / "c")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s"]


def test_compacting_twice(tmp_path):
    compact_set(saved_set(tmp_path / "s", "mlp"), 2, tmp_path / "c")
    with pytest.raises(InputError, match="nothing to compact"):
        compact_set(load_ticket_set(tmp_path / "c"), 1, tmp_path / "d")


@pytest.mark.parametrize("name", ["c", "e/c"])
def test_an_existing_target_is_left_alone(tmp_path, name):
    saved = saved_set(tmp_path / "s", "mlp")
    target = tmp_path / name
    target.mkdir(parents=True)
    (target / "precious").write_text("x")
    with pytest.raises(ArtifactError, match="exists already"):
        compact_set(saved, 2, target)
    assert [path.name for path in target.iterdir()] == ["precious"]


# --- runs ---


@pytest.fixture
def run(tmp_path, kind):
    """A run of the masked network, with some ledger."""
    spec = SPECS[kind]
    # a unit without live inputs: its bias is a constant, which goes into the biases behind it
    constants = dict(mask_of(kind).items())
    constants["fc1.weight"][1 if kind == "cnn" else 2] = False
    mask = Mask(constants)
    model = masked(spec, values_of(spec, 1), mask)
    config = {"model": spec.text, "features": spec.features, "classes": 4, "bounds": [0.0, 1.0], "records": {"a": 1}}
    with new_folder(tmp_path / "r") as folder:
        write_run(folder, config, model, mask, [{"step": 1, "epsilon": 1.0, "accuracy": 0.5}])
        write_json(folder / "result.json", {"accuracy": 0.5})
        open_ledger(folder / "ledger.jsonl").append(SPENT)
    return load_run(tmp_path / "r")


def test_a_compact_run_gives_the_same_answers(tmp_path, run, kind):
    shrunk = compact_run(run, tmp_path / "c")
    small = load_run(tmp_path / "c")
    x = records(SPECS[kind], 50)
    assert close(small.model(x), run.model(x))
    assert torch.equal(small.model(x).argmax(1), run.model(x).argmax(1))
    found = {name: tuple(value.shape) for name, value in small.model.named_parameters()}
    assert found == shrunk.after.shapes()
    assert sum(int(value.sum()) for value in small.mask.values()) == shrunk.live[1] < shrunk.live[0]


def test_constants_are_folded(tmp_path, run, kind):
    """Fewer units than the same mask leaves in a set: the one without live inputs is gone as well."""
    shrunk = compact_run(run, tmp_path / "c")
    assert shrunk.after.text == {"mlp": "mlp:7,7", "cnn": "cnn:14x14x1:3,5,3"}[kind]


def test_a_compact_run_says_what_it_is(tmp_path, run, kind):
    before = {path.name: path.read_bytes() for path in run.path.iterdir()}
    shrunk = compact_run(run, tmp_path / "c")
    config = json.loads((tmp_path / "c" / "config.json").read_text())
    assert config == {**run.config, "model": shrunk.after.text, "compacted_from": SPECS[kind].text}
    for name in ("metrics.jsonl", "ledger.jsonl", "result.json", "environment.json"):
        assert (tmp_path / "c" / name).read_bytes() == before[name]
    assert {path.name: path.read_bytes() for path in run.path.iterdir()} == before
    assert open_ledger(tmp_path / "c" / "ledger.jsonl").events == (SPENT,)


def test_a_compact_run_drops_what_former_versions_kept(tmp_path, run):
    """How long training took, and where files lie on the machine of whoever trained."""
    write_json(
        run.path / "result.json", {"accuracy": 0.5, "seconds": 12.5, "run": "/h/u/r", "ticket_set": "bundled:a"}
    )
    config = json.loads((run.path / "config.json").read_text())
    options = {"dataset": "/h/u/d.csv", "out": "r", "features": "network:/h/u/n.run", "epsilon": 1.0, "test": None}
    write_json(run.path / "config.json", {**config, "options": options, "resolved": {"ticket_set": "/h/u/t"}})
    compact_run(load_run(run.path), tmp_path / "c")
    result = json.loads((tmp_path / "c" / "result.json").read_text())
    assert result == {"accuracy": 0.5, "run": "r", "ticket_set": "bundled:a"}
    found = json.loads((tmp_path / "c" / "config.json").read_text())
    assert found["options"] == {**options, "dataset": "d.csv", "features": "network:n.run"}
    assert found["resolved"] == {"ticket_set": "t"}


PROGRAM = """
import importlib.abc, runpy, sys

class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "dpltm":
            raise ImportError("dpltm is not to be had here")

sys.meta_path.insert(0, Refuse())
import torch
from safetensors.torch import load_file, save_file
model = runpy.run_path(sys.argv[1])["model"]
assert not any(name.split(".")[0] == "dpltm" for name in sys.modules)
try:
    import dpltm
except ImportError:
    pass
else:
    raise SystemExit("dpltm was importable: this shows nothing")
save_file({"y": model(load_file(sys.argv[2])["x"]).detach(), "training": torch.tensor(model.training)}, sys.argv[3])
"""


def test_the_plain_program_needs_no_dpltm(tmp_path, run, kind):
    compact_run(run, tmp_path / "c")
    x = records(SPECS[kind])
    save_file({"x": x}, tmp_path / "x.safetensors")
    arguments = [tmp_path / "c" / "model.py", tmp_path / "x.safetensors", tmp_path / "y.safetensors"]
    subprocess.run([sys.executable, "-c", PROGRAM, *map(str, arguments)], check=True, cwd="/", timeout=PATIENCE)
    found = load_file(tmp_path / "y.safetensors")
    assert close(found["y"], run.model(x))
    assert not bool(found["training"])


def test_nothing_to_compact_in_a_run(tmp_path, kind):
    spec = SPECS[kind]
    values = values_of(spec, 1)
    dense = Mask({name: torch.ones_like(value, dtype=torch.bool) for name, value in values.items()})
    config = {"model": spec.text, "features": spec.features, "classes": 4, "bounds": [0.0, 1.0]}
    with new_folder(tmp_path / "r") as folder:
        write_run(folder, config, masked(spec, values, dense), dense, [])
    with pytest.raises(InputError, match="nothing to compact"):
        compact_run(load_run(tmp_path / "r"), tmp_path / "c")
    assert [path.name for path in tmp_path.iterdir()] == ["r"]


@pytest.mark.parametrize("name", ["metrics.jsonl", "ledger.jsonl", "result.json", "environment.json"])
@pytest.mark.parametrize("where", ["a secret", "nowhere", "a pipe"])
def test_nothing_is_copied_through_a_link(tmp_path, run, name, where):
    """A run of somebody else's may point anywhere; a copy of it would hand that on."""
    (tmp_path / "secret").write_text("secret")
    path = run.path / name
    path.unlink()
    if where == "a pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(tmp_path / ("secret" if where == "a secret" else "nowhere"))
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ArtifactError):
        compact_run(run, tmp_path / "c")
    assert sorted(tmp_path.iterdir()) == before


def test_nothing_is_left_where_a_file_of_the_run_is_missing(tmp_path, run):
    (run.path / "result.json").unlink()
    with pytest.raises((OSError, ArtifactError)):
        compact_run(run, tmp_path / "c")
    assert [path.name for path in tmp_path.iterdir()] == ["r"]


def test_predictions_on_real_records(tmp_path):
    """A ticket of the digits, trained a little: every test record gets the answer that it had."""
    digits = load("digits")
    x, y = (
        torch.from_numpy(np.asarray(digits.test.x, dtype=np.float32) / 16).flatten(1),
        torch.from_numpy(digits.test.y),
    )
    spec = ModelSpec("mlp:30", 64, 10)
    keep = {name: torch.ones(shape, dtype=torch.bool) for name, shape in spec.shapes().items()}
    keep["fc2.weight"][:, ::3] = False
    mask, model = Mask(keep), build(spec, 1)
    config = TrainingConfig(make_filter("clip", clip_norm=1.0), 0.5, 40, 180.0, 0.0, 1.0)
    train(model, mask, Records(x, y), config, sampling=FastSource(1), noise=FastSource(2))
    with new_folder(tmp_path / "r") as folder:
        write_run(folder, {"model": spec.text, "features": 64, "classes": 10, "bounds": [0.0, 16.0]}, model, mask, [])
        write_json(folder / "result.json", {})
        open_ledger(folder / "ledger.jsonl").append(SPENT)
    assert compact_run(load_run(tmp_path / "r"), tmp_path / "c").after.text == "mlp:20"
    small = load_run(tmp_path / "c").model
    assert torch.equal(small(x).argmax(1), model(x).argmax(1))
    assert count_correct(small, x, y) == count_correct(model, x, y) > len(y) / 2


# --- plain programs ---


@pytest.mark.parametrize(
    "spec",
    [
        ModelSpec("mlp", 5, 3),
        ModelSpec("mlp:6", 5, 3),
        ModelSpec("mlp:project4,6,5", 5, 3),
        ModelSpec("cnn:14x14x1", 196, 3),
        ModelSpec("cnn:20x15x3:2,3,4", 900, 3),
    ],
    ids=lambda spec: spec.text,
)
def test_the_program_builds_the_same_network(tmp_path, spec):
    """Same names, same outputs, whatever the weights."""
    save_file(values_of(spec, 1), tmp_path / "w.safetensors")
    (tmp_path / "model.py").write_text(plain_pytorch(spec, "w.safetensors"))
    scope = {"__file__": str(tmp_path / "model.py")}
    exec(compile(plain_pytorch(spec, "w.safetensors"), "model.py", "exec"), scope)
    found, expected = scope["model"], build(spec)
    expected.load_state_dict(values_of(spec, 1))
    assert isinstance(found, nn.Sequential)
    assert {name: tuple(value.shape) for name, value in found.named_parameters()} == spec.shapes()
    x = records(spec)
    assert torch.equal(found(x), expected(x))
