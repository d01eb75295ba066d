"""A filter of one's own is tried before anything is spent: slips of the bound, of the shape, and looks at other records."""

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from dpltm.filters import FILTERS, Automatic, Clip, Tanh
from dpltm.filters.trial import check_filter_bound
from dpltm.privacy.mechanisms import NoisySgd
from dpltm.training.plan import NoisySteps
from refusals import refused


@dataclass(frozen=True)
class Own:
    """A radial or element-wise filter made of functions."""

    does: Any
    bound: Any = 1.0
    kind: str = "radial"
    nominal_bound: None = None
    before: Any = None
    after: Any = None

    def certified_bound(self, _: int) -> Any:
        return self.bound

    def factor(self, norm: torch.Tensor) -> Any:
        return self.does(norm)

    map = factor

    def __str__(self) -> str:
        return "own"


def unit(norm: torch.Tensor) -> torch.Tensor:
    return 1 / norm.clamp_min(1e-30)


@pytest.mark.parametrize("filter", [entry.default for entry in FILTERS.values()] + [
    Clip(1e-6), Automatic(1e6, 0.0), Tanh(1e6, 1e-6, None), Tanh(3.0, 1e6, Clip(1e-6)), Tanh(2.0, 0.1, None, Clip(5.0)),
])  # fmt: skip
def test_ours_pass(filter: Any) -> None:
    check_filter_bound(filter)


@pytest.mark.parametrize(
    ("filter", "said"),
    [
        (Own(unit, bound=0.01), "comes out with norm 1, above its certified bound of 0.01; state the largest"),
        (Own(lambda norm: 5 * unit(norm)), "comes out with norm 5, above its certified bound of 1"),
        (Own(lambda norm: unit(norm) * norm.mean().clamp(max=1)), "depends on others, so no bound would hold"),
        (Own(lambda norm: unit(norm)[:1].expand(len(norm))), "depends on others"),
        (Own(lambda norm: unit(norm)[:, None]), "gives (69, 1) for (69,); one value for each is expected"),
        (Own(lambda _: None), "gives NoneType for (69,)"),
        (Own(lambda norm: norm * math.nan), "makes a finite gradient one that is not"),
        (Own(lambda norm: norm.nonsense), "fails on made-up gradients: 'Tensor' object has no attribute 'nonsense'"),
        (Own(torch.tanh, kind="element-wise"), "a gradient of 10 coordinates comes out with norm 3.16"),
        *((Own(unit, bound=bound), "no positive number") for bound in (0.0, -1.0, math.nan, math.inf, None)),
    ],
)
def test_slips_are_refused(filter: Any, said: str) -> None:
    message = refused(NoisySteps, filter, NoisySgd(0.1, 1, 1.0), 1.0)
    assert message.startswith("`filter`: own: ")
    assert said in message


def test_a_plan_tries_another_filter_anew() -> None:
    plan = NoisySteps(Clip(1.0), NoisySgd(0.1, 1, 1.0), 1.0)
    assert replace(plan, lr=2.0).tried is plan.filter
    assert "no positive number" in refused(replace, plan, filter=Own(unit, bound=0.0))
