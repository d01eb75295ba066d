"""LoRA adapters trained privately on a frozen transformer, with PEFT and the Trainer of Hugging Face's transformers.

    pip install transformers peft accelerate
    python examples/private_lora.py

A small BERT is made from its configuration and taught, without privacy, on records that are taken as public: digits below
five. Then its body is frozen. Adapters in its attention layers, and a new last layer, learn digits from five up on the
private records. The loop gives gradients and noise to what is not frozen alone: about a thousand weights of twenty thousand.

The Trainer goes on as ever: its schedule, callbacks and Accelerate. It has no records of its own, and only counts: each of
its steps is one of PrivateLoop, which draws records, bounds their gradients and adds the noise. Without a Trainer,
``for step in loop: step.backward(); optimizer.step()`` gives the same weights.
"""

from __future__ import annotations

import tempfile
import warnings
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from sklearn.datasets import load_digits
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, PrinterCallback, Trainer, TrainingArguments

from dpltm.verbs.private_loop import PrivateLoop

TINY = BertConfig(
    vocab_size=17, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, num_labels=5,
    max_position_embeddings=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
)  # fmt: skip
"""Without dropout: a network as small as this fits too little already."""

SETTINGS = {"batch_size": 150, "steps": 120, "epsilon": 3.0, "delta": 1e-4, "records": 750}


class Logits(nn.Module):
    """A model of transformers as PyTorch has them: 64 pixels of 17 shades are a sentence of 64 words, logits come out."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=pixels.long()).logits


class PrivateTrainer(Trainer):
    """A Trainer that takes its steps from a private loop."""

    def __init__(self, loop: PrivateLoop, **given: Any) -> None:
        super().__init__(**given)
        self.loop = loop

    def get_train_dataloader(self) -> list[dict[str, torch.Tensor]]:
        self.steps = iter(self.loop)  # enters what the training costs
        return [{}] * len(self.loop)  # the Trainer only counts

    def training_step(self, *_: object) -> torch.Tensor:
        next(self.steps).backward()  # the one private gradient of this step, in every parameter's grad
        return torch.tensor(0.0)  # the loss of private records is private, so none is shown


def records(low: int) -> tuple[np.ndarray, np.ndarray]:
    """Pixels and labels 0 to 4 of the digits from ``low`` to ``low + 4``, in a fixed order."""
    digits = load_digits()
    among = np.flatnonzero((digits.target >= low) & (digits.target < low + 5))
    order = np.random.default_rng(0).permutation(among)
    return digits.data[order].astype(np.int64), digits.target[order] - low


def pretrained(steps: int = 150) -> BertForSequenceClassification:
    """The body, taught on the public records."""
    torch.manual_seed(0)
    model = BertForSequenceClassification(TINY)
    x, y = (torch.from_numpy(values) for values in records(0))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        some = torch.randint(len(y), (64,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(Logits(model)(x[some]), y[some]).backward()
        optimizer.step()
    return model


def with_adapters(body: nn.Module) -> Logits:
    """The body, frozen, with adapters and a last layer that are not."""
    config = LoraConfig(
        r=4, lora_alpha=16, lora_dropout=0.0, target_modules=["query", "value"], modules_to_save=["classifier"]
    )
    return Logits(get_peft_model(body, config))


def private_loop(model: Logits, **settings: Any) -> PrivateLoop:
    """The loop over what is not frozen; settings beside ``SETTINGS`` are for tests."""
    x, y = records(5)
    loss = nn.CrossEntropyLoss(reduction="none")
    return PrivateLoop(model, loss, x[:750], y[:750], **{**SETTINGS, **settings})


def optimizer_of(model: Logits) -> torch.optim.Optimizer:
    return torch.optim.Adam((value for value in model.parameters() if value.requires_grad), lr=0.01)


def train(model: Logits, loop: PrivateLoop) -> None:
    """Trains the adapters by the Trainer."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, max_steps=len(loop), lr_scheduler_type="constant", max_grad_norm=0.0, use_cpu=True, report_to=[],
            save_strategy="no", logging_strategy="no", disable_tqdm=True,
        )  # fmt: skip
        trainer = PrivateTrainer(loop, model=model, args=arguments, optimizers=(optimizer_of(model), None))
        trainer.remove_callback(PrinterCallback)  # which would show that loss
        trainer.train()


def main() -> None:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")  # between transformers and PEFT
    model = with_adapters(pretrained())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    loop = private_loop(model)
    train(model, loop)
    moved = [name for name, value in model.state_dict().items() if not torch.equal(value, before[name])]
    x, y = (torch.from_numpy(values[750:]) for values in records(5))
    with torch.no_grad():
        right = model(x).argmax(1) == y
    certified = loop.report().certified
    weights = sum(value.numel() for value in model.parameters())
    trained = sum(value.numel() for value in model.parameters() if value.requires_grad)
    print(f"trained {trained:,} of {weights:,} weights, in {len(moved)} tensors")
    print(f"test accuracy {right.double().mean():.1%}")
    print(f"certified epsilon {certified.epsilon:.3f} at delta {certified.delta:g}, {certified.adjacency} one record")


if __name__ == "__main__":
    main()
