"""Attacks on masks, and on messages of local privacy.

**Tickets that are made from records with no mechanism**: features that no record has (privacy-model.md 2).
Where a feature is zero in every record, its weights get no gradient: they end where they started. So magnitude pruning
drops exactly those of them below one threshold, which anybody who has the starting weights sees. One record that has the
feature moves them, and the order breaks. Canary i is a record with feature i alone, at the largest value that inputs may
have; a coin decides whether it is among the records. The attack sees masks and starting weights alone.

**Messages of local privacy**: the likelihood ratio of two records that differ as much as any, one of them sent.
No attack tells them apart better than the ratio of the chances of the message, which follow from the public scheme. So a
claim that is far too small falls at once; of one that holds, the bound comes as near as the number of messages permits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpltm.audit.bounds import check_confidence, epsilon_bound, least_canaries, pair_bound
from dpltm.errors import InputError
from dpltm.local.codebook import NUMBER_BYTES, Codebook
from dpltm.local.scheme import BitStrings
from dpltm.randomness.noise import RandomSource


@dataclass(frozen=True)
class MaskFindings:
    """Result of the attack on masks; the lower bound is on epsilon at delta 0 of making tickets."""

    canaries: int
    correct: int
    lower_bound: float
    confidence: float


def unset_features(x: np.ndarray) -> np.ndarray:
    """Places of features that are 0 in all records ``(n, ...)``; ascending."""
    return np.flatnonzero((x.reshape(len(x), -1) == 0).all(0))


def with_canaries(x: np.ndarray, places: np.ndarray, largest: float) -> np.ndarray:
    """The records, and after them one canary a place, of the same dtype."""
    made = np.zeros((len(places), int(np.prod(x.shape[1:]))), x.dtype)
    made[np.arange(len(places)), places] = largest
    return np.concatenate([x, made.reshape(len(places), *x.shape[1:])])


def out_of_order(weights: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Number of weights of each feature that were kept below the threshold, or dropped above, ``(features,)``.

    0 where nothing moved them; the threshold is one that has fewest of them in all. ``weights`` are absolute starting
    weights, ``(units, features)``, and ``mask`` says which of them live after one round.
    """
    order = np.argsort(weights, axis=None)
    kept = mask.flatten()[order]
    below = np.concatenate([[0], np.cumsum(kept)])  # kept, if the threshold is before place i
    above = np.concatenate([np.cumsum(~kept[::-1])[::-1], [0]])
    threshold = np.append(weights.flatten()[order], np.inf)[int(np.argmin(below + above))]
    return ((weights < threshold) == mask).sum(0)


def check_unset(canaries: int, confidence: float) -> None:
    """Raise InputError where too few features are zero in every record for a bound that holds with ``confidence``."""
    if canaries < least_canaries(confidence):
        raise InputError(
            f"`dataset`: {canaries} of its features are zero in every record, and `confidence` {confidence:g} needs"
            f" {least_canaries(confidence)}; this attack is for images with an empty border, such as mnist"
        )


def mask_findings(moved: np.ndarray, included: np.ndarray, confidence: float) -> MaskFindings:
    """Bound from guessing that a canary is in where its weights are out of order; ``included`` are its fair coins.

    Guarantees:
        If making tickets is (epsilon, 0)-DP for one record more or less, the bound exceeds epsilon with probability at most
        1 - ``confidence``.
    """
    canaries = len(moved)
    check_unset(canaries, confidence)
    correct = int(((moved > 0) == included).sum())
    bound = epsilon_bound(canaries, canaries, correct, 0.0, confidence)
    return MaskFindings(canaries, correct, bound, confidence)


AT_ONCE = 2**24
"""Bits of messages at a time."""


def local_bound(answer: BitStrings | Codebook, messages: int, confidence: float, coins: RandomSource) -> float:
    """A lower bound on the local epsilon of a record, label included unless it is public.

    Guarantees:
        If ``answer`` is epsilon-locally private, the bound exceeds epsilon with probability at most 1 - ``confidence``.
    """
    check_confidence(confidence)
    if messages < 20:
        raise InputError(f"`messages`: {messages} are too few to tell anything; take at least 20, such as 2000")
    first, second = (_scores(answer, record, messages, coins) for record in (0, 1))
    return pair_bound(first, second, 0.0, confidence)


def _scores(answer: BitStrings | Codebook, record: int, messages: int, coins: RandomSource) -> np.ndarray:
    if isinstance(answer, Codebook):
        return _of_codebook(answer, record, messages, coins)
    return _of_bits(answer, record, messages, coins)


def _of_bits(answer: BitStrings, record: int, messages: int, coins: RandomSource) -> np.ndarray:
    """Log ratios of messages of one of two records: each bit of theirs differs, in the direction that tells more."""
    channel, response = answer.channel, answer.response
    p, q = channel.probabilities()
    towards = [bit.likelier[0] >= bit.likelier[1] for bit in channel.pattern]
    one = np.resize(towards, channel.bits)  # the bits of the first record; the second has the others
    sent = np.packbits(one if record == 0 else ~one)
    sign = np.where(one, 1.0, -1.0)
    as_one, as_zero = sign * np.log(p / q), sign * np.log((1 - p) / (1 - q))
    scores, at_once = np.zeros(messages), max(1, AT_ONCE // channel.bits)
    for start in range(0, messages, at_once):
        some = scores[start : start + at_once]
        packed = channel.send(np.repeat(sent[None], len(some), axis=0), coins)
        bits = np.unpackbits(packed, axis=1, count=channel.bits).astype(bool)
        some += np.where(bits, as_one, as_zero).sum(1)
    if response is not None:
        true, other = response.chances
        label = response.send(np.full(messages, record), coins)
        scores += np.log(true / other) * ((label == 0).astype(float) - (label == 1))
    return scores


def _of_codebook(answer: Codebook, record: int, messages: int, coins: RandomSource) -> np.ndarray:
    """The same for opposite records with different labels, each message with a codebook of its own, so independent: an
    index is likelier from the record that it is near to."""
    values = np.zeros((2, answer.values), np.float32)
    values[0, 0], values[1, 0] = 1, -1
    labels, scores = np.array([0, 1]), np.zeros(messages)
    for at in range(messages):
        (row,) = answer.randomise(values[[record]], labels[[record]], coins)
        number, index = (int.from_bytes(part.tobytes(), "little") for part in (row[:NUMBER_BYTES], row[NUMBER_BYTES:]))
        first, second = answer.near_candidates(values, labels, number)
        scores[at] = float(index in first) - float(index in second)
    return scores
