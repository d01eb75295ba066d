"""What stands in front of a network, without the command line: made, taken over, entered, and refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from dpltm.features.feature_map import channel_statistics, make_feature_map, principal_components
from dpltm.features.inputs import network_inputs
from dpltm.features.normalisation import NORM
from dpltm.features.setup import FeatureSources, as_declared, declarations, take_over_map, with_feature_map
from dpltm.networks import ModelSpec, build
from dpltm.networks.masks import Mask
from dpltm.options.data import FeatureOptions
from dpltm.privacy.account import check_private
from dpltm.privacy.entry import Entry, Lineage
from dpltm.privacy.ledger import Ledger
from dpltm.privacy.mechanisms import GaussianRelease
from dpltm.records import from_arrays
from dpltm.records.notes import feature_notes
from dpltm.training.artifacts import Run
from opened import arrays_of
from refusals import refused
from set_entries import LINEAGES

SPEC = ModelSpec("mlp:7", 36, 3)


def images(seed: int, count: int = 60, shape: tuple[int, ...] = (6, 6), name: str = "mine"):
    draw = np.random.default_rng(seed)
    return from_arrays(
        draw.integers(0, 256, (count, *shape), dtype=np.uint8), draw.integers(0, 3, count), classes=3, name=name
    )


PRIVATE, PUBLIC = images(0), images(1, name="theirs")
PRIVATE_LARGE = images(0, shape=(10, 8))


@pytest.fixture
def ledger():
    return Ledger()


def sources(**changes) -> FeatureSources:
    return FeatureSources(**{"public": lambda _: PUBLIC, **changes})


def declared(dataset, ledger):
    """The dataset once the records that its map was fitted to are on record as public."""
    return as_declared(dataset, ledger.declare_once(*declarations(dataset, ledger, tested=False)))


def trained(text: str = "mlp:7", **changes) -> Run:
    """A run of a dense network."""
    config = {"model": text, "features": 36, "classes": 3, "bounds": [0.0, 255.0]}
    model = build(ModelSpec(text, 36, 3), 0)
    values = {"config": config, "model": model, "mask": Mask.dense(model), "lineage": LINEAGES["dp"], "label": "a.run"}
    return Run(**{**values, **changes})


def asked(features: str | None = None, public: str | None = None, components: int | None = None) -> FeatureOptions:
    return FeatureOptions(features=features, public=public, components=components)


# Made


def test_records_as_they_are_and_a_map_that_needs_no_data():
    for features in (None, "none"):
        assert with_feature_map(PRIVATE, asked(features), sources()) is PRIVATE
    found = with_feature_map(PRIVATE, asked("unit:2"), sources()).feature_map
    assert (found.id, found.lineage) == (make_feature_map("unit:2", (6, 6), (0.0, 255.0)).id, Lineage())


def test_statistics_and_components_are_those_of_public_records(ledger):
    options = asked("scatter:1,2", public="theirs", components=4)
    made = with_feature_map(PRIVATE, options, sources())
    assert ledger.entries == (), "not before nothing is refused any more"
    dataset = declared(made, ledger)
    found = dataset.feature_map
    (said,) = ledger.entries
    assert (said.kind, said.part, dataset.features) == ("public", ledger.part(PUBLIC), 4)
    assert found.lineage == ledger.lineage(said)
    plain = make_feature_map("scatter:1,2", (6, 6), (0.0, 255.0))
    statistics = channel_statistics(plain, iter([arrays_of(PUBLIC.train).x[:32], arrays_of(PUBLIC.train).x[32:]]))
    torch.testing.assert_close(found.statistics.mean, statistics.mean)
    projection = principal_components(replace(plain, statistics=statistics)(arrays_of(PUBLIC.train).x), 4)
    torch.testing.assert_close(found.projection.components, projection.components)
    again = declared(with_feature_map(images(9), options, sources()), ledger)
    assert again.feature_map.id == found.id  # of no private record
    assert ledger.entries == (said,), "declared once"


def test_public_records_cannot_be_private_in_either_order(ledger):
    mine = declared(with_feature_map(PUBLIC, asked("conv", "theirs"), sources()), ledger)
    account = ledger.account(mine.feature_map.lineage)
    assert "declared public" in refused(check_private, account, ledger.part(PUBLIC))
    check_private(account, ledger.part(PRIVATE))
    other = Ledger()
    other.declare(Entry("release", other.part(PUBLIC), (GaussianRelease(2.0),), "moments"))
    assert "is protected by a release on record" in refused(other.declare_public, PUBLIC, "statistics")
    other.declare_public(PRIVATE, "statistics")


def test_synthetic_records_bring_their_release_and_no_declaration(ledger):
    made = replace(PUBLIC, synthetic=True, lineage=LINEAGES["dp"])
    found = declared(with_feature_map(PRIVATE, asked("conv", "theirs"), sources(public=lambda _: made)), ledger)
    assert (found.feature_map.lineage, ledger.entries) == (LINEAGES["dp"], ())


def test_a_trained_network_and_its_lineage():
    run = trained()
    found = with_feature_map(PRIVATE, asked("network:a.run"), sources(network=lambda _: run)).feature_map
    assert (found.network, found.lineage) == (SPEC, LINEAGES["dp"])
    assert found(arrays_of(PRIVATE.train).x).shape == (60, 7)
    assert all(value.data_ptr() != run.model.state_dict()[name].data_ptr() for name, value in found.tensors.items())


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (
            trained(feature_map=make_feature_map("unit", (6, 6), (0.0, 255.0))),
            "a.run stands behind unit:1 features itself; take a run on records as they are",
        ),
        (trained("mlp"), "the network of a.run is one layer, with nothing in front of it to take"),
        (trained(lineage=Lineage()), "a.run: its lineage holds no training, so nothing can be certified"),
        (
            trained(config={"model": "mlp:7", "features": 36, "classes": 3, "bounds": [0.0, 1.0]}),
            "the network in front was trained on values from 0 to 1, and these go from 0 to",
        ),
    ],
)
def test_networks_that_cannot_stand_in_front(run, message):
    given = sources(network=lambda _: run)
    assert refused(with_feature_map, PRIVATE, asked("network:a.run"), given).startswith(f"`features`: {message}")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (asked(None, public="theirs"), "`public`: its statistics normalise scatter and conv features, its"),
        (asked("network:a.run"), "`features`: network:a.run: no runs are at hand; pass where they come from"),
        (asked("unit", "theirs", 99), "`components`: 99 is not from 1 to 36, which 60 public records of 36"),
    ],
)
def test_options_that_are_refused(options, message):
    assert refused(with_feature_map, PRIVATE, options, sources()).startswith(message)


def test_public_records_of_another_shape():
    given = sources(public=lambda _: images(3, shape=(6, 6, 3), name="colours"))
    assert refused(with_feature_map, PRIVATE, asked("scatter:1,2", "colours"), given) == (
        "`public`: images of colours are of shape (6, 6, 3), those of mine of shape (6, 6); statistics need as many"
        " colours, so name another dataset or leave `public` out"
    )
    wide = sources(public=lambda _: images(3, shape=(6, 8), name="wide"))
    assert refused(with_feature_map, PRIVATE, asked("unit", "wide", 3), wide) == (
        "`components`: records of wide are of shape (6, 8), those of mine of shape (6, 6); principal components"
        " need the same"
    )


def test_features_of_another_shape_that_mean_something_else():
    """As many random features of records of another width have other directions."""
    wide = sources(public=lambda _: images(3, shape=(6, 8), name="wide"))
    assert refused(with_feature_map, PRIVATE, asked("fourier:16", "wide", 3), wide) == (
        "`components`: records of wide are of shape (6, 8), those of mine of shape (6, 6); principal components"
        " need the same"
    )
    for text in ("fourier:16", "unit+fourier:16"):
        found = make_feature_map(text, (6, 6), (0.0, 255.0))
        message = refused(take_over_map, PRIVATE_LARGE, found, None, "the set")
        assert message.startswith(
            f"`features`: {found.text} was drawn for records of shape (6, 6), and these are of shape (10, 8)"
        )


def test_maps_without_channels_take_no_statistics():
    for text in ("drawings:5", "drawings:5+scatter:1,2", "unit"):
        message = refused(with_feature_map, PRIVATE_LARGE, asked(text, "theirs"), sources())
        assert message.endswith(
            "take no statistics of public records, only principal components; give `components`, or leave `public` out"
        )


def test_public_images_of_another_size_are_resized():
    theirs = images(3, shape=(9, 8), name="large")
    found = with_feature_map(PRIVATE, asked("conv", "large", 3), sources(public=lambda _: theirs)).feature_map
    smaller = functional.interpolate(
        torch.from_numpy(arrays_of(theirs.train).x[:, None].astype(np.float32)),
        (6, 6),
        mode="bilinear",
        antialias=True,
    )[:, 0].numpy()
    plain = make_feature_map("conv", (6, 6), (0.0, 255.0))
    plain = replace(plain, statistics=channel_statistics(plain, iter([smaller])))
    expected = principal_components(plain(smaller), 3)
    torch.testing.assert_close(found.projection.components, expected.components, rtol=1e-3, atol=1e-4)
    assert found(arrays_of(PRIVATE.train).x).shape == (60, 3)


def test_drawings_need_no_public_records_and_take_any():
    assert with_feature_map(PRIVATE_LARGE, asked("drawings:7"), sources()).feature_map.features == 7
    colours = sources(public=lambda _: images(3, shape=(9, 12, 3), name="colours"))
    assert with_feature_map(PRIVATE_LARGE, asked("drawings:7", "colours", 3), colours).feature_map.features == 3


# Taken over


def test_a_remembered_map():
    found = make_feature_map("unit:3", (6, 6), (0.0, 255.0))
    assert take_over_map(PRIVATE, found, asked(), "the set").feature_map is found
    assert take_over_map(PRIVATE, None, None, "the set") is PRIVATE
    for name, value in (("features", "unit:3"), ("public", "theirs"), ("components", 3)):
        assert refused(take_over_map, PRIVATE, found, asked(**{name: value}), "the set") == (
            f"`{name}`: the set remembers what stands in front of its network; leave `{name}` out"
        )


# Told


def test_what_a_reader_should_know():
    assert feature_notes(PRIVATE, 1e-3) == []
    (found,) = feature_notes(replace(PRIVATE, lineage=LINEAGES["dp"]), 1e-3)
    assert found == "bounds and categories of the schema were found under DP, and what that cost counts"
    (made,) = feature_notes(replace(PRIVATE, synthetic=True, lineage=Lineage(LINEAGES["dp"].entries[1:])), 1e-3)
    assert made.startswith(
        "records of mine are synthetic: post-processing of a release from digits[0:719], certified as"
    )


# What the network gets


def test_inputs():
    assert network_inputs(PRIVATE.train, PRIVATE) is PRIVATE.train
    dataset = with_feature_map(PRIVATE, asked("unit"), sources())
    centre = torch.full((36,), 0.1)
    centred = replace(dataset, feature_map=dataset.feature_map.centred_at(centre))
    plain = arrays_of(network_inputs(dataset.train, dataset)).x
    assert np.array_equal(arrays_of(network_inputs(centred.train, centred)).x, plain), (
        "they are centred where they are read"
    )
    np.testing.assert_allclose(np.linalg.norm(plain.astype("f8"), axis=1), NORM, rtol=1e-3)
