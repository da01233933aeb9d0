"""Operators inside If, Loop and Scan, their initialisers, and values that bodies read from outside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import GraphProto, TensorProto, helper, numpy_helper

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


WEIGHT = np.array([1.0, -2.0, 0.5, 4.0], np.float32)
OUTSIDE = np.array([9.0, 9.0, 9.0, 9.0], np.float32)


def graph_of(
    nodes: list[onnx.NodeProto],
    inputs: list[tuple[str, int, Any]],
    outputs: list[str],
    initializers: dict[str, Array] | None = None,
) -> GraphProto:
    return helper.make_graph(
        nodes,
        "body",
        [helper.make_tensor_value_info(*each) for each in inputs],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in (initializers or {}).items()],
    )


def recorded(model: onnx.ModelProto, feeds: dict[str, Any], level: Any = "disable", **settings: Any) -> Recording:
    recording = Recording(model, level=level, **settings)
    plain = plain_run(
        model.SerializeToString(), feeds, level="DISABLE_ALL" if level == "disable" else f"ENABLE_{level.upper()}"
    )
    assert same_bits(recording.run(feeds), plain)
    return recording


def in_an_if(dtype: Any = np.float32) -> tuple[onnx.ModelProto, dict[str, Array]]:
    then = graph_of([node("Mul", ["x", "weight"], ["t"], name="reader")], [], ["t"], {"weight": WEIGHT.astype(dtype)})
    otherwise = graph_of([node("Neg", ["x"], ["e"])], [], ["e"])
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    model = model_of(
        [node("If", ["c"], ["y"], name="control", then_branch=then, else_branch=otherwise)],
        {"x": (kind, [4]), "c": (BOOL, [])},
        {"y": (kind, [4])},
    )
    return model, {"x": numbers(4).astype(dtype), "c": np.array(True)}


def in_a_loop() -> tuple[onnx.ModelProto, dict[str, Array]]:
    body = graph_of(
        [node("Add", ["state", "weight"], ["next"], name="reader"), node("Identity", ["goes_on"], ["still"])],
        [("number", INT64, []), ("goes_on", BOOL, []), ("state", FLOAT, [4])],
        ["still", "next"],
        {"weight": WEIGHT},
    )
    model = model_of(
        [node("Loop", ["trips", "", "x"], ["y"], name="control", body=body)],
        {"x": (FLOAT, [4])},
        {"y": (FLOAT, [4])},
        {"trips": np.array(2, np.int64)},
    )
    return model, {"x": numbers(4)}


def in_a_scan() -> tuple[onnx.ModelProto, dict[str, Array]]:
    body = graph_of(
        [node("Sub", ["row", "weight"], ["less"], name="reader")], [("row", FLOAT, [4])], ["less"], {"weight": WEIGHT}
    )
    scan = node("Scan", ["x"], ["y"], name="control", body=body, num_scan_inputs=1)
    return model_of([scan], {"x": (FLOAT, [3, 4])}, {"y": (FLOAT, [3, 4])}), {"x": numbers(3, 4)}


@pytest.mark.parametrize("make", [in_an_if, in_a_loop, in_a_scan])
def test_an_initializer_of_a_body_is_read_with_its_values_and_named(make: Any) -> None:
    recording = recorded(*make())
    assert recording.captured[0] == "reader"
    weight = recording.tensors("reader")["input", 1]
    assert (weight.dtype, weight.skip, weight.source) == ("float32", "", "Parameter.weight")
    assert same_bits(recording.elements("reader", "input", 1), WEIGHT)
    assert recording.session.notes == []


@pytest.mark.parametrize("make", [in_an_if, in_a_loop, in_a_scan])
def test_an_initializer_of_a_body_hides_the_one_outside_that_has_its_name(make: Any) -> None:
    model, feeds = make()
    model.graph.initializer.append(numpy_helper.from_array(OUTSIDE, "weight"))
    model.graph.node.append(node("Add", ["weight", "weight"], ["twice"], name="outer"))
    model.graph.output.append(helper.make_tensor_value_info("twice", FLOAT, [4]))
    recording = recorded(model, feeds)
    assert same_bits(recording.elements("reader", "input", 1), WEIGHT)
    assert same_bits(recording.elements("outer", "input", 1), OUTSIDE)


def test_a_body_in_a_body_reads_the_initializers_of_the_outer_one() -> None:
    inner = graph_of(
        [node("Mul", ["weight", "factor"], ["t"], name="deep")], [], ["t"], {"factor": np.full(4, 2.0, np.float32)}
    )
    other = graph_of([node("Identity", ["weight"], ["e"])], [], ["e"])
    outer = graph_of(
        [node("If", ["c"], ["o"], name="within", then_branch=inner, else_branch=other)], [], ["o"], {"weight": WEIGHT}
    )
    otherwise = graph_of([node("Neg", ["x"], ["n"])], [], ["n"])
    model = model_of(
        [node("If", ["c"], ["y"], name="control", then_branch=outer, else_branch=otherwise)],
        {"x": (FLOAT, [4]), "c": (BOOL, [])},
        {"y": (FLOAT, [4])},
    )
    recording = recorded(model, {"x": numbers(4), "c": np.array(True)})
    assert recording.captured == ["deep"]
    assert same_bits(recording.elements("deep", "input", 0), WEIGHT)
    assert recording.tensors("deep")["input", 1].source == "Parameter.factor"
    assert recording.session.notes == []


def test_a_formal_input_of_a_body_is_not_the_value_outside_that_has_its_name() -> None:
    body = graph_of([node("Neg", ["x"], ["less"], name="reader")], [("x", FLOAT, [4])], ["less"])
    model = model_of(
        [
            node("Abs", ["a"], ["x"], name="abs"),
            node("Scan", ["rows"], ["y"], name="control", body=body, num_scan_inputs=1),
        ],
        {"a": (FLOAT, [4]), "rows": (FLOAT, [2, 4])},
        {"x": (FLOAT, [4]), "y": (FLOAT, [2, 4])},
    )
    rows = numbers(2, 4, seed=1)
    recording = recorded(model, {"a": numbers(4), "rows": rows})
    assert recording.tensors("reader")["input", 0].source == ""
    assert same_bits(recording.elements("reader", "input", 0, 1), rows[1])


def test_a_scan_over_a_vector_is_recorded_number_by_number() -> None:
    body = graph_of(
        [node("Add", ["total", "number"], ["sum"], name="reader"), node("Identity", ["sum"], ["kept"])],
        [("total", FLOAT, []), ("number", FLOAT, [])],
        ["sum", "kept"],
    )
    scan = node("Scan", ["zero", "x"], ["all", "y"], name="control", body=body, num_scan_inputs=1)
    model = model_of(
        [scan], {"x": (FLOAT, [3])}, {"all": (FLOAT, []), "y": (FLOAT, [3])}, {"zero": np.zeros((), np.float32)}
    )
    recording = recorded(model, {"x": numbers(3)})
    sums = [float(recording.elements("reader", "output", 0, occurrence)) for occurrence in range(3)]
    assert np.allclose(sums, np.cumsum(numbers(3)))
    assert recording.session.notes == []


def test_an_initializer_without_elements_in_a_body_is_empty_and_not_opaque() -> None:
    empty = np.empty((0,), np.float32)
    then = graph_of([node("Concat", ["x", "none"], ["t"], name="reader", axis=0)], [], ["t"], {"none": empty})
    otherwise = graph_of([node("Neg", ["x"], ["e"])], [], ["e"])
    model = model_of(
        [node("If", ["c"], ["y"], name="control", then_branch=then, else_branch=otherwise)],
        {"x": (FLOAT, [4]), "c": (BOOL, [])},
        {"y": (FLOAT, [4])},
    )
    recording = recorded(model, {"x": numbers(4), "c": np.array(True)})
    none = recording.tensors("reader")["input", 1]
    assert (none.dtype, none.shape, none.skip) == ("float32", (0,), "empty")


def test_initializers_of_bodies_in_files_of_their_own_are_read(tmp_path: Path) -> None:
    model, feeds = in_an_if()
    (tensor,) = (tensor for attribute in model.graph.node[0].attribute for tensor in attribute.g.initializer)
    (tmp_path / "weights").write_bytes(b"head" + WEIGHT.tobytes())
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "weights"), ("offset", "4"), ("length", "16")):
        tensor.external_data.add(key=key, value=value)
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    plain = plain_run(path, feeds)
    recording = Recording(path)
    assert same_bits(recording.run(feeds), plain)
    assert recording.session.notes == []
    assert same_bits(recording.elements("reader", "input", 1), WEIGHT)


def half_precision_detector() -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A voice detector: an LSTM over windows in half precision, and branches with their own weights per sampling rate."""
    rng = np.random.default_rng(0)

    def half(*shape: int) -> Array:
        return (rng.standard_normal(shape) / 4).astype(np.float16)

    def branch(mark: str, width: int) -> GraphProto:
        nodes = [
            node("MatMul", ["sound", f"{mark}_in"], [f"{mark}_seen"], name=f"{mark}_look"),
            node("Relu", [f"{mark}_seen"], [f"{mark}_kept"], name=f"{mark}_keep"),
            node("Cast", [f"{mark}_kept"], [f"{mark}_wide"], to=FLOAT, name=f"{mark}_widen"),
            node("Unsqueeze", [f"{mark}_wide", f"{mark}_axis"], [f"{mark}_steps"]),
            node(
                "LSTM",
                [f"{mark}_steps", f"{mark}_w", f"{mark}_r", "", "", "hidden", "cell"],
                ["", f"{mark}_h", f"{mark}_c"],
                hidden_size=3,
                name=f"{mark}_lstm",
            ),
        ]
        weights: dict[str, Array] = {
            f"{mark}_in": half(8, width),
            f"{mark}_axis": np.array([1], np.int64),
            f"{mark}_w": half(1, 12, width).astype(np.float32),
            f"{mark}_r": half(1, 12, 3).astype(np.float32),
        }
        return graph_of(nodes, [], [f"{mark}_h", f"{mark}_c"], weights)

    model = model_of(
        [
            node("Equal", ["rate", "low"], ["is_low"], name="rate_is_low"),
            node(
                "If",
                ["is_low"],
                ["h", "c"],
                name="by_rate",
                then_branch=branch("low", 4),
                else_branch=branch("high", 6),
            ),
            node("Sigmoid", ["h"], ["speech"], name="judge"),
        ],
        {
            "sound": (TensorProto.FLOAT16, [5, 8]),
            "rate": (INT64, []),
            "hidden": (FLOAT, [1, 1, 3]),
            "cell": (FLOAT, [1, 1, 3]),
        },
        {"speech": (FLOAT, None), "c": (FLOAT, None)},
        {"low": np.array(8000, np.int64)},
    )
    zeros = np.zeros((1, 1, 3), np.float32)
    return model, {"sound": half(5, 8), "rate": np.array(8000), "hidden": zeros, "cell": zeros}


@pytest.mark.parametrize("rate", [8000, 16000])
@pytest.mark.parametrize("level", ["disable", "basic", "extended", "all"])
def test_branches_of_a_half_precision_model_read_their_weights_at_every_level(level: str, rate: int) -> None:
    model, feeds = half_precision_detector()
    recording = recorded(model, {**feeds, "rate": np.array(rate)}, level=level)
    opaque = [record for record in recording.writer.tensors if record.skip == "opaque"]
    assert opaque == []
    assert all(
        "returned a different" in note for note in recording.session.notes
    )  # rounded between operators, so not shown
    if not recording.session.notes:
        lstm = "low_lstm" if rate == 8000 else "high_lstm"
        weights = recording.tensors(lstm)
        assert {weights["input", slot].dtype for slot in (1, 2)} == {"float32"}


@pytest.mark.parametrize("level", ["disable", "all"])
def test_a_half_precision_initializer_of_a_branch_is_float16(level: str) -> None:
    recording = recorded(*in_an_if(np.float16), level=level)
    assert [record for record in recording.writer.tensors if record.skip == "opaque"] == []


def optional_input() -> onnx.ModelProto:
    kind = helper.make_tensor_type_proto(FLOAT, [4])
    nodes = [
        node("OptionalHasElement", ["maybe"], ["has"], name="asks"),
        node("Cast", ["x"], ["wide"], to=TensorProto.DOUBLE, name="widen"),
    ]
    inputs = [
        helper.make_value_info("x", kind),
        helper.make_value_info("maybe", helper.make_optional_type_proto(kind)),
    ]
    outputs = [helper.make_tensor_value_info("has", BOOL, []), helper.make_tensor_value_info("wide", 11, [4])]
    made = helper.make_graph(nodes, "graph", inputs, outputs)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


@pytest.mark.parametrize("given", ["array", "value", "none", "left out"])
def test_a_run_with_an_optional_input_is_recorded_whatever_it_is_given(given: str) -> None:
    x, other = numbers(4), numbers(4, seed=1)
    feeds: dict[str, Any] = {"x": x}
    if given != "left out":
        value = onnxruntime.OrtValue.ortvalue_from_numpy(other)
        feeds["maybe"] = {"array": other, "value": value, "none": None}[given]
    recording = recorded(optional_input(), feeds)
    assert recording.session.notes == []
    assert recording.captured == ["asks", "widen"]
    assert recording.tensors("asks")["input", 0].dtype == "optional(tensor(float))"
    assert same_bits(recording.elements("widen", "output"), x.astype(np.float64))


def test_a_sparse_initializer_is_opaque_with_its_type() -> None:
    values = helper.make_tensor("sparse", FLOAT, [2], [3.0, 4.0])
    places = helper.make_tensor("sparse_indices", INT64, [2], [0, 5])
    model = model_of(
        [node("MatMul", ["x", "sparse"], ["y"], name="product")], {"x": (FLOAT, [2, 4])}, {"y": (FLOAT, None)}
    )
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [4, 2]))
    recording = recorded(model, {"x": numbers(2, 4)})
    sparse = recording.tensors("product")["input", 1]
    assert (sparse.dtype, sparse.skip) == ("sparse_tensor(float32)", "opaque")


def within_a_function(body: GraphProto, otherwise: GraphProto) -> onnx.ModelProto:
    """A function of the model that contains an If."""
    function = helper.make_function(
        "own", "Choose", ["c", "x"], ["y"],
        [node("If", ["c"], ["y"], name="within", then_branch=body, else_branch=otherwise)],
        [helper.make_opsetid("", 18)],
    )  # fmt: skip
    made = helper.make_graph(
        [node("Choose", ["c", "x"], ["y"], name="call", domain="own"), node("Neg", ["y"], ["z"], name="negative")],
        "graph",
        [helper.make_tensor_value_info("x", FLOAT, [4]), helper.make_tensor_value_info("c", BOOL, [])],
        [helper.make_tensor_value_info("z", FLOAT, [4])],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    return helper.make_model(made, opset_imports=opsets, functions=[function], ir_version=8)


@pytest.mark.parametrize("level", ["disable", "basic", "all"])
def test_nothing_is_opaque_around_a_function_whose_body_has_initializers(level: str) -> None:
    then = graph_of([node("Mul", ["x", "weight"], ["t"], name="reader")], [], ["t"], {"weight": WEIGHT})
    otherwise = graph_of([node("Neg", ["x"], ["e"])], [], ["e"])
    recording = recorded(within_a_function(then, otherwise), {"x": numbers(4), "c": np.array(True)}, level=level)
    assert [record for record in recording.writer.tensors if record.skip] == []
    assert "negative" in recording.captured
    assert not [note for note in recording.session.notes if "not recorded" in note]


def test_a_loop_in_a_scan_in_a_branch_reads_the_initializers_of_each() -> None:
    loop = graph_of(
        [node("Add", ["state", "step"], ["next"], name="deepest"), node("Identity", ["on"], ["still"])],
        [("number", INT64, []), ("on", BOOL, []), ("state", FLOAT, [4])],
        ["still", "next"],
        {"step": np.full(4, 0.25, np.float32)},
    )
    scan = graph_of(
        [
            node("Mul", ["row", "weight"], ["scaled"], name="middle"),
            node("Loop", ["trips", "", "scaled"], ["looped"], name="inner", body=loop),
        ],
        [("row", FLOAT, [4])],
        ["looped"],
        {"weight": WEIGHT, "trips": np.array(2, np.int64)},
    )
    scan.output[0].CopyFrom(
        helper.make_tensor_value_info("looped", FLOAT, [4])
    )  # the shape of a loop cannot be inferred
    then = graph_of([node("Scan", ["x"], ["t"], name="outer", body=scan, num_scan_inputs=1)], [], ["t"])
    otherwise = graph_of([node("Neg", ["x"], ["e"])], [], ["e"])
    model = model_of(
        [node("If", ["c"], ["y"], name="control", then_branch=then, else_branch=otherwise)],
        {"x": (FLOAT, [3, 4]), "c": (BOOL, [])},
        {"y": (FLOAT, [3, 4])},
    )
    recording = recorded(model, {"x": numbers(3, 4), "c": np.array(True)})
    assert recording.session.notes == []
    assert [record for record in recording.writer.tensors if record.skip] == []
    assert recording.captured.count("middle") == 3
    assert recording.captured.count("deepest") == 6
    assert recording.tensors("deepest", 5)["input", 1].source == "Parameter.step"
    assert same_bits(recording.elements("middle", "input", 1, 2), WEIGHT)


def test_text_in_an_initializer_of_a_body_is_opaque_with_its_type_and_the_rest_is_recorded() -> None:
    then = graph_of([node("Equal", ["word", "text"], ["t"], name="reader")], [], ["t"])
    then.initializer.append(numpy_helper.from_array(np.array(["a", "b"], object), "text"))
    otherwise = graph_of([node("Not", ["other"], ["e"])], [], ["e"], {"other": np.array([True, False])})
    model = model_of(
        [
            node("If", ["c"], ["y"], name="control", then_branch=then, else_branch=otherwise),
            node("Not", ["y"], ["z"], name="turned"),
        ],
        {"word": (TensorProto.STRING, [2]), "c": (BOOL, [])},
        {"z": (BOOL, [2])},
    )
    feeds = {"word": np.array(["a", "x"], object), "c": np.array(True)}
    recording = recorded(model, feeds)
    assert "turned" in recording.captured
    assert {record.dtype for record in recording.writer.tensors if record.skip == "opaque"} <= {"string"}
    branch = recorded(model, {**feeds, "c": np.array(False)})
    assert [record for record in branch.writer.tensors if record.skip == "opaque"] == []
