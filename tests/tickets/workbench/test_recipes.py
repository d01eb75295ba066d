"""Recipes: what is wrong with one is said before anything starts; one that is right becomes arms and trials."""

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from dpltm.errors import InputError
from dpltm.options.data import DataOptions
from dpltm.options.run import RunRequest
from dpltm.privacy.ledger import Ledger
from dpltm.records import Dataset, load
from dpltm.tickets.workbench import recipes as reader
from dpltm.tickets.workbench.recipes import Recipe, check_ready
from dpltm.tickets.workbench.run import read_stages
from dpltm.training.release import TrainingPlan
from recipes import DENSE, HEAD, SETS, read_recipe
from refusals import refused

ARM = '[[arm]]\nname = "x"\n'
DRAWN = ARM + 'tickets = "a"\n'
LATENT = 'latent = { encode = { dataset = "digits" }, scheme = { public = "digits", epsilon = 1.0, alpha = 3.0 } }'
NO_EPS1 = 'select = { rule = "smallest-within", eps1 = 5.0 }'


def read(options: DataOptions) -> Dataset:
    pairs = {name: getattr(options, name) for name in ("bounds", "target_bounds")}
    pairs = {name: text and tuple(map(float, text.split(","))) for name, text in pairs.items()}
    assert options.dataset is not None
    return load(options.dataset, subset=options.subset, classes=options.classes, **pairs)


def ready(text: str, **options: Any) -> dict[str, TrainingPlan]:
    return check_ready(read_recipe(text, **options), read, Ledger())


@pytest.mark.parametrize(
    ("text", "said"),
    [  # what commands refuse of their options
        (DENSE + "train = { epsilon = 1.0, epochs = 3.0, steps = 2 }", "`epochs`, `steps`"),
        (DENSE + "train = { stop-at = 2.0 }", "`stop_at` is gone since 0.3"),
        (DENSE + '[tickets.b]\ndataset = "digits"\nrounds = 3', "[tickets.b] generate: `provenance` is missing"),
        (DENSE + "train = { centre = 0.1 }", "[[arm]] 'dense' train: `centre`: a part of a budget"),
        (DENSE + "train = { lr = nan }", "[[arm]] 'dense' train: `lr`: nan is not a positive number"),
        (DENSE + 'train = { epochs = "many" }', "`epochs`: 'many' is not a number"),
        (DENSE + "train = { learning-rate = 1 }", "`learning_rate`: no such option"),
        (DRAWN + NO_EPS1, "`eps1`"),
        (DRAWN + "train = { model = 'mlp:4' }\nround = 1", "`model`: the ticket set decides the network"),
        (ARM + 'tune = { lr = "1", for-records = 9 }', "tune: `epsilon` is missing"),
        (ARM + LATENT, "`alpha`"),
        (ARM + LATENT.replace("alpha = 3.0", 'features = "unit"').replace("} }", '}, train = { inputs = "bits" } }'),
         "[[arm]] 'x' `inputs`: of bits; a codebook sends one index"),
        # what contradicts another table
        (DRAWN + "train = { epsilon = 1.0 }\nselect = { eps1 = 1.5 }", "leaves nothing of the budget 1"),
        (DRAWN + "select = { eps1 = 0.5, reveal = true }", "select: reveal: decided by the recipe"),
        (DRAWN, "one of round and select"),
        (DRAWN + "round = 3", "a@3: no such round; it has rounds 0 to 2"),
        (DRAWN.replace('"a"', '"p"') + 'select = { rule = "smallest-within" }', "p is no public set"),
        (DRAWN + "round = 1\nselect = { eps1 = 0.1 }", "one of round and select"),
        (DRAWN.replace('"a"', '"b"') + 'select = { eps1 = 0.1 }\n[tickets.b]\ndataset = "digits"\ncriterion = "random"\n'
         'provenance = "data-free"\nmodel = "mlp:4"\nrounds = 1\n', "b: its tickets have no predictors to score"),
        (DRAWN.replace('"a"', '"b"') + "round = 1", "tickets: 'b' is not the name of a set above; known: a, p"),
        (ARM + "round = 1", "is of tickets"),
        (ARM + 'tune = { tickets = ["a"] }', "tickets: ['a'] is not the name of a set above; known: a, p"),
        (ARM + "train = { seed = 3 }", "decided by the recipe"),
        (ARM + 'against = "nobody"', "no arm 'nobody'"),
        (ARM + 'vary = { "latent.scheme.epsilon" = [1] }\ntrain = { lr = 1.0 }', "not of both"),
        (ARM + 'vary = { "train.lr" = [1, 2], "train.clip-norm" = [1] }', "of one length"),
        (DENSE + DENSE, "named twice"),
        (DENSE + '[tickets.b]\nfrom = "c"\n[tickets.c]\nfrom = "b"\n', "[tickets.b] from: 'c' is not"),
        # tables, by pydantic
        (DENSE + "[figures]\n", "figures: no such table or key; docs/recipes.md has the form"),
        (ARM + 'naem = "b"\n', "[[arm]] 'x' naem: no such table or key"),
        (ARM + "latent = { scheme = 3 }", "[[arm]] 'x' latent.scheme: Input should be a valid dictionary"),
        ("", "arm: Field required"),
        (DENSE + "[quick]\nseeds = -1\n", "quick.seeds: Input should be greater than"),
    ],
)  # fmt: skip
def test_what_is_wrong(text: str, said: str) -> None:
    private = SETS.replace('"public"', '"private"').replace("tickets.a", "tickets.p").replace("0.0:0.5", "0.5:1.0")
    assert said in refused(ready, HEAD + SETS + private + text)


def test_quick_needs_a_table_that_says_how() -> None:
    assert "[quick]: missing" in refused(read_recipe, HEAD + DENSE, quick=True)


def test_what_a_source_prints_is_read_from_the_file_beside(tmp_path: Path) -> None:
    (tmp_path / "sources.toml").write_text("[a.table]\nbest = 97.5\nline = 'Table 1'\n")

    def read(paper: str) -> Recipe:
        arm = f'[[arm]]\nname = "x"\npaper = {paper}\nvary = {{ "train.lr" = [1.0, 2.0] }}\n'
        return reader.read_recipe(tomllib.loads(HEAD + arm), tmp_path / "recipe.toml")

    assert [arm.paper for arm in read('["a.table.best", 90]').arms] == [97.5, 90]
    for text in ("a.table", "a.table.worst", "b.table.best", "a.table.line", "a.table.best.x"):
        with pytest.raises(InputError, match=f"'x' paper: '{text}' names no figure of sources.toml beside it$"):
            read(f'"{text}"')


def test_a_file_of_code_is_a_path_from_the_recipe(tmp_path: Path) -> None:
    code = 'model = "nets.py:Net"\n'
    text = HEAD + f'[tickets.a]\ndataset = "digits"\nprovenance = "public"\n{code}{ARM}[arm.train]\n{code}'
    recipe = reader.read_recipe(tomllib.loads(text), tmp_path / "recipe.toml")
    assert recipe.arms[0].train["model"] == recipe.tickets["a"]["model"] == str(tmp_path / "nets.py:Net")


def test_tables_go_over_one_another() -> None:
    text = HEAD + SETS + (
        '[[arm]]\nname = "dense"\nvary = { "train.epsilon" = [3, 1], "train.lr" = [0.5, 0.25] }\npaper = [90, 80]\n'
        '[[arm]]\nname = "ticket"\ntickets = "a"\nround = 2\nagainst = "dense"\nvary = { "train.epsilon" = [3, 1] }\n'
        '[[arm]]\nname = "plain"\ntickets = "a"\nround = "random"\nagainst = "dense, epsilon 1"\n'
        "[quick]\nseeds = 1\nround = 1\ntrain = { epochs = 0.1 }\ntickets = { iterations = 1 }\n"
    )  # fmt: skip
    recipe = read_recipe(text)
    assert [arm.name for arm in recipe.arms] == [
        "dense, epsilon 3", "dense, epsilon 1", "ticket, epsilon 3", "ticket, epsilon 1", "plain"
    ]  # fmt: skip
    assert [arm.paper for arm in recipe.arms] == [90, 80, None, None, None]
    expected = [None, None, "dense, epsilon 3", "dense, epsilon 1", "dense, epsilon 1"]
    assert [arm.against for arm in recipe.arms] == expected
    dense, ticket = recipe.arms[1], recipe.arms[3]
    assert dense.train["epsilon"] == 1
    assert dense.train["lr"] == 0.25
    assert "noise-multiplier" not in dense.train  # which epsilon takes the place of
    assert "model" in dense.train
    assert "model" not in ticket.train  # the set remembers its own
    assert len(recipe.trials) == 10
    assert len({trial.task.place for trial in recipe.trials}) == 10

    quick = read_recipe(text, quick=True)
    assert [arm.name for arm in quick.arms] == ["dense, epsilon 3", "ticket, epsilon 3", "plain"]
    assert quick.head.seeds == 1
    assert "steps" not in quick.arms[0].train
    assert quick.arms[1].round == 1
    assert quick.tickets["a"]["iterations"] == 1
    assert read_recipe(text, seeds=7, quick=True).head.seeds == 7
    assert {trial.task.place for trial in quick.trials}.isdisjoint(trial.task.place for trial in recipe.trials)


def test_a_trial_is_known_by_all_that_makes_it() -> None:
    """Another option anywhere, of its training or of its tickets, makes it another; a title does not."""
    arms = '[[arm]]\nname = "x"\ntickets = "a"\nround = 1\n[[arm]]\nname = "y"\n'
    one = read_recipe(HEAD + SETS + arms)
    other = read_recipe(HEAD.replace('"T"', '"U"') + SETS.replace("iterations = 3", "iterations = 4") + arms)
    ticket, dense = (read.trials[:2] for read in (one, other))
    assert ticket[0].task.place != dense[0].task.place
    assert ticket[1].task.place == dense[1].task.place


def test_what_each_arm_trains_on() -> None:
    records = ready(HEAD + DENSE + '[[arm]]\nname = "all"\ntrain = { subset = "0:1438" }\n')
    assert list(records) == ["dense", "all"]
    assert records["dense"].part.overlaps(records["all"].part)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (DENSE + "train = { batch-size = 5000, delta = 0.01 }", "`delta`: 0.01 is not between"),
        (DENSE + "train = { batch-size = 5000 }", "`batch_size`: 5000"),
        (DENSE + 'train = { epsilon = 1.0 }\ntune = { dataset = "digits", for-records = 1600, lr = "1" }',
         "`dataset`: digits was declared public, and digits[0.5:1.0] shares records with it"),
        ('[[arm]]\nname = "x"\ntickets = "b"\nround = 1\n[tickets.b]\nfrom = "a"\ndataset = "digits"\n',
         "[[arm]] 'x' `dataset`: digits[0.0:0.5] was declared public, and digits[700:1438] shares records with it"),
        (DENSE + 'train = { subset = "700:1438" }\n', "[[arm]] 'dense' `dataset`: digits[0.0:0.5] was declared public"),
        ('[[arm]]\nname = "x"\ntrain = { dataset = "FOLDER/alone.npz", classes = 10, bounds = "0,16" }\n',
         "has no test records"),
        (DENSE + 'train = { target-bounds = "0,9" }', "a row of a recipe needs classes"),
        (DENSE + 'train = { model = "cnn" }', "'dense' `model`: cnn:8x8x1: images must be at least 14 x 14"),
        (DENSE + "train = { centre = 0.1, epsilon = 1.0 }", "'dense' `centre`: needs features"),
        ('[[arm]]\nname = "x"\ntickets = "c"\nround = 1\n[tickets.c]\ndataset = "digits"\nsubset = "0.0:0.5"\n'
         'model = "mlp:4"\nprovenance = "public"\nrounds = 60\n', "[tickets.c] `prune`: the rates are too small"),
        (ARM + 'tickets = "c"\nround = 1\n[tickets.c]\nfrom = "a"\ndataset = "digits"\nmode = "drop-projection"\n',
         "[tickets.c] `mode`: 'mlp:4' has no projection onto 64 numbers"),
        (ARM + 'tickets = "d"\nround = 1\n[tickets.c]\ndataset = "digits"\nsubset = "0.0:0.5"\n'
         'model = "mlp:project63,4"\nprovenance = "public"\nrounds = 1\n'
         '[tickets.d]\nfrom = "c"\ndataset = "digits"\nmode = "drop-projection"\n',
         "[tickets.d] `mode`: 'mlp:project63,4' has no projection onto 64 numbers"),
        (ARM + 'tickets = "c"\nround = 1\n[tickets.c]\nfrom = "a"\ndataset = "FOLDER/alone.npz"\nclasses = 11\n'
         'bounds = "0,16"\n', "[[arm]] 'x' c: its network has 11 classes, but digits"),
    ],
)  # fmt: skip
def test_what_records_have_to_say_is_said_before_anything_starts(tmp_path: Path, text: str, said: str) -> None:
    x, y = load_digits(return_X_y=True)
    np.savez(tmp_path / "alone.npz", x_train=x, y_train=y)
    head = HEAD.replace('"0.5:1.0"', '"700:1438"') if "tickets" in text else HEAD
    head = head.replace('subset = "0.5:1.0"\n', "") if "alone" in text else head
    if "epsilon" in text:
        head = head.replace("noise-multiplier = 1.0\n", "")
    assert said in refused(ready, head + SETS + text.replace("FOLDER", str(tmp_path)))


def test_a_draw_of_three_stages_takes_the_persons_of_the_training_however_their_rows_are_spelled() -> None:
    stages = {"generate": {"provenance": "public"}, "train": {"dataset": "d.csv", "unit_column": "who", "per_unit": 3}}
    drawing = read_stages(stages, Path("r.toml"), RunRequest(epsilon=1.0), Path("o"))["select"]
    assert (drawing.dataset, drawing.unit_column, drawing.per_unit) == ("d.csv", "who", 3)
