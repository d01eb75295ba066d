"""The pruning criteria that come with the package, each in one object. Their functions need torch, and are deferred."""

from __future__ import annotations

from dataclasses import replace

from dpltm.pruning.criterion import Criterion, TrainingDefaults
from dpltm.registry import Deferred

MAGNITUDE = Criterion(
    "magnitude",
    "The smallest trained weights go.",
    "Han et al. 2015; Frankle and Carbin 2019",
    "trained weights",
    Deferred("dpltm.pruning.magnitude:by_trained_weights"),
)
INPUTS = Criterion(
    "inputs",
    "The same, but for the first layer, which loses whole inputs, columns of a table, or words.",
    "this project",
    "trained weights",
    Deferred("dpltm.pruning.magnitude:by_trained_inputs"),
)
RANDOM = Criterion(
    "random",
    "Weights go in a random order that the seed decides.",
    "the usual control",
    "nothing",
    Deferred("dpltm.pruning.random_order:at_random"),
)
INIT_MAGNITUDE = Criterion(
    "init-magnitude",
    "The smallest weights at initialisation go.",
    "Frankle et al. 2021",
    "initial weights",
    Deferred("dpltm.pruning.magnitude:by_initial_weights"),
)
SYNFLOW = Criterion(
    "synflow",
    "Weights that little of the network's flow goes through go.",
    "Tanaka, Kunin, Yamins, Ganguli 2020",
    "initial weights",
    Deferred("dpltm.pruning.synflow:by_flow"),
    scope="global",
    check=Deferred("dpltm.pruning.synflow:check_network"),
)
STRUCTURED = Criterion(
    "structured",
    "Whole units go, by their trained weights; the number of weights counts in sum, whatever the scope.",
    "Fang et al. 2023",
    "trained weights",
    Deferred("dpltm.pruning.structured:by_units"),
    check=Deferred("dpltm.pruning.structured:check_network"),
)
DP_TRAIN = replace(
    MAGNITUDE,
    name="dp-train",
    help="The smallest weights of one network trained under DP go, round after round.",
    source="this project, after DPLTM",
    mechanism="training",
    training=TrainingDefaults(epochs=15, batch_size=1600, fewest_batches=4, lr=1.0),
)
DP_SYNTHETIC = replace(
    MAGNITUDE,
    name="dp-synthetic",
    help="The smallest weights go that are trained on records drawn from noisy moments.",
    source="this project",
    mechanism="moments",
)
