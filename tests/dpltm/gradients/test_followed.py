"""Which networks the trial can map over records, which it tries by replacing some, and which it refuses: all that documents
name, and networks of libraries."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from gradient_cases import Applied, Picture, checked, cross_entropy, decides, refusal, tied

pytestmark = pytest.mark.parametrize("_products", ["dense"], indirect=True)

LABELS = torch.tensor([0, 1, 2, 2])
NUMBERS, SERIES, IMAGES = torch.zeros(4, 6), torch.zeros(4, 8, 5), torch.zeros(4, 3, 16, 16)
WORDS = torch.zeros(4, 8, dtype=torch.long)


def head(body: nn.Module, width: int, **how: Any) -> nn.Module:
    """A body of sequences, and a linear head on the mean over time of what it gives, or the first part of that."""

    def forward(self: Applied, x: Tensor) -> Tensor:
        given = self.body(x, **{name: make(x) for name, make in how.items()})
        return self.out((given[0] if isinstance(given, tuple) else given).mean(1))

    return Applied(forward, body=body, out=nn.Linear(width, 3))


def encoder() -> nn.Module:
    layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 12, batch_first=True), 2)
    return nn.Sequential(nn.Embedding(9, 8), head(layers, 8))


def padded_encoder() -> nn.Module:
    def forward(self: Applied, x: Tensor) -> Tensor:
        return self.out(self.body(self.table(x), src_key_padding_mask=x == 0).mean(1))

    body = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 12, batch_first=True), 2)
    return Applied(forward, table=nn.Embedding(9, 8), body=body, out=nn.Linear(8, 3))


def pooled() -> nn.Module:
    """Attention pooling: one learned query over all steps."""

    def forward(self: Applied, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.out(self.attention(self.query.expand(len(x), -1, -1), x, x)[0][:, 0])

    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    parts = {"first": nn.Linear(5, 8), "attention": attention, "query": nn.Parameter(torch.randn(1, 1, 8))}
    return Applied(forward, **parts, out=nn.Linear(8, 3))


def cells(kind: type[nn.RNNCellBase]) -> nn.Module:
    def forward(self: Applied, x: Tensor) -> Tensor:
        state: Any = None
        for step in x.unbind(1):
            state = self.cell(step, state)
        return self.out(state[0] if isinstance(state, tuple) else state)

    return Applied(forward, cell=kind(5, 4), out=nn.Linear(4, 3))


def residual() -> nn.Module:
    def forward(self: Applied, x: Tensor) -> Tensor:
        x = self.norm(self.first(x)).relu()
        x = (x + self.norm(self.second(x))).relu()
        return self.out(functional.max_pool2d(x, 2).mean((2, 3)))

    convolutions = {"first": nn.Conv2d(3, 8, 3, padding=1), "second": nn.Conv2d(8, 8, 3, padding=1)}
    return Applied(forward, **convolutions, norm=nn.GroupNorm(2, 8), out=nn.Linear(8, 3))


def depthwise() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 1), nn.Conv2d(6, 6, 3, groups=6), nn.InstanceNorm2d(6, affine=True), nn.SiLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(24, 3),
    )  # fmt: skip


def frozen_norm() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4).eval(), nn.Flatten(), nn.Linear(784, 3))


def bag(self: Applied, x: Tensor) -> Tensor:
    return self.out(self.table(x))


def single_precision(self: Applied, x: Tensor) -> Tensor:
    return self.out(x.float().to(torch.float32).softmax(1))


FOLLOWED: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "perceptron with GroupNorm": (
        lambda: nn.Sequential(nn.Linear(6, 8), nn.GroupNorm(2, 8), nn.ReLU(), nn.Linear(8, 3)), NUMBERS
    ),
    "picture with dropout": (Picture, IMAGES),
    "residual": (residual, IMAGES),
    "depthwise": (depthwise, IMAGES),
    "frozen batch normalisation": (frozen_norm, IMAGES),
    "tied table": (lambda: Applied(lambda s, x: s.inner(x).mean(1)[:, :3], inner=tied()), WORDS % 6),
    "bag of words": (lambda: Applied(bag, table=nn.EmbeddingBag(9, 8), out=nn.Linear(8, 3)), WORDS),
    "encoder": (encoder, WORDS),
    "encoder with padding": (padded_encoder, WORDS),
    "attention pooling": (pooled, SERIES),
    "names single precision": (lambda: Applied(single_precision, out=nn.Linear(6, 3)), NUMBERS),
    **{kind.__name__: (partial(lambda kind: head(kind(5, 4, batch_first=True), 4), kind), SERIES)
       for kind in (nn.RNN, nn.GRU, nn.LSTM)},
    "two directions": (lambda: head(nn.LSTM(5, 4, 2, batch_first=True, bidirectional=True), 8), SERIES),
    "with a state": (lambda: head(nn.GRU(5, 4, batch_first=True), 4, hx=lambda x: x.new_ones(1, len(x), 4)), SERIES),
    **{kind.__name__: (partial(cells, kind), SERIES) for kind in (nn.RNNCell, nn.GRUCell, nn.LSTMCell)},
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*nested tensors")
@pytest.mark.parametrize("name", FOLLOWED)
def test_networks_that_are_mapped_over_records(name):
    build, x = FOLLOWED[name]
    torch.manual_seed(0)
    assert checked(build(), cross_entropy, x, LABELS).unfollowed == ""


def written(self: Applied, x: Tensor) -> Tensor:
    out = torch.zeros(len(x), 3)
    out += self.layer(x)
    return out


def masked(self: Applied, x: Tensor) -> Tensor:
    out = self.layer(x) * 1
    out[out < 0] = 0
    return out


def through_numpy(self: Applied, x: Tensor) -> Tensor:
    return self.layer(x + torch.from_numpy(x.detach().numpy() ** 2))


REPLACED: dict[str, Callable[..., Tensor]] = {"written": written, "masked": masked, "numpy": through_numpy}


@pytest.mark.parametrize("name", REPLACED)
def test_networks_that_are_tried_by_replacing_records(name):
    """They are refused where they mix: the same with the mean over the batch added."""
    forward = REPLACED[name]
    model = Applied(forward, layer=nn.Linear(6, 3))
    assert checked(model, cross_entropy, NUMBERS, LABELS).unfollowed

    def mixing(self: Applied, x: Tensor) -> Tensor:
        out = forward(self, x)
        return out + 1e-3 * out.mean(0)

    said = refusal(Applied(mixing, layer=nn.Linear(6, 3)), cross_entropy, NUMBERS, LABELS)
    assert said.startswith("model or loss: what one record gives depends on the rest of the batch")


def longest_alone(self: Applied, x: Tensor) -> Tensor:
    """Words up to the last that is there in any record, as code that saves time has it."""
    there = (x != 0).any(0).nonzero()
    return self.out(self.table(x[:, : int(there.max()) + 1 if len(there) else 1]).mean(1))


def test_cutting_to_the_longest_record_is_refused():
    parts = {"table": nn.Embedding(9, 8), "out": nn.Linear(8, 3)}
    assert decides(refusal(Applied(longest_alone, **parts), cross_entropy, WORDS, LABELS))


SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24, "num_labels": 3}
TEXTS = {"vocab_size": 50, "max_position_embeddings": 16}
GPT = {"vocab_size": 50, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}
DISTIL = {"vocab_size": 50, "max_position_embeddings": 16, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24}
STAGES = {"depths": [1, 1], "hidden_sizes": [8, 16], "num_stages": 2}

LIBRARY: dict[str, tuple[dict[str, Any], Tensor, bool, bool]] = {
    "BertForSequenceClassification": (SMALL | TEXTS, WORDS, False, True),
    "RobertaForSequenceClassification": (SMALL | TEXTS, WORDS, True, False),
    "DistilBertForSequenceClassification": (DISTIL | {"num_labels": 3}, WORDS, True, False),
    "GPT2ForSequenceClassification": (GPT | {"num_labels": 3, "pad_token_id": 0}, WORDS, True, False),
    "ViTForImageClassification": (SMALL | {"image_size": 16, "patch_size": 8}, IMAGES, False, True),
    "ConvNextForImageClassification": (STAGES | {"num_labels": 3}, torch.zeros(4, 3, 32, 32), False, True),
}
"""Settings, records, whether they get a mask of padding, and whether they are mapped over records: where they get one, a
library asks whether anything is masked."""


@pytest.mark.one_of(3)
@pytest.mark.parametrize("name", LIBRARY)
def test_networks_of_a_library(name):
    transformers = pytest.importorskip("transformers")
    settings, x, mask, followed = LIBRARY[name]
    kind = getattr(transformers, name)
    torch.manual_seed(0)

    def forward(self: Applied, x: Tensor) -> Tensor:
        return self.body(x, **({"attention_mask": (x != 0).long()} if mask else {})).logits

    found = checked(Applied(forward, body=kind(kind.config_class(**settings))), cross_entropy, x, LABELS).unfollowed
    assert bool(found) != followed
    if found:
        assert found.endswith("decides by values of the batch")
        assert ".py, line " in found
