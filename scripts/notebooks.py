"""Runs the notebooks of examples/notebooks from first to last, and keeps what they print and draw.

    pip install nbclient ipykernel
    python scripts/notebooks.py

A notebook holds no time and no path of the machine it ran on.
``tests/examples/test_notebooks.py`` runs its cells without Jupyter.
"""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "notebooks"
PATIENCE = 600
"""Seconds for a cell."""


def run(path: Path) -> nbformat.NotebookNode:
    """The notebook with its outputs. A cell that fails raises ``nbclient.exceptions.CellExecutionError``."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=PATIENCE, kernel_name="python3", record_timing=False).execute()
    notebook.metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    return notebook


def main() -> None:
    for path in sorted(FOLDER.glob("*.ipynb")):
        nbformat.write(run(path), path)


if __name__ == "__main__":
    main()
