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

from dpltm.data import load
from dpltm.features import parse, without_data
from dpltm.local.bit_strings import BitStrings
from dpltm.local.encoding import FixedPoint
from dpltm.local.scheme import Scheme, public_statistics
from dpltm.noise import SecureSource

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
    wanted = parse("conv")
    assert wanted is not None
    assert not isinstance(wanted, str)
    found = without_data(wanted, mnist.train.x.shape[1:], mnist.bounds)
    mean, deviation = public_statistics(found, iter([public.train.x[:2000]]))
    generator, rows = np.random.default_rng(0), []
    for protocol, alpha in PROTOCOLS:
        answer = BitStrings(found.features, CLASSES, FORM, protocol, EPSILON, alpha, None)
        scheme = Scheme(found, mean, deviation, answer)
        p, q = answer.channel.probabilities()
        one, zero = np.log(p / q), np.log((1 - p) / (1 - q))
        right = 0
        for start in range(0, pairs, 250):
            some = generator.integers(0, len(mnist.train), (2, min(250, pairs - start)))
            images = [answer.form.encode(scheme.scores(mnist.train.x[each]))[0] for each in some]
            first, second = (np.unpackbits(bits, axis=1, count=answer.channel.bits) for bits in images)
            which = generator.integers(0, 2, len(first)).astype(bool)
            sent = answer.channel.send(np.where(which[:, None], *images), SecureSource())
            bits = np.unpackbits(sent, axis=1, count=answer.channel.bits)
            differ = first.astype("f4") - second
            ratio = (differ * np.where(bits, one, zero)).sum(1)
            right += int(((ratio > 0) == which).sum())
        low, high = stats.binomtest(right, pairs).proportion_ci(method="exact")
        claimed = math.exp(answer.nominal) / (1 + math.exp(answer.nominal))
        rows.append(
            {
                "protocol": protocol, "nominal": answer.nominal, "certified": answer.certified, "right": right / pairs,
                "low": low, "high": high, "claimed_at_most": claimed,
            }
        )  # fmt: skip
    return rows


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
