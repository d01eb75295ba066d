"""Can whole trainings be told apart better than is certified? Thousands on two neighbours, by what they release.

Each option of ``OPTIONS`` gets ``--runs`` trainings: half on records with one that counts most, half
without it, or with its opposite in its place. Everything is drawn anew: ledger, entry, key, coins and noise. Two scores of
each training make a lower bound on epsilon each (``dpltm.audit.pair_bound``; Clopper-Pearson, at a confidence by
which all of them together hold at 95 %).

- ``ratio``: ln of the likelihoods of all that was released, under either dataset: noisy sums of steps (of a sampled step the
  mixture over all samples, of groups over all ways to form them), the mean of features, counts of right answers. It is exact
  but for float32, and takes earlier releases as they came out. Second moments enter by the change that they see.
  Where it is, the mean of e^-ratio over the first and of e^ratio over the second is 1, whatever was trained: ``one`` holds
  both means and their standard errors. Another noise, or other chances of samples, than what is paid for show there first.
- ``weights``: how far the weights of the run went against the gradient that the record has at the start.

What is tried on made-up records before a training is tried once an option. A lower bound above what is certified is a bug;
nothing follows from one below. The last option is a bug that is planted, noise half as large as its entry says.

    OMP_NUM_THREADS=1 python benchmarks/likelihood_audit.py [--runs 10000] [--only NAME;...] [--share 1/2]

Prints JSON, a line an option.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import itertools
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

import dpltm
from dpltm.audit import pair_bound
from dpltm.features import normalisation
from dpltm.features.inputs import Services, batched_records, network_inputs, with_feature_map
from dpltm.filters import Clip
from dpltm.gradients import engine
from dpltm.gradients.probe import Probe
from dpltm.networks import ModelSpec
from dpltm.options.train import TrainOptions
from dpltm.privacy.checkpoint import Checkpoint, Checkpoints
from dpltm.privacy.ledger import Ledger
from dpltm.records import Dataset, at_unit, from_arrays
from dpltm.training import descent, release
from dpltm.training import plan as training_plan
from dpltm.training.artifacts import StartingPoint, fresh, from_round
from dpltm.training.release import TrainingPlan
from dpltm.verbs import train as train_verb
from dpltm.verbs.private_loop import PrivateLoop

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from opened import arrays_of

WITH, WITHOUT = 1, 0
DELTA = 0.01
"""Below one over the number of records; so large that thousands of trainings come near what is certified."""


@dataclass(frozen=True)
class Option:
    """One way to train: fields of ``TrainOptions``, and how its records are made."""

    name: str
    given: dict[str, Any] = field(default_factory=dict)
    model: str = "mlp"
    kind: str = "table"
    how: str = "train"
    replace_one: bool = False
    records: int = 4


def _options() -> Iterator[Option]:
    few, sampled = {"steps": 2, "noise_multiplier": 1.2}, {"steps": 4, "noise_multiplier": 0.8, "batch_size": 2}
    steep = {**few, "tanh_range": 0.01}
    for name in ("clip", "per-layer", "auto", "normalize"):
        yield Option(name, {**few, "filter": name})
    for name in ("tanh", "tanh-clip", "radial-tanh", "sigmoid"):
        yield Option(name, {**steep, "filter": name})
    yield Option("tanh as printed", {**steep, "filter": "tanh", "no_pre_clip": True})
    yield Option("dpsr-cg", {**few, "filter": "dpsr-cg", "clip_norm": 8.0}, kind="images")
    yield Option("replace-one", few, replace_one=True)
    yield Option("all records, one step", {"steps": 1, "noise_multiplier": 0.8})
    yield Option("half of the records", sampled)
    yield Option("half of the records, replace-one", sampled, replace_one=True)
    yield Option("a quarter of the records", {**sampled, "batch_size": 1, "noise_multiplier": 0.5})
    yield Option("noise fast", {**few, "noise": "fast"})
    yield Option("momentum, cosine, ema", {**few, "optimizer": "momentum", "schedule": "cosine", "average": "ema"})
    yield Option(
        "adam, linear, poly", {**few, "optimizer": "adam", "schedule": "linear", "average": "poly", "lr": 0.01}
    )
    yield Option("adagrad, replace-one", {**few, "optimizer": "adagrad", "lr": 0.01}, replace_one=True)
    yield Option("bfloat16, one at a time", {**few, "precision": "bfloat16", "physical_batch": 1})
    groups = {"steps": 2, "noise_multiplier": 0.8, "batch_size": 4, "microbatch": 2, "clip_norm": 0.1}
    yield Option("microbatch", groups, kind="opposed")
    yield Option("microbatch, half of them, replace-one", groups, kind="opposed", replace_one=True, records=8)
    yield Option("persons", few, kind="persons")
    yield Option("persons, half of them, replace-one", sampled, kind="persons", replace_one=True)
    yield Option("centred features", {"steps": 2, "epsilon": 2.5, "features": "unit", "centre": 0.5})
    yield Option("centred, half, replace-one", {"steps": 2, "epsilon": 2.5, "features": "unit", "centre": 0.5,
                 "batch_size": 2}, replace_one=True)  # fmt: skip
    yield Option("counts of right answers", {**few, "eval_private": 1.0, "lr": 1.0})
    yield Option("stop at the budget", {"steps": 50, "noise_multiplier": 1.5, "epsilon": 2.5, "budget_stop": True})
    yield Option("a sparse ticket", few, how="ticket", model="mlp:3")
    yield Option("resumed in a step", few, how="resumed")
    yield Option("resumed in a step, half", sampled, how="resumed")
    yield Option("a loop", few, how="loop")
    yield Option(
        "a loop, half, microbatch, replace-one", groups, kind="opposed", how="loop", replace_one=True, records=8
    )
    yield Option("least squares", {"noise_multiplier": 0.8, "head": "least-squares", "features": "unit"})
    yield Option("least squares, second moments", {"noise_multiplier": 0.8, "head": "least-squares", "features": "unit"},
                 kind="many")  # fmt: skip
    yield Option("planted: half the noise", few, how="planted")


OPTIONS = tuple(_options())


# --- neighbours -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Neighbours:
    """Records that both datasets have, then the one of the first, then its opposite; and whose they are, of persons."""

    x: np.ndarray
    y: np.ndarray
    common: int
    facts: dict[str, Any]
    units: np.ndarray | None = None

    def rows(self, world: int, replace_one: bool) -> np.ndarray:
        """Places of the records of one dataset; of persons, several a person."""
        unit = np.arange(len(self.x)) if self.units is None else self.units
        odd = [self.common + (0 if world == WITH else 1)] if world == WITH or replace_one else []
        return np.flatnonzero(np.isin(unit, [*range(self.common), *odd]))

    def dataset(self, rows: np.ndarray) -> Dataset:
        units = None if self.units is None else self.units[rows]
        return from_arrays(self.x[rows], self.y[rows], units=units, name="neighbours", **self.facts)


def neighbours(kind: str, records: int) -> Neighbours:
    """Three records, or persons, of little weight, or 200; the others say the most they can, for one label or the other."""
    facts: dict[str, Any] = {"classes": 2, "bounds": (0, 1), "records": records}
    if kind == "images":
        x = np.zeros((5, 8, 8), np.float32)
        x[3:] = 1.0
        return Neighbours(x, np.array([0, 1, 0, 0, 1]), 3, facts)
    if kind == "many":
        x = np.random.default_rng(1).random((202, 4)).astype(np.float32)
        x[200:] = [1, 0, 1, 0]
        return Neighbours(x, np.append(np.arange(200) % 2, [0, 1]), 200, facts | {"records": 201})
    x = np.zeros((5, 4), np.float32)
    x[:3, 0] = (0.0, 0.5, 1.0)
    x[3:] = 1.0
    y = np.array([0, 1, 0, 0, 1])
    if kind == "opposed":  # a group without the record points the other way
        x[:2], x[2], y[:3] = 0.5, 0.0, (1, 1, 0)
    if kind == "persons":
        return Neighbours(np.repeat(x, 2, 0), np.repeat(y, 2), 3, facts, np.repeat(np.arange(5), 2))
    return Neighbours(x, y, 3, facts)


# --- the likelihood of what is released -----------------------------------------------------------------------------


def log_mixture(at: Tensor, centres: Tensor, log_weights: Tensor, std: float) -> float:
    """ln of a mixture of normal densities at a point, but for their common factor."""
    return float(torch.logsumexp(log_weights - (at - centres).square().sum(1) / (2 * std**2), 0))


class Killed(BaseException):
    """The process is gone: nothing of ours handles this."""


class Tape:
    """Log likelihood ratio of everything that a training has released so far, and where its first step pointed."""

    def __init__(self, option: Option) -> None:
        self.option, self.made = option, neighbours(option.kind, option.records)
        self.both = self.made.dataset(np.arange(len(self.made.x)))
        self.means: dict[int, np.ndarray] = {}  # exact sums of features, by dataset
        self._rows: tuple[Tensor, Tensor] | None = None
        self.begin(WITH)

    def begin(self, world: int) -> None:
        self.world, self.score, self.direction = world, 0.0, None
        self.mean: Tensor | None = None
        self._seen: list[Tensor] = []
        self.left_to_live = 0  # in steps; 0 is for ever

    def datasets(self) -> dict[int, list[int]]:
        """Places in ``rows`` of either dataset."""
        common = list(range(self.made.common))
        odd = [self.made.common + 1] if self.option.replace_one else []
        return {WITH: [*common, self.made.common], WITHOUT: common + odd}

    def settle(self, training: TrainingPlan) -> None:
        """Take all records as the network gets them, behind the centre that was released."""
        if self._rows is not None and training.dataset.feature_map is None:
            return
        both = at_unit(self.both, training.options.per_unit)
        both = replace(both, feature_map=training.dataset.feature_map)
        opened = arrays_of(network_inputs(both.train, both, training.services))
        self._rows = batched_records(opened, both, "cpu").take(np.arange(len(opened.x)))

    def take(self, x: Tensor, y: Tensor) -> None:
        self._rows = x, y

    @property
    def rows(self) -> tuple[Tensor, Tensor]:
        assert self._rows is not None
        return self._rows

    def step(self, gradients: descent.NoisyGradients, centres: dict[int, tuple[Tensor, Tensor]]) -> None:
        """Score the noisy sum that was just released; ``centres`` are what it may be without noise, and log chances."""
        assert self.mean is not None
        noisy = self.mean.double() * gradients.plan.divisor
        if any(torch.equal(noisy, seen) for seen in self._seen):
            return  # a step that is taken again shows what it showed
        self._seen.append(noisy)
        ratio = [log_mixture(noisy, *centres[world], gradients.plan.mechanism.noise_std) for world in (WITH, WITHOUT)]
        self.score += ratio[0] - ratio[1]
        if self.direction is None:
            first, second = (
                torch.softmax(chances, 0) @ points for points, chances in (centres[WITH], centres[WITHOUT])
            )
            self.direction = first - second


def centres_of(tape: Tape, gradients: descent.NoisyGradients) -> dict[int, tuple[Tensor, Tensor]]:
    """All sums that a step may have without noise on either dataset, ``(ways, live)``, and the logs of their chances."""
    x, y = tape.rows
    sums, plan = gradients.gradients, gradients.plan

    def total(places: list[int], grouped: bool = False) -> Tensor:
        groups = [len(places)] if grouped else None
        return sums.filtered_sum(x[places], y[places], plan.filter, groups=groups).values.clone()

    datasets, rate, groups = tape.datasets(), plan.mechanism.sampling_rate, plan.groups or 1
    nothing = torch.zeros(sums.live, dtype=torch.float64)
    if plan.groups is None:
        shared = list(range(tape.made.common))
        if rate == 1:
            shared, base = [], total(shared)
        alone = {
            one: total([one])
            for one in {*shared, *datasets[WITH], *datasets[WITHOUT]}
            if one not in range(tape.made.common) or rate < 1
        }
        if rate == 1:
            return {
                world: (sum((alone[one] for one in places if one in alone), base)[None], torch.zeros(1).double())
                for world, places in datasets.items()
            }
    found, known = {}, {(): nothing}
    for world, places in datasets.items():
        ways = list(itertools.product(range(groups + 1 if rate < 1 else groups), repeat=len(places)))
        inside = np.array([sum(way < groups for way in each) for each in ways])  # the last way is out of the sample
        chances = inside * math.log(rate / groups)
        if rate < 1:
            chances = chances + (len(places) - inside) * math.log1p(-rate)
        if plan.groups is None:
            taken = torch.tensor(ways, dtype=torch.float64).eq(0).double()
            points = taken @ torch.stack([alone[one] for one in places])
        else:
            points = torch.empty(len(ways), sums.live, dtype=torch.float64)
            for row, each in enumerate(ways):
                of = [tuple(one for one, way in zip(places, each, strict=True) if way == g) for g in range(groups)]
                for some in of:
                    if some not in known:
                        known[some] = total(list(some), grouped=True)
                points[row] = sum((known[some] for some in of), nothing)
        found[world] = points, torch.from_numpy(chances)
    return found


@contextlib.contextmanager
def taped(tape: Tape) -> Iterator[None]:
    """Within the block, whatever trainings release is scored."""
    inner = {
        "release": descent.NoisyGradients.release,
        "mean": descent.noisy_mean,
        "prepare": release.prepare,
        "gaussian": normalisation.gaussian_mechanism,
        "second": release.head.release_second_moments,
        "rows": release.head._rows,
        "noise": release.two_sided_geometric,
    }

    def released(self: descent.NoisyGradients, total: Tensor) -> None:
        centres = centres_of(tape, self)
        inner["release"](self, total)
        tape.step(self, centres)
        if tape.left_to_live == 1:
            tape.left_to_live = 0
            raise Killed
        tape.left_to_live -= 1

    def noisy_mean(*given: Any) -> Tensor:
        if tape.option.how == "planted":
            given = (given[0], given[1] / 2, *given[2:])
        tape.mean = inner["mean"](*given)
        return tape.mean

    def prepare(training: TrainingPlan, *given: Any) -> Any:
        tape.settle(training)
        return inner["prepare"](training, *given)

    def gaussian(total: np.ndarray, std: float, source: Any) -> np.ndarray:
        found = inner["gaussian"](total, std, source)
        tape.means.setdefault(tape.world, total.copy())
        if len(tape.means) == 2:
            off = {world: float(((found - mean) ** 2).sum()) for world, mean in tape.means.items()}
            tape.score += (off[WITHOUT] - off[WITH]) / (2 * std**2)
        return found

    def rows_of(opened: Any, compute: Any, *given: Any, **named: Any) -> Any:
        tape.compute = compute
        return inner["rows"](opened, compute, *given, **named)

    def second(rows: Any, width: int, std: float, noise: Any) -> Tensor:
        both = tape.both
        opened = arrays_of(network_inputs(both.train, both, Services()))
        every = torch.cat(list(inner["rows"](opened, tape.compute)))  # with zeros behind them
        exact = {world: every[places].double().T @ every[places].double() for world, places in tape.datasets().items()}
        found = inner["second"](rows, width, std, noise)
        change = exact[WITH] - exact[WITHOUT]
        tape.score += float(((found.double() - (exact[WITH] + exact[WITHOUT]) / 2) * change).sum()) / std**2
        return found

    def counted(source: Any, epsilon: float) -> int:
        noise = inner["noise"](source, epsilon)
        counts = {}
        for world, places in tape.datasets().items():
            x, y = tape.rows
            counts[world] = release.count_correct(asked[-1], x[places], y[places])
        seen = counts[tape.world] + noise
        tape.score += epsilon * (abs(seen - counts[WITHOUT]) - abs(seen - counts[WITH]))
        return noise

    asked: list[Any] = []
    count_correct = release.count_correct

    def counting(model: Any, x: Tensor, y: Tensor, **rule: Any) -> int:
        asked.append(model)
        return count_correct(model, x, y, **rule)

    with contextlib.ExitStack() as stack:
        for owner, name, new in (
            (descent.NoisyGradients, "release", released),
            (descent, "noisy_mean", noisy_mean),
            (release, "prepare", prepare),
            (normalisation, "gaussian_mechanism", gaussian),
            (release.head, "release_second_moments", second),
            (release.head, "_rows", rows_of),
            (release, "two_sided_geometric", counted),
            (release, "count_correct", counting),
        ):
            stack.enter_context(mock.patch.object(owner, name, new))
        yield


# --- trainings ------------------------------------------------------------------------------------------------------


class InMemory(Checkpoints):
    """Checkpoints after every step, as files would hold them."""

    def keep(self, checkpoint: Checkpoint) -> None:
        self.latest = copy.deepcopy(checkpoint)

    def offer(self, make: Callable[[], Checkpoint], *, figures: bool = False) -> bool:
        del figures
        self.keep(make())
        return True

    def forget(self) -> None:
        self.latest = None


class Trainer:
    """Trainings of one option; each call is a whole one, on one of its datasets."""

    def __init__(self, option: Option) -> None:
        self.option, self.tape = option, Tape(option)
        self.given = {"batch_size": 4, "delta": DELTA, "lr": 0.05, **option.given}
        if self.given.get("head") == "least-squares":
            del self.given["batch_size"], self.given["lr"]
        if option.kind == "many":
            self.given["delta"] = DELTA / 10
        if option.replace_one:
            self.given["adjacency"] = "replace-one"
        self._rows = {world: self.tape.made.rows(world, option.replace_one) for world in (WITH, WITHOUT)}
        if option.how != "loop":
            self._options = TrainOptions(**self.given)
            self._datasets = {world: self._at(rows) for world, rows in self._rows.items()}
            self.tape.both = self._at(np.arange(len(self.tape.made.x)))
        self._begun: tuple[StartingPoint, Any] | None = None
        self._tickets = None
        if option.how == "ticket":
            made = self.tape.made
            self._tickets = dpltm.generate(
                made.x, made.y, provenance="data-free", criterion="random", model=option.model, rounds=2, prune=(0.3, 0.3),
                classes=2, bounds=(0, 1), records=4,
            )  # fmt: skip

    def _at(self, rows: np.ndarray) -> Dataset:
        return with_feature_map(self.tape.made.dataset(rows), self._options.features)

    def _start(self) -> StartingPoint:
        """One network, as it was at first: how its gradients are taken is found out once."""
        if self._begun is None:
            dataset, model = self._datasets[WITH], self.option.model
            fits = from_round(self._tickets, 2) if self._tickets else fresh(ModelSpec(model, dataset.features, 2), 0)
            self._begun = fits, copy.deepcopy(fits.model)
        start, before = self._begun
        start.model.load_state_dict(before.state_dict())
        return start

    def __call__(self, world: int) -> tuple[float, float, float]:
        """Certified epsilon, and both scores."""
        self.tape.begin(world)
        if self.option.how == "loop":
            before, model, certified = self._loop(world)
            mask = None
        else:
            run = self._trained(self._datasets[world])
            assert self._begun is not None
            before, mask = self._begun[1], self._begun[0].mask
            model, certified = run.model, run.privacy.certified.epsilon
        moved = [
            (new.detach() - old.detach()).double()[... if mask is None else mask[name].view_as(new)].flatten()
            for (name, new), (_, old) in zip(model.named_parameters(), before.named_parameters(), strict=True)
        ]
        assert self.tape.direction is not None
        return certified, self.tape.score, -float(torch.cat(moved) @ self.tape.direction)

    def _trained(self, dataset: Dataset) -> Any:
        ledger, checkpoints = (
            Ledger(unit=at_unit(dataset, self._options.per_unit).unit),
            InMemory(),
        )
        if self.option.how != "resumed":
            return train_verb.train_start(self._start(), dataset, self._options, ledger)

        self.tape.left_to_live = 2
        with contextlib.suppress(Killed):
            train_verb.train_start(self._start(), dataset, self._options, ledger, checkpoints=checkpoints)
            raise AssertionError("was not killed")
        return train_verb.train_start(self._start(), dataset, self._options, ledger, checkpoints=checkpoints)

    def _loop(self, world: int) -> tuple[Any, Any, float]:
        made, rows = self.tape.made, self._rows[world]
        self.tape.take(torch.from_numpy(made.x), torch.from_numpy(made.y))
        if self._begun is None:
            start = fresh(ModelSpec("mlp", made.x.shape[1], 2), 0)
            self._begun = start, copy.deepcopy(start.model)
        model, before = self._begun[0].model, self._begun[1]
        model.load_state_dict(before.state_dict())
        given = {name: value for name, value in self.given.items() if name not in ("lr", "clip_norm")}
        given["filter"] = Clip(self.given.get("clip_norm", 1.0))
        loop = PrivateLoop(
            model,
            descent.cross_entropy,
            made.x[rows],
            made.y[rows],
            records=self.option.records,
            ledger=Ledger(),
            **given,
        )
        optimizer = torch.optim.SGD(model.parameters(), self.given["lr"])
        for step in loop:
            step.backward()
            optimizer.step()
        return before, model, loop.report().certified.epsilon


def remembered(make_plan: Callable[..., Any]) -> Callable[..., Any]:
    """How gradients are taken, of each network and shape of records once."""
    known: dict[Any, Any] = {}

    def plan(model: Any, mask: Any, loss: Any, like: Any, *given: Any) -> Any:
        key = id(model), like.x.shape[1:], like.y.shape[1:], given
        if key not in known:
            known[key] = make_plan(model, mask, loss, like, *given)
        return known[key]

    return plan


def audited(option: Option, runs: int, confidence: float) -> dict[str, Any]:
    """What ``runs`` trainings tell."""
    torch.manual_seed(0)
    trainer, began = Trainer(option), time.perf_counter()
    scores: dict[int, list[tuple[float, float]]] = {WITH: [], WITHOUT: []}
    certified = 0.0
    with taped(trainer.tape), contextlib.ExitStack() as once:
        for world in (WITH, WITHOUT):
            trainer(world)  # everything is tried out here
        once.enter_context(mock.patch.object(Probe, "check_apart", return_value=None))
        once.enter_context(mock.patch.object(TrainingPlan, "rehearse", return_value=None))
        once.enter_context(mock.patch.object(engine, "make_plan", remembered(engine.make_plan)))
        once.enter_context(mock.patch.object(training_plan, "check_filter_bound", return_value=None))
        for _ in range(runs // 2):
            for world in (WITH, WITHOUT):
                stated, *found = trainer(world)
                certified = max(certified, stated)
                scores[world].append((found[0], found[1]))
    first, second = np.array(scores[WITH]), np.array(scores[WITHOUT])
    delta = trainer.given["delta"]
    ones = np.exp(-first[:, 0]), np.exp(second[:, 0])
    bounds = [pair_bound(first[:, one], second[:, one], delta, confidence) for one in (0, 1)]
    return {
        "option": option.name,
        "certified": certified,
        "delta": delta,
        "ratio": bounds[0],
        "weights": bounds[1],
        "one": [(float(each.mean()), float(each.std() / math.sqrt(len(each)))) for each in ones],
        "refuted": max(bounds) > certified,
        "runs": runs,
        "confidence": confidence,
        "seconds": round(time.perf_counter() - began, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--only", metavar="NAME;...", help="names of options")
    parser.add_argument("--share", default="1/1", metavar="I/N", help="every Nth option, from the Ith on")
    given = parser.parse_args()
    place, parts = map(int, given.share.split("/"))
    known = {option.name: option for option in OPTIONS}
    chosen = OPTIONS[place - 1 :: parts] if given.only is None else [known[name] for name in given.only.split(";")]
    confidence = 1 - 0.05 / (2 * len(OPTIONS))
    for option in chosen:
        print(json.dumps(audited(option, given.runs, confidence)), flush=True)


if __name__ == "__main__":
    main()
