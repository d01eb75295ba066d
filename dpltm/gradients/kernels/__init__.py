"""Ways to compute with one linear layer: each is right everywhere, and which is quickest depends on mask and machine.

A kernel has a forward pass (None: the module's own), the squared norms of per-record gradients, and the float32 sum of one
chunk of records (None: every sum is taken in float64). ``choose`` times them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from dpltm.gradients.kernels import dense, sparse
from dpltm.gradients.kernels.operands import Operands
from dpltm.gradients.kernels.sums import AddChunk, AddRest


@dataclass(frozen=True)
class Kernel:
    """One way.

    Attributes:
        forward: weight times input, ``(batch, out)``; may keep in the operands what norms and sum go on from.
        squared_norms: of each record's gradient of the weight, ``(batch,)``, in the layer's precision.
        add_chunk: adds to ``(live,)`` float64 the float32 sum of scaled gradients ``(rows, out)`` times inputs of these.
        add_rest: adds the float64 sum of other rows, and returns that of the bias.
    """

    forward: Callable[[Operands, Tensor], Tensor] | None
    squared_norms: Callable[[Operands], Tensor]
    add_chunk: AddChunk | None
    add_rest: AddRest


FLOAT64 = "float64"

KERNELS = {
    FLOAT64: Kernel(None, dense.squared_norms, None, dense.add_rest),
    "dense": Kernel(None, dense.squared_norms, dense.add_chunk, dense.add_rest),
    "mixed": Kernel(sparse.forward, sparse.squared_norms, dense.add_chunk, dense.add_rest),
    "sparse": Kernel(sparse.forward, sparse.squared_norms, sparse.add_chunk, sparse.add_rest),
    "sparse-float64": Kernel(sparse.forward, sparse.squared_norms, None, sparse.add_rest),
}
