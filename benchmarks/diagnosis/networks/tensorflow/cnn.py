"""A convolutional classifier: two blocks with batch norm and running statistics, a residual, SGD with momentum."""

import modes
import numpy as np
import tensorflow as tf

MODE = "function"  # <mode>
CHANNELS, CLASSES = 6, 5

modes.begin(MODE)
random = np.random.default_rng(2)
images = random.normal(0.2, 1.0, (8, 8, 8, 3)).astype("float32")  # <images>
labels = random.integers(0, CLASSES, 8).astype("int32")  # <labels>


def weight(name, *shape):
    return tf.Variable(random.normal(0, 0.25, shape).astype("float32"), name=name)


def constant(name, value, count=CHANNELS):
    return tf.Variable(tf.fill([count], value), name=name)


norms = [
    {
        "scale": constant(f"scale{number}", 1.0),
        "bias": constant(f"bias{number}", 0.0),
        "mean": constant(f"mean{number}", 0.0),
        "variance": constant(f"variance{number}", 1.0),
    }
    for number in (1, 2)
]
stem, second = weight("stem", 3, 3, 3, CHANNELS), weight("second", 3, 3, CHANNELS, CHANNELS)
head, offset = weight("head", CHANNELS, CLASSES), constant("offset", 0.0, CLASSES)
weights = [stem, second, head, offset, *(norm[name] for norm in norms for name in ("scale", "bias"))]
momenta = [tf.Variable(tf.zeros(each.shape), name=f"momentum{number}") for number, each in enumerate(weights)]


def batch_norm(x, norm):
    mean, variance = tf.nn.moments(x, [0, 1, 2])  # <moments>
    new_mean = norm["mean"].assign(0.9 * norm["mean"] + 0.1 * mean)  # <running-mean>
    new_variance = norm["variance"].assign(0.9 * norm["variance"] + 0.1 * variance)  # <running-variance>
    y = (x - mean) * tf.math.rsqrt(variance + 1e-5)  # <normalise>
    return y * norm["scale"] + norm["bias"], [new_mean, new_variance]  # <affine>


def loss_of(x, wanted):
    h = tf.nn.conv2d(x, stem, strides=1, padding="SAME")  # <stem>
    h, first = batch_norm(h, norms[0])  # <norm1>
    h = tf.nn.relu(h)  # <relu1>
    r = tf.nn.conv2d(h, second, strides=1, padding="SAME")  # <second>
    r, later = batch_norm(r, norms[1])  # <norm2>
    h = tf.nn.relu(h + r)  # <residual>
    h = tf.nn.max_pool2d(h, ksize=2, strides=2, padding="VALID")  # <pool>
    pooled = tf.reduce_mean(h, axis=[1, 2])  # <average>
    logits = tf.matmul(pooled, head) + offset  # <head>
    targets = tf.one_hot(wanted, CLASSES) * 0.9 + 0.1 / CLASSES  # <smooth>
    losses = tf.nn.softmax_cross_entropy_with_logits(labels=targets, logits=logits)  # <losses>
    return tf.reduce_mean(losses), first + later  # <loss>


def step(x, wanted):
    with tf.GradientTape() as tape:
        loss, updates = loss_of(x, wanted)
    gradients = tape.gradient(loss, weights, unconnected_gradients="zero")  # <gradient>
    for each, momentum, gradient in zip(weights, momenta, gradients):
        updates.append(momentum.assign(0.9 * momentum + gradient))  # <momentum>
        with tf.control_dependencies(updates[-1:]):
            updates.append(each.assign_sub(0.05 * momentum))  # <update>
    with tf.control_dependencies(updates):
        return tf.identity(loss)


batches = [
    (images[4 * number : 4 * number + 4], labels[4 * number : 4 * number + 4]) for number in range(2)
]  # <batches>
modes.train(MODE, step, batches)
