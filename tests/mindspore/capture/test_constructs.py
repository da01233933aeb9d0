"""The table of docs/mindspore.md: each construct gives the plain answer, and what is captured of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mindspore as ms
import pytest
from mindspore import Tensor, nn, ops

from tests.mindspore.capture.recording import same_bits, tensor

X = tensor(2, 3)
IMAGE = tensor(2, 1, 8, 8)


class Block(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Dense(3, 3)

    def construct(self, x: Tensor) -> Tensor:
        return ops.relu(self.dense(x))


class Squared(nn.Cell):
    """A Cell with a gradient of its own."""

    def construct(self, x: Tensor) -> Tensor:
        return x * x

    def bprop(self, x: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor, ...]:
        return (ops.cos(x) * dout,)


BLOCK, SQUARED = Block(), Squared()
BLOCK_RECOMPUTED = Block()
BLOCK_RECOMPUTED.recompute()


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
    "several results": (lambda: ops.topk(X, 2), ["TopkExt"]),
    "numbers by the type": (lambda: X.astype(ms.float16), ["Cast"]),
    "bfloat16": (lambda: X.astype(ms.bfloat16) * 2, ["Cast", "Muls"]),
    "complex numbers": (lambda: ops.add(X.astype(ms.complex64), X.astype(ms.complex64)), ["Cast", "Cast", "Add"]),
    "a Cell": (lambda: BLOCK(X), ["MatMul", "BiasAdd", "ReLU"]),
    "a compiled function": (lambda: ms.jit(ops.sin)(X), []),
    "gradient": (gradient(lambda x: ops.exp(x).sum()), ["Exp", "SumExt", "Ones", "BroadcastTo", "Mul"]),
    "gradient of a Cell": (
        gradient(lambda x: BLOCK(x).sum()),
        ["MatMul", "BiasAdd", "ReLU", "SumExt", "Ones", "BroadcastTo", "ReluGrad", "MatMul"],
    ),
    "a gradient of its own": (gradient(lambda x: SQUARED(x).sum()), ["Mul", "SumExt", "Ones", "Cos", "Mul"]),
    "gradient of a gradient": (lambda: ms.grad(ms.grad(lambda x: (x * x * x).sum()))(X), ["Mul", "Mul"]),
}


@pytest.mark.parametrize("construct", CONSTRUCTS)
def test_a_construct_gives_the_same_bits_and_leaves_its_operators(construct: str) -> None:
    program, wanted = CONSTRUCTS[construct]
    recording = same_bits(program)
    assert recording.types()[: len(wanted)] == wanted, recording.types()
