"""How the budget of a training is divided."""

from dataclasses import replace

import pytest

from dpltm.errors import InputError
from dpltm.features.feature_map import make_feature_map
from dpltm.options.train import TrainOptions
from dpltm.privacy.mechanisms import NoisySgd
from dpltm.privacy.parts import OnRecord
from dpltm.stages.budget import centre_release, evaluation_releases
from entries import PROVENANCE, REVEALED
from refusals import refused
from stage_cases import records


@pytest.mark.parametrize("event", [REVEALED, PROVENANCE], ids=lambda event: type(event).__name__)
def test_no_centre_where_nothing_can_be_certified(event):
    """There is no budget left to take a part of, which noise for what is left would not tell."""
    dataset = records(0)
    dataset = replace(dataset, feature_map=make_feature_map("unit:1", dataset.train.x.shape[1:], dataset.bounds))
    before = OnRecord(event.dataset, (event,))
    with pytest.raises(InputError) as caught:
        centre_release(TrainOptions(steps=2, epsilon=1.0, centre=0.1), dataset, NoisySgd(0.1, 2, 1.0), before)
    assert str(caught.value) == (
        "`centre`: nothing can be certified for these records any more, so there is no budget to take a part of; leave it"
        " out"
    )


@pytest.mark.parametrize(("stop_at", "test"), [(0.9, 0), (0.9, 20), (None, 0)])
def test_stopping_on_private_records_is_refused_where_nothing_pays(stop_at, test):
    """A test split is apart; without one, the score that stops a run is a release."""
    options, dataset = TrainOptions(steps=2, epsilon=1.0, stop_at=stop_at), records(0, test=test)
    given = (options, dataset, NoisySgd(0.1, 2, 1.0), REVEALED.dataset)
    if stop_at is None or test:
        assert evaluation_releases(*given) == ()
    else:
        assert "has no test split, and stopping on the private records is a release" in refused(
            evaluation_releases, *given
        )
