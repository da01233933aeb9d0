"""Operators of the program, which must run only once: finding them, and computing the rest of a model without them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, helper

from opdump.adapters.onnxruntime.model_file import load_model
from opdump.adapters.onnxruntime.model_graph import nodes_of, operators_of_program
from opdump.adapters.onnxruntime.recorded_model import RunOnce
from tests.onnx.recording import FLOAT, model_of, numbers


def operators(model: ModelProto) -> dict[str, str]:
    return operators_of_program(model, nodes_of(model))


def graph(nodes: list[Any], functions: tuple[Any, ...] = ()) -> ModelProto:
    model = model_of(nodes, {"x": (FLOAT, [4])}, {"y": (FLOAT, [4])})
    model.functions.extend(functions)
    return model


def function(name: str, op_type: str, domain: str) -> Any:
    body = [helper.make_node(op_type, ["a"], ["b"], domain=domain)]
    return helper.make_function("own", name, ["a"], ["b"], body, [helper.make_opsetid("", 21)])


@pytest.mark.parametrize(
    ("domain", "op_type", "found"),
    [
        ("", "Tanh", {}),
        ("ai.onnx", "Tanh", {}),
        ("ai.onnx.ml", "Scaler", {}),
        ("com.microsoft", "Gelu", {}),
        ("com.microsoft", "PythonOp", {"it": "com.microsoft::PythonOp"}),
        ("ai.onnx.contrib", "Ask", {"it": "ai.onnx.contrib::Ask"}),
        ("org.pytorch.aten", "ATen", {"it": "org.pytorch.aten::ATen"}),
        ("mine", "Count", {"it": "mine::Count"}),
    ],
)
def test_an_operator_of_an_unknown_domain_or_that_calls_python_is_the_programs(
    domain: str, op_type: str, found: dict[str, str]
) -> None:
    assert operators(graph([helper.make_node(op_type, ["x"], ["y"], name="it", domain=domain)])) == found


def test_a_function_is_the_programs_where_something_in_it_is() -> None:
    for inner, found in (("", {}), ("mine", {"it": "mine::Tanh"})):
        # The outer function calls the inner one, and is listed first.
        functions = (function("Outer", "Inner", "own"), function("Inner", "Tanh", inner))
        model = graph([helper.make_node("Outer", ["x"], ["y"], name="it", domain="own")], functions)
        assert operators(model) == found


def test_a_control_operator_is_the_programs_where_a_body_has_one_of_it() -> None:
    branches: dict[str, Any] = {
        name: helper.make_graph(
            [helper.make_node("Count", ["x"], [name], domain=domain)],
            name,
            [],
            [helper.make_tensor_value_info(name, FLOAT, None)],
        )
        for name, domain in (("then_branch", ""), ("else_branch", "mine"))
    }
    node = helper.make_node("If", ["c"], ["y"], name="it", **branches)
    assert operators(graph([node])) == {"it": "mine::Count"}


def test_the_rest_of_a_model_computes_the_same_from_what_they_gave() -> None:
    model = load_model(
        model_of(
            [
                helper.make_node("Mul", ["x", "w"], ["a"], name="mul"),
                helper.make_node("Exp", ["a"], ["b"], name="exp"),
                helper.make_node("Add", ["b", "w"], ["y"], name="add"),
            ],
            {"x": (FLOAT, [4])},
            {"y": (FLOAT, [4])},
            {"w": numbers(4, seed=1)},
        )
    )
    nodes = nodes_of(model.proto)
    once = RunOnce({"exp": "mine::Exp"}, (nodes[1],))
    plain = onnxruntime.InferenceSession(model.with_outputs(["b"]), providers=["CPUExecutionProvider"])
    feeds = {"x": numbers(4)}
    assert once.refusal(model, plain) == ""
    answer, given, tensors = once.run(plain, ["y"], feeds, None)
    rest = onnxruntime.InferenceSession(
        once.rest_of(model, nodes, ["a", "y"], plain), providers=["CPUExecutionProvider"]
    )
    assert [value.name for value in rest.get_inputs()] == ["x", "b"]
    a, y = rest.run(["a", "y"], {**feeds, **given})
    assert np.allclose(np.exp(a), given["b"], rtol=1e-6)
    assert np.array_equal(y, answer[0])
    assert list(tensors) == ["b"]
