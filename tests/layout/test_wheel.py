"""The wheel: one top-level name, every module inside, nothing else."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from programs import ROOT

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
