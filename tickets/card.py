"""The card of a ticket set: what a person reads who finds the folder."""

from __future__ import annotations

from typing import Any

from dpltm.privacy.entry import Lineage

MEANING = {
    "data-free": "made from no records at all: using it costs no privacy",
    "public": "made from records that were declared public: using it costs no privacy",
    "dp": (
        "made under differential privacy from private records: what that cost is in its lineage, and counts with whatever is"
        " made of it; it may be shared as far as that guarantee goes"
    ),
    "private": (
        "made from private records with no mechanism: the masks may reveal them, the predictors, ordinary networks trained"
        " on them, even more, and nothing can be certified for those records. Think before you share it"
    ),
}


def front(features: dict[str, Any]) -> str:
    """Describe the map in front of the network."""
    return f"`{features['text']}` features of records of shape {'x'.join(map(str, features['shape']))}"


def sources(lineage: Lineage) -> list[str]:
    """Names of the records that a lineage speaks of, each once."""
    named = (str(entry.part) for entry in lineage.entries if entry.kind in ("public", "release", "local"))
    return list(dict.fromkeys(named))


def card(document: dict[str, Any], lineage: Lineage) -> str:
    """Return Markdown for ``README.md``, from the content of ``tickets.json``."""
    parent, made_from = document["parent"], sources(lineage)
    origin = "no data" if not made_from else " and ".join(f"`{name}`" for name in made_from)
    lines = [
        f"# Lottery tickets: {document['name']}",
        "",
        f"- network: `{document['model']}`, {document['features']} inputs, {document['classes']} classes",
        f"- made by: {document['criterion']} pruning from {origin}",
    ]
    if (features := document["feature_map"]) is not None:
        lines.insert(3, f"- in front of it: {front(features)}")
    if parent is not None:
        taken = "" if parent["round"] is None else f", round {parent['round']}"
        lines.append(f"- from: the set {parent['name']} (`{parent['id'][:12]}`{taken}) by {parent['how']}")
    lines += [
        f"- provenance: **{document['provenance']}** ({MEANING[document['provenance']]})",
        f"- id: `{document['id']}`",
        "",
        "| round | density | live | accuracy |",
        "|---|---|---|---|",
    ]
    missing = "withheld" if document["provenance"] == "private" else "not measured"
    for row in document["tickets"]:
        accuracy = missing if row["accuracy"] is None else f"{row['accuracy']:.4f}"
        lines.append(f"| {row['round']} | {row['density']:.4f} | {row['live']} | {accuracy} |")
    draw = "Draw a winner with `dpltm select FOLDER --dataset NAME --eps1 0.1` and train it with"
    lines += ["", "Round 0 is the dense network."]
    if document["predictors_id"] is not None:
        lines += [
            draw,
            "`dpltm train FOLDER --dataset NAME --epsilon 1`, or a given round with `dpltm train FOLDER@ROUND`.",
        ]
    else:
        lines += [
            "Train a round with `dpltm train FOLDER@ROUND --dataset NAME --epsilon 1`; there are no predictors to select by."
        ]
    return "\n".join([*lines, ""])
