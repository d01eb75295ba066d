"""Microbatches: the filter takes the mean gradient of a group of records in place of that of each record (Amian 2021).

A step has G groups, a public number. Every sampled record draws its group by a coin of its own (``sampling.in_chunks``), as
it drew its place in the sample. Let S_g be the records of group g, and F the filter, whose certified bound is C. Then

    sum = F(m_1) + ... + F(m_G),    m_g = (1 / |S_g|) sum of the gradients of S_g,                                     (1)

where an empty group adds 0 in place of F(m_g). The mean is over the realised size, as in the papers. That size is private,
and may divide here: it acts in front of the filter, and F bounds whatever it is given. What stands behind the filter, the
divisor of the noisy sum, is the public G.

**Add/remove: 2 C.** Let D' be D with one record r more. Give all other records the same coins on both sides, for sample and
group. If r is not sampled, both sums are equal. If r is sampled, into group g by its coin, every other group holds what it
held. So the sum moves by

    v = F(m_g with r) - F(m_g without r),    |v| <= |F(m_g with r)| + |F(m_g without r)| <= 2 C,                       (2)

and by C at most where r is alone in its group, since the other term is 0. (2) is reached: let the others of g agree, and let
r have a long gradient that points the other way. Given these coins, the releases are N(s) and (1 - q) N(s) + q N(s + v),
which the pair of a sampled Gaussian step with sensitivity 2 C dominates (privacy-model.md 5.2). The law of these coins does
not depend on r, so joint convexity of the hockey-stick divergence carries this over to their mixture.

**Replace-one: 4 C.** Give r and its replacement r' the same coins. Then one group changes, and the sum moves by 2 C at most.
But the pair for sampled steps (5.2) asks for more: each record alone, against its absence, may move the sum by half of the
sensitivity. That is 2 C by (2), so the sensitivity is 4 C. Were r' to draw a group of its own, two groups would change by
2 C each, sqrt(8) C in all, which is below 4 C too. At q = 1 the figure is twice what is needed.

**What it costs.** The mean over G = ceil(B / M) groups, B the expected batch, has noise of standard deviation 2 sigma C / G.
That is 2 B / G times the noise of single records at the same sigma, on a gradient of the same bound C: 2 M if M divides B.
B / G is because there are fewer groups, 2 by (2). A record's own share in the mean of its group is about 1 / M.

**Arithmetic.** Gradients are written out and averaged in float32, then norm and sum see the same numbers. Filtered means are
added up in float64. As everywhere in the engine, what one group contributes is taken as computed independently of the rows
beside it. That holds up to the last bits of float32, and a mean of long gradients that cancel can make them matter.

The papers account with C. That is the nominal sensitivity.
"""

from __future__ import annotations

import math

from dpltm.errors import InputError

FACTOR = 2.0
"""Of the certified bound of a filter, what one record moves the sum of filtered groups by, at most: (2)."""


def check_microbatch(microbatch: int | None, batch: float) -> None:
    """Refuses a size of groups that there cannot be.

    Args:
        microbatch: M, about how many records a group has; None for no groups.
        batch: expected number of records of a step.

    Raises:
        InputError: no whole number from 2, or more than a step has.
    """
    if microbatch is None:
        return
    if isinstance(microbatch, bool) or not isinstance(microbatch, int) or microbatch < 2:
        raise InputError(
            f"`microbatch`: {microbatch} is not a whole number of records from 2; leave it out to filter single records"
        )
    if microbatch > batch:
        raise InputError(
            f"`microbatch`: {microbatch} is more than the {batch:g} records that a step has on average (`batch_size`)"
        )


def number_of_groups(microbatch: int, batch: float) -> int:
    """G, groups of a step: public, and settled before the sample is drawn.

    Args:
        microbatch: M.
        batch: expected number of records of a step.
    """
    return math.ceil(batch / microbatch)
