"""What TensorFlow 1 programs do, with names that TensorFlow 2 lacks or redefines. Prints the facts that a test checks.

opdump run tf_program_version1.py --dump DIR
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

FLAGS = tf.app.flags.FLAGS
tf.app.flags.DEFINE_string("dump", "", "where the dump goes")
tf.flags.DEFINE_integer("steps", 3, "how many steps")


def parse(record: Any) -> Any:
    found = tf.parse_single_example(
        record, {"x": tf.FixedLenFeature([4], tf.float32), "y": tf.FixedLenFeature([], tf.int64)}
    )
    return found["x"], tf.cast(found["y"], tf.int32)


def records(path: str) -> Any:
    with tf.python_io.TFRecordWriter(path) as writer:
        for number in range(32):
            features = {
                "x": tf.train.Feature(float_list=tf.train.FloatList(value=[number, number + 1, 2.0, 3.0])),
                "y": tf.train.Feature(int64_list=tf.train.Int64List(value=[number % 2])),
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
    return tf.data.TFRecordDataset(path).map(parse).repeat().batch(8)


def told(name: str, what: Callable[[], Any]) -> None:
    try:
        print(name, callable(what()))
    except AttributeError as error:
        print(name, type(error).__name__, error)


def main(_: Any) -> None:
    os.mkdir(f"{FLAGS.dump}/log")
    config = tf.ConfigProto(allow_soft_placement=True)
    optimizer = config.graph_options.rewrite_options.custom_optimizers.add()
    optimizer.name = "NpuOptimizer"
    optimizer.parameter_map["enable_dump"].b = True
    optimizer.parameter_map["dump_path"].s = tf.compat.as_bytes(FLAGS.dump)
    optimizer.parameter_map["dump_step"].s = b"1"
    optimizer.parameter_map["dump_mode"].s = b"all"

    iterator = records(f"{FLAGS.dump}/log/records").make_initializable_iterator()
    x, y = iterator.get_next()
    tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    keep_prob = tf.placeholder_with_default(0.9, [], name="keep_prob")
    with tf.variable_scope("net", reuse=tf.AUTO_REUSE, initializer=tf.variance_scaling_initializer(seed=1)):
        weights = tf.get_variable("w", [x.get_shape()[1].value, 2])
        net = tf.cond(
            keep_prob < 1.0, lambda: tf.nn.relu(tf.matmul(x, weights)), lambda: tf.tanh(tf.matmul(x, weights))
        )
        _, net = tf.while_loop(lambda i, _: i < 3, lambda i, n: (i + 1, n * 0.5 + tf.sin(n)), [tf.constant(0), net])
    kept = tf.nn.dropout(tf.ones([10000]), 0.9, seed=1)
    step = tf.train.get_or_create_global_step()
    rate = tf.train.exponential_decay(0.01, step, 2, 0.9, staircase=True)
    loss = tf.losses.sparse_softmax_cross_entropy(y, net)
    train = tf.train.MomentumOptimizer(rate, 0.9).minimize(loss, global_step=step)
    _, update = tf.metrics.accuracy(y, tf.argmax(net, dimension=1))
    mean = tf.reduce_mean(kept, reduction_indices=[0], keep_dims=False)
    tf.summary.scalar("loss", loss)
    print("comparison", train == loss, {x: 1}[x])
    hooks = [tf.train.StopAtStepHook(last_step=FLAGS.steps), tf.train.NanTensorHook(loss)]
    with tf.train.MonitoredTrainingSession(
        config=config, checkpoint_dir=f"{FLAGS.dump}/log", hooks=hooks, save_summaries_steps=2
    ) as session:
        while not session.should_stop():
            _, number, _, ones = session.run([train, loss, update, mean])
            print("loss", number, "kept", abs(float(ones) - 1.0) < 0.02)
    print("saved", tf.train.latest_checkpoint(f"{FLAGS.dump}/log").endswith(f"-{FLAGS.steps}"))

    with tf.Graph().as_default():
        pair = tf.placeholder(tf.float32, [2])
        total = tf.reduce_sum(tf.Variable([1.0, 2.0]) * pair)
        session = tf.InteractiveSession(config=config)
        tf.global_variables_initializer().run()
        print("eval", [float(total.eval({pair: np.ones(2)})) for _ in range(2)])
        session.close()
    told("layers", lambda: tf.layers.dense)
    told("contrib", lambda: tf.contrib.slim)


if __name__ == "__main__":
    tf.app.run(main)
