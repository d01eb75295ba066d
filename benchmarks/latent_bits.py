"""LATENT as published, over epochs: networks on the randomised bits of its convolutional modules (Figures 9 to 11).

    DPLTM_DATA=... python benchmarks/latent_bits.py alpha [--alphas 1.25 2 3 5 7] [--records 6000] [--epochs 60] \
        [--seeds 0 1 2] [--test 2000] [--epsilon 0.5]
    DPLTM_DATA=... python benchmarks/latent_bits.py cifar [--records 20000] [--epochs 10] [--augment 0] [--plain]
    python benchmarks/latent_bits.py check

The same training as ``dpltm latent train --inputs bits`` (``latent-alpha`` and ``latent-cifar`` in ``examples/papers``), up
to rounding, in a fraction of the time; ``check`` shows that, on made-up messages. SGD moves the weights of the first layer
within the span of the messages: they are W + A^T X, with a row of A for each message, and outputs of the layer are
X W^T + K A with K = X X^T. K counts the ones that two messages share: in whole numbers, and once, whatever the epochs.
Prints JSON: steps, and accuracy on messages and on randomised test records, at each tenth of the epochs. ``--plain`` flips
no bit (p = 1). Coins follow from the seed: no privacy is claimed anywhere here.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, dropout

from dpltm.features import parse
from dpltm.features.feature_map import map_of
from dpltm.local.latent import SchemeOptions, TrainRequest
from dpltm.local.scheme import ROWS, BitStrings, FixedPoint, Scheme
from dpltm.networks import ModelSpec, build
from dpltm.privacy.ledger import Ledger
from dpltm.pruning.generation import shuffled_batches
from dpltm.randomness.noise import FastSource
from dpltm.records import Public, load
from dpltm.tickets.workbench.latent import learn, make_scheme

PUBLIC = Public("a benchmark")

AT_ONCE, SEEN, LR, DROPOUT = 2048, 5000, 0.003, 0.5


def bits_of(rows: np.ndarray, answer: BitStrings) -> Tensor:
    return torch.from_numpy(np.unpackbits(rows[:, :-2], axis=1, count=answer.channel.bits).view(np.int8))


def shared(rows: np.ndarray, others: np.ndarray, answer: BitStrings) -> Tensor:
    """Ones that messages have in common, ``(n, m)`` float32: whole numbers."""
    found, same = torch.empty(len(rows), len(others)), rows is others
    for start in range(0, len(rows), AT_ONCE):
        part = bits_of(rows[start : start + AT_ONCE], answer)
        for place in range(start if same else 0, len(others), AT_ONCE):
            counts = torch._int_mm(part, bits_of(others[place : place + AT_ONCE], answer).T)
            found[start : start + AT_ONCE, place : place + AT_ONCE] = counts
            if same:
                found[place : place + AT_ONCE, start : start + AT_ONCE] = counts.T
    return found


def times(rows: np.ndarray, weight: Tensor, answer: BitStrings) -> Tensor:
    parts = (rows[start : start + 256] for start in range(0, len(rows), 256))
    return torch.cat([bits_of(part, answer).float() @ weight.T for part in parts])


@torch.no_grad()
def train(
    answer: BitStrings,
    rows: np.ndarray,
    test: tuple[np.ndarray, np.ndarray],
    units: int,
    batch: int,
    epochs: int,
    seed: int,
) -> Iterator[tuple[int, float, float]]:
    """Yield steps, and accuracy on messages and on test records, at each tenth of the epochs."""
    model = build(ModelSpec(f"mlp:{units}", answer.channel.bits, answer.classes), seed)
    weight, bias, second, last = (value.detach() for value in model.parameters())
    y, tested = torch.from_numpy(answer.labels(rows)), torch.from_numpy(test[1]).long()
    kernel, before = shared(rows, rows, answer), times(rows, weight, answer)
    kernel_of_test, before_of_test = shared(test[0], rows, answer), times(test[0], weight, answer)
    moved, per_epoch = torch.zeros(len(rows), units), len(rows) // batch
    batches = shuffled_batches(len(rows), batch, torch.Generator().manual_seed(seed + 2**32))

    def right(start: Tensor, inner: Tensor, labels: Tensor) -> float:
        outputs = (start + inner @ moved + bias).relu() @ second.T + last
        return float((outputs.argmax(1) == labels).float().mean())

    torch.manual_seed(seed + 2**33)
    for step in range(1, 1 + round(epochs * len(rows) / batch)):
        index = next(batches)
        outputs = before[index] + kernel[index] @ moved + bias
        with torch.enable_grad():
            values = [value.requires_grad_() for value in (outputs, second, last)]
            loss = cross_entropy(dropout(outputs.relu(), DROPOUT) @ second.T + last, y[index])
            slopes = torch.autograd.grad(loss, values)
        second, last = (value.detach() - LR * slope for value, slope in zip(values[1:], slopes[1:], strict=True))
        moved[index] -= LR * slopes[0]
        bias = bias - LR * slopes[0].sum(0)
        if step % (per_epoch * max(1, epochs // 10)) == 0:
            seen = right(before[:SEEN], kernel[:SEEN], y[:SEEN])
            yield step, seen, right(before_of_test, kernel_of_test, tested)


def scored(scheme: Scheme, x: np.ndarray) -> np.ndarray:
    return np.concatenate([scheme.scores(x[start : start + ROWS]) for start in range(0, len(x), ROWS)])


def alpha(given: argparse.Namespace) -> None:
    public, private = load("kmnist-7k"), load("mnist")
    (x, y), (tx, ty) = private.train.open(PUBLIC), private.test.open(PUBLIC)
    options = SchemeOptions(
        public="kmnist-7k",
        features="conv",
        protocol="uer",
        epsilon=given.epsilon,
        alpha=7.0,
        format="4,5",
        label_epsilon="public",
    )
    made = make_scheme(public, options, Ledger())
    scores, test_scores = scored(made, x[: given.records]), scored(made, tx[: given.test])
    for seed in given.seeds:
        for value in given.alphas:
            began, answer = time.process_time(), replace(made.answer, alpha=value)
            rows = answer.randomise(scores, y[: given.records], FastSource(1000 + seed))
            test = answer.randomise(test_scores, ty[: given.test], FastSource(2000 + seed))
            points = list(train(answer, rows, (test, ty[: given.test]), 128, 128, given.epochs, seed))
            told = {"alpha": value, "seed": seed, "certified": answer.certified, "points": points}
            print(json.dumps({**told, "seconds": time.process_time() - began}), flush=True)


def cifar(given: argparse.Namespace) -> None:
    public, private = load("cifar10-12k"), load("cifar10-45k")
    (x, y), (tx, ty) = private.train.open(PUBLIC), private.test.open(PUBLIC)
    x, y, began = x[10_000 : 10_000 + given.records], y[10_000 : 10_000 + given.records], time.process_time()
    coins = {"protocol": "ue", "epsilon": 100.0} if given.plain else {"protocol": "uer", "epsilon": 0.5, "alpha": 7.0}
    options = SchemeOptions(public="cifar10-12k", features="conv", format="2,7", label_epsilon="public", **coins)
    made = make_scheme(public, options, Ledger())
    rows = np.concatenate(list(made.messages(x, y, FastSource(1000), augment=given.augment)))
    test = np.concatenate(list(made.messages(tx[: given.test], ty[: given.test], FastSource(2000))))
    print(json.dumps({"messages": len(rows), "seconds": time.process_time() - began}), flush=True)
    for point in train(made.answer, rows, (test, ty[: given.test]), 512, 400, given.epochs, 0):
        print(json.dumps({"point": point, "seconds": time.process_time() - began}), flush=True)


def check(given: argparse.Namespace) -> None:
    """Train on made-up messages in both ways, and print accuracy on them."""
    draw, classes = np.random.default_rng(0), 4
    y = draw.integers(0, classes, given.records)
    scores = draw.normal(size=(given.records, 900)) + draw.normal(size=(classes, 900))[y]
    answer = BitStrings(900, classes, FixedPoint(1, 2), "uer", 0.5, 7.0, None)
    rows = answer.randomise(scores, y, FastSource(0))
    scheme = Scheme(map_of(parse("unit:1"), (30, 30), (0.0, 1.0)), np.zeros(900, "f4"), np.ones(900, "f4"), answer)
    request = TrainRequest(
        scheme="s", messages="m", out="r", model="mlp:64", inputs="bits", batch_size=50, lr=LR, dropout=DROPOUT
    )
    for epochs in range(1, 1 + given.epochs):
        *_, (_, seen, _) = train(answer, rows, (rows, y), 64, 50, epochs, 0)
        learned = learn(scheme, [rows], replace(request, epochs=float(epochs)))
        print(f"epochs {epochs}: {learned.facts['training']:.4f} and {seen:.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("alpha", "cifar", "check"))
    parser.add_argument("--alphas", type=float, nargs="+", default=(1.25, 2.0, 3.0, 5.0, 7.0))
    parser.add_argument("--records", type=int)
    parser.add_argument("--test", type=int, default=2000, help="test records")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--seeds", type=int, nargs="+", default=(0, 1, 2))
    parser.add_argument("--epsilon", type=float, default=0.5, help="that alpha claims (Figure 10)")
    parser.add_argument("--augment", type=int, default=0)
    parser.add_argument("--plain", action="store_true", help="no bit is flipped")
    given = parser.parse_args()
    torch.set_num_threads(1)
    usual = {"alpha": (6000, 60), "cifar": (20_000, 10), "check": (300, 6)}[given.part]
    given.records, given.epochs = given.records or usual[0], given.epochs or usual[1]
    {"alpha": alpha, "cifar": cifar, "check": check}[given.part](given)


if __name__ == "__main__":
    main()
