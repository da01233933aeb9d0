"""Graph files of TensorFlow programs, compared with what TensorFlow reports of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from opdump.layouts.graph_files.ge import GeGraph, is_computational, read_ge_graph
from tests.tensorflow.sessions.ge_graph_programs import write_programs


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return write_programs(tmp_path_factory.mktemp("graphs"))


def _graphs(program: dict[str, Any]) -> tuple[GeGraph, ...]:
    return read_ge_graph(Path(program["file"]))


@pytest.mark.parametrize("name", ["training", "starting", "initialising", "function", "imported"])
def test_operators_are_those_of_the_graph_def(name: str, programs: dict[str, Any]) -> None:
    program = programs[name]
    root, *_ = _graphs(program)
    assert root.operators
    for operator in root.operators:
        if name == "imported" and operator.name == "x":
            continue  # it is fed, and comes first
        node = program["nodes"][operator.name]
        assert operator.op_type == node["type"]
        assert sorted(operator.inputs) == sorted(node["inputs"])
        values = [source for source in node["inputs"] if not source.endswith(":-1")]
        assert list(operator.inputs[: len(values)]) == values
        shapes = [None if tensor.shape is None else list(tensor.shape) for tensor in operator.outputs]
        assert shapes == program["shapes"][operator.name]


@pytest.mark.parametrize("name", ["training", "feeding"])
def test_operators_stand_in_the_order_of_the_signature(name: str, programs: dict[str, Any]) -> None:
    (root,) = _graphs(programs[name])
    feeds = len(root.inputs)
    assert [operator.name for operator in root.operators][feeds:] == programs[name]["run"]


def test_the_rule_finds_the_training_among_three_graphs(programs: dict[str, Any]) -> None:
    rules = {name: is_computational(_graphs(programs[name])) for name in ("training", "starting", "initialising")}
    assert rules == {"training": "IteratorV2", "starting": None, "initialising": None}
    (root,) = _graphs(programs["training"])
    assert root.name == "ge_default_20201120163719_3"
    types = {operator.name: operator.op_type for operator in root.operators}
    assert {"IteratorV2", "IteratorGetNext", "MatMul", "ResourceApplyGradientDescent"} <= set(types.values())
    assert "loss:0" in root.outputs, "no operator reads it"
    runs = {operator.op_type for operator in root.operators if operator.runs}
    assert "IteratorGetNext" in runs
    assert not runs & {"Const", "NoOp", "VarHandleOp", "IteratorV2"}


def test_feeds_are_operators(programs: dict[str, Any]) -> None:
    (root,) = _graphs(programs["feeding"])
    assert is_computational([root]) == "_opdump_compute_graph"
    operators = {operator.name: operator for operator in root.operators}
    kinds = {name: operators[name].op_type for name in ("x", "free", "rate", "middle")}
    assert kinds == {"x": "Placeholder", "free": "Placeholder", "rate": "PlaceholderWithDefault", "middle": "Data"}
    assert not any(operators[name].runs or operators[name].inputs for name in kinds)
    assert sorted(root.inputs) == ["free:0", "middle:0", "rate:0", "x:0"]
    assert operators["after"].inputs == ("middle:0", "rate:0", "before:-1"), "what it waits for is no value"
    assert [tensor.shape for tensor in operators["after"].input_tensors] == [(-1, 1), ()]
    assert operators["free"].outputs[0].shape is None
    assert "mul" not in operators, "what only a fed tensor needs does not run"
    # A loop of frames keeps its back edge.
    assert "loop/NextIteration:0" in operators["loop/Merge"].inputs


def test_an_operator_with_one_fed_output_is_in_the_graph_next_to_the_feed(programs: dict[str, Any]) -> None:
    (root,) = _graphs(programs["partly fed"])
    operators = {operator.name: operator for operator in root.operators}
    assert operators["parts_0"].op_type == "Data"
    assert operators["parts"].op_type == "SplitV"
    assert operators["both"].inputs[:2] == ("parts_0:0", "parts:1")


@pytest.mark.parametrize("name", ["function", "imported"])
def test_bodies_are_graphs_after_the_first(name: str, programs: dict[str, Any]) -> None:
    program = programs[name]
    root, *bodies = _graphs(program)
    assert sorted(body.name for body in bodies) == program["functions"]
    called = {operator.name: operator.subgraphs for graph in (root, *bodies) for operator in graph.operators}
    assert len(called["cond"]) == len(called["while"]) == 2
    assert {each for names in called.values() for each in names} == {body.name for body in bodies}
    by_name = {body.name: body for body in bodies}
    then = by_name[called["cond"][0]]
    assert {"StatefulPartitionedCall", "PartitionedCall"} & {operator.op_type for operator in then.operators}
    assert any(operator.op_type == "Sin" for body in bodies for operator in body.operators)
    for body in bodies:
        names = {operator.name for operator in body.operators}
        assert {source.rpartition(":")[0] for source in (*body.inputs, *body.outputs)} <= names
