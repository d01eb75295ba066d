"""How sharp the tests are: a seeded sample of mutants of the privacy code, and how many of them the tests kill.

Cosmic Ray makes the mutants (plus one operator of ours: a call whose value nobody uses, such as a refusal, is left out).
First the whole suite runs once, unmutated, and coverage.py notes which tests run which lines; ``--map FILE`` keeps
that. Each mutant then meets the tests that run its line, in a private copy of the working tree: those of the file named
after its module, then one case of each other test, the quickest first, then more cases, for ``--budget`` seconds of
processor time. So a survivor is a mutant that these tests let pass; a test that is slow may still kill it. A parent
process imports torch and other libraries once and forks for each mutant; nothing of dpltm is imported before the fork.
Writes JSON after every mutant, goes on where an interrupted run ended, and prints a table at the end.

    pip install cosmic-ray coverage
    DPLTM_DATA=... OMP_NUM_THREADS=1 nice python benchmarks/mutants.py --out before.json
    ... change the code or its tests ...
    DPLTM_DATA=... OMP_NUM_THREADS=1 nice python benchmarks/mutants.py --same-as before.json --out after.json

A mutant is known by its module, function, operator, the text of its line, and which such place of the line it is. With
``--same-as`` the mutants of another run are looked for by that text, in whatever module it is now, and then by a similar
line of a function of the same name; the table compares what was found.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import importlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatch
from functools import cache, partial
from pathlib import Path
from typing import Any

import coverage
import parso.python.tree
import pytest
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Example, Operator
from cosmic_ray.operators.provider import OperatorProvider

ROOT = Path(__file__).resolve().parent.parent

TARGETS = (
    "dpltm/privacy/*.py", "dpltm/filters/*.py", "dpltm/privacy/selection.py", "dpltm/randomness/sampling.py",
    "dpltm/randomness/noise.py",
    "dpltm/networks/unit_groups.py", "dpltm/privacy/checks.py", "dpltm/features/setup.py",
    "dpltm/verbs/train.py",
)  # fmt: skip
"""Files to take mutants from: mechanisms, accounting, lineage, and what decides what is entered and refused."""

PRELOADED = (
    "torch", "torch.func", "numpy", "scipy.stats", "scipy.optimize", "scipy.special", "scipy.signal", "dp_accounting",
    "dp_accounting.pld.privacy_loss_distribution", "dp_accounting.rdp", "safetensors.torch", "safetensors.numpy",
    "sklearn.base", "sklearn.datasets", "sklearn.model_selection", "torch_pruning", "hypothesis", "typer", "rich.table",
)  # fmt: skip
"""What is imported once, before the forks."""

MEMORY = 12 * 2**30
"""Bytes of address space that a mutant may take on top of what the parent has."""

OVER = (signal.SIGXCPU, signal.SIGKILL)
"""What ends a process that takes more processor time than it may."""

NEAR = 0.6
"""How similar a line must be (difflib's ratio) to pass for one that was rewritten."""


class DropCall(Operator):
    """Leaves a call out whose value is not used: a check that refuses, an event that is entered."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Any, Any]]:
        statement = node.type == "atom_expr" and node.parent.type == "simple_stmt"
        if statement and node.children[-1].type == "trailer" and node.children[-1].children[0].value == "(":
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        del index
        return parso.python.tree.Keyword("pass", node.start_pos, node.get_first_leaf().prefix)

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return (Example("check(x)", "pass"),)


# --- mutants ---

Key = tuple[str, str, str, str, int]
"""What a mutant is known by."""


@dataclass(frozen=True)
class Mutant:
    """One small change.

    Attributes:
        path: of the file.
        function: dotted name of the innermost function or class around the line; empty for a module's own lines.
        operator: what makes the change.
        line: text of the line, without blanks at its ends.
        occurrence: which of the operator's places on lines of this text in this function.
        mutated: what the changed lines became.
        number: which of the operator's places in the file; for Cosmic Ray.
        lines: first and last line of the statement, or of its head.
        match: how a mutant of an earlier run was found: ``same``, ``moved`` or ``near``.
    """

    path: str
    function: str
    operator: str
    line: str
    occurrence: int
    mutated: str
    number: int
    lines: tuple[int, int]
    match: str = ""

    @property
    def key(self) -> Key:
        return self.path, self.function, self.operator, self.line, self.occurrence

    @property
    def name(self) -> str:
        """The last part of the function's name, less a mark of privacy: moving code changes those."""
        return self.function.rpartition(".")[2].lstrip("_")


@cache
def operators() -> dict[str, Operator]:
    """The operators whose mutants somebody could have written.

    Left out are those that need arguments, those that make a comparison one of identity (the interpreter warns of them),
    those between arithmetic and bits (most mutants would only raise TypeError), and the one that removes decorators.
    """
    provider = OperatorProvider()
    bits = {"RShift", "LShift", "BitOr", "BitAnd", "BitXor"}
    chosen: dict[str, Operator] = {"DropCall": DropCall()}
    for name in provider:
        kind, _, swap = name.partition("_")
        before, _, after = swap.partition("_")
        strange = {
            "ReplaceBinaryOperator": (before in bits) != (after in bits),
            "ReplaceComparisonOperator": after in ("Is", "IsNot") and before not in ("Is", "IsNot"),
            "RemoveDecorator": True,
        }
        if not strange.get(kind, False) and not provider[name].arguments():
            chosen[name] = provider[name]()
    return chosen


class Scopes(ast.NodeVisitor):
    """For each line its innermost function and statement; and the lines and columns of annotations, which do nothing."""

    def __init__(self, source: str) -> None:
        self.names: list[str] = []
        self.function: dict[int, str] = {}
        self.statement: dict[int, tuple[int, int]] = {}
        self.annotations: list[tuple[tuple[int, int], tuple[int, int]]] = []
        self.visit(ast.parse(source))

    def generic_visit(self, node: ast.AST) -> None:
        for part in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            if isinstance(part, ast.expr):
                self.annotations.append(
                    ((part.lineno, part.col_offset), (part.end_lineno or 0, part.end_col_offset or 0))
                )
        scope = isinstance(node, (ast.FunctionDef, ast.ClassDef))
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))])
            last = max(node.lineno, body[0].lineno - 1) if body else node.end_lineno or node.lineno
            if scope:
                self.names.append(node.name)  # type: ignore[attr-defined]
            for line in range(first, (node.end_lineno or last) + 1):
                self.function[line] = ".".join(self.names)
                self.statement[line] = (first, last) if line <= last else self.statement.get(line, (line, line))
        super().generic_visit(node)
        if scope:
            self.names.pop()

    def annotates(self, position: tuple[int, int]) -> bool:
        return any(start <= position < stop for start, stop in self.annotations)


def places(path: str, source: str, wanted: Callable[[str], bool] = lambda _: True) -> Iterator[Mutant]:
    """Every mutant of a file, in order of place; ``mutated`` is still empty."""
    scopes, texts = Scopes(source), source.splitlines()
    chosen = {name: operator for name, operator in operators().items() if wanted(name)}
    in_file, on_line = Counter[str](), Counter[tuple[str, str, str]]()
    for node in ast_nodes(get_ast(source)):
        for name, operator in chosen.items():
            for start, _ in operator.mutation_positions(node):
                number = in_file[name]
                in_file[name] += 1
                line, function = texts[start[0] - 1].strip(), scopes.function.get(start[0], "")
                if scopes.annotates(start):
                    continue
                place = (name, function, line)
                yield Mutant(
                    path,
                    function,
                    name,
                    line,
                    on_line[place],
                    "",
                    number,
                    scopes.statement.get(start[0], (start[0],) * 2),
                )
                on_line[place] += 1


def mutated_source(source: str, mutant: Mutant) -> str | None:
    """The file with the change; None if it does not parse, or means the same."""
    changed = mutate_code(source, operators()[mutant.operator], mutant.number)
    if changed is None:
        return None
    try:
        if ast.dump(ast.parse(changed)) == ast.dump(ast.parse(source)):
            return None
    except SyntaxError:
        return None
    return changed


def shown(source: str, mutant: Mutant) -> Mutant | None:
    """The mutant with ``mutated`` filled in; None for one that is no mutant."""
    changed = mutated_source(source, mutant)
    if changed is None:
        return None
    new = [line[2:].strip() for line in difflib.ndiff(source.splitlines(), changed.splitlines()) if line[:2] == "+ "]
    return replace(mutant, mutated=" / ".join(new))


def targets(sources: dict[str, str]) -> list[str]:
    """Paths of this tree to take mutants from."""
    return [path for path in sources if any(fnmatch(path, pattern) for pattern in TARGETS)]


def sample(sources: dict[str, str], seed: int, scale: float) -> list[Mutant]:
    """Mutants of every target: of a place drawn first and an operator after, so that many-sided operators weigh no more.

    Up to a third of a file's mutants are calls left out, those of checks first: what they refuse is what tests must notice.
    """
    picked: list[Mutant] = []
    for path in targets(sources):
        source = sources[path]
        by_place: dict[tuple[str, str, str, tuple[int, int]], list[Mutant]] = defaultdict(list)
        for mutant in places(path, source):
            kind = mutant.operator.rpartition("_")[0] or mutant.operator
            by_place[mutant.function, mutant.line, kind, mutant.lines].append(mutant)
        rng = random.Random(f"{seed} {path}")
        groups = list(by_place.values())
        rng.shuffle(groups)
        most = min(25, max(4, round(scale * len(groups) ** 0.5)))
        calls = [group for group in groups if group[0].operator == "DropCall"]
        calls.sort(key=lambda group: "check" not in group[0].line)
        groups = [*calls[: most // 3], *(group for group in groups if group not in calls)]
        here: list[Mutant] = []
        for group in groups:
            if len(here) >= most:
                break
            here += filter(None, [shown(source, rng.choice(group))])
        picked += here
    return picked


def find_again(sources: dict[str, str], old: Mutant) -> Mutant | None:
    """The mutant of an earlier run in this tree: the same, or moved with its function, or on a line that was rewritten."""

    @cache
    def of(path: str) -> list[Mutant]:
        return list(places(path, sources[path], lambda name: name == old.operator))

    holding = [path for path, source in sources.items() if old.line in source]
    exact = [m for path in holding for m in of(path) if (m.line, m.occurrence) == (old.line, old.occurrence)]
    for match, fits in (
        ("same", [m for m in exact if (m.path, m.function) == (old.path, old.function)]),
        ("moved", [m for m in exact if m.name == old.name]),
        ("moved", exact if len(exact) == 1 else [m for m in exact if m.path == old.path]),
    ):
        if len(fits) == 1 and (found := shown(sources[fits[0].path], fits[0])) is not None:
            return replace(found, match=match)
    if not old.name:
        return None
    near = [
        (difflib.SequenceMatcher(None, old.line, m.line).ratio(), m)
        for path, source in sources.items()
        if f"{old.name}(" in source or f"class {old.name}" in source
        for m in of(path)
        if m.name == old.name and m.occurrence == old.occurrence
    ]
    ratio, best = max(near, key=lambda pair: pair[0], default=(0.0, None))
    found = shown(sources[best.path], best) if best is not None and ratio >= NEAR else None
    return None if found is None else replace(found, match="near")


# --- a private copy of the tree ---


@dataclass(frozen=True)
class Tree:
    """A copy of the working tree, and an import path with its packages under their installed names."""

    folder: Path
    imports: Path

    @classmethod
    def copy(cls, to: Path) -> Tree:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            check=True,
        )
        tree = cls(to / "tree", to / "imports")
        for name in filter(None, listed.stdout.decode().split("\0")):
            if (ROOT / name).is_file():
                (tree.folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, tree.folder / name)
        for inner in (tree.folder / "dpltm").iterdir():
            (tree.imports / "dpltm").mkdir(parents=True, exist_ok=True)
            (tree.imports / "dpltm" / inner.name).symlink_to(inner)
        for package, folder in tree.packages().items():
            if package != "dpltm":
                (tree.imports / package.replace(".", "/")).symlink_to(tree.folder / folder)
        return tree

    def packages(self) -> dict[str, str]:
        """The folders of packages, by name."""
        return {"dpltm": "dpltm", "dpltm.tickets": "tickets", "dpltm.cli": "cli"}

    def sources(self) -> dict[str, str]:
        """Text of every file of the packages, by path."""
        files = sorted(path for folder in self.packages().values() for path in (self.folder / folder).rglob("*.py"))
        return {str(path.relative_to(self.folder)): path.read_text(encoding="utf-8") for path in files}


def in_child(tree: Tree, work: Callable[[], Any], log: Path, seconds: float) -> tuple[str, Any]:
    """What ``work`` returned in a forked process: ("done", value), ("died", status) or ("timeout", None)."""
    answer = log.with_suffix(".answer")
    answer.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        status = 1
        with suppress(BaseException):
            os.setsid()
            out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for number, to in ((0, os.open(os.devnull, os.O_RDONLY)), (1, out), (2, out)):
                os.dup2(to, number)
            try:
                scratch = Path(tempfile.mkdtemp(dir=log.parent))
                os.environ.update(PYTHONPATH=str(tree.imports), PYTHONSAFEPATH="1", TMPDIR=str(scratch))
                os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(scratch)  # no example of one mutant meets the next
                os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(log.parent / "compiled")
                tempfile.tempdir = None
                sys.path.insert(0, str(tree.imports))
                os.chdir(tree.folder)
                answer.write_text(json.dumps(work()), encoding="utf-8")
                status = 0
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)
    end = time.monotonic() + seconds
    ended, status = 0, 0
    while not ended and time.monotonic() < end:
        time.sleep(0.02)
        ended, status = os.waitpid(child, os.WNOHANG)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what it started, too
    if not ended:
        os.waitpid(child, 0)
    for scratch in log.parent.glob("tmp*"):
        shutil.rmtree(scratch, ignore_errors=True)
    if not ended:
        return "timeout", None
    return ("done", json.loads(answer.read_text(encoding="utf-8"))) if answer.exists() else ("died", status)


def run_pytest(arguments: list[str], plugin: object = None) -> int:
    common = ["-q", "-n", "0", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
    common += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # hypothesis was imported before the fork
    return int(pytest.main([*common, *arguments], plugins=[plugin] if plugin else []))


# --- which tests run which lines ---


def cpu_seconds() -> float:
    """Of this process and of those that it started and that ended: the same on a busy machine."""
    return sum(os.times()[:4])


class Recorder:
    """Tells coverage.py which test runs, or which fixture that several tests share is being made."""

    def __init__(self, cover: coverage.Coverage) -> None:
        self.cover, self.context = cover, ""
        self.tests: dict[str, dict[str, Any]] = {}
        self.failed: list[str] = []

    def to(self, context: str) -> str:
        before, self.context = self.context, context
        self.cover.switch_context(context)
        return before

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        before, began = self.to(item.nodeid), cpu_seconds()
        result = yield
        names = [f"fixture {name}" for name in getattr(item, "fixturenames", ())]
        self.tests[item.nodeid] = {"seconds": cpu_seconds() - began, "fixtures": names}
        self.to(before)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        before = self.to(self.context if fixturedef.scope == "function" else f"fixture {fixturedef.argname}")
        try:
            return (yield)
        finally:
            self.to(before)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed or report.skipped:
            self.failed.append(report.nodeid)


def record_map(tree: Tree, paths: list[str], tests: list[str]) -> dict[str, Any]:
    """Runs the tests unmutated. Runs in a child: it imports dpltm.

    Returns:
        ``tests``: seconds of every one that passed; ``lines``: by path and line, the tests that run it (None among them:
        importing runs it).
    """
    data = tempfile.mktemp()
    cover = coverage.Coverage(data_file=data, config_file=False, include=[str(tree.folder / path) for path in paths])
    recorder = Recorder(cover)
    cover.start()
    run_pytest(tests, recorder)
    cover.stop()
    cover.save()
    passed = {name: facts for name, facts in recorder.tests.items() if name not in set(recorder.failed)}
    order = {name: number for number, name in enumerate(passed)}
    users: dict[str, list[int]] = defaultdict(list)
    for name, facts in passed.items():
        for fixture in facts["fixtures"]:
            users[fixture].append(order[name])
    lines: dict[str, dict[int, list[int | None]]] = {}
    data_found = cover.get_data()
    for path in paths:
        by_line = data_found.contexts_by_lineno(str((tree.folder / path).resolve()))
        lines[path] = {
            line: sorted({n for c in contexts for n in (users.get(c, []) if c not in order else [order[c]])})
            + ([None] if "" in contexts else [])
            for line, contexts in by_line.items()
        }
    return {
        "tests": list(passed),
        "seconds": [round(facts["seconds"], 4) for facts in passed.values()],
        "left_out": sorted(set(recorder.failed)),
        "lines": lines,
    }


def tests_for(ran: dict[str, Any], mutant: Mutant, budget: float) -> list[list[tuple[str, float]]]:
    """Tests that run the mutant's line, with their seconds, in groups to be tried one after the other.

    Tests of the module's own file come first, then one case of each test, the quickest first, then more cases.
    """
    by_line = {int(line): numbers for line, numbers in ran["lines"][mutant.path].items()}
    first, last = mutant.lines
    direct = {number for line in range(first, last + 1) for number in by_line.get(line, ())}
    numbers = direct
    if None in direct:  # importing runs it, so whoever uses the module may notice
        numbers = {number for each in by_line.values() for number in each}
    own = f"/test_{Path(mutant.path).stem}.py"
    of_function = Counter[str]()
    ranked = []
    for seconds, name, number in sorted((ran["seconds"][n], ran["tests"][n], n) for n in numbers if n is not None):
        file, _, test = name.partition("::")
        function = f"{file}::{test.partition('[')[0]}"
        ranked.append((not file.endswith(own), number not in direct, of_function[function], seconds, name))
        of_function[function] += 1
    files: dict[str, list[tuple[str, float]]] = defaultdict(list)
    total = 0.0
    for *_, seconds, name in sorted(ranked):
        total += seconds
        if total > budget and files:
            break
        files[name.partition("::")[0]].append((name, seconds))
    order = sorted(files, key=lambda file: (not file.endswith(own), sum(seconds for _, seconds in files[file])))
    parts = (
        [test for file in order[start:stop] for test in files[file]] for start, stop in ((0, 3), (3, 12), (12, None))
    )
    return [part for part in parts if part]


class Chosen:
    """Keeps the named tests, in their order, stops when they have taken their time, and remembers the first that failed."""

    def __init__(self, tests: list[tuple[str, float]], budget: float) -> None:
        self.order, self.failed = {name: number for number, (name, _) in enumerate(tests)}, ""
        self.budget, self.began, self.used, self.ran = budget, 0.0, 0.0, 0

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted(
            (item for item in items if item.nodeid in self.order), key=lambda item: self.order[item.nodeid]
        )
        self.began = cpu_seconds()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        del item
        self.used = cpu_seconds() - self.began
        over = self.used > self.budget
        self.ran += not over
        return True if over else None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed = self.failed or report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed = self.failed or f"{report.nodeid} (import)"


def try_tests(tests: list[tuple[str, float]], budget: float, limit: float) -> dict[str, Any]:
    """Runs in a child: no test begins after ``budget`` seconds of processor time, and all ends after ``limit``."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY,) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (int(limit) + 1,) * 2)
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    chosen = Chosen(tests, budget)
    code = run_pytest(["-x", *sorted({name.partition("::")[0] for name, _ in tests})], chosen)
    return {"code": code, "by": chosen.failed, "used": chosen.used, "ran": chosen.ran}


def judge(
    tree: Tree, mutant: Mutant | None, groups: list[list[tuple[str, float]]], budget: float, log: Path
) -> dict[str, Any]:
    """What became of a mutant (or, with None, of the code as it is)."""
    began, tried, left = time.monotonic(), 0, budget
    verdict: dict[str, Any] = {"outcome": "survived", "by": ""}
    path = None if mutant is None else tree.folder / mutant.path
    before = "" if path is None else path.read_text(encoding="utf-8")
    times = (0, 0) if path is None else (path.stat().st_atime_ns, path.stat().st_mtime_ns)
    try:
        if path is not None and mutant is not None:
            path.write_text(mutated_source(before, mutant) or "", encoding="utf-8")
        for tests in groups:
            limit = 20 + 3 * budget
            how, answer = in_child(tree, partial(try_tests, tests, left, limit), log, 5 * limit)
            if how == "done":
                tried, left = tried + answer["ran"], left - answer["used"]
                if answer["code"] == 0 and left > 0:
                    continue
            if how == "timeout" or (how == "died" and os.WIFSIGNALED(answer) and os.WTERMSIG(answer) in OVER):
                verdict = {"outcome": "timeout", "by": ""}
            elif how == "died" or answer["by"] or answer["code"] in (3, 4):  # 4: a conftest could not be imported
                verdict = {"outcome": "killed", "by": "" if how == "died" else answer["by"]}
            elif answer["code"] != 0:
                verdict = {"outcome": "error", "by": f"pytest ended with {answer['code']}"}
            break
    finally:
        if path is not None:
            path.write_text(before, encoding="utf-8")
            os.utime(path, ns=times)
    return {**verdict, "tests": tried, "seconds": round(time.monotonic() - began, 1)}


# --- the report ---


def table(results: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    by_module: dict[str, Counter] = defaultdict(Counter)
    for result in results:
        for name in (result["path"], "all"):
            by_module[name][result["outcome"]] += 1
    names = ("killed", "timeout", "survived", "error", "lost")
    return {
        module: {"mutants": sum(counts.values()), **{name: counts[name] for name in names if counts[name]}}
        for module, counts in sorted(by_module.items())
    }


def write(out: Path, body: dict[str, Any]) -> None:
    out.with_suffix(".new").write_text(json.dumps(body, indent=1), encoding="utf-8")
    out.with_suffix(".new").replace(out)


def mutant_of(result: dict[str, Any]) -> Mutant:
    fields = {name: result[name] for name in Mutant.__dataclass_fields__}
    return Mutant(**{**fields, "lines": tuple(fields["lines"])})


def compare(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Of the mutants that were found again: how many tests kill now, and kill no longer."""
    found, dead = [result for result in results if "was" in result], ("killed", "timeout")
    return {
        "found": len(found),
        "match": dict(Counter(result["match"] for result in found)),
        "killed_before": sum(result["was"] in dead for result in found),
        "killed_now": sum(result["outcome"] in dead for result in found),
        "no_longer_killed": [
            f"{result['path']}, {result['function']}: {result['line']}  ->  {result['mutated']}"
            for result in found
            if result["was"] in dead and result["outcome"] not in dead
        ],
    }


def all_again(sources: dict[str, str], before: Path) -> tuple[list[Mutant], dict[Key, str], list[dict[str, Any]]]:
    """The mutants of an earlier run that are found in this tree, what became of each then, and those not found."""
    mutants, was, lost = [], {}, []
    for result in json.loads(before.read_text(encoding="utf-8"))["mutants"]:
        again = find_again(sources, mutant_of(result))
        if again is None or again.key in was:
            lost.append({**result, "outcome": "lost", "was": result.get("was", result["outcome"])})
        else:
            mutants.append(again)
            was[again.key] = result["outcome"]
    return mutants, was, lost


def lines_run(given: argparse.Namespace, tree: Tree, paths: list[str], log: Path) -> dict[str, Any]:
    """The map of ``record_map``, from its file if there is one."""
    if given.map and given.map.exists():
        return dict(json.loads(given.map.read_text(encoding="utf-8")))
    how, found = in_child(tree, lambda: record_map(tree, paths, given.tests), log, 4 * 3600)
    if how != "done":
        sys.exit(f"the tests could not be run unmutated ({how}):\n{log.read_text()[-4000:]}")
    if given.map:
        write(given.map, found)
    return dict(found)


def check_plain(tree: Tree, groups: list[list[tuple[str, float]]], budget: float, log: Path) -> None:
    """Ends the program if tests that should judge a mutant fail on the code as it is."""
    plain = judge(tree, None, groups, budget, log)
    if plain["outcome"] != "survived":
        sys.exit(f"the tests fail on the code as it is: {plain}\n{log.read_text()[-4000:]}")


def measure(given: argparse.Namespace, tree: Tree, log: Path) -> None:
    sources = tree.sources()
    if given.same_as:
        mutants, was, lost = all_again(sources, given.same_as)
    else:
        mutants, was, lost = sample(sources, given.seed, given.scale), {}, []
    mutants = [mutant for mutant in mutants if given.only in mutant.path]
    if given.list:
        for mutant in mutants:
            print(f"{mutant.path}, {mutant.function}, {mutant.operator}: {mutant.line}  ->  {mutant.mutated}")
        print(f"{len(mutants)} mutants, and {len(lost)} that were not found again")
        return
    for module in PRELOADED:
        importlib.import_module(module)
    ran = lines_run(given, tree, sorted({*targets(sources), *(mutant.path for mutant in mutants)}), log)
    print(f"{len(ran['tests'])} tests, {sum(ran['seconds']):.0f} s; left out: {len(ran['left_out'])}", flush=True)
    in_child(tree, lambda: run_pytest(["--collect-only", "-q", *given.tests]), log, 3600)  # writes the bytecode
    done = json.loads(given.out.read_text(encoding="utf-8"))["mutants"] if given.out.exists() else []
    known = {mutant_of(result).key: result for result in done if result["outcome"] != "lost"}
    random.Random(given.seed).shuffle(mutants)  # a run that is stopped early is a fair sample, too
    mutants.sort(key=lambda mutant: mutant.key not in known)
    results: list[dict[str, Any]] = []
    checked = False
    for count, mutant in enumerate(mutants, 1):
        result = known.get(mutant.key)
        if result is None:
            groups = tests_for(ran, mutant, given.budget)
            if not checked:
                check_plain(tree, groups, given.budget, log)
                checked = True
            result = {**asdict(mutant), **judge(tree, mutant, groups, given.budget, log)}
            if mutant.key in was:
                result["was"] = was[mutant.key]
            change = f"{mutant.path}: {mutant.line}  ->  {mutant.mutated}"
            print(f"{count}/{len(mutants)} {result['outcome']}, {result['seconds']} s, {change}", flush=True)
        results.append(result)
        write(given.out, {"table": table([*results, *lost]), "mutants": [*results, *lost]})
    body: dict[str, Any] = {"table": table([*results, *lost])}
    if given.same_as:
        body["compared"] = compare(results)
    write(given.out, {**body, "mutants": [*results, *lost]})
    print(json.dumps(body, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--map", type=Path, help="where the lines that tests run are kept; read if it exists")
    parser.add_argument("--same-as", type=Path, help="an earlier --out: its mutants in place of a new sample")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--scale", type=float, default=1.4, help="mutants of a file: this times the root of its places"
    )
    parser.add_argument("--budget", type=float, default=12.0, help="processor seconds of tests that a mutant meets")
    parser.add_argument("--tests", nargs="*", default=["tests"], help="files or folders of tests")
    parser.add_argument("--only", default="", help="mutants of paths that contain this text")
    parser.add_argument("--list", action="store_true", help="print the mutants, and run nothing")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        measure(given, Tree.copy(folder), folder / "log")


if __name__ == "__main__":
    main()
