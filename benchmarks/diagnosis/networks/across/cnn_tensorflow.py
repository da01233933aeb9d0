"""A convolutional classifier in TensorFlow: batch norm, a residual, max pooling, SGD. Images have their channels last."""

import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import numpy as np
import tensorflow as tf

CHANNELS, CLASSES = 6, 5

numbers = np.random.default_rng(2)
images = numbers.normal(0.2, 1.0, (8, 8, 8, 3)).astype("float32")  # <images>
labels = numbers.integers(0, CLASSES, 8)  # <labels>


def kernel(name, size, given, made):
    return tf.Variable(numbers.normal(0, 0.25, (size, size, given, made)).astype("float32"), name=name)


class Block(tf.Module):
    def __init__(self, given):
        super().__init__()
        self.conv = kernel("conv", 3, given, CHANNELS)
        self.scale, self.shift = tf.Variable(tf.ones(CHANNELS)), tf.Variable(tf.zeros(CHANNELS))

    def __call__(self, x):
        x = tf.nn.conv2d(x, self.conv, strides=1, padding="SAME")  # <conv>
        x, _, _ = tf.compat.v1.nn.fused_batch_norm(x, self.scale, self.shift, epsilon=1e-5)  # <norm>
        return x


first, second = Block(3), Block(CHANNELS)
head, offset = kernel("head", 1, CHANNELS, CLASSES), tf.Variable(tf.zeros(CLASSES), name="offset")
weights = [*first.trainable_variables, *second.trainable_variables, head, offset]


def loss_of(x, wanted):
    x = tf.nn.relu(first(x))  # <relu1>
    x = tf.nn.relu(x + second(x))  # <residual>
    x = tf.nn.max_pool2d(x, ksize=2, strides=2, padding="VALID")  # <pool>
    x = tf.reduce_mean(x, axis=[1, 2])  # <average>
    logits = tf.matmul(x, head[0, 0]) + offset  # <head>
    targets = tf.one_hot(wanted, CLASSES) * 0.9 + 0.1 / CLASSES  # <smooth>
    return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(labels=targets, logits=logits))  # <loss>


@tf.function
def train(x, wanted):
    with tf.GradientTape() as tape:
        loss = loss_of(x, wanted)
    for each, gradient in zip(weights, tape.gradient(loss, weights)):  # <gradient>
        each.assign_sub(0.05 * gradient)  # <update>
    return loss


for step in range(2):
    part = slice(4 * step, 4 * step + 4)  # <part>
    loss = train(tf.constant(images[part]), tf.constant(labels[part]))  # <call>
    print(f"step {step} loss {float(loss)!r}")
