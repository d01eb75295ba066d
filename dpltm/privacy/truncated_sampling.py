"""Truncated Poisson sampling: at most B of the records whose coins fell, and what that costs beside Poisson sampling.

**One step.** Neighbours share all coins: a record that is added throws its own on the other side as well, where it does
nothing, and one shares that of the record in its place. At most N - 1 records are on both sides; B of them or more fall with
a chance p, at most P(Bin(N - 1, q) >= B).

- Where fewer fall, both sides are as in Poisson sampling: one more still fits.
- Where B or more do, and the neighbours' own coin does not (1 - q), both sides are the same.
- Where that falls as well (p q), nothing is assumed.

These chances are equal on both sides, so the step is dominated by the pair of a Poisson step with chance 1 - p q, and with
chance p q by outcomes that tell the neighbours apart.

**T steps** compose as these pairs do: as T Poisson steps beside a guarantee that fails with chance 1 - (1 - p q)^T <= T p q.
So that is added to delta, once, in both directions and under replace-one. (By the distance between Poisson and truncated
steps it would be (1 + e^epsilon) T p: Chua et al. 2024. arXiv 2508.15089, as in dp-accounting, prices the last case as well,
which is for steps that are cut often.)

Which records are left out does not matter to this. They are drawn at random so that none is preferred.
"""

from __future__ import annotations

from scipy.special import betainc

from dpltm.privacy.mechanisms import TruncatedSgd

MARGIN = 1e-4
"""Of the tail, by which scipy's is raised: before 1.12 (Cephes) it is up to 2e-6 too small, of 10^12 records; since then
(Boost) it is good to 1e-12."""


def truncation_chance(mechanism: TruncatedSgd) -> float:
    """Return what truncation adds to delta, T p q, at most 1: an upper bound, by no more than ``MARGIN`` and rounding."""
    batch, others = mechanism.truncated_batch_size, mechanism.most_records - 1
    if batch > others:
        return 0.0
    tail = float(betainc(batch, others - batch + 1, mechanism.sampling_rate))
    return min(mechanism.steps * mechanism.sampling_rate * tail * (1 + MARGIN), 1.0)
