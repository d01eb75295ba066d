"""Skill against scikit-learn's metrics, intervals against draws, and what is said of a network that has none."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn import metrics
from sklearn.calibration import calibration_curve
from sklearn.metrics import balanced_accuracy_score
from torch import Tensor, nn

from dpltm.networks.evaluation import STEP, PricedScore, count_correct, scored_rows, total_score
from dpltm.networks.skill import BINS, DIGITS, RECALLS, GroupSkill, skill_of, target_skill_of, wilson
from dpltm.networks.state import evaluating
from dpltm.records.subgroups import Subgroups
from dpltm.records.units import ABSENT
from dpltm.reports.statement import skill_in
from gradient_cases import rows_of


def made(classes: int, count: int = 500, seed: int = 0, strength: float = 0.7, common: float = 0.6):
    """Outputs and labels, of which ``common`` more are of class 0."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, classes, count)
    labels[draw.random(count) < common] = 0
    outputs = draw.normal(size=(count, classes)).astype(np.float32)
    outputs[np.arange(count), labels] += strength
    return outputs, labels


def chances(outputs: np.ndarray) -> np.ndarray:
    powers = np.exp(outputs.astype(np.float64))
    return powers / powers.sum(1, keepdims=True)


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_is_that_of_scikit_learn(classes: int) -> None:
    outputs, labels = made(classes)
    found, said, shares = skill_of(outputs, labels), outputs.argmax(1), chances(outputs)
    assert found.accuracy.value == metrics.accuracy_score(labels, said)
    assert found.balanced_accuracy.value == pytest.approx(metrics.balanced_accuracy_score(labels, said), rel=1e-12)
    area = metrics.roc_auc_score(labels, shares[:, 1] if classes == 2 else shares, multi_class="ovr")
    assert found.auc.value == pytest.approx(area, rel=1e-12)
    precision, recall, _, records = metrics.precision_recall_fscore_support(labels, said, labels=range(classes))
    assert [one.precision for one in found.classes] == pytest.approx(precision, rel=1e-12)
    assert [one.recall for one in found.classes] == pytest.approx(recall, rel=1e-12)
    assert [one.records for one in found.classes] == records.tolist()
    assert np.array(found.confusion).tolist() == metrics.confusion_matrix(labels, said).tolist()
    assert (found.majority, found.majority_accuracy) == ("0", np.mean(labels == 0))
    assert found.difference.value == pytest.approx(found.accuracy.value - found.majority_accuracy, abs=1e-12)


def test_operating_points_are_those_of_the_curve_of_scikit_learn() -> None:
    outputs, labels = made(2)
    found, shares = skill_of(outputs, labels), chances(outputs)[:, 1]
    false, true, thresholds = metrics.roc_curve(labels, shares, drop_intermediate=False)
    for point, wanted in zip(found.points, RECALLS, strict=True):
        first = int(np.argmax(true >= wanted))  # the highest threshold
        assert thresholds[first] * (1 - 10 ** (1 - DIGITS)) <= point.threshold <= thresholds[first]
        said = shares >= point.threshold
        assert point.recall == metrics.recall_score(labels, said) >= wanted
        assert point.precision == metrics.precision_score(labels, said)
        assert point.specificity == pytest.approx(metrics.recall_score(1 - labels, 1 - said), rel=1e-12)
        assert point.specificity <= 1 - false[first] + 1e-12
        assert point.named == said.sum()


def test_of_a_subgroup_of_few_nothing_is_told_but_how_many() -> None:
    """A figure of nine records is nearly their labels."""
    outputs, labels = made(2)
    found = skill_of(outputs, labels, groups=Subgroups(("most", "ten", "nine"), np.repeat([0, 1, 2], [481, 10, 9])))
    assert [one.accuracy is not None for one in found.groups] == [True, True, False]
    assert found.groups[2] == GroupSkill("nine", 9, None, None, None)
    kept = skill_in(json.loads(json.dumps({"skill": found.to_json()})))
    assert kept.groups == found.groups


@pytest.mark.parametrize("classes", [2, 4])
def test_calibration_is_that_of_scikit_learn(classes: int) -> None:
    outputs, labels = made(classes)
    shares = chances(outputs)
    stated, true = (shares[:, 1], labels == 1) if classes == 2 else (shares.max(1), shares.argmax(1) == labels)
    share, chance = calibration_curve(true, stated, n_bins=BINS, strategy="quantile")
    found = skill_of(outputs, labels)
    filled = [one for one in found.bins if one.records]
    assert len(found.bins) == BINS
    assert sum(one.records for one in found.bins) == len(labels)
    assert [one.chance for one in filled] == pytest.approx(chance, rel=1e-9)
    assert [one.share for one in filled] == pytest.approx(share, rel=1e-9)
    weights = np.array([one.records for one in filled]) / len(labels)
    assert found.calibration_error == pytest.approx(float((weights * np.abs(chance - share)).sum()), rel=1e-9)


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_log_loss_and_mean_chance(classes: int) -> None:
    """The second class, or the one whose mean chance is farthest from its share; classes without records are left out."""
    outputs, labels = made(classes)
    outputs[:, -1] -= 2
    labels[labels == 2] = 1
    found, stated = skill_of(outputs, labels, [f"c{one}" for one in range(classes)]), chances(outputs)
    assert found.log_loss == pytest.approx(metrics.log_loss(labels, stated, labels=range(classes)), rel=1e-9)
    share = np.bincount(labels, minlength=classes) / len(labels)
    always = metrics.log_loss(labels, np.tile(share, (len(labels), 1)), labels=range(classes))
    assert found.shares_log_loss == pytest.approx(always, rel=1e-9)
    ratios = {f"c{one}": stated[:, one].mean() / share[one] for one in range(classes) if share[one]}
    ratio = found.chance_over_share
    assert ratio.name == ("c1" if classes == 2 else max(ratios, key=lambda name: abs(math.log(ratios[name]))))
    assert ratio.value == pytest.approx(ratios[ratio.name], rel=1e-9)
    ends = wilson(share[int(ratio.name[1:])], len(labels))
    assert [ratio.value * share[int(ratio.name[1:])] / end for end in ends] == pytest.approx([ratio.high, ratio.low])
    assert skill_of(outputs[labels == 0][:, :2], labels[labels == 0]).chance_over_share is None


def test_outputs_that_saturate_still_rank() -> None:
    """Chances of these are all 1 in floating point, and tie."""
    outputs = np.array([[0, 900], [0, 901], [0, 902], [0, 903]], np.float32)
    found = skill_of(outputs, np.array([0, 0, 1, 1]))
    assert found.auc.value == 1.0


def test_intervals_hold_the_truth() -> None:
    """The truth is that of many records; 95 % of 400 are 380, and fewer than 366 come by chance once in 1,000."""
    truth = skill_of(*made(2, 400_000, seed=99))
    held = dict.fromkeys(("accuracy", "difference", "balanced_accuracy", "auc"), 0)
    for seed in range(400):
        found = skill_of(*made(2, 300, seed=1000 + seed))
        for name in held:
            one = getattr(found, name)
            held[name] += one.low <= getattr(truth, name).value <= one.high
    assert all(366 <= count <= 396 for count in held.values()), held


def test_the_interval_of_auc_is_that_of_delong() -> None:
    """Written out for four records of one class and three of the other: placements by hand, and their variances."""
    up, down = np.array([3.0, 2.0, 1.5, 0.5]), np.array([1.0, 0.0, 2.5])
    above = [(x > down).mean() for x in up]
    below = [(up > y).mean() for y in down]
    # padded to enough records for DeLong's: each twelve times, which leaves the placements as they are
    many = np.repeat(np.concatenate([up, down]), 12)
    labels = np.repeat([1, 1, 1, 1, 0, 0, 0], 12)
    found = skill_of(np.stack([np.zeros_like(many), many], 1), labels)
    area = float(np.mean(above))
    spread = math.sqrt(np.var(np.repeat(above, 12), ddof=1) / 48 + np.var(np.repeat(below, 12), ddof=1) / 36)
    assert found.auc.value == pytest.approx(area)
    assert found.auc.high - found.auc.value == pytest.approx(1.959963984540054 * spread, rel=1e-9)


def test_records_of_a_person_that_are_alike_count_as_one() -> None:
    """Each record four times, all of one owner: the intervals are those of the records once, and not half as wide."""
    outputs, labels = made(2, 200, common=0.0)
    often, owners = (outputs.repeat(4, 0), labels.repeat(4)), np.arange(200).repeat(4)
    judged = skill_of(outputs, labels), skill_of(*often, owners=owners), skill_of(*often)
    for name in ("accuracy", "difference", "balanced_accuracy", "auc", "chance_over_share"):
        once, alike, independent = (getattr(skill, name).high - getattr(skill, name).low for skill in judged)
        assert alike == pytest.approx(once, rel=0.02)
        assert independent < 0.6 * once
    once, alike = target_skill_of(outputs, labels, (0, 1)), target_skill_of(*often, (0, 1), owners=owners)
    assert alike.r2.high == pytest.approx(once.r2.high)


def test_an_outcome_that_is_a_coin_of_each_person_is_ranked_by_chance() -> None:
    """Fifty records a person, ranked by what they share with their person and not with the outcome."""
    better = 0
    for seed in range(100):
        draw, owners = np.random.default_rng(seed), np.arange(80).repeat(50)
        scores = draw.normal(size=80)[owners] + draw.normal(size=4000)
        labels = draw.integers(0, 2, 80)[owners]
        judged = skill_of(np.stack([np.zeros(4000), scores], 1), labels, metric="auc", owners=owners)
        better += judged.verdict is None
    assert 0 < better <= 8  # of a hundred: 2.5 are expected


@pytest.mark.parametrize(("right", "outside"), [(True, 4), (True, 40), (False, 4)])
def test_few_records_make_no_certainty(right: bool, outside: int) -> None:
    """However well some records are told apart, the interval is no narrower than Wilson's over the rarer class."""
    labels = np.array([1] * outside + [0] * 100)
    scores = (labels if right else -labels).astype(np.float64)
    found = skill_of(np.stack([np.zeros_like(scores), scores], 1), labels)
    assert (found.auc.low, found.auc.high) == wilson(float(right), outside)


@given(st.integers(1, 60), st.integers(0, 60), st.integers(0, 60))
def test_the_difference_has_the_sign_of_who_is_right_more_often(same: int, gained: int, lost: int) -> None:
    """Records that both get right, that the network alone does, and that the majority alone does."""
    labels = np.array([0] * same + [1] * gained + [0] * lost)
    said = np.array([0] * same + [1] * gained + [1] * lost)
    found = skill_of(np.eye(2)[said], labels)
    assume(found.majority == "0")
    assert found.difference.value == pytest.approx((gained - lost) / len(labels))
    assert found.difference.low < (gained - lost) / (len(labels) + 2) < found.difference.high


def test_a_network_that_always_says_the_same() -> None:
    labels = np.array([0] * 83 + [1] * 17)
    found = skill_of(np.tile([2.0, 0.0], (100, 1)), labels)
    assert (found.accuracy.value, found.balanced_accuracy.value) == (0.83, 0.5)
    assert [one.recall for one in found.classes] == [1.0, 0.0]
    assert [one.precision for one in found.classes] == [0.83, None]
    assert found.verdict == (
        'Accuracy 83.00 % is no better than always saying "0" (83.00 % of test records), and the AUC, 0.500 (95 %: 0.285 to'
        " 0.715), is no better than guessing"
    )


def test_a_tie_is_told_by_the_pairs() -> None:
    """Three records in a hundred more than the majority are no evidence where pairs differ in both directions."""
    labels = np.array([0] * 60 + [1] * 40)
    said = labels.copy()
    said[:17], said[60:80] = 1, 0  # 17 lost, 20 gained
    assert skill_of(np.eye(2)[said], labels).verdict is not None
    said[:17] = 0  # none lost
    assert skill_of(np.eye(2)[said], labels).verdict is None


def test_by_another_metric() -> None:
    """A network that ranks, but always says the same, has skill by AUC and by neither of the others."""
    draw = np.random.default_rng(0)
    labels = np.repeat([0, 1], [300, 60])
    scores = draw.normal(size=360) + labels
    outputs = np.stack([np.full(360, 10.0), scores], 1)  # never above 10
    by = {name: skill_of(outputs, labels, metric=name) for name in ("accuracy", "balanced-accuracy", "auc")}
    told = {name: found.verdict for name, found in by.items() if found is not None}
    assert told["auc"] is None
    assert told["accuracy"] is not None
    said = "No better than guessing, which has 50.00 % balanced accuracy: 50.00 % (95 %: "
    assert told["balanced-accuracy"].startswith(said)
    same = skill_of(np.zeros((360, 2)), labels, metric="auc")
    assert same.verdict.startswith("Ranks test records no better than chance: AUC 0.500 (95 %: ")
    assert same.estimate == same.auc


def test_one_class_alone() -> None:
    found = skill_of(np.array([[1.0, 0.0, 0.0]] * 20), np.zeros(20, np.int64))
    assert found.auc is None
    said = 'All 20 test records are of one class ("0"), so nothing tells whether the model has any skill: no AUC'
    assert found.verdict == said


def test_a_class_without_records_is_left_out_of_means() -> None:
    outputs, labels = made(3)
    labels[labels == 2] = 1
    found, said = skill_of(outputs, labels), outputs.argmax(1)
    recall = [np.mean(said[labels == one] == one) for one in (0, 1)]
    assert found.classes[2].recall is None
    assert found.balanced_accuracy.value == pytest.approx(np.mean(recall))
    areas = [metrics.roc_auc_score(labels == one, chances(outputs)[:, one]) for one in (0, 1)]
    assert found.auc.value == pytest.approx(np.mean(areas))


@pytest.mark.parametrize(
    ("outputs", "labels"),
    [
        (np.array([[0.0, np.nan], [1.0, 0.0]]), np.array([0, 1])),
        (np.array([[0.3], [0.4]]), np.array([0, 0])),
        (np.zeros((2, 3, 4)), np.array([0, 1])),
        (np.zeros((2, 3)), np.zeros((2, 3), np.int64)),
    ],
)
def test_outputs_that_tell_no_classes(outputs: np.ndarray, labels: np.ndarray) -> None:
    assert skill_of(outputs, labels) is None


@pytest.mark.parametrize("classes", [2, 3, 101])
def test_is_read_again(classes: int) -> None:
    found = skill_of(*made(classes))
    body = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert set(body) == {
        *("records", "accuracy", "majority", "majority_accuracy", "difference", "balanced_accuracy", "auc", "classes"),
        *("calibration_error", "bins", "points", "confusion", "metric", "verdict"),
        *("chance_over_share", "log_loss", "shares_log_loss"),
    }
    assert skill_in({"skill": body}) == found


@pytest.mark.parametrize(
    "change",
    [
        {"auc": 0.7},
        {"accuracy": {"value": 0.5, "low": None, "high": 1}},
        {"majority": 3},
        {"classes": [{"name": "0"}]},
        {"confusion": [[1, 2]]},
        {"bins": []},
    ],
)
def test_a_damaged_one_is_none(change: dict[str, object]) -> None:
    assert skill_in({"skill": {**skill_of(*made(2)).to_json(), **change}}) is None
    assert skill_in({}) is skill_in({"skill": [1]}) is None


# --- scores of persons: what one more moves a sum by; empty slots and orders move it by nothing ---

SLOTS = 4
HOSTILE = st.one_of(st.floats(allow_nan=True, allow_infinity=True), st.floats(-0.5, 1.5))
PERSONS = st.lists(st.lists(HOSTILE, min_size=1, max_size=SLOTS), min_size=1, max_size=8)


def first_output(outputs: Tensor, labels: Tensor) -> Tensor:
    del labels
    return outputs[:, 0]


def persons(values: list[list[float]]) -> tuple[Tensor, Tensor]:
    """The records that there are, whose score is their one value; and labels in slots."""
    y = torch.full((len(values), SLOTS), ABSENT)
    for row, mine in enumerate(values):
        y[row, : len(mine)] = 0
    return torch.tensor([value for mine in values for value in mine], dtype=torch.float64)[:, None], y


def by_hand(values: list[list[float]]) -> float:
    """The definition, a person at a time, in whole numbers of 2^-20."""
    total = 0
    for mine in values:
        clamped = [0.0 if math.isnan(value) else min(max(value, 0.0), 1.0) for value in mine]
        total += sum(round(STEP * value) for value in clamped) // len(mine)
    return total / STEP


@given(PERSONS, st.lists(HOSTILE, min_size=1, max_size=SLOTS), st.integers(0, 8), st.integers(1, 5))
def test_a_person_moves_a_score_by_one(values: list[list[float]], more: list[float], at: int, chunk: int) -> None:
    with_one = [*values[:at], more, *values[at:]]
    one, other = (total_score(nn.Identity(), *persons(each), chunk, first_output) for each in (values, with_one))
    assert (one, other) == (by_hand(values), by_hand(with_one))
    assert 0 <= other - one <= 1
    one, other = (count_correct(nn.Identity(), *persons(each), chunk, first_output) for each in (values, with_one))
    assert other - one in (0, 1)


@settings(max_examples=25)
@given(st.integers(0, 2**32), st.integers(1, 7))
def test_the_right_answers_of_a_person_are_averaged(seed: int, chunk: int) -> None:
    draw = np.random.default_rng(seed)
    y = np.where(draw.random((6, SLOTS)) < 0.5, ABSENT, draw.integers(0, 3, (6, SLOTS)))
    y[:, 0] = 0
    x = torch.from_numpy(draw.normal(size=(int((y != ABSENT).sum()), 3)))
    answers, at = x.argmax(1).tolist(), 0
    expected = 0.0
    for row in y.tolist():
        mine = [label for label in row if label != ABSENT]
        right = [answers[at + place] == label for place, label in enumerate(mine)]
        expected += math.floor(STEP * sum(right) / len(mine)) / STEP
        at += len(mine)
    assert total_score(nn.Identity(), x, torch.from_numpy(y), chunk) == expected


OUTPUTS = st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), min_size=3, max_size=3)
RECORDS = st.lists(st.tuples(OUTPUTS, st.integers(0, 2)), min_size=2, max_size=12)
SHARES = st.lists(st.floats(1e-6, 1.0), min_size=3, max_size=3)


@given(RECORDS, SHARES, st.integers(0, 11))
def test_a_record_moves_a_metric_by_one(records: list[tuple[list[float], int]], shares: list[float], at: int) -> None:
    """Or another in its place, whatever the network gives for it: in the unit that noise is added in."""
    score = PricedScore(3, tuple(one / sum(shares) for one in shares))

    def total(some: list[tuple[list[float], int]]) -> float:
        x, y = torch.tensor([outputs for outputs, _ in some]), torch.tensor([label for _, label in some])
        return total_score(nn.Identity(), x, y, 4, score)

    at %= len(records)
    without = [*records[:at], *records[at + 1 :]]
    assert 0 <= total(records) - total(without) <= 1
    assert abs(total([*without, records[at]]) - total([*without, ([0.0, 0.0, 9.0], 2)])) <= 1


def test_by_the_true_shares_it_is_balanced_accuracy() -> None:
    draw = np.random.default_rng(1)
    x, y = draw.normal(size=(200, 3)), np.repeat([0, 1, 2], [150, 40, 10])
    score = PricedScore(3, (0.75, 0.2, 0.05))
    found = score.metric(total_score(nn.Identity(), torch.from_numpy(x), torch.from_numpy(y), score=score), 200)
    assert found == pytest.approx(balanced_accuracy_score(y, x.argmax(1)), abs=1e-6)


def test_rows_that_are_scored_at_once_follow_from_the_network_and_the_shape_of_a_record():
    """So many that what its layers give fits 64 MiB, from 32 to 1,024, whatever the records hold, and how many there are."""
    # 3 times 2^20 numbers a record, with what it gives as a whole
    wide = nn.Sequential(nn.Linear(6, 2**20), nn.Tanh())
    middle = nn.Sequential(nn.Linear(6, 2**15 - 2), nn.Linear(2**15 - 2, 1))  # 2^15 numbers, of 4 bytes
    for x in (torch.zeros(1, 6), torch.full((9, 6), math.nan)):
        assert [scored_rows(model, x) for model in (nn.Linear(6, 3), middle, wide)] == [1024, 512, 32]


def test_scores_of_padded_texts_come_from_no_kernel_that_goes_by_the_padding_of_others():
    """In evaluation mode, torch packs what is not padded of all records into one tensor, unless it is told not to."""
    torch.manual_seed(0)
    layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
    x, there = torch.randn(4, 6, 8), torch.arange(6) >= torch.tensor([[6], [4], [3], [2]])
    shorter = there.clone()
    shorter[0, 2:] = True
    before = torch.backends.mha.get_fastpath_enabled()
    with torch.no_grad(), evaluating(layers):
        assert not torch.backends.mha.get_fastpath_enabled()
        one, other = (layers(x, src_key_padding_mask=mask) for mask in (there, shorter))
    assert torch.backends.mha.get_fastpath_enabled() == before
    assert torch.equal(one[1:], other[1:])
    assert one.shape == other.shape == x.shape


class BesideOthers(nn.Module):
    """What it gives for a record goes by how many others there are, and by the largest value."""

    def forward(self, x: Tensor) -> Tensor:
        return x * (x.amax() if len(x) > 1 else 1)


def test_records_are_scored_each_by_itself():
    """A thousand in a pass, which show a network one at a time; or one a pass, where it cannot be mapped over."""
    model, x, y = BesideOthers(), torch.tensor([[0.6, 0.4], [-0.2, -0.1], [0.0, 0.1]]), torch.tensor([0, 1, 1])
    assert total_score(model, x, y) == 3
    plain, asks = nn.Identity(), nn.Identity()
    passes: dict[nn.Module, list[int]] = {plain: [], asks: []}
    for module, sizes in passes.items():
        module.register_forward_hook(lambda _module, inputs, _output, sizes=sizes: sizes.append(rows_of(inputs[0])))
    asks.register_forward_hook(lambda _module, _inputs, output: output if bool(output.isfinite().all()) else None)
    assert total_score(plain, x, y) == total_score(asks, x, y) == 3
    assert (passes[plain][-1], passes[asks][-3:]) == (1024, [1, 1, 1])


class Tamed(nn.Module):
    """As a library does it that goes by the largest value of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x if bool(x.abs().max() <= 1000) else x.clamp(-10, 10))


def test_a_record_that_makes_a_network_go_another_way_counts_for_itself_alone():
    """``vmap`` cannot follow it, so its records are scored one by one."""
    torch.manual_seed(0)
    model = Tamed()
    x = 900 * torch.rand(200, 8) * (torch.rand(200, 8) < 0.3)
    x[0] = 2000
    y = model.layer(x).argmax(1)
    assert total_score(model, x, y) - total_score(model, x[1:], y[1:]) in (0.0, 1.0)
