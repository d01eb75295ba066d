"""What is said of a network of the user's own, or of a kind from given weights; and where its code is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from dpltm.errors import InputError
from dpltm.networks import names_code
from dpltm.options import Options, option

CODE = "FILE.py:NAME|package.module:NAME"  # form of a name of code, as help shows it


class NetworkOptions(Options):
    """Given weights, and patterns of parameter names (docs/own-network.md)."""

    start: str | None = option(None, "Weights to start from, by parameter name.", "FILE", section="Your own network")
    start_provenance: str | None = option(None, "What these weights depend on.", choices=("data-free", "public"))
    freeze: str | None = option(None, "Parameters that are not trained, such as encoder.*", "PATTERN,...")


GIVEN = (*(item.name for item in fields(NetworkOptions)), "prunable")
"""Names of what is said of a network; the last where tickets are made."""


def check_set_decides(options: NetworkOptions, model: str | None) -> None:
    """Raise InputError for what is said of a network where a ticket set decides it; its code may be named."""
    stated = [item.name for item in fields(NetworkOptions) if getattr(options, item.name) is not None]
    if model is not None and not names_code(model):
        stated.append("model")
    if stated:
        raise InputError(f"`{stated[0]}`: the ticket set decides the network; leave `{stated[0]}` out")


def names_file(model: str | None) -> bool:
    """Tell whether a network is named as code in a file."""
    return model is not None and names_code(model) and model.partition(":")[0].endswith(".py")


def beside(section: Mapping[str, Any], config: Path) -> Mapping[str, Any]:
    """Return a table of a configuration file in which a file of code is a path from its folder."""
    model = section.get("model")
    if isinstance(model, str) and names_file(model):
        return {**section, "model": str(config.parent / model)}
    return section


class CodeOptions(Options):
    """The code of what is read."""

    model: str | None = option(None, "Code of a network of your own.", CODE, section="Your own network")
