"""Networks made from the layers that a kind names, and layers that torch has no module for: here torch comes in."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from dpltm.networks.kind import LayerSpec


class Images(nn.Module):
    """Flattened images, channels last, ``(batch, height x width x channels)``, to ``(batch, channels, height, width)``."""

    def __init__(self, height: int, width: int, channels: int) -> None:
        super().__init__()
        self.size = (height, width, channels)

    def forward(self, x: Tensor) -> Tensor:
        return x.unflatten(1, self.size).permute(0, 3, 1, 2).contiguous()


class Positions(nn.Module):
    """Positions in a table of ``size``, as whole numbers; whatever is outside, or no number, is at position 0."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        return torch.where((x >= 0) & (x < self.size), x, 0).long()


class Vectors(nn.Module):
    """Positions in a table of ``size``, ``(batch, positions)``, to vectors: of position 0 it is zero, of 1 the first row."""

    def __init__(self, size: int, dimension: int) -> None:
        super().__init__()
        self.rows = nn.Embedding(size - 1, dimension)

    def forward(self, x: Tensor) -> Tensor:
        return self.rows((x - 1).clamp_min(0)) * (x > 0)[..., None]


class Mean(nn.Module):
    """Vectors at each position, ``(batch, positions, dimension)``, to their mean over all positions."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


class Last(nn.Module):
    """Outputs and states of a recurrent layer to the output at the last step, ``(batch, units)``."""

    def forward(self, x: tuple[Tensor, ...]) -> Tensor:
        return x[0][:, -1]


class Factors(nn.Module):
    """Positions of a user and an item, ``(..., 2)``, to ``(..., product + 2 beside)``: first the products, number by
    number, of two vectors of ``product`` numbers; then the two of ``beside`` numbers."""

    def __init__(self, users: int, items: int, product: int, beside: int) -> None:
        super().__init__()
        self.users, self.items = Positions(users), Positions(items)
        self.user_product, self.item_product = nn.Embedding(users, product), nn.Embedding(items, product)
        self.user_beside, self.item_beside = nn.Embedding(users, beside), nn.Embedding(items, beside)

    def forward(self, x: Tensor) -> Tensor:
        user, item = self.users(x[..., 0]), self.items(x[..., 1])
        product = self.user_product(user) * self.item_product(item)
        return torch.cat([product, self.user_beside(user), self.item_beside(item)], -1)


def make(layers: Iterable[LayerSpec], tanh: bool, seed: int | None) -> nn.Sequential:
    """Make the network of these layers: Glorot normal weights from ``seed``; None for any weights."""
    # torch initialises what it makes, from its global state; skip_init would not, but imports for half a second
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        modules = OrderedDict((one.name, _class(one)(*one.arguments, **one.options)) for one in layers)
    if tanh:
        modules = OrderedDict(
            (name.replace("relu", "tanh"), nn.Tanh() if isinstance(module, nn.ReLU) else module)
            for name, module in modules.items()
        )
    model = nn.Sequential(modules)
    if seed is not None:
        _initialise(model, torch.Generator().manual_seed(seed))
    return model


def _class(layer: LayerSpec) -> Callable[..., nn.Module]:
    if not isinstance(layer.module, str):
        return layer.module
    module_class: type[nn.Module] = globals().get(layer.module) or getattr(nn, layer.module)
    return module_class


def _initialise(model: nn.Module, generator: torch.Generator) -> None:
    linear = sum(parameter.ndim >= 2 for parameter in model.parameters()) == 1
    for parameter in model.parameters():
        if parameter.ndim >= 2 and not linear:
            nn.init.xavier_normal_(parameter, generator=generator)
        else:
            nn.init.zeros_(parameter)
