"""Limits of the house: what `scripts/house.py` measures."""

from __future__ import annotations

import ast
import textwrap

import pytest

from programs import ROOT, program

house = program("scripts/house.py")


@pytest.fixture(scope="module")
def figures() -> dict[str, object]:
    return house.measure(ROOT)


@pytest.mark.parametrize(
    ("what", "most"),
    [
        ("functions above 80 lines", 0),
        ("functions with more than 8 parameters", 3),
        ("circles", 0),
        ("imports inside functions", 30),
        ("raises naming flags in dpltm", 0),
        ("public functions of three or more parameters without Args", 0),
        ("words of README", 900),
    ],
)
def test_limits(figures: dict[str, object], what: str, most: int) -> None:
    assert isinstance(figures[what], int)
    assert figures[what] <= most


def test_what_is_measured() -> None:
    tree = ast.parse(
        textwrap.dedent(
            """
            def f(self, a, *, b):
                import json
                from os import path
                raise ValueError("--seed: wrong")
            def g():
                raise ValueError("a - b, --- c")
            """
        )
    )
    assert house.inner_imports(tree) == 2
    assert [house.parameters(function) for function in house.functions(tree)] == [2, 0]
    assert house.flags_in_raises(tree) == 1


def test_what_counts_as_documented() -> None:
    tree = ast.parse(
        textwrap.dedent(
            """
            def bare(a, b, c): ...
            def mentioned(a, b, *, c):
                "Args: are mentioned, as those of :func:`full`."
            def full(a, b, c):
                '''
                Of three.

                Args:
                    a, b, c: numbers.
                '''
            def likewise(a, b, c):
                "Of three. Arguments as :func:`full`."
            def two(a, b): ...
            def _private(a, b, c): ...
            class Public:
                def of_a_protocol(self, a, b, c):
                    "See :meth:`Protocol.of_a_protocol`."
                def see(self, a, b, c):
                    "See :meth:`Protocol.of_a_protocol`, and more."
                def two(self, a, b): ...
            class _Private:
                def method(self, a, b, c): ...
            """
        )
    )
    assert house.without_args(tree) == ["bare", "mentioned", "Public.see"]


def test_circles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}
    assert house.circles(graph) == [["b", "c"]]


def test_imports_for_types_make_no_circle() -> None:
    source = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p import b\nfrom p import a\n"
    assert house.imports(ast.parse(source), "p.c", {"p.a", "p.b", "p.c"}, False) == {"p.a"}
