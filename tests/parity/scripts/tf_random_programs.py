"""Random programs, each run plain and under capture: the losses and variables of its steps must be the same, bit for bit.

usage: tf_random_programs.py session|function|"session of callbacks"|"function of callbacks" FIRST COUNT

Prints a line of JSON for each program: `same`; or `left out` if the program itself is not reproducible, has a sum whose order depends on
timing, or fails.
"""

# The programs are written as users write them, without types.
# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="no-untyped-def, untyped-decorator, misc"

from __future__ import annotations

import json
import random
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from opdump.adapters.tensorflow.graphs.library import ExecutedGraph
from opdump.adapters.tensorflow.graphs.operator_kinds import left_to_chance
from tests.tensorflow.functions.recording import recorded as recorded_functions
from tests.tensorflow.sessions.recording import recorded as recorded_sessions
from tests.tensorflow.sessions.recording import same

v1 = tf.compat.v1
N = 16
LOCK = threading.Lock()
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
    """A loss computed by 5 to 22 operators or layers."""
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
    """A loss computed by one to five layers, for a batch of any size; the weights are variables or constants."""

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
    """Values of two kernels, convolution filters, and a scale."""
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


def host(choice, counts, name, value):
    """A Python callback on a tensor, of a random kind and in a random place; its calls are counted."""
    factor = np.float32(choice.choice((0.5, 1.25, -0.75)))
    kind = choice.choice(("numpy", "stateless", "python", "old", "old stateless"))
    place = choice.choice(("here", "here", "branch", "loop", "function", "constant"))

    def call(array):
        with LOCK:
            counts[name] += 1
        return array * factor

    def called(a):
        options = {"stateful": False} if kind.endswith("stateless") else {}
        of_kind = {"numpy": tf.numpy_function, "python": tf.py_function, "stateless": tf.numpy_function}
        made = of_kind.get(kind, v1.py_func)(call, [a], tf.float32, **options)
        return tf.ensure_shape(made, a.shape)

    if place == "branch":
        return tf.cond(tf.reduce_sum(value) > 0.1, lambda: called(value), lambda: value * 0.3)
    if place == "loop":
        return tf.while_loop(lambda n, _: n < 2, lambda n, a: (n + 1, called(tf.tanh(a))), [0, value])[1]
    if place == "function":
        return tf.function(called)(value)
    if place == "constant":
        return value + called(tf.constant(np.full((N, N), 0.25, np.float32)))
    return called(value)


def batches(choice, numbers, counts):
    """A data set with a random pipeline, in order; its length does not depend on timing."""
    arrays = numbers.normal(size=(4, N, N)).astype(np.float32)

    def generated():
        for array in arrays:
            with LOCK:
                counts["generated"] += 1
            yield array

    if choice.random() < 0.4:
        data = tf.data.Dataset.from_generator(generated, output_signature=tf.TensorSpec([N, N], tf.float32))
    else:
        data = tf.data.Dataset.from_tensor_slices(arrays)
    for number in range(choice.randint(1, 4)):
        name = f"of data {number}"
        parallel = choice.choice((None, 2))
        kind = choice.choice(("map", "callback", "interleave", "filter", "flat map", "scan", "prefetch", "cache"))
        if kind == "map":
            unary = choice.choice(UNARY)
            data = data.map(lambda a, unary=unary: tf.ensure_shape(unary(a), [N, N]), num_parallel_calls=parallel)
        elif kind == "callback":
            state = choice.getstate()

            def mapped(a, state=state, name=name):
                return host(seeded(state), counts, name, a)

            data = data.map(mapped, num_parallel_calls=parallel)
        elif kind == "interleave":
            data = data.interleave(
                lambda a: tf.data.Dataset.from_tensors(a).map(tf.tanh), num_parallel_calls=parallel, deterministic=True
            )
        elif kind == "filter":
            data = data.filter(lambda a: tf.reduce_max(a) > -100.0)
        elif kind == "flat map":
            data = data.flat_map(lambda a: tf.data.Dataset.from_tensors(a * 0.5).repeat(2)).take(4)
        elif kind == "scan":
            data = data.scan(np.zeros((N, N), np.float32), lambda state, a: (state * 0.5 + a, state + a))
        else:
            data = data.prefetch(2) if kind == "prefetch" else data.cache()
    return data


def seeded(state):
    choice = random.Random()
    choice.setstate(state)
    return choice


def chain(choice, x, kernels):
    """A loss computed by 3 to 8 operators, each of which reads the one before, so no sum depends on timing."""
    made = x
    for number in range(choice.randint(3, 8)):
        other = choice.choice(kernels) if number in (1, 4) else None
        made = choice.choice(UNARY)(made) if other is None else choice.choice(BINARY)(made, other)
        made = tf.tanh(made) if choice.random() < 0.3 else made
    return tf.reduce_mean(tf.square(tf.tanh(made)))


def hosted_function(seed):
    """Trainings with callbacks, from data sets, in one or two threads."""
    counts: Counter[str] = Counter()
    found = {}

    def train(number):
        choice, numbers = random.Random(f"{seed} {number}"), np.random.default_rng([seed, number])
        variables = [tf.Variable(value) for value in initial(numbers)]
        data = batches(choice, numbers, counts)
        state = choice.getstate()

        @tf.function
        def step(x):
            drawn = seeded(state)
            with tf.GradientTape() as tape:
                x = host(drawn, counts, f"{number} before", x)
                loss = chain(drawn, x, variables[:2])
                loss = loss + tf.reduce_mean(host(drawn, counts, f"{number} beside", variables[0]))
            for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
                if gradient is not None:
                    variable.assign_sub(0.01 * gradient)
            return loss

        losses = [step(x).numpy() for x in data]
        total = data.reduce(np.float32(0), lambda total, a: total + tf.reduce_sum(tf.abs(a)))
        found[number] = losses, total.numpy(), [variable.numpy() for variable in variables]

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(train, range(random.Random(seed).choice((1, 2)))))
    return [found[number] for number in sorted(found)], str(sorted(counts.items()))


def hosted_session(seed):
    """A training with callbacks and batches from a data set."""
    counts: Counter[str] = Counter()
    choice, numbers = random.Random(f"{seed} session"), np.random.default_rng([seed, 7])
    with tf.Graph().as_default(), v1.variable_scope("net", use_resource=choice.random() < 0.6):
        iterator = v1.data.make_initializable_iterator(batches(choice, numbers, counts))
        x = tf.ensure_shape(iterator.get_next(), [N, N])
        x = host(choice, counts, "before", x)
        variables = [v1.get_variable(f"v{place}", initializer=each) for place, each in enumerate(initial(numbers))]
        loss = chain(choice, x, variables[:2])
        loss += tf.reduce_mean(host(choice, counts, "beside", variables[0] * 1.0))
        update = choice.choice(OPTIMIZERS)().minimize(loss)
        with v1.Session() as session:
            session.run([v1.global_variables_initializer(), iterator.initializer])
            losses = []
            with suppress(tf.errors.OutOfRangeError):
                while True:
                    losses.append(session.run([update, loss])[1])
            return losses, session.run(v1.global_variables()), str(sorted(counts.items()))


def captured_session(seed, program=through_a_session):
    """The answer under capture, and the sums whose order depends on timing."""
    choice = random.Random(f"how {seed}")
    with recorded_sessions(streams=choice.random() < 0.3, inputs=choice.random() < 0.6) as found:
        answer = program(seed)
    return answer, [note for note in found.capture.notes if "depends on timing" in note]


def captured_function(seed, program=through_a_function):
    with recorded_functions(steps="0-1000"):
        answer = program(seed)
    with context.collect_graphs(optimized=True) as graphs:
        program(seed)
    return answer, [name for graph in graphs for name in left_to_chance(ExecutedGraph([graph]))]


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
    if kind.startswith("session"):
        v1.disable_eager_execution()
        v1.disable_control_flow_v2()
    ways = {
        "session": (through_a_session, captured_session),
        "function": (through_a_function, captured_function),
        "session of callbacks": (hosted_session, partial(captured_session, program=hosted_session)),
        "function of callbacks": (hosted_function, partial(captured_function, program=hosted_function)),
    }
    for seed in range(first, first + count):
        print(json.dumps({"seed": seed, **outcome(*ways[kind], seed)}), flush=True)


if __name__ == "__main__":
    main()
