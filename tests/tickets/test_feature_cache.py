"""Features on disk: made once and whole, private, and never taken for what they are not."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dpltm.features.feature_map import FeatureMap, make_feature_map
from dpltm.progress import Silent
from dpltm.records import load
from dpltm.tickets.feature_files import KEY, FeatureCache, _opened, cache_path

FOUND = make_feature_map("scatter:2,3", (8, 8), (0.0, 16.0))


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """An empty cache home."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def digits():
    return load("digits", subset="0:600")


def files(home: Path) -> list[Path]:
    return sorted(path for path in home.rglob("*") if not path.is_dir() and path.name != KEY)


def features(digits, **options):
    return FeatureCache().features(digits, digits.train, FOUND, **options)


class Watcher(Silent):
    """Notes what it is told, or does what it is told to at each step."""

    def __init__(self, step: Callable[[int], None] | None = None) -> None:
        self.done: list[int] = []
        self.said: list[str] = []
        self.titles: list[tuple[str, int]] = []
        self.step = step or self.done.append

    def say(self, text: str) -> None:
        self.said.append(text)

    def progress(self, title: str, total: int):
        self.titles.append((title, total))
        return contextlib.nullcontext(self.step)


def test_made_once_and_mapped_afterwards(home, digits, monkeypatch):
    """In half precision, readable by its owner alone."""
    rows: list[int] = []
    plain, path = FeatureMap.__call__, cache_path(digits.train, FOUND)
    monkeypatch.setattr(FeatureMap, "__call__", lambda self, x: (rows.append(len(x)), plain(self, x))[1])
    watcher, mask = Watcher(), os.umask(0)
    try:
        first = np.array(features(digits, progress=watcher))
    finally:
        os.umask(mask)
    assert (first.dtype, first.shape) == (np.float16, (600, FOUND.features))
    np.testing.assert_allclose(first, FOUND(digits.train.x).numpy(), rtol=1e-3, atol=1e-6)
    assert files(home) == [path]
    assert np.array_equal(np.load(path), first)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert watcher.titles == [("features of the training records of digits", 600)]
    assert watcher.done == sorted(watcher.done)
    assert watcher.done[-1] == 600 > watcher.done[0]
    state = path.stat()
    rows.clear()
    again = features(digits, progress=watcher)
    assert sum(rows) < 20, "a few rows are tried, the others are not computed again"
    assert len(watcher.titles) == 1, "there is nothing to do"
    assert np.array_equal(again, first)
    assert path.stat().st_mtime_ns == state.st_mtime_ns
    assert isinstance(again, np.memmap)
    assert not again.flags.writeable


def test_names_neither_contain_nor_confirm_the_content(home, digits):
    name = cache_path(digits.train, FOUND).name
    assert len(name) == 44
    for secret in (digits.train.digest, digits.content_digest().hex(), FOUND.id):
        assert secret[:12] not in name
    assert name == cache_path(digits.train, FOUND).name
    key = home / "dpltm/features" / KEY
    assert (stat.S_IMODE(key.stat().st_mode), len(key.read_bytes())) == (0o600, 32)
    key.write_bytes(bytes(32))
    assert cache_path(digits.train, FOUND).name != name, "without the key, a guess of the records is confirmed"
    assert files(home) == []


def test_what_differs_has_a_cache_of_its_own(home, digits):
    whole, theirs, hashed = (load("digits", subset=subset) for subset in (None, "600:1200", "0.0:0.4"))
    maps = [FOUND, make_feature_map("scatter:2,4", (8, 8), (0.0, 16.0)), replace(FOUND, bounds=(0.0, 15.0))]
    paths = [cache_path(data.train, found) for data in (whole, digits, theirs, hashed) for found in maps]
    paths += [cache_path(digits.test, found) for found in maps]
    assert len(set(paths)) == len(paths)
    assert cache_path(whole.test, FOUND) == cache_path(digits.test, FOUND)  # the same test records
    changed = replace(digits, train=replace(digits.train, y=digits.train.y[::-1]))
    assert cache_path(changed.train, FOUND) not in paths
    for data, split in ((digits, digits.train), (theirs, theirs.train), (digits, digits.test)):
        values = FeatureCache().features(data, split, FOUND)
        np.testing.assert_allclose(values, FOUND(split.x).numpy(), rtol=1e-3, atol=1e-6)
    assert len(files(home)) == 3


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_what_is_interrupted_leaves_nothing(home, digits, error):
    def stop(_: int) -> None:
        assert [path.suffix for path in files(home)] != [".npy"], "half of it stands under its name"
        raise error

    with pytest.raises(error):
        features(digits, progress=Watcher(stop))
    assert files(home) == []
    assert len(features(digits)) == 600


def test_without_a_place_features_are_kept_in_memory(home, digits):
    home.write_text("a file")
    watcher, cache = Watcher(), FeatureCache()
    first = cache.features(digits, digits.train, FOUND, progress=watcher)
    np.testing.assert_allclose(first, FOUND(digits.train.x).numpy(), rtol=1e-3, atol=1e-6)
    assert watcher.said == [
        f"{home / 'dpltm/features'}: features cannot be kept there (Not a directory), and are kept in memory for this"
        " command; make room, or point XDG_CACHE_HOME elsewhere"
    ]
    assert cache.features(digits, digits.train, FOUND) is first


def saved(change: Callable[[np.ndarray], object]) -> Callable[[Path], None]:
    """Another array in place of the one that is there."""
    return lambda path: np.save(path, np.array(change(np.load(path))), allow_pickle=True)


def without(row: int) -> Callable[[Path], None]:
    return saved(lambda values: np.concatenate([values[:row], values[5:6], values[row + 1 :]]))


DAMAGE = {
    "another first record": without(0),
    "another last record": without(599),
    "a record less": saved(lambda values: values[:-1]),
    "wide": saved(lambda values: values.astype(np.float32)),
    "pickled": saved(lambda _: [{"a": 1}]),
    "truncated": lambda path: os.truncate(path, path.stat().st_size - 2),
    "header alone": lambda path: os.truncate(path, 128),
    "noise": lambda path: path.write_bytes(os.urandom(5000)),
}


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("damage", DAMAGE)
def test_what_is_not_what_its_name_says(digits, damage):
    """The first and the last record are tried, whatever else is. It is said, and features are computed anew."""
    first = np.array(features(digits))
    path = cache_path(digits.train, FOUND)
    DAMAGE[damage](path)
    watcher = Watcher()
    assert np.array_equal(features(digits, progress=watcher), first)
    assert watcher.said == [f"{path}: is damaged, or of another version; features are computed anew"]
    assert len(watcher.titles) == 1
    again = Watcher()
    assert np.array_equal(features(digits, progress=again), first)
    assert (again.said, again.titles) == ([], [])


@pytest.mark.usefixtures("home")
def test_any_byte_of_the_header_may_change(digits):
    """NumPy reads a header as Python's literals, and has many ways to fail."""
    first = np.array(features(digits))
    path = cache_path(digits.train, FOUND)
    body = path.read_bytes()
    for place in range(0, 128, 3):
        for byte in (0, 40, 255):
            path.write_bytes(body[:place] + bytes([byte]) + body[place + 1 :])
            found = _opened(path, digits.train, FOUND, 1, "none")
            assert found is None or np.array_equal(found, first)
