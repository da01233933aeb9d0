"""Shared by the four programs: weights, batches and the learning rate, made by numpy from a seed.

Weights have the shapes of PyTorch: (outputs, inputs, height, width) for a convolution, (outputs, inputs) for a dense layer.
Images are float32, (batch, channel, height, width).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

STEPS, BATCH = 2, 16
LEARNING_RATE, MOMENTUM = 0.05, 0.9
SHAPES = {"conv1": (6, 1, 5, 5), "conv2": (16, 6, 5, 5), "fc1": (120, 400), "fc2": (84, 120), "fc3": (10, 84)}


def weights() -> dict[str, dict[str, npt.NDArray[np.float32]]]:
    """`weight` and `bias` of each layer, uniform within 1 / sqrt(number of inputs), as PyTorch and MindSpore initialise them."""
    generator = np.random.default_rng(7)
    made = {}
    for layer, shape in SHAPES.items():
        limit = 1 / math.sqrt(math.prod(shape[1:]))
        made[layer] = {
            "weight": generator.uniform(-limit, limit, shape).astype(np.float32),
            "bias": generator.uniform(-limit, limit, shape[:1]).astype(np.float32),
        }
    return made


def batches() -> list[tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]]:
    """Images and labels for each step."""
    generator = np.random.default_rng(8)
    return [
        (generator.random((BATCH, 1, 32, 32), np.float32), generator.integers(0, 10, BATCH, np.int32))
        for _ in range(STEPS)
    ]
