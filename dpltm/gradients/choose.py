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

_chosen: dict[Hashable, str] = {}


def fastest(key: Hashable, ways: Callable[[], Mapping[str, Callable[[], object]]]) -> str | None:
    """The name of the way that took least time; None where all of them failed.

    Args:
        key: what the answer depends on.
        ways: gives what is timed, by name, in turn; not asked where the answer is known. A RuntimeError leaves one out.
    """
    if key not in _chosen:
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
        _chosen[key] = min(times, key=times.__getitem__)
    return _chosen[key]
