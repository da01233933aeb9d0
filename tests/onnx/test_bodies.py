"""Operators inside If, Loop and Scan."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import GraphProto, TensorProto, helper

from opdump.adapters.onnxruntime.tensors_of_run import same_bits
from opdump.plan.selection import KernelPattern, ModelSelection
from tests.onnx.recording import FLOAT, INT64, Array, Recording, model_of, numbers, plain_run

BOOL = TensorProto.BOOL
node = helper.make_node


def graph(nodes: list[onnx.NodeProto], inputs: list[tuple[str, int, Any]], outputs: list[str]) -> GraphProto:
    return helper.make_graph(
        nodes,
        "body",
        [helper.make_tensor_value_info(*each) for each in inputs],
        [onnx.ValueInfoProto(name=name) for name in outputs],
    )


def checked(model: onnx.ModelProto, feeds: dict[str, Array], **settings: Any) -> Recording:
    recording = Recording(model, **settings)
    assert same_bits(recording.run(feeds), plain_run(model.SerializeToString(), feeds))
    return recording


def branches() -> onnx.ModelProto:
    then = graph([node("Mul", ["a", "a"], ["t"], name="square")], [], ["t"])
    otherwise = graph([node("Neg", ["a"], ["e"], name="negate")], [], ["e"])
    nodes = [
        node("Abs", ["x"], ["a"], name="abs"),
        node("If", ["c"], ["y"], name="if", then_branch=then, else_branch=otherwise),
    ]
    return model_of(nodes, {"x": (FLOAT, ["n"]), "c": (BOOL, [])}, {"y": (FLOAT, ["n"])})


@pytest.mark.parametrize(("condition", "ran"), [(True, "square"), (False, "negate")])
def test_the_branch_that_ran_is_recorded_and_the_other_is_not(condition: bool, ran: str) -> None:
    x = numbers(4)
    recording = checked(branches(), {"x": x, "c": np.array(condition)})
    assert recording.captured == ["abs", ran]
    assert recording.skipped == {"if": "control flow"}
    a = np.abs(x)
    assert same_bits(recording.elements(ran, "input"), a)
    assert same_bits(recording.elements(ran, "output"), a * a if condition else -a)
    assert recording.tensors(ran)["input", 0].source == "abs:0"


def sums(counted: str = "total") -> onnx.ModelProto:
    """`total` is doubled and `x` added, `trips` times; every result is gathered."""
    body = graph(
        [
            node("Constant", [], ["two"], name="two", value_float=2.0),
            node("Mul", ["before", "two"], ["double"], name="double"),
            node("Add", ["double", "x"], ["after"], name=counted),
            node("Identity", ["go"], ["on"], name="on"),
            node("Identity", ["after"], ["each"], name="each"),
        ],
        [("number", INT64, []), ("go", BOOL, []), ("before", FLOAT, ["n"])],
        ["on", "after", "each"],
    )
    return model_of(
        [
            node("Loop", ["trips", "", "x"], ["last", "all"], name="loop", body=body),
            node("Neg", ["last"], ["y"], name="neg"),
        ],
        {"x": (FLOAT, ["n"]), "trips": (INT64, [])},
        {"y": (FLOAT, ["n"]), "all": (FLOAT, None)},
    )


def test_every_iteration_of_a_loop_is_recorded_in_its_order() -> None:
    x = numbers(3)
    recording = checked(sums(), {"x": x, "trips": np.array(3, np.int64)})
    before = x
    for occurrence in range(3):
        assert same_bits(recording.elements("double", "input", 0, occurrence), before)
        before = before * np.float32(2) + x
        assert same_bits(recording.elements("total", "output", 0, occurrence), before)
    assert recording.captured == ["double", "total", "on", "each"] * 3 + ["neg"]
    captured = [op for op in recording.writer.ops if not op.skip]
    assert [op.occurrence for op in captured] == [0] * 4 + [1] * 4 + [2] * 4 + [0]
    orders = [op.order for op in recording.writer.ops]
    assert orders == sorted(set(orders))
    assert recording.recorder.tally.skipped == {"control flow": 1, "constant": 3}
    assert recording.tensors("total", 1)["input", 0].source == "double:0"


def test_a_loop_without_a_trip_is_recorded_itself_and_nothing_within() -> None:
    x = numbers(3)
    recording = checked(sums(), {"x": x, "trips": np.array(0, np.int64)})
    assert recording.captured == ["loop", "neg"]
    assert recording.skipped == {}
    assert same_bits(recording.elements("loop", "output"), x)


def test_under_a_memory_limit_bodies_are_recorded_too() -> None:
    feeds = {"x": numbers(3), "trips": np.array(2, np.int64)}
    whole, pieces = checked(sums(), feeds), checked(sums(), feeds, memory_limit=1)
    assert pieces.captured == whole.captured
    for one, other in zip(pieces.writer.tensors, whole.writer.tensors, strict=True):
        assert one.name == other.name
        assert one.statistics == other.statistics


def test_one_operator_of_a_body_can_be_selected() -> None:
    plan = {"models": (ModelSelection(layers=("total",)),)}
    recording = Recording(sums(), plan)
    recording.run({"x": numbers(3), "trips": np.array(2, np.int64)})
    assert recording.captured == ["total", "total"]
    assert recording.recorder.tally.skipped["not selected"] == 7


def test_bodies_within_bodies_are_recorded_at_their_place() -> None:
    inner = graph([node("Mul", ["before", "x"], ["t"], name="deep")], [], ["t"])
    other = graph([node("Identity", ["before"], ["e"], name="kept")], [], ["e"])
    body = graph(
        [
            node("Greater", ["number", "zero"], ["later"], name="greater"),
            node("If", ["later"], ["after"], name="if", then_branch=inner, else_branch=other),
            node("Identity", ["go"], ["on"], name="on"),
        ],
        [("number", INT64, []), ("go", BOOL, []), ("before", FLOAT, ["n"])],
        ["on", "after"],
    )
    model = model_of(
        [node("Loop", ["trips", "", "x"], ["y"], name="loop", body=body)],
        {"x": (FLOAT, ["n"]), "trips": (INT64, [])},
        {"y": (FLOAT, ["n"])},
        {"zero": np.array(0, np.int64)},
    )
    x = numbers(3)
    recording = checked(model, {"x": x, "trips": np.array(3, np.int64)})
    assert recording.captured == ["greater", "kept", "on", "greater", "deep", "on", "greater", "deep", "on"]
    assert same_bits(recording.elements("deep", "output", 0, 1), x * x * x)
    assert recording.session.notes == []


@pytest.mark.parametrize("backwards", [0, 1])
def test_a_scan_is_recorded_slice_by_slice(backwards: int) -> None:
    body = graph(
        [node("Add", ["state", "part"], ["sum"], name="add"), node("Identity", ["sum"], ["out"], name="copy")],
        [("state", FLOAT, [2]), ("part", FLOAT, [2])],
        ["sum", "out"],
    )
    scan = node(
        "Scan",
        ["x", "seq"],
        ["y", "z"],
        name="scan",
        body=body,
        num_scan_inputs=1,
        scan_input_axes=[1],
        scan_input_directions=[backwards],
        scan_output_axes=[1],
        scan_output_directions=[backwards],
    )
    model = model_of([scan], {"x": (FLOAT, [2]), "seq": (FLOAT, [2, 3])}, {"y": (FLOAT, [2]), "z": (FLOAT, [2, 3])})
    x, sequence = numbers(2), numbers(2, 3, seed=1)
    recording = checked(model, {"x": x, "seq": sequence})
    assert recording.captured == ["add", "copy"] * 3
    order = [2, 1, 0] if backwards else [0, 1, 2]
    for occurrence, place in enumerate(order):
        assert same_bits(recording.elements("add", "input", 1, occurrence), np.ascontiguousarray(sequence[:, place]))


def test_a_body_that_cannot_be_run_again_is_listed_with_the_reason() -> None:
    then = graph([node("RandomNormal", [], ["t"], name="random", shape=[4], seed=1.0)], [], ["t"])
    otherwise = graph([node("Identity", ["x"], ["e"], name="kept")], [], ["e"])
    pair = graph([node("SequenceConstruct", ["x"], ["p"], name="one")], [], ["p"])
    pairs = graph([node("SequenceConstruct", ["x", "x"], ["q"], name="two")], [], ["q"])
    nodes = [
        node("If", ["c"], ["r"], name="chance", then_branch=then, else_branch=otherwise),
        node("If", ["c"], ["s"], name="list", then_branch=pair, else_branch=pairs),
        node("SequenceAt", ["s", "zero"], ["v"], name="at"),
        node("Add", ["r", "v"], ["y"], name="add"),
    ]
    model = model_of(nodes, {"x": (FLOAT, [4]), "c": (BOOL, [])}, {"y": (FLOAT, [4])}, {"zero": np.array(0, np.int64)})
    recording = checked(model, {"x": numbers(4), "c": np.array(True)})
    assert recording.captured == ["chance", "list", "at", "add"]
    assert recording.skipped == dict.fromkeys(("random", "kept", "one", "two"), "control flow")
    assert recording.tensors("add")["input", 0].source == "chance:0"
    assert recording.elements("chance", "output").shape == (4,)
    assert recording.tensors("list")["output", 0].skip == "opaque"
    assert recording.session.notes == [
        "the bodies of chance are not shown: a second run of random operators returns different values",
        "the bodies of list are not shown: a body returns a value that is not a tensor",
    ]


def of_constants(value: float) -> onnx.ModelProto:
    branch = graph([node("Constant", [], ["k"], name="k", value_floats=[value, 1.0])], [], ["k"])
    other = graph([node("Neg", ["x"], ["n"], name="n")], [], ["n"])
    nodes = [node("If", ["c"], ["y"], name="if", then_branch=branch, else_branch=other)]
    return model_of(nodes, {"x": (FLOAT, [2]), "c": (BOOL, [])}, {"y": (FLOAT, [2])})


def test_a_branch_of_constants_is_recorded_as_the_result_of_its_if() -> None:
    recording = checked(of_constants(3.0), {"x": numbers(2), "c": np.array(True)})
    assert recording.captured == ["if"]
    assert recording.elements("if", "output").tolist() == [3.0, 1.0]
    assert recording.tensors("if")["input", 1].source == "x:0"  # read by the other branch
    taken = checked(of_constants(3.0), {"x": numbers(2), "c": np.array(False)})
    assert taken.captured == ["n"]


def test_a_branch_of_constants_inside_another_branch_is_recorded_as_the_result_of_its_if() -> None:
    inner = of_constants(3.0).graph.node[0]
    then = graph([node("Abs", ["x"], ["b"], name="b"), inner, node("Add", ["y", "b"], ["t"], name="t")], [], ["t"])
    other = graph([node("Neg", ["x"], ["e"], name="e")], [], ["e"])
    outer = node("If", ["c"], ["z"], name="outer", then_branch=then, else_branch=other)
    model = model_of([outer], {"x": (FLOAT, [2]), "c": (BOOL, [])}, {"z": (FLOAT, [2])})
    recording = checked(model, {"x": numbers(2), "c": np.array(True)})
    assert recording.captured == ["b", "if", "t"]
    assert recording.elements("if", "output").tolist() == [3.0, 1.0]
    assert recording.tensors("t")["input", 0].source == "if:0"


def test_a_control_operator_that_the_plan_does_not_select_is_listed_if_its_bodies_are_not_shown() -> None:
    then = graph([node("RandomNormal", [], ["t"], name="random", shape=[4], seed=1.0)], [], ["t"])
    otherwise = graph([node("Identity", ["x"], ["e"], name="kept")], [], ["e"])
    nodes = [
        node("If", ["c"], ["r"], name="chance", then_branch=then, else_branch=otherwise),
        node("Neg", ["r"], ["y"], name="neg"),
    ]
    model = model_of(nodes, {"x": (FLOAT, [4]), "c": (BOOL, [])}, {"y": (FLOAT, [4])})
    recording = checked(
        model,
        {"x": numbers(4), "c": np.array(True)},
        plan={"selection": "kernels", "kernels": (KernelPattern.parse("Neg"),)},
    )
    assert recording.captured == ["neg"]
    assert recording.skipped["chance"] == "control flow"
