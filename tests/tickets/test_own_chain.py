"""Networks of the user's own through everything: tickets, a draw, a training, to disk and back, accuracy, predictions."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import dpltm
from dpltm.networks import ModelSpec, build
from dpltm.networks.own_network import Holder
from dpltm.networks.state import weights_of
from dpltm.tickets import load, save
from dpltm.tickets.export import Origin, compact_set, export_torch_prune
from dpltm.tickets.store import problems
from own_networks import CASES, CLASSES, LABELS, PARTS, TEXTS, Case, FrozenNorm, HandMade, text_dataset
from refusals import refused

TICKETS = {"rounds": 2, "iterations": 4, "batch_size": 20, "provenance": "public"}
TRAINING = {"epsilon": 1.0, "delta": 1e-4, "steps": 2}
FACTS = {"bounds": (0, 255), "classes": CLASSES}


def records(case: Case, folder, count: int, seed: int):
    """What a stage takes: arrays with their facts, or a dataset of texts."""
    if case.words:
        return (text_dataset(case, folder / f"{seed}.npz", count, seed),), {}
    return case.records(count, seed), case.facts


def tickets_of(case: Case, folder, ledger=None):
    public, facts = records(case, folder, 60, 0)
    ledger = dpltm.Ledger() if ledger is None else ledger
    return dpltm.generate(*public, ledger=ledger, model=case.model, **TICKETS, **case.settings, **facts)


def through(case: Case, folder):
    """Tickets, winner and run of a network."""
    ledger = dpltm.Ledger()
    private, facts = records(case, folder, 90, 1)
    tickets = tickets_of(case, folder, ledger)
    winner = dpltm.select(tickets, *private, eps1=0.5, score="additive", ledger=ledger, **facts)
    return tickets, winner, dpltm.train(winner, *private, ledger=ledger, **TRAINING, **facts)


@pytest.mark.one_of(9)
@pytest.mark.parametrize("name", [*CASES, *TEXTS, *LABELS, *PARTS])
def test_all_stages(name, tmp_path):
    case = {**CASES, **TEXTS, **LABELS, **PARTS}[name]
    tickets, winner, run = through(case, tmp_path)
    assert run.privacy.certified.epsilon == through(CASES["hand-made"], tmp_path)[2].privacy.certified.epsilon
    save(winner, tmp_path / "set")
    save(run, tmp_path / "run")
    assert problems(tmp_path / "set") == []

    # elsewhere, without the code
    back = load(tmp_path / "set")
    assert back.tickets.id == tickets.id
    assert [one.mask.live for one in back.tickets.body.tickets] == [one.mask.live for one in tickets.body.tickets]
    unknown = load(tmp_path / "run")
    assert isinstance(unknown.model, Holder)
    assert unknown.privacy is None or unknown.privacy
    private, facts = records(case, tmp_path, 90, 1)
    needs = "is not at hand; name its model, as FILE.py:NAME or in dpltm.tickets.load(path, model=MyNet)"
    ledger = dpltm.Ledger()
    assert refused(dpltm.train, back, *private, ledger=ledger, **TRAINING, **facts).endswith(needs)
    assert refused(dpltm.select, back, *private, eps1=1.0, score="additive", ledger=ledger, **facts).endswith(needs)
    x = np.random.default_rng(3).integers(1, 10, (5, *case.shape)) if case.words else case.records(5, 3)[0]
    assert refused(dpltm.predict, unknown, x).endswith(needs)
    assert len(ledger.entries) == 0

    # and with it
    functions = case.settings
    known = load(tmp_path / "set", model=case.model, **functions)
    again = dpltm.train(known, *private, ledger=dpltm.Ledger(), **TRAINING, **facts)
    assert again.mask.live == run.mask.live
    loaded = load(tmp_path / "run", model=case.model, **functions)
    assert all(torch.equal(value, weights_of(run.model)[key]) for key, value in weights_of(loaded.model).items())
    predicted = dpltm.predict(loaded, x)
    assert np.array_equal(predicted.outputs, dpltm.predict(run, x).outputs)
    if not case.words:
        held_out = case.records(30, 7)
        assert dpltm.evaluate(loaded, *held_out).accuracy == dpltm.evaluate(run, *held_out).accuracy

    # weights by the names of the module
    file, origin = tmp_path / "ticket.safetensors", Origin.of(back.tickets)
    export_torch_prune(back.tickets.body.theta0, back.ticket.mask, file, origin)
    exported = {name.removesuffix("_orig"): value for name, value in load_file(file).items() if "_mask" not in name}
    for values in (exported, load_file(tmp_path / "run" / "model.safetensors")):
        module = case.model()
        missing, unexpected = module.load_state_dict(values, strict=False)
        assert not unexpected
        assert not {*missing} & dict(module.named_parameters()).keys()


def test_a_module_gives_the_numbers_of_the_kind_that_it_is():
    """From the same start: masks, predictors, accuracies, and the certified figure."""
    case, start = CASES["hand-made"], build(ModelSpec("mlp:8", 6, CLASSES), 0).state_dict()
    x, y = case.records(60, 0)
    of_kind = dpltm.generate(x, y, model="mlp:8", ledger=dpltm.Ledger(), **TICKETS, **FACTS)
    given = {"start": start, "start_provenance": "data-free"}
    own = dpltm.generate(x, y, model=HandMade, ledger=dpltm.Ledger(), **given, **TICKETS, **FACTS)
    assert own.id == of_kind.id
    for mine, theirs in zip(own.body.tickets, of_kind.body.tickets, strict=True):
        assert mine.accuracy == theirs.accuracy
        assert all(torch.equal(mine.predictor[name], theirs.predictor[name]) for name in theirs.predictor)


def test_weights_of_a_run_bring_its_lineage():
    """A network that starts from a private training depends on what that spent."""
    case, ledger = CASES["hand-made"], dpltm.Ledger()
    x, y = case.records(90, 1)
    first = dpltm.train(HandMade, x, y, ledger=ledger, **TRAINING, **FACTS)
    start = {"start": first.model.state_dict(), "start_lineage": first.lineage}
    second = dpltm.train(HandMade, x, y, ledger=ledger, **{**TRAINING, "epsilon": 2.0}, **start, **FACTS)
    assert {entry.id for entry in first.lineage.entries} < {entry.id for entry in second.lineage.entries}
    made = dpltm.generate(x, y, model=HandMade, criterion="random", rounds=1, ledger=ledger, **start, **FACTS)
    assert {entry.id for entry in first.lineage.entries} <= {entry.id for entry in made.lineage.entries}
    assert made.provenance == "dp"


def test_transfer_to_another_head(tmp_path):
    class FiveClasses(FrozenNorm):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 5)

    tickets = tickets_of(CASES["frozen-norm"], tmp_path)
    x, y = np.zeros((10, 8, 8, 3), np.uint8), np.arange(10) % 5
    facts = {"bounds": (0, 255), "classes": 5}
    moved = dpltm.transfer(tickets, x, y, model=FiveClasses, seed=2, **facts)
    assert torch.equal(moved.body.theta0["conv.weight"], tickets.body.theta0["conv.weight"])
    assert torch.equal(moved.body.theta0["norm.running_var"], tickets.body.theta0["norm.running_var"])
    assert moved.body.tickets[1].mask["conv.weight"].equal(tickets.body.tickets[1].mask["conv.weight"])
    assert tuple(moved.body.theta0["head.weight"].shape) == (5, 4)
    save(moved, tmp_path / "moved")
    run = dpltm.train(load(tmp_path / "moved", model=FiveClasses), *CASES["frozen-norm"].records(90, 1), round=1,
                      ledger=dpltm.Ledger(), **TRAINING, **facts)  # fmt: skip
    assert run.spec.classes == 5
    assert refused(dpltm.transfer, tickets, x, y, **facts).startswith("`model` is missing")


def test_compaction_is_refused_by_name(tmp_path):
    tickets = save(tickets_of(CASES["tied"], tmp_path), tmp_path / "set")
    why = "only networks of a kind by name can be compacted"
    assert refused(compact_set, tickets, 1, tmp_path / "out").endswith(why)


@pytest.mark.parametrize("name", ["training", "_forward_hooks", "half", "named_children", "T_destination"])
def test_a_layer_with_the_name_of_what_every_module_has_is_refused(name):
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            setattr(self, name, nn.Linear(6, CLASSES))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self._modules[name](x)

    x, y = np.zeros((60, 6)), np.arange(60) % CLASSES
    said = f"has a layer named `{name}`, which PyTorch needs for itself; rename it"
    facts = {"bounds": (0, 1), "classes": CLASSES}
    assert said in refused(dpltm.generate, x, y, model=Named, ledger=dpltm.Ledger(), **TICKETS, **facts)
    loop = {"batch_size": 20, "steps": 1, "noise_multiplier": 1.0, "delta": 0.1, "ledger": dpltm.Ledger()}
    assert said in refused(dpltm.PrivateLoop, Named(), nn.CrossEntropyLoss(reduction="none"), x, y, **loop)
