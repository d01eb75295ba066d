"""The fingerprint key, and references to records: random outside, and what they stand for inside."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import os
import pickle
import re
import secrets
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from dpltm.errors import InputError
from dpltm.privacy.event_json import ref_from_json, ref_from_text, ref_to_json, ref_to_text, to_json
from dpltm.privacy.events import UNKNOWN, DatasetRef, GuaranteeEvent, ProvenanceEvent
from dpltm.privacy.lineage import check_not_public
from dpltm.privacy.mechanisms import Guarantee
from dpltm.privacy.old_ledger import merge
from dpltm.privacy.parts import total_epsilon
from dpltm.records import key_id, load, registry
from dpltm.records.registry import PUBLIC_KEY, RecordRegistry
from dpltm.tickets import identity
from dpltm.tickets.identity import UserRegistry, key_path, load_key, read_event, read_ref
from dpltm.tickets.ledger_file import open_ledger
from refs import reference, resolve, resolved, rows_of
from refusals import told

X = np.random.default_rng(5).integers(0, 120, (100, 6)).astype(np.uint8)
Y = np.arange(100) % 3
MORE = {"x": np.concatenate([X, 255 - X[:1]]), "y": np.append(Y, 0)}
"""The same people and one more."""


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A configuration folder that does not exist yet."""
    monkeypatch.delenv("DPLTM_KEY", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config"


@pytest.fixture
def new_process(monkeypatch):
    """Forgets all that is known in this process alone."""

    def call():
        monkeypatch.setattr(identity, "_MET", {})
        monkeypatch.setattr(identity, "_PASSING", secrets.token_bytes(32))
        identity._read_ids.cache_clear()

    return call


@pytest.mark.parametrize(
    ("settings", "place"),
    [
        ({"HOME": "."}, ".config/dpltm/key"),
        ({"HOME": ".", "XDG_CONFIG_HOME": "config"}, "config/dpltm/key"),
        ({"HOME": ".", "XDG_CONFIG_HOME": "config", "DPLTM_KEY": "my/key"}, "my/key"),
    ],
)
def test_made_once_for_the_owner_only(tmp_path, monkeypatch, settings, place):
    for name in ("DPLTM_KEY", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in settings.items():
        monkeypatch.setenv(name, str(tmp_path / value))
    first, path = load_key(), tmp_path / place
    assert key_path() == path
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text() == first.hex() + "\n"
    assert (len(first), load_key()) == (32, first)
    assert [entry for entry in tmp_path.rglob("*") if entry.is_file()] == [path]
    path.write_text("AB" * 32)
    assert load_key() == bytes([0xAB]) * 32


@pytest.mark.parametrize("text", ["", "ab" * 31, "ab" * 33, "xy" * 32, "ü" * 64, "ab" * 32 + "\nmore"])
def test_malformed(tmp_path, monkeypatch, text):
    path = tmp_path / "key"
    path.write_text(text, encoding="utf-8")
    monkeypatch.setenv("DPLTM_KEY", str(path))
    why = "not a fingerprint key (64 hexadecimal digits); restore it or point DPLTM_KEY at one"
    assert told(load_key) == f"{path}: {why}"
    assert path.read_text(encoding="utf-8") == text


def at_once(*calls):
    """What each of them returns, if all start at the same moment."""
    barrier = threading.Barrier(len(calls))
    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(lambda call: (barrier.wait(), call())[1], calls))


def test_two_first_uses_at_once(tmp_path, monkeypatch):
    keys = set()
    for attempt in range(100):
        monkeypatch.setenv("DPLTM_KEY", str(tmp_path / str(attempt)))
        first, second = at_once(load_key, load_key)
        assert first == second is not None
        keys.add(first)
    assert len(keys) == 100, "different each time"


@pytest.fixture
def write(tmp_path, home):  # noqa: ARG001 (its folder must be set by then)
    """Writes an .npz file of a hundred people, and loads it."""

    def call(name="t", x=X, y=Y, **options):
        np.savez(tmp_path / f"{name}.npz", x_train=x, y_train=y)
        return load(str(tmp_path / f"{name}.npz"), bounds=(0, 255), classes=3, **options)

    return call


@pytest.fixture
def people(write):
    """Datasets of 300 distinct people by their places, some of whom may be in both."""
    x = np.random.default_rng(9).integers(0, 255, (400, 6)).astype(np.uint8)
    return lambda name, start, stop: write(name, x[start:stop], np.arange(start, stop) % 3)


def files_of(home):
    return {
        path.relative_to(home / "dpltm").as_posix(): path for path in (home / "dpltm").rglob("*") if path.is_file()
    }


def again(ref):
    """The reference as another artifact holds it."""
    return read_ref(json.loads(json.dumps(ref_to_json(ref))))


def pure(ref, epsilon):
    return GuaranteeEvent(ref, Guarantee(epsilon), "a count", time="t")


def test_ids_are_random_and_say_nothing(write):
    """The same records have another id each time, so no two releases can be compared by it."""
    data, key = write(), load_key()
    refs = [reference(data) for _ in range(2)]
    assert refs[0].id != refs[1].id
    for ref in refs:
        assert re.fullmatch("[0-9a-f]{32}", ref.id)
        assert ref.key_id == key_id(key)
        written = json.dumps(ref_to_json(ref))
        for secret in (key.hex(), data.fingerprint(key), data.rows.digest, ref.content.split(":")[1]):
            assert secret[:12] not in written
            assert ref.id[:12] not in secret
    assert refs[0].content == refs[1].content
    assert refs[0].surely_overlaps(refs[1])


def test_parts_of_one_dataset(write):
    first, second = reference(write(subset="0.5")), reference(write(subset="0.5:1.0"))
    assert (first.cut, first.start, first.stop) == ("values", 0, 5 * 10**8)
    assert (second.start, second.stop) == (5 * 10**8, 10**9)
    assert first.content == second.content
    assert not first.may_overlap(second)
    assert first.may_overlap(reference(write()))
    by_places, rest, by_values = (reference(load("digits", subset=subset)) for subset in ("0:719", "719:", "0.5"))
    assert not by_places.may_overlap(rest)
    assert by_places.may_overlap(by_values)
    assert not by_places.may_overlap(first)


def test_what_was_written_is_recognised(write, new_process):
    """By what is known in the configuration folder, in whatever process, and in no other way."""
    ref = reference(write())
    new_process()
    assert ref_from_json(ref_to_json(ref)).content == UNKNOWN
    assert (again(ref), again(ref).content) == (ref, ref.content)
    assert read_event(to_json(pure(ref, 0.5))).dataset.content == ref.content
    text = ref_to_text(ref)
    assert resolve(ref_from_text("records_of", text)).content == ref.content
    assert np.array_equal(rows_of(again(ref)), np.unique(write().rows.keyed_hashes(load_key())))
    assert again(ref).surely_overlaps(reference(write()))


def test_equal_content_is_the_same(write):
    """In another order, of another type, under another name."""
    known = reference(write())
    of_floats = {"x": X.astype(np.float32), "y": Y.astype(np.float64)}
    for same in ({"x": X[::-1], "y": Y[::-1]}, {"x": X.astype(np.int64)}, of_floats, {"name": "renamed"}):
        other = reference(write(**{"name": "again", **same}))
        assert other.content == known.content
        assert other.id != known.id
        assert other.surely_overlaps(known)


@pytest.mark.parametrize(
    "other",
    [
        MORE,
        {"x": X[1:], "y": Y[1:]},
        {"x": X[:1].repeat(3, axis=0), "y": [0, 1, 2]},  # one row alone
        {"y": (Y + 1) % 3},
        {"x": X[:, ::-1]},
    ],
)
@pytest.mark.parametrize("first", ["known", "other"])
def test_common_rows_overlap(write, new_process, other, first):
    """Whichever was met first, in whatever process."""
    made = {"known": lambda: reference(write()), "other": lambda: reference(write("other", **other))}
    met = made[first]()
    new_process()
    ref = made["other" if first == "known" else "known"]()
    assert ref.content != met.content
    assert ref.surely_overlaps(met)
    for one, two in ((ref, met), (again(ref), again(met))):
        assert one.may_overlap(two)
        assert two.may_overlap(one)


def test_other_people_do_not_overlap(write):
    refs = [reference(write()), reference(write("other", 255 - X, Y)), reference(load("digits"))]
    for one, two in itertools.combinations(refs, 2):
        assert not one.may_overlap(two)
        assert not again(one).may_overlap(again(two))
        assert not two.surely_overlaps(one)


def test_references_under_two_keys_cannot_be_told_apart(write, tmp_path, monkeypatch):
    """Finding 7: whatever another folder knows of an id, this one does not."""
    here, other = reference(write(subset="0.5")), reference(load("digits"))
    monkeypatch.setenv("DPLTM_KEY", str(tmp_path / "key"))
    there = reference(write(subset="0.5:1.0"))
    assert here.key_id != there.key_id
    for ref in (here, other):
        assert again(ref).content == UNKNOWN
        assert rows_of(again(ref)) is None
        for one, two in ((again(ref), there), (there, again(ref)), (ref, there), (there, ref)):
            assert one.may_overlap(two)
            assert not one.surely_overlaps(two)


@pytest.mark.parametrize("end", ["ids", "rows", "shares"])
def test_what_cannot_be_compared_any_more_is_unknown(write, home, end):
    """Without them, what else has its rows could not be told."""
    ref, digits = reference(write()), reference(load("digits"))
    folder, content = home / "dpltm/key.records", ref.content.split(":")[1]
    if end == "ids":
        (folder / "ids").write_text("")
    else:
        (folder / f"{content}.{end}").unlink()
    assert again(ref).may_overlap(digits)
    assert not again(ref).surely_overlaps(digits)
    assert again(ref).surely_overlaps(again(ref))  # the same id
    if end != "ids":
        more = reference(write("more", **MORE))
        reference(write())  # met again, it is known again, and compared with who came in the meantime
        assert again(ref).surely_overlaps(again(more))


def test_why_rows_are_shared_is_known(write):
    """Coincidence costs as much, and refuses nothing: who has a common row by chance is not the same person."""
    short = np.random.default_rng(3).integers(0, 3, (400, 6))
    one, other = (reference(write("a", rows, np.arange(200) % 3)) for rows in (short[:200], short[200:]))
    for first, second in ((one, other), (again(other), again(one))):
        assert first.may_overlap(second)
        assert not first.surely_overlaps(second)
    half = reference(write("c", short[:100], np.arange(100) % 3))
    assert half.surely_overlaps(one)


def test_everything_is_for_the_owner_only(write, home):
    mask = os.umask(0)
    try:
        refs = reference(write()), reference(load("digits"))
        reference(load("digits", subset="0.5"), public=True)
    finally:
        os.umask(mask)
    found, contents = files_of(home), [ref.content.split(":")[1] for ref in refs]
    kept = {f"key.records/{content}.{end}" for content in contents for end in ("rows", "shares")}
    assert found.keys() == {"key", "key.records/ids"} | kept
    assert {path.stat().st_mode & 0o777 for path in found.values()} == {0o600}
    for folder in (home / "dpltm", home / "dpltm/key.records"):
        assert folder.stat().st_mode & 0o777 == 0o700


def test_no_row_is_in_the_clear(write, home):
    """Hashes under the key alone: whoever has the files but not the key can check no guess."""
    data = write()
    reference(data)
    (rows,) = [path for name, path in files_of(home).items() if name.endswith(".rows")]
    stored = np.frombuffer(rows.read_bytes(), dtype="<u8")
    assert np.array_equal(stored, data.rows.keyed_hashes(load_key()))
    for hashes in (data.rows.keyed_hashes(bytes(32)), data.rows.public_hashes()):
        assert not set(stored.tolist()) & set(hashes.tolist())
    everything = b"".join(path.read_bytes() for path in files_of(home).values())
    assert data.rows.digest[:16].encode() not in everything


@pytest.mark.parametrize("known", [True, False])
def test_a_dry_run_writes_nothing(write, home, known):
    """And still tells records apart, in this process."""
    if known:
        reference(write())
    before = {name: path.read_bytes() for name, path in files_of(home).items()}
    first, same, more = (reference(data, make_key=False) for data in (write(), write(), write("more", **MORE)))
    assert first.id != same.id
    assert first.surely_overlaps(same)
    assert first.surely_overlaps(more)
    assert not first.may_overlap(reference(load("digits"), make_key=False))
    assert again(first).content == first.content
    assert {name: path.read_bytes() for name, path in files_of(home).items()} == before
    assert home.exists() == known


@pytest.mark.parametrize("known", [True, False])
def test_what_a_dry_run_met_is_written_by_the_next_run(write, home, new_process, known):
    """What this process knows in passing must not keep a real run from writing it down: commands look before they enter."""
    if known:
        load_key()
    planned = reference(write(), make_key=False)
    public, ref = reference(write(), public=True), reference(write())
    assert public.content == ref.content
    assert public.surely_overlaps(ref)
    assert planned.surely_overlaps(ref) == known  # under a key that was made up meanwhile nothing can be told
    content = ref.content.split(":")[1]
    assert {f"key.records/{content}.rows", f"key.records/{content}.shares"} <= set(files_of(home))
    new_process()
    assert again(ref).content == again(public).content == ref.content, "by its public name too"


def test_two_who_come_at_once_see_each_other(people, tmp_path, monkeypatch):
    """Each has a row of the other's: at least one of the two notes it, and both are known to overlap by that."""
    sets = [people("one", 0, 200), people("two", 199, 300)]
    for attempt in range(8):
        monkeypatch.setenv("DPLTM_KEY", str(tmp_path / f"key-{attempt}"))
        load_key()
        one, two = (again(ref) for ref in at_once(*(lambda data=data: reference(data) for data in sets)))
        assert one.content != two.content
        assert one.surely_overlaps(two)
        assert two.surely_overlaps(one)


@pytest.mark.parametrize("make", [RecordRegistry, lambda: UserRegistry(remember=False)])
def test_of_two_that_threads_meet_at_once_one_sees_the_other(people, monkeypatch, make):
    def slow(*hashes):  # whoever is held up here lets the other in, if it can
        with contextlib.suppress(threading.BrokenBarrierError):
            meeting.wait(0.2)
        return kinship(*hashes)

    users, meeting, kinship = make(), threading.Barrier(2), registry.kinship
    first, *sets = people("first", 300, 400), people("one", 0, 200), people("two", 199, 300)
    users.reference(first)
    monkeypatch.setattr(registry, "kinship", slow)
    one, two = at_once(*(lambda data=data: users.reference(data) for data in sets))
    assert one.surely_overlaps(two)


def test_what_another_process_met_may_be_any(people, new_process, home):  # noqa: ARG001
    """Two may hold one key, as forked ones do, or those of one user; neither knows what the other has met."""
    load_key()
    here, sent = RecordRegistry(), []
    for data in (people("one", 0, 200), people("two", 100, 300)):
        new_process()
        forked = RecordRegistry()
        forked._key = here._key
        events = [pure(users.reference(data), 0.5) for users in (forked, UserRegistry(remember=False))]
        assert copy.deepcopy(events)[0].dataset.content == events[0].dataset.content != UNKNOWN
        sent.append(pickle.loads(pickle.dumps(events)))
    for pair in zip(*sent, strict=True):
        assert total_epsilon(merge([event] for event in pair), 1e-5) == pytest.approx(1.0, abs=1e-4)
    assert copy.copy(here) is copy.deepcopy([here])[0] is here
    with pytest.raises(InputError, match=r"^`registry`: cannot be pickled, since two of them would not know whose"):
        pickle.dumps(here)


@pytest.mark.parametrize("place", ["key.records", "key.records/ids"])
def test_a_folder_that_cannot_be_written(write, home, place):
    data, path = write(), home / "dpltm" / place
    load_key()
    path.parent.mkdir(exist_ok=True)
    path.write_text("") if place == "key.records" else path.mkdir()
    message = told(reference, data)
    assert str(home / "dpltm/key.records") in message
    assert message.endswith(("point DPLTM_KEY at another folder", "point DPLTM_KEY at a file that can"))


def test_of_too_many_rows_nothing_is_kept(write, people, monkeypatch, home):
    """Then nobody can tell whom they are shared with: it may be anybody, and is nobody for certain."""
    small = reference(write())
    monkeypatch.setattr(registry, "MAX_ROWS", 40)
    whole, less = reference(people("whole", 0, 400)), reference(people("less", 0, 399))
    assert rows_of(whole) is None
    assert whole.may_overlap(small)
    assert not whole.surely_overlaps(small)
    assert reference(people("again", 0, 400)).content == whole.content
    assert less.may_overlap(whole)
    assert [path.stat().st_size for name, path in files_of(home).items() if name.endswith(".rows")].count(0) == 2


def test_public_references_are_the_same_everywhere(write, tmp_path, monkeypatch):
    """Anybody can see whether they are the same: which is what somebody with another key asks."""
    here = [reference(data, public=True) for data in (write(), load("digits"))]
    monkeypatch.setenv("DPLTM_KEY", str(tmp_path / "key"))
    assert [reference(data, public=True) for data in (write(), load("digits"))] == here
    assert {ref.key_id for ref in here} == {key_id(PUBLIC_KEY)}
    assert here[0].id != here[1].id
    assert reference(write("again", X[::-1], Y[::-1]), public=True).id == here[0].id
    assert reference(write("less", X[1:], Y[1:]), public=True).id != here[0].id


@pytest.mark.parametrize("by_values", [True, False])
def test_a_public_part_of_a_private_file_is_not_named_by_what_is_in_it(write, by_values):
    """Its name would be a function of the rest; also where places were published and one may be empty."""
    parts = ("0.5", "0.5", "0.5:1.0") if by_values else ("0:719", "0:719", "719:")
    data = [write(subset=part) if by_values else load("digits", subset=part) for part in parts]
    first, second, rest = (reference(one, public=True) for one in data)
    assert first.id != second.id
    assert first.key_id == second.key_id == key_id(load_key())
    assert first.surely_overlaps(second)
    assert not first.may_overlap(rest)


def test_public_and_private_references_to_the_same_overlap(write):
    public, private = reference(write(), public=True), reference(write())
    assert public.surely_overlaps(private)
    assert again(public).surely_overlaps(again(private))
    assert again(public).surely_overlaps(reference(write("more", **MORE)))


def test_public_records_that_nobody_met(write):
    """Said to be public, they are other people than those known here; as what a release was made from, they may be any."""
    stranger, mine = DatasetRef("theirs", "ab" * 16, key_id(PUBLIC_KEY)), reference(write())
    assert not resolve(stranger).may_overlap(mine)
    assert resolve(stranger).may_overlap(resolve(stranger))
    assert not resolve(stranger).may_overlap(resolve(replace(stranger, id="cd" * 16)))
    assert resolve(stranger, public=False).may_overlap(mine)
    said = ProvenanceEvent(stranger, "public", "s", time="t")
    assert not resolved(said).dataset.may_overlap(mine)
    for event in (replace(said, provenance="private"), replace(said, provenance="dp"), pure(stranger, 0.5)):
        assert resolved(event).dataset.may_overlap(mine)
        assert read_event(to_json(event)).dataset.may_overlap(mine)


def test_public_records_that_are_met_after_a_ledger_was_read(write, tmp_path, monkeypatch):
    """A ledger from elsewhere has them down as public; once they are loaded, they are known."""
    said = ProvenanceEvent(reference(write(), public=True), "public", "s", time="t")
    open_ledger(tmp_path / "l.jsonl").append(said)
    monkeypatch.setenv("DPLTM_KEY", str(tmp_path / "here"))
    load_key()
    before, users = open_ledger(tmp_path / "l.jsonl").events, UserRegistry()
    assert before[0].dataset.content not in (UNKNOWN, said.dataset.content)
    check_not_public(before, reference(load("digits")), users)
    records = reference(write())
    assert not before[0].dataset.may_overlap(records)  # as it was read
    assert resolve(said.dataset).surely_overlaps(records)
    with pytest.raises(InputError, match="the ledger has t down as public, and t shares records with it"):
        check_not_public(before, records, users)
    check_not_public((pure(records, 0.1),), records, users)
