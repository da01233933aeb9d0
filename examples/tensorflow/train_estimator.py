"""A convolutional network on scikit-learn's digits, trained by an Estimator that requests a dump, as on an Ascend device.

mkdir -p /tmp/dump && opdump run train_estimator.py /tmp/dump
"""

import sys

import numpy as np
import tensorflow as tf
from npu_bridge.estimator.npu.npu_config import DumpConfig, NPURunConfig
from npu_bridge.estimator.npu.npu_estimator import NPUEstimator
from sklearn.datasets import load_digits

dump_path = sys.argv[1] if len(sys.argv) > 1 else "/home/HwHiAiUser/output"
tf.logging.set_verbosity(tf.logging.INFO)


def digits(part, repeat=1):
    """The images and labels of a part of the digits, in batches."""
    found = load_digits()
    images = (found.images[part][..., np.newaxis] / 16).astype(np.float32)
    labels = found.target[part].astype(np.int32)
    return tf.data.Dataset.from_tensor_slices(({"image": images}, labels)).repeat(repeat).batch(32)


def model_fn(features, labels, mode, params):
    """Two layers: a convolution and a dense layer."""
    is_training = mode == tf.estimator.ModeKeys.TRAIN
    with tf.variable_scope("conv1"):
        kernel = tf.get_variable("kernel", [3, 3, 1, 8], initializer=tf.truncated_normal_initializer(stddev=0.3))
        bias = tf.get_variable("bias", [8], initializer=tf.zeros_initializer())
        net = tf.nn.conv2d(features["image"], kernel, strides=[1, 1, 1, 1], padding="SAME")
        net = tf.nn.relu(tf.nn.bias_add(net, bias))
    net = tf.nn.max_pool2d(net, 2, 2, "VALID", name="pool1")
    with tf.variable_scope("dense"):
        net = tf.reshape(net, [-1, 4 * 4 * 8])
        if is_training:
            net = tf.nn.dropout(net, rate=0.1, name="dropout")
        weights = tf.get_variable("kernel", [4 * 4 * 8, 10], initializer=tf.truncated_normal_initializer(stddev=0.1))
        logits = tf.matmul(net, weights)
    digit = tf.argmax(logits, axis=1, name="digit")
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions={"digit": digit, "scores": tf.nn.softmax(logits)})
    loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
    if mode == tf.estimator.ModeKeys.EVAL:
        accuracy = tf.metrics.accuracy(labels, digit)
        return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops={"accuracy": accuracy})
    train = tf.train.AdamOptimizer(params["rate"]).minimize(loss, global_step=tf.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train)


dump_config = DumpConfig(enable_dump=True, dump_path=dump_path, dump_step="0|5|10", dump_mode="all")
session_config = tf.ConfigProto()
config = NPURunConfig(dump_config=dump_config, session_config=session_config, tf_random_seed=1, log_step_count_steps=1)
estimator = NPUEstimator(model_fn, config=config, params={"rate": 0.01})
estimator.train(lambda: digits(slice(0, 1500), repeat=None), steps=11)
print(estimator.evaluate(lambda: digits(slice(1500, None))))
print([int(each["digit"]) for each in estimator.predict(lambda: digits(slice(1500, 1510)))])
