"""The commands by name, and the one place that turns errors into exit codes."""

from __future__ import annotations

import os
import signal
import sys
from typing import Annotated, Any

import typer
import typer.main

from dpltm import __version__
from dpltm.cli.commands import Group, group, laters, usage_message
from dpltm.errors import CodeError, DpltmError, Interrupted, in_flags, one_line
from dpltm.training.launcher import speaks

INTERRUPTED = "interrupted; what the ledger entered stays entered"

COMMANDS = [
    *laters(
        "generate", "select", "train", "run", "tune", "evaluate", "evaluate:predict", "evaluate:export", "audit",
        "evaluate:compare", "evaluate:report", "run:demo",
    ),
    group(
        "tickets", "Ticket sets: show, check, export, import, shrink, transfer.",
        ("ls", "show", "verify", "export", "import", "compact", "transfer"),
        "dpltm tickets ls", "dpltm tickets show digits.tickets",
    ),
    group(
        "privacy", "The accountant alone: what settings cost, and what a ledger holds.",
        ("epsilon", "noise", "curve", "ledgers:ledger", "ledgers:check", "ledgers:budget", "ledgers:apart"),
        "dpltm privacy noise --epsilon 1 --sampling-rate 256/60000 --steps 3516",
        "dpltm privacy ledger digits.ledger.jsonl",
    ),
    group(
        "latent", "Local privacy (LATENT): records randomised before they leave.",
        ("epsilon", "scheme", "encode", "train"),
        "# the server's side, then an owner's, then the server's again",
        "dpltm latent scheme --public mnist --features drawings --epsilon 4 --out images.scheme",
        "dpltm latent encode images.scheme --dataset mine.npz --out mine.msg",
        "dpltm latent train images.scheme --messages mine.msg --test mnist --out images.run",
    ),
    group(
        "datasets", "Datasets: list, fetch, describe, and the schema of a table.",
        ("ls", "fetch", "info", "schema"),
        "dpltm datasets ls", "dpltm datasets info digits",
    ),
]  # fmt: skip
"""In the order of the help: HOME:NAME where the module of a command has another name."""


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
        return _fail(in_flags(message), 2) if message else 2
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
