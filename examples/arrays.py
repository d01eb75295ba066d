"""Arrays in, a private network out: a notebook's cells in a row. Nothing is read from a file, and nothing is written.

python examples/arrays.py
"""

# %% Records: 8 x 8 images as numbers from 0 to 16. Some were published, some are private, some were kept apart.
from sklearn.datasets import load_digits

import dpltm
from dpltm.errors import BudgetError

x, y = load_digits(return_X_y=True)
published, private, apart = slice(0, 700), slice(700, 1400), slice(1400, None)
facts = {"bounds": (0, 16), "classes": 10}  # public: what values may be, not what they happen to be

# %% 1. Tickets, from the published records.
tickets = dpltm.generate(
    x[published], y[published], provenance="public", model="mlp:64", rounds=4, iterations=200, batch_size=64, **facts
)
for ticket in tickets.body.tickets:
    print(f"round {ticket.round}: density {ticket.mask.density:.0%}, accuracy {ticket.accuracy:.0%}")

# %% 2. The winner, drawn on the private ones. The number of records is declared, so that the true one stays private.
facts |= {"records": 700}
winner = dpltm.select(tickets, x[private], y[private], eps1=0.3, score="additive", **facts)
print(f"winner: round {winner.round} for epsilon {winner.privacy.certified.epsilon:.2f}")

# %% 3. Its training: 3.0 is for all that was done with the private records, the draw included.
run = dpltm.train(winner, x[private], y[private], epsilon=3.0, epochs=10, **facts)
print(f"certified epsilon {run.privacy.certified.epsilon:.3f} at delta {run.privacy.certified.delta:g}")

# %% What the network is worth on records that no stage has seen, and what it says of one of them.
print(f"accuracy {dpltm.evaluate(run, x[apart], y[apart]).accuracy:.0%}")
print(f"the first is a {dpltm.predict(run, x[apart][:1]).labels[0]}, and was labelled {y[apart][0]}")

# %% All of it is in the ledger of this process, which refuses what is not left.
try:
    dpltm.train(winner, x[private], y[private], epsilon=3.0, epochs=10, **facts)
except BudgetError as refusal:
    print(f"refused: {refusal}")
