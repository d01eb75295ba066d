"""Lottery-ticket pruning and differentially private selection and training.

    tickets = dpltm.generate(x_public, y_public, provenance="public", model="mlp:100")
    winner = dpltm.select(tickets, x, y, eps1=0.3)
    run = dpltm.train(winner, x, y, epsilon=3.0)
    run.privacy.certified.epsilon

    dpltm.TicketClassifier(epsilon=3.0, bounds=(0, 255)).fit(x, y).predict(x_test)  # the same as scikit-learn has it

Records are arrays, tensors or a ``dpltm.records.Dataset``. What every stage spends is entered in one ledger,
before it is spent. Nothing is printed, and no file is opened but a dataset: ``dpltm.tickets`` keeps the artifacts on disk,
and ``dpltm.cli`` is the command line. Importing ``dpltm`` is cheap: its names, and its modules, are imported when they are
first asked for.
"""

import os
from typing import TYPE_CHECKING

from dpltm.registry import lazily

if TYPE_CHECKING:
    from dpltm import audit as audit
    from dpltm import estimators as estimators
    from dpltm import features as features
    from dpltm import networks as networks
    from dpltm import privacy as privacy
    from dpltm import records as records
    from dpltm.api import Ledger as Ledger
    from dpltm.api import PrivateLoop as PrivateLoop
    from dpltm.api import evaluate as evaluate
    from dpltm.api import generate as generate
    from dpltm.api import predict as predict
    from dpltm.api import select as select
    from dpltm.api import train as train
    from dpltm.api import transfer as transfer
    from dpltm.api import tune as tune
    from dpltm.estimators import TicketClassifier as TicketClassifier
    from dpltm.estimators import TicketRegressor as TicketRegressor

# Before torch computes: a product's last bits may then not depend on where a row lies (docs/privacy-model.md 4.4).
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
os.environ.setdefault("MKL_DYNAMIC", "FALSE")
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
# Threads that wait for one another sleep after some 0.1 ms, if torch is not imported yet. Awake for several, as they are by
# default, they take ten times the processor time of the work itself beside other work on the machine.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")

__version__ = "0.2.0"

_VERBS = ("generate", "select", "train", "tune", "transfer", "evaluate", "predict")

__getattr__, __dir__ = lazily(
    __name__,
    dict.fromkeys((*_VERBS, "PrivateLoop", "Ledger"), "dpltm.api")
    | dict.fromkeys(("TicketClassifier", "TicketRegressor"), "dpltm.estimators"),
)
