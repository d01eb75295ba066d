"""Bugs that were once there, each with the circumstances that showed it; marked ``xfail`` while it is still there.

``xfail_strict`` is on: a fix turns a marked test red until its mark is removed.
"""

from __future__ import annotations

import json
import resource
from pathlib import Path

import numpy as np
import pytest

from dpltm.cli.console import Console
from dpltm.errors import ArtifactError
from dpltm.options.train import TrainRequest
from dpltm.tickets.workbench.train import train

PUBLIC = ("--dataset", "digits", "--subset", "0.0:0.5")
PRIVATE = ("--dataset", "digits", "--subset", "0.5:1.0")
TINY = ("--model", "mlp:8", "--rounds", "2", "--prune", "0.3", "--iterations", "5", "--batch-size", "32")


class SecondRun(Console):
    """A person who starts a second run on the same ledger while the first one calibrates its noise."""

    def __init__(self, second):
        super().__init__(quiet=True)
        self.second, self.answer = second, None

    def say(self, text):
        if text.startswith("calibrating") and self.answer is None:
            self.answer = train(self.second, Console(quiet=True))


@pytest.mark.usefixtures("cwd")
def test_two_runs_at_once_do_not_overspend(events):
    def options(out):
        return TrainRequest(
            dataset="digits", subset="0.5:1.0", ticket="pub@1", epsilon=1.0, steps=3, out=out, ledger="l.jsonl"
        )

    with pytest.raises(
        ArtifactError, match=r"^l\.jsonl: another process has written to the ledger meanwhile; run again$"
    ):
        train(options("late"), SecondRun(options("early")))
    assert Path("early").is_dir()
    assert not Path("late").exists()
    assert len(events("l.jsonl")) == 1


def test_relations_are_not_mixed_by_noise_multiplier(cli, refused, by_places):
    options = ("--steps", "1", "--noise-multiplier", "9")
    cli("train", "pub@2", *by_places, *options, "--quiet")
    assert refused("train", "pub@1", *by_places, *options, "--adjacency", "replace-one", "--out", "r") == (
        "adjacency: the ledger holds events under add-remove and under replace-one, which have no common guarantee; use one"
        " relation throughout, or separate ledgers"
    )


@pytest.mark.parametrize(
    "options",
    [
        ("--steps", "2", "--noise-multiplier", "1e200"),
        ("--epochs", "1e300", "--noise-multiplier", "1", "--dry-run"),
        ("--steps", "2", "--epsilon", "1e300"),
        ("--steps", "2", "--epsilon", "1", "--out", "x" * 300),
        ("--steps", "2", "--epsilon", "1", "--dataset", "x" * 300 + ".npz"),
    ],
    ids=["noise", "epochs", "epsilon", "out", "dataset"],
)
def test_values_beyond_reason_are_bad_input(refused, options):
    assert "internal error" not in refused("train", "pub@1", *PRIVATE, *options)


def test_a_seed_beyond_reason(refused):
    message = refused("train", "--dense", *PRIVATE, "--steps", "2", "--epsilon", "1", "--seed", "99999999999999999999")
    assert message == "--seed: 99999999999999999999 is not between 0 and 2^63 - 1"


def test_a_very_large_eps1(cli):
    body = cli("select", "pub", *PRIVATE, "--eps1", "1000", "--json").json
    assert 999 < body["privacy"]["certified"]["epsilon"] <= 1000


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--no-pre-clip", "--tanh-scale", "1e308"), "--tanh-scale: "),
        (("--tanh-range", "1e308"), "--tanh-range: "),
    ],
)
def test_a_filter_out_of_range_is_named(refused, options, named):
    message = refused(
        "train", "pub@1", *PRIVATE, "--steps", "2", "--noise-multiplier", "1", "--filter", "tanh", *options
    )
    assert message.startswith(named)


@pytest.mark.parametrize("ledger", ["/proc/none/ledger.jsonl", "broken.jsonl"])
def test_generate_looks_at_the_ledger_first(cwd, refused, ledger):
    (cwd / "broken.jsonl").write_text("hello\n")
    refused("generate", *PUBLIC, *TINY, "--provenance", "public", "--out", "new", "--ledger", ledger)


def test_a_dry_draw_from_a_private_set_is_not_certified(cli):
    options = ("select", "pri", *PRIVATE, "--eps1", "0.1", "--ledger", "l.jsonl", "--json")
    planned, done = cli(*options, "--dry-run").json, cli(*options).json
    assert planned["privacy"]["certified"]["epsilon"] == done["privacy"]["certified"]["epsilon"] == "inf"


def test_a_dry_draw_with_reveal_is_not_certified(cli):
    options = ("select", "pub", *PRIVATE, "--eps1", "0.1", "--reveal", "--dry-run", "--json")
    assert cli(*options).json["privacy"]["certified"]["epsilon"] == "inf"


def test_a_dry_run_of_the_papers_rule_says_so(cli):
    options = ("--rule", "smallest-within", "--tolerance", "1", "--max-density", "1", "--dry-run", "--json")
    assert cli("select", "pub", *options).json.get("dry_run") is True


# --- dpltm run: what could be refused at once is refused after generation, with half a result left behind ---

RUN = """
[generate]
dataset = "digits"
subset = "0.0:0.5"
provenance = "public"
model = "mlp:8"
rounds = 2
prune = [0.3]
iterations = 5
batch-size = 32
[select]
{select}
[train]
dataset = "digits"
subset = "0.5:1.0"
steps = 3
"""


@pytest.mark.parametrize(
    "select",
    ['subset = "0.25:0.75"', 'dataset = "thin.npz"\nsubset = "1.0"', 'dataset = "small.npz"\nsubset = "1.0"'],
    ids=["public records", "other shape", "delta above 1/n"],
)
def test_run_checks_the_records_of_select_first(cwd, refused, select):
    np.savez(cwd / "thin.npz", x_train=np.zeros((40, 5), np.uint8), y_train=np.arange(40) % 10)
    np.savez(cwd / "small.npz", x_train=np.zeros((40, 64), np.uint8), y_train=np.arange(40) % 10)
    (cwd / "c.toml").write_text(RUN.format(select=select))
    refused("run", "--config", "c.toml", "--out", "o", "--delta", "1e-3" if "small" not in select else "0.03")


def test_run_refuses_the_papers_rule_on_private_tickets_first(cwd, refused):
    text = RUN.format(select='rule = "smallest-within"').replace('"0.0:0.5"', '"0.5:1.0"')
    (cwd / "c.toml").write_text(text.replace('"public"', '"private"'))
    refused("run", "--config", "c.toml", "--out", "o")


def test_run_takes_nu_2(cwd, cli):
    (cwd / "c.toml").write_text(RUN.format(select="nu = 2"))
    body = cli("run", "--config", "c.toml", "--out", "o", "--dry-run", "--json").json
    assert body["dry_run"] is True


# --- names ---


@pytest.mark.parametrize("name", ["r[draft]", "r[/b]"])
def test_brackets_in_names(cwd, cli, name):
    (cwd / "r[").mkdir()
    done = cli("train", "pub@1", *PRIVATE, "--steps", "1", "--noise-multiplier", "9", "--out", name)
    assert (done.code, done.err) == (0, "")
    assert f"trained {name}\n" in done.out


def test_a_set_with_an_at_sign_in_its_path(cwd, cli):
    (cwd / "pub").rename(cwd / "me@work")
    cli("select", "me@work", *PRIVATE, "--eps1", "0.1", "--quiet")
    options = ("--steps", "1", "--noise-multiplier", "9", "--dry-run", "--json")
    assert cli("train", "me@work", *PRIVATE, *options).json["ticket_set"] == "me@work"


# --- evaluate ---


def test_a_run_with_a_damaged_model_name(cwd, cli, refused):
    cli("train", "pub@1", *PRIVATE, "--steps", "1", "--noise-multiplier", "9", "--out", "r", "--quiet")
    path = cwd / "r/config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model": 5}))
    assert refused("evaluate", "r", "--dataset", "digits") == (
        "r/config.json: model, features, classes or bounds are missing or wrong"
    )


def test_evaluate_on_records_with_other_classes(cwd, cli, refused):
    cli("train", "pub@1", *PRIVATE, "--steps", "1", "--noise-multiplier", "9", "--out", "r", "--quiet")
    x, y = np.zeros((40, 64), np.uint8), np.arange(40) % 3
    np.savez(cwd / "three.npz", x_train=x, y_train=y, x_test=x + 1, y_test=y)
    assert "10 classes" in refused("evaluate", "r", "--dataset", "three.npz", "--bounds", "0,16")


# --- what is left behind ---


def test_a_dry_run_makes_no_key(cli, monkeypatch, tmp_path):
    monkeypatch.setenv("DPLTM_KEY", str(tmp_path / "key"))
    options = ("--dataset", "digits", *TINY, "--provenance", "public", "--dry-run", "--quiet")
    assert cli("generate", *options).code == 0
    assert not (tmp_path / "key").exists()


@pytest.fixture
def full_disk():
    """A limit on file sizes stands for a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def call(room):
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))

    yield call
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def known(cwd, cli, monkeypatch):
    """A configuration folder of its own, small, in which the digits are known: only a ledger or a set is still to grow."""
    monkeypatch.setenv("DPLTM_KEY", str(cwd.parent / "small/key"))
    assert cli("privacy", "budget", "wide.jsonl", *PRIVATE, "--epsilon", "9", "--quiet").code == 0


@pytest.mark.usefixtures("known")
def test_a_full_disk_leaves_the_ledger_usable(cwd, refused, cli, full_disk):
    full_disk((cwd / "pub/ledger.jsonl").stat().st_size + 100)
    message = refused("select", "pub", *PRIVATE, "--eps1", "0.1")
    full_disk(resource.RLIM_INFINITY)
    assert message.startswith("pub/ledger.jsonl: the ledger cannot be written: ")
    assert message.endswith("; nothing was spent")
    assert cli("select", "pub", *PRIVATE, "--eps1", "0.1", "--quiet").code == 0


@pytest.mark.usefixtures("known")
def test_a_full_disk_while_the_set_is_written(refused, full_disk):
    full_disk(2000)
    message = refused("generate", *PUBLIC, *TINY, "--provenance", "public", "--out", "new")
    full_disk(resource.RLIM_INFINITY)  # before pytest itself writes on, perhaps to a file
    assert "theta0.safetensors: cannot be written: " in message


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_accuracies_of_another_set_are_not_written_over(cwd, refused, kind):
    if kind == "file":
        (cwd / "new.private.json").write_text("precious")
    else:
        (cwd / "new.private.json").mkdir()
    assert refused("generate", *PRIVATE, *TINY, "--provenance", "private", "--out", "new") == (
        "--out: new.private.json exists already; choose another name or remove it first"
    )


@pytest.mark.parametrize(
    "command",
    [
        ("generate", *PUBLIC, *TINY, "--provenance", "public"),
        ("train", "pub@1", *PRIVATE, "--steps", "1", "--noise-multiplier", "9"),
    ],
    ids=lambda command: command[0],
)
def test_no_parents_of_a_folder_that_was_not_made(refused, command):
    refused(*command, "--out", "deep/new", "--ledger", "/proc/none/ledger.jsonl")
