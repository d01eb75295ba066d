"""Batches made so that the last bits of their gradients decide what is released, and what leaving a record out moves.

Labels are the network's own outputs, as float64 has them: every gradient is then the rounding of the pass times something
large, or is made as long as any other by a filter that normalises. A kernel that rounds a record otherwise when another is
gone turns all of them round.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpltm.filters import Automatic, Clip, Filter, PerLayerClip, RadialTanh, Sigmoid, Tanh
from dpltm.gradients import RecordGradients
from dpltm.networks.masks import Mask
from dpltm.records.batches import Records
from dpltm.training.descent import SampleSums
from gradient_cases import Applied, random_mask, steps_of, tied
from gradient_networks import positions, recurrent, scaled, unrolled

FILTERS: dict[str, Filter] = {
    "clip": Clip(1.0),
    "small clip": Clip(1e-6),
    "normalize": Automatic(1.0, 0.0),
    "auto": Automatic(1.0, 0.01),
    "per-layer": PerLayerClip(1.0),
    "radial-tanh": RadialTanh(1.0, 1e-3),
    "tanh": Tanh(1.0, 1e-6, Clip(1.0)),
    "tanh alone": Tanh(1.0, 1e-5, None),
    "tanh-clip": Tanh(1.0, 1e-6, None, Clip(1.0)),
    "sigmoid": Sigmoid(1.0, 1e-6),
}


class Attention(nn.Module):
    """A block of attention without a bias, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.attend, self.norm, self.head = (
            nn.MultiheadAttention(6, 2, batch_first=True),
            nn.LayerNorm(6),
            nn.Linear(6, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x + self.attend(x, x, x, need_weights=False)[0]).mean(1))


def stacked(*widths: int, between: Callable[[], nn.Module] = nn.Tanh) -> nn.Sequential:
    layers: list[nn.Module] = []
    for pair in pairwise(widths):
        layers += [nn.Linear(*pair), between()]
    return nn.Sequential(*layers[:-1])


def convolutional() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 5, 3, padding=1), nn.GELU(), nn.Conv2d(5, 8, 3, stride=2), nn.GroupNorm(2, 8), nn.SiLU(),
        nn.Flatten(), nn.Linear(8 * 3 * 3, 3),
    )  # fmt: skip


@dataclass(frozen=True)
class Victim:
    """A network, the shape of its records or how many tokens they are of, and the share of live weights."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    tokens: int = 0
    density: float = 2.0


VICTIMS = {
    "one layer": Victim(lambda: nn.Linear(10, 7, bias=False), (10,)),
    "odd layers": Victim(lambda: stacked(17, 5, 3), (17,)),
    "relu": Victim(lambda: stacked(13, 11, 3, between=nn.ReLU), (13,)),
    "wide": Victim(lambda: stacked(75, 61, 3), (75,)),
    "sparse": Victim(lambda: stacked(75, 61, 3), (75,), density=0.2),
    "strided": Victim(lambda: Applied(lambda self, x: self.layer(x[:, ::2]), layer=nn.Linear(21, 7)), (41,)),
    "sequence": Victim(lambda: nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.Linear(7, 3)), (9, 5)),
    "norms": Victim(
        lambda: nn.Sequential(nn.Linear(7, 9), nn.LayerNorm(9), nn.Softplus(), nn.RMSNorm(9), nn.Linear(9, 3)), (7,)
    ),
    "convolution": Victim(convolutional, (2, 8, 8)),
    "series": Victim(
        lambda: nn.Sequential(nn.Conv1d(3, 9, 3), nn.ReLU(), nn.GroupNorm(3, 9), nn.Conv1d(9, 2, 3)), (3, 11)
    ),
    "lstm": Victim(lambda: recurrent(nn.LSTM(5, 9, 2, batch_first=True, bidirectional=True)), (6, 5)),
    "gru": Victim(lambda: recurrent(nn.GRU(5, 9, batch_first=True)), (6, 5)),
    "cell": Victim(lambda: unrolled(nn.LSTMCell(3, 5)), (4, 3)),
    "attention": Victim(Attention, (5, 6)),
    "encoder": Victim(
        lambda: nn.Sequential(nn.TransformerEncoderLayer(6, 2, 10, 0.0, batch_first=True), nn.Linear(6, 2)), (5, 6)
    ),
    "embedding": Victim(lambda: nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(24, 2)), (8,), 5),
    "padded embedding": Victim(
        lambda: nn.Sequential(nn.Embedding(5, 3, padding_idx=1), nn.Flatten(), nn.Linear(24, 2)), (8,), 5, 0.7
    ),
    "tied embedding": Victim(tied, (4,), 5),
    "torch.func": Victim(lambda: nn.Sequential(nn.Linear(3, 4), scaled(4), nn.ConvTranspose1d(5, 2, 2)), (5, 3)),
    "whole": Victim(positions, (6,), 5),
    "depthwise": Victim(
        lambda: nn.Sequential(
            nn.Conv2d(3, 9, 3, groups=3, padding="same", padding_mode="circular"),
            nn.PReLU(9),
            nn.MaxPool2d(2),
            nn.Upsample(scale_factor=3, mode="bilinear"),
            nn.Conv2d(9, 5, 3, stride=2, dilation=2),
            nn.Mish(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(20, 3),
        ),
        (3, 7, 9),
    ),
    "volume": Victim(
        lambda: nn.Sequential(nn.Conv3d(1, 3, 2), nn.ELU(), nn.InstanceNorm3d(3), nn.Flatten(), nn.Linear(81, 3)),
        (1, 4, 4, 4),
    ),
    "pairs": Victim(lambda: Applied(lambda self, x: self.both(x[:, 0], x[:, 1]), both=nn.Bilinear(7, 7, 3)), (2, 7)),
    "dropping": Victim(lambda: nn.Sequential(nn.Linear(13, 11), nn.Tanh(), nn.Dropout(0.3), nn.Linear(11, 3)), (13,)),
    "large": Victim(lambda: stacked(301, 129, 33, 3), (301,)),
    "large and sparse": Victim(lambda: stacked(301, 129, 33, 3), (301,), density=0.1),
    "double": Victim(lambda: stacked(17, 5, 3).double(), (17,)),
    "shared": Victim(lambda: Applied(lambda self, x: self.layer(self.layer(x).tanh()), layer=nn.Linear(7, 7)), (7,)),
}


def residual(outputs: Tensor, labels: Tensor) -> Tensor:
    """Half the squared distance of outputs and labels, large: its gradients are residuals."""
    return 0.5 * (1e6 * (outputs.flatten(1) - labels)).square().sum(1)


@dataclass
class Attacked:
    """The sums of a training on records made for it."""

    name: str
    sums: SampleSums
    gradients: RecordGradients
    records: int
    chunks: int
    microbatch: bool
    persons: list[np.ndarray] | None

    @property
    def units(self) -> int:
        """How many may leave: records, or persons."""
        return self.records if self.persons is None else len(self.persons)

    @property
    def bound(self) -> float:
        """Of what a record more may move: a microbatch's by twice the filter's."""
        return self.sums.filter.certified_bound(self.gradients.live) * (2 if self.microbatch else 1)

    def sample(self, seed: int, left_out: int | None = None) -> tuple[np.ndarray, list[int] | None, np.ndarray | None]:
        """All records, or persons, in a drawn order, by chunk; perhaps but one."""
        random = np.random.default_rng(seed)
        order, coins = random.permutation(self.units), random.integers(0, max(1, self.chunks), self.units)
        keys = random.integers(-(2**63), 2**63, self.records) if self.gradients.draws else None
        stays = order != left_out
        order, coins, sizes = order[stays], coins[stays], None
        if self.persons is not None:
            theirs = [self.persons[person] for person in order]
            order, sizes = np.concatenate([order[:0], *theirs]), [len(records) for records in theirs]
        elif self.chunks:
            order = order[np.argsort(coins, kind="stable")]
            sizes = np.bincount(coins, minlength=self.chunks).tolist()
        return order, sizes, None if keys is None else keys[order]

    def moved(self, seed: int, left_out: int) -> float:
        """How far leaving this record out moves the sum, over its bound."""
        whole = self.sums.take(self.sample(seed)).clone()
        return float((whole - self.sums.take(self.sample(seed, left_out))).norm()) / self.bound


def attacked(
    name: str,
    filter: Filter,
    records: int = 257,
    seed: int = 0,
    like: str = "many",
    persons: bool = False,
    **options: Any,
) -> Attacked:
    """A network and records made for it: ``many`` of their own, ``alike`` but for their last bits, or ``extreme``. Of
    ``persons`` the first has a third of them."""
    victim, generator = VICTIMS[name], torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = victim.build().eval()
    dtype = next(model.parameters()).dtype
    mask = random_mask(model, victim.density, generator) if victim.density < 1 else Mask.dense(model)
    with torch.no_grad():
        for key, value in model.named_parameters():
            value *= mask[key]
    x = records_like(victim, records, generator, like)
    with torch.no_grad():
        y = model.double()(x if victim.tokens else x.double()).flatten(1).float()
        model.to(dtype).train()
        if like == "extreme":
            y[::7] *= 1e9
    places = np.split(np.arange(records), [records // 3, *range(records // 3 + 2, records, 3)]) if persons else None
    microbatch = options.get("microbatch") is not None
    plan = steps_of(filter, 0.5, 1, float(records), 0.0, 0.1, **options)
    gradients = RecordGradients(model, mask, residual, compile=plan.options.compile, grouped=microbatch or persons)
    x = x if victim.tokens else x.to(dtype)
    gradients.check(x[:1], y[:1])
    sums = SampleSums(gradients, Records(x, y, dtype=dtype, persons=places), plan, torch.device("cpu"))
    sums.rehearse()
    chunks = plan.groups or (0 if filter.kind == "element-wise" else -(-records // 80))
    return Attacked(name, sums, gradients, records, chunks, microbatch, places)


def records_like(victim: Victim, records: int, generator: torch.Generator, like: str) -> Tensor:
    """Records of one kind."""
    shape = (records, *victim.shape)
    if victim.tokens:
        x = torch.randint(0, victim.tokens, shape, generator=generator)
        return x[torch.arange(records) % 3] if like == "alike" else x
    x = torch.randn(shape, generator=generator)
    if like == "alike":
        return x[:1] * (1 + 2.0**-20 * torch.randint(0, 3, shape, generator=generator))
    if like == "extreme":
        sizes = torch.tensor([1e12, 1e-25, float("nan"), 2.0**21, 1.0, 1.0, 0.0, 1e-8])
        x *= sizes[torch.randint(0, len(sizes), (records,), generator=generator)].view(-1, *[1] * len(victim.shape))
    return x


OF_EACH = 25
"""Records that leave each batch."""


def hostile_pairs(seed: int, names: list[str]) -> Iterator[float]:
    """What endless records move when they leave a batch, over their bounds; of each batch ``OF_EACH``."""
    random = np.random.default_rng(seed)
    while True:
        name, filter = random.choice(names), FILTERS[random.choice(list(FILTERS))]
        options: dict[str, Any] = {}
        if random.random() < 0.25:
            options["precision"] = "bfloat16"
        kind = random.random()
        if kind < 0.15:
            options["microbatch"] = int(random.integers(2, 9))
        elif kind < 0.3:
            options["persons"] = True
        elif kind < 0.45:
            options["physical_batch"] = 32 * int(random.integers(1, 6))
        records, like = int(random.integers(8, 400)), random.choice(["many", "alike", "extreme"])
        attack = attacked(name, filter, records, int(random.integers(2**31)), like, **options)
        if not options.keys() & {"microbatch", "persons"} and attack.gradients.pass_rows > 1 and random.random() < 0.5:
            attack.gradients._wanted = (*sorted(random.choice([16, 32, 48], 2, replace=False).tolist()), 64)
            attack.gradients.pass_rows = 64
            attack.sums.rehearse()
        for _ in range(OF_EACH):
            yield attack.moved(int(random.integers(2**31)), int(random.integers(attack.units)))
