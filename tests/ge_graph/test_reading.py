"""Reading graph files: opdump's in both forms, those of devices, and hostile ones."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from hypothesis import given, settings
from hypothesis import strategies as st

from opdump.errors import CorruptDumpError
from opdump.layouts.graph_files.ge import (
    COMPUTE_GRAPH,
    GeGraph,
    GeOperator,
    GeOrigin,
    GeTensor,
    is_computational,
    is_graph_name,
    read_ge_graph,
    root_name,
    write_ge_graph,
)
from opdump.layouts.graph_files.ge.reading import parse_text_tree
from tests.ge_graph.graphs import OF_A_DEVICE, graph

TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
NUMBER = st.integers(-(2**63), 2**63 - 1)
# Text keeps eight digits of a number, JSON all of them: these have fewer.
FLOAT = st.one_of(
    st.integers(-(2**16), 2**16).map(lambda number: number / 8), st.sampled_from([float("inf"), float("-inf")])
)
ATTRIBUTE = st.one_of(
    st.booleans(),
    NUMBER,
    FLOAT,
    TEXT,
    *(st.lists(each, max_size=3) for each in (st.booleans(), NUMBER, FLOAT, TEXT)),
)
ATTRIBUTES = st.dictionaries(TEXT.filter(lambda key: not key.startswith("_")), ATTRIBUTE, max_size=4)
SHAPE = st.one_of(st.none(), st.lists(st.integers(-1, 2**40), max_size=4).map(tuple))
TENSOR = st.builds(GeTensor, st.sampled_from(["", "float32", "bfloat16", "bool", "string", "resource"]), SHAPE)
SOURCE = st.builds("{}:{}".format, TEXT, st.integers(-1, 9))


@st.composite
def operators(draw: st.DrawFn) -> GeOperator:
    outputs = tuple(draw(st.lists(TENSOR, max_size=3)))
    origins = tuple(draw(st.one_of(st.none(), st.builds(GeOrigin, TEXT, st.integers(0, 9)))) for _ in outputs)
    return GeOperator(
        name=draw(TEXT),
        op_type=draw(TEXT),
        inputs=tuple(draw(st.lists(st.one_of(st.just(""), SOURCE), max_size=3))),
        input_tensors=tuple(draw(st.lists(TENSOR, max_size=3))),
        input_names=tuple(draw(st.lists(TEXT, max_size=3))),
        constant_inputs=tuple(draw(st.lists(st.booleans(), max_size=3))),
        outputs=outputs,
        origins=origins if any(origins) else (),
        original_names=tuple(draw(st.lists(TEXT, max_size=2))),
        attributes=draw(ATTRIBUTES),
        subgraphs=tuple(draw(st.lists(TEXT, max_size=2))),
        runs=draw(st.booleans()),
    )


GRAPH = st.builds(
    GeGraph,
    name=TEXT,
    inputs=st.lists(SOURCE, max_size=2).map(tuple),
    outputs=st.lists(SOURCE, max_size=2).map(tuple),
    operators=st.lists(operators(), max_size=3).map(tuple),
    attributes=ATTRIBUTES,
)


@given(graphs=st.lists(GRAPH, min_size=1, max_size=3))
@settings(max_examples=60, deadline=None)
def test_what_is_written_is_read_back_from_either_file(
    graphs: list[GeGraph], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = write_ge_graph(tmp_path_factory.mktemp("graphs"), 1, graphs)
    assert read_ge_graph(path) == tuple(graphs)
    assert read_ge_graph(path.with_name(f"{path.name}.json")) == tuple(graphs)
    names = read_ge_graph(path, names_only=True)
    assert [(each.name, each.attributes) for each in names] == [(each.name, each.attributes) for each in graphs]
    assert [[(op.name, op.op_type) for op in each.operators] for each in names] == [
        [(op.name, op.op_type) for op in each.operators] for each in graphs
    ]


def test_a_file_of_a_device_is_read(tmp_path: Path) -> None:
    path = tmp_path / "ge_proto_00000292_graph_11_Build.txt"
    path.write_text(OF_A_DEVICE, encoding="utf-8")
    root, sub = read_ge_graph(path)
    iterator, conv = root.operators
    assert (root.name, root.inputs, sub) == ("ge_default_20200808163719_121", ("IteratorV2:0",), GeGraph(name="sub"))
    assert iterator.attributes == {
        "op_para_size": -(2**63),
        "scale": 1.5e-3,
        "low": float("-inf"),
    }
    assert iterator.outputs == (GeTensor("bfloat16", (1, -1), "NC1HWC0"), GeTensor())
    assert iterator.origins == (GeOrigin("IteratorV2", 0), None)
    assert conv.name == "convü"
    assert conv.inputs == ("IteratorV2:0", "", "IteratorV2:-1")
    assert conv.constant_inputs == (False, True)
    assert is_computational((root, sub)) == "IteratorV2"
    assert is_computational(read_ge_graph(path, names_only=True)) == "IteratorV2"


def _message_of_everything() -> Any:
    """A message with a field of each kind, and itself."""
    scalar = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="all.proto", syntax="proto2")
    message = file.message_type.add(name="All")
    kinds = (scalar.TYPE_STRING, scalar.TYPE_INT64, scalar.TYPE_DOUBLE, scalar.TYPE_UINT64, scalar.TYPE_MESSAGE)
    for number, (name, kind) in enumerate(zip("sidum", kinds, strict=True), 1):
        field = message.field.add(name=name, number=number, label=scalar.LABEL_REPEATED, type=kind)
        if kind == scalar.TYPE_MESSAGE:
            field.type_name = ".All"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("All"))


ALL = _message_of_everything()
KNOWN: dict[str, Any] = {"s": {}, "i": {}, "d": {}, "u": {}}
KNOWN["m"] = KNOWN


@st.composite
def messages(draw: st.DrawFn, depth: int = 0) -> Any:
    below = draw(st.lists(messages(depth=depth + 1), max_size=2)) if depth < 3 else []
    message = ALL(
        s=draw(st.lists(TEXT, max_size=2)),
        i=draw(st.lists(NUMBER, max_size=2)),
        d=draw(st.lists(st.floats(allow_nan=False), max_size=2)),
        u=draw(st.lists(st.integers(0, 2**64 - 1), max_size=2)),
    )
    for each in below:
        message.m.add().CopyFrom(each)
    return message


def _tree(message: Any) -> dict[str, list[Any]]:
    tree = {}
    for field, values in message.ListFields():
        tree[field.name] = [_tree(each) for each in values] if field.name == "m" else list(values)
    return tree


@given(
    message=messages(),
    one_line=st.booleans(),
    utf8=st.booleans(),
    pointy=st.booleans(),
    short=st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_the_text_format_is_read_as_protobuf_writes_it(
    message: Any, one_line: bool, utf8: bool, pointy: bool, short: bool
) -> None:
    text = text_format.MessageToString(
        message, as_one_line=one_line, as_utf8=utf8, pointy_brackets=pointy, use_short_repeated_primitives=short
    )
    tree = parse_text_tree(text, KNOWN, "a.txt")
    assert _as_numbers(tree) == _tree(message)
    assert parse_text_tree(text, {}, "a.txt") == {}, "all of it is ignored"


def _as_numbers(tree: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """`inf` is a name in the text format."""
    found = {**tree}
    if "d" in found:
        found["d"] = [float(value) for value in found["d"]]
    if "m" in found:
        found["m"] = [_as_numbers(each) for each in found["m"]]
    return found


@given(text=st.text(st.sampled_from("graph{}<>[]:;,\"'\\ \n#name op 01x.-e\x00é"), max_size=60))
@settings(max_examples=300, deadline=None)
def test_no_text_breaks_the_reader(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("hostile")
    for suffix in ("", ".json"):
        path = directory / f"ge_proto_00001_Build.txt{suffix}"
        path.write_text(text)
        with contextlib.suppress(CorruptDumpError):  # no other error may be raised
            assert all(isinstance(each, GeGraph) for each in read_ge_graph(path))


def test_a_file_that_was_cut_off_is_corrupt_wherever_it_was_cut(tmp_path: Path) -> None:
    path = write_ge_graph(tmp_path, 1, [graph("net", "Data", "Conv2D", "Relu")])
    for file in (path, path.with_name(f"{path.name}.json")):
        whole = file.read_bytes().rstrip()
        for length in range(0, len(whole) - 1, 31):
            file.write_bytes(whole[:length])
            with pytest.raises(CorruptDumpError, match="ge_proto_00001_Build"):
                read_ge_graph(file)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no graph"),
        ("name: 'm'", "holds no graph"),
        ("graph: 7", "graph: found 7, expected a message"),
        ("graph { name: 7 }", "graph 0: name: found 7, expected a text"),
        ('graph { op { name: "a" type: [1] } }', "graph 0, op 0: type: found 1"),
        ('graph { op { output_desc { shape { dim: "x" } } } }', "expected a whole number"),
        ("graph {\n\n name $ }", r"line 3: found text that is not in this format"),
        ("graph { name }", "expected ':'"),
        ("graph { name: }", "found '}', expected a value"),
        ("graph } ", "found '}' after 'graph'"),
        ("graph { op { ] } }", "expected the name of a field"),
        ('graph { name: "abc', "text that is not in this format"),
        ("m { " * 500, "does not end"),
        ("graph { op { attr { value { list " + "< s: " * 200, "damaged"),
        ("x: [" * 3000, "expected a value"),
        ("a < b { > }", "where another message ends"),
    ],
)
def test_a_hostile_text_gives_one_error_that_says_where(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "ge_proto_00001_Build.txt"
    path.write_text(text)
    with pytest.raises(CorruptDumpError) as caught:
        read_ge_graph(path)
    assert said in str(caught.value)
    assert len(str(caught.value)) < 400 + len(str(tmp_path))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([], "is list in JSON"),
        ({"graph": [1]}, "found 1, expected a message"),
        ({"graph": [{"op": [{"name": {}}]}]}, "op 0: name: found a message, expected a text"),
        ({"graph": [{"op": [{"attr": [{"key": "a", "value": {"f": "x"}}]}]}]}, "expected a number"),
        ({"graph": [{"op": [{"attr": [{"key": "a", "value": {"b": 7}}]}]}]}, "expected true or false"),
        ({"graph": [{"op": [{"attr": [{"key": [], "value": {"i": 7}}]}]}]}, None),
        ({"graph": [{"op": [{"input": [float("nan")]}]}]}, "found nan"),
    ],
)
def test_a_hostile_json_gives_one_error(value: Any, said: str | None, tmp_path: Path) -> None:
    path = tmp_path / "ge_proto_00001_Build.txt.json"
    path.write_text(json.dumps(value))
    if said is None:
        assert read_ge_graph(path)[0].operators[0].attributes == {"": 7}
        return
    with pytest.raises(CorruptDumpError, match=said):
        read_ge_graph(path)


def test_json_nested_beyond_measure_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "ge_proto_00001_Build.txt.json"
    path.write_text('{"graph":' * 100_000)
    with pytest.raises(CorruptDumpError, match="is not JSON"):
        read_ge_graph(path)


def test_what_is_no_file_is_an_error_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, said in (
        (tmp_path / "pipe", "not a regular file"),
        (tmp_path, "not a regular file"),
        (tmp_path / "x", "cannot be read"),
    ):
        with pytest.raises(CorruptDumpError, match=said):
            read_ge_graph(path)
        assert root_name(path) is None
    with (tmp_path / "large").open("wb") as stream:
        stream.truncate((1 << 30) + 1)
    with pytest.raises(CorruptDumpError, match="DUMP_GE_GRAPH=2"):
        read_ge_graph(tmp_path / "large")


@pytest.mark.parametrize(
    ("graphs", "rule"),
    [
        ([graph("n", "IteratorV2", "Conv2D")], "IteratorV2"),
        ([graph("n", "Iterator")], "Iterator"),
        ([graph("n", "GetNext")], "GetNext"),
        ([graph("n", "IteratorGetNext", "Conv2D")], "IteratorGetNext"),
        ([graph("n", "Conv2D"), graph("body", "IteratorV2")], "IteratorV2"),
        ([graph("n", "IteratorV2", "MakeIterator")], None),
        ([graph("n", "IteratorV2", "MakeIterator", "IteratorGetNext")], "IteratorV2"),
        ([graph("n", "Conv2D", attributes={COMPUTE_GRAPH: True})], COMPUTE_GRAPH),
        ([graph("n", "Conv2D", attributes={COMPUTE_GRAPH: False})], None),
        ([graph("n", "IteratorV2", attributes={COMPUTE_GRAPH: True})], "IteratorV2"),
        ([graph("n", "VarHandleOp", "AssignVariableOp")], None),
        ([], None),
    ],
)
def test_the_rule_of_the_document(graphs: list[GeGraph], rule: str | None) -> None:
    assert is_computational(graphs) == rule


def test_the_mark_is_an_attribute_of_the_graph(tmp_path: Path) -> None:
    path = write_ge_graph(tmp_path, 1, [graph("n", "Conv2D", attributes={COMPUTE_GRAPH: True})])
    as_json = json.loads(path.with_name(f"{path.name}.json").read_text())
    assert as_json["graph"][0]["attr"] == [{"key": "_opdump_compute_graph", "value": {"b": True}}]
    assert is_computational(read_ge_graph(path)) == COMPUTE_GRAPH


def test_edges_without_a_value_are_known_from_both_ends(tmp_path: Path) -> None:
    path = write_ge_graph(tmp_path, 1, [graph("n", "NoOp", "Relu")])
    first, second = json.loads(path.with_name(f"{path.name}.json").read_text())["graph"][0]["op"]
    assert (second["src_name"], second["src_index"]) == (["noop_0", "noop_0"], [0, -1])
    assert (first["dst_name"], first["dst_index"]) == (["relu_1", "relu_1"], [0, -1])
    assert len(second["input_desc"]) == 1


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("ge_proto_00292_Build.txt", True),
        ("ge_proto_00292_Build.txt.json", True),
        ("ge_proto_00000292_graph_11_Build.txt", True),
        ("ge_proto_00000292_aclop_graph_11_Build.txt", True),
        ("ge_proto_00292_PreRunBegin.txt", False),
        ("ge_proto_00292_Build.txt.swp", False),
        ("ge_onnx_00292_Build.pbtxt", False),
        ("../ge_proto_00292_Build.txt", False),
    ],
)
def test_names_of_graph_files(name: str, is_one: bool) -> None:
    assert is_graph_name(name) is is_one


def test_the_name_of_the_root_is_recognised_in_the_head_of_a_file(tmp_path: Path) -> None:
    path = write_ge_graph(tmp_path, 1, [graph("ge_default_1", "Relu")])
    assert root_name(path) == "ge_default_1"
    path.write_text('op { } graph { name: "x" }')
    assert root_name(path) is None
