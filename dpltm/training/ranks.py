"""The processes, or ranks, of one training: what they tell each other, and how all of them end when one fails.

Every rank has the same records and the same network. Rank 0 draws, adds the noise, writes, and answers; the others compute
their share of each sum (``dpltm.training.descent``). Nothing that ranks send each other is a pickle: tensors, and JSON.

- What one rank refuses before anything is spent, all refuse, in the words of the first (``together``, ``agree``).
- A rank that is gone closes its connections. Whoever waits for it raises ``RankError``, and ends as well.
- A rank that hangs is given up after ``PATIENCE``.
"""

from __future__ import annotations

import atexit
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, distributed, nn
from torch import distributed as group

from dpltm.errors import BudgetError, DpltmError, InputError, RankError, first_line
from dpltm.gradients.linear_layer import compiler_at_hand
from dpltm.networks.own import versions
from dpltm.networks.state import reshard
from dpltm.records.mapped import pieces
from dpltm.training.launcher import Place

T = TypeVar("T")

PATIENCE = timedelta(hours=6)
"""Time that a rank waits for another: rank 0 may compute features, or measure accuracy, while the others wait."""

_REFUSALS = {kind.exit_code: kind for kind in (BudgetError, InputError)}


class Ranks:
    """This process among the ranks of a process group that was joined already, or alone."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size
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
        if on_gpu and place.local >= torch.cuda.device_count():
            raise InputError(
                f"`device`: rank {place.rank} has no GPU of its own: this machine has {torch.cuda.device_count()}; start"
                " at most as many ranks on it"
            )
        if on_gpu:
            torch.cuda.set_device(place.local)
        if place.size > 1:
            try:
                group.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo", timeout=PATIENCE)
            except (RuntimeError, ValueError) as error:
                raise InputError(f"ranks: they cannot be joined: {first_line(error)}") from None
            atexit.register(
                group.destroy_process_group
            )  # else its threads may outlive the interpreter, which then aborts
        return cls(place.rank, place.size)

    @classmethod
    def of_program(cls) -> Ranks | None:
        """Return the ranks of a program that has joined a process group of several itself; None for any other."""
        if not group.is_available() or not group.is_initialized() or group.get_world_size() == 1:
            return None
        return cls(group.get_rank(), group.get_world_size())

    @property
    def first(self) -> bool:
        """Tell whether this is rank 0."""
        return self.rank == 0

    # tensors

    def broadcast(self, values: Tensor) -> Tensor:
        """``values`` of rank 0, in place."""
        return self._carry(values, lambda carried: group.broadcast(carried, 0))

    def reduce(self, values: Tensor) -> Tensor:
        """Sum over all ranks, in place; on rank 0 alone."""
        return self._carry(values, lambda carried: group.reduce(carried, 0))

    def any(self, flag: bool) -> bool:
        """Tell whether it holds on any rank."""
        held = torch.tensor([int(flag)], device=self._words)
        return bool(self._carry(held, group.all_reduce).item())

    # words

    def tell(self, body: Any = None) -> Any:
        """Return the JSON value of rank 0; of the others, the argument is dropped."""
        data = bytearray(json.dumps(body).encode()) if self.first else bytearray()
        size = int(self.broadcast(torch.tensor([len(data)], device=self._words)).item())
        said = torch.frombuffer(data, dtype=torch.uint8) if self.first else torch.empty(size, dtype=torch.uint8)
        return json.loads(self.broadcast(said.to(self._words)).cpu().numpy().tobytes())

    def numbers(self, own: int) -> list[int]:
        """Return the whole numbers of all ranks, in order of rank."""
        said = torch.zeros(self.size, dtype=torch.int64, device=self._words)
        said[self.rank] = own
        return [int(number) for number in self._carry(said, group.all_reduce).tolist()]

    def gather(self, body: Any) -> list[Any]:
        """Return the JSON values of all ranks, in order of rank."""
        data = json.dumps(body).encode()
        lengths = self.numbers(len(data))
        said = torch.zeros(sum(lengths), dtype=torch.uint8, device=self._words)
        start = sum(lengths[: self.rank])
        said[start : start + len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        self._carry(said, group.all_reduce)  # whatever one rank leaves zero, another fills
        return [json.loads(part.numpy().tobytes()) for part in said.cpu().split(lengths)]

    def share(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors of rank 0 by name, to the last bit, on the CPU; of the others, the argument is dropped."""
        held = {name: value.to("cpu", copy=True) for name, value in tensors.items()}
        kinds = self.tell({name: [str(value.dtype), list(value.shape)] for name, value in held.items()})
        return {
            name: self.broadcast(
                held[name] if self.first else torch.empty(shape, dtype=getattr(torch, dtype.removeprefix("torch.")))
            )
            for name, (dtype, shape) in kinds.items()
        }

    # all or none

    def together(self, work: Callable[[], T]) -> T:
        """Return the result of ``work``; where it is refused on one rank, it is refused on all, in the words of the first.

        Args:
            work: no part of it may wait for another rank.
        """
        result, refused = None, None
        try:
            result = work()
        except DpltmError as error:
            refused = error
        refusals = self.gather(None if refused is None else [refused.exit_code, str(refused)])
        if refused is not None:
            raise refused
        for rank, refusal in enumerate(refusals):
            if refusal is not None:
                raise _REFUSALS.get(refusal[0], InputError)(f"rank {rank}: {refusal[1]}")
        return result  # type: ignore[return-value]

    def agree(self, facts: Mapping[str, str], private: Mapping[str, str] | None = None) -> None:
        """Raise InputError on all ranks, naming what differs, unless all have the same facts; never shows ``private``."""
        (first, hidden), *others = self.gather([dict(facts), dict(private or {})])
        for rank, (shown, digests) in enumerate(others, 1):
            for name in {**first, **shown}:
                had, has = first.get(name), shown.get(name)
                if had != has:
                    raise InputError(
                        f"{name}: rank 0 has {had!s:.80} and rank {rank} {has!s:.80}; start all ranks with the same"
                        " command, files and versions"
                    )
            for name in {**hidden, **digests}:
                if hidden.get(name) != digests.get(name):
                    raise InputError(
                        f"{name}: rank {rank} has others than rank 0; start all ranks with the same command, files and"
                        " versions"
                    )

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


def together(ranks: Ranks | None, work: Callable[[], T]) -> T:
    """Return the result of ``work``, in one process or in all ranks (:meth:`Ranks.together`)."""
    return work() if ranks is None else ranks.together(work)


def environment() -> dict[str, str]:
    """Facts that decide the last bits of a sum, beside the numbers, for ranks to agree on."""
    return {
        **versions(),
        "threads of torch": str(torch.get_num_threads()),
        "a compiler": "at hand" if compiler_at_hand() else "not at hand",
    }


def rows_digest(*arrays: Tensor | np.ndarray) -> str:
    """SHA-256 (hex) over rows. It depends on every one of them, so it goes to other ranks and nowhere else."""
    digest = hashlib.sha256()
    for array in arrays:
        rows = array.detach().cpu().numpy() if isinstance(array, Tensor) else array
        digest.update(f"{rows.dtype.str} {rows.shape} ".encode())
        for some in pieces(rows):
            digest.update(np.ascontiguousarray(some).data)
    return digest.hexdigest()


ENDED, FAILED = -1, -2
"""What a rank says in place of the number of a part."""


class Shards:
    """The sharded parts of a model, if it has any (``torch.distributed.fsdp.fully_shard``).

    A pass gathers the weights of each part as it comes to it, forward and backward, which all ranks must do together. But
    ranks have other records, and so other numbers of passes, and a pass may fail. So all ranks say, before each gathering,
    which part they are at. A rank whose work has ended lends its shards until all have ended. If one has failed, or if two
    are at different parts, all stop: a pass would get the weights of another part, and which one would depend on the records
    of another rank.

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
