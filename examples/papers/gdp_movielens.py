"""GDP, Table 4: NoisyAdam on MovieLens, where a record is a person with all ratings, by a network of one's own.

    python examples/papers/gdp_movielens.py movielens.npz [SEEDS]

Source: Bu, Dong, Long, Su (2020), Table 4: neural collaborative filtering of 5 and 10 factors, sigma 0.6, 20 epochs, R 5.
Their RMSE is 0.915, 0.893 without privacy. They protect a rating; here a person is protected, and the RMSE is that of
persons who are held out. The data may not be handed on: scripts/make_ratings.py writes the file.
"""

import math
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import dpltm

STARS, EMPTY = 5, -100


class NCF(nn.Module):
    """Vectors of person and film, multiplied number by number and beside each other, and one layer."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.product, self.beside = nn.Embedding(words, 5), nn.Embedding(words, 10)
        self.stars = nn.Linear(5 + 2 * 10, STARS)

    def forward(self, x: Tensor) -> Tensor:  # (batch, 1 + slots) positions to (batch, slots, 5)
        trained = (x[:, :1, None] > 0).float()
        product, beside = self.product(x), self.beside(x)
        person = (trained * beside[:, :1]).expand_as(beside[:, 1:])
        return self.stars(torch.cat([trained * product[:, :1] * product[:, 1:], person, beside[:, 1:]], -1))


def loss(outputs: Tensor, y: Tensor) -> Tensor:
    """Return the mean over the ratings of each person."""
    each = functional.cross_entropy(outputs.transpose(1, 2), y, ignore_index=EMPTY, reduction="none")
    return each.sum(1) / (y != EMPTY).sum(1).clamp_min(1)


def rmse(outputs: np.ndarray, y: np.ndarray) -> float:
    """Return the error of the expected number of stars, over all ratings."""
    chances = torch.softmax(torch.from_numpy(outputs).double(), -1).numpy()
    errors = (chances @ np.arange(STARS) - y)[y != EMPTY]
    return math.sqrt(np.mean(errors**2))


def main(path: Path, seeds: int = 5, steps: int | None = None) -> None:
    if not path.is_file():
        print(f"skipped: {path} is not there, and may not be handed on; scripts/make_ratings.py writes it")
        return
    with np.load(path) as file:
        data = dict(file)
    words, records = int(data["words"]), int(data["records"])
    batch = min(500, records // 2)
    how = {"batch_size": batch, "steps": steps or round(20 * records / batch), "optimizer": "adam", "lr": 0.01}
    for name, noise in (("a person protected", 0.6), ("no noise, clipped: what is lost to noise", 0.0)):
        errors = []
        for seed in range(seeds):
            run = dpltm.train(
                lambda: NCF(words), data["x_train"], data["y_train"], words=words, records=records, loss=loss, seed=seed,
                noise_multiplier=noise, clip_norm=5.0, delta=min(1e-5, 0.1 / records), ledger=dpltm.Ledger(), **how,
            )  # fmt: skip
            errors.append(rmse(np.asarray(dpltm.predict(run, data["x_test"]).outputs), data["y_test"]))
        epsilon = run.privacy.certified.epsilon
        print(f"{name}: RMSE {np.mean(errors):.3f}, sd {np.std(errors):.3f}, certified epsilon {epsilon:.4g}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
