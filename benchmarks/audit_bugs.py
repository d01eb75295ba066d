"""Which bugs does an audit catch? Those of tests/support/planted.py and five more are planted and attacked.

A bug is caught where the lower bound exceeds the certified epsilon, or where ``dpltm audit`` refuses the run. Each attack
runs without the bug as well (``correct``), and must stay below. ``survivors`` are correct trainings with every filter, and
with what can be combined with one, local protocols and draws at what is certified of them. Prints JSON, and the tables to
standard error, row by row. Noise of whole trainings comes from the system's generator, whatever the seed.

    python benchmarks/audit_bugs.py [--only TEXT] [--seed S] [--part bugs|survivors]
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import json
import math
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
sys.path.append(str(Path(__file__).parent))

import torch
from audit_draws import drawn_bound, worst_neighbour
from torch import nn

import dpltm
import planted
from dpltm import PrivateLoop
from dpltm.audit import audit, examine, pair_bound
from dpltm.cli import main as command
from dpltm.errors import DpltmError
from dpltm.filters import FILTERS, Clip, Filter, make_filter
from dpltm.local.codebook import Codebook
from dpltm.local.scheme import BitStrings, FixedPoint
from dpltm.networks import evaluation
from dpltm.networks.masks import Mask
from dpltm.privacy.accountant import profile
from dpltm.privacy.entry import Entry
from dpltm.privacy.ledger import Ledger
from dpltm.privacy.mechanisms import GaussianRelease, Mechanism, NoisySgd
from dpltm.privacy.selection import SelectionPlan
from dpltm.randomness import second_moments
from dpltm.randomness.noise import FastSource, two_sided_geometric
from dpltm.records import Dataset, Public, from_arrays, load, units
from dpltm.records.batches import Records
from dpltm.records.units import ABSENT
from dpltm.tickets import checkpoint_files
from dpltm.training import descent as training
from dpltm.training.artifacts import Run
from dpltm.training.canaries import Canaries, Observations
from dpltm.training.plan import NoisySteps
from dpltm.verbs.audit import audit_scheme

PUBLIC = Public("a benchmark")

DELTA, CONFIDENCE = 1e-5, 0.95


def understated(entry: Entry, change: Callable[[NoisySgd], dict[str, float]]) -> Entry:
    """An entry whose training is another one."""
    changed = (replace(each, **change(each)) if isinstance(each, NoisySgd) else each for each in entry.mechanisms)
    return replace(entry, mechanisms=tuple(changed))


MUTANTS = tuple(
    planted.Bug(name, "count", planted._entries(lambda entry, change=change: understated(entry, change)))
    for name, change in (
        ("half the steps on record", lambda done: {"steps": done.steps // 2}),
        ("half the sampling rate on record", lambda done: {"sampling_rate": done.sampling_rate / 2}),
        ("twice the noise on record", lambda done: {"noise_multiplier": 2 * done.noise_multiplier}),
    )
)
"""What mutants of the accounting come to (benchmarks/mutants.py): a training is entered as less than it was."""

BUGS = (*planted.BUGS, *MUTANTS)

CANARIES = 10_000
"""Of a network of 10,050 weights."""

AGREEING = 20
"""Records whose gradients all point the same way: the worst of datasets for what a sum should not depend on."""


@dataclass(frozen=True)
class Found:
    """What one attack came to.

    Attributes:
        certified: epsilon of what is attacked, by its own entry.
        lower_bound: on it.
        refusal: what the audit said, where it refused.
    """

    certified: float
    lower_bound: float
    refusal: str = ""

    @property
    def caught(self) -> bool:
        return bool(self.refusal) or self.lower_bound > self.certified


Attack = Callable[[int], Found]
"""From a seed."""


def certified(mechanism: Mechanism) -> float:
    """Epsilon of one mechanism."""
    return profile((mechanism,)).epsilon(DELTA)


# --- canaries: made-up records in one training ---


def looped(loop: PrivateLoop, model: nn.Module, lr: float) -> PrivateLoop:
    """The loop, run by plain SGD."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for step in loop:
        step.backward()
        optimizer.step()
    return loop


def private_loop(seed: int, filter: Filter, canaries: int) -> tuple[PrivateLoop, nn.Module]:
    """60 records, 30 steps, every other record in each."""
    draws = torch.Generator().manual_seed(seed)
    x, y = torch.randn(60, 200, generator=draws), torch.randint(0, 50, (60,), generator=draws)
    torch.manual_seed(seed)
    model = nn.Linear(200, 50)
    settings: dict[str, Any] = {
        "batch_size": 30.0,
        "records": 60,
        "steps": 30,
        "noise_multiplier": 6.0,
        "delta": DELTA,
    }
    sources = {"sampling": FastSource(2 * seed), "noise": FastSource(2 * seed + 1)}
    loss = nn.CrossEntropyLoss(reduction="none")
    return PrivateLoop(model, loss, x, y, filter=filter, audit=canaries, ledger=Ledger(), **settings, **sources), model


def canaries(seed: int, filter: Filter | None = None, count: int = CANARIES) -> Found:
    """The audit that a loop has."""
    loop, model = private_loop(seed, Clip(1.0) if filter is None else filter, count)
    found = looped(loop, model, 0.05).audit(CONFIDENCE)
    return Found(found.certified.epsilon, found.lower_bound)


def canaries_as_printed(seed: int) -> Found:
    """The same of tanh without a clip before; made here, so that a bug in its bound is on record."""
    return canaries(seed, make_filter("tanh", no_pre_clip=True), 1000)


def canaries_as_recorded(seed: int) -> Found:
    """Canaries of the neighbouring relation that the ledger states, against what it says of the training."""
    loop, model = private_loop(seed, Clip(1.0), CANARIES)
    steps, optimizer = iter(loop), torch.optim.SGD(model.parameters(), lr=0.05)
    for number, step in enumerate(steps):
        mechanism = recorded(loop)
        if number == 0:
            plan, layers = loop.gradients.plan, loop.gradients.gradients.layer_of
            replaced, coins = mechanism.adjacency == "replace-one", FastSource(seed)
            loop.gradients.canaries = Canaries(
                CANARIES, plan.filter, layers, plan.mechanism.sampling_rate, replaced, coins
            )
        step.backward()
        optimizer.step()
    observations = loop.gradients.canaries.observations
    assert observations is not None
    found = examine(observations, mechanism, DELTA, CONFIDENCE)
    return Found(found.certified.epsilon, found.lower_bound)


def recorded(loop: PrivateLoop) -> NoisySgd:
    """The training of a loop, as its ledger has it."""
    (mechanism,) = loop.ledger.entries[-1].of(NoisySgd)
    assert isinstance(mechanism, NoisySgd)
    return mechanism


def differences(seed: int) -> Found:
    """Canaries that are scored by how much they change from step to step: noise that is the same in both cancels."""
    seen: list[np.ndarray] = []

    def observe(canaries: Canaries, released: torch.Tensor, *_: float) -> None:
        seen.append(released[canaries._places[:, 0]].double().cpu().numpy())

    loop, model = private_loop(seed, Clip(1.0), CANARIES)
    with mock.patch.object(Canaries, "observe", observe):
        looped(loop, model, 0.05)
    known = loop.gradients.canaries.observations
    assert known is not None
    scores = np.abs(np.array(seen[1::2]) - np.array(seen[::2])).sum(0)
    found = examine(Observations(scores, known.included, known.norms), recorded(loop), DELTA, CONFIDENCE)
    return Found(found.certified.epsilon, found.lower_bound)


def whole_training(seed: int, **options: Any) -> Found:
    """``dpltm audit`` of a training of the digits."""
    run = trained(seed, **options)
    try:
        found = audit(run, confidence=CONFIDENCE)
    except DpltmError as refusal:
        return Found(math.nan, math.nan, str(refusal))
    return Found(found.certified.epsilon, found.lower_bound)


@functools.cache
def digits() -> Dataset:
    return load("digits")


def trained(seed: int, **options: Any) -> Run:
    """A network of 7,510 weights, 300 steps of batch 32."""
    given: dict[str, Any] = {"steps": 300, "batch_size": 32.0, "lr": 0.3, "audit": 2000}
    if "epsilon" not in options:
        given["noise_multiplier"] = 1.0
    model = options.pop("model", "mlp:100")
    settings = {**given, **options, **({"seed": seed} if isinstance(model, str) else {})}
    return dpltm.train(model, digits(), **{"ledger": Ledger(), **settings})


# --- pairs: many releases on two neighbouring datasets ---

Release = Callable[[bool, int], float]
"""The score of one release: with the record in question or without, and of which number."""


def told_apart(release: Release, certified: float, times: int) -> Found:
    """The bound from so many releases of either dataset."""
    there, missing = (np.array([release(side, number) for number in range(times)]) for side in (True, False))
    return Found(certified, pair_bound(there, missing, DELTA, CONFIDENCE))


def total(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """A loss whose gradient is the record itself."""
    return outputs.sum(1) + 0 * labels


def transcript(x: np.ndarray, source: int, *, weights: int, **settings: Any) -> np.ndarray:
    """What the steps of a loop give, ``(steps, weights)``, as noisy sums. They do not depend on weights, which move."""
    model = nn.Linear(x.shape[1], weights // x.shape[1], bias=False)
    sources = {"sampling": FastSource(2 * source), "noise": FastSource(2 * source + 1)}
    loop = PrivateLoop(
        model, total, x, np.zeros(len(x), np.int64), delta=DELTA, ledger=Ledger(), **settings, **sources
    )
    sums = []
    for step in loop:
        step.backward()
        assert model.weight.grad is not None
        sums.append(settings["batch_size"] * model.weight.grad.flatten().numpy())
        with torch.no_grad():
            model.weight.add_(1e-3)
    return np.array(sums)


def of_loop(
    times: int, table: Callable[[bool], np.ndarray], score: Callable[[np.ndarray], float], **given: Any
) -> Attack:
    """An attack on what a loop gives on two neighbouring tables."""
    mechanism = NoisySgd(given["batch_size"] / given["records"], given["steps"], given["noise_multiplier"])

    def attack(seed: int) -> Found:
        def release(there: bool, number: int) -> float:
            return score(transcript(table(there), seed * 2**20 + 2 * number + there, **given))

        return told_apart(release, certified(mechanism), times)

    return attack


def agreeing(there: bool, *, each: float = 2.0, odd: float = 2.0) -> np.ndarray:
    """Records along one axis, and maybe one more."""
    return np.array([[each, 0, 0, 0]] * AGREEING + [[odd, 0, 0, 0]] * there, np.float32)


SIZE_BY_NOISE = of_loop(
    100,
    lambda there: np.zeros((24 + there, 4), np.float32),
    lambda sums: -float(sums.std()),
    weights=8000, batch_size=24.0, records=24, steps=1, noise_multiplier=4.0,
)  # fmt: skip
"""Where the divisor is the number of records, the size of the noise tells it."""

SIZE_BY_BATCHES = of_loop(
    300,
    agreeing,
    lambda sums: -float(sums[2, 0]),
    weights=4, batch_size=10.0, records=AGREEING, steps=3, noise_multiplier=3.0,
)  # fmt: skip
"""Two shuffled batches take up the records; the third begins anew, or holds the one that was left over."""

LOUD = of_loop(
    200,
    functools.partial(agreeing, each=0.01, odd=1e6),
    lambda sums: float(sums[0, 0]),
    weights=4, batch_size=float(AGREEING), records=AGREEING, steps=1, noise_multiplier=3.0,
)  # fmt: skip
"""Small records, whose gradients are far below the clip norm; and a very large one."""


WIDE = 0.01
"""A delta at which some thousand releases tell sensitivity C from 2 C; at 1e-5 it takes a hundred thousand."""


def turned_groups(seed: int) -> Found:
    """One group of records that agree, and one more that points the other way, and is long: its mean turns round.

    Gradients do not depend on weights, so every step of a loop is a release of the same sum.
    """
    settings: dict[str, Any] = {
        "batch_size": float(AGREEING),
        "records": AGREEING,
        "steps": 1500,
        "noise_multiplier": 1.5,
    }
    turned, as_it_was = (
        -transcript(agreeing(there, odd=-1e6), 2 * seed + there, weights=4, microbatch=AGREEING, **settings)[:, 0]
        for there in (True, False)
    )
    claim = profile((NoisySgd(1.0, 1, 1.5),)).epsilon(WIDE)
    return Found(claim, pair_bound(turned, as_it_was, WIDE, CONFIDENCE))


def persons(there: bool) -> np.ndarray:
    """Records of 20 persons, or 21: of two each the one that is taken, which the size of the table would change."""
    x, who = [], []
    for person in range(400):
        x += [[1.0, person / 4096, 0, 0], [0, person / 4096, 1.0, 0]]
        who += [person, person]
    values, whose = np.array(x, np.float32), np.array(who)
    labels = np.arange(len(values)) % 2
    hashes = from_arrays(values, labels, bounds=(0, 1), classes=2, records=400, units=whose).rows.public_hashes()
    count = 2 * AGREEING
    chosen: list[int] = []
    for person in range(400):
        own = np.array([2 * person, 2 * person + 1])
        firsts = [first_of(own, hashes, records) for records in (count, count + 1)]
        chosen += [person] if firsts == [0, 1] and len(chosen) < AGREEING else []
    chosen += [person for person in range(400) if person not in chosen][: AGREEING - len(chosen)]
    taken = np.concatenate([[2 * person, 2 * person + 1] for person in chosen])
    values, whose = values[taken], whose[taken]
    if there:
        values, whose = np.concatenate([values, np.zeros((1, 4), np.float32)]), np.append(whose, 400)
    labels = np.arange(len(values)) % 2
    dataset = from_arrays(values, labels, bounds=(0, 1), classes=2, records=AGREEING, units=whose)
    return 2 * units.at_unit(dataset, 1).train.open(PUBLIC).x[:, 0].astype(np.float32)


def first_of(own: np.ndarray, hashes: np.ndarray, records: int) -> int:
    """Which of two records of a person is taken, among so many records."""
    filler = np.arange(records - 2) + 1
    whose, of_all = (
        np.concatenate([[0, 0], filler]),
        np.concatenate([hashes[own], np.zeros(records - 2, hashes.dtype)]),
    )
    index, row, _ = units.in_slots(whose, of_all, 1)
    return int(index[row == 0][0])


def chosen_records(seed: int) -> Found:
    """The sum over persons, along the axis that tells which record was taken."""
    tables = {there: persons(there) for there in (True, False)}
    attack = of_loop(
        200,
        tables.__getitem__,
        lambda sums: float(sums[0, 2] - sums[0, 0]),
        weights=4, batch_size=float(AGREEING), records=AGREEING, steps=1, noise_multiplier=4.0,
    )  # fmt: skip
    return attack(seed)


def number_of_sums(seed: int) -> Found:
    """How many noisy sums a training releases."""
    config = NoisySteps(Clip(1.0), NoisySgd(0.5, 4, 8.0), 12.0, 0.1)

    def release(there: bool, number: int) -> float:
        released = []
        whole = training.NoisyGradients.release

        def counted(gradients: training.NoisyGradients, sums: torch.Tensor) -> None:
            released.append(whole(gradients, sums))

        x, y = np.ones((24 + there, 4), np.float32), np.zeros(24 + there, np.int64)
        model = nn.Linear(4, 2)
        sources = {name: FastSource(seed * 2**20 + 2 * number + there) for name in ("sampling", "noise")}
        with mock.patch.object(training.NoisyGradients, "release", counted):
            training.train(model, Mask.dense(model), Records(x, y), config, **sources)
        return float(len(released))

    return told_apart(release, certified(NoisySgd(0.5, 4, 8.0)), 100)


def small_run(there: bool, **options: Any) -> Run:
    """A training of 24 records, or 25, all but the first of one class."""
    x, y = np.full((24 + there, 6), 128, np.uint8), (np.arange(24 + there) == 0).astype(np.int64)
    np.savez("d.npz", x_train=x, y_train=y)  # for the bugs that read it
    given: dict[str, Any] = {"steps": 2, "batch_size": 8.0, "delta": DELTA, "records": 50, "classes": 2, **options}
    ledger = Ledger(unit=str(given.get("unit", "user")) if "units" in given else "record")
    return dpltm.train(given.pop("model", "mlp:4"), x, y, ledger=ledger, **given)


def of_runs(times: int, score: Callable[[Run], float], **options: Any) -> Attack:
    """An attack on all that a run says."""

    def attack(_: int) -> Found:
        claim = small_run(False, **options).privacy.certified.epsilon
        return told_apart(lambda there, _: score(small_run(there, **options)), claim, times)

    return attack


def counted_in_entry(run: Run) -> float:
    """The number of records in the words of the entry, if there is one."""
    assert run.entry is not None
    told = re.search(r"([0-9]+) records", run.entry.words)
    return float(told[1]) if told else 0.0


def measured(run: Run) -> float:
    """The accuracy that was released."""
    return float(run.metrics[-1]["accuracy"])


def centre_along(there: bool, apart: int, epsilon: float, **options: Any) -> float:
    """How far the released mean of features lies towards the last records, which stand apart from the others."""
    x = np.eye(6, dtype=np.float32)[[0] * 10 + [5] * (apart if there else 0)]
    given: dict[str, Any] = {"features": "unit", "centre": 0.5, "steps": 1, "batch_size": 50.0, "delta": DELTA}
    facts: dict[str, Any] = {"bounds": (0, 1), "classes": 2, "records": 50}
    ledger = Ledger(unit="user" if "units" in options else "record")
    run = dpltm.train("mlp", x, np.arange(len(x)) % 2, epsilon=epsilon, ledger=ledger, **given, **facts, **options)
    feature_map = run.feature_map
    assert feature_map is not None
    assert feature_map.centre is not None
    return float(feature_map.centre[5])


def centre_of_records(_: int) -> Found:
    """The mean of features, where one record stands apart."""
    return told_apart(lambda there, _: centre_along(there, 1, 1.5), 1.5, 300)


def centre_of_persons(_: int) -> Found:
    """The same of persons, where all records of one stand apart."""

    def release(there: bool, _: int) -> float:
        whose = np.array([*range(10), *[10] * (32 if there else 0)])
        return centre_along(there, 32, 1.0, units=whose, per_unit=32)

    return told_apart(release, 1.0, 150)


def second_moments_of_a_head(seed: int) -> Found:
    """Second moments of one input, or none, along what that input adds."""
    noise = FastSource(seed)

    def release(there: bool, _: int) -> float:
        rows = torch.tensor([[1.0, 0.0]])[:there]
        return float(second_moments.release_second_moments([rows], 2, 2.0, noise)[0, 0])

    return told_apart(release, certified(GaussianRelease(2.0)), 40_000)


def count_of_persons(seed: int) -> Found:
    """The noisy count that ``--eval-private`` releases, where one person has 32 right records."""
    noise, y = FastSource(seed), torch.full((11, 32), ABSENT)
    y[:, 0], y[10] = 0, 0

    def release(there: bool, _: int) -> float:
        labels = y[: 10 + there]
        x = torch.eye(2)[torch.zeros(int((labels != ABSENT).sum()), dtype=torch.int64)]
        return evaluation.count_correct(nn.Identity(), x, labels) + two_sided_geometric(noise, 0.5)

    return told_apart(release, 0.5, 4000)


# --- draws and messages ---


def selection_plan() -> SelectionPlan:
    """Four candidates of 20 records, scored by their counts."""
    return SelectionPlan(0.5, (0.7, 0.5, 0.35, 0.2), 20, score="additive", lam=0.0)


def enumerated(_: int) -> Found:
    """The exact epsilon of a draw over all neighbours of some counts, by the formula that the code draws by."""
    return Found(0.5 * (1 + 1e-9), worst_neighbour(selection_plan(), np.array([10, 10, 10, 10]))[0])


def drawn(seed: int) -> Found:
    """Winners of many draws."""
    plan, one, two = selection_plan(), np.array([10, 11, 0, 0]), np.array([11, 10, 0, 0])
    return Found(1.0, drawn_bound(plan, one, two, 1000, CONFIDENCE, FastSource(seed)))  # two records apart


def messages(answer: BitStrings | Codebook, count: int = 2000) -> Attack:
    """The likelihood-ratio attack on messages."""

    def attack(seed: int) -> Found:
        found = audit_scheme("messages", answer, count, CONFIDENCE, FastSource(seed))
        return Found(found.certified.epsilon, found.lower_bound)

    return attack


def coins_of_messages(seed: int) -> Found:
    """Two messages, of a known record and of one that is the same or its opposite: do they agree?"""
    answer = BitStrings(8, 2, FixedPoint(0, 0), "rappor", 2.0, None, None)
    channel, coins = answer.channel, FastSource(seed)

    def release(there: bool, _: int) -> float:
        sent = np.packbits(np.repeat([[True], [there]], channel.bits, axis=1), axis=1)
        known, other = np.unpackbits(channel.send(sent, coins), axis=1, count=channel.bits)
        return float((known == other).sum())

    return told_apart(release, answer.certified, 500)


MANY_BITS = BitStrings(10, 2, FixedPoint(4, 5), "rappor", 0.1, None, None)
ATTACKS: dict[str, tuple[str, Attack]] = {
    "no clipping": ("canaries", canaries),
    "noise of half the scale": ("canaries", canaries),
    "twice the sampling rate": ("canaries", canaries),
    "group of records counted as one": ("pairs at delta 0.01: the sum of a group that turns round", turned_groups),
    "element-wise tanh with bound 1": ("canaries", canaries_as_printed),
    "entry for another relation": ("canaries as on record", canaries_as_recorded),
    **{bug.name: ("canaries as on record", canaries_as_recorded) for bug in MUTANTS},
    "one noise draw used twice": ("canaries, by differences of steps", differences),
    "no entry": ("canaries", whole_training),
    "realised batch as divisor": ("pairs: spread of a noisy sum", SIZE_BY_NOISE),
    "shuffled batches instead of Poisson": ("pairs: third sum of records that agree", SIZE_BY_BATCHES),
    "features scaled by the records at hand": ("pairs: a loud record among faint ones", LOUD),
    "one step more where records are odd in number": ("pairs: number of noisy sums", number_of_sums),
    "records of persons chosen by how many there are": ("pairs: sum over persons", chosen_records),
    "true number of records in the answer": (
        "pairs: the answer", of_runs(40, lambda run: run.config["resolved"].get("records", 0.0), noise_multiplier=8.0),
    ),
    "true number of records in the entry": (
        "pairs: the ledger", of_runs(40, counted_in_entry, noise_multiplier=8.0),
    ),
    "evaluation at another epsilon": (
        "pairs: the noisy count", of_runs(100, measured, noise_multiplier=8.0, eval_private=0.5),
    ),
    "evaluation without noise": (
        "pairs: the noisy count", of_runs(100, measured, noise_multiplier=8.0, eval_private=0.5),
    ),
    "every right answer of a person counted": ("pairs: the noisy count of persons", count_of_persons),
    "centre of records that are not clipped": ("pairs: the centre", centre_of_records),
    "every record of a person in the centre": ("pairs: the centre", centre_of_persons),
    "second moments of inputs of norm 2": ("pairs: the second moments", second_moments_of_a_head),
    "second moments with half the noise": ("pairs: the second moments", second_moments_of_a_head),
    "winner drawn at twice the epsilon": ("all neighbours of a draw", enumerated),
    "half the sensitivity of a score": ("all neighbours of a draw", enumerated),
    "best ticket taken": ("winners of many draws", drawn),
    "bits sent with other odds": ("messages", messages(MANY_BITS)),
    "all records on the same coins": ("messages, two at a time", coins_of_messages),
    "entry after use": ("canaries", whole_training),
    "entry on other records": ("canaries", whole_training),
    "entry that is not on disk when it is used": ("canaries", whole_training),
    "fewer steps than are charged": ("canaries", whole_training),
    "a draw from the process's own generator": ("canaries", whole_training),
}  # fmt: skip
"""What is made of each bug, by name: the attack in words, and itself."""

_REPLAYED = (
    "{}; replaying the command on neighbours sees it (tests/adversary), and trainings by the thousand with one record in or"
    " out would"
)

UNSEEN = {
    "half the steps on record": "an understatement by a third is too small for one training; repeat it some thousands of"
    " times with one canary in or out, and compare pairs",
    "no entry": "the run carries an entry that its ledger never had; compare the two, or cut the process off",
    "entry after use": "nothing that is released depends on when it is written down; cut the process off between the two",
    "entry on other records": "what is released is as private as claimed, only the sum over trainings is not; audit several"
    " trainings on these records together, against what the ledger says of the records",
    "entry that is not on disk when it is used": "as for an entry after use: cut the process off, and read the file",
    "fewer steps than are charged": "more is charged than is released, so the claim holds; no attack can refute it",
    "a draw from the process's own generator": "no record decides what is drawn, so nothing leaks",
    "search on the private records": "records are read, and nothing of them comes out: a monitor of files sees it",
    "errors in the unit of the target": "one score at twice its epsilon: repeat it some thousands of times on two datasets"
    " that a record tells apart, as for counts",
    "a record in one step more than drawn": _REPLAYED.format(
        "canaries go by the same draw, and one step of many shows little"
    ),
    "an allocation drawn anew each step": _REPLAYED.format("a step by itself has the same law"),
    "an allocation entered as one of more steps": _REPLAYED.format("the figure is low by too little for one training"),
    "one noise draw used twice in banded noise": _REPLAYED.format("audits refuse banded noise"),
    "a record in two parts": _REPLAYED.format("audits refuse banded noise"),
    "fewer participations in the entry than there are": _REPLAYED.format("audits refuse banded noise"),
    "parts by position": _REPLAYED.format("audits refuse banded noise"),
    "banded noise that is not taken off": _REPLAYED.format("audits refuse banded noise"),
}
"""Bugs that no audit here sees: why, and what would have to be made."""


# --- correct runs, which survive ---


def resumed(seed: int) -> Found:
    """A command that is interrupted after 150 steps, and given again."""
    arguments = (
        "train --dense --dataset digits --model mlp:100 --steps 300 --batch-size 32 --lr 0.3 --noise-multiplier 1"
    )
    arguments = [*arguments.split(), "--audit", "2000", "--seed", str(seed), "--out", "interrupted"]
    backward, taken = training.NoisyGradients.backward, 0

    def interrupted(gradients: training.NoisyGradients) -> None:
        nonlocal taken
        taken += 1
        if taken == 150:
            raise KeyboardInterrupt
        backward(gradients)

    often = (mock.patch.object(checkpoint_files, "EVERY", 0.05), mock.patch.object(checkpoint_files, "SHARE", 0.5))
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), often[0], often[1]:
        with mock.patch.object(training.NoisyGradients, "backward", interrupted):
            assert "goes on from step" in said(*arguments)
        said(*arguments)
        found = json.loads(said("audit", "interrupted", "--json"))
    return Found(found["certified"], found["lower_bound"])


def said(*arguments: str) -> str:
    """What a command prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), contextlib.suppress(KeyboardInterrupt):
        command.run(list(arguments))
    return out.getvalue()


def of_dp_ticket(seed: int) -> Found:
    """A training of a ticket that was made under DP, in one ledger with that."""
    ledger = dpltm.Ledger()
    tickets = dpltm.generate(
        digits(), ledger=ledger, provenance="dp", criterion="dp-train", epsilon=2.0, model="mlp:100", rounds=2,
        seed=seed,
    )  # fmt: skip
    return whole_training(seed, model=tickets, round=2, ledger=ledger)


def staged(**options: Any) -> Attack:
    """A training with these options."""
    return lambda seed: whole_training(seed, **options)


def both_draws(mechanism: str, score: str) -> Attack:
    """The larger of what all neighbours and many draws show."""

    def attack(seed: int) -> Found:
        plan = SelectionPlan(0.5, (0.7, 0.5, 0.35, 0.2), 20, mechanism=mechanism, score=score)  # type: ignore[arg-type]
        counts = np.array([10, 12, 15, 9])
        exact, other = worst_neighbour(plan, counts)
        bound = drawn_bound(plan, counts, other, 2000, CONFIDENCE, FastSource(seed))
        return Found(0.5 * (1 + 1e-9), max(exact, bound))

    return attack


def survivors() -> dict[str, Attack]:
    """By name."""
    printed = {"filter": "tanh", "no_pre_clip": True}
    found = {f"filter {name}": staged(filter=name) for name in FILTERS}
    found |= {
        "filter tanh, no clip before": staged(**printed),
        "microbatches": staged(microbatch=4),
        "replace-one": staged(adjacency="replace-one"),
        "features": staged(features="unit"),
        "features, centred": staged(features="unit", centre=0.2, epsilon=4.0),
        "momentum": staged(optimizer="momentum", lr=0.03),
        "adam": staged(optimizer="adam", lr=0.002),
        "averaging ema": staged(average="ema"),
        "averaging poly": staged(average="poly"),
        "features, centred, momentum, averaging": staged(
            features="unit", centre=0.2, epsilon=4.0, optimizer="momentum", lr=0.03, average="ema"
        ),
        "resume": resumed,
        "ticket under DP": of_dp_ticket,
    }
    for protocol, alpha in (("uer", 7.0), ("rappor", None), ("moue-hs", 7.0)):
        bits = BitStrings(1, 2, FixedPoint(0, 1), protocol, 2.0, alpha, None)
        found[f"local {protocol}, 2 bits"] = messages(bits, 4000)
    found["local codebook"] = messages(Codebook(12, 5, 3.0, "one-hot", 16))
    for mechanism in ("exponential", "permute-and-flip"):
        for score in ("product", "additive"):
            found[f"draw {mechanism}, {score}"] = both_draws(mechanism, score)
    return found


# --- the tables ---


def bug_row(name: str, plant_it: Callable[[], AbstractContextManager[Any]], seed: int) -> dict[str, Any]:
    """One bug: the attack on it, and the same without it."""
    began = time.process_time()
    row: dict[str, Any] = {"bug": name, "attack": None, "certified": None, "lower_bound": None, "caught": False}
    if name in ATTACKS:
        row["attack"], attack = ATTACKS[name]
        with plant_it():
            found = attack(seed)
        without = attack(seed)
        row |= {"certified": figure(found.certified), "lower_bound": figure(found.lower_bound), "caught": found.caught}
        row |= {"correct": {"certified": figure(without.certified), "lower_bound": figure(without.lower_bound)}}
        row |= {"refusal": found.refusal} if found.refusal else {}
        row["false_alarm"] = without.caught
    if not row["caught"]:
        row["because"] = UNSEEN.get(name, "missed")
    return {**row, "seconds": round(time.process_time() - began, 1)}


def survivor_row(name: str, attack: Attack, seed: int) -> dict[str, Any]:
    """One correct run, and what the attack on it shows."""
    began = time.process_time()
    found = attack(seed)
    row = {"run": name, "certified": figure(found.certified), "lower_bound": figure(found.lower_bound)}
    return {**row, "survives": not found.caught, "seconds": round(time.process_time() - began, 1)}


def figure(epsilon: float) -> float | None:
    """As JSON and tables have it."""
    return None if math.isnan(epsilon) else float(f"{epsilon:.4g}") if math.isfinite(epsilon) else None


def line(row: dict[str, Any]) -> str:
    """A row of a table in words."""
    cells = ["-" if row[name] is None else f"{row[name]:.4g}" for name in ("certified", "lower_bound")]
    if "run" in row:
        return " | ".join(["", row["run"], *cells, "survives" if row["survives"] else "EXCEEDED", ""]).strip()
    verdict = "caught" if row["caught"] else f"no audit can see it: because {row['because']}"
    if "refusal" in row:
        verdict = f"refused: {row['refusal'].partition(': ')[2]}"
    correct = row.get("correct", {}).get("lower_bound")
    cells.append("-" if correct is None else f"{correct:.4g}")
    return " | ".join(["", row["bug"], row["attack"] or "-", *cells, verdict, ""]).strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows whose name contains this text")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", choices=("bugs", "survivors"), help="one of both tables")
    given = parser.parse_args()
    torch.set_num_threads(1)
    tables: dict[str, list[dict[str, Any]]] = {"bugs": [], "survivors": []}
    jobs: list[tuple[str, str, Callable[[], dict[str, Any]]]] = [
        ("bugs", bug.name, functools.partial(bug_row, bug.name, bug.plant, given.seed)) for bug in BUGS
    ]
    jobs += [
        ("survivors", name, functools.partial(survivor_row, name, attack, given.seed))
        for name, attack in survivors().items()
    ]
    with tempfile.TemporaryDirectory() as home, contextlib.chdir(home):  # no key or cache of the user's own
        os.environ |= {"XDG_CONFIG_HOME": f"{home}/config", "XDG_CACHE_HOME": f"{home}/cache"}
        for part, name, job in jobs:
            if given.only in name and given.part in (None, part):
                tables[part].append(job())
                print(line(tables[part][-1]), file=sys.stderr, flush=True)
    print(json.dumps({"seed": given.seed, "confidence": CONFIDENCE, "delta": DELTA, **tables}, indent=1))
    if any(not row["survives"] for row in tables["survivors"]) or any(
        row.get("false_alarm") for row in tables["bugs"]
    ):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
