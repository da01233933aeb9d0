"""Runs networks with the weights of PyTorch networks under capture, unchanged and with one planted difference: tf_networks.py FOLDER.

FOLDER has NAME.npz for each network of `tests/comparison/networks.py`: its state, and its input as `given`. Dumps are written next to it, to NAME
and NAME_planted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import opdump

Weights = dict[str, Any]


def dense(x: Any, weights: Weights, name: str) -> Any:
    return tf.matmul(x, weights[f"{name}.weight"], transpose_b=True) + weights[f"{name}.bias"]


def mlp(x: Any, weights: Weights, *, planted: bool) -> Any:
    """From Keras layers."""
    for name in ("layers.0", "layers.2", "layers.4"):
        layer = keras.layers.Dense(len(weights[f"{name}.bias"]))
        layer.build(x.shape)
        layer.set_weights([weights[f"{name}.weight"].T, weights[f"{name}.bias"]])
        x = layer(x)
        if name == "layers.0":
            x = keras.activations.gelu(x, approximate=planted)
        elif name == "layers.2":
            x = keras.activations.tanh(x)
    return keras.activations.softmax(x)


def cnn(x: Any, weights: Weights, *, planted: bool) -> Any:
    """From Keras layers, whose batch norm has an epsilon of 1e-3. Images are NHWC, and weights HWIO."""
    x = tf.transpose(x, (0, 2, 3, 1))
    for name, norm, pool in (
        ("first", "norm", keras.layers.MaxPooling2D),
        ("second", "other_norm", keras.layers.AveragePooling2D),
    ):
        kernel = np.transpose(weights[f"{name}.weight"], (2, 3, 1, 0))
        convolution = keras.layers.Conv2D(kernel.shape[-1], 3, padding="same")
        convolution.build(x.shape)
        convolution.set_weights([kernel, weights[f"{name}.bias"]])
        normalize = keras.layers.BatchNormalization(epsilon=1e-5 if planted and name == "second" else 1e-3)
        normalize.build((*x.shape[:-1], kernel.shape[-1]))
        normalize.set_weights([weights[f"{norm}.{each}"] for each in ("weight", "bias", "running_mean", "running_var")])
        x = pool(2)(tf.nn.relu(normalize(convolution(x), training=False)))
    return dense(tf.reshape(x, (len(x), -1)), weights, "out")


def layer_norm(x: Any, weights: Weights, name: str) -> Any:
    mean, variance = tf.nn.moments(x, -1, keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + 1e-5) * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def transformer(x: Any, weights: Weights, *, planted: bool) -> Any:
    x = tf.gather(weights["words.weight"], x) + weights["places"]
    batch, length, width = x.shape
    for number in (0, 1):
        name = f"layers.{number}"
        mixed = dense(layer_norm(x, weights, f"{name}.norm"), weights, f"{name}.qkv")
        q, k, v = tf.unstack(tf.transpose(tf.reshape(mixed, (batch, length, 3, 2, 8)), (2, 0, 3, 1, 4)))
        attention = tf.nn.softmax(tf.matmul(q, k, transpose_b=True) * 8**-0.5)
        heads = tf.reshape(tf.transpose(tf.matmul(attention, v), (0, 2, 1, 3)), (batch, length, width))
        x = x + dense(heads, weights, f"{name}.out")
        hidden = dense(layer_norm(x, weights, f"{name}.other_norm"), weights, f"{name}.up")
        x = x + dense(tf.nn.gelu(hidden, approximate=planted and number == 1), weights, f"{name}.down")
    return dense(tf.reduce_mean(x, 1), weights, "out")


def lstm(x: Any, weights: Weights, *, planted: bool) -> Any:
    """Two bidirectional layers; with the planted difference, one direction of the second has hard sigmoid gates."""
    x = tf.gather(weights["words.weight"], x)
    for number in (0, 1):
        directions = []
        for suffix, backwards in (("", False), ("_reverse", True)):
            name = f"recurrent.{{}}_l{number}{suffix}"
            layer = keras.layers.LSTM(
                12,
                return_sequences=True,
                unroll=True,
                go_backwards=backwards,
                recurrent_activation="hard_sigmoid" if planted and number == 1 and backwards else "sigmoid",
            )
            layer.build(x.shape)
            bias = weights[name.format("bias_ih")] + weights[name.format("bias_hh")]
            layer.set_weights([weights[name.format("weight_ih")].T, weights[name.format("weight_hh")].T, bias])
            states = layer(x)
            directions.append(tf.reverse(states, [1]) if backwards else states)
        x = tf.concat(directions, -1)
    return tf.nn.log_softmax(dense(tf.tanh(x[:, -1]), weights, "out"))


NETWORKS: dict[str, Callable[..., Any]] = {"mlp": mlp, "cnn": cnn, "transformer": transformer, "lstm": lstm}


def main(folder: str) -> None:
    for name, network in NETWORKS.items():
        weights = dict(np.load(Path(folder) / f"{name}.npz"))
        given = tf.constant(weights.pop("given"))
        for planted in (False, True):
            dump = Path(folder) / (f"{name}_planted" if planted else name)
            with opdump.capture(path=str(dump), saved_data="full", framework="tensorflow"):
                network(given, weights, planted=planted)


if __name__ == "__main__":
    main(sys.argv[1])
