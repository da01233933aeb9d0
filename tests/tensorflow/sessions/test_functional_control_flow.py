"""What a capture of sessions writes for functions in graphs (control flow 2, tf.function, Defun), compared with numpy and with plain runs."""

# The programs of the cases are written as users write them, without types.
# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="no-untyped-def, untyped-decorator, misc"

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.tensorflow.sessions.both_ways import X, both, close, x_fed
from tests.tensorflow.sessions.recording import recorded, v1

v1.disable_eager_execution()
W = (np.random.default_rng(1).normal(size=(8, 8)) * 0.3).astype(np.float32)


@pytest.fixture(autouse=True)
def _control_flow_2():
    v1.enable_control_flow_v2()
    yield
    v1.disable_control_flow_v2()


def weight():
    return v1.get_variable("w", initializer=W)


def each_close(seen, wanted) -> None:
    assert len(seen) == len(wanted), (len(seen), len(wanted))
    for number, (value, other) in enumerate(zip(seen, wanted, strict=True)):
        assert np.allclose(value, other, 1e-4, 1e-5), number


def test_branches_and_loops_are_recorded() -> None:
    def build():
        x, feed = x_fed()
        y = v1.cond(tf.reduce_sum(x) > -1e6, lambda: tf.sin(x), lambda: tf.exp(x))
        z = v1.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, tf.cos(a)), [0, y])[1]
        return tf.reduce_sum(z, name="total"), feed

    found, _ = both(build)
    skips = found.skips()
    assert skips["cond"] == skips["while"] == "control flow", skips
    close(found, "cond/then/Sin", np.sin(X))
    close(found, "cond/then/Sin", X, io="input")
    assert skips["cond/else/Exp"] == "not executed", skips
    cosines = [np.cos(np.sin(X))]
    cosines += [np.cos(cosines[0]), np.cos(np.cos(cosines[0]))]
    each_close(found.values("while/body/Cos"), cosines)
    each_close(found.values("while/body/Cos", io="input"), [np.sin(X), *cosines[:2]])
    assert [op.occurrence for op in found.ops("while/body/Cos", 0)] == [0, 1, 2]
    each_close(found.values("while/cond/Less"), [True, True, True, False])
    close(found, "total", cosines[2], io="input")
    assert "not observed" not in skips.values(), skips


def test_a_layer_in_a_loop_is_recorded_with_its_gradient() -> None:
    """Fused operators of the body are computed apart, iteration by iteration."""

    def build():
        x, feed = x_fed()
        w = weight()
        h = v1.while_loop(lambda i, _: i < 3, lambda i, h: (i + 1, tf.nn.relu(tf.matmul(h, w) + 0.1)), [0, x])[1]
        loss = tf.reduce_mean(h * h)
        return [v1.train.GradientDescentOptimizer(0.1).minimize(loss), loss], feed

    found, _ = both(build)
    products, sums, layers, h = [], [], [], X
    for _ in range(3):
        products.append(h @ W)
        sums.append(products[-1] + 0.1)
        h = np.maximum(sums[-1], 0)
        layers.append(h)
    each_close(found.values("while/body/MatMul", 0), products)
    each_close(found.values("while/body/add_1", 0) or found.values("while/body/add_1_0", 0), sums)
    each_close(found.values("while/body/Relu", 0) or found.values("while/body/Relu_0", 0), layers)
    gradient = 2 * layers[2] / layers[2].size
    wanted = []
    for trip in (2, 1, 0):
        gradient = gradient * (sums[trip] > 0)
        wanted.append(gradient)
        gradient = gradient @ W.T
    grads = [op.op_name for op in found.ops(step=0) if op.op_type == "ReluGrad"]
    assert len(grads) == 3, grads
    assert len(set(grads)) == 1, grads
    each_close(found.values(grads[0], 0), wanted)
    within = [
        op
        for op in found.ops(step=0)
        if op.arguments.get("source") == "computed apart" and op.op_name.startswith("while/body/")
    ]
    assert all(op.arguments.get("inside", "").startswith("while/body/") for op in within), within


@pytest.mark.parametrize("index", [0, 1, 2])
def test_the_case_that_is_taken_is_recorded(index) -> None:
    def build():
        x, feed = x_fed()
        which = v1.placeholder(tf.int32, [], "which")
        y = tf.switch_case(which, [lambda: tf.tanh(x), lambda: tf.exp(x), lambda: tf.square(x)], name="pick")
        return tf.reduce_sum(y, name="total"), {**feed, which: index}

    found, _ = both(build)
    functions = [np.tanh, np.exp, np.square]
    kinds = ["Tanh", "Exp", "Square"]
    ran = {op.op_type: op.op_name for op in found.ops(step=0) if "branch" in op.op_name}
    assert set(ran) == {kinds[index]}, ran
    close(found, ran[kinds[index]], functions[index](X))
    assert {
        name.rpartition("/")[2]: reason for name, reason in found.skips().items() if name.rpartition("/")[2] in kinds
    } == {kind: "not executed" for kind in kinds if kind != kinds[index]}


def test_functions_are_recorded_call_by_call() -> None:
    @tf.function
    def double(x):
        return tf.sin(x) * 2.0

    def build():
        x, feed = x_fed()
        return tf.reduce_sum(double(double(x)), name="total"), feed

    found, _ = both(build)
    calls = [name for name, reason in found.skips().items() if reason == "control flow" and "Partitioned" in name]
    assert len(calls) == 2, found.skips()
    close(found, f"{calls[0]}/Sin", np.sin(X))
    close(found, f"{calls[1]}/Sin", np.sin(np.sin(X) * 2))
    close(found, "total", np.sin(np.sin(X) * 2) * 2, io="input")
    assert "not observed" not in found.skips().values(), found.skips()


def test_nested_functions_branches_and_loops_are_recorded() -> None:
    """A function in a branch in a loop in a loop."""

    def build():
        x, feed = x_fed()
        w = weight()

        @tf.function
        def layer(h):
            return tf.tanh(tf.matmul(h, w))

        def inner(i, h):
            return i + 1, v1.cond(tf.equal(i, 0), lambda: layer(h), lambda: tf.negative(h))

        def outer(j, h):
            return j + 1, tf.while_loop(lambda i, _: i < 2, inner, [0, h], name="inner")[1]

        return tf.reduce_sum(tf.while_loop(lambda j, _: j < 2, outer, [0, x], name="outer")[1], name="total"), feed

    found, _ = both(build)
    tanh = [np.tanh(X @ W)]
    tanh.append(np.tanh(-tanh[0] @ W))
    named = {op.op_type: op.op_name for op in found.ops(step=0)}
    assert named["Tanh"].startswith("outer/body/inner_0/body/cond/then/"), named
    each_close(found.values(named["Tanh"], 0), tanh)
    each_close(found.values(named["MatMul"], 0), [X @ W, -tanh[0] @ W])
    each_close(found.values(named["Neg"], 0), [-tanh[0], -tanh[1]])
    assert [op.occurrence for op in found.ops(named["Neg"], 0)] == [0, 1]


def test_a_mapped_function_is_recorded_element_by_element() -> None:
    def build():
        x, feed = x_fed()
        return tf.reduce_sum(tf.map_fn(lambda row: tf.cumsum(row) * 2.0, x), name="total"), feed

    found, _ = both(build)
    named = {op.op_type: op.op_name for op in found.ops(step=0)}
    each_close(found.values(named["Cumsum"], 0), list(np.cumsum(X, 1)))
    close(found, "total", (np.cumsum(X, 1) * 2).sum(), tolerance=1e-4)


def test_a_function_that_the_runtime_calls_is_computed_apart() -> None:
    """A function that is not inlined runs where opdump cannot observe it."""
    from tensorflow.python.framework import function

    def build():
        x, feed = x_fed()

        @function.Defun(tf.float32, noinline=True)
        def apart(a):
            return tf.sin(a) * 3.0

        y = apart(x, name="call")
        y.set_shape([None, 8])
        return tf.reduce_sum(y, name="total"), feed

    found, _ = both(build)
    close(found, "call/Sin", np.sin(X))
    close(found, "call", np.sin(X) * 3)
    (op,) = found.ops("call/Sin", 0)
    assert (op.arguments["source"], op.arguments["inside"]) == ("computed apart", "call"), op.arguments


@pytest.mark.parametrize("updated", ["never", "inside", "before"])
def test_a_variable_of_such_a_function_is_read_before_the_run(updated) -> None:
    def build():
        x, feed = x_fed()
        w = weight()

        @tf.function(experimental_attributes={"_noinline": True})
        def layer(h):
            if updated == "inside":
                w.assign(w * 0.5)
            return tf.sin(tf.matmul(h, w))

        with tf.control_dependencies([w.assign(w * 0.5)] if updated == "before" else []):
            y = layer(x)
        return tf.reduce_sum(y, name="total"), feed

    found, _ = both(build)
    call = "StatefulPartitionedCall"
    if updated == "never":
        (op,) = found.ops(f"{call}/MatMul/ReadVariableOp", 0)
        assert op.arguments["source"] == "read before the run", op.arguments
        close(found, f"{call}/MatMul/ReadVariableOp", W)
        close(found, f"{call}/Sin", np.sin(X @ W))
        assert not found.capture.notes, found.capture.notes
    else:
        assert found.skips()[f"{call}/MatMul/ReadVariableOp"] == "not observed", found.skips()
        assert any("are not dumped, because" in note for note in found.capture.notes), found.capture.notes


def trained_by_a_call(*, updates):
    """A layer in a function with a gradient; with `updates`, the function writes its weight before it reads it."""

    def build():
        x, feed = x_fed()
        w = weight()

        @tf.function
        def layer(h):
            if updates:
                w.assign(w * 0.5)
            return tf.nn.softmax(tf.matmul(h, w))

        given = layer(x) if updates else layer(x) * layer(tf.nn.elu(x))
        loss = tf.reduce_sum(tf.square(given), name="loss")
        return [v1.train.GradientDescentOptimizer(0.1).minimize(loss), loss], feed

    return both(build)


def test_a_function_that_reads_a_variable_is_computed_apart() -> None:
    found, _ = trained_by_a_call(updates=False)
    call = next(op.op_name for op in found.ops(step=0) if op.op_name.endswith("/Softmax"))
    close(found, call.replace("Softmax", "MatMul"), X @ W)
    close(found, call.replace("Softmax", "MatMul/ReadVariableOp"), W)
    assert "not observed" not in found.skips().values(), found.skips()
    assert not found.capture.notes, found.capture.notes


def test_a_function_that_writes_a_variable_is_reported() -> None:
    found, _ = trained_by_a_call(updates=True)
    read = [
        value
        for op in found.ops(step=0)
        if op.op_name.endswith("Call/MatMul")
        for value in found.values(op.op_name, 0, "input", 1)
    ]
    assert all(np.allclose(value, W * 0.5) for value in read), read
    assert "not observed" in found.skips().values(), found.skips()
    assert any("are not dumped, because" in note for note in found.capture.notes), found.capture.notes


def test_the_lines_are_those_of_the_program() -> None:
    with recorded() as found, tf.Graph().as_default():
        x = v1.placeholder(tf.float32, [3], "x")
        y = tf.while_loop(lambda i, _: i < 2, lambda i, a: (i + 1, tf.sinh(a)), [0, x])[1]  # the line
        with v1.Session() as session:
            session.run(tf.reduce_sum(y), {x: [0.1, 0.2, 0.3]})
    (line,) = {op.stack[0].code for op in found.ops("while/body/Sinh")}
    assert line.endswith("# the line"), line
