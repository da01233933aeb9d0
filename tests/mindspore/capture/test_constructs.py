"""The table of docs/mindspore.md: each construct returns the same answer as without capture, and its operators are captured as documented."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops
from mindspore.utils import MsDispatchMode

from tests.mindspore.capture.recording import recorded, same_bits, tensor

X = tensor(2, 3)
IMAGE = tensor(2, 1, 8, 8)


class Block(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Dense(3, 3)

    def construct(self, x: Tensor) -> Tensor:
        return ops.relu(self.dense(x))


class Squared(nn.Cell):
    """A Cell with a custom gradient."""

    def construct(self, x: Tensor) -> Tensor:
        return x * x

    def bprop(self, x: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor, ...]:
        return (ops.cos(x) * dout,)


BLOCK, SQUARED, RECOMPUTED = Block(), Squared(), Block()
RECOMPUTED.recompute()


def gradient(function: Callable[..., Any]) -> Callable[[], Any]:
    return lambda: ms.value_and_grad(function)(X)


def in_place() -> Tensor:
    value = X * 2
    value.add_(Tensor(1.0))
    return value


def written_by_index() -> Tensor:
    value = X * 2
    value[0] = 7
    return value + 1


CONSTRUCTS: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "arithmetic": (lambda: X * 2 + X, ["Muls", "AddExt"]),
    "a view is none": (lambda: ops.relu(X.view(3, 2)), ["ReLU"]),
    "an index gives a view": (lambda: ops.relu(X[0]), ["ReLU"]),
    "a slice gives a view": (lambda: ops.relu(X[:, 1:2]), ["ReLU"]),
    "a transposed tensor": (lambda: ops.exp(X.T), ["Exp"]),
    "in place": (in_place, ["Muls", "AddExt"]),
    "written by index": (written_by_index, ["Muls", "AddExt"]),
    "an index by a tensor": (lambda: X[Tensor([1, 0])], ["Gather"]),
    "a list of tensors": (lambda: ops.cat([X, X]), ["Concat"]),
    "several results": (lambda: ops.topk(X, 2), ["TopK"]),
    "numbers by the type": (lambda: X.astype(ms.float16), ["Cast"]),
    "bfloat16": (lambda: X.astype(ms.bfloat16) * 2, ["Cast", "Muls"]),
    "complex numbers": (lambda: ops.add(X.astype(ms.complex64), X.astype(ms.complex64)), ["Cast", "Cast", "Add"]),
    "a Cell": (lambda: BLOCK(X), ["MatMul", "BiasAdd", "ReLU"]),
    "a compiled function": (lambda: ms.jit(ops.sin)(X), []),
    "gradient": (gradient(lambda x: ops.exp(x).sum()), ["Exp", "SumExt", "Ones", "Tile", "Mul"]),
    "gradient of a Cell": (
        gradient(lambda x: BLOCK(x).sum()),
        ["MatMul", "BiasAdd", "ReLU", "SumExt", "Ones", "Tile", "ReluGrad", "MatMul"],
    ),
    "a gradient of its own": (gradient(lambda x: SQUARED(x).sum()), ["Mul", "SumExt", "Ones", "Tile", "Cos", "Mul"]),
    "gradient of a gradient": (
        lambda: ms.grad(ms.grad(lambda x: (x * x).sum()))(X),
        ["Mul", "SumExt", "Ones", "Tile", "Mul", "Mul", "Add", "Ones", "Mul", "Mul", "Add"],
    ),
    "recomputation": (
        gradient(lambda x: RECOMPUTED(x).sum()),
        [
            *("MatMul", "BiasAdd", "ReLU", "SumExt", "Ones", "Tile", "StopGradient", "MatMul", "BiasAdd", "ReLU"),
            *("ReluGrad", "BiasAddGrad", "MatMul", "MatMul"),
        ],
    ),
}


@pytest.mark.parametrize("construct", CONSTRUCTS)
def test_a_construct_gives_the_same_bits_and_leaves_its_operators(construct: str) -> None:
    program, wanted = CONSTRUCTS[construct]
    recording = same_bits(program)
    assert recording.types() == wanted


def test_a_view_is_listed_with_its_reason_and_its_reader_names_the_operator_that_wrote_the_memory() -> None:
    recording = same_bits(lambda: ops.relu((X * 2).reshape(3, 2)))
    (view,) = [op for op in recording.writer.ops if op.skip]
    assert (view.op_type, view.skip) == ("Reshape", "view")
    assert recording.sources(recording.op("ReLU")) == ["Default/Muls-op0:0"]


def test_an_input_is_taken_before_an_operator_writes_into_it() -> None:
    recording = same_bits(in_place)
    add = recording.op("AddExt")
    assert np.array_equal(recording.array(add, "input"), X.asnumpy() * 2)
    assert np.array_equal(recording.array(add), X.asnumpy() * 2 + 1)


def test_elements_of_a_transposed_tensor_stand_in_its_own_order() -> None:
    recording = same_bits(lambda: ops.matmul(X, X.T))
    multiply = recording.op("MatMulExt")
    assert np.array_equal(recording.array(multiply, "input", 1), X.asnumpy().T)


def test_bfloat16_is_widened_and_keeps_its_name() -> None:
    recording = same_bits(lambda: X.astype(ms.bfloat16) * 2)
    (result,) = recording.tensors(recording.op("Muls"), "output")
    rounded = (X.asnumpy().view(np.uint32) + 0x7FFF + ((X.asnumpy().view(np.uint32) >> 16) & 1)) & 0xFFFF0000
    assert result.dtype == "bfloat16"
    assert np.array_equal(recording.array(result.op), rounded.view(np.float32) * 2)


def test_complex_numbers_have_elements() -> None:
    recording = same_bits(lambda: ops.add(X.astype(ms.complex64), X.astype(ms.complex64)))
    assert np.array_equal(recording.array(recording.op("Add")), (X.asnumpy() * 2).astype(np.complex64))


def test_recomputed_operators_have_the_names_of_the_first_time() -> None:
    recording = same_bits(gradient(lambda x: RECOMPUTED(x).sum()))
    again = recording.ops(phase="recomputation")
    first = [op for op in recording.ops(phase="forward") if op.op_type in ("MatMul", "BiasAdd", "ReLU")]
    assert [op.op_name for op in again] == [op.op_name for op in first]
    assert {op.occurrence for op in again} == {1}


def test_operators_of_threads_are_recorded() -> None:
    def work() -> Tensor:
        return ops.tanh(X)

    def program() -> list[Tensor]:
        found: list[Tensor] = []
        thread = threading.Thread(target=lambda: found.append(work()))
        thread.start()
        thread.join()
        with ThreadPoolExecutor(1) as pool:
            return [*found, pool.submit(work).result(), ops.sin(X)]

    recording = same_bits(program)
    assert recording.types() == ["Tanh", "Tanh", "Sin"]


class Doubling(MsDispatchMode):
    """A mode of the program that changes the results of operators."""

    def __ms_dispatch__(self, func: Any, args: tuple[Any, ...], kwargs: Any = None) -> Any:
        return func(*args) if func.name == "Muls" else func(*args) * 2


def test_modes_of_the_program_do_as_they_did() -> None:
    def program() -> list[Tensor]:
        with Doubling():
            inside = ops.sin(X)
        return [inside, ops.sin(X)]

    recording = same_bits(program)
    assert recording.types() == ["Sin", "Sin"]
    assert np.array_equal(recording.array(recording.ops()[0]), ops.sin(X).asnumpy())


def test_a_mode_that_was_entered_before_the_capture_ends_within_it() -> None:
    mode = Doubling()
    mode.__enter__()
    with recorded() as recording:
        first = ops.sin(X)
        mode.__exit__(None, None, None)
        second = ops.sin(X)
    third = ops.sin(X)
    assert np.array_equal(first.asnumpy(), 2 * second.asnumpy())
    assert np.array_equal(second.asnumpy(), third.asnumpy())
    assert "Sin" in recording.types()


def test_a_mode_that_is_entered_within_the_capture_goes_on_after_it() -> None:
    mode = Doubling()
    with recorded():
        mode.__enter__()
    doubled = ops.sin(X)
    mode.__exit__(None, None, None)
    assert np.array_equal(doubled.asnumpy(), 2 * ops.sin(X).asnumpy())


def test_a_failing_operator_raises_its_own_error_and_the_capture_goes_on() -> None:
    with pytest.raises(RuntimeError, match="MatMul") as plain:
        ops.matmul(X, X).asnumpy()
    with recorded() as recording:
        with pytest.raises(RuntimeError, match="MatMul") as captured:
            ops.matmul(X, X).asnumpy()
        ops.sin(X)
    assert str(captured.value) == str(plain.value)
    assert recording.types()[-1] == "Sin"
    assert recording.recorder.failure is None


def test_exception_mode_records_the_inputs_of_the_operator_that_fails() -> None:
    with recorded(captures="exception") as recording:
        ops.sin(X)
        with pytest.raises(RuntimeError, match="MatMul"):
            ops.matmul(X, X).asnumpy()
    (failed,) = recording.ops()
    assert failed.op_type.startswith("MatMul")
    assert np.array_equal(recording.array(failed, "input"), X.asnumpy())


def test_operators_that_no_gradient_goes_through_hide_none_of_the_others() -> None:
    """Their autograd nodes are freed at once, and later nodes reuse their addresses."""
    generator, critic = Block(), Block()

    def loss(x: Tensor) -> Tensor:
        return critic(x).sum() + critic(ops.stop_gradient(generator(x))).sum()

    recording = same_bits(lambda: ms.grad(loss, None, critic.trainable_params())(X))
    backward = recording.ops(phase="backward")
    assert recording.counts(phase="backward")["BiasAddGrad"] == 2
    assert {op.op_type for op in backward if not op.forward_op} == {"Ones", "Add"}
