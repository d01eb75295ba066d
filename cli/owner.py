"""Where the file of an owner of records starts (``dpltm latent owner``): it prints what came of its command line."""

from __future__ import annotations

import os
import sys

from dpltm.tickets.workbench.owner_main import run_owner


def main() -> None:
    """Exits with 0 (done), 1 (refused), 2 (bad usage or input) or 130 (interrupted)."""
    code, text = run_owner(sys.argv[1:])
    try:
        print(text, file=sys.stderr if code else sys.stdout, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)
