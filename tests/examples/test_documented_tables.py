"""The commands of docs/data.md on a mixed table, as they stand there."""

import json
import shlex
import sys
from pathlib import Path

import pytest

from dpltm.cli.main import run

ROOT = Path(__file__).parents[2]


def block() -> list[list[str]]:
    """The commands of the block that makes the table up, comments left out."""
    blocks = (ROOT / "docs/data.md").read_text(encoding="utf-8").split("```")[1::2]
    (found,) = [text for text in blocks if "examples/visits.py" in text]
    return [shlex.split(line, comments=True) for line in found.replace("\\\n", " ").strip().splitlines()]


def test_three_stages_on_a_mixed_table(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (program, name), *commands = block()
    assert program == "python"
    monkeypatch.setattr(sys, "argv", [name])
    exec(compile((ROOT / name).read_text(encoding="utf-8"), name, "exec"), {"__name__": "__main__"})
    answers = {}
    for dpltm, *arguments in commands:
        assert dpltm == "dpltm"
        assert run([*arguments, "--json"]) == 0
        answers[arguments[0]] = json.loads(capsys.readouterr().out)
    assert list(answers) == ["datasets", "generate", "select", "train", "evaluate"]
    assert answers["datasets"]["privacy"]["certified"]["epsilon"] == pytest.approx(0.3, rel=2e-3)
    assert 'values = ["east", "north", "south"]' in answers["datasets"]["schema"], "twenty are on the roof"
    assert answers["select"]["privacy"]["certified"]["epsilon"] == pytest.approx(0.71, abs=0.02)
    assert answers["train"]["privacy"]["certified"]["epsilon"] == pytest.approx(2, rel=2e-3)
    assert set(answers["train"]["columns"]) <= {"age", "ward", "seen", "weight"}
    assert answers["train"]["accuracy"] == answers["evaluate"]["accuracy"] > 0.5, "55 % do not come back"
