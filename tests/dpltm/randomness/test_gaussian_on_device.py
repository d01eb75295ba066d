"""The Gaussian mechanism on a GPU, and in torch on the processor: to the bit what the mechanism gives for the same bytes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpltm.randomness import gaussian_mechanism
from dpltm.randomness.gaussian_mechanism import AT_ONCE, SEED, gaussian_mechanism_on_device
from dpltm.randomness.noise import FastSource, KeyedSource, RandomSource

KEY = bytes(range(32))
WORDS = st.lists(
    st.sampled_from([0, 1, 2**20, 2**30, 2**51, 2**52 - 1]) | st.integers(0, 2**52 - 1), min_size=2, max_size=8
)
devices = pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")),
    ],
)


def agree(
    values: np.ndarray, std: float, device: str, make: type[FastSource] | type[KeyedSource], key: int | bytes
) -> None:
    """Both give the same, draw as many bytes, and leave the values alone."""
    here, there = make(key), make(key)
    expected = gaussian_mechanism.gaussian_mechanism(values, std, here)
    given = torch.from_numpy(values.copy()).to(device)
    found = gaussian_mechanism_on_device(given, std, there)
    assert found.device == given.device
    assert np.array_equal(found.cpu().numpy(), expected)
    assert not bool(torch.signbit(found[found == 0]).any())
    assert np.array_equal(given.cpu().numpy(), values)
    assert here.random_bytes(9) == there.random_bytes(9)


@devices
@pytest.mark.parametrize("count", [0, 1, 2, 5, AT_ONCE - 1, AT_ONCE, AT_ONCE + 1, 5 * AT_ONCE + 7])
def test_the_same_bits(device: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gaussian_mechanism, "TOGETHER", 2)
    values = np.random.default_rng(count).normal(size=count) * 3
    for std in (1e-3, 1.0, 12345.6):
        agree(values * std, std, device, KeyedSource, KEY)


@devices
@pytest.mark.parametrize("count", [3, AT_ONCE + 1])
def test_of_what_is_decided_exactly_as_well(device: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a doubt a hundred thousand times as wide, in every block and in both halves of pairs."""
    for module in (gaussian_mechanism,):
        monkeypatch.setattr(module, "OPEN", 2.0**-5 if count < 9 else 2.0**-13)
        monkeypatch.setattr(module, "AT_ONCE", 2**13 if count > 9 else 2)
    asked, exactly = [], gaussian_mechanism.exactly
    monkeypatch.setattr(gaussian_mechanism, "exactly", lambda *given: (asked.append(given[-1]), exactly(*given))[1])
    for seed in range(30 if count < 9 else 1):
        agree(np.random.default_rng(seed).normal(size=count), 0.7, device, FastSource, seed)
    assert set(asked) == {False, True}


@devices
@pytest.mark.parametrize("size", [2.0**17, 2.0**30, 2.0**45])
def test_values_are_split_where_float64_has_no_room_for_them_beside_noise(device: str, size: float) -> None:
    for sign in (1.0, -1.0):
        agree(sign * (size - 1e-4 * np.arange(400)), 1.0, device, KeyedSource, KEY)


class Prepared:
    """Hands out these bytes, whoever asks."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def random_bytes(self, count: int) -> bytes:
        assert count == len(self.data)
        return self.data


@devices
@given(
    first=WORDS,
    values=st.lists(st.floats(-1e280, 1e280) | st.floats(-10, 10), min_size=16, max_size=16),
    std=st.floats(1e-6, 1e6),
    seed=st.binary(min_size=SEED, max_size=SEED),
)
def test_at_the_ends(device: str, first: list[int], values: list[float], std: float, seed: bytes) -> None:
    """Of uniform numbers, and of the values: beyond 2^27 steps these are split."""
    words = np.array([*first, *reversed(first)], dtype=np.uint64) << np.uint64(12)
    source: RandomSource = Prepared(seed + words.tobytes())
    some = np.array(values[: 2 * len(first)])
    expected = gaussian_mechanism.gaussian_mechanism(some, std, source)
    found = gaussian_mechanism_on_device(torch.from_numpy(some).to(device), std, source)
    assert np.array_equal(found.cpu().numpy(), expected)


@devices
def test_without_noise_nothing_changes(device: str) -> None:
    values = torch.tensor([0.1, -2.0], dtype=torch.float64, device=device)
    found = gaussian_mechanism_on_device(values, 0.0, Prepared(b""))
    assert torch.equal(found, values)
    assert found.data_ptr() != values.data_ptr()
