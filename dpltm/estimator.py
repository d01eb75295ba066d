"""The scikit-learn face: ``TicketClassifier`` and ``TicketRegressor``, over ``dpltm.train``, ``select``, ``evaluate``, ``predict``.

What was learned is in ``run_``, the same run that ``dpltm.train`` returns: ``dpltm.tickets.save(estimator.run_, folder)`` keeps it.

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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np
from scipy.special import log_softmax, softmax
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.exceptions import NotFittedError
from sklearn.utils import Tags, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from dpltm import face
from dpltm.data import Dataset
from dpltm.errors import DpltmError, InputError, named
from dpltm.estimator_account import Account
from dpltm.estimator_records import (
    Bounds,
    Columns,
    dense,
    numbered,
    private_records,
    scored_records,
    separate_records,
)
from dpltm.masks import Mask
from dpltm.noise import SecureSource, two_sided_geometric
from dpltm.privacy.ledger import Ledger
from dpltm.privacy.statement import PrivacyReport
from dpltm.run import Run
from dpltm.stages.checks import check_epsilon
from dpltm.stages.predict import Predictions
from dpltm.ticket_set import TicketSet, Winner

FEW_COLUMNS = 32
"""Up to so many columns, ``features="auto"`` means ``fourier``; above ``unit``, which needs no room for interactions. By the
public number of columns alone; compared on the digits (64 columns) and breast cancer (30) that come with scikit-learn."""

_WORDS = {
    "x": "X",
    "records": "n_records",
    "seed": "random_state",
    "eps1": "select_epsilon",
    "ticket": "tickets",
    "target": "tickets",
}
"""What parameters are called here, by the names that the stages have for them."""

_TRAINING = ("filter", "clip_norm", "batch_size", "epochs", "lr", "optimizer", "schedule", "centre", "noise", "adjacency")
"""Parameters that are options of ``dpltm.train`` under the same name."""


@contextlib.contextmanager
def _in_our_words() -> Iterator[None]:
    """A block whose refusals name parameters of an estimator."""
    try:
        yield
    except DpltmError as error:
        error.args = (_ours(str(error)),)
        raise


def _ours(text: str) -> str:
    return named(text, lambda name: f"`{_WORDS.get(name, name)}`")


@dataclass(eq=False, repr=False, kw_only=True)
class _TicketEstimator(BaseEstimator):
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
    filter: str = "clip"
    clip_norm: float = 1.0
    epochs: float | None = None
    batch_size: float | None = None
    lr: float | None = None
    optimizer: str = "sgd"
    schedule: str = "constant"
    centre: float | None = None
    noise: str = "secure"
    adjacency: str = "add-remove"
    ledger: Ledger | Callable[[], Ledger] | None = None
    random_state: int | np.random.RandomState | None = None
    name: str = "records"

    # copies share the account; a pickled estimator leaves it behind

    def __sklearn_clone__(self) -> _TicketEstimator:
        twin = type(self)(**{name: clone(value, safe=False) for name, value in self.get_params(deep=False).items()})
        return self._share_account(twin)

    def __copy__(self) -> _TicketEstimator:
        twin = type(self).__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return self._share_account(twin)

    def __deepcopy__(self, memo: dict[int, Any]) -> _TicketEstimator:
        self._share_account(self)
        twin = type(self).__new__(type(self))
        twin.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return twin

    def _share_account(self, twin: _TicketEstimator) -> _TicketEstimator:
        """The twin with our account, or with the mark of one that was pickled away; a ledger to open is not opened yet."""
        if "_left_behind" in self.__dict__:
            twin._left_behind = self._left_behind
        elif not callable(self.ledger) or "_account" in self.__dict__:
            twin._account = self._open_account()
        return twin

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        if "_account" in state or not callable(self.ledger):
            state["_left_behind"] = self.__dict__.get("_left_behind") or (self._stated_privacy(),)
        state.pop("_account", None)
        if "run_" in state:
            state["run_"] = replace(state["run_"], ledger=None)
        return state

    def _open_account(self) -> Account:
        """The account of this estimator and its clones, for the ledger that is named now.

        Raises:
            InputError: it stayed in another process, or with what was pickled.
        """
        if callable(self.ledger):
            if "_account" not in self.__dict__:
                opened = self.ledger()
                face.check_types(ledger=opened)
                self._account = Account(opened)
            return self._account
        face.check_types(ledger=self.ledger)
        tickets = self.tickets.tickets if isinstance(self.tickets, Winner) else self.tickets
        meant = self.ledger if self.ledger is not None else getattr(tickets, "ledger", None)
        account: Account | None = self.__dict__.get("_account")
        if account is None and meant is None and "_left_behind" in self.__dict__:
            raise InputError(
                "`ledger`: this estimator was pickled, and its ledger stayed behind: what it spends here would be entered"
                " nowhere that you see; leave `n_jobs` 1, or run threads (joblib.parallel_backend('threading')), or give"
                " `ledger` as a function that opens a file which processes share:"
                " functools.partial(dpltm.tickets.ledger_file.open_ledger, path)"
            )
        if account is None or (meant is not None and account.ledger is not meant):
            account = Account(Ledger() if meant is None else meant)
            self._account = account
        return account

    # training

    def _fit(self, x: np.ndarray, y: np.ndarray, classes: int | None) -> None:
        """Trains on the records, and keeps the run; everything is entered before it is spent."""
        account = self._open_account()
        features = x.shape[1]
        columns = Columns.of(self.bounds, features, self.record_shape)
        facts = {"classes": classes, "records": self.n_records, "name": self.name}
        dataset = private_records(columns, x, y, facts)
        own = account.open_fit(dataset, self.adjacency)
        run = self._train(self._drawn(dataset, own), dataset, own, features)
        account.notes |= dict.fromkeys(() if run.privacy is None else map(_ours, run.privacy.notes))
        self.run_, self._columns = run, columns

    def _drawn(self, dataset: Dataset, ledger: Ledger) -> TicketSet | Winner | None:
        """The tickets, or the winner of a draw on the records, where one is asked for."""
        if self.select_epsilon is None:
            if isinstance(self.tickets, TicketSet) and self.round is None:
                raise InputError(
                    "`round` is missing: say which ticket of the set, or give `select_epsilon` to draw one on the records"
                )
            return self.tickets
        if self.tickets is None or self.round is not None:
            raise InputError("`select_epsilon`: draws one ticket of a set; give `tickets`, and leave `round` out")
        options = {"eps1": self.select_epsilon, "score": "additive", "delta": self.delta, "adjacency": self.adjacency}
        return face.select(self.tickets, dataset, ledger=ledger, **options)

    def _train(self, tickets: TicketSet | Winner | None, dataset: Dataset, ledger: Ledger, columns: int) -> Run:
        options = {name: getattr(self, name) for name in _TRAINING}
        options |= {"epsilon": self.epsilon, "noise_multiplier": self.noise_multiplier, "delta": self.delta}
        if self.noise_multiplier is not None:  # the default budget says nothing beside it
            options["epsilon"] = None
        options["seed"] = int(check_random_state(self.random_state).randint(2**31 - 1))
        if tickets is not None:
            features = None if self.features == "auto" else self.features
            if self.model is not None:
                raise InputError("`model`: the ticket set decides the network; leave `model` out")
            return face.train(tickets, dataset, round=self.round, ledger=ledger, features=features, **options)
        features = self.features
        if features == "auto":
            features = "fourier" if columns <= FEW_COLUMNS else "unit"
        if self.round is not None:
            raise InputError("`round`: of a ticket set; give `tickets`, or leave it out")
        network = self.model or ("mlp:300,100" if features in (None, "none") else "mlp")
        return face.train(network, dataset, ledger=ledger, features=features, **options)

    def _validated(self, X: Any, y: Any = None, *, numeric: bool = False) -> Any:
        """Records, and labels with them, as scikit-learn checks them in ``fit``."""
        X, y = validate_data(
            self, X, y, accept_sparse=("csr", "csc"), accept_large_sparse=False, multi_output=False, y_numeric=numeric
        )
        return dense(X), y

    def _told(self, X: Any) -> Predictions:
        """What the network says of records without labels."""
        check_is_fitted(self)
        X = dense(validate_data(self, X, reset=False, accept_sparse=("csr", "csc"), accept_large_sparse=False))
        with _in_our_words():
            return face.predict(self.run_, self._columns.records(X))

    # what was learned, and what it cost

    def __sklearn_is_fitted__(self) -> bool:
        return "run_" in self.__dict__

    @property
    def ticket_(self) -> Mask:
        """Which weights are live: the mask of the ticket, or one that keeps everything."""
        check_is_fitted(self)
        return self.run_.mask

    @property
    def ledger_(self) -> Ledger:
        """Where this estimator and its clones enter what they spend."""
        return self._open_account().ledger

    @property
    def privacy_(self) -> PrivacyReport:
        """Certified and nominal, for all fits and paid scores of this estimator and its clones together, and notes.

        The cost of the last fit alone is ``run_.privacy``.

        Raises:
            NotFittedError: nothing has been spent.
        """
        left = self.__dict__.get("_left_behind")
        stated = left[0] if left and "_account" not in self.__dict__ else self._stated_privacy()
        if stated is None:
            raise NotFittedError(f"this {type(self).__name__} has spent nothing yet; call 'fit' first")
        return stated

    def _stated_privacy(self) -> PrivacyReport | None:
        return self._open_account().total(self.delta, self.adjacency, "pld")

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


@dataclass(eq=False, repr=False, kw_only=True)
class TicketClassifier(ClassifierMixin, _TicketEstimator):
    """A classifier trained under differential privacy: a lottery ticket, or a whole network.

    Parameters are keywords. Those that state public facts may not be read off the private records: what is left out is
    read off, taken as public, and named in ``privacy_.notes``.

    Args:
        epsilon: what one fit may cost, with what its ticket cost. Noise is calibrated to the certified figure.
        delta: of the guarantee, below 1 / ``n_records``.
        noise_multiplier: noise over sensitivity, in place of ``epsilon``.
        bounds: public range of the features, ``(low, high)``: two numbers, or two arrays with a number a column. Needed unless
            values are bytes or booleans. Values outside saturate.
        classes: all labels that there are, public; or their number K, for labels 0 to K - 1.
        n_records: public number of records, by which sampling rates are computed.
        tickets: a ticket set or winner; None for a whole network.
        round: the ticket of a set that is taken.
        select_epsilon: draws the ticket on the records in place of ``round``, for so much of ``epsilon``.
        model: network, where there are no tickets; by default one layer behind features, else ``mlp:300,100``.
        features: what stands in front of the network, as for ``dpltm.train``; ``auto`` is ``fourier`` up to 32 columns, and
            ``unit`` above; None for nothing.
        record_shape: of a record whose values stand in a row, such as ``(28, 28)``; needed by maps for images.
        filter, clip_norm: gradient filter, and the norm that it clips to.
        epochs, batch_size: expected passes over the records, 15 by default, and expected batch size.
        lr, optimizer, schedule: of the steps; defaults as for ``dpltm.train``.
        centre: part of ``epsilon`` by which features are centred at their noisy mean.
        noise: ``secure``, or ``fast`` for bits that are not cryptographic.
        adjacency: neighbouring relation, ``add-remove`` or ``replace-one``.
        ledger: a ``Ledger``, or a function that opens one in the process that fits. None for that of the tickets, or one in
            memory. Clones share it.
        random_state: decides the starting weights. Never the noise or the sampling: fits differ.
        name: what messages and the ledger call the records.
        score_epsilon: what each :meth:`score` releases its accuracy for, with noise. None measures it exactly, for records
            that no release was made from.

    Attributes:
        classes_: labels, sorted.
        n_features_in_, feature_names_in_: columns of ``X`` in ``fit``.
        run_: the run, as ``dpltm.train`` returns it.
        ticket_: its mask.
        privacy_: what all fits and paid scores of this estimator and its clones cost together.
        ledger_: where they are entered.

    Guarantees:
        Every release is in the ledger before its noise is drawn. One fit costs at most ``epsilon``, certified.
    """

    classes: int | Sequence[Any] | None = None
    score_epsilon: float | None = None

    def fit(self, X: Any, y: Any) -> TicketClassifier:
        """Trains under differential privacy.

        Args:
            X: ``(n, columns)``: an array, a data frame of pandas or polars, or a sparse matrix; finite numbers.
            y: labels ``(n,)``.

        Raises:
            ValueError: bad input (``dpltm.errors.InputError``), before anything is spent.
            BudgetError: a budget in the ledger does not allow it.
        """
        X, y = self._validated(X, y)
        check_classification_targets(y)
        with _in_our_words():
            labels, declared = self._labels(y)
            self._fit(X, numbered(y, labels, f"of `classes`: {declared}" if declared else "in y"), declared)
        self.classes_ = labels
        return self

    def _labels(self, y: np.ndarray) -> tuple[np.ndarray, int | None]:
        """All labels, sorted; and how many were declared, None where they were read off ``y``."""
        if self.classes is None:
            labels, declared = np.unique(y), None
        elif isinstance(self.classes, (int, np.integer)) and not isinstance(self.classes, bool):
            labels, declared = np.arange(self.classes), int(self.classes)
        else:
            labels = np.unique(np.asarray(self.classes))
            declared = len(labels)
        if len(labels) < 2:
            raise InputError(f"`classes`: there is one class ({len(labels)}), so nothing can be told apart; give two or more")
        return labels, declared

    def predict(self, X: Any) -> np.ndarray:
        """The most likely label of each record, ``(n,)``."""
        told = self._told(X)
        return self.classes_[told.outputs.argmax(1)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities ``(n, classes)``, in the order of ``classes_``."""
        return softmax(self._told(X).outputs.astype(np.float64), axis=1)

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Logarithms of :meth:`predict_proba`."""
        return log_softmax(self._told(X).outputs.astype(np.float64), axis=1)

    def decision_function(self, X: Any) -> np.ndarray:
        """What the network says before softmax, ``(n, classes)``; of two classes the difference, ``(n,)``."""
        outputs = self._told(X).outputs
        return outputs[:, 1] - outputs[:, 0] if len(self.classes_) == 2 else outputs

    def score(self, X: Any, y: Any) -> float:
        """Accuracy: exact on records that no release was made from; with ``score_epsilon``, with noise, and paid for.

        Args:
            X: ``(n, columns)``.
            y: labels ``(n,)``.

        Raises:
            ValueError: a label that ``fit`` did not know; or records that are private, without ``score_epsilon``.
        """
        check_is_fitted(self)
        X, y = validate_data(self, X, y, reset=False, accept_sparse=("csr", "csc"), accept_large_sparse=False)
        X = dense(X)
        with _in_our_words():
            account = self._open_account()
            codes = numbered(y, self.classes_, "that fit knew")
            held_out = separate_records(self.run_, self._columns, X, codes)
            records = scored_records(held_out)
            if self.score_epsilon is None:
                accuracy = self._exact_score(account, held_out)
                account.note_measured(records)
                return accuracy
            check_epsilon("score_epsilon", self.score_epsilon)
            right = int((self._told(X).outputs.argmax(1) == codes).sum())
            account.pay_score(records, self.adjacency, self.score_epsilon)
            right += two_sided_geometric(SecureSource(), self.score_epsilon)
            return float(min(max(right / len(codes), 0.0), 1.0))

    def _exact_score(self, account: Account, held_out: Dataset) -> float:
        try:
            return float(face.evaluate(self.run_, held_out, ledger=account.ledger).accuracy)
        except InputError as error:
            raise InputError(f"{error}; or give `score_epsilon`, which pays for a score with noise") from None


