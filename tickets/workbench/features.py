"""``dpltm features``: what is bundled, made again."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpltm.drawings.learning import make
from dpltm.errors import InputError
from dpltm.features.registry import DRAWINGS_DIGEST, DRAWINGS_FILE
from dpltm.options.features import MakeRequest
from dpltm.stages.progress import Progress
from dpltm.tickets.files import check_free, new_file
from dpltm.tickets.room import check_room
from dpltm.tickets.tensors import write_tensors

ROOM = 2**21
"""Bytes: the encoder takes 1.4 MB."""


def make_features(request: MakeRequest, progress: Progress) -> dict[str, Any]:
    """Trains the encoder of drawings and writes it.

    Raises:
        InputError: a seed or a number of steps that is none.
        ArtifactError: the file is there, or cannot be written.
    """
    if not 0 <= request.seed < 2**31:
        raise InputError(f"`seed`: {request.seed} is not from 0 to {2**31 - 1}")
    if not 1 <= request.steps <= 10**6:
        raise InputError(f"`steps`: {request.steps} is not from 1 to 1,000,000")
    target = Path(DRAWINGS_FILE if request.out is None else request.out)
    check_free(target)
    check_room(target, ROOM)
    with progress.progress("learning to tell drawings apart", request.steps) as step:
        tensors = make(request.seed, request.steps, step)
    command = f"dpltm features make {request.what} --seed {request.seed} --steps {request.steps}"
    made = {"command": command, "provenance": "data-free", "torch": torch.__version__, "numpy": np.__version__}
    with new_file(target) as draft:
        write_tensors(draft, tensors, {"made": json.dumps(made)})  # one text: the order of several is not kept
    body = target.read_bytes()
    digest = hashlib.sha256(body).hexdigest()
    return {"file": str(target), "bytes": len(body), "digest": digest, "bundled": digest == DRAWINGS_DIGEST, **made}
