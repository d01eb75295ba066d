"""The fingerprint key, and references to records: random outside, and what they stand for inside."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest

from dpltm.data import key_id, load, registry
from dpltm.data.registry import PUBLIC_KEY
from dpltm.errors import ArtifactError
from dpltm.privacy.event_json import ref_from_json, ref_from_text, ref_to_json, ref_to_text, to_json
from dpltm.privacy.events import UNKNOWN, DatasetRef, GuaranteeEvent, ProvenanceEvent
from dpltm.privacy.mechanisms import Guarantee
from dpltm.privacy.parts import total_epsilon
from dpltm.tickets.identity import (
    _LINE,
    key_path,
    load_key,
    read_event,
    read_ref,
)
from refs import reference, resolve, resolved, rows_of

X = np.random.default_rng(5).integers(0, 120, (100, 6)).astype(np.uint8)
Y = np.arange(100) % 3
MORE = np.concatenate([X, 255 - X[:1]]), np.append(Y, 0)
"""The same people and one more."""


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A configuration folder that does not exist yet."""
    monkeypatch.delenv("DPLTM_KEY", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config"


def refused():
    with pytest.raises(ArtifactError) as caught:
        load_key()
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_made_once_for_the_owner_only(home):
    first = load_key()
    path = home / "dpltm/key"
    assert key_path() == path
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text() == first.hex() + "\n"
    assert len(first) == 32
    assert load_key() == first
    assert [entry.name for entry in path.parent.iterdir()] == ["key"]


def test_home_configuration_folder(tmp_path, monkeypatch):
    for name in ("DPLTM_KEY", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert key_path() == tmp_path / ".config/dpltm/key"


def test_named_by_the_environment(home, tmp_path, monkeypatch):
    monkeypatch.setenv("DPLTM_KEY", str(tmp_path / "my/key"))
    key = load_key()
    assert (tmp_path / "my/key").read_text() == key.hex() + "\n"
    assert (tmp_path / "my/key").stat().st_mode & 0o777 == 0o600
    assert not home.exists()
    (tmp_path / "my/key").write_text("AB" * 32)
    assert load_key() == bytes([0xAB]) * 32


@pytest.mark.parametrize("text", ["", "hello", "ab" * 31, "ab" * 33, "xy" * 32, "ü" * 64, "ab" * 32 + "\nmore"])
@pytest.mark.usefixtures("home")
def test_malformed(tmp_path, monkeypatch, text):
    path = tmp_path / "key"
    path.write_text(text, encoding="utf-8")
    monkeypatch.setenv("DPLTM_KEY", str(path))
    assert refused() == f"{path}: not a fingerprint key (64 hexadecimal digits); restore it or point DPLTM_KEY at one"
    assert path.read_text(encoding="utf-8") == text


@pytest.mark.parametrize(
    ("place", "reason"),
    [("file/key", "File exists"), ("folder", "Is a directory"), ("file/deeper/key", "Not a directory")],
)
@pytest.mark.usefixtures("home")
def test_places_that_cannot_be_used(tmp_path, monkeypatch, place, reason):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    path = tmp_path / place
    monkeypatch.setenv("DPLTM_KEY", str(path))
    assert refused() == (
        f"{path}: the fingerprint key cannot be read or made ({reason}); point DPLTM_KEY at a file that can"
    )


# --- references ---


@pytest.fixture
def write(tmp_path, home):  # noqa: ARG001 (its folder must be set by then)
    """Writes an .npz file of a hundred people, and loads it."""

    def call(name="t", x=X, y=Y, **options):
        np.savez(tmp_path / f"{name}.npz", x_train=x, y_train=y)
        return load(str(tmp_path / f"{name}.npz"), bounds=(0, 255), classes=3, **options)

    return call


def files_of(home):
    return {
        path.relative_to(home / "dpltm").as_posix(): path for path in (home / "dpltm").rglob("*") if path.is_file()
    }


def test_ids_are_random_and_say_nothing(write):
    """The same records have another id each time, so no two releases can be compared by it."""
    data = write()
    refs = [reference(data) for _ in range(5)]
    assert len({ref.id for ref in refs}) == 5
    assert all(re.fullmatch("[0-9a-f]{32}", ref.id) for ref in refs)
    key = load_key()
    for ref in refs:
        assert ref.key_id == key_id(key)
        written = json.dumps(ref_to_json(ref))
        for secret in (key.hex(), data.fingerprint(key), data.rows.digest, ref.content.split(":")[1]):
            assert secret[:12] not in written
            assert ref.id[:12] not in secret
    assert len({ref.content for ref in refs}) == 1
    assert refs[0].surely_overlaps(refs[1])


def test_what_was_published_before_and_after_a_deletion_tells_nothing(write):
    """Finding 8: a digest of the records would tell whether the one record was there."""
    with_, without = write(), write("less", X[1:], Y[1:])
    bodies = [{**ref_to_json(reference(data)), "name": ""} for data in (with_, with_, without, without)]
    assert len({body.pop("id") for body in bodies}) == 4
    assert all(body == bodies[0] for body in bodies)


def test_parts_of_one_dataset(write):
    first, second = reference(write(subset="0.5")), reference(write(subset="0.5:1.0"))
    assert (first.cut, first.start, first.stop) == ("values", 0, 5 * 10**8)
    assert (second.start, second.stop) == (5 * 10**8, 10**9)
    assert first.content == second.content
    assert not first.may_overlap(second)
    assert first.may_overlap(reference(write()))
    digits = [reference(load("digits", subset=subset)) for subset in ("0:719", "719:", "0.5")]
    assert [str(ref) for ref in digits] == ["digits[0:719]", "digits[719:1438]", "digits[0.0:0.5]"]
    assert not digits[0].may_overlap(digits[1])
    assert digits[0].may_overlap(digits[2])
    assert not digits[0].may_overlap(first)


def test_what_was_written_is_recognised(write):
    """By what is known in the configuration folder, and in no other way."""
    ref = reference(write())
    body = json.loads(json.dumps(ref_to_json(ref)))
    assert ref_from_json(body).content == UNKNOWN
    back = read_ref(body)
    assert (back, back.content) == (ref, ref.content)
    event = GuaranteeEvent(ref, Guarantee(0.5), "a count", time="t")
    assert read_event(to_json(event)).dataset.content == ref.content
    text = ref_to_text(ref)
    assert text == f"t {ref.id} {ref.key_id} whole 0 {2**63 - 1}"
    assert resolve(ref_from_text("records_of", text)).content == ref.content
    assert np.array_equal(rows_of(back), np.unique(write().rows.keyed_hashes(load_key())))


@pytest.mark.parametrize(
    "same",
    [
        {"x": X[::-1], "y": Y[::-1]},
        {"x": X.astype(np.int64)},
        {"x": X.astype(np.float32), "y": Y.astype(np.float64)},
        {"name": "renamed"},
    ],
    ids=["order", "int64", "float32", "name"],
)
def test_equal_content_is_the_same(write, same):
    known = reference(write())
    again = reference(write(**{"name": "again", **same}))
    assert again.content == known.content
    assert again.id != known.id
    assert again.surely_overlaps(known)


@pytest.mark.parametrize(
    "other",
    [
        dict(zip("xy", MORE, strict=True)),
        {"x": X[1:], "y": Y[1:]},
        {"x": X[:1].repeat(3, axis=0), "y": [0, 1, 2]},
        {"y": (Y + 1) % 3},
        {"x": X[:, ::-1]},
    ],
    ids=["one row more", "one row less", "one row alone", "other labels", "columns in another order"],
)
@pytest.mark.parametrize("first", ["known", "other"])
def test_common_rows_overlap(write, other, first):
    """Whichever was met first, in whatever process."""
    made = {"known": lambda: reference(write()), "other": lambda: reference(write("other", **other))}
    met = made[first]()
    ref = made["other" if first == "known" else "known"]()
    assert ref.content != met.content
    assert ref.surely_overlaps(met)
    for one, two in ((ref, met), (read_ref(ref_to_json(ref)), read_ref(ref_to_json(met)))):
        assert one.may_overlap(two)
        assert two.may_overlap(one)


def test_other_people_do_not_overlap(write):
    known, other = reference(write()), reference(write("other", 255 - X, Y))
    digits = reference(load("digits"))
    for one, two in ((known, other), (known, digits), (other, digits)):
        assert not one.may_overlap(two)
        assert not read_ref(ref_to_json(one)).may_overlap(read_ref(ref_to_json(two)))
        assert not two.surely_overlaps(one)


@pytest.mark.usefixtures("home")
def test_a_table_with_another_label_is_the_same_people(tmp_path):
    """Finding 6: one CSV, two `labels`; and other columns in front, and another format."""
    rows = np.column_stack([X, Y % 2, (Y + X[:, 0]) % 2])
    names = [*"abcdef", "y", "z"]

    def table(name, order, label):
        text = [",".join(names[place] for place in order)]
        text += [",".join(str(row[place]) for place in order) for row in rows.tolist()]
        (tmp_path / f"{name}.csv").write_text("\n".join(text) + "\n")
        return reference(load(str(tmp_path / f"{name}.csv"), label=label, bounds=(0, 255), classes=2))

    refs = [table("t", range(8), "y"), table("t", range(8), "z"), table("u", [7, 3, 1, 0, 2, 4, 6, 5], "z")]
    np.savez(tmp_path / "t.npz", x_train=rows[:, :-1], y_train=rows[:, -1])
    refs.append(reference(load(str(tmp_path / "t.npz"), bounds=(0, 255))))
    assert len({ref.content for ref in refs}) > 1
    for one in refs:
        for two in refs:
            assert one.surely_overlaps(two)
            assert total_epsilon([pure(one, 0.5), pure(two, 0.3)], 1e-12) == pytest.approx(0.8, abs=1e-6)


def pure(ref, eps):
    return GuaranteeEvent(ref, Guarantee(eps), "a count", time="t")


def test_references_under_two_keys_cannot_be_told_apart(write, tmp_path, monkeypatch):
    """Finding 7: whatever another folder knows of an id, this one does not."""
    here = reference(write(subset="0.5"))
    other = reference(load("digits"))
    monkeypatch.setenv("DPLTM_KEY", str(tmp_path / "key"))
    there = reference(write(subset="0.5:1.0"))
    assert here.key_id != there.key_id
    for ref in (here, other):
        read = read_ref(ref_to_json(ref))
        assert read.content == UNKNOWN
        assert rows_of(read) is None
        for one, two in ((read, there), (there, read), (ref, there), (there, ref)):
            assert one.may_overlap(two)
            assert not one.surely_overlaps(two)


def test_an_id_that_the_folder_lost_is_unknown(write, home):
    ref = reference(write())
    (home / "dpltm/key.records/ids").write_text("")
    read = read_ref(ref_to_json(ref))
    assert read.may_overlap(reference(load("digits")))
    assert not read.surely_overlaps(reference(load("digits")))
    assert read.surely_overlaps(read_ref(ref_to_json(ref)))
    assert read.surely_overlaps(ref)  # the same id


@pytest.mark.parametrize("end", ["rows", "shares"])
def test_what_cannot_be_compared_any_more_is_unknown(write, home, end):
    """Without them, what else has its rows could not be told."""
    ref = reference(write())
    content = ref.content.split(":")[1]
    (home / f"dpltm/key.records/{content}.{end}").unlink()
    read = read_ref(ref_to_json(ref))
    assert read.may_overlap(reference(load("digits")))
    assert not read.surely_overlaps(reference(load("digits")))
    assert read.surely_overlaps(read_ref(ref_to_json(ref)))
    more = reference(write("more", *MORE))
    reference(write())  # met again, it is known again, and compared with who came in the meantime
    again = read_ref(ref_to_json(ref))
    assert again.content == ref.content
    assert again.surely_overlaps(read_ref(ref_to_json(more)))


def test_why_rows_are_shared_is_known(write):
    """Coincidence costs as much, and refuses nothing: who has a common row by chance is not the same person."""
    short = np.random.default_rng(3).integers(0, 3, (400, 6))
    one, other = (
        reference(write(name, rows, np.arange(200) % 3)) for name, rows in (("a", short[:200]), ("b", short[200:]))
    )
    for first, second in ((one, other), (read_ref(ref_to_json(other)), read_ref(ref_to_json(one)))):
        assert first.may_overlap(second)
        assert not first.surely_overlaps(second)
    half = reference(write("c", short[:100], np.arange(100) % 3))
    assert half.surely_overlaps(one)


@pytest.mark.parametrize("text", ["hello", "\0" * 100, "ü", f"{'0' * 32} {'1' * 32}\n", f"{'g' * 32} {'1' * 32}\n"])
def test_lines_that_are_none_are_read_over(write, home, text):
    ref = reference(write())
    ids = home / "dpltm/key.records/ids"
    ids.write_bytes(text.encode() + b"\n" + ids.read_bytes())
    assert read_ref(ref_to_json(ref)).content == ref.content


# --- what is written down ---


def test_everything_is_for_the_owner_only(write, home):
    mask = os.umask(0)
    try:
        reference(write())
        reference(load("digits", subset="0.5"), public=True)
    finally:
        os.umask(mask)
    found = files_of(home)
    contents = {ref.content.split(":")[1] for ref in (reference(write()), reference(load("digits")))}
    assert set(found) == {"key", "key.records/ids"} | {
        f"key.records/{content}.{end}" for content in contents for end in ("rows", "shares")
    }
    for name, path in found.items():
        assert path.stat().st_mode & 0o777 == 0o600, name
    for folder in (home / "dpltm", home / "dpltm/key.records"):
        assert folder.stat().st_mode & 0o777 == 0o700


def test_no_row_is_in_the_clear(write, home):
    """Hashes under the key alone: whoever has the files but not the key can check no guess."""
    data = write()
    reference(data)
    (rows,) = [path for name, path in files_of(home).items() if name.endswith(".rows")]
    stored = np.frombuffer(rows.read_bytes(), dtype="<u8")
    assert np.array_equal(stored, data.rows.keyed_hashes(load_key()))
    for other in (bytes(32), b"\x01" * 32):
        assert not set(stored.tolist()) & set(data.rows.keyed_hashes(other).tolist())
    assert not set(stored.tolist()) & set(data.rows.public_hashes().tolist())
    everything = b"".join(path.read_bytes() for path in files_of(home).values())
    for public in (data.rows.digest, data.fingerprint(bytes(32)), hashlib.sha256(X.tobytes()).hexdigest()):
        assert public[:16].encode() not in everything


def test_what_is_known_is_not_written_twice(write, home):
    reference(write())
    before = {name: (path.stat().st_mtime_ns, path.stat().st_size) for name, path in files_of(home).items()}
    ref = reference(write())
    after = {name: (path.stat().st_mtime_ns, path.stat().st_size) for name, path in files_of(home).items()}
    assert {name for name in after if before.get(name) != after[name]} == {"key.records/ids"}
    assert after["key.records/ids"][1] == before["key.records/ids"][1] + len(f"{ref.id} {'0' * 32}\n")


@pytest.mark.parametrize("known", [True, False])
def test_a_dry_run_writes_nothing(write, home, known):
    """And still tells records apart, in this process."""
    if known:
        reference(write())
    before = {name: path.read_bytes() for name, path in files_of(home).items()} if known else None
    first = reference(write(), make_key=False)
    more = reference(write("more", *MORE), make_key=False)
    other = reference(load("digits"), make_key=False)
    assert first.id != reference(write(), make_key=False).id
    assert first.surely_overlaps(reference(write(), make_key=False))
    assert first.surely_overlaps(more)
    assert not first.may_overlap(other)
    assert read_ref(ref_to_json(first)).content == first.content
    if known:
        assert {name: path.read_bytes() for name, path in files_of(home).items()} == before
    else:
        assert not home.exists()


@pytest.mark.parametrize("known", [True, False])
def test_what_a_dry_run_met_is_written_by_the_next_run(write, home, tmp_path, known):
    """What this process knows in passing must not keep a real run from writing it down: commands look before they enter."""
    if known:
        load_key()
    reference(write(), make_key=False)
    public, ref = reference(write(), public=True), reference(write())
    assert public.content == ref.content
    assert public.surely_overlaps(ref)
    content = ref.content.split(":")[1]
    assert {f"key.records/{content}.rows", f"key.records/{content}.shares"} <= set(files_of(home))
    told = elsewhere(tmp_path, *(f"print(read_ref({ref_to_json(one)!r}).content)" for one in (ref, public)))
    assert told == f"{ref.content}\n{ref.content}", "by its public name too"


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("passing", ["t", "more"])
def test_who_is_met_in_passing_is_seen_by_who_is_entered(write, known, passing):
    """In whatever order: a dry run beside a real one, of files with common rows."""
    if known:
        load_key()
    made = {"t": write(), "more": write("more", *MORE)}
    refs = [reference(made[name], make_key=name != passing) for name in (passing, "more" if passing == "t" else "t")]
    refs.append(reference(made[passing], make_key=False))
    assert refs[1].surely_overlaps(refs[2])
    assert refs[0].may_overlap(refs[1])
    if known:
        assert refs[0].surely_overlaps(refs[1])
        assert resolve(refs[0]).surely_overlaps(resolve(refs[1]))


def test_what_was_met_in_passing_under_another_key_is_forgotten(write, tmp_path, monkeypatch):
    ref = reference(write(), make_key=False)
    monkeypatch.setenv("DPLTM_KEY", str(tmp_path / "key"))
    load_key()
    assert read_ref(ref_to_json(ref)).content == UNKNOWN
    monkeypatch.setenv("DPLTM_KEY", str(tmp_path / "another"))
    assert not resolve(ref).surely_overlaps(reference(load("digits"), make_key=False))


def elsewhere(folder, *lines):
    """What another process prints."""
    program = [
        "import sys",
        "import numpy as np",
        "from dpltm.data import load",
        "from dpltm.tickets.identity import *",
        "reference = UserRegistry().reference",
    ]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join([*program, "from dpltm.tickets.identity import read_ref", *lines])],
        cwd=folder, env=os.environ | {"PYTHONSAFEPATH": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_another_process_knows_the_same(write, tmp_path):
    ref = reference(write())
    body, loaded = ref_to_json(ref), "reference(load('t.npz', bounds=(0, 255), classes=3))"
    lines = [f"print(read_ref({body!r}).content)", f"print(read_ref({body!r}).surely_overlaps({loaded}))"]
    assert elsewhere(tmp_path, *lines) == f"{ref.content}\nTrue"


def at_once(*calls):
    """What each of them returns, or the error that it raises, if all start at the same moment."""
    barrier, results = threading.Barrier(len(calls)), [None] * len(calls)

    def run(place):
        barrier.wait()
        try:
            results[place] = calls[place]()
        except ArtifactError as error:
            results[place] = error

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_two_who_come_at_once_see_each_other(write):
    """Each has a row of the other's: at least one of the two notes it, and both are known to overlap by that."""
    for attempt in range(8):
        x = np.random.default_rng(attempt).integers(0, 255, (300, 6)).astype(np.uint8)
        sets = [
            write(f"one-{attempt}", x[:200], np.arange(200) % 3),
            write(f"two-{attempt}", x[199:], np.arange(101) % 3),
        ]
        load_key()
        refs = at_once(*(lambda data=data: reference(data) for data in sets))
        one, two = (read_ref(ref_to_json(ref)) for ref in refs)
        assert one.content != two.content
        assert one.surely_overlaps(two)
        assert two.surely_overlaps(one)


def test_two_who_write_down_the_same_at_once(write, home):
    """One of them is first; the other's id is known all the same."""
    data = write()
    load_key()
    refs = at_once(*[lambda: reference(data)] * 4)
    assert len({read_ref(ref_to_json(ref)).content for ref in refs}) == 1
    assert all(_LINE.fullmatch(line + "\n") for line in (home / "dpltm/key.records/ids").read_text().splitlines())


@pytest.mark.parametrize("place", ["key.records", "key.records/ids"])
def test_a_folder_that_cannot_be_written(write, home, place):
    data = write()
    load_key()
    path = home / "dpltm" / place
    path.parent.mkdir(exist_ok=True)
    if place == "key.records":
        path.write_text("")
    else:
        path.mkdir()
    with pytest.raises(ArtifactError) as caught:
        reference(data)
    message = str(caught.value)
    assert "\n" not in message
    assert str(home / "dpltm/key.records") in message
    assert message.endswith(("point DPLTM_KEY at another folder", "point DPLTM_KEY at a file that can"))


def test_of_too_many_rows_nothing_is_kept(write, monkeypatch, home):
    """Then nobody can tell whom they are shared with: it may be anybody, and is nobody for certain."""
    small = reference(write())
    monkeypatch.setattr(registry, "MAX_ROWS", 40)
    x = np.random.default_rng(9).integers(0, 255, (400, 6)).astype(np.uint8)
    y = np.arange(400) % 3
    whole = reference(write("whole", x, y))
    assert rows_of(whole) is None
    assert whole.may_overlap(small)
    assert not whole.surely_overlaps(small)
    assert reference(write("again", x[::-1], y[::-1])).content == whole.content
    less = reference(write("less", x[:-1], y[:-1]))
    assert less.may_overlap(whole)
    assert [path.stat().st_size for name, path in files_of(home).items() if name.endswith(".rows")].count(0) == 2


# --- public ---


def test_public_references_are_the_same_everywhere(write, tmp_path, monkeypatch):
    """Anybody can see whether they are the same: which is what somebody with another key asks."""
    here = [reference(data, public=True) for data in (write(), load("digits"))]
    monkeypatch.setenv("DPLTM_KEY", str(tmp_path / "key"))
    there = [reference(data, public=True) for data in (write(), load("digits"))]
    assert here == there
    assert {ref.key_id for ref in here} == {key_id(PUBLIC_KEY)}
    assert here[0].id != here[1].id
    assert reference(write("again", X[::-1], Y[::-1]), public=True).id == here[0].id
    assert reference(write("less", X[1:], Y[1:]), public=True).id != here[0].id


@pytest.mark.parametrize("part", ["0.5", "0:719"])
def test_a_public_part_of_a_private_file_is_not_named_by_what_is_in_it(write, part):
    """Its name would be a function of the rest; also where places were published and one may be empty."""

    def of(subset):
        return write(subset=subset) if "." in subset else load("digits", subset=subset)

    first, second = (reference(of(part), public=True) for _ in range(2))
    assert first.id != second.id
    assert first.key_id == second.key_id == key_id(load_key())
    assert first.surely_overlaps(second)
    assert not first.may_overlap(reference(of("0.5:1.0" if "." in part else "719:")))


def test_public_and_private_references_to_the_same_overlap(write):
    public, private = reference(write(), public=True), reference(write())
    assert public.surely_overlaps(private)
    assert read_ref(ref_to_json(public)).surely_overlaps(read_ref(ref_to_json(private)))
    more = reference(write("more", *MORE))
    assert read_ref(ref_to_json(public)).surely_overlaps(more)


def test_public_records_that_nobody_met(write, tmp_path, monkeypatch):
    """Said to be public, they are other people than those known here; as what a release was made from, they may be any."""
    stranger = DatasetRef("theirs", "ab" * 16, key_id(PUBLIC_KEY))
    mine = reference(write())
    assert not resolve(stranger).may_overlap(mine)
    assert resolve(stranger).may_overlap(resolve(stranger))
    assert not resolve(stranger).may_overlap(resolve(replace(stranger, id="cd" * 16)))
    assert resolve(stranger, public=False).may_overlap(mine)
    said = ProvenanceEvent(stranger, "public", "s", time="t")
    assert not resolved(said).dataset.may_overlap(mine)
    for event in (replace(said, provenance="private"), replace(said, provenance="dp"), pure(stranger, 0.5)):
        assert resolved(event).dataset.may_overlap(mine)
        assert read_event(to_json(event)).dataset.may_overlap(mine)
    # Once they are met, they are known.
    public = reference(load("digits"), public=True)
    monkeypatch.setenv("DPLTM_KEY", str(tmp_path / "key"))
    load_key()
    unmet = resolve(public)
    assert unmet.content not in (UNKNOWN, public.content)
    private = reference(load("digits"))
    assert not unmet.may_overlap(private)
    assert resolve(public).surely_overlaps(private)


@pytest.mark.usefixtures("home")
def test_two_first_uses_at_once(tmp_path, monkeypatch):
    keys = set()
    for attempt in range(300):
        monkeypatch.setenv("DPLTM_KEY", str(tmp_path / str(attempt)))
        first, second = at_once(load_key, load_key)
        assert first == second
        assert isinstance(first, bytes)
        keys.add(first)
    assert len(keys) == 300, "different each time"
