"""What makes the command line slow to answer is not imported before it is needed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dpltm.cli.commands import Later, paragraphs_of
from dpltm.cli.main import COMMANDS

LIBRARIES = ["torch", "sklearn", "scipy", "dp_accounting"]
RUN = "from dpltm.cli.main import run; assert run({!r}.split()) == 0"
TRAIN = "train --dataset digits --dense --steps 2 --epsilon 3 --out run --quiet"
PROGRAMS = {
    "help": (RUN.format("--help"), [*LIBRARIES, "numpy", "rich.markdown", "dpltm.options.data", "dpltm.options.train"]),
    "registries": (
        "import dpltm.features, dpltm.filters, dpltm.local, dpltm.networks, dpltm.options, dpltm.criteria, dpltm.registry",
        LIBRARIES,
    ),
    "accountant, ledgers and datasets": (
        "import dpltm.cli.privacy, dpltm.cli.ledgers, dpltm.cli.datasets, dpltm.tickets.workbench.records", ["torch"]
    ),
    "a training, and every optimizer": (
        "import torch; from dpltm.training.optimizers import OPTIMIZERS;"
        "p = torch.ones(3, requires_grad=True); p.grad = torch.ones(3);"
        f"[make([p]).step(0.1, 1) for make in OPTIMIZERS.values()]; {RUN.format(TRAIN)}",
        ["torch._dynamo", "sklearn", "matplotlib", "kymatio", "dp_accounting", "scipy.signal", "scipy.stats"],
    ),
}  # fmt: skip
"""Programs, and what none of their imports needs."""


@pytest.mark.parametrize("name", PROGRAMS)
def test_imports_no_more_than_it_needs(name: str, tmp_path: Path) -> None:
    program, unneeded = PROGRAMS[name]
    script = f"import sys; {program}; print('imported:', [name for name in {unneeded!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "imported: []"


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, "3000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)],
    ids=lambda value: str(value),
)
def test_threads_do_not_wait_awake_unless_they_are_told_to(given: dict[str, str], expected: str | None) -> None:
    clean = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    script = "import dpltm, os; print(os.environ.get('GOMP_SPINCOUNT'))"
    done = subprocess.run(
        [sys.executable, "-c", script], env=clean | given, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(expected)


def test_groups_say_what_their_commands_say() -> None:
    """A group shows the first paragraph of each command's help without importing the command."""
    entries = [entry for one in COMMANDS for entry in getattr(one, "commands", {"": one}).values()]
    assert len(entries) > 20
    for entry in entries:
        assert isinstance(entry, Later)
        assert entry.summary == paragraphs_of(entry.options.resolve())[0]
        assert entry.command.name == entry.name
