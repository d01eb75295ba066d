"""What stands in front of a network, without the command line: made, taken over, entered, and refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from dpltm.features.conventions import NORM
from dpltm.features.feature_map import channel_statistics, make_feature_map, principal_components
from dpltm.networks import ModelSpec, build
from dpltm.options.features import FeatureOptions
from dpltm.privacy.behind import READ_OFF
from dpltm.privacy.events import SETTINGS, GaussianEvent, ProvenanceEvent, SelectionEvent, TrainingEvent
from dpltm.privacy.figures import figure
from dpltm.privacy.mechanisms import GaussianRelease, NoisySgd, Selection
from dpltm.privacy.parts import total_epsilon
from dpltm.records import from_arrays
from dpltm.records.registry import RecordRegistry
from dpltm.stages.front import (
    FeatureSources,
    TrainedNetwork,
    feature_events,
    feature_notes,
    is_origin_event,
    network_inputs,
    take_over_map,
    with_feature_map,
)
from refusals import refused

TIME = "2026-01-01T00:00:00Z"
SPEC = ModelSpec("mlp:7", 36, 3)


def images(seed: int, count: int = 60, shape: tuple[int, ...] = (6, 6), name: str = "mine"):
    draw = np.random.default_rng(seed)
    return from_arrays(
        draw.integers(0, 256, (count, *shape), dtype=np.uint8), draw.integers(0, 3, count), classes=3, name=name
    )


PRIVATE, PUBLIC = images(0), images(1, name="theirs")
PRIVATE_LARGE = images(0, shape=(10, 8))


@pytest.fixture
def registry():
    return RecordRegistry()


def sources(registry, **changes) -> FeatureSources:
    return FeatureSources(**{"registry": registry, "public": lambda _: PUBLIC, **changes})


def trained(registry, **changes) -> TrainedNetwork:
    records = registry.reference(PUBLIC)
    event = TrainingEvent(records, NoisySgd(0.5, 10, 3.0), "clip(C=1)", 9, time=TIME)
    other = registry.reference(images(2, name="others"))
    elsewhere = GaussianEvent(other, GaussianRelease(20.0), "moments", time=TIME)
    parameters = {name: value.detach() for name, value in build(SPEC, 0).named_parameters()}
    values = {
        **{"name": "a.run", "spec": SPEC, "parameters": parameters, "bounds": (0.0, 255.0), "feature_map": None},
        **{"ticket_set": None, "records": records, "events": (event, elsewhere)},
    }
    return TrainedNetwork(**{**values, **changes})


def asked(features: str | None = None, public: str | None = None, components: int | None = None) -> FeatureOptions:
    return FeatureOptions(features=features, public=public, components=components)


# Made


def test_records_as_they_are_and_a_map_that_needs_no_data(registry):
    for features in (None, "none"):
        assert with_feature_map(PRIVATE, asked(features), sources(registry)) is PRIVATE
    found = with_feature_map(PRIVATE, asked("unit:2"), sources(registry)).feature_map
    assert (found.id, found.source) == (make_feature_map("unit:2", (6, 6), (0.0, 255.0)).id, None)


def test_statistics_and_components_are_those_of_public_records(registry):
    options = asked("scatter:1,2", public="theirs", components=4)
    dataset = with_feature_map(PRIVATE, options, sources(registry))
    found = dataset.feature_map
    assert (found.source.name, dataset.features) == ("theirs", 4)
    assert registry.resolve(found.source).surely_overlaps(registry.reference(PUBLIC))
    plain = make_feature_map("scatter:1,2", (6, 6), (0.0, 255.0))
    statistics = channel_statistics(plain, iter([PUBLIC.train.x[:32], PUBLIC.train.x[32:]]))
    torch.testing.assert_close(found.statistics.mean, statistics.mean)
    projection = principal_components(replace(plain, statistics=statistics)(PUBLIC.train.x), 4)
    torch.testing.assert_close(found.projection.components, projection.components)
    assert with_feature_map(images(9), options, sources(registry)).feature_map.id == found.id  # of no private record


def test_a_trained_network_and_what_it_cost(registry):
    given = trained(registry)
    found = with_feature_map(
        PRIVATE, asked("network:a.run"), sources(registry, network=lambda name: replace(given, name=name))
    ).feature_map
    assert (found.network, found.source, found.events) == (SPEC, given.records, given.events)
    assert found(PRIVATE.train.x).shape == (60, 7)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"feature_map": make_feature_map("unit", (6, 6), (0.0, 255.0))},
            "a.run stands behind unit:1 features itself; take a run on records as they are",
        ),
        ({"ticket_set": "ab"}, "a.run was trained from a ticket set, and a run does not keep what its masks"),
        ({"spec": ModelSpec("mlp", 36, 3)}, "the network of a.run is one layer, with nothing in front of it to take"),
        ({"records": None}, "a.run: its config.json does not say what it was trained on"),
        ({"events": ()}, "a.run: its ledger holds no training; it is incomplete, so nothing can be certified"),
        ({"bounds": (0.0, 1.0)}, "the network in front was trained on values from 0 to 1, and these go from 0 to"),
    ],
)
def test_networks_that_cannot_stand_in_front(registry, changes, message):
    given = sources(registry, network=lambda _: trained(registry, **changes))
    assert refused(with_feature_map, PRIVATE, asked("network:a.run"), given).startswith(f"`features`: {message}")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (asked(None, public="theirs"), "`public`: its statistics normalise scatter and conv features, its"),
        (asked("network:a.run"), "`features`: network:a.run: no runs are at hand; pass where they come from"),
        (asked("unit", "theirs", 99), "`components`: 99 is not from 1 to 36, which 60 public records of 36"),
    ],
)
def test_options_that_are_refused(registry, options, message):
    assert refused(with_feature_map, PRIVATE, options, sources(registry)).startswith(message)


def test_public_records_of_another_shape(registry):
    given = sources(registry, public=lambda _: images(3, shape=(6, 6, 3), name="colours"))
    assert refused(with_feature_map, PRIVATE, asked("scatter:1,2", "colours"), given) == (
        "`public`: images of colours are of shape (6, 6, 3), those of mine of shape (6, 6); statistics need as many"
        " colours, so name another dataset or leave `public` out"
    )
    wide = sources(registry, public=lambda _: images(3, shape=(6, 8), name="wide"))
    assert refused(with_feature_map, PRIVATE, asked("unit", "wide", 3), wide) == (
        "`components`: records of wide are of shape (6, 8), those of mine of shape (6, 6); principal components"
        " need the same"
    )


def test_features_of_another_shape_that_mean_something_else(registry):
    """As many random features of records of another width have other directions."""
    wide = sources(registry, public=lambda _: images(3, shape=(6, 8), name="wide"))
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


def test_maps_without_channels_take_no_statistics(registry):
    for text in ("drawings:5", "drawings:5+scatter:1,2", "unit"):
        message = refused(with_feature_map, PRIVATE_LARGE, asked(text, "theirs"), sources(registry))
        assert message.endswith(
            "take no statistics of public records, only principal components; give `components`, or leave `public` out"
        )


def test_public_images_of_another_size_are_resized(registry):
    theirs = images(3, shape=(9, 8), name="large")
    found = with_feature_map(
        PRIVATE, asked("conv", "large", 3), sources(registry, public=lambda _: theirs)
    ).feature_map
    smaller = functional.interpolate(
        torch.from_numpy(theirs.train.x[:, None].astype(np.float32)), (6, 6), mode="bilinear", antialias=True
    )[:, 0].numpy()
    plain = make_feature_map("conv", (6, 6), (0.0, 255.0))
    plain = replace(plain, statistics=channel_statistics(plain, iter([smaller])))
    expected = principal_components(plain(smaller), 3)
    torch.testing.assert_close(found.projection.components, expected.components, rtol=1e-3, atol=1e-4)
    assert found(PRIVATE.train.x).shape == (60, 3)


def test_drawings_need_no_public_records_and_take_any(registry):
    assert with_feature_map(PRIVATE_LARGE, asked("drawings:7"), sources(registry)).feature_map.features == 7
    colours = sources(registry, public=lambda _: images(3, shape=(9, 12, 3), name="colours"))
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


# In the ledger


def test_what_a_map_says_in_the_ledger(registry):
    records = registry.reference(PRIVATE)
    assert feature_events(PRIVATE, records, registry) == ()
    free = with_feature_map(PRIVATE, asked("unit"), sources(registry))
    (told,) = feature_events(free, records, registry)
    assert (told.dataset, told.provenance, told.ticket_set) == (records, "data-free", free.feature_map.label)
    assert feature_events(free, records, registry, private=False) == ()
    public = with_feature_map(PRIVATE, asked("conv", "theirs"), sources(registry))
    (told,) = feature_events(public, records, registry)
    assert (told.dataset, told.provenance) == (public.feature_map.source, "public")
    itself = with_feature_map(PUBLIC, asked("conv", "theirs"), sources(registry))
    assert refused(feature_events, itself, registry.reference(PUBLIC), registry).startswith("`public`: theirs")
    assert len(feature_events(itself, registry.reference(PUBLIC), registry, private=False)) == 1
    network = with_feature_map(PRIVATE, asked("network:a.run"), sources(registry, network=lambda _: trained(registry)))
    spent, elsewhere, told = feature_events(network, records, registry)
    assert isinstance(spent, TrainingEvent)
    assert isinstance(elsewhere, GaussianEvent)
    assert (told.dataset, told.provenance) == (spent.dataset, "dp")


def test_events_that_a_map_comes_from(registry):
    given = trained(registry)
    dataset = with_feature_map(PRIVATE, asked("network:a.run"), sources(registry, network=lambda _: given))
    found = dataset.feature_map.centred_at(torch.zeros(7))
    told = ProvenanceEvent(given.records, "dp", found.uncentred.label, time=TIME)
    assert all(is_origin_event(event, replace(PRIVATE, feature_map=found)) for event in (told, *given.events))
    tuned = ProvenanceEvent(given.records, "public", "settings of dpltm tune", time=TIME)
    assert [is_origin_event(event, PRIVATE) for event in (told, tuned)] == [False, True]


def test_what_a_reader_should_know(registry):
    records = registry.reference(PRIVATE)
    public = with_feature_map(PRIVATE, asked("conv", "theirs"), sources(registry))
    assert feature_notes(PRIVATE, records, 1e-3, registry) == feature_notes(public, records, 1e-3, registry) == []
    elsewhere = replace(public.feature_map, source=RecordRegistry().reference(PUBLIC))
    (note,) = feature_notes(replace(public, feature_map=elsewhere), records, 1e-3, registry)
    assert "is not known here, so whether it shares records with mine cannot be told" in note
    network = with_feature_map(PRIVATE, asked("network:a.run"), sources(registry, network=lambda _: trained(registry)))
    notes = feature_notes(network, records, 1e-3, registry)
    for note, name, event in zip(notes, ("theirs", "others"), network.feature_map.events, strict=True):
        assert f"other records, {name}, or on what was made of them" in note
        assert note.endswith(f"certified for those records is epsilon {figure(total_epsilon([event], 1e-3))}")


def test_a_network_depends_on_no_draw_and_on_what_its_schema_was_read_off(registry):
    given = trained(registry)
    draw = SelectionEvent(given.records, Selection(0.5, 0.5), "additive", "exact", 0.01, 3, "ab" * 32, time=TIME)
    theirs = registry.reference(images(5, name="read"), public=True)
    other = ProvenanceEvent(theirs, "public", "ab" * 32, time=TIME)
    read_off = ProvenanceEvent(theirs, "public", READ_OFF, time=TIME)
    tuned = ProvenanceEvent(theirs, "public", f"{SETTINGS}of dpltm tune", time=TIME)
    private = ProvenanceEvent(theirs, "private", READ_OFF, time=TIME)
    given = replace(given, events=(draw, other, private, read_off, *given.events))
    dataset = with_feature_map(PRIVATE, asked("network:a.run"), sources(registry, network=lambda _: given))
    assert dataset.feature_map.events == given.events[3:]
    for told, said in (
        (read_off, "`schema`: was read off read, declared public"),
        (tuned, "`features`: settings of the network in front were searched on read, declared public"),
    ):
        of = replace(given, events=(told, *given.events[4:]))
        mine = with_feature_map(images(5), asked("network:a.run"), sources(registry, network=lambda _, of=of: of))
        assert refused(feature_events, mine, registry.reference(images(5)), registry).startswith(said)


# What the network gets


def test_inputs(registry):
    assert network_inputs(PRIVATE.train, PRIVATE) is PRIVATE.train.x
    assert network_inputs(PRIVATE.train, PRIVATE, augment="flip").shape == (60, 2, 6, 6)
    dataset = with_feature_map(PRIVATE, asked("unit"), sources(registry))
    centre = torch.full((36,), 0.1)
    centred = replace(dataset, feature_map=dataset.feature_map.centred_at(centre))
    plain = network_inputs(dataset.train, dataset)
    assert np.array_equal(network_inputs(centred.train, centred), plain), "they are centred where they are read"
    np.testing.assert_allclose(np.linalg.norm(plain.astype("f8"), axis=1), NORM, rtol=1e-3)
