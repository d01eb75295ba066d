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

from dpltm.data import load
from dpltm.errors import ArtifactError
from dpltm.features.feature_map import FeatureMap, make_feature_map
from dpltm.stages.progress import Silent
from dpltm.tickets import feature_cache
from dpltm.tickets.feature_cache import FeatureCache, cache_path

FOUND = make_feature_map("scatter:2,3", (8, 8), (0.0, 16.0))


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """An empty cache home and a key of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("DPLTM_KEY", str(tmp_path / "key"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def digits():
    return load("digits", subset="0:600")


def files(home: Path) -> list[Path]:
    return sorted(path for path in home.rglob("*") if not path.is_dir())


class Watcher(Silent):
    """Notes what it is told, or does what it is told to at each step."""

    def __init__(self, step: Callable[[int], None] | None = None) -> None:
        self.done: list[int] = []
        self.titles: list[tuple[str, int]] = []
        self.step = step or self.done.append

    def progress(self, title: str, total: int):
        self.titles.append((title, total))
        return contextlib.nullcontext(self.step)


def refused(digits) -> str:
    with pytest.raises(ArtifactError) as caught:
        FeatureCache().features(digits, digits.train, FOUND)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_values_are_those_of_the_map_in_half_precision(home, digits):
    values = FeatureCache().features(digits, digits.train, FOUND)
    assert values.dtype == np.float16
    assert values.shape == (600, FOUND.features)
    np.testing.assert_allclose(values, FOUND(digits.train.x).numpy(), rtol=1e-3, atol=1e-6)
    path = cache_path(digits, digits.train, FOUND)
    assert files(home) == [path]
    assert np.array_equal(np.load(path), values)


def test_made_once_and_mapped_afterwards(home, digits, monkeypatch):
    rows: list[int] = []
    plain = FeatureMap.__call__
    monkeypatch.setattr(FeatureMap, "__call__", lambda self, x: (rows.append(len(x)), plain(self, x))[1])
    assert not cache_path(digits, digits.train, FOUND).exists()
    first = np.array(FeatureCache().features(digits, digits.train, FOUND))
    assert sum(rows) >= 600
    state = cache_path(digits, digits.train, FOUND).stat()
    rows.clear()
    again = FeatureCache().features(digits, digits.train, FOUND)
    assert sum(rows) < 20, "a few rows are tried, the others are not computed again"
    assert np.array_equal(again, first)
    assert cache_path(digits, digits.train, FOUND).stat().st_mtime_ns == state.st_mtime_ns
    assert isinstance(again, np.memmap)
    assert not again.flags.writeable
    assert len(files(home)) == 1


def test_progress_counts_records(home, digits):  # noqa: ARG001 - nothing is cached yet
    watcher = Watcher()
    FeatureCache().features(digits, digits.train, FOUND, progress=watcher)
    assert watcher.titles == [("features of the training records of digits", 600)]
    assert watcher.done[-1] == 600
    assert watcher.done == sorted(watcher.done)
    assert len(watcher.done) > 1
    FeatureCache().features(digits, digits.train, FOUND, progress=watcher)
    assert len(watcher.titles) == 1, "there is nothing to do"


@pytest.mark.usefixtures("home")
def test_readable_by_its_owner_alone(digits):
    mask = os.umask(0)
    try:
        FeatureCache().features(digits, digits.train, FOUND)
    finally:
        os.umask(mask)
    path = cache_path(digits, digits.train, FOUND)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


# Names


def test_names_neither_contain_nor_confirm_the_content(home, digits, monkeypatch, tmp_path):
    name = cache_path(digits, digits.train, FOUND).name
    assert len(name) == 44
    for secret in (digits.rows.digest, digits.test_rows.digest, digits.fingerprint(b"k"), FOUND.id):
        assert secret[:12] not in name
    assert name == cache_path(digits, digits.train, FOUND).name
    monkeypatch.setenv("DPLTM_KEY", str(tmp_path / "other"))
    assert cache_path(digits, digits.train, FOUND).name != name, "without the key, a guess of the records is confirmed"
    assert files(home) == []


def test_what_differs_has_a_cache_of_its_own(home, digits):
    whole = load("digits")
    theirs, hashed = load("digits", subset="600:1200"), load("digits", subset="0.0:0.4")
    maps = [FOUND, make_feature_map("scatter:2,4", (8, 8), (0.0, 16.0)), replace(FOUND, bounds=(0.0, 15.0))]
    paths = [
        cache_path(data, split, found)
        for data in (whole, digits, theirs, hashed)
        for split in (data.train,)
        for found in maps
    ]
    paths += [cache_path(digits, digits.test, found) for found in maps]
    assert len(set(paths)) == len(paths)
    assert cache_path(whole, whole.test, FOUND) == cache_path(digits, digits.test, FOUND)  # the same test records
    changed = replace(digits, rows=replace(digits.rows, y=digits.rows.y[::-1]))
    assert cache_path(changed, changed.train, FOUND) not in paths
    for data, split in ((digits, digits.train), (theirs, theirs.train), (digits, digits.test)):
        values = FeatureCache().features(data, split, FOUND)
        np.testing.assert_allclose(values, FOUND(split.x).numpy(), rtol=1e-3, atol=1e-6)
    assert len(files(home)) == 3


def test_equal_names_of_files_do_not_share(home, tmp_path, monkeypatch):
    """Two files of one name in two folders: what counts is what is in them."""
    found = []
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        x = np.random.default_rng(number).integers(0, 17, (40, 8, 8)).astype(np.uint8)
        np.savez(folder / "d.npz", x_train=x, y_train=np.arange(40) % 3)
        monkeypatch.chdir(folder)
        data = load("d.npz", bounds=(0, 16), classes=3)
        found.append(np.array(FeatureCache().features(data, data.train, FOUND)))
        np.testing.assert_allclose(found[-1], FOUND(x).numpy(), rtol=1e-3, atol=1e-6)
    assert len(files(home)) == 2


# Making


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, MemoryError])
def test_what_is_interrupted_leaves_nothing(home, digits, error):
    def stop(_: int) -> None:
        assert [path.suffix for path in files(home)] != [".npy"], "half of it stands under its name"
        raise error

    with pytest.raises(error):
        FeatureCache().features(digits, digits.train, FOUND, progress=Watcher(stop))
    assert files(home) == []
    assert not cache_path(digits, digits.train, FOUND).exists()
    assert len(FeatureCache().features(digits, digits.train, FOUND)) == 600


def test_a_full_disk(home, digits, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(feature_cache.os, "replace", full)
    path = cache_path(digits, digits.train, FOUND)
    assert refused(digits) == (
        f"{path.parent}: features cannot be kept there: No space left on device; make room, or point XDG_CACHE_HOME"
        " elsewhere"
    )
    assert files(home) == []


def test_a_place_that_is_no_folder(home, digits):
    home.write_text("a file")
    assert refused(digits) == (
        f"{home}/dpltm/features: features cannot be kept there: Not a directory; make room, or point XDG_CACHE_HOME"
        " elsewhere"
    )
    assert home.read_text() == "a file"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_place_that_cannot_be_written(home, digits):
    home.mkdir()
    home.chmod(0o500)
    assert "cannot be kept there: Permission denied; make room" in refused(digits)


# What lies there


def other_values(path: Path) -> None:
    values = np.load(path)
    np.save(path, values[::-1].copy())


def one_shape(path: Path) -> None:
    np.save(path, np.load(path)[:-1])


def wide(path: Path) -> None:
    np.save(path, np.load(path).astype(np.float32))


def swapped(path: Path) -> None:
    np.save(path, np.load(path).T.copy())


def zeros(path: Path) -> None:
    np.save(path, np.zeros_like(np.load(path)))


def truncated(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 2)


def header_alone(path: Path) -> None:
    os.truncate(path, 128)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def noise(path: Path) -> None:
    path.write_bytes(os.urandom(5000))


def pickled(path: Path) -> None:
    np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def archive(path: Path) -> None:
    with path.open("wb") as stream:
        np.savez(stream, values=np.zeros(3))


DAMAGE = [other_values, one_shape, wide, swapped, zeros, truncated, header_alone, empty, noise, pickled, folder]


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("damage", [*DAMAGE, archive], ids=lambda call: call.__name__)
def test_what_is_not_what_its_name_says(digits, damage):
    FeatureCache().features(digits, digits.train, FOUND)
    path = cache_path(digits, digits.train, FOUND)
    damage(path)
    assert refused(digits) == (
        f"{path}: does not hold what its name says (cut short, or written by another version); delete it"
    )


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("row", [0, 599])
def test_features_of_other_records(digits, row):
    """The first and the last record are tried, whatever else is."""
    FeatureCache().features(digits, digits.train, FOUND)
    path = cache_path(digits, digits.train, FOUND)
    values = np.load(path)
    values[row] = values[row - 1 if row else 1]
    np.save(path, values)
    assert refused(digits).startswith(f"{path}: does not hold what its name says")


def test_what_was_deleted_is_made_again(home, digits):
    first = np.array(FeatureCache().features(digits, digits.train, FOUND))
    cache_path(digits, digits.train, FOUND).unlink()
    assert np.array_equal(FeatureCache().features(digits, digits.train, FOUND), first)
    assert len(files(home)) == 1
