"""References to records in a line, as a file of settings holds them."""

from __future__ import annotations

import pytest

from dpltm.errors import InputError
from dpltm.privacy.event_json import ref_from_text, ref_to_text
from dpltm.privacy.events import UNKNOWN, DatasetRef


@pytest.mark.parametrize("name", ["t", "a name of words", "digits"])
@pytest.mark.parametrize(("cut", "start", "stop"), [("whole", 0, 2**63 - 1), ("values", 5, 10**9), ("places", 3, 719)])
def test_round_trip(name, cut, start, stop):
    ref = DatasetRef(name, "ab" * 16, "01234567", start, stop, cut)
    assert ref_from_text("x", ref_to_text(ref)) == ref
    old = ref_from_text("x", f"{name} {'ab' * 16} 01234567 {start} {stop}")  # as before 0.2
    assert (old.name, old.id, old.cut) == (name, "ab" * 16, "whole" if cut == "whole" else "positions")
    assert old.content == UNKNOWN


@pytest.mark.parametrize("text", ["", "a b c", "n i k whole 0 1", "n i k values 0 x", "n i k values 5 4", "n i k 5 4"])
def test_no_reference(text):
    with pytest.raises(InputError) as caught:
        ref_from_text("x", text)
    assert str(caught.value) == "`x`: not as dpltm tune writes it: NAME ID KEY CUT START STOP"
