"""The Gaussian mechanism on a GPU, and in torch on the processor: to the bit what the mechanism gives for the same bytes.

Long sums take their bytes from ChaCha20: those of RFC 8439 and of OpenSSL. What is compiled gives the same numbers.
"""

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpltm.gradients.linear_layer import compiler_at_hand
from dpltm.randomness import gaussian_mechanism, gaussian_on_device
from dpltm.randomness.gaussian_mechanism import AT_ONCE, SEED
from dpltm.randomness.gaussian_on_device import (
    PLAIN,
    Functions,
    chacha20,
    compiled,
    gaussian_mechanism_on_device,
    two_double_rounds,
)
from dpltm.randomness.noise import FastSource, KeyedSource, RandomSource
from prepared_bytes import Prepared

KEY = bytes(range(32))
WORDS = st.lists(
    st.sampled_from([0, 1, 2**20, 2**30, 2**51, 2**52 - 1]) | st.integers(0, 2**52 - 1), min_size=2, max_size=8
)
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")),
]
devices = pytest.mark.parametrize("device", DEVICES)


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
    monkeypatch.setattr(gaussian_on_device, "STRETCHED", 2**30)
    values = np.random.default_rng(count).normal(size=count) * 3
    for std in (1e-3, 1.0, 12345.6):
        agree(values * std, std, device, KeyedSource, KEY)


@devices
@pytest.mark.parametrize("count", [3, AT_ONCE + 1])
def test_of_what_is_decided_exactly_as_well(device: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a doubt a hundred thousand times as wide, in every block and in both halves of pairs."""
    asked, exactly = [], gaussian_mechanism.exactly
    for module in (gaussian_mechanism, gaussian_on_device):
        monkeypatch.setattr(module, "OPEN", 2.0**-5 if count < 9 else 2.0**-13)
        monkeypatch.setattr(module, "AT_ONCE", 2**13 if count > 9 else 2)
    monkeypatch.setattr(gaussian_on_device, "exactly", lambda *given: (asked.append(given[-1]), exactly(*given))[1])
    for seed in range(30 if count < 9 else 1):
        agree(np.random.default_rng(seed).normal(size=count), 0.7, device, FastSource, seed)
    assert set(asked) == {False, True}


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
    source: RandomSource = Prepared(seed + words.tobytes(), repeats=True)
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


# Long sums: ChaCha20 of a key, where the sum is.

STATE = """61707865 3320646e 79622d32 6b206574 03020100 07060504 0b0a0908 0f0e0d0c 13121110 17161514 1b1a1918 1f1e1d1c
    00000001 09000000 4a000000 00000000"""
AFTER = """837778ab e238d763 a67ae21e 5950bb2f c4f2d0c7 fc62bb2f 8fa018fc 3f5ec7b7 335271c2 f29489f3 eabda8fc 82e46ebd
    d19c12b4 b04e16de 9e83d0cb 4e3c50a2"""
STREAM = """10f1e7e4 d13b5915 500fdd1f a32071c4 c7d1f4c7 33c06803 0422aa9a c3d46c4e d2826446 079faa09 14c2d705 d98b02a2
    b5129cd1 de164eb9 cbd083e8 a2503c4e"""


def column(words: str, device: str) -> torch.Tensor:
    return torch.tensor([int(word, 16) for word in words.split()]).to(torch.int32)[:, None].to(device)


@devices
def test_the_permutation_is_that_of_the_standard(device: str) -> None:
    """RFC 8439, 2.3.2, with its nonce and counter: the state before and after the rounds, and the block."""
    permuted = functools.reduce(lambda words, _: two_double_rounds(words), range(5), column(STATE, device))
    assert torch.equal(permuted, column(AFTER, device))
    stream = PLAIN.joined(permuted, column(STATE, device)).cpu().numpy().astype("<i8").tobytes()
    assert stream == bytes.fromhex(STREAM)


def stream_of(words: torch.Tensor) -> bytes:
    return words.view(8, -1).T.contiguous().cpu().numpy().astype("<i8").tobytes()


def openssl(key: bytes, count: int) -> bytes:
    """The key stream of OpenSSL's ChaCha20, with nonce and first counter zero."""
    import _ssl

    library = ctypes.CDLL(getattr(_ssl, "__file__", None))
    library.EVP_CIPHER_CTX_new.restype = library.EVP_chacha20.restype = ctypes.c_void_p
    context, done, stream = library.EVP_CIPHER_CTX_new(), ctypes.c_int(), ctypes.create_string_buffer(count)
    cipher = ctypes.c_void_p(library.EVP_chacha20())
    assert library.EVP_EncryptInit_ex(ctypes.c_void_p(context), cipher, None, key, bytes(16)) == 1
    assert library.EVP_EncryptUpdate(ctypes.c_void_p(context), stream, ctypes.byref(done), bytes(count), count) == 1
    library.EVP_CIPHER_CTX_free(ctypes.c_void_p(context))
    return stream.raw


KEYS = st.binary(min_size=32, max_size=32) | st.sampled_from(
    [b"\xff" * 32, b"\0\0\0\x80" * 8, b"\xff\xff\xff\x7f" * 8]
)


@devices
@given(KEYS, st.integers(1, 2000))
def test_the_stream_is_that_of_openssl(device: str, key: bytes, count: int) -> None:
    words = chacha20(key, count, torch.device(device))
    assert count <= len(words) < count + 8
    assert stream_of(words) == openssl(key, 8 * len(words))


@devices
def test_the_key_is_overwritten(device: str) -> None:
    seen: list[torch.Tensor] = []

    def noting(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        return lambda *words: (seen.extend(words), function(*words))[1]

    stream = chacha20(KEY, 80, torch.device(device), Functions(noting(PLAIN.rounds), noting(PLAIN.joined)))
    assert bool(stream.all())
    assert not bool(torch.stack([seen[0], *seen[-2:]]).any())


def expected_of(values: np.ndarray, std: float, data: bytes) -> np.ndarray:
    """What the processor makes of the stream under the key, whose words come row by row."""
    half = (len(values) + 1) // 2
    words = np.frombuffer(openssl(data[SEED:], 64 * -(-2 * half // 8)), dtype="<u8").reshape(-1, 8).T.reshape(-1)
    return gaussian_mechanism.gaussian_mechanism(values, std, Prepared(data[:SEED] + words[: 2 * half].tobytes()))


@devices
@pytest.mark.parametrize("doubt", [gaussian_mechanism.OPEN, 2.0**-6])
@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 1001])
def test_long_sums_take_the_stream(device: str, count: int, doubt: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key and 32 further bytes are all that the source is asked for."""
    monkeypatch.setattr(gaussian_on_device, "STRETCHED", 1)
    for module in (gaussian_mechanism, gaussian_on_device):
        monkeypatch.setattr(module, "OPEN", doubt)
    data, values = bytes(range(1, 65)), np.random.default_rng(count).normal(size=count) * 1e3
    found = gaussian_mechanism_on_device(torch.from_numpy(values).to(device), 0.7, Prepared(data))
    assert np.array_equal(found.cpu().numpy(), expected_of(values, 0.7, data))


@devices
def test_every_piece_has_a_key_of_its_own(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gaussian_on_device, "STRETCHED", 1)
    monkeypatch.setattr(gaussian_on_device, "PIECE", 100)
    values, source = np.linspace(-1e-3, 1e-3, 250), KeyedSource(KEY)
    parts = [expected_of(part, 1.0, bytes(source.random_bytes(64))) for part in np.split(values, [100, 200])]
    there = KeyedSource(KEY)
    found = gaussian_mechanism_on_device(torch.from_numpy(values).to(device), 1.0, there).cpu().numpy()
    assert np.array_equal(found, np.concatenate(parts))
    assert source.state == there.state
    assert len(set(found.round(1).tolist())) > 30


@devices
def test_how_many_it_takes_to_have_their_bits_made_there(device: str) -> None:
    asked: list[int] = []

    class Noting(FastSource):
        def random_bytes(self, count: int) -> bytes:
            asked.append(count)
            return super().random_bytes(count)

    for count in (2**20 - 1, 2**20):
        gaussian_mechanism_on_device(torch.zeros(count, dtype=torch.float64, device=device), 1.0, Noting(1))
    assert asked == [8 * 2**16 + SEED] * 16 + [SEED + 32]


@pytest.fixture(scope="module", params=DEVICES)
def fused(request: pytest.FixtureRequest) -> tuple[torch.device, Functions]:
    if not compiler_at_hand():
        pytest.skip("no C++ compiler to compile with")
    device = torch.device(request.param)
    return device, compiled(device)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@given(KEYS, st.integers(1, 3000))
def test_the_compiled_stream_is_that_of_openssl(fused: tuple[torch.device, Functions], key: bytes, count: int) -> None:
    words = chacha20(key, count, *fused)
    assert stream_of(words) == openssl(key, 8 * len(words))


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("size", [1e-300, 1.0, 2.0**20, 2.0**45, 1e280])
def test_compiled_sums_are_those_of_the_processor(
    fused: tuple[torch.device, Functions], size: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Odd and even, in doubt and not; zeros without a sign."""
    monkeypatch.setattr(gaussian_on_device, "STRETCHED", 1)
    device, functions = fused
    monkeypatch.setattr(gaussian_on_device, "PLAIN", functions)
    monkeypatch.setattr(gaussian_on_device, "_functions", lambda _: functions)
    for count in (1, 2, 1000, 5001):
        data, values = bytes(range(1, 65)), np.random.default_rng(count).normal(size=count) * size
        for std in (1e-3, 0.7, 1e9):
            given = torch.from_numpy(values).to(device)
            found = gaussian_mechanism_on_device(given, std, Prepared(data)).cpu().numpy()
            assert np.array_equal(found, expected_of(values, std, data))
            assert not np.signbit(found[found == 0]).any()


@pytest.mark.parametrize("fails", [False, True], ids=["is wrong", "fails"])
@pytest.mark.parametrize("broken", [each.__name__ for each in PLAIN])
def test_what_is_not_compiled_or_wrong_is_not_used(broken: str, fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """And fast mathematics is off, whatever the caller has set."""
    asked: list[dict[str, object]] = []

    def compile(function: Callable[..., Any], options: dict[str, object], **_: object) -> Callable[..., Any]:
        def wrong(*given: torch.Tensor) -> Any:
            if fails:
                raise RuntimeError("no compiler")
            found = function(*given)
            return (found[0] + 2.0, found[1]) if isinstance(found, tuple) else found + 1

        asked.append(options)
        return wrong if function.__name__ == broken else function

    monkeypatch.setattr(torch, "compile", compile)
    functions = gaussian_on_device._functions.__wrapped__
    assert functions(torch.device("cpu")) is PLAIN
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    assert functions(torch.device("cpu")) is not PLAIN
    for options in asked:
        assert options["use_fast_math"] is options["cpp.enable_unsafe_math_opt_flag"] is False
        assert options["cpp.enable_floating_point_contract_flag"] == "off"
    assert len(asked) == 3
