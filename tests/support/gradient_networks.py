"""Small networks with every kind of layer, as victims of attacks on the bound, and what an attacker fills them with."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from dpltm.filters import Automatic, Clip, PerLayerClip, RadialTanh, Sigmoid, Tanh
from dpltm.gradients import RecordGradients, linear_layer
from gradient_cases import Applied, dot, powers, random_mask, steps_around_powers_of_two, tied


def scaled(width: int) -> Applied:
    """A module without a rule of its own: torch.func must take it."""
    return Applied(
        lambda self, x: x * self.weight + self.shift,
        weight=nn.Parameter(torch.ones(width)),
        shift=nn.Parameter(torch.zeros(width)),
    )


def recurrent(module: nn.Module) -> Applied:
    return Applied(lambda self, x: self.module(x)[0], module=module)


def unrolled(cell: nn.Module) -> Applied:
    def forward(self: Applied, x: Tensor) -> Tensor:
        state = self.cell(x[:, 0])
        for step in range(1, x.shape[1]):
            state = self.cell(x[:, step], state)
        return state[0] if isinstance(state, tuple) else state

    return Applied(forward, cell=cell)


def positions() -> Applied:
    """Position embeddings do not have one row a record, so the whole network goes through torch.func."""
    return Applied(
        lambda self, x: self.out(self.table(x) + self.place(torch.arange(x.shape[1], device=x.device))),
        table=nn.Embedding(5, 3),
        place=nn.Embedding(6, 3),
        out=nn.Linear(3, 2),
    )


@dataclass(frozen=True)
class Kind:
    """A network, and what one of its records looks like: numbers, or that many different tokens."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    tokens: int = 0


KINDS = {
    "mlp": Kind(lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), (3,)),
    "conv2d": Kind(lambda: nn.Conv2d(2, 4, (2, 3), stride=(1, 2), padding=1, groups=2), (2, 4, 5)),
    "convolutions": Kind(
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3, padding="same"),
            nn.GroupNorm(2, 4),
            nn.ReLU(inplace=True),
            nn.Flatten(),
            nn.Linear(64, 2),
        ),
        (1, 4, 4),
    ),
    "sequence": Kind(lambda: nn.Linear(3, 2), (6, 3)),
    "sequences": Kind(lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.LayerNorm(4), nn.Linear(4, 2)), (2, 3, 3)),
    "layer norm": Kind(lambda: nn.LayerNorm((3, 4)), (2, 3, 4)),
    "group norm": Kind(lambda: nn.Sequential(nn.GroupNorm(2, 4), nn.Conv1d(4, 2, 1)), (4, 5)),
    "rms norm": Kind(lambda: nn.Sequential(nn.RMSNorm(4), nn.Linear(4, 2)), (4,)),
    "embedding": Kind(lambda: nn.Embedding(5, 3), (8,), 5),
    "padded embedding": Kind(
        lambda: nn.Sequential(nn.Embedding(5, 3, padding_idx=1), nn.Flatten(), nn.Linear(24, 2)), (8,), 5
    ),
    "tied embedding": Kind(tied, (4,), 5),
    "lstm": Kind(lambda: recurrent(nn.LSTM(3, 2, 2, batch_first=True, bidirectional=True)), (4, 3)),
    "gru": Kind(lambda: recurrent(nn.GRU(3, 4, batch_first=True)), (5, 3)),
    "rnn": Kind(lambda: recurrent(nn.RNN(3, 4, nonlinearity="relu", batch_first=True)), (6, 3)),
    "lstm cell": Kind(lambda: unrolled(nn.LSTMCell(3, 2)), (3, 3)),
    "gru cell": Kind(lambda: unrolled(nn.GRUCell(3, 2)), (3, 3)),
    "shared": Kind(lambda: Applied(lambda self, x: self.layer(self.layer(x)), layer=nn.Linear(3, 3)), (3,)),
    "torch.func": Kind(lambda: nn.Sequential(nn.Linear(3, 4), scaled(4), nn.ConvTranspose1d(5, 2, 2)), (5, 3)),
    "whole": Kind(positions, (6,), 5),
}


@dataclass(frozen=True)
class Network:
    """A network whose plan is made, with the number of outputs of a record."""

    kind: Kind
    model: nn.Module
    gradients: RecordGradients
    outputs: int

    def fill(self, seed: int, size: float = 1.0) -> None:
        """Ordinary weights, at every coordinate."""
        generator = torch.Generator().manual_seed(seed)
        for weight in self.model.parameters():
            weight.data.copy_(size * torch.randn(weight.shape, generator=generator, dtype=torch.float64))

    def batch(self, records: int, seed: int) -> tuple[Tensor, Tensor]:
        """Ordinary records."""
        generator = torch.Generator().manual_seed(seed)
        like = next(self.model.parameters())
        shape = (records, *self.kind.shape)
        if self.kind.tokens:
            x = torch.randint(0, self.kind.tokens, shape, generator=generator)
        else:
            x = torch.randn(shape, generator=generator, dtype=like.dtype)
        y = torch.randn(records, self.outputs, generator=generator, dtype=like.dtype)
        return x.to(like.device), y.to(like.device)

    def attacked(self, attack: tuple[Values, Values, Values]) -> tuple[Tensor, Tensor]:
        """One record with its label, where weights, record and label are all the attacker's."""
        weights, record, label = attack
        for weight in self.model.parameters():
            weights.into(weight.data)
        like = next(self.model.parameters())
        if self.kind.tokens:
            random = np.random.default_rng(record.seed)
            tokens = random.integers(0, random.integers(1, self.kind.tokens + 1), (1, *self.kind.shape))
            x = torch.from_numpy(tokens).to(like.device)
        else:
            x = record.into(like.new_zeros((1, *self.kind.shape)))
        return x, label.into(like.new_zeros(1, self.outputs))


def network(name: str, dtype: torch.dtype = torch.float32, sparse: bool = False, device: str = "cpu") -> Network:
    """Made once, since the plan rests on shapes alone, and on what the products fixture chose."""
    return _network(name, dtype, sparse, device, linear_layer.kernel_for)


@functools.cache
def _network(name: str, dtype: torch.dtype, sparse: bool, device: str, products: object) -> Network:
    del products
    kind, generator = KINDS[name], torch.Generator().manual_seed(0)
    model = kind.build().to(device, dtype)
    gradients = RecordGradients(model, random_mask(model, 0.6 if sparse else 2, generator), dot)
    x = torch.zeros((1, *kind.shape), dtype=torch.long if kind.tokens else dtype, device=device)
    outputs = model(x).numel()
    gradients.check(x, torch.zeros(1, outputs, dtype=dtype, device=device))
    return Network(kind, model, gradients, outputs)


edges = st.sampled_from(
    [0.0, -0.0, 1.0, 1e-45, 5e-324, -1e-40, 1.1754944e-38, 3.4028234663852886e38, *steps_around_powers_of_two]
)
finite = st.one_of(powers(1e-30, 1e30), powers(1e-3, 1e3), edges, st.floats(-10, 10))
anything = st.one_of(finite, finite, finite, st.sampled_from([math.inf, -math.inf, math.nan]))
EVERY_FILTER = (
    Clip(1.0),
    PerLayerClip(1.0),
    RadialTanh(1.0, 0.5),
    Automatic(1.0, 0.0),
    Tanh(1.0, 0.1, Clip(1.0)),
    Tanh(1.0, 0.1, None),
    Tanh(1.0, 0.1, None, Clip(1.0)),
    Sigmoid(1.0, 0.1),
)


@dataclass(frozen=True)
class Values:
    """How the attacker fills a tensor: a few values, shuffled, or each beside its opposite, nearly."""

    pool: list[float]
    seed: int
    cancel: bool

    def into(self, tensor: Tensor) -> Tensor:
        random = np.random.default_rng(self.seed)
        if self.cancel:
            values = np.resize(np.repeat(np.array(self.pool), 2), tensor.numel())
            values = values * np.resize([1.0, -1.0 - random.choice([0.0, 2.0**-23, 1e-3])], tensor.numel())
        else:
            values = random.choice(self.pool, tensor.numel())
        with np.errstate(over="ignore"):
            return tensor.copy_(torch.from_numpy(values).reshape(tensor.shape))


def fillings(values: st.SearchStrategy[float]) -> st.SearchStrategy[Values]:
    return st.builds(Values, st.lists(values, min_size=1, max_size=3), st.integers(0, 2**16), st.booleans())


attacks = st.tuples(
    st.one_of(fillings(finite), fillings(anything)),
    fillings(anything),
    st.one_of(fillings(finite), fillings(anything)),
)
