"""Claims on the embedded digits, attacked in a minute: what is certified stands, and two claims of the literature fall."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dpltm.audit.local import local_bound
from dpltm.local.bit_strings import BitStrings
from dpltm.local.encoding import FixedPoint
from dpltm.networks import ModelSpec
from dpltm.options.train import TrainOptions
from dpltm.privacy.old_ledger import Ledger
from dpltm.randomness.noise import SecureSource
from dpltm.records import Dataset
from dpltm.records.registry import RecordRegistry
from dpltm.stages.audit import audit
from dpltm.stages.services import Services
from dpltm.stages.starting_point import fresh
from dpltm.stages.train import train
from dpltm.stages.train_plan import plan

SHORT: dict[str, Any] = {"batch_size": 32.0, "steps": 600, "lr": 0.3}
"""Of small batches, so that the records' own gradients are not in the way of canaries."""

TRAININGS: dict[str, dict[str, Any]] = {
    "clip": {"epsilon": 8.0, "audit": 2000},
    "clip, then tanh": {"epsilon": 8.0, "filter": "tanh", "audit": 2000},
    "tanh as printed": {
        "noise_multiplier": 1.5,
        "noise": "nominal",
        "filter": "tanh",
        "no_pre_clip": True,
        "audit": 500,
    },
}
"""By name: how a network of 7,510 weights is trained."""

UER = BitStrings(9216, 10, FixedPoint(4, 5), "uer", 0.5, 7.0, None)
"""LATENT's own setting: 92,160 bits, alpha 7."""

MESSAGES = 1000


@dataclass(frozen=True)
class Attacked:
    """One row.

    Attributes:
        what: was attacked.
        nominal: what its source claims; None where it claims nothing of its own.
        certified: epsilon.
        lower_bound: on it.
    """

    what: str
    nominal: float | None
    certified: float
    lower_bound: float

    @property
    def violates(self) -> list[str]:
        """Claims that the bound refutes."""
        claims = {"certified": self.certified, "nominal": self.nominal}
        return [name for name, epsilon in claims.items() if epsilon is not None and self.lower_bound > epsilon]


def demo(dataset: Dataset, services: Services, confidence: float = 0.95, seed: int = 0) -> list[Attacked]:
    """All rows.

    Args:
        dataset: the digits.
        services: progress.
        confidence: of each row's bound, in [0.5, 1).
        seed: of starting weights.
    """
    rows = []
    for name, options in TRAININGS.items():
        services.progress.say(f"training: {name}")
        start = fresh(ModelSpec("mlp:100", dataset.features, dataset.classes), seed)
        ledger = Ledger(registry=RecordRegistry())
        run = train(plan(start, dataset, TrainOptions(**SHORT, **options), ledger, services), services)
        found = audit(run, confidence=confidence)
        nominal = None if found.nominal is None else found.nominal.epsilon
        rows.append(Attacked(name, nominal, found.certified.epsilon, found.lower_bound))
    services.progress.say("sending messages")
    bound = local_bound(UER, MESSAGES, confidence, SecureSource())
    return [*rows, Attacked("LATENT's UER, one record", UER.nominal, UER.certified, bound)]
