"""--config: a TOML file fills any option, flags override it, and a wrong file gets one line."""

from __future__ import annotations

import pytest

PRIVATE = ("--dataset", "digits", "--subset", "0.5:1.0")


@pytest.fixture
def config(cwd):
    """Writes c.toml."""

    def write(text):
        (cwd / "c.toml").write_text(text)

    return write


def test_fills_and_is_overridden(cli, config):
    config('dataset = "digits"\nsubset = "0.5:1.0"\nsteps = 7\nnoise-multiplier = 3\nclip_norm = 0.5\n')
    options = ("train", "pub@1", "--config", "c.toml", "--dry-run", "--json")
    filled = cli(*options).json
    assert (filled["steps"], filled["noise_multiplier"], filled["filter"]) == (7, 3.0, "clip(C=0.5)")
    overridden = cli(*options, "--steps", "2", "--clip-norm", "2").json
    assert (overridden["steps"], overridden["noise_multiplier"], overridden["filter"]) == (2, 3.0, "clip(C=2)")


def test_positional_argument_and_switch(cli, config):
    config('ticket = "pub"\ndense = true\nepsilon = 1\nsteps = 2\n')
    body = cli("train", *PRIVATE, "--config", "c.toml", "--dry-run", "--json").json
    assert (body["ticket_set"], body["round"]) == ("pub", 0)


def test_only_the_table_of_the_command_is_read(cli, config):
    config('[train]\nsteps = 4\nnoise-multiplier = 3\n[generate]\nrounds = "many"\n')
    assert cli("train", "pub@1", *PRIVATE, "--config", "c.toml", "--dry-run", "--json").json["steps"] == 4


def test_lists_stand_for_numbers_with_commas(cli, config):
    config("prune = [0.5, 0.25]\nbounds = [0, 16]\n")
    options = ("--model", "mlp:8", "--rounds", "1", "--iterations", "1", "--provenance", "public", "--out", "new")
    body = cli("generate", "--config", "c.toml", *options, "--json").json
    assert body["tickets"][1]["density"] == (512 / 2 + 80 * 3 / 4) / 592


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nois = 1", "--config c.toml: unknown key 'nois' for train; did you mean noise?"),
        ("batch-sise = 1", "--config c.toml: unknown key 'batch-sise' for train; did you mean batch-size?"),
        ("qqqq = 1", "--config c.toml: unknown key 'qqqq' for train"),
        ('steps = "3"', "--config c.toml: steps = '3' must be of type int"),
        ("steps = 3.0", "--config c.toml: steps = 3.0 must be of type int"),
        ("steps = true", "--config c.toml: steps = True must be of type int"),
        ("epsilon = true", "--config c.toml: epsilon = True must be of type float"),
        ("dense = 1", "--config c.toml: dense = 1 must be of type bool"),
        ("noise-multiplier = [1]", "--config c.toml: noise-multiplier = [1] must be of type float"),
        (
            'filter = "clamp"',
            "--filter: 'clamp' is not one of clip, per-layer, tanh, tanh-clip, radial-tanh, auto, normalize, sigmoid",
        ),
        ("epsilon = -1", "--epsilon: -1 is not a positive number up to 10000"),
        ("train = 1\n[select]", "--config c.toml: train must be a table, as in [train]"),
    ],
)
def test_bad_keys_and_values(refused, config, text, message):
    config(text)
    assert refused("train", "pub@1", *PRIVATE, "--config", "c.toml") == message


@pytest.mark.parametrize("text", ["steps = ", "steps = 1\nsteps = 2", "\x00"])
def test_not_toml(refused, config, text):
    config(text)
    assert refused("train", "pub@1", "--config", "c.toml").startswith("--config c.toml: not valid TOML: ")


def test_not_text(refused, cwd):
    (cwd / "c.toml").write_bytes(b"\xff\xfe")
    assert refused("train", "pub@1", "--config", "c.toml").startswith("--config c.toml: not valid TOML: ")


def test_no_such_file(refused):
    assert refused("train", "--config", "no.toml") == ("--config no.toml: cannot be read: No such file or directory")
