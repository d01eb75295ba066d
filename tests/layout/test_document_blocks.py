"""Blocks of code in the documents: commands exist with such options, Python compiles, and the quickstart runs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from dpltm.cli.main import COMMANDS, run

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([ROOT / "README.md", *ROOT.glob("docs/*.md"), ROOT / "CONTRIBUTING.md"])
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(document: Path, language: str) -> list[str]:
    return [body for kind, body in BLOCK.findall(document.read_text(encoding="utf-8")) if kind == language]


def command_lines(document: Path) -> Iterator[list[str]]:
    """Arguments of each ``dpltm`` in blocks of shell, with lines joined and comments left out."""
    for body in blocks(document, ""):
        for line in body.replace("\\\n", " ").splitlines():
            words = shlex.split(line.removeprefix("$ "), comments=True)
            while words and re.fullmatch(r"[A-Z_]+=\S+", words[0]):
                words = words[1:]
            if words[:1] == ["torchrun"]:
                words = words[words.index("dpltm") :]
            if words[:1] == ["dpltm"]:
                yield words[1:]


def test_documents_hold_commands():
    assert sum(1 for document in DOCUMENTS for _ in command_lines(document)) > 60


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_of_documents_exist_with_such_options(document):
    known = {entry.name: entry for entry in COMMANDS}
    for words in command_lines(document):
        entry, rest = known[words[0]], words[1:]
        if hasattr(entry, "commands"):
            entry, rest = entry.commands[rest[0]], rest[1:]
        if rest != ["--help"] and not any(
            re.search(r"\b[A-Z]{2,}\b|\.\.\.", word) for word in rest
        ):  # SET: to be filled in
            entry.make_context(entry.name, list(rest))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_python_of_documents_compiles(document):
    for body in blocks(document, "python"):
        compile(body, str(document), "exec")


def test_the_quickstart_runs_at_the_terminal(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for words in command_lines(ROOT / "docs/quickstart.md"):
        assert run(list(words)) == 0, words
    assert (tmp_path / "digits.run").is_dir()
    assert "certified epsilon" in capsys.readouterr().out


@pytest.mark.parametrize("place", range(len(blocks(ROOT / "docs/quickstart.md", "python"))))
def test_the_quickstart_runs_in_python(place, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(
        compile(blocks(ROOT / "docs/quickstart.md", "python")[place], "quickstart", "exec"), {"__name__": "quickstart"}
    )
    assert list(tmp_path.iterdir()) == []
    assert "epsilon" in capsys.readouterr().out


def test_the_block_on_scikit_learn_runs(capsys):
    section = (ROOT / "docs/python.md").read_text(encoding="utf-8").split("\n## scikit-learn\n")[1].split("\n## ")[0]
    (block,) = (body for kind, body in BLOCK.findall(section) if kind == "python")
    exec(compile(block, "python.md", "exec"), {})
    scored, validated, together = capsys.readouterr().out.strip().splitlines()
    accuracy, certified = scored.split(" ", 1)
    assert float(accuracy) > 0.8
    assert re.match(r"Certified\(epsilon=0\.99\d+, delta=1e-05", certified)
    assert len(validated.strip("[]").split()) == 3
    assert 0.6 < float(together) <= 3 * 0.6
