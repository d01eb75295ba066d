"""The public face: arrays in, values out, one ledger; nothing heavy before a name is asked for, and no file at all."""

from __future__ import annotations

import doctest
import importlib.util
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import dpltm
from dpltm import api
from dpltm import records as data
from dpltm.errors import DpltmError
from dpltm.privacy.ledger import of_process
from refusals import refused

TINY = {"model": "mlp:8", "rounds": 2, "prune": (0.3,), "iterations": 5, "batch_size": 32}
DRAW = {"eps1": 0.5, "score": "additive"}


def arrays(seed: int, count: int = 200) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    return draw.integers(0, 256, (count, 6), dtype=np.uint8), np.arange(count) % 3


@pytest.fixture(scope="module")
def tickets():
    return dpltm.generate(*arrays(1), provenance="public", ledger=dpltm.Ledger(), **TINY)


def test_the_examples_in_docstrings():
    """Those of one module run in the order in which they stand, and share their names."""
    finder, runner, shown = doctest.DocTestFinder(), doctest.DocTestRunner(optionflags=doctest.ELLIPSIS), set()
    for _, name, _ in pkgutil.walk_packages(dpltm.__path__, "dpltm."):
        spec = importlib.util.find_spec(name)
        if ">>> " not in Path(spec.origin).read_text(encoding="utf-8"):
            continue
        module = importlib.import_module(name)
        names = dict(vars(module))
        tests = [test for test in finder.find(module, name) if test.examples]
        for test in sorted(tests, key=lambda test: test.lineno):
            test.globs = names  # not a copy: later ones go on with it
            runner.run(test, clear_globs=False)
            shown.add(test.name.rpartition(".")[2])
    assert runner.failures == 0
    assert set(api.__all__) <= shown


def test_names_are_imported_when_they_are_asked_for():
    script = """
import sys, dpltm
heavy = {"torch", "sklearn", "scipy", "dp_accounting"}
assert {"generate", "select", "Ledger", "PrivateLoop"} <= set(dir(dpltm))
assert not heavy & set(sys.modules), heavy & set(sys.modules)
assert {"records", "tickets", "privacy"} <= set(dir(dpltm))
assert {"load", "save", "open_ledger", "store"} <= set(dir(dpltm.tickets))
assert "accountant" in dir(dpltm.privacy)
assert dpltm.records.load("digits").classes == 10
assert dpltm.privacy.accountant.epsilon
assert dpltm.generate.__module__ == "dpltm.api"
assert "torch" in sys.modules
try:
    dpltm.genrate
except AttributeError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("module 'dpltm' has no attribute 'genrate'\n", 0), done.stderr


def kinds(ledger: dpltm.Ledger) -> list[str]:
    """What a ledger holds: the kind of each entry, and of releases the mechanism."""
    return [entry.kind if entry.kind != "release" else type(entry.mechanisms[0]).__name__ for entry in ledger.entries]


def test_one_ledger_of_the_process_pays_for_all(tickets):
    ledger = of_process()
    winner = dpltm.select(tickets, *arrays(0), **DRAW)
    assert kinds(ledger) == ["Selection"]
    again = dpltm.select(winner, *arrays(0), **DRAW)
    assert kinds(ledger) == ["Selection", "Selection"]
    assert {entry.id for entry in ledger.entries} < {entry.id for entry in again.lineage.entries}
    assert again.privacy.certified.epsilon > winner.privacy.certified.epsilon


def test_a_ledger_that_is_named_is_the_one(tickets):
    ledger = dpltm.Ledger()
    winner = dpltm.select(tickets, *arrays(0), ledger=ledger, **DRAW)
    assert (kinds(of_process()), kinds(ledger)) == ([], ["Selection"])
    # the draw goes along wherever the set does
    run = dpltm.train(tickets, *arrays(0), round=1, noise_multiplier=1.0, steps=2, ledger=dpltm.Ledger())
    assert set(winner.lineage.entries) <= set(run.lineage.entries)
    assert run.privacy.certified.epsilon > winner.privacy.certified.epsilon


def test_features_in_front_and_nothing_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    ledger = dpltm.Ledger()
    tickets = dpltm.generate(*arrays(1), provenance="public", features="unit:2", ledger=ledger, **TINY)
    assert tickets.feature_map.text == "unit:2"
    dpltm.select(tickets, *arrays(0), ledger=ledger, **DRAW)
    assert kinds(ledger) == ["public", "Selection"]
    assert os.listdir(tmp_path) == []


def test_the_rule_for_public_accuracies_takes_no_records(tickets):
    winner = dpltm.select(tickets, rule="smallest-within", tolerance=1, max_density=1)
    assert (winner.round, of_process().entries) == (2, ())
    with pytest.raises(DpltmError, match="`x`: smallest-within reads the public accuracies in the set and no records"):
        dpltm.select(tickets, *arrays(0), rule="smallest-within")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"provenence": "public"}, "`provenence`: no such option; did you mean `provenance`?"),
        ({"provenance": "public", "dataset": "digits"}, "`dataset`: no such option; there are "),
        ({}, "`provenance` is missing: say public if these records are public, or private"),
    ],
)
def test_what_generate_refuses(given, message):
    ledger = dpltm.Ledger()
    assert refused(dpltm.generate, *arrays(0), ledger=ledger, **{**TINY, **given}).startswith(message)
    assert ledger.entries == ()


def test_records_that_are_refused(tickets):
    """Public facts of arrays that are not whole numbers of bytes are said."""
    x, y = arrays(0)
    for given, message in (
        ((x,), "`y` is missing: the labels that go with `x`"),
        ((data.from_arrays(x, y), y), "`y`: records is a dataset, which says so itself; leave `y` out"),
        ((), "`x` is missing: the private records to draw on"),
    ):
        assert refused(dpltm.select, tickets, *given, **DRAW).startswith(message)
    assert of_process().entries == ()
    facts = {"bounds": (0.0, 1.0), "classes": 4, "records": 190, "test": (arrays(2)[0] / 255.0, y)}
    assert dpltm.generate(x / 255.0, y, provenance="private", **facts, **TINY).body.spec.classes == 4
