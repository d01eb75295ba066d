"""What the design promises about the source, read off the syntax trees.

Imports point one way, ``cli -> tickets -> dpltm``; only ``cli`` prints; only ``dpltm/records`` opens files within
``dpltm``, and reads records without saying what opens them; and nothing unpickles or runs text as code.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import dpltm

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"dpltm": "dpltm", "tickets": "dpltm.tickets", "cli": "dpltm.cli"}  # folder: installed name
LAYERS = {"dpltm": 0, "dpltm.tickets": 1, "dpltm.cli": 2}

PICKLERS = {"_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve"}
# of a pickler, what hands calls to processes of one's own
PROCESSES = {"joblib.Parallel", "joblib.cpu_count", "joblib.delayed", "joblib.parallel_config"}
NEVER = {"eval", "exec", "builtins.eval", "builtins.exec", "torch.load", "torch.save", "torch.serialization"}
IMPORTERS = {"importlib.import_module", "__import__", "builtins.__import__"}
OF_A_PREFIX = (
    "dpltm.registry.Deferred.resolve",
    "dpltm.registry.lazily.attribute",
    "dpltm.cli.commands.Later.__init__",
    "dpltm.tickets.workbench.code._of_package",
)  # itself; what a package has and lists; within options and cli; code that the user names on the command line
DEFERRED = "dpltm.registry.Deferred"  # names a function of a module to import, and is looked at as an import
PRINTERS = {"print", "builtins.print", "sys.stdout", "sys.stderr"}
OPENERS = {
    *("open", "builtins.open", "io.open", "os.open", "os.fdopen", "codecs.open", "gzip.open", "bz2.open", "lzma.open"),
    *("zipfile.ZipFile", "tarfile.open", "tempfile.NamedTemporaryFile", "tempfile.TemporaryFile", "sqlite3.connect"),
    *("numpy.load", "numpy.save", "numpy.savez", "numpy.savez_compressed", "numpy.loadtxt", "numpy.savetxt"),
    *("numpy.genfromtxt", "numpy.fromfile", "numpy.memmap", "numpy.lib.format.open_memmap"),
    *("safetensors.safe_open", "safetensors.torch.load_file", "safetensors.torch.save_file"),
    *("safetensors.numpy.load_file", "safetensors.numpy.save_file"),
}
# attributes of records that nobody takes but dpltm/records
CLOSED = {"_closed", "_cells", "_targets", "_ragged", "_units", "identities", "public_hashes", "cut_hashes"}
# methods that open a file whatever they are called on, a Path as a rule; ``open`` of one value that is no text opens records
OPENING_METHODS = {"open", "read_text", "read_bytes", "write_text", "write_bytes", "tofile"}


def layer(name: str) -> int | None:
    """The layer a dotted name lies in; None for a library."""
    return next((LAYERS[top] for top in reversed(LAYERS) if name == top or name.startswith(top + ".")), None)


class Checker(ast.NodeVisitor):
    """Collects the violations in one module.

    Args:
        module: Its installed dotted name, for example ``dpltm.tickets.store``.
        is_package: Whether it is an ``__init__.py``, which moves relative imports by one.
    """

    def __init__(self, module: str, *, is_package: bool) -> None:
        self.found: list[str] = []
        self.module = module
        self.package = module if is_package else module.rpartition(".")[0]
        self.layer = layer(module)
        self.function = ""  # the dotted name of the function that is being looked at
        self.names: dict[str, str] = {}  # local name: the dotted name it was imported from
        self.opened: set[str] = set()  # by what it opens records
        self.of_records = f"{module}.".startswith("dpltm.records.")

    def flag(self, node: ast.AST, what: str) -> None:
        self.found.append(f"{self.module}:{node.lineno}: {what}")  # type: ignore[attr-defined]

    def dotted(self, node: ast.AST) -> str | None:
        """``np.load`` as ``numpy.load``; None for anything but names joined by dots."""
        if isinstance(node, ast.Name):
            return self.names.get(node.id, node.id)
        if isinstance(node, ast.Attribute) and (base := self.dotted(node.value)):
            return f"{base}.{node.attr}"
        return None

    def reaches(self, node: ast.AST, name: str) -> None:
        """Judges one imported dotted name."""
        top = name.partition(".")[0]
        if top in PICKLERS and name not in PROCESSES:
            self.flag(node, f"uses {top}")
        if top in ("tickets", "cli"):
            self.flag(node, f"imports the bare name {top}: it is installed as dpltm.{top}")
        target = layer(name)
        if target is not None and self.layer is not None and target > self.layer:
            self.flag(node, f"imports {name}, but imports point cli -> tickets -> dpltm")

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.reaches(node, alias.name)
            self.names[alias.asname or alias.name.partition(".")[0]] = (
                alias.name if alias.asname else alias.name.partition(".")[0]
            )

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        base = node.module or ""
        if node.level:
            parents = self.package.split(".")
            if node.level > len(parents):
                self.flag(node, "relative import beyond the top")
                return
            base = ".".join(parents[: len(parents) - node.level + 1] + ([base] if base else []))
        for alias in node.names:
            full = f"{base}.{alias.name}"
            self.reaches(node, full if layer(full) is not None or full in PROCESSES else base)
            self.names[alias.asname or alias.name] = full
            if full in NEVER:
                self.flag(node, f"uses {full}")

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.within(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self.within(node)

    def within(self, node: ast.ClassDef | ast.FunctionDef) -> None:
        before = self.function
        self.function = f"{before or self.module}.{node.name}"
        self.generic_visit(node)
        self.function = before

    def visit_Name(self, node: ast.Name) -> None:
        self.judge_use(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.judge_use(node)
        if node.attr in CLOSED and not self.of_records:
            self.flag(node, f"takes {node.attr}, but only records does")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if node.value in CLOSED and not self.of_records:
            self.flag(node, f"names {node.value}, but only records does")

    def judge_use(self, node: ast.Name | ast.Attribute) -> None:
        """A forbidden function is forbidden under an alias and uncalled too (``f = eval``)."""
        name = self.dotted(node)
        if name is None:
            return
        if name in NEVER:
            self.flag(node, f"uses {name}")
        if name in PRINTERS and self.layer != LAYERS["dpltm.cli"]:
            self.flag(node, f"uses {name}, but only cli prints")
        if isinstance(node, ast.Attribute) and name in LAYERS:
            self.reaches(node, name)  # dpltm.tickets reached through a plain `import dpltm`

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        name = self.dotted(node.func)
        if name in IMPORTERS | {DEFERRED} and self.function not in OF_A_PREFIX:
            target = node.args[0] if node.args else None
            if isinstance(target, ast.Constant) and isinstance(target.value, str):
                self.reaches(node, target.value)
            else:
                self.flag(node, f"{name} of a name that is not a literal")
        for keyword in node.keywords:
            if keyword.arg == "allow_pickle" and not (
                isinstance(keyword.value, ast.Constant) and keyword.value.value is False
            ):
                self.flag(node, "allow_pickle is not False")
        if not self.of_records:
            method = node.func.attr if isinstance(node.func, ast.Attribute) else None
            if method == "open" and (by := self.opener(node)):
                self.opened.add(by)
            elif self.layer == 0 and (name in OPENERS or method in OPENING_METHODS):
                self.flag(node, f"opens a file ({name or method}), but within dpltm only records does")

    def opener(self, node: ast.Call) -> str | None:
        """What opens records, in a word; None for a call that opens a file: of a text, or of more than one value."""
        by, *more = node.args or [None]
        is_text = isinstance(by, ast.JoinedStr) or (isinstance(by, ast.Constant) and isinstance(by.value, str))
        if by is None or more or node.keywords or is_text:
            return None
        if isinstance(by, ast.Constant) and by.value is None:
            return "nobody's"
        of = by.func if isinstance(by, ast.Call) else by
        word = of.attr if isinstance(of, ast.Attribute) else getattr(of, "id", "")
        words = {"secret": "secret", "declared": "declared", "declared_test": "declared", "Public": "said"}
        return words.get(word, f"what {ast.unparse(by)} is")


def check(source: str, module: str, *, is_package: bool = False) -> list[str]:
    """The violations in a module's source, as lines ``module:line: what``."""
    checker = Checker(module, is_package=is_package)
    checker.visit(ast.parse(source))
    return checker.found


def modules(folder: str) -> Iterator[tuple[Path, str]]:
    """Each source file of one folder with its installed name."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        parts = path.relative_to(ROOT / folder).with_suffix("").parts
        yield path, ".".join([PACKAGES[folder], *(part for part in parts if part != "__init__")])


@pytest.mark.parametrize("folder", PACKAGES)
def test_source(folder: str) -> None:
    found = []
    count = 0
    for path, module in modules(folder):
        found += check(path.read_text(encoding="utf-8"), module, is_package=path.name == "__init__.py")
        count += 1
    assert count > 0
    assert found == [], "\n".join(found)


OPENED = {
    "dpltm.tickets.workbench.latent": {"secret", "declared", "said"},  # the last by a server
    "dpltm.training.release": {"secret", "declared"},
    "dpltm.verbs.audit": {"declared"},
    "dpltm.verbs.evaluate": {"declared"},
    "dpltm.verbs.generate": {"declared"},
    "dpltm.verbs.schema": {"secret"},
    "dpltm.verbs.select": {"secret"},
    "dpltm.verbs.tune": {"declared"},
}
"""Modules that open records, and by what: the secret of a release, a declaration on record, the word of a caller."""


def test_who_opens_records() -> None:
    found = {}
    for folder in PACKAGES:
        for path, module in modules(folder):
            checker = Checker(module, is_package=path.name == "__init__.py")
            checker.visit(ast.parse(path.read_text(encoding="utf-8")))
            found |= {module: checker.opened} if checker.opened else {}
    assert found == OPENED


@pytest.mark.parametrize(
    ("source", "by"),
    [
        ("records.open(paid.secret)", "secret"),
        ("records.open(ledger.declared(dataset))", "declared"),
        ("records.open(None)", "nobody's"),
        ("records.open(Public('x'))", "said"),
        ("records.open(entry)", "what entry is"),
    ],
)
def test_checker_knows_what_opens_records(source: str, by: str) -> None:
    checker = Checker("dpltm.verbs.train", is_package=False)
    checker.visit(ast.parse(source))
    assert (checker.opened, checker.found) == ({by}, [])


@pytest.mark.parametrize(
    ("module", "source", "what"),
    [
        ("dpltm.cli.main", "dataset.train._closed.x", "takes _closed, but only records does"),
        ("dpltm.verbs.train", "getattr(split, '_closed')", "names _closed, but only records does"),
        ("dpltm.networks.masks", "path.open()", "opens a file (path.open)"),
        ("dpltm.networks.masks", "path.open('rb')", "opens a file (path.open)"),
        ("dpltm.networks.masks", "from dpltm.tickets.store import save", "imports dpltm.tickets.store.save, but"),
        ("dpltm.masks", "def f():\n    from .tickets import store", "imports dpltm.tickets.store, but"),
        ("dpltm.networks.masks", "import dpltm\ndpltm.tickets.store.save()", "imports dpltm.tickets, but"),
        ("dpltm.tickets.store", "from .... import cli", "beyond the top"),
        ("dpltm.cli.main", "from cli.main import main", "bare name cli"),
        ("dpltm.tickets.store", "emit = print", "only cli prints"),
        ("dpltm.tickets.store", "import sys\nsys.stdout.write('')", "only cli prints"),
        ("dpltm.cli.main", "from pickle import loads", "uses pickle"),
        ("dpltm.cli.main", "from joblib import Parallel, load", "uses joblib"),
        ("dpltm.cli.main", "__import__('pickle')", "uses pickle"),
        ("dpltm.cli.main", "run = exec", "uses exec"),
        ("dpltm.tickets.store", "from torch import load", "uses torch.load"),
        ("dpltm.tickets.store", "import torch\ntorch.save({}, 'x')", "uses torch.save"),
        ("dpltm.cli.main", "from importlib import import_module as m\nm(f'{x}')", "not a literal"),
        ("dpltm.networks", "from dpltm.registry import Deferred\nDeferred(place)", "not a literal"),
        ("dpltm.networks", "from dpltm.registry import Deferred\nDeferred('dpltm.cli.main:run')", "imports dpltm.cli"),
        ("dpltm.records.npz", "import numpy as np\nnp.load('x', allow_pickle=flag)", "allow_pickle is not False"),
        ("dpltm.networks.masks", "from pathlib import Path\nPath('x').read_text()", "opens a file (read_text)"),
        ("dpltm.networks.masks", "import numpy as np\nnp.load('x')", "opens a file (numpy.load)"),
        ("dpltm.database", "open('x')", "opens a file (open)"),
    ],
)
def test_checker_flags(module: str, source: str, what: str) -> None:
    found = check(source, module)
    assert len(found) == 1, found
    assert what in found[0]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("dpltm.cli.main", "from dpltm.tickets import store\nimport dpltm.networks.masks\nprint(store)"),
        (
            "dpltm.tickets.store",
            "from dpltm.networks.masks import density\nfrom . import card\nfrom ..errors import DpltmError",
        ),
        ("dpltm.tickets.store", "open('x', 'w')"),
        ("dpltm.tickets.store", "from joblib import Parallel, delayed, parallel_config"),
        ("dpltm.records", "from .npz import read\nopen('x')"),
        ("dpltm.records.npz", "import numpy as np\nnp.load('x', allow_pickle=False)"),
        ("dpltm.networks.masks", "import torch\nmodel.eval()\nmodel.load_state_dict({})\ntorch.exp"),
        ("dpltm.networks", "import importlib\nimportlib.import_module('torch.func')"),
    ],
)
def test_checker_lets_pass(module: str, source: str) -> None:
    assert check(source, module, is_package=module == "dpltm.records") == []


@pytest.mark.parametrize("name", ["tickets", "cli"])
def test_bare_import_is_refused(name: str, tmp_path: Path) -> None:
    script = f"import sys; sys.path = [{str(ROOT)!r}, *sys.path]; import {name}"
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError:"), done.stderr
    assert f"dpltm.{name}" in last


@pytest.mark.parametrize("place", ["repository root", "elsewhere"])
def test_mapped_packages_import(place: str, tmp_path: Path) -> None:
    """``dpltm.tickets`` and ``dpltm.cli`` come from their own folders, wherever Python is started."""
    script = "import dpltm.tickets, dpltm.cli; print(dpltm.tickets.__name__, dpltm.cli.__name__)"
    where = ROOT if place == "repository root" else tmp_path
    done = subprocess.run([sys.executable, "-c", script], cwd=where, capture_output=True, text=True, check=False)
    assert done.stdout == "dpltm.tickets dpltm.cli\n", done.stderr


PROGRAMS = [path for folder in ("benchmarks", "examples", "scripts") for path in sorted((ROOT / folder).glob("*.py"))]


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_what_programs_beside_the_package_use_is_there(path: Path) -> None:
    """Nothing runs most of them in the tests: a module that went, or an argument, would be missed by nobody."""
    tree, wrong = ast.parse(path.read_text()), []
    used: dict[str, object] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "dpltm":
            used[f"dpltm.{node.attr}"] = getattr(dpltm, node.attr)
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "dpltm":
            for each in node.names:
                try:
                    module = importlib.import_module(node.module or "")
                    if not hasattr(module, each.name):
                        importlib.import_module(f"{node.module}.{each.name}")
                    used[each.asname or each.name] = getattr(module, each.name)
                except ImportError:
                    wrong.append(f"{node.module}.{each.name}")
    assert wrong + _not_taken(tree, used) + _bound_twice(tree) == []


def _not_taken(tree: ast.Module, used: dict[str, object]) -> list[str]:
    """Calls of what was imported, by its name or as ``dpltm.name``, by arguments that it does not take."""
    wrong = []
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and callable(called := used.get(ast.unparse(node.func)))):
            continue
        by_name = {each.arg: None for each in node.keywords if each.arg is not None}
        by_place = [None for each in node.args if not isinstance(each, ast.Starred)]
        whole = len(by_name) == len(node.keywords) and len(by_place) == len(node.args)
        takes = inspect.signature(called)
        try:
            (takes.bind if whole else takes.bind_partial)(*by_place, **by_name)
        except TypeError as error:
            wrong.append(f"line {node.lineno}: {ast.unparse(node.func)}: {error}")
    return wrong


def _bound_twice(tree: ast.Module) -> list[str]:
    """Names of a module that are given a value which has nothing to do with the one that they had."""
    bound: set[str] = set()
    wrong = []
    for node in tree.body:
        names = [each for each in ast.walk(node) if isinstance(each, ast.Name)]
        match node:
            case ast.Assign() | ast.AnnAssign():
                mine = {each.id for each in names if isinstance(each.ctx, ast.Store)}
            case ast.FunctionDef() | ast.ClassDef():
                mine, names = {node.name}, []
            case ast.Import() | ast.ImportFrom():
                mine = {each.asname or each.name for each in node.names}
            case _:
                continue
        before = {each.id for each in names if isinstance(each.ctx, ast.Load)}
        wrong += [f"line {node.lineno}: {name} again" for name in sorted(mine & bound - before)]
        bound |= mine
    return wrong


def test_a_program_that_would_stop_is_found() -> None:
    def f(a: int, b: int = 0) -> None:
        pass

    bound = "from x import A\nA = 1\nLIMIT = {}\nLIMIT = {**LIMIT}\nLIMIT['a'] = 1\nLIMIT: int = 7\ndef LIMIT(): pass"
    assert _bound_twice(ast.parse(bound)) == [
        f"line {at}" for at in ("2: A again", "6: LIMIT again", "7: LIMIT again")
    ]
    calls = "f(1, 2)\nf(*x)\nf(1, b=2)\nf(1, c=2)\nf(**x)\ndpltm.f()\ng.f()"
    assert _not_taken(ast.parse(calls), {"f": f, "dpltm.f": f}) == [
        "line 4: f: got an unexpected keyword argument 'c'",
        "line 6: dpltm.f: missing a required argument: 'a'",
    ]


def test_what_is_imported_is_declared() -> None:
    """By the dependencies and the extras for users; a library that tests alone need is not there elsewhere."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {name: names for name, names in project["optional-dependencies"].items() if name not in ("test", "dev")}
    declared = [*project["dependencies"], *(name for names in extras.values() for name in names)]
    allowed = {re.split(r"[<>=\[]", name)[0].replace("-", "_") for name in declared} | {"sklearn", "dpltm"}
    imported: dict[str, str] = {}
    for path in (path for folder in PACKAGES for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            imported |= {name.partition(".")[0]: path.name for name in names}
    undeclared = imported.keys() - allowed - sys.stdlib_module_names
    assert {name: imported[name] for name in undeclared} == {}
