"""Options of the accountant on its own."""

from __future__ import annotations

from dpltm.options import COUNT, EPSILON, POSITIVE, Range, option
from dpltm.options.data import GuaranteeOptions
from dpltm.privacy.accountants import ACCOUNTANTS
from dpltm.privacy.checks import MAX_NOISE

DRAWS = ("exponential", "permute-and-flip")
PLAIN = ("gaussian", "laplace", "randomized-response")

MAX_RELEASES = 100_000  # that are not a training's, one by one


class SettingOptions(GuaranteeOptions):
    """Training: its public settings, as the accountant sees them."""

    sampling_rate: str | None = option(None, "Chance to enter a step, as 0.01 or 256/60000.", "Q", section="Training")
    sampling: str | None = option(None, "Each by a coin, or each in K steps.", "poisson|allocation:K", shown="poisson")
    steps: int | None = option(None, "Number of noisy steps.", "T", within=COUNT)
    epochs: float | None = option(None, "Expected passes over the records, instead of `steps`.", "N", within=POSITIVE)
    eps1: float | None = option(None, "Epsilon of a draw of tickets before the training.", "E", within=EPSILON)
    mechanism: str = option("exponential", "How that draw is made.", choices=DRAWS)


class ReleaseOptions(SettingOptions):
    """Training, or other releases in its place."""

    noise_multiplier: float | None = option(
        None, "Noise over sensitivity.", "S", section="Training", within=Range(high=MAX_NOISE, above=True)
    )
    mechanism: str = option("exponential", "How that draw is made; or another release.", choices=(*DRAWS, *PLAIN))
    categories: int = option(2, "Of randomized-response.", "K", within=Range(2, 10**9))
    group: int = option(1, "Records that are protected together.", "N", within=Range(1, MAX_RELEASES))


class EpsilonRequest(ReleaseOptions):
    """What a training costs, by every accountant; or other releases, from all records each.

    pld is the certified figure; rdp and ma are certified too, and looser. clt is an approximation that promises nothing.
    With `mechanism` gaussian or laplace, `noise_multiplier` is the deviation, or the scale, over the L2, or L1, sensitivity;
    with randomized-response, `eps1` is the epsilon of one answer. `steps` is how many there are, by default 1.

    Examples:
        dpltm privacy epsilon --noise-multiplier 1.1 --sampling-rate 256/60000 --epochs 15 --delta 1e-5
        # ten counts with Laplace noise of scale 20, for groups of three records
        dpltm privacy epsilon --mechanism laplace --noise-multiplier 20 --steps 10 --group 3
    """


class NoiseRequest(SettingOptions):
    """The least noise that a budget allows.

    The certified epsilon is then at most `epsilon`, and within 0.1 % of it.

    Examples:
        dpltm privacy noise --epsilon 1 --sampling-rate 256/60000 --steps 3516
    """

    epsilon: float = option(None, "Whole budget, a draw (`eps1`) included.", "E", within=EPSILON)
    accountant: str = option("pld", "Accountant to calibrate by; clt can satisfy no budget.", choices=ACCOUNTANTS)


class CurveRequest(ReleaseOptions):
    """What an attacker can do: the trade-off between false alarms and misses, and delta against epsilon.

    For the settings of one training, for other releases (`mechanism`, as in privacy epsilon), or for everything in a ledger.

    Examples:
        dpltm privacy curve --noise-multiplier 1.1 --sampling-rate 256/60000 --epochs 15 --plot curve.png
        # of everything in a ledger
        dpltm privacy curve --ledger digits.ledger.jsonl
    """

    ledger: str | None = option(None, "Ledger file, instead of settings.", "FILE")
    plot: str | None = option(None, "Picture to write.", "FILE.png|.svg|.pdf")
