"""dpltm latent epsilon: claims beside what holds."""

import json
import math

import pytest

from dpltm.cli.main import run


def answer(capsys, *arguments):
    assert run(["latent", "epsilon", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_figure_of_the_paper_and_what_it_is_worth(capsys):
    body = answer(capsys, "--protocol", "uer", "--alpha", "7", "--bits", "92160", "--epsilon", "0.5")
    assert body["nominal"] == 0.5
    assert body["certified"] == pytest.approx(262983.6, abs=0.05)


def test_people_see_both(capsys):
    assert run(["latent", "epsilon", "--alpha", "7", "--bits", "92160", "--epsilon", "0.5"]) == 0
    shown = capsys.readouterr().out
    assert "certified epsilon = 262983.7 (replace-one, unit record, delta = 0)" in shown
    assert shown.index("certified") < shown.index("nominal epsilon = 0.5 (claimed by: uer)")


@pytest.mark.parametrize(("arguments", "certified"), [(("moue-hs", "--alpha", "7"), 0.4375), (("rappor",), 0.5)])
def test_what_holds_as_claimed(arguments, certified, capsys):
    body = answer(capsys, "--protocol", *arguments, "--bits", "92160", "--epsilon", "0.5")
    assert body["certified"] == pytest.approx(certified, rel=1e-6)


def test_one_hot_strings_are_worth_what_is_claimed_for_them(capsys):
    of_any = answer(capsys, "--protocol", "oue", "--bits", "10", "--epsilon", "2")
    one_hot = answer(capsys, "--protocol", "oue", "--bits", "10", "--epsilon", "2", "--one-hot")
    assert one_hot["certified"] == pytest.approx(2)
    assert of_any["certified"] == pytest.approx(10 * -math.log(2 / (1 + math.exp(2)) * 1.0), rel=1e-9)
    assert any("--one-hot" in note for note in of_any["notes"])


def test_labels_and_copies_add_up(capsys):
    body = answer(
        capsys, "--protocol", "rappor", "--bits", "30", "--epsilon", "1", "--label-epsilon", "2", "--copies", "3"
    )
    assert body["certified"] == pytest.approx(3 * (1 + 2))  # as three encodings in one ledger
    assert body["nominal"] == 3


@pytest.mark.parametrize(
    "arguments",
    [
        ("rappor",),
        ("ue",),
        ("oue", "--one-hot"),
        ("moue", "--alpha", "3"),
        ("moue-hs", "--alpha", "7"),
        ("uer", "--epsilon", "1"),
    ],
)
@pytest.mark.parametrize("wanted", [4.0, 30.0])
def test_the_setting_that_certifies_what_is_wanted(arguments, wanted, capsys):
    found = answer(capsys, "--protocol", *arguments, "--bits", "40", "--certified", str(wanted))
    assert wanted * (1 - 1e-6) <= found["certified"] <= wanted
    given = ["--epsilon", str(found["epsilon"])] + (["--alpha", str(found["alpha"])] if found["alpha"] else [])
    flags = ["--one-hot"] if "--one-hot" in arguments else []
    again = answer(capsys, "--protocol", arguments[0], "--bits", "40", *given, *flags)
    assert again["certified"] == pytest.approx(found["certified"], rel=1e-9)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--bits is missing"),
        (("--bits", "10", "--alpha", "7"), "--epsilon is missing: what the protocol claims, such as 0.5"),
        (("--bits", "0", "--alpha", "7", "--epsilon", "1"), "--bits: 0 is not a whole number from 1 to"),
        (("--bits", "10", "--alpha", "0", "--epsilon", "1"), "--alpha: 0 is not a positive number"),
        (("--bits", "10", "--alpha", "7", "--epsilon", "-1"), "--epsilon: -1 is not a positive number"),
        (("--bits", "10", "--epsilon", "1"), "--alpha is missing: uer needs one, such as 7"),
        (("--bits", "10", "--protocol", "ue", "--alpha", "7", "--epsilon", "1"), "--alpha: ue has none; leave it out"),
        (("--bits", "10", "--certified", "3"), "--epsilon is missing: what uer shall claim; --alpha is found for it"),
        (
            ("--bits", "92160", "--certified", "1", "--epsilon", "5"),
            "--certified: no alpha from 1 to 1e+06 certifies 1; the least is 2.5",
        ),
        (
            ("--bits", "10", "--protocol", "ue", "--certified", "3", "--epsilon", "5"),
            "--epsilon, --certified: one of them decides; leave one out",
        ),
        (
            ("--bits", "10", "--protocol", "ue", "--certified", "3", "--label-epsilon", "3"),
            "--certified: 3 is all spent on the label",
        ),
        (("--bits", "10", "--protocol", "ue", "--epsilon", "3", "--copies", "0"), "--copies: 0 is not a whole number"),
        (("--bits", "10", "--protocol", "ue", "--epsilon", "3", "--label-epsilon", "0"), "--label-epsilon: 0 is not"),
    ],
)
def test_bad_input(arguments, said, capsys):
    code = run(["latent", "epsilon", *arguments])
    error = capsys.readouterr().err
    assert code in (1, 2)
    assert said in error
    assert len(error.splitlines()) == 1
