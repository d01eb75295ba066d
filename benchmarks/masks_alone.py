"""What does a mask know? Starting weights under the masks of ticket sets, tested before anything is trained.

Starting weights are drawn from a seed and know nothing of the records; the masks were made from them. So whatever accuracy
there is beyond chance, the masks have from the records, and a training under DP that starts there has not paid for it. The
control (``shuffled-mask`` of ``dpltm tickets transfer``) has as many live weights in every layer, elsewhere. Prints one JSON
object: per round the mean test accuracy over the sets with its 95 % interval (Student's t), with the masks and with the
control.

    dpltm generate --dataset mnist --provenance private --seed 0 --out mnist-0.tickets     # and so on
    DPLTM_DATA=... python benchmarks/masks_alone.py mnist-*.tickets --dataset mnist
"""

from __future__ import annotations

import argparse
import json

from torch import Tensor

from dpltm.cli.common import tensors
from dpltm.data import Dataset, load
from dpltm.generation import Tickets, accuracy
from dpltm.models import build
from dpltm.replicates import summary
from dpltm.tickets.store import find_set
from dpltm.transfer import transfer


def untrained(tickets: Tickets, number: int, test: tuple[Tensor, Tensor]) -> float:
    """Test accuracy of the starting weights under the mask of a round."""
    model, mask = build(tickets.spec), tickets.tickets[number].mask
    model.load_state_dict({name: value * mask[name] for name, value in tickets.theta0.items()})
    return accuracy(model, *test)


def measured(sets: list[Tickets], dataset: Dataset) -> list[dict[str, object]]:
    """A row a round."""
    assert dataset.test is not None
    test, rows = tensors(dataset.test, dataset), []
    controls = [
        transfer(tickets, tickets.spec, "shuffled-mask", seed=seed).tickets for seed, tickets in enumerate(sets)
    ]
    for number, ticket in enumerate(sets[0].tickets):
        found = {
            "mask": [untrained(tickets, number, test) for tickets in sets],
            "shuffled": [untrained(tickets, number, test) for tickets in controls],
        }
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
