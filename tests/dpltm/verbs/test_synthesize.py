"""Synthetic records as a stage: what is entered, what is refused, and what follows them into other stages.

That nothing but the query looks at the records, and that the entry comes first, ``tests/adversary`` shows.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpltm.errors import ArtifactError, BudgetError
from dpltm.features.inputs import Services
from dpltm.options.synthesize import SynthesizeOptions
from dpltm.privacy import gdp
from dpltm.privacy.entry import Entry
from dpltm.privacy.ledger import Ledger
from dpltm.privacy.mechanisms import Guarantee
from dpltm.records import Dataset, from_arrays, load
from dpltm.records.notes import feature_notes
from dpltm.tickets.store import write_synthetic
from dpltm.verbs.synthesize import Synthesis, settle
from opened import arrays_of
from refusals import refused
from stage_cases import records

FEW: dict[str, Any] = {"records_out": 40, "model": "mlp:4", "delta": 1e-4, "epsilon": 1.0}


def asked(dataset: Dataset | None = None, ledger: Ledger | None = None, **options: Any) -> Synthesis:
    mine = records(1) if dataset is None else dataset
    return settle(mine, SynthesizeOptions(**{**FEW, **options}), Ledger() if ledger is None else ledger, Services())


@pytest.mark.parametrize(("adjacency", "bound"), [("add-remove", 9 / 8), ("replace-one", 9 / 4)])
def test_the_entry_is_a_gaussian_mechanism_of_that_epsilon(adjacency: str, bound: float) -> None:
    mine = records(1)
    wanted = asked(mine, adjacency=adjacency)
    made = wanted.made()
    (entry,) = wanted.ledger.entries
    assert (entry.kind, entry.part, entry.unit) == ("release", wanted.ledger.part(mine), "record")
    assert entry.mechanisms == (made.mechanism,)
    assert made.lineage == wanted.ledger.lineage(entry)
    assert (made.mechanism.sensitivity, made.mechanism.adjacency) == (bound, adjacency)
    # a Gaussian mechanism is mu-GDP with mu = 1/sigma, whose delta at epsilon is exact (Dong, Roth, Su 2022, Cor. 2.13)
    exact = gdp.delta(1.0, 1 / made.mechanism.noise_multiplier)
    assert exact <= 1e-4
    assert exact == pytest.approx(1e-4, rel=0.02)
    assert made.privacy.certified.epsilon <= 1.0
    assert made.privacy.certified.adjacency == adjacency
    mechanism, said = asked(mine, adjacency=adjacency).priced()
    assert (mechanism, said.certified) == (made.mechanism, made.privacy.certified)


def test_records_are_shaped_and_bounded_as_the_private_ones() -> None:
    x = np.random.default_rng(0).normal(size=(60, 2, 3))
    made = asked(from_arrays(x, np.arange(60) % 3, bounds=(-2.0, 5.0)), delta=1e-3).made()
    assert (made.x.shape, made.x.dtype, made.y.dtype) == ((40, 2, 3), np.float32, np.int64)
    assert made.x.min() >= -2
    assert made.x.max() <= 5
    assert set(made.y.tolist()) <= {0, 1, 2}
    assert (made.dataset.bounds, made.dataset.classes, made.dataset.synthetic) == ((-2.0, 5.0), 3, True)


def test_much_epsilon_makes_records_that_teach() -> None:
    wanted = asked(records(1, 2000, test=500), epsilon=50.0, records_out=2000, model="mlp:16")
    made = wanted.scored(wanted.made())
    assert made.score is not None
    assert (made.score.model, made.score.records) == ("mlp:16", 500)
    assert made.score.accuracy > 0.7  # a guess has a third; the noise is small beside 2,000 records
    assert [entry.kind for entry in wanted.ledger.entries] == ["excluded", "release"], "before it is measured on"


def test_what_is_spent_already_is_part_of_the_budget() -> None:
    ledger = Ledger()
    first = asked(ledger=ledger, epsilon=0.5).made()
    second = asked(ledger=ledger, epsilon=1.0).made()
    assert first.privacy.certified.epsilon <= 0.5
    assert 0.9 < second.privacy.certified.epsilon <= 1.0
    assert len(ledger.entries) == 2
    assert first.lineage.entries[0].id != second.lineage.entries[0].id
    assert refused(asked(ledger=ledger, epsilon=0.5).made, kind=BudgetError).startswith("budget: ")


def test_a_budget_is_kept() -> None:
    ledger = Ledger()
    ledger.declare(Entry("budget", mechanisms=(Guarantee(0.3, 1e-4),)))
    refused(asked(ledger=ledger).made, kind=BudgetError)
    assert len(ledger.entries) == 1


def test_what_is_refused() -> None:
    assert refused(asked, epsilon=None) == "`epsilon` is missing: what may be spent on these records, such as 1"
    assert refused(asked, epsilon=-1.0) == "`epsilon`: -1 is not a positive number up to 10000"
    assert refused(asked, records_out=0) == "`records_out`: 0 is not a positive whole number"
    assert refused(asked, records_out=10**8) == (
        "`records_out`: 100,000,000 records of 6 features are more than a gigabyte; ask for at most 44,739,242"
    )
    assert refused(asked, seed=-1) == "`seed`: -1 is not between 0 and 2^63 - 1"
    assert refused(asked, delta=0.1).startswith("`delta`: 0.1 is not between 0 and 1/n = 0.005 for 200 records")
    wide = from_arrays(np.zeros((9, 8193), np.uint8), np.arange(9) % 3)
    assert refused(asked, wide, delta=1e-3) == (
        "`dataset`: takes at most 8192 features, since it releases their number squared; records has 8193: make tickets by"
        " dpltm generate `criterion` dp-train"
    )


def test_records_declared_public_are_no_private_ones() -> None:
    mine, ledger = records(1), Ledger()
    ledger.declare_public(mine, "tickets")
    assert "declared public" in refused(asked(mine, ledger).made)
    assert [entry.kind for entry in ledger.entries] == ["public"]


def test_a_test_split_that_is_protected_is_not_measured_on() -> None:
    """In either order: a release from records that are then scored on, and the other way round."""
    whole = records(1, 400)
    x, y, facts = *arrays_of(whole.train), {"classes": 3, "name": "records1"}
    ledger, cut = Ledger(), from_arrays(x, y, test=0.2, **facts)
    asked(whole, ledger).made()
    assert "is protected by a release on record" in refused(asked(cut, ledger, epsilon=2.0).made)
    other = Ledger()
    asked(cut, other).made()
    assert "was declared apart from the people" in refused(asked(whole, other, epsilon=2.0).made)
    assert len(other.entries) == 2


def test_they_pass_for_no_other_records() -> None:
    made = asked().made().dataset
    assert refused(asked, made) == (
        "`dataset`: records of synthetic records1 are synthetic already, and cost nothing more; name the private ones"
    )
    (note,) = feature_notes(made, 1e-4)
    assert note.startswith("records of synthetic records1 are synthetic: post-processing of a release from records1")


def test_nothing_certifies_more_than_the_release() -> None:
    """A tiny budget: the score is chance, and the figure holds."""
    wanted = asked(records(1, test=60), epsilon=0.01)
    made = wanted.scored(wanted.made())
    assert made.privacy.certified.epsilon <= 0.01
    assert made.score is not None
    assert math.isfinite(made.score.accuracy)


def test_a_file_of_them_brings_the_release_and_public_facts(tmp_path: Path) -> None:
    made, path = asked().made(), tmp_path / "made.npz"
    write_synthetic(path, made)
    found = load(str(path))
    assert np.array_equal(arrays_of(found.train).x, made.x)
    assert (found.lineage, found.synthetic) == (made.lineage, True)
    assert (found.bounds, found.classes) == (made.dataset.bounds, made.dataset.classes)
    assert (found.records_origin, found.classes_origin) == ("described", "described")  # of nobody's: no note is due
    assert load(str(path), bounds=(0, 1)).bounds == (0, 1)
    part = load(str(path), subset="0.0:0.9")
    assert (part.lineage, part.synthetic) == (made.lineage, True)
    assert refused(write_synthetic, tmp_path / "made.csv", made, kind=ArtifactError) == (
        f"`out`: {tmp_path / 'made.csv'} is no .npz; name it made.npz"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lineage": np.zeros(3)}, "its lineage is not JSON in bytes"),
        ({"lineage": np.frombuffer(b"[" * 10_000, np.uint8)}, "its lineage is damaged"),
        ({"lineage": np.frombuffer(b"\xff", np.uint8)}, "its lineage is damaged"),
        ({"lineage": np.frombuffer(b'{"entries": [], "heads": []}', np.uint8)}, "without the release"),
        ({"bounds": np.array([1.0, 0.0])}, "bounds and classes of synthetic records are damaged"),
        ({"bounds": np.array([0.0, np.inf])}, "bounds and classes of synthetic records are damaged"),
        ({"classes": np.array(1)}, "bounds and classes of synthetic records are damaged"),
        ({"synthetic_origin": np.zeros(3, np.uint8)}, "written by dpltm before 0.3"),
    ],
)
def test_a_damaged_file_is_not_read(tmp_path: Path, changes: dict[str, np.ndarray], message: str) -> None:
    """A lineage that cannot be read is never passed over: that would hide a release."""
    path = tmp_path / "made.npz"
    write_synthetic(path, asked().made())
    with np.load(path) as stored:
        np.savez(path, **{**stored, **changes})
    assert message in refused(load, str(path))


def test_two_releases_of_one_plan_share_no_noise() -> None:
    one, other = (asked(epsilon=5.0).made() for _ in range(2))
    assert not np.array_equal(one.x, other.x)
