"""Help costs no heavy import: those are what would make the command line slow to answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from dpltm.cli.commands import Later, paragraphs_of
from dpltm.cli.main import COMMANDS

LIBRARIES = ["torch", "sklearn", "scipy", "dp_accounting"]
HEAVY = [*LIBRARIES, "numpy", "rich.markdown", "dpltm.options.data", "dpltm.options.train"]

SCRIPT = f"""
import json, sys
sys.argv = ["dpltm", "--help"]
try:
    from dpltm.cli.main import main
    main()
    code = 0
except SystemExit as leaving:
    code = leaving.code or 0
print(json.dumps({{"code": code, "heavy": [name for name in {HEAVY!r} if name in sys.modules]}}), file=sys.stderr)
"""


def test_help_imports_nothing_heavy(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=tmp_path,
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Usage:" in done.stdout
    assert json.loads(done.stderr.splitlines()[-1]) == {"code": 0, "heavy": []}


def test_groups_say_what_their_commands_say() -> None:
    """A group shows the first paragraph of each command's help without importing the command."""
    entries = [entry for one in COMMANDS for entry in getattr(one, "commands", {"": one}).values()]
    assert len(entries) > 20
    for entry in entries:
        assert isinstance(entry, Later)
        assert entry.summary == paragraphs_of(entry.options.resolve())[0]
        assert entry.command.name == entry.name


def test_registries_import_nothing_heavy() -> None:
    """What help and refusals are read off: names, parameters, defaults."""
    registries = "dpltm.filters, dpltm.local, dpltm.networks, dpltm.options, dpltm.criteria, dpltm.registry"
    script = f"import sys, {registries}; print([name for name in {LIBRARIES!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout == "[]\n", done.stderr


def test_what_computes_no_gradient_imports_no_torch() -> None:
    """The accountant, ledgers and the list of datasets."""
    modules = ", ".join(
        ("dpltm.cli.privacy", "dpltm.cli.ledgers", "dpltm.cli.datasets", "dpltm.tickets.workbench.records")
    )
    script = f"import sys, {modules}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_training_imports_no_more_than_it_needs(tmp_path: Path) -> None:
    """No compiler, whatever the optimizer, and no library that only tests, other datasets and other mechanisms need."""
    unneeded = ["torch._dynamo", "sklearn", "matplotlib", "kymatio", "dp_accounting", "scipy.signal", "scipy.stats"]
    script = (
        "import sys, torch; from dpltm.cli.main import run; from dpltm.training.optimizers import OPTIMIZERS;"
        "p = torch.ones(3, requires_grad=True); p.grad = torch.ones(3);"
        "[make([p]).step(0.1) for make in OPTIMIZERS.values()];"
        "code = run('train --dataset digits --dense --steps 2 --epsilon 3 --out run --quiet'.split());"
        f"print(code, [name for name in {unneeded!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "0 []\n", done.stderr
