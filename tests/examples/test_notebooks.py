"""The notebooks run from first to last, and were kept with what they print."""

import json
import re
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples" / "notebooks").glob("*.ipynb"))


def cells(path: Path) -> list[dict]:
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


def test_there_are_three():
    assert [path.stem for path in NOTEBOOKS] == ["hospital", "three_stages", "what_a_claim_is_worth"]


@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path, monkeypatch, capsys):
    """Figures that are no accident of a draw come out as they were kept."""
    monkeypatch.chdir(tmp_path)
    matplotlib.use("agg")
    names: dict = {"__name__": "__main__"}
    kept = ""
    for cell in cells(path):
        exec(compile("".join(cell["source"]), path.name, "exec"), names)
        kept += "".join("".join(output.get("text", "")) for output in cell["outputs"])
    plt.close("all")
    assert list(tmp_path.iterdir()) == []
    assert steady(capsys.readouterr().out) == steady(kept)


def steady(printed: str) -> str:
    """Without the last digit of the epsilon that noise was calibrated for, which depends on the round that won."""
    return re.sub(r"2\.99\d|3\.000", "3", printed)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_was_kept_with_its_output(path):
    text = path.read_text(encoding="utf-8")
    assert '"output_type": "error"' not in text
    assert "image/png" in text or path.stem == "what_a_claim_is_worth"
    assert all(cell["execution_count"] for cell in cells(path))
    assert "/site-packages/" not in text
