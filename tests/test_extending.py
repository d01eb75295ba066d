"""A filter, a criterion and a kind of networks of one's own: one object each, registered in one line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import torch
from torch import Tensor, nn

from commands import PRIVATE, PUBLIC, words
from dpltm.cli.main import run
from dpltm.criteria import CRITERIA, DATA_FREE, Criterion, PruningRound
from dpltm.errors import InputError
from dpltm.filters import FILTERS, FilterDescriptor, make_filter
from dpltm.filters.descriptor import CLIP_NORM
from dpltm.local import PROTOCOLS, LocalProtocol
from dpltm.local.channels import channel
from dpltm.networks import KINDS, ModelSpec, build, for_inputs, resized, resolve
from dpltm.networks.kind import Layers, NetworkKind, NetworkName
from dpltm.networks.masks import Mask
from dpltm.options.generate import GenerateOptions
from dpltm.privacy.mechanisms import NoisySgd
from dpltm.pruning.generation import generate, without_data
from dpltm.pruning.unstructured import keep_topk
from dpltm.randomness.noise import FastSource
from dpltm.randomness.sampling import ROUNDING
from dpltm.records.batches import Records
from dpltm.registry import Deferred, Parameter, Registry
from dpltm.training.descent import train
from dpltm.training.plan import NoisySteps
from refusals import refused

SHORT = "--model mlp:8 --rounds 2 --prune 0.3 --iterations 3 --batch-size 32"


@contextmanager
def registered(registry: Registry[Any], entry: Any) -> Iterator[None]:
    """What one line in the registry does, undone afterwards."""
    registry.register(entry)
    try:
        yield
    finally:
        registry.pop(entry.name)


@pytest.fixture
def answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Runs a command in an empty folder; returns its JSON answer, or its one line of error."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> Any:
        code = run([*words(*arguments), "--json"])
        out, err = capsys.readouterr()
        if code == 2:
            assert list(tmp_path.iterdir()) == []
            return err.removeprefix("error: ").strip()
        assert code == 0, err
        return json.loads(out)

    return call


# --- a filter: half of the clipped gradient ---


@dataclass(frozen=True)
class Half:
    """Radial filter g -> min(norm, C) g / (2 norm)."""

    clip_norm: float
    kind: ClassVar[Literal["radial"]] = "radial"
    nominal_bound: ClassVar[None] = None

    def factor(self, norm: Tensor) -> Tensor:
        return (self.clip_norm / norm.clamp_min(1e-30)).clamp(max=1.0) / 2

    def certified_bound(self, live: int) -> float:
        del live
        return self.clip_norm / 2

    def __str__(self) -> str:
        return f"half(C={self.clip_norm:g})"


HALF = FilterDescriptor("half", "Half of the clipped gradient.", "this test", (CLIP_NORM,), Half)


def test_a_filter_at_the_terminal(answer):
    command = f"train --dense {PRIVATE} --model mlp:4 --filter half --steps 2 --noise-multiplier 1 --out r"
    assert answer(command).startswith("--filter: 'half' is not one of clip, per-layer, ")
    with registered(FILTERS, HALF):
        for option in ("--tanh-range 2", "--compile"):
            assert answer(command, option).startswith(f"{option.split()[0]}: only for ")
        body = answer(command, "--clip-norm 3")
    assert (body["filter"], body["sensitivity"], body["noise_std"]) == ("half(C=3)", 1.5, 1.5)


def test_a_filter_in_the_library():
    with registered(FILTERS, HALF):
        half = make_filter("half", clip_norm=3.0)
        with pytest.raises(InputError, match=r"^`clipnorm`: half has no such parameter; did you mean `clip_norm`\?$"):
            make_filter("half", clipnorm=3.0)
    model = build(ModelSpec("mlp", 2, 2))
    x, y = torch.tensor([[30.0, 40.0]] * 4), torch.zeros(4, dtype=torch.int64)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    config = NoisySteps(half, NoisySgd(1.0, 1, 0.0), 4.0, 1.0)
    train(model, Mask.dense(model), Records(x, y), config, sampling=FastSource(0), noise=FastSource(0))
    step = torch.cat([value.flatten() for value in model.parameters()])
    # of size 1 along a mean gradient that is longer than C, without noise
    assert step.norm().item() == pytest.approx(1.5 * ROUNDING, rel=1e-4)


# --- a criterion: the last weights go first ---


def by_place(step: PruningRound) -> Mask:
    scores = {name: -torch.arange(step.mask[name].numel()).view_as(step.mask[name]).double() for name in step.live}
    return keep_topk(scores, step.mask, step.live, step.scope)


PLACE = Criterion("place", "The last weights go first.", "this test", "nothing", by_place, scope="global")


def test_a_criterion_at_the_terminal(answer):
    command = f"generate {PUBLIC} {SHORT} --criterion place --provenance public --out t"
    assert answer(command).endswith("structured, dp-train")
    free = f"generate {PUBLIC} --rounds 2 --criterion place --out free"
    with registered(CRITERIA, PLACE):
        for option in ("--lr 1", "--epsilon 1"):
            assert answer(free, option).startswith(f"{option.split()[0]}: ")
        assert answer(free)["provenance"] == "data-free"
        assert [row["round"] for row in answer(command)["tickets"]] == [0, 1, 2]
    settings = json.loads(Path("t/tickets.json").read_text())["config"]
    assert (settings["criterion"], settings["scope"]) == ("place", "global")


def test_a_criterion_in_the_library():
    spec, x, y = ModelSpec("mlp:3", 4, 2), torch.eye(4), torch.arange(4) % 2
    config = {"rounds": 1, "prune": (0.5,), "iterations": 1, "batch_size": 4, "criterion": "place", "scope": "layer"}
    with registered(CRITERIA, PLACE):
        assert "place" in DATA_FREE
        made = [
            generate(spec, (x, y), GenerateOptions(**config).for_records(1000)),
            without_data(spec, GenerateOptions(**config).for_records(1000)),
        ]
    for tickets in made:
        assert tickets.tickets[1].mask["fc1.weight"].flatten().tolist() == [True] * 6 + [False] * 6


def keeps_all(step: PruningRound) -> Mask:
    return step.mask


def from_the_dense_one(step: PruningRound) -> Mask:
    """As many as the round says, of all that there are: what went before may come again."""
    scores = {name: torch.rand(step.trained[name].shape, dtype=torch.float64) for name in step.live}
    dense = step.mask.replaced({name: torch.ones_like(step.mask[name]) for name in step.live})
    return keep_topk(scores, dense, step.live, step.scope)


def drops_a_layer(step: PruningRound) -> Mask:
    return step.mask["no such layer"]  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("next_mask", "records", "message"),
    [
        (keeps_all, f"{PUBLIC} --provenance public", "wrong: gives no mask of 414 weights within"),
        (from_the_dense_one, f"{PRIVATE} --provenance private", "wrong: gives no mask of "),
        (drops_a_layer, PUBLIC, "wrong: fails on made-up weights: 'no such layer'"),
    ],
)
def test_a_criterion_is_tried_before_anything_is_spent_or_written(answer, next_mask, records, message):
    """At the terminal: ``answer`` sees that a refused command leaves nothing behind."""
    looks_at, length = (
        ("trained weights", "--iterations 3 --batch-size 32") if "provenance" in records else ("nothing", "")
    )
    with registered(CRITERIA, Criterion("wrong", "Wrong.", "this test", looks_at, next_mask)):
        command = f"generate {records} --model mlp:8 --rounds 2 --prune 0.3 {length} --criterion wrong --out t"
        assert answer(command).startswith(f"--criterion: {message}")


def test_a_criterion_that_goes_wrong_later_ends_the_generation():
    def late(step: PruningRound) -> Mask:
        return by_place(step) if step.mask.density > 0.4 else step.mask

    spec, x, y = ModelSpec("mlp:3", 4, 2), torch.eye(4), torch.arange(4) % 2
    config = {"rounds": 3, "prune": (0.5,), "iterations": 1, "batch_size": 4, "criterion": "late"}
    with registered(CRITERIA, Criterion("late", "Late.", "this test", "nothing", late, scope="global")):
        for make in (lambda config: generate(spec, (x, y), config), lambda config: without_data(spec, config)):
            with pytest.raises(
                InputError, match=r"^`criterion`: late: gives no mask of \d weights within the one before$"
            ):
                make(GenerateOptions(**config).for_records(1000))


# --- a kind of networks: two linear layers of one width ---


def twin(name: NetworkName, features: int, classes: int) -> Layers:
    (width,) = name.widths
    return [("a", nn.Linear(features, width)), ("relu1", nn.ReLU()), ("b", nn.Linear(width, classes))]


TWIN = NetworkKind(
    "twin", "Two linear layers.", "this test", "twin:W", ("vectors",), twin, {"WIDTH": "5"}, usual=lambda _: (3,)
)


def test_a_kind_of_networks_at_the_terminal(answer):
    command = f"generate {PUBLIC} --rounds 1 --iterations 2 --provenance public --out t --model"
    assert answer(command, "twin-tanh:5").startswith(
        "--model: unknown network 'twin-tanh:5'; known: mlp[-tanh]:W,W,...,"
    )
    with registered(KINDS, TWIN):
        assert answer(command, "twin:x").startswith("--model: 'twin:x': write twin:WIDTH, as in twin:5, with")
        answer(command, "twin-tanh:5")
        assert answer(f"train t@1 {PRIVATE} --steps 2 --epsilon 1 --out r")["live"] < 5 * 64 + 5 + 50 + 10


def test_a_kind_of_networks_in_the_library():
    with registered(KINDS, TWIN):
        spec = ModelSpec(resolve("twin-tanh:5", (8, 8)), 64, 10)
        model = build(spec, 1)
        assert "twin" in for_inputs("vectors")
        shapes = {name: tuple(value.shape) for name, value in model.named_parameters()}
        assert shapes == spec.shapes()
        assert resized(ModelSpec("twin-tanh", 64, 10), (5,)) == spec
    assert list(dict(model.named_children())) == ["a", "tanh1", "b"]
    assert refused(ModelSpec, "twin:5", 64, 10).startswith("`model`: unknown network 'twin:5'")


# --- a local protocol: fair coins with a little of the bit ---


def test_a_local_protocol(answer):
    def chances(epsilon: Any, alpha: Any, bits: int) -> Any:
        del alpha
        p = (epsilon / bits).exp() / (1 + (epsilon / bits).exp())
        return [(p, 1 - p)]

    with registered(PROTOCOLS, LocalProtocol("even", "As rappor.", "this test", chances)):
        command = "latent epsilon --protocol even --bits 4 --epsilon 2"
        assert answer(command, "--alpha 3") == "--alpha: even has none; leave it out"
        assert answer(command)["certified"] == pytest.approx(2)
        assert channel("even", 4, 2.0).certified() == channel("rappor", 4, 2.0).certified()


# --- the registries themselves ---


REGISTRIES = {"filter": FILTERS, "criterion": CRITERIA, "model": KINDS, "protocol": PROTOCOLS}


@pytest.mark.parametrize("field", REGISTRIES)
def test_every_entry_says_what_it_is_and_has_its_name_alone(field):
    for name, entry in REGISTRIES[field].items():
        assert entry.name == name
        assert entry.help.endswith(".")
        assert entry.source
    with pytest.raises(InputError, match=rf"^`{field}`: there is one named '{name}' already; take another name$"):
        REGISTRIES[field].register(entry)


def test_what_is_deferred_is_there():
    places = [value for entry in CRITERIA.values() for value in vars(entry).values() if isinstance(value, Deferred)]
    assert len(places) >= len(CRITERIA)
    assert all(callable(place.resolve()) for place in places)


def test_parameters_have_ranges():
    with pytest.raises(InputError, match=r"^`k`: 3 is not a number between 0 and 2$"):
        Parameter("k", 1.0, "A number.", "K", 0.0, 2.0).check(3)
