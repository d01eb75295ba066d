"""Data frames: columns by name, whatever their order; words, dates and holes by a schema; row numbers left out."""

import datetime
from typing import Any

import numpy as np
import pandas
import polars
import pytest

import dpltm
from dpltm.records import from_arrays, load, load_records
from dpltm.records.schema import parse_schema
from opened import arrays_of
from refusals import refused

TEXT = """
column.who = { kind = "ignored" }
column.age = { kind = "number", bounds = [0, 100], missing = true }
column.ward = { kind = "category", values = ["north", "south"], missing = true }
column.seen = { kind = "date", bounds = [2024-01-01, 2024-12-31] }
column.ill = { kind = "label", classes = ["yes", "no"] }
"""
SCHEMA = parse_schema(TEXT, "it")
FAST = {"delta": 1e-3, "noise_multiplier": 0.5, "epsilon": None, "epochs": 20, "batch_size": 50, "noise": "fast"}


def columns(count: int = 200, seed: int = 0) -> dict[str, list[Any]]:
    """Patients of whom the old are ill."""
    draw = np.random.default_rng(seed)
    ages = draw.integers(0, 100, count)
    return {
        "who": [f"p{seed}{number}" for number in range(count)],
        "age": [None if place % 9 == 8 else int(age) for place, age in enumerate(ages)],
        "ward": [None if place % 7 == 6 else str(draw.choice(["north", "south"])) for place in range(count)],
        "seen": [
            datetime.date(2024, 1, 1) + datetime.timedelta(days=int(day)) for day in draw.integers(0, 366, count)
        ],
        "ill": ["yes" if age > 50 else "no" for age in ages],
    }


FRAME = pandas.DataFrame(columns())
FRAMES = {"pandas": pandas.DataFrame, "polars": polars.DataFrame}


@pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES)
def test_a_frame_is_what_the_same_file_is(tmp_path, frame):
    made = frame(columns())
    told = from_arrays(made, schema=SCHEMA)
    path = tmp_path / "d.csv"
    pandas.DataFrame(columns()).astype({"age": "Int64"}).to_csv(path, index=False)
    file = load(str(path), schema=SCHEMA)
    assert np.array_equal(arrays_of(told.train).x, arrays_of(file.train).x)
    assert arrays_of(told.train).y.tolist() == arrays_of(file.train).y.tolist()
    assert told.content_digest() == file.content_digest()
    (tmp_path / "s.toml").write_text(TEXT)
    for schema in (str(tmp_path / "s.toml"), tmp_path / "s.toml", SCHEMA):
        assert np.array_equal(load_records(str(path), schema=schema), arrays_of(file.train).x)
    labels = from_arrays(made[["seen", "ward", "age", "who"]], made["ill"], schema=SCHEMA)
    assert np.array_equal(arrays_of(labels.train).x, arrays_of(file.train).x)
    assert arrays_of(labels.train).y.tolist() == arrays_of(file.train).y.tolist()


def test_columns_of_all_stages_go_by_name():
    """Once swapped columns were taken by place: exit without a word, accuracy of chance."""
    draw = np.random.default_rng(0)
    x = pandas.DataFrame(draw.random((400, 2)), columns=["a", "b"])
    y = (x["a"] > 0.5).astype(int)
    other = pandas.DataFrame(draw.random((100, 2)), columns=["a", "b"])
    told, swapped = (other["a"] > 0.5).astype(int), other[["b", "a"]]
    facts = {"bounds": (0, 1), "classes": 2, "records": 400}
    options = {**facts, **FAST, "ledger": dpltm.Ledger()}
    run = dpltm.train("mlp:8", x, y, test=(swapped, told), lr=2.0, **options)
    assert run.metrics[-1]["accuracy"] > 0.85
    assert dpltm.evaluate(run, swapped, told, ledger=dpltm.Ledger()).accuracy == run.metrics[-1]["accuracy"]
    assert np.array_equal(dpltm.predict(run, swapped).probabilities, dpltm.predict(run, other).probabilities)
    for bad, said in ((other[["a"]], "it lacks 'b'"), (other.assign(c=1), "it has, beside those, 'c'")):
        assert said in refused(dpltm.predict, run, bad)
        assert said in refused(dpltm.evaluate, run, bad, told, ledger=dpltm.Ledger())
        assert said in refused(dpltm.train, "mlp:8", x, y, test=(bad, told), **options)
    tickets = dpltm.generate(
        x, y, provenance="public", model="mlp:4", rounds=1, iterations=5, batch_size=50, bounds=(0, 1), classes=2,
        ledger=dpltm.Ledger(),
    )  # fmt: skip
    again = dpltm.train(tickets, swapped, told, round=1, **{**options, "records": 100, "ledger": dpltm.Ledger()})
    assert again.columns == ("a", "b")
    assert dpltm.transfer(tickets, swapped, told, bounds=(0, 1), classes=2).config["columns"] == ["a", "b"]


@pytest.mark.parametrize("name", ["Unnamed: 0", ""])
def test_row_numbers_of_frames_are_left_out_with_a_note(name):
    x = pandas.DataFrame({name: range(200), "a": np.linspace(0, 1, 200)})
    y = np.arange(200) % 2
    told = f'columns left out, since they are row numbers by their names: "{name}"; rename what is a feature'
    run = dpltm.train("mlp:4", x, y, bounds=(0, 1), classes=2, ledger=dpltm.Ledger(), **{**FAST, "epochs": 1})
    assert (run.columns, told in run.privacy.notes) == (("a",), True)
    assert dpltm.predict(run, x).saturated == 0


@pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES)
def test_a_classifier_fits_words_dates_and_holes(frame):
    """Labels come back sorted, as scikit-learn has them, whatever the order in the schema."""
    made = dpltm.TicketClassifier(schema=SCHEMA, features="unit", ledger=dpltm.Ledger(), **FAST)
    train, other = frame(columns()), frame(columns(seed=1))
    made.fit(train, train["ill"])
    assert made.classes_.tolist() == ["no", "yes"]
    backwards = other[["ill", "seen", "ward", "age", "who"]]
    chances = made.predict_proba(backwards[["seen", "ward", "age"]])
    assert np.array_equal(chances, made.predict_proba(other))
    found = made.predict(other)
    assert np.array_equal(found == "yes", chances[:, 1] > chances[:, 0])
    right = float(np.mean(found == np.array(other["ill"].to_list())))
    assert made.score(other, other["ill"]) == pytest.approx(right)
    assert right > 0.7
    assert made.run_.schema.columns == SCHEMA.columns, "a run remembers how its table is read"
    np.testing.assert_allclose(dpltm.predict(made.run_, other).probabilities[:, ::-1], chances, atol=1e-6)


def test_class_weights_are_by_label_whatever_the_order_of_the_schema():
    frame = pandas.DataFrame(columns())
    for given in ({"no": 1.0, "yes": 4.0}, [1.0, 4.0]):
        fast = {**FAST, "epochs": 1}
        made = dpltm.TicketClassifier(schema=SCHEMA, class_weight=given, ledger=dpltm.Ledger(), **fast)
        made.fit(frame, frame["ill"])
        assert made._options()["class_weight"] == [4.0, 1.0]


def test_a_regressor_and_numbers_as_labels():
    frame = pandas.DataFrame(columns())
    target = frame["age"].fillna(50) / 100
    made = dpltm.TicketRegressor(
        schema=SCHEMA, target_bounds=(0, 1), features="unit", ledger=dpltm.Ledger(), **FAST
    )  # fmt: skip
    assert made.fit(frame, target).score(pandas.DataFrame(columns(seed=1)), target[::-1]) < 1
    coded = parse_schema(TEXT.replace('["yes", "no"]', '["1", "0"]'), "it")
    y = (frame["ill"] == "yes").astype(int)
    made = dpltm.TicketClassifier(schema=coded, ledger=dpltm.Ledger(), **FAST).fit(frame, y)
    assert made.classes_.tolist() == [0, 1]
    assert made.classes_.dtype == y.dtype


@pytest.mark.parametrize(
    ("x", "y", "options", "said"),
    [
        (
            FRAME,
            FRAME["ill"],
            {"bounds": (0, 1)},
            "`x`: record 0 (from 0), column 'who' holds 'p00', which is no number",
        ),
        (FRAME.to_numpy(), None, {"schema": SCHEMA}, "`schema`: goes with a data frame"),
        (FRAME, None, {"schema": SCHEMA, "bounds": (0, 1)}, "`bounds`: the schema says"),
        (FRAME, np.arange(200) % 2, {"schema": SCHEMA}, "ill: '0' is none of its classes (record 0 from 0)"),
        (FRAME, None, {"schema": 3}, "`schema`: 3 is not a path of a schema"),
    ],
)
def test_what_a_stage_refuses(x, y, options, said):
    given = {"epsilon": 1, "delta": 1e-3, "ledger": dpltm.Ledger()}
    assert said in refused(dpltm.train, "mlp", x, y, **given, **options)


@pytest.mark.parametrize(
    ("options", "y", "said"),
    [
        ({"classes": 2}, "ill", "`classes`: the schema says"),
        ({}, "age", "`y`: label '85.0' is none of the 2 classes; declare"),
    ],
)
def test_what_an_estimator_refuses(options, y, said):
    made = dpltm.TicketClassifier(schema=SCHEMA, ledger=dpltm.Ledger(), **options)
    assert said in refused(made.fit, FRAME, FRAME[y].fillna(0))
