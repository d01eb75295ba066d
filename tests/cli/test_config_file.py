"""--config: a TOML file fills any option, flags override it, and a wrong file gets one line."""

from __future__ import annotations

import os

import pytest

PRIVATE = ("--dataset", "digits", "--subset", "0.5:1.0")
TRAIN = ("train", "pub@1", "--config", "c.toml")


@pytest.fixture
def config(cwd):
    """Writes c.toml."""
    return (cwd / "c.toml").write_text


def test_fills_and_is_overridden(cli, config):
    config('dataset = "digits"\nsubset = "0.5:1.0"\nsteps = 7\nnoise-multiplier = 3\nclip_norm = 0.5\n')
    filled = cli(*TRAIN, "--dry-run", "--json").json
    assert (filled["steps"], filled["noise_multiplier"], filled["filter"]) == (7, 3.0, "clip(C=0.5)")
    overridden = cli(*TRAIN, "--dry-run", "--json", "--steps", "2", "--clip-norm", "2").json
    assert (overridden["steps"], overridden["noise_multiplier"], overridden["filter"]) == (2, 3.0, "clip(C=2)")


def test_positional_argument_and_switch_in_the_table_of_the_command(cli, config):
    config('[train]\nticket = "pub"\ndense = true\nnoise-multiplier = 3\nsteps = 2\n[generate]\nrounds = "many"\n')
    body = cli("train", *PRIVATE, "--config", "c.toml", "--dry-run", "--json").json
    assert (body["ticket_set"], body["round"], body["steps"]) == ("pub", 0, 2)


def test_lists_stand_for_numbers_with_commas(cli, config):
    config("prune = [0.5, 0.25]\nbounds = [0, 16]\n")
    options = ("--model", "mlp:8", "--rounds", "1", "--iterations", "1", "--provenance", "public", "--out", "new")
    body = cli("generate", "--config", "c.toml", *options, "--json").json
    assert body["tickets"][1]["density"] == (512 / 2 + 80 * 3 / 4) / 592


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batch-sise = 1", "--config c.toml: unknown key 'batch-sise' for train; did you mean batch-size?"),
        ("qqqq = 1", "--config c.toml: unknown key 'qqqq' for train"),
        ('steps = "3"', "--config c.toml: steps = '3' must be of type int"),
        ("steps = 3.0", "--config c.toml: steps = 3.0 must be of type int"),
        ("steps = true", "--config c.toml: steps = True must be of type int"),
        ("epsilon = true", "--config c.toml: epsilon = True must be of type float"),
        ("dense = 1", "--config c.toml: dense = 1 must be of type bool"),
        ("noise-multiplier = [1]", "--config c.toml: noise-multiplier = [1] must be of type float"),
        ("epsilon = -1", "--epsilon: -1 is not a positive number up to 10000"),
        ("train = 1\n[select]", "--config c.toml: train must be a table, as in [train]"),
    ],
)
def test_bad_keys_and_values(refused, config, text, message):
    config(text)
    assert refused(*TRAIN, *PRIVATE) == message


@pytest.mark.parametrize(
    "data", [b"steps = ", b"steps = 1\nsteps = 2", b"\x00", b"\xff\xfe", b"steps = " + b"[" * 9999]
)
def test_not_toml(refused, cwd, data):
    (cwd / "c.toml").write_bytes(data)
    assert refused(*TRAIN).startswith("--config c.toml: not valid TOML: ")


def test_a_pipe_is_no_file_and_nobody_waits_for_it(refused, cwd):
    os.mkfifo(cwd / "c.toml")
    assert refused(*TRAIN) == "--config c.toml: is not a plain file"
