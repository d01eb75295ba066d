"""``dpltm privacy check``: the figures of a card are computed again from the entries in it. No torch, and no records."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from dpltm.errors import ArtifactError, InputError
from dpltm.options.privacy import CheckRequest
from dpltm.progress import Progress
from dpltm.reports.checking import differences, kept_apart
from dpltm.tickets.files import digest_of, read_bytes
from dpltm.tickets.model_card import BEGIN, END, MOST, edits, read_statement

COMPARED = (
    "compared with the entries: both epsilons, the attacker's figures, sampling, steps, noise, sensitivity, records, batch"
    " and divisor, notes that are due"
)
FIGURES = (
    "compared with the entries: both epsilons, the attacker's figures, notes that are due; no settings of a training"
)
WORD = (
    "the writer's word: the entries themselves, accuracy, audit, budget asked for, names of datasets, filter, clip norm,"
    " live coordinates, bounds, how sums were rounded, where tickets come from, the network, figures inside notes, further"
    " notes"
)
UNSIGNED = (
    "nothing here is signed: whoever writes other entries, and all figures that follow from them, is not found out; compare"
    " the entries with the ledger of whoever trained"
)
PAGE = "only the statement inside the page was compared, not its words and pictures; a card is compared line by line"


def check(options: CheckRequest, progress: Progress) -> dict[str, Any]:
    """The JSON answer of ``dpltm privacy check``: what differs, if anything does.

    Raises:
        InputError: no such file.
        ArtifactError: it holds no statement, or one that cannot be read.
    """
    del progress
    path = Path(options.card or "")
    if path.is_dir():
        raise InputError(
            f"{path}: a folder; name the card or page that dpltm report wrote, such as {path / 'README.md'}"
        )
    try:
        text = read_bytes(path, MOST, links=True).decode("utf-8")
    except UnicodeDecodeError:
        raise ArtifactError(f"{path}: not a text; name a card or a page that dpltm report wrote") from None
    body, notes = read_statement(str(path), text), [UNSIGNED]
    if "<html" in text[:1000]:
        found = [] if body["digest"] == digest_of(body) else ["digest: the statement was changed after it was written"]
        notes.append(PAGE)
    else:
        found = edits(body, text)
        lines = text.splitlines()
        beside = [line for line in lines[lines.index(END) + 1 :] if line.strip()] if END in lines else []
        before = (
            lines[lines.index("---", 1) + 1 : lines.index(BEGIN)] if BEGIN in lines and lines.count("---") > 1 else []
        )
        if added := len(beside) + sum(bool(line.strip()) for line in before):
            notes.append(f"{added} lines were added around what dpltm wrote; nothing was compared there")
    try:
        found = [*differences(body), *found]
    except ArtifactError as error:
        found = [str(error), *found]
    apart = None
    with contextlib.suppress(ArtifactError):  # which is among the problems
        apart = kept_apart(body)
    notes += [] if apart is None else [apart]
    notes += [COMPARED if body["kind"] == "run" and body["state"] == "finished" else FIGURES, WORD]
    return {
        "card": str(path),
        "ok": not found,
        "problems": found,
        "entries": len(body["entries"]),
        "privacy": {key: body[key] for key in ("certified", "nominal", "notes")},
        "notes": notes,
    }
