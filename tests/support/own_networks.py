"""Networks as people have them, small: each as a class that is called without arguments, and records that it takes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from dpltm.records import Dataset, load

CLASSES, WORDS, LENGTH = 3, 12, 5


class HandMade(nn.Module):
    """An MLP written by hand, with the names of the kind ``mlp``."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(6, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(functional.relu(self.fc1(x)))


class Block(nn.Module):
    """A residual block of two convolutions, each behind a GroupNorm."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.norm1 = nn.GroupNorm(2, after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm2 = nn.GroupNorm(2, after)
        self.skip = nn.Identity() if before == after else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(self.norm1(self.conv1(x)).relu()))
        return (y + self.skip(x)).relu()


class ResNet20(nn.Module):
    """He et al. 2016, section 4.2: three stages of three blocks, here 4, 8 and 16 channels wide."""

    def __init__(self, widths: tuple[int, ...] = (4, 8, 16)) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, widths[0], 3, 1, 1, bias=False)
        stages, before = [], widths[0]
        for number, width in enumerate(widths):
            blocks = [
                Block(before if place == 0 else width, width, 2 if number and place == 0 else 1) for place in range(3)
            ]
            stages.append(nn.Sequential(*blocks))
            before = width
        self.stages, self.head = nn.Sequential(*stages), nn.Linear(before, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stages(self.stem(x).relu()).mean((2, 3)))


class ViT(nn.Module):
    """Patches, a class token, learned positions, two layers of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 4, 4)
        self.token = nn.Parameter(torch.zeros(1, 1, 8))
        self.places = nn.Parameter(torch.randn(1, 5, 8) / 10)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places
        return self.head(self.encoder(x)[:, 0])


class TextTransformer(nn.Module):
    """Words and positions, one layer of attention without padding, the mean of what comes out."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 8, padding_idx=0)
        self.register_buffer("wave", torch.sin(torch.arange(LENGTH)[:, None] * torch.arange(8) / 8))
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.words(x) + self.wave).mean(1))


class LstmClassifier(nn.Module):
    """The last state of an LSTM over steps of numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(4, 6, batch_first=True), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


class UNet(nn.Module):
    """Down and up again, with skips that are concatenated; pooled to classes."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 6, 3, padding=1)
        self.middle = nn.Conv2d(6, 6, 3, padding=1)
        self.up2, self.up1 = nn.Conv2d(12, 4, 3, padding=1), nn.Conv2d(8, CLASSES, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        one = self.down1(x).relu()
        two = self.down2(functional.max_pool2d(one, 2)).relu()
        deep = functional.interpolate(self.middle(functional.max_pool2d(two, 2)).relu(), scale_factor=2)
        up = functional.interpolate(self.up2(torch.cat([deep, two], 1)).relu(), scale_factor=2)
        return self.up1(torch.cat([up, one], 1)).mean((2, 3))


class Tied(nn.Module):
    """An autoencoder's two halves with one weight, and a temperature without a dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(6, 4), nn.Linear(4, 6)
        self.leave.weight = nn.Parameter(torch.randn(6, 4) / 3)
        self.back = nn.Linear(4, 6)
        self.back.weight = self.leave.weight
        self.temperature, self.head = nn.Parameter(torch.tensor(1.0)), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return (
            self.head(self.back(self.enter(self.leave(self.enter(x).relu()).relu()).relu()).relu()) * self.temperature
        )


class FrozenNorm(nn.Module):
    """A body with batch normalisation in evaluation mode, which is an affine map, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, CLASSES)
        self.norm.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.conv(x)).relu().mean((2, 3)))


class Reader(nn.Module):
    """The mean of the words that a mask tells."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(WORDS, 8), nn.Linear(8, CLASSES)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        there = attention_mask[..., None].float()
        return self.head((self.table(input_ids) * there).sum(1) / there.sum(1).clamp_min(1))


def tiny_bert() -> nn.Module:
    """BERT of Hugging Face, made from a configuration."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=WORDS, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        max_position_embeddings=8, num_labels=CLASSES, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        attn_implementation="eager",
    )  # fmt: skip
    return BertForSequenceClassification(config)


def bert_inputs(words: Tensor) -> dict[str, Tensor]:
    """Arguments with one row a record each, as BERT itself leaves them out."""
    places = torch.arange(words.shape[1]).expand_as(words)
    ones = torch.ones_like(words)
    return {"input_ids": words, "attention_mask": ones, "token_type_ids": 0 * ones, "position_ids": places}


class OneQuantity(nn.Module):
    """An MLP with one output a record, ``(batch,)``."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(6, 8), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(functional.relu(self.fc1(x)))[:, 0]


class Tagger(nn.Module):
    """A label for every step: a GRU and one layer behind it, ``(batch, steps, CLASSES)``."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(4, 6, batch_first=True), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gru(x)[0])


def squares(outputs: Tensor, y: Tensor) -> Tensor:
    """Mean squared error a record."""
    return (outputs - y).square().flatten(1).mean(1)


def closeness(outputs: Tensor, y: Tensor) -> Tensor:
    return 1 / (1 + squares(outputs, y))


def entropies(outputs: Tensor, y: Tensor) -> Tensor:
    """Binary cross-entropy a record, of labels that are there or not."""
    return functional.binary_cross_entropy_with_logits(outputs, y.float(), reduction="none").mean(1)


def hits(outputs: Tensor, y: Tensor) -> Tensor:
    return ((outputs > 0) == (y > 0)).float().mean(1)


def tag_entropies(outputs: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy a record, over steps that have a label: -100 marks the others."""
    losses = functional.cross_entropy(outputs.transpose(1, 2), y, ignore_index=-100, reduction="none")
    return losses.sum(1) / (y != -100).sum(1).clamp_min(1)


def tag_hits(outputs: Tensor, y: Tensor) -> Tensor:
    there = y != -100
    return ((outputs.argmax(2) == y) & there).sum(1) / there.sum(1).clamp_min(1)


Labels = Callable[[np.random.Generator, int], np.ndarray]


@dataclass(frozen=True)
class Case:
    """A network, records that it takes, and what is said of it."""

    model: Callable[[], nn.Module]
    shape: tuple[int, ...]
    words: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    labels: Labels | None = None
    parts: Callable[[np.random.Generator, int], Any] | None = None
    layout: Mapping[str, Any] = field(default_factory=lambda: {"bounds": (0, 255)})

    @property
    def facts(self) -> dict[str, Any]:
        """What is said of its arrays."""
        return {**self.layout, **({} if self.labels is not None else {"classes": CLASSES})}

    def records(self, count: int, seed: int) -> tuple[Any, np.ndarray]:
        draw = np.random.default_rng(seed)
        x = draw.integers(0, 256, (count, *self.shape), dtype=np.uint8)
        x = x if self.parts is None else self.parts(draw, count)
        return x, np.arange(count) % CLASSES if self.labels is None else self.labels(draw, count)


CASES = {
    "hand-made": Case(HandMade, (6,)),
    "resnet-20": Case(ResNet20, (8, 8, 3)),
    "vit": Case(ViT, (8, 8, 3)),
    "lstm": Case(LstmClassifier, (5, 4)),
    "u-net": Case(UNet, (8, 8, 3)),
    "tied": Case(Tied, (6,)),
    "frozen-norm": Case(FrozenNorm, (8, 8, 3)),
}
"""Networks of numbers."""

LABELS = {
    "one quantity": Case(
        OneQuantity,
        (6,),
        settings={"loss": nn.MSELoss(reduction="none"), "score": lambda outputs, y: 1 / (1 + (outputs - y).square())},
        labels=lambda draw, count: draw.normal(size=count),
    ),
    "quantities": Case(
        HandMade,
        (6,),
        settings={"loss": squares, "score": closeness},
        labels=lambda draw, count: draw.normal(size=(count, CLASSES)).astype(np.float32),
    ),
    "several labels": Case(
        HandMade,
        (6,),
        settings={"loss": entropies, "score": hits},
        labels=lambda draw, count: draw.integers(0, 2, (count, CLASSES)),
    ),
    "labels of steps": Case(
        Tagger,
        (5, 4),
        settings={"loss": tag_entropies, "score": tag_hits},
        labels=lambda draw, count: np.where(
            draw.random((count, 5)) < 0.2, -100, draw.integers(0, CLASSES, (count, 5))
        ),
    ),
}
"""Networks whose labels are no class numbers."""


def words_of(draw: np.random.Generator, count: int) -> dict[str, np.ndarray]:
    """Words, and which of them are there; the first always is."""
    mask = draw.integers(0, 2, (count, LENGTH))
    mask[:, 0] = 1
    return {"input_ids": draw.integers(0, WORDS, (count, LENGTH)), "attention_mask": mask}


class Both(nn.Module):
    """A picture and a few words of it."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.conv, self.head = nn.Embedding(WORDS, 4), nn.Conv2d(3, 4, 3), nn.Linear(8, CLASSES)

    def forward(self, picture: Tensor, words: Tensor) -> Tensor:
        seen = self.conv(picture.movedim(-1, 1)).relu().mean((2, 3))
        return self.head(torch.cat([seen, self.table(words).mean(1)], 1))


BY_NAME = {"words": {"input_ids": WORDS, "attention_mask": 2}}

PARTS = {
    "mapping": Case(Reader, (), parts=words_of, layout=BY_NAME),
    "pictures": Case(
        Both,
        (),
        parts=lambda draw, count: {
            "picture": draw.integers(0, 256, (count, 6, 6, 3), dtype=np.uint8),
            "words": draw.integers(0, WORDS, (count, 2)).astype(np.int32),
        },
        layout={"words": {"words": WORDS}},
    ),
    "bert by name": Case(tiny_bert, (), parts=words_of, layout=BY_NAME),
}
"""Networks that take several arrays."""

TEXTS = {
    "transformer": Case(TextTransformer, (LENGTH,), True),
    "bert": Case(tiny_bert, (LENGTH,), True, {"inputs": bert_inputs}),
}
"""Networks of words."""


def text_dataset(case: Case, path: Path, count: int, seed: int) -> Dataset:
    """Texts of whole length, with no padding."""
    words = np.random.default_rng(seed).integers(1, WORDS, (count, *case.shape))
    offsets = np.arange(count + 1) * case.shape[0]
    np.savez(path, values_train=words.flatten(), offsets_train=offsets, y_train=np.arange(count) % CLASSES)
    return load(str(path), words=WORDS, length=case.shape[0], classes=CLASSES)
