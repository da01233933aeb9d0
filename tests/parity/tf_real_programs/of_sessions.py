"""TensorFlow 1 programs: sessions, hooks, checkpoints, an Estimator."""

# The programs are written as users write them, without types.
# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="no-untyped-def, untyped-decorator, misc, name-defined"

from __future__ import annotations

import tempfile

import numpy as np
import tensorflow as tf

from opdump.adapters.tensorflow.estimator import give_v1_names
from tests.parity.tf_real_programs.given import VALUES

v1 = tf.compat.v1


def an_estimator_with_callbacks():
    give_v1_names()
    calls: list[int] = []
    estimators = getattr(v1, "estimator", None) or tf.estimator

    def louder(x):
        calls.append(1)
        return x * np.float32(1.1)

    def examples(mode):
        data = tf.data.Dataset.from_tensor_slices((VALUES, VALUES[:, :1]))
        return data.map(lambda x, y: (tf.ensure_shape(tf.numpy_function(louder, [x], tf.float32), [8]), y)).batch(4)

    def network(features, labels, mode):
        hidden = tf.ensure_shape(tf.numpy_function(np.tanh, [features], tf.float32, stateful=False), [None, 8])
        predicted = tf.matmul(hidden, v1.get_variable("w", initializer=VALUES[:8, :1]))
        if mode == estimators.ModeKeys.PREDICT:
            return estimators.EstimatorSpec(mode, predictions={"predicted": predicted})
        loss = tf.reduce_mean((predicted - labels) ** 2)
        if mode == estimators.ModeKeys.EVAL:
            return estimators.EstimatorSpec(mode, loss=loss)
        train = v1.train.AdamOptimizer(0.01).minimize(loss, v1.train.get_global_step())
        return estimators.EstimatorSpec(mode, loss=loss, train_op=train)

    estimator = estimators.Estimator(network, tempfile.mkdtemp())
    estimator.train(lambda: examples("train"))
    evaluated = estimator.evaluate(lambda: examples("eval"))
    predicted = [each["predicted"] for each in estimator.predict(lambda: examples("infer"))]
    return [np.float32(evaluated["loss"]), np.stack(predicted), estimator.get_variable_value("w"), str(len(calls))]


def linear_regression():
    x, y = v1.placeholder(tf.float32, [None, 8]), v1.placeholder(tf.float32, [None, 1])
    weight = v1.get_variable("weight", [8, 1], initializer=v1.glorot_uniform_initializer(seed=2))
    bias = v1.get_variable("bias", [1], initializer=v1.zeros_initializer())
    loss = tf.reduce_mean(tf.square(tf.matmul(x, weight) + bias - y))
    train = v1.train.MomentumOptimizer(0.05, 0.9).minimize(loss, v1.train.get_or_create_global_step())
    summary = v1.summary.scalar("loss", loss)
    saver = v1.train.Saver()
    folder = tempfile.mkdtemp()
    answers = []
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        for number in range(4):
            feed = {x: VALUES[number : number + 8], y: VALUES[number : number + 8, :1]}
            answers.append(session.run([train, loss], feed)[1])
            session.run(summary, feed)
        saver.save(session, f"{folder}/model")
        answers.append(session.run(weight))
        session.run(weight.assign(tf.zeros_like(weight)))
        saver.restore(session, f"{folder}/model")
        return [*answers, session.run(weight)]


def operators_that_are_added_between_runs():
    """Seeds of operators depend on the number of operators in the graph."""
    v1.set_random_seed(11)
    x = v1.placeholder(tf.float32, [4])
    y = tf.nn.relu(x * 2.0) + tf.random.uniform([4])
    answers = []
    with v1.Session() as session:
        for number in range(3):
            answers.append(session.run(y, {x: VALUES[number, :4]}))
            y = tf.tanh(y) + tf.random.normal([4])
            answers.append(session.run(y, {x: VALUES[number, :4]}))
        names = [
            operation.name for operation in session.graph.get_operations() if not operation.name.startswith("opdump")
        ]
    return [*answers, "\n".join(names)]


def a_monitored_session_with_hooks():
    iterator = v1.data.make_one_shot_iterator(tf.data.Dataset.from_tensor_slices(VALUES).batch(4).repeat())
    batch = iterator.get_next()
    hidden = tf.nn.relu(tf.matmul(batch, v1.get_variable("w", initializer=VALUES[:8])))
    loss = tf.reduce_mean(hidden**2)
    step = v1.train.get_or_create_global_step()
    train = v1.train.AdamOptimizer(0.01).minimize(loss, step)
    seen = []

    class Hook(v1.train.SessionRunHook):
        def before_run(self, run_context):
            return v1.train.SessionRunArgs(loss)

        def after_run(self, run_context, run_values):
            # Within a run, a read of the step and its update are unordered; TensorFlow's own hooks also read it here.
            seen.append([run_values.results, run_context.session.run(step)])

    hooks = [Hook(), v1.train.StopAtStepHook(num_steps=5), v1.train.NanTensorHook(loss)]
    with v1.train.MonitoredTrainingSession(hooks=hooks, checkpoint_dir=tempfile.mkdtemp()) as session:
        while not session.should_stop():
            session.run(train)
    return seen
