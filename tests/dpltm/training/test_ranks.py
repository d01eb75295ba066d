"""Several ranks: what they tell each other, that they end together, and that they train as one process does."""

import pytest
import torch

import rank_work
from dpltm.errors import InputError
from dpltm.training import launcher
from dpltm.training.ranks import Ranks, rows_digest
from ranked import Ranked

CASES = (
    ("mlp:12", "clip", {}),
    ("mlp:12", "clip", {"expected_batch": 700.0}),  # two chunks at once
    ("mlp:12", "clip", {"expected_batch": 2900.0}),  # four, and two left over
    ("mlp:12", "per-layer", {"physical_batch": 7}),
    ("mlp:12", "tanh", {}),
    ("mlp:12", "clip", {"participations": 2}),
    ("mlp:12", "auto", {"precision": "bfloat16"}),
    ("cnn:28x28x1", "clip", {"physical_batch": 30}),
    ("mlp:20", "clip", {"microbatch": 3}),
    ("mlp:20", "tanh", {"microbatch": 3, "physical_batch": 30}),
    ("mlp:12", "clip", {"dropout": 0.5, "physical_batch": 30}),
    ("mlp:12", "tanh", {"dropout": 0.5, "microbatch": 3}),
    ("mlp:12", "clip", {"strategy": (1.0, 0.6, 0.4)}),
)


@pytest.mark.long
def test_one_and_four_ranks_train_the_same_bits(ranked: Ranked):
    """Of other ranks than the first, coins and noise are wrong on purpose: they may not be used."""
    found = {size: ranked.run(size, "rank_work:train_some", CASES) for size in (1, 4)}
    expected = found[1][0].value
    assert len(set(expected)) == len(CASES)
    for size, ranks in found.items():
        assert [rank.value for rank in ranks] == [expected] * size, ranks[0].err


@pytest.mark.one_of(6)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_process_alone_trains_nearly_the_same(case):
    """The oracle: no ranks at all. Its batches are others, so the last bits of float32 may be."""
    network, filter, more = case
    alone = [value.detach() for value in rank_work.trained(network, filter, None, **more).parameters()]
    shared = [value.detach() for value in rank_work.trained(network, filter, Ranks(), **more).parameters()]
    torch.testing.assert_close(shared, alone, rtol=0, atol=2e-3 if more.get("precision") else 1e-5)


def test_rows_are_told_apart():
    x = torch.arange(12.0).view(4, 3)
    found = {
        rows_digest(x),
        rows_digest(x.view(3, 4)),
        rows_digest(x.double()),
        rows_digest(x.flip(0)),
        rows_digest(x, x),
    }
    assert len(found) == 5
    assert rows_digest(x) == rows_digest(x.numpy().copy())


def test_torchrun_is_known_by_its_environment(monkeypatch: pytest.MonkeyPatch):
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    assert launcher.launched() is None, "others set these as well"
    launcher.check_alone("this")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert launcher.launched() == launcher.Place(1, 2, 0)
    with pytest.raises(
        InputError, match=r"^this works in one process, and torchrun started 2: run it without torchrun$"
    ):
        launcher.check_alone("this")
    monkeypatch.setenv("WORLD_SIZE", "1")
    launcher.check_alone("this")
