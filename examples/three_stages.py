"""The three stages as a program, with a ledger in memory.

    python examples/three_stages.py

One half of scikit-learn's digits is public and yields the tickets; the other half is private. The command line does the
same with artifacts on disk (``dpltm demo``).
"""

import torch

import dpltm
from dpltm.records import load
from dpltm.training.artifacts import Run

EPSILON, EPS1 = 3.0, 0.3


def main() -> Run:
    torch.set_num_threads(1)
    public, private = load("digits", subset="0.0:0.5"), load("digits", subset="0.5:1.0")

    # 1. Tickets from the public half: ordinary training, no cost to the private half.
    tickets = dpltm.generate(public, provenance="public", model="mlp:100", rounds=5, iterations=300, batch_size=64)

    # 2. One draw on the private half. It is entered before the winner is known.
    winner = dpltm.select(tickets, private, eps1=EPS1, score="additive")

    # 3. DP training of the winner, with noise that spends what the budget has left.
    run = dpltm.train(winner, private, filter="tanh", epsilon=EPSILON, steps=60, lr=1.0)

    mask, certified = run.mask, run.privacy.certified
    print(f"winner: round {winner.round}, density {mask.density:.1%}, {mask.live} live coordinates")
    print(f"test accuracy {dpltm.evaluate(run, private).accuracy:.1%}")
    print(f"certified epsilon {certified.epsilon:.3f} at delta {certified.delta:g}, {certified.adjacency} one record")
    return run


if __name__ == "__main__":
    main()
