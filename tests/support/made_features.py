"""What holds of every file of features that a program makes from a seed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import torch

from dpltm.data import bundled

Tensors = dict[str, np.ndarray]


def check_seed(make: Callable[..., Tensors], drawn: str) -> tuple[Tensors, list[tuple[int, str]]]:
    """The seed decides every bit; threads of the caller decide none, and are put back.

    Args:
        make: the tensors of a seed in some steps; takes who watches.
        drawn: name of one that differs from seed to seed.

    Returns:
        What seed 3 gives, and what it told who watched.
    """
    notes: list[tuple[int, str]] = []
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        first = make(3, 3, lambda done, note: notes.append((done, note)))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    again, other = make(3, 3), make(4, 3)
    assert first.keys() == other.keys()
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first[drawn], other[drawn])
    assert {value.dtype for value in first.values()} == {np.dtype("float16")}
    assert all(np.isfinite(value).all() for value in first.values())
    assert [done for done, _ in notes] == [1, 2, 3]
    return first, notes


SEALED = """
import sys
from {module} import learning
{fewer}
learning.make(9, 1)  # what is imported on the way
seen = []
sys.addaudithook(lambda event, args: seen.append(event) if event in ("open", "socket.connect", "subprocess.Popen") else None)
learning.make(0, 2)
print(seen)
"""


def check_nothing_is_read(module: str, fewer: str) -> None:
    """No file, network or process is opened while it is made.

    Args:
        module: that has ``learning``.
        fewer: a line that makes it quick.
    """
    program = SEALED.format(module=module, fewer=fewer)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def damage(file: str, what: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has a bundled file ``changed`` by one bit, or ``gone``."""
    if what == "changed":
        body = bytearray(resources.files("dpltm.data").joinpath(file).read_bytes())
        body[-1] ^= 1
        (folder / file).write_bytes(bytes(body))
    monkeypatch.setattr(bundled.resources, "files", lambda _: folder)
