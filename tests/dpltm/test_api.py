"""The public face: arrays in, values out, one ledger; nothing heavy before a name is asked for, and no file at all."""

import doctest
import importlib.util
import inspect
import json
import os
import pkgutil
import subprocess
import sys
from dataclasses import fields
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import dpltm
import dpltm.records
import dpltm.tickets
from dpltm import api
from dpltm import records as data
from dpltm.api import FACTS, as_dataset
from dpltm.errors import BudgetError, DpltmError
from dpltm.options.generate import GenerateOptions
from dpltm.options.select import SelectOptions
from dpltm.options.tickets import TransferOptions
from dpltm.options.train import TrainOptions
from dpltm.options.tune import TuneOptions
from dpltm.privacy.account import Account
from dpltm.privacy.entry import lineage_from_json
from dpltm.privacy.ledger import Ledger, of_process
from dpltm.progress import Silent
from dpltm.records import Arrays
from opened import arrays_of
from refusals import refused
from stage_cases import CLASSES, kinds, private_set, records, ticket_set

TINY = {"model": "mlp:8", "rounds": 2, "prune": (0.3,), "iterations": 5, "batch_size": 32}
DRAW = {"eps1": 0.5, "score": "additive"}


def arrays(seed: int) -> Arrays:
    return arrays_of(records(seed).train)


@pytest.fixture(scope="module")
def scored():
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


def test_a_ledger_that_is_named_is_the_one(scored):
    ledger = dpltm.Ledger()
    winner = dpltm.select(scored, *arrays(0), ledger=ledger, **DRAW)
    assert (kinds(of_process()), kinds(ledger)) == ([], ["Selection"])
    # the draw goes along wherever the set does
    run = dpltm.train(scored, *arrays(0), round=1, noise_multiplier=1.0, steps=2, ledger=dpltm.Ledger())
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


def test_the_rule_for_public_accuracies_takes_no_records(scored):
    winner = dpltm.select(scored, rule="smallest-within", tolerance=1, max_density=1)
    assert (winner.round, of_process().entries) == (2, ())
    with pytest.raises(DpltmError, match="`x`: smallest-within reads public accuracies in the set and no records"):
        dpltm.select(scored, *arrays(0), rule="smallest-within")


def test_records_that_are_refused(scored):
    """Public facts of arrays that are not whole numbers of bytes are said."""
    x, y = arrays(0)
    for given, message in (
        ((x,), "`y` is missing: the labels that go with `x`"),
        ((data.from_arrays(x, y), y), "`y`: records is a dataset, which says so itself; leave `y` out"),
        ((), "`x` is missing: the private records to draw on"),
    ):
        assert refused(dpltm.select, scored, *given, **DRAW).startswith(message)
    assert of_process().entries == ()
    facts = {"bounds": (0.0, 1.0), "classes": 4, "records": 190, "test": (arrays(2)[0] / 255.0, y)}
    assert dpltm.generate(x / 255.0, y, provenance="private", **facts, **TINY).body.spec.classes == 4


# Training, and what it adds up to

FEW = {"steps": 2, "classes": CLASSES}
SEARCH = {"for_records": 200, "epsilon": 2.0, "epochs": 1, "batch_size": 50, "classes": CLASSES}


@pytest.fixture
def tickets():
    """A set that no record was read for."""
    return ticket_set()


def test_bounds_that_nobody_gave_are_named_in_every_stage():
    """As at the terminal, with the argument of Python in the place of the flag."""
    (x, y), given = arrays(0), {"bounds": (0, 255)}
    network = {"model": "mlp", "rounds": 1, "iterations": 2, "batch_size": 50, "provenance": "public"}
    made = [dpltm.generate(*arrays(1), **network, **facts, classes=CLASSES) for facts in ({}, given)]
    drawn = [dpltm.select(made[1], x, y, eps1=1.0, **facts, classes=CLASSES) for facts in ({}, given)]
    trained = [dpltm.train("mlp", x, y, noise_multiplier=9.0, **facts, **FEW) for facts in ({}, given)]
    tuned = [dpltm.tune("mlp", *arrays(1), lr=[1.0], **facts, **SEARCH) for facts in ({}, given)]
    for assumed, declared in (made, drawn, trained, tuned):
        said = [[note for note in one.privacy.notes if "nobody gave" in note] for one in (assumed, declared)]
        assert said == [
            [
                "nobody gave the bounds of records, so 0 to 255 is assumed, all that a byte can hold; if their values have"
                " another range, declare them with `bounds` LO,HI"
            ],
            [],
        ]
    assert [run.config["bounds_origin"] for run in trained] == ["assumed", "declared"]


def test_a_network_on_records_in_whatever_form():
    x, y = arrays(0)
    run = dpltm.train("mlp:4", x, y, epsilon=1.0, test=arrays(5), **FEW)
    assert 0.998 < run.privacy.certified.epsilon <= 1
    assert run.privacy.certified.epsilon == Account(of_process().entries).epsilon(1e-5)
    assert run.ledger is of_process()
    assert run.model(torch.zeros(1, 6)).shape == (1, CLASSES)
    assert 0 <= run.metrics[-1]["accuracy"] <= 1
    one = dpltm.train("mlp:4", torch.tensor(x), torch.tensor(y), noise_multiplier=9.0, **FEW)
    other = dpltm.train("mlp:4", records(0), noise_multiplier=9.0, steps=2)
    assert one.config["bounds"] == [0.0, 255.0]
    assert other.config["resolved"] == one.config["resolved"]


def test_a_dataset_keeps_the_records_that_it_was_made_of(tmp_path):
    """Its caller writes others into the arrays, or into the file behind them."""
    (x, y), (other, _) = arrays(0), arrays(1)
    mapped = np.memmap(tmp_path / "x", x.dtype, "w+", shape=x.shape)
    mapped[:] = x
    for mine in (x.copy(), torch.from_numpy(x.copy()), mapped):
        dataset = as_dataset(mine, y, {"classes": CLASSES})
        before = dataset.content_digest()
        mine[:] = torch.tensor(other) if isinstance(mine, torch.Tensor) else other
        assert np.array_equal(arrays_of(dataset.train).x, x)
        assert dataset.content_digest() == before
    with pytest.raises(ValueError, match="read-only"):
        arrays_of(dataset.train).x[:] = 0


def test_what_is_trained_adds_up_in_the_ledger_of_the_process(tickets):
    x, y = arrays(0)
    one, two = (dpltm.train(tickets, x, y, round=at, noise_multiplier=5.0, **FEW) for at in (1, 2))
    assert one.ledger is two.ledger is of_process()
    spent = one.privacy.certified
    assert two.privacy.certified.epsilon > 1.3 * spent.epsilon
    refused(dpltm.train, tickets, x, y, round=2, epsilon=spent.epsilon, **FEW, kind=BudgetError)
    alone = dpltm.train(tickets, x, y, round=2, noise_multiplier=5.0, ledger=Ledger(), **FEW)
    assert alone.privacy.certified == spent


def test_who_cannot_be_told_anything_is_refused_before_anything_is_entered(tickets):
    for progress in (3, Silent):
        told = refused(dpltm.train, tickets, *arrays(0), round=1, epsilon=1.0, progress=progress, **FEW)
        assert "is not a watcher; give None for silence, or an object with say(text)" in told
    assert of_process().entries == ()
    dpltm.train(tickets, *arrays(0), round=1, noise_multiplier=9.0, progress=None, **FEW)


def test_a_search_costs_nothing_and_its_settings_train(tickets):
    found = dpltm.tune(tickets, *arrays(1), lr=[0.5, 1], **SEARCH)
    assert {(trial.round, trial.lr) for trial in found.trials} == {(1, 0.5), (1, 1), (2, 0.5), (2, 1)}
    assert (found.privacy.certified.epsilon, kinds(of_process())) == (0, ["public"])
    run = dpltm.train(tickets, *arrays(0), round=found.best.round, classes=CLASSES, **found.settings)
    assert 1.99 < run.privacy.certified.epsilon <= 2
    assert run.config["options"]["lr"] == found.best.lr
    assert set(lineage_from_json(json.loads(found.settings["lineage"])).entries) < set(run.lineage.entries)
    assert kinds(run.lineage) == ["public", "NoisySgd"]
    message = refused(dpltm.train, "mlp:4", *arrays(1), classes=CLASSES, **{**found.settings, "epsilon": 9.0})
    assert message.startswith("`x`: ")


def test_no_stage_shows_accuracy_on_records_that_a_ledger_protects(tickets):
    """The one that is named, or what a set or a run is made of."""
    ledger, test = Ledger(), {"test": arrays(0)}
    dpltm.train("mlp:4", *arrays(0), noise_multiplier=5.0, ledger=ledger, **FEW)
    other = dpltm.train(tickets, *arrays(3), round=1, noise_multiplier=5.0, ledger=ledger, **FEW)
    secret, held = private_set(ledger), ledger.entries
    for call in (
        lambda: dpltm.tune("mlp:4", *arrays(1), ledger=ledger, **test, **SEARCH),
        lambda: dpltm.tune(secret, *arrays(1), ledger=ledger, **test, **SEARCH),
        lambda: dpltm.train(tickets, *arrays(4), round=1, noise_multiplier=5.0, ledger=ledger, **test, **FEW),
        lambda: dpltm.evaluate(other, *arrays(0), ledger=ledger),
        lambda: dpltm.tune(tickets, *arrays(0), ledger=ledger, **SEARCH),
    ):
        assert "is protected by a release on record" in refused(call)
    held = [entry for entry in held if entry.kind == "release"]
    assert [entry for entry in ledger.entries if entry.kind == "release"] == held


X, Y = arrays_of(records(0).train)
XP, YP = arrays_of(records(1).train)
NOISY = {**FEW, "noise_multiplier": 5.0}
SMALL = {"provenance": "public", "model": "mlp:4", "rounds": 1, "iterations": 2, "batch_size": 20}
OPTIONS = {
    "generate": GenerateOptions,
    "select": SelectOptions,
    "train": TrainOptions,
    "tune": TuneOptions,
    "transfer": TransferOptions,
}


@cache
def made():
    """A set, a winner and a run of it."""
    tickets = ticket_set()
    run = dpltm.train("mlp:4", X, Y, **NOISY)
    return tickets, dpltm.select(tickets, X, Y, eps1=0.5, score="additive"), run


def a_set():
    return made()[0]


def a_run():
    return made()[2]


def calls() -> dict:
    """Every function of the face with arguments that it takes, but for the records."""
    return {
        "generate": SMALL,
        "select": {"tickets": a_set(), "eps1": 0.5, "score": "additive"},
        "train": {"ticket": a_set(), "round": 1, **NOISY},
        "tune": {"target": "mlp:4", **SEARCH},
        "transfer": {"tickets": a_set()},
        "evaluate": {"run": a_run()},
        "predict": {"run": a_run()},
    }


def refusal(call, **given) -> str | None:
    """What a call is refused with; None where it is not."""
    try:
        call(**given)
    except DpltmError as error:
        return str(error)
    return None


@pytest.mark.one_of(4)
@pytest.mark.parametrize("wrong", ["text", pytest.param(object(), marks=pytest.mark.long)], ids=["text", "object"])
@pytest.mark.parametrize("function", ["generate", "select", "train", "tune", "transfer", "evaluate", "predict"])
def test_each_argument_of_a_wrong_type(function, wrong):
    """Whatever is refused is so before anything is entered, and what is not is meant: no other error leaves."""
    call, given = getattr(dpltm, function), calls()[function]
    arguments = [name for name in inspect.signature(call).parameters if name != "options"]
    options = [item.name for item in fields(OPTIONS[function])] if function in OPTIONS else []
    given = {"x": X[:60] // 2, **({"y": Y[:60]} if "y" in arguments else {}), **given}
    assert refusal(call, **given) is None
    for name in dict.fromkeys([*arguments, *(FACTS if options else ()), *options]):
        for value in (wrong,) if name in options else (None, 3, wrong):
            ledger = Ledger()
            own = {"ledger": ledger} if "ledger" in arguments else {}
            said = refusal(call, **{**given, **own, name: value})
            assert said is None or (ledger.entries, said.count("\n")) == ((), 0), (name, value)


def masked():
    return np.ma.masked_array(X, mask=X > 9)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: dpltm.train(a_set(), X, Y, round=1, ledger="l", **NOISY), "`ledger`: 'l' is not a dpltm.Ledger (of a"),
        (lambda: dpltm.train(a_run(), X, Y, **NOISY), "`ticket`: a value of type Run is not a ticket set (of"),
        (lambda: dpltm.train("mlp:4", X, Y, bounds="0,16"), "`bounds`: '0,16' is not a pair of numbers; pass the"),
        (lambda: dpltm.train("mlp:4", X, Y, seed=10**5000), "`seed`: a value of type int is not a whole number of 64 bits"),
        (lambda: dpltm.train("mlp:4", masked(), Y), "`x`: a masked array, whose mask would be lost; fill it, or"),
        (lambda: dpltm.train("mlp:4", [[1], [1, 2]], Y), "`x`: a value of type list is no array: "),
        (lambda: dpltm.select("mlp:8", X, Y, eps1=1.0), "`tickets`: 'mlp:8' is not a ticket set (of"),
        (lambda: dpltm.transfer(a_run(), X, Y), "`tickets`: a value of type Run is not a ticket set (of"),
        (lambda: dpltm.evaluate(a_set(), X, Y), "`run`: a value of type TicketSet is not a run, as dpltm.train"),
        (lambda: dpltm.evaluate(a_run(), records(2)), "`x`: records2 has no test split; name a file with one by `test`"),
        (lambda: dpltm.predict(a_run(), X * np.nan), "records: x has nan at record 0, feature 0 (counted from 0); features"),
        (lambda: dpltm.predict(a_run(), records(0)), "records: x has dtype object; give numbers"),
        (lambda: dpltm.tickets.save(3, "a"), "`value`: 3 is not a ticket set, a winner or a run; give what a stage"),
        (lambda: dpltm.tickets.load("a" * 5000), "`path`: File name too long"),
        (lambda: dpltm.records.load(3), "`dataset`: 3 is not a text, as the command line takes it"),
        (lambda: dpltm.records.load("digits", subset=0.5), "`subset`: 0.5 is not a text, as the command line takes it"),
        (lambda: dpltm.tickets.load("nets.py:Net"), "nets.py:Net: no ticket set there; name a folder that holds one (code"),
        (lambda: dpltm.tickets.load("none"), "none: no ticket set there; name a folder that holds one"),
    ],
)  # fmt: skip
def test_the_words_of_a_refusal(call, message):
    made()  # which pays, in whichever test comes first
    held = of_process().account().paid
    said = refused(call)
    assert said.startswith(message), said
    assert of_process().account().paid == held


class Columns:
    """As a ``datasets.Dataset`` of Hugging Face."""

    column_names = ("text", "label")

    def __getitem__(self, key):
        raise AssertionError("nobody reads it")


@pytest.mark.parametrize("given", [TensorDataset(torch.zeros(40, 3)), DataLoader(range(40)), Columns()])
def test_datasets_and_loaders_of_other_libraries_are_refused(given):
    """What they give may be drawn anew each time."""
    said = f"`x`: {type(given).__name__} is gone since 0.3: give arrays; of PyTorch torch.stack("
    assert refused(dpltm.train, "mlp:4", given, ledger=dpltm.Ledger(), epsilon=1.0).startswith(said)
    loop = partial(dpltm.PrivateLoop, torch.nn.Linear(3, 2), torch.nn.CrossEntropyLoss(reduction="none"))
    assert refused(loop, given, Y, batch_size=20, steps=1, epsilon=1.0, delta=1e-3).startswith(said)


def test_the_name_of_arrays():
    tickets = dpltm.generate(XP, YP, name="theirs", **SMALL)
    assert (tickets.name, tickets.lineage.entries[0].part.name) == ("theirs", "theirs")
    assert dpltm.generate(records(1), name="a set", **SMALL).lineage.entries[0].part.name == "records1"
    run = dpltm.train(tickets, X, Y, round=1, name="mine", **NOISY)
    assert run.lineage.entries[-1].part.name == "mine"


def test_nothing_prints_a_record():
    """A log of what a call was given or gave holds no value of a record, and is short."""
    x = (X + 0.123456789).astype(np.float64)
    shown = dpltm.records.from_arrays(x, Y, classes=CLASSES, bounds=(0, 256), test=(x + 0.5, Y))
    tickets, winner, run = made()
    for value in (shown, shown.train, shown.test, shown.rows, tickets, winner, run, run.ledger):
        text = repr(value)
        assert ".12345" not in text
        assert "array(" not in text
        assert "tensor(" not in text
        assert len(text) < 400
