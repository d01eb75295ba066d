"""The examples run as they stand."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from child_processes import PATIENCE
from dpltm.cli.main import run
from dpltm.cli.options import read_section, resolve
from dpltm.options.train import TrainRequest
from dpltm.stages.train_checks import check_request

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_program_keeps_its_budget():
    command = [sys.executable, str(EXAMPLES / "three_stages.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    spent = re.search(r"certified epsilon (\S+) at delta 1e-05", done.stdout)
    assert spent is not None
    assert 2.9 < float(spent[1]) <= 3.0


def test_the_filter_tames_what_explodes():
    """Without it, the second forward pass overflows by more than a hundred orders of magnitude: no rounding decides that.

    With it, 48 seeds gave 97.6 to 99.4 %; chance is 50 %.
    """
    command = [sys.executable, str(EXAMPLES / "exploding_gradients.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    for line in lines:
        found = re.fullmatch(r"seed \d: plain SGD (.*), SGD on tanh-filtered gradients accuracy (\S+)%", line)
        assert found is not None, line
        assert found[1] == "diverged at step 2"
        assert float(found[2]) > 90


def test_a_recurrent_network_learns_within_its_budget():
    command = [sys.executable, str(EXAMPLES / "private_lstm.py"), "gru"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    accuracy, spent = re.search(r"accuracy (\S+)%", done.stdout), re.search(r"epsilon (\S+) at", done.stdout)
    assert accuracy is not None
    assert float(accuracy[1]) > 40  # chance is 10
    assert spent is not None
    assert 2.9 < float(spent[1]) <= 3.0


@pytest.mark.parametrize("name", ["digits", "mnist_ticket_at_0.2"])
def test_configuration_is_accepted(name, tmp_path, monkeypatch, capsys, request):
    if name != "digits":
        request.getfixturevalue("data_home")
    monkeypatch.chdir(tmp_path)
    assert run(["run", "--config", str(EXAMPLES / f"{name}.toml"), "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["dry_run"] is True
    assert list(tmp_path.iterdir()) == []


def test_activities_from_signals(data_home, tmp_path, capsys):
    """The recipe keeps its budget and is far above the 53 % of a network on the signals themselves."""
    assert data_home
    arguments = ["train", "--config", str(EXAMPLES / "har_at_0.2.toml"), "--out", str(tmp_path / "har.run"), "--json"]
    assert run(arguments) == 0
    body = json.loads(capsys.readouterr().out)
    assert 0.199 < body["privacy"]["certified"]["epsilon"] <= 0.2
    assert body["accuracy"] > 0.75  # five seeds gave 91.3 with a deviation of 2


def test_digits_from_features_is_a_recipe_that_train_takes():
    """Its features take minutes, so only the options are looked at here."""
    section = read_section(EXAMPLES / "mnist_at_0.2.toml", "train")
    options = resolve(TrainRequest, {}, section)
    assert (options.features, options.components, options.epsilon, options.lr) == ("scatter", 300, 0.2, 2.5)
    check_request(options)


def test_a_recipe_of_one_stage_is_not_for_all_three(capsys):
    path = EXAMPLES / "mnist_at_0.2.toml"
    assert run(["run", "--config", str(path), "--dry-run"]) == 2
    assert f"set it there, or take dpltm train --config {path}" in capsys.readouterr().err


def test_every_recipe_is_tried_here():
    assert {path.name for path in EXAMPLES.glob("*.toml")} == {
        "digits.toml",
        "har_at_0.2.toml",
        "mnist_at_0.2.toml",
        "mnist_ticket_at_0.2.toml",
    }
