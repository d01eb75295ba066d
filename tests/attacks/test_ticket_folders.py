"""Hostile ticket folders: each is refused in one line, without a crash, a hang, a write elsewhere, code run or memory spent.

Two hundred run in the suite. The campaign of the results page, some minutes:

    PYTHONPATH=tests/support python tests/attacks/test_ticket_folders.py --count 20000
"""

import argparse
import collections
import hashlib
import json
import os
import pickle
import random
import resource
import shutil
import signal
import struct
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from dpltm.errors import ArtifactError
from dpltm.features.normalisation import ChannelStatistics
from dpltm.networks import ModelSpec
from dpltm.options.generate import GenerateOptions
from dpltm.privacy.entry import Lineage
from dpltm.pruning.generation import Tickets, generate
from dpltm.tickets.store import problems
from dpltm.tickets.ticket_set import load_ticket_set, save_winner
from dpltm.training.artifacts import TicketSet, Winner
from hostile_values import MAPS, wrong_values
from maps import make_feature_map
from set_entries import DRAWN, MOMENTS, TRAINED, store_set

MAX_SECONDS, MAX_MEGABYTES = 20, 256
TENSORS = ("theta0.safetensors", "masks.safetensors", "predictors.safetensors", "features.safetensors")
FILES = ("tickets.json", "README.md", "lineage.json", "winner.json", *TENSORS)

ENTRIES: dict[str, list[Any]] = {
    "shape": [[2**63, 2**63], [-1], [0], [2**62, 4], ["1"], None, [1] * 10_000, [1.5]],
    "data_offsets": [[0, 2**63], [-1, 0], [2**64, 2**64 + 1], [5, 1], [0], None, ["0", "4"]],
    "dtype": ["F64", "object", "O", "", None, "I8", 7, "F8_E5M2"],
}
"""What a header may say of a tensor, and must not."""


class Payload:
    """Unpickling it leaves a trace."""

    def __init__(self, trace: Path) -> None:
        self.trace = str(trace)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.mkdir, (self.trace,)


def original(folder: Path) -> TicketSet:
    """A small set with all that a set may have: a DP release and a draw behind it, predictors, a winner, and a map with
    tensors in front, which was made from these records.
    """
    import torch

    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(60, 12, generator=generator), torch.randint(3, (60,), generator=generator)
    spec = ModelSpec("mlp:6,5", 12, 3)
    tickets: Tickets = generate(
        spec, (x, y), GenerateOptions(rounds=3, iterations=5, batch_size=20).for_records(1000), (x, y)
    )
    statistics = ChannelStatistics(torch.rand(2), 1 + torch.rand(2))
    front = replace(make_feature_map("scatter:1,1", (6, 4), (0.0, 255.0)), statistics=statistics)
    saved = store_set(
        folder / "s", tickets, name="victim", criterion="dp-synthetic", provenance="dp",
        config={"rounds": 3}, made_from=Lineage((MOMENTS, DRAWN)),
        feature_map=replace(front, lineage=Lineage((TRAINED,))),
    )  # fmt: skip
    save_winner(folder / "s", Winner(2, saved.lineage, saved, {"eps1": 0.1}))
    return saved


class Attacker:
    """Draws mutants of one folder, which stays as it is; a pickle would leave a ``trace``."""

    def __init__(self, victim: Path, seed: int, trace: Path) -> None:
        self.victim, self.random, self.trace = victim, random.Random(seed), trace
        self.ways: dict[str, Callable[[Path], None]] = {
            "flipped bit": self.flip,
            "overwritten bytes": lambda folder: self.flip(folder, self.random.randint(1, 64)),
            "truncated": self.truncate,
            "appended": self.append,
            "removed": self.remove,
            "swapped": self.swap,
            "link": self.link,
            "not a file": lambda folder: self.random.choice((os.mkdir, os.mkfifo))(self.gone(folder)),
            "huge file": self.huge,
            "pickle": self.pickled,
            "hostile header": self.header,
            "JSON bomb": self.bomb,
            "hostile description": lambda folder: self.description(folder, lambda document: document),
            "hostile lineage": lambda folder: self.description(folder, lambda body: body["lineage"], "lineage.json"),
            "hostile row": lambda folder: self.description(folder, lambda one: self.random.choice(one["tickets"])),
            "another lineage": self.lineage,
        }

    def mutant(self, target: Path) -> str:
        """A copy of the victim with something done to it; returns what."""
        shutil.copytree(self.victim, target)
        way = self.random.choice(list(self.ways))
        self.ways[way](target)
        return way

    def file(self, folder: Path, *names: str) -> Path:
        return folder / self.random.choice(names or [path.name for path in sorted(folder.iterdir())])

    def flip(self, folder: Path, count: int = 0) -> None:
        """One bit, or ``count`` bytes."""
        path = self.file(folder)
        data = bytearray(path.read_bytes())
        start = self.random.randrange(len(data))
        if count:
            data[start : start + count] = self.random.randbytes(min(count, len(data) - start))
        else:
            data[start] ^= 1 << self.random.randrange(8)
        path.write_bytes(data)

    def truncate(self, folder: Path) -> None:
        path = self.file(folder)
        os.truncate(path, self.random.randrange(path.stat().st_size))

    def append(self, folder: Path) -> None:
        with self.file(folder).open("ab") as stream:
            stream.write(self.random.randbytes(self.random.choice((1, 100, 10_000))))

    def remove(self, folder: Path) -> None:
        self.file(folder, "tickets.json", "README.md", *TENSORS).unlink()

    def swap(self, folder: Path) -> None:
        one, other = self.random.sample(FILES, 2)
        (folder / one).rename(folder / "x")
        (folder / other).rename(folder / one)
        (folder / "x").rename(folder / other)

    def gone(self, folder: Path) -> Path:
        path = self.file(folder, *FILES)
        path.unlink()
        return path

    def link(self, folder: Path) -> None:
        path = self.gone(folder)
        where = (str(self.victim / path.name), "/etc/passwd", "/nowhere", path.name, "/", "../../..")
        path.symlink_to(self.random.choice(where))

    def huge(self, folder: Path) -> None:
        os.truncate(self.file(folder, *FILES), self.random.choice((2**24, 2**32, 2**40)))

    def pickled(self, folder: Path) -> None:
        path, data = self.file(folder, "tickets.json", *TENSORS), pickle.dumps(Payload(self.trace))
        path.write_bytes(data.ljust(path.stat().st_size, b"\0") if self.random.random() < 0.5 else data)

    def header(self, folder: Path) -> None:
        """Another header, in a file of the right length, so that the deeper checks are reached."""
        path = self.file(folder, *TENSORS)
        data = path.read_bytes()
        (size,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + size])
        name = self.random.choice([key for key in header if key != "__metadata__"])
        others, draw = [key for key in header if key != name], self.random
        match draw.randrange(9):
            case 0 | 1 | 2:
                key = draw.choice(list(ENTRIES))
                header[name][key] = draw.choice(ENTRIES[key])
            case 3:
                header["../" * draw.randint(1, 5) + "etc/passwd"] = header.pop(name)
            case 4:
                header[name] = header[draw.choice(others)]
            case 5:
                header["__metadata__"] = draw.choice([[], {"a": {}}, {"a": 1}, "x", {"n": [[]] * 1000}])
            case 6:
                header["extra"] = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
            case 7:
                del header[name]
            case 8:
                header = draw.choice([[], None, 7, {"a": 1}, "x", {"": {}}])
        text = json.dumps(header).encode()
        length = draw.choice([len(text)] * 6 + [0, 1, len(text) + 1, 2**31, 2**63, 2**64 - 1])
        path.write_bytes((struct.pack("<Q", length) + text + data[8 + size :])[: len(data)].ljust(len(data), b" "))

    def bomb(self, folder: Path) -> None:
        depth, start = self.random.choice((1000, 100_000, 500_000)), '{"format": "dpltm-ticket-set", "schema": '
        texts = [
            *("[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth, "[" + ",".join(["[]"] * depth) + "]"),
            *("9" * depth, f"{start}1{'0' * depth}}}", f"{start}1e999}}"),
            f'{start}2, "x": "' + "\\u0000" * (depth // 2) + '"}',
            f'{start}2, "format": "dpltm-ticket-set"}}',
        ]
        self.file(folder, "tickets.json", "lineage.json", "winner.json").write_text(self.random.choice(texts))

    def description(
        self, folder: Path, part: Callable[[dict[str, Any]], dict[str, Any]], name: str = "tickets.json"
    ) -> None:
        """A value that is wrong, at whatever depth of a part."""
        document = json.loads((folder / name).read_text())
        self.forge(part(document))
        (folder / name).write_text(json.dumps(sealed(document), indent=self.random.choice((None, 2))))

    def forge(self, holder: dict[str, Any]) -> None:
        """Changes, drops or adds one key of an object, or of one within it."""
        key = self.random.choice([key for key in holder if key != "digest"])
        inner = self.random.choice(holder[key] or [None]) if isinstance(holder[key], list) else holder[key]
        if isinstance(inner, dict) and key != "config" and self.random.random() < 0.7:
            self.forge(inner)
            return
        match self.random.randrange(8):
            case 0:
                del holder[key]
            case 1:
                holder[self.random.choice(["__class__", "masks", "Format", "more "])] = 1
            case _:
                values = MAPS[key] if "statistics" in holder else wrong_values(key, holder[key])
                if key == "tickets":
                    values = [*values, holder[key][:2], holder[key][::-1], holder[key] * 5000]
                holder[key] = self.random.choice([value for value in values if value != holder[key]])

    def lineage(self, folder: Path) -> None:
        """One without an entry, with one twice or with another price, and the digest made right."""
        path = folder / "lineage.json"
        body = json.loads(path.read_text())
        entries, place = body["lineage"]["entries"], self.random.randrange(2)
        match self.random.randrange(3):
            case 0:
                del entries[place]
            case 1:
                entries.insert(place, entries[place])
            case 2:
                entries[place]["mechanisms"][0] |= self.random.choice(({"noise_multiplier": 9.5}, {"eps1": 0.01}))
        path.write_text(json.dumps(sealed(body)))


def sealed(document: dict[str, Any]) -> dict[str, Any]:
    """With the digest that an attacker would make right."""
    rest = {key: value for key, value in document.items() if key != "digest"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return {**rest, "digest": hashlib.sha256(text.encode()).hexdigest()}


def snapshot(folder: Path) -> dict[Path, tuple[int, int, int]]:
    """Every file below, by name: kind, size, time of change."""
    states = {path: path.lstat() for path in folder.rglob("*")}
    return {path: (state.st_mode, state.st_size, state.st_mtime_ns) for path, state in states.items()}


def same(folder: Path, saved: TicketSet) -> bool:
    """Whether a folder that is not refused holds what was saved: a change that means nothing, such as of a blank."""

    def content(one: TicketSet) -> list[object]:
        whole = [getattr(one, name) for name in ("id", "name", "provenance", "lineage", "config")]
        return whole + [getattr(one.feature_map, name) for name in ("id", "lineage")]

    return content(load_ticket_set(folder)) == content(saved)


def memory() -> float:
    """Largest resident memory so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class Slow(Exception):
    """A mutant took longer than it may."""


def _alarm(_signal: int, _frame: FrameType | None) -> None:
    raise Slow


def campaign(count: int, seed: int, scratch: Path) -> tuple[collections.Counter[str], list[str]]:
    """Attacks ``count`` times; returns how often each way was tried, and what went wrong."""
    (scratch / "home").mkdir()
    saved = original(scratch / "home")
    assert problems(saved.path) == []
    attacker, trace = Attacker(saved.path, seed, scratch / "trace"), scratch / "trace"
    tried: collections.Counter[str] = collections.Counter()
    wrong: list[str] = []
    before = signal.signal(signal.SIGALRM, _alarm)
    start = memory()
    for number in range(count):
        folder = scratch / "work" / "m"
        way = attacker.mutant(folder)
        tried[way] += 1
        files = snapshot(scratch)
        signal.alarm(MAX_SECONDS)
        try:
            found = problems(folder)
            if not found and not same(folder, saved):
                wrong.append(f"{number} {way}: accepted")
            if any("\n" in line or not line.isprintable() or len(line) > 1000 for line in found):
                wrong.append(f"{number} {way}: not one printable line: {found!r:.300}")
        except ArtifactError as error:
            found = [str(error)]
        except (Exception, Slow) as error:
            wrong.append(f"{number} {way}: {type(error).__name__}: {error!s:.200}")
        finally:
            signal.alarm(0)
        if snapshot(scratch) != files:
            wrong.append(f"{number} {way}: wrote something")
        if trace.exists():
            wrong.append(f"{number} {way}: ran code")
            trace.rmdir()
        if memory() - start > MAX_MEGABYTES:
            wrong.append(f"{number} {way}: {memory() - start:.0f} MB")
            start = memory()
        shutil.rmtree(folder)
    signal.signal(signal.SIGALRM, before)
    return tried, wrong


def test_some_hostile_folders(tmp_path: Path) -> None:
    tried, wrong = campaign(200, 0, tmp_path)
    assert wrong == []
    assert len(tried) == len(Attacker(tmp_path, 0, tmp_path).ways), "not every way was tried"


def test_a_pickle_would_have_left_its_trace(tmp_path: Path) -> None:
    """The trap works: what the reader must not do, does run code."""
    pickle.loads(pickle.dumps(Payload(tmp_path / "trace")))
    assert (tmp_path / "trace").exists()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        base = memory()
        tried, wrong = campaign(given.count, given.seed, Path(name))
        grown = memory() - base
    print(json.dumps({"tried": dict(tried), "wrong": wrong, "MB beyond the start": round(grown)}, indent=1))
