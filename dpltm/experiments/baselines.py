"""What runs are compared with: a dense network and a random mask, as a recipe of the very settings that a run has.

A dense network is trained as the run was, with all weights live. A random mask has the density of the run's ticket. Trained
without noise, the dense network shows what privacy costs; nothing is certified for it, so it is made only if it is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpltm.errors import InputError
from dpltm.experiments.reader import REMEMBERED
from dpltm.experiments.recipe import Arm, Recipe, Section, Trial, data_options, digest
from dpltm.networks import ModelSpec
from dpltm.options.report import BASELINES
from dpltm.options.sections import section_problems
from dpltm.options.train import RunFolderOptions, TrainRequest
from dpltm.privacy.events import Event
from dpltm.pruning.generation import GenerationConfig, pruning_rates
from dpltm.registry import listed
from dpltm.reports.subjects import number, section, text

if TYPE_CHECKING:
    from torch import Tensor

    from dpltm.features.feature_map import FeatureMap

TITLE = "Baselines"
"""Of the recipe: one folder holds those of any runs."""

OF_A_TRAINING = frozenset(
    {"ticket", "dense", "seed", *(item.name.replace("_", "-") for item in fields(RunFolderOptions))}
)
"""Options that say which training it is, and not how it is done."""

UNREPEATABLE = "its features come from another run, whose folder it does not name; train a dense run by hand"
DIGITS = 6
"""Of a digest of settings, in the name of an arm: names stay the same whatever is compared."""


@dataclass(frozen=True)
class Base:
    """A run that baselines are trained beside.

    Attributes:
        label: what the table calls it.
        train: its options of ``dpltm train``, as those of a dense network.
        spec: its network.
        rate: fraction of each layer that one round would drop to leave a mask as dense as its ticket; 0 for a whole network.
        draws: that its ticket, and so the density, may depend on.
        measure: ``accuracy`` or ``rmse``.
    """

    label: str
    train: Section
    spec: ModelSpec
    rate: float
    draws: tuple[Event, ...]
    measure: str


@dataclass(frozen=True)
class Baseline:
    """One training that is to be compared with runs.

    Attributes:
        kind: of ``BASELINES``.
        beside: labels of the runs with these settings.
        base: the first of them.
        trial: of the recipe.
    """

    kind: str
    beside: tuple[str, ...]
    base: Base
    trial: Trial


def kinds_of(given: str | None) -> tuple[str, ...]:
    """The kinds that an option names; dense and random where it names none.

    Raises:
        InputError: there is no such kind, or one is named twice.
    """
    kinds = ("dense", "random") if given is None else tuple(part.strip() for part in given.split(","))
    wrong = next((kind for kind in kinds if kind not in BASELINES), None)
    if wrong is not None:
        raise InputError(
            f"`kinds`: {wrong!r:.80} is not one of {listed(BASELINES, 'and')}; name some of them, with commas"
        )
    if len(set(kinds)) < len(kinds):
        raise InputError("`kinds`: one is named twice; name each once")
    return kinds


def base_of(
    label: str,
    config: Mapping[str, Any],
    mask: Mapping[str, Tensor],
    feature_map: FeatureMap | None,
    draws: Iterable[Event],
    measure: str,
) -> Base:
    """What baselines of a run are trained with.

    Args:
        label: what the table calls it.
        config: of the run.
        mask: that it was trained with.
        feature_map: in front of its network, as the run keeps it.
        draws: of its ledger.
        measure: ``accuracy`` or ``rmse``.

    Raises:
        InputError: it does not hold how it was trained, or baselines of it would be of no use.
    """
    options = config.get("options")
    if not isinstance(options, Mapping):
        raise InputError("it holds no options of dpltm train; it was trained in Python, or by an older version")
    defaults = {item.name: item.default for item in fields(TrainRequest)}
    given = {
        name.replace("_", "-"): value
        for name, value in options.items()
        if value is not None and value != defaults.get(name)
    }
    train = {name: value for name, value in given.items() if name not in OF_A_TRAINING}
    if problems := section_problems(TrainRequest, train):
        raise InputError(f"its options are not those of dpltm train: {problems[0]}")
    if "dataset" not in train:
        raise InputError("it names no dataset; its records were given in Python")
    if number(section(config, "resolved").get("noise_multiplier")) == 0:
        raise InputError("it was trained without noise")
    spec = ModelSpec(config["model"], config["features"], config["classes"])  # which the run was read by
    train = {name: value for name, value in train.items() if name not in REMEMBERED}
    whole = section(config, "resolved").get("round") in (None, 0)
    return Base(
        label,
        {**train, "model": spec.text, **_in_front(feature_map, given)},
        spec,
        0.0 if whole else random_rate(spec, mask, by_user=config.get("unit") == "user"),
        tuple(draws),
        measure,
    )


def _in_front(feature_map: FeatureMap | None, given: Section) -> dict[str, Any]:
    """The options that make the map of a run again."""
    if feature_map is None:
        return {}
    if feature_map.network is not None:
        named = text(given.get("features"))
        if named is None:
            raise InputError(UNREPEATABLE)
        return {"features": named}
    options: dict[str, Any] = {"features": feature_map.text}
    if feature_map.statistics is not None or feature_map.projection is not None:
        options["public"] = "" if feature_map.source is None else feature_map.source.name
    if feature_map.projection is not None:
        options["components"] = len(feature_map.projection.components)
    return options


def baselines(bases: Sequence[Base], kinds: Sequence[str], path: Path) -> tuple[Recipe, list[Baseline]]:
    """The baselines that are missing beside runs: one of each kind for all runs that share their settings.

    A run of a whole network is a dense baseline by itself, and has no random mask beside it.

    Args:
        bases: the runs.
        kinds: what to train.
        path: what the recipe calls its file.

    Returns:
        The recipe, and what its arms are.
    """
    arms: dict[str, tuple[str, Arm, list[Base]]] = {}
    sets: dict[str, Section] = {}
    there = {digest(base.train) for base in bases if not base.rate}
    for kind in kinds:
        for base in bases:
            if kind == "dense" and digest(base.train) in there:
                continue
            if kind == "random" and not base.rate:
                continue
            if kind == "random" and "unit-column" in base.train:
                raise InputError(
                    f"RUN: {base.label}: no baseline random: a ticket set knows no `unit_column`; take `kinds` dense"
                )
            arm = _random_arm(base, sets) if kind == "random" else _dense_arm(base, kind)
            arms.setdefault(arm.name, (kind, arm, []))[2].append(base)
    rows = tuple(arm for _, arm, _ in arms.values())
    recipe = Recipe(path, TITLE, "", (), 1, bases[0].measure, sets, rows, None, False)
    made = [
        Baseline(kind, tuple(base.label for base in beside), beside[0], trial)
        for (kind, _, beside), trial in zip(arms.values(), recipe.trials, strict=True)
    ]
    return recipe, made


def _dense_arm(base: Base, kind: str) -> Arm:
    train = dict(base.train)
    if kind == "non-private":
        for name in ("epsilon", "budget-stop", "audit"):
            train.pop(name, None)
        train["noise-multiplier"] = 0.0
    return _arm(kind, train, None)


def _random_arm(base: Base, sets: dict[str, Section]) -> Arm:
    """One training of a random mask, whose set is noted in ``sets``."""
    front = {name: base.train[name] for name in REMEMBERED if name in base.train}
    section = {
        **data_options(base.train),
        **front,
        "criterion": "random",
        "rounds": 1,
        "prune": f"{base.rate:.12g}",
    }
    name = f"random {digest(section)[:DIGITS]}"
    sets[name] = section
    return _arm("random", {key: value for key, value in base.train.items() if key not in REMEMBERED}, name)


def _arm(kind: str, train: Section, tickets: str | None) -> Arm:
    name = f"{kind} {digest([train, tickets])[:DIGITS]}"
    number_of = None if tickets is None else 1
    return Arm(name, name, None, None, tickets, number_of, None, train, None, None, None)


def random_rate(spec: ModelSpec, mask: Mapping[str, Tensor], *, by_user: bool = False) -> float:
    """The fraction of each layer that one round drops to leave as many weights as a mask has in all.

    Args:
        spec: the network; layers that are never pruned count.
        mask: by parameter.
        by_user: whether users are protected: held-out ones are pruned anyway, so tables of users do not count.
    """
    apart = spec.kind.user_parameters if by_user else ()
    weights = {name: live for name, live in mask.items() if live.ndim >= 2 and name not in apart}
    dropped = sum(live.numel() - int(live.sum()) for live in weights.values())
    return dropped / sum(weights[name].numel() for name in pruning_rates(spec, GenerationConfig()) if name in weights)
