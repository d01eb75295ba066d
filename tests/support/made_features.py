"""What holds of every file of features that a program makes from a seed."""

import subprocess
import sys
from importlib import resources
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from dpltm.records import files

Tensors = dict[str, np.ndarray]


SEALED = """
import sys
sys.path.insert(0, {folder!r})
import {module} as learning
{fewer}
learning.make(9, 1)  # what is imported on the way
seen = []
sys.addaudithook(lambda event, args: seen.append(event) if event in ("open", "socket.connect", "subprocess.Popen") else None)
made = learning.make(3, 3)
print(seen)
sys.stdout.flush()
for name in sorted(made):
    sys.stdout.buffer.write(made[name].tobytes())
"""


def check_made(
    learning: ModuleType, fewer: dict[str, int], monkeypatch: pytest.MonkeyPatch, drawn: str
) -> tuple[Tensors, list[str]]:
    """The seed decides every bit, in whatever process and beside whatever threads; no file, network or process is opened.

    Args:
        learning: the module that makes them.
        fewer: numbers of ``learning`` that make it quick.
        monkeypatch: of the test.
        drawn: name of a tensor that differs from seed to seed.

    Returns:
        What seed 3 gives in three steps, and what it told who watched.
    """
    for name, number in fewer.items():
        monkeypatch.setattr(learning, name, number)
    notes: list[tuple[int, str]] = []
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        first = learning.make(3, 3, lambda done, note: notes.append((done, note)))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    program = SEALED.format(
        folder=str(Path(str(learning.__file__)).parent),
        module=learning.__name__,
        fewer="\n".join(f"learning.{name} = {number}" for name, number in fewer.items()),
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    seen, _, again = done.stdout.partition(b"\n")
    assert seen == b"[]"
    assert again == b"".join(first[name].tobytes() for name in sorted(first))
    other = learning.make(4, 1)
    assert first.keys() == other.keys()
    assert not np.array_equal(first[drawn], other[drawn])
    assert {value.dtype for value in first.values()} == {np.dtype("float16")}
    assert all(np.isfinite(value).all() for value in first.values())
    assert [done for done, _ in notes] == [1, 2, 3]
    return first, [note for _, note in notes]


def damage(file: str, what: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has a bundled file ``changed`` by one bit, or ``gone``."""
    if what == "changed":
        body = bytearray(resources.files("dpltm.features").joinpath(file).read_bytes())
        body[-1] ^= 1
        (folder / file).write_bytes(bytes(body))
    monkeypatch.setattr(files.resources, "files", lambda _: folder)
