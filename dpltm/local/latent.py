"""LATENT: what protocols claim, what owners and server agree on, and what either side decides for itself."""

from __future__ import annotations

from dpltm.features import metavar
from dpltm.local import BIT_PROTOCOLS, CODEBOOK, PROTOCOLS, WITH_ALPHA
from dpltm.networks import network_metavar
from dpltm.options import COUNT, EPSILON, PART, STEP_SIZE, Options, Range, option
from dpltm.options.data import DataOptions, DeltaOptions, FolderOptions, LedgerOptions, RoundOptions
from dpltm.registry import listed

STEP_SIZES = {"sgd": 0.5, "adadelta": 1.0, "adam": 0.001}  # of optimizers, on means


class EpsilonRequest(Options):
    """What a protocol of local privacy claims for a record, and what it certifies: exactly, since bits are independent.

    Examples:
        # what a claim of 0.5 certifies
        dpltm latent epsilon --protocol uer --alpha 7 --bits 92160 --epsilon 0.5
    """

    protocol: str = option("uer", "What happens to the bits.", choices=BIT_PROTOCOLS)
    bits: int = option(None, "Bits of a record: features times bits a feature.", "N")
    epsilon: float = option(None, "What the protocol claims for a record.", "E")
    alpha: float | None = option(None, f"Of {listed(WITH_ALPHA, 'and')}.", "A")
    one_hot: bool = option(False, "Only strings with a single 1 are ever sent; any string otherwise.")
    label_epsilon: float | None = option(None, "Of the label; it adds up.", "E", shown="public", within=EPSILON)
    copies: int = option(1, "Copies of a record that are sent; they add up.", "N", within=Range(1, 10**6))


class SchemeOptions(Options):
    """How a record becomes what is sent, and the public records that this is settled by."""

    public: str = option(None, "Dataset declared public.", "NAME|FILE", section="Public")
    classes: int | None = option(None, "Public number of classes.", "K", shown="as in `public`")
    bounds: str | None = option(None, "Public bounds of every value.", "LO,HI", shown="as in `public`")
    features: str = option("scatter", "What is encoded.", metavar().removeprefix("none|"), section="Features")
    protocol: str = option(CODEBOOK.name, "One index a record, or bits.", choices=PROTOCOLS, section="Protocol")
    epsilon: float = option(None, "What the protocol claims for a record.", "E", within=EPSILON)
    alpha: float | None = option(None, f"Of {listed(WITH_ALPHA, 'and')}.", "A")
    format: str | None = option(None, "Bits before and behind the point, after a sign.", "WHOLE,FRACTION", shown="0,0")
    label_epsilon: str | None = option(None, "Of bits: epsilon of the label, or public labels.", "E|public")


class SchemeRequest(FolderOptions, LedgerOptions, SchemeOptions):
    """Agree on how records are randomised, before any is: features, their public statistics, protocol, budget.

    The records of `public` are declared public in their ledger. The folder that is written is public: every owner encodes
    with it (dpltm latent encode), and the server trains with it (dpltm latent train).

    Examples:
        dpltm latent scheme --public mnist --features drawings --epsilon 4 --out images.scheme
    """


class EncodeRequest(DeltaOptions, LedgerOptions, DataOptions):
    """Randomise records where they are; what is written may leave the machine.

    Every record is encoded by SCHEME with coins of its own. Encoding a record again is another release of it, which adds up
    in the ledger.

    Examples:
        dpltm latent encode images.scheme --dataset mine.npz --out mine.msg
    """

    scheme: str = option(None, "Folder made by dpltm latent scheme.", "SCHEME", argument=True)
    augment: int = option(0, "More messages, of each image varied; each costs as much.", "N", within=Range(0, 100))
    out: str = option(None, "File to write.", "FILE")
    dry_run: bool = option(False, "Check everything and print what would be sent.")


class TrainRequest(FolderOptions, RoundOptions):
    """Train a network on messages of dpltm latent encode.

    Whatever happens here costs nothing more. With `test`, accuracy is measured on public records as they are and, of bits,
    randomised as the private ones were. Messages of a codebook make a network on features, which dpltm predict and evaluate
    take; there options of bits do nothing.

    Examples:
        # all messages of a folder, tested on public records
        dpltm latent train images.scheme --messages received --test mnist --out images.run
    """

    scheme: str = option(None, "Folder of a scheme.", "SCHEME", argument=True, section="Messages")
    messages: str = option(None, "Files of dpltm latent encode, or folders of *.msg.", "FILE|DIR,...")
    test: str | None = option(None, "Dataset whose test split is public, to measure accuracy on.", "NAME|FILE")
    model: str | None = option(
        None, "Network of bits.", network_metavar("vectors"), shown="mlp:128", section="Training"
    )
    inputs: str | None = option(
        None, "Bits as they came, or what they mean.", choices=("means", "bits"), shown="means"
    )
    dropout: float = option(0.0, "Share of the last layer's inputs that a step leaves out.", "X", within=PART)
    epochs: float = option(5.0, "Passes over the messages.", "N", within=Range(high=10_000, above=True))
    batch_size: int = option(64, "Messages per step.", "N", within=COUNT)
    optimizer: str = option("sgd", "Optimizer.", choices=tuple(STEP_SIZES))
    lr: float | None = option(None, "Step size.", "X", shown="by optimizer and inputs", within=STEP_SIZE)
