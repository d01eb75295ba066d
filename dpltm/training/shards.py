"""Passes through a network whose frozen parts are sharded among the ranks (``torch.distributed.fsdp.fully_shard``).

A pass gathers the weights of each part as it comes to it, forward and backward, which all ranks must do together. But ranks
have other records, and so other numbers of passes, and a pass may fail. So all ranks say, before each gathering, which part
they are at. A rank whose work has ended lends its shards until all have ended. If one has failed, or if two are at different
parts, all stop: a pass would get the weights of another part, and which one would depend on the records of another rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, distributed, nn

from dpltm.errors import InputError
from dpltm.networks.state import reshard
from dpltm.training.ranks import Ranks

ENDED, FAILED = -1, -2
"""What a rank says in place of the number of a part."""


class Shards:
    """The sharded parts of a model, if it has any.

    Attributes:
        failed: whether a pass of the turns that are under way has failed on this rank.
    """

    def __init__(self, ranks: Ranks | None, model: nn.Module | None = None) -> None:
        self._ranks: Any = ranks
        self._parts = [] if model is None else reshard(model)
        if self._parts and ranks is None:
            raise InputError("model: is sharded, and this program is one rank alone; leave the model whole")
        self._turns = self._stopped = self.failed = False
        for number, part in enumerate(self._parts):
            if not hasattr(part, "set_custom_all_gather"):
                raise InputError(
                    f"model: is sharded, which torch {torch.__version__} gives no turns to; install a later one"
                )
            part.set_custom_all_gather(_Gathering(partial(self._meet, number), next(part.parameters()).dtype))
            part.set_reshard_after_forward(True, recurse=False)  # or a root stays whole, where no backward pass comes

    @contextmanager
    def turns(self) -> Iterator[None]:
        """Passes of this rank, while the others are in theirs. It ends once all have ended, or one has failed."""
        self._turns, self._stopped, self.failed = bool(self._parts), False, False
        for part in self._parts:
            part.reshard()
        try:
            yield
        except Exception:
            self.failed = True
            self._end()
            raise
        self._end()

    def _end(self) -> None:
        while self._turns and not self._stopped:
            part = self._agreed(FAILED if self.failed else ENDED)
            self._turns = False
            if part is not None:
                self._parts[part].unshard()  # which the others wait for
                self._parts[part].reshard()
                self._turns = True
        self._turns = self._stopped = False

    def _meet(self, number: int) -> None:
        """Wait until all ranks are at this part, or have ended."""
        if self._turns:
            self._stopped = self._stopped or self._agreed(number) is None
        if self._stopped:
            raise InputError(
                "model: the ranks are not at the same sharded part; one has failed, or what is called depends on the records"
            )

    def _agreed(self, own: int) -> int | None:
        """Return the part that all ranks are at which have not ended; None if there is none, or a rank has failed."""
        said = {*self._ranks.numbers(own)} - {ENDED}
        return min(said) if len(said) == 1 and FAILED not in said else None


class _Gathering:
    """How a part is gathered, as ``set_custom_all_gather`` takes it."""

    def __init__(self, meet: Callable[[], None], dtype: torch.dtype) -> None:
        self._meet, self._dtype = meet, dtype

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False) -> Any:
        if output_tensor.dtype != self._dtype:  # whose rounding the bounds do not know
            raise InputError(f"model: fully_shard casts weights to {output_tensor.dtype}; leave its mp_policy out")
        self._meet()
        name = "all_gather_single" if hasattr(distributed, "all_gather_single") else "all_gather_into_tensor"
        return getattr(distributed, name)(output_tensor, input_tensor, group=group, async_op=async_op)
