"""Users and items looked up: filtered sums against the naive loop, and the bound for a user whatever they gave.

The network is no chain: four tables meet in products and beside each other. A record is one rating, or a user with several.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dpltm.gradients import RecordGradients
from dpltm.networks import ModelSpec, build
from dpltm.networks.masks import Mask
from dpltm.records.units import ABSENT
from dpltm.training.descent import cross_entropy, user_cross_entropy
from gradient_cases import filters, filters_for, gradients_of, naive_sum, own_layers, prepared

pytestmark = pytest.mark.parametrize("_products", ["dense"], indirect=True)  # embeddings have no other

USERS, ITEMS, SLOTS = 6, 5, 4
EXAMPLES = settings.default.max_examples
seeds = st.integers(0, 2**32)


def network(seed: int) -> tuple[nn.Sequential, Mask]:
    model = build(ModelSpec(f"ncf:{USERS}x{ITEMS}:2,3", 2, 5), 0)
    return model, prepared(model, seed)


def ratings(seed: int, *shape: int) -> tuple[Tensor, Tensor]:
    """Positions as the network gets them, and labels; of users some slots are empty, in whatever place."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.stack([torch.randint(0, size, shape, generator=generator) for size in (USERS, ITEMS)], -1).double()
    y = torch.randint(0, 5, shape, generator=generator)
    if len(shape) == 2:
        x[..., 0] = x[:, :1, 0]  # all of one user
        y[torch.rand(shape, generator=generator) < 0.4] = ABSENT
    return x, y


def naive_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Of one record: the mean negative log-likelihood of what is there, with the network written out anew."""
    value = dict(model.named_parameters())
    there = [
        (int(u), int(i), int(label))
        for (u, i), label in zip(x.view(-1, 2), y.view(-1), strict=True)
        if label != ABSENT
    ]
    total = x.new_zeros(())
    for user, item, label in there:
        product = value["factors.user_product.weight"][user] * value["factors.item_product.weight"][item]
        beside = value["factors.user_beside.weight"][user], value["factors.item_beside.weight"][item]
        outputs = value["fc1.weight"] @ torch.cat([product, *beside]) + value["fc1.bias"]
        total = total + outputs.logsumexp(0) - outputs[label]
    return total / max(1, len(there)) + 0 * value["fc1.bias"].sum()


@settings(max_examples=EXAMPLES // 2)
@given(st.integers(1, 5), st.booleans(), seeds)
def test_every_filtered_sum_is_the_naive_one(batch, of_users, seed):
    model, mask = network(seed)
    x, y = ratings(seed + 1, *((batch, SLOTS) if of_users else (batch,)))
    gradients = RecordGradients(model, mask, user_cross_entropy if of_users else cross_entropy)
    rows = gradients_of(lambda x, y: naive_loss(model, x, y), model, mask, x, y)
    for filter in filters_for(float(torch.cat(list(rows.values()), 1)[0].norm())):
        result = gradients.filtered_sum(x, y, filter)
        assert result.skipped == 0
        expected = naive_sum(rows, filter, gradients.rounding, own_layers(model))
        torch.testing.assert_close(result.values, expected, rtol=1e-10, atol=1e-10)


@settings(max_examples=EXAMPLES // 2)
@given(filters, st.integers(1, 4), st.floats(1e-3, 1e12), st.data())
def test_a_user_more_moves_the_sum_by_at_most_the_bound(filter, others, size, data):
    """Hostile ratings: many, or the same over and over, of weights so large that each of them is far beyond the bound."""
    seed = data.draw(seeds)
    model, mask = network(seed)
    model.float()
    with torch.no_grad():
        for value in model.parameters():
            value.mul_(size)
    x, y = ratings(seed + 1, others + 1, SLOTS)
    item, label = data.draw(st.integers(0, ITEMS - 1)), data.draw(st.integers(0, 4))
    if data.draw(st.booleans()):
        x[0, :, 1], y[0] = item, label
    gradients = RecordGradients(model, mask, user_cross_entropy)
    x = x.float()
    moved = gradients.filtered_sum(x, y, filter).values - gradients.filtered_sum(x[1:], y[1:], filter).values
    # what others contribute is rounded anew in a sum of another length
    assert float(moved.norm()) <= filter.certified_bound(gradients.live) * (1 + 1e-5)
