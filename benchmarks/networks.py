"""A private step on networks people bring, against a plain SGD step P and against Opacus (ghost, hooks), in one process.

Sampling, noise and optimizer are in. Medians over interleaved steps; a set-up is all before the first step. Memory is the
largest resident set of two steps above that before the step was made (Linux). Nothing else should run meanwhile.

oneDNN makes the kernels of a convolution anew for every size of a batch, and keeps them: of samples of some 40 sizes a
training has seen nearly all after as many steps (``--warm``).

    python benchmarks/networks.py [--networks resnet20 vit] [--threads 2 1] [--warm 40] [--repeat 5]
        [--without ghost hooks] [--device cuda] [--precision bfloat16]
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import gc
import itertools
import os
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from training_step import random_mask

from dpltm import PrivateLoop

Step = Callable[[], None]
RECORDS = 2000


class Residual(nn.Module):
    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.first, self.first_norm = nn.Conv2d(before, width, 3, stride, 1, bias=False), nn.GroupNorm(8, width)
        self.second, self.second_norm = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.GroupNorm(8, width)
        same = stride == 1 and before == width
        self.beside = nn.Identity() if same else nn.Conv2d(before, width, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inside = functional.relu(self.first_norm(self.first(x)))
        return functional.relu(self.second_norm(self.second(inside)) + self.beside(x))


class ResNet20(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.GroupNorm(8, 16)
        widths = [16] * 4 + [32] * 3 + [64] * 3
        self.blocks = nn.Sequential(*(Residual(a, b, 1 if a == b else 2) for a, b in itertools.pairwise(widths)))
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(functional.relu(self.norm(self.first(x)))).mean((2, 3)))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            layer(x).unflatten(2, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        shares = functional.softmax(query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5, -1)
        return self.out((shares @ value).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.first_norm, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.second_norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first_norm(x))
        return x + self.down(functional.gelu(self.up(self.second_norm(x))))


class ViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches, self.norm = nn.Conv2d(3, 128, 4, 4), nn.LayerNorm(128)
        self.blocks, self.head = nn.Sequential(*(Block(128, 4) for _ in range(4))), nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.patches(x).flatten(2).transpose(1, 2))).mean(1))


class Pooled(nn.Module):
    """Patches, a layer of ``nn.MultiheadAttention``, and another whose query is their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.norm, self.head = nn.Conv2d(3, 128, 4, 4), nn.LayerNorm(128), nn.Linear(128, 10)
        self.mixed, self.pooled = (nn.MultiheadAttention(128, 4, batch_first=True) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.patches(x).flatten(2).transpose(1, 2))
        x = x + self.mixed(x, x, x)[0]
        return self.head(self.pooled(x.mean(1, keepdim=True), x, x)[0].squeeze(1))


class Text(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(10_000, 128), nn.Linear(128, 2)
        self.blocks = nn.Sequential(*(Block(128, 4) for _ in range(2)))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.table(x)).mean(1))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(self.stage(*each) for each in ((3, 16), (16, 32), (32, 64)))
        self.up, self.head = nn.ModuleList(self.stage(*each) for each in ((96, 32), (48, 16))), nn.Linear(16, 10)

    @staticmethod
    def stage(before: int, width: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(before, width, 3, padding=1), nn.GroupNorm(4, width), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        found = [self.down[0](x)]
        for stage in list(self.down)[1:]:
            found.append(stage(functional.max_pool2d(found[-1], 2)))
        x = found.pop()
        for stage in self.up:
            x = stage(torch.cat([functional.interpolate(x, scale_factor=2.0), found.pop()], 1))
        return self.head(x.mean((2, 3)))


class Conv1d(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(9, 64, 7, padding=3), nn.ReLU(), nn.Conv1d(64, 64, 7, 2, 3), nn.ReLU(),
            nn.Conv1d(64, 128, 7, 2, 3), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Linear(128, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).mean(2))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.body, self.head = kind(9, 64, batch_first=True), nn.Linear(64, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x)[0][:, -1])


class Bert(nn.Module):
    """The tiny BERT: 2 layers of 128, 30,522 words, 4.4 million weights, with its dropout."""

    def __init__(self) -> None:
        from transformers import BertConfig, BertForSequenceClassification

        super().__init__()
        shape = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512}
        self.body = BertForSequenceClassification(BertConfig(**shape, max_position_embeddings=128, num_labels=2))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x).logits


@dataclass(frozen=True)
class Case:
    """A network, records for it, and what a step may cost: dense and 10 % live in P, and best of Opacus over each."""

    make: Callable[[], nn.Module]
    draw: Callable[[], Tensor]
    classes: int
    batch: int
    dense: float
    tenth: float | None
    ahead: tuple[float, float | None]


def _images() -> Tensor:
    return torch.rand(RECORDS, 3, 32, 32)


def _series() -> Tensor:
    return torch.rand(RECORDS, 128, 9)


CASES = {
    "resnet20": Case(ResNet20, _images, 10, 64, 1.5, 1.4, (1.4, 1.5)),
    "vit": Case(ViT, _images, 10, 64, 1.35, 1.3, (1.25, 1.3)),
    "pooled": Case(Pooled, _images, 10, 64, 1.4, None, (1.25, None)),
    "text": Case(Text, lambda: torch.randint(10_000, (RECORDS, 64)), 2, 64, 1.6, 1.4, (1.4, 1.5)),
    "unet": Case(UNet, _images, 10, 64, 1.6, None, (1.25, None)),
    "conv1d": Case(Conv1d, lambda: _series().transpose(1, 2).contiguous(), 6, 128, 1.5, None, (1.25, None)),
    "lstm": Case(lambda: Recurrent(nn.LSTM), _series, 6, 128, 2.0, None, (1.25, None)),
    "gru": Case(lambda: Recurrent(nn.GRU), _series, 6, 128, 2.0, None, (1.25, None)),
    "bert": Case(Bert, lambda: torch.randint(30_522, (RECORDS, 64)), 2, 32, 1.7, None, (1.25, None)),
}


def plain(case: Case, x: Tensor, y: Tensor) -> Step:
    model, loss = case.make().to(x.device), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        rows = torch.randint(RECORDS, (case.batch,), device=x.device)
        optimizer.zero_grad()
        loss(model(x[rows]), y[rows]).backward()
        optimizer.step()

    return step


PRECISION = "float32"
"""Of our passes."""


def ours(case: Case, x: Tensor, y: Tensor, density: float | None) -> Step:
    model, loss = case.make().to(x.device), nn.CrossEntropyLoss(reduction="none")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    mask = None if density is None else random_mask(model, density)
    plan = {"batch_size": case.batch, "steps": 1000, "delta": 1e-4, "noise_multiplier": 1.0, "precision": PRECISION}
    steps = iter(PrivateLoop(model, loss, x, y, mask=mask, provenance=mask and "data-free", **plan))

    def step() -> None:
        next(steps).backward()
        optimizer.step()

    return step


def opacus(case: Case, x: Tensor, y: Tensor, mode: str) -> Step:
    from opacus import PrivacyEngine
    from opacus.validators import ModuleValidator

    model, loss = ModuleValidator.fix(case.make()).to(x.device), nn.CrossEntropyLoss()  # its own attention
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(x, y), batch_size=case.batch)
    parts = PrivacyEngine().make_private(
        module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0,
        poisson_sampling=True, grad_sample_mode=mode, **({"criterion": loss} if mode == "ghost" else {}),
    )  # fmt: skip
    model, optimizer, loss = parts[0], parts[1], parts[2] if mode == "ghost" else loss

    def batches() -> Iterator[list[Tensor]]:
        while True:
            yield from parts[-1]

    drawn = batches()

    def step() -> None:
        rows, labels = next(drawn)
        optimizer.zero_grad()
        loss(model(rows), labels).backward()
        optimizer.step()

    return step


WAYS: dict[str, Callable[[Case, Tensor, Tensor], Step]] = {
    "plain": plain,
    "dense": lambda case, x, y: ours(case, x, y, None),
    "10 %": lambda case, x, y: ours(case, x, y, 0.1),
    "ghost": lambda case, x, y: opacus(case, x, y, "ghost"),
    "hooks": lambda case, x, y: opacus(case, x, y, "hooks"),
}


class Memory:
    """Largest resident set since it was made, above what it was then, in MiB; 0 where the system does not tell.

    Of a GPU the largest sum of its tensors.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        gc.collect()
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            self._before = torch.cuda.memory_allocated() / 2**20
            return
        try:
            ctypes.CDLL("libc.so.6").malloc_trim(0)
            Path("/proc/self/clear_refs").write_text("5")
        except OSError:
            pass
        self._before = self._now("VmRSS")

    def peak(self) -> float:
        if self._device == "cuda":
            return torch.cuda.max_memory_allocated() / 2**20 - self._before
        return self._now("VmHWM") - self._before

    @staticmethod
    def _now(which: str) -> float:
        path = Path("/proc/self/status")
        lines = path.read_text().splitlines() if path.exists() else []
        return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(which)), 0.0)


def measured(
    case: Case, ways: list[str], threads: list[int], warm: int, repeat: int, device: str
) -> tuple[dict[str, list[float]], ...]:
    """Set-up in seconds and memory in MiB, one of each; and times of a step in milliseconds, by threads; all by way."""
    torch.set_num_threads(max(threads))
    x, y = case.draw().to(device), torch.randint(case.classes, (RECORDS,)).to(device)
    steps: dict[str, Step] = {}
    set_up: dict[str, list[float]] = {}
    held: dict[str, list[float]] = {}
    for way in ways:
        memory, began = Memory(device), time.perf_counter()
        try:
            step = WAYS[way](case, x, y)
            set_up[way] = [time.perf_counter() - began]
            memory = Memory(device)
            step()
            step()
        except Exception as error:  # what Opacus does not take
            print(f"{way}: {str(error).splitlines()[0][:100]}", flush=True)
            continue
        held[way], steps[way] = [memory.peak()], step
    times: list[dict[str, list[float]]] = []
    for count in threads:
        torch.set_num_threads(count)
        found: dict[str, list[float]] = {way: [] for way in steps}
        for turn in range(warm + repeat):
            for way, step in steps.items():
                began = time.perf_counter()
                step()
                if device == "cuda":
                    torch.cuda.synchronize()
                if turn >= warm:
                    found[way].append(1e3 * (time.perf_counter() - began))
        times.append(found)
    return set_up, held, *times


def show(name: str, threads: int, times: dict[str, list[float]]) -> None:
    case, medians = CASES[name], {way: statistics.median(each) for way, each in times.items()}
    base = medians["plain"]
    peers = [medians[way] for way in ("ghost", "hooks") if way in medians]
    cells = [f"{name}, {threads} thread{'s' * (threads > 1)}", f"{base:.0f} ms"]
    for way, most, least in (("dense", case.dense, case.ahead[0]), ("10 %", case.tenth, case.ahead[1])):
        if way in medians:
            cells.append(f"{medians[way] / base:.2f} P" + (f" (at most {most})" if most else ""))
            times_ahead = f"{min(peers) / medians[way]:.2f}" if peers else "-"
            cells.append(times_ahead + (f" (at least {least})" if least and peers else ""))
        else:
            cells += ["", ""]
    cells += [f"{medians[way] / base:.2f} P" if way in medians else "-" for way in ("ghost", "hooks")]
    slowest = max((max(times[way]) / medians[way] for way in ("dense", "10 %") if way in times), default=0.0)
    print(f"| {' | '.join([*cells, f'{slowest:.1f}'])} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--threads", nargs="*", type=int, default=[2, 1])
    parser.add_argument("--warm", type=int, default=1, help="steps before those that are timed, for every way")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--without", nargs="*", default=[], choices=list(WAYS)[1:], metavar="WAY")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32", help="of our passes")
    given = parser.parse_args()
    global PRECISION
    PRECISION = given.precision
    warnings.simplefilter("ignore")  # Opacus's
    from table import processor

    settings = {
        name: value for name, value in os.environ.items() if name.startswith(("MALLOC", "LD_PRELOAD", "OMP", "KMP"))
    }
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    where = torch.cuda.get_device_name() if given.device == "cuda" else processor()
    print(f"{datetime.date.today()}, {where}, torch {torch.__version__}, load {load}")
    print(f"allocator and threads: {settings or 'as they come'}\n")
    began, costs = time.perf_counter(), []
    print("| | P | dense | Opacus over it | 10 % live | Opacus over it | ghost | hooks | slowest over median |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in given.networks:
        torch.manual_seed(0)
        ways = [way for way in WAYS if way not in given.without]
        set_up, held, *times = measured(CASES[name], ways, given.threads, given.warm, given.repeat, given.device)
        for threads, found in zip(given.threads, times, strict=True):
            show(name, threads, found)
        goal = 1 + 10 * statistics.median(times[0]["plain"]) / 1e3
        seconds = [f"{set_up[way][0]:.1f} s" if way in set_up else "" for way in ("dense", "10 %")]
        room = [f"{held[way][0]:.0f} MiB" if way in held else "-" for way in WAYS]
        costs.append([name, *seconds, f"{goal:.1f} s", *room])
    print("\n| | set-up, dense | 10 % | at most | memory, plain | dense | 10 % | ghost | hooks |")
    print("|---|---|---|---|---|---|---|---|---|")
    for row in costs:
        print(f"| {' | '.join(row)} |")
    print(f"\n{time.perf_counter() - began:.0f} seconds")


if __name__ == "__main__":
    main()
