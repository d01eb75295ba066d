"""What the estimators of scikit-learn's face share: parameters, one training by ``dpltm.train``, and one account of all."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import NotFittedError
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from dpltm import face
from dpltm.calls import check_types
from dpltm.errors import InputError, in_python
from dpltm.estimators.account import Account, Book
from dpltm.estimators.draw import draw_ticket
from dpltm.estimators.records import (
    Bounds,
    Columns,
    dense,
    owners,
    private_records,
    scored_records,
    separate_records,
)
from dpltm.estimators.words import in_our_words, in_words_of_fit
from dpltm.networks.masks import Mask
from dpltm.privacy.old_ledger import Ledger
from dpltm.privacy.statement import PrivacyReport
from dpltm.pruning.ticket_set import TicketSet, Winner
from dpltm.randomness.noise import MIN_EPSILON, SecureSource, two_sided_geometric
from dpltm.records import Dataset
from dpltm.records.notes import NO_TEST
from dpltm.stages.checks import check_epsilon
from dpltm.stages.evaluate import plan_evaluation
from dpltm.training.run import Run

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
    ledger: Ledger | Callable[[], Ledger] | None = None
    random_state: int | np.random.RandomState | None = None
    name: str = "records"

    # copies share the account; a pickled estimator leaves it behind

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
        twin._account = self._open_account()
        return twin

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        state.pop("_account", None)
        state["_before"] = self._open_account().left_behind(self.ledger)
        if "run_" in state:
            state["run_"] = replace(state["run_"], ledger=None, seconds=0.0)  # as in all artifacts
        return state

    def _open_account(self) -> Account:
        """The account of this estimator and its clones."""
        account: Account | None = self.__dict__.get("_account")
        if account is None:
            account = self._account = Account(self.__dict__.get("_before"))
        return account

    def _open_book(self) -> Book:
        """What the account has in the ledger that is named now.

        Raises:
            InputError: it stayed in another process, or with what was pickled.
        """
        if callable(self.ledger):
            return self._open_account().book(self.ledger)
        check_types(ledger=self.ledger)
        tickets = self.tickets.tickets if isinstance(self.tickets, Winner) else self.tickets
        return self._open_account().book(self.ledger if self.ledger is not None else getattr(tickets, "ledger", None))

    # training

    def _fit(
        self, x: np.ndarray, y: np.ndarray, classes: int | None, units: Any, *, for_training: bool = True
    ) -> None:
        """Trains on the records, and keeps the run; everything is entered before it is spent.

        Args:
            x: ``(n, columns)``.
            y: classes, ``(n,)``, from 0.
            classes: how many were declared; None to count them.
            units: whose each record is; None where single records are protected.
            for_training: whether more than one class has to be there.
        """
        book = self._open_book()
        self._check_parameters()
        self._check_units(units is not None)
        features = x.shape[1]
        columns = Columns.of(self.bounds, features, self.record_shape)
        facts: dict[str, Any] = {"classes": classes, "records": self.n_records, "name": self.name}
        facts |= {"units": None if units is None else owners(units), "for_training": for_training}
        dataset = private_records(columns, x, y, facts)
        with in_python():
            own = book.open_fit(dataset, self.adjacency)
        run = self._train(dataset, book, own, features)
        said = () if run.privacy is None else run.privacy.notes
        book.account.notes |= dict.fromkeys(
            in_words_of_fit(note) for note in said if note != NO_TEST
        )  # `score` measures it here
        if self.noise_multiplier is not None:
            book.account.notes |= {NO_LIMIT: None}
        self.run_, self._columns = run, columns

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

    def _drawn(
        self, dataset: Dataset, book: Book, ledger: Ledger, training: dict[str, Any]
    ) -> TicketSet | Winner | None:
        """The tickets, or the winner of a draw on the records, where one is asked for."""
        if self.select_epsilon is None:
            if isinstance(self.tickets, TicketSet) and self.round is None:
                raise InputError(
                    "`round` is missing: say which ticket of the set, or give `select_epsilon` to draw one on the records"
                )
            return self.tickets
        if self.tickets is None or self.round is not None:
            raise InputError("`select_epsilon`: draws one ticket of a set; give `tickets`, and leave `round` out")
        options: dict[str, Any] = {"eps1": self.select_epsilon, "score": "additive"}
        options |= {"delta": self.delta, "adjacency": self.adjacency}
        return draw_ticket(self.tickets, dataset, book, ledger, options, training)

    def _train(self, dataset: Dataset, book: Book, ledger: Ledger, columns: int) -> Run:
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
        tickets = self._drawn(dataset, book, ledger, behind)
        if tickets is not None:
            return face.train(tickets, dataset, round=self.round, ledger=ledger, **behind)
        features = self.features
        if features == "auto":
            features = "fourier" if columns <= FEW_COLUMNS else "unit"
        if self.round is not None:
            raise InputError("`round`: of a ticket set; give `tickets`, or leave it out")
        network = self.model or ("mlp:300,100" if features in (None, "none") else "mlp")
        return face.train(network, dataset, ledger=ledger, features=features, **options)

    @contextlib.contextmanager
    def _fitting(self) -> Iterator[None]:
        """A block in which a fit is settled: if it is refused, what the last one learned stays whole."""
        known = {name: self.__dict__[name] for name in _SEEN if name in self.__dict__}
        try:
            with in_our_words():
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
        if self.run_.config.get("unit") == "user":
            self._check_units(True)
        X, y = validate_data(self, X, y, reset=False, y_numeric=numeric, **_SPARSE)
        return dense(X), y

    def _told(self, X: Any) -> np.ndarray:
        """What the network says of records without labels, before softmax, ``(n, classes)`` float64."""
        check_is_fitted(self)
        return self._outputs(dense(validate_data(self, X, reset=False, **_SPARSE)))

    def _outputs(self, X: np.ndarray) -> np.ndarray:
        with in_our_words():
            return face.predict(self.run_, self._columns.records(X)).outputs.astype(np.float64)

    # what was learned, and what it cost

    def _released_sums(self, book: Book, records: Dataset, values: np.ndarray, epsilon: float) -> np.ndarray:
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
        sums = np.rint(np.clip(values, 0.0, 1.0) * GRID).astype(np.int64).sum(1)
        book.pay_score(records, self.adjacency, epsilon)
        book.account.notes |= {SCORED: None}
        return np.array([int(one) + two_sided_geometric(SecureSource(), each) for one in sums]) / GRID

    def _separate(self, X: np.ndarray, codes: np.ndarray, book: Book, units: Any) -> Dataset:
        """Held-out records, after checking that no release was made from them; they count as looked at from now on.

        Raises:
            InputError: one was.
        """
        held_out = separate_records(self.run_, self._columns, X, codes, None if units is None else owners(units))
        if units is None and self.run_.config.get("unit") == "user":
            book.account.notes |= {WHOSE: None}
        try:
            with in_python(test="x"):
                for each in book.account.books:
                    plan_evaluation(self.run_, held_out, each.ledger)
        except InputError as error:
            raise InputError(f"{error}; or give `score_epsilon`, which pays for a score with noise") from None
        book.note_measured(scored_records(held_out))
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
        """Where this estimator enters what it spends."""
        return self._open_book().ledger

    @property
    def privacy_(self) -> PrivacyReport:
        """Certified and nominal, for all fits and paid scores of this estimator and its clones together, and notes.

        The cost of the last fit alone is ``run_.privacy``.

        Raises:
            NotFittedError: nothing has been spent.
        """
        account = self._open_account()
        if callable(self.ledger):  # others may have entered something there
            account.book(self.ledger)
        stated = account.total(self.delta, self.adjacency, "pld")
        if stated is None:
            raise NotFittedError(f"this {type(self).__name__} has spent nothing yet; call 'fit' first")
        return stated

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
