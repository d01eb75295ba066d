"""Synthetic records as a stage: what they cost, the records, and how well a network trained on them does on real ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
from torch import Tensor

from dpltm.errors import InputError
from dpltm.features.inputs import Services, tensors
from dpltm.features.normalisation import NORM
from dpltm.features.setup import check_quantities
from dpltm.networks import ModelSpec, build, model_spec
from dpltm.networks.evaluation import accuracy
from dpltm.options import check_choices
from dpltm.options.synthesize import SynthesizeOptions
from dpltm.privacy.account import Account, Planned, check_private
from dpltm.privacy.calibration import calibrate_noise
from dpltm.privacy.checks import check_count, check_epsilon
from dpltm.privacy.entry import RECORD, Entry, Lineage
from dpltm.privacy.ledger import Book, Ledger
from dpltm.privacy.mechanisms import Adjacency, GaussianRelease, NoisySgd
from dpltm.privacy.release import Secret, pay, price
from dpltm.privacy.statement import PrivacyReport, statement
from dpltm.pruning.generation import GenerationConfig, train_dense
from dpltm.randomness.noise import KeyedSource
from dpltm.records import Dataset, from_arrays, unit_range, unscale
from dpltm.records.checks import check_delta
from dpltm.records.notes import feature_notes, public_input_notes, unit_notes
from dpltm.records.settle import MAX_NAME
from dpltm.records.synthetic import SENSITIVITY, Moments, release_moments, synthetic_records

MAX_VALUES = 2**28
"""Values of all synthetic records together: a gigabyte of them."""

PASSES, BATCH = 20, 400
"""How long the network that is scored is trained: passes over the synthetic records, and records per step."""


@dataclass(frozen=True, kw_only=True)
class MomentsRelease:
    """The query for moments of private records, with its price: a ``Release``.

    Attributes:
        dataset: the private records.
        entry: what will be spent.
        services: where features come from.
    """

    dataset: Dataset
    entry: Entry
    services: Services

    @property
    def lineage(self) -> Lineage:
        """Of the records' columns."""
        return self.dataset.lineage

    @property
    def mechanism(self) -> GaussianRelease:
        """Of the query."""
        return cast(GaussianRelease, self.entry.mechanisms[0])

    def check(self) -> None:
        """See ``Release``."""

    def draw(self, secret: Secret, at: Any) -> Iterator[Moments]:
        """Yield the noisy answer. Arguments as ``Release``."""
        del at
        yield release_moments(
            *tensors(self.dataset.train, self.dataset, self.services),
            self.dataset.classes,
            noise_multiplier=self.mechanism.noise_multiplier,
            adjacency=self.mechanism.adjacency,
            noise=KeyedSource(secret.child("noise")),
        )


@dataclass(frozen=True, kw_only=True)
class Score:
    """Train on synthetic, test on real.

    Attributes:
        model: the network that was trained, without noise, on the synthetic records alone.
        accuracy: on the test split.
        records: of the test split.
    """

    model: str
    accuracy: float
    records: int


@dataclass(frozen=True, kw_only=True)
class SyntheticRecords:
    """Synthetic records, and what they cost.

    Attributes:
        dataset: the records, with their lineage: every stage takes it.
        privacy: the report on the private records.
        ledger: that holds the release.
        mechanism: of the release.
        score: of a network trained on them; None where there is no test split.
    """

    dataset: Dataset
    privacy: PrivacyReport
    ledger: Ledger = field(repr=False)
    mechanism: GaussianRelease
    score: Score | None = None

    @property
    def lineage(self) -> Lineage:
        """The release that they are post-processing of, with all that it is made of."""
        return self.dataset.lineage

    @property
    def x(self) -> np.ndarray:
        """Features, ``(n, ...)`` float32, shaped and scaled as the private ones."""
        return self.dataset.train.x

    @property
    def y(self) -> np.ndarray:
        """Labels, ``(n,)`` int64."""
        return self.dataset.train.y


@dataclass(frozen=True, kw_only=True)
class Synthesis:
    """What is asked for, checked; nothing is spent yet.

    Attributes:
        dataset: the private records.
        options: how many, and for what epsilon.
        ledger: that pays.
        services: told how far it is.
        spec: the network that is scored.
    """

    dataset: Dataset
    options: SynthesizeOptions
    ledger: Ledger
    services: Services
    spec: ModelSpec

    def plan(self, book: Book, known: Entry | None = None) -> MomentsRelease:
        """Return the release, calibrated to what a ledger leaves of the budget.

        Args:
            book: of the ledger.
            known: the entry of a release that goes on; there is none, since it is drawn at once.

        Raises:
            InputError: records that are public, or declared apart.
            BudgetError: the ledger leaves too little of the budget.
        """
        del known
        dataset, options, part = self.dataset, self.options, self.ledger.part(self.dataset)
        account, adjacency = book.account(dataset.lineage), cast(Adjacency, options.adjacency)
        check_private(account, part)
        assert options.epsilon is not None
        self.services.progress.say(f"calibrating noise to epsilon {options.epsilon:g} at delta {options.delta:g}")
        bound = SENSITIVITY * (2.0 if adjacency == "replace-one" else 1.0)
        draft = NoisySgd(1.0, 1, 1.0, bound, adjacency=adjacency)
        noise = calibrate_noise(options.epsilon, options.delta, draft, Planned(account, part)).noise_multiplier
        words = "counts, sums and second moments of norm-bounded records, for synthetic ones"
        entry = Entry("release", part, (GaussianRelease(noise, bound, adjacency=adjacency),), words, unit=RECORD)
        return MomentsRelease(dataset=dataset, entry=entry, services=self.services)

    def priced(self) -> tuple[MomentsRelease, PrivacyReport]:
        """Return what would be released, and what the report would be."""
        release = self.plan(self.ledger.book)
        return release, self._report(price(release, self.ledger.book))

    def made(self) -> SyntheticRecords:
        """Pay for the moments, and return records drawn from them, without a score.

        Raises:
            InputError, BudgetError: as :meth:`plan`; or the ledger protects records of the test split.

        Guarantees:
            The release is on record before any noise is drawn. The records are post-processing of it, and of public facts:
            the bounds, the number of classes and the shape of a record.
        """
        dataset, options = self.dataset, self.options

        def planned(book: Book, known: Entry | None) -> MomentsRelease:
            release = self.plan(book, known)
            book.account(release.lineage).check_budget((release.entry,))
            self.ledger.exclude(dataset)  # now that nothing is refused any more; and then it is planned once more
            return release

        paid = pay(planned, self.ledger)
        self.services.progress.say(f"releasing moments of {dataset.features} features")
        drawn, labels = draw_records(next(paid.values), dataset, options.records_out, options.seed)
        made = from_arrays(
            unscale(drawn.numpy(), dataset.bounds).reshape(-1, *dataset.row_shape),
            labels.numpy(),
            bounds=dataset.bounds,
            classes=dataset.classes,
            name=f"synthetic {dataset.name}"[:MAX_NAME],
            for_training=False,
        )
        facts: dict[str, Any] = {"records_origin": "described", "classes_origin": "described"}
        return SyntheticRecords(
            dataset=replace(made, synthetic=True, lineage=paid.lineage, **facts),
            privacy=self._report(paid.account),
            ledger=self.ledger,
            mechanism=cast(GaussianRelease, paid.entry.mechanisms[0]),
        )

    def scored(self, made: SyntheticRecords) -> SyntheticRecords:
        """Return the records with the score of a network that was trained on them, where there is a test split.

        The training is ordinary: it is post-processing, and nothing but the test split is looked at beside.

        Args:
            made: the records.
        """
        dataset, spec, services = self.dataset, self.spec, self.services
        if dataset.test is None:
            return made
        x, y = tensors(made.dataset.train, made.dataset, services)
        batch = min(BATCH, len(y))
        config = GenerationConfig(
            rounds=1, iterations=max(1, PASSES * len(y) // batch), batch_size=batch, seed=self.options.seed
        )
        with services.progress.progress("training on synthetic records", config.iterations) as step:
            trained = train_dense(spec, x, y, config, lambda done, _: step(done))
        model = build(spec)
        model.load_state_dict(trained.predictor or {})
        found = accuracy(model, *tensors(dataset.test, dataset, services))
        return replace(made, score=Score(model=spec.text, accuracy=found, records=len(dataset.test)))

    def _report(self, account: Account) -> PrivacyReport:
        dataset, options = self.dataset, self.options
        notes = [*public_input_notes(dataset), *unit_notes(dataset), *feature_notes(dataset, options.delta)]
        notes.append(
            "the synthetic records are post-processing of what was spent: whatever is made of them costs these records"
            " nothing more, and using them beside other releases from these records adds up"
        )
        if dataset.test is not None:
            notes.append("accuracy is measured on the test split, which is declared separate from the private records")
        return statement(account, options.delta, adjacency=cast(Adjacency, options.adjacency), notes=notes)


def settle(dataset: Dataset, options: SynthesizeOptions, ledger: Ledger, services: Services) -> Synthesis:
    """Check what is asked for, before a ledger is looked at.

    Args:
        dataset: the private records.
        options: how many, and for what epsilon.
        ledger: that pays.
        services: told how far it is.

    Raises:
        InputError: options out of range; records that may not be used like that.
    """
    check_choices(options)
    if options.epsilon is None:
        raise InputError("`epsilon` is missing: what may be spent on these records, such as 1")
    check_epsilon("epsilon", options.epsilon)
    check_count("records_out", options.records_out)
    if not 0 <= options.seed < 2**63:
        raise InputError(f"`seed`: {options.seed} is not between 0 and 2^63 - 1")
    if dataset.synthetic:
        raise InputError(
            f"`dataset`: records of {dataset.name} are synthetic already, and cost nothing more; name the private ones"
        )
    check_moments(dataset, "`dataset`", "make tickets by dpltm generate `criterion` dp-train")
    if options.records_out * dataset.features > MAX_VALUES:
        raise InputError(
            f"`records_out`: {options.records_out:,} records of {dataset.features:,} features are more than a gigabyte; ask"
            f" for at most {MAX_VALUES // dataset.features:,}"
        )
    check_delta(options.delta, dataset)
    spec = model_spec(options.model, dataset)
    return Synthesis(dataset=dataset, options=options, ledger=ledger, services=services, spec=spec)


MAX_FEATURES = 8_192
"""Of records whose second moments are released: half a gigabyte of them, several times over."""

RECORDS = 20_000
"""Synthetic records where nobody says how many."""


def check_moments(dataset: Dataset, taker: str, fix: str) -> None:
    """Raises InputError for records whose moments are not released.

    Args:
        dataset: the records.
        taker: what messages begin with, such as "`criterion` dp-synthetic".
        fix: what to do about it.
    """
    check_quantities(dataset, taker, fix)
    if dataset.features > MAX_FEATURES:
        raise InputError(
            f"{taker}: takes at most {MAX_FEATURES} features, since it releases their number squared; {dataset.name} has"
            f" {dataset.features}: {fix}"
        )


def draw_records(moments: Moments, dataset: Dataset, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Synthetic records as a network gets them: post-processing of ``moments``.

    Args:
        moments: of ``dataset``, released.
        dataset: says the public range of its features.
        count: how many.
        seed: decides the draws.
    """
    value_range = unit_range(dataset.bounds) if dataset.feature_map is None else (-NORM, NORM)
    return synthetic_records(moments, count, seed, value_range=value_range)
