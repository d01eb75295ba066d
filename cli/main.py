"""The commands by name, and the one place that turns errors into exit codes."""

from __future__ import annotations

import os
import signal
import sys
from typing import Annotated

import typer
import typer.main

from dpltm import __version__
from dpltm.cli.commands import Group, Later
from dpltm.errors import DpltmError, Interrupted, in_flags
from dpltm.registry import Deferred

INTERRUPTED = "interrupted; what the ledger entered stays entered"


COMMANDS = [
    Later(
        "generate",
        "Phase 1: make lottery tickets by iterative pruning and write them as a ticket set.",
        Deferred("dpltm.options.generate:GenerateRequest"),
        Deferred("dpltm.cli.generate:command"),
    ),
    Later(
        "select",
        "Phase 2: draw the winning ticket on private records under differential privacy.",
        Deferred("dpltm.options.select:SelectRequest"),
        Deferred("dpltm.cli.select:command"),
    ),
    Later(
        "train",
        "Phase 3: train a ticket under differential privacy (DP-SGD on its live coordinates).",
        Deferred("dpltm.options.train:TrainRequest"),
        Deferred("dpltm.cli.train:command"),
    ),
    Later(
        "run",
        "All three stages from one TOML file, under one budget that is split between selection and training.",
        Deferred("dpltm.options.run:RunRequest"),
        Deferred("dpltm.cli.run:command"),
    ),
    Later(
        "tune",
        "Searches the settings of a private training on a public dataset, under the same budget and noise.",
        Deferred("dpltm.options.tune:TuneRequest"),
        Deferred("dpltm.cli.tune:command"),
    ),
    Later(
        "evaluate",
        "Accuracy of a run's model on the test split of a dataset.",
        Deferred("dpltm.options.evaluate:EvaluateRequest"),
        Deferred("dpltm.cli.evaluate:evaluate_command"),
    ),
    Later(
        "predict",
        "Class and class probabilities that a run's model gives to records without labels.",
        Deferred("dpltm.options.predict:PredictRequest"),
        Deferred("dpltm.cli.evaluate:predict_command"),
    ),
    Later(
        "demo",
        "The three stages on the embedded digits: one half is the public source of tickets, the other half is private.",
        Deferred("dpltm.options.run:DemoRequest"),
        Deferred("dpltm.cli.demo:command"),
    ),
    Group(
        name="tickets",
        help="Ticket sets: look at them, check, hand on, shrink, carry over.",
        no_args_is_help=True,
        commands=[
            Later(
                "ls",
                "The ticket sets in a folder, and those that come with dpltm.",
                Deferred("dpltm.options.tickets:ListRequest"),
                Deferred("dpltm.cli.tickets:list_command"),
            ),
            Later(
                "show",
                "What a ticket set is, where it comes from and what it costs to use; with @ROUND, one ticket layer by layer.",  # noqa: E501
                Deferred("dpltm.options.tickets:ShowRequest"),
                Deferred("dpltm.cli.tickets:show_command"),
            ),
            Later(
                "verify",
                "Checks everything about a ticket set: sizes, shapes, counts, nesting, ids, digests, its card and its ledger.",  # noqa: E501
                Deferred("dpltm.options.tickets:VerifyRequest"),
                Deferred("dpltm.cli.tickets:verify_command"),
            ),
            Later(
                "export",
                "Writes a ticket set for somebody else, or one ticket for other tools.",
                Deferred("dpltm.options.tickets:ExportRequest"),
                Deferred("dpltm.cli.tickets:export_command"),
            ),
            Later(
                "import",
                "Makes a ticket set from a model pruned by torch.nn.utils.prune: its state dict as a safetensors file.",
                Deferred("dpltm.options.tickets:ImportRequest"),
                Deferred("dpltm.cli.tickets:import_command"),
            ),
            Later(
                "compact",
                "Removes for good what a mask leaves without use: a smaller network that computes the same.",
                Deferred("dpltm.options.tickets:CompactRequest"),
                Deferred("dpltm.cli.tickets:compact_command"),
            ),
            Later(
                "transfer",
                "Makes tickets for other records: another input width, image size, number of channels or of classes.",
                Deferred("dpltm.options.transfer:TransferRequest"),
                Deferred("dpltm.cli.tickets:transfer_command"),
            ),
        ],
    ),
    Group(
        name="privacy",
        help="The accountant on its own: what settings cost, what a ledger says.",
        no_args_is_help=True,
        commands=[
            Later(
                "epsilon",
                "What a training costs, by every accountant.",
                Deferred("dpltm.options.privacy:EpsilonOptions"),
                Deferred("dpltm.cli.privacy:epsilon_command"),
            ),
            Later(
                "noise",
                "What a budget allows: the least noise, the most steps, or the largest sampling rate.",
                Deferred("dpltm.options.privacy:NoiseOptions"),
                Deferred("dpltm.cli.privacy:noise_command"),
            ),
            Later(
                "curve",
                "What an attacker can do: the trade-off between false alarms and misses, and delta against epsilon.",
                Deferred("dpltm.options.privacy:CurveOptions"),
                Deferred("dpltm.cli.privacy:curve_command"),
            ),
            Later(
                "ledger",
                "Explain a ledger line by line, and recompute what it comes to from the file alone.",
                Deferred("dpltm.options.privacy:LedgerOptions"),
                Deferred("dpltm.cli.privacy:ledger_command"),
            ),
            Later(
                "budget",
                "Show the budgets that a ledger sets on records, or set one.",
                Deferred("dpltm.options.privacy:BudgetOptions"),
                Deferred("dpltm.cli.privacy:budget_command"),
            ),
            Later(
                "restore",
                "Put back what a ledger has lost, if it was deleted, shortened, replaced or is an older copy.",
                Deferred("dpltm.options.privacy:RestoreOptions"),
                Deferred("dpltm.cli.privacy:restore_command"),
            ),
            Later(
                "adopt",
                "Declare a ledger that was moved here from another machine: what it holds counts here too.",
                Deferred("dpltm.options.privacy:AdoptOptions"),
                Deferred("dpltm.cli.privacy:adopt_command"),
            ),
        ],
    ),
    Group(
        name="latent",
        help="Local privacy (LATENT): records randomised before they leave.",
        no_args_is_help=True,
        commands=[
            Later(
                "epsilon",
                "What a protocol of local privacy claims for a record, and what it certifies: exactly, since bits are independent.",  # noqa: E501
                Deferred("dpltm.options.latent:EpsilonOptions"),
                Deferred("dpltm.cli.latent:epsilon_command"),
            ),
            Later(
                "scheme",
                "Agree on how records are randomised, before any is: features, their public statistics, protocol, budget.",
                Deferred("dpltm.options.latent:SchemeRequest"),
                Deferred("dpltm.cli.latent:scheme_command"),
            ),
            Later(
                "encode",
                "Randomise records where they are; what is written may leave the machine.",
                Deferred("dpltm.options.latent:EncodeRequest"),
                Deferred("dpltm.cli.latent:encode_command"),
            ),
            Later(
                "owner",
                "Write a file by which an owner encodes her records: it needs Python and NumPy, and nothing else of dpltm.",
                Deferred("dpltm.options.latent:OwnerRequest"),
                Deferred("dpltm.cli.latent:owner_command"),
            ),
            Later(
                "train",
                "Train a network on messages of dpltm latent encode.",
                Deferred("dpltm.options.latent:TrainRequest"),
                Deferred("dpltm.cli.latent:train_command"),
            ),
        ],
    ),
    Group(
        name="features",
        help="Feature maps that come with dpltm.",
        no_args_is_help=True,
        commands=[
            Later(
                "make",
                "Makes a bundled encoder again: from a formula and a seed, and no data. Under an hour on one core.",
                Deferred("dpltm.options.features:MakeRequest"),
                Deferred("dpltm.cli.features:make_command"),
            ),
        ],
    ),
    Group(
        name="datasets",
        help="What data is at hand.",
        no_args_is_help=True,
        commands=[
            Later(
                "ls",
                "The datasets that are known by name, and whether their file is at hand.",
                Deferred("dpltm.options.datasets:ListRequest"),
                Deferred("dpltm.cli.datasets:list_command"),
            ),
            Later(
                "info",
                "The public facts about a dataset, checked by loading it. Nothing is computed from its private values.",
                Deferred("dpltm.options.datasets:InfoRequest"),
                Deferred("dpltm.cli.datasets:info_command"),
            ),
        ],
    ),
]
"""In the order of the help."""


def _version(asked: bool) -> None:
    if asked:
        print(f"dpltm {__version__}")
        raise typer.Exit


root = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    cls=Group,
    help="Lottery tickets under differential privacy: generate, select, train, and one ledger of what it cost.",
)


@root.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Options before the command."""


app = typer.main.get_group(root)
for _command in COMMANDS:
    app.add_command(_command)


def main() -> None:
    """Entry point of ``dpltm``; exits with 0 (done), 1 (refused or found wanting), 2 (bad input), 130 (interrupted)."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a batch system's stop tidies up as Ctrl-C does
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Runs one command line and returns its exit code; errors become one line on standard error."""
    try:
        code = app.main(arguments, prog_name="dpltm", standalone_mode=False) or 0
        sys.stdout.flush()  # a reader that has left shows here, not in the interpreter's last moments
        return _fail(INTERRUPTED, code) if code == 130 else code
    except DpltmError as error:
        return _fail(in_flags(str(error)), error.exit_code)
    except typer.exceptions.TyperException as error:
        message = error.format_message()
        return _fail(message.rstrip("."), 2) if message else 2
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
            f"internal error: {type(error).__name__}: {error}; set DPLTM_DEBUG=1 and report what it prints", 1
        )


def _fail(message: str, code: int) -> int:
    print("error: " + " ".join(message.split()), file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
