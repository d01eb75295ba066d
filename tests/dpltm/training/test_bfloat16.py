"""Passes in bfloat16: what they leave of a record is the same bits whatever other records are in the step."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dpltm.filters import Clip, Filter, Sigmoid, Tanh
from dpltm.gradients import RecordGradients, mapped, plan
from dpltm.gradients.draws import mixed
from dpltm.gradients.layer import Call
from dpltm.networks.masks import Mask
from dpltm.options.train import TrainOptions
from dpltm.privacy.mechanisms import NoisySgd
from dpltm.records.batches import Records
from dpltm.training.descent import SampleSums, cross_entropy
from dpltm.training.plan import NoisySteps
from gradient_cases import noisy, steps_of
from refusals import refused

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")),
]


class Encoder(nn.Module):
    """A block with attention over 12 positions of 24, and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.norm, self.drop = nn.Linear(24, 72), nn.Linear(24, 24), nn.LayerNorm(24), nn.Dropout()
        self.head = nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(2, (3, 2, 12)).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.head(self.drop(self.norm(x + self.out(seen))).mean(1))


class Series(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.GRU(24, 16, batch_first=True), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x)[0][:, -1])


class ByLength(nn.Linear):
    """A layer that rounds otherwise in a batch of another length."""

    def forward(self, x: Tensor) -> Tensor:
        found = super().forward(x)
        return found * (1 + 2**-7 * (len(x) % 5)) if found.dtype == torch.bfloat16 else found


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(75, 130), nn.Tanh(), nn.Linear(130, 3)), (75,)),
    "conv": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 16, 3), nn.GroupNorm(4, 16), nn.ReLU(), nn.Conv2d(16, 9, 3), nn.Flatten(), nn.Linear(144, 3)
        ),
        (3, 8, 8),
    ),
    "attention": (Encoder, (12, 24)),
    "recurrent": (Series, (12, 24)),
    "by length": (lambda: nn.Sequential(ByLength(75, 13), nn.Tanh(), nn.Linear(13, 3)), (75,)),
}
RECORDS = 90
SAMPLES = {
    "as before": (range(37), [20, 17]),
    "others": ([0, *range(40, 76)], [20, 17]),
    "many more": (range(RECORDS), [45, 45]),
    "alone": ([0], [1]),
    "one less": (range(36), [20, 16]),
    "moved": ([*range(50, 71), 0, *range(1, 20)], [41]),
    "moved far": ([*range(1, 89), 0], [80, 9]),
}


def bits_of_the_first(
    network: str, monkeypatch: pytest.MonkeyPatch, device: str, **settings: Any
) -> dict[str, list[Tensor]]:
    """Everything that passes leave of the first record, for every sample."""
    make, shape = NETWORKS[network]
    torch.manual_seed(0)
    model, x = make().to(device), torch.rand(RECORDS, *shape, device=device)
    labels, keys = torch.arange(RECORDS, device=device) % 3, mixed(torch.arange(RECORDS)).numpy()
    config = steps_of(Clip(1.0), 0.4, 1, 36.0, 0.0, 0.1, precision="bfloat16", **settings)
    gradients = RecordGradients(model, Mask.dense(model), cross_entropy, grouped=config.groups is not None)
    gradients.check(x[:1], labels[:1])
    sums, left = SampleSums(gradients, Records(x, labels, device=device), config, torch.device(device)), []
    sums.rehearse()

    def calls(plan_: plan.Plan, rows: Tensor, *others: Any) -> list[Call]:
        kept = usual(plan_, rows, *others)
        places = (rows == x[0]).flatten(1).all(1).nonzero().flatten().tolist()
        if places and not left:  # where it fills a pass up, it counts for nothing
            values = [value for call in kept for value in (*call.inputs, call.outputs[0], *call.gradients)]
            left.extend(value[places[0]].detach().clone() for value in values if isinstance(value, Tensor))
        return kept

    usual = plan.Plan.calls
    monkeypatch.setattr(plan.Plan, "calls", calls)
    found = {}
    for name, (index, sizes) in SAMPLES.items():
        left.clear()
        own = np.array(index)
        if config.groups is not None:
            sizes = [4] * (len(own) // 4) + [len(own) % 4]
        sums.take((own, sizes, keys[own] if gradients.draws else None))
        found[name] = list(left)
    return found


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) > 2 and all(torch.equal(*pair) for pair in zip(one, other, strict=True))


@pytest.mark.one_of(7)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("settings", [{}, {"physical_batch": 7}, {"microbatch": 4}], ids=str)
@pytest.mark.parametrize("network", NETWORKS)
def test_no_bit_of_a_record_depends_on_the_others(
    network: str, settings: dict[str, Any], device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replaced, added, taken away and moved; in groups as well."""
    found = bits_of_the_first(network, monkeypatch, device, **settings)
    first = found.pop("as before")
    assert any(value.dtype == torch.bfloat16 for value in first)
    assert {name for name, other in found.items() if not same(first, other)} == set()


class Uneven(nn.Linear):
    """A layer that rounds otherwise at the front of a batch, as some libraries do."""

    def forward(self, x: Tensor) -> Tensor:
        found = super().forward(x)
        return torch.cat([found[:1] * (1 + 2**-7), found[1:]]) if found.dtype == torch.bfloat16 else found


class UnevenBack(nn.Linear):
    """One that does so on its way back alone."""

    def forward(self, x: Tensor) -> Tensor:
        found = super().forward(x)
        if found.requires_grad and torch.is_autocast_enabled("cpu"):
            found.register_hook(lambda gradient: torch.cat([gradient[:1] * (1 + 2**-7), gradient[1:]]))
        return found


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Sequential(Uneven(5, 4), nn.ReLU(), nn.Linear(4, 3)),
        lambda: nn.Sequential(nn.Linear(5, 4), UnevenBack(4, 4), nn.Linear(4, 3)),
    ],
    ids=["forward", "back"],
)
def test_where_bits_move_records_pass_alone_or_training_is_refused(
    make: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in (Uneven, UnevenBack):  # as a library's
        monkeypatch.setitem(mapped.AT_ONCE, kind, kind.forward)
    said = r"what a record gives depends, in its last bits, on the rows beside it on this machine \(seen at [02]\): "
    x, y = torch.rand(20, 5), torch.arange(20) % 3
    config = NoisySteps(Clip(1.0), NoisySgd(0.4, 1, 1.0), 8.0, 0.1, options=TrainOptions(precision="bfloat16"))
    gradients = noisy(make(), x, y, config).gradients
    assert gradients.pass_rows == 1
    assert re.match(f"model: {said}records pass one by one, slowly; leave", gradients.one_by_one)
    many = replace(config, mechanism=NoisySgd(0.4, 10**6, 1.0))
    left = (
        r"no bound would hold; leave `precision` out, or set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 before Python starts"
    )
    assert re.fullmatch(f"model: {said}{left}", refused(noisy, make(), x, y, many))


def test_a_device_without_float64_is_refused_by_name() -> None:
    model = nn.Linear(3, 2, device="meta")  # as Apple's is, where there is one
    mask = Mask({name: torch.ones(value.shape, dtype=torch.bool) for name, value in model.named_parameters()})
    said = "model: weight is on meta; use the processor (cpu) or a GPU (cuda)"
    assert refused(RecordGradients, model, mask, cross_entropy) == said


@pytest.mark.parametrize("of_persons", [False, True])
@pytest.mark.parametrize("records", [150, 300])
def test_records_of_float16_are_prepared_beside_passes_of_bfloat16(records: int, of_persons: bool) -> None:
    """Where passes are in bfloat16, PyTorch joins no tensors of float16: nothing beside passes may try."""
    x, y = torch.rand(records, 5).half(), torch.arange(records) % 3
    persons = [np.array([start, start + 1]) for start in range(0, records, 2)] if of_persons else None
    model = nn.Linear(5, 3)
    gradients = RecordGradients(model, Mask.dense(model), cross_entropy, grouped=of_persons)
    prepared = Records(x.numpy(), y.numpy(), persons=persons, prepare=lambda rows: 2 * rows)
    gradients.check(x[:1].float(), y[:1])
    steps = steps_of(Clip(1.0), 1.0, 1, records, 1.0, 0.1, class_weight=(0.5, 1.0, 0.25), precision="bfloat16")
    sums = SampleSums(gradients, prepared, steps, torch.device("cpu"))
    sizes = [2] * (records // 2) if of_persons else [min(100, records - start) for start in range(0, records, 100)]
    assert sums.take((np.arange(records), sizes, None)).any()


@pytest.mark.one_of(8)
@pytest.mark.parametrize("filter", [Clip(0.1), Sigmoid(1.0, 2.0), Tanh(1.0, 0.5, Clip(1.0))], ids=str)
@pytest.mark.parametrize("way", ["plain", "present", "weights", "groups", "chunks"])
def test_what_fills_a_pass_up_counts_for_nothing(way: str, filter: Filter) -> None:
    """Its gradient is that of the first record, and sigmoid sends zero elsewhere. A spoilt record is counted once."""
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    x, y = torch.rand(10, 5, dtype=torch.float64), torch.arange(10) % 3
    x[3] = torch.nan
    weights = torch.linspace(0, 1, 10, dtype=torch.float64)
    given: dict[str, Any] = {
        "plain": {},
        "present": {"weights": weights > 0.25},
        "weights": {"weights": weights},
        "groups": {"groups": [3, 5, 2], "weights": weights[1:4]},
        "chunks": {"chunks": [slice(0, 4), slice(6, 10)]},
    }[way]
    found = []
    for rows in (1, 32, 64):
        gradients = RecordGradients(model, Mask.dense(model), cross_entropy, grouped=way == "groups")
        gradients.pass_rows = rows
        found.append(gradients.filtered_sum(x, y, filter, **given))
    for other in found[1:]:
        torch.testing.assert_close(other.values, found[0].values, rtol=1e-12, atol=1e-12)
        assert other.skipped == found[0].skipped == 1
    assert found[0].values.any()
