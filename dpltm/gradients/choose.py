"""Which of several ways to compute the same is quickest here: by timing them on made-up numbers.

What is quick depends on mask, processor and linear algebra library: thresholds that were found on one machine are wrong on
the next. What was found is remembered for the process.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Hashable, Mapping

TURNS = 3
"""How often each way is timed, after once for nothing; the least time counts."""

_chosen: dict[str, str] = {}


def choices_made() -> dict[str, str]:
    """What was found so far in this process, as ``repeat_choices`` takes it."""
    return dict(_chosen)


def repeat_choices(made: Mapping[str, str]) -> None:
    """Takes over what another process found: sums differ in their last bits from one way to another."""
    _chosen.update(made)


def fastest(key: Hashable, ways: Callable[[], Mapping[str, Callable[[], object]]]) -> str | None:
    """The name of the way that took least time; None where all of them failed.

    Args:
        key: what the answer depends on; its text tells it from others.
        ways: gives what is timed, by name, in turn; not asked where the answer is known. A RuntimeError leaves one out.
    """
    name_of_key = repr(key)
    if name_of_key not in _chosen:
        times: dict[str, float] = {}
        timed = ways()
        for name, way in timed.items():
            with contextlib.suppress(RuntimeError):
                way()
                times[name] = math.inf
        for _ in range(TURNS):
            for name in list(times):
                began = time.perf_counter()
                try:
                    timed[name]()
                except RuntimeError:
                    del times[name]
                else:
                    times[name] = min(times[name], time.perf_counter() - began)
        if not times:
            return None
        _chosen[name_of_key] = min(times, key=times.__getitem__)
    return _chosen[name_of_key]
