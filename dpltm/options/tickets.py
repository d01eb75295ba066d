"""Ticket sets as artifacts: what is looked at, handed on, taken in, carried over or shrunk."""

from __future__ import annotations

from dpltm.networks import network_metavar
from dpltm.options import Options, data, option
from dpltm.options.network import CodeOptions


class LsRequest(Options):
    """The ticket sets in a folder.

    Examples:
        dpltm tickets ls
        dpltm tickets ls experiments
    """

    folder: str = option(".", "Folder to look in.", "[DIR]", argument=True)


class ShowRequest(Options):
    """What a ticket set is, where it comes from and what it costs to use; with @ROUND, one ticket layer by layer.

    Examples:
        dpltm tickets show digits.tickets
        # one ticket, layer by layer
        dpltm tickets show digits.tickets@5
    """

    set: str = option(None, "Ticket set.", "SET[@ROUND]", argument=True)


class VerifyRequest(Options):
    """Checks everything about a ticket set: sizes, shapes, counts, nesting, ids, digests, its card and its lineage.

    The exit code is 0 if all is well and 1 if not. Nothing is signed: whoever can rewrite the whole set can make it fit.

    Examples:
        dpltm tickets verify digits.tickets
    """

    set: str = option(None, "Ticket set.", "SET", argument=True)


class ExportRequest(Options):
    """Writes a ticket set for other people, or one ticket for other tools.

    The exported set has no winner, and no predictors or accuracies from private records without a mechanism; masks from such
    records need `yes`. A ticket becomes starting weights and masks as torch.nn.utils.prune has them.

    Examples:
        # for other people
        dpltm tickets export digits.tickets --out shared.tickets
        # one ticket for torch.nn.utils.prune
        dpltm tickets export digits.tickets@5 --out ticket.safetensors
    """

    set: str = option(None, "Ticket set, or one ticket of it.", "SET[@ROUND]", argument=True)
    out: str = option(None, "Folder of a set, or file of a ticket, to write.", "PATH")
    yes: bool = option(False, data.YES_HELP)


class ImportOptions(data.UnprotectedOptions):
    """Model: what it is, and what it depends on."""

    model: str = option("mlp:300,100", "Network.", network_metavar(), section="Model")
    provenance: str | None = option(None, "What it depends on.", choices=("public", "private", "data-free"))
    name: str | None = option(None, "Label of the set.", "TEXT", shown="the file's name")


class ImportRequest(data.FolderOptions, ImportOptions, data.LedgerOptions, data.FeatureOptions, data.DataOptions):
    """Makes a ticket set from a model pruned by torch.nn.utils.prune: its state dict as a safetensors file.

    Parameters are named as those of `model` (fc1.weight_orig, fc1.weight_mask, fc1.bias, ...). `dataset` says what records
    the network is for; if `provenance` is public or private, they are also what it was made from. A file that dpltm
    exported says itself where it comes from, and what stands in front of its network; `features` names that where the file
    does not hold it.

    Examples:
        dpltm tickets import pruned.safetensors --model mlp:300,100 --dataset mnist --provenance public --out pruned.tickets
    """

    file: str = option(None, "Safetensors file.", "FILE", argument=True)


class CompactRequest(data.FolderOptions):
    """Removes the parts of a network that its mask makes useless: a smaller network with the same answers.

    SET@ROUND becomes a set for the smaller network, to train; RUN a run of it, to use.

    Examples:
        # a ticket, to train
        dpltm tickets compact digits.tickets@5 --out small.tickets
        # a run, to use
        dpltm tickets compact digits.run --out small.run
    """

    artifact: str = option(None, "A ticket or a run.", "SET@ROUND|RUN", argument=True)


MODES = ("ticket", "drop-projection", "mask-only", "shuffled-mask", "random")


class TransferOptions(data.SeedOptions):
    """Transfer: what tickets for other records take over."""

    mode: str = option("ticket", "What is taken over.", choices=MODES, section="Transfer")
    fresh: str = option("sparse", "New layers: as sparse as those before, or dense.", choices=("sparse", "dense"))
    name: str | None = option(None, "Label of the new set.", "TEXT", shown="that of SET")


class TransferRequest(data.FolderOptions, CodeOptions, TransferOptions, data.DataOptions):
    """Makes tickets for other records: another input width, image size, number of channels or of classes.

    Layers of the same shape are kept, the others made new. Only the shape of `dataset` is looked at. drop-projection is
    DPLTM's way to another width: it takes off the layer that tickets of mlp:projectWIDTH,... have in front, and the output
    layer. The other modes are controls: masks with new weights, weights under masks shuffled within each layer, and both at
    random.

    Examples:
        dpltm tickets transfer digits.tickets --dataset mnist --out mnist.tickets
        # tickets of mlp:project617,300,100, on records of 617 features
        dpltm tickets transfer kuzushiji.tickets --dataset isolet --mode drop-projection --out isolet.tickets
        # the control: the same sparsity at random
        dpltm tickets transfer digits.tickets@5 --dataset mnist --mode random --out random.tickets
    """

    set: str = option(None, "Ticket set, or one of its rounds.", "SET[@ROUND]", argument=True)
    start_provenance: str | None = option(None, "What weights of `model` depend on.", choices=("data-free", "public"))
