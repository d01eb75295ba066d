"""Refusals of budgets, noise and steps, before anything is spent."""

from __future__ import annotations

from dpltm.errors import InputError

PER_UNIT = 64  # records of a person that count where persons are the unit, if nothing is said
MAX_EPSILON, MAX_NOISE, MAX_STEPS = 1e4, 1e6, 10**8  # beyond these a setting is taken for a slip of the finger
MIN_DELTA = 1e-15  # below this the tails that the accountant truncates (e^-50) would begin to show


def default_batch(records: int) -> float:
    """Expected batch size of a training on so many records, a public number, where nobody gave one."""
    return float(min(1600, max(1, records // 4)))


def participations_of(sampling: str | None) -> int | None:
    """Return K of ``allocation:K``; None for Poisson sampling, and nothing. InputError for what is none."""
    if sampling in (None, "poisson"):
        return None
    name, _, digits = sampling.partition(":")
    count = int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 10 else 0
    if name != "allocation" or not count:
        raise InputError(f"`sampling`: {sampling!r:.40} is neither poisson nor allocation:K, such as allocation:15")
    return count


def steps_of(epochs: float, sampling_rate: float) -> int:
    """Steps that pass over the records ``epochs`` times in expectation, at least one."""
    return max(1, round(min(epochs / sampling_rate, 2.0 * MAX_STEPS)))


def check_delta_alone(delta: float) -> None:
    """Raise InputError unless ``delta`` may be asked for where no dataset says how many records there are."""
    if not MIN_DELTA <= delta < 1:
        raise InputError(f"`delta`: {delta:g} is not between {MIN_DELTA:g} and 1")


def check_delta_of(delta: float, records: int, at_hand: int, unit: str = "record") -> None:
    """Raise InputError unless 0 < delta < 1/n for the public number of records, and for those at hand (private, never
    said: what is refused may be kept in a log)."""
    if not 0 < delta < 1 / max(records, at_hand):
        raise InputError(
            f"`delta`: {delta:g} is not between 0 and 1/n = {1 / records:.3g} for {records} {unit}s or more; take a"
            " smaller one"
        )
