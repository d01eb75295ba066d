"""``dpltm run`` and ``dpltm demo``: three stages, one budget, one ledger; what is wrong is found before the first."""

import json
from pathlib import Path

import pytest

from dpltm.privacy.mechanisms import NoisySgd, Selection
from dpltm.tickets.ledger_file import open_ledger
from recipes import DENSE, HEAD

FILE = """
[run]
epsilon = 2.0
delta = 1e-6
split = 0.75
{run}
[generate]
dataset = "digits"
subset = "0.0:0.5"
provenance = "public"
model = "mlp:8"
rounds = 2
prune = [0.3]
iterations = 5
batch-size = 32
{generate}
[select]
{select}
[train]
dataset = "digits"
subset = "0.5:1.0"
steps = 3
{train}
"""
LEDGER = Path("digits.ledger.jsonl")
RUN = ("run", "--config", "c.toml", "--out", "o")


def write(*changes, **more):
    """Writes c.toml with more lines in a table, and with some texts replaced."""
    text = FILE.format(**{"run": "", "generate": "", "select": "", "train": "", **more})
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    Path("c.toml").write_text(text)


def check_stages(body, budget):
    assert body["train"]["round"] == body["select"]["winner"]["round"]
    assert body["privacy"] == body["train"]["privacy"]
    assert 0.99 * budget < body["privacy"]["certified"]["epsilon"] <= budget


def mechanisms(path):
    """Kinds of mechanisms on record, in order; a declaration has none."""
    return [[type(one) for one in entry.mechanisms] for entry in open_ledger(path).entries]


def test_run(cli):
    """All of it is paid by the ledger of the dataset, up to the budget; so a second run has nothing left."""
    write()
    before = LEDGER.read_bytes()
    planned = cli(*RUN, "--dry-run", "--json").json
    assert not Path("o").exists()
    assert LEDGER.read_bytes() == before
    body = cli(*RUN, "--json").json
    check_stages(body, 2)
    assert planned["privacy"]["certified"]["epsilon"] == pytest.approx(2, rel=5e-3)
    assert body["select"]["eps1"] == planned["eps1"] == 0.5
    assert [path.name for path in Path("o").rglob("*.jsonl")] == ["metrics.jsonl"]
    assert mechanisms(LEDGER) == [[], [Selection], [NoisySgd]]
    assert open_ledger(LEDGER).account().epsilon(1e-6) == body["privacy"]["certified"]["epsilon"]
    told = {key: value for key, value in body["train"].items() if key != "seconds"}
    weights = json.loads(Path("o/run/lineage.json").read_text())["of"]
    told |= {"run": "run", "ticket_set": "tickets", "weights": weights}
    assert json.loads(Path("o/run/result.json").read_text()) == told
    done = cli("run", "--config", "c.toml", "--out", "again")
    assert done.code == 1
    assert not Path("again").exists()
    assert cli("run", "--config", "c.toml", "--out", "again", "--ledger", "l.jsonl", "--quiet").code == 0


def test_run_with_the_papers_rule_spends_everything_on_training(cli):
    write(select='rule = "smallest-within"\ntolerance = 1.0\nmax-density = 1.0')
    body = cli(*RUN, "--epsilon", "1", "--json").json
    check_stages(body, 1)
    assert body["select"]["eps1"] == 0
    assert mechanisms(LEDGER) == [[], [NoisySgd]]


SHARED = ('"0.5:1.0"', '"0.25:0.75"')


@pytest.mark.parametrize(
    ("changes", "tables", "options", "message"),
    [
        ((), {"train": "[tran]"}, "", "--config c.toml: tran: no such table or key; docs/recipes.md"),
        ((), {"generate": 'out = "x"'}, "", "--config c.toml: generate: out: decided by the recipe, or by [run]"),
        ((), {"train": "dense = true"}, "", "--config c.toml: train: dense: decided by the recipe"),
        ((), {}, "--delta 0.1", "[select] --delta: 0.1 is not between 0 and 1/n = 0.00139 for 719 records or more"),
        ((), {}, "--out pub", "--out: pub exists already; choose another name or remove it first"),
        ((), {}, "--seeds 2", "--seeds: of a recipe, and c.toml has no [recipe]; leave it out"),
        ((SHARED,), {}, "", "[select] --dataset: digits[0.0:0.5] was declared public, and digits"),
        ((('"public"', '"private"'), ('"0.0:0.5"', '"0.5:1.0"')), {"select": 'rule = "smallest-within"'}, "",
         "[select] --rule: smallest-within needs public accuracies, and [generate] says private"),
        ((('"public"', '"data-free"\ncriterion = "random"'), ("iterations = 5\n", ""), ("batch-size = 32\n", "")), {}, "",
         "[select] digits: its tickets have no predictors to score; train one by its round, such as 2"),
    ],
)  # fmt: skip
def test_run_refuses_before_the_first_stage(refused, changes, tables, options, message):
    write(*changes, **tables)
    assert refused(*RUN, *options.split()).startswith(message)


def test_an_audit_that_the_sparsest_ticket_has_no_room_for_is_refused_before_the_first_stage(refused, cli):
    """Of 64 * 8 + 8 * 10 weights 30 % go in each of two rounds; 18 biases stay."""
    fewest = 592 - 178 - 124 + 18
    write(train=f"audit = {fewest + 1}")
    assert refused(*RUN).startswith(f"[train] --audit: {fewest + 1} canaries: ask for 6 or more")
    write(train=f"audit = {fewest}")
    assert cli(*RUN, "--dry-run").code == 0


def test_a_plan_states_the_most_that_a_winner_may_cost(cli):
    """What nominal noise certifies depends on how many weights are live, and no draw says yet which ticket wins."""
    figures = []
    for rounds in (1, 2):
        write(("rounds = 2", f"rounds = {rounds}"), train='filter = "tanh"\nnoise = "nominal"\nno-pre-clip = true')
        figures.append(cli(*RUN, "--dry-run", "--json").json["privacy"]["certified"]["epsilon"])
    assert figures[0] == figures[1]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--epsilon", "3"), "--epsilon: a recipe"),
        (("--seed", "1"), "--seed: a recipe"),
        (("--jobs", "0"), "--jobs: 0"),
        (("--seeds", "0"), "seeds: 0"),
    ],
)
def test_flags_that_a_recipe_does_not_take(refused, cwd, flags, said):
    (cwd / "r.toml").write_text(HEAD + DENSE, encoding="utf-8")
    assert said in refused("run", "--config", "r.toml", *flags)


def test_demo(cli):
    """Its ledger lies with what it made."""
    before = LEDGER.read_bytes()
    body = cli("demo", "--out", "d", "--json").json
    check_stages(body, 3)
    assert len(body["generate"]["tickets"]) == 11
    assert mechanisms("d/dpltm.ledger.jsonl") == [[], [Selection], [NoisySgd]]
    assert body["train"]["accuracy"] > 0.5  # chance is a tenth; what it reaches is the README's business
    assert LEDGER.read_bytes() == before
