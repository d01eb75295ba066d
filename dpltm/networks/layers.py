"""Networks made from the layers that a kind names, and layers that torch has no module for."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from dpltm.errors import InputError
from dpltm.networks.full_precision import seeded
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


def table(size: int, dimension: int) -> nn.Embedding:
    """Return a table of zeros; drawing torch's own values where nothing has memory imports for seconds."""
    return nn.Embedding.from_pretrained(torch.zeros(size, dimension), freeze=False)


class Vectors(nn.Module):
    """Positions in a table of ``size``, ``(batch, positions)``, to vectors: of position 0 it is zero, of 1 the first row."""

    def __init__(self, size: int, dimension: int) -> None:
        super().__init__()
        self.rows = table(size - 1, dimension)

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


def shapes_of(layers: Iterable[LayerSpec]) -> dict[str, tuple[int, ...]]:
    """Return name and shape of every parameter of these layers, in order, without memory for any."""
    with torch.device("meta"):
        modules = [(layer.name, _class(layer)(*layer.arguments, **layer.options)) for layer in layers]
    parameters = ((name, module.named_parameters()) for name, module in modules)
    return {f"{name}.{part}": tuple(value.shape) for name, parts in parameters for part, value in parts}


def make(layers: Iterable[LayerSpec], tanh: bool, seed: int | None) -> nn.Sequential:
    """Make the network of these layers: Glorot normal weights from ``seed``; None for any weights."""
    # torch initialises what it makes, from its global state; skip_init would not, but imports for half a second
    with seeded(0):
        modules = OrderedDict((layer.name, _class(layer)(*layer.arguments, **layer.options)) for layer in layers)
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


def check_layers(model: nn.Module, where: str = "model:") -> None:
    """Raise InputError for layers and parameters that no record's own gradient can be had of, however they are used."""
    for name, part in (*model.named_modules(), *model.named_parameters()):
        if why := _of_module(part) if isinstance(part, nn.Module) else _of_parameter(part):
            raise InputError(f"{where} {name or type(part).__name__} {why}")
    if len(devices := {value.device for value in (*model.parameters(), *model.buffers())}) > 1:
        raise InputError(f"{where} is on several devices ({', '.join(sorted(map(str, devices)))}); move it to one")


def _of_module(module: nn.Module) -> str:
    if isinstance(module, torch.jit.ScriptModule) or hasattr(module, "_orig_mod"):
        return "is compiled, which hides its layers; give the module itself"
    if type(module).__name__ in ("DistributedDataParallel", "FullyShardedDataParallel"):
        return f"is wrapped in {type(module).__name__}; give the module itself, since ranks share the work"
    # in evaluation mode, with running statistics, it is an affine map of each record by itself
    if isinstance(module, nn.modules.batchnorm._BatchNorm) and (module.training or module.running_mean is None):
        return "is a batch normalisation, which mixes records; put nn.GroupNorm in its place, or call eval() on it"
    if getattr(module, "track_running_stats", False) and module.training:
        return "keeps statistics of records outside the ledger; use track_running_stats=False"
    return ""


def _of_parameter(value: nn.Parameter) -> str:
    if isinstance(value, UninitializedParameter):
        return "is lazy and has no shape yet; run made-up records through it"
    if type(value).__name__ == "DTensor":  # by name: the class takes half a second to import
        return "is split among ranks; leave the model whole on each, since ranks share the work"
    if any(step == 0 and size > 1 for step, size in zip(value.stride(), value.shape, strict=True)):
        return "has coordinates that share memory (expand); use clone()"
    return ""
