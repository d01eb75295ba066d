"""The Typer application and the one place that turns errors into exit codes."""

from __future__ import annotations

import os
import signal
import sys
from typing import Annotated

import typer

from dpltm.cli import (
    datasets,
    demo,
    evaluate,
    generate,
    latent,
    privacy,
    select,
    tickets,
    train,
    tune,
)
from dpltm.cli import run as run_all
from dpltm.cli.options import in_flags, register
from dpltm.errors import DpltmError
from dpltm.options import datasets as records
from dpltm.options import latent as messages
from dpltm.options import privacy as prices
from dpltm.options import tickets as sets
from dpltm.options.evaluate import EvaluateRequest
from dpltm.options.generate import GenerateRequest
from dpltm.options.predict import PredictRequest
from dpltm.options.run import DemoRequest, RunRequest
from dpltm.options.select import SelectRequest
from dpltm.options.train import TrainRequest
from dpltm.options.transfer import TransferRequest
from dpltm.options.tune import TuneRequest

INTERRUPTED = "interrupted; what the ledger entered stays entered"

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Lottery tickets under differential privacy: generate, select, train, and one ledger of what it cost.",
)
register(app, "generate", GenerateRequest, generate.command)
register(app, "select", SelectRequest, select.command)
register(app, "train", TrainRequest, train.command)
register(app, "run", RunRequest, run_all.command)
register(app, "tune", TuneRequest, tune.command)
register(app, "evaluate", EvaluateRequest, evaluate.evaluate_command)
register(app, "predict", PredictRequest, evaluate.predict_command)
artifacts = typer.Typer(no_args_is_help=True, help="Ticket sets: look at them, check, hand on, shrink, carry over.")
register(artifacts, "ls", sets.ListRequest, tickets.list_command)
register(artifacts, "show", sets.ShowRequest, tickets.show_command)
register(artifacts, "verify", sets.VerifyRequest, tickets.verify_command)
register(artifacts, "export", sets.ExportRequest, tickets.export_command)
register(artifacts, "import", sets.ImportRequest, tickets.import_command)
register(artifacts, "compact", sets.CompactRequest, tickets.compact_command)
register(artifacts, "transfer", TransferRequest, tickets.transfer_command)
app.add_typer(artifacts, name="tickets")
accountant = typer.Typer(
    no_args_is_help=True, help="The accountant on its own: what settings cost, what a ledger says."
)
register(accountant, "epsilon", prices.EpsilonOptions, privacy.epsilon_command)
register(accountant, "noise", prices.NoiseOptions, privacy.noise_command)
register(accountant, "curve", prices.CurveOptions, privacy.curve_command)
register(accountant, "ledger", prices.LedgerOptions, privacy.ledger_command)
register(accountant, "budget", prices.BudgetOptions, privacy.budget_command)
app.add_typer(accountant, name="privacy")
local = typer.Typer(no_args_is_help=True, help="Local privacy (LATENT): records randomised before they leave.")
register(local, "epsilon", messages.EpsilonOptions, latent.epsilon_command)
register(local, "scheme", messages.SchemeRequest, latent.scheme_command)
register(local, "encode", messages.EncodeRequest, latent.encode_command)
register(local, "train", messages.TrainRequest, latent.train_command)
app.add_typer(local, name="latent")
data = typer.Typer(no_args_is_help=True, help="What data is at hand.")
register(data, "ls", records.ListRequest, datasets.list_command)
register(data, "info", records.InfoRequest, datasets.info_command)
app.add_typer(data, name="datasets")
register(app, "demo", DemoRequest, demo.command)


def _version(asked: bool) -> None:
    if asked:
        from dpltm import __version__

        print(f"dpltm {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Options before the command."""


def main() -> None:
    """Entry point of ``dpltm``; exits with 0 (done), 1 (refused or found wanting), 2 (bad usage or input)."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a batch system's stop tidies up as Ctrl-C does
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Runs one command line and returns its exit code; errors become one line on standard error."""
    try:
        code = app(arguments, prog_name="dpltm", standalone_mode=False) or 0
        sys.stdout.flush()  # a reader that has left shows here, not in the interpreter's last moments
        return _fail(INTERRUPTED, code) if code == 130 else code
    except DpltmError as error:
        return _fail(in_flags(str(error)), error.exit_code)
    except typer.exceptions.TyperException as error:
        message = error.format_message()
        return _fail(message.rstrip("."), 2) if message else 2
    except (KeyboardInterrupt, typer.Abort):
        return _fail(INTERRUPTED, 130)
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
