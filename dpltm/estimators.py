"""The scikit-learn face of ``dpltm.train``, ``select`` and ``predict``: a classifier and a regressor.

A fit is one ``dpltm.train``, whose run is ``run_``. scikit-learn copies an estimator before each fit of a cross-validation
or a grid search, and throws the copies away. Each of them read the records, so clones share what they spent, and
``privacy_`` is everything together; ``epsilon`` is that of one fit.

Example:
    >>> import numpy as np, dpltm
    >>> draw = np.random.default_rng(5)
    >>> X = draw.random((400, 3))
    >>> y = np.where(X[:, 0] > 0.5, "high", "low")
    >>> classifier = dpltm.TicketClassifier(epsilon=2, bounds=(0, 1), classes=["high", "low"], n_records=395)
    >>> classifier.fit(X[5:], y[5:]).predict_proba(X[:5]).shape
    (5, 2)
    >>> classifier.privacy_.certified.epsilon <= 2
    True
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from traceback import walk_stack
from typing import Any, ClassVar, Self, cast

import numpy as np
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils import Tags, check_array, check_consistent_length, check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from dpltm import api
from dpltm.errors import DataError, InputError, named, naming, whole_number
from dpltm.features.inputs import Services
from dpltm.networks.own_network import check_scored_rows
from dpltm.networks.skill import predicted
from dpltm.options import EPSILON, Options, Range, arguments, option
from dpltm.options.select import SelectOptions
from dpltm.options.train import TrainOptions
from dpltm.privacy.account import Account, check_declared, check_private
from dpltm.privacy.entry import NO_LINEAGE, RECORD, Entry, Lineage, Secret, lineage_of
from dpltm.privacy.ledger import Begun, Book, Ledger, of_process
from dpltm.privacy.mechanisms import Adjacency, Guarantee
from dpltm.privacy.release import Once, pay
from dpltm.privacy.statement import PrivacyReport, statement
from dpltm.randomness.noise import KeyedSource, two_sided_geometric
from dpltm.records.dataset import Dataset, RawSplit
from dpltm.records.load import from_arrays
from dpltm.records.notes import NO_TEST
from dpltm.records.schema import Schema, as_schema
from dpltm.records.settle import IN_SCHEMA, check_none
from dpltm.records.split import RecordSet, Rows
from dpltm.records.tables import Table, is_frame, read_by_schema
from dpltm.records.units import checked_units, text_of
from dpltm.training.artifacts import Run, TicketSet, Winner, set_of, starting_point
from dpltm.verbs import select as select_verb
from dpltm.verbs.evaluate import ROWS, predict
from dpltm.verbs.train import OWN_NOTE, plan, settle, train_start

GRID = 1024
"""Steps of a value that a paid score sums."""


class _Price(Options):
    """What scores on private records are paid with. For less than the least a figure is nothing but noise."""

    score_epsilon: float | None = option(
        None, "Epsilon of each score, all its sums together.", "E", within=Range(0.01, EPSILON.high)
    )


NO_LIMIT = (
    "`noise_multiplier` was given, so `epsilon` limited nothing: what the fits cost is what their noise comes to"
)

TRAINED = (
    "some of these records are protected by a fit or a paid score of this estimator or a clone: predictions for them, and"
    " figures made of these (ROC curves, calibration), are exact, private, and not covered by `privacy_`"
)

CROSS_VALIDATION = ("sklearn.model_selection.", "sklearn.calibration")
"""Modules of scikit-learn that fit estimators to parts of some records, and look at predictions for the others."""

UNLABELLED = "no_validation"
"""In the place of labels, where scikit-learn checks records alone."""


class UncoveredWarning(UserWarning):
    """What is done with private records is not covered by the guarantee."""


_TRAINING = {item.name for item in fields(TrainOptions)} - {"features", "unit"}
"""Parameters that are options of ``dpltm.train`` and mean the same here."""

_NAMES = {
    "x": "X", "dataset": "X", "subset": "X", "input": "X", "records": "n_records", "seed": "random_state",
    "eps1": "select_epsilon", "target": "tickets", "unit_column": "units",
}  # fmt: skip
"""Names of parameters here, by the names that the verbs have for them."""

_LOCK = threading.RLock()
"""Of what estimators of this process spent."""


@dataclass(eq=False)
class Spent:
    """Spending of an estimator and its clones, and their fits' notes on public inputs, each once; shared by all."""

    lineage: Lineage = NO_LINEAGE
    notes: dict[str, None] = field(default_factory=dict)
    looked: bool = False  # whether a score was measured exactly
    protected: list[RecordSet] = field(default_factory=list, repr=False)  # of each fit and paid score, as it begins
    process: int = field(default_factory=os.getpid)

    def __deepcopy__(self, memo: object) -> Spent:
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "protected": [], "process": 0}  # what tells records stays here

    @property
    def is_elsewhere(self) -> bool:
        """Whether records and ledger stayed behind, in the process that it was pickled in."""
        return self.process != os.getpid()

    def add(self, lineage: Lineage, *notes: str) -> None:
        with _LOCK:
            self.lineage |= lineage
            self.notes = {**self.notes, **dict.fromkeys(notes)}

    def protects(self, rows: Rows, *, of_persons: bool = False) -> bool:
        """Return whether a fit or a paid score is, or was, of some of these records, or of the persons whose they are."""
        return any(records.has_any(rows, of_persons=of_persons) for records in self.protected)

    @contextlib.contextmanager
    def protecting(self, dataset: Dataset, ledger: Ledger, *, rows_coincide: bool) -> Iterator[None]:
        """A fit of these records, which stay protected if it may have paid, also where it failed after that."""
        records = RecordSet(dataset.rows)
        part = ledger.part(dataset)
        before = len(ledger.entries)
        with _LOCK:  # a score in another thread comes before, or sees these records
            check_private(ledger.account(self.lineage), part)
            was_fitted = any(entry.part.snapshot == part.snapshot for entry in self.lineage.paid)
            is_known = was_fitted or (not rows_coincide and RecordSet.have_all(self.protected, dataset.rows))
            if self.looked and not is_known:
                raise InputError(
                    "`X`: an exact score was measured, and these are other records than those of the fits before: whether"
                    " it was measured on some of them cannot be told, since a step in front may have changed their values;"
                    " for other people make a new estimator, and no clone; to cross-validate give `score_epsilon`"
                )
            self.protected.append(records)
        try:
            yield
        finally:
            with _LOCK:
                if len(ledger.entries) == before:
                    self.protected.remove(records)


def noisy_sums(values: np.ndarray, epsilon: float, secret: Secret) -> np.ndarray:
    """Return sums of values, whole numbers from 0 to ``GRID``, ``(sums, n)``, with noise for ``epsilon`` a step."""
    source = KeyedSource(secret.child("score"))
    return np.array([int(total) + two_sided_geometric(source, epsilon) for total in values.sum(1)]) / GRID


def _warn(text: str) -> None:
    """Warn the first caller outside of this package, scikit-learn and joblib."""
    modules = enumerate(_modules(), start=1)
    level = next(level for level, name in modules if name.split(".")[0] not in ("dpltm", "sklearn", "joblib"))
    warnings.warn(UncoveredWarning(text), stacklevel=level)


def _modules() -> list[str]:
    """Return the modules of the functions that are being called, from the caller of this one outward."""
    return [str(frame.f_globals.get("__name__")) for frame, _ in walk_stack(sys._getframe(1))]


def _refuse(others: Mapping[str, Any]) -> None:
    """Refuse keywords that there are none of: scikit-learn is to see that ``sample_weight`` is no parameter of a method."""
    if others:
        raise InputError(
            f"`{min(others)}`: there are `X`, `y` and `units`, and each record counts alike, since the guarantee bounds what"
            " one can do; leave it out, or give a classifier `class_weight`"
        )


def _is_rescaled(x: np.ndarray) -> bool:
    """Tell whether all columns have mean 0 and deviation 1, or ends 0 and 1 and values that hardly coincide."""
    if x.dtype.kind != "f" or len(x) < 3:
        return False
    x = x[:, x.min(0) < x.max(0)]
    with np.errstate(over="ignore", invalid="ignore"):
        if np.allclose(x.mean(0), 0, atol=1e-5) and np.allclose(x.std(0), 1, atol=1e-5):
            return x.shape[1] > 0
    ends = (x.min(0) == 0) & np.isclose(x.max(0), 1, atol=1e-12)
    return bool(ends.all()) and any(len(np.unique(column)) > 0.9 * len(x) for column in x.T)


def column_ends(bounds: Any, features: int) -> np.ndarray | None:
    """Return the low and the high end of each column, ``(2, features)``; None where no column has bounds of its own."""
    if not isinstance(bounds, (tuple, list, np.ndarray)) or not any(map(np.ndim, bounds)):
        return None
    with contextlib.suppress(TypeError, ValueError), np.errstate(over="ignore", invalid="ignore"):
        low, high = ends = np.stack([np.broadcast_to(np.asarray(end, np.float64), features) for end in bounds])
        if (np.isfinite(high - low) & (low < high)).all():
            return ends
    raise DataError(
        "`bounds`: not two arrays (low, high), finite, low first, not too far apart, with a number for each of the"
        f" {features} columns; pass the public range of the features"
    )


def in_unit_range(x: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return records with each column in the range 0 to 1, ``(n, features)``, by the ends of this column alone."""
    low, high = ends
    with np.errstate(over="ignore"):  # far outside is where the clip puts it
        return np.clip((x - low) / (high - low), 0.0, 1.0)


@dataclass(eq=False, repr=False, kw_only=True)
class TicketEstimator(BaseEstimator):
    """Common part of both estimators: parameters, one training, scores, and the account of all of them."""

    epsilon: float | None = 1.0
    delta: float = 1e-5
    noise_multiplier: float | None = None
    bounds: tuple[Any, Any] | np.ndarray | None = None
    schema: str | Path | Schema | None = None
    n_records: int | None = None
    tickets: TicketSet | Winner | None = None
    round: int | None = None
    select_epsilon: float | None = None
    model: str | None = None
    features: str | None = "auto"
    head: str | None = None
    filter: str = "clip"
    clip_norm: float = 1.0
    epochs: float | None = None
    batch_size: float | None = None
    lr: float | None = None
    optimizer: str = "sgd"
    schedule: str | None = None
    centre: float | None = None
    noise: str = "secure"
    adjacency: str = "add-remove"
    per_unit: int | None = None
    rows_coincide: bool = False
    ledger: Ledger | None = None
    random_state: int | np.random.RandomState | None = None
    name: str = "records"
    unit: str | None = None
    score_epsilon: float | None = None

    _numeric: ClassVar[bool] = False  # whether targets are numbers, not labels
    # returns labels as a dataset has them, and what is declared of them; keeps what predictions need to know
    _encoded: ClassVar[Callable[..., tuple[np.ndarray, dict[str, Any]]]]
    # returns targets as a dataset has them; values from 0 to 1, ``(sums, n)``; and the figure that their means make
    _judged: ClassVar[Callable[..., tuple[np.ndarray, np.ndarray, Callable[[np.ndarray], float]]]]

    def __post_init__(self) -> None:
        self._spent = Spent()

    def __sklearn_clone__(self) -> TicketEstimator:
        twin: TicketEstimator = super().__sklearn_clone__()
        twin._spent = self._spent
        return twin

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        if "run_" in state:  # as in all artifacts; what was spent goes along, and copies in this process share it
            state = {**state, "run_": replace(state["run_"], ledger=None, seconds=0.0)}
        return state

    def _naming(self) -> contextlib.AbstractContextManager[None]:
        """A block whose refusals name parameters of an estimator."""
        network = "model" if self.tickets is None else "tickets"
        return naming(**_NAMES, ticket=network, model=network)

    @property
    def ledger_(self) -> Ledger:
        """Ledger that pays for this estimator."""
        if self.ledger is None:
            if self._spent.is_elsewhere:
                raise InputError(
                    "`ledger`: this estimator was pickled, and its ledger stayed behind: what it spends here would be"
                    " entered nowhere that you see; leave `n_jobs` 1, use threads (joblib.parallel_backend), or give a"
                    " `ledger` in a file, which processes share: dpltm.tickets.open_ledger(path)"
                )
            return of_process(self.__dict__.get("unit_", RECORD))
        if not isinstance(self.ledger, Ledger):
            raise InputError("ledger", self.ledger, "a dpltm.Ledger, such as dpltm.tickets.open_ledger(path) opens")
        return self.ledger

    # training

    def fit(self, X: Any, y: Any, units: Any = None, **others: Any) -> Self:
        """Train under differential privacy.

        Args:
            X: ``(n, columns)``: an array, or a data frame of pandas or polars; finite numbers.
            y: labels ``(n,)``; of a regressor targets, finite numbers.
            units: whose each record is, ``(n,)`` whole numbers or texts: then all records of a person are protected
                together, and ``n_records`` is the number of persons.

        Raises:
            ValueError: bad input (``dpltm.errors.InputError``), before anything is spent.
            BudgetError: a budget in the ledger does not allow it.
        """
        before = dict(vars(self))
        try:
            with self._naming():
                _refuse(others)
                self._check_scores(units)
                x, targets = self._validated(X, y, reset=True)
                dataset = self._dataset(x, targets, units)
                self.unit_ = dataset.noun
                try:
                    self.run_ = self._train(dataset)
                except Begun:  # another worker was first with a new ledger file; nothing was entered here
                    self.run_ = self._train(dataset)
                self.ticket_ = self.run_.mask
        except BaseException:
            self.__dict__ = before  # what the last fit learned stays whole
            raise
        return self

    def _check_scores(self, units: Any) -> None:
        """Refuse a fit that scikit-learn's cross-validation, search or calibration asks for, and could not score."""
        price = _Price(score_epsilon=self.score_epsilon).score_epsilon
        if not any(name.startswith(CROSS_VALIDATION) for name in _modules()):
            return
        if price is None:
            raise InputError(
                "`score_epsilon` is missing: cross-validation trains on the records of all parts, so scores on the part that"
                " is left out are private; give it to pay for each, or fit once and call `score` on records held out"
            )
        if units is not None and self.get_metadata_routing().score.requests.get("units") is not True:
            raise InputError(
                "`units`: cross-validation would not hand them to `score`; call set_score_request(units=True), with"
                " sklearn.set_config(enable_metadata_routing=True)"
            )

    def _dataset(self, x: Any, y: np.ndarray, units: Any) -> Dataset:
        """Return records with all that parameters say of them; keep what predictions need to know."""
        if not isinstance(self.tickets, TicketSet | Winner | None):
            raise InputError("tickets", self.tickets, "a set or a winner", "open its folder: dpltm.tickets.load(path)")
        if self.tickets is not None and self.model is not None:
            raise InputError("`tickets`: a set decides the network; leave model= out")
        self._schema = schema = as_schema(self.schema)
        self._label = None if schema is None else schema.labels
        self._ends = None if schema is not None else column_ends(self.bounds, x.shape[1])
        self._warned = list[str]()  # scikit-learn lets no attribute of an estimator be set as it predicts
        targets, declared = self._encoded(y)
        values, as_known = self._read(x)
        bounds: Any = self.bounds if self._ends is None else (0.0, 1.0)
        more: dict[str, Any] = {"of_table": True}
        if schema is not None:
            check_none(IN_SCHEMA, bounds=self.bounds)
            bounds = 0.0, 1.0
            more |= {"schema": schema, "lineage": lineage_of(schema)}
        else:
            more["columns"] = tuple(getattr(self, "feature_names_in_", ())) or None
            if _is_rescaled(x):
                _warn("these records look scaled by what was measured on just them (StandardScaler, MinMaxScaler), which"
                      " is not covered; give their public range as `bounds` instead")  # fmt: skip
        dataset = from_arrays(
            values, targets, **declared, bounds=bounds, records=self.n_records, units=units,
            unit=self.unit, rows_coincide=self.rows_coincide, name=self.name, for_training=not self._numeric,
        )  # fmt: skip
        return replace(dataset, train=replace(dataset.train, rows=as_known(dataset.rows)), **more)

    def _read(self, x: Any) -> tuple[np.ndarray, Callable[[Rows], Rows]]:
        """Return records as dpltm takes them, each by itself, and what makes rows known by their values as they came."""
        if self._schema is not None:
            raw = read_by_schema(Table(x, self._schema, "`X`"), labelled=False)
            return raw.x, lambda rows: rows.known_as(cast(Rows, raw.rows))
        if self._ends is None:
            return x, lambda rows: rows
        return in_unit_range(x, self._ends), lambda rows: rows.known_by(np.ascontiguousarray(x))

    def _options(self) -> dict[str, Any]:
        options = {name: value for name, value in self.get_params(deep=False).items() if name in _TRAINING}
        options["seed"] = int(check_random_state(self.random_state).randint(2**31 - 1))
        if self.features != "auto":
            options["features"] = self.features or ("none" if self.tickets is None else None)
        if self.noise_multiplier is not None and self.epsilon == TicketEstimator.epsilon:
            options["epsilon"] = None  # nobody said it; a training refuses any other beside noise
        return options

    def _train(self, dataset: Dataset) -> Run:
        options = arguments(TrainOptions, self._options())
        ledger = self.ledger_
        with self._spent.protecting(dataset, ledger, rows_coincide=self.rows_coincide):
            ticket: Any = api.own_network(self.model, {}) if self.tickets is None else self.tickets
            if self.select_epsilon is not None:
                ticket = self._drawn(dataset, ledger, options)
            number = None if self.round is None else whole_number("round", self.round)
            start, prepared = starting_point(ticket, dataset, options, round=number)
            run = train_start(start, prepared, options, ledger, own=True)
            # `score` measures what NO_TEST misses, and `privacy_` counts what OWN_NOTE says is left out
            notes = [note for note in cast(PrivacyReport, run.privacy).notes if note not in (NO_TEST, OWN_NOTE)]
            notes += [] if self.noise_multiplier is None else [NO_LIMIT]
            self._spent.add(run.lineage, *(named(note, lambda name: f"`{_NAMES.get(name, name)}`") for note in notes))
            return run

    def _drawn(self, dataset: Dataset, ledger: Ledger, options: TrainOptions) -> Winner:
        if self.tickets is None or self.round is not None:
            raise InputError("`select_epsilon`: draws one ticket of a set; give `tickets`, and leave `round` out")
        tickets = set_of(self.tickets)
        drawing = {"eps1": self.select_epsilon, "score": "additive", "delta": self.delta, "adjacency": self.adjacency}
        drawing_options = arguments(SelectOptions, drawing | {"per_unit": self.per_unit})
        draw = select_verb.plan(tickets, dataset, drawing_options, ledger, Services())
        # refuse here what the training would be refused for, had the sparsest ticket won: that is public
        book = Book.new(unit=ledger.unit).adding([draw.entry], ["0" * 64])
        start, prepared = starting_point(tickets, dataset, options, round=draw.candidates[-1].round)
        planned = plan(settle(start, prepared, options, ledger, Services()), book)
        ledger.account(tickets.lineage).check_budget((draw.entry, planned.entry))
        winner = select_verb.select(draw)
        self._spent.add(winner.lineage)
        return winner

    def _validated(self, X: Any, y: Any = UNLABELLED, *, reset: bool = False) -> Any:
        """Return records, and labels where there are any, as scikit-learn checks them; a data frame by a schema as it is."""
        if not reset:
            check_is_fitted(self)
        labels = np.asarray(y)
        if labels.dtype == object and labels.ndim and None in (texts := list(map(text_of, labels.flat))):
            place = texts.index(None)
            raise InputError(f"`y`: no label at record {place} (counted from 0); leave out records that have none")
        if self.schema is None:
            try:
                return validate_data(
                    self, X, y, reset=reset, **({} if y is UNLABELLED else {"y_numeric": self._numeric})
                )
            except ValueError as error:
                strange = ("could not convert", "Input X contains NaN", "NAType")
                if is_frame(X) and any(words in str(error) for words in strange):
                    raise InputError(
                        "`X`: holds words, dates or holes; give `schema`, which says what columns hold (dpltm datasets"
                        " schema drafts one): values that are filled in or encoded by the records themselves tell of them"
                    ) from None
                raise
        if not is_frame(X):
            raise InputError("`X`: `schema` goes with a data frame, whose columns have names, and this is none")
        if reset:
            validate_data(self, X, skip_check_array=True)
        if y is UNLABELLED:
            return X
        check_consistent_length(X, y)
        return X, check_array(y, ensure_2d=False, dtype="numeric") if self._numeric else column_or_1d(y)

    # what was learned

    def _outputs(self, records: np.ndarray, *, alike: bool = False) -> np.ndarray:
        """Return the network's outputs before softmax, ``(n, classes)`` float64, ``alike`` as of :func:`predict`."""
        return predict(self.run_, records, alike=alike).outputs.astype(np.float64)

    def _predicted(self, X: Any) -> np.ndarray:
        """Return outputs; warn, once a fit, of records that a fit or paid score of this estimator, or of a clone, is of."""
        X = self._validated(X)
        with self._naming():
            records, as_known = self._read(X)
            compared = not (self.rows_coincide or self._warned)
            if compared and self._spent.protects(as_known(Rows(records, np.zeros(len(records))))):
                self._warned.append(TRAINED)
                _warn(TRAINED)
            return self._outputs(records)

    def score(self, X: Any, y: Any, units: Any = None, **others: Any) -> float:
        """Return accuracy, or R^2 of targets within their bounds, from -1 to 1: exact on records that no release was made
        from; with ``score_epsilon`` with noise, and paid for.

        Args:
            X, y: ``(n, columns)`` and ``(n,)``.
            units: whose each record is, where ``fit`` was told: no person may be in both.

        Raises:
            ValueError: a label that ``fit`` did not know; or records that are private, without ``score_epsilon``.
        """
        _refuse(others)
        X, y = self._validated(X, y)
        with self._naming():
            price = _Price(score_epsilon=self.score_epsilon).score_epsilon
            records, as_known = self._read(X)
            targets, values, figure = self._judged(self._outputs(records, alike=price is not None), y)
            dataset = api.held_out(self.run_, records, targets, "the scored records").tested()
            rows, persons = as_known(dataset.rows), None
            if self.run_.config.get("of_persons"):
                if units is None:
                    raise InputError("`units` is missing: whose each record is, since the run protects persons")
                persons = checked_units(RawSplit(X, y, "the scored records", units=np.asarray(units)))
                rows = rows.owned(persons, self.unit_)
            scored = replace(dataset, train=replace(dataset.train, rows=rows))
            if price is not None:
                return figure(self._paid_means(scored, values, persons, price))
            self._declare_apart(scored)
            return figure(values.mean(1))

    def _paid_means(self, scored: Dataset, values: np.ndarray, persons: np.ndarray | None, price: float) -> np.ndarray:
        """Return means of values from 0 to 1 a record, ``(sums, n)``, with noise, for ``price`` together.

        Guarantees:
            Each value is rounded to a whole number of ``1 / GRID`` first, and so is the mean of those of a person. So one
            record, or person, more, less or another changes each sum by at most ``GRID`` of those, and two-sided
            geometric noise of epsilon / (sums GRID) makes each (epsilon / sums)-DP, exactly (docs/privacy-model.md 5.8).
        """
        check_scored_rows(self.run_.spec, ROWS)
        steps = np.rint(np.clip(values, 0.0, 1.0) * GRID).astype(np.int64)
        if persons is not None:
            _, whose, counts = np.unique(persons, return_inverse=True, return_counts=True)
            sums = np.zeros((len(counts), len(steps)), dtype=np.int64)
            np.add.at(sums, whose, steps.T)
            steps = (sums // counts[:, None]).T
        ledger = self.ledger_
        mechanism = Guarantee(price, adjacency=cast(Adjacency, self.adjacency))
        words = "a score: sums with two-sided geometric noise"
        entry = Entry("release", ledger.part(scored), (mechanism,), words, unit=self.unit_)
        release = Once(entry, self.run_.lineage, partial(noisy_sums, steps, price / (len(values) * GRID)))
        paid = pay(lambda _book, _known: release, ledger)
        with _LOCK:
            self._spent.protected.append(RecordSet(scored.rows))
        self._spent.add(paid.lineage, "how many records `score` was measured on is treated as public")
        return np.asarray(next(paid.values) / steps.shape[1])

    def _declare_apart(self, scored: Dataset) -> None:
        """Declare records apart from the people of the ledger; refuse those that a release is of, as far as is known."""
        spent = self._spent
        if spent.is_elsewhere:
            raise InputError(
                "`score`: this estimator was pickled, so nothing here knows the records that it was fitted to; where these"
                " are of other people, dpltm.evaluate(estimator.run_, X, y) takes your word; or give `score_epsilon`"
            )
        ledger = self.ledger_
        with _LOCK:
            part = ledger.part(scored)
            with naming(eval_private="score_epsilon"):
                check_declared(ledger.account(spent.lineage), part, "measured without a price")
            persons = bool(self.run_.config.get("of_persons")) and spent.protects(scored.rows, of_persons=True)
            if persons or (not self.rows_coincide and spent.protects(scored.rows)):
                raise InputError(
                    f"`X`: some of these {'persons' if persons else 'records'} are protected by a release on record, a fit"
                    " or paid score of this estimator or a clone; take others, or give `score_epsilon`, which pays for a"
                    " score with noise, or say `rows_coincide` where rows of different people may well be equal"
                )
            draft = Entry("excluded", part, words="a test split", unit=ledger.unit)
            ledger.declare_once(draft)
            spent.looked = True
            spent.add(ledger.lineage(cast(Entry, ledger.book.entry_of(draft))))

    # what it cost

    @property
    def privacy_(self) -> PrivacyReport:
        """Certified and nominal, for all fits and paid scores of this estimator and its clones, and all else in its ledger.

        Raises:
            NotFittedError: nothing has been spent.
        """
        spent = self._spent
        account = Account.alone(spent.lineage)
        with contextlib.suppress(InputError):  # a ledger that stayed behind: what went along counts
            if self.ledger is not None or account.paid:
                account = self.ledger_.account(spent.lineage)
        if not account.paid:  # of a file that processes share, what they entered counts
            raise NotFittedError(f"this {type(self).__name__} has spent nothing yet; call 'fit' first")
        delta = TicketEstimator.delta if self.delta is None else self.delta
        return statement(account, delta, adjacency=cast(Adjacency, self.adjacency), notes=spent.notes)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True  # noise is never decided by random_state
        return tags


@dataclass(eq=False, repr=False, kw_only=True)
class TicketClassifier(ClassifierMixin, TicketEstimator):
    """A classifier trained under differential privacy: a lottery ticket, or a whole network.

    Public facts may not be read off the private records: what is left out is read off, taken as public, and named in
    ``privacy_.notes``.

    Args:
        epsilon, delta: what one fit may cost, certified, with what its ticket cost; delta is below 1 / ``n_records``.
        noise_multiplier: noise over sensitivity, in place of ``epsilon``, which is left out or None then.
        bounds: public range of the features, ``(low, high)``: two numbers, or two arrays with a number a column, by which
            the estimator takes each to the range 0 to 1. Needed unless values are bytes or booleans.
        schema: in place of ``bounds`` and ``classes``, of data frames: what columns hold, or the file that says so.
        classes, n_records: all labels, or their number K for labels 0 to K - 1; and the number of records: public.
        tickets, round: a winner, or a ticket set and the round that is taken; None for a whole network.
        select_epsilon: draws the ticket on the records in place of ``round``, for so much of ``epsilon``.
        model: network, where there are no tickets; by default one layer behind features, else ``mlp:300,100``.
        features: what stands in front of the network, as for ``dpltm.train``; ``auto`` is its default; None for nothing.
        head, filter, clip_norm, epochs, batch_size, lr, optimizer, schedule, centre, noise, adjacency, per_unit: as for
            ``dpltm.train``; ``per_unit`` where ``fit`` gets ``units``.
        rows_coincide: whether records of different people may well be equal: then ``score`` does not refuse equal rows.
        ledger: None for that of this process; clones share it.
        random_state: decides the starting weights. Never the noise or the sampling: fits differ.
        name, unit: what the ledger calls the records, and whom ``units`` of ``fit`` names, by default ``user``.
        class_weight: what filtered gradients are multiplied by, over the largest: numbers in the order of ``classes_``, a
            mapping from labels (1 for those that it lacks), or ``balanced``, by
        class_shares: public shares of the classes, likewise.
        score_epsilon: what each ``score`` releases its figure for, with noise. None measures it exactly, for records
            that no release was made from; then cross-validation and searches of scikit-learn are refused.

    Attributes:
        classes_: labels, sorted.
        n_features_in_, feature_names_in_: columns of ``X`` in ``fit``.
        run_, ticket_, unit_: the run, as ``dpltm.train`` returns it, its mask, and whom it protects.
        privacy_, ledger_: what all fits and paid scores of this estimator and its clones cost, and where it is entered.

    Guarantees:
        Every release is in the ledger before its noise is drawn. One fit costs at most ``epsilon``, certified,
        unless there is a ``noise_multiplier``.
    """

    classes: int | Sequence[Any] | None = None
    class_weight: str | Mapping[Any, float] | Sequence[float] | None = None
    class_shares: Mapping[Any, float] | Sequence[float] | None = None

    score = TicketEstimator.score

    def _encoded(self, y: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
        check_classification_targets(y)
        label, classes = self._label, self.classes
        if label is None:
            of_number = isinstance(classes, (int, np.integer))
            labels = (
                np.arange(cast(int, classes))
                if of_number
                else np.unique(y if classes is None else np.asarray(classes))
            )
            spellings: Sequence[Sequence[Any]] = [[name] for name in labels.tolist()]
        elif label.is_target:
            raise InputError("`schema`: its label is a number to predict; use TicketRegressor, or give it classes")
        else:
            check_none(IN_SCHEMA, classes=classes)
            spellings = label.values
            labels = np.array([names[0] for names in spellings])
            with contextlib.suppress(ValueError):
                if y.dtype.kind in "iufb":
                    labels = labels.astype(np.int64 if y.dtype.kind == "b" else y.dtype)
        self._places = {name: place for place, names in enumerate(spellings) for name in names}
        if len(labels) < 2:
            raise InputError("`classes`: there is one class, so nothing can be told apart; give two or more")
        self._order = np.argsort(labels)
        self.classes_ = labels[self._order]
        return self._codes(y), {"classes": None if label is None and classes is None else len(labels)}

    def _codes(self, y: np.ndarray) -> np.ndarray:
        """Return the class of each label, ``(n,)`` int64: its place among all labels, which are sorted or a schema's."""
        spelled = y.tolist() if self._label is None else [text_of(cell) or "" for cell in y]
        codes = np.array([self._places.get(name, -1) for name in spelled], dtype=np.int64)
        if (codes < 0).any():
            raise InputError(
                f"`y`: label {str(y[int(np.argmin(codes))])!r:.40} is none of the {len(self.classes_)} classes; declare"
                " every label, with `classes` or in the schema, or leave those records out"
            )
        return codes

    def _options(self) -> dict[str, Any]:
        return super()._options() | {name: self._in_order(name) for name in ("class_weight", "class_shares")}

    def _in_order(self, name: str) -> Any:
        """Return what a parameter says of each class of the network; a mapping is by label, a sequence as ``classes_``."""
        values = getattr(self, name)
        labels = self.classes_.tolist()
        if isinstance(values, Mapping):
            if unknown := [label for label in values if label not in labels]:
                raise InputError(f"`{name}`: {unknown[0]!r:.40} is no label; name those of `y`")
            values = [values.get(label, 1.0) for label in labels]
        if not isinstance(values, (list, tuple, np.ndarray)) or len(values) != len(labels):
            return values
        return [float(values[at]) for at in np.argsort(self._order)]

    def predict(self, X: Any) -> np.ndarray:
        """Return the most likely label of each record, ``(n,)``."""
        best = self._by_class(X).argmax(1)  # which refuses what is not fitted
        return np.asarray(self.classes_[best])

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities ``(n, classes)``, in the order of ``classes_``."""
        return softmax(self._by_class(X), axis=1)

    def _by_class(self, X: Any) -> np.ndarray:
        return self._predicted(X)[:, self._order]

    def _judged(self, outputs: np.ndarray, y: np.ndarray) -> Any:
        codes = self._codes(y)
        right = (outputs.argmax(1) == codes)[None].astype(float)
        return codes, right, lambda means: float(np.clip(means[0], 0.0, 1.0))


@dataclass(eq=False, repr=False, kw_only=True)
class TicketRegressor(RegressorMixin, TicketEstimator):
    """A regressor trained under differential privacy.

    A network learns where between the ends of a public range the target of a record lies, by the cross-entropy of both
    (fractional regression, Papke and Wooldridge 1996). A wild target does no more harm than any other.

    Args:
        epsilon, delta, noise_multiplier, bounds, schema, n_records, tickets, round, select_epsilon, model, features, head,
            filter, clip_norm, epochs, batch_size, lr, optimizer, schedule, centre, noise, adjacency, per_unit,
            rows_coincide, ledger, random_state, name, unit, score_epsilon: as for :class:`TicketClassifier`, whose
            attributes and guarantees it has; tickets have two outputs.
        target_bounds: public range of the targets, ``(low, high)``; needed unless a schema has it. Those outside count as
            its ends.
    """

    _numeric: ClassVar[bool] = True

    target_bounds: tuple[float, float] | None = None

    score = TicketEstimator.score

    def _encoded(self, y: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
        label, ends = self._label, self.target_bounds
        if label is not None and label.is_target:
            check_none(IN_SCHEMA, target_bounds=ends)
            ends = label.bounds
        if ends is None:
            raise InputError(
                "`target_bounds` is missing: the public range of the targets, (low, high); those of the data would leak them"
            )
        return y, {"target_bounds": ends}

    def predict(self, X: Any) -> np.ndarray:
        """Return the expected target of each record, ``(n,)``."""
        return predicted(self._predicted(X), cast(tuple[float, float], self.run_.target))

    def _judged(self, outputs: np.ndarray, y: np.ndarray) -> Any:
        low, high = cast(tuple[float, float], self.run_.target)
        parts = (y, predicted(outputs, (low, high)))
        target, expected = (np.clip((part - low) / (high - low), 0.0, 1.0) for part in parts)

        def figure(means: np.ndarray) -> float:
            error, mean, square = means
            return float(np.clip(1 - error / max(square - mean**2, 1e-12), -1.0, 1.0))

        return y, np.stack([np.square(target - expected), target, target**2]), figure


for _estimator in (TicketEstimator, TicketClassifier, TicketRegressor):
    del _estimator.__dataclass_fields__  # so dataclasses.replace refuses: its copy would begin an account of its own
