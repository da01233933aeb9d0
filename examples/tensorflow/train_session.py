"""A convolutional network on scikit-learn's digits, trained through a session that requests a dump, as on an Ascend device.

mkdir -p /tmp/dump && opdump run train_session.py /tmp/dump
"""

import sys

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig

dump_path = sys.argv[1] if len(sys.argv) > 1 else "/home/HwHiAiUser/output"

digits = load_digits()
images = (digits.images[..., np.newaxis] / 16).astype(np.float32)
labels = digits.target.astype(np.int32)
dataset = tf.data.Dataset.from_tensor_slices((images, labels)).repeat().batch(32)
image, label = tf.data.make_one_shot_iterator(dataset).get_next()

tf.set_random_seed(1)
with tf.variable_scope("conv1"):
    kernel = tf.get_variable("kernel", [3, 3, 1, 8], initializer=tf.truncated_normal_initializer(stddev=0.3))
    bias = tf.get_variable("bias", [8], initializer=tf.zeros_initializer())
    net = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(image, kernel, strides=[1, 1, 1, 1], padding="SAME"), bias))
net = tf.nn.max_pool2d(net, 2, 2, "VALID", name="pool1")
with tf.variable_scope("dense"):
    net = tf.reshape(net, [-1, 4 * 4 * 8])
    weights = tf.get_variable("kernel", [4 * 4 * 8, 10], initializer=tf.truncated_normal_initializer(stddev=0.1))
    logits = tf.matmul(net, weights)
cost = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label, logits=logits), name="cost")
train = tf.train.AdamOptimizer(0.01).minimize(cost)
init = tf.global_variables_initializer()

config = tf.ConfigProto()
custom_op = config.graph_options.rewrite_options.custom_optimizers.add()
custom_op.name = "NpuOptimizer"
custom_op.parameter_map["use_off_line"].b = True
custom_op.parameter_map["enable_dump"].b = True
custom_op.parameter_map["dump_path"].s = tf.compat.as_bytes(dump_path)
custom_op.parameter_map["dump_step"].s = tf.compat.as_bytes("0|5|10")
custom_op.parameter_map["dump_mode"].s = tf.compat.as_bytes("all")
config.graph_options.rewrite_options.remapping = RewriterConfig.OFF

with tf.Session(config=config) as sess:
    sess.run(init)
    for _ in range(11):
        _, loss = sess.run([train, cost])
        print("loss", loss)
    print(sess.run(cost))
