"""Values that two frameworks have in common, and values that must not be confused: handmade steps of operators that
cannot be replayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from opdump.comparison.across_frameworks import compare_across, of_different_frameworks
from opdump.comparison.differences import difference
from opdump.comparison.nodes import Node
from opdump.comparison.trace import Trace
from opdump.comparison.value_matching import drifted_inputs, match_values
from tests.comparison.hand_made import Array, node, record

RANDOM = np.random.default_rng(3)
X, WEIGHT, STATE, DRAWN = (RANDOM.standard_normal((4, 4)).astype(np.float32) for _ in range(4))
OUT = X @ WEIGHT
UPDATED = WEIGHT - np.float32(1e-4) * OUT


def trace(*nodes: Node, at: int = 0) -> Trace:
    return Trace(at, 0, nodes)


def update(index: int, op_type: str, given: Sequence[Array], made: Array, *makers: tuple[int, int]) -> Node:
    """An operator in the optimizer phase, made like `step`."""
    one = step(index, op_type, given, made, *makers)
    return replace(one, op=replace(one.op, phase="optimizer"))


def step(index: int, op_type: str, given: Sequence[Array], made: Array, *makers: tuple[int, int]) -> Node:
    """An operator with one output. Its first inputs come from `makers`."""
    return node(
        index, op_type, [record(each) for each in given], [record(made, io="output")], makers=dict(enumerate(makers))
    )


def test_a_weight_that_an_operator_reads_is_not_taken_for_the_weight_after_its_update() -> None:
    a = trace(step(0, "mm", [X, WEIGHT], OUT), update(1, "add", [OUT, WEIGHT], UPDATED, (0, 0)))
    b = trace(step(0, "ReadVariableOp", [], WEIGHT), step(1, "MatMul", [WEIGHT, X], OUT, (0, 0)))
    assert {(pair.a, pair.b) for pair in match_values(a, b).pairs.values()} == {((0, 0), (1, 0))}
    assert {(pair.a, pair.b) for pair in match_values(b, a).pairs.values()} == {((1, 0), (0, 0))}
    assert compare_across(a, b).suspects == []


def test_a_weight_after_its_update_is_found_where_both_give_it() -> None:
    a = trace(step(0, "mm", [X, WEIGHT], OUT), step(1, "add", [OUT, WEIGHT], UPDATED, (0, 0)))
    b = trace(
        step(0, "ReadVariableOp", [], WEIGHT),
        step(1, "MatMul", [WEIGHT, X], OUT, (0, 0)),
        step(2, "Sub", [OUT, WEIGHT], UPDATED, (1, 0), (0, 0)),
    )
    assert {(pair.a, pair.b) for pair in match_values(a, b).pairs.values()} == {((0, 0), (1, 0)), ((1, 0), (2, 0))}


def test_states_that_two_optimizers_scale_differently_are_no_difference() -> None:
    a = trace(step(0, "mm", [X, WEIGHT], OUT), update(1, "mul", [STATE], np.float32(0.9) * STATE))
    b = trace(
        step(0, "MatMul", [X, WEIGHT], OUT), update(1, "Mul", [np.float32(-0.05) * STATE], np.float32(-0.045) * STATE)
    )
    assert compare_across(a, b).suspects == []


def test_numbers_that_were_drawn_are_not_compared_with_an_update() -> None:
    a = trace(step(0, "mm", [X, WEIGHT], OUT), update(1, "add", [OUT, WEIGHT], UPDATED, (0, 0)))
    b = trace(
        step(0, "RandomUniform", [], DRAWN),
        step(1, "Add", [DRAWN], DRAWN - np.float32(0.5), (0, 0)),
        step(2, "MatMul", [X, WEIGHT], OUT),
    )
    assert compare_across(a, b).suspects == []


def test_another_update_of_the_same_gradient_is_a_difference() -> None:
    a = trace(step(0, "mm", [X, WEIGHT], OUT), step(1, "add", [OUT, WEIGHT], UPDATED, (0, 0)))
    b = trace(step(0, "MatMul", [X, WEIGHT], OUT), step(1, "Add", [OUT, WEIGHT], UPDATED + WEIGHT, (0, 0)))
    (found,) = compare_across(a, b).suspects
    assert (found.a, found.b) == (a.nodes[1], b.nodes[1])


def test_a_number_that_the_program_prints_is_no_result() -> None:
    counted = step(1, "AssignAdd", [np.array([1, 2])], np.array([2, 3]))
    a = trace(step(0, "mm", [X, WEIGHT], OUT), node(1, "_local_scalar_dense", [record(np.float32(3))]))
    found = compare_across(a, trace(step(0, "MatMul", [X, WEIGHT], OUT), counted))
    assert not any("not proven" in note for note in found.notes)


def test_an_operator_that_passes_a_value_on_is_not_compared_with_others() -> None:
    counted = step(2, "AssignAdd", [np.array([1, 2])], np.array([2, 3]))
    a = trace(step(0, "mm", [X, WEIGHT], OUT), step(1, "add", [OUT, STATE], OUT + np.float32(0.3) * STATE, (0, 0)))
    b = trace(step(0, "MatMul", [X, WEIGHT], OUT), step(1, "Reshape", [OUT], OUT.reshape(4, 4), (0, 0)), counted)
    assert compare_across(a, b).suspects == []


def drifted(a: Trace, b: Trace) -> dict[tuple[int, int], Array]:
    return dict(drifted_inputs(a, b, match_values(a, b)))


def test_a_later_step_begins_with_what_rounding_has_moved() -> None:
    theirs = WEIGHT * np.float32(1 + 1e-6)
    a = step(0, "mm", [X, WEIGHT], OUT)
    b = step(0, "MatMul", [theirs.T, X], X @ theirs)
    assert drifted(trace(a), trace(b)) == {}
    assert drifted(trace(a, at=4), trace(b)) == {}
    found = drifted(trace(a, at=4), trace(b, at=4))
    np.testing.assert_array_equal(found[0, 1], theirs)
    np.testing.assert_array_equal(found[0, 0], X)


def test_a_weight_that_differs_has_not_drifted() -> None:
    theirs = WEIGHT.copy()
    theirs[1, 1] += 0.02
    a, b = step(0, "mm", [X, WEIGHT], OUT), step(0, "MatMul", [X, theirs], X @ theirs)
    assert set(drifted(trace(a, at=4), trace(b, at=4))) == {(0, 0)}


def test_a_state_that_the_other_does_not_show_moves_by_as_much_as_a_gradient_of_its_size() -> None:
    gradient = OUT * np.float32(1 + 2e-6)
    a = trace(step(0, "mm", [X, WEIGHT], OUT), step(1, "mul", [STATE], np.float32(0.9) * STATE), at=4)
    b = trace(step(0, "MatMul", [X, WEIGHT], gradient), at=4)
    found = drifted(a, b)[1, 0]
    (distance,) = [pair.distance for pair in match_values(a, b).pairs.values()]
    assert 1e-6 < distance < 3e-6
    assert difference(STATE, found).relative == pytest.approx(distance, rel=0.1)
    np.testing.assert_array_equal(drifted(a, b)[1, 0], found)
    assert (1, 0) not in drifted(a, trace(step(0, "MatMul", [X, WEIGHT], OUT), at=4))


def test_frameworks_are_two_by_what_the_dumps_say_or_by_the_names_of_their_operators() -> None:
    one, other = trace(step(0, "MatMul", [X, WEIGHT], OUT)), trace(step(0, "mm", [X, WEIGHT], OUT))
    assert not of_different_frameworks(one, one)
    assert not of_different_frameworks(one, one, ({"tensorflow"}, ()))
    assert not of_different_frameworks(one, one, ({"torch"}, {"torch"}))
    assert of_different_frameworks(one, one, ({"tensorflow"}, {"mindspore"}))
    assert of_different_frameworks(one, other)
