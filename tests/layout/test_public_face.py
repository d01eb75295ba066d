"""What others call is documented: names, parameters, what is raised, and every option at the terminal.

Ruff's D1 rules (pyproject.toml) see to it that modules, classes and functions have docstrings at all;
``tests/dpltm/test_api.py`` runs the examples in them.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dpltm
from dpltm.cli.main import COMMANDS
from programs import program

site = program("scripts/site_pages.py")


def modules() -> set[str]:
    """Modules of the package, of which the reference names what it shows."""
    return {each.name for each in pkgutil.iter_modules(dpltm.__path__)}


def public() -> dict[str, Any]:
    """The names of the package, and what the Python reference of the site shows, by their full names."""
    found: dict[str, Any] = {}
    for name in (
        *site.PUBLIC,
        *(f"dpltm.{name}" for name in dir(dpltm) if name[0] != "_" and name not in {*vars(dpltm), *modules()}),
    ):
        module, _, last = name.rpartition(".")
        try:
            found[name] = getattr(importlib.import_module(module), last)
        except AttributeError:
            found[name] = importlib.import_module(name)
    for name, value in list(found.items()):
        if inspect.isclass(value):
            found |= dict(methods(name, value))
        elif inspect.ismodule(value):
            own = {
                k: v
                for k, v in vars(value).items()
                if k in getattr(value, "__all__", [k])
                and k[0] != "_"
                and getattr(v, "__module__", None) == value.__name__
            }
            found |= {f"{name}.{k}": v for k, v in own.items() if inspect.isclass(v) or inspect.isfunction(v)}
    return found


def methods(name: str, cls: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties that the package itself defines."""
    for part in cls.__mro__:
        if part.__module__.startswith("dpltm"):
            for member, value in vars(part).items():
                if member[0] != "_" and (
                    inspect.isfunction(value) or isinstance(value, (property, classmethod, staticmethod))
                ):
                    yield f"{name}.{member}", getattr(value, "__func__", value)


FACE = public()


def text_of(value: Any) -> str:
    return " ".join((inspect.getdoc(value) or "").split())


def test_there_are_many():
    assert {"dpltm.train", "dpltm.PrivateLoop", "dpltm.PrivateLoop.report", "dpltm.TicketClassifier.score"} <= set(
        FACE
    )
    assert len(FACE) > 40


@pytest.mark.parametrize("name", FACE)
def test_public_names_say_what_they_are(name: str):
    assert len(text_of(FACE[name])) > 10, "no docstring"


@pytest.mark.parametrize(
    "name", [name for name, value in FACE.items() if inspect.isfunction(value) or inspect.isclass(value)]
)
def test_every_parameter_is_said(name: str):
    """Of a function of two or more: each stands in its docstring, in ``Args:`` or in words."""
    value = FACE[name]
    if inspect.isclass(value) and issubclass(value, BaseException):
        return
    given = [each for each in inspect.signature(value).parameters.values() if each.name not in ("self", "cls")]
    said = text_of(value)
    if len(given) > 1:
        assert [each.name for each in given if not re.search(rf"\b{each.name}\b", said)] == []


@pytest.mark.parametrize("name", [name for name, value in FACE.items() if inspect.isfunction(value)])
def test_what_raises_says_so(name: str):
    """A function that has a ``raise`` of its own, but for methods that only say that they are not there."""
    value = FACE[name]
    raised = set(re.findall(r"^\s+raise (\w+)", inspect.getsource(value), re.MULTILINE)) - {"AttributeError"}
    if raised:
        assert re.search(r"\bRaises\b", text_of(value)), raised


@pytest.mark.parametrize("name", ["generate", "select", "train", "tune", "transfer", "evaluate", "predict"])
def test_stages_say_shapes_and_refusals(name: str):
    said = text_of(getattr(dpltm, name))
    assert re.search(
        r"\(n,? ?(\.\.\.)?\)|as in training|look|public records, and|as for|private records, and", said
    ), "no shape"
    assert "Raises:" in said


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


def test_the_reference_of_commands_shows_bars_as_they_are_typed() -> None:
    """Inside code a backslash is one, so none escapes a bar there."""
    codes = re.findall(r"`([^`\n]+)`", "\n".join(site.commands()))
    assert "NAME|FILE" in codes
    assert [code for code in codes if "\\|" in code] == []


def test_options_in_sentences_are_code() -> None:
    text = "\n".join(site.commands())
    assert "with `--provenance`: public" in text


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
