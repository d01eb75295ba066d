"""A training as a release: from the secret of its entry to the noisy sums, and to the network that comes of them.

One entry pays for all of it: releases before the steps, the noisy steps, and counts of right answers on the records.
``dpltm.verbs.train`` makes a :class:`TrainingPlan`; ``dpltm.privacy.release.pay`` enters it, and draws.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import nn

from dpltm.errors import InputError
from dpltm.features.feature_map import CENTRE
from dpltm.features.inputs import Services, batched_records, inputs, network_inputs
from dpltm.gradients import RecordGradients
from dpltm.networks import Network, build
from dpltm.networks.evaluation import accuracy, count_correct, outputs, skill
from dpltm.networks.own_network import OwnNetwork, check_labels
from dpltm.networks.skill import Skill, TargetSkill, target_skill_of
from dpltm.networks.state import weights_of
from dpltm.options import recorded
from dpltm.options.train import LEAST_SQUARES
from dpltm.privacy.account import Account, Planned
from dpltm.privacy.accountants import certified_by
from dpltm.privacy.calibration import Odometer
from dpltm.privacy.checkpoint import AGAIN, NOT_KEPT, Checkpoint, Checkpoints, reading
from dpltm.privacy.describe import figure, percent
from dpltm.privacy.entry import Entry, Lineage, Part, Secret, entry_from_json, to_json
from dpltm.privacy.ledger import Ledger, facts_digest
from dpltm.privacy.mechanisms import AllocatedSgd, Guarantee, NoisySgd
from dpltm.privacy.statement import json_figure
from dpltm.pruning.generation import dense_mask
from dpltm.pruning.unstructured import columns_read
from dpltm.randomness.noise import FastSource, KeyedSource, ResumableSource, source_of, two_sided_geometric
from dpltm.records.batches import Inputs
from dpltm.records.dataset import Dataset
from dpltm.records.notes import outside_notes
from dpltm.records.split import Arrays, Split
from dpltm.records.subgroups import subgroups_of
from dpltm.training import least_squares as head
from dpltm.training.artifacts import StartingPoint
from dpltm.training.descent import FIRST, Descent, NoisyGradients, loss_of, plant, restore
from dpltm.training.plan import NoisySteps, private_score
from dpltm.training.ranks import Ranks


@dataclass(frozen=True, eq=False)
class Rewound:
    """Weights after so many ``steps`` of a training, ``theta0``, from which the tickets that are made of it start."""

    steps: int
    theta0: dict[str, torch.Tensor]


Sources = dict[str, ResumableSource]
"""All random numbers that the guarantee rests on: ``sampling``, of samples, chunks and groups, and of the keys of what the
network draws; ``noise``; ``evaluation``; and where coins of ``audit`` and ``allocation`` begin, which never move on."""


def sources_of(secret: Secret, at: Checkpoint | None, steps: NoisySteps) -> Sources:
    """Return the sources of a release: derived from its key, or as a checkpoint left them."""
    if at is not None:
        return {name: source_of(state) for name, state in at.state["sources"].items()}
    key = secret.child("noise")
    names = ["sampling", "evaluation"]
    names += ["audit"] if steps.options.audit is not None else []
    names += ["allocation"] if isinstance(steps.mechanism, AllocatedSgd) else []
    noise = FastSource.of(key) if steps.options.noise == "fast" else KeyedSource(key)
    return {"noise": noise, **{name: KeyedSource(secret.child(name)) for name in names}}


def unused_sources() -> Sources:
    """Return some of which nothing is drawn: of a rank that is not the first, or of a rehearsal."""
    return {"sampling": KeyedSource(), "noise": KeyedSource()}


@dataclass(frozen=True, kw_only=True)
class TrainingPlan(NoisySteps):
    """What a training will do, and what it costs: a release of ``dpltm.privacy.release``. Its model is trained in place.

    Attributes:
        evaluations: the count of right answers on the records, if one is paid for.
        rewound: of a training that tickets are made of; then the epsilon that is asked for must be a certified one.
        facts: by which interrupted work is known again.
        paid: the entry on record; None before it is drawn.
        loss_scale: what the loss is divided by, and the step size multiplied.
        engines: how gradients are computed, by network and loss: the rehearsal decides it, and the training uses it.
    """

    start: StartingPoint
    dataset: Dataset
    part: Part
    lineage: Lineage
    facts: Mapping[str, Any]
    ledger: Ledger
    services: Services
    before_steps: head.Before = field(default_factory=dict)
    evaluations: tuple[Guarantee, ...] = ()
    beside: tuple[Entry, ...] = ()
    account: Account = Account()  # noqa: RUF009  (a frozen value)
    notes: tuple[str, ...] = ()
    rewound: Rewound | None = None
    paid: Entry | None = None
    loss_scale: float = 1.0
    ranks: Ranks | None = None
    checkpoints: Checkpoints = NOT_KEPT
    engines: dict[object, RecordGradients] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def entry(self) -> Entry:
        """What pays for all of it: a draft until it is drawn, then as it is on record."""
        if self.paid is not None:
            return self.paid
        mechanisms = (*self.before_steps.values(), self.mechanism, *self.evaluations)
        purpose = "training" if self.rewound is None else "tickets by dp-train"
        words = f"{purpose}, {self.filtered}, {self.start.mask.live:,} live weights"
        return Entry("release", self.part, mechanisms, words, facts_digest(self.facts), unit=self.dataset.unit)

    @property
    def inputs(self) -> Split:
        """The records as the network gets them, closed; features are computed now, or taken from the services' store."""
        return network_inputs(self.dataset.train, self.dataset, self.services)

    @property
    def resolved(self) -> dict[str, Any]:
        """What was settled, public and known before it starts: the answer to a dry run, and a part of ``to_json``."""
        options, before, feature_map = self.options, self.before_steps, self.dataset.feature_map
        mean = before.get("mean")
        columns = columns_read(self.dataset.schema, self.start.mask, feature_map)
        return {
            "ticket_set": None if self.start.tickets is None else self.start.tickets.label,
            "round": self.start.round,
            **self.step_facts(self.start.mask),
            "optimizer": options.optimizer,
            "lr": self.lr,
            "schedule": options.schedule,
            "average": options.average,
            **({"bands": len(self.strategy)} if self.strategy else {}),
            "centre": None if mean is None else {"noise_multiplier": mean.noise_multiplier},
            "features": None if feature_map is None else feature_map.text,
            **(head.head_facts(options, before) if options.head == LEAST_SQUARES else {}),
            **({} if columns is None else {"columns": columns}),
        }

    def to_json(self, kernels: Mapping[str, str]) -> dict[str, Any]:
        """Return ``config.json`` of its run, with the kernels of its layers."""
        tickets, dataset = self.start.tickets, self.dataset
        return self.run_config(
            self.start.spec, self.entry, dataset.bounds, dataset.of_persons,
            bounds_origin=dataset.bounds_origin,
            **({} if dataset.target is None else {"target": list(dataset.target)}),
            **({"table_schema": dataset.schema.text} if dataset.schema.text else {}),
            **({"columns": list(dataset.columns)} if dataset.columns else {}),
            ticket_set_id=None if tickets is None else tickets.id,
            provenance=None if tickets is None else tickets.provenance,
            round=self.start.round,
            test_records=None if dataset.test is None or self.evaluations else len(dataset.test),
            options=recorded(self.options),
            resolved={**self.resolved, "kernels": dict(kernels)},
        )  # fmt: skip

    def rehearse(self) -> None:
        """Try network, loss, compiler and features on the first private record; draw nothing, and refuse what fails."""
        tried = replace(self, ranks=None)
        check_labels(self.start.spec, self.dataset)
        tried.inputs.check(lambda records: prepare(tried, unused_sources(), records))

    def draw(self, secret: Secret, at: Checkpoint | None) -> Iterator[Drawn]:
        """Draw what the head draws before the steps, then those, or go on from a checkpoint; yield once, at the end. Each
        step of ``Descent.run`` adds noise in ``NoisyGradients.backward``: sample, filtered sum, noise."""
        drawn = Drawn(replace(self, paid=secret.entry), secret, at)
        drawn.run()
        yield drawn


def prepare(plan: TrainingPlan, sources: Sources, opened: Arrays) -> NoisyGradients:
    """Return the training before its first draw; of several ranks, the random numbers of rank 0 count. Raises InputError for
    a network, loss, or record that cannot be trained, or features that cannot be had."""
    start, dataset, options, ranks = plan.start, plan.dataset, plan.options, plan.ranks
    if dataset.test is not None and not plan.evaluations and (ranks is None or ranks.first):
        network_inputs(dataset.test, dataset, plan.services)  # features that cannot be had are missed now
    model = start.model.to(options.device)
    loss = loss_of(start.spec, dataset, plan.loss_scale)
    records = batched_records(opened, dataset, options.device, of_own_network=isinstance(start.spec, OwnNetwork))
    engine = plan.engines.get((model, loss), loss)
    gradients = NoisyGradients(
        model, start.mask, engine, records, plan, sampling=sources["sampling"], noise=sources["noise"], ranks=ranks
    )
    plan.engines[model, loss] = gradients.gradients
    # coins that begin anew: they are the same, however often this is called
    if "allocation" in sources:
        gradients.allocation = source_of(sources["allocation"].state)
    if "audit" in sources:
        plant(gradients, source_of(sources["audit"].state))
    return gradients


def opened_test(dataset: Dataset, ledger: Ledger, services: Services) -> Arrays:
    """Return the test split, which there must be, as networks take it, once it is declared."""
    assert dataset.test is not None
    return network_inputs(dataset.test, dataset, services).open(ledger.declared_test(dataset))


def stored_test(dataset: Dataset, ledger: Ledger) -> np.ndarray:
    """Return the same as it is stored."""
    assert dataset.test is not None
    return dataset.test.open(ledger.declared_test(dataset)).x


def skill_on(
    model: nn.Module, dataset: Dataset, ledger: Ledger, test: tuple[Inputs, torch.Tensor], metric: str, by: str | None
) -> Skill | TargetSkill | None:
    """Return how good a network is on a test split that was opened, of subgroups ``by`` a column as well."""
    assert dataset.test is not None
    judging: dict[str, Any] = {"metric": metric, "owners": dataset.test.rows.owners}
    if dataset.target is not None:
        values = torch.cat([chunk.cpu() for chunk in outputs(model, test[0], alike=False)])
        return target_skill_of(values.numpy(), test[1].cpu().numpy(), dataset.target, **judging)
    groups = None if by is None else subgroups_of(dataset, stored_test(dataset, ledger), by)
    return skill(model, *test, names=dataset.schema.class_names, groups=groups, **judging)


def check_trainable(spec: Network, dataset: Dataset) -> None:
    """Refuse a network of the user's own that no training would take, by the trial that each begins with: of a made-up
    record, whatever filter, noise and mask, so whoever pays for a draw first can have it."""
    if not isinstance(spec, OwnNetwork):
        return
    is_told = spec.labels is None or spec.loss is not None  # of other labels, whoever trains says what they mean
    loss = loss_of(spec, dataset) if is_told else lambda outputs, _: outputs.flatten(1).square().mean(1)
    made_up = network_inputs(Split(dataset.train.made_up(), valued=dataset.train.valued), dataset)
    records = batched_records(made_up.made_up(), dataset, of_own_network=True)
    gradients = RecordGradients(build(spec), dense_mask(spec), loss, grouped=dataset.of_persons)
    gradients.check(*records.take(np.zeros(1, dtype=np.int64)))


class Drawn:
    """A training that was paid for: what is released before its steps, and its position in these."""

    def __init__(self, plan: TrainingPlan, secret: Secret, at: Checkpoint | None) -> None:
        ranks, before, start = plan.ranks or Ranks(), plan.before_steps, plan.start
        self.secret, self.sources = secret, sources_of(secret, at, plan)
        self.metrics: list[dict[str, Any]] = []
        self.seconds = 0.0
        self.skill: Skill | TargetSkill | None = None
        self.notes: tuple[str, ...] = ()
        self.tensors: dict[str, torch.Tensor] = {}  # that were released, by name
        self._known = {} if at is None else at.tensors
        opened = partial(plan.inputs.open, secret)
        noise = self.sources["noise"]
        begun = head.prepared(plan.options, plan.dataset, start.mask, before, opened, noise, self._released)
        self.begun = begun
        dataset = replace(plan.dataset, feature_map=begun.feature_map)
        self.plan = plan = replace(plan, dataset=dataset, loss_scale=begun.scale, lr=plan.lr * begun.scale)
        ranks.tell({"lr": plan.lr, "entry": to_json(plan.entry)})
        ranks.share({name: value for name, value in self.tensors.items() if name == CENTRE})

        def descent() -> Descent:
            gradients = prepare(plan, self.sources, plan.inputs.open(secret))
            least_squares = plan.options.head == LEAST_SQUARES
            newton = head.newton(start, plan.dataset, before.get("second"), begun) if least_squares else None
            return Descent(gradients, newton)

        self.descent = ranks.together(descent)
        if at is not None:
            self.resume(at)
        ranks.agree(self.descent.gradients.kernels)
        ranks.tell({"step": self.descent.step})
        ranks.share({name: value for name, value in self.descent.state().items() if not name.startswith(FIRST)})

    def _released(self, name: str, draw: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Draw what has a name, or take it as it was before a checkpoint was taken."""
        known = self._known.get(name)
        self.tensors[name] = draw() if known is None else torch.from_numpy(np.array(known))
        return self.tensors[name]

    def run(self) -> None:
        plan, descent, options = self.plan, self.descent, self.plan.options
        (mechanism,) = plan.entry.of(NoisySgd)
        others = tuple(other for other in plan.entry.mechanisms if other is not mechanism)
        beside = Planned(plan.account, plan.part, others)
        odometer = Odometer(beside, mechanism, options.delta, certified_by(options.accountant))
        test = None
        if plan.dataset.test is not None and not plan.evaluations:  # of a priced accuracy nothing else is measured
            opened = opened_test(plan.dataset, plan.ledger, plan.services)
            test = inputs(opened, plan.dataset, options.device)
        began, note, shown = time.perf_counter() - self.seconds, "", ""

        def measure(done: int) -> None:
            nonlocal note
            if done == mechanism.steps and "chances" in plan.before_steps:
                head.calibrate(
                    plan.start.model, self.begun, plan.before_steps["chances"], lambda: plan.inputs.open(self.secret),
                    self.sources["noise"], self._released, plan.dataset.records,
                )  # fmt: skip
            if done in odometer.steps:
                scores = self._scores(test, last=done == mechanism.steps)
                epsilon = json_figure(odometer.after(done))
                self.metrics.append({"step": done, "epsilon": epsilon, **scores})
                note = "" if scores["accuracy"] is None else f", accuracy {percent(scores['accuracy'])}"

        with plan.services.progress.progress("training under DP", mechanism.steps) as step:
            # the first step takes longer: a filter may be compiled in it
            step(descent.step, "taking the first step" if descent.step == 0 else "going on")

            def between() -> None:
                nonlocal shown
                self.seconds = time.perf_counter() - began
                if plan.rewound is not None and descent.step == plan.rewound.steps:
                    plan.rewound.theta0.update(weights_of(plan.start.model))
                if plan.checkpoints.offer(self._checkpoint):
                    shown = note
                step(descent.step, f"epsilon so far {figure(odometer.after(descent.step))}{shown}")

            descent.run(measure, between)
        if self.begun.labels is not None and not plan.dataset.schema.class_shares:
            shares = self.begun.labels.shares.tolist()
            self.notes = tuple(head.chance_notes(plan.before_steps["chances"], plan.dataset, shares))
        if test is not None:
            self.skill = self._skill(test) if plan.start.spec.score is None else None
            rows = stored_test(plan.dataset, plan.ledger)
            self.notes += (*outside_notes(plan.dataset, rows), *getattr(self.skill, "notes", ()))
        plan.start.model.to("cpu")
        self.seconds = time.perf_counter() - began

    def _skill(self, test: tuple[Inputs, torch.Tensor]) -> Skill | TargetSkill | None:
        plan, options = self.plan, self.plan.options
        return skill_on(plan.start.model, plan.dataset, plan.ledger, test, options.metric or "", options.by)

    def _scores(self, test: tuple[Inputs, torch.Tensor] | None, *, last: bool) -> dict[str, Any]:
        """Measure accuracy: on the test split, or with noise on the records, at the last alone."""
        plan, metric, scores = self.plan, self.plan.options.metric or "", dict[str, Any](accuracy=None)
        model, dataset, rule = plan.start.model, plan.dataset, plan.start.spec.score
        if plan.evaluations and last:  # a noisy count, with the noise that the entry holds for it
            priced = private_score(metric, plan.options.class_shares, dataset, rule)
            x, y = inputs(plan.inputs.open(self.secret), dataset, plan.options.device)
            count = count_correct(model, x, y, score=priced or rule)
            count += two_sided_geometric(self.sources["evaluation"], plan.evaluations[0].epsilon)
            if priced is None:
                return {"accuracy": min(max(count / dataset.records, 0.0), 1.0)}
            return scores | {metric.replace("-", "_"): priced.metric(count, dataset.records)}
        if test is None:
            return scores
        if dataset.target is None:
            scores["accuracy"] = accuracy(model, *test, score=rule)
        if metric != "accuracy":
            judged = self._skill(test)
            estimate = judged.estimate if isinstance(judged, Skill) else judged
            scores[metric.replace("-", "_")] = None if estimate is None else estimate.value
        return scores

    def _checkpoint(self) -> Checkpoint:
        plan, descent = self.plan, self.descent
        state = {
            "of": dict(plan.facts),
            "id": plan.entry.id,
            "step": descent.step,
            "kernels": descent.gradients.gradients.kernels_digest,
            "sources": {name: source.state for name, source in self.sources.items()},
            "metrics": self.metrics,
            "seconds": self.seconds,
        }
        tensors = descent.state() | self.tensors | self._rewound()
        values = {name: value.cpu().numpy() for name, value in tensors.items()}
        return Checkpoint(f"step {descent.step} of {plan.mechanism.steps}", state, values)

    def _rewound(self) -> dict[str, torch.Tensor]:
        rewound = self.plan.rewound
        return {} if rewound is None else {f"theta0/{name}": value for name, value in rewound.theta0.items()}

    def resume(self, latest: Checkpoint) -> None:
        """Go to where a checkpoint was taken; ArtifactError for a damaged one. InputError on a machine with other kernels:
        steps that are taken again would release other bits under the same noise."""
        if latest.state.get("kernels") != self.descent.gradients.gradients.kernels_digest:
            raise InputError(
                "checkpoint: passes through the network give other bits here than where it was taken (another processor,"
                f" library or number of threads); go on there, or {AGAIN}"
            )
        with reading():
            step = int(latest.state["step"])
            if not 0 <= step <= self.plan.mechanism.steps:
                raise ValueError(step)
            tensors = {name: torch.from_numpy(np.array(value)) for name, value in latest.tensors.items()}
            self.descent.resume(step, tensors)
            restore(self._rewound(), tensors)
            self.metrics = [dict(line) for line in latest.state["metrics"]]
            self.seconds = float(latest.state["seconds"])


# Of several ranks, rank 0 plans, pays, keeps checkpoints, measures and reports. The others open the same records and ticket,
# and hear the rest: noise, steps, step size, a released centre, and the state that a checkpoint goes on from.


def settled_together(ranks: Ranks, settle: Callable[[], TrainingPlan]) -> TrainingPlan:
    """Return a training that all ranks have settled alike before anything is entered; raise what any of them refuses."""
    plan = ranks.together(settle)
    public = [(name, fact) for name, fact in plan.facts.items() if name not in ("records", "weights")]
    private = {
        "records of `dataset`": plan.dataset.train.digest(b"ranks"),
        "starting weights and mask": plan.facts["weights"],
        "options or facts": repr((public, plan.mechanism, plan.expected_batch, plan.filtered, plan.dataset.bounds)),
    }
    ranks.agree({}, private)
    return replace(plan, ranks=ranks)


def follow(ranks: Ranks, settle: Callable[[], TrainingPlan]) -> None:
    """Do the share of a rank that is not the first; return when the last step is done, or raise what ended rank 0."""
    plan = settled_together(ranks, settle)
    message = ranks.tell()
    entry = entry_from_json(message["entry"])  # which rank 0 paid for, and draws from
    (mechanism,) = entry.of(NoisySgd)
    plan, secret = replace(plan, lr=message["lr"], mechanism=mechanism), Secret(entry, None)
    centre = ranks.share({}).get(CENTRE)
    feature_map = plan.dataset.feature_map
    if centre is not None and feature_map is not None:
        plan = replace(plan, dataset=replace(plan.dataset, feature_map=feature_map.centred_at(centre)))
    descent = ranks.together(lambda: Descent(prepare(plan, unused_sources(), plan.inputs.open(secret))))
    ranks.agree(descent.gradients.kernels)
    message = ranks.tell()
    descent.resume(message["step"], ranks.share({}))
    descent.run()
