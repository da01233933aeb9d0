"""Exception mode: the operator that failed, its inputs, and the runtime's own error."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from opdump.adapters.host import NumpyReader
from opdump.adapters.onnxruntime.session import OnnxSession
from opdump.plan import DumpPlan, StepSet
from opdump.recorder import FailureRecorder, LiveTensor
from opdump.records import OpRecord
from opdump.testing import CollectingWriter
from tests.onnx.recording import FLOAT, INT64, model_of, numbers, plain_run


class ListeningRecorder(FailureRecorder):
    """Also keeps the failures that an adapter reported."""

    def __init__(self, plan: DumpPlan) -> None:
        self.filed = CollectingWriter()
        super().__init__(plan, self.filed, NumpyReader.of_plan(plan))
        self.failed: list[tuple[OpRecord, BaseException, list[LiveTensor]]] = []

    def failed_op(
        self, op: OpRecord, error: BaseException, inputs: Iterable[LiveTensor], opened: OpRecord | None = None
    ) -> None:
        given = list(inputs)
        self.failed.append((op, error, given))
        super().failed_op(op, error, given, opened)


def failing_run(model: onnx.ModelProto, feeds: dict[str, Any], **plan: Any) -> tuple[ListeningRecorder, OnnxSession]:
    """Run `model` in exception mode; its error must equal that of a plain run."""
    settings = DumpPlan(path=Path("dump"), captures="exception", **plan)
    recorder = ListeningRecorder(settings)
    session = OnnxSession(model, recorder=recorder, plan=settings, model_id=1)
    with pytest.raises(Exception) as plain:  # noqa: PT011  the runtime decides which error it raises
        plain_run(model.SerializeToString(), feeds)
    with pytest.raises(type(plain.value)) as found:
        session.run(None, feeds)
    assert str(found.value) == str(plain.value)
    return recorder, session


def gathers(first: str, second: str) -> onnx.ModelProto:
    """Two operators of the same type; the second gets the indices that are fed."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="relu"),
        helper.make_node("Gather", ["a", "good"], ["b"], name=first),
        helper.make_node("Gather", ["b", "i"], ["c"], name=second),
        helper.make_node("Neg", ["c"], ["y"], name="neg"),
    ]
    return model_of(
        nodes, {"x": (FLOAT, ["n"]), "i": (INT64, ["m"])}, {"y": (FLOAT, None)}, {"good": np.array([0, 1, 2], np.int64)}
    )


BAD: dict[str, Any] = {"x": np.array([1, -2, 3, 4], np.float32), "i": np.array([1, 9], np.int64)}


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [("one", "two", "two"), ("", "", "Gather_2"), ("Gather_2", "", "Gather_2_")],
)
def test_the_failing_operator_is_found_whatever_it_is_called(first: str, second: str, expected: str) -> None:
    recorder, session = failing_run(gathers(first, second), BAD)
    ((op, error, inputs),) = recorder.failed
    assert (op.op_name, op.op_type, op.step, op.order) == (expected, "Gather", 0, 2)
    assert "out of data bounds" in str(error)
    assert [(slot, argument, source) for slot, argument, _, source, _ in inputs] == [
        (0, "data", f"{first or 'Gather_1'}:0"),
        (1, "indices", "i:0"),
    ]
    found = {record.slot: record.payload.to_host() for record in recorder.filed.tensors if record.payload}
    np.testing.assert_array_equal(found[0], np.array([1, 0, 3], np.float32))
    np.testing.assert_array_equal(found[1], [1, 9])
    assert session.notes == []


def test_shapes_that_do_not_match_are_found() -> None:
    nodes = [
        helper.make_node("Exp", ["x"], ["a"], name="exp"),
        helper.make_node("MatMul", ["a", "z"], ["y"], name="matmul"),
    ]
    model = model_of(nodes, {"x": (FLOAT, ["a", "b"]), "z": (FLOAT, ["c", "d"])}, {"y": (FLOAT, None)})
    recorder, _ = failing_run(model, {"x": numbers(2, 3), "z": numbers(4, 2)})
    ((op, _, inputs),) = recorder.failed
    assert op.op_name == "matmul"
    assert [tensor.shape for _, _, tensor, _, _ in inputs] == [(2, 3), (4, 2)]


def test_an_operator_that_fails_within_a_function_is_the_function() -> None:
    model = model_of(
        [
            helper.make_node("Abs", ["x"], ["a"], name="abs"),
            helper.make_node("Pick", ["a", "i"], ["b"], name="pick", domain="own"),
            helper.make_node("Neg", ["b"], ["y"], name="neg"),
        ],
        {"x": (FLOAT, ["n"]), "i": (INT64, ["m"])},
        {"y": (FLOAT, None)},
    )
    model.opset_import.append(helper.make_opsetid("own", 1))
    body = [helper.make_node("Gather", ["data", "place"], ["picked"])]
    model.functions.append(
        helper.make_function("own", "Pick", ["data", "place"], ["picked"], body, model.opset_import[:1])
    )
    recorder, _ = failing_run(model, BAD)
    ((op, _, inputs),) = recorder.failed
    assert op.op_name == "pick"
    assert [argument for _, argument, _, _, _ in inputs] == ["data", "place"]


def test_an_operator_that_fails_within_a_loop_is_the_loop() -> None:
    loop = loop_of([helper.make_node("Gather", ["x", "i"], ["q"], name="inner")])
    model = model_of([loop], {"x": (FLOAT, ["n"]), "i": (INT64, ["m"]), "trips": (INT64, [])}, {"y": (FLOAT, None)})
    recorder, _ = failing_run(model, {**BAD, "trips": np.array(2, np.int64)})
    ((op, error, inputs),) = recorder.failed
    assert op.op_name == "loop"
    assert "inner" in str(error)
    assert [(slot, argument) for slot, argument, _, _, _ in inputs] == [(0, "M")]


def loop_of(body: list[onnx.NodeProto]) -> onnx.NodeProto:
    graph = helper.make_graph(
        [*body, helper.make_node("Identity", ["go"], ["on"], name="condition")],
        "body",
        [
            helper.make_tensor_value_info("trip", INT64, []),
            helper.make_tensor_value_info("go", onnx.TensorProto.BOOL, []),
        ],
        [
            helper.make_tensor_value_info("on", onnx.TensorProto.BOOL, []),
            helper.make_tensor_value_info("q", FLOAT, None),
        ],
    )
    return helper.make_node("Loop", ["trips", ""], ["y"], name="loop", body=graph)


def test_what_was_fed_wrongly_is_no_failure_of_an_operator() -> None:
    recorder, session = failing_run(gathers("one", "two"), {**BAD, "x": np.zeros((2, 2), np.float32)})
    assert recorder.failed == []
    assert "outside of every operator" in session.notes[0]


def test_a_run_that_succeeds_or_is_not_wanted_leaves_nothing() -> None:
    plan = DumpPlan(path=Path("dump"), captures="exception", steps=StepSet.of(0))
    recorder = ListeningRecorder(plan)
    session = OnnxSession(gathers("one", "two"), recorder=recorder, plan=plan, model_id=1)
    session.run(None, {**BAD, "i": np.array([0], np.int64)})
    with pytest.raises(Exception, match="out of data bounds"):
        session.run(None, BAD)
    assert recorder.failed == []
