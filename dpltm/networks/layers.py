"""The layers of each kind of networks, some of which torch has no module for; and layers that no network may have."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from dpltm.errors import InputError
from dpltm.networks.full_precision import seeded
from dpltm.networks.kind import PROJECTION, Layers, NetworkName


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


def linear(widths: Sequence[int]) -> Layers:
    """Linear layers ``fc1``, ``fc2``, ... with ReLU between them: ``widths`` are theirs, inputs first."""
    layers: Layers = []
    for number, (inputs, outputs) in enumerate(pairwise(widths), start=1):
        layers += [(f"fc{number}", nn.Linear(inputs, outputs)), (f"relu{number}", nn.ReLU())]
    return layers[:-1]


def mlp(name: NetworkName, features: int, classes: int) -> Layers:
    """Linear layers; ``project64`` is one with 64 outputs in front, and no activation behind it: what is behind does not
    depend on the width of the records, and moves to other ones with a new layer in front (DPLTM, section 4.5)."""
    if name.projected:
        return [(PROJECTION, nn.Linear(features, name.widths[0])), *linear((*name.widths, classes))]
    return linear((features, *name.widths, classes))


def _check_side(name: NetworkName, least: int) -> None:
    if min(name.sizes[:2]) < least:
        raise InputError(f"`model`: {name}: images must be at least {least} x {least}")


def cnn(name: NetworkName, _features: int, classes: int) -> Layers:
    """The MNIST network of DP papers (Bu, Dong, Long, Su 2020, after the TensorFlow Privacy tutorial): filters of 8 x 8 with
    stride 2 and of 4 x 4 with stride 2, each with a 2 x 2 maximum of stride 1, then units: 26,010 parameters as usual."""
    (height, width, channels), (first, second, units) = name.sizes, name.widths
    _check_side(name, 14)
    pixels = math.prod(((side - 2) // 2 - 4) // 2 for side in (height, width))
    return [
        ("image", Images(height, width, channels)),
        ("conv1", nn.Conv2d(channels, first, 8, stride=2, padding=3)),
        ("relu1", nn.ReLU()),
        ("pool1", nn.MaxPool2d(2, stride=1)),
        ("conv2", nn.Conv2d(first, second, 4, stride=2)),
        ("relu2", nn.ReLU()),
        ("pool2", nn.MaxPool2d(2, stride=1)),
        ("flat", nn.Flatten()),
        ("fc1", nn.Linear(second * pixels, units)),
        ("relu3", nn.ReLU()),
        ("fc2", nn.Linear(units, classes)),
    ]


def latent(name: NetworkName, _features: int, classes: int) -> Layers:
    """Those of LATENT (Arachchige et al. 2019), after keras's examples and without dropout: one block, or two, of two layers
    of filters of 3 x 3, of two the first of each padded, and a 2 x 2 maximum; then units."""
    (height, width, channels), (*filters, units) = name.sizes, name.widths
    blocks = len(filters) // 2
    _check_side(name, 6 if blocks == 1 else 10)
    pixels = math.prod((side - 4) // 2 if blocks == 1 else ((side - 2) // 2 - 2) // 2 for side in (height, width))
    layers: Layers = [("image", Images(height, width, channels))]
    for number, (before, after) in enumerate(pairwise((channels, *filters)), start=1):
        padding = number % 2 if blocks == 2 else 0
        layers += [(f"conv{number}", nn.Conv2d(before, after, 3, padding=padding)), (f"relu{number}", nn.ReLU())]
        if number % 2 == 0:
            layers.append((f"pool{number // 2}", nn.MaxPool2d(2, stride=2)))
    return [
        *layers,
        ("flat", nn.Flatten()),
        ("fc1", nn.Linear(filters[-1] * pixels, units)),
        (f"relu{len(filters) + 1}", nn.ReLU()),
        ("fc2", nn.Linear(units, classes)),
    ]


def embed(name: NetworkName, _features: int, classes: int) -> Layers:
    """The network for film reviews of Bu, Dong, Long, Su (2020): vectors of words, their mean over all positions, units.

    The vector of padding stays zero; in the paper it is trained as one more word, which ``embed-pad`` does: most of a
    record's gradient, and of the norm that clipping leaves, then goes to padding."""
    (words,), widths = name.sizes, name.widths
    vectors = table if name.kind.name == "embed-pad" else Vectors
    return [
        ("words", Positions(words)),
        ("table", vectors(words, widths[0])),
        ("mean", Mean()),
        *linear((*widths, classes)),
    ]


def recurrent(name: NetworkName, _features: int, classes: int) -> Layers:
    """One recurrent layer of vectors, such as an image's rows, or of words; its last state is classified."""
    units = name.widths[-1]
    front: Layers
    if name.inputs == "sequences":
        inputs, front = name.sizes[1], [("steps", nn.Unflatten(1, name.sizes))]
    else:
        (words,), inputs = name.sizes, name.widths[0]
        front = [("words", Positions(words)), ("table", table(words, inputs))]
    layer = getattr(nn, name.kind.name.upper())(inputs, units, batch_first=True)
    return [*front, ("recurrent", layer), ("last", Last()), ("fc1", nn.Linear(units, classes))]


def shapes_of(name: NetworkName, features: int, classes: int) -> dict[str, tuple[int, ...]]:
    """Return name and shape of every parameter of a network, in order, without memory for any."""
    with torch.device("meta"):
        model = nn.Sequential(OrderedDict(name.kind.layers(name, features, classes)))
    return {part: tuple(value.shape) for part, value in model.named_parameters()}


def make(name: NetworkName, features: int, classes: int, seed: int | None) -> nn.Sequential:
    """Make a network: Glorot normal weights from ``seed``; None for any weights."""
    # torch initialises what it makes, from its global state; skip_init would not, but imports for half a second
    with seeded(0):
        layers = name.kind.layers(name, features, classes)
    if name.tanh:
        layers = [
            (part.replace("relu", "tanh"), nn.Tanh() if isinstance(module, nn.ReLU) else module)
            for part, module in layers
        ]
    model = nn.Sequential(OrderedDict(layers))
    if seed is not None:
        _initialise(model, torch.Generator().manual_seed(seed))
    return model


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
