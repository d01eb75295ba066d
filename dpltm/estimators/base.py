"""What the estimators of the scikit-learn face share: parameters, one training by ``dpltm.train``, and what clones spent.

scikit-learn copies an estimator before each fit of a cross-validation or a grid search, and throws the copies away. Each of
them read the records, so each of them counts: the ledger holds all of it, and clones share what they spent. The epsilon that
is asked for is that of one fit; ``privacy_`` is everything together.
"""

from __future__ import annotations

import contextlib
import copy
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, cast

import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import NotFittedError
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from dpltm import api
from dpltm.errors import DpltmError, InputError, in_python, named, shown_value
from dpltm.estimators.records import Bounds, Columns, dense, owners, private_records, separate_records
from dpltm.features.inputs import Services
from dpltm.features.setup import take_over_map
from dpltm.networks.masks import Mask
from dpltm.options import arguments
from dpltm.options.select import SelectOptions
from dpltm.options.train import TrainOptions
from dpltm.privacy.account import Account, check_declared, check_private
from dpltm.privacy.checks import check_epsilon
from dpltm.privacy.entry import NO_LINEAGE, RECORD, Entry, Lineage
from dpltm.privacy.ledger import Book, Ledger, of_process
from dpltm.privacy.mechanisms import Adjacency, Guarantee, NoisySgd
from dpltm.privacy.release import Secret, pay
from dpltm.privacy.statement import PrivacyReport, statement
from dpltm.randomness.noise import MIN_EPSILON, KeyedSource, two_sided_geometric
from dpltm.records import Dataset
from dpltm.records.notes import NO_TEST
from dpltm.training.artifacts import Run, TicketSet, Winner
from dpltm.training.start import from_round
from dpltm.verbs import select as select_verb
from dpltm.verbs.train import plan, settle

SCORE = "a score: sums with two-sided geometric noise"
"""What a score that is paid for releases."""

SCORED = "how many records `score` was measured on is treated as public"

GRID = 1024
"""Steps of a value that a paid score sums."""

FEW_COLUMNS = 32
"""Up to so many columns, ``features="auto"`` means ``fourier``; above ``unit``, which needs no room for interactions. By the
public number of columns alone. This, and that step sizes fall to zero, was compared on the digits (64 columns) and breast
cancer (30) that come with scikit-learn, at epsilon 0.3, 1 and 3."""

WHOSE = (
    "`score` was not told whose its records are: accuracy on records of persons who were trained on would show what is"
    " protected; pass `units` to it as well"
)

NO_LIMIT = (
    "`noise_multiplier` was given, so `epsilon` limited nothing: what the fits cost is what their noise comes to"
)

_TRAINING = (
    "head",
    "filter",
    "clip_norm",
    "batch_size",
    "epochs",
    "lr",
    "optimizer",
    "schedule",
    "centre",
    "noise",
    "adjacency",
    "per_unit",
)
"""Parameters that are options of ``dpltm.train`` under the same name."""


_SPARSE: dict[str, Any] = {"accept_sparse": ("csr", "csc"), "accept_large_sparse": False}
"""What is taken beside arrays and data frames."""

_SEEN = ("n_features_in_", "feature_names_in_")
"""What scikit-learn remembers of columns as soon as it has seen them."""

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
"""What parameters are called here, by the names that the verbs have for them."""


@dataclass(eq=False)
class Spent:
    """What an estimator and its clones spent: shared by all of them.

    Attributes:
        lineage: of all fits and paid scores.
        notes: what the fits said of their public inputs, each once.
        process: that it was made in.
        lock: for threads.
    """

    lineage: Lineage = NO_LINEAGE
    notes: dict[str, None] = field(default_factory=dict)
    process: int = field(default_factory=os.getpid)
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False)

    def __copy__(self) -> Spent:
        return self

    def __deepcopy__(self, memo: object) -> Spent:
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {"lineage": self.lineage, "notes": dict(self.notes), "process": 0}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, lock=threading.RLock())

    def add(self, lineage: Lineage) -> None:
        """Add what one of them spent."""
        with self.lock:
            self.lineage |= lineage


@dataclass(frozen=True)
class SumsRelease:
    """Sums of values from 0 to 1 a record, with noise. See :class:`dpltm.privacy.release.Release`.

    Attributes:
        entry, lineage: of the release, and of what it is made of.
        account: what counts beside it.
        values: whole numbers from 0 to ``GRID``, ``(sums, n)``; private.
        each: epsilon of a unit of a sum.
    """

    entry: Entry
    lineage: Lineage
    account: Account
    values: np.ndarray = field(repr=False)
    each: float = 0.0

    def check(self) -> None:
        """Refuse records that were declared public or apart."""
        check_private(self.account, self.entry.part)

    def draw(self, secret: Secret, at: object) -> Iterator[np.ndarray]:
        """Yield the sums."""
        del at
        source = KeyedSource(secret.child("score"))
        yield np.array([int(one) + two_sided_geometric(source, self.each) for one in self.values.sum(1)]) / GRID


def named_here(text: str) -> str:
    """Return a sentence of a verb with the parameters of an estimator."""
    return named(text, lambda name: f"`{_NAMES.get(name, name)}`")


@contextlib.contextmanager
def named_as_parameters() -> Iterator[None]:
    """A block whose refusals name parameters of an estimator."""
    try:
        yield
    except DpltmError as error:
        error.args = (named_here(str(error).replace("`ticket`: unknown network", "`model`: unknown network")),)
        raise


@dataclass(eq=False, repr=False, kw_only=True)
class TicketEstimator(BaseEstimator):
    """What both estimators have in common: parameters, one training, and the account of all of them."""

    epsilon: float | None = 1.0
    delta: float = 1e-5
    noise_multiplier: float | None = None
    bounds: Bounds = None
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
    schedule: str = "linear"
    centre: float | None = None
    noise: str = "secure"
    adjacency: str = "add-remove"
    per_unit: int | None = None
    rows_coincide: bool = False
    ledger: Ledger | Callable[[], Ledger] | None = None
    random_state: int | np.random.RandomState | None = None
    name: str = "records"
    unit: str = "user"

    # copies share what was spent; so does a pickled one, without the ledger

    def __sklearn_clone__(self) -> TicketEstimator:
        given = self.get_params(deep=False).items()
        twin = type(self)(**{name: value if name in _SHARED else clone(value, safe=False) for name, value in given})
        if (
            "_metadata_request" in self.__dict__
        ):  # what set_fit_request asked for, as scikit-learn's own clones have it
            twin._metadata_request = copy.deepcopy(self._metadata_request)
        return self._share_account(twin)

    def __copy__(self) -> TicketEstimator:
        twin = type(self).__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return self._share_account(twin)

    def __deepcopy__(self, memo: dict[int, Any]) -> TicketEstimator:
        self._share_account(self)
        twin = type(self).__new__(type(self))
        twin.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return twin

    def _share_account(self, twin: TicketEstimator) -> TicketEstimator:
        twin._shared_spent = self._spent
        return twin

    def __getstate__(self) -> dict[str, Any]:
        state = {**super().__getstate__(), "_shared_spent": self._spent}
        if "run_" in state:
            state["run_"] = replace(state["run_"], ledger=None, seconds=0.0)  # as in all artifacts
        return state

    @property
    def _spent(self) -> Spent:
        """What this estimator and its clones spent."""
        spent: Spent | None = self.__dict__.get("_shared_spent")
        if spent is None:
            spent = self._shared_spent = Spent()
        return spent

    def _open_ledger(self, unit: str | None = None) -> Ledger:
        """The ledger that pays.

        Args:
            unit: whom it is to protect; None for whomever it protects.

        Raises:
            InputError: it stayed in another process, or with what was pickled; or what opens one does not.
        """
        if self.ledger is None:
            if self._spent.process != os.getpid():
                raise InputError(
                    "`ledger`: this estimator was pickled, and its ledger stayed behind: what it spends here would be"
                    " entered nowhere that you see; leave `n_jobs` 1, use threads (joblib.parallel_backend), or give"
                    " `ledger` as a function that opens a file which processes share:"
                    " functools.partial(dpltm.tickets.open_ledger, path)"
                )
            return of_process(unit or self.__dict__.get("_unit", "record"))
        found = self.ledger() if callable(self.ledger) else self.ledger
        if not isinstance(found, Ledger):
            said = f"{shown_value(found)} is not a ledger"
            if callable(self.ledger):
                said = f"the function returns {shown_value(found)}, not a ledger"
            raise InputError(
                f"`ledger`: {said}; give dpltm.Ledger(), or a function that opens the same file each time"
                " (functools.partial(dpltm.tickets.open_ledger, path))"
            )
        return found

    # training

    def _fit(
        self, x: np.ndarray, y: np.ndarray, classes: int | None, units: Any, *, for_training: bool = True
    ) -> None:
        """Train on the records, and keep the run.

        Args:
            x: ``(n, columns)``.
            y: classes, ``(n,)``, from 0.
            classes: how many were declared; None to count them.
            units: whose each record is; None where single records are protected.
            for_training: whether more than one class has to be there.
        """
        self._check_parameters()
        self._check_units(units is not None)
        features = x.shape[1]
        columns = Columns.of(self.bounds, features, self.record_shape)
        facts: dict[str, Any] = {"classes": classes, "records": self.n_records, "name": self.name, "unit": self.unit}
        facts |= {"rows_coincide": self.rows_coincide}
        facts |= {"units": None if units is None else owners(units), "for_training": for_training}
        dataset = private_records(columns, x, y, facts)
        run = self._train(dataset, features)
        said = () if run.privacy is None else run.privacy.notes
        # `score` measures what NO_TEST misses
        self._spent.notes |= dict.fromkeys(named_here(note) for note in said if note != NO_TEST)
        if self.noise_multiplier is not None:
            self._spent.notes |= {NO_LIMIT: None}
        self.run_, self._columns, self._unit = run, columns, dataset.noun

    def _check_parameters(self) -> None:
        """Raises InputError for parameters that say nothing beside others, before a ticket is drawn and paid for."""
        if self.noise_multiplier is not None and self.epsilon not in (None, TicketEstimator.epsilon):
            raise InputError(
                "`epsilon`, `noise_multiplier`: noise decides what a fit costs, so `epsilon` would say nothing; leave one of"
                " them out"
            )
        if self.tickets is not None and self.model is not None:
            raise InputError("`model`: the ticket set decides the network; leave `model` out")

    def _check_units(self, given: bool) -> None:
        """Raises InputError for parameters that do not go with the unit of privacy, before anything is paid for."""
        if not given and self.per_unit is not None:
            raise InputError(
                "`per_unit`: bounds what one person gives, so it goes with `units`; leave it out, or pass `units` to fit"
            )
        for name in ("select_epsilon", "score_epsilon") if given else ():
            if getattr(self, name) is not None:
                raise InputError(
                    f"`{name}`: pays for single records alone, and `units` asks that all of a person's be protected; leave"
                    f" `{name}` out" + ("" if name == "select_epsilon" else ", and score on records of other persons")
                )

    def _drawn(self, dataset: Dataset, ledger: Ledger, training: dict[str, Any]) -> TicketSet | Winner | None:
        """The tickets, or the winner of a draw on the records, where one is asked for."""
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
        options |= {"delta": self.delta, "adjacency": self.adjacency}
        self._rehearse(tickets, dataset, ledger, options, training)
        winner = api.select(tickets, dataset, ledger=ledger, **options)
        self._spent.add(winner.lineage)
        return winner

    def _rehearse(
        self,
        tickets: TicketSet,
        dataset: Dataset,
        ledger: Ledger,
        drawing: dict[str, Any],
        training: dict[str, Any],
    ) -> None:
        """Refuse what the training after a draw would be refused for, had the sparsest ticket won: that is public."""
        with in_python(model="tickets", public="tickets"):
            drawn = arguments(SelectOptions, drawing)
            draw = select_verb.plan(tickets, dataset, drawn, ledger, Services())
            book = Book.new(unit=ledger.unit).adding([draw.entry], ["0" * 64])
            given = arguments(TrainOptions, training)
            behind = take_over_map(dataset, None, given, tickets.label)
            start = from_round(tickets, draw.candidates[-1].round)
            planned = plan(settle(start, behind, given, ledger, Services()), book)
            ledger.account(tickets.lineage).check_budget((draw.entry, planned.entry))

    def _train(self, dataset: Dataset, columns: int) -> Run:
        options = {name: getattr(self, name) for name in _TRAINING}
        options |= {"epsilon": self.epsilon, "noise_multiplier": self.noise_multiplier, "delta": self.delta}
        if self.noise_multiplier is not None:  # the default budget says nothing beside it
            options["epsilon"] = None
        if (
            self.head != "dp-sgd" and self.schedule == "linear"
        ):  # nor does the default schedule, of a head that takes none
            options["schedule"] = "constant"
        options["seed"] = int(check_random_state(self.random_state).randint(2**31 - 1))
        behind = {**options, "features": None if self.features == "auto" else self.features}
        ledger = self._open_ledger(dataset.noun)
        try:
            with in_python(dataset="x"):
                check_private(ledger.account(self._spent.lineage), ledger.part(dataset))
        except InputError as error:
            raise InputError(f"{error}; to cross-validate on private records give `score_epsilon`") from None
        tickets = self._drawn(dataset, ledger, behind)
        features = self.features
        if features == "auto":
            features = "fourier" if columns <= FEW_COLUMNS else "unit"
        if tickets is None and self.round is not None:
            raise InputError("`round`: of a ticket set; give `tickets`, or leave it out")
        network = self.model or ("mlp:300,100" if features in (None, "none") else "mlp")
        if tickets is not None:
            run = api.train(tickets, dataset, round=self.round, ledger=ledger, own=True, **behind)
        else:
            run = api.train(network, dataset, ledger=ledger, own=True, features=features, **options)
        self._spent.add(run.lineage)
        return run

    @contextlib.contextmanager
    def _fitting(self) -> Iterator[None]:
        """A block in which a fit is settled: if it is refused, what the last one learned stays whole."""
        known = {name: self.__dict__[name] for name in _SEEN if name in self.__dict__}
        try:
            with named_as_parameters():
                yield
        except BaseException:
            for name in _SEEN:
                self.__dict__.pop(name, None)
            self.__dict__.update(known)
            raise

    def _validated(self, X: Any, y: Any = None, *, numeric: bool = False) -> Any:
        """Records, and labels with them, as scikit-learn checks them in ``fit``."""
        X, y = validate_data(self, X, y, y_numeric=numeric, **_SPARSE)
        return dense(X), y

    def _to_score(self, X: Any, y: Any, *, numeric: bool = False) -> Any:
        """The same in ``score``, of columns as those in ``fit``."""
        check_is_fitted(self)
        if self.run_.config.get("of_persons"):
            self._check_units(True)
        X, y = validate_data(self, X, y, reset=False, y_numeric=numeric, **_SPARSE)
        return dense(X), y

    def _told(self, X: Any) -> np.ndarray:
        """What the network says of records without labels, before softmax, ``(n, classes)`` float64."""
        check_is_fitted(self)
        return self._outputs(dense(validate_data(self, X, reset=False, **_SPARSE)))

    def _outputs(self, X: np.ndarray) -> np.ndarray:
        with named_as_parameters():
            return api.predict(self.run_, self._columns.records(X)).outputs.astype(np.float64)

    # what was learned, and what it cost

    def _released_sums(self, records: Dataset, values: np.ndarray, epsilon: float) -> np.ndarray:
        """Sums of values from 0 to 1 a record, ``(sums, n)``, with noise, paid for: together ``epsilon``.

        Guarantees:
            Each value is rounded to a whole number of ``1 / GRID`` first, so one record more, less or another changes each
            sum by at most ``GRID`` of those, and two-sided geometric noise of epsilon / (sums GRID) makes each
            (epsilon / sums)-DP, exactly (docs/privacy-model.md section 5.8).
        """
        check_epsilon("score_epsilon", epsilon)
        each = epsilon / (len(values) * GRID)
        if each < MIN_EPSILON:
            raise InputError(f"`score_epsilon`: {epsilon:g} is nothing but noise; give 0.01 or more")
        whole = np.rint(np.clip(values, 0.0, 1.0) * GRID).astype(np.int64)
        ledger, lineage = self._open_ledger(), self.run_.lineage
        mechanism = Guarantee(epsilon, adjacency=cast(Adjacency, self.adjacency))
        entry = Entry("release", ledger.part(records), (mechanism,), SCORE, unit=RECORD)

        def planned(book: Book, known: Entry | None) -> SumsRelease:
            del known
            return SumsRelease(entry, lineage, book.account(lineage), whole, each)

        paid = pay(planned, ledger)
        self._spent.add(paid.lineage)
        self._spent.notes |= {SCORED: None}
        return next(paid.values)

    def _separate(self, X: np.ndarray, codes: np.ndarray, units: Any) -> Dataset:
        """Held-out records, which are declared apart from the people of the ledger from now on.

        Raises:
            InputError: a release was made from them.
        """
        whose = None if units is None else owners(units)
        held_out = separate_records(self.run_, self._columns, X, codes, whose, self.unit, self.rows_coincide)
        if units is None and self.run_.config.get("of_persons"):
            self._spent.notes |= {WHOSE: None}
        try:
            ledger = self._open_ledger()
            with in_python(test="x", dataset="x"):
                spent, part = ledger.account(self._spent.lineage), ledger.part(held_out.tested())
                check_declared(spent, part, "measured without a price")
                api.evaluate(self.run_, held_out, ledger=ledger)
                for draft in ledger.apart(held_out):
                    if (declared := ledger.book.found(draft)) is not None:
                        self._spent.add(ledger.lineage(declared))
        except InputError as error:
            raise InputError(f"{error}; or give `score_epsilon`, which pays for a score with noise") from None
        return held_out

    def __sklearn_is_fitted__(self) -> bool:
        return "run_" in self.__dict__

    @property
    def ticket_(self) -> Mask:
        """Which weights are live: the mask of the ticket, or one that keeps everything."""
        check_is_fitted(self)
        return self.run_.mask

    @property
    def ledger_(self) -> Ledger:
        """What pays for this estimator."""
        return self._open_ledger()

    @property
    def privacy_(self) -> PrivacyReport:
        """Certified and nominal, for all fits and paid scores of this estimator and its clones, and all else in its ledger.

        The cost of the last fit alone is ``run_.privacy``.

        Raises:
            NotFittedError: nothing has been spent.
        """
        spent = self._spent
        try:
            account = (
                None if self.ledger is None and not spent.lineage.paid else self._open_ledger().account(spent.lineage)
            )
        except InputError:  # the ledger stayed behind: what went along counts
            account = Account.of((), spent.lineage, unit=spent.lineage.paid[0].unit) if spent.lineage.paid else None
        if account is None or not account.paid:  # of a file that processes share, what they entered counts
            raise NotFittedError(f"this {type(self).__name__} has spent nothing yet; call 'fit' first")
        fits = sum(bool(entry.of(NoisySgd)) for entry in account.paid)
        scores = sum(entry.words == SCORE for entry in account.paid)
        notes = list(spent.notes)
        if fits + scores > 1:
            notes.insert(
                0,
                f"{fits} trainings and {scores} paid scores are in this account; epsilon covers all of them together",
            )
        return statement(account, self.delta, adjacency=cast(Adjacency, self.adjacency), notes=notes)

    @property
    def partial_fit(self) -> NoReturn:
        """There is none: no attribute, as far as scikit-learn's tools look.

        Raises:
            AttributeError: always, with the reason.
        """
        raise AttributeError(
            f"{type(self).__name__} has no partial_fit: sampling rates and noise are settled by the number of all records"
            " before the first step; collect the records, and call fit once"
        )

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.non_deterministic = True  # noise is never decided by random_state
        return tags
