"""Files and facts that do not fit: one row each, with the whole message."""

import io
import pickle
from typing import Any

import numpy as np
import pytest

from dpltm.records import load
from refusals import refused

X, Y = np.arange(24, dtype=np.uint8).reshape(6, 2, 2), np.array([0, 1, 2, 0, 1, 2])
HOLES = np.zeros((6, 2, 2), dtype=np.float32)
HOLES[3, 1, 0] = HOLES[4, 0, 0] = np.nan
BARE, FLOATS = io.BytesIO(), X.astype(np.float32)
np.save(BARE, X)

TEXTS: dict[str, Any] = {
    "x_train": None, "y_train": [0, 1], "values_train": np.array([1, 2, 3]), "offsets_train": np.array([0, 2, 3]),
}  # fmt: skip
POSITIONS = {"x_train": np.array([[0, 4], [9, 1], [3, 3]]), "y_train": [0, 1, 0]}

LABELS = "labels must be integers 0 to K-1; number the classes from 0"
OTHER = (
    "; declare the public range of a number to be predicted by `target_bounds` LO,HI; in Python, a network of your own takes"
    " other labels with `loss=`, one value each (integers: `classes=0`)"
)
SAVE = "save it under that name"
FINITE = "(counted from 0); features must be finite; replace the value or drop the record"
NUMBER = "every cell must be a number, or say by `schema` what the columns hold (dpltm datasets schema drafts one)"
IN_UTF8 = 'save it as that, or let its schema say encoding = "latin-1" or separator = ";"'
WHOLE, TO = "expected integers in one dimension", "it must go from 0 to the 3 entries of values_train, and never fall"

ARCHIVES: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"y_train": Y + 0.5}, {}, f"PATH: y_train has label 0.5 at record 0; {LABELS}{OTHER}"),
    ({"y_train": Y.astype(str)}, {}, f"PATH: y_train has dtype <U21; {LABELS}"),
    ({"y_train": Y[:, None]}, {},
     f"PATH: y_train has shape (6, 1); expected (records,); give one label a record{OTHER}"),
    ({"y_train": [0, 1, 3, 0, 1, 3]}, {},
     "PATH: y_train goes up to 3, but no record has label 2; number the classes without gaps or pass `classes`"
     f" 4{OTHER}"),
    ({"y_train": Y[:5]}, {}, "PATH: x_train has 6 records but y_train has 5 labels; give one label a record"),
    ({"y_train": Y * 0}, {}, "t has label 0 in all of its records; give records of two classes or more"),
    ({}, {"classes": 2},
     "PATH: y_train has label 2 at record 2, but there are 2 classes, numbered from 0; correct the label or pass `classes`"),
    ({"x_train": X.astype(str)}, {},
     "PATH: x_train has dtype <U3; expected bool, integers or floats of 64 bits or fewer; convert it"),
    ({"x_train": X[:0], "y_train": Y[:0]}, {},
     "PATH: x_train has shape (0, 2, 2) and holds no data; give records with features"),
    ({"x_test": X.reshape(6, 4), "y_test": Y}, {},
     "PATH: x_test has records of shape (4,) but x_train of shape (2, 2); give both splits the same features"),
    # bytes 0..255 beside floats 0..1: the bounds of one would squash the other without a word
    ({"x_test": FLOATS / 255, "y_test": Y}, {},
     "PATH: x_test is float32 but x_train is uint8; store both alike or pass `bounds` LO,HI"),
    ({"x_train": HOLES}, {"bounds": (0, 1)}, f"PATH: x_train has nan at record 3, feature 2 {FINITE}"),
    ({"x_train": FLOATS, "x_test": HOLES - np.inf, "y_test": Y}, {"bounds": (0, 1)},
     f"PATH: x_test has -inf at record 0, feature 0 {FINITE}"),
    ({"x_train": None, "y_train": None, "data": X}, {}, f"PATH: has no array x_train, only 'data'; {SAVE}"),
    ({"y_test": Y}, {}, f"PATH: has no array x_test, only 'x_train', 'y_train', 'y_test'; {SAVE}"),
    ({"x_train": np.array([[1], ["a"]], dtype=object)}, {},  # never unpickled
     "PATH: x_train holds Python objects; save it again as an array of numbers"),
    ({}, {"label": "y"}, "`label` y: PATH is .npz and names its labels y_train; drop `label`"),
    # texts
    ({**TEXTS, "values_train": np.ones(3)}, {}, f"PATH: values_train has dtype float64 and shape (3,); {WHOLE}"),
    ({**TEXTS, "offsets_train": [0], "y_train": Y[:0]}, {},
     "PATH: offsets_train has 1 entries and so no record; give one more than records"),
    ({**TEXTS, "offsets_train": [0, 1, 2**62]}, {}, f"PATH: offsets_train goes from 0 to {2**62}; {TO}"),
    ({**TEXTS, "values_train": np.array([1, -1, 3])}, {},
     "PATH: values_train holds -1; a word is a rank from 1 up, and 0 an unknown one"),
    ({**TEXTS, "x_train": X}, {}, "PATH: has both x_train and values_train; keep the one with the records"),
    ({**TEXTS, "x_test": X, "y_test": Y}, {},
     "PATH: x_test holds no texts, unlike values_train; give both splits the same"),
    (TEXTS, {"words": 4},
     "`words` 4: must be 5 to 10,000,000; pass the public size of the table, which has 4 positions that are no words"),
    (TEXTS, {"length": 10**6}, "`length` 1000000: must be 1 to 100,000; pass how many words of a text to keep"),
    (TEXTS, {"bounds": (0, 1)},
     "`bounds`: is for quantities, and these records hold positions in a table; drop `bounds`"),
    (POSITIONS, {"length": 2}, "`length` 2: PATH holds no texts (values_train, offsets_train); drop `length`"),
    (POSITIONS, {"words": 9},
     "PATH: x_train has 9 at record 1, place 0 (counted from 0); with `words` 9 every value must be a position, a whole"
     " number from 0 to 8"),
]  # fmt: skip

WRITTEN: list[tuple[str, bytes, str | None, str]] = [
    ("t.npz", BARE.getvalue(), None, "PATH: holds a single array; save it with numpy.savez(x_train=..., y_train=...)"),
    *(("t.npz", body, None, "PATH: is not a NumPy archive that can be read; save it with numpy.savez")
      for body in (b"", b"hello", pickle.dumps([1]))),
    ("t.csv", b"a,y,a\n1,0,2\n", None,
     "PATH: needs `label` COLUMN to name the label column; it has 'a', 'y', 'a'"),
    ("t.csv", b"a,y,a\n1,0,2\n", "a", "`label` a: PATH has that column more than once; it has 'a', 'y', 'a'"),
    ("t.csv", b"a,y\n1,0\n2,cat\n", "y", f"PATH: line 3, column 'y' holds 'cat'; {NUMBER}"),
    ("t.csv", b"a,y\n1,0\n\n1,0\n0x1,0\n", "y", f"PATH: line 5, column 'a' holds '0x1'; {NUMBER}"),
    ("t.csv", b'a,y\n1,0\n"two\nlines",1\n', "y", f"PATH: line 4, column 'a' holds 'two\\nlines'; {NUMBER}"),
    ("t.csv", b"", "y", "PATH: is empty; expected a header line and records"),
    ("t.csv", b'a,y\n"1,0\n', "y",
     f"PATH: is not comma-separated text in UTF-8 (unexpected end of data); {IN_UTF8}"),
]  # fmt: skip


@pytest.mark.parametrize(("arrays", "options", "message"), ARCHIVES)
def test_archives(tmp_path, arrays, options, message):
    path, held = tmp_path / "t.npz", {"x_train": X, "y_train": Y} | arrays
    np.savez(path, **{name: value for name, value in held.items() if value is not None})
    assert refused(load, str(path), **options) == message.replace("PATH", str(path))


@pytest.mark.parametrize(("name", "body", "label", "message"), WRITTEN)
def test_files(tmp_path, name, body, label, message):
    path = tmp_path / name
    path.write_bytes(body)
    assert refused(load, str(path), label=label) == message.replace("PATH", str(path))
