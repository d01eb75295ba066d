"""The filtered sum over the sample of a step, by one process or by several ranks.

**Which rank computes what.** Rank 0 draws who enters a step, and every record's chunk by a coin of its own, as one
process does (``randomness.sampling``); the others hear of it. Chunks go one after the other into groups, as large as the
public settings say (``at_once``). Group g belongs to rank g modulo the number of ranks, and goes through the network by
itself. So what comes out of it does not depend on the number of ranks.

**Their total does not either.** The sum s of a group, in float64, is split coordinate by coordinate into whole multiples
of two public steps. S is the power of two from C up to 2 C (``sampling.scale_of``):

    high = s rounded to multiples of a = 2^-28 S,    low = (s - high) rounded to multiples of b = 2^-61 S.        (1)

s - high is exact in float64. Sums of highs stay below 2^53 a for up to 2^24 records in a step, sums of lows below 2^53 b
for up to 2^20 groups, since |low| <= a / 2. Float64 holds all of these exactly, in any order. Rank 0 adds high and low at
the end, which rounds once, and the noise, once; what the other ranks receive is the noisy mean.

**The bound is that of one process.** A neighbour's extra record is in one chunk, by its coin; all other chunks, and the
highs and lows of other groups, stay. Its chunk moves by at most C, float32 rounding included (``sampling``), and (1)
leaves out at most 2^-62 S of each of n coordinates of its group: 2^-60 C sqrt(n) between neighbours in L2 norm, far
within what ``RecordGradients.rounding`` leaves over. Element-wise filters, microbatches (by their public numbers) and
means of persons (by position) are summed in float64, where (1) leaves out as much for every group.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dpltm.errors import InputError, first_line
from dpltm.gradients import RecordGradients
from dpltm.gradients.linear_layer import compiler_at_hand
from dpltm.networks.full_precision import full_precision
from dpltm.randomness.sampling import LIMIT, USUAL, scale_of
from dpltm.records.batches import Batch, Records
from dpltm.records.units import ABSENT
from dpltm.training.ranks import Ranks, Shards

if TYPE_CHECKING:
    from dpltm.training.plan import NoisySteps

Sample = tuple[np.ndarray, list[int] | None, np.ndarray | None]
"""Records that enter a step, by chunk, with the number of records of each chunk; None without chunks. Or by group, where the
filter takes the mean gradient of groups (``training.plan``), or of persons. Last, their keys, where the network draws.
"""


def at_once(chunks: int) -> int:
    """Return how many of a step's chunks make a group: more take less time each, but leave some ranks without work."""
    return 1 if chunks < 8 else 2 if chunks < 32 else 4


class ExactSum:
    """A sum of vectors, the same to the last bit whatever their order and whoever adds them: see (1) of the module.

    Attributes:
        parts: highs and lows so far, ``(2, length)`` float64; they add up to the sum, and to those of other ranks.
    """

    def __init__(self, length: int, bound: float, device: torch.device) -> None:
        self._high = torch.zeros(length, dtype=torch.float64, device=device)
        self.parts = torch.zeros(2, length, dtype=torch.float64, device=device)
        self.clear(bound)

    def clear(self, bound: float) -> None:
        """Begin anew, with contributions of up to ``bound``."""
        # beside 1.5 2^52 steps float64 has no room for less than one step; taking these away again is exact
        self._coarse, self._fine = (1.5 * 2.0**52 * step * scale_of(bound) for step in (2.0**-28, 2.0**-61))
        self.parts.zero_()
        self._high.zero_()

    def add(self, values: Tensor) -> None:
        """Add ``values``, ``(length,)`` float64, which are overwritten."""
        torch.add(values, self._coarse, out=self._high).sub_(self._coarse)
        self.parts[0] += self._high
        values -= self._high
        self.parts[1] += values.add_(self._fine).sub_(self._fine)


MEMORY, OTHERWISE = "memory", "otherwise"
"""How a sum can fail: the memory of the device was full, or the model or the loss did not take some record."""


class SampleSums:
    """Filtered sums of samples of some records.

    Attributes:
        filter: that of the next sum; its clip norm may follow a quantile.
    """

    def __init__(
        self,
        gradients: RecordGradients,
        records: Records,
        plan: NoisySteps,
        device: torch.device,
        ranks: Ranks | None = None,
        shards: Shards | None = None,
    ) -> None:
        self._gradients, self._records, self._plan, self._ranks = gradients, records, plan, ranks
        self._shards = Shards(ranks) if shards is None else shards
        options, batch = plan.options, plan.expected_batch
        self._compiled = options.compile and compiler_at_hand()
        most = options.physical_batch or gradients.comfortable_batch
        # four standard deviations: nearly every sample fits, and one that does not takes another batch
        usual = math.ceil((batch + 4 * math.sqrt(batch)) / 16) * 16
        self._grouped = plan.groups is not None or records.persons is not None
        a_group = options.microbatch or (USUAL if records.persons is None else 1)
        self._group = math.ceil(at_once(math.ceil(batch / USUAL)) * USUAL / a_group)
        self._rows = min(most, usual if ranks is None else self._group * LIMIT) if self._compiled else most
        self._narrow = options.precision == "bfloat16"
        if self._narrow:  # in passes of one shape, a quarter of a batch or less: little of it is filled up
            gradients.pass_rows = min(self._rows, gradients.comfortable_pass, usual // 4)
            self._rows -= self._rows % gradients.pass_rows if self._compiled else 0
        self._device, weights = device, plan.class_weight
        self._weights = None if weights is None else torch.tensor(weights, dtype=torch.float64, device=device)
        self.filter = plan.filter
        length = gradients.length_of(self.filter)
        self._total = torch.zeros(length, dtype=torch.float64, device=device)
        self._exact = None if ranks is None else ExactSum(length, self._bound, device)

    def rehearse(self, x: Tensor, y: Tensor) -> None:
        """Sum once over made-up rows as in training; raise InputError for what does not compile, or work in bfloat16."""
        if not self._compiled and not self._narrow:
            return
        rows = self._rows if self._compiled else 2
        x, y = x.new_zeros(rows, *x.shape[1:]), y.new_zeros(rows, *y.shape[1:])
        groups = [1] * rows if self._grouped else None
        present = torch.ones(rows, dtype=torch.bool, device=x.device) if groups is None else None
        try:
            with self._precision():
                keys = torch.zeros(rows, dtype=torch.int64, device=x.device)
                self._gradients.filtered_sum(x, y, self.filter, present, groups=groups, keys=keys)
                if self._narrow:
                    self._gradients.check_bits()
        except InputError:
            raise
        except Exception as error:  # the compiler's, or whatever the user's own code raises in bfloat16
            option = "`compile`" if self._compiled else "`precision`: bfloat16"
            raise InputError(f"{option}: fails on made-up records: {first_line(error)}; leave it out") from error

    def take(self, sample: Sample | None) -> Tensor:
        """Return the sum over a sample, ``(length_of(filter),)`` float64, in memory that the next one overwrites.

        Ranks other than 0 give None, hear of the sample, and get zeros.
        """
        self.clear()  # of a step that was interrupted, too
        if self._ranks is None or self._exact is None:
            assert sample is not None
            mine = self._fails(self._batches(*sample))
            failed, full = bool(mine), mine == MEMORY
        else:
            heard = _heard(self._ranks, sample)
            with self._shards.turns():
                mine = self._share_fails(self._ranks, self._exact, *heard)
                self._shards.failed = bool(mine)
            failed, full = self._ranks.any(bool(mine)), self._ranks.any(mine == MEMORY)
            if not failed:
                self._ranks.reduce(self._exact.parts)
            if self._ranks.first:
                torch.add(self._exact.parts[0], self._exact.parts[1], out=self._total)
        if full:
            raise InputError(
                f"`physical_batch`: {self._rows} records at a time do not fit into the memory of {self._device}; take fewer."
                " What was spent is on record"
            )
        if failed:
            raise InputError(
                "training: the model or the loss failed on the records of a step; is every label a class, and every token in"
                " the vocabulary? What was spent is on record"
            )
        return self._total

    def clear(self) -> None:
        """Forget the last sum: one without noise is kept nowhere."""
        self._total.zero_()
        if self._exact is not None:
            self._exact.clear(self._bound)

    @property
    def _bound(self) -> float:
        return self.filter.certified_bound(self._gradients.live)

    def _share_fails(
        self, ranks: Ranks, exact: ExactSum, index: np.ndarray, chunks: list[int], keys: np.ndarray | None
    ) -> str:
        """Add every group of this rank to ``exact``; tell how one of them failed, as :meth:`_fails` does."""
        stops, by_itself = [0, *accumulate(chunks)], self._plan.filter.kind == "element-wise"
        whole = not by_itself or self._grouped
        for first in range(ranks.rank * self._group, len(chunks), ranks.size * self._group):
            last = min(first + self._group, len(chunks))
            rows = slice(stops[first], stops[last])
            own = None if keys is None else keys[rows]
            self._total.zero_()
            failed = self._fails(self._batches(index[rows], chunks[first:last] if whole else None, own))
            if failed:
                return failed
            exact.add(self._total)
        self._total.zero_()
        return ""

    def _batches(self, index: np.ndarray, sizes: list[int] | None, keys: np.ndarray | None) -> Iterable[Batch]:
        """Records of a sample, in batches; ``sizes`` are of chunks, or of groups."""
        if self._grouped and sizes is not None:
            return self._records.groups(index, self._rows, sizes, keys, one_shape=self._narrow)
        return self._records.batches(index, self._rows, self._compiled, sizes, keys, one_shape=self._narrow)

    def _fails(self, batches: Iterable[Batch]) -> str:
        """Add batches to the total; tell how that failed: ``MEMORY``, ``OTHERWISE``, or not. What an exception says may
        tell of a record: it ends here."""
        try:
            with full_precision(), self._precision():
                for batch in batches:
                    present = batch.present
                    if self._weights is not None:
                        weights = weights_of(batch.y, self._weights)
                        if batch.groups is not None:
                            weights = torch.stack([each.mean() for each in weights.split(batch.groups)])
                        present = weights if present is None else weights * present
                    self._gradients.filtered_sum(
                        batch.x,
                        batch.y,
                        self.filter,
                        present,
                        batch.chunks,
                        self._total,
                        batch.groups,
                        batch.keys,
                    )
        except Exception as error:
            full = isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "allocate memory" in str(error)
            return MEMORY if full else OTHERWISE
        return ""

    def _precision(self) -> torch.autocast:
        """Of the passes through the network. A cache of casts would outlive a step within a caller's own autocast."""
        return torch.autocast(self._device.type, torch.bfloat16, enabled=self._narrow, cache_enabled=False)


def weights_of(labels: Tensor, weights: Tensor) -> Tensor:
    """Return the weight of each record by its label, ``(batch,)``; of a person the mean of those of the records in slots."""
    labels = labels.long()
    if labels.ndim == 1:
        return weights[labels]
    there = labels != ABSENT
    return (weights[labels.clamp_min(0)] * there).sum(1) / there.sum(1).clamp_min(1)


def _heard(ranks: Ranks, sample: Sample | None) -> tuple[np.ndarray, list[int], np.ndarray | None]:
    """Return the sample of rank 0, on every rank; without chunks, in blocks by position."""
    index, chunks, keys = (np.zeros(0, dtype=np.int64), [], None) if sample is None else sample
    if chunks is None:
        chunks = [min(USUAL, len(index) - start) for start in range(0, len(index), USUAL)]
    keys = index[:0] if keys is None else keys
    sizes = ranks.broadcast(torch.tensor([len(chunks), len(index), len(keys)]))
    count, records, drawn = sizes.tolist()
    told = torch.from_numpy(np.concatenate([np.array(chunks, dtype=np.int64), index, keys])) if ranks.first else None
    all_of_it = ranks.broadcast(torch.empty(count + records + drawn, dtype=torch.int64) if told is None else told)
    sizes_of_chunks, index, keys = np.split(all_of_it.numpy(), [count, count + records])
    return index, sizes_of_chunks.tolist(), keys if drawn else None
