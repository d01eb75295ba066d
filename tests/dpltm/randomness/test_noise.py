"""Random numbers: the grid of the uniforms, where the bytes come from, and sources whose keys forget and go on."""

import copy
import hashlib
import math
import os
import pickle
import ssl
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp
from scipy import stats

from dpltm.errors import ArtifactError, InputError
from dpltm.randomness import noise
from dpltm.randomness.noise import AES, SHAKE, FastSource, KeyedSource, SecureSource, gaussian, source_of, uniform
from prepared_bytes import Prepared
from refusals import refused


@given(st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=20))
def test_uniform_is_inside_and_rises_with_its_bits(words):
    values = uniform(Prepared(np.array(words, dtype=np.uint64).tobytes()), len(words))
    assert values.dtype == np.float64
    assert ((values > 0) & (values <= 0.5)).all()
    order = np.argsort(words, kind="stable")
    assert (np.diff(values[order]) >= 0).all()
    assert abs(values - np.array(words, dtype=np.float64) / 2**64).max() <= 2**-53


@given(st.binary(min_size=8, max_size=8))
def test_uniform_is_symmetric(data):
    """On an even grid with half steps, the bits' complement is 1 - u exactly; both are multiples of 2^-53."""
    flipped = bytes(255 - byte for byte in data)
    value, mirrored = uniform(Prepared(data + flipped), 2)
    assert value != 0.5
    assert mirrored == 1 - value
    assert 1 - mirrored == value


def test_uniform_uses_every_bit_of_the_grid():
    """The low bits are random too: the last 20 bits of the grid index are uniform where float64 can hold them."""
    values = uniform(FastSource(2), 50_000)
    index = (values[values < 0.25] * 2.0**53).astype(np.int64) & (2**20 - 1)
    assert len(index) > 10_000
    assert stats.kstest((index + 0.5) / 2**20, "uniform").pvalue > 1e-3


def test_gaussian_is_box_and_muller():
    """From the same bytes, one value at a time with the math module."""
    values, u = gaussian(FastSource(7), 9), uniform(FastSource(7), 10)
    for index, value in enumerate(values):
        radius, angle = math.sqrt(-2 * math.log(u[index % 5])), 2 * math.pi * u[5 + index % 5]
        assert value == pytest.approx(radius * (math.cos(angle) if index < 5 else math.sin(angle)), abs=1e-12)


@pytest.mark.parametrize("capability", ["AVX2", "AVX512"])
def test_box_and_muller_err_by_far_less_than_the_grid_allows(capability, monkeypatch):
    """By either library, beside 200 bits, all over the circle and where the tangent has its pole and its zeros."""
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    near = [place + side * step for place in (0.25, 0.5, 0.75) for side in (-1, 1) for step in (2.0**-53, 2.0**-30)]
    v = np.array([2.0**-53, 1 - 2.0**-53, *near, *np.random.default_rng(1).random(386)])
    u = np.random.default_rng(2).uniform(2.0**-22, 1 - 2.0**-22, len(v))
    found = noise.box_muller(np.stack([u, v]), 1.0)
    with mp.workprec(200):
        radius = [mp.sqrt(-2 * mp.log(mp.mpf(each))) for each in u.tolist()]
        turns = [(mp.cos(2 * mp.pi * mp.mpf(each)), mp.sin(2 * mp.pi * mp.mpf(each))) for each in v.tolist()]
        exact = [r * turn[which] for which in (0, 1) for r, turn in zip(radius, turns, strict=True)]
        worst = max(abs((mp.mpf(x) - y) / r) for x, y, r in zip(found.tolist(), exact, radius * 2, strict=True))
    assert worst < 2.0**-48


# Sources.


def test_secure_source_is_the_cryptographic_one(monkeypatch):
    monkeypatch.setattr(ssl, "RAND_bytes", lambda count: b"\x07" * count)
    assert SecureSource().random_bytes(3) == b"\x07\x07\x07"
    long = SecureSource().random_bytes(noise.SHORT)  # a key stream of as many bytes as a key has, and so on
    assert long[32:] == KeyedSource(b"\x07" * 32).random_bytes(noise.SHORT - 32)
    monkeypatch.setattr(noise, "_aes", lambda: None)
    assert SecureSource().random_bytes(noise.SHORT) == b"\x07" * noise.SHORT


def test_fast_source_repeats_only_with_a_seed():
    assert FastSource(8).random_bytes(64) == FastSource(8).random_bytes(64)
    assert FastSource(8).random_bytes(64) != FastSource(9).random_bytes(64)
    assert FastSource().random_bytes(64) != FastSource().random_bytes(64)


def test_fast_source_is_keyed_by_256_bits_of_the_system(monkeypatch):
    """Unlike a seed of 31 bits, which an observer can search through."""
    asked, real = [], os.urandom
    monkeypatch.setattr(os, "urandom", lambda count: asked.append(count) or real(count))
    FastSource()
    assert sum(asked) == 32


KEY = bytes(range(32))


def test_aes_is_that_of_the_standard():
    """NIST SP 800-38A, F.5.5: AES-256 in counter mode; its key stream is cipher text xor plain text."""
    key = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    counter = bytes.fromhex("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff")
    plain = bytes.fromhex("6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51")
    cipher = bytes.fromhex("601ec313775789a5b7a7f504bbf3d228f443e3ca4d62b59aca84e990cacaf5c5")
    aes = noise._aes()
    assert aes is not None, "OpenSSL's functions are out of reach: noise would be slow"
    stream = aes(key, 32, counter)
    assert bytes(a ^ b for a, b in zip(stream, plain, strict=True)) == cipher


@pytest.mark.parametrize(("most", "count"), [(7, 100), (64, 64), (1, 5)])
def test_long_streams_are_the_same_in_parts(monkeypatch, most, count):
    """OpenSSL takes so many bytes at once; parts of a block go on within it."""
    whole = bytes(KeyedSource(KEY, AES).random_bytes(count))
    monkeypatch.setattr(noise, "_AT_ONCE", most)
    assert bytes(KeyedSource(KEY, AES).random_bytes(count)) == whole


def test_without_aes_it_is_shake(monkeypatch):
    monkeypatch.setattr(noise, "_aes", lambda: None)
    source, key = KeyedSource(KEY), KEY
    for count in (5, 1000):
        expected = hashlib.shake_256(key).digest(32 + count)
        assert bytes(source.random_bytes(count)) == expected[32:]
        key = expected[:32]
    assert "AES-256 of OpenSSL, which is not at hand" in refused(source_of, f"{AES}:{KEY.hex()}", kind=ArtifactError)


@pytest.mark.parametrize(
    "source", [KeyedSource(KEY, AES), KeyedSource(KEY, SHAKE), FastSource(3)], ids=["aes", "shake", "fast"]
)
def test_a_state_gives_the_same_bytes_again(source):
    source.random_bytes(100)
    state = source.state
    again = source_of(state)
    assert again.state == state
    for count in (8, 1, 1000):
        assert bytes(again.random_bytes(count)) == bytes(source.random_bytes(count))
    assert again.state == source.state != state


def test_keys_are_never_used_twice():
    source, seen = KeyedSource(), set()
    for _ in range(50):
        seen |= {source.state, bytes(source.random_bytes(32)).hex()}
    assert len(seen) == 100
    assert KeyedSource().state != KeyedSource().state


@pytest.mark.parametrize("source", [KeyedSource(KEY), FastSource(3), FastSource()], ids=["keyed", "seeded", "fast"])
def test_a_forked_process_gets_no_bytes(source):
    """They would be the noise of its parent, once more."""
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        try:
            source.random_bytes(1)
        except InputError as error:
            os.write(write, str(error).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    assert os.read(read, 1000).decode().startswith("training: it began in another process")
    os.close(read)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
@pytest.mark.parametrize("source", [KeyedSource(KEY), FastSource(3)], ids=["keyed", "fast"])
def test_a_source_is_never_copied(source, copied):
    """Also not into a process that happens to have the same number, as the first of every container has."""
    assert refused(copied, source).startswith("noise: a source of random bits is never copied")


DRAW = """
from dpltm.randomness.noise import KeyedSource
from dpltm.randomness.noise import FastSource, SecureSource
for kind in (KeyedSource, FastSource, SecureSource):
    print(bytes(kind().random_bytes(16_000)).hex())
"""


def in_a_fork(kind: type) -> bytes:
    """What a source draws that a forked process makes."""
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.write(write, kind().random_bytes(16_000))
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with os.fdopen(read, "rb") as drawn:
        return drawn.read()


def test_nothing_repeats_across_processes_and_resumes():
    """16 bytes at a time, of this process, a training that is resumed and goes on, forked processes and started ones."""
    source = KeyedSource()
    drawn = [bytes(source.random_bytes(16_000)), bytes(source_of(source.state).random_bytes(16_000))]
    drawn += [in_a_fork(kind) for kind in (KeyedSource, FastSource, SecureSource) * 2]
    for _ in range(2):
        said = subprocess.run([sys.executable, "-c", DRAW], capture_output=True, text=True, check=True).stdout
        drawn += [bytes.fromhex(line) for line in said.split()]
    assert [len(data) for data in drawn] == [16_000] * 14
    assert len({data[start : start + 16] for data in drawn for start in range(0, 16_000, 16)}) == 14_000


@pytest.mark.parametrize("state", ["", AES, f"{AES}:", f"{AES}:00", f"{AES}:{'zz' * 32}", f"md5:{KEY.hex()}"])
def test_damaged_states_are_refused(state):
    assert refused(source_of, state, kind=ArtifactError) == "the state of a random source is damaged"
