"""A training by several ranks: what rank 0 tells the others, and what those do.

Rank 0 plans, enters the events, keeps checkpoints, measures and reports, as one process does. The others open the same
records and the same ticket, and hear the rest: noise, steps, step size, a released centre, and the state that a checkpoint
goes on from. All that could be refused is refused by all before an event is entered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from dpltm.networks.content import content_id
from dpltm.options.train import TrainOptions
from dpltm.privacy.old_ledger import Ledger
from dpltm.records import Dataset
from dpltm.records.registry import RecordRegistry
from dpltm.stages.services import Services
from dpltm.stages.starting_point import StartingPoint
from dpltm.stages.train_gradients import noisy_gradients
from dpltm.stages.train_plan import Draft, TrainingPlan, draft
from dpltm.stages.train_state import Sources
from dpltm.training.descent import Descent
from dpltm.training.ranks import Ranks, rows_digest

# rank 0


def call(ranks: Ranks, plan: TrainingPlan) -> None:
    """Has the other ranks make ready for a plan of which nothing is entered yet.

    Raises:
        DpltmError: one of them cannot, or has other records, or another network; on all ranks.
    """
    ranks.together(lambda: None)
    ranks.agree(*_facts(plan))
    ranks.tell({name: getattr(plan.config, name) for name in _SETTLED})


def begin(ranks: Ranks, plan: TrainingPlan, descent: Descent, ended: bool) -> None:
    """Has the other ranks take their first step, or the one that a checkpoint goes on with.

    Args:
        ranks: of the training.
        plan: of it; with its centre, if that was released.
        descent: where it is.
        ended: whether there is no step left to take.
    """
    feature_map = plan.dataset.feature_map
    centre = None if plan.centre is None or feature_map is None else feature_map.centre
    ranks.tell({"step": descent.step, "ended": ended})
    ranks.share({} if centre is None else {"centre": centre})
    ranks.share(descent.state())


# the others


def follow(
    ranks: Ranks,
    opened: Callable[[], tuple[StartingPoint, Dataset]],
    options: TrainOptions,
    registry: RecordRegistry,
    services: Services,
) -> None:
    """Does the share of a rank that is not the first, and returns when the last step is done.

    Args:
        ranks: of the training.
        opened: opens what is trained, and the records.
        options: of the training.
        registry: that tells records apart, and writes nothing.
        services: where features come from.

    Raises:
        DpltmError: what rank 0 raises as well, or what ended it.
    """

    def drafted() -> Draft:
        start, dataset = opened()
        return draft(start, dataset, options, Ledger(registry=registry))

    mine = ranks.together(drafted)
    ranks.agree(*_facts(mine))
    start, dataset, config = mine.start, mine.dataset, replace(mine.config, **ranks.tell())
    sources = Sources.fresh(options.noise)  # of which nothing is drawn
    gradients = ranks.in_turn(lambda: noisy_gradients(start, dataset, options, config, services, sources, ranks))
    told, centre = ranks.tell(), ranks.share({}).get("centre")
    if centre is not None:
        assert dataset.feature_map is not None
        centred = dataset.feature_map.centred_at(centre)
        dataset = replace(dataset, feature_map=centred)
        gradients = noisy_gradients(start, dataset, options, config, services, sources, ranks)
    descent = Descent(gradients)
    descent.resume(told["step"], ranks.share({}))
    if not told["ended"]:
        descent.run(None if options.stop_at is None else lambda _: ranks.same(False))


_SETTLED = ("steps", "noise_std", "lr")
"""Of a configuration, what the plan settles after the draft, by the ledger and by calibration."""


def _facts(planned: TrainingPlan | Draft) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """What all ranks must have in common beside their options; and digests, of what no message may show."""
    start, dataset, config = planned.start, planned.dataset, planned.config
    feature_map, weights = dataset.feature_map, start.model.state_dict()
    shown = {
        "network": f"{start.spec.text} of {start.spec.features} features and {start.spec.classes} classes",
        "filter": config.filtered,
        "sampling rate": repr(config.sampling_rate),
        "expected batch": repr(config.expected_batch),
        "bounds": repr(dataset.bounds),
        "features": "none" if feature_map is None else feature_map.uncentred.id,
    }
    mask = {name: value.numpy() for name, value in start.mask.items()}
    private = {
        "records of `dataset`": rows_digest(dataset.train.x, dataset.train.y),
        "starting weights": content_id({name: value.cpu().numpy() for name, value in weights.items()}),
        "mask": content_id(mask),
    }
    return shown, private
