"""Attacks on claims: on a training by canaries, on tickets by their masks, and on claims of the literature.

``audit`` looks at what canaries saw in a training that had some; ``audit_tickets`` makes tickets anew with made-up records
among the private ones (docs/privacy-model.md section 2); ``demo`` attacks the embedded digits in a minute: what is certified
stands, and two claims of the literature fall.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from dpltm.audit.attacks import (
    MaskFindings,
    check_unset,
    local_bound,
    mask_findings,
    out_of_order,
    unset_features,
    with_canaries,
)
from dpltm.audit.bounds import check_confidence
from dpltm.audit.findings import audit, violated
from dpltm.errors import InputError
from dpltm.features.inputs import Services, network_inputs, tensors
from dpltm.local.scheme import BitStrings, FixedPoint
from dpltm.networks import ModelSpec, build
from dpltm.networks.evaluation import accuracy
from dpltm.networks.state import put
from dpltm.options.train import TrainOptions
from dpltm.privacy.account import Account, check_private, check_unprotected
from dpltm.privacy.entry import Entry
from dpltm.privacy.ledger import Ledger
from dpltm.privacy.mechanisms import Unprotected
from dpltm.privacy.statement import PrivacyReport, statement
from dpltm.pruning.generation import GenerationConfig, Tickets, generate
from dpltm.pruning.ticket_transfer import transfer
from dpltm.randomness.noise import RandomSource, SecureSource, uniform
from dpltm.records import Arrays, Dataset, Split
from dpltm.training.artifacts import TicketSet
from dpltm.training.start import fresh
from dpltm.verbs.train import train_start

CONTROLS = 5
"""Shuffled masks that a mask is compared with."""


@dataclass(frozen=True)
class TicketFindings:
    """Outcome of an attack on a ticket set.

    Attributes:
        supermask: test accuracy of the starting weights under the mask of the last round, trained on nothing here; None
            where there is no test split.
        shuffled: the mean of the same under masks with as many live weights in each layer, elsewhere.
    """

    claims: PrivacyReport
    masks: MaskFindings
    supermask: float | None
    shuffled: float | None

    @property
    def violates(self) -> list[str]:
        """Claims that the bound refutes."""
        assert self.claims.nominal is not None  # that nothing is counted for such tickets
        return violated(self.masks.lower_bound, self.claims.certified.epsilon, self.claims.nominal.epsilon)


def audit_tickets(
    tickets: TicketSet,
    dataset: Dataset,
    ledger: Ledger,
    services: Services,
    *,
    confidence: float = 0.95,
    unprotected: bool = False,
    coins: RandomSource | None = None,
) -> TicketFindings:
    """Make one round of tickets anew, as the set was made, on the records and canaries, and look at their masks.

    Args:
        tickets: of provenance private, by magnitude, of a fully connected network.
        ledger: of the people whose records those are; the look at them is entered as unprotected.
        confidence: of the bound, in [0.5, 1).
        unprotected: whether the ledger may hold releases with a guarantee, which ends with this.
        coins: of the audit, and the seed of the tickets.

    Raises:
        InputError: tickets that this attack is not for, or too few features that no record has; nothing is entered then.

    Guarantees:
        None to the records: what is found depends on them as it is. It is for whoever owns them.
    """
    _check(tickets, dataset, confidence)
    coins = SecureSource() if coins is None else coins
    dataset.train.check(lambda records: check_unset(len(unset_features(records.x)), confidence))
    account = Account.of((), tickets.lineage, unit=tickets.lineage.paid[0].unit)
    claims = statement(account, 1e-5)
    words = "audit of tickets: masks made anew of the records and canaries"
    look = Entry("release", ledger.part(dataset), (Unprotected(),), words, unit=ledger.unit)
    check_private(ledger.account(tickets.lineage), look.part)
    check_unprotected(ledger.account(), (look,), unprotected)
    ledger.declare_once(*ledger.apart(dataset), look)
    declared = ledger.declared(dataset)
    x, y = dataset.train.open(declared)
    places = unset_features(x)
    included = uniform(coins, len(places)) < 0.5
    services.progress.say(f"making tickets anew, with {int(included.sum())} of {len(places)} made-up records")
    labels = (uniform(coins, int(included.sum())) * dataset.classes).astype(y.dtype)
    records = with_canaries(x, places[included], dataset.bounds[1])
    known = {name: value for name, value in tickets.config.items() if name in GenerationConfig.__dataclass_fields__}
    config = GenerationConfig(**{**known, "prune": tuple(known["prune"]), "rounds": 1, "threads": None})
    config = replace(config, seed=int(uniform(coins, 1)[0] * 2**52))
    canaried = network_inputs(Split(Arrays(records, np.concatenate([y, labels]))), dataset, services)
    with services.progress.progress("training for tickets", config.steps) as step:
        made = generate(
            tickets.body.spec,
            *tensors(canaried.open(declared), dataset),
            config,
            progress=lambda done, _: step(done),
        )
    first = _first_layer(made)
    moved = out_of_order(made.theta0[first].abs().numpy()[:, places], made.tickets[1].mask[first].numpy()[:, places])
    return TicketFindings(
        claims, mask_findings(moved, included, confidence), *_supermask(tickets, dataset, ledger, services)
    )


def _check(tickets: TicketSet, dataset: Dataset, confidence: float) -> None:
    if tickets.provenance != "private":
        raise InputError(
            f"{tickets.label}: tickets of provenance {tickets.provenance} have a guarantee for private records, or cost"
            " them nothing; this attack is for tickets of provenance private"
        )
    if tickets.criterion != "magnitude" or tickets.config.get("scope") != "layer" or tickets.feature_map is not None:
        raise InputError(
            f"{tickets.label}: the attack is on `criterion` magnitude and `scope` layer, without `features`; make them so"
        )
    if len(tickets.body.theta0[_first_layer(tickets.body)].shape) != 2:
        raise InputError(
            f"{tickets.label}: the attack is on fully connected networks, not on {tickets.body.spec.text}"
        )
    check_confidence(confidence)
    if dataset.labels is not None:
        raise InputError(f"{tickets.label}: the attack is on class numbers, and not on {dataset.labels}")
    if dataset.bounds[0] != 0:
        raise InputError("`bounds`: the attack is on records whose smallest value is 0")
    tickets.takes(dataset)


def _first_layer(tickets: Tickets) -> str:
    return next(name for name in tickets.theta0 if name.endswith("weight"))


def _supermask(
    tickets: TicketSet, dataset: Dataset, ledger: Ledger, services: Services
) -> tuple[float | None, float | None]:
    if dataset.test is None:
        return None, None
    test = tensors(network_inputs(dataset.test, dataset, services).open(ledger.declared_test(dataset)), dataset)
    body = tickets.body
    shuffled = [transfer(body, body.spec, "shuffled-mask", seed=2**20 + at).tickets for at in range(CONTROLS)]
    own, *others = (_untrained(one, test) for one in (body, *shuffled))
    return own, sum(others) / CONTROLS


def _untrained(tickets: Tickets, test: tuple[torch.Tensor, torch.Tensor]) -> float:
    model, mask = build(tickets.spec), tickets.tickets[-1].mask
    put(model, tickets.theta0)
    mask.apply(model)
    return accuracy(model, *test, score=tickets.spec.score)


SHORT: dict[str, Any] = {"batch_size": 32.0, "steps": 600, "lr": 0.3}
"""Of small batches, so that the records' own gradients are not in the way of canaries."""

TRAININGS: dict[str, dict[str, Any]] = {
    "clip": {"epsilon": 8.0, "audit": 2000},
    "clip, then tanh": {"epsilon": 8.0, "filter": "tanh", "audit": 2000},
    "tanh as printed": {
        "noise_multiplier": 1.5,
        "noise": "nominal",
        "filter": "tanh",
        "no_pre_clip": True,
        "audit": 500,
    },
}
"""By name: how a network of 7,510 weights is trained."""

UER = BitStrings(9216, 10, FixedPoint(4, 5), "uer", 0.5, 7.0, None)
"""LATENT's own setting: 92,160 bits, alpha 7."""

MESSAGES = 1000


@dataclass(frozen=True)
class Attacked:
    """One attacked claim; ``nominal`` is that of its source, None for no claim of its own."""

    what: str
    nominal: float | None
    certified: float
    lower_bound: float

    @property
    def violates(self) -> list[str]:
        """Claims that the bound refutes."""
        return violated(self.lower_bound, self.certified, self.nominal)


def demo(dataset: Dataset, services: Services, confidence: float = 0.95, seed: int = 0) -> list[Attacked]:
    """Return all rows, on the embedded digits; ``confidence`` in [0.5, 1) is that of each row's bound."""
    rows = []
    for name, options in TRAININGS.items():
        services.progress.say(f"training: {name}")
        start = fresh(ModelSpec("mlp:100", dataset.features, dataset.classes), seed)
        run = train_start(start, dataset, TrainOptions(**SHORT, **options), Ledger(), services)
        found = audit(run, confidence=confidence)
        nominal = None if found.nominal is None else found.nominal.epsilon
        rows.append(Attacked(name, nominal, found.certified.epsilon, found.lower_bound))
    services.progress.say("sending messages")
    bound = local_bound(UER, MESSAGES, confidence, SecureSource())
    return [*rows, Attacked("LATENT's UER, one record", UER.nominal, UER.certified, bound)]
