"""The card of a ticket set: what a person reads who finds the folder."""

from __future__ import annotations

from typing import Any

from dpltm.privacy.event_json import ref_from_json

MEANING = {
    "data-free": "made from no records at all: using it costs no privacy",
    "public": "made from records that were declared public: using it costs no privacy",
    "dp": (
        "made under differential privacy from private records: whoever trains it on the same records pays for that as well,"
        " and the ledger counts it; anyone else pays nothing, and it may be shared as far as that guarantee goes"
    ),
    "private": (
        "made from private records with no mechanism: the masks may reveal them, the predictors, ordinary networks trained"
        " on them, even more, and nothing can be certified for those records. Think before you share it"
    ),
}


def front(features: dict[str, Any]) -> str:
    """What stands in front of the network, and what that was made from."""
    text = f"`{features['text']}` features of records of shape {'x'.join(map(str, features['shape']))}"
    if features["source"] is None:
        return f"{text}, made from no records"
    name = f"`{features['source']['name']}`"
    if features["network"] is None:
        return f"{text}, with statistics of {name}, declared public"
    return f"{text}: a network trained on {name}, which goes with this folder, as does what that cost those records"


def card(document: dict[str, Any]) -> str:
    """Markdown for ``README.md``, from the content of ``tickets.json``."""
    source, parent = document["source"], document["parent"]
    origin = "no data" if source is None else f"`{ref_from_json(source)}`"
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
