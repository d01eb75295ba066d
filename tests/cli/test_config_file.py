"""--config: a TOML file fills any option, flags override it, and a wrong file gets one line."""

import pytest

from commands import PRIVATE

TRAIN = "train pub@1 --config c.toml"


@pytest.fixture
def config(cwd):
    return (cwd / "c.toml").write_text


def test_fills_and_is_overridden(cli, config):
    """Whether a mark of byte order stands in front or not."""
    config('\ufeffdataset = "digits"\nsubset = "0.5:1.0"\nsteps = 7\nnoise-multiplier = 3\nclip_norm = 0.5\n')
    filled = cli(f"{TRAIN} --dry-run --json").json
    assert (filled["steps"], filled["noise_multiplier"], filled["filter"]) == (7, 3.0, "clip(C=0.5)")
    overridden = cli(f"{TRAIN} --dry-run --json --steps 2 --clip-norm 2").json
    assert (overridden["steps"], overridden["noise_multiplier"], overridden["filter"]) == (2, 3.0, "clip(C=2)")


def test_positional_argument_and_switch_in_the_table_of_the_command(cli, config):
    config('[train]\nticket = "pub"\ndense = true\nnoise-multiplier = 3\nsteps = 2\n[generate]\nrounds = "many"\n')
    body = cli(f"train {PRIVATE} --config c.toml --dry-run --json").json
    assert (body["ticket_set"], body["round"], body["steps"]) == ("pub", 0, 2)


def test_lists_stand_for_numbers_with_commas(cli, config):
    config("prune = [0.5, 0.25]\nbounds = [0, 16]\n")
    options = "--model mlp:8 --rounds 1 --iterations 1 --provenance public --out new"
    body = cli(f"generate --config c.toml {options} --json").json
    assert body["tickets"][1]["density"] == (512 / 2 + 80 * 3 / 4) / 592


@pytest.mark.parametrize(
    ("text", "culprit"),
    [
        ("batch-sise = 1", "--config c.toml: unknown key 'batch-sise' for train; did you mean batch-size?"),
        ("qqqq = 1", "--config c.toml: unknown key 'qqqq' for train"),
        ('steps = "3"', "--config c.toml: --steps: '3' is not a whole number"),
        ("steps = true", "--config c.toml: --steps: True is not a whole number"),
        ("noise-multiplier = [1]", "--config c.toml: --noise-multiplier: a value of type list is not a number"),
        ("epsilon = -1", "--config c.toml: --epsilon: -1 is not a positive number"),
        ("train = 1\n[select]", "--config c.toml: train "),
        ("steps = ", "--config c.toml: not valid TOML: "),
        ("\x00", "--config c.toml: not valid TOML: "),
        ("steps = " + "[" * 9999, "--config c.toml: not valid TOML: "),
    ],
)
def test_bad_files(refused, config, text, culprit):
    config(text)
    assert refused(TRAIN, PRIVATE).startswith(culprit)
