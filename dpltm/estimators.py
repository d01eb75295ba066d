"""The scikit-learn face of ``dpltm.train``, ``select``, ``evaluate`` and ``predict``: a classifier and a regressor.

A fit is one ``dpltm.train``; what was learned is ``run_``, as that returns it: ``dpltm.tickets.save(made.run_, path)`` keeps
it. scikit-learn copies an estimator before each fit of a cross-validation or a grid search, and throws the copies away. Each
of them read the records, so each of them counts: the ledger holds all of it, and clones share what they spent. The epsilon
that is asked for is that of one fit; ``privacy_`` is everything together.

Example:
    >>> import numpy as np, dpltm
    >>> draw = np.random.default_rng(5)
    >>> X = draw.random((400, 3))
    >>> y = np.where(X[:, 0] > 0.5, "high", "low")
    >>> classifier = dpltm.TicketClassifier(epsilon=2, bounds=(0, 1), classes=["high", "low"], n_records=400)
    >>> classifier.fit(X, y).predict_proba(X[:5]).shape
    (5, 2)
    >>> classifier.privacy_.certified.epsilon <= 2
    True
"""

from __future__ import annotations

import contextlib
import copy
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import numpy as np
from scipy import sparse
from scipy.special import log_softmax, softmax
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import r2_score
from sklearn.utils import Tags, check_array, check_consistent_length, check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from dpltm import api
from dpltm.errors import DataError, DpltmError, InputError, named, naming, shown_value, whole_number
from dpltm.features.inputs import Services
from dpltm.features.setup import features_of, take_over_map
from dpltm.networks.masks import Mask
from dpltm.networks.own_network import check_scored_rows
from dpltm.options import arguments
from dpltm.options.select import SelectOptions
from dpltm.options.train import TrainOptions
from dpltm.privacy.account import Account, check_declared, check_private
from dpltm.privacy.checks import check_epsilon
from dpltm.privacy.entry import NO_LINEAGE, Entry, Lineage, Part, lineage_of
from dpltm.privacy.ledger import Begun, Book, Ledger, of_process
from dpltm.privacy.mechanisms import Adjacency, Guarantee, NoisySgd
from dpltm.privacy.release import Once, Secret, pay
from dpltm.privacy.statement import PrivacyReport, statement
from dpltm.randomness.noise import MIN_EPSILON, KeyedSource, two_sided_geometric
from dpltm.records import Dataset, RecordSet, Rows, Split, from_arrays
from dpltm.records.cells import Cells, Faults, classes_of, text_of
from dpltm.records.dataset import RawSplit
from dpltm.records.frames import Frame, is_frame
from dpltm.records.notes import NO_TEST, left_out_note
from dpltm.records.scaling import affine
from dpltm.records.schema import Column, Schema, as_schema
from dpltm.records.tables import index_columns, read_by_schema
from dpltm.records.units import checked_units
from dpltm.training.artifacts import Run, TicketSet, Winner
from dpltm.training.start import from_round
from dpltm.verbs import select as select_verb
from dpltm.verbs.predict import ROWS
from dpltm.verbs.train import OWN_NOTE, plan, settle

SCORE = "a score: sums with two-sided geometric noise"
"""Words of an entry for a score that is paid for."""

SCORED = "how many records `score` was measured on is treated as public"

GRID = 1024
"""Steps of a value that a paid score sums."""

NO_LIMIT = (
    "`noise_multiplier` was given, so `epsilon` limited nothing: what the fits cost is what their noise comes to"
)

MAX_BINS = 1000
"""More parts of a range of targets are a slip of the finger."""

_TRAINING = {item.name for item in fields(TrainOptions)} - {"features", "unit"}
"""Parameters that are options of ``dpltm.train`` and mean the same here."""

_SPARSE: dict[str, Any] = {"accept_sparse": ("csr", "csc"), "accept_large_sparse": False}
"""Inputs that are taken beside arrays and data frames."""

_SHARED = ("ledger", "tickets")
"""Parameters that clones have in common: one account, and values that nobody changes."""

_NAMES = {
    "x": "X",
    "records": "n_records",
    "seed": "random_state",
    "eps1": "select_epsilon",
    "ticket": "tickets",
    "target": "tickets",
    "unit_column": "units",
}
"""Names of parameters here, by the names that the verbs have for them."""


@dataclass(eq=False)
class Spent:
    """Spending of an estimator and its clones, and their fits' notes on public inputs, each once; shared by all.

    Attributes:
        looked: whether a score was measured exactly.
        protected: the records and persons of all fits and paid scores.
        fitting: those of fits that go on.
    """

    lineage: Lineage = NO_LINEAGE
    notes: dict[str, None] = field(default_factory=dict)
    looked: bool = False
    protected: RecordSet = field(default_factory=RecordSet, repr=False)
    fitting: list[RecordSet] = field(default_factory=list, repr=False)
    process: int = field(default_factory=os.getpid)
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False)

    def __deepcopy__(self, memo: object) -> Spent:
        return self

    def __getstate__(self) -> dict[str, Any]:
        told = {"lineage": self.lineage, "notes": dict(self.notes), "looked": self.looked}
        return {**told, "protected": RecordSet(), "fitting": [], "process": 0}  # what tells records stays here

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, lock=threading.RLock())

    def add(self, lineage: Lineage, records: RecordSet | None = None) -> None:
        """Add what one of them spent, and the records that it was spent on, unless a fit adds them itself."""
        with self.lock:
            self.lineage |= lineage
            if records is not None:
                self.protected = self.protected.with_all_of(records)

    def protects(self, rows: Rows, *, of_persons: bool) -> bool:
        """Return whether a fit or a paid score is, or was, of some of these records, or of the persons whose they are."""
        with self.lock:
            return self.protected.with_all_of(*self.fitting).has_any(rows, of_persons=of_persons)


def noisy_sums(values: np.ndarray, each: float, secret: Secret) -> np.ndarray:
    """Return sums of values from 0 to 1 a record, ``(sums,)``, with noise.

    Args:
        values: whole numbers from 0 to ``GRID``, ``(sums, n)``; private.
    """
    source = KeyedSource(secret.child("score"))
    return np.array([int(one) + two_sided_geometric(source, each) for one in values.sum(1)]) / GRID


@contextlib.contextmanager
def _named_as_parameters() -> Iterator[None]:
    """A block whose refusals name parameters of an estimator."""
    try:
        yield
    except DpltmError as error:
        error.args = (_named_here(str(error).replace("`ticket`: unknown network", "`model`: unknown network")),)
        raise


def _named_here(text: str) -> str:
    return named(text, lambda name: f"`{_NAMES.get(name, name)}`")


Bounds = tuple[float, float] | tuple[Sequence[float], Sequence[float]] | np.ndarray | None
"""Public range of the features: one for all, or the low and the high end of each column."""


@dataclass(frozen=True, eq=False)
class Columns:
    """Columns of a table as records, by public facts alone.

    Attributes:
        bounds: of all values; None to have it settled by their type.
        low, high: of each column, ``(features,)``, where each has its own; then values go to the unit range, and records
            are known by what they were.
        schema: of data frames with words, dates or holes, which become numbers by it.
    """

    bounds: tuple[float, float] | None
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    shape: tuple[int, ...] = ()
    schema: Schema | None = None

    @classmethod
    def of(cls, bounds: Any, features: int, shape: Any = None, schema: Schema | None = None) -> Columns:
        """Columns that ``bounds``, ``record_shape`` and ``schema`` describe. Arguments as :func:`TicketClassifier`."""
        if schema is not None:
            for name, value in (("bounds", bounds), ("record_shape", shape)):
                if value is not None:
                    raise DataError(f"`{name}`: the schema says what the columns hold; leave `{name}` out")
            return cls((0.0, 1.0), schema=schema)
        form = () if shape is None else tuple(int(side) for side in np.atleast_1d(shape))
        if form and int(np.prod(form)) != features:
            raise DataError(f"`record_shape`: {form} has {int(np.prod(form))} values, but records have {features}")
        if bounds is None:
            return cls(None, shape=form)
        try:
            low, high = (np.asarray(end, dtype=np.float64) for end in bounds)
        except (TypeError, ValueError):
            raise DataError(
                "`bounds`: not a pair (low, high) of numbers, or of arrays with a number for each column; pass the public"
                " range of the features"
            ) from None
        if low.ndim == high.ndim == 0:
            affine((float(low), float(high)))
            return cls((float(low), float(high)), shape=form)
        for end, name in ((low, "low"), (high, "high")):
            if end.shape not in ((), (features,)):
                raise DataError(
                    f"`bounds`: {name} has shape {end.shape}, but records have {features} columns; give a number for each"
                )
        low, high = np.broadcast_to(low, features), np.broadcast_to(high, features)
        with np.errstate(over="ignore", invalid="ignore"):
            wrong = np.flatnonzero(~(np.isfinite(high - low) & (low < high)))
        if len(wrong):
            at = int(wrong[0])
            raise DataError(
                f"`bounds`: column {at} (counted from 0) has ({low[at]:g}, {high[at]:g}); give finite (low, high), low"
                " first, not too far apart"
            )
        return cls((0.0, 1.0), low, high, form)

    def taken(self, x: Any, y: np.ndarray, **facts: Any) -> Dataset:
        """Return records and their classes as a dataset; what they are known by are their values as they came."""
        values, known = self.read(x)
        dataset = from_arrays(values, y, bounds=self.bounds, **facts)
        dataset = replace(dataset, train=replace(dataset.train, rows=known(dataset.rows)))
        if self.schema is None:
            return dataset
        return replace(dataset, schema=self.schema.text, lineage=lineage_of(self.schema))

    def read(self, x: Any) -> tuple[np.ndarray, Callable[[Rows], Rows]]:
        """Return records as dpltm takes them, ``(n, ...)``, and what makes rows known by their values as they came.

        Row i depends on row i and on public facts alone.
        """
        if self.schema is not None:
            raw = read_by_schema(Frame(x, "`X`"), self.schema, labelled=False)
            return raw.x, lambda rows: rows.known_as(cast(Rows, raw.rows))
        values = x
        if self.low is not None and self.high is not None:
            with np.errstate(over="ignore"):  # far outside is where the clip puts it
                values = np.clip((x - self.low) / (self.high - self.low), 0.0, 1.0)
        values = values.reshape(len(x), *self.shape) if self.shape else values
        return values, lambda rows: rows if self.low is None else rows.known_by(np.ascontiguousarray(x))


def without_row_numbers(x: Any) -> tuple[Any, tuple[str, ...]]:
    """Return a data frame without columns that are row numbers by their names, and those names; all else as it is."""
    if not is_frame(x):
        return x, ()
    keys = list(x.columns)
    spare = index_columns([str(key) for key in keys])
    left_out = tuple(str(keys[at]) for at in spare)
    return (x[[key for at, key in enumerate(keys) if at not in spare]] if spare else x), left_out


@contextlib.contextmanager
def _of_words(x: Any) -> Iterator[None]:
    """A block whose refusal of a data frame with words or holes says what to do: to fill them off the records is a leak."""
    try:
        yield
    except ValueError as error:
        text = str(error)
        if is_frame(x) and ("could not convert" in text or "Input X contains NaN" in text or "NAType" in text):
            raise InputError(
                "`X`: holds words, dates or holes; give `schema`, which says what columns hold (dpltm datasets schema drafts"
                " one): values that are filled in or encoded by the records themselves tell of them"
            ) from None
        raise


def owners(units: Any) -> np.ndarray:
    """Return the owner of each record, ``(n,)``, from a column of pandas, polars or NumPy; of objects as texts."""
    values = np.asarray(units)
    if values.ndim != 1:
        raise InputError(
            f"`units`: has {values.ndim} dimensions, not one; give a column with the person of each record"
        )
    return np.array([text_of(owner) or "" for owner in values], dtype=str) if values.dtype == object else values


def numbered(y: np.ndarray, classes: np.ndarray, seen: str) -> np.ndarray:
    """Return the class of each label, ``(n,)`` int64: its place in sorted ``classes``; ``seen`` is where labels are from."""
    try:
        places = np.minimum(np.searchsorted(classes, y), len(classes) - 1)
        strange = classes[places] != y
    except TypeError:  # numbers and texts have no order
        raise InputError(f"`y`: labels are of another kind than the classes {seen}; use labels of one kind") from None
    if np.any(strange):
        label = str(y[int(np.argmax(strange))])
        raise InputError(
            f"`y`: label {label!r:.40} is none of the {len(classes)} classes {seen}; declare every label with `classes`, or"
            " leave those records out"
        )
    return places.astype(np.int64)


@dataclass(eq=False, repr=False, kw_only=True)
class TicketEstimator(BaseEstimator):
    """Common part of both estimators: parameters, one training, and the account of all of them."""

    epsilon: float | None = 1.0
    delta: float = 1e-5
    noise_multiplier: float | None = None
    bounds: Bounds = None
    schema: str | Path | Schema | None = None
    n_records: int | None = None
    tickets: TicketSet | Winner | None = None
    round: int | None = None
    select_epsilon: float | None = None
    model: str | None = None
    features: str | None = "auto"
    record_shape: tuple[int, ...] | None = None
    head: str = "dp-sgd"
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
    ledger: Ledger | Callable[[], Ledger] | None = None
    random_state: int | np.random.RandomState | None = None
    name: str = "records"
    unit: str = "user"

    _numeric: ClassVar[bool] = False
    """Whether targets are numbers, not labels."""

    _of_classes: ClassVar[Mapping[str, Any]] = {}
    """Options of a training that a fit made of parameters by label."""

    def __post_init__(self) -> None:
        self._spent = Spent()

    def __sklearn_clone__(self) -> TicketEstimator:
        given = self.get_params(deep=False).items()
        twin = type(self)(**{name: value if name in _SHARED else clone(value, safe=False) for name, value in given})
        twin._spent = self._spent
        if "_metadata_request" in self.__dict__:  # what set_fit_request asked for, as clones of scikit-learn have it
            twin._metadata_request = copy.deepcopy(self._metadata_request)
        return twin

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        if "run_" in state:
            # as in all artifacts; what was spent goes along, and copies in this process share it
            state = {**state, "run_": replace(state["run_"], ledger=None, seconds=0.0)}
        return state

    def _open_ledger(self, unit: str | None = None) -> Ledger:
        if self.ledger is None:
            if self._spent.process != os.getpid():
                raise InputError(
                    "`ledger`: this estimator was pickled, and its ledger stayed behind: what it spends here would be"
                    " entered nowhere that you see; leave `n_jobs` 1, use threads (joblib.parallel_backend), or give"
                    " `ledger` as a function that opens a file which processes share:"
                    " functools.partial(dpltm.tickets.open_ledger, path)"
                )
            return of_process(unit or self.__dict__.get("_unit", "record"))
        opened = self.ledger() if callable(self.ledger) else self.ledger
        if isinstance(opened, Ledger):
            return opened
        value = shown_value(opened)
        said = f"the function returns {value}, not a ledger" if callable(self.ledger) else f"{value} is not a ledger"
        raise InputError(
            f"`ledger`: {said}; give dpltm.Ledger(), or a function that opens the same file each time"
            " (functools.partial(dpltm.tickets.open_ledger, path))"
        )

    # training

    def fit(self, X: Any, y: Any, units: Any = None) -> Self:
        """Train under differential privacy.

        Args:
            X: ``(n, columns)``: an array, a data frame of pandas or polars, or a sparse matrix; finite numbers.
            y: labels ``(n,)``; of a regressor targets, finite numbers.
            units: whose each record is, ``(n,)`` whole numbers or texts: then all records of a person are protected
                together, and ``n_records`` is the number of persons.

        Raises:
            ValueError: bad input (``dpltm.errors.InputError``), before anything is spent.
            BudgetError: a budget in the ledger does not allow it.
        """
        with self._fitting():
            X, y = self._validated(X, y)
            codes, classes, learned = self._encoded(y)
            self._fit(X, codes, classes, units)
        self.__dict__.update(learned)
        return self

    def _encoded(self, y: np.ndarray) -> tuple[np.ndarray, int | None, dict[str, Any]]:
        """Return the class of each target, how many were declared, and attributes of a fit that succeeds."""
        raise NotImplementedError

    def _fit(self, x: Any, y: np.ndarray, classes: int | None, units: Any) -> None:
        """Train on records ``(n, columns)`` and their classes, of which ``classes`` were declared, and keep the run."""
        self._check_parameters(units is not None)
        with naming():
            schema = as_schema(self.schema)
        features = x.shape[1] if schema is None else schema.features
        columns = Columns.of(self.bounds, features, self.record_shape, schema)
        facts: dict[str, Any] = {"classes": classes, "records": self.n_records, "name": self.name}
        facts |= {"rows_coincide": self.rows_coincide, "for_training": not self._numeric}
        facts |= {} if units is None else {"units": owners(units), "unit": self.unit}
        with naming():
            dataset = columns.taken(x, y, **facts)
        names = self.__dict__.get("feature_names_in_")
        if names is not None and schema is None and self.record_shape is None:
            dataset = replace(dataset, columns=tuple(names.tolist()))
        dataset = replace(dataset, of_table=self.record_shape is None)
        try:
            run = self._train(dataset)
        except Begun:  # another worker was first with a new ledger file; nothing was entered here
            run = self._train(dataset)
        said = () if run.privacy is None else run.privacy.notes
        # `score` measures what NO_TEST misses, and `privacy_` counts what OWN_NOTE says is left out
        self._spent.notes |= dict.fromkeys(_named_here(note) for note in said if note not in (NO_TEST, OWN_NOTE))
        if self.noise_multiplier is not None:
            self._spent.notes |= {NO_LIMIT: None}
        self.run_, self._columns, self._unit = run, columns, dataset.noun

    def _check_parameters(self, of_persons: bool) -> None:
        """Raise InputError for parameters that say nothing beside others, before a ticket is drawn and paid for."""
        if self.noise_multiplier is not None and self.epsilon not in (None, TicketEstimator.epsilon):
            raise InputError(
                "`epsilon`, `noise_multiplier`: noise decides what a fit costs, so `epsilon` would say nothing; leave one of"
                " them out"
            )
        if self.tickets is not None and self.model is not None:
            raise InputError("`model`: the ticket set decides the network; leave `model` out")
        if of_persons:
            return
        fix = "leave it out, or pass `units` to fit"
        if self.per_unit is not None:
            raise InputError(f"`per_unit`: bounds what one person gives, so it goes with `units`; {fix}")
        if self.unit != TicketEstimator.unit:
            raise InputError(
                f"`unit`: {self.unit} is whom `units` names, and without them single records are protected; {fix}"
            )

    def _drawn(self, dataset: Dataset, ledger: Ledger, training: dict[str, Any]) -> TicketSet | Winner | None:
        """Return the tickets, or the winner of a draw on the records, where one is asked for."""
        if self.select_epsilon is None:
            if isinstance(self.tickets, TicketSet) and self.round is None:
                raise InputError(
                    "`round` is missing: say which ticket of the set, or give `select_epsilon` to draw one on the records"
                )
            return self.tickets
        tickets = self.tickets.tickets if isinstance(self.tickets, Winner) else self.tickets
        if tickets is None or self.round is not None:
            raise InputError("`select_epsilon`: draws one ticket of a set; give `tickets`, and leave `round` out")
        options: dict[str, Any] = {"eps1": self.select_epsilon, "score": "additive"}
        options |= {"delta": self.delta, "adjacency": self.adjacency, "per_unit": self.per_unit}
        with naming(model="tickets"):
            # refuse here what the training would be refused for, had the sparsest ticket won: that is public
            draw = select_verb.plan(tickets, dataset, arguments(SelectOptions, options), ledger, Services())
            book = Book.new(unit=ledger.unit).adding([draw.entry], ["0" * 64])
            asked = arguments(TrainOptions, training)
            behind = take_over_map(dataset, None, asked.features, tickets.label)
            start = from_round(tickets, draw.candidates[-1].round)
            planned = plan(settle(start, behind, asked, ledger, Services()), book)
            ledger.account(tickets.lineage).check_budget((draw.entry, planned.entry))
        winner = api.select(tickets, dataset, ledger=ledger, **options)
        self._spent.add(winner.lineage)
        return winner

    def _train(self, dataset: Dataset) -> Run:
        options = {name: value for name, value in self.get_params(deep=False).items() if name in _TRAINING}
        if self.noise_multiplier is not None:  # the default budget says nothing beside it
            options["epsilon"] = None
        options |= self._of_classes
        options["seed"] = int(check_random_state(self.random_state).randint(2**31 - 1))
        behind = {**options, "features": None if self.features == "auto" else self.features}
        ledger, spent, records = self._open_ledger(dataset.noun), self._spent, RecordSet(dataset.rows)
        try:
            with naming(), spent.lock:  # a score in another thread comes before, or sees these records
                part = ledger.part(dataset)
                check_private(ledger.account(spent.lineage), part)
                self._check_known(part, dataset.rows)
                spent.fitting.append(records)
        except InputError as error:
            raise InputError(f"{error}; to cross-validate on private records give `score_epsilon`") from None
        before = len(ledger.entries)
        try:
            return self._trained(dataset, ledger, options, behind)
        finally:
            with spent.lock:
                if len(ledger.entries) > before:  # it may have paid, also where it failed after that
                    spent.protected = spent.protected.with_all_of(records)
                spent.fitting.remove(records)

    def _trained(self, dataset: Dataset, ledger: Ledger, options: dict[str, Any], behind: dict[str, Any]) -> Run:
        tickets = self._drawn(dataset, ledger, behind)
        features = self.features
        if features == "auto":
            features = features_of(dataset, None, self.model) or ("unit" if self.model in (None, "mlp") else None)
        if tickets is None and self.round is not None:
            raise InputError("`round`: of a ticket set; give `tickets`, or leave it out")
        network = self.model or ("mlp:300,100" if features in (None, "none") else "mlp")
        if tickets is not None:
            run = api.train(tickets, dataset, round=self.round, ledger=ledger, own=True, **behind)
        else:
            run = api.train(network, dataset, ledger=ledger, own=True, features=features, **options)
        self._spent.add(run.lineage)
        return run

    def _check_known(self, part: Part, rows: Rows) -> None:
        """Refuse other records than before once a score was exact: behind a step in front that was fitted anew, those that
        it was measured on have other values, and no row would tell."""
        spent = self._spent
        if not spent.looked or any(entry.part.snapshot == part.snapshot for entry in spent.lineage.paid):
            return
        if self.rows_coincide or not spent.protected.has_all(rows):
            raise InputError(
                "`X`: an exact score was measured, and these are other records than those of the fits before: whether it was"
                " measured on some of them cannot be told, since a step in front may have changed their values; for other"
                " people make a new estimator, and no clone"
            )

    @contextlib.contextmanager
    def _fitting(self) -> Iterator[None]:
        """A block in which a fit is settled: if it is refused, what the last one learned stays whole."""
        known = {name: self.__dict__.get(name) for name in ("n_features_in_", "feature_names_in_")}
        try:
            with _named_as_parameters():
                yield
        except BaseException:
            for name, value in known.items():  # scikit-learn sets them as soon as it has seen columns
                self.__dict__.pop(name, None)
                if value is not None:
                    self.__dict__[name] = value
            raise

    def _validated(self, X: Any, *y: Any, reset: bool = True) -> Any:
        """Return records, and labels where there are any, as scikit-learn checks them; a data frame by a schema as it is."""
        if not reset:
            check_is_fitted(self)
        X, left_out = without_row_numbers(X)
        if left_out and reset:
            self._spent.notes |= {left_out_note(left_out): None}
        if self.schema is None:
            numeric = {"y_numeric": self._numeric} if y else {}
            with _of_words(X):
                checked = validate_data(self, X, *y, reset=reset, **numeric, **_SPARSE)
            X, *labels = checked if y else (checked,)
            X = X.toarray() if sparse.issparse(X) else X
            return (X, *labels) if y else X
        if not is_frame(X):
            raise InputError("`X`: `schema` goes with a data frame, whose columns have names, and this is none")
        if reset:
            validate_data(self, X, skip_check_array=True)
        if not y:
            return X
        target = check_array(y[0], ensure_2d=False, dtype="numeric") if self._numeric else column_or_1d(y[0])
        check_consistent_length(X, target)
        return X, target

    def _told(self, X: Any) -> np.ndarray:
        """Return the network's outputs for records without labels, before softmax, ``(n, classes)`` float64."""
        return self._outputs(self._validated(X, reset=False))

    def _outputs(self, X: Any, *, alike: bool = False) -> np.ndarray:
        """Return the network's outputs; where ``alike``, as sums that noise is added to need it
        (``networks.evaluation.outputs``), of batches that rows of zeros fill up."""
        with _named_as_parameters():
            records, _ = self._columns.read(X)
            few = np.zeros((-len(records) % ROWS if alike else 0, *records.shape[1:]), records.dtype)
            told = api.predict(self.run_, np.concatenate([records, few])).outputs
            return told[: len(records)].astype(np.float64)

    # what was learned, and what it cost

    def _released_means(self, X: Any, codes: np.ndarray, values: np.ndarray, units: Any, epsilon: float) -> np.ndarray:
        """Return means of values from 0 to 1 a record, ``(sums, n)``, with noise, paid for: together ``epsilon``.

        Guarantees:
            Each value is rounded to a whole number of ``1 / GRID`` first, and so is the mean of those of a person, where the
            run protects persons. So one record, or person, more, less or another changes each sum by at most ``GRID`` of
            those, and two-sided geometric noise of epsilon / (sums GRID) makes each (epsilon / sums)-DP, exactly
            (docs/privacy-model.md section 5.8).
        """
        held_out, names = self._scored(X, codes, units)
        check_epsilon("score_epsilon", epsilon)
        check_scored_rows(self.run_.spec, self.run_.bounds, ROWS)
        each = epsilon / (len(values) * GRID)
        if each < MIN_EPSILON:
            raise InputError(f"`score_epsilon`: {epsilon:g} is nothing but noise; give 0.01 or more")
        whole = np.rint(np.clip(values, 0.0, 1.0) * GRID).astype(np.int64)
        if names is not None:
            _, whose, many = np.unique(names, return_inverse=True, return_counts=True)
            sums = np.zeros((len(many), len(whole)), dtype=np.int64)
            np.add.at(sums, whose, whole.T)
            whole = (sums // many[:, None]).T
        ledger, lineage = self._open_ledger(), self.run_.lineage
        mechanism = Guarantee(epsilon, adjacency=cast(Adjacency, self.adjacency))
        entry = Entry("release", ledger.part(held_out.tested()), (mechanism,), SCORE, unit=self.run_.config["unit"])

        def planned(book: Book, known: Entry | None) -> Once[np.ndarray]:
            del book, known
            return Once(entry, lineage, partial(noisy_sums, whole, each))

        paid = pay(planned, ledger)
        self._spent.add(paid.lineage, RecordSet(held_out.tested().rows))
        self._spent.notes |= {SCORED: None}
        return next(paid.values) / whole.shape[1]

    def _scored(self, X: Any, codes: np.ndarray, units: Any) -> tuple[Dataset, np.ndarray | None]:
        """Return records as a test split to measure on, and whose each is, where the run protects persons."""
        of_persons = self.run_.config.get("of_persons")
        if of_persons and units is None:
            raise InputError("`units` is missing: whose each record is, since the run protects persons")
        values, known = self._columns.read(X)
        dataset = api.held_out(self.run_, values, codes, {"name": "the scored records"})
        rows, names = known(dataset.tested().rows), None
        if of_persons:
            with naming():
                names = checked_units(RawSplit(X, codes, "the scored records", units=owners(units)))
            rows = rows.owned(names, self.unit)
        return replace(dataset, test=replace(cast(Split, dataset.test), rows=rows)), names

    def _accuracy(self, X: np.ndarray, codes: np.ndarray, units: Any) -> float:
        """Accuracy on held-out records, which are declared apart from the people of the ledger from now on."""
        held_out, _ = self._scored(X, codes, units)
        try:
            if self._spent.process != os.getpid():
                raise InputError(
                    "`score`: this estimator was pickled, so nothing here knows the records that it was fitted to; where"
                    " these are of other people, dpltm.evaluate(estimator.run_, X, y) takes your word"
                )
            ledger = self._open_ledger()
            with naming():
                with self._spent.lock:
                    spent, part = ledger.account(self._spent.lineage), ledger.part(held_out.tested())
                    check_declared(spent, part, "measured without a price")
                    self._check_separate(held_out.tested().rows)
                    self._spent.looked = True
                found = api.evaluate(self.run_, held_out, ledger=ledger)
                for draft in ledger.apart(held_out):
                    if (declared := ledger.book.found(draft)) is not None:
                        self._spent.add(ledger.lineage(declared))
        except InputError as error:
            raise InputError(f"{error}; or give `score_epsilon`, which pays for a score with noise") from None
        return float(found.accuracy)

    def _check_separate(self, rows: Rows) -> None:
        """Refuse to measure exactly on rows, or persons, that this estimator or a clone protects."""
        persons = bool(self.run_.config.get("of_persons")) and self._spent.protects(rows, of_persons=True)
        if persons or (not self.rows_coincide and self._spent.protects(rows, of_persons=False)):
            raise InputError(
                f"`X`: some of these {'persons' if persons else 'records'} are protected by a release on record, a fit"
                " or paid score of this estimator or a clone; they cannot be measured without a price: take others"
                + ("" if persons else "; where rows of different people may well be equal, say `rows_coincide`")
            )

    def __sklearn_is_fitted__(self) -> bool:
        return "run_" in self.__dict__

    @property
    def ticket_(self) -> Mask:
        """Mask of the ticket, or one that keeps everything."""
        check_is_fitted(self)
        return self.run_.mask

    @property
    def ledger_(self) -> Ledger:
        """Ledger that pays for this estimator."""
        return self._open_ledger()

    @property
    def privacy_(self) -> PrivacyReport:
        """Certified and nominal, for all fits and paid scores of this estimator and its clones, and all else in its ledger.

        The cost of the last fit alone is ``run_.privacy``.

        Raises:
            NotFittedError: nothing has been spent.
        """
        spent, account = self._spent, None
        try:
            if self.ledger is not None or spent.lineage.paid:
                account = self._open_ledger().account(spent.lineage)
        except InputError:  # the ledger stayed behind: what went along counts
            if spent.lineage.paid:
                account = Account.of((), spent.lineage, unit=spent.lineage.paid[0].unit)
        if account is None or not account.paid:  # of a file that processes share, what they entered counts
            raise NotFittedError(f"this {type(self).__name__} has spent nothing yet; call 'fit' first")
        fits = sum(bool(entry.of(NoisySgd)) for entry in account.paid)
        scores = sum(entry.words == SCORE for entry in account.paid)
        notes = list(spent.notes)
        if fits + scores > 1:
            many = f"{fits} trainings and {scores} paid scores are in this account"
            notes.insert(0, f"{many}; epsilon covers all of them together")
        return statement(account, self.delta, adjacency=cast(Adjacency, self.adjacency), notes=notes)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.non_deterministic = True  # noise is never decided by random_state
        return tags


def _in_order(name: str, given: Any, labels: Sequence[Any], order: np.ndarray) -> Any:
    """Return what a parameter says of each label, in their order; a mapping is by label, a sequence by sorted ones."""
    if isinstance(given, (list, tuple, np.ndarray)) and len(given) == len(labels):
        return [float(given[at]) for at in np.argsort(order)]
    if not isinstance(given, Mapping):
        return given
    if unknown := [label for label in given if label not in labels]:
        raise InputError(f"`{name}`: {unknown[0]!r:.40} is no label; name those of `y`")
    return [float(given.get(label, 1.0)) for label in labels]


@dataclass(eq=False, repr=False, kw_only=True)
class TicketClassifier(ClassifierMixin, TicketEstimator):
    """A classifier trained under differential privacy: a lottery ticket, or a whole network.

    Parameters are keywords. Those that state public facts may not be read off the private records: what is left out is
    read off, taken as public, and named in ``privacy_.notes``.

    Args:
        epsilon: what one fit may cost, with what its ticket cost. Noise is calibrated to the certified figure. Beside
            ``noise_multiplier`` it says nothing.
        delta: of the guarantee, below 1 / ``n_records``.
        noise_multiplier: noise over sensitivity, in place of ``epsilon``: then a fit costs what ``privacy_`` says, and no
            ``epsilon`` limits it.
        bounds: public range of the features, ``(low, high)``: two numbers, or two arrays with a number a column. Needed
            unless values are bytes or booleans. Values outside saturate.
        schema: in place of ``bounds`` and ``classes``, of data frames with words, dates or holes: what columns hold, or the
            file that says so (``dpltm datasets schema``). Columns go by name, in any order.
        classes: all labels that there are, public; or their number K, for labels 0 to K - 1.
        n_records: public number of records, by which sampling rates are computed.
        tickets: a ticket set or winner; None for a whole network.
        round: the ticket of a set that is taken.
        select_epsilon: draws the ticket on the records in place of ``round``, for so much of ``epsilon``.
        model: network, where there are no tickets; by default one layer behind features, else ``mlp:300,100``.
        features: what stands in front of the network, as for ``dpltm.train``; ``auto`` is ``fourier`` in front of
            one layer (``unit`` of records with a ``record_shape``), nothing in front of another ``model``; None for nothing.
        record_shape: of a record whose values stand in a row, such as ``(28, 28)``; needed by maps for images.
        head: how the network is fitted: ``dp-sgd``, or ``least-squares`` for one layer behind features with nothing to tune.
        filter, clip_norm: gradient filter, and the norm that it clips to.
        epochs, batch_size: expected passes over the records, 15 by default, and expected batch size.
        lr, optimizer, schedule: of the steps, as for ``dpltm.train``.
        centre: part of ``epsilon`` by which features are centred at their noisy mean; 0.05 by default in front of one layer.
        noise: ``secure``, or ``fast`` for bits that are not cryptographic.
        adjacency: neighbouring relation, ``add-remove`` or ``replace-one``.
        per_unit: most records of a person that count, where ``fit`` gets ``units``; 64 by default.
        rows_coincide: whether records of different people may well be equal, such as of a few categories: then ``score``
            cannot tell by its rows whether a record was trained on, and does not refuse it.
        ledger: a ``Ledger``, or a function that opens one in the process that fits. None for that of this process. Clones
            share it.
        random_state: decides the starting weights. Never the noise or the sampling: fits differ.
        name: what messages and the ledger call the records.
        unit: the noun of whose each record is, where ``fit`` gets ``units``, such as ``patient``: a ledger has one.
        class_weight: what filtered gradients are multiplied by, over the largest: numbers in the order of ``classes_``, a
            mapping from labels (1 for those that it lacks), or ``balanced``, by
        class_shares: public shares of the classes, likewise. The guarantee is the same.
        score_epsilon: what each :meth:`score` releases its accuracy for, with noise. None measures it exactly, for records
            that no release was made from.

    Attributes:
        classes_: labels, sorted.
        n_features_in_, feature_names_in_: columns of ``X`` in ``fit``.
        run_: the run, as ``dpltm.train`` returns it.
        ticket_: its mask.
        privacy_: what all fits and paid scores of this estimator and its clones cost together.
        ledger_: where this one enters what it spends.

    Guarantees:
        Every release is in the ledger before its noise is drawn. One fit costs at most ``epsilon``, certified,
        unless there is a ``noise_multiplier``.
    """

    classes: int | Sequence[Any] | None = None
    class_weight: str | Mapping[Any, float] | Sequence[float] | None = None
    class_shares: Mapping[Any, float] | Sequence[float] | None = None
    score_epsilon: float | None = None

    def _encoded(self, y: np.ndarray) -> tuple[np.ndarray, int | None, dict[str, Any]]:
        check_classification_targets(y)
        labels, declared = self._labels(y)
        codes = self._codes(y, labels, "that `classes` declares")
        if (codes == codes[0]).all():
            raise InputError(f"`y`: all records have label {str(y[0])!r:.40}; give records of two classes or more")
        order = np.argsort(labels)
        self.__dict__["_of_classes"] = {
            name: _in_order(name, getattr(self, name), labels.tolist(), order)
            for name in ("class_weight", "class_shares")
        }
        return codes, declared, {"classes_": labels[order], "_order": order}

    def _codes(self, y: np.ndarray, labels: np.ndarray, seen: str) -> np.ndarray:
        """Return the class of each label, ``(n,)`` int64: its place among all labels, which are sorted or a schema's."""
        label = self._label_column()
        if label is None:
            return numbered(y, labels, seen)
        faults = Faults("record")
        codes = classes_of(label, Cells.of_objects(list(y)), faults, range(len(y)).__getitem__)
        for _, fault, fix in faults.rows():
            raise InputError(f"`y`: {fault}, as the schema has them; {fix}")
        return codes

    def _label_column(self) -> Column | None:
        with naming():
            schema = as_schema(self.schema)
        return next((column for column in (schema.columns if schema else ()) if column.kind == "label"), None)

    def _labels(self, y: np.ndarray) -> tuple[np.ndarray, int | None]:
        """Return all labels, sorted or as a schema has them; and how many were declared, None if ``y`` was read for them."""
        declared: int | None
        if (label := self._label_column()) is not None:
            if self.classes is not None:
                raise InputError("`classes`: the schema says what they are; leave `classes` out")
            names = np.array([spellings[0] for spellings in label.values])
            with contextlib.suppress(ValueError):
                if y.dtype.kind in "iufb":
                    names = names.astype(np.int64 if y.dtype.kind == "b" else y.dtype)
            return names, len(names)
        if self.classes is None:
            labels, declared = np.unique(y), None
        elif isinstance(self.classes, (int, np.integer)) and not isinstance(self.classes, bool):
            labels, declared = np.arange(self.classes), int(self.classes)
        else:
            labels = np.unique(np.asarray(self.classes))
            declared = len(labels)
        if len(labels) < 2:
            raise InputError("`classes`: there is one class, so nothing can be told apart; give two or more")
        return labels, declared

    def _told(self, X: Any) -> np.ndarray:
        return super()._told(X)[:, self._order]

    def predict(self, X: Any) -> np.ndarray:
        """Return the most likely label of each record, ``(n,)``."""
        best = self._told(X).argmax(1)
        return np.asarray(self.classes_[best])

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities ``(n, classes)``, in the order of ``classes_``."""
        return softmax(self._told(X), axis=1)

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Logarithms of :meth:`predict_proba`."""
        return log_softmax(self._told(X), axis=1)

    def decision_function(self, X: Any) -> np.ndarray:
        """Return the network's outputs before softmax, ``(n, classes)``; of two classes the difference, ``(n,)``."""
        outputs = self._told(X)
        return outputs[:, 1] - outputs[:, 0] if len(self.classes_) == 2 else outputs

    def score(self, X: Any, y: Any, units: Any = None) -> float:
        """Return accuracy: exact on records that no release was made from; with ``score_epsilon``, with noise, and paid for.

        Args:
            X: ``(n, columns)``.
            y: labels ``(n,)``.
            units: whose each record is, where ``fit`` was told: no person may be in both.

        Raises:
            ValueError: a label that ``fit`` did not know; or records that are private, without ``score_epsilon``.
        """
        X, y = self._validated(X, y, reset=False)
        with _named_as_parameters():
            codes = self._codes(y, self.classes_, "that fit knew")
            if self.score_epsilon is None:
                return self._accuracy(X, codes, units)
            right = (self._outputs(X, alike=True).argmax(1) == codes).astype(float)
            (mean,) = self._released_means(X, codes, right[None], units, self.score_epsilon)
            return float(min(max(mean, 0.0), 1.0))


@dataclass(eq=False, repr=False, kw_only=True)
class TicketRegressor(RegressorMixin, TicketEstimator):
    """A regressor trained under differential privacy, by telling apart which part of a public range a target falls into.

    The range of targets is cut into ``bins`` equal parts, a network learns which one a record's target is in, as that of a
    classifier does, and the mean over the parts is what it predicts (histogram loss, Imani and White 2018). The gradient
    filter bounds what a record adds, so a wild target does no more harm than any other; the run is one like all others.

    Args:
        epsilon, delta, noise_multiplier, bounds, schema, n_records: as for :class:`TicketClassifier`; and likewise
        tickets, round, select_epsilon, model, features, record_shape: of as many classes as there are ``bins``;
        head, filter, clip_norm, epochs, batch_size, lr, optimizer, schedule, centre, noise, adjacency: of the training;
        per_unit, rows_coincide, ledger, random_state, name, unit: as there.
        target_bounds: public range of the targets, ``(low, high)``; needed. Targets outside count as its ends.
        bins: equal parts of that range.
        score_epsilon: what each :meth:`score` releases R^2 for, from sums with noise. None measures it exactly, for records
            that no release was made from.

    Attributes:
        bin_centres_: middle of each part, ``(bins,)``.
        n_features_in_, feature_names_in_, run_, ticket_, privacy_, ledger_: as of :class:`TicketClassifier`.

    Guarantees:
        As of :class:`TicketClassifier`.
    """

    _numeric: ClassVar[bool] = True

    target_bounds: tuple[float, float] | None = None
    bins: int = 10
    score_epsilon: float | None = None

    def _encoded(self, y: np.ndarray) -> tuple[np.ndarray, int | None, dict[str, Any]]:
        edges = self._edges()
        learned = {"bin_centres_": (edges[:-1] + edges[1:]) / 2, "_edges_": edges}
        return _part_of(y, edges), len(edges) - 1, learned

    def _edges(self) -> np.ndarray:
        if self.target_bounds is None:
            raise InputError(
                "`target_bounds` is missing: the public range of the targets, (low, high); those of the data would leak them"
            )
        ends = np.asarray(self.target_bounds, dtype=np.float64)
        if ends.shape != (2,) or not 0 < float(ends[1]) - float(ends[0]) < np.inf:
            raise InputError("target_bounds", self.target_bounds, "a pair of finite numbers (low, high), low first")
        count = whole_number("bins", self.bins)
        if not 2 <= count <= MAX_BINS:
            raise InputError("bins", count, f"a whole number from 2 to {MAX_BINS:,}")
        return np.linspace(ends[0], ends[1], count + 1)

    def predict(self, X: Any) -> np.ndarray:
        """Return the expected target of each record, ``(n,)``: the mean of ``bin_centres_`` by the chances of the parts."""
        return softmax(self._told(X), axis=1) @ self.bin_centres_

    def score(self, X: Any, y: Any, units: Any = None) -> float:
        """Return R^2, as :meth:`TicketClassifier.score` does accuracy; paid for, of targets in their bounds, from -1 to 1.

        Args:
            X, y, units: as there; targets ``(n,)``.

        Raises:
            ValueError: records that are private, without ``score_epsilon``.
        """
        X, y = self._validated(X, y, reset=False)
        with _named_as_parameters():
            codes = _part_of(y, self._edges_)
            predicted = softmax(self._outputs(X, alike=self.score_epsilon is not None), axis=1) @ self.bin_centres_
            if self.score_epsilon is None:
                self._accuracy(X, codes, units)  # declares them, and refuses those of people who are protected
                return float(r2_score(y, predicted))
            low, span = self._edges_[0], self._edges_[-1] - self._edges_[0]
            target = np.clip((y - low) / span, 0.0, 1.0)
            errors = np.square(target - (predicted - low) / span)
            values = np.stack([errors, target, target**2])
            error, mean, square = self._released_means(X, codes, values, units, self.score_epsilon)
            return float(min(max(1 - error / max(square - mean**2, 1e-12), -1.0), 1.0))


for _made in (TicketEstimator, TicketClassifier, TicketRegressor):
    del _made.__dataclass_fields__  # so dataclasses.replace refuses: its copy would begin an account of its own


def _part_of(y: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return the part of the range of each target, ``(n,)`` from 0; the ends of the range take what is outside."""
    return np.clip(np.searchsorted(edges, y, side="right") - 1, 0, len(edges) - 2)
