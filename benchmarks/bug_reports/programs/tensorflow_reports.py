"""Programs of public bug reports about TensorFlow: `python tensorflow_reports.py NUMBER VARIANT` runs variant a or b."""

import sys

import numpy as np
import tensorflow as tf

number, variant = int(sys.argv[1]), sys.argv[2]
plain = variant == "a"
tf.random.set_seed(0)


def compiled(f):
    """Eager in variant a, compiled by XLA in variant b."""
    return f if plain else tf.function(f, jit_compile=True)


def graph(f):
    return f if plain else tf.function(f)


if number == 118179:
    x = tf.constant([7.5e10, 7.5e10, 7.5e10])
    print(compiled(lambda x: tf.nn.moments(x, axes=[0]))(x))
elif number == 62253:
    x = tf.constant(np.linspace(-3, 12, 720), tf.float32)
    print(tf.reduce_sum(compiled(lambda x: tf.raw_ops.Square(x=tf.raw_ops.Exp(x=x)))(x)))
elif number == 62287:
    x = tf.constant(np.linspace(-9, 9, 720), tf.float32)
    print(tf.reduce_sum(compiled(lambda x: tf.raw_ops.Erfc(x=tf.raw_ops.Cos(x=x)))(x)))
elif number == 62277:
    x = tf.constant(np.linspace(-1, 1, 101), tf.float16)
    print(tf.reduce_sum(compiled(lambda x: tf.raw_ops.Asin(x=x))(x)))
elif number == 62239:
    x = tf.constant(np.linspace(-90, 90, 101), tf.bfloat16)
    print(tf.reduce_sum(compiled(lambda x: tf.raw_ops.Exp(x=tf.raw_ops.Cos(x=x)))(x)))
elif number == 62233:
    x = tf.constant(np.arange(40), tf.int8)
    print(
        tf.reduce_sum(tf.cast(compiled(lambda x: tf.raw_ops.RightShift(x=tf.constant(99, tf.int8), y=x))(x), tf.int32))
    )
elif number == 62206:
    x = tf.constant(np.linspace(0, 1, 720), tf.bfloat16)
    print(tf.reduce_sum(compiled(lambda x: tf.raw_ops.Sigmoid(x=x))(x)))
elif number == 58752:
    x = tf.random.stateless_uniform([2], seed=(1, 2), minval=-5, maxval=5, dtype=tf.float64)
    print(compiled(lambda x: tf.math.tan(tf.math.cosh(tf.math.cosh(x))))(x))
elif number == 55814:
    logits = tf.constant(np.random.default_rng(0).normal(size=(4, 10)) * 60, tf.float32)

    def loss(x):
        p = tf.nn.softmax(x)
        return -tf.reduce_sum(tf.one_hot([1, 2, 3, 4], 10) * tf.math.log(p))

    print(graph(loss)(logits))
elif number == 12071:
    x = tf.constant([[1.0], [0.0], [1e-16], [1e-19]])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.norm(x, axis=1)
    print(tape.gradient(y, x))
elif number == 38349:
    x = tf.constant([0.0, 1.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.where(x > 0, x / tf.sqrt(x), 0.0)
    print(tape.gradient(y, x))
elif number == 22048:
    x = tf.zeros([3])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.clip_by_norm(x, 1.0)
    print(tape.gradient(y, x))
elif number == 20355:
    x = tf.constant([1.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.where(x < 0, 1.0 / (1.0 - x), tf.math.log(x + 1))
    print(tape.gradient(y, x))
elif number == 20091:
    w1, w2 = tf.Variable([2.0]), tf.Variable([0.0])
    with tf.GradientTape() as tape:
        y = tf.where(w2 > 0, w1 / w2, w1 * w2)
    print(tape.gradient(y, [w1, w2]))
elif number == 57959:
    a = tf.constant(9e307 * np.random.default_rng(0).uniform(-1, 1, (4, 5)))
    print(tf.linalg.matrix_rank(a))
elif number == 125391:

    class Net(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.inner = tf.keras.layers.Dense(
                4, activation="tanh", kernel_initializer=tf.keras.initializers.GlorotUniform(seed=1)
            )

        def call(self, x):
            return self.inner(x)

    net = Net()
    x = tf.constant(np.linspace(-2, 2, 12).reshape(3, 4), tf.float32)
    print(compiled(lambda x: net(x))(x))
elif number == 56181:
    x = tf.constant(np.random.default_rng(0).uniform(size=(1, 200, 200, 3)) * 255, tf.uint8)
    print(tf.reduce_mean(graph(lambda x: tf.image.resize(x, (50, 50)) / 255.0)(x)))
else:
    raise SystemExit(f"no report {number}")
