"""Entries and figures in words, for the person who reads a ledger."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any

from dpltm.errors import InputError
from dpltm.privacy import mechanisms as kinds
from dpltm.privacy.entry import Entry


def figure(value: float | str, digits: int = 4, *, down: bool = False) -> str:
    """An epsilon, or another figure, for people: rounded up to be on the safe side, or down for a lower bound; or inf."""
    if isinstance(value, str):
        return value
    if value == 0 or math.isinf(value):
        return f"{value:g}"
    exact = Decimal(repr(float(value)))
    last = Decimal(1).scaleb(exact.adjusted() + 1 - digits)
    return f"{exact.quantize(last, rounding=ROUND_FLOOR if down else ROUND_CEILING).normalize():f}"


def guarantee(certified: Mapping[str, Any], digits: int = 4) -> str:
    """A certified figure with what it is stated at, as far as that is there: in all answers and tables."""
    stated = {**certified, "sampling": "no" if certified.get("sampling") == "none" else certified.get("sampling")}
    terms = {"delta": "delta = {:g}", "adjacency": "{}", "unit": "unit {}", "sampling": "{} sampling",
             "accountant": "accountant {}"}  # fmt: skip
    terms_stated = [words.format(stated[name]) for name, words in terms.items() if stated.get(name) is not None]
    return f"certified epsilon = {figure(certified['epsilon'], digits)} ({', '.join(terms_stated)})"


def percent(value: float, digits: int = 2) -> str:
    """A share for people: ``91.92 %``."""
    return f"{100 * value:.{digits}f} %"


def percent_up(share: float) -> str:
    """A share in percent to one digit, rounded up: a bound that is shown is never below what was computed."""
    return f"{math.ceil(share * 1000 - 1e-9) / 10:g} %"


def describe(entry: Entry) -> str:
    """Return an entry in one sentence without its records and day."""
    noise = "; ".join(describe_mechanism(mechanism, entry.unit) for mechanism in entry.mechanisms)
    return _DESCRIBED.get(entry.kind, "{0.words}: {1}").format(entry, noise)


_DESCRIBED = {
    "public": "declared public: {0.words}",
    "excluded": "declared not to be of the population, so nothing is promised for them: {0.words}",
    "drawn": "handed out to be drawn, for nothing more: {0.words}",
    "apart": "{0.population} is declared to have nobody in common with this population",
    "budget": "a budget: epsilon {0.mechanisms[0].epsilon:g} at delta {0.mechanisms[0].delta:g} for everything together",
}


def describe_mechanism(mechanism: kinds.Mechanism, unit: str = "record") -> str:
    """Return a mechanism in a few words."""
    fast = ", of bits that are not cryptographic" if mechanism.bits == "fast" else ""
    match mechanism:
        case kinds.NoisySgd():
            claim, bands = mechanism.nominal_sensitivity, len(getattr(mechanism, "strategy", ()))
            whom = f"{unit}s of one of {bands} parts in turn" if bands else f"{unit}s"
            drawn = f"each on {whom} drawn with chance {mechanism.sampling_rate:.4g}"
            if isinstance(mechanism, kinds.AllocatedSgd):
                drawn = f"every {unit} in {mechanism.participations:,} of them, drawn beforehand"
            if isinstance(mechanism, kinds.TruncatedSgd):
                drawn += f", {mechanism.truncated_batch_size:,} at most"
            over = f", correlated over {bands} steps" if bands else ""
            return (
                f"{mechanism.steps:,} steps, {drawn}, Gaussian noise"
                f" of {mechanism.noise_multiplier:.4g} times the sensitivity {mechanism.sensitivity:.4g}{over}{fast}"
                + ("" if claim is None else f" ({mechanism.claimed_by} claims the sensitivity {claim:.4g})")
            )
        case kinds.Selection(eps1=eps1, certified_epsilon=proven):
            certified = ", for which nothing is proven" if math.isinf(proven) else f", certified as {figure(proven)}"
            return f"drawn by {mechanism.draw}, eps1 {eps1:g}{certified if proven > eps1 else ''}"
        case kinds.PrivateSearch():
            return (
                f"the best of a secret number of trainings, {kinds.mean_tries(mechanism.gamma):.3g} in the mean, each at one"
                f" of {len(mechanism.trainings)} settings, scored by a count with noise of {mechanism.score_noise:g}{fast}"
            )
        case kinds.LaplaceRelease():
            return f"Laplace noise of scale {mechanism.scale:g} for L1 sensitivity {mechanism.sensitivity:g}{fast}"
        case kinds.GaussianRelease():
            return f"Gaussian noise of {mechanism.noise_multiplier:g} times L2 sensitivity {mechanism.sensitivity:g}{fast}"
        case kinds.DiscreteGaussianRelease(deviation=deviation, sensitivity=bound):
            return f"discrete Gaussian noise of deviation {deviation:g} for sensitivity {bound}{fast}"
        case kinds.Zcdp():
            return f"known to be {figure(mechanism.rho)}-zCDP"
        case kinds.RandomizedResponse():
            return (
                f"randomised response over {mechanism.categories} categories, the true one e^{mechanism.epsilon:g} as likely"
                " as any other"
            )
        case kinds.Guarantee():
            failing = f", {mechanism.delta:g}" if mechanism.delta else ""
            return f"known to be ({figure(mechanism.epsilon)}{failing})-DP"
        case kinds.Unprotected():
            return "released without protection: nothing can be certified"
    raise InputError(f"there are no words for the mechanism {type(mechanism).__name__}")
