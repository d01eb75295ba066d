"""Whole commands for fixed random bytes, and the numbers that they answer with.

``cases.txt`` holds chains of commands. Each starts in a fresh folder with a few made-up files of records, and with fresh
configuration and cache folders; each command is a process of its own, forked from one that imported what commands import.
Every source of random bytes that Python has is replaced at its lowest level. Bytes are a function of the seed, the chain,
the command, the source, the length that is asked for, and how often that length was asked for: a fresh key of 32 bytes stays
what it is, whatever else is drawn before it.

Kept are numbers: of the JSON answer by path, of the exit code, and of files that hold arrays. Times, sizes of files, ids and
sentences are left out. Nothing that is kept depends on the clock.
"""

import contextlib
import csv
import hashlib
import json
import os
import platform
import random
import re
import shlex
import shutil
import ssl
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any, NoReturn

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
RECORDED = Path(__file__).with_name("commands.json")
TYPED = Path(__file__).with_name("cases.txt")

LEFT_OUT = frozenset({"seconds", "minutes", "bytes", "schema", "processor", "threads", "config", "skill"})
"""Keys of what no command decides, of settings that are repeated, and of what follows from weights that are compared."""

OPEN = frozenset({"accuracy", "nominal", "privacy"})
"""Keys where None says something: that there is no such figure."""

ARRAYS = ("model.safetensors", "theta0.safetensors", "masks.safetensors", "predictors.safetensors", ".npz", ".csv")
"""Ends of the names of files whose numbers are kept."""

LONG = 12
"""Of a list of more numbers than these, the length is kept and a few of them, evenly spaced."""


# --- random bytes and records ---


def served(key: str) -> Callable[[str], Callable[..., bytes]]:
    """Random bytes of a source become a function of ``key``, their count, and how many times that count was asked for."""
    asked = Counter[tuple[str, int]]()

    def serve(source: str) -> Callable[..., bytes]:
        def read(count: int, *_: object) -> bytes:
            asked[source, count] += 1
            return hashlib.shake_256(f"{key} {source} {count} {asked[source, count]}".encode()).digest(count)

        return read

    return serve


def fix_random_bytes(key: str) -> None:
    """Makes random bytes of this process a function of ``key``."""
    serve = served(key)
    ssl.RAND_bytes = serve("openssl")
    os.urandom = serve("system")
    os.getrandom = serve("system")
    random._urandom = serve("secrets")  # type: ignore[attr-defined]  # what secrets, SystemRandom and numpy read


def write_records(folder: Path) -> None:
    """Writes records of every kind: images, a table with words and dates, one with persons and texts."""
    from sklearn.datasets import load_digits

    digits, draw = load_digits(), np.random.default_rng(0)
    x, y = digits.images.astype(np.uint8), digits.target
    np.savez(folder / "pub.npz", x_train=x[:400], y_train=y[:400], x_test=x[400:600], y_test=y[400:600])
    np.savez(folder / "pri.npz", x_train=x[600:1200], y_train=y[600:1200], x_test=x[1200:1500], y_test=y[1200:1500])
    np.savez(folder / "x.npz", x=x[1500:1520])
    large = np.kron(x[:60], np.ones((1, 2, 2), np.uint8))
    np.savez(folder / "large.npz", x_train=large[:40], y_train=y[:40] % 3, x_test=large[40:], y_test=y[40:60] % 3)
    lengths, labels = draw.integers(1, 20, 150), draw.integers(0, 2, 150)
    words = draw.integers(0, 30, lengths.sum()).astype(np.uint32)
    np.savez(folder / "texts.npz", values_train=words, offsets_train=np.cumsum([0, *lengths]), y_train=labels)
    draw.permutation(20 * 15), draw.integers(1, 6, 120)  # of ratings, which are gone: what follows is as it was
    for name, count in (("people.csv", 240), ("others.csv", 60)):
        table = draw.random((count, 2)).round(3)
        lines = [f"{a},{name[0]}{draw.integers(count // 3)},{b},{int(a + b > 1)}" for a, b in table.tolist()]
        (folder / name).write_text("\n".join(["a,who,b,y", *lines]) + "\n", encoding="utf-8")
    table = draw.random((60, 3)).round(3)
    lines = [",".join(map(str, [*row, int(sum(row) > 1.5)])) for row in table.tolist()]
    (folder / "t.csv").write_text("\n".join(["a,b,c,y", *lines]) + "\n", encoding="utf-8")
    lines = []
    for _ in range(400):
        age, ward = int(draw.integers(18, 91)), draw.choice(["north", "south"], p=[0.6, 0.4])
        day, ill = f"202{draw.integers(5)}-0{draw.integers(1, 10)}-11", "yes" if age > 60 else "no"
        lines.append(f"{age},{ward},{day},{ill}")
    (folder / "visits.csv").write_text("\n".join(["age,ward,seen,ill", *lines]) + "\n", encoding="utf-8")


# --- running ---


def cases() -> dict[str, list[str]]:
    """The lines of every chain by its name, in the order of the file."""
    names, chains = dict[str, str](), dict[str, list[str]]()
    for line in TYPED.read_text(encoding="utf-8").splitlines():
        if assigned := re.fullmatch(r"([A-Z]+)=(.*)", line):
            names[assigned[1]] = assigned[2]
        elif chain := re.fullmatch(r"\[([^\]]+)\]", line):
            chains[chain[1]] = []
        elif line and not line.startswith("#"):
            next(reversed(chains.values())).append(Template(line).substitute(names))
    return chains


def start(lines: list[str]) -> str:
    """The chain that one starts from; empty for a fresh folder."""
    first, _, name = lines[0].partition(" ")
    return name if first == "after" else ""


def load() -> None:
    """Imports what commands import, once, with random bytes that are fixed: some modules draw a key as they are imported."""
    os.environ.update(OMP_NUM_THREADS="1", COLUMNS="200")
    for name in ("DPLTM_DATA", "DPLTM_KEY", "DPLTM_DEBUG", "FORCE_COLOR", "RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"):
        os.environ.pop(name, None)
    sys.path.insert(0, str(ROOT))
    fix_random_bytes("imports")
    import gc
    import importlib

    import torch

    torch.set_num_threads(1)
    outside = ("numpy", "scipy.stats", "scipy.optimize", "scipy.signal", "scipy.special", "sklearn.datasets")
    inside = ("safetensors.torch", "safetensors.numpy", "torch.func", "rich.table", "pydantic", "typer._adapters")
    for name in (*outside, *inside):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for package in ("dpltm", "cli", "tickets"):
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join([*(() if package == "dpltm" else ("dpltm",)), *(p for p in parts if p != "__init__")])
            with contextlib.suppress(ImportError):  # of what is optional
                importlib.import_module(name)
    gc.collect()
    gc.freeze()  # or each command would copy all of it


@dataclass(frozen=True)
class Step:
    """A command that ran, the numbers of its answer (``code``, ``json`` and ``files``), and what standard error said."""

    command: str
    answer: dict[str, Any]
    said: str


def play(name: str, lines: list[str], seed: int, home: Path) -> list[Step]:
    """Runs one chain in a new folder of ``home``, where the chain that it starts from must have run with the same seed."""
    own = home / name
    if before := start(lines):
        shutil.copytree(home / before, own)
        lines = lines[1:]
    else:
        (own / "work").mkdir(parents=True)
        write_records(own / "work")
    return list(_steps(name, lines, seed, own))


def _steps(name: str, lines: list[str], seed: int, own: Path) -> Iterator[Step]:
    given: Path | None = None
    number = 0
    for line in lines:
        if line.startswith("> "):  # a line of the file that was named last
            assert given is not None
            with given.open("a", encoding="utf-8") as stream:
                stream.write(line[2:] + "\n")
        elif line.startswith("file "):
            given = own / "work" / line.removeprefix("file ").strip()
            given.write_text("", encoding="utf-8")
        else:
            number += 1
            yield _step(line, f"{seed} {name} {number}", own)


def _step(line: str, key: str, own: Path) -> Step:
    work = own / "work"
    before = {path: path.stat().st_mtime_ns for path in work.rglob("*")}
    out, err = own / "out", own / "err"
    child = os.fork()
    if child == 0:
        _become(shlex.split(line), key, own, out, err)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    changed = [path for path in sorted(work.rglob("*")) if before.get(path) != path.stat().st_mtime_ns]
    answer: dict[str, Any] = {"code": code}
    text = out.read_text(encoding="utf-8")
    if text.startswith("{"):
        answer["json"] = numbers(json.loads(text))
    files = {_named(path, work): arrays(path) for path in changed if path.name.endswith(ARRAYS)}
    if files:
        answer["files"] = files
    return Step(line, answer, err.read_text(encoding="utf-8"))


def _named(path: Path, folder: Path) -> str:
    """The file's name within a folder, without digests of settings."""
    return re.sub(r"-[0-9a-f]{8}(?=/)", "", str(path.relative_to(folder)))


def set_what_no_option_says(key: str) -> None:
    """Keeps the last 12 words of a text, and has one chain compute in bfloat16, a few records at a time."""
    from dpltm.options.train import TrainRequest
    from dpltm.records import Layout

    Layout.__init__.__defaults__ = (10_000, 12)
    if "physical batches" in key:
        TrainRequest.__init__.__kwdefaults__ |= {"physical_batch": 16, "precision": "bfloat16"}


def _become(words: list[str], key: str, own: Path, out: Path, err: Path) -> NoReturn:
    """Turns this process into a command."""
    code = 70
    try:
        for number, path in ((1, out), (2, err)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ.update(XDG_CONFIG_HOME=str(own / "config"), XDG_CACHE_HOME=str(own / "cache"), HOME=str(own))
        os.environ["TMPDIR"] = tempfile.tempdir = str(own)
        os.chdir(own / "work")
        os.fsync = lambda _: None  # nobody cuts the power
        fix_random_bytes(key)
        set_what_no_option_says(key)
        sys.argv = ["dpltm", *words, "--json"]
        from dpltm.cli.main import main

        try:
            main()
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


# --- numbers ---


def numbers(value: Any) -> Any:
    """The numbers of a JSON value, in its own structure; None and "inf" are numbers; what holds none is left out."""
    if isinstance(value, dict):
        told = {key: each for key, each in value.items() if key not in LEFT_OUT and (each is not None or key in OPEN)}
        kept = {key: numbers(each) for key, each in told.items()}
        return {key: each for key, each in kept.items() if each != {} and each != []}
    if isinstance(value, list):
        if len(value) > LONG and not any(isinstance(each, dict | str) for each in value):
            return {"length": len(value), "some": [numbers(each) for each in value[:: max(1, len(value) // 5)]]}
        kept_list = [numbers(each) for each in value]
        return kept_list if any(each != {} and each != [] for each in kept_list) else []
    if isinstance(value, str) and value not in ("inf", "-inf", "nan"):
        return {}
    return value


def arrays(path: Path) -> dict[str, Any]:
    """What is kept of a file that holds arrays: a digest of their bytes by name, how many numbers, their sum and norm."""
    digest, count, total, square = hashlib.sha256(), 0, 0.0, 0.0
    for name, value in sorted(_arrays(path)):
        digest.update(f"{name} {value.dtype} {value.shape} ".encode() + np.ascontiguousarray(value).tobytes())
        plain = value.astype(np.float64)
        count, total, square = count + plain.size, total + float(plain.sum()), square + float((plain**2).sum())
    return {"digest": digest.hexdigest()[:16], "count": count, "sum": total, "norm": float(square**0.5)}


def _arrays(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    if path.suffix == ".safetensors":
        from safetensors.numpy import load_file

        yield from load_file(path).items()
    elif path.suffix == ".npz":
        with np.load(path) as archive:
            numeric = [(name, value) for name, value in archive.items() if value.dtype.kind in "biuf"]
        yield from (pair for pair in numeric if pair[1].ndim > 1 or pair[1].dtype != np.uint8)  # bytes are a text
    else:
        with path.open(encoding="utf-8", newline="") as stream:
            header, *rows = csv.reader(stream)
        for name, *cells in zip(header, *rows, strict=True):
            yield name, np.array([float(cell) for cell in cells if _is_number(cell)])


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every number of an answer with its path, such as ``json.tickets[1].density``."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from flat(each, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from flat(each, f"{path}[{number}]")
    else:
        yield path, value


def machine() -> str:
    """What decides the last bits of a product of matrices."""
    import torch

    info, model = Path("/proc/cpuinfo"), platform.processor()
    if info.exists():
        lines = info.read_text(encoding="utf-8").partition("\n\n")[0].splitlines()
        facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        model = " ".join(facts.get(name, "") for name in ("model name", "cpu family", "model"))
    return f"{model}, {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}, numpy {np.__version__}"


# --- comparing ---

EXACT = 1e-9
"""Relative tolerance of a figure on the machine that recorded it."""

ELSEWHERE, NOISE, ACCURACY, FOURIER = 1e-4, 1e-3, 0.0205, 1e-9
"""Tolerances on others: relative ones of any figure and of noise, which is searched for, and absolute ones of an accuracy
(six of 300 records) and of anything small that a Fourier transform made."""

MEASURED = ("accuracy", "accuracies", "score", "mean", "sd", "interval", "values", "difference", "lower_bound")


def same(path: str, recorded: Any, found: Any, here: bool) -> bool:
    """Whether two numbers of a path are the same; ``here`` is the machine that recorded."""
    if recorded == found and type(recorded) is type(found):
        return True
    if path.endswith(".digest"):
        return not here  # the sum and the norm of the same numbers are compared
    if not (isinstance(recorded, float | int) and isinstance(found, float | int)):
        return False
    if isinstance(recorded, bool) or isinstance(found, bool) or (type(recorded) is type(found) is int):
        return False
    apart, size = abs(recorded - found), max(abs(recorded), abs(found))
    if here:
        return apart <= EXACT * size
    if any(word in path for word in MEASURED):
        return apart <= ACCURACY
    if path.startswith("files"):
        return apart <= NOISE * max(size, 1.0)
    return apart <= (NOISE if "noise" in path else ELSEWHERE) * size + FOURIER


@dataclass(frozen=True)
class Difference:
    """A number that is not as recorded."""

    case: str
    step: int
    command: str
    path: str
    recorded: Any
    found: Any
    drawn: bool


def differences(recorded: dict[str, Any], found: dict[str, list[Step]]) -> list[Difference]:
    """Every number in ``commands.json`` that is another now, or gone. Numbers that are new are no difference."""
    here, held = recorded["machine"] == machine(), []
    for case, steps in found.items():
        before = recorded["cases"].get(case, [])
        if [step["command"] for step in before] != [step.command for step in steps]:
            held.append(Difference(case, 0, "other commands", "", len(before), len(steps), False))
            continue
        for number, (old, new) in enumerate(zip(before, steps, strict=True), 1):
            now, drawn = dict(flat(new.answer)), set(old.get("drawn", ()))
            held += [
                Difference(case, number, new.command, path, value, now.get(path, "gone"), path in drawn)
                for path, value in flat(old["answer"])
                if not same(path, value, now.get(path, "gone"), here)
            ]
    missing = set(recorded["cases"]) - set(found)
    return held + [Difference(case, 0, "gone", "", len(recorded["cases"][case]), 0, False) for case in sorted(missing)]


def table(held: list[Difference]) -> str:
    """Differences as text: by chain and command, and of each number whether it depends on random bytes."""
    lines, last = [], ("", 0)
    for one in held:
        if (one.case, one.step) != last:
            lines.append(f"{one.case}, {one.step}: dpltm {one.command}")
            last = (one.case, one.step)
        mark = "random" if one.drawn else "fixed "
        lines.append(f"  {mark}  {one.path}: {one.recorded!r} -> {one.found!r}")
    fixed = sum(not one.drawn for one in held)
    return "\n".join([*lines, f"{len(held)} differences, {fixed} of them in what no random byte decides"])
