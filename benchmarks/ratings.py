"""Classical predictions of ratings, without privacy: what the networks of GDP's Table 4 stand beside.

    python benchmarks/ratings.py [--dataset movielens-like | movielens] [--factors 10] [--neighbours 40]

Prints one JSON object a line: the RMSE on the test split. ``means`` adds the mean of the user and that of the item, less the
mean of all; ``svd``, ``nmf`` and ``neighbours`` predict the rest: by a truncated singular value decomposition and a
non-negative factorisation of the whole table, where what nobody rated counts as that mean, and by the most similar items
(cosine of what users thought of both) among those that the user rated. ``interval`` is 95 %, of the test ratings.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import numpy as np
from sklearn.decomposition import NMF, TruncatedSVD
from sklearn.metrics.pairwise import cosine_similarity

from dpltm.records import Public, load

PUBLIC = Public("a benchmark")


class Table:
    """Training ratings as a table of users and items, what ``means`` says of each cell, and what is left of them."""

    def __init__(self, places: np.ndarray, stars: np.ndarray, sizes: tuple[int, int]) -> None:
        self.mean = stars.mean()
        users, items = (self._means(places[:, side], stars, sizes[side]) for side in (0, 1))
        self.user, self.item = users, items
        self.plain = users[:, None] + items[None] - self.mean
        self.given = np.zeros(sizes, np.float32)
        self.given[tuple(places.T)] = 1
        self.left = np.zeros(sizes, np.float32)
        self.left[tuple(places.T)] = stars - self.plain[tuple(places.T)]

    def _means(self, at: np.ndarray, stars: np.ndarray, size: int) -> np.ndarray:
        """Mean of each user or item, that of all where there is no rating."""
        count = np.bincount(at, minlength=size)
        return np.where(count > 0, np.bincount(at, stars, size) / np.maximum(count, 1), self.mean)

    def svd(self, factors: int) -> np.ndarray:
        found = TruncatedSVD(factors, random_state=0)
        return self.plain + found.fit_transform(self.left) @ found.components_

    def nmf(self, factors: int) -> np.ndarray:
        filled = np.clip(self.plain + self.left, 0, None)
        found = NMF(factors, init="nndsvd", random_state=0, max_iter=100)
        return np.asarray(found.fit_transform(filled) @ found.components_)

    def neighbours(self, count: int) -> np.ndarray:
        alike = cosine_similarity(self.left.T)
        np.fill_diagonal(alike, 0)
        least = -np.sort(-alike, axis=1)[:, count - 1 : count]
        alike[alike < np.maximum(least, 0)] = 0
        return self.plain + (self.left @ alike.T) / np.maximum(self.given @ alike.T, 1e-9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="movielens-like")
    parser.add_argument("--factors", type=int, default=10)
    parser.add_argument("--neighbours", type=int, default=40)
    options = parser.parse_args()
    dataset = load(options.dataset)
    assert dataset.test is not None
    assert dataset.tables is not None
    train, test = dataset.train.open(PUBLIC), dataset.test.open(PUBLIC)
    table = Table(train.x, train.y + 1.0, dataset.tables)
    ways: dict[str, Callable[[], np.ndarray]] = {
        "mean": lambda: np.full_like(table.plain, table.mean),
        "user": lambda: np.broadcast_to(table.user[:, None], table.plain.shape),
        "item": lambda: np.broadcast_to(table.item, table.plain.shape),
        "means": lambda: table.plain,
        "svd": lambda: table.svd(options.factors),
        "nmf": lambda: table.nmf(options.factors),
        "neighbours": lambda: table.neighbours(options.neighbours),
    }
    for name, way in ways.items():
        began = time.perf_counter()
        errors = np.clip(way()[tuple(test.x.T)], 1, 5) - (test.y + 1)
        rmse, half = np.sqrt(np.square(errors).mean()), 1.96 * np.square(errors).std() / np.sqrt(len(errors))
        row = {"way": name, "rmse": round(float(rmse), 4), "interval": round(float(half / (2 * rmse)), 4)}
        print(json.dumps({**row, "seconds": round(time.perf_counter() - began, 1)}), flush=True)


if __name__ == "__main__":
    main()
