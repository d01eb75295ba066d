"""Feature maps in ticket sets and runs: what is saved comes back, and whatever was done to it is refused in one line."""

import contextlib
import json
import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dpltm.features.feature_map import FeatureMap
from dpltm.features.normalisation import ChannelStatistics
from dpltm.networks import ModelSpec, build
from dpltm.networks.masks import Mask, network_id
from dpltm.options.generate import GenerateOptions
from dpltm.privacy.entry import Lineage, to_json
from dpltm.progress import Silent
from dpltm.pruning.generation import without_data
from dpltm.records import Arrays, Split, load
from dpltm.tickets.feature_files import KEY, NAME, FeatureCache, _kept, cache_path, read_map, write_map
from dpltm.tickets.files import write_lineage
from dpltm.tickets.run import load_run, write_run
from dpltm.tickets.ticket_set import load_ticket_set
from hostile_values import MAPS
from maps import make_feature_map
from opened import arrays_of
from refusals import told
from set_entries import LINEAGES, store_set


def maps() -> dict[str, FeatureMap]:
    draw = torch.Generator().manual_seed(0)
    plain = make_feature_map("scatter:2,3", (8, 10), (0.0, 255.0))
    mean, deviation = torch.rand(2, plain.feature_shape[-1], generator=draw)
    statistics = replace(plain, lineage=LINEAGES["public"], statistics=ChannelStatistics(mean, deviation))
    return {
        "plain": plain,
        "colours": make_feature_map("scatter:1,2", (8, 10, 3), (-1.0, 1.0)),
        "statistics": statistics,
        "centred": statistics.centred_at(torch.rand(plain.features, generator=draw)),
    }


KINDS = maps()
WHERE = Path("x/tickets.json")
NO_MAP = f"{WHERE}: feature_map is not the description of a feature map"
NO_MATCH = f"{WHERE}: feature_map: the id does not match; it is damaged or was changed"


@pytest.fixture
def there(tmp_path, monkeypatch):
    """A folder ``x`` in the working folder."""
    monkeypatch.chdir(tmp_path)
    Path("x").mkdir()
    return Path("x")


def refused(body) -> str:
    return told(read_map, Path("x"), WHERE, body)


@pytest.mark.parametrize("kind", KINDS)
def test_round_trip(there, raw, kind):
    made = KINDS[kind]
    body = json.loads(json.dumps(write_map(there, made)))
    assert sorted(path.name for path in there.iterdir()) == ([NAME] if made.tensors else [])
    found = read_map(there, WHERE, body)
    for part in ("id", "text", "shape", "bounds", "lineage", "features"):
        assert getattr(found, part) == getattr(made, part)
    x = np.random.default_rng(0).random((3, *made.shape))
    assert torch.equal(found(x), made(x))
    if made.tensors:
        stored = raw.read(there / NAME)
        assert stored.keys() == made.tensors.keys()
        assert all(np.array_equal(stored[name], made.tensors[name].numpy()) for name in stored)


def saved_set(folder, made, features):
    config = GenerateOptions(rounds=1, prune=(0.3,), criterion="random").for_records(1000)
    said = {"name": "n", "criterion": "random", "provenance": "data-free", "config": {}}
    return store_set(folder, without_data(ModelSpec("mlp:6", features, 3), config), feature_map=made, **said)


def saved_run(folder, made, features):
    model, settings = build(ModelSpec("mlp:6", features, 3), 0), {"classes": 3, "bounds": [0.0, 1.0]}
    folder.mkdir()
    mask = Mask.dense(model)
    write_run(folder, {"model": "mlp:6", "features": features, **settings}, model, mask, [], made)
    write_lineage(folder, made.lineage, network_id(model, mask))


@pytest.mark.parametrize("kind", ["plain", "statistics", "centred"])
def test_sets_and_runs_have_it(there, raw, kind):
    made = KINDS[kind]
    saved = saved_set(there / "s", made, made.features)
    saved_run(there / "r", made, made.features)
    loaded = load_ticket_set(there / "s").feature_map
    assert loaded.id == saved.feature_map.id == made.id == load_run(there / "r").feature_map.id
    assert loaded.lineage == made.lineage
    shown = f"`{made.text}` features of records of shape {'x'.join(map(str, made.shape))}"
    assert shown in (there / "s/README.md").read_text()
    raw.edit(there / "r/config.json", signed=False, feature_map=...)  # as runs of before had it
    if made.tensors:
        unknown = "there, though config.json knows of no such features; remove it"
        assert told(load_run, there / "r") == f"x/r/{NAME}: {unknown}"
    else:
        assert load_run(there / "r").feature_map is None


def test_a_network_of_another_width_than_its_features(there):
    made = KINDS["plain"]
    told_of = f"feature_map: gives {made.features} features, the network takes {made.features - 1}"
    saved_set(there / "s", made, made.features - 1)
    assert told(load_ticket_set, there / "s") == f"x/s/tickets.json: {told_of}"
    saved_run(there / "r", made, made.features - 1)
    assert told(load_run, there / "r") == f"x/r/config.json: {told_of}"


@pytest.mark.parametrize("kind", ["statistics", "centred"])
def test_other_tensors(there, raw, kind):
    body = write_map(there, KINDS[kind])
    stored = raw.read(there / NAME)
    for name in stored:
        other = {key: value.copy() for key, value in stored.items()}
        for value, message in ((other[name].flat[-1] + 1e-3, NO_MATCH), (np.nan, NO_MAP), (-np.inf, NO_MAP)):
            other[name].flat[-1] = value
            raw.write(there / NAME, other)
            assert refused(body) == message
        raw.write(there / NAME, {**stored, name: stored[name][..., None]})
        assert refused(body).startswith(f"x/{NAME}: tensor '{name}': found ((")
    raw.write(there / NAME, {**stored, "more": np.zeros(1, dtype=np.float32)})
    assert refused(body) == f"x/{NAME}: tensor 'more': found ((1,), 'float32'), expected none"
    raw.write(there / NAME, stored)
    assert read_map(there, WHERE, body).id == KINDS[kind].id


GOOD = to_json(LINEAGES["public"])
HOSTILE = {**MAPS, "lineage": [*MAPS["lineage"], {**GOOD, "more": 1}, GOOD, to_json(Lineage())]}
HOSTILE["statistics"] = [*MAPS["statistics"], True, False]


@pytest.mark.parametrize("key", HOSTILE)
@pytest.mark.parametrize("kind", ["plain", "statistics"])
def test_hostile_values(there, kind, key):
    """Another map than the id says, or none at all; a refusal names the file."""
    body = write_map(there, KINDS[kind])
    gone = refused({name: value for name, value in body.items() if name != key})
    assert gone == f"{WHERE}: feature_map: unknown or missing field {key!r}"
    for value in HOSTILE[key]:
        if body[key] == value and type(body[key]) is type(value):
            continue
        message = refused({**body, key: value})
        assert message in (NO_MAP, NO_MATCH) or message.startswith((f"{WHERE}: feature_map: ", f"x/{NAME}: ")), value


@pytest.mark.parametrize("numbers", [[-1, 0], [0, 5], [0, 0], [2, 0]])
def test_splines_of_what_is_no_column(there, numbers):
    body = write_map(there, make_feature_map("splines:4", (5,), (0.0, 1.0)))
    assert refused({**body, "splines": {**body["splines"], "numbers": numbers}}) == NO_MAP


# --- Features on disk: made once and whole, private, and never taken for what they are not ---


FOUND = make_feature_map("scatter:2,3", (8, 8), (0.0, 16.0))


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def digits():
    return load("digits", subset="0:600")


def files(home: Path) -> list[Path]:
    return sorted(path for path in home.rglob("*") if not path.is_dir() and path.name != KEY)


def features(digits, **options):
    return arrays_of(FeatureCache().features(digits, digits.train, FOUND, **options)).x


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
    """In half precision, of which there are many; readable by its owner alone."""
    rows: list[int] = []
    plain, path = FeatureMap.__call__, cache_path(digits.train, FOUND)
    monkeypatch.setattr(FeatureMap, "__call__", lambda self, x: (rows.append(len(x)), plain(self, x))[1])
    watcher, mask = Watcher(), os.umask(0)
    try:
        first = np.array(features(digits, progress=watcher))
    finally:
        os.umask(mask)
    assert (first.dtype, first.shape) == (np.float16, (600, FOUND.features))
    np.testing.assert_allclose(first, FOUND(arrays_of(digits.train).x).numpy(), rtol=1e-3, atol=1e-6)
    assert files(home) == [path]
    assert np.array_equal(np.load(path), first)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert watcher.titles == [("features of 600 records", 600)]
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
    for secret in (digits.train.digest(b""), digits.content_digest().hex(), FOUND.id):
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
    paths += [cache_path(digits.test, found, dtype=dtype) for found in maps for dtype in ("<f2", "<f4")]
    assert len(set(paths)) == len(paths)
    assert cache_path(whole.test, FOUND) == cache_path(digits.test, FOUND)  # the same test records
    changed = replace(digits, train=Split(Arrays(arrays_of(digits.train).x, arrays_of(digits.train).y[::-1])))
    assert cache_path(changed.train, FOUND) not in paths
    for data, split in ((digits, digits.train), (theirs, theirs.train), (digits, digits.test)):
        values = arrays_of(FeatureCache().features(data, split, FOUND)).x
        np.testing.assert_allclose(values, FOUND(arrays_of(split).x).numpy(), rtol=1e-3, atol=1e-6)
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
    np.testing.assert_allclose(arrays_of(first).x, FOUND(arrays_of(digits.train).x).numpy(), rtol=1e-3, atol=1e-6)
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
            found = _kept(path, digits.train, FOUND, "<f2")
            assert found is None or np.array_equal(arrays_of(found).x, first)
