"""The card of a ticket set: what a person reads who finds the folder. And the templates of all forms."""

from __future__ import annotations

import html
import re
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

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


def as_markdown(text: object) -> str:
    """Return a text that Markdown shows as it is: no markup of its own, no link, on one line."""
    escaped = html.escape(" ".join(str(text).split()), quote=False)
    return re.sub(r"([\\`*_\[\]|#~!])", r"\\\1", escaped)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("dpltm.tickets", "."), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True, autoescape=lambda name: str(name).endswith(".html"),
    )  # fmt: skip
    environment.filters["markdown"] = as_markdown
    return environment


def template(name: str) -> Template:
    """Return the template of a form. In those of HTML all values are escaped; those of Markdown say which."""
    return _environment().get_template(name)


def front(features: dict[str, Any]) -> str:
    """Describe the map in front of the network."""
    return f"`{features['text']}` features of records of shape {'x'.join(map(str, features['shape']))}"


def sources(lineage: Lineage) -> list[str]:
    """Names of the records that a lineage speaks of, each once."""
    named = (str(entry.part) for entry in lineage.entries if entry.kind in ("public", "release", "local"))
    return list(dict.fromkeys(named))


def card(document: dict[str, Any], lineage: Lineage) -> str:
    """Return Markdown for ``README.md``, from the content of ``tickets.json``."""
    features, meaning = document["feature_map"], MEANING[document["provenance"]]
    told = {"front": front(features) if features else "", "sources": sources(lineage), "meaning": meaning}
    return template("set.md.jinja").render(set=document, **told)
