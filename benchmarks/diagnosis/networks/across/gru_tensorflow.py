"""A recurrent classifier in TensorFlow: a GRU over time, written by hand, with momentum."""

import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import numpy as np
import tensorflow as tf

WIDTH, TOKENS, VOCABULARY, BATCH = 8, 4, 17, 3

numbers = np.random.default_rng(3)


def matrix(name, *shape):
    return tf.Variable(numbers.normal(0, 0.4, shape).astype("float32"), name=name)


tokens = matrix("tokens", VOCABULARY, WIDTH)
x_gates, h_gates = matrix("x_gates", WIDTH, 2 * WIDTH), matrix("h_gates", WIDTH, 2 * WIDTH)
bias = matrix("bias", 2 * WIDTH)
x_new, h_new = matrix("x_new", WIDTH, WIDTH), matrix("h_new", WIDTH, WIDTH)
head = matrix("head", WIDTH, VOCABULARY)
weights = [tokens, x_gates, h_gates, bias, x_new, h_new, head]
momenta = [tf.Variable(tf.zeros(each.shape), name=f"momentum{number}") for number, each in enumerate(weights)]


def cell(h, x):
    gates = tf.sigmoid(tf.matmul(x, x_gates) + tf.matmul(h, h_gates) + bias)  # <gates>
    reset, update = tf.split(gates, 2, axis=-1)  # <split>
    new = tf.tanh(tf.matmul(x, x_new) + tf.matmul(reset * h, h_new))  # <new>
    return update * h + (1.0 - update) * new  # <mix>


def loss_of(ids, targets):
    x = tf.gather(tokens, ids) * 2.0  # <embed>
    h, states = tf.zeros((BATCH, WIDTH)), []  # <start>
    for step in range(TOKENS):
        h = cell(h, x[:, step])  # <advance>
        states.append(h)
    logits = tf.matmul(tf.stack(states, axis=1), head) / tf.sqrt(8.0)  # <head>
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=targets, logits=logits)  # <losses>
    return tf.reduce_mean(losses)  # <loss>


@tf.function
def train(ids, targets):
    with tf.GradientTape() as tape:
        loss = loss_of(ids, targets)
    gradients = tape.gradient(loss, weights)  # <gradient>
    for each, momentum, gradient in zip(weights, momenta, gradients):
        momentum.assign(0.9 * momentum + tf.convert_to_tensor(gradient))  # <momentum>
        each.assign_sub(0.1 * momentum)  # <update>
    return loss


for step in range(2):
    window = numbers.integers(0, VOCABULARY, (BATCH, TOKENS + 1))
    loss = train(tf.constant(window[:, :-1]), tf.constant(window[:, 1:]))  # <call>
    print(f"step {step} loss {float(loss)!r}")
