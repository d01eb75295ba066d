"""A mechanism of every kind, with each of their fields said."""

import math
from dataclasses import replace

from dpltm.privacy.mechanisms import (
    AllocatedSgd,
    BandedSgd,
    DiscreteGaussianRelease,
    GaussianRelease,
    Guarantee,
    LaplaceRelease,
    Mechanism,
    NoisySgd,
    PrivateSearch,
    RandomizedResponse,
    Selection,
    TruncatedSgd,
    Unprotected,
    Zcdp,
)

SGD = NoisySgd(0.01, 100, 1.1, nominal_sensitivity=0.5)
ALLOCATED = AllocatedSgd(0.25, 8, 1.1, participations=2)
BANDED = BandedSgd(0.5, 10, 1.5, 1.3, None, "", (1.0, 0.5))
TRUNCATED = TruncatedSgd(0.25, 8, 1.1, truncated_batch_size=40, most_records=100)
SEARCH = PrivateSearch((replace(SGD, nominal_sensitivity=None),), 20.0, 0.1)
EVERY: tuple[Mechanism, ...] = (
    *(SGD, ALLOCATED, BANDED, TRUNCATED, SEARCH),
    Selection(0.5, math.inf, "permute-and-flip"),
    GaussianRelease(4.0),
    LaplaceRelease(2.0, 3.0),
    RandomizedResponse(epsilon=0.5, categories=4),
    Guarantee(1.0, 1e-6, adjacency="replace-one"),
    DiscreteGaussianRelease(2.0, 3),
    Zcdp(0.5),
    Unprotected(),
)
