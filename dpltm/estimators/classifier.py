"""The scikit-learn face of ``dpltm.train``, ``select``, ``evaluate`` and ``predict``: a classifier and a regressor.

What was learned is ``run_``, as ``dpltm.train`` returns it; ``dpltm.tickets.save(estimator.run_, folder)`` keeps it.

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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import log_softmax, softmax
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.multiclass import check_classification_targets

from dpltm import api
from dpltm.errors import InputError, whole_number
from dpltm.estimators.base import TicketEstimator, named_as_parameters
from dpltm.estimators.records import numbered, separate_records

MAX_BINS = 1000
"""More parts of a range of targets are a slip of the finger."""


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
        classes: all labels that there are, public; or their number K, for labels 0 to K - 1.
        n_records: public number of records, by which sampling rates are computed.
        tickets: a ticket set or winner; None for a whole network.
        round: the ticket of a set that is taken.
        select_epsilon: draws the ticket on the records in place of ``round``, for so much of ``epsilon``.
        model: network, where there are no tickets; by default one layer behind features, else ``mlp:300,100``.
        features: what stands in front of the network, as for ``dpltm.train``; ``auto`` is ``fourier`` up to 32 columns, and
            ``unit`` above; None for nothing.
        record_shape: of a record whose values stand in a row, such as ``(28, 28)``; needed by maps for images.
        head: how the network is fitted: ``dp-sgd``, or ``least-squares`` for one layer behind features with nothing to tune.
        filter, clip_norm: gradient filter, and the norm that it clips to.
        epochs, batch_size: expected passes over the records, 15 by default, and expected batch size.
        lr, optimizer, schedule: of the steps, whose size falls to zero by default; otherwise as for ``dpltm.train``.
        centre: part of ``epsilon`` by which features are centred at their noisy mean.
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
    score_epsilon: float | None = None

    def fit(self, X: Any, y: Any, units: Any = None) -> TicketClassifier:
        """Trains under differential privacy.

        Args:
            X: ``(n, columns)``: an array, a data frame of pandas or polars, or a sparse matrix; finite numbers.
            y: labels ``(n,)``.
            units: whose each record is, ``(n,)`` whole numbers or texts: then all records of a person are protected
                together, and ``n_records`` is the number of persons.

        Raises:
            ValueError: bad input (``dpltm.errors.InputError``), before anything is spent.
            BudgetError: a budget in the ledger does not allow it.
        """
        with self._fitting():
            X, y = self._validated(X, y)
            check_classification_targets(y)
            labels, declared = self._labels(y)
            codes = numbered(y, labels, "that `classes` declares")
            if (codes == codes[0]).all():
                raise InputError(f"`y`: all records have label {str(y[0])!r:.40}; give records of two classes or more")
            self._fit(X, codes, declared, units)
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
            raise InputError("`classes`: there is one class, so nothing can be told apart; give two or more")
        return labels, declared

    def predict(self, X: Any) -> np.ndarray:
        """The most likely label of each record, ``(n,)``."""
        best = self._told(X).argmax(1)
        return self.classes_[best]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities ``(n, classes)``, in the order of ``classes_``."""
        return softmax(self._told(X), axis=1)

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Logarithms of :meth:`predict_proba`."""
        return log_softmax(self._told(X), axis=1)

    def decision_function(self, X: Any) -> np.ndarray:
        """What the network says before softmax, ``(n, classes)``; of two classes the difference, ``(n,)``."""
        outputs = self._told(X)
        return outputs[:, 1] - outputs[:, 0] if len(self.classes_) == 2 else outputs

    def score(self, X: Any, y: Any, units: Any = None) -> float:
        """Accuracy: exact on records that no release was made from; with ``score_epsilon``, with noise, and paid for.

        Args:
            X: ``(n, columns)``.
            y: labels ``(n,)``.
            units: whose each record is, where ``fit`` was told: no person may be in both.

        Raises:
            ValueError: a label that ``fit`` did not know; or records that are private, without ``score_epsilon``.
        """
        X, y = self._to_score(X, y)
        with named_as_parameters():
            codes = numbered(y, self.classes_, "that fit knew")
            if self.score_epsilon is None:
                held_out = self._separate(X, codes, units)
                return float(api.evaluate(self.run_, held_out, ledger=self._open_ledger()).accuracy)
            records = separate_records(self.run_, self._columns, X, codes).tested()
            right = self._outputs(X).argmax(1) == codes
            (count,) = self._released_sums(records, right[None].astype(float), self.score_epsilon)
            return float(min(max(count / len(codes), 0.0), 1.0))


@dataclass(eq=False, repr=False, kw_only=True)
class TicketRegressor(RegressorMixin, TicketEstimator):
    """A regressor trained under differential privacy, by telling apart which part of a public range a target falls into.

    The range of targets is cut into ``bins`` equal parts, a network learns which one a record's target is in, as that of a
    classifier does, and the mean over the parts is what it predicts (histogram loss, Imani and White 2018). The gradient
    filter bounds what a record adds, so a wild target does no more harm than any other; the run is one like all others.

    Args:
        epsilon, delta, noise_multiplier, bounds, n_records: as for :class:`TicketClassifier`; and likewise
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

    target_bounds: tuple[float, float] | None = None
    bins: int = 10
    score_epsilon: float | None = None

    def fit(self, X: Any, y: Any, units: Any = None) -> TicketRegressor:
        """Trains under differential privacy.

        Args:
            X: ``(n, columns)``: an array, a data frame of pandas or polars, or a sparse matrix; finite numbers.
            y: targets ``(n,)``, finite numbers.
            units: as for :meth:`TicketClassifier.fit`.

        Raises:
            ValueError: bad input (``dpltm.errors.InputError``), before anything is spent.
            BudgetError: a budget in the ledger does not allow it.
        """
        with self._fitting():
            X, y = self._validated(X, y, numeric=True)
            edges = self._edges()
            self._fit(X, _part_of(y, edges), len(edges) - 1, units, for_training=False)
        self.bin_centres_, self._edges_ = (edges[:-1] + edges[1:]) / 2, edges
        return self

    def _edges(self) -> np.ndarray:
        """Where parts of the range begin and end, ``(bins + 1,)``."""
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
        """The expected target of each record, ``(n,)``: the mean of ``bin_centres_`` by the chances of the parts."""
        return softmax(self._told(X), axis=1) @ self.bin_centres_

    def score(self, X: Any, y: Any, units: Any = None) -> float:
        """R^2: exact on records that no release was made from; with ``score_epsilon``, with noise, and paid for.

        What is paid for is that of targets within ``target_bounds``, and from -1 to 1.

        Args:
            X: ``(n, columns)``.
            y: targets ``(n,)``.
            units: as for :meth:`TicketClassifier.score`.

        Raises:
            ValueError: records that are private, without ``score_epsilon``.
        """
        X, y = self._to_score(X, y, numeric=True)
        with named_as_parameters():
            codes = _part_of(y, self._edges_)
            predicted = softmax(self._outputs(X), axis=1) @ self.bin_centres_
            if self.score_epsilon is None:
                self._separate(X, codes, units)
                return float(r2_score(y, predicted))
            records = separate_records(self.run_, self._columns, X, codes).tested()
            low, span = self._edges_[0], self._edges_[-1] - self._edges_[0]
            target = np.clip((y - low) / span, 0.0, 1.0)
            errors = np.square(target - (predicted - low) / span)
            sums = self._released_sums(records, np.stack([errors, target, target**2]), self.score_epsilon)
            total = max(sums[2] - sums[1] ** 2 / len(y), 1e-12)
            return float(min(max(1 - sums[0] / total, -1.0), 1.0))


for _made in (TicketEstimator, TicketClassifier, TicketRegressor):
    del _made.__dataclass_fields__  # so dataclasses.replace refuses: its copy would begin an account of its own


def _part_of(y: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Which part of the range each target falls into, ``(n,)`` from 0; the ends of the range take what is outside."""
    return np.clip(np.searchsorted(edges, y, side="right") - 1, 0, len(edges) - 2)
