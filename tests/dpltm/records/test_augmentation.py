"""Fixed copies of images, and training on their mean."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpltm.filters import make_filter
from dpltm.gradients import RecordGradients
from dpltm.networks import ModelSpec, build
from dpltm.networks.masks import Mask
from dpltm.records import copies_of
from dpltm.training.descent import cross_entropy, mean_cross_entropy
from refusals import refused


@pytest.mark.parametrize("shape", [(3, 4, 5), (2, 4, 5, 3)])
def test_copies(shape):
    x = np.arange(np.prod(shape)).reshape(shape)
    flipped, moved, both = (copies_of(x, kind) for kind in ("flip", "shift", "shift-flip"))
    assert (flipped.shape[1], moved.shape[1], both.shape[1]) == (2, 5, 10)
    assert np.array_equal(copies_of(x, "none"), x[:, None])
    for found in (flipped, moved, both):
        assert np.array_equal(found[:, 0], x)
    assert np.array_equal(flipped[:, 1], x[:, :, ::-1])
    down = np.concatenate([x[:, :1], x[:, :-1]], 1)  # moved by a pixel, its edge repeated
    up = np.concatenate([x[:, 1:], x[:, -1:]], 1)
    right = np.concatenate([x[:, :, :1], x[:, :, :-1]], 2)
    left = np.concatenate([x[:, :, 1:], x[:, :, -1:]], 2)
    found = {one.tobytes() for one in moved.transpose(1, 0, *range(2, moved.ndim))[1:].copy()}
    assert found == {np.ascontiguousarray(one).tobytes() for one in (down, up, right, left)}
    assert np.array_equal(both[:, 5:], moved[:, :, :, ::-1])


@pytest.mark.parametrize("kind", ["flip", "shift", "shift-flip"])
def test_what_is_no_image(kind):
    for shape in ((2, 9), (2, 8, 8, 9)):
        assert refused(copies_of, np.zeros(shape), kind).startswith(f"`augment`: {kind} takes images")


def test_a_record_is_the_mean_of_its_copies_before_the_filter():
    """The clipped sum, against one record at a time, with the mean over its copies taken by hand."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(6, 4, 7, generator=generator), torch.tensor([0, 1, 2, 0, 1, 2])
    model, filter = build(ModelSpec("mlp:5", 7, 3), 1), make_filter("clip", clip_norm=0.3)
    found = RecordGradients(model, Mask.dense(model), mean_cross_entropy).filtered_sum(x, y, filter).values
    parameters = list(model.parameters())
    total = torch.zeros(len(found), dtype=torch.float64)
    for record in range(6):
        gradients = []
        for copy in range(4):
            loss = cross_entropy(model(x[record, copy][None]), y[record][None]).sum()
            parts = torch.autograd.grad(loss, parameters)
            gradients.append(torch.cat([part.flatten() for part in parts]).double())
        mean = torch.stack(gradients).mean(0)
        total += mean * min(1.0, 0.3 / float(mean.norm()))
    torch.testing.assert_close(found, total, rtol=1e-5, atol=1e-6)
    assert float(total.norm()) > 0.3  # clipped record by record, not as a batch
