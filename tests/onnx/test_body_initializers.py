"""Initialisers of the bodies of If, Loop and Scan, and values that bodies read from outside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import GraphProto, TensorProto, helper, numpy_helper

from opdump.adapters.onnxruntime.tensors_of_run import same_bits
from tests.onnx.recording import FLOAT, INT64, Array, Recording, model_of, numbers, plain_run

BOOL = TensorProto.BOOL
node = helper.make_node
WEIGHT = np.array([1.0, -2.0, 0.5, 4.0], np.float32)
OUTSIDE = np.array([9.0, 9.0, 9.0, 9.0], np.float32)


def graph(
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
    then = graph([node("Mul", ["x", "weight"], ["t"], name="reader")], [], ["t"], {"weight": WEIGHT.astype(dtype)})
    otherwise = graph([node("Neg", ["x"], ["e"])], [], ["e"])
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    model = model_of(
        [node("If", ["c"], ["y"], name="control", then_branch=then, else_branch=otherwise)],
        {"x": (kind, [4]), "c": (BOOL, [])},
        {"y": (kind, [4])},
    )
    return model, {"x": numbers(4).astype(dtype), "c": np.array(True)}


def in_a_loop() -> tuple[onnx.ModelProto, dict[str, Array]]:
    body = graph(
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
    body = graph(
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
    inner = graph(
        [node("Mul", ["weight", "factor"], ["t"], name="deep")], [], ["t"], {"factor": np.full(4, 2.0, np.float32)}
    )
    other = graph([node("Identity", ["weight"], ["e"])], [], ["e"])
    outer = graph(
        [node("If", ["c"], ["o"], name="within", then_branch=inner, else_branch=other)], [], ["o"], {"weight": WEIGHT}
    )
    otherwise = graph([node("Neg", ["x"], ["n"])], [], ["n"])
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
    body = graph([node("Neg", ["x"], ["less"], name="reader")], [("x", FLOAT, [4])], ["less"])
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


def test_an_initializer_without_elements_in_a_body_is_empty_and_not_opaque() -> None:
    empty = np.empty((0,), np.float32)
    then = graph([node("Concat", ["x", "none"], ["t"], name="reader", axis=0)], [], ["t"], {"none": empty})
    otherwise = graph([node("Neg", ["x"], ["e"])], [], ["e"])
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
        return graph(nodes, [], [f"{mark}_h", f"{mark}_c"], weights)

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
    then = graph([node("Mul", ["x", "weight"], ["t"], name="reader")], [], ["t"], {"weight": WEIGHT})
    otherwise = graph([node("Neg", ["x"], ["e"])], [], ["e"])
    recording = recorded(within_a_function(then, otherwise), {"x": numbers(4), "c": np.array(True)}, level=level)
    assert [record for record in recording.writer.tensors if record.skip] == []
    assert "negative" in recording.captured
    assert not [note for note in recording.session.notes if "not recorded" in note]


def test_a_loop_in_a_scan_in_a_branch_reads_the_initializers_of_each() -> None:
    loop = graph(
        [node("Add", ["state", "step"], ["next"], name="deepest"), node("Identity", ["on"], ["still"])],
        [("number", INT64, []), ("on", BOOL, []), ("state", FLOAT, [4])],
        ["still", "next"],
        {"step": np.full(4, 0.25, np.float32)},
    )
    scan = graph(
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
    then = graph([node("Scan", ["x"], ["t"], name="outer", body=scan, num_scan_inputs=1)], [], ["t"])
    otherwise = graph([node("Neg", ["x"], ["e"])], [], ["e"])
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
    then = graph([node("Equal", ["word", "text"], ["t"], name="reader")], [], ["t"])
    then.initializer.append(numpy_helper.from_array(np.array(["a", "b"], object), "text"))
    otherwise = graph([node("Not", ["other"], ["e"])], [], ["e"], {"other": np.array([True, False])})
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
