"""Reading returns what was written."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given

from opdump.graph import Graph
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
from tests.graphs.examples import graphs, small_graph, without_functions

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
