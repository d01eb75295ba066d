"""A training as a release: from the secret of its entry to the noisy sums, and to the network that comes of them.

One entry pays for all of it: the mean of features, their second moments, the noisy steps, and counts of right answers on the
records themselves. ``dpltm.verbs.train`` settles a :class:`Training`; ``dpltm.privacy.release.pay`` enters it, and draws.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from dpltm.features.inputs import Services, batched_records, inputs, network_inputs
from dpltm.features.normalisation import release_mean
from dpltm.gradients import Loss, RecordGradients
from dpltm.networks import Network, build
from dpltm.networks.evaluation import Inputs, accuracy, count_correct, root_mean_squared_error, skill
from dpltm.networks.own_network import OwnNetwork, check_labels
from dpltm.networks.skill import Skill
from dpltm.options import recorded
from dpltm.options.train import TrainOptions
from dpltm.privacy.account import Account, Planned
from dpltm.privacy.accountants import certified_by
from dpltm.privacy.calibration import Odometer
from dpltm.privacy.checkpoint import NOT_KEPT, Checkpoint, Checkpoints, reading, standing
from dpltm.privacy.describe import figure, percent
from dpltm.privacy.entry import Entry, Lineage, entry_from_json, to_json
from dpltm.privacy.ledger import Ledger
from dpltm.privacy.mechanisms import GaussianRelease, Guarantee, NoisySgd
from dpltm.privacy.release import Secret
from dpltm.privacy.statement import json_figure
from dpltm.pruning.generation import dense_mask
from dpltm.pruning.unstructured import columns_read
from dpltm.randomness.noise import FastSource, KeyedSource, ResumableSource, source_of, two_sided_geometric
from dpltm.records import Arrays, Dataset, Split
from dpltm.records.mapped import pieces
from dpltm.records.schema import class_names
from dpltm.records.subgroups import subgroups_of
from dpltm.records.units import ABSENT
from dpltm.training import least_squares as head
from dpltm.training.config import TrainingConfig, private_score, run_config, step_facts
from dpltm.training.descent import (
    FIRST,
    Descent,
    NoisyGradients,
    cross_entropy,
    plant,
    user_cross_entropy,
)
from dpltm.training.ranks import Ranks, together
from dpltm.training.start import StartingPoint, weights_id

MEAN_ROWS = 1000
"""Records at a time when their mean is taken."""

CENTRE, SECOND = "centre", "second_moments"
"""Tensors of a checkpoint beside those of the descent: the mean that features are centred at, and the second moments that
steps divide by."""


@dataclass(frozen=True)
class Sources:
    """All random numbers of a training that its guarantee rests on.

    Attributes:
        sampling: of samples, chunks and groups, and of the keys of what the network draws.
        audit, allocation: where coins of an audit, and who is in which step, begin; they never move on.
    """

    sampling: ResumableSource
    noise: ResumableSource
    evaluation: ResumableSource
    audit: ResumableSource | None = None
    allocation: ResumableSource | None = None

    @classmethod
    def begin(
        cls, secret: Secret, at: Checkpoint | None, noise: str = "secure", beside: Collection[str] = ()
    ) -> Sources:
        """Return the sources of a release, with those of ``beside``: derived from its key, or as a checkpoint left them."""
        if at is not None:
            return cls(**{name: source_of(state) for name, state in at.state["sources"].items()})
        noisy = FastSource.of(secret.child("noise")) if noise == "fast" else KeyedSource(secret.child("noise"))
        return cls(
            KeyedSource(secret.child("sampling")),
            noisy,
            KeyedSource(secret.child("evaluation")),
            **{name: KeyedSource(secret.child(name)) for name in beside},
        )

    @classmethod
    def unused(cls, noise: str = "secure") -> Sources:
        """Return some of which nothing is drawn: of a rank that is not the first, or of a rehearsal."""
        return cls(KeyedSource(), FastSource.of(bytes(32)) if noise == "fast" else KeyedSource(), KeyedSource())

    def state(self) -> dict[str, str]:
        """Return their states by name; secret."""
        return {name: source.state for name, source in vars(self).items() if source is not None}


@dataclass(frozen=True, kw_only=True)
class Training:
    """A training, settled: a release of ``dpltm.privacy.release``.

    Its model is trained in place, so each is for one run.

    Attributes:
        entry: what pays for all of it: a draft until it is drawn, then as it is on record.
        ledger: that pays, and holds what is declared of the test split.
        ranks: that share the work, of which this is rank 0; None for one process.
        planned: how gradients are computed, by network and settings: the rehearsal decides it, and the training uses it.
    """

    options: TrainOptions
    start: StartingPoint
    dataset: Dataset
    config: TrainingConfig
    entry: Entry
    lineage: Lineage
    account: Account
    notes: tuple[str, ...]
    facts: Mapping[str, Any]
    beside: tuple[Entry, ...]
    ledger: Ledger
    services: Services
    ranks: Ranks | None = None
    checkpoints: Checkpoints = NOT_KEPT
    planned: dict[object, RecordGradients] = field(default_factory=dict, repr=False, compare=False)

    @property
    def mechanism(self) -> NoisySgd:
        """Its noisy steps."""
        (steps,) = self.entry.of(NoisySgd)
        return steps

    @property
    def before_steps(self) -> head.Before:
        """Releases before the steps."""
        return head.Before(*self.entry.of(GaussianRelease))

    @property
    def evaluations(self) -> tuple[Guarantee, ...]:
        """The count of right answers on the records, if one is paid for."""
        return self.entry.of(Guarantee)

    @property
    def inputs(self) -> Split:
        """The records as the network gets them, closed; features are computed now, or taken from the services' store."""
        return network_inputs(self.dataset.train, self.dataset, self.services)

    @property
    def resolved(self) -> dict[str, Any]:
        """What was settled, public and known before it starts: the answer to a dry run, and a part of ``to_json``."""
        tickets, before, config, feature_map = (
            self.start.tickets, self.before_steps, self.config, self.dataset.feature_map,
        )  # fmt: skip
        columns = columns_read(self.dataset.schema, self.start.mask, feature_map)
        return {
            "ticket_set": None if tickets is None else tickets.label,
            "round": self.start.round,
            **step_facts(self.mechanism, config, self.start.mask),
            "optimizer": config.optimizer,
            "lr": config.lr,
            "schedule": config.schedule,
            "average": config.average,
            **({"bands": len(config.strategy)} if config.strategy else {}),
            "centre": None if before.mean is None else {"noise_multiplier": before.mean.noise_multiplier},
            "features": None if feature_map is None else feature_map.text,
            **head.head_facts(self.options, before.second),
            **({} if columns is None else {"columns": columns}),
        }

    def to_json(self, kernels: Mapping[str, str]) -> dict[str, Any]:
        """Return the settings that its run states, with the kernels of its layers: ``config.json``."""
        tickets, dataset = self.start.tickets, self.dataset
        return run_config(
            self.start.spec, self.entry, self.config, dataset.bounds, dataset.of_persons,
            bounds_origin=dataset.bounds_origin,
            **({"table_schema": dataset.schema} if dataset.schema else {}),
            **({"columns": list(dataset.columns)} if dataset.columns else {}),
            ticket_set_id=None if tickets is None else tickets.id,
            provenance=None if tickets is None else tickets.provenance,
            round=self.start.round,
            test_records=None if dataset.test is None or self.evaluations else len(dataset.test),
            options=recorded(self.options),
            resolved={**self.resolved, "kernels": dict(kernels)},
        )  # fmt: skip

    def centred_at(self, centre: torch.Tensor) -> Training:
        """Return the same with features centred at a mean that was released."""
        assert self.dataset.feature_map is not None
        return replace(self, dataset=replace(self.dataset, feature_map=self.dataset.feature_map.centred_at(centre)))

    def rehearse(self) -> None:
        """Try network, loss, compiler and features on the first private record; draw nothing, and refuse what fails."""
        tried = replace(self, ranks=None)
        check_labels(self.start.spec, self.dataset)
        tried.inputs.check(lambda records: prepare(tried, Sources.unused(self.options.noise), records))

    def draw(self, secret: Secret, at: Checkpoint | None) -> Iterator[Drawn]:
        """Draw the centre of features, then their second moments, then the noisy steps; or go on from a checkpoint.

        Yields once, at the end. Noise is added in ``NoisyGradients.backward``, which each step of ``Descent.run`` calls:
        sample, filtered sum, noise.
        """
        options, ranks = self.options, self.ranks
        training = replace(self, entry=secret.entry)  # which checkpoints name
        beside = {"audit": options.audit, "allocation": self.config.participations}
        sources = Sources.begin(
            secret, at, options.noise, [name for name, asked in beside.items() if asked is not None]
        )
        made = training.before_steps
        if made.mean is not None:
            training = training.centred_at(_released(at, CENTRE, lambda: _centre(training, sources, secret)))
        second = None
        if made.second is not None:
            release, dataset = made.second, training.dataset
            rows = network_inputs(dataset.train, dataset, training.services)
            second = _released(
                at, SECOND, lambda: head.second_moments(release, dataset, rows.open(secret), sources.noise)
            )
        if ranks is not None:
            _tell_settings(ranks, training)
        descent = together(ranks, lambda: _descent(training, sources, second, secret))
        drawn = Drawn(training, secret, sources, second, descent)
        if at is not None:
            drawn.resume(at)
        if ranks is not None:
            ranks.tell({"step": drawn.descent.step})
            ranks.share({name: value for name, value in drawn.descent.state().items() if not name.startswith(FIRST)})
        drawn.run()
        yield drawn


def _released(at: Checkpoint | None, name: str, draw: Callable[[], torch.Tensor]) -> torch.Tensor:
    """``CENTRE`` or ``SECOND``: drawn, or as it was before a checkpoint was taken."""
    known = None if at is None else at.tensors.get(name)
    return draw() if known is None else torch.from_numpy(np.array(known))


def _centre(training: Training, sources: Sources, secret: Secret) -> torch.Tensor:
    dataset, mean = training.dataset, training.before_steps.mean
    assert dataset.feature_map is not None
    assert mean is not None
    rows = _means(network_inputs(dataset.train, dataset, training.services).open(secret))
    found = release_mean(rows, dataset.feature_map.features, dataset.records, mean.noise_std, sources.noise)
    if head.is_least_squares(training.options):
        return head.shrunk(found, mean.noise_std, dataset.records)
    return found


def _means(opened: Arrays) -> Iterator[torch.Tensor]:
    """Features a record, ``(rows, features)``; of users the mean over what each gave, no longer than the longest."""
    done = 0
    for some in pieces(opened.x, MEAN_ROWS):
        rows, labels = torch.from_numpy(np.array(some)), torch.tensor(opened.y[done : done + len(some)])
        done += len(some)
        if rows.ndim == 2:
            yield rows
            continue
        there = (labels != ABSENT).double()[..., None]
        yield (rows.double() * there).sum(1) / there.sum(1).clamp_min(1)


def _descent(training: Training, sources: Sources, second: torch.Tensor | None, secret: Secret) -> Descent:
    gradients = prepare(training, sources, training.inputs.open(secret))
    if not head.is_least_squares(training.options):
        return Descent(gradients)
    return Descent(gradients, head.newton(training.start, training.dataset, training.before_steps.second, second))


def prepare(training: Training, sources: Sources, opened: Arrays) -> NoisyGradients:
    """Return the training before its first draw; refuse what cannot be trained."""
    dataset, services, ranks = training.dataset, training.services, training.ranks
    if dataset.test is not None and not training.evaluations and (ranks is None or ranks.first):
        network_inputs(dataset.test, dataset, services)  # features that cannot be had are missed now
    gradients = noisy_gradients(
        training.start, dataset, training.config, sources, opened, training.options.device, ranks, training.planned
    )
    if sources.allocation is not None:
        gradients.allocation = source_of(sources.allocation.state)  # the same, however often this is called
    if sources.audit is not None:
        coins = source_of(sources.audit.state)  # the same, however often this is called
        plant(gradients, training.options.audit, training.mechanism.adjacency, coins)
    return gradients


def loss_of(spec: Network, dataset: Dataset) -> Loss:
    """Return the loss that a network is trained by, one value a record, or person."""
    if dataset.of_persons:
        return user_cross_entropy
    return spec.loss or cross_entropy


def check_trainable(spec: Network, dataset: Dataset) -> None:
    """Refuse a network of the user's own that no training would take, by the trial that each begins with.

    Filter, noise and mask have no say in that trial, and it looks at a made-up record: so whoever pays for a draw before the
    training can have it first. Kinds by name are known to pass.
    """
    if not isinstance(spec, OwnNetwork):
        return
    named = spec.labels is None or spec.loss is not None  # of other labels, whoever trains says what they mean
    loss = loss_of(spec, dataset) if named else lambda outputs, _: outputs.flatten(1).square().mean(1)
    made_up = network_inputs(Split(dataset.train.made_up(), valued=dataset.train.valued), dataset)
    records = batched_records(made_up.made_up(), dataset, whole=True)
    gradients = RecordGradients(build(spec), dense_mask(spec), loss, grouped=dataset.of_persons)
    gradients.check(*records.take(np.zeros(1, dtype=np.int64)))


def noisy_gradients(
    start: StartingPoint,
    dataset: Dataset,
    config: TrainingConfig,
    sources: Sources,
    opened: Arrays,
    device: str = "cpu",
    ranks: Ranks | None = None,
    planned: dict[object, RecordGradients] | None = None,
) -> NoisyGradients:
    """Put network, records, loss and random numbers together; of several ranks, the numbers of rank 0 count."""
    model, loss = start.model.to(device), loss_of(start.spec, dataset)
    records = batched_records(opened, dataset, device, whole=isinstance(start.spec, OwnNetwork))
    planned = {} if planned is None else planned
    key = model, loss, config.compile, config.kernels, config.groups is None
    sampling, noise, either = sources.sampling, sources.noise, planned.get(key, loss)
    gradients = NoisyGradients(model, start.mask, either, records, config, sampling=sampling, noise=noise, ranks=ranks)
    planned[key] = gradients.gradients
    return gradients


@dataclass
class Drawn:
    """Position of a training."""

    training: Training
    secret: Secret
    sources: Sources
    second: torch.Tensor | None
    descent: Descent
    metrics: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    skill: Skill | None = None

    def run(self) -> None:
        """Take the steps that are left."""
        training, descent, mechanism = self.training, self.descent, self.training.mechanism
        options = training.options
        others = tuple(each for each in training.entry.mechanisms if each is not mechanism)
        beside = Planned(training.account, training.entry.part, others)
        odometer = Odometer(beside, mechanism, options.delta, certified_by(options.accountant))
        test = self._test_split()
        score = self._score(test)
        began, note, told = time.perf_counter() - self.seconds, "", ""

        def measure(done: int) -> None:
            nonlocal note
            if done in odometer.steps:
                found = score(done == mechanism.steps)
                moved = descent.gradients.moved
                self.metrics.append({"step": done, "epsilon": json_figure(odometer.after(done)), **found, **moved})
                note = "" if found["accuracy"] is None else f", accuracy {percent(found['accuracy'])}"
                note += f", rmse {float(found['rmse']):.4g}" if "rmse" in found else ""

        with training.services.progress.progress("training under DP", mechanism.steps) as step:
            # the first step takes longer: a filter may be compiled in it
            step(descent.step, "taking the first step" if descent.step == 0 else "going on")

            def between() -> None:
                nonlocal told
                self.seconds = time.perf_counter() - began
                if training.checkpoints.offer(self._checkpoint):
                    told = note
                step(descent.step, f"epsilon so far {figure(odometer.after(descent.step))}{told}")

            descent.run(measure, between)
        if test is not None and not training.dataset.rated and training.start.spec.score is None:
            self.skill = self._skill(test)
        training.start.model.to("cpu")
        self.seconds = time.perf_counter() - began

    def _test_split(self) -> tuple[Inputs, torch.Tensor] | None:
        """Return the test split as the network takes it; None where there is none, or a price is paid for accuracy on the
        records themselves: then nothing but that is measured.
        """
        training, dataset = self.training, self.training.dataset
        if dataset.test is None or training.evaluations:
            return None
        declared = training.ledger.declared_test(dataset)
        split = network_inputs(dataset.test, dataset, training.services)
        return inputs(split.open(declared), dataset, training.options.device)

    def _skill(self, test: tuple[Inputs, torch.Tensor]) -> Skill | None:
        training, dataset, groups = self.training, self.training.dataset, None
        if training.options.by is not None and dataset.test is not None:
            opened = dataset.test.open(training.ledger.declared_test(dataset))
            groups = subgroups_of(dataset, opened.x, training.options.by)
        return skill(training.start.model, *test, class_names(dataset.schema), training.options.metric, groups)

    def _score(self, test: tuple[Inputs, torch.Tensor] | None) -> Callable[[bool], dict[str, Any]]:
        """Return a function that measures accuracy at a checkpoint, and of ratings the error; its argument marks the last.

        On the private records it releases a noisy count, at the last alone, with the noise that the entry holds for it.
        """
        training, dataset = self.training, self.training.dataset
        model, paid, rule = training.start.model, training.evaluations, training.start.spec.score
        if paid:
            metric = training.options.metric
            priced = private_score(metric, training.options.class_shares, dataset, rule)
            rows = network_inputs(dataset.train, dataset, training.services)
            x, y = inputs(rows.open(self.secret), dataset, training.options.device)

            def release(last: bool) -> dict[str, Any]:
                if not last:
                    return {"accuracy": None}
                count = count_correct(model, x, y, score=priced or rule)
                count += two_sided_geometric(self.sources.evaluation, paid[0].epsilon)
                if priced is None:
                    return {"accuracy": min(max(count / dataset.records, 0.0), 1.0)}
                return {"accuracy": None, metric.replace("-", "_"): priced.metric(count, dataset.records)}

            return release
        if test is None:
            return lambda _: {"accuracy": None}
        if training.options.metric in ("balanced-accuracy", "auc"):

            def judge(_: bool) -> dict[str, Any]:
                found = self._skill(test)
                value = None if found is None or found.estimate is None else found.estimate.value
                right = accuracy(model, *test) if found is None else found.accuracy.value
                return {"accuracy": right, training.options.metric.replace("-", "_"): value}

            return judge
        if not dataset.rated:
            return lambda _: {"accuracy": accuracy(model, *test, score=rule)}
        return lambda _: {
            "accuracy": accuracy(model, *test),
            "rmse": json_figure(root_mean_squared_error(model, *test)),
        }

    def _checkpoint(self) -> Checkpoint:
        training, feature_map = self.training, self.training.dataset.feature_map
        tensors = {} if self.second is None else {SECOND: self.second}
        if training.before_steps.mean is not None and feature_map is not None and feature_map.centre is not None:
            tensors[CENTRE] = feature_map.centre
        more = {"metrics": self.metrics, "seconds": self.seconds}
        return steps_so_far(training.facts, training.entry, self.descent, self.sources, tensors, more)

    def resume(self, held: Checkpoint) -> None:
        """Go to where a checkpoint was taken."""
        resume_steps(self.descent, held)
        with reading():
            self.metrics, self.seconds = [dict(line) for line in held.state["metrics"]], float(held.state["seconds"])


def steps_so_far(
    facts: Mapping[str, Any],
    entry: Entry,
    descent: Descent,
    sources: Sources,
    tensors: Mapping[str, torch.Tensor],
    more: Mapping[str, Any] | None = None,
) -> Checkpoint:
    """Return a checkpoint of noisy steps: what a release goes on from, with other ``tensors`` and ``more`` of its state."""
    state = {**standing(facts, entry, descent.step), "sources": sources.state(), **(more or {})}
    values = {name: value.cpu().numpy() for name, value in {**descent.state(), **tensors}.items()}
    return Checkpoint(f"step {descent.step} of {descent.gradients.config.steps}", state, values)


def resume_steps(descent: Descent, held: Checkpoint) -> None:
    """Have noisy steps go on where a checkpoint of them was taken; ArtifactError for a damaged one."""
    with reading():
        step = int(held.state["step"])
        if not 0 <= step <= descent.gradients.config.steps:
            raise ValueError(step)
        descent.resume(step, {name: torch.from_numpy(np.array(value)) for name, value in held.tensors.items()})


# --- several ranks --------------------------------------------------------------------------------------------------
# Rank 0 plans, pays, keeps checkpoints, measures and reports, as one process does. The others open the same records and the
# same ticket, and hear the rest: noise, steps, step size, a released centre, and the state that a checkpoint goes on from.


def settled_together(ranks: Ranks | None, settle: Callable[[], Training]) -> Training:
    """Return a training that all ranks have settled alike before anything is entered; raise what any of them refuses."""
    if ranks is None:
        return settle()
    mine = ranks.together(settle)
    start, dataset, config = mine.start, mine.dataset, mine.config
    feature_map = dataset.feature_map
    shown = {
        "network": f"{start.spec.text} of {start.spec.features} features and {start.spec.classes} classes",
        "filter": config.filtered,
        "sampling rate": repr(config.sampling_rate),
        "expected batch": repr(config.expected_batch),
        "bounds": repr(dataset.bounds),
        "features": "none" if feature_map is None else feature_map.uncentred.id,
    }
    private = {
        "records of `dataset`": dataset.train.digest(b"ranks"),
        "starting weights and mask": weights_id(start),
    }
    ranks.agree(shown, private)
    return replace(mine, ranks=ranks)


def _tell_settings(ranks: Ranks, training: Training) -> None:
    """Tell the other ranks what was settled by the ledger, and what was released before the steps."""
    feature_map = training.dataset.feature_map
    centre = None if training.before_steps.mean is None or feature_map is None else feature_map.centre
    settings = {name: getattr(training.config, name) for name in ("steps", "noise_std", "lr")}
    ranks.tell({"settings": settings, "entry": to_json(training.entry)})
    ranks.share({} if centre is None else {CENTRE: centre})


def follow(ranks: Ranks, settle: Callable[[], Training]) -> None:
    """Do the share of a rank that is not the first; return when the last step is done, or raise what ended rank 0."""
    mine = settled_together(ranks, settle)
    told = ranks.tell()
    mine = replace(mine, config=replace(mine.config, **told["settings"]))
    secret = Secret(entry_from_json(told["entry"]), None)  # which rank 0 paid for, and draws from
    centre = ranks.share({}).get(CENTRE)
    if centre is not None:
        mine = mine.centred_at(centre)
    sources = Sources.unused(mine.options.noise)
    descent = ranks.together(lambda: Descent(prepare(mine, sources, mine.inputs.open(secret))))
    told = ranks.tell()
    descent.resume(told["step"], ranks.share({}))
    descent.run()
