"""The bundled encoder as those compute it who have no torch: its layers are read off the network itself."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import nn

from dpltm.features.drawings.encoder import POOLED, Encoder
from dpltm.features.drawings.exact import Architecture, ExactEncoder, Layer
from dpltm.features.drawings.strokes import SIDE
from dpltm.records.bundled import bundled_tensors


@cache
def exact_encoder(file: str, digest: str, count: int) -> ExactEncoder:
    """The encoder of a bundled file.

    Args:
        file: its name.
        digest: SHA-256 (hex) of its bytes.
        count: directions of units, the first ones.

    Raises:
        DataError: the file is not there, or is not what its digest says.
    """
    return ExactEncoder(architecture(), encoder_tensors(file, digest, count))


def encoder_tensors(file: str, digest: str, count: int) -> dict[str, np.ndarray]:
    """The tensors of a bundled file, ``directions`` cut to their number. Arguments as :func:`exact_encoder`."""
    tensors = bundled_tensors(file, digest)
    return {**tensors, "directions": tensors["directions"][:count]}


def architecture() -> Architecture:
    """What the encoder is.

    Raises:
        TypeError: it has a layer that ``dpltm.features.drawings.exact`` cannot compute.
    """
    with torch.device("meta"):  # no weights are drawn
        layers = tuple(_described(module) for module in Encoder().layers)
    return Architecture(layers, SIDE, POOLED)


def _described(module: nn.Module) -> Layer:
    match module:
        case nn.Conv2d(
            kernel_size=(high, wide),
            stride=(down, across),
            padding=(int(above), int(beside)),
            dilation=(1, 1),
            groups=1,
            padding_mode="zeros",
            bias=nn.Parameter(),
        ) if (high, down, above) == (wide, across, beside):
            return Layer("convolution", stride=down, padding=above)
        case nn.GroupNorm(affine=True):
            return Layer("group-norm", groups=module.num_groups, eps=module.eps)
        case nn.AvgPool2d(
            kernel_size=int(kernel),
            stride=int(stride),
            padding=int(padding),
            ceil_mode=False,
            count_include_pad=True,
            divisor_override=None,
        ):
            return Layer("average", kernel, stride, padding)
        case nn.ReLU():
            return Layer("relu")
    raise TypeError(f"dpltm.features.drawings.exact cannot compute {module}")
