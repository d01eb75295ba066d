"""Datasets and loaders of other libraries are refused: what they give may be drawn anew each time."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import dpltm
from refusals import refused

DATASET = TensorDataset(torch.zeros(40, 3), torch.arange(40) % 2)


class Columns:
    """As a ``datasets.Dataset`` of Hugging Face."""

    column_names = ("text", "label")

    def __getitem__(self, key):
        raise AssertionError("nobody reads it")


@pytest.mark.parametrize("given", [DATASET, DataLoader(DATASET), Columns()])
def test_arrays_are_asked_for(given):
    said = f"`x`: {type(given).__name__} is gone since 0.3: give arrays; of PyTorch torch.stack("
    assert refused(dpltm.train, "mlp:4", given, ledger=dpltm.Ledger(), epsilon=1.0).startswith(said)
    loss = torch.nn.CrossEntropyLoss(reduction="none")
    terms = {"batch_size": 20, "steps": 1, "epsilon": 1.0, "delta": 1e-3}
    loop = (dpltm.PrivateLoop, torch.nn.Linear(3, 2), loss, given, torch.arange(40) % 2)
    assert refused(*loop, **terms).startswith(said)
