"""Randomness for privacy: where the bits come from, and what is made of them.

Draws that privacy rests on (who is sampled, the noise, the winner) come from a cryptographic generator; ``fast`` noise from
a statistical one, keyed by the system's. An interrupted training must not draw *other* noise for a step that it has paid
for: two noisy sums of one step would be two releases. So one key of 256 bits, which goes into its checkpoint
(``dpltm.privacy.checkpoint``), decides all its coins and noise ahead.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import math
import os
import random
import ssl
import sys
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import numpy as np

from dpltm.errors import ArtifactError, InputError

if TYPE_CHECKING:
    from torch import Tensor


class RandomSource(Protocol):
    """Anything that yields uniformly random bytes."""

    def random_bytes(self, count: int) -> bytes | bytearray | memoryview:
        """``count`` independent uniform bytes."""


class SecureSource:
    """OpenSSL's cryptographic generator, seeded by the operating system's; some ten times quicker than asking that.

    From ``SHORT`` bytes on they are AES-256 in counter mode under a fresh key of it: other threads can work meanwhile.
    """

    def random_bytes(self, count: int) -> bytes | bytearray:
        aes = _aes() if count >= SHORT else None
        return ssl.RAND_bytes(count) if aes is None else aes(ssl.RAND_bytes(KEY), count)


SHORT = 2**12


class OneProcess:
    """A source with a state: a forked process, a copy and a pickle get no bytes, which would be the same once more."""

    def __init__(self) -> None:
        self._process = os.getpid()

    def check_process(self) -> None:
        """Raise InputError in another process than the one it began in."""
        if os.getpid() != self._process:
            raise InputError("training: it began in another process, whose noise this one would repeat; begin anew")

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise InputError("noise: a source of random bits is never copied: both would give the same; make another")


class FastSource(OneProcess):
    """NumPy's SFC64: quick, statistically sound, but not cryptographic: perhaps predictable. Only tests fix the seed."""

    def __init__(self, seed: int | None = None) -> None:
        super().__init__()
        entropy = int.from_bytes(os.urandom(32), "little") if seed is None else seed
        self._generator = np.random.SFC64(entropy)

    @classmethod
    def of(cls, words: bytes) -> FastSource:
        source = cls()
        state: Any = source._generator.state  # what numpy says of its type lets nothing be put in
        state["state"]["state"] = np.frombuffer(words, dtype="<u8").astype(np.uint64)
        source._generator.state = state
        return source

    @property
    def state(self) -> str:
        """Everything that its further bytes depend on; those before can be computed from it as well."""
        words: Any = self._generator.state["state"]
        return f"sfc64:{words['state'].astype('<u8').tobytes().hex()}"

    def random_bytes(self, count: int) -> bytes:
        self.check_process()
        return self._generator.random_raw((count + 7) // 8).tobytes()[:count]


def drawn_so_far(like: Tensor | None = None) -> list[object]:
    """Return states that tell whether a public generator was drawn from: those of torch that values ``like`` may come from
    (None: of the processor), and the common ones of NumPy and of Python. What is drawn there goes by place."""
    import torch  # as in ``box_muller``

    on_device = [torch.cuda.get_rng_state(like.device)] if like is not None and like.is_cuda else []
    common: Any = np.random.get_state(legacy=False)
    words = [value.tobytes() if isinstance(value, np.ndarray) else value for value in common["state"].values()]
    return [*(state.numpy().tobytes() for state in (torch.get_rng_state(), *on_device)), words, random.getstate()]


MIN_EPSILON = 1e-6  # least of one noisy count: noise of a million records; the grid of uniform draws is far finer


def two_sided_geometric(source: RandomSource, epsilon: float) -> int:
    """One whole number k with probability proportional to e^(-epsilon |k|): epsilon-DP for a count that changes by one.

    The difference of two geometric draws (Ghosh, Roughgarden, Sundararajan 2009); chances below about 2^-52 are not met.
    """
    if not epsilon >= MIN_EPSILON:
        raise InputError(f"Expected epsilon={epsilon} >= {MIN_EPSILON:g}")
    first, second = (np.floor(np.log(uniform(source, 2)) / -epsilon)).tolist()
    return int(first) - int(second)


def below(source: RandomSource, count: int, limit: int) -> np.ndarray:
    """Draw whole numbers below ``limit`` (1 to 2^63), ``(count,)`` int64, all exactly as likely: words of the last,
    incomplete run of ``limit`` are drawn anew."""
    last = np.uint64(2**64 // limit * limit - 1)
    numbers = np.zeros(count, dtype=np.uint64)
    left = np.arange(count)
    while len(left):
        numbers[left] = np.frombuffer(source.random_bytes(8 * len(left)), dtype=np.uint64)
        left = left[numbers[left] > last]
    return (numbers % np.uint64(limit)).astype(np.int64)


def uniform(source: RandomSource, count: int) -> np.ndarray:
    """``count`` float64 values, uniform on the grid (j + 1/2) / 2^52 with 0 <= j < 2^52: all exact, never 0, never 1."""
    return uniform_of(source.random_bytes(8 * count))


def uniform_of(data: bytes | bytearray | memoryview, out: np.ndarray | None = None) -> np.ndarray:
    """The values of :func:`uniform` that these bytes are: j is the upper 52 bits of a word."""
    words = np.frombuffer(data, dtype=np.uint64)
    values = np.empty(len(words)) if out is None else out
    words = np.right_shift(words, np.uint64(12), out=values.view(np.uint64))
    words |= np.float64(1).view(np.uint64)  # 1 + j / 2^52, so far
    values -= 1 - 2.0**-53
    return values


def gaussian(source: RandomSource, count: int) -> np.ndarray:
    """``count`` independent standard normal float64 values, for what is public: releases take ``gaussian_mechanism``."""
    half = (count + 1) // 2
    return box_muller(np.stack([uniform(source, half), uniform(source, half)]), 1.0)[:count]


def box_muller(pairs: np.ndarray, scale: float, out: np.ndarray | None = None) -> np.ndarray:
    """scale sqrt(-2 ln u) cos(2 pi v), then sin (Box and Muller 1958), ``(2 half,)``, for ``pairs`` of uniform u and v.

    ``pairs``, ``(2, half)`` float64, are overwritten. With t = tan(pi v), cosine and sine are (1 - t^2) / (1 + t^2) and
    2 t / (1 + t^2).
    """
    radius, tangent = pairs
    _log_and_tan(radius, tangent)
    radius *= -2.0 * scale * scale
    np.sqrt(radius, out=radius)
    values = np.empty(pairs.shape) if out is None else out.reshape(pairs.shape)
    square, sine = values
    np.multiply(tangent, tangent, out=square)  # below 2^107: no v is within 2^-53 of a half
    np.add(square, 1.0, out=sine)
    radius /= sine
    np.subtract(1.0, square, out=square)
    square *= radius
    np.multiply(tangent, radius, out=sine)
    sine += sine
    return values.reshape(-1)


def _log_and_tan(first: np.ndarray, second: np.ndarray) -> None:
    """Put ln of ``first`` and tan of pi times ``second`` in their places, by the library that has them vectorised."""
    import torch  # not before it is wanted

    second *= math.pi
    if sys.platform == "linux" and torch.backends.cpu.get_cpu_capability() == "AVX512":
        np.log(first, out=first)  # in a quarter of the time of torch
        np.tan(second, out=second)
    else:
        torch.from_numpy(first).log_()
        torch.from_numpy(second).tan_()


KEY = 32
AES, SHAKE, SFC = "aes-256-ctr", "shake-256", "sfc64"  # the first two are of ``KeyedSource``
_AT_ONCE = 2**30  # bytes in one call of OpenSSL, which counts them with 31 bits

_VECTOR = (bytes(range(32)), bytes(0x11 * digit for digit in range(16)), "8ea2b7ca516745bfeafc49904b496089")
"""A key, a block, and its encryption by AES-256 (FIPS 197, appendix C.3)."""


def fresh_key() -> bytes:
    """A key that nobody has: 256 bits of the operating system's generator."""
    return os.urandom(KEY)


def source_of(state: str) -> ResumableSource:
    """The source of this state; ArtifactError if it is damaged, or its generator unknown or not on this machine."""
    generator, _, digits = state.partition(":")
    try:
        key = bytes.fromhex(digits)
    except ValueError:
        key = b""
    if len(key) != KEY or generator not in (AES, SHAKE, SFC):
        raise ArtifactError("the state of a random source is damaged")
    if generator == SFC:
        return FastSource.of(key)
    if generator == AES and _aes() is None:
        raise ArtifactError("its random numbers are AES-256 of OpenSSL, which is not at hand on this machine")
    return KeyedSource(key, generator)


class KeyedSource(OneProcess):
    """AES-256 in counter mode under a key that every call replaces (fast key erasure; Bernstein 2017).

    A call stretches the key to 32 bytes more than were asked for. The first 32 are the next key; the rest is returned. Where
    OpenSSL's AES cannot be reached, SHAKE-256 stretches it, at a tenth of the speed. The same key gives the same bytes to
    the same calls. Its state tells all bytes ahead, and none of those before.
    """

    def __init__(self, key: bytes | None = None, generator: str | None = None) -> None:
        super().__init__()
        self._key = fresh_key() if key is None else key
        self._generator = generator or (SHAKE if _aes() is None else AES)

    @property
    def state(self) -> str:
        return f"{self._generator}:{self._key.hex()}"

    def random_bytes(self, count: int) -> memoryview:
        self.check_process()
        aes = _aes() if self._generator == AES else None
        size = KEY + count
        stretched = memoryview(hashlib.shake_256(self._key).digest(size) if aes is None else aes(self._key, size))
        self._key = bytes(stretched[:KEY])
        return stretched[KEY:]


ResumableSource = FastSource | KeyedSource
"""Sources that can be written down and made again; whoever has the ``state`` of one knows its further bytes."""


@cache
def _aes() -> Callable[[bytes, int], bytearray] | None:
    """AES-256 in counter mode, of the OpenSSL that Python itself was built with; None where it is out of reach, or wrong."""
    pointer, text, number, typed = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.CFUNCTYPE
    try:
        import _ssl

        library = ctypes.CDLL(getattr(_ssl, "__file__", None))
        new, cipher = (typed(pointer)((name, library)) for name in ("EVP_CIPHER_CTX_new", "EVP_aes_256_ctr"))
        free = typed(None, pointer)(("EVP_CIPHER_CTX_free", library))
        begin = typed(number, pointer, pointer, pointer, text, text)(("EVP_EncryptInit_ex", library))
        update = typed(number, pointer, pointer, ctypes.POINTER(number), pointer, number)
        encrypt = update(("EVP_EncryptUpdate", library))
    except (ImportError, OSError, AttributeError):
        return None

    def stream(key: bytes, count: int, block: bytes = bytes(16)) -> bytearray:
        """``count`` bytes of key stream; the counter begins at ``block``: no key is used twice."""
        data, done, context = bytearray(count), number(), new()
        if not context:
            raise MemoryError
        try:
            if begin(context, cipher(), None, key, block) != 1:
                raise MemoryError
            place = ctypes.addressof((ctypes.c_char * count).from_buffer(data))
            for start in range(0, count, _AT_ONCE):  # zeros, in place
                part = place + start
                if encrypt(context, part, ctypes.byref(done), part, min(_AT_ONCE, count - start)) != 1:
                    raise MemoryError
        finally:
            free(context)  # which wipes the key
        return data

    key, block, expected = _VECTOR
    with contextlib.suppress(MemoryError):
        return stream if stream(key, 16, block).hex() == expected else None
    return None
