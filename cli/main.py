"""The commands by name, and the one place that turns errors into exit codes."""

from __future__ import annotations

import os
import signal
import sys
from typing import Annotated, Any

import typer
import typer.main

from dpltm import __version__
from dpltm.cli.commands import Group, laters, usage_message
from dpltm.errors import CodeError, DpltmError, Interrupted, in_flags, one_line
from dpltm.training.launcher import speaks

INTERRUPTED = "interrupted; what the ledger entered stays entered"

LATENT_EXAMPLES = """\
# the server's side, then an owner's, then the server's again
dpltm latent scheme --public mnist --features drawings --epsilon 4 --out images.scheme
dpltm latent encode images.scheme --dataset mine.npz --out mine.msg
dpltm latent train images.scheme --messages mine.msg --test mnist --out images.run"""

COMMANDS = [
    *laters({
        "generate": "Phase 1: make lottery tickets by iterative pruning and write them as a ticket set.",
        "select": "Phase 2: draw the winning ticket on private records under differential privacy.",
        "train": "Phase 3: train a ticket under differential privacy (DP-SGD on its live coordinates).",
        "run": "All three stages from one TOML file, under one budget that is split between selection and training.",
        "tune": "Searches the settings of a private training on public records, at no cost.",
        "evaluate": "Accuracy of a run's model on the test split of a dataset, or on all records of `input`.",
        "evaluate:predict": "Class and class probabilities that a run's model gives to records without labels.",
        "evaluate:export": "A run's trained network for use without dpltm: with its scaling, encoding and features, in one folder.",  # noqa: E501
        "audit": "Attack a claim: lower bounds on epsilon, beside what is certified and what is claimed.",
        "evaluate:compare": "Runs in one table: accuracy with its interval, both epsilons, density, parameters.",
        "evaluate:report": "One page about a run: what was done, what that guarantees, and what it means.",
        "run:demo": "The three stages on the embedded digits: one half is the public source of tickets, the other half is private.",  # noqa: E501
    }),
    Group(
        name="tickets",
        help="Ticket sets: show, check, export, import, shrink, transfer.",
        epilog="dpltm tickets ls\ndpltm tickets show digits.tickets",
        no_args_is_help=True,
        commands=laters({
            "tickets:ls": "The ticket sets in a folder.",
            "tickets:show": "What a ticket set is, where it comes from and what it costs to use; with @ROUND, one ticket layer by layer.",  # noqa: E501
            "tickets:verify": "Checks everything about a ticket set: sizes, shapes, counts, nesting, ids, digests, its card and its lineage.",  # noqa: E501
            "tickets:export": "Writes a ticket set for other people, or one ticket for other tools.",
            "tickets:import": "Makes a ticket set from a model pruned by torch.nn.utils.prune: its state dict as a safetensors file.",  # noqa: E501
            "tickets:compact": "Removes the parts of a network that its mask makes useless: a smaller network with the same answers.",  # noqa: E501
            "tickets:transfer": "Makes tickets for other records: another input width, image size, number of channels or of classes.",  # noqa: E501
        }),
    ),
    Group(
        name="privacy",
        help="The accountant alone: what settings cost, and what a ledger holds.",
        epilog="dpltm privacy noise --epsilon 1 --sampling-rate 256/60000 --steps 3516\ndpltm privacy ledger digits.run/ledger.jsonl",  # noqa: E501
        no_args_is_help=True,
        commands=laters({
            "privacy:epsilon": "What a training costs, by every accountant; or other releases, from all records each.",
            "privacy:noise": "The least noise that a budget allows.",
            "privacy:curve": "What an attacker can do: the trade-off between false alarms and misses, and delta against epsilon.",  # noqa: E501
            "ledgers:ledger": "Explain a ledger line by line, and recompute its total from the file alone; or the total of several ledgers.",  # noqa: E501
            "ledgers:check": "Compute the figures of a card or a page again, from the entries in it, and say what differs.",
            "ledgers:budget": "Show the budget that a ledger sets on its population, or set one.",
            "ledgers:apart": "Declare that another population has nobody in common with that of a ledger.",
        }),
    ),
    Group(
        name="latent",
        help="Local privacy (LATENT): records randomised before they leave.",
        epilog=LATENT_EXAMPLES,
        no_args_is_help=True,
        commands=laters({
            "latent:epsilon": "What a protocol of local privacy claims for a record, and what it certifies: exactly, since bits are independent.",  # noqa: E501
            "latent:scheme": "Agree on how records are randomised, before any is: features, their public statistics, protocol, budget.",  # noqa: E501
            "latent:encode": "Randomise records where they are; what is written may leave the machine.",
            "latent:train": "Train a network on messages of dpltm latent encode.",
        }),
    ),
    Group(
        name="datasets",
        help="Datasets: list, fetch, describe, and the schema of a table.",
        epilog="dpltm datasets ls\ndpltm datasets info digits",
        no_args_is_help=True,
        commands=laters({
            "datasets:ls": "The datasets known by name, and whether their file is at hand.",
            "datasets:fetch": "Download a dataset that is known by name, from OpenML, into the data home.",
            "datasets:info": "The public facts about a dataset, checked by loading it. Nothing is computed from its private values.",  # noqa: E501
            "datasets:schema": "The public schema of a table: what its columns hold, so that words, dates and holes become numbers.",  # noqa: E501
        }),
    ),
]  # fmt: skip
"""In the order of the help: the module of each command, where it has another name, and the first paragraph of its help."""


EXAMPLES = """\
# the three stages on a small dataset, in some ten seconds
dpltm demo
# the same, one by one
dpltm generate --dataset digits --subset 0.0:0.5 --provenance public --out digits.tickets
dpltm select digits.tickets --dataset digits --subset 0.5:1.0 --score additive --eps1 0.1
dpltm train digits.tickets --dataset digits --subset 0.5:1.0 --epsilon 3 --out digits.run"""


def _version(asked: bool) -> None:
    if asked:
        print(f"dpltm {__version__}")
        raise typer.Exit


root = typer.Typer(
    no_args_is_help=True,
    cls=Group,
    help="Lottery tickets under differential privacy: generate, select, train, and one ledger of what it cost.",
    epilog=EXAMPLES,
)


@root.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    """Options before the command."""


app: Any = typer.main.get_command(root)  # a group
for _command in COMMANDS:
    app.add_command(_command)


def main() -> None:
    """Entry point of ``dpltm``; exits with 0 (done), 1 (refused or found wanting), 2 (bad input), 130 (interrupted)."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a batch system's stop tidies up as Ctrl-C does
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started this
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - for as long as the process lives
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code; errors become one line on standard error."""
    try:
        code = app.main(arguments, prog_name="dpltm", standalone_mode=False) or 0
        sys.stdout.flush()  # a reader that has left shows here, not in the interpreter's last moments
        return _fail(INTERRUPTED, code) if code == 130 else code
    except DpltmError as error:
        if isinstance(error, CodeError) and os.environ.get("DPLTM_DEBUG"):
            raise
        return _fail(in_flags(str(error)), error.exit_code)
    except typer.exceptions.TyperException as error:
        message = usage_message(error)
        return _fail(message, 2) if message else 2
    except (KeyboardInterrupt, typer.Abort):
        return _fail(INTERRUPTED, 130)
    except Interrupted as stop:
        return _fail(str(stop), 130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        place = f"{str(error.filename)[:80]}: " if error.filename else ""
        return _fail(f"{place}{error.strerror or error}; check the path and the disk", 2)
    except Exception as error:
        if os.environ.get("DPLTM_DEBUG"):
            raise
        return _fail(
            f"internal error: {type(error).__name__}: {error}; set DPLTM_DEBUG=1 and report what it prints", 1, True
        )


def _fail(message: str, code: int, own: bool = False) -> int:
    if own or speaks():
        print("error: " + one_line(message), file=sys.stderr, flush=True)
    return code


if __name__ == "__main__":
    main()
