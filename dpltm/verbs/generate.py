"""Phase 1: what tickets are made from, what that costs, and the set that comes of it (docs/privacy-model.md section 2)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import torch

from dpltm.criteria import DATA_FREE, DP_CRITERIA
from dpltm.errors import InputError
from dpltm.features.feature_map import SplineMap
from dpltm.features.inputs import Services, features_of, inputs, network_inputs, tensors, with_feature_map
from dpltm.networks import Network, model_spec
from dpltm.networks.evaluation import accuracy, check_no_target, check_score
from dpltm.networks.full_precision import threads
from dpltm.networks.own import OwnModel
from dpltm.networks.own_network import network_notes, source_facts, started_at
from dpltm.networks.state import put, weights_of
from dpltm.options.generate import GenerateOptions
from dpltm.options.train import TrainOptions
from dpltm.privacy.account import check_declared, check_private, check_unprotected
from dpltm.privacy.checkpoint import AGAIN, NOT_KEPT, Checkpoints
from dpltm.privacy.entry import Entry, Lineage, lineage_of
from dpltm.privacy.ledger import Ledger, facts_digest
from dpltm.privacy.mechanisms import Unprotected
from dpltm.privacy.release import price
from dpltm.privacy.statement import statement
from dpltm.pruning import generation
from dpltm.pruning.generation import Tickets
from dpltm.pruning.unstructured import input_groups
from dpltm.records.dataset import Dataset
from dpltm.records.notes import feature_notes, public_input_notes, test_notes, unit_notes
from dpltm.records.settle import check_delta
from dpltm.records.units import at_unit
from dpltm.registry import listed
from dpltm.training import least_squares as head
from dpltm.training.artifacts import DEFAULT_NETWORK, ProvenanceKind, TicketSet, fresh, with_start
from dpltm.training.release import Rewound, TrainingPlan, opened_test
from dpltm.verbs.train import check_takes_persons, train_start
from dpltm.verbs.train import plan as training_plan
from dpltm.verbs.train import settle as settle_training

_OF_ONE_LAYER = ("magnitude", "random", "dp-train")  # which prune one layer well whose weights begin at 0
TABLE_ITERATIONS = 500  # of a round, behind `splines`: with more, weights of a few thousand records fit their chance
MAJORITY = 0.8  # share of the most frequent class above which accuracies hardly differ, and ranks are measured

_ABOUT = {  # of private ones the statement itself tells
    "data-free": "no record was looked at, so the tickets cost nothing; they have no predictors: train one by its round",
    "public": "{} was declared public: no guarantee is claimed for it, and the tickets cost nothing",
    "dp": "the tickets are post-processing of one release, which goes along with them and counts with whatever is made of"
    " them",
}

_TRAINED: tuple[ProvenanceKind, ...] = ("public", "private", "dp")

_SUITS: dict[str, tuple[ProvenanceKind, ...]] = {
    "epsilon": ("dp",),
    "per_unit": ("dp",),
    "reveal": ("private",),
    **dict.fromkeys(("iterations", "batch_size", "lr", "rewind"), _TRAINED),
}
"""Options that are for tickets of some provenances alone."""


@dataclass(frozen=True, kw_only=True)
class Generation:
    """A generation as settled before it starts; nothing is spent yet.

    Attributes:
        options: with every default filled in.
        beside: drafts of what is declared before records are used, and of looks at them with no mechanism.
        own: whether the epsilon that is asked for, and reported, is that of the set's lineage alone, as in a sweep.
        metric: of tickets, in the place of their accuracy.
    """

    options: GenerateOptions
    dataset: Dataset
    spec: Network
    provenance: ProvenanceKind
    lineage: Lineage
    ledger: Ledger
    beside: tuple[Entry, ...]
    services: Services
    own: bool = False
    metric: str = "accuracy"

    @cached_property
    def training(self) -> TrainingPlan | None:
        """Of ``dp-train``, what the training would be by what the ledger holds now, priced; None of others."""
        if self.provenance != "dp":
            return None
        start, book = fresh(self.spec, self.options.seed), self.ledger.book
        settled = settle_training(start, self.dataset, _training_options(self), self.ledger, self.services)
        training = training_plan(replace(settled, rewound=Rewound(self.options.rewind, {})), book, own=self.own)
        price(training, book)
        return training

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Drafts of all that would be entered and has a say in a figure."""
        training = () if self.training is None else (self.training.entry,)
        return (*(draft for draft in self.beside if draft.kind != "excluded"), *training)

    def priced(self) -> dict[str, Any]:
        """Return what would be made, and what it would cost; refuse what cannot be trained."""
        if self.training is not None:
            self.training.rehearse()
        account = self.ledger.book.account(self.lineage, own=self.own) + self.entries
        return {
            "provenance": self.provenance,
            "criterion": self.options.criterion,
            "dataset": self.dataset.name,
            "records": self.dataset.records,
            "model": self.spec.text,
            "steps": self.options.steps_of({"dp": 1, "data-free": 0}.get(self.provenance, self.options.rounds + 1)),
            "privacy": statement(account, self.options.delta, notes=_input_notes(self)).to_json(),
        }


def plan(
    dataset: Dataset,
    options: GenerateOptions,
    ledger: Ledger,
    services: Services,
    *,
    model: OwnModel | None = None,
    going_on: bool = False,
    own: bool = False,
) -> Generation:
    """Settle everything, and refuse what cannot be, before any training.

    Args:
        model: a network of the user's own, in the place of the one that ``options`` names.
        going_on: whether an interrupted attempt goes on, which may be paid for already.
    """
    provenance = check_options(options)
    check_no_target(dataset, "generate")
    network = options.model if model is None else model
    features = options.features
    if options.criterion in _OF_ONE_LAYER and model is None:
        features = features_of(dataset, features, options.model)
    dataset = with_feature_map(dataset, features)
    if provenance == "public":
        dataset = head.with_room(dataset)
    if provenance == "dp":
        dataset = at_unit(dataset, options.per_unit)
    if provenance in ("private", "dp"):
        check_delta(options.delta, dataset)
    usual = "mlp" if isinstance(dataset.feature_map, SplineMap) else DEFAULT_NETWORK
    spec = model_spec(network or usual, dataset)
    if provenance in ("public", "private") or (provenance == "dp" and dataset.test is not None):
        check_score(spec, "the accuracy of each ticket")
    options = settle(options, spec, dataset, provenance)
    settled = Generation(
        options=options,
        dataset=dataset,
        spec=spec,
        provenance=provenance,
        lineage=lineage_of(dataset, dataset.feature_map, spec),
        ledger=ledger,
        beside=_beside(options, provenance, ledger, dataset),
        services=services,
        own=own,
    )
    check_takes_persons(spec, dataset)
    account = ledger.book.account(settled.lineage)
    for draft in settled.beside:
        if draft.kind == "public":
            check_declared(account, draft.part, "public")
        elif draft.paid:
            check_private(account, draft.part)
    ledger.book.lacking(settled.beside)
    if not going_on:
        looks = [draft for draft in settled.beside if draft.paid]
        account.check_budget(looks)
        check_unprotected(ledger.account(), looks, options.unprotected or own)
    return settled


def _beside(
    options: GenerateOptions, provenance: ProvenanceKind, ledger: Ledger, dataset: Dataset
) -> tuple[Entry, ...]:
    beside = ledger.apart(dataset) if provenance in ("private", "dp") else ()
    words = f"tickets by {options.criterion}"
    if provenance == "public":
        beside += ledger.public(dataset, words)
        if dataset.test is not None and dataset.published_id() is None:  # whoever chooses a ticket sees its accuracy
            beside += ledger.public(dataset.tested(), words)
    if provenance == "private":
        looks = (f"{words}, with no mechanism", *(["accuracies of their predictors"] if options.reveal else []))
        part = ledger.part(dataset)
        unit = dataset.noun if dataset.names_units else ledger.unit
        beside += tuple(Entry("release", part, (Unprotected(),), words, unit=unit) for words in looks)
    return beside


def generate(plan: Generation, *, checkpoints: Checkpoints = NOT_KEPT) -> TicketSet:
    """Return the set, with the report; what it depends on is on record before a record is looked at. Of provenance
    ``private`` it holds accuracies on private records, which its text (``repr``) and the set on disk leave out."""
    options = plan.options
    if plan.provenance == "dp":
        body, lineage = _under_dp(plan, checkpoints)
    elif plan.provenance == "data-free":
        lineage = plan.lineage | plan.ledger.declare_once(*plan.beside)
        body = generation.without_data(plan.spec, options)
    else:
        body, lineage, plan = _with_no_mechanism(plan, checkpoints)
    dataset = plan.dataset
    provenance = with_start(plan.provenance, plan.spec)
    notes = _input_notes(plan)
    if plan.provenance == "private" and not options.reveal:
        notes.append("accuracies are private and withheld (`reveal` shows them)")
    if provenance in _ABOUT:
        notes.append(_ABOUT[provenance].format(dataset.part))
    if plan.metric != "accuracy":
        notes.append(f"{plan.metric} stands where accuracies do: over {MAJORITY:.0%} of the records are of one class")
    notes += test_notes(dataset) if provenance == "dp" else ()
    notes += [*network_notes(plan.spec), *feature_notes(dataset)]
    return TicketSet(
        body=replace(body, spec=started_at(body.spec, body.theta0)),
        name=options.name or dataset.name,
        criterion=options.criterion,
        provenance=provenance,
        made_from=lineage,
        config=_settings(plan),
        feature_map=dataset.feature_map,
        privacy=statement(plan.ledger.book.account(lineage, own=plan.own), options.delta, notes=notes),
    )


def _input_notes(plan: Generation) -> list[str]:
    guaranteed = plan.provenance in ("private", "dp")
    return [*public_input_notes(plan.dataset), *(unit_notes(plan.dataset) if guaranteed else ())]


def _training_options(plan: Generation) -> TrainOptions:
    """Return the training whose end is pruned by ``dp-train``: the bound of clipping, and steps as for any tickets."""
    options = plan.options
    return TrainOptions(
        epsilon=options.epsilon, delta=options.delta, clip_norm=1.0, batch_size=options.batch_size,
        steps=options.iterations, lr=options.lr, schedule="constant", centre=0.0, per_unit=options.per_unit,
        seed=options.seed,
    )  # fmt: skip


def _under_dp(plan: Generation, checkpoints: Checkpoints) -> tuple[Tickets, Lineage]:
    """Make tickets of a network trained under DP; predictors are that network under each mask."""
    options, spec, dataset, ledger = plan.options, plan.spec, plan.dataset, plan.ledger
    start = fresh(spec, options.seed)
    rewound = Rewound(options.rewind, weights_of(start.model))
    arguments = start, dataset, _training_options(plan), ledger, plan.services
    with threads(options.threads):
        run = train_start(*arguments, checkpoints=checkpoints, own=plan.own, rewound=rewound)
    tickets = generation.prune_once(spec, rewound.theta0, weights_of(run.model), options)
    if dataset.test is None:
        return tickets, run.lineage
    test = tensors(opened_test(dataset, ledger, plan.services), dataset)
    scored = []
    for ticket in tickets.tickets:
        put(run.model, ticket.predictor or {})
        scored.append(replace(ticket, accuracy=accuracy(run.model, *test, score=spec.score)))
    return replace(tickets, tickets=tuple(scored)), run.lineage


def _with_no_mechanism(plan: Generation, checkpoints: Checkpoints) -> tuple[Tickets, Lineage, Generation]:
    """Return tickets by ordinary training, their lineage, and the plan with what the records say of features and metric."""
    options, ledger, dataset = plan.options, plan.ledger, plan.dataset
    latest = checkpoints.latest
    facts = _facts(plan)
    looks = [draft for draft in plan.beside if draft.paid]
    if latest is not None and latest.state.get("facts") != facts:
        raise InputError(f"checkpoint: an interrupted attempt was begun on other records, or otherwise; {AGAIN}")
    before = [] if latest is None else [entry for entry in ledger.entries if entry.id in latest.state["entries"]]
    looked = looks and len(before) == len(looks)
    entered = ledger.declare_once(*(draft for draft in plan.beside if not (looked and draft.paid)))
    entered = entered | ledger.lineage(*before) if looked else entered
    opened = network_inputs(dataset.train, dataset, plan.services).open(ledger.declared(dataset))
    public = plan.provenance == "public"  # else this would be told of private records, exactly
    dataset = head.from_public(dataset, opened, options.seed) if public else dataset
    x, y = inputs(opened, dataset)
    classes = public and y.ndim == 1 and plan.spec.labels is None and plan.spec.score is None
    rare = classes and int(y.bincount().max()) > MAJORITY * len(y)
    plan = replace(plan, dataset=dataset, metric="auc" if rare else plan.metric)
    evaluation = (x, y) if dataset.test is None else inputs(opened_test(dataset, ledger, plan.services), dataset)
    cost = "no epsilon is spent" if public else "epsilon inf: no mechanism protects the records"
    state = {"facts": facts, "entries": [entry.id for entry in entered.entries if entry.paid]}
    steps = options.steps_of(options.rounds + 1)
    with plan.services.progress.progress(f"generating {options.rounds} tickets", steps) as step:

        def watch(done: int, place: str) -> None:
            step(done, f"{place}, {cost}")

        groups, measured = input_groups(dataset), (*evaluation, plan.metric)
        tickets = generation.generate(plan.spec, (x, y), options, measured, watch, checkpoints, state, groups)
        return tickets, plan.lineage | ledger.book.public(plan.beside) | entered, plan


def _facts(plan: Generation) -> str:
    """Return the digest of records and settings by which interrupted work is known."""
    part, feature_map = plan.ledger.part(plan.dataset), plan.dataset.feature_map
    cut = [part.snapshot, part.cut, part.start, part.stop, plan.dataset.train.slots]
    front = None if feature_map is None else feature_map.id
    settings = [_settings(plan), input_groups(plan.dataset), dict(source_facts(plan.spec))]
    return facts_digest([cut, plan.spec.identity, front, settings])


def _settings(plan: Generation) -> dict[str, Any]:
    dataset = plan.dataset
    names = ["rounds", "prune", "iterations", "batch_size", "lr", "seed", "threads", "criterion", "scope", "rewind"]
    if plan.provenance == "data-free":
        names = ["rounds", "prune", "criterion", "scope", "seed"]
    if plan.provenance == "dp":
        names += ["epsilon", "delta"]
    settings = {name: getattr(plan.options, name) for name in names}
    settings["prune"] = plan.options.rates
    settings |= {"metric": plan.metric} if plan.metric != "accuracy" else {}
    settings |= {"columns": list(dataset.columns)} if dataset.columns else {}
    return settings | ({"table_schema": dataset.schema.text} if dataset.schema.text else {})


def check_options(options: GenerateOptions) -> ProvenanceKind:
    """Return what the tickets will be made from; options out of range, or that contradict each other, are refused."""
    declared, criterion = options.provenance, options.criterion
    suited = ["dp"] if criterion in DP_CRITERIA else ["data-free"] * (criterion in DATA_FREE) + ["public", "private"]
    if declared is None and suited[0] == "public":
        raise InputError(
            "`provenance` is missing: say public if these records are public, or private if they are not (then nothing can"
            " be certified for them)"
        )
    if declared not in (None, *suited):
        raise InputError(f"`provenance`: tickets by {criterion} are {listed(suited)}, not {declared}")
    provenance = cast(ProvenanceKind, declared or suited[0])
    if options.epsilon is None and provenance == "dp":
        raise InputError(f"`epsilon` is missing: what {criterion} may spend on these records, such as 0.1")
    for name, provenances in _SUITS.items():
        if getattr(options, name) not in (None, False) and provenance not in provenances:
            raise InputError(f"`{name}`: is for `provenance` {listed(provenances)}, not {provenance}; leave it out")
    _ = options.rates  # or a list of no numbers would be refused after records are read
    return provenance


def settle(options: GenerateOptions, spec: Network, dataset: Dataset, provenance: ProvenanceKind) -> GenerateOptions:
    """Return the options with every default filled in, for this network and these records."""
    if options.iterations is None and isinstance(dataset.feature_map, SplineMap) and provenance != "dp":
        options = replace(options, iterations=TABLE_ITERATIONS)
    options = options.for_records(dataset.records)
    rates = generation.pruning_rates(spec, options).values()
    generation.make_schedule(spec, options)
    # Without a mechanism batches are of exactly so many records, and there may be fewer than the public number.
    most = dataset.records if provenance == "dp" else min(dataset.records, len(dataset.train))
    if provenance in _TRAINED and (options.batch_size or 0) > most:
        raise InputError(
            f"`batch_size`: {options.batch_size} is more than there are records in {dataset.name}; say a smaller one"
        )
    threads = options.threads or torch.get_num_threads()
    options = replace(options, prune=",".join(map(str, rates)), threads=threads)
    generation.try_criterion(spec, options, input_groups(dataset))
    return options
