"""GDP, Table 3: the LSTM without privacy, on IMDb.

Two bidirectional layers of 64 and 32 behind an embedding of 64, 64 ReLU, Adam at 1e-4 on batches of 64, as TensorFlow's
tutorial of that time has it; here on 10,000 words and 256 tokens, as the private networks are. Prints the test accuracy
after each epoch.

    DPLTM_DATA=... python benchmarks/imdb_lstm.py [EPOCHS [SEED]]
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.utils.rnn import pack_padded_sequence

from dpltm.records import Public, load

PUBLIC = Public("a benchmark")


class Reader(nn.Module):
    """Reviews of 256 positions, 0 for padding, to one logit; padding is not read."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, 64)
        self.first = nn.LSTM(64, 64, batch_first=True, bidirectional=True)
        self.second = nn.LSTM(128, 32, batch_first=True, bidirectional=True)
        self.head = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = x.gather(1, (x == 0).int().argsort(dim=1, stable=True))  # which stands in front of the words
        lengths = (x > 0).sum(1).clamp_min(1)
        packed = pack_padded_sequence(self.embedding(x), lengths, batch_first=True, enforce_sorted=False)
        _, (last, _) = self.second(self.first(packed)[0])
        return self.head(torch.cat([last[0], last[1]], 1))[:, 0]


def main(epochs: int = 10, seed: int = 0) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    records = load("imdb")
    assert records.test is not None
    (x, y), (x_test, y_test) = (
        (torch.as_tensor(split.x).long(), torch.as_tensor(split.y))
        for split in (records.train.open(PUBLIC), records.test.open(PUBLIC))
    )
    model = Reader(records.tables[0])
    optimizer = torch.optim.Adam(model.parameters(), 1e-4)
    for epoch in range(1, epochs + 1):
        for batch in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            binary_cross_entropy_with_logits(model(x[batch]), y[batch].float()).backward()
            optimizer.step()
        with torch.no_grad():
            right = [
                (model(part) > 0) == label for part, label in zip(x_test.split(500), y_test.split(500), strict=True)
            ]
        print(f"epoch {epoch}: {torch.cat(right).double().mean():.2%}", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
