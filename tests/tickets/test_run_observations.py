"""What an audit saw, on disk: it reads as it was written, or is refused."""

from pathlib import Path

import numpy as np
import pytest

from dpltm.audit.canaries import Observations
from dpltm.tickets.run import AUDIT, read_observations, write_observations
from refusals import told

SEEN = Observations(np.array([0.5, -3.0, 1e9]), np.array([True, False, True]), np.array([1.0, 1.0, 0.5]))


@pytest.fixture(autouse=True)
def _written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_observations(Path(), SEEN)


def test_round_trip():
    seen = read_observations(Path(), 3)
    for name in ("scores", "included", "norms"):
        assert np.array_equal(getattr(seen, name), getattr(SEEN, name))
        assert getattr(seen, name).dtype == getattr(SEEN, name).dtype


def test_of_a_training_without_an_audit_there_is_nothing(tmp_path):
    assert read_observations(Path(), None) is None
    (tmp_path / "other").mkdir()
    write_observations(Path("other"), None)
    assert read_observations(Path("other"), 3) is None


@pytest.mark.parametrize("count", [4, 2])
def test_other_canaries(count):
    assert told(read_observations, Path(), count).startswith(f"{AUDIT}: tensor")


@pytest.mark.parametrize("count", [0, -1, True, 2.0, "3", 2**40])
def test_a_number_that_is_none(count):
    assert told(read_observations, Path(), count) == "config.json: audit is not a number of canaries"


@pytest.mark.parametrize(
    ("name", "value"), [("included", 0.5), ("included", np.nan), ("scores", np.nan), ("norms", 0.0), ("norms", np.nan)]
)
def test_values_that_no_audit_leaves(raw, name, value):
    tensors = raw.read(Path(AUDIT))
    tensors[name] = np.array([value, *tensors[name][1:]])
    raw.write(Path(AUDIT), tensors)
    assert told(read_observations, Path(), 3) == f"{AUDIT}: scores, coins or norms that no audit leaves"
