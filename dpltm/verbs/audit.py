"""Attacks on claims: on tickets by their masks, on messages, and, in ``demo``, on claims of the literature.

**Tickets that are made from records with no mechanism** (``audit_tickets``): features that no record has
(privacy-model.md 2). Where a feature is zero in every record, its weights get no gradient: they end where they started. So
magnitude pruning drops exactly those of them below one threshold, which anybody who has the starting weights sees. One
record that has the feature moves them, and the order breaks. Canary i is a record with feature i alone, at the largest
value that inputs may have; a coin decides whether it is among the records.

**Messages of local privacy** (``audit_scheme``): the likelihood ratio of two records that differ as much as any, one of them
sent. No attack tells them apart better than the ratio of the chances of the message, which follow from the public scheme.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from dpltm.audit import Findings, audit, epsilon_bound, least_canaries, pair_bound
from dpltm.errors import InputError
from dpltm.features.inputs import Services, tensors
from dpltm.local.codebook import Codebook, reports
from dpltm.local.scheme import BitStrings, FixedPoint
from dpltm.networks import ModelSpec, build
from dpltm.networks.evaluation import accuracy
from dpltm.networks.state import put
from dpltm.options.generate import GenerateOptions
from dpltm.options.train import TrainOptions
from dpltm.privacy.account import Account, check_private, check_unprotected
from dpltm.privacy.entry import Entry
from dpltm.privacy.ledger import Ledger
from dpltm.privacy.mechanisms import Unprotected
from dpltm.privacy.statement import Certified, Nominal, statement
from dpltm.pruning.generation import Tickets, generate
from dpltm.randomness.noise import RandomSource, SecureSource, uniform
from dpltm.records.dataset import Dataset
from dpltm.records.split import Arrays
from dpltm.training.artifacts import TicketSet, fresh
from dpltm.verbs.train import train_start
from dpltm.verbs.transfer import carry_over

# --- tickets ----------------------------------------------------------------------------------------------------------

CONTROLS = 5
"""Shuffled masks that a mask is compared with."""

MASKS = "made-up records with a feature that no record has, found by masks alone"


def audit_tickets(
    tickets: TicketSet,
    dataset: Dataset,
    ledger: Ledger,
    services: Services,
    *,
    confidence: float = 0.95,
    unprotected: bool = False,
    coins: RandomSource | None = None,
) -> Findings:
    """Make one round of tickets anew, as the set was made, on the records and canaries, and look at their masks.

    Args:
        tickets: of provenance private, by magnitude, of a fully connected network.
        ledger: of the people whose records those are; the look at them is entered as unprotected.
        confidence: of the bound, in [0.5, 1).
        unprotected: whether the ledger may hold releases with a guarantee, which ends with this.
        coins: of the audit, and the seed of the tickets.

    Returns:
        A lower bound on epsilon at delta 0 of making tickets, and how many guesses of the coins of ``canaries`` were
        ``correct``; test accuracy of the starting weights under the last mask (``supermask``), and its mean under masks
        that are shuffled in each layer (``shuffled_mask``).

    Raises:
        InputError: tickets that this attack is not for, or too few features that no record has; nothing is entered then.

    Guarantees:
        If making tickets is (epsilon, 0)-DP for one record more or less, the bound exceeds epsilon with probability at most
        1 - ``confidence``. None to the records: what is found depends on them as it is.
    """
    _check(tickets, dataset)
    coins = SecureSource() if coins is None else coins

    def enough(records: Arrays) -> None:
        count, least = len(unset_features(records.x)), least_canaries(confidence)
        if count < least:
            raise InputError(
                f"`dataset`: {count} of its features are zero in every record, and `confidence` {confidence:g} needs"
                f" {least}; this attack is for images with an empty border, such as mnist"
            )

    dataset.train.check(enough)
    settings = {name: value for name, value in tickets.config.items() if name in GenerateOptions.__dataclass_fields__}
    options = GenerateOptions(**settings | {"rounds": 1, "threads": None})
    claims = statement(Account.alone(tickets.lineage), 1e-5)
    words = "audit of tickets: masks made anew of the records and canaries"
    look = Entry("release", ledger.part(dataset), (Unprotected(),), words, unit=ledger.unit)
    check_private(ledger.account(tickets.lineage), look.part)
    check_unprotected(ledger.account(), (look,), unprotected)
    ledger.declare_once(*ledger.apart(dataset), look)
    x, y = dataset.train.open(ledger.declared(dataset))
    places = unset_features(x)
    included = uniform(coins, len(places)) < 0.5
    services.progress.say(f"making tickets anew, with {int(included.sum())} of {len(places)} made-up records")
    labels = (uniform(coins, int(included.sum())) * dataset.classes).astype(y.dtype)
    records = with_canaries(x, places[included], dataset.bounds[1])
    options = replace(options, seed=int(uniform(coins, 1)[0] * 2**52))
    canaried = Arrays(records, np.concatenate([y, labels]))
    with services.progress.progress("training for tickets", options.steps_of(2)) as step:
        pruned = generate(tickets.body.spec, tensors(canaried, dataset), options, progress=lambda done, _: step(done))
    first = _first_layer(pruned)
    weights, mask = pruned.theta0[first].abs().numpy(), pruned.tickets[1].mask[first].numpy()
    moved = out_of_order(weights[:, places], mask[:, places])
    correct = int(((moved > 0) == included).sum())  # guessed to be in where weights are out of order
    bound = epsilon_bound(len(moved), len(moved), correct, 0.0, confidence)
    supermask, shuffled = _supermask(tickets, dataset, ledger)
    facts = {"delta": 0.0, "method": MASKS, "canaries": len(moved), "correct": correct}
    facts |= {"supermask": supermask, "shuffled_mask": shuffled}
    return Findings(tickets.label, claims.certified, claims.nominal, bound, facts)


def _check(tickets: TicketSet, dataset: Dataset) -> None:
    is_pruned_so = tickets.criterion == "magnitude" and tickets.config.get("scope") == "layer"
    is_connected = len(tickets.body.theta0[_first_layer(tickets.body)].shape) == 2
    if not (tickets.provenance == "private" and is_pruned_so and is_connected and tickets.feature_map is None):
        raise InputError(
            f"{tickets.label}: the attack is on sets of `provenance` private, made by `criterion` magnitude and `scope`"
            " layer, of fully connected networks without `features`; make such a set"
        )
    if dataset.target is not None or dataset.labels is not None or dataset.bounds[0] != 0:
        raise InputError(
            "`dataset`: the attack is on class numbers, and on records whose smallest value is 0; take such"
        )
    tickets.takes(dataset)


def _first_layer(tickets: Tickets) -> str:
    return next(name for name in tickets.theta0 if name.endswith("weight"))


def _supermask(tickets: TicketSet, dataset: Dataset, ledger: Ledger) -> tuple[float | None, float | None]:
    if dataset.test is None:
        return None, None
    test = tensors(dataset.test.open(ledger.declared_test(dataset)), dataset)
    body, model, figures = tickets.body, build(tickets.body.spec), list[float]()
    shuffled = (carry_over(body, body.spec, "shuffled-mask", seed=2**20 + at)[0] for at in range(CONTROLS))
    for candidate in (body, *shuffled):
        put(model, candidate.theta0)
        candidate.tickets[-1].mask.apply(model)
        figures.append(accuracy(model, *test, score=body.spec.score))
    return figures[0], sum(figures[1:]) / CONTROLS


def unset_features(x: np.ndarray) -> np.ndarray:
    """Places of features that are 0 in all records ``(n, ...)``; ascending."""
    return np.flatnonzero((x.reshape(len(x), -1) == 0).all(0))


def with_canaries(x: np.ndarray, places: np.ndarray, largest: float) -> np.ndarray:
    """The records, and after them one canary a place, of the same dtype."""
    canaries = np.zeros((len(places), int(np.prod(x.shape[1:]))), x.dtype)
    canaries[np.arange(len(places)), places] = largest
    return np.concatenate([x, canaries.reshape(len(places), *x.shape[1:])])


def out_of_order(weights: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Number of weights of each feature that were kept below the threshold, or dropped above, ``(features,)``.

    0 where nothing moved them; the threshold is one that has fewest of them in all. ``weights`` are absolute starting
    weights, ``(units, features)``, and ``mask`` says which of them live after one round.
    """
    order = np.argsort(weights, axis=None)
    alive = mask.flatten()[order]
    below = np.concatenate([[0], np.cumsum(alive)])  # kept, if the threshold is before place i
    above = np.concatenate([np.cumsum(~alive[::-1])[::-1], [0]])
    threshold = np.append(weights.flatten()[order], np.inf)[int(np.argmin(below + above))]
    return ((weights < threshold) == mask).sum(0)


# --- messages ---------------------------------------------------------------------------------------------------------

AT_ONCE = 2**24
"""Bits of messages at a time."""


MESSAGES = "likelihood ratios of messages of two records"


def audit_scheme(
    name: str, answer: BitStrings | Codebook, messages: int, confidence: float, coins: RandomSource
) -> Findings:
    """Return a lower bound on the local epsilon of a record, label included unless it is public, from ``messages`` of two.

    Guarantees:
        If ``answer`` is epsilon-locally private, the bound exceeds epsilon with probability at most 1 - ``confidence``.
    """
    send: Callable[..., np.ndarray] = _of_codebook if isinstance(answer, Codebook) else _of_bits
    first, second = (send(answer, record, messages, coins) for record in (0, 1))
    certified = Certified(answer.certified, 0.0, "exact", "replace-one", "record", "none")
    facts = {"delta": 0.0, "method": MESSAGES, "canaries": None, "messages": messages}
    bound = pair_bound(first, second, 0.0, confidence)
    return Findings(name, certified, Nominal(answer.nominal, 0.0, name), bound, facts)


def _of_bits(answer: BitStrings, record: int, messages: int, coins: RandomSource) -> np.ndarray:
    """Log ratios of messages of one of two records: each bit of theirs differs, in the direction that tells more."""
    channel, response = answer.channel, answer.response
    p, q = channel.probabilities()
    towards = [bit.likelier[0] >= bit.likelier[1] for bit in channel.pattern]
    first = np.resize(towards, channel.bits)  # the bits of the first record; the second has the others
    sent = np.packbits(first if record == 0 else ~first)
    sign = np.where(first, 1.0, -1.0)
    as_one, as_zero = sign * np.log(p / q), sign * np.log((1 - p) / (1 - q))
    scores = np.zeros(messages)
    at_once = max(1, AT_ONCE // channel.bits)
    for start in range(0, messages, at_once):
        part = scores[start : start + at_once]
        packed = channel.send(np.repeat(sent[None], len(part), axis=0), coins)
        bits = np.unpackbits(packed, axis=1, count=channel.bits).astype(bool)
        part += np.where(bits, as_one, as_zero).sum(1)
    if response is not None:
        true, other = response.chances
        label = response.send(np.full((messages, 1), record), coins)
        scores += np.log(true / other) * ((label == 0).astype(float) - (label == 1))
    return scores


def _of_codebook(answer: Codebook, record: int, messages: int, coins: RandomSource) -> np.ndarray:
    """The same for opposite records with different labels, each message with a codebook of its own, so independent."""
    values = np.zeros((2, answer.values), np.float32)
    values[0, 0], values[1, 0] = 1, -1
    labels = np.array([0, 1])
    scores = np.zeros(messages)
    for at in range(messages):
        (number,), (index,) = reports(answer.randomise(values[[record]], labels[[record]], coins))
        first, second = answer.near_candidates(values, labels, int(number))
        scores[at] = float(index in first) - float(index in second)
    return scores


# --- claims of the literature -----------------------------------------------------------------------------------------

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


def demo(dataset: Dataset, services: Services, confidence: float = 0.95) -> list[Findings]:
    """Return all rows, on the embedded digits; ``confidence`` in [0.5, 1) is that of each row's bound."""
    rows = []
    for name, options in TRAININGS.items():
        services.progress.say(f"training: {name}")
        start = fresh(ModelSpec("mlp:100", dataset.features, dataset.classes), 0)
        run = train_start(start, dataset, TrainOptions(**SHORT, **options), Ledger(), services)
        rows.append(replace(audit(run, confidence=confidence), what=name, facts={}))
    services.progress.say("sending messages")
    messages = audit_scheme("LATENT's UER, one record", UER, 1000, confidence, SecureSource())
    return [*rows, replace(messages, facts={})]
