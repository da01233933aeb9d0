"""Programs of sessions. Each receives `step`, a context for each step by number, and a separate directory."""

# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="no-untyped-def, misc, name-defined"

from __future__ import annotations

import os

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1


def _dense(x, size, name):
    with v1.variable_scope(name):
        kernel = v1.get_variable("kernel", [x.shape[-1], size], initializer=v1.truncated_normal_initializer(0, 0.3))
        bias = v1.get_variable("bias", [size], initializer=v1.zeros_initializer())
    return tf.nn.bias_add(tf.matmul(x, kernel), bias)


def _batch(shape):
    return np.random.default_rng(3).random(shape, np.float32)


def queues(step, folder):
    """Batches wait in a queue, as in input pipelines of TensorFlow 1."""
    given = v1.placeholder(tf.float32, [8, 6], "given")
    queue = v1.FIFOQueue(10, [tf.float32], [[8, 6]])
    put, size = queue.enqueue([tf.tanh(given) * 2.0]), queue.size()
    batch = queue.dequeue()
    hidden = tf.nn.relu(_dense(batch, 16, "hidden"))
    loss = tf.reduce_mean(tf.square(_dense(hidden, 1, "out") - 1.0))
    train = v1.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        for number in range(3):
            session.run(put, {given: _batch((8, 6))})  # the input pipeline is not a step
            with step(number):
                session.run([train, loss, size])


def savers(step, folder):
    """A training that is saved and restored between its steps."""
    x = v1.placeholder(tf.float32, [None, 8, 8, 3], "x")
    kernel = v1.get_variable("kernel", [3, 3, 3, 4], initializer=v1.truncated_normal_initializer(0, 0.3))
    hidden = tf.nn.max_pool2d(tf.nn.relu(tf.nn.conv2d(x, kernel, 1, "SAME")), 2, 2, "VALID")
    loss = tf.reduce_mean(tf.square(_dense(tf.reshape(hidden, [-1, 64]), 2, "out")))
    train = v1.train.AdamOptimizer(0.01).minimize(loss)
    saver = v1.train.Saver()
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        for number in range(3):
            with step(number):
                session.run([train, loss], {x: _batch((4, 8, 8, 3))})
            saver.restore(session, saver.save(session, os.path.join(folder, "model"), number))


def control_flow(step, folder):
    """Loops, branches and cases as functions, nested in one another, and their gradients."""
    x, which = v1.placeholder(tf.float32, [4, 4], "x"), v1.placeholder(tf.int32, [], "which")
    weight = v1.get_variable("weight", [4, 4], initializer=v1.truncated_normal_initializer(0, 0.3))

    def body(count, value):
        value = tf.tanh(tf.matmul(value, weight) + x)
        return count + 1, tf.cond(tf.reduce_sum(value) > 0.0, lambda: value * 0.9, lambda: tf.exp(value) - 1.0)

    _, looped = tf.while_loop(lambda count, _: count < 3, body, [0, x])
    chosen = tf.switch_case(which, [lambda: tf.sin(looped), lambda: tf.nn.softplus(looped), lambda: -looped])
    loss = tf.reduce_mean(tf.square(chosen))
    train = v1.train.GradientDescentOptimizer(0.1).minimize(loss)
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        for number in range(3):
            with step(number):
                session.run([train, loss], {x: _batch((4, 4)), which: 1})


def functions(step, folder):
    """Functions that call functions, and operators that map a function over a batch."""
    weight = v1.get_variable("weight", [5, 5], initializer=v1.truncated_normal_initializer(0, 0.3))
    x = v1.placeholder(tf.float32, [3, 5], "x")

    @tf.function
    def inner(value):
        return tf.nn.softmax(tf.matmul(value, weight))

    @tf.function
    def outer(value):
        return inner(value) * inner(tf.nn.elu(value)) + 1.0

    mapped = tf.map_fn(lambda row: tf.reduce_sum(tf.square(row)) * row, outer(x))
    loss = tf.reduce_sum(tf.math.log(mapped + 2.0))
    train = v1.train.RMSPropOptimizer(0.01).minimize(loss)
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        for number in range(3):
            with step(number):
                session.run([train, loss], {x: _batch((3, 5))})


def monitored(step, folder):
    """A MonitoredTrainingSession with a data set, a global step, summaries and checkpoints."""
    images = v1.data.make_one_shot_iterator(tf.data.Dataset.from_tensors(_batch((4, 12, 12, 1))).repeat()).get_next()
    kernel = v1.get_variable("kernel", [3, 3, 1, 8], initializer=v1.truncated_normal_initializer(0, 0.3))
    normal, _, _ = v1.nn.fused_batch_norm(tf.nn.conv2d(images, kernel, 2, "VALID"), tf.ones([8]), tf.zeros([8]))
    pooled = tf.reduce_mean(tf.nn.leaky_relu(normal), [1, 2])
    labels = tf.constant([0, 1, 2, 3])
    logits = _dense(pooled, 10, "logits")
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    v1.summary.scalar("loss", loss)
    train = v1.train.AdagradOptimizer(0.1).minimize(loss, global_step=v1.train.get_or_create_global_step())
    with v1.train.MonitoredTrainingSession(
        checkpoint_dir=folder, save_summaries_steps=2, save_checkpoint_steps=2, log_step_count_steps=None
    ) as session:
        for number in range(3):
            with step(number):
                session.run([train, loss])
