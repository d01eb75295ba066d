"""dpltm train --head least-squares, which is the default of a table: what it spends, and what comes of it."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some
from sklearn.metrics import log_loss, roc_auc_score
from torch.nn import functional

from commands import certified
from dpltm.features import parse
from dpltm.features.feature_map import SplineMap, map_of
from dpltm.features.normalisation import noisy_sum
from dpltm.privacy.account import Account
from dpltm.privacy.entry import entry_from_json
from dpltm.privacy.mechanisms import GaussianRelease
from dpltm.randomness.noise import FastSource
from dpltm.records.dataset import LEVELS
from dpltm.records.split import Arrays
from dpltm.records.units import ABSENT
from dpltm.training.least_squares import Labels, Prepared, Screen, calibrate, shrunk

BARE = "train --dense --head least-squares --dataset digits --delta 1e-4 --ledger l.jsonl --out r --json"
UNIT = f"{BARE} --features unit"


def test_it_spends_what_is_in_its_ledger_and_its_run_works_as_others_do(cli, entries):
    body = cli(f"{UNIT} --epsilon 8").json
    (entered,) = map(entry_from_json, entries("l.jsonl"))
    assert 7.9 < certified(body) <= 8
    assert certified(body) == Account((entered,)).epsilon(1e-4)
    assert len(entered.mechanisms) == 3, "the mean of features, second moments of centred ones, and steps"
    assert body["accuracy"] > 0.85, "a plain nearest class mean has 0.88 of these, and chance 0.1"
    assert cli("evaluate r --dataset digits --json").json["accuracy"] == body["accuracy"]


def test_a_stated_noise_multiplier_is_that_of_the_whole(cli, entries):
    """The inverse squares of all parts add up to its own; second moments of 64 features are below the noise at 20."""
    for noise, parts in ((1.0, 3), (20.0, 2)):
        body = cli(f"{UNIT} --noise-multiplier {noise}").json
        assert (body["second_moments"] is not None) == (parts == 3)
        entered = entry_from_json(entries("l.jsonl")[-1]).mechanisms
        inverse = sum(getattr(one, "steps", 1) / one.noise_multiplier**2 for one in entered)
        assert len(entered) == parts
        assert 1 / math.sqrt(inverse) == pytest.approx(noise)
        Path("r").rename(f"r{parts}")


def test_second_moments_of_too_many_features_are_left_out_and_it_says_why(cli, cwd):
    x, y = np.random.default_rng(0).integers(0, 256, (40, 5000)).astype(np.uint8), np.arange(40) % 2
    for features, there in ((4999, True), (5000, False)):
        np.savez(cwd / "wide.npz", x_train=x[:, :features], y_train=y)
        wide = f"{BARE} --dataset wide.npz --bounds 0,255 --features unit --noise-multiplier 0.001 --dry-run"
        assert (cli(wide).json["second_moments"] is not None) == there
    notes = cli(wide).json["privacy"]["notes"]
    assert any("second moments are left out above 4,999 features" in note for note in notes)


def test_replace_one_has_twice_the_noise(cli):
    command = f"{UNIT} --noise-multiplier 1 --dry-run --adjacency"
    one, two = (cli(f"{command} {adjacency}").json for adjacency in ("add-remove", "replace-one"))
    assert two["noise_std"] == 2 * one["noise_std"]
    assert two["lr"] == one["lr"] / 2, "the step is as long as the noise allows"


def test_a_mean_that_noise_explains_is_taken_for_zero():
    """The positive part of James and Stein: 1 - (dimension times variance) / (squared norm)."""
    centre = torch.tensor([3.0, 4.0])
    assert torch.equal(shrunk(centre, 100 * math.sqrt(12.5), 100), torch.zeros(2)), "2 (sqrt 12.5)^2 = 25 = 3^2 + 4^2"
    assert torch.equal(shrunk(centre, 1e6, 100), torch.zeros(2))
    assert torch.allclose(shrunk(centre, 100 * 2.5, 100), centre / 2)
    assert torch.equal(shrunk(centre, 0.0, 100), centre)
    assert torch.equal(shrunk(torch.zeros(2), 1.0, 100), torch.zeros(2))


def test_ranks_are_refused(refused, monkeypatch):
    for name, value in (("TORCHELASTIC_RUN_ID", "1"), ("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0")):
        monkeypatch.setenv(name, value)
    assert refused(f"{UNIT} --epsilon 1").startswith("--head least-squares works in one process")


# tables


TABLE = "train --dense --dataset t.csv --label y --bounds 0,1 --records 4000 --ledger l.jsonl --out r --json"


def made(count: int = 8000) -> np.ndarray:
    """Six columns, of which the first two go together; and chances that their product, and the third, come true."""
    draw = np.random.default_rng(0)
    x = draw.random((count, 6))
    score = 40 * (x[:, 0] - 0.5) * (x[:, 1] - 0.5) + 4 * x[:, 2] - 5
    return np.column_stack([x.round(4), draw.random(count) < 1 / (1 + np.exp(-score))])


@pytest.fixture(name="table")
def _table(cwd: Path) -> np.ndarray:
    rows, names = made(), "a,b,c,d,e,f,y"
    for name, part in (("t.csv", rows[:4000]), ("h.csv", rows[4000:])):
        np.savetxt(cwd / name, part, delimiter=",", header=names, comments="", fmt=[*6 * ["%.4f"], "%d"])
    return rows


def test_a_table_gets_splines_and_the_pair_that_goes_together(cli, table, entries):
    """With little noise: most of what can be known is known, and chances add up."""
    told = cli(f"{TABLE} --classes 2 --test h.csv --noise-multiplier 1 --metric auc").json
    entered = entry_from_json(entries("l.jsonl")[-1])
    inverse = sum(getattr(one, "steps", 1) / one.noise_multiplier**2 for one in entered.mechanisms)
    assert len(entered.mechanisms) == 6, "mean, class sums, pairs, second moments, steps, excess"
    assert 1 / math.sqrt(inverse) == pytest.approx(1), "a stated multiplier is that of the whole"
    config = json.loads(Path("r/config.json").read_text())
    assert config["resolved"]["features"] == "splines:6"
    assert [0, 1] in config["feature_map"]["splines"]["pairs"]
    x, y = table[4000:, :6], table[4000:, 6]
    best = 40 * (x[:, 0] - 0.5) * (x[:, 1] - 0.5) + 4 * x[:, 2]
    assert told["skill"]["auc"]["value"] > roc_auc_score(y, best) - 0.02
    cli("predict r --input h.csv --out p.csv")
    chances = np.loadtxt("p.csv", delimiter=",", skiprows=1)[:, 2]
    assert chances.mean() / y.mean() == pytest.approx(1, abs=0.03)
    assert log_loss(y, chances) < 1.1 * log_loss(y, 1 / (1 + np.exp(5 - best)))


@pytest.mark.parametrize(("classes", "targets"), [(2, False), (3, False), (2, True)])
def test_nothing_is_kept_of_noise_and_what_was_planted_is(classes, targets):
    x, even = torch.from_numpy(made()[:4000, :6]).float(), torch.full((classes,), 1 / classes).double()
    screen = Screen(known(x), Labels(targets, False, even, screened=0.6 if targets else 1.0))
    product, draw = (x[:, 0] - 0.5) * (x[:, 1] - 0.5), torch.Generator().manual_seed(1)
    told = {
        "noise": torch.rand(4000, generator=draw),
        "planted": (0.5 + 2 * product + 0.2 * torch.rand(4000, generator=draw)).clamp(0, 1),
    }
    for name, values in told.items():
        labels = (values * LEVELS).long() if targets else (values * classes).long().clamp_max(classes - 1)
        kept = screen.kept(screen.rows(x, labels).double().sum(0), 3.0, 4000)
        assert kept[:1] == (() if name == "noise" else ((0, 1),))
        if targets:
            continue
        # of persons who have four records, by the mean of theirs; without noise it is by far what stands out
        indicators = functional.one_hot(labels, classes).double().view(1000, 4, classes).mean(1)
        plain = Labels(False, True, even)
        whose = Screen(known(x), plain.counted(plain.rows(indicators).sum(0), 0.0, 1000))
        means = whose.rows(x, labels).double().view(1000, 4, -1).mean(1)
        kept = whose.kept(noisy_sum([means], whose.width, 1.0, 1e-3, FastSource(0)), 3.0, 1000)
        assert kept[:1] == (() if name == "noise" else ((0, 1),))
        assert 0.5 < means.norm(dim=1).median() < 2, "so that neither signal nor bound is left unused"


def known(x: torch.Tensor) -> SplineMap:
    """A map with the moments of these columns."""
    plain = map_of(parse("splines"), (x.shape[1],), (0.0, 1.0))
    assert isinstance(plain, SplineMap)
    return replace(plain, slots=12).centred_at(plain.moment_rows(x).mean(0))


HOSTILE = some.sampled_from([0.0, 1.0, 0.5, 1e-30, -1e30, math.inf, math.nan])


@given(
    some.lists(some.tuples(HOSTILE, HOSTILE, HOSTILE, some.integers(0, 2)), min_size=1),
    some.sampled_from([2, 3, 0]),
    some.booleans(),
)
def test_no_unit_adds_more_than_one(values, classes, persons):
    """To class sums and cross moments, whatever it holds; what is not finite counts for nothing in a sum."""
    targets, labels = classes == 0, torch.tensor([row[3] for row in values])
    known_as = Labels(targets, persons, torch.full((classes or 2,), 1 / (classes or 2)).double())
    known_as = replace(known_as, screened=0.3 if known_as.spread else 1.0)
    labels = labels * (LEVELS // 2) if targets else labels.clamp_max(classes - 1)
    x = torch.tensor([row[:3] for row in values])
    rows = Screen(known(torch.rand(50, 3, generator=torch.Generator().manual_seed(0))), known_as)
    units = known_as.indicators(labels)
    units = units.mean(0, keepdim=True) if persons else units
    moments = rows.rows(x, labels)
    for norms in (known_as.rows(units).norm(dim=1), *([] if known_as.are_means else [moments.norm(dim=1)])):
        assert (norms[norms.isfinite()] <= 1 + 1e-6).all()
    if known_as.are_means:  # of records that may be longer, the mean is cut where it is summed
        total = noisy_sum([moments.mean(0, keepdim=True)], rows.width, 1.0, 1e-9, FastSource(0))
        assert total.norm() <= 1 + 1e-6


def mean_chance(begin, labels, y, noise_std, seed=0):
    """Mean chance of the second class that begins at ``begin`` everywhere, once it is calibrated by ``y``."""
    records = Arrays(np.zeros((*y.shape, 1), np.float32), y)
    front, model = map_of(parse("splines"), (1,), (0.0, 1.0)), torch.nn.Linear(7, 2)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.copy_(torch.tensor([1 - begin, begin]).log())
    release, draw = GaussianRelease(noise_std, 1.0), lambda _, make: make()
    calibrate(model, Prepared(front, None, labels), release, lambda: records, FastSource(seed), draw, len(y))
    return torch.softmax(model.bias, 0)[1].item()


def known_shares(share, doubt, persons=False):
    return Labels(False, persons, torch.tensor([1 - share, share]).double(), doubt=torch.tensor([doubt]))


def test_chances_are_moved_to_the_share_as_far_as_noise_can_tell():
    """A share that noise put a third off is found again, and chances that drifted from one that is known; where nothing is
    off, noise of 30 % moves chances by less."""
    y = (np.arange(2000) < 100).astype(np.int64)
    for share in (0.035, 0.05, 0.07):
        assert mean_chance(share, known_shares(share, 0.02), y, 1e-3) == pytest.approx(0.05, rel=0.12)
    for chance in (0.025, 0.1):
        assert mean_chance(chance, known_shares(0.05, 0.001), y, 1e-3) == pytest.approx(0.05, rel=0.02)
    known = known_shares(0.05, 0.01)
    moved = [math.log(mean_chance(0.05, known, y, 30.0, seed) / 0.05) for seed in range(40)]
    assert 0.02 < np.std(moved) < 0.3


def test_chances_are_right_by_rows_also_where_persons_with_more_of_them_differ():
    """One row of half of the persons, none of them positive; five of the others, every fifth of them."""
    y = np.full((2000, 5), ABSENT)
    y[:1000, 0] = 0
    y[1000:] = np.arange(5) == 0
    assert mean_chance(0.1, known_shares(0.1, 0.001, persons=True), y, 1e-3) == pytest.approx(1 / 6, rel=0.05)


@pytest.mark.parametrize("targets", [False, True])
def test_residuals_of_units_are_clipped_at_some_deviations(targets):
    """Two of targets; of persons' means half over the deviation of single labels; by numpy, which has no noise."""
    share = np.random.default_rng(0).beta(2, 6, 500)
    units = torch.from_numpy(np.stack([1 - share, share], 1))
    plain = Labels(targets, not targets, torch.full((2,), 0.5).double())
    counted = plain.counted(plain.rows(units).sum(0), 0.0, 500)
    many = 2 if targets else 0.5 / math.sqrt(share.mean() * (1 - share.mean()))
    assert counted.scale == pytest.approx(many * share.std())
    np.testing.assert_allclose(counted.shares, [1 - share.mean(), share.mean()])
    three = Labels(False, True, torch.full((3,), 1 / 3).double())
    corners = functional.one_hot(torch.arange(3)).double()  # mean squared distance from the middle: 2/3, of 2 at most
    single = three.counted(three.rows(corners).sum(0), 0.0, 3)
    assert (single.scale, single.screened, single.left) == pytest.approx((0.5, 0.6 * math.sqrt(1 / 3), 1.0))
    rare = Labels(False, True, torch.full((2,), 0.5).double())
    few = torch.tensor([[0.0, 1.0], *[[0.99, 0.01]] * 99]).double()
    assert rare.counted(rare.rows(few).sum(0), 0.0, 100).scale == pytest.approx(2 * few[:, 1].std(correction=0).item())
    inner = corners / 4 + 3 / 12
    assert three.counted(100 * three.rows(inner).sum(0), 0.0, 300).scale == pytest.approx(0.125)  # a fourth of that
