"""A sweep on disk: a folder of trials, each with its result, that one process at a time has to itself.

    recipe.json                         what the folder is for
    dpltm.ledger.jsonl                  what all of it cost, unless another ledger was named
    members/LABEL/                      a trial: result.json once it is finished; run/
    tickets/NAME/, tune/NAME.toml       what trials share
    attempts/NAME                       in which session something was begun
    results.json, results.md, figure.png

Of the three stages of ``dpltm run`` there is one trial, and the folder is its own: tickets/, run/, result.json. A result is
written whole, last; what has one is finished, and never done again.

The folder may be somebody else's: links in it are not followed, and what is not as it was written is named.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dpltm.errors import ArtifactError
from dpltm.reports.subjects import number
from dpltm.tickets.files import lock, only_being_written, published, read_json, replaced, write_json
from dpltm.tickets.ledger_file import BESIDE

FORMAT, SCHEMA = "dpltm-sweep", 2
RESULT_FORMAT, RESULT_SCHEMA = "dpltm-sweep-result", 2

PARTS = ("members", "tickets", "tune", "attempts")
STAGES = ("generate.json", "draw.json", "encode.json")
"""Answers of stages, in the folder of a trial until it is finished."""


class SweepFolder:
    """The folder of one recipe; ``single``: of one trial."""

    def __init__(self, root: Path, title: str, single: bool = False) -> None:
        self.root, self.single, place = root, single, root / "recipe.json"
        if (root.exists() or root.is_symlink()) and not (place.is_file() or only_being_written(place)):
            raise ArtifactError(f"`out`: {root} exists already and is not of a recipe; choose another name")
        self.begun = place.is_file()
        _refuse_links(root / part for part in ("recipe.json", BESIDE, *PARTS))
        try:
            root.mkdir(parents=True, exist_ok=True)
            if not place.exists():
                write_json(place, {"format": FORMAT, "schema": SCHEMA, "title": title})
            elif (other := read_json(place, FORMAT, SCHEMA).get("title")) != title:
                raise ArtifactError(f"`out`: {root} is of another recipe, {other!r}; choose another name")
            for part in () if single else PARTS:
                (root / part).mkdir(exist_ok=True)
        except OSError as error:
            raise ArtifactError(f"`out`: cannot write to {root}: {error.strerror}; choose another place") from None
        if not single:
            _refuse_links(sorted((root / "members").iterdir()))  # now, rather than in the middle of the work

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
        """Return the folder of a trial; ArtifactError for a link in its place."""
        path = self.root if self.single else self.root / "members" / label
        _refuse_links([path])
        return path

    def make(self, label: str) -> Path:
        """Return the folder of a trial, made if it is not there; ArtifactError for a link in it."""
        folder = self.trial(label)
        folder.mkdir(exist_ok=True)
        _refuse_links(folder.iterdir())
        return folder

    def result(self, label: str) -> dict[str, Any] | None:
        """Return the result of a trial; None while it is not finished, ArtifactError for a damaged one."""
        path = self.trial(label) / "result.json"
        if not path.exists():
            return None
        try:
            body = read_json(path, RESULT_FORMAT, RESULT_SCHEMA)
            if (fault := _fault(body, label)) is not None:
                raise ArtifactError(f"{path}: {fault}")
        except ArtifactError as error:
            raise ArtifactError(f"{error}; remove it, and the member is run again") from None
        return body

    def results(self, labels: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return the results of those trials that are finished."""
        return {label: result for label in labels if (result := self.result(label)) is not None}

    def finish(self, label: str, body: Mapping[str, Any]) -> None:
        """Say that a trial is finished, and what it came to; what its stages left for each other goes."""
        home = self.trial(label)
        head = {"format": RESULT_FORMAT, "schema": RESULT_SCHEMA}
        answers = {name: published(body[name]) for name in ("generate", "select", "train") if name in body}
        mode = 0o600 if self.single else 0o644  # where a stage may have revealed scores
        write_json(home / "result.json", {**head, **body, **answers}, mode=mode)
        self.tidy(label)

    def tidy(self, label: str) -> None:
        """Remove what the stages of a finished trial left for each other, also where a process died before it could."""
        for name in (*STAGES, "owners.msg", *(() if self.single else ("tickets",))):
            remove(self.trial(label) / name)

    def stage(self, label: str, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the answer of a stage of a trial that is made once: an interrupted trial goes on with it."""
        path = self.trial(label) / name
        if path.exists():
            answer: dict[str, Any] = read_json(path, RESULT_FORMAT, RESULT_SCHEMA)["answer"]
            return answer
        answer = make()
        head = {"format": RESULT_FORMAT, "schema": RESULT_SCHEMA}
        write_json(path, {**head, "answer": published(answer)}, mode=0o600)
        return answer

    def begin(self, name: str, session: str) -> bool:
        """Note that a session makes something; False where it began that before, so that a process died over it."""
        path = self.root / "attempts" / name.replace("/", "-")
        if path.is_file() and not path.is_symlink() and path.read_text(encoding="utf-8") == session:
            return False
        with replaced(path) as staging:
            staging.write_text(session, encoding="utf-8")
        return True

    def write_text(self, name: str, text: str) -> None:
        """Write a file of the whole sweep, in place of an earlier one."""
        with replaced(self.root / name) as staging:
            staging.write_text(text, encoding="utf-8")


def is_sweep(path: Path) -> bool:
    """Return whether a folder is of a recipe of several trials."""
    return (path / "recipe.json").is_file() and (path / "members").is_dir()


def remove(path: Path) -> None:
    """Remove a file, or a folder with all in it, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _fault(body: Mapping[str, Any], label: str) -> str | None:
    seed, digest = body.get("seed"), body.get("digest")
    if not (isinstance(body.get("arm"), str) and isinstance(digest, str) and re.fullmatch("[0-9a-f]{64}", digest)):
        return "damaged: 'arm' or 'digest' is missing, or is no text"
    if type(seed) is not int or not label.endswith(f"-s{seed}-{digest[:8]}"):
        return "of another member"
    with contextlib.suppress(KeyError, TypeError):
        epsilon = body["train"]["privacy"]["certified"]["epsilon"]
        if epsilon == "inf" or (number(epsilon) is not None and epsilon >= 0):
            return None
    return "damaged: it has no train.privacy.certified.epsilon"


def _refuse_links(paths: Iterable[Path]) -> None:
    """Raise ArtifactError for a link: what is written or removed there would be elsewhere."""
    for path in paths:
        if path.is_symlink():
            raise ArtifactError(f"{path}: is a link, which is not followed; remove it, or choose another `out`")
