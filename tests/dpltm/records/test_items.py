"""Datasets of PyTorch with random access, as arrays."""

import itertools
import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torch.utils.data import Dataset as TorchDataset

import dpltm
from dpltm.records.arrays import arrays_of
from refusals import refused

X, Y = torch.arange(300, dtype=torch.uint8).reshape(60, 5), torch.arange(60) % 3


class Listed(TorchDataset):
    """Items as they are listed; an exception is raised."""

    def __init__(self, *items):
        self.items, self.asked = items, []

    def __len__(self):
        return len(self.items)

    def __getitem__(self, place):
        self.asked.append(place)
        if isinstance(self.items[place], Exception):
            raise self.items[place]
        return self.items[place]


class Endless(IterableDataset):
    def __iter__(self):
        return iter(())


def test_items_are_read_once_in_order():
    given = Listed(*zip(X.numpy(), Y.tolist(), strict=True))
    x, y = arrays_of(given)
    assert given.asked[:60] == list(range(60))
    assert given.asked[60:] == list(range(8)), "again, since what is drawn at random is refused"
    assert np.array_equal(x, X)
    assert x.dtype == np.uint8
    assert np.array_equal(y, Y)
    assert not x.flags.writeable


@pytest.mark.parametrize(
    "given", [lambda row, y: ({"ids": row, "b": y}, y), lambda row, y: {"ids": row, "b": y, "label": y}]
)
def test_items_of_several_parts(given):
    x, y = arrays_of(Listed(*(given(row, label) for row, label in zip(X.numpy(), Y.numpy(), strict=True))))
    assert list(x) == ["b", "ids"]
    assert np.array_equal(x["ids"], X)
    assert np.array_equal(x["b"], Y)
    assert np.array_equal(y, Y)
    x, y = arrays_of(TensorDataset(X, Y))
    assert isinstance(x, np.ndarray)
    assert refused(arrays_of, Listed(*(((row, row[:2]), 1) for row in X))).startswith("`x`: a tuple of arrays")


class Flipped(Listed):
    """Items that are turned about half of the times, from some place on: a random transform."""

    def __init__(self, coin, begins=0):
        super().__init__(*zip(X.float(), Y, strict=True))
        self.coin, self.begins = coin, begins

    def __getitem__(self, place):
        x, y = super().__getitem__(place)
        return (x.flip(0) if place >= self.begins and self.coin() < 0.5 else x), y


COMMON = (lambda: float(torch.rand(())), np.random.rand, random.random)


@pytest.mark.parametrize(
    ("coin", "begins"), [*itertools.product(COMMON, (0, 50)), (np.random.default_rng(0).random, 0)]
)
def test_random_transforms_are_refused(coin, begins):
    """By a common generator, or by one that no state tells of: whoever comes first decides how all others are turned."""
    said = refused(arrays_of, Flipped(coin, begins), None)
    assert "of Flipped is drawn at random" in said


def test_another_thread_may_draw_meanwhile():
    ahead = iter([True])  # moves the generator once, as if another thread did
    x, _ = arrays_of(Flipped(lambda: 1.0 if next(ahead, None) is None else 1.0 + 0 * random.random()))
    assert np.array_equal(x, X.float())


def test_what_gives_no_items_by_place_is_refused():
    pair = (X[0], Y[0])
    for given, y, message in (
        (TensorDataset(X, Y), Y, "`y`: `x` is a dataset, whose items hold their labels; leave `y` out"),
        (
            DataLoader(TensorDataset(X, Y)),
            None,
            "`x`: a DataLoader, which draws batches of its own; give its dataset, loader.dataset",
        ),
        (Endless(), None, "`x`: Endless has no records by place; give a dataset with __getitem__ and __len__"),
        (Listed(), None, "`x`: Listed holds no records"),
        (Listed(X[0]), None, "`x`: item 0 is no pair of features and label; give a dataset of such pairs"),
        (
            Listed(({"ids": X[0]}, 1), ({"mask": X[0]}, 1)),
            None,
            "`x`: item 1 has other parts than the first; give all records the same",
        ),
        (
            Listed(pair, (X[0, :4], Y[0])),
            None,
            "`x`: item 1 is uint8 of shape (4,), and the first uint8 of shape (5,); give all records one shape and type,"
            " rows padded to a public length",
        ),
        (
            Listed(pair, ValueError("somebody's name")),
            None,
            "`x`: item 1 of Listed cannot be read (ValueError); correct the dataset",
        ),
    ):
        assert refused(arrays_of, given, y) == message


def test_the_faces_take_them_as_arrays():
    few = {"bounds": (0, 255), "classes": 3, "delta": 1e-4, "steps": 2, "noise_multiplier": 5.0}
    runs = [dpltm.train("mlp:4", *given, **few) for given in ((TensorDataset(X, Y),), (X, Y))]
    snapshots = {entry.part.snapshot for run in runs for entry in run.lineage.paid}
    assert len(snapshots) == 1
    model, loss = torch.nn.Linear(5, 3), torch.nn.CrossEntropyLoss(reduction="none")
    terms = {"batch_size": 20, "steps": 2, "noise_multiplier": 2.0, "delta": 1e-4}
    for step in dpltm.PrivateLoop(model, loss, TensorDataset(X.float(), Y), **terms):
        step.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    said = refused(dpltm.PrivateLoop, model, loss, {"ids": X, "mask": X}, Y, **terms)
    assert said.startswith("`x`: a mapping of arrays; put them side by side, np.concatenate(")
