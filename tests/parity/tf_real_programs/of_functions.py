"""TensorFlow 2 programs without Keras networks: functions, eager operators, replicas, threads."""

# The programs are written as users write them, without types.
# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="no-untyped-def, untyped-decorator, misc, name-defined"

from __future__ import annotations

import tempfile
import threading

import keras
import numpy as np
import tensorflow as tf

from tests.parity.tf_real_programs.given import VALUES


def several_replicas():
    devices = tf.config.list_logical_devices("CPU")
    assert len(devices) == 2, devices
    strategy = tf.distribute.MirroredStrategy([each.name for each in devices])
    with strategy.scope():
        weight = tf.Variable(np.ones((8, 2), np.float32) * 0.1)
    data = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices(VALUES).batch(8))

    @tf.function
    def step(batch):
        def replica(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(tf.nn.relu(x @ weight) - 1.0))
            gradient = tape.gradient(loss, weight)
            total = tf.distribute.get_replica_context().all_reduce("SUM", gradient)
            weight.assign_sub(0.1 * total)
            return loss

        return strategy.reduce("MEAN", strategy.run(replica, args=(batch,)), axis=None)

    return [*(step(batch).numpy() for batch in data for _ in range(2)), weight.numpy()]


def ragged_sentences_and_lookups():
    words = tf.ragged.constant([["a", "b", "c"], ["b"], ["c", "a"]])
    table = tf.lookup.StaticVocabularyTable(
        tf.lookup.KeyValueTensorInitializer(["a", "b"], tf.constant([0, 1], tf.int64)), 2
    )
    embedding = tf.Variable(VALUES[:4, :3])

    @tf.function
    def encode(words):
        ids = tf.ragged.map_flat_values(table.lookup, words)
        vectors = tf.ragged.map_flat_values(lambda each: tf.nn.embedding_lookup(embedding, each), ids)
        return tf.reduce_mean(vectors, axis=1), ids.row_lengths()

    answers = []
    for _ in range(3):
        with tf.GradientTape() as tape:
            means, lengths = encode(words)
            loss = tf.reduce_sum(means**2)
        gradient = tape.gradient(loss, embedding)
        embedding.scatter_nd_sub(gradient.indices[:, None], 0.1 * gradient.values)
        answers += [loss.numpy(), lengths.numpy()]
    return [*answers, embedding.numpy()]


def recurrent_loops_and_branches():
    kernel = tf.Variable(VALUES[:8, :8] * 0.3)

    @tf.function
    def unrolled(x):
        states = tf.TensorArray(tf.float32, 0, dynamic_size=True)
        state, count = tf.zeros([8]), tf.constant(0)
        while count < 6 and tf.reduce_sum(tf.abs(state)) < 50.0:
            state = tf.tanh(x + tf.linalg.matvec(kernel, state))
            if state[0] > 0:
                state *= 1.1
            else:
                state -= 0.1
            states = states.write(count, state)
            count += 1
        return tf.reduce_sum(states.stack() ** 2), count

    answers = []
    for number in range(3):
        with tf.GradientTape() as tape:
            loss, count = unrolled(tf.constant(VALUES[number]))
        kernel.assign_sub(0.05 * tape.gradient(loss, kernel))
        answers += [loss.numpy(), count.numpy()]
    return [*answers, kernel.numpy()]


def a_saved_model_and_its_signatures():
    class Scorer(tf.Module):
        def __init__(self):
            self.weight = tf.Variable(VALUES[:8, :2])
            self.calls = tf.Variable(0)

        @tf.function(input_signature=[tf.TensorSpec([None, 8], tf.float32)])
        def score(self, x):
            self.calls.assign_add(1)
            return {"scores": tf.nn.softmax(x @ self.weight), "calls": self.calls + 0}

    folder, scorer = tempfile.mkdtemp(), Scorer()
    tf.saved_model.save(scorer, folder, signatures={"serving_default": scorer.score})
    loaded = tf.saved_model.load(folder)
    serve = loaded.signatures["serving_default"]
    found = [serve(tf.constant(VALUES[:number])) for number in (1, 3, 1)]
    found.append(loaded.score(tf.constant(VALUES)))
    return [each[key].numpy() for each in found for key in ("scores", "calls")]


def eager_training_with_checks():
    tf.debugging.enable_check_numerics()
    try:
        weight = tf.Variable(VALUES[:8, :1])
        optimizer = keras.optimizers.RMSprop(0.01)
        losses = []
        for _ in range(3):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.math.log1p(tf.square(tf.constant(VALUES) @ weight)))
            optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
            losses.append(loss.numpy())
        return [*losses, weight.numpy(), tf.random.uniform([3]).numpy()]
    finally:
        tf.debugging.disable_check_numerics()


def trainings_in_threads():
    found = {}

    def train(number):
        weight = tf.Variable(VALUES[:8, :1] * (number + 1))
        optimizer = keras.optimizers.SGD(0.01)
        forward = tf.function(lambda x: tf.reduce_mean((x @ weight) ** 2))
        losses = []
        for _ in range(3):
            with tf.GradientTape() as tape:
                loss = forward(tf.constant(VALUES))
            optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
            losses.append(loss.numpy())
        found[number] = [*losses, weight.numpy()]

    threads = [threading.Thread(target=train, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [each for number in sorted(found) for each in found[number]]
