"""A private loop in TensorBoard: epsilon so far, the step size, and accuracy on public records.

    pip install tensorboard
    python examples/tensorboard_log.py && tensorboard --logdir runs

Nothing that is logged costs anything: epsilon is known beforehand, and the weights are what is released. Log no loss on
private records, and no time that a step took: it tells how many records were drawn.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch.utils.tensorboard import SummaryWriter

from dpltm import PrivateLoop


def main(folder: str = "runs") -> None:
    x, y = (torch.from_numpy(values) for values in load_digits(return_X_y=True))
    x = x.float() / 16
    model, loss = torch.nn.Linear(64, 10), torch.nn.CrossEntropyLoss(reduction="none")
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60)
    with SummaryWriter(folder) as writer:

        def log(step: int, epsilon: float) -> None:
            writer.add_scalar("epsilon", epsilon, step)
            writer.add_scalar("lr", schedule.get_last_lr()[0], step)
            writer.add_scalar("accuracy", float((model(x[1500:]).argmax(1) == y[1500:]).float().mean()), step)

        terms = {"batch_size": 300, "steps": 60, "epsilon": 3.0, "delta": 1e-5, "records": 1500}
        for step in PrivateLoop(model, loss, x[:1500], y[:1500], provenance="data-free", on_step=log, **terms):
            step.backward()
            optimizer.step()
            schedule.step()


if __name__ == "__main__":
    main()
