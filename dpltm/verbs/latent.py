"""Local privacy (LATENT): what protocols claim, schemes, the owners' messages, and what a server learns from them.

``claim`` says what a protocol certifies. ``make_scheme`` settles how records are randomised, from public records alone.
``encoding`` is the owners' release: each message is locally private under replace-one whatever the record, and encoding the
same records again is another release, so their ledger holds an entry for each time (privacy-model.md 6). ``learn`` is the
server's side, which sees no record, so nothing there costs anything more.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch

from dpltm.errors import InputError, as_flags
from dpltm.features import parse
from dpltm.features.setup import with_feature_map
from dpltm.local import CODEBOOK, PROTOCOLS
from dpltm.local.channels import channel
from dpltm.local.codebook import Codebook
from dpltm.local.scheme import (
    ROWS,
    BitStrings,
    FixedPoint,
    Scheme,
    fitted_to,
    no_statistics,
    public_statistics,
)
from dpltm.local.server import Messages, best_codebook, nearest_mean
from dpltm.networks import ModelSpec, build, for_inputs, kind_name
from dpltm.networks.evaluation import accuracy
from dpltm.networks.kind import MAX_FEATURES
from dpltm.options import parse_numbers
from dpltm.options.data import DeltaOptions
from dpltm.options.latent import EpsilonRequest, SchemeOptions, ServerOptions
from dpltm.privacy.account import Account
from dpltm.privacy.checks import check_epsilon
from dpltm.privacy.entry import Entry, Id, Lineage, lineage_of
from dpltm.privacy.ledger import Ledger
from dpltm.privacy.mechanisms import Guarantee
from dpltm.privacy.release import Secret
from dpltm.privacy.statement import PrivacyReport, statement
from dpltm.progress import SILENT, Progress
from dpltm.pruning.generation import GenerationConfig, check_trained, train_dense
from dpltm.randomness.noise import FastSource, KeyedSource
from dpltm.records import Dataset, Public, Split
from dpltm.records.notes import bounds_notes, unit_notes
from dpltm.records.settle import check_delta

# --- Claims beside what holds ---------------------------------------------------------------------------------------


def claim(request: EpsilonRequest, progress: Progress = SILENT) -> dict[str, Any]:
    """Return what a setting claims for a record and its label, and what all copies of it are worth.

    Neighbours are any two records. It is the answer of ``dpltm latent epsilon``, which needs no file.
    """
    del progress
    label = request.label_epsilon or 0.0
    bits = channel(request.protocol, request.bits or 0, request.epsilon or 0.0, request.alpha)
    return as_flags(
        {
            **{field.name: getattr(request, field.name) for field in fields(request)},
            "p": [bit.chances[0] for bit in bits.pattern],
            "q": [bit.chances[1] for bit in bits.pattern],
            "nominal": (request.epsilon or 0.0) + label,
            "certified": request.copies * (bits.certified(request.one_hot) + label),
            "notes": list(_claim_notes(request)),
        }
    )


def _claim_notes(options: EpsilonRequest) -> Iterator[str]:
    protocol = PROTOCOLS[options.protocol]
    yield "neighbours are any two records (replace-one); what a server does with the bits costs nothing more"
    if protocol.one_hot and not options.one_hot:
        yield f"{options.protocol} claims its epsilon for strings with a single 1 (`one_hot`); these are any strings"
    if protocol.caveat:
        yield protocol.caveat
    if options.label_epsilon is None:
        yield "the label is not counted: it is public, or its `label_epsilon` adds to this"
    if options.copies > 1:
        yield f"{options.copies} copies of a record are {options.copies} releases, which the claim does not count"


# --- Schemes --------------------------------------------------------------------------------------------------------

MAX_STATISTICS_RECORDS = 7000  # public records that statistics are taken from, at most

DIRECTIONS = ((0.75, 24), (1.5, 64), (3.0, 192), (math.inf, 256))
"""Directions of drawings for a codebook of less than this epsilon: best for 60,000 messages, by kmnist-7k alone."""


def check_scheme_options(options: SchemeOptions) -> tuple[FixedPoint | None, float | None]:
    """Return the bit form of values, and the epsilon of the label: None where a codebook has none, or it is public."""
    if parse(options.features) is None:
        raise InputError("`features`: none leaves values as they are, whose scale differs; take unit")
    if options.protocol == CODEBOOK.name:
        for name in ("alpha", "format", "label_epsilon"):
            if getattr(options, name) is not None:
                raise InputError(
                    f"`{name}`: of bits; a codebook has one epsilon for the whole record, so leave it out"
                )
        return None, None
    bits = parse_numbers("format", options.format or "0,0")
    if len(bits) != 2 or not all(part.is_integer() for part in bits):
        raise InputError(f"`format`: {options.format!r} is not of the form WHOLE,FRACTION, such as 4,5")
    form = FixedPoint(int(bits[0]), int(bits[1]))
    channel(options.protocol, form.length, options.epsilon or 0.0, options.alpha)
    if options.label_epsilon is None:
        raise InputError(
            "`label_epsilon` is missing: what the response that sends the label may spend, such as 1; or public, if labels"
            " are no secret"
        )
    if options.label_epsilon == "public":
        return form, None
    try:
        label = float(options.label_epsilon)
    except ValueError:
        raise InputError(f"`label_epsilon`: {options.label_epsilon!r:.40} is neither a number nor public") from None
    check_epsilon("label_epsilon", label)
    return form, label


def make_scheme(public: Dataset, options: SchemeOptions, ledger: Ledger, progress: Progress = SILENT) -> Scheme:
    """Return the scheme of owners and server, from public records of the shape, range and classes of the private ones.

    Args:
        options: features, protocol and budget. For a codebook, ``drawings`` without a number has as many directions as suit
            the budget.
    """
    (form, label), epsilon = check_scheme_options(options), options.epsilon or 0.0
    features = options.features
    if form is None and features == "drawings" and options.components is None:
        features = f"drawings:{next(count for below, count in DIRECTIONS if epsilon < below)}"
    feature_map = with_feature_map(public, features).feature_map
    assert feature_map is not None  # ``none`` was refused
    if feature_map.base.channels or options.components is not None:
        progress.say(f"fitting features to {public.name}")
        spaced = np.linspace(0, len(public.train) - 1, min(MAX_STATISTICS_RECORDS, len(public.train))).astype(int)
        records = public.train.open(Public("statistics and components of features")).x  # declared below
        feature_map = fitted_to(feature_map, records[spaced], options.components)
    width, classes = feature_map.features, public.classes
    answer: Codebook | BitStrings
    if form is None:
        answer = best_codebook(width, classes, epsilon)
    else:
        answer = BitStrings(width, classes, form, options.protocol, epsilon, options.alpha, label)
        if answer.channel.bits > MAX_FEATURES:
            raise InputError(
                f"`format`: {width:,} features make {answer.channel.bits:,} bits, and no network takes more than"
                f" {MAX_FEATURES:,}; send fewer bits of each, or take other `features`"
            )
    lineage = ledger.declare_public(public, "a scheme of local privacy")
    if feature_map.tensors:
        feature_map = replace(feature_map, lineage=lineage)
    if form is None:
        return Scheme(feature_map, *no_statistics(feature_map), answer, lineage)
    rows = public.train.open(ledger.declared(public)).x[:MAX_STATISTICS_RECORDS]
    with progress.progress(f"statistics of features of {public.name}", len(rows)) as step:
        return Scheme(feature_map, *public_statistics(feature_map, rows, step), answer, lineage)


def scheme_notes(scheme: Scheme) -> list[str]:
    """Return what a reader should know of any message of a scheme."""
    if scheme.labels_are_public:
        return ["labels are sent as they are: declared public, and not counted"]
    return []


def check_fits(scheme: Scheme, dataset: Dataset) -> None:
    """Raise InputError unless records of the dataset are of the shape, range and classes that were agreed on."""
    feature_map = scheme.feature_map
    bounds = tuple(float(bound) for bound in dataset.bounds)
    for what, field, theirs, agreed in (
        ("shape", "dataset", dataset.train.shape, feature_map.shape),
        ("bounds", "bounds", bounds, feature_map.bounds),
        ("classes", "classes", dataset.classes, scheme.answer.classes),
    ):
        if theirs != agreed:
            raise InputError(
                f"`{field}`: {dataset.name} has {what} {theirs}, and the scheme was made for {agreed}; take records like"
                " those"
            )


# --- The owners' side: messages -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """One message of each record. See :class:`dpltm.privacy.release.Release`."""

    entry: Entry
    lineage: Lineage
    scheme: Scheme
    dataset: Dataset
    progress: Progress = SILENT

    beside = ()

    def rehearse(self) -> None:
        """Refuse nothing: all that can be refused was, as it was planned."""

    def draw(self, secret: Secret, at: object) -> Iterator[np.ndarray]:
        """Yield some messages at a time, ``(n, record_bytes)`` uint8, in the order of the records.

        Guarantees:
            Each message is ``scheme.answer.certified``-locally private, on coins that follow from the secret of the release.
        """
        del at
        train, coins = self.dataset.train, KeyedSource(secret.child("coins"))
        with self.progress.progress(f"encoding the records of {self.dataset.name}", len(train)) as step:
            yield from self.scheme.messages(*train.open(secret), coins, step)


def encoding(
    scheme: Scheme, dataset: Dataset, options: DeltaOptions, ledger: Ledger, progress: Progress = SILENT
) -> Encoding:
    """Return the release of one message of each record of a dataset (one will do), to be priced or paid for."""
    check_delta(options.delta, dataset)
    check_fits(scheme, dataset)
    if dataset.names_units:
        raise InputError(
            "`unit_column`: a message is of one record, and those of a person add up; give a file with one row a person"
        )
    if dataset.part.cut in ("record", "person"):
        raise InputError(
            "`subset`: a fraction picks owners by a hash of what they hold, so whoever sends a message would tell something"
            " by sending one; encode all records, or those at places of a named dataset"
        )
    if dataset.hold_out:
        raise InputError(
            "`test`: a fraction picks owners by a hash of what they hold, as `subset` would; leave it out"
        )
    part, lineage = ledger.part(dataset), lineage_of(scheme, dataset)
    clear = ", labels declared public" if scheme.labels_are_public else ""
    words = f"one message of each record by {scheme.answer.protocol}{clear}"
    guarantee = Guarantee(scheme.answer.certified, adjacency="replace-one")
    entry = Entry("local", part, (guarantee,), words, unit=dataset.unit)
    return Encoding(entry=entry, lineage=lineage, scheme=scheme, dataset=dataset, progress=progress)


def encoding_report(plan: Encoding, account: Account, delta: float) -> PrivacyReport:
    """Return the owners' report with both figures, from the account that holds the messages."""
    notes = [
        *scheme_notes(plan.scheme),
        *bounds_notes(plan.dataset),
        "the number of messages shows how many records there are",
        *unit_notes(plan.dataset),
    ]
    return statement(account, delta, notes=notes)


# --- The server's side: networks that learn from messages -----------------------------------------------------------

COMPARED_ROWS, MIN_COMPARED_BYTES = 100, 64
"""Messages that tell two files apart, where these have as many bytes: coins of so many are never the same."""

MODEL = "mlp:128"

CHUNK = 512  # records at a time when accuracy is measured: a few hundred of bits take a quarter of a gigabyte


@dataclass(frozen=True)
class Learned:
    """A network that learned from messages.

    Attributes:
        accuracy, randomised: on public test records as they are, and, of bits, randomised like the private ones; None if
            not measured.
    """

    records: int
    spec: ModelSpec
    weights: dict[str, torch.Tensor]
    accuracy: float | None
    randomised: float | None
    seconds: float
    notes: tuple[str, ...]


def messages_of_one(lineage: Lineage) -> int:
    """Return how many messages of one record there are at most, by the ledger that they are from: at least 1.

    A record that has messages in several ledgers is not known: each ledger is another owner's.
    """
    sent: dict[Id, list[Entry]] = {}
    for entry in lineage.entries:
        if entry.kind == "local":
            sent.setdefault(entry.home, []).append(entry)
    accounts = (Account(tuple(entries), home, unit=entries[0].unit) for home, entries in sent.items())
    return max((len(piece) for account in accounts for piece in account.pieces), default=1)


def learn(
    scheme: Scheme,
    files: Sequence[np.ndarray],
    options: ServerOptions,
    test: Dataset | None = None,
    progress: Progress = SILENT,
    most: int = 1,
) -> Learned:
    """Train a network on messages, and measure accuracy where there are public test records.

    Args:
        files: messages, ``(n, record_bytes)`` uint8 each.
        test: a dataset whose test split is public.
        most: messages of one record among them (``messages_of_one``), for the notes.

    Raises:
        InputError: messages that count twice; options that are out of range, or contradict the scheme; test records that are
            not like those of the scheme; training that diverged.
    """
    answer, records = scheme.answer, sum(map(len, files))
    heads = [bytes(rows[:COMPARED_ROWS]) for rows in files if rows.size >= MIN_COMPARED_BYTES]
    if len(set(heads)) != len(heads):
        raise InputError("`messages`: two files hold the same messages; every message counts once")
    config, spec = _config(options, records, codebook=isinstance(answer, Codebook)), _spec(scheme, options)
    if test is not None:
        check_fits(scheme, test)
        if test.test is None:
            raise InputError(f"`test`: {test.name} has no test split; name a dataset that has one")
    began, rows = time.perf_counter(), np.concatenate(files)
    if isinstance(answer, Codebook):
        weights = nearest_mean(answer, rows)
    else:
        received = Messages(rows, answer)
        with progress.progress("training on messages", config.iterations) as step:
            told = lambda done, _: step(done, "no more epsilon is spent")  # noqa: E731
            weights = train_dense(spec, received, received.labels, config, told, options.dropout).predictor or {}
    seconds = time.perf_counter() - began
    check_trained(weights)
    plain, randomised = None, None
    if test is not None and test.test is not None:
        plain, randomised = _scores(scheme, spec, weights, test.test, progress)
    notes = [*bounds_notes(test, "agree on a scheme with others"), *scheme_notes(scheme)]
    notes.append(
        "the figures are those of one message; of a record that is in several they add up, in its owner's ledger"
        if most == 1
        else f"{most} messages of one record are among these, and the figures are of all of them"
    )
    if isinstance(answer, Codebook) and answer.labels == "signed":
        notes.append("classes are taken to be equally frequent: messages of this epsilon do not tell")
    return Learned(records, spec, weights, plain, randomised, seconds, tuple(notes))


def check_server_options(options: ServerOptions) -> None:
    """Raise InputError for options that are out of range or contradict each other, whatever the messages."""
    _config(options, max(1, options.batch_size), codebook=False)


def _config(options: ServerOptions, records: int, codebook: bool) -> GenerationConfig:
    if not codebook and not 1 <= options.batch_size <= records:
        raise InputError(f"`batch_size`: {options.batch_size} is not from 1 to {records}, the messages at hand")
    steps = max(1, round(options.epochs * records / options.batch_size))
    return GenerationConfig(
        iterations=steps, batch_size=options.batch_size, lr=options.lr, seed=options.seed, threads=options.threads
    )


def _spec(scheme: Scheme, options: ServerOptions) -> ModelSpec:
    """Return the network: a linear one for a codebook, since all that its messages tell is in the means of classes."""
    answer = scheme.answer
    if isinstance(answer, Codebook):
        if options.model is not None:
            raise InputError(
                "`model`: messages of a codebook tell the means of classes, hence a linear network; leave it out"
            )
        return ModelSpec("mlp", answer.values, answer.classes)
    name = options.model or MODEL
    if kind_name(name) not in for_inputs("vectors"):
        raise InputError(f"`model`: {name} does not take bits; take mlp:WIDTH,WIDTH,..., such as mlp:128")
    return ModelSpec(name, answer.channel.bits, answer.classes)


def _scores(
    scheme: Scheme, spec: ModelSpec, weights: dict[str, torch.Tensor], test: Split, progress: Progress
) -> tuple[float, float | None]:
    """Accuracies on public test records: as they are, and, of bits, randomised as the private ones were."""
    answer, model, plain, sent = scheme.answer, build(spec), list[np.ndarray](), list[np.ndarray]()
    model.load_state_dict(weights)
    opened = test.open(Public("accuracy of what a server learned, which has no ledger"))
    with progress.progress("features of the test records", len(test)) as step:
        for start in range(0, len(test), ROWS):
            x, y = (values[start : start + ROWS] for values in opened)
            scores = scheme.scores(x)
            if isinstance(answer, Codebook):
                plain.append(scores)
            else:
                plain.append(answer.without_coins(scores, y))
                sent.append(answer.randomise(scores, y, FastSource()))
            step(min(start + ROWS, len(test)))
    labels, rows = torch.tensor(opened.y), np.concatenate(plain)  # labels as they are, not those of messages
    if isinstance(answer, Codebook):
        return accuracy(model, torch.from_numpy(rows), labels, chunk=CHUNK), None
    as_is, randomised = Messages(rows, answer, randomised=False), Messages(np.concatenate(sent), answer)
    return accuracy(model, as_is, labels, chunk=CHUNK), accuracy(model, randomised, labels, chunk=CHUNK)
