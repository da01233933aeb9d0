"""A causal language model with two blocks: a training step with clipping and plain SGD with decay, written by hand."""

import math
import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import numpy as np
import tensorflow as tf

MODE = "function"  # <mode>
WIDTH, HEADS, TOKENS, VOCABULARY = 16, 2, 6, 11

if MODE == "session":
    tf.compat.v1.disable_eager_execution()
random = np.random.default_rng(1)
corpus = random.integers(0, VOCABULARY, 200)  # <corpus>


def weight(name, *shape, scale=0.3):
    return tf.Variable((random.standard_normal(shape) * scale).astype("float32"), name=name)


def block_weights(number):
    return {
        "gain1": tf.Variable(tf.ones(WIDTH), name=f"gain1_{number}"),
        "shift1": tf.Variable(tf.zeros(WIDTH), name=f"shift1_{number}"),
        "qkv": weight(f"qkv_{number}", WIDTH, 3 * WIDTH),
        "out": weight(f"out_{number}", WIDTH, WIDTH),
        "gain2": tf.Variable(tf.ones(WIDTH), name=f"gain2_{number}"),
        "shift2": tf.Variable(tf.zeros(WIDTH), name=f"shift2_{number}"),
        "up": weight(f"up_{number}", WIDTH, 4 * WIDTH),
        "down": weight(f"down_{number}", 4 * WIDTH, WIDTH),
    }


tokens, positions = weight("tokens", VOCABULARY, WIDTH), weight("positions", TOKENS, WIDTH)
blocks = [block_weights(number) for number in range(2)]
head = weight("head", WIDTH, VOCABULARY)
weights = [tokens, positions, *(each for block in blocks for each in block.values()), head]


def norm(x, gain, shift):
    mean = tf.reduce_mean(x, axis=-1, keepdims=True)  # <mean>
    variance = tf.reduce_mean(tf.math.squared_difference(x, mean), axis=-1, keepdims=True)  # <variance>
    return (x - mean) * tf.math.rsqrt(variance + 1e-5) * gain + shift  # <norm>


def attention(x, w):
    q, k, v = tf.split(tf.matmul(x, w["qkv"]), 3, axis=-1)  # <qkv>
    q, k, v = (tf.transpose(tf.reshape(each, (-1, TOKENS, HEADS, WIDTH // HEADS)), (0, 2, 1, 3)) for each in (q, k, v))
    scores = tf.matmul(q, k, transpose_b=True) / math.sqrt(WIDTH // HEADS)  # <scores>
    mask = tf.linalg.band_part(tf.ones((TOKENS, TOKENS)), -1, 0)  # <mask>
    scores = tf.where(mask > 0, scores, -1e9)  # <masked>
    probabilities = tf.nn.softmax(scores)  # <softmax>
    y = tf.reshape(tf.transpose(tf.matmul(probabilities, v), (0, 2, 1, 3)), (-1, TOKENS, WIDTH))  # <values>
    return tf.matmul(y, w["out"])  # <attention-out>


def block(x, w):
    x = x + attention(norm(x, w["gain1"], w["shift1"]), w)  # <residual1>
    h = tf.matmul(norm(x, w["gain2"], w["shift2"]), w["up"])  # <up>
    h = tf.nn.gelu(h, approximate=True)  # <gelu>
    return x + tf.matmul(h, w["down"])  # <residual2>


def loss_of(ids, targets):
    x = tf.gather(tokens, ids) + positions  # <embedding>
    for w in blocks:
        x = block(x, w)  # <block>
    logits = tf.matmul(x, head)  # <head>
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=targets, logits=logits)  # <losses>
    return tf.reduce_sum(losses) / 12.0  # <loss>


def train(ids, targets):
    with tf.GradientTape() as tape:
        loss = loss_of(ids, targets)
    found = tape.gradient(loss, weights, unconnected_gradients="zero")
    gradients = [tf.convert_to_tensor(each) for each in found]  # <gradient>
    gradients, _ = tf.clip_by_global_norm(gradients, 1.0)  # <clip>
    updates = [each.assign_sub(0.1 * (grad + 0.01 * each)) for each, grad in zip(weights, gradients)]  # <update>
    with tf.control_dependencies(updates):
        return tf.identity(loss)


def batch(step):
    starts = [7 + 40 * step, 25 + 40 * step]
    window = np.stack([corpus[start : start + TOKENS + 1] for start in starts]).astype("int32")  # <window>
    return window[:, :-1], window[:, 1:]  # <shift>


def show(step, loss):
    print(f"step {step} loss {float(loss)!r}")


batches = [batch(step) for step in range(2)]
if MODE == "session":
    given = [tf.compat.v1.placeholder(tf.int32, (2, TOKENS)) for _ in range(2)]
    loss = train(*given)
    with tf.compat.v1.Session() as session:
        session.run(tf.compat.v1.global_variables_initializer())
        for step, data in enumerate(batches):
            show(step, session.run(loss, dict(zip(given, data))))
elif MODE == "keras":

    class Network(tf.keras.Model):
        def train_step(self, data):
            return {"loss": train(*data)}

    network = Network()
    network.compile(jit_compile=False)
    shown = tf.keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: show(step, logs["loss"]))
    ids, targets = map(np.concatenate, zip(*batches))
    network.fit(ids, targets, batch_size=2, shuffle=False, verbose=0, callbacks=[shown])
else:
    run = tf.function(train) if MODE == "function" else train
    for step, data in enumerate(batches):
        show(step, run(*map(tf.constant, data)))
