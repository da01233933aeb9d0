"""Element types that numpy lacks, text, sequences, optionals, maps, and what is not finite in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

import opdump.onnx
from opdump.adapters.host import BY_DTYPE, NumpyReader, widened_elements
from opdump.adapters.onnxruntime.tensors_of_run import same_bits
from opdump.commands import main
from opdump.verdict import Verdict
from tests.onnx.recording import FLOAT, INT64, Recording, model_of, numbers, plain_run

X = {"x": (FLOAT, ["n"])}
Y = {"y": (FLOAT, ["n"])}


def cast_model(to: int) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Cast", ["x"], ["small"], name="narrow", to=to),
        helper.make_node("Cast", ["small"], ["y"], name="widen", to=FLOAT),
    ]
    return model_of(nodes, X, Y)


@pytest.mark.parametrize(
    ("to", "dtype", "held"),
    [
        ("BFLOAT16", "bfloat16", ml_dtypes.bfloat16),
        ("FLOAT16", "float16", np.float16),
        ("FLOAT8E4M3FN", "float8_e4m3fn", ml_dtypes.float8_e4m3fn),
        ("FLOAT8E4M3FNUZ", "float8_e4m3fnuz", ml_dtypes.float8_e4m3fnuz),
        ("FLOAT8E5M2", "float8_e5m2", ml_dtypes.float8_e5m2),
        ("FLOAT8E5M2FNUZ", "float8_e5m2fnuz", ml_dtypes.float8_e5m2fnuz),
        ("INT8", "int8", np.int8),
        ("UINT4", "uint4", np.uint8),
        ("INT4", "int4", np.int8),
        ("DOUBLE", "float64", np.float64),
        ("BOOL", "bool", np.bool_),
    ],
)
def test_an_element_type_keeps_its_name_and_its_values(to: str, dtype: str, held: Any) -> None:
    number = getattr(TensorProto, to)
    x = np.array([0, 1, 2, 3.3, 5, 6.7, 7], np.float32)
    recording = Recording(cast_model(number), {"statistic_category": ("max", "md5")})
    assert same_bits(recording.run({"x": x}), plain_run(cast_model(number).SerializeToString(), {"x": x}))
    assert recording.session.notes == []
    records = [recording.tensors("narrow")["output", 0], recording.tensors("widen")["input", 0]]
    expected = x.astype(held) if not dtype.endswith("int4") else np.rint(x).astype(held)
    wide = expected if expected.dtype.kind != "V" else expected.astype(np.float32)
    for record in records:
        assert (record.dtype, record.shape, record.skip) == (dtype, (7,), "")
        assert record.data_size == (7 * BY_DTYPE[dtype].bits + 7) // 8
        assert record.payload is not None
        if not dtype.endswith("int4"):  # the runtime decides how to round
            np.testing.assert_array_equal(record.payload.to_host(), wide)
        assert record.statistics["max"] == float(record.payload.to_host().astype(np.float64).max())
    again = recording.elements("widen", "output")
    np.testing.assert_array_equal(again, recording.elements("narrow", "output").astype(np.float32))


@pytest.mark.parametrize("dtype", ["int4", "uint4", "int2", "uint2", "float4_e2m1fn"])
def test_packed_elements_are_those_of_ml_dtypes(dtype: str) -> None:
    element = BY_DTYPE[dtype]
    kind = getattr(ml_dtypes, dtype)
    codes = np.arange(2**element.bits * 3 - 1, dtype=np.uint8) % 2**element.bits
    expected = codes.view(kind) if dtype.startswith("float") else codes.astype(kind)
    per_byte = 8 // element.bits
    padded = np.concatenate([codes, np.zeros(-codes.size % per_byte, np.uint8)]).reshape(-1, per_byte)
    raw = np.bitwise_or.reduce(padded << (np.arange(per_byte, dtype=np.uint8) * element.bits), axis=1).astype(np.uint8)
    found = widened_elements(raw, element, (codes.size,))
    if dtype.startswith("int"):
        bits = element.bits
        signed = np.where(codes >= 2 ** (bits - 1), codes.astype(np.int16) - 2**bits, codes)
        assert found.dtype == np.int8
        np.testing.assert_array_equal(found, signed)
    else:
        assert found.dtype == (np.float32 if dtype.startswith("float") else np.uint8)
        np.testing.assert_array_equal(found, expected.astype(np.float32))


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize("kind", ["INT4", "BFLOAT16", "FLOAT16", "FLOAT8E5M2"])
def test_weights_of_every_storage_form_are_read(kind: str, raw: bool) -> None:
    number = getattr(TensorProto, kind)
    values = [0.0, 1.0, -2.0, 3.0, 4.0]
    weight = helper.make_tensor("w", number, [5], values)
    if raw:
        content = numpy_helper.from_array(numpy_helper.to_array(weight), "w")
        weight = content
        assert weight.HasField("raw_data")
    model = model_of(
        [
            helper.make_node("Cast", ["w"], ["a"], name="cast", to=FLOAT),
            helper.make_node("Add", ["a", "x"], ["y"], name="add"),
        ],
        {"x": (FLOAT, [5])},
        {"y": (FLOAT, [5])},
    )
    model.graph.initializer.append(weight)
    recording = Recording(model)
    recording.run({"x": np.zeros(5, np.float32)})
    np.testing.assert_array_equal(recording.elements("cast", "input").astype(np.float32), values)
    np.testing.assert_array_equal(recording.elements("cast", "output"), values)


def test_a_quantised_model_is_recorded_in_its_integers() -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"], name="quantize"),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["d"], name="dequantize"),
        helper.make_node("MatMulInteger", ["q", "w", "zero"], ["m"], name="matmul"),
        helper.make_node("Cast", ["m"], ["c"], name="cast", to=FLOAT),
        helper.make_node("MatMul", ["d", "c"], ["y"], name="product"),
    ]
    initializers: dict[str, Any] = {
        "scale": np.array(0.05, np.float32),
        "zero": np.array(3, np.int8),
        "w": np.arange(16, dtype=np.int8).reshape(4, 4),
    }
    model = model_of(nodes, {"x": (FLOAT, [4, 4])}, {"y": (FLOAT, [4, 4])}, initializers)
    x = numbers(4, 4)
    recording = Recording(model)
    assert same_bits(recording.run({"x": x}), plain_run(model.SerializeToString(), {"x": x}))
    q = recording.elements("quantize", "output")
    assert q.dtype == np.int8
    np.testing.assert_array_equal(q, np.rint(x / np.float32(0.05)).astype(np.int32) + 3)
    np.testing.assert_array_equal(
        recording.elements("matmul", "output"), (q.astype(np.int32) - 3) @ initializers["w"].astype(np.int32)
    )
    assert recording.elements("quantize", "input", 2) == 3


def test_text_is_opaque_and_named() -> None:
    model = model_of(
        [
            helper.make_node("Identity", ["t"], ["u"], name="text"),
            helper.make_node("Cast", ["u"], ["y"], name="cast", to=FLOAT),
        ],
        {"t": (TensorProto.STRING, ["n"])},
        {"y": (FLOAT, ["n"]), "u": (TensorProto.STRING, ["n"])},
    )
    feeds = {"t": np.array(["1", "2.5"], object)}
    recording = Recording(model)
    assert same_bits(recording.run(feeds), plain_run(model.SerializeToString(), feeds))
    facts = [(record.name, record.dtype, record.skip) for record in recording.writer.tensors]
    assert facts == [
        ("text:input:0", "string", "opaque"),
        ("text:output:0", "string", "opaque"),
        ("cast:input:0", "string", "opaque"),
        ("cast:output:0", "float32", ""),
    ]


def test_sequences_and_optionals_are_opaque_and_answered_as_they_are() -> None:
    nodes = [
        helper.make_node("SequenceConstruct", ["x", "x"], ["s"], name="pair"),
        helper.make_node("SequenceAt", ["s", "one"], ["e"], name="at"),
        helper.make_node("Optional", ["e"], ["o"], name="maybe"),
        helper.make_node("Neg", ["e"], ["y"], name="neg"),
    ]
    model = model_of(nodes, X, Y, {"one": np.array(1, np.int64)})
    tensor = helper.make_tensor_type_proto(FLOAT, None)
    model.graph.output.append(helper.make_value_info("s", helper.make_sequence_type_proto(tensor)))
    recording = Recording(model)
    x = numbers(3)
    answer = recording.run({"x": x})
    assert same_bits(answer, plain_run(model.SerializeToString(), {"x": x}))
    assert isinstance(answer[1], list)
    assert recording.tensors("pair")["output", 0].dtype == "seq(tensor(float))"
    assert recording.tensors("at")["input", 0].skip == "opaque"
    assert same_bits(recording.elements("at", "output"), x)
    assert recording.tensors("maybe")["output", 0].skip == "opaque"
    assert recording.recorder.tally.skipped.total() == 0


def test_maps_are_answered_as_they_are() -> None:
    zip_map = helper.make_node("ZipMap", ["x"], ["m"], name="zip", domain="ai.onnx.ml", classlabels_int64s=[7, 9])
    neg = helper.make_node("Neg", ["x"], ["y"], name="neg")
    model = model_of([zip_map, neg], {"x": (FLOAT, ["n", 2])}, {"y": (FLOAT, ["n", 2])})
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    model.graph.output.insert(0, onnx.ValueInfoProto(name="m"))
    recording = Recording(model)
    feeds = {"x": numbers(3, 2)}
    answer = recording.run(feeds)
    assert same_bits(answer, plain_run(model.SerializeToString(), feeds))
    assert isinstance(answer[0][0], dict)
    assert recording.tensors("zip")["output", 0].skip == "opaque"
    assert recording.tensors("zip")["output", 0].dtype == "seq(map(int64,tensor(float)))"


def test_empty_tensors_are_counted_and_leave_no_elements() -> None:
    model = model_of([helper.make_node("Neg", ["x"], ["y"], name="neg")], X, Y)
    recording = Recording(model)
    recording.run({"x": np.empty(0, np.float32)})
    assert {record.skip for record in recording.writer.tensors} == {"empty"}
    assert recording.captured == ["neg"]


def test_optional_inputs_that_are_left_out_keep_the_slots_of_the_others() -> None:
    clip = helper.make_node("Clip", ["x", "", "most"], ["y"], name="clip")
    recording = Recording(model_of([clip], X, Y, {"most": np.array(0.5, np.float32)}))
    recording.run({"x": numbers(5)})
    records = recording.tensors("clip")
    assert {place: record.argument for place, record in records.items()} == {
        ("input", 0): "input",
        ("input", 2): "max",
        ("output", 0): "output",
    }


def test_names_are_unique_and_the_same_every_time() -> None:
    body = helper.make_graph(
        [helper.make_node("Neg", ["a"], ["r"], name="twin")], "body", [], [onnx.ValueInfoProto(name="r")]
    )
    nodes = [
        helper.make_node("Neg", ["x"], ["a"]),
        helper.make_node("Abs", ["a"], ["b"], name="twin"),
        helper.make_node("If", ["yes"], ["c"], name="if", then_branch=body, else_branch=body),
        helper.make_node("Neg", ["b"], ["d"], name="Neg_6"),
        helper.make_node("Sum", ["c", "d"], ["e"]),
        helper.make_node("Neg", ["e"], ["y"]),
    ]
    for _ in range(2):
        recording = Recording(model_of(nodes, X, Y, {"yes": np.array(True)}))
        recording.run({"x": numbers(2)})
        assert recording.captured == ["Neg_0", "twin", "Neg_4", "Neg_6", "Sum_6", "Neg_7"]
        assert recording.skipped == {"if": "control flow"}


def test_an_operator_stands_behind_those_whose_results_it_reads() -> None:
    nodes = [helper.make_node("Neg", ["a"], ["y"], name="second"), helper.make_node("Abs", ["x"], ["a"], name="first")]
    recording = Recording(model_of(nodes, X, Y))
    recording.run({"x": numbers(2)})
    assert recording.captured == ["first", "second"]


def test_constants_leave_no_data_and_are_read_by_others() -> None:
    value = numpy_helper.from_array(np.array([2.0], np.float32))
    nodes = [
        helper.make_node("Constant", [], ["c"], name="constant", value=value),
        helper.make_node("Constant", [], ["f"], name="number", value_float=3.0),
        helper.make_node("Identity", ["w"], ["v"], name="weight"),
        helper.make_node("Identity", ["x"], ["i"], name="copy"),
        helper.make_node("Sum", ["i", "c", "f", "v"], ["y"], name="sum"),
    ]
    recording = Recording(model_of(nodes, X, Y, {"w": np.array([5.0], np.float32)}))
    for _ in range(2):
        recording.run({"x": numbers(3)})
    assert recording.skipped == dict.fromkeys(("constant", "number", "weight"), "constant")
    assert recording.recorder.tally.skipped == {"constant": 6}
    assert (recording.recorder.tally.executed, recording.recorder.tally.captured) == (10, 4)
    read = [
        r.payload.to_host().tolist() for r in recording.writer.tensors if r.op.op_name == "sum" and r.slot and r.payload
    ]
    assert read == [[2.0], 3.0, [5.0]] * 2


def test_attributes_are_json_values() -> None:
    value = numpy_helper.from_array(np.array([1.5, np.nan], np.float32))
    nodes = [
        helper.make_node("Gemm", ["x", "x"], ["y"], name="gemm", alpha=0.1, transB=1),
        helper.make_node(
            "ConstantOfShape", ["n"], ["z"], name="fill", value=numpy_helper.from_array(np.array([7], np.int64))
        ),
        helper.make_node("Constant", [], ["c"], name="constant", value=value),
        helper.make_node("Pad", ["x", "p"], ["q"], name="pad", mode="edge"),
    ]
    initializers: dict[str, Any] = {"n": np.array([2], np.int64), "p": np.zeros(4, np.int64)}
    model = model_of(nodes, {"x": (FLOAT, [2, 2])}, {"y": (FLOAT, [2, 2])}, initializers)
    recording = Recording(model)
    recording.run({"x": numbers(2, 2)})
    arguments = {op.op_name: op.arguments for op in recording.writer.ops}
    assert arguments == {
        "gemm": {"alpha": 0.1, "transB": 1},
        "fill": {"value": {"dtype": "int64", "shape": [1], "elements": [7]}},
        "constant": {"value": {"dtype": "float32", "shape": [2], "elements": [1.5, {"float": "nan"}]}},
        "pad": {"mode": "edge"},
    }


def test_a_function_of_the_model_is_one_operator() -> None:
    model = model_of([helper.make_node("Twice", ["x"], ["y"], name="twice", domain="own")], X, Y)
    model.opset_import.append(helper.make_opsetid("own", 1))
    add = helper.make_node("Add", ["given", "given"], ["doubled"])
    model.functions.append(helper.make_function("own", "Twice", ["given"], ["doubled"], [add], model.opset_import[:1]))
    recording = Recording(model)
    x = numbers(3)
    recording.run({"x": x})
    records = recording.tensors("twice")
    assert [(record.op.kernel, record.argument) for record in records.values()] == [
        ("own::Twice", "given"),
        ("own::Twice", "doubled"),
    ]
    assert same_bits(recording.elements("twice", "output"), x + x)


def test_the_reader_takes_plain_arrays_too() -> None:
    reader = NumpyReader(statistics=True, elements=True, sample=4)
    array = numbers(3, 4)[:, ::2]
    taken = reader.take(array)
    (summary,) = reader.summaries([taken])
    assert summary is not None
    assert (taken.shape, taken.data_size, summary.count, taken.sample) == ((3, 2), 24, 6, 4)
    assert taken.elements is not None
    np.testing.assert_array_equal(taken.elements.on_host(), array.reshape(-1)[:4])
    assert reader.take(np.array(["text"])).skip == "opaque"


@pytest.mark.parametrize("elements", [True, False])
def test_of_complex_tensors_there_are_elements_alone(elements: bool) -> None:
    reader = NumpyReader(statistics=True, elements=elements, names=("md5",))
    real, pair = reader.take(numbers(3)), reader.take(np.array([1 + 2j], np.complex64))
    assert reader.summaries([real, pair])[1] is None
    assert real.others
    assert not pair.others
    assert (pair.elements is not None) == elements


def test_int64_feeds_keep_their_values() -> None:
    model = model_of(
        [helper.make_node("Add", ["i", "i"], ["y"], name="add")], {"i": (INT64, ["n"])}, {"y": (INT64, ["n"])}
    )
    recording = Recording(model)
    i = np.array([2**60, -1, 3], np.int64)
    recording.run({"i": i})
    assert recording.elements("add", "output").tolist() == [2**61, -2, 6]


LOG = helper.make_node("Log", ["x"], ["l"], name="log")
ZERO = {"zero": np.array(0)}
WAYS: dict[str, tuple[list[onnx.NodeProto], dict[str, Any]]] = {
    "a sequence": (
        [
            helper.make_node("SequenceConstruct", ["l", "x"], ["s"], name="construct"),
            helper.make_node("SequenceAt", ["s", "zero"], ["a"], name="out"),
        ],
        ZERO,
    ),
    "a sequence that grows": (
        [
            helper.make_node("SequenceEmpty", [], ["e"], name="empty"),
            helper.make_node("SequenceInsert", ["e", "l"], ["s"], name="insert"),
            helper.make_node("ConcatFromSequence", ["s"], ["a"], name="out", axis=0),
        ],
        {},
    ),
    "parts": (
        [
            helper.make_node("SplitToSequence", ["l", "one"], ["s"], name="split", axis=0),
            helper.make_node("SequenceAt", ["s", "zero"], ["a"], name="out"),
        ],
        {**ZERO, "one": np.array(1)},
    ),
    "an optional": (
        [
            helper.make_node("Optional", ["l"], ["s"], name="optional"),
            helper.make_node("OptionalGetElement", ["s"], ["a"], name="out"),
        ],
        {},
    ),
}


def checked(tmp_path: Path, model: onnx.ModelProto, feeds: dict[str, Any]) -> tuple[Verdict, str]:
    """The verdict of the run, and the output of `opdump check`."""
    with opdump.onnx.session(model, path=str(tmp_path / "dump"), saved_data="full") as session:
        session.run(None, feeds)
    assert session.report is not None
    return session.report.verdict, CliRunner().invoke(main, ["check", str(tmp_path / "dump")]).output


@pytest.mark.parametrize("way", WAYS)
def test_nan_is_born_where_it_was_made_and_passed_on_by_what_takes_it_out(tmp_path: Path, way: str) -> None:
    nodes, weights = WAYS[way]
    last = helper.make_node("Relu", ["a"], ["y"], name="relu")
    model = model_of([LOG, *nodes, last], {"x": (FLOAT, [3])}, {"y": (FLOAT, None)}, weights)
    verdict, printed = checked(tmp_path, model, {"x": np.array([-1, 1, 2], np.float32)})
    assert (verdict.kind, verdict.op_name) == ("nan", "log")
    assert printed.count("born") == 1, printed
    assert "born    step 0  Log (log)" in printed
    assert "passed on by 2 operators" in printed


def test_nan_in_a_sequence_that_was_fed_is_not_attributed_to_its_reader(tmp_path: Path) -> None:
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, [2]))
    model = model_of(
        [
            helper.make_node("SequenceAt", ["x", "zero"], ["a"], name="out"),
            helper.make_node("Relu", ["a"], ["y"], name="relu"),
        ],
        {},
        {"y": (FLOAT, None)},
        ZERO,
    )
    model.graph.input.append(helper.make_value_info("x", kind))
    _, printed = checked(tmp_path, model, {"x": [np.array([np.nan, 1], np.float32)]})
    assert "born" not in printed
    assert "given   step 0  an element that out takes out" in printed
