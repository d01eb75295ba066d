"""A network in plain PyTorch, as text: what somebody needs who loads its weights without this package."""

from __future__ import annotations

from torch import nn

from dpltm.networks import ModelSpec, build
from dpltm.networks.layers import Images, Mean, Positions, Vectors

_CLASSES = {
    "Images": """class Images(torch.nn.Module):  # flattened images, channels last
    def __init__(self, height, width, channels):
        super().__init__()
        self.size = (height, width, channels)

    def forward(self, x):
        return x.unflatten(1, self.size).permute(0, 3, 1, 2).contiguous()""",
    "Positions": """class Positions(torch.nn.Module):  # in a table, 0 for whatever is outside
    def __init__(self, size):
        super().__init__()
        self.size = size

    def forward(self, x):
        return torch.where((x >= 0) & (x < self.size), x, 0).long()""",
    "Vectors": """class Vectors(torch.nn.Module):  # of positions in a table, zero for position 0
    def __init__(self, size, dimension):
        super().__init__()
        self.rows = torch.nn.Embedding(size - 1, dimension)

    def forward(self, x):
        return self.rows((x - 1).clamp_min(0)) * (x > 0)[..., None]""",
    "Mean": """class Mean(torch.nn.Module):  # over positions
    def forward(self, x):
        return x.mean(1)""",
}
"""Layers that torch has no module for."""


def plain_pytorch(spec: ModelSpec, weights: str) -> str:
    """A program that builds the network of ``spec`` and loads ``weights``, a file of its state dict beside it.

    Returns:
        Python that needs torch and safetensors alone and makes ``model``: ``(batch, features)`` to ``(batch, classes)``.
    """
    lines = [
        "from collections import OrderedDict",
        "from pathlib import Path",
        "",
        "import torch",
        "from safetensors.torch import load_file",
        "",
    ]
    kinds = {type(module).__name__ for module in build(spec).modules()}
    for name, text in _CLASSES.items():
        if name in kinds:
            lines += ["", *text.splitlines(), "", ""]
    lines.append("model = torch.nn.Sequential(OrderedDict(")
    lines += [f"    {name}={_call(module)}," for name, module in build(spec).named_children()]
    return "\n".join(
        [*lines, "))", f'model.load_state_dict(load_file(Path(__file__).with_name("{weights}")))', "model.eval()", ""]
    )


def _call(module: nn.Module) -> str:
    match module:
        case nn.Linear():
            return f"torch.nn.Linear({module.in_features}, {module.out_features})"
        case nn.Conv2d():
            return (
                f"torch.nn.Conv2d({module.in_channels}, {module.out_channels}, {module.kernel_size[0]},"
                f" stride={module.stride[0]}, padding={module.padding[0]})"
            )
        case nn.MaxPool2d():
            return f"torch.nn.MaxPool2d({module.kernel_size}, stride={module.stride})"
        case Images():
            return "Images({}, {}, {})".format(*module.size)
        case nn.Embedding():
            return f"torch.nn.Embedding({module.num_embeddings}, {module.embedding_dim})"
        case Vectors():
            return f"Vectors({module.rows.num_embeddings + 1}, {module.rows.embedding_dim})"
        case Positions():
            return f"Positions({module.size})"
        case Mean():
            return "Mean()"
        case nn.ReLU() | nn.Tanh() | nn.Flatten():
            return f"torch.nn.{type(module).__name__}()"
        case _:
            raise NotImplementedError(f"no plain form of {type(module).__name__}")
