"""What a protocol of local privacy claims for a record, and what it certifies."""

from __future__ import annotations

from dataclasses import dataclass

from dpltm.errors import InputError
from dpltm.local.calibration import largest_alpha, largest_epsilon
from dpltm.local.channels import Channel, channel
from dpltm.local.protocols import PROTOCOLS
from dpltm.options.latent import MAX_COPIES, EpsilonOptions
from dpltm.stages.checks import check_epsilon


@dataclass(frozen=True)
class LocalClaim:
    """A claim beside what holds, for neighbours that are any two records.

    Attributes:
        epsilon, alpha: of the protocol; as given, or found for what is to be certified.
        channel: what happens to the bits.
        nominal: what the protocol claims for a record and its label.
        certified: what all copies of a record and its label are worth.
        notes: what the figures do not say.
    """

    epsilon: float
    alpha: float | None
    channel: Channel
    nominal: float
    certified: float
    notes: tuple[str, ...]


def local_claim(options: EpsilonOptions) -> LocalClaim:
    """Both figures of a setting, or of the one that certifies what is wanted.

    Raises:
        InputError: options that are out of range or contradict each other.
        CalibrationError: no setting certifies what is wanted.
    """
    check_epsilon("label_epsilon", options.label_epsilon)
    if not 1 <= options.copies <= MAX_COPIES:
        raise InputError("copies", options.copies, f"a whole number from 1 to {MAX_COPIES:,}")
    label = options.label_epsilon or 0.0
    epsilon, alpha, bits = _setting(options, label)
    certified = options.copies * (bits.certified(options.one_hot) + label)
    return LocalClaim(epsilon, alpha, bits, epsilon + label, certified, tuple(_notes(options)))


def _setting(options: EpsilonOptions, label: float) -> tuple[float, float | None, Channel]:
    """Nominal epsilon, alpha, and the channel; found, if that is what is asked for."""
    protocol, bits = options.protocol, options.bits or 0
    if options.certified is None:
        if options.epsilon is None:
            raise InputError(
                "`epsilon` is missing: what the protocol claims, such as 0.5 (or `certified`, what shall hold)"
            )
        return options.epsilon, options.alpha, channel(protocol, bits, options.epsilon, options.alpha)
    wanted = options.certified / options.copies - label
    if wanted <= 0:
        raise InputError(
            f"`certified`: {options.certified:g} is all spent on the label; raise it, or lower `label_epsilon`"
        )
    if PROTOCOLS[protocol].alpha_decides and options.alpha is None:
        if options.epsilon is None:
            raise InputError(f"`epsilon` is missing: what {protocol} shall claim; `alpha` is found for it")
        alpha, bit_channel = largest_alpha(protocol, bits, wanted, options.epsilon, options.one_hot)
        return options.epsilon, alpha, bit_channel
    if options.epsilon is not None:
        raise InputError("`epsilon`, `certified`: one of them decides; leave one out")
    epsilon, bit_channel = largest_epsilon(protocol, bits, wanted, options.alpha, options.one_hot)
    return epsilon, options.alpha, bit_channel


def _notes(options: EpsilonOptions) -> list[str]:
    protocol = PROTOCOLS[options.protocol]
    notes = ["neighbours are any two records (replace-one); what a server does with the bits costs nothing more"]
    if protocol.one_hot and not options.one_hot:
        notes.append(
            f"{options.protocol} claims its epsilon for strings with a single 1 (`one_hot`); these are any strings"
        )
    if protocol.caveat:
        notes.append(protocol.caveat)
    if options.label_epsilon is None:
        notes.append("the label is not counted: it is public, or its `label_epsilon` adds to this")
    if options.copies > 1:
        notes.append(
            f"{options.copies} copies of a record are {options.copies} releases, which the claim does not count"
        )
    return notes
