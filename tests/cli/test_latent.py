"""dpltm latent epsilon at the terminal: notes and refusals name flags. What it says is in the recorded transcripts."""

import json

import pytest

from dpltm.cli.main import run


def test_notes_name_flags(capsys):
    assert run(["latent", "epsilon", "--protocol", "oue", "--bits", "10", "--epsilon", "2", "--json"]) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert any("a single 1 (--one-hot)" in note for note in notes)
    assert any("its --label-epsilon adds" in note for note in notes)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--bits is missing"),
        (("--bits", "10", "--certified", "3"), "--epsilon is missing: what uer shall claim; --alpha is found for it"),
        (("--bits", "10", "--protocol", "ue", "--epsilon", "3", "--label-epsilon", "0"), "--label-epsilon: 0 is not"),
    ],
)
def test_refusals_name_flags(arguments, said, capsys):
    assert run(["latent", "epsilon", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {said}")
    assert len(error.splitlines()) == 1
