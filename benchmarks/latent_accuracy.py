"""Local privacy that learns: MNIST or CIFAR-10 from one message a record, label included, at local epsilon 0.5 to 8.

    DPLTM_DATA=... python benchmarks/latent_accuracy.py [--threads 2] [--features scatter | drawings | photographs] \
        [--without-bits] [--epsilons 0.5 1 2 4 8] [--values 24 64 ...]

Prints one JSON object a line. Records are projected onto d principal components of the scattering features of public
Kuzushiji characters, or onto d directions of the encoder of drawings. d, and the scale J of scattering, are chosen for each
epsilon on those characters alone: class means of one half of them, blurred by the noise that all messages will have,
classify the other half. Then all training records of MNIST send one message each, with cryptographic coins, five times over,
and the nearest estimated class mean labels the test split: the mean with its 95 % interval (Student's t over coins). With
``--features photographs`` the records are training images 10,000 to 44,999 of CIFAR-10, tested on the last 5,000, and the
first 10,000 take the place of Kuzushiji. ``clean`` is the same with true class means. ``pruned`` is the mean accuracy
with the smallest weights of the classifier dropped, by the fraction kept, which costs nothing. ``bits`` is what splitting
the budget does: signs of 2 to 16 components by RAPPOR for half of it and the label by randomised response for the other, a
linear network trained on what arrives.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpltm.experiments import summary
from dpltm.features import parse
from dpltm.features.feature_map import map_of
from dpltm.local.codebook import Codebook, Estimates, best_codebook, estimates, nearest_mean, noise
from dpltm.local.scheme import BitStrings, FixedPoint, Messages, channel_statistics
from dpltm.networks import ModelSpec, build
from dpltm.networks.evaluation import accuracy
from dpltm.networks.masks import Mask
from dpltm.pruning.generation import shuffled_batches, train_plain
from dpltm.randomness.noise import SecureSource
from dpltm.records import Dataset, Public, load

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
from make_drawings import principal_axes

PUBLIC = Public("a benchmark")

EPSILONS, SCALES, DIMENSIONS, SEEDS, KEPT = (
    (0.5, 1.0, 2.0, 4.0, 8.0),
    (2, 3),
    (16, 24, 32, 48, 64, 96, 128, 192, 256, 320, 400),
    5,
    (0.8, 0.6, 0.4),
)
CLASSES, SIGNS = 10, (2, 4, 8, 16)


def projected(scale: int, public: Dataset, private: Dataset) -> list[np.ndarray]:
    """Public, private and test records on the components of public features, whitened in part: float32."""
    plain = map_of(parse(f"scatter:{scale}"), public.train.shape, public.bounds)
    x = public.train.open(PUBLIC).x
    found = replace(plain, statistics=channel_statistics(plain, x))
    projection = principal_axes(found(x), max(DIMENSIONS), 0.25)
    assert private.test is not None

    def project(rows: np.ndarray) -> np.ndarray:
        parts = (found(rows[start : start + 500]) for start in range(0, len(rows), 500))
        return torch.cat([projection(part) for part in parts]).numpy()

    return [project(rows) for rows in (x, private.train.open(PUBLIC).x, private.test.open(PUBLIC).x)]


def unit(x: np.ndarray, values: int) -> np.ndarray:
    first = x[:, :values]
    return first / np.linalg.norm(first, axis=1, keepdims=True)


def score(parameters: dict[str, torch.Tensor], x: np.ndarray, y: np.ndarray) -> float:
    outputs = 8 * torch.from_numpy(x) @ parameters["fc1.weight"].T + parameters["fc1.bias"]
    return float((outputs.argmax(1).numpy() == y).mean())


def public_score(x: np.ndarray, y: np.ndarray, book: Codebook, messages: int) -> float:
    """Accuracy of class means of public records, with the noise that so many messages will have."""
    half, scores = np.arange(len(y)) % 2 == 0, []
    means = np.stack([x[half & (y == label)].mean(0) for label in range(CLASSES)])
    variance, equal = noise(book) / messages, np.full(CLASSES, 1 / CLASSES)
    for seed in range(10):
        blurred = means + np.random.default_rng(seed).normal(size=means.shape) * math.sqrt(variance)
        scores.append(score(nearest_mean(book, Estimates(blurred, variance, equal)), x[~half], y[~half]))
    return float(np.mean(scores))


def pruned(parameters: dict[str, torch.Tensor], share: float) -> dict[str, torch.Tensor]:
    weight = parameters["fc1.weight"]
    kept = weight.abs().flatten().topk(round(share * weight.numel())).indices
    return {
        **parameters,
        "fc1.weight": torch.zeros(weight.numel()).index_copy(0, kept, weight.flatten()[kept]).view_as(weight),
    }


def bits(x: np.ndarray, private: Dataset, test: np.ndarray, epsilon: float, signs: int, seed: int) -> float:
    """Half of the budget for signs, half for the label."""
    assert private.test is not None
    answer = BitStrings(signs, CLASSES, FixedPoint(0, 0), "rappor", epsilon / 2, None, epsilon / 2)
    sent = Messages(answer.randomise(x[:, :signs], private.train.open(PUBLIC).y, SecureSource()), answer)
    model = build(ModelSpec("mlp", signs, CLASSES), seed)
    batches = shuffled_batches(len(sent), 1000, torch.Generator().manual_seed(seed))
    train_plain(model, Mask.dense(model), (sent[:], sent.labels), batches, 600, 0.02)
    plain = Messages(answer.without_coins(test[:, :signs], private.test.open(PUBLIC).y), answer, randomised=False)
    return accuracy(model, plain[:], torch.from_numpy(private.test.open(PUBLIC).y))


def interval(values: list[float]) -> dict[str, float]:
    found = summary(values)
    return {"mean": found.mean, "half": found.half, "least": min(values)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--features", choices=("scatter", "drawings", "photographs"), default="scatter")
    parser.add_argument("--without-bits", action="store_true")
    parser.add_argument("--epsilons", type=float, nargs="+", default=EPSILONS)
    parser.add_argument("--values", type=int, nargs="+", default=DIMENSIONS, help="numbers of features to choose from")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    photographs = options.features == "photographs"
    public = load("cifar10-12k" if photographs else "kmnist-7k")
    private = load("cifar10-45k", subset="10000:45000") if photographs else load("mnist")
    assert private.test is not None
    rows: list[dict[str, Any]] = []
    if options.features == "scatter":
        inputs = {f"scatter:{scale}": projected(scale, public, private) for scale in SCALES}
    else:
        found = map_of(parse(f"{options.features}:{max(options.values)}"), public.train.shape, public.bounds)
        inputs = {
            options.features: [
                np.concatenate([found(x[start : start + 500]).numpy() for start in range(0, len(x), 500)])
                for x in (public.train.open(PUBLIC).x, private.train.open(PUBLIC).x, private.test.open(PUBLIC).x)
            ]
        }
    labels, test_labels = private.train.open(PUBLIC).y, private.test.open(PUBLIC).y
    for epsilon in options.epsilons:
        tried = {
            (scale, values): public_score(
                unit(inputs[scale][0], values),
                public.train.open(PUBLIC).y,
                best_codebook(values, CLASSES, epsilon),
                len(labels),
            )
            for scale in inputs
            for values in options.values
        }
        scale, values = max(tried, key=lambda pair: tried[pair])
        book = best_codebook(values, CLASSES, epsilon)
        x, test = (unit(part, values) for part in inputs[scale][1:])
        sent = (book.randomise(x, labels, SecureSource()) for _ in range(SEEDS))
        learned = [nearest_mean(book, estimates(book, rows)) for rows in sent]
        means = np.stack([x[labels == label].mean(0) for label in range(CLASSES)])
        true = {
            "fc1.weight": torch.from_numpy(means / 8).float(),
            "fc1.bias": torch.from_numpy(-np.square(means).sum(1) / 2).float(),
        }
        rows.append(
            {
                "epsilon": epsilon,
                "certified": book.certified,
                "features": scale,
                "values": values,
                "labels": book.labels,
                "near": book.near,
                "candidates": book.candidates,
                **interval([score(one, test, test_labels) for one in learned]),
                "clean": score(true, test, test_labels),
                "pruned": {
                    share: float(np.mean([score(pruned(one, share), test, test_labels) for one in learned]))
                    for share in KEPT
                },
                "bits": {
                    signs: interval(
                        [
                            bits(inputs[scale][1], private, inputs[scale][2], epsilon, signs, seed)
                            for seed in range(SEEDS)
                        ]
                    )
                    for signs in (() if options.without_bits else SIGNS)
                },
            }
        )
        print(json.dumps(rows[-1]), flush=True)


if __name__ == "__main__":
    main()
