"""Building a graph."""

from __future__ import annotations

import pytest

from opdump.graph import GraphBuilder, GraphNode, GraphValue


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
