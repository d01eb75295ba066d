"""How the house is kept: sizes of packages, modules and functions, circles, and where things are imported.

    python scripts/house.py [FOLDER]

prints a table of the checkout in FOLDER (this one by default). ``tests/layout/test_house.py`` holds the limits.
"""

from __future__ import annotations

import ast
import functools
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

PACKAGES = {"dpltm": "dpltm", "tickets": "dpltm.tickets", "cli": "dpltm.cli"}
"""Folders of source, and the names that they are installed under."""

PUBLIC = (
    *(f"dpltm.api.{verb}" for verb in ("generate", "select", "train", "tune", "transfer", "evaluate", "predict")),
    "dpltm.cli.main.run",
    "dpltm.criteria.Criterion",
    "dpltm.criteria.PruningRound",
    "dpltm.errors",
    "dpltm.estimators.TicketClassifier",
    "dpltm.estimators.TicketRegressor",
    "dpltm.features.MapKind",
    "dpltm.filters",
    "dpltm.gradients.tanh_grad_",
    "dpltm.local.LocalProtocol",
    "dpltm.local.channels.channel",
    "dpltm.networks.kind",
    "dpltm.networks.masks.Mask",
    "dpltm.privacy.account.Account",
    "dpltm.privacy.accountant",
    "dpltm.privacy.accountants",
    "dpltm.privacy.entry",
    "dpltm.privacy.ledger.Ledger",
    "dpltm.privacy.mechanisms",
    "dpltm.privacy.release",
    "dpltm.privacy.selection.exponential_probabilities",
    "dpltm.privacy.trade_off.curves_of_account",
    "dpltm.records.dataset.Dataset",
    "dpltm.records.load.load",
    "dpltm.records.load.from_arrays",
    "dpltm.registry",
    "dpltm.tickets.workbench.handover.export_run",
    "dpltm.tickets.ledger_file.open_ledger",
    "dpltm.tickets.store.load",
    "dpltm.tickets.store.save",
    "dpltm.training.artifacts",
    "dpltm.audit.audit",
    "dpltm.verbs.private_loop.PrivateLoop",
    "dpltm.verbs.private_loop.Step",
)
"""What a user of the library meets: modules with all in them, classes with their methods, functions. All else is inner."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def modules(root: Path) -> Iterator[tuple[str, Path]]:
    """Every module of the source with its installed name."""
    for folder, top in PACKAGES.items():
        for path in sorted((root / folder).rglob("*.py")):
            parts = path.relative_to(root / folder).with_suffix("").parts
            yield ".".join([top, *(part for part in parts if part != "__init__")]), path


@functools.cache
def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """All nodes of a tree, which is walked once."""
    return tuple(ast.walk(tree))


def functions(tree: ast.AST) -> Iterator[Function]:
    """All functions, methods and functions within functions."""
    return (node for node in nodes(tree) if isinstance(node, Function))


def inner_imports(tree: ast.AST) -> int:
    """Import statements inside functions."""
    spans = [(function.lineno, function.end_lineno or 0) for function in functions(tree)]
    found = [node.lineno for node in nodes(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    return sum(any(first <= line <= last for first, last in spans) for line in found)


def parameters(function: Function) -> int:
    """How many arguments a function takes, ``self`` and ``cls`` left out."""
    given = function.args
    names = [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


def public(module: str, tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Classes, functions and methods of ``PUBLIC`` in a module that no underscore hides, by their full names."""
    for name, node in _visible(tree.body, f"{module}."):
        if any(f"{name}.".startswith(f"{one}.") for one in PUBLIC):
            yield name, node


def without_args(module: str, tree: ast.Module) -> list[str]:
    """Public functions and methods of three or more parameters whose docstring does not document them.

    Documented is ``Args:``, ``Arguments as :func:`NAME`.`` for those of another function, or nothing but
    ``See :meth:`NAME`.`` for a method of a protocol. An inner function says of its arguments what a reader cannot see.
    """
    return [
        name
        for name, node in public(module, tree)
        if isinstance(node, Function) and parameters(node) >= 3 and not _documented(node)
    ]


def _visible(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, ast.AST]]:
    for node in body:
        if isinstance(node, ast.ClassDef | Function) and not node.name.startswith("_"):
            yield prefix + node.name, node
            if isinstance(node, ast.ClassDef):
                yield from _visible(node.body, f"{prefix}{node.name}.")


def _documented(function: Function) -> bool:
    text = ast.get_docstring(function) or ""
    as_another = re.search(r"\bArguments as :func:`[\w.]+`", " ".join(text.split()))
    return (
        "Args:" in text.split("\n")
        or as_another is not None
        or re.fullmatch(r"See :meth:`[\w.]+`\.", text) is not None
    )


def flags_in_raises(tree: ast.AST) -> int:
    """``raise`` statements with a text that names a flag of the command line."""
    return sum(
        any(
            isinstance(part, ast.Constant) and isinstance(part.value, str) and _flag(part.value)
            for part in ast.walk(node)
        )
        for node in nodes(tree)
        if isinstance(node, ast.Raise)
    )


def _flag(text: str) -> bool:
    return any(text[at + 2 : at + 3].isalpha() and text[at - 1 : at] not in ("-", "`") for at in _places(text))


def _places(text: str) -> Iterator[int]:
    at = text.find("--")
    while at >= 0:
        yield at
        at = text.find("--", at + 1)


def imports(tree: ast.AST, module: str, known: set[str], package: bool) -> set[str]:
    """Modules of the source that a module imports when it runs, at its top or later; not those for types alone."""
    for_types = {
        id(inner)
        for node in nodes(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    reached: set[str] = set()
    for node in nodes(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            reached |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                here = module.split(".") if package else module.split(".")[:-1]
                base = ".".join([*here[: len(here) - node.level + 1], *([base] if base else [])])
            reached |= {f"{base}.{alias.name}" if f"{base}.{alias.name}" in known else base for alias in node.names}
    return (reached & known) - {module}


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Sets of modules that import each other in a circle (strongly connected components of two or more)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    out: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            part = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(part) > 1:
                out.append(sorted(part))

    sys.setrecursionlimit(10_000)
    for name in sorted(graph):
        if name not in index:
            visit(name)
    return out


def longest_chain(graph: dict[str, set[str]]) -> int:
    """Modules of the longest chain of imports; circles count as one module."""
    together = {name: part[0] for part in circles(graph) for name in part}
    merged: dict[str, set[str]] = {}
    for name, others in graph.items():
        home = together.get(name, name)
        merged.setdefault(home, set()).update({together.get(other, other) for other in others} - {home})

    @functools.cache
    def length(name: str) -> int:
        return 1 + max((length(other) for other in merged[name]), default=0)

    return max(map(length, merged))


def packages_of(graph: dict[str, set[str]], sources: Mapping[str, tuple[Path, str]]) -> dict[str, set[str]]:
    """Imports between packages: a module directly in ``dpltm`` is a package of its own, but for the entry to ``cli``."""
    home = {
        name: name if path.name == "__init__.py" else name.rpartition(".")[0] for name, (path, _) in sources.items()
    }
    home |= {name: name for name, package in home.items() if package == "dpltm"}
    home |= {name: "dpltm.cli" for name in home if name == "dpltm.__main__"}
    merged: dict[str, set[str]] = {package: set() for package in home.values()}
    for name, others in graph.items():
        merged[home[name]] |= {home[other] for other in others} - {home[name]}
    return merged


def options(root: Path) -> dict[str, int]:
    """Options that are declared, those of ``dpltm train``, and those of the longest first page of help."""
    declared = sum(
        isinstance(node, ast.AnnAssign)
        and isinstance(node.value, ast.Call)
        and ast.unparse(node.value.func) == "option"
        for path in [*sorted((root / "dpltm" / "options").glob("*.py")), root / "dpltm" / "local" / "latent.py"]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    )
    pages = {flag: _help_of_train(root, flag) for flag in ("--help", "--help-all")}
    return {
        "options of all commands, as declared": declared,
        "options of train": pages["--help-all"],
        "options on the first page of train": pages["--help"],
    }


def _help_of_train(root: Path, flag: str) -> int:
    """Options and arguments on a page of the help of ``dpltm train``, but those that ask for the page."""
    command = [sys.executable, "-m", "dpltm.cli.main", "train", flag]
    page = subprocess.run(
        command, cwd=root, capture_output=True, text=True, check=True, env=os.environ | {"COLUMNS": "200"}
    )
    return len(re.findall(r"^│ (?:--(?!help)[\w-]+|[A-Z]+\S*)", page.stdout, re.M))


_PASSED = """
import sys, tempfile
from dpltm.cli.main import run
from dpltm.options.train import TrainOptions
passed = set()
def watch(frame, event, argument):
    code = frame.f_code
    if event != "call" or not any(code.co_filename.startswith(place) for place in sys.argv[1:]):
        return
    for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
        value = frame.f_locals.get(name)
        carried = None if name == "self" else getattr(value, "options", None)
        if isinstance(value, TrainOptions) or isinstance(carried, TrainOptions):
            passed.add((code.co_filename, code.co_qualname))
with tempfile.TemporaryDirectory() as folder:
    sys.setprofile(watch)
    run(["train", "--dense", "--dataset", "digits", "--epsilon", "1", "--delta", "1e-4", "--quiet",
         "--out", folder + "/run", "--ledger", folder + "/ledger.jsonl"])
    sys.setprofile(None)
print(len(passed), len({file for file, _ in passed}))
"""


def request(root: Path) -> dict[str, int]:
    """Functions and modules that the options of a training, or the plan that holds them, pass as arguments."""
    places = [f"{path}{os.sep}" for path in (root / "dpltm", *((root / folder).resolve() for folder in PACKAGES))]
    command = [sys.executable, "-W", "ignore", "-c", _PASSED, *places]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    counts = map(int, done.stdout.split()[-2:])
    return dict(zip(("functions that a train request passes", "modules that it passes"), counts, strict=True))


def measure(root: Path) -> dict[str, object]:
    """All figures of a checkout."""
    sources = {name: (path, path.read_text(encoding="utf-8")) for name, path in modules(root)}
    trees = {name: ast.parse(text) for name, (_, text) in sources.items()}
    known = set(sources)
    lines = {name: len(text.splitlines()) for name, (_, text) in sources.items()}
    graph = {name: imports(tree, name, known, sources[name][0].name == "__init__.py") for name, tree in trees.items()}
    sizes = {
        f"{name}.{function.name}": (function.end_lineno or 0) - function.lineno + 1
        for name, tree in trees.items()
        for function in functions(tree)
    }
    tests = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in (root / "tests").rglob("*.py"))
    longest = max(lines, key=lines.__getitem__)
    source = sum(lines.values())
    packages = packages_of(graph, sources)
    docs = sum(len(path.read_text(encoding="utf-8").split()) for path in sorted((root / "docs").glob("*.md")))
    in_core = [name for name in trees if not name.startswith(("dpltm.tickets", "dpltm.cli"))]
    return {
        **{
            f"lines of {folder}": sum(n for name, n in lines.items() if sources[name][0].is_relative_to(root / folder))
            for folder in PACKAGES
        },
        "lines of source": source,
        "files of source": len(sources),
        "lines of tests": tests,
        "test lines per source line": round(tests / source, 2),
        "longest module": f"{lines[longest]} ({longest})",
        "modules above 400 lines": sum(n > 400 for n in lines.values()),
        "functions": len(sizes),
        "functions above 60 lines": sum(n > 60 for n in sizes.values()),
        "functions above 80 lines": sum(n > 80 for n in sizes.values()),
        "functions with more than 8 parameters": sum(
            parameters(f) > 8 for tree in trees.values() for f in functions(tree)
        ),
        "circles": len(circles(graph)),
        "circles of packages": len(circles(packages)),
        "floors of packages": longest_chain(packages),
        "longest chain of imports": longest_chain(graph),
        "imports inside functions": sum(inner_imports(tree) for tree in trees.values()),
        "raises naming flags in dpltm": sum(flags_in_raises(trees[name]) for name in in_core),
        "public functions of three or more parameters without Args": sum(
            len(without_args(name, tree)) for name, tree in trees.items()
        ),
        **options(root),
        **request(root),
        "words of docs": docs,
        "words of README": len((root / "README.md").read_text(encoding="utf-8").split()),
    }


if __name__ == "__main__":
    for what, figure in measure(
        Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[1]
    ).items():
        print(f"{what:58} {figure}")
