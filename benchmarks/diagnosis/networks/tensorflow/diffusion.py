"""A diffusion block: a noise schedule, time embeddings, group norm, FiLM, a moving average of the parameters."""

import modes
import numpy as np
import tensorflow as tf

MODE = "function"  # <mode>
WIDTH, GROUPS, STEPS = 8, 2, 20

modes.begin(MODE)
random = np.random.default_rng(5)
signals = np.sin(random.normal(0, 1, (6, 12, 1)) + np.linspace(0, 3, 12)[:, None]).astype("float32")  # <signals>
noises = random.normal(0, 1, (6, 12, 1)).astype("float32")  # <noises>


def weight(name, *shape):
    return tf.Variable(random.normal(0, 0.3, shape).astype("float32"), name=name)


enter, time, film_weight = weight("enter", 1, WIDTH), weight("time", 8, WIDTH), weight("film", WIDTH, 2 * WIDTH)
middle, leave = weight("middle", WIDTH, WIDTH), weight("leave", WIDTH, 1)
weights = [enter, time, film_weight, middle, leave]
averages = [tf.Variable(tf.zeros(each.shape), name=f"average{number}") for number, each in enumerate(weights)]


def product(x, matrix):
    return tf.tensordot(x, matrix, 1)  # <product>


def time_embedding(times):
    frequencies = tf.exp(-tf.range(4.0) * (tf.math.log(100.0) / 4.0))  # <frequencies>
    angles = times[:, None] * frequencies  # <angles>
    return tf.concat([tf.sin(angles), tf.cos(angles)], axis=-1)  # <embedding>


def group_norm(x):
    parts = tf.reshape(x, (3, 12, GROUPS, WIDTH // GROUPS))  # <parts>
    mean = tf.reduce_mean(parts, axis=(1, 3), keepdims=True)  # <mean>
    variance = tf.math.reduce_variance(parts, axis=(1, 3), keepdims=True)  # <variance>
    return tf.reshape((parts - mean) / tf.sqrt(variance + 1e-5), (3, 12, WIDTH))  # <normalise>


def predicted(noisy, times):
    h = product(noisy, enter)  # <enter>
    film = tf.matmul(tf.nn.silu(tf.matmul(time_embedding(times), time)), film_weight)  # <film>
    scale, shift = film[:, None, :WIDTH], film[:, None, WIDTH:]  # <halves>
    h = group_norm(h) * (1.0 + scale) + shift  # <modulate>
    h = h + tf.nn.softplus(product(h, middle))  # <residual>
    padded = tf.pad(h, ((0, 0), (1, 1), (0, 0)))  # <pad>
    h = padded[:, :-2] + 0.5 * padded[:, 2:]  # <neighbours>
    return product(h, leave)  # <leave>


def loss_of(clean, noise, times):
    betas = tf.linspace(1e-3, 0.1, STEPS)  # <betas>
    kept = tf.gather(tf.math.cumprod(1.0 - betas), tf.cast(times, tf.int32))[:, None, None]  # <kept>
    noisy = tf.sqrt(kept) * clean + tf.sqrt(1.0 - kept) * noise  # <noisy>
    error = predicted(noisy, times) - noise  # <error>
    return tf.reduce_mean(tf.abs(error) + error**2.0)  # <loss>


def step(clean, noise, times):
    with tf.GradientTape() as tape:
        loss = loss_of(clean, noise, times)
    gradients = tape.gradient(loss, weights, unconnected_gradients="zero")  # <gradient>
    updates = []
    for each, average, gradient in zip(weights, averages, gradients):
        updates.append(each.assign_sub(0.02 * gradient))  # <update>
        with tf.control_dependencies(updates[-1:]):
            updates.append(average.assign(0.95 * average + 0.05 * each))  # <average>
    with tf.control_dependencies(updates):
        return tf.identity(loss)


def batch(number):
    part = slice(3 * number, 3 * number + 3)  # <part>
    times = np.array([3 + number, 9, 17 - number], "float32")  # <times>
    return signals[part], noises[part], times


modes.train(MODE, step, [batch(number) for number in range(2)])
