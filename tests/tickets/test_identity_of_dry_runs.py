"""References that nothing is written down of, as a plan makes them, and the real ones that follow in the same process."""

from __future__ import annotations

import numpy as np
import pytest

from dpltm.data import load
from dpltm.tickets.identity import load_key
from refs import reference, resolve, rows_of


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A configuration folder that does not exist yet, and ``d.npz`` beside it."""
    monkeypatch.setenv("DPLTM_KEY", str(tmp_path / "config/key"))
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    np.savez("d.npz", x_train=draw.integers(0, 255, (40, 6)).astype(np.uint8), y_train=np.arange(40) % 2)
    return tmp_path / "config"


def files(home):
    """What is known in the folder, but for the ids of references, which are random."""
    return sorted(path.suffix for path in (home / "key.records").iterdir())


@pytest.mark.parametrize("known", [False, True], ids=["no key yet", "a key"])
def test_what_a_plan_met_is_written_down_by_the_run_that_follows(home, known):
    """``dpltm run`` plans with references that are not kept, and then runs its stages in the same process."""
    if known:
        load_key()
    dataset = load("d.npz")
    planned = reference(dataset, make_key=False)
    assert not (home / "key.records").exists()
    made = reference(dataset)
    assert files(home) == ["", ".rows", ".shares"]
    assert len(rows_of(made)) >= 40
    assert planned.surely_overlaps(made) == known  # under a key that was made up meanwhile nothing can be told


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("known", [False, True], ids=["no key yet", "a key"])
def test_public_records_that_a_plan_met_are_recognised_afterwards(known):
    """They have one name under every key, which a plan without a key must not have taken for itself."""
    if known:
        load_key()
    dataset = load("d.npz")
    reference(dataset, make_key=False)
    public = reference(dataset, public=True)
    assert resolve(public).surely_overlaps(reference(dataset))


def test_a_plan_that_met_public_records_leaves_their_name_to_be_written(home):
    """Another process, which never reads those records, has to know them by it."""
    load_key()
    dataset = load("d.npz")
    reference(dataset, make_key=False)
    public = reference(dataset, public=True)
    assert f"{public.id} " in (home / "key.records/ids").read_text()
