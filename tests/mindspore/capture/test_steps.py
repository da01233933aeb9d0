"""The step of each operator, in programs of every kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mindspore as ms
import pytest
from mindspore import Tensor, nn, ops

from opdump.adapters.base import DumpComplete
from tests.mindspore.capture.recording import recorded, tensor

X = tensor(2, 3)
LABELS = Tensor([0, 2], ms.int32)


class Network(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Dense(3, 3)

    def construct(self, x: Tensor) -> Tensor:
        return self.dense(x)


class Program:
    """A network, and how it is trained."""

    def __init__(self) -> None:
        self.network = Network()
        self.other = Network()
        self.loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
        self.weights = self.network.trainable_params()
        self.gradient = ms.value_and_grad(lambda x, labels: self.loss(self.network(x), labels), None, self.weights)

    def optimizer(self) -> nn.Optimizer:
        return nn.SGD(self.weights, 0.1)


def plain(program: Program) -> None:
    optimizer = program.optimizer()
    for _ in range(3):
        _, gradients = program.gradient(X, LABELS)
        optimizer(gradients)


def accumulation(program: Program) -> None:
    optimizer = program.optimizer()
    for _ in range(2):
        _, gradients = program.gradient(X, LABELS)
        for _ in range(2):
            _, more = program.gradient(X, LABELS)
            gradients = tuple(one + other for one, other in zip(gradients, more, strict=True))
        optimizer(gradients)


def train_one_step(program: Program) -> None:
    cell = nn.TrainOneStepCell(nn.WithLossCell(program.network, program.loss), program.optimizer())
    for _ in range(3):
        cell(X, LABELS)


def two_optimizers(program: Program) -> None:
    first, second = program.optimizer(), program.optimizer()
    for _ in range(2):
        _, gradients = program.gradient(X, LABELS)
        first(gradients)
        second(gradients)


def inference(program: Program) -> None:
    for _ in range(3):
        ops.softmax(program.network(X))


def two_networks(program: Program) -> None:
    for _ in range(3):
        program.other(program.network(X))


def evaluation_first(program: Program) -> None:
    for _ in range(2):
        program.network(X)
    plain(program)


def evaluation_between(program: Program) -> None:
    optimizer = program.optimizer()
    for _ in range(2):
        _, gradients = program.gradient(X, LABELS)
        optimizer(gradients)
        program.network(X)
        program.network(X)


def teacher(program: Program) -> None:
    optimizer = program.optimizer()
    for _ in range(2):
        program.other(X)
        _, gradients = program.gradient(X, LABELS)
        optimizer(gradients)


def update_by_hand(program: Program) -> None:
    for _ in range(3):
        _, gradients = program.gradient(X, LABELS)
        for weight, gradient in zip(program.weights, gradients, strict=True):
            ops.assign(weight, weight - gradient)


def no_cells(program: Program) -> None:
    for _ in range(3):
        ops.sin(X)


COUNTED: list[tuple[Callable[[Program], None], str, list[int]]] = [
    (plain, "MatMul", [2, 2, 2]),
    (accumulation, "MatMul", [6, 6]),
    (train_one_step, "MatMul", [2, 2, 2]),
    (two_optimizers, "MatMul", [2, 2]),
    (inference, "Softmax", [1, 1, 1]),
    (two_networks, "MatMul", [2, 2, 2]),
    (evaluation_first, "MatMul", [1, 1, 2, 2, 2]),
    (evaluation_between, "MatMul", [2, 4, 2]),
    (teacher, "MatMul", [3, 3]),
    (update_by_hand, "Assign", [2, 2, 2]),
    (no_cells, "Sin", [3]),
]


@pytest.mark.parametrize(("program", "op_type", "counts"), COUNTED, ids=lambda value: getattr(value, "__name__", ""))
def test_operators_are_counted_in_their_step(
    program: Callable[[Program], None], op_type: str, counts: list[int]
) -> None:
    with recorded() as recording:
        program(Program())
    found = recording.counts_by_step(op_type)
    assert found == dict(enumerate(counts))


def test_a_step_by_hand_is_the_only_one() -> None:
    program = Program()
    with recorded(manual=True) as recording:
        for _ in range(2):
            plain(program)
            recording.clock.manual_step()
    assert recording.counts_by_step("MatMul") == {0: 6, 1: 6}


def test_only_the_wanted_steps_are_recorded() -> None:
    with recorded(steps="1") as recording:
        plain(Program())
    assert {op.step for op in recording.writer.ops} == {1}
    assert recording.clock.step == 2


def test_the_program_ends_after_the_last_wanted_step() -> None:
    with recorded(steps="0", stop=True) as recording, pytest.raises(DumpComplete):
        plain(Program())
    assert recording.counts_by_step("MatMul") == {0: 2}


def test_names_are_the_same_in_each_step_and_each_part_of_an_accumulation() -> None:
    with recorded() as recording:
        accumulation(Program())
    names = {op.op_name for op in recording.ops(op_type="MatMul", phase="forward")}
    assert names == {"Default/dense-Dense/MatMul-op0"}
    assert [op.occurrence for op in recording.ops(op_type="MatMul", phase="forward")] == [0, 1, 2, 0, 1, 2]


def test_calls_are_as_they_were_after_the_capture() -> None:
    def state() -> list[Any]:
        return [
            nn.Cell.__call__,
            nn.Optimizer.__init__,
            ms.utils.MsDispatchMode.__enter__,
            ms.ops.composite.base._pynative_forward_run,
        ]

    before = state()
    with recorded():
        assert state() != before
    assert state() == before
