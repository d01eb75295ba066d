"""``dpltm features``: what is bundled, made again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console as RichConsole

from dpltm.cli.console import answering
from dpltm.cli.show import show_pairs
from dpltm.errors import InputError
from dpltm.features import DRAWINGS_DIGEST, DRAWINGS_FILE, PHOTOGRAPHS_DIGEST, PHOTOGRAPHS_FILE, drawings, photographs
from dpltm.options.features import MakeRequest
from dpltm.progress import Progress
from dpltm.tickets.files import check_free, new_file
from dpltm.tickets.tensors import write_tensors


@dataclass(frozen=True)
class Bundled:
    """A file that comes with dpltm, its SHA-256 (hex), and how it is made."""

    file: str
    digest: str
    make: Callable[[int, int, Callable[[int, str], None] | None], dict[str, np.ndarray]]
    steps: int
    label: str


BUNDLED = {
    "drawings": Bundled(
        DRAWINGS_FILE, DRAWINGS_DIGEST, drawings.make, drawings.STEPS, "learning to tell drawings apart"
    ),
    "photographs": Bundled(
        PHOTOGRAPHS_FILE, PHOTOGRAPHS_DIGEST, photographs.make, photographs.ROUNDS, "grouping patches of scenes"
    ),
}
"""Files that can be made again."""


def make_features(request: MakeRequest, progress: Progress) -> dict[str, Any]:
    """Make the tensors of a bundled file, and write them."""
    if not 0 <= request.seed < 2**31:
        raise InputError(f"`seed`: {request.seed} is not from 0 to {2**31 - 1}")
    known = BUNDLED[str(request.what)]
    steps = known.steps if request.steps is None else request.steps
    if not 1 <= steps <= 10**6:
        raise InputError(f"`steps`: {steps} is not from 1 to 1,000,000")
    target = Path(known.file if request.out is None else request.out)
    check_free(target)
    with progress.progress(known.label, steps) as step:
        tensors = known.make(request.seed, steps, step)
    command = f"dpltm features make {request.what} --seed {request.seed} --steps {steps}"
    made = {"command": command, "provenance": "data-free", "torch": torch.__version__, "numpy": np.__version__}
    with new_file(target) as draft:
        write_tensors(draft, tensors, {"made": json.dumps(made)})  # one text: the order of several is not kept
    body = target.read_bytes()
    digest = hashlib.sha256(body).hexdigest()
    return {"file": str(target), "bytes": len(body), "digest": digest, "bundled": digest == known.digest, **made}


def show_made(rich: RichConsole, body: dict[str, Any]) -> None:
    """Show the new file, and whether it is the bundled one."""
    show_pairs(rich, body["file"], {name: body[name] for name in ("bytes", "command", "provenance", "torch")})
    rich.print(f"sha-256 {body['digest']}", soft_wrap=True)
    other = "not the bundled file: other settings, other versions, or other rounding"
    rich.print("the same as the bundled one" if body["bundled"] else other)


make_command = answering(make_features, show_made)
