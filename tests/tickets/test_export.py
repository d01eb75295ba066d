"""Tickets for other tools and from them: what their own loaders make of our files, and what we make of theirs."""

from __future__ import annotations

import builtins
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.utils import prune

from dpltm.errors import ArtifactError, InputError
from dpltm.features.feature_map import make_feature_map
from dpltm.generation import GenerationConfig, weights_of, without_data
from dpltm.models import ModelSpec, build
from dpltm.privacy.event_json import to_json
from dpltm.privacy.events import DatasetRef, GaussianEvent, GuaranteeEvent, SelectionEvent
from dpltm.privacy.mechanisms import GaussianRelease, Guarantee, Selection
from dpltm.tickets import export
from dpltm.tickets.export import (
    export_onnx,
    export_set,
    export_state_dict,
    export_torch_prune,
    import_pruned_module,
    import_torch_prune,
    read_origin,
)
from dpltm.tickets.feature_files import Front
from dpltm.tickets.ledger_file import open_ledger
from dpltm.tickets.origin import Origin, origin_of
from dpltm.tickets.store import problems
from dpltm.tickets.ticket_set import ledger_path, load_ticket_set, private_path
from dpltm.tickets.winner import save_winner

TIME = "2026-01-01T00:00:00Z"
SOURCE = DatasetRef("digits", "ab" * 16, "01234567", 0, 719, "places")
SPENT = GaussianEvent(SOURCE, GaussianRelease(20.0), "moments", time=TIME)
DRAWN = SelectionEvent(
    replace(SOURCE, start=719, stop=1438), Selection(0.1, 0.1), "product", "exact", 0.5, 2, "ef" * 32, time=TIME
)
ORIGIN = Origin("cd" * 32, "a name", "public", SOURCE, ())
ORIGINS = {
    "public": ORIGIN,
    "private": Origin("cd" * 32, "a name", "private", SOURCE, ()),
    "dp": Origin(
        "cd" * 32,
        'Größe "数字"',
        "dp",
        SOURCE,
        (SPENT, GuaranteeEvent(SOURCE, Guarantee(1.0), "x", time=TIME)),
    ),
    "data-free": Origin("cd" * 32, "a name", "data-free", None, ()),
}
MLP, CNN = ModelSpec("mlp:8,6", 12, 3), ModelSpec("cnn:14x14x1:3,4,5", 196, 3)
SPECS = {"mlp": MLP, "cnn": CNN}


@pytest.fixture(params=list(SPECS))
def spec(request):
    return SPECS[request.param]


def ticket_of(spec):
    """theta0, with biases that are no zeros, and a mask."""
    made = without_data(spec, GenerationConfig(rounds=2, prune=(0.4,), criterion="random", seed=3))
    generator = torch.Generator().manual_seed(2)
    values = {name: torch.randn(value.shape, generator=generator) for name, value in made.theta0.items()}
    return values, made.tickets[2].mask


def masked(spec, values, mask):
    """The network by its own layers, its weights multiplied by the mask: what every form must compute."""
    model = build(spec)
    model.load_state_dict({name: value * mask[name] for name, value in values.items()})
    return model.eval()


def records(spec, count=7):
    return torch.randn(count, spec.features, generator=torch.Generator().manual_seed(8))


def content(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def weighted(model):
    """The modules that torch prunes: those with a weight."""
    return [module for module in model.modules() if isinstance(module, (nn.Linear, nn.Conv2d))]


# --- a set to hand on ---


def used(saved):
    """A selection and a ledger, as a set has them where it was used."""
    drawn = SelectionEvent(saved.source, Selection(0.1, 0.1), "product", "exact", 0.5, 3, saved.id, time=TIME)
    open_ledger(ledger_path(saved.path)).append(drawn)
    save_winner(saved, 2, "exponential", [drawn])


@pytest.mark.parametrize("provenance", ["public", "private"])
def test_a_copy_holds_the_set_and_nothing_of_its_use(tmp_path, save, provenance):
    saved = save(tmp_path / "s", provenance=provenance)
    used(saved)
    before, saved = content(tmp_path), load_ticket_set(saved.path)
    copied = export_set(saved, tmp_path / "c" / "copy")
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == ["copy"]  # no side file, no ledger beside it
    assert {path.name for path in (tmp_path / "c" / "copy").iterdir()} == {
        *("README.md", "masks.safetensors", "theta0.safetensors", "tickets.json"),
        *(("predictors.safetensors",) if provenance == "public" else ()),
    }
    assert {name: data for name, data in content(tmp_path).items() if not name.startswith("c/")} == before
    found = load_ticket_set(copied.path)
    bare = load_ticket_set(export_set(saved, tmp_path / "bare", predictors=False).path)
    assert (bare.id, bare.is_scored, (bare.path / "predictors.safetensors").exists()) == (saved.id, False, False)
    assert problems(copied.path) == problems(bare.path) == []
    for name in ("id", "name", "criterion", "provenance", "source", "config", "events", "parent"):
        assert getattr(found, name) == getattr(saved, name)
    for one, other in zip(saved.body.tickets, found.body.tickets, strict=True):
        assert one.mask.same_as(other.mask)
        if provenance == "private":  # made from private records with no mechanism
            assert (one.predictor is not None, other.predictor, other.accuracy) == (True, None, None)
        else:
            assert all(torch.equal(value, other.predictor[name]) for name, value in one.predictor.items())
            assert other.accuracy == one.accuracy is not None


def test_a_copy_of_a_private_set_holds_no_accuracy_in_any_file(tmp_path, save, tickets):
    saved = save(tmp_path / "s", provenance="private")
    assert private_path(saved.path).is_file()
    export_set(saved, tmp_path / "c" / "copy")  # which still knows them
    assert [path.name for path in (tmp_path / "c").iterdir()] == ["copy"]
    for ticket in tickets.tickets:
        for text in (repr(ticket.accuracy), f"{ticket.accuracy:.4f}", f"{ticket.accuracy:.2%}"):
            assert not any(text.encode() in data for data in content(tmp_path / "c").values())


def test_a_copy_of_a_dp_set_still_says_what_it_spent(tmp_path, save):
    base = save(tmp_path / "p")
    spent = GaussianEvent(base.source, GaussianRelease(20.0), "moments", time=TIME)
    saved = save(tmp_path / "s", provenance="dp", events=[spent])
    copied = load_ticket_set(export_set(load_ticket_set(saved.path), tmp_path / "c").path)
    assert (copied.provenance, copied.source, copied.events) == ("dp", base.source, (spent,))


# --- plain state dicts ---


def test_a_state_dict_loads_with_safetensors_alone(tmp_path, spec):
    values, mask = ticket_of(spec)
    export_state_dict(values, mask, tmp_path / "t.safetensors", ORIGIN)
    model = build(spec)
    model.load_state_dict(load_file(tmp_path / "t.safetensors"), strict=True)
    for name, value in model.named_parameters():
        assert torch.equal(value == 0, ~mask[name])
        assert torch.equal(value[mask[name]], values[name][mask[name]])
    x = records(spec)
    assert torch.equal(model(x), masked(spec, values, mask)(x))


@pytest.mark.parametrize("strange", [torch.nan, torch.inf, -1.0])
def test_pruned_weights_are_zero_whatever_they_were(tmp_path, strange):
    """Plain zeros, no -0.0 either, as ``Mask.apply`` writes them."""
    values, mask = ticket_of(MLP)
    values["fc1.weight"][~mask["fc1.weight"]] = strange
    export_state_dict(values, mask, tmp_path / "t.safetensors", ORIGIN)
    pruned = load_file(tmp_path / "t.safetensors")["fc1.weight"][~mask["fc1.weight"]]
    assert len(pruned)
    assert not pruned.any()
    assert not pruned.signbit().any()


# --- torch.nn.utils.prune ---


def test_torch_prune_takes_its_form(tmp_path, spec):
    values, mask = ticket_of(spec)
    export_torch_prune(values, mask, tmp_path / "t.safetensors", ORIGIN)
    model = build(spec)
    for module in weighted(model):
        prune.identity(module, "weight")
    model.load_state_dict(load_file(tmp_path / "t.safetensors"), strict=True)
    x, expected = records(spec), masked(spec, values, mask)
    assert torch.equal(model(x), expected(x))
    for name, value in model.named_parameters():  # the weights under the mask are all there
        assert torch.equal(value, values[name.removesuffix("_orig")])
    for module in weighted(model):
        prune.remove(module, "weight")
    for name, value in model.named_parameters():
        assert torch.equal(value, values[name] * mask[name])
    back = import_torch_prune(tmp_path / "t.safetensors", spec)
    assert back.spec == spec
    assert [ticket.round for ticket in back.tickets] == [0, 1]
    assert back.tickets[0].mask.density == 1
    assert back.tickets[1].mask.same_as(mask)
    assert back.theta0.keys() == values.keys()
    assert all(torch.equal(value, values[name]) for name, value in back.theta0.items())
    assert all((ticket.predictor, ticket.accuracy) == (None, None) for ticket in back.tickets)


def pruned_by_torch(spec, amount=0.6, seed=4):
    model = build(spec, seed)
    for module in weighted(model):
        prune.l1_unstructured(module, "weight", amount)
    return model


def stored(path, state):
    save_file(dict(state), path)
    return path


@pytest.mark.parametrize("way", ["file", "model"])
def test_a_model_that_torch_pruned(tmp_path, spec, way):
    model, before = pruned_by_torch(spec), weights_of(build(spec, 4))
    if way == "file":
        tickets = import_torch_prune(stored(tmp_path / "t.safetensors", model.state_dict()), spec)
    else:
        tickets = import_pruned_module(model, spec)
    mask = tickets.tickets[1].mask
    for name, value in before.items():
        assert torch.equal(tickets.theta0[name], value)
        if value.ndim < 2:
            assert bool(mask[name].all())
            continue
        order = value.abs().flatten().sort().values  # L1: the smallest of each layer are gone
        gone = round(0.6 * value.numel())
        assert torch.equal(mask[name], value.abs() > order[gone - 1])
    x = records(spec)
    assert torch.equal(masked(spec, tickets.theta0, mask)(x), model.eval()(x))


def test_a_model_in_memory_stays_as_it_is():
    model = pruned_by_torch(MLP)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    tickets = import_pruned_module(model, MLP)
    for value in tickets.theta0.values():
        value.fill_(7.0)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.fixture
def state():
    """The state dict of a good model, to be spoiled."""
    return {name: value.clone() for name, value in pruned_by_torch(MLP).state_dict().items()}


def refused(call, kind=InputError):
    with pytest.raises(kind) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    return message


def everywhere(state, value):
    for name in state:
        if name.endswith("_mask"):
            state[name].fill_(value)


def put(name, value, under=None):
    """Writes a value into a tensor: at one place, or wherever the weight's mask is ``under``."""

    def spoil(state):
        if under is None:
            state[name].view(-1)[1] = value
        else:
            state[name][state["fc1.weight_mask"] == under] = value

    return spoil


NO_MASK = "fc2.weight_mask holds values other than 0 and 1; it is no mask"
SPOILED = {
    **{f"mask of {v}": (put("fc2.weight_mask", v), NO_MASK) for v in (0.5, -1.0, 2.0, 1e-9, torch.nan, torch.inf)},
    "layer pruned whole": (
        lambda state: state["fc2.weight_mask"].zero_(),
        "fc2.weight is pruned whole, so nothing comes through; keep at least one weight",
    ),
    "nothing pruned": (lambda state: everywhere(state, 1.0), "its masks prune nothing"),
    "pruned bias": (put("fc1.bias_mask", 0.0), "fc1.bias is pruned, but only weights can be: biases stay live"),
    **{
        f"{value} {place}": (put(name, value, under), f"{name.removesuffix('_orig')} holds a weight that is not finite")
        for value in (torch.nan, torch.inf, -torch.inf)
        for place, name, under in (
            ("live", "fc1.weight_orig", 1), ("pruned", "fc1.weight_orig", 0), ("bias", "fc2.bias", None)
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("case", SPOILED)
def test_what_is_no_ticket(tmp_path, case):
    """Training a ticket that is not finite would be NaN, and its budget spent; under the mask it is no better."""
    spoil, why = SPOILED[case]
    model = pruned_by_torch(MLP)
    prune.identity(model.fc1, "bias")
    state = model.state_dict()  # of the same memory
    spoil(state)
    path = stored(tmp_path / "t.safetensors", state)
    assert refused(lambda: import_torch_prune(path, MLP)) == f"{path}: {why}"
    assert refused(lambda: import_pruned_module(model, MLP)) == f"model: {why}"


def test_a_model_that_torch_did_not_prune():
    assert refused(lambda: import_pruned_module(build(MLP, 1), MLP)) == "model: its masks prune nothing"


def test_a_bias_under_a_mask_that_prunes_nothing(tmp_path):
    model = pruned_by_torch(MLP)
    prune.identity(model.fc1, "bias")
    save_file(dict(model.state_dict()), tmp_path / "t.safetensors")
    for tickets in (import_torch_prune(tmp_path / "t.safetensors", MLP), import_pruned_module(model, MLP)):
        assert torch.equal(tickets.theta0["fc1.bias"], model.fc1.bias_orig)
        assert bool(tickets.tickets[1].mask["fc1.bias"].all())


def test_a_file_of_which_torch_pruned_some_layers(tmp_path, spec):
    """The others are there by their plain names, and dense."""
    model, before = build(spec, 4), weights_of(build(spec, 4))
    prune.l1_unstructured(model.fc1, "weight", 0.5)
    assert "fc2.weight" in model.state_dict()
    path = stored(tmp_path / "t.safetensors", model.state_dict())
    first, second = import_torch_prune(path, spec), import_pruned_module(model, spec)
    mask = first.tickets[1].mask
    assert mask.same_as(second.tickets[1].mask)
    pruned = {name: int((~value).sum()) for name, value in mask.items() if not bool(value.all())}
    assert pruned == {"fc1.weight": round(0.5 * before["fc1.weight"].numel())}
    assert first.theta0.keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in first.theta0.items())


def both_names(state):
    state["fc1.weight"] = state["fc1.weight_orig"] * state["fc1.weight_mask"]


@pytest.mark.parametrize(
    "spoil", [lambda state: state.pop("fc1.weight_orig"), lambda state: state.pop("fc1.weight_mask"), both_names]
)
def test_neither_pruned_nor_plain(tmp_path, state, spoil):
    """A mask without its weights, weights without their mask, and a weight by both names."""
    spoil(state)
    path = stored(tmp_path / "t.safetensors", state)
    assert "fc1.weight" in refused(lambda: import_torch_prune(path, MLP), ArtifactError)


@pytest.mark.parametrize(
    "other", [ModelSpec("mlp:8,6", 13, 3), ModelSpec("mlp:8,6", 12, 4), ModelSpec("mlp:9,6", 12, 3)]
)
def test_another_network(tmp_path, state, other):
    save_file(state, tmp_path / "t.safetensors")
    refused(lambda: import_torch_prune(tmp_path / "t.safetensors", other), ArtifactError)
    assert refused(lambda: import_pruned_module(pruned_by_torch(MLP), other)).startswith("model: fc")


def test_other_names(tmp_path, state):
    state["head.weight_orig"] = state.pop("fc3.weight_orig")
    save_file(state, tmp_path / "t.safetensors")
    assert "weight_orig" in refused(lambda: import_torch_prune(tmp_path / "t.safetensors", MLP), ArtifactError)
    model = nn.Sequential(nn.Linear(12, 3))
    prune.l1_unstructured(model[0], "weight", 4)
    assert refused(lambda: import_pruned_module(model, MLP)).startswith("model: fc1.weight: None in the model")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_another_dtype_in_a_file(tmp_path, state, dtype):
    save_file({name: value.to(dtype) for name, value in state.items()}, tmp_path / "t.safetensors")
    refused(lambda: import_torch_prune(tmp_path / "t.safetensors", MLP), ArtifactError)


def test_a_model_in_memory_of_another_dtype():
    model = pruned_by_torch(MLP).double()
    tickets = import_pruned_module(model, MLP)
    assert {value.dtype for value in tickets.theta0.values()} == {torch.float32}


@pytest.mark.parametrize("name", ["attention_mask", "weight_orig_mask", "running_orig", "more_mask_orig"])
def test_a_buffer_that_only_sounds_like_pruning(name):
    """It is no part of the network that is asked for, so it is refused by its name."""
    model = pruned_by_torch(MLP)
    model.fc1.register_buffer(name, torch.ones(3))
    assert (
        refused(lambda: import_pruned_module(model, MLP)) == f"model: fc1.{name}: (3,) in the model, None in mlp:8,6"
    )


# --- where an exported ticket comes from ---


def written(path, form, origin, spec=MLP):
    write = export_state_dict if form == "state-dict" else export_torch_prune
    write(*ticket_of(spec), path, origin)
    return path


@pytest.mark.parametrize("form", ["state-dict", "torch-prune"])
@pytest.mark.parametrize("name", ORIGINS)
def test_a_file_says_where_it_comes_from(tmp_path, form, name):
    assert read_origin(written(tmp_path / "t.safetensors", form, ORIGINS[name]), MLP) == ORIGINS[name]


def test_a_set_says_where_its_tickets_come_from(tmp_path, save):
    saved = save(tmp_path / "s", provenance="dp", source=SOURCE, events=[SPENT])
    origin = origin_of(load_ticket_set(saved.path))
    assert origin == origin_of(saved) == Origin(saved.id, "a name", "dp", SOURCE, (SPENT,))
    assert Origin.from_json(json.loads(json.dumps(origin.to_json()))) == origin


def test_the_origin_by_the_letter():
    assert ORIGINS["dp"].to_json() == {
        "id": "cd" * 32,
        "name": 'Größe "数字"',
        "provenance": "dp",
        "source": {"name": "digits", "id": "ab" * 16, "key_id": "01234567", "start": 0, "stop": 719, "cut": "places"},
        "events": [to_json(event) for event in ORIGINS["dp"].events],
        "draws": [],
        "feature_map": None,
    }
    assert replace(ORIGINS["dp"], draws=(DRAWN,)).to_json() == {**ORIGINS["dp"].to_json(), "draws": [to_json(DRAWN)]}
    assert ORIGINS["data-free"].to_json()["source"] is None


BODY = ORIGINS["dp"].to_json()
FRONT = Front.of(make_feature_map("unit:1", (12,), (0.0, 1.0)))


@pytest.mark.parametrize("form", ["state-dict", "torch-prune"])
def test_a_file_says_what_stands_in_front(tmp_path, form):
    origin = replace(ORIGIN, front=FRONT)
    assert read_origin(written(tmp_path / "t.safetensors", form, origin)) == origin
    before = {key: value for key, value in ORIGIN.to_json().items() if key != "feature_map"}
    assert Origin.from_json(before) == replace(ORIGIN, complete=False), "written before files said so"


@pytest.mark.parametrize(
    "stated",
    [
        "",
        "{",
        "null",
        "[]",
        '"public"',
        "[" * 100_000,
        json.dumps({**BODY, "more": 1}),
        json.dumps({key: value for key, value in BODY.items() if key != "events"}),
        json.dumps({key: value for key, value in BODY.items() if key != "source"}),
        json.dumps({**BODY, "events": []}),
        json.dumps({**BODY, "provenance": "public"}),
        json.dumps({**BODY, "provenance": "private"}),
        json.dumps({**BODY, "provenance": "data-free", "source": None}),
        json.dumps({**BODY, "provenance": "unknown"}),
        json.dumps({**BODY, "provenance": None}),
        json.dumps({**BODY, "provenance": ["dp"]}),
        json.dumps({**BODY, "provenance": {}}),
        json.dumps({**BODY, "source": None}),
        json.dumps({**BODY, "source": {**BODY["source"], "stop": 720}}),
        json.dumps({**BODY, "source": {**BODY["source"], "name": "\x1b[2J"}}),
        json.dumps({**BODY, "source": {**BODY["source"], "stop": 0}}),
        json.dumps({**BODY, "events": None}),
        json.dumps({**BODY, "events": [BODY["events"][0]] * 2}),
        json.dumps({**BODY, "events": [{**BODY["events"][0], "noise_multiplier": -1.0}]}),
        json.dumps({**BODY, "events": [{**BODY["events"][0], "what": "\x1b[2J"}]}),
        json.dumps({**BODY, "name": "two\nlines"}),
        json.dumps({**BODY, "name": "x" * 201}),
        json.dumps({**BODY, "name": 5}),
        json.dumps({**BODY, "id": None}),
        json.dumps({**BODY, "feature_map": {}}),
        json.dumps({**BODY, "feature_map": "unit:1"}),
        json.dumps({**BODY, "feature_map": {**FRONT.to_json(), "id": 5}}),
        json.dumps({**BODY, "feature_map": {**FRONT.to_json(), "more": 1}}),
        json.dumps({**BODY, "feature_map": {**FRONT.to_json(), "network": {"model": "mlp"}}}),
        json.dumps({**BODY, "feature_map": {**FRONT.to_json(), "events": [{"kind": "other"}]}}),
    ],
    ids=lambda text: text[:60],
)
def test_an_origin_that_makes_no_sense(tmp_path, state, stated):
    """One line that names the file; never taken for a file that does not say."""
    path = tmp_path / "t.safetensors"
    save_file(state, path, metadata={"dpltm_origin": stated})
    message = refused(lambda: read_origin(path, MLP), ArtifactError)
    assert message.startswith(f"{path}: ")
    assert message.isprintable()


def raw_file(path, header, body=b""):
    data = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(data).to_bytes(8, "little") + data + body)
    return path


@pytest.mark.parametrize("size", [3, 100, 2**40, 2**64 - 1])
def test_a_header_longer_than_its_file(tmp_path, size):
    path = tmp_path / "t.safetensors"
    path.write_bytes(size.to_bytes(8, "little") + b"{}")
    assert refused(lambda: read_origin(path, MLP), ArtifactError) == f"{path}: not a valid safetensors file"


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"5",
        b"\xff\xfe",
        b"[" * 100_000,
        {"__metadata__": None},
        {"__metadata__": []},
        {"__metadata__": "text"},
        {"__metadata__": {"dpltm_origin": 5}},
        {"__metadata__": {"dpltm_origin": None}},
        {"__metadata__": {"dpltm_origin": BODY}},
        {"__metadata__": {"other": ["x"]}},
    ],
    ids=lambda header: str(header)[:40],
)
def test_a_header_that_is_none(tmp_path, header):
    path = raw_file(tmp_path / "t.safetensors", header)
    for read in (read_origin, import_torch_prune):
        assert refused(lambda read=read: read(path, MLP), ArtifactError) == f"{path}: not a valid safetensors file"


def test_metadata_of_others_beside_the_tensors(tmp_path, state):
    """Which say nothing of where it comes from; up to 64 KiB, and no more."""
    path = tmp_path / "t.safetensors"
    for metadata in (None, {"format": "pt"}):
        save_file(state, path, metadata=metadata)
        assert read_origin(path, MLP) is None
    save_file(state, path, metadata={"notes": "x" * 60_000})
    assert import_torch_prune(path, MLP).tickets[1].mask.density < 1
    save_file(state, path, metadata={"notes": "x" * 2**17})
    assert "bytes, where" in refused(lambda: import_torch_prune(path, MLP), ArtifactError)


@pytest.mark.parametrize("form", ["state-dict", "torch-prune"])
def test_whatever_is_exported_can_be_read_again(tmp_path, save, form):
    """The longest texts that a set may have, in several events."""
    source = replace(SOURCE, name="ü" * 200, id="ü" * 200, key_id="ü" * 200, cut="positions")
    events = [GuaranteeEvent(source, Guarantee(1.0), "ü" * 1000, time=f"{number:0300d}") for number in range(2)]
    saved = save(tmp_path / "s", name="ü" * 200, provenance="dp", source=source, events=events)
    path = written(tmp_path / "t.safetensors", form, origin_of(load_ticket_set(saved.path)))
    assert read_origin(path, MLP).events == tuple(events)
    if form == "torch-prune":
        assert import_torch_prune(path, MLP).tickets[1].mask.same_as(ticket_of(MLP)[1])


@pytest.mark.parametrize("key", ["events", "draws"])
@pytest.mark.parametrize("form", ["state-dict", "torch-prune"])
def test_more_than_32_kib_to_go_along_are_refused(tmp_path, form, key):
    """What a file may not state it may not leave out either."""
    one, base = (DRAWN, ORIGIN) if key == "draws" else (SPENT, ORIGINS["dp"])
    few = replace(base, **{key: (one,)})
    each = len(json.dumps(replace(base, **{key: (one, one)}).to_json())) - len(json.dumps(few.to_json()))
    most = 1 + (2**15 - len(json.dumps(few.to_json()))) // each
    path = tmp_path / "t.safetensors"
    for number, fits in ((most, True), (most + 1, False)):
        origin = replace(base, **{key: tuple(replace(one, time=f"{place:0{len(TIME)}d}") for place in range(number))})
        assert (len(json.dumps(origin.to_json())) <= 2**15) == fits
        if fits:
            assert read_origin(written(path, form, origin), MLP) == origin
            path.unlink()
            continue
        assert refused(lambda origin=origin: written(path, form, origin)) == (
            f"{origin.name}: {number} releases are too many to go with a file; export the whole set"
        )
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("data", [b"", b"x" * 100, b"\xff" * 2000, None], ids=["empty", "short", "noise", "pickle"])
def test_no_safetensors_file(tmp_path, state, data):
    path = tmp_path / "t.safetensors"
    torch.save(state, path) if data is None else path.write_bytes(data)
    assert refused(lambda: import_torch_prune(path, MLP), ArtifactError).startswith(f"{path}: ")
    assert refused(lambda: import_torch_prune(tmp_path / "none", MLP), ArtifactError).endswith(
        "No such file or directory"
    )


# --- ONNX ---


def needs_onnx():
    pytest.importorskip("onnx", reason="the package onnx is not installed, so ONNX files cannot be made")
    pytest.importorskip("onnxscript", reason="the package onnxscript is not installed, so ONNX files cannot be made")


def test_onnx_gives_the_same_outputs(tmp_path, spec):
    """By the interpreter of the standard itself, for other batches than the one it was traced with."""
    needs_onnx()
    import onnx
    from onnx.reference import ReferenceEvaluator

    values, mask = ticket_of(spec)
    values["fc1.weight"][~mask["fc1.weight"]] = torch.nan  # what is pruned must not come through
    path = tmp_path / "t.onnx"
    export_onnx(spec, values, mask, path)
    assert [file.name for file in tmp_path.iterdir()] == ["t.onnx"]
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    assert [item.name for item in model.graph.input] == ["records"]
    assert [item.name for item in model.graph.output] == ["outputs"]
    values["fc1.weight"] = values["fc1.weight"].nan_to_num(0.0)
    expected, evaluate = masked(spec, values, mask), ReferenceEvaluator(model)
    for count in (1, 2, 7):
        x = records(spec, count)
        (found,) = evaluate.run(None, {"records": x.numpy()})
        wanted = expected(x).detach().numpy()
        assert found.shape == (count, spec.classes)
        assert np.abs(found - wanted).max() <= 1e-5 * max(1.0, np.abs(wanted).max())


@pytest.mark.parametrize("missing", ["onnx", "onnxscript"])
def test_without_the_optional_packages(tmp_path, monkeypatch, missing):
    needs_onnx()
    original = builtins.__import__

    def without(name, *args, **kwargs):
        if name == missing:
            raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    message = refused(lambda: export_onnx(MLP, *ticket_of(MLP), tmp_path / "t.onnx"))
    assert message == f"`to`: onnx needs the package {missing}; pip install 'dpltm[onnx]'"
    assert list(tmp_path.iterdir()) == []


# --- where it is written ---

FORMS = {
    "state-dict": lambda path: export_state_dict(*ticket_of(MLP), path, ORIGIN),
    "torch-prune": lambda path: export_torch_prune(*ticket_of(MLP), path, ORIGIN),
    "onnx": lambda path: (needs_onnx(), export_onnx(MLP, *ticket_of(MLP), path)),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("taken", ["file", "folder", "link"])
def test_nothing_is_written_over(tmp_path, form, taken):
    path = tmp_path / "t.safetensors"
    if taken == "file":
        path.write_bytes(b"precious")
    elif taken == "folder":
        path.mkdir()
    else:
        path.symlink_to(tmp_path / "elsewhere")
    before = sorted(tmp_path.iterdir())
    assert refused(lambda: FORMS[form](path), ArtifactError) == (
        f"`out`: {path} exists already; choose another name or remove it first"
    )
    assert sorted(tmp_path.iterdir()) == before
    assert taken != "file" or path.read_bytes() == b"precious"
    assert not (tmp_path / "elsewhere").exists()


def test_a_set_is_not_written_over(tmp_path, save):
    saved = save(tmp_path / "s")
    before = content(tmp_path)
    assert refused(lambda: export_set(saved, saved.path), ArtifactError).endswith(
        "s exists already; choose another name or remove it first"
    )
    assert content(tmp_path) == before


@pytest.mark.parametrize("form", ["state-dict", "torch-prune"])
@pytest.mark.parametrize("name", ["t.pt", "t", "t.npz"])
def test_tensors_are_called_safetensors(tmp_path, form, name):
    assert refused(lambda: FORMS[form](tmp_path / name), ArtifactError) == (
        f"`out`: {tmp_path / name}: tensors are written as safetensors; name it t.safetensors"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("form", FORMS)
def test_nothing_is_left_of_a_write_that_failed(tmp_path, monkeypatch, form):
    """Neither a file nor the folders made for it."""

    def fails(path, *_args, **_kwargs):
        if form != "onnx":
            path.write_bytes(b"half of it")
        raise KeyboardInterrupt

    monkeypatch.setattr(export, "write_tensors", fails)
    monkeypatch.setattr(torch.onnx, "export", fails)
    for place in (tmp_path / "t.safetensors", tmp_path / "a" / "b" / "t.safetensors"):
        with pytest.raises(KeyboardInterrupt):
            FORMS[form](place)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_appears_meanwhile_is_not_replaced(tmp_path, monkeypatch):
    original = export.write_tensors

    def slow(path, *args, **kwargs):
        original(path, *args, **kwargs)
        (tmp_path / "t.safetensors").write_bytes(b"somebody else's")

    monkeypatch.setattr(export, "write_tensors", slow)
    assert "exists already" in refused(lambda: FORMS["state-dict"](tmp_path / "t.safetensors"), ArtifactError)
    assert content(tmp_path) == {"t.safetensors": b"somebody else's"}


@pytest.mark.parametrize("form", ["state-dict", "torch-prune"])
def test_the_same_ticket_gives_the_same_bytes_for_everybody(tmp_path, form):
    """The header has one key of its own: of several the order would vary from process to process."""
    for number in range(10):
        FORMS[form](tmp_path / f"{number}.safetensors")
    assert len(set(content(tmp_path).values())) == 1
    assert (tmp_path / "0.safetensors").stat().st_mode & 0o777 == 0o644
    data = (tmp_path / "0.safetensors").read_bytes()
    metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    assert metadata.keys() == {"dpltm_origin"}
    assert json.loads(metadata["dpltm_origin"]) == ORIGIN.to_json()
