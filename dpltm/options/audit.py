"""Options of audits: what is attacked, and how sure the answer is to be."""

from __future__ import annotations

from dpltm.options import DELTA, Range, option
from dpltm.options.data import DataOptions, LedgerOptions, UnprotectedOptions


class AuditRequest(UnprotectedOptions, LedgerOptions, DataOptions):
    """Attack a claim: lower bounds on epsilon, beside what is certified and what is claimed.

    RUN is a training with `audit`: the attack looks for its made-up records in what it released. SET is a set of tickets of
    provenance private: the attack makes them again from `dataset` and made-up records, and reads their masks. SCHEME is one
    of local privacy: the attack sends two records that differ as much as any, many times, and reads the messages.

    A bound above the certified epsilon shows a bug, and the exit code is 1. Refuted claims are listed as violated.

    Examples:
        # train with made-up records, then look for them
        dpltm train --dense --dataset digits --epsilon 3 --audit 200 --out audited.run
        dpltm audit audited.run
        # claims of papers, on the embedded digits
        dpltm audit demo
    """

    target: str = option(None, "What to attack.", "RUN|SET|SCHEME|demo", argument=True)
    confidence: float = option(0.95, "Confidence in all bounds together.", "P", within=Range(0.5, 1, below=True))
    messages: int = option(2000, "Messages of either record, of a scheme.", "N", within=Range(20))
    delta: float | None = option(None, "Delta of every epsilon.", "D", shown="that of the run", within=DELTA)
