"""How sharp the tests of a room are: a seeded sample of mutants of its code, and how many of them its tests kill.

A mutant is one small change of one statement: another comparison, operation or number, a condition turned round, a call
left out whose value nobody uses (a check that refuses, an entry that is written). A third of a sample is such calls.
Each mutant meets the tests of its room, in a private copy of the working tree, until one fails. A survivor is a mutant
that these tests let pass; some survivors mean the same as the code. Writes JSON after every mutant, and goes on where an
interrupted run ended.

    DPLTM_DATA=... OMP_NUM_THREADS=1 python benchmarks/mutants.py --rooms privacy filters --out before.json
    ... change the code or its tests ...
    DPLTM_DATA=... OMP_NUM_THREADS=1 python benchmarks/mutants.py --same-as before.json --out after.json

``--same-as`` looks for the mutants of another run: in the same function, then wherever the same statement is now, then on
a similar statement of a function of the same name.
"""

from __future__ import annotations

import argparse
import ast
import copy
import difflib
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

ROOMS = ["privacy", "privacy/selection", "filters", "randomness", "gradients"]
TESTS = {"privacy": ("tests/dpltm/privacy", "tests/account", "tests/properties")}
"""Folders of tests of a room where they are not ``tests/dpltm/ROOM``."""

SWAPS: dict[type[ast.AST], tuple[type[ast.AST], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.In: (ast.NotIn,), ast.NotIn: (ast.In,), ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,), ast.And: (ast.Or,), ast.Or: (ast.And,), ast.Add: (ast.Sub,), ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div, ast.Add), ast.Div: (ast.Mult,), ast.FloorDiv: (ast.Mult,), ast.Mod: (ast.FloorDiv,),
    ast.Pow: (ast.Mult,), ast.BitAnd: (ast.BitOr,), ast.BitOr: (ast.BitAnd,), ast.LShift: (ast.RShift,),
    ast.RShift: (ast.LShift,),
}  # fmt: skip
NAMES = {"min": "max", "max": "min", "ceil": "floor", "floor": "ceil", "any": "all", "all": "any", "log1p": "log"}

MEMORY = 16 * 2**30
"""Bytes of address space that the tests of a mutant may take."""

NEAR = 0.6
"""How similar a statement must be (difflib's ratio) to pass for one that was rewritten."""


@dataclass(frozen=True)
class Mutant:
    """One small change.

    Attributes:
        path: of the file.
        function: dotted name of the innermost function or class; empty for a module's own statements.
        before: the statement, or its head, as ``ast.unparse`` writes it.
        after: what it becomes.
        line: where it begins.
        match: how a mutant of an earlier run was found: ``same``, ``moved`` or ``near``.
    """

    path: str
    function: str
    before: str
    after: str
    line: int
    match: str = ""


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """What an expression may become."""
    if isinstance(node, ast.Compare):
        for place, operator in enumerate(node.ops):
            for swap in SWAPS.get(type(operator), ()):
                yield ast.Compare(node.left, [*node.ops[:place], swap(), *node.ops[place + 1 :]], node.comparators)
    elif isinstance(node, (ast.BinOp, ast.BoolOp)):
        for swap in SWAPS.get(type(node.op), ()):
            changed = copy.copy(node)
            changed.op = swap()
            yield changed
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        yield node.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        yield ast.Constant(node.value + 1)
    elif isinstance(node, ast.IfExp):
        yield ast.IfExp(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)
    elif isinstance(node, (ast.Name, ast.Attribute)):
        name = node.id if isinstance(node, ast.Name) else node.attr
        if name in NAMES:
            yield ast.Name(NAMES[name]) if isinstance(node, ast.Name) else ast.Attribute(node.value, NAMES[name])


def places(parent: ast.AST) -> Iterator[tuple[ast.AST, str, int | None, ast.AST]]:
    """Every expression of a statement's head (parent, field, index, node); annotations and messages do nothing."""
    for name, value in ast.iter_fields(parent):
        if name in (
            "annotation",
            "returns",
            "exc",
            "msg",
            "decorator_list",
            "body",
            "orelse",
            "finalbody",
            "handlers",
        ) and (isinstance(parent, ast.stmt)):
            continue
        for index, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(node, ast.AST) and not isinstance(node, (ast.stmt, ast.JoinedStr, ast.arg)):
                yield parent, name, index, node
                yield from places(node)


def head(statement: ast.stmt) -> str:
    """Text of a statement without what is below it."""
    return ast.unparse(statement).partition(":\n")[0] if getattr(statement, "body", None) else ast.unparse(statement)


def set_field(parent: ast.AST, name: str, index: int | None, node: ast.AST) -> None:
    if index is None:
        setattr(parent, name, node)
    else:
        getattr(parent, name)[index] = node


def mutants(path: str, source: str, wanted: Mutant | None = None) -> Iterator[tuple[Mutant, str]]:
    """Mutants of a file, each with the file's changed text; the text of ``wanted`` alone, where one is given."""
    tree = ast.parse(source)

    def visit(node: ast.AST, function: str) -> Iterator[tuple[Mutant, str]]:
        for name, value in ast.iter_fields(node):
            for index, inner in enumerate(value if isinstance(value, list) else []):
                if isinstance(inner, ast.stmt):
                    yield from changed(node, name, index, inner, function)
                if isinstance(inner, (ast.stmt, ast.ExceptHandler, ast.match_case)):
                    scope = isinstance(inner, (ast.FunctionDef, ast.ClassDef))
                    yield from visit(inner, f"{function}.{inner.name}".strip(".") if scope else function)  # type: ignore[attr-defined]

    def changed(
        parent: ast.AST, name: str, index: int, statement: ast.stmt, function: str
    ) -> Iterator[tuple[Mutant, str]]:
        before = head(statement)

        def text(after: str) -> tuple[Mutant, str]:
            mutant = Mutant(path, function, before, after, statement.lineno)
            return mutant, ast.unparse(ast.fix_missing_locations(tree)) if wanted in (None, mutant) else ""

        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            set_field(parent, name, index, ast.Pass())
            yield text("pass")
            set_field(parent, name, index, statement)
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            return
        found = (
            [] if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant) else places(statement)
        )
        for owner, field, number, node in list(found):
            for new in changes(node):
                set_field(owner, field, number, new)
                yield text(head(statement))
                set_field(owner, field, number, node)
        if isinstance(statement, (ast.If, ast.While)):
            statement.test = ast.UnaryOp(ast.Not(), test := statement.test)
            yield text(head(statement))
            statement.test = test

    yield from visit(tree, "")


def listed(path: str, source: str) -> list[Mutant]:
    """Mutants of a file, once each."""
    nobody = Mutant("", "", "", "", 0)
    return list(dict.fromkeys(mutant for mutant, _ in mutants(path, source, nobody)))


def sources() -> dict[str, str]:
    files = sorted((ROOT / "dpltm").rglob("*.py"))
    return {str(file.relative_to(ROOT)): file.read_text(encoding="utf-8") for file in files}


def room_of(path: str) -> str:
    return Path(path).parts[1]


def sample(files: dict[str, str], room: str, seed: int, number: int) -> list[Mutant]:
    """Mutants of a room: a statement is drawn first and a change of it after, so that long statements weigh no more."""
    by_statement: dict[tuple[str, str, str, int], list[Mutant]] = defaultdict(list)
    for path, source in files.items():
        for mutant in listed(path, source) if path.startswith(f"dpltm/{room}") else ():
            by_statement[path, mutant.function, mutant.before, mutant.line].append(mutant)
    rng = random.Random(f"{seed} {room}")
    drawn = [rng.choice(group) for group in rng.sample(list(by_statement.values()), len(by_statement))]
    calls = [mutant for mutant in drawn if mutant.after == "pass"][: number // 3]
    return [*calls, *(mutant for mutant in drawn if mutant.after != "pass")][:number]


def find_again(everywhere: list[Mutant], old: Mutant) -> Mutant | None:
    """The mutant of an earlier run among those of this tree; None where it went."""
    name = old.function.rpartition(".")[2].lstrip("_")
    exact = [mutant for mutant in everywhere if (mutant.before, mutant.after) == (old.before, old.after)]
    named = [mutant for mutant in everywhere if name and mutant.function.rpartition(".")[2].lstrip("_") == name]
    for match, fits in (
        ("same", [mutant for mutant in exact if (mutant.path, mutant.function) == (old.path, old.function)]),
        ("moved", [mutant for mutant in exact if mutant in named]),
        ("moved", exact if len(exact) == 1 else []),
    ):
        if fits:
            return replace(min(fits, key=lambda mutant: abs(mutant.line - old.line)), match=match)

    def alike(mutant: Mutant) -> float:
        pairs = ((old.before, mutant.before), (old.after, mutant.after))
        return min(difflib.SequenceMatcher(None, *pair).ratio() for pair in pairs)

    best = max(named, key=alike, default=None)
    return replace(best, match="near") if best is not None and alike(best) >= NEAR else None


def run_tests(tree: Path, tests: list[str], limit: float | None = None) -> tuple[str, str, float]:
    """What became of the tests in a copy of the tree (passed, failed or timeout), the first that failed, and seconds."""
    began = time.monotonic()
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "--tb=no",
        "-rfE",
        "-p",
        "no:cacheprovider",
        "-n",
        "0",
        *tests,
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": str(tree),
        "PYTHONSAFEPATH": "1",
        "TMPDIR": str(tree.parent / "scratch"),
    }
    (tree.parent / "scratch").mkdir(exist_ok=True)
    try:
        done = subprocess.run(
            command,
            cwd=tree,
            env=environment,
            timeout=limit,
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY)),
        )
    except subprocess.TimeoutExpired:
        return "timeout", "", time.monotonic() - began
    finally:
        shutil.rmtree(tree.parent / "scratch")
    failed = [line.split(" - ")[0] for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return (
        "failed" if done.returncode else "passed",
        failed[0] if failed else done.stdout[-500:],
        time.monotonic() - began,
    )


def tests_of(tree: Path, path: str) -> list[str]:
    """The test files of a module's room; the module's own come first."""
    room, stem = room_of(path), Path(path).stem.split("_")[0]
    folders = TESTS.get(room, (f"tests/dpltm/{room}",))
    files = [file for folder in folders for file in sorted((tree / folder).glob("**/test_*.py"))]
    return [str(file.relative_to(tree)) for file in sorted(files, key=lambda file: stem not in file.stem)]


def summary(results: list[dict]) -> dict[str, dict[str, int]]:
    counts: dict[str, Counter] = defaultdict(Counter)
    for result in results:
        for name in (room_of(result["path"]), "all"):
            counts[name]["mutants"] += 1
            counts[name][result["outcome"]] += 1
            if "was" in result:
                counts[name][f"was {result['was']}"] += 1
    return {room: dict(sorted(each.items())) for room, each in sorted(counts.items())}


def judge(tree: Path, mutant: Mutant, source: str, limit: float) -> dict:
    """What became of a mutant: killed or survived, and the first test that failed."""
    text = next(text for _, text in mutants(mutant.path, source, replace(mutant, match="")) if text)
    (tree / mutant.path).write_text(text, encoding="utf-8")
    try:
        outcome, by, seconds = run_tests(tree, tests_of(tree, mutant.path), limit)
    finally:
        (tree / mutant.path).write_text(source, encoding="utf-8")
    survived = outcome == "passed"
    outcome = "survived" if survived else "killed"
    return {**asdict(mutant), "outcome": outcome, "by": "" if survived else by, "seconds": round(seconds, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rooms", nargs="*", default=ROOMS, help="folders of dpltm, or modules")
    parser.add_argument("--number", type=int, default=12, help="mutants of a room")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--same-as", type=Path, help="an earlier --out: its mutants in place of a new sample")
    parser.add_argument("--list", action="store_true", help="print the mutants, and run nothing")
    given = parser.parse_args()
    files = sources()
    was: dict[Mutant, str] = {}
    results: list[dict] = []
    if given.same_as:
        everywhere = [mutant for path, source in files.items() for mutant in listed(path, source)]
        for result in json.loads(given.same_as.read_text(encoding="utf-8"))["mutants"]:
            again = find_again(everywhere, Mutant(**{name: result[name] for name in Mutant.__dataclass_fields__}))
            if again is None:
                results.append({**result, "outcome": "lost", "was": result["outcome"]})
            else:
                was[again] = result["outcome"]
        chosen = list(was)
    else:
        chosen = [mutant for room in given.rooms for mutant in sample(files, room, given.seed, given.number)]
    if given.list:
        for mutant in chosen:
            print(f"{mutant.path}:{mutant.line}, {mutant.function}: {mutant.before}  ->  {mutant.after}")
        return
    done = json.loads(given.out.read_text(encoding="utf-8"))["mutants"] if given.out.exists() else []
    with tempfile.TemporaryDirectory() as name:
        tree = Path(name).resolve() / "tree"
        left_out = shutil.ignore_patterns(".git", ".venv", "build", "__pycache__", ".*_cache", "site")
        shutil.copytree(ROOT, tree, symlinks=True, ignore=left_out)
        unmutated: dict[str, float] = {}
        for count, mutant in enumerate(chosen, 1):
            result = next((result for result in done if result.items() >= asdict(mutant).items()), None)
            if result is None:
                room = room_of(mutant.path)
                if room not in unmutated:
                    outcome, first, unmutated[room] = run_tests(tree, tests_of(tree, mutant.path))
                    if outcome != "passed":
                        sys.exit(f"the tests fail on the code as it is: {first}")
                result = judge(tree, mutant, files[mutant.path], 20 + 3 * unmutated[room])
                if mutant in was:
                    result["was"] = was[mutant]
                change = f"{mutant.path}, {mutant.function}: {mutant.before} -> {mutant.after}"
                print(f"{count}/{len(chosen)} {result['outcome']}, {result['seconds']} s, {change}", flush=True)
            results.append(result)
            body = {"table": summary(results), "mutants": results}
            given.out.write_text(json.dumps(body, indent=1), encoding="utf-8")
    print(json.dumps(summary(results), indent=1))


if __name__ == "__main__":
    main()
