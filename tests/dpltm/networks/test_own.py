"""Modules of the user's own as networks: what is taken, what is compared, and what is refused before anything is spent."""

import copy
import dataclasses
import json
import random
from collections import OrderedDict
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import dpltm
from dpltm.api import as_dataset
from dpltm.criteria import CRITERIA, PruningRound
from dpltm.errors import ArtifactError
from dpltm.features.inputs import batched_records
from dpltm.filters import Clip
from dpltm.gradients import RecordGradients
from dpltm.networks import build, model_spec
from dpltm.networks.evaluation import count_correct, total_score
from dpltm.networks.own import own_model
from dpltm.networks.own_network import OwnNetwork, network_notes
from dpltm.networks.state import put, weights_of
from dpltm.options.generate import GenerateOptions
from dpltm.pruning.generation import dense_mask, make_schedule, without_data
from dpltm.training.descent import cross_entropy
from opened import arrays_of
from own_networks import CASES, CLASSES, LABELS, PARTS, Case, FrozenNorm, HandMade, ResNet20
from refusals import refused


def dataset(case: Case, count: int = 30):
    facts = case.facts if case.labels is None else {**case.facts, "classes": 0}
    return as_dataset(*case.records(count, 0), {**facts, "name": "some"})


def network(model, case: Case = CASES["hand-made"], **settings) -> OwnNetwork:
    return model_spec(own_model(model, **settings), dataset(case))


def message(model, case: Case = CASES["hand-made"], **settings) -> str:
    return refused(network, model, case, **settings)


# --- what it computes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_names_and_outputs_are_those_of_the_module(name):
    case = CASES[name]
    spec = network(case.model, case)
    model = build(spec, 5)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        plain = case.model()
    assert list(dict(model.named_parameters())) == list(dict(plain.named_parameters()))
    assert all(torch.equal(value, plain.state_dict()[name]) for name, value in model.state_dict().items())
    x = torch.rand(4, spec.features)
    stored = x.view(4, *case.shape)
    expected = plain.eval()(stored.permute(0, 3, 1, 2) if len(case.shape) == 3 else stored)
    torch.testing.assert_close(model.eval()(x), expected)


LARGE = {"resnet-20", "bert by name"}
"""Of layers that smaller networks here and in tests/dpltm/gradients have, too."""


@pytest.mark.one_of(4)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if name in LARGE else ()) for name in (*CASES, *LABELS, *PARTS)]
)
def test_sums_are_those_of_a_loop_over_records(name):
    """Clipped to norm 1/10 and summed, one record at a time by autograd."""
    case = {**CASES, **LABELS, **PARTS}[name]
    spec = network(case.model, case, **case.settings)
    model, mask, loss = build(spec, 1), dense_mask(spec), spec.loss or cross_entropy
    given = as_dataset(*case.records(5, 2), {**case.facts, "classes": CLASSES if case.labels is None else 0})
    x, y = batched_records(arrays_of(given.train), given).take(np.arange(5))
    engine = RecordGradients(model, mask, loss)
    found = engine.filtered_sum(x, y, Clip(0.1)).values / engine.rounding
    trained = [value for value in model.parameters() if value.requires_grad]
    total = torch.zeros(mask.live, dtype=torch.float64)
    for record in range(5):
        value = loss(model(x[record : record + 1]), y[record : record + 1]).sum()
        gradients = torch.autograd.grad(value, trained, allow_unused=True)
        parts = [torch.zeros_like(p) if g is None else g for p, g in zip(trained, gradients, strict=True)]
        flat = torch.cat([part.flatten() for part in parts]).double()
        total += flat * min(1.0, 0.1 / float(flat.norm()))
    torch.testing.assert_close(found, total, rtol=1e-4, atol=1e-6)


def test_grey_images_get_a_channel_and_sequences_stay():
    """Of a record of two dimensions either may be meant: the module says which it takes."""
    x, y = np.zeros((6, 8, 8), np.uint8), np.arange(6) % 3
    records = as_dataset(x, y, {"classes": 3, "bounds": (0, 1)})
    images = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 3))
    assert model_spec(own_model(lambda: copy.deepcopy(images), start_provenance="public"), records).form == "image"

    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = nn.GRU(8, 4, batch_first=True), nn.Linear(4, 3)

        def forward(self, x):
            return self.head(self.cell(x)[0][:, -1])

    assert model_spec(own_model(Steps), records).form == "stored"


def test_a_class_is_initialised_under_each_seed_and_an_instance_is_copied():
    torch.manual_seed(0)
    state = torch.get_rng_state()
    spec = network(HandMade)
    first, again, other = (weights_of(build(spec, seed)) for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["fc1.weight"], other["fc1.weight"])
    instance = HandMade()
    before = copy.deepcopy(instance.state_dict())
    built = build(network(instance, start_provenance="data-free"), 9)
    with torch.no_grad():
        built.fc1.weight.zero_()
    assert type(instance) is HandMade
    assert all(torch.equal(value, before[name]) for name, value in instance.state_dict().items())


def test_inputs_and_logits():
    class Answer(dict):
        pass

    class Named(HandMade):
        def forward(self, *, numbers, scale):
            return Answer(logits=super().forward(numbers) * scale)

    spec = network(Named, inputs=lambda x: {"numbers": x, "scale": 2.0})
    plain = build(network(HandMade), 0)
    x = torch.rand(3, 6)
    torch.testing.assert_close(build(spec, 0)(x), 2 * plain(x))


# --- freezing, pruning, starting --------------------------------------------------------------------------------------


def test_frozen_parameters_are_neither_live_nor_pruned():
    spec = network(HandMade, freeze=["fc1.*"])
    assert spec.prunable == ("fc2.weight",)
    mask = dense_mask(spec)
    assert (mask.live, mask.density) == (8 * 3 + 3, 1.0)
    made = without_data(spec, GenerateOptions(rounds=2, criterion="random", prune=(0.5,)).for_records(1000))
    last = made.tickets[-1].mask
    assert (last.live, last.density) == (6 + 3, 6 / 24)
    assert bool(last["fc1.weight"].all())
    assert [value.requires_grad for value in build(spec, 0).parameters()] == [False, False, True, True]


def test_a_start_is_loaded_and_everything_that_does_not_fit_is_listed(tmp_path):
    from safetensors.torch import save_file

    weights = HandMade().state_dict()
    save_file(weights, tmp_path / "w.safetensors")
    built = build(network(HandMade, start=tmp_path / "w.safetensors", start_provenance="public"), 0)
    assert all(torch.equal(value, weights[name]) for name, value in built.state_dict().items())
    wrong = {"fc1.weight": torch.zeros(8, 6), "fc2.weight": torch.zeros(2, 8), "fc2.bias": torch.zeros(3)}
    wrong["x"] = torch.zeros(1)
    assert message(HandMade, start=wrong, start_provenance="public") == (
        "`start`: the state dict does not fit the network. missing: fc1.bias; additional: x; of another shape: fc2.weight"
        " (2, 8) for (3, 8)"
    )
    said = "`start`: nowhere.safetensors cannot be read"
    assert message(HandMade, start="nowhere.safetensors", start_provenance="public").startswith(said)


def test_weights_that_are_handed_in_are_declared():
    asked = "`start_provenance` is missing: say what the weights of own_networks:HandMade depend on"
    assert message(HandMade()).startswith(asked)
    given = HandMade()
    assert "the same under every seed" in message(lambda: given)
    said = "`start_provenance`: 'private' is not data-free or public"
    assert message(HandMade(), start_provenance="private").startswith(said)
    assert network(HandMade(), start_provenance="public").start_provenance == "public"


def partly(change):
    """A factory that draws, and puts something fixed into its weights."""

    def made():
        module, fixed = HandMade(), torch.Generator().manual_seed(7)
        with torch.no_grad():
            for value in module.parameters():
                change(value, torch.randn(value.shape, generator=fixed))
        return module

    return made


FIXED = {
    "jitter": lambda value, trained: value.mul_(1e-6).add_(trained) if value.ndim > 1 else value,
    "all but the first": lambda value, trained: value.flatten()[1:].copy_(trained.flatten()[1:]),
    "biases": lambda value, trained: value if value.ndim > 1 else value.copy_(trained),
    "a tenth": lambda value, trained: value[: max(len(value) // 10, 1)].copy_(trained[: max(len(value) // 10, 1)]),
}


@pytest.mark.parametrize("what", FIXED)
def test_weights_of_which_a_part_is_drawn_are_declared(what):
    """Weights that were trained on private records pass as drawn otherwise, with a little noise in them."""
    assert "`start_provenance` is missing" in message(partly(FIXED[what]))


def test_constants_in_drawn_weights_need_no_declaration():
    def change(value, _):
        value[0] = 0.0
        if value.ndim == 1:
            value.fill_(-4.6)

    assert network(partly(change)).start_provenance == "data-free"


def test_the_code_is_compared_with_what_was_made():
    spec = network(HandMade)
    values = weights_of(build(spec, 0))
    spec = dataclasses.replace(spec, own=None)
    found = spec.with_code(own_model(HandMade), values)
    assert found.own is not None
    assert network_notes(found) == ()

    class Smooth(HandMade):
        def forward(self, x):
            return self.fc2(torch.tanh(self.fc1(x)))

    class Wider(HandMade):
        def __init__(self):
            super().__init__()
            self.fc1 = nn.Linear(6, 9)

    assert refused(spec.with_code, own_model(Smooth), values).endswith(
        "has the same parameters, but computes something else with them: it is another network than the one that this was"
        " made with"
    )
    said = "is another network than the one that this was made with: fc1.weight is (9, 6), and was (8, 6)"
    assert refused(spec.with_code, own_model(Wider), values).endswith(said)
    said = "`freeze`: the network that"
    assert refused(spec.with_code, own_model(HandMade, freeze=["fc1.*"]), values).startswith(said)
    other = dataclasses.replace(spec, source_sha256="0" * 64)
    [note] = network_notes(other.with_code(own_model(HandMade), values))
    assert note.startswith("the file of own_networks:HandMade is not the one")


def test_a_layout_goes_through_json_and_back():
    case = CASES["frozen-norm"]
    spec = network(FrozenNorm, case, freeze=["norm.*"])
    body = json.loads(json.dumps(spec.to_json()))
    document = {"model": spec.text, "features": spec.features, "classes": spec.classes}
    back = OwnNetwork.from_json("x", document, body).with_outputs("x", body, spec.outputs)
    assert back.identity == spec.identity
    assert list(back.buffers) == ["norm.running_mean", "norm.running_var", "norm.num_batches_tracked"]
    assert list(dict(build(back).named_parameters())) == list(back.shapes())
    assert refused(build(back), torch.zeros(1, spec.features)) == (
        "this network: the code of its network, 'own_networks:FrozenNorm', is not at hand; name its model, as"
        " FILE.py:NAME or in dpltm.tickets.load(path, model=MyNet)"
    )
    for change in (
        {"frozen": ["x"]}, {"prunable": ["conv.bias"]}, {"parameters": [["training", [3]]]}, {"form": "odd"},
        {"outputs": [[9, 3], "0"]},
        {"parameters": [["a", [2**30, 2**30]]]}, {"parameters": [["b.c", [1]], ["a", [1]]]}, {"record": [2]}, {"more": 1},
        {"parameters": [["\x1b[2J", [1]]]},
    ):  # fmt: skip
        assert "x: own: " in refused(OwnNetwork.from_json, "x", document, {**body, **change}, kind=ArtifactError)


# --- refusals ---------------------------------------------------------------------------------------------------------


class Forgetful(HandMade):
    count = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).count += 1
        if self.count % 2:
            self.fc3 = nn.Linear(1, 1)


class Numpy(HandMade):
    def __init__(self) -> None:
        super().__init__()
        self.fc1.weight = nn.Parameter(torch.from_numpy(np.random.rand(8, 6)).float())


def forwards(change):
    """A network that makes something else of its outputs and the records."""

    class Changed(HandMade):
        def forward(self, x):
            return change(super().forward(x), x)

    return Changed


Mixing = forwards(lambda out, _: out + 1e-5 * out.mean(0))  # less than records alone and in a batch may differ by
Wide = forwards(lambda out, _: out[:, :2])


class Tired(HandMade):
    """Gives something else after so many records: one more in private ones may change what is said of all that follow."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def forward(self, x):
        self.seen += len(x) * (not self.training)
        return super().forward(x) * (self.seen < 10_000)


class Failing(HandMade):
    def forward(self, x):
        raise KeyError("mine" if len(x) else "")


class Unmakeable(HandMade):
    def __init__(self) -> None:
        raise ValueError("no weights here")


def changed(change):
    def make() -> nn.Module:
        model = HandMade()
        change(model)
        return model

    return make


def complex_weights(model):
    model.fc1.weight = nn.Parameter(torch.zeros(8, 6, dtype=torch.complex64))


def elsewhere(model):
    model.fc1.to("meta")


def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 3))


@pytest.mark.parametrize(
    ("model", "said"),
    [
        *((model, "gives another network, or weights, for the same seed") for model in (Forgetful, Numpy)),
        (Mixing, "depends on the others in the batch"),
        (Tired, "Tired: seen changes with the records it sees"),
        (Failing, "fails on made-up records of shape (6,): 'mine'"),
        (Unmakeable, "cannot be made without arguments: no weights here"),
        (
            Wide,
            "gives outputs of shape (8, 2) for 8 records of 3 classes; let dimension 0 be the record, and give one",
        ),
        (changed(complex_weights), "fc1.weight is of torch.complex64"),
        (changed(elsewhere), "is on several devices (cpu, meta)"),
        (lazy, "0.weight is lazy"),
        (lambda: 3, "gives a value of type int, no torch.nn.Module"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_modules_that_are_refused(model, said):
    assert said in message(model)


class Many(HandMade):
    """Scales by the largest value of many records, or counts their places, outside training."""

    more_than, places = 8, False

    def forward(self, x):
        if not self.training and len(x) > self.more_than:
            x = x + torch.arange(len(x))[:, None] if self.places else x / x.amax()
        return super().forward(x)


class FarMany(Many):
    more_than = 33


class FarPlaces(FarMany):
    places = True


@pytest.mark.parametrize("places", [False, True])
@pytest.mark.parametrize("more_than", [8, 9, 31])
def test_batches_of_up_to_32_are_tried_as_a_network_is_made(monkeypatch, more_than, places):
    monkeypatch.setattr(Many, "more_than", more_than)
    monkeypatch.setattr(Many, "places", places)
    assert "depends on the others in the batch" in message(Many)


@pytest.mark.one_of(2)
@pytest.mark.parametrize("kind", [FarMany, FarPlaces])
@pytest.mark.parametrize("stage", ["select", "train", "estimator"])
def test_a_network_is_tried_with_as_many_records_as_are_scored_under_a_price(kind, stage):
    """Before it is paid: 1,024 (an estimator's 512), where a network is made with 32 alone."""
    draw = np.random.default_rng(0)
    x, y = draw.random((60, 6)), np.arange(60) % 3
    facts, ledger = {"bounds": (0, 1), "classes": 3}, dpltm.Ledger()
    few = {"provenance": "public", "rounds": 1, "iterations": 2, "batch_size": 20, "prune": "0.5"}
    tickets = dpltm.generate(draw.random((60, 6)), y, model=kind, ledger=dpltm.Ledger(), **few, **facts)
    price = {"noise_multiplier": 1.0, "steps": 2, "batch_size": 20, "delta": 1e-3}
    if stage == "select":
        call = partial(dpltm.select, tickets, x, y, eps1=1.0, score="additive", ledger=ledger, **facts)
    elif stage == "train":
        call = partial(dpltm.train, kind, x, y, eval_private=1.0, ledger=ledger, **price, **facts)
    else:
        own = {"bounds": (0, 1), "noise_multiplier": 1.0, "epochs": 1, "batch_size": 20, "delta": 1e-3}
        fitted = dpltm.TicketClassifier(tickets=tickets, round=1, score_epsilon=1.0, ledger=ledger, **own).fit(x, y)
        call = partial(fitted.score, x, y)
    before = len(ledger.entries)
    with pytest.raises(Exception, match="depends on the others in the batch"):
        call()
    assert len(ledger.entries) == before


class CutAt(HandMade):
    """Scales records by the length of the longest where they are padded by ``padding``."""

    padding = 0.0

    def forward(self, x):
        longest = ((x - self.padding).abs() > 1e-6).sum(1).max()
        return super().forward(x * (longest / x.shape[1]))


@pytest.mark.parametrize("padding", [0.0, 1.0, -1.0])
def test_every_end_of_scaled_records_is_tried_as_padding(monkeypatch, padding):
    monkeypatch.setattr(CutAt, "padding", padding)
    assert "depends on the others in the batch" in message(CutAt)


def first_output(outputs, labels):
    del labels
    return outputs[:, 0]


def beyond(outputs, labels):
    return 2 + 0 * first_output(outputs, labels)


def squares(outputs, labels):
    del labels
    return outputs.square().sum(1)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"loss": lambda out, y: cross_entropy(out, y).mean()},
            "`loss`: gives () for outputs (8, 3) and labels (8,) of 8 records; give one value a record",
        ),
        (
            {"loss": lambda *_: 1.0},
            "`loss`: gives float for outputs (8, 3) and labels (8,) of 8 records; give one value a record",
        ),
        ({"loss": 3}, "`loss`: 3 is not a function"),
        ({"score": beyond}, "`score`: gives values outside [0, 1] for made-up records"),
        ({"freeze": ["*"]}, "`freeze`: every parameter is frozen"),
        ({"freeze": ["fc3.*"]}, "`freeze`: no parameter of own_networks:HandMade"),
        ({"prunable": ["fc3.*"]}, "`prunable`: no weight of own_networks:HandMade"),
    ],
)
def test_settings_that_are_refused(settings, said):
    assert message(HandMade, **settings).startswith(said)


def test_outputs_that_are_no_classes_need_a_loss_and_a_score():
    wide = {"loss": squares}
    assert message(Wide, **wide).endswith("or `loss` and `score`, one value a record each")
    assert network(Wide, **wide, score=lambda *pair: (first_output(*pair) > 0).float()).outputs.shape == (8, 2)


def test_python_takes_code_as_it_is_and_not_by_name():
    x, y = CASES["hand-made"].records(30, 0)
    said = refused(dpltm.generate, x, y, model="nets.py:MyNet", provenance="public", classes=CLASSES)
    assert said.startswith("`model`: 'nets.py:MyNet' names code; import it in Python")
    assert refused(dpltm.tickets.load, "own.run", model="nets.py:MyNet") == said
    expected = "`model`: 3 is not the name of a network"
    assert refused(dpltm.generate, x, y, model=3, provenance="public").startswith(expected)


def test_scores_are_clamped_and_summed_exactly():
    """NaN is 0, what lies outside [0, 1] is at its end, and everything is a multiple of 2^-20."""
    values = torch.tensor([0.5, float("nan"), 7.0, -1.0, 1 / 3, float("inf")])
    found = total_score(nn.Identity(), values[:, None], torch.zeros(6), 4, first_output)
    assert found == 0.5 + 0.0 + 1.0 + 0.0 + round(2**20 / 3) / 2**20 + 1.0


def test_what_is_not_one_value_counts_as_none():
    """A record counts for at most 1, whatever a function of the user's own gives for it."""
    many = total_score(nn.Identity(), torch.ones(3, 1), torch.tensor([1, 0, 5]), 4, lambda _, y: torch.ones(int(y)))
    assert many == 1.0


def ties_at_random(draw):
    """Score of the largest output, where ties are broken by a coin."""
    return lambda outputs, labels: ((outputs + 1e-6 * torch.tensor(draw())).argmax(1) == labels).float()


class Seen:
    """Score that depends on how many records were scored before."""

    def __init__(self):
        self.count = 0

    def __call__(self, outputs, labels):
        self.count += len(labels)
        return first_output(outputs, labels).sigmoid() / self.count


class Late(Seen):
    """The same, from a number of records on that no trial comes to."""

    def __call__(self, outputs, labels):
        self.count += len(labels)
        return first_output(outputs, labels).sigmoid() * (self.count < 10_000)


@pytest.mark.parametrize(
    "score",
    [
        ties_at_random(lambda: torch.rand(CLASSES).tolist()),
        ties_at_random(lambda: np.random.rand(CLASSES)),
        ties_at_random(lambda: [random.random() for _ in range(CLASSES)]),
        ties_at_random(partial(np.random.default_rng(0).random, CLASSES)),
        Seen(),
        Late(),
    ],
    ids=["torch", "numpy", "python", "its own", "state", "state of late effect"],
)
def test_scores_that_a_record_more_moves_for_others_are_refused(score):
    """Each would be drawn by its place, and one record more would move as many counts as there are ties."""
    assert message(HandMade, score=score).startswith("`score`: gives another value for the same record")


def test_a_count_of_scores_moves_by_one_at_most():
    """It is the whole part of the sum, so that whole-numbered noise hides all of it."""
    y = torch.tensor([0.3, 0.9, 0.9])
    counts = [count_correct(nn.Identity(), y[:n, None], y[:n], score=first_output) for n in (1, 2, 3)]
    assert counts == [0, 1, 2]


def test_synflow_goes_through_norms_and_activations_as_if_they_were_not_there():
    """Scores of the module are those of its linear layers alone."""
    plain = nn.Sequential(OrderedDict(a=nn.Linear(6, 4), b=nn.Linear(4, 3)))
    full = nn.Sequential(OrderedDict(a=nn.Linear(6, 4), n=nn.LayerNorm(4), t=nn.GELU(), b=nn.Linear(4, 3)))
    put(full, {**weights_of(full), **weights_of(plain)})
    options = GenerateOptions(rounds=1, criterion="synflow", scope="global")
    made = [
        without_data(network(model, start_provenance="data-free"), options).tickets[1].mask for model in (plain, full)
    ]
    assert all(torch.equal(made[0][name], made[1][name]) for name in ("a.weight", "b.weight"))


def test_structured_pruning_of_a_module_and_what_it_cannot_follow():
    spec = network(HandMade)
    model, live = build(spec, 0), {"fc1.weight": 24, "fc2.weight": 12}
    step = PruningRound(model, weights_of(model), dense_mask(spec), live, "layer", torch.zeros(1, 6), 0)
    made = CRITERIA["structured"].next_mask(step)
    assert sorted(int(row.any()) for row in made["fc1.weight"])[:4] == [0] * 4
    norms = network(ResNet20, CASES["resnet-20"])
    config = GenerateOptions(rounds=2, criterion="structured", prune=(0.2,)).for_records(1000)
    assert len(make_schedule(norms, config)) == 3
    config = GenerateOptions(rounds=1, criterion="structured", prune=(0.9,)).for_records(1000)
    assert "but one unit in every layer, and what belongs to none, has " in refused(make_schedule, norms, config)
