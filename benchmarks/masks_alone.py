"""What does a mask know? Starting weights under the masks of ticket sets, tested before anything is trained.

A set's starting weights were drawn from a seed and know nothing of the records; the masks were made from them. So whatever
accuracy there is beyond chance, the masks have from the records, and a training under DP that starts there has not paid for
it. The controls are those of ``dpltm tickets transfer``: ``shuffled-mask`` has as many live weights in every layer, but
elsewhere; ``mask-only`` has other starting weights under the same masks. Prints one JSON object: per round the mean test
accuracy over the sets with its 95 % interval (Student's t), for the tickets and for each control.

    dpltm generate --dataset mnist --provenance private --seed 0 --out mnist-0.tickets     # and so on
    DPLTM_DATA=... python benchmarks/masks_alone.py mnist-*.tickets --dataset mnist
"""

from __future__ import annotations

import argparse
import json

from torch import Tensor

from dpltm.experiments import summary
from dpltm.features.inputs import tensors
from dpltm.networks import build
from dpltm.networks.evaluation import accuracy
from dpltm.pruning.generation import Tickets
from dpltm.records import Dataset, Public, load
from dpltm.tickets.store import find_set
from dpltm.verbs.transfer import carry_over

PUBLIC = Public("a benchmark")

CONTROLS = ("shuffled-mask", "mask-only")

FIRST_SEED = 2**20
"""Of the controls' own draws; far from the seeds that sets are made with."""


def untrained(tickets: Tickets, number: int, test: tuple[Tensor, Tensor]) -> float:
    """Test accuracy of the starting weights under the mask of a round."""
    model, mask = build(tickets.spec), tickets.tickets[number].mask
    model.load_state_dict({name: value * mask[name] for name, value in tickets.theta0.items()})
    return accuracy(model, *test)


def measured(sets: list[Tickets], dataset: Dataset) -> list[dict[str, object]]:
    """A row a round."""
    assert dataset.test is not None
    test, rows = tensors(dataset.test.open(PUBLIC), dataset), []
    looked_at = {"ticket": sets}
    for control in CONTROLS:
        looked_at[control] = [
            carry_over(tickets, tickets.spec, control, seed=FIRST_SEED + at)[0] for at, tickets in enumerate(sets)
        ]
    for number, ticket in enumerate(sets[0].tickets):
        found = {name: [untrained(one, number, test) for one in these] for name, these in looked_at.items()}
        both = {name: summary(values) for name, values in found.items()}
        rows.append(
            {"round": number, "density": ticket.mask.density}
            | {name: {"mean": one.mean, "interval": one.half, "most": max(found[name])} for name, one in both.items()}
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", metavar="SET")
    parser.add_argument("--dataset", required=True)
    options = parser.parse_args()
    sets = [find_set(name).body for name in options.sets]
    print(
        json.dumps(
            {"dataset": options.dataset, "sets": len(sets), "rounds": measured(sets, load(options.dataset))}, indent=1
        )
    )


if __name__ == "__main__":
    main()
