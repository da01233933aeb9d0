"""Pairs of operators whose values differ too much to be matched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from opdump.comparison.across_frameworks import compare_across
from opdump.comparison.nodes import Node, Place
from opdump.comparison.trace import Trace
from opdump.comparison.value_matching import Flow, Partners, match_dependents, match_flow, match_names, match_values
from opdump.graph import PYNATIVE
from opdump.records import Phase, TensorRecord
from tests.comparison.hand_made import Array, node, record

X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)


def made(
    index: int,
    op_type: str,
    value: Array,
    makers: Mapping[int, Place],
    inputs: tuple[TensorRecord, ...],
    phase: Phase = "forward",
) -> Node:
    found = node(index, op_type, inputs, [record(value, io="output")], phase, makers)
    return replace(found, op=replace(found.op, kernel=f"mindspore::{op_type}"))


def branches(scale: float, first: str, second: str, *, swapped: bool) -> Trace:
    """Two branches from X, which run in either order, and their difference. `scale` changes the values of both."""
    nodes: list[Node] = []
    places: dict[str, Place] = {}
    values = {first: np.sin(X * scale), second: np.sin(X * scale) ** 3}
    for name in (second, first) if swapped else (first, second):
        places[name] = (len(nodes), 0)
        nodes.append(made(len(nodes), name, values[name], {}, (record(X),)))
    below, above = values[first], values[second]
    makers = {0: places[first], 1: places[second]}
    nodes.append(made(2, "Sub", below - above, makers, (record(below), record(above))))
    return Trace(0, 0, nodes)


@pytest.mark.parametrize("swapped", [False, True])
def test_operators_of_one_kind_are_paired_by_what_they_read_in_any_order(swapped: bool) -> None:
    a, b = branches(1.0, "Sin", "Tanh", swapped=False), branches(1.5, "Sin", "Tanh", swapped=swapped)
    matched = match_values(a, b)
    assert not matched.pairs
    pairs = match_flow(a.nodes, b.nodes, Flow.both(a, b, matched, matched.pairs), Partners(a, b))
    found = {a.nodes[pair.a[0]].op.op_type: b.nodes[pair.b[0]].op.op_type for pair in pairs.values()}
    assert found == {"Sin": "Sin", "Tanh": "Tanh", "Sub": "Sub"}


def test_operators_that_read_something_else_or_run_in_another_phase_are_not_paired() -> None:
    other = np.random.default_rng(1).standard_normal((3, 4)).astype(np.float32)
    nodes = [made(0, "Sin", np.sin(X), {}, (record(X),))]
    a = Trace(0, 0, nodes)
    unlike: list[tuple[Array, Phase]] = [(other, "forward"), (X, "backward")]
    for value, phase in unlike:
        b = Trace(0, 0, [made(0, "Sin", np.sin(2 * X), {}, (record(value),), phase)])
        matched = match_values(a, b)
        assert not match_flow(a.nodes, b.nodes, Flow.both(a, b, matched, matched.pairs), Partners(a, b))


@pytest.mark.parametrize(("phase", "count"), [("forward", 1), ("backward", 0)])
def test_equal_values_of_the_forward_and_the_backward_pass_are_no_pair(phase: Phase, count: int) -> None:
    gradient = made(1, "Cos", np.cos(X), {}, (record(X),), "backward")
    a = Trace(0, 0, [made(0, "Pow", X**2, {}, (record(X),)), gradient])
    b = Trace(0, 0, [made(0, "Pow", X**2, {}, (record(X),), phase), gradient])
    matched = match_values(a, b)
    assert len(matched.pairs) == 1 + count
    assert matched.a.made[0, 0] == matched.b.made[0, 0]


@pytest.mark.parametrize("name", ["first", "second"])
def test_another_parameter_with_equal_values_is_named_if_the_results_differ(name: str) -> None:
    ones = np.ones(4, np.float32)

    def step(read: str, result: Array, graph_id: int) -> Trace:
        scale = record(ones, 1 if read == "first" else 2, f"Parameter.{read}")
        both = (record(ones, 1, "Parameter.first"), record(ones, 2, "Parameter.second"))
        product = made(0, "Mul", X, {}, (record(X), scale))
        nodes = [product, made(1, "Div", result, {0: (0, 0)}, (record(X), *both))]
        return Trace(0, 0, [replace(each, op=replace(each.op, graph_id=graph_id)) for each in nodes])

    compiled = step("first", X / 3, 0)
    found = compare_across(compiled, step(name, X / 3 * (1.005 if name == "second" else 1), PYNATIVE)).suspects
    kinds = [(suspect.kind, suspect.b and suspect.b.op.op_type) for suspect in found[:1]]
    assert kinds == ([("parameter", "Mul")] if name == "second" else [])


@pytest.mark.parametrize("name", ["second", "third"])
def test_the_update_of_a_state_is_only_paired_with_the_update_of_the_same_state(name: str) -> None:
    def step(states: Mapping[str, Array]) -> Trace:
        nodes = [
            node(
                index,
                "Update",
                (record(X, index, f"Parameter.{state}"), record(X)),
                [record(value, index, io="output")],
            )
            for index, (state, value) in enumerate(states.items())
        ]
        return Trace(0, 0, nodes)

    matched = match_values(step({"first": X, "second": X * 1.001}), step({"first": X * 1.001, name: X}))
    found = {(pair.a[0], pair.b[0]) for pair in matched.pairs.values()}
    assert found == {(0, 0), (1, 1)}


@pytest.mark.parametrize(("momentum", "kinds"), [(0.1, []), (0.2, ["argument"])])
def test_other_arguments_of_an_operator_are_named_if_the_dump_lacks_what_it_writes(
    momentum: float, kinds: list[str]
) -> None:
    def step(value: float) -> Trace:
        norm = made(0, "BatchNorm", np.tanh(X), {}, (record(X), record(X[0], source="Parameter.mean")))
        written = replace(norm.op, arguments={"momentum": value, "side_effect_mem": True})
        return Trace(0, 0, [replace(norm, op=written)])

    found = compare_across(step(0.1), step(momentum)).suspects
    assert [suspect.kind for suspect in found] == kinds


def test_an_operator_that_makes_floats_of_integers_is_paired() -> None:
    labels = np.array([0, 2, 1], np.int32)

    def step(high: float) -> Trace:
        hot = np.eye(4, dtype=np.float32)[labels] * high
        nodes = [
            made(0, "OneHot", hot, {}, (record(labels),)),
            made(1, "Mul", hot * X, {0: (0, 0)}, (record(hot), record(X))),
        ]
        return Trace(0, 0, nodes)

    a, b = step(1.0), step(0.5)
    pairs = match_flow(a.nodes, b.nodes, Flow.both(a, b, matched := match_values(a, b), matched.pairs), Partners(a, b))
    assert {(pair.a, pair.b) for pair in pairs.values()} == {((0, 0), (0, 0)), ((1, 0), (1, 0))}
    assert not any(each.arranges for each in a.nodes)


def test_the_first_outputs_that_depend_on_the_same_inputs_and_weights_are_paired() -> None:
    random = np.random.default_rng(2)
    w, v = (random.standard_normal((4, 4)).astype(np.float32) for _ in range(2))
    bias = random.standard_normal(4).astype(np.float32)
    product = X @ w
    biased, doubled = product + bias, 2 * (product + bias)
    a = Trace(
        0,
        0,
        [
            made(0, "MatMul", product, {}, (record(X), record(w))),
            made(1, "Add", biased, {0: (0, 0)}, (record(product), record(bias))),
            made(2, "Relu", np.maximum(biased, 0), {0: (1, 0)}, (record(biased),)),
            made(3, "MatMul", np.maximum(biased, 0) @ v, {0: (2, 0)}, (record(np.maximum(biased, 0)), record(v))),
        ],
    )
    b = Trace(
        0,
        0,
        [
            made(0, "Gemm", doubled, {}, (record(X), record(w), record(bias))),
            made(1, "Tanh", np.tanh(doubled), {0: (0, 0)}, (record(doubled),)),
            made(2, "Einsum", np.tanh(doubled) @ v, {0: (1, 0)}, (record(np.tanh(doubled)), record(v))),
        ],
    )
    matched = match_values(a, b)
    assert not matched.pairs
    pairs = match_dependents(a, b, matched, Partners(a, b))
    assert {(one, pair.b, pair.kind) for one, pair in pairs.items()} == {
        ((1, 0), (0, 0), "inputs"),
        ((3, 0), (2, 0), "inputs"),
    }
    outcome = compare_across(a, b)
    assert {(pair.a, pair.b) for pair in outcome.pairs if pair.kind == "inputs"} == {
        ((1, 0), (0, 0)),
        ((3, 0), (2, 0)),
    }


def test_names_that_few_operators_share_pair_nothing() -> None:
    def of_names(*names: str) -> Trace:
        nodes = [made(number, "Sin", np.sin(X), {}, (record(X),)) for number in range(len(names))]
        return Trace(
            0, 0, [replace(each, op=replace(each.op, op_name=name)) for each, name in zip(nodes, names, strict=True)]
        )

    a = of_names("x", "y", *"abcdefgh")
    assert [pair.kind for pair in match_names(a, of_names("x", "y", *"klmn")).values()] == ["name", "name"]
    assert not match_names(a, of_names("x", *"klmnop"))
