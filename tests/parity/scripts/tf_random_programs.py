"""Random programs, each run plainly and under capture: the losses and variables of its steps have to be the same, bit for bit.

usage: tf_random_programs.py session|function FIRST COUNT

Prints a line of JSON for each program: `same`; or `left out`, where the program itself does not give the same numbers each time, leaves
a sum to the timing, or fails.
"""

# The programs are written as users write them, without types.
# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="no-untyped-def, untyped-decorator, misc"

from __future__ import annotations

import json
import random
import sys

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from opdump.adapters.tensorflow.sums import Sums
from tests.parity.scripts.tf_functions_recording import recorded as recorded_functions
from tests.parity.scripts.tf_sessions_harness import recorded as recorded_sessions
from tests.parity.scripts.tf_sessions_harness import same

v1 = tf.compat.v1
N = 16
UNARY = (
    *(tf.sin, tf.cos, tf.tanh, tf.sigmoid, tf.square, tf.abs, tf.identity, tf.transpose, tf.negative),
    *(tf.nn.relu, tf.nn.elu, tf.nn.softplus, tf.nn.softmax, tf.nn.leaky_relu),
    lambda a: tf.exp(-tf.abs(a)),
    lambda a: tf.sqrt(tf.abs(a) + 0.1),
    lambda a: tf.math.rsqrt(tf.abs(a) + 0.1),
    lambda a: tf.math.log(tf.abs(a) + 1.0),
    lambda a: tf.pow(tf.abs(a) + 0.1, 0.5),
    lambda a: a * 1.7,
    lambda a: a * 0.3 + 0.1,
    lambda a: a * tf.sigmoid(a),
    lambda a: tf.nn.gelu(a, approximate=True),
    lambda a: tf.reshape(tf.reshape(a, [-1]), [N, N]),
    lambda a: a - tf.reduce_mean(a, 1, keepdims=True),
    lambda a: a / tf.sqrt(tf.reduce_mean(tf.square(a), 0, keepdims=True) + 1e-3),
    lambda a: tf.concat([a[:4], a[4:]], 0),
    lambda a: tf.stop_gradient(a) + a,
    lambda a: tf.reverse(a, [0]),
    lambda a: tf.cumsum(a, 1),
    lambda a: tf.clip_by_value(a, -1.0, 1.0),
    lambda a: tf.where(a > 0, a, a * 0.1),
)
BINARY = (
    *(tf.add, tf.subtract, tf.multiply, tf.maximum, tf.matmul, tf.math.squared_difference),
    lambda a, b: tf.matmul(a, b, transpose_b=True),
    lambda a, b: a / (tf.abs(b) + 1.0),
    lambda a, b: a / tf.sqrt(tf.abs(b) + 0.2),
)
OPTIMIZERS = (
    lambda: v1.train.GradientDescentOptimizer(0.01),
    lambda: v1.train.AdamOptimizer(0.01),
    lambda: v1.train.MomentumOptimizer(0.01, 0.9),
    lambda: v1.train.RMSPropOptimizer(0.01),
)


def network(choice, x, kernels, filters, scale):
    """A loss of 5 to 22 operators or layers."""
    images = [N, 2, 2, 4]

    def convolved(a):
        return tf.reshape(tf.nn.conv2d(tf.reshape(a, images), filters, 1, "SAME"), [N, N])

    def layer(a):
        bias = tf.reshape(choice.choice(kernels), [-1])[:N]
        activation = choice.choice((tf.nn.relu, tf.tanh, tf.nn.elu, tf.identity))
        return activation(tf.nn.bias_add(tf.matmul(a, choice.choice(kernels)), bias))

    def normalised(a):
        return tf.reshape(v1.nn.fused_batch_norm(tf.reshape(a, images), scale, scale * 0.5)[0], [N, N])

    def summed(_):
        return tf.add_n([choice.choice(made) for _ in range(choice.randint(2, 5))])

    made = [x, *kernels]

    def unary(a):
        return choice.choice(UNARY)(a)

    def binary(a):
        return choice.choice(BINARY)(a, choice.choice(made))

    kinds = (unary, binary, summed, convolved, layer, normalised)
    for _ in range(choice.randint(5, 22)):
        (kind,) = choice.choices(kinds, (40, 28, 12, 6, 10, 4))
        result = kind(choice.choice(made[-5:] if choice.random() < 0.7 else made))
        made.append(tf.tanh(result) if choice.random() < 0.3 else result)
    last = made[-choice.randint(1, 4) :]
    return tf.add_n([tf.reduce_mean(tf.square(tf.tanh(each))) for each in last])


def layers(choice, numbers, x, width):
    """A loss of one to five layers, behind a batch of any size; its weights are trained or stay."""

    def weight(*shape):
        value = (numbers.normal(size=shape) * 0.5).astype(np.float32)
        stays = choice.random() < 0.3
        return tf.constant(value) if stays else v1.get_variable(f"w{len(v1.global_variables())}", initializer=value)

    def dense(a, size, units):
        return tf.matmul(a, weight(size, units))

    def convolved(a, size, units):
        spread = tf.reshape(tf.concat([a] * 4, 1), [-1, 2, 2, size])
        kernel = weight(choice.choice((1, 2, 3)), choice.choice((1, 3)), size, units)
        found = tf.nn.conv2d(spread, kernel, 1, "SAME")
        return found[:, choice.randrange(2), 0] if choice.random() < 0.5 else tf.reduce_sum(found, [1, 2])

    for _ in range(choice.randint(1, 5)):
        units = choice.choice((1, 1, 3, 16, 70, 200))
        x = choice.choice((dense, dense, convolved))(x, width, units)
        bias, activation = weight(units), choice.choice((tf.nn.relu, tf.nn.relu6, tf.tanh, tf.nn.elu, tf.identity))
        x = activation(tf.nn.bias_add(x, bias) if choice.random() < 0.6 else x + bias)
        width = units
    return tf.reduce_mean(tf.square(x - 0.3))


def initial(random_numbers):
    """Values of two kernels, filters of a convolution, a scale."""
    shapes = ((N, N), (N, N), (3, 3, 4, 4))
    return [
        *((random_numbers.normal(size=shape) * 0.3).astype(np.float32) for shape in shapes),
        np.linspace(0.5, 1.5, 4, dtype=np.float32),
    ]


def through_a_session(seed):
    choice, numbers = random.Random(seed), np.random.default_rng(seed)
    with tf.Graph().as_default(), v1.variable_scope("net", use_resource=choice.random() < 0.6):
        if choice.random() < 0.5:
            width = choice.choice((5, 70, 200))
            x = v1.placeholder(tf.float32, [None, width], "x")
            feed = {x: numbers.normal(size=(choice.choice((1, 2, 37)), width))}
            loss = layers(choice, numbers, x, width)
        else:
            x = v1.placeholder(tf.float32, [N, N], "x")
            feed = {x: numbers.normal(size=(N, N))}
            variables = [v1.get_variable(f"v{place}", initializer=each) for place, each in enumerate(initial(numbers))]
            loss = network(choice, x, variables[:2], *variables[2:])
        update = choice.choice(OPTIMIZERS)().minimize(loss)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            return [session.run([update, loss], feed)[1] for _ in range(4)], session.run(v1.global_variables())


def through_a_function(seed):
    choice, numbers = random.Random(seed), np.random.default_rng(seed)
    variables = [tf.Variable(value) for value in initial(numbers)]
    is_nested = choice.random() < 0.5
    state = choice.getstate()

    @tf.function
    def forward(x):
        choice.setstate(state)
        return network(choice, x, variables[:2], *variables[2:])

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = forward(x) if is_nested else forward.python_function(x)
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            if gradient is not None:
                variable.assign_sub(0.01 * gradient)
        return loss

    x = tf.constant(numbers.normal(size=(N, N)).astype(np.float32))
    return [step(x).numpy() for _ in range(3)], [variable.numpy() for variable in variables]


def captured_session(seed):
    """The answer under capture, and the sums that are left to chance."""
    choice = random.Random(f"how {seed}")
    with recorded_sessions(streams=choice.random() < 0.3, inputs=choice.random() < 0.6) as found:
        answer = through_a_session(seed)
    return answer, [note for note in found.capture.notes if "the timing decides" in note]


def captured_function(seed):
    with recorded_functions(steps="0-1000"):
        answer = through_a_function(seed)
    with context.collect_graphs(optimized=True) as graphs:
        through_a_function(seed)
    chance: list[str] = []
    for graph in graphs:
        held = [text for node in graph.node if node.op == "_Retval" for text in node.input if not text.startswith("^")]
        chance += Sums({node.name: node for node in graph.node}, held).left_to_chance
    return answer, chance


def outcome(run, captured, seed):
    try:
        plain = run(seed)
        again = all(same(plain, run(seed)) for _ in range(2))
    except (
        tf.errors.UnimplementedError,
        ValueError,
    ) as error:  # fusions that TensorFlow lacks; a loss without variables
        return {"left out": str(error)[-120:]}
    if not again:
        return {"left out": "differs from run to run"}
    answer, chance = captured(seed)
    return {"left out": f"left to chance: {chance}"} if chance else {"same": same(plain, answer)}


def main():
    kind, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    if kind == "session":
        v1.disable_eager_execution()
        v1.disable_control_flow_v2()
    ways = {"session": (through_a_session, captured_session), "function": (through_a_function, captured_function)}
    for seed in range(first, first + count):
        print(json.dumps({"seed": seed, **outcome(*ways[kind], seed)}), flush=True)


if __name__ == "__main__":
    main()
