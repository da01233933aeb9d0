"""The step of each operator, in programs of every kind, and what a configuration selects of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from opdump.adapters.base import DumpComplete
from opdump.adapters.program_marks import ProgramMarks
from opdump.plan.selection import KernelPattern
from opdump.recorder import Recorder
from opdump.records import OpRecord
from tests.mindspore.capture.recording import Recording, recorded, tensor

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


class Average(nn.Cell):
    def __init__(self, weights: list[ms.Parameter]) -> None:
        super().__init__()
        self.weights = ms.ParameterTuple(weights)
        self.averages = self.weights.clone("average", "same")

    def construct(self) -> None:
        for average, weight in zip(self.averages, self.weights, strict=True):
            ops.assign(average, average * 0.5 + weight * 0.5)


def average_after(program: Program) -> None:
    optimizer, average = program.optimizer(), Average(program.weights)
    for _ in range(3):
        _, gradients = program.gradient(X, LABELS)
        optimizer(gradients)
        average()


def average_of_given(program: Program) -> None:
    optimizer = program.optimizer()
    bound = nn.ParameterUpdate(program.weights[1])
    for _ in range(3):
        _, gradients = program.gradient(X, LABELS)
        optimizer(gradients)
        bound(program.weights[1])


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
    (average_after, "MatMul", [2, 2, 2]),
    (average_of_given, "MatMul", [2, 2, 2]),
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
            Tensor.__getitem__,
            nn.Optimizer.__init__,
            ms.utils.MsDispatchMode.__enter__,
            ms.ops.composite.base._pynative_forward_run,
        ]

    before = state()
    with recorded():
        assert state() != before
    assert state() == before


class Block(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Dense(3, 3)
        self.act = nn.ReLU()

    def construct(self, x: Tensor) -> Tensor:
        return self.act(self.dense(x))


class TwoLayers(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.CellList([Block(), Block()])

    def construct(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x.sum()


NETWORK = TwoLayers()
GRADIENT = ms.value_and_grad(NETWORK, None, NETWORK.trainable_params())
SECOND = "Default/blocks-CellList/1-Block/dense-Dense"


def names(recording: Recording) -> list[str]:
    return [op.op_name for op in recording.ops()]


def test_files_that_have_only_the_last_component_have_a_number_for_each_operator() -> None:
    with recorded(layout="mindspore-2.3") as recording:
        for _ in range(2):
            GRADIENT(X)
    first, second = ([op.op_name.rpartition("/")[2] for op in recording.ops(step=step)] for step in (0, 1))
    assert first == second
    assert len(set(first)) == len(first) > 10
    assert [name for name in first if name.startswith("MatMul")][:2] == ["MatMul-op0", "MatMul-op3"]


def test_operators_are_named_by_the_cells_that_they_run_in() -> None:
    with recorded() as recording:
        GRADIENT(X)
    assert names(recording)[:6] == [
        "Default/blocks-CellList/0-Block/dense-Dense/MatMul-op0",
        "Default/blocks-CellList/0-Block/dense-Dense/BiasAdd-op0",
        "Default/blocks-CellList/0-Block/act-ReLU/ReLU-op0",
        f"{SECOND}/MatMul-op0",
        f"{SECOND}/BiasAdd-op0",
        "Default/blocks-CellList/1-Block/act-ReLU/ReLU-op0",
    ]


def test_scopes_without_names_of_classes() -> None:
    with recorded(class_names_in_scope=False) as recording:
        NETWORK(X)
    assert names(recording)[0] == "Default/blocks/0/dense/MatMul-op0"


def test_each_operator_of_the_backward_names_its_forward_operator_and_its_line() -> None:
    with recorded() as recording:
        GRADIENT(X)
    backward = {op.op_name: op for op in recording.ops(phase="backward")}
    for kind in ("Grad_MatMul/MatMul-op0", "Grad_BiasAdd/BiasAddGrad-op0"):
        found = backward[f"Gradients/{SECOND}/{kind}"]
        (forward,) = recording.ops(op_name=found.forward_op)
        assert forward.op_name.startswith(SECOND)
        assert found.line == forward.line
    assert backward[f"Gradients/{SECOND}/Grad_BiasAdd/BiasAddGrad-op0"].arguments == {"seen": "through its gradients"}


def test_every_input_of_a_training_step_names_the_operator_that_made_it() -> None:
    with recorded() as recording:
        GRADIENT(X)
    made = {f"{op.op_name}:{tensor.slot}" for op in recording.ops() for tensor in recording.tensors(op, "output")}
    parameters = {f"Parameter.{parameter.name}" for parameter in NETWORK.get_parameters()}
    unknown = []
    for op in recording.ops():
        for source in recording.sources(op):
            assert source == "" or source in made | parameters
            unknown += [op.op_name] * (source == "")
    # The batch, read by the network and by the gradient of the first weight.
    assert unknown == [
        "Default/blocks-CellList/0-Block/dense-Dense/MatMul-op0",
        "Gradients/Default/blocks-CellList/0-Block/dense-Dense/Grad_MatMul/MatMul-op0",
    ]


def test_gradients_that_hooks_show_are_those_of_the_program() -> None:
    with recorded() as recording:
        _, gradients = GRADIENT(X)
    found = {op.op_name: recording.array(op) for op in recording.ops(phase="backward")}
    by_name = dict(zip([weight.name for weight in NETWORK.trainable_params()], gradients, strict=True))
    bias = by_name["blocks.1.dense.bias"]
    assert np.array_equal(found[f"Gradients/{SECOND}/Grad_BiasAdd/BiasAddGrad-op0"], bias.asnumpy())


@pytest.mark.parametrize(
    ("kernels", "types"),
    [
        (("BiasAdd",), ["BiasAdd", "BiasAdd", "BiasAddGrad", "BiasAddGrad"]),
        (("BiasAddGrad",), ["BiasAddGrad", "BiasAddGrad"]),
        ((f'name-regex("{SECOND}/MatMul.*")',), ["MatMul"]),
        ((f"{SECOND}/MatMul-op0",), ["MatMul"]),
    ],
)
def test_kernels_choose_operators(kernels: tuple[str, ...], types: list[str]) -> None:
    with recorded(selection="kernels", kernels=tuple(map(KernelPattern.parse, kernels))) as recording:
        GRADIENT(X)
    assert recording.types() == types
    assert recording.recorder.unmatched_kernels() == []


def test_marks_choose_what_runs_in_their_cells_and_its_backward() -> None:
    marks = ProgramMarks()
    marks.set(NETWORK.blocks[1], enabled=True)
    marks.set(NETWORK.blocks[1].act, enabled=False)
    with recorded(selection="marked", marks=marks) as recording:
        GRADIENT(X)
    assert recording.types() == ["MatMul", "BiasAdd", "BiasAddGrad", "MatMul", "MatMul"]
    assert all(SECOND in name for name in names(recording))


def test_marks_of_a_list_of_cells_a_class_and_a_function_count() -> None:
    def count(target: Any) -> int:
        marks = ProgramMarks()
        marks.set(target, enabled=True)
        with recorded(selection="marked", marks=marks) as recording:
            NETWORK(X)
        return len(recording.ops())

    assert count(NETWORK.blocks) == 6
    assert count(nn.ReLU) == 2
    assert count(TwoLayers.construct) == 7


def test_a_mark_in_which_nothing_ran_is_reported() -> None:
    marks = ProgramMarks()
    other = TwoLayers()
    marks.set(other, enabled=True)
    with recorded(selection="marked", marks=marks) as recording:
        NETWORK(X)
    assert recording.ops() == []
    assert recording.recorder.warnings == ["set_dump: no operator ran in a module TwoLayers, which is marked"]


@pytest.mark.parametrize(("fields", "sides"), [({"outputs": False}, {"input"}), ({"inputs": False}, {"output"})])
def test_input_output_chooses_sides(fields: dict[str, Any], sides: set[str]) -> None:
    with recorded(**fields) as recording:
        GRADIENT(X)
    assert {tensor.io for tensor in recording.writer.tensors} == sides


def test_statistics_are_those_of_numpy() -> None:
    categories = ("max", "min", "avg", "count", "nan count", "positive inf count", "l2norm", "md5")
    with recorded(saved_data="statistic", statistic_category=categories) as recording:
        result = ops.exp(X * 100)
    (record,) = recording.tensors(recording.op("Exp"), "output")
    values = result.asnumpy().astype(np.float64)
    assert record.payload is None
    assert record.statistics["count"] == 6
    assert record.statistics["positive inf count"] == np.isinf(values).sum()
    assert record.statistics["min"] == values.min()
    (read,) = recording.tensors(recording.op("Exp"), "input")
    assert read.statistics["avg"] == pytest.approx(float((X.asnumpy() * 100).astype(np.float64).mean()), rel=1e-6)


def test_overflow_mode_writes_only_the_operator_that_overflows() -> None:
    with recorded(captures="overflow") as recording:
        ops.sin(X)
        ops.exp(X * 1000)
    assert recording.types() == ["Exp"]


def test_a_defect_of_the_capture_is_reported_and_the_program_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    from opdump.adapters.mindspore.pynative import recording as module

    def defect(_: Any) -> Any:
        raise ZeroDivisionError("a defect")

    with recorded(on_error="continue") as recording:
        monkeypatch.setattr(module, "host_tensor", defect)
        found = ops.sin(X)
    assert np.array_equal(found.asnumpy(), ops.sin(X).asnumpy())
    assert recording.recorder.failure is None
    assert "ZeroDivisionError: a defect" in recording.recorder.lost.in_words()[0]


def test_a_forked_process_records_nothing_and_leaves_the_capture_to_its_parent() -> None:
    plain = nn.Cell.__call__
    with recorded() as recording:
        ops.sin(X)
        assert nn.Cell.__call__ is not plain
        child = os.fork()
        if child == 0:
            os._exit(0 if nn.Cell.__call__ is plain else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        ops.cos(X)
    assert recording.types() == ["Sin", "Cos"]


def test_a_release_without_dispatch_modes_is_reported_once_and_its_steps_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(ms.utils, "MsDispatchMode")
    with recorded() as recording:
        for _ in range(2):
            GRADIENT(X)
    (told,) = recording.recorder.warnings
    assert "has no MsDispatchMode" in told
    assert recording.ops() == []
    assert recording.clock.step == 1


def test_a_defect_at_one_operator_loses_that_operator_and_not_the_dump(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Recorder.after_op

    def failing(recorder: Recorder, op: OpRecord, outputs: Any) -> None:
        assert op.op_type != "ReLU", "literal"
        real(recorder, op, outputs)

    expected = float(GRADIENT(X)[0])
    monkeypatch.setattr(Recorder, "after_op", failing)
    with recorded() as recording:
        assert float(GRADIENT(X)[0]) == expected
    assert recording.recorder.failure is None
    assert f"{SECOND}/BiasAdd-op0" in names(recording)
    (told,) = recording.recorder.lost.in_words()
    assert "ReLU" in told
    assert "AssertionError: literal" in told
