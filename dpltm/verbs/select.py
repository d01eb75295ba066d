"""Phase 2: one draw on private records, entered before it is made; or the paper's rule on public accuracies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, cast

import numpy as np

from dpltm.errors import DpltmError, InputError
from dpltm.features.inputs import Services, inputs, network_inputs
from dpltm.networks import build
from dpltm.networks.evaluation import PricedError, PricedScore, check_no_target, check_priced, check_score, total_score
from dpltm.networks.masks import Mask
from dpltm.networks.own_network import check_labels, check_scored_rows, network_notes
from dpltm.networks.state import put
from dpltm.options.select import SelectOptions
from dpltm.privacy import selection
from dpltm.privacy.account import Account, check_private, check_unprotected
from dpltm.privacy.describe import figure, percent
from dpltm.privacy.entry import Entry, Lineage, Part, Secret, lineage_of
from dpltm.privacy.ledger import Ledger, facts_digest
from dpltm.privacy.mechanisms import Adjacency, Selection, Unprotected
from dpltm.privacy.release import pay
from dpltm.privacy.selection import SelectionPlan
from dpltm.privacy.statement import PrivacyReport, statement
from dpltm.pruning.generation import Ticket
from dpltm.randomness.noise import KeyedSource
from dpltm.records.dataset import Dataset
from dpltm.records.notes import feature_notes, public_input_notes, shares_notes, unit_notes
from dpltm.records.settle import check_delta
from dpltm.records.units import at_unit
from dpltm.training.artifacts import TicketSet, Winner
from dpltm.training.plan import private_score
from dpltm.training.release import check_trainable
from dpltm.verbs.train import check_takes_persons


@dataclass(frozen=True)
class Draw:
    """A draw, settled before it is made: a release of ``dpltm.privacy.release``.

    Attributes:
        looks: drafts of what is shown beside the winner, without protection.
        correct: counts of right answers, once they are taken; private.
    """

    options: SelectOptions
    tickets: TicketSet
    dataset: Dataset
    settled: SelectionPlan
    metric: PricedScore | None
    entry: Entry
    looks: tuple[Entry, ...]
    lineage: Lineage
    ledger: Ledger
    services: Services
    correct: list[np.ndarray] = field(default_factory=list, repr=False)

    beside = ()

    @property
    def candidates(self) -> tuple[Ticket, ...]:
        return self.tickets.body.tickets[1:]

    @property
    def notes(self) -> list[str]:
        dataset, shares = self.dataset, self.options.class_shares
        about = [*feature_notes(dataset), *public_input_notes(dataset), *shares_notes(shares), *unit_notes(dataset)]
        return [*about, *network_notes(self.tickets.body.spec), *self.doubts]

    @property
    def doubts(self) -> list[str]:
        """What public facts say of how well the draw tells candidates apart, where that is badly."""
        least, options = self.settled.resolution, self.options
        accuracies = [ticket.accuracy for ticket in self.candidates if ticket.accuracy is not None]
        of_one_class = self.tickets.config.get("metric", "accuracy") != "accuracy"
        spread = 1.0  # that accuracies may have; of public tickets, as they have it
        if self.tickets.provenance == "public" and accuracies and options.judged_by == "accuracy":
            spread = max(accuracies) - min(accuracies)
        if not of_one_class and spread > least:
            return []
        return [
            f"`eps1` {options.eps1:g} hardly tells the accuracies of the candidates apart: a difference of {percent(least)}"
            " makes one about twice as likely; raise it, take another `metric`, or name a round yourself, which costs"
            " nothing"
        ]

    @property
    def facts(self) -> dict[str, Any]:
        plan = self.settled
        sensitivity = {"rule": plan.rule, "value": plan.sensitivity}
        return {"eps1": plan.eps1, "mechanism": plan.mechanism, "score": plan.score, "sensitivity": sensitivity}

    def priced(self) -> PrivacyReport:
        """Return what the report would be, were it drawn."""
        drafts = (self.entry, *self.looks)
        account = self.ledger.account(self.lineage) + drafts
        return statement(account, self.options.delta, adjacency=self.settled.adjacency, notes=self.notes)

    def rehearse(self) -> None:
        """Refuse features that cannot be had, and labels that the score does not take; the predictors have been trained."""
        network_inputs(self.dataset.train, self.dataset, self.services)
        check_labels(self.tickets.body.spec, self.dataset)

    def draw(self, secret: Secret, at: object) -> Iterator[int]:
        del at
        network, services = self.tickets.body.spec, self.services
        model = build(network)
        records = network_inputs(self.dataset.train, self.dataset, services)
        x, y = inputs(records.open(secret), self.dataset)
        counts: list[float] = []
        with services.progress.progress(f"scoring {len(self.candidates)} tickets", len(self.candidates)) as step:
            for ticket in self.candidates:
                assert ticket.predictor is not None  # checked at the start
                put(model, ticket.predictor)
                counts.append(total_score(model, x, y, score=self.metric or network.score))
                step(len(counts))
        self.correct[:] = [np.array(counts)]
        yield self.candidates[selection.draw(self.settled, self.correct[0], KeyedSource(secret.child("draw")))].round


def plan(tickets: TicketSet, dataset: Dataset, options: SelectOptions, ledger: Ledger, services: Services) -> Draw:
    """Settle a draw, and raise InputError or BudgetError for what cannot be, before any budget is spent."""
    check_options(options, tickets)
    check_no_target(dataset, "select")
    network = tickets.body.spec
    network.check_code(tickets.label)
    check_score(network, "select")
    dataset = at_unit(tickets.takes(dataset), options.per_unit)
    check_takes_persons(network, dataset)
    check_delta(options.delta, dataset)
    part = ledger.part(dataset)
    lineage = lineage_of(tickets, dataset, dataset.feature_map)
    # given what a DP release let out, the predictors made of it are fixed (adaptive composition)
    fixed = tickets.provenance != "private" or not _made_from(tickets, part, options.adjacency)  # type: ignore[arg-type]
    densities = tuple(ticket.mask.density for ticket in tickets.body.tickets[1:])
    metric = private_score(options.judged_by, options.class_shares, dataset, network.score)
    assert not isinstance(metric, PricedError)
    check_scored_rows(network)
    settled = settle(options, dataset.records, densities, fixed, metric)
    facts = facts_digest([tickets.id, part.snapshot, asdict(settled)])
    mechanism = Selection(settled.eps1, settled.certified_epsilon, draw=settled.mechanism, adjacency=settled.adjacency)
    count, of = len(densities), "" if options.judged_by == "accuracy" else f" of {options.judged_by}"
    words = f"winner of {count} ticket{'s' * (count > 1)}, {options.score} score{of}, {settled.rule} sensitivity"
    entry = Entry("release", part, (mechanism,), words, facts=facts, unit=dataset.unit)
    exact = Unprotected(adjacency=settled.adjacency)
    words = "scores and probabilities of the candidates"
    looks = (Entry("release", part, (exact,), words, unit=dataset.unit),) if options.reveal else ()
    account = ledger.account(lineage)
    check_private(account, part)
    account.check_budget((entry, *looks))
    check_unprotected(ledger.account(), looks, options.unprotected)
    check_trainable(network, dataset)
    plan = Draw(options, tickets, dataset, settled, metric, entry, looks, lineage, ledger, services)
    drawn = (entry,)
    epsilon = (account + drawn).epsilon(options.delta)
    spent = f"this draw spends eps1 = {figure(settled.certified_epsilon)} on {part}: certified epsilon becomes"
    for note in (f"{spent} {figure(epsilon)}", *plan.doubts):  # before it pays
        services.progress.say(note)
    return plan


def _made_from(tickets: TicketSet, part: Part, adjacency: Adjacency) -> bool:
    """Tell whether private tickets were made from records of a part, so that one of those moves a whole predictor."""
    # of another snapshot that is not asked: if they are the same people, nothing is certified anyhow
    return any(
        entry.part.snapshot in (None, part.snapshot) and not entry.part.apart(part, entry.unit, adjacency)
        for entry in tickets.lineage.entries
        if entry.of(Unprotected)
    )


def select(plan: Draw) -> Winner:
    """Enter the draw, mark the set with it, make it, and return the winner: nothing else that the records decided."""
    paid = pay(lambda _book, _known: plan, plan.ledger)
    lineage = paid.lineage | plan.ledger.lineage(*plan.ledger.declare(*plan.looks)) if plan.looks else paid.lineage
    plan.tickets.mark(lineage)  # before the winner is known
    number = next(paid.values)
    report = statement(plan.ledger.account(lineage), plan.options.delta, notes=plan.notes)
    return Winner(number, lineage, plan.tickets, plan.facts, report, _revealed(plan) if plan.options.reveal else ())


def _revealed(plan: Draw) -> tuple[dict[str, float], ...]:
    (correct,), settled = plan.correct, plan.settled
    scores = settled.scores(correct)
    exponential = settled.mechanism == "exponential"
    law = selection.exponential_probabilities if exponential else selection.permute_and_flip_probabilities
    probabilities = law(scores, settled.exponent)
    return tuple(
        {
            "round": ticket.round,
            "density": ticket.mask.density,
            "accuracy": float(count / len(plan.dataset.train) * plan.dataset.records / settled.records),
            "score": float(score),
            "probability": float(probability),
        }
        for ticket, count, score, probability in zip(plan.candidates, correct, scores, probabilities, strict=True)
    )


def select_public(tickets: TicketSet, options: SelectOptions) -> Winner:
    """Select by the paper's rule for public data: the sparsest ticket that loses little, by accuracies in the set.

    No record is read, and nothing is spent. InputError without public accuracies, DpltmError without such a ticket.
    """
    check_options(options, tickets)
    accuracies = tuple(ticket.accuracy for ticket in tickets.body.tickets if ticket.accuracy is not None)
    dense, *candidates = tickets.body.tickets
    if tickets.provenance != "public" or len(accuracies) <= len(candidates):
        raise InputError(
            f"`rule`: smallest-within compares public accuracies, and {tickets.label}, of provenance {tickets.provenance},"
            " holds none; use `rule` mechanism `eps1` 0.1, or train a ticket by its round"
        )
    prunable = tickets.body.spec.prunable  # a projection in front is made new or taken off: it belongs to no ticket
    densities = tuple(Mask(ticket.mask, prunable).density for ticket in candidates)
    index = selection.smallest_within(densities, accuracies[1:], accuracies[0], options.tolerance, options.max_density)
    if index is None:
        raise DpltmError(
            f"`rule`: no ticket of at most {options.max_density:.0%} density is within {options.tolerance:g} of the dense"
            f" accuracy {dense.accuracy:.4f}; raise `tolerance` or `max_density`"
        )
    facts = {"eps1": 0.0, "mechanism": "smallest-within", "score": None, "sensitivity": None}
    notes = ["chosen on public accuracies: no private record was used"]
    privacy = statement(Account.alone(tickets.lineage), options.delta, notes=notes)
    return Winner(candidates[index].round, tickets.lineage, tickets, facts, privacy)


def check_options(options: SelectOptions, tickets: TicketSet | None = None) -> None:
    """Raise InputError for options that are out of range or contradict each other, or tickets that they cannot draw from."""
    by_mechanism = options.rule == "mechanism"
    if by_mechanism and tickets is not None and not tickets.is_scored:
        raise InputError(
            f"{tickets.label}: its tickets have no predictors to score; train one by its round, such as"
            f" {tickets.body.tickets[-1].round}"
        )
    check_priced(options.judged_by)
    if not by_mechanism:
        check_reads_none(options, "metric", options.judged_by != "accuracy")
        for name in (
            "class_shares",
            "eps1",
            "dataset",
            "ledger",
            "reveal",
        ):  # the third and the fourth are of requests
            check_reads_none(options, name, getattr(options, name, None))
        return
    if options.eps1 is None:
        raise InputError("`eps1` is missing: the epsilon that the draw may spend; DPLTM uses 0.1")
    if options.class_shares is not None and options.judged_by != "balanced-accuracy":
        raise InputError("`class_shares`: only with `metric` balanced-accuracy; leave it out")
    settle(options, records=1, densities=(0.5,), fixed=True)


def check_reads_none(options: SelectOptions, name: str, value: object) -> None:
    """Raise InputError for records, or what goes with them, where public accuracies are compared."""
    if options.rule != "mechanism" and value:
        raise InputError(f"`{name}`: {options.rule} reads public accuracies in the set and no records; leave it out")


def settle(
    options: SelectOptions, records: int, densities: tuple[float, ...], fixed: bool, metric: PricedScore | None = None
) -> SelectionPlan:
    """Return everything public about the draw, checked; ``fixed``: whether predictors were fixed without these records."""
    rule = options.sensitivity or ("exact" if fixed or options.score == "additive" else "paper")
    counted = records if metric is None else records * metric.scale
    names = ("score", "nu", "lam", "mechanism", "adjacency")
    chosen: dict[str, Any] = {name: getattr(options, name) for name in names}
    return SelectionPlan(
        options.eps1 or 0.0, densities, counted, rule=cast(selection.Rule, rule), fixed_predictors=fixed, **chosen
    )
