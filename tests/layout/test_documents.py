"""What documents say of this repository: the tests they name, the sections that source cites, one version.

That links lead somewhere, ``make check`` sees as it builds the site.
"""

import re
import string
from collections.abc import Iterator
from pathlib import Path

import pytest

import dpltm
from dpltm.cli.main import COMMANDS
from pages import PAGES, blocks, steps
from programs import ROOT, program

MODEL = "privacy-model.md"
FOLDERS = ("dpltm", "tickets", "cli", "tests", "benchmarks", "examples", "scripts", "docs")
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
FILES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*"))]
TEXTS = [*(path for path in FILES if path.suffix in (".py", ".toml", ".sh")), *DOCUMENTS]
CITATION = re.compile(rf"{re.escape(MODEL)}(?:\s+sections?)?\s+(\d+(?:\.\d+)*)(?:\s+(?:to|and)\s+(\d+(?:\.\d+)*))?")
"""``docs/privacy-model.md section 4.2``, ``sections 1 to 4``, ``privacy-model.md 4.2``; a line may break in between."""

FILE = re.compile(
    rf"(?<![\w./-])((?:{'|'.join(FOLDERS)})/[\w/.-]*\w\.(?:py|md|sh)|(?:[\w/]+/)?test_\w+\.py)"
    r"((?:(?:, )?::test_\w+(?:\.\.\.)?)*)"
)
"""A file of this repository, and tests in it: from its root, from ``tests``, from beside, or a test by its name alone."""


def words(text: str) -> str:
    """Text in which no line breaks, and no sign of a comment stands within a sentence."""
    return re.sub(r"\s*\n[\s#]*", " ", text)


def test_no_text_holds_both_sides_of_a_merge():
    marks = re.compile(r"^(?:<{7}|>{7}) ", re.MULTILINE)
    assert [path.name for path in TEXTS if marks.search(path.read_text(encoding="utf-8"))] == []


def test_every_file_and_test_that_is_named_is_there():
    tests, named = {path.name: path for path in (ROOT / "tests").rglob("test_*.py")}, 0
    for citing in TEXTS:
        for name, functions in FILE.findall(citing.read_text(encoding="utf-8")):
            places = [folder / name for folder in (ROOT, ROOT / "tests", citing.parent) if (folder / name).exists()]
            path = places[0] if places else tests.get(name)
            assert path is not None, f"{citing.relative_to(ROOT)}: {name}"
            for function, more in re.findall(r"::(test_\w+)(\.\.\.)?", functions):
                defined = rf"(?m)^\s*def {function}" + ("" if more else r"\(")
                assert re.search(defined, path.read_text(encoding="utf-8")), function
            named += 1
    assert named > 400
    assert len(FILE.findall((ROOT / "docs/privacy.md").read_text(encoding="utf-8"))) > 30, "a test for each sentence"


def headings(document: Path) -> list[str]:
    return re.findall(r"^#+ (.+)$", document.read_text(encoding="utf-8"), flags=re.MULTILINE)


def sections() -> list[str]:
    """Numbers of the sections of the privacy model, in order."""
    numbers = (re.match(r"(\d+(?:\.\d+)*)\.? ", heading) for heading in headings(ROOT / "docs" / MODEL))
    return [number.group(1) for number in numbers if number]


def test_every_cited_section_of_the_privacy_model_exists():
    """Source cites the model by section, and nothing else of it; the model cites its own."""
    known, cited = sections(), 0
    for path in TEXTS:
        text = words(path.read_text(encoding="utf-8"))
        found = [number for match in CITATION.finditer(text) for number in match.groups() if number]
        assert set(found) <= set(known), f"{path.relative_to(ROOT)}: {found}"
        if path.suffix == ".py" and path != Path(__file__):
            assert len(re.findall(re.escape(MODEL), text)) == len(CITATION.findall(text)), path.relative_to(ROOT)
        cited += len(found)
    assert cited > 40
    body, _, _ = (ROOT / "docs" / MODEL).read_text(encoding="utf-8").partition("## References")
    own = re.findall(r"(?:\(|\bsee |\bof )([1-9]\.\d)(?=[),;. ])", words(body))  # 0.5 is a figure
    assert len(own) > 5
    assert set(own) <= set(known)


@pytest.mark.parametrize("name", ["PRIVACY", "DESIGN", "STYLE", "CLI"])
def test_nothing_cites_a_document_that_is_not_here(name):
    citing = [str(path.relative_to(ROOT)) for path in TEXTS if f"{name}.md" in path.read_text(encoding="utf-8")]
    assert citing == []


def test_one_version_everywhere():
    for name, pattern in (("pyproject.toml", r'^version = "(.+)"$'), ("CITATION.cff", r"^version: (.+)$")):
        text = (ROOT / name).read_text(encoding="utf-8")
        assert re.findall(pattern, text, flags=re.MULTILINE) == [dpltm.__version__], name
    assert any(heading.startswith(f"[{dpltm.__version__}] - ") for heading in headings(ROOT / "CHANGELOG.md"))


def test_the_page_of_the_sources_says_what_the_file_of_facts_says():
    """After a change of examples/papers/sources.toml: python scripts/sources.py."""
    sources = program("scripts/sources.py")
    assert sources.PAGE.read_text(encoding="utf-8") == sources.text()
    for name, line in sources.lines().items():
        named = {field.partition(":")[0] for _, field, _, _ in string.Formatter().parse(line["claim"]) if field}
        assert named == line.keys() - {"line", "section", "claim"}, name


def test_the_page_of_choices_is_what_the_registries_say():
    """After a change of a descriptor: python scripts/choices.py."""
    choices = program("scripts/choices.py")
    assert choices.PATH.read_text(encoding="utf-8") == choices.text()


# --- blocks of code: commands and programs exist with such options, and Python compiles ---


def command_lines(document: Path) -> Iterator[list[str]]:
    """Arguments of each ``dpltm`` in blocks of shell, with lines joined and comments left out."""
    for step in steps(document):
        words = step.command
        if words[:1] == ["torchrun"]:
            words = words[words.index("dpltm") :]
        if words[:1] == ["dpltm"]:
            yield words[1:]


def test_documents_hold_commands():
    assert sum(1 for document in PAGES for _ in command_lines(document)) > 60


MADE = ("returns/predict.py",)
"""Programs that a step before makes (``dpltm export``)."""


@pytest.mark.parametrize("document", PAGES, ids=lambda path: path.name)
def test_blocks_of_documents_can_be_typed(document):
    known = {entry.name: entry for entry in COMMANDS}
    for words in command_lines(document):
        entry, rest = known[words[0]], words[1:]
        if hasattr(entry, "commands"):
            entry, rest = entry.commands[rest[0]], rest[1:]
        filled_in = not any(re.search(r"\b[A-Z]{2,}\b|\.\.\.", word) for word in rest)  # unlike SET
        if rest != ["--help"] and filled_in:
            entry.make_context(entry.name, list(rest))
    for body in blocks(document, "python"):
        compile(body, str(document), "exec")
    for step in steps(document):
        words = step.command
        if words[:1] == ["python"] and words[1].endswith(".py") and words[1] not in MADE:
            source = (ROOT / words[1]).read_text(encoding="utf-8")
            assert [word for word in words if word.startswith("--") and f'"{word}"' not in source] == [], step
