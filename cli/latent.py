"""``dpltm latent epsilon``: what a protocol of local privacy claims, and what it keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dpltm.cli.common import check_epsilon, figure
from dpltm.cli.console import Console
from dpltm.cli.options import Call, option
from dpltm.errors import InputError
from dpltm.local.protocols import BIT_PROTOCOLS, PROTOCOLS, UER, WITH_ALPHA
from dpltm.registry import listed

if TYPE_CHECKING:
    from rich.console import Console as RichConsole

    from dpltm.local.channels import Channel

MOST_COPIES = 10**6


@dataclass(frozen=True)
class EpsilonOptions:
    """What a protocol of local privacy claims for a record, and what it certifies: exactly, since bits are independent.

    Give --epsilon, the claim. Or give --certified, what you want to hold: the largest claim that certifies it is found; for
    uer, whose claim decides little, the largest --alpha at that --epsilon.
    """

    protocol: str = option(UER.name, "What happens to the bits.", choices=BIT_PROTOCOLS)
    bits: int | None = option(None, "Bits of a record: features times bits a feature.", metavar="N", required=True)
    epsilon: float | None = option(None, "What the protocol claims for a record: the nominal figure.", metavar="E")
    alpha: float | None = option(None, f"Of {listed(WITH_ALPHA, 'and')}.", metavar="A")
    certified: float | None = option(None, "Find the setting that certifies this.", metavar="E")
    one_hot: bool = option(False, "Only strings with a single 1 are ever sent; any string otherwise.")
    label_epsilon: float | None = option(
        None,
        "Epsilon of the randomised response that sends the label of each copy; it adds up.",
        metavar="E",
        shown="label public",
    )
    copies: int = option(1, "Copies of a record that are sent, each with coins of its own; they add up.", metavar="N")


def epsilon_command(options: EpsilonOptions, call: Call) -> None:
    """Runs ``dpltm latent epsilon`` and prints its answer."""
    body = _epsilon(options)
    Console(call.json, call.quiet).result(body, lambda rich: _show_epsilon(rich, body))


def _epsilon(options: EpsilonOptions) -> dict[str, Any]:
    check_epsilon("--label-epsilon", options.label_epsilon)
    if not 1 <= options.copies <= MOST_COPIES:
        raise InputError(f"--copies: {options.copies} is not a whole number from 1 to {MOST_COPIES:,}")
    label, protocol = options.label_epsilon or 0.0, PROTOCOLS[options.protocol]
    epsilon, alpha, found = _setting(options, label)
    notes = ["neighbours are any two records (replace-one); what a server does with the bits costs nothing more"]
    if protocol.one_hot and not options.one_hot:
        notes.append(
            f"{options.protocol} claims its epsilon for strings with a single 1 (--one-hot); these are any strings"
        )
    if protocol.caveat:
        notes.append(protocol.caveat)
    if options.label_epsilon is None:
        notes.append("the label is not counted: it is public, or its --label-epsilon adds to this")
    if options.copies > 1:
        notes.append(
            f"{options.copies} copies of a record are {options.copies} releases, which the claim does not count"
        )
    return {
        "protocol": options.protocol,
        "bits": options.bits,
        "epsilon": epsilon,
        "alpha": alpha,
        "one_hot": options.one_hot,
        "copies": options.copies,
        "label_epsilon": options.label_epsilon,
        "p": [bit.chances[0] for bit in found.pattern],
        "q": [bit.chances[1] for bit in found.pattern],
        "nominal": epsilon + label,
        "certified": options.copies * (found.certified(options.one_hot) + label),
        "notes": notes,
    }


def _setting(options: EpsilonOptions, label: float) -> tuple[float, float | None, Channel]:
    """Nominal epsilon, alpha, and the channel; found, if that is what is asked for."""
    from dpltm.local.calibration import largest_alpha, largest_epsilon
    from dpltm.local.channels import channel

    protocol, bits = options.protocol, options.bits or 0
    if options.certified is None:
        if options.epsilon is None:
            raise InputError(
                "--epsilon is missing: what the protocol claims, such as 0.5 (or --certified, what shall hold)"
            )
        return options.epsilon, options.alpha, channel(protocol, bits, options.epsilon, options.alpha)
    wanted = options.certified / options.copies - label
    if wanted <= 0:
        raise InputError(
            f"--certified: {options.certified:g} is all spent on the label; raise it, or lower --label-epsilon"
        )
    if PROTOCOLS[protocol].alpha_decides and options.alpha is None:
        if options.epsilon is None:
            raise InputError(f"--epsilon is missing: what {protocol} shall claim; --alpha is found for it")
        alpha, found = largest_alpha(protocol, bits, wanted, options.epsilon, options.one_hot)
        return options.epsilon, alpha, found
    if options.epsilon is not None:
        raise InputError("--epsilon, --certified: one of them decides; leave one out")
    epsilon, found = largest_epsilon(protocol, bits, wanted, options.alpha, options.one_hot)
    return epsilon, options.alpha, found


def _show_epsilon(rich: RichConsole, body: dict[str, Any]) -> None:
    from dpltm.cli.show import show_notes, show_pairs

    shown = ("protocol", "bits", "epsilon", "alpha", "copies", "label_epsilon", "p", "q")
    show_pairs(rich, "local privacy of a record", {name: body[name] for name in shown})
    rich.print(
        f"certified epsilon = {figure(body['certified'], 7)} (replace-one, unit record, delta = 0)", style="bold"
    )
    rich.print(f"nominal epsilon = {figure(body['nominal'])} (claimed by: {body['protocol']})")
    show_notes(rich, body)
