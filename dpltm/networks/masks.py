"""Masks: which coordinates of a network are live. A mask covers *every* parameter, so that its number of live coordinates is
what gradients, noise and updates see. Frozen parameters are never pruned, and are not live either: nobody trains them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import torch
from torch import Tensor, nn

from dpltm.errors import InputError
from dpltm.networks.state import content_id, weights_of


class Mask(Mapping[str, Tensor]):
    """Immutable map from parameter name to a boolean tensor of the parameter's shape, True where live.

    Args:
        prunable: names of the weights that ``density`` is of; None for all of two and more dimensions.
        frozen: names of the parameters that are not trained. They are True throughout, and count nowhere.
    """

    def __init__(
        self, tensors: Mapping[str, Tensor], prunable: Collection[str] | None = None, frozen: Collection[str] = ()
    ) -> None:
        for name, tensor in tensors.items():
            if tensor.dtype != torch.bool:
                raise InputError(f"mask {name}: dtype is {tensor.dtype}, expected torch.bool")
        self._tensors = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        weights = (name for name, tensor in tensors.items() if tensor.ndim >= 2) if prunable is None else prunable
        self.prunable = tuple(weights)
        self.frozen = frozenset(frozen)

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name].clone()

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    @classmethod
    def dense(cls, model: nn.Module) -> Mask:
        return cls({name: torch.ones_like(value, dtype=torch.bool) for name, value in model.named_parameters()})

    def replaced(self, tensors: Mapping[str, Tensor]) -> Mask:
        """Return a mask of the same parameters with other values for some of them."""
        return Mask({**self, **tensors}, self.prunable, self.frozen)

    @property
    def live(self) -> int:
        """Number of live coordinates, biases included: n of docs/privacy-model.md section 4.2."""
        return sum(int(tensor.sum()) for name, tensor in self._tensors.items() if name not in self.frozen)

    @property
    def density(self) -> float:
        """Fraction of prunable weights that are live: C of DPLTM's score; 1 where there are none."""
        weights = [self._tensors[name] for name in self.prunable]
        size = sum(tensor.numel() for tensor in weights)
        return sum(int(tensor.sum()) for tensor in weights) / size if size else 1.0

    def nested_in(self, other: Mask) -> bool:
        """True if every coordinate that lives here lives in ``other`` as well."""
        return self.keys() == other.keys() and all(not bool((self[name] & ~other[name]).any()) for name in self)

    def check_fits(self, model: nn.Module) -> None:
        """Raise InputError unless there is one tensor for each parameter, of its shape."""
        shapes = {name: tuple(value.shape) for name, value in model.named_parameters()}
        mine = {name: tuple(value.shape) for name, value in self._tensors.items()}
        if shapes != mine:
            wrong = next(name for name in (*shapes, *mine) if shapes.get(name) != mine.get(name))
            raise InputError(f"mask {wrong}: shape {mine.get(wrong)} in the mask, {shapes.get(wrong)} in the network")

    def check_alive(self, where: str = "mask") -> None:
        """Raise InputError if a layer has no live weight at all: nothing would come through it."""
        for name, tensor in self._tensors.items():
            if tensor.ndim >= 2 and not bool(tensor.any()):
                raise InputError(f"{where}: {name} is pruned whole; keep a weight, so that something comes through")

    def apply(self, model: nn.Module) -> None:
        """Set every pruned parameter of ``model`` to exactly zero, whatever it was (NaN included)."""
        self.check_fits(model)
        with torch.no_grad():
            for name, value in model.named_parameters():
                value.masked_fill_(~self._tensors[name].to(value.device), 0.0)


def network_id(model: nn.Module, mask: Mask) -> str:
    """Return the content id of weights and mask as they are now: what a lineage, a page and a card are of."""
    values = {f"weights/{name}": value.cpu().numpy() for name, value in weights_of(model).items()}
    return content_id(values | {f"mask/{name}": value.numpy() for name, value in mask.items()})
