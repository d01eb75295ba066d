"""A sweep on disk: a folder of trials, each with its result, that one process at a time has to itself.

    recipe.json                         what the folder is for
    dpltm.ledger.jsonl                  what all of it cost, unless another ledger was named
    members/LABEL/                      a trial: result.json once it is finished; run/
    tickets/NAME/, tune/NAME.toml       what trials share
    attempts/NAME                       what the last command began
    results.json, results.md, figure.png

Of the three stages of ``dpltm run`` there are recipe.json, generate.json, tickets/, select.json and run/. A result, or the
answer of a stage, is written whole, last; what has one is finished, and never done again.

The folder may be somebody else's: one with links in it is refused, and what is not as it was written is named.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dpltm.errors import ArtifactError
from dpltm.tickets.files import (
    MAX_JSON,
    lock,
    only_being_written,
    parse_json,
    published,
    read_bytes,
    read_json,
    write_json,
)

FORMAT, SCHEMA = "dpltm-sweep", 2
RESULT = ("dpltm-sweep-result", 2)
_HEAD = dict(zip(("format", "schema"), RESULT, strict=True))

PARTS = ("members", "tickets", "tune", "attempts")
LEFT = ("draw.json", "encode.json", "owners.msg", "tickets")
"""What stages of a trial leave for each other, until it is finished."""

AGAIN = (
    "what is finished stays; a stage that was interrupted goes on from its checkpoint or begins anew, and what it paid stays"
    " in the ledger"
)
"""Said where a folder was begun before."""


class SweepFolder:
    """The folder of one recipe; ``parts`` are its folders."""

    def __init__(self, root: Path, title: str, parts: Iterable[str] = PARTS) -> None:
        self.root, place = root, root / "recipe.json"
        self.begun = place.is_file()
        if (root.exists() or root.is_symlink()) and not (self.begun or only_being_written(place)):
            raise ArtifactError(f"`out`: {root} exists already and is not of a recipe; choose another name")
        for path in (*root.glob("*"), *root.glob("*/*"), *root.glob("members/*/*")):
            if path.is_symlink():  # what is written or removed there would be elsewhere
                raise ArtifactError(f"{path}: is a link, which is not followed; remove it, or choose another `out`")
        try:
            root.mkdir(parents=True, exist_ok=True)
            if not self.begun:
                write_json(place, {"format": FORMAT, "schema": SCHEMA, "title": title})
            elif (other := read_json(place, FORMAT, SCHEMA).get("title")) != title:
                raise ArtifactError(f"`out`: {root} is of another recipe, {other!r}; choose another name")
            for part in parts:
                (root / part).mkdir(exist_ok=True)
        except OSError as error:
            raise ArtifactError(f"`out`: cannot write to {root}: {error.strerror}; choose another place") from None

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other processes out within the block; ArtifactError where one is at work."""
        descriptor = lock(self.root)
        if descriptor is None:
            raise ArtifactError(
                f"`out`: another process is at work on {self.root}; wait for it, or choose another name"
            )
        try:
            yield
        finally:
            os.close(descriptor)

    def trial(self, label: str) -> Path:
        """Return the folder of a trial."""
        return self.root / "members" / label

    def result(self, label: str) -> dict[str, Any] | None:
        """Return the result of a trial; None while it is not finished, ArtifactError for a damaged one."""
        path = self.trial(label) / "result.json"
        if not path.exists():
            return None
        try:
            body = read_json(path, *RESULT)
            epsilon = float(body["train"]["privacy"]["certified"]["epsilon"])
            whole = isinstance(body["lineage"], dict) and label.endswith(f"-s{body['seed']}-{body['digest'][:8]}")
        except (ArtifactError, KeyError, TypeError, ValueError):
            epsilon = -1.0
        if not (epsilon >= 0 and whole):
            raise ArtifactError(f"{path}: damaged, or of another member; remove it, and the member is run again")
        return body

    def results(self, labels: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return the results of those trials that are finished."""
        return {label: result for label in labels if (result := self.result(label)) is not None}

    def finish(self, label: str, body: Mapping[str, Any]) -> None:
        """Say that a trial is finished, and what it came to."""
        answers = {name: published(body[name]) for name in ("select", "train") if name in body}
        write_json(self.trial(label) / "result.json", {**_HEAD, **body, **answers})
        self.tidy(label)

    def tidy(self, label: str) -> None:
        """Remove what the stages of a finished trial left for each other, also where a process died before it could."""
        for name in LEFT:
            remove(self.trial(label) / name)

    def begin(self, name: str) -> None:
        """Note that a task is begun; ArtifactError where it was before by this command, so that a process died over it."""
        try:
            (self.root / "attempts" / name.replace("/", "-")).touch(exist_ok=False)
        except FileExistsError:
            raise ArtifactError("its process died, of too little memory perhaps") from None


def stage(path: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the answer of a stage that is made once, and kept in ``path``: an interrupted attempt goes on with it."""
    if path.exists():
        answer: dict[str, Any] = read_json(path, *RESULT)["answer"]
    else:
        answer = make()
        write_json(path, {**_HEAD, "answer": published(answer)}, mode=0o600)  # which may hold revealed scores
    return answer


def trained(run: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the answer of a training, which a run keeps itself."""
    if not run.exists():
        return make()
    answer: Any = parse_json(run / "result.json", read_bytes(run / "result.json", MAX_JSON))
    return dict(answer)


def is_sweep(path: Path) -> bool:
    """Return whether a folder is of a recipe of several trials."""
    return (path / "recipe.json").is_file() and (path / "members").is_dir()


def remove(path: Path) -> None:
    """Remove a file, or a folder with all in it, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
