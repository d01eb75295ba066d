"""A ledger from elsewhere names public records that nobody here has met, until they are loaded."""

import numpy as np
import pytest

from dpltm.data import load
from dpltm.errors import InputError
from dpltm.privacy.events import GuaranteeEvent, ProvenanceEvent
from dpltm.privacy.lineage import check_not_public
from dpltm.privacy.mechanisms import Guarantee
from dpltm.tickets.identity import UserRegistry, load_key
from dpltm.tickets.ledger_file import open_ledger


def test_records_that_a_ledger_has_down_as_public_are_met_after_it_was_read(tmp_path, monkeypatch):
    np.savez(tmp_path / "t.npz", x_train=np.arange(60).reshape(-1, 2), y_train=np.arange(30) % 2)
    dataset = load(str(tmp_path / "t.npz"), bounds=(0, 60))
    monkeypatch.setenv("DPLTM_KEY", str(tmp_path / "there"))
    registry = UserRegistry()
    said = ProvenanceEvent(registry.reference(dataset, public=True), "public", "s", time="t")
    open_ledger(tmp_path / "l.jsonl").append(said)
    monkeypatch.setenv("DPLTM_KEY", str(tmp_path / "here"))
    load_key()
    before = open_ledger(tmp_path / "l.jsonl").events
    check_not_public(before, registry.reference(load("digits")), registry)
    records = registry.reference(dataset)
    assert not before[0].dataset.may_overlap(records)  # as it was read
    with pytest.raises(InputError, match="the ledger has t down as public, and t shares records with it"):
        check_not_public(before, records, registry)
    check_not_public((GuaranteeEvent(records, Guarantee(0.1), "n", time="t"),), records, registry)
