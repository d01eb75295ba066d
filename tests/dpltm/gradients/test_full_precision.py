"""Gradients are taken in full float32, on whatever device, whatever the program around them asked for."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dpltm.filters import Clip
from dpltm.gradients import RecordGradients
from dpltm.networks.evaluation import count_correct
from dpltm.networks.full_precision import deterministic, full_precision
from dpltm.networks.masks import Mask
from dpltm.training.descent import cross_entropy
from dpltm.verbs.private_loop import PrivateLoop

CUBLAS = torch.backends.cuda.matmul
REDUCTIONS = (
    "allow_fp16_reduced_precision_reduction",
    "allow_bf16_reduced_precision_reduction",
    "allow_fp16_accumulation",
)
OPERATORS = [
    getattr(getattr(torch.backends, backend), name)
    for backend, names in (("cuda", ("matmul",)), ("cudnn", ("conv", "rnn")), ("mkldnn", ("matmul", "conv", "rnn")))
    for name in names
    if hasattr(getattr(torch.backends, backend), name) and hasattr(torch.backends.cudnn, "conv")
]


def settings() -> dict[str, Any]:
    """Every switch that can make a product less exact."""
    found: dict[str, Any] = {f"operator {at}": operator.fp32_precision for at, operator in enumerate(OPERATORS)}
    found |= {name: getattr(CUBLAS, name) for name in REDUCTIONS if hasattr(CUBLAS, name)}
    found |= {"in any order": not torch.backends.cudnn.deterministic, "benchmark": torch.backends.cudnn.benchmark}
    for name, read in (
        ("matmul", torch.get_float32_matmul_precision),
        ("cuda", lambda: CUBLAS.allow_tf32),
        ("cudnn", lambda: torch.backends.cudnn.allow_tf32),
    ):
        try:
            found[name] = read()
        except RuntimeError:
            found[name] = "cannot be read"
    return found


def exact(found: dict[str, Any]) -> bool:
    good = {"ieee", "none", "highest", False, "cannot be read"}
    return all(value in good for value in found.values())


@pytest.fixture(params=["as torch comes", "the older switches", "the newer switches"])
def loose(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """A program that asked for speed; what it asked for is as it was when the test is over."""
    matmul, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    reductions = {name: getattr(CUBLAS, name) for name in REDUCTIONS if hasattr(CUBLAS, name)}
    before = [operator.fp32_precision for operator in OPERATORS]
    if request.param == "the older switches":
        torch.set_float32_matmul_precision("medium")
        torch.backends.cudnn.benchmark = True
        for name in reductions:
            setattr(CUBLAS, name, True)
    elif request.param == "the newer switches":
        if not OPERATORS:
            pytest.skip(f"torch {torch.__version__} has the older switches only")
        for operator, value in zip(OPERATORS, ("tf32", "tf32", "ieee", "bf16", "bf16", "tf32"), strict=True):
            operator.fp32_precision = value
    yield settings()
    torch.set_float32_matmul_precision(matmul)
    torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark = cudnn, False
    for operator, value in zip(OPERATORS, before, strict=True):
        operator.fp32_precision = value
    for name, value in reductions.items():
        setattr(CUBLAS, name, value)


SEEN: list[dict[str, Any]] = []


class Watching(nn.Sequential):
    """A network that notes the switches whenever it is called; outside of itself, since a module with state is refused."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
        SEEN.clear()

    def forward(self, x: Tensor) -> Tensor:
        SEEN.append(settings())
        return super().forward(x)


def test_every_switch_is_off_inside_and_as_it_was_afterwards(loose):
    assert not exact(loose), "torch has TF32 on for convolutions, unless told otherwise"
    with full_precision():
        assert exact(settings())
        with full_precision():
            assert exact(settings())
        assert exact(settings())
    assert settings() == loose
    with pytest.raises(KeyError), full_precision():
        raise KeyError
    assert settings() == loose


def test_so_are_those_of_a_loop_of_ones_own_and_private_right_answers(loose):
    model = Watching()
    x, y = torch.randn(40, 5), torch.arange(40) % 3
    options = {"batch_size": 20, "steps": 2, "delta": 1e-3, "noise_multiplier": 1.0}
    loop = PrivateLoop(model, cross_entropy, x, y, **options)
    assert settings() == loose
    for step in loop:
        step.backward()
        assert settings() == loose, "between steps the program has what it asked for"
    count_correct(model, x, y)
    assert all(exact(found) for found in SEEN)
    assert settings() == loose


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here, and TF32 is one's own")
def test_on_cuda_a_convolution_has_the_bits_of_float32():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 36, 10)).cuda()
    x, y = torch.randn(8, 16, 8, 8, device="cuda"), torch.arange(8, device="cuda")
    single = RecordGradients(model, Mask.dense(model), cross_entropy).filtered_sum(x, y, Clip(1.0)).values
    wide = model.double()
    double = RecordGradients(wide, Mask.dense(wide), cross_entropy).filtered_sum(x.double(), y, Clip(1.0)).values
    assert float((single - double).norm() / double.norm()) < 5e-5  # TF32 keeps 10 bits of each factor, 5e-4 of it


def test_blocks_of_two_threads_leave_the_switches_as_they_were(loose):
    """The first to enter is the first to leave: until the other does, all stays off."""
    first, other = full_precision(), full_precision()
    first.__enter__()
    other.__enter__()
    first.__exit__(None, None, None)
    assert exact(settings())
    other.__exit__(None, None, None)
    assert settings() == loose


def test_sums_stay_in_order_until_the_last_of_two_threads_leaves():
    """A program that only wanted warnings has them back; within, what has no such form fails."""

    def setting():
        return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()

    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        first, other = (deterministic(torch.device("cuda"), True) for _ in range(2))
        first.__enter__()
        other.__enter__()
        first.__exit__(None, None, None)
        assert setting() == (True, False)
        other.__exit__(None, None, None)
        assert setting() == (True, True)
    finally:
        torch.use_deterministic_algorithms(False)
