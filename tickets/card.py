"""The card of a ticket set: what a person reads who finds the folder."""

from __future__ import annotations

from typing import Any

_MEANING = {
    "public": "made from records that were declared public: using it costs no privacy",
    "private": (
        "made from private records with no mechanism: the masks may reveal them, the predictors, ordinary networks trained"
        " on them, even more, and nothing can be certified for those records. Think before you share it"
    ),
}


def card(document: dict[str, Any]) -> str:
    """Markdown for ``README.md``, from the content of ``tickets.json``."""
    source = document["source"]
    lines = [
        f"# Lottery tickets: {document['name']}",
        "",
        f"- network: `{document['model']}`, {document['features']} inputs, {document['classes']} classes",
        f"- made by: {document['criterion']} pruning from `{source['name']}`, records {source['start']} to {source['stop']}",
        f"- provenance: **{document['provenance']}** ({_MEANING[document['provenance']]})",
        f"- id: `{document['id']}`",
        "",
        "| round | density | live | accuracy |",
        "|---|---|---|---|",
    ]
    for row in document["tickets"]:
        accuracy = "withheld" if row["accuracy"] is None else f"{row['accuracy']:.4f}"
        lines.append(f"| {row['round']} | {row['density']:.4f} | {row['live']} | {accuracy} |")
    lines += [
        "",
        "Round 0 is the dense network. Draw a winner with `dpltm select FOLDER --dataset NAME --eps1 0.1` and train it with",
        "`dpltm train FOLDER --dataset NAME --epsilon 1`, or a given round with `dpltm train FOLDER@ROUND`.",
        "",
    ]
    return "\n".join(lines)
