"""The artifacts of dpltm on disk: ticket sets, winners, runs and ledgers (formats: ``docs/formats.md``).

``save(value, path)`` and ``load(path)`` are the way in and out; ``export_run(run, path)`` writes a trained network for use
without dpltm; ``open_ledger(path)`` opens a ledger.
"""

import importlib
from typing import TYPE_CHECKING, Any

if __name__ != "dpltm.tickets":
    raise ImportError("import this package as dpltm.tickets, not as tickets: it is only installed under that name")

if TYPE_CHECKING:
    from dpltm.tickets.handover import export_run as export_run
    from dpltm.tickets.ledger_file import open_ledger as open_ledger
    from dpltm.tickets.store import load as load
    from dpltm.tickets.store import save as save


def __getattr__(name: str) -> Any:
    """``save``, ``load`` and ``export_run``, which need torch, and ``open_ledger``, when they are first asked for."""
    if name in ("load", "save"):
        return getattr(importlib.import_module("dpltm.tickets.store"), name)
    if name == "export_run":
        return importlib.import_module("dpltm.tickets.handover").export_run
    if name == "open_ledger":
        return importlib.import_module("dpltm.tickets.ledger_file").open_ledger
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
