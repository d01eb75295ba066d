"""What is gone since 0.2 is refused by its name, with what to do instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpltm.options.gone import GONE

ROWS = [
    (
        "latent epsilon --certified 4",
        "--certified is gone since 0.3: give --epsilon; the answer says what it certifies",
    ),
    ("latent train s --fresh", "--fresh is gone since 0.3: leave it out; an interrupted training begins anew"),
    ("latent train s --prune 0.2", "--prune is gone since 0.3: leave it out; tickets are made by dpltm generate"),
    ("latent train s --rounds 2", "--rounds is gone since 0.3: leave it out; tickets are made by dpltm generate"),
]


@pytest.mark.parametrize(("command", "message"), ROWS)
def test_what_is_gone_is_refused_by_its_name(cli, tree, command, message):
    before = tree()
    done = cli(command)
    assert (done.code, done.out, done.err) == (2, "", f"error: {message}\n")
    assert tree() == before


def test_keys_of_a_configuration_file_are_refused_as_well(refused):
    Path("c.toml").write_text("[train]\nrounds = 2\n")
    assert refused("latent train s --messages m --out r --config c.toml").startswith(
        "--config c.toml: rounds is gone since 0.3: leave it out; tickets are made by dpltm generate"
    )


def test_every_row_is_tested():
    assert {message.partition(": ")[2] for _, message in ROWS} == set(GONE.values())
