"""Phase 3: train a ticket under differential privacy (DP-SGD on live coordinates; docs/privacy-model.md section 4).

Each step: Poisson sample, per-record gradients, filter, sum, Gaussian noise on live coordinates only, division by the
*expected* batch size, optimizer. Everything after the noisy sum is post-processing, so every optimizer has the same
guarantee. Pruned weights get neither gradient nor noise and stay exactly zero.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import islice

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from dpltm.errors import InputError
from dpltm.filters import Filter, follows
from dpltm.gradients import Loss, RecordGradients
from dpltm.networks.masks import Mask
from dpltm.privacy.mechanisms import AllocatedSgd, TruncatedSgd
from dpltm.randomness.banded_noise import BandedNoise
from dpltm.randomness.gaussian_mechanism import gaussian_mechanism
from dpltm.randomness.gaussian_on_device import gaussian_mechanism_on_device
from dpltm.randomness.noise import RandomSource
from dpltm.randomness.sampling import USUAL, allocate, in_chunks, poisson_sample, record_keys, truncate
from dpltm.records.batches import Records
from dpltm.records.units import ABSENT
from dpltm.training.canaries import NO_CANARIES, Canaries, NoCanaries
from dpltm.training.optimizers import OPTIMIZERS, SCHEDULES, Optimizer, WeightAverage
from dpltm.training.plan import NoisySteps
from dpltm.training.ranks import Ranks, Shards
from dpltm.training.sample_sums import Sample, SampleSums


def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the loss of a classifier, one value a record: ``(batch, classes)`` and ``(batch,)`` to ``(batch,)``."""
    return functional.cross_entropy(outputs, labels, reduction="none")


def user_cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the mean loss of each user's labels: ``(batch, slots, classes)`` and ``(batch, slots)`` to ``(batch,)``.

    Labels are ``ABSENT`` in slots that a user left empty. How many are filled is the user's own affair, so it may divide.
    """
    losses = functional.cross_entropy(outputs.flatten(0, 1), labels.flatten(), ignore_index=ABSENT, reduction="none")
    return losses.view_as(labels).sum(1) / (labels != ABSENT).sum(1).clamp_min(1)


FIRST = "rank 0/"
"""Begins the names of what rank 0 alone remembers."""

CANARIES, BANDED = f"{FIRST}canaries/", f"{FIRST}banded_noise"


class NoisyGradients:
    """The private part of training: every step leaves the noisy mean gradient of a fresh sample with the parameters.

    Args:
        model: whose parameters get their ``grad``; pruned weights are zeroed before the first.
        loss: to one value a record; or gradients of it by the same network, mask and settings, which are planned already.
        plan: of the steps, which is public.
        sampling: coins of the Poisson sampler, and keys of what the network draws; cryptographic outside tests.
        noise: bits of the Gaussian noise; cryptographic outside tests and ``noise="fast"``.
        ranks: all with the same network and records; None for one process. Coins and noise are those of
            rank 0 alone, and so are ``canaries``.
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
            loss = RecordGradients(model, mask, loss, plan.options.compile, plan.options.kernels, grouped=grouped)
        self.gradients = loss
        self._example = example = _first(records) if len(records) else None
        self._shards = Shards(ranks, model)
        with self._shards.turns():
            if example is not None:
                self.gradients.check(*example, records.fillings())
        element_wise = plan.filter.kind == "element-wise"  # whose sums are in float64 anyway
        self._chunks = plan.groups or (None if element_wise else math.ceil(plan.expected_batch / USUAL))
        self.canaries: Canaries | NoCanaries = NO_CANARIES
        self.allocation = sampling  # or where it begins, from where a resumed training draws it again
        self.step = 0
        self._allocated: Iterator[np.ndarray] | None = None
        self._model, self._mask, self._masked = model, mask, False
        self._records, self.plan, self._sampling, self._noise = records, plan, sampling, noise
        self._ranks, self._first = ranks, ranks is None or ranks.first
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
        self._sums = SampleSums(self.gradients, records, plan, like.device, ranks, self._shards)
        with self._shards.turns():
            if example is not None:
                self._sums.rehearse(*example)

    def backward(self) -> None:
        """Draw a sample and put (filtered sum + noise) / divisor into every ``grad``; zero where pruned."""
        self.apply_mask()
        with contextlib.suppress(InputError), self._shards.turns():  # the sum refuses it, on all ranks
            if self._example is not None:
                self.gradients.check(*self._example)  # whether it draws may have changed since the last step
        total = self._sums.take(self._draw() if self._first else None)
        if self._first:
            self.canaries.add_to(total)
        self.release(total)
        self._sums.clear()
        self.step += 1

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise on each live coordinate of a sum."""
        return self.plan.mechanism.noise_std

    @property
    def filter(self) -> Filter:
        """That of the next step: the clip norm of some follows a quantile."""
        return self._sums.filter

    @property
    def moved(self) -> dict[str, float]:
        """Where a clip norm that follows a quantile has come to, by its name."""
        counting = follows(self.filter)
        return {} if counting is None else {"clip_norm": counting.clip_norm}

    def state(self) -> dict[str, Tensor]:
        """What it remembers of its steps, by name; not copied. Noise of the last steps is secret."""
        state = {name: torch.tensor(value, dtype=torch.float64) for name, value in self.moved.items()}
        state |= {f"{CANARIES}{name}": torch.from_numpy(value) for name, value in self.canaries.state().items()}
        return state if self.banded is None else {**state, BANDED: self.banded.noise}

    def resume(self, step: int, state: Mapping[str, Tensor]) -> None:
        """Go on after ``step`` steps of another process, from its state."""
        self.step = step
        if (counting := follows(self.filter)) is not None:
            self._sums.filter = replace(counting, clip_norm=float(state["clip_norm"]))
        if self.banded is not None:
            self.banded.resume(state[BANDED])
        if self._first:
            canaries = {name: value.numpy() for name, value in state.items() if name.startswith(CANARIES)}
            self.canaries.resume({name.removeprefix(CANARIES): value for name, value in canaries.items()})

    def _draw(self) -> Sample:
        """Draw the records of a step, by chunk or by group (microbatches, persons), with the number of records of each; and
        keys."""
        records, persons = len(self._records), self._records.persons
        index = self._sampled(records + self.canaries.extra)
        index = self.canaries.split(index, records)
        sizes: list[int] | None = None
        if persons is not None:  # by a coin each, with all their records
            theirs = [persons[person] for person in index]
            index, sizes = np.concatenate([index[:0], *theirs]), [len(each) for each in theirs]
        elif self._chunks is not None:
            index, sizes = in_chunks(self._sampling, index, self._chunks)
        keys = record_keys(self._sampling, self._records.rows)[index] if self.gradients.draws else None
        return index, sizes, keys

    def _sampled(self, records: int) -> np.ndarray:
        """Draw who is in a step, of all there are."""
        mechanism = self.plan.mechanism
        if isinstance(mechanism, AllocatedSgd):
            if self._allocated is None:
                allocated = allocate(self.allocation, records, mechanism.steps, mechanism.participations)
                self._allocated = islice(allocated, self.step, None)
            return next(self._allocated)
        index = poisson_sample(self._sampling, records, mechanism.sampling_rate)
        if isinstance(mechanism, TruncatedSgd):
            index = truncate(self._sampling, index, mechanism.truncated_batch_size)
        return index if self._part_of is None else index[self._part_of[index] == self.step % len(self.plan.strategy)]

    def release(self, total: Tensor) -> None:
        """Put (``total`` + noise) / divisor, ``total`` a sum of ``SampleSums``, into every ``grad``.

        Of several ranks, rank 0 alone adds noise, to its ``total``; the others get the result. Where the clip norm follows a
        quantile, the noise grows and shrinks with it, and what is left is divided by it.
        """
        counting = follows(self.filter)
        if self._first:
            grown = 1.0 if counting is None else counting.clip_norm / self.plan.first_norm
            query = total if self.banded is None else self.banded.query(total, self.step)
            mean = noisy_mean(query, self.noise_std * grown, self.plan.divisor, self._noise)
            if self.banded is not None:
                self.banded.keep(mean.double() * self.plan.divisor, total, self.step)
            self.canaries.observe(mean, self.plan.divisor, self.noise_std)
            mean = mean.to(self._flat.dtype)
        else:
            length = self.gradients.length_of(self.filter)
            mean = torch.empty(length, dtype=self._flat.dtype, device=self._flat.device)
        if self._ranks is not None:
            self._ranks.broadcast(mean)
        if counting is not None:
            self._sums.filter = counting.after(float(mean[-1]))
            mean = mean[:-1] / counting.clip_norm
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

    def clear(self) -> None:
        """Take the gradients away again."""
        for parameter in self.parameters:
            parameter.grad = None


def plant(gradients: NoisyGradients, coins: RandomSource) -> None:
    """Add the canaries of its plan to a training that has not begun; InputError for more than live coordinates."""
    plan = gradients.plan
    if plan.options.audit is not None:
        rate, replace_one = plan.mechanism.sampling_rate, plan.mechanism.adjacency == "replace-one"
        layers = gradients.gradients.layer_of
        gradients.canaries = Canaries(plan.options.audit, plan.filter, layers, rate, replace_one, coins)


def _first(records: Records) -> tuple[Tensor, Tensor]:
    """Return the first record, whose shape and type are looked at.

    What ``prepare`` says of it goes nowhere, as in ``backward``.
    """
    with contextlib.suppress(Exception):
        return records.take(np.zeros(1, dtype=np.int64))
    raise InputError(
        "training: the first record cannot be made ready for the model; does prepare take every row of x?"
    )


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
    """Train ``model`` in place under ``mask``.

    Args:
        progress: called with the number of steps done, after each.

    Guarantees:
        The parameters after each step are post-processing of the steps of ``plan.mechanism``, each a Poisson-subsampled sum
        with the sensitivity of ``dpltm.training.plan`` plus N(0, noise_std^2) on every live coordinate.
        The caller enters the release in a ledger before calling: this function pays for nothing, and returns nothing.
    """
    Descent(NoisyGradients(model, mask, loss, records, plan, sampling=sampling, noise=noise)).run(progress)


class Descent:
    """The steps of ``train``: each takes a noisy gradient, and moves the parameters by the optimizer of the settings.

    It may end after any step and go on in another process: from its ``state``, and those of its random sources, the same
    steps follow to the last bit.
    """

    def __init__(self, gradients: NoisyGradients, optimizer: Optimizer | None = None) -> None:
        self.gradients, self.step = gradients, 0
        self._optimizer = optimizer or OPTIMIZERS[gradients.plan.options.optimizer](gradients.parameters)
        gradients.apply_mask()  # or the average would begin with weights that are pruned
        self._average = WeightAverage(gradients.plan.options.average, gradients.parameters)

    def run(
        self, progress: Callable[[int], object] | None = None, between: Callable[[], object] | None = None
    ) -> None:
        """Take all steps that are left, and end.

        Args:
            progress: called with the number of steps done, while the parameters are the average.
            between: called after that, with the parameters as they are. ``state`` may be asked for here.
        """
        plan = self.gradients.plan
        steps, schedule = plan.mechanism.steps, SCHEDULES[plan.options.schedule or "constant"]
        while self.step < steps:
            self.gradients.backward()
            self._optimizer.step(plan.lr * schedule(self.step / steps))
            self._average.update()
            self.step += 1
            if progress is not None:
                with self._average.in_place():
                    progress(self.step)
            if between is not None:
                between()
        self._average.settle()  # the parameters are the average for good
        self.gradients.clear()

    def state(self) -> dict[str, Tensor]:
        """Parameters, optimizer and average, by name; not copied."""
        parts = {
            "weights": {str(place): value.detach() for place, value in enumerate(self.gradients.parameters)},
            "optimizer": self._optimizer.state(),
            "average": self._average.state(),
        }
        state = {f"{part}/{name}": value for part, values in parts.items() for name, value in values.items()}
        return state | self.gradients.state()

    @torch.no_grad()
    def resume(self, step: int, state: Mapping[str, Tensor]) -> None:
        """Go on after ``step`` steps of another process; InputError for a state of another network, or of other settings."""
        parameters = self.gradients.parameters
        parts: dict[str, dict[str, Tensor]] = {"weights": {}, "optimizer": {}, "average": {}}
        for name, value in state.items():
            part, _, rest = name.partition("/")
            if part not in parts:
                continue
            like = parameters[int(rest.partition("/")[0])]
            if value.shape != like.shape:
                raise InputError(f"checkpoint: {name} has shape {tuple(value.shape)}, not {tuple(like.shape)}")
            parts[part][rest] = value.to(like)
        for place, parameter in enumerate(parameters):
            parameter.copy_(parts["weights"][str(place)])
        self.step = step
        self.gradients.resume(step, state)
        self._optimizer.resume(step, parts["optimizer"])
        self._average.resume(step, parts["average"])


def noisy_mean(total: Tensor, noise_std: float, divisor: float, noise: RandomSource) -> Tensor:
    """Return (total + N(0, noise_std^2)) / divisor, float32; sum and noise meet as ``gaussian_mechanism`` says.

    Args:
        divisor: public, such as the expected batch size; never the realised one, which is private.
    """
    if total.is_cuda:
        return gaussian_mechanism_on_device(total.double(), noise_std, noise).div_(divisor).float()
    values = total.to("cpu", torch.float64).numpy()
    return torch.from_numpy(gaussian_mechanism(values, noise_std, noise, divisor)).to(total.device)
