"""A private loop in MLflow: its terms, epsilon so far, accuracy on public records, and the statement of privacy.

    pip install mlflow
    python examples/mlflow_log.py && mlflow ui

Nothing that is logged costs anything: epsilon is known beforehand, and the weights are what is released. Log no loss on
private records, and no time that a step took: it tells how many records were drawn.
"""

from __future__ import annotations

import mlflow
import torch
from sklearn.datasets import load_digits

from dpltm import PrivateLoop


def main() -> None:
    x, y = (torch.from_numpy(values) for values in load_digits(return_X_y=True))
    x = x.float() / 16
    model, loss = torch.nn.Linear(64, 10), torch.nn.CrossEntropyLoss(reduction="none")
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0)

    def log(step: int, epsilon: float) -> None:
        right = float((model(x[1500:]).argmax(1) == y[1500:]).float().mean())
        mlflow.log_metrics({"epsilon": epsilon, "accuracy": right}, step=step)

    terms = {"batch_size": 300, "steps": 60, "epsilon": 3.0, "delta": 1e-5, "records": 1500}
    loop = PrivateLoop(model, loss, x[:1500], y[:1500], provenance="data-free", on_step=log, **terms)
    with mlflow.start_run():
        mlflow.log_params(terms)
        for step in loop:
            step.backward()
            optimizer.step()
        mlflow.log_dict(loop.report().to_json(), "privacy.json")


if __name__ == "__main__":
    main()
