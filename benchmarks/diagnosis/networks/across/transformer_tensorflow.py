"""A causal transformer of two blocks in TensorFlow: layer norms, GELU, clipped gradients, SGD with decay."""

import math
import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import numpy as np
import tensorflow as tf

WIDTH, HEADS, TOKENS, VOCABULARY = 16, 4, 6, 23

numbers = np.random.default_rng(1)


def matrix(name, rows, columns):
    return tf.Variable(numbers.normal(0, 0.3, (rows, columns)).astype("float32"), name=name)


def norm_weights(name):
    return tf.Variable(tf.ones(WIDTH), name=f"{name}_gain"), tf.Variable(tf.zeros(WIDTH), name=f"{name}_shift")


class Block(tf.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = norm_weights("norm1"), norm_weights("norm2")
        self.qkv, self.out = matrix("qkv", WIDTH, 3 * WIDTH), matrix("out", WIDTH, WIDTH)
        self.up, self.down = matrix("up", WIDTH, 4 * WIDTH), matrix("down", 4 * WIDTH, WIDTH)

    def __call__(self, x):
        x = x + self.attention(normalised(x, *self.norm1))  # <residual1>
        h = tf.matmul(normalised(x, *self.norm2), self.up)  # <up>
        h = tf.nn.gelu(h, approximate=True)  # <gelu>
        return x + tf.matmul(h, self.down)  # <residual2>

    def attention(self, x):
        q, k, v = tf.split(tf.matmul(x, self.qkv), 3, axis=-1)  # <qkv>
        q, k, v = heads(q), heads(k), heads(v)
        scores = tf.matmul(q, k, transpose_b=True) / math.sqrt(WIDTH // HEADS)  # <scores>
        mask = tf.linalg.band_part(tf.ones((TOKENS, TOKENS)), -1, 0)  # <mask>
        scores = tf.where(mask > 0, scores, -1e9)  # <masked>
        weights = tf.nn.softmax(scores)  # <softmax>
        y = tf.reshape(tf.transpose(tf.matmul(weights, v), (0, 2, 1, 3)), (-1, TOKENS, WIDTH))  # <values>
        return tf.matmul(y, self.out)  # <attention-out>


def heads(x):
    return tf.transpose(tf.reshape(x, (-1, TOKENS, HEADS, WIDTH // HEADS)), (0, 2, 1, 3))  # <heads>


def normalised(x, gain, shift):
    mean, variance = tf.nn.moments(x, axes=[-1], keepdims=True)  # <moments>
    return tf.nn.batch_normalization(x, mean, variance, shift, gain, 1e-5)  # <norm>


tokens, positions = matrix("tokens", VOCABULARY, WIDTH), matrix("positions", TOKENS, WIDTH)
blocks = [Block() for _ in range(2)]
last_norm = norm_weights("norm")
head = matrix("head", WIDTH, VOCABULARY)
weights = [tokens, positions, *(each for block in blocks for each in block.trainable_variables), *last_norm, head]


def loss_of(ids, targets):
    x = tf.gather(tokens, ids) + positions  # <embed>
    for block in blocks:
        x = block(x)  # <block>
    logits = tf.matmul(normalised(x, *last_norm), head)  # <head>
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=targets, logits=logits)  # <losses>
    return tf.reduce_sum(losses) / 12.0  # <loss>


@tf.function
def train(ids, targets):
    with tf.GradientTape() as tape:
        loss = loss_of(ids, targets)
    gradients = [tf.convert_to_tensor(each) for each in tape.gradient(loss, weights)]  # <gradient>
    gradients, _ = tf.clip_by_global_norm(gradients, 1.0)  # <clip>
    for each, gradient in zip(weights, gradients):
        each.assign_sub(0.1 * (gradient + 0.01 * each))  # <update>
    return loss


for step in range(1):
    window = numbers.integers(0, VOCABULARY, (2, TOKENS + 1))  # <window>
    loss = train(tf.constant(window[:, :-1]), tf.constant(window[:, 1:]))  # <call>
    print(f"step {step} loss {float(loss)!r}")
