"""Calls of the public face with what is not meant for them: one line in the caller's words, and nothing spent."""

import inspect
from dataclasses import fields
from functools import cache

import numpy as np
import pytest

import dpltm
import dpltm.records
import dpltm.tickets
from dpltm.api import FACTS
from dpltm.errors import DpltmError
from dpltm.options.generate import GenerateOptions
from dpltm.options.select import SelectOptions
from dpltm.options.tickets import TransferOptions
from dpltm.options.train import TrainOptions
from dpltm.options.tune import TuneOptions
from dpltm.privacy.ledger import Ledger, of_process
from opened import arrays_of
from refusals import refused
from stage_cases import CLASSES, records, ticket_set

X, Y = arrays_of(records(0).train)
XP, YP = arrays_of(records(1).train)
FEW = {"steps": 2, "noise_multiplier": 5.0, "classes": CLASSES}
TINY = {"provenance": "public", "model": "mlp:4", "rounds": 1, "iterations": 2, "batch_size": 20}
SEARCH = {"for_records": 200, "epsilon": 2.0, "epochs": 1, "batch_size": 50, "classes": CLASSES}
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
    run = dpltm.train("mlp:4", X, Y, **FEW)
    return tickets, dpltm.select(tickets, X, Y, eps1=0.5, score="additive"), run


def a_set():
    return made()[0]


def a_run():
    return made()[2]


def calls() -> dict:
    """Every function of the face with arguments that it takes, but for the records."""
    return {
        "generate": TINY,
        "select": {"tickets": a_set(), "eps1": 0.5, "score": "additive"},
        "train": {"ticket": a_set(), "round": 1, **FEW},
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
        (lambda: dpltm.train(a_set(), X, Y, round=1, ledger="l", **FEW), "`ledger`: 'l' is not a ledger; give dpltm.L"),
        (lambda: dpltm.train(a_run(), X, Y, **FEW), "`ticket`: a value of type Run is not a ticket set, a winner or the"),
        (lambda: dpltm.train("mlp:4", X, Y, bounds="0,16"), "`bounds`: '0,16' is not a pair of numbers; pass the"),
        (lambda: dpltm.train("mlp:4", X, Y, seed=10**5000), "`seed`: a value of type int is not a whole number of 64 bits"),
        (lambda: dpltm.train("mlp:4", masked(), Y), "`x`: a masked array, whose mask would be lost; fill it, or"),
        (lambda: dpltm.train("mlp:4", [[1], [1, 2]], Y), "`x`: a value of type list is no array: "),
        (lambda: dpltm.train("mlp:4", X, Y, name="a\nb"), "`name`: 'a\\nb' is not a printable text of at most 200"),
        (lambda: dpltm.select("mlp:8", X, Y, eps1=1.0), "`tickets`: 'mlp:8' is not a ticket set or a winner; give what"),
        (lambda: dpltm.transfer(a_run(), X, Y), "`tickets`: a value of type Run is not a ticket set or a winner; give what"),
        (lambda: dpltm.evaluate(a_set(), X, Y), "`run`: a value of type TicketSet is not a run; give what dpltm.train"),
        (lambda: dpltm.evaluate(a_run(), records(2)), "`x`: records2 has no test split; name a file with one by `test`"),
        (lambda: dpltm.predict(a_run(), X * np.nan), "records: x has nan at record 0, feature 0 (counted from 0); features"),
        (lambda: dpltm.predict(a_run(), records(0)), "`x`: a dataset, and not an array; give the array that it was made of"),
        (lambda: dpltm.tickets.save(3, "a"), "`value`: 3 is not a ticket set, a winner or a run; give what a stage"),
        (lambda: dpltm.tickets.save(a_set(), "/"), "`path`: / exists already; choose another name or remove it first"),
        (lambda: dpltm.tickets.load("a" * 5000), "`path`: File name too long"),
        (lambda: dpltm.records.load(3), "`dataset`: 3 is not a name or a path"),
        (lambda: dpltm.records.load("digits", subset=0.5), "`subset`: 0.5 is not a text, as the command line takes it"),
        (lambda: dpltm.tickets.load("nets.py:Net"), "nets.py:Net: names code, and no ticket set; give it as `model`,"),
        (lambda: dpltm.tickets.load("none"), "none: no ticket set there; name a folder that"),
    ],
)  # fmt: skip
def test_the_words_of_a_refusal(call, message):
    made()  # which pays, in whichever test comes first
    held = of_process().account().paid
    said = refused(call)
    assert said.startswith(message), said
    assert of_process().account().paid == held


def test_the_name_of_arrays():
    tickets = dpltm.generate(XP, YP, name="theirs", **TINY)
    assert (tickets.name, tickets.lineage.entries[0].part.name) == ("theirs", "theirs")
    assert dpltm.generate(records(1), name="a set", **TINY).lineage.entries[0].part.name == "records1"
    run = dpltm.train(tickets, X, Y, round=1, name="mine", **FEW)
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
