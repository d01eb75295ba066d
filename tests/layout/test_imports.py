"""What the design promises about the source, read off the syntax trees.

Imports point one way, ``cli -> tickets -> dpltm``; only ``cli`` prints; only ``dpltm/records`` opens files within
``dpltm``, and reads records without saying what opens them; and nothing unpickles or runs text as code. The lab can be taken
out: LATENT, audits and recipes, with their commands.
"""

import ast
import importlib
import inspect
import re
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

import dpltm
from programs import ROOT, program

PACKAGES = ("dpltm", "tickets", "cli")
SOURCES = dict(program("scripts/house.py").modules(ROOT))
"""Files of the source, by the name that a module is installed under."""

LAYERS = {"dpltm": 0, "dpltm.tickets": 1, "dpltm.cli": 2, "dpltm.__main__": 2}

PICKLERS = {"_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve"}
# of a pickler, what hands calls to processes of one's own
PROCESSES = {"joblib.Parallel", "joblib.cpu_count", "joblib.delayed", "joblib.parallel_config"}
NEVER = {"eval", "exec", "builtins.eval", "builtins.exec", "torch.load", "torch.save", "torch.serialization"}
IMPORTERS = {"importlib.import_module", "__import__", "builtins.__import__"}
# itself; what a package has and lists; within options and cli; code that the user names on the command line
OF_A_PREFIX = (
    "dpltm.registry.Deferred.resolve",
    "dpltm.registry.lazily.attribute",
    "dpltm.cli.commands.Later.__init__",
    "dpltm.tickets.workbench.code._of_package",
)
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
    """Collects the violations in one module, by its installed dotted name, for example ``dpltm.tickets.store``."""

    def __init__(self, module: str) -> None:
        self.found: list[str] = []
        self.module = module
        self.layer = layer(module)
        self.function = ""  # the dotted name of the function that is being looked at
        self.names: dict[str, str] = {}  # local name: the dotted name it was imported from
        self.imported = set[str]()  # dotted names, also those that are named to be imported when they are called for
        self.libraries: set[str] = set()
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
        self.imported.add(name)
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
            top = alias.name.partition(".")[0]
            self.reaches(node, alias.name)
            self.libraries.add(top)
            self.names[alias.asname or top] = alias.name if alias.asname else top

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        base = node.module or ""
        if node.level:
            self.flag(node, "relative import")
            return
        self.libraries.add(base.partition(".")[0])
        for alias in node.names:
            full = f"{base}.{alias.name}"
            self.reaches(node, full)
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
                self.reaches(node, target.value.replace(":", "."))
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


def check(source: str, module: str) -> Checker:
    """Looks at a module's source; violations are lines ``module:line: what``."""
    checker = Checker(module)
    checker.visit(ast.parse(source))
    return checker


@cache
def checked() -> dict[str, Checker]:
    """All modules, each looked at once."""
    return {name: check(path.read_text(encoding="utf-8"), name) for name, path in SOURCES.items()}


def test_source() -> None:
    assert {name.removeprefix("dpltm.").partition(".")[0] for name in SOURCES} >= {"dpltm", "tickets", "cli"}
    assert [line for checker in checked().values() for line in checker.found] == []


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
    assert {name: checker.opened for name, checker in checked().items() if checker.opened} == OPENED


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
    checker = check(source, "dpltm.verbs.train")
    assert (checker.opened, checker.found) == ({by}, [])


@pytest.mark.parametrize(
    ("module", "source", "what"),
    [
        ("dpltm.cli.main", "dataset.train._closed.x", "takes _closed, but only records does"),
        ("dpltm.verbs.train", "getattr(split, '_closed')", "names _closed, but only records does"),
        ("dpltm.networks.masks", "path.open('rb')", "opens a file (path.open)"),
        ("dpltm.networks.masks", "from pathlib import Path\nPath('x').read_text()", "opens a file (read_text)"),
        ("dpltm.networks.masks", "import numpy as np\nnp.load('x')", "opens a file (numpy.load)"),
        (
            "dpltm.networks.masks",
            "def f():\n    from dpltm.tickets.store import save",
            "imports dpltm.tickets.store.save",
        ),
        ("dpltm.networks.masks", "import dpltm\ndpltm.tickets.store.save()", "imports dpltm.tickets, but"),
        ("dpltm.networks", "from dpltm.registry import Deferred\nDeferred('dpltm.cli.main:run')", "imports dpltm.cli"),
        ("dpltm.tickets.store", "from .. import cli", "relative import"),
        ("dpltm.cli.main", "from cli.main import main", "bare name cli"),
        ("dpltm.tickets.store", "emit = print", "only cli prints"),
        ("dpltm.cli.main", "from joblib import Parallel, load", "uses joblib"),
        ("dpltm.cli.main", "__import__('pickle')", "uses pickle"),
        ("dpltm.cli.main", "run = exec", "uses exec"),
        ("dpltm.tickets.store", "from torch import load", "uses torch.load"),
        ("dpltm.cli.main", "from importlib import import_module as m\nm(f'{x}')", "not a literal"),
        ("dpltm.records.npz", "import numpy as np\nnp.load('x', allow_pickle=flag)", "allow_pickle is not False"),
    ],
)
def test_checker_flags(module: str, source: str, what: str) -> None:
    (found,) = check(source, module).found
    assert what in found


@pytest.mark.parametrize("name", ["tickets", "cli"])
def test_bare_import_is_refused(name: str, tmp_path: Path) -> None:
    script = f"import sys; sys.path = [{str(ROOT)!r}, *sys.path]; import {name}"
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError:"), done.stderr
    assert f"dpltm.{name}" in last


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
    assert wrong + _not_taken(tree, used) == []


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


def test_a_program_that_would_stop_is_found() -> None:
    def f(a: int, b: int = 0) -> None:
        pass

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
    imported = {library: name for name, checker in checked().items() for library in checker.libraries}
    undeclared = imported.keys() - allowed - sys.stdlib_module_names
    assert {name: imported[name] for name in undeclared} == {}


# --- the lab --------------------------------------------------------------------------------------------------------

LAB = (
    "dpltm.cli.lab",
    "dpltm.experiments",
    "dpltm.local",
    "dpltm.options.audit",
    "dpltm.tickets.workbench.latent",
    "dpltm.tickets.workbench.recipes",
    "dpltm.tickets.workbench.run",
    "dpltm.tickets.workbench.sweep",
    "dpltm.verbs.audit",
)
"""Modules, or packages with all in them."""

BY_NAME = {("dpltm.cli.stages", f"dpltm.tickets.workbench.{name}") for name in ("run.run_file", "run.demo")}
"""What is imported when it is called for: dpltm run and demo, whose three stages are a recipe of one arm."""


def of_lab(name: str) -> bool:
    return any(f"{name}.".startswith(f"{part}.") for part in LAB)


def test_nothing_outside_the_lab_imports_it() -> None:
    arrows = {(module, name) for module, checker in checked().items() for name in checker.imported if of_lab(name)}
    assert {arrow for arrow in arrows if not of_lab(arrow[0])} == BY_NAME


def test_all_else_is_imported_without_it(tmp_path: Path) -> None:
    """In a copy; and a stage runs."""
    for folder in PACKAGES:
        shutil.copytree(ROOT / folder, tmp_path / folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for module, path in SOURCES.items():
        if of_lab(module):
            (tmp_path / path.relative_to(ROOT)).unlink()
    kept = [module for module in SOURCES if not of_lab(module)]
    assert len(kept) > 150
    program = (
        f"import importlib\nfor name in {kept}:\n    importlib.import_module(name)\n"
        "from dpltm.cli.main import run\n"
        "raise SystemExit(run(['train', '--dense', '--dataset', 'digits', '--model', 'mlp:4', '--batch-size', '50',"
        " '--steps', '2', '--noise-multiplier', '1', '--dry-run', '--quiet']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env={"PYTHONPATH": str(tmp_path), "HOME": str(tmp_path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
