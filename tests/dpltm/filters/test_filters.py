"""Filters by name: golden values by hand, the bounds of docs/privacy-model.md section 4.2, and what is no filter."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import sqrt, tanh
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpltm.filters import FILTERS, Automatic, Clip, DpsrCg, RadialTanh, Sigmoid, Tanh, make_filter
from dpltm.filters.trial import check_filter_bound
from dpltm.privacy.mechanisms import NoisySgd
from dpltm.training.plan import NoisySteps
from refusals import refused


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_radial_tanh_golden() -> None:
    """A gradient of norm x comes out with norm C tanh(x / k)."""
    norm = column(1e-6, 0.25, 0.5, 1.0, 1e9)
    lengths = (RadialTanh(2.0, 0.5).factor(norm) * norm).tolist()
    assert lengths == pytest.approx([2 * math.tanh(x / 0.5) for x in (1e-6, 0.25, 0.5, 1.0, 1e9)], rel=1e-12)
    assert RadialTanh(2.0, 0.5).factor(column(0.0)).item() == 4.0  # C / k, the slope at zero


def test_automatic_golden() -> None:
    norm = column(0.0, 0.01, 3.0)
    assert Automatic(2.0).factor(norm).tolist() == pytest.approx([200.0, 100.0, 2 / 3.01], rel=1e-12)
    assert (Automatic(2.0, 0.0).factor(column(0.5, 3.0)) * column(0.5, 3.0)).tolist() == pytest.approx([2.0, 2.0])


def test_sigmoid_golden() -> None:
    """c / (1 + e^(-g / k)): half of c at zero, so that the sum tells how many records there were."""
    values = column(-1e9, -0.5, 0.0, 0.5, 1e9)
    halfway = 3 / (1 + math.exp(-0.5 / 0.4))
    assert Sigmoid(3.0, 0.4).map(values).tolist() == pytest.approx([0.0, 3 - halfway, 1.5, halfway, 3.0], abs=1e-12)
    assert Sigmoid(3.0, 0.4).certified_bound(100) == pytest.approx(30.0, rel=1e-5)
    assert Sigmoid(3.0, 0.4).certified_bound(100) >= 30.0


@pytest.mark.parametrize("value", [0.0, 9e-7, 1.1e6, math.nan, math.inf])
@pytest.mark.parametrize(
    ("name", "parameter"),
    [
        *((name, "clip_norm") for name in ("clip", "per-layer", "radial-tanh", "auto", "normalize", "dpsr-cg")),
        *((name, "tanh_scale") for name in ("tanh", "sigmoid")),
        *((name, "tanh_range") for name in ("tanh", "sigmoid", "radial-tanh")),
    ],
)
def test_bad_parameters(name: str, parameter: str, value: float) -> None:
    said = refused(make_filter, name, **{parameter: value})
    assert said == f"`{parameter}`: {value} is not a number between 1e-06 and 1e+06"


def test_what_papers_claim() -> None:
    assert Tanh(3.0, 1.0, None).nominal_bound == make_filter("sigmoid").nominal_bound == 1.0
    assert Clip(1.0).nominal_bound is Tanh(3.0, 1.0, None, Clip(1.0)).nominal_bound is None


def test_dpsr_cg_golden() -> None:
    """By hand, as its code has it: C / 8 of what is short, and norm 8 of what is long, whatever C; it claims C."""
    norm = column(0.0, 4.0, 8.0, 8.0 * (1 + 1e-9), 16.0, 1e300)
    lengths = (DpsrCg(2.0).factor(norm) * norm).tolist()
    assert lengths == pytest.approx([0.0, 1.0, 2.0, 8.0, 8.0, 8.0], rel=1e-12)
    assert (DpsrCg(2.0).certified_bound(100), DpsrCg(2.0).nominal_bound) == (8.0, 2.0)
    assert (DpsrCg(20.0).certified_bound(100), str(DpsrCg(20.0))) == (20.0, "dpsr-cg(C=20)")


@given(st.floats(0, 1e300), st.floats(1e-6, 1e6))
def test_the_norm_becomes_the_smaller_of_itself_and_c(norm, clip_norm):
    factor = Clip(clip_norm).factor(torch.tensor([norm], dtype=torch.float64)).item()
    assert 0 <= factor <= 1
    assert norm * factor <= clip_norm * (1 + 1e-15)
    assert math.isclose(norm * factor, min(norm, clip_norm), rel_tol=1e-15)


def test_every_name_is_known():
    assert {name: str(make_filter(name)) for name in FILTERS} == {
        "clip": "clip(C=1)",
        "per-layer": "per-layer(C=1)",
        "tanh": "clip(C=1) then tanh(c=1, k=1)",
        "tanh-clip": "tanh(c=1, k=1) then clip(C=1)",
        "radial-tanh": "radial-tanh(C=1, k=1)",
        "auto": "auto(C=1, gamma=0.01)",
        "normalize": "normalize(C=1)",
        "sigmoid": "sigmoid(c=1, k=1)",
        "dpsr-cg": "dpsr-cg(C=1)",
    }


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("clip", {"tanh_scale": 2.0}, "`tanh_scale`: only for `filter` tanh, tanh-clip or sigmoid, not clip"),
        ("clip", {"no_pre_clip": True}, "`no_pre_clip`: only for `filter` tanh, not clip"),
        ("radial-tanh", {"tanh_scale": 1.0},
         "`tanh_scale`: only for `filter` tanh, tanh-clip or sigmoid, not radial-tanh; did you mean `tanh_range`?"),
        ("tanh", {"tahn_range": 1.0}, "`tahn_range`: tanh has no such parameter; did you mean `tanh_range`?"),
        ("clip", {"momentum": 1.0}, "`momentum`: clip has no such parameter; it takes `clip_norm`"),
    ],
)  # fmt: skip
def test_parameters_of_other_filters(name, given, message):
    assert refused(make_filter, name, **given) == message


(DOCUMENT,) = (Path(__file__).parents[3] / "docs").glob("privacy-model*")
TEXT = DOCUMENT.read_text(encoding="utf-8")
SECTION = TEXT.partition("### 4.2")[2].partition("### 4.3")[0]
TABLE = dict(re.findall(r"^\| (`[^|]+`) \| .* \| ([^|]+) \| [^|]+ \|$", SECTION, re.MULTILINE))
"""Bound by filter, as the document has them."""

BOUNDS: dict[str, Callable[[SimpleNamespace], float]] = {
    "C": lambda it: it.C,
    "sqrt(sum C_l^2) = C": lambda it: it.C,
    "c sqrt(n)": lambda it: it.c * sqrt(it.n),
    "c sqrt(n) tanh(R/(k sqrt(n))), at most c R/k": lambda it: it.c * sqrt(it.n) * tanh(it.R / (it.k * sqrt(it.n))),
    "min(C, c sqrt(n))": lambda it: min(it.C, it.c * sqrt(it.n)),
    "max(C, 8)": lambda it: max(it.C, 8.0),
}
"""The formulas of the table, read by hand."""


def named(row: str) -> tuple[str, dict[str, bool]]:
    name, *flags = re.findall(r"`([^`]+)`", row)
    return name, {flag.removeprefix("--").replace("-", "_"): True for flag in flags}


def test_every_filter_has_a_row_and_every_row_a_filter():
    assert {named(row)[0] for row in TABLE} == set(FILTERS)
    assert set(TABLE.values()) == set(BOUNDS)
    flags = {(entry.name, p.name) for entry in FILTERS.values() for p in entry.parameters if p.default is False}
    assert flags == {(name, flag) for name, given_ in map(named, TABLE) for flag in given_}


@pytest.mark.parametrize("row", TABLE)
@given(
    norm=st.floats(-3, 3).map(lambda x: 10**x),
    scale=st.floats(-3, 3).map(lambda x: 10**x),
    width=st.floats(-3, 3).map(lambda x: 10**x),
    live=st.integers(1, 10**8),
)
def test_a_filter_certifies_what_its_row_says(row, norm, scale, width, live):
    """Rounded outwards by 1e-6 at most, in element-wise filters (section 4.4); the norm is C, or R where it is before."""
    name, flags = named(row)
    drawn = {"clip_norm": norm, "tanh_scale": scale, "tanh_range": width}
    taken = {p.name for p in FILTERS[name].parameters}
    filter = make_filter(name, **{key: value for key, value in drawn.items() if key in taken}, **flags)
    found = filter.certified_bound(live)
    expected = BOUNDS[TABLE[row]](SimpleNamespace(C=norm, R=norm, c=scale, k=width, n=live))
    assert expected * (1 - 1e-12) <= found <= expected * (1 + 1.1e-6)
    if "at most c R/k" in TABLE[row]:
        assert expected <= scale * norm / width * (1 + 1e-12)


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


@pytest.mark.parametrize("filter", [make_filter(name) for name in FILTERS] + [
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
        (
            Own(lambda x: x / x.norm(dim=-1, keepdim=True).clamp_min(1e-30), kind="element-wise"),
            "depends on others; make it",
        ),
        (
            Own(lambda x: 0.01 * torch.tanh(x), 0.4, "element-wise"),
            "a gradient of 1000000 coordinates comes out with norm 10",
        ),
        (
            Own(lambda x: x.exp() / (x.exp() + 1), 1e9, "element-wise", before=Clip(100.0)),
            "one that is not, in float32",
        ),
        *((Own(unit, bound=bound), "no positive number") for bound in (0.0, -1.0, math.nan, math.inf, None)),
    ],
)
def test_slips_are_refused(filter: Any, said: str) -> None:
    message = refused(NoisySteps, filter, NoisySgd(0.1, 1, 1.0), 1.0)
    assert message.startswith("`filter`: own: ")
    assert said in message


def test_a_plan_tries_another_filter_anew() -> None:
    plan = NoisySteps(Clip(1.0), NoisySgd(0.1, 1, 1.0), 1.0)
    assert "no positive number" in refused(replace, plan, filter=Own(unit, bound=0.0))
