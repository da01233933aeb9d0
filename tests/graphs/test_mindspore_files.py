"""Files that MindSpore 2.7 and 2.10 wrote, and the sample in MindSpore 2.3's documents."""

from __future__ import annotations

from pathlib import Path

import pytest

from opdump.graph import Graph, GraphOutput
from opdump.layouts.graph_files.mindspore import decode_execution_history, decode_execution_order, decode_ir, decode_pb
from opdump.records import Frame
from tests.graphs.examples import DATA

GRAPHS = sorted(DATA.glob("*/*.pb"))
FORWARD_LENET = "Default/network-WithLossCell/_backbone-LeNet/conv1-Conv2d/Conv2D-op0"


def _both(pb: Path) -> tuple[Graph, Graph]:
    ir = pb.with_suffix(".ir")
    return decode_pb(pb.read_bytes(), where=pb.name), decode_ir(ir.read_bytes(), where=ir.name)


def test_the_files_are_there() -> None:
    assert len(GRAPHS) == 11


@pytest.mark.parametrize("pb", GRAPHS, ids=lambda path: f"{path.parent.name}-{path.stem[-1]}")
def test_pb_and_ir_tell_the_same_of_every_node(pb: Path) -> None:
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
