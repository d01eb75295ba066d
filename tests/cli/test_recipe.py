"""Recipes: what is wrong with one is said all at once; one that is right becomes arms, members and what they are made of."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpltm.cli.recipe import laid, read_recipe
from dpltm.errors import InputError

HEAD = """
[recipe]
title = "T"
seeds = 2
[train]
dataset = "digits"
subset = "0.5:1.0"
model = "mlp:4"
batch-size = 50
steps = 2
noise-multiplier = 1.0
"""

SETS = """
[tickets.a]
dataset = "digits"
subset = "0.0:0.5"
provenance = "public"
model = "mlp:4"
rounds = 2
iterations = 3
batch-size = 30
"""

DENSE = '[[arm]]\nname = "dense"\n'


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "recipe.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture
def wrong(written: Callable[[str], Path]) -> Callable[..., str]:
    """What is said about a recipe that is wrong."""

    def read(text: str, **options: Any) -> str:
        with pytest.raises(InputError) as caught:
            read_recipe(written(text), **options)
        return str(caught.value)

    return read


def test_everything_that_is_wrong_is_said_at_once(wrong: Callable[..., str]) -> None:
    said = wrong(
        '[recipe]\ntitle = "T"\nsedes = 3\n[train]\ndataset = "digits"\nlearning-rate = 1\nepochs = "many"\n'
        '[[arm]]\nname = "a"\ntickets = "none"\nround = 1\n[[arm]]\nnaem = "b"\n[figures]\nover = "steps"\n'
    )
    for part in ("problems:", "'sedes'", "'learning-rate'", "epochs = 'many'", "no set 'none'",
                 "'naem'", "has no name", "'figures'"):  # fmt: skip
        assert part in said, part
    assert "\n" not in said


def test_options_that_contradict_each_other(wrong: Callable[..., str]) -> None:
    said = wrong(HEAD + DENSE + '[[arm]]\nname = "other"\ntrain = { epsilon = 1.0, noise-multiplier = 1.0 }\n')
    assert "'other'" in said
    assert "--epsilon" in said
    assert "--noise-multiplier" in said


def test_two_arms_in_contradiction_are_both_named(wrong: Callable[..., str]) -> None:
    bad = "train = { no-pre-clip = true }\n"
    said = wrong(HEAD + f'[[arm]]\nname = "one"\n{bad}[[arm]]\nname = "two"\n{bad}')
    assert "2 problems" in said
    assert "'one'" in said
    assert "'two'" in said


SET = '[tickets.b]\ndataset = "digits"\n'

TUNE = "train = { epsilon = 1.0 }\n"
LATENT = 'latent = { encode = { dataset = "digits" }, scheme = { public = "digits", epsilon = 1.0, '


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (DENSE + 'train = { epochs = 3.0, steps = 2, no-pre-clip = true, noise = "nominal", filter = "auto" }',
         ("--epochs, --steps", "--no-pre-clip", "--noise")),
        (DENSE + "train = { epsilon = -1.0, stop-at = 2.0, delta = 3.0 }", ("--stop-at", "--epsilon", "--delta")),
        (SET + 'criterion = "dp-synthetic"\nprovenance = "public"', ("--provenance", "--epsilon is missing")),
        (SET + 'criterion = "synflow"\niterations = 3\nprune = "much"', ("--iterations", "--prune")),
        (SET + 'provenance = "public"\nrounds = -4\nepsilon = 3.0', ("--rounds", "--epsilon")),
        (SET + "rounds = 3", ("--provenance is missing",)),
        (SET + 'provenance = "private"\ndelta = 3.0', ("--delta",)),
        ('[[arm]]\nname = "x"\ntickets = "a"\nselect = { rule = "smallest-within", eps1 = 5.0, tolerance = 3.0 }',
         ("--eps1", "--tolerance")),
        ('[[arm]]\nname = "x"\ntickets = "a"\nselect = { score = "additive", sensitivity = "paper", lam = -1.0 }',
         ("--eps1 is missing", "--sensitivity", "--lambda")),
        ('[[arm]]\nname = "x"\ntickets = "a"\ntrain = { epsilon = 1.0 }\nselect = { eps1 = 1.5 }',
         ("leaves nothing of the budget 1",)),
        ('[[arm]]\nname = "x"\ntickets = "a"\ntrain = { epsilon = 1.0 }\nselect = { eps1 = 0.5, reveal = true }',
         ("--reveal: releases scores",)),
        (DENSE + "train = { centre = 0.1 }", ("--centre: needs features", "--centre: a part of a budget")),
        (DENSE + TUNE + 'tune = { lr = "fast,slow", batch-size = "1e9", for-records = 1600, repeats = 0 }',
         ("--lr", "--batch-size", "--repeats")),
        (DENSE + TUNE + 'tune = { rounds = "3", for-records = 1600 }', ("--rounds: only for a ticket set",)),
        ('[[arm]]\nname = "x"\n' + LATENT + "alpha = 3.0 } }", ("--alpha",)),
        ('[[arm]]\nname = "x"\n' + LATENT + 'protocol = "ue", format = "a" }, train = { epochs = -1.0, rounds = -1 } }',
         ("--format", "--label-epsilon is missing", "--epochs", "--rounds")),
        ('[[arm]]\nname = "x"\nlatent = { scheme = { features = "unit" } }',
         ("--public is missing", "--epsilon is missing")),
    ],
)  # fmt: skip
def test_all_contradictions_of_all_commands_are_said(
    wrong: Callable[..., str], text: str, said: tuple[str, ...]
) -> None:
    """Each once, and with nothing said of what it brought about."""
    found = wrong(HEAD + SETS + text + ("" if "[[arm]]" in text else "\n" + DENSE))
    assert all(part in found for part in said), found
    assert len(said) == 1 or f"{len(said)} problems:" in found
    assert len(said) > 1 or "problems:" not in found


def test_a_set_that_cannot_be_public_and_a_rule_that_needs_it(wrong: Callable[..., str]) -> None:
    private = SETS.replace('"public"', '"private"')
    arm = '[[arm]]\nname = "x"\ntickets = "a"\nselect = { rule = "smallest-within" }\n'
    assert "a is no public set" in wrong(HEAD + private + arm)


def test_wrong_keys_contradictions_and_datasets_are_said_together(
    refused: Callable[..., str], cwd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPLTM_DATA", str(cwd / "nowhere"))
    (cwd / "r.toml").write_text(
        HEAD.replace("batch-size = 50", 'batch-size = "many"').replace("seeds", "sedes") + SETS + DENSE
        + "train = { epochs = 1.0, steps = 2, no-pre-clip = true }\n"
        + '[[arm]]\nname = "b"\ntrain = { dataset = "kmnist-7k" }\n'
        + '[tickets.deep]\ndataset = "digits"\nprovenance = "public"\nmodel = "mlp:4"\nrounds = 40\n',
        encoding="utf-8",
    )  # fmt: skip
    said = refused("run", "--config", "r.toml")
    assert "6 problems" in said
    for part in ("'sedes'", "'many'", "--epochs, --steps", "--no-pre-clip", "kmnist-7k.npz", "[tickets.deep]"):
        assert part in said, part
    assert not (cwd / "r.sweep").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (DENSE + "train = { batch-size = 5000, delta = 0.01 }", "--delta: 0.01 is not between"),
        (DENSE + "train = { batch-size = 5000 }", "--batch-size: 5000"),
        (DENSE + 'train = { unit = "user" }', "--unit"),
        (DENSE + 'train = { epsilon = 1.0 }\ntune = { dataset = "digits", for-records = 1600, lr = "1" }',
         "tune --dataset: digits is declared public and shares records with digits[0.5:1.0]"),
        ('[[arm]]\nname = "x"\ntickets = "b"\nround = 1\n[tickets.b]\nfrom = "a"\ndataset = "digits"\n',
         "[tickets.b] --dataset: digits[0.0:0.5] is declared public and shares records with digits[700:1438]"),
        ('[[arm]]\nname = "x"\ntickets = "a"\nround = 1\n', "[tickets.a] --dataset: digits[0.0:0.5] is declared public"),
        ('[[arm]]\nname = "x"\ntrain = { dataset = "alone.npz", classes = 10, bounds = "0,16" }\n', "has no test records"),
    ],
)  # fmt: skip
def test_what_records_have_to_say_is_said_before_anything_starts(
    refused: Callable[..., str], cwd: Path, text: str, said: str
) -> None:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    np.savez(cwd / "alone.npz", x_train=x, y_train=y)
    head = HEAD.replace('"0.5:1.0"', '"700:1438"') if "tickets" in text else HEAD
    head = head.replace('subset = "0.5:1.0"\n', "") if "alone" in text else head
    if "epsilon" in text:
        head = head.replace("noise-multiplier = 1.0\n", "")
    (cwd / "r.toml").write_text(head + SETS + text, encoding="utf-8")
    assert said in refused("run", "--config", "r.toml", "--dry-run")
    assert not (cwd / "r.sweep").exists()


def test_records_without_ratings_have_no_rmse(refused: Callable[..., str], cwd: Path) -> None:
    (cwd / "r.toml").write_text(HEAD.replace("seeds = 2", 'measure = "rmse"') + DENSE, encoding="utf-8")
    assert "digits holds no ratings" in refused("run", "--config", "r.toml")


def test_what_is_not_at_hand_is_said_once(
    refused: Callable[..., str], cwd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPLTM_DATA", str(cwd / "nowhere"))
    arms = "".join(f'[[arm]]\nname = "{at}"\ntrain = {{ dataset = "a9a", subset = "0:{at}00" }}\n' for at in (3, 4, 5))
    (cwd / "r.toml").write_text(HEAD + arms, encoding="utf-8")
    assert refused("run", "--config", "r.toml").count("a9a.npz") == 1


@pytest.mark.parametrize(
    ("arm", "said"),
    [
        ("round = 1", "is of tickets"),
        ('tickets = "a"', "one of round and select"),
        ('tickets = "a"\nround = 1\nselect = { eps1 = 0.1 }', "one of round and select"),
        ('tickets = "a"\nround = "best"', "neither a number nor random"),
        ("tune = { lr = \"1\" }", "give train an epsilon"),
        ("train = { seed = 3 }", "decided by the recipe"),
        ("train = { out = \"x\" }", "decided by the recipe"),
        ('against = "nobody"', "no arm 'nobody'"),
        ("vary = { lr = [1] }", "train.KEY"),
        ('vary = { "train.lr" = [1, 2], "train.clip-norm" = [1] }', "of one length"),
        ('vary = { "train.lr" = [] }', "of one length"),
        ("paper = [1, 2]", "a list needs vary"),
        ("paper = nan", "finite numbers"),
        ('paper = ["abc"]\nvary = { "train.lr" = [1] }', "a list of numbers"),
        ("train = { epochs = 1979-05-27 }", "finite numbers"),
        ("train = { lr = nan }", "finite numbers"),
        ("train = { lr = -1.0 }", "--lr"),
        ("train = { clip-norm = -1.0 }", "--clip-norm"),
        ("train = { delta = 1e-300 }", "--delta"),
        ('tickets = "a"\nround = 3', "none of the rounds"),
        ('latent = { scheme = {} }\ntrain = { lr = 1 }', "not of both"),
        ('latent = { shceme = {} }', "'shceme'"),
        ('train = { filter = "clipp" }', "'clipp'"),
        ('tickets = "a"\nround = 1\ntrain = { model = "mlp:8" }', "--model"),
        ('tune = { tickets = ["a"] }', "no set ['a']"),
        ("latent = { scheme = 3 }", "latent.scheme: must be a table"),
        ('latent = { scheme = 3 }\nvary = { "latent.scheme.epsilon" = [1] }', "latent.scheme: must be a table"),
        ('against = "x"', "no arm 'x'"),
    ],
)  # fmt: skip
def test_an_arm_that_is_wrong(wrong: Callable[..., str], arm: str, said: str) -> None:
    assert said in wrong(HEAD + SETS + f'[[arm]]\nname = "x"\n{arm}\n')


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HEAD, "[[arm]]: missing"),
        (HEAD + DENSE + DENSE, "named twice"),
        (DENSE.replace("[[arm]]", "[recipe]\n[[arm]]"), "title: missing"),
        (HEAD.replace("seeds = 2", "seeds = 0") + DENSE, "not from 1 to"),
        (HEAD.replace("seeds = 2", 'measure = "f1"') + DENSE, "'f1'"),
        (HEAD + DENSE + "[figure]\nover = \"values\"\n", "no arm has vary"),
        (HEAD + DENSE + "[figure]\nover = \"time\"\n", "'time'"),
        (HEAD + DENSE + '[tickets.b]\nfrom = "c"\n', "no set 'c'"),
        (HEAD + DENSE + '[tickets.b]\nfrom = "c"\n[tickets.c]\nfrom = "b"\n', "circle"),
        (HEAD + DENSE + "[quick]\ntrain = { stepz = 1 }\n", "'stepz'"),
        (HEAD + DENSE + "tickets = 3\n", "tickets"),
        (HEAD + DENSE + "[tickets.b]\nfrom = [1]\n", "the name of a set"),
        (HEAD.replace("seeds = 2", "notes = [1979-05-27]") + DENSE, "finite numbers"),
        (HEAD + DENSE + "[quick.latent]\nschem = {}\n", "'schem'"),
    ],
)  # fmt: skip
def test_a_table_that_is_wrong(wrong: Callable[..., str], text: str, said: str) -> None:
    assert said in wrong(text)


def test_quick_needs_a_table_that_says_how(wrong: Callable[..., str]) -> None:
    assert "[quick]: missing" in wrong(HEAD + DENSE, quick=True)


def test_tables_go_over_one_another(written: Callable[[str], Path]) -> None:
    text = HEAD + SETS + (
        '[[arm]]\nname = "dense"\nvary = { "train.epsilon" = [3, 1], "train.lr" = [0.5, 0.25] }\npaper = [90, 80]\n'
        '[[arm]]\nname = "ticket"\ntickets = "a"\nround = 2\nagainst = "dense"\nvary = { "train.epsilon" = [3, 1] }\n'
        '[[arm]]\nname = "plain"\ntickets = "a"\nround = "random"\nagainst = "dense, epsilon 1"\n'
        "[quick]\nseeds = 1\nround = 1\ntrain = { epochs = 0.1 }\ntickets = { iterations = 1 }\n"
    )  # fmt: skip
    recipe = read_recipe(written(text))
    assert [arm.name for arm in recipe.arms] == [
        "dense, epsilon 3", "dense, epsilon 1", "ticket, epsilon 3", "ticket, epsilon 1", "plain"
    ]  # fmt: skip
    assert [arm.paper for arm in recipe.arms] == [90, 80, None, None, None]
    assert [arm.against for arm in recipe.arms] == [
        None,
        None,
        "dense, epsilon 3",
        "dense, epsilon 1",
        "dense, epsilon 1",
    ]
    dense, ticket = recipe.arms[1], recipe.arms[3]
    assert dense.train["epsilon"] == 1
    assert dense.train["lr"] == 0.25
    assert "noise-multiplier" not in dense.train  # which epsilon takes the place of
    assert "model" in dense.train
    assert "model" not in ticket.train  # the set remembers its own
    assert len(recipe.members) == 10
    assert len({member.label for member in recipe.members}) == 10

    quick = read_recipe(written(text), quick=True)
    assert [arm.name for arm in quick.arms] == ["dense, epsilon 3", "ticket, epsilon 3", "plain"]
    assert quick.seeds == 1
    assert "steps" not in quick.arms[0].train
    assert quick.arms[1].round == 1
    assert quick.tickets["a"]["iterations"] == 1
    assert read_recipe(written(text), 7, True).seeds == 7
    assert {member.label for member in quick.members}.isdisjoint(member.label for member in recipe.members)


def test_a_member_is_known_by_all_that_makes_it(written: Callable[[str], Path]) -> None:
    """Another option anywhere, of its training or of its tickets, makes it another; a title does not."""
    arms = '[[arm]]\nname = "x"\ntickets = "a"\nround = 1\n[[arm]]\nname = "y"\n'
    one = read_recipe(written(HEAD + SETS + arms))
    other = read_recipe(written(HEAD.replace('"T"', '"U"') + SETS.replace("iterations = 3", "iterations = 4") + arms))
    ticket, dense = (read.members[:2] for read in (one, other))
    assert ticket[0].label != dense[0].label
    assert ticket[1].label == dense[1].label


def test_laid_over_takes_the_place_of_what_excludes_it() -> None:
    assert laid({"epochs": 3, "lr": 1}, {"steps": 5}) == {"lr": 1, "steps": 5}
    assert laid({"epsilon": 3}, {"noise_multiplier": 1.0}) == {"noise-multiplier": 1.0}
    both = {"epsilon": 0.3, "noise-multiplier": 2.0}  # of --budget-stop
    assert laid({"noise-multiplier": 1.0}, both) == both
    assert laid({"batch_size": 3}, {"batch-size": 4}) == {"batch-size": 4}


def test_a_dataset_that_is_not_at_hand(
    refused: Callable[..., str], cwd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are named with what to do, and nothing starts."""
    monkeypatch.setenv("DPLTM_DATA", str(cwd / "nowhere"))
    text = HEAD.replace('dataset = "digits"', 'dataset = "har-signals"').replace('subset = "0.5:1.0"', "")
    (cwd / "r.toml").write_text(
        text + DENSE + '[[arm]]\nname = "b"\ntrain = { dataset = "kmnist-7k" }\n', encoding="utf-8"
    )
    said = refused("run", "--config", "r.toml")
    assert "2 problems" in said
    assert "har-signals.npz" in said
    assert "kmnist-7k.npz" in said


def test_a_network_that_does_not_fit_is_found_before_anything_starts(refused: Callable[..., str], cwd: Path) -> None:
    (cwd / "r.toml").write_text(HEAD + DENSE + '[[arm]]\nname = "c"\ntrain = { model = "cnn" }\n', encoding="utf-8")
    assert "14 x 14" in refused("run", "--config", "r.toml")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--epsilon", "3"), "--epsilon: a recipe"),
        (("--seed", "1"), "--seed: a recipe"),
        (("--jobs", "0"), "--jobs: 0"),
        (("--seeds", "0"), "seeds: 0"),
    ],
)
def test_flags_that_a_recipe_does_not_take(
    refused: Callable[..., str], cwd: Path, flags: tuple[str, ...], said: str
) -> None:
    (cwd / "r.toml").write_text(HEAD + DENSE, encoding="utf-8")
    assert said in refused("run", "--config", "r.toml", *flags)


def test_flags_of_recipes_alone(refused: Callable[..., str], cwd: Path) -> None:
    (cwd / "r.toml").write_text("[run]\nepsilon = 3\n", encoding="utf-8")
    for flags in (("--seeds", "2"), ("--quick",), ("--jobs", "2")):
        assert "is none" in refused("run", "--config", "r.toml", *flags)


def test_a_plan_says_what_would_be_spent_and_does_nothing(
    cli: Callable[..., Any], tree: Callable[[], dict[str, bytes | None]], cwd: Path
) -> None:
    (cwd / "r.toml").write_text(
        HEAD + SETS + DENSE + '[[arm]]\nname = "x"\ntickets = "a"\nround = 1\n', encoding="utf-8"
    )
    before = tree()
    body = cli("run", "--config", "r.toml", "--dry-run", "--json").json
    assert tree() == before
    assert body["members"] == 4
    dense, ticket = body["arms"]
    alone = cli("train", "--dense", "--dataset", "digits", "--subset", "0.5:1.0", "--model", "mlp:4", "--batch-size", "50",
                "--steps", "2", "--noise-multiplier", "1", "--dry-run", "--json").json  # fmt: skip
    assert dense["privacy"]["certified"] == alone["privacy"]["certified"]
    assert ticket["privacy"] is None
    assert json.dumps(body)
