"""An input without a maker really is an input of the program: it was fed, is a number in the program, or was made by code that no adapter sees.

Mul_0.x = [1.0, 2.0]     the slot of the operator that reads it, and its value
"""

# The programs are written as users write them, without types.
# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="no-untyped-def, untyped-decorator, misc, no-any-return"

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import opdump

X = np.array([1.0, 2.0], np.float32)


def variables_given_as_tensors():
    gain, shift = tf.Variable([2.0, 3.0], name="gain"), tf.Variable([1.0, 1.0], name="shift")
    return tf.concat([gain * X, shift], 0)


def a_training_step():
    weight = tf.Variable([[2.0], [3.0]], name="weight")
    for _ in range(2):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.matmul(X[None], weight) ** 2.0)
        weight.assign_sub(0.1 * tape.gradient(loss, weight))


def views():
    x = tf.reshape(X, (2, 1))
    first, second = tf.split(tf.transpose(x), 2, axis=1)
    return tf.stack([first[0], second[0, :]]) - tf.expand_dims(x, 0)[0]


def a_function_of_another_ones_result():
    @tf.function
    def doubled(x):
        return x * 2.0

    @tf.function
    def negated(x):
        return -x

    return negated(doubled(tf.constant(X)))


def what_a_function_rewrites():
    @tf.function
    def step(x):
        return tf.nn.gelu(tf.identity(x) * 2.0 * 3.0 + (tf.range(2.0) + 1.0), approximate=True)

    return step(tf.constant(X))


def a_branch():
    @tf.function
    def step(x):
        y = tf.sin(x) if tf.reduce_sum(x) > 0.0 else tf.cos(x)
        return y + x

    return step(tf.constant(X))


def a_loop():
    @tf.function
    def step(x):
        for _ in tf.range(2):
            x = tf.tanh(x) * 2.0
        return tf.exp(x)

    return step(tf.constant(X))


def a_variable_of_a_function():
    total = tf.Variable([0.0, 0.0], name="total")

    @tf.function
    def step(x):
        total.assign_add(x)
        return total * 2.0

    for _ in range(2):
        step(tf.constant(X))


def code_that_no_adapter_sees():
    def computed(x):
        return np.cumsum(np.asarray(x))

    return tf.sqrt(tf.py_function(computed, [tf.negative(X)], tf.float32) ** 2.0)


def batches_of_a_data_set():
    for batch in tf.data.Dataset.from_tensor_slices(X).batch(1):
        tf.sin(batch)


def a_session():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, (2,), name="x")
        y = tf.identity(tf.exp(x) + x, name="y")
        session.run(y, {x: X})


INPUTS: dict[Callable[[], object], set[str]] = {
    variables_given_as_tensors: {
        "gain/AssignVariableOp_0.value = [2.0, 3.0]",
        "shift/AssignVariableOp_0-op1.value = [1.0, 1.0]",
        "Mul_0.y = [1.0, 2.0]",
        "ConcatV2_0.axis = 0",
    },
    a_training_step: {
        "weight/AssignVariableOp_0.value = [[2.0], [3.0]]",
        "MatMul_0.a = [[1.0, 2.0]]",
        "Pow_0.y = 2.0",
        "Sum_0.reduction_indices = [0, 1]",
        # The gradient of the loss, and what is known of shapes, is made by the tape.
        "Reshape_0.tensor = 1.0",
        "Reshape_0.shape = [1, 1]",
        "Tile_0.multiples = [1, 1]",
        "Mul_0.y = 2.0",
        "Sub_0.x = 2.0",
        "Sub_0.y = 1.0",
        "MatMul_1.a = [[1.0, 2.0]]",
        "Mul_2.x = 0.10000000149011612",
    },
    views: {
        "Reshape_0.tensor = [1.0, 2.0]",
        "Reshape_0.shape = [2, 1]",
        "Transpose_0.perm = [1, 0]",
        "Split_0.split_dim = 1",
        "strided_slice/StridedSlice_0.begin = [0]",
        "strided_slice/StridedSlice_0.end = [1]",
        "strided_slice/StridedSlice_0.strides = [1]",
        "strided_slice/StridedSlice_1.begin = [0, 0]",
        "strided_slice/StridedSlice_1.end = [1, 0]",
        "strided_slice/StridedSlice_1.strides = [1, 1]",
        "ExpandDims_0.dim = 0",
        "strided_slice/StridedSlice_2.begin = [0]",
        "strided_slice/StridedSlice_2.end = [1]",
        "strided_slice/StridedSlice_2.strides = [1]",
    },
    a_function_of_another_ones_result: {"mul.x = [1.0, 2.0]"},
    what_a_function_rewrites: {"Identity.input = [1.0, 2.0]"},
    a_branch: {"Sum.input = [1.0, 2.0]", "cond/Sin.x = [1.0, 2.0]", "add.y = [1.0, 2.0]"},
    a_loop: {
        "while/Less.x = 0",
        "while/Less.y = 2",
        "while/Tanh.x = [1.0, 2.0]",
        "while/add-op1.x = 0",
        "while/add-op1.y = 1",
        "while/add_1.x = 0",
    },
    a_variable_of_a_function: {"total/AssignVariableOp_0.value = [0.0, 0.0]", "AssignAddVariableOp.value = [1.0, 2.0]"},
    code_that_no_adapter_sees: {"Neg_0.x = [1.0, 2.0]", "Pow_0.y = 2.0"},
    batches_of_a_data_set: {
        "TensorSliceDataset_0.components_0 = [1.0, 2.0]",
        "BatchDatasetV2_0.batch_size = 1",
        "BatchDatasetV2_0.drop_remainder = False",
    },
    a_session: {"Exp.x = [1.0, 2.0]", "add.y = [1.0, 2.0]"},
}
GAPS: dict[Callable[[], object], str] = {
    a_branch: "the result of a branch names the call, not the operator of the branch",
    a_loop: "what a loop carries into its next iteration has no source",
}


def inputs_of(dump: Path) -> Iterator[str]:
    """The inputs that no recorded operator, variable or constant is the source of, as `operator.argument = values`."""
    executions = [*opdump.open(dump).ops(include_skipped=True)]
    outside = {each.op.op_name for each in executions if each.op.skip in ("fed", "control flow")}
    for each in executions:
        for slot, record in () if each.op.skip else each.by_slot()[0].items():
            if not record.source or record.source.rpartition(":")[0] in outside:
                yield f"{each.op.op_name}.{record.argument or slot} = {record.numpy().tolist()}"


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(
            each, marks=pytest.mark.xfail(reason=GAPS[each], strict=True) if each in GAPS else (), id=each.__name__
        )
        for each in INPUTS
    ],
)
def test_what_has_no_maker_is_an_input_of_the_program(tmp_path: Path, program: Callable[[], object]) -> None:
    with opdump.capture(path=str(tmp_path), saved_data="full"):
        program()
    assert set(inputs_of(tmp_path)) == INPUTS[program]
