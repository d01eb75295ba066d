"""A sweep on disk: a folder that one process at a time has to itself.

    recipe.json                         what the folder is for
    dpltm.ledger.jsonl                  what all of it cost, unless another ledger was named
    members/LABEL/run/                  a trial: the run that it came to
    tickets/, tune/, schemes/           what trials share
    draws/, messages/                   what a trial has for itself, until it is finished
    attempts/NAME                       what the last command began
    results.json, results.md, figure.png

Each part is written whole, or not at all; what is there is finished, and never done again. Of the three stages of ``dpltm
run`` there are recipe.json, generate.json, tickets/, select.json and run/.

The folder may be somebody else's: one with links in it is refused, and what is not as it was written is named.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from dpltm.errors import ArtifactError
from dpltm.tickets.files import lock, only_being_written, read_json, taken, write_json

FORMAT, SCHEMA = "dpltm-sweep", 3
PARTS = ("members", "tickets", "tune", "draws", "schemes", "messages", "attempts")

AGAIN = (
    "what is finished stays; a stage that was interrupted goes on from its checkpoint or begins anew, and what it paid stays"
    " in the ledger"
)
"""Said where a folder was begun before."""


def open_sweep(root: Path, title: str, parts: tuple[str, ...] = PARTS) -> bool:
    """Make the folder of a recipe, or take it up again; return whether it was begun before. ArtifactError for another's."""
    place = root / "recipe.json"
    begun = place.is_file()
    if (root.exists() or root.is_symlink()) and not (begun or only_being_written(place)):
        raise ArtifactError(f"`out`: {root} exists already and is not of a recipe; choose another name")
    for path in (*root.glob("*"), *root.glob("*/*")):
        if path.is_symlink():  # what is written or removed there would be elsewhere
            raise ArtifactError(f"{path}: is a link, which is not followed; remove it, or choose another `out`")
    try:
        root.mkdir(parents=True, exist_ok=True)
        if not begun:
            write_json(place, {"format": FORMAT, "schema": SCHEMA, "title": title})
        elif (other := read_json(place, FORMAT, SCHEMA).get("title")) != title:
            raise ArtifactError(f"`out`: {root} is of another recipe, {other!r}; choose another name")
        for part in parts:
            (root / part).mkdir(exist_ok=True)
    except OSError as error:
        raise ArtifactError(f"`out`: cannot write to {root}: {error.strerror}; choose another place") from None
    return begun


@contextlib.contextmanager
def alone(root: Path) -> Iterator[None]:
    """Keep other processes out of a folder within the block; ArtifactError where one is at work."""
    descriptor = lock(root)
    if descriptor is None:
        raise taken(root)
    try:
        yield
    finally:
        os.close(descriptor)


def is_sweep(path: Path) -> bool:
    """Return whether a folder is of a recipe of several trials."""
    return (path / "recipe.json").is_file() and (path / "members").is_dir()


def remove(path: Path) -> None:
    """Remove a file, or a folder with all in it, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
