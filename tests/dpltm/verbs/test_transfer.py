"""Ticket sets made from others: what stays bit for bit, what is drawn anew, and that their lineage goes along."""

import itertools
import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import dpltm
from dpltm.errors import ArtifactError, InputError
from dpltm.networks import ModelSpec, build
from dpltm.networks.masks import Mask
from dpltm.networks.own import own_model
from dpltm.networks.own_network import for_records
from dpltm.options.generate import GenerateOptions
from dpltm.options.tickets import TransferOptions
from dpltm.privacy.entry import Lineage
from dpltm.pruning.generation import Ticket, Tickets, generate, without_data
from dpltm.records import Dataset, from_arrays
from dpltm.training.artifacts import Draws, Parent, TicketSet
from dpltm.verbs.transfer import carry_over, retarget, transfer, without_projection
from refusals import refused
from set_entries import DRAWN, LINEAGES, MOMENTS
from tensors import same_tensors

SEED = 23
MODES = ("ticket", "mask-only", "shuffled-mask", "random")
"""Those that keep the names of all layers."""

MLP = ModelSpec("mlp:20,10", 12, 4)
PROJECTED = ModelSpec("mlp:project16,20,10", 12, 4)
GREY = ModelSpec("cnn:28x28x1", 784, 10)
COLOUR = ModelSpec("cnn:32x32x3", 3072, 10)


@dataclass(frozen=True)
class Case:
    """A move: which layers must be kept, which repeated over channels; all others are new."""

    before: ModelSpec
    after: ModelSpec
    kept: frozenset[str]
    repeated: frozenset[str] = frozenset()


CASES = {
    "mlp, same": Case(MLP, MLP, frozenset({"fc1", "fc2", "fc3"})),
    "mlp, features": Case(MLP, ModelSpec("mlp:20,10", 30, 4), frozenset({"fc2", "fc3"})),
    "mlp, classes": Case(MLP, ModelSpec("mlp:20,10", 12, 7), frozenset({"fc1", "fc2"})),
    "projection, both": Case(PROJECTED, ModelSpec("mlp:project16,20,10", 30, 7), frozenset({"fc1", "fc2"})),
    "cnn, to colour": Case(GREY, COLOUR, frozenset({"conv2", "fc2"}), frozenset({"conv1"})),
    "cnn, to grey": Case(COLOUR, GREY, frozenset({"conv2", "fc2"})),
    "cnn, size": Case(GREY, ModelSpec("cnn:32x32x1", 1024, 10), frozenset({"conv1", "conv2", "fc2"})),
    "narrow cnn, to colour": Case(
        ModelSpec("cnn:28x28x1:7,20,15", 784, 10),
        ModelSpec("cnn:32x32x3:7,20,15", 3072, 5),
        frozenset({"conv2"}),
        frozenset({"conv1"}),
    ),
}


def made(spec: ModelSpec) -> Tickets:
    """Random tickets; their biases are no zeros, so that a bias of a kept layer can be told from a new one."""
    prune = (0.4, 0.3) if len(layers(spec)) > 1 else (0.4,)
    tickets = without_data(spec, GenerateOptions(rounds=3, prune=prune, criterion="random", seed=5).for_records(1000))
    generator = torch.Generator().manual_seed(9)
    for value in tickets.theta0.values():
        if value.ndim == 1:
            value.copy_(torch.randn(value.shape, generator=generator))
    return tickets


@pytest.fixture(scope="module", params=list(CASES))
def case(request: pytest.FixtureRequest) -> tuple[Case, Tickets]:
    found = CASES[request.param]
    return found, made(found.before)


def layers(spec: ModelSpec) -> list[str]:
    return [name.removesuffix(".weight") for name in spec.shapes() if name.endswith(".weight")]


def drawn(spec: ModelSpec, seed: int) -> dict[str, Tensor]:
    return dict(build(spec, seed).state_dict())


def check_mask(where: Case, layer: str, mode: str, fresh: str, old: Mask, new: Mask) -> None:
    """One layer of one round: kept or repeated at its places, shuffled, or as much alive as before."""
    before, mask = old[f"{layer}.weight"], new[f"{layer}.weight"]
    assert bool(new[f"{layer}.bias"].all())
    if layer in where.kept | where.repeated:
        channels = new[f"{layer}.weight"].shape[1]
        expected = before if layer in where.kept else before.repeat(1, channels, 1, 1)
        assert int(mask.sum()) == int(expected.sum())
        assert torch.equal(mask, expected) == (mode in ("ticket", "mask-only") or bool(expected.all()))
        if layer in where.kept and mode in ("shuffled-mask", "random"):
            # of a random place for every live weight, about as many are hit as the density says
            share = int(mask.sum()) / mask.numel()
            spread = (share * share * mask.numel() * (1 - share) ** 2) ** 0.5  # hypergeometric, about
            assert abs(int((before & mask).sum()) - share * share * mask.numel()) <= 6 * spread + 1
    elif fresh == "dense":
        assert bool(mask.all())
    else:
        exact = Fraction(int(before.sum()), before.numel()) * mask.numel()
        assert abs(int(mask.sum()) - exact) <= Fraction(1, 2)
        assert int(mask.sum()) > 0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fresh", ["sparse", "dense"])
def test_masks_and_weights_of_every_layer_and_what_is_reported_of_them(case, mode, fresh):
    where, tickets = case
    before = {name: value.clone() for name, value in tickets.theta0.items()}
    after, told = carry_over(tickets, where.after, mode, fresh, SEED)
    new, names = drawn(where.after, SEED), layers(where.after)
    assert [ticket.round for ticket in after.tickets] == [0, 1, 2, 3]
    assert after.spec == where.after
    assert {name: tuple(value.shape) for name, value in after.theta0.items()} == where.after.shapes()
    for old, ticket in zip(tickets.tickets, after.tickets, strict=True):
        assert {name: tuple(value.shape) for name, value in ticket.mask.items()} == where.after.shapes()
        for layer in names:
            check_mask(where, layer, mode, fresh, old.mask, ticket.mask)
    for wider, narrower in itertools.pairwise(after.tickets):
        assert narrower.mask.nested_in(wider.mask)
    assert after.tickets[0].mask.density == 1
    assert [row["layer"] for row in told] == names
    for row in told:
        weight, bias = f"{row['layer']}.weight", f"{row['layer']}.bias"
        taken = mode in ("ticket", "shuffled-mask") and row["layer"] in where.kept | where.repeated
        assert torch.equal(after.theta0[bias], (tickets.theta0 if taken else new)[bias])
        if not (taken and row["layer"] in where.repeated):
            assert torch.equal(after.theta0[weight], (tickets.theta0 if taken else new)[weight])
        mask = after.tickets[-1].mask[weight]
        assert (row["before"], row["after"]) == (where.before.shapes()[weight], where.after.shapes()[weight])
        assert row["density"] == pytest.approx(int(mask.sum()) / mask.numel(), rel=1e-12)
        assert (row["weights"] != "fresh") == taken
        assert (row["mask"] == "dense") == (row["density"] == 1)
        if row["density"] < 1:
            groups = {"kept": where.kept, "repeated": where.repeated}
            relation = next((word for word, group in groups.items() if row["layer"] in group), None)
            said = {"ticket": relation, "mask-only": relation, "shuffled-mask": "shuffled", "random": "random"}[mode]
            assert row["mask"] == (said if relation else "random")
    if after.theta0 is not tickets.theta0:  # nothing to change: the very same weights may come back
        for value in after.theta0.values():
            value.fill_(7.0)
    assert all(torch.equal(value, before[name]) for name, value in tickets.theta0.items())


@pytest.mark.parametrize("mode", ["mask-only", "random"])
def test_controls_take_over_no_weight(case, mode):
    """No bit of theta0 may reach the result: with all of it replaced by NaN, it is the same."""
    where, tickets = case
    gone = Tickets(tickets.spec, {name: value * torch.nan for name, value in tickets.theta0.items()}, tickets.tickets)
    first, second = (carry_over(given, where.after, mode, "sparse", SEED)[0].theta0 for given in (tickets, gone))
    for name, value in first.items():
        assert torch.equal(value, second[name])
        assert bool(value.isfinite().all())


def test_a_network_of_three_channels_sees_grey_as_the_grey_one_does():
    """On images of one size all layers behind conv1 are kept, so the answers agree, round by round; and no channel is
    preferred."""
    tickets = made(GREY)
    target = ModelSpec("cnn:28x28x3", 2352, 10)
    after = carry_over(tickets, target, "ticket", "sparse", SEED)[0]
    x = torch.rand(5, 784, generator=torch.Generator().manual_seed(1))
    for number in range(4):
        first, second = build(GREY), build(target)
        first.load_state_dict(tickets.theta0)
        second.load_state_dict(after.theta0)
        tickets.tickets[number].mask.apply(first)
        after.tickets[number].mask.apply(second)
        colour = x.repeat_interleave(3, 1)  # channels last
        assert torch.allclose(second.double()(colour.double()), first.double()(x.double()), rtol=1e-5, atol=1e-6)
    channels = after.theta0["conv1.weight"]
    assert torch.equal(channels[:, 1], channels[:, 0])
    assert torch.equal(channels[:, 2], channels[:, 0])


def moved_masks(tickets: Tickets, name: str, *dimensions: int) -> Tickets:
    """The same tickets with the live weights of a layer at other places."""
    others = tuple(
        Ticket(ticket.round, Mask({**ticket.mask, name: ticket.mask[name].flip(*dimensions)}), None, None)
        for ticket in tickets.tickets
    )
    assert not same_tensors(others[3].mask, tickets.tickets[3].mask)
    return Tickets(tickets.spec, tickets.theta0, others)


@pytest.mark.parametrize(
    ("mode", "layer", "before", "target"),
    [
        ("random", "fc2", MLP, ModelSpec("mlp:20,10", 30, 4)),
        *((mode, "conv1", ModelSpec("cnn:28x28x3", 2352, 10), GREY) for mode in MODES),
    ],
)
def test_no_place_of_a_live_weight_is_looked_at(mode, layer, before, target):
    """Mode random; and several channels that become one: with masks that differ no single filter computes the same."""
    tickets = made(before)
    after, told = carry_over(tickets, target, mode, "sparse", SEED)
    (row,) = (row for row in told if row["layer"] == layer)
    assert (row["mask"], row["weights"]) == ("random", "fresh")
    moved = carry_over(moved_masks(tickets, f"{layer}.weight", 1), target, mode, "sparse", SEED)[0]
    assert all(same_tensors(one.mask, other.mask) for one, other in zip(after.tickets, moved.tickets, strict=True))


@pytest.mark.parametrize("mode", MODES)
def test_the_seed_decides(mode):
    tickets, target = made(MLP), ModelSpec("mlp:20,10", 30, 4)
    first, again, other = (carry_over(tickets, target, mode, "sparse", seed)[0] for seed in (4, 4, 5))
    for name, value in first.theta0.items():
        assert torch.equal(value, again.theta0[name])
    for one, two in zip(first.tickets, again.tickets, strict=True):
        assert same_tensors(one.mask, two.mask)
    assert not torch.equal(first.theta0["fc1.weight"], other.theta0["fc1.weight"])
    assert not torch.equal(first.tickets[3].mask["fc1.weight"], other.tickets[3].mask["fc1.weight"])


@pytest.fixture(scope="module")
def with_predictors() -> Tickets:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(40, 12, generator=generator), torch.randint(4, (40,), generator=generator)
    options = GenerateOptions(rounds=2, iterations=3, batch_size=8, seed=1).for_records(len(x))
    return generate(MLP, (x, y), options, (x, y))


@pytest.mark.parametrize("mode", MODES)
def test_predictors_stay_only_where_nothing_was_changed(mode, with_predictors):
    """Accuracies were measured on other records and never go along."""
    tickets = with_predictors
    same = carry_over(tickets, MLP, mode, "sparse", SEED)[0]
    other = carry_over(tickets, ModelSpec("mlp:20,10", 30, 4), mode, "sparse", SEED)[0]
    for old, ticket in zip(tickets.tickets, same.tickets, strict=True):
        if mode == "ticket":
            assert old.accuracy is not None
            assert ticket.accuracy is None
            assert torch.equal(ticket.predictor["fc1.weight"], old.predictor["fc1.weight"])
        else:
            assert (ticket.predictor, ticket.accuracy) == (None, None)
    assert all((ticket.predictor, ticket.accuracy) == (None, None) for ticket in other.tickets)


@pytest.mark.parametrize(
    ("before", "after"),
    [(ModelSpec("mlp:20", 12, 4), ModelSpec("mlp:20", 30, 7)), (GREY, ModelSpec("mlp:20", 784, 10))],
)
def test_nothing_in_common(before, after):
    assert refused(carry_over, made(before), after) == (
        f"{before.text} on {before.features} features and {before.classes} classes has no layer in common with {after.text}"
        f" on {after.features} and {after.classes}: there is nothing to transfer"
    )


# --- a projection that is taken off (DPLTM section 4.5.2) ---


@pytest.mark.parametrize("fresh", ["sparse", "dense"])
@pytest.mark.parametrize("classes", [4, 7])
def test_what_lies_between_projection_and_output_layer_is_the_ticket(classes, fresh):
    """Its weights and masks, bit for bit, and nothing else: the output layer is new even for as many classes."""
    tickets = made(PROJECTED)
    target = without_projection(PROJECTED, 16, classes)
    assert target == ModelSpec("mlp:20,10", 16, classes)
    after, told = carry_over(tickets, target, "drop-projection", fresh, SEED)
    new = drawn(target, SEED)
    assert list(after.theta0) == [f"fc{layer}.{part}" for layer in (1, 2, 3) for part in ("weight", "bias")]
    for name in ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"):
        assert torch.equal(after.theta0[name], tickets.theta0[name])
    assert torch.equal(after.theta0["fc3.weight"], new["fc3.weight"])
    assert torch.equal(after.theta0["fc3.bias"], new["fc3.bias"])
    for old, ticket in zip(tickets.tickets, after.tickets, strict=True):
        assert set(ticket.mask) == set(after.theta0)
        between = sum(int(old.mask[f"fc{layer}.weight"].sum()) for layer in (1, 2)) + 20 + 10
        share = float(old.mask["fc3.weight"].double().mean())
        output = 10 * classes if fresh == "dense" else round(share * 10 * classes)
        assert ticket.mask.live == between + output + classes
        assert torch.equal(ticket.mask["fc1.weight"], old.mask["fc1.weight"])
        assert torch.equal(ticket.mask["fc2.weight"], old.mask["fc2.weight"])
        assert (ticket.predictor, ticket.accuracy) == (None, None)
    assert all(narrow.mask.nested_in(wide.mask) for wide, narrow in itertools.pairwise(after.tickets))
    dropped, *others = told
    assert (dropped["layer"], dropped["before"], dropped["after"]) == ("project", (16, 12), ())
    assert (dropped["mask"], dropped["weights"]) == ("dropped", "dropped")
    assert [(row["layer"], row["weights"]) for row in others] == [("fc1", "kept"), ("fc2", "kept"), ("fc3", "fresh")]


def test_private_records_come_to_the_ticket_as_they_are():
    """By the public face: no layer is left, or made, in front of what records of the other width are fed to."""
    public, private = np.zeros((30, 12), np.uint8), np.zeros((9, 16), np.uint8)
    options = {"provenance": "public", "rounds": 1, "iterations": 2, "batch_size": 10, "ledger": dpltm.Ledger()}
    wide = dpltm.generate(public, np.arange(30) % 4, model="mlp:project16,20,10", **options)
    moved = dpltm.transfer(wide, private, np.arange(9) % 7, mode="drop-projection")
    assert moved.body.spec == ModelSpec("mlp:20,10", 16, 7)
    assert torch.equal(moved.body.theta0["fc1.weight"], wide.body.theta0["fc1.weight"])
    assert torch.equal(moved.body.tickets[1].mask["fc1.weight"], wide.body.tickets[1].mask["fc1.weight"])


def test_a_projection_that_cannot_be_dropped():
    for network, features in ((MLP, 16), (PROJECTED, 30)):
        assert refused(without_projection, network, features, 4) == (
            f"`mode`: '{network.text}' has no projection onto {features} numbers to drop; generate tickets of the network"
            f" mlp:project{features},300,100, or take `mode` ticket"
        )
    alone = ModelSpec("mlp:project16", 12, 4)
    bare = without_data(alone, GenerateOptions(rounds=1, prune=(0.4,), criterion="random", seed=5).for_records(1000))
    assert "has no layer in common with mlp on 16" in refused(
        carry_over, bare, without_projection(alone, 16, 4), "drop-projection"
    )


def test_one_round_is_the_dense_network_and_that_ticket(with_predictors):
    tickets, same = replace(SET, body=with_predictors), images(8, (12,), 4)
    taken = transfer(tickets, same, TransferOptions(), round=2)[0].body
    assert [ticket.round for ticket in taken.tickets] == [0, 1]
    assert same_tensors(taken.tickets[0].mask, with_predictors.tickets[0].mask)
    assert same_tensors(taken.tickets[1].mask, with_predictors.tickets[2].mask)
    assert torch.equal(taken.tickets[1].predictor["fc1.weight"], with_predictors.tickets[2].predictor["fc1.weight"])
    assert torch.equal(taken.theta0["fc1.weight"], with_predictors.theta0["fc1.weight"])


@pytest.mark.parametrize(
    ("text", "before", "shape", "expected"),
    [
        ("mlp:20,10", 12, (30,), "mlp:20,10"),
        ("cnn:32x32x3", 3072, (28, 28), "cnn:28x28x1"),
        ("cnn:28x28x1:7,20,15", 784, (32, 32, 3), "cnn:32x32x3:7,20,15"),
    ],
)
def test_retarget(text, before, shape, expected):
    features = math.prod(shape)
    assert retarget(ModelSpec(text, before, 4), shape, features, 6) == ModelSpec(expected, features, 6)


@settings(max_examples=30)
@given(st.integers(1, 40), st.integers(1, 9), st.floats(0.05, 0.7), st.sampled_from(MODES), st.integers(0, 2**62 - 1))
def test_any_shape_gives_nested_masks_with_a_live_weight_in_every_layer(features, classes, rate, mode, seed):
    tickets = without_data(
        ModelSpec("mlp:6,5", 9, 4),
        GenerateOptions(rounds=2, prune=(rate,), criterion="random", seed=1).for_records(1000),
    )
    rounds = carry_over(tickets, ModelSpec("mlp:6,5", features, classes), mode, "sparse", seed)[0].tickets
    assert all(narrow.mask.nested_in(wide.mask) for wide, narrow in itertools.pairwise(rounds))
    assert all(bool(value.any()) for ticket in rounds for value in ticket.mask.values())


OF_CHANCE = GenerateOptions(rounds=2, prune=(0.3,), criterion="random", scope="layer")
BODY = without_data(ModelSpec("mlp:8", 36, 3), OF_CHANCE)
RELEASED = LINEAGES["dp"]
SET = TicketSet(body=BODY, name="mine", criterion="random", provenance="dp", made_from=RELEASED, config={"a": 1})


def images(count: int = 30, shape: tuple[int, ...] = (6, 6), classes: int = 3, **facts: Any) -> Dataset:
    draw = np.random.default_rng(0)
    labels = np.arange(count) % classes
    return from_arrays(draw.integers(0, 256, (count, *shape), dtype=np.uint8), labels, **facts)


def moved(
    tickets: TicketSet = SET, round: int | None = None, **options: Any
) -> tuple[TicketSet, list[Any], list[str]]:
    return transfer(tickets, images(shape=(5, 5)), TransferOptions(**options), round=round)


def test_what_the_tickets_depend_on_goes_along() -> None:
    after, layers, _ = moved()
    assert (after.provenance, after.lineage) == ("dp", RELEASED)
    assert after.parent == Parent(SET.id, "mine", None, "transfer (ticket)")
    assert after.config == {"transfer": {"mode": "ticket", "fresh": "sparse", "seed": 0}}
    assert (after.body.spec.features, len(after.body.tickets)) == (25, 3)
    assert (after.label, after.path, after.name, after.on_mark) == ("mine", None, "mine", None)
    assert [row["layer"] for row in layers] == ["fc1", "fc2"]


@pytest.mark.parametrize(("number", "rounds"), [(2, 2), (0, 1), (None, 3)])
def test_whatever_is_taken_the_draws_go_along(number: int | None, rounds: int) -> None:
    """Whoever takes another round than the one that won may do so because of that."""
    drawn_from = replace(SET, draws=Draws())
    drawn_from.mark(Lineage((DRAWN,)))
    made = moved(drawn_from, number)[0]
    assert made.lineage.entries == (*RELEASED.entries, DRAWN)
    assert (made.parent.round, len(made.body.tickets)) == (number, rounds)  # type: ignore[union-attr]
    assert SET.lineage == RELEASED


def test_what_cannot_be_transferred() -> None:
    assert "mine@7: no such round; it has rounds 0 to 2" in refused(moved, round=7, kind=ArtifactError)
    with pytest.raises(InputError, match=r"has no projection onto 36 numbers to drop"):
        transfer(
            own_tickets(), images(classes=2), TransferOptions(mode="drop-projection"), model=own_model(other_layers)
        )


class Layers(torch.nn.Module):
    """Two layers, whose last is for other classes than that of the tickets."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(36, 4), torch.nn.Linear(4, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x.flatten(1)).relu())


def other_layers() -> Layers:
    return Layers(2)


def own_tickets(model: Any = Layers, **said: Any) -> TicketSet:
    spec = for_records(own_model(model, **said), images())
    made = without_data(spec, GenerateOptions(rounds=1, prune=(0.3,), criterion="random").for_records(1000))
    return replace(SET, body=made, provenance="data-free", made_from=Lineage())


TRAINED = Lineage((replace(MOMENTS, id="7" * 64),))


@pytest.mark.parametrize("mode", ["ticket", "mask-only", "shuffled-mask", "random"])
@pytest.mark.parametrize(
    "handed_in", [{"code": other_layers()}, {"code": other_layers, "start": other_layers().state_dict()}]
)
def test_weights_handed_in_are_declared(mode: str, handed_in: dict[str, Any]) -> None:
    tickets, records, options = own_tickets(), images(classes=2), TransferOptions(mode=mode)
    code, start = handed_in["code"], {name: value for name, value in handed_in.items() if name != "code"}
    message = refused(transfer, tickets, records, options, model=own_model(code, **start))
    assert message.startswith("`start_provenance` is missing: say what the weights")
    made, _, notes = transfer(tickets, records, options, model=own_model(code, start_provenance="public", **start))
    assert [note for note in notes if "were declared public; that was not checked" in note]
    assert made.provenance == "data-free"
    behind = transfer(tickets, records, options, model=own_model(code, start_lineage=TRAINED, **start))[0]
    assert (behind.provenance, behind.lineage.entries) == ("dp", TRAINED.entries)


def test_what_was_declared_of_the_tickets_stays_declared() -> None:
    """A class that is drawn takes the place of an instance whose weights were declared public: those are kept."""
    tickets = own_tickets(Layers(), start_provenance="public")
    made, _, notes = transfer(tickets, images(classes=2), TransferOptions(), model=own_model(other_layers))
    spec = made.body.spec
    assert spec.start_provenance == "public"
    assert [note for note in notes if "were declared public" in note]
