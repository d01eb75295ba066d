"""The processes, or ranks, of one training: what they tell each other, and how all of them end when one fails.

Every rank has the same records and the same network. Rank 0 draws, adds the noise, writes, and answers; the others compute
their share of each sum (``dpltm.training.descent``). Nothing that ranks send each other is a pickle: tensors, and JSON.
Whoever waits for a rank that is gone, or that hangs for ``PATIENCE``, raises ``RankError``, and ends as well.
"""

from __future__ import annotations

import atexit
import json
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch import distributed as group

from dpltm.errors import BudgetError, DpltmError, InputError, RankError, first_line
from dpltm.gradients.linear_layer import compiler_at_hand
from dpltm.networks.own import versions
from dpltm.training.launcher import Place

T = TypeVar("T")

PATIENCE = timedelta(hours=6)
"""Time that a rank waits for another: rank 0 may compute features, or measure accuracy, while the others wait."""

_REFUSALS = {kind.exit_code: kind for kind in (BudgetError, InputError)}


class Ranks:
    """This process among the ranks of a process group that was joined already, or alone."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size, self.first = rank, size, rank == 0
        backends = "" if size == 1 else str(group.get_backend_config())
        self._native = {"cpu"} if "cpu:" in backends else set()
        self._native |= {"cuda"} if "cuda:nccl" in backends else set()
        self._words = torch.device("cpu" if "cpu" in self._native or size == 1 else "cuda")

    @classmethod
    def join(cls, place: Place, device: str) -> Ranks:
        """Join the processes that ``torchrun`` started: by gloo, and for tensors on GPUs by NCCL.

        Args:
            device: of the training: ``cuda`` stands for the GPU of this rank from here on.
        """
        on_gpu = device.startswith("cuda")
        try:
            if on_gpu:
                torch.cuda.set_device(place.local)
            if place.size > 1:
                group.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo", timeout=PATIENCE)
                # else its threads may outlive the interpreter, which then aborts
                atexit.register(group.destroy_process_group)
        except (AssertionError, RuntimeError, ValueError) as error:
            raise InputError(
                f"`device`: rank {place.rank} cannot join the others on {device}: {first_line(error).rstrip('.')}; start all"
                " anew, on GPUs at most as many on a machine as it has"
            ) from None
        return cls(place.rank, place.size)

    @classmethod
    def of_program(cls) -> Ranks | None:
        """Return the ranks of a program that has joined a process group of several itself; None for any other."""
        if not group.is_available() or not group.is_initialized() or group.get_world_size() == 1:
            return None
        return cls(group.get_rank(), group.get_world_size())

    def broadcast(self, values: Tensor) -> Tensor:
        """``values`` of rank 0, in place."""
        return self._carry(values, lambda carried: group.broadcast(carried, 0))

    def reduce(self, values: Tensor) -> Tensor:
        """Sum over all ranks, in place; on rank 0 alone."""
        return self._carry(values, lambda carried: group.reduce(carried, 0))

    def tell(self, body: Any = None) -> Any:
        """Return the JSON value of rank 0; of the others, the argument is dropped."""
        return self.gather(body if self.first else None)[0]

    def gather(self, body: Any) -> list[Any]:
        """Return the JSON values of all ranks, in order of rank."""
        data = json.dumps(body).encode()
        counts = torch.zeros(self.size, dtype=torch.int64, device=self._words)
        counts[self.rank] = len(data)
        lengths = [int(count) for count in self._carry(counts, group.all_reduce).tolist()]
        messages = torch.zeros(sum(lengths), dtype=torch.uint8, device=self._words)
        start = sum(lengths[: self.rank])
        messages[start : start + len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        self._carry(messages, group.all_reduce)  # whatever one rank leaves zero, another fills
        return [json.loads(part.numpy().tobytes()) for part in messages.cpu().split(lengths)]

    def share(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors of rank 0 by name, to the last bit, on the CPU; of the others, the argument is dropped."""
        copies = {name: value.to("cpu", copy=True) for name, value in tensors.items()}
        kinds = self.tell({name: [str(value.dtype), list(value.shape)] for name, value in copies.items()})
        return {
            name: self.broadcast(
                copies[name] if self.first else torch.empty(shape, dtype=getattr(torch, dtype.removeprefix("torch.")))
            )
            for name, (dtype, shape) in kinds.items()
        }

    def together(self, work: Callable[[], T]) -> T:
        """Return the result of ``work``; where it is refused on one rank, it is refused on all, in the words of the first.

        Args:
            work: no part of it may wait for another rank.
        """
        try:
            result = work()
        except DpltmError as error:
            self.gather([error.exit_code, str(error)])
            raise
        for rank, refusal in enumerate(self.gather(None)):
            if refusal is not None:
                raise _REFUSALS.get(refusal[0], InputError)(f"rank {rank}: {refusal[1]}")
        return result

    def agree(self, facts: Mapping[str, str], private: Mapping[str, str] | None = None) -> None:
        """Raise InputError on all ranks, naming what differs, unless all have the same facts; never shows ``private``."""
        hidden = private or {}
        first, *others = self.gather({**facts, **hidden})
        for rank, other in enumerate(others, 1):
            for name in (name for name in {**first, **other} if first.get(name) != other.get(name)):
                difference = f"rank 0 has {first.get(name)!s:.80} and rank {rank} {other.get(name)!s:.80}"
                if name in hidden:
                    difference = f"rank {rank} has others than rank 0"
                raise InputError(f"{name}: {difference}; start all ranks with the same command, files and versions")

    def _carry(self, values: Tensor, operate: Callable[[Tensor], object]) -> Tensor:
        """Run an operation of the group, in place, on a device that it works on."""
        if self.size == 1:
            return values
        carried = values if values.device.type in self._native else values.to(self._words)
        try:
            operate(carried)
        except RuntimeError:
            raise RankError(
                "ranks: another one has ended, or is out of reach; what the ledger entered stays entered"
            ) from None
        return values if carried is values else values.copy_(carried)


def environment() -> dict[str, str]:
    """Facts that decide the last bits of a sum, beside the numbers, for ranks to agree on."""
    return {
        **versions(),
        "threads of torch": str(torch.get_num_threads()),
        "a compiler": "at hand" if compiler_at_hand() else "not at hand",
    }
