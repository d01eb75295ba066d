"""The likelihood-ratio attack on messages of local privacy: two records that differ as much as any, one of them sent.

No attack tells them apart better than the ratio of the chances of the message, which follow from the public scheme. So a
claim that is far too small falls at once; of one that holds, the bound comes as near as the number of messages permits.
"""

from __future__ import annotations

import numpy as np

from dpltm.audit.one_run import check_confidence
from dpltm.audit.pairs import pair_bound
from dpltm.errors import InputError
from dpltm.local.codebook import NUMBER_BYTES, Codebook
from dpltm.local.scheme import BitStrings
from dpltm.randomness.noise import RandomSource

AT_ONCE = 2**24
"""Bits of messages at a time."""


def local_bound(answer: BitStrings | Codebook, messages: int, confidence: float, coins: RandomSource) -> float:
    """A lower bound on the local epsilon of a record, label included unless it is public.

    Args:
        answer: of the scheme.
        messages: of each of the two records.
        confidence: of the bound, in [0.5, 1).
        coins: of the messages.

    Raises:
        InputError: too few messages, or a confidence out of range.

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
    """The same for opposite records with different labels: an index is likelier from the one that it is near to.

    Each message has a codebook of its own, so that the messages are independent.
    """
    values = np.zeros((2, answer.values), np.float32)
    values[0, 0], values[1, 0] = 1, -1
    labels, scores = np.array([0, 1]), np.zeros(messages)
    for at in range(messages):
        (row,) = answer.randomise(values[[record]], labels[[record]], coins)
        number, index = (int.from_bytes(part.tobytes(), "little") for part in (row[:NUMBER_BYTES], row[NUMBER_BYTES:]))
        first, second = answer.near_candidates(values, labels, number)
        scores[at] = float(index in first) - float(index in second)
    return scores
