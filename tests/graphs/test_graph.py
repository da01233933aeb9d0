"""Graphs: building, reading what was written, files of MindSpore, corrupt files."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opdump.errors import CorruptDumpError
from opdump.graph import Graph, GraphBuilder, GraphNode, GraphOutput, GraphValue
from opdump.layouts.graph_files.mindspore import (
    decode_execution_history,
    decode_execution_order,
    decode_ir,
    decode_pb,
    encode_execution_history,
    encode_execution_order,
    encode_ir,
    encode_pb,
)
from opdump.layouts.graph_files.mindspore.pb import model_proto
from opdump.records import Frame
from tests.graphs.examples import DATA, graphs, small_graph, without_functions


def test_a_builder_keeps_operators_in_the_order_of_their_first_execution() -> None:
    builder = GraphBuilder(2)
    for name in ("b-op0", "a-op1", "b-op0", "c-op2", "a-op1"):
        builder.add(GraphNode(op_name=name, op_type="add"))
    assert [node.op_name for node in builder.build().nodes] == ["b-op0", "a-op1", "c-op2"]


def test_an_operator_of_a_later_step_does_not_replace_the_first() -> None:
    builder = GraphBuilder(0)
    first = GraphNode(op_name="add-op0", op_type="add")
    assert builder.add(first)
    assert not builder.add(GraphNode(op_name="add-op0", op_type="add", runs_kernel=False))
    assert builder.build().nodes == (first,)


def test_an_unchanged_size_means_an_unchanged_graph() -> None:
    builder = GraphBuilder(0)
    builder.add(GraphNode(op_name="add-op0", op_type="add"))
    assert builder.add_parameter(GraphValue("fc.weight", "float32", (2,)))
    before, graph = builder.size, builder.build()
    assert not builder.add(GraphNode(op_name="add-op0", op_type="add"))
    assert not builder.add_parameter(GraphValue("fc.weight", "float32", (2,)))
    assert (builder.size, builder.build()) == (before, graph)
    assert builder.add_constant(GraphValue("data-0", "int64", ()))
    assert builder.size == before + 1


def test_a_graph_that_was_built_does_not_grow_with_its_builder() -> None:
    builder = GraphBuilder(0)
    graph = builder.build()
    builder.add(GraphNode(op_name="add-op0", op_type="add"))
    assert graph.nodes == ()
    assert "add-op0" in builder
    assert len(builder) == 1


def test_views_are_nodes_and_no_kernels() -> None:
    builder = GraphBuilder(0)
    builder.add(GraphNode(op_name="view-op0", op_type="view", runs_kernel=False))
    builder.add(GraphNode(op_name="add-op1", op_type="add"))
    graph = builder.build()
    assert [node.op_name for node in graph.nodes] == ["view-op0", "add-op1"]
    assert [node.op_name for node in graph.kernels] == ["add-op1"]


def test_a_node_is_found_by_its_full_name() -> None:
    builder = GraphBuilder(0)
    builder.add(GraphNode(op_name="Default/add-op0", op_type="add"))
    assert builder.build().node("Default/add-op0").op_type == "add"
    with pytest.raises(KeyError, match="add-op9"):
        builder.build().node("Default/add-op9")


LAYOUTS: tuple[Literal["mindspore-2.3", "mindspore-2.10"], ...] = ("mindspore-2.3", "mindspore-2.10")


def test_a_pb_file_gives_back_its_graph() -> None:
    assert decode_pb(encode_pb(small_graph())) == without_functions(small_graph())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_ir_file_gives_back_its_graph(layout: Literal["mindspore-2.3", "mindspore-2.10"]) -> None:
    assert decode_ir(encode_ir(small_graph(), layout=layout)) == without_functions(small_graph())


@given(graphs())
def test_any_graph_survives_a_pb_file(graph: Graph) -> None:
    assert decode_pb(encode_pb(graph)) == graph


@given(graphs())
@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_graph_survives_an_ir_file(layout: Literal["mindspore-2.3", "mindspore-2.10"], graph: Graph) -> None:
    assert decode_ir(encode_ir(graph, layout=layout)) == graph


@given(graphs())
def test_the_execution_order_lists_the_kernels(graph: Graph) -> None:
    assert decode_execution_order(encode_execution_order(graph)) == tuple(node.op_name for node in graph.kernels)


def test_the_execution_order_has_a_header_and_a_last_line_end() -> None:
    lines = encode_execution_order(small_graph()).decode().split("\n")
    assert lines == [
        "NodeExecutionOrder-FullNameWithScope",
        "Default/network-LeNet/conv3-Conv2d/convolution-op0",
        "Gradients/Default/network-LeNet/conv3-Conv2d/convolution_backward-op2",
        "Default/optimizer-SGD/step-op3",
        "",
    ]


def test_the_history_is_one_step_a_line() -> None:
    assert encode_execution_history([0, 1, 7]) == b"0\n1\n7\n"
    assert decode_execution_history(b"0\n1\n0\n1\n") == (0, 1, 0, 1)
    assert decode_execution_history(encode_execution_history([])) == ()


def test_the_same_graph_gives_the_same_bytes() -> None:
    assert encode_pb(small_graph()) == encode_pb(small_graph())


def test_a_name_that_is_no_text_does_not_stop_the_writers() -> None:
    from opdump.graph import GraphNode, GraphValue
    from opdump.records import Frame

    node = GraphNode(
        op_name="Default/caf\udce9-op0",
        op_type="add",
        attributes={"a\udce9": "b\udce9", "c": {1, 2}},
        stack=(Frame("caf\udce9.py", 1, "", "a\nb"),),
    )
    graph = Graph(graph_id=0, root_name="0", nodes=(node,), parameters=(GraphValue("w\udce9", "float32", (1,)),))
    assert [found.op_name for found in decode_pb(encode_pb(graph)).nodes] == ["Default/caf\\udce9-op0"]
    assert [found.stack[0].code for found in decode_ir(encode_ir(graph)).nodes] == ["a b"]
    assert decode_execution_order(encode_execution_order(graph)) == ("Default/caf\\udce9-op0",)


GRAPHS = sorted(DATA.glob("*/*.pb"))
FORWARD_LENET = "Default/network-WithLossCell/_backbone-LeNet/conv1-Conv2d/Conv2D-op0"


def _both(pb: Path) -> tuple[Graph, Graph]:
    ir = pb.with_suffix(".ir")
    return decode_pb(pb.read_bytes(), where=pb.name), decode_ir(ir.read_bytes(), where=ir.name)


def test_the_files_are_there() -> None:
    assert len(GRAPHS) == 11


@pytest.mark.parametrize("pb", GRAPHS, ids=lambda path: f"{path.parent.name}-{path.stem[-1]}")
def test_pb_and_ir_agree_about_every_node(pb: Path) -> None:
    from_pb, from_ir = _both(pb)
    assert from_pb.graph_id == from_ir.graph_id == int(pb.stem.rsplit("_", 1)[1])
    assert from_pb.parameters == from_ir.parameters
    assert len(from_pb.nodes) == len(from_ir.nodes)
    for first, second in zip(from_pb.nodes, from_ir.nodes, strict=True):
        assert first.op_name == second.op_name
        assert (first.op_type, first.phase, first.runs_kernel) == (second.op_type, second.phase, second.runs_kernel)
        assert [output.dtype for output in first.outputs] == [output.dtype for output in second.outputs]
        assert len(first.inputs) == len(second.inputs)
        for left, right in zip(first.inputs, second.inputs, strict=True):
            if right.source:  # the .ir writes constants into the argument list, the .pb names them
                assert left.source == right.source
                assert left.dtype == right.dtype
        if first.phase == "forward":
            assert [(frame.line, frame.code) for frame in first.stack] == [
                (frame.line, frame.code) for frame in second.stack
            ]


@pytest.mark.parametrize("pb", GRAPHS, ids=lambda path: f"{path.parent.name}-{path.stem[-1]}")
def test_the_nodes_that_run_a_kernel_are_those_of_the_execution_order(pb: Path) -> None:
    order = decode_execution_order((pb.parent / f"ms_execution_order_graph_{pb.stem[-1]}.csv").read_bytes())
    for graph in _both(pb):
        assert sorted(node.op_name for node in graph.kernels) == sorted(order)


@pytest.mark.parametrize("version", ["ms210_lenet", "ms270_lenet"])
def test_a_convolution_of_lenet_is_read_in_full(version: str) -> None:
    for graph in _both(DATA / version / "ms_output_trace_code_graph_0.pb"):
        node = graph.node(FORWARD_LENET)
        assert node.op_type == "Conv2D"
        assert [value.source for value in node.inputs] == [
            "Parameter.inputs0",
            "Default/network-WithLossCell/_backbone-LeNet/Load-op0:0",
        ]
        assert [(value.dtype, value.shape) for value in node.inputs] == [
            ("float32", (2, 1, 28, 28)),
            ("float32", (4, 1, 5, 5)),
        ]
        assert node.outputs == (GraphOutput("float32", (2, 4, 24, 24)),)
        assert node.attributes["kernel_size"] == [5, 5]
        assert node.attributes["pad_mode"] == "valid"
        assert node.attributes["groups"] == 1
        assert node.attributes["IsFeatureMapOutput"] is True
        assert Path(node.stack[0].file).name == "conv.py"
        assert node.stack[0].code == "output = self.conv2d(x, self.weight)"
        script = [frame for frame in node.stack if Path(frame.file).name == "lenet.py"]
        assert (script[0].line, script[0].code) == (22, "x = self.pool(self.relu(self.conv1(x)))")


def test_a_tuple_output_has_one_type_for_each_of_its_tensors() -> None:
    from_pb, from_ir = _both(DATA / "ms210_constants" / "ms_output_trace_code_graph_0.pb")
    assert from_ir.node("Default/Split-op0").outputs == (GraphOutput("float32", (1, 3)), GraphOutput("float32", (1, 3)))
    assert from_pb.node("Default/Split-op0").outputs == (GraphOutput("float32", ()), GraphOutput("float32", ()))
    assert [value.name for value in from_pb.constants] == [f"data-{index}" for index in range(6)]
    assert len(from_ir.node("Default/Mul-op0").inputs) == 2  # one of them a constant written over three lines


def test_bfloat16_is_read_from_both_files() -> None:
    for graph in _both(DATA / "ms210_dtypes" / "ms_output_trace_code_graph_0.pb"):
        assert {value.name: value.dtype for value in graph.parameters}["bf"] == "bfloat16"
        assert graph.node("Default/Cast-op3").outputs == (GraphOutput("bfloat16", (2, 3)),)


def test_the_history_of_lenet_has_its_three_steps() -> None:
    assert decode_execution_history((DATA / "ms210_lenet/ms_global_execution_order_graph_0.csv").read_bytes()) == (
        0,
        1,
        2,
    )


IR_OF_2_3 = b"""#IR entry      : @kernel_graph1
subgraph @kernel_graph1() {
  %20(equivoutput) = Conv2D(%17, %19) {instance name: conv2d} primitive_attrs: {mode: 1, input_names: [
x, w],    pri_format: NC1HWC0, pad: (0, 0, 0, 0), visited: true, output_used_num:
(1)}
       : (<Tensor[Float32], (32, 256, 13, 13)>, <Tensor[Float32], (384, 256, 3, 3)>) -> (<Tensor[Float32], (32, 384, 13, 13)>)
       : (<Float16xNC1HWC0[const vector][32, 16, 13, 13, 16]>, <Float16xFracZ[const vector][144, 24, 16, 16]>) -> (<Float32xNC1HWC0[const vector][32, 24, 13, 13, 16]>)
       : full_name_with_scope: (Default/network-AlexNet/conv3-Conv2d/Conv2D-op12)
       ...
       # In file ./train_alexnet.py(175)/        x = self.conv3(x)/
       ...
}
"""


def test_the_words_of_mindspore_2_3_are_read() -> None:
    graph = decode_ir(IR_OF_2_3)
    assert graph.graph_id == 1
    (node,) = graph.nodes
    assert node.op_name == "Default/network-AlexNet/conv3-Conv2d/Conv2D-op12"
    assert node.runs_kernel
    assert node.outputs == (GraphOutput("float32", (32, 384, 13, 13)),)
    assert node.stack == (Frame("./train_alexnet.py", 175, "", "x = self.conv3(x)"),)
    assert node.attributes == {
        "mode": 1,
        "input_names": ["x", "w"],
        "pri_format": "NC1HWC0",
        "pad": [0, 0, 0, 0],
        "visited": True,
        "output_used_num": [1],
    }


@pytest.mark.parametrize(
    "data", [b"", b"\x08\x01", b"not a protobuf", b"\x22\xff\xff\xff\xff\x7f", b"\x22\x02\x0a\x00"]
)
def test_bytes_without_a_graph_are_no_pb_file(data: bytes) -> None:
    with pytest.raises(CorruptDumpError, match=r"g\.pb"):
        decode_pb(data, where="g.pb")


def test_a_pb_file_that_was_cut_off_is_corrupt_wherever_it_was_cut() -> None:
    data = (DATA / "ms210_constants/ms_output_trace_code_graph_0.pb").read_bytes()
    for length in range(0, len(data) - 1, 37):
        with pytest.raises(CorruptDumpError):
            decode_pb(data[:length])


def test_a_node_without_a_full_name_is_named_by_its_number_and_type() -> None:
    model = model_proto()()
    model.graph.node.add(name=b"7", op_type=b"Conv2D")
    with pytest.raises(CorruptDumpError, match=r"node 7 \(Conv2D\) has no full name"):
        decode_pb(model.SerializeToString())


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"phase":"sideways"}', '{"phase":"forward","slots":["x"]}', '{"phase":"forward","inputs":{"0":1}}'],
)
def test_a_record_that_does_not_fit_its_node_is_corrupt(text: str) -> None:
    model = model_proto()()
    node = model.graph.node.add(name=b"1", op_type=b"add", full_name=b"add-op0")
    node.input.add(name=b"")
    attribute = node.attribute.add(name=b"opdump.record")
    attribute.value.dtype, attribute.value.str_val = 13, text.encode()
    with pytest.raises(CorruptDumpError, match="add-op0"):
        decode_pb(model.SerializeToString())


def test_an_ir_file_that_was_cut_off_is_corrupt() -> None:
    data = encode_ir(small_graph())
    for length in range(0, len(data) - 2, 11):
        with pytest.raises(CorruptDumpError, match="subgraph"):
            decode_ir(data[:length])


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("  %0(a) = Add(%1)\n      : () -> ()", "line 2.*no full name"),
        ("  %0(a) = Add(%1\n      # Fullname with scope: (a-op0)", "line 2.*a-op0.*arguments is not closed"),
        ("  %0(a) = Add()\n      : (<Tensor[Float32) -> ()\n      # Fullname with scope: (a-op0)", "a-op0"),
        ("  %0(a) = Add() primitive_attrs: {a: (1\n      # Fullname with scope: (a-op0)", "primitive_attrs do not end"),
    ],
)
def test_a_broken_node_is_named_by_its_line(lines: str, message: str) -> None:
    with pytest.raises(CorruptDumpError, match=f"(?s){message}"):
        decode_ir(f"subgraph @g() {{\n{lines}\n}}\n".encode())


def test_other_text_and_other_bytes_are_no_ir_file() -> None:
    with pytest.raises(CorruptDumpError, match=r"g\.ir.*subgraph"):
        decode_ir(b"hello\n", where="g.ir")
    with pytest.raises(CorruptDumpError, match="UTF-8"):
        decode_ir(b"subgraph @g() {\n\xff\n}\n")


def test_an_execution_order_needs_its_header() -> None:
    with pytest.raises(CorruptDumpError, match="header"):
        decode_execution_order(b"Default/a-op0\n")
    with pytest.raises(CorruptDumpError, match="empty"):
        decode_execution_order(b"")
    with pytest.raises(CorruptDumpError, match="UTF-8"):
        decode_execution_order(b"\xff\xfe")


@pytest.mark.parametrize("line", ["one", "-1", "1.5", "\u0661", "9" * 30])
def test_a_history_has_step_numbers_alone(line: str) -> None:
    with pytest.raises(CorruptDumpError, match="line 2"):
        decode_execution_history(f"0\n{line}\n".encode())


@given(st.binary(max_size=200), st.integers(0, 5000))
def test_damaged_files_give_a_graph_or_the_error_and_nothing_else(noise: bytes, position: int) -> None:
    for data, decode in ((encode_pb(small_graph()), decode_pb), (encode_ir(small_graph()), decode_ir)):
        place = position % len(data)
        with contextlib.suppress(CorruptDumpError):
            decode(data[:place] + noise + data[place + len(noise) :])


def test_values_nested_without_end_do_not_exhaust_the_stack() -> None:
    brackets = "(" * 5000 + ")" * 5000
    text = f"subgraph @g() {{\n  %0(a) = Add() primitive_attrs: {{a: {brackets}}}\n      # Fullname with scope: (a-op0)\n}}\n"
    assert decode_ir(text.encode()).nodes[0].op_name == "a-op0"
    with pytest.raises(CorruptDumpError):
        decode_pb(b"\x22\x05\x0a\x03\x2a\x01\x12" * 1000)
    assert encode_pb(small_graph())
