"""What a recipe knows of the commands whose options it holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Command:
    """One command.

    Attributes:
        request: the dataclass of its options.
        check: refuses options that contradict each other, the first of them with an InputError that begins with the names.
        suits: refuses options that do not suit the records (of ``train``) or the network (of ``generate``).
    """

    request: type
    check: Callable[[Any], object]
    suits: Callable[[Any, Any], object] | None = None


Commands = Mapping[str, Command]
"""By name: train, select, tune, generate, transfer, scheme, encode, latent train."""

DECIDED: dict[str, frozenset[str]] = {
    "train": frozenset({"ticket", "dense", "out", "ledger", "seed", "dry-run", "tuned-on"}),
    "select": frozenset({"set", "ledger", "dry-run"}),
    "tune": frozenset({"set", "out", "features", "public", "components", "epsilon", "delta", "optimizer", "schedule",
                       "average", "accountant"}),
    "generate": frozenset({"out", "ledger", "dry-run", "name", "threads"}),
    "transfer": frozenset({"set", "out", "name", "seed"}),
    "scheme": frozenset({"out"}),
    "encode": frozenset({"scheme", "out", "ledger", "dry-run"}),
    "latent train": frozenset({"scheme", "messages", "out", "seed", "threads"}),
}  # fmt: skip
"""Keys that a recipe decides itself: by its arms, by its seeds, or since an arm's search is for its own training."""


def latent_command(stage: str) -> str:
    """The command of a stage of ``dpltm latent``."""
    return "latent train" if stage == "train" else stage
