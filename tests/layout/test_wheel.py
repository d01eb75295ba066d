"""The wheel: one top-level name, every module inside, nothing else."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# folder in the repository: folder in the wheel
INSTALLED_AS = {"dpltm": "dpltm", "tickets": "dpltm/tickets", "cli": "dpltm/cli"}
LEFT_BEHIND = shutil.ignore_patterns("__pycache__", "*.egg-info", ".*", "build", "dist", "runs", "sets")


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The file names in a wheel built, without a network, from a copy of the tree."""
    work = tmp_path_factory.mktemp("wheel")
    tree = shutil.copytree(ROOT, work / "tree", ignore=LEFT_BEHIND)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(work / "dist"), str(tree)]
    # cwd: at the repository root, a leftover build/ folder would be taken for the module
    built = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = (work / "dist").iterdir()
    return zipfile.ZipFile(wheel).namelist()


def test_the_only_top_level_name_is_dpltm(wheel_names: list[str]) -> None:
    top = {name.split("/")[0] for name in wheel_names}
    assert {name for name in top if not name.endswith(".dist-info")} == {"dpltm"}


@pytest.mark.parametrize("name", ["__init__.py", "tickets/__init__.py", "cli/__init__.py", "py.typed"])
def test_has(wheel_names: list[str], name: str) -> None:
    assert f"dpltm/{name}" in wheel_names


def test_holds_the_sources_and_nothing_else(wheel_names: list[str]) -> None:
    """A package or a data file that pyproject.toml forgets shows here, and so do tests and benchmarks let in."""
    sources = {
        f"{inside}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, inside in INSTALLED_AS.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    packed = {name for name in wheel_names if name.startswith("dpltm/")}
    assert sorted(sources - packed) == [], "not in the wheel: add it to packages or package-data in pyproject.toml"
    assert sorted(packed - sources) == [], "in the wheel, but in none of the source folders"


def test_leaves_tests_and_benchmarks_out(wheel_names: list[str]) -> None:
    parts = {part for name in wheel_names for part in name.split("/")}
    assert parts.isdisjoint({"tests", "benchmarks", "examples", "docs", "conftest.py"})
