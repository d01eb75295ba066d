"""Damaged and hostile files of every kind, given to the commands that read them: one clear line, and nothing half-written.

    python benchmarks/fuzz.py [--inputs 20000] [--jobs 2] [--seed 0] [--only KIND]

Each input is a file of ``KINDS`` that was changed: bytes, words of its text, values of its JSON with all digests made right
again, types of its arrays and columns, its length; or a pipe, a folder, a link or a file of another kind takes its place.
A command that reads it runs in a process that was forked for many inputs. It must end with exit code 0, 1 or 2 within 20
seconds, raise nothing, and where it refuses, leave every file as it was. Prints JSON, with the inputs that did not.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

PATIENCE = 20
"""Seconds that a command may take."""

PUBLIC = "generate --dataset a.npz --provenance public --model mlp:4 --rounds 1 --iterations 2 --batch-size 20 --quiet"
DENSE = "train --dense --model mlp:4 --steps 2 --noise-multiplier 5 --delta 1e-3 --dry-run"
TRAIN = "train --dataset b.npz --steps 2 --noise-multiplier 5 --delta 1e-3 --quiet"
SETUP = (
    f"{PUBLIC} --out set",
    f"{TRAIN} set@1 --out run",
    "select set --dataset b.npz --eps1 0.5 --score additive --delta 1e-3 --quiet",
    "train --dense --dataset b.npz --steps 2 --epsilon 5 --delta 1e-3 --features fourier:8,0.1 --centre 0.1 --model mlp:4"
    " --quiet --out seen",
    f"{TRAIN} --dense --model mlp:4 --ledger l.jsonl --out dense",
    "privacy budget l.jsonl --epsilon 900 --delta 1e-3 --quiet",
    "latent scheme --public a.npz --features unit --protocol rappor --epsilon 192 --label-epsilon 5 --out scheme --quiet",
    "latent encode scheme --dataset b.npz --delta 1e-3 --out m --quiet",
    f"{DENSE.removesuffix(' --dry-run')} --dataset v.csv --schema s.toml --out visits --quiet",
    "tune --dataset a.npz --model mlp:4 --for-records 60 --epsilon 5 --delta 1e-3 --lr 0.5,1 --epochs 1 --batch-size 20"
    " --out found.toml --quiet",
)
"""What makes the files, from the arrays that :func:`prepare` writes."""

SCHEMA = """
missing = ["", "?"]
[column.age]
kind = "number"
bounds = [0, 99]
missing = true
[column.ward]
kind = "category"
values = ["north", ["south", "SOUTH"]]
[column.seen]
kind = "date"
bounds = [2020-01-01, 2020-12-31]
[column.street]
kind = "hashed"
buckets = 4
[column.who]
kind = "ignored"
[column.ill]
kind = "label"
classes = ["no", "yes"]
"""
RECIPE = """
[recipe]
title = "T"
source = "nobody"
seeds = 1
[train]
dataset = "b.npz"
model = "mlp:4"
batch-size = 20
steps = 2
noise-multiplier = 5.0
delta = 1e-3
[tickets.public]
dataset = "a.npz"
provenance = "public"
model = "mlp:4"
rounds = 1
iterations = 2
batch-size = 20
[[arm]]
name = "dense"
[[arm]]
name = "drawn"
tickets = "public"
select = { eps1 = 0.5, score = "additive" }
"""
RUN = """
[run]
epsilon = 9.0
delta = 1e-3
[generate]
dataset = "a.npz"
provenance = "public"
model = "mlp:4"
rounds = 1
iterations = 2
batch-size = 20
[select]
score = "additive"
[train]
dataset = "b.npz"
steps = 2
"""
SETTINGS = '[train]\ndataset = "b.npz"\nmodel = "mlp:4"\nsteps = 2\nnoise-multiplier = 5.0\ndelta = 1e-3\nlr = 0.5\n'


FEATURES = "--features fourier:8,0.1"
LEARN = "latent train scheme --messages {} --model mlp:4 --epochs 1 --batch-size 20 --out out"
PRIVATE = "--dataset b.npz --delta 1e-3"


@dataclass(frozen=True)
class Kind:
    """Files that are damaged, and commands that read them, one of which is run; ``{}`` stands for the file."""

    files: tuple[str, ...]
    commands: tuple[str, ...]


def _data(path: str, more: str) -> tuple[str, ...]:
    """Commands that read a dataset."""
    return (f"datasets info {path} {more}", f"{DENSE} --dataset {path} {more}")


def _table(suffix: str) -> Kind:
    more = "--label y --bounds 0,16 --classes 3"
    predict = "predict run --input {} --label y -o out"
    return Kind((f"t{suffix}",), (*_data("{}", more), f"{predict}.csv", f"{predict}.npz"))


def _within(folder: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{folder}/{name}" for name in names)


_SET = (
    "tickets.json",
    "masks.safetensors",
    "theta0.safetensors",
    "predictors.safetensors",
    "selection.json",
    "lineage.json",
)
_RUN = "config.json", "model.safetensors", "mask.safetensors", "lineage.json"
_INFO = "--bounds 0,16 --classes 3"
KINDS: dict[str, Kind] = {
    "npz": Kind(("b.npz",), (*_data("{}", _INFO), "evaluate run --dataset {}", "predict run --input {} -o out.csv")),
    "input": Kind(("x.npz",), ("predict run --input {} -o out.csv", "predict seen --input {} -o out.csv")),
    "texts": Kind(("texts.npz",), ("datasets info {}", "train --dense --model embed --steps 2 --noise-multiplier 5 --delta"
                                   " 1e-3 --dry-run --dataset {} --words 60")),
    "csv": _table(".csv"),
    "parquet": _table(".parquet"),
    "arrow": _table(".arrow"),
    "schema": Kind(
        ("s.toml", "v.csv", "v.parquet"),
        (*_data("v.csv", "--schema s.toml"), *_data("v.parquet", "--schema s.toml"),
         "datasets schema {} --label ill --from-public", "datasets schema v.csv --schema s.toml",
         *_data("v.csv", "--schema s.toml --unit-column who"), "evaluate visits --dataset v.csv --test v.csv"),
    ),
    "persons": Kind(("w.csv", "w.npz"), (f"{DENSE} --dataset w.csv --label y --bounds 0,16 --classes 3 --unit-column who",
                                         f"{DENSE} --dataset w.npz --classes 3 --bounds 0,16 --unit-column who")),
    "settings": Kind(("train.toml", "found.toml"), (f"{DENSE} --dataset b.npz --config {{}}",)),
    "recipe": Kind(("recipe.toml",), ("run --config {} --out out --dry-run",)),
    "run file": Kind(("run.toml",), ("run --config {} --out out --dry-run",)),
    "tickets": Kind(
        _within("set", *_SET, "README.md"),
        ("tickets show set", "tickets show set@1", "tickets verify set", "tickets ls .", "tickets export set --out out",
         "tickets export set@1 --out out.safetensors",
         f"train set {PRIVATE} --steps 2 --noise-multiplier 5 --dry-run",
         f"select set {PRIVATE} --eps1 0.5 --score additive --dry-run", "tickets transfer set --dataset a.npz --out out"),
    ),
    "ledger": Kind(
        ("l.jsonl", "other.jsonl"),
        ("privacy ledger {} --delta 1e-3", "privacy curve --ledger {} --delta 1e-3", "privacy budget {}",
         f"{DENSE} --dataset b.npz --ledger {{}}", "privacy budget {} --epsilon 950"),
    ),
    "run": Kind(
        _within("run", *_RUN, "result.json", "metrics.jsonl"),
        ("evaluate run --dataset b.npz", "predict run --input x.npz -o out.csv"),
    ),
    "dense": Kind(
        _within("dense", *_RUN), ("evaluate dense --dataset b.npz",)
    ),
    "feature map": Kind(
        _within("seen", "config.json", "*map*", "feature*"),
        ("evaluate seen --dataset b.npz", "predict seen --input x.npz -o out.csv"),
    ),
    "scheme": Kind(
        _within("scheme", "*.json", "*.safetensors", "*.npz"),
        (f"latent encode scheme {PRIVATE} --out out --dry-run", LEARN.format("m")),
    ),
    "messages": Kind(("m",), (LEARN,)),
    "key and record": Kind(
        ("l.key", "home/dpltm/ledgers.jsonl"),
        ("privacy ledger l.jsonl --delta 1e-3", "privacy budget l.jsonl", f"{DENSE} --dataset b.npz --ledger l.jsonl"),
    ),
    "cache": Kind(("cache/dpltm/features/*.npy",), (f"{DENSE} --dataset b.npz {FEATURES}", "evaluate seen --dataset b.npz")),
    "torch": Kind(("pruned.safetensors",), ("tickets import {} --dataset a.npz --model mlp:4 --provenance public --out o",)),
}  # fmt: skip

WORDS = (
    *("", "0", "-1", "1", "2", "3.5", "1e999", "-0.0", "9" * 30, "NaN", "Infinity", "null", "true", '""', "[]", "{}", '"x"'),
    *("\x00", "\u202e", "\ud7ff", "../../x", "set", "a" * 300, "1e-320", "[" * 3000),
    *("dp", "public", "private", "mlp:0", "cnn"),
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        2,
        10**30,
        1.5,
        -0.0,
        1e308,
        1e-320,
        float("nan"),
        float("inf"),
        "",
        "x",
        "a" * 500,
    ),
    *("\x00", "nan", "inf", [], {}, [[]], [None], {"a": 1}, "mlp:4", "mlp:0", "private", "public", "dp", 2**63, 2**31),
)

# --- damage --------------------------------------------------------------------------------------------------------


def damage(path: Path, others: list[Path], chance: random.Random) -> str:
    """Changes a file, or its place, at random; returns how.

    Args:
        path: of the file.
        others: files that may take its place.
        chance: decides.
    """
    ways: list[tuple[float, Callable[[Path, random.Random], None]]] = [(3, _bytes), (1, _length), (1, _place)]
    suffix = path.suffix
    if suffix in (".json", ".jsonl"):
        ways += [(8, _json), (2, _text)]
    elif suffix in (".toml", ".csv", ".md") or suffix == ".key":
        ways += [(6, _text)]
    elif suffix == ".safetensors":
        ways += [(5, _tensors)]
    elif suffix in (".npz", ".npy"):
        ways += [(6, _arrays)]
    elif suffix in (".parquet", ".arrow"):
        ways += [(5, _columns)]
    elif path.name == "m":
        ways += [(4, _text)]
    if chance.random() < 0.03:
        path.write_bytes(chance.choice(others).read_bytes())
        return "another file"
    (way,) = chance.choices([way for _, way in ways], [weight for weight, _ in ways])
    way(path, chance)
    return way.__name__.strip("_")


def _bytes(path: Path, chance: random.Random) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(chance.choice((1, 1, 1, 2, 5, 50))):
        if data:
            place = chance.randrange(min(len(data), chance.choice((64, 512, len(data)))))
            data[place] = chance.choice((0, 255, 128, data[place] ^ 1 << chance.randrange(8), chance.randrange(256)))
    path.write_bytes(data)


def _length(path: Path, chance: random.Random) -> None:
    data = path.read_bytes()
    place, other = (chance.randrange(len(data) + 1) for _ in range(2))
    more = chance.choice(
        (b"", data[:place], data[: place // 2] + data[other:], data + data, data[:place] + b"\0" * 4096)
    )
    path.write_bytes(more)


def _place(path: Path, chance: random.Random) -> None:
    path.unlink()
    match chance.randrange(6):
        case 0:
            os.mkfifo(path)
        case 1:
            path.mkdir()
        case 2:
            path.symlink_to(path.name)
        case 3:
            path.symlink_to("/dev/zero")
        case 4:
            path.symlink_to("/nowhere")


def _text(path: Path, chance: random.Random) -> None:
    """Words, lines and cells."""
    text = path.read_bytes().decode("latin-1")
    words = list(re.finditer(r"[\w.+-]+|\"[^\"\n]*\"|\n", text)) or [re.match("", text)]
    for _ in range(chance.choice((1, 1, 2))):
        word = chance.choice(words)
        assert word is not None
        new = chance.choice((*WORDS, chance.choice(words)[0]))  # type: ignore[index]
        text = text[: word.start()] + new + text[word.end() :] if word.end() <= len(text) else new
    path.write_bytes(text.encode("utf-8", "surrogatepass") if chance.random() < 0.9 else text.encode("utf-16"))


def _values(body: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the values of a JSON document are."""
    yield path
    for key, value in body.items() if isinstance(body, dict) else enumerate(body) if isinstance(body, list) else ():
        yield from _values(value, (*path, key))


def _changed(body: Any, chance: random.Random) -> Any:
    """A JSON document with a value, or a key, changed."""
    body = json.loads(json.dumps(body))
    for _ in range(chance.choice((1, 1, 1, 2))):
        *home, last = chance.choice([place for place in _values(body) if place] or [(None,)])
        if last is None:
            return chance.choice(VALUES)
        holder = body
        for key in home:
            holder = holder[key]
        match chance.randrange(8):
            case 0:
                del holder[last]
            case 1 if isinstance(holder, dict):
                holder[chance.choice(("x", "schema", "digest", "time", "a" * 200))] = holder.pop(last)
            case 2 if isinstance(holder[last], (int, float)) and not isinstance(holder[last], bool):
                holder[last] = chance.choice((-holder[last], holder[last] + 1, holder[last] * 10**6, holder[last] / 3))
            case 3:
                part = body[chance.choice(list(body))] if isinstance(body, dict) else None
                holder[last] = json.loads(json.dumps(part))
            case _:
                holder[last] = chance.choice(VALUES)
    return body


def _json(path: Path, chance: random.Random) -> None:
    """Values, with the digests of what holds them made right again, so that the damage gets as far as it can."""
    from dpltm.privacy.ledger import canonical, first_digest
    from dpltm.tickets.files import digest_of

    lines = path.read_text().splitlines()
    if path.suffix == ".json":
        body = _changed(json.loads(path.read_text()), chance)
        if isinstance(body, dict) and "digest" in body and chance.random() < 0.9:
            with contextlib.suppress(ValueError):
                body["digest"] = digest_of(body)
        path.write_text(json.dumps(body))
        return
    number = chance.randrange(len(lines))
    row = json.loads(lines[number])
    if number and isinstance(row.get("entry"), dict) and chance.random() < 0.9:
        header, *rows = map(json.loads, lines)
        rows[number - 1]["entry"] = _changed(row["entry"], chance)
        digest, lines = first_digest(header["id"], header["population"]), lines[:1]
        for row in rows:
            text = canonical(row["entry"])
            digest = hashlib.sha256((digest + text).encode()).hexdigest()
            lines.append(f'{{"entry": {text}, "digest": "{digest}"}}')
    else:
        lines[number] = json.dumps(_changed(row, chance))
    path.write_text("\n".join(lines) + "\n")


def _tensors(path: Path, chance: random.Random) -> None:
    """The head of a safetensors file, or what some numbers in it are."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    head, rest = json.loads(data[8 : 8 + size]), bytearray(data[8 + size :])
    if chance.random() < 0.5:
        text = json.dumps(_changed(head, chance)).encode()
        path.write_bytes((len(text) + chance.choice((0, 0, 0, 1, -1, 2**40))).to_bytes(8, "little") + text + rest)
        return
    place = 4 * chance.randrange(max(1, len(rest) // 4))
    rest[place : place + 4] = np.float32(chance.choice((np.nan, np.inf, -np.inf, 1e38, -1.0, 1e-40))).tobytes()
    path.write_bytes(data[: 8 + size] + rest)


def _strange(values: np.ndarray, chance: random.Random) -> np.ndarray:
    """An array of another kind, shape or content."""
    flat = values.reshape(-1)
    match chance.randrange(14):
        case 0:
            return values.astype(
                chance.choice(("f2", "f4", "f8", "i8", "u8", "c8", "?", "U3", "S2", "i2", ">f4", ">i8"))
            )
        case 1:
            return values.astype("M8[s]") if values.dtype.kind in "iu" else values.astype("U9")
        case 2:
            return values[: chance.choice((0, 1, 2, len(values) // 2))] if values.ndim else values
        case 3:
            return values[..., None] if chance.random() < 0.5 else values.reshape(1, -1)
        case 4:
            return flat[0]
        case 5:
            other = values.astype(float)
            other.reshape(-1)[chance.randrange(max(1, flat.size))] = chance.choice(
                (np.nan, np.inf, -np.inf, 1e308, -1)
            )
            return other
        case 6:
            return np.zeros(values.shape, dtype=[("a", "i4"), ("b", "f4")])
        case 7:
            return np.array([None, "x", 1] * 5, dtype=object)
        case 8:
            return -values.astype(np.int64) - chance.choice((0, 1, 2**40))
        case 9:
            return np.concatenate([values, values]) if values.ndim else values
        case 10:
            return np.zeros_like(values)
        case 11:
            return np.full(values.shape, 2**62)
        case 12:
            return values.T
        case _:
            return np.broadcast_to(np.uint8(1), (3, 0, 5))


def _arrays(path: Path, chance: random.Random) -> None:
    if path.suffix == ".npy":
        np.save(path, _strange(np.load(path), chance), allow_pickle=True)
        return
    with np.load(path) as stored:
        arrays = dict(stored)
    name = chance.choice(list(arrays))
    match chance.randrange(6):
        case 0:
            arrays[chance.choice(("x", "x_test", "y_test", "values_train", "offsets_train", "../up", "y"))] = arrays[
                name
            ]
        case 1:
            del arrays[name]
        case _:
            arrays[name] = _strange(arrays[name], chance)
    (np.savez_compressed if chance.random() < 0.3 else np.savez)(path, **arrays)


def _columns(path: Path, chance: random.Random) -> None:
    """Columns of other types, or with nothing in some cells."""
    import pyarrow as pa
    import pyarrow.feather
    import pyarrow.parquet

    count = 40
    strange: list[Any] = [
        pa.array([None] * count, pa.float32()), pa.array(["x"] * count), pa.array([[1.0]] * count),
        pa.array([{"a": 1}] * count), pa.array(range(count), pa.timestamp("s")), pa.array([2**62] * count),
        pa.array([True, False] * (count // 2)), pa.array([float("nan")] * count), pa.array([b"x"] * count),
        pa.nulls(count), pa.array(["a", "b"] * (count // 2)).dictionary_encode(), pa.array([1.5] * count, pa.float16())
        if chance.random() < 0.1 else pa.array([1.5] * count), pa.array([-1] * count, pa.int8()),
    ]  # fmt: skip
    names = [chance.choice(("y", "a", "b", "", "y ", "\u202e")) for _ in range(chance.randrange(5))]
    table = pa.table([chance.choice(strange) for _ in names], names=names)
    if path.suffix == ".parquet":
        with contextlib.suppress(pa.ArrowException):  # that cannot be written, and stays as it was
            pa.parquet.write_table(table.slice(0, chance.choice((0, 1, count))), path)
    else:
        pa.feather.write_feather(table.slice(0, chance.choice((0, 1, count))), path, compression="uncompressed")


# --- trying --------------------------------------------------------------------------------------------------------


def prepare(folder: Path) -> None:
    """Makes the files that are damaged."""
    import pyarrow as pa
    import pyarrow.feather
    import pyarrow.parquet

    from dpltm.cli.main import run

    draw = np.random.default_rng(0)
    x, y = draw.integers(0, 17, (200, 6), dtype=np.uint8), np.arange(200) % 3
    for name, train, test in (("a", slice(0, 60), slice(160, 180)), ("b", slice(60, 160), slice(180, 200))):
        np.savez(folder / f"{name}.npz", x_train=x[train], y_train=y[train], x_test=x[test], y_test=y[test])
    np.savez(folder / "x.npz", x=x[:10])
    lengths = draw.integers(1, 9, 40)
    np.savez(
        folder / "texts.npz", values_train=draw.integers(0, 50, lengths.sum()), y_train=np.arange(40) % 2,
        offsets_train=np.concatenate([[0], np.cumsum(lengths)]),
    )  # fmt: skip
    table = np.column_stack([x[:40], y[:40]])
    names = [*"abcdef", "y"]
    (folder / "t.csv").write_text("\n".join([",".join(names), *(",".join(map(str, row)) for row in table)]) + "\n")
    columns = pa.table(list(table.T), names=names)
    pa.parquet.write_table(columns, folder / "t.parquet")
    pa.feather.write_feather(columns, folder / "t.arrow", compression="uncompressed")
    visits = [
        (
            ["40", "?", "61"][n % 3],
            ["north", "SOUTH"][n % 2],
            f"2020-0{1 + n % 9}-11",
            f"Elm {n % 5}",
            f"p{n % 20}",
            ["no", "yes"][n % 2],
        )
        for n in range(60)
    ]
    heads = ["age", "ward", "seen", "street", "who", "ill"]
    (folder / "v.csv").write_text("\n".join(map(",".join, [tuple(heads), *visits])) + "\n")
    pa.parquet.write_table(
        pa.table([list(each) for each in zip(*visits, strict=True)], names=heads), folder / "v.parquet"
    )
    rows = [",".join(map(str, [*row[:-1], f"p{n % 9}", row[-1]])) for n, row in enumerate(table)]
    (folder / "w.csv").write_text("\n".join([",".join([*names[:-1], "who", "y"]), *rows]) + "\n")
    np.savez(folder / "w.npz", x_train=x, y_train=y, who_train=np.arange(200) % 30)
    for name, text in (("recipe", RECIPE), ("run", RUN), ("train", SETTINGS), ("s", SCHEMA)):
        (folder / f"{name}.toml").write_text(text)
    for line in SETUP:
        if run(line.split()):
            raise SystemExit(f"the setup failed: dpltm {line}")
    for suffix in (".jsonl", ".key"):
        shutil.copy(folder / f"l{suffix}", folder / f"other{suffix}")
    _pruned(folder / "pruned.safetensors")


def _pruned(path: Path) -> None:
    from safetensors.torch import save_file
    from torch import nn
    from torch.nn.utils import prune

    model = nn.Sequential()
    for name, layer in (("fc1", nn.Linear(6, 4)), ("fc2", nn.Linear(4, 3))):
        prune.random_unstructured(layer, "weight", 0.3)
        model.add_module(name, layer)
    save_file({key: value.contiguous() for key, value in model.state_dict().items()}, path)


def state(folder: Path) -> dict[str, tuple[Any, ...]]:
    """What lies in a folder, by name: enough to see a change."""
    found: dict[str, tuple[Any, ...]] = {}
    for home, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(home, name)
            status = os.lstat(path)
            found[os.path.relpath(path, folder)] = (
                status.st_mode,
                status.st_ino,
                *(() if name in folders else (status.st_size, status.st_mtime_ns)),
            )
    return found


class Bench:
    """A folder with all files as :func:`prepare` made them, put back after each input.

    Args:
        base: the files.
        folder: a new one, for a copy of them.
    """

    def __init__(self, base: Path, folder: Path) -> None:
        shutil.copytree(base, folder, symlinks=True)
        self.folder = folder
        self._files = {
            str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()
        }
        self._whole = state(folder)

    def put_back(self) -> None:
        """Makes everything as it was."""
        now = state(self.folder)
        for name in sorted(now, reverse=True):
            path = self.folder / name
            if name not in self._whole or now[name] != self._whole[name]:
                if path.is_dir() and not path.is_symlink():
                    if name not in self._whole or not self._whole[name][0] & 0o040000:
                        shutil.rmtree(path)
                elif path.is_symlink() or path.exists():
                    path.unlink()
        for name, was in self._whole.items():
            path = self.folder / name
            if name in self._files and not os.path.lexists(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(self._files[name])
                path.chmod(was[0] & 0o777)
        self._whole = state(self.folder)


def attempt(bench: Bench, number: int, seed: int, only: str | None) -> dict[str, Any]:
    """One input: what was done, and what is wrong with how the command took it, if anything is."""
    from dpltm.cli.main import run

    chance = random.Random(f"{seed} {number}")
    name = only or list(KINDS)[number % len(KINDS)]
    kind = KINDS[name]
    files = [path for pattern in kind.files for path in sorted(bench.folder.glob(pattern)) if path.is_file()]
    path = chance.choice(files)
    command = chance.choice(kind.commands).replace("{}", str(path.relative_to(bench.folder)))
    others = [
        bench.folder / each
        for each in ("t.csv", "b.npz", "l.jsonl", "set/tickets.json", "train.toml", "m", "t.parquet")
    ]
    how = damage(path, others, chance)
    if name == "ledger" and chance.random() < 0.7:  # what it held is known by nobody, so that the damage gets farther
        (bench.folder / "home/dpltm/ledgers.jsonl").unlink(missing_ok=True)
    before = {key: value for key, value in state(bench.folder).items() if not key.startswith(("home", "cache"))}
    out, err, began = io.StringIO(), io.StringIO(), time.monotonic()
    problem, code = "", -1
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run(command.split())
    except BaseException:
        problem = traceback.format_exc(limit=-6)
    said = err.getvalue()
    if not problem and code not in (0, 1, 2):
        problem = f"exit code {code}: {said}"
    if (
        not problem
        and code
        and not out.getvalue()
        and (said.count("\n") != 1 or not said.startswith("error: ") or not said.strip().isprintable())
    ):
        problem = f"not one line: {said!r}"
    if not problem and "internal error" in out.getvalue():
        problem = out.getvalue()
    after = {key: value for key, value in state(bench.folder).items() if not key.startswith(("home", "cache"))}
    if not problem and code and before != after:
        changed = sorted(key for key in {*before, *after} if before.get(key) != after.get(key))
        problem = f"exit code {code}, and changed {changed}"
    return {
        "input": number,
        "kind": name,
        "file": str(path.relative_to(bench.folder)),
        "how": how,
        "command": command,
        "code": code,
        "seconds": round(time.monotonic() - began, 2),
        "said": said.strip()[:300],
        "problem": problem,
    }


def work(base: Path, folder: Path, numbers: list[int], seed: int, only: str | None, log: Path) -> None:
    """Tries inputs one after the other, and writes down each; an alarm ends the process where one takes too long."""
    bench = Bench(base, folder)
    os.chdir(folder)
    os.environ["XDG_CONFIG_HOME"], os.environ["XDG_CACHE_HOME"] = str(folder / "home"), str(folder / "cache")
    with log.open("a") as lines:
        for number in numbers:
            signal.alarm(PATIENCE)
            row = attempt(bench, number, seed, only)
            signal.alarm(0)
            lines.write(json.dumps(row) + "\n")
            lines.flush()
            bench.put_back()


def main(arguments: list[str]) -> dict[str, Any]:
    """Tries all inputs; the answer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=20000)
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=tuple(KINDS))
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--log", type=Path, help="a line for each input")
    given = parser.parse_args(arguments)
    began = time.monotonic()
    torch.set_num_threads(1)  # a forked process waits for ever for the threads that its parent had
    with tempfile.TemporaryDirectory() as root, contextlib.chdir(root):
        base, log = Path(root) / "base", given.log or Path(root) / "log"
        base.mkdir()
        os.chdir(base)
        os.environ["XDG_CONFIG_HOME"], os.environ["XDG_CACHE_HOME"] = str(base / "home"), str(base / "cache")
        os.environ["DPLTM_DEBUG"] = "1"  # whatever is raised shows
        with contextlib.redirect_stdout(io.StringIO()):
            prepare(base)
        todo = [list(range(given.first + job, given.first + given.inputs, given.jobs)) for job in range(given.jobs)]
        rows = list(_all(base, Path(root), todo, given.seed, given.only, log))
        os.chdir(root)
    codes, slowest = Counter(str(row["code"]) for row in rows), max(rows, key=lambda row: row["seconds"])
    return {
        "inputs": len(rows),
        "codes": dict(codes),
        "kinds": {name: dict(Counter(str(row["code"]) for row in rows if row["kind"] == name)) for name in KINDS},
        "slowest": {key: slowest[key] for key in ("command", "seconds")},
        "seconds": round(time.monotonic() - began),
        "problems": [row for row in rows if row["problem"]],
    }


def _all(
    base: Path, root: Path, todo: list[list[int]], seed: int, only: str | None, log: Path
) -> Iterator[dict[str, Any]]:
    """The rows of all inputs: processes of some hundred inputs each, and another where one died."""
    running: dict[int, tuple[int, list[int], Path]] = {}
    count = 0
    while running or any(todo):
        for job, numbers in enumerate(todo):
            if numbers and job not in {each for each, _, _ in running.values()}:
                batch, todo[job] = numbers[:400], numbers[400:]
                count += 1
                own = root / f"log-{count}"
                if (child := os.fork()) == 0:
                    try:
                        work(base, root / f"work-{count}", batch, seed, only, own)
                    except BaseException:
                        traceback.print_exc()
                        os._exit(1)
                    os._exit(0)
                running[child] = (job, batch, own)
        child, status = os.wait()
        job, batch, own = running.pop(child)
        rows = [json.loads(line) for line in own.read_text().splitlines()] if own.exists() else []
        yield from rows
        with log.open("a") as lines:
            lines.writelines(json.dumps(row) + "\n" for row in rows)
        if status:
            died = batch[len(rows)]
            why = (
                "took too long"
                if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM
                else f"died: {status}"
            )
            kind = only or list(KINDS)[died % len(KINDS)]
            yield {"input": died, "kind": kind, "command": "", "code": -1, "seconds": PATIENCE, "problem": why}
            todo[job] = batch[len(rows) + 1 :] + todo[job]
        for left in root.glob("work-*"):
            if int(left.name[5:]) not in {int(each.name[4:]) for _, _, each in running.values()}:
                shutil.rmtree(left, ignore_errors=True)


if __name__ == "__main__":
    found = main(sys.argv[1:])
    print(json.dumps(found, indent=2))
    sys.exit(bool(found["problems"]))
