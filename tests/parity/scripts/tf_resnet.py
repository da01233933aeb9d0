"""Runs a small residual network with the weights of a PyTorch network under capture: tf_resnet.py WEIGHTS DUMP EPSILON.

WEIGHTS is an npz with the state of `tests/comparison/networks.py`'s ResNet and its input, `given`. EPSILON is that of one batch norm.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import tensorflow as tf

import opdump


class ResNet:
    """Images are NHWC, and weights HWIO."""

    def __init__(self, weights: dict[str, Any], epsilon: float) -> None:
        self.weights, self.epsilon = weights, epsilon

    def convolve(self, x: Any, name: str, stride: int = 1) -> Any:
        kernel = np.transpose(self.weights[f"{name}.weight"], (2, 3, 1, 0))
        edge = [kernel.shape[0] // 2] * 2
        padded = tf.pad(x, [[0, 0], edge, edge, [0, 0]])
        return tf.nn.conv2d(padded, tf.constant(kernel.copy()), stride, "VALID")

    def normalize(self, x: Any, name: str, epsilon: float = 1e-5) -> Any:
        given = [self.weights[f"{name}.{each}"] for each in ("weight", "bias", "running_mean", "running_var")]
        return tf.compat.v1.nn.fused_batch_norm(x, *given, epsilon=epsilon, is_training=False)[0]

    def block(self, x: Any, name: str, stride: int = 1, epsilon: float = 1e-5) -> Any:
        y = tf.nn.relu(self.normalize(self.convolve(x, f"{name}.first", stride), f"{name}.norm", epsilon))
        y = self.normalize(self.convolve(y, f"{name}.second"), f"{name}.other_norm")
        if stride > 1:
            x = self.normalize(self.convolve(x, f"{name}.short.0", stride), f"{name}.short.1")
        return tf.nn.relu(y + x)

    def __call__(self, x: Any) -> Any:
        y = tf.nn.relu(self.normalize(self.convolve(x, "stem.0"), "stem.1"))
        y = self.block(tf.nn.max_pool2d(y, 2, 2, "VALID"), "layers.0")
        y = self.block(self.block(y, "layers.1", 2, self.epsilon), "layers.2")
        y = tf.matmul(tf.reduce_mean(y, [1, 2]), tf.transpose(self.weights["out.weight"]))
        return tf.nn.softmax(y + self.weights["out.bias"])


def main(file: str, dump: str, epsilon: str) -> None:
    weights = dict(np.load(file))
    given = tf.constant(np.transpose(weights.pop("given"), (0, 2, 3, 1)).copy())
    with opdump.capture(path=dump, saved_data="full", framework="tensorflow"):
        ResNet(weights, float(epsilon))(given)


if __name__ == "__main__":
    main(*sys.argv[1:])
