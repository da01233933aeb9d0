"""A mixture of experts: top-2 routing, experts as batched products, a balancing loss, RMS norm, SGD with clipped values."""

import modes
import numpy as np
import tensorflow as tf

MODE = "function"  # <mode>
WIDTH, EXPERTS, ROWS = 8, 4, 10

modes.begin(MODE)
random = np.random.default_rng(4)
inputs = random.normal(0, 1, (2 * ROWS, WIDTH)).astype("float32")  # <inputs>
outputs = np.tanh(inputs[:, ::-1] * 1.5).astype("float32")  # <outputs>


def weight(name, *shape):
    return tf.Variable(random.normal(0, 0.4, shape).astype("float32"), name=name)


enter, scale, router = (
    weight("enter", WIDTH, WIDTH),
    tf.Variable(tf.ones(WIDTH), name="scale"),
    weight("router", WIDTH, EXPERTS),
)
up, gate = weight("up", EXPERTS, WIDTH, 2 * WIDTH), weight("gate", EXPERTS, WIDTH, 2 * WIDTH)
down, leave = weight("down", EXPERTS, 2 * WIDTH, WIDTH), weight("leave", WIDTH, WIDTH)
weights = [enter, scale, router, up, gate, down, leave]


def rms_norm(x):
    return x * tf.math.rsqrt(tf.reduce_mean(x * x, axis=-1, keepdims=True) + 1e-6) * scale  # <norm>


def experts(x):
    x = tf.tile(x[None], (EXPERTS, 1, 1))  # <each>
    opened = tf.nn.silu(tf.matmul(x, gate))  # <gate>
    return tf.matmul(opened * tf.matmul(x, up), down)  # <expert>


def mixture(x):
    scores = tf.matmul(x, router)  # <router>
    odds = tf.nn.softmax(scores, axis=-1)  # <odds>
    best, chosen = tf.math.top_k(odds, 2)  # <top>
    best = best / tf.reduce_sum(best, axis=-1, keepdims=True)  # <renormalise>
    share = tf.reduce_sum(tf.one_hot(chosen, EXPERTS) * best[..., None], axis=1)  # <share>
    mixed = tf.einsum("ne,end->nd", share, experts(x))  # <mixed>
    load = tf.reduce_mean(tf.one_hot(chosen[:, 0], EXPERTS), axis=0)  # <load>
    return mixed, EXPERTS * tf.reduce_sum(load * tf.reduce_mean(odds, axis=0))  # <balance>


def loss_of(x, wanted):
    h = rms_norm(tf.matmul(x, enter))  # <enter>
    mixed, balance = mixture(h)
    found = tf.matmul(h + mixed, leave)  # <residual>
    error = found - wanted  # <error>
    return tf.reduce_mean(error**2.0) + 0.01 * balance  # <loss>


def step(x, wanted):
    with tf.GradientTape() as tape:
        loss = loss_of(x, wanted)
    gradients = tape.gradient(loss, weights, unconnected_gradients="zero")  # <gradient>
    bounded = [tf.clip_by_value(each, -0.2, 0.2) for each in gradients]  # <bound>
    updates = [each.assign_sub(0.3 * gradient) for each, gradient in zip(weights, bounded)]  # <update>
    with tf.control_dependencies(updates):
        return tf.identity(loss)


parts = [slice(ROWS * number, ROWS * number + ROWS) for number in range(2)]  # <parts>
modes.train(MODE, step, [(inputs[part], outputs[part]) for part in parts])
