"""The artifacts of dpltm on disk: ticket sets, winners, runs and ledgers (formats: ``docs/formats.md``).

``save(value, path)`` and ``load(path)`` are the way in and out; ``export_run(run, path)`` writes a trained network for use
without dpltm; ``open_ledger(path)`` opens a ledger.
"""

from typing import TYPE_CHECKING

from dpltm.registry import lazily

if __name__ != "dpltm.tickets":
    raise ImportError("import this package as dpltm.tickets, not as tickets: it is only installed under that name")

if TYPE_CHECKING:
    from dpltm.tickets.ledger_file import open_ledger as open_ledger
    from dpltm.tickets.store import load as load
    from dpltm.tickets.store import save as save
    from dpltm.tickets.workbench.handover import export_run as export_run

__getattr__, __dir__ = lazily(
    __name__,
    {
        "load": "dpltm.tickets.store",
        "save": "dpltm.tickets.store",
        "export_run": "dpltm.tickets.workbench.handover",
        "open_ledger": "dpltm.tickets.ledger_file",
    },
)
