"""Pages of the site that stand nowhere else: home, command line, Python, contributing, changes. A hook of mkdocs.

``make docs`` builds the site. Home is the README, the reference of commands is read off the commands themselves, that of
Python off the docstrings. Links that leave ``docs/`` lead to a page of the site, or to a copy of the file in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = Path(__file__).resolve().parents[1]
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Documents outside ``docs/``, and the pages that they become."""

LINK = re.compile(r"\]\(([^)\s#]+)(#[^)\s]*)?\)")

PUBLIC = (
    "dpltm.api",
    "dpltm.estimators.TicketClassifier",
    "dpltm.estimators.TicketRegressor",
    "dpltm.training.artifacts.Run",
    "dpltm.training.artifacts.TicketSet",
    "dpltm.training.artifacts.Winner",
    "dpltm.audit.black_box",
    "dpltm.errors",
)
"""What the reference of Python shows, by import name."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages, and the files that documents link to."""
    from mkdocs.structure.files import File  # the tests read PUBLIC without mkdocs

    texts = {page: (ROOT / name).read_text(encoding="utf-8") for name, page in PAGES.items()}
    texts["cli.md"] = "\n".join(commands())
    texts["api.md"] = "\n".join(python())
    for page, text in texts.items():
        files.append(File.generated(config, page, content=text))
    for path in sorted(linked(texts)):
        files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: MkDocsConfig, files: Files) -> str:
    """Turns links that leave ``docs/`` to where their targets are on the site."""
    del config, files
    origin = next((ROOT / name for name, made in PAGES.items() if made == page.file.src_uri), None)
    folder = ROOT / "docs" if origin is None else origin.parent

    def turned(match: re.Match[str]) -> str:
        target, fragment = match.group(1), match.group(2) or ""
        if "://" in target:
            return match.group(0)
        return f"]({_on_site((folder / target).resolve())}{fragment})"

    return LINK.sub(turned, markdown)


def linked(texts: dict[str, str]) -> Iterator[Path]:
    """Files outside ``docs/`` that documents link to, and that are no pages."""
    documents = [*((ROOT, text) for text in texts.values())]
    documents += [(ROOT / "docs", path.read_text(encoding="utf-8")) for path in (ROOT / "docs").glob("*.md")]
    found = {
        (folder / match.group(1)).resolve()
        for folder, text in documents
        for match in LINK.finditer(text)
        if "://" not in match.group(1)
    }
    for path in found:
        inside = path.is_relative_to(ROOT / "docs") or path.relative_to(ROOT).as_posix() in PAGES
        if path.is_file() and not inside:
            yield path


def _on_site(path: Path) -> str:
    if path.is_relative_to(ROOT / "docs"):
        return path.relative_to(ROOT / "docs").as_posix()
    name = path.relative_to(ROOT).as_posix()
    return PAGES.get(name, name)


def commands() -> Iterator[str]:
    """The reference of the command line."""
    from dpltm.cli.main import COMMANDS

    yield "# Command line\n"
    yield "Every command also takes `--json` (one JSON object), `--quiet`, `--config FILE.toml` and `--help`.\n"
    for entry in COMMANDS:
        members = getattr(entry, "commands", None)
        if members is None:
            yield from _command(f"dpltm {entry.name}", entry)
        else:
            yield f"## dpltm {entry.name}\n\n{entry.help}\n"
            for name, member in members.items():
                yield from _command(f"dpltm {entry.name} {name}", member, "###")


def _command(title: str, entry: Any, level: str = "##") -> Iterator[str]:
    command = entry.command
    shown = [one for one in command.params if one.name not in ("json", "quiet", "config", "help_all", "help")]
    yield f"{level} {title}\n\n{_with_code(_escaped(command.help or ''))}\n"
    if not shown:
        return
    yield "| option | value | what it does |\n|---|---|---|"
    for one in shown:
        names = ", ".join(f"`{name}`" for name in one.opts) if one.param_type_name == "option" else f"`{one.metavar}`"
        value = "" if getattr(one, "is_flag", False) or one.param_type_name != "option" else f"`{one.metavar}`"
        yield f"| {names} | {value} | {_escaped(one.help or '')} |"  # bars in code do not end a cell
    yield ""


def _with_code(text: str) -> str:
    """Options in a sentence as code, which no line breaks between its dashes."""
    return re.sub(r"(?<![\w`-])--[a-z][a-z0-9-]*", r"`\g<0>`", text)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("[", "\\[")


def python() -> Iterator[str]:
    """The reference of Python: docstrings, which the site reads without importing anything."""
    yield "# Python\n"
    for name in PUBLIC:
        yield f"::: {name}\n    options:\n      filters: public\n"  # what ``__all__`` has, where there is one
