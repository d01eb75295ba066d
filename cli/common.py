"""What the commands of the accountant share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpltm.errors import InputError
from dpltm.options.data import DataOptions as DataOptions
from dpltm.privacy.figures import figure as figure
from dpltm.registry import Deferred

if TYPE_CHECKING:
    from dpltm.data import Dataset

LARGEST_EPSILON, LARGEST_NOISE, MOST_STEPS = 1e4, 1e6, 10**8
"""Beyond these a setting is taken for a slip of the finger."""

LEAST_DELTA = 1e-15
"""Below this the tails that the accountant truncates (e^-50) would begin to show."""


def load_dataset(options: DataOptions) -> Dataset:
    """The dataset that the options name."""
    dataset: Dataset = Deferred("dpltm.tickets.workbench.opening:open_dataset")(options)
    return dataset


def check_epsilon(flag: str, value: float | None) -> None:
    """Raises InputError unless ``value``, if given, is a positive number that may be meant."""
    if value is not None and not 0 < value <= LARGEST_EPSILON:
        raise InputError(f"{flag}: {value:g} is not a positive number up to {LARGEST_EPSILON:g}")


def check_accountant(accountant: str) -> None:
    """Raises InputError for an accountant that may not decide over noise or a budget."""
    if accountant == "clt":
        raise InputError(
            "--accountant: clt is an approximation and can neither calibrate noise nor satisfy a budget; use pld, rdp or ma"
        )


def steps_of(epochs: float, sampling_rate: float) -> int:
    """Steps that pass over the records ``epochs`` times in expectation, at least one."""
    return max(1, round(min(epochs / sampling_rate, 2.0 * MOST_STEPS)))


def check_delta_alone(delta: float) -> None:
    """Raises InputError unless ``delta`` may be asked for where no dataset says how many records there are."""
    if not LEAST_DELTA <= delta < 1:
        raise InputError(f"--delta: {delta:g} is not between {LEAST_DELTA:g} and 1")
