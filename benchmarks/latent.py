"""LATENT: what encoding takes, and what an attacker learns from one message.

    DPLTM_DATA=... python benchmarks/latent.py [--pairs 2000] [--plot docs/latent_encoding.png]

Prints one JSON object. ``encoding``: microseconds a record against its number of features (LATENT, Figure 12), z-scores to
randomised bits, ten bits a feature, on one core; the least of several repeats, since other work only adds to it.
``attack``: two MNIST images that the attacker knows, one of them sent, the attacker says which by the likelihood ratio,
which no attack beats. The share of right answers with its 95 % interval (Clopper and Pearson) beside the most that a
claimed epsilon permits, e^eps / (1 + e^eps).
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path

import numpy as np
import torch
from scipy import stats

from dpltm.features import parse
from dpltm.features.feature_map import FeatureMap, map_of
from dpltm.local.codebook import TOGETHER, best_codebook
from dpltm.local.scheme import BitStrings, FixedPoint, Scheme, public_statistics
from dpltm.randomness.noise import SecureSource
from dpltm.records import Public, load

PUBLIC = Public("a benchmark")

FORM, CLASSES, EPSILON = FixedPoint(4, 5), 10, 0.5
FEATURES, RECORDS, REPEATS = (1152, 2304, 4608, 6912, 9216, 13824, 18432), 500, 7
PROTOCOLS = (("uer", 7.0), ("moue-hs", 7.0), ("rappor", None))


def encoding() -> list[dict[str, float]]:
    rows, source = [], SecureSource()
    for features in FEATURES:
        answer = BitStrings(features, CLASSES, FORM, "uer", EPSILON, 7.0, None)
        scores = np.random.default_rng(0).normal(size=(RECORDS, features)).astype("f4")
        labels, best = np.zeros(RECORDS, dtype=np.int64), math.inf
        for _ in range(REPEATS):
            began = time.perf_counter()
            answer.randomise(scores, labels, source)
            best = min(best, time.perf_counter() - began)
        rows.append(
            {
                "features": features,
                "bits": answer.channel.bits,
                "microseconds": 1e6 * best / RECORDS,
                "records_a_second": RECORDS / best,
            }
        )
    return rows


def attack(pairs: int) -> list[dict[str, float | str]]:
    mnist, public = load("mnist"), load("kmnist-7k")
    found = map_of(parse("conv"), mnist.train.shape, mnist.bounds)
    mean, deviation = public_statistics(found, public.train.open(PUBLIC).x[:2000])
    generator, rows = np.random.default_rng(0), []
    for protocol, alpha in PROTOCOLS:
        answer = BitStrings(found.features, CLASSES, FORM, protocol, EPSILON, alpha, None)
        scheme = Scheme(found, mean, deviation, answer)
        p, q = answer.channel.probabilities()
        one, zero = np.log(p / q), np.log((1 - p) / (1 - q))
        right = 0
        for start in range(0, pairs, 250):
            some = generator.integers(0, len(mnist.train), (2, min(250, pairs - start)))
            images = [answer.form.encode(scheme.scores(mnist.train.open(PUBLIC).x[each])) for each in some]
            first, second = (np.unpackbits(bits, axis=1, count=answer.channel.bits) for bits in images)
            which = generator.integers(0, 2, len(first)).astype(bool)
            sent = answer.channel.send(np.where(which[:, None], *images), SecureSource())
            bits = np.unpackbits(sent, axis=1, count=answer.channel.bits)
            ratio = ((first.astype("f4") - second) * np.where(bits, one, zero)).sum(1)
            right += int(((ratio > 0) == which).sum())
        rows.append(share_of(protocol, answer.nominal, answer.certified, right, pairs))
    return rows + [codebook_attack(found, epsilon, pairs, generator) for epsilon in (EPSILON, 4.0)]


def codebook_attack(
    found: FeatureMap, epsilon: float, pairs: int, generator: np.random.Generator
) -> dict[str, float | str]:
    """Images with their labels; an index is likelier from the record that it is near to, by a factor of e^epsilon."""
    mnist, answer = load("mnist"), best_codebook(found.features, CLASSES, epsilon)
    right = 0
    for _ in range(0, pairs, TOGETHER):
        some = generator.integers(0, len(mnist.train), (2, TOGETHER))
        scores = [found(mnist.train.open(PUBLIC).x[each]).numpy() for each in some]
        labels = [mnist.train.open(PUBLIC).y[each] for each in some]
        which = generator.integers(0, 2, TOGETHER).astype(bool)
        sent = answer.randomise(np.where(which[:, None], *scores), np.where(which, *labels), SecureSource())
        number, index = int(sent[0, :4].view("<u4")[0]), np.ascontiguousarray(sent[:, 4:]).view("<u2")
        near = [(answer.near_candidates(*pair, number) == index).any(1) for pair in zip(scores, labels, strict=True)]
        guess = np.where(near[0] == near[1], generator.integers(0, 2, TOGETHER).astype(bool), near[0])
        right += int((guess == which).sum())
    return share_of("codebook", answer.nominal, answer.certified, right, -(-pairs // TOGETHER) * TOGETHER)


def share_of(protocol: str, nominal: float, certified: float, right: int, tries: int) -> dict[str, float | str]:
    low, high = stats.binomtest(right, tries).proportion_ci(method="exact")
    most = math.exp(nominal) / (1 + math.exp(nominal))
    return {
        "protocol": protocol, "nominal": nominal, "certified": certified, "right": right / tries, "low": low, "high": high,
        "claimed_at_most": most,
    }  # fmt: skip


def plot(rows: list[dict[str, float]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    x, y = (np.array([row[key] for row in rows]) for key in ("features", "microseconds"))
    slope = float(x @ y / (x @ x))
    figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
    axes.plot(x, y / 1000, "o", label="measured")
    axes.plot([0, x[-1]], [0, slope * x[-1] / 1000], "-", color="tab:gray", label=f"{1000 * slope:.0f} ns a feature")
    axes.set(xlabel="features of a record (ten bits each)", ylabel="milliseconds to encode a record, one core")
    axes.set_ylim(0)
    axes.set_xlim(0)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=2000)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    times = encoding()
    if options.plot is not None:
        plot(times, options.plot)
    print(json.dumps({"encoding": times, "attack": attack(options.pairs)}, indent=2))


if __name__ == "__main__":
    main()
