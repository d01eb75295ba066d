"""Randomness that can go on: a cryptographic generator of which everything ahead is decided by one key of 256 bits.

A training that was interrupted must not draw *other* noise for a step that it has paid for once: two noisy sums of one step
would be two releases. So its coins and its noise come from here, and the key goes into its checkpoint
(``dpltm.training.checkpoint`` says what that means).
"""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections.abc import Callable
from functools import cache
from typing import Protocol

from dpltm.errors import ArtifactError
from dpltm.randomness.noise import FastSource, OneProcess, RandomSource

KEY = 32
"""Bytes of a key."""

AES, SHAKE, SFC = "aes-256-ctr", "shake-256", "sfc64"
"""Generators by name: the first two of ``KeyedSource``, the last of ``FastSource``."""

_AT_ONCE = 2**30
"""Bytes in one call of OpenSSL, which counts them with 31 bits."""

_VECTOR = (bytes(range(32)), bytes(0x11 * digit for digit in range(16)), "8ea2b7ca516745bfeafc49904b496089")
"""FIPS 197, appendix C.3: a key, a block, and what AES-256 makes of it."""


class ResumableSource(RandomSource, Protocol):
    """A source that can be written down and made again."""

    @property
    def state(self) -> str:
        """All that its further bytes depend on. Whoever has it knows them."""
        ...


def fresh_key() -> bytes:
    """A key that nobody has: 256 bits of the operating system's generator."""
    return os.urandom(KEY)


def source_of(state: str) -> ResumableSource:
    """The source of which ``state`` is the state.

    Raises:
        ArtifactError: there is no such generator, or not on this machine; or the state is damaged.
    """
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

    A call stretches the key to 32 bytes more than were asked for. The first 32 are the next key; the rest is returned, and
    the old key is gone. Where OpenSSL's AES cannot be reached, SHAKE-256 stretches it, at a tenth of the speed.

    Args:
        key: ``KEY`` bytes; None for a fresh one. Tests pass one.
        generator: ``AES`` or ``SHAKE``; None for the first that is at hand.

    Guarantees:
        The same key gives the same bytes to the same calls. Its state tells all bytes ahead, and none of those before.
    """

    def __init__(self, key: bytes | None = None, generator: str | None = None) -> None:
        super().__init__()
        self._key = fresh_key() if key is None else key
        self._generator = generator or (SHAKE if _aes() is None else AES)

    @property
    def state(self) -> str:
        """See :attr:`ResumableSource.state`."""
        return f"{self._generator}:{self._key.hex()}"

    def random_bytes(self, count: int) -> memoryview:
        """``count`` bytes that nobody without the key tells from uniform ones."""
        self.check_process()
        aes = _aes() if self._generator == AES else None
        stretched = memoryview(_shake(self._key, KEY + count) if aes is None else aes(self._key, KEY + count))
        self._key = bytes(stretched[:KEY])
        return stretched[KEY:]


def _shake(key: bytes, count: int) -> bytes:
    return hashlib.shake_256(key).digest(count)


@cache
def _aes() -> Callable[[bytes, int], bytearray] | None:
    """The AES of the OpenSSL that Python itself was built with; None where it is out of reach, or wrong."""
    try:
        import _ssl

        aes = _Aes(ctypes.CDLL(getattr(_ssl, "__file__", None)))
        key, block, expected = _VECTOR
        right = aes.stream(key, 16, block).hex() == expected
    except (ImportError, OSError, AttributeError, MemoryError):
        return None
    return aes.stream if right else None


class _Aes:
    """AES-256 in counter mode, by functions of OpenSSL 1.1 and later."""

    def __init__(self, library: ctypes.CDLL) -> None:
        pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
        self._new, self._free, self._cipher = (
            library.EVP_CIPHER_CTX_new,
            library.EVP_CIPHER_CTX_free,
            library.EVP_aes_256_ctr,
        )
        self._begin, self._encrypt = library.EVP_EncryptInit_ex, library.EVP_EncryptUpdate
        self._new.argtypes, self._new.restype = [], pointer
        self._free.argtypes, self._free.restype = [pointer], None
        self._cipher.argtypes, self._cipher.restype = [], pointer
        self._begin.argtypes, self._begin.restype = [pointer, pointer, pointer, text, text], number
        self._encrypt.argtypes = [pointer, pointer, ctypes.POINTER(number), pointer, number]
        self._encrypt.restype = number

    def stream(self, key: bytes, count: int, block: bytes = bytes(16)) -> bytearray:
        """``count`` bytes of key stream; the counter begins at ``block``, whatever key it is: none is used twice."""
        stream, done, context = bytearray(count), ctypes.c_int(), self._new()
        if not context:
            raise MemoryError
        try:
            if self._begin(context, self._cipher(), None, key, block) != 1:
                raise MemoryError
            place = ctypes.addressof((ctypes.c_char * count).from_buffer(stream))
            for start in range(0, count, _AT_ONCE):  # zeros, in place
                part = place + start
                if self._encrypt(context, part, ctypes.byref(done), part, min(_AT_ONCE, count - start)) != 1:
                    raise MemoryError
        finally:
            self._free(context)  # which wipes the key
        return stream
