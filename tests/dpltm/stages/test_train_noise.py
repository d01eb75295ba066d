"""What the options of a training do to its sensitivity, its noise and the two figures."""

from __future__ import annotations

import math

import pytest

from dpltm.stages.train import facts, planned_report
from stage_cases import RECORDS, body, planned, records

LIVE = body().tickets[2].mask.live


def certified(plan) -> float:
    return planned_report(plan).certified.epsilon


def test_clip_norm_scales_the_noise_and_not_the_cost():
    one, half = planned(epsilon=1.0), planned(epsilon=1.0, clip_norm=0.5)
    assert (facts(half)["sensitivity"], facts(half)["filter"]) == (0.5, "clip(C=0.5)")
    assert facts(half)["noise_multiplier"] == facts(one)["noise_multiplier"]
    assert half.config.noise_std == one.config.noise_std / 2
    assert planned_report(half).certified == planned_report(one).certified


def test_tanh_as_printed():
    """Calibrated to its certified bound, the claimed epsilon is far smaller, and is shown beside it."""
    plan = planned(filter="tanh", no_pre_clip=True, epsilon=1.0)
    report = planned_report(plan)
    assert facts(plan)["sensitivity"] == pytest.approx(math.sqrt(LIVE), rel=2e-6)
    assert 0.998 < report.certified.epsilon <= 1
    assert report.nominal is not None
    assert report.nominal.source == "tanh paper's sensitivity"
    assert report.nominal.epsilon < 0.3


@pytest.mark.parametrize("options", [{"clip_norm": 5.0}, {"no_pre_clip": True}], ids=["pre-clip", "printed"])
def test_nominal_noise(options):
    """As much noise as the paper adds: the paper's figure is the budget, and the certified one is what that is worth."""
    plan, reference = planned(filter="tanh", noise="nominal", epsilon=1.0, **options), planned(epsilon=1.0)
    report, noise_std = planned_report(plan), plan.config.noise_std
    assert noise_std == pytest.approx(facts(reference)["noise_multiplier"])
    assert facts(plan)["noise_multiplier"] == pytest.approx(noise_std / facts(plan)["sensitivity"])
    assert report.nominal is not None
    assert 0.998 < report.nominal.epsilon <= 1
    assert report.nominal.source == "tanh paper's sensitivity"
    assert report.certified.epsilon > 2
    stated = planned(filter="tanh", noise="nominal", noise_multiplier=2.0, **options)
    assert stated.config.noise_std == pytest.approx(2)
    assert facts(stated)["noise_multiplier"] == pytest.approx(2 / facts(stated)["sensitivity"])


def test_nominal_noise_of_the_sigmoid_is_that_of_a_bound_of_one():
    plan = planned(filter="sigmoid", noise="nominal", epsilon=1.0)
    report = planned_report(plan)
    assert plan.config.noise_std == pytest.approx(facts(plan)["noise_multiplier"] * math.sqrt(LIVE), rel=1e-5)
    assert report.nominal is not None
    assert report.nominal.epsilon == pytest.approx(1, rel=2e-3)
    assert report.certified.epsilon > 20


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adagrad"])
def test_optimizers_have_the_same_guarantee(optimizer):
    plan = planned(optimizer=optimizer, noise_multiplier=4.0)
    assert plan.config.optimizer == optimizer
    assert plan.config.lr == {"sgd": 1.0, "momentum": 0.1, "adam": 0.002, "adagrad": 0.05}[optimizer]
    assert planned_report(plan).certified == planned_report(planned(noise_multiplier=4.0)).certified


def test_replace_one_doubles_the_sensitivity():
    one, two = planned(epsilon=1.0), planned(epsilon=1.0, adjacency="replace-one")
    assert facts(two)["sensitivity"] == 2 * facts(one)["sensitivity"]
    assert two.config.noise_std > one.config.noise_std
    assert planned_report(two).certified.adjacency == "replace-one"
    assert 0.998 < certified(two) <= 1


def test_rates_and_steps_come_from_the_public_number_of_records():
    """Epochs are counted in expected batches; a quarter of the records is a batch unless another is stated."""
    plan = planned(epochs=2.0, batch_size=20.0, noise_multiplier=5.0)
    assert (facts(plan)["sampling_rate"], facts(plan)["steps"]) == (pytest.approx(20 / RECORDS), 20)
    plan = planned(dataset=records(0, records=180), batch_size=18.0, noise_multiplier=5.0)
    assert (facts(plan)["sampling_rate"], plan.config.sampling_rate, plan.config.expected_batch) == (0.1, 0.1, 18)
    plan = planned(noise_multiplier=5.0)
    assert (plan.config.expected_batch, plan.config.sampling_rate) == (RECORDS / 4, 0.25)


@pytest.mark.parametrize(
    ("name", "options", "bound", "nominal"),
    [
        *((name, {"clip_norm": 0.5}, 0.5, None) for name in ("clip", "per-layer", "radial-tanh", "auto", "normalize")),
        ("tanh-clip", {"clip_norm": 0.5, "tanh_scale": 3.0, "tanh_range": 0.1}, 0.5, None),
        (
            "tanh",
            {"clip_norm": 0.5, "tanh_scale": 3.0, "tanh_range": 0.1},
            3 * math.sqrt(LIVE) * math.tanh(0.5 / (0.1 * math.sqrt(LIVE))),
            None,
        ),
        ("sigmoid", {"tanh_scale": 3.0, "tanh_range": 0.1}, 3 * math.sqrt(LIVE), 1.0),
    ],
)
def test_every_filter_has_its_own_bound(name, options, bound, nominal):
    """The bounds of docs/privacy-model.md section 4.2, at C = 0.5, c = 3, k = 0.1."""
    plan = planned(filter=name, noise_multiplier=2.0, **options)
    sensitivity = facts(plan)["sensitivity"]
    assert sensitivity == pytest.approx(bound, rel=2e-6)
    assert sensitivity >= bound
    assert plan.config.noise_std == 2 * sensitivity
    assert plan.event.mechanism.nominal_sensitivity == nominal
    assert (planned_report(plan).nominal is None) == (nominal is None)


@pytest.mark.parametrize(
    ("options", "sources"),
    [
        ({"filter": "dpsr-cg"}, "sensitivity in the code of DPSR-CG"),
        (
            {"filter": "dpsr-cg", "microbatch": 4},
            "tanh paper's sensitivity for microbatches; sensitivity in the code of DPSR-CG",
        ),
        ({"filter": "dpsr-cg", "clip_norm": 10.0}, None),
        ({"filter": "dpsr-cg", "clip_norm": 10.0, "adjacency": "replace-one"}, None),
        ({"filter": "dpsr-cg", "clip_norm": 10.0, "noise": "nominal"}, None),
    ],
)
def test_a_claim_names_its_sources_and_is_none_where_it_is_what_is_certified(options, sources):
    nominal = planned_report(planned(noise_multiplier=2.0, batch_size=40, **options)).nominal
    assert (None if nominal is None else nominal.source) == sources
