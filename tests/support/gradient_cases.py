"""What tests of gradients share: networks put together by hand, hostile values and filters, and the naive loop as oracle."""

import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from dpltm.filters import Automatic, Clip, DpsrCg, Filter, PerLayerClip, RadialTanh, Sigmoid, Tanh
from dpltm.gradients import RecordGradients
from dpltm.networks.masks import Mask
from dpltm.options.train import TrainOptions
from dpltm.privacy.mechanisms import AllocatedSgd, BandedSgd, NoisySgd
from dpltm.randomness.noise import FastSource, RandomSource
from dpltm.records.batches import Records
from dpltm.records.made_up import DECIDES, of_all_rows
from dpltm.training.descent import NoisyGradients
from dpltm.training.plan import NoisySteps
from refusals import refused

Loss = Callable[[Tensor, Tensor], Tensor]


def rows_of(value: Tensor) -> int:
    """How many records there are in a pass, of which a module sees one, or all."""
    return len(of_all_rows(1, value))


class Applied(nn.Module):
    """Modules, parameters and other attributes by name, and how they are put together."""

    def __init__(self, forward: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self._put_together = forward
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self._put_together(self, *inputs, **named)


class Product(torch.autograd.Function):
    """Works in plain PyTorch, and without setup_context not in torch.func."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor) -> Tensor:
        context.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = context.saved_tensors
        return gradient * weight, (gradient * x).sum(0)


class Picture(nn.Module):
    """A convolution, a normalisation, dropout and a head of three classes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4)
        self.drop, self.head = nn.Dropout(), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.norm(self.conv(x)).relu().mean((2, 3))))


def tied(bias: bool = False, padding_idx: int | None = None) -> Applied:
    """Input and output share a table of 6 tokens; the output layer may have a bias of its own."""
    model = Applied(
        lambda self, x: self.out(self.middle(self.table(x)).tanh()),
        table=nn.Embedding(6, 3, padding_idx=padding_idx),
        middle=nn.Linear(3, 3),
        out=nn.Linear(3, 6, bias=bias),
    )
    model.out.weight = model.table.weight
    return model


def squared_error(outputs: Tensor, labels: Tensor) -> Tensor:
    """A loss for outputs of any shape, whose gradient differs from coordinate to coordinate and from record to record."""
    return (outputs.flatten(1) - labels[:, None]).square().sum(1) / 2


def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, labels, reduction="none")


def dot(outputs: Tensor, labels: Tensor) -> Tensor:
    """A loss whose output gradient is the label itself: the last layer's gradients are whatever a test wants."""
    return (outputs.flatten(1) * labels).sum(1)


def norm(values: Tensor) -> float:
    return float(torch.linalg.vector_norm(values.double()))


def random_mask(model: nn.Module, density: float, generator: torch.Generator) -> Mask:
    return Mask({name: torch.rand(p.shape, generator=generator) < density for name, p in model.named_parameters()})


def prepared(model: nn.Module, seed: int, densities: Sequence[float] = (0.0, 0.3, 0.7, 0.7, 1.0, 1.0)) -> Mask:
    """Draws weights, in float64, and a mask, each parameter with one of the densities, and applies it."""
    generator = torch.Generator().manual_seed(seed)
    model.double()
    tensors = {}
    for name, value in model.named_parameters():
        value.data.copy_(0.7 * torch.randn(value.shape, generator=generator, dtype=torch.float64))
        density = densities[int(torch.randint(len(densities), (), generator=generator))]
        tensors[name] = torch.rand(value.shape, generator=generator) < density
    mask = Mask(tensors)
    mask.apply(model)
    return mask


def numbers(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# The oracle: one record at a time, plain autograd, the filters written out anew.


def naive_gradients(model: nn.Module, mask: Mask, loss: Loss, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """By parameter that is not frozen, in their order: float64 gradients at live coordinates, ``(records, live)``."""
    return gradients_of(lambda x, y: loss(model(x), y), model, mask, x, y)


def gradients_of(losses: Loss, model: nn.Module, mask: Mask, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """The same of any function of a batch of one record and its label."""
    named = {name: value for name, value in model.named_parameters() if value.requires_grad}
    rows = {name: torch.zeros(len(x), int(mask[name].sum()), dtype=torch.float64) for name in named}
    for i in range(len(x)):
        value = losses(x[i : i + 1], y[i : i + 1]).sum()
        gradients = torch.autograd.grad(value, list(named.values()), allow_unused=True)
        for name, gradient in zip(named, gradients, strict=True):
            if gradient is not None:
                rows[name][i] = gradient.to_dense()[mask[name]].double()
    return rows


def naive_sum(gradients: dict[str, Tensor], filter: Filter, rounding: float, layers: list[list[str]]) -> Tensor:
    """The table of privacy-model.md 4.2 over the rows of ``gradients``; ``layers`` are the parameters of each layer."""

    def clipped(values: Tensor, to: float) -> Tensor:
        size = values.norm(dim=1, keepdim=True)
        return torch.where(size > to, values * to / size, values) * rounding

    whole = torch.cat(list(gradients.values()), 1)
    size = whole.norm(dim=1, keepdim=True).clamp_min(1e-300)
    match filter:
        case Clip():
            filtered = clipped(whole, filter.clip_norm)
        case RadialTanh():
            filtered = whole * filter.clip_norm * (size / filter.tanh_range).tanh() / size * rounding
        case Automatic():
            filtered = whole * filter.clip_norm / (size + filter.gamma) * rounding
        case DpsrCg():
            filtered = torch.where(size > 8, 8 * whole / size, whole * filter.clip_norm / 8) * rounding
        case Sigmoid():
            filtered = filter.tanh_scale / (1 + (-whole / filter.tanh_range).exp())
        case PerLayerClip():
            parts = {}
            for names in layers:
                layer = clipped(
                    torch.cat([gradients[name] for name in names], 1), filter.clip_norm / len(layers) ** 0.5
                )
                sizes = [gradients[name].shape[1] for name in names]
                parts.update(zip(names, layer.split(sizes, 1), strict=True))
            filtered = torch.cat([parts[name] for name in gradients], 1)
        case Tanh():
            before = whole if filter.before is None else clipped(whole, filter.before.clip_norm)
            filtered = filter.tanh_scale * (before / filter.tanh_range).tanh()
            if filter.after is not None:
                filtered = clipped(filtered, filter.after.clip_norm)
    return filtered.sum(0)


def own_layers(model: nn.Module) -> list[list[str]]:
    """The trainable parameters of each module that has any of its own."""
    groups = [
        [f"{prefix}.{name}".lstrip(".") for name, p in module.named_parameters(recurse=False) if p.requires_grad]
        for prefix, module in model.named_modules()
    ]
    return [group for group in groups if group]


def filters_for(size: float) -> list[Filter]:
    """Every kind of filter, on the scale of gradients of this norm: some records are clipped and some are not."""
    size = min(max(size, 1e-3), 1e3)
    return [
        Clip(size),
        RadialTanh(size, 1.5 * size),
        Automatic(size),
        Tanh(2.0, size / 3, Clip(size)),
        Tanh(0.7, size / 3),
        Tanh(1.0, size / 2, None, Clip(0.5)),
        Sigmoid(1.5, size / 3),
        PerLayerClip(size),
        DpsrCg(size),
    ]


def steps_of(
    filter: Filter,
    sampling_rate: float,
    steps: int,
    expected_batch: float,
    noise_std: float,
    lr: float,
    *,
    class_weight: tuple[float, ...] | None = None,
    strategy: tuple[float, ...] = (),
    participations: int | None = None,
    **options: Any,
) -> NoisySteps:
    """A plan of noisy steps, whose records are sampled as is said."""
    kind: Any = NoisySgd
    if strategy:
        kind = partial(BandedSgd, strategy=strategy)
    elif participations is not None:
        kind = partial(AllocatedSgd, participations=participations)
        sampling_rate = participations / steps
    mechanism = kind(sampling_rate, steps, noise_std)
    return NoisySteps(
        filter, mechanism, expected_batch, lr, class_weight=class_weight, options=TrainOptions(**options)
    )


def noisy(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    plan: NoisySteps,
    *,
    loss: Loss = cross_entropy,
    mask: Mask | None = None,
    sources: Sequence[RandomSource] | None = None,
    **records: Any,
) -> NoisyGradients:
    """The steps of a plan on these records, with seeded coins and noise; everything is live unless a mask is given."""
    sampling, noise = sources or (FastSource(0), FastSource(1))
    mask = Mask.dense(model) if mask is None else mask
    return NoisyGradients(model, mask, loss, Records(x, y, **records), plan, sampling=sampling, noise=noise)


class Hashed(list):
    """Public hashes of records, in place of the records."""

    def public_hashes(self) -> np.ndarray:
        return np.array(self)


def toy_data(records: int = 40, features: int = 5) -> tuple[Tensor, Tensor]:
    """Records of three classes."""
    generator = torch.Generator().manual_seed(2)
    return torch.randn(records, features, generator=generator), torch.randint(0, 3, (records,), generator=generator)


def some_mask(model: nn.Module, density: float = 0.6) -> Mask:
    """The same at every call."""
    return random_mask(model, density, torch.Generator().manual_seed(4))


def flat(model: nn.Module) -> Tensor:
    """All parameters in one row."""
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


# Trying a network out.

REMEDY = (
    "no bound would hold; leave out whatever averages or compares over records, in the model and in the loss, divides by the"
    " length of the batch, or takes another dimension than 0 (batch_first) for the record"
)
MIXED = "model or loss: what one record gives depends on the rest of the batch (seen at {}): " + REMEDY


def decides(message: str) -> bool:
    """Whether a network was refused since it decides by values of the batch, at a line that is named."""
    return re.fullmatch(r"model or loss: \w+\.py, line \d+, " + re.escape(DECIDES), message) is not None


def checked(
    model: nn.Module, loss: Loss, x: Tensor, y: Tensor, mask: Mask | None = None, *, mapped: bool = True
) -> RecordGradients:
    """Gradients of a network that can be ``mapped`` over, or whose records pass one by one."""
    gradients = RecordGradients(model, Mask.dense(model) if mask is None else mask, loss)
    gradients.check(x, y)
    assert (gradients._plan.unmapped == "") == mapped
    if not mapped:
        gradients.pass_rows = 1
    return gradients


def refusal(
    model: nn.Module,
    loss: Loss = squared_error,
    x: Tensor | None = None,
    y: Tensor | None = None,
    mask: Mask | None = None,
) -> str:
    """The message of the refusal of a network, by default on four records of six numbers."""
    x = torch.zeros(4, 6) if x is None else x
    return refused(checked, model, loss, x, torch.zeros(len(x)) if y is None else y, mask)


def right(
    model: nn.Module, x: Tensor, loss: Loss = squared_error, y: Tensor | None = None, *, mapped: bool = True
) -> RecordGradients:
    """Accepted, and of the right sum in float64, which is not zero."""
    torch.manual_seed(1)
    model = model.double()
    x = x.double() if x.is_floating_point() else x
    y = torch.randn(len(x), dtype=torch.float64) if y is None else y
    gradients = checked(model, loss, x, y, mapped=mapped)
    expected = torch.cat(list(naive_gradients(model, Mask.dense(model), loss, x, y).values()), 1).sum(0)
    assert float(expected.abs().max()) > 1e-3
    result = gradients.filtered_sum(x, y, Clip(1e6))
    assert result.skipped == 0
    torch.testing.assert_close(result.values / gradients.rounding, expected, rtol=1e-8, atol=1e-8)
    return gradients


# What an attacker draws from.


def powers(low: float, high: float) -> st.SearchStrategy[float]:
    """Both signs, even in the exponent."""
    exponent = st.floats(math.log10(low), math.log10(high))
    return st.builds(lambda sign, power: sign * 10**power, st.sampled_from([-1.0, 1.0]), exponent)


steps_around_powers_of_two = [
    sign * 2.0**power * step for sign in (1, -1) for power in (-60, 20, 60) for step in (1, 1 + 2**-23, 1 - 2**-24)
]
"""Where the engine changes its precision, and where it gives a record up."""

parameter = powers(1e-6, 1e6).map(abs).map(lambda value: min(max(value, 1e-6), 1e6))
filters = st.one_of(
    st.builds(Clip, parameter),
    st.builds(PerLayerClip, parameter),
    st.builds(RadialTanh, parameter, parameter),
    st.builds(Automatic, parameter, st.sampled_from([0.0, 0.01])),
    st.builds(Tanh, parameter, parameter, st.builds(Clip, parameter)),
    st.builds(Tanh, parameter, parameter, st.none()),
    st.builds(Tanh, parameter, parameter, st.none(), st.builds(Clip, parameter)),
    st.builds(Sigmoid, parameter, parameter),
    st.builds(DpsrCg, parameter),
)


def always(kernel: str) -> Callable[..., str]:
    """In place of ``kernel_for``: one kernel, wherever something is live."""
    return lambda layer: kernel if len(layer.index) else "float64"
