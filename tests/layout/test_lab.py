"""The lab can be taken out: LATENT, audits and recipes of several arms, with their commands. Nothing outside imports it."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from programs import ROOT, program

modules = program("scripts/house.py").modules

LAB = (
    "dpltm.cli.lab",
    "dpltm.experiments",
    "dpltm.local",
    "dpltm.options.audit",
    "dpltm.tickets.workbench.latent",
    "dpltm.tickets.workbench.recipes",
    "dpltm.tickets.workbench.sweep",
    "dpltm.verbs.audit",
)
"""Modules, or packages with all in them."""

BY_NAME = {("dpltm.cli.stages", "dpltm.tickets.workbench.sweep.run_recipe")}
"""What is imported when it is called for: by a command that runs a file with one arm as well."""


def of_lab(name: str) -> bool:
    return any(f"{name}.".startswith(f"{part}.") for part in LAB)


def imported(tree: ast.AST) -> Iterator[str]:
    """Names that a module imports, anywhere in it, or names for when they are called."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Deferred":
            yield from (str(part.value).replace(":", ".") for part in node.args if isinstance(part, ast.Constant))


def test_nothing_outside_the_lab_imports_it() -> None:
    arrows = {
        (module, name)
        for module, path in modules(ROOT)
        if not of_lab(module)
        for name in imported(ast.parse(path.read_text(encoding="utf-8")))
        if of_lab(name)
    }
    assert arrows == BY_NAME


def test_all_else_is_imported_without_it(tmp_path: Path) -> None:
    """In a copy; and a stage runs."""
    for folder in ("dpltm", "tickets", "cli"):
        shutil.copytree(ROOT / folder, tmp_path / folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    kept = []
    for module, path in modules(ROOT):
        if of_lab(module):
            (tmp_path / path.relative_to(ROOT)).unlink()
        else:
            kept.append(module)
    assert len(kept) > 150
    program = (
        f"import importlib\nfor name in {kept}:\n    importlib.import_module(name)\n"
        "from dpltm.cli.main import run\n"
        "raise SystemExit(run(['train', '--dense', '--dataset', 'digits', '--model', 'mlp:4', '--batch-size', '50',"
        " '--steps', '2', '--noise-multiplier', '1', '--dry-run', '--quiet']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env={"PYTHONPATH": str(tmp_path), "HOME": str(tmp_path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
