"""The graph of an offline model beside its dump, read by a descriptor built here from the public schema."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from onnx import helper

from opdump import acl
from opdump.layouts.graph_files.ge import GeGraph, GeOperator, GeTensor, write_ge_graph
from opdump.onnx import session
from tests.acl.program import config, execute, feeds_of, load, nodes_dumped, numbers, ok, write_model

pytestmark = pytest.mark.torch  # the models are exported from PyTorch

# Message, then fields as "name number type"; "*" repeats, "map" is a map to that message, "|" is in the oneof `value`.
_SCHEMA = {
    "ModelDef": "name 1 string, version 2 uint32, custom_version 3 string, graph 7 *GraphDef, attr 11 map:AttrDef",
    "GraphDef": "name 1 string, input 4 *string, output 5 *string, op 6 *OpDef, attr 11 map:AttrDef",
    "OpDef": "name 1 string, type 2 string, input 5 *string, attr 10 map:AttrDef, id 21 int64, stream_id 22 int64,"
    " input_name 23 *string, src_name 24 *string, src_index 25 *int64, dst_name 26 *string, dst_index 27 *int64,"
    " input_i 28 *int64, output_i 29 *int64, workspace 30 *int64, workspace_bytes 31 *int64, is_input_const 32 *bool,"
    " input_desc 33 *TensorDescriptor, output_desc 34 *TensorDescriptor, subgraph_name 35 *string",
    "TensorDescriptor": "name 1 string, dtype 2 #DataType, shape 3 ShapeDef, layout 4 string, attr 5 map:AttrDef,"
    " size 10 int64, weight_size 11 int64, device_type 14 string, real_dim_cnt 16 int64",
    "ShapeDef": "dim 1 *int64",
    "AttrDef": "list 1 |ListValue, s 2 |bytes, i 3 |int64, f 4 |float, b 5 |bool",
    "ListValue": "s 2 *bytes, i 3 *int64, f 4 *float, b 5 *bool, val_type 20 #ListValueType",
}
_DATA_TYPES = (
    "UNDEFINED",
    "FLOAT",
    "FLOAT16",
    "INT8",
    "UINT8",
    "INT16",
    "UINT16",
    "INT32",
    "INT64",
    "UINT32",
    "UINT64",
    "BOOL",
)
_LIST_TYPES = ("NONE", "STRING", "INT", "FLOAT", "BOOL")


def _model_def() -> Any:
    scalar = descriptor_pb2.FieldDescriptorProto
    kinds = {
        "string": scalar.TYPE_STRING, "bytes": scalar.TYPE_BYTES, "int64": scalar.TYPE_INT64, "uint32": scalar.TYPE_UINT32,
        "float": scalar.TYPE_FLOAT, "bool": scalar.TYPE_BOOL,
    }  # fmt: skip
    file = descriptor_pb2.FileDescriptorProto(name="ge_ir.proto", package="ge.proto", syntax="proto3")
    for name, values in {
        "DataType": {f"DT_{each}": number for number, each in enumerate(_DATA_TYPES)},
        "ListValueType": {f"VT_LIST_{each}": number for number, each in enumerate(_LIST_TYPES)},
    }.items():
        enum = file.enum_type.add(name=name)
        for value, value_number in values.items():
            enum.value.add(name=value, number=value_number)
    for message_name, text in _SCHEMA.items():
        message = file.message_type.add(name=message_name)
        for entry in text.split(","):
            field_name, number, kind = entry.split()
            field = message.field.add(name=field_name, number=int(number), label=scalar.LABEL_OPTIONAL)
            if kind.startswith("|"):
                if not message.oneof_decl:
                    message.oneof_decl.add(name="value")
                field.oneof_index = 0
            if kind.startswith(("*", "map:")):
                field.label = scalar.LABEL_REPEATED
            if kind.startswith("map:"):
                nested = message.nested_type.add(name="AttrEntry")
                nested.options.map_entry = True
                nested.field.add(name="key", number=1, label=scalar.LABEL_OPTIONAL, type=scalar.TYPE_STRING)
                nested.field.add(
                    name="value",
                    number=2,
                    label=scalar.LABEL_OPTIONAL,
                    type=scalar.TYPE_MESSAGE,
                    type_name=".ge.proto.AttrDef",
                )
                field.type, field.type_name = scalar.TYPE_MESSAGE, f".ge.proto.{message_name}.AttrEntry"
                continue
            element = kind.lstrip("|*#")
            if element in kinds:
                field.type = kinds[element]
            else:
                field.type = scalar.TYPE_ENUM if "#" in kind else scalar.TYPE_MESSAGE
                field.type_name = f".ge.proto.{element}"
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("ge.proto.ModelDef"))()


def _graph(dump: Path) -> tuple[Any, dict[str, Any]]:
    """The first graph of the only graph file below a directory, and the same graph from the JSON beside it."""
    model, beside = _model(dump)
    return model.graph[0], beside["graph"][0]


def _model(dump: Path) -> tuple[Any, dict[str, Any]]:
    (path,) = dump.rglob("ge_proto_*_Build.txt")
    # Every known reader finds a name of this form.
    assert re.fullmatch(r"ge_proto_([0-9]{5})_([A-Za-z0-9_-]+)\.txt", path.name)
    model = text_format.Parse(path.read_text(), _model_def())
    assert model.name == ""
    return model, json.loads(path.with_name(f"{path.name}.json").read_text())


def _attr(entry: Mapping[str, Any], name: str) -> Any:
    return next((each["value"] for each in entry.get("attr", ()) if each["key"] == name), None)


def test_the_graph_of_a_convnet_stands_beside_its_dump(dump: Path, tmp_path: Path) -> None:
    path = write_model(tmp_path, "convnet", "net.onnx")
    ok(acl.init())
    ok(acl.mdl.init_dump())
    ok(acl.mdl.set_dump(str(config(tmp_path, dump))))
    execute(load(path), feeds_of("convnet"))
    ok(acl.mdl.finalize_dump())
    graph, as_json = _graph(dump)
    assert graph.name == "net"
    operators = {op.name: op for op in graph.op}
    for node in onnx.load(path).graph.node:
        op = operators[node.name]
        assert op.type == node.op_type
        assert list(op.attr["_datadump_original_op_names"].list.s) == [node.name.encode()]
        assert op.output_desc[0].attr["_datadump_origin_name"].s.decode() == node.name
        assert op.output_desc[0].attr["_datadump_origin_output_index"].WhichOneof("value") == "i"
        assert len(op.input) == len(node.input)
    with_task = {op.name for op in graph.op if not op.attr["_no_task"].b}
    assert nodes_dumped(dump) == with_task
    assert operators["x"].type == "Data"
    convolution = next(op for op in graph.op if op.type == "Conv")
    assert convolution.input[0] == "x:0"
    assert list(convolution.is_input_const)[:2] == [False, True]
    assert list(convolution.output_desc[0].shape.dim) == [2, 4, 6, 6]
    assert convolution.output_desc[0].size == 2 * 4 * 6 * 6 * 4
    assert list(convolution.attr["pads"].list.i) == [1, 1, 1, 1]
    last = graph.op[-1]
    assert last.type == "NetOutput"
    assert list(last.input) == list(graph.output)
    # Both ends of an edge name it.
    readers = {(name, slot) for op in graph.op for name, slot in zip(op.dst_name, op.dst_index, strict=True)}
    assert readers == {(op.name, slot) for op in graph.op for slot, source in enumerate(op.input) if source}
    # Other tools read the JSON: they expect maps as lists, and zeros spelled out.
    assert isinstance(as_json["op"], list)
    for op in as_json["op"]:
        assert isinstance(op["name"], str)
        assert isinstance(op["type"], str)
        if op["type"] != "NetOutput":
            assert _attr(op, "_datadump_original_op_names")["list"]["s"]
        for output in op.get("output_desc", ()):
            assert _attr(output, "_datadump_origin_output_index")["i"] >= 0
            assert _attr(output, "_datadump_origin_format")["s"] == "ND"
            assert output["dtype"].startswith("DT_")


def test_an_optimised_graph_names_what_its_operators_replace(dump: Path, tmp_path: Path) -> None:
    path = write_model(tmp_path, "convnet", "net.onnx")
    with session(path, dump_path=str(dump), dump_list=[{}], optimize="extended") as model:
        model.run(None, feeds_of("convnet"))
    graph, _ = _graph(dump)
    original = [node.name for node in onnx.load(path).graph.node if node.op_type != "Identity"]
    (fused,) = [op for op in graph.op if op.type == "FusedConv"]
    names = {op.name: [name.decode() for name in op.attr["_datadump_original_op_names"].list.s] for op in graph.op}
    assert names[fused.name] == ["/conv1/Conv", "/bn1/BatchNormalization", "/Relu"]
    assert fused.output_desc[0].attr["_datadump_origin_name"].s == b"/Relu"
    found = [name for op in graph.op if op.type not in ("Data", "Const") for name in names[op.name]]
    assert sorted(found) == sorted(set(original) - {"/Constant"}), (
        "each original operator appears once, except one that became a constant"
    )
    assert nodes_dumped(dump) == {op.name for op in graph.op if not op.attr["_no_task"].b}


def test_what_runs_no_task_is_marked(dump: Path, tmp_path: Path) -> None:
    def body(name: str) -> onnx.GraphProto:
        return helper.make_graph(
            [helper.make_node("Neg" if name == "then" else "Abs", ["x"], [f"{name}_y"], name)],
            name,
            [],
            [helper.make_tensor_value_info(f"{name}_y", 1, (3,))],
        )

    nodes = [
        helper.make_node("Constant", [], ["c"], "number", value_float=2.0),
        helper.make_node("Mul", ["x", "c"], ["m"], "times"),
        helper.make_node("ReduceSum", ["m"], ["s"], "sum", keepdims=0),
        helper.make_node("Greater", ["s", "c"], ["b"], "greater"),
        helper.make_node("If", ["b"], ["y"], "either", then_branch=body("then"), else_branch=body("else")),
    ]
    graph = helper.make_graph(
        nodes, "graph", [helper.make_tensor_value_info("x", 1, (3,))], [helper.make_tensor_value_info("y", 1, (3,))]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    with session(model, dump_path=str(dump), dump_list=[{}]) as dumped:
        dumped.run(None, {"x": numbers(3)})
    model_def, as_json = _model(dump)
    written, *bodies = model_def.graph
    without = {op.name for op in written.op if op.attr["_no_task"].b}
    assert without == {"x", "number", "either", "Node_Output"}
    control = next(op for op in written.op if op.name == "either")
    assert list(control.subgraph_name) == [graph.name for graph in bodies] == ["else", "then"]
    assert [[op.name for op in graph.op if not op.attr["_no_task"].b] for graph in bodies] == [["else"], ["then"]]
    for graph in bodies:
        data, node, output = graph.op
        assert data.type == "Data"
        assert list(node.input) == [f"{data.name}:0"] == list(graph.input), "values read from outside"
        assert list(output.input) == [f"{node.name}:0"] == list(graph.output)
        assert list(node.output_desc[0].shape.dim) == [3]
    assert [graph["name"] for graph in as_json["graph"]] == ["graph", "else", "then"]
    ran = {op.name for graph in model_def.graph for op in graph.op if not op.attr["_no_task"].b}
    assert nodes_dumped(dump) <= ran
    assert ran - nodes_dumped(dump) <= {"then", "else"}
    scalar = next(op for op in written.op if op.name == "sum").output_desc[0]
    assert list(scalar.shape.dim) == []
    assert "origin_shape" not in scalar.attr


def test_an_unknown_operator_set_leaves_shapes_open(dump: Path) -> None:
    node = helper.make_node("FusedMatMul", ["x", "x"], ["m"], "product", domain="com.microsoft", transB=1)
    graph = helper.make_graph(
        [node, helper.make_node("Relu", ["m"], ["y"], "relu")],
        "graph",
        [helper.make_tensor_value_info("x", 1, ("N", 3))],
        [helper.make_tensor_value_info("y", 1, None)],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)], ir_version=10
    )
    with session(model, dump_path=str(dump), dump_list=[{}]) as dumped:
        dumped.run(None, {"x": numbers(2, 3)})
    written, _ = _graph(dump)
    operators = {op.name: op for op in written.op}
    assert list(operators["x"].output_desc[0].shape.dim) == [-1, 3]
    assert list(operators["product"].output_desc[0].shape.dim) == [-2], "not even the number of dimensions is known"


def test_attributes_of_every_kind_keep_their_values(tmp_path: Path) -> None:
    attributes = {
        "zero": 0, "float": 0.0, "false": False, "text": "ü", "numbers": [1, 2], "floats": [0.5], "flags": [True, False],
        "texts": ["a"], "empty": [], "mixed": [1, "x"], "large": 2**70, "inf": float("inf"), "tensor": {"dtype": "int64"},
    }  # fmt: skip
    operator = GeOperator(
        name="node", op_type="Relu", inputs=("", "x:0"), input_tensors=(GeTensor(), GeTensor("float32", ())),
        outputs=(GeTensor("float16", (-1, 2)),), attributes=attributes,
    )  # fmt: skip
    path = write_ge_graph(tmp_path / "new", 7, [GeGraph(name="é", operators=(operator,))])
    assert path.name == "ge_proto_00007_Build.txt"
    graph, as_json = _graph(tmp_path)
    found = graph.op[0].attr
    assert (found["zero"].i, found["float"].f, found["false"].b) == (0, 0.0, False)
    assert [found[name].WhichOneof("value") for name in ("zero", "float", "false", "empty")] == ["i", "f", "b", "list"]
    assert found["text"].s.decode() == "ü"
    assert (list(found["numbers"].list.i), list(found["floats"].list.f)) == ([1, 2], [0.5])
    assert (list(found["flags"].list.b), list(found["texts"].list.s)) == ([True, False], [b"a"])
    assert found["inf"].f == float("inf")
    assert json.loads(found["mixed"].s) == [1, "x"]
    assert json.loads(found["large"].s) == 2**70
    assert json.loads(found["tensor"].s) == {"dtype": "int64"}
    assert graph.name == as_json["name"] == "é"
    assert _attr(as_json["op"][0], "zero") == {"i": 0}
    assert _attr(as_json["op"][0], "false") == {"b": False}
    assert _attr(as_json["op"][0], "inf") == {"f": "inf"}
    assert list(graph.op[0].input) == ["", "x:0"]
    assert graph.op[0].output_desc[0].size == 0, "one dimension is unknown"


def test_nothing_dumped_no_graph(dump: Path, tmp_path: Path) -> None:
    path = write_model(tmp_path, "convnet", "net.onnx")
    with session(path, dump_path=str(dump), dump_list=[{"model_name": "another"}]) as model:
        model.run(None, feeds_of("convnet"))
    assert list(dump.iterdir()) == []
