"""Two layers of random convolutions."""

import math

import numpy as np
import pytest
import torch

from dpltm.features.feature_map import make_feature_map
from dpltm.features.transforms import FIRST, SECOND, RandomConvolutions
from refusals import refused


def weights(seed, colours):
    """Uniform numbers from the generator's bits, in the order of filters, channels, rows and columns."""
    generator = np.random.Generator(np.random.SFC64(seed))
    found = []
    for filters, channels in ((FIRST, colours), (SECOND, FIRST)):
        words = np.frombuffer(generator.bytes(8 * filters * channels * 9), dtype=np.uint64) >> np.uint64(12)
        values = (2 * (words.astype(float) + 0.5) / 2**52 - 1) * math.sqrt(6 / (channels * 9))
        found.append(values.reshape(filters, channels, 3, 3))
    return found


def convolve(image, kernels):
    """One product at a time."""
    height, width = image.shape[1] - 2, image.shape[2] - 2
    found = np.zeros((len(kernels), height, width))
    for row in range(height):
        for column in range(width):
            found[:, row, column] = (kernels * image[:, row : row + 3, column : column + 3]).sum((1, 2, 3))
    return np.maximum(found, 0)


@pytest.mark.parametrize(("shape", "seed"), [((1, 7, 8), 0), ((3, 6, 11), 5)])
def test_the_definition_one_product_at_a_time(shape, seed):
    images = np.random.default_rng(0).random((2, *shape))
    found = RandomConvolutions(seed, (*shape[1:], shape[0]))(torch.from_numpy(images.transpose(0, 2, 3, 1)).float())
    first, second = weights(seed, shape[0])
    for image, got in zip(images, found, strict=True):
        channels = convolve(convolve(image, first), second)
        height, width = channels.shape[1] // 2, channels.shape[2] // 2
        pooled = channels[:, : 2 * height, : 2 * width].reshape(SECOND, height, 2, width, 2).max((2, 4))
        np.testing.assert_allclose(got.numpy(), pooled, rtol=1e-4, atol=1e-5)


def test_images_too_small():
    assert refused(make_feature_map, "conv", (5, 9), (0.0, 1.0)).startswith(
        "`features`: conv takes images of 6 by 6 pixels or more, and these are 5 by 9"
    )
