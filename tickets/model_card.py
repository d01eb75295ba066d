"""A statement as a card: Markdown for the Hugging Face hub, with the statement itself inside, for programs.

All of a card but what people add to it is written from the statement, so it can be written again and compared.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpltm.errors import ArtifactError
from dpltm.privacy.entry import Lineage, value_from_json
from dpltm.reports.statement import FORMAT, PROVENANCE, SCHEMA, Statement
from dpltm.reports.wording import render, render_statement
from dpltm.tickets.files import check_schema, digest_of, parse_json, read_bytes

BEGIN, END = "<!-- dpltm: written by dpltm report, and compared by dpltm privacy check -->", "<!-- dpltm: end -->"
"""Marks of dpltm's part of a card; people write before and after."""

FENCE = "```json dpltm-statement"
FENCED = re.compile(rf"^{FENCE}\n(.*?)\n```$", re.DOTALL | re.MULTILINE)
SCRIPT = re.compile(r'<script type="application/json" id="dpltm-statement">\n?(.*?)\n?</script>', re.DOTALL)
"""Place of the statement in a card, and in a page."""

MOST = 4 * 2**20
"""Bytes of a card or a page; no report of dpltm has as many."""

PRIVACY_KEY = "dpltm_privacy:"
"""Of the metadata that is compared."""


def signed(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a statement with the digest over it, which shows careless edits. It is no signature."""
    return {**body, "digest": digest_of(body)}


def card_text(body: Mapping[str, Any]) -> str:
    """Return the whole card of a signed statement; texts in its metadata are written as JSON, which YAML reads the same."""
    certified, nominal = body["certified"], body["nominal"]
    metadata = {
        "certified_epsilon": certified["epsilon"],
        "nominal_epsilon": None if nominal is None else nominal["epsilon"],
        **{key: certified[key] for key in ("delta", "accountant", "adjacency", "unit", "sampling")},
        "dataset": body["settings"].get("dataset"),
        "accuracy": body["outcome"].get("accuracy"),
        "density": body["settings"].get("density"),
    }
    return render_statement(
        "card.md.jinja", body, metadata={name: json.dumps(value) for name, value in metadata.items()},
        statement=json.dumps(body, indent=1, allow_nan=False), privacy_key=PRIVACY_KEY, begin=BEGIN, end=END, fence=FENCE,
    )  # fmt: skip


def read_statement(where: str, text: str) -> dict[str, Any]:
    """Return the statement in a card or a page; ArtifactError for none, several, or one that is damaged."""
    statements = (SCRIPT if "<html" in text[:1000] else FENCED).findall(text)
    if len(statements) != 1:
        many = "no statement" if not statements else f"{len(statements)} statements"
        raise ArtifactError(f"{where}: holds {many} of dpltm; name a card or a page that dpltm report wrote")
    body: Any = parse_json(where, statements[0])
    check_schema(where, body, FORMAT, SCHEMA)
    try:
        if not isinstance(body.get("digest"), str):
            raise ArtifactError("the statement: field digest is missing")
        value_from_json(Statement, {key: value for key, value in body.items() if key != "digest"}, "the statement")
    except ArtifactError as error:
        raise ArtifactError(f"{where}: {error}") from None
    return dict(body)


def holds_statement(path: Path) -> bool:
    """Tell whether a file looks like a card or a page of dpltm."""
    return path.is_file() and b"dpltm-statement" in read_bytes(path, MOST, links=True)


def edits(body: Mapping[str, Any], text: str) -> list[str]:
    """Return the places where a card says something else than the statement in it."""
    lines, written = text.splitlines(), card_text(body).splitlines()
    problems = []
    if body["digest"] != digest_of(body):
        problems.append("digest: the statement was changed after it was written")
    if lines.count(BEGIN) != 1 or lines.count(END) != 1 or lines.index(BEGIN) > lines.index(END):
        return [*problems, "the marks around what dpltm wrote are not there once each, in their order"]
    start = lines.index(BEGIN)
    theirs, ours = (card[card.index(BEGIN) : card.index(END)] for card in (lines, written))
    wrong = [
        f"line {number}: {line.strip()!r:.100}, where the statement gives {due.strip()!r:.100}"
        for number, (line, due) in enumerate(
            itertools.zip_longest(theirs, ours, fillvalue="(no line)"), start=start + 1
        )
        if line != due
    ]
    problems += wrong[:3]  # a line more moves all that follow
    return problems + _metadata_edits(lines, written[written.index(PRIVACY_KEY) : written.index("---", 1)])


def _metadata_edits(lines: Sequence[str], due: Sequence[str]) -> list[str]:
    """Return metadata on privacy that the statement does not give: others are people's, if none can be its key."""
    if lines[0] != "---" or "---" not in lines[1:]:
        return ["metadata: is gone; a card begins with a line ---"]
    head = lines[1 : lines.index("---", 1)]
    first = head.index(PRIVACY_KEY) if PRIVACY_KEY in head else len(head)
    stated, after = head[first : first + len(due)], head[first + len(due) :]
    wrong = [line for line in stated if line not in due] + [line for line in due if stated.count(line) != 1]
    wrong += [line for line in after[:1] if line[:1].isspace()]  # one more of its keys
    wrong += [line for line in (*head[:first], *after) if PRIVACY_KEY[:-1] in line or "\\" in line]  # or its letters
    return [f"metadata: {line.strip()!r:.100} is not, or not only, what the statement gives" for line in wrong]


def front(features: dict[str, Any]) -> str:
    """Describe the map in front of the network."""
    return f"`{features['text']}` features of records of shape {'x'.join(map(str, features['shape']))}"


def sources(lineage: Lineage) -> list[str]:
    """Names of the records that a lineage speaks of, each once."""
    part_names = (str(entry.part) for entry in lineage.entries if entry.kind in ("public", "release", "local"))
    return list(dict.fromkeys(part_names))


def card(document: dict[str, Any], lineage: Lineage) -> str:
    """Return Markdown for ``README.md``, from the content of ``tickets.json``."""
    features, meaning = document["feature_map"], PROVENANCE[document["provenance"]]
    parts = {"front": front(features) if features else "", "sources": sources(lineage), "meaning": meaning}
    return render("set.md.jinja", {"set": document, **parts})
