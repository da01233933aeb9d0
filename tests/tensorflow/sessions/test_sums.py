"""Sums of three or more: their order depends on other references to the operands, so reading the operands must not change the answer."""

# The programs of the cases are written as users write them, without types.
# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="no-untyped-def, untyped-decorator, misc"

from __future__ import annotations

import itertools

import numpy as np
import tensorflow as tf

from opdump.plan import KernelPattern
from tests.tensorflow.sessions.recording import recorded, same, v1

v1.disable_eager_execution()
v1.disable_control_flow_v2()
ROWS, WIDTH = 32, 12


def normalised(y):
    """A normalisation written by hand."""
    mean, variance = tf.nn.moments(y, [1], keepdims=True)
    return (y - mean) / tf.sqrt(variance + 1e-5)


def with_bypass(y, kernel):
    return tf.nn.relu(normalised(y) + y * 0.5 + tf.tanh(tf.matmul(y, kernel)))


def of_many(y, kernel):
    """Explicit sums, and sums that the runtime builds from several additions."""
    return tf.add_n([y, tf.sin(y), tf.matmul(y, kernel)]) + (tf.exp(-y * y) + tf.cos(y)) + tf.abs(y)


NETWORKS = {"normalised": lambda y, kernel: normalised(y), "with bypass": with_bypass, "of many": of_many}
OPTIMIZERS = {
    "gradient descent": lambda: v1.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: v1.train.MomentumOptimizer(0.05, 0.9),
    "Adam": lambda: v1.train.AdamOptimizer(0.01),
    "RMSProp": lambda: v1.train.RMSPropOptimizer(0.01),
}


def trained(network, optimizer, resource, graph=None, **config):
    """The losses of five steps, then the variables; in `graph`, or in a new graph."""
    random = np.random.default_rng(0)
    with (graph or tf.Graph()).as_default(), v1.variable_scope("net", use_resource=resource):
        x = v1.placeholder(tf.float32, [ROWS, WIDTH], "x")
        labels = v1.placeholder(tf.int32, [ROWS], "labels")
        kernels = [
            v1.get_variable(name, initializer=(random.normal(size=shape) * 0.3).astype(np.float32))
            for name, shape in (("k1", (WIDTH, WIDTH)), ("k2", (WIDTH, WIDTH)), ("out", (WIDTH, 3)))
        ]
        hidden = NETWORKS[network](tf.matmul(x, kernels[0]), kernels[1])
        scores = tf.matmul(NETWORKS[network](hidden, kernels[1]), kernels[2])
        cost = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=scores))
        loss = tf.add_n([cost, *(1e-3 * tf.nn.l2_loss(kernel) for kernel in kernels)])
        update = OPTIMIZERS[optimizer]().minimize(loss)
        feed = {x: random.normal(size=(ROWS, WIDTH)), labels: random.integers(0, 3, ROWS)}
        with v1.Session(config=v1.ConfigProto(**config)) as session:
            session.run(v1.global_variables_initializer())
            return [session.run([loss, update], feed)[0] for _ in range(5)], session.run(kernels)


def gaps(found, graph=None):
    """What should have been dumped but was not, with the reason. Given a graph, operators that nothing needs may be missing."""
    known = ("constant", "fed", "handle", "control flow")
    needs = None if graph is None else needed(graph)
    return {
        name: reason
        for name, reason in found.skips().items()
        if reason not in known and (reason != "not executed" or needs is None or name in needs)
    }


def needed(graph):
    """The operators on which a variable or the loss depends."""
    operations = graph.get_operations()
    waiting = [
        each for each in operations if each.type.startswith(("Assign", "Apply", "Resource")) or each.name == "net/AddN"
    ]
    assert any(each.name == "net/AddN" for each in waiting)
    found = set()
    while waiting:
        operation = waiting.pop()
        if operation.name not in found:
            found.add(operation.name)
            waiting += [tensor.op for tensor in operation.inputs]
    return found


def _compare(network, optimizer, resource, streams, **plan):
    plain = trained(network, optimizer, resource)
    assert same(plain, trained(network, optimizer, resource)), "the program itself is not the same twice"
    graph = tf.Graph()
    with recorded(streams=streams, **plan) as found:
        captured = trained(network, optimizer, resource, graph)
    assert same(plain, captured), (network, optimizer, resource, streams, plan)
    missing = gaps(found, graph)
    if resource:
        assert not missing, (missing, found.capture.notes)
    return found


def test_training_with_sums_is_the_same_bit_for_bit() -> None:
    for network, resource in itertools.product(NETWORKS, (True, False)):
        for optimizer in OPTIMIZERS:
            _compare(network, optimizer, resource, streams=False)


def test_training_with_sums_is_the_same_if_only_outputs_are_dumped() -> None:
    for network, resource in itertools.product(NETWORKS, (True, False)):
        _compare(network, "Adam", resource, streams=False, inputs=False)


def test_training_with_sums_is_the_same_if_tensors_are_streamed() -> None:
    for network, resource in itertools.product(NETWORKS, (True, False)):
        _compare(network, "Adam", resource, streams=True)
        _compare(network, "gradient descent", resource, streams=True, inputs=False)


def test_graphs_that_are_not_rewritten_are_recorded_whole() -> None:
    config = {"graph_options": v1.GraphOptions(rewrite_options={"disable_meta_optimizer": True})}
    for network in NETWORKS:
        plain = trained(network, "Adam", True, **config)
        with recorded() as found:
            captured = trained(network, "Adam", True, **config)
        assert same(plain, captured), network
        assert not gaps(found), gaps(found)


def test_dumping_any_subset_of_the_operands_does_not_change_the_sum() -> None:
    """Five operands, with every subset of them dumped."""
    values = np.random.default_rng(3).normal(size=3000).astype(np.float32)
    names = "abcde"

    def program():
        with tf.Graph().as_default():
            x = v1.placeholder(tf.float32, [3000], "x")
            made = [tf.exp(x, "a"), tf.sin(x * 3.0, "b"), tf.cos(x, "c"), tf.tanh(x * 7.0, "d"), tf.square(x, "e")]
            total = tf.identity(tf.add_n(made, "total") * 1.5, "result")
            with v1.Session() as session:
                return [session.run(total, {x: values}) for _ in range(2)]

    plain = program()
    for count in range(1, 6):
        for chosen in itertools.combinations(names, count):
            with recorded(selection="kernels", kernels=tuple(KernelPattern(each, "name") for each in chosen)) as found:
                captured = program()
            assert same(plain, captured), chosen
            for name, function in zip(names, (np.exp, None, np.cos, None, np.square), strict=True):
                if name in chosen and function is not None:
                    assert np.allclose(found.value(name), function(values), 1e-5), name


def looped(*, has_gradient):
    with tf.Graph().as_default():
        x = v1.placeholder(tf.float32, [4000], "x")

        def body(i, a):
            return i + 1, tf.tanh(tf.add_n([tf.exp(a, "first"), tf.sin(a, "second"), tf.cos(a, "third")], "sum"))

        _, result = v1.while_loop(lambda i, _: i < 5, body, [0, x])
        fetches = [result, tf.gradients(tf.reduce_sum(result), x)[0]] if has_gradient else result
        with v1.Session() as session:
            return [session.run(fetches, {x: np.linspace(-2, 2, 4000, dtype=np.float32)}) for _ in range(8)]


def test_a_summand_within_a_loop_is_computed_apart() -> None:
    """Watching holds a tensor for a while; the operand whose memory receives the sum is not watched, and is recomputed instead."""
    for has_gradient in (False, True):
        plain = looped(has_gradient=has_gradient)
        assert same(plain, looped(has_gradient=has_gradient)), "the program itself is not the same twice"
        with recorded() as found:
            captured = looped(has_gradient=has_gradient)
        assert same(plain, captured)
        summands = [found.values(f"while/{name}", 0) for name in ("first", "second", "third")]
        sums = found.values("while/sum", 0)
        assert [len(each) for each in (*summands, sums)] == [5] * 4
        for number, total in enumerate(sums):
            assert np.allclose(total, sum(each[number] for each in summands), 1e-5), number
        apart = {op.op_name for op in found.ops(step=0) if op.arguments.get("source") == "computed apart"}
        assert apart & {"while/first", "while/second", "while/third"}, apart
        assert not found.capture.notes, found.capture.notes
        assert set(gaps(found).values()) <= {"not executed"}, gaps(found)
