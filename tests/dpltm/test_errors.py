"""What errors say, in Python and at the terminal."""

import pytest

from dpltm.errors import InputError, as_flags, in_flags


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("`batch_size`: 0 is too few", "--batch-size: 0 is too few"),
        ("`score`, `lam`: one of them", "--score, --lambda: one of them"),
        ("no `Marks`", "no `Marks`"),
    ],
)
def test_arguments_are_flags_at_the_terminal(text, shown):
    assert in_flags(text) == shown


def test_notes_of_an_answer_wherever_they_stand():
    body = {
        "name": "`epochs`",
        "privacy": {"nominal": None, "notes": ["see `records`", "plain"]},
        "arms": [{"notes": ("`lam` is 2",), "rows": [1, 2]}],
    }
    assert as_flags(body) == {
        "name": "`epochs`",
        "privacy": {"nominal": None, "notes": ["see --records", "plain"]},
        "arms": [{"notes": ["--lambda is 2"], "rows": [1, 2]}],
    }


def test_a_field_its_value_what_was_expected_and_the_fix():
    error = InputError("lr", -1.0, "a positive number", "take a smaller one")
    assert (str(error), error.option) == ("`lr`: -1 is not a positive number; take a smaller one", "lr")
    assert InputError("records hold no labels").option is None
