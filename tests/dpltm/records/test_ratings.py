"""Ratings: the file format and its bad inputs, made-up ratings, what is held out, and a user's ratings as one record."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpltm.privacy.entry import Part
from dpltm.records import Arrays, Split, by_user, load
from dpltm.records.ratings import Ratings, held_out, held_out_users, made_up, public_hash, read_ratings
from dpltm.records.units import ABSENT
from opened import arrays_of
from refusals import refused


@pytest.fixture
def written(tmp_path):
    def write(text, name="ratings.dat"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode("latin-1"))
        return path

    return write


def as_text(ratings: Ratings) -> str:
    rows = zip(ratings.places.tolist(), ratings.stars.tolist(), strict=True)
    return "".join(f"{user + 1}::{item + 1}::{stars}::978300760\n" for (user, item), stars in rows)


def test_reads_the_published_form(written):
    text = "1::1193::5::978300760\n1::661::3::978302109\r\n6040::1::1::956716541"
    found = read_ratings(written(text), (6040, 3952))
    assert found.places.tolist() == [[0, 1192], [0, 660], [6039, 0]]
    assert found.stars.tolist() == [5, 3, 1]
    assert (found.tables, found.places.dtype, found.stars.dtype) == ((6040, 3952), np.int32, np.int64)
    assert read_ratings(written(text)).tables == (6040, 1193)
    path = written("999999999::1::1::4\n")  # takes no memory
    assert refused(read_ratings, path) == (
        f"{path}: line 1 has user id 999999999, but user ids go from 1 to 1,000,000; correct it"
    )


FORM = "not UserID::MovieID::Rating::Timestamp, whole numbers all; correct it"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty; expected lines of UserID::MovieID::Rating::Timestamp"),
        ("1::2::3::4\n1,3,3,4\n", f"line 2 is b'1,3,3,4', {FORM}"),
        ("1::2::3::4\n\n", f"line 2 is b'', {FORM}"),
        ("1::2::3::4::5\n", f"line 1 is b'1::2::3::4::5', {FORM}"),
        ("1::2::3.5::4\n", f"line 1 is b'1::2::3.5::4', {FORM}"),
        ("\xb2::2::3::4\n", f"line 1 is b'\\xb2::2::3::4', {FORM}"),
        ("1::2::3::4\n" + "9" * 200 + "::2::3::4\n", f"line 2 is b'{'9' * 58}, {FORM}"),
        ("1::2::5::4\n1::3::6::4\n", "line 2 has rating 6, but ratings go from 1 to 5; correct it"),
        ("1::2::0::4\n", "line 1 has rating 0, but ratings go from 1 to 5; correct it"),
        ("0::2::1::4\n", "line 1 has user id 0, but user ids go from 1 to 6,040; correct it"),
        ("1::2::1::4\n6041::2::1::4\n", "line 2 has user id 6041, but user ids go from 1 to 6,040; correct it"),
        ("1::3953::1::4\n", "line 1 has item id 3953, but item ids go from 1 to 3,952; correct it"),
        ("1::2::1::4\n2::2::1::4\n1::2::5::9\n", "line 3 has user 1 rate item 2 a second time; keep one of them"),
    ],
)
def test_broken_files(written, text, message):
    path = written(text)
    assert refused(read_ratings, path, (6040, 3952)) == f"{path}: {message}"


def test_made_up_ratings_are_repeatable_and_have_long_tails():
    ratings, again, other = (made_up(200, 120, 6000, seed) for seed in (20, 20, 21))
    assert np.array_equal(ratings.places, again.places)
    assert np.array_equal(ratings.stars, again.stars)
    assert not np.array_equal(ratings.stars, other.stars)
    assert len(np.unique(ratings.places, axis=0)) == len(ratings.stars) == 6000
    users, items = (np.bincount(ratings.places[:, place]) for place in (0, 1))
    assert users.min() >= 15
    assert users.max() > 2 * np.median(users)
    assert items.max() > 3 * np.median(items)


def test_one_rating_in_five_is_held_out_by_hash(written):
    ratings = made_up(20, 15, 103, 0)
    found = load(str(written(as_text(ratings), "some.dat")), users=20, items=15)
    out = public_hash(ratings.places, 1) % np.uint64(5) == 0  # by the second output for each place
    assert np.array_equal(arrays_of(found.train).x, ratings.places[~out])
    assert np.array_equal(arrays_of(found.train).y, ratings.stars[~out] - 1)
    assert np.array_equal(arrays_of(found.test).x, ratings.places[out])
    assert np.array_equal(arrays_of(found.test).y, ratings.stars[out] - 1)
    assert (found.name, found.classes, found.tables, found.tables_origin) == ("some", 5, (20, 15), "declared")
    assert (found.records, found.records_origin, found.features) == (np.count_nonzero(~out), "counted", 2)


# Neighbours: what leaves the file takes nothing else with it


Row = tuple[int, tuple[int, ...], tuple[int, ...]]


def rows_of(lines: list[str], folder: Path, slots: int | None) -> tuple[list[Row], list[Row]]:
    """What is trained on and what is held out, each row with its user; of users if there are ``slots``."""
    (folder / "ratings.dat").write_text("".join(lines))
    found = load(str(folder / "ratings.dat"), users=12, items=15)
    found = found if slots is None else by_user(found, slots)
    return tuple(
        [(int(np.ravel(x)[0]), tuple(np.ravel(x)), tuple(np.ravel(y))) for x, y in zip(*arrays_of(split), strict=True)]
        if split
        else []
        for split in (found.train, found.test)
    )


@settings(max_examples=30)
@given(st.integers(0, 2**32), st.integers(1, 6), st.booleans(), st.data())
def test_what_leaves_the_file_takes_nothing_else_with_it(tmp_path_factory, seed, slots, everything, data):
    """A rating, or all those of a user: the neighbours that guarantees are about."""
    folder, lines = tmp_path_factory.mktemp("n"), as_text(made_up(12, 15, 80, seed)).splitlines(keepends=True)
    lines = data.draw(st.permutations(lines))
    user, item = (int(part) - 1 for part in data.draw(st.sampled_from(lines)).split("::")[:2])
    gone = f"{user + 1}::" if everything else f"{user + 1}::{item + 1}::"
    without = [line for line in lines if not line.startswith(gone)]

    def left(rows: list[Row]) -> list[Row]:
        return [row for row in rows if row[0] != user or (not everything and row[1] != (user, item))]

    kept, held = rows_of(lines, folder, None)
    assert len(kept) + len(held) == 80
    assert rows_of(without, folder, None) == (left(kept), left(held))
    kept, held = rows_of(lines, folder, slots)
    assert kept == rows_of(sorted(lines), folder, slots)[0]
    less, less_held = rows_of(without, folder, slots)
    assert [row for row in less if row[0] != user] == [row for row in kept if row[0] != user]
    assert sum(row[0] == user for row in kept) <= 1
    assert not everything or all(row[0] != user for row in less)
    assert less_held == left(held)


def test_the_public_number_of_known_ratings_is_not_that_of_the_file(written, tmp_path):
    """Nor is what a ledger says of them; where only a file is known the number is counted, and noted."""
    lines = as_text(made_up(20, 15, 103, 0)).splitlines(keepends=True)
    for count in (103, 60):
        written("".join(lines[:count]))
        found, part = (load("movielens", home=tmp_path, subset=subset) for subset in (None, "0.5"))
        users = by_user(found, 4)
        assert found.records_origin == part.records_origin == users.records_origin == "described"
        assert (found.records, part.records, users.records) == (
            round(0.8 * 1_000_209),
            round(0.8 * 1_000_209) // 2,
            4832,
        )
        assert found.part == Part("movielens")
        assert part.part == Part("movielens", None, (), "record", 0, 5 * 10**8)
    assert load(str(tmp_path / "ratings.dat")).records_origin == "counted"


def test_movielens_is_found_in_the_data_home_or_fetched_by_whoever_wants_it(written, tmp_path):
    assert refused(load, "movielens", home=tmp_path) == (
        f"movielens: no ratings.dat in {tmp_path}, and its licence lets nobody but GroupLens hand it out; get it with:"
        f" curl -LO https://files.grouplens.org/datasets/movielens/ml-1m.zip && unzip ml-1m.zip -d {tmp_path}"
        " (or try movielens-like, which is made up)"
    )
    text = as_text(made_up(20, 15, 103, 0))
    written(text, "ml-1m/ratings.dat")
    found = load("movielens", home=tmp_path)
    assert (found.name, found.tables, found.tables_origin) == ("movielens", (6040, 3952), "described")
    other = load(str(written(text, "ml-1m/other.dat")))
    assert other.tables != found.tables
    assert other.content_digest() == found.content_digest(), "whatever the tables"


@pytest.mark.parametrize(
    ("dataset", "options", "message"),
    [
        ("movielens-small", {"users": 3, "items": 4}, "`users`, `items`: the tables of movielens-small are known;"),
        ("movielens-small", {"bounds": (0, 1)}, "`bounds`: movielens-small holds ratings, which have none of that to"),
        ("a.dat", {"users": 3}, "`users`, `items`: declare both, the largest ids there can be, or none"),
        ("a.dat", {"users": 0, "items": 4}, "`users` 0: is not between 1 and 1,000,000"),
        ("a.dat", {"users": 4, "items": 10**7}, "`items` 10000000: is not between 1 and 1,000,000"),
        ("digits", {"users": 3, "items": 4}, "`users`, `items`: are for ratings (.dat), and digits is none; drop"),
    ],
)
def test_options_that_do_not_fit(dataset, options, message):
    assert refused(load, dataset, **options).startswith(message)


# Users


def test_hashes_are_those_of_splitmix64():
    """Golden: the first three outputs for seed 1234567 (Vigna's reference), whose state grows by the same constant."""
    state = [1234567 + step * 0x9E3779B97F4A7C15 for step in range(3)]
    places = np.array([[value >> 32 & 0xFFFFFFFF, value & 0xFFFFFFFF] for value in state], dtype=np.uint64)
    assert public_hash(places).tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert public_hash(places[:2], 1).tolist() == [3203168211198807973, 9817491932198370423]


def by_hand(dataset, slots):
    """The definition, a user at a time."""
    rows = {}
    for (user, item), label in zip(
        arrays_of(dataset.train).x.tolist(), arrays_of(dataset.train).y.tolist(), strict=True
    ):
        if user % 5 != 4:
            rows.setdefault(user, []).append((int(public_hash(np.array([[user, item]]))[0]), item, label))
    return {user: sorted(given)[:slots] for user, given in sorted(rows.items())}


@settings(max_examples=15)
@given(st.integers(1, 15), st.integers(0, 2**32))
def test_a_user_is_the_ratings_of_lowest_hash(slots, seed):
    dataset = dataset_of(made_up(12, 15, 80, seed))
    found, expected = by_user(dataset, slots), by_hand(dataset, slots)
    assert arrays_of(found.train).x.shape == (len(expected), slots, 2)
    for places, labels, (user, given_) in zip(*arrays_of(found.train), expected.items(), strict=True):
        there = labels != ABSENT
        assert there.tolist() == [True] * len(given_) + [False] * (slots - len(given_))
        assert places[there].tolist() == [[user, item] for _, item, _ in given_]
        assert labels[there].tolist() == [label for *_, label in given_]
        assert not places[~there].any()


def dataset_of(ratings, hold_out=True):
    small = load("movielens-small")
    out = held_out(ratings.places) & hold_out
    train, test = (Split(Arrays(ratings.places[part], ratings.stars[part] - 1)) for part in (~out, out))
    return replace(small, train=train, test=test, tables=ratings.tables, records=len(train), records_origin="counted")


def test_what_is_public_of_users():
    ratings = load("movielens-small")
    users = by_user(ratings, 16)
    assert (users.unit, users.records, users.records_origin) == ("user", 160, "described")
    assert (users.features, users.input_shape) == (2, (2,))
    assert arrays_of(users.train).x.shape == (160, 16, 2)
    assert arrays_of(by_user(ratings, 4096).train).x.shape == (160, 120, 2), "no more slots than items"
    # the same data, so that a ledger adds up what both units spend
    assert users.content_digest() == ratings.content_digest()
    declared = by_user(load("movielens-small", records=150), 8)
    assert (declared.records, declared.records_origin) == (150, "declared")


def test_test_users_are_not_trained_on_and_test_ratings_are_test_ratings_for_records_too():
    ratings = load("movielens-small")
    users = by_user(ratings, 16)
    out = held_out_users(200)
    assert not out[arrays_of(users.train).x[:, 0, 0]].any()
    assert out[arrays_of(users.test).x[:, 0]].all()
    held = {tuple(pair) for pair in arrays_of(ratings.test).x.tolist()}
    assert {tuple(pair) for pair in arrays_of(users.test).x.tolist()} == {pair for pair in held if pair[0] % 5 == 4}
    assert {tuple(pair) for pair in arrays_of(users.train).x[arrays_of(users.train).y != ABSENT].tolist()}.isdisjoint(
        held
    )


@pytest.mark.parametrize(
    ("dataset", "options", "slots", "message"),
    [
        ("digits", {}, 4, "`unit` user: takes ratings by users, such as movielens, and digits holds none"),
        ("movielens-small", {"subset": "0.5"}, 4, "`unit` user: takes every user, and a subset is a range"),
        ("movielens-small", {}, 0, "`per_unit` 0: is not between 1 and 4,096"),
        ("movielens-small", {}, 4097, "`per_unit` 4097: is not between 1 and 4,096"),
    ],
)
def test_bad_users(dataset, options, slots, message):
    assert refused(by_user, load(dataset, **options), slots).startswith(message)


def test_slots_that_no_memory_would_hold(written):
    """Said before anything is made: 800,000 users of 4,096 slots would be 52 GB."""
    found = load(str(written(as_text(made_up(4, 15, 24, 0)), "a.dat")), users=10**6, items=10**6)
    assert refused(by_user, found, 4096) == (
        "`per_unit` 4096: 800,000 users with so many records of 2 values each are more than the 2,147,483,648 values that"
        " are taken; pass a smaller `per_unit`"
    )
    assert len(by_user(found, 2**31 // 1_600_000).train) == 4
    assert refused(by_user, found, 2**31 // 1_600_000 + 1).startswith("`per_unit` 1343: 800,000 users")
