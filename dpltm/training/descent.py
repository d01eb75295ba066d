"""Phase 3: train a ticket under differential privacy (DP-SGD on live coordinates; docs/privacy-model.md section 4).

Each step: Poisson sample, per-record gradients, filter, sum, Gaussian noise on live coordinates only, division by the
*expected* batch size, optimizer: post-processing, so every one has the same guarantee. Pruned weights stay exactly zero.

**Ranks.** Rank 0 draws who enters a step, and every record's chunk by a coin of its own, as one process does
(``randomness.sampling``). Chunks go one after the other into groups of a public size (``at_once``). Group g belongs to rank
g modulo the number of ranks, and goes through the network by itself: what comes out of it does not depend on that number.

**Their total does not either.** The sum s of a group, in float64, is split coordinate by coordinate into whole multiples
of two public steps. S is the power of two from C up to 2 C (``sampling.scale_of``):

    high = s rounded to multiples of a = 2^-28 S,    low = (s - high) rounded to multiples of b = 2^-61 S.        (1)

s - high is exact in float64. Sums of highs stay below 2^53 a for up to 2^24 records in a step, sums of lows below 2^53 b
for up to 2^20 groups, since |low| <= a / 2. Float64 holds all of these exactly, in any order. Rank 0 adds high and low,
which rounds once, and the noise, once; the other ranks receive the noisy mean.

**The bound is that of one process.** A neighbour's extra record is in one chunk, by its coin; all others, and the highs and
lows of other groups, stay. Its chunk moves by at most C, float32 rounding included (``sampling``), and (1) leaves out at
most 2^-62 S of each of n coordinates: 2^-60 C sqrt(n) between neighbours in L2 norm, far within what
``RecordGradients.rounding`` leaves over. Element-wise filters, microbatches (by their public numbers) and means of persons
(by position) are summed in float64, where (1) leaves out as much for every group.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, islice

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from dpltm.errors import InputError, first_line
from dpltm.gradients import Loss, RecordGradients
from dpltm.gradients.engine import moved_text
from dpltm.gradients.linear_layer import compiler_at_hand
from dpltm.gradients.mapped import row_wise
from dpltm.networks import Network
from dpltm.networks.full_precision import full_precision
from dpltm.networks.masks import Mask
from dpltm.privacy.mechanisms import AllocatedSgd
from dpltm.randomness.banded_noise import BandedNoise
from dpltm.randomness.gaussian_mechanism import gaussian_mechanism
from dpltm.randomness.gaussian_on_device import gaussian_mechanism_on_device
from dpltm.randomness.noise import RandomSource
from dpltm.randomness.sampling import USUAL, allocate, in_chunks, poisson_sample, record_keys, scale_of
from dpltm.records.batches import Batch, Records
from dpltm.records.dataset import LEVELS, Dataset
from dpltm.records.units import ABSENT
from dpltm.training.canaries import Canaries, Observations
from dpltm.training.optimizers import OPTIMIZERS, SCHEDULES, NewtonSteps, PerParameter, WeightAverage
from dpltm.training.plan import NoisySteps
from dpltm.training.ranks import Ranks

Sample = tuple[np.ndarray, list[int] | None, np.ndarray | None]
"""Records that enter a step, by chunk or group; the size of each, None without chunks; and keys, where the network draws."""


def at_once(chunks: int) -> int:
    """Return how many of a step's chunks make a group: more take less time each, but leave some ranks without work."""
    return 1 if chunks < 8 else 2 if chunks < 32 else 4


class ExactSum:
    """A sum of vectors, the same to the last bit whatever their order and whoever adds them: see (1) of the module. Its
    ``parts``, highs and lows so far, ``(2, length)`` float64, add up to the sum, and to those of other ranks."""

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


MOST_PASSES = 200_000  # records of all steps together, on average, up to which passes of one record each are borne


class SampleSums:
    """Filtered sums of samples of some records."""

    def __init__(
        self,
        gradients: RecordGradients,
        records: Records,
        plan: NoisySteps,
        device: torch.device,
        ranks: Ranks | None = None,
    ) -> None:
        self._gradients, self._records, self._plan, self._ranks = gradients, records, plan, ranks
        options, batch = plan.options, plan.expected_batch
        self._grouped = plan.groups is not None or records.persons is not None
        a_group = options.microbatch or (USUAL if records.persons is None else 1)
        self._group = math.ceil(at_once(math.ceil(batch / USUAL)) * USUAL / a_group)
        self._narrow = options.precision == "bfloat16"
        self._settle_rows(any_width=plan.filter.kind == "element-wise")
        self._device, weights = device, plan.class_weight
        self._weights = None if weights is None else torch.tensor(weights, dtype=torch.float64, device=device)
        self.filter = plan.filter
        self._total = torch.zeros(gradients.live, dtype=torch.float64, device=device)
        self._exact = None if ranks is None else ExactSum(gradients.live, self._bound, device)

    def _settle_rows(self, *, any_width: bool) -> None:
        plan = self._plan
        self._rows = self._gradients.settle(plan.expected_batch, plan.options.physical_batch, any_width, self._narrow)

    def rehearse(self) -> None:
        """Try passes on made-up records; raise InputError for what does not compile, or work in bfloat16, and where records
        depend on others in them, and would take too long one by one."""
        plan, gradients = self._plan, self._gradients
        try:
            with self._precision():
                place = gradients.rehearse(self.filter)
                if place is not None:  # a remainder of a thread, perhaps, in a tensor that no module sees or gives
                    self._settle_rows(any_width=True)
                    place = gradients.rehearse(self.filter)
                if place is not None and plan.mechanism.steps * plan.expected_batch > MOST_PASSES:
                    raise InputError(moved_text(place, self._narrow))
                if place is not None:
                    gradients.pass_rows = 1
                    gradients.rehearse(self.filter)
                why = "" if place is None else moved_text(place, self._narrow, "records pass one by one, slowly")
                gradients.one_by_one = why
        except InputError:
            raise
        except Exception as error:  # the compiler's, or whatever the user's own code raises in bfloat16
            compiled = plan.options.compile and compiler_at_hand()
            option = "`compile`" if compiled else "`precision`: bfloat16" if self._narrow else "model or loss"
            raise InputError(f"{option}: fails on made-up records: {first_line(error)}; leave it out") from error

    def check(self) -> None:
        """Raise InputError where passes would not be as they were when rehearsed, by public facts alone."""
        with self._precision():
            if place := self._gradients.rehearse(self.filter):
                raise InputError(moved_text(place, self._narrow))

    def take(self, sample: Sample | None) -> Tensor:
        """Return the sum over a sample, ``(live,)`` float64, in memory that the next overwrites; ranks but 0 give None."""
        self.clear()  # of a step that was interrupted, too
        if self._ranks is None or self._exact is None:
            assert sample is not None
            failed = self._fails(*sample)
        else:
            failed = any(self._ranks.gather(self._share_fails(self._ranks, self._exact, *_heard(self._ranks, sample))))
            if not failed:
                self._ranks.reduce(self._exact.parts)
            if self._ranks.first:
                torch.add(self._exact.parts[0], self._exact.parts[1], out=self._total)
        if failed:
            raise InputError(
                "training: the model or the loss failed on the records of a step; is every label a class, and every token in"
                f" the vocabulary? If memory of {self._device} ran out, take a `physical_batch` below {self._rows}. What was"
                " spent is on record"
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
    ) -> bool:
        stops = [0, *accumulate(chunks)]
        shared_shape = self._plan.filter.kind != "element-wise" or self._grouped
        for first in range(ranks.rank * self._group, len(chunks), ranks.size * self._group):
            last = min(first + self._group, len(chunks))
            rows = slice(stops[first], stops[last])
            own = None if keys is None else keys[rows]
            self._total.zero_()
            if self._fails(index[rows], chunks[first:last] if shared_shape else None, own):
                return True
            exact.add(self._total)
        self._total.zero_()
        return False

    def _fails(self, index: np.ndarray, sizes: list[int] | None, keys: np.ndarray | None) -> bool:
        """Add a sample to the total; tell whether that failed. What an exception says may tell of a record: it ends here."""
        in_groups = self._grouped and sizes is not None
        batches: Callable[..., Iterable[Batch]] = self._records.groups if in_groups else self._records.batches
        try:
            with full_precision(), self._precision():
                for batch in batches(index, self._rows, sizes, keys):
                    weights = None if self._weights is None else weights_of(batch.y, self._weights, batch.groups)
                    self._gradients.filtered_sum(
                        batch.x, batch.y, self.filter, weights, batch.chunks, self._total, batch.groups, batch.keys
                    )
        except Exception:
            return True
        return False

    def _precision(self) -> torch.autocast:
        # a cache of casts would outlive a step within a caller's own autocast
        return torch.autocast(self._device.type, torch.bfloat16, enabled=self._narrow, cache_enabled=False)


def weights_of(labels: Tensor, weights: Tensor, groups: Sequence[int] | None = None) -> Tensor:
    """Return the weight of each record by its label, ``(batch,)``; of a person the mean of those of the records in slots, or
    in its group. What is averaged is a multiple of 2^-40, so that sums are exact, however many persons there are."""
    labels = labels.long()
    if labels.ndim == 1 and groups is None:
        return weights[labels]
    weights = (weights * 2.0**40).floor() / 2.0**40
    if groups is None:
        return _mean_of_slots(weights[labels.clamp_min(0)], labels)
    return torch.stack([person.mean() for person in weights[labels].split(list(groups))])


def _heard(ranks: Ranks, sample: Sample | None) -> tuple[np.ndarray, list[int], np.ndarray | None]:
    """Return the sample of rank 0, on every rank; without chunks, in blocks by position."""
    index, chunks, keys = (np.zeros(0, dtype=np.int64), [], None) if sample is None else sample
    if chunks is None:
        chunks = [min(USUAL, len(index) - start) for start in range(0, len(index), USUAL)]
    parts = [np.array(chunks, dtype=np.int64), index, index[:0] if keys is None else keys]
    sizes = ranks.broadcast(torch.tensor([*map(len, parts)])).tolist()
    message = torch.from_numpy(np.concatenate(parts)) if ranks.first else torch.empty(sum(sizes), dtype=torch.int64)
    chunk_sizes, index, keys = np.split(ranks.broadcast(message).numpy(), np.cumsum(sizes)[:2])
    return index, chunk_sizes.tolist(), keys if sizes[2] else None


@row_wise
def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the loss of a classifier, one value a record: ``(batch, classes)`` and ``(batch,)`` to ``(batch,)``."""
    return functional.cross_entropy(outputs, labels, reduction="none")


@row_wise
def target_cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the loss of targets that are numbers, one value a record, or person: the cross-entropy of both ends of their
    range, weighed by where between them a target lies (Papke and Wooldridge 1996)."""
    parts = target_parts(labels.clamp_min(0), outputs.dtype)
    losses = -(parts * functional.log_softmax(outputs, -1)).sum(-1)
    return losses if losses.ndim == 1 else _mean_of_slots(losses, labels)


def target_parts(labels: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return how much of each end of the range a target has, ``(..., 2)``, by its level."""
    part = labels.to(dtype)[..., None] / LEVELS
    return torch.cat([1 - part, part], -1)


def _mean_of_slots(values: Tensor, labels: Tensor) -> Tensor:
    present = labels != ABSENT
    return (values * present).sum(1) / present.sum(1).clamp_min(1)


@row_wise
def user_cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the mean loss of each user's labels: ``(batch, slots, classes)`` and ``(batch, slots)`` to ``(batch,)``; how
    many slots are filled is the user's own affair, so it may divide."""
    losses = functional.cross_entropy(outputs.flatten(0, 1), labels.flatten(), ignore_index=ABSENT, reduction="none")
    return _mean_of_slots(losses.view_as(labels), labels)


def loss_of(spec: Network, dataset: Dataset, scale: float = 1.0) -> Loss:
    """Return the loss that a network is trained by, one value a record, or person, over a public ``scale``: longer residuals
    are clipped where the norm of inputs is fixed."""
    usual = user_cross_entropy if dataset.of_persons else spec.loss or cross_entropy
    loss = usual if dataset.target is None else target_cross_entropy
    return loss if scale == 1 else lambda outputs, labels: loss(outputs, labels) / scale


FIRST = "rank 0/"  # begins the names of what rank 0 alone remembers
CANARIES, BANDED = f"{FIRST}canaries/", f"{FIRST}banded_noise"


class NoisyGradients:
    """The private part of training: every step leaves the noisy mean gradient of a fresh sample with the parameters.

    Args:
        loss: to one value a record; or gradients of it by the same network, mask and settings, which are planned already.
        sampling: coins of the Poisson sampler, and keys of what the network draws; cryptographic outside tests.
        noise: bits of the Gaussian noise; cryptographic outside tests and ``noise="fast"``.
        ranks: coins, noise and ``canaries`` are those of rank 0 alone; None for one process.
    """

    def __init__(
        self,
        model: nn.Module,
        mask: Mask,
        loss: Loss | RecordGradients,
        records: Records,
        plan: NoisySteps,
        *,
        sampling: RandomSource,
        noise: RandomSource,
        ranks: Ranks | None = None,
    ) -> None:
        if not isinstance(loss, RecordGradients):
            grouped = plan.groups is not None or records.persons is not None
            loss = RecordGradients(model, mask, loss, plan.options.compile, grouped=grouped)
        self.gradients = loss
        self._example = example = records.take(np.zeros(1, dtype=np.int64)) if len(records) else None
        if example is not None:
            self.gradients.check(*example, apart=False)
        element_wise = plan.filter.kind == "element-wise"  # whose sums are in float64 anyway
        self._chunks = plan.groups or (None if element_wise else math.ceil(plan.expected_batch / USUAL))
        self.canaries: Canaries | None = None
        self.allocation = sampling  # or where it begins, from where a resumed training draws it again
        self.step = 0
        self._allocated: Iterator[np.ndarray] | None = None
        self._model, self._mask, self._masked = model, mask, False
        self._records, self.plan, self._sampling, self._noise = records, plan, sampling, noise
        self._ranks = ranks
        self._first = ranks is None or ranks.first
        self.parameters = [value for value in model.parameters() if value.requires_grad]
        trained = [mask[name].flatten() for name, value in model.named_parameters() if value.requires_grad]
        like = self.parameters[0]
        live = torch.cat(trained)
        self._live = None if bool(live.all()) else live.nonzero().squeeze(1).to(like.device)
        self._flat = torch.zeros(sum(value.numel() for value in self.parameters), dtype=like.dtype, device=like.device)
        parts = self._flat.split([value.numel() for value in self.parameters])
        self._parts = [part.view_as(value) for part, value in zip(parts, self.parameters, strict=True)]
        self._part_of: np.ndarray | None = None
        self.banded: BandedNoise | None = None
        if plan.strategy and self._first:
            self._part_of = records.parts(len(plan.strategy))
            self.banded = BandedNoise(plan.strategy, like.new_zeros(self.gradients.live, dtype=torch.float64))
        self._sums = SampleSums(self.gradients, records, plan, like.device, ranks)
        if example is not None:
            self._sums.rehearse()

    def backward(self) -> None:
        """Draw a sample and put (filtered sum + noise) / divisor into every ``grad``; zero where pruned."""
        self.apply_mask()
        with (
            contextlib.nullcontext() if self._ranks is None else contextlib.suppress(InputError)
        ):  # by the sum, on all ranks
            if self._example is not None:
                self.gradients.check(*self._example)  # whether it draws may have changed since the last step
                self._sums.check()
        total = self._sums.take(self._draw() if self._first else None)
        if self.canaries is not None:
            self.canaries.add_to(total)
        self.release(total)
        self._sums.clear()
        self.step += 1

    @property
    def kernels(self) -> dict[str, str]:
        """What ranks must have in common, since a record may be computed on another when one leaves."""
        return {"bits that passes of made-up records leave": self.gradients.kernels_digest}

    @property
    def observations(self) -> Observations | None:
        return None if self.canaries is None else self.canaries.observations

    def state(self) -> dict[str, Tensor]:
        """What it remembers of its steps, by name; not copied. Noise of the last steps is secret."""
        state = {} if self.canaries is None else self.canaries.state()
        state = {f"{CANARIES}{name}": value for name, value in state.items()}
        return state if self.banded is None else {**state, BANDED: self.banded.noise}

    def resume(self, step: int, state: Mapping[str, Tensor]) -> None:
        """Go on after ``step`` steps of another process, from its state; InputError for that of other settings."""
        self.step = step
        restore(self.state(), state)

    def _draw(self) -> Sample:
        records, persons = len(self._records), self._records.persons
        index = self._sampled(records + (0 if self.canaries is None else self.canaries.extra))
        if self.canaries is not None:
            index = self.canaries.split(index, records)
        sizes: list[int] | None = None
        if persons is not None:  # by a coin each, with all their records
            theirs = [persons[person] for person in index]
            index, sizes = np.concatenate([index[:0], *theirs]), [len(of_rank) for of_rank in theirs]
        elif self._chunks is not None:
            index, sizes = in_chunks(self._sampling, index, self._chunks)
        keys = record_keys(self._sampling, self._records.rows)[index] if self.gradients.draws else None
        return index, sizes, keys

    def _sampled(self, records: int) -> np.ndarray:
        mechanism = self.plan.mechanism
        if isinstance(mechanism, AllocatedSgd):
            if self._allocated is None:
                allocated = allocate(self.allocation, records, mechanism.steps, mechanism.participations)
                self._allocated = islice(allocated, self.step, None)
            return next(self._allocated)
        index = poisson_sample(self._sampling, records, mechanism.sampling_rate)
        return index if self._part_of is None else index[self._part_of[index] == self.step % len(self.plan.strategy)]

    def release(self, total: Tensor) -> None:
        """Put (``total`` + noise) / divisor, ``total`` of ``SampleSums``, into every ``grad``; rank 0 alone adds noise."""
        if self._first:
            query = total if self.banded is None else self.banded.query(total, self.step)
            noise_std = self.plan.mechanism.noise_std
            mean = noisy_mean(query, noise_std, self.plan.divisor, self._noise)
            if self.banded is not None:
                self.banded.keep(mean.double() * self.plan.divisor, total, self.step)
            if self.canaries is not None:
                self.canaries.observe(mean, self.plan.divisor, noise_std)
            mean = mean.to(self._flat.dtype)
        else:
            mean = torch.empty(self.gradients.live, dtype=self._flat.dtype, device=self._flat.device)
        if self._ranks is not None:
            self._ranks.broadcast(mean)
        if self._live is None:
            self._flat.copy_(mean)
        else:
            self._flat.zero_()  # whoever read the last step's gradients may have written there as well
            self._flat.index_copy_(0, self._live, mean)
        for parameter, part in zip(self.parameters, self._parts, strict=True):
            parameter.grad = part

    def apply_mask(self) -> None:
        """Set pruned weights to zero, once; ``backward`` does it where nobody did."""
        if not self._masked:
            self._mask.apply(self._model)
            self._masked = True


def plant(gradients: NoisyGradients, coins: RandomSource) -> None:
    """Add the canaries of its plan to a training that has not begun; InputError for more than live coordinates."""
    plan = gradients.plan
    if plan.options.audit is not None:
        rate = plan.mechanism.sampling_rate
        replace_one = plan.mechanism.adjacency == "replace-one"
        layers = gradients.gradients.layer_of
        gradients.canaries = Canaries(plan.options.audit, plan.filter, layers, rate, replace_one, coins)


def train(
    model: nn.Module,
    mask: Mask,
    records: Records,
    plan: NoisySteps,
    *,
    sampling: RandomSource,
    noise: RandomSource,
    loss: Loss = cross_entropy,
    progress: Callable[[int], object] | None = None,
) -> None:
    """Train ``model`` in place under ``mask``; ``progress`` is called with the number of steps done, after each.

    Guarantees:
        The parameters after each step are post-processing of those of ``plan.mechanism``, each a sum with the sensitivity of
        ``dpltm.training.plan`` plus N(0, noise_std^2) on every live coordinate. The caller has paid.
    """
    Descent(NoisyGradients(model, mask, loss, records, plan, sampling=sampling, noise=noise)).run(progress)


class Descent:
    """The steps of ``train``. It may end after any step and go on in another process: from its ``state``, and those of its
    random sources, the same steps follow to the last bit."""

    def __init__(self, gradients: NoisyGradients, optimizer: PerParameter | NewtonSteps | None = None) -> None:
        self.gradients, self.step = gradients, 0
        self._optimizer = optimizer or OPTIMIZERS[gradients.plan.options.optimizer](gradients.parameters)
        gradients.apply_mask()  # or the average would begin with weights that are pruned
        self._average = WeightAverage(gradients.plan.options.average, gradients.parameters)

    def run(
        self, progress: Callable[[int], object] | None = None, between: Callable[[], object] | None = None
    ) -> None:
        """Take all steps that are left; call ``progress`` with the number of steps done, while the parameters are the
        average, then ``between``, with the parameters as they are, where ``state`` may be asked for."""
        plan = self.gradients.plan
        steps, schedule = plan.mechanism.steps, SCHEDULES[plan.options.schedule or "constant"]
        while self.step < steps:
            self.gradients.backward()
            lr = plan.lr * schedule(self.step / steps)
            self.step += 1
            self._optimizer.step(lr, self.step)
            self._average.update(self.step)
            if progress is not None:
                with self._average.in_place():
                    progress(self.step)
            if between is not None:
                between()
        self._average.settle()  # the parameters are the average for good
        for parameter in self.gradients.parameters:
            parameter.grad = None

    def state(self) -> dict[str, Tensor]:
        """Parameters, optimizer and average, by name; not copied."""
        parts = {
            "weights": {str(place): value.detach() for place, value in enumerate(self.gradients.parameters)},
            "optimizer": self._optimizer.state(),
            "average": self._average.state(),
        }
        state = {f"{part}/{name}": value for part, values in parts.items() for name, value in values.items()}
        return state | self.gradients.state()

    def resume(self, step: int, state: Mapping[str, Tensor]) -> None:
        """Go on after ``step`` steps of another process; InputError for a state of another network, or of other settings."""
        self.step = self.gradients.step = step
        restore(self.state(), state)


@torch.no_grad()
def restore(state: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> None:
    """Copy ``saved`` into the tensors of a state; InputError for one of another shape, KeyError for one that is missing."""
    for name, value in state.items():
        if saved[name].shape != value.shape:
            raise InputError(f"checkpoint: {name} has shape {tuple(saved[name].shape)}, not {tuple(value.shape)}")
        value.copy_(saved[name])


def noisy_mean(total: Tensor, noise_std: float, divisor: float, noise: RandomSource) -> Tensor:
    """Return (total + N(0, noise_std^2)) / divisor, float32; sum and noise meet as ``gaussian_mechanism`` says. The divisor
    is public, such as the expected batch size; never the realised one, which is private."""
    if total.is_cuda:
        return gaussian_mechanism_on_device(total.double(), noise_std, noise).div_(divisor).float()
    values = total.to("cpu", torch.float64).numpy()
    return torch.from_numpy(gaussian_mechanism(values, noise_std, noise, divisor)).to(total.device)
