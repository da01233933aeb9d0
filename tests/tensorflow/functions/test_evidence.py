"""What a recorded operator tells: its makers, its variables, its phase, and that it gives its outputs when it runs again."""

# The programs are written as users write them, without types.
# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="no-untyped-def, untyped-decorator, misc, no-any-return"

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import opdump
from opdump.adapters.replay import AS_RECORDED, required_replayer
from opdump.comparison.execution import recorded_inputs, recorded_values
from opdump.comparison.nodes import Node
from opdump.comparison.trace import Trace, read_traces
from opdump.errors import CannotReplayError
from tests.replaying.written_scripts import check_scripts

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(6, 8)).astype(np.float32)
W = RANDOM.normal(size=(8, 8)).astype(np.float32) / 3
MODES: dict[str, Any] = {"eager": lambda function: function, "function": tf.function}


def training(mode, *, epsilon=1e-5, rate=0.1, decay=0.01, kept=True):
    """Two steps of training of a network whose products the runtime rewrites."""

    def program():
        first, second = tf.Variable(W, name="first"), tf.Variable(W.T, name="second")

        def step(x):
            with tf.GradientTape() as tape:
                centred = x - tf.reduce_mean(x, -1, keepdims=True)
                hidden = centred * tf.math.rsqrt(tf.reduce_mean(tf.square(centred), -1, keepdims=True) + epsilon)
                mixed = tf.nn.softmax(tf.matmul(hidden @ first, hidden, transpose_b=True) / 3.0) @ hidden
                mixed = mixed + x if kept else mixed
                loss = tf.reduce_sum(tf.nn.gelu(mixed @ second, approximate=True)) / 12.0
            gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, [first, second]), 1.0)
            for variable, gradient in zip((first, second), gradients, strict=True):
                variable.assign_sub(rate * (gradient + decay * variable))
            return loss

        run = MODES[mode](step)
        return [float(run(tf.constant(X + 0.1 * number))) for number in range(2)]

    return program


def traces(path: Path, program: Any) -> list[Trace]:
    with opdump.capture(path=str(path), saved_data="full"):
        program()
    dump = opdump.open(path)
    return [trace for step in dump.steps for trace in read_traces(dump, step)]


def of_type(trace: Trace, *types: str) -> list[Node]:
    return [node for node in trace.nodes if node.op.op_type in types]


@pytest.mark.parametrize("mode", MODES)
def test_every_operator_gives_its_outputs_when_it_runs_again(tmp_path: Path, mode: str) -> None:
    ran = 0
    for trace in traces(tmp_path, training(mode)):
        for node in trace.nodes:
            if node.is_added:
                continue
            replayer, values, outputs = required_replayer(node.op), recorded_inputs(node), recorded_values(node.outputs)
            again = replayer.run(node.op, node.inputs, values, dtype=AS_RECORDED).outputs
            wide = replayer.run(node.op, node.inputs, values)
            for slot, value in outputs.items():
                # What the runtime rewrote differs by rounding, never by more.
                least = 0 if not node.is_rewritten else 2e-6 * np.abs(value).max()
                assert np.abs(again[slot].astype(value.dtype) - value).max(initial=0) <= least, node.op.op_name
                if value.dtype.kind == "f" and node.op.op_type != "Sum":  # a gradient may cancel to nothing
                    assert np.allclose(wide.outputs[slot], value, rtol=1e-4, atol=1e-5 * np.abs(value).max())
            assert wide.dtype == "float64", node.op.op_name
            ran += 1
    assert ran > 150


def test_a_script_runs_an_operator_without_opdump(tmp_path: Path) -> None:
    first, _ = traces(tmp_path / "dump", training("function"))
    written: list[Path] = []
    for op in {node.op.op_type: node.op for node in first.nodes if not node.is_added}.values():
        emit = partial(opdump.replay, tmp_path / "dump", op.op_name, occurrence=op.occurrence)
        if "Variable" in op.op_type:
            with pytest.raises(CannotReplayError, match="reads or writes a variable"):
                emit(emit=tmp_path / "variable.py")
        else:
            written.append(tmp_path / f"repro_{len(written)}.py")
            emit(emit=written[-1])
    assert len(written) > 20
    check_scripts(written)


@pytest.mark.parametrize("mode", MODES)
def test_the_maker_of_an_input_made_the_bits_that_it_reads(tmp_path: Path, mode: str) -> None:
    made = 0
    for trace in traces(tmp_path, training(mode)):
        for node in trace.nodes:
            for slot, (maker, output) in node.makers.items():
                read, written = node.inputs[slot], trace.nodes[maker].outputs[output]
                assert read.numpy().tobytes() == written.numpy().tobytes(), (node.op.op_name, slot)
                made += 1
    assert made > 150


@pytest.mark.parametrize("mode", MODES)
def test_a_variable_is_known_by_its_name_until_it_is_written(tmp_path: Path, mode: str) -> None:
    first, second = traces(tmp_path, training(mode))
    for trace in (first, second):
        reads = Counter(node.inputs[0].source for node in of_type(trace, "ReadVariableOp", "AssignSubVariableOp"))
        assert set(reads) == {"Parameter.first", "Parameter.second"}
        for update in of_type(trace, "AssignSubVariableOp"):
            before, delta, after = update.inputs[0].numpy(), update.inputs[1].numpy(), update.outputs[0].numpy()
            assert np.allclose(before - delta, after, rtol=1e-6)
            assert update.inputs[0].memory == update.outputs[0].memory
    left = {node.inputs[0].source: node.outputs[0].numpy() for node in of_type(first, "AssignSubVariableOp")}
    for node in of_type(second, "ReadVariableOp"):
        assert node.inputs[0].numpy().tobytes() == left[node.inputs[0].source].tobytes()


@pytest.mark.parametrize("mode", MODES)
def test_an_operator_has_the_phase_in_which_it_runs(tmp_path: Path, mode: str) -> None:
    _, trace = traces(tmp_path, training(mode))
    phases = {(node.op.op_type, node.op.phase) for node in trace.nodes}
    assert {phase for op_type, phase in phases if op_type == "AssignSubVariableOp"} == {"optimizer"}
    assert {phase for op_type, phase in phases if op_type in ("TanhGrad", "RsqrtGrad")} <= {"backward"}
    assert {phase for op_type, phase in phases if op_type in ("Softmax", "Tanh")} == {"forward"}
    assert {phase for op_type, phase in phases if op_type == "L2Loss"} == {"optimizer"}


def test_a_tensor_that_one_function_returns_and_another_reads_has_its_maker(tmp_path: Path) -> None:
    @tf.function
    def forward(x):
        return tf.tanh(x @ W)

    @tf.function
    def twice(x):
        return x + x

    with opdump.capture(path=str(tmp_path), saved_data="full"):
        twice(tf.square(forward(tf.constant(X))))
    inputs = {each.op.op_type: each.inputs for each in opdump.open(tmp_path).ops()}
    assert inputs["Square"][0].source == "Identity:0"
    assert inputs["AddV2"][0].source == "Square_0:0"


FAULTS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "epsilon": ({"epsilon": 1e-3}, {"AddV2"}),
    "rate": ({"rate": 0.2}, {"Mul"}),
    "decay": ({"decay": 0.1}, {"Mul"}),
    "sum": ({"kept": False}, {"AddV2", "MatMul", "BatchMatMulV2"}),
}


@pytest.mark.parametrize(
    ("fault", "first", "second", "saved_data"),
    [
        ("epsilon", "eager", "eager", "statistic"),
        ("rate", "function", "function", "full"),
        ("decay", "eager", "eager", "full"),
        ("sum", "eager", "function", "full"),
    ],
)
def test_the_operator_of_a_fault_is_named(tmp_path: Path, fault: str, first: str, second: str, saved_data: Any) -> None:
    settings, types = FAULTS[fault]
    for name, program in (("a", training(first)), ("b", training(second, **settings))):
        with opdump.capture(path=str(tmp_path / name), saved_data=saved_data):
            program()
    result = opdump.compare(tmp_path / "a", tmp_path / "b")
    assert result.verdict == "divergent"
    assert result.introduced[0].op.op_type in types


@pytest.mark.parametrize("saved_data", ["full", "statistic"])
def test_one_mode_is_no_fault_against_another(tmp_path: Path, saved_data: Any) -> None:
    for mode in MODES:
        with opdump.capture(path=str(tmp_path / mode), saved_data=saved_data):
            training(mode)()
    assert opdump.compare(tmp_path / "eager", tmp_path / "function").verdict == "benign"


def with_momentum(mode, *, kept=True):
    """Two steps of an optimizer that reads a state after it wrote it."""

    def program():
        weight, momentum = tf.Variable(W, name="weight"), tf.Variable(tf.zeros(W.shape), name="momentum")

        def step(x):
            with tf.GradientTape() as tape:
                error = tf.matmul(x, weight) - x
                loss = tf.reduce_mean(tf.abs(error) + error**2.0 if kept else error**2.0)
            written = momentum.assign(0.9 * momentum + tape.gradient(loss, weight))
            with tf.control_dependencies([written]):
                weight.assign_sub(0.1 * momentum)
            return loss

        run = MODES[mode](step)
        return [float(run(tf.constant(X + 0.1 * number))) for number in range(2)]

    return program


@pytest.mark.parametrize("mode", MODES)
def test_a_variable_is_read_after_the_operator_that_wrote_it(tmp_path: Path, mode: str) -> None:
    for trace in traces(tmp_path, with_momentum(mode)):
        reads = [
            node for node in trace.nodes if node.inputs and node.inputs[min(node.inputs)].source == "Parameter.momentum"
        ]
        makers = [trace.nodes[node.makers[0][0]].op if 0 in node.makers else None for node in reads]
        assert [maker and (maker.op_type, maker.phase) for maker in makers[-1:]] == [("AssignVariableOp", "optimizer")]
        assert reads[-1].op.phase == "optimizer"
        assert reads[0].op.phase == "forward"


@pytest.mark.parametrize("mode", MODES)
def test_a_missing_part_of_a_loss_is_named_before_its_gradient(tmp_path: Path, mode: str) -> None:
    for name, kept in (("a", True), ("b", False)):
        with opdump.capture(path=str(tmp_path / name), saved_data="full"):
            with_momentum(mode, kept=kept)()
    result = opdump.compare(tmp_path / "a", tmp_path / "b")
    assert result.verdict == "divergent"
    assert result.introduced[0].op.phase == "forward"
    assert result.introduced[0].op.op_type in ("Abs", "AddV2", "Mean")
