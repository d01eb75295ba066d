"""What a ledger's entries say to the person who reads it."""

import math
from dataclasses import replace

import pytest

from dpltm.privacy.describe import describe
from dpltm.privacy.events import FEATURES, HELD_OUT, SETTINGS
from entries import (
    BUDGET,
    FIRST,
    GAUSSIAN,
    GUARANTEE,
    LAPLACE,
    PROVENANCE,
    RANDOMIZED,
    REVEALED,
    SELECTION,
    TRAINING,
    having,
)

STEPS = (
    "3,515 steps of training, each on {}s drawn with chance 0.004267, filter clip 1, Gaussian noise of 1.1 times the"
)
DRAWN = "a winner drawn from 15 tickets set by {}, product score, eps1 0.5 at the exact sensitivity 0.005"


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (replace(PROVENANCE, provenance="data-free"), "tickets set depend on no data: they cost nothing"),
        (
            replace(PROVENANCE, provenance="public", ticket_set="0123456789"),
            "tickets 01234567 were made from these records, declared public: they cost nothing",
        ),
        (
            replace(PROVENANCE, provenance="public", ticket_set=f"{HELD_OUT}0.2"),
            "accuracy was measured on these records, 0.2 of a file, held out: nothing is promised for them",
        ),
        (
            replace(PROVENANCE, provenance="dp", ticket_set=f"{FEATURES}network:r1"),
            "features network:r1 were made from these records by a private mechanism, which stands here as its own line",
        ),
        (
            replace(PROVENANCE, ticket_set=f"{SETTINGS}dpltm tune"),
            "settings dpltm tune were made from these records with no mechanism: nothing can be certified",
        ),
        (TRAINING, f"{STEPS.format('record')} sensitivity 1 on 10 live coordinates"),
        (
            replace(having(TRAINING, unit="user", sensitivity=2.0, nominal_sensitivity=0.5), live=12345),
            f"{STEPS.format('user')} sensitivity 2 on 12,345 live coordinates (its source claims the sensitivity 0.5)",
        ),
        (SELECTION, f"{DRAWN.format('exponential')}, after other releases"),
        (FIRST, f"{DRAWN.format('exponential')}, before any other release"),
        (having(SELECTION, draw="permute-and-flip"), DRAWN.format("permute-and-flip")),
        (
            having(SELECTION, draw="permute-and-flip", certified_epsilon=2.0),
            f"{DRAWN.format('permute-and-flip')}, certified as 2",
        ),
        (
            having(SELECTION, certified_epsilon=math.inf),
            f"{DRAWN.format('exponential')}, for which nothing is proven, after other releases",
        ),
        (LAPLACE, "a mean, with Laplace noise of scale 4 for the L1 sensitivity 2"),
        (GAUSSIAN, "a sum, with Gaussian noise of 4 times the L2 sensitivity 3"),
        (
            RANDOMIZED,
            "labels, each record by randomised response over 10 categories, the true one e^0.5 as likely as any other",
        ),
        (GUARANTEE, "a count, known to be (0.5, 1e-07)-DP"),
        (having(GUARANTEE, delta=0.0), "a count, known to be (0.5)-DP"),
        (REVEALED, "every ticket's score, released without protection: nothing can be certified"),
        (BUDGET, "a budget was set: epsilon 1.2 at delta 1e-05 for everything on these records"),
    ],
)
def test_every_kind_of_entry_in_words(event, said):
    assert describe(event) == said
