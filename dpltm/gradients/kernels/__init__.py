"""Ways to compute with one linear layer: each is right everywhere, and which is quickest depends on mask and machine.

A kernel has a forward pass, the squared norms of per-record gradients, and weighted sums of these. ``choice`` times them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from dpltm.gradients.kernels import dense, sparse
from dpltm.gradients.kernels.operands import Operands


@dataclass(frozen=True)
class Kernel:
    """One way.

    Attributes:
        forward: weight times input, ``(batch, out)``; may keep in the operands what norms and sum go on from. None for the
            module's own.
        squared_norms: of each record's gradient of the weight, ``(batch,)``, in the layer's precision.
        add: adds to ``(live,)`` float64 the sum over some rows of scaled output gradient times input, in the precision of
            the scaled gradients.
        in_chunks: whether chunks are summed in float32; else every sum is taken in float64.
        turned: whether ``add`` wants the scaled gradients of an output coordinate side by side in memory, not those of a
            record.
    """

    forward: Callable[[Operands, Tensor], Tensor] | None
    squared_norms: Callable[[Operands], Tensor]
    add: Callable[[Operands, Tensor, slice, Tensor], None]
    in_chunks: bool = True
    turned: bool = False


FLOAT64 = "float64"

KERNELS = {
    FLOAT64: Kernel(None, dense.squared_norms, dense.add, in_chunks=False),
    "dense": Kernel(None, dense.squared_norms, dense.add),
    "mixed": Kernel(sparse.forward, sparse.squared_norms, dense.add),
    "sparse": Kernel(sparse.forward, sparse.squared_norms, sparse.add, turned=True),
    "sparse-float64": Kernel(sparse.forward, sparse.squared_norms, sparse.add, in_chunks=False, turned=True),
}
