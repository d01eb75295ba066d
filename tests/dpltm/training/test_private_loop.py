"""A loop of the user's own: what it trains, what it pays, when it pays, and everything that it refuses.

Samples, means and noise are those of ``train``, to the bit; tests/dpltm/training/test_descent.py tells if those are right.
"""

import contextlib
import copy
import itertools
import math
import os
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from dpltm.errors import BudgetError, InputError
from dpltm.filters import Clip, Sigmoid, Tanh
from dpltm.networks import ModelSpec, build
from dpltm.networks.masks import Mask
from dpltm.options.train import TrainOptions
from dpltm.privacy.account import Account
from dpltm.privacy.describe import describe
from dpltm.privacy.entry import Entry, Part
from dpltm.privacy.ledger import Ledger
from dpltm.privacy.mechanisms import GaussianRelease, Guarantee, NoisySgd, Unprotected
from dpltm.privacy.statement import SEARCH_NOTE
from dpltm.randomness.gaussian_mechanism import SEED
from dpltm.randomness.noise import FastSource, SecureSource
from dpltm.records import from_arrays
from dpltm.records.batches import Records
from dpltm.training.descent import cross_entropy, train
from dpltm.training.plan import NoisySteps
from dpltm.verbs.private_loop import START_NOTE, PrivateLoop
from gradient_cases import Applied, flat, rows_of, some_mask, toy_data
from refusals import refused

COUNTED = "the number of records was counted and is treated as public; say records=... to keep it private"
TAKEN = "step {}: its one gradient was taken, or the loop has moved on; call it once"


def toy_model() -> nn.Sequential:
    return build(ModelSpec("mlp-tanh:8", 5, 3), 0)


def make(model: nn.Module | None = None, loss: Any = cross_entropy, data: Any = None, **changes: Any) -> PrivateLoop:
    """A loop over toy data with seeded sources; ``changes`` are its settings."""
    x, y = data or toy_data()
    settings: dict[str, Any] = {"batch_size": 10, "steps": 3, "delta": 1e-3, "noise_multiplier": 1.0}
    settings |= {"sampling": FastSource(0), "noise": FastSource(1), **changes}
    return PrivateLoop(toy_model() if model is None else model, loss, x, y, **settings)


def within(epsilon: float, **changes: Any) -> PrivateLoop:
    """A loop whose noise is calibrated to a budget."""
    return make(noise_multiplier=None, epsilon=epsilon, **changes)


def flat_gradient(model: nn.Module) -> Tensor:
    return torch.cat([value.grad.flatten() for value in model.parameters() if value.grad is not None]).clone()


def gradients(loop: PrivateLoop, model: nn.Module) -> list[Tensor]:
    """The gradient of every step; the network stays as it is."""
    found = []
    for step in loop:
        step.backward()
        found.append(flat_gradient(model))
    return found


def total(entries: Any) -> float:
    """Epsilon of entries at 1e-3, whatever the loop says."""
    return Account(tuple(entries)).epsilon(1e-3)


def held(*drafts: Entry) -> Ledger:
    """A ledger that has these on record."""
    ledger = Ledger()
    ledger.declare(*drafts)
    return ledger


OTHER = Entry("release", Part(), (GaussianRelease(4.0),), "a mean")


# Training


@pytest.mark.parametrize(
    ("filter", "adjacency", "records", "noise"),
    [
        (Clip(0.5), "add-remove", None, {"noise_multiplier": 0.7}),
        (Tanh(1.0, 0.5, Clip(1.0)), "replace-one", 80, {"noise_multiplier": 0.7}),
        (Tanh(1.0, 0.5), "add-remove", 20, {"noise_multiplier": None, "epsilon": 1.0}),
    ],
    ids=str,
)
def test_it_gives_the_bits_that_train_gives(filter, adjacency, records, noise):
    """With the rate of the public number of records, and the noise that its entry states."""
    x, y = toy_data()
    mine, other = toy_model(), toy_model()
    mask = some_mask(mine)
    loop = make(
        mine, steps=6, filter=filter, mask=mask, provenance="data-free", adjacency=adjacency, records=records, **noise
    )
    optimizer = torch.optim.SGD(mine.parameters(), lr=0.3, momentum=0.9)
    for step in loop:
        step.backward()
        optimizer.step()
    multiplier = noise["noise_multiplier"] or loop.mechanism.noise_multiplier
    std = multiplier * filter.certified_bound(mask.live) * (2 if adjacency == "replace-one" else 1)
    config = NoisySteps(
        filter, NoisySgd(10 / (records or 40), 6, std), 10, 0.3, options=TrainOptions(optimizer="momentum")
    )
    train(other, mask, Records(x, y), config, sampling=FastSource(0), noise=FastSource(1))
    assert torch.equal(flat(mine), flat(other))
    assert not torch.equal(flat(mine), flat(toy_model()))


def test_steps_are_numbered_from_one_and_each_gives_one_gradient():
    """Whatever the gradient was before: of the step before, or none."""
    model, other = toy_model(), toy_model()
    steps = list(make(model, steps=5))
    assert [step.number for step in steps] == [1, 2, 3, 4, 5]
    for step in steps:  # passed over
        assert refused(step.backward) == TAKEN.format(step.number)
    assert all(value.grad is None for value in model.parameters())
    loop, expected = make(model, steps=3), gradients(make(other, steps=3), other)
    assert len(loop) == len({tuple(gradient.tolist()) for gradient in expected}) == 3
    for step, wanted in zip(loop, expected, strict=True):
        step.backward()
        assert refused(step.backward) == TAKEN.format(step.number)
        assert torch.equal(flat_gradient(model), wanted)
        if step.number == 2:
            model.zero_grad(set_to_none=True)


def test_a_step_is_told_with_epsilon_so_far_once_its_code_has_run() -> None:
    """Together with what the ledger held; the last figure is the certified one."""
    ledger, told, taken = Ledger(), list[tuple[int, float, int]](), list[int]()
    for held in (0, 1):
        loop = make(ledger=ledger, on_step=lambda number, epsilon: told.append((number, epsilon, taken[-1])))
        before = ledger.account().epsilon(1e-3)
        for step in loop:
            step.backward()
            taken.append(step.number)
        figures = [epsilon for _, epsilon, _ in told[3 * held :]]
        assert before < figures[0] < figures[1] < figures[2] == loop.report().certified.epsilon
    assert [(number, done) for number, _, done in told] == [(number, number) for number in (1, 2, 3)] * 2
    assert told[0][1] == pytest.approx(make(ledger=Ledger(), steps=1).report().certified.epsilon, rel=0.02)


def test_a_step_that_is_broken_out_of_is_not_told_and_an_error_goes_through() -> None:
    told: list[int] = []
    for step in make(on_step=lambda number, _: told.append(number)):
        step.backward()
        if step.number == 2:
            break
    assert told == [1]
    loop = make(ledger=Ledger(), on_step=lambda *_: 1 / 0)
    steps = iter(loop)
    next(steps).backward()
    with pytest.raises(ZeroDivisionError):
        next(steps)
    assert [entry.kind for entry in loop.ledger.entries] == ["release"]
    assert refused(make, on_step=3) == "`on_step`: of type int, not a function of step and epsilon"


def test_physical_batches_and_precision_are_those_of_the_engine():
    model, seen = toy_model(), []
    model.register_forward_hook(lambda *call: seen.append((rows_of(call[2]), call[2].dtype)))
    loop = make(model, batch_size=40, steps=1, physical_batch=32, precision="bfloat16")
    seen.clear()
    gradients(loop, model)
    assert seen == [(32, torch.bfloat16)] * 2, "of one shape"


@pytest.mark.parametrize("source", ["sampling", "noise"])
def test_bits_come_from_the_cryptographic_source_unless_another_is_given(monkeypatch, source):
    drawn: list[int] = []
    inner, model = SecureSource.random_bytes, toy_model()
    monkeypatch.setattr(SecureSource, "random_bytes", lambda self, count: (drawn.append(count), inner(self, count))[1])
    loop = make(model, **{source: None})
    gradients(loop, model)
    assert (loop.mechanism.bits, make(sampling=None, noise=None).mechanism.bits) == ("fast", "secure")
    assert drawn == ([4 * 40] if source == "sampling" else [SEED + 8 * 38 * 2]) * 3


def dropping(share: float = 0.5) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Dropout(share), nn.Linear(5, 8), nn.Tanh(), nn.Dropout(share), nn.Linear(8, 3))


def test_dropout_is_neither_by_nor_for_the_generator_of_torch():
    """Seeding it does not say what is dropped, and its state afterwards does not say what was."""
    found, states = [], []
    for seed in (1, 1, 2):
        model = dropping()
        loop = make(model, batch_size=40, noise_multiplier=1e-3, steps=2, delta=1e-3, sampling=None)
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        found += gradients(loop, model)
        states.append(torch.equal(before, torch.get_rng_state()))
    assert all(states)
    apart = [float((one - other).norm()) for one, other in itertools.combinations(found, 2)]
    assert min(apart) > 100 * 1e-3 / 40


def test_an_attack_by_the_place_in_the_batch_finds_nothing():
    """The masks of PyTorch follow from a public seed, and a record in front moves them by one place. Signs made after them
    put the sums of these neighbours as far apart as there are signs."""

    def by_place(count: int) -> Tensor:
        torch.manual_seed(0)
        return functional.dropout(torch.ones(count), 0.5) > 0

    one, other = by_place(80)[1:].float(), by_place(79).float()
    signs = one - other
    assert float((signs * (one - other)).sum()) > 30
    apart = []
    for seed in range(8):
        sums = []
        for y in (torch.cat([torch.zeros(1), signs]), signs):  # the record more has gradient 0
            model = nn.Sequential(nn.Dropout(0.5), nn.Linear(1, 1, bias=False))
            settings = {"batch_size": 79, "records": 79, "steps": 1, "noise_multiplier": 1e-3, "filter": Clip(1.0)}
            loop = make(model, product, (torch.ones(len(y), 1), y), sampling=FastSource(seed), **settings)
            torch.manual_seed(0)
            sums += [79 * value for value in gradients(loop, model)]
        apart.append(float(sums[0] - sums[1]))
    assert abs(sum(apart) / len(apart)) < 8, "five standard deviations of what is left to chance"


def product(outputs: Tensor, labels: Tensor) -> Tensor:
    return outputs[:, 0] * labels


def test_nothing_is_drawn_at_evaluation_and_a_model_may_be_switched_between():
    """As many do: ``eval()`` for a look, and ``train()`` afterwards; or ``train()`` once the loop is made."""
    drawn: list[int] = []
    source = FastSource(0)
    inner, source.random_bytes = source.random_bytes, lambda count: (drawn.append(count), inner(count))[1]
    model = dropping().eval()
    loop = make(model, sampling=source, batch_size=20, steps=4)
    for step in loop:
        drawn.clear()
        model.train(step.number > 2)
        step.backward()
        assert drawn == [4 * 40, *([32] if step.number > 2 else [])]
        outputs = [model.eval()(toy_data()[0]) for _ in range(2)]
        assert torch.equal(*outputs)


# What is paid, and when


def test_the_entry_is_on_record_before_the_first_gradient():
    ledger, calls = Ledger(), []
    model = toy_model()
    model.register_forward_pre_hook(lambda *_: calls.append(len(ledger.entries)))
    loop = make(model, ledger=ledger, batch_size=40)
    planned = loop.report()
    assert ledger.entries == ()
    assert set(calls) == {0}, "made-up records are tried before anything is paid"
    calls.clear()
    steps = iter(loop)
    assert ledger.entries == (loop.entry,), "entered when the loop begins, not at its first gradient"
    assert calls == []
    for step in steps:
        step.backward()
    assert calls == [1, 1, 1], "one entry, whatever the number of steps"
    assert ledger.entries == (loop.entry,)
    assert loop.report() == planned
    assert refused(lambda: iter(loop)) == "PrivateLoop: it has run, and paid for that; make another one to train on"
    assert ledger.entries == (loop.entry,)


@pytest.mark.parametrize(("adjacency", "records"), [("add-remove", None), ("replace-one", 50)])
@pytest.mark.parametrize(
    ("filter", "nominal"),
    [(Tanh(2.0, 1.0), 1.0), (Sigmoid(2.0, 1.0), 1.0), (Tanh(2.0, 1.0, Clip(1.0)), None), (Clip(0.5), None)],
    ids=str,
)
def test_the_entry_says_what_is_done_and_the_report_is_the_accountants(filter, nominal, records, adjacency):
    """Replace-one doubles both sensitivities; the paper's figure is shown beside where there is one."""
    model, double = toy_model(), 2 if adjacency == "replace-one" else 1
    mask = some_mask(model)
    settings = {"filter": filter, "noise_multiplier": 20.0, "adjacency": adjacency, "provenance": "data-free"}
    loop = make(model, mask=mask, records=records, **settings)
    claimed = None if nominal is None else nominal * double
    bound = filter.certified_bound(mask.live) * double
    source = "" if nominal is None else "tanh paper's sensitivity"
    rate = 10 / (records or 40)
    mechanism = NoisySgd(rate, 3, 20.0, bound, claimed, source, adjacency=adjacency, bits="fast")
    assert loop.entry.mechanisms == (mechanism,)
    assert (loop.entry.part.name, loop.entry.part.cut, loop.entry.unit) == ("arrays", "whole", "record")
    assert str(filter) in loop.entry.words
    report = loop.report()
    assert report.certified.epsilon == total([loop.entry])
    assert (report.certified.delta, report.certified.adjacency) == (1e-3, adjacency)
    assert (COUNTED in report.notes) == (records is None)
    assert SEARCH_NOTE in report.notes
    assert any("(`noise` fast)" in note for note in report.notes)
    if nominal is None:
        assert report.nominal is None
    else:
        assert report.nominal.source == "tanh paper's sensitivity"
        assert report.nominal.epsilon < report.certified.epsilon / 2


SECRET = 8675309


def said_without_the_record(call: Callable[[], object]) -> str:
    """The message of a refusal whose traceback does not hold the record."""
    with pytest.raises(InputError) as error:
        call()
    assert "8675309" not in "".join(traceback.format_exception(error.value))
    assert (error.value.__cause__, error.value.__context__) == (None, None), "what follows them shows it as well"
    return str(error.value)


def test_no_traceback_holds_what_a_loss_says_of_a_record_and_its_entry_stays():
    """PyTorch's own says which class there is none of."""
    (x, y), ledger = toy_data(), Ledger()
    y[17] = SECRET
    loop = make(data=(x, y), ledger=ledger, steps=5, batch_size=40, physical_batch=32)
    step = next(iter(loop))
    assert said_without_the_record(step.backward) == (
        "training: the model or the loss failed on the records of a step; is every label a class, and every token in the"
        " vocabulary? If memory of cpu ran out, take a `physical_batch` below 32. What was spent is on record"
    )
    assert ledger.entries == (loop.entry,)
    assert refused(step.backward) == TAKEN.format(1)


class MixesFrom(nn.Module):
    """Adds the mean over the batch where it has so many rows or more."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows, self.layer = rows, nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x + 1e-6 * x.mean(0) if len(x) >= self.rows else x)


@pytest.mark.parametrize("batch", [10, 90])
def test_what_mixes_from_some_number_of_rows_on_is_refused_up_to_the_shape_of_passes(batch):
    shape = make(batch_size=batch, data=toy_data(200)).gradients.gradients.pass_rows
    for rows in {2, 9, shape // 2 + 1, shape}:
        said = refused(lambda rows=rows: make(MixesFrom(rows), batch_size=batch, data=toy_data(200)))
        assert said.startswith("model or loss: what one record gives depends on the rest of the batch")
    assert make(MixesFrom(shape + 1), batch_size=batch, data=toy_data(200)).gradients.gradients.pass_rows == shape


# Budgets


def test_what_the_ledger_holds_is_part_of_the_budget():
    ledger = held(OTHER)
    loop = within(1.0, ledger=ledger)
    assert 0.998 < loop.report().certified.epsilon <= 1
    assert loop.mechanism.noise_multiplier > 1.1 * within(1.0, ledger=Ledger()).mechanism.noise_multiplier
    for _ in loop:
        pass
    assert loop.report().certified.epsilon == total(ledger.entries)
    before = ledger.entries
    assert len(before) == 2
    said = "budget: on these records epsilon "
    assert refused(lambda: within(1.0 - 2e-3, ledger=ledger), kind=BudgetError).startswith(said)
    # calibration stops a little short of its budget, and some noise would fit what is left
    message = refused(lambda: within(1.0, ledger=ledger), kind=BudgetError)
    assert "which leaves less than 2 % of 1, nothing" in message
    assert describe(before[1]) in message
    assert ledger.entries == before


def test_arrays_count_with_whatever_else_the_ledger_holds():
    """Nobody knows whose rows they are."""
    other = replace(OTHER, part=Part("other", "bb" * 32))
    noise = [within(1.0, ledger=ledger).mechanism.noise_multiplier for ledger in (held(other), Ledger())]
    assert noise[0] > noise[1]


def test_a_budget_set_on_the_records_is_enforced_before_anything_is_drawn():
    """Also one that is set after construction."""
    untouched = SimpleNamespace(random_bytes=lambda count: pytest.fail(f"{count} random bytes were drawn"))
    limit = Entry("budget", mechanisms=(Guarantee(0.2, 1e-3),), day="2026-01-02")
    sources = {"sampling": untouched, "noise": untouched}
    alone = make(ledger=Ledger()).report().certified.epsilon
    told = refused(lambda: make(ledger=held(limit), **sources), kind=BudgetError)
    assert told.startswith("budget: ")
    assert f"{alone:.4g}" in told
    assert "0.2" in told
    ledger = Ledger()
    loop = make(ledger=ledger, **sources)
    ledger.declare(limit)
    assert refused(lambda: iter(loop), kind=BudgetError) == told
    assert len(ledger.entries) == 1


def test_what_a_mask_is_made_of_counts_with_the_loop():
    """Of another ledger, whose people may be the same; and a mask that says nothing is refused."""
    elsewhere = held(OTHER)
    mask, lineage = some_mask(toy_model()), elsewhere.lineage(*elsewhere.entries)
    loop = make(mask=mask, lineage=lineage, ledger=Ledger())
    assert loop.report().certified.epsilon == total([*elsewhere.entries, loop.entry])
    assert refused(lambda: make(mask=mask)).startswith("`mask`: it does not say what it was made from")
    exposed = make(mask=mask, provenance="private", ledger=Ledger())
    assert exposed.entry.of(Unprotected)
    assert exposed.report().certified.epsilon == math.inf


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda values: torch.optim.SGD(values, lr=0.5, momentum=0.9, nesterov=True, weight_decay=0.1),
        lambda values: torch.optim.AdamW(values, lr=0.1, weight_decay=0.1),
    ],
    ids=["nesterov", "adamw"],
)
def test_pruned_weights_stay_exactly_zero_and_live_ones_move(optimizer):
    model = toy_model()
    mask = some_mask(model)
    live = torch.cat([mask[name].flatten() for name in mask])
    start = flat(model)
    assert start[~live].count_nonzero() > 10
    loop = make(model, mask=mask, provenance="data-free", steps=8)
    assert torch.equal(flat(model), start), "the network is left alone until the loop begins"
    steps = optimizer(model.parameters())
    for step in loop:
        step.backward()
        assert flat_gradient(model)[~live].count_nonzero() == 0
        steps.step()
        for value in model.parameters():
            value.grad.add_(1.0)  # does not stay
    assert flat(model)[~live].count_nonzero() == 0
    assert (flat(model)[live] != start[live]).all()


def test_frozen_parameters_get_no_gradient_and_do_not_change():
    model = toy_model()
    model[0].weight.requires_grad_(False)
    model[2].bias.requires_grad_(False)
    kept = model[0].weight.detach().clone(), model[2].bias.detach().clone()
    loop = make(model)
    assert f"{75 - 40 - 3} live weights" in loop.entry.words
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
    for step in loop:
        step.backward()
        optimizer.step()
        assert model[0].weight.grad is model[2].bias.grad is None
        assert (model[0].bias.grad != 0).all()
        assert (model[2].weight.grad != 0).all()
    assert torch.equal(model[0].weight, kept[0])
    assert torch.equal(model[2].bias, kept[1])


X, Y = toy_data()
NOTHING = Mask({name: torch.zeros(p.shape, dtype=torch.bool) for name, p in toy_model().named_parameters()})
BAD: list[tuple[dict[str, Any], str]] = [
    ({"loss": functional.cross_entropy}, "loss: shape ()"),
    ({"mask": NOTHING, "provenance": "data-free"}, "mask: prunes every parameter"),
    ({"model": nn.Flatten()}, "model: has no parameters"),
    ({"batch_size": 21, "records": 20}, "`batch_size`: 21 is not between 0 and the 20 records"),
    *(({"batch_size": value}, f"`batch_size`: {value:g} ") for value in (41, math.nan)),
    *(({"delta": value}, f"`delta`: {value:g} ") for value in (1 / 40, math.nan)),
    ({"delta": 1 / 30, "records": 20}, f"`delta`: {1 / 30:g} "),
    ({"epsilon": 1.0}, "`noise_multiplier`, `epsilon`: give one of them"),
    ({"noise_multiplier": None}, "`noise_multiplier`, `epsilon`: give one of them"),
    ({"noise_multiplier": None, "epsilon": math.inf}, "`epsilon`: inf "),
    *(({"noise_multiplier": value}, f"`noise_multiplier`: {value:g} ") for value in (-1.0, math.nan)),
    ({"data": (torch.zeros(40, 5), torch.zeros(39, dtype=torch.long))}, "x, y: 40 records and 39 labels"),
    ({"adjacency": "substitution"}, "`adjacency`: 'substitution' "),
    ({"steps": 0}, "`steps`: 0 "),
    ({"records": 10.5}, "`records`: 10.5 "),
    ({"epsilonn": 1.0}, "`epsilonn`: no such option; did you mean `epsilon`?"),
    *(({name: "many"}, f"`{name}`: 'many' ") for name in ("batch_size", "delta", "epsilon", "records")),
    ({"batch_size": None}, "`batch_size` is missing"),
    *(({name: 3}, f"`{name}`: of type int") for name in ("model", "loss", "ledger", "filter", "mask", "sampling")),
    ({"data": (None, Y)}, "`x`: of type NoneType"),
    ({"data": ([[1.0], [1.0, 2.0]], Y)}, "`x`: a value of type list is no array"),
    ({"data": (X.to_sparse(), Y)}, "`x`: of type Tensor, not a dense tensor"),
    ({"data": (X, "labels")}, "`y`: of type str"),
]
"""By option and value, for the most part."""


@pytest.mark.parametrize(("changes", "message"), BAD)
def test_what_is_refused_costs_nothing(changes, message):
    ledger = Ledger()
    assert refused(lambda: make(**{"ledger": ledger, **changes})).startswith(message)
    assert ledger.entries == ()


def test_one_entry_pays_for_one_loop_whoever_copies_it():
    model = toy_model()
    loop = make(model)
    step = next(iter(loop))
    again = copy.copy(step)
    step.backward()
    assert refused(again.backward) == TAKEN.format(1)
    for copied in (lambda: copy.copy(loop), lambda: copy.deepcopy(step)):
        assert refused(copied) == "`PrivateLoop`: it cannot be copied, since it runs once; make another one"


@pytest.mark.parametrize("begun", [True, False])
def test_another_process_takes_no_step_of_a_loop(begun):
    """Its noise would be another, and one entry would pay for both."""
    loop = make(sampling=SecureSource(), noise=SecureSource())
    step = next(iter(loop)) if begun else None
    if (child := os.fork()) == 0:
        told = refused(step.backward if begun else lambda: iter(loop))
        os._exit(0 if told.startswith("PrivateLoop: it was made in another process") else 1)
    assert os.waitpid(child, 0)[1] == 0
    list(loop) if step is None else step.backward()


def test_of_many_threads_one_has_the_gradient_of_a_step(monkeypatch):
    """Also where each of them sees that the gradient is there before another takes it."""

    class Slow(int):
        def __ne__(self, other: object) -> bool:
            differs = int(self) != other
            time.sleep(0.02)
            return differs

        __hash__ = int.__hash__

    model, taken = toy_model(), []
    loop = make(model, steps=3)
    backward = loop.gradients.backward
    monkeypatch.setattr(loop.gradients, "backward", lambda: (taken.append(1), backward()))

    def attempt(step: Any) -> None:
        with contextlib.suppress(InputError):
            step.backward()

    for step in loop:
        step.number = Slow(step.number)
        threads = [threading.Thread(target=attempt, args=[step]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(taken) == 3


# What else is known of the records


def test_records_that_were_tested_on_or_declared_public_are_refused_and_the_other_way_round():
    """The same arrays, as a dataset and in a loop."""
    x, y = torch.rand(40, 5).numpy(), np.arange(40) % 3
    other, facts = from_arrays(1 + x, y, bounds=(0, 2), test=(x, y)), {"data": (torch.tensor(x), torch.tensor(y))}
    ledger = Ledger()
    ledger.declare_once(*ledger.apart(other))
    assert "was declared apart" in refused(lambda: list(make(ledger=ledger, **facts)))
    ledger = Ledger()
    list(make(ledger=ledger, **facts))
    assert "is protected by a release" in refused(ledger.declare_once, *ledger.apart(other))
    public = from_arrays(x, y, bounds=(0, 1))
    assert "is protected by a release" in refused(ledger.declare_once, *ledger.public(public, "tickets"))


def test_a_loop_protects_records_and_no_persons():
    assert refused(lambda: list(make(ledger=Ledger(unit="patient")))).startswith("`unit`: ")


def test_what_nobody_says_of_starting_weights_is_said():
    assert START_NOTE in make(ledger=Ledger()).report().notes
    assert START_NOTE not in make(ledger=Ledger(), provenance="data-free").report().notes


@pytest.mark.parametrize(
    "y", [torch.full((60,), 2), torch.full((60,), -1), torch.zeros(60), torch.zeros(60, 1).long()]
)
def test_labels_without_a_weight_are_refused(y: torch.Tensor) -> None:
    said = refused(make, data=(torch.zeros(60, 5), y), class_weight=[1, 4])
    assert said == "`class_weight`: has 2 numbers, so `y` must be whole numbers from 0 to 1"


def test_no_loss_of_private_records_leaves_a_loop() -> None:
    """What a scheduler that waits for a plateau would take has to come from public records."""
    for step in make(steps=2):
        assert step.backward() is None
        assert [name for name in vars(step) if not name.startswith("_")] == ["number"]


def test_a_loop_says_that_its_records_pass_one_by_one():
    def routed(self: Applied, x: Tensor) -> Tensor:
        out = self.layer(x)
        return out.index_put((x[:, 0] > 9,), torch.zeros(()))

    report = make(Applied(routed, layer=nn.Linear(5, 3)), ledger=Ledger()).report()
    assert any("it might mix them: records pass one by one, slowly; docs/own" in note for note in report.notes)


def test_a_step_refuses_what_can_be_known_without_its_records():
    """In words about that, and not about the records' labels."""
    step = next(iter(make(ledger=Ledger())))
    with torch.inference_mode():
        assert (
            refused(step.backward) == "model: there are no gradients under torch.inference_mode; train outside of it"
        )
