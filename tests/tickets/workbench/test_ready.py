"""A recipe against the records at hand: all that does not suit is said, before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

import refusals
from dpltm.options.data import DataOptions
from dpltm.privacy.entry import Part
from dpltm.privacy.ledger import Ledger
from dpltm.records import Dataset, load
from dpltm.tickets.workbench.recipes import check_ready
from recipes import DENSE, HEAD, SETS, read_recipe


def read(options: DataOptions) -> Dataset:
    bounds: Any = None if options.bounds is None else tuple(map(float, options.bounds.split(",")))
    assert options.dataset is not None
    return load(options.dataset, subset=options.subset, classes=options.classes, bounds=bounds)


def ready(text: str, **options: Any) -> dict[str, Part]:
    return check_ready(read_recipe(text, **options), read, Ledger())


def refused(text: str) -> str:
    return refusals.refused(ready, text)


@pytest.fixture
def no_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DPLTM_DATA", str(tmp_path / "nowhere"))


def test_what_each_arm_trains_on() -> None:
    records = ready(HEAD + DENSE + '[[arm]]\nname = "all"\ntrain = { subset = "0:1438" }\n')
    assert list(records) == ["dense", "all"]
    assert records["dense"].overlaps(records["all"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (DENSE + "train = { batch-size = 5000, delta = 0.01 }", "`delta`: 0.01 is not between"),
        (DENSE + "train = { batch-size = 5000 }", "`batch_size`: 5000"),
        (DENSE + 'train = { epsilon = 1.0 }\ntune = { dataset = "digits", for-records = 1600, lr = "1" }',
         "tune `dataset`: digits is declared public and shares records with digits[0.5:1.0]"),
        ('[[arm]]\nname = "x"\ntickets = "b"\nround = 1\n[tickets.b]\nfrom = "a"\ndataset = "digits"\n',
         "[tickets.a] `dataset`: digits[0.0:0.5] is declared public and shares records with digits[700:1438]"),
        ('[[arm]]\nname = "x"\ntickets = "none"\nround = 1\n', "tickets: no set 'none'; known: a"),
        (DENSE + 'train = { subset = "700:1438" }\n', "[tickets.a] `dataset`: digits[0.0:0.5] is declared public"),
        ('[[arm]]\nname = "x"\ntrain = { dataset = "FOLDER/alone.npz", classes = 10, bounds = "0,16" }\n',
         "has no test records"),
    ],
)  # fmt: skip
def test_what_records_have_to_say_is_said_before_anything_starts(tmp_path: Path, text: str, said: str) -> None:
    x, y = load_digits(return_X_y=True)
    np.savez(tmp_path / "alone.npz", x_train=x, y_train=y)
    head = HEAD.replace('"0.5:1.0"', '"700:1438"') if "tickets" in text else HEAD
    head = head.replace('subset = "0.5:1.0"\n', "") if "alone" in text else head
    if "epsilon" in text:
        head = head.replace("noise-multiplier = 1.0\n", "")
    assert said in refused(head + SETS + text.replace("FOLDER", str(tmp_path)))


@pytest.mark.usefixtures("no_files")
def test_each_dataset_that_is_not_at_hand_is_said_once() -> None:
    arms = "".join(f'[[arm]]\nname = "{at}"\ntrain = {{ dataset = "a9a", subset = "0:{at}00" }}\n' for at in (3, 4, 5))
    said = refused(HEAD + arms + '[[arm]]\nname = "b"\ntrain = { dataset = "kmnist-7k", subset = "0:99" }\n')
    assert "2 problems" in said
    assert said.count("a9a.npz") == said.count("kmnist-7k.npz") == 1


def test_options_that_are_wrong_are_said_of_each_arm() -> None:
    """A dataset whose options are wrong is none that is missing: the next arm's are looked at as well."""
    arms = "".join(f'[[arm]]\nname = "{at}"\ntrain = {{ subset = "{at}:x" }}\n' for at in (1, 2))
    said = refused(HEAD + arms)
    assert "'1'" in said
    assert "'2'" in said
