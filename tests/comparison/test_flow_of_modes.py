"""Pairs of operators whose values differ too much to be matched, in two runs of MindSpore."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from opdump.comparison.across_frameworks import compare_across
from opdump.comparison.nodes import Node, Place
from opdump.comparison.trace import Trace
from opdump.comparison.value_matching import Flow, Updates, match_flow, match_values
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
    pairs = match_flow(a.nodes, b.nodes, Flow.both(a, b, matched, matched.pairs), Updates.of(a, b).may_pair_nodes)
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
        assert not match_flow(a.nodes, b.nodes, Flow.both(a, b, matched, matched.pairs), Updates.of(a, b).may_pair_nodes)


@pytest.mark.parametrize(("phase", "count"), [("forward", 1), ("backward", 0)])
def test_equal_values_of_the_forward_and_the_backward_pass_are_no_pair(phase: Phase, count: int) -> None:
    a = Trace(0, 0, [made(0, "Pow", X**2, {}, (record(X),))])
    b = Trace(0, 0, [made(0, "Pow", X**2, {}, (record(X),), phase)])
    matched = match_values(a, b)
    assert len(matched.pairs) == count
    assert matched.a.made == {(0, 0): matched.b.made[0, 0]}


@pytest.mark.parametrize("name", ["first", "second"])
def test_another_parameter_with_equal_values_is_named_if_the_results_differ(name: str) -> None:
    ones = np.ones(4, np.float32)

    def step(read: str, result: Array) -> Trace:
        scale = record(ones, 1 if read == "first" else 2, f"Parameter.{read}")
        both = (record(ones, 1, "Parameter.first"), record(ones, 2, "Parameter.second"))
        product = made(0, "Mul", X, {}, (record(X), scale))
        return Trace(0, 0, [product, made(1, "Div", result, {0: (0, 0)}, (record(X), *both))])

    found = compare_across(step("first", X / 3), step(name, X if name == "second" else X / 3)).suspects
    kinds = [(suspect.kind, suspect.b and suspect.b.op.op_type) for suspect in found[:1]]
    assert kinds == ([("parameter", "Mul")] if name == "second" else [])
