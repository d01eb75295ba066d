"""What others call is documented: names, parameters, what is raised, and every option at the terminal.

``tests/dpltm/test_api.py`` runs the examples in docstrings.
"""

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dpltm.cli.main import COMMANDS
from programs import ROOT, program

house, site = program("scripts/house.py"), program("scripts/site_pages.py")
FIT = "dpltm.estimators.TicketEstimator.fit"
house.PUBLIC += (FIT,)  # which both estimators have
SHOWN = (*site.PUBLIC, FIT, "dpltm.privacy.ledger", "dpltm.verbs.private_loop.PrivateLoop")
"""Of what is public, what the Python reference of the site shows, and what else ``dpltm`` has: modules, classes, methods."""

FACE = {
    name: node
    for module, path in house.modules(ROOT)
    for name, node in house.public(module, ast.parse(path.read_text(encoding="utf-8")))
    if f"{name}.".startswith(tuple(f"{shown}." for shown in SHOWN))
}


def parameters(name: str) -> list[str]:
    """What a function takes, or a class when it is called."""
    if isinstance(FACE[name], ast.ClassDef):
        module, _, last = name.rpartition(".")
        found = getattr(importlib.import_module(module), last)
        return [] if issubclass(found, BaseException) else list(inspect.signature(found).parameters)
    taken = FACE[name].args
    return [one.arg for one in (*taken.args, *taken.kwonlyargs) if one.arg not in ("self", "cls")]


def test_there_are_many() -> None:
    assert {"dpltm.api.train", "dpltm.verbs.private_loop.PrivateLoop.report"} <= set(FACE)
    assert len(FACE) > 40


@pytest.mark.parametrize("name", FACE)
def test_public_names_say_what_they_are_take_and_raise(name: str) -> None:
    """Two parameters or more stand in the docstring, in ``Args:`` or in words; what has a ``raise`` of its own says so."""
    node = FACE[name]
    said, taken = " ".join((ast.get_docstring(node) or "").split()), parameters(name)
    assert len(said) > 10, "no docstring"
    assert len(taken) < 2 or [each for each in taken if not re.search(rf"\b{each}\b", said)] == []
    if isinstance(node, ast.FunctionDef):
        raised = [ast.unparse(part.exc) for part in ast.walk(node) if isinstance(part, ast.Raise) and part.exc]
        assert "Raises" in said or all(error.startswith("AttributeError") for error in raised), raised


def leaves() -> Iterator[tuple[str, Any]]:
    for entry in COMMANDS:
        for name, member in (getattr(entry, "commands", None) or {"": entry}).items():
            yield f"{entry.name} {name}".strip(), member.command


@pytest.mark.parametrize(
    ("name", "command"), list(leaves()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_option_says_what_it_does(name: str, command: Any):
    assert command.help
    bare = [one.name for one in command.params if one.param_type_name == "option" and len(one.help or "") < 8]
    assert bare == [], name


def test_the_reference_of_commands_shows_bars_and_options_as_they_are_typed() -> None:
    """Inside code a backslash is one, so none escapes a bar there."""
    text = "\n".join(site.commands())
    codes = re.findall(r"`([^`\n]+)`", text)
    assert "NAME|FILE" in codes
    assert [code for code in codes if "\\|" in code] == []
    assert "`--provenance` says what the tickets" in text


def test_pages_of_the_site_load_nothing_from_elsewhere() -> None:
    """The plugin that lets search work in a folder adds a script of another site to every page, unless there is one here."""
    mkdocs = pytest.importorskip(
        "mkdocs.config", reason="mkdocs comes with what `make check` installs, and checks with"
    )
    root = Path(site.__file__).parents[1]
    config = mkdocs.load_config(str(root / "mkdocs.yml"))
    config.plugins.run_event("config", config)
    scripts = [str(one) for one in (*config.extra["polyfills"], *config.extra_javascript, *config.extra_css)]
    assert [one for one in scripts if "//" in one] == []
    assert (root / "docs" / config.extra["polyfills"][0]).is_file()
    assert config.theme["font"] is False
