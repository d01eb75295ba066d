"""Tickets for other records."""

from __future__ import annotations

from dataclasses import dataclass

from dpltm.options import option
from dpltm.options.data import DataOptions


@dataclass(frozen=True, kw_only=True)
class TransferOptions:
    """Transfer: what tickets for other records take over."""

    mode: str = option("ticket", "What is taken over.", choices=("ticket", "mask-only", "shuffled-mask", "random"))
    fresh: str = option(
        "sparse",
        "Layers made new: as sparse as those they replace, at random, or dense.",
        choices=("sparse", "dense"),
    )
    seed: int = option(0, "Decides what is drawn anew.", metavar="N")
    name: str | None = option(None, "Label of the new set.", metavar="TEXT", shown="that of SET")


@dataclass(frozen=True, kw_only=True)
class TransferRequest(TransferOptions, DataOptions):
    """Makes tickets for other records: another input width, image size, number of channels or of classes.

    Layers of the same shape are kept, the others made new. Only the shape of `dataset` is looked at. The other modes are
    controls: masks with new weights, weights under masks shuffled within each layer, and both at random.

    Examples:
        dpltm tickets transfer digits.tickets --dataset mnist --out mnist.tickets
        # the control: the same sparsity at random
        dpltm tickets transfer digits.tickets@5 --dataset mnist --mode random --out random.tickets
    """

    set: str | None = option(
        None, "Ticket set, or one of its rounds.", metavar="SET[@ROUND]", argument=True, required=True
    )
    out: str | None = option(None, "Folder to write.", metavar="DIR", required=True)
