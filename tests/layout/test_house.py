"""Limits of the house, as `scripts/house.py` measures them; what the wheel holds, and what starting imports."""

import ast
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from dpltm.cli.commands import Later, paragraphs_of
from dpltm.cli.main import COMMANDS
from programs import ROOT, program

house = program("scripts/house.py")


@pytest.fixture(scope="module")
def figures() -> dict[str, object]:
    house.options = house.request = lambda _: {}  # which would start the command line
    return house.measure(ROOT)


@pytest.mark.parametrize(
    ("what", "most"),
    [
        ("functions above 80 lines", 0),
        ("functions with more than 8 parameters", 4),
        ("circles", 0),
        ("circles of packages", 0),
        ("floors of packages", 10),
        ("longest chain of imports", 18),
        ("imports inside functions", 30),
        ("raises naming flags in dpltm", 0),
        ("public functions of three or more parameters without Args", 0),
        ("words of README", 900),
    ],
)
def test_limits(figures: dict[str, object], what: str, most: int) -> None:
    assert isinstance(figures[what], int)
    assert figures[what] <= most


def test_every_public_name_is_in_the_source() -> None:
    found = {
        name
        for module, path in house.modules(ROOT)
        for name, _ in house.public(module, ast.parse(path.read_text(encoding="utf-8")))
    }
    assert [one for one in house.PUBLIC if not any(f"{name}.".startswith(f"{one}.") for name in found)] == []


# --- the wheel: one top-level name, every module inside, nothing else ---

# folder in the repository: folder in the wheel
INSTALLED_AS = {"dpltm": "dpltm", "tickets": "dpltm/tickets", "cli": "dpltm/cli"}
LEFT_BEHIND = shutil.ignore_patterns("__pycache__", "*.egg-info", ".*", "build", "dist", "runs", "sets")


def test_the_wheel_holds_the_sources_and_nothing_else(tmp_path: Path) -> None:
    """Built, without a network, from a copy of the tree.

    A package or a data file that pyproject.toml forgets shows here, and so do tests and benchmarks let in.
    """
    tree = shutil.copytree(ROOT, tmp_path / "tree", ignore=LEFT_BEHIND)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path / "dist", tree]
    # cwd: at the repository root, a leftover build/ folder would be taken for the module
    built = subprocess.run(build, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = (tmp_path / "dist").iterdir()
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    sources = {
        f"{inside}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, inside in INSTALLED_AS.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {"dpltm/__init__.py", "dpltm/py.typed"} <= sources
    assert sorted(sources - packed) == [], "not in the wheel: add it to packages or package-data in pyproject.toml"
    assert sorted(packed - sources) == [], "in the wheel, but in none of the source folders"


# --- what makes the command line slow to answer is not imported before it is needed ---

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
        assert entry.summary == paragraphs_of(entry.options.resolve().__doc__)[0]
        assert entry.command.name == entry.name
