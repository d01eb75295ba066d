"""A PyTorch training loop made private in three lines: an LSTM, or a GRU, that reads digits row by row.

    python examples/private_lstm.py [lstm|gru]

The network, the loss and the optimizer are the user's own. PrivateLoop draws the samples, bounds every record's gradient,
adds the noise and keeps the ledger.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from dpltm.verbs.private_loop import PrivateLoop


class Reader(nn.Module):
    """Eight rows of eight pixels, one after the other; the last state decides."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.rows = (nn.LSTM if kind == "lstm" else nn.GRU)(8, 32, batch_first=True)
        self.out = nn.Linear(32, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.out(self.rows(images)[0][:, -1])


def main(kind: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    private, test = order[:1500], order[1500:]
    images, labels = (digits.images / 16).astype(np.float32), digits.target

    model = Reader(kind)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loop = PrivateLoop(
        model, nn.CrossEntropyLoss(reduction="none"), images[private], labels[private],
        batch_size=300, steps=200, epsilon=3.0, delta=1e-5, records=1500,
    )  # fmt: skip
    for step in loop:
        step.backward()
        optimizer.step()

    with torch.no_grad():
        right = model(torch.from_numpy(images[test])).argmax(1).numpy() == labels[test]
    certified = loop.report().certified
    print(f"{kind}: test accuracy {right.mean():.1%}")
    print(f"certified epsilon {certified.epsilon:.3f} at delta {certified.delta:g}, {certified.adjacency} one record")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "lstm")
