"""Whose each record is: what a unit is called, which of its records count, and that none depends on another unit."""

from functools import partial

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dpltm
from dpltm.records import at_unit, from_arrays, load
from dpltm.records.units import ABSENT, whose
from opened import arrays_of, units_of
from refusals import refused


def people(count=60, seed=0, persons=9):
    """Records of some persons, by number."""
    draw = np.random.default_rng(seed)
    x = draw.integers(0, 256, (count, 5), dtype=np.uint8)
    return x, np.arange(count) % 2, draw.integers(0, persons, count)


@pytest.mark.parametrize(
    ("cells", "name"),
    [
        ((7, 7.0, "7", " 007 ", "7.0", "+7", b"7", np.uint8(7), np.float32(7)), "7"),
        ((0, "-0", "0.0", "00"), "0"),
        ((-3, "-03", "-3.000"), "-3"),
        ((" Ann Lee", "Ann Lee "), "Ann Lee"),
        (("Jos\u00e9", "Jose\u0301"), "Jos\u00e9"),  # composed, and not: one person, or the bound doubles
        (("12345678901234567891", 12345678901234567891), "12345678901234567891"),
    ],
)
def test_what_a_unit_is_called(cells, name):
    assert {whose(cell) for cell in cells} == {name}


@given(st.integers(-(10**30), 10**30), st.integers(0, 5), st.integers(0, 3))
def test_whole_numbers_are_told_apart_and_known_again(number, zeros, decimals):
    sign, digits = ("-" if number < 0 else ""), str(abs(number))
    written = sign + "0" * zeros + digits + ("." + "0" * decimals if decimals else "")
    assert whose(written) == str(number)
    assert whose(number + 1) != str(number)


def by_hand(x, y, units, hashes, slots):
    """The definition, a person at a time."""
    found = []
    for unit in sorted(set(units.tolist()), key=str):  # as texts are sorted
        mine = [place for place in range(len(units)) if units[place] == unit]
        mine.sort(key=lambda place: hashes[place])  # stable
        found.append([(x[place].tolist(), int(y[place])) for place in mine[:slots]])
    return found


@settings(max_examples=25)
@given(st.integers(1, 12), st.integers(0, 2**32), st.integers(2, 20))
def test_a_person_is_the_records_of_lowest_hash(slots, seed, persons):
    x, y, units = people(seed=seed, persons=persons)
    dataset = from_arrays(x, y, classes=2, units=units)
    found = at_unit(dataset, slots)
    expected = by_hand(x, y, units, dataset.rows.public_hashes(), slots)
    assert arrays_of(found.train).x.shape == (len(expected), slots, 5)
    for records, labels, given_ in zip(*arrays_of(found.train), expected, strict=True):
        there = labels != ABSENT
        assert there.tolist() == [True] * len(given_) + [False] * (slots - len(given_))
        assert [
            (record.tolist(), int(label)) for record, label in zip(records[there], labels[there], strict=True)
        ] == given_
        assert not records[~there].any()


@settings(max_examples=25)
@given(st.integers(1, 6), st.integers(0, 2**32), st.integers(0, 8))
def test_one_person_more_or_less_is_one_row_more_or_less(slots, seed, who):
    x, y, units = people(seed=seed)
    there = units != who
    if there.all() or len(set(units[there].tolist())) < 2:
        return
    whole = arrays_of(at_unit(from_arrays(x, y, classes=2, units=units), slots).train)
    without = arrays_of(at_unit(from_arrays(x[there], y[there], classes=2, units=units[there]), slots).train)
    place = sorted(set(units.tolist())).index(who)
    assert np.array_equal(np.delete(whole.x, place, axis=0), without.x)
    assert np.array_equal(np.delete(whole.y, place, axis=0), without.y)


def test_a_word_among_numbers_makes_no_two_persons_of_one():
    """Whether a cell is a number is asked of that cell alone: 7 and 7.0 are one, whoever else is there."""
    x, y, _ = people(6)
    for last in ("ann", "9"):
        dataset = from_arrays(x, y, classes=2, units=np.array(["7", "7.0", "8", "08", "8.", last]))
        assert len(set(units_of(dataset)[:2].tolist())) == len(set(units_of(dataset)[2:5].tolist())) == 1
        assert len(at_unit(dataset, 4).train) == 3


def test_what_is_public_of_persons():
    x, y, units = people()
    dataset = from_arrays(x, y, classes=2, units=units)
    found = at_unit(dataset, 4)
    assert (found.unit, found.records, found.records_origin) == ("user", len(set(units.tolist())), "counted")
    assert (found.train.slots, found.row_shape, found.input_shape, found.features) == (4, (5,), (5,), 5)
    assert found.content_digest() == dataset.content_digest(), "the same data, so that a ledger adds up both"
    assert not found.names_units
    declared = at_unit(from_arrays(x, y, classes=2, records=11, units=units), 4)
    assert (declared.records, declared.records_origin) == (11, "declared")
    assert at_unit(dataset, None).train.slots == 64
    assert at_unit(found, None) is found


def tables(folder, whose_cells, number=True):
    """The same records as a CSV, a Parquet file and an archive."""
    draw = np.random.default_rng(4)
    count = len(whose_cells)
    a, b, y = draw.random(count).round(4), draw.random(count).round(4), np.arange(count) % 2
    cells = [str(cell) for cell in whose_cells]
    rows = "".join(f"{p},{who},{q},{label}\n" for p, who, q, label in zip(a, cells, b, y, strict=True))
    (folder / "d.csv").write_text("a,who,b,y\n" + rows)
    column = pa.array([int(cell) for cell in whose_cells] if number else cells)
    pq.write_table(pa.table({"a": a, "who": column, "b": b, "y": y}), folder / "d.parquet")
    np.savez(folder / "d.npz", x_train=np.column_stack([a, b]), y_train=y, who_train=np.array(whose_cells))
    return [
        load(str(folder / name), units="who", bounds=(0, 1), classes=2, label=None if name == "d.npz" else "y")
        for name in ("d.csv", "d.parquet", "d.npz")
    ]


@pytest.mark.parametrize("number", [True, False])
def test_every_kind_of_file_says_whose_its_records_are(tmp_path, number):
    cells = [3, 1, 3, 12, 1, 3] if number else ["c", "a", "c", "d", "a", "c"]
    csv, parquet, npz = tables(tmp_path, cells, number)
    assert csv.features == parquet.features == npz.features == 2
    for other in (parquet, npz):
        assert np.array_equal(units_of(csv), units_of(other))
        assert np.allclose(arrays_of(csv.train).x, arrays_of(other.train).x)
    assert csv.rows.public_hashes().tolist() == parquet.rows.public_hashes().tolist()


def test_a_table_is_one_snapshot_whether_or_not_somebody_says_whose_its_records_are(tmp_path):
    """So that what was declared public of it is known where persons are protected."""
    csv, parquet, _ = tables(tmp_path, [3, 1, 3, 12, 1, 3])
    for dataset, name in ((csv, "d.csv"), (parquet, "d.parquet")):
        plain = load(str(tmp_path / name), bounds=(0, 20), classes=2, label="y")
        assert plain.features == 3
        assert plain.content_digest() == dataset.content_digest()


@pytest.mark.parametrize(
    ("units", "message"),
    [
        (["a", " ", "b"], "says nobody at record 1 (counted from 0)"),
        ([1.0, np.nan, 2.0], "says nobody at record 1"),
        ([1.5, 1.0, 2.0], "holds '1.5', a number that is not whole, at record 0 (counted from 0); give whole numbers"),
        ([1, 2], "has dtype int64 and shape (2,); give each of the 3 records a number or a name"),
        ([True, False, True], "has dtype bool"),
    ],
)
def test_bad_units(units, message):
    x, y, _ = people(3)
    said = refused(from_arrays, x, y, classes=2, units=np.array(units))
    assert said.startswith("records: 'user' " + message)


@pytest.mark.parametrize(
    ("name", "label", "units", "message"),
    [
        ("d.csv", "y", "nobody", "d.csv has no such column; it has 'a', 'who'"),
        ("d.csv", "y", "y", "d.csv has its labels in that column"),
        ("d.npz", None, "x", "d.npz has no array x_train beside its records, only "),
    ],
)
def test_a_column_that_does_not_say_it(tmp_path, name, label, units, message):
    tables(tmp_path, [1, 2, 1])
    said = refused(load, str(tmp_path / name), bounds=(0, 1), classes=2, label=label, units=units)
    assert said.startswith(f"`unit_column` {units}: {tmp_path}/{message}")


@pytest.mark.parametrize("unit", ["patient", "user"])
def test_a_noun_without_persons_is_refused_and_not_left_out(unit):
    """Or a training would protect single records, where somebody asked for patients."""
    said = "`unit`: says whom `units` names, so it goes with these; leave it out, or add them"
    for call in (from_arrays, partial(dpltm.train, "mlp:2", epsilon=1, ledger=dpltm.Ledger())):
        assert refused(call, np.eye(4), np.arange(4) % 2, bounds=(0, 1), unit=unit) == said


def test_nobody_is_in_both_splits(tmp_path):
    x, y, units = people()
    held = {"x_test": x[:4] ^ 255, "y_test": y[:4]}
    np.savez(tmp_path / "d.npz", x_train=x, y_train=y, who_train=units, **held, who_test=np.array([40, 41, 3, 3]))
    path = str(tmp_path / "d.npz")
    assert refused(load, path, units="who") == (
        f"{path}: 1 of the 3 values of 'who' are in the training split too, so accuracy there would show what is"
        " protected; keep all records of one on one side"
    )
    np.savez(tmp_path / "d.npz", x_train=x, y_train=y, who_train=units, **held, who_test=np.array([40, 41, 42, 42]))
    assert load(path, units="who").test.slots is None


@pytest.mark.parametrize("dtype", [object, "string", "category"])
def test_a_column_of_pandas_says_whose_records_are(dtype):
    """Texts in objects, as ``read_csv`` gives them, are the texts that a list holds."""
    names = [f"p{number // 3}" for number in range(12)]
    x, y = np.arange(24.0).reshape(12, 2), np.arange(12) % 2
    wanted, given_names = (
        from_arrays(x, y, bounds=(0, 24), classes=2, records=4, units=units, unit="patient")
        for units in (names, pandas.Series(names, dtype=dtype))
    )
    assert units_of(given_names).tolist() == units_of(wanted).tolist()
