"""A recurrent language model: a GRU cell over time, tied output weights, Adam."""

import modes
import numpy as np
import tensorflow as tf

MODE = "function"  # <mode>
WIDTH, TOKENS, VOCABULARY = 8, 4, 17

modes.begin(MODE)
random = np.random.default_rng(3)
text = random.integers(0, VOCABULARY, 200).astype("int32")  # <text>


def weight(name, *shape):
    return tf.Variable(random.normal(0, 0.4, shape).astype("float32"), name=name)


tokens = weight("tokens", VOCABULARY, WIDTH)
of_gates, state_gates = weight("of_gates", WIDTH, 2 * WIDTH), weight("state_gates", WIDTH, 2 * WIDTH)
bias = tf.Variable(tf.zeros(2 * WIDTH), name="bias")
of_candidate, state_candidate = weight("of_candidate", WIDTH, WIDTH), weight("state_candidate", WIDTH, WIDTH)
weights = [tokens, of_gates, state_gates, bias, of_candidate, state_candidate]
first = [tf.Variable(tf.zeros(each.shape), name=f"first{number}") for number, each in enumerate(weights)]
second = [tf.Variable(tf.zeros(each.shape), name=f"second{number}") for number, each in enumerate(weights)]
count = tf.Variable(0.0, name="count")


def cell(hidden, x):
    gates = tf.sigmoid(tf.matmul(x, of_gates) + tf.matmul(hidden, state_gates) + bias)  # <gates>
    reset, update = tf.split(gates, 2, axis=-1)  # <split>
    candidate = tf.tanh(tf.matmul(x, of_candidate) + tf.matmul(reset * hidden, state_candidate))  # <candidate>
    return update * hidden + (1.0 - update) * candidate  # <mix>


def loss_of(ids, targets):
    embedded = tf.gather(tokens, ids) * 2.0  # <embed>
    hidden, states = tf.zeros((2, WIDTH)), []  # <start>
    for place in range(TOKENS):
        hidden = cell(hidden, embedded[:, place])  # <advance>
        states.append(hidden)
    logits = tf.matmul(tf.stack(states, axis=1), tokens, transpose_b=True) / tf.sqrt(8.0)  # <logits>
    shifted = logits - tf.reduce_logsumexp(logits, axis=-1, keepdims=True)  # <normalise>
    wanted = tf.gather(shifted, targets, axis=-1, batch_dims=2)  # <pick>
    return -tf.reduce_mean(wanted)  # <loss>


def step(ids, targets):
    with tf.GradientTape() as tape:
        loss = loss_of(ids, targets)
    gradients = tape.gradient(loss, weights, unconnected_gradients="zero")  # <gradient>
    gradients = [tf.convert_to_tensor(each) for each in gradients]  # <dense>
    updates = [count.assign_add(1.0)]  # <count>
    with tf.control_dependencies(updates):
        now = tf.identity(count)
    rate = 0.02 * tf.sqrt(1.0 - 0.99**now) / (1.0 - 0.9**now)  # <rate>
    for each, gradient, m, v in zip(weights, gradients, first, second):
        mean = m.assign(0.9 * m + 0.1 * gradient)  # <first>
        square = v.assign(0.99 * v + 0.01 * gradient * gradient)  # <second>
        with tf.control_dependencies([mean, square]):
            updates.append(each.assign_sub(rate * m / (tf.sqrt(v) + 1e-6)))  # <update>
    with tf.control_dependencies(updates):
        return tf.identity(loss)


def batch(number):
    starts = (3 + 20 * number, 60 + 20 * number)
    window = np.stack([text[start : start + TOKENS + 1] for start in starts])
    return window[:, :-1], window[:, 1:]  # <shift>


modes.train(MODE, step, [batch(number) for number in range(2)])
